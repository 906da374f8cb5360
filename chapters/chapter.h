// What every chapter program needs and no chapter is about: options, the S0 net, one way to say an error, the lines
// that a program begins and ends with, how it checks itself. The chapters explain the rest.
#ifndef CHAPTER_H
#define CHAPTER_H

#include "../dtrain.h"
#include "says.h"
#include "output.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

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

CHAPTER_FN void sort_numbers(double *x, size_t n) { qsort(x, n, sizeof *x, by_value); }

// fmax for loops over an array: gcc 12 for aarch64 at -O3 breaks off with an internal error where fmax itself stands in one.
CHAPTER_FN double larger(double a, double b) { return b > a ? b : a; }

// ---- Options: each program lists its own; values are checked where they are read.

typedef struct option_desc {
    const char *name;      // "epochs", for --epochs
    char kind;             // 'i' int >= 1, 'u' 64-bit seed, 'f' float > 0, 'z' float >= 0, 's' text, 'b' switch, 'a' algorithm, 'd' data set,
                           // 'h' int: steps, or with an e behind it epochs, which become a number below 0
    void *value;           // int, uint64_t, float, const char *, bool, dt_algorithm, const char *
    const char *help;      // "N   how often the data are seen"
} option_desc;

#define ALGORITHM_OPTION(value) { "algorithm", 'a', value, "A   of the all-reduce: auto, naive, tree, ring, doubling, halving, mpi, shared; default auto" }
#define DATA_OPTION(value) { "data", 'd', value, "   default auto: MNIST if it is there" }
#define AVERAGE_EVERY_HELP "H   steps between two averages, or epochs as 1e, 2e"

CHAPTER_FN void print_help(const char *program, const char *about, const option_desc *options, int count) {
    printf("%s\n\nusage: %s [options]\n", about, program);
    for (int i = 0; i < count; ++i) {
        printf("  --%s", options[i].name);
        if (options[i].kind == 'd') {
            printf(" auto");
            for (int k = 0; dt_dataset_known(k); ++k) printf("|%s", dt_dataset_known(k)->option);
        }
        printf("%s%s\n", *options[i].help == ' ' ? "" : " ", options[i].help);
    }
    printf("  --help          print this\n");
}

CHAPTER_FN bool set_option(const option_desc *o, const char *text, char *why, size_t size) {
    char *end = NULL;
    if (o->kind == 'b') { *(bool *)o->value = true; return true; }
    if (o->kind == 's' || o->kind == 'd') { *(const char **)o->value = text; return true; }
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
    if (o->kind == 'a') {
        if (dt_algorithm_parse(text, o->value) == DT_OK) return true;
        snprintf(why, size, "--%s: %.200s", o->name, dt_error());
        return false;
    }
    if (o->kind == 'h') {
        const long long n = strtoll(text, &end, 10);
        const bool epochs = end != text && *end == 'e' && !end[1];
        if (end != text && (!*end || epochs) && n >= 1 && n <= 1000000000LL) { *(int *)o->value = (int)(epochs ? -n : n); return true; }
        snprintf(why, size, "--%s %s: a number of steps such as 16, or of epochs such as 1e, is needed", o->name, text);
        return false;
    }
    double number = 0.0; // a float of it is above 0 or not as the number is, unless that is below 1e-45
    const float x = dt_number_parse(text, &number) == DT_OK && number < 1e30 ? (float)number : -1.0f;
    if (x > 0.0f || (o->kind == 'z' && x >= 0.0f)) { *(float *)o->value = x; return true; }
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
            exit(exit_code(0));
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

// ---- A clean end on the first SIGINT or SIGTERM, with what was measured so far and exit code 130.

#ifdef HAS_SIGNALS
static volatile sig_atomic_t stop_asked;

// A second signal ends the program at once. But one within half a second is the same request, which was sent to every
// process of the job (as Slurm, systemd and kill do it), and came from the launcher as well.
CHAPTER_FN void on_signal(int number) {
    static struct timespec first;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!stop_asked) first = now;
    stop_asked = 1;
    if ((double)(now.tv_sec - first.tv_sec) + 1e-9 * (double)(now.tv_nsec - first.tv_nsec) < 0.5) return;
    signal(number, SIG_DFL);
    raise(number); // comes when this function returns
}

CHAPTER_FN void end_cleanly_on_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaddset(&action.sa_mask, SIGINT), sigaddset(&action.sa_mask, SIGTERM); // one at a time
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}
#else
enum { stop_asked };

CHAPTER_FN void end_cleanly_on_signals(void) { }
#endif

// Whether any rank was asked to stop: all ranks call it at the same point, and all hear the same.
CHAPTER_FN bool all_stop(dt_comm *comm) {
    int64_t asked = stop_asked;
    check(comm, dt_allreduce(comm, &asked, 1, DT_I64, DT_MAX, DT_AUTO));
    return asked != 0;
}

// Between two measurements: ends the program if any rank was asked to.
CHAPTER_FN void end_if_asked(dt_comm *comm) {
    if (!all_stop(comm)) return;
    if (dt_comm_rank(comm) == 0) printf("stopped early: what stands above was measured, the rest was not\n");
    dt_comm_free(comm);
    exit(exit_code(130));
}

// ---- How a program begins: it joins its ranks, if it was started as several, reads its options, and has the doctor look.
// ---- How it ends.

