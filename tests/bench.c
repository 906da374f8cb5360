// How near the kernels come to the machine's peak, and where a training step's time goes.
//
// Run      make bench        (build/bench --help lists the options; about 30 s on one core)
// Writes   out/bench.csv           one line a kernel and pass, then the training steps and their layers
//          out/bench_kernels.png   every kernel as a share of the peak
//          out/bench_step.png      one step of each net by layer, beside the time its multiply-adds would take at the peak
//
// The peak is measured, not looked up: chains of multiply-adds in registers at the vector width of this build, right before and
// right after each sample, and the higher of the two counts. Everything is the median of the rounds, with the smallest and the
// largest; a round measures each kernel and each net once, so that a drift of the clock meets all.
//
// Only useful multiply-adds count, two flop each. A tap on padding is none, nor is a lane without an image; the transposed
// weights, the pooling and ReLU are time without flop. A convolution fused with its pooling counts as the convolution alone,
// although backward, where three of four gradients are zero, could do with less. Winograd's algorithm [E1.8] is counted by the
// multiply-adds of the definition that it replaces, not by the fewer that it does: so it may pass the peak.

#include <getopt.h>
#include <sys/stat.h>
#include <time.h>

// The clock of dt_now(), and so that of the net's profile, is the one asked for: --cpu-time takes the process' CPU time.
static clockid_t chosen_clock = CLOCK_MONOTONIC;
#define clock_gettime(id, t) clock_gettime(chosen_clock, t)
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#undef clock_gettime
#include "../chapters/output.h"

enum { GROUPS = 4, BATCH = GROUPS * DT_LANES, STEP_BATCH = 128, STEPS = 80, ROUNDS = 9, KERNELS = 96, LAYERS = 32 };

static const char *only = "";             // --filter
static const char *folder = "out";    // --figures
static bool quick, cpu_time;
static int rounds = ROUNDS;

static void stop(int status, const char *sentence) {
    fprintf(stderr, "bench: %s\n", sentence);
    exit(status);
}

static void check(dt_err error) {
    if (error != DT_OK) stop(1, dt_error());
}

// ---- Clocks and samples

