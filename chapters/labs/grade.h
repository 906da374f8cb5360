// What the graders of all labs have in common: random inputs from a printed seed, a student's
// function that runs in a process of its own (sandbox.h), and the list of points.
//
// A lab's grader is one file that is compiled twice: with -DRUNNER it is the program that calls the
// submission, without it the one that draws and judges. They share the types at its top, no more.
#ifndef GRADE_H
#define GRADE_H

#include "sandbox.h"

#ifdef RUNNER
#error "grade.h is the judge's: the runner has no answers in it"
#endif

static const char *jail, *runner, *only;  // lab.so's folder; the tasks whose name has this word
static uint64_t seed, hash = 0xcbf29ce484222325u; // of what came back
static uint64_t drawn;                            // numbers so far
static bool timing = true;                // false: nothing that depends on a clock is graded
static int points, possible;
static double used;                       // seconds of computing that the last run took

// ---- Inputs. Fractions with few bits: sums of a few hundred products of them are exact in floats
// ---- in any order, so that a right answer is right to the last bit, however it was added up.

// splitmix64 (Steele, Lea and Flood 2014) of the seed and how many were drawn
GRADE uint32_t draw(uint32_t below) {
    uint64_t z = seed + ++drawn * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32) % below;
}

GRADE int between(int from, int to) { return from + (int)draw((uint32_t)(to - from + 1)); }
GRADE float eighth(void) { return (float)between(-16, 16) / 8.0f; }

// ---- Memory that the runner sees, and those places of it that come back.

enum { FENCE = 64, MOST_REGIONS = 512 };
static const float fence_value = -7777.25f;
static size_t arena_used = ARENA_HEAD;
static struct region { void *at; size_t bytes; } regions[MOST_REGIONS];
static int region_count;

GRADE void stop(const char *what) {
    perror(what);
    exit(2);
}

// What the runner sees, and cannot change for us.
GRADE void *shown(size_t bytes) {
    void *p = arena + arena_used;
    arena_used += (bytes + 63) / 64 * 64;
    if (arena_used > ARENA_BYTES) errno = ENOMEM, stop("grader");
    memset(p, 0, bytes);
    return p;
}

// What the runner sees, and what comes back from it.
GRADE void *returned(size_t bytes) {
    void *p = shown(bytes);
    if (region_count == MOST_REGIONS) errno = ENOMEM, stop("grader");
    regions[region_count++] = (struct region){ p, bytes };
    return p;
}

GRADE void forget(void) { arena_used = ARENA_HEAD, region_count = 0; }

// n floats that come back, with a fence on both sides
GRADE float *outputs(size_t n, float first_value) {
    float *p = (float *)returned((n + 2 * FENCE) * sizeof *p) + FENCE;
    for (size_t i = 0; i < FENCE; ++i) p[n + i] = *(p - 1 - i) = fence_value;
    for (size_t i = 0; i < n; ++i) p[i] = first_value;
    return p;
}

GRADE float *inputs(size_t n) {
    float *p = shown(n * sizeof *p);
    for (size_t i = 0; i < n; ++i) p[i] = eighth();
    return p;
}

// random numbers that come back: changed, or to be left alone
GRADE float *changed(size_t n) {
    float *p = outputs(n, 0.0f);
    for (size_t i = 0; i < n; ++i) p[i] = eighth();
    return p;
}

GRADE double *doubles(const float *from, size_t n) {
    double *p = malloc((n ? n : 1) * sizeof *p);
    if (!p) stop("grader");
    for (size_t i = 0; i < n; ++i) p[i] = (double)from[i];
    return p;
}

GRADE bool fence_broken(const float *p, size_t n) {
    for (size_t i = 0; i < FENCE; ++i)
        if (p[n + i] < fence_value || p[n + i] > fence_value || *(p - 1 - i) < fence_value ||
            *(p - 1 - i) > fence_value)
            return true;
    return false;
}

// ---- The runner's process.

GRADE int arena_file(void) {
    char name[] = "/tmp/labXXXXXX";
    const int file = mkstemp(name);
    if (file < 0 || unlink(name) != 0) stop("grader");
    if (write(file, arena, arena_used) != (ssize_t)arena_used) stop("grader");
    return file;
}

#define LIMIT(what, soft, hard) setrlimit(what, &(const struct rlimit){ soft, hard })

// Never returns.
GRADE void become_runner(const char *name, const char *how, const void *arg, int seconds,
                         int file) {
    char at[32], bytes[32];
    snprintf(at, sizeof at, "%llu", (unsigned long long)(uintptr_t)arg);
    snprintf(bytes, sizeof bytes, "%zu", arena_used);
    setpgid(0, 0);
    const int nothing = open("/dev/null", O_RDWR);
    if (nothing < 0 || dup2(file, ARENA_FILE) < 0) _exit(1);
    for (int i = 0; i < 3; ++i) dup2(nothing, i);
    for (int i = ARENA_FILE + 1; i < 256; ++i) close(i);
    LIMIT(RLIMIT_CPU, (rlim_t)seconds, (rlim_t)seconds + 1), LIMIT(RLIMIT_FSIZE, 0, 0);
    LIMIT(RLIMIT_CORE, 0, 0), LIMIT(RLIMIT_NOFILE, 16, 16);
    LIMIT(RLIMIT_AS, (rlim_t)2 << 30, (rlim_t)2 << 30);
    char *const nobody[] = { NULL };
    execve(runner,
           (char *const[]){ (char *)(uintptr_t)runner, (char *)(uintptr_t)jail,
                            (char *)(uintptr_t)name, (char *)(uintptr_t)how, at, bytes, NULL },
           nobody);
    _exit(1);
}

