/* Numbers that nobody means: NaN and infinity in images, targets and weights, learning rates a billion times too large, images
   of one grey under batch norm, batches of one, classes without samples, denormal weights, a processor set by another library,
   and every number of every description at its limits. What is asked each time is the same: no silent nonsense. A call says
   what is wrong, or what stands there afterwards is finite. */
#include <fenv.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#define DTRAIN_WITH_THREADS
#ifndef DTRAIN_LINKED
#define DTRAIN_IMPLEMENTATION
#endif
#include "dtrain.h"

enum { IMAGES = 40, SIDE = 8, PIXELS = SIDE * SIDE, CLASSES = 3, BATCH = 20 };
static float values[IMAGES * PIXELS], targets[IMAGES * CLASSES];
static uint8_t pixels[IMAGES * PIXELS], labels[IMAGES];
static float mean[1] = { 0.5f }, deviation[1] = { 0.25f };
static uint32_t index20[BATCH];
static int cases, failures;
static bool set_by_us;                         /* a value that is not finite was put there by the test, not by a step */

static void fresh_data(void) {
    for (int i = 0; i < IMAGES * PIXELS; ++i) pixels[i] = (uint8_t)(i * i * 31 + i * 7), values[i] = (float)pixels[i] / 128.0f - 1.0f;
    for (int i = 0; i < IMAGES; ++i) labels[i] = (uint8_t)(i % CLASSES);
    for (int i = 0; i < IMAGES * CLASSES; ++i) targets[i] = (float)(i % 2);
    for (uint32_t i = 0; i < BATCH; ++i) index20[i] = i;
}

/* ---- The nets: each kind of layer stands between what is wrong and the loss. */

static void recipe(dt_net *net, int which) {
    const dt_conv2d_desc conv = { .out = 4, .kernel = 3 }, same = { .out = 4, .kernel = 3, .padding = DT_SAME };
    dt_node skip;
    switch (which) {
    case 0: dt_conv2d(net, "conv", &conv), dt_maxpool2d(net, 2), dt_relu(net); break; /* done as one layer */
    case 1: dt_conv2d(net, "conv", &conv), dt_batchnorm2d(net, "bn", NULL), dt_relu(net), dt_maxpool2d(net, 3); break;
    case 2: dt_conv2d(net, "conv", &conv), dt_sigmoid(net), dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = 2 }), dt_dropout(net, 0.25f); break;
    case 3: dt_linear(net, "first", 24), dt_tanh(net); break;
    case 4:
        dt_conv2d(net, "conv", &same);
        skip = dt_here(net);
        dt_conv2d(net, "again", &same), dt_relu(net), dt_add(net, skip), dt_avgpool2d(net, &(dt_avgpool2d_desc){ .global = true });
        break;
    default: dt_relu(net), dt_maxpool2d(net, 2), dt_linear(net, "first", 24), dt_relu(net); break; /* the images meet these first */
    }
    dt_linear(net, "fc", CLASSES);
}
enum { RECIPES = 6 };

static dt_net *made(int which, dt_loss loss) {
    dt_net *net = dt_net_new(1, SIDE, SIDE);
    recipe(net, which);
    if (dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = 3, .loss = loss }) != DT_OK) fail_msg("%s", dt_error());
    return net;
}

static dt_batch batch_of(dt_loss loss, bool bytes) {
    dt_batch b = { .index = index20, .count = BATCH, .global_count = BATCH, .rows = IMAGES, .mean = mean, .std = deviation };
    if (bytes) b.pixels = pixels;
    else b.values = values;
    if (loss == DT_CROSS_ENTROPY) b.labels = labels;
    else b.targets = targets, b.target_width = CLASSES;
    return b;
}

static bool all_finite(const float *x, size_t n) {
    for (size_t i = 0; i < n; ++i)
        if (!isfinite(x[i])) return false;
    return true;
}

/* ---- What is asked. */

enum { FAILED = 1, NONSENSE = 2 };
static char what[200];

static int nonsense(const char *where) {
    snprintf(what, sizeof what, "%s is not finite, and no call has said so", where);
    return NONSENSE;
}

