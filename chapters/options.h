// Command lines. A program lists its options once, a row each: name, what value it takes, where
// that goes, what it is for. --help and every check come from the list.
#ifndef OPTIONS_H
#define OPTIONS_H

#include "../dtrain.h"
#include "output.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define OPTIONS_FN static __attribute__((unused))
#else
#define OPTIONS_FN static
#endif

typedef struct option_desc {
    const char *name;      // "epochs", for --epochs
    int64_t kind;          // the letter of a row of option_kinds below; or UP_TO(n)
    void *value;           // where it goes; keeps what it has if the option is not given
    const char *help;      // "N   how often the data are seen"; begins with a blank if no value
} option_desc;

#define UP_TO(n) ('i' + ((int64_t)(n) << 8)) // kind i, and no more than n
#define OPTION_LETTER(kind) ((char)((kind) & 255))
#define OPTION_MOST(kind) ((long long)((kind) >> 8))

// Rows that several programs have. Data sets by name: those that load_data takes, and those that
// load_any_data does.
#define DATA_OPTION(value) { "data", 'd', value, "   default auto: MNIST if it is there" }
#define ANY_DATA_OPTION(value) { "data", 'D', value, "   default auto: MNIST if it is there" }
#define SEED_OPTION(value) \
    { "seed", 'u', value, "S   of initial values, order and dropout; default 1234" }
#define CHECKPOINT_OPTION(value) \
    { "checkpoint", 's', value, \
      "FILE   keep in it all that the run needs to go on: on a signal, too" }
#define RESUME_OPTION(value) \
    { "resume", 's', value, "FILE   go on from a checkpoint of a run with the same settings" }
#define FIGURES_OPTION(value) { "figures", 's', value, "DIR   where pictures go, default out" }
#define QUICK_OPTION(value) { "quick", 'b', value, "   small settings: those of make check" }
#define ALGORITHM_OPTION(value) \
    { "algorithm", 'a', value, "A   of the all-reduce: auto, naive, tree, ring, doubling, " \
                               "halving, mpi, shared; default auto" }

// ---- Kinds of values. Each reads a text, or says that it cannot.

static bool option_number(const char *text, long long least, long long most, long long *n) {
    char *end = NULL;
    *n = strtoll(text, &end, 10);
    return end != text && !*end && *n >= least && *n <= most;
}

static bool option_int(const option_desc *o, const char *text) {
    long long n;
    const long long most = OPTION_MOST(o->kind) ? OPTION_MOST(o->kind) : 1000000000;
    if (!option_number(text, 1, most, &n)) return false;
    *(int *)o->value = (int)n;
    return true;
}

static bool option_seed(const option_desc *o, const char *text) {
    long long n;
    if (!option_number(text, 0, 1LL << 62, &n)) return false;
    *(uint64_t *)o->value = (uint64_t)n;
    return true;
}

// A float is above 0, or not, as the number is, unless that is below 1e-45.
static bool option_float(const option_desc *o, const char *text) {
    double number = 0.0;
    if (dt_number_parse(text, &number) != DT_OK || !(number < 1e30)) return false;
    const float x = (float)number;
    if (OPTION_LETTER(o->kind) == 'f' ? !(x > 0.0f) : !(x >= 0.0f)) return false;
    *(float *)o->value = x;
    return true;
}

// "16" is 16, steps; "2e" is -2, epochs
static bool option_interval(const option_desc *o, const char *text) {
    char *end = NULL;
    const long long n = strtoll(text, &end, 10);
    const bool epochs = end != text && *end == 'e' && !end[1];
    if (end == text || (*end && !epochs) || n < 1 || n > 1000000000) return false;
    *(int *)o->value = (int)(epochs ? -n : n);
    return true;
}

static bool option_algorithm(const option_desc *o, const char *text) {
    return dt_algorithm_parse(text, o->value) == DT_OK;
}

static bool option_text(const option_desc *o, const char *text) {
    *(const char **)o->value = text;
    return true;
}

static bool option_switch(const option_desc *o, const char *text) {
    (void)text;
    return *(bool *)o->value = true;
}

typedef struct option_kind {
    char letter;
    bool (*read)(const option_desc *o, const char *text);
    const char *needed;    // if the text is none; NULL: dt_error() says it
} option_kind;

