// Chapter 12. The full experiment                  uses [S8] [S9] [S10] [S4] [S11] [E6] [E8]
//
// You will learn   what parallel training gains and costs, on your own machine, in one table and
//                  three charts
// New since ch11   nothing in the library: this program only puts the chapters together
// Run              make ch12 && mpiexec -n 2 ./ch12 --epochs 1
//                  make experiment   (all of it: P = 1..5, N = 1..5, the tables and the charts)
// Check            mpiexec -n 2 ./ch12 --data synthetic --epochs 1
//
//~ workers  <num> ranks (MPI), <num> thread each, on <num> cores
//~ sync     <num> workers  <num> epoch  <num> s  <num> images/s  train loss <num>  ...

#include "ch12_forecast.h"
#include "ch12_report.h"
#include "ch12_run.h"

// ## 12.1 What is compared
//
// One net, one data set, three ways to train with several workers:
//
//     sync     a step takes one global batch; each rank computes its share of the gradient; the
//              shares are summed
//     psgd     each rank trains alone on its share of the data; the parameters are averaged once,
//              at the end
//     hogwild  threads of one process change one shared parameter vector without a lock
//
// The settings are those of a lab report that trained the same net with PyTorch: SGD with lr 0.01
// and momentum 0.5, batch 128, 10 epochs for the first two; Adam, batch 32, one epoch for Hogwild.
// Every one of them can be said on the command line.

// ## 12.2 One run
//
// All three are one call to the header, told the same things in one struct. The clock runs while
// the workers train, and stops for loading and evaluating: `seconds` is the slowest worker's.

// [region: methods]
static dt_err train(const settings *s, dt_net *net, dt_optimizer *opt, dt_comm *comm,
                    const dt_dataset *data, run *r) {
    watch w = { .comm = comm,
                .s = s,
                .show = !s->quiet && dt_comm_rank(comm) == 0 && isatty(2),
                .cost = dt_comm_times(comm) };
    const dt_train_desc desc = {
        .data = data,
        .epochs = s->epochs,
        .batch = (uint32_t)s->batch,
        .seed = s->seed,
        .algorithm = s->algorithm,
        .pin = s->pin,
        .bucket_bytes = (size_t)s->bucket * 1024,
        .average_every = steps_between(s->average_every, psgd_steps(data->count, (uint32_t)s->batch,
                                                                    dt_comm_size(comm))),
        .checkpoint = s->checkpoint,
        .checkpoint_every = (uint32_t)s->every,
        .resume = s->resume,
        .on_step = after_step,
        .user = &w
    };
    r->workers = dt_comm_size(comm);
    if (strcmp(s->method, "sync") == 0) return dt_train_sync(net, opt, comm, &desc, &r->train);
    if (strcmp(s->method, "psgd") == 0) return dt_train_psgd(net, opt, comm, &desc, &r->train);
    dt_hogwild_result hogwild;
    dt_err error = dt_train_hogwild(net, opt, s->threads, &desc, &hogwild);
    r->train = hogwild.train;
    r->workers = s->threads;
    return error;
}
// [end]

// ## 12.3 From the command line to the row
//
// Everything a run needs was built in the chapters before; here it stands in the order in which it
// happens: a net, an optimizer, the training, the test, the row. A rank is an MPI process or a
// thread of this one; run_rank cannot tell which. The test images are scored with dropout off, each
// exactly once, shared out over the ranks. The options are read in ch12_settings.h, a run's line
// and its rows of the CSV files are written in ch12_run.h, and ch12_report.h makes tables and
// charts of the rows of many runs.

typedef struct job {
    const settings *s;
    const dt_dataset *training, *testing;
    bool stopped;
    dt_err written;
} job;

static dt_optimizer *optimizer_of(const settings *s, dt_net *net) {
    return s->adam ? dt_adam(net, &(dt_adam_desc){ .lr = s->lr, .beta1 = 0.9f, .beta2 = 0.999f,
                                                   .eps = 1e-8f })
                   : dt_sgd(net, &(dt_sgd_desc){ .lr = s->lr, .momentum = s->momentum });
}

