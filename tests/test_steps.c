/* What a step is made of: losses [S7], optimizers [S9], and the small layers of [S6] that no other test holds against PyTorch.

   tests/data/steps.bin, made by tests/make_reference.py, holds PyTorch's numbers. A line for each,
   "conformance NAME  largest difference X", tells how far dtrain's are from them: the largest difference over the largest number. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DTRAIN_WITH_THREADS
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

#ifndef STEPS
#define STEPS "tests/data/steps.bin"
#endif

#include "tests/reference.h"

/* The largest difference of n numbers, each `stride` behind the last, from a record, over the record's largest number. */
static double distance(const char *name, const float *got, size_t stride, size_t n) {
    size_t count;
    double largest = 0.0, worst = 0.0;
    float *want = reference(STEPS, name, &count);
    if (!want || count != n) fail_msg("%s: %zu numbers, the reference has %zu", name, n, want ? count : 0);
    for (size_t i = 0; i < n; ++i) {
        const double d = fabs((double)got[i * stride] - (double)want[i]);
        largest = fmax(largest, fabs((double)want[i]));
        worst = d > worst || isnan(d) ? d : worst;
    }
    free(want);
    return worst / largest;
}

static void conforms(const char *name, double difference, double bound) {
    conformance_row(name, difference, bound);
    if (!(difference <= bound)) fail_msg("%s: %g away from PyTorch, more than %g", name, difference, bound);
}

/* ---- Small layers, each between a convolution and a linear one. */

static void avgpool(dt_net *net) { dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = 2 }); }
static void avgpool_padded(dt_net *net) { dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = 4, .padding = 2 }); }
static void avgpool_global(dt_net *net) { dt_avgpool2d(net, &(dt_avgpool2d_desc){ .global = true }); }

static const struct { const char *name; void (*add)(dt_net *net); bool each_number; } layers[] = {
    { "avgpool", avgpool, false }, { "avgpool padded", avgpool_padded, false }, { "avgpool global", avgpool_global, false },
    { "sigmoid", dt_sigmoid, true }, { "tanh", dt_tanh, true },
};

static dt_net *layer_net(void (*add)(dt_net *net)) {
    dt_net *net = dt_net_new(3, 17, 13);
    dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 4, .kernel = 3 });
    add(net);
    dt_linear(net, "fc", 5);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .direct = true }));
    reference_values(net);
    return net;
}

static void small_layers(void **state) {
    (void)state;
    make_data(3 * 17 * 13, 5);
    const dt_batch batch = batch_of_step(0, BATCH);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; ++i) {
        char record[32];
        float z[BATCH][5];
        dt_net *net = layer_net(layers[i].add);
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        ok(dt_backward(net));
        for (int n = 0; n < BATCH; ++n) ok(dt_net_logits(net, n, z[n]));
        snprintf(record, sizeof record, "%s y", layers[i].name);
        const double outputs = distance(record, z[0], 1, BATCH * 5);
        snprintf(record, sizeof record, "%s g", layers[i].name);
        const double gradients = distance(record, dt_net_gradients(net), 3, (dt_net_count(net) + 2) / 3);
        conforms(layers[i].name, fmax(outputs, gradients), 1e-5);
        dt_net_free(net);
    }
}

/* (loss(w+h) - loss(w-h)) / 2h */
static double difference(dt_net *net, const dt_batch *batch, float *w, float h) {
    const float old = *w, at[2] = { old - h, old + h };
    double loss[2];
    for (int side = 0; side < 2; ++side) {
        *w = at[side];
        ok(dt_net_load(net, batch));
        ok(dt_forward(net));
        const dt_score score = dt_net_score(net);
        loss[side] = dt_score_loss(&score);
    }
    *w = old;
    return (loss[1] - loss[0]) / ((double)at[1] - (double)at[0]);
}

