// What every chapter program needs and no chapter is about: options, the S0 net, one way to say an error, the lines
// that a program begins and ends with, how it checks itself. The chapters explain the rest.
#ifndef CHAPTER_H
#define CHAPTER_H

#include "../dtrain.h"

#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__GNUC__)
#define CHAPTER_FN static __attribute__((unused)) // also for the few variables here
#define CHAPTER_NORETURN __attribute__((noreturn))
#else
#define CHAPTER_FN static
#define CHAPTER_NORETURN
#endif

// ---- Errors. A wrong command line is everybody's error: rank 0 says it, all ranks end with 2. Any other error
// ---- may have met one rank alone: that rank says so, and stops the whole job with 1.

CHAPTER_FN CHAPTER_NORETURN void usage_error(dt_comm *comm, const char *program, const char *sentence) {
    if (!comm || dt_comm_rank(comm) == 0) fprintf(stderr, "%s: %s (try --help)\n", program, sentence);
    fflush(stderr);
    dt_comm_free(comm);
    exit(2);
}

CHAPTER_FN CHAPTER_NORETURN void die(dt_comm *comm) {
    char line[640];
    if (!comm || dt_comm_may_speak(comm)) { // one line, also where the error met every rank alike
        if (comm) dt_comm_complaint(comm, line, sizeof line);
        else snprintf(line, sizeof line, "%s", dt_error());
        fprintf(stderr, "%s\n", line);
    }
    fflush(NULL);
    if (comm && dt_comm_size(comm) > 1) dt_comm_abort(comm, 1);
    else dt_comm_free(comm);
    exit(1);
}

CHAPTER_FN void check(dt_comm *comm, dt_err error) {
    if (error != DT_OK) die(comm);
}

// An error that usually meets every rank alike, such as a missing file: the lowest rank that met it says it, once.
CHAPTER_FN void check_all(dt_comm *comm, dt_err error) {
    int mine = error != DT_OK, all[1024] = { 0 };
    if (dt_comm_size(comm) > 1024 || dt_allgather(comm, &mine, sizeof mine, all) != DT_OK) { check(comm, error); return; }
    int failed = 0, first = -1;
    for (int r = dt_comm_size(comm) - 1; r >= 0; --r)
        if (all[r]) { ++failed; first = r; }
    if (!failed) return;
    if (dt_comm_rank(comm) == first) {
        if (failed < dt_comm_size(comm) && first > 0) fprintf(stderr, "[rank %d, %s] ", first, dt_comm_host(comm, first));
        fprintf(stderr, "%s\n", dt_error());
        fflush(stderr);
    }
    dt_barrier(comm);
    dt_comm_free(comm);
    exit(1);
}

// ---- What a chapter claims, it checks. A claim that fails is printed; expect() goes on to the next one, and the program
// ---- ends with 1 (end_program); must() ends it at once, on all ranks alike, and prints also what holds.

CHAPTER_FN int mismatches;

CHAPTER_FN void expect(bool true_as_hoped, const char *what) {
    if (true_as_hoped) return;
    printf("MISMATCH  %s\n", what);
    ++mismatches;
}

CHAPTER_FN void must(dt_comm *comm, bool holds, const char *sentence) {
    if (dt_comm_rank(comm) == 0) fprintf(holds ? stdout : stderr, "%s%s\n", holds ? "" : "NOT TRUE: ", sentence);
    if (holds) return;
    dt_comm_free(comm);
    exit(1);
}

// ---- Memory, zeroed, or the program ends. Sorting, for medians; the larger of two numbers.

CHAPTER_FN void *memory(size_t bytes) {
    void *block = calloc(bytes ? bytes : 1, 1);
    if (block) return block;
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(1);
}

CHAPTER_FN int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// fmax for loops over an array: gcc 12 for aarch64 at -O3 breaks off with an internal error where fmax itself stands in one.
CHAPTER_FN double larger(double a, double b) { return b > a ? b : a; }

CHAPTER_FN void sort_numbers(double *x, size_t n) { qsort(x, n, sizeof *x, by_value); }

// ---- Options: each program lists its own; values are checked where they are read.

