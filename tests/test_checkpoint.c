/* Checkpoints [S11.2] [E6.7]: a run that is stopped at any step and goes on, on another number of ranks, ends in the bits of
   the run that was not; and what is refused, by name, with nothing changed. Under a sanitizer some of the steps stand for all. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define DTRAIN_WITH_THREADS
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

enum { COUNT = 150, MORE = 60, BATCH = 40, EPOCHS = 3, STEPS = 4, SIDE = 12, CLASSES = 4 };
static dt_dataset data, checked, other;
#ifdef DTI_SANITIZED
enum { EVERY = 4 };
#else
enum { EVERY = 1 };
#endif

#define need(condition) do { if (!(condition)) return dt_fail(DT_EDATA, "line %d: not so: %s (%s)", __LINE__, #condition, dt_error()); } while (0)
#define ok(call) do { dt_err ok_ = (call); if (ok_ != DT_OK) fail_msg("line %d: %s: %s", __LINE__, dt_err_name(ok_), dt_error()); } while (0)

/* ---- Two runs: convolution, dropout, Adam; and batch norm, augmentation, NovoGrad. Both have schedules, a validation set and
   a target, for two epochs in a row; the first one meets it. */

typedef struct run {
    int ranks;
    bool narrow, psgd, chooses;      /* narrow: the second net; chooses: PSGD's average every 3 steps */
    const dt_outer_desc *outer;      /* and its outer steps */
    bool float_sums, direct, mean;   /* mean: mean squared error */
    int stop_at;                     /* steps, as rank 0 counts them; 0: never */
    const char *checkpoint, *resume, *break_folder;
    uint32_t every, batch;
    int epochs;
    uint64_t seed, net_seed;
    float lr, target, dropout;
    const dt_dataset *data, *validation;
    int hidden;
    bool sgd, other_schedule, no_schedule, other_augment;
    /* what came of it */
    uint64_t hash, before;
    int64_t calls;
    dt_train_result result;
    dt_err error;
    char why[512];
    int complaints;
} run;

static run of(int ranks, bool narrow) {
    return (run){ .ranks = ranks, .narrow = narrow, .epochs = EPOCHS, .batch = BATCH, .seed = 9, .net_seed = 4, .lr = 0.02f, .target = narrow ? 1.0f : 0.3f,
                  .dropout = 0.2f, .data = &data, .validation = &checked, .hidden = 12 };
}

static dt_net *make_net(const run *r) {
    dt_net *net = dt_net_new(1, SIDE, SIDE);
    dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 3, .kernel = 3, .no_bias = r->narrow });
    if (r->narrow) dt_batchnorm2d(net, "bn", NULL);
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_dropout(net, r->dropout);
    if (r->hidden) dt_linear(net, "fc1", r->hidden);
    dt_linear(net, "fc2", CLASSES);
    if (dt_net_build(net, &(dt_build_desc){ .batch = 64, .seed = r->net_seed, .float_sums = r->float_sums, .direct = r->direct,
                                            .loss = r->mean ? DT_MEAN_SQUARED : DT_CROSS_ENTROPY }) == DT_OK) return net;
    dt_net_free(net);
    return NULL;
}

static dt_optimizer *make_optimizer(const run *r, dt_net *net) {
    if (r->sgd) return dt_sgd(net, &(dt_sgd_desc){ .lr = r->lr, .momentum = 0.5f });
    if (r->narrow) return dt_novograd(net, &(dt_novograd_desc){ .lr = r->lr, .beta1 = 0.9f, .beta2 = 0.5f, .eps = 1e-8f, .weight_decay = 1e-3f });
    return dt_adam(net, &(dt_adam_desc){ .lr = r->lr, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f });
}

typedef struct listener { const run *r; int rank, calls, complaints; } listener;

static bool listen(const dt_progress *p, void *user) {
    listener *l = user;
    ++l->calls;
    l->complaints += p->complaint != NULL;
    if (l->r->break_folder && l->rank == 0 && l->calls == 2) (void)rename("kept", "away");
    return l->rank != l->r->ranks - 1 || l->calls != l->r->stop_at;
}

