// Grader of lab 11: one batch, whole, in double; the ranks have parts of it.
#include "messages.h"

typedef struct ranks ranks;
struct ranks {
    int rank, size;
    void (*allreduce)(const ranks *r, double *x, size_t n);
};
typedef double moments_fn(const ranks *r, double *mean, double *var, const float *x, int N, int C,
                          int L);
typedef void normalise_fn(float *y, const float *x, const double *mean, const double *var,
                          const float *gamma, const float *beta, int N, int C, int L, double eps);
typedef void remember_fn(double *old_mean, double *old_var, const double *mean, const double *var,
                         double count, double momentum, int C);
typedef void backward_fn(const ranks *r, float *dx, float *dgamma, float *dbeta, const float *dy,
                         const float *x, const double *mean, const double *var, const float *gamma,
                         double count, int N, int C, int L, double eps);

enum { MOST_C = 16, ROOM = 20 };
typedef struct batch {
    int p, N, C, L, first[MOST_RANKS + 1]; // rank r has images first[r] to first[r+1]
    double count, momentum, eps, mean[ROOM], var[ROOM], old_mean[ROOM], old_var[ROOM];
    float *x, *dy, *gamma, *beta, *y;      // y also for dx
    float *dgamma[MOST_RANKS], *dbeta[MOST_RANKS];
    struct found { double count, mean[ROOM], var[ROOM]; } *found; // of each rank
    traffic *back;
} batch;

#ifdef RUNNER
static void *function_of_all;

static void allreduce(const ranks *r, double *x, size_t n) {
    sum_over_ranks(r->rank, x, x, n, true);
}

static int part(const batch *t, int rank, const float **x) {
    *x = t->x + t->first[rank] * t->C * t->L;
    return t->first[rank + 1] - t->first[rank];
}

static void one_moments(int rank, void *arg) {
    const batch *t = arg;
    const ranks r = { rank, t->p, allreduce };
    struct found *found = &t->found[rank];
    const float *x;
    const int N = part(t, rank, &x);
    FUNCTION(moments_fn, f, function_of_all);
    found->count = f(&r, found->mean, found->var, x, N, t->C, t->L);
}

static void one_backward(int rank, void *arg) {
    const batch *t = arg;
    const ranks r = { rank, t->p, allreduce };
    const float *x;
    const int N = part(t, rank, &x);
    FUNCTION(backward_fn, f, function_of_all);
    f(&r, t->y + (x - t->x), t->dgamma[rank], t->dbeta[rank], t->dy + (x - t->x), x, t->mean,
      t->var, t->gamma, t->count, N, t->C, t->L, t->eps);
}

static void call_moments(void *function, void *arg) {
    const batch *t = arg;
    function_of_all = function;
    on_ranks(t->p, t->back, one_moments, arg);
}

static void call_backward(void *function, void *arg) {
    const batch *t = arg;
    function_of_all = function;
    on_ranks(t->p, t->back, one_backward, arg);
}

static void call_normalise(void *function, void *arg) {
    const batch *t = arg;
    FUNCTION(normalise_fn, f, function);
    f(t->y, t->x, t->mean, t->var, t->gamma, t->beta, t->N, t->C, t->L, t->eps);
}

static void call_remember(void *function, void *arg) {
    const batch *t = arg;
    FUNCTION(remember_fn, f, function);
    f(t->found->mean, t->found->var, t->mean, t->var, t->count, t->momentum, t->C);
}

