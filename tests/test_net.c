/* Random numbers [S2], exact sums [S3], layers [S6], nets [S8], optimizers [S9], saved parameters and CSV [E6].

   Gradients are held against finite differences layer by layer, and for two whole nets against PyTorch
   (tests/data/reference.bin, made by tests/make_reference.py). */
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

/* Every call for memory is counted: a training step must not make one. */
static int memory_calls, fail_at;
static long live_blocks;
static void *counted_malloc(size_t bytes) {
    if (__sync_add_and_fetch(&memory_calls, 1) == fail_at) return NULL;
    __sync_add_and_fetch(&live_blocks, 1);
    return malloc(bytes);
}
static void counted_free(void *p) {
    __sync_add_and_fetch(&memory_calls, 1);
    __sync_sub_and_fetch(&live_blocks, 1);
    free(p);
}
#define DT_MALLOC(bytes) counted_malloc(bytes)
#define DT_FREE(pointer) counted_free(pointer)
#define DTRAIN_WITH_THREADS
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

#ifndef REFERENCE
#define REFERENCE "tests/data/reference.bin"
#endif

#include "tests/reference.h"

static void expect_error(dt_err got, dt_err wanted, const char *part) {
    if (got != wanted || !strstr(dt_error(), part) || strchr(dt_error(), '\n'))
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", dt_err_name(wanted), part, dt_err_name(got), dt_error());
}

static dt_net *s0_net_as(float dropout, const dt_build_desc *desc) {
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 10, .kernel = 5 });
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 20, .kernel = 5 });
    dt_maxpool2d(net, 2);
    dt_dropout2d(net, dropout);
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_linear(net, "fc1", 50);
    dt_relu(net);
    dt_linear(net, "fc2", 10);
    ok(dt_net_build(net, desc));
    return net;
}

static dt_net *s0_net(float dropout, int batch, bool float_sums) {
    return s0_net_as(dropout, &(dt_build_desc){ .batch = batch, .seed = 3, .float_sums = float_sums });
}

static dt_net *odd_net(void) {
    dt_net *net = dt_net_new(3, 17, 13);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 7, .kernel = 3, .stride = 2, .padding = 1, .no_bias = true });
    dt_relu(net);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 9, .kernel = 3, .padding = 2 });
    dt_maxpool2d(net, 5);
    dt_linear(net, "fc1", 12);
    dt_relu(net);
    dt_dropout(net, 0.0f);
    dt_linear(net, "fc2", 5);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = BATCH }));
    return net;
}

/* ---- PyTorch's numbers, relative to the largest of the record, element by element. */
static double farthest; /* of the differences since the last line about them */

static const double gradient_bound = 3e-6; /* how far losses and gradients may be */

static void conformance(const char *name) {
    conformance_row(name, farthest, gradient_bound);
    farthest = 0.0;
}

static void compare_within(double limit, const char *name, const float *got, size_t stride, size_t n) {
    size_t count;
    float *want = reference(REFERENCE, name, &count), largest = 0.0f;
    if (!want || count != n) fail_msg("%s: %zu numbers, the reference has %zu", name, n, want ? count : 0);
    for (size_t i = 0; i < n; ++i) largest = fabsf(want[i]) > largest ? fabsf(want[i]) : largest;
    double worst = 0.0, square = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; ++i) {
        double d = fabs((double)got[i * stride] - (double)want[i]);
        worst = d > worst || isnan(d) ? d : worst;
        square += d * d;
        norm += (double)want[i] * (double)want[i];
        if (!(d <= limit * (double)largest)) fail_msg("%s [%zu]: %.9g, PyTorch %.9g (largest %g)", name, i, (double)got[i * stride], (double)want[i], (double)largest);
    }
    if (!(sqrt(square / norm) <= limit)) fail_msg("%s: relative distance %g", name, sqrt(square / norm));
    farthest = fmax(farthest, worst / (double)largest);
    free(want);
}

static void compare(const char *name, const float *got, size_t stride, size_t n) { compare_within(gradient_bound, name, got, stride, n); }

static void compare_gradients(dt_net *net, const char *name) {
    char record[32];
    for (uint32_t step = 0; step < 1; ++step) {
        dt_batch batch = batch_of_step(step, BATCH);
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        ok(dt_backward(net));
        dt_score score = dt_net_score(net);
        float loss = (float)dt_score_loss(&score);
        assert_int_equal(score.count, BATCH);
        snprintf(record, sizeof record, "%s loss", name);
        compare(record, &loss, 1, 1);
        for (int i = 0; i < dt_net_param_count(net); ++i) {
            const dt_param *p = dt_net_param(net, i);
            snprintf(record, sizeof record, "%s grad %d", name, i);
            compare(record, p->grad.data, 1, dt_tensor_count(&p->grad));
        }
    }
}

static void pytorch_gradients_s0(void **state) {
    (void)state;
    make_data(28 * 28, 10);
    for (int way = 0; way < 4; ++way) {
        dt_net *net = s0_net_as(0.0f, &(dt_build_desc){ .batch = BATCH, .float_sums = way % 2, .direct = way / 2 });
        const dti_layer *conv2 = &net->list.layer[3];
        assert_true(conv2->class == &dti_conv2d_class && (((const dti_conv2d *)conv2->own)->form != NULL) == !net->desc.direct);
        reference_values(net);
        compare_gradients(net, "s0");
        if (way % 2) conformance(net->desc.direct ? "the MNIST net" : "the MNIST net, Winograd");
        dt_net_free(net);
    }
}

static void pytorch_gradients_odd(void **state) {
    (void)state;
    make_data(3 * 17 * 13, 5);
    dt_net *net = odd_net();
    reference_values(net);
    compare_gradients(net, "odd");
    conformance("strides, padding, pools");
    dt_net_free(net);
}

/* Adam steps by g / sqrt(v): as far for a small gradient, with the rounding of its larger neighbours in it, as for a large one.
   So Winograd's algorithm, which rounds more than the definition, is seen there. */
static void ten_steps_as(bool direct, const char *name, const dt_sgd_desc *sgd, const dt_adam_desc *adam) {
    char record[32];
    float losses[10];
    dt_net *net = s0_net_as(0.0f, &(dt_build_desc){ .batch = BATCH, .direct = direct });
    reference_values(net);
    dt_optimizer *opt = sgd ? dt_sgd(net, sgd) : dt_adam(net, adam);
    if (!opt) fail_msg("%s", dt_error());
    for (uint32_t step = 0; step < 10; ++step) {
        dt_batch batch = batch_of_step(step, BATCH);
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        ok(dt_backward(net));
        dt_optimizer_step(opt);
        dt_score score = dt_net_score(net);
        losses[step] = (float)dt_score_loss(&score);
    }
    snprintf(record, sizeof record, "%s losses", name);
    compare(record, losses, 1, 10);
    snprintf(record, sizeof record, "%s values", name);
    compare_within(adam && !direct ? 2e-5 : 3e-6, record, dt_net_values(net), 7, (dt_net_count(net) + 6) / 7);
    dt_optimizer_free(opt);
    dt_net_free(net);
}

static void ten_steps(const char *name, const dt_sgd_desc *sgd, const dt_adam_desc *adam) {
    for (int direct = 0; direct <= 1; ++direct) ten_steps_as(direct, name, sgd, adam);
}

static void pytorch_sgd(void **state) {
    (void)state;
    make_data(28 * 28, 10);
    ten_steps("sgd", &(dt_sgd_desc){ .lr = 0.05f }, NULL);
    ten_steps("momentum", &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f }, NULL);
    ten_steps("nesterov", &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-2f, .nesterov = true }, NULL);
    ten_steps("dampening", &(dt_sgd_desc){ .lr = 0.02f, .momentum = 0.8f, .dampening = 0.3f, .weight_decay = 1e-3f }, NULL);
}

static void pytorch_adam(void **state) {
    (void)state;
    make_data(28 * 28, 10);
    ten_steps("adam", NULL, &(dt_adam_desc){ DT_ADAM_DEFAULTS });
    ten_steps("adam decay", NULL, &(dt_adam_desc){ .lr = 2e-3f, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 1e-2f });
}

/* ---- Finite differences.
   (loss(w+h) - loss(w-h)) / 2h for every parameter. A maximum or a ReLU that switches within h bends the difference, so
   h is halved until they agree; for at most one parameter in fifty they need not, and by no more than a fifth. */

static double mean_loss(dt_net *net, const dt_batch *batch) {
    float logp[64];
    double sum = 0.0;
    ok(dt_net_load(net, batch));
    ok(dt_forward(net));
    for (uint32_t i = 0; i < batch->count; ++i) {
        dt_net_log_probabilities(net, (int)i, logp);
        sum -= (double)logp[batch->labels[batch->index[i]]];
    }
    return sum / (double)batch->count;
}

