// Grader of lab 6: several steps of each optimizer against the same in double.
#include "sandbox.h"

typedef struct steps {
    size_t n;
    int count, nesterov;
    float lr, mu, wd, *w, *g, *m, *v; // g: one gradient a step, one behind the other
} steps;

typedef void sgd_fn(float *w, const float *g, size_t n, float lr);
typedef void momentum_fn(float *w, const float *g, float *m, size_t n, float lr, float mu, float wd,
                         int nesterov);
typedef void adam_fn(float *w, const float *g, float *m, float *v, size_t n, float lr, int t);

#ifdef RUNNER
static void call_sgd(void *function, void *arg) {
    const steps *t = arg;
    FUNCTION(sgd_fn, f, function);
    for (int s = 0; s < t->count; ++s) f(t->w, t->g + (size_t)s * t->n, t->n, t->lr);
}

static void call_momentum(void *function, void *arg) {
    const steps *t = arg;
    FUNCTION(momentum_fn, f, function);
    for (int s = 0; s < t->count; ++s)
        f(t->w, t->g + (size_t)s * t->n, t->m, t->n, t->lr, t->mu, t->wd, t->nesterov);
}

static void call_adam(void *function, void *arg) {
    const steps *t = arg;
    FUNCTION(adam_fn, f, function);
    for (int s = 0; s < t->count; ++s)
        f(t->w, t->g + (size_t)s * t->n, t->m, t->v, t->n, t->lr, s + 1);
}

static const named_call calls[] = { { "sgd", call_sgd },
                                    { "momentum", call_momentum },
                                    { "adam", call_adam },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static steps *new_steps(int count) {
    steps *t = shown(sizeof *t);
    t->n = (size_t)between(5, 40), t->count = count;
    t->lr = (float)between(1, 8) / 32.0f;
    t->w = changed(t->n), t->g = changed(t->n * (size_t)count);
    t->m = outputs(t->n, 0.0f), t->v = outputs(t->n, 0.0f);
    return t;
}

// All steps in double, of one number; also plain SGD is momentum with mu and wd 0.
static double by_momentum(const steps *t, size_t i) {
    double w = (double)t->w[i], m = 0.0;
    for (int s = 0; s < t->count; ++s) {
        const double g = (double)t->g[(size_t)s * t->n + i] + (double)t->wd * w;
        m = (double)t->mu * m + g;
        w -= (double)t->lr * (t->nesterov ? g + (double)t->mu * m : m);
    }
    return w;
}

static double by_adam(const steps *t, size_t i) {
    double w = (double)t->w[i], m = 0.0, v = 0.0;
    for (int s = 0; s < t->count; ++s) {
        const double g = (double)t->g[(size_t)s * t->n + i];
        m = 0.9 * m + 0.1 * g, v = 0.999 * v + 0.001 * g * g;
        w -= (double)t->lr * (m / (1 - pow(0.9, s + 1))) /
             (sqrt(v / (1 - pow(0.999, s + 1))) + 1e-8);
    }
    return w;
}

static const char *try(const char *name, const char *how, double by(const steps *, size_t),
                       steps *t, double most) {
    const size_t all = t->n * (size_t)t->count;
    double *wanted = malloc(t->n * sizeof *wanted), *kept = doubles(t->g, all);
    steps before = *t;
    before.w = malloc(t->n * sizeof *t->w), before.g = malloc(all * sizeof *t->g);
    memcpy(before.w, t->w, t->n * sizeof *t->w), memcpy(before.g, t->g, all * sizeof *t->g);
    const char *wrong = run(name, how, t, 2);
    for (size_t i = 0; i < t->n; ++i) wanted[i] = by(&before, i);
    if (!wrong) wrong = differ("w", t->w, wanted, t->n, most);
    if (!wrong) wrong = differ("g (which is not to be changed)", t->g, kept, all, 0.0);
    if (!wrong && (fence_broken(t->m, t->n) || fence_broken(t->v, t->n)))
        wrong = "something was written before or behind the optimizer's memory";
    free(wanted), free(kept), free(before.w), free(before.g);
    return wrong;
}

static const char *try_momentum(float mu, float wd, int nesterov) {
    steps *t = new_steps(8);
    t->mu = mu, t->wd = wd, t->nesterov = nesterov;
    return try("momentum_step", "momentum", by_momentum, t, 1e-4);
}

static const char *try_adam(int count, float size) {
    steps *t = new_steps(count);
    for (size_t i = 0; i < t->n * (size_t)count; ++i) t->g[i] *= size;
    return try("adam_step", "adam", by_adam, t, 1e-4);
}

static void grade(void) {
    give("sgd_step", 20, try("sgd_step", "sgd", by_momentum, new_steps(3), 1e-5));
    give("momentum_step", 10, try_momentum(0.875f, 0.0f, 0));
    give("momentum_step, nesterov", 10, try_momentum(0.875f, 0.0f, 1));
    give("momentum_step, weight decay", 10,
         either(try_momentum(0.5f, 0.125f, 0), try_momentum(0.5f, 0.125f, 1)));
    give("adam_step, the first step", 15, try_adam(1, 1.0f));
    give("adam_step, twenty steps", 20, try_adam(20, 1.0f));
    give("adam_step, tiny gradients", 15, try_adam(5, 1e-6f)); // where eps begins to count
}
#endif
