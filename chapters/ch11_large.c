// Chapter 11. Large batches                            uses [S4.5] [S6.11] [S8] [S9.5] [S9.7] [S11]
//
// You will learn   why a large batch is fast and learns less; how a larger learning rate, warm-up,
//                  momentum and NovoGrad win it back; what batch norm over few images does; six
//                  slips of a workshop, each with the number that it moves; what data and model
//                  parallelism would send
// New since ch10   about 200 lines
// Run              make ch11 && ./ch11                   (minutes: --seeds 1 --epochs 1 is quick)
//                  ./ch11 --slip pad --seeds 1           (one slip alone: 11.4 has their names)
// Check            ./ch11 --quick --data synthetic
//
//| a batch in four parts: the same bits as in one
//~ batch <num>   <num> images/s on 1 rank, <num> on 2
//~ linear, warm-up               <num> %  (<num> to <num>)
//~ over the group, <num> images     <num> %  (<num> to <num>)
//| over a rank of 16 images and over a group: the same bits
//~ momentum test accuracy, %               <num>      <num>
//| mean      places that the mean reads         64         49
//| data parallel    136930768 bytes a step of 32 images a rank, as exact sums
//| model parallel   32112640 bytes, cut behind the first block

#include "ch11_report.h"

#include <time.h>

typedef struct settings {
    const char *data, *png, *slip;
    int images, epochs, seeds;
    uint64_t seed;
    bool quick;
} settings;

// ## 11.1 What a step costs, and what it is worth
//
// P ranks share a batch of B images, so each has B/P of them. Then come the costs that do not care
// how large B is: the optimizer's step, the sum over the ranks, their waiting for each other. With
// few images a rank these are most of the time. So more ranks want a larger batch, and throughput,
// images a second, grows with B until the images themselves take all of the time: it saturates.
//
// But an epoch of N images is N/B steps. Four times the batch is a quarter of the steps, each along
// a gradient whose noise is half (the mean of four times as many), and from some B on the noise was
// not what held learning back: accuracy after so many epochs falls.
//
// A batch that does not fit into memory need not: gradients are sums over images, so a step may
// take its images in parts. The header's sums are exact; the parts do not even change a bit.

static dt_net *plain_net(const dt_dataset *data, int batch, uint64_t seed) {
    dt_net *net = mnist_net(data->classes);
    if (dt_net_build(net, &(dt_build_desc){ .batch = batch, .seed = seed }) != DT_OK) die(NULL);
    return net;
}

static void parts_change_nothing(dt_comm *comm, const dt_dataset *data) {
    uint64_t hash[2];
    for (uint32_t parts = 1; parts <= 4; parts += 3) {
        dt_train_result r;
        dt_net *net = plain_net(data, 512 / (int)parts, 1);
        dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.05f, .momentum = 0.9f });
        if (!opt) die(comm);
        check(comm, dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = data, .epochs = 1,
              .batch = 512, .seed = 1, .accumulate = parts }, &r));
        hash[parts > 1] = dt_net_hash(net);
        dt_optimizer_free(opt);
        dt_net_free(net);
    }
    must(comm, hash[0] == hash[1], "a batch in four parts: the same bits as in one");
}

// ## 11.2 Six ways to train with a batch of B
//
// The rate 0.01 with momentum 0.9 was found for B = 32. A batch of B is k = B/32 such batches in
// one step. How far should that step go?
//
//   - **as it was**: 0.01 for every B.
//   - **square root**: 0.01 sqrt(k). The mean of k times as many gradients has a noise smaller by
//     sqrt(k); a rate larger by sqrt(k) makes a step as noisy as it was (Krizhevsky 2014).
//   - **linear**: 0.01 k, so that one step goes as far as the k small ones that it stands for, and
//     an epoch as far as before (Goyal et al. 2017). It takes for granted that the k small steps
//     would have gone in one direction; at the beginning they do not.
//   - **linear, warm-up**: so the rate rises over the first fifth of the steps, from a sixteenth of
//     what it is to be.
//   - **no momentum**: what the linear rule is worth without it.
//   - **NovoGrad**: every tensor's gradient divided by its own length (the root of the sum of its
//     squares), so that no layer is thrown far by a large rate [S9.5]; the rate by the square root
//     rule, warm-up as above.

