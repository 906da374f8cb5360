// Chapter 10's surroundings: threads that start together, the samples of the sparse problem, what
// was measured of it and of the net, and four pictures.
#ifndef CH10_REPORT_H
#define CH10_REPORT_H

#include "ranks.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST = 5, WAYS = 3 };    // workers; no lock, one lock, averaged at the end
enum { TIMES = 5, EPOCHS = 5 }; // the sparse problem: so many times, so many epochs each time
enum { MOST_SEEDS = 15 };       // the net: a run a seed

// ---- Calls fn for worker 0 to n-1 at once, each on a thread, and returns the seconds until the
// ---- last one is done. They wait for each other at a start line, or the first would be done
// ---- before the last begins.

typedef struct runner { void *(*fn)(void *); void *worker; atomic_int *missing; } runner;

static void *from_start_line(void *arg) {
    const runner *r = arg;
    atomic_fetch_sub(r->missing, 1);
    while (atomic_load(r->missing) > 0) sched_yield();
    return r->fn(r->worker);
}

static double at_once(int n, void *(*fn)(void *), void *workers, size_t size) {
    pthread_t thread[MOST];
    runner run[MOST];
    atomic_int missing = n;
    const double start = dt_now();
    for (int i = 0; i < n; ++i) {
        run[i] = (runner){ fn, (char *)workers + (size_t)i * size, &missing };
        if (pthread_create(&thread[i], NULL, from_start_line, &run[i]) != 0) {
            fprintf(stderr, "the system gives no more threads\n");
            exit(1);
        }
    }
    for (int i = 0; i < n; ++i) pthread_join(thread[i], NULL);
    return dt_now() - start;
}

// ---- The sparse problem's samples: features and their values drawn at random, labels from hidden
// ---- weights.

enum { FEATURES = 1 << 22, FILLED = 16 };
typedef struct sample { int32_t f[FILLED]; int8_t x[FILLED]; int8_t y; } sample;

static float hidden_weight(uint64_t seed, int32_t feature) {
    return dt_uniform(dt_philox(seed, DT_RNG_SYNTHETIC, 11, (uint32_t)feature, 0).v[0]) - 0.5f;
}

static void make_samples(sample *s, int count, int features, uint64_t seed) {
    for (int i = 0; i < count; ++i) {
        float z = 0.0f;
        for (int k = 0; k < FILLED; ++k) {
            const dt_philox_block r =
                dt_philox(seed, DT_RNG_SYNTHETIC, 10, (uint32_t)i, (uint32_t)k);
            s[i].f[k] = (int32_t)(r.v[0] % (uint32_t)features), s[i].x[k] = r.v[1] & 1 ? 1 : -1;
            z += (float)s[i].x[k] * hidden_weight(seed, s[i].f[k]);
        }
        s[i].y = z > 0.0f;
    }
}

static double sparse_loss(const sample *s, int count, const float *w) {
    double loss = 0.0;
    for (int i = 0; i < count; ++i) {
        double z = 0.0;
        for (int k = 0; k < FILLED; ++k) z += (double)(w[s[i].f[k]] * (float)s[i].x[k]);
        loss += log1p(exp(s[i].y ? -z : z)) / count;
    }
    return loss;
}

// ---- What is measured.

typedef struct sparse_runs {
    trials seconds;
    double loss;
    uint64_t hash;
} sparse_runs;

enum { SIZES = 6 };             // of the vector, for the picture of caches: 4^6 to 4^11

typedef struct net_runs {       // of each seed
    double seconds[MOST_SEEDS], accuracy[MOST_SEEDS];
    double stale, share[DT_STALENESS_BINS]; // mean staleness, and the share of steps with each
    uint64_t hash;              // the first seed's
} net_runs;

typedef struct results {
    int n, seeds;               // 1 to n workers
    double workers[MOST], features[SIZES];
    // speeds against one worker without a lock; pair: of two workers
    trials sparse[2][MOST], pair[SIZES], speed[WAYS][MOST], accuracy[WAYS][MOST];
    net_runs net[WAYS][MOST];
    char about[480];            // the data
    const char *opt;
} results;

// How many times as fast: the shortest time is the highest speed.
static trials speed_of(double one, trials seconds) {
    return (trials){ one / seconds.median, one / seconds.most, one / seconds.least };
}

static void print_net_row(const results *r, int n, double one) {
    const trials *free_runs = &r->speed[0][n - 1];
    printf("%-8d %.2f s %5.2fx %6.2f %%  staleness %4.2f", n, one / free_runs->median,
           free_runs->median, 100 * r->accuracy[0][n - 1].median, r->net[0][n - 1].stale);
    for (int k = 1; k < WAYS; ++k)
        printf("   %.2f s %5.2fx %6.2f %%", one / r->speed[k][n - 1].median,
               r->speed[k][n - 1].median, 100 * r->accuracy[k][n - 1].median);
    printf("\n");
}

