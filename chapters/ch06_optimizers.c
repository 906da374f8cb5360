// Chapter 6. Downhill: optimizers, and one core trains         uses [S3.1] [S8.1] [S9] [S4.5] [S11]
//
// You will learn   SGD, momentum, Nesterov and Adam in a few lines each; what a training loop is;
//                  how fast one core is
// New since ch05   about 170 lines
// Run              make ch06 && ./ch06
// Check            ./ch06 --data synthetic --quick --figures build/check
//
//| bowl: steps until the height, 50.5 at first, stays below 0.000001
//| sgd          653
//| momentum     170
//| nesterov     116
//| sgd, momentum, nesterov: 50 steps on 9840 values have dt_sgd's bits
//~ adam: 50 steps on 9840 values differ from dt_adam's by at most <num>
//~ sgd        lr <num>   <num> epochs   <num> s   <num> images/s   loss <num>   accuracy <num>
//~ adam       lr <num>   <num> epochs   <num> s   <num> images/s   loss <num>   accuracy <num>
//| trained by hand and by dt_sgd: the same weights

#include "chapter.h"

#include <unistd.h>

// ## 6.1 Four ways downhill
//
// The gradient g says which way the loss grows. Go the other way, a little: w -= lr * g. Every
// optimizer is a variation on that line, works on the flat parameter vector, number by number, and
// knows nothing of layers.
//
//   - **SGD**, stochastic gradient descent (Robbins and Monro 1951), is the line itself:
//     stochastic, as the gradient is that of a random batch (0.6). lr is the learning rate (0.5).
//   - **Momentum** (Polyak 1964) keeps a running sum of gradients, of which a part mu survives each
//     step: m = mu m + g. If all gradients agree, m is g + mu g + mu^2 g + ..., and that sum is g /
//     (1 - mu), for mu times it and one g more is it again: 10 g for mu = 0.9. If they go to and
//     fro, g - mu g + mu^2 g - ... is g / (1 + mu): about half.
//   - **Nesterov**'s variant looks ahead: the momentum's next step would contain mu m in any case,
//     so it is taken now, together with the newest gradient: w -= lr (g + mu m).
//   - **Adam** (Kingma and Ba 2015) divides the running mean m of the gradient by the root of the
//     running mean v of its square: each number's step is about lr, whatever the size of its
//     gradient (where g stays the same, m is g, v is g^2, and the quotient 1 or -1). Both means
//     begin at zero and are too small at first: after t steps with the same g, m = beta m + (1 -
//     beta) g has become (1 - beta^t) g. Dividing by 1 - beta^t makes up for that.

// [region: optimizers]
typedef enum kind { SGD, MOMENTUM, NESTEROV, ADAM } kind;
typedef struct optimizer {
    kind kind;
    float lr, mu;
    int steps;       // taken so far
    float *m, *v;    // as many as there are parameters
} optimizer;

static void sgd_step(optimizer *o, float *w, const float *g, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        o->m[i] = o->mu * o->m[i] + g[i];
        w[i] -= o->lr * (o->kind == SGD        ? g[i]
                         : o->kind == NESTEROV ? g[i] + o->mu * o->m[i]
                                               : o->m[i]);
    }
    ++o->steps;
}

static void adam_step(optimizer *o, float *w, const float *g, size_t n) {
    const float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
    ++o->steps;
    const float early1 = (float)(1.0 - pow((double)beta1, o->steps)),
                early2 = (float)(1.0 - pow((double)beta2, o->steps));
    for (size_t i = 0; i < n; ++i) {
        o->m[i] = beta1 * o->m[i] + (1.0f - beta1) * g[i];
        o->v[i] = beta2 * o->v[i] + (1.0f - beta2) * g[i] * g[i];
        w[i] -= o->lr * (o->m[i] / early1) / (sqrtf(o->v[i] / early2) + eps);
    }
}
// [end]

static void step(optimizer *o, float *w, const float *g, size_t n) {
    if (o->kind == ADAM) adam_step(o, w, g, n);
    else sgd_step(o, w, g, n);
}

static const char *const names[4] = { "sgd", "momentum", "nesterov", "adam" };

static optimizer optimizer_of(kind k, float lr, float mu, size_t n) {
    return (optimizer){ k, lr, mu, 0, memory(n * sizeof(float)), memory(n * sizeof(float)) };
}

static void optimizer_free(optimizer *o) { free(o->m); free(o->v); }

// ## 6.2 A bowl that is steeper one way
//
// Before a net, a landscape of two numbers: height `(x*x + 100 y*y) / 2`, from x = y = 1. A step
// multiplies y by 1 - 100 lr and x by 1 - lr (0.5). The steep direction sets the largest lr that
// does not diverge, 2/100; with 0.01 y is at the bottom after one step. But x shrinks by one part
// in a hundred: 653 steps until `x*x/2` is below 0.000001. This is what momentum is for: along the
// flat direction all steps agree. It also overshoots and swings back, so we count the steps until
// the height *stays* low. Adam's first steps have the same length in both directions: to it, this
// bowl is round.

