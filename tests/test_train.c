/* Training [S11]: synchronous SGD, PSGD, Hogwild, evaluation, the check of the replicas.

   As tests/test_comm.c: the cases of `on_ranks` run on 1..5 threads (./test_train), and on MPI ranks in a program built
   with MPI (mpiexec.mpich -n 3 ./test_train_mpi). They return an error and its sentence, because cmocka's assertions do
   not work on other threads. Under mpiexec rank 0 ends with cmocka's own line of how many passed. */
#include <fenv.h>
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

enum { COUNT = 400, BATCH = 64, MOST_RANKS = 8 };
static dt_dataset data; /* read by all threads, written before they start */

/* On failure the sentence names the condition and the line. */
#define need(condition) do { if (!(condition)) return dt_fail(DT_EDATA, "line %d: not so: %s (%s)", __LINE__, #condition, dt_error()); } while (0)
#define ok(call) do { dt_err ok_ = (call); if (ok_ != DT_OK) fail_msg("%s: %s", dt_err_name(ok_), dt_error()); } while (0)

static dt_err make_net(dt_net **out, int batch, uint64_t seed, bool float_sums) {
    dt_net *net = *out = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 4, .kernel = 5, .stride = 2 });
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_dropout2d(net, 0.1f);
    dt_linear(net, "fc1", 24);
    dt_relu(net);
    dt_linear(net, "fc2", 10);
    return dt_net_build(net, &(dt_build_desc){ .batch = batch, .seed = seed, .float_sums = float_sums });
}

static dt_optimizer *make_sgd(dt_net *net) { return dt_sgd(net, &(dt_sgd_desc){ .lr = 0.1f, .momentum = 0.5f }); }

/* ---- Synchronous SGD: the plain loop on one core, written out, and every number of ranks. */

static dt_err plain_loop(uint64_t *hash, dt_score *last_epoch, const dt_augment *augment) {
    dt_net *net;
    dt_batches it;
    DT_TRY(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    DT_TRY(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = BATCH, .seed = 31, .shuffle = true, .augment = augment }));
    for (uint32_t epoch = 0; epoch < 2; ++epoch) {
        *last_epoch = (dt_score){ 0, 0, 0 };
        dt_batches_begin(&it, epoch);
        for (dt_batch b; dt_batches_next(&it, &b);) {
            DT_TRY(dt_net_load(net, &b));
            DT_TRY(dt_forward(net));
            DT_TRY(dt_backward(net));
            dt_optimizer_step(opt);
            dt_score s = dt_net_score(net);
            dt_score_add(last_epoch, &s);
        }
    }
    *hash = dt_net_hash(net);
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

typedef struct told { int calls, epochs_ended, stop_at; uint64_t samples; uint32_t last_step; double seconds; bool orderly; } told;

static bool hear(const dt_progress *p, void *user) {
    told *t = user;
    t->orderly = t->orderly && p->step == t->last_step % p->steps + 1 && p->seconds >= t->seconds && p->samples >= t->samples &&
                 p->epoch_ended == (p->step == p->steps);
    t->last_step = p->step;
    t->seconds = p->seconds;
    t->samples = p->samples;
    t->epochs_ended += p->epoch_ended;
    return ++t->calls != t->stop_at;
}

static dt_err sync_equals_the_loop(dt_comm *comm, void *arg) {
    (void)arg;
    const dt_algorithm ways[] = { DT_AUTO, DT_RING, DT_DOUBLING };
    const dt_augment augment = { .seed = 5, .flip = 0.5f, .rotate = 10.0f, .scale_low = 0.8f, .scale_high = 1.2f, .shear = 10.0f, .brightness = 0.2f, .contrast = 0.2f };
    uint64_t wanted, plain = 0;
    dt_score score;
    for (size_t i = 0; i < 3; ++i) {
        const dt_augment *altered = i == 2 ? &augment : NULL; /* what is done to an image is not the rank's matter either */
        DT_TRY(plain_loop(&wanted, &score, altered));
        need(i < 2 || wanted != plain);
        plain = wanted;
        dt_net *net;
        dt_train_result r;
        told t = { .orderly = true };
        DT_TRY(make_net(&net, BATCH, dt_comm_rank(comm) == 0 ? 6 : 1000 + (uint64_t)dt_comm_rank(comm), false)); /* rank 0's values count */
        /* dropout draws with the net's own seed: all ranks use rank 0's */
        net->desc.seed = 6;
        dt_optimizer *opt = make_sgd(net);
        DT_TRY(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 2, .batch = BATCH, .seed = 31, .algorithm = ways[i], .augment = altered,
                             .check_every = 3, .on_step = hear, .user = &t }, &r));
        need(dt_net_hash(net) == wanted);
        need(r.epochs == 2 && r.samples == 2 * COUNT && !r.stopped && r.seconds > 0.0);
        need(r.score.count == score.count && r.score.correct == score.correct && r.score.loss_fixed == score.loss_fixed);
        need(r.epoch_seconds[0] > 0.0 && r.epoch_seconds[1] > 0.0 && fabs(r.epoch_seconds[0] + r.epoch_seconds[1] - r.seconds) < 1e-9);
        need(t.calls == 2 * ((COUNT + BATCH - 1) / BATCH) && t.epochs_ended == 2 && t.orderly && t.samples == 2 * COUNT);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    return DT_OK;
}

/* Sums of floats differ in the last bits only. */
static dt_err float_sums_are_near(dt_comm *comm, void *arg) {
    (void)arg;
    dt_net *a, *b;
    dt_train_result r;
    const dt_train_desc desc = { .data = &data, .epochs = 1, .batch = BATCH, .seed = 31 };
    DT_TRY(make_net(&a, BATCH, 6, false));
    DT_TRY(make_net(&b, BATCH, 6, true));
    dt_optimizer *of_a = make_sgd(a), *of_b = make_sgd(b);
    DT_TRY(dt_train_sync(a, of_a, comm, &desc, &r));
    const int64_t count = r.score.count;
    DT_TRY(dt_train_sync(b, of_b, comm, &desc, &r));
    need(r.score.count == count);
    for (size_t i = 0; i < dt_net_count(a); ++i) need(fabsf(dt_net_values(a)[i] - dt_net_values(b)[i]) < 2e-5f);
    dt_optimizer_free(of_a);
    dt_optimizer_free(of_b);
    dt_net_free(a);
    dt_net_free(b);
    return DT_OK;
}

/* One rank asks to stop; all stop, with the same values. */
/* The last rank's wish to stop is heard by all at the next average, in the middle of an epoch. */
static dt_err psgd_stops_at_an_average(dt_comm *comm, void *arg) {
    (void)arg;
    dt_net *net;
    dt_train_result r;
    told t = { .orderly = true, .stop_at = dt_comm_rank(comm) == dt_comm_size(comm) - 1 ? 2 : 0 };
    DT_TRY(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    DT_TRY(dt_train_psgd(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 5, .batch = 16, .average_every = 3,
                                                           .on_step = hear, .user = &t }, &r));
    need(r.stopped && r.epochs == 1);
    need(t.calls == 3);
    DT_TRY(dt_check_replicas(net, comm));
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

static dt_err stops_together(dt_comm *comm, void *arg) {
    (void)arg;
    dt_net *net;
    dt_train_result r;
    told t = { .orderly = true, .stop_at = dt_comm_rank(comm) == dt_comm_size(comm) - 1 ? 3 : 0 };
    DT_TRY(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    DT_TRY(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 5, .batch = BATCH, .on_step = hear, .user = &t }, &r));
    need(r.stopped && r.epochs == 1);
    need(t.calls >= 3 && t.calls <= 5);
    int calls = t.calls, all[MOST_RANKS];
    DT_TRY(dt_allgather(comm, &calls, sizeof calls, all));
    for (int i = 0; i < dt_comm_size(comm); ++i) need(all[i] == calls);
    DT_TRY(dt_check_replicas(net, comm));
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

/* ---- Exact sums whose unit follows the gradient [S8.6]. */

/* Pixels of that scale under weights of 0: the gradient of the weights is of that scale, too. */
static dt_err make_scaled_net(dt_net **out, int batch) {
    dt_net *net = *out = dt_net_new(1, 28, 28);
    dt_linear(net, "fc", 10);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = batch }));
    memset(dt_net_values(net), 0, dt_net_count(net) * sizeof(float));
    return DT_OK;
}