// ---- Pictures.

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

// A line of medians with the least and the most; on its chart the colour'th.
static void draw_ranges(dt_chart *c, const char *label, int n, const double *x, const trials *y,
                        int colour) {
    double median[MOST + SIZES], least[MOST + SIZES], most[MOST + SIZES];
    for (int i = 0; i < n; ++i)
        median[i] = y[i].median, least[i] = y[i].least, most[i] = y[i].most;
    dt_chart_line(c, &(dt_series){ .label = label, .n = (size_t)n, .x = x, .y = median,
                                   .y_min = least, .y_max = most, .colour = colour });
}

static void draw_speedup(const results *r, const char *prefix) {
    static const char *const few[2] = { "sparse, no lock", "sparse, one lock" },
                             *const net[2] = { "net, no lock", "net, one lock" };
    const int at = dt_cores() < r->n ? dt_cores() : r->n; // as many workers as cores
    char title[240], subtitle[240];
    snprintf(title, sizeof title,
             "Sparse, %d worker%s: %.2f times one without a lock, %.2f with; the dense net %.2f "
             "and %.2f",
             at, plural(at), r->sparse[0][at - 1].median, r->sparse[1][at - 1].median,
             r->speed[0][at - 1].median, r->speed[1][at - 1].median);
    snprintf(subtitle, sizeof subtitle,
             "Speed against one worker without a lock: the median of %d runs (net: %d), with the "
             "least and the most", TIMES, r->seeds);
    dt_chart *c = chart(r, title, subtitle, "workers", "speedup", false);
    dt_chart_shade_cores(c);
    draw_ideal(c, dt_cores(), r->n);
    for (int k = 0; k < 2; ++k) draw_ranges(c, few[k], r->n, r->workers, r->sparse[k], k + 1);
    for (int k = 0; k < 2; ++k) draw_ranges(c, net[k], r->n, r->workers, r->speed[k], k + 3);
    save_picture(NULL, c, "drawn in ", "%s_speedup.png", prefix);
}

// Two workers on vectors of more and more numbers.
static void draw_features(const results *r, const char *prefix) {
    char title[240], subtitle[240];
    const trials *first = &r->pair[0], *last = &r->pair[SIZES - 1];
    snprintf(title, sizeof title,
             "Two workers without a lock: %.2f times one on %.0f weights, %.2f times on %.0f",
             first->median, r->features[0], last->median, r->features[SIZES - 1]);
    snprintf(subtitle, sizeof subtitle,
             "The sparse problem, %d weights a sample: median of %d runs, with the least and the "
             "most", FILLED, TIMES);
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title,
                                                 .subtitle = subtitle,
                                                 .caption = r->about,
                                                 .machine = true,
                                                 .x_label = "weights in the vector",
                                                 .y_label = "speedup of two workers over one",
                                                 .x_scale = DT_LOG2,
                                                 .x_ticks = r->features,
                                                 .x_tick_count = SIZES });
    dt_chart_reference(c, &(dt_reference){ .label = "as fast as one", .offset = 1.0 });
    draw_ranges(c, "two workers", SIZES, r->features, r->pair, 1);
    save_picture(NULL, c, "drawn in ", "%s_features.png", prefix);
}

static void draw_accuracy(const results *r, const char *prefix) {
    static const char *const label[WAYS] = { "no lock", "one lock", "averaged" };
    double least = 1.0, most = 0.0;
    char title[240], subtitle[200];
    for (int i = 0; i < r->n; ++i)
        least = fmin(least, r->accuracy[0][i].median),
        most = larger(most, r->accuracy[0][i].median);
    snprintf(
        title, sizeof title,
        "No lock: %.1f to %.1f %% with 1 to %d workers. %d that only average at the end: %.1f %%",
        100 * least, 100 * most, r->n, r->n, 100 * r->accuracy[2][r->n - 1].median);
    snprintf(subtitle, sizeof subtitle,
             "The dense net's test accuracy after one epoch, dropout off; %s; median of %d seed%s, "
             "with the least and the most", r->opt, r->seeds, plural(r->seeds));
    dt_chart *c = chart(r, title, subtitle, "workers", "test accuracy", true);
    dt_chart_shade_cores(c);
    for (int k = 0; k < WAYS; ++k)
        draw_ranges(c, label[k], r->n, r->workers, r->accuracy[k], k + 1);
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
             "vector and its own addition; all seeds together%s",
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
