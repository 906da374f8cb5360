// Chapter 10. Hogwild                                         uses [S8] [S9] [S4.4] [S11.5] [E8]
//
// You will learn   what is lost when threads add without a lock; why sparse problems do not mind;
//                  what a dense net does
// New since ch09   about 90 lines: threads, relaxed atomics, a lost-update count, Hogwild by hand
// Run              make ch10 && ./ch10
// Check            ./ch10 --quick --data synthetic
//
//~ load, add, store: <num> of <num> additions lost
//| fetch-and-add:    0 of 20000000 additions lost
//| one thread, sparse: with and without a lock the same bits
//| one worker, net: by hand and by dt_train_hogwild the same bits
//| one worker, net: locked and averaged the same bits, too
//~ <num> <num> s <num>x <num> % staleness <num>   <num> s <num>x <num> %   <num> s <num>x <num> %

#include "ch10_report.h"

typedef struct settings {
    const char *data, *png, *optimizer;
    int images, workers, batch, samples, seeds;
    float lr;
    uint64_t seed;
    bool quick, pin, adam;
} settings;

// ## 10.1 A lost update
//
// **Hogwild** is a way to train with threads: all work on one parameter vector in one memory, each
// adds its changes to it as if it were alone, and nobody locks anything. First, on a single number,
// what can go wrong.
//
// Threads share memory. Two that add 1 to the same number both load it, add, and store it; if both
// have loaded before one stores, one addition is gone:
//
//     thread A   load 7            store 8
//     thread B          load 7              store 8     two additions, and the number is 8, not 9
//
// In C a plain `x += 1` from two threads is a *data race*, and the standard then promises nothing
// about the whole program. C11's *atomic* loads and stores are allowed from several threads: each
// of them is whole, so that nobody reads half of an old and half of a new number. *Relaxed* ones
// promise no more than that, and cost no more than plain ones. Load, add, store with them may lose
// an update, but nothing worse. A fetch-and-add is one operation and loses nothing, but costs
// several times as much (and C11 has none for floats).
//
// How many updates are lost depends on how often two threads meet at the same number. So below,
// two threads add to random places of a vector of d numbers, and d grows. at_once, in
// ch10_report.h, starts so many threads at the same moment and waits until all are done.

// [region: lost]
enum { ADDITIONS = 10000000 };
typedef struct adder { _Atomic uint32_t *x; uint32_t d, number; bool whole; } adder;

static void *add_ones(void *arg) {
    const adder *a = arg;
    uint32_t random = a->number + 1;
    for (int i = 0; i < ADDITIONS; ++i) {
        random = random * 1664525u + 1013904223u;
        _Atomic uint32_t *x = &a->x[(uint64_t)random * a->d >> 32];
        if (a->whole) atomic_fetch_add_explicit(x, 1, memory_order_relaxed);
        else
            atomic_store_explicit(x, atomic_load_explicit(x, memory_order_relaxed) + 1,
                                  memory_order_relaxed);
    }
    return NULL;
}

static uint32_t lost_additions(uint32_t d, bool whole) { // of two threads
    _Atomic uint32_t *x = calloc(d, sizeof *x);
    uint32_t lost = 2 * ADDITIONS;
    if (!x) return lost;
    adder a[2] = { { x, d, 0, whole }, { x, d, 1, whole } };
    at_once(2, add_ones, a, sizeof *a);
    for (uint32_t i = 0; i < d; ++i) lost -= atomic_load_explicit(&x[i], memory_order_relaxed);
    free((void *)(uintptr_t)x);
    return lost;
}
// [end]

static void show_lost(void) {
    printf("load, add, store: %u of %u additions lost\n", lost_additions(1, false), 2u * ADDITIONS);
    printf("fetch-and-add:    %u of %u additions lost\n", lost_additions(1, true), 2u * ADDITIONS);
    printf("\nnumbers in the vector   lost\n");
    for (uint32_t d = 1; d <= 1u << 16; d *= 16) {
        char lost[64];
        say_lost(lost_additions(d, false), 2.0 * ADDITIONS, lost, sizeof lost);
        printf("%21u   %s\n", d, lost);
    }
}