// [region: rank]
static dt_err train_and_test(const settings *s, dt_net *net, dt_comm *comm, const job *j, run *r) {
    dt_optimizer *opt = optimizer_of(s, net);
    dt_err error = opt ? DT_OK : DT_EARG;
    if (error == DT_OK && s->trace) error = dt_trace_start(comm, 100000);
    if (error == DT_OK) error = train(s, net, opt, comm, j->training, r);
    if (error == DT_OK && s->trace) error = dt_trace_write(comm, s->trace);
    if (error == DT_OK) error = dt_evaluate(net, j->testing, comm, &r->test);
    r->hash = dt_net_hash(net);
    dt_optimizer_free(opt);
    return error;
}

static dt_err run_rank(dt_comm *comm, void *arg) {
    job *j = arg;
    const settings *s = j->s;
    run r = { .workers = 1 };
    dt_net *net = mnist_net(j->training->classes);
    dt_err error = dt_net_build(net, &(dt_build_desc){ .batch = s->batch,
                                                       .seed = s->seed,
                                                       .float_sums = s->float_sums,
                                                       .direct = s->direct });
    if (s->patience > 0.0f) dt_comm_set_patience(comm, (double)s->patience);
    if (error == DT_OK) error = train_and_test(s, net, comm, j, &r);
    // all processes end with one code
    if (error == DT_OK && brings_result(comm)) j->stopped = r.train.stopped;
    // only rank 0 can meet an error in writing, so it waits until all are done
    if (error == DT_OK && dt_comm_rank(comm) == 0)
        j->written = write_all(s, j->training->name, net, &r);
    dt_net_free(net);
    return error;
}
// [end]

static void look_at_job(dt_comm *comm, const settings *s, const dt_dataset *training) {
    const uint32_t groups = (uint32_t)(s->batch + DT_LANES - 1) / DT_LANES;
    ask_doctor(comm, &(dt_doctor_desc){ .program = "./ch12", .lane_groups = groups,
                                        .leftovers = s->doctor }, s->quiet);
    if (!s->quiet || s->doctor) print_machine(comm, training, s->threads);
    if (s->doctor && dt_comm_rank(comm) == 0)
        printf("%d rank%s started as they should be\n", dt_comm_size(comm),
               plural(dt_comm_size(comm)));
}

static const char *forecast_stem(const settings *s) {
    return s->png ? s->png : "out/ch12_forecast";
}

static int forecast_main(dt_comm *comm, const settings *s); // 12.6

int main(int argc, char **argv) {
    settings s;
    dt_comm *comm = begin_ranks(argc, argv);
    read_settings(argc, argv, comm, &s);
    if (dt_comm_set_algorithm(comm, s.algorithm) != DT_OK) usage_error(comm, "ch12", dt_error());
    if (s.report) {
        if (dt_comm_rank(comm) == 0)
            check(comm, s.forecast ? report_checks(comm, s.report, forecast_stem(&s))
                                   : write_report(s.report));
        return leave_ranks(comm, 0);
    }
    end_cleanly_on_signals();
    if (s.forecast) return forecast_main(comm, &s);
    check_all(comm, dt_comm_rank(comm) == 0 ? check_outputs(&s) : DT_OK);
    dt_dataset training, testing;
    load_data(comm, s.data, "ch12", &training, &testing);
    look_at_job(comm, &s, &training);
    if (s.doctor) return leave_ranks(comm, 0);
    job j = { .s = &s, .training = &training, .testing = &testing };
    check(comm,
          s.threads > 1 && !s.hogwild ? dt_run_ranks(s.threads, run_rank, &j) : run_rank(comm, &j));
    check_all(comm, j.written);
    dt_dataset_free(&training);
    dt_dataset_free(&testing);
    return leave_ranks(comm, j.stopped ? 130 : 0);
}

// ## 12.4 A run that survives
//
// An hour of training should not hang on one process. What does the next step depend on? [S11.2]
// lists it: the parameters, the optimizer's vectors, the units of exact sums (8.2), the epoch and
// the step. The order of the images and dropout's masks are not in the list, as they are functions
// of (seed, epoch, image); nor is the number of ranks. So a small file, a *checkpoint*, is enough
// to go on, elsewhere and on another number of ranks, to the same bits:
//
//     mpiexec -n 3 ./ch12 --checkpoint net.checkpoint --every 100      killed after a while
//     mpiexec -n 2 ./ch12 --checkpoint net.checkpoint --every 100 --resume net.checkpoint
//     ./ch12 --threads 2 --resume net.checkpoint --epochs 20           more epochs, on threads
//
// Settings that differ from the file's are refused by name. SIGTERM, which a batch system sends
// before a job's time is up, makes the program end its step, write a checkpoint, and exit with code
// 130. PSGD's result depends on the number of ranks, so it must go on with as many as it had.
// Hogwild, whose workers never meet, has no checkpoints.
//
// `make elastic` does the rest: it starts the job, and whenever it ends badly starts it again from
// its checkpoint, with one rank less. The hash at the end is that of a run which nobody disturbed.