static int error_said(dt_err e) {
    if (e != DT_OK && *dt_error() && !strchr(dt_error(), '\n')) return FAILED;
    snprintf(what, sizeof what, "an error without a sentence");
    return NONSENSE;
}

/* Forward, and what it shows. */
static int forward(dt_net *net, const dt_batch *b) {
    float out[CLASSES];
    dt_err e = dt_net_load(net, b);
    if (e == DT_OK) e = dt_forward(net);
    if (e != DT_OK) return error_said(e);
    const dt_score s = dt_net_score(net);
    if (b->labels || b->targets) if (!isfinite(dt_score_loss(&s))) return nonsense("the loss");
    for (int i = 0; i < (int)b->count; ++i) {
        if (dt_net_logits(net, i, out) != DT_OK || !all_finite(out, CLASSES)) return nonsense("a logit");
    }
    return 0;
}

/* So many steps of training. A step that makes values that are not finite is told by the next forward pass at the latest. */
static int train(dt_net *net, dt_optimizer *opt, const dt_batch *b, int steps) {
    for (int i = 0; i < steps; ++i) {
        const bool sound = all_finite(dt_net_values(net), dt_net_count(net));
        const int went = forward(net, b);
        if (went) return went;
        const dt_err e = dt_backward(net);
        if (e != DT_OK) return error_said(e);
        if (!all_finite(dt_net_gradients(net), dt_net_count(net))) return nonsense("a gradient");
        if (!sound && !set_by_us) return nonsense("a value");
        if (opt) dt_optimizer_step(opt);
    }
    return 0;
}

enum { FINE, REFUSED, EITHER };
static void wanted(int line, const char *name, int went, int want) {
    ++cases;
    if (went == NONSENSE) printf("line %d, %s: %s\n", line, name, what), ++failures;
    else if (want == FINE && went == FAILED) printf("line %d, %s: should work: %s\n", line, name, dt_error()), ++failures;
    else if (want == REFUSED && went == 0) printf("line %d, %s: went through as if nothing were wrong\n", line, name), ++failures;
}
#define WANT(want, went, ...) do { char name_[160]; snprintf(name_, sizeof name_, __VA_ARGS__); wanted(__LINE__, name_, went, want); } while (0)
#define TOLD(least) do { if (failures || cases < (least)) fail_msg("%d of %d cases", failures, cases); print_message("           %d cases\n", cases); } while (0)

static int set_up(void **state) {
    (void)state;
    cases = failures = 0;
    set_by_us = false;
    fresh_data();
    return 0;
}

/* ---- The tests. */

static const float never[] = { NAN, INFINITY, -INFINITY };

static void in_images_and_targets(void **state) {
    static const int places[] = { 0, 27, PIXELS - 1 };
    (void)state;
    for (int r = 0; r < RECIPES; ++r)
        for (int loss = 0; loss < DT_LOSSES; ++loss) {
            dt_net *net = made(r, (dt_loss)loss);
            const dt_batch b = batch_of((dt_loss)loss, false);
            for (int v = 0; v < 3; ++v)
                for (int p = 0; p < 3; ++p)
                    for (int sample = 0; sample < BATCH; sample += BATCH - 1) {
                        const int at = sample * PIXELS + places[p];
                        fresh_data();
                        values[at] = never[v];
                        WANT(REFUSED, train(net, NULL, &b, 1), "recipe %d, loss %d, %g at %d of image %d", r, loss, (double)never[v], places[p], sample);
                        values[at] = v ? FLT_MAX : -FLT_MAX;
                        WANT(EITHER, train(net, NULL, &b, 1), "recipe %d, loss %d, the largest float at %d of image %d", r, loss, places[p], sample);
                    }
            fresh_data();
            for (int v = 0; v < 3 && loss != DT_CROSS_ENTROPY; ++v) {
                targets[BATCH * CLASSES - 1] = never[v];
                WANT(REFUSED, train(net, NULL, &b, 1), "recipe %d, loss %d, the target %g", r, loss, (double)never[v]);
            }
            fresh_data();
            WANT(FINE, train(net, NULL, &b, 1), "recipe %d, loss %d, as it should be", r, loss);
            dt_net_free(net);
        }
    TOLD(600);
}

