// Ranks for the runner: threads that hand each other messages and add up together. A rank that
// waits for one who never comes is ended by the grader's time limit.
#ifndef MESSAGES_H
#define MESSAGES_H

#include "sandbox.h"

#include <pthread.h>

enum { MOST_RANKS = 5 };

// What a lab's runner brings back besides its numbers.
typedef struct traffic {
    uint64_t sent[MOST_RANKS];            // bytes
    uint64_t sums[MOST_RANKS];            // how often each rank has added up with the others
    int failed;                           // another length than was expected, or no such rank
} traffic;

#ifdef RUNNER

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t something_new = PTHREAD_COND_INITIALIZER;
static traffic *counts;
static int ranks_in_all;

// ---- Messages. A sender's bytes lie in its letter box until the receiver has taken them.

static struct letter { const void *data; size_t bytes; bool full; } box[MOST_RANKS][MOST_RANKS];

GRADE bool no_rank(int r) {
    if (r >= 0 && r < ranks_in_all) return false;
    counts->failed = 1;
    return true;
}

GRADE void put(int from, int to, const void *data, size_t bytes) {
    if (no_rank(to)) return;
    pthread_mutex_lock(&one_at_a_time);
    struct letter *l = &box[from][to];
    while (l->full) pthread_cond_wait(&something_new, &one_at_a_time);
    *l = (struct letter){ data, bytes, true };
    counts->sent[from] += bytes;
    pthread_cond_broadcast(&something_new);
    pthread_mutex_unlock(&one_at_a_time);
}

GRADE void wait_until_taken(int from, int to) {
    if (no_rank(to)) return;
    pthread_mutex_lock(&one_at_a_time);
    while (box[from][to].full) pthread_cond_wait(&something_new, &one_at_a_time);
    pthread_mutex_unlock(&one_at_a_time);
}

GRADE void take(int from, int to, void *data, size_t bytes) {
    if (no_rank(from)) return;
    pthread_mutex_lock(&one_at_a_time);
    struct letter *l = &box[from][to];
    while (!l->full) pthread_cond_wait(&something_new, &one_at_a_time);
    if (l->bytes != bytes) counts->failed = 1;
    else if (bytes) memcpy(data, l->data, bytes);
    l->full = false;
    pthread_cond_broadcast(&something_new);
    pthread_mutex_unlock(&one_at_a_time);
}

// ---- Sums over all ranks, of floats or of doubles: everybody brings n numbers, the last one adds
// ---- all of them up in the order of ranks, everybody gets the sum.

static struct meeting { const void *numbers[MOST_RANKS]; size_t n; int here; uint64_t round; } all;

static void add_floats(void *sum, const void *x, size_t n, bool first) {
    float *s = sum;
    for (size_t i = 0; i < n; ++i) s[i] = ((const float *)x)[i] + (first ? 0.0f : s[i]);
}

static void add_doubles(void *sum, const void *x, size_t n, bool first) {
    double *s = sum;
    for (size_t i = 0; i < n; ++i) s[i] = ((const double *)x)[i] + (first ? 0.0 : s[i]);
}

static void wait_for_all(void) {
    const uint64_t round = all.round;
    if (++all.here == ranks_in_all) {
        all.here = 0, ++all.round;
        pthread_cond_broadcast(&something_new);
    }
    while (all.round == round) pthread_cond_wait(&something_new, &one_at_a_time);
}

// sum may be x
GRADE void sum_over_ranks(int rank, void *sum, const void *x, size_t n, bool wide) {
    const size_t bytes = n * (wide ? sizeof(double) : sizeof(float));
    void *mine = malloc(bytes + 1);
    if (!mine) _exit(1);
    pthread_mutex_lock(&one_at_a_time);
    ++counts->sums[rank];
    counts->sent[rank] += bytes;
    if (all.here == 0) all.n = n;
    if (all.n != n) counts->failed = 1;
    all.numbers[rank] = x;
    wait_for_all();
    for (int r = 0; r < ranks_in_all && !counts->failed; ++r)
        (wide ? add_doubles : add_floats)(mine, all.numbers[r], n, r == 0);
    wait_for_all();                       // nobody reads x any more
    pthread_mutex_unlock(&one_at_a_time);
    if (!counts->failed && bytes) memcpy(sum, mine, bytes);
    free(mine);
}

// ---- Starting them.

static struct member { pthread_t thread; int rank; void *arg; void (*what)(int, void *); }
    members[MOST_RANKS];

static void *one_member(void *arg) {
    const struct member *m = arg;
    m->what(m->rank, m->arg);
    return NULL;
}

// what(rank, arg) on p threads
GRADE void on_ranks(int p, traffic *back, void (*what)(int, void *), void *arg) {
    counts = back, ranks_in_all = p;
    for (int r = 0; r < p; ++r) {
        members[r] = (struct member){ .rank = r, .arg = arg, .what = what };
        if (pthread_create(&members[r].thread, NULL, one_member, &members[r]) != 0) _exit(1);
    }
    for (int r = 0; r < p; ++r) pthread_join(members[r].thread, NULL);
}

#else

GRADE const char *failed_message(const traffic *t) {
    return t->failed ? "a message or a sum met another length than was expected, or no such rank"
                     : NULL;
}

#endif
#endif