GRADE double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

GRADE double of_time(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

// Waits for the child; false if it had to be ended. Whatever it has started is ended with it.
GRADE bool wait_for(pid_t child, double seconds, int *status) {
    struct rusage usage;
    const double start = now();
    bool in_time = true;
    while (in_time && wait4(child, status, WNOHANG, &usage) == 0) {
        const struct timespec moment = { 0, 300000 };
        in_time = now() - start < seconds;
        if (in_time) nanosleep(&moment, NULL);
    }
    kill(-child, SIGKILL);
    if (!in_time) wait4(child, status, 0, &usage);
    used = of_time(usage.ru_utime) + of_time(usage.ru_stime);
    return in_time;
}

// Brings back what comes back; how far the runner has come.
GRADE int bring_back(int file) {
    int state = 0;
    bool whole = pread(file, &state, sizeof state, 0) == (ssize_t)sizeof state;
    for (int i = 0; i < region_count; ++i)
        whole = pread(file, regions[i].at, regions[i].bytes, (char *)regions[i].at - arena) ==
                    (ssize_t)regions[i].bytes &&
                whole;
    close(file);
    return whole ? state : 0;
}

// A function that has not returned twice is not tried a third time, and after five calls that have
// not returned nothing is tried any more: a class is to be graded in minutes.
static int late_in_all;

GRADE int *late(const char *name) {
    static struct { const char *name; int times; } functions[16];
    int i = 0;
    while (i < 15 && functions[i].name && strcmp(functions[i].name, name) != 0) ++i;
    functions[i].name = name;
    return &functions[i].times;
}

GRADE const char *no_return(const char *name, int seconds) {
    static char text[200];
    if (late_in_all > 4)
        snprintf(text, sizeof text, "not tried: five calls before it have not returned");
    else snprintf(text, sizeof text, "%s has not returned after %d s", name, seconds);
    return text;
}

// Calls the submission's function `name` by the runner's call `how`. NULL, or what went wrong.
GRADE const char *run(const char *name, const char *how, const void *arg, int seconds) {
    static char text[200];
    if (*late(name) > 1 || late_in_all > 4) return no_return(name, seconds);
    int status = 0;
    memset(arena, 0, ARENA_HEAD);
    const int file = arena_file();
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) stop("grader");
    if (child == 0) become_runner(name, how, arg, seconds, file);
    const bool in_time = wait_for(child, seconds + 0.5, &status);
    const int state = bring_back(file);
    if (!in_time || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)) {
        const char *wrong = no_return(name, seconds);
        ++*late(name), ++late_in_all;
        return wrong;
    }
    if (state == DONE && WIFEXITED(status) && WEXITSTATUS(status) == 0) return NULL;
    if (state == NO_FUNCTION) snprintf(text, sizeof text, "there is no function %s", name);
    else if (state == NOT_LOADED)
        snprintf(text, sizeof text, "it cannot be loaded: a function is missing");
    else if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "%s ends with signal %d (%s)", name, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (state == 0 || state == NO_CALL)
        snprintf(text, sizeof text, "the runner %s cannot work here", runner);
    else snprintf(text, sizeof text, "%s ends the program", name);
    return text;
}

// ---- Judging. Each returns NULL if all is as wanted, else one sentence with what was wanted and
// ---- got.

// FNV-1a (Fowler, Noll, Vo) over the wanted values where they came back, else over what came back:
// with full marks it is the hash of the answers, which depends on the seed alone.
GRADE void hash_bytes(uint64_t *h, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; ++i) *h = (*h ^ p[i]) * 0x100000001b3u;
}

GRADE const char *differ(const char *name, const float *got, const double *wanted, size_t n,
                         double most) {
    static char text[200];
    const char *wrong = NULL;
    for (size_t i = 0; i < n; ++i) {
        const double off = fabs((double)got[i] - wanted[i]);
        const bool right = off <= most * fmax(1.0, fabs(wanted[i])); // not for NaN
        const float value = right ? (float)wanted[i] : got[i];
        hash_bytes(&hash, &value, sizeof value);
        if (right || wrong) continue;
        snprintf(text, sizeof text, "%s[%zu]: wanted %.7g, got %.7g", name, i, wanted[i],
                 (double)got[i]);
        wrong = text;
    }
    if (wrong || !fence_broken(got, n)) return wrong;
    snprintf(text, sizeof text, "%s: something was written before or behind its %zu values", name,
             n);
    return text;
}

