// Chapter 12, third part: a forecast for more ranks than there are. Here is what is measured, the
// tables and the pictures; the model, formula by formula, is written out in 12.6.
#ifndef CH12_FORECAST_H
#define CH12_FORECAST_H

#include "ch07_fit.h"
#include "ch12_report.h"
#include "ranks.h"

// ---- What the model knows.

enum { STRETCHES = 16, PARTS = 4 }; // PARTS: pack, forward and loss, backward, optimizer

typedef struct part { double each, group; } part; // seconds: whatever the images, and a lane group

typedef struct step_cost {
    part of[PARTS], all;            // all: their sum
    int stretches;                  // of the gradient, as backward finishes them
    double final[STRETCHES];        // when, as a fraction of backward's time
    double bytes[STRETCHES];        // how much, as it travels
    double gradient;                // bytes, all of them
} step_cost;

typedef struct network { // seconds a message, a byte sent, a byte added
    char name[48];
    double alpha, beta, gamma;
} network;

typedef struct forecast_desc {
    const char *png, *csv, *network; // the pictures' stem; NULL: none; NULL: named by the hosts
    int batch, bucket, every;      // images a step; bytes; steps between local SGD's averages
    bool float_sums, direct, quiet;
} forecast_desc;

// ---- What 12.6 writes out.

static int busiest(int groups, int ranks);
static double computing(const step_cost *c, int groups, int ranks, int cores);
static double one_rank(const step_cost *c, int groups);
static double amdahl(const step_cost *c, int groups, int ranks);
static double sync_by(dt_algorithm way, const network *net, int ranks, double bytes);
static double sync_best(const network *net, int ranks, double bytes);
static double step_of(const step_cost *c, const network *net, int groups, int ranks);
static double overlapped(const step_cost *c, const network *net, int groups, int ranks,
                         double bucket);
static double local_step(const step_cost *c, const network *net, int batch, int ranks, int every);

// ---- A step on one rank, part by part.

typedef struct stretch_clock {
    step_cost *cost;
    double start, when[STRETCHES];
    int n;
} stretch_clock;

static dt_err stretch_final(void *user, size_t offset, size_t count) {
    stretch_clock *w = user;
    (void)offset;
    if (w->n < STRETCHES) w->cost->bytes[w->n] = (double)count, w->when[w->n++] = dt_now();
    return DT_OK;
}

enum { TIMED_STEPS = 40, SHARES = 4 };

// Medians of the four parts' seconds, for a share of so many lane groups.
static dt_err time_share(dt_comm *comm, dt_net *net, dt_optimizer *opt, const dt_dataset *data,
                         int groups, int batch, double seconds[PARTS]) {
    static double t[PARTS][TIMED_STEPS];
    const uint32_t count = (uint32_t)(groups * DT_LANES < batch ? groups * DT_LANES : batch);
    uint32_t *index = memory(count * sizeof *index);
    dt_err error = DT_OK;
    for (int k = -4; k < TIMED_STEPS && error == DT_OK; ++k) { // the first are not counted
        const int at = k < 0 ? 0 : k;
        dt_comm_progress(comm, (uint64_t)(groups * TIMED_STEPS + at), "measuring a step");
        for (uint32_t i = 0; i < count; ++i)
            index[i] = dt_philox(12, DT_RNG_TEST, (uint32_t)at, 0, i).v[0] % data->count;
        const dt_batch b = batch_of(data, index, 0, count);
        double now[PARTS + 1] = { dt_now() };
        if ((error = dt_net_load(net, &b)) != DT_OK) break;
        now[1] = dt_now();
        if ((error = dt_forward(net)) != DT_OK) break;
        now[2] = dt_now();
        if ((error = dt_backward(net)) != DT_OK) break;
        now[3] = dt_now();
        dt_optimizer_step(opt);
        now[4] = dt_now();
        for (int i = 0; i < PARTS; ++i) t[i][at] = now[i + 1] - now[i];
    }
    for (int i = 0; i < PARTS; ++i) seconds[i] = trials_of(t[i], TIMED_STEPS).median;
    free(index);
    return error;
}

