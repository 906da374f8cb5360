// LeNet on MNIST over MPI: gradients averaged and gradients summed, side by side.
//
// Run     make lenet_mnist && mpiexec -n 2 ./lenet_mnist            (where Open MPI is installed as well: mpiexec.mpich)
//         mpiexec -n 4 -ppn 2 -hosts a,b ./lenet_mnist              (two hosts: password-less SSH, the same path on both)
// Check   mpiexec -n 2 ./lenet_mnist --quick --data synthetic
//
//| rank 0's initial weights are everybody's
//~ averaged   lr <num>   acts as <num>   loss <num>   accuracy <num> %   <num> s
//~ summed     lr <num>   acts as <num>   loss <num>   accuracy <num> %   <num> s
//
// An article on distributed training had each of R ranks take its own batch of B images, sum the
// gradients over the ranks, and step with lr 0.001 and momentum 0.85. The effective batch is R B,
// so an epoch has R times fewer steps; and as each rank's gradient is the *mean* over its B images,
// the sum is R times the mean over all R B. Both readings are trained here.
//
// It also asked when this pays. With N images, one rank alone takes N/B steps, of Tcomp seconds
// each for computing; R ranks take N/(R B) steps of Tcomp + Tsync, the time for summing:
//
//     (N / RB) (Tcomp + Tsync) < (N / B) Tcomp      that is      Tsync / Tcomp < R - 1
//
// Three levers: a faster network or fewer bytes (Tsync), a larger batch (Tcomp), more ranks (R, but
// Tsync grows with it).

#include "../chapters/ranks.h"

typedef struct settings {
    const char *data;
    dt_algorithm algorithm;
    int batch, epochs, images;
    float lr, momentum;
    uint64_t seed;
    bool quick;
} settings;

// LeNet-5 (LeCun, Bottou, Bengio, Haffner 1998) as it is usually written today: all maps connected,
// max-pooling, ReLU. The original took 32 x 32 images; padding 2 gives its sizes: 6x28x28, 6x14x14,
// 16x10x10, 16x5x5, 120, 84, 10.
static dt_net *lenet(int classes) {
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 6, .kernel = 5, .padding = 2 });
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 16, .kernel = 5 });
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_linear(net, "fc1", 120);
    dt_relu(net);
    dt_linear(net, "fc2", 84);
    dt_relu(net);
    dt_linear(net, "fc3", classes);
    return net;
}

typedef struct run {
    // median seconds of a step: computing; summing, with the wait for the slowest rank
    double comp, sync;
    double seconds;          // of training, the slowest rank's
    double loss;             // mean of the last epoch
    dt_score test;
    uint32_t steps;
    uint64_t first_hash;     // of the initial weights
} run;

static double median(double *x, size_t n) {
    sort_numbers(x, n);
    return n ? x[n / 2] : 0.0;
}

// One step. The mean over all R B images comes out of dt_average_gradients; the sum of the ranks'
// means is R times that.
static dt_err step(dt_net *net, dt_optimizer *opt, dt_comm *comm, const dt_batch *batch,
                   bool summed, double *comp, double *sync) {
    const double start = dt_now();
    DT_TRY(dt_net_load(net, batch));
    DT_TRY(dt_forward(net));
    DT_TRY(dt_backward(net));
    const double computed = dt_now();
    DT_TRY(dt_average_gradients(net, comm));
    *comp = computed - start, *sync = dt_now() - computed;
    for (size_t i = 0; summed && i < dt_net_count(net); ++i)
        dt_net_gradients(net)[i] *= (float)dt_comm_size(comm);
    dt_optimizer_step(opt);
    return DT_OK;
}

static dt_err epochs(const settings *s, dt_net *net, dt_optimizer *opt, dt_comm *comm,
                     dt_batches *it, bool summed, run *r, double *times) {
    const size_t most = (size_t)it->steps * (size_t)s->epochs;
    for (int epoch = 0; epoch < s->epochs; ++epoch) {
        dt_score sum = { 0, 0, 0 };
        dt_batches_begin(it, (uint32_t)epoch);
        for (dt_batch batch; dt_batches_next(it, &batch); ++r->steps) {
            DT_TRY(step(net, opt, comm, &batch, summed, &times[r->steps], &times[most + r->steps]));
            const dt_score now = dt_net_score(net); // of all ranks' images
            dt_score_add(&sum, &now);
            if (r->steps % 10 == 9) end_if_asked(comm);
        }
        r->loss = dt_score_loss(&sum);
    }
    return DT_OK;
}

