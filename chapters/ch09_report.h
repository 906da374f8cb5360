// Chapter 9's report: accuracy and bytes against the steps between two averages.
#ifndef CH09_REPORT_H
#define CH09_REPORT_H

#include "chapter.h"

enum { MOST_POINTS = 17 };

enum { MOST_SEEDS = 15 };

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