static dt_err run_rank(dt_comm *comm, void *arg) {
    run *r = arg;
    const dt_schedule fall = { .curve = DT_LR_COSINE, .by_step = true, .over = 9, .end = 0.001f },
                      rise = { .curve = DT_LR_LINEAR, .by_step = true, .from = 0.5f, .to = 1.0f, .over = r->other_schedule ? 4 : 3, .then = &fall };
    const dt_augment augment = { .seed = 2, .flip = 0.5f, .rotate = 10.0f, .shift = r->other_augment ? 1 : 0 };
    listener l = { .r = r, .rank = dt_comm_rank(comm) };
    dt_train_result result;
    dt_net *net = make_net(r);
    dt_optimizer *opt = net ? make_optimizer(r, net) : NULL;
    need(opt);
    const uint64_t before = dt_net_hash(net);
    const dt_train_desc desc = { .data = r->data, .epochs = r->epochs, .batch = r->batch, .seed = r->seed, .schedule = r->no_schedule ? NULL : &rise,
                                 .augment = r->narrow ? &augment : NULL, .validation = r->validation, .target = r->target, .patience = 2, .check_every = 2,
                                 .average_every = r->chooses ? 3 : 0, .outer = r->outer, .checkpoint = r->checkpoint, .checkpoint_every = r->every, .resume = r->resume,
                                 .on_step = listen, .user = &l };
    const dt_err error = r->psgd ? dt_train_psgd(net, opt, comm, &desc, &result) : dt_train_sync(net, opt, comm, &desc, &result);
    if (l.rank == 0) {
        r->hash = dt_net_hash(net), r->before = before, r->calls = l.calls, r->complaints = l.complaints;
        r->result = result, r->error = error;
        snprintf(r->why, sizeof r->why, "%s", error == DT_OK ? "" : dt_error());
        if (error != DT_OK && (opt->steps || r->hash != before)) snprintf(r->why, sizeof r->why, "changed something");
    }
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK; /* the error is looked at outside */
}

static run done(run r) {
    ok(dt_run_ranks(r.ranks, run_rank, &r));
    return r;
}

static run good(run r) {
    r = done(r);
    if (r.error != DT_OK) fail_msg("%s", r.why);
    return r;
}

static void same_score(dt_score a, dt_score b) {
    assert_int_equal(a.loss_fixed, b.loss_fixed);
    assert_int_equal(a.correct, b.correct);
    assert_int_equal(a.count, b.count);
}

static void same_end(const run *a, const run *b) {
    assert_int_equal(a->hash, b->hash);
    assert_int_equal(a->result.epochs, b->result.epochs);
    assert_int_equal(a->result.samples, b->result.samples);
    assert_int_equal(a->result.stopped, b->result.stopped);
    assert_int_equal(a->result.reached, b->result.reached);
    same_score(a->result.score, b->result.score);
    same_score(a->result.validation, b->result.validation);
}

/* ---- Stopped at a step on P ranks, resumed on P'. */

static void resumes_at_every_step(void **state) {
    (void)state;
    for (int narrow = 0; narrow <= 1; ++narrow) {
        const run whole = good(of(1, narrow));
        assert_int_equal(whole.result.stopped, !narrow); /* the first one meets its target */
        const int steps = (int)whole.calls;
        assert_int_equal(steps, STEPS * (narrow ? EPOCHS : 2));
        for (int k = 1; k <= steps; k += EVERY) {
            run first = of(1 + k % 3, narrow), second = of(1 + k * 2 % 5, narrow);
            first.checkpoint = "run.checkpoint", first.stop_at = k;
            first = good(first);
            assert_true(first.result.checkpoints >= 1);
            second.resume = first.checkpoint;
            second = good(second);
            same_end(&second, &whole);
            assert_int_equal(second.calls, steps - (int)first.calls);
            assert_int_equal(second.result.resumed, first.calls);
            assert_true(second.result.seconds > second.result.epoch_seconds[0] && second.result.epoch_seconds[0] > 0.0);
        }
    }
}

/* Written every so many steps, by a run that goes on from its own file again and again. */
static void stops_again_and_again(void **state) {
    (void)state;
    const run whole = good(of(2, true));
    run r = of(1, true);
    r.checkpoint = "again.checkpoint";
    r.every = 5;
    r.stop_at = 2;
    for (int k = 0; k < 40; ++k, r.ranks = 1 + k % 3) {
        r = good(r);
        r.resume = r.checkpoint;
        if (!r.result.stopped) break;
    }
    assert_true(!r.result.stopped);
    same_end(&r, &whole);
    run all = of(3, true);
    all.checkpoint = "every.checkpoint", all.every = 5;
    all = good(all);
    assert_int_equal(all.result.checkpoints, 3); /* 5, 10, and 12, the last */
    all.every = 0;
    all = good(all);
    assert_int_equal(all.result.checkpoints, 3); /* epochs */
    all.resume = all.checkpoint; /* a run that has ended does nothing more */
    all = good(all);
    assert_int_equal(all.calls, 0);
    same_end(&all, &whole);
}

