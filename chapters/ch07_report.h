// Chapter 7's surroundings: the sizes and ways that are measured, the least-squares fit, the table, the picture.
#ifndef CH07_REPORT_H
#define CH07_REPORT_H

#include "chapter.h"

// ---- What is measured, and what comes out.

enum { SIZES = 12, WAYS = 7, ROUNDS = 7 };
typedef struct timing { double median, least, most; } timing;

static timing summary(double *seconds, int n) {
    sort_numbers(seconds, (size_t)n);
    return (timing){ seconds[n / 2], seconds[0], seconds[n - 1] };
}

typedef struct results { int p, sizes; double bytes[SIZES]; timing t[WAYS][SIZES]; double u[3]; } results;
static const dt_algorithm ways[WAYS] = { DT_NAIVE, DT_TREE, DT_RING, DT_DOUBLING, DT_HALVING, DT_MPI, DT_SHARED };

static const char *size_text(double bytes, char text[16]) {
    if (bytes < 1024) snprintf(text, 16, "%.0f B", bytes);
    else if (bytes < 1048576) snprintf(text, 16, "%.0f KiB", bytes / 1024);
    else snprintf(text, 16, "%.0f MiB", bytes / 1048576);
    return text;
}

// ---- What the chapter writes out and this file needs.

static void add(float *y, const float *x, size_t n);                                                              // 7.3
static dt_err time_allreduce(dt_comm *comm, dt_algorithm way, float *x, size_t n, int rounds, timing *t);         // 7.4
static void cost(dt_algorithm way, int p, double n, double c[3]);                                                 // 7.5

// ---- The fit: least squares over relative errors.

typedef struct row { double c[3], t; } row; // one measurement: c[0] alpha + c[1] beta + c[2] gamma = t

// Solves the normal equations over the chosen unknowns (bits of mask); the others are 0. Returns the squared error.
static double solve(const row *rows, int count, int mask, double u[3]) {
    double m[3][4] = { { 0 } }, error = 0.0;
    for (int k = 0; k < count; ++k)
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 4; ++j) m[i][j] += rows[k].c[i] / rows[k].t * (j < 3 ? rows[k].c[j] / rows[k].t : 1.0);
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 4; ++j)
            if (!(mask >> i & 1) || (j < 3 && !(mask >> j & 1))) m[i][j] = i == j;
    for (int i = 0; i < 3; ++i) // Gauss and Jordan; the matrix is positive definite
        for (int k = 0; k < 3; ++k) {
            const double f = k == i ? 0.0 : m[k][i] / m[i][i];
            for (int j = i; j < 4; ++j) m[k][j] -= f * m[i][j];
        }
    for (int i = 0; i < 3; ++i) u[i] = mask >> i & 1 ? m[i][3] / m[i][i] : 0.0;
    for (int k = 0; k < count; ++k) {
        const double e = (rows[k].c[0] * u[0] + rows[k].c[1] * u[1] + rows[k].c[2] * u[2]) / rows[k].t - 1.0;
        error += e * e;
    }
    return error;
}

// No cost is negative: of the solutions over every choice of unknowns, the best without a negative number.
static void fit(const row *rows, int count, double u[3]) {
    double best = INFINITY, v[3];
    for (int mask = 1; mask < 8; ++mask) {
        const double error = solve(rows, count, mask, v);
        if (error < best && v[0] >= 0.0 && v[1] >= 0.0 && v[2] >= 0.0) best = error, memcpy(u, v, sizeof v);
    }
}

// ---- All sizes by all ways, then the fit.