static double difference(dt_net *net, const dt_batch *batch, float *w, float h) {
    float old = *w, up = old + h, down = old - h;
    *w = up;
    double high = mean_loss(net, batch);
    *w = down;
    double low = mean_loss(net, batch);
    *w = old;
    return (high - low) / ((double)up - (double)down);
}

static void check_differences(dt_net *net, const char *what, int channels, int side, int classes) {
    make_data((size_t)(channels * side * side), classes);
    dt_batch batch = batch_of_step(3, 21);
    batch.epoch = 5;
    const dt_net *layers = net;
    if (dt_net_build(net, &(dt_build_desc){ .batch = 21, .seed = 19 }) != DT_OK) fail_msg("%s: %s", what, dt_error());
    assert_int_equal(dt_net_classes(layers), classes);
    mean_loss(net, &batch);
    ok(dt_backward(net));
    const size_t count = dt_net_count(net);
    float *grad = malloc(count * sizeof *grad);
    memcpy(grad, dt_net_gradients(net), count * sizeof *grad);
    size_t left_out = 0, tried = 0;
    for (int i = 0; i < dt_net_param_count(net); ++i) {
        const dt_param *p = dt_net_param(net, i);
        float largest = 0.0f;
        for (size_t k = 0; k < dt_tensor_count(&p->value); ++k) largest = fmaxf(largest, fabsf(grad[p->offset + k]));
        if (!(largest > 1e-4f)) fail_msg("%s: gradient of %s is all but zero: nothing is tested", what, p->name);
        for (size_t k = 0; k < dt_tensor_count(&p->value); ++k, ++tried) {
            const double tolerance = 0.01 * (double)largest + 2e-4, got = (double)grad[p->offset + k];
            double off = INFINITY;
            for (float h = 1e-3f; h > 5e-5f && off > tolerance; h *= 0.5f)
                off = fmin(off, fabs(difference(net, &batch, &p->value.data[k], h) - got));
            if (off > 0.2 * (double)largest + tolerance)
                fail_msg("%s: gradient of %s[%zu] is %g, differences are %g away from it", what, p->name, k, got, off);
            left_out += off > tolerance; /* a switch very near */
        }
    }
    if (left_out * 50 > tried) fail_msg("%s: %zu of %zu differences are of no use", what, left_out, tried);
    free(grad);
    dt_net_free(net);
}

static void differences_linear(void **state) {
    (void)state;
    dt_net *net = dt_net_new(2, 4, 4);
    dt_linear(net, "only", 7);
    check_differences(net, "linear", 2, 4, 7);
    net = dt_net_new(1, 5, 5);
    dt_linear(net, "a", 9);
    dt_linear(net, "b", 3);
    dt_linear(net, "c", 11);
    check_differences(net, "three linear", 1, 5, 11);
}

static void differences_conv(void **state) {
    (void)state;
    static const dt_conv2d_desc first[] = {
        { .out = 3, .kernel = 3 }, { .out = 5, .kernel = 3, .padding = 1 }, { .out = 2, .kernel = 4, .stride = 2, .padding = 1 },
        { .out = 3, .kernel = 2, .stride = 3 }, { .out = 9, .kernel = 1 }, { .out = 3, .kernel = 3, .stride = 2, .padding = 2, .no_bias = true },
    };
    static const dt_conv2d_desc second[] = {
        { .out = 4, .kernel = 2, .padding = 1 }, { .out = 3, .kernel = 3, .stride = 2, .no_bias = true }, { .out = 2, .kernel = 2 },
        { .out = 5, .kernel = 2, .stride = 2, .padding = 1 }, { .out = 3, .kernel = 3, .padding = 2 }, { .out = 1, .kernel = 2, .stride = 3, .padding = 1 },
    };
    for (size_t i = 0; i < sizeof first / sizeof *first; ++i) {
        char what[64];
        snprintf(what, sizeof what, "convolutions %zu", i);
        dt_net *net = dt_net_new(2, 7, 7);
        dt_conv2d(net, "a", &first[i]);
        dt_conv2d(net, "b", &second[i]);
        dt_linear(net, "c", 4);
        check_differences(net, what, 2, 7, 4);
    }
}

static void differences_pool_relu(void **state) {
    (void)state;
    for (int kernel = 1; kernel <= 4; ++kernel) { /* 2 is done by the convolution */
        char what[64];
        snprintf(what, sizeof what, "max-pool %d", kernel);
        dt_net *net = dt_net_new(1, 9, 9);
        dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 4, .kernel = 2 });
        dt_relu(net);
        dt_conv2d(net, "b", &(dt_conv2d_desc){ .out = 3, .kernel = 3, .padding = 1 });
        dt_maxpool2d(net, kernel);
        dt_relu(net);
        dt_linear(net, "c", 3);
        check_differences(net, what, 1, 9, 3);
    }
    dt_net *net = dt_net_new(2, 9, 9);
    dt_maxpool2d(net, 2);
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 3, .kernel = 2, .padding = 1 });
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_linear(net, "b", 8);
    dt_relu(net);
    dt_linear(net, "c", 3);
    check_differences(net, "pool first", 2, 9, 3);
}

/* The masks do not change with the parameters, so differences hold with dropout on. */
static void differences_dropout(void **state) {
    (void)state;
    dt_net *net = dt_net_new(1, 6, 6);
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 6, .kernel = 3 });
    dt_dropout2d(net, 0.4f);
    dt_conv2d(net, "b", &(dt_conv2d_desc){ .out = 4, .kernel = 2 });
    dt_dropout(net, 0.3f);
    dt_relu(net);
    dt_linear(net, "c", 7);
    dt_dropout(net, 0.5f);
    dt_linear(net, "d", 3);
    check_differences(net, "dropout", 1, 6, 3);
}

/* ---- Dropout's masks. */

/* Logits of a net of one linear layer are W x + b; dropout behind it shows the mask itself. */
/* ---- Branches. */

static void refused(dt_net *net, dt_err code, const char *part) {
    expect_error(dt_net_build(net, &(dt_build_desc){ .batch = 4 }), code, part);
    dt_net_free(net);
}

/* Projection, identity, a tensor with three readers, sums before and after linear layers: whatever the planner can meet. */
static dt_net *residual_net(void) {
    dt_net *net = dt_net_new(2, 6, 6);
    dt_conv2d(net, "stem", &(dt_conv2d_desc){ .out = 4, .kernel = 3, .padding = 1 });
    dt_relu(net);
    dt_node skip = dt_here(net);
    dt_conv2d(net, "block1.layer1", &(dt_conv2d_desc){ .out = 4, .kernel = 3, .padding = 1 });
    dt_relu(net);
    dt_conv2d(net, "block1.layer2", &(dt_conv2d_desc){ .out = 4, .kernel = 3, .padding = 1 });
    dt_add(net, skip);
    dt_relu(net);
    dt_node wide = dt_here(net);
    dt_conv2d(net, "block2.layer1", &(dt_conv2d_desc){ .out = 3, .kernel = 3, .padding = 1, .stride = 2 });
    dt_node main_path = dt_here(net);
    dt_at(net, wide);
    dt_conv2d(net, "block2.projection", &(dt_conv2d_desc){ .out = 3, .kernel = 1, .stride = 2 });
    dt_add(net, main_path);
    dt_linear(net, "fc1", 6);
    dt_node first = dt_here(net);
    dt_relu(net);
    dt_linear(net, "fc2", 6);
    dt_add(net, first);
    dt_add(net, first);
    dt_relu(net);
    dt_linear(net, "fc3", 5);
    return net;
}

static void differences_branches(void **state) {
    (void)state;
    check_differences(residual_net(), "residual net", 2, 6, 5);
    dt_net *net = dt_net_new(1, 4, 4);
    dt_linear(net, "a", 6);
    dt_add(net, dt_here(net)); /* y = 2x: one reader twice */
    dt_linear(net, "b", 3);
    check_differences(net, "a tensor added to itself", 1, 4, 3);
    net = dt_net_new(1, 8, 8); /* a pool and a ReLU whose input has another reader must not be done by the convolution */
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 3, .kernel = 3 });
    dt_node map = dt_here(net);
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_node small = dt_here(net);
    dt_at(net, map);
    dt_conv2d(net, "b", &(dt_conv2d_desc){ .out = 3, .kernel = 2, .stride = 2 });
    dt_add(net, small);
    dt_linear(net, "c", 4);
    check_differences(net, "a pool beside a convolution", 1, 8, 4);
    net = dt_net_new(2, 5, 5); /* the image itself is added to a layer's output */
    dt_node image = dt_here(net);
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 2, .kernel = 3, .padding = 1 });
    dt_add(net, image);
    dt_relu(net);
    dt_linear(net, "b", 4);
    check_differences(net, "the image has two readers", 2, 5, 4);
}