/* Beside another reader of the same tensor, a layer's dx is added to that reader's; and what it wrote over must not be missed. */
static void small_layers_in_branches(void **state) {
    (void)state;
    make_data(3 * 17 * 13, 5);
    const dt_batch batch = batch_of_step(1, BATCH);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; ++i) {
        dt_net *net = dt_net_new(3, 17, 13);
        dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 2, .kernel = 5 });
        dt_relu(net);
        dt_node here = dt_here(net);
        layers[i].add(net);
        dt_linear(net, "one", 4);
        dt_node one = dt_here(net);
        dt_at(net, here);
        layers[i].add(net);
        layers[i].add(net);
        dt_linear(net, "two", 4);
        dt_add(net, one);
        if (layers[i].each_number) layers[i].add(net);
        else dt_relu(net);
        dt_linear(net, "last", 5);
        ok(dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = 3 }));
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        ok(dt_backward(net));
        float *w = dt_net_find(net, "conv.weight")->value.data, gradient[20];
        memcpy(gradient, dt_net_gradients(net), sizeof gradient);
        double largest = 0.0;
        for (int k = 0; k < 20; ++k) largest = fmax(largest, fabs((double)gradient[k]));
        for (int k = 0; k < 20; ++k) { /* a ReLU that switches within h bends the difference, so h is halved until they agree */
            double off = INFINITY;
            for (float h = 4e-3f; h > 2e-4f; h *= 0.5f) off = fmin(off, fabs(difference(net, &batch, &w[k], h) - (double)gradient[k]));
            if (off > 0.03 * largest)
                fail_msg("%s in branches: gradient %d is %g, differences are %g away", layers[i].name, k, (double)gradient[k], off);
        }
        dt_net_free(net);
    }
}

/* Sigmoid and tanh against the C library's in double precision, from end to end; NaN stays NaN. */
static void elementwise(void **state) {
    (void)state;
    for (float x = -110.0f; x < 110.0f; x += 0.00731f) {
        const double want = 1.0 / (1.0 + exp(-(double)x)), got = (double)dti_logistic(x);
        if (!(fabs(got - want) <= 4e-7 * want + 2e-38)) fail_msg("sigmoid(%g) = %.9g, wanted %.9g", (double)x, got, want);
    }
    const float ends[] = { INFINITY, FLT_MAX, -FLT_MAX, -INFINITY };
    for (int i = 0; i < 4; ++i) assert_true(dti_logistic(ends[i]) >= 0.0f && fabsf(dti_logistic(ends[i]) - (i < 2 ? 1.0f : 0.0f)) < 2e-38f);
    assert_true(isnan(dti_logistic(NAN)) && isnan(dti_tanh(NAN)));
    for (float x = 1e-30f; x < 40.0f; x *= 1.000731f) {
        const double want = tanh((double)x), got = (double)dti_tanh(x);
        if (!(fabs(got - want) <= 4e-7 * want)) fail_msg("tanh(%g) = %.9g, wanted %.9g", (double)x, got, want);
        assert_true(fabsf(dti_tanh(-x) + dti_tanh(x)) <= 0.0f);
    }
    for (int i = 0; i < 4; ++i) assert_true(fabsf(dti_tanh(ends[i]) - (i < 2 ? 1.0f : -1.0f)) <= 0.0f);
    assert_true(fabsf(dti_tanh(0.0f)) <= 0.0f);
}

/* ---- Losses. */

static float targets[IMAGES * 5];
static void make_targets(float low, float high) {
    uint32_t x = 11;
    for (size_t i = 0; i < IMAGES * 5; ++i) targets[i] = low + (high - low) * ((float)(next_number(&x) >> 24) / 255.0f);
}

static dt_net *loss_net(dt_loss loss) {
    dt_net *net = dt_net_new(3, 17, 13);
    dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 4, .kernel = 3 });
    dt_tanh(net);
    dt_linear(net, "fc", 5);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .direct = true, .loss = loss }));
    reference_values(net);
    return net;
}

