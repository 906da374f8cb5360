// WideResNet on Fashion-MNIST or CIFAR-10, every rank with a part of each batch ("distributed data
// parallel"), after a vendor's workshop.
//
// Run     make data && make wideresnet && mpiexec -n 2 ./wideresnet --width 16     (where Open MPI is installed as well: mpiexec.mpich)
//         mpiexec -n 4 ./wideresnet --data cifar10 --batch-size 64 --base-lr 0.15 --lr-scaling linear
// Check   mpiexec -n 2 ./wideresnet --data synthetic --quick
//
//| every rank stops after the same epoch, with the same weights
//~ epoch <num>   loss <num>   accuracy <num> %   validation loss <num>   accuracy <num> %   lr <num>   <num> s   <num> images/s
//
// The workshop's terms: a worker is a process with a global rank, 0 to world size - 1; a node is a
// host; the local rank counts the workers of one host. Every rank takes --batch-size images a step,
// so P ranks take a P-fold batch, and the learning rate may be scaled with it: linearly (Goyal et
// al. 2017) or by the square root. A scaled rate is reached over --warmup-epochs.
//
// The workshop's own program makes some slips, which this one does not:
//   - it pads the last test batch with repeated images, or drops it: here every image is scored
//     once, dt_evaluate;
//   - base-lr is never scaled, and the warm-up begins at 1/(workers of one host): here at 1/(batch
//     factor), whatever hosts there are;
//   - momentum reaches nothing but the file's name: here the optimizer gets it;
//   - a mean over 7 x 7 of an 8 x 8 map drops a row and a column: on CIFAR-10 the mean here is over
//     the whole map.
// Batch norm looks at the global batch ("SyncBatchNorm"), so with --batch-size 64 on one rank, or
// 32 on two, the weights have the same bits. The CSV has a row an epoch, and its name says the
// settings: the batch is that of all ranks and the rate the one that is warmed up to, so that a run
// that goes on from a checkpoint on other ranks goes on with its rows, too.

#include "../chapters/ranks.h"
#include "models.h"

typedef struct settings {
    const char *data, *norm, *scaling, *optimizer, *save, *checkpoint, *resume;
    dt_algorithm algorithm;
    dt_statistics over;
    int batch_size, every, epochs, patience, warmup_epochs, width, images, accumulate;
    float base_lr, target_accuracy, momentum, dropout;
    uint64_t seed;
    bool quick, augment;
} settings;

// ---- Who is where.

static void print_ranks(dt_comm *comm) {
    const int rank = dt_comm_rank(comm), size = dt_comm_size(comm);
    for (int r = 0; r < size && rank == 0; ++r) {
        int local_rank = 0, local_size = 0;
        for (int k = 0; k < size; ++k) {
            const bool here = strcmp(dt_comm_host(comm, k), dt_comm_host(comm, r)) == 0;
            local_size += here, local_rank += here && k < r;
        }
        printf("rank %d of %d: local rank %d, local size %d, on %s\n", r, size, local_rank,
               local_size, dt_comm_host(comm, r));
    }
}

// ---- The learning rate of an epoch.

static float batch_factor(const settings *s, int ranks) {
    if (strcmp(s->scaling, "linear") == 0) return (float)ranks;
    if (strcmp(s->scaling, "sqrt") == 0) return sqrtf((float)ranks);
    return 1.0f;
}

// From base-lr to factor * base-lr in even steps, one an epoch; then constant.
static float rate(const settings *s, float factor, int epoch) {
    const float way = epoch < s->warmup_epochs ? (float)epoch / (float)s->warmup_epochs : 1.0f;
    return s->base_lr * (1.0f + (factor - 1.0f) * way);
}

// ---- One epoch.

typedef struct epoch_result {
    dt_score training, validation;
    double seconds;          // the slowest rank's
    double images_per_s;     // summed over the ranks
} epoch_result;