// The straight line through the points (groups, seconds) that misses them by the least squares.
static part line_through(const double *groups, const double *seconds, int n) {
    double x = 0.0, y = 0.0, xx = 0.0, xy = 0.0;
    for (int i = 0; i < n; ++i) x += groups[i] / n, y += seconds[i] / n;
    for (int i = 0; i < n; ++i)
        xx += (groups[i] - x) * (groups[i] - x), xy += (groups[i] - x) * (seconds[i] - y);
    part p = { 0.0, n > 1 ? fmax(xy / xx, 0.0) : 0.0 };
    p.each = fmax(y - p.group * x, 0.0);
    if (n == 1) p.group = y / x;
    return p;
}

// When backward's stretches are final, as fractions of its time, by the clock.
static dt_err time_stretches(dt_net *net, const dt_dataset *data, int batch, step_cost *c) {
    static uint32_t index[1 << 20];
    stretch_clock w = { .cost = c };
    for (uint32_t i = 0; i < (uint32_t)batch; ++i) index[i] = i % data->count;
    const dt_batch b = batch_of(data, index, 0, (uint32_t)batch);
    DT_TRY(dt_net_load(net, &b));
    DT_TRY(dt_forward(net));
    dt_net_on_gradient(net, stretch_final, &w);
    w.start = dt_now();
    const dt_err error = dt_backward(net);
    const double whole = dt_now() - w.start;
    dt_net_on_gradient(net, NULL, NULL);
    c->stretches = w.n;
    for (int i = 0; i < w.n; ++i) c->final[i] = fmin((w.when[i] - w.start) / whole, 1.0);
    return error;
}

// All of it: shares of one group up to the whole batch, or as many as there is time for.
static dt_err measure_step(dt_comm *comm, dt_net *net, dt_optimizer *opt, const dt_dataset *data,
                           const forecast_desc *d, step_cost *c) {
    const int most = (d->batch + DT_LANES - 1) / DT_LANES;
    double groups[SHARES], seconds[PARTS][SHARES], t[PARTS];
    int n = 0;
    *c = (step_cost){ .stretches = 0 };
    for (int g = most, k = 0; g > 0 && k < SHARES; g /= 2, ++k) {
        DT_TRY(time_share(comm, net, opt, data, g, d->batch, t));
        groups[n] = g;
        for (int i = 0; i < PARTS; ++i) seconds[i][n] = t[i];
        ++n;
    }
    for (int i = 0; i < PARTS; ++i) {
        c->of[i] = line_through(groups, seconds[i], n);
        c->all.each += c->of[i].each, c->all.group += c->of[i].group;
    }
    DT_TRY(time_stretches(net, data, d->batch, c));
    for (int i = 0; i < c->stretches; ++i) {
        c->bytes[i] *= d->float_sums ? sizeof(float) : sizeof(int64_t);
        c->gradient += c->bytes[i];
    }
    return DT_OK;
}

// ---- Messages: chapter 7's measurement, of three of its ways.

static const dt_algorithm message_ways[3] = { DT_RING, DT_DOUBLING, DT_HALVING };

// The median over several calls of the slowest rank's time. A barrier before each: calls in a row
// overlap, as one rank begins the next while others end the one before, and a training step's do
// not.
static dt_err time_sum(dt_comm *comm, dt_algorithm way, float *x, size_t n, double *median) {
    enum { TIMES = 7 };
    double seconds[TIMES];
    for (int r = -1; r < TIMES; ++r) { // the first is not counted
        DT_TRY(dt_barrier(comm));
        double took = dt_now();
        DT_TRY(dt_allreduce(comm, x, n, DT_F32, DT_SUM, way));
        took = dt_now() - took;
        DT_TRY(dt_allreduce(comm, &took, 1, DT_F64, DT_MAX, DT_AUTO));
        seconds[r < 0 ? 0 : r] = took;
    }
    sort_numbers(seconds, TIMES);
    *median = seconds[TIMES / 2];
    return DT_OK;
}

