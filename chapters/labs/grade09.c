// Grader of lab 9: the same steps in double, rank after rank, averaged when the task says so.
#include "messages.h"

typedef struct ranks ranks;
struct ranks {
    int rank, size;
    void (*allreduce)(const ranks *r, float *x, size_t n);
};
typedef void samples_fn(float *w, const float *x, const float *y, size_t count, size_t D, float lr);
typedef void average_fn(const ranks *r, float *w, size_t D);
typedef void psgd_fn(const ranks *r, float *w, const float *x, const float *y, size_t n, size_t D,
                     int epochs, float lr);
typedef int local_fn(const ranks *r, float *w, const float *x, const float *y, size_t count,
                     size_t D, int steps, int H, float lr);

typedef struct work {
    int p, epochs, steps, H;
    size_t n, D, from[MOST_RANKS + 1];    // rank r's part of x and y, in local_sgd
    float lr, *x, *y, *w[MOST_RANKS];
    struct said { int averages[MOST_RANKS]; } *said;
    traffic *back;
} work;

#ifdef RUNNER
static void *function_of_all;

static void allreduce(const ranks *r, float *x, size_t n) {
    sum_over_ranks(r->rank, x, x, n, false);
}

static void call_samples(void *function, void *arg) {
    const work *t = arg;
    FUNCTION(samples_fn, f, function);
    f(t->w[0], t->x, t->y, t->n, t->D, t->lr);
}

static void one_average(int rank, void *arg) {
    const work *t = arg;
    const ranks r = { rank, t->p, allreduce };
    FUNCTION(average_fn, f, function_of_all);
    f(&r, t->w[rank], t->D);
}

static void one_psgd(int rank, void *arg) {
    const work *t = arg;
    const ranks r = { rank, t->p, allreduce };
    FUNCTION(psgd_fn, f, function_of_all);
    f(&r, t->w[rank], t->x, t->y, t->n, t->D, t->epochs, t->lr);
}

static void one_local(int rank, void *arg) {
    const work *t = arg;
    const ranks r = { rank, t->p, allreduce };
    const size_t from = t->from[rank];
    FUNCTION(local_fn, f, function_of_all);
    t->said->averages[rank] = f(&r, t->w[rank], t->x + from * t->D, t->y + from,
                                t->from[rank + 1] - from, t->D, t->steps, t->H, t->lr);
}

static void on_all(void *function, void *arg, void (*what)(int, void *)) {
    const work *t = arg;
    function_of_all = function;
    on_ranks(t->p, t->back, what, arg);
}

static void call_average(void *function, void *arg) { on_all(function, arg, one_average); }
static void call_psgd(void *function, void *arg) { on_all(function, arg, one_psgd); }
static void call_local(void *function, void *arg) { on_all(function, arg, one_local); }

