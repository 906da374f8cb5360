/* Batch norm [S6.11]: against PyTorch (tests/data/norm.bin, made by tests/make_reference.py), finite differences and sums in
   doubles; the same bits for every number of ranks; what is refused; what is saved. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DTRAIN_WITH_THREADS
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "examples/models.h"

#define REFERENCE "tests/data/norm.bin"
#include "tests/reference.h"

static void expect_error(dt_err got, dt_err wanted, const char *part) {
    if (got != wanted || !strstr(dt_error(), part) || strchr(dt_error(), '\n'))
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", dt_err_name(wanted), part, dt_err_name(got), dt_error());
}

static const char *const kinds[DT_STATISTICS_KINDS] = { "batch", "rank", "group" };
#define OVER(kind) &(dt_batchnorm2d_desc){ DT_BATCHNORM2D_DEFAULTS, .over = (kind) }

static dt_net *norm_net(dt_statistics over, const dt_build_desc *desc) {
    dt_net *net = dt_net_new(3, 11, 9);
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 6, .kernel = 3, .stride = 2, .padding = 1, .no_bias = true });
    dt_batchnorm2d(net, "bn_a", OVER(over));
    dt_relu(net);
    dt_conv2d(net, "b", &(dt_conv2d_desc){ .out = 8, .kernel = 3, .padding = 1 });
    dt_batchnorm2d(net, "bn_b", &(dt_batchnorm2d_desc){ .eps = 1e-3f, .momentum = 0.3f, .over = over });
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_node skip = dt_here(net);
    dt_conv2d(net, "c", &(dt_conv2d_desc){ .out = 8, .kernel = 3, .padding = 1 });
    dt_batchnorm2d(net, "bn_c", over == DT_STATISTICS_BATCH ? NULL : OVER(over));
    dt_add(net, skip);
    dt_linear(net, "d", 12);
    dt_batchnorm2d(net, "bn_d", OVER(over));
    dt_relu(net);
    dt_linear(net, "e", 5);
    ok(dt_net_build(net, desc));
    return net;
}

/* ---- PyTorch's numbers. */

/* The largest difference since the last line about it, over the largest number of its record. */
static double farthest;

static double bound(bool direct) { return direct ? 1e-5 : 1e-4; }

static void conformance(const char *name, bool direct) {
    char row[32];
    snprintf(row, sizeof row, "%s%s", name, direct ? "" : ", Winograd");
    conformance_row(row, farthest, bound(direct));
    farthest = 0.0;
}

/* Relative to the largest of the record, or to what the caller knows to be as large; number by number. */
static void compare_beside(const char *net, const char *what, const float *got, size_t n, double most, double beside) {
    char name[32];
    size_t count;
    double largest = beside, worst = 0.0;
    snprintf(name, sizeof name, "%s %s", net, what);
    float *want = reference(REFERENCE, name, &count);
    if (count != n) fail_msg("%s: %zu numbers, the reference has %zu", name, n, count);
    for (size_t i = 0; i < n; ++i) largest = fmax(largest, fabs((double)want[i]));
    for (size_t i = 0; i < n; ++i) {
        const double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= most * largest)) fail_msg("%s [%zu]: %.9g, PyTorch %.9g (largest %g)", name, i, (double)got[i], (double)want[i], largest);
        worst = fmax(worst, d);
    }
    farthest = fmax(farthest, worst / largest);
    free(want);
}

static void compare(const char *net, const char *what, const float *got, size_t n, double most) { compare_beside(net, what, got, n, most, 0.0); }

static void all_logits(const dt_net *net, float *out, int count) {
    for (int i = 0; i < count; ++i) ok(dt_net_logits(net, i, out + i * dt_net_classes(net)));
}

static void as_pytorch(const char *name, dt_statistics over, const dt_build_desc *desc) {
    float logits[BATCH * 5], losses[6];
    const double most = bound(desc->direct);
    make_data(3 * 11 * 9, 5);
    dt_net *net = norm_net(over, desc);
    reference_values(net);
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.05f, .momentum = 0.9f });
    for (uint32_t step = 0; step < 6; ++step) {
        dt_batch batch = batch_of_step(step, BATCH);
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        ok(dt_backward(net));
        if (step == 0) {
            all_logits(net, logits, BATCH);
            compare(name, "logits", logits, BATCH * 5, most);
            compare(name, "gradients", dt_net_gradients(net), net->trained, most);
        }
        const dt_score score = dt_net_score(net);
        losses[step] = (float)dt_score_loss(&score);
        dt_optimizer_step(opt);
    }
    compare(name, "losses", losses, 6, most);
    compare(name, "running", dt_net_values(net) + net->trained, net->count - net->trained, most);
    dt_batch batch = batch_of_step(6, BATCH);
    dt_net_training(net, false);
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    all_logits(net, logits, BATCH);
    compare(name, "used", logits, BATCH * 5, most);
    dt_optimizer_free(opt);
    dt_net_free(net);
}