static void relu_all(float *y, const float *x, int n) {
    for (int i = 0; i < n; ++i) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

/* The residual net's logits by the naive kernels [S5.1] and plain loops. */
static void residual_logits(dt_net *net, float *x, float *z) {
    float a[144], b[144], c[144], d[27], e[27], f[6], g[6];
#define W(name) dt_net_find(net, name ".weight")->value.data, dt_net_find(net, name ".bias")->value.data
    ok(dt_conv2d_naive(b, x, W("stem"), 1, 2, 6, 6, 4, 3, 1, 1));
    relu_all(a, b, 144);
    ok(dt_conv2d_naive(b, a, W("block1.layer1"), 1, 4, 6, 6, 4, 3, 1, 1));
    relu_all(b, b, 144);
    ok(dt_conv2d_naive(c, b, W("block1.layer2"), 1, 4, 6, 6, 4, 3, 1, 1));
    for (int i = 0; i < 144; ++i) c[i] += a[i];
    relu_all(c, c, 144);
    ok(dt_conv2d_naive(d, c, W("block2.layer1"), 1, 4, 6, 6, 3, 3, 2, 1));
    ok(dt_conv2d_naive(e, c, W("block2.projection"), 1, 4, 6, 6, 3, 1, 2, 0));
    for (int i = 0; i < 27; ++i) d[i] += e[i];
    ok(dt_linear_naive(f, d, W("fc1"), 1, 27, 6));
    relu_all(a, f, 6);
    ok(dt_linear_naive(g, a, W("fc2"), 1, 6, 6));
    for (int i = 0; i < 6; ++i) g[i] += 2.0f * f[i];
    relu_all(g, g, 6);
    ok(dt_linear_naive(z, g, W("fc3"), 1, 6, 5));
#undef W
}

static void branches_as_the_naive_kernels(void **state) {
    (void)state;
    make_data(72, 5);
    dt_net *net = residual_net();
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 48, .seed = 11 }));
    dt_net *twin = dt_net_clone(net);
    assert_non_null(twin);
    for (uint32_t count = 48; count > 1; count = count / 2 + 1) { /* buffers from a larger batch must not shine through */
        dt_batch batch = batch_of_step(count, count);
        dt_net *one = count % 2 ? twin : net;
        ok(dt_net_load(one, &batch));
        ok(dt_forward(one));
        for (uint32_t i = 0; i < count; ++i) {
            float x[72], want[5], got[5];
            for (int k = 0; k < 72; ++k) x[k] = ((float)pixels[72 * rows[i] + (uint32_t)k] / 255.0f - 0.45f) / 0.3f;
            residual_logits(net, x, want);
            dt_net_logits(one, (int)i, got);
            for (int k = 0; k < 5; ++k)
                if (!(fabsf(got[k] - want[k]) < 2e-5f)) fail_msg("image %u of %u: logit %d is %g, naive %g", i, count, k, (double)got[k], (double)want[k]);
        }
        if (count == 2) break;
    }
    dt_net_free(twin);
    dt_net_free(net);
}

static void branch_errors(void **state) {
    (void)state;
    dt_net *net = dt_net_new(1, 6, 6);
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 2, .kernel = 3 });
    dt_node here = dt_here(net);
    dt_conv2d(net, "b", &(dt_conv2d_desc){ .out = 2, .kernel = 3 });
    dt_add(net, here);
    refused(net, DT_ESHAPE, "add: what stands here is 2 x 2 x 2, the other tensor 2 x 4 x 4");
    net = dt_net_new(1, 6, 6);
    dt_at(net, (dt_node){ 1 });
    refused(net, DT_EARG, "there is no tensor 1");
    net = dt_net_new(1, 6, 6);
    dt_add(net, (dt_node){ -1 });
    refused(net, DT_EARG, "there is no tensor -1");
    net = dt_net_new(1, 6, 6);
    here = dt_here(net);
    dt_linear(net, "a", 4);
    dt_at(net, here);
    dt_linear(net, "b", 4);
    refused(net, DT_EARG, "nothing reads what a (layer 0) makes");
}

static dt_net *mask_net(float p, bool planes, int out) {
    dt_net *net = dt_net_new(1, 4, 4);
    if (planes) {
        dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = out, .kernel = 4 });
        dt_dropout2d(net, p);
    } else {
        dt_linear(net, "a", out);
        dt_dropout(net, p);
    }
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 64, .seed = 77 }));
    return net;
}

static void dropout_masks(void **state) {
    (void)state;
    enum { OUT = 13 };
    const float probabilities[] = { 0.0f, 0.25f, 0.5f, 0.9f };
    make_data(16, 10);
    for (int planes = 0; planes <= 1; ++planes)
        for (size_t k = 0; k < 4; ++k) {
            const float p = probabilities[k];
            float plain[48][OUT], dropped[OUT], other[OUT];
            int zeros = 0;
            dt_net *net = mask_net(p, planes, OUT);
            dt_batch batch = batch_of_step(0, 48);
            batch.epoch = 4;
            ok(dt_net_load(net, &batch));
            dt_net_training(net, false);
            ok(dt_forward(net));
            for (int i = 0; i < 48; ++i) dt_net_logits(net, i, plain[i]);
            dt_net_training(net, true);
            ok(dt_forward(net));
            for (int i = 0; i < 48; ++i) {
                dt_net_logits(net, i, dropped);
                for (int o = 0; o < OUT; ++o) { /* [S6.5]: a function of (seed, layer 1, epoch, sample, number of the value) */
                    dt_philox_block r = dt_philox(77, DT_RNG_DROPOUT | 1u << 8, 4, rows[i], (uint32_t)o / 4);
                    float mask = dt_uniform(r.v[o % 4]) < p ? 0.0f : 1.0f / (1.0f - p), want = plain[i][o] * mask;
                    zeros += mask < 0.5f;
                    if (fabsf(dropped[o] - want) > 0.0f) fail_msg("p %g, sample %d, value %d: %g, wanted %g", (double)p, i, o, (double)dropped[o], (double)want);
                }
            }
            const double share = zeros / (48.0 * OUT), spread = 4.0 * sqrt((double)p * (1.0 - (double)p) / (48.0 * OUT));
            if (fabs(share - (double)p) > spread) fail_msg("p %g: %g of the values became zero", (double)p, share);
            /* the same sample in another lane, beside others, in another group, of another rank */
            dt_net_logits(net, 40, dropped);
            uint32_t moved[20] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, rows[40], 19 };
            batch = (dt_batch){ .pixels = pixels, .labels = labels, .mean = mean, .std = deviation, .index = moved, .count = 20, .global_count = 640,
                                .first = 33, .epoch = 4 };
            ok(dt_net_load(net, &batch));
            ok(dt_forward(net));
            dt_net_logits(net, 18, other);
            assert_memory_equal(dropped, other, sizeof other);
            if (p > 0.3f) { /* another epoch, another mask */
                batch.epoch = 5;
                ok(dt_net_load(net, &batch));
                ok(dt_forward(net));
                dt_net_logits(net, 18, other);
                assert_memory_not_equal(dropped, other, sizeof other);
            }
            dt_net_free(net);
        }
}

static void dropout2d_drops_planes(void **state) {
    (void)state;
    make_data(36, 4);
    dt_net *net = dt_net_new(1, 6, 6);
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 8, .kernel = 3 });
    dt_dropout2d(net, 0.5f);
    dt_linear(net, "b", 4);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 32, .seed = 5 }));
    dt_batch batch = batch_of_step(0, 32);
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    const dti_op *drop = &net->op[1];
    int dropped = 0;
    for (int g = 0; g < 2; ++g)
        for (int c = 0; c < 8; ++c)
            for (int lane = 0; lane < DT_LANES; ++lane) {
                int zeros = 0;
                for (int i = 0; i < 16; ++i) zeros += fabsf(dti_y(drop, g)[(c * 16 + i) * DT_LANES + lane]) <= 0.0f;
                assert_true(zeros == 0 || zeros == 16);
                dropped += zeros == 16;
            }
    assert_in_range(dropped, 90, 166); /* of 256, 4.75 standard deviations */
    dt_net_free(net);
}

/* ---- Loss, log-softmax, score. */

