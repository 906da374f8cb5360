// Grader of lab 12: a net so small that every step is known, which also notes what it was asked.
// Its image k pulls the parameters towards a point of its own; its clock counts images.
#include "interrupts.h"
#include "messages.h"
#include "model.h"

enum { MOST_N = 8, TESTED = 1000000 }; // what a test takes, by the clock

typedef uint32_t share_fn(uint32_t *first, uint32_t n, uint32_t rank, uint32_t P);
typedef void alone_fn(const model *m, float *w, float *v, float *g, const uint32_t *mine,
                      uint32_t count, uint32_t batch, int epochs, float lr, float mu);
typedef void psgd_fn(const ranks *r, const model *m, float *w, float *v, float *g,
                     const uint32_t *shuffled, uint32_t batch, int epochs, float lr, float mu,
                     outcome *out);
typedef void hogwild_fn(const model *m, void *shared, float *w, float *g, const uint32_t *mine,
                        uint32_t count, uint32_t batch, int epochs, float lr);
typedef void speedup_fn(double *median, double *s, double *efficiency, const double *seconds,
                        int most, int runs);

typedef struct job {
    int p, epochs, runs, pull;            // pull 0: the gradient does not depend on w
    uint32_t images, tests, batch, count, *order;
    size_t n;
    float lr, mu, *point, *w[MOST_RANKS], *v[MOST_RANKS], *g[MOST_RANKS];
    unsigned char *easy;                  // test images that are recognised; 2: if dropout is off
    double *seconds;
    uint32_t *shared;
    traffic *back;
    struct noted {
        uint32_t count, first, tested[MOST_RANKS], with_dropout[MOST_RANKS];
        float seen[MOST_RANKS][MOST_N];   // w when it was tested
        outcome out[MOST_RANKS];
        met met;
        double median[MOST_RANKS + 2], s[MOST_RANKS + 2], efficiency[MOST_RANKS + 2]; // from [1]
    } *noted;
} job;

#ifdef RUNNER
#include <stdatomic.h>

// A worker's own model: what stands before `rank` is what the submission sees.
typedef struct own_model { model seen; int rank; double clock; } own_model;
static own_model own[MOST_RANKS];
static const job *the_job;
static void *the_function;

static own_model *own_of(const model *m) {
    for (int r = 0; r < MOST_RANKS; ++r)
        if (m == &own[r].seen) return &own[r];
    _exit(1);
}

static void gradient(const model *m, float *g, const float *w, const uint32_t *image,
                     uint32_t count) {
    const job *t = the_job;
    own_of(m)->clock += count;
    for (uint32_t i = 0; i < count; ++i)
        if (image[i] >= t->images) return;    // there is no such image
    for (size_t k = 0; k < t->n; ++k) {
        double sum = 0.0;
        for (uint32_t i = 0; i < count; ++i)
            sum += (t->pull ? (double)w[k] : 0.0) - (double)t->point[image[i] * t->n + k];
        g[k] = (float)(sum / count);
    }
}

static uint32_t correct(const model *m, const float *w, uint32_t from, uint32_t to, int training) {
    own_model *o = own_of(m);
    uint32_t right = 0;
    o->clock += TESTED;
    memcpy(the_job->noted->seen[o->rank], w, the_job->n * sizeof *w);
    the_job->noted->with_dropout[o->rank] += training != 0;
    for (uint32_t i = from; i < to && i < the_job->tests; ++i) {
        right += training ? the_job->easy[i] == 1 : the_job->easy[i] > 0;
        ++the_job->noted->tested[o->rank];
    }
    return right;
}

static double seconds(const model *m) { return own_of(m)->clock; }

static void allreduce(const ranks *r, float *x, size_t n) {
    sum_over_ranks(r->rank, x, x, n, false);
}

static void prepare(void *function, const job *t) {
    the_function = function, the_job = t;
    for (int r = 0; r < MOST_RANKS; ++r)
        own[r] = (own_model){ { t->n, t->images, t->tests, gradient, correct, seconds }, r,
                              1000.0 * (r + 1) };
}

static void call_share(void *function, void *arg) {
    const job *t = arg;
    FUNCTION(share_fn, f, function);
    t->noted->count = f(&t->noted->first, t->images, t->count, (uint32_t)t->p);
}

static void call_alone(void *function, void *arg) {
    const job *t = arg;
    FUNCTION(alone_fn, f, function);
    prepare(function, t);
    f(&own[0].seen, t->w[0], t->v[0], t->g[0], t->order, t->count, t->batch, t->epochs, t->lr,
      t->mu);
}

static void one_psgd(int rank, void *arg) {
    const job *t = arg;
    const ranks r = { rank, t->p, allreduce };
    FUNCTION(psgd_fn, f, the_function);
    f(&r, &own[rank].seen, t->w[rank], t->v[rank], t->g[rank], t->order, t->batch, t->epochs,
      t->lr, t->mu, &t->noted->out[rank]);
}

