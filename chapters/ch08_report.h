// Chapter 8's surroundings: its options, what a training needs and gives, the table of exact and of
// float sums, and the picture of what was reached.
#ifndef CH08_REPORT_H
#define CH08_REPORT_H

#include "ranks.h"

// ---- The command line.

typedef struct settings {
    const char *data, *bug, *png;
    dt_algorithm algorithm;
    int epochs, images, batch, ranks;
    float lr, momentum;
    uint64_t seed;
    bool no_check, quick;
} settings;

static dt_comm *read_settings(int argc, char **argv, settings *s) {
    *s = (settings){
        .data = "auto", .ranks = 4, .batch = 128, .lr = 0.01f, .momentum = 0.5f, .seed = 1234
    };
    const option_desc options[] = {
        DATA_OPTION(&s->data),
        { "images", 'i', &s->images, "N   to train on; default all, --quick 2048" },
        { "epochs", 'i', &s->epochs, "E   default 1, --bug 10" },
        { "batch", UP_TO(65536), &s->batch, "B   global batch, default 128" },
        { "lr", 'f', &s->lr, "X   default 0.01" },
        { "momentum", 'z', &s->momentum, "M   default 0.5" },
        SEED_OPTION(&s->seed),
        ALGORITHM_OPTION(&s->algorithm),
        { "bug", 's', &s->bug, "lost-sum   throw the sum away, until the replica check notices" },
        { "no-check", 'b', &s->no_check, "    with --bug: let it go on, and see the accuracy" },
        { "ranks", UP_TO(64), &s->ranks, "P   threads as ranks: --bug without mpiexec, default 4" },
        { "png", 's', &s->png, "FILE   the picture, its numbers beside it as CSV; default "
                               "out/ch08_sync.png, with --quick none" },
        QUICK_OPTION(&s->quick),
    };
    dt_comm *comm = begin_program(argc, argv,
                                  "Synchronous SGD by hand, on processes and on threads.", options,
                                  sizeof options);
    end_cleanly_on_signals();
    if (s->bug && strcmp(s->bug, "lost-sum") != 0)
        usage_error(comm, "ch08", "--bug: lost-sum is the only one");
    if (!s->png && !s->quick) s->png = "out/ch08_sync.png";
    if (s->png) check_output(comm, "%s", s->png);
    if (!s->epochs) s->epochs = s->bug ? 10 : 1;
    return comm;
}

// ---- Test accuracy after so many images, as a training went on.

enum { POINTS = 24 };
typedef struct curve { int n; double seen[POINTS], accuracy[POINTS]; } curve;

static void curve_add(curve *c, double seen, double accuracy) {
    if (c->n == POINTS) return;
    c->seen[c->n] = seen;
    c->accuracy[c->n++] = accuracy;
}

// ---- One training: how, and what came of it. Then what a rank needs for it.

typedef enum how { EXACT, FLOAT, SUMMED, LOST } how;

typedef struct job {
    const settings *s;
    const dt_dataset *train, *test;
    how how;
    int epochs;
    float lr;
    bool check, draws;
    uint64_t hash;                         // from here on: results
    bool stopped;
    double seconds, accuracy;
    int steps;
    curve reached;
} job;

static void score(job *j, dt_net *net, double seen) {
    dt_score sum;
    if (dt_evaluate(net, j->test, NULL, &sum) != DT_OK) return;
    j->accuracy = dt_score_accuracy(&sum);
    curve_add(&j->reached, seen, j->accuracy);
}

typedef struct room {
    dt_net *net;
    dt_optimizer *opt;
    dt_batches it;
    int64_t *sum;                          // of gradients, a number for each parameter
    uint32_t *index, *start;               // of shares of the data, where ranks train on their own
} room;

static dt_err room_begin(room *m, const job *j, dt_comm *comm) {
    DT_TRY(use_algorithm(comm, j->s->algorithm));
    DT_TRY(dt_barrier(comm));
    m->net = mnist_net(j->train->classes);
    DT_TRY(dt_net_build(m->net, &(dt_build_desc){ .batch = j->s->batch,
                                                  .seed = j->s->seed,
                                                  .float_sums = j->how == FLOAT,
                                                  .unit = DT_FIXED_UNIT }));
    m->opt = dt_sgd(m->net, &(dt_sgd_desc){ .lr = j->lr, .momentum = j->s->momentum });
    m->sum = malloc((dt_net_count(m->net) + 1) * sizeof *m->sum);
    m->index = malloc(j->train->count * sizeof *m->index);
    m->start = malloc(((size_t)dt_comm_size(comm) + 1) * sizeof *m->start);
    return m->opt && m->sum && m->index && m->start ? DT_OK : DT_ENOMEM;
}