static void pytorch(void **state) {
    (void)state;
    static const char *const rows_of[] = { "batch norm, batch", "batch norm, rank", "batch norm, group" };
    for (int over = 0; over < DT_STATISTICS_KINDS; ++over) {
        for (int way = 0; way < 4; ++way) { /* this rank is the only one, so over it is over the batch */
            const dt_build_desc desc = { .batch = BATCH, .direct = way % 2 == 0, .float_sums = way / 2 };
            as_pytorch(over == DT_STATISTICS_GROUP ? "ghost" : "norm", (dt_statistics)over, &desc);
        }
        conformance(rows_of[over], true);
    }
}

/* ---- Whole nets: logits and gradients of one batch. */

static void whole_net(const char *name, dt_net *net, int count, bool direct) {
    float logits[BATCH * 10], norms[64];
    const double most = bound(direct);
    int trained = 0;
    make_data((size_t)(net->list.input[0] * net->list.input[1] * net->list.input[2]), 10);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .direct = direct }));
    reference_values(net);
    dt_batch batch = batch_of_step(0, (uint32_t)count);
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    ok(dt_backward(net));
    all_logits(net, logits, count);
    compare(name, "logits", logits, (size_t)count * 10, most);
    for (int i = 0; i < dt_net_param_count(net); ++i) {
        const dt_param *p = dt_net_param(net, i);
        double square = 0.0;
        for (size_t k = 0; k < dt_tensor_count(&p->grad) && p->trained; ++k) square += (double)p->grad.data[k] * (double)p->grad.data[k];
        if (p->trained) norms[trained++] = (float)sqrt(square);
    }
    compare(name, "norms", norms, (size_t)trained, most);
    for (int i = 0, k = 0; i < dt_net_param_count(net); ++i) {
        const dt_param *p = dt_net_param(net, i);
        char number[16];
        float some[4096];
        size_t n = 0;
        if (!p->trained) continue;
        for (size_t j = 0; j < dt_tensor_count(&p->grad); j += 61) some[n++] = p->grad.data[j];
        snprintf(number, sizeof number, "%d", k++);
        /* a bias before a batch norm: PyTorch's gradient is rounding alone, and so is ours */
        if (norms[k - 1] > 1e-6f) compare_beside(name, number, some, n, most, (double)norms[k - 1] / sqrt((double)dt_tensor_count(&p->grad)));
        else for (size_t j = 0; j < n; ++j) assert_true(fabsf(some[j]) < 1e-6f);
    }
    dt_net_free(net);
}

static void whole_nets(void **state) {
    (void)state;
    for (int direct = 0; direct <= 1; ++direct) {
        whole_net("resnet9", resnet9(10, DT_STATISTICS_BATCH), 37, direct);
        conformance("ResNet9", direct);
        whole_net("wide", wide_resnet(1, 28, 10, 16, 7, 0.0f, DT_STATISTICS_BATCH), 7, direct);
        conformance("WideResNet 16", direct);
    }
}

/* ---- Against differences (loss(w+h) - loss(w-h)) / 2h; see tests/test_net.c. */

static double mean_loss(dt_net *net, const dt_batch *batch) {
    float logp[64];
    double sum = 0.0;
    ok(dt_net_load(net, batch));
    ok(dt_forward(net));
    for (uint32_t i = 0; i < batch->count; ++i) {
        ok(dt_net_log_probabilities(net, (int)i, logp));
        sum -= (double)logp[batch->labels[batch->index[i]]];
    }
    return sum / (double)batch->count;
}

static double difference(dt_net *net, const dt_batch *batch, float *w, float h) {
    const float old = *w, up = old + h, down = old - h;
    *w = up;
    const double high = mean_loss(net, batch);
    *w = down;
    const double low = mean_loss(net, batch);
    *w = old;
    return (high - low) / ((double)up - (double)down);
}