// [region: ways]
static dt_optimizer *make_optimizer(way w, dt_net *net) {
    if (w == NOVOGRAD)
        return dt_novograd(net, &(dt_novograd_desc){ .lr = 0.02f, .beta1 = 0.95f, .eps = 1e-8f,
                                                     .averaging = true });
    return dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = w == NO_MOMENTUM ? 0.0f : 0.9f });
}

static dt_lr_scaling scaling_of(way w) {
    return w == AS_IT_WAS ? DT_SCALE_NONE : w == ROOT || w == NOVOGRAD ? DT_SCALE_SQRT
                                                                      : DT_SCALE_LINEAR;
}

static double train_one(dt_comm *comm, const settings *s, const dt_dataset *data,
                        const dt_dataset *test, way w, uint32_t batch, uint64_t seed) {
    const uint32_t steps = (data->count + batch - 1) / batch * (uint32_t)s->epochs;
    const dt_schedule warm = { .curve = DT_LR_LINEAR, .by_step = true, .from = 1.0f / 16.0f,
                               .to = 1.0f, .over = steps / 5 + 1 };
    const uint32_t at_once = batch < 512 ? batch : 512;
    dt_net *net = plain_net(data, (int)at_once, seed);
    dt_optimizer *opt = make_optimizer(w, net);
    dt_train_result r;
    dt_score score;
    if (!opt) die(comm);
    dt_err error = dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = data, .batch = batch,
        .epochs = s->epochs, .seed = seed, .accumulate = batch / at_once, .lr_batch = 32,
        .lr_scaling = scaling_of(w), .schedule = w >= WARMED ? &warm : NULL }, &r);
    if (error == DT_OK) error = dt_evaluate(net, test, comm, &score);
    if (error != DT_OK && error != DT_ENUMERIC) die(comm);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error == DT_OK ? dt_score_accuracy(&score) : 1.0 / data->classes;
}
// [end]

// Two epochs of Fashion-MNIST (files like MNIST's, of ten kinds of clothes, and harder:
// `--data fashion`), medians of five seeds (figures/ch11_accuracy.csv): up to 512 images the linear
// rule loses little, where the rate as it was loses eight points. At 2048 its rate, 0.64 with
// momentum 0.9, is more than the net can bear (a momentum of 0.9 makes that 6.4: chapter 6), and no
// warm-up saves it: 10 %. The square root's still learns, 74.8 %; and NovoGrad, which is behind it
// up to there, falls least: at 8192, sixteen steps in all, its median is first, 52.4 % against 44.1
// %, though the ranges of the five seeds overlap. In two epochs no rule wins all of it back.
//
// A net that a rate has thrown so far that its loss is no number any more ends its training with
// DT_ENUMERIC. That is an answer, too: it knows nothing, one class in ten.
//
// Picture: ch11_accuracy

static void sweep(dt_comm *comm, const settings *s, const dt_dataset *data, const dt_dataset *test,
                  table *t) {
    for (int b = 0; b < t->batches; ++b)
        for (int w = 0; w < WAYS; ++w) {
            for (int k = 0; k < s->seeds; ++k) {
                t->accuracy[w][b][k] = train_one(comm, s, data, test, (way)w, t->batch[b],
                                                 s->seed + (uint64_t)k);
            }
            sort_numbers(t->accuracy[w][b], (size_t)s->seeds);
            print_way(t, w, b);
        }
}

// Throughput: images a second in whole steps, with the optimizer's, by the slower rank's clock.
// Sixteen images, a lane group, take as long as one, so up to there a larger step is free; then the
// optimizer's share shrinks, and that is soon saturated. Beyond some hundred images the maps of a
// step no longer lie in the cache: more memory, and less speed. Two ranks share a step's lane
// groups: up to sixteen images there is one, and the second rank only takes part in the sums. From
// 32 on each has its half of the images, while sums and optimizer cost what they did: so the curve
// of two ranks saturates at larger steps.
//
// Picture: ch11_speed

