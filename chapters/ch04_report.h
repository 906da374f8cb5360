// Chapter 4's surroundings: sizes and buffers, the clock, the median of several runs, the table,
// two charts.
#ifndef CH04_REPORT_H
#define CH04_REPORT_H

#include "chapter.h"

#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

// ---- What is convolved, and a program that does it.

// P = H-K+1 rows and Q = W-K+1 columns come out
typedef struct shape { int N, C, H, W, O, K, P, Q; } shape;
typedef void conv_step(float *y, const float *x, const float *w, const shape *s);
typedef void conv_pack(const float *w, const shape *s);

typedef struct step {
    const char *name;
    conv_step *run;
    // of the weights, before the clock starts; or NULL
    conv_pack *pack;
    bool lanes;                                            // [C][H][W][16] instead of [N][C][H][W]
    int width;                                             // lanes of a multiply-add
    // a turn: multiply-adds, all arithmetic; what is moved
    double madds, arithmetic, loads, weights, stores;
    // of the definition's multiply-adds, each; 0 means 1
    double stands_for;
    // sums that do not wait for each other; bytes
    double chains, l2, far;
    double intensity, median, low, high;                   // flop per byte moved; GFLOP/s
    char stop[60];                                         // the lowest ceilings
} step;

enum { OWN = 6, STEPS = OWN + 2, MOST_RUNS = 31 };       // the chapter's, and with the header's

static void add_word(char *list, size_t size, const char *word) {
    const size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n ? ", " : "", word);
}

// ---- The command line.

typedef struct task { shape size; int runs; bool quick; const char *folder; } task;

static task read_task(int argc, char **argv, dt_comm *comm) {
    task t = { .folder = "out" };
    int channels = 0;
    const option_desc options[] = {
        { "channels", UP_TO(960), &channels, "C   a multiple of 48; default 96, with --quick 48" },
        { "runs", UP_TO(MOST_RUNS), &t.runs,
          "N   of which the median counts; default 9, --quick 3" },
        FIGURES_OPTION(&t.folder),
        QUICK_OPTION(&t.quick),
    };
    read_options(argc, argv, comm, "Chapter 4: one convolution, six times.", options,
                 sizeof options / sizeof *options);
    if (channels % 48) usage_error(comm, "ch04", "--channels: a multiple of 48 is needed");
    if (!channels) channels = t.quick ? 48 : 96;
    if (!t.runs) t.runs = t.quick ? 3 : 9;
    t.size = (shape){
        .N = DT_LANES, .C = channels, .H = 30, .W = 30, .O = channels, .K = 3, .P = 28, .Q = 28
    };
    check_output(comm, "%s/ch04_ladder.png", t.folder);
    check_output(comm, "%s/ch04_forms.png", t.folder);
    print_machine(comm, NULL, 1);
    printf("16 images of %d x 30 x 30 -> %d x 28 x 28, kernel 3 x 3: %.0f multiply-adds\n",
           channels, channels, 16.0 * channels * 28 * 28 * channels * 9);
    return t;
}

// ---- Memory and time. The clock is processor time: neighbours on the machine disturb it less than
// ---- the time on the wall.

static double now(void) { return (double)clock() / CLOCKS_PER_SEC; }

static float *floats(size_t n) {
    float *p = aligned_alloc(64, (n * sizeof *p + 63) / 64 * 64);
    if (!p) { fprintf(stderr, "no memory for %zu floats\n", n); exit(1); }
    for (size_t i = 0; i < n; ++i) p[i] = 0.0f;
    return p;
}

// [N][planes] to [planes][16], or back.
static void lanes_of(float *to, const float *from, int planes, bool back) {
    for (int n = 0; n < DT_LANES; ++n)
        for (int k = 0; k < planes; ++k)
            if (back) to[n * planes + k] = from[k * DT_LANES + n];
            else to[k * DT_LANES + n] = from[n * planes + k];
}