// ## 12.5 What to look for
//
// `make experiment` writes out/mnist.csv, the three charts beside it, and the tables with a
// comment; figures/mnist.txt is the one that the front page shows, with the machine that it ran on.
// "All cores busy" in the first picture is as many times one worker's speed as there are cores. A
// point above it is chance: one worker's time has a range, too. Four things to find in the tables,
// and where they come from:
//
// - **sync: one hash for every number of ranks.** The gradients are added as integers (8.2), so P
//   changes the time and not a bit of the result. The lab report's accuracy falls with P instead:
//   it threw the sum away (8.3), and each of its ranks trained alone on less and less.
// - **sync: a ceiling below P.** A step's 128 images are 8 groups of 16. Three ranks have 2, 3 and
//   3 of them, and all wait for the busiest: at best 8/3 times one rank's speed, on three cores.
//   With more ranks than cores, as beyond 2 in that table (1.86 times one rank's speed with 2
//   ranks, 1.45 with 3, 1.73 with 4), ranks take turns, and what counts is how evenly the cores are
//   loaded.
// - **psgd: no waiting, and a price.** Ranks meet once, at the end, so even five on two cores lose
//   little time. But each sees only a P-th of the data, in batches a P-th as large. The table has
//   the median of five seeds: 98.00 % with one rank, 97.50 % with five. Seeds differ as much, by up
//   to 0.5 points among the runs of one P. But the best of the five runs on five ranks, 97.59 %, is
//   below the worst on one, 97.94 %; so here the fall is no accident. With two ranks the two
//   ranges overlap, and the runs do not say whether they lose anything. (The line of synchronous
//   SGD is one seed, at every P. It is no worse than PSGD's one rank, which is the same method with
//   the images in another order: another seed moves it.)
// - **hogwild: no price that these runs can tell.** Each number of workers is run from five seeds,
//   so the column of hashes says "varies"; and with several workers one seed gives another hash
//   each time, too, as threads meet in another order (chapter 10). The range of five seeds, up to
//   1.1 points, is wider than the difference between one worker and five, 0.1. So the numbers do
//   not say that more workers cost accuracy. Who wants to claim it needs more runs.
//
// Picture: mnist_speedup
//
// Picture: mnist_accuracy
//
// And one thing not to conclude: that any of the three is *the* fast way. The net is small, its
// step of 128 images takes 0.78 ms on one core of that machine (figures/bench_step.csv), and its
// gradient is 77 KiB. Whether more ranks pay depends on how much is computed for each number that
// is sent. In a convolution a weight is used at many places of each image: much to compute, few
// numbers to send. In a linear layer such as fc1 it is used once for each image: little to compute,
// many numbers to send. And a larger batch is more to compute for the same gradient.

// ## 12.6 A forecast
//
// What would 64 ranks do, or 1024, on a network that is not there? Before anybody rents them, a
// model says where it will break. It needs few numbers, and all of them can be measured with one or
// two ranks. `./ch12 --forecast` measures them, prints the tables and draws two pictures. A step
// takes Tcomp, in which a rank computes, and Tsync, in which ranks send each other what they have
// computed and add it up. All times are in seconds. ch12_forecast.h has the structs: step_cost is
// what was measured of computing, network what was measured of messages.
//
// **A rank's own work.** A rank takes whole lane groups of 16 images. Of G groups, the busiest of P
// ranks has G/P, rounded up, and all the others wait for it. A step costs some time whatever the
// rank's share (the optimizer, emptying the sums and turning them into floats), `each`, and some
// for every group, `group`: packing it into lanes, forward, loss, backward. Both come from the line
// through the measured times of one, two, four and eight groups.
//
//     Tcomp(P) = each + ceil(G/P) * group
//
// Where P ranks share fewer cores, C of them, they cannot be faster than all their work together,
// divided by C. On machines of their own, C is P.

// [region: computing]
static int busiest(int groups, int ranks) { return (groups + ranks - 1) / ranks; }

static double computing(const step_cost *c, int groups, int ranks, int cores) {
    const double alone = c->all.each + busiest(groups, ranks) * c->all.group;
    const double shared = (ranks * c->all.each + groups * c->all.group) / cores;
    return ranks > cores && shared > alone ? shared : alone;
}

