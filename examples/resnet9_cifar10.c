// ResNet9 on CIFAR-10 in the manner of Horovod: partition the data, broadcast the model, wrap the
// optimizer.
//
// Run     make data && make resnet9_cifar10 && mpiexec -n 2 ./resnet9_cifar10       (where Open MPI is installed as well: mpiexec.mpich)
//         mpiexec -n 3 ./resnet9_cifar10 --one-over-p        (every rank's gradient counts 1/P, as in the course project below)
// Check   mpiexec -n 2 ./resnet9_cifar10 --quick
//
//| the weights are the same on every rank
//~ test       loss <num>   accuracy <num> % of <num> images
//
// A course project wrote data parallelism for a framework of its own, in four calls: init,
// partition_dataset(dataset, 128), broadcast_parameters(model), DistributedOptimizer(opt). They
// stand below, a few lines each. Its report proves that of a batch of n images, of which rank k
// holds m_k, the whole gradient is the sum of (m_k/n) times rank k's own mean; its code gives every
// rank the weight 1/P. That is the same where all m_k are equal. A last batch of 80 images on three
// ranks is not: here they hold 16, 32 and 32, and with 1/P each image of the first rank counts
// twice as much as one of the others.
//
// In dtrain a rank's gradient is its share of the whole batch's mean (each image counts 1/n), and
// shares are summed exactly: the weights m_k/n come by themselves, and with --norm batch or group
// the result has the same bits for every P.

#include "../chapters/ranks.h"
#include "models.h"

enum { CLASSES = 10 };

typedef struct settings {
    const char *data, *norm, *save, *checkpoint, *resume;
    dt_algorithm algorithm;
    dt_statistics over;
    int batch, epochs, images, every, accumulate;
    float lr, weight_decay;
    uint64_t seed;
    bool one_over_p, quick;
} settings;

// ---- The four calls. init is dt_comm_world, in begin_program.

// Each global batch of 128 images is cut into lane groups, and these among the ranks.
static dt_err partition_dataset(dt_batches *loader, const dt_dataset *data, const settings *s,
                                const dt_comm *comm) {
    return dt_batches_init(loader, data,
                           &(dt_batches_desc){ .global_batch = (uint32_t)s->batch,
                                               .rank = dt_comm_rank(comm),
                                               .size = dt_comm_size(comm),
                                               .seed = s->seed,
                                               .shuffle = true });
}

// Rank 0's parameters reach every rank; from now on batch norm over the batch adds up over the
// ranks, too.
static dt_err broadcast_parameters(dt_net *model, dt_comm *comm) {
    DT_TRY(dt_broadcast_parameters(model, comm));
    return dt_share_statistics(model, comm);
}

typedef struct distributed_optimizer {
    dt_optimizer *opt;
    dt_net *model;
    dt_comm *comm;
    bool one_over_p;
} distributed_optimizer;

// Adds the ranks' gradients up, and lets the optimizer take its step on the sum.
static dt_err optimizer_step(const distributed_optimizer *o) {
    DT_TRY(dt_average_gradients(o->model, o->comm));
    for (int k = 0; k < dt_net_param_count(o->model) && o->one_over_p; ++k) {
        const dt_param *p = dt_net_param(o->model, k);
        for (size_t i = 0; i < dt_tensor_count(&p->grad) && p->trained; ++i)
            p->grad.data[i] /= (float)dt_comm_size(o->comm);
    }
    dt_optimizer_step(o->opt);
    return DT_OK;
}

// ---- Training.

static void print_progress(const dt_comm *comm, uint32_t epoch, uint32_t step, uint32_t steps,
                           const dt_score *sum, double seconds) {
    if (dt_comm_rank(comm) != 0) return;
    printf("epoch %2u   step %3u/%u   loss %.4f   accuracy %.2f %%   %.1f s\n", epoch + 1, step,
           steps, dt_score_loss(sum), 100.0 * dt_score_accuracy(sum), seconds);
    fflush(stdout);
}