// ## 10.2 Where the theory holds: sparse updates
//
// Recht, Ré, Wright and Niu (2011) proved that SGD still gets where it should if each update
// touches few numbers, so that two rarely meet. A problem of that kind: is a mail spam, judged by
// its words? There are very many words, the *features*, and each mail, a *sample*, has few of them.
// Here there are 4194304 features, of which each sample has 16, with values x_f of 1 or -1, and
// the label y is 1 or 0. The model is *logistic regression*, one weight for each feature:
//
//     z = sum of w_f x_f over the sample's features
//     p = 1 / (1 + exp(-z))
//     w_f -= lr (p - y) x_f
//
// p is the probability of 1: softmax (3.2) of the two numbers z and 0. The loss is -log p where y
// is 1 and -log(1 - p) where it is 0, and its slope by z is p - y, as in 5.4. So the last line is a
// step of SGD, for each of the sample's weights, and touches 16 weights of four million. (The
// labels are made with weights that the training does not see.) Two samples share a feature with a
// chance of about 16 * 16 / 4194304 = 0.006 %.
//
// Few collisions are not enough for speed. With 65536 weights two samples meet in 0.4 % of the
// cases only, and yet two workers on two cores are just 1.09 times as fast as one
// (figures/ch10_features.csv). A core does not fetch a number but a line of 16 (4.1), and a line
// that the other core has just written must come from that core's cache, which takes much longer
// than from one's own. 65536 weights are 4096 lines, and both cores keep writing them all. With 256
// lines, 4096 weights, two workers are slower than one. With 4194304 weights a line is
// seldom in the other core's cache, and two are 2.16 times as fast. More than two cores' worth is
// no gain of Hogwild's: there a worker mostly waits for memory, and how long, changes from one run
// to the next more than anything else on this page. On a machine that others share the curve is
// another one every time, but for its ends.
//
// Picture: ch10_features

// [region: sparse]
typedef struct sparse {
    const sample *s;
    _Atomic float *w;
    pthread_mutex_t *lock;
    int first, end;
} sparse;

static float weight(const sparse *t, int f) {
    return atomic_load_explicit(&t->w[f], memory_order_relaxed);
}

static void *sparse_worker(void *arg) {
    const sparse *t = arg;
    for (int i = t->first; i < t->end; ++i) {
        const sample *s = &t->s[i];
        float z = 0.0f;
        if (t->lock) pthread_mutex_lock(t->lock); // the locked twin: one sample at a time
        for (int k = 0; k < FILLED; ++k) z += weight(t, s->f[k]) * (float)s->x[k];
        const float change = 0.2f * ((float)s->y - 1.0f / (1.0f + expf(-z)));
        for (int k = 0; k < FILLED; ++k) // load, add, store
            atomic_store_explicit(&t->w[s->f[k]], weight(t, s->f[k]) + change * (float)s->x[k],
                                  memory_order_relaxed);
        if (t->lock) pthread_mutex_unlock(t->lock);
    }
    return NULL;
}
// [end]

// Seconds of 5 epochs on that many workers, several times from weights of zero; the loss after the
// last.
static sparse_runs train_sparse(const sample *s, int count, int features, int workers,
                                bool locked) {
    static _Atomic float w[FEATURES];
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    sparse t[MOST];
    double seconds[TIMES] = { 0.0 };
    for (int i = 0; i < workers; ++i)
        t[i] = (sparse){ s, w, locked ? &lock : NULL, (int)((int64_t)count * i / workers),
                         (int)((int64_t)count * (i + 1) / workers) };
    for (int again = 0; again < TIMES && !stop_asked; ++again) {
        for (int f = 0; f < features; ++f) atomic_store_explicit(&w[f], 0.0f, memory_order_relaxed);
        for (int epoch = 0; epoch < EPOCHS; ++epoch)
            seconds[again] += at_once(workers, sparse_worker, t, sizeof *t);
    }
    sparse_runs runs = { trials_of(seconds, TIMES), 0.0, 0 };
    static float plain[FEATURES];
    for (int f = 0; f < features; ++f) plain[f] = weight(t, f);
    runs.loss = sparse_loss(s, count, plain);
    runs.hash = dt_hash(plain, (size_t)features * sizeof *plain, 0);
    return runs;
}

