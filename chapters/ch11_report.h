// Chapter 11's report: accuracy and images a second against the batch.
#ifndef CH11_REPORT_H
#define CH11_REPORT_H

#include "chapter.h"

enum { MOST_BATCHES = 8, MOST_SEEDS = 15, NORMS = 5, SPEED_RANKS = 2, SPEED_RUNS = 5 };

typedef enum way { AS_IT_WAS, NO_MOMENTUM, ROOT, LINEAR, WARMED, NOVOGRAD, WAYS } way;

CHAPTER_FN const char *const way_names[WAYS] = { "as it was", "linear, no momentum", "square root",
                                                 "linear", "linear, warm-up", "NovoGrad" };

typedef struct table {
    int batches, seeds, epochs;
    uint32_t batch[MOST_BATCHES];
    const dt_dataset *train, *test;
    int speeds, runs;
    double size[MOST_BATCHES];
    double speed[SPEED_RANKS][MOST_BATCHES][SPEED_RUNS]; // images a second in steps of that size
    double accuracy[WAYS][MOST_BATCHES][MOST_SEEDS]; // of each seed, rising
} table;

static void print_range(const char *name, const double *accuracy, int seeds) {
    printf("%-28s %6.2f %%  (%.2f to %.2f)\n", name, 100 * accuracy[seeds / 2], 100 * accuracy[0],
           100 * accuracy[seeds - 1]);
    fflush(stdout);
}

static void print_way(const table *t, int w, int b) {
    if (w == 0)
        printf("\nbatch %u, %d epoch%s: test accuracy, median (least to most) of %d seed%s\n",
               t->batch[b], t->epochs, plural(t->epochs), t->seeds, plural(t->seeds));
    print_range(way_names[w], t->accuracy[w][b], t->seeds);
}

static void print_speed(table *t, int b) {
    for (int p = 0; p < SPEED_RANKS; ++p) sort_numbers(t->speed[p][b], (size_t)t->runs);
    printf("batch %-6.0f %.0f images/s on 1 rank, %.0f on 2\n", t->size[b],
           t->speed[0][b][t->runs / 2], t->speed[1][b][t->runs / 2]);
    fflush(stdout);
}

// ---- Slips: what each is called, and which number it moves.

enum { SLIP_PAD, SLIP_DROP, SLIP_UNSCALED, SLIP_WARM_UP, SLIP_MOMENTUM, SLIP_MEAN, SLIPS };

typedef struct slip_row {
    const char *name, *number;
    int slip;
    bool rate; // of two numbers, the rate
} slip_row;

CHAPTER_FN const slip_row slip_rows[] = {
    { "pad", "test accuracy, %", SLIP_PAD, false },
    { "drop", "test accuracy, %", SLIP_DROP, false },
    { "unscaled", "test accuracy, %", SLIP_UNSCALED, false },
    { "warm-up", "rate of the first step", SLIP_WARM_UP, true },
    { "warm-up", "test accuracy, %", SLIP_WARM_UP, false },
    { "momentum", "test accuracy, %", SLIP_MOMENTUM, false },
    { "mean", "places that the mean reads", SLIP_MEAN, false },
    { NULL, NULL, 0, false } };

typedef struct slip_job {
    dt_comm *comm;
    const dt_dataset *data, *test;
    dt_net *net; // trained, for pad and drop
    uint64_t seed;
    int slip;
} slip_job;

static bool slip_known(const char *name) {
    const slip_row *row = slip_rows;
    while (row->name && strcmp(row->name, name) != 0) ++row;
    return row->name != NULL;
}

static void print_slip_head(void) {
    printf("\n%-9s %-26s %10s %10s\n", "slip", "the number", "right", "slipped");
}

static void report_slip(dt_comm *comm, const char *png, const slip_row *row,
                        double number[2][MOST_SEEDS], int seeds) {
    char path[512];
    for (int i = 0; i < 2; ++i) sort_numbers(number[i], (size_t)seeds);
    printf("%-9s %-26s %10.*f %10.*f\n", row->name, row->number, row->slip == SLIP_MEAN ? 0 : 3,
           number[0][seeds / 2], row->slip == SLIP_MEAN ? 0 : 3, number[1][seeds / 2]);
    fflush(stdout);
    if (!png) return;
    snprintf(path, sizeof path, "%s_slips.csv", png);
    if (row == slip_rows) remove(path); // one run a file
    check(comm, dt_csv_append(path, "slip,number,seeds,right,least,most,slipped,least,most",
                              "%s,\"%s\",%d,%g,%g,%g,%g,%g,%g", row->name, row->number, seeds,
                              number[0][seeds / 2], number[0][0], number[0][seeds - 1],
                              number[1][seeds / 2], number[1][0], number[1][seeds - 1]));
}

