// Lab 12's measurements: the student's psgd and hogwild with a real net on real digits (drawn ones
// if there are no others), on 1 to --most workers, each --runs times. Prints the table, and writes
// lab12.csv, lab12_speedup.png and lab12_accuracy.png into the folder --to. Workers are threads of
// this process.
#include "dtrain.h"
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The student's, in lab12.c
uint32_t share(uint32_t *first, uint32_t n, uint32_t rank, uint32_t P);
void psgd(const ranks *r, const model *m, float *w, float *v, float *g, const uint32_t *shuffled,
          uint32_t batch, int epochs, float lr, float mu, outcome *out);
void hogwild(const model *m, _Atomic uint32_t *shared, float *w, float *g, const uint32_t *mine,
             uint32_t count, uint32_t batch, int epochs, float lr);
void speedup(double *median, double *s, double *efficiency, const double *seconds, int most,
             int runs);

enum { MOST = 8, MOST_RUNS = 9, BATCH = 128, HOGWILD_BATCH = 32 };

static void need(bool holds) {
    if (holds) return;
    fprintf(stderr, "%s\n", dt_error());
    exit(1);
}

static void *memory(size_t bytes) {
    void *p = calloc(bytes + 1, 1);
    if (p) return p;
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(1);
}

// ---- The net of the lab sheet, as lab 12 sees it.

typedef struct real_model {
    model seen;
    dt_net *net;
    const dt_dataset *train, *test;
    uint32_t calls;                       // every batch draws its own dropout
} real_model;

static dt_net *new_net(int classes, uint64_t random) {
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 10, .kernel = 5 });
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 20, .kernel = 5 });
    dt_maxpool2d(net, 2);
    dt_dropout2d(net, 0.5f);
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_linear(net, "fc1", 50);
    dt_relu(net);
    dt_linear(net, "fc2", classes);
    need(dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = random,
                                             .float_sums = true }) == DT_OK);
    return net;
}

static void forward(real_model *m, const float *w, const dt_dataset *d, const uint32_t *index,
                    uint32_t count, bool training) {
    const dt_batch batch = { .pixels = d->pixels, .labels = d->labels, .mean = d->mean,
                             .std = d->std, .index = index, .count = count,
                             .global_count = count, .epoch = m->calls++, .channels = d->channels,
                             .height = d->height, .width = d->width, .rows = d->count };
    memcpy(dt_net_values(m->net), w, m->seen.n * sizeof *w);
    dt_net_training(m->net, training);
    need(dt_net_load(m->net, &batch) == DT_OK && dt_forward(m->net) == DT_OK);
}

static void gradient(const model *seen, float *g, const float *w, const uint32_t *image,
                     uint32_t count) {
    real_model *m = (real_model *)(uintptr_t)seen;
    forward(m, w, m->train, image, count, true);
    need(dt_backward(m->net) == DT_OK);
    memcpy(g, dt_net_gradients(m->net), seen->n * sizeof *g);
}

static uint32_t correct(const model *seen, const float *w, uint32_t from, uint32_t to,
                        int training) {
    real_model *m = (real_model *)(uintptr_t)seen;
    uint32_t right = 0, index[BATCH];
    while (from < to) {
        const uint32_t count = to - from < BATCH ? to - from : BATCH;
        for (uint32_t i = 0; i < count; ++i) index[i] = from + i;
        forward(m, w, m->test, index, count, training != 0);
        right += (uint32_t)dt_net_score(m->net).correct;
        from += count;
    }
    return right;
}

static double seconds(const model *m) {
    (void)m;
    return dt_now();
}

static void open_model(real_model *m, const dt_dataset *train, const dt_dataset *test,
                       uint64_t random) {
    *m = (real_model){ .net = new_net(train->classes, random), .train = train, .test = test };
    m->seen = (model){ dt_net_count(m->net), train->count, test->count, gradient, correct,
                       seconds };
}

// ---- One training on P workers.

typedef struct job {
    bool without_lock;
    int epochs, P;
    uint64_t random;
    const dt_dataset *train, *test;
    uint32_t *shuffled;
    _Atomic uint32_t *shared;
    outcome out;                          // of worker 0
} job;

static dt_comm *comm_of[MOST];

static void allreduce(const ranks *r, float *x, size_t n) {
    need(dt_allreduce(comm_of[r->rank], x, n, DT_F32, DT_SUM, DT_AUTO) == DT_OK);
}