static void call_psgd(void *function, void *arg) {
    const job *t = arg;
    prepare(function, t);
    on_ranks(t->p, t->back, one_psgd, arg);
}

static void one_hogwild(int rank, void *arg) {
    const job *t = arg;
    FUNCTION(hogwild_fn, f, the_function);
    f(&own[rank].seen, t->shared, t->w[rank], t->g[rank], t->order, t->count, t->batch, t->epochs,
      t->lr);
}

static void call_hogwild(void *function, void *arg) {
    const job *t = arg;
    prepare(function, t);
    on_ranks(t->p, t->back, one_hogwild, arg);
}

static void once_more(void) {
    FUNCTION(hogwild_fn, f, the_function);
    const job *t = the_job;
    f(&own[0].seen, t->shared, t->w[0], t->g[0], t->order, t->count, t->batch, 1, t->lr);
}

static void another_adds(void) {
    for (size_t k = 0; k < the_job->n; ++k) {
        _Atomic uint32_t *at = (_Atomic uint32_t *)&the_job->shared[k];
        uint32_t old = atomic_load(at), wanted;
        do {
            float value;
            memcpy(&value, &old, sizeof value);
            value += 0.125f;
            memcpy(&wanted, &value, sizeof wanted);
        } while (!atomic_compare_exchange_strong(at, &old, wanted));
    }
}

static void call_interrupted(void *function, void *arg) {
    const job *t = arg;
    prepare(function, t);
    t->noted->met = interrupted(once_more, another_adds);
}

static void call_speedup(void *function, void *arg) {
    const job *t = arg;
    FUNCTION(speedup_fn, f, function);
    f(t->noted->median + 1, t->noted->s + 1, t->noted->efficiency + 1, t->seconds, t->p, t->runs);
}

