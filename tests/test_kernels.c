/* The kernels [E1]: every fast one against its naive twin.

   Two kinds of numbers. Small whole ones make every sum exact in any order, so that one missing tap, one wrong index or
   one tie that went to the wrong place is a difference and no tolerance is needed. Fractions then test the rounding: the
   bound of an element is a few units in the last place of the sum of its terms' magnitudes, which the naive twin
   computes from |x| and |w|. Outputs and scratch start as NaN, and what stands behind each output must stay. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

enum { L = DT_LANES, GUARD = 64 };

/* ---- Numbers and buffers. */

static uint32_t drawn;
static float fraction(void) { return 2.0f * dt_uniform(dt_philox(11, DT_RNG_TEST, 0, 0, drawn++).v[0]) - 1.0f; }
static int whole(int from, int to) {
    return from + (int)(dt_philox(12, DT_RNG_TEST, 0, 0, drawn++).v[0] % (uint32_t)(to - from + 1));
}
static float small_whole(void) { return (float)whole(-3, 3); }

/* n floats, all NaN, with a guard behind them. */
static float *fresh(size_t n) {
    float *p = dti_alloc((n + GUARD) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; ++i) p[i] = NAN;
    for (size_t i = n; i < n + GUARD; ++i) p[i] = 12345.0f;
    return p;
}

static void drop(float *p, size_t n, const char *what) {
    for (size_t i = n; i < n + GUARD; ++i)
        if (p[i] < 12345.0f || p[i] > 12345.0f) fail_msg("%s: written %zu floats behind its end", what, i - n);
    dti_release(p);
}

static float *filled(size_t n, float (*draw)(void)) {
    float *p = fresh(n);
    for (size_t i = 0; i < n; ++i) p[i] = draw();
    return p;
}

static float *absolute(const float *x, size_t n) {
    float *p = fresh(n);
    for (size_t i = 0; i < n; ++i) p[i] = fabsf(x[i]);
    return p;
}

/* (16, values) rows, an image each -> lanes [values][16], and back. */
static float *lanes_of(const float *rows, size_t values) {
    float *p = fresh(values * L);
    for (size_t l = 0; l < L; ++l)
        for (size_t i = 0; i < values; ++i) p[i * L + l] = rows[l * values + i];
    return p;
}

static float *zeros(size_t n) {
    float *p = fresh(n);
    memset(p, 0, n * sizeof *p);
    return p;
}

/* got in lanes, wanted in rows; bound may be NULL (then equal), else |got - wanted| <= bound*rounding. */
static void compare_lanes(const char *what, const dti_conv *c, const float *got, const float *wanted, const float *bound, size_t values) {
    for (size_t l = 0; l < L; ++l)
        for (size_t i = 0; i < values; ++i) {
            double a = (double)got[i * L + l], b = (double)wanted[l * values + i];
            double limit = bound ? 2e-6 * (double)bound[l * values + i] : 0.0;
            if (!(fabs(a - b) <= limit))
                fail_msg("%s: C %d H %d W %d O %d K %d S %d p %d, lane %zu, value %zu: %.9g, wanted %.9g +- %.2g", what, c->C, c->H, c->W,
                         c->O, c->K, c->S, c->pad, l, i, a, b, limit);
        }
}

static void compare_plain(const char *what, const dti_conv *c, const float *got, const float *wanted, const float *bound, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        double a = (double)got[i], b = (double)wanted[i], limit = bound ? 2e-6 * (double)bound[i] : 0.0;
        if (!(fabs(a - b) <= limit))
            fail_msg("%s: C %d H %d W %d O %d K %d S %d p %d, value %zu: %.9g, wanted %.9g +- %.2g", what, c->C, c->H, c->W, c->O, c->K,
                     c->S, c->pad, i, a, b, limit);
    }
}

static dti_conv conv_of(int C, int H, int W, int O, int K, int S, int p) {
    return (dti_conv){ .C = C, .H = H, .W = W, .O = O, .P = (H + 2 * p - K) / S + 1, .Q = (W + 2 * p - K) / S + 1, .K = K, .S = S, .pad = p };
}

#define SIZES(c) (c)->C, (c)->H, (c)->W, (c)->O, (c)->K, (c)->S, (c)->pad

/* One convolution's floats: an image of x, of y, the weights. */
typedef struct sizes { size_t x, y, w, o; } sizes;
static sizes sizes_of(const dti_conv *c) {
    return (sizes){ (size_t)(c->C * c->H * c->W), (size_t)(c->O * c->P * c->Q), (size_t)(c->O * c->C * c->K * c->K), (size_t)c->O };
}

static float *packed_of(const dti_conv *c, const float *w) {
    float *packed = fresh(dti_conv_packed_floats(c));
    dti_conv_pack(c, w, packed);
    return packed;
}

/* ---- One convolution, forward and backward, one lane group, against the twins. */

static void one_forward(const dti_conv *c, const float *x, const float *w, const float *b, bool exact) {
    const sizes n = sizes_of(c);
    float *lanes = lanes_of(x, n.x), *packed = packed_of(c, w), *scratch = fresh(dti_conv_scratch_floats(c)), *y = fresh(n.y * L);
    float *wanted = fresh(n.y * L), *bound = NULL;
    dti_conv_forward(c, lanes, packed, b, y, scratch);
    assert_int_equal(dt_conv2d_naive(wanted, x, w, b, L, SIZES(c)), DT_OK);
    if (!exact) {
        float *ax = absolute(x, n.x * L), *aw = absolute(w, n.w), *ab = b ? absolute(b, n.o) : NULL;
        bound = fresh(n.y * L);
        assert_int_equal(dt_conv2d_naive(bound, ax, aw, ab, L, SIZES(c)), DT_OK);
        dti_release(ax); dti_release(aw); dti_release(ab);
    }
    compare_lanes("forward", c, y, wanted, bound, n.y);
    drop(y, n.y * L, "forward y");
    drop(scratch, dti_conv_scratch_floats(c), "forward scratch");
    drop(packed, dti_conv_packed_floats(c), "packed weights");
    dti_release(lanes); dti_release(wanted); dti_release(bound);
}