static void takes_more_epochs(void **state) {
    (void)state;
    run whole = of(2, true), first = of(3, true), second = of(1, true);
    first.epochs = 2, first.checkpoint = second.resume = "two.checkpoint";
    whole = good(whole), first = good(first), second = good(second);
    same_end(&second, &whole);
    assert_int_equal(second.result.resumed, 2 * STEPS);
    assert_int_equal(second.result.resumed_epochs, 2);
    second.epochs = 1;
    second = done(second);
    assert_string_equal(second.why, "two.checkpoint: stands in epoch 2, and this run is to end after epoch 1");
}

/* With an average at the end or every three steps, and with outer momentum from one to the next. */
static void psgd_at_its_own_ranks(void **state) {
    (void)state;
    static const dt_outer_desc diloco = { DT_DILOCO_DEFAULTS }, heavy = { .lr = 0.5f, .momentum = 0.8f };
    uint64_t hash[4];
    for (int kind = 0; kind < 4; ++kind) {
        run whole = of(3, false);
        whole.psgd = true, whole.chooses = kind % 2, whole.outer = kind > 1 ? &diloco : NULL, whole.batch = 48, whole.target = 1.0f;
        run first = whole, second = whole;
        whole = good(whole);
        hash[kind] = whole.hash;
        for (int k = 1; k <= (int)whole.calls; k += EVERY) {
            first.checkpoint = second.resume = "psgd.checkpoint";
            first.every = 1, first.stop_at = k;
            run stopped = good(first), resumed = good(second);
            same_end(&resumed, &whole);
            assert_int_equal(stopped.result.resumed + (uint64_t)stopped.calls, resumed.result.resumed);
        }
    }
    assert_true(hash[2] != hash[0] && hash[3] != hash[1]); /* outer steps do something */
    run same = of(3, false);
    same.psgd = same.chooses = true, same.outer = &diloco, same.batch = 48, same.target = 1.0f, same.resume = "psgd.checkpoint";
    run r = same;
    r.ranks = 2;
    assert_string_equal(done(r).why, "psgd.checkpoint: it was made with ranks, on whose number the result depends 3, and this run has 2");
    r = same, r.outer = &heavy;
    assert_string_equal(done(r).why, "psgd.checkpoint: it was made with outer steps 0.7 0.9 Nesterov's, and this run has 0.5 0.8 plain");
    r = same, r.outer = NULL;
    assert_string_equal(done(r).why, "psgd.checkpoint: it was made with outer steps 0.7 0.9 Nesterov's, and this run has none 0 plain");
}

/* ---- Settings. */

typedef void change(run *r);
#define CHANGE(name, what) static void name(run *r) { what; }
CHANGE(other_batch, r->batch = 64)
CHANGE(other_seed, r->seed = 10)
CHANGE(other_net_seed, r->net_seed = 5)
CHANGE(other_rate, r->lr = 0.03f)
CHANGE(other_target, r->target = 0.5f)
CHANGE(other_data, r->data = &other)
CHANGE(other_validation, r->validation = &other)
CHANGE(none_validated, r->validation = NULL)
CHANGE(other_hidden, r->hidden = 11)
CHANGE(fewer_layers, r->hidden = 0)
CHANGE(other_dropout, r->dropout = 0.3f)
CHANGE(other_optimizer, r->sgd = true)
CHANGE(other_steps, r->other_schedule = true)
CHANGE(no_steps, r->no_schedule = true)
CHANGE(altered, r->other_augment = true)
CHANGE(float_sums, r->float_sums = true)
CHANGE(direct, r->direct = true)
CHANGE(mean, r->mean = true)
CHANGE(other_net, r->narrow = false)
CHANGE(other_method, r->psgd = true)