static float lr_at(float scale) { return (float)fmin(0.1 / ((double)scale * (double)scale), 0.1); }

/* Each scale by the trainer: the same bits on these ranks and alone, and a first step that may have to be taken again. */
static dt_err gradients_of_all_sizes(dt_comm *comm, void *arg) {
    (void)arg;
    const float scales[] = { 1e-20f, 1e-13f, 1e-7f, 1.0f, 1e4f, 1e8f };
    dt_dataset mine = data; /* its pixels are shared */
    for (int k = 0; k < 6; ++k) {
        uint64_t hash[3];
        float mean = 0.0f, std = 1.0f / scales[k];
        mine.mean = &mean;
        mine.std = &std;
        for (int way = 0; way < 3; ++way) {
            dt_net *net;
            dt_train_result r;
            DT_TRY(make_scaled_net(&net, BATCH));
            dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = lr_at(scales[k]), .momentum = 0.5f });
            dt_comm *one = way == 0 ? dt_comm_alone() : NULL;
            DT_TRY(dt_train_sync(net, opt, one ? one : comm, &(dt_train_desc){ .data = &mine, .epochs = 2, .batch = BATCH, .seed = 5,
                                 .algorithm = way == 2 ? DT_RING : DT_AUTO, .bucket_bytes = way == 2 ? 64 : 0 }, &r));
            need(r.retaken == (scales[k] < 1e-3f || scales[k] > 1e5f));
            hash[way] = dt_net_hash(net);
            dt_comm_free(one);
            dt_optimizer_free(opt);
            dt_net_free(net);
        }
        need(hash[1] == hash[0] && hash[2] == hash[0]);
    }
    return DT_OK;
}

/* The scale changes by far more than a unit has room for, in the middle of training. Batches of 64; and of 16, so that one
   rank has all samples and the others none. Each change takes a step again, and no more than one. */
static dt_err jump(dt_comm *comm, uint32_t batch, uint64_t *hash, uint64_t *retaken) {
    static const float scales[] = { 1.0f, 1e-12f, 1e-12f, 1.0f, 3e9f, 1.0f, 0.0f, 1.0f, 30.0f };
    dt_net *net;
    dt_batches it;
    DT_TRY(make_scaled_net(&net, BATCH));
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 1e-30f });
    DT_TRY(dt_broadcast_parameters(net, comm));
    DT_TRY(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = batch, .rank = dt_comm_rank(comm), .size = dt_comm_size(comm) }));
    *hash = 0;
    for (int k = 0; k < 9; ++k) {
        dt_batch b;
        if (!dt_batches_next(&it, &b)) {
            dt_batches_begin(&it, 1);
            need(dt_batches_next(&it, &b));
        }
        const float mean = 0.0f, std = scales[k] > 0.0f ? 1.0f / scales[k] : FLT_MAX;
        b.mean = &mean;
        b.std = &std;
        DT_TRY(dt_net_load(net, &b));
        b.mean = b.std = NULL; /* the step may be taken again without them */
        DT_TRY(dt_forward(net));
        DT_TRY(dt_backward(net));
        DT_TRY(dt_average_gradients(net, comm));
        const dt_param *w = dt_net_find(net, "fc.weight");
        float largest = 0.0f;
        for (size_t i = 0; i < dt_tensor_count(&w->value); ++i) largest = fmaxf(largest, fabsf(w->grad.data[i]));
        need(largest <= scales[k] && largest >= scales[k] * 1e-3f);
        need(largest <= 0.0f || ((double)largest / (double)w->unit < 0x1p60 && (double)largest / (double)w->unit > 0x1p24));
        const dt_score score = dt_net_score(net);
        need(score.count == (int64_t)b.global_count);
        *hash = dt_hash(dt_net_gradients(net), dt_net_count(net) * sizeof(float), *hash);
        *hash = dt_hash(&score, sizeof score, *hash);
        dt_optimizer_step(opt);
    }
    *retaken = net->retaken;
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

static dt_err gradients_that_jump(dt_comm *comm, void *arg) {
    (void)arg;
    for (uint32_t batch = 16; batch <= BATCH; batch *= 4) {
        uint64_t one[2], all[2];
        dt_comm *self = dt_comm_alone();
        need(self);
        DT_TRY(jump(self, batch, &one[0], &one[1]));
        dt_comm_free(self);
        DT_TRY(jump(comm, batch, &all[0], &all[1]));
        need(all[0] == one[0]);
        need(one[1] == 4); /* down, up, up and down */
        need(all[1] >= 4 && all[1] <= 8); /* a rank that has all samples first did so for itself */
    }
    return DT_OK;
}

/* Ranks that have trained apart have other units; that is found, and mended. */
static dt_err units_that_differ(dt_comm *comm, void *arg) {
    (void)arg;
    dt_net *net;
    dt_batches it;
    dt_batch b;
    DT_TRY(make_net(&net, BATCH, 6, false));
    DT_TRY(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = BATCH, .rank = dt_comm_rank(comm), .size = dt_comm_size(comm) }));
    for (int mended = 0; mended <= 1; ++mended) {
        if (dt_comm_rank(comm) == 0) net->next_unit[1] *= 2.0f;
        if (mended) DT_TRY(dt_broadcast_parameters(net, comm));
        need(dt_batches_next(&it, &b));
        DT_TRY(dt_net_load(net, &b));
        DT_TRY(dt_forward(net));
        DT_TRY(dt_backward(net));
        const dt_err error = dt_average_gradients(net, comm);
        need(error == (mended || dt_comm_size(comm) == 1 ? DT_OK : DT_ECOMM));
        need(error == DT_OK || strstr(dt_error(), "different units"));
    }
    dt_batches_free(&it);
    dt_net_free(net);
    return DT_OK;
}

/* ---- Gradient accumulation [S8.1]: a batch in parts has the bits of one in one piece, with everything on that is drawn or summed. */

static dt_err make_parts_net(dt_net **out, int batch, dt_statistics over, bool float_sums) {
    dt_net *net = *out = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 6, .kernel = 5, .stride = 2 });
    dt_batchnorm2d(net, "bn1", &(dt_batchnorm2d_desc){ DT_BATCHNORM2D_DEFAULTS, .over = over });
    dt_relu(net);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 6, .kernel = 3, .padding = 1, .no_bias = true });
    dt_batchnorm2d(net, "bn2", &(dt_batchnorm2d_desc){ DT_BATCHNORM2D_DEFAULTS, .over = over });
    dt_maxpool2d(net, 2);
    dt_dropout2d(net, 0.2f);
    dt_linear(net, "fc", 10);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = batch, .seed = 6, .float_sums = float_sums }));
    for (int i = 0; i < net->params; ++i) net->next_unit[i] = 0x1p10f; /* far too coarse: the first step is taken again */
    return DT_OK;
}