static const named_call calls[] = { { "moments", call_moments },
                                    { "normalise", call_normalise },
                                    { "remember", call_remember },
                                    { "backward", call_backward },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static int at(const batch *t, int n, int c, int l) { return (n * t->C + c) * t->L + l; }

// Mean and variance of the whole batch, by their definition.
static void whole_moments(batch *t) {
    t->count = (double)t->N * t->L;
    for (int c = 0; c < t->C; ++c) {
        t->mean[c] = t->var[c] = 0.0;
        for (int k = 0; k < t->N * t->L; ++k)
            t->mean[c] += (double)t->x[at(t, k / t->L, c, k % t->L)] / t->count;
        for (int k = 0; k < t->N * t->L; ++k) {
            const double off = (double)t->x[at(t, k / t->L, c, k % t->L)] - t->mean[c];
            t->var[c] += off * off / t->count;
        }
    }
}

// `images` on every rank; `uneven`: some more, and with three ranks or more one has none. Channels
// lie around numbers of their own, up to `around`.
static batch *new_batch(int p, int images, bool uneven, int around) {
    batch *t = shown(sizeof *t);
    *t = (batch){ .p = p, .L = between(3, 7), .eps = 0.015625 };
    t->C = draw(3) ? between(2, 9) : MOST_C;
    t->found = returned(MOST_RANKS * sizeof *t->found), t->back = returned(sizeof *t->back);
    for (int c = 0; c < ROOM * MOST_RANKS; ++c)
        t->found[c / ROOM].mean[c % ROOM] = t->found[c / ROOM].var[c % ROOM] = 7.0;
    const int none = uneven && p > 2 ? between(1, p - 1) : -1;
    for (int r = 0; r < p; ++r)
        t->first[r + 1] = t->first[r] + (r == none ? 0 : uneven ? images + between(0, 5) : images);
    t->N = t->first[p];
    const size_t all = (size_t)(t->N * t->C * t->L), C = (size_t)t->C;
    t->x = inputs(all), t->dy = inputs(all), t->gamma = inputs(C), t->beta = inputs(C);
    t->y = outputs(all, 9.0f);
    for (int r = 0; r < p; ++r) t->dgamma[r] = changed(C), t->dbeta[r] = changed(C);
    for (int n = 0; n < t->N; ++n)
        for (int c = 0; c < t->C; ++c)
            for (int l = 0; l < t->L; ++l) // a part of its own for the first images: ranks differ
                t->x[at(t, n, c, l)] += (float)(around * (c + 1)) + (n < t->N / 2 ? 2.0f : 0.0f);
    whole_moments(t);
    return t;
}

// The two statements about a channel that differ() cannot make: doubles.
static const char *close_to(const char *name, int c, double got, double wanted, double most) {
    static char text[160];
    const float hashed = (float)wanted;
    hash_bytes(&hash, &hashed, sizeof hashed);
    if (fabs(got - wanted) <= most * fmax(1.0, fabs(wanted))) return NULL;
    snprintf(text, sizeof text, "%s[%d]: wanted %.9g, got %.9g", name, c, wanted, got);
    return text;
}

static const char *try_moments(int p, int images, bool uneven, int around) {
    static char text[240];
    batch *t = new_batch(p, images, uneven, around);
    const char *wrong = run("moments", "moments", t, 3);
    if (!wrong) wrong = failed_message(t->back);
    for (int r = 0; r < p && !wrong; ++r) {
        const struct found *found = &t->found[r];
        wrong = close_to("count", 0, found->count, t->count, 0.0);
        for (int c = 0; c < t->C && !wrong; ++c) {
            wrong = close_to("mean", c, found->mean[c], t->mean[c], 1e-10);
            if (!wrong) wrong = close_to("var", c, found->var[c], t->var[c], 1e-7);
        }
        for (int c = t->C; c < ROOM && !wrong; ++c) {
            wrong = close_to("behind the means", c, found->mean[c], 7.0, 0.0);
            if (!wrong) wrong = close_to("behind the variances", c, found->var[c], 7.0, 0.0);
        }
        if (wrong) snprintf(text, sizeof text, "rank %d of %d: %.150s", r, p, wrong);
        if (wrong) wrong = text;
    }
    forget();
    return wrong;
}

static const char *try_normalise(bool flat) {
    batch *t = new_batch(1, between(2, 5), false, 3);
    if (flat) t->var[0] = 0.0; // where eps alone stands under the root
    const size_t all = (size_t)(t->N * t->C * t->L);
    double *wanted = malloc(all * sizeof *wanted);
    if (!wanted) stop("grader");
    for (size_t i = 0; i < all; ++i) {
        const size_t c = i / (size_t)t->L % (size_t)t->C;
        wanted[i] = (double)t->gamma[c] * ((double)t->x[i] - t->mean[c]) /
                        sqrt(t->var[c] + t->eps) +
                    (double)t->beta[c];
    }
    const char *wrong = run("normalise", "normalise", t, 2);
    if (!wrong) wrong = differ("y", t->y, wanted, all, 1e-5);
    free(wanted);
    forget();
    return wrong;
}

static const char *try_remember(double count) {
    batch *t = new_batch(1, 2, false, 3);
    t->count = count, t->momentum = 0.0625 * between(1, 7);
    struct found *found = t->found;
    double old_mean[ROOM], old_var[ROOM];
    for (int c = 0; c < ROOM; ++c) {
        old_mean[c] = found->mean[c] = (double)eighth();
        old_var[c] = found->var[c] = 1.0 + (double)draw(9);
    }
    const char *wrong = run("remember", "remember", t, 2);
    for (int c = 0; c < ROOM && !wrong; ++c) {
        double mean = old_mean[c], var = old_var[c];
        if (c < t->C) {
            mean = (1.0 - t->momentum) * mean + t->momentum * t->mean[c];
            const double by = count > 1.0 ? count / (count - 1.0) : 1.0;
            var = (1.0 - t->momentum) * var + t->momentum * by * t->var[c];
        }
        wrong = close_to("old_mean", c, found->mean[c], mean, 1e-12);
        if (!wrong) wrong = close_to("old_var", c, found->var[c], var, 1e-12);
    }
    forget();
    return wrong;
}

// The slope of sum(dy * y) by x, every x having moved mean and variance: channel by channel.
static void want_dx(double *dx, const batch *t, int c) {
    const double by = 1.0 / sqrt(t->var[c] + t->eps);
    const int all = t->N * t->L;
    double sum = 0.0, with_h = 0.0;
    for (int k = 0; k < all; ++k) {
        const int i = at(t, k / t->L, c, k % t->L);
        sum += (double)t->dy[i] / all;
        with_h += (double)t->dy[i] * ((double)t->x[i] - t->mean[c]) * by / all;
    }
    for (int k = 0; k < all; ++k) {
        const int i = at(t, k / t->L, c, k % t->L);
        const double h = ((double)t->x[i] - t->mean[c]) * by;
        dx[i] = (double)t->gamma[c] * by * ((double)t->dy[i] - sum - h * with_h);
    }
}

static void want_own(double *dgamma, double *dbeta, const batch *t, int rank) {
    for (int c = 0; c < t->C; ++c) {
        dgamma[c] = (double)t->dgamma[rank][c], dbeta[c] = (double)t->dbeta[rank][c];
        for (int n = t->first[rank]; n < t->first[rank + 1]; ++n)
            for (int l = 0; l < t->L; ++l) {
                const double dy = (double)t->dy[at(t, n, c, l)];
                dbeta[c] += dy;
                dgamma[c] += dy * ((double)t->x[at(t, n, c, l)] - t->mean[c]) /
                             sqrt(t->var[c] + t->eps);
            }
    }
}

static const char *try_backward(int p, bool uneven, bool parameters) {
    static char text[240];
    batch *t = new_batch(p, between(2, 4), uneven, 1);
    const size_t all = (size_t)(t->N * t->C * t->L), C = (size_t)t->C;
    double *dx = malloc(all * sizeof *dx), dgamma[MOST_RANKS][ROOM], dbeta[MOST_RANKS][ROOM];
    if (!dx) stop("grader");
    for (int c = 0; c < t->C; ++c) want_dx(dx, t, c);
    for (int r = 0; r < p; ++r) want_own(dgamma[r], dbeta[r], t, r);
    const char *wrong = run("backward", "backward", t, 3);
    if (!wrong) wrong = failed_message(t->back);
    if (!wrong && !parameters) wrong = differ("dx", t->y, dx, all, 1e-5);
    for (int r = 0; r < p && !wrong && parameters; ++r) {
        wrong = differ("dgamma", t->dgamma[r], dgamma[r], C, 1e-5);
        if (!wrong) wrong = differ("dbeta", t->dbeta[r], dbeta[r], C, 1e-5);
    }
    free(dx);
    forget();
    if (wrong) snprintf(text, sizeof text, "%d ranks: %.150s", p, wrong);
    return wrong ? text : NULL;
}

static void grade(void) {
    give("moments, one rank", 10, try_moments(1, 4, false, 2));
    give("moments, equal parts", 10,
         either(try_moments(2, 3, false, 2), try_moments(between(3, 5), 2, false, 2)));
    give("moments, unequal parts", 10,
         either(try_moments(2, 1, true, 2), try_moments(between(3, 5), 2, true, 2)));
    give("moments, far from zero", 10, try_moments(2, 60, false, 100000));
    give("normalise", 10, try_normalise(false));
    give("normalise, no variance", 5, try_normalise(true));
    give("remember", 10, either(try_remember(6.0), try_remember(2.0)));
    give("remember, one number", 5, try_remember(1.0));
    give("backward, dx on one rank", 5, try_backward(1, false, false));
    give("backward, dx", 15, either(try_backward(2, false, false), try_backward(4, true, false)));
    give("backward, dgamma and dbeta", 10,
         either(try_backward(1, false, true), try_backward(between(2, 5), true, true)));
}
#endif