// A message of n bytes costs alpha + n beta, to add them n gamma: least squares over relative
// errors. Vectors as long as the gradient, a half, a quarter and an eighth of it: the sizes that
// will be sent, as no network's time is one straight line from 4 bytes up (7.6). A short one that
// passes in no time would pull the whole line down, as errors are relative.
static dt_err measure_network(dt_comm *comm, double bytes, network *net) {
    enum { LENGTHS = 4 };
    const size_t whole = (size_t)(bytes / sizeof(float)) + 8,
                 length[LENGTHS] = { whole, whole / 2, whole / 4, whole / 8 };
    fit_row rows[3 * LENGTHS];
    float *x = memory(whole * sizeof *x);
    dt_err error = DT_OK;
    for (int k = 0; k < 3 * LENGTHS && error == DT_OK; ++k) {
        const network one[3] = { { .alpha = 1.0 }, { .beta = 1.0 }, { .gamma = 1.0 } };
        const size_t n = length[k / 3];
        error = time_sum(comm, message_ways[k % 3], x, n, &rows[k].t);
        for (int i = 0; i < 3; ++i)
            rows[k].c[i] = sync_by(message_ways[k % 3], &one[i], dt_comm_size(comm),
                                   (double)n * sizeof *x);
    }
    free(x);
    double u[3] = { 0.0, 0.0, 0.0 };
    if (error == DT_OK) fit(rows, 3 * LENGTHS, u);
    net->alpha = u[0], net->beta = u[1], net->gamma = u[2];
    return error;
}

// ---- Forecasts, as speeds over one rank's.

static const network given_networks[] = { { "1 Gbit/s, 50 us", 50e-6, 8e-9, 0.0 },
                                          { "10 Gbit/s, 20 us", 20e-6, 0.8e-9, 0.0 },
                                          { "100 Gbit/s, 2 us", 2e-6, 0.08e-9, 0.0 } };
enum { NETWORKS = 4, MOST_RANKS = 1024 };

typedef struct forecast {
    forecast_desc d;
    char data[64];         // the data set's name, and a blank
    step_cost cost;
    network net[NETWORKS]; // the first is the one that these ranks are joined by
    int groups;            // of a batch
} forecast;

typedef enum forecast_kind { STRONG, OVERLAP, WEAK, LOCAL, RATIO } forecast_kind;

// Images a second over those of one rank; RATIO: Tsync/Tcomp of the weak case.
static double forecast_at(const forecast *f, forecast_kind kind, const network *net, int p) {
    const double one = one_rank(&f->cost, f->groups);
    const double own = (double)dt_psgd_batch((uint32_t)f->d.batch, p);
    switch (kind) {
    case STRONG: return one / step_of(&f->cost, net, f->groups, p);
    case OVERLAP:
        return one / fmin(overlapped(&f->cost, net, f->groups, p, f->d.bucket),
                          step_of(&f->cost, net, f->groups, p));
    case WEAK: return p * one / step_of(&f->cost, net, f->groups * p, p);
    case LOCAL:
        return p * own / local_step(&f->cost, net, f->d.batch, p, f->d.every) /
               (f->d.batch / one);
    case RATIO: return sync_best(net, p, f->cost.gradient) / one;
    }
    return 0.0;
}

static void print_forecast(const forecast *f, forecast_kind kind, const char *what) {
    printf("\n%s\n    P", what);
    if (kind == STRONG) printf("  groups  Amdahl");
    if (kind == RATIO) printf("     P - 1");
    for (int i = 0; i < NETWORKS; ++i) printf("  %18.18s", f->net[i].name);
    for (int p = kind == RATIO ? 2 : 1; p <= MOST_RANKS; p *= 2) {
        printf("\n%5d", p);
        if (kind == STRONG)
            printf("  %6d  %6.1f", busiest(f->groups, p), amdahl(&f->cost, f->groups, p));
        if (kind == RATIO) printf("  %8d", p - 1);
        for (int i = 0; i < NETWORKS; ++i)
            printf("  %18.*f", kind == RATIO ? 3 : 2, forecast_at(f, kind, &f->net[i], p));
    }
    printf("\n");
}

// The smallest and the largest number of ranks, powers of two, at which more ranks pay.
static void print_condition(const forecast *f) {
    printf("Ranks pay while Tsync/Tcomp < P - 1:");
    for (int i = 0; i < NETWORKS; ++i) {
        int first = 0;
        bool from_there_on = true;
        for (int p = MOST_RANKS; p > 1; p /= 2) {
            const bool pays = forecast_at(f, RATIO, &f->net[i], p) < p - 1;
            if (pays && from_there_on) first = p;
            else from_there_on = false;
        }
        if (first) printf("%s %s from P = %d on", i ? ";" : "", f->net[i].name, first);
        else printf("%s %s not at %d", i ? ";" : "", f->net[i].name, MOST_RANKS);
    }
    printf("\n");
}