static void one_backward_data(const dti_conv *c, const float *dy, const float *w, bool exact) {
    const sizes n = sizes_of(c);
    float *lanes = lanes_of(dy, n.y), *packed = packed_of(c, w), *scratch = fresh(dti_conv_scratch_floats(c)), *dx = fresh(n.x * L);
    float *wanted = zeros(n.x * L), *bound = NULL;
    dti_conv_backward_data(c, lanes, packed, dx, scratch);
    assert_int_equal(dt_conv2d_naive_backward_data(wanted, dy, w, L, SIZES(c)), DT_OK);
    if (!exact) {
        float *ad = absolute(dy, n.y * L), *aw = absolute(w, n.w);
        bound = zeros(n.x * L);
        assert_int_equal(dt_conv2d_naive_backward_data(bound, ad, aw, L, SIZES(c)), DT_OK);
        dti_release(ad); dti_release(aw);
    }
    compare_lanes("backward data", c, dx, wanted, bound, n.x);
    drop(dx, n.x * L, "dx");
    drop(scratch, dti_conv_scratch_floats(c), "backward data scratch");
    dti_release(packed); dti_release(lanes); dti_release(wanted); dti_release(bound);
}

/* How many numbers backward gives for the weights: those of the taps that some output has. And these at their places, 0 elsewhere. */
static size_t used_weights(const dti_conv *c) {
    int first[2], taps[2];
    dti_conv_taps(c, first, taps);
    return (size_t)(c->O * c->C) * (size_t)(taps[0] * taps[1]);
}

static float *all_weights(const dti_conv *c, const float *used) {
    dti_slot s = { .shape = { NULL, 4, { c->O, c->C, c->K, c->K } }, .sums = used_weights(c) };
    float *all = zeros(sizes_of(c).w);
    dti_conv_taps(c, s.first, s.taps);
    dti_spread(&s, used, all);
    return all;
}

static void one_backward_weights(const dti_conv *c, const float *x, const float *dy, bool bias, bool exact) {
    const sizes n = sizes_of(c);
    float *lx = lanes_of(x, n.x), *ld = lanes_of(dy, n.y), *scratch = fresh(dti_conv_scratch_floats(c));
    float *used = fresh(used_weights(c)), *db = fresh(n.o), *want_w = zeros(n.w), *want_b = zeros(n.o), *bound_w = NULL, *bound_b = NULL;
    dti_conv_backward_weights(c, lx, ld, used, bias ? db : NULL, scratch);
    float *dw = all_weights(c, used);
    assert_int_equal(dt_conv2d_naive_backward_weights(want_w, want_b, dy, x, L, SIZES(c)), DT_OK);
    if (!exact) {
        float *ax = absolute(x, n.x * L), *ad = absolute(dy, n.y * L);
        bound_w = zeros(n.w);
        bound_b = zeros(n.o);
        assert_int_equal(dt_conv2d_naive_backward_weights(bound_w, bound_b, ad, ax, L, SIZES(c)), DT_OK);
        dti_release(ax); dti_release(ad);
    }
    compare_plain("backward weights", c, dw, want_w, bound_w, n.w);
    if (bias) compare_plain("backward bias", c, db, want_b, bound_b, n.o);
    drop(used, used_weights(c), "dw");
    drop(db, n.o, "db");
    drop(scratch, dti_conv_scratch_floats(c), "backward weights scratch");
    dti_release(lx); dti_release(ld); dti_release(dw); dti_release(want_w); dti_release(want_b); dti_release(bound_w); dti_release(bound_b);
}

static void one_convolution(dti_conv c, bool exact) {
    const sizes n = sizes_of(&c);
    float *(*const fill)(size_t, float (*)(void)) = filled;
    float (*draw)(void) = exact ? small_whole : fraction;
    float *x = fill(n.x * L, draw), *w = fill(n.w, draw), *b = fill(n.o, draw), *dy = fill(n.y * L, draw);
    bool bias = whole(0, 3) > 0;
    one_forward(&c, x, w, bias ? b : NULL, exact);
    one_backward_data(&c, dy, w, exact);
    one_backward_weights(&c, x, dy, bias, exact);
    dti_release(x); dti_release(w); dti_release(b); dti_release(dy);
}

/* A shape of kernel K, stride S, padding p with at most `most` multiply-adds an image. */
static dti_conv any_shape(int K, int S, int p, int most) {
    const int low = K - 2 * p > 1 ? K - 2 * p : 1;
    for (;;) {
        dti_conv c = conv_of(whole(1, 21), whole(low, low + 11), whole(low, low + 11), whole(1, 37), K, S, p);
        if (c.C * c.O * c.P * c.Q * K * K <= most) return c;
    }
}

static void sweep(int times, bool exact) {
    for (int K = 1; K <= 7; ++K)
        for (int S = 1; S <= 3; ++S)
            for (int p = 0; p <= 3 && p < K; ++p)
                for (int i = 0; i < times; ++i) one_convolution(any_shape(K, S, p, 40000), exact);
}

static void conv_whole_numbers(void **state) { (void)state; sweep(12, true); }
static void conv_fractions(void **state) { (void)state; sweep(2, false); }