// ## 10.3 Where it does not: a dense net, by hand
//
// In a convolutional net every step touches every one of 9840 numbers, so any two steps that
// overlap in time collide nearly everywhere. Hogwild still runs: each worker copies the shared
// vector, computes a gradient in its own net, lets its own Adam turn it into a change, and adds the
// change number by number. Between its copy and its addition other workers may have added theirs,
// and then its gradient belongs to values that are no longer there. How many such steps there were
// is the step's **staleness**.

// [region: net]
typedef struct shared { _Atomic float *w; atomic_uint steps; } shared;
typedef struct worker {
    shared *all;
    dt_net *net;
    dt_optimizer *opt;
    dt_batches it;
    float *change;
    uint64_t stale;
    dt_err error;
} worker;

static dt_err hogwild_step(worker *h, const dt_batch *batch) {
    const size_t n = dt_net_count(h->net);
    const unsigned seen = atomic_load_explicit(&h->all->steps, memory_order_relaxed);
    for (size_t i = 0; i < n; ++i)
        dt_net_values(h->net)[i] = atomic_load_explicit(&h->all->w[i], memory_order_relaxed);
    DT_TRY(dt_net_load(h->net, batch));
    DT_TRY(dt_forward(h->net));
    DT_TRY(dt_backward(h->net));
    dt_optimizer_change(h->opt, h->change);
    for (size_t i = 0; i < n; ++i)
        atomic_store_explicit(&h->all->w[i],
                              atomic_load_explicit(&h->all->w[i], memory_order_relaxed) +
                                  h->change[i],
                              memory_order_relaxed);
    h->stale += atomic_fetch_add_explicit(&h->all->steps, 1, memory_order_relaxed) - seen;
    return DT_OK;
}

static void *hogwild_worker(void *arg) {
    worker *h = arg;
    for (dt_batch batch; h->error == DT_OK && dt_batches_next(&h->it, &batch);)
        h->error = hogwild_step(h, &batch);
    return NULL;
}
// [end]

// One epoch on n workers; each has its share of the data. The result ends in net.
static dt_err hogwild_by_hand(dt_net *net, dt_optimizer *opt, int n, const dt_train_desc *d) {
    const size_t count = dt_net_count(net);
    shared all = { .w = calloc(count, sizeof *all.w) };
    worker h[MOST];
    uint32_t *index = malloc(d->data->count * sizeof *index), start[MOST + 1];
    memset(h, 0, sizeof h);
    dt_err error = all.w && index
                       ? dt_partition(index, start, NULL, (uint32_t)n, d->data->count, d->seed)
                       : DT_ENOMEM;
    for (size_t i = 0; i < count && error == DT_OK; ++i)
        atomic_store_explicit(&all.w[i], dt_net_values(net)[i], memory_order_relaxed);
    for (int i = 0; i < n && error == DT_OK; ++i) {
        h[i] = (worker){ .all = &all,
                         .net = dt_net_clone(net),
                         .change = malloc(count * sizeof(float)) };
        h[i].opt = h[i].net ? dt_optimizer_clone(opt, h[i].net) : NULL;
        error =
            !h[i].opt || !h[i].change
                ? DT_ENOMEM
                : dt_batches_init(&h[i].it, d->data,
                                  &(dt_batches_desc){ .global_batch = d->batch,
                                                      .seed = d->seed + (uint64_t)i,
                                                      .shuffle = true,
                                                      .subset = index + start[i],
                                                      .subset_count = start[i + 1] - start[i] });
    }
    if (error == DT_OK) at_once(n, hogwild_worker, h, sizeof *h);
    for (size_t i = 0; i < count && error == DT_OK; ++i)
        dt_net_values(net)[i] = atomic_load_explicit(&all.w[i], memory_order_relaxed);
    for (int i = 0; i < n; ++i) {
        if (error == DT_OK) error = h[i].error;
        dt_batches_free(&h[i].it);
        dt_optimizer_free(h[i].opt);
        dt_net_free(h[i].net);
        free(h[i].change);
    }
    free((void *)(uintptr_t)all.w), free(index);
    return error;
}