// From the step at which `at` stands to the end of its epoch; at->own holds what the loop over
// epochs adds up. The times are of what was done here, not before a resume.
static dt_err train_epoch(const settings *s, dt_checkpoint *at, dt_comm *comm, epoch_result *r) {
    dt_net *net = at->net;
    dt_batches *it = at->it;
    uint64_t mine = 0;
    DT_TRY(dt_barrier(comm)); // all begin together, else one rank's wait is another one's time
    const double start = dt_now();
    if (at->step == 0) dt_batches_begin(it, at->epoch);
    for (dt_batch batch; dt_batches_next(it, &batch);) {
        dt_comm_progress(comm, (uint64_t)at->epoch * it->steps + ++at->step, "training");
        // load, forward, backward
        DT_TRY(dt_accumulate_gradients(net, &batch, (uint32_t)s->accumulate));
        DT_TRY(dt_average_gradients(net, comm));
        dt_optimizer_step(at->opt);
        const dt_score score = dt_net_score(net); // of all ranks
        dt_score_add(&at->score, &score);
        mine += batch.count;
        if (!s->every || at->step % (uint32_t)s->every) continue;
        keep_checkpoint(comm, s->checkpoint, at);
        end_if_asked(comm);
    }
    // before what ends the epoch, which a run that goes on from here begins with
    keep_checkpoint(comm, s->checkpoint, at);
    r->training = at->score;
    r->seconds = dt_now() - start;
    r->images_per_s = (double)mine / r->seconds;
    DT_TRY(dt_allreduce(comm, &r->images_per_s, 1, DT_F64, DT_SUM, DT_AUTO));
    DT_TRY(dt_allreduce(comm, &r->seconds, 1, DT_F64, DT_MAX, DT_AUTO));
    return dt_check_replicas(net, comm);
}

static void print_epoch(const epoch_result *r, int epoch, float lr) {
    printf("epoch %2d   loss %.4f   accuracy %.2f %%   validation loss %.4f   accuracy %.2f %%   "
           "lr %g   %.2f s   %.1f images/s\n",
           epoch + 1, dt_score_loss(&r->training), 100.0 * dt_score_accuracy(&r->training),
           dt_score_loss(&r->validation), 100.0 * dt_score_accuracy(&r->validation), (double)lr,
           r->seconds, r->images_per_s);
    fflush(stdout);
}

// ---- The CSV. A run that was killed behind its checkpoint has left rows of epochs that the one
// ---- that goes on trains again: these go.

static dt_err forget_epochs_after(uint32_t epoch, const char *csv) {
    char beside[300], row[512];
    snprintf(beside, sizeof beside, "%s.part", csv);
    FILE *from = fopen(csv, "r");
    if (!from) return DT_OK; // there is none
    FILE *to = fopen(beside, "w");
    bool good = to != NULL;
    for (bool header = true; good && fgets(row, sizeof row, from); header = false)
        if (strchr(row, '\n') && (header || strtoul(row, NULL, 10) <= epoch))
            good = fputs(row, to) >= 0;
    fclose(from);
    if (to) good = fclose(to) == 0 && good;
    if (good && rename(beside, csv) == 0) return DT_OK;
    remove(beside);
    return dt_fail(DT_EIO, "%s: its rows behind epoch %u cannot be taken out: %s", csv, epoch,
                   strerror(errno));
}

// ---- All epochs, until the last `patience` of them have all reached the target. The accuracy is
// ---- the same on every rank, so all decide alike.

static dt_err train(const settings *s, dt_net *net, dt_optimizer *opt, dt_comm *comm,
                    dt_batches *it, const dt_dataset *test, const char *csv) {
    const float factor = batch_factor(s, dt_comm_size(comm));
    char same[200];
    snprintf(same, sizeof same,
             "--base-lr: %g\n--lr-scaling: %s\nits factor: %g\n--warmup-epochs: "
             "%d\n--target-accuracy: %g\n--patience: %d\n",
             (double)s->base_lr, s->scaling, (double)factor, s->warmup_epochs,
             (double)s->target_accuracy, s->patience);
    dt_checkpoint at = { .net = net, .opt = opt, .it = it, .settings = same };
    if (s->resume) DT_TRY(dt_checkpoint_load(&at, comm, s->resume));
    if (s->resume && dt_comm_rank(comm) == 0) {
        printf("resumed  epoch %u, after step %u\n", at.epoch + 1, at.step);
        DT_TRY(forget_epochs_after(at.epoch, csv));
    }
    double total = at.own[0], images_per_s = at.own[1];
    int reached = (int)at.own[2], epoch = (int)at.epoch;
    for (; epoch < s->epochs && reached < s->patience;
         ++epoch, at.step = 0, at.score = (dt_score){ 0, 0, 0 }) {
        epoch_result r = { .seconds = 0.0 };
        const float lr = rate(s, factor, epoch);
        at.epoch = (uint32_t)epoch, at.own[0] = total, at.own[1] = images_per_s,
        at.own[2] = reached;
        DT_TRY(dt_optimizer_set_lr(opt, lr));
        DT_TRY(train_epoch(s, &at, comm, &r));
        DT_TRY(dt_evaluate(net, test, comm, &r.validation));
        const double accuracy = dt_score_accuracy(&r.validation);
        reached = accuracy >= (double)s->target_accuracy ? reached + 1 : 0;
        total += r.seconds;
        // the first epoch also pays for cold caches and first messages, so it is left out of the
        // mean
        if (epoch > 0) images_per_s += r.images_per_s;
        if (dt_comm_rank(comm) == 0) {
            print_epoch(&r, epoch, lr);
            DT_TRY(dt_csv_append(csv,
                                 "epoch,time,val_accuracy,val_loss,accuracy,loss,lr,images_per_s",
                                 "%d,%.3f,%.5f,%.5f,%.5f,%.5f,%g,%.2f", epoch + 1, total, accuracy,
                                 dt_score_loss(&r.validation), dt_score_accuracy(&r.training),
                                 dt_score_loss(&r.training), (double)lr, r.images_per_s));
        }
        end_if_asked(comm);
    }
    if (dt_comm_rank(comm) != 0) return DT_OK;
    printf("every rank stops after the same epoch, with the same weights\n");
    printf("%s after %d epoch%s, %.1f s",
           reached >= s->patience ? "target reached" : "target not reached", epoch,
           epoch == 1 ? "" : "s", total);
    if (epoch > 1) printf("; %.1f images/s after the first epoch", images_per_s / (epoch - 1));
    printf("\n");
    return DT_OK;
}

