// Grader of lab 5: slopes by the definition of a slope. Every forward pass here is a sum of
// products, so its slopes are computed a second way, in double, output by output.
#include "sandbox.h"

typedef struct backward {
    int N, C, H, W, O, K, P, Q;
    float *x, *w, *dy, *dx, *dw, *db;
    double *want_x, *want_w, *want_b; // the grader's own
    unsigned char label[64];
} backward;

typedef void linear_fn(float *, float *, float *, const float *, const float *, const float *, int,
                       int, int);
typedef void conv_fn(float *, float *, float *, const float *, const float *, const float *, int,
                     int, int, int, int, int);
typedef void pool_fn(float *, const float *, const float *, int, int, int, int);
typedef void loss_fn(float *, const float *, const unsigned char *, int);

#ifdef RUNNER
static void call_linear(void *function, void *arg) {
    const backward *t = arg;
    FUNCTION(linear_fn, f, function);
    f(t->dx, t->dw, t->db, t->dy, t->x, t->w, t->N, t->C, t->O);
}

static void call_conv(void *function, void *arg) {
    const backward *t = arg;
    FUNCTION(conv_fn, f, function);
    f(t->dx, t->dw, t->db, t->dy, t->x, t->w, t->N, t->C, t->H, t->W, t->O, t->K);
}

static void call_pool(void *function, void *arg) {
    const backward *t = arg;
    FUNCTION(pool_fn, f, function);
    f(t->dx, t->dy, t->x, t->N, t->H, t->W, t->K);
}

static void call_loss(void *function, void *arg) {
    const backward *t = arg;
    FUNCTION(loss_fn, f, function);
    f(t->dx, t->x, t->label, t->N);
}