static void race(void) {
    const float lr[4] = { 0.01f, 0.01f, 0.01f, 0.05f }, mu[4] = { 0.0f, 0.9f, 0.9f, 0.0f };
    printf("\nbowl: steps until the height, 50.5 at first, stays below 0.000001\n");
    for (kind k = SGD; k <= ADAM; ++k) {
        optimizer o = optimizer_of(k, lr[k], mu[k], 2);
        float w[2] = { 1.0f, 1.0f };
        int last = 0;
        while (o.steps < 2000) {
            const float g[2] = { w[0], 100.0f * w[1] };
            step(&o, w, g, 2);
            if (!((w[0] * w[0] + 100.0f * w[1] * w[1]) / 2.0f < 1e-6f)) last = o.steps;
        }
        printf("%-9s  %5d\n", names[k], last + 1);
        expect(last < 2000, "an optimizer does not arrive at the bottom of a bowl");
        optimizer_free(&o);
    }
}

// ## 6.3 The header's optimizers
//
// Fifty steps with random gradients on a whole net's vector, by hand on a copy and by the header in
// place. For SGD and its kin we may ask for the same bits: the same operations in the same order,
// and a compiler told not to fuse them. Adam's formula can be ordered in several ways, and the
// header's spares a division; so there we ask for closeness.

static dt_optimizer *header_optimizer(dt_net *net, const optimizer *o) {
    dt_optimizer *theirs =
        o->kind == ADAM
            ? dt_adam(net,
                      &(dt_adam_desc){ .lr = o->lr, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f })
            : dt_sgd(net, &(dt_sgd_desc){
                              .lr = o->lr, .momentum = o->mu, .nesterov = o->kind == NESTEROV });
    if (!theirs) die(NULL);
    return theirs;
}

static void compare_with_header(dt_net *net) {
    const size_t n = dt_net_count(net);
    int same = 0;
    double most = 0.0;
    float *w = memory(n * sizeof *w);
    for (kind k = SGD; k <= ADAM; ++k) {
        optimizer o = optimizer_of(k, 0.01f, k == SGD || k == ADAM ? 0.0f : 0.9f, n);
        dt_optimizer *theirs = header_optimizer(net, &o);
        memcpy(w, dt_net_values(net), n * sizeof *w);
        for (uint32_t s = 0; s < 50; ++s) {
            float *g = dt_net_gradients(net);
            for (size_t i = 0; i < n; ++i)
                g[i] = dt_uniform(dt_philox(6, DT_RNG_TEST, s, (uint32_t)i, k).v[0]) - 0.5f;
            step(&o, w, g, n);
            dt_optimizer_step(theirs);
        }
        if (k != ADAM) same += memcmp(w, dt_net_values(net), n * sizeof *w) == 0;
        else
            for (size_t i = 0; i < n; ++i)
                most = larger(most, fabs((double)w[i] - (double)dt_net_values(net)[i]));
        dt_optimizer_free(theirs);
        optimizer_free(&o);
    }
    if (same == 3)
        printf("\nsgd, momentum, nesterov: 50 steps on %zu values have dt_sgd's bits\n", n);
    printf("adam: 50 steps on %zu values differ from dt_adam's by at most %.1e\n", n, most);
    expect(same == 3, "dt_sgd takes other steps");
    expect(most < 1e-5, "dt_adam takes other steps");
    free(w);
}

// ## 6.4 The training loop
//
// Everything is there now. An epoch shows every image once, in an order of its own; a step takes
// one batch: load, forward, backward, step. The loss over the last few steps is written down
// several times an epoch, and the test images are scored with dropout off; the clock stands still
// meanwhile.

enum { MOST_POINTS = 2000, POINTS_AN_EPOCH = 6 };
typedef struct curve {
    size_t n;
    double epoch[MOST_POINTS], loss[MOST_POINTS], accuracy[MOST_POINTS];
    double seconds, images;
    // shown on a terminal, where the run is to be seen while it lasts; NULL: not
    const char *name;
} curve;

typedef struct course {
    const dt_dataset *train, *test;
    uint32_t batch;
    int epochs;
    uint64_t seed;
} course;

static void note(curve *c, dt_net *net, const course *s, double epoch, dt_score *window) {
    dt_score score;
    check(NULL, dt_evaluate(net, s->test, NULL, &score));
    c->epoch[c->n] = epoch;
    c->loss[c->n] = dt_score_loss(window);
    c->accuracy[c->n++] = dt_score_accuracy(&score);
    if (c->name && isatty(2))
        fprintf(stderr, "\r%-9s epoch %.2f  loss %.4f  accuracy %.4f", c->name, epoch,
                c->loss[c->n - 1], c->accuracy[c->n - 1]);
    *window = (dt_score){ 0, 0, 0 };
}

