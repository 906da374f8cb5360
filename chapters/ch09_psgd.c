// Chapter 9. PSGD and local SGD                      uses [S3.2] [S8] [S10] [S4.4] [S11.4] [E8]
//
// You will learn   how far ranks get alone; what one average at the end does; what accuracy costs
//                  in bytes; what momentum from average to average wins
// New since ch08   about 80 lines: an average of parameters, a loop that takes it every H steps,
//                  and a step from one average to the next
// Run              make ch09 && ./ch09                      (4 threads as ranks)
//                  mpiexec -n 2 ./ch09                      (2 processes)
// Check            mpiexec -n 2 ./ch09 --quick --data synthetic
//
//| by hand and by dt_train_psgd, H = 3: the same bits
//| by hand and by dt_train_psgd, once at the end: the same bits
//| by hand and by dt_train_psgd, H = 3 with outer momentum: the same bits
//| H = 1, every step: one step from equal values is one step with the mean gradient, to <= 1e-6
//~ once          <num> average       <num> bytes   <num> % (<num> to <num>)    <num> s
//~ rank <num> before the only average: <num> %; one rank with all the data: <num> %

#include "ch09_interval.h"
#include "ch09_report.h"
#include "ranks.h"

typedef struct settings {
    const char *data, *png;
    dt_algorithm algorithm;
    int ranks, images, epochs, batch, every, seeds;
    float lr, momentum;
    uint64_t seed;
    bool quick;
} settings;

// ## 9.1 Alone, and averaged once
//
// Synchronous SGD talks in every step. Zinkevich, Weimer, Smola and Li (2010) asked what happens if
// nobody talks at all:
//
//     cut the data at random into one share a worker
//     each worker: shuffle its share, run SGD on it alone
//     at the end, once:  w = (w_1 + ... + w_k) / k
//
// For a *convex* loss, one whose graph is a bowl, the average is provably good: between two points
// the graph lies below the straight line that joins them, so the loss of the average is at most the
// average of the losses. A net's loss is not convex. Swap two outputs of a layer, with all their
// weights: the net computes what it did before. But the average of a net and its swapped twin has
// both outputs made of both, and may be a bad net. So all workers start from one broadcast
// initialisation, and stay near each other.
//
// The average itself: as in chapter 8, by exact sums, so that its bits do not depend on an order of
// adding.

// [region: average]
static dt_err average_by_hand(dt_net *net, dt_comm *comm, int64_t *sum) {
    const size_t n = dt_net_count(net);
    const int p = dt_comm_size(comm);
    float *w = dt_net_values(net);
    if (p == 1) return DT_OK;
    memset(sum, 0, n * sizeof *sum);
    const float limit = dt_fixed_limit((size_t)p, DT_FIXED_UNIT);
    if (dt_fixed_add(sum, w, n, DT_FIXED_UNIT, limit) < n) return DT_ENUMERIC;
    DT_TRY(dt_allreduce(comm, sum, n, DT_I64, DT_SUM, DT_AUTO));
    for (size_t i = 0; i < n; ++i) w[i] = (float)((double)sum[i] * (double)DT_FIXED_UNIT / p);
    return DT_OK;
}
// [end]

// ## 9.2 Every H steps
//
// Between "in every step" and "never" there is a choice. Local SGD averages every H steps; H beyond
// the last step is PSGD. A rank whose share is a batch shorter than the longest skips that step,
// but not the average: an all-reduce ends only when every rank has come to it.

typedef struct job {
    const settings *s;
    const dt_dataset *train, *test;
    uint64_t seed;                  // of initial values, shares, order and dropout
    uint32_t every;                 // H; 0: once, at the end
    bool outer;                     // with outer momentum, section 9.3
    uint64_t hash, bytes;           // from here on: results
    uint32_t averages, steps;
    double seconds, accuracy, alone; // alone: rank 0's own net just before the last average
} job;

// What a rank has beside its net: room for sums, and for what section 9.3 remembers.
typedef struct room {
    int64_t *sum;
    float *common, *buf;
} room;

static dt_err average(const job *j, dt_comm *comm, dt_net *net, const room *m);