/* No ReLU and no maximum, so nothing switches and each difference holds. training false: the running values do not follow. */
static void check_differences(dt_statistics over, bool training, uint32_t count) {
    static float grad[4096];
    make_data(2 * 5 * 5, 4);
    dt_net *net = dt_net_new(2, 5, 5);
    dt_batchnorm2d(net, "bn_x", OVER(over)); /* nothing before it learns */
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 4, .kernel = 3, .padding = 1, .no_bias = true });
    dt_node skip = dt_here(net);
    dt_batchnorm2d(net, "bn_a", OVER(over));
    dt_conv2d(net, "b", &(dt_conv2d_desc){ .out = 4, .kernel = 3, .padding = 1, .no_bias = true });
    dt_add(net, skip); /* bn_a's gradient is added to another reader's */
    dt_batchnorm2d(net, "bn_b", OVER(over));
    dt_linear(net, "c", 6);
    dt_batchnorm2d(net, "bn_c", OVER(over));
    dt_linear(net, "d", 4);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = (int)count, .seed = 19 }));
    reference_values(net);
    dt_batch batch = batch_of_step(3, count);
    for (size_t i = net->trained; i < net->count; ++i) net->values[i] = 0.5f + 0.125f * (float)(i % 5);
    dt_net_training(net, training);
    (void)mean_loss(net, &batch);
    ok(dt_backward(net));
    memcpy(grad, dt_net_gradients(net), net->trained * sizeof *grad);
    for (int i = 0; i < dt_net_param_count(net); ++i) {
        const dt_param *p = dt_net_param(net, i);
        const size_t n = dt_tensor_count(&p->value);
        /* a bias before a batch norm moves all alike, which the batch norm takes back: its gradient is 0 */
        const bool vain = training && (strcmp(p->name, "bn_b.bias") == 0 || strcmp(p->name, "c.bias") == 0);
        float largest = 0.0f;
        for (size_t k = 0; k < n && p->trained; ++k) largest = fmaxf(largest, fabsf(grad[p->offset + k]));
        if (p->trained && !vain && !(largest > 1e-4f)) fail_msg("gradient of %s is all but zero: nothing is tested", p->name);
        if (vain && !(largest < 1e-6f)) fail_msg("gradient of %s is %g, and not 0", p->name, (double)largest);
        for (size_t k = 0; k < n && p->trained && !vain; ++k) {
            const double got = (double)grad[p->offset + k], tolerance = 0.01 * (double)largest + 2e-4;
            const double off = fabs(difference(net, &batch, &p->value.data[k], 2e-3f) - got);
            if (!(off <= tolerance)) fail_msg("over the %s: gradient of %s[%zu] is %g, the difference %g away", kinds[over], p->name, k, got, off);
        }
    }
    dt_net_free(net);
}

static void differences(void **state) {
    (void)state;
    check_differences(DT_STATISTICS_BATCH, true, 21);
    check_differences(DT_STATISTICS_GROUP, true, 21);
    check_differences(DT_STATISTICS_BATCH, true, 16);
    check_differences(DT_STATISTICS_GROUP, false, 21);
    check_differences(DT_STATISTICS_BATCH, false, 21);
}

/* ---- Hard channels: the net's logits are batch norm's outputs themselves. */

static void hard_channels(void **state) {
    (void)state;
    enum { N = 37, C = 4 };
    static uint8_t p[N], zeros[N];
    static uint32_t index[N];
    for (uint32_t i = 0; i < N; ++i) p[i] = (uint8_t)(i * 53 % 256), index[i] = i;
    const float none = 0.0f, unit = 1.0f / 255.0f; /* x = the byte */
    dt_batch batch = { .pixels = p, .labels = zeros, .mean = &none, .std = &unit, .index = index, .count = N, .global_count = N };
    for (int over = 0; over < DT_STATISTICS_KINDS; ++over) {
        float y[N * C];
        dt_net *net = dt_net_new(1, 1, 1);
        dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = C, .kernel = 1 });
        dt_batchnorm2d(net, "bn", OVER((dt_statistics)over));
        ok(dt_net_build(net, &(dt_build_desc){ .batch = N }));
        /* a mean large against its spread, of numbers that a float holds; zeros; an ordinary one; one of tiny numbers */
        const float w[C] = { 0x1p-7f, 0.0f, 0.5f, 1e-12f }, b[C] = { 10000.0f, 0.0f, -1.0f, 0.0f };
        memcpy(dt_net_find(net, "a.weight")->value.data, w, sizeof w);
        memcpy(dt_net_find(net, "a.bias")->value.data, b, sizeof b);
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net));
        ok(dt_backward(net));
        all_logits(net, y, N);
        for (int c = 0; c < C; ++c)
            for (int from = 0, n; from < N; from += n) {
                double mu = 0.0, var = 0.0;
                n = over == DT_STATISTICS_GROUP ? (N - from < DT_LANES ? N - from : DT_LANES) : N;
                for (int i = from; i < from + n; ++i) mu += ((double)p[i] * (double)w[c] + (double)b[c]) / n;
                for (int i = from; i < from + n; ++i) var += pow((double)p[i] * (double)w[c] + (double)b[c] - mu, 2.0) / n;
                for (int i = from; i < from + n; ++i) {
                    const double want = ((double)p[i] * (double)w[c] + (double)b[c] - mu) / sqrt(var + (double)1e-5f);
                    if (!(fabs((double)y[i * C + c] - want) < 1e-6 + 1e-6 * fabs(want)))
                        fail_msg("over the %s: channel %d, image %d: %.9g, wanted %.9g", kinds[over], c, i, (double)y[i * C + c], want);
                }
            }
        for (size_t i = 0; i < net->count; ++i) assert_true(fabsf(net->grad[i]) < 1e5f); /* finite, too */
        dt_net_free(net);
    }
}