static void losses(void **state) {
    (void)state;
    static const struct { const char *name; dt_loss loss; bool labels; float low; } cases[] = {
        { "cross-entropy", DT_CROSS_ENTROPY, true, 0.0f },
        { "mean squared", DT_MEAN_SQUARED, false, -1.0f }, { "mean squared, labels", DT_MEAN_SQUARED, true, 0.0f },
        { "binary", DT_BINARY_CROSS_ENTROPY, false, 0.0f }, { "binary, labels", DT_BINARY_CROSS_ENTROPY, true, 0.0f },
    };
    make_data(3 * 17 * 13, 5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char record[32];
        dt_net *net = loss_net(cases[i].loss);
        dt_batch batch = batch_of_step(0, BATCH);
        make_targets(cases[i].low, 1.0f);
        if (!cases[i].labels) batch.labels = NULL, batch.targets = targets, batch.target_width = 5;
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        ok(dt_backward(net));
        const dt_score score = dt_net_score(net);
        const float loss = (float)dt_score_loss(&score);
        int64_t correct = 0;
        for (int n = 0; n < BATCH; ++n) {
            float z[5];
            int best = 0, sides = 0;
            ok(dt_net_logits(net, n, z));
            for (int k = 0; k < 5; ++k) best = z[k] > z[best] ? k : best, sides += (z[k] > 0.0f) == (targets[5 * rows[n] + (uint32_t)k] > 0.5f);
            correct += cases[i].labels ? best == labels[rows[n]] : cases[i].loss == DT_BINARY_CROSS_ENTROPY && sides == 5;
        }
        assert_int_equal(score.count, BATCH);
        assert_int_equal(score.correct, correct);
        snprintf(record, sizeof record, "%s l", cases[i].name);
        const double value = distance(record, &loss, 1, 1);
        snprintf(record, sizeof record, "%s g", cases[i].name);
        conforms(cases[i].name, fmax(value, distance(record, dt_net_gradients(net), 3, (dt_net_count(net) + 2) / 3)), 1e-5);
        dt_net_free(net);
    }
}

/* sum |z|^3 / 7, which is no mean and knows no labels. */
static void a_loss_of_ones_own(void **state) {
    (void)state;
    make_data(3 * 17 * 13, 5);
    dt_net *net = loss_net(DT_CROSS_ENTROPY);
    dt_batch batch = batch_of_step(0, BATCH);
    float dz[BATCH][5];
    batch.labels = NULL;
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    double sum = 0.0;
    for (int n = 0; n < BATCH; ++n) {
        ok(dt_net_logits(net, n, dz[n]));
        for (int k = 0; k < 5; ++k) {
            const float z = dz[n][k];
            sum += pow(fabs((double)z), 3.0) / 7.0;
            dz[n][k] = 3.0f / 7.0f * z * fabsf(z);
        }
    }
    ok(dt_backward_from(net, dz[0]));
    const float value = (float)sum;
    conforms("own loss", fmax(distance("own loss l", &value, 1, 1), distance("own loss g", dt_net_gradients(net), 3, (dt_net_count(net) + 2) / 3)), 1e-5);
    dt_net_free(net);
}

/* The built-in loss's own derivative, handed in from outside, gives its gradient; a part of a global batch, its share. */
static void shares_add_up(void **state) {
    (void)state;
    make_data(3 * 17 * 13, 5);
    make_targets(0.0f, 1.0f);
    for (int i = 0; i < DT_LOSSES; ++i) {
        dt_net *net = loss_net((dt_loss)i);
        dt_batch batch = batch_of_step(2, BATCH);
        if (i > 0) batch.targets = targets, batch.target_width = 5;
        const size_t count = dt_net_count(net);
        float *whole = malloc(count * sizeof *whole), *sum = calloc(count, sizeof *sum);
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        ok(dt_backward(net));
        memcpy(whole, dt_net_gradients(net), count * sizeof *whole);
        for (uint32_t from = 0; from < BATCH; from += 16) {
            batch = batch_of_step(2, BATCH);
            if (i > 0) batch.targets = targets, batch.target_width = 5;
            batch.index += from, batch.count = BATCH - from < 16 ? BATCH - from : 16;
            ok(dt_net_load(net, &batch));
            ok(dt_forward(net));
            ok(dt_backward(net));
            for (size_t k = 0; k < count; ++k) sum[k] += dt_net_gradients(net)[k];
        }
        for (size_t k = 0; k < count; ++k)
            if (!(fabsf(sum[k] - whole[k]) <= 1e-6f)) fail_msg("%s: share %zu is %g, the whole %g", dt_loss_name((dt_loss)i), k, (double)sum[k], (double)whole[k]);
        free(whole);
        free(sum);
        dt_net_free(net);
    }
}