typedef struct speed_job {
    const dt_dataset *data;
    uint32_t batch, images;
    double speed;
} speed_job;

static dt_err train_for_speed(dt_comm *comm, void *arg) {
    const speed_job j = *(const speed_job *)arg;
    dt_net *net = plain_net(j.data, (int)j.batch, 1);
    dt_optimizer *opt = dt_adam(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS });
    dt_batches it;
    DT_TRY(dt_batches_init(&it, j.data, &(dt_batches_desc){ .global_batch = j.batch,
                           .rank = dt_comm_rank(comm), .size = dt_comm_size(comm) }));
    DT_TRY(dt_barrier(comm)); // rank 0 writes to arg at the end
    double seconds = -dt_now();
    uint32_t images = 0;
    for (dt_batch b; images < j.images; images += b.global_count) {
        if (!dt_batches_next(&it, &b)) dt_batches_begin(&it, 0), dt_batches_next(&it, &b);
        DT_TRY(dt_net_load(net, &b));
        DT_TRY(dt_forward(net));
        DT_TRY(dt_backward(net));
        DT_TRY(dt_average_gradients(net, comm));
        dt_optimizer_step(opt);
    }
    seconds += dt_now();
    DT_TRY(dt_allreduce(comm, &seconds, 1, DT_F64, DT_MAX, DT_AUTO));
    if (dt_comm_rank(comm) == 0) ((speed_job *)arg)->speed = images / seconds;
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

// Some runs of each, one rank and two in turn.
static void throughput(dt_comm *comm, const dt_dataset *data, bool quick, table *t) {
    for (uint32_t batch = 1; batch <= (quick ? 256u : 4096u); batch *= 4, ++t->speeds) {
        speed_job j = { data, batch, quick ? 1024 : batch < 1024 ? 4096 : 4 * batch, 0.0 };
        t->size[t->speeds] = batch;
        for (int k = 0; k < t->runs; ++k)
            for (int ranks = 1; ranks <= SPEED_RANKS; ++ranks) {
                check(comm, dt_run_ranks(ranks, train_for_speed, &j));
                t->speed[ranks - 1][t->speeds][k] = j.speed;
            }
        print_speed(t, t->speeds);
    }
}

// ## 11.3 Three kinds of batch norm
//
// *Why batch norm?* (Ioffe and Szegedy 2015.) 2.3 brought the pixels to mean 0 and standard
// deviation 1. What comes out of a layer is scaled by nobody, and changes whenever the weights
// below it do. Batch norm does for a channel in the middle of a net what 2.3 did for the pixels:
// (x-mean)/std, with mean and std taken over the images of the batch and all places of the channel;
// then it multiplies by one parameter and adds another, so that the net may choose another scale
// where that is better. Layers behind it always see numbers of one size, and bear larger rates.
// (When the net only answers, running means of the training stand in for the batch's.)
//
// So it [S6.11] takes its means over images. Of which? "Over the batch" adds up over the ranks,
// twice in forward (for the mean, then for the std) and once in backward: one rank's net, whatever
// P. "Over the rank" sends nothing, but what is computed depends on P: 128 images on 8 ranks are
// means over 16, noisier than over 128. "Over the group", **ghost batch norm**, takes always 16,
// and sends nothing either. So on 8 ranks the last two are the same net, to the bit.

typedef struct norm_job {
    const dt_dataset *data, *test;
    dt_statistics over;
    uint64_t seed, hash;
    double accuracy;
} norm_job;

static dt_net *norm_net(const norm_job *j) {
    const dt_batchnorm2d_desc norm = { DT_BATCHNORM2D_DEFAULTS, .over = j->over };
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 8, .kernel = 5, .stride = 2 });
    dt_batchnorm2d(net, "bn1", &norm);
    dt_relu(net);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 16, .kernel = 5 });
    dt_batchnorm2d(net, "bn2", &norm);
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_linear(net, "fc", j->data->classes);
    return net;
}