/* ---- One rank or many. */

typedef struct shared {
    dt_dataset data;
    uint32_t batch;
    dt_statistics over;
    uint64_t retaken;
    bool coarse;
    bool by_hand, float_sums;
    float values[8192];
    uint64_t hash;
} shared;

static dt_net *digits_net(dt_statistics over) {
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 5, .kernel = 3, .stride = 2, .no_bias = true });
    dt_batchnorm2d(net, "bn_a", OVER(over));
    dt_relu(net);
    dt_node skip = dt_here(net);
    dt_conv2d(net, "b", &(dt_conv2d_desc){ .out = 5, .kernel = 3, .padding = 1 });
    dt_batchnorm2d(net, "bn_b", OVER(over));
    dt_relu(net);
    dt_dropout2d(net, 0.2f);
    dt_add(net, skip);
    dt_maxpool2d(net, 4);
    dt_linear(net, "c", 12);
    dt_batchnorm2d(net, "bn_c", OVER(over));
    dt_relu(net);
    dt_linear(net, "d", 10);
    return net;
}

/* What dt_train_sync does, in the words of a program of one's own. */
static dt_err train_by_hand(dt_net *net, dt_optimizer *opt, dt_comm *comm, const shared *s) {
    dt_batches it;
    DT_TRY(dt_share_statistics(net, comm));
    DT_TRY(dt_batches_init(&it, &s->data, &(dt_batches_desc){ .global_batch = s->batch, .rank = dt_comm_rank(comm), .size = dt_comm_size(comm), .seed = 8, .shuffle = true }));
    for (uint32_t epoch = 0; epoch < 2; ++epoch) {
        dt_batches_begin(&it, epoch);
        for (dt_batch b; dt_batches_next(&it, &b);) {
            DT_TRY(dt_net_load(net, &b));
            DT_TRY(dt_forward(net));
            DT_TRY(dt_backward(net));
            DT_TRY(dt_average_gradients(net, comm));
            dt_optimizer_step(opt);
        }
    }
    dt_batches_free(&it);
    return dt_check_replicas(net, comm);
}

static dt_err train_some(dt_comm *comm, void *arg) {
    shared *s = arg;
    dt_train_result result;
    dt_net *net = digits_net(s->over);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = (int)s->batch, .seed = 2, .float_sums = s->float_sums }));
    for (int i = 0; i < net->params && s->coarse; ++i) net->next_unit[i] = 0x1p10f; /* the first step is taken again */
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.05f, .momentum = 0.9f });
    if (!opt) return DT_EARG;
    const dt_train_desc d = { .data = &s->data, .epochs = 2, .batch = s->batch, .seed = 8, .check_every = 1, .bucket_bytes = 2000 };
    const dt_err error = s->by_hand ? train_by_hand(net, opt, comm, s) : dt_train_sync(net, opt, comm, &d, &result);
    if (error == DT_OK && dt_comm_rank(comm) == 0) {
        s->hash = dt_net_hash(net);
        s->retaken = net->retaken;
        memcpy(s->values, net->values, net->count * sizeof(float));
    }
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}