typedef struct parted { uint64_t hash, retaken; dt_score score; } parted;

/* Two epochs of batches of 160 and one of 80, in so many parts; the net holds 160 / parts images. By the trainer, or step by step. */
static dt_err train_in_parts(dt_comm *comm, uint32_t parts, bool by_hand, bool float_sums, parted *out) {
    const dt_augment altered = { .seed = 5, .flip = 0.5f, .rotate = 10.0f, .scale_low = 0.8f, .scale_high = 1.2f, .brightness = 0.2f };
    dt_net *net;
    dt_train_result r = { .seconds = 0.0 };
    dt_batches it;
    DT_TRY(make_parts_net(&net, (int)((160 + parts - 1) / parts), DT_STATISTICS_GROUP, float_sums));
    dt_optimizer *opt = make_sgd(net);
    if (by_hand) {
        DT_TRY(dt_broadcast_parameters(net, comm));
        DT_TRY(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = 160, .rank = dt_comm_rank(comm), .size = dt_comm_size(comm), .seed = 31, .shuffle = true, .augment = &altered }));
        for (uint32_t epoch = 0; epoch < 2; ++epoch) {
            r.score = (dt_score){ 0, 0, 0 };
            dt_batches_begin(&it, epoch);
            for (dt_batch b; dt_batches_next(&it, &b);) {
                DT_TRY(dt_accumulate_gradients(net, &b, parts));
                DT_TRY(dt_average_gradients(net, comm));
                dt_optimizer_step(opt);
                const dt_score score = dt_net_score(net);
                dt_score_add(&r.score, &score);
            }
        }
        r.retaken = net->retaken;
        dt_batches_free(&it);
    } else
        DT_TRY(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 2, .batch = 160, .seed = 31, .augment = &altered, .accumulate = parts,
                             .check_every = 1, .bucket_bytes = 500 }, &r));
    *out = (parted){ dt_net_hash(net), r.retaken, r.score };
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

static dt_err parts_make_no_difference(dt_comm *comm, void *arg) {
    (void)arg;
    parted one, many;
    dt_comm *self = dt_comm_alone();
    need(self);
    DT_TRY(train_in_parts(self, 1, false, false, &one));
    need(one.retaken == 1 && one.score.count == COUNT);
    for (uint32_t parts = 2; parts <= 12; parts += 5) /* of 10 lane groups: 12 leaves some empty */
        for (int by_hand = 0; by_hand <= 1; ++by_hand) {
            /* ranks need not agree on it */
            DT_TRY(train_in_parts(comm, parts + (uint32_t)dt_comm_rank(comm) % 2, by_hand, false, &many));
            need(many.hash == one.hash && many.score.loss_fixed == one.score.loss_fixed && many.score.correct == one.score.correct && many.score.count == COUNT);
            need(many.retaken == 1);
        }
    DT_TRY(train_in_parts(self, 1, false, true, &one)); /* floats are added in the same order, too */
    DT_TRY(train_in_parts(self, 4, false, true, &many));
    need(many.hash == one.hash);
    dt_comm_free(self);
    return DT_OK;
}

/* PSGD and accumulation; and what is refused: layers that look further than a micro-batch, and parts that do not fit. */
static dt_err parts_elsewhere(dt_comm *comm, void *arg) {
    (void)arg;
    uint64_t hash[2];
    dt_train_result r;
    for (uint32_t parts = 1; parts <= 2; ++parts) {
        dt_net *net;
        DT_TRY(make_net(&net, 64 / (int)parts, 6, false));
        dt_optimizer *opt = make_sgd(net);
        DT_TRY(dt_train_psgd(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 1, .batch = 64 * (uint32_t)dt_comm_size(comm), .average_every = 2, .accumulate = parts }, &r));
        hash[parts - 1] = dt_net_hash(net);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    need(hash[0] == hash[1]);
    for (int over = 0; over < DT_STATISTICS_KINDS; ++over) {
        dt_net *net;
        DT_TRY(make_parts_net(&net, 32, (dt_statistics)over, false));
        dt_optimizer *opt = make_sgd(net);
        const dt_err got = dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 1, .batch = 32, .accumulate = 2 }, &r);
        need(got == (over == DT_STATISTICS_GROUP ? DT_OK : DT_EARG));
        need(got == DT_OK || strstr(dt_error(), "batchnorm2d \"bn1\" looks at all images of a step together, but they come in 2 parts"));
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    return DT_OK;
}

/* ---- The verbs. */

static dt_err broadcast_and_replicas(dt_comm *comm, void *arg) {
    (void)arg;
    const int rank = dt_comm_rank(comm), ranks = dt_comm_size(comm);
    dt_net *net, *root;
    DT_TRY(make_net(&net, 16, 100 + (uint64_t)rank, false));
    DT_TRY(make_net(&root, 16, 100, false));
    if (ranks > 1) need(dt_check_replicas(net, comm) == DT_ECOMM);
    DT_TRY(dt_broadcast_parameters(net, comm));
    need(dt_net_hash(net) == dt_net_hash(root));
    DT_TRY(dt_check_replicas(net, comm));
    const int last = ranks - 1;
    const char *names[] = { "conv1.weight", "conv1.bias", "fc1.weight", "fc2.bias" };
    for (int i = 0; i < 4 && ranks > 1; ++i) { /* one bit, anywhere, on the last rank */
        const dt_param *p = dt_net_find(net, names[i]);
        float *w = p->value.data + (dt_tensor_count(&p->value) - 1);
        uint32_t bits;
        char wanted[16];
        memcpy(&bits, w, sizeof bits);
        bits ^= 1u;
        if (rank == last) memcpy(w, &bits, sizeof bits);
        need(dt_check_replicas(net, comm) == DT_ECOMM); /* on every rank, in the same words */
        snprintf(wanted, sizeof wanted, "rank %d", last);
        need(strstr(dt_error(), wanted) == dt_error() && strstr(dt_error(), names[i]) && !strchr(dt_error(), '\n'));
        bits ^= 1u;
        if (rank == last) memcpy(w, &bits, sizeof bits);
        DT_TRY(dt_check_replicas(net, comm));
    }
    dt_net_free(net);
    dt_net_free(root);
    return DT_OK;
}

static dt_err averages_parameters(dt_comm *comm, void *arg) {
    (void)arg;
    const int rank = dt_comm_rank(comm), ranks = dt_comm_size(comm);
    dt_net *net;
    DT_TRY(make_net(&net, 16, 1, false));
    for (size_t i = 0; i < dt_net_count(net); ++i) dt_net_values(net)[i] = (float)((int)(i % 13) - 6 + 4 * rank) * 0.25f;
    DT_TRY(dt_average_parameters(net, comm));
    for (size_t i = 0; i < dt_net_count(net); ++i) {
        double wanted = ((double)(i % 13) - 6.0 + 2.0 * (ranks - 1)) * 0.25;
        need(fabs((double)dt_net_values(net)[i] - wanted) < 1e-6);
    }
    DT_TRY(dt_check_replicas(net, comm));
    if (ranks > 1) { /* a rank whose values went to infinity cannot be averaged, and says so */
        dt_net_values(net)[5] = INFINITY;
        need(dt_average_parameters(net, comm) == DT_ENUMERIC);
    }
    dt_net_free(net);
    return DT_OK;
}