static const option_kind option_kinds[] = {
    { 'i', option_int, "a whole number of at least 1" },                           // int
    { 'u', option_seed, "a whole number of at least 0" },                          // uint64_t
    { 'f', option_float, "a number above 0" },                                   // float
    { 'z', option_float, "a number of at least 0" },                             // float
    { 'h', option_interval, "a number of steps such as 16, or of epochs such as 1e" }, // int
    { 'a', option_algorithm, NULL },                                             // dt_algorithm
    { 's', option_text, "text" },                                                // const char *
    { 'd', option_text, "text" },                                                // const char *
    { 'D', option_text, "text" },                                                // const char *
    { 'b', option_switch, "no value" },                                          // bool
};

OPTIONS_FN bool set_option(const option_desc *o, const char *text, char *why, size_t size) {
    const option_kind *kind = option_kinds;
    while (kind->letter != OPTION_LETTER(o->kind)) ++kind;
    if (kind->read(o, text)) return true;
    if (!kind->needed) snprintf(why, size, "--%s: %.200s", o->name, dt_error());
    else if (OPTION_MOST(o->kind))
        snprintf(why, size, "--%s %s: a whole number from 1 to %lld is needed", o->name, text,
                 OPTION_MOST(o->kind));
    else snprintf(why, size, "--%s %s: %s is needed", o->name, text, kind->needed);
    return false;
}

// ---- The whole command line

OPTIONS_FN const char *program_of(char **argv) {
    const char *slash = strrchr(argv[0], '/');
    return slash ? slash + 1 : argv[0];
}

OPTIONS_FN bool grey_28(int channels, int height, int width) {
    return channels == 1 && height == 28 && width == 28;
}

// "--epochs E" in a column of its own; of the help, what stands before three blanks goes there.
OPTIONS_FN void print_option(const option_desc *o) {
    const char *told = strstr(o->help, "   ");
    char left[120];
    int n = snprintf(left, sizeof left, "--%s ", o->name);
    const char letter = OPTION_LETTER(o->kind);
    if (letter == 'd' || letter == 'D') { // the library's list, in its order
        const dt_dataset_kind *set;
        n += snprintf(left + n, sizeof left - (size_t)n, "auto");
        for (int k = 0; (set = dt_dataset_known(k)) != NULL && n < 100; ++k)
            if (letter == 'D' || grey_28(set->channels, set->height, set->width))
                n += snprintf(left + n, sizeof left - (size_t)n, "|%s", set->option);
    }
    if (told)
        n += snprintf(left + n, sizeof left - (size_t)n, "%.*s", (int)(told - o->help), o->help);
    told = told ? told : o->help;
    printf("  %-20s %s%s", left, n > 20 ? "  " : "", told + strspn(told, " "));
    if (OPTION_MOST(o->kind)) printf("; at most %lld", OPTION_MOST(o->kind));
    printf("\n");
}

OPTIONS_FN void print_help(const char *program, const char *about, const option_desc *options,
                           int count) {
    printf("%s\n\nusage: %s [options]\n", about, program);
    for (int i = 0; i < count; ++i) print_option(&options[i]);
    printf("  %-20s print this\n", "--help");
}

typedef enum options_read { OPTIONS_TAKEN, OPTIONS_HELP, OPTIONS_WRONG } options_read;

// Reads the command line into the values. OPTIONS_HELP: it asks for the help; OPTIONS_WRONG: with a
// sentence in why.
OPTIONS_FN options_read parse_options(int argc, char **argv, const option_desc *options, int count,
                                      char *why, size_t size) {
    struct option known[42] = { { "help", no_argument, NULL, 'h' } };
    for (int i = 0; i < count && i < 40; ++i)
        known[i + 1] = (struct option){
            options[i].name, options[i].kind == 'b' ? no_argument : required_argument, NULL, 0 };
    opterr = 0; // getopt would complain once a rank
    for (int at, got; (got = getopt_long(argc, argv, ":", known, &at)) != -1;) {
        const char *word = argv[optind - 1];
        if (got == 'h') return OPTIONS_HELP;
        if (got == ':') snprintf(why, size, "%s needs a value", word);
        if (got == '?') snprintf(why, size, "unknown option %s", word);
        if (got != 0 || !set_option(&options[at - 1], optarg, why, size)) return OPTIONS_WRONG;
    }
    if (optind == argc) return OPTIONS_TAKEN;
    snprintf(why, size, "unexpected \"%s\"", argv[optind]);
    return OPTIONS_WRONG;
}

#endif