static void losses_far_out(void **state) { /* logits of +-1000, and targets that cannot be meant */
    (void)state;
    float z[2 * DT_LANES], logp[2 * DT_LANES], loss[DT_LANES], dz[2 * DT_LANES], target[2 * DT_LANES];
    int none[DT_LANES];
    for (int i = 0; i < 2 * DT_LANES; ++i) z[i] = i % 2 ? 1000.0f : -1000.0f, target[i] = i / 2 % 2 ? 1.0f : 0.0f, none[i % DT_LANES] = -1;
    const dti_wanted w = { .count = DT_LANES, .label = none, .target = target };
    dti_binary_forward(2, z, &w, logp, loss);
    dti_binary_backward(2, z, logp, &w, 1.0f, dz);
    for (int l = 0; l < DT_LANES; ++l) {
        const bool met = (z[l] > 0.0f) == (target[l] > 0.5f);
        assert_true(fabsf(loss[l] - (met ? 0.0f : 1000.0f)) < 1e-6f);
        assert_true(fabsf(dz[l] - (met ? 0.0f : z[l] > 0.0f ? 0.5f : -0.5f)) < 1e-6f);
    }
    make_data(3 * 17 * 13, 5);
    make_targets(0.0f, 1.0f);
    dt_net *net = loss_net(DT_BINARY_CROSS_ENTROPY);
    dt_batch batch = batch_of_step(0, BATCH);
    batch.targets = targets, batch.target_width = 5;
    targets[5 * rows[3] + 2] = 1.5f;
    assert_int_equal(dt_net_load(net, &batch), DT_EDATA);
    assert_non_null(strstr(dt_error(), "wants 1.5 of output 2; binary cross-entropy takes 0 to 1"));
    targets[5 * rows[3] + 2] = NAN;
    assert_int_equal(dt_net_load(net, &batch), DT_EDATA);
    dt_net_free(net);
    net = loss_net(DT_MEAN_SQUARED);
    ok(dt_net_load(net, &(dt_batch){ .pixels = pixels, .labels = labels, .mean = mean, .std = deviation, .index = rows, .count = 3, .global_count = 3 }));
    ok(dt_forward(net));
    assert_int_equal(dt_net_log_probabilities(net, 0, z), DT_EARG);
    assert_non_null(strstr(dt_error(), "mean squared error knows no probabilities"));
    targets[5 * rows[3] + 2] = 1e4f;
    ok(dt_net_load(net, &batch));
    assert_int_equal(dt_forward(net), DT_ENUMERIC);
    dt_net_free(net);
}

/* ---- A hundred steps of each optimizer. */

static dt_net *odd_net(void) {
    dt_net *net = dt_net_new(3, 17, 13);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 7, .kernel = 3, .stride = 2, .padding = 1, .no_bias = true });
    dt_relu(net);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 9, .kernel = 3, .padding = 2 });
    dt_maxpool2d(net, 5);
    dt_linear(net, "fc1", 12);
    dt_relu(net);
    dt_linear(net, "fc2", 5);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = BATCH }));
    return net;
}

static dt_optimizer *sgd(dt_net *net) { return dt_sgd(net, &(dt_sgd_desc){ .lr = 0.02f }); }
static dt_optimizer *momentum(dt_net *net) { return dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-3f }); }
static dt_optimizer *nesterov(dt_net *net) { return dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.9f, .nesterov = true }); }
static dt_optimizer *adam(dt_net *net) { return dt_adam(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS, .weight_decay = 1e-2f }); }
static dt_optimizer *adamw(dt_net *net) { return dt_adamw(net, &(dt_adam_desc){ DT_ADAMW_DEFAULTS }); }
static dt_optimizer *novograd(dt_net *net) { return dt_novograd(net, &(dt_novograd_desc){ .lr = 2e-3f, .beta1 = 0.95f, .eps = 1e-8f, .weight_decay = 1e-2f }); }
static dt_optimizer *averaging(dt_net *net) {
    return dt_novograd(net, &(dt_novograd_desc){ .lr = 5e-3f, .beta1 = 0.9f, .beta2 = 0.7f, .eps = 1e-8f, .averaging = true });
}

/* No decay on biases, half the learning rate for fc1's weights, conv1 frozen. */
static dt_optimizer *with_groups(dt_optimizer *opt) {
    ok(dt_optimizer_group(opt, &(dt_group_desc){ .names = "*.bias" }));
    ok(dt_optimizer_group(opt, &(dt_group_desc){ .names = "fc1.w*", .lr_factor = 0.5f, .weight_decay = 1e-2f }));
    ok(dt_optimizer_group(opt, &(dt_group_desc){ .names = "conv1.*", .frozen = true }));
    return opt;
}
static dt_optimizer *groups(dt_net *net) { return with_groups(dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-2f })); }
static dt_optimizer *groups_of_adamw(dt_net *net) { /* through a clone, which has them too */
    dt_optimizer *opt = with_groups(dt_adamw(net, &(dt_adam_desc){ .lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 1e-2f }));
    dt_optimizer *twin = dt_optimizer_clone(opt, net);
    dt_optimizer_free(opt);
    return twin;
}
static dt_optimizer *clipping(dt_net *net) {
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.05f, .momentum = 0.5f });
    ok(dt_optimizer_clip(opt, 0.15f));
    return opt;
}