static const named_call calls[] = { { "samples", call_samples },
                                    { "average", call_average },
                                    { "psgd", call_psgd },
                                    { "local", call_local },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

enum { MOST_D = 12 };
typedef double weights[MOST_RANKS][MOST_D];

// With n samples in all; all ranks begin with the same w, unless `apart`.
static work *new_work(int p, size_t n, bool apart) {
    work *t = shown(sizeof *t);
    *t = (work){ .p = p, .n = n, .D = (size_t)between(3, MOST_D), .lr = 1.0f / 128.0f };
    t->back = returned(sizeof *t->back), t->said = returned(sizeof *t->said);
    t->x = inputs(n * t->D), t->y = inputs(n);
    for (int r = 0; r < p; ++r) {
        t->w[r] = changed(t->D);
        if (r > 0 && !apart) memcpy(t->w[r], t->w[0], t->D * sizeof(float));
        t->from[r] = (size_t)r * n / (size_t)p, t->from[r + 1] = n;
    }
    return t;
}

static void read_weights(weights w, const work *t) {
    for (int r = 0; r < t->p; ++r)
        for (size_t k = 0; k < t->D; ++k) w[r][k] = (double)t->w[r][k];
}

static void step(double *w, const work *t, size_t i) {
    double off = -(double)t->y[i];
    for (size_t k = 0; k < t->D; ++k) off += w[k] * (double)t->x[i * t->D + k];
    for (size_t k = 0; k < t->D; ++k)
        w[k] -= (double)t->lr * off * (double)t->x[i * t->D + k];
}

static void mean(weights w, const work *t) {
    for (size_t k = 0; k < t->D; ++k) {
        double sum = 0.0;
        for (int r = 0; r < t->p; ++r) sum += w[r][k];
        for (int r = 0; r < t->p; ++r) w[r][k] = sum / t->p;
    }
}

// The rest of every task: all ranks' w, and how often they have added up.
static const char *judge(const char *name, const char *how, work *t, weights wanted, int sums) {
    static char text[240];
    const char *wrong = run(name, how, t, 3);
    if (!wrong) wrong = failed_message(t->back);
    for (int r = 0; r < t->p && !wrong; ++r) {
        wrong = differ("w", t->w[r], wanted[r], t->D, 1e-4);
        if (!wrong) wrong = differ_whole("sums over the ranks", (long long)t->back->sums[r], sums);
        if (wrong) snprintf(text, sizeof text, "rank %d of %d: %.150s", r, t->p, wrong);
        if (wrong) wrong = text;
    }
    forget();
    return wrong;
}

static const char *try_samples(size_t n) {
    work *t = new_work(1, n, false);
    weights wanted;
    read_weights(wanted, t);
    for (size_t i = 0; i < n; ++i) step(wanted[0], t, i);
    return judge("sgd_samples", "samples", t, wanted, 0);
}

static const char *try_average(int p) {
    work *t = new_work(p, 1, true);
    weights wanted;
    read_weights(wanted, t);
    mean(wanted, t);
    return judge("average", "average", t, wanted, 1);
}

static const char *try_psgd(int p, size_t n, int epochs) {
    work *t = new_work(p, n, false);
    weights wanted;
    t->epochs = epochs;
    read_weights(wanted, t);
    for (int r = 0; r < p; ++r)
        for (int e = 0; e < epochs; ++e)
            for (size_t i = (size_t)r * n / (size_t)p; i < ((size_t)r + 1) * n / (size_t)p; ++i)
                step(wanted[r], t, i);
    mean(wanted, t);
    return judge("psgd", "psgd", t, wanted, 1);
}

static const char *try_local(int p, int steps, int H) {
    work *t = new_work(p, (size_t)(p * between(4, 6)), false);
    const struct said *said = t->said;
    weights wanted;
    int averages = 0;
    t->steps = steps, t->H = H;
    read_weights(wanted, t);
    for (int s = 0; s < steps; ++s) {
        for (int r = 0; r < p; ++r) {
            const size_t part = t->from[r + 1] - t->from[r];
            step(wanted[r], t, t->from[r] + (size_t)s % part);
        }
        if ((s + 1) % H == 0 || s + 1 == steps) mean(wanted, t), ++averages;
    }
    const char *wrong = judge("local_sgd", "local", t, wanted, averages);
    for (int r = 0; r < p && !wrong; ++r)
        wrong = differ_whole("what it returns", said->averages[r], averages);
    return wrong;
}

static void grade(void) {
    give("sgd_samples, one sample", 10, try_samples(1));
    give("sgd_samples, many", 20, either(try_samples((size_t)between(10, 30)), try_samples(2)));
    const char *wrong = NULL;
    for (int p = 1; p <= MOST_RANKS && !wrong; ++p) wrong = try_average(p);
    give("average", 20, wrong);
    give("psgd, equal parts", 10, either(try_psgd(2, 20, 1), try_psgd(4, 24, 2)));
    wrong = try_psgd(3, (size_t)(3 * between(4, 9) + between(1, 2)), between(2, 3));
    give("psgd, any parts", 10, either(wrong, try_psgd(5, 23, 1)));
    give("psgd, fewer samples than ranks", 10, either(try_psgd(5, 3, 2), try_psgd(1, 7, 3)));
    give("local_sgd, H divides the steps", 10, either(try_local(2, 12, 4), try_local(3, 9, 3)));
    wrong = either(try_local(between(2, 4), 11, between(3, 5)), try_local(3, 4, 9));
    give("local_sgd, it does not", 10, either(wrong, try_local(2, 3, 1)));
}
#endif