// ---- The program.

static void parse_choices(dt_comm *comm, settings *s) {
    static const char *const norms[] = { "batch", "rank", "group" };
    int k = 0;
    while (k < 3 && strcmp(s->norm, norms[k]) != 0) ++k;
    if (k == 3) usage_error(comm, "wideresnet", "--norm: batch, rank or group is needed");
    s->over = (dt_statistics)k;
    if (strcmp(s->scaling, "none") != 0 && strcmp(s->scaling, "linear") != 0 &&
        strcmp(s->scaling, "sqrt") != 0)
        usage_error(comm, "wideresnet", "--lr-scaling: none, linear or sqrt is needed");
    if (strcmp(s->optimizer, "sgd") != 0 && strcmp(s->optimizer, "novograd") != 0)
        usage_error(comm, "wideresnet", "--optimizer: sgd or novograd is needed");
    if (s->accumulate > 1 && s->over != DT_STATISTICS_GROUP)
        usage_error(comm, "wideresnet",
                    "--accumulate: --norm group is needed, as the others look at the whole batch");
    if (s->dropout >= 1.0f) usage_error(comm, "wideresnet", "--dropout: below 1 is needed");
    if (s->quick) s->epochs = s->epochs < 2 ? s->epochs : 2, s->width = s->width < 8 ? s->width : 8;
}

static dt_optimizer *make_optimizer(const settings *s, dt_net *net) {
    if (strcmp(s->optimizer, "sgd") == 0)
        return dt_sgd(net, &(dt_sgd_desc){ .lr = s->base_lr, .momentum = s->momentum });
    return dt_novograd(net,
                       &(dt_novograd_desc){ .lr = s->base_lr, .beta1 = s->momentum, .eps = 1e-8f });
}

// The assessment normalises CIFAR-10 by 0.5; Fashion-MNIST comes as value/255.
static void set_pixels(dt_dataset *data) {
    const bool colour = data->channels == 3;
    for (int c = 0; c < data->channels; ++c)
        data->mean[c] = colour ? 0.5f : 0.0f, data->std[c] = colour ? 0.5f : 1.0f;
}

