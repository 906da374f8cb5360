// Grader of lab 10: what threads must not lose, and steps of which the order does not matter.
#include "interrupts.h"
#include "sandbox.h"

#ifdef RUNNER
#include <pthread.h>
#include <stdatomic.h>
typedef _Atomic uint32_t bits;
#else
typedef uint32_t bits;
#endif

enum { MOST_THREADS = 4, SAMPLE = 6 };
typedef float get_fn(bits *);
typedef void put_fn(bits *, float);
typedef void add_fn(bits *, float);
typedef uint32_t next_fn(bits *, uint32_t n);
typedef void step_fn(bits *w, const uint32_t *index, const float *x, size_t count, float y,
                     float lr);

typedef struct job {
    uint32_t threads, times, n, samples;
    float by[MOST_THREADS], *value, lr;
    bits *w;
    uint32_t *taken, *index;               // index and x: SAMPLE a sample
    float *x, *y;
    met *met;
} job;

#ifdef RUNNER
static void *the_function;
static const job *the_job;
static atomic_uint ready;

static void together(void *(*what)(void *), void *function, const job *t) {
    pthread_t thread[MOST_THREADS];
    static uint32_t number[MOST_THREADS];
    the_function = function, the_job = t;
    for (uint32_t i = 0; i < t->threads; ++i) {
        number[i] = i;
        if (pthread_create(&thread[i], NULL, what, &number[i]) != 0) _exit(1);
    }
    for (uint32_t i = 0; i < t->threads; ++i) pthread_join(thread[i], NULL);
}

// Threads begin at once, or some would be through before others are there.
static uint32_t begin(void *arg) {
    atomic_fetch_add(&ready, 1);
    while (atomic_load(&ready) < the_job->threads) { }
    return *(const uint32_t *)arg;
}

static void call_get(void *function, void *arg) {
    const job *t = arg;
    FUNCTION(get_fn, f, function);
    for (uint32_t i = 0; i < t->n; ++i) t->value[i] = f(&t->w[i]);
}

static void call_put(void *function, void *arg) {
    const job *t = arg;
    FUNCTION(put_fn, f, function);
    for (uint32_t i = 0; i < t->n; ++i) f(&t->w[i], t->value[i]);
}

static void *one_adds(void *arg) {
    const uint32_t i = begin(arg);
    FUNCTION(add_fn, f, the_function);
    for (uint32_t k = 0; k < the_job->times; ++k) f(&the_job->w[k % the_job->n], the_job->by[i]);
    return NULL;
}

static void *one_takes(void *arg) {
    begin(arg);
    FUNCTION(next_fn, f, the_function);
    for (uint32_t k = 0; k < the_job->times; ++k) {
        const uint32_t got = f(&the_job->w[0], the_job->n);
        atomic_fetch_add((_Atomic uint32_t *)&the_job->taken[got <= the_job->n ? got
                                                                              : the_job->n + 1],
                         1);
    }
    return NULL;
}

static void *one_steps(void *arg) {
    const uint32_t i = begin(arg);
    FUNCTION(step_fn, f, the_function);
    const job *t = the_job;
    for (uint32_t s = i; s < t->samples; s += t->threads)
        f(t->w, t->index + s * SAMPLE, t->x + s * SAMPLE, SAMPLE, t->y[s], t->lr);
    return NULL;
}

static void call_add(void *function, void *arg) { together(one_adds, function, arg); }
static void call_next(void *function, void *arg) { together(one_takes, function, arg); }
static void call_step(void *function, void *arg) { together(one_steps, function, arg); }

// ---- The same on one thread that is interrupted by another worker.

static void own_add(_Atomic uint32_t *at, float by) {
    uint32_t old = atomic_load(at), wanted;
    do {
        float value;
        memcpy(&value, &old, sizeof value);
        value += by;
        memcpy(&wanted, &value, sizeof wanted);
    } while (!atomic_compare_exchange_strong(at, &old, wanted));
}

static void another_adds(void) {
    for (uint32_t k = 0; k < the_job->n; ++k) own_add(&the_job->w[k], 0.125f);
}

static void add_and_take_away(void) {
    FUNCTION(add_fn, f, the_function);
    f(&the_job->w[0], the_job->by[0]);
    f(&the_job->w[0], -the_job->by[0]);
}

static void step_and_back(void) {
    FUNCTION(step_fn, f, the_function);
    const job *t = the_job;
    f(t->w, t->index, t->x, SAMPLE, t->y[0], t->lr);
    f(t->w, t->index, t->x, SAMPLE, -t->y[0], t->lr);
}