static double seconds_by(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct spread { double median, min, max; } spread;

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static spread spread_of_n(const double *samples, size_t n) {
    double s[STEPS];
    memcpy(s, samples, n * sizeof *s);
    qsort(s, n, sizeof *s, by_size);
    return (spread){ 0.5 * (s[(n - 1) / 2] + s[n / 2]), s[0], s[n - 1] };
}

static double median(const double *samples, size_t n) { return spread_of_n(samples, n).median; }
static spread spread_of(const double *of_all_rounds) { return spread_of_n(of_all_rounds, (size_t)rounds); }

// ---- The peak
//
// A multiply-add waits for the one before it in its chain, four cycles on most machines, while one or two (NEON: up to four)
// could start in each cycle. So there are many chains, and still fewer than registers.

static double peak_once(void) {
    enum { CHAINS = DTI_REGISTERS * 3 / 4, TIMES = 50000 };
    volatile float factor = 0.999f, term = 0.001f; // not known to the compiler
    const dti_v x = dti_splat(factor), y = dti_splat(term);
    dti_v a[CHAINS];
    DTI_UNROLL for (int i = 0; i < CHAINS; ++i) a[i] = dti_splat((float)i);
    const double start = dt_now();
    for (int k = 0; k < TIMES; ++k) {
        DTI_UNROLL for (int i = 0; i < CHAINS; ++i) a[i] = dti_fma(a[i], x, y);
    }
    const double seconds = dt_now() - start;
    float sum[DTI_W];
    DTI_UNROLL for (int i = 1; i < CHAINS; ++i) a[0] += a[i];
    memcpy(sum, &a[0], sizeof sum);
    factor = sum[0]; // somebody needs the result
    return 2.0 * CHAINS * TIMES * DTI_W / seconds;
}

static double peak_measure(int times) {
    double best = 0.0;
    for (int i = 0; i < times; ++i) best = fmax(best, peak_once());
    return best;
}

// A core's clock drifts by a fifth with what its neighbours do, and falls by a tenth while it works hard: multiply-adds alone
// let it rise again. So each sample is held against the peak measured right before and right after it, the higher of the two,
// which is never kind to the sample; for whole steps the peak right after them is said as well.
static double peak;                        // the best of all, flop a second
static double peak_nearby(double before) {
    const double now = peak_measure(2);
    peak = fmax(peak, now);
    return fmax(before, now);
}

// ---- Kernels

typedef enum pass_kind { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, BACKWARD, PASSES } pass_kind;
static const char *const pass_name[PASSES] = { "forward", "backward-data", "backward-weights", "backward" };
typedef enum op_kind { CONV, CONV_POOL, WINOGRAD, LINEAR } op_kind;
static const char *const kind_name[] = { "conv", "conv+pool", "Winograd", "linear" };

typedef struct kernel {
    op_kind kind;
    pass_kind pass;            // BACKWARD: data and weights in one call, which only the fused convolution has
    dti_conv c;                // a linear layer is C -> O on a 1x1 map
    char shape[96];
    double flop;               // of the whole batch
    int calls;                 // in one sample
    double flops[ROUNDS];      // a second
    double share[ROUNDS];      // of the peak beside it
} kernel;

static kernel kernels[KERNELS];
static int kernel_count;

static double useful_taps(int in, int out, const dti_conv *c) { // on one axis, over all outputs
    int taps = 0;
    for (int i = 0; i < out; ++i)
        for (int u = 0; u < c->K; ++u) taps += i * c->S + u >= c->pad && i * c->S + u - c->pad < in;
    return taps;
}

static double conv_flop(const dti_conv *c) { // of one image and one pass
    return 2.0 * c->C * c->O * useful_taps(c->H, c->P, c) * useful_taps(c->W, c->Q, c);
}

static void add_kernel(op_kind kind, pass_kind pass, const dti_conv *c, const char *shape) {
    char name[160];
    snprintf(name, sizeof name, "%s %s %s", kind_name[kind], shape, pass_name[pass]);
    if (!strstr(name, only)) return;
    kernel *k = &kernels[kernel_count++];
    *k = (kernel){ .kind = kind, .pass = pass, .c = *c, .flop = BATCH * conv_flop(c) * (pass == BACKWARD ? 2.0 : 1.0) };
    snprintf(k->shape, sizeof k->shape, "%s", shape);
}

// A first layer (one channel, or three) needs no backward-data in its net; it is measured for three all the same.
static void add_conv(int C, int size, int O, int K, int S, int pad, bool pooled) {
    const int P = (size + 2 * pad - K) / S + 1;
    const dti_conv c = { C, size, size, O, P, P, K, S, pad };
    char shape[96], stride[16] = "", padding[16] = "";
    if (S > 1) snprintf(stride, sizeof stride, " s%d", S);
    if (pad > 0) snprintf(padding, sizeof padding, " p%d", pad);
    snprintf(shape, sizeof shape, "%d->%d k%d%s%s %dx%d", C, O, K, stride, padding, size, size);
    for (int p = FORWARD; p <= BACKWARD_WEIGHTS; ++p)
        if (p != BACKWARD_DATA || C > 1) add_kernel(CONV, (pass_kind)p, &c, shape);
    if (dti_wino_rule(&c))
        for (int p = FORWARD; p <= BACKWARD; ++p)
            if (C > 1 || p == FORWARD || p == BACKWARD_WEIGHTS) add_kernel(WINOGRAD, (pass_kind)p, &c, shape);
    if (!pooled) return;
    add_kernel(CONV_POOL, FORWARD, &c, shape);
    add_kernel(CONV_POOL, C > 1 ? BACKWARD : BACKWARD_WEIGHTS, &c, shape);
}

static void add_linear(int I, int O) {
    char shape[96];
    snprintf(shape, sizeof shape, "%d->%d", I, O);
    for (int p = FORWARD; p <= BACKWARD_WEIGHTS; ++p) add_kernel(LINEAR, (pass_kind)p, &(dti_conv){ I, 1, 1, O, 1, 1, 1, 1, 0 }, shape);
}

static void add_kernels(void) {
    add_conv(1, 28, 10, 5, 1, 0, true);      // the Net's two
    add_conv(10, 12, 20, 5, 1, 0, true);
    add_conv(1, 28, 6, 5, 1, 2, true);       // LeNet's two
    add_conv(6, 14, 16, 5, 1, 0, true);
    add_conv(3, 32, 16, 7, 4, 3, false);     // a small residual net
    add_conv(16, 8, 32, 3, 2, 1, false);
    add_conv(32, 4, 32, 3, 1, 1, false);
    add_conv(128, 1, 128, 3, 1, 1, false);
    add_conv(16, 28, 160, 3, 1, 1, false);   // a wide one
    add_conv(160, 28, 160, 3, 1, 1, false);
    add_conv(320, 14, 320, 3, 1, 1, false);
    add_conv(640, 7, 640, 3, 1, 1, false);
    add_linear(80, 50);
    add_linear(640, 10);
    add_linear(400, 120);
}

// All kernels read the same random numbers and write to the same places; x and dy are never written.
typedef struct buffers {
    float *x, *dy, *w, *b;                    // read
    float *y, *dx, *dw, *db, *packed, *scratch;
    uint8_t *argmax;
} buffers;

static float *floats(size_t n, bool random) {
    float *a = dti_alloc(n * sizeof *a);
    if (!a) stop(1, dt_error());
    for (size_t i = 0; random && i < n; i += 4) {
        const dt_philox_block r = dt_philox(1, DT_RNG_TEST, 0, 0, (uint32_t)(i / 4));
        for (size_t k = 0; k < 4 && i + k < n; ++k) a[i + k] = dt_uniform(r.v[k]) - 0.5f;
    }
    return a;
}

static size_t in_floats(const dti_conv *c) { return (size_t)(c->C * c->H * c->W) * DT_LANES; }
static size_t out_floats(const dti_conv *c) { return (size_t)(c->O * c->P * c->Q) * DT_LANES; }

static size_t packed_floats(const kernel *k) {
    if (k->kind == WINOGRAD) return dti_wino_packed_floats(&k->c, dti_wino_rule(&k->c));
    return k->kind == LINEAR ? dti_linear_packed_floats(k->c.C, k->c.O) : dti_conv_packed_floats(&k->c);
}

static buffers make_buffers(void) { // as large as the largest kernel asks
    size_t x = 1, y = 1, w = 1, o = 1, packed = 1, scratch = 1;
    for (const kernel *k = kernels; k < kernels + kernel_count; ++k) {
        x = x > in_floats(&k->c) ? x : in_floats(&k->c);
        y = y > out_floats(&k->c) ? y : out_floats(&k->c);
        w = w > (size_t)(k->c.O * k->c.C * k->c.K * k->c.K) ? w : (size_t)(k->c.O * k->c.C * k->c.K * k->c.K);
        o = o > (size_t)k->c.O ? o : (size_t)k->c.O;
        packed = packed > packed_floats(k) ? packed : packed_floats(k);
        const size_t room = k->kind == LINEAR ? 0 : k->kind == WINOGRAD ? dti_wino_scratch_floats(&k->c, dti_wino_rule(&k->c)) : dti_conv_scratch_floats(&k->c);
        scratch = scratch > room ? scratch : room;
    }
    return (buffers){ floats(GROUPS * x, true), floats(GROUPS * y, true), floats(w, true), floats(o, true),
                      floats(GROUPS * y, false), floats(GROUPS * x, false), floats(w, false), floats(o, false),
                      floats(packed, false), floats(scratch, false), (uint8_t *)floats(GROUPS * y / 4, false) };
}

static void free_buffers(buffers *b) {
    dti_release(b->x); dti_release(b->dy); dti_release(b->w); dti_release(b->b); dti_release(b->y); dti_release(b->dx);
    dti_release(b->dw); dti_release(b->db); dti_release(b->packed); dti_release(b->scratch); dti_release(b->argmax);
}

// The convolutions, lane group by lane group, as the net calls them.
static void run_conv(const kernel *k, const buffers *b, size_t g) {
    const dti_conv *c = &k->c;
    const size_t in = in_floats(c), out = out_floats(c), pooled = (size_t)(c->O * (c->P / 2) * (c->Q / 2)) * DT_LANES;
    const float *x = b->x + g * in, *dy = b->dy + g * out;
    float *y = b->y + g * out, *dx = b->dx + g * in;
    if (k->kind == CONV_POOL && k->pass == FORWARD)
        dti_conv_pool_forward(c, x, b->packed, b->b, false, b->y + g * pooled, b->argmax + g * pooled, b->scratch);
    else if (k->kind == CONV_POOL)
        dti_conv_pool_backward(c, x, b->packed, b->dy + g * pooled, b->argmax + g * pooled,
                               k->pass == BACKWARD ? dx : NULL, b->dw, b->db, b->scratch);
    else if (k->pass == FORWARD) dti_conv_forward(c, x, b->packed, b->b, y, b->scratch);
    else if (k->pass == BACKWARD_DATA) dti_conv_backward_data(c, dy, b->packed, dx, b->scratch);
    else dti_conv_backward_weights(c, x, dy, b->dw, b->db, b->scratch);
}

// A linear layer takes all groups at once, but for its weights' gradient, which is one group's.
static void run_linear(const kernel *k, const buffers *b) {
    const int I = k->c.C, O = k->c.O;
    const size_t in = in_floats(&k->c), out = out_floats(&k->c);
    if (k->pass == FORWARD) dti_linear_forward(I, O, GROUPS, b->x, in, b->packed, b->b, b->y, out);
    else if (k->pass == BACKWARD_DATA) dti_linear_backward_data(I, O, GROUPS, b->dy, out, b->packed, b->dx, in);
    else
        for (size_t g = 0; g < GROUPS; ++g) dti_linear_backward_weights(I, O, b->x + g * in, b->dy + g * out, b->dw, b->db);
}

// Winograd's algorithm as the net drives it: by lane groups, or where they share the weights, all at once but for the weights' gradient.
static void run_winograd(const kernel *k, const buffers *b) {
    const dti_conv *c = &k->c;
    const dti_wino_form *form = dti_wino_rule(c);
    const int step = dti_wino_shares(c, form) ? GROUPS : 1;
    for (int g = 0; g < GROUPS; g += step) {
        const size_t in = in_floats(c), out = out_floats(c), at = (size_t)g;
        dti_wino_maps x = { b->x + at * in, NULL, in, 0, c->C, c->H, c->W }, dx = x,
                      y = { b->y + at * out, NULL, out, 0, c->O, c->P, c->Q }, dy = y;
        dx.at = b->dx + at * in, dy.at = b->dy + at * out;
        if (k->pass == FORWARD)
            dti_wino_forward(c, form, step, &x, b->packed, b->b, false, &y, b->scratch);
        if (k->pass == BACKWARD_DATA || (k->pass == BACKWARD && step > 1))
            dti_wino_backward(c, form, step, NULL, &dy, b->packed, &dx, NULL, NULL, b->scratch);
        for (int i = 0; i < step && (k->pass == BACKWARD_WEIGHTS || k->pass == BACKWARD);
             ++i, x.at += in, dx.at += in, dy.at += out)
            dti_wino_backward(c, form, 1, &x, &dy, b->packed,
                              k->pass == BACKWARD && step == 1 ? &dx : NULL, b->dw, b->db,
                              b->scratch);
    }
}

static double kernel_seconds(const kernel *k, const buffers *b, int calls) { // of one call on the whole batch
    const double start = dt_now();
    for (int i = 0; i < calls; ++i) {
        if (k->kind == LINEAR) run_linear(k, b);
        else if (k->kind == WINOGRAD) run_winograd(k, b);
        else
            for (size_t g = 0; g < GROUPS; ++g) run_conv(k, b, g);
    }
    return (dt_now() - start) / calls;
}

static void pack(const kernel *k, const buffers *b) { // once a step in a net; not part of the kernel's time
    if (k->kind == LINEAR) dti_linear_pack(k->c.C, k->c.O, b->w, b->packed);
    else if (k->kind == WINOGRAD) dti_wino_pack(&k->c, dti_wino_rule(&k->c), b->w, b->packed);
    else dti_conv_pack(&k->c, b->w, b->packed);
}

static void measure_kernel(kernel *k, const buffers *b, int round) {
    pack(k, b);
    const double once = kernel_seconds(k, b, 1); // brings its data into the caches
    if (!k->calls) k->calls = 1 + (int)fmin((quick ? 0.002 : 0.008) / fmax(once, 1e-7), 1e5);
    const double before = peak_nearby(0.0);
    k->flops[round] = k->flop / kernel_seconds(k, b, k->calls);
    k->share[round] = k->flops[round] / peak_nearby(before);
}

// ---- Training steps

typedef struct training {
    const char *name;
    dt_net *net;
    dt_optimizer *opt;
    dt_batches batches;
    double flop, layer_flop[LAYERS][2];                  // useful, of one step; by layer forward and backward
    double step[ROUNDS], times[ROUNDS];                  // seconds of a step; of the time its multiply-adds take at the peak beside it
    double after[ROUNDS], times_after[ROUNDS];           // the same with the peak of the first quarter of a millisecond after the steps
    double layer[LAYERS][2][ROUNDS];                     // of that: forward, backward
    double images[ROUNDS], weights[ROUNDS], optimizer[ROUNDS], rest[ROUNDS];
} training;

// The Net of the first experiments: 9 840 parameters.
static dt_net *mnist_net(void) {
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 10, .kernel = 5 });
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 20, .kernel = 5 });
    dt_maxpool2d(net, 2);
    dt_dropout2d(net, 0.5f);
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_linear(net, "fc1", 50);
    dt_relu(net);
    dt_linear(net, "fc2", 10);
    return net;
}