// [region: loop]
static dt_err local_sgd(job *j, dt_comm *comm, dt_net *net, dt_optimizer *opt, dt_batches *it,
                        uint32_t longest, const room *m) {
    DT_TRY(dt_broadcast_parameters(net, comm));
    memcpy(m->common, dt_net_values(net), dt_net_count(net) * sizeof *m->common);
    for (int epoch = 0; epoch < j->s->epochs; ++epoch) {
        if (all_stop(comm)) return DT_OK; // Ctrl-C
        dt_batches_begin(it, (uint32_t)epoch);
        for (uint32_t step = 0; step < longest; ++step) {
            dt_batch batch;
            // a step on this rank's own batch, as if it were alone in the world
            if (dt_batches_next(it, &batch)) {
                DT_TRY(dt_net_load(net, &batch));
                DT_TRY(dt_forward(net));
                DT_TRY(dt_backward(net));
                dt_optimizer_step(opt);
            }
            ++j->steps;
            if (j->every && j->steps % j->every == 0) {
                DT_TRY(average(j, comm, net, m));
                ++j->averages;
            }
        }
    }
    return DT_OK;
}
// [end]

// ## 9.3 Outer momentum
//
// D, the way from the values that all ranks had in common to their new average, is what they have
// found in H steps each. Take it for a gradient, and the new average is a plain step of SGD with
// it, at rate 1. Chapter 6 has better steps than that: a momentum adds up what D has in common from
// one average to the next, and loses what the ranks' noise puts in. SlowMo (Wang, Tantia, Ballas,
// Rabbat 2020) and DiLoCo (Douillard et al. 2023) do so; DiLoCo's numbers are Nesterov's form, a
// rate of 0.7 and a momentum of 0.9. It sends nothing, as every rank takes the same step from the
// same average.
//
// Beware of what it is compared with. Where D stays the same, steps come to 0.7 / (1 - 0.9) = 7
// times the way to the average, so the net also learns with a larger rate. Two epochs of MNIST on 4
// ranks with H = 16: 95.4 % as it is, 97.8 % with outer momentum; but with --lr 0.07 97.7 % without
// it, and 97.3 % with it (medians of five seeds). Here, then, it makes up for a rate that was too
// small. What it is known for, few averages where ranks differ much, this net does not show: from
// H = 64 on it gains less and less, and with a single average it loses a point (94.2 % against
// 95.2 %; exercise 9.6.3 says why).

// [region: outer]
static void outer_by_hand(dt_net *net, const room *m) {
    const dt_outer_desc outer = { DT_DILOCO_DEFAULTS };
    float *w = dt_net_values(net);
    for (size_t i = 0; i < dt_net_count(net); ++i) {
        const float way = m->common[i] - w[i]; // D
        m->buf[i] = outer.momentum * m->buf[i] + way;
        w[i] = m->common[i] -= outer.lr * (way + outer.momentum * m->buf[i]);
    }
}
// [end]

static dt_err average(const job *j, dt_comm *comm, dt_net *net, const room *m) {
    DT_TRY(average_by_hand(net, comm, m->sum));
    if (j->outer) outer_by_hand(net, m);
    return DT_OK;
}

// The whole run: the share, the loop, the average at the end, and what it cost. dt_comm_times
// counts the bytes a rank gives to the others; an average gives 8 bytes a parameter, 78720 for this
// net. (A run with one average counts 157520: the broadcast of the initial values is in it, rank
// 0's part.)

static dt_err run(job *j, dt_comm *comm, dt_net *net, dt_optimizer *opt, dt_batches *it,
                  uint32_t longest, const room *m) {
    dt_score score;
    DT_TRY(dt_barrier(comm));
    const uint64_t bytes = dt_comm_times(comm).bytes;
    const double start = dt_now();
    DT_TRY(local_sgd(j, comm, net, opt, it, longest, m));
    j->seconds = dt_now() - start;
    DT_TRY(dt_evaluate(net, j->test, NULL, &score)); // every rank its own net
    j->alone = dt_score_accuracy(&score);
    // if there were steps since the last one: a momentum alone shall not move the net
    const bool due = !j->outer || !j->every || j->steps % j->every != 0;
    if (due) DT_TRY(average(j, comm, net, m));
    j->averages += due;
    j->bytes = dt_comm_times(comm).bytes - bytes;
    // the same net on every rank: the images are shared out
    DT_TRY(dt_evaluate(net, j->test, comm, &score));
    j->accuracy = dt_score_accuracy(&score);
    j->hash = dt_net_hash(net);
    return dt_check_replicas(net, comm);
}

