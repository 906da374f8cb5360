// What every chapter needs and none is about: errors, checks, how a program begins and ends, the
// net and the data that they share, a picture that becomes a file. Options are in options.h; what
// only programs of several ranks need, in ranks.h. The chapters explain the rest.
#ifndef CHAPTER_H
#define CHAPTER_H

#include "../dtrain.h"
#include "options.h"
#include "output.h"
#include "says.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#if defined(__GNUC__)
#define CHAPTER_FN static __attribute__((unused)) // also for the few variables here
#define CHAPTER_NORETURN __attribute__((noreturn))
#define CHAPTER_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define CHAPTER_FN static
#define CHAPTER_NORETURN
#define CHAPTER_PRINTF(f, a)
#endif

// ---- Before main: was this program compiled for another machine [E1.9]? It would else end with
// ---- "Illegal instruction", somewhere, and no word of the reason.
#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((constructor)) static void ask_the_processor(void) {
    if (dt_check_processor() == DT_OK) return;
    fputs(dt_error(), stderr);
    fputs("\n", stderr);
    _Exit(1);
}
#endif

// ---- Errors. A wrong command line is everybody's error: rank 0 says it, all ranks end with 2. Any
// ---- other error may have met one rank alone: that rank says so, and stops the whole job with 1.

CHAPTER_FN CHAPTER_NORETURN void usage_error(dt_comm *comm, const char *program,
                                             const char *sentence) {
    if (!comm || dt_comm_rank(comm) == 0)
        fprintf(stderr, "%s: %s (try --help)\n", program, sentence);
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

// An error that usually meets every rank alike, such as a missing file: the lowest rank that met it
// says it, once.
CHAPTER_FN void check_all(dt_comm *comm, dt_err error) {
    int mine = error != DT_OK, all[1024] = { 0 };
    const int p = dt_comm_size(comm);
    if (p > 1024 || dt_allgather(comm, &mine, sizeof mine, all) != DT_OK) {
        check(comm, error);
        return;
    }
    int failed = 0, first = -1;
    for (int r = p - 1; r >= 0; --r)
        if (all[r]) ++failed, first = r;
    if (!failed) return;
    if (dt_comm_rank(comm) == first) {
        if (failed < p && first > 0)
            fprintf(stderr, "[rank %d, %s] ", first, dt_comm_host(comm, first));
        fprintf(stderr, "%s\n", dt_error());
        fflush(stderr);
    }
    dt_barrier(comm);
    dt_comm_free(comm);
    exit(1);
}

// ---- What a chapter claims, it checks. A claim that fails is printed; expect() goes on to the
// ---- next one, and the program ends with 1 (end_program); must() ends it at once, on all ranks
// ---- alike, and prints also what holds.

CHAPTER_FN int mismatches;

CHAPTER_FN void expect(bool true_as_hoped, const char *what) {
    if (true_as_hoped) return;
    printf("MISMATCH  %s\n", what);
    ++mismatches;
}

CHAPTER_FN void must(dt_comm *comm, bool holds, const char *sentence) {
    if (dt_comm_rank(comm) == 0)
        fprintf(holds ? stdout : stderr, "%s%s\n", holds ? "" : "NOT TRUE: ", sentence);
    if (holds) return;
    dt_comm_free(comm);
    exit(1);
}

// ---- Memory, zeroed, or the program ends. Sorting, medians and ranges; the larger of two numbers.

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

CHAPTER_FN void sort_numbers(double *x, size_t n) { qsort(x, n, sizeof *x, by_value); }

// What several runs gave; sorts them.
typedef struct trials { double median, least, most; } trials;

CHAPTER_FN trials trials_of(double *x, size_t n) {
    sort_numbers(x, n);
    return (trials){ 0.5 * (x[(n - 1) / 2] + x[n / 2]), x[0], x[n - 1] };
}

// fmax for loops over an array: gcc 12 for aarch64 at -O3 breaks off with an internal error where
// fmax itself stands in one.
CHAPTER_FN double larger(double a, double b) { return b > a ? b : a; }

// ---- How a program begins: it joins its ranks, if it was started as several, reads its options,
// ---- and has the MPI doctor look at how the job was started. How it ends.

// A warning of the doctor's is printed, an error ends the program.
CHAPTER_FN void ask_doctor(dt_comm *comm, const dt_doctor_desc *desc, bool quiet) {
    char text[2048];
    const dt_err error = dt_comm_doctor(comm, desc, text, sizeof text);
    if (*text && dt_comm_rank(comm) == 0 && (error != DT_OK || !quiet))
        fputs(text, error != DT_OK ? stderr : stdout);
    fflush(stderr);
    if (error == DT_OK) return;
    dt_barrier(comm);
    dt_comm_free(comm);
    exit(1);
}

// Joins the ranks, and compares their command lines word by word before any of them reads its own:
// whatever one of them does from here on, all do. (The program's name may differ from host to
// host.)
CHAPTER_FN dt_comm *begin_ranks(int argc, char **argv) {
    begin_output();
    dt_comm *comm = dt_comm_world(&argc, &argv);
    if (!comm) die(NULL);
    size_t bytes = 2;
    for (int i = 1; i < argc; ++i) bytes += strlen(argv[i]) + 1;
    char *said = memory(bytes);
    for (int i = 1; i < argc; ++i) { // an option and its value are one line
        if (i > 1) strcat(said, strncmp(argv[i], "--", 2) == 0 ? "\n" : " ");
        strcat(said, argv[i]);
    }
    ask_doctor(comm, &(dt_doctor_desc){ .program = argv[0], .settings = said }, true);
    free(said);
    return comm;
}

// Ends the program on --help (0) and on anything wrong (2).
CHAPTER_FN void read_options(int argc, char **argv, dt_comm *comm, const char *about,
                             const option_desc *options, int count) {
    char why[256];
    const options_read read = parse_options(argc, argv, options, count, why, sizeof why);
    if (read == OPTIONS_TAKEN) return;
    if (read == OPTIONS_WRONG) usage_error(comm, program_of(argv), why);
    if (dt_comm_rank(comm) == 0) print_help(program_of(argv), about, options, count);
    dt_comm_free(comm);
    exit(exit_code(0));
}

// Says to ranks that are threads, too, which all-reduce to use; "mpi" is for processes, and threads
// then choose for themselves.
CHAPTER_FN dt_err use_algorithm(dt_comm *comm, dt_algorithm algorithm) {
    const bool threads = strcmp(dt_comm_backend_name(comm), "threads") == 0;
    return dt_comm_set_algorithm(comm, threads && algorithm == DT_MPI ? DT_AUTO : algorithm);
}

CHAPTER_FN dt_comm *begin_program(int argc, char **argv, const char *about,
                                  const option_desc *options, size_t bytes) {
    const size_t count = bytes / sizeof *options;
    dt_comm *comm = begin_ranks(argc, argv);
    read_options(argc, argv, comm, about, options, (int)count);
    for (size_t i = 0; i < count; ++i)
        if (options[i].kind == 'a' &&
            use_algorithm(comm, *(const dt_algorithm *)options[i].value) != DT_OK)
            usage_error(comm, program_of(argv), dt_error());
    return comm;
}

// Last in main: what it returns.
CHAPTER_FN int leave_ranks(dt_comm *comm, int code) {
    dt_comm_free(comm);
    return exit_code(code);
}

CHAPTER_FN int end_program(dt_comm *comm, dt_dataset *train, dt_dataset *test) { // data may be NULL
    dt_dataset_free(train);
    dt_dataset_free(test);
    return leave_ranks(comm, mismatches ? 1 : 0);
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

// ---- Data: found on every rank; the name was checked as an option, the files may still be missing
// ---- or broken.

// Where some hosts have the data and others do not, or others, the doctor says so: nobody trains on
// two data sets at once.
CHAPTER_FN void load_any_data(dt_comm *comm, const char *which, const char *program,
                              dt_dataset *train, dt_dataset *test) {
    char path[80];
    snprintf(path, sizeof path, "./%s", program);
    dt_comm_phase(comm, "loading data");
    dt_err error = dt_dataset_find(train, test, which);
    if (error == DT_EARG) usage_error(comm, program, dt_error());
    const dt_dataset *sets[] = { train, test };
    const char *found = error != DT_OK ? "" : train ? train->name : test->name;
    // mine: 0 for nothing; else the earlier "auto" asks for it, the more
    int64_t known = 0, mine = 0;
    while (dt_dataset_known((int)known)) ++known;
    for (int k = 0; k < known; ++k)
        if (strcmp(found, dt_dataset_known(k)->name) == 0) mine = known - k;
    int64_t most = mine, least = mine;
    check(comm, dt_allreduce(comm, &most, 1, DT_I64, DT_MAX, DT_AUTO));
    check(comm, dt_allreduce(comm, &least, 1, DT_I64, DT_MIN, DT_AUTO));
    if (least == most) check_all(comm, error);
    for (int i = 0; i < 2; ++i) {
        char what[40];
        snprintf(what, sizeof what, "%s%s", dt_dataset_known((int)(known - most))->option,
                 least < most ? "" : i == 0 ? " training" : " test");
        const uint64_t hash = mine == most && sets[i] ? sets[i]->hash : 0;
        const dt_doctor_desc desc = { .program = path, .data_name = what, .data = hash };
        if (sets[i]) ask_doctor(comm, &desc, true);
    }
}

// The same for programs whose net, or whose loops over 784 pixels, are made for images of 28 x 28
// grey pixels.
CHAPTER_FN void load_data(dt_comm *comm, const char *which, const char *program, dt_dataset *train,
                          dt_dataset *test) {
    load_any_data(comm, which, program, train, test);
    const dt_dataset *d = train ? train : test;
    if (grey_28(d->channels, d->height, d->width)) return;
    check_all(comm, dt_fail(DT_ESHAPE, "%s has %d x %d x %d images, and %s is made for 1 x 28 x 28",
                            d->name, d->channels, d->height, d->width, program));
}

// Rows index[0..count-1] of the data as one batch of one rank's own: its loss is the mean over
// these images alone.
CHAPTER_FN dt_batch batch_of(const dt_dataset *data, const uint32_t *index, uint32_t first,
                             uint32_t count) {
    return (dt_batch){ .pixels = data->pixels, .labels = data->labels, .mean = data->mean,
                       .std = data->std, .index = index, .first = first, .count = count,
                       .global_count = count, .channels = data->channels, .height = data->height,
                       .width = data->width, .rows = data->count };
}

// ---- What a program runs on, said before its first table.

CHAPTER_FN void print_machine(const dt_comm *comm, const dt_dataset *data, int threads) {
    char machine[256];
    if (dt_comm_rank(comm) != 0) return;
    dt_machine_caption(machine, sizeof machine);
    if (data)
        printf("data     %s, %u images: %s\n", data->name, (unsigned)data->count, data->source);
    printf("machine  %s\n", machine);
    printf("workers  %d rank%s (%s), %d thread%s each, on %d core%s\n", dt_comm_size(comm),
           plural(dt_comm_size(comm)), dt_comm_backend_name(comm), threads, plural(threads),
           dt_cores(), plural(dt_cores()));
    fflush(stdout);
}

// ---- Outputs. Whether rank 0 can write the file that a program works for is asked before the
// ---- work, on all ranks; a finished chart becomes a file, its numbers beside it as CSV.

CHAPTER_FN void check_output(dt_comm *comm, const char *format, ...) CHAPTER_PRINTF(2, 3);
CHAPTER_FN void check_output(dt_comm *comm, const char *format, ...) {
    char path[512];
    va_list list;
    va_start(list, format);
    vsnprintf(path, sizeof path, format, list);
    va_end(list);
    if (strncmp(path, "out/", 4) == 0 && dt_comm_rank(comm) == 0)
        mkdir("out", 0777); // where a reader's own runs go
    check_all(comm, dt_comm_rank(comm) == 0 ? dt_check_writable(path) : DT_OK);
}

#ifdef DTRAIN_WITH_CHARTS
CHAPTER_FN void save_picture(dt_comm *comm, dt_chart *chart, const char *say_first,
                             const char *path_format, ...) CHAPTER_PRINTF(4, 5);
CHAPTER_FN void save_picture(dt_comm *comm, dt_chart *chart, const char *say_first,
                             const char *path_format, ...) {
    char path[512];
    va_list list;
    va_start(list, path_format);
    vsnprintf(path, sizeof path, path_format, list);
    va_end(list);
    check(comm, dt_chart_save(chart, path));
    dt_chart_free(chart);
    printf("%s%s\n", say_first, path);
}

// What workers can reach at best, in a chart of speedups: a core each, as long as there are cores.
CHAPTER_FN void draw_ideal(dt_chart *chart, int cores, int most) {
    const double bend = cores < most ? cores : most;
    dt_chart_reference(chart, &(dt_reference){ .label = "ideal", .slope = 1.0, .from = 1.0,
                                               .to = bend });
    if (most > cores)
        dt_chart_reference(chart, &(dt_reference){ .label = "all cores busy", .offset = bend,
                                                   .from = bend, .to = most });
}
#endif

#endif