/* What saturates has a right answer for an infinite bias, and no nonsense: 1 from a sigmoid or a tanh, 0 from a ReLU. A NaN has none. */
static void in_weights(void **state) {
    (void)state;
    set_by_us = true;
    for (int r = 0; r < RECIPES; ++r) {
        dt_net *net = made(r, DT_CROSS_ENTROPY);
        const dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
        for (int i = 0; i < dt_net_param_count(net); ++i) {
            const dt_param *p = dt_net_param(net, i);
            const bool running = strstr(p->name, "running") != NULL;
            const size_t n = dt_tensor_count(&p->value);
            for (int v = 0; v < 3; ++v)
                for (size_t at = 0; at < n; at += n > 1 ? n - 1 : 1) {
                    float *w = p->value.data + at, was = *w;
                    *w = never[v];
                    dt_net_training(net, !running);
                    const bool saturated = v && !running && strncmp(p->name, "fc", 2) != 0;
                    WANT(running && v == 1 ? EITHER : saturated ? EITHER : REFUSED, running ? forward(net, &b) : train(net, NULL, &b, 1), "recipe %d, %s[%zu] = %g", r, p->name, at, (double)never[v]);
                    *w = was;
                }
            if (strstr(p->name, "running_var")) { /* a variance below zero is none */
                float was = *p->value.data;
                *p->value.data = -1.0f;
                WANT(REFUSED, forward(net, &b), "recipe %d, %s[0] = -1", r, p->name);
                *p->value.data = was;
            }
        }
        dt_net_training(net, true);
        WANT(FINE, train(net, NULL, &b, 1), "recipe %d, as it should be", r);
        dt_net_free(net);
    }
    TOLD(100);
}

static dt_optimizer *optimizer(dt_net *net, int which, float lr) {
    switch (which) {
    case 0: return dt_sgd(net, &(dt_sgd_desc){ .lr = lr, .momentum = 0.9f, .weight_decay = 1e-4f });
    case 1: return dt_adam(net, &(dt_adam_desc){ .lr = lr, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f });
    case 2: return dt_adamw(net, &(dt_adam_desc){ .lr = lr, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 1e-2f });
    default: return dt_novograd(net, &(dt_novograd_desc){ .lr = lr, .beta1 = 0.95f, .eps = 1e-8f });
    }
}