/* Every number of channels in and out has its own mixture of register tiles. */
static void conv_fringe_channels(void **state) {
    (void)state;
    for (int n = 1; n <= 35; ++n) {
        one_convolution(conv_of(3, 5, 6, n, 3, 1, 1), true);
        one_convolution(conv_of(n, 6, 5, 2, 3, 1, 0), true);
        one_convolution(conv_of(n, 3, 4, n, 1, 1, 0), true);
        one_convolution(conv_of(2, 7, 7, n, 5, 1, 2), true);
        one_convolution(conv_of(2, 9, 8, n, 7, 2, 3), true);
        one_convolution(conv_of(n, 6, 7, 3, 4, 2, 1), true);
    }
}

/* Every width has its own mixture of runs of columns. */
static void conv_fringe_columns(void **state) {
    (void)state;
    for (int n = 1; n <= 33; ++n) {
        one_convolution(conv_of(2, 3, n, 8, 3, 1, 1), true);
        one_convolution(conv_of(1, n, 3, 10, 3, 1, 2), true);
        one_convolution(conv_of(2, 4, n + 1, 5, 2, 2, 1), true);
        if (n >= 5) one_convolution(conv_of(1, 5, n, 10, 5, 1, 0), true);
        if (n >= 5) one_convolution(conv_of(2, 7, n, 3, 5, 3, 1), true);
    }
}