// Joins the ranks, and compares their command lines word by word before any of them reads its own:
// whatever one of them does from here on, all do. (The program's name may differ from host to host.)
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

// Says to ranks that are threads, too, which all-reduce to use; "mpi" is for processes, and threads then choose for themselves.
CHAPTER_FN dt_err use_algorithm(dt_comm *comm, dt_algorithm algorithm) {
    const bool threads = strcmp(dt_comm_backend_name(comm), "threads") == 0;
    return dt_comm_set_algorithm(comm, threads && algorithm == DT_MPI ? DT_AUTO : algorithm);
}

// Last in main: what it returns.
CHAPTER_FN int leave_ranks(dt_comm *comm, int code) {
    dt_comm_free(comm);
    return exit_code(code);
}

CHAPTER_FN dt_comm *begin_program(int argc, char **argv, const char *about, const option_desc *options, size_t bytes) {
    dt_comm *comm = begin_ranks(argc, argv);
    const char *program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    read_options(argc, argv, comm, about, options, (int)(bytes / sizeof *options));
    for (size_t i = 0; i < bytes / sizeof *options; ++i)
        if (options[i].kind == 'a' && use_algorithm(comm, *(const dt_algorithm *)options[i].value) != DT_OK) usage_error(comm, program, dt_error());
    return comm;
}

CHAPTER_FN int end_program(dt_comm *comm, dt_dataset *train, dt_dataset *test) { // what main returns; data may be NULL
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

// ---- Data: found on every rank; the name was checked as an option, the files may still be missing or broken.

// Where some hosts have the data and others do not, or others, the doctor says so: nobody trains on two data sets at once.
CHAPTER_FN void load_data(dt_comm *comm, const char *which, const char *program, dt_dataset *train, dt_dataset *test) {
    char path[80];
    snprintf(path, sizeof path, "./%s", program);
    dt_comm_phase(comm, "loading data");
    dt_err error = dt_dataset_find(train, test, which);
    if (error == DT_EARG) usage_error(comm, program, dt_error());
    const dt_dataset *sets[] = { train, test };
    const char *found = error != DT_OK ? "" : train ? train->name : test->name;
    int64_t known = 0, mine = 0; // mine: 0 for nothing; else the earlier "auto" looks for it, the more
    while (dt_dataset_known((int)known)) ++known;
    for (int k = 0; k < known; ++k)
        if (strcmp(found, dt_dataset_known(k)->name) == 0) mine = known - k;
    int64_t most = mine, least = mine;
    check(comm, dt_allreduce(comm, &most, 1, DT_I64, DT_MAX, DT_AUTO));
    check(comm, dt_allreduce(comm, &least, 1, DT_I64, DT_MIN, DT_AUTO));
    if (least == most) check_all(comm, error);
    for (int i = 0; i < 2; ++i) {
        char what[40];
        snprintf(what, sizeof what, "%s%s", dt_dataset_known((int)(known - most))->option, least < most ? "" : i == 0 ? " training" : " test");
        const uint64_t hash = mine == most && sets[i] ? sets[i]->hash : 0;
        if (sets[i]) ask_doctor(comm, &(dt_doctor_desc){ .program = path, .data_name = what, .data = hash }, true);
    }
}

// Rows index[0..count-1] of the data as one batch of one rank's own: its loss is the mean over these images alone.
CHAPTER_FN dt_batch batch_of(const dt_dataset *data, const uint32_t *index, uint32_t first, uint32_t count) {
    return (dt_batch){ .pixels = data->pixels, .labels = data->labels, .mean = data->mean, .std = data->std,
                       .index = index, .first = first, .count = count, .global_count = count, .channels = data->channels,
                       .height = data->height, .width = data->width, .rows = data->count };
}

// Steps of the rank with the largest share in one epoch of PSGD; and an average-every option in steps.
CHAPTER_FN uint32_t psgd_steps(uint32_t count, uint32_t batch, int ranks) {
    const uint32_t share = (count + (uint32_t)ranks - 1) / (uint32_t)ranks, own = dt_psgd_batch(batch, ranks);
    return (share + own - 1) / own;
}

CHAPTER_FN uint32_t steps_between(int every, uint32_t steps_an_epoch) {
    const uint64_t steps = every < 0 ? (uint64_t)-every * steps_an_epoch : (uint64_t)every;
    return steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;
}

// A job that runs on several ranks brings its results back in its argument. Ranks that are threads share it, and only rank 0
// writes; processes have one each.
CHAPTER_FN bool brings_result(const dt_comm *comm) {
    return dt_comm_rank(comm) == 0 || strcmp(dt_comm_backend_name(comm), "threads") != 0;
}

// Whether rank 0 can write the file that a program works for, asked before the work. On all ranks.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
CHAPTER_FN void check_output(dt_comm *comm, const char *format, ...) {
    char path[512];
    va_list list;
    va_start(list, format);
    vsnprintf(path, sizeof path, format, list);
    va_end(list);
    if (strncmp(path, "out/", 4) == 0 && dt_comm_rank(comm) == 0) mkdir("out", 0777); // where a reader's own runs go
    check_all(comm, dt_comm_rank(comm) == 0 ? dt_check_writable(path) : DT_OK);
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

// ---- Progress on a terminal.

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