/* Every sample once, for any number of ranks and any batch, with dropout off. */
static dt_err evaluates_each_once(dt_comm *comm, void *arg) {
    (void)arg;
    const uint32_t counts[] = { 1, 15, 16, 17, 100, COUNT };
    const int batches[] = { 16, 48, 64 };
    for (size_t i = 0; i < 6; ++i) {
        dt_dataset view;
        dt_score alone, shared;
        DT_TRY(dt_dataset_view(&view, &data, COUNT - counts[i], counts[i]));
        for (int k = 0; k < 3; ++k) {
            dt_net *net;
            DT_TRY(make_net(&net, batches[k], 6, false));
            DT_TRY(dt_evaluate(net, &view, NULL, &alone));
            DT_TRY(dt_evaluate(net, &view, comm, &shared));
            need(alone.count == counts[i] && shared.count == alone.count);
            need(shared.correct == alone.correct && shared.loss_fixed == alone.loss_fixed);
            need(dt_backward(net) == DT_EARG); /* dropout's masks are not there */
            int64_t correct = 0;               /* counted by hand */
            dt_net_training(net, false);
            for (uint32_t n = 0; n < counts[i]; ++n) {
                float z[10];
                int best = 0;
                dt_batch b = { .pixels = view.pixels, .labels = view.labels, .mean = view.mean, .std = view.std, .index = &n, .count = 1, .global_count = 1 };
                if (dt_net_load(net, &b) != DT_OK || dt_forward(net) != DT_OK) return DT_EDATA;
                dt_net_logits(net, 0, z);
                for (int c = 1; c < 10; ++c) best = z[c] > z[best] ? c : best;
                correct += best == view.labels[n];
            }
            need(correct == shared.correct);
            dt_net_free(net);
        }
    }
    return DT_OK;
}

/* Evaluation leaves no trace in training. */
static dt_err evaluation_changes_nothing(dt_comm *comm, void *arg) {
    (void)arg;
    uint64_t hash[2];
    for (int look = 0; look < 2; ++look) {
        dt_net *net;
        dt_train_result r;
        dt_score score;
        DT_TRY(make_net(&net, BATCH, 6, false));
        dt_optimizer *opt = make_sgd(net);
        for (int i = 0; i < 2; ++i) {
            DT_TRY(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 1, .batch = BATCH }, &r));
            if (look) DT_TRY(dt_evaluate(net, &data, comm, &score));
        }
        hash[look] = dt_net_hash(net);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    need(hash[0] == hash[1]);
    return DT_OK;
}

/* The last rank alone holds other data, or rounds in another way: every trainer and the evaluation say so, on every rank. */
static dt_err one_rank_differs(dt_comm *comm, void *arg) {
    enum { OTHER_IMAGES, OTHER_MEAN, OTHER_CLASSES, SETS, ROUNDING = SETS, AUGMENT, VALIDATION, WAYS };
    const int last = dt_comm_size(comm) - 1;
    const bool odd = dt_comm_rank(comm) == last;
    dt_dataset set[SETS];
    dt_net *net;
    (void)arg;
    if (last == 0) return DT_OK;
    DT_TRY(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    for (int i = 0; i < SETS; ++i) DT_TRY(dt_dataset_view(&set[i], &data, odd && i == OTHER_IMAGES, COUNT / 2));
    float other_mean = data.mean[0] + 0.25f;
    if (odd) set[OTHER_MEAN].mean = &other_mean, set[OTHER_CLASSES].classes += 1;
    for (int i = 0; i < WAYS; ++i) {
        dt_train_result result;
        dt_score score;
        const dt_dataset *mine = i < SETS ? &set[i] : &data;
        const dt_augment flips = { .flip = odd ? 0.5f : 0.25f };
        const dt_train_desc desc = { .data = mine, .epochs = 1, .batch = BATCH, .seed = 31,
                                     .augment = i == AUGMENT ? &flips : NULL, .validation = odd && i == VALIDATION ? &data : NULL };
        if (odd && i == ROUNDING) fesetround(FE_TOWARDZERO);
        const dt_err sync = dt_train_sync(net, opt, comm, &desc, &result), psgd = dt_train_psgd(net, opt, comm, &desc, &result);
        fesetenv(FE_DFL_ENV);
        need(sync == DT_ECOMM && psgd == DT_ECOMM);
        need(strstr(dt_error(), i == ROUNDING ? "in the build, or how it rounds" : i >= AUGMENT ? "in the settings of training" : "in the training data"));
        need(i >= SETS || dt_evaluate(net, mine, comm, &score) == DT_ECOMM);
        need(i >= SETS || strstr(dt_error(), "in the data to evaluate"));
    }
    dt_net_free(net);
    dt_optimizer_free(opt);
    DT_TRY(make_net(&net, odd ? BATCH : 2 * BATCH, 6, false)); /* other batches would share the rows out in another way */
    dt_score score;
    need(dt_evaluate(net, &data, comm, &score) == DT_ECOMM);
    dt_net_free(net);
    return DT_OK;
}

/* ---- PSGD: P workers alone on their shares, then one average; checked against the same done by hand. */

static dt_err by_hand(dt_net *net, int rank, int ranks, int epochs, uint64_t seed, uint32_t batch) {
    uint32_t *index = malloc(COUNT * sizeof *index), start[MOST_RANKS + 1];
    dt_batches it;
    dt_optimizer *opt = make_sgd(net);
    DT_TRY(dt_partition(index, start, NULL, (uint32_t)ranks, COUNT, seed));
    DT_TRY(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = batch, .seed = seed + (uint64_t)rank, .shuffle = true,
                           .subset = index + start[rank], .subset_count = start[rank + 1] - start[rank] }));
    for (int epoch = 0; epoch < epochs; ++epoch) {
        dt_batches_begin(&it, (uint32_t)epoch);
        for (dt_batch b; dt_batches_next(&it, &b);) {
            DT_TRY(dt_net_load(net, &b));
            DT_TRY(dt_forward(net));
            DT_TRY(dt_backward(net));
            dt_optimizer_step(opt);
        }
    }
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    free(index);
    return DT_OK;
}