static void log_softmax(void **state) {
    (void)state;
    float z[10 * DT_LANES], logp[10 * DT_LANES];
    const float scale[] = { 0.001f, 1.0f, 10.0f, 80.0f, 1000.0f };
    for (size_t s = 0; s < 5; ++s) {
        for (uint32_t i = 0; i < 10 * DT_LANES; ++i) z[i] = scale[s] * (2.0f * dt_uniform(dt_philox(1, DT_RNG_TEST, 0, (uint32_t)s, i).v[0]) - 1.0f);
        dti_log_softmax(10, z, logp);
        for (int l = 0; l < DT_LANES; ++l) {
            double max = -INFINITY, sum = 0.0;
            for (int k = 0; k < 10; ++k) max = fmax(max, (double)z[k * DT_LANES + l]);
            for (int k = 0; k < 10; ++k) sum += exp((double)z[k * DT_LANES + l] - max);
            for (int k = 0; k < 10; ++k) {
                double want = (double)z[k * DT_LANES + l] - max - log(sum), got = (double)logp[k * DT_LANES + l];
                if (!(fabs(got - want) <= 3e-7 * (fabs(want) + (double)scale[s] + 1.0))) fail_msg("log-softmax of %g: %.9g, wanted %.9g", (double)z[k * DT_LANES + l], got, want);
            }
        }
    }
    for (float x = -86.0f; x < 87.0f; x += 0.0371f) {
        double want = exp((double)x), got = (double)dti_exp(x);
        if (!(fabs(got - want) <= 2.5e-7 * want)) fail_msg("exp(%g) = %.9g, wanted %.9g", (double)x, got, want);
    }
    assert_true(isnan(dti_exp(NAN)));
    assert_true(dti_exp(0.0f) >= 1.0f && dti_exp(0.0f) <= 1.0f);
}

/* Score against the logits, for every size of the last lane group. */
static void score_counts_each_sample(void **state) {
    (void)state;
    make_data(28 * 28, 10);
    dt_net *net = s0_net(0.0f, 48, false);
    for (uint32_t count = 0; count <= 48; count += count < 20 ? 1 : 7) {
        dt_batch batch = batch_of_step(1, count);
        batch.global_count = 48;
        int64_t correct = 0;
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        dt_score score = dt_net_score(net);
        double loss = count ? mean_loss(net, &batch) : 0.0;
        for (uint32_t i = 0; i < count; ++i) {
            float z[10];
            int best = 0;
            dt_net_logits(net, (int)i, z);
            for (int k = 1; k < 10; ++k) best = z[k] > z[best] ? k : best;
            correct += best == labels[rows[i]];
        }
        assert_int_equal(score.count, count);
        assert_int_equal(score.correct, correct);
        if (fabs(dt_score_loss(&score) - loss) > 1e-6) fail_msg("%u samples: mean loss %.9g, wanted %.9g", (unsigned)count, dt_score_loss(&score), loss);
        ok(dt_backward(net));
        if (count == 0)
            for (size_t i = 0; i < dt_net_count(net); ++i) assert_true(fabsf(dt_net_gradients(net)[i]) <= 0.0f);
    }
    dt_net_free(net);
}

/* ---- Exactness: a global batch gives the same bits however it is dealt out, and on every machine that fuses multiply and add.
   A change of these numbers is a change of what users' runs give: it wants a reason. */
#define STRIDED         0x3c80b6ee0f3a3c75u
#define SQUARE_WINOGRAD 0x263ad7466f3eea62u
#define SQUARE_DIRECT   0x8c7e93e457514fecu
/* the same with one unit of 2^-40 for all sums of gradients */
#define STRIDED_ONE_UNIT         0xa561171d893d0f15u
#define SQUARE_WINOGRAD_ONE_UNIT 0xa2ebf2cf49f28e83u
#define SQUARE_DIRECT_ONE_UNIT   0x36377b51f96f9010u

typedef struct shared { dt_dataset data; uint64_t hash; uint32_t batch; int ranks; bool failed, square, direct; float unit; } shared;

/* Convolutions of stride 1: by Winograd's algorithm where they may, each way that a net drives it: in lines (conv1), in squares, whose
   weights' gradient is folded (conv2, conv3) or has lanes and channels exchanged (conv4), and (conv4, whose map is a single tile) over
   all lane groups at once. */
static dt_net *square_net(void) {
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 6, .kernel = 5, .padding = 2 });
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 16, .kernel = 5 });
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_conv2d(net, "conv3", &(dt_conv2d_desc){ .out = 17, .kernel = 3, .padding = 1, .no_bias = true });
    dt_relu(net);
    dt_conv2d(net, "conv4", &(dt_conv2d_desc){ .out = 32, .kernel = 3 });
    dt_relu(net);
    dt_linear(net, "fc", 10);
    return net;
}

static dt_err train_some(dt_comm *comm, void *arg) {
    shared *s = arg;
    dt_batches it;
    dt_net *net = s->square ? square_net() : dt_net_new(1, 28, 28);
    if (!s->square) {
        dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 5, .kernel = 5, .stride = 2 });
        dt_maxpool2d(net, 2);
        dt_dropout2d(net, 0.3f);
        dt_relu(net);
        dt_linear(net, "fc1", 30);
        dt_relu(net);
        dt_dropout(net, 0.3f);
        dt_linear(net, "fc2", 10);
    }
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = (int)s->batch, .seed = 2, .direct = s->direct, .unit = s->unit }));
    int wino = 0; /* is it what is to be tested? */
    for (int i = 0; i < net->ops; ++i)
        if (net->op[i].layer->class == &dti_conv2d_class) wino += ((const dti_conv2d *)net->op[i].layer->own)->form != NULL;
    if (s->square && wino != (s->direct ? 0 : 4)) return dt_fail(DT_EARG, "%d layers go by Winograd", wino);
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.1f, .momentum = 0.9f });
    if (!opt) return DT_EARG;
    DT_TRY(dt_batches_init(&it, &s->data, &(dt_batches_desc){ .global_batch = s->batch, .rank = dt_comm_rank(comm), .size = dt_comm_size(comm), .seed = 8, .shuffle = true }));
    uint64_t gradients = 0;
    for (uint32_t epoch = 0; epoch < 2; ++epoch) {
        dt_batches_begin(&it, epoch);
        for (dt_batch b; dt_batches_next(&it, &b);) {
            DT_TRY(dt_net_load(net, &b));
            DT_TRY(dt_forward(net));
            DT_TRY(dt_backward(net));
            DT_TRY(dt_average_gradients(net, comm));
            gradients = dti_hash_numbers(dt_net_gradients(net), dt_net_count(net) * sizeof(float), sizeof(float), gradients);
            dt_score score = dt_net_score(net);
            gradients = dti_hash_numbers(&score, sizeof score, sizeof score.count, gradients);
            dt_optimizer_step(opt);
        }
    }
    uint64_t hash = dti_hash_numbers(&gradients, sizeof gradients, sizeof gradients, dt_net_hash(net)), all[16];
    DT_TRY(dt_allgather(comm, &hash, sizeof hash, all));
    for (int r = 0; r < dt_comm_size(comm); ++r)
        if (all[r] != hash) return dt_fail(DT_EDATA, "ranks %d and %d differ", dt_comm_rank(comm), r);
    if (dt_comm_rank(comm) == 0) s->hash = hash;
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

/* On one rank; tests/run.sh compares these hashes between compilers and instruction sets. */
static void pinned_bits(void **state) {
    (void)state;
    shared s = { .batch = 128 };
    ok(dt_dataset_synthetic(&s.data, 300, 4));
    for (int net = 0; net <= 2; ++net) { /* the second by Winograd's algorithm, the third the same without it */
        if (net) s = (shared){ .data = s.data, .batch = 75, .square = true, .direct = net == 2 };
        ok(dt_run_ranks(1, train_some, &s));
        printf("hash %016llx\n", (unsigned long long)s.hash);
#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMAF)
        assert_true(s.hash == (net == 0 ? STRIDED : net == 1 ? SQUARE_WINOGRAD : SQUARE_DIRECT));
#endif
    }
    dt_dataset_free(&s.data);
}