typedef struct buffers { float *x, *x_lanes, *w, *y, *y_lanes, *expected; } buffers;

static buffers buffers_new(const shape *s) {
    const size_t inputs = (size_t)(s->N * s->C * s->H * s->W),
                 outputs = (size_t)(s->N * s->O * s->P * s->Q);
    const size_t weights = (size_t)(s->O * s->C * s->K * s->K);
    const buffers b = { floats(inputs),  floats(inputs),  floats(weights),
                        floats(outputs), floats(outputs), floats(outputs) };
    for (size_t i = 0; i < inputs; ++i)
        b.x[i] = 2.0f * dt_uniform(dt_philox(1, DT_RNG_TEST, 0, 0, (uint32_t)i).v[0]) - 1.0f;
    for (size_t i = 0; i < weights; ++i)
        b.w[i] = 2.0f * dt_uniform(dt_philox(1, DT_RNG_TEST, 0, 1, (uint32_t)i).v[0]) - 1.0f;
    lanes_of(b.x_lanes, b.x, s->C * s->H * s->W, false);
    return b;
}

static void buffers_free(const buffers *b) {
    free(b->x); free(b->x_lanes); free(b->w); free(b->y); free(b->y_lanes); free(b->expected);
}

// No sum of absolute values of products is larger: |x| is at most 1. By it the rounding errors are
// bounded.
static double largest_sum(const buffers *b, const shape *s) {
    const int n = s->C * s->K * s->K;
    double most = 0.0;
    for (int o = 0; o < s->O; ++o) {
        double sum = 0.0;
        for (int k = 0; k < n; ++k) sum += fabs((double)b->w[o * n + k]);
        most = larger(most, sum);
    }
    return most;
}

static double rms_of(const float *y, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) sum += (double)y[i] * (double)y[i];
    return sqrt(sum / n);
}

static void run_step(const step *p, const buffers *b, const shape *s) {
    p->run(p->lanes ? b->y_lanes : b->y, p->lanes ? b->x_lanes : b->x, b->w, s);
}

// The largest difference of a step's results from those expected; NaN if one is.
static double difference(const step *p, const buffers *b, const shape *s) {
    const int outputs = s->N * s->O * s->P * s->Q;
    double most = 0.0;
    for (int i = 0; i < outputs; ++i) b->y[i] = b->y_lanes[i] = NAN;
    if (p->pack) p->pack(b->w, s);
    run_step(p, b, s);
    if (p->lanes) lanes_of(b->y, b->y_lanes, s->O * s->P * s->Q, true);
    for (int i = 0; i < outputs; ++i) {
        const double d = fabs((double)b->y[i] - (double)b->expected[i]);
        if (!(d <= most)) most = d;
        if (isnan(most)) return most;
    }
    return most;
}

// All steps against the first. Returns 1 if one differs by more than it may.
static int compare(const step steps[STEPS], void allow(double *, double, double, const shape *),
                   const buffers *b, const shape *s) {
    double allowed[STEPS];
    bool right = true;
    steps[0].run(b->expected, b->x, b->w, s);
    const double rms = rms_of(b->expected, s->N * s->O * s->P * s->Q);
    allow(allowed, ldexp(largest_sum(b, s), -24), rms, s);
    printf("\nlargest difference from step 1, and what is allowed; the results' rms is %.1f\n",
           rms);
    for (int k = 1; k < STEPS; ++k) {
        const double most = difference(&steps[k], b, s);
        printf("%-17s  %.1e  %.1e\n", steps[k].name, most, allowed[k]);
        right = right && most <= allowed[k];
    }
    puts(right ? "all of them agree with step 1 to within rounding errors\n"
               : "MISMATCH  a step computes something else\n");
    return !right;
}

// ---- Measured: the machine, in GFLOP/s and GB/s, and the steps.

typedef struct machine { double peak, chain, l1, l2, far; size_t l1_bytes, l2_bytes; } machine;