static const named_call calls[] = { { "share", call_share },     { "alone", call_alone },
                                    { "psgd", call_psgd },       { "hogwild", call_hogwild },
                                    { "interrupted", call_interrupted },
                                    { "speedup", call_speedup }, { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static job *new_job(int p, uint32_t images) {
    job *t = shown(sizeof *t);
    *t = (job){ .p = p, .images = images, .count = images, .epochs = between(2, 3), .pull = 1 };
    t->n = (size_t)between(3, MOST_N), t->batch = (uint32_t)between(5, 9) * (uint32_t)p;
    t->tests = (uint32_t)between(60, 99), t->lr = 0.125f, t->mu = 0.5f;
    t->point = inputs(images * t->n), t->order = shown(images * sizeof *t->order);
    t->noted = returned(sizeof *t->noted), t->back = returned(sizeof *t->back);
    t->easy = shown(t->tests);
    for (uint32_t i = 0; i < t->tests; ++i) t->easy[i] = (unsigned char)draw(3);
    for (uint32_t i = 0; i < images; ++i) t->order[i] = i;
    for (uint32_t i = images; i > 1; --i) {
        const uint32_t j = draw(i), swap = t->order[i - 1];
        t->order[i - 1] = t->order[j], t->order[j] = swap;
    }
    for (int r = 0; r < p; ++r) {
        t->w[r] = changed(t->n), t->v[r] = outputs(t->n, 0.0f), t->g[r] = outputs(t->n, 3.0f);
        if (r > 0) memcpy(t->w[r], t->w[0], t->n * sizeof(float));
    }
    return t;
}

// Task 2 in double, on order[first] to order[first + count - 1]
static void steps(double *w, const job *t, uint32_t first, uint32_t count, uint32_t batch) {
    double v[MOST_N] = { 0.0 };
    for (int e = 0; e < t->epochs; ++e)
        for (uint32_t at = 0; at < count; at += batch) {
            const uint32_t here = count - at < batch ? count - at : batch;
            for (size_t k = 0; k < t->n; ++k) {
                double g = 0.0;
                for (uint32_t i = first + at; i < first + at + here; ++i)
                    g += (w[k] * t->pull - (double)t->point[t->order[i] * t->n + k]) / here;
                v[k] = (double)t->mu * v[k] + g;
                w[k] -= (double)t->lr * v[k];
            }
        }
}

static uint32_t cut(uint32_t n, int r, int P) {
    return (uint32_t)((uint64_t)r * n / (uint64_t)P);
}

static const char *try_share(uint32_t n, int P) {
    job *t = new_job(1, 9);
    const uint32_t rank = draw((uint32_t)P);
    t->images = n, t->p = P, t->count = rank;
    const char *wrong = run("share", "share", t, 2);
    const uint32_t first = cut(n, (int)rank, P), next = cut(n, (int)rank + 1, P);
    if (!wrong) wrong = differ_whole("first", t->noted->first, first);
    return wrong ? wrong : differ_whole("how many", t->noted->count, next - first);
}

static const char *try_alone(uint32_t images, uint32_t batch, int epochs, float mu, float v) {
    job *t = new_job(1, images);
    t->batch = batch, t->epochs = epochs, t->mu = mu;
    double *w = doubles(t->w[0], t->n);
    for (size_t k = 0; k < t->n; ++k) t->v[0][k] = v; // before it begins
    steps(w, t, 0, images, batch);
    const char *wrong = run("train_alone", "alone", t, 2);
    if (!wrong) wrong = differ("w", t->w[0], w, t->n, 1e-4);
    if (!wrong && (fence_broken(t->v[0], t->n) || fence_broken(t->g[0], t->n)))
        wrong = "v or g: something was written before or behind it";
    free(w);
    return wrong;
}

static const char *weights_of(const job *t, const double *wanted, int r) {
    double seen[MOST_N];
    const char *wrong = differ("w", t->w[r], wanted, t->n, 1e-4);
    float *got = outputs(t->n, 0.0f);     // w at the time of the test
    for (size_t k = 0; k < t->n; ++k) seen[k] = wanted[k], got[k] = t->noted->seen[r][k];
    return wrong ? wrong : differ("w when it was tested", got, seen, t->n, 1e-4);
}

static const char *percent_of(const job *t, int r) {
    static char text[160];
    const uint32_t part = cut(t->tests, r + 1, t->p) - cut(t->tests, r, t->p);
    uint32_t right = 0;
    for (uint32_t i = 0; i < t->tests; ++i) right += t->easy[i] > 0;
    const double wanted = 100.0 * right / t->tests, got = t->noted->out[r].percent;
    if (t->noted->with_dropout[r]) return "it was tested with dropout";
    if (t->noted->tested[r] != part)
        return differ_whole("tested images", t->noted->tested[r], part);
    if (fabs(got - wanted) <= 1e-4) return NULL;
    snprintf(text, sizeof text, "percent: wanted %.4f, got %.4f", wanted, got);
    return text;
}

static const char *seconds_of(const job *t, int r) {
    static char text[160];
    const double part = cut(t->images, r + 1, t->p) - cut(t->images, r, t->p);
    const double wanted = part * t->epochs, got = t->noted->out[r].seconds;
    if (fabs(got - wanted) <= 1e-6) return NULL;
    snprintf(text, sizeof text, "seconds: wanted %.0f, got %.0f%s", wanted, got,
             got >= TESTED ? "; the test is not to count" : "");
    return text;
}

static const char *try_psgd(int p, uint32_t images, bool small_batch, char what) {
    static char text[240];
    job *t = new_job(p, images);
    if (small_batch) t->batch = (uint32_t)p - 1;
    const uint32_t batch = t->batch / (uint32_t)p > 0 ? t->batch / (uint32_t)p : 1;
    double mean[MOST_N] = { 0.0 };
    for (int r = 0; r < p; ++r) {
        double *w = doubles(t->w[0], t->n);
        const uint32_t first = cut(images, r, p);
        steps(w, t, first, cut(images, r + 1, p) - first, batch);
        for (size_t k = 0; k < t->n; ++k) mean[k] += w[k] / p;
        free(w);
    }
    const char *wrong = run("psgd", "psgd", t, 3);
    if (!wrong) wrong = failed_message(t->back);
    for (int r = 0; r < p && !wrong; ++r) {
        wrong = what == 'w' ? weights_of(t, mean, r)
              : what == '%' ? percent_of(t, r)
                            : seconds_of(t, r);
        if (wrong) snprintf(text, sizeof text, "worker %d of %d: %.150s", r, p, wrong);
        if (wrong) wrong = text;
    }
    forget();
    return wrong;
}

// What is added does not depend on w if more than one worker adds: any order gives the same bits.
static const char *try_hogwild(int workers, uint32_t images, uint32_t batch, int epochs) {
    job *t = new_job(workers, images);
    t->batch = batch, t->epochs = epochs, t->mu = 0.0f, t->pull = workers == 1;
    double *w = doubles(t->w[0], t->n);
    t->shared = returned((t->n + 8) * sizeof *t->shared);
    memcpy(t->shared, t->w[0], t->n * sizeof(float));
    for (int r = 0; r < workers; ++r) steps(w, t, 0, images, batch);
    const char *wrong = run("hogwild", "hogwild", t, 5);
    float *got = outputs(t->n, 0.0f);
    memcpy(got, t->shared, t->n * sizeof(float));
    if (!wrong) wrong = differ("shared", got, w, t->n, workers == 1 ? 1e-4 : 0.0);
    for (size_t k = t->n; k < t->n + 8 && !wrong; ++k)
        if (t->shared[k] != 0) wrong = "something was written behind the parameters";
    for (int r = 0; r < workers && !wrong; ++r)
        if (fence_broken(t->w[r], t->n) || fence_broken(t->g[r], t->n))
            wrong = "w or g: something was written before or behind it";
    free(w);
    forget();
    return wrong;
}

// One worker, interrupted by another one's additions; its own take as much away as they add.
static const char *try_interrupted(void) {
    static char text[160];
    job *t = new_job(1, 2);
    t->batch = 1, t->mu = 0.0f, t->pull = 0;
    t->shared = returned(t->n * sizeof *t->shared);
    memcpy(t->shared, t->w[0], t->n * sizeof(float));
    double before[MOST_N];
    for (size_t k = 0; k < t->n; ++k) {
        before[k] = (double)t->w[0][k];
        t->point[k] = 1.0f, t->point[t->n + k] = -1.0f;
    }
    const char *wrong = run("hogwild", "interrupted", t, 5);
    for (size_t k = 0; k < t->n && !wrong; ++k) {
        float got;
        memcpy(&got, &t->shared[k], sizeof got);
        const double there = ((double)got - before[k]) * 8.0;
        if (fabs(there - t->noted->met.interruptions) < 1e-9) continue;
        snprintf(text, sizeof text, "of %u additions by another worker, %.7g are there",
                 t->noted->met.interruptions, there);
        wrong = text;
    }
    forget();
    return wrong;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const char *try_speedup(int most, int runs, char what) {
    job *t = new_job(most, 9);
    t->runs = runs, t->seconds = shown((size_t)(most * runs) * sizeof *t->seconds);
    for (int i = 0; i < most * runs; ++i) t->seconds[i] = 1.0 + draw(1000) / 64.0;
    double sorted[MOST_RANKS * 9], one = 0.0;
    memcpy(sorted, t->seconds, (size_t)(most * runs) * sizeof *sorted);
    const char *wrong = run("speedup", "speedup", t, 2);
    for (int P = 1; P <= most && !wrong; ++P) {
        static char text[120];
        qsort(sorted + (P - 1) * runs, (size_t)runs, sizeof *sorted, by_size);
        const double median = sorted[(P - 1) * runs + runs / 2];
        if (P == 1) one = median;
        const double wanted = what == 'm' ? median : what == 's' ? one / median : one / median / P;
        const double got = what == 'm' ? t->noted->median[P]
                         : what == 's' ? t->noted->s[P]
                                       : t->noted->efficiency[P];
        if (fabs(got - wanted) <= 1e-9 * wanted) continue;
        snprintf(text, sizeof text, "P = %d: wanted %.6g, got %.6g", P, wanted, got);
        wrong = text;
    }
    const struct noted *n = t->noted;
    for (int P = 0; P <= most + 1 && !wrong; P += most + 1) // where 0 stood
        if (fabs(n->median[P]) + fabs(n->s[P]) + fabs(n->efficiency[P]) > 0.0)
            wrong = "something was written before or behind its results";
    return wrong;
}

static void grade(void) {
    give("share", 5, either(try_share(1 + draw(70000), 5), try_share(4000000000u + draw(99), 3)));
    give("train_alone, one epoch", 5, try_alone(24, 6, 1, 0.0f, 0.0f));
    give("train_alone, momentum", 5, try_alone(24, 6, 1, 0.5f, 5.0f));
    give("train_alone, epochs", 5, try_alone(20, 4, between(2, 4), 0.5f, 0.0f));
    give("train_alone, a last short batch", 10,
         either(try_alone((uint32_t)between(20, 23), 6, 2, 0.5f, 0.0f),
                try_alone(3, 8, 2, 0.5f, 0.0f)));
    give("psgd, the net", 10, either(try_psgd(2, 60, false, 'w'), try_psgd(5, 101, false, 'w')));
    give("psgd, a small batch", 5, try_psgd(between(3, 5), 40, true, 'w'));
    give("psgd, seconds", 10, either(try_psgd(1, 50, false, 's'), try_psgd(4, 90, false, 's')));
    give("psgd, percent", 10, either(try_psgd(1, 50, false, '%'), try_psgd(3, 90, false, '%')));
    give("hogwild, one worker", 10,
         either(try_hogwild(1, 24, 6, 2), try_hogwild(1, (uint32_t)between(9, 11), 4, 1)));
    give("hogwild, four workers", 5, try_hogwild(4, 2000, 1, 4));
    give("hogwild, nothing is lost", 5, either(try_hogwild(1, 9, 3, 1), try_interrupted()));
    give("speedup, medians", 5, either(try_speedup(5, 5, 'm'), try_speedup(3, 9, 'm')));
    give("speedup", 5, either(try_speedup(5, 3, 's'), try_speedup(4, 1, 's')));
    give("speedup, efficiency", 5, try_speedup(5, 3, 'e'));
}
#endif