static double one_rank(const step_cost *c, int groups) { return computing(c, groups, 1, 1); }
// [end]

// **Amdahl's bound.** Suppose that messages took no time, and that groups could be cut as finely as
// one likes. Every rank still has to do `each`, so P ranks are at most this many times as fast as
// one:
//
//     speed(P) <= (each + G * group) / (each + G * group / P)  <  1 + G * group / each
//
// **Messages.** Chapter 7's model (7.5): a message costs alpha, a byte sent beta, a byte added
// gamma. Of its five ways to add up over the ranks three are ever the fastest; Tsync is the time of
// the best of them. In `sync_by` the counts are those of 7.5: `messages` is a number of messages,
// `sent` and `added` are multiples of the whole vector's bytes.

// [region: messages]
static double amdahl(const step_cost *c, int groups, int ranks) {
    return one_rank(c, groups) / (c->all.each + groups * c->all.group / ranks);
}

static double sync_by(dt_algorithm way, const network *net, int ranks, double bytes) {
    double down = 0.0; // the largest power of two that is not above the ranks; the rest is folded
    while (2 << (int)down <= ranks) ++down;
    const double q = 1 << (int)down, fold = ranks > q;
    double messages = down + 2.0 * fold, sent = messages, added = down + fold; // DT_DOUBLING
    if (ranks == 1) return 0.0;
    if (way == DT_RING)
        messages = 2.0 * (ranks - 1), added = (ranks - 1.0) / ranks, sent = 2.0 * added;
    if (way == DT_HALVING)
        messages = 2.0 * down + 2.0 * fold, added = 1.0 - 1.0 / q + fold,
        sent = 2.0 * (1.0 - 1.0 / q) + 2.0 * fold;
    return messages * net->alpha + bytes * (sent * net->beta + added * net->gamma);
}

static double sync_best(const network *net, int ranks, double bytes) {
    return fmin(fmin(sync_by(DT_RING, net, ranks, bytes), sync_by(DT_DOUBLING, net, ranks, bytes)),
                sync_by(DT_HALVING, net, ranks, bytes));
}

static double step_of(const step_cost *c, const network *net, int groups, int ranks) {
    return computing(c, groups, ranks, ranks) + sync_best(net, ranks, c->gradient);
}
// [end]

// **When ranks pay.** With weak scaling, a batch of its own for each rank, P ranks do P times the
// work in Tcomp + Tsync instead of Tcomp. That is faster than one rank if
//
//     (Tcomp + Tsync) / P < Tcomp,     that is     Tsync / Tcomp < P - 1
//
// the condition of examples/lenet_mnist.c. In the pictures, which show speed over one rank's, it is
// the line at 1. With strong scaling, one batch divided, Tcomp itself falls with P while Tsync
// grows, so there is a number of ranks that is best, and beyond it each one more makes it slower.
//
// **Overlap.** Backward finishes the last layer's gradient first, and its sum may travel while the
// earlier layers compute [S11.3]. It travels in buckets: gradients are collected until `bucket`
// bytes are there. A bucket sets out when it is full and the one before it is through; the step
// waits for the last. The model believes that a message on its way costs the rank no computing
// time, and that it goes on by itself: the best case.

// [region: overlap]
static double overlapped(const step_cost *c, const network *net, int groups, int ranks,
                         double bucket) {
    const part *backward = &c->of[2], *optimizer = &c->of[3];
    const double share = busiest(groups, ranks), took = backward->each + share * backward->group;
    const double last = optimizer->each + share * optimizer->group;
    const double start = computing(c, groups, ranks, ranks) - took - last;
    double free_at = start, filled = 0.0; // when the bucket before has come; bytes in this one
    for (int i = 0; i < c->stretches; ++i) {
        filled += c->bytes[i];
        if (filled < bucket && i + 1 < c->stretches) continue;
        free_at = fmax(free_at, start + c->final[i] * took) + sync_best(net, ranks, filled);
        filled = 0.0;
    }
    return fmax(free_at, start + took) + last;
}
// [end]

// **Local SGD** (chapter 9) sends the parameters every H steps (`every`) instead of the gradient in
// each. A step then costs its own computing and an H-th of an all-reduce. But a rank's batch is 1/P
// of the images, and a lane group takes its time with one image in it as with sixteen: beyond G
// ranks the step gets no shorter, and the images fewer.