// LeNet-5 as it is usually written today (LeCun, Bottou, Bengio, Haffner 1998, with max-pooling and ReLU).
static dt_net *lenet(void) {
    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 6, .kernel = 5, .padding = 2 });
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_conv2d(net, "conv2", &(dt_conv2d_desc){ .out = 16, .kernel = 5 });
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_linear(net, "fc1", 120);
    dt_relu(net);
    dt_linear(net, "fc2", 84);
    dt_relu(net);
    dt_linear(net, "fc3", 10);
    return net;
}

static void training_begin(training *t, const char *name, dt_net *net, const dt_dataset *data) {
    *t = (training){ .name = name, .net = net };
    check(dt_net_build(net, &(dt_build_desc){ .batch = STEP_BATCH, .seed = 1 }));
    if (dt_net_layers(net) > LAYERS) stop(1, "LAYERS is too small for this net");
    if (!(t->opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f }))) stop(1, dt_error());
    check(dt_batches_init(&t->batches, data, &(dt_batches_desc){ .global_batch = STEP_BATCH, .seed = 1, .shuffle = true, .drop_last = true }));
    for (int i = 0; i < dt_net_layers(net); ++i) {
        const dti_layer *l = &net->list.layer[i];
        const double once = STEP_BATCH * (l->class == &dti_conv2d_class ? conv_flop(l->own) : 2.0 * dti_layer_macs(l));
        t->layer_flop[i][0] = once;
        t->layer_flop[i][1] = once * (net->tensor[l->x].learns ? 2.0 : 1.0); // weights, and data unless nothing before it learns
        t->flop += t->layer_flop[i][0] + t->layer_flop[i][1];
    }
}

