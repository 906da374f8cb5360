// Chapter 8. Synchronous SGD                          uses [S3.2] [S8] [S10] [S11.1] [S11.3] [E8]
//
// You will learn   how ranks train one net together; why the number of ranks need not change a
//                  single bit of it; what goes wrong with uneven shares, with sums for means, and
//                  with a sum thrown away
// New since ch07   about 90 lines: five verbs, exact sums of gradients, a check that ranks agree
// Run              make ch08 && mpiexec -n 2 ./ch08
//                  mpiexec -n 4 ./ch08 --bug lost-sum --no-check        (and without --no-check)
// Check            mpiexec -n 3 ./ch08 --quick --data synthetic
//
//| by hand and by dt_train_sync: the same bits
//| exact sums, 1 to 4 threads and 3 ranks (MPI): one hash
//~ float sums, <num> to <num> threads and <num> ranks (MPI): <num> different
//~ uneven shares: weights m/n miss by <num>, weights <num>/P miss by <num>
//| sum with lr/4: the bits of the mean with lr
//| sum with lr: the bits of the mean with 4 lr

#include "ch08_report.h"

// ## 8.1 Five verbs
//
// Every rank holds the whole net, and of each global batch (2.8) a part, its share. A step is five
// verbs: *load* the share, *forward*, *backward*, *sum* the gradients over the ranks, *step*. As
// the loss is the mean over the global batch, each sample counts 1/128, whoever holds it. So a
// rank's gradient is already its part of that mean, and the parts only need to be summed. All ranks
// began with the same values and take the same step, so they stay the same without ever sending a
// weight.
//
// In the code, DT_F32 says that the numbers are floats, DT_SUM what is done with them, and DT_AUTO
// leaves to the header which of chapter 7's ways it takes. The fifth verb, dt_optimizer_step, is
// the caller's (8.4).

// [region: verbs]
static dt_err sum_as_floats(dt_net *net, dt_comm *comm, const dt_batch *share) {
    DT_TRY(dt_net_load(net, share));
    DT_TRY(dt_forward(net));
    DT_TRY(dt_backward(net));
    return dt_allreduce(comm, dt_net_gradients(net), dt_net_count(net), DT_F32, DT_SUM, DT_AUTO);
}
// [end]

// ## 8.2 Why P must not change the answer
//
// That is right, but not to the last bit: (a + b) + c is not a + (b + c) in floats, and with
// another P other sums are made first. Differences of 1e-8 are harmless until somebody must find
// out whether a wrong accuracy is a bug or "just rounding".
//
// Integers have no such trouble: their sum is the same in any order. So the gradients are added as
// integers. The images are computed in groups of 16, the same groups at every P. Each group's
// gradient is rounded to whole multiples of a small unit, 2^-40. Those whole numbers are added as
// 64-bit integers, first within a rank and then over ranks, and the sum times the unit is the
// gradient. Here the groups are taken one at a time, as if each were a batch of its own.
//
// *Why 2^-40?* Of the integer's 64 bits, 40 then stand behind the point and 23 before it, beside
// the sign. So sums up to 8 million fit, and no gradient is that large. The unit is 9e-13. Floats
// near 0.01 lie 9e-10 apart, which is a thousand units. Only below 2^-17, or 7.6e-6, do floats lie
// closer together than the unit; numbers that small lose digits when they are rounded to it.
//
// dt_fixed_add rounds and adds n numbers, and returns how many of them were below the limit that
// dt_fixed_limit gives for so many summands; all must be, or the sum might not fit.

// [region: exact]
static dt_err sum_exactly(dt_net *net, dt_comm *comm, const dt_batch *share, int64_t *sum) {
    const size_t n = dt_net_count(net);
    // what surely does not overflow
    const float limit = dt_fixed_limit((share->global_count + DT_LANES - 1) / DT_LANES,
                                       DT_FIXED_UNIT);
    memset(sum, 0, n * sizeof *sum);
    for (uint32_t at = 0; at < share->count; at += DT_LANES) {
        dt_batch group = *share; // keeps global_count: each sample counts 1/global_count
        group.index += at, group.first += at;
        group.count = share->count - at < DT_LANES ? share->count - at : DT_LANES;
        DT_TRY(dt_net_load(net, &group));
        DT_TRY(dt_forward(net));
        DT_TRY(dt_backward(net));
        const size_t fits = dt_fixed_add(sum, dt_net_gradients(net), n, DT_FIXED_UNIT, limit);
        if (fits < n) return DT_ENUMERIC;
    }
    DT_TRY(dt_allreduce(comm, sum, n, DT_I64, DT_SUM, DT_AUTO));
    dt_fixed_to_float(dt_net_gradients(net), sum, n, DT_FIXED_UNIT);
    return DT_OK;
}
// [end]