static void print_cost(const forecast *f) {
    static const char *const name[PARTS] = { "pack", "forward, loss", "backward", "optimizer" };
    const step_cost *c = &f->cost;
    printf("\none rank, microseconds of a step: ");
    for (int i = 0; i < PARTS; ++i)
        printf("%s%s %.1f + %.1f a lane group", i ? "; " : "", name[i], c->of[i].each * 1e6,
               c->of[i].group * 1e6);
    printf("\n%d images are %d lane groups: %.3f ms. The gradient: %.0f bytes, of which %.0f are "
           "final when %.0f %% of backward has passed\n",
           f->d.batch, f->groups, one_rank(c, f->groups) * 1e3, c->gradient, c->bytes[0],
           100.0 * c->final[0]);
    printf("%s: %.2f us a message + %.3f ns a byte sent + %.3f ns a byte added\n", f->net[0].name,
           f->net[0].alpha * 1e6, f->net[0].beta * 1e9, f->net[0].gamma * 1e9);
}

static void print_forecasts(const forecast *f) {
    char what[200];
    print_cost(f);
    snprintf(what, sizeof what, "Strong scaling: %d images a step over P ranks, speed over one's",
             f->d.batch);
    print_forecast(f, STRONG, what);
    snprintf(what, sizeof what,
             "The same at best: one sum, or buckets of %d KiB on their way during backward",
             f->d.bucket / 1024);
    print_forecast(f, OVERLAP, what);
    snprintf(what, sizeof what, "Weak scaling: %d images a step for each rank", f->d.batch);
    print_forecast(f, WEAK, what);
    print_forecast(f, RATIO, "Tsync/Tcomp of that");
    print_condition(f);
    snprintf(what, sizeof what, "Local SGD: %d/P images a step, an average every %d steps",
             f->d.batch, f->d.every);
    print_forecast(f, LOCAL, what);
}

// ---- The pictures: P = 1 to 16, then two to an octave.

enum { CURVE_POINTS = 28 };

static int curve_ranks(int i) {
    return i < 16 ? i + 1 : (i % 2 == 0 ? 24 : 32) << ((i - 16) / 2);
}

static void forecast_line(dt_chart *chart, const forecast *f, forecast_kind kind, int i,
                          const char *label, dt_line_style style) {
    double x[CURVE_POINTS], y[CURVE_POINTS];
    for (int k = 0; k < CURVE_POINTS; ++k) {
        x[k] = curve_ranks(k);
        y[k] = i < 0 ? amdahl(&f->cost, f->groups, (int)x[k])
                     : forecast_at(f, kind, &f->net[i], (int)x[k]);
    }
    dt_chart_line(chart, &(dt_series){ .label = label,
                                       .n = CURVE_POINTS,
                                       .x = x,
                                       .y = y,
                                       .style = style,
                                       .colour = i < 0 ? 8 : i + 1 });
}

static dt_chart *forecast_chart(const forecast *f, const char *title, const char *subtitle) {
    dt_chart *chart = dt_chart_new(&(dt_chart_desc){ .title = title,
                                                     .subtitle = subtitle,
                                                     .caption = f->data,
                                                     .machine = true,
                                                     .x_label = "ranks, each on a core of its own",
                                                     .y_label = "images/s over one rank's",
                                                     .x_scale = DT_LOG2,
                                                     .y_scale = DT_LOG10 });
    dt_chart_reference(chart, &(dt_reference){ .label = "one rank; below: Tsync/Tcomp > P - 1",
                                               .offset = 1.0 });
    return chart;
}

// The number of ranks with the highest speed, among those of the curve.
static int best_ranks(const forecast *f, forecast_kind kind, int i) {
    int best = 1;
    for (int k = 0; k < CURVE_POINTS; ++k)
        if (forecast_at(f, kind, &f->net[i], curve_ranks(k)) >
            1.001 * forecast_at(f, kind, &f->net[i], best))
            best = curve_ranks(k);
    return best;
}