static void without_lock(job *j, real_model *m, float *w, float *g, const ranks *r) {
    const uint32_t rank = (uint32_t)r->rank, P = (uint32_t)r->size;
    uint32_t first = 0, count = share(&first, j->train->count, rank, P);
    const double start = dt_now();
    hogwild(&m->seen, j->shared, w, g, j->shuffled + first, count, HOGWILD_BATCH, j->epochs,
            0.05f);
    need(dt_barrier(comm_of[rank]) == DT_OK);
    if (rank > 0) return;
    j->out.seconds = dt_now() - start;
    memcpy(w, (void *)(uintptr_t)j->shared, m->seen.n * sizeof *w);
    j->out.percent = 100.0 * correct(&m->seen, w, 0, j->test->count, 0) / j->test->count;
}

static dt_err worker(dt_comm *comm, void *arg) {
    job *j = arg;
    const ranks r = { dt_comm_rank(comm), dt_comm_size(comm), allreduce };
    real_model m;
    outcome out = { 0.0, 0.0 };
    comm_of[r.rank] = comm;
    open_model(&m, j->train, j->test, j->random);
    const size_t bytes = m.seen.n * sizeof(float);
    float *w = memory(bytes), *v = memory(bytes), *g = memory(bytes);
    memcpy(w, dt_net_values(m.net), bytes);
    if (r.rank == 0) memcpy((void *)(uintptr_t)j->shared, w, bytes);
    need(dt_barrier(comm) == DT_OK);
    if (j->without_lock) without_lock(j, &m, w, g, &r);
    else psgd(&r, &m.seen, w, v, g, j->shuffled, BATCH, j->epochs, 0.01f, 0.5f, &out);
    if (r.rank == 0 && !j->without_lock) j->out = out;
    free(w), free(v), free(g);
    dt_net_free(m.net);
    return dt_barrier(comm);
}

static outcome train(job *j, uint64_t random) {
    j->random = random;
    for (uint32_t i = 0; i < j->train->count; ++i) j->shuffled[i] = i;
    for (uint32_t i = j->train->count; i > 1; --i) {
        const uint32_t k = dt_philox(random, DT_RNG_TEST, 12, 0, i).v[0] % i;
        const uint32_t swap = j->shuffled[i - 1];
        j->shuffled[i - 1] = j->shuffled[k], j->shuffled[k] = swap;
    }
    need(dt_run_ranks(j->P, worker, j) == DT_OK);
    return j->out;
}

// ---- All of them, the table, the graphs.

typedef struct measured {
    double x[MOST], seconds[MOST * MOST_RUNS], percent[MOST * MOST_RUNS];
    double median[MOST], s[MOST], efficiency[MOST], accuracy[MOST];
    double s_least[MOST], s_most[MOST], accuracy_least[MOST], accuracy_most[MOST];
} measured;

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_rows(FILE *csv, const char *name, measured *t, int most, int runs) {
    speedup(t->median, t->s, t->efficiency, t->seconds, most, runs);
    for (int i = 0; i < most; ++i) {
        double *a = t->seconds + i * runs, *b = t->percent + i * runs;
        qsort(a, (size_t)runs, sizeof *a, by_size), qsort(b, (size_t)runs, sizeof *b, by_size);
        t->accuracy[i] = b[runs / 2] / 100.0;
        t->accuracy_least[i] = b[0] / 100.0, t->accuracy_most[i] = b[runs - 1] / 100.0;
        t->s_least[i] = t->median[0] / a[runs - 1], t->s_most[i] = t->median[0] / a[0];
        printf("| %-7s | %d | %7.2f | %7.2f | %7.2f | %6.2f | %6.2f | %6.2f | %5.2f | %5.2f |\n",
               name, i + 1, t->median[i], a[0], a[runs - 1], b[runs / 2], b[0], b[runs - 1],
               t->s[i], t->efficiency[i]);
        fprintf(csv, "%s,%d,%.4f,%.4f,%.4f,%.3f,%.3f,%.3f,%.4f,%.4f\n", name, i + 1, t->median[i],
                a[0], a[runs - 1], b[runs / 2], b[0], b[runs - 1], t->s[i], t->efficiency[i]);
    }
}