static void same_bits_for_every_number_of_ranks(void **state) {
    (void)state;
    shared s = { .batch = 128 };
    ok(dt_dataset_synthetic(&s.data, 300, 4)); /* 128 + 128 + 44: some ranks get nothing in the last step */
    ok(dt_run_ranks(1, train_some, &s));
    const uint64_t one = s.hash;
    for (int ranks = 2; ranks <= 8; ++ranks) {
        s.hash = 0;
        ok(dt_run_ranks(ranks, train_some, &s));
        if (s.hash != one) fail_msg("%d ranks give %016llx, one rank %016llx", ranks, (unsigned long long)s.hash, (unsigned long long)one);
    }
    s.batch = 37; /* no multiple of 16 */
    ok(dt_run_ranks(1, train_some, &s));
    const uint64_t odd = s.hash;
    assert_true(odd != one);
    for (int ranks = 2; ranks <= 5; ++ranks) {
        ok(dt_run_ranks(ranks, train_some, &s));
        assert_true(s.hash == odd);
    }
    for (int direct = 0; direct <= 1; ++direct) { /* nets with Winograd's algorithm, and the same without it */
        s = (shared){ .data = s.data, .batch = 75, .square = true, .direct = direct };
        ok(dt_run_ranks(1, train_some, &s));
        const uint64_t alone = s.hash;
        for (int ranks = 2; ranks <= 5; ++ranks) {
            s.hash = 0;
            ok(dt_run_ranks(ranks, train_some, &s));
            if (s.hash != alone) fail_msg("%s, %d ranks give %016llx, one rank %016llx", direct ? "direct" : "Winograd", ranks, (unsigned long long)s.hash, (unsigned long long)alone);
        }
    }
    s = (shared){ .data = s.data, .batch = 128, .unit = DT_FIXED_UNIT };
    ok(dt_run_ranks(1, train_some, &s));
    const uint64_t one_unit = s.hash;
    ok(dt_run_ranks(3, train_some, &s));
    assert_true(s.hash == one_unit);
#if defined(__FMA__) || defined(__aarch64__)
    assert_true(one == STRIDED && one_unit == STRIDED_ONE_UNIT);
    for (int direct = 0; direct <= 1; ++direct) {
        s = (shared){ .data = s.data, .batch = 75, .square = true, .direct = direct, .unit = DT_FIXED_UNIT };
        ok(dt_run_ranks(1, train_some, &s));
        assert_true(s.hash == (direct ? SQUARE_DIRECT_ONE_UNIT : SQUARE_WINOGRAD_ONE_UNIT));
    }
#endif
    dt_dataset_free(&s.data);
}

/* ---- No memory is asked for during training; all of it is given back; none is left when it runs out. */

static void no_allocation_in_steps(void **state) {
    (void)state;
    dt_dataset data;
    dt_batches it;
    const long before = live_blocks;
    ok(dt_dataset_synthetic(&data, 200, 1));
    dt_net *net = s0_net(0.5f, 48, false);
    dt_optimizer *opts[2] = { dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f }), dt_adam(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS }) };
    ok(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = 48, .shuffle = true }));
    const int calls = memory_calls;
    int steps = 0;
    for (uint32_t epoch = 0; steps < 100; ++epoch) {
        dt_batches_begin(&it, epoch);
        for (dt_batch b; steps < 100 && dt_batches_next(&it, &b); ++steps) {
            ok(dt_net_load(net, &b));
            ok(dt_forward(net));
            ok(dt_backward(net));
            dt_optimizer_step(opts[steps % 2]);
        }
    }
    assert_int_equal(steps, 100);
    assert_int_equal(memory_calls, calls);
    dt_batches_free(&it);
    dt_optimizer_free(opts[0]);
    dt_optimizer_free(opts[1]);
    dt_net_free(net);
    dt_dataset_free(&data);
    assert_int_equal(live_blocks, before);
}

static void memory_runs_out(void **state) {
    (void)state;
    const long before = live_blocks;
    for (int at = 1; at <= 8; ++at) {
        fail_at = memory_calls + at;
        dt_net *volatile start = dt_net_new(1, 4, 4);
        dt_net *net = start, *twin = NULL;
        dt_optimizer *opt = NULL;
        dt_linear(net, "a", 3);
        dt_err error = dt_net_build(net, &(dt_build_desc){ .batch = 4 });
        if (error == DT_OK && (opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.1f }))) twin = dt_net_clone(net);
        if (!(error == DT_OK && opt && twin)) assert_true(error == DT_OK || error == DT_ENOMEM);
        else assert_true(at > 5);
        fail_at = 0;
        dt_net_free(twin);
        dt_optimizer_free(opt);
        dt_net_free(net);
        assert_int_equal(live_blocks, before);
    }
}

/* ---- Errors: the first one counts, in one sentence. */

static void builder_errors(void **state) {
    (void)state;
    dt_net *net = dt_net_new(3, 8, 8);
    dt_conv2d(net, "big", &(dt_conv2d_desc){ .out = 4, .kernel = 9 });
    dt_linear(net, "", 10); /* wrong as well, but second */
    refused(net, DT_ESHAPE, "\"big\": a 9 x 9 kernel does not fit into the 8 x 8 input");
    refused(dt_net_new(0, 8, 8), DT_ESHAPE, "0 x 8 x 8");
    refused(dt_net_new(1, 8, 8), DT_EARG, "no layers");
    const dt_conv2d_desc bad[] = { { .out = 0, .kernel = 3 }, { .out = 1, .kernel = 0 }, { .out = 1, .kernel = 16 },
                                   { .out = 1, .kernel = 3, .stride = -1 }, { .out = 1, .kernel = 3, .padding = 3 }, { .out = 1, .kernel = 3, .padding = -1 } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        net = dt_net_new(1, 20, 20);
        dt_conv2d(net, "c", &bad[i]);
        refused(net, DT_EARG, "conv2d \"c\": out");
    }
    net = dt_net_new(1, 3, 8);
    dt_maxpool2d(net, 4);
    refused(net, DT_ESHAPE, "kernel 4 is larger than the 3 x 8 input");
    net = dt_net_new(1, 3, 8);
    dt_maxpool2d(net, 0);
    refused(net, DT_EARG, "kernel 0");
    const float p[] = { -0.1f, 1.0f, 1.5f, NAN };
    for (size_t i = 0; i < 4; ++i) {
        net = dt_net_new(1, 3, 3);
        if (i % 2) dt_dropout(net, p[i]);
        else dt_dropout2d(net, p[i]);
        refused(net, DT_EARG, "probability");
    }
    net = dt_net_new(1, 3, 3);
    dt_linear(net, "a", 0);
    refused(net, DT_EARG, "0 outputs");
    net = dt_net_new(1, 3, 3);
    dt_linear(net, "a", 2);
    dt_linear(net, "a", 2);
    refused(net, DT_EARG, "has a layer of that name");
    net = dt_net_new(1, 3, 3);
    dt_linear(net, "a-name-that-is-longer-than-sixty-three-characters-and-so-is-refused", 2);
    refused(net, DT_EARG, "name of 1 to 63");
    net = dt_net_new(1, 6, 6);
    dt_conv2d(net, "c", &(dt_conv2d_desc){ .out = 4, .kernel = 3 });
    refused(net, DT_ESHAPE, "4 x 4 x 4");
    net = dt_net_new(5, 1, 1);
    dt_relu(net);
    refused(net, DT_EARG, "no parameters");
    net = dt_net_new(1, 1, 1);
    for (int i = 0; i < 200; ++i) dt_relu(net);
    refused(net, DT_EARG, "more than 128 layers");
    net = dt_net_new(1, 3, 3);
    dt_linear(net, "a", 2);
    expect_error(dt_net_build(net, &(dt_build_desc){ .batch = 0 }), DT_EARG, "batch 0");
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 4 }));
    expect_error(dt_net_build(net, &(dt_build_desc){ .batch = 4 }), DT_EARG, "built already");
    dt_net_free(net);
    dt_net_free(NULL);
    expect_error(dt_net_build(NULL, &(dt_build_desc){ .batch = 4 }), DT_ENOMEM, "memory");
}

static void step_errors(void **state) {
    (void)state;
    make_data(9, 3);
    dt_net *net = dt_net_new(1, 3, 3);
    dt_linear(net, "a", 3);
    dt_batch batch = batch_of_step(0, 16);
    expect_error(dt_net_load(net, &batch), DT_EARG, "dt_net_build comes first");
    expect_error(dt_forward(net), DT_EARG, "dt_net_build comes first");
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 16 }));
    expect_error(dt_backward(net), DT_EARG, "dt_forward comes before");
    batch = batch_of_step(0, 33);
    expect_error(dt_net_load(net, &batch), DT_ESHAPE, "33 samples, built for at most 16");
    batch = batch_of_step(0, 16);
    batch.global_count = 15;
    expect_error(dt_net_load(net, &batch), DT_EARG, "16 samples here but 15");
    batch.global_count = 16;
    labels[rows[7]] = 3;
    expect_error(dt_net_load(net, &batch), DT_EDATA, "label 3, the net has 3 classes");
    dt_net_free(net);
}

