// Chapter 7's surroundings: the sizes and ways that are measured, the least-squares fit, the table,
// the pictures.
#ifndef CH07_REPORT_H
#define CH07_REPORT_H

#include "ch07_fit.h"
#include "ranks.h"

// ---- What is measured, and what comes out.

enum { SIZES = 12, WAYS = 7, MODELLED = 5, ROUNDS = 7, CURVE = 61 };

typedef struct results {
    int p, sizes, ways;                            // ways: without shared memory on several hosts
    double bytes[SIZES], u[3];                     // u: start-up, a byte sent, a byte added
    trials t[WAYS][SIZES];
    double model[WAYS][SIZES], curve[WAYS][CURVE]; // the fitted model's, at the sizes and between
} results;

static const dt_algorithm ways[WAYS] = { DT_NAIVE,   DT_TREE, DT_RING,  DT_DOUBLING,
                                         DT_HALVING, DT_MPI,  DT_SHARED };

static const char *size_text(double bytes, char text[16]) {
    if (bytes < 1024) snprintf(text, 16, "%.0f B", bytes);
    else if (bytes < 1048576) snprintf(text, 16, "%.0f KiB", bytes / 1024);
    else snprintf(text, 16, "%.0f MiB", bytes / 1048576);
    return text;
}

// ---- What the chapter writes out, and hands in.

typedef struct written_out {
    void (*add)(float *y, const float *x, size_t n);                                      // 7.3
    // 7.4
    dt_err (*time)(dt_comm *comm, dt_algorithm way, float *x, size_t n, int rounds, trials *t);
    void (*cost)(dt_algorithm way, int p, double n, double c[3]);                         // 7.5
} written_out;

// ---- All sizes by all ways, then the fit.

static double model(const written_out *hand, const results *r, dt_algorithm way, double bytes) {
    double c[3] = { 0.0, 0.0, 0.0 };
    hand->cost(way, r->p, bytes, c);
    return c[0] * r->u[0] + c[1] * r->u[1] + c[2] * r->u[2];
}

static double curve_bytes(const results *r, int i) { // evenly apart on a log axis
    return r->bytes[0] * pow(r->bytes[r->sizes - 1] / r->bytes[0], i / (CURVE - 1.0));
}

static void apply_model(const written_out *hand, results *r) {
    for (int w = 0; w < MODELLED; ++w) {
        for (int k = 0; k < r->sizes; ++k) r->model[w][k] = model(hand, r, ways[w], r->bytes[k]);
        for (int i = 0; i < CURVE; ++i)
            r->curve[w][i] = model(hand, r, ways[w], curve_bytes(r, i));
    }
}

static dt_err measure(dt_comm *comm, const written_out *hand, bool quick, results *r) {
    float *x = memory((4u << 20) * sizeof *x), *y = memory((4u << 20) * sizeof *y);
    fit_row rows[6 * SIZES];
    int count = 0;
    dt_err error = DT_OK;
    r->p = dt_comm_size(comm), r->sizes = quick ? 6 : SIZES;
    r->ways = dt_comm_hosts(comm) > 1 ? WAYS - 1 : WAYS;
    for (int k = 0; k < r->sizes && error == DT_OK; ++k) {
        const size_t n = (size_t)1 << 2 * k;
        double seconds[ROUNDS];
        end_if_asked(comm);
        r->bytes[k] = (double)n * sizeof *x;
        for (int w = 0; w < r->ways && error == DT_OK; ++w) {
            fit_row *m = &rows[count];
            error = hand->time(comm, ways[w], x, n, quick ? 3 : ROUNDS, &r->t[w][k]);
            m->t = r->t[w][k].median;
            if (w < MODELLED) hand->cost(ways[w], r->p, r->bytes[k], rows[count++].c);
        }
        for (int i = 0; i < ROUNDS && n >= 1024; ++i) { // adding, without anybody else
            const double start = dt_now();
            for (size_t again = 0; again <= 65536 / n; ++again) hand->add(y, x, n);
            seconds[i] = (dt_now() - start) / (double)(65536 / n + 1);
        }
        if (n >= 1024)
            rows[count++] = (fit_row){ { 0.0, 0.0, r->bytes[k] },
                                       trials_of(seconds, ROUNDS).median };
    }
    if (error == DT_OK) fit(rows, count, r->u), apply_model(hand, r);
    free(x), free(y);
    return error;
}

// ---- The table and the pictures.