// How the chapter asks the machine: multiply-adds in registers, all at once or one after the other,
// in GFLOP/s; and one pass over so many floats, which are only read.
typedef struct questions {
    double (*peak)(int rounds), (*one_chain)(int rounds);
    void (*read)(const float *p, size_t floats);
} questions;

// Of reading the same bytes again and again, total in all, in GB/s.
static double bandwidth(const questions *ask, const float *p, size_t bytes, size_t total) {
    const double start = now();
    for (size_t round = 0; round < total / bytes; ++round) ask->read(p, bytes / sizeof *p);
    return 1e-9 * (double)(total / bytes * bytes) / (now() - start);
}

static machine measure_machine(const questions *ask, bool quick) {
    machine m = { .l1_bytes = 32 << 10, .l2_bytes = 512 << 10 };
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    if (sysconf(_SC_LEVEL1_DCACHE_SIZE) > 0) m.l1_bytes = (size_t)sysconf(_SC_LEVEL1_DCACHE_SIZE);
    if (sysconf(_SC_LEVEL2_CACHE_SIZE) > 0) m.l2_bytes = (size_t)sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    const size_t far = 128u << 20, total = quick ? far : 4 * far;
    float *p = floats(far / sizeof *p);
    for (int attempt = 0; attempt < 5; ++attempt) { // the best of five: a ceiling
        m.peak = fmax(m.peak, ask->peak(quick ? 1000000 : 5000000));
        m.chain = fmax(m.chain, ask->one_chain(quick ? 1000000 : 5000000));
        m.l1 = fmax(m.l1, bandwidth(ask, p, m.l1_bytes / 2, 8 * total));
        m.l2 = fmax(m.l2, bandwidth(ask, p, m.l2_bytes / 2, 2 * total));
        m.far = fmax(m.far, bandwidth(ask, p, far, total));
    }
    free(p);
    printf(
        "peak %.1f GFLOP/s, one chain %.1f GFLOP/s: %.1f multiply-adds must be under way at once\n",
        m.peak, m.chain, m.peak / m.chain);
    printf(
        "reads %.0f GB/s from L1 (%zu KiB), %.0f GB/s from L2 (%zu KiB), %.1f GB/s from beyond\n\n",
        m.l1, m.l1_bytes >> 10, m.l2, m.l2_bytes >> 10, m.far);
    return m;
}

// One run of each in turn, so that a slow minute of the machine meets all of them.
static void measure(step steps[STEPS], const buffers *b, const shape *s, int runs) {
    const double flop = 2.0 * s->N * s->O * s->P * s->Q * s->C * s->K * s->K;
    double speed[STEPS][MOST_RUNS];
    for (int r = 0; r < runs; ++r)
        for (int k = 0; k < STEPS; ++k) {
            if (steps[k].pack) steps[k].pack(b->w, s);
            const double start = now();
            run_step(&steps[k], b, s);
            speed[k][r] = 1e-9 * flop / (now() - start);
        }
    for (int k = 0; k < STEPS; ++k) {
        sort_numbers(speed[k], (size_t)runs);
        steps[k].low = speed[k][0];
        steps[k].median = speed[k][runs / 2];
        steps[k].high = speed[k][runs - 1];
    }
}

// ---- The table and the charts.

static void print_counts_head(void) {
    printf("a turn of the innermost loop: its multiply-adds; the vectors and weights that it "
           "loads, the vectors that it stores\n");
    printf("%-17s %4s %4s %4s %4s  %35s %23s %11s\n", "", "", "", "", "",
           "at most so many GFLOP/s by", "prediction,", "flop");
    printf("%-17s %4s %4s %4s %4s  %7s%7s%7s%7s%7s %23s %11s\n", "", "madd", "load", "wght", "stor",
           "latency", "ports", "L1", "L2", "beyond", "in GFLOP/s", "a byte");
}