static dt_err train_by_hand(dt_comm *comm, void *arg) {
    // thread ranks share arg: each works on a copy, rank 0 copies back
    job local = *(const job *)arg;
    const uint32_t p = (uint32_t)dt_comm_size(comm), r = (uint32_t)dt_comm_rank(comm),
                   n = local.train->count;
    const uint32_t batch = dt_psgd_batch((uint32_t)local.s->batch, (int)p);
    DT_TRY(use_algorithm(comm, local.s->algorithm));
    DT_TRY(dt_barrier(comm));
    uint32_t *index = malloc(n * sizeof *index), *start = malloc((p + 1) * sizeof *start),
             longest = 0;
    dt_net *net = mnist_net(local.train->classes);
    dt_batches it = { .count = 0 };
    dt_err error = index && start ? dt_net_build(net, &(dt_build_desc){ .batch = local.s->batch,
                                                                        .seed = local.seed })
                                  : DT_ENOMEM;
    if (error == DT_OK) error = dt_partition(index, start, NULL, p, n, local.seed);
    for (uint32_t k = 0; k < p && error == DT_OK; ++k)
        if ((start[k + 1] - start[k] + batch - 1) / batch > longest)
            longest = (start[k + 1] - start[k] + batch - 1) / batch;
    if (error == DT_OK)
        error = dt_batches_init(&it, local.train,
                                &(dt_batches_desc){ .global_batch = batch,
                                                    .seed = local.seed + r,
                                                    .shuffle = true,
                                                    .subset = index + start[r],
                                                    .subset_count = start[r + 1] - start[r] });
    const size_t floats = dt_net_count(net) + 1;
    room m = { malloc(floats * sizeof *m.sum), malloc(floats * sizeof *m.common),
                 calloc(floats, sizeof *m.buf) };
    dt_optimizer *opt =
        error == DT_OK
            ? dt_sgd(net, &(dt_sgd_desc){ .lr = local.s->lr, .momentum = local.s->momentum })
            : NULL;
    if (error == DT_OK)
        error = opt && m.sum && m.common && m.buf
                    ? run(&local, comm, net, opt, &it, longest, &m)
                    : DT_ENOMEM;
    if (brings_result(comm)) *(job *)arg = local;
    dt_optimizer_free(opt);
    dt_batches_free(&it);
    dt_net_free(net);
    free(index), free(start), free(m.sum), free(m.common), free(m.buf);
    return error;
}

// ## 9.4 Held against the header

static dt_err train_by_header(dt_comm *comm, void *arg) {
    job local = *(const job *)arg;
    dt_train_result result;
    DT_TRY(dt_barrier(comm));
    dt_net *net = mnist_net(local.train->classes);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = local.s->batch, .seed = local.seed }));
    dt_optimizer *opt =
        dt_sgd(net, &(dt_sgd_desc){ .lr = local.s->lr, .momentum = local.s->momentum });
    const dt_outer_desc outer = { DT_DILOCO_DEFAULTS };
    dt_err error = opt ? dt_train_psgd(net, opt, comm,
                                       &(dt_train_desc){ .data = local.train,
                                                         .epochs = local.s->epochs,
                                                         .batch = (uint32_t)local.s->batch,
                                                         .seed = local.seed,
                                                         .average_every = local.every,
                                                         .outer = local.outer ? &outer : NULL,
                                                         .on_step = show_progress },
                                       &result)
                       : DT_EARG;
    local.hash = dt_net_hash(net);
    if (brings_result(comm)) *(job *)arg = local;
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}

// H = 1 with plain SGD is synchronous SGD: from equal values, the mean of (w - lr g_k) is w - lr
// times the mean of g_k. The order of rounding differs, so this holds to rounding only. (With
// momentum each rank keeps a buffer of its own as well, which is not averaged; as long as the
// buffers are added linearly that changes nothing. With Adam it does.)

static dt_err one_step_two_ways(dt_comm *comm, void *arg) {
    job *j = arg;
    uint32_t row[16], r = (uint32_t)dt_comm_rank(comm);
    for (uint32_t i = 0; i < 16; ++i) row[i] = (16 * r + i) % j->train->count;
    dt_net *mean = mnist_net(j->train->classes), *each = mnist_net(j->train->classes);
    DT_TRY(dt_net_build(mean, &(dt_build_desc){ .batch = 16, .seed = 1 }));
    DT_TRY(dt_net_build(each, &(dt_build_desc){ .batch = 16, .seed = 1 }));
    dt_optimizer *a = dt_sgd(mean, &(dt_sgd_desc){ .lr = 0.1f }),
                 *b = dt_sgd(each, &(dt_sgd_desc){ .lr = 0.1f });
    dt_batch batch = batch_of(j->train, row, 16 * r, 16);
    for (int k = 0; k < 2; ++k) {
        dt_net *net = k ? each : mean;
        // its own mean, or its share of the common mean
        batch.global_count = k ? 16 : 16 * (uint32_t)dt_comm_size(comm);
        DT_TRY(dt_net_load(net, &batch));
        DT_TRY(dt_forward(net));
        DT_TRY(dt_backward(net));
        if (!k) DT_TRY(dt_average_gradients(net, comm));
        dt_optimizer_step(k ? b : a);
        if (k) DT_TRY(dt_average_parameters(net, comm));
    }
    double off = 0.0;
    for (size_t i = 0; i < dt_net_count(mean); ++i)
        off = larger(off, fabs((double)dt_net_values(mean)[i] - (double)dt_net_values(each)[i]));
    dt_optimizer_free(a), dt_optimizer_free(b);
    dt_net_free(mean), dt_net_free(each);
    return off <= 1e-6 ? DT_OK : DT_ENUMERIC;
}

