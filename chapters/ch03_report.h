// Chapter 3's measured speeds: the table and the picture.
#ifndef CH03_REPORT_H
#define CH03_REPORT_H

#include "chapter.h"

enum { LAYERS = 4, MOST_RUNS = 31 };

// In GFLOP/s: the layers by hand, then the same layers by the header. conv2 is layer 1.
typedef struct speeds {
    const char *const *layer;
    double median[2 * LAYERS], low[2 * LAYERS], high[2 * LAYERS], peak;
} speeds;

static void print_speeds(const speeds *s) {
    printf("peak    %6.1f GFLOP/s: fused multiply-adds in registers (kernels: %s)\n", s->peak,
           dt_kernel_name());
    for (int i = 0; i < LAYERS; ++i)
        printf("%-5s   %6.2f GFLOP/s by hand   %6.1f GFLOP/s by the header\n", s->layer[i],
               s->median[i], s->median[LAYERS + i]);
}

static void draw_speeds(const speeds *s, const char *folder, const char *data, int images) {
    char title[200], caption[100], label[60];
    snprintf(title, sizeof title,
             "In conv2, seven loops reach %.1f %% of this core's peak, the header's lanes %.0f %%",
             100.0 * s->median[1] / s->peak, 100.0 * s->median[LAYERS + 1] / s->peak);
    snprintf(caption, sizeof caption, "%s, forward pass of %d images, median with min and max",
             data, images);
    snprintf(label, sizeof label, "fused multiply-adds in registers: %.0f GFLOP/s", s->peak);
    static const char *const labels[] = { "seven loops", "the header" };
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title, .y_label = "GFLOP/s on one core",
                                                 .caption = caption, .machine = true });
    dt_chart_bars(c, &(dt_bars){ .groups = LAYERS,
                                 .series = 2,
                                 .names = s->layer,
                                 .labels = labels,
                                 .y = s->median,
                                 .y_min = s->low,
                                 .y_max = s->high,
                                 .values = true });
    dt_chart_reference(c, &(dt_reference){ .label = label, .offset = s->peak });
    save_picture(NULL, c, "picture  ", "%s/ch03_gflops.png", folder);
}

#endif
