// Chapter 4. From seven loops to the machine's limit                      uses [S5.1] [E1.1] [E1.2] [E8.1]
//
// You will learn   to find out what stops a loop: latency, ports, caches or memory; and to take that away, one step at a time
// New since ch03   about 200 lines: one convolution, five times
// Run              make ch04 && ./ch04
// Check            ./ch04 --quick --figures build/check
//
//| one convolution: 16 images of 48 x 30 x 30 -> 48 x 28 x 28, kernel 3 x 3: 260112384 multiply-adds
//~ peak <num> GFLOP/s, one chain <num> GFLOP/s: <num> multiply-adds must be under way at once
//| all of them agree with step 1 to within the rounding errors' bound
//~ 1 seven loops  <num> (<num> to <num>)  <num> %  <num> x  ...
//| picture  build/check/ch04_roofline.png

#define DTRAIN_IMPLEMENTATION
#include "chapter.h"
#include "ch04_report.h"

// ## 4.1 The task, and how to climb
//
// One convolution in the forward direction, y[n,o,i,j] = sum over c,u,v of x[n,c,i+u,j+v] * w[o,c,u,v]: no stride, no padding,
// no bias, so that nothing hides the idea. Sixteen images of 96 channels, 30 x 30, become 96 channels of 28 x 28.
//
// Five programs for it. Each is right before it is timed, and each starts with a *prediction*: we count what its innermost
// loop does, and divide by what the machine can do. What remains between prediction and clock is what we have not understood.
// (ch04_report.h has what is not about performance: sizes, buffers, tables, charts, and the timing of several runs.)

// ## 4.2 Step 1: seven loops
//
// Chapter 3's, images as [N][C][H][W]. Each product is added to the same `sum`, and an addition takes about four cycles until
// the next can use its result. So: one multiply-add in four cycles, whatever else the processor could do. That is *latency*.

// [region: step1]
static void seven_loops(float *y, const float *x, const float *w, const shape *s) {
    const int C = s->C, H = s->H, W = s->W, O = s->O, K = s->K, P = s->P, Q = s->Q;
    for (int n = 0; n < s->N; ++n)
        for (int o = 0; o < O; ++o)
            for (int i = 0; i < P; ++i)
                for (int j = 0; j < Q; ++j) {
                    float sum = 0.0f;
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v)
                                sum += x[((n * C + c) * H + i + u) * W + j + v] * w[((o * C + c) * K + u) * K + v];
                    y[((n * O + o) * P + i) * Q + j] = sum;
                }
}
// [end]

// ## 4.3 Step 2: the same loops in another order
//
// With j innermost, 28 neighbouring outputs each add one product: 28 sums that do not wait for each other, in memory side by
// side, with one weight for all. The compiler sees it and takes several at a time (a *vector*). Every output still adds in the
// order c, u, v, so the result has the same bits. The price: each multiply-add now loads x, loads y and stores y. And a row of
// 28 is three vectors of eight and a rest; each row begins anew, at an address that suits no vector.

// [region: step2]
static void reordered(float *y, const float *x, const float *w, const shape *s) {
    const int C = s->C, H = s->H, W = s->W, O = s->O, K = s->K, P = s->P, Q = s->Q;
    for (int k = 0; k < s->N * O * P * Q; ++k) y[k] = 0.0f;
    for (int n = 0; n < s->N; ++n)
        for (int o = 0; o < O; ++o)
            for (int c = 0; c < C; ++c)
                for (int u = 0; u < K; ++u)
                    for (int v = 0; v < K; ++v)
                        for (int i = 0; i < P; ++i)
                            for (int j = 0; j < Q; ++j)
                                y[((n * O + o) * P + i) * Q + j] +=
                                    x[((n * C + c) * H + i + u) * W + j + v] * w[((o * C + c) * K + u) * K + v];
}
// [end]

// ## 4.4 Step 3: sixteen images side by side
//
// Rows are ragged, channels are 1, 3, 10 or 20, but images come in plenty. So let sixteen images lie side by side, [C][H][W][16]:
// whatever is done to one pixel of one image is done to sixteen, in one, two or four full, aligned registers, and no image
// size leaves a rest. The layout alone makes this step. We also say the fused multiply-add: one instruction for the two of
// step 2. (The Makefile forbids the compiler to fuse by itself; the header's dti_v and dti_fma [E1.1] are these lines again.)

