// Grader of lab 3: sizes and counts by going through all places, convolutions by sums of doubles.
#include "sandbox.h"

typedef int size_fn(int H, int K, int S, int pad);
typedef int64_t count_fn(int N, int C, int H, int W, int O, int K, int S, int pad);
typedef void conv_fn(float *y, const float *x, const float *w, const float *b, int N, int C, int H,
                     int W, int O, int K, int S, int pad);
typedef void cols_fn(float *cols, const float *x, int C, int H, int W, int K, int S, int pad);

typedef struct conv {
    int N, C, H, W, O, K, S, pad;
    float *x, *w, *b, *y;
    int64_t *count;
} conv;

#ifdef RUNNER
static void call_size(void *function, void *arg) {
    const conv *t = arg;
    FUNCTION(size_fn, f, function);
    *t->count = f(t->H, t->K, t->S, t->pad);
}

static void call_count(void *function, void *arg) {
    const conv *t = arg;
    FUNCTION(count_fn, f, function);
    *t->count = f(t->N, t->C, t->H, t->W, t->O, t->K, t->S, t->pad);
}

static void call_conv(void *function, void *arg) {
    const conv *t = arg;
    FUNCTION(conv_fn, f, function);
    f(t->y, t->x, t->w, t->b, t->N, t->C, t->H, t->W, t->O, t->K, t->S, t->pad);
}

static void call_cols(void *function, void *arg) {
    const conv *t = arg;
    FUNCTION(cols_fn, f, function);
    f(t->y, t->x, t->C, t->H, t->W, t->K, t->S, t->pad);
}