static void numbers_that_are_not(void **state) {
    (void)state;
    make_data(28 * 28, 10);
    dt_net *net = s0_net(0.0f, 16, false);
    dt_batch batch = batch_of_step(0, 16);
    const char *names[] = { "conv1.weight", "conv1.bias", "conv2.weight", "fc1.weight", "fc2.bias" };
    for (size_t i = 0; i < 5; ++i) { /* a NaN anywhere in the parameters reaches the loss */
        float *w = dt_net_find(net, names[i])->value.data + 3, old = *w;
        *w = NAN;
        ok(dt_net_load(net, &batch));
        expect_error(dt_forward(net), DT_ENUMERIC, "loss of sample 0 is");
        expect_error(dt_backward(net), DT_EARG, "dt_forward comes before");
        *w = old;
    }
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    ok(dt_backward(net));
    dt_net_free(net);
    /* a gradient too large for exact sums: inputs of 1e12 under weights of 0 */
    const float tiny[4] = { 1e-12f, 1e-12f, 1e-12f, 1e-12f };
    net = dt_net_new(1, 28, 28);
    dt_linear(net, "first", 6);
    dt_linear(net, "second", 10);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 16, .unit = DT_FIXED_UNIT }));
    memset(dt_net_find(net, "first.weight")->value.data, 0, 6 * 784 * sizeof(float));
    batch.std = tiny;
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    expect_error(dt_backward(net), DT_ENUMERIC, "gradient of first.weight[");
    dt_net *twin = dt_net_clone(net); /* not too large for a unit that follows it */
    twin->desc.unit = 0.0f;
    ok(dt_net_load(twin, &batch));
    ok(dt_forward(twin));
    ok(dt_backward(twin));
    assert_int_equal(twin->retaken, 1);
    dt_net_free(twin);
    dt_net_free(net);
    /* too large for any: under inputs of 1e36 a gradient of 1e39 is infinite */
    const float least[4] = { 1e-36f, 1e-36f, 1e-36f, 1e-36f };
    net = dt_net_new(1, 28, 28);
    dt_linear(net, "first", 6);
    dt_linear(net, "second", 10);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 16 }));
    memset(dt_net_find(net, "first.weight")->value.data, 0, 6 * 784 * sizeof(float));
    for (int i = 0; i < 60; ++i) dt_net_find(net, "second.weight")->value.data[i] = (i / 6 % 2 ? 3e5f : -3e5f);
    batch.std = least;
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    expect_error(dt_backward(net), DT_ENUMERIC, "gradient of first.weight[");
    dt_net_free(net);
}

static void optimizer_errors(void **state) {
    (void)state;
    dt_net *net = dt_net_new(1, 3, 3);
    dt_linear(net, "a", 3);
    assert_null(dt_sgd(net, &(dt_sgd_desc){ .lr = 0.1f }));
    expect_error(DT_EARG, DT_EARG, "must be built first");
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 16 }));
    const dt_sgd_desc sgd[] = { { .lr = 0.0f }, { .lr = -1.0f }, { .lr = NAN }, { .lr = INFINITY }, { .lr = 1.0f, .momentum = -0.1f },
                                { .lr = 1.0f, .weight_decay = -0.1f }, { .lr = 1.0f, .nesterov = true }, { .lr = 1.0f, .dampening = 1.5f },
                                { .lr = 1.0f, .momentum = 0.5f, .dampening = 0.1f, .nesterov = true } };
    for (size_t i = 0; i < sizeof sgd / sizeof *sgd; ++i) assert_null(dt_sgd(net, &sgd[i]));
    const dt_adam_desc adam[] = { { .lr = 1e-3f }, { .lr = 1e-3f, .beta1 = 1.0f, .beta2 = 0.9f, .eps = 1e-8f }, { .lr = 1e-3f, .beta2 = -0.1f, .eps = 1e-8f },
                                  { .lr = 0.0f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f } };
    for (size_t i = 0; i < sizeof adam / sizeof *adam; ++i) assert_null(dt_adam(net, &adam[i]));
    dt_optimizer *opt = dt_adam(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS });
    assert_string_equal(dt_optimizer_name(opt), "adam");
    expect_error(dt_optimizer_set_lr(opt, 0.0f), DT_EARG, "learning rate 0");
    ok(dt_optimizer_set_lr(opt, 0.25f));
    assert_true(dt_optimizer_lr(opt) >= 0.25f && dt_optimizer_lr(opt) <= 0.25f);
    dt_optimizer_free(opt);
    dt_net_free(net);
}

/* change(), step(), reset() and clone() are one arithmetic. */
static void optimizer_changes(void **state) {
    (void)state;
    make_data(28 * 28, 10);
    for (int adam = 0; adam <= 1; ++adam) {
        dt_net *a = s0_net(0.0f, 16, false), *b = dt_net_clone(a);
        assert_non_null(b);
        assert_true(dt_net_hash(a) == dt_net_hash(b));
        dt_optimizer *of_a = adam ? dt_adam(a, &(dt_adam_desc){ DT_ADAM_DEFAULTS }) : dt_sgd(a, &(dt_sgd_desc){ .lr = 0.1f, .momentum = 0.9f });
        dt_optimizer *of_b = dt_optimizer_clone(of_a, b);
        float *change = malloc(dt_net_count(b) * sizeof *change);
        for (uint32_t round = 0; round < 2; ++round) {
            for (uint32_t step = 0; step < 3; ++step) {
                dt_batch batch = batch_of_step(step, 16);
                ok(dt_net_load(a, &batch));
                ok(dt_forward(a));
                ok(dt_backward(a));
                dt_optimizer_step(of_a);
                ok(dt_net_load(b, &batch));
                ok(dt_forward(b));
                ok(dt_backward(b));
                dt_optimizer_change(of_b, change);
                for (size_t i = 0; i < dt_net_count(b); ++i) dt_net_values(b)[i] += change[i];
                assert_true(dt_net_hash(a) == dt_net_hash(b));
            }
            dt_optimizer_reset(of_a);
            dt_optimizer_reset(of_b);
        }
        dt_optimizer *fresh = dt_optimizer_clone(of_a, a); /* a reset optimizer behaves as a new one */
        assert_non_null(fresh);
        dt_optimizer_change(fresh, change);
        float *again = malloc(dt_net_count(b) * sizeof *again);
        dt_optimizer_change(of_a, again);
        assert_memory_equal(change, again, dt_net_count(b) * sizeof *again);
        free(change);
        free(again);
        dt_optimizer_free(fresh);
        dt_optimizer_free(of_a);
        dt_optimizer_free(of_b);
        dt_net_free(a);
        dt_net_free(b);
    }
}

/* ---- Initial values, names, looking inside. */

static void initial_values(void **state) {
    (void)state;
    dt_net *a = s0_net(0.5f, 16, false), *b = s0_net(0.5f, 64, true);
    assert_int_equal(dt_net_count(a), 9840);
    assert_true(dt_net_hash(a) == dt_net_hash(b));
    const char *names[] = { "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias" };
    const double fan_in[] = { 25, 25, 250, 250, 80, 80, 50, 50 };
    assert_int_equal(dt_net_param_count(a), 8);
    size_t offset = 0;
    for (int i = 0; i < 8; ++i) {
        const dt_param *p = dt_net_param(a, i);
        const double bound = 1.0 / sqrt(fan_in[i]);
        const size_t n = dt_tensor_count(&p->value);
        double sum = 0.0, squares = 0.0;
        assert_string_equal(p->name, names[i]);
        assert_ptr_equal(dt_net_find(a, names[i]), p);
        assert_int_equal(p->offset, offset);
        assert_ptr_equal(p->value.data, dt_net_values(a) + offset);
        assert_ptr_equal(p->grad.data, dt_net_gradients(a) + offset);
        offset += n;
        for (size_t k = 0; k < n; ++k) {
            const double w = (double)p->value.data[k];
            assert_true(fabs(w) <= bound * 1.000001);
            sum += w;
            squares += w * w;
        }
        const double deviation_wanted = bound / sqrt(3.0), dn = (double)n;
        assert_true(fabs(sum / dn) < 4.5 * deviation_wanted / sqrt(dn));
        if (n > 100) assert_true(fabs(sqrt(squares / dn) / deviation_wanted - 1.0) < 0.15);
    }
    assert_null(dt_net_param(a, 8));
    assert_null(dt_net_param(a, -1));
    assert_null(dt_net_find(a, "conv3.weight"));
    const dt_tensor *w = &dt_net_find(a, "conv2.weight")->value;
    assert_int_equal(w->rank, 4);
    assert_ptr_equal(dt_tensor_at(w, 3, 2, 1, 4), w->data + ((3 * 10 + 2) * 5 + 1) * 5 + 4);
    char text[2048];
    dt_net_summary(a, text, sizeof text);
    assert_non_null(strstr(text, "conv2"));
    dt_net_summary(a, text, 10);
    assert_int_equal(strlen(text), 9);
    /* 2 flop a multiply-add; all layers but the first three times */
    const double macs[] = { 144000, 320000, 4000, 500 };
    const double want = 2.0 * (2.0 * macs[0] + 3.0 * (macs[1] + macs[2] + macs[3]));
    assert_true(fabs(dt_net_flops(a) - want) < 0.5);
    dt_net_free(a);
    dt_net_free(b);
}

