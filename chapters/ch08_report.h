// Chapter 8's report: the table of exact and of float sums, and the picture of what was reached.
#ifndef CH08_REPORT_H
#define CH08_REPORT_H

#include "chapter.h"

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

// ---- Test accuracy after so many images, as a training went on.

enum { POINTS = 24 };
typedef struct curve { int n; double seen[POINTS], accuracy[POINTS]; } curve;

static void curve_add(curve *c, double seen, double accuracy) {
    if (c->n == POINTS) return;
    c->seen[c->n] = seen;
    c->accuracy[c->n++] = accuracy;
}

static double curve_end(const curve *c) { return c->n ? c->accuracy[c->n - 1] : 0.0; }

static bool same_curve(const curve *a, const curve *b) {
    const size_t bytes = (size_t)a->n * sizeof *a->seen;
    return a->n == b->n && memcmp(a->seen, b->seen, bytes) == 0 &&
           memcmp(a->accuracy, b->accuracy, bytes) == 0;
}

// The first four with exact sums, for P = 1, 2, 3, 4; two more for P = 2 and 4 that lost the sum.
static void draw_curves(dt_comm *comm, const curve curves[6], const char *settings,
                        const dt_dataset *train, uint32_t tested, const char *png) {
    static const char *const name[6] = { "P = 1", "P = 2", "P = 3", "P = 4", "sum lost, P = 2",
                                         "sum lost, P = 4" };
    char title[200], caption[480], subtitle[240];
    double low = 1.0, high = 0.0;
    bool one = true;
    for (int i = 0; i < 4; ++i) {
        low = fmin(low, curve_end(&curves[i])), high = fmax(high, curve_end(&curves[i]));
        one = one && same_curve(&curves[0], &curves[i]);
    }
    say_one_curve(one, low, high, curve_end(&curves[5]), title, sizeof title);
    snprintf(subtitle, sizeof subtitle, "Test accuracy after so many training images; %s",
             settings);
    snprintf(caption, sizeof caption, "%s, %u training and %u test images. ", train->name,
             train->count, tested);
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
    save_picture(comm, c, "drawn in ", "%s", png);
}

#endif