// ## 8.3 The sum that was thrown away
//
// A lab report wrote `comm.allreduce(grad)`, and then divided `grad` by P. The sum was the
// function's *result*; nobody took it. So each rank steps with its own gradient, divided by P, on
// its own 1/P of the data: P nets that never meet, each trained on less, with a smaller learning
// rate. Nothing crashes, the loss falls. `--bug lost-sum` does it here.

// [region: lost]
static dt_err lose_the_sum(dt_net *net, dt_comm *comm, const dt_batch *own) {
    DT_TRY(dt_net_load(net, own));
    DT_TRY(dt_forward(net));
    DT_TRY(dt_backward(net));
    for (size_t i = 0; i < dt_net_count(net); ++i)
        dt_net_gradients(net)[i] /= (float)dt_comm_size(comm);
    return DT_OK;
}

// The batches of such a rank: its own 1/P of the data (2.5), in an order of its own, 128/P a step.
static dt_err own_share(const job *j, dt_comm *comm, room *m, dt_batches_desc *share) {
    const uint32_t p = (uint32_t)dt_comm_size(comm), r = (uint32_t)dt_comm_rank(comm),
                   batch = (uint32_t)j->s->batch / p;
    DT_TRY(dt_partition(m->index, m->start, NULL, p, j->train->count, j->s->seed));
    *share = (dt_batches_desc){ .global_batch = batch > 1 ? batch : 1,
                                .seed = j->s->seed + r,
                                .shuffle = true,
                                .subset = m->index + m->start[r],
                                .subset_count = m->start[r + 1] - m->start[r] };
    return DT_OK;
}
// [end]

// ## 8.4 The loop
//
// One loop for all of these. It runs on whatever ranks it is given: processes, which mpiexec
// starts, or threads of one process that dt_run_ranks starts; both have a number and send messages.
// Rank 0 scores its net now and then for the picture. dt_check_replicas compares a hash of the
// parameters over all ranks; if two ranks differ, its error names the tensor in which they do. What
// a rank needs, its *room* (net, optimizer, batches, memory), is set up in ch08_report.h.

static dt_err one_step(const job *j, dt_comm *comm, room *m, const dt_batch *batch) {
    DT_TRY(j->how == LOST    ? lose_the_sum(m->net, comm, batch)
           : j->how == FLOAT ? sum_as_floats(m->net, comm, batch)
                             : sum_exactly(m->net, comm, batch, m->sum));
    for (size_t i = 0; j->how == SUMMED && i < dt_net_count(m->net); ++i)
        dt_net_gradients(m->net)[i] *= (float)dt_comm_size(comm);
    dt_optimizer_step(m->opt);
    return DT_OK;
}

// [region: loop]
static dt_err loop(job *j, dt_comm *comm, room *m) {
    const int every = (int)m->it.steps * j->epochs / POINTS + 1;
    // or each rank begins elsewhere, and the same steps do not help
    DT_TRY(dt_broadcast_parameters(m->net, comm));
    for (int epoch = 0; epoch < j->epochs && !j->stopped; ++epoch) {
        dt_batches_begin(&m->it, (uint32_t)epoch);
        for (dt_batch batch; !j->stopped && dt_batches_next(&m->it, &batch);) {
            const double start = dt_now();
            DT_TRY(one_step(j, comm, m, &batch));
            j->seconds += dt_now() - start;
            ++j->steps;
            if (j->check && j->steps == 20) DT_TRY(dt_check_replicas(m->net, comm));
            if (j->draws && dt_comm_rank(comm) == 0 && j->steps % every == 0)
                score(j, m->net, (double)j->steps * j->s->batch);
            // Ctrl-C: all ranks leave after the same step
            if (j->steps % 10 == 0) j->stopped = all_stop(comm);
        }
    }
    if (dt_comm_rank(comm) == 0) score(j, m->net, (double)j->epochs * j->train->count);
    j->hash = dt_net_hash(m->net);
    return j->check ? dt_check_replicas(m->net, comm) : DT_OK;
}
// [end]

