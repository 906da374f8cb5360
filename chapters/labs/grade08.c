// Grader of lab 8: means over threads as ranks, against the same in double.
#include "messages.h"

typedef struct ranks ranks;
struct ranks {
    int rank, size;
    void (*allreduce)(const ranks *r, float *sum, const float *x, size_t n);
};
typedef void mean_fn(const ranks *r, float *g, size_t n, float *scratch);
typedef void weighted_fn(const ranks *r, float *g, size_t n, int m, float *scratch);
typedef float distance_fn(const ranks *r, const float *w, size_t n, float *scratch);

typedef struct world {
    int p, images[MOST_RANKS];
    size_t n;
    float *x[MOST_RANKS], *scratch[MOST_RANKS], *result;
    traffic *back;
} world;

#ifdef RUNNER
static void *function_of_all;

static void allreduce(const ranks *r, float *sum, const float *x, size_t n) {
    sum_over_ranks(r->rank, sum, x, n, false);
}

static void one_mean(int rank, void *arg) {
    const world *t = arg;
    const ranks r = { rank, t->p, allreduce };
    FUNCTION(mean_fn, f, function_of_all);
    f(&r, t->x[rank], t->n, t->scratch[rank]);
}

static void one_weighted(int rank, void *arg) {
    const world *t = arg;
    const ranks r = { rank, t->p, allreduce };
    FUNCTION(weighted_fn, f, function_of_all);
    f(&r, t->x[rank], t->n, t->images[rank], t->scratch[rank]);
}

static void one_distance(int rank, void *arg) {
    const world *t = arg;
    const ranks r = { rank, t->p, allreduce };
    FUNCTION(distance_fn, f, function_of_all);
    t->result[rank] = f(&r, t->x[rank], t->n, t->scratch[rank]);
}

static void on_all(void *function, void *arg, void (*what)(int, void *)) {
    const world *t = arg;
    function_of_all = function;
    on_ranks(t->p, t->back, what, arg);
}

static void call_mean(void *function, void *arg) { on_all(function, arg, one_mean); }
static void call_weighted(void *function, void *arg) { on_all(function, arg, one_weighted); }
static void call_distance(void *function, void *arg) { on_all(function, arg, one_distance); }