static void same_bits_for_every_number_of_ranks(void **state) {
    (void)state;
    static shared s;
    static const uint32_t sizes[] = { 128, 37, 300 }; /* 128 + 128 + 44: five ranks have three lane groups in the last step */
    ok(dt_dataset_synthetic(&s.data, 300, 4));
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; ++k)
        for (int over = 0; over < DT_STATISTICS_KINDS; ++over) {
            s.batch = sizes[k], s.over = (dt_statistics)over, s.by_hand = false;
            ok(dt_run_ranks(1, train_some, &s));
            const uint64_t one = s.hash;
            printf("hash %016llx\n", (unsigned long long)one);
            for (int ranks = 2; ranks <= 5; ++ranks) {
                s.hash = 0, s.by_hand = ranks % 2;
                ok(dt_run_ranks(ranks, train_some, &s));
                /* over the rank it is another computation; the replicas are compared after every step */
                if ((s.hash == one) != (over != DT_STATISTICS_RANK))
                    fail_msg("batch %u over the %s: %d ranks give %016llx, one rank %016llx", s.batch, kinds[over], ranks, (unsigned long long)s.hash, (unsigned long long)one);
            }
        }
    dt_dataset_free(&s.data);
}

/* A step that is taken again also sums its statistics again, and they follow the batch once. */
static void a_step_again(void **state) {
    (void)state;
    static shared s = { .batch = 128, .coarse = true };
    ok(dt_dataset_synthetic(&s.data, 300, 4));
    for (int over = 0; over < DT_STATISTICS_KINDS; over += DT_STATISTICS_GROUP) {
        uint64_t one = 0;
        for (int ranks = 1; ranks <= 4; ++ranks)
            for (int by_hand = 0; by_hand <= 1; ++by_hand) {
                s.over = (dt_statistics)over, s.by_hand = by_hand;
                ok(dt_run_ranks(ranks, train_some, &s));
                if (ranks == 1 && !by_hand) one = s.hash;
                if (s.hash != one || s.retaken != 1) fail_msg("over the %s, %d ranks: other bits, or %d steps again", kinds[over], ranks, (int)s.retaken);
            }
    }
    dt_dataset_free(&s.data);
}

static void float_sums(void **state) {
    (void)state;
    static shared s = { .batch = 100 };
    static float want[8192];
    ok(dt_dataset_synthetic(&s.data, 300, 4));
    for (int over = 0; over < DT_STATISTICS_KINDS; ++over) {
        s.over = (dt_statistics)over;
        for (int ranks = 1; ranks <= 3; ++ranks) {
            double norm = 0.0, off = 0.0;
            s.float_sums = false;
            ok(dt_run_ranks(ranks, train_some, &s));
            memcpy(want, s.values, sizeof want);
            s.float_sums = true;
            ok(dt_run_ranks(ranks, train_some, &s));
            for (size_t i = 0; i < 8192; ++i)
                norm += (double)want[i] * (double)want[i], off += pow((double)(s.values[i] - want[i]), 2.0);
            if (!(norm > 1.0 && sqrt(off / norm) < 1e-4)) fail_msg("over the %s, %d ranks: %g away", kinds[over], ranks, sqrt(off / norm));
        }
    }
    dt_dataset_free(&s.data);
}

/* ---- Ways to train in which each worker takes its own steps. */

static dt_err train_psgd(dt_comm *comm, void *arg) {
    shared *s = arg;
    dt_train_result result;
    dt_net *net = digits_net(s->over);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = 64, .seed = 2 }));
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.05f });
    const dt_train_desc d = { .data = &s->data, .epochs = 2, .batch = 64, .seed = 8 };
    const dt_err error = dt_train_psgd(net, opt, comm, &d, &result);
    if (error == DT_OK && dt_comm_rank(comm) == 0) memcpy(s->values, net->values, net->count * sizeof(float));
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}