/* Large enough for several cache tiles: bands of rows, blocks of channels; and the shapes of known nets. */
static void conv_cache_tiles(void **state) {
    (void)state;
    static const int shapes[][7] = {
        { 1, 28, 28, 10, 5, 1, 0 }, { 10, 12, 12, 20, 5, 1, 0 }, { 52, 6, 7, 5, 5, 1, 2 },  { 45, 8, 7, 4, 7, 1, 3 },
        { 200, 3, 3, 9, 3, 1, 1 },  { 64, 4, 4, 17, 3, 1, 1 },   { 3, 32, 32, 6, 5, 1, 2 }, { 6, 14, 14, 16, 5, 1, 0 },
        { 16, 8, 8, 32, 3, 2, 1 },  { 3, 40, 9, 16, 3, 1, 1 },   { 130, 2, 2, 3, 1, 1, 0 }, { 1, 1, 60, 2, 3, 1, 1 },
        { 70, 5, 5, 6, 6, 1, 3 },   { 40, 16, 8, 8, 3, 1, 1 },   { 34, 7, 7, 328, 3, 1, 1 },
        { 16, 5, 2, 10, 3, 1, 1 },  { 12, 3, 1, 4, 3, 1, 2 },    { 14, 4, 3, 5, 3, 2, 2 },   { 3, 32, 32, 16, 7, 4, 3 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
        const int *s = shapes[i];
        one_convolution(conv_of(s[0], s[1], s[2], s[3], s[4], s[5], s[6]), true);
    }
    one_convolution(conv_of(1, 28, 28, 10, 5, 1, 0), false);
    one_convolution(conv_of(10, 12, 12, 20, 5, 1, 0), false);
}

/* ---- A lane is an image: what one holds must not reach another. */

static void lanes_do_not_mix(void **state) {
    (void)state;
    for (int trial = 0; trial < 30; ++trial) {
        const int K = whole(1, 5), p = whole(0, K - 1);
        const dti_conv c = any_shape(K, whole(1, 3), p, 20000);
        const sizes n = sizes_of(&c);
        float *x = filled(n.x * L, fraction), *dy = filled(n.y * L, fraction), *w = filled(n.w, fraction), *packed = packed_of(&c, w);
        float *y0 = fresh(n.y * L), *y1 = fresh(n.y * L), *d0 = fresh(n.x * L), *d1 = fresh(n.x * L), *scratch = fresh(dti_conv_scratch_floats(&c));
        const size_t lane = (size_t)whole(0, L - 1);
        dti_conv_forward(&c, x, packed, NULL, y0, scratch);
        dti_conv_backward_data(&c, dy, packed, d0, scratch);
        for (size_t i = 0; i < n.x; ++i) x[i * L + lane] = NAN;
        for (size_t i = 0; i < n.y; ++i) dy[i * L + lane] = INFINITY;
        dti_conv_forward(&c, x, packed, NULL, y1, scratch);
        dti_conv_backward_data(&c, dy, packed, d1, scratch);
        for (size_t i = 0; i < n.y * L; ++i)
            if (i % L != lane) assert_memory_equal(&y0[i], &y1[i], sizeof *y0);
        for (size_t i = 0; i < n.x * L; ++i)
            if (i % L != lane) assert_memory_equal(&d0[i], &d1[i], sizeof *d0);
        dti_release(x); dti_release(dy); dti_release(w); dti_release(packed);
        dti_release(y0); dti_release(y1); dti_release(d0); dti_release(d1); dti_release(scratch);
    }
}

/* A partial lane group: lanes whose dy is zero add nothing to the weights' gradient, whatever their x. */
static void partial_lane_groups(void **state) {
    (void)state;
    for (int images = 1; images < L; ++images) {
        const int K = whole(1, 5);
        const dti_conv c = any_shape(K, whole(1, 2), whole(0, K - 1), 20000);
        const sizes n = sizes_of(&c);
        float *x = filled(n.x * L, small_whole), *dy = filled(n.y * L, small_whole);
        for (size_t i = (size_t)images * n.y; i < L * n.y; ++i) dy[i] = 0.0f;
        float *lx = lanes_of(x, n.x), *ld = lanes_of(dy, n.y), *used = fresh(used_weights(&c)), *db = fresh(n.o), *want_w = zeros(n.w), *want_b = zeros(n.o);
        float *scratch = fresh(dti_conv_scratch_floats(&c));
        dti_conv_backward_weights(&c, lx, ld, used, db, scratch);
        float *dw = all_weights(&c, used);
        assert_int_equal(dt_conv2d_naive_backward_weights(want_w, want_b, dy, x, images, SIZES(&c)), DT_OK);
        compare_plain("partial group, weights", &c, dw, want_w, NULL, n.w);
        compare_plain("partial group, bias", &c, db, want_b, NULL, n.o);
        dti_release(x); dti_release(dy); dti_release(lx); dti_release(ld); dti_release(dw); dti_release(db);
        dti_release(used); dti_release(want_w); dti_release(want_b); dti_release(scratch);
    }
}

/* ---- Max-pooling. Whole numbers give many ties: the first in row-major order wins. */

static void one_pool(int C, int H, int W, int K, int S) {
    const dti_conv c = { .C = C, .H = H, .W = W, .O = C, .P = (H - K) / S + 1, .Q = (W - K) / S + 1, .K = K, .S = S, .pad = 0 };
    const size_t in = (size_t)(C * H * W), out = (size_t)(C * c.P * c.Q);
    float *x = filled(in * L, small_whole), *dy = filled(out * L, small_whole), *lx = lanes_of(x, in), *ld = lanes_of(dy, out);
    float *y = fresh(out * L), *dx = fresh(in * L), *want_y = fresh(out * L), *want_dx = zeros(in * L);
    uint8_t *places = dti_alloc(out * L);
    dti_maxpool_forward(C, H, W, K, S, lx, y, places);
    dti_maxpool_backward(C, H, W, K, S, ld, places, dx);
    assert_int_equal(dt_maxpool2d_naive(want_y, x, L, C, H, W, K, S), DT_OK);
    assert_int_equal(dt_maxpool2d_naive_backward(want_dx, dy, x, L, C, H, W, K, S), DT_OK);
    compare_lanes("max-pool", &c, y, want_y, NULL, out);
    compare_lanes("max-pool backward", &c, dx, want_dx, NULL, in);
    drop(y, out * L, "max-pool y");
    drop(dx, in * L, "max-pool dx");
    dti_release(x); dti_release(dy); dti_release(lx); dti_release(ld); dti_release(want_y); dti_release(want_dx); dti_release(places);
}

static void maxpool(void **state) {
    (void)state;
    for (int K = 1; K <= 5; ++K)
        for (int S = 1; S <= 3; ++S)
            for (int i = 0; i < 8; ++i) one_pool(whole(1, 5), K + whole(0, 9), K + whole(0, 9), K, S);
    one_pool(1, 15, 15, 15, 15);
    one_pool(3, 17, 16, 15, 1);
}

/* ---- Convolution and 2x2 pooling in one. */

static void one_fused(dti_conv c, bool want_dx) {
    const sizes n = sizes_of(&c);
    const size_t out = (size_t)(c.O * (c.P / 2) * (c.Q / 2));
    float *x = filled(n.x * L, small_whole), *w = filled(n.w, small_whole), *b = filled(n.o, small_whole), *dy = filled(out * L, small_whole);
    float *lx = lanes_of(x, n.x), *ld = lanes_of(dy, out), *packed = packed_of(&c, w), *y = fresh(out * L), *scratch = fresh(dti_conv_scratch_floats(&c));
    float *map = fresh(n.y * L), *dmap = zeros(n.y * L), *pooled = fresh(out * L);
    float *dx = fresh(n.x * L), *used = fresh(used_weights(&c)), *db = fresh(n.o), *want_x = zeros(n.x * L), *want_w = zeros(n.w), *want_b = zeros(n.o);
    uint8_t *places = dti_alloc(out * L);

    dti_conv_pool_forward(&c, lx, packed, b, false, y, places, scratch);
    drop(scratch, dti_conv_scratch_floats(&c), "fused forward scratch");
    scratch = fresh(dti_conv_scratch_floats(&c));
    dti_conv_pool_backward(&c, lx, packed, ld, places, want_dx ? dx : NULL, used, db, scratch);
    float *dw = all_weights(&c, used);

    assert_int_equal(dt_conv2d_naive(map, x, w, b, L, SIZES(&c)), DT_OK);
    assert_int_equal(dt_maxpool2d_naive(pooled, map, L, c.O, c.P, c.Q, 2, 2), DT_OK);
    assert_int_equal(dt_maxpool2d_naive_backward(dmap, dy, map, L, c.O, c.P, c.Q, 2, 2), DT_OK);
    assert_int_equal(dt_conv2d_naive_backward_data(want_x, dmap, w, L, SIZES(&c)), DT_OK);
    assert_int_equal(dt_conv2d_naive_backward_weights(want_w, want_b, dmap, x, L, SIZES(&c)), DT_OK);
    compare_lanes("fused forward", &c, y, pooled, NULL, out);
    for (size_t i = 0; i < out * L; ++i) pooled[i] = pooled[i] > 0.0f ? pooled[i] : 0.0f;
    drop(scratch, dti_conv_scratch_floats(&c), "fused backward scratch");
    scratch = fresh(dti_conv_scratch_floats(&c));
    dti_conv_pool_forward(&c, lx, packed, b, true, y, places, scratch);
    compare_lanes("fused forward with ReLU", &c, y, pooled, NULL, out);
    if (want_dx) compare_lanes("fused dx", &c, dx, want_x, NULL, n.x);
    compare_plain("fused dw", &c, dw, want_w, NULL, n.w);
    compare_plain("fused db", &c, db, want_b, NULL, n.o);
    drop(y, out * L, "fused y");
    drop(dx, n.x * L, "fused dx");
    drop(used, used_weights(&c), "fused dw");
    drop(db, n.o, "fused db");
    drop(scratch, dti_conv_scratch_floats(&c), "fused backward scratch");
    dti_release(x); dti_release(w); dti_release(b); dti_release(dy); dti_release(lx); dti_release(ld); dti_release(packed);
    dti_release(dw); dti_release(map); dti_release(dmap); dti_release(pooled); dti_release(want_x); dti_release(want_w); dti_release(want_b); dti_release(places);
}

static void fused_conv_pool(void **state) {
    (void)state;
    for (int K = 1; K <= 7; ++K)
        for (int S = 1; S <= 2; ++S)
            for (int p = 0; p <= 2 && p < K; ++p)
                for (int i = 0; i < 5;) {
                    const dti_conv c = any_shape(K, S, p, 40000);
                    if (c.P < 2 || c.Q < 2) continue;
                    one_fused(c, i++ % 2 == 0);
                }
    for (int O = 1; O <= 34; ++O) one_fused(conv_of(2, 7, 8, O, 3, 1, 0), true);
    one_fused(conv_of(1, 28, 28, 10, 5, 1, 0), false);
    one_fused(conv_of(10, 12, 12, 20, 5, 1, 0), true);
    one_fused(conv_of(40, 9, 10, 6, 5, 1, 0), true); /* too large for the register tile's cache: by way of scratch */
}

/* ---- The linear layer over several lane groups that need not touch. */

static void one_linear(int I, int O, int G) {
    const dti_conv c = conv_of(I, 1, 1, O, 1, 1, 0); /* for messages */
    const size_t xs = ((size_t)I + (size_t)whole(0, 2)) * L, ys = ((size_t)O + (size_t)whole(0, 2)) * L, g = (size_t)G;
    float *w = filled((size_t)(I * O), small_whole), *b = filled((size_t)O, small_whole), *packed = fresh(dti_linear_packed_floats(I, O));
    float *x = filled(g * xs, small_whole), *dy = filled(g * ys, small_whole), *y = fresh(g * ys), *dx = fresh(g * xs);
    float *dw = fresh((size_t)(I * O)), *db = fresh((size_t)O);
    bool bias = whole(0, 3) > 0;
    dti_linear_pack(I, O, w, packed);
    dti_linear_forward(I, O, G, x, xs, packed, bias ? b : NULL, y, ys);
    dti_linear_backward_data(I, O, G, dy, ys, packed, dx, xs);
    for (size_t k = 0; k < g; ++k) {
        float *rx = fresh((size_t)I * L), *rd = fresh((size_t)O * L), *want_y = fresh((size_t)O * L), *want_x = zeros((size_t)I * L);
        float *want_w = zeros((size_t)(I * O)), *want_b = zeros((size_t)O);
        for (size_t l = 0; l < L; ++l) {
            for (size_t i = 0; i < (size_t)I; ++i) rx[l * (size_t)I + i] = x[k * xs + i * L + l];
            for (size_t o = 0; o < (size_t)O; ++o) rd[l * (size_t)O + o] = dy[k * ys + o * L + l];
        }
        assert_int_equal(dt_linear_naive(want_y, rx, w, bias ? b : NULL, L, I, O), DT_OK);
        assert_int_equal(dt_linear_naive_backward(want_x, want_w, want_b, rd, rx, w, L, I, O), DT_OK);
        dti_linear_backward_weights(I, O, x + k * xs, dy + k * ys, dw, bias ? db : NULL);
        compare_lanes("linear", &c, y + k * ys, want_y, NULL, (size_t)O);
        compare_lanes("linear dx", &c, dx + k * xs, want_x, NULL, (size_t)I);
        compare_plain("linear dw", &c, dw, want_w, NULL, (size_t)(I * O));
        if (bias) compare_plain("linear db", &c, db, want_b, NULL, (size_t)O);
        dti_release(rx); dti_release(rd); dti_release(want_y); dti_release(want_x); dti_release(want_w); dti_release(want_b);
    }
    drop(y, g * ys, "linear y");
    drop(dx, g * xs, "linear dx");
    drop(dw, (size_t)(I * O), "linear dw");
    drop(db, (size_t)O, "linear db");
    drop(packed, dti_linear_packed_floats(I, O), "linear packed");
    dti_release(w); dti_release(b); dti_release(x); dti_release(dy);
}

static void linear(void **state) {
    (void)state;
    static const int inputs[] = { 1, 2, 15, 63, 64, 65, 130, 320 };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; ++i)
        for (int O = 1; O <= 51; O += O < 22 ? 1 : 9) one_linear(inputs[i], O, whole(1, 9));
    for (int G = 1; G <= 14; ++G) one_linear(7, 10, G), one_linear(20, 17, G), one_linear(3, 8, G);
}

