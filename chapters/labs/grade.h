// What the graders of all labs have in common: random inputs from a printed seed, a student's
// function that runs in a process of its own, and the list of points.
//
// The parent never runs a line of the submission. It draws inputs, starts a child, and judges what
// the child has written into memory that both share. The child alone loads the submission (as a
// shared object, so that even its constructors run there), with limits on time, memory and files,
// and with its output thrown away: a crash, an endless loop, exit(0) or a printed "100 of 100" gain
// nothing.
//
// It protects from mistakes and from the obvious tricks, not from an attacker: the child has the
// user's rights. For submissions of strangers run the grader in a container or as another user.
#ifndef GRADE_H
#define GRADE_H

#include "dtrain.h"

#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__GNUC__)
#define GRADE static __attribute__((unused))
#define GRADE_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define GRADE static
#define GRADE_PRINTF(f, a)
#endif

static const char *submission, *only;      // the shared object; the tasks whose name has this word
static uint64_t seed;
static uint32_t drawn;                     // numbers so far
static bool timing = true;                 // false: nothing that depends on a clock is graded
static int points, possible;

// ---- Inputs. Fractions with few bits: sums of a few hundred products of them are exact in floats
// ---- in any order, so that a right answer is right to the last bit, however it was added up.

GRADE uint32_t draw(uint32_t below) {
    return dt_philox(seed, DT_RNG_TEST, 99, 0, drawn++).v[0] % below;
}

GRADE int between(int from, int to) { return from + (int)draw((uint32_t)(to - from + 1)); }
GRADE float eighth(void) { return (float)between(-16, 16) / 8.0f; }

// ---- Memory that the child writes and the parent reads, with a fence on both sides.

enum { FENCE = 64 };
static const float fence_value = -7777.25f;

GRADE void *shared(size_t bytes) {
    void *p =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) return p;
    perror("grader");
    exit(2);
}

// n floats that nobody has written yet
GRADE float *outputs(size_t n, float first_value) {
    float *p = (float *)shared((n + 2 * FENCE) * sizeof *p) + FENCE;
    for (size_t i = 0; i < FENCE; ++i) p[n + i] = *(p - 1 - i) = fence_value;
    for (size_t i = 0; i < n; ++i) p[i] = first_value;
    return p;
}

GRADE float *inputs(size_t n) {
    float *p = outputs(n, 0.0f);
    for (size_t i = 0; i < n; ++i) p[i] = eighth();
    return p;
}

GRADE bool fence_broken(const float *p, size_t n) {
    for (size_t i = 0; i < FENCE; ++i)
        if (p[n + i] < fence_value || p[n + i] > fence_value || *(p - 1 - i) < fence_value ||
            *(p - 1 - i) > fence_value)
            return true;
    return false;
}

// ---- The child.

enum { DONE = 0x600d };
typedef void call(void *function, void *arg);

// Calls the submission's function by that name through `how`, in a child. NULL, or what went wrong.
GRADE const char *run(const char *name, call *how, void *arg, int seconds) {
    static char trouble[200];
    volatile int *state = shared(sizeof *state);
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) { perror("grader"); exit(2); }
    if (child == 0) {
        setpgid(0, 0);
        const struct rlimit time = { (rlim_t)seconds, (rlim_t)seconds + 1 }, none = { 0, 0 };
        const struct rlimit memory = { 2u << 30, 2u << 30 };
        setrlimit(RLIMIT_CPU, &time), setrlimit(RLIMIT_FSIZE, &none);
        setrlimit(RLIMIT_CORE, &none), setrlimit(RLIMIT_AS, &memory);
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(1);
        void *object = dlopen(submission, RTLD_NOW),
             *function = object ? dlsym(object, name) : NULL;
        *state = function ? 1 : object ? 2 : 3;
        if (!function) _exit(1);
        how(function, arg);
        *state = DONE;
        _exit(0);
    }
    int status = 0;
    const double start = dt_now();
    while (waitpid(child, &status, WNOHANG) == 0) {
        const struct timespec moment = { 0, 500000 };
        if (dt_now() - start > seconds + 0.5) {
            kill(-child, SIGKILL);
            waitpid(child, &status, 0);
            snprintf(trouble, sizeof trouble, "%s has not returned after %d s", name, seconds);
            return trouble;
        }
        nanosleep(&moment, NULL);
    }
    kill(-child, SIGKILL);                                // and whatever it has started
    const int said = *state;
    munmap((void *)(uintptr_t)state, sizeof *state);
    if (said == DONE && WIFEXITED(status)) return NULL;
    if (said == 2) snprintf(trouble, sizeof trouble, "there is no function %s", name);
    else if (said == 3)
        snprintf(trouble, sizeof trouble, "it cannot be loaded: a function is missing");
    else if (WIFSIGNALED(status))
        snprintf(trouble, sizeof trouble, "%s ends with signal %d (%s)", name, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else snprintf(trouble, sizeof trouble, "%s ends the program", name);
    return trouble;
}

// ---- Judging. Each returns NULL if all is as wanted, else one sentence with what was wanted and
// ---- got.

GRADE const char *differ(const char *name, const float *got, const double *wanted, size_t n,
                         double most) {
    static char text[200];
    for (size_t i = 0; i < n; ++i) {
        const double off = fabs((double)got[i] - wanted[i]);
        if (off <= most * fmax(1.0, fabs(wanted[i]))) continue;
        snprintf(text, sizeof text, "%s[%zu]: wanted %.7g, got %.7g", name, i, wanted[i],
                 (double)got[i]);
        return text;
    }
    if (!fence_broken(got, n)) return NULL;
    snprintf(text, sizeof text, "%s: something was written before or behind its %zu values", name,
             n);
    return text;
}

GRADE bool wanted_task(const char *name) { return !only || strstr(name, only); }

// One line of the list: all points if nothing is wrong, else none.
GRADE void give(const char *name, int worth, const char *wrong) {
    if (!wanted_task(name)) return;
    possible += worth;
    if (!wrong) points += worth;
    if (wrong) printf("  0 of %3d  %-30s %s\n", worth, name, wrong);
    else printf("%3d of %3d  %s\n", worth, worth, name);
    fflush(stdout);
}

// ---- main of every grader

static void grade(void);                                  // the lab's own

// grade-lab05 lab05.c lab05.so [--seed S] [--no-timing] [word]: exit code 0 for full marks, 1
// below, 2 for trouble
int main(int argc, char **argv) {
    seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    seed %= 1000000000u;
    for (int i = 3; i < argc; ++i)
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--no-timing") == 0) timing = false;
        else only = argv[i];
    if (argc < 3) {
        fprintf(stderr,
                "usage: %s SOURCE OBJECT [--seed S] [--no-timing] [word of a task's name]\n",
                argv[0]);
        return 2;
    }
    submission = argv[2];
    char line[4096];
    FILE *source = fopen(argv[1], "r");
    if (!source) { perror(argv[1]); return 2; }
    bool borrowed = false;
    while (fgets(line, sizeof line, source)) borrowed = borrowed || strstr(line, "dtrain.h");
    fclose(source);
    printf("%s, seed %llu (again: --seed %llu)\n", argv[1], (unsigned long long)seed,
           (unsigned long long)seed);
    if (borrowed) {
        printf("  0 of 100  it includes dtrain.h: the answers are to be your own\n");
        return 1;
    }
    grade();
    printf("%d of %d points\n", points, possible);
    return points == possible && possible > 0 ? 0 : 1;
}

#endif