int main(int argc, char **argv) {
    settings s = { .data = "fashion",
                   .norm = "batch",
                   .scaling = "none",
                   .optimizer = "sgd",
                   .batch_size = 32,
                   .epochs = 40,
                   .patience = 2,
                   .warmup_epochs = 5,
                   .width = 160,
                   .accumulate = 1,
                   .base_lr = 0.01f,
                   .target_accuracy = 0.85f,
                   .momentum = 0.9f,
                   .dropout = 0.01f,
                   .seed = 1 };
    const option_desc options[] = {
        ANY_DATA_OPTION(&s.data),
        CHECKPOINT_OPTION(&s.checkpoint),
        { "every", 'i', &s.every, "N   steps from one checkpoint to the next; default an epoch" },
        RESUME_OPTION(&s.resume),
        { "batch-size", 'i', &s.batch_size, "B   images a step of each rank; default 32" },
        { "epochs", 'i', &s.epochs, "E   at most; default 40" },
        { "base-lr", 'f', &s.base_lr, "X   of one rank's batch; default 0.01" },
        { "lr-scaling", 's', &s.scaling,
          "K   of the rate with the number of ranks: none, linear or sqrt; default none" },
        { "target-accuracy", 'f', &s.target_accuracy, "A   default 0.85" },
        { "patience", 'i', &s.patience,
          "N   epochs in a row that must reach the target; default 2" },
        { "optimizer", 's', &s.optimizer,
          "K   sgd, or novograd (Ginsburg et al. 2019); default sgd" },
        { "momentum", 'z', &s.momentum, "M   SGD's; NovoGrad's first beta; default 0.9" },
        { "warmup-epochs", 'i', &s.warmup_epochs, "W   until a scaled rate is reached; default 5" },
        { "width", 'i', &s.width, "C   channels of the first blocks; default 160" },
        { "dropout", 'z', &s.dropout, "P   default 0.01" },
        NORM_OPTION(&s.norm),
        ACCUMULATE_OPTION(&s.accumulate),
        { "augment", 'b', &s.augment,
          "    the assessment's: flips, rotation, scale and shear, colours" },
        { "images", 'i', &s.images, "N   training images; default all, --quick 512" },
        { "seed", 'u', &s.seed, "S   default 1" },
        { "save", 's', &s.save, "F   write the trained parameters as safetensors" },
        ALGORITHM_OPTION(&s.algorithm),
        { "quick", 'b', &s.quick, "    at most 2 epochs, width 8, few images" },
    };
    char csv[256];
    dt_comm *comm = begin_program(
        argc, argv,
        "WideResNet with distributed data parallel: warm-up, synchronised batch norm, early stop.",
        options, sizeof options);
    end_cleanly_on_signals();
    parse_choices(comm, &s);
    check_saves(comm, "wideresnet", s.save, s.checkpoint);
    dt_dataset data, test, some, few;
    load_any_data(comm, s.data, "wideresnet", &data, &test);
    set_pixels(&data), set_pixels(&test);
    if (!s.images) s.images = s.quick ? 512 : (int)data.count;
    snprintf(csv, sizeof csv, "out/wideresnet-%s-%s-w%d-b%d-lr%g-%s-m%g-wu%d-%s%s.csv", s.data,
             s.optimizer, s.width, dt_comm_size(comm) * s.batch_size,
             (double)(s.base_lr * batch_factor(&s, dt_comm_size(comm))), s.scaling,
             (double)s.momentum, s.warmup_epochs, s.norm, s.augment ? "-augment" : "");
    check_output(comm, "%s", csv);
    if (dt_comm_rank(comm) == 0 && !s.resume) remove(csv); // one run a file
    check_all(comm, dt_dataset_view(&some, &data, 0, (uint32_t)s.images));
    check_all(comm,
              dt_dataset_view(&few, &test, 0, s.quick && test.count > 256 ? 256 : test.count));
    print_machine(comm, &some, 1);
    print_ranks(comm);

    // 28 x 28 ends in 7 x 7, as the workshop's mean takes it; 32 x 32 in 8 x 8, of which 0 takes
    // all
    dt_net *net = wide_resnet(data.channels, data.height, data.classes, s.width,
                              data.height == 28 ? 7 : 0, s.dropout, s.over);
    dt_batches it;
    check_all(comm, dt_net_build(net, &(dt_build_desc){ .batch = (s.batch_size + s.accumulate - 1) /
                                                                     s.accumulate +
                                                                 DT_LANES,
                                                        .seed = s.seed }));
    check(comm, dt_broadcast_parameters(net, comm));
    check(comm, dt_share_statistics(net, comm));
    dt_optimizer *opt = make_optimizer(&s, net);
    if (!opt) die(comm);
    const dt_augment altered = { .seed = s.seed,
                                 .flip = 0.5f,
                                 .rotate = 10.0f,
                                 .scale_low = 0.8f,
                                 .scale_high = 1.2f,
                                 .shear = 10.0f,
                                 .brightness = 0.2f,
                                 .contrast = 0.2f,
                                 .saturation = 0.2f };
    check(comm, dt_batches_init(&it, &some,
                                &(dt_batches_desc){ .per_rank_batch = (uint32_t)s.batch_size,
                                                    .rank = dt_comm_rank(comm),
                                                    .size = dt_comm_size(comm),
                                                    .seed = s.seed,
                                                    .shuffle = true,
                                                    .drop_last = true,
                                                    .augment = s.augment ? &altered : NULL }));
    if (dt_comm_rank(comm) == 0)
        printf(
            "net      %zu parameters, %.1f MB, %.1f MFLOP an image and step; %u steps an epoch\n",
            dt_net_count(net), (double)dt_net_bytes(net) * 1e-6, dt_net_flops(net) * 1e-6,
            it.steps);
    check(comm, train(&s, net, opt, comm, &it, &few, csv));
    if (dt_comm_rank(comm) == 0) printf("epochs   %s\n", csv);
    if (s.save && dt_comm_rank(comm) == 0) check(comm, dt_save(net, s.save));
    check(comm, dt_share_statistics(net, NULL));
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return end_program(comm, &data, &test);
}