static dt_err train(const settings *s, dt_comm *comm, const dt_dataset *data,
                    const dt_dataset *test, bool summed, run *r) {
    dt_batches it = { .count = 0 };
    dt_net *net = lenet(data->classes);
    // Each rank draws other values on purpose; rank 0's then go to all.
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = s->batch,
                                               .seed = s->seed + (uint64_t)dt_comm_rank(comm) }));
    DT_TRY(dt_broadcast_parameters(net, comm));
    DT_TRY(dt_check_replicas(net, comm));
    *r = (run){ .first_hash = dt_net_hash(net) };
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = s->lr, .momentum = s->momentum });
    if (!opt) return DT_EARG;
    DT_TRY(dt_batches_init(&it, data,
                           &(dt_batches_desc){ .per_rank_batch = (uint32_t)s->batch,
                                               .rank = dt_comm_rank(comm),
                                               .size = dt_comm_size(comm),
                                               .seed = s->seed,
                                               .shuffle = true }));
    const size_t most = (size_t)it.steps * (size_t)s->epochs;
    double *times = malloc(2 * most * sizeof *times);
    if (!times) return DT_ENOMEM;
    DT_TRY(dt_barrier(comm));
    const double start = dt_now();
    DT_TRY(epochs(s, net, opt, comm, &it, summed, r, times));
    r->seconds = dt_now() - start;
    DT_TRY(dt_allreduce(comm, &r->seconds, 1, DT_F64, DT_MAX, DT_AUTO));
    r->comp = median(times, r->steps), r->sync = median(times + most, r->steps);
    DT_TRY(dt_evaluate(net, test, comm, &r->test));
    free(times);
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

// What a step of B images takes where one rank has the machine to itself: the other ranks sleep
// meanwhile.
static dt_err alone(const settings *s, dt_comm *comm, const dt_dataset *data, double *seconds) {
    double times[30];
    uint32_t row[4096];
    size_t n = 0;
    dt_comm_set_wait(comm, DT_WAIT_SLEEP);
    if (dt_comm_rank(comm) == 0) {
        dt_net *net = lenet(data->classes);
        DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = s->batch, .seed = s->seed }));
        for (int i = 0; i < s->batch; ++i) row[i] = (uint32_t)i % data->count;
        const dt_batch batch = batch_of(data, row, 0, (uint32_t)s->batch);
        for (; n < 30; ++n) {
            const double start = dt_now();
            DT_TRY(dt_net_load(net, &batch));
            DT_TRY(dt_forward(net));
            DT_TRY(dt_backward(net));
            times[n] = dt_now() - start;
        }
        dt_net_free(net);
    }
    *seconds = median(times, n);
    DT_TRY(dt_barrier(comm));
    dt_comm_set_wait(comm, DT_WAIT_AUTO);
    return DT_OK;
}

static void print_run(const settings *s, const char *name, const run *r, float acts_as) {
    printf("%-8s   lr %g   acts as %g   loss %.4f   accuracy %.2f %%   %.2f s\n", name,
           (double)s->lr, (double)acts_as, r->loss, 100 * dt_score_accuracy(&r->test), r->seconds);
}

static void verdict(const settings *s, int ranks, const run *r, double lone) {
    const double ratio = r->sync / r->comp, gain = ranks * lone / (r->comp + r->sync);
    printf("\nTcomp %.3f ms (%.3f ms where rank 0 runs alone), Tsync %.3f ms, for %d images a "
           "rank: Tsync/Tcomp %.3f, R - 1 = %d\n",
           r->comp * 1e3, lone * 1e3, r->sync * 1e3, s->batch, ratio, ranks - 1);
    char sentence[300];
    say_condition(ranks, ratio, gain, dt_cores(), sentence, sizeof sentence);
    printf("%s\n", sentence);
}

int main(int argc, char **argv) {
    settings s = {
        .data = "auto", .batch = 64, .epochs = 1, .lr = 1e-3f, .momentum = 0.85f, .seed = 1234
    };
    const option_desc options[] = {
        DATA_OPTION(&s.data),
        { "batch", 'i', &s.batch, "B   images a step of each rank, at most 4096; default 64" },
        { "epochs", 'i', &s.epochs, "E   default 1" },
        { "images", 'i', &s.images, "N   training images; default all, --quick 2048" },
        { "lr", 'f', &s.lr, "X   default 0.001" },
        { "momentum", 'z', &s.momentum, "M   default 0.85" },
        { "seed", 'u', &s.seed, "S   default 1234" },
        ALGORITHM_OPTION(&s.algorithm),
        { "quick", 'b', &s.quick, "    fewer images" },
    };
    dt_comm *comm = begin_program(
        argc, argv, "LeNet on MNIST over MPI: averaged and summed gradients, and when R ranks pay.",
        options, sizeof options);
    end_cleanly_on_signals();
    if (s.batch > 4096) usage_error(comm, "lenet_mnist", "--batch: at most 4096");
    dt_dataset data, test, some;
    load_data(comm, s.data, "lenet_mnist", &data, &test);
    if (!s.images) s.images = s.quick ? 2048 : (int)data.count;
    check_all(comm, dt_dataset_view(&some, &data, 0, (uint32_t)s.images));
    print_machine(comm, &some, 1);

    const int ranks = dt_comm_size(comm);
    run mean, sum;
    double lone = 0.0;
    check_all(comm, train(&s, comm, &some, &test, false, &mean));
    check_all(comm, train(&s, comm, &some, &test, true, &sum));
    check_all(comm, alone(&s, comm, &some, &lone));
    if (dt_comm_rank(comm) == 0) {
        printf("rank 0's initial weights are everybody's\n");
        printf("%u steps of %d x %d images\n", mean.steps, ranks, s.batch);
        print_run(&s, "averaged", &mean, s.lr);
        print_run(&s, "summed", &sum, s.lr * (float)ranks);
        printf("to sum is to average with %d times the learning rate%s\n", ranks,
               ranks == 1 ? ": with one rank, the same"
                          : "; say so, or the setting moves with R unseen");
        verdict(&s, ranks, &mean, lone);
    }
    return end_program(comm, &data, &test);
}