static const char *in_folder(const char *folder, const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// The lines of the two methods: medians, the least and the most
typedef struct lines { const double *y[2], *least[2], *most[2]; } lines;

static void draw(const char *file, const char *title, const char *label, const double *x,
                 const lines *l, int most, bool percent, const char *about) {
    dt_chart *c = dt_chart_new(&(dt_chart_desc){
        .title = title, .caption = about, .machine = true, .x_label = "workers",
        .y_label = label, .x_ticks = x, .x_tick_count = (size_t)most,
        .y_format = percent ? DT_TICKS_PERCENT : DT_TICKS_PLAIN });
    need(c != NULL);
    dt_chart_shade_cores(c);
    if (!percent)
        dt_chart_reference(c, &(dt_reference){ .label = "ideal", .slope = 1.0, .from = 1.0,
                                               .to = most });
    for (int k = 0; k < 2; ++k)
        dt_chart_line(c, &(dt_series){ .label = k ? "hogwild" : "psgd", .n = (size_t)most, .x = x,
                                       .y = l->y[k], .y_min = l->least[k], .y_max = l->most[k] });
    need(dt_chart_save(c, file) == DT_OK);
    dt_chart_free(c);
    printf("drawn in %s\n", file);
}

static void draw_both(const measured t[2], int most, const char *about, const char *to) {
    const lines s = { { t[0].s, t[1].s }, { t[0].s_least, t[1].s_least },
                      { t[0].s_most, t[1].s_most } };
    const lines accuracy = { { t[0].accuracy, t[1].accuracy },
                             { t[0].accuracy_least, t[1].accuracy_least },
                             { t[0].accuracy_most, t[1].accuracy_most } };
    const double *const *a = accuracy.y;
    char title[120];
    snprintf(title, sizeof title, "%d workers: PSGD %.2f times as fast as one, Hogwild %.2f times",
             most, t[0].s[most - 1], t[1].s[most - 1]);
    draw(in_folder(to, "lab12_speedup.png"), title, "speedup", t[0].x, &s, most, false, about);
    snprintf(title, sizeof title, "1 to %d workers: PSGD %.1f to %.1f %%, Hogwild %.1f to %.1f %%",
             most, 100 * a[0][0], 100 * a[0][most - 1], 100 * a[1][0], 100 * a[1][most - 1]);
    draw(in_folder(to, "lab12_accuracy.png"), title, "test accuracy", t[0].x, &accuracy, most, true,
         about);
}

static int option(int argc, char **argv, const char *name, int value, int most) {
    for (int i = 1; i + 1 < argc; ++i)
        if (strcmp(argv[i], name) == 0) value = atoi(argv[i + 1]);
    if (value >= 1 && value <= most) return value;
    fprintf(stderr, "%s: 1 to %d\n", name, most);
    exit(2);
}

static void print_parameters(const dt_dataset *train) {
    dt_net *net = new_net(train->classes, 1);
    printf("the net has %zu parameters:", dt_net_count(net));
    for (int i = 0; i < dt_net_param_count(net); ++i)
        printf(" %s", dt_net_param(net, i)->name);
    printf("\n");
    dt_net_free(net);
}

int main(int argc, char **argv) {
    const int epochs = option(argc, argv, "--epochs", 1, 100);
    const int runs = option(argc, argv, "--runs", 3, MOST_RUNS) | 1; // odd, for the median
    const int most = option(argc, argv, "--most", 5, MOST);
    const char *to = ".";
    for (int i = 1; i + 1 < argc; ++i)
        if (strcmp(argv[i], "--to") == 0) to = argv[i + 1];
    dt_dataset all, few, test;
    measured *t = memory(2 * sizeof *t);
    need(dt_dataset_find(&all, &test, "auto") == DT_OK);
    const uint32_t images = (uint32_t)option(argc, argv, "--images", (int)all.count,
                                             (int)all.count);
    need(dt_dataset_view(&few, &all, 0, images) == DT_OK);
    job j = { .epochs = epochs, .train = &few, .test = &test,
              .shuffled = memory(images * sizeof *j.shuffled), .shared = memory(1 << 16) };
    char about[300];
    snprintf(about, sizeof about, "%s, %u images, %d epoch%s, %d run%s", few.name, images, epochs,
             epochs == 1 ? "" : "s", runs, runs == 1 ? "" : "s; bars from the least to the most");
    printf("%s\n", about);
    print_parameters(&few);
    FILE *csv = fopen(in_folder(to, "lab12.csv"), "w");
    if (!csv) return perror("lab12.csv"), 1;
    fprintf(csv, "method,P,seconds,least,most,percent,least,most,speedup,efficiency\n");
    printf("| method  | P | seconds |   least |    most | acc. %% |  least |   most "
           "| speed | effic |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (int k = 0; k < 2; ++k) {
        j.without_lock = k == 1;
        for (j.P = 1; j.P <= most; ++j.P)
            for (int i = 0; i < runs; ++i) {
                const outcome out = train(&j, (uint64_t)i + 1);
                t[k].x[j.P - 1] = j.P;
                t[k].seconds[(j.P - 1) * runs + i] = out.seconds;
                t[k].percent[(j.P - 1) * runs + i] = out.percent;
            }
        print_rows(csv, k ? "hogwild" : "psgd", &t[k], most, runs);
        fflush(stdout);
    }
    fclose(csv);
    draw_both(t, most, about, to);
    dt_dataset_free(&few), dt_dataset_free(&all), dt_dataset_free(&test);
    free(t), free(j.shuffled), free((void *)(uintptr_t)j.shared);
    return 0;
}