// Under mpiexec the ranks are its processes, else threads of this one.
static dt_err on_ranks(dt_comm *comm, int ranks, dt_err (*fn)(dt_comm *, void *), job *j) {
    return dt_comm_size(comm) > 1 ? fn(comm, j) : dt_run_ranks(ranks, fn, j);
}

static void hold_against_header(dt_comm *comm, int ranks, const job *first) {
    static const char *const said[3] = {
        "by hand and by dt_train_psgd, H = 3: the same bits",
        "by hand and by dt_train_psgd, once at the end: the same bits",
        "by hand and by dt_train_psgd, H = 3 with outer momentum: the same bits" };
    for (int i = 0; i < 3; ++i) {
        job by_hand = *first, by_header = *first;
        by_hand.every = by_header.every = i == 1 ? 0 : 3;
        by_hand.outer = by_header.outer = i == 2;
        check_all(comm, on_ranks(comm, ranks, train_by_hand, &by_hand));
        check_all(comm, on_ranks(comm, ranks, train_by_header, &by_header));
        end_if_asked(comm);
        must(comm, by_hand.hash == by_header.hash, said[i]);
    }
    job any = *first;
    must(comm, on_ranks(comm, ranks, one_step_two_ways, &any) == DT_OK,
         "H = 1, every step: one step from equal values is one step with the mean gradient, to <= "
         "1e-6");
}

// ## 9.5 Accuracy against communication
//
// One training tells little: another seed moves its accuracy as much as another H may. So each row
// is trained with several seeds, and the table has the median with the least and the most.
//
// The same training for H = 1, 4, 16, ... and once; or, with --average-every, for that H and once.
// Then all of them again with outer momentum. Below the table: what rank 0 had reached alone just
// before the only average of the last row, and what one rank reaches that sees all the data. The
// workers' batches are as PSGD wants them: each of its own batch/P images, rounded up to whole
// groups of 16.
//
// What the pictures show, for 4 ranks and two epochs (`figures/ch09_*.csv`): without outer momentum
// the medians of all H lie between 95.2 and 95.4 %, closer than one row's five seeds; rank 0 alone
// had 94.6 %. So here one average is worth as much as one in every step, for a 470th of the bytes.
// Do not take that for a law: the net is small, and all shares look alike (2.5).
//
// Picture: ch09_accuracy
//
// Picture: ch09_bytes

// One row: that H, with or without outer momentum, from each seed.
static void measure(dt_comm *comm, int ranks, const job *first, point *p) {
    const int seeds = first->s->seeds;
    for (int k = 0; k < seeds; ++k) {
        job j = *first;
        j.every = p->every, j.seed = first->s->seed + (uint64_t)k;
        check_all(comm, on_ranks(comm, ranks, train_by_hand, &j));
        end_if_asked(comm);
        p->averages = j.averages, p->bytes = j.bytes;
        p->accuracy[k] = j.accuracy, p->alone[k] = j.alone, p->seconds[k] = j.seconds;
    }
    sort_runs(p, seeds);
    if (dt_comm_rank(comm) == 0) print_point(p, seeds);
}

static tradeoff sweep(dt_comm *comm, int ranks, const job *first) {
    const settings *s = first->s;
    const uint32_t epoch = psgd_steps(first->train->count, (uint32_t)s->batch, ranks);
    const uint32_t steps = epoch * (uint32_t)s->epochs, only = steps_between(s->every, epoch);
    tradeoff t = { .ranks = ranks, .epochs = s->epochs, .batch = s->batch, .lr = s->lr,
                   .momentum = s->momentum, .seeds = s->seeds, .train = first->train,
                   .test = first->test, .steps = steps };
    // the last: one average, at the end
    for (uint32_t every = only ? only : 1; t.count < MOST_POINTS; every *= 4) {
        const bool once = t.count > 0 && (only || every >= steps);
        t.point[t.count].every = t.outer[t.count].every = once ? 0 : every;
        ++t.count;
        if (once) break;
    }
    job with = *first;
    with.outer = true;
    if (dt_comm_rank(comm) == 0) print_points_head("the average as it is");
    for (int i = 0; i < t.count; ++i) measure(comm, ranks, first, &t.point[i]);
    if (dt_comm_rank(comm) == 0) print_points_head("with outer momentum");
    for (int i = 0; i < t.count; ++i) measure(comm, ranks, &with, &t.outer[i]);
    return t;
}