/* ---- Winograd's algorithm [E1.8]. It rounds by the size of its neighbours, so the bound of an element is a part of the largest
   bound of its map; whole numbers then come back near enough to tell which they were, so that a wrong tap still shows. */

typedef struct wino_maps {
    float *x, *y, *dy, *dx;
    uint8_t *places;
    dti_wino_maps of_x, of_y, of_dy, of_dx;
} wino_maps;

/* Lanes of `groups` lane groups, a few floats between them; pooled: y and dy are a quarter. */
static wino_maps wino_maps_of(const dti_conv *c, int groups, bool pooled, float (*draw)(void)) {
    const int half = pooled ? 2 : 1;
    const size_t in = (size_t)(c->C * c->H * c->W) * L,
                 out = (size_t)(c->O * (c->P / half) * (c->Q / half)) * L, g = (size_t)groups;
    wino_maps m = { filled(g * (in + L), draw),
                    fresh(g * (out + L)),
                    filled(g * (out + L), draw),
                    fresh(g * (in + L)),
                    NULL,
                    { 0 },
                    { 0 },
                    { 0 },
                    { 0 } };
    m.places = dti_alloc(g * (out + L));
    for (size_t i = 0; pooled && i < g * (out + L); ++i) m.places[i] = (uint8_t)whole(0, 4);
    m.of_x = (dti_wino_maps){ m.x, NULL, in + L, 0, c->C, c->H, c->W };
    m.of_dx = (dti_wino_maps){ m.dx, NULL, in + L, 0, c->C, c->H, c->W };
    m.of_y =
        (dti_wino_maps){ m.y,        pooled ? m.places : NULL, out + L, out + L, c->O, c->P / half,
                         c->Q / half };
    m.of_dy = m.of_y;
    m.of_dy.at = m.dy;
    return m;
}