// Every hundred steps: loss and accuracy of the images since the last line, of all ranks; and a
// checkpoint.
static dt_err train(const settings *s, const distributed_optimizer *o, dt_batches *loader,
                    double *seconds) {
    char same[160];
    snprintf(same, sizeof same, "--every: %d\n--one-over-p: %d\n", s->every,
             s->one_over_p ? dt_comm_size(o->comm) : 0);
    dt_checkpoint at = { .net = o->model, .opt = o->opt, .it = loader, .settings = same };
    if (s->resume) DT_TRY(dt_checkpoint_load(&at, o->comm, s->resume));
    if (s->resume && dt_comm_rank(o->comm) == 0)
        printf("resumed    epoch %u, after step %u\n", at.epoch + 1, at.step);
    DT_TRY(dt_barrier(o->comm));
    const double start = dt_now() - at.own[0];
    dt_score sum = at.score;
    uint32_t epoch = at.epoch, step = at.step;
    for (; epoch < (uint32_t)s->epochs; ++epoch, step = 0) {
        if (step == 0) dt_batches_begin(loader, epoch);
        for (dt_batch batch; dt_batches_next(loader, &batch);) {
            dt_comm_progress(o->comm, (uint64_t)epoch * loader->steps + step, "training");
            // 1/P: the loss is the mean over this rank's images alone
            if (s->one_over_p) batch.global_count = batch.count ? batch.count : 1;
            // load, forward, backward
            DT_TRY(dt_accumulate_gradients(o->model, &batch, (uint32_t)s->accumulate));
            DT_TRY(optimizer_step(o));
            const dt_score score = dt_net_score(o->model);
            dt_score_add(&sum, &score);
            if (++step % (uint32_t)s->every && step < loader->steps) continue;
            print_progress(o->comm, epoch, step, loader->steps, &sum, dt_now() - start);
            sum = (dt_score){ 0, 0, 0 };
            at.epoch = epoch, at.step = step, at.own[0] = dt_now() - start;
            keep_checkpoint(o->comm, s->checkpoint, &at);
            end_if_asked(o->comm);
        }
        DT_TRY(dt_check_replicas(o->model, o->comm));
    }
    *seconds = dt_now() - start;
    return dt_allreduce(o->comm, seconds, 1, DT_F64, DT_MAX, DT_AUTO);
}

// ---- The test images: score and confusion matrix, of all ranks together.

static dt_err confusion(dt_net *model, const dt_dataset *test, dt_comm *comm, int batch,
                        dt_score *score, int64_t *matrix) {
    dt_batches loader;
    float logits[CLASSES];
    DT_TRY(dt_evaluate(model, test, comm, score));
    DT_TRY(dt_batches_init(&loader, test,
                           &(dt_batches_desc){ .global_batch = (uint32_t)batch,
                                               .rank = dt_comm_rank(comm),
                                               .size = dt_comm_size(comm) }));
    memset(matrix, 0, CLASSES * CLASSES * sizeof *matrix);
    dt_net_training(model, false);
    for (dt_batch b; dt_batches_next(&loader, &b);) {
        DT_TRY(dt_net_load(model, &b));
        DT_TRY(dt_forward(model));
        for (uint32_t i = 0; i < b.count; ++i) {
            int best = 0;
            DT_TRY(dt_net_logits(model, (int)i, logits));
            for (int k = 1; k < CLASSES; ++k) best = logits[k] > logits[best] ? k : best;
            ++matrix[b.labels[b.index[i]] * CLASSES + best];
        }
    }
    dt_net_training(model, true);
    dt_batches_free(&loader);
    return dt_allreduce(comm, matrix, CLASSES * CLASSES, DT_I64, DT_SUM, DT_AUTO);
}