static void training_end(training *t) {
    dt_batches_free(&t->batches);
    dt_optimizer_free(t->opt);
    dt_net_free(t->net);
}

// An epoch as a program would write it: the seconds of a step.
static double epoch(training *t, uint32_t number) {
    const double start = dt_now();
    dt_batches_begin(&t->batches, number);
    for (dt_batch batch; dt_batches_next(&t->batches, &batch);) {
        check(dt_net_load(t->net, &batch));
        check(dt_forward(t->net));
        check(dt_backward(t->net));
        dt_optimizer_step(t->opt);
    }
    return (dt_now() - start) / t->batches.steps;
}

// The same epoch with clocks inside; the medians of its steps leave out those that other work interrupted. Returns the
// seconds of a step that are no layer's and not the optimizer's.
static double profile_layers(training *t, int round) {
    static double layer[LAYERS][2][STEPS], optimizer[STEPS], rest[STEPS];
    size_t n = 0;
    dt_batches_begin(&t->batches, (uint32_t)round);
    for (dt_batch batch; n < STEPS && dt_batches_next(&t->batches, &batch); ++n) {
        check(dt_net_profile(t->net, true)); // from zero
        const double start = dt_now();
        check(dt_net_load(t->net, &batch));
        check(dt_forward(t->net));
        check(dt_backward(t->net));
        const double computed = dt_now();
        dt_optimizer_step(t->opt);
        optimizer[n] = dt_now() - computed;
        rest[n] = computed - start;
        for (int i = 0; i < dt_net_layers(t->net); ++i) {
            dt_net_layer(t->net, i, &layer[i][0][n], &layer[i][1][n]);
            rest[n] -= layer[i][0][n] + layer[i][1][n];
        }
    }
    check(dt_net_profile(t->net, false));
    t->optimizer[round] = median(optimizer, n);
    for (int i = 0; i < dt_net_layers(t->net); ++i)
        for (int way = 0; way < 2; ++way) t->layer[i][way][round] = median(layer[i][way], n);
    return median(rest, n);
}