static const named_call calls[] = { { "mean", call_mean },
                                    { "weighted", call_weighted },
                                    { "distance", call_distance },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static world *new_world(int p) {
    world *t = shown(sizeof *t);
    *t = (world){ .p = p, .n = (size_t)between(3, 40), .back = returned(sizeof *t->back) };
    t->result = outputs((size_t)p, 9.0f);
    for (int r = 0; r < p; ++r) {
        t->x[r] = changed(t->n), t->scratch[r] = outputs(t->n, 1.0f);
        t->images[r] = 1;
    }
    return t;
}

// sum over ranks of weight[r] * x[r][i], over `by`
static double *weighted(const world *t, const double *weight, double by) {
    double *sum = calloc(t->n, sizeof *sum);
    if (!sum) stop("grader");
    for (size_t i = 0; i < t->n; ++i)
        for (int r = 0; r < t->p; ++r)
            if (weight[r] > 0.0) sum[i] += weight[r] * (double)t->x[r][i] / by;
    return sum;
}

static const char *look(const char *name, const world *t, const double *wanted) {
    static char text[240];
    const char *wrong = failed_message(t->back);
    for (int r = 0; r < t->p && !wrong; ++r) {
        wrong = differ(name, t->x[r], wanted, t->n, 1e-5);
        if (!wrong && fence_broken(t->scratch[r], t->n))
            wrong = "scratch has room for n numbers only";
        if (wrong) snprintf(text, sizeof text, "rank %d of %d: %.150s", r, t->p, wrong);
        if (wrong) wrong = text;
    }
    return wrong;
}

// Of `even` ranks all have the same number of images.
static const char *try_mean(const char *name, const char *how, int p, bool even, bool nobody) {
    world *t = new_world(p);
    double weight[MOST_RANKS], all = 0.0;
    for (int r = 0; r < p; ++r) t->images[r] = even ? 8 : between(1, 40);
    if (nobody) t->images[draw((uint32_t)p)] = 0;
    for (int r = 0; r < p; ++r) all += weight[r] = t->images[r];
    double *wanted = weighted(t, weight, all);
    for (int r = 0; r < p; ++r)
        if (t->images[r] == 0) t->x[r][0] = (float)NAN, t->x[r][t->n - 1] = 1e30f;
    const char *wrong = run(name, how, t, 3);
    if (!wrong) wrong = look("g", t, wanted);
    free(wanted);
    forget();
    return wrong;
}

static const char *try_start(int p, bool rubbish) {
    world *t = new_world(p);
    double *wanted = doubles(t->x[0], t->n);
    for (int r = 1; r < p && rubbish; ++r) t->x[r][t->n / 2] = (float)(r % 2 ? NAN : INFINITY);
    const char *wrong = run("same_start", "mean", t, 3);
    if (!wrong) wrong = look("w", t, wanted);
    free(wanted);
    forget();
    return wrong;
}

// One rank is further from the mean at one place, up or down; with 0 all are the same.
static const char *try_distance(int p, float how_far) {
    static char text[200];
    world *t = new_world(p);
    double wanted[MOST_RANKS] = { 0.0 }, *before[MOST_RANKS];
    for (int r = 1; r < p; ++r) memcpy(t->x[r], t->x[0], t->n * sizeof(float));
    t->x[draw((uint32_t)p)][draw((uint32_t)t->n)] += how_far;
    for (size_t i = 0; i < t->n; ++i) {
        double mean = 0.0;
        for (int r = 0; r < p; ++r) mean += (double)t->x[r][i] / p;
        for (int r = 0; r < p; ++r) wanted[r] = fmax(wanted[r], fabs((double)t->x[r][i] - mean));
    }
    for (int r = 0; r < p; ++r) before[r] = doubles(t->x[r], t->n);
    const char *wrong = run("distance", "distance", t, 3);
    if (!wrong) wrong = failed_message(t->back);
    if (!wrong) wrong = differ("distance of rank", t->result, wanted, (size_t)p, 1e-5);
    for (int r = 0; r < p; ++r) {
        if (!wrong) wrong = differ("w (which is not to be changed)", t->x[r], before[r], t->n, 0.0);
        if (!wrong && fence_broken(t->scratch[r], t->n))
            wrong = "scratch has room for n numbers only";
        free(before[r]);
    }
    forget();
    if (wrong) snprintf(text, sizeof text, "%d ranks: %.150s", p, wrong);
    return wrong ? text : NULL;
}

static void grade(void) {
    const char *wrong = NULL;
    for (int p = 2; p <= MOST_RANKS && !wrong; ++p)
        wrong = try_mean("average_gradient", "mean", p, true, false);
    if (!wrong) wrong = try_mean("average_gradient", "mean", 1, true, false);
    give("average_gradient", 20, wrong);
    give("weighted_gradient, equal parts", 10,
         try_mean("weighted_gradient", "weighted", between(2, 5), true, false));
    wrong = NULL;
    for (int p = 1; p <= MOST_RANKS && !wrong; ++p)
        wrong = try_mean("weighted_gradient", "weighted", p, false, false);
    give("weighted_gradient, unequal parts", 10, wrong);
    wrong = try_mean("weighted_gradient", "weighted", between(3, 5), false, true);
    give("weighted_gradient, no images", 10,
         either(wrong, try_mean("weighted_gradient", "weighted", 2, false, true)));
    give("same_start", 10, either(try_start(2, false), try_start(between(3, 5), false)));
    give("same_start, anything before", 10, try_start(between(3, 5), true));
    give("distance, far up", 10, either(try_distance(2, 9.0f), try_distance(5, 20.0f)));
    give("distance, far down", 10, either(try_distance(3, -9.0f), try_distance(4, -20.0f)));
    wrong = try_distance(between(2, 4), 0.0f);
    if (!wrong) wrong = try_distance(between(2, 3), 16.0f);
    give("distance, none", 10, either(wrong, try_distance(1, 0.0f)));
}
#endif