// [region: vector]
#if defined(__AVX512F__)
typedef float vector __attribute__((vector_size(64), may_alias));
static inline vector multiply_add(vector a, vector b, vector c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
#elif defined(__AVX2__) && defined(__FMA__)
typedef float vector __attribute__((vector_size(32), may_alias));
static inline vector multiply_add(vector a, vector b, vector c) { return _mm256_fmadd_ps(a, b, c); }
#elif defined(__aarch64__)
typedef float vector __attribute__((vector_size(16), may_alias));
static inline vector multiply_add(vector a, vector b, vector c) { return vfmaq_f32(c, a, b); }
#else
#define INSTRUCTIONS 2                                                  // of one multiply_add(); the others have 1
typedef float vector __attribute__((vector_size(16), may_alias));
static inline vector multiply_add(vector a, vector b, vector c) { return a * b + c; }
#endif
#if !defined(INSTRUCTIONS)
#define INSTRUCTIONS 1
#endif
enum { L = 16, V = sizeof(vector) / sizeof(float) };                    // lanes in memory, lanes in a register
static inline vector splat(float a) { return a - (vector){ 0 }; }       // the same number in each lane
static inline vector load(const float *p) { return *(const vector *)(const void *)p; }
static inline void store(float *p, vector v) { *(vector *)(void *)p = v; }
// [end]

// [region: step3]
static void lanes(float *y, const float *x, const float *w, const shape *s) {
    const int C = s->C, H = s->H, W = s->W, O = s->O, K = s->K, P = s->P, Q = s->Q;
    for (int i = 0; i < P; ++i)
        for (int o = 0; o < O; ++o) {
            float *row = y + (o * P + i) * Q * L;
            for (int k = 0; k < Q * L; ++k) row[k] = 0.0f;
            for (int c = 0; c < C; ++c)
                for (int u = 0; u < K; ++u)
                    for (int v = 0; v < K; ++v) {
                        const float *in = x + ((c * H + i + u) * W + v) * L;
                        const vector weight = splat(w[((o * C + c) * K + u) * K + v]);
                        for (int k = 0; k < Q * L; k += V) store(row + k, multiply_add(weight, load(in + k), load(row + k)));
                    }
        }
}
// [end]

// ## 4.5 Step 4: sums stay in registers
//
// A vector multiply-add still comes with two loads and a store, but a core starts two multiply-adds, two loads and only one
// store in a cycle. So keep the sums in registers, many at once: a *tile* of 6 output channels x 4 columns. Each tap loads 4
// vectors of x and 6 weights, and does 6 * 4 = 24 multiply-adds: 10 loads for 24, and no store. Why not larger? Count:
//
//     AVX-512, 32 registers:  6 x 4 = 24 sums + 4 inputs + 1 weight = 29
//     AVX2,    16 registers:  6 x 2 = 12 sums + 2 inputs + 1 weight = 15
//
// One more row of the tile and the compiler must put sums into memory again. One much smaller, and latency is back: two
// multiply-adds a cycle, four cycles each, makes eight that must be under way.

enum { OT = 6, TC = V == 16 ? 4 : 2 };                                  // the tile: output channels, columns

// [region: step4]
static void register_tile(float *y, const float *x, const float *w, const shape *s) {
    const int C = s->C, H = s->H, W = s->W, O = s->O, K = s->K, P = s->P, Q = s->Q;
    for (int o = 0; o < O; o += OT)
        for (int i = 0; i < P; ++i)
            for (int j = 0; j < Q; j += TC)
                for (int l = 0; l < L; l += V) {
                    vector sum[OT][TC] = { { { 0 } } };
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v) {
                                const float *in = x + ((c * H + i + u) * W + j + v) * L + l;
                                for (int a = 0; a < OT; ++a)
                                    for (int t = 0; t < TC; ++t)
                                        sum[a][t] = multiply_add(splat(w[(((o + a) * C + c) * K + u) * K + v]), load(in + t * L),
                                                                 sum[a][t]);
                            }
                    for (int a = 0; a < OT; ++a)
                        for (int t = 0; t < TC; ++t) store(y + (((o + a) * P + i) * Q + j + t) * L + l, sum[a][t]);
                }
}
// [end]