static dt_err psgd_is_the_average(dt_comm *comm, void *arg) {
    (void)arg;
    const int ranks = dt_comm_size(comm);
    const uint32_t batch = dt_psgd_batch(BATCH, ranks);
    double *sum = NULL;
    dt_net *net, *worker;
    dt_train_result r;
    need(ranks > 1 ? batch % DT_LANES == 0 && (uint64_t)batch * (uint64_t)ranks >= BATCH : batch == BATCH);
    DT_TRY(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    DT_TRY(dt_train_psgd(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 2, .batch = BATCH, .seed = 17 }, &r));
    need(r.epochs == 2 && r.samples == 2 * COUNT && r.score.count == COUNT && !r.stopped);
    DT_TRY(dt_check_replicas(net, comm));
    sum = calloc(dt_net_count(net), sizeof *sum);
    for (int w = 0; w < ranks; ++w) {
        DT_TRY(make_net(&worker, BATCH, 6, false));
        DT_TRY(by_hand(worker, w, ranks, 2, 17, batch));
        for (size_t i = 0; i < dt_net_count(net); ++i) sum[i] += (double)dt_net_values(worker)[i];
        if (ranks == 1) need(dt_net_hash(worker) == dt_net_hash(net)); /* one rank is plain SGD, to the bit */
        dt_net_free(worker);
    }
    for (size_t i = 0; i < dt_net_count(net); ++i) need(fabs((double)dt_net_values(net)[i] - sum[i] / ranks) < 1e-6);
    free(sum);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

/* An average in every step keeps the replicas together; averaging rarely is something else. */
static dt_err local_sgd_averages(dt_comm *comm, void *arg) {
    (void)arg;
    uint64_t hash[3];
    const uint32_t every[] = { 0, 1, 3 };
    for (int i = 0; i < 3; ++i) {
        dt_net *net;
        dt_train_result r;
        DT_TRY(make_net(&net, BATCH, 6, false));
        dt_optimizer *opt = make_sgd(net);
        DT_TRY(dt_train_psgd(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 1, .batch = BATCH, .seed = 17, .average_every = every[i] }, &r));
        hash[i] = dt_net_hash(net);
        need(r.samples == COUNT);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    if (dt_comm_size(comm) > 1) need(hash[0] != hash[1] && hash[1] != hash[2] && hash[0] != hash[2]);
    else need(hash[0] == hash[1] && hash[1] == hash[2]);
    return DT_OK;
}

/* Every algorithm gives PSGD and the verbs the same bits, and is really the one that is used: it sends what it must. */
static dt_err algorithms_reach_the_averages(dt_comm *comm, void *arg) {
    (void)arg;
    const dt_algorithm ways[] = { DT_AUTO, DT_NAIVE, DT_TREE, DT_RING, DT_DOUBLING, DT_HALVING };
    const int p = dt_comm_size(comm);
    uint64_t hash = 0;
    for (int i = 0; i < 12; ++i) { /* said to the trainer, then to the communicator */
        dt_net *net;
        dt_train_result r;
        dt_step step;
        uint64_t messages = 0, sent;
        DT_TRY(make_net(&net, BATCH, 6, false));
        dt_optimizer *opt = make_sgd(net);
        DT_TRY(dt_comm_set_algorithm(comm, i < 6 ? DT_AUTO : ways[i % 6]));
        sent = dt_comm_times(comm).messages;
        DT_TRY(dt_train_psgd(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 1, .batch = BATCH, .seed = 17, .average_every = 3,
                             .algorithm = i < 6 ? ways[i] : DT_AUTO }, &r));
        sent = dt_comm_times(comm).messages - sent;
        for (int k = 0; dt_allreduce_step(ways[i % 6], k, dt_comm_rank(comm), p, dt_net_count(net), &step); ++k) messages += step.to >= 0;
        need(i % 6 == 0 || p == 1 || sent >= messages * (1 + COUNT / (uint64_t)p / dt_psgd_batch(BATCH, p) / 3));
        if (i == 0) hash = dt_net_hash(net);
        need(dt_net_hash(net) == hash);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    DT_TRY(dt_comm_set_algorithm(comm, DT_AUTO));
    if (p > 1 && strcmp(dt_comm_backend_name(comm), "threads") == 0) {
        need(dt_comm_set_algorithm(comm, DT_MPI) == DT_EARG && strstr(dt_error(), "the ranks are threads"));
        DT_TRY(dt_barrier(comm));
    }
    return DT_OK;
}

static dt_err refuses(dt_comm *comm, void *arg) {
    (void)arg;
    dt_net *net;
    dt_train_result r;
    DT_TRY(make_net(&net, 16, 6, false));
    dt_optimizer *opt = make_sgd(net);
    need(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 0, .batch = 16 }, &r) == DT_EARG);
    need(strstr(dt_error(), "0 epochs"));
    need(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 1, .batch = 0 }, &r) == DT_EARG);
    need(dt_train_psgd(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 1, .batch = 0 }, &r) == DT_EARG);
    dt_dataset small = data;
    small.height = 14;
    need(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &small, .epochs = 1, .batch = 16 }, &r) == DT_ESHAPE);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

/* ---- Outer momentum [S11.4]. */

static dt_err psgd_once(dt_comm *comm, int epochs, uint32_t every, const dt_outer_desc *outer, float *values) {
    dt_net *net;
    dt_train_result r;
    DT_TRY(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    DT_TRY(dt_train_psgd(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = epochs, .batch = BATCH, .seed = 31, .average_every = every, .outer = outer }, &r));
    memcpy(values, net->values, net->count * sizeof(float));
    DT_TRY(dt_check_replicas(net, comm));
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

/* One average, and so one outer step: to the bit what its formula makes of the average. With lr 1 and no momentum, the average. */
static dt_err outer_step_is_its_formula(dt_comm *comm, void *arg) {
    (void)arg;
    const dt_outer_desc ways[] = { { DT_DILOCO_DEFAULTS }, { .lr = 0.5f, .momentum = 0.8f }, { .lr = 1.0f } };
    float average[8192], got[8192];
    dt_net *start;
    DT_TRY(make_net(&start, BATCH, 6, false));
    const size_t n = dt_net_count(start);
    need(n <= 8192);
    DT_TRY(psgd_once(comm, 1, 0, NULL, average));
    for (int w = 0; w < 3; ++w) {
        DT_TRY(psgd_once(comm, 1, 0, &ways[w], got));
        for (size_t i = 0; i < n; ++i) {
            const float from = start->values[i], way = from - average[i], mu = ways[w].momentum;
            const float want = from - ways[w].lr * (ways[w].nesterov ? way + mu * way : way);
            need(got[i] == want);
            need(w < 2 || fabsf(got[i] - average[i]) <= 1e-6f);
        }
    }
    dt_net_free(start);
    need(psgd_once(comm, 1, 0, &(dt_outer_desc){ .momentum = 0.9f }, got) == DT_EARG && strstr(dt_error(), "outer learning rate of 0"));
    need(psgd_once(comm, 1, 0, &(dt_outer_desc){ .lr = 1.0f, .momentum = NAN }, got) == DT_EARG);
    return DT_OK;
}

/* One rank, written out: steps, and every third one an outer step; the epochs end in the middle of three. */
static void outer_momentum_by_hand(void **state) {
    (void)state;
    enum { EPOCHS = 2, EVERY = 3 };
    static float got[8192], common[8192], buf[8192];
    const dt_outer_desc outer = { DT_DILOCO_DEFAULTS };
    dt_comm *comm = dt_comm_alone();
    dt_net *net;
    dt_batches it;
    uint32_t step = 0, due = 0, whole[COUNT], start[2];
    ok(psgd_once(comm, EPOCHS, EVERY, &outer, got));
    ok(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    const size_t n = dt_net_count(net);
    memset(buf, 0, sizeof buf);
    memcpy(common, net->values, n * sizeof(float));
    ok(dt_partition(whole, start, NULL, 1, COUNT, 31));
    ok(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = BATCH, .seed = 31, .shuffle = true, .subset = whole, .subset_count = COUNT }));
    for (uint32_t epoch = 0; epoch < EPOCHS; ++epoch) {
        dt_batches_begin(&it, epoch);
        for (dt_batch b; dt_batches_next(&it, &b);) {
            ok(dt_net_load(net, &b));
            ok(dt_forward(net));
            ok(dt_backward(net));
            dt_optimizer_step(opt);
            const bool last = epoch == EPOCHS - 1 && it.position == it.count;
            if (++due && ++step % EVERY != 0 && !last) continue;
            for (size_t i = 0; i < n; ++i) {
                const float way = common[i] - net->values[i];
                buf[i] = 0.9f * buf[i] + way;
                net->values[i] = common[i] -= 0.7f * (way + 0.9f * buf[i]);
            }
            due = 0;
        }
    }
    assert_int_equal(due, 0);
    assert_int_not_equal(step % EVERY, 0);
    assert_memory_equal(net->values, got, n * sizeof(float));
    /* and where the last step was an average, nothing is added behind it */
    static float twice[8192];
    ok(psgd_once(comm, 1, COUNT / BATCH + 1, &outer, got)); /* 7 steps: one outer step, at the last */
    ok(psgd_once(comm, 1, 0, &outer, twice));
    assert_memory_equal(got, twice, n * sizeof(float));
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    dt_comm_free(comm);
}

