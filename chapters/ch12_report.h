// Chapter 12, second part: from the CSV files of many runs to tables, charts and a comment.
//
// `ch12 --csv F.csv --epoch-csv F_epochs.csv` leaves a row for each run and a row for each epoch.
// `ch12 --report F.csv` reads both, prints the tables and writes F_time.png, F_speedup.png and
// F_accuracy.png. Times are medians over epochs (Hogwild: over runs of one epoch), with the
// smallest and the largest; every sentence below is drawn from the numbers.
#ifndef CH12_REPORT_H
#define CH12_REPORT_H

#include "chapter.h"

enum { MAX_WORKERS = 16, MAX_SAMPLES = 512 };

typedef struct sample_set { int n; double value[MAX_SAMPLES]; } sample_set;
typedef struct spread { double median, min, max; } spread;

typedef struct worker_row {   // one method with one number of workers
    int workers, runs, epochs;
    sample_set epoch_seconds, accuracy, seconds;
    char hash[24];            // of the last run; "varies" if runs of the method do not agree
} worker_row;

typedef struct method_rows {
    const char *method, *name;
    int n;
    worker_row row[MAX_WORKERS];
} method_rows;

// images: of an epoch
typedef struct report_data {
    char dataset[64];
    int cores;
    double images;
    method_rows method[3];
} report_data;

static spread spread_of(const sample_set *s) {
    if (s->n == 0) return (spread){ 0.0, 0.0, 0.0 };
    double v[MAX_SAMPLES];
    memcpy(v, s->value, (size_t)s->n * sizeof *v);
    sort_numbers(v, (size_t)s->n);
    return (spread){ 0.5 * (v[(s->n - 1) / 2] + v[s->n / 2]), v[0], v[s->n - 1] };
}

static void add_sample(sample_set *s, double value) {
    if (s->n < MAX_SAMPLES) s->value[s->n++] = value;
}

// ---- Reading

static worker_row *row_of(report_data *d, const char *method, int workers) {
    for (int m = 0; m < 3; ++m) {
        method_rows *r = &d->method[m];
        if (strcmp(r->method, method) != 0) continue;
        int at = 0;
        while (at < r->n && r->row[at].workers < workers) ++at;
        if (at < r->n && r->row[at].workers == workers) return &r->row[at];
        if (r->n == MAX_WORKERS) return NULL;
        memmove(&r->row[at + 1], &r->row[at], (size_t)(r->n - at) * sizeof r->row[0]);
        memset(&r->row[at], 0, sizeof r->row[at]);
        r->row[at].workers = workers;
        ++r->n;
        return &r->row[at];
    }
    return NULL;
}

enum { RUN_FIELDS = 12, EPOCH_FIELDS = 7 }; // of write_rows

// Cuts a row at its commas; false if it has another number of fields. sscanf would read its numbers
// by the locale.
static bool split(char *row, char *field[], int fields) {
    row[strcspn(row, "\r\n")] = '\0';
    for (int i = 0; i < fields; ++i) {
        field[i] = row;
        row += strcspn(row, ",");
        if ((*row == ',') != (i + 1 < fields)) return false;
        if (*row) *row++ = '\0';
    }
    return true;
}

// The numbers that stand in some of a row's fields.
static bool numbers_in(char *const field[], const int *which, int n, double *value) {
    for (int i = 0; i < n; ++i)
        if (dt_number_parse(field[which[i]], &value[i]) != DT_OK) return false;
    return true;
}

// A count in a file is a whole number that an int can hold.
static bool is_count(double v) { return v >= 1.0 && v <= 1e9 && floor(v) == v; }