typedef struct option_desc {
    const char *name;      // "epochs", for --epochs
    char kind;             // 'i' int >= 1, 'u' 64-bit seed, 'f' float > 0, 'z' float >= 0, 's' text, 'b' switch
    void *value;           // int, uint64_t, float, const char *, bool
    const char *help;      // "N   how often the data are seen"
} option_desc;

CHAPTER_FN void print_help(const char *program, const char *about, const option_desc *options, int count) {
    printf("%s\n\nusage: %s [options]\n", about, program);
    for (int i = 0; i < count; ++i) printf("  --%s%s%s\n", options[i].name, *options[i].help == ' ' ? "" : " ", options[i].help);
    printf("  --help          print this\n");
}

CHAPTER_FN bool set_option(const option_desc *o, const char *text, char *why, size_t size) {
    char *end = NULL;
    if (o->kind == 'b') { *(bool *)o->value = true; return true; }
    if (o->kind == 's') { *(const char **)o->value = text; return true; }
    if (o->kind == 'i' || o->kind == 'u') {
        long long n = strtoll(text, &end, 10);
        if (end != text && !*end && n >= (o->kind == 'i') && n <= (o->kind == 'i' ? 1000000000LL : (1LL << 62))) {
            if (o->kind == 'i') *(int *)o->value = (int)n;
            else *(uint64_t *)o->value = (uint64_t)n;
            return true;
        }
        snprintf(why, size, "--%s %s: a whole number, at least %d, is needed", o->name, text, o->kind == 'i');
        return false;
    }
    float x = strtof(text, &end);
    if (end != text && !*end && (x > 0.0f || (o->kind == 'z' && x >= 0.0f)) && x < 1e30f) { *(float *)o->value = x; return true; }
    snprintf(why, size, "--%s %s: a number %s 0 is needed", o->name, text, o->kind == 'z' ? "of at least" : "above");
    return false;
}

// Reads the command line into the values; ends the program on --help (0) and on anything wrong (2).
CHAPTER_FN void read_options(int argc, char **argv, dt_comm *comm, const char *about, const option_desc *options, int count) {
    struct option known[40] = { { "help", no_argument, NULL, 'h' } };
    char why[256];
    const char *program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (int i = 0; i < count && i + 1 < 39; ++i)
        known[i + 1] = (struct option){ options[i].name, options[i].kind == 'b' ? no_argument : required_argument, NULL, 0 };
    opterr = 0; // getopt would complain once a rank
    for (int at, got; (got = getopt_long(argc, argv, ":", known, &at)) != -1;) {
        if (got == 'h') {
            if (dt_comm_rank(comm) == 0) print_help(program, about, options, count);
            dt_comm_free(comm);
            exit(0);
        }
        const char *word = argv[optind - 1];
        if (got == ':') snprintf(why, sizeof why, "%s needs a value", word);
        if (got == '?') snprintf(why, sizeof why, "unknown option %s", word);
        if (got != 0 || !set_option(&options[at - 1], optarg, why, sizeof why)) usage_error(comm, program, why);
    }
    if (optind < argc) {
        snprintf(why, sizeof why, "unexpected \"%s\"", argv[optind]);
        usage_error(comm, program, why);
    }
}

// ---- How a program begins: it joins its ranks, if it was started as several, and reads its options. How it ends.

CHAPTER_FN dt_comm *begin_program(int argc, char **argv, const char *about, const option_desc *options, size_t bytes) {
    dt_comm *comm = dt_comm_world(&argc, &argv);
    if (!comm) die(NULL);
    read_options(argc, argv, comm, about, options, (int)(bytes / sizeof *options));
    return comm;
}

CHAPTER_FN int end_program(dt_comm *comm, dt_dataset *train, dt_dataset *test) { // what main returns; data may be NULL
    dt_dataset_free(train);
    dt_dataset_free(test);
    dt_comm_free(comm);
    return mismatches ? 1 : 0;
}

// ---- The net of the lab report that chapter 12 answers: 9 840 parameters.

CHAPTER_FN dt_net *mnist_net(int classes) {
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
    return net;
}