/* Running variances may be far below the unit of the weights' sums; their mean keeps its digits. */
static dt_err small_variances_are_averaged(dt_comm *comm, void *arg) {
    (void)arg;
    dt_net *net;
    DT_TRY(make_parts_net(&net, 32, DT_STATISTICS_GROUP, false));
    const dt_param *var = dt_net_find(net, "bn1.running_var"), *mean = dt_net_find(net, "bn1.running_mean");
    const float sizes[] = { 1e-30f, 1e-12f, 1e-6f, 1.0f, 1e12f, 1e30f };
    const int p = dt_comm_size(comm);
    for (int c = 0; c < 6; ++c) var->value.data[c] = sizes[c] * (float)(1 + dt_comm_rank(comm)), mean->value.data[c] = -var->value.data[c];
    DT_TRY(dt_average_parameters(net, comm));
    for (int c = 0; c < 6; ++c) {
        need(fabs((double)var->value.data[c] / ((double)sizes[c] * (1 + p) / 2.0) - 1.0) < 2e-7);
        need(mean->value.data[c] == -var->value.data[c]);
    }
    DT_TRY(dt_check_replicas(net, comm));
    dt_net_free(net);
    return DT_OK;
}

/* Taps that no output has are left out of the gradient's sums [S6.1]. Beside it the same net whose convolutions give, add up and send
   the zeros as well: the bits must be the same, through training, weight decay and averages. */
static dt_err with_zeros_shape(dti_layer *l, const void *desc) {
    DT_TRY(dti_conv2d_shape(l, desc));
    dti_slot *w = l->slot;
    memset(w->first, 0, sizeof w->first), memset(w->taps, 0, sizeof w->taps);
    w->sums = dt_tensor_count(&w->shape);
    return DT_OK;
}

static void with_zeros_backward(const dti_op *op, const dti_pass *run, int g) {
    const dti_conv *c = &((const dti_conv2d *)op->layer->own)->conv;
    dti_slot w = op->layer->slot[0];
    dti_conv_taps(c, w.first, w.taps);
    w.sums = (size_t)(c->O * c->C) * (size_t)(w.taps[0] * w.taps[1]);
    dti_conv2d_backward(op, run, g); /* the bias's gradient goes behind all weights, where it belongs */
    float *used = malloc(w.sums * sizeof *used);
    memcpy(used, run->group_grad, w.sums * sizeof *used);
    memset(run->group_grad, 0, dt_tensor_count(&w.shape) * sizeof *used);
    dti_spread(&w, used, run->group_grad);
    free(used);
}

static dt_err make_small_maps(dt_net **out, bool zeros, bool float_sums) {
    static const dt_conv2d_desc descs[] = { /* maps of 28, 7, 4, 2, 2, 1 and 1: the last four have taps that are not used */
        { .out = 4, .kernel = 7, .stride = 4, .padding = 3 }, { .out = 8, .kernel = 3, .stride = 2, .padding = 1 },
        { .out = 12, .kernel = 3, .stride = 2, .padding = 1 }, { .out = 14, .kernel = 5, .padding = DT_SAME },
        { .out = 9, .kernel = 3, .stride = 2, .padding = 1, .no_bias = true }, { .out = 13, .kernel = 3, .padding = DT_SAME },
        { .out = 6, .kernel = 5, .padding = DT_SAME } };
    dti_layer_class class = dti_conv2d_class;
    static dti_layer_class with_zeros; /* all ranks write the same */
    class.shape = with_zeros_shape, class.backward = with_zeros_backward;
    with_zeros = class;
    dt_net *net = *out = dt_net_new(1, 28, 28);
    for (int i = 0; i < 7; ++i) {
        char name[8];
        snprintf(name, sizeof name, "conv%d", i);
        dti_append(net, zeros ? &with_zeros : &dti_conv2d_class, name, &descs[i], -1);
        dt_relu(net);
    }
    dt_linear(net, "fc", 10);
    return dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = 4, .float_sums = float_sums, .direct = true });
}

static dt_err unused_taps_change_nothing(dt_comm *comm, void *arg) {
    (void)arg;
    for (int way = 0; way < 2; ++way) {
        uint64_t hash[2];
        for (int zeros = 0; zeros < 2; ++zeros) {
            dt_net *net;
            dt_train_result r;
            DT_TRY(make_small_maps(&net, zeros, way == 1));
            need(zeros ? net->summed == net->trained : net->summed < net->trained / 2);
            dt_optimizer *opt = dt_adam(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS, .weight_decay = 0.01f });
            DT_TRY(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &data, .epochs = 1, .batch = BATCH, .seed = 31, .bucket_bytes = 500 }, &r));
            for (size_t i = 0; i < net->count; ++i) net->values[i] *= (float)(1 + dt_comm_rank(comm));
            DT_TRY(dt_average_parameters(net, comm));
            hash[zeros] = dt_hash(net->grad, net->trained * sizeof(float), dt_net_hash(net));
            dt_optimizer_free(opt);
            dt_net_free(net);
        }
        need(hash[0] == hash[1]);
    }
    return DT_OK;
}

/* ---- Checkpoints [S11.2] of processes for threads and of threads for processes. Every rank is given a path; rank 0's counts. */

typedef struct kept_run { const char *checkpoint, *resume; int stop_at; bool sync; uint64_t hash; } kept_run;

static bool stop_there(const dt_progress *p, void *user) {
    const kept_run *k = user;
    return (int)((uint32_t)p->epoch * p->steps + p->step) != k->stop_at;
}