/* ---- Random numbers. */

static void philox(void **state) {
    (void)state;
    static const uint32_t zero[4] = { 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u };
    static const uint32_t ones[4] = { 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu };
    /* Random123's third vector, the digits of pi: key a4093822 299f31d0, counter 243f6a88 85a308d3 13198a2e 03707344 */
    static const uint32_t pi[4] = { 0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u };
    dt_philox_block r = dt_philox(0, 0, 0, 0, 0);
    assert_memory_equal(r.v, zero, sizeof zero);
    r = dt_philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    assert_memory_equal(r.v, ones, sizeof ones);
    r = dt_philox(0x299f31d0a4093822u, 0x03707344u, 0x13198a2eu, 0x85a308d3u, 0x243f6a88u);
    assert_memory_equal(r.v, pi, sizeof pi);
    uint32_t lanes[4][DT_LANES], sample[DT_LANES];
    for (uint32_t l = 0; l < DT_LANES; ++l) sample[l] = l * 2654435761u;
    dti_philox_lanes(lanes, 0x123456789abcdefu, 5, 6, sample, 7);
    for (int l = 0; l < DT_LANES; ++l) {
        r = dt_philox(0x123456789abcdefu, 5, 6, sample[l], 7);
        for (int k = 0; k < 4; ++k) assert_int_equal(lanes[k][l], r.v[k]);
    }
    assert_true(dt_uniform(UINT32_MAX) < 1.0f);
    assert_true(dt_uniform(255) <= 0.0f);
    assert_true(dt_uniform(0x80000000u) >= 0.5f && dt_uniform(0x80000000u) <= 0.5f);
}

static void permutation(void **state) {
    (void)state;
    enum { MOST = 3000 };
    static uint32_t p[MOST], q[MOST];
    static unsigned char seen[MOST];
    const size_t sizes[] = { 0, 1, 2, 3, 16, 17, 1000, MOST };
    for (size_t s = 0; s < 8; ++s) {
        memset(seen, 0, sizeof seen);
        dt_permutation(p, sizes[s], 9, DT_RNG_SHUFFLE, 3);
        for (size_t i = 0; i < sizes[s]; ++i) {
            assert_true(p[i] < sizes[s] && !seen[p[i]]);
            seen[p[i]] = 1;
        }
    }
    dt_permutation(q, MOST, 9, DT_RNG_SHUFFLE, 3);
    assert_memory_equal(p, q, sizeof p);
    dt_permutation(q, MOST, 9, DT_RNG_SHUFFLE, 4);
    assert_memory_not_equal(p, q, sizeof p);
    int count[24] = { 0 }; /* all orders of four are equally likely: chi-squared, 23 degrees of freedom */
    for (uint32_t e = 0; e < 24000; ++e) {
        dt_permutation(p, 4, 1, DT_RNG_TEST, e);
        size_t order = p[0] * 6u + (p[1] - (p[1] > p[0])) * 2u + (p[2] > p[3]);
        ++count[order];
    }
    double chi = 0.0;
    for (int i = 0; i < 24; ++i) chi += (count[i] - 1000.0) * (count[i] - 1000.0) / 1000.0;
    if (chi > 55.0) fail_msg("orders of four: chi squared %g", chi);
}

static void hash(void **state) {
    (void)state;
    unsigned char bytes[37];
    for (size_t i = 0; i < sizeof bytes; ++i) bytes[i] = (unsigned char)(i * 7);
    const uint64_t h = dt_hash(bytes, sizeof bytes, 0);
    for (size_t i = 0; i < sizeof bytes * 8; ++i) { /* any bit matters, and about half of the result changes */
        bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        const int changed = __builtin_popcountll(h ^ dt_hash(bytes, sizeof bytes, 0));
        assert_in_range(changed, 8, 56);
        bytes[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    assert_true(dt_hash(bytes, 36, 0) != h && dt_hash(bytes, sizeof bytes, 1) != h);
    assert_true(dt_hash(bytes, 0, 0) != dt_hash(bytes, 0, 5));
}

/* ---- Exact sums. */

__extension__ typedef __int128 wide;

static void exact_sums(void **state) {
    (void)state;
    enum { N = 5000 };
    static float x[N];
    static int64_t sum[N];
    for (uint32_t i = 0; i < N; ++i) { /* magnitudes from 2^-45 to 2^14 */
        dt_philox_block r = dt_philox(3, DT_RNG_TEST, 1, 0, i);
        x[i] = ldexpf(2.0f * dt_uniform(r.v[0]) - 1.0f, (int)(r.v[1] % 60) - 45);
    }
    wide total = 0;
    int64_t one[1] = { 0 };
    for (size_t i = 0; i < N; ++i) { /* round to nearest, ties to even, as lrint does */
        const long long want = llrintl(ldexpl((long double)x[i], 40));
        assert_int_equal(dt_fixed_add(&sum[i], &x[i], 1, DT_FIXED_UNIT, 0x1p22f), 1);
        if (sum[i] != want) fail_msg("fixed(%a) = %lld, wanted %lld", (double)x[i], (long long)sum[i], want);
        total += want;
        assert_int_equal(dt_fixed_add(one, &x[i], 1, DT_FIXED_UNIT, 0x1p22f), 1);
    }
    assert_true((wide)one[0] == total);
    float back[1], want = (float)((long double)total * 0x1p-40L);
    dt_fixed_to_float(back, one, 1, DT_FIXED_UNIT);
    assert_true(fabsf(back[0] - want) <= fabsf(want) * 0x1p-23f);
    memset(sum, 0, sizeof sum); /* a whole vector at once, twice */
    assert_int_equal(dt_fixed_add(sum, x, N, DT_FIXED_UNIT, 0x1p22f), N);
    assert_int_equal(dt_fixed_add(sum, x, N, DT_FIXED_UNIT, 0x1p22f), N);
    for (size_t i = 0; i < N; ++i) assert_true(sum[i] == 2 * llrintl(ldexpl((long double)x[i], 40)));
    /* no order matters */
    int64_t forth = 0, backwards = 0;
    for (size_t i = 0; i < N; ++i) {
        dt_fixed_add(&forth, &x[i], 1, DT_FIXED_UNIT, 0x1p22f);
        dt_fixed_add(&backwards, &x[N - 1 - i], 1, DT_FIXED_UNIT, 0x1p22f);
    }
    assert_true(forth == backwards);
}

static void exact_sum_limits(void **state) {
    (void)state;
    for (size_t terms = 1; terms < 3000; terms = terms * 3 / 2 + 1) { /* so many of the largest stay below 2^63 */
        const float limit = dt_fixed_limit(terms, DT_FIXED_UNIT), largest = nextafterf(limit, 0.0f);
        assert_true((double)limit * (double)terms <= 0x1p22);
        assert_true((double)limit * (double)terms >= 0x1p20);
        int64_t sum = 0, down = 0;
        wide want = 0;
        float low = -largest;
        for (size_t i = 0; i < terms; ++i) {
            assert_int_equal(dt_fixed_add(&sum, &largest, 1, DT_FIXED_UNIT, limit), 1);
            assert_int_equal(dt_fixed_add(&down, &low, 1, DT_FIXED_UNIT, limit), 1);
            want += llrintl(ldexpl((long double)largest, 40));
        }
        assert_true((wide)sum == want && (wide)down == -want);
    }
    const float limit = dt_fixed_limit(16, DT_FIXED_UNIT);
    const float bad[] = { limit, -limit, INFINITY, -INFINITY, NAN, 1e30f };
    float x[1200] = { 0 };
    int64_t sum[1200] = { 0 };
    for (size_t i = 0; i < 6; ++i)
        for (size_t at = 0; at < 1200; at += 399) { /* in any block, the first one is named */
            x[at] = bad[i];
            x[1199] = NAN;
            assert_int_equal(dt_fixed_add(sum, x, 1200, DT_FIXED_UNIT, limit), at);
            x[at] = x[1199] = 0.0f;
        }
    assert_int_equal(dt_fixed_add(sum, x, 0, DT_FIXED_UNIT, limit), 0);
}

/* ---- Saved parameters. */

static char path[64];
static int enter_folder(void **state) {
    (void)state;
    strcpy(path, "/tmp/dtrain_net_XXXXXX");
    int file = mkstemp(path);
    return file < 0 || close(file) != 0;
}
static int leave_folder(void **state) {
    (void)state;
    return remove(path) != 0;
}

static void write_file(const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) fail_msg("%s", path);
}

static unsigned char saved[65536];
static size_t read_saved(void) {
    FILE *f = fopen(path, "rb");
    size_t n = fread(saved, 1, sizeof saved, f);
    fclose(f);
    return n;
}

static void save_and_load(void **state) {
    (void)state;
    dt_net *a = s0_net(0.5f, 16, false), *b = s0_net(0.5f, 16, false);
    ok(dt_save(a, path));
    const uint64_t want = dt_net_hash(a);
    memset(dt_net_values(b), 0, dt_net_count(b) * sizeof(float));
    ok(dt_load(b, path));
    assert_true(dt_net_hash(b) == want);
    const size_t size = read_saved();
    const uint64_t header = dti_get_le(saved, 8);
    assert_int_equal(size, 8 + header + 4 * dt_net_count(a));
    assert_int_equal(header % 8, 0);
    saved[8 + header] = 0;
    assert_non_null(strstr((char *)saved + 8, "\"conv1.weight\":{\"dtype\":\"F32\",\"shape\":[10,1,5,5],\"data_offsets\":[0,1000]}"));
    /* a folder that is not there, and half a file that is not left */
    expect_error(dt_save(a, "/nowhere/at/all"), DT_EIO, "/nowhere/at/all: cannot write");
    expect_error(dt_load(a, "/nowhere/at/all"), DT_EIO, "/nowhere/at/all");
    dt_net_free(a);
    dt_net_free(b);
}

/* A file with PyTorch's metadata, other spacing and another order of the tensors. */
static void load_of_others(void **state) {
    (void)state;
    unsigned char file[512];
    dt_net *net = dt_net_new(1, 1, 2);
    dt_linear(net, "a", 2);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 1 }));
    const char *text = "{\"__metadata__\":{\"format\":\"pt\"}, \"a.bias\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},"
                       " \"a.weight\":{\"shape\":[2,2], \"dtype\":\"F32\",\"data_offsets\":[8, 24]}}";
    const float values[6] = { 10.0f, 20.0f, 1.0f, 2.0f, 3.0f, 4.0f }, want[6] = { 1.0f, 2.0f, 3.0f, 4.0f, 10.0f, 20.0f };
    dti_put_le(file, strlen(text), 8);
    memcpy(file + 8, text, strlen(text));
    for (size_t i = 0; i < 6; ++i) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        dti_put_le(file + 8 + strlen(text) + 4 * i, bits, 4);
    }
    write_file(file, 8 + strlen(text) + 24);
    ok(dt_load(net, path));
    assert_memory_equal(dt_net_values(net), want, sizeof want);
    dt_net_free(net);
}