static const named_call calls[] = { { "linear", call_linear },
                                    { "conv", call_conv },
                                    { "pool", call_pool },
                                    { "loss", call_loss },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

// dx, dw and db hold something already: 0, or with `before` numbers that must be added to.
static backward *new_backward(int N, int C, int H, int W, int O, int K, bool before) {
    backward *t = shown(sizeof *t);
    *t = (backward){
        .N = N, .C = C, .H = H, .W = W, .O = O, .K = K, .P = H - K + 1, .Q = W - K + 1
    };
    const size_t xs = (size_t)(N * C * H * W), ws = (size_t)(O * C * K * K), os = (size_t)O;
    t->x = inputs(xs), t->w = inputs(ws), t->dy = inputs((size_t)(N * O * t->P * t->Q));
    t->dx = before ? changed(xs) : outputs(xs, 0.0f);
    t->dw = before ? changed(ws) : outputs(ws, 0.0f);
    t->db = before ? changed(os) : outputs(os, 0.0f);
    return t;
}

// Adds to want_x, want_w and want_b what every output, one after the other, was made of.
static void slopes(const backward *t) {
    const int K = t->K, all = t->N * t->O * t->P * t->Q, KKC = t->C * K * K;
    for (int at = 0; at < all; ++at) {
        const int j = at % t->Q, i = at / t->Q % t->P, o = at / (t->Q * t->P) % t->O,
                  n = at / (t->Q * t->P * t->O);
        const double d = (double)t->dy[at];
        t->want_b[o] += d;
        for (int k = 0; k < KKC; ++k) {
            const int from = ((n * t->C + k / (K * K)) * t->H + i + k / K % K) * t->W + j + k % K;
            t->want_w[o * KKC + k] += d * (double)t->x[from];
            t->want_x[from] += d * (double)t->w[o * KKC + k];
        }
    }
}

// Calls the function, and looks at one of the three slopes, or at all of them.
static const char *look(backward *t, const char *name, const char *how, char which) {
    const size_t xs = (size_t)(t->N * t->C * t->H * t->W), ws = (size_t)(t->O * t->C * t->K * t->K);
    const size_t os = (size_t)t->O;
    t->want_x = doubles(t->dx, xs), t->want_w = doubles(t->dw, ws), t->want_b = doubles(t->db, os);
    backward kept = *t;
    const char *wrong = run(name, how, t, 2);
    slopes(&kept);
    if (!wrong && (which == 'x' || which == 'a'))
        wrong = differ("dx", kept.dx, kept.want_x, xs, 1e-5);
    if (!wrong && (which == 'w' || which == 'a'))
        wrong = differ("dw", kept.dw, kept.want_w, ws, 1e-5);
    if (!wrong && (which == 'b' || which == 'a'))
        wrong = differ("db", kept.db, kept.want_b, os, 1e-5);
    free(kept.want_x), free(kept.want_w), free(kept.want_b);
    return wrong;
}

static const char *try_linear(char which, bool before) { // a linear layer is a 1 x 1 image
    backward *t = new_backward(between(2, 6), between(3, 20), 1, 1, between(2, 9), 1, before);
    return look(t, "linear_backward", "linear", which);
}

static const char *try_conv(char which, bool before) {
    backward *t = new_backward(between(2, 3), between(2, 3), between(6, 8), between(9, 11),
                               between(2, 4), between(2, 4), before);
    return look(t, "conv2d_backward", "conv", which);
}

// values: how many different ones there are; few make equal ones
static const char *try_pool(int H, int W, int K, int values) {
    const int planes = between(2, 4), P = H / K, Q = W / K;
    const size_t xs = (size_t)(planes * H * W);
    backward *t = shown(sizeof *t);
    *t = (backward){ .N = planes, .H = H, .W = W, .K = K };
    t->x = inputs(xs), t->dx = changed(xs), t->dy = inputs((size_t)(planes * P * Q));
    for (size_t i = 0; i < xs; ++i) t->x[i] = (float)between(-values, -1);
    double *wanted = doubles(t->dx, xs);
    const char *wrong = run("maxpool_backward", "pool", t, 2);
    for (int at = 0; at < planes * P * Q; ++at) {
        const int corner = (at / (P * Q) * H + at / Q % P * K) * W + at % Q * K;
        int best = corner;
        for (int k = 0; k < K * K; ++k)
            if (t->x[corner + k / K * W + k % K] > t->x[best]) best = corner + k / K * W + k % K;
        wanted[best] += (double)t->dy[at];
    }
    if (!wrong) wrong = differ("dx", t->dx, wanted, xs, 1e-6);
    free(wanted);
    return wrong;
}

static const char *try_loss(float size) {
    const int N = between(3, 9);
    backward *t = shown(sizeof *t);
    double wanted[90];
    t->N = N, t->x = inputs((size_t)N * 10), t->dx = outputs((size_t)N * 10, 5.0f); // overwritten
    for (int i = 0; i < N * 10; ++i) t->x[i] *= size;
    for (int n = 0; n < N && size > 1.0f; ++n) t->x[n * 10 + (int)draw(10)] += 4.0f * size;
    for (int n = 0; n < N; ++n) {
        t->label[n] = (unsigned char)draw(10);
        for (int k = 0; k < 10; ++k) { // p = 1 / (sum of exp(z - own z)): 0 where that is infinite
            double sum = 0.0;
            for (int l = 0; l < 10; ++l)
                sum += exp((double)t->x[n * 10 + l] - (double)t->x[n * 10 + k]);
            wanted[n * 10 + k] = (1.0 / sum - (k == t->label[n])) / N;
        }
    }
    const char *wrong = run("loss_backward", "loss", t, 2);
    return wrong ? wrong : differ("dz", t->dx, wanted, (size_t)N * 10, 1e-5);
}

static void grade(void) {
    give("linear_backward, dx", 8, try_linear('x', false));
    give("linear_backward, dw", 8, try_linear('w', false));
    give("linear_backward, db", 6, try_linear('b', false));
    give("linear_backward adds", 8, try_linear('a', true));
    give("conv2d_backward, dx", 8, try_conv('x', false));
    give("conv2d_backward, dw", 8, try_conv('w', false));
    give("conv2d_backward, db", 6, try_conv('b', false));
    give("conv2d_backward adds", 8, try_conv('a', true));
    give("maxpool_backward", 8, try_pool(8, 6, 2, 1000));
    give("maxpool_backward, odd sizes", 6,
         try_pool(between(4, 5) * 2 + 1, 11, between(2, 3), 1000));
    give("maxpool_backward, equal values", 6, try_pool(8, 8, 2, 2));
    give("loss_backward", 12, try_loss(1.0f));
    give("loss_backward, large numbers", 8, try_loss(512.0f));
}
#endif