static dt_err add_run(report_data *d, char *const field[], const char *path, int line) {
    static const int which[6] = { 1, 2, 4, 6, 7, 10 };
    double v[6]; // workers, cores, epochs, seconds, images a second, accuracy
    if (!numbers_in(field, which, 6, v) || !is_count(v[0]) || !is_count(v[1]) || !is_count(v[2]))
        return dt_fail(DT_EDATA, "%s: line %d is not a row of ch12", path, line);
    worker_row *row = row_of(d, field[0], (int)v[0]);
    if (!row) return DT_OK;
    if (d->dataset[0] && strncmp(d->dataset, field[3], sizeof d->dataset - 1) != 0)
        return dt_fail(DT_EDATA, "%s: rows of %s and of %s cannot go into one chart", path,
                       d->dataset, field[3]);
    if (d->cores && d->cores != (int)v[1])
        return dt_fail(DT_EDATA, "%s: rows of %d and of %d cores cannot go into one chart", path,
                       d->cores, (int)v[1]);
    snprintf(d->dataset, sizeof d->dataset, "%s", field[3]);
    d->cores = (int)v[1];
    d->images = floor(v[4] * v[3] / v[2] + 0.5);
    row->epochs = (int)v[2];
    add_sample(&row->seconds, v[3]);
    add_sample(&row->accuracy, v[5]);
    snprintf(row->hash, sizeof row->hash, "%s",
             row->runs && strcmp(row->hash, field[11]) != 0 ? "varies" : field[11]);
    ++row->runs;
    return DT_OK;
}

static dt_err read_runs(report_data *d, const char *path) {
    char line[512], *field[RUN_FIELDS];
    int number = 0;
    dt_err error = DT_OK;
    FILE *f = fopen(path, "r");
    if (!f) return dt_fail(DT_EIO, "%s: cannot be read; run ch12 with --csv %s first", path, path);
    while (error == DT_OK && fgets(line, sizeof line, f)) {
        if (++number == 1) continue; // the header
        error = split(line, field, RUN_FIELDS)
                    ? add_run(d, field, path, number)
                    : dt_fail(DT_EDATA, "%s: line %d is not a row of ch12", path, number);
    }
    fclose(f);
    if (error != DT_OK) return error;
    return d->dataset[0] ? DT_OK : dt_fail(DT_EDATA, "%s: holds no runs", path);
}

static void read_epochs(report_data *d, const char *path) { // absent: the runs' own times are used
    static const int which[2] = { 1, 5 };
    char line[512], *field[EPOCH_FIELDS];
    double v[2]; // workers, seconds
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (!split(line, field, EPOCH_FIELDS) || !numbers_in(field, which, 2, v)) continue;
        if (!is_count(v[0])) continue;
        worker_row *row = row_of(d, field[0], (int)v[0]);
        if (row) add_sample(&row->epoch_seconds, v[1]);
    }
    if (f) fclose(f);
    for (int m = 0; m < 3; ++m)
        for (int i = 0; i < d->method[m].n; ++i) {
            worker_row *row = &d->method[m].row[i];
            for (int k = 0; row->epoch_seconds.n == 0 && k < row->seconds.n; ++k)
                add_sample(&row->epoch_seconds, row->seconds.value[k] / row->epochs);
        }
}

// ---- Figures drawn from the samples

static double speedup(const method_rows *m, int i) { // against the same method's single worker
    return m->n && m->row[0].workers == 1 ? spread_of(&m->row[0].epoch_seconds).median /
                                                spread_of(&m->row[i].epoch_seconds).median
                                          : NAN;
}

static bool same_hash(const method_rows *m) {
    for (int i = 1; i < m->n; ++i)
        if (strcmp(m->row[i].hash, m->row[0].hash) != 0) return false;
    return m->n > 0 && strcmp(m->row[0].hash, "varies") != 0;
}

static void accuracy_range(const method_rows *m, double *low, double *high) {
    *low = 1.0;
    *high = 0.0;
    for (int i = 0; i < m->n; ++i) {
        double a = spread_of(&m->row[i].accuracy).median;
        *low = a < *low ? a : *low;
        *high = a > *high ? a : *high;
    }
}

// of the accuracies that runs of one number of workers had
static double widest_range(const method_rows *m) {
    double widest = 0.0;
    for (int i = 0; i < m->n; ++i)
        widest =
            fmax(widest, spread_of(&m->row[i].accuracy).max - spread_of(&m->row[i].accuracy).min);
    return widest;
}

// Whether all runs of the one lie on one side of all runs of the other.
static bool apart(const sample_set *a, const sample_set *b) {
    const spread x = spread_of(a), y = spread_of(b);
    return x.max < y.min || y.max < x.min;
}

// ---- Tables. The last two columns are the lab report's own, PyTorch on a 4-core laptop; its
// ---- accuracy with several workers fell because it threw the all-reduced sum away, and Hogwild's
// ---- was taken with dropout on.