static void another_takes(void) { atomic_fetch_add((_Atomic uint32_t *)&the_job->w[0], 1); }

static void take_one(void) {
    FUNCTION(next_fn, f, the_function);
    f(&the_job->w[0], the_job->n);
}

static void call_interrupted(void *function, void *arg, void (*work)(void), void (*other)(void)) {
    the_function = function, the_job = arg;
    *the_job->met = interrupted(work, other);
}

static void call_add_alone(void *function, void *arg) {
    call_interrupted(function, arg, add_and_take_away, another_adds);
}

static void call_step_alone(void *function, void *arg) {
    call_interrupted(function, arg, step_and_back, another_adds);
}

static void call_next_alone(void *function, void *arg) {
    call_interrupted(function, arg, take_one, another_takes);
}

static const named_call calls[] = { { "get", call_get },
                                    { "put", call_put },
                                    { "add", call_add },
                                    { "next", call_next },
                                    { "step", call_step },
                                    { "add alone", call_add_alone },
                                    { "step alone", call_step_alone },
                                    { "next alone", call_next_alone },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static bits bits_of(float value) {
    bits raw;
    memcpy(&raw, &value, sizeof raw);
    return raw;
}

static float float_of(bits raw) {
    float value;
    memcpy(&value, &raw, sizeof value);
    return value;
}

static job *new_job(uint32_t threads, uint32_t n) {
    job *t = shown(sizeof *t);
    *t = (job){ .threads = threads, .n = n, .lr = 1.0f / 16.0f };
    t->w = returned((n + 8) * sizeof *t->w);
    for (uint32_t i = 0; i < n; ++i) t->w[i] = bits_of(eighth());
    for (uint32_t i = n; i < n + 8; ++i) t->w[i] = 0x7777;
    return t;
}

// All n parameters, and the eight behind them that belong to nobody
static const char *differ_bits(const job *t, const double *wanted, double most) {
    float *got = outputs(t->n, 0.0f);
    for (uint32_t i = 0; i < t->n; ++i) got[i] = float_of(t->w[i]);
    const char *wrong = differ("w", got, wanted, t->n, most);
    for (uint32_t i = t->n; i < t->n + 8 && !wrong; ++i)
        if (t->w[i] != 0x7777) wrong = "something was written behind the parameters";
    return wrong;
}

static const char *try_get(bool put) {
    job *t = new_job(1, 20);
    t->value = outputs(20, 0.0f);
    for (uint32_t i = 0; i < 20; ++i) t->value[i] = put ? (float)i * 0.1f : 0.0f;
    double wanted[20];
    for (uint32_t i = 0; i < 20; ++i)
        wanted[i] = (double)(put ? t->value[i] : float_of(t->w[i]));
    const char *wrong = put ? run("put", "put", t, 2) : run("get", "get", t, 2);
    if (wrong) return wrong;
    return either(differ("value", t->value, wanted, 20, 0.0), differ_bits(t, wanted, 0.0));
}

static const char *try_add(uint32_t threads, uint32_t n, uint32_t times) {
    job *t = new_job(threads, n);
    double wanted[16];
    t->times = times;
    for (uint32_t i = 0; i < threads; ++i) t->by[i] = (float)between(1, 4) / (i % 2 ? -8.0f : 8.0f);
    for (uint32_t k = 0; k < n; ++k) {
        wanted[k] = (double)float_of(t->w[k]);
        for (uint32_t i = 0; i < threads; ++i)
            wanted[k] += (double)t->by[i] * (times / n + (k < times % n));
    }
    const char *wrong = run("add", "add", t, 4);
    return wrong ? wrong : differ_bits(t, wanted, 0.0);
}

static const char *try_next(uint32_t threads, uint32_t n, uint32_t times, bool look_at_counter) {
    job *t = new_job(threads, 1);
    t->n = n, t->times = times, t->w[0] = 0;
    uint32_t *taken = t->taken = returned((n + 2) * sizeof *taken);
    const bits *counter = t->w;
    const uint32_t left = threads * times - n;
    const char *wrong = run("next", "next", t, 3);
    for (uint32_t i = 0; i < n && !wrong; ++i)
        if (taken[i] != 1) wrong = differ_whole("how often one sample was taken", taken[i], 1);
    if (!wrong) wrong = differ_whole("how often none was left", taken[n], left);
    if (wrong || !look_at_counter) return wrong;
    return differ_whole("the counter at the end", *counter, n);
}

// Samples of which no two have a parameter in common: the order does not matter.
static const char *try_step(uint32_t threads, uint32_t samples) {
    const uint32_t n = samples * SAMPLE * 2;
    job *t = new_job(threads, n);
    t->samples = samples;
    t->index = shown(samples * SAMPLE * sizeof *t->index);
    t->x = inputs(samples * SAMPLE), t->y = inputs(samples);
    double *wanted = malloc(n * sizeof *wanted);
    if (!wanted) stop("grader");
    for (uint32_t i = 0; i < n; ++i) wanted[i] = (double)float_of(t->w[i]);
    for (uint32_t k = 0; k < samples * SAMPLE; ++k) // each with one of a pair of its own
        t->index[k] = (k * 7 % (samples * SAMPLE)) * 2 + draw(2);
    for (uint32_t s = 0; s < samples; ++s) {
        double off = -(double)t->y[s];
        for (uint32_t k = s * SAMPLE; k < (s + 1) * SAMPLE; ++k)
            off += wanted[t->index[k]] * (double)t->x[k];
        for (uint32_t k = s * SAMPLE; k < (s + 1) * SAMPLE; ++k)
            wanted[t->index[k]] -= (double)t->lr * off * (double)t->x[k];
    }
    const char *wrong = run("hogwild_step", "step", t, 3);
    if (!wrong) wrong = differ_bits(t, wanted, 1e-5);
    free(wanted);
    return wrong;
}

// ---- Interrupted by another worker, who adds 1/8 to each parameter every time. The thread's own
// ---- additions take as much away as they add.

static const char *lost(const job *t, const double *before) {
    static char text[160];
    for (uint32_t k = 0; k < t->n; ++k) {
        const double there = ((double)float_of(t->w[k]) - before[k]) * 8.0;
        if (fabs(there - t->met->interruptions) < 1e-9) continue;
        snprintf(text, sizeof text, "of %u additions to w[%u] by another worker, %.7g are there",
                 t->met->interruptions, k, there);
        return text;
    }
    return NULL;
}

static const char *try_alone(bool step) {
    job *t = new_job(1, step ? SAMPLE : 1);
    double before[SAMPLE];
    t->by[0] = (float)between(1, 4) / 8.0f, t->met = returned(sizeof *t->met);
    t->index = shown(SAMPLE * sizeof *t->index), t->x = shown(SAMPLE * sizeof *t->x);
    t->y = shown(sizeof *t->y), t->y[0] = 0x1p30f, t->lr = 0x1p-3f;
    for (uint32_t k = 0; k < SAMPLE; ++k) // so small that a w is nothing beside y
        t->index[k] = (k + 2) % SAMPLE, t->x[k] = 0x1p-29f;
    for (uint32_t k = 0; k < t->n; ++k) before[k] = (double)float_of(t->w[k]);
    const char *wrong = step ? run("hogwild_step", "step alone", t, 4)
                             : run("add", "add alone", t, 4);
    return wrong ? wrong : lost(t, before);
}

// The counter stands where all have taken it.
static const char *try_next_alone(void) {
    job *t = new_job(1, 1);
    t->n = 4000000000u, t->w[0] = 0;
    const met *seen = t->met = returned(sizeof *t->met);
    const bits *counter = t->w;
    const char *wrong = run("next", "next alone", t, 4);
    if (wrong) return wrong;
    const long long calls = (long long)seen->times + seen->interruptions;
    return differ_whole("samples taken twice", calls - *counter, 0);
}

static void grade(void) {
    give("get", 5, try_get(false));
    give("put", 5, try_get(true));
    give("add, one thread", 10, either(try_add(1, 1, 1), try_add(1, 5, 1003)));
    give("add, four threads", 10, either(try_add(4, 1, 200000), try_add(4, 3, 150001)));
    give("add, nothing is lost", 20, either(try_add(1, 1, 1), try_alone(false)));
    give("next, one thread", 5, try_next(1, (uint32_t)between(5, 50), 60, false));
    const char *wrong = either(try_next(4, 200000, 50000, false), try_next(4, 3000, 1000, false));
    give("next, nothing is taken twice", 10, either(wrong, try_next_alone()));
    give("next, none is left", 5, try_next(2, (uint32_t)between(5, 90), 1000, true));
    give("hogwild_step, one thread", 10, either(try_step(1, 1), try_step(1, 40)));
    give("hogwild_step, four threads", 10, try_step(4, 400));
    give("hogwild_step, nothing is lost", 10, either(try_step(1, 2), try_alone(true)));
}
#endif