// ## 4.6 Step 5: what is read stays near
//
// A tile of step 4 reads 3 rows x 6 columns of all 96 channels, 108 KiB: twice an L1 cache, from 96 places 56 KiB apart,
// where no prefetcher follows. Then the next tile does, and for the next six output channels all 5.3 MiB of x come again,
// through an L2 of perhaps 2. So cut the channels into blocks of 16: 3 x 6 x 16 vectors are 18 KiB, less than half of L1, and
// stay there while *all* output channels pass over them. The weights, packed in the order in which they are read, stream in from
// L2, where a prefetcher does follow. The sums wait in y from one block to the next; one row of y, 168 KiB, fits L2.

enum { CB = 16 };                                                       // input channels of a block

// [region: step5]
static void pack(float *packed, const float *w, const shape *s) {       // [block of c][tile of o][c][u][v][6]
    const int C = s->C, KK = s->K * s->K;
    for (int c0 = 0; c0 < C; c0 += CB)
        for (int o = 0; o < s->O; o += OT)
            for (int c = c0; c < c0 + CB; ++c)
                for (int k = 0; k < KK; ++k)
                    for (int a = 0; a < OT; ++a) *packed++ = w[((o + a) * C + c) * KK + k];
}

static float *packed_weights, *scratch;
static void cache_blocks(float *y, const float *x, const float *w, const shape *s) {
    const int C = s->C, H = s->H, W = s->W, O = s->O, K = s->K, P = s->P, Q = s->Q;
    pack(packed_weights, w, s);
    for (int i = 0; i < P; ++i)
        for (int c0 = 0; c0 < C; c0 += CB)
            for (int j = 0; j < Q; j += TC)
                for (int o = 0; o < O; o += OT)
                    for (int l = 0; l < L; l += V) {
                        const float *weight = packed_weights + (c0 * O + o * CB) * K * K;
                        float *out = y + ((o * P + i) * Q + j) * L + l;
                        vector sum[OT][TC];
                        for (int a = 0; a < OT; ++a)
                            for (int t = 0; t < TC; ++t) sum[a][t] = c0 ? load(out + (a * P * Q + t) * L) : splat(0.0f);
                        for (int c = c0; c < c0 + CB; ++c)
                            for (int u = 0; u < K; ++u)
                                for (int v = 0; v < K; ++v, weight += OT) {
                                    const float *in = x + ((c * H + i + u) * W + j + v) * L + l;
                                    for (int a = 0; a < OT; ++a)
                                        for (int t = 0; t < TC; ++t)
                                            sum[a][t] = multiply_add(splat(weight[a]), load(in + t * L), sum[a][t]);
                                }
                        for (int a = 0; a < OT; ++a)
                            for (int t = 0; t < TC; ++t) store(out + (a * P * Q + t) * L, sum[a][t]);
                    }
}
// [end]

// Beside them the header's kernel [E1.2]: step 5 for any size, stride and padding, with tiles to suit.
static void header_kernel(float *y, const float *x, const float *w, const shape *s) {
    const dti_conv conv = conv_of(s);
    dti_conv_pack(&conv, w, packed_weights);
    dti_conv_forward(&conv, x, packed_weights, NULL, y, scratch);
}

// ## 4.7 What the machine can do
//
// The peak: twelve sums in registers that do not wait for each other. One chain: the same with a single sum. Their ratio is how
// many multiply-adds must be under way, ports times latency. And bandwidths: how fast can a core read half an L1, half an L2,
// and 128 MiB?

// [region: machine]
enum { CHAINS = 12 };
static volatile float used;                                             // a result that is used may not be left out
DTI_INLINE double chains(const int n, int rounds) {                     // n is a constant where it is called, so sum[] is registers
    vector sum[CHAINS];
    for (int k = 0; k < n; ++k) sum[k] = splat((float)k);               // equal sums the compiler would compute once
    const double start = now();
    for (int r = 0; r < rounds; ++r)
        for (int k = 0; k < n; ++k) sum[k] = multiply_add(sum[k], splat(0.999f), splat(0.001f));
    const double seconds = now() - start;
    for (int k = 0; k < n; ++k) used = sum[k][0];
    return 2e-9 * n * V * rounds / seconds;
}