static const named_call calls[] = { { "size", call_size },
                                    { "count", call_count },
                                    { "conv", call_conv },
                                    { "cols", call_cols },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

// How many places of the kernel's first element leave room for its last.
static int places(int H, int K, int S, int pad) {
    int count = 0;
    for (int first = -pad; first + K <= H + pad; first += S) ++count;
    return count;
}

static conv *new_conv(int N, int C, int H, int W, int O, int K, int S, int pad) {
    conv *t = shown(sizeof *t);
    *t = (conv){ .N = N, .C = C, .H = H, .W = W, .O = O, .K = K, .S = S, .pad = pad };
    t->count = returned(sizeof *t->count);
    *t->count = -1;
    return t;
}

static const char *try_size(int H, int K, int S, int pad) {
    static char text[200];
    conv *t = new_conv(1, 1, H, H, 1, K, S, pad);
    const int64_t *count = t->count;
    const char *wrong = run("out_size", "size", t, 2);
    if (!wrong) wrong = differ_whole("size", *count, places(H, K, S, pad));
    if (wrong)
        snprintf(text, sizeof text, "H %d, K %d, S %d, pad %d: %.150s", H, K, S, pad, wrong);
    return wrong ? text : NULL;
}

static const char *try_count(int N, int C, int H, int W, int O, int K, int S, int pad) {
    conv *t = new_conv(N, C, H, W, O, K, S, pad);
    const int64_t *count = t->count, P = places(H, K, S, pad), Q = places(W, K, S, pad);
    const char *wrong = run("multiply_adds", "count", t, 2);
    return either(wrong, wrong ? NULL
                               : differ_whole("multiply-adds", *count,
                                              P * Q * N * O * C * K * K));
}

// The element of a padded image, in row and column of the image itself
static double pixel(const float *x, int H, int W, int row, int column) {
    const bool inside = row >= 0 && row < H && column >= 0 && column < W;
    return inside ? (double)x[row * W + column] : 0.0;
}

static double *expected(const conv *t, int P, int Q) {
    double *y = malloc((size_t)(t->N * t->O * P * Q) * sizeof *y), *to = y;
    if (!y) stop("grader");
    for (int n = 0; n < t->N; ++n)
        for (int o = 0; o < t->O; ++o)
            for (int at = 0; at < P * Q; ++at, ++to) {
                *to = (double)t->b[o];
                for (int k = 0; k < t->C * t->K * t->K; ++k) {
                    const int c = k / (t->K * t->K), u = k / t->K % t->K, v = k % t->K;
                    const float *plane = t->x + (n * t->C + c) * t->H * t->W;
                    *to += pixel(plane, t->H, t->W, at / Q * t->S + u - t->pad,
                                 at % Q * t->S + v - t->pad) *
                           (double)t->w[o * t->C * t->K * t->K + k];
                }
            }
    return y;
}

static const char *try_conv(int N, int C, int H, int W, int O, int K, int S, int pad) {
    conv *t = new_conv(N, C, H, W, O, K, S, pad);
    const int P = places(H, K, S, pad), Q = places(W, K, S, pad);
    const size_t all = (size_t)(N * O * P * Q);
    t->x = inputs((size_t)(N * C * H * W)), t->w = inputs((size_t)(O * C * K * K));
    t->b = inputs((size_t)O), t->y = outputs(all, 7.0f); // to be overwritten
    const char *wrong = run("conv2d", "conv", t, 5);
    double *wanted = expected(t, P, Q);
    if (!wrong) wrong = differ("y", t->y, wanted, all, 1e-5);
    free(wanted);
    return wrong;
}

static const char *try_cols(int C, int H, int W, int K, int S, int pad) {
    conv *t = new_conv(1, C, H, W, 1, K, S, pad);
    const int P = places(H, K, S, pad), Q = places(W, K, S, pad), all = C * K * K * P * Q;
    t->x = inputs((size_t)(C * H * W)), t->y = outputs((size_t)all, 7.0f);
    const char *wrong = run("im2col", "cols", t, 5);
    double *wanted = malloc((size_t)all * sizeof *wanted);
    if (!wanted) stop("grader");
    for (int at = 0; at < all; ++at) {
        const int k = at / (P * Q), i = at / Q % P, j = at % Q;
        wanted[at] = pixel(t->x + k / (K * K) * H * W, H, W, i * S + k / K % K - pad,
                           j * S + k % K - pad);
    }
    if (!wrong) wrong = differ("cols", t->y, wanted, (size_t)all, 0.0);
    free(wanted);
    return wrong;
}

static void grade(void) {
    const int C = between(2, 4), O = between(2, 5);
    const char *wrong = NULL;
    for (int S = 1; S <= 3 && !wrong; ++S)
        for (int pad = 0; pad <= 2 && !wrong; ++pad)
            wrong = try_size(between(8, 40), between(1, 7), S, pad);
    give("out_size", 5, wrong);
    wrong = either(try_size(3, 5, 1, 1), either(try_size(4, 5, 3, 0), try_size(2, 6, 2, 1)));
    if (!wrong) wrong = try_size(3, 6, 3, 1);
    give("out_size, where the kernel hardly fits", 5, wrong);
    give("multiply_adds", 5,
         either(try_count(2, 3, 28, 20, 10, 5, 1, 0), try_count(3, C, 11, 13, O, 3, 2, 1)));
    give("multiply_adds, many", 5, try_count(between(500, 999), 64, 64, 96, 128, 5, 1, 2));
    give("conv2d, one image, one channel", 10, try_conv(1, 1, 7, 7, 1, 3, 1, 0));
    give("conv2d, channels and images", 15,
         try_conv(2, C, 8, between(9, 12), O, between(2, 4), 1, 0));
    give("conv2d, stride", 10, try_conv(2, C, 11, between(8, 10), O, 3, between(2, 3), 0));
    wrong = try_conv(2, C, between(5, 7), 8, O, 3, 2, between(1, 2));
    give("conv2d, padding", 15, either(wrong, try_conv(1, 2, 4, 6, O, 3, 1, 2)));
    give("im2col", 10, try_cols(1, 6, between(7, 9), between(2, 3), 1, 0));
    give("im2col, channels and stride", 10, try_cols(C, 9, between(10, 12), 3, 2, 0));
    give("im2col, padding", 10, try_cols(C, between(4, 6), 7, 3, between(1, 2), between(1, 2)));
}
#endif
