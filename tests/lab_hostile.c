/* Submissions of lab 5 that want points without work, or harm: one for each ATTACK, 1 to 20. Each
   must have 0 points, and the grader must outlive it; tests/test_labs_more.sh tries them. SOLVED
   names a shared object of the solved lab, SOURCE its file, VICTIM a file of the grader's user. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void attack(void);

#if ATTACK == 1 /* prints the pass lines and ends well, before anything is called */
__attribute__((constructor)) static void first(void) {
    puts("  8 of   8  linear_backward, dx\n100 of 100 points");
    fflush(stdout);
    _exit(0);
}
static void attack(void) { }
#elif ATTACK == 2 /* never returns */
static void attack(void) {
    for (volatile int forever = 1; forever;) { }
}
#elif ATTACK == 3 /* forks, and its children fork */
__attribute__((constructor)) static void first(void) {
    for (int i = 0; i < 1000000; ++i)
        if (fork() == 0) i = 0;
}
static void attack(void) { }
#elif ATTACK == 4 /* gigabytes of output */
static void attack(void) {
    static char text[1 << 20];
    memset(text, '1', sizeof text);
    for (int i = 0; i < 100000; ++i)
        if (write(1, text, sizeof text) < 0 || write(2, text, sizeof text) < 0) break;
}
#elif ATTACK == 5 /* early exit(0) */
static void attack(void) { exit(0); }
#elif ATTACK == 6 /* borrows the solved lab's functions */
static void attack(void) { }
#define BORROW
#elif ATTACK == 7 /* reads the solution, and whatever else lies there; a find is told by a signal */
static void attack(void) {
    const char *const files[] = { SOURCE, "/etc/passwd", "/proc/self/maps", "/proc/self/environ" };
    for (int i = 0; i < 4; ++i)
        if (open(files[i], O_RDONLY) >= 0) raise(SIGUSR1);
}
#elif ATTACK == 8 /* writes to others' files, removes and renames them */
__attribute__((constructor)) static void first(void) {
    const int file = open(VICTIM, O_WRONLY | O_TRUNC);
    if (file >= 0 && write(file, "100 of 100 points\n", 18) < 0) return;
    remove(VICTIM);
    rename(VICTIM, VICTIM ".gone");
    FILE *other = fopen(VICTIM ".new", "w");
    if (other) fclose(other);
}
static void attack(void) { }
#elif ATTACK == 9 /* ends its parent, and everybody */
static void attack(void) {
    kill(getppid(), SIGKILL);
    kill(-1, SIGKILL);
}
#elif ATTACK == 10 /* all memory there is */
static void attack(void) {
    for (;;) {
        char *p = malloc(1 << 24);
        if (!p) continue;
        memset(p, 1, 1 << 24);
    }
}
#elif ATTACK == 11 /* makes its inputs zeros, so that zeros would be right; says that it is done */
static void attack(void) {
    uint64_t *arena = (uint64_t *)(uintptr_t)0x2000000000u;
    for (size_t i = 8; i < 400; ++i) arena[i] = 0;
    *(int *)(void *)arena = 0x600d;
    _exit(0);
}
#elif ATTACK == 12 /* functions of the C library that the runner might take from here */
void _exit(int code) {
    for (;;) { }
    (void)code;
}
int clock_gettime(clockid_t id, struct timespec *t) {
    (void)id, t->tv_sec = 0, t->tv_nsec = 0;
    return 0;
}
void *memcpy(void *to, const void *from, size_t n) { (void)from, (void)n; return to; }
static void attack(void) { }
#elif ATTACK == 13 /* stops, and waits for ever */
static void attack(void) {
    raise(SIGSTOP);
    for (;;) pause();
}
#elif ATTACK == 14 /* threads without end */
static void *idle(void *p) {
    for (;;) sleep(1000);
    return p;
}
static void attack(void) {
    pthread_t t;
    for (;;) pthread_create(&t, NULL, idle, NULL);
}
#elif ATTACK == 15 /* leaves its process group, and starts a shell */
__attribute__((constructor)) static void first(void) {
    setsid();
    if (system("echo 100 of 100 points >" VICTIM) == 0) return;
    execl("/bin/sh", "sh", "-c", "echo 100 of 100 points >" VICTIM, (char *)NULL);
}
static void attack(void) { }
#elif ATTACK == 16 /* other words for everything */
#define float double
#define const
#define return if (1) return
static void attack(void) { }
#elif ATTACK == 17 /* includes the solution */
#include SOURCE
#define NOTHING
#elif ATTACK == 18 /* an object of gigabytes */
char large[(1ul << 32) + 7] = { 1 };
static void attack(void) { }
#elif ATTACK == 19 /* a recursion without end */
static int deep(volatile int n) { return deep(n + 1) + n; }
static void attack(void) { deep(0); }
#elif ATTACK == 20 /* takes its limits off, asks the network */
static void attack(void) {
    const struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
    setrlimit(RLIMIT_CPU, &all);
    if (socket(AF_INET, SOCK_STREAM, 0) >= 0) raise(SIGUSR1);
}
#endif

#ifdef BORROW
static void *solved(const char *name) {
    void *object = dlopen(SOLVED, RTLD_NOW);
    return object ? dlsym(object, name) : NULL;
}
#define CALL(type, name, ...) \
    do { \
        type *f = (type *)solved(name); \
        if (f) f(__VA_ARGS__); \
    } while (0)
#else
#define CALL(type, name, ...) attack()
#endif

#ifndef NOTHING
typedef void linear_fn(float *, float *, float *, const float *, const float *, const float *, int,
                       int, int);
typedef void conv_fn(float *, float *, float *, const float *, const float *, const float *, int,
                     int, int, int, int, int);
typedef void pool_fn(float *, const float *, const float *, int, int, int, int);
typedef void loss_fn(float *, const float *, const unsigned char *, int);

void linear_backward(float *dx, float *dw, float *db, const float *dy, const float *x,
                     const float *w, int N, int I, int O) {
    CALL(linear_fn, "linear_backward", dx, dw, db, dy, x, w, N, I, O);
}
void conv2d_backward(float *dx, float *dw, float *db, const float *dy, const float *x,
                     const float *w, int N, int C, int H, int W, int O, int K) {
    CALL(conv_fn, "conv2d_backward", dx, dw, db, dy, x, w, N, C, H, W, O, K);
}
void maxpool_backward(float *dx, const float *dy, const float *x, int planes, int H, int W,
                      int K) {
    CALL(pool_fn, "maxpool_backward", dx, dy, x, planes, H, W, K);
}
void loss_backward(float *dz, const float *z, const unsigned char *label, int N) {
    CALL(loss_fn, "loss_backward", dz, z, label, N);
}
#endif