static void draw_strong(dt_comm *comm, const forecast *f, const char *stem) {
    char title[600], subtitle[600];
    const int slow = best_ranks(f, STRONG, 1), fast = best_ranks(f, STRONG, NETWORKS - 1);
    say_strong(f->d.batch, f->net[1].name, slow, forecast_at(f, STRONG, &f->net[1], slow),
               f->net[NETWORKS - 1].name, fast,
               forecast_at(f, STRONG, &f->net[NETWORKS - 1], fast), title, sizeof title);
    snprintf(subtitle, sizeof subtitle,
             "%d lane groups of 16 images, %.3f ms on one rank; %.0f bytes of gradient. Dashed: "
             "buckets of %d KiB that travel during backward, at best. Not measured beyond this "
             "machine's cores.",
             f->groups, one_rank(&f->cost, f->groups) * 1e3, f->cost.gradient,
             f->d.bucket / 1024);
    dt_chart *chart = forecast_chart(f, title, subtitle);
    forecast_line(chart, f, STRONG, -1, "Amdahl", DT_LINE_PLAIN);
    for (int i = 0; i < NETWORKS; ++i) {
        forecast_line(chart, f, STRONG, i, f->net[i].name, DT_LINE_AUTO);
        forecast_line(chart, f, OVERLAP, i, NULL, DT_LINE_DASHED);
    }
    save_picture(comm, chart, "drawn in ", "%s_strong.png", stem);
}

static void draw_weak(dt_comm *comm, const forecast *f, const char *stem) {
    char title[600], subtitle[600];
    say_weak(f->d.batch, MOST_RANKS, f->net[1].name, forecast_at(f, WEAK, &f->net[1], MOST_RANKS),
             f->net[NETWORKS - 1].name, forecast_at(f, WEAK, &f->net[NETWORKS - 1], MOST_RANKS),
             title, sizeof title);
    snprintf(subtitle, sizeof subtitle,
             "%.3f ms of computing a step, %.0f bytes of gradient. Dashed: local SGD, %d/P images "
             "a step, an average every %d steps. Not measured beyond this machine's cores.",
             one_rank(&f->cost, f->groups) * 1e3, f->cost.gradient, f->d.batch, f->d.every);
    dt_chart *chart = forecast_chart(f, title, subtitle);
    dt_chart_reference(chart, &(dt_reference){ .label = "P times", .slope = 1.0 });
    for (int i = 0; i < NETWORKS; ++i) {
        forecast_line(chart, f, WEAK, i, f->net[i].name, DT_LINE_AUTO);
        forecast_line(chart, f, LOCAL, i, NULL, DT_LINE_DASHED);
    }
    save_picture(comm, chart, "drawn in ", "%s_weak.png", stem);
}

// ---- Held against training that the fit has not seen: on these ranks, half a second for each way.

static const char check_header[] =
    "network,ranks,cores,hosts,method,way,alpha,beta,gamma,predicted,measured";

typedef struct check_row { const char *method; dt_algorithm way; double predicted; } check_row;

// Seconds a step, the median of five epochs that are as many steps as take a tenth of a second.
static dt_err time_training(dt_comm *comm, dt_net *net, const dt_dataset *data,
                            const forecast_desc *d, const check_row *r, double *seconds) {
    enum { EPOCHS = 5 };
    dt_dataset some = *data;
    dt_train_result result;
    const uint32_t most = data->count / (uint32_t)d->batch;
    uint32_t steps = (uint32_t)fmin(fmax(0.1 / r->predicted, 4.0), 2000.0);
    DT_TRY(dt_broadcast(comm, &steps, sizeof steps, 0));
    steps = steps < most ? steps : most;
    if (strcmp(r->method, "sync") != 0) { // whole intervals
        steps = (steps + (uint32_t)d->every - 1) / (uint32_t)d->every * (uint32_t)d->every;
        steps = steps < most ? steps : most / (uint32_t)d->every * (uint32_t)d->every;
    }
    some.count = steps * (uint32_t)d->batch, some.block = NULL;
    const dt_train_desc train = { .data = &some,
                                  .epochs = EPOCHS,
                                  .batch = (uint32_t)d->batch,
                                  .algorithm = r->way,
                                  .average_every = (uint32_t)d->every };
    const bool sync = strcmp(r->method, "sync") == 0;
    if (steps == 0)
        return dt_fail(DT_EARG, "forecast: %u images are fewer than a batch, or than the steps "
                       "between two averages need", (unsigned)data->count);
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f });
    if (!opt) return DT_EARG;
    dt_err error = dt_broadcast_parameters(net, comm); // rank 0 has trained alone
    if (error == DT_OK)
        error = (sync ? dt_train_sync : dt_train_psgd)(net, opt, comm, &train, &result);
    dt_optimizer_free(opt);
    DT_TRY(error);
    sort_numbers(result.epoch_seconds, EPOCHS);
    *seconds = result.epoch_seconds[EPOCHS / 2] / steps;
    return DT_OK;
}