int main(int argc, char **argv) {
    settings s = { .data = "auto",
                   .ranks = 4,
                   .batch = 128,
                   .epochs = 1,
                   .lr = 0.01f,
                   .momentum = 0.5f,
                   .seed = 1234 };
    const option_desc options[] = {
        DATA_OPTION(&s.data),
        { "ranks", UP_TO(64), &s.ranks, "P   threads as ranks, without mpiexec; default 4" },
        { "images", 'i', &s.images, "N   to train on; default all, --quick 2048" },
        { "epochs", 'i', &s.epochs, "E   default 1" },
        { "batch", UP_TO(65536), &s.batch, "B   a step of all ranks together, default 128" },
        { "average-every", 'h', &s.every,
          AVERAGE_EVERY_HELP ": that H alone; default all of 1, 4, 16, ..." },
        ALGORITHM_OPTION(&s.algorithm),
        { "lr", 'f', &s.lr, "X   default 0.01" },
        { "momentum", 'z', &s.momentum, "M   default 0.5" },
        SEED_OPTION(&s.seed),
        { "seeds", UP_TO(MOST_SEEDS), &s.seeds, "N   runs of each row, with seeds S, S+1, ...; "
                                                "default 5, with --quick 1" },
        { "png", 's', &s.png, "NAME   NAME_accuracy.png and NAME_bytes.png, with CSVs; default "
                              "out/ch09, with --quick none" },
        QUICK_OPTION(&s.quick),
    };
    dt_comm *comm = begin_program(argc, argv,
                                  "PSGD and local SGD by hand: accuracy against communication.",
                                  options, sizeof options);
    end_cleanly_on_signals();
    const int ranks = dt_comm_size(comm) > 1 ? dt_comm_size(comm) : s.ranks;
    if (ranks > 64) usage_error(comm, "ch09", "at most 64 ranks");
    if (!s.png && !s.quick) s.png = "out/ch09";
    if (s.png) check_output(comm, "%s_bytes.png", s.png);
    if (!s.seeds) s.seeds = s.quick ? 1 : 5;
    dt_dataset train, test, some, few;
    load_data(comm, s.data, "ch09", &train, &test);
    if (!s.images) s.images = s.quick ? 2048 : (int)train.count;
    check_all(comm, dt_dataset_view(&some, &train, 0, (uint32_t)s.images));
    check_all(comm,
              dt_dataset_view(&few, &train, 0, (uint32_t)(s.images < 1024 ? s.images : 1024)));
    print_machine(comm, &some, 1);
    job first = { .s = &s, .train = &some, .test = &test, .seed = s.seed }, small = first;
    small.train = &few;
    hold_against_header(comm, ranks, &small);
    tradeoff t = sweep(comm, ranks, &first);
    if (dt_comm_rank(comm) == 0) { // the others have done their part
        for (int k = 0; k < s.seeds; ++k) {
            job one = first;
            one.seed = s.seed + (uint64_t)k;
            check(comm, dt_run_ranks(1, train_by_hand, &one));
            t.one[k] = one.accuracy;
        }
        sort_numbers(t.one, (size_t)s.seeds);
        printf("rank 0 before the only average: %.2f %%; one rank with all the data: %.2f %%\n",
               100 * t.point[t.count - 1].alone[s.seeds / 2], 100 * t.one[s.seeds / 2]);
        if (s.png) draw_accuracy(comm, &t, s.png), draw_bytes(comm, &t, s.png);
    }
    return end_program(comm, &train, &test);
}

// ## 9.6 Exercises
//
// 1. **Predict.** 60 000 images, 4 ranks, --batch 128. How many steps does each rank take, and how
//    many one rank alone? How do the steps differ?
// 2. **Implement.** Start each rank from its own seed (leave the broadcast out). What is the
//    accuracy of the average now, and of each rank alone? Explain with section 9.1.
// 3. **Predict.** With outer momentum and a single average, by how much is the only outer step
//    longer than the way to the average? And, where D is the same each time, after many averages?
// 4. **Measure.** With alpha and beta from chapter 7 for your ranks, and the bytes from this
//    chapter's table, how long does H = 1 send, and how long H = 16? How many times slower must the
//    network be until sending takes H = 1 as long as computing?