static void rates_far_too_large(void **state) {
    static const float rates[] = { 1e3f, 1e10f, 1e30f, FLT_MAX };
    (void)state;
    for (int r = 0; r < RECIPES; ++r)
        for (int o = 0; o < 4; ++o)
            for (int k = 0; k < 4; ++k) {
                dt_net *net = made(r, DT_CROSS_ENTROPY);
                dt_optimizer *opt = optimizer(net, o, rates[k]);
                if (!opt) fail_msg("%s", dt_error());
                const dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
                const int went = train(net, opt, &b, 8);
                WANT(EITHER, went, "recipe %d, optimizer %d, rate %g", r, o, (double)rates[k]);
                if (!went) { /* and what was learned can be used, or says that it cannot */
                    dt_net_training(net, false);
                    WANT(EITHER, forward(net, &b), "recipe %d, optimizer %d, rate %g, in use", r, o, (double)rates[k]);
                }
                dt_optimizer_free(opt);
                dt_net_free(net);
            }
    /* by a trainer: its result is finite, or it has failed */
    const dt_dataset set = { .name = "noise", .count = IMAGES, .channels = 1, .height = SIDE, .width = SIDE, .classes = CLASSES,
                             .mean = mean, .std = deviation, .pixels = pixels, .labels = labels };
    for (int k = 0; k < 4; ++k) {
        dt_net *net = made(0, DT_CROSS_ENTROPY);
        dt_optimizer *opt = optimizer(net, 0, rates[k]);
        dt_comm *alone = dt_comm_alone();
        dt_train_result result;
        dt_score score;
        dt_err e = dt_train_sync(net, opt, alone, &(dt_train_desc){ .data = &set, .epochs = 3, .batch = BATCH, .seed = 1 }, &result);
        if (e == DT_OK) e = dt_evaluate(net, &set, alone, &score);
        const int went = e != DT_OK ? error_said(e) : isfinite(dt_score_loss(&score)) ? 0 : nonsense("the trained net's loss");
        WANT(k ? REFUSED : EITHER, went, "dt_train_sync, rate %g", (double)rates[k]);
        dt_comm_free(alone);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    TOLD(100);
}

/* One grey everywhere: a variance of 0, under every kind of statistics. */
static void one_grey(void **state) {
    static const uint8_t greys[] = { 0, 128, 255 };
    static const float eps[] = { 1e-5f, FLT_MIN, FLT_TRUE_MIN, 1.0f };
    (void)state;
    for (int over = 0; over < DT_STATISTICS_KINDS; ++over)
        for (int e = 0; e < 4; ++e)
            for (int g = 0; g < 3; ++g) {
                memset(pixels, greys[g], sizeof pixels);
                dt_net *net = dt_net_new(1, SIDE, SIDE);
                dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 4, .kernel = 3 });
                dt_batchnorm2d(net, "bn", &(dt_batchnorm2d_desc){ .eps = eps[e], .momentum = 0.1f, .over = (dt_statistics)over });
                dt_relu(net);
                dt_linear(net, "fc", CLASSES);
                dt_err error = dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = 3 });
                dt_optimizer *opt = error == DT_OK ? optimizer(net, 1, 1e-3f) : NULL;
                const dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
                int went = opt ? train(net, opt, &b, 4) : error_said(error);
                WANT(e == 0 || e == 3 ? FINE : EITHER, went, "grey %d, statistics %d, eps %g", greys[g], over, (double)eps[e]);
                if (opt && !went) {
                    dt_net_training(net, false);
                    WANT(e == 0 || e == 3 ? FINE : EITHER, forward(net, &b), "grey %d, statistics %d, eps %g, in use", greys[g], over, (double)eps[e]);
                }
                dt_optimizer_free(opt);
                dt_net_free(net);
            }
    TOLD(36);
}

static void few(void **state) {
    (void)state;
    for (int r = 0; r < RECIPES; ++r)
        for (int k = 0; k < 3; ++k) { /* one image; one class alone; a class that is missing */
            fresh_data();
            for (int i = 0; i < IMAGES && k; ++i) labels[i] = (uint8_t)(k == 1 ? 2 : i % 2);
            dt_net *net = made(r, DT_CROSS_ENTROPY);
            dt_optimizer *opt = optimizer(net, k, 0.01f);
            dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
            if (k == 0) b.count = b.global_count = 1;
            WANT(FINE, train(net, opt, &b, 10), "recipe %d, case %d", r, k);
            dt_net_training(net, false);
            WANT(FINE, forward(net, &b), "recipe %d, case %d, in use", r, k);
            dt_optimizer_free(opt);
            dt_net_free(net);
        }
    TOLD(36);
}

/* Weights below 2^-126, and images: nothing becomes NaN, nothing is refused; and they count: twice the weight is twice the logit. */
static void denormals(void **state) {
    (void)state;
    for (int r = 0; r < RECIPES; ++r) {
        dt_net *net = made(r, DT_CROSS_ENTROPY);
        dt_optimizer *opt = optimizer(net, 0, 1e-3f);
        for (size_t i = 0; i < dt_net_count(net); ++i) dt_net_values(net)[i] *= 1e-39f;
        const dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
        WANT(FINE, train(net, opt, &b, 3), "recipe %d", r);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    dt_net *net = dt_net_new(1, SIDE, SIDE);
    dt_linear(net, "fc", CLASSES);
    assert_int_equal(dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = 3 }), DT_OK);
    float once[CLASSES], twice[CLASSES];
    const dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
    for (size_t i = 0; i < dt_net_count(net); ++i) dt_net_values(net)[i] = 0x1p-140f;
    WANT(FINE, forward(net, &b), "2^-140");
    assert_int_equal(dt_net_logits(net, 0, once), DT_OK);
    for (size_t i = 0; i < dt_net_count(net); ++i) dt_net_values(net)[i] = 0x1p-139f;
    WANT(FINE, forward(net, &b), "2^-139");
    assert_int_equal(dt_net_logits(net, 0, twice), DT_OK);
    for (int c = 0; c < CLASSES; ++c) /* sums of 64 products, each rounded to a whole number of 2^-149 */
        if (!(once[c] != 0.0f && fabsf(twice[c] / once[c] - 2.0f) < 0.01f)) fail_msg("%g, and from twice the weights %g", (double)once[c], (double)twice[c]);
    dt_net_free(net);
    TOLD(8);
}