static dt_err measure(dt_comm *comm, bool quick, results *r) {
    float *x = memory((4u << 20) * sizeof *x), *y = memory((4u << 20) * sizeof *y);
    row rows[6 * SIZES];
    int count = 0;
    dt_err error = DT_OK;
    r->p = dt_comm_size(comm), r->sizes = quick ? 6 : SIZES;
    for (int k = 0; k < r->sizes && error == DT_OK; ++k) {
        const size_t n = (size_t)1 << 2 * k;
        double seconds[ROUNDS];
        end_if_asked(comm);
        r->bytes[k] = (double)n * sizeof *x;
        for (int w = 0; w < WAYS && error == DT_OK; ++w) {
            row *m = &rows[count];
            error = time_allreduce(comm, ways[w], x, n, quick ? 3 : ROUNDS, &r->t[w][k]);
            m->t = r->t[w][k].median;
            if (ways[w] < DT_MPI) cost(ways[w], r->p, r->bytes[k], rows[count++].c);
        }
        for (int i = 0; i < ROUNDS && n >= 1024; ++i) { // adding, without anybody else
            const double start = dt_now();
            for (size_t again = 0; again <= 65536 / n; ++again) add(y, x, n);
            seconds[i] = (dt_now() - start) / (double)(65536 / n + 1);
        }
        if (n >= 1024) rows[count++] = (row){ { 0.0, 0.0, r->bytes[k] }, summary(seconds, ROUNDS).median };
    }
    if (error == DT_OK) fit(rows, count, r->u);
    free(x), free(y);
    return error;
}

// ---- The table and the picture.

static double model(const results *r, dt_algorithm way, double bytes) {
    double c[3] = { 0.0, 0.0, 0.0 };
    cost(way, r->p, bytes, c);
    return c[0] * r->u[0] + c[1] * r->u[1] + c[2] * r->u[2];
}

static void print_table(const results *r) {
    double off[5 * SIZES];
    char text[16];
    printf("\nmicroseconds, median of the slowest rank's\n%-9s", "");
    for (int w = 0; w < WAYS; ++w) printf("%10s", dt_algorithm_name(ways[w]));
    for (int k = 0; k < r->sizes; ++k) {
        printf("\n%-9s", size_text(r->bytes[k], text));
        for (int w = 0; w < WAYS; ++w) {
            printf("%10.1f", r->t[w][k].median * 1e6);
            if (w < 5) off[5 * k + w] = fmax(model(r, ways[w], r->bytes[k]) / r->t[w][k].median, r->t[w][k].median / model(r, ways[w], r->bytes[k]));
        }
    }
    printf("\n\nstart-up %.2f us a message, %.3f ns a byte sent, %.3f ns a byte added; half of the points within a factor %.2f\n",
           r->u[0] * 1e6, r->u[1] * 1e9, r->u[2] * 1e9, summary(off, 5 * r->sizes).median);
}

static void draw(dt_comm *comm, const results *r, const char *title, const char *png) {
    char subtitle[1200];
    double x[61], y[61], median[SIZES], least[SIZES], most[SIZES];
    snprintf(subtitle, sizeof subtitle, "Float sums on %d ranks, %d core%s. Points: median of %d, with the least and the most. Dashed: the "
             "fitted model, %.2f us a message + %.3f ns a byte sent + %.3f ns a byte added.%s", r->p, dt_cores(), dt_cores() == 1 ? "" : "s",
             ROUNDS, r->u[0] * 1e6, r->u[1] * 1e9, r->u[2] * 1e9, r->p > dt_cores() ? " More ranks than cores: they take turns." : "");
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title, .subtitle = subtitle, .caption = "No data set: vectors of zeros. ",
        .machine = true, .x_label = "vector (bytes)", .y_label = "time of one all-reduce", .x_scale = DT_LOG2, .y_scale = DT_LOG10,
        .x_format = DT_TICKS_BYTES, .y_format = DT_TICKS_SECONDS });
    for (int w = 0; w < WAYS; ++w) {
        for (int k = 0; k < r->sizes; ++k) median[k] = r->t[w][k].median, least[k] = r->t[w][k].least, most[k] = r->t[w][k].most;
        dt_chart_line(c, &(dt_series){ .label = dt_algorithm_name(ways[w]), .n = (size_t)r->sizes, .x = r->bytes, .y = median,
                                       .y_min = least, .y_max = most, .style = w < 5 ? DT_LINE_POINTS : DT_LINE_AUTO, .colour = w + 1 });
        for (int i = 0; i < 61 && w < 5; ++i) {
            x[i] = r->bytes[0] * pow(r->bytes[r->sizes - 1] / r->bytes[0], i / 60.0);
            y[i] = model(r, ways[w], x[i]);
        }
        if (w < 5) dt_chart_line(c, &(dt_series){ .n = 61, .x = x, .y = y, .style = DT_LINE_DASHED, .colour = w + 1 });
    }
    save_picture(comm, c, "drawn in ", "%s", png);
}

#endif