/* ---- CSV and progress. */

static void csv(void **state) {
    (void)state;
    char text[256] = { 0 };
    remove(path);
    ok(dt_csv_append(path, "name,workers", "%s,%d", "sync", 1));
    ok(dt_csv_append(path, "name,workers", "%s,%d", "psgd", 2));
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    assert_string_equal(text, "name,workers\nsync,1\npsgd,2\n");
    expect_error(dt_csv_append(path, "name,seconds", "%s,%d", "sync", 1), DT_EDATA, "has the columns \"name,workers\"");
    expect_error(dt_csv_append("/nowhere/at/all.csv", "a", "%d", 1), DT_EIO, "/nowhere/at/all.csv");
    assert_int_equal(truncate(path, 0), 0); /* an empty file gets its header */
    ok(dt_csv_append(path, "a", "%d", 1));
    f = fopen(path, "r");
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, "a\n");
}

static void progress_line(void **state) {
    (void)state;
    char text[160];
    const dt_progress p = { .epoch = 2, .epochs = 10, .step = 120, .steps = 480, .seconds = 2.25, .samples = 9000, .score = { 1 << 24, 1, 2 } };
    dt_progress_line(&p, text, sizeof text);
    assert_string_equal(text, "epoch 3/10  step 120/480  loss 0.5000  4000 images/s  8 s left");
    volatile size_t few = 8; /* the compiler would warn that it is cut */
    dt_progress_line(&p, text, few);
    assert_string_equal(text, "epoch 3");
    dt_progress_line(&(dt_progress){ .epochs = 1 }, text, sizeof text); /* before the first step */
    assert_non_null(strstr(text, "step 0/0"));
}

/* A thread whose processor does not compute as IEEE 754 says is told so, at build and at each forward pass. */
static void the_thread_is_asked(void **state) {
    const uint32_t row[1] = { 0 };
    const uint8_t image[4] = { 9, 8, 7, 6 }, label[1] = { 1 };
    const dt_batch batch = { .pixels = image, .labels = label, .mean = mean, .std = deviation, .index = row, .count = 1, .global_count = 1 };
    (void)state;
    dt_net *net = dt_net_new(1, 2, 2), *late = dt_net_new(1, 2, 2);
    dt_linear(net, "fc", 2), dt_linear(late, "fc", 2);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 1, .seed = 1 }));
    ok(dt_net_load(net, &batch));
    static const int other[] = { FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    for (int i = 0; i < 3; ++i) {
        fesetround(other[i]);
        const dt_err built = dt_net_build(late, &(dt_build_desc){ .batch = 1, .seed = 1 }), went = dt_forward(net);
        fesetenv(FE_DFL_ENV);
        assert_int_equal(built, DT_ENUMERIC);
        assert_int_equal(went, DT_ENUMERIC);
        assert_non_null(strstr(dt_error(), "does not round to nearest"));
    }
#if defined(__SSE2__)
    static const unsigned flush[] = { 0x8000, 0x0040 }; /* results; operands */
    for (int i = 0; i < 2; ++i) {
        _mm_setcsr(_mm_getcsr() | flush[i]);
        const dt_err built = dt_net_build(late, &(dt_build_desc){ .batch = 1, .seed = 1 }), went = dt_forward(net);
        fesetenv(FE_DFL_ENV);
        assert_int_equal(built, DT_ENUMERIC);
        assert_int_equal(went, DT_ENUMERIC);
        assert_non_null(strstr(dt_error(), "for zero"));
    }
#endif
    ok(dt_net_build(late, &(dt_build_desc){ .batch = 1, .seed = 1 }));
    ok(dt_forward(net));
    dt_net_free(net), dt_net_free(late);
}

/* test_net [TESTS]: those whose names match, such as "pinned*" */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pytorch_gradients_s0),     cmocka_unit_test(pytorch_gradients_odd),  cmocka_unit_test(pytorch_sgd),
        cmocka_unit_test(pytorch_adam),             cmocka_unit_test(differences_linear),     cmocka_unit_test(differences_conv),
        cmocka_unit_test(differences_pool_relu),    cmocka_unit_test(differences_dropout),
        cmocka_unit_test(differences_branches),     cmocka_unit_test(branches_as_the_naive_kernels),
        cmocka_unit_test(branch_errors),    cmocka_unit_test(dropout_masks),
        cmocka_unit_test(dropout2d_drops_planes),   cmocka_unit_test(log_softmax),            cmocka_unit_test(score_counts_each_sample),
        cmocka_unit_test(the_thread_is_asked),
        cmocka_unit_test(pinned_bits), cmocka_unit_test(same_bits_for_every_number_of_ranks), cmocka_unit_test(no_allocation_in_steps), cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(builder_errors),           cmocka_unit_test(step_errors),            cmocka_unit_test(numbers_that_are_not),
        cmocka_unit_test(optimizer_errors),         cmocka_unit_test(optimizer_changes),      cmocka_unit_test(initial_values),
        cmocka_unit_test(philox),                   cmocka_unit_test(permutation),            cmocka_unit_test(hash),
        cmocka_unit_test(exact_sums),               cmocka_unit_test(exact_sum_limits),
        cmocka_unit_test_setup_teardown(save_and_load, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(load_of_others, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(csv, enter_folder, leave_folder),
        cmocka_unit_test(progress_line),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("net", tests, NULL, NULL);
}