// ---- Data: found on every rank; the name was checked as an option, the files may still be missing or broken.

CHAPTER_FN void load_data(dt_comm *comm, const char *which, const char *program, dt_dataset *train, dt_dataset *test) {
    dt_comm_phase(comm, "loading data");
    dt_err error = dt_dataset_find(train, test, which);
    if (error == DT_EARG) usage_error(comm, program, dt_error());
    check_all(comm, error);
}

// Rows index[0..count-1] of the data as one batch of one rank's own: its loss is the mean over these images alone.
CHAPTER_FN dt_batch batch_of(const dt_dataset *data, const uint32_t *index, uint32_t first, uint32_t count) {
    return (dt_batch){ .pixels = data->pixels, .labels = data->labels, .mean = data->mean, .std = data->std,
                       .index = index, .first = first, .count = count, .global_count = count };
}

// A job that runs on several ranks brings its results back in its argument. Ranks that are threads share it, and only rank 0
// writes; processes have one each.
CHAPTER_FN bool brings_result(const dt_comm *comm) {
    return dt_comm_rank(comm) == 0 || strcmp(dt_comm_backend_name(comm), "threads") != 0;
}

// ---- What a program runs on, said before its first table.

CHAPTER_FN void print_machine(const dt_comm *comm, const dt_dataset *data, int threads) {
    char machine[256];
    if (dt_comm_rank(comm) != 0) return;
    dt_machine_caption(machine, sizeof machine);
    if (data) printf("data     %s, %u images: %s\n", data->name, (unsigned)data->count, data->source);
    printf("machine  %s\n", machine);
    printf("workers  %d rank%s (%s), %d thread%s each, on %d core%s\n", dt_comm_size(comm), dt_comm_size(comm) == 1 ? "" : "s",
           dt_comm_backend_name(comm), threads, threads == 1 ? "" : "s", dt_cores(), dt_cores() == 1 ? "" : "s");
    fflush(stdout);
}

// ---- A finished chart becomes a file, its numbers beside it as CSV; say comes before the name.

#ifdef DTRAIN_WITH_CHARTS
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
CHAPTER_FN void save_picture(dt_comm *comm, dt_chart *chart, const char *say, const char *path_format, ...) {
    char path[512];
    va_list list;
    va_start(list, path_format);
    vsnprintf(path, sizeof path, path_format, list);
    va_end(list);
    check(comm, dt_chart_save(chart, path));
    dt_chart_free(chart);
    printf("%s%s\n", say, path);
}
#endif

// ---- The MPI doctor looks at how the job was started: a warning is printed, an error ends the program.

CHAPTER_FN void ask_doctor(dt_comm *comm, const dt_doctor_desc *desc, bool quiet) {
    char text[2048];
    dt_err error = dt_comm_doctor(comm, desc, text, sizeof text);
    if (*text && dt_comm_rank(comm) == 0 && (error != DT_OK || !quiet)) fputs(text, error != DT_OK ? stderr : stdout);
    fflush(stderr);
    if (error == DT_OK) return;
    dt_barrier(comm);
    dt_comm_free(comm);
    exit(1);
}

// ---- Progress on a terminal, and a clean end on the first SIGINT or SIGTERM.

static volatile sig_atomic_t stop_asked;
CHAPTER_FN void on_signal(int number) { (void)number; stop_asked = 1; }

CHAPTER_FN void end_cleanly_on_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = (int)SA_RESETHAND; // a second signal ends the program at once
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

// For dt_train_desc.on_step; user points at a bool: whether to show progress (rank 0, standard error a terminal).
CHAPTER_FN bool show_progress(const dt_progress *progress, void *user) {
    static double shown;
    const bool *show = user;
    if (show && *show && (progress->epoch_ended || progress->seconds > shown + 0.2 || progress->seconds < shown)) {
        char line[160];
        shown = progress->seconds;
        dt_progress_line(progress, line, sizeof line);
        fprintf(stderr, "\r%-78s%s", line, progress->epoch_ended && progress->epoch + 1 == progress->epochs ? "\r\n" : "");
    }
    return !stop_asked;
}

#endif