static void wino_maps_drop(wino_maps *m, int groups) {
    drop(m->y, (size_t)groups * m->of_y.group, "Winograd y");
    drop(m->dx, (size_t)groups * m->of_dx.group, "Winograd dx");
    dti_release(m->x);
    dti_release(m->dy);
    dti_release(m->places);
}

static float *rows_of(const float *lanes, size_t values) {
    float *p = fresh(values * L);
    for (size_t l = 0; l < L; ++l)
        for (size_t i = 0; i < values; ++i) p[l * values + i] = lanes[i * L + l];
    return p;
}

static double wino_worst[9][6]; /* by m and K: the largest error so far, of the largest bound */
static double wino_limit(const dti_wino_form *f) {
    return f->n == 8 ? 2e-5 : f->n == 6 ? 8e-6 : 5e-7;
}

/* got (in lanes if so said) against rows; `bound`: the same from the numbers' magnitudes. */
static void compare_wino(const char *what, const dti_conv *c, const dti_wino_form *f,
                         const float *got, bool lanes, const float *wanted, const float *bound,
                         size_t values) {
    double largest = 0.0;
    const size_t n = values * (lanes ? L : 1);
    for (size_t i = 0; i < n; ++i) largest = fmax(largest, (double)bound[i]);
    for (size_t i = 0; i < n; ++i) {
        const double a = (double)got[lanes ? i % values * L + i / values : i],
                     b = (double)wanted[i], off = fabs(a - b);
        if (!(off <= wino_limit(f) * largest))
            fail_msg("Winograd F(%d,%d) %s: C %d H %d W %d O %d p %d, value %zu: %.9g, wanted %.9g "
                     "+- %.2g",
                     f->m, f->K, what, c->C, c->H, c->W, c->O, c->pad, i, a, b,
                     wino_limit(f) * largest);
        if (largest > 0.0) wino_worst[f->m][f->K] = fmax(wino_worst[f->m][f->K], off / largest);
    }
}

/* All passes over several lane groups against the twins, one group at a time; and each group alone: the same bits. */
static void one_winograd(dti_conv c, const dti_wino_form *f, int groups, float (*draw)(void)) {
    const sizes n = sizes_of(&c);
    wino_maps m = wino_maps_of(&c, groups, false, draw);
    const size_t packs = dti_wino_packed_floats(&c, f), room = dti_wino_scratch_floats(&c, f);
    float *w = filled(n.w, draw), *b = filled(n.o, draw), *aw = absolute(w, n.w),
          *ab = absolute(b, n.o), *packed = fresh(packs), *scratch = fresh(room);
    const bool bias = whole(0, 3) > 0;
    dti_wino_pack(&c, f, w, packed);
    dti_wino_forward(&c, f, groups, &m.of_x, packed, bias ? b : NULL, false, &m.of_y, scratch);
    drop(scratch, room, "Winograd forward scratch");
    scratch = fresh(room);
    dti_wino_backward(&c, f, groups, NULL, &m.of_dy, packed, &m.of_dx, NULL, NULL, scratch);
    drop(scratch, room, "Winograd backward scratch");
    for (size_t g = 0; g < (size_t)groups; ++g) {
        float *x = rows_of(m.x + g * m.of_x.group, n.x),
              *dy = rows_of(m.dy + g * m.of_y.group, n.y), *ax = absolute(x, n.x * L),
              *ad = absolute(dy, n.y * L);
        float *y = fresh(n.y * L), *ay = fresh(n.y * L), *dx = zeros(n.x * L),
              *adx = zeros(n.x * L), *dw = zeros(n.w), *adw = zeros(n.w), *db = zeros(n.o),
              *adb = zeros(n.o);
        float *got_w = fresh(n.w), *got_b = fresh(n.o), *alone = fresh(n.x * L),
              *y_alone = fresh(n.y * L);
        dti_wino_maps gx = m.of_x, gy = m.of_dy, to = m.of_dx, to_y = m.of_y;
        gx.at += g * gx.group, gy.at += g * gy.group, to.at = alone, to_y.at = y_alone;
        scratch = fresh(room);
        dti_wino_backward(&c, f, 1, &gx, &gy, packed, &to, got_w, bias ? got_b : NULL, scratch);
        dti_wino_forward(&c, f, 1, &gx, packed, bias ? b : NULL, false, &to_y, scratch);
        assert_memory_equal(alone, m.dx + g * m.of_dx.group, n.x * L * sizeof *alone);
        assert_memory_equal(y_alone, m.y + g * m.of_y.group, n.y * L * sizeof *y_alone);
        assert_int_equal(dt_conv2d_naive(y, x, w, bias ? b : NULL, L, SIZES(&c)), DT_OK);
        assert_int_equal(dt_conv2d_naive(ay, ax, aw, ab, L, SIZES(&c)), DT_OK);
        assert_int_equal(dt_conv2d_naive_backward_data(dx, dy, w, L, SIZES(&c)), DT_OK);
        assert_int_equal(dt_conv2d_naive_backward_data(adx, ad, aw, L, SIZES(&c)), DT_OK);
        assert_int_equal(dt_conv2d_naive_backward_weights(dw, db, dy, x, L, SIZES(&c)), DT_OK);
        assert_int_equal(dt_conv2d_naive_backward_weights(adw, adb, ad, ax, L, SIZES(&c)), DT_OK);
        compare_wino("forward", &c, f, m.y + g * m.of_y.group, true, y, ay, n.y);
        compare_wino("backward data", &c, f, m.dx + g * m.of_dx.group, true, dx, adx, n.x);
        compare_wino("backward weights", &c, f, got_w, false, dw, adw, n.w);
        if (bias) compare_wino("backward bias", &c, f, got_b, false, db, adb, n.o);
        drop(got_w, n.w, "Winograd dw");
        drop(got_b, n.o, "Winograd db");
        drop(scratch, room, "Winograd scratch");
        drop(alone, n.x * L, "Winograd dx");
        drop(y_alone, n.y * L, "Winograd y");
        dti_release(x);
        dti_release(dy);
        dti_release(ax);
        dti_release(ad);
        dti_release(y);
        dti_release(ay);
        dti_release(dx);
        dti_release(adx);
        dti_release(dw);
        dti_release(adw);
        dti_release(db);
        dti_release(adb);
    }
    drop(packed, packs, "Winograd packed");
    wino_maps_drop(&m, groups);
    dti_release(w);
    dti_release(b);
    dti_release(aw);
    dti_release(ab);
}