static const double theirs_sync[5][2] = {
    { 478.11, 98.04 }, { 191.61, 97.42 }, { 189.55, 96.56 }, { 169.61, 96.11 }, { 252.74, 95.51 }
};
static const double theirs_hogwild[5][2] = {
    { 32.4, 92 }, { 21.49, 92 }, { 18.33, 93 }, { 20.22, 92 }, { 23.82, 91 }
};

static void print_table(const report_data *d, const method_rows *m) {
    const char *dataset = d->dataset;
    if (m->n == 0) return;
    const double (*theirs)[2] = strcmp(m->method, "hogwild") == 0 ? theirs_hogwild : theirs_sync;
    const bool compare = strcmp(dataset, "MNIST") == 0 && strcmp(m->method, "psgd") != 0 &&
                         m->row[0].epochs == (theirs == theirs_sync ? 10 : 1);
    printf("\n%s on %s, %d epoch%s\n", m->name, dataset, m->row[0].epochs,
           m->row[0].epochs == 1 ? "" : "s");
    printf("workers  seconds  s/epoch (min-max)      images/s  speedup  test accuracy (min-max)   "
           "weights         %s\n",
           compare ? "  the report's seconds, accuracy" : "");
    for (int i = 0; i < m->n; ++i) {
        const worker_row *row = &m->row[i];
        spread epoch = spread_of(&row->epoch_seconds), accuracy = spread_of(&row->accuracy);
        printf("%7d %8.2f  %6.3f (%.3f-%.3f) %9.0f %7.2fx  %6.2f %% (%.2f-%.2f)     %-16s",
               row->workers, spread_of(&row->seconds).median, epoch.median, epoch.min, epoch.max,
               d->images / epoch.median, speedup(m, i), 100 * accuracy.median, 100 * accuracy.min,
               100 * accuracy.max, row->hash);
        if (compare && row->workers <= 5)
            printf("  %8.2f %6.2f %%", theirs[row->workers - 1][0], theirs[row->workers - 1][1]);
        printf("\n");
    }
}

// ---- Comment

// The numbers that says.h chooses its words by.
typedef struct figures {
    int n, workers[MAX_WORKERS];
    double speed[MAX_WORKERS], seconds[MAX_WORKERS], low, high;
} figures;

static figures figures_of(const method_rows *m) {
    figures f = { .n = m->n };
    for (int i = 0; i < m->n; ++i) {
        f.workers[i] = m->row[i].workers;
        f.speed[i] = speedup(m, i);
        f.seconds[i] = spread_of(&m->row[i].epoch_seconds).median;
    }
    accuracy_range(m, &f.low, &f.high);
    return f;
}

static void print_wrapped(const char *text) { // in lines of at most 120 characters
    for (size_t length = strlen(text); length; length = strlen(text)) {
        size_t end = length;
        while (end > 118) for (--end; text[end] != ' ' && end > 0; --end) continue;
        if (end == 0) end = length; // one word
        printf("%.*s\n%s", (int)end, text, end < length ? "  " : "");
        text += end + (end < length);
    }
}

static void print_comment(const report_data *d) {
    char text[400];
    printf("\nComment\n");
    for (int k = 0; k < 3; ++k) {
        const method_rows *m = &d->method[k];
        const figures f = figures_of(m);
        if (m->n < 2) continue;
        const worker_row *first = &m->row[0], *last = &m->row[m->n - 1];
        say_speed((says_method)k, m->name, f.n, f.workers, f.speed, d->cores, text, sizeof text);
        print_wrapped(text);
        if (k == SAYS_SYNC) say_same_bits(m->name, same_hash(m), f.low, f.high, text, sizeof text);
        else
            say_accuracy((says_method)k, m->name, first->workers,
                         spread_of(&first->accuracy).median, last->workers,
                         spread_of(&last->accuracy).median, widest_range(m),
                         apart(&first->accuracy, &last->accuracy), text, sizeof text);
        print_wrapped(text);
    }
}

// ---- Charts

enum what { EPOCH_SECONDS, SPEEDUP, ACCURACY };