static dt_err run_kept(dt_comm *comm, void *arg) {
    kept_run *k = arg;
    const dt_outer_desc outer = { DT_DILOCO_DEFAULTS };
    const dt_train_desc desc = { .data = &data, .epochs = 2, .batch = BATCH, .seed = 31, .average_every = 3, .outer = k->sync ? NULL : &outer,
                                 .checkpoint = k->checkpoint, .checkpoint_every = 50, .resume = k->resume, .on_step = stop_there, .user = k };
    dt_train_result r;
    dt_net *net;
    DT_TRY(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    DT_TRY((k->sync ? dt_train_sync : dt_train_psgd)(net, opt, comm, &desc, &r));
    need(!k->resume || r.resumed > 0);
    if (dt_comm_rank(comm) == 0) k->hash = dt_net_hash(net);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

static dt_err checkpoints_move(dt_comm *comm, void *arg) {
    (void)arg;
    const int p = dt_comm_size(comm);
    char path[80];
    snprintf(path, sizeof path, "/tmp/test_train.%ld.checkpoint", (long)getpid());
    for (int sync = 0; sync <= 1; ++sync) {
        kept_run whole = { .sync = sync }, first = { .sync = sync, .checkpoint = path, .stop_at = 2 }, last = { .sync = sync, .resume = path };
        DT_TRY(run_kept(comm, &whole));
        DT_TRY(run_kept(comm, &first));
        if (dt_comm_rank(comm) == 0) { /* threads of rank 0 go on; and some more steps later, all again */
            kept_run there = { .sync = sync, .resume = path }, back = { .sync = sync, .resume = path, .checkpoint = path, .stop_at = 5 };
            DT_TRY(dt_run_ranks(p, run_kept, &there));
            need(there.hash == whole.hash);
            DT_TRY(dt_run_ranks(p, run_kept, &back));
        }
        DT_TRY(dt_barrier(comm));
        DT_TRY(run_kept(comm, &last));
        if (dt_comm_rank(comm) == 0) need(last.hash == whole.hash && last.hash != 0);
        DT_TRY(dt_barrier(comm));
    }
    if (dt_comm_rank(comm) == 0) remove(path);
    return DT_OK;
}

static const struct { const char *name; dt_err (*fn)(dt_comm *, void *); } on_ranks[] = {
    { "taps that no output has change nothing", unused_taps_change_nothing },
    { "synchronous SGD equals the loop on one core", sync_equals_the_loop },
    { "float sums are near", float_sums_are_near },
    { "one rank's wish stops all", stops_together },
    { "PSGD stops at an average", psgd_stops_at_an_average },
    { "gradients of all sizes", gradients_of_all_sizes },
    { "gradients that jump", gradients_that_jump },
    { "units that differ", units_that_differ },
    { "a batch in parts", parts_make_no_difference },
    { "parts under PSGD, and what is refused", parts_elsewhere },
    { "broadcast, and the check of the replicas", broadcast_and_replicas },
    { "parameters are averaged", averages_parameters },
    { "evaluation counts each sample once", evaluates_each_once },
    { "evaluation changes nothing", evaluation_changes_nothing },
    { "PSGD is the average of its workers", psgd_is_the_average },
    { "local SGD averages in between", local_sgd_averages },
    { "algorithms reach the averages", algorithms_reach_the_averages },
    { "an outer step is its formula", outer_step_is_its_formula },
    { "checkpoints move between processes and threads", checkpoints_move },
    { "small variances are averaged", small_variances_are_averaged },
    { "settings that cannot be meant", refuses },
    { "one rank differs, and is named", one_rank_differs },
};
enum { CASES = sizeof on_ranks / sizeof *on_ranks };

static void on_threads(void **state) {
    (void)state;
    for (int i = 0; i < CASES; ++i)
        for (int p = 1; p <= 5; ++p)
            if (dt_run_ranks(p, on_ranks[i].fn, NULL) != DT_OK) fail_msg("%d threads: %s: %s", p, on_ranks[i].name, dt_error());
}

/* More ranks than an epoch's step has lane groups, and than 256: the same bits as one. */
static dt_err on_many(dt_comm *comm, void *arg) {
    uint64_t *hash = arg;
    dt_train_result r;
    dt_net *net;
    dt_dataset few;
    DT_TRY(dt_dataset_view(&few, &data, 0, 2 * BATCH));
    DT_TRY(make_net(&net, BATCH, 6, false));
    dt_optimizer *opt = make_sgd(net);
    DT_TRY(dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = &few, .epochs = 1, .batch = BATCH, .seed = 5 }, &r));
    DT_TRY(dt_check_replicas(net, comm));
    if (dt_comm_rank(comm) == dt_comm_size(comm) - 1) *hash = dt_net_hash(net);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

static void three_hundred_ranks(void **state) {
    (void)state;
    uint64_t one = 0, many = 0;
    ok(dt_run_ranks(1, on_many, &one));
    ok(dt_run_ranks(300, on_many, &many));
    assert_true(one == many && many != 0);
}

static void alone(void **state) {
    (void)state;
    dt_comm *comm = dt_comm_alone();
    for (int i = 0; i < CASES; ++i)
        if (on_ranks[i].fn(comm, NULL) != DT_OK) fail_msg("alone: %s: %s", on_ranks[i].name, dt_error());
    dt_comm_free(comm);
}

/* ---- Hogwild. */

static dt_optimizer *make_adam(dt_net *net) { return dt_adam(net, &(dt_adam_desc){ .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f }); }

static uint64_t hogwild(int workers, int epochs, dt_hogwild_result *r, told *t, double *loss_before, double *loss_after) {
    dt_net *net;
    dt_score before, after;
    ok(make_net(&net, 16, 6, false));
    dt_optimizer *opt = make_adam(net);
    ok(dt_evaluate(net, &data, NULL, &before));
    ok(dt_train_hogwild(net, opt, workers, &(dt_train_desc){ .data = &data, .epochs = epochs, .batch = 16, .seed = 3, .on_step = hear, .user = t }, r));
    ok(dt_evaluate(net, &data, NULL, &after));
    *loss_before = dt_score_loss(&before);
    *loss_after = dt_score_loss(&after);
    const uint64_t hash = dt_net_hash(net);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return hash;
}

static void hogwild_learns(void **state) {
    (void)state;
    uint64_t first = 0;
    for (int workers = 1; workers <= 3; ++workers) {
        for (int again = 0; again < 2; ++again) {
            dt_hogwild_result r;
            told t = { .orderly = true };
            double before, after;
            const uint64_t hash = hogwild(workers, 4, &r, &t, &before, &after);
            uint64_t steps = 0;
            for (int b = 0; b < DT_STALENESS_BINS; ++b) steps += r.staleness[b];
            if (!(after < 0.8 * before)) fail_msg("%d workers: loss %g, before %g", workers, after, before);
            assert_int_equal(r.train.samples, 4 * COUNT);
            assert_int_equal(r.train.epochs, 4);
            assert_int_equal(r.train.score.count, COUNT);
            assert_in_range(steps, 4 * COUNT / 16, 4 * (COUNT / 16 + workers));
            assert_true(t.orderly && t.epochs_ended == 4 && r.train.seconds > 0.0);
            if (workers > 1) continue;
            assert_int_equal(r.staleness[0], steps); /* alone, nobody comes between */
            if (again) assert_true(hash == first);
            first = hash;
        }
    }
}

/* One worker is plain SGD on all the data, but for the rounding of w += change. */
static void hogwild_alone_is_plain(void **state) {
    (void)state;
    dt_hogwild_result r;
    dt_train_result s;
    dt_net *a, *b;
    const dt_train_desc desc = { .data = &data, .epochs = 1, .batch = 16, .seed = 3 };
    ok(make_net(&a, 16, 6, false));
    ok(make_net(&b, 16, 6, false));
    dt_optimizer *of_a = make_sgd(a), *of_b = make_sgd(b);
    dt_comm *comm = dt_comm_alone();
    ok(dt_train_hogwild(a, of_a, 1, &desc, &r));
    ok(dt_train_psgd(b, of_b, comm, &desc, &s));
    for (size_t i = 0; i < dt_net_count(a); ++i)
        if (!(fabsf(dt_net_values(a)[i] - dt_net_values(b)[i]) < 1e-5f)) fail_msg("value %zu: %g and %g", i, (double)dt_net_values(a)[i], (double)dt_net_values(b)[i]);
    dt_comm_free(comm);
    dt_optimizer_free(of_a);
    dt_optimizer_free(of_b);
    dt_net_free(a);
    dt_net_free(b);
}

static void hogwild_stops_and_refuses(void **state) {
    (void)state;
    dt_hogwild_result r;
    told t = { .orderly = true, .stop_at = 3 };
    double before, after;
    hogwild(3, 50, &r, &t, &before, &after);
    assert_true(r.train.stopped);
    assert_int_equal(t.calls, 3);
    dt_net *net;
    ok(make_net(&net, 16, 6, false));
    dt_optimizer *opt = make_adam(net);
    dt_train_desc desc = { .data = &data, .epochs = 1, .batch = 16 };
    assert_int_equal(dt_train_hogwild(net, opt, 0, &desc, &r), DT_EARG);
    assert_int_equal(dt_train_hogwild(net, opt, COUNT + 1, &desc, &r), DT_EARG); /* a worker without a sample */
    desc.batch = 17;
    assert_int_equal(dt_train_hogwild(net, opt, 2, &desc, &r), DT_EARG);
    desc.batch = 16;
    desc.epochs = 0;
    assert_int_equal(dt_train_hogwild(net, opt, 2, &desc, &r), DT_EARG);
    /* a worker that meets a NaN says which and where, and the others end */
    desc.epochs = 50;
    dt_net_values(net)[0] = NAN;
    assert_int_equal(dt_train_hogwild(net, opt, 3, &desc, &r), DT_ENUMERIC);
    assert_non_null(strstr(dt_error(), "Hogwild worker "));
    assert_null(strchr(dt_error(), '\n'));
    dt_optimizer_free(opt);
    dt_net_free(net);
}

/* ---- .threads, where the trainer is given no communicator: the bits of as many ranks; the synchronous one twice in a row, so that the
   twins need the optimizer's state. */
typedef struct plain { dt_net *net; dt_optimizer *opt; dt_train_desc d; bool psgd; uint64_t hash; int calls; } plain;
static bool count_calls(const dt_progress *p, void *user) { (void)p; return ++((plain *)user)->calls < 1000; }
static dt_err train_plain(plain *t, dt_comm *comm) {
    dt_train_result r;
    for (int n = 0; n < (t->psgd ? 1 : 2); ++n) /* PSGD's optimizers stay with their ranks, which here are new ones */
        DT_TRY(t->psgd ? dt_train_psgd(t->net, t->opt, comm, &t->d, &r) : dt_train_sync(t->net, t->opt, comm, &t->d, &r));
    t->hash = dt_net_hash(t->net);
    return DT_OK;
}
static dt_err plain_rank(dt_comm *comm, void *arg) {
    plain mine = *(plain *)arg;
    DT_TRY(make_net(&mine.net, BATCH, 6, false));
    mine.opt = dt_adam(mine.net, &(dt_adam_desc){ DT_ADAM_DEFAULTS });
    const dt_err error = train_plain(&mine, comm);
    if (dt_comm_rank(comm) == 0) ((plain *)arg)->hash = mine.hash;
    dt_optimizer_free(mine.opt);
    dt_net_free(mine.net);
    return error;
}

static void threads_without_a_communicator(void **state) {
    (void)state;
    uint64_t one = 0;
    for (int threads = 1; threads <= 4; threads += threads == 1 ? 2 : 1)
        for (int psgd = 0; psgd <= 1; ++psgd) {
            plain by_hand = { .psgd = psgd, .d = { .data = &data, .epochs = 1, .batch = BATCH, .seed = 31 } }, t = by_hand;
            ok(dt_run_ranks(threads, plain_rank, &by_hand));
            ok(make_net(&t.net, BATCH, 6, false));
            t.opt = dt_adam(t.net, &(dt_adam_desc){ DT_ADAM_DEFAULTS });
            t.d.threads = threads, t.d.on_step = count_calls, t.d.user = &t;
            ok(train_plain(&t, NULL));
            assert_int_equal(t.hash, by_hand.hash);
            if (!psgd && threads == 1) one = t.hash;
            if (!psgd) assert_int_equal(t.hash, one), assert_int_equal(t.calls, 2 * ((COUNT + BATCH - 1) / BATCH));
            dt_optimizer_free(t.opt);
            dt_net_free(t.net);
        }
}

/* One sample or many: as dt_forward has it, whatever the batch; with no labels; the net trains on as before. */
static void predicts(void **state) {
    (void)state;
    enum { MANY = 70 };
    dt_net *net;
    dt_batches it;
    dt_batch b;
    static float all[COUNT * 10], some[COUNT * 10], row[10];
    dt_dataset bare = data;
    bare.labels = NULL;
    for (int loss = 0; loss < 2; ++loss) {
        net = dt_net_new(1, 28, 28);
        dt_dropout(net, 0.5f);
        dt_linear(net, "fc", 10);
        ok(dt_net_build(net, &(dt_build_desc){ .batch = MANY, .seed = 3, .loss = loss ? DT_MEAN_SQUARED : DT_CROSS_ENTROPY }));
        ok(dt_predict(net, &bare, 0, COUNT, all));
        for (uint32_t first = 0; first < COUNT; first += 37) ok(dt_predict(net, &bare, first, 1, some + first * 10));
        for (uint32_t first = 0; first < COUNT; first += 37) assert_memory_equal(some + first * 10, all + first * 10, sizeof row);
        assert_true(net->training);
        dt_net_training(net, false);
        ok(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = 16 }));
        assert_true(dt_batches_next(&it, &b));
        ok(dt_net_load(net, &b));
        ok(dt_forward(net));
        for (int i = 0; i < 16; ++i) {
            float sum = 0.0f;
            ok(loss ? dt_net_logits(net, i, row) : dt_net_log_probabilities(net, i, row));
            for (int k = 0; k < 10; ++k) assert_true(fabsf((loss ? row[k] : expf(row[k])) - all[i * 10 + k]) < 1e-6f), sum += all[i * 10 + k];
            assert_true(loss || fabsf(sum - 1.0f) < 1e-5f);
        }
        dt_batches_free(&it);
        dt_net_free(net);
    }
}