static dti_conv wino_shape(
    int C, int O, int K,
    int most_side) { /* any padding up to K - 1 and any size with room for a kernel */
    const int p = whole(0, K - 1), low = K - 2 * p > 1 ? K - 2 * p : 1;
    return conv_of(C, whole(low, low + most_side), whole(low, low + most_side), O, K, 1, p);
}

/* All forms there are: those of squares, and the one of lines. */
enum { WINO_FORMS = sizeof dti_wino_forms / sizeof *dti_wino_forms + 1 };
static const dti_wino_form *wino_form(size_t k) { return k + 1 < WINO_FORMS ? &dti_wino_forms[k] : &dti_line_45; }

static void winograd(void **state) {
    (void)state;
    for (size_t k = 0; k < WINO_FORMS; ++k) {
        const dti_wino_form *f = wino_form(k);
        assert_true((k == WINO_FORMS - 1 || dti_wino_find(f->m, f->K) == f) && f->n == f->m + f->K - 1);
        for (int i = 0; i < 12; ++i)
            one_winograd(wino_shape(whole(1, 20), whole(1, 20), f->K, 11), f, whole(1, 3),
                         i % 2 ? small_whole : fraction);
        for (int n = 1; n <= 34;
             n +=
             n < 14 ? 1 : 5) { /* every number of channels has its own mixture of register tiles */
            one_winograd(wino_shape(n, 3, f->K, 4), f, 1, fraction);
            one_winograd(wino_shape(2, n, f->K, 4), f, 2, fraction);
        }
        one_winograd(conv_of(2, 9, 21, 3, f->K, 1, f->K / 2), f, 3,
                     fraction); /* several chunks of tiles */
    }
    one_winograd(conv_of(300, 5, 5, 7, 3, 1, 1), dti_wino_find(4, 3), 2,
                 fraction); /* several passes over the channels */
    one_winograd(conv_of(7, 5, 5, 300, 3, 1, 1), dti_wino_find(4, 3), 1, fraction);
    one_winograd(conv_of(10, 12, 12, 20, 5, 1, 0), dti_wino_find(4, 5), 1, fraction);
    one_winograd(conv_of(80, 18, 17, 20, 3, 1, 1), dti_wino_find(4, 3), 1,
                 fraction); /* dU in several parts, tiles in chunks, ragged at both ends; then all columns of points at a time */
    one_winograd(conv_of(112, 6, 5, 112, 3, 1, 1), dti_wino_find(4, 3), 1, fraction);
    one_winograd(conv_of(1, 28, 28, 10, 5, 1, 0), &dti_line_45, 2, fraction); /* lines in chunks of one tile, and of several */
    one_winograd(conv_of(6, 14, 14, 16, 5, 1, 0), &dti_line_45, 1, fraction);
    assert_null(dti_wino_find(4, 7));
    for (int m = 1; m < 9; ++m)
        for (int K = 3; K <= 5; ++K)
            if (wino_worst[m][K] > 0.0)
                printf("F(%d,%d): largest error %.1e of the sum of the terms' magnitudes\n", m, K,
                       wino_worst[m][K]);
}

