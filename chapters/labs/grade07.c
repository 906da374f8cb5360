// Grader of lab 7: threads as ranks, with messages that are counted.
#include "messages.h"

typedef struct ranks ranks;
struct ranks {
    int rank, size;
    void (*send)(const ranks *r, const void *data, size_t bytes, int to);
    void (*recv)(const ranks *r, void *data, size_t bytes, int from);
    void (*sendrecv)(const ranks *r, const void *give, size_t give_bytes, int to, void *take,
                     size_t take_bytes, int from);
};
typedef void allreduce_fn(const ranks *r, float *x, size_t n, float *scratch);

typedef struct world {
    int p;
    size_t n;
    float *x[MOST_RANKS], *scratch[MOST_RANKS];
    traffic *back;
} world;

#ifdef RUNNER
static allreduce_fn *function_of_all;

static void send_to(const ranks *r, const void *data, size_t bytes, int to) {
    put(r->rank, to, data, bytes);
    wait_until_taken(r->rank, to);
}

static void recv_from(const ranks *r, void *data, size_t bytes, int from) {
    take(from, r->rank, data, bytes);
}

static void send_and_recv(const ranks *r, const void *give, size_t give_bytes, int to, void *into,
                          size_t into_bytes, int from) {
    put(r->rank, to, give, give_bytes);
    take(from, r->rank, into, into_bytes);
    wait_until_taken(r->rank, to);
}

static void one_rank(int rank, void *arg) {
    const world *t = arg;
    const ranks r = { rank, t->p, send_to, recv_from, send_and_recv };
    function_of_all(&r, t->x[rank], t->n, t->scratch[rank]);
}

static void call_ranks(void *function, void *arg) {
    const world *t = arg;
    FUNCTION(allreduce_fn, f, function);
    function_of_all = f;
    on_ranks(t->p, t->back, one_rank, arg);
}

static const named_call calls[] = { { "ranks", call_ranks }, { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static const char *look(const world *t, const double *wanted, bool count) {
    static char text[200];
    const size_t p = (size_t)t->p, most = 2 * (p - 1) * ((t->n + p - 1) / p) * sizeof(float);
    const char *wrong = failed_message(t->back);
    for (int r = 0; r < t->p && !wrong; ++r) {
        wrong = differ("x", t->x[r], wanted, t->n, 1e-6);
        if (!wrong && fence_broken(t->scratch[r], t->n))
            wrong = "scratch has room for n numbers only";
    }
    for (int r = 0; r < t->p && !wrong && count; ++r)
        if (t->back->sent[r] > most) {
            snprintf(text, sizeof text, "sent by rank %d: wanted at most %zu bytes, got %llu", r,
                     most, (unsigned long long)t->back->sent[r]);
            wrong = text;
        }
    return wrong;
}

static const char *try(const char *name, int p, size_t n, bool count) {
    static char text[200];
    double *wanted = calloc(n + 1, sizeof *wanted);
    if (!wanted) stop("grader");
    world *t = shown(sizeof *t);
    *t = (world){ .p = p, .n = n, .back = returned(sizeof *t->back) };
    for (int r = 0; r < p; ++r) {
        t->x[r] = changed(n), t->scratch[r] = outputs(n, 1.0f);
        for (size_t i = 0; i < n; ++i) wanted[i] += (double)t->x[r][i];
    }
    const char *wrong = run(name, "ranks", t, 3);
    if (!wrong) wrong = look(t, wanted, count);
    free(wanted);
    forget();
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
#endif
