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

#include "ch09_report.h"

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
// This is called **PSGD**, parallel SGD. The average itself is made as in chapter 8, by exact sums,
// so that its bits do not depend on an order of adding.

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
// Between "in every step" and "once, at the end" there is a choice. **Local SGD** averages every H
// steps; with an H larger than the number of steps it is PSGD. Shares may differ by an image, and
// then some ranks have one batch less than others. Such a rank has no last step to take, but it
// must still come to the average: an all-reduce ends only when every rank has come to it.
//
// What a rank needs (net, optimizer, its share's batches, memory) is its *room*, which
// ch09_report.h sets up; `m->longest` is the number of steps of the rank that has the most.

static dt_err average(const job *j, dt_comm *comm, room *m);

// [region: loop]
static dt_err local_sgd(job *j, dt_comm *comm, room *m) {
    DT_TRY(dt_broadcast_parameters(m->net, comm));
    memcpy(m->common, dt_net_values(m->net), dt_net_count(m->net) * sizeof *m->common);
    for (int epoch = 0; epoch < j->s->epochs; ++epoch) {
        if (all_stop(comm)) return DT_OK; // Ctrl-C
        dt_batches_begin(&m->it, (uint32_t)epoch);
        for (uint32_t step = 0; step < m->longest; ++step) {
            dt_batch batch;
            // a step on this rank's own batch, as if it were alone in the world
            if (dt_batches_next(&m->it, &batch)) {
                DT_TRY(dt_net_load(m->net, &batch));
                DT_TRY(dt_forward(m->net));
                DT_TRY(dt_backward(m->net));
                dt_optimizer_step(m->opt);
            }
            ++j->steps;
            if (j->every && j->steps % j->every == 0) {
                DT_TRY(average(j, comm, m));
                ++j->averages;
            }
        }
    }
    return DT_OK;
}
// [end]

// ## 9.3 Outer momentum
//
// After an average all ranks have the same values. H steps later they have a new average. Let D be
// the old values minus the new ones. If one takes D for a gradient, then going from the old average
// to the new one is a plain step of SGD, with learning rate 1. Chapter 6 has better steps than
// that: a momentum adds up what D has in common from one average to the next, and what the ranks'
// noise puts in cancels. SlowMo (Wang, Tantia, Ballas, Rabbat 2020) and DiLoCo (Douillard et al.
// 2023) do so. DiLoCo takes Nesterov's form (6.1), with a rate of 0.7 and a momentum of 0.9. This
// needs no messages of its own, as every rank takes the same step from the same average.
//
// Beware of what it is compared with. Where D stays the same, steps come to 0.7 / (1 - 0.9) = 7
// times the way to the average, so the net also learns with a larger rate. Two epochs of MNIST on 4
// ranks with H = 16 give 95.4 % as it is, 97.8 % with outer momentum (medians of five seeds;
// figures/ch09_accuracy.csv). But with 7 times the learning rate, --lr 0.07, they give 97.7 %
// without it and 97.3 % with it (figures/ch09_rate.csv). Here, then, it makes up for a rate that
// was too small. What it is known for, few averages where ranks differ much, this net does not
// show: from H = 64 on it gains less and less, and with a single average it loses a point (94.2 %
// against 95.2 %; exercise 9.6.3 says why).

// [region: outer]
static void outer_by_hand(room *m) {
    const dt_outer_desc outer = { DT_DILOCO_DEFAULTS };
    float *w = dt_net_values(m->net);
    for (size_t i = 0; i < dt_net_count(m->net); ++i) {
        const float way = m->common[i] - w[i]; // D
        m->buf[i] = outer.momentum * m->buf[i] + way;
        w[i] = m->common[i] -= outer.lr * (way + outer.momentum * m->buf[i]);
    }
}
// [end]

static dt_err average(const job *j, dt_comm *comm, room *m) {
    DT_TRY(average_by_hand(m->net, comm, m->sum));
    if (j->outer) outer_by_hand(m);
    return DT_OK;
}

// The whole run: the share, the loop, the average at the end, and what it cost. dt_comm_times
// counts the bytes a rank gives to the others; an average gives 8 bytes a parameter, 78720 for this
// net. (A run with one average counts 157520: the broadcast of the initial values is in it, rank
// 0's part.)

// [region: run]
static dt_err run(job *j, dt_comm *comm, room *m) {
    dt_score score;
    DT_TRY(dt_barrier(comm));
    const uint64_t bytes = dt_comm_times(comm).bytes;
    const double start = dt_now();
    DT_TRY(local_sgd(j, comm, m));
    j->seconds = dt_now() - start;
    DT_TRY(dt_evaluate(m->net, j->test, NULL, &score)); // every rank its own net
    j->alone = dt_score_accuracy(&score);
    // if there were steps since the last one: a momentum alone shall not move the net
    const bool due = !j->outer || !j->every || j->steps % j->every != 0;
    if (due) DT_TRY(average(j, comm, m));
    j->averages += due;
    j->bytes = dt_comm_times(comm).bytes - bytes;
    // the same net on every rank: the images are shared out
    DT_TRY(dt_evaluate(m->net, j->test, comm, &score));
    j->accuracy = dt_score_accuracy(&score);
    j->hash = dt_net_hash(m->net);
    return dt_check_replicas(m->net, comm);
}
// [end]

static dt_err train_by_hand(dt_comm *comm, void *arg) {
    // thread ranks share arg: each works on a copy, rank 0 copies back
    job local = *(const job *)arg;
    room m = { 0 };
    dt_err error = room_begin(&m, &local, comm);
    if (error == DT_OK) error = run(&local, comm, &m);
    if (brings_result(comm)) *(job *)arg = local;
    room_end(&m);
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
// Do not take that for a law: the net is small, all shares look alike (2.5), and two epochs are
// few. After ten epochs, with five ranks, chapter 12 finds half a point lost.
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

static void one_rank_alone(dt_comm *comm, const job *first, tradeoff *t) {
    for (int k = 0; k < t->seeds; ++k) {
        job one = *first;
        one.seed += (uint64_t)k;
        check(comm, dt_run_ranks(1, train_by_hand, &one));
        t->one[k] = one.accuracy;
    }
    sort_numbers(t->one, (size_t)t->seeds);
    printf("rank 0 before the only average: %.2f %%; one rank with all the data: %.2f %%\n",
           100 * t->point[t->count - 1].alone[t->seeds / 2], 100 * t->one[t->seeds / 2]);
}

int main(int argc, char **argv) {
    settings s;
    dt_comm *comm = read_settings(argc, argv, &s);
    dt_dataset train, test, some, few;
    load_data(comm, s.data, "ch09", &train, &test);
    if (!s.images) s.images = s.quick ? 2048 : (int)train.count;
    check_all(comm, dt_dataset_view(&some, &train, 0, (uint32_t)s.images));
    check_all(comm,
              dt_dataset_view(&few, &train, 0, (uint32_t)(s.images < 1024 ? s.images : 1024)));
    print_machine(comm, &some, 1);
    job first = { .s = &s, .train = &some, .test = &test, .seed = s.seed }, small = first;
    small.train = &few;
    hold_against_header(comm, s.ranks, &small);
    tradeoff t = sweep(comm, s.ranks, &first);
    if (dt_comm_rank(comm) == 0) { // the others have done their part
        one_rank_alone(comm, &first, &t);
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
