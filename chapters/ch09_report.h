// Chapter 9's surroundings: its options, what a training needs and gives; accuracy and bytes
// against the steps between two averages, as a table and as two pictures.
#ifndef CH09_REPORT_H
#define CH09_REPORT_H

#include "ch09_interval.h"
#include "ranks.h"

enum { MOST_POINTS = 17, MOST_SEEDS = 15 };

// ---- The command line.

typedef struct settings {
    const char *data, *png;
    dt_algorithm algorithm;
    int ranks, images, epochs, batch, every, seeds;
    float lr, momentum;
    uint64_t seed;
    bool quick;
} settings;

static dt_comm *read_settings(int argc, char **argv, settings *s) {
    *s = (settings){ .data = "auto", .ranks = 4, .batch = 128, .epochs = 1, .lr = 0.01f,
                     .momentum = 0.5f, .seed = 1234 };
    const option_desc options[] = {
        DATA_OPTION(&s->data),
        { "ranks", UP_TO(64), &s->ranks, "P   threads as ranks, without mpiexec; default 4" },
        { "images", 'i', &s->images, "N   to train on; default all, --quick 2048" },
        { "epochs", 'i', &s->epochs, "E   default 1" },
        { "batch", UP_TO(65536), &s->batch, "B   a step of all ranks together, default 128" },
        { "average-every", 'h', &s->every,
          AVERAGE_EVERY_HELP ": that H alone; default all of 1, 4, 16, ..." },
        ALGORITHM_OPTION(&s->algorithm),
        { "lr", 'f', &s->lr, "X   default 0.01" },
        { "momentum", 'z', &s->momentum, "M   default 0.5" },
        SEED_OPTION(&s->seed),
        { "seeds", UP_TO(MOST_SEEDS), &s->seeds, "N   runs of each row, with seeds S, S+1, ...; "
                                                 "default 5, with --quick 1" },
        { "png", 's', &s->png, "NAME   NAME_accuracy.png and NAME_bytes.png, with CSVs; default "
                               "out/ch09, with --quick none" },
        QUICK_OPTION(&s->quick),
    };
    dt_comm *comm = begin_program(argc, argv,
                                  "PSGD and local SGD by hand: accuracy against communication.",
                                  options, sizeof options);
    end_cleanly_on_signals();
    if (dt_comm_size(comm) > 1) s->ranks = dt_comm_size(comm);
    if (s->ranks > 64) usage_error(comm, "ch09", "at most 64 ranks");
    if (!s->png && !s->quick) s->png = "out/ch09";
    if (s->png) check_output(comm, "%s_bytes.png", s->png);
    if (!s->seeds) s->seeds = s->quick ? 1 : 5;
    return comm;
}

// ---- One training: how, and what came of it. Then what a rank needs for it.

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

typedef struct room {
    dt_net *net;
    dt_optimizer *opt;
    dt_batches it;                  // of this rank's share
    uint32_t longest;               // steps of an epoch, of the rank with the most
    int64_t *sum;                   // for averages
    float *common, *buf;            // for section 9.3: values after the last average, momentum
    uint32_t *index, *start;        // of the shares
} room;

// The share of the data and the batches of a rank (2.5, 2.6), an order of its own.
static dt_err share_begin(room *m, const job *j, dt_comm *comm) {
    const uint32_t p = (uint32_t)dt_comm_size(comm), r = (uint32_t)dt_comm_rank(comm);
    const uint32_t batch = dt_psgd_batch((uint32_t)j->s->batch, (int)p);
    DT_TRY(dt_partition(m->index, m->start, NULL, p, j->train->count, j->seed));
    for (uint32_t k = 0; k < p; ++k) {
        const uint32_t steps = (m->start[k + 1] - m->start[k] + batch - 1) / batch;
        m->longest = steps > m->longest ? steps : m->longest;
    }
    return dt_batches_init(&m->it, j->train,
                           &(dt_batches_desc){ .global_batch = batch,
                                               .seed = j->seed + r,
                                               .shuffle = true,
                                               .subset = m->index + m->start[r],
                                               .subset_count = m->start[r + 1] - m->start[r] });
}

static dt_err room_begin(room *m, const job *j, dt_comm *comm) {
    DT_TRY(use_algorithm(comm, j->s->algorithm));
    DT_TRY(dt_barrier(comm));
    m->net = mnist_net(j->train->classes);
    DT_TRY(dt_net_build(m->net, &(dt_build_desc){ .batch = j->s->batch, .seed = j->seed }));
    m->opt = dt_sgd(m->net, &(dt_sgd_desc){ .lr = j->s->lr, .momentum = j->s->momentum });
    const size_t floats = dt_net_count(m->net) + 1;
    m->sum = malloc(floats * sizeof *m->sum);
    m->common = malloc(floats * sizeof *m->common);
    m->buf = calloc(floats, sizeof *m->buf);
    m->index = malloc(j->train->count * sizeof *m->index);
    m->start = malloc(((size_t)dt_comm_size(comm) + 1) * sizeof *m->start);
    if (!m->opt || !m->sum || !m->common || !m->buf || !m->index || !m->start) return DT_ENOMEM;
    return share_begin(m, j, comm);
}

static void room_end(room *m) {
    dt_optimizer_free(m->opt);
    dt_batches_free(&m->it);
    dt_net_free(m->net);
    free(m->index), free(m->start), free(m->sum), free(m->common), free(m->buf);
}

// ---- The table, a point a row.

typedef struct point {
    uint32_t every, averages; // H, 0 for one average at the end; how many there were
    uint64_t bytes;           // sent by rank 0
    // of each seed, rising; alone: rank 0's own net's, before the last average
    double accuracy[MOST_SEEDS], alone[MOST_SEEDS], seconds[MOST_SEEDS];
} point;

