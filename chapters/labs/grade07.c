// Grader of lab 7: threads as ranks, in the child, with messages that are counted. A rank that
// waits for one who never comes is ended by the time limit.
#include "grade.h"

typedef struct ranks ranks;
struct ranks {
    int rank, size;
    void (*send)(const ranks *r, const void *data, size_t bytes, int to);
    void (*recv)(const ranks *r, void *data, size_t bytes, int from);
    void (*sendrecv)(const ranks *r, const void *give, size_t give_bytes, int to, void *take,
                     size_t take_bytes, int from);
};
typedef void allreduce_fn(const ranks *r, float *x, size_t n, float *scratch);

enum { MOST_RANKS = 5, MOST = 3000 };
typedef struct world {
    int p;
    size_t n;
    float *x[MOST_RANKS], *scratch[MOST_RANKS];
    volatile uint64_t sent[MOST_RANKS];
    // a message that the library refused: another length, no such rank
    volatile int failed;
    void *function;                   // of the submission
} world;

static world *here;                   // of the child
static dt_comm *comm_of[MOST_RANKS];

static void note(dt_err error) {
    if (error != DT_OK) here->failed = 1;
}

static void send_to(const ranks *r, const void *data, size_t bytes, int to) {
    here->sent[r->rank] += bytes;
    note(dt_send(comm_of[r->rank], data, bytes, to, 1));
}

static void recv_from(const ranks *r, void *data, size_t bytes, int from) {
    note(dt_recv(comm_of[r->rank], data, bytes, from, 1));
}

static void send_and_recv(const ranks *r, const void *give, size_t give_bytes, int to, void *take,
                          size_t take_bytes, int from) {
    here->sent[r->rank] += give_bytes;
    note(dt_sendrecv(comm_of[r->rank], give, give_bytes, to, take, take_bytes, from, 1));
}

static dt_err one_rank(dt_comm *comm, void *arg) {
    const world *t = arg;
    const ranks r = { dt_comm_rank(comm), t->p, send_to, recv_from, send_and_recv };
    allreduce_fn *f;
    memcpy(&f, &t->function, sizeof f);
    comm_of[r.rank] = comm;
    f(&r, t->x[r.rank], t->n, t->scratch[r.rank]);
    return dt_barrier(comm);
}

static void call_ranks(void *function, void *arg) {
    here = arg;
    here->function = function;
    if (dt_run_ranks(here->p, one_rank, here) != DT_OK) here->failed = 1;
}

static const char *try(const char *name, int p, size_t n, bool count) {
    static char text[200];
    double wanted[MOST] = { 0.0 };
    world *t = shared(sizeof *t);
    t->p = p, t->n = n;
    for (int r = 0; r < p; ++r) {
        t->x[r] = inputs(n), t->scratch[r] = outputs(n, 1.0f);
        for (size_t i = 0; i < n; ++i) wanted[i] += (double)t->x[r][i];
    }
    const char *wrong = run(name, call_ranks, t, 3);
    if (!wrong && t->failed)
        wrong = "a message met another length than was expected, or no such rank";
    for (int r = 0; r < p && !wrong; ++r) {
        wrong = differ("x", t->x[r], wanted, n, 1e-6);
        if (!wrong && fence_broken(t->scratch[r], n)) wrong = "scratch has room for n numbers only";
    }
    const size_t most = 2 * (size_t)(p - 1) * ((n + (size_t)p - 1) / (size_t)p) * sizeof(float);
    for (int r = 0; r < p && !wrong && count; ++r)
        if (t->sent[r] > most) {
            snprintf(text, sizeof text, "sent by rank %d: wanted at most %zu bytes, got %llu", r,
                     most, (unsigned long long)t->sent[r]);
            return text;
        }
    if (wrong) snprintf(text, sizeof text, "%d ranks, %zu numbers: %.150s", p, n, wrong);
    return wrong ? text : NULL;
}

static const char *try_all(const char *name, bool awkward) {
    static const size_t lengths[4] = { 0, 1, 3, 7 };
    const char *wrong = NULL;
    for (int p = awkward ? 1 : 2; p <= MOST_RANKS && !wrong; ++p)
        for (int k = 0; k < (awkward ? 4 : 1) && !wrong; ++k)
            wrong = try(name, p, awkward ? lengths[k] : (size_t)(p * between(5, 50)), false);
    return wrong;
}

static void grade(void) {
    give("naive_allreduce", 20, try_all("naive_allreduce", false));
    give("naive_allreduce, awkward", 10, try_all("naive_allreduce", true));
    give("ring_allreduce, 2 ranks", 10,
         try("ring_allreduce", 2, 2 * (size_t)between(5, 50), false));
    give("ring_allreduce, equal blocks", 20, try_all("ring_allreduce", false));
    give("ring_allreduce, awkward", 20, try_all("ring_allreduce", true));
    give("ring_allreduce sends no more", 20, try("ring_allreduce", 5, 2003 + 5 * draw(180), true));
}