// [region: local]
static double local_step(const step_cost *c, const network *net, int batch, int ranks, int every) {
    const int own = (int)dt_psgd_batch((uint32_t)batch, ranks);
    return one_rank(c, (own + DT_LANES - 1) / DT_LANES) +
           sync_best(net, ranks, c->gradient) / every;
}
// [end]

// How good is it? `mpiexec -n 3 ./ch12 --forecast` fits messages between its own ranks, trains for
// some seconds with each way, and prints what the model had said beside what it took. The fit has
// seen sums of vectors (7.4), never a step.
//
// Picture: ch12_forecast_strong
//
// Picture: ch12_forecast_weak
//
// **Checked.** `make forecast-check` joins 2, 3 and 4 ranks by networks of 10, 100 and 1000 Mbit/s
// on one machine, fits the model there to all-reduces alone, and then trains. Of 54 steps 50 took
// what was predicted within 15 %, half of them within 4 % (figures/ch12_forecast_check.csv). The
// worst are with 3 ranks: the ring at 1 Gbit/s takes half as long again as predicted, and local SGD
// by doubling and halving at 100 Mbit/s three quarters of it.
//
// Picture: ch12_forecast_check
//
// **What it lacks.** Most of these make real runs slower than the forecast:
//
// - *Cables are shared.* On 3 ranks, doubling first takes in the third rank's vector, and the
//   second one's sets out at the same time over the same cable. The model counts them as if they
//   came one by one, each at full speed, and is then too fast, by a tenth to a sixth at 10 Mbit/s.
// - *A message's time is no straight line over its bytes.* A network may let the first kilobytes
//   pass at once, and long messages go by other protocols than short ones. So the fit goes through
//   the sizes that are sent.
// - *Waiting is work.* A rank that waits for the network asks again and again whether something has
//   come. Where ranks share cores, as in the check, that takes time from those that compute.
// - *The slowest rank.* All wait for it, and of 1024 ranks one is always late. The model's ranks
//   all take the median.
// - *Memory and switches.* Cores of one host share its memory, hosts behind one switch the way to
//   the next. The model's ranks have all they need for themselves.
// - *Learning.* A batch of 128 for each of 1024 ranks is one of 131072, with which the net learns
//   less from each image (chapter 11). The forecast is about images a second, not about accuracy.

static int forecast_main(dt_comm *comm, const settings *s) {
    dt_dataset training, testing;
    const forecast_desc d = { .png = forecast_stem(s),
                              .csv = s->csv,
                              .network = s->network,
                              .batch = s->batch,
                              .bucket = s->bucket ? s->bucket * 1024 : 16384,
                              .every = s->average_every > 0 ? s->average_every : 16,
                              .float_sums = s->float_sums,
                              .direct = s->direct,
                              .quiet = s->quiet };
    if (!s->quiet) check_output(comm, "%s_strong.png", d.png);
    check_all(comm, d.csv && dt_comm_rank(comm) == 0 ? dt_csv_check(d.csv, check_header) : DT_OK);
    load_data(comm, s->data, "ch12", &training, &testing);
    if (!s->quiet) print_machine(comm, &training, s->threads);
    forecast_job j = { .d = &d, .data = &training };
    check(comm, dt_comm_size(comm) > 1
                    ? forecast_rank(comm, &j)
                    : dt_run_ranks(s->threads > 1 ? s->threads : 2, forecast_rank, &j));
    dt_dataset_free(&training);
    dt_dataset_free(&testing);
    return leave_ranks(comm, 0);
}

// ## 12.7 Exercises
//
// 1. **Predict.** 128 images a step, on 8 ranks and 8 cores: how many groups has each rank? With
//    --batch 120? At which number of ranks do more of them no longer help at all?
// 2. **Predict.** --per-rank-batch 128 on 4 ranks is a batch of 512, and a quarter of the steps.
//    Which learning rate would you try (chapter 11's subject)? Run it with that, and with the old
//    one.
// 3. **Implement.** A fourth method in `train`: synchronous for the first epoch, PSGD for the rest.
//    What does its column in the table look like?
// 4. **Measure.** ./ch12 --profile on 2 and on 5 ranks: what share of the time is waiting, and for
//    whom? Then --trace t.json, and look at one step in ui.perfetto.dev.
// 5. **Measure.** --seed 1 to 5 with sync: how far do accuracies of one method lie apart? Which of
//    the differences in the table are larger than that?