static const struct { const char *name; dt_optimizer *(*make)(dt_net *net); } optimizers[] = {
    { "sgd", sgd }, { "momentum", momentum }, { "nesterov", nesterov }, { "adam", adam }, { "adamw", adamw },
    { "novograd", novograd }, { "novograd averaging", averaging },
    { "groups", groups }, { "groups of adamw", groups_of_adamw }, { "clipping", clipping },
};

static void a_hundred_steps(void **state) {
    (void)state;
    make_data(3 * 17 * 13, 5);
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; ++i) {
        dt_net *net = odd_net();
        reference_values(net);
        dt_optimizer *opt = optimizers[i].make(net);
        if (!opt) fail_msg("%s", dt_error());
        for (uint32_t step = 0; step < 100; ++step) {
            const dt_batch batch = batch_of_step(step, BATCH);
            ok(dt_net_load(net, &batch));
            ok(dt_forward(net));
            ok(dt_backward(net));
            dt_optimizer_step(opt);
        }
        conforms(optimizers[i].name, distance(optimizers[i].name, dt_net_values(net), 3, (dt_net_count(net) + 2) / 3), 1e-4);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
}

/* Decay alone: where gradients are zero, AdamW shrinks a weight by lr*wd of itself, whatever its gradients were before. */
static void adamw_decays_by_a_share(void **state) {
    (void)state;
    dt_net *net = dt_net_new(1, 2, 2);
    dt_linear(net, "fc", 3);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 1, .seed = 4 }));
    dt_optimizer *opt = dt_adamw(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS, .weight_decay = 0.5f });
    float before[15];
    memcpy(before, dt_net_values(net), sizeof before);
    dt_optimizer_step(opt);
    for (int i = 0; i < 15; ++i) assert_true(fabsf(dt_net_values(net)[i] - before[i] * (1.0f - 1e-3f * 0.5f)) <= 2e-7f * fabsf(before[i]));
    dt_optimizer_free(opt);
    dt_net_free(net);
}

static void patterns(void **state) {
    (void)state;
    static const struct { const char *pattern, *name; bool fits; } cases[] = {
        { "conv1.weight", "conv1.weight", true }, { "conv1.weight", "conv1.weights", false }, { "conv1", "conv1.weight", false },
        { "*", "a", true }, { "*", "", true }, { "", "a", false }, { "*.bias", "fc.bias", true }, { "*.bias", "fc.bias.x", false },
        { "bn*", "bn2.weight", true }, { "bn*", "conv.bn", false }, { "*b*b", "abbab", true }, { "*ab*", "aab", true }, { "a*", "a", true },
        { "a**c", "abc", true }, { "*abc", "ababc", true }, { "*.*.*", "one.two", false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        if (dti_name_fits(cases[i].pattern, cases[i].name) != cases[i].fits) fail_msg("\"%s\" and \"%s\"", cases[i].pattern, cases[i].name);
}

/* A frozen tensor keeps its bits, its change is zero, and it adds nothing to the norm. */
static void frozen(void **state) {
    (void)state;
    make_data(3 * 17 * 13, 5);
    dt_net *net = odd_net();
    reference_values(net);
    dt_optimizer *opt = clipping(net);
    ok(dt_optimizer_group(opt, &(dt_group_desc){ .names = "conv*", .frozen = true }));
    const dt_param *first = dt_net_find(net, "fc1.weight");
    const size_t count = dt_net_count(net), still = first->offset;
    float *before = malloc(count * sizeof *before), *change = malloc(count * sizeof *change);
    memcpy(before, dt_net_values(net), count * sizeof *before);
    const dt_batch batch = batch_of_step(0, BATCH);
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    ok(dt_backward(net));
    for (size_t i = 0; i < count; ++i) dt_net_gradients(net)[i] = i < still ? 1e6f : 1.0f;
    dt_optimizer_change(opt, change);
    for (size_t i = 0; i < still; ++i) assert_true(fabsf(change[i]) <= 0.0f);
    double square = 0.0;
    for (size_t i = still; i < count; ++i) square += (double)change[i] * (double)change[i];
    assert_true(sqrt(square) > 0.0499 * 0.15 && sqrt(square) < 0.0501 * 0.15); /* lr times what it was clipped to */
    dt_optimizer_step(opt);
    assert_memory_equal(before, dt_net_values(net), still * sizeof *before);
    assert_memory_not_equal(before + still, dt_net_values(net) + still, (count - still) * sizeof *before);
    free(before);
    free(change);
    dt_optimizer_free(opt);
    dt_net_free(net);
}

/* NovoGrad's norms are the same bits for every number of ranks: so are its weights. */
typedef struct ranked { dt_dataset data; dt_optimizer *(*make)(dt_net *net); uint64_t hash; } ranked;

static dt_err train_ranked(dt_comm *comm, void *arg) {
    ranked *r = arg;
    dt_train_result result;
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 4, .kernel = 5, .stride = 2 });
    dt_tanh(net);
    dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = 2 });
    dt_linear(net, "fc1", 20);
    dt_sigmoid(net);
    dt_linear(net, "fc2", 10);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = 80, .seed = 2, .loss = DT_BINARY_CROSS_ENTROPY }));
    dt_optimizer *opt = r->make(net);
    if (!opt) return DT_EARG;
    dt_err error = dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &r->data, .epochs = 2, .batch = 80, .seed = 5 }, &result);
    if (error == DT_OK && dt_comm_rank(comm) == 0) r->hash = dt_net_hash(net);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}