static dt_err check_forecast(dt_comm *comm, const forecast *f, dt_net *net,
                             const dt_dataset *data) {
    const int p = dt_comm_size(comm), cores = dt_cores();
    const network *here = &f->net[0];
    if (dt_comm_rank(comm) == 0)
        printf("\n%s, %d ranks on %d cores: milliseconds a step\n%-6s %-9s %10s %9s\n", here->name,
               p, cores, "method", "way", "predicted", "measured");
    for (int k = 0; k < 6; ++k) {
        const double work = computing(&f->cost, f->groups, p, cores);
        const double sync = sync_by(message_ways[k % 3], here, p, f->cost.gradient);
        const check_row r = { k < 3 ? "sync" : "local", message_ways[k % 3],
                              k < 3 ? work + sync : work + sync / f->d.every };
        double measured = 0.0;
        end_if_asked(comm);
        DT_TRY(time_training(comm, net, data, &f->d, &r, &measured));
        if (dt_comm_rank(comm) > 0) continue;
        printf("%-6s %-9s %10.3f %9.3f  %+5.1f %%\n", r.method, dt_algorithm_name(r.way),
               r.predicted * 1e3, measured * 1e3, 100.0 * (r.predicted / measured - 1.0));
        if (f->d.csv)
            DT_TRY(dt_csv_append(f->d.csv, check_header, "%s,%d,%d,%d,%s,%s,%g,%g,%g,%g,%g",
                                 here->name, p, cores, dt_comm_hosts(comm), r.method,
                                 dt_algorithm_name(r.way), here->alpha, here->beta, here->gamma,
                                 r.predicted, measured));
    }
    return DT_OK;
}

// ---- Those rows as a picture: what was measured, and what had been predicted.

enum { CHECK_FIELDS = 11, CHECK_ROWS = 500, CHECK_NETWORKS = 8 };

typedef struct check_points {
    int n, within, networks;       // within: at most 15 % off
    double predicted[CHECK_ROWS], measured[CHECK_ROWS], off[CHECK_ROWS];
    int of[CHECK_ROWS];            // which network
    char name[CHECK_NETWORKS][48];
} check_points;

static dt_err add_check(check_points *c, char *line, const char *path, int number) {
    static const int which[2] = { 9, 10 };
    char *field[CHECK_FIELDS];
    double v[2];
    if (c->n == CHECK_ROWS) return dt_fail(DT_EDATA, "%s: more than %d rows", path, CHECK_ROWS);
    if (!split(line, field, CHECK_FIELDS) || !numbers_in(field, which, 2, v) || !(v[0] > 0.0) ||
        !(v[1] > 0.0))
        return dt_fail(DT_EDATA, "%s: line %d is not a row of ch12 --forecast", path, number);
    int k = 0;
    while (k < c->networks && strncmp(c->name[k], field[0], sizeof c->name[k] - 1) != 0) ++k;
    if (k == CHECK_NETWORKS)
        return dt_fail(DT_EDATA, "%s: more than %d networks", path, CHECK_NETWORKS);
    if (k == c->networks) snprintf(c->name[c->networks++], sizeof c->name[0], "%.47s", field[0]);
    c->of[c->n] = k, c->predicted[c->n] = v[0], c->measured[c->n] = v[1];
    c->off[c->n] = fabs(v[0] / v[1] - 1.0);
    c->within += c->off[c->n++] <= 0.15;
    return DT_OK;
}

static dt_err read_checks(check_points *c, const char *path) {
    char line[512];
    int number = 1;
    FILE *file = fopen(path, "r");
    if (!file) return dt_fail(DT_EIO, "%s: cannot be opened", path);
    bool good = fgets(line, sizeof line, file) != NULL;
    if (good) line[strcspn(line, "\r\n")] = '\0';
    dt_err error = good && strcmp(line, check_header) == 0
                       ? DT_OK
                       : dt_fail(DT_EDATA, "%s: not a file of ch12 --forecast --csv", path);
    while (error == DT_OK && fgets(line, sizeof line, file))
        error = add_check(c, line, path, ++number);
    fclose(file);
    return error == DT_OK && c->n == 0 ? dt_fail(DT_EDATA, "%s: no rows", path) : error;
}