static void print_confusion(const int64_t *matrix, bool cifar) {
    static const char *const names[CLASSES] = {
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
    };
    char number[8];
    printf("\n%-12s", "is \\ taken for");
    for (int k = 0; k < CLASSES; ++k)
        printf(" %6.6s", cifar ? names[k] : (snprintf(number, sizeof number, "%d", k), number));
    printf("\n");
    for (int i = 0; i < CLASSES; ++i) {
        printf("%-14s", cifar ? names[i] : (snprintf(number, sizeof number, "%d", i), number));
        for (int k = 0; k < CLASSES; ++k) printf(" %6lld", (long long)matrix[i * CLASSES + k]);
        printf("\n");
    }
}

// ---- The program.

static void parse_norm(dt_comm *comm, settings *s) {
    static const char *const names[] = { "batch", "rank", "group" };
    int k = 0;
    while (k < 3 && strcmp(s->norm, names[k]) != 0) ++k;
    if (k == 3) usage_error(comm, "resnet9_cifar10", "--norm: batch, rank or group is needed");
    s->over = (dt_statistics)k;
    if (s->one_over_p && s->over == DT_STATISTICS_BATCH) s->over = DT_STATISTICS_RANK;
    if (s->accumulate > 1 && s->over != DT_STATISTICS_GROUP)
        usage_error(comm, "resnet9_cifar10",
                    "--accumulate: --norm group is needed, as the others look at the whole batch");
    if (s->batch < 17)
        usage_error(
            comm, "resnet9_cifar10",
            "--batch: at least 17: the maps end at 1 x 1, where batch norm needs two images");
}

// Random bytes whose mean says the class: something to learn for a program without data.
static dt_dataset random_images(uint32_t count, uint32_t from) {
    enum { BYTES = 3 * 32 * 32 };
    dt_dataset d = { .name = "random bytes",
                     .source = "drawn here",
                     .count = count,
                     .channels = 3,
                     .height = 32,
                     .width = 32,
                     .classes = CLASSES };
    d.pixels = memory((size_t)count * BYTES), d.labels = memory(count); // until the program ends
    d.mean = memory(3 * sizeof(float)), d.std = memory(3 * sizeof(float));
    for (uint32_t n = 0; n < count; ++n) {
        d.labels[n] = (uint8_t)(dt_philox(1, DT_RNG_TEST, 0, from + n, 0).v[0] % CLASSES);
        for (uint32_t i = 0; i < BYTES; ++i)
            d.pixels[(size_t)n * BYTES + i] =
                (uint8_t)(dt_philox(1, DT_RNG_TEST, 1, from + n, i).v[0] % 128 + 12u * d.labels[n]);
    }
    return d;
}

// Bytes as value/255, as the project feeds them.
static void plain_pixels(dt_dataset *data) {
    for (int c = 0; c < data->channels; ++c) data->mean[c] = 0.0f, data->std[c] = 1.0f;
}

static void report(const settings *s, dt_comm *comm, const dt_dataset *data, double seconds,
                   const dt_score *score, const int64_t *matrix, bool cifar) {
    if (dt_comm_rank(comm) != 0) return;
    printf("the weights are the same on every rank\n");
    printf("training   %.2f s, %.0f images/s over %d rank%s\n", seconds,
           (double)data->count * s->epochs / seconds, dt_comm_size(comm),
           dt_comm_size(comm) == 1 ? "" : "s");
    printf("test       loss %.4f   accuracy %.2f %% of %lld images\n", dt_score_loss(score),
           100.0 * dt_score_accuracy(score), (long long)score->count);
    print_confusion(matrix, cifar);
}