static void own_steps(void **state) {
    (void)state;
    static shared s;
    ok(dt_dataset_synthetic(&s.data, 300, 4));
    s.over = DT_STATISTICS_GROUP;
    ok(dt_run_ranks(3, train_psgd, &s));
    s.over = DT_STATISTICS_BATCH;
    ok(dt_run_ranks(1, train_psgd, &s));
    expect_error(dt_run_ranks(2, train_psgd, &s), DT_EARG, "\"bn_a\" looks at the batch of all 2 workers together");
    for (int sharing = 0; sharing <= DT_SHARE_AVERAGED; ++sharing)
        for (int over = 0; over < DT_STATISTICS_KINDS; ++over) {
            dt_hogwild_result result;
            dt_net *net = digits_net((dt_statistics)over);
            ok(dt_net_build(net, &(dt_build_desc){ .batch = 32, .seed = 2 }));
            assert_int_equal(net->trained % 2, 1); /* the last pair of the shared vector is half a statistic's */
            dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.02f });
            const dt_train_desc d = { .data = &s.data, .epochs = 20, .batch = 32, .seed = 8 };
            const dt_err error = dt_train_shared(net, opt, 3, (dt_sharing)sharing, &d, &result);
            if (over == DT_STATISTICS_BATCH) expect_error(error, DT_EARG, "let it look at the rank or the lane group");
            else {
                ok(error);
                for (size_t i = 0; i < dt_tensor_count(&dt_net_find(net, "bn_a.running_var")->value); ++i) {
                    const float m = dt_net_find(net, "bn_a.running_mean")->value.data[i], v = dt_net_find(net, "bn_a.running_var")->value.data[i];
                    /* 36 steps or more at 0.1 leave at most 0.03 of where they began */
                    if (!(fabsf(m) > 1e-4f && v > 1e-4f && v < 0.95f)) fail_msg("channel %zu: running mean %g, variance %g", i, (double)m, (double)v);
                }
                dt_score score;
                ok(dt_evaluate(net, &s.data, NULL, &score));
                assert_int_equal(score.count, 300);
                if (!(dt_score_loss(&score) < dt_score_loss(&result.train.score) + 0.2)) fail_msg("%d, over the %s: loss %g, in training %g", sharing, kinds[over], dt_score_loss(&score), dt_score_loss(&result.train.score));
            }
            dt_optimizer_free(opt);
            dt_net_free(net);
        }
    dt_dataset_free(&s.data);
}

/* ---- One image. */

static void one_image(void **state) {
    (void)state;
    make_data(3 * 11 * 9, 5);
    for (int over = 0; over < DT_STATISTICS_KINDS; ++over) {
        dt_net *net = dt_net_new(3, 11, 9);
        dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 4, .kernel = 3 });
        dt_batchnorm2d(net, "bn", OVER((dt_statistics)over));
        dt_linear(net, "b", 5);
        ok(dt_net_build(net, &(dt_build_desc){ .batch = 1, .seed = 3 }));
        dt_batch batch = batch_of_step(0, 1);
        ok(dt_net_load(net, &batch));
        ok(dt_forward(net)); /* 63 places are enough */
        ok(dt_backward(net));
        dt_net_free(net);
        net = norm_net((dt_statistics)over, &(dt_build_desc){ .batch = 17 });
        batch = batch_of_step(0, 17);
        ok(dt_net_load(net, &batch));
        if (over == DT_STATISTICS_GROUP) expect_error(dt_forward(net), DT_ESHAPE, "\"bn_d\": 1 of 17 images, on a 1 x 1 map, are the only ones of a lane group");
        else ok(dt_forward(net));
        batch = batch_of_step(0, 1);
        ok(dt_net_load(net, &batch));
        expect_error(dt_forward(net), DT_ESHAPE, "it needs 2 of them");
        dt_net_training(net, false);
        ok(dt_forward(net));
        dt_net_free(net);
    }
}

/* 300 images by 23 leave a last step of one; by 283, one of 17. */
static void one_image_is_refused_before(void **state) {
    (void)state;
    static shared s;
    ok(dt_dataset_synthetic(&s.data, 300, 4));
    s.batch = 23, s.over = DT_STATISTICS_BATCH;
    expect_error(dt_run_ranks(1, train_some, &s), DT_ESHAPE, "\"bn_c\": 1 of 1 images");
    s.batch = 283;
    ok(dt_run_ranks(2, train_some, &s)); /* over the batch, 17 are enough for two ranks */
    s.over = DT_STATISTICS_RANK;
    ok(dt_run_ranks(1, train_some, &s));
    expect_error(dt_run_ranks(2, train_some, &s), DT_ESHAPE, "\"bn_c\": 1 of 17 images, on a 1 x 1 map, are the only ones of a rank");
    s.over = DT_STATISTICS_GROUP;
    expect_error(dt_run_ranks(1, train_some, &s), DT_ESHAPE, "only ones of a lane group");
    dt_dataset_free(&s.data);
}