// The two packings are inside of dt_forward and no layer's; they are run once more by themselves.
static void profile_packing(training *t, int round) {
    static double images[STEPS], weights[STEPS];
    dt_net *net = t->net;
    size_t n = 0;
    dt_batches_begin(&t->batches, (uint32_t)round);
    for (dt_batch batch; n < STEPS && dt_batches_next(&t->batches, &batch); ++n) {
        const double start = dt_now();
        check(dt_net_load(net, &batch));
        const double loaded = dt_now();
        for (int i = 0; i < net->ops; ++i)
            if (net->op[i].class->pack) net->op[i].class->pack(&net->op[i], net->values);
        weights[n] = dt_now() - loaded;
        images[n] = loaded - start;
    }
    t->images[round] = median(images, n);
    t->weights[round] = median(weights, n);
}

static void measure_training(training *t, int round) {
    const double before = peak_nearby(0.0);
    t->step[round] = epoch(t, (uint32_t)round);
    const double after = peak_once(); // before the clock has time to change
    t->times[round] = t->step[round] * peak_nearby(fmax(before, after)) / t->flop;
    t->after[round] = after;
    t->times_after[round] = t->step[round] * after / t->flop;
    const double rest = profile_layers(t, round);
    profile_packing(t, round);
    t->rest[round] = fmax(0.0, rest - t->images[round] - t->weights[round]);
}

// ---- What is printed

static bool same_shape(const kernel *a, const kernel *b) { return a->kind == b->kind && strcmp(a->shape, b->shape) == 0; }

static void print_kernels(void) {
    if (kernel_count) printf("\nkernels, batch %-4d                            GFLOP/s     min     max   of the peak\n", BATCH);
    for (const kernel *k = kernels; k < kernels + kernel_count; ++k) {
        const spread s = spread_of(k->flops);
        char name[128] = "";
        if (k == kernels || !same_shape(k, k - 1)) snprintf(name, sizeof name, "%s %s", kind_name[k->kind], k->shape);
        printf("%-27s %-18s %7.1f %7.1f %7.1f     %5.1f %%\n", name, pass_name[k->pass],
               1e-9 * s.median, 1e-9 * s.min, 1e-9 * s.max, 100.0 * spread_of(k->share).median);
    }
}

static void print_part(const char *name, const double *forward, const double *backward, double step) {
    const double f = spread_of(forward).median, b = backward ? spread_of(backward).median : 0.0;
    if (backward) printf("  %-28s %8.1f %8.1f us  %5.1f %%\n", name, 1e6 * f, 1e6 * b, 100.0 * (f + b) / step);
    else printf("  %-28s %8.1f          us  %5.1f %%\n", name, 1e6 * f, 100.0 * f / step);
}

