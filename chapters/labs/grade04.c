// Grader of lab 4: two convolutions against sums of doubles, and one against plain loops by the
// clock: not a clock of the submission, but what its whole process has used.
#include "sandbox.h"

typedef void conv_fn(float *y, const float *x, const float *w, const float *b, int N, int C, int H,
                     int W, int O, int K);

typedef struct conv {
    int N, C, H, W, O, K, P, Q, times;    // so many batches of N images, each with its own output
    float *x, *w, *b, *y;
} conv;

#ifdef RUNNER
static void convolve_all(conv_fn *f, const conv *t) {
    for (int k = 0; k < t->times; ++k)
        f(t->y + k * t->N * t->O * t->P * t->Q, t->x + k * t->N * t->C * t->H * t->W, t->w, t->b,
          t->N, t->C, t->H, t->W, t->O, t->K);
}

static void call_conv(void *function, void *arg) {
    FUNCTION(conv_fn, f, function);
    convolve_all(f, arg);
}

static void plain(float *y, const float *x, const float *w, const float *b, int N, int C, int H,
                  int W, int O, int K) {
    const int P = H - K + 1, Q = W - K + 1;
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o)
            for (int i = 0; i < P; ++i)
                for (int j = 0; j < Q; ++j) {
                    float sum = b[o];
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v)
                                sum += x[((n * C + c) * H + i + u) * W + j + v] *
                                       w[((o * C + c) * K + u) * K + v];
                    *y++ = sum;
                }
}

static void call_plain(void *function, void *arg) {
    (void)function;
    convolve_all(plain, arg);
}

static const named_call calls[] = { { "conv", call_conv },
                                    { "plain", call_plain },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static conv *new_conv(int N, int C, int H, int W, int O, int K, int times) {
    conv *t = shown(sizeof *t);
    *t = (conv){ .N = N, .C = C, .H = H, .W = W, .O = O, .K = K, .times = times };
    t->P = H - K + 1, t->Q = W - K + 1;
    t->x = inputs((size_t)(times * N * C * H * W)), t->w = inputs((size_t)(O * C * K * K));
    t->b = inputs((size_t)O), t->y = outputs((size_t)(times * N * O * t->P * t->Q), 7.0f);
    return t;
}

// Output plane o of image n, and one element of a kernel: its product with all places it meets.
static void add_products(double *y, const conv *t, int n, int o, int c, int u, int v) {
    const double weight = (double)t->w[((o * t->C + c) * t->K + u) * t->K + v];
    for (int i = 0; i < t->P; ++i) {
        const float *x = t->x + ((n * t->C + c) * t->H + i + u) * t->W + v;
        for (int j = 0; j < t->Q; ++j) y[i * t->Q + j] += weight * (double)x[j];
    }
}

static double *expected(const conv *t) {
    const int images = t->times * t->N, KK = t->K * t->K, PQ = t->P * t->Q;
    double *all = malloc((size_t)(images * t->O * PQ) * sizeof *all), *y = all;
    if (!all) stop("grader");
    for (int n = 0; n < images; ++n)
        for (int o = 0; o < t->O; ++o, y += PQ) {
            for (int at = 0; at < PQ; ++at) y[at] = (double)t->b[o];
            for (int k = 0; k < t->C * KK; ++k)
                add_products(y, t, n, o, k / KK, k / t->K % t->K, k % t->K);
        }
    return all;
}

static const char *try(const char *name, const char *how, const conv *t) {
    const char *wrong = run(name, how, t, 10);
    const double took = used;
    double *wanted = wrong ? NULL : expected(t);
    if (!wrong)
        wrong = differ("y", t->y, wanted, (size_t)(t->times * t->N * t->O * t->P * t->Q), 1e-5);
    free(wanted);
    used = took;
    return wrong;
}

// Seconds for each of `times` batches, the least of several runs; what a run takes before and
// behind them is taken off. Only what is right counts: sets *wrong otherwise.
static double seconds(const char *name, const char *how, int times, const char **wrong) {
    double least = INFINITY, nothing = INFINITY;
    for (int i = 0; i < 3 && !*wrong; ++i) {
        *wrong = try(name, how, new_conv(8, 16, 32, 32, 16, 3, times));
        least = fmin(least, used);
        if (!*wrong) *wrong = try(name, how, new_conv(1, 1, 3, 3, 1, 3, 1));
        nothing = fmin(nothing, used);
        forget();
    }
    return fmax(least - nothing, 1e-6) / times;
}

static double measured(const char **wrong) {
    const uint64_t before = hash; // which is the same with and without speed
    const double own = seconds("conv2d", "conv", 3, wrong);
    const double ours = seconds("conv2d", "plain", 3, wrong);
    const double fast = seconds("conv2d_fast", "conv", 6, wrong);
    hash = before;
    return fmin(own, ours) / fast;
}

static void give_speed(const char *name, double wanted, double ratio, const char *wrong) {
    static char text[200];
    snprintf(text, sizeof text, "wanted %.0f times the plain loops' speed, got %.2f times", wanted,
             ratio);
    give(name, 20, wrong ? wrong : ratio >= wanted ? NULL : text);
}

static void grade(void) {
    const int C = between(2, 4), O = between(2, 5);
    give("conv2d, one image, one channel", 10,
         try("conv2d", "conv", new_conv(1, 1, 7, 9, 1, 3, 1)));
    give("conv2d, channels and images", 10,
         try("conv2d", "conv", new_conv(2, C, 8, between(9, 12), O, between(2, 4), 1)));
    give("conv2d_fast, as measured", 20,
         try("conv2d_fast", "conv", new_conv(2, 16, 32, 32, 16, 3, 1)));
    const char *wrong = NULL;
    for (int i = 0; i < 6 && !wrong; ++i)
        wrong = try("conv2d_fast", "conv",
                    new_conv(between(1, 3), C + i, between(5, 20), between(5, 20), O + i, 1 + i % 5,
                             1));
    give("conv2d_fast, any sizes", 20, wrong);
    if (!timing || (!wanted_task("speed, 2 times") && !wanted_task("speed, 4 times"))) return;
    wrong = NULL;
    const double ratio = measured(&wrong);
    give_speed("speed, 2 times", 2.0, ratio, wrong);
    give_speed("speed, 4 times", 4.0, ratio, wrong);
}
#endif