// ## 10.4 Speed, accuracy and staleness
//
// The table has a row for each number of workers N: the header's Hogwild on the net [S11.5], with
// Adam and batches of 32, one epoch in which each worker sees 1/N of the data. The test is scored
// with dropout off. Beside it are two other ways to share. With a lock around copy and addition, no
// addition is lost and no copy is half old and half new. And with nothing shared at all, the
// workers' nets are averaged once, at the end of the epoch. Each is run from several seeds, and the
// table has the medians.
//
// What the pictures show (60 000 images, 2 cores; `figures/ch10_*.csv`):
//
// - speed: two workers on two cores train the net 2.09 times as fast as one without a lock, and
//   1.94 times with it. A step of this net computes long and adds shortly, so the lock is mostly
//   free. The sparse problem does little else than add. There the lock makes two workers slower
//   than one, 0.50 times, and without it they are 2.04 times as fast. (10.2 says why that can be
//   more than two; the net's 2.09 is within the range of one worker's own times.) A third worker
//   on two cores is no gain, and in the sparse problem a loss: 1.63 times.
// - accuracy: the medians are 96.9 to 97.3 % without a lock for 1 to 5 workers, 97.0 to 97.5 % with
//   it, and one worker's five seeds lie 0.6 points apart. So nothing here says that lost additions
//   cost accuracy. What does cost: workers that share nothing until the end. Five of them, each
//   with a fifth of the images, average to 93.7 %.
// - staleness: with two workers 91 % of the steps are one step late, as the other one takes a step
//   meanwhile. With more workers than cores a few steps are late by 16 and more. A worker whose
//   core is given to another in the middle of a step sleeps for some milliseconds; a step takes
//   about a quarter of one; so when it wakes up, dozens of steps have been taken.
//
// Picture: ch10_speedup
//
// Picture: ch10_accuracy
//
// Picture: ch10_staleness

enum { BY_HAND = WAYS };
static const dt_sharing way[WAYS] = { DT_SHARE_FREE, DT_SHARE_LOCKED, DT_SHARE_AVERAGED };

static dt_optimizer *optimizer_of(const settings *s, dt_net *net) {
    return s->adam ? dt_adam(net, &(dt_adam_desc){ .lr = s->lr, .beta1 = 0.9f, .beta2 = 0.999f,
                                                   .eps = 1e-8f })
                   : dt_sgd(net, &(dt_sgd_desc){ .lr = s->lr });
}

// One epoch from one seed: the k'th run of r.
static dt_err train_net(const settings *s, const dt_dataset *train, const dt_dataset *test,
                        int workers, int how, int k, net_runs *r) {
    const uint64_t seed = s->seed + (uint64_t)k;
    dt_hogwild_result result = { .train = { .seconds = 0.0 } };
    dt_score score;
    double steps = 0.0;
    dt_net *net = mnist_net(train->classes);
    DT_TRY(dt_net_build(net, &(dt_build_desc){ .batch = s->batch, .seed = seed }));
    dt_optimizer *opt = optimizer_of(s, net);
    const dt_train_desc desc = { .data = train, .epochs = 1, .batch = (uint32_t)s->batch,
                                 .seed = seed, .pin = s->pin, .on_step = show_progress };
    if (!opt) return DT_ENOMEM;
    DT_TRY(how == BY_HAND ? hogwild_by_hand(net, opt, workers, &desc)
                          : dt_train_shared(net, opt, workers, way[how], &desc, &result));
    DT_TRY(dt_evaluate(net, test, NULL, &score));
    r->seconds[k] = result.train.seconds, r->accuracy[k] = dt_score_accuracy(&score);
    if (k == 0) r->hash = dt_net_hash(net);
    for (int b = 0; b < DT_STALENESS_BINS; ++b) steps += (double)result.staleness[b];
    for (int b = 0; b < DT_STALENESS_BINS && steps > 0.0; ++b) {
        const double share = (double)result.staleness[b] / steps / s->seeds;
        r->share[b] += share, r->stale += b * share;
    }
    dt_optimizer_free(opt);
    dt_net_free(net);
    return DT_OK;
}

