// Grader of lab 4: two convolutions against sums of doubles, and one against the other by the
// clock.
#include "grade.h"

typedef void conv_fn(float *y, const float *x, const float *w, const float *b, int N, int C, int H,
                     int W, int O, int K, int S, int pad);
typedef void fast_fn(float *y, const float *x, const float *w, const float *b, int N, int C, int H,
                     int W, int O, int K);

typedef struct conv {
    int N, C, H, W, O, K, S, pad, P, Q, times;
    float *x, *w, *b, *y;
    volatile double seconds; // of the fastest of so many times
} conv;

static conv *new_conv(int N, int C, int H, int W, int O, int K, int S, int pad) {
    conv *t = shared(sizeof *t);
    *t = (conv){ .N = N, .C = C, .H = H, .W = W, .O = O, .K = K, .S = S, .pad = pad, .times = 1,
                 .P = (H + 2 * pad - K) / S + 1, .Q = (W + 2 * pad - K) / S + 1 };
    t->x = inputs((size_t)(N * C * H * W)), t->w = inputs((size_t)(O * C * K * K)),
    t->b = inputs((size_t)O);
    t->y = outputs((size_t)(N * O * t->P * t->Q), 7.0f); // to be overwritten
    return t;
}

static double *expected(const conv *t) {
    double *y = calloc((size_t)(t->N * t->O * t->P * t->Q), sizeof *y), *to = y;
    for (int n = 0; n < t->N; ++n)
        for (int o = 0; o < t->O; ++o)
            for (int i = 0; i < t->P; ++i)
                for (int j = 0; j < t->Q; ++j, ++to) {
                    *to = (double)t->b[o];
                    for (int k = 0; k < t->C * t->K * t->K; ++k) {
                        const int c = k / (t->K * t->K), u = k / t->K % t->K, v = k % t->K;
                        const int row = i * t->S + u - t->pad, column = j * t->S + v - t->pad;
                        if (row < 0 || row >= t->H || column < 0 || column >= t->W) continue;
                        *to += (double)t->x[((n * t->C + c) * t->H + row) * t->W + column] *
                               (double)t->w[o * t->C * t->K * t->K + k];
                    }
                }
    return y;
}

static void call_conv(void *function, void *arg) {
    conv *t = arg;
    conv_fn *f;
    memcpy(&f, &function, sizeof f);
    t->seconds = INFINITY;
    for (int k = 0; k < t->times; ++k) {
        const double start = dt_now();
        f(t->y, t->x, t->w, t->b, t->N, t->C, t->H, t->W, t->O, t->K, t->S, t->pad);
        t->seconds = fmin(t->seconds, dt_now() - start);
    }
}

static void call_fast(void *function, void *arg) {
    conv *t = arg;
    fast_fn *f;
    memcpy(&f, &function, sizeof f);
    t->seconds = INFINITY;
    for (int k = 0; k < t->times; ++k) {
        const double start = dt_now();
        f(t->y, t->x, t->w, t->b, t->N, t->C, t->H, t->W, t->O, t->K);
        t->seconds = fmin(t->seconds, dt_now() - start);
    }
}

static const char *try(conv *t, const char *name, call *how) {
    double *wanted = expected(t);
    const char *wrong = run(name, how, t, 10);
    if (!wrong) wrong = differ("y", t->y, wanted, (size_t)(t->N * t->O * t->P * t->Q), 1e-5);
    free(wanted);
    return wrong;
}

// Speed counts only of what is right, and of the submission's own first version.
static const char *too_slow(double times) {
    static char text[200];
    conv *plain = new_conv(8, 16, 32, 32, 16, 3, 1, 0),
         *fast = new_conv(8, 16, 32, 32, 16, 3, 1, 0);
    plain->times = fast->times = 7;
    const char *wrong = try(plain, "conv2d", call_conv);
    if (!wrong) wrong = try(fast, "conv2d_fast", call_fast);
    if (wrong) return wrong;
    const double ratio = plain->seconds / fast->seconds;
    if (ratio >= times) return NULL;
    snprintf(text, sizeof text, "wanted %.0f times conv2d's speed, got %.2f times", times, ratio);
    return text;
}

static void grade(void) {
    const int C = between(1, 4), O = between(1, 5);
    give("conv2d, one image, one channel", 15,
         try(new_conv(1, 1, 7, 7, 1, 3, 1, 0), "conv2d", call_conv));
    give("conv2d, channels and images", 15,
         try(new_conv(2, C + 1, 8, between(9, 12), O, between(2, 4), 1, 0), "conv2d", call_conv));
    give("conv2d, stride", 15,
         try(new_conv(2, C, 11, 9, O, 3, between(2, 3), 0), "conv2d", call_conv));
    give("conv2d, padding", 15,
         try(new_conv(2, C, between(5, 7), 6, O, 3, between(1, 2), between(1, 2)), "conv2d",
             call_conv));
    const char *wrong = NULL;
    for (int i = 0; i < 3 && !wrong; ++i)
        wrong = try(new_conv(between(1, 3), C + i, between(5, 20), between(5, 20), O + i,
                             between(1, 5), 1, 0),
                    "conv2d_fast", call_fast);
    give("conv2d_fast is right", 20, wrong);
    if (!timing) return;
    if (wanted_task("speed, 2 times")) give("speed, 2 times", 10, too_slow(2.0));
    if (wanted_task("speed, 4 times")) give("speed, 4 times", 10, too_slow(4.0));
}