static void print_table(const results *r) {
    double off[MODELLED * SIZES];
    char text[16];
    printf("\nmicroseconds, median of the slowest rank's\n%-9s", "");
    for (int w = 0; w < r->ways; ++w) printf("%10s", dt_algorithm_name(ways[w]));
    for (int k = 0; k < r->sizes; ++k) {
        printf("\n%-9s", size_text(r->bytes[k], text));
        for (int w = 0; w < r->ways; ++w) {
            printf("%10.1f", r->t[w][k].median * 1e6);
            const double ratio = w < MODELLED ? r->model[w][k] / r->t[w][k].median : 1.0;
            if (w < MODELLED) off[MODELLED * k + w] = fmax(ratio, 1.0 / ratio);
        }
    }
    printf("\n\nstart-up %.2f us a message, %.3f ns a byte sent, %.3f ns a byte added; half of the "
           "points within a factor %.2f\n",
           r->u[0] * 1e6, r->u[1] * 1e9, r->u[2] * 1e9,
           trials_of(off, (size_t)(MODELLED * r->sizes)).median);
}

// A picture's frame; about: what is measured.
static dt_chart *time_chart(const char *title, const char *about, const results *r) {
    char subtitle[400];
    snprintf(subtitle, sizeof subtitle, "Float sums on %d ranks, %d core%s. %s%s", r->p, dt_cores(),
             dt_cores() == 1 ? "" : "s", about,
             r->p > dt_cores() ? " More ranks than cores: they take turns." : "");
    return dt_chart_new(&(dt_chart_desc){ .title = title,
                                          .subtitle = subtitle,
                                          .caption = "No data set: vectors of zeros. ",
                                          .machine = true,
                                          .x_label = "vector (bytes)",
                                          .y_label = "time of one all-reduce",
                                          .x_scale = DT_LOG2,
                                          .y_scale = DT_LOG10,
                                          .x_format = DT_TICKS_BYTES,
                                          .y_format = DT_TICKS_SECONDS });
}

// One way's times; whether as points alone, or as a line with the least and the most.
static void draw_way(dt_chart *c, const results *r, int w, const char *label, bool points) {
    double median[SIZES], least[SIZES], most[SIZES];
    for (int k = 0; k < r->sizes; ++k)
        median[k] = r->t[w][k].median, least[k] = r->t[w][k].least, most[k] = r->t[w][k].most;
    dt_chart_line(c, &(dt_series){ .label = label,
                                   .n = (size_t)r->sizes,
                                   .x = r->bytes,
                                   .y = median,
                                   .y_min = points ? NULL : least,
                                   .y_max = points ? NULL : most,
                                   .style = points ? DT_LINE_POINTS : DT_LINE_AUTO,
                                   .colour = w + 1 });
}

// Whether the model knows no difference between two ways (on two ranks it often does not).
static bool alike(const results *r, int v, int w) {
    return memcmp(r->model[v], r->model[w], (size_t)r->sizes * sizeof r->model[v][0]) == 0;
}

// The ways made of messages, as points on the model's lines; of ways that send the same, the first.
static void draw_messages(dt_comm *comm, const results *r, const char *title, const char *name) {
    char about[240];
    double x[CURVE];
    snprintf(about, sizeof about,
             "Points: median of %d. Dashed: the fitted model, %.2f us a message + %.3f ns a byte "
             "sent + %.3f ns a byte added.",
             ROUNDS, r->u[0] * 1e6, r->u[1] * 1e9, r->u[2] * 1e9);
    dt_chart *c = time_chart(title, about, r);
    for (int i = 0; i < CURVE; ++i) x[i] = curve_bytes(r, i);
    for (int w = 0; w < MODELLED; ++w) {
        char label[40] = "";
        bool first = true;
        for (int v = 0; v < MODELLED; ++v) {
            if (!alike(r, v, w)) continue;
            first = first && v >= w;
            say(label, sizeof label, "%s%s", *label ? ", " : "", dt_algorithm_name(ways[v]));
        }
        if (!first) continue;
        draw_way(c, r, w, label, true);
        dt_chart_line(c, &(dt_series){ .n = CURVE, .x = x, .y = r->curve[w],
                                       .style = DT_LINE_DASHED, .colour = w + 1 });
    }
    save_picture(comm, c, "drawn in ", "%s_messages.png", name);
}

// The best of those for long vectors, beside MPI's own and the one through shared memory.
static void draw_shared(dt_comm *comm, const results *r, int best, const char *title,
                        const char *name) {
    char about[80];
    snprintf(about, sizeof about, "Median of %d, with the least and the most.", ROUNDS);
    dt_chart *c = time_chart(title, about, r);
    draw_way(c, r, best, dt_algorithm_name(ways[best]), false);
    for (int w = MODELLED; w < r->ways; ++w) draw_way(c, r, w, dt_algorithm_name(ways[w]), false);
    save_picture(comm, c, "drawn in ", "%s_shared.png", name);
}

#endif
