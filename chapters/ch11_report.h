// Chapter 11's report: accuracy and images a second against the batch.
#ifndef CH11_REPORT_H
#define CH11_REPORT_H

#include "chapter.h"

enum { MOST_BATCHES = 8, MOST_SEEDS = 15, NORMS = 5 };

typedef enum way { AS_IT_WAS, NO_MOMENTUM, ROOT, LINEAR, WARMED, NOVOGRAD, WAYS } way;

CHAPTER_FN const char *const way_names[WAYS] = { "as it was", "linear, no momentum", "square root",
                                                 "linear", "linear, warm-up", "NovoGrad" };

typedef struct table {
    int batches, seeds, epochs;
    uint32_t batch[MOST_BATCHES];
    const dt_dataset *train, *test;
    int speeds;
    double size[MOST_BATCHES], speed[MOST_BATCHES]; // images a second in steps of that size
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

static void print_slips(uint32_t n, uint32_t padded, uint32_t kept, double right,
                        double right_padded, double right_kept) {
    printf("\nof %u test images, each once: %.3f %%\n", n, 100 * right / n);
    printf("padded for 7 ranks, %u images: %.3f %%\n", padded, 100 * right_padded / padded);
    printf("the last batch of 32 dropped, %u images: %.3f %%\n", kept, 100 * right_kept / kept);
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
        .y_label = speed ? "images a second of computing time" : "test accuracy",
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
    const int last = t->speeds - 1;
    char title[160], path[512];
    snprintf(title, sizeof title, "One core: %.0f images/s in steps of %.0f, %.0f in steps of %.0f",
             t->speed[0], t->size[0], t->speed[last], t->size[last]);
    dt_chart *c = chart_of(t, title, "whole steps, Adam's included", true, t->size);
    dt_chart_line(c, &(dt_series){ .label = "images/s", .n = (size_t)t->speeds, .x = t->size,
                                   .y = t->speed });
    snprintf(path, sizeof path, "%s_speed.png", stem);
    save_picture(comm, c, "drawn in ", "%s", path);
}

#endif