static void print_training(const training *t) {
    const spread s = spread_of(t->step);
    const double times = spread_of(t->times).median, bound = s.median / times;
    printf("\n%s, batch %d: %.0f images/s (%.0f .. %.0f); a step takes %.3f ms, %.2f times its multiply-adds at the peak (%.3f ms)\n", t->name,
           STEP_BATCH, STEP_BATCH / s.median, STEP_BATCH / s.max, STEP_BATCH / s.min, 1e3 * s.median, times, 1e3 * bound);
    printf("  %.2f times at the clock that the steps themselves leave: %.0f GFLOP/s at the peak in the quarter of a millisecond after them\n",
           spread_of(t->times_after).median, 1e-9 * spread_of(t->after).median);
    printf("  60000 images in %.2f s, %.2f s at the peak\n", 60000.0 / STEP_BATCH * s.median, 60000.0 / STEP_BATCH * bound);
    printf("  %-28s  forward backward     of the step\n", "");
    double step = spread_of(t->images).median + spread_of(t->weights).median + spread_of(t->optimizer).median + spread_of(t->rest).median;
    for (int i = 0; i < dt_net_layers(t->net); ++i) step += spread_of(t->layer[i][0]).median + spread_of(t->layer[i][1]).median;
    for (int k = 0; k < t->net->ops; ++k) {
        static const char *const with[] = { "", "", " and pooling", ", pooling and ReLU" };
        const dti_op *op = &t->net->op[k];
        const long i = op->layer - t->net->list.layer;
        char name[96];
        snprintf(name, sizeof name, "%s%s", op->layer->name, with[op->layers]);
        print_part(name, t->layer[i][0], t->layer[i][1], step);
    }
    print_part("packing images", t->images, NULL, step);
    print_part("packing weights", t->weights, NULL, step);
    print_part("optimizer", t->optimizer, NULL, step);
    print_part("loss, exact sums, the rest", t->rest, NULL, step);
}

// ---- bench.csv

static const char *path_of(const char *file) {
    static char path[1024];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) stop(2, "--figures: the folder's name is too long");
    return path;
}

static void csv_row(FILE *f, const char *what, const char *shape, const char *pass, int batch, spread s, double share) {
    fprintf(f, "%s,%s,%s,%d,%.2f,%.2f,%.2f,%.2f,%.2f\n", what, shape, pass, batch, 1e-9 * s.median, 1e-9 * s.min, 1e-9 * s.max,
            1e-9 * s.median / share, 100.0 * share);
}

static spread rates(double flop, const double *seconds) {
    const spread s = spread_of(seconds);
    return (spread){ flop / s.median, flop / s.max, flop / s.min };
}

static void write_csv(const training *nets, int count) {
    const char *path = path_of("bench.csv");
    dti_output out;
    check(dti_output_open(&out, path));
    FILE *f = out.file;
    fprintf(f, "what,shape,pass,batch,gflops,min,max,peak_gflops,percent_of_peak\n");
    for (const kernel *k = kernels; k < kernels + kernel_count; ++k)
        csv_row(f, kind_name[k->kind], k->shape, pass_name[k->pass], BATCH, spread_of(k->flops), spread_of(k->share).median);
    for (const training *t = nets; t < nets + count; ++t) {
        const spread step = rates(t->flop, t->step);
        const double near = step.median * spread_of(t->times).median; // the peak beside the steps
        csv_row(f, "step", t->name, "all", STEP_BATCH, step, 1.0 / spread_of(t->times).median);
        for (int i = 0; i < dt_net_layers(t->net); ++i)
            for (int way = 0; way < 2; ++way) {
                char name[64];
                snprintf(name, sizeof name, "%s %s", t->name, t->net->list.layer[i].name);
                const spread layer = rates(t->layer_flop[i][way], t->layer[i][way]);
                if (t->layer_flop[i][way] > 0) csv_row(f, "layer", name, way ? "backward" : "forward", STEP_BATCH, layer, layer.median / near);
            }
    }
    check(dti_output_close(&out));
}

// ---- Charts

static void save(dt_chart *c, const char *file) {
    check(dt_chart_check(c));
    check(dt_chart_save(c, path_of(file)));
    dt_chart_free(c);
}

static double middle_share(pass_kind p) { // the median of all convolutions, in percent of the peak
    double share[KERNELS];
    size_t n = 0;
    for (const kernel *k = kernels; k < kernels + kernel_count; ++k)
        if (k->kind == CONV && k->pass == p) share[n++] = 100.0 * spread_of(k->share).median;
    return n ? median(share, n) : 0.0;
}