static void refuses_other_settings(void **state) {
    (void)state;
    static const struct { change *change; const char *part; } table[] = {
        { other_batch, "it was made with batch 40, and this run has 64" },
        { other_seed, "it was made with seed 9, and this run has 10" },
        { other_net_seed, "it was made with seed of the net 4, and this run has 5" },
        { other_rate, "it was made with learning rate 0.02, and this run has 0.03" },
        { other_target, "it was made with target 1, and this run has 0.5" },
        { other_data, "it was made with other data than this run has" },
        { other_validation, "it was made with other validation than this run has" },
        { none_validated, "it was made with other validation than this run has" },
        { other_hidden, "it was made with other layers than this run has" },
        { fewer_layers, "it was made with other layers than this run has" },
        { other_dropout, "it was made with other layers than this run has" },
        { other_optimizer, "it was made with optimizer novograd, and this run has sgd" },
        { other_steps, "it was made with other schedule than this run has" },
        { no_steps, "it was made with other schedule than this run has" },
        { altered, "it was made with other augmentation than this run has" },
        { float_sums, "it was made with sums exact, and this run has float" },
        { direct, "it was made with convolutions Winograd's where they pay, and this run has direct" },
        { mean, "it was made with loss cross-entropy, and this run has mean squared error" },
        { other_net, "it was made with other layers than this run has" },
    };
    run first = of(2, true);
    first.checkpoint = "settings.checkpoint", first.stop_at = 3;
    first = good(first);
    for (size_t k = 0; k < sizeof table / sizeof *table; ++k) {
        run r = of(1 + (int)k % 3, true);
        r.resume = first.checkpoint;
        table[k].change(&r);
        r = done(r);
        assert_int_equal(r.error, DT_EDATA);
        if (!strstr(r.why, table[k].part) || strchr(r.why, '\n')) fail_msg("\"%s\", wanted \"%s\"", r.why, table[k].part);
    }
    run r = of(2, true); /* PSGD refuses batch norm over all ranks before it reads anything */
    r.psgd = true, r.resume = first.checkpoint;
    r = done(r);
    assert_int_equal(r.error, DT_EARG);
    run plain = of(1, false); /* one rank: the methods take the same steps, and yet */
    plain.checkpoint = "sync.checkpoint", plain.stop_at = 2;
    plain = good(plain);
    plain = of(1, false);
    other_method(&plain);
    plain.resume = "sync.checkpoint";
    plain = done(plain);
    assert_non_null(strstr(plain.why, "psgd") ? plain.why : strstr(plain.why, "ranks, on whose number"));
}

/* ---- A checkpoint that cannot be written. */

static void goes_on_without_a_file(void **state) {
    (void)state;
    const run whole = good(of(2, true));
    run r = of(2, true);
    assert_int_equal(mkdir("kept", 0777), 0);
    r.checkpoint = "kept/x", r.every = 1, r.break_folder = "kept";
    r = good(r);
    same_end(&r, &whole);
    assert_true(r.complaints >= 8 && r.result.checkpoints >= 1 && r.result.checkpoints <= 3);
    assert_non_null(strstr(r.result.complaint, "kept/x: cannot write it: No such file"));
    run again = of(1, true); /* what had been written before is whole */
    again.resume = "away/x";
    again = good(again);
    same_end(&again, &whole);
    r = of(2, true);
    r.checkpoint = "nowhere/x"; /* from the start: said before the first step */
    r = done(r);
    assert_int_equal(r.error, DT_EIO);
    assert_non_null(strstr(r.why, "nowhere/x: cannot write it"));
    r = of(3, true);
    r.resume = "nowhere/x";
    r = done(r);
    assert_int_equal(r.error, DT_EIO);
    assert_non_null(strstr(r.why, "cannot open nowhere/x"));
}

#ifdef DTRAIN_WITH_THREADS
static void hogwild_has_none(void **state) {
    (void)state;
    const run r = of(1, false);
    dt_net *net = make_net(&r);
    dt_optimizer *opt = make_optimizer(&r, net);
    dt_hogwild_result result;
    dt_train_desc desc = { .data = &data, .epochs = 1, .batch = 16, .checkpoint = "x" };
    assert_int_equal(dt_train_hogwild(net, opt, 2, &desc, &result), DT_EARG);
    assert_non_null(strstr(dt_error(), "no checkpoints"));
    desc.checkpoint = NULL, desc.resume = "x";
    assert_int_equal(dt_train_hogwild(net, opt, 2, &desc, &result), DT_EARG);
    dt_optimizer_free(opt);
    dt_net_free(net);
}
#endif