static dt_err train_norm(dt_comm *comm, void *arg) {
    norm_job local = *(const norm_job *)arg;
    dt_train_result r;
    dt_score score;
    DT_TRY(dt_barrier(comm)); // rank 0 writes to arg at the end
    dt_net *net = norm_net(&local);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = 128, .seed = local.seed }));
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.05f, .momentum = 0.9f });
    dt_err error = opt ? dt_train_sync(net, opt, comm, &(dt_train_desc){ .data = local.data,
                             .epochs = 1, .batch = 128, .seed = local.seed }, &r)
                       : DT_EARG;
    if (error == DT_OK) error = dt_evaluate(net, local.test, comm, &score);
    if (error == DT_OK && dt_comm_rank(comm) == 0) {
        local.accuracy = dt_score_accuracy(&score), local.hash = dt_net_hash(net);
        *(norm_job *)arg = local;
    }
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}

static void three_norms(dt_comm *comm, const settings *s, const dt_dataset *data,
                        const dt_dataset *test) {
    static const struct { const char *name; dt_statistics over; int ranks; } rows[NORMS] = {
        { "over the batch, 128 images", DT_STATISTICS_BATCH, 4 },
        { "over the rank, 64 images", DT_STATISTICS_RANK, 2 },
        { "over the rank, 32 images", DT_STATISTICS_RANK, 4 },
        { "over the rank, 16 images", DT_STATISTICS_RANK, 8 },
        { "over the group, 16 images", DT_STATISTICS_GROUP, 4 } };
    uint64_t hash[NORMS] = { 0 };
    printf("\nbatch norm, 128 images a step, one epoch\n");
    for (int i = 0; i < NORMS; ++i) {
        double accuracy[MOST_SEEDS];
        for (int k = 0; k < s->seeds; ++k) {
            norm_job j = { data, test, rows[i].over, s->seed + (uint64_t)k, 0, 0.0 };
            check(comm, dt_run_ranks(rows[i].ranks, train_norm, &j));
            accuracy[k] = j.accuracy, hash[i] = j.hash;
        }
        sort_numbers(accuracy, (size_t)s->seeds);
        print_range(rows[i].name, accuracy, s->seeds);
    }
    // (a last step of fewer than 8 groups would deal them out otherwise)
    if (data->count % 128 == 0)
        must(comm, hash[NORMS - 1] == hash[NORMS - 2],
             "over a rank of 16 images and over a group: the same bits");
}

// ## 11.4 Six slips
//
// The handout of a workshop trains WideResNet, a large net for pictures (Zagoruyko and Komodakis
// 2016), on many ranks. Its program makes six slips, which are made here on purpose. Each has a
// name: `--slip NAME` trains or tests as it should be, then with the slip, and prints the number
// that the slip moves (figures/ch11_slips.csv: Fashion-MNIST, one epoch; where it is training that
// slips, the accuracy is the median of five seeds):
//
//   - **pad**: its test sampler deals every rank the same number of images, and repeats some to
//     have enough. Of 10 000 images on 7 ranks it scores 10 003: 83.035 % instead of 83.030.
//   - **drop**: its loader drops the last batch where that is not full, and scores 9 984 of them:
//     83.023 %. This slip and the one before move little, but what they score is not the test set,
//     and with another number of ranks it is another set again.
//   - **unscaled**: its base rate is never scaled with the batch. 512 images with the rate of 32:
//     68.8 % instead of 77.8.
//   - **warm-up**: its rate begins at 1/(workers of one host) of the full one instead of 1/(all
//     workers). On two hosts that is 0.02 instead of 0.01. What it does to the accuracy here,
//     80.5 % instead of 79.4, is less than seeds differ by. But the rate was meant to begin with
//     one worker's, and on sixteen hosts it begins with sixteen times that.
//   - **momentum** reaches the name of the output file, and not the optimizer: 73.7 % instead of
//     81.7.
//   - **mean**: a mean over 7 x 7 of a map of 8 x 8 leaves out a row and a column. The layers
//     behind it never see 15 of the 64 places, whatever the layers before have found there.
//
// What catches them:
//
//   - pad, drop: dt_evaluate's score.count, which must be the test set's, to the image;
//   - unscaled, warm-up: the rate that dt_progress tells in the first step;
//   - momentum: accuracy beside that of the plain optimizer, or asking the optimizer for its
//     settings;
//   - mean: maps that are dark but for one place, one map for each place. Where the output stays
//     as it was, nobody reads that place.