// [region: loop]
static void train(dt_net *net, optimizer *o, const course *s, curve *c) {
    dt_batches it;
    dt_score window = { 0, 0, 0 };
    check(NULL, dt_batches_init(&it, s->train,
                                &(dt_batches_desc){
                                    .global_batch = s->batch, .seed = s->seed, .shuffle = true }));
    for (uint32_t epoch = 0; epoch < (uint32_t)s->epochs; ++epoch) {
        dt_batches_begin(&it, epoch);
        uint32_t done = 0;
        double clock = dt_now();
        for (dt_batch b; dt_batches_next(&it, &b);) {
            check(NULL, dt_net_load(net, &b));
            check(NULL, dt_forward(net));
            check(NULL, dt_backward(net));
            step(o, dt_net_values(net), dt_net_gradients(net), dt_net_count(net));
            const dt_score score = dt_net_score(net);
            dt_score_add(&window, &score);
            c->images += b.count;
            ++done;
            if (done * POINTS_AN_EPOCH / it.steps == (done - 1) * POINTS_AN_EPOCH / it.steps)
                continue;
            c->seconds += dt_now() - clock;
            note(c, net, s, epoch + (double)done / it.steps, &window);
            clock = dt_now();
        }
        c->seconds += dt_now() - clock;
    }
    dt_batches_free(&it);
}
// [end]

static dt_net *new_net(const course *s) {
    dt_net *net = mnist_net(s->train->classes);
    check(NULL, dt_net_build(net, &(dt_build_desc){ .batch = (int)s->batch, .seed = s->seed }));
    return net;
}

// ## 6.5 Four runs
//
// Same initial weights, same order of images, same dropout masks: only the step differs. The
// settings are the lab report's (lr 0.01, momentum 0.5), plain SGD at the same lr, Nesterov with
// the usual 0.9, and Adam's own defaults. It is not a contest of optimizers, as each would deserve
// its best lr; it shows what the same two epochs become. In the pictures' run
// (figures/ch06_loss.csv) plain SGD stays near 2.30, the loss of a net that knows nothing (5.4),
// for half an epoch, and ends at 0.49. Momentum 0.5 is where SGD is after about twice as many
// steps, as 1/(1 - 0.5) = 2 says: 0.53 after one epoch. Nesterov and Adam end at 0.19 and 0.20.

static const float rates[4] = { 0.01f, 0.01f, 0.01f, 0.001f },
                   momenta[4] = { 0.0f, 0.5f, 0.9f, 0.0f };

static void run_all(const course *s, curve curves[4]) {
    printf("\n");
    for (kind k = SGD; k <= ADAM; ++k) {
        dt_net *net = new_net(s);
        optimizer o = optimizer_of(k, rates[k], momenta[k], dt_net_count(net));
        curve *c = &curves[k];
        c->name = names[k];
        train(net, &o, s, c);
        if (isatty(2)) fprintf(stderr, "\r%60s\r", "");
        printf("%-9s  lr %.3f   %d epochs   %.2f s   %.0f images/s   loss %.4f   accuracy %.4f\n",
               names[k], (double)rates[k], s->epochs, c->seconds, c->images / c->seconds,
               c->loss[c->n - 1], c->accuracy[c->n - 1]);
        optimizer_free(&o);
        dt_net_free(net);
    }
}

// One last proof that there is no magic left: the header's own trainer and optimizer, from the same
// seed, for one epoch with the lab report's settings, end at the same 9 840 floats, bit for bit.

static void compare_training(const course *s) {
    course one = *s;
    curve *c = memory(sizeof *c);
    one.epochs = 1;
    dt_net *mine = new_net(s), *theirs = new_net(s);
    optimizer o = optimizer_of(MOMENTUM, 0.01f, 0.5f, dt_net_count(mine));
    train(mine, &o, &one, c);
    dt_optimizer *opt = header_optimizer(theirs, &o);
    dt_train_result result;
    dt_comm *alone = dt_comm_alone();
    if (!alone) die(NULL);
    check(NULL,
          dt_train_sync(theirs, opt, alone,
                        &(dt_train_desc){
                            .data = s->train, .epochs = 1, .batch = s->batch, .seed = s->seed },
                        &result));
    const bool same = dt_net_hash(mine) == dt_net_hash(theirs);
    if (same) printf("trained by hand and by dt_sgd: the same weights\n");
    else
        printf("hashes %016llx and %016llx\n", (unsigned long long)dt_net_hash(mine),
               (unsigned long long)dt_net_hash(theirs));
    expect(same, "dt_train_sync ends at other weights");
    dt_optimizer_free(opt);
    optimizer_free(&o);
    dt_comm_free(alone);
    dt_net_free(mine);
    dt_net_free(theirs);
    free(c);
}