static dt_err a_rank(dt_comm *comm, void *arg) {
    dt_score score;
    (void)arg;
    dt_net *net = made(0, DT_CROSS_ENTROPY);
    const dt_dataset set = { .name = "noise", .count = IMAGES, .channels = 1, .height = SIDE, .width = SIDE, .classes = CLASSES,
                             .mean = mean, .std = deviation, .pixels = pixels, .labels = labels };
    if (dt_comm_rank(comm) == 1) fesetround(FE_UPWARD); /* as a library called there might leave it */
    const dt_err e = dt_evaluate(net, &set, comm, &score);
    fesetenv(FE_DFL_ENV);
    dt_net_free(net);
    return e;
}

/* Another library has set the processor: whatever computes says so, on each thread. */
static void processor_set_oddly(void **state) {
    (void)state;
    const dt_dataset set = { .name = "noise", .count = IMAGES, .channels = 1, .height = SIDE, .width = SIDE, .classes = CLASSES,
                             .mean = mean, .std = deviation, .pixels = pixels, .labels = labels };
    dt_net *net = made(0, DT_CROSS_ENTROPY);
    dt_optimizer *opt = optimizer(net, 0, 0.1f);
    dt_comm *alone = dt_comm_alone();
    const dt_train_desc d = { .data = &set, .epochs = 1, .batch = BATCH, .seed = 1 };
    for (int k = 0; k < 5; ++k) {
        dt_score score;
        dt_train_result result;
        float out[CLASSES];
        dt_err e[4];
#if defined(__SSE2__)
        if (k >= 3) _mm_setcsr(_mm_getcsr() | (k == 3 ? 0x8000u : 0x0040u));
#else
        if (k >= 3) break;
#endif
        if (k < 3) fesetround(k == 0 ? FE_UPWARD : k == 1 ? FE_DOWNWARD : FE_TOWARDZERO);
        e[0] = dt_evaluate(net, &set, alone, &score);
        e[1] = dt_train_sync(net, opt, alone, &d, &result);
        e[2] = dt_train_psgd(net, opt, alone, &d, &result);
        e[3] = dt_predict(net, &set, 0, 1, out);
        fesetenv(FE_DFL_ENV);
        for (int i = 0; i < 4; ++i) WANT(REFUSED, e[i] == DT_ENUMERIC ? FAILED : 0, "setting %d, call %d", k, i);
    }
    WANT(REFUSED, dt_run_ranks(3, a_rank, NULL) == DT_OK ? 0 : FAILED, "a rank of three");
    WANT(FINE, dt_evaluate(net, &set, alone, &(dt_score){ 0 }) == DT_OK ? 0 : FAILED, "set back");
    dt_comm_free(alone);
    dt_optimizer_free(opt);
    dt_net_free(net);
    TOLD(13);
}

/* Layers with a number at its limit, and beyond: refused at the build, or three sound steps. */
#define LAYERS(want, ...) do { \
        dt_net *net = dt_net_new(1, SIDE, SIDE); \
        __VA_ARGS__; \
        dt_linear(net, "fc", CLASSES); \
        const dt_err e_ = dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = 3 }); \
        dt_optimizer *opt_ = e_ == DT_OK ? optimizer(net, 0, 0.01f) : NULL; \
        const dt_batch b_ = batch_of(DT_CROSS_ENTROPY, true); \
        WANT(want, opt_ ? train(net, opt_, &b_, 3) : error_said(e_), "%s", #__VA_ARGS__); \
        dt_optimizer_free(opt_); \
        dt_net_free(net); \
    } while (0)