static dt_err train_by_hand(dt_comm *comm, void *arg) {
    // thread ranks share arg: each works on a copy, and rank 0 copies back
    job local = *(job *)arg, *j = &local;
    room m = { 0 };
    dt_batches_desc share = { .global_batch = (uint32_t)j->s->batch,
                              .rank = dt_comm_rank(comm),
                              .size = dt_comm_size(comm),
                              .seed = j->s->seed,
                              .shuffle = true };
    dt_err error = room_begin(&m, j, comm);
    if (error == DT_OK && j->how == LOST) error = own_share(j, comm, &m, &share);
    if (error == DT_OK) error = dt_batches_init(&m.it, j->train, &share);
    if (error == DT_OK) error = loop(j, comm, &m);
    if (brings_result(comm)) *(job *)arg = local;
    room_end(&m);
    return error;
}

// ## 8.5 Held against the header
//
// dt_train_sync does the same, faster (a rank's groups in one go). The bits must agree, if the unit
// is the same, and here it is told to be. Left to itself, the header chooses a unit for each tensor
// by the size of its gradient, so that a gradient of 1e-9 keeps its digits too ([S3.2]).

static dt_err train_by_header(dt_comm *comm, void *arg) {
    job *j = arg;
    dt_train_result result;
    dt_net *net = mnist_net(j->train->classes);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = j->s->batch,
                                               .seed = j->s->seed,
                                               .unit = DT_FIXED_UNIT }));
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = j->lr, .momentum = j->s->momentum });
    dt_err error = opt ? dt_train_sync(net, opt, comm,
                                       &(dt_train_desc){ .data = j->train,
                                                         .epochs = j->epochs,
                                                         .batch = (uint32_t)j->s->batch,
                                                         .seed = j->s->seed,
                                                         .on_step = show_progress },
                                       &result)
                       : DT_EARG;
    j->hash = dt_net_hash(net);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}

// While rank 0 runs threads as ranks, the other processes sleep, and then hear the hash.
static void on_threads(dt_comm *comm, int ranks, job *j) {
    dt_err error = DT_OK;
    dt_comm_set_wait(comm, DT_WAIT_SLEEP);
    if (dt_comm_rank(comm) == 0) error = dt_run_ranks(ranks, train_by_hand, j);
    check(comm, error);
    check(comm, dt_broadcast(comm, &j->hash, sizeof j->hash, 0));
    dt_comm_set_wait(comm, DT_WAIT_AUTO);
    end_if_asked(comm);
}

// ## 8.6 One curve for every P
//
// The same training on 1, 2, 3 and 4 ranks that are threads, then on the processes this program was
// started as, with exact and with float sums. A hash of all 9840 parameters tells whether two runs
// ended in the same place. In the picture (figures/ch08_sync.csv) the four curves lie on each
// other, and each P has marks at places of its own, so that one sees all four. Below them are two
// runs that lost the sum (8.3): after one epoch 80.0 % on 2 ranks and 47.8 % on 4, where all four
// exact ones have 89.2 %.
//
// Picture: ch08_sync

// Keeps the hash as number i of those seen; whether it is not among the first i.
static bool is_new(uint64_t seen[5], int i, uint64_t hash) {
    seen[i] = hash;
    for (int k = 0; k < i; ++k)
        if (seen[k] == hash) return false;
    return true;
}