static void measure_sparse(dt_comm *comm, const settings *s, results *r) {
    sample *samples = malloc((size_t)s->samples * sizeof *samples);
    if (!samples) usage_error(comm, "ch10", "--samples: not so much memory");
    printf("\nweights   one worker  two without a lock\n");
    for (int k = 0; k < SIZES; ++k) {
        const int features = FEATURES >> 2 * (SIZES - 1 - k);
        make_samples(samples, s->samples, features, s->seed);
        const sparse_runs one = train_sparse(samples, s->samples, features, 1, false),
                          two = train_sparse(samples, s->samples, features, 2, false);
        end_if_asked(comm);
        r->features[k] = features, r->pair[k] = speed_of(one.seconds.median, two.seconds);
        printf("%-9d %8.4f s %8.4f s %5.2fx\n", features, one.seconds.median, two.seconds.median,
               r->pair[k].median);
    }
    printf("\nsparse   no lock                      one lock\n");
    double one = 0.0; // seconds of one worker without a lock
    for (int n = 1; n <= r->n; ++n) {
        const sparse_runs free_runs = train_sparse(samples, s->samples, FEATURES, n, false),
                          locked = train_sparse(samples, s->samples, FEATURES, n, true);
        end_if_asked(comm);
        if (n == 1) one = free_runs.seconds.median;
        if (n == 1)
            must(comm, free_runs.hash == locked.hash,
                 "one thread, sparse: with and without a lock the same bits");
        r->workers[n - 1] = n;
        r->sparse[0][n - 1] = speed_of(one, free_runs.seconds);
        r->sparse[1][n - 1] = speed_of(one, locked.seconds);
        printf("%-8d %.4f s %5.2fx loss %.4f   %.4f s %5.2fx loss %.4f\n", n,
               free_runs.seconds.median, r->sparse[0][n - 1].median, free_runs.loss,
               locked.seconds.median, r->sparse[1][n - 1].median, locked.loss);
    }
    free(samples);
}

static void measure_net(dt_comm *comm, const settings *s, const dt_dataset *train,
                        const dt_dataset *test, results *r) {
    static net_runs by_hand;
    const size_t seeds = (size_t)s->seeds;
    double one = 0.0;
    printf("\nnet      no lock                                  one lock                 averaged "
           "at the end\n");
    for (int n = 1; n <= r->n; ++n) {
        for (int k = 0; k < WAYS; ++k) {
            net_runs *runs = &r->net[k][n - 1];
            for (int i = 0; i < s->seeds; ++i) {
                check(comm, train_net(s, train, test, n, k, i, runs));
                end_if_asked(comm);
            }
            const trials seconds = trials_of(runs->seconds, seeds);
            if (n == 1 && k == 0) one = seconds.median;
            r->speed[k][n - 1] = speed_of(one, seconds);
            r->accuracy[k][n - 1] = trials_of(runs->accuracy, seeds);
        }
        if (n == 1) {
            check(comm, train_net(s, train, test, 1, BY_HAND, 0, &by_hand));
            must(comm, by_hand.hash == r->net[0][0].hash,
                 "one worker, net: by hand and by dt_train_hogwild the same bits");
            must(comm, by_hand.hash == r->net[1][0].hash && by_hand.hash == r->net[2][0].hash,
                 "one worker, net: locked and averaged the same bits, too");
        }
        print_net_row(r, n, one);
    }
    check(comm, train_net(s, train, test, 2, BY_HAND, 0, &by_hand));
    printf("by hand, 2 workers: accuracy %.2f %%\n", 100 * by_hand.accuracy[0]);
}

