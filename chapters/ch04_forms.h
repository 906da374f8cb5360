// Chapter 4: the header's kernels as steps; all forms of Winograd's algorithm by speed and error.
#ifndef CH04_FORMS_H
#define CH04_FORMS_H

#include "ch04_report.h"

// ---- A convolution by the header: direct [E1.2], or F(m, K) of [E1.8], forward, without bias.

static dt_lane_conv *header;

// Takes the weights in; m is 0 for the direct kernel. Without a shape it only frees.
static void use_form(const shape *s, int m, const float *w) {
    dt_lane_conv_free(header);
    header = s ? dt_lane_conv_new(s->C, s->H, s->W, s->O, s->K, m) : NULL;
    if (s && !header) die(NULL);
    if (s) check(NULL, dt_lane_conv_pack(header, w));
}

static void header_direct(const float *w, const shape *s) { use_form(s, 0, w); }
static void header_winograd(const float *w, const shape *s) { use_form(s, 4, w); }

static void header_kernel(float *y, const float *x, const float *w, const shape *s) {
    (void)w;
    (void)s;
    check(NULL, dt_lane_conv_forward(header, x, y));
}

// ---- Each form's speed, and its error against sums of doubles.

typedef struct form {
    const char *name;
    int m, K;                        // m x m outputs a square, 0: the definition; kernel K x K
    double median, low, high;        // percent of the peak, in the definition's multiply-adds
    double error, largest;           // rms and largest error, in units of the results' rms
} form;

enum { FORMS = 7, OF_3X3 = 4, FORM_SIDE = 24 }; // 24: no form of either kernel wastes a square

static double *exact(const buffers *b, const shape *s) { // in lanes
    const int C = s->C, H = s->H, W = s->W, K = s->K;
    double *y = memory((size_t)(s->O * s->P * s->Q * DT_LANES) * sizeof *y);
    for (int o = 0; o < s->O; ++o)
        for (int i = 0; i < s->P; ++i)
            for (int j = 0; j < s->Q; ++j)
                for (int c = 0; c < C; ++c)
                    for (int k = 0; k < K * K; ++k) {
                        const int at = (c * H + i + k / K) * W + j + k % K;
                        const float *x = b->x_lanes + at * DT_LANES;
                        const double w = (double)b->w[(o * C + c) * K * K + k];
                        double *sum = y + ((o * s->P + i) * s->Q + j) * DT_LANES;
                        for (int l = 0; l < DT_LANES; ++l) sum[l] += w * (double)x[l];
                    }
    return y;
}

static void measure_error(form *f, const float *y, const double *expected, int n) {
    double size = 0.0, error = 0.0;
    f->largest = 0.0;
    for (int i = 0; i < n; ++i) {
        const double d = fabs((double)y[i] - expected[i]);
        size += expected[i] * expected[i];
        error += d * d;
        f->largest = larger(f->largest, d);
    }
    f->error = sqrt(error / size);
    f->largest /= sqrt(size / n);
}

// The forms of one kernel, on one shape; one run of each in turn.
static void measure_forms(form *forms, int count, const shape *s, int runs, double peak) {
    const double flop = 2.0 * s->N * s->O * s->P * s->Q * s->C * s->K * s->K;
    const buffers b = buffers_new(s);
    double *expected = exact(&b, s), speed[FORMS][MOST_RUNS];
    for (int r = 0; r < runs; ++r)
        for (int k = 0; k < count; ++k) {
            use_form(s, forms[k].m, b.w);
            header_kernel(b.y_lanes, b.x_lanes, b.w, s); // the first touches its memory
            if (r == 0)
                measure_error(&forms[k], b.y_lanes, expected, s->N * s->O * s->P * s->Q);
            const double start = now();
            header_kernel(b.y_lanes, b.x_lanes, b.w, s);
            speed[k][r] = 100e-9 * flop / (now() - start) / peak;
        }
    for (int k = 0; k < count; ++k) {
        sort_numbers(speed[k], (size_t)runs);
        forms[k].low = speed[k][0], forms[k].high = speed[k][runs - 1];
        forms[k].median = speed[k][runs / 2];
    }
    free(expected);
    buffers_free(&b);
}