static void chart_kernels(const char *note) {
    static char name[KERNELS][128];
    const char *names[KERNELS], *labels[3] = { "forward", "backward-data (fused: data and weights)", "backward-weights" };
    static double y[3 * KERNELS], low[3 * KERNELS], high[3 * KERNELS];
    size_t groups = 0, n = 0;
    for (int run = 0; run < 2; ++run) { // count the groups, then fill them
        n = 0;
        for (const kernel *k = kernels; k < kernels + kernel_count; ++k) {
            n += k == kernels || !same_shape(k, k - 1);
            if (!run) continue;
            snprintf(name[n - 1], sizeof name[0], "%s%s%s", k->kind == LINEAR ? "linear " : "", k->shape,
                     k->kind == CONV_POOL ? " + pool" : k->kind == WINOGRAD ? " Winograd" : "");
            names[n - 1] = name[n - 1];
            if (k->kind == WINOGRAD && k->pass == BACKWARD) continue; // its parts stand there
            const spread s = spread_of(k->share);
            const size_t at = (k->pass == BACKWARD ? 1 : (size_t)k->pass) * groups + n - 1;
            y[at] = s.median; low[at] = s.min; high[at] = s.max;
        }
        if (run) break;
        groups = n;
        for (size_t i = 0; i < 3 * groups; ++i) y[i] = low[i] = high[i] = (double)NAN;
    }
    char title[200], subtitle[200], caption[400];
    snprintf(title, sizeof title, "Half of the direct convolutions exceed %.0f %% of the peak forward, %.0f %% backward-data, %.0f %% backward-weights",
             middle_share(FORWARD), middle_share(BACKWARD_DATA), middle_share(BACKWARD_WEIGHTS));
    snprintf(subtitle, sizeof subtitle, "multiply-adds of the definition (Winograd does fewer, and so passes the peak) of one core over its peak measured beside each sample, at best %.0f GFLOP/s; batch %d", 1e-9 * peak, BATCH);
    snprintf(caption, sizeof caption, "in->out channels, k kernel, s stride, p padding, map. Median of %d runs with min and max, random data, %s.",
             rounds, note);
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title, .subtitle = subtitle, .caption = caption, .machine = true,
        .width = 1500, .height = 800, .y_label = "share of the peak", .y_format = DT_TICKS_PERCENT });
    dt_chart_bars(c, &(dt_bars){ .groups = groups, .series = 3, .names = names, .labels = labels, .y = y, .y_min = low, .y_max = high });
    dt_chart_reference(c, &(dt_reference){ .label = "the peak, measured", .offset = 1.0 });
    save(c, "bench_kernels.png");
}

enum { PARTS = 8 };
static const char *const part_name[PARTS] = { "first conv forward", "first conv backward", "later conv forward", "later conv backward",
                                              "linear", "pooling, ReLU, dropout", "packing", "loss, sums, optimizer" };

static void chart_step(const training *nets, int count, const char *note) {
    const size_t groups = 2 * (size_t)count;
    double y[PARTS * 4] = { 0 };
    static char name[4][64];
    const char *names[4];
    for (int n = 0; n < count; ++n) {
        const training *t = &nets[n];
        const size_t bound = 2 * (size_t)n, real = bound + 1;
        const double near = t->flop / spread_of(t->step).median * spread_of(t->times).median; // the peak beside the steps
        int convs = 0;
        for (int i = 0; i < dt_net_layers(t->net); ++i) {
            const dti_layer_class *class = t->net->list.layer[i].class;
            const bool conv = class == &dti_conv2d_class;
            convs += conv;
            for (size_t way = 0; way < 2; ++way) {
                const size_t part = conv ? (convs > 1 ? 2 : 0) + way : class == &dti_fc_class ? 4 : 5;
                y[part * groups + bound] += 1e3 * t->layer_flop[i][way] / near;
                y[part * groups + real] += 1e3 * spread_of(t->layer[i][way]).median;
            }
        }
        y[6 * groups + real] = 1e3 * (spread_of(t->images).median + spread_of(t->weights).median);
        y[7 * groups + real] = 1e3 * (spread_of(t->optimizer).median + spread_of(t->rest).median);
        snprintf(name[bound], sizeof name[0], "%s: multiply-adds at the peak", t->name);
        snprintf(name[real], sizeof name[0], "%s: measured", t->name);
        names[bound] = name[bound]; names[real] = name[real];
    }
    char title[200], subtitle[200], caption[400];
    size_t used = (size_t)snprintf(title, sizeof title, "A training step takes");
    for (int n = 0; n < count; ++n)
        used += (size_t)snprintf(title + used, sizeof title - used, "%s %.2f times its roofline for %s", n ? "," : "",
                                 spread_of(nets[n].times).median, nets[n].name);
    snprintf(subtitle, sizeof subtitle, "time of one step of %d images by layer, one core, beside the step's useful multiply-adds at the peak",
             STEP_BATCH);
    snprintf(caption, sizeof caption, "Pooling that its convolution does is part of the convolution. Median of %d runs, synthetic digits, %s.", rounds, note);
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title, .subtitle = subtitle, .caption = caption, .machine = true,
        .y_label = "milliseconds a step" });
    dt_chart_bars(c, &(dt_bars){ .groups = groups, .series = PARTS, .names = names, .labels = part_name, .y = y,
        .stacked = true, .values = true });
    save(c, "bench_step.png");
}