typedef struct tradeoff {
    int count, ranks, epochs, batch, seeds;
    uint32_t steps;           // of a rank: where the last point, once, stands in the pictures
    float lr, momentum;
    const dt_dataset *train, *test;
    double one[MOST_SEEDS];   // accuracy of one rank that sees all the data
    point point[MOST_POINTS]; // the last: one average, at the end
    point outer[MOST_POINTS]; // the same with outer momentum
} tradeoff;

static void sort_runs(point *p, int seeds) {
    sort_numbers(p->accuracy, (size_t)seeds);
    sort_numbers(p->alone, (size_t)seeds);
    sort_numbers(p->seconds, (size_t)seeds);
}

static void print_points_head(const char *how) {
    printf("\n%s; bytes are those that rank 0 sends, the first broadcast included; accuracy and "
           "seconds: median of the seeds\nH\n", how);
}

static void print_point(const point *p, int seeds) {
    char h[16] = "once";
    if (p->every) snprintf(h, sizeof h, "%u", p->every);
    printf("%-8s %6u average%-1s  %10llu bytes  %6.2f %% (%.2f to %.2f)  %6.2f s\n", h, p->averages,
           plural(p->averages), (unsigned long long)p->bytes, 100 * p->accuracy[seeds / 2],
           100 * p->accuracy[0], 100 * p->accuracy[seeds - 1], p->seconds[seeds / 2]);
}

static void draw_tradeoff(dt_comm *comm, const tradeoff *t, const char *title, const char *path,
                          bool bytes) {
    double x[MOST_POINTS], y[MOST_POINTS], low[MOST_POINTS], high[MOST_POINTS];
    char subtitle[200], caption[480];
    const point *last = &t->point[t->count - 1];
    for (int i = 0; i < t->count; ++i) {
        const point *p = &t->point[i];
        x[i] = p->every ? p->every : t->steps;
        y[i] = bytes ? (double)p->bytes : p->accuracy[t->seeds / 2];
        low[i] = bytes ? y[i] : p->accuracy[0];
        high[i] = bytes ? y[i] : p->accuracy[t->seeds - 1];
    }
    snprintf(
        subtitle, sizeof subtitle,
        "%d epoch%s, SGD, lr %g, momentum %g, %u images a rank's step; the last point is PSGD: "
        "one average, at the end",
        t->epochs, plural(t->epochs), (double)t->lr, (double)t->momentum,
        dt_psgd_batch((uint32_t)t->batch, t->ranks));
    snprintf(caption, sizeof caption, "%s, %u training and %u test images. P = %d, %d seed%s%s. ",
             t->train->name, t->train->count, t->test->count, t->ranks, t->seeds, plural(t->seeds),
             bytes || t->seeds == 1 ? "" : ": median, least and most");
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title, .subtitle = subtitle,
        .caption = caption, .machine = true, .x_scale = DT_LOG2,
        .x_label = "H: steps between two averages", .x_ticks = x, .x_tick_count = (size_t)t->count,
        .y_label = bytes ? "sent by each rank (bytes)" : "test accuracy",
        .y_scale = bytes ? DT_LOG2 : DT_LINEAR,
        .y_format = bytes ? DT_TICKS_BYTES : DT_TICKS_PERCENT });
    dt_chart_line(c, &(dt_series){ .label = bytes ? "bytes sent" : "averaged net",
                                   .n = (size_t)t->count, .x = x, .y = y, .y_min = low,
                                   .y_max = high });
    for (int i = 0; i < t->count && !bytes; ++i) {
        y[i] = t->outer[i].accuracy[t->seeds / 2];
        low[i] = t->outer[i].accuracy[0], high[i] = t->outer[i].accuracy[t->seeds - 1];
    }
    if (!bytes)
        dt_chart_line(c, &(dt_series){ .label = "with outer momentum", .n = (size_t)t->count,
                                       .x = x, .y = y, .y_min = low, .y_max = high });
    if (!bytes) {
        char label[2][60];
        snprintf(label[0], sizeof label[0], "one rank, all the data, batch %d: %.1f %%", t->batch,
                 100 * t->one[t->seeds / 2]);
        snprintf(label[1], sizeof label[1], "rank 0 alone, never averaged: %.1f %%",
                 100 * last->alone[t->seeds / 2]);
        dt_chart_reference(c, &(dt_reference){ .label = label[0], .offset = t->one[t->seeds / 2] });
        dt_chart_reference(c, &(dt_reference){ .label = label[1],
                                               .offset = last->alone[t->seeds / 2] });
    }
    save_picture(comm, c, "drawn in ", "%s", path);
}

static void draw_accuracy(dt_comm *comm, const tradeoff *t, const char *stem) {
    char title[220], path[512];
    const point *first = &t->point[0], *last = &t->point[t->count - 1];
    const int middle = t->seeds / 2, most = t->seeds - 1;
    say_averages(t->ranks, first->every,
                 (double[]){ first->accuracy[0], first->accuracy[middle], first->accuracy[most] },
                 (double[]){ last->accuracy[0], last->accuracy[middle], last->accuracy[most] },
                 last->alone[middle], title, sizeof title);
    snprintf(path, sizeof path, "%s_accuracy.png", stem);
    draw_tradeoff(comm, t, title, path, false);
}

static void draw_bytes(dt_comm *comm, const tradeoff *t, const char *stem) {
    char title[220], path[512];
    const point *first = &t->point[0], *last = &t->point[t->count - 1];
    say_traffic(first->every, (double)first->bytes, (double)last->bytes, title, sizeof title);
    snprintf(path, sizeof path, "%s_bytes.png", stem);
    draw_tradeoff(comm, t, title, path, true);
}

#endif
