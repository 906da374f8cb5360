// Chapter 10's report: what was measured of the sparse problem and of the net, and three pictures.
#ifndef CH10_REPORT_H
#define CH10_REPORT_H

#include "chapter.h"

enum { MOST = 5, WAYS = 3 }; // workers; no lock, one lock, averaged at the end

typedef struct net_run {
    double seconds, accuracy;
    double stale, share[DT_STALENESS_BINS]; // mean staleness, and the share of steps with each
    uint64_t hash;
} net_run;

typedef struct results {
    int n;                                  // 1 to n workers
    double workers[MOST], sparse[2][MOST], speed[WAYS][MOST]; // speeds against one without a lock
    net_run net[WAYS][MOST];
    char about[480];                        // the data
    const char *opt;
} results;

static dt_chart *chart(const results *r, const char *title, const char *subtitle, const char *x,
                       const char *y, bool percent) {
    return dt_chart_new(
        &(dt_chart_desc){ .title = title,
                          .subtitle = subtitle,
                          .caption = r->about,
                          .machine = true,
                          .x_label = x,
                          .y_label = y,
                          .x_ticks = r->workers,
                          .x_tick_count = (size_t)r->n,
                          .y_format = percent ? DT_TICKS_PERCENT : DT_TICKS_PLAIN });
}

static void draw_speedup(const results *r, const char *prefix) {
    static const char *const few[2] = { "sparse, no lock", "sparse, one lock" },
                             *const net[WAYS] = { "net, no lock", "net, one lock",
                                                  "net, averaged" };
    const int at = dt_cores() < r->n ? dt_cores() : r->n; // as many workers as cores
    char title[240];
    snprintf(title, sizeof title,
             "Sparse, %d worker%s: %.2f times one without a lock, %.2f with; the dense net %.2f "
             "and %.2f",
             at, at == 1 ? "" : "s", r->sparse[0][at - 1], r->sparse[1][at - 1],
             r->speed[0][at - 1], r->speed[1][at - 1]);
    dt_chart *c =
        chart(r, title,
              "Each speed against one worker without a lock, of the sparse problem or of the net",
              "workers", "speedup", false);
    dt_chart_shade_cores(c);
    dt_chart_reference(c,
                       &(dt_reference){ .label = "ideal", .slope = 1.0, .from = 1.0, .to = r->n });
    for (int k = 0; k < 2; ++k)
        dt_chart_line(c,
                      &(dt_series){
                          .label = few[k], .n = (size_t)r->n, .x = r->workers, .y = r->sparse[k] });
    for (int k = 0; k < WAYS; ++k)
        dt_chart_line(c,
                      &(dt_series){
                          .label = net[k], .n = (size_t)r->n, .x = r->workers, .y = r->speed[k] });
    save_picture(NULL, c, "drawn in ", "%s_speedup.png", prefix);
}

static void draw_accuracy(const results *r, const char *prefix) {
    static const char *const label[WAYS] = { "no lock", "one lock", "averaged" };
    double accuracy[WAYS][MOST], least = 1.0, most = 0.0;
    char title[240], subtitle[120];
    for (int k = 0; k < WAYS; ++k)
        for (int i = 0; i < r->n; ++i) accuracy[k][i] = r->net[k][i].accuracy;
    for (int i = 0; i < r->n; ++i)
        least = fmin(least, accuracy[0][i]), most = fmax(most, accuracy[0][i]);
    snprintf(
        title, sizeof title,
        "No lock: %.1f to %.1f %% with 1 to %d workers. %d that only average at the end: %.1f %%",
        100 * least, 100 * most, r->n, r->n, 100 * accuracy[2][r->n - 1]);
    snprintf(subtitle, sizeof subtitle,
             "The dense net's test accuracy after one epoch, dropout off; %s", r->opt);
    dt_chart *c = chart(r, title, subtitle, "workers", "test accuracy", true);
    dt_chart_shade_cores(c);
    for (int k = 0; k < WAYS; ++k)
        dt_chart_line(c, &(dt_series){ .label = label[k],
                                       .n = (size_t)r->n,
                                       .x = r->workers,
                                       .y = accuracy[k] });
    save_picture(NULL, c, "drawn in ", "%s_accuracy.png", prefix);
}

static void draw_staleness(const results *r, const char *prefix) {
    enum { BINS = 8 };
    static const int from[BINS + 1] = { 0, 1, 2, 3, 4, 8, 16, 32, DT_STALENESS_BINS };
    static const char *const number[BINS] = { "0", "1", "2", "3", "4-7", "8-15", "16-31", "32+" },
                             *const who[MOST] = { "N = 1", "N = 2", "N = 3", "N = 4", "N = 5" };
    double bars[MOST * BINS] = { 0.0 };
    char title[240], subtitle[200];
    for (int i = 1; i < r->n; ++i)
        for (int b = 0; b < BINS; ++b)
            for (int k = from[b]; k < from[b + 1]; ++k)
                bars[(i - 1) * BINS + b] += r->net[0][i].share[k];
    if (r->n == 2)
        snprintf(title, sizeof title, "A step is %.1f steps late on average with 2 workers",
                 r->net[0][1].stale);
    else
        snprintf(title, sizeof title,
                 "A step is %.1f steps late on average with 2 workers, %.1f with %d",
                 r->net[0][1].stale, r->net[0][r->n - 1].stale, r->n);
    snprintf(subtitle, sizeof subtitle, "Staleness: steps by others between a worker's copy of the "
             "vector and its own addition%s",
             r->n > dt_cores() ? "; late by 8 and more, it has waited for a core" : "");
    dt_chart *c = dt_chart_new(&(dt_chart_desc){
        .title = title,
        .subtitle = subtitle,
        .caption = r->about,
        .machine = true,
        .x_label = "steps by others in between",
        .y_label = "share of the steps",
        .y_format = DT_TICKS_PERCENT });
    dt_chart_bars(c, &(dt_bars){ .groups = BINS,
                                 .series = (size_t)r->n - 1,
                                 .names = number,
                                 .labels = who + 1,
                                 .y = bars });
    save_picture(NULL, c, "drawn in ", "%s_staleness.png", prefix);
}

#endif