// Accuracy in percent. pad: over the images that the sampler deals to 7 ranks. drop: over those
// that it deals to one rank, without the last batch if that is not full.
static double slip_score(const slip_job *j, bool padded) {
    enum { RANKS = 7, BATCH = 32 };
    int64_t right = 0, all = 0;
    for (int rank = 0; rank < RANKS; ++rank) {
        dt_sampler sampler;
        check(j->comm, dt_sampler_init(&sampler, &(dt_sampler_desc){ .count = j->test->count,
                       .rank = padded ? rank : 0, .ranks = padded ? RANKS : 1 }));
        const uint32_t n = padded ? sampler.per_rank : sampler.per_rank / BATCH * BATCH;
        for (uint32_t at = 0; at < n; at += BATCH) {
            const dt_batch b = batch_of(j->test, sampler.index + at, at,
                                        n - at < BATCH ? n - at : BATCH);
            check(j->comm, dt_net_load(j->net, &b));
            check(j->comm, dt_forward(j->net));
            right += dt_net_score(j->net).correct, all += b.count;
        }
        dt_sampler_free(&sampler);
        if (!padded) break;
    }
    return 100.0 * (double)right / (double)all;
}

static double slip_test(const slip_job *j, bool slipped) {
    dt_score score;
    dt_net_training(j->net, false);
    if (slipped) return slip_score(j, j->slip == SLIP_PAD);
    check(j->comm, dt_evaluate(j->net, j->test, j->comm, &score));
    return 100.0 * dt_score_accuracy(&score);
}

// The others train. Notes the rate of the first step.
static bool first_rate(const dt_progress *p, void *rate) {
    if (*(float *)rate == 0.0f) *(float *)rate = p->lr;
    return true;
}

// Accuracy in percent after an epoch, and the first step's rate. The rate of 0.01 and momentum 0.9
// are for 32 images. The warm-up has 8 workers of 32 images each, on two hosts, and takes a fifth
// of the epoch.
static double slip_train(const slip_job *j, bool slipped, float *rate) {
    enum { HOSTS = 2, WORKERS = 4 };
    const bool off[SLIPS] = { [SLIP_UNSCALED] = slipped && j->slip == SLIP_UNSCALED,
                              [SLIP_WARM_UP] = slipped && j->slip == SLIP_WARM_UP,
                              [SLIP_MOMENTUM] = slipped && j->slip == SLIP_MOMENTUM };
    const uint32_t batch = j->slip == SLIP_UNSCALED ? 512 : j->slip == SLIP_WARM_UP ? 256 : 32;
    const dt_schedule warm = { .curve = DT_LR_LINEAR, .by_step = true, .to = 1.0f,
                               .from = 1.0f / (off[SLIP_WARM_UP] ? WORKERS : HOSTS * WORKERS),
                               .over = j->data->count / batch / 5 + 1 };
    dt_net *net = plain_net(j->data, (int)batch, j->seed);
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f,
                                    .momentum = off[SLIP_MOMENTUM] ? 0.0f : 0.9f });
    dt_train_result r;
    dt_score score;
    if (!opt) die(j->comm);
    check(j->comm, dt_train_sync(net, opt, j->comm, &(dt_train_desc){ .data = j->data, .epochs = 1,
          .batch = batch, .seed = j->seed, .lr_batch = 32, .on_step = first_rate, .user = rate,
          .lr_scaling = off[SLIP_UNSCALED] ? DT_SCALE_NONE : DT_SCALE_LINEAR,
          .schedule = j->slip == SLIP_WARM_UP ? &warm : NULL }, &r));
    check(j->comm, dt_evaluate(net, j->test, j->comm, &score));
    dt_optimizer_free(opt);
    dt_net_free(net);
    return 100.0 * dt_score_accuracy(&score);
}