int main(int argc, char **argv) {
    settings s = { .data = "auto", .optimizer = "adam", .batch = 32, .seed = 1234 };
    const option_desc options[] = {
        DATA_OPTION(&s.data),
        { "images", 'i', &s.images, "N   for the net; default 20000, --quick 1024" },
        { "samples", UP_TO(10000000), &s.samples,
          "N   of the sparse problem; default 200000, --quick 20000" },
        { "workers", UP_TO(MOST), &s.workers,
          "N   the most threads, from 2; default 5, --quick 2" },
        { "batch", UP_TO(65536), &s.batch, "B   of each worker, default 32" },
        { "optimizer", 's', &s.optimizer, "adam|sgd   of each worker of the net, default adam" },
        { "lr", 'f', &s.lr, "X   of the net, default 0.001 for adam, 0.05 for sgd" },
        { "pin", 'b', &s.pin, "    the net's worker i stays on core i" },
        SEED_OPTION(&s.seed),
        { "seeds", UP_TO(MOST_SEEDS), &s.seeds,
          "N   runs of the net for each row, with seeds S, S+1, ...; default 5, with --quick 1" },
        { "png", 's', &s.png,
          "NAME   NAME_speedup.png, NAME_accuracy.png, NAME_staleness.png, NAME_features.png, "
          "with CSVs; default out/ch10, with --quick none" },
        QUICK_OPTION(&s.quick),
    };
    dt_comm *comm =
        begin_program(argc, argv,
                      "Hogwild by hand: threads that share one parameter vector without a lock.",
                      options, sizeof options);
    end_cleanly_on_signals();
    s.adam = strcmp(s.optimizer, "adam") == 0;
    if (!s.adam && strcmp(s.optimizer, "sgd") != 0)
        usage_error(comm, "ch10", "--optimizer: adam or sgd is needed");
    if (!(s.lr > 0.0f)) s.lr = s.adam ? 1e-3f : 0.05f;
    if (s.workers == 1) usage_error(comm, "ch10", "--workers: 2 to 5");
    if (!s.png && !s.quick) s.png = "out/ch10";
    if (s.png) check_output(comm, "%s_speedup.png", s.png);
    if (!s.images) s.images = s.quick ? 1024 : 20000;
    if (!s.samples) s.samples = s.quick ? 20000 : 200000;
    if (!s.seeds) s.seeds = s.quick ? 1 : 5;
    static results r;
    r.seeds = s.seeds;
    r.n = s.workers ? s.workers : s.quick ? 2 : MOST;
    dt_dataset train, test, some, few;
    load_data(comm, s.data, "ch10", &train, &test);
    check_all(comm, dt_dataset_view(&some, &train, 0, (uint32_t)s.images));
    check_all(comm, dt_dataset_view(&few, &test, 0, s.quick ? 1000 : test.count));
    print_machine(comm, &some, r.n);
    show_lost();
    end_if_asked(comm);

    r.opt = s.adam ? "Adam" : "SGD";
    measure_sparse(comm, &s, &r);
    measure_net(comm, &s, &some, &few, &r);
    snprintf(r.about, sizeof r.about,
             "Net: %s, %u training and %u test images. Sparse: %d synthetic samples. ", some.name,
             some.count, few.count, s.samples);
    if (s.png) draw_speedup(&r, s.png), draw_accuracy(&r, s.png);
    if (s.png) draw_staleness(&r, s.png), draw_features(&r, s.png);
    return end_program(comm, &train, &test);
}

// ## 10.5 Exercises
//
// 1. **Predict.** With 16 features of d in each sample and two threads, at which d do half of the
//    updates meet another one? Change FEATURES and look at the loss and at the speed.
// 2. **Implement.** One lock for each 4096 features instead of one for all. In which order must a
//    thread take two of them?
// 3. **Measure.** The dense net with --optimizer sgd, on one worker and on five. Adam's state is
//    each worker's own: what does that do to steps that are stale?