/* Under mpiexec: rank 0 says what was run, any rank what went wrong. */
static int on_mpi(dt_comm *comm) {
    for (int i = 0; i < CASES; ++i) {
        if (on_ranks[i].fn(comm, NULL) != DT_OK) {
            fprintf(stderr, "[  FAILED  ] [rank %d] %s: %s\n", dt_comm_rank(comm), on_ranks[i].name, dt_error());
            dt_comm_abort(comm, 1);
            return 1;
        }
        if (dt_comm_rank(comm) == 0) printf("[       OK ] %d MPI ranks: %s\n", dt_comm_size(comm), on_ranks[i].name);
    }
    if (dt_comm_rank(comm) == 0) printf("[  PASSED  ] %d test(s).\n", CASES);
    dt_comm_free(comm);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone), cmocka_unit_test(on_threads), cmocka_unit_test(three_hundred_ranks), cmocka_unit_test(hogwild_learns), cmocka_unit_test(hogwild_alone_is_plain),
        cmocka_unit_test(hogwild_stops_and_refuses), cmocka_unit_test(outer_momentum_by_hand), cmocka_unit_test(threads_without_a_communicator),
        cmocka_unit_test(predicts),
    };
    int result;
    if (dt_dataset_synthetic(&data, COUNT, 4) != DT_OK) return fprintf(stderr, "%s\n", dt_error()), 1;
    if (getenv("PMI_SIZE")) { /* mpiexec started us */
        dt_comm *comm = dt_comm_world(&argc, &argv);
        if (!comm) return fprintf(stderr, "%s\n", dt_error()), 1;
        result = on_mpi(comm);
    } else result = cmocka_run_group_tests_name("train", tests, NULL, NULL);
    dt_dataset_free(&data);
    return result;
}