static void layers_at_their_limits(void **state) {
    (void)state;
    const int kernels[] = { INT_MIN, -1, 0, 1, 2, 8, 9, 15, 16, INT_MAX };
    for (int i = 0; i < 10; ++i) {
        const int k = kernels[i];
        LAYERS(k >= 1 && k <= 8 ? FINE : REFUSED, dt_conv2d(net, "c", &(dt_conv2d_desc){ .out = 2, .kernel = k }));
        LAYERS(k >= 1 && k <= 15 ? FINE : REFUSED, dt_conv2d(net, "c", &(dt_conv2d_desc){ .out = 2, .kernel = k, .padding = k - 1 < 0 || k == INT_MIN ? 0 : k - 1 }));
        LAYERS(k >= 1 && k <= 8 ? FINE : REFUSED, dt_maxpool2d(net, k));
        LAYERS(k >= 1 && k <= 8 ? FINE : REFUSED, dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = k }));
    }
    const int strides[] = { INT_MIN, -1, 0, 1, 65536, 65537, INT_MAX };
    for (int i = 0; i < 7; ++i)
        LAYERS(i >= 2 && i <= 4 ? FINE : REFUSED, dt_conv2d(net, "c", &(dt_conv2d_desc){ .out = 2, .kernel = 3, .stride = strides[i] }));
    const int outs[] = { INT_MIN, -1, 0, 1, 17, INT_MAX };
    for (int i = 0; i < 6; ++i) {
        LAYERS(i == 3 || i == 4 ? FINE : REFUSED, dt_conv2d(net, "c", &(dt_conv2d_desc){ .out = outs[i], .kernel = 3 }));
        LAYERS(i == 3 || i == 4 ? FINE : REFUSED, dt_linear(net, "l", outs[i]));
    }
    const int paddings[] = { INT_MIN, -1, 3, INT_MAX };
    for (int i = 0; i < 4; ++i) {
        LAYERS(REFUSED, dt_conv2d(net, "c", &(dt_conv2d_desc){ .out = 2, .kernel = 3, .padding = paddings[i] }));
        LAYERS(REFUSED, dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = 2, .padding = i == 2 ? 2 : paddings[i] }));
    }
    const float p[] = { -0x1p-149f, 0.0f, 0x1p-149f, 0x1p-24f, 1.0f - 0x1p-24f, 1.0f, NAN, INFINITY };
    for (int i = 0; i < 8; ++i) { /* one image in 2^24 passes, at 2^24 times its value */
        LAYERS(i == 0 || i > 4 ? REFUSED : EITHER, dt_dropout(net, p[i]));
        LAYERS(i == 0 || i > 4 ? REFUSED : EITHER, dt_dropout2d(net, p[i]));
    }
    const float eps[] = { -1.0f, 0.0f, FLT_TRUE_MIN, FLT_MIN, 1.0f, FLT_MAX, INFINITY, NAN };
    for (int i = 0; i < 8; ++i) LAYERS(i < 2 || i > 5 ? REFUSED : EITHER, dt_batchnorm2d(net, "b", &(dt_batchnorm2d_desc){ .eps = eps[i], .momentum = 0.1f }));
    const float momentum[] = { -FLT_TRUE_MIN, 0.0f, FLT_TRUE_MIN, 1.0f, 1.0f + FLT_EPSILON, INFINITY, NAN };
    for (int i = 0; i < 7; ++i) LAYERS(i < 1 || i > 3 ? REFUSED : FINE, dt_batchnorm2d(net, "b", &(dt_batchnorm2d_desc){ .eps = 1e-5f, .momentum = momentum[i] }));
    TOLD(90);
}

/* An optimizer, or what belongs to it, with a number at its limit: refused, or eight sound steps. */
#define OPTIMIZER(want, make) do { \
        dt_net *net = made(1, DT_CROSS_ENTROPY); \
        dt_optimizer *opt = make; \
        const dt_batch b_ = batch_of(DT_CROSS_ENTROPY, true); \
        WANT(want, opt ? train(net, opt, &b_, 8) : error_said(DT_EARG), "%s, number %d", #make, i); \
        dt_optimizer_free(opt); \
        dt_net_free(net); \
    } while (0)