static void compare_ranks(dt_comm *comm, job *exact, job *floats) {
    const bool says = dt_comm_rank(comm) == 0;
    const char *backend = dt_comm_backend_name(comm);
    uint64_t seen[5];
    int same = 0, different = 0;
    char sentence[160], runs[64];
    if (says) print_sums_head();
    for (int i = 0; i < 5; ++i) {
        if (i < 4) on_threads(comm, i + 1, &exact[i]), on_threads(comm, i + 1, &floats[i]);
        else {
            check_all(comm, train_by_hand(comm, &exact[i]));
            check_all(comm, train_by_hand(comm, &floats[i]));
            end_if_asked(comm);
        }
        const sums_row row = { i < 4 ? i + 1 : dt_comm_size(comm), i < 4 ? "threads" : backend,
                               exact[i].hash, floats[i].hash, exact[i].seconds / exact[i].steps,
                               floats[i].seconds / floats[i].steps };
        if (says) print_sums_row(&row);
        same += exact[i].hash == exact[0].hash;
        different += is_new(seen, i, floats[i].hash);
    }
    snprintf(runs, sizeof runs, "1 to 4 threads and %d rank%s (%s)", dt_comm_size(comm),
             plural(dt_comm_size(comm)), backend);
    snprintf(sentence, sizeof sentence, "exact sums, %s: one hash", runs);
    must(comm, same == 5, sentence);
    if (!says) return;
    printf("float sums, %s: %d different\n", runs, different);
    say_cost(exact[0].seconds / floats[0].seconds, sentence, sizeof sentence);
    printf("%s\n", sentence);
}

// ## 8.7 Uneven shares
//
// 8.1 let each sample count 1/128. Many programs do it in another way: each rank takes the mean
// over its own samples, and the ranks' means are averaged. Let rank k hold m_k of n samples, with
// the mean gradient g_k of its own samples. The gradient of the whole batch is
//
//     (1/n) sum over all samples  =  (1/n) sum_k m_k g_k  =  sum_k (m_k/n) g_k
//
// A course project proved exactly this and then coded 1/P for m_k/n. The two agree for equal shares
// only. With 1/P, each sample of a rank that has few of them counts more than others do; that
// happens at the end of an epoch, when the last batch is short. Here 128 samples are shared out as
// 16, 32 and 80.

// [region: uneven]
static double distance(const double *a, const double *b, size_t n) {
    double off = 0.0, size = 0.0;
    for (size_t i = 0; i < n; ++i) off += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
    return sqrt(off / size);
}

static dt_err uneven(const job *j, double miss[2]) {
    // shares 0, 1, 2; "share" 4 is the whole batch
    static const uint32_t from[5] = { 0, 16, 48, 128, 0 };
    enum { MOST = 10000 };
    static double weighted[MOST], equal[MOST], whole[MOST];
    uint32_t row[128];
    for (uint32_t i = 0; i < 128; ++i) row[i] = i;
    dt_net *net = mnist_net(j->train->classes);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = 128, .seed = j->s->seed }));
    for (int k = 0; k < 4; ++k) {
        const uint32_t first = k < 3 ? from[k] : 0, m = k < 3 ? from[k + 1] - first : 128;
        const dt_batch share = batch_of(j->train, row + first, first, m);
        DT_TRY(dt_net_load(net, &share));
        DT_TRY(dt_forward(net));
        DT_TRY(dt_backward(net));
        for (size_t i = 0; i < dt_net_count(net) && i < MOST; ++i) {
            const double g = (double)dt_net_gradients(net)[i];
            if (k == 3) whole[i] = g;
            else weighted[i] += m / 128.0 * g, equal[i] += g / 3.0;
        }
    }
    miss[0] = distance(weighted, whole, dt_net_count(net)),
    miss[1] = distance(equal, whole, dt_net_count(net));
    dt_net_free(net);
    return DT_OK;
}
// [end]

// ## 8.8 Sum against mean
//
// An article on this subject averages over each rank's own batch, and sums over the R ranks. The
// mean over a rank's B samples, summed over R ranks, is 1/B times the sum of all R B samples, and
// so R times their mean; and as SGD multiplies the gradient by the learning rate, summing is the
// same as averaging with R times the learning rate. Nothing is gained but a learning rate that
// silently grows with R. On 4 ranks the factor is 4, a power of two, and multiplying by it is exact
// in floats; so the claim can be tested bit by bit.