/* ---- Damage. */

static int judged;                              /* files that were looked at, for the table that each kind prints */
static void table(const char *what) { printf("checkpoint, %-60s %5d refused or read as they are\n", what, judged), judged = 0; }

static unsigned char *file, *original;
static size_t file_size;

static void read_file(const char *path) {
    free(file), free(original);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    file = malloc(1 << 20);
    file_size = fread(file, 1, 1 << 20, f);
    fclose(f);
    original = malloc(1 << 20);
    memcpy(original, file, file_size);
    assert_true(file_size > 1000 && file_size < 1 << 20);
}

/* Loads these bytes, which are exactly as many as AddressSanitizer lets be read. */
static dt_err judge_bytes(const unsigned char *bytes, size_t size, bool rehash, int ranks) {
    static run r; /* the first net, stopped at a step */
    r = of(1, false);
    dt_net *net = make_net(&r);
    dt_optimizer *opt = make_optimizer(&r, net);
    const uint64_t before = dt_net_hash(net);
    ++judged;
    unsigned char *block = malloc(size ? size : 1);
    memcpy(block, bytes, size);
    char hash[17];
    if (rehash) {
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)dti_file_hash(block, size));
        memcpy(block + DTI_MARK_HASH, hash, 16);
    }
    dti_file f = { .net = net, .opt = opt, .path = "x" };
    /* the settings are those of the file, so that the rest is looked at */
    char *lines = dti_alloc(file_size);
    const char *text = (const char *)original + 8;
    dti_json json = { text, text + sizeof "{\"__metadata__\":" - 1, text + dti_get_le(original, 8), NULL };
    dti_read_metadata(&json, lines);
    assert_null(json.why);
    f.settings = dti_alloc(strlen(lines) + 1);
    memcpy(f.settings, strchr(lines, '\n') + 1, strlen(strchr(lines, '\n')));
    dti_release(lines);
    ok(dti_file_begin(&f, ranks));
    dt_fail(DT_OK, "nothing");
    const dt_err error = dti_check_file(&f, block, size);
    assert_int_equal(dt_net_hash(net), before);
    assert_int_equal(opt->steps, 0);
    assert_null(strchr(dt_error(), '\n'));
    dti_file_end(&f);
    free(block);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}

static void refuses_what_is_cut_off(void **state) {
    (void)state;
    run r = of(2, false);
    r.checkpoint = "damage.checkpoint", r.stop_at = 3;
    r = good(r);
    read_file("damage.checkpoint");
    assert_int_equal(judge_bytes(file, file_size, false, 1), DT_OK);
    assert_int_equal(judge_bytes(file, file_size, true, 1), DT_OK);
    const size_t header = 8 + (size_t)dti_get_le(file, 8);
    int cuts = 0;
    judged = 0;
    for (size_t cut = 0; cut < file_size; ++cut) {
        const bool place = cut < 80 || (cut < header && strchr("{}[]:,\"", file[cut])) || (cut >= header && cut % 64 == 0) || cut + 9 > file_size;
        if (!place) continue;
        ++cuts;
        assert_int_equal(judge_bytes(file, cut, false, 1), DT_EDATA);
        if (cut > DTI_MARK_HASH + 16) assert_int_equal(judge_bytes(file, cut, true, 1), DT_EDATA); /* as if it had been meant */
    }
    assert_true(cuts > 400);
    table("cut off, as it is and with the hash made right:");
    unsigned char *more = calloc(file_size + 8, 1);
    memcpy(more, file, file_size);
    assert_int_equal(judge_bytes(more, file_size + 1, false, 1), DT_EDATA);
    assert_int_equal(judge_bytes(more, file_size + 8, true, 1), DT_EDATA);
    free(more);
    table("bytes behind its end:");
}