static dt_optimizer *clipped_novograd(dt_net *net) {
    dt_optimizer *opt = averaging(net);
    ok(dt_optimizer_clip(opt, 0.05f));
    return opt;
}

static void same_bits_for_every_number_of_ranks(void **state) {
    (void)state;
    ranked r = { .make = clipped_novograd };
    ok(dt_dataset_synthetic(&r.data, 300, 4));
    uint64_t one = 0;
    for (int ranks = 1; ranks <= 5; ++ranks) {
        r.hash = 0;
        ok(dt_run_ranks(ranks, train_ranked, &r));
        if (ranks == 1) one = r.hash;
        if (r.hash != one || one == 0) fail_msg("%d ranks give %016llx, one rank %016llx", ranks, (unsigned long long)r.hash, (unsigned long long)one);
    }
    dt_dataset_free(&r.data);
}

/* ---- Schedules. */

static const dt_schedule warm_up = { DT_WARMUP_DEFAULTS }, cosine_34 = { .curve = DT_LR_COSINE, .over = 34 },
                         halves = { .curve = DT_LR_STEPS, .every = 4, .factor = 0.5f };

static void schedules(void **state) {
    (void)state;
    static const struct { const char *name; dt_schedule schedule; } cases[] = {
        { "constant", { .curve = DT_LR_CONSTANT } }, { "warm-up", { DT_WARMUP_DEFAULTS } },
        { "linear", { .curve = DT_LR_LINEAR, .from = 1.0f, .to = 0.05f, .over = 33 } },
        { "step", { .curve = DT_LR_STEPS, .every = 7, .factor = 0.3f } }, { "cosine", { .curve = DT_LR_COSINE, .over = 39, .end = 1e-3f } },
        { "warm-up, cosine", { DT_WARMUP_DEFAULTS, .then = &cosine_34 } },
        { "warm-up, step", { .curve = DT_LR_LINEAR, .from = 0.1f, .to = 1.0f, .over = 8, .then = &halves } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        dt_schedule s = cases[i].schedule, rest;
        float by_epoch[40], by_step[40];
        for (uint32_t t = 0; t < 40; ++t) by_epoch[t] = dt_schedule_lr(&s, 0.1f, t, 1000);
        if (s.then) rest = *s.then, rest.by_step = true, s.then = &rest;
        s.by_step = true;
        for (uint32_t t = 0; t < 40; ++t) by_step[t] = dt_schedule_lr(&s, 0.1f, 1000, t);
        assert_memory_equal(by_epoch, by_step, sizeof by_step);
        conforms(cases[i].name, distance(cases[i].name, by_epoch, 1, 40), 1e-6);
    }
    assert_true(dt_schedule_lr(&cosine_34, 0.1f, 35, 0) < 1e-15f && dt_schedule_lr(&cosine_34, 0.1f, UINT32_MAX, 0) < 1e-15f);
    assert_true(fabsf(dt_lr_scaled(0.1f, DT_SCALE_LINEAR, 512, 128) - 0.4f) < 1e-7f);
    assert_true(fabsf(dt_lr_scaled(0.1f, DT_SCALE_SQRT, 512, 128) - 0.2f) < 1e-7f);
    assert_true(fabsf(dt_lr_scaled(0.1f, DT_SCALE_LINEAR, 32, 128) - 0.025f) < 1e-8f);
}

static bool hear_lr(const dt_progress *p, void *user) {
    float *lr = user;
    lr[(uint32_t)p->epoch * p->steps + p->step - 1] = p->lr;
    return true;
}

/* Trainers take their steps at the schedule's rates, and give the optimizer its own back. */
static void trainers_follow(void **state) {
    (void)state;
    dt_dataset data;
    ok(dt_dataset_synthetic(&data, 96, 4));
    dt_comm *comm = dt_comm_alone();
    for (int way = 0; way < 4; ++way) { /* synchronous, PSGD; by epoch, by step */
        static const dt_schedule fall = { .curve = DT_LR_COSINE, .by_step = true, .over = 6, .end = 0.01f };
        const dt_schedule s = way / 2 ? (dt_schedule){ .curve = DT_LR_LINEAR, .by_step = true, .from = 0.25f, .to = 1.0f, .over = 4, .then = &fall } : warm_up;
        float lr[12];
        dt_train_result result;
        dt_net *by_hand = NULL, *net = NULL;
        for (int k = 0; k < 2; ++k) {
            dt_net *made = dt_net_new(1, 28, 28);
            dt_linear(made, "fc", 10);
            ok(dt_net_build(made, &(dt_build_desc){ .batch = 32, .seed = 2 }));
            if (k) net = made;
            else by_hand = made;
        }
        const dt_train_desc desc = { .data = &data, .epochs = 4, .batch = 32, .seed = 6, .schedule = &s, .lr_scaling = DT_SCALE_LINEAR, .lr_batch = 64,
                                     .on_step = hear_lr, .user = lr };
        dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.4f, .momentum = 0.5f }), *hand = dt_sgd(by_hand, &(dt_sgd_desc){ .lr = 0.2f, .momentum = 0.5f });
        ok(way % 2 ? dt_train_psgd(net, opt, comm, &desc, &result) : dt_train_sync(net, opt, comm, &desc, &result));
        assert_true(fabsf(dt_optimizer_lr(opt) - 0.4f) <= 0.0f);
        for (uint32_t t = 0; t < 12; ++t) assert_true(fabsf(lr[t] - dt_schedule_lr(&s, 0.2f, t / 3, t)) <= 0.0f);
        if (way % 2 == 0) { /* the same by hand */
            dt_batches it;
            uint64_t step = 0;
            ok(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = 32, .seed = 6, .shuffle = true }));
            for (uint32_t epoch = 0; epoch < 4; ++epoch) {
                dt_batches_begin(&it, epoch);
                for (dt_batch b; dt_batches_next(&it, &b); ++step) {
                    ok(dt_optimizer_set_lr(hand, dt_schedule_lr(&s, 0.2f, epoch, step)));
                    ok(dt_net_load(by_hand, &b));
                    ok(dt_forward(by_hand));
                    ok(dt_backward(by_hand));
                    dt_optimizer_step(hand);
                }
            }
            dt_batches_free(&it);
            assert_true(dt_net_hash(net) == dt_net_hash(by_hand));
        }
        dt_optimizer_free(opt);
        dt_optimizer_free(hand);
        dt_net_free(net);
        dt_net_free(by_hand);
    }
    dt_comm_free(comm);
    dt_dataset_free(&data);
}