static void room_end(room *m) {
    dt_optimizer_free(m->opt);
    dt_batches_free(&m->it);
    dt_net_free(m->net);
    free(m->index), free(m->start), free(m->sum);
}

// ---- One line of the table: the same training with this many ranks.

typedef struct sums_row {
    int ranks;
    const char *backend;
    uint64_t exact, floats;                // hashes of the weights
    double exact_seconds, floats_seconds;  // a step
} sums_row;

static void print_sums_head(void) {
    printf("\n%-16s %-18s %8s   %-18s %8s\n", "ranks", "exact sums", "ms/step", "float sums",
           "ms/step");
}

static void print_sums_row(const sums_row *r) {
    printf("%d %-14s %016llx   %8.3f   %016llx   %8.3f\n", r->ranks, r->backend,
           (unsigned long long)r->exact, 1e3 * r->exact_seconds, (unsigned long long)r->floats,
           1e3 * r->floats_seconds);
}

// ---- The picture.

static double curve_end(const curve *c) { return c->n ? c->accuracy[c->n - 1] : 0.0; }

static bool same_curve(const curve *a, const curve *b) {
    const size_t bytes = (size_t)a->n * sizeof *a->seen;
    return a->n == b->n && memcmp(a->seen, b->seen, bytes) == 0 &&
           memcmp(a->accuracy, b->accuracy, bytes) == 0;
}

// The first four with exact sums, for P = 1, 2, 3, 4; two more for P = 2 and 4 that lost the sum.
static void draw_curves(dt_comm *comm, const settings *s, const job exact[4], const job lost[2]) {
    const dt_dataset *train = exact->train;
    curve curves[6];
    static const char *const name[6] = { "P = 1", "P = 2", "P = 3", "P = 4", "sum lost, P = 2",
                                         "sum lost, P = 4" };
    char title[200], caption[480], subtitle[240];
    double low = 1.0, high = 0.0;
    bool one = true;
    printf("accuracy %.2f %% at P = 1; with the sum lost %.2f %% at P = 2, %.2f %% at P = 4\n",
           100 * exact[0].accuracy, 100 * lost[0].accuracy, 100 * lost[1].accuracy);
    for (int i = 0; i < 6; ++i) curves[i] = i < 4 ? exact[i].reached : lost[i - 4].reached;
    for (int i = 0; i < 4; ++i) {
        low = fmin(low, curve_end(&curves[i])), high = fmax(high, curve_end(&curves[i]));
        one = one && same_curve(&curves[0], &curves[i]);
    }
    say_one_curve(one, low, high, curve_end(&curves[5]), title, sizeof title);
    snprintf(subtitle, sizeof subtitle,
             "Test accuracy after so many training images; global batch %d, SGD, lr %g, momentum "
             "%g", s->batch, (double)s->lr, (double)s->momentum);
    snprintf(caption, sizeof caption, "%s, %u training and %u test images. ", train->name,
             train->count, exact->test->count);
    if (one) // what stands there in markers
        say(subtitle, sizeof subtitle, "; on the line of P = 1 each third point of P = 2, 3, 4");
    dt_chart *c =
        dt_chart_new(&(dt_chart_desc){ .title = title,
                                       .subtitle = subtitle,
                                       .caption = caption,
                                       .machine = true,
                                       .x_label = "training images seen by all ranks together",
                                       .y_label = "test accuracy",
                                       .x_format = DT_TICKS_SI,
                                       .y_format = DT_TICKS_PERCENT });
    for (int i = 0; i < 6; ++i) {
        const curve *from = &curves[i];
        curve few = { 0 }; // where one curve lies on the other, each of P = 2, 3, 4 shows every
        for (int k = 0; k < from->n; ++k) // third of its points, or only the last would be seen
            if (!one || i == 0 || i > 3 || k % 3 == i - 1)
                curve_add(&few, from->seen[k], from->accuracy[k]);
        dt_chart_line(c, &(dt_series){ .label = name[i], .n = (size_t)few.n, .x = few.seen,
            .y = few.accuracy, .style = i == 0 || i > 3 ? DT_LINE_PLAIN : DT_LINE_POINTS,
            .colour = i < 4 ? i + 1 : i + 2 });
    }
    save_picture(comm, c, "drawn in ", "%s", s->png);
}

#endif