static void print_table(const step steps[STEPS], const machine *m) {
    printf("%-15s %22s %14s %9s   %s\n", "", "GFLOP/s (min to max)", "of peak", "speedup",
           "lowest ceilings");
    for (int k = 0; k < STEPS; ++k) {
        char range[40];
        snprintf(range, sizeof range, "(%.1f to %.1f)", steps[k].low, steps[k].high);
        printf("%-17s %7.1f %-16s %5.1f %% %8.1f x   %s\n", steps[k].name, steps[k].median, range,
               100.0 * steps[k].median / m->peak, steps[k].median / steps[0].median, steps[k].stop);
    }
}

static void save(dt_chart *c, const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    check(NULL, dt_chart_save(c, path));
    dt_chart_free(c);
    printf("picture  %s\n", path);
}

static void draw(const char *folder, const step steps[STEPS], const machine *m, const shape *s) {
    char title[200], caption[300], label[4][80];
    const double left = 0.08, right = 8.0;
    snprintf(caption, sizeof caption,
             "16 images of %d x %d x %d -> %d x %d x %d, kernel 3 x 3, float, one core; "
             "multiply-adds as the definition counts "
             "them; processor time, median with min and max",
             s->C, s->H, s->W, s->O, s->P, s->Q);
    say_roofline((double[]){ steps[2].intensity, steps[3].intensity },
                 steps[2].median / steps[1].median, steps[3].median / steps[2].median, title,
                 sizeof title);
    dt_chart *c = dt_chart_new(&(dt_chart_desc){
        .title = title,
        .caption = caption,
        .machine = true,
        .x_scale = DT_LOG10,
        .y_scale = DT_LOG10,
        .x_label = "intensity: flop for each byte that the inner loop loads or stores",
        .y_label = "GFLOP/s on one core",
        .x_min = left,
        .x_max = right,
        .y_min = 0.5,
        .y_max = 2.0 * m->peak });
    for (int k = 0; k < OWN - 1; ++k)
        dt_chart_line(c, &(dt_series){ .label = steps[k].name,
                                       .n = 1,
                                       .x = &steps[k].intensity,
                                       .y = &steps[k].median,
                                       .y_min = &steps[k].low,
                                       .y_max = &steps[k].high,
                                       .style = DT_LINE_POINTS });
    const double rate[3] = { m->l1, m->l2, m->far };
    static const char *const from[3] = { "L1", "L2", "beyond L2" };
    for (int k = 0; k < 3; ++k) {
        snprintf(label[k], sizeof label[k], "%s: %.0f GB/s", from[k], rate[k]);
        dt_chart_reference(c, &(dt_reference){ .label = label[k],
                                               .slope = rate[k],
                                               .from = left,
                                               .to = fmin(right, m->peak / rate[k]) });
    }
    snprintf(label[3], sizeof label[3], "multiply-adds in registers: %.0f GFLOP/s", m->peak);
    dt_chart_reference(c, &(dt_reference){ .label = label[3],
                                           .offset = m->peak,
                                           .from = m->peak / m->l1,
                                           .to = right });
    save(c, folder, "ch04_roofline.png");

    const char *names[STEPS];
    double median[STEPS], low[STEPS], high[STEPS];
    for (int k = 0; k < STEPS; ++k) {
        names[k] = steps[k].name;
        median[k] = steps[k].median;
        low[k] = steps[k].low;
        high[k] = steps[k].high;
    }
    say_ladder(OWN, median, m->peak, title, sizeof title);
    c = dt_chart_new(&(dt_chart_desc){
        .title = title, .caption = caption, .machine = true, .y_label = "GFLOP/s on one core" });
    dt_chart_bars(c, &(dt_bars){ .groups = STEPS,
                                 .series = 1,
                                 .names = names,
                                 .y = median,
                                 .y_min = low,
                                 .y_max = high,
                                 .values = true });
    dt_chart_reference(c, &(dt_reference){ .label = label[3], .offset = m->peak });
    save(c, folder, "ch04_ladder.png");
}

#endif