static void builder_errors(void **state) {
    (void)state;
    static const struct { dt_batchnorm2d_desc desc; const char *part; } bad[] = {
        { { .eps = 0.0f, .momentum = 0.1f }, "eps 0, momentum 0.1; needs" },
        { { .eps = NAN, .momentum = 0.1f }, "needs eps > 0" },
        { { .eps = 1e-5f, .momentum = 1.5f }, "momentum 1.5" },
        { { .eps = 1e-5f, .momentum = NAN }, "momentum 0..1" },
        { { .eps = 1e-5f, .momentum = 0.1f, .over = DT_STATISTICS_KINDS }, "there is no kind of statistics number 3" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        dt_net *net = dt_net_new(1, 4, 4);
        dt_batchnorm2d(net, "bn", &bad[i].desc);
        dt_linear(net, "a", 3);
        expect_error(dt_net_build(net, &(dt_build_desc){ .batch = 4 }), DT_EARG, bad[i].part);
        dt_net_free(net);
    }
    dt_net *net = dt_net_new(1, 4, 4);
    dt_batchnorm2d(net, NULL, NULL);
    expect_error(dt_net_build(net, &(dt_build_desc){ .batch = 4 }), DT_EARG, "a name of 1 to");
    dt_net_free(net);
}

/* A weight that is no number reaches batch norm first; all ranks are told. */
static dt_err one_bad_rank(dt_comm *comm, void *arg) {
    shared *s = arg;
    dt_batches it;
    dt_net *net = digits_net(s->over);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = 128, .seed = 2 }));
    DT_TRY(dt_share_statistics(net, comm));
    DT_TRY(dt_batches_init(&it, &s->data, &(dt_batches_desc){ .global_batch = 128, .rank = dt_comm_rank(comm), .size = dt_comm_size(comm) }));
    dt_batch b;
    (void)dt_batches_next(&it, &b);
    if (dt_comm_rank(comm) == 1) net->values[0] = INFINITY;
    DT_TRY(dt_net_load(net, &b));
    const dt_err error = dt_forward(net);
    dt_batches_free(&it);
    dt_net_free(net);
    if (error == DT_ENUMERIC && strstr(dt_error(), "batchnorm2d \"bn_a\": a number that it reads is not finite")) return DT_OK;
    return dt_fail(DT_EDATA, "rank %d: %s", dt_comm_rank(comm), error == DT_OK ? "no error" : dt_error());
}

static void not_finite(void **state) {
    (void)state;
    static shared s;
    ok(dt_dataset_synthetic(&s.data, 128, 4));
    s.over = DT_STATISTICS_BATCH;
    ok(dt_run_ranks(3, one_bad_rank, &s));
    dt_dataset_free(&s.data);
}

/* ---- What is saved. */

static char path[64];
static int enter_folder(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/dtrain_norm_%d.safetensors", (int)getpid());
    return 0;
}
static int leave_folder(void **state) {
    (void)state;
    return remove(path);
}

/* Both whole nets, from here to PyTorch and back; tests/check_models.py is the other side. */
static void used_logits(dt_net *net, float *logits) {
    make_data((size_t)(net->list.input[0] * net->list.input[1] * net->list.input[2]), 10);
    dt_batch batch = batch_of_step(0, 7);
    dt_net_training(net, false);
    ok(dt_net_load(net, &batch));
    ok(dt_forward(net));
    all_logits(net, logits, 7);
}