static void refuses_flipped_bits(void **state) {
    (void)state;
    const size_t header = 8 + (size_t)dti_get_le(file, 8);
    int looked = 0;
    for (size_t at = 0; at < file_size; at += at < header ? 1 : 97, ++looked) {
        const unsigned char bit = (unsigned char)(1u << at % 8);
        file[at] ^= bit;
        assert_int_equal(judge_bytes(file, file_size, false, 1), DT_EDATA);
        file[at] ^= bit;
    }
    table("a bit flipped:");
    /* in the header with the hash made right: whatever is said, nothing may be read or written where it must not */
    for (size_t at = 8; at < header; ++at) {
        if (at >= 8 + DTI_MARK && at < DTI_MARK_HASH + 16) continue;
        file[at] ^= (unsigned char)(1u << at % 7);
        (void)judge_bytes(file, file_size, true, 1);
        file[at] ^= (unsigned char)(1u << at % 7);
    }
    assert_true(looked > 500);
    table("a bit of the header flipped, and the hash made right:");
}

/* One word of the header becomes another of the same length, with a hash that is right. */
static void refuses_a_header(const char *from, const char *to, const char *part) {
    char *copy = malloc(file_size);
    memcpy(copy, file, file_size);
    const size_t n = strlen(from), header = 8 + (size_t)dti_get_le(file, 8);
    assert_int_equal(n, strlen(to));
    char *at = NULL;
    for (size_t i = 8; i + n <= header && !at; ++i)
        if (memcmp(copy + i, from, n) == 0) at = copy + i;
    if (!at) fail_msg("the header has no %s: %.*s", from, (int)header - 8, copy + 8);
    memcpy(at, to, n);
    const dt_err error = judge_bytes((const unsigned char *)copy, file_size, true, 1);
    free(copy);
    if (error != DT_EDATA || !strstr(dt_error(), part)) fail_msg("%s for %s: \"%s\", wanted \"%s\"", to, from, dt_error(), part);
}

static size_t place_of(const char *name) { /* of the first byte of its data */
    char wanted[80];
    snprintf(wanted, sizeof wanted, "\"%s\":{", name);
    const size_t header = 8 + (size_t)dti_get_le(file, 8);
    for (size_t i = 8; i < header; ++i) {
        if (strncmp((const char *)file + i, wanted, strlen(wanted)) != 0) continue;
        const char *range = strstr((const char *)file + i, "\"data_offsets\":[");
        return header + (size_t)atoi(range + 16);
    }
    fail_msg("no %s", name);
    return 0;
}

static void refuses_numbers(const char *name, int index, int width, uint64_t bits, const char *part) {
    const size_t at = place_of(name) + (size_t)(index * width);
    unsigned char old[8];
    memcpy(old, file + at, 8);
    dti_put_le(file + at, bits, width);
    const dt_err error = judge_bytes(file, file_size, true, 1);
    memcpy(file + at, old, 8);
    if (error != DT_EDATA || !strstr(dt_error(), part)) fail_msg("%s[%d]: \"%s\", wanted \"%s\"", name, index, dt_error(), part);
}

static void refuses_what_is_wrong_though_whole(void **state) {
    (void)state;
    refuses_a_header("\"F64\"", "\"F32\"", "is of dtype \"F32\", not \"F64\"");
    refuses_a_header("\"F32\"", "\"I32\"", "is of dtype \"I32\"");
    refuses_a_header("\"I64\"", "\"U64\"", "is of dtype \"U64\"");
    refuses_a_header("\"I64\"", "\"I64,", "");
    refuses_a_header("\"dtrain.whole\"", "\"dtrain.whale\"", "holds \"dtrain.whale\", which the net does not have");
    refuses_a_header("\"dtrain.units\"", "\"dtrain.whole\"", "holds \"dtrain.whole\" twice");
    refuses_a_header("\"conv.weight\"", "\"corn.weight\"", "holds \"corn.weight\"");
    refuses_a_header("\"shape\":[3,1,3,3]", "\"shape\":[3,3,1,3]", "another shape");
    refuses_a_header("\"data_offsets\":[0,", "\"data_offsets\":[8,", "do not say where");
    refuses_a_header("\"data_offsets\"", "\"data_offzets\"", "does not know");
    refuses_a_header("\"batch\":\"40\"", "\"batch\":\"41\"", "it was made with batch 41, and this run has 40");
    refuses_a_header("\"batch\":", "\"botch\":", "it says \"botch: 40\" where this run says \"batch: 40\"");
    refuses_a_header("dtrain.checkpoint", "dtrain.checkpaint", "is no checkpoint of dtrain's");
    refuses_numbers("dtrain.whole", DTI_KEPT_EPOCH, 8, UINT64_MAX, "dtrain.whole[0] is -1");
    refuses_numbers("dtrain.whole", DTI_KEPT_SAMPLES, 8, (uint64_t)1 << 63, "dtrain.whole[6] is -9223372036854775808");
    refuses_numbers("dtrain.real", DTI_KEPT_LR, 8, 0, "the learning rate is 0");
    refuses_numbers("dtrain.real", 1, 8, 0x7ff8000000000000u, "dtrain.real[1] is nan");
    refuses_numbers("dtrain.units", 0, 4, 0x3f800001u, "a unit of 1; needs a power of two");
    /* two pieces in one place: the second's range becomes the first's */
    char from[64], to[64];
    const size_t header = 8 + (size_t)dti_get_le(file, 8), units = place_of("dtrain.units") - header, whole = place_of("dtrain.real") - header;
    snprintf(from, sizeof from, "\"data_offsets\":[%zu,%zu]", units, units + 6 * 4);
    snprintf(to, sizeof to, "\"data_offsets\":[%zu,%zu]%*s", whole, whole + 24, (int)strlen(from), "");
    to[strlen(from)] = '\0';
    refuses_a_header(from, to, "they overlap");
    table("another word or number, and the hash made right:");
}