static void draw_forms(const char *folder, const form *forms, int channels, double peak) {
    char title[250], caption[400], names[FORMS][40], label[80];
    const char *said[FORMS];
    double speed[FORMS], error[FORMS];
    for (int k = 0; k < FORMS; ++k) {
        speed[k] = forms[k].median, error[k] = forms[k].error, said[k] = names[k];
        if (forms[k].m) snprintf(names[k], sizeof names[k], "%s", forms[k].name);
        else snprintf(names[k], sizeof names[k], "direct %dx%d", forms[k].K, forms[k].K);
    }
    say_forms(OF_3X3, said, speed, error, title, sizeof title);
    say(title, sizeof title, "; ");
    say_forms(FORMS - OF_3X3, said + OF_3X3, speed + OF_3X3, error + OF_3X3,
              title + strlen(title), sizeof title - strlen(title));
    snprintf(caption, sizeof caption,
             "Forward, 16 images of %d -> %d channels of %d x %d, one core. Speed in multiply-adds "
             "of the definition, processor time, median with min and max. Error against sums of "
             "doubles: left mark rms, right mark largest.", channels, channels, FORM_SIDE,
             FORM_SIDE);
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title, .caption = caption,
        .machine = true, .x_scale = DT_LOG10, .x_label = "error, in units of the results' rms",
        .y_label = "speed, % of the core's peak", .x_min = 1e-7, .x_max = 2e-4 });
    for (int k = 0; k < FORMS; ++k) {
        const form *f = &forms[k];
        dt_chart_line(c, &(dt_series){ .label = names[k], .n = 2,
            .x = (double[]){ f->error, f->largest }, .y = (double[]){ f->median, f->median },
            .y_min = (double[]){ f->low, f->low }, .y_max = (double[]){ f->high, f->high },
            .colour = f->K == 3 ? 1 : 2 });
    }
    snprintf(label, sizeof label, "multiply-adds in registers: %.0f GFLOP/s", peak);
    dt_chart_reference(c, &(dt_reference){ .label = label, .offset = 100.0 });
    save(c, folder, "ch04_forms.png");
}

static int compare_forms(const task *t, double peak) {
    form forms[FORMS] = {
        { .name = "direct", .K = 3 }, { .name = "F(2,3)", .m = 2, .K = 3 },
        { .name = "F(4,3)", .m = 4, .K = 3 }, { .name = "F(6,3)", .m = 6, .K = 3 },
        { .name = "direct", .K = 5 }, { .name = "F(2,5)", .m = 2, .K = 5 },
        { .name = "F(4,5)", .m = 4, .K = 5 } };
    const int C = t->size.C;
    bool right = true;
    for (int k = 0; k < FORMS; ++k) {
        const form *f = &forms[k];
        if (k == 0 || k == OF_3X3) { // the first of its kernel
            const int side = FORM_SIDE + f->K - 1, count = k ? FORMS - OF_3X3 : OF_3X3;
            const shape s = { .N = DT_LANES, .C = C, .H = side, .W = side, .O = C, .K = f->K,
                              .P = FORM_SIDE, .Q = FORM_SIDE };
            measure_forms(forms + k, count, &s, t->runs, peak);
            printf("\n%d x %d, %d -> %d channels of %d x %d\n", f->K, f->K, C, C, s.P, s.Q);
            printf("         %% of peak (min to max)   rms error  largest, in the results' rms\n");
        }
        char range[40];
        snprintf(range, sizeof range, "(%.0f to %.0f)", f->low, f->high);
        printf("%-8s %10.0f %-13s %11.1e %8.1e\n", f->name, f->median, range, f->error, f->largest);
        right = right && f->largest < 1e-3;
    }
    if (!right) puts("MISMATCH  a form errs by a thousandth of the results' rms, or more");
    draw_forms(t->folder, forms, C, peak);
    use_form(NULL, 0, NULL);
    return !right;
}

#endif