static dt_chart *chart_of(const table *t, const char *title, const char *subtitle, bool speed,
                          const double *x) {
    char caption[320];
    snprintf(caption, sizeof caption, "%s, %u training and %u test images. %d seed%s%s. ",
             t->train->name, t->train->count, t->test->count, t->seeds, plural(t->seeds),
             speed || t->seeds == 1 ? "" : ": median, least and most");
    return dt_chart_new(&(dt_chart_desc){ .title = title, .subtitle = subtitle,
        .caption = caption, .machine = true, .x_scale = DT_LOG2, .x_label = "images a step",
        .x_ticks = x, .x_tick_count = (size_t)(speed ? t->speeds : t->batches),
        .y_label = speed ? "images a second" : "test accuracy",
        .y_format = speed ? DT_TICKS_SI : DT_TICKS_PERCENT });
}

static void draw_accuracy(dt_comm *comm, const table *t, const char *stem) {
    double x[MOST_BATCHES], y[MOST_BATCHES], low[MOST_BATCHES], high[MOST_BATCHES];
    char title[200], subtitle[160], path[512];
    const int last = t->batches - 1, middle = t->seeds / 2;
    int best = 0;
    for (int w = 1; w < WAYS; ++w)
        if (t->accuracy[w][last][middle] > t->accuracy[best][last][middle]) best = w;
    snprintf(title, sizeof title, "Batch %u: %.1f %% with the rate as it was; best, %.1f %%: %s",
             t->batch[last], 100 * t->accuracy[AS_IT_WAS][last][middle],
             100 * t->accuracy[best][last][middle], way_names[best]);
    snprintf(subtitle, sizeof subtitle,
             "%d epoch%s; lr 0.01 and momentum 0.9 are for batches of 32", t->epochs,
             plural(t->epochs));
    for (int b = 0; b < t->batches; ++b) x[b] = t->batch[b];
    dt_chart *c = chart_of(t, title, subtitle, false, x);
    for (int w = 0; w < WAYS; ++w) {
        for (int b = 0; b < t->batches; ++b) {
            y[b] = t->accuracy[w][b][middle];
            low[b] = t->accuracy[w][b][0], high[b] = t->accuracy[w][b][t->seeds - 1];
        }
        dt_chart_line(c, &(dt_series){ .label = way_names[w], .n = (size_t)t->batches, .x = x,
                                       .y = y, .y_min = low, .y_max = high });
    }
    snprintf(path, sizeof path, "%s_accuracy.png", stem);
    save_picture(comm, c, "drawn in ", "%s", path);
}

static void draw_speed(dt_comm *comm, const table *t, const char *stem) {
    static const char *const names[SPEED_RANKS] = { "1 rank", "2 ranks" };
    const int middle = t->runs / 2;
    double y[MOST_BATCHES], low[MOST_BATCHES], high[MOST_BATCHES];
    int best[SPEED_RANKS] = { 0 };
    char title[160], path[512];
    for (int p = 0; p < SPEED_RANKS; ++p)
        for (int b = 1; b < t->speeds; ++b)
            if (t->speed[p][b][middle] > t->speed[p][best[p]][middle]) best[p] = b;
    snprintf(title, sizeof title,
             "One rank is fastest in steps of %.0f images, two in steps of %.0f, and then %.2fx",
             t->size[best[0]], t->size[best[1]],
             t->speed[1][best[1]][middle] / t->speed[0][best[0]][middle]);
    dt_chart *c = chart_of(t, title, "whole steps, Adam's and the sum over the ranks included",
                           true, t->size);
    for (int p = 0; p < SPEED_RANKS; ++p) {
        for (int b = 0; b < t->speeds; ++b) {
            y[b] = t->speed[p][b][middle];
            low[b] = t->speed[p][b][0], high[b] = t->speed[p][b][t->runs - 1];
        }
        dt_chart_line(c, &(dt_series){ .label = names[p], .n = (size_t)t->speeds, .x = t->size,
                                       .y = y, .y_min = low, .y_max = high });
    }
    snprintf(path, sizeof path, "%s_speed.png", stem);
    save_picture(comm, c, "drawn in ", "%s", path);
}

#endif