/* Files that are no checkpoint, or of no such place. */
static void refuses_foreign_files(void **state) {
    (void)state;
    const run r = of(1, false);
    dt_net *net = make_net(&r);
    ok(dt_save(net, "plain.safetensors"));
    run x = of(2, false);
    x.resume = "plain.safetensors";
    x = done(x);
    assert_non_null(strstr(x.why, "plain.safetensors: is no checkpoint of dtrain's"));
    assert_int_equal(dt_load(net, "damage.checkpoint"), DT_EDATA); /* and the other way round */
    x.resume = ".";
    x = done(x);
    assert_non_null(strstr(x.why, "not a plain file but a folder"));
    FILE *f = fopen("empty", "wb");
    fclose(f);
    x.resume = "empty";
    x = done(x);
    assert_non_null(strstr(x.why, "empty: is no checkpoint of dtrain's (0 bytes)"));
    dt_net_free(net);
    /* a place that the data do not have */
    refuses_numbers("dtrain.whole", DTI_KEPT_STEP, 8, UINT64_MAX, "dtrain.whole[1] is -1");
    read_file("damage.checkpoint");
    dti_put_le(file + place_of("dtrain.whole") + 8, 1000, 8);
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)dti_file_hash(file, file_size));
    memcpy(file + DTI_MARK_HASH, hash, 16);
    ok(dti_write_all("step.checkpoint", file, file_size));
    x.resume = "step.checkpoint";
    x = done(x);
    assert_non_null(strstr(x.why, "stands at step 1000 of epoch 1, which has 4"));
    read_file("damage.checkpoint");
}

/* ---- A loop of one's own. */

static dt_err own_loop(dt_comm *comm, uint32_t stop, const char *load, const char *save, const char *settings, uint64_t *hash, double *sum) {
    run r = of(1, true);
    dt_net *net = make_net(&r);
    dt_optimizer *opt = make_optimizer(&r, net);
    dt_batches it;
    DT_TRY(dt_share_statistics(net, comm));
    DT_TRY(dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = BATCH, .rank = dt_comm_rank(comm), .size = dt_comm_size(comm), .seed = 3, .shuffle = true }));
    dt_checkpoint at = { .net = net, .opt = opt, .it = &it, .settings = settings };
    dt_err error = load ? dt_checkpoint_load(&at, comm, load) : DT_OK;
    uint32_t steps = at.epoch * it.steps + at.step;
    for (; error == DT_OK && at.epoch < 2; ++at.epoch, at.step = 0) {
        if (at.step == 0) dt_batches_begin(&it, at.epoch);
        for (dt_batch b; error == DT_OK && (!save || steps < stop) && dt_batches_next(&it, &b); ++at.step, ++steps) {
            DT_TRY(dt_net_load(net, &b));
            DT_TRY(dt_forward(net));
            DT_TRY(dt_backward(net));
            DT_TRY(dt_average_gradients(net, comm));
            dt_optimizer_step(opt);
            const dt_score score = dt_net_score(net);
            dt_score_add(&at.score, &score);
            at.own[3] += dt_score_loss(&score);
        }
        if (save && steps == stop) break;
    }
    if (error == DT_OK && save && dt_comm_rank(comm) == 0) error = dt_checkpoint_save(&at, save);
    if (dt_comm_rank(comm) == 0) *hash = dt_hash(&at.score, sizeof at.score, dt_net_hash(net)), *sum = at.own[3];
    DT_TRY(dt_share_statistics(net, NULL));
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}