int main(int argc, char **argv) {
    settings s = { .data = "cifar10",
                   .norm = "batch",
                   .batch = 128,
                   .epochs = 10,
                   .every = 100,
                   .accumulate = 1,
                   .lr = 1e-3f,
                   .weight_decay = 1e-3f,
                   .seed = 1 };
    const option_desc options[] = {
        { "data", 's', &s.data,
          "D   cifar10, or random: bytes drawn by lot, to try the program without data; default "
          "cifar10" },
        { "batch", 'i', &s.batch, "B   images a step over all ranks; default 128" },
        { "epochs", 'i', &s.epochs, "E   default 10" },
        { "images", 'i', &s.images, "N   training images; default all, --quick 1280" },
        { "lr", 'f', &s.lr, "X   Adam's; default 0.001" },
        { "weight-decay", 'z', &s.weight_decay, "X   default 0.001" },
        { "every", 'i', &s.every, "N   steps between two lines, and two checkpoints; default 100" },
        CHECKPOINT_OPTION(&s.checkpoint),
        RESUME_OPTION(&s.resume),
        NORM_OPTION(&s.norm),
        ACCUMULATE_OPTION(&s.accumulate),
        { "one-over-p", 'b', &s.one_over_p,
          "    each rank's mean gradient counts 1/P, not its images' part of the batch; batch norm "
          "over the rank" },
        { "seed", 'u', &s.seed, "S   default 1" },
        { "save", 's', &s.save, "F   write the trained parameters as safetensors" },
        ALGORITHM_OPTION(&s.algorithm),
        { "quick", 'b', &s.quick, "    one epoch of few images" },
    };
    dt_comm *comm =
        begin_program(argc, argv, "ResNet9 on CIFAR-10, data parallel, in the manner of Horovod.",
                      options, sizeof options);
    end_cleanly_on_signals();
    parse_norm(comm, &s);
    check_saves(comm, "resnet9_cifar10", s.save, s.checkpoint);
    dt_dataset data, test, some, few;
    if (strcmp(s.data, "random") == 0)
        data = random_images(1280, 0), test = random_images(640, 1280);
    else if (strcmp(s.data, "cifar10") == 0)
        load_any_data(comm, s.data, "resnet9_cifar10", &data, &test);
    else usage_error(comm, "resnet9_cifar10", "--data: cifar10 or random is needed");
    plain_pixels(&data), plain_pixels(&test);
    if (s.quick) s.epochs = 1;
    if (!s.images) s.images = s.quick ? 1280 : (int)data.count;
    check_all(comm, dt_dataset_view(&some, &data, 0, (uint32_t)s.images));
    check_all(comm,
              dt_dataset_view(&few, &test, 0, s.quick && test.count > 640 ? 640 : test.count));
    print_machine(comm, &some, 1);

    dt_net *model = resnet9(data.classes, s.over);
    // whole groups of 16
    const int at_once =
        (s.batch + s.accumulate - 1) / s.accumulate + (s.accumulate > 1 ? DT_LANES : 0);
    check_all(comm, dt_net_build(model, &(dt_build_desc){ .batch = at_once, .seed = s.seed }));
    check(comm, broadcast_parameters(model, comm));
    dt_optimizer *adam = dt_adam(model, &(dt_adam_desc){ .lr = s.lr,
                                                         .beta1 = 0.9f,
                                                         .beta2 = 0.999f,
                                                         .eps = 1e-8f,
                                                         .weight_decay = s.weight_decay });
    if (!adam) die(comm);
    const distributed_optimizer opt = { adam, model, comm, s.one_over_p };
    dt_batches loader;
    double seconds = 0.0;
    dt_score score;
    int64_t matrix[CLASSES * CLASSES];
    check(comm, partition_dataset(&loader, &some, &s, comm));
    check(comm, train(&s, &opt, &loader, &seconds));
    check(comm, confusion(model, &few, comm, at_once, &score, matrix));
    report(&s, comm, &some, seconds, &score, matrix, strcmp(data.name, "CIFAR-10") == 0);
    if (s.save && dt_comm_rank(comm) == 0) check(comm, dt_save(model, s.save));
    check(comm, dt_share_statistics(model, NULL));
    dt_batches_free(&loader);
    dt_optimizer_free(adam);
    dt_net_free(model);
    return end_program(comm, &data, &test);
}