static dt_err report_checks(dt_comm *comm, const char *csv, const char *stem) {
    static check_points c;
    static double sorted[CHECK_ROWS], x[CHECK_ROWS], y[CHECK_ROWS];
    char title[200] = "";
    DT_TRY(read_checks(&c, csv));
    memcpy(sorted, c.off, sizeof sorted);
    sort_numbers(sorted, (size_t)c.n);
    say(title, sizeof title,
        "%d of %d forecasts of a step's time are within 15 %%; the median is off by %.0f %%, the "
        "worst by %.0f %%",
        c.within, c.n, 100.0 * sorted[c.n / 2], 100.0 * sorted[c.n - 1]);
    printf("%s\n", title);
    dt_chart *chart = dt_chart_new(&(dt_chart_desc){
        .title = title,
        .subtitle = "Training on networks of which the model knew sums of vectors alone. Each "
                    "point: one way of the all-reduce on 2, 3 or 4 ranks, in each step, or every "
                    "16 steps (local SGD).",
        .machine = true,
        .x_label = "measured, a step",
        .y_label = "predicted",
        .x_scale = DT_LOG10,
        .y_scale = DT_LOG10,
        .x_format = DT_TICKS_SECONDS,
        .y_format = DT_TICKS_SECONDS });
    dt_chart_reference(chart, &(dt_reference){ .label = "as predicted", .slope = 1.0 });
    for (int k = 0; k < c.networks; ++k) {
        size_t n = 0;
        for (int i = 0; i < c.n; ++i)
            if (c.of[i] == k) x[n] = c.measured[i], y[n++] = c.predicted[i];
        dt_chart_line(chart, &(dt_series){ .label = c.name[k],
                                           .n = n,
                                           .x = x,
                                           .y = y,
                                           .style = DT_LINE_POINTS,
                                           .colour = k + 1 });
    }
    save_picture(comm, chart, "drawn in ", "%s_check.png", stem);
    return DT_OK;
}

// ---- One rank's way through all of it.

typedef struct forecast_job {
    const forecast_desc *d;
    const dt_dataset *data;
} forecast_job;

// Rank 0 measures a step while the others sleep; messages are measured by all.
static dt_err measure_forecast(dt_comm *comm, dt_net *net, dt_optimizer *opt,
                               const dt_dataset *data, forecast *f) {
    dt_err error = DT_OK;
    if (dt_comm_rank(comm) == 0) error = measure_step(comm, net, opt, data, &f->d, &f->cost);
    DT_TRY(error);
    DT_TRY(dt_broadcast(comm, &f->cost, sizeof f->cost, 0));
    DT_TRY(measure_network(comm, f->cost.gradient, &f->net[0]));
    for (int i = 1; i < NETWORKS; ++i)
        f->net[i] = given_networks[i - 1], f->net[i].gamma = f->net[0].gamma;
    const char *kind = strcmp(dt_comm_backend_name(comm), "threads") == 0 ? "threads" : "one host";
    snprintf(f->net[0].name, sizeof f->net[0].name, "%s",
             f->d.network                ? f->d.network
             : dt_comm_hosts(comm) > 1 ? "these hosts"
                                         : kind);
    return DT_OK;
}

static dt_err forecast_net(dt_comm *comm, dt_net *net, const forecast_job *j) {
    static forecast shared; // of rank 0, which alone prints it
    forecast *f = dt_comm_rank(comm) == 0 ? &shared : memory(sizeof *f);
    *f = (forecast){ .d = *j->d, .groups = (j->d->batch + DT_LANES - 1) / DT_LANES };
    snprintf(f->data, sizeof f->data, "%s ", j->data->name);
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f });
    dt_err error = opt ? measure_forecast(comm, net, opt, j->data, f) : DT_EARG;
    const bool shows = dt_comm_rank(comm) == 0 && !f->d.quiet;
    if (error == DT_OK && shows) print_forecasts(f);
    if (error == DT_OK) error = check_forecast(comm, f, net, j->data);
    if (error == DT_OK && shows) {
        draw_strong(comm, f, f->d.png);
        draw_weak(comm, f, f->d.png);
    }
    dt_optimizer_free(opt);
    if (f != &shared) free(f);
    return error;
}

static dt_err forecast_rank(dt_comm *comm, void *arg) {
    const forecast_job *j = arg;
    dt_net *net = mnist_net(j->data->classes);
    dt_err error = dt_net_build(net, &(dt_build_desc){ .batch = j->d->batch,
                                                       .seed = 1234,
                                                       .float_sums = j->d->float_sums,
                                                       .direct = j->d->direct });
    if (error == DT_OK) error = forecast_net(comm, net, j);
    dt_net_free(net);
    return error;
}
#endif