static void add_series(dt_chart *chart, const method_rows *m, enum what what) {
    double x[MAX_WORKERS], y[MAX_WORKERS], low[MAX_WORKERS], high[MAX_WORKERS];
    double one = m->n ? spread_of(&m->row[0].epoch_seconds).median : 1.0;
    for (int i = 0; i < m->n; ++i) {
        spread s = spread_of(what == ACCURACY ? &m->row[i].accuracy : &m->row[i].epoch_seconds);
        x[i] = m->row[i].workers;
        y[i] = what == SPEEDUP ? one / s.median : s.median;
        low[i] = what == SPEEDUP ? one / s.max : s.min;
        high[i] = what == SPEEDUP ? one / s.min : s.max;
    }
    if (m->n)
        dt_chart_line(chart, &(dt_series){ .label = m->name,
                                           .n = (size_t)m->n,
                                           .x = x,
                                           .y = y,
                                           .y_min = low,
                                           .y_max = high });
}

static void report_title(const report_data *d, enum what what, char *title, size_t size) {
    const method_rows *sync = &d->method[0], *psgd = &d->method[1];
    const figures f = figures_of(sync);
    const worker_row *most = psgd->n ? &psgd->row[psgd->n - 1] : NULL;
    if (what == SPEEDUP)
        say_speed_title(d->dataset, f.n, f.workers, f.speed, d->cores, title, size);
    else if (what == EPOCH_SECONDS)
        say_epoch_title(d->dataset, d->images, f.n, f.workers, f.seconds, title, size);
    else {
        const spread runs = most ? spread_of(&most->accuracy) : (spread){ 0.0, 0.0, 0.0 };
        say_accuracy_title(d->dataset, f.n, same_hash(sync), f.low, f.high,
                           most ? most->workers : 0, runs.min, runs.max, title, size);
    }
}

static int most_workers(const report_data *d) {
    int most = 1;
    for (int m = 0; m < 3; ++m)
        for (int i = 0; i < d->method[m].n; ++i)
            most = d->method[m].row[i].workers > most ? d->method[m].row[i].workers : most;
    return most;
}

static dt_err draw(const report_data *d, enum what what, const char *stem, const char *ending) {
    static const char *const y_label[] = { "seconds an epoch",
                                           "speedup over one worker of the same method",
                                           "test accuracy" };
    static const char *const subtitle[] = {
        "Median, fastest and slowest epoch; training alone, without loading and testing",
        "One worker's median epoch over the median, the slowest and the fastest epoch",
        "Median, least and most of the runs, each from a seed of its own; dropout off"
    };
    char title[256], path[600];
    report_title(d, what, title, sizeof title);
    snprintf(path, sizeof path, "%s_%s.png", stem, ending);
    dt_chart *chart = dt_chart_new(
        &(dt_chart_desc){ .title = title,
                          .subtitle = subtitle[what],
                          .x_label = "workers: MPI ranks, or threads (Hogwild)",
                          .y_label = y_label[what],
                          .y_format = what == ACCURACY ? DT_TICKS_PERCENT : DT_TICKS_PLAIN,
                          .machine = true,
                          .caption = d->dataset });
    dt_chart_shade_cores(chart);
    for (int m = 0; m < 3; ++m) add_series(chart, &d->method[m], what);
    if (what == SPEEDUP) draw_ideal(chart, d->cores, most_workers(d));
    dt_err error = dt_chart_save(chart, path);
    dt_chart_free(chart);
    return error;
}

static dt_err write_report(const char *csv) {
    static report_data d;
    d = (report_data){ .method = { { .method = "sync", .name = "Synchronous SGD" },
                                   { .method = "psgd", .name = "PSGD" },
                                   { .method = "hogwild", .name = "Hogwild" } } };
    char stem[512], epochs[600], machine[256];
    size_t length = strlen(csv);
    if (length < 5 || length >= sizeof stem || strcmp(csv + length - 4, ".csv") != 0)
        return dt_fail(DT_EARG, "--report %s: the name of a .csv file is needed", csv);
    snprintf(stem, sizeof stem, "%.*s", (int)(length - 4), csv);
    snprintf(epochs, sizeof epochs, "%s_epochs.csv", stem);
    DT_TRY(read_runs(&d, csv));
    read_epochs(&d, epochs);
    dt_machine_caption(machine, sizeof machine);
    printf("%s; %s\n", d.dataset, machine);
    for (int m = 0; m < 3; ++m) print_table(&d, &d.method[m]);
    print_comment(&d);
    DT_TRY(draw(&d, EPOCH_SECONDS, stem, "time"));
    DT_TRY(draw(&d, SPEEDUP, stem, "speedup"));
    return draw(&d, ACCURACY, stem, "accuracy");
}

#endif