// mean: a net that is nothing but the mean and one weight. Of the 64 places, how many change its
// output when they alone are lit?
static double slip_mean(const slip_job *j, bool slipped) {
    static float map[64];
    float dark = 0.0f, out;
    int reads = 0;
    dt_net *net = dt_net_new(1, 8, 8);
    dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = slipped ? 7 : 8 });
    dt_linear(net, "fc", 1);
    check(j->comm, dt_net_build(net, &(dt_build_desc){ .batch = 1, .seed = 1 }));
    for (int lit = -1; lit < 64; ++lit) {
        const uint32_t row = 0;
        for (int k = 0; k < 64; ++k) map[k] = k == lit ? 1.0f : 0.0f;
        const dt_batch b = { .values = map, .index = &row, .count = 1, .global_count = 1,
                             .channels = 1, .height = 8, .width = 8, .rows = 1 };
        check(j->comm, dt_net_load(net, &b));
        check(j->comm, dt_forward(net));
        check(j->comm, dt_net_logits(net, 0, &out));
        if (lit < 0) dark = out;
        reads += lit >= 0 && out != dark;
    }
    dt_net_free(net);
    return reads;
}

static double measure_slip(slip_job *j, const slip_row *row, bool slipped) {
    float rate = 0.0f;
    j->slip = row->slip;
    if (row->slip == SLIP_MEAN) return slip_mean(j, slipped);
    if (row->slip <= SLIP_DROP) return slip_test(j, slipped);
    const double accuracy = slip_train(j, slipped, &rate);
    return row->rate ? (double)rate : accuracy;
}

static void slips(dt_comm *comm, const settings *s, const dt_dataset *data,
                  const dt_dataset *test) {
    dt_train_result r;
    slip_job j = { .comm = comm, .data = data, .test = test, .net = plain_net(data, 32, s->seed) };
    dt_optimizer *opt = dt_sgd(j.net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.9f });
    check(comm, dt_train_sync(j.net, opt, comm, &(dt_train_desc){ .data = data, .epochs = 1,
                              .batch = 32, .seed = s->seed }, &r));
    print_slip_head();
    for (const slip_row *row = slip_rows; row->name; ++row) {
        double number[2][MOST_SEEDS];
        if (s->slip && strcmp(s->slip, row->name) != 0) continue;
        const int seeds = row->slip <= SLIP_DROP || row->slip == SLIP_MEAN || row->rate ? 1
                                                                                        : s->seeds;
        for (int k = 0; k < seeds; ++k)
            for (int slipped = 0; slipped < 2; ++slipped) {
                j.seed = s->seed + (uint64_t)k;
                number[slipped][k] = measure_slip(&j, row, slipped);
            }
        report_slip(comm, s->png, row, number, seeds);
    }
    dt_optimizer_free(opt);
    dt_net_free(j.net);
}

// ## 11.5 Data parallel or model parallel
//
// All of this is data parallelism: every rank has the whole net, and a part of the images; what
// travels is the gradient, as many numbers as there are parameters, however many images there are.
// Model parallelism is the other cut: every rank has all images, and a part of the net. If the net
// is cut between two layers, what travels is what lies there, forward, and its gradient, backward:
// so much an image, however many parameters there are. So a net with many parameters and small maps
// asks for the one, a net with few and large maps for the other, and a large batch always for data
// parallelism; a net that does not fit into a rank's memory leaves no choice. (Cut into layers, the
// ranks also work one after the other, unless a batch is cut as well.)
//
// WideResNet as an example. It is made of blocks, each of two 3 x 3 convolutions with a norm behind
// each. A block adds its input to what comes out; where it comes out with more channels, the input
// passes through a 1 x 1 convolution first. We count parameters, and what lies between two blocks:

static void what_is_sent(void) {
    static const struct { const char *after; int in, out, side; } blocks[] = {
        { "the first block", 16, 160, 28 }, { "the second", 160, 160, 14 },
        { "the third", 160, 320, 14 }, { "the fourth", 320, 320, 7 },
        { "the fifth", 320, 640, 7 }, { "the sixth", 640, 640, 1 } };
    enum { IMAGES = 32, BLOCKS = sizeof blocks / sizeof *blocks };
    // the first convolution and its norm, and the last layer; then the blocks
    double parameters = 9 * 16 + 2 * 16 + 641 * 10;
    for (int i = 0; i < BLOCKS; ++i) {
        const double in = blocks[i].in, out = blocks[i].out;
        parameters += 9 * in * out + 9 * out * out + 4 * out + (in < out ? in * out : 0);
    }
    printf("\nWideResNet 160: %.0f parameters\n", parameters);
    printf("data parallel    %.0f bytes a step of %d images a rank, as exact sums\n",
           8 * parameters, IMAGES);
    for (int i = 0; i < BLOCKS; ++i)
        printf("model parallel   %.0f bytes, cut behind %s\n",
               2.0 * 4 * blocks[i].out * blocks[i].side * blocks[i].side * IMAGES,
               blocks[i].after);
}

int main(int argc, char **argv) {
    settings s = { .data = "auto", .epochs = 0, .seed = 1 };
    const option_desc options[] = {
        DATA_OPTION(&s.data),
        { "images", 'i', &s.images, "N   to train on; default all, --quick 1024" },
        { "epochs", 'i', &s.epochs, "E   default 2, with --quick 1" },
        { "seeds", UP_TO(MOST_SEEDS), &s.seeds, "N   runs of each number; default 5, --quick 1" },
        SEED_OPTION(&s.seed),
        { "slip", 's', &s.slip, "NAME   this slip of 11.4 and nothing else: pad, drop, unscaled, "
                                "warm-up, momentum or mean" },
        { "png", 's', &s.png, "NAME   NAME_accuracy.png, NAME_speed.png, NAME_slips.csv; default "
                              "out/ch11, with --quick none" },
        QUICK_OPTION(&s.quick),
    };
    dt_comm *comm = begin_program(argc, argv, "Large batches: speed, accuracy, batch norm, slips.",
                                  options, sizeof options);
    if (s.slip && !slip_known(s.slip)) usage_error(comm, "ch11", "--slip: there is no such slip");
    if (!s.png && !s.quick && !s.slip) s.png = "out/ch11";
    if (s.png) check_output(comm, "%s_speed.png", s.png);
    if (!s.seeds) s.seeds = s.quick ? 1 : 5;
    if (!s.epochs) s.epochs = s.quick ? 1 : 2;
    dt_dataset train, test, some, few;
    load_data(comm, s.data, "ch11", &train, &test);
    if (!s.images) s.images = s.quick ? 1024 : (int)train.count;
    check(comm, dt_dataset_view(&some, &train, 0, (uint32_t)s.images));
    check(comm, dt_dataset_view(&few, &test, 0, s.quick && test.count > 1000 ? 1000 : test.count));
    print_machine(comm, &some, 1);
    if (s.slip) {
        slips(comm, &s, &some, &few);
        return end_program(comm, &train, &test);
    }
    static table t = { .batches = 0 };
    t.runs = s.quick ? 1 : SPEED_RUNS;
    t.seeds = s.seeds, t.epochs = s.epochs, t.train = &some, t.test = &few;
    for (uint32_t batch = 32; batch <= (s.quick ? 512u : 8192u) && batch <= some.count; batch *= 4)
        t.batch[t.batches++] = batch;
    parts_change_nothing(comm, &some);
    throughput(comm, &some, s.quick, &t);
    sweep(comm, &s, &some, &few, &t);
    three_norms(comm, &s, &some, &few);
    slips(comm, &s, &some, &few);
    what_is_sent();
    if (s.png) draw_accuracy(comm, &t, s.png), draw_speed(comm, &t, s.png);
    return end_program(comm, &train, &test);
}

// ## 11.6 Exercises
//
// 1. **Predict.** 60 000 images in batches of 8192 are how many steps an epoch? How far from where
//    it began can a weight be after two epochs of plain SGD with lr 0.01, if its gradient is 0.1?
// 2. **Implement.** A rate that follows the batch instead: begin with B = 32, and double B where
//    the schedule would have halved the rate (Smith et al. 2018).
// 3. **Measure.** From which B on does the linear rule lose to the square root's on your data?