/* ---- Early stop. */

typedef struct stopping { dt_dataset train, held; bool psgd, validate; float target; uint32_t patience; int epochs; uint32_t reached; double accuracy; } stopping;

static dt_err stop_early(dt_comm *comm, void *arg) {
    stopping *s = arg;
    dt_train_result r;
    dt_score score;
    dt_net *net = dt_net_new(1, 28, 28);
    dt_linear(net, "fc", 10);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = 32, .seed = 2 }));
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.02f });
    const dt_train_desc desc = { .data = &s->train, .epochs = 12, .batch = 32, .seed = 6, .validation = s->validate ? &s->held : NULL,
                                 .target = s->target, .patience = s->patience };
    DT_TRY(s->psgd ? dt_train_psgd(net, opt, comm, &desc, &r) : dt_train_sync(net, opt, comm, &desc, &r));
    int64_t mine[3] = { r.epochs, r.reached, r.stopped }, all[3 * 8];
    DT_TRY(dt_allgather(comm, mine, sizeof mine, all));
    for (int i = 0; i < 3 * dt_comm_size(comm); ++i)
        if (all[i] != mine[i % 3]) return dt_fail(DT_EDATA, "ranks ended differently");
    if (r.stopped != (r.epochs < 12 || (s->target > 0.0f && r.reached >= (s->patience ? s->patience : 1)))) return dt_fail(DT_EDATA, "stopped is not so");
    if (s->validate) { /* what stands in the result is the last look, which was at the net that is left */
        DT_TRY(dt_evaluate(net, &s->held, comm, &score));
        if (score.correct != r.validation.correct || score.count != s->held.count || r.validation.count != s->held.count)
            return dt_fail(DT_EDATA, "%lld right of %lld, the result says %lld of %lld", (long long)score.correct, (long long)score.count,
                           (long long)r.validation.correct, (long long)r.validation.count);
    }
    if (dt_comm_rank(comm) == 0) s->epochs = r.epochs, s->reached = r.reached, s->accuracy = dt_score_accuracy(s->validate ? &r.validation : &r.score);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