static double peak(int rounds) { return chains(CHAINS, rounds); }
static double one_chain(int rounds) { return chains(1, rounds); }
// [end]

// ## 4.8 Predict
//
// The counts, for one turn of each innermost loop. `l2` and `far` are the bytes that a turn fetches from L2 and from beyond it:
// the reading of 4.4 to 4.6 in numbers. A core of the last ten years starts two arithmetic instructions, two loads and one store
// in a cycle; two multiply-adds a cycle *are* the peak, so the peak tells the length of a cycle, whatever the clock's rate.

static void count(step steps[STEPS], const shape *s) {
    const double tile = OT * TC, K = s->K, row = 4.0 * V, narrow = V < 8 ? V : 8;           // compilers like vectors of eight
    const double map = (double)s->W * s->H / ((double)s->P * s->Q), in = TC + K - 1;        // columns under a tile
    const double l2 = row * in / K, far = row * map * TC / (K * K);                         // of step 4; step 5 shares it
    const step all[STEPS] = {
        { "1 seven loops", seven_loops, .width = 1, .madds = 1, .arithmetic = 2, .loads = 2, .chains = 1 },
        { "2 reordered", reordered, .width = (int)narrow, .madds = 1, .arithmetic = 2, .loads = 2, .stores = 1, .chains = 99,
          .l2 = 4 * narrow * map / (K * K) },
        { "3 lanes", lanes, true, V, .madds = 1, .arithmetic = INSTRUCTIONS, .loads = 2, .stores = 1, .chains = 99, .l2 = row / K },
        { "4 register tile", register_tile, true, V, .madds = tile, .arithmetic = tile * INSTRUCTIONS, .loads = TC, .weights = OT,
          .chains = tile, .l2 = l2, .far = far },
        { "5 cache blocks", cache_blocks, true, V, .madds = tile, .arithmetic = tile * INSTRUCTIONS, .loads = TC, .weights = OT,
          .chains = tile, .l2 = 4 * OT + l2 * OT / s->O, .far = far * OT / s->O },
        { "  the header", header_kernel, .lanes = true },
    };
    memcpy(steps, all, sizeof all);
}

// Each ceiling in GFLOP/s. If everything overlapped, the lowest alone would count; if nothing did, all times would add up. The
// clock should say something between.

// [region: predict]
static void predict(step *s, const machine *m) {
    const double flop = 2.0 * s->madds * s->width, cycle = 2.0 * V * (2.0 / INSTRUCTIONS) / m->peak; // in nanoseconds
    const double latency = s->madds / s->chains * 2.0 * V / m->chain / INSTRUCTIONS;
    const double ports = cycle * fmax(fmax(s->arithmetic / 2.0, (s->loads + s->weights) / 2.0), s->stores);
    const double moved = 4.0 * s->width * (s->loads + s->stores) + 4.0 * s->weights;                 // bytes
    const double times[5] = { latency, ports, moved / m->l1, s->l2 / m->l2, s->far / m->far };
    static const char *const names[5] = { "latency", "ports", "L1", "L2", "beyond L2" };
    double most = 0.0, sum = 0.0;
    printf("%-17s %4.0f %4.0f %4.0f %4.0f  ", s->name, s->madds, s->loads, s->weights, s->stores);
    for (int k = 0; k < 5; ++k) {
        if (times[k] * 5.0 * m->peak < flop) printf("%7s", "-"); else printf("%7.1f", flop / times[k]);
        most = fmax(most, times[k]);
        sum += k == 0 && s->chains > 8 ? 0.0 : times[k]; // full pipelines do not wait
    }
    for (int k = 0; k < 5; ++k)
        if (1.5 * times[k] > most) add_word(s->stop, sizeof s->stop, names[k]);
    s->intensity = flop / moved;
    printf("   %14.1f to %5.1f   %9.2f\n", flop / sum, flop / most, s->intensity);
}
// [end]