// ## 6.6 Two pictures
//
// The loss, on a log axis, and the accuracy on the test images, over the epochs.
//
// Picture: ch06_loss
//
// Picture: ch06_accuracy

static void draw(const char *folder, const char *file, const char *title, const char *y_label,
                 const course *s, curve curves[4], bool accuracy) {
    char caption[200], labels[4][64];
    snprintf(caption, sizeof caption, "%s, %u images an epoch, batch %u, one core", s->train->name,
             s->train->count, s->batch);
    dt_chart *c =
        dt_chart_new(&(dt_chart_desc){ .title = title,
                                       .x_label = "epochs",
                                       .y_label = y_label,
                                       .caption = caption,
                                       .machine = true,
                                       .y_scale = accuracy ? DT_LINEAR : DT_LOG10,
                                       .y_format = accuracy ? DT_TICKS_PERCENT : DT_TICKS_PLAIN });
    for (int k = 0; k < 4; ++k) {
        if (momenta[k] > 0.0f)
            snprintf(labels[k], sizeof labels[k], "%s %.1f", names[k], (double)momenta[k]);
        else snprintf(labels[k], sizeof labels[k], "%s", names[k]);
        dt_chart_line(c, &(dt_series){ .label = labels[k],
                                       .n = curves[k].n,
                                       .x = curves[k].epoch,
                                       .y = accuracy ? curves[k].accuracy : curves[k].loss });
    }
    save_picture(NULL, c, "picture  ", "%s/%s", folder, file);
}

static void draw_curves(const char *folder, const course *s, curve curves[4]) {
    char title[200];
    const size_t last = curves[0].n - 1;
    double loss[4], accuracy[4], seconds[4];
    for (int k = 0; k < 4; ++k)
        loss[k] = curves[k].loss[last], accuracy[k] = curves[k].accuracy[last],
        seconds[k] = curves[k].seconds;
    say_loss(s->epochs, 4, names, loss, title, sizeof title);
    draw(folder, "ch06_loss.png", title, "training loss, dropout on", s, curves, false);
    say_best(4, names, accuracy, seconds, title, sizeof title);
    draw(folder, "ch06_accuracy.png", title, "test accuracy", s, curves, true);
}

int main(int argc, char **argv) {
    const char *which = "auto", *folder = "out";
    int epochs = 2, batch = 128, images = 0;
    uint64_t seed = 1234;
    bool quick = false;
    const option_desc options[] = {
        DATA_OPTION(&which),
        { "epochs", UP_TO(MOST_POINTS / POINTS_AN_EPOCH), &epochs, "E   default 2" },
        { "images", 'i', &images, "N   the first N to train on; default all, with --quick 4096" },
        { "batch", UP_TO(65536), &batch, "B   default 128" },
        SEED_OPTION(&seed),
        FIGURES_OPTION(&folder),
        QUICK_OPTION(&quick),
    };
    dt_comm *comm = begin_program(argc, argv, "Chapter 6: optimizers; one core trains.", options,
                                  sizeof options);
    check_output(comm, "%s/ch06_accuracy.png", folder);
    if (!images && quick) images = 4096;
    dt_dataset all, training, test, testing;
    load_data(comm, which, "ch06", &all, &test);
    check(comm,
          dt_dataset_view(&training, &all, 0,
                          images && (uint32_t)images < all.count ? (uint32_t)images : all.count));
    check(comm, dt_dataset_view(&testing, &test, 0, quick ? 1000 : test.count));
    print_machine(comm, &training, 1);
    const course s = { &training, &testing, (uint32_t)batch, epochs, seed };

    race();
    dt_net *net = new_net(&s);
    compare_with_header(net);
    dt_net_free(net);
    static curve curves[4];
    run_all(&s, curves);
    compare_training(&s);
    draw_curves(folder, &s, curves);

    return end_program(comm, &all, &test);
}

// ## 6.7 Exercises
//
// 1. **Predict.** Momentum 0.9 makes steps up to ten times longer. Which lr of plain SGD should
//    come close to the curve of momentum 0.5 at lr 0.01? Try it.
// 2. **Predict.** Adam's gradients are all multiplied by 1000. What changes? What changes for SGD?
// 3. **Implement.** Weight decay: g += wd * w before the step; in Adam, and in AdamW, where w is
//    shrunk instead. Compare Adam with `dt_adam_desc.weight_decay`.
// 4. **Implement.** A learning rate that falls along half a cosine from lr to zero over the run.
// 5. **Measure.** Test accuracy after one epoch for lr = 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1 with
//    each optimizer. For which is the range of good learning rates the widest?