static dt_optimizer *grouped(dt_net *net, float factor, float decay, float clip) {
    dt_optimizer *opt = optimizer(net, 0, 0.01f);
    if (dt_optimizer_group(opt, &(dt_group_desc){ .names = "*.weight", .lr_factor = factor, .weight_decay = decay }) == DT_OK && dt_optimizer_clip(opt, clip) == DT_OK) return opt;
    dt_optimizer_free(opt);
    return NULL;
}

static void optimizers_at_their_limits(void **state) {
    (void)state;
    const float n[] = { NAN, -INFINITY, INFINITY, -FLT_TRUE_MIN, -FLT_MAX, 0.0f, FLT_TRUE_MIN, FLT_MIN, 0.5f, 1.0f - 0x1p-24f, 1.0f, FLT_MAX };
    for (int i = 0; i < 12; ++i) {
        const float x = n[i];
        const int bad = i < 5, zero = i == 5, one = i >= 10;
        OPTIMIZER(bad || zero ? REFUSED : EITHER, dt_sgd(net, &(dt_sgd_desc){ .lr = x }));
        OPTIMIZER(bad ? REFUSED : EITHER, dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = x }));
        OPTIMIZER(bad ? REFUSED : EITHER, dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f, .dampening = x }));
        OPTIMIZER(bad ? REFUSED : EITHER, dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .weight_decay = x }));
        OPTIMIZER(bad || zero ? REFUSED : EITHER, dt_adam(net, &(dt_adam_desc){ .lr = x, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f }));
        OPTIMIZER(bad || one ? REFUSED : EITHER, dt_adam(net, &(dt_adam_desc){ .lr = 1e-3f, .beta1 = x, .beta2 = 0.999f, .eps = 1e-8f }));
        OPTIMIZER(bad || one ? REFUSED : EITHER, dt_adam(net, &(dt_adam_desc){ .lr = 1e-3f, .beta1 = 0.9f, .beta2 = x, .eps = 1e-8f }));
        OPTIMIZER(bad ? REFUSED : EITHER, dt_adam(net, &(dt_adam_desc){ .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = x }));
        OPTIMIZER(bad ? REFUSED : EITHER, dt_adamw(net, &(dt_adam_desc){ .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = x }));
        OPTIMIZER(bad || one ? REFUSED : EITHER, dt_novograd(net, &(dt_novograd_desc){ .lr = 1e-3f, .beta1 = x, .beta2 = 0.1f, .eps = 1e-8f }));
        OPTIMIZER(bad || one ? REFUSED : EITHER, dt_novograd(net, &(dt_novograd_desc){ .lr = 1e-3f, .beta1 = 0.9f, .beta2 = x, .eps = 1e-8f }));
        OPTIMIZER(bad ? REFUSED : EITHER, dt_novograd(net, &(dt_novograd_desc){ .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.1f, .eps = x }));
        OPTIMIZER(bad ? REFUSED : EITHER, grouped(net, x, 0.0f, 0.0f));
        OPTIMIZER(bad ? REFUSED : EITHER, grouped(net, 1.0f, x, 0.0f));
        OPTIMIZER(bad ? REFUSED : EITHER, grouped(net, 1.0f, 0.0f, x));
    }
    TOLD(170);
}