// ## 4.9 Check, then measure
//
// Steps 3 to 5 add in step 1's order too, but round once where it rounds twice. Adding n products, no order and no fusing is off
// by more than n * 2^-24 times the sum of their absolute values. Twice that is allowed; a forgotten tap would be far outside.

static int compare(const step *steps, const buffers *b, const shape *s) {
    const int outputs = s->N * s->O * s->P * s->Q;
    float most = 0.0f;
    steps[0].run(b->expected, b->x, b->w, s);
    for (int k = 1; k < STEPS; ++k) {
        for (int i = 0; i < outputs; ++i) b->y[i] = b->y_lanes[i] = NAN;
        steps[k].run(steps[k].lanes ? b->y_lanes : b->y, steps[k].lanes ? b->x_lanes : b->x, b->w, s);
        if (steps[k].lanes) lanes_of(b->y, b->y_lanes, s->O * s->P * s->Q, true);
        for (int i = 0; i < outputs; ++i)
            if (!(fabsf(b->y[i] - b->expected[i]) <= most)) most = fabsf(b->y[i] - b->expected[i]); // a NaN is a difference too
    }
    const double bound = 2.0 * s->C * s->K * s->K * ldexp(1.0, -24) * largest_sum(cache_blocks, b, s);
    printf("\nthe largest difference is %.1e; rounding alone could reach %.1e\n", (double)most, bound);
    const bool right = (double)most <= bound;
    printf("%s\n\n", right ? "all of them agree with step 1 to within the rounding errors' bound" : "MISMATCH  a step computes something else");
    return !right;
}

// ## 4.10 Read the table, then the roofline
//
// On the machine of the pictures, steps 3, 4 and 5 end where they were predicted; step 1 a little higher, as if an addition
// alone took a cycle less than a multiply-add. Step 2 stays below: its counts know nothing of the ends of rows. Step 3 sits on the L1
// line: the same counts, but no rest. Step 4 leaves that line and then waits for x from beyond L2; step 5 removes the wait,
// with the same innermost loop. What is left to it: the start and the end of each tile, and weights on their way from L2.
//
// The *roofline* (Williams, Waterman and Patterson 2009): to the right, the flop of a loop for each byte it loads or stores;
// upwards, its speed. No loop is above the peak, and none above its intensity times the bandwidth of where its bytes come from.

int main(int argc, char **argv) {
    dt_comm *comm = begin_ranks(argc, argv);
    const task t = read_task(argc, argv, comm);
    const shape s = t.size;
    const machine m = measure_machine(peak, one_chain, t.quick);
    const buffers b = buffers_new(&s);
    const dti_conv conv = conv_of(&s);
    packed_weights = floats(dti_conv_packed_floats(&conv));
    scratch = floats(dti_conv_scratch_floats(&conv));
    step steps[STEPS];
    count(steps, &s);
    print_counts_head();
    for (int k = 0; k < STEPS - 1; ++k) predict(&steps[k], &m);
    const int failures = compare(steps, &b, &s);
    measure(steps, &b, &s, t.runs);
    print_table(steps, &m);
    draw(t.folder, steps, &m, &s);

    buffers_free(&b); free(packed_weights); free(scratch);
    return leave_ranks(comm, failures);
}

// ## 4.11 Exercises
//
// 1. **Predict.** Tiles of 4 x 4 and of 8 x 4: how many registers and how many loads for a multiply-add? Then set OT, and measure.
// 2. **Predict.** Twice the channels (`--channels 192`): which of the counts change, and which step will notice? Then measure.
// 3. **Implement.** Take the taps v = 0, 1, 2 of a row together: 6 vectors of x serve all three, where now 12 are loaded.
// 4. **Measure.** CB = 4, 8, 16, 32, 96 in step 5. Where is the best, and where does L1 overflow?
// 5. **Measure.** Step 2 with rows of 128 instead of 28. How much of what its prediction missed were the rows' ends?
// 6. **Measure.** Say `restrict` for y, x and w in step 1, and make the sizes constants. How far does the compiler get alone?