// ---- Main

static void print_help(void) {
    printf("Measures this machine's peak, every kernel and whole training steps against it.\n\nusage: bench [options]\n"
           "  --quick          5 rounds of shorter samples instead of 9\n"
           "  --cpu-time       use the process' CPU time as the clock: for a machine that has other work\n"
           "  --figures DIR    where bench.csv and the charts go; default out\n"
           "  --filter WORD    only what has WORD in its name (conv, linear, k5, 160->160, forward, Net ...); writes no files\n"
           "  --help           print this\n");
}

static void read_options(int argc, char **argv) {
    static const struct option known[] = {
        { "quick", no_argument, NULL, 'q' }, { "cpu-time", no_argument, NULL, 'c' }, { "figures", required_argument, NULL, 'f' },
        { "filter", required_argument, NULL, 'w' }, { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 }
    };
    char why[300];
    struct stat s;
    opterr = 0;
    for (int got; (got = getopt_long(argc, argv, ":", known, NULL)) != -1;) {
        if (got == 'h') { print_help(); exit(exit_code(0)); }
        if (got == 'q') quick = true, rounds = 5;
        if (got == 'c') cpu_time = true, chosen_clock = CLOCK_PROCESS_CPUTIME_ID;
        if (got == 'f') folder = optarg;
        if (got == 'w') only = optarg;
        snprintf(why, sizeof why, got == ':' ? "%s needs a value (try --help)" : "unknown option %s (try --help)", argv[optind - 1]);
        if (got == ':' || got == '?') stop(2, why);
    }
    snprintf(why, sizeof why, "unexpected \"%s\" (try --help)", optind < argc ? argv[optind] : "");
    if (optind < argc) stop(2, why);
    snprintf(why, sizeof why, "--figures %s: there is no such folder", folder);
    if (!*only && (stat(folder, &s) != 0 || !S_ISDIR(s.st_mode))) stop(2, why);
}

int main(int argc, char **argv) {
    static training nets[2];
    dt_dataset data;
    char machine[256], note[160], why[300];
    int count = 0;
    begin_output();
    read_options(argc, argv);
    add_kernels();
    const bool net = strstr("step Net", only) != NULL, le = strstr("step LeNet", only) != NULL;
    snprintf(why, sizeof why, "--filter %s: nothing has that in its name (try --help)", only);
    if (!kernel_count && !net && !le) stop(2, why);
    dt_machine_caption(machine, sizeof machine);
    printf("machine  %s\nkernels  %s\n", machine, dt_kernel_name());

    const double wall = seconds_by(CLOCK_MONOTONIC), cpu = seconds_by(CLOCK_PROCESS_CPUTIME_ID);
    peak = peak_measure(20); // first: it also brings the core to its working frequency
    printf("peak     %.1f GFLOP/s of one core at first\n", 1e-9 * peak);
    fflush(stdout);
    buffers b = make_buffers();
    if (net || le) check(dt_dataset_synthetic(&data, STEP_BATCH * (quick ? STEPS / 4 : STEPS), 1));
    if (net) training_begin(&nets[count++], "Net", mnist_net(), &data);
    if (le) training_begin(&nets[count++], "LeNet", lenet(), &data);
    for (int round = 0; round < rounds; ++round) {
        for (int k = 0; k < kernel_count; ++k) measure_kernel(&kernels[k], &b, round);
        for (int n = 0; n < count; ++n) measure_training(&nets[n], round);
    }
    const double spent = seconds_by(CLOCK_MONOTONIC) - wall, share = (seconds_by(CLOCK_PROCESS_CPUTIME_ID) - cpu) / spent;
    printf("         %.1f GFLOP/s at best; %d rounds in %.1f s by the %s clock\n", 1e-9 * peak, rounds, spent, cpu_time ? "CPU time" : "wall");
    snprintf(note, sizeof note, cpu_time ? "CPU time" : "wall clock");
    if (share < 0.97) {
        snprintf(note, sizeof note, "%s on a busy machine (%.0f %% of a core)", cpu_time ? "CPU time" : "wall clock", 100.0 * share);
        printf("BUSY     the process had %.0f %% of a core's time: other work slowed it%s\n", 100.0 * share,
               cpu_time ? "" : "; --cpu-time measures without the waiting");
    }
    print_kernels();
    for (int n = 0; n < count; ++n) print_training(&nets[n]);
    if (!*only) {
        write_csv(nets, count);
        chart_kernels(note);
        chart_step(nets, count, note);
        printf("\nwritten: bench.csv, bench_kernels.png, bench_step.png in %s\n", folder);
    }
    for (int n = 0; n < count; ++n) training_end(&nets[n]);
    if (count) dt_dataset_free(&data);
    free_buffers(&b);
    return exit_code(0);
}