static void ranks_stop_together(void **state) {
    (void)state;
    stopping s = { .psgd = false };
    ok(dt_dataset_synthetic(&s.train, 400, 4));
    ok(dt_dataset_synthetic(&s.held, 150, 5));
    for (int way = 0; way < 4; ++way) {
        s.psgd = way / 2, s.validate = way % 2;
        int first = 0;
        for (int ranks = 1; ranks <= 3; ++ranks) {
            int epochs[3];
            for (uint32_t patience = 0; patience < 3; ++patience) {
                s.target = 0.4f, s.patience = patience;
                ok(dt_run_ranks(ranks, stop_early, &s));
                if (s.accuracy < 0.4 || s.epochs == 12 || s.reached != (patience ? patience : 1))
                    fail_msg("way %d, %d ranks, patience %u: %d epochs, accuracy %g", way, ranks, patience, s.epochs, s.accuracy);
                epochs[patience] = s.epochs;
            }
            assert_true(epochs[0] == epochs[1] && epochs[2] >= epochs[1] + 1 && epochs[1] > 1);
            if (ranks == 1) first = epochs[2];
            if (!s.psgd && first != epochs[2]) fail_msg("%d ranks stop after %d epochs, one after %d", ranks, epochs[2], first);
        }
        s.target = 0.0f, s.patience = 1; /* no target, no stop; a target out of reach neither */
        ok(dt_run_ranks(2, stop_early, &s));
        assert_int_equal(s.epochs, 12);
        s.target = 1.0f;
        ok(dt_run_ranks(2, stop_early, &s));
        assert_true(s.epochs == 12 && s.reached == 0);
    }
    dt_dataset_free(&s.train);
    dt_dataset_free(&s.held);
}

/* Targets are floats, and n of N right answers are not always a float: the nearest one counts. */
static void targets_are_reached(void **state) {
    (void)state;
    for (int64_t percent = 1; percent <= 100; ++percent) {
        const float target = (float)percent / 100.0f;
        assert_true(dti_reaches(&(dt_score){ .correct = 100 * percent, .count = 10000 }, target));
        assert_false(dti_reaches(&(dt_score){ .correct = 100 * percent - 1, .count = 10000 }, target));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_layers),
        cmocka_unit_test(small_layers_in_branches),
        cmocka_unit_test(elementwise),
        cmocka_unit_test(losses),
        cmocka_unit_test(a_loss_of_ones_own),
        cmocka_unit_test(shares_add_up),
        cmocka_unit_test(losses_far_out),
        cmocka_unit_test(a_hundred_steps),
        cmocka_unit_test(adamw_decays_by_a_share),
        cmocka_unit_test(patterns),
        cmocka_unit_test(frozen),
        cmocka_unit_test(same_bits_for_every_number_of_ranks),
        cmocka_unit_test(schedules),
        cmocka_unit_test(trainers_follow),
        cmocka_unit_test(ranks_stop_together),
        cmocka_unit_test(targets_are_reached),
    };
    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