static void files_to_and_from_pytorch(void **state) {
    (void)state;
    static const char *const names[] = { "resnet9", "wide" };
    char folder[] = "/tmp/dtrain_models_XXXXXX", file[128], command[256];
    float logits[70], theirs[70];
    dt_net *nets[2] = { resnet9(10, DT_STATISTICS_BATCH), wide_resnet(1, 28, 10, 16, 7, 0.01f, DT_STATISTICS_BATCH) };
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; ++i) {
        ok(dt_net_build(nets[i], &(dt_build_desc){ .batch = 16, .seed = 8, .direct = true }));
        for (size_t k = nets[i]->trained; k < nets[i]->count; ++k) nets[i]->values[k] = 0.25f + 0.125f * (float)(k % 7);
        used_logits(nets[i], logits);
        snprintf(file, sizeof file, "%s/%s.safetensors", folder, names[i]);
        ok(dt_save(nets[i], file));
        snprintf(file, sizeof file, "%s/%s.logits", folder, names[i]);
        FILE *f = fopen(file, "wb");
        assert_int_equal(fwrite(logits, sizeof *logits, 70, f), 70);
        fclose(f);
    }
    snprintf(command, sizeof command, "p=python3; [ -x /usr/bin/python3 ] && p=/usr/bin/python3; PYTHONPATH=tests $p -B tests/check_models.py %s", folder);
    fflush(stdout); /* the other program prints, too */
    const int code = system(command);
    for (int i = 0; i < 2 && code == 0; ++i) {
        float largest = 0.0f, difference = 0.0f;
        snprintf(file, sizeof file, "%s/%s.torch.safetensors", folder, names[i]);
        ok(dt_load(nets[i], file));
        used_logits(nets[i], logits);
        snprintf(file, sizeof file, "%s/%s.torch.logits", folder, names[i]);
        FILE *f = fopen(file, "rb");
        assert_int_equal(fread(theirs, sizeof *theirs, 70, f), 70);
        fclose(f);
        for (int k = 0; k < 70; ++k) largest = fmaxf(largest, fabsf(theirs[k]));
        for (int k = 0; k < 70; ++k) difference = fmaxf(difference, fabsf(logits[k] - theirs[k]));
        conformance_row(i == 0 ? "file from PyTorch, ResNet9" : "file from PyTorch, WideResNet 16", (double)(difference / largest), 1e-5);
        for (int k = 0; k < 70; ++k)
            if (!(fabsf(logits[k] - theirs[k]) <= 1e-5f * largest)) fail_msg("%s: logit %d is %g, PyTorch's %g", names[i], k, (double)logits[k], (double)theirs[k]);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    dt_net_free(nets[0]), dt_net_free(nets[1]);
    if (WIFEXITED(code) && (WEXITSTATUS(code) == 77 || WEXITSTATUS(code) == 127)) {
        printf("skipped: files to and from PyTorch (there is no python3 with torch)\n");
        skip();
    }
    assert_int_equal(code, 0);
}

static void saved_as_pytorch_saves(void **state) {
    (void)state;
    static unsigned char bytes[65536];
    make_data(3 * 11 * 9, 5);
    dt_net *a = norm_net(DT_STATISTICS_BATCH, &(dt_build_desc){ .batch = 32, .seed = 5 }), *b = dt_net_clone(a);
    dt_optimizer *opt = dt_sgd(a, &(dt_sgd_desc){ .lr = 0.1f });
    for (uint32_t step = 0; step < 3; ++step) {
        dt_batch batch = batch_of_step(step, 32);
        ok(dt_net_load(a, &batch));
        ok(dt_forward(a));
        ok(dt_backward(a));
        dt_optimizer_step(opt);
    }
    assert_true(dt_net_hash(a) != dt_net_hash(b));
    ok(dt_save(a, path));
    ok(dt_load(b, path));
    assert_true(dt_net_hash(a) == dt_net_hash(b));
    /* the counters stand first: 3 steps each */
    FILE *f = fopen(path, "rb");
    const size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    const size_t header = (size_t)dti_get_le(bytes, 8);
    assert_int_equal(size, 8 + header + 4 * 8 + 4 * dt_net_count(a));
    for (int i = 0; i < 4; ++i) assert_int_equal(dti_get_le(bytes + 8 + header + 8 * i, 8), 3);
    char *text = (char *)bytes + 8, *at;
    assert_non_null(strstr(text, "\"bn_a.num_batches_tracked\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}"));
    assert_non_null(strstr(text, "\"bn_d.running_var\":{\"dtype\":\"F32\",\"shape\":[12]"));
    /* of another type, or of a shape: refused */
    assert_non_null(at = strstr(text, "I64"));
    memcpy(at, "F64", 3);
    f = fopen(path, "wb");
    fwrite(bytes, 1, size, f);
    fclose(f);
    expect_error(dt_load(b, path), DT_EDATA, "bn_a.num_batches_tracked is of dtype \"F64\", not \"I64\"");
    dt_optimizer_free(opt);
    dt_net_free(a);
    dt_net_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pytorch),
        cmocka_unit_test(whole_nets),
        cmocka_unit_test(differences),
        cmocka_unit_test(hard_channels),
        cmocka_unit_test(same_bits_for_every_number_of_ranks),
        cmocka_unit_test(a_step_again), cmocka_unit_test(float_sums),
        cmocka_unit_test(own_steps),
        cmocka_unit_test(one_image),
        cmocka_unit_test(one_image_is_refused_before),
        cmocka_unit_test(builder_errors),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(files_to_and_from_pytorch),
        cmocka_unit_test_setup_teardown(saved_as_pytorch_saves, enter_folder, leave_folder),
    };
    return cmocka_run_group_tests_name("norm", tests, NULL, NULL);
}