static void sum_or_mean(dt_comm *comm, const job *like) {
    job mean = *like, sum_quarter = *like, sum = *like, mean_four = *like;
    sum.how = sum_quarter.how = SUMMED;
    sum_quarter.lr *= 0.25f, mean_four.lr *= 4.0f;
    on_threads(comm, 4, &mean), on_threads(comm, 4, &sum_quarter), on_threads(comm, 4, &sum),
        on_threads(comm, 4, &mean_four);
    must(comm, mean.hash == sum_quarter.hash, "sum with lr/4: the bits of the mean with lr");
    must(comm, sum.hash == mean_four.hash, "sum with lr: the bits of the mean with 4 lr");
}

// ## 8.9 Everything, in order

static void run_the_bug(dt_comm *comm, const settings *s, job j) {
    j.how = LOST, j.check = !s->no_check;
    dt_err error = dt_comm_size(comm) > 1 ? train_by_hand(comm, &j)
                                          : dt_run_ranks(s->ranks, train_by_hand, &j);
    check_all(comm, error);
    if (dt_comm_rank(comm) == 0)
        printf("lost-sum   ranks %d, epochs %d: rank 0's accuracy is %.2f %%%s\n",
               dt_comm_size(comm) > 1 ? dt_comm_size(comm) : s->ranks, j.epochs, 100 * j.accuracy,
               j.stopped ? " (stopped early)" : "");
    end_if_asked(comm);
}

static void run_the_chapter(dt_comm *comm, const settings *s, const job *first) {
    static job exact[5], floats[5], lost[2];
    job by_hand = *first, by_header = *first;
    double miss[2] = { 0.0, 0.0 };
    by_hand.check = true;
    check_all(comm, train_by_hand(comm, &by_hand));
    check_all(comm, train_by_header(comm, &by_header));
    end_if_asked(comm);
    must(comm, by_hand.hash == by_header.hash, "by hand and by dt_train_sync: the same bits");
    for (int i = 0; i < 5; ++i)
        exact[i] = floats[i] = *first, exact[i].draws = i < 4 && s->png, floats[i].how = FLOAT;
    compare_ranks(comm, exact, floats);
    check_all(comm, uneven(first, miss));
    if (dt_comm_rank(comm) == 0)
        printf("\nuneven shares: weights m/n miss by %.1e, weights 1/P miss by %.1e\n", miss[0],
               miss[1]);
    must(comm, miss[0] < 1e-5 && miss[1] > 1e-3, "of these only m/n is the batch's gradient");
    sum_or_mean(comm, first);
    if (!s->png) return;
    for (int i = 0; i < 2; ++i) { // the picture has two runs that lose the sum as well
        lost[i] = *first, lost[i].how = LOST, lost[i].draws = true;
        on_threads(comm, 2 + 2 * i, &lost[i]);
    }
    if (dt_comm_rank(comm) == 0) draw_curves(comm, s, exact, lost);
}

int main(int argc, char **argv) {
    settings s;
    dt_comm *comm = read_settings(argc, argv, &s);
    dt_dataset train, test, some, few;
    load_data(comm, s.data, "ch08", &train, &test);
    if (!s.images) s.images = s.quick ? 2048 : (int)train.count;
    check_all(comm, dt_dataset_view(&some, &train, 0, (uint32_t)s.images));
    check_all(comm, dt_dataset_view(&few, &test, 0, s.bug ? test.count : 2000));
    print_machine(comm, &some, 1);
    job first = { .s = &s, .train = &some, .test = &few, .epochs = s.epochs, .lr = s.lr };
    if (s.bug) run_the_bug(comm, &s, first);
    else run_the_chapter(comm, &s, &first);
    return end_program(comm, &train, &test);
}

// ## 8.10 Exercises
//
// 1. **Predict.** A global batch of 128 is 8 groups of 16. How many does the busiest of 3 ranks
//    have, and how much faster than one rank can 3 be at best? And 5 ranks?
// 2. **Implement.** Leave dt_broadcast_parameters out, and give each rank its own seed. What does
//    the replica check say, and what becomes of the accuracy if nobody checks?
// 3. **Measure.** --bug lost-sum --no-check without mpiexec, with --ranks 1, 2, 3 and 4, and
//    dt_train_sync beside it (chapter 12). A report had 98.0, 97.4, 96.6, 96.1. Which part of the
//    fall is the smaller learning rate, which the smaller share of the data?