/* Pooled: against pooling and unpooling what the passes without it give, the same bits. */
static void winograd_pooled(void **state) {
    (void)state;
    for (size_t k = 0; k < WINO_FORMS; ++k)
        for (int trial = 0; trial < 12; ++trial) {
            const dti_wino_form *f = wino_form(k);
            const dti_conv c = wino_shape(whole(1, 7), whole(1, 18), f->K, 9);
            const int groups = 2;
            const sizes n = sizes_of(&c);
            if (c.P < 2 || c.Q < 2) continue;
            const size_t out = (size_t)(c.O * (c.P / 2) * (c.Q / 2)) * L,
                         room = dti_wino_scratch_floats(&c, f);
            wino_maps plain = wino_maps_of(&c, groups, false, fraction),
                      m = wino_maps_of(&c, groups, true, fraction);
            float *w = filled(n.w, fraction), *b = filled(n.o, fraction),
                  *packed = fresh(dti_wino_packed_floats(&c, f)), *scratch = fresh(room),
                  *want = fresh(out);
            float *dw = fresh(n.w), *db = fresh(n.o), *want_w = fresh(n.w), *want_b = fresh(n.o);
            uint8_t *places = dti_alloc(out);
            dti_wino_pack(&c, f, w, packed);
            for (size_t g = 0; g < (size_t)groups; ++g) {
                dti_wino_maps x = m.of_x, dy = m.of_dy, full = plain.of_dy, one = plain.of_dx;
                x.at += g * x.group, dy.at += g * dy.group, dy.argmax += g * dy.argmax_group,
                    full.at += g * full.group, one.at += g * one.group;
                memset(full.at, 0, n.y * L * sizeof(float));
                for (size_t o = 0, i = 0; o < n.o; ++o) /* dy where its maximum was */
                    for (size_t r = 0; r < (size_t)(c.P / 2); ++r)
                        for (size_t q = 0; q < (size_t)(c.Q / 2); ++q)
                            for (size_t l = 0; l < L; ++l, ++i) {
                                const size_t u = dy.argmax[i] / 2, v = dy.argmax[i] % 2;
                                if (dy.argmax[i] == 4) continue; /* ReLU let nothing through */
                                full.at[((o * (size_t)c.P + 2 * r + u) * (size_t)c.Q + 2 * q + v) *
                                            L +
                                        l] = dy.at[i];
                            }
                dti_wino_backward(&c, f, 1, &x, &full, packed, &one, want_w, want_b, scratch);
                dti_wino_maps dx = m.of_dx;
                dx.at += g * dx.group;
                dti_wino_backward(&c, f, 1, &x, &dy, packed, &dx, dw, db, scratch);
                assert_memory_equal(dx.at, one.at, n.x * L * sizeof(float));
                assert_memory_equal(dw, want_w, n.w * sizeof *dw);
                assert_memory_equal(db, want_b, n.o * sizeof *db);
            }
            dti_wino_forward(&c, f, groups, &m.of_x, packed, b, false, &plain.of_y, scratch);
            for (int relu = 0; relu < 2; ++relu) {
                dti_wino_forward(&c, f, groups, &m.of_x, packed, b, relu, &m.of_y, scratch);
                for (size_t g = 0; g < (size_t)groups; ++g) {
                    dti_maxpool_forward(c.O, c.P, c.Q, 2, 2, plain.y + g * plain.of_y.group, want,
                                        places);
                    for (size_t i = 0; relu && i < out; ++i)
                        if (!(want[i] > 0.0f)) want[i] = 0.0f, places[i] = 4; /* nothing goes back */
                    for (size_t i = 0; i < out;
                         ++i) /* == and not bits: a zero may have either sign */
                        if (m.y[g * m.of_y.group + i] < want[i] ||
                            m.y[g * m.of_y.group + i] > want[i] ||
                            m.places[g * m.of_y.argmax_group + i] != places[i])
                            fail_msg("F(%d,%d) pooled, value %zu: %g at %d, wanted %g at %d", f->m,
                                     f->K, i, (double)m.y[g * m.of_y.group + i],
                                     m.places[g * m.of_y.argmax_group + i], (double)want[i],
                                     places[i]);
                }
            }
            wino_maps_drop(&plain, groups);
            wino_maps_drop(&m, groups);
            dti_release(w);
            dti_release(b);
            dti_release(packed);
            dti_release(scratch);
            dti_release(want);
            dti_release(places);
            dti_release(dw);
            dti_release(db);
            dti_release(want_w);
            dti_release(want_b);
        }
}

/* ---- The fold of sixteen lanes into one sum, and arguments that cannot be meant. */

static void fold(void **state) {
    (void)state;
    for (int rows = 1; rows <= 13; ++rows) {
        float *acc = filled((size_t)rows * L, small_whole), *sums = fresh((size_t)rows);
        dti_fold(sums, acc, rows);
        for (int r = 0; r < rows; ++r) {
            float want = 0.0f;
            for (int l = 0; l < L; ++l) want += acc[r * L + l];
            assert_true(sums[r] >= want && sums[r] <= want);
        }
        drop(sums, (size_t)rows, "fold");
        dti_release(acc);
    }
    /* the order of the additions is part of the result: 1e8 + -1e8 meet before the 1 */
    float *acc = zeros(L), sum;
    acc[0] = 1e8f; acc[8] = -1e8f; acc[1] = 1.0f;
    dti_fold(&sum, acc, 1);
    assert_true(sum >= 1.0f && sum <= 1.0f);
    dti_release(acc);
}

static void naive_refuses(void **state) {
    (void)state;
    float f[16] = { 0 };
    assert_int_equal(dt_conv2d_naive(f, f, f, NULL, 1, 1, 2, 2, 1, 3, 1, 0), DT_ESHAPE);
    assert_non_null(strstr(dt_error(), "3x3"));
    assert_int_equal(dt_conv2d_naive(f, f, f, NULL, 1, 1, 2, 2, 1, 1, 0, 0), DT_ESHAPE);
    assert_int_equal(dt_conv2d_naive(f, f, f, NULL, 1, 1, 2, 2, 1, 1, 1, -1), DT_ESHAPE);
    assert_int_equal(dt_maxpool2d_naive(f, f, 1, 1, 2, 2, 3, 1), DT_ESHAPE);
    assert_int_equal(dt_linear_naive(f, f, f, NULL, 0, 1, 1), DT_ESHAPE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_whole_numbers),   cmocka_unit_test(conv_fractions),   cmocka_unit_test(conv_fringe_channels),
        cmocka_unit_test(conv_fringe_columns),  cmocka_unit_test(conv_cache_tiles), cmocka_unit_test(lanes_do_not_mix),
        cmocka_unit_test(partial_lane_groups),  cmocka_unit_test(maxpool),          cmocka_unit_test(fused_conv_pool),
        cmocka_unit_test(linear),               cmocka_unit_test(fold),             cmocka_unit_test(naive_refuses),
        cmocka_unit_test(winograd),             cmocka_unit_test(winograd_pooled),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