GRADE const char *differ_whole(const char *name, long long got, long long wanted) {
    static char text[200];
    hash_bytes(&hash, &got, sizeof got);
    if (got == wanted) return NULL;
    snprintf(text, sizeof text, "%s: wanted %lld, got %lld", name, wanted, got);
    return text;
}

// the first of two sentences that is one
GRADE const char *either(const char *a, const char *b) { return a ? a : b; }

GRADE bool wanted_task(const char *name) { return !only || strstr(name, only); }

// ---- The list of points, and the same for Gradescope.

static struct line { const char *name; int worth; bool right; char wrong[240]; } list[64];
static int list_count;

// One line of the list: all points if nothing is wrong, else none.
GRADE void give(const char *name, int worth, const char *wrong) {
    forget();
    if (!wanted_task(name)) return;
    possible += worth;
    if (!wrong) points += worth;
    if (wrong) printf("  0 of %3d  %-30s %s\n", worth, name, wrong);
    else printf("%3d of %3d  %s\n", worth, worth, name);
    fflush(stdout);
    if (list_count == 64) return;
    struct line *l = &list[list_count++];
    l->name = name, l->worth = worth, l->right = !wrong;
    snprintf(l->wrong, sizeof l->wrong, "%s", wrong ? wrong : "");
}

GRADE void write_text(FILE *to, const char *text) {
    putc('"', to);
    for (; *text; ++text)
        if (*text == '"' || *text == '\\') fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text < ' ' || (unsigned char)*text > '~') putc('?', to);
        else putc(*text, to);
    putc('"', to);
}

// https://gradescope-autograders.readthedocs.io, "Specifications": results.json
GRADE void write_results(const char *file, const char *source, double seconds) {
    FILE *to = fopen(file, "w");
    if (!to) stop(file);
    fprintf(to, "{\n  \"score\": %d,\n  \"execution_time\": %.0f,\n  \"output\": ", points,
            ceil(seconds));
    char text[300];
    snprintf(text, sizeof text, "%.150s, seed %llu, answers %016llx", source,
             (unsigned long long)seed, (unsigned long long)hash);
    write_text(to, text);
    fprintf(to, ",\n  \"tests\": [");
    for (int i = 0; i < list_count; ++i) {
        fprintf(to, "%s\n    { \"name\": ", i ? "," : "");
        write_text(to, list[i].name);
        fprintf(to, ", \"score\": %d, \"max_score\": %d, \"status\": \"%s\", \"output\": ",
                list[i].right ? list[i].worth : 0, list[i].worth,
                list[i].right ? "passed" : "failed");
        write_text(to, list[i].wrong);
        fprintf(to, " }");
    }
    fprintf(to, "\n  ]\n}\n");
    if (ferror(to) || fclose(to) != 0) stop(file);
}

// ---- main of every grader

static void grade(void);                  // the lab's own

static const char *student, *results, *zero; // zero: why there are no points, whatever it does
static bool seed_said;

static bool read_options(int argc, char **argv) {
    for (int i = 4; i < argc; ++i)
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10), seed_said = true;
        else if (strcmp(argv[i], "--student") == 0 && i + 1 < argc) student = argv[++i];
        else if (strcmp(argv[i], "--results") == 0 && i + 1 < argc) results = argv[++i];
        else if (strcmp(argv[i], "--zero") == 0 && i + 1 < argc) zero = argv[++i];
        else if (strcmp(argv[i], "--no-timing") == 0) timing = false;
        else if (argv[i][0] != '-' && !only) only = argv[i];
        else return false;
    return argc > 3;
}

// grade05 SOURCE FOLDER RUNNER [--seed S] [--student ID] [--no-timing] [--results FILE]
// [--zero WHY] [word of a task's name]. FOLDER has lab.so. Exit code 0 for full marks, 1 below, 2
// for trouble.
int main(int argc, char **argv) {
    const double start = now();
    if (!read_options(argc, argv)) {
        fprintf(stderr,
                "usage: %s SOURCE FOLDER RUNNER [--seed S] [--student ID] [--no-timing] "
                "[--results FILE] [word of a task's name]\n",
                argv[0]);
        return 2;
    }
    jail = argv[2], runner = argv[3];
    if (!seed_said && !student) seed = ((uint64_t)time(NULL) * 1000003u + (uint64_t)getpid());
    if (!seed_said && !student) seed %= 1000000000u;
    const unsigned long long s = seed;
    if (student) printf("%s, seed %llu, student %s\n", argv[1], s, student);
    else printf("%s, seed %llu (again: --seed %llu)\n", argv[1], s, s);
    if (student) hash_bytes(&seed, student, strlen(student));
    if (mmap(arena, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
        arena)
        stop("grader: its memory is not where the runner looks for it");
    if (zero) give("everything", 100, zero);
    else grade();
    if (!zero && !only && points == possible)
        printf("answers %016llx\n", (unsigned long long)hash);
    printf("%d of %d points\n", points, possible);
    if (results) write_results(results, argv[1], now() - start);
    return points == possible && possible > 0 ? 0 : 1;
}

#endif