typedef struct own { uint32_t stop; const char *load, *save, *settings; uint64_t hash; double sum; } own;
static dt_err own_rank(dt_comm *comm, void *arg) {
    own *o = arg;
    return own_loop(comm, o->stop, o->load, o->save, o->settings, &o->hash, &o->sum);
}

static void loops_of_ones_own(void **state) {
    (void)state;
    own whole = { .settings = "--lr: 1\n" };
    ok(dt_run_ranks(2, own_rank, &whole));
    for (uint32_t stop = 0; stop <= 2 * STEPS; stop += EVERY) {
        own first = { .stop = stop, .save = "own.checkpoint", .settings = "--lr: 1\n" }, second = { .load = "own.checkpoint", .settings = "--lr: 1\n" };
        ok(dt_run_ranks(1 + (int)stop % 3, own_rank, &first));
        ok(dt_run_ranks(1 + (int)stop % 2, own_rank, &second));
        assert_int_equal(second.hash, whole.hash);
        assert_true(second.sum == whole.sum);
    }
    own wrong = { .load = "own.checkpoint", .settings = "--lr: 2\n" };
    assert_int_equal(dt_run_ranks(2, own_rank, &wrong), DT_EDATA);
    assert_non_null(strstr(dt_error(), "it was made with --lr 1, and this run has 2"));
    wrong.settings = NULL;
    assert_int_equal(dt_run_ranks(1, own_rank, &wrong), DT_EDATA);
    assert_non_null(strstr(dt_error(), "it says \"--lr: 1\" where this run says \"\""));
    run trainers = of(1, false);
    trainers.resume = "own.checkpoint";
    trainers = done(trainers);
    assert_int_equal(trainers.error, DT_EDATA);
}

/* ---- */

static void fill(dt_dataset *d, uint32_t count, uint32_t from) {
    static float mean = 0.4f, std = 0.3f;
    *d = (dt_dataset){ .name = "made", .source = "here", .count = count, .channels = 1, .height = SIDE, .width = SIDE, .classes = CLASSES, .mean = &mean, .std = &std };
    d->pixels = malloc((size_t)count * SIDE * SIDE), d->labels = malloc(count);
    for (uint32_t n = 0; n < count; ++n) {
        d->labels[n] = (uint8_t)(dt_philox(1, DT_RNG_TEST, 0, from + n, 0).v[0] % CLASSES);
        for (uint32_t i = 0; i < SIDE * SIDE; ++i)
            d->pixels[(size_t)n * SIDE * SIDE + i] = (uint8_t)(dt_philox(1, DT_RNG_TEST, 1, from + n, i).v[0] % 100 + (i / SIDE / 3 == d->labels[n] ? 25u : 0u));
    }
    d->hash = dt_hash(d->pixels, (size_t)count * SIDE * SIDE, dt_hash(d->labels, count, 0));
}

int main(void) {
    char folder[] = "/tmp/test_checkpoint.XXXXXX";
    fill(&data, COUNT, 0), fill(&checked, MORE, COUNT), fill(&other, COUNT, 7);
    if (!mkdtemp(folder) || chdir(folder)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumes_at_every_step), cmocka_unit_test(stops_again_and_again), cmocka_unit_test(takes_more_epochs),
        cmocka_unit_test(psgd_at_its_own_ranks), cmocka_unit_test(refuses_other_settings), cmocka_unit_test(goes_on_without_a_file),
        cmocka_unit_test(hogwild_has_none), cmocka_unit_test(refuses_what_is_cut_off), cmocka_unit_test(refuses_flipped_bits),
        cmocka_unit_test(refuses_what_is_wrong_though_whole), cmocka_unit_test(refuses_foreign_files), cmocka_unit_test(loops_of_ones_own),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    free(file), free(original);
    for (int i = 0; i < 3; ++i) free((i ? i > 1 ? &other : &checked : &data)->pixels), free((i ? i > 1 ? &other : &checked : &data)->labels);
    return failed | (chdir("/") || system(command) ? 1 : 0);
}