static void the_rest_at_its_limits(void **state) {
    (void)state;
    const float n[] = { NAN, -INFINITY, INFINITY, -1.0f, FLT_MAX, 0.0f, FLT_TRUE_MIN, 0.5f, 1.0f };
    for (int i = 0; i < 9; ++i) { /* augmentation, field by field */
        static uint8_t room[16 * PIXELS];
        dt_net *net = made(0, DT_CROSS_ENTROPY);
        dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
        for (int field = 0; field < 7; ++field) {
            dt_augment a = { .seed = 1 };
            float *const at[] = { &a.flip, &a.rotate, &a.shear, &a.brightness, &a.contrast, &a.scale_low, &a.scale_high };
            *at[field] = n[i];
            b.augment = &a, b.room = room;
            const bool alone = field >= 5 && n[i] > 0.0f; /* one end of an interval without the other */
            WANT(i < 5 || alone ? REFUSED : FINE, train(net, NULL, &b, 1), "augmentation's field %d, number %d", field, i);
        }
        dt_net_free(net);
    }
    for (int i = 0; i < 9; ++i) { /* a batch's mean and deviation */
        dt_net *net = made(0, DT_CROSS_ENTROPY);
        dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
        b.mean = &n[i];
        WANT(i < 3 ? REFUSED : EITHER, train(net, NULL, &b, 1), "mean, number %d", i);
        b.mean = mean, b.std = &n[i];
        WANT(i < 4 || i == 5 ? REFUSED : EITHER, train(net, NULL, &b, 1), "deviation, number %d", i);
        dt_net_free(net);
    }
    const float units[] = { 0x1p-126f, 0x1p-60f, 0x1p-40f, 0x1p60f, 0x1p65f, 0x1p-127f, 0x1p66f, 0.3f, -1.0f, NAN };
    for (int i = 0; i < 10; ++i) { /* the unit of exact sums */
        dt_net *net = dt_net_new(1, SIDE, SIDE);
        recipe(net, 0);
        const dt_err e = dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = 3, .unit = units[i] });
        const dt_batch b = batch_of(DT_CROSS_ENTROPY, true);
        WANT(i > 4 ? REFUSED : EITHER, e == DT_OK ? train(net, NULL, &b, 2) : error_said(e), "unit %g", (double)units[i]);
        dt_net_free(net);
    }
    const float all_nan[2] = { NAN, NAN };
    for (int v = 0; v < 3; ++v) { /* a data set of such numbers, with mean and deviation measured, or given */
        dt_dataset d;
        fresh_data();
        values[PIXELS] = never[v];
        dt_arrays arrays = { .count = IMAGES, .channels = 1, .height = SIDE, .width = SIDE, .values = values, .labels = labels, .classes = CLASSES };
        for (int k = 0; k < 4; ++k) {
            if (k == 1) fresh_data(), arrays.mean = all_nan, arrays.std = deviation;
            if (k == 2) arrays.mean = mean, arrays.std = all_nan;
            if (k == 3) arrays.std = deviation, arrays.labels = NULL, arrays.classes = 0, arrays.targets = targets, arrays.target_width = CLASSES, targets[5] = never[v];
            const dt_err e = dt_dataset_from(&d, &arrays);
            WANT(REFUSED, e == DT_OK ? 0 : error_said(e), "a data set with %g, case %d", (double)never[v], k);
            if (e == DT_OK) dt_dataset_free(&d);
        }
    }
    for (int i = 0; i < 9; ++i) /* schedules */
        for (int field = 0; field < 4; ++field) {
            dt_schedule s = { .curve = field < 2 ? DT_LR_LINEAR : field == 2 ? DT_LR_STEPS : DT_LR_COSINE, .over = 3, .every = 1, .from = 1.0f, .to = 1.0f, .factor = 1.0f };
            float *const at[] = { &s.from, &s.to, &s.factor, &s.end };
            *at[field] = n[i];
            for (uint32_t epoch = 0; epoch < 5; ++epoch) {
                const float lr = dt_schedule_lr(&s, 0.1f, epoch, epoch);
                WANT(EITHER, lr >= 0.0f ? 0 : nonsense("a learning rate"), "schedule's field %d, number %d, epoch %u", field, i, epoch);
            }
        }
    TOLD(200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(in_images_and_targets, set_up),
        cmocka_unit_test_setup(in_weights, set_up),
        cmocka_unit_test_setup(rates_far_too_large, set_up),
        cmocka_unit_test_setup(one_grey, set_up),
        cmocka_unit_test_setup(few, set_up),
        cmocka_unit_test_setup(denormals, set_up),
        cmocka_unit_test_setup(processor_set_oddly, set_up),
        cmocka_unit_test_setup(layers_at_their_limits, set_up),
        cmocka_unit_test_setup(optimizers_at_their_limits, set_up),
        cmocka_unit_test_setup(the_rest_at_its_limits, set_up),
    };
    return cmocka_run_group_tests_name("numbers", tests, NULL, NULL);
}
