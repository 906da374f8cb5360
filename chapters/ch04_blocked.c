// Chapter 4. From seven loops to the machine's limit      uses [S5.1] [E1.1] [E1.2] [E1.8] [E8.1]
//
// You will learn   to find out what stops a loop: latency, ports, caches or memory; to take that
//                  away, one step at a time; and, at the limit, to multiply less
// New since ch03   about 250 lines: one convolution, six times
// Takes            two evenings: to 4.5 into the registers, then to the caches and past the peak
// Run              make ch04 && ./ch04
// Check            ./ch04 --quick --figures build/check
//
//| 16 images of 48 x 30 x 30 -> 48 x 28 x 28, kernel 3 x 3: 260112384 multiply-adds
//~ peak <num> GFLOP/s, one chain <num> GFLOP/s: <num> multiply-adds must be under way at once
//| all of them agree with step 1 to within rounding errors
//~ 1 seven loops  <num> (<num> to <num>)  <num> %  <num> x  ...
//| picture  build/check/ch04_roofline.png
//~ F(4,5)  <num> (<num> to <num>)  <num>  <num>

#include "ch04_forms.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__GNUC__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif

// ## 4.1 The task, and what it runs on
//
// One convolution in the forward direction, y[n,o,i,j] = sum over c,u,v of x[n,c,i+u,j+v] *
// w[o,c,u,v]: no stride, no padding, no bias, so that nothing hides the idea. Sixteen images of C
// channels, 30 x 30, become C channels of 28 x 28; C is 96, or 48 with --quick, as in the lines
// above. Each of the 3 x 3 places (u,v) of the kernel is called a **tap**. (A program like those
// below, short, and fast at one operation, is called a kernel as well.)
//
// Six programs for it, from chapter 3's loops to a form that multiplies less. What they fight for
// is this, one core and its memory (sizes and times are those of usual cores, not of yours):
//
//                                        size          until a number is there
//     +-----------+  **registers**       32 vectors    at once
//     |   core    |  ----------------------------------------------------------
//     |           |  **L1** cache        32-48 KiB     4 or 5 cycles
//     +-----------+  **L2** cache        0.5-2 MiB     about 15 cycles
//          |         beyond: L3, memory  much          50 to 300 cycles
//
// - A **register** holds numbers that an instruction works on; a vector register holds 4, 8 or 16
//   floats side by side, and one instruction adds or multiplies all of them.
// - A **cache** is a small, fast memory that keeps copies of what was read or written lately, in
//   lines of 64 bytes. If a number is in it, that is a hit, else the line comes from further away.
//   Whoever reads a number again soon, or reads its neighbours, lives from the cache.
// - A **prefetcher** is a part of the core that watches the addresses. If they follow each other
//   evenly, it fetches the next lines before they are asked for, and nobody waits.
// - A **port** is a way into a part of the core that computes, loads or stores. Each begins one
//   instruction a cycle; most cores have two for multiply-adds, two for loads, one for stores.
// - **Latency** is how long a result takes, ports how many can begin. A multiply-add takes about
//   four cycles: with two ports, eight must be under way at any time, or ports stand empty.
//
// So a loop can be slow in five ways: it waits for its own results (latency); it has more
// instructions of one kind than ports (ports); or its numbers come from L1, from L2 or from beyond
// at less than the speed at which it could use them. Each program is right before it is timed, and
// each starts with a *prediction*: we count what its innermost loop does, and divide by what the
// machine can do. What remains between prediction and clock is what we have not understood.
// (Buffers, tables, charts and timing are in ch04_report.h.)

// ## 4.2 Step 1: seven loops
//
// Chapter 3's, images as [N][C][H][W]. Each product is added to the same `sum`, and an addition
// takes about four cycles until the next can use its result. So: one multiply-add in four cycles,
// whatever else the core could do. That is *latency*.

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
                                sum += x[((n * C + c) * H + i + u) * W + j + v] *
                                       w[((o * C + c) * K + u) * K + v];
                    y[((n * O + o) * P + i) * Q + j] = sum;
                }
}
// [end]

// ## 4.3 Step 2: the same loops in another order
//
// With j innermost, 28 neighbouring outputs each add one product: 28 sums that do not wait for each
// other, in memory side by side, with one weight for all. The compiler sees it and takes several at
// a time (a *vector*). Every output still adds in the order c, u, v, so the result has the same
// bits. The price: each multiply-add now loads x, loads y and stores y. And a row of 28 is three
// vectors of eight and a rest; each row begins anew, at an address that suits no vector.

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
                                    x[((n * C + c) * H + i + u) * W + j + v] *
                                    w[((o * C + c) * K + u) * K + v];
}
// [end]

// ## 4.4 Step 3: sixteen images side by side
//
// Rows are ragged, channels are 1, 3, 10 or 20, but images come in plenty. So let sixteen images
// lie side by side, [C][H][W][16]: whatever is done to one pixel of one image is done to sixteen,
// in one, two or four full, aligned registers, and no image size leaves a rest. One of the sixteen
// places is a **lane**. The layout alone makes this step. We also say the fused multiply-add: one
// instruction for the two of step 2. (The Makefile forbids the compiler to fuse by itself; the
// header's dti_v and dti_fma [E1.1] are these lines again.)

// [region: vector]                      multiply_add is a * b + c
#if defined(__AVX512F__)
typedef float vector __attribute__((vector_size(64), may_alias));
static inline vector multiply_add(vector a, vector b, vector c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__) && defined(__FMA__)
typedef float vector __attribute__((vector_size(32), may_alias));
static inline vector multiply_add(vector a, vector b, vector c) { return _mm256_fmadd_ps(a, b, c); }
#elif defined(__aarch64__)
typedef float vector __attribute__((vector_size(16), may_alias));
static inline vector multiply_add(vector a, vector b, vector c) { return vfmaq_f32(c, a, b); }
#else
#define INSTRUCTIONS 2                   // of one multiply_add(); the others have 1
typedef float vector __attribute__((vector_size(16), may_alias));
static inline vector multiply_add(vector a, vector b, vector c) { return a * b + c; }
#endif
#if !defined(INSTRUCTIONS)
#define INSTRUCTIONS 1
#endif
enum { L = 16, V = sizeof(vector) / sizeof(float) };              // lanes in memory, in a register
static inline vector splat(float a) { return a - (vector){ 0 }; } // the same number in each lane
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
                        for (int k = 0; k < Q * L; k += V)
                            store(row + k, multiply_add(weight, load(in + k), load(row + k)));
                    }
        }
}
// [end]

// ## 4.5 Step 4: sums stay in registers
//
// A vector multiply-add still comes with two loads and a store, but a core starts two
// multiply-adds, two loads and only one store in a cycle. So keep the sums in registers, many at
// once: a *tile* of 6 output channels x 4 columns. Each tap loads 4 vectors of x and 6 weights, and
// does 6 * 4 = 24 multiply-adds: 10 loads for 24, and no store. Why not larger? Count:
//
//     AVX-512, 32 registers:  6 x 4 = 24 sums + 4 inputs + 1 weight = 29
//     AVX2,    16 registers:  6 x 2 = 12 sums + 2 inputs + 1 weight = 15
//
// One more row of the tile and the compiler must put sums into memory again. One much smaller, and
// latency is back: two multiply-adds a cycle, four cycles each, makes eight that must be under way.

enum { OT = 6, TC = V == 16 ? 4 : 2 };   // the tile: output channels, columns

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
                                const float *weight = w + ((o * C + c) * K + u) * K + v;
                                for (int a = 0; a < OT; ++a)
                                    for (int t = 0; t < TC; ++t)
                                        sum[a][t] = multiply_add(splat(weight[a * C * K * K]),
                                                                 load(in + t * L), sum[a][t]);
                            }
                    for (int a = 0; a < OT; ++a)
                        for (int t = 0; t < TC; ++t)
                            store(y + (((o + a) * P + i) * Q + j + t) * L + l, sum[a][t]);
                }
}
// [end]

// ## 4.6 Step 5: what is read stays near
//
// A tile of step 4 reads 3 rows x 6 columns of all 96 channels, 108 KiB: twice an L1 cache, from 96
// places 56 KiB apart, where no prefetcher follows. Then the next tile does, and for the next six
// output channels all 5.3 MiB of x come again, through an L2 of perhaps 2. So cut the channels into
// blocks of 16: 3 x 6 x 16 vectors are 18 KiB, less than half of L1, and stay there while *all*
// output channels pass over them. The weights, packed in the order in which they are read, stream
// in from L2, where a prefetcher does follow. The sums wait in y from one block to the next; one
// row of y, 168 KiB, fits L2. (A training step packs them once: here, before the clock starts.)

enum { CB = 16 };                        // input channels of a block

// [region: step5]
static float *packed_weights;            // [block of c][tile of o][c][u][v][6]
static void pack(const float *w, const shape *s) {
    const int C = s->C, KK = s->K * s->K;
    float *to = packed_weights;
    for (int c0 = 0; c0 < C; c0 += CB)
        for (int o = 0; o < s->O; o += OT)
            for (int c = c0; c < c0 + CB; ++c)
                for (int k = 0; k < KK; ++k)
                    for (int a = 0; a < OT; ++a) *to++ = w[((o + a) * C + c) * KK + k];
}

static void cache_blocks(float *y, const float *x, const float *w, const shape *s) {
    const int C = s->C, H = s->H, W = s->W, O = s->O, K = s->K, P = s->P, Q = s->Q;
    (void)w;
    for (int i = 0; i < P; ++i)
        for (int c0 = 0; c0 < C; c0 += CB)
            for (int j = 0; j < Q; j += TC)
                for (int o = 0; o < O; o += OT)
                    for (int l = 0; l < L; l += V) {
                        const float *weight = packed_weights + (c0 * O + o * CB) * K * K;
                        float *out = y + ((o * P + i) * Q + j) * L + l;
                        vector sum[OT][TC];
                        for (int a = 0; a < OT; ++a)
                            for (int t = 0; t < TC; ++t)
                                sum[a][t] = c0 ? load(out + (a * P * Q + t) * L) : splat(0.0f);
                        for (int c = c0; c < c0 + CB; ++c)
                            for (int u = 0; u < K; ++u)
                                for (int v = 0; v < K; ++v, weight += OT) {
                                    const float *in = x + ((c * H + i + u) * W + j + v) * L + l;
                                    for (int a = 0; a < OT; ++a)
                                        for (int t = 0; t < TC; ++t)
                                            sum[a][t] = multiply_add(
                                                splat(weight[a]), load(in + t * L), sum[a][t]);
                                }
                        for (int a = 0; a < OT; ++a)
                            for (int t = 0; t < TC; ++t)
                                store(out + (a * P * Q + t) * L, sum[a][t]);
                    }
}
// [end]

// ## 4.7 Step 6: fewer multiplications
//
// Who stands at the peak can only do less. Take one axis: two outputs of a kernel of three taps,
// y0 = x0 w0 + x1 w1 + x2 w2 and y1 = x1 w0 + x2 w1 + x3 w2, are six products. Four will do:
//
//     m0 = (x0 - x2) *  w0                        y0 = m0 + m1 + m2
//     m1 = (x1 + x2) * (w0 + w1 + w2) / 2         y1 =      m1 - m2 - m3
//     m2 = (x2 - x1) * (w0 - w1 + w2) / 2
//     m3 = (x1 - x3) *  w2
//
// Check it by hand: m1 + m2 is x1 w1 + x2 (w0 + w2), and m0 puts x0 w0 where x2 w0 was; m1 - m2 is
// x1 (w0 + w2) + x2 w1, and m3 changes x1 w2 into x3 w2. What stands right of the stars is the
// polynomial w0 + w1 z + w2 z^2 at four *points*: at z = 0, at 1 and -1 (halved), and at infinity,
// which means its last coefficient. At a point, a product of polynomials is one multiplication;
// [E1.8] goes on from here. This is Winograd's algorithm (1980), F(2,3): 2 outputs, 3 taps.
//
// In two dimensions, do the rows, then the columns of what the rows gave: a square of 4 x 4 inputs
// becomes 16 points, and 16 products give 2 x 2 outputs, where the definition has 36. The sums on
// the left are not free, but x is brought to the points once for all output channels, y is brought
// back once after the sum over the input channels, and w once in a training step. Between them, at
// each point, remain products and sums over channels alone: step 5's innermost loop, with 4 squares
// in place of 4 columns. In lanes each letter above is sixteen images'; nothing needs a shuffle.

enum { POINTS = 16, APART = 1 };         // vectors between two points' rows: at a multiple of 4 KiB
                                         // from each other all would want the same place in L1
// [region: step6]
static float *weight_points;             // [point][tile of o][c][6]
static vector *x_points, *y_points;      // [point][c][4], [point][o][4]

static inline void weights_to_points(float *to, float w0, float w1, float w2) {
    to[0] = w0, to[1] = (w0 + w1 + w2) / 2, to[2] = (w0 - w1 + w2) / 2, to[3] = w2;
}
static inline void inputs_to_points(vector *to, int apart, vector x0, vector x1, vector x2,
                                    vector x3) {
    to[0] = x0 - x2, to[apart] = x1 + x2, to[2 * apart] = x2 - x1, to[3 * apart] = x1 - x3;
}

static void transform_weights(const float *w, const shape *s) {
    for (int o = 0; o < s->O; ++o)
        for (int c = 0; c < s->C; ++c, w += 9) {
            float rows[3][4], at[4][4];
            for (int u = 0; u < 3; ++u)
                weights_to_points(rows[u], w[3 * u], w[3 * u + 1], w[3 * u + 2]);
            for (int j = 0; j < 4; ++j)
                weights_to_points(at[j], rows[0][j], rows[1][j], rows[2][j]);
            float *to = weight_points + o / OT * OT * s->C + c * OT + o % OT;
            for (int f = 0; f < POINTS; ++f) to[f * s->O * s->C] = at[f / 4][f % 4];
        }
}

static inline void transform_input(vector *to, int point, const float *x, int row) {
    vector rows[4][4];
    for (int i = 0; i < 4; ++i, x += row)
        inputs_to_points(rows[i], 1, load(x), load(x + L), load(x + 2 * L), load(x + 3 * L));
    for (int j = 0; j < 4; ++j)
        inputs_to_points(to + 4 * j * point, point, rows[0][j], rows[1][j], rows[2][j],
                         rows[3][j]);
}

static inline void transform_output(float *y, int row, const vector *m, int point) {
    vector rows[2][4];
    for (int j = 0; j < 4; ++j, m += 4 * point) {
        rows[0][j] = m[0] + m[point] + m[2 * point];
        rows[1][j] = m[point] - m[2 * point] - m[3 * point];
    }
    for (int i = 0; i < 2; ++i) {
        store(y + i * row, rows[i][0] + rows[i][1] + rows[i][2]);
        store(y + i * row + L, rows[i][1] - rows[i][2] - rows[i][3]);
    }
}

// At one point.
static void products(vector *m, const float *weight, const vector *x, const shape *s) {
    for (int o = 0; o < s->O; o += OT, m += OT * TC) {
        vector sum[OT][TC] = { { { 0 } } };
        for (int c = 0; c < s->C; ++c, weight += OT)
            for (int a = 0; a < OT; ++a)
                for (int t = 0; t < TC; ++t)
                    sum[a][t] = multiply_add(splat(weight[a]), x[c * TC + t], sum[a][t]);
        for (int a = 0; a < OT; ++a)
            for (int t = 0; t < TC; ++t) m[a * TC + t] = sum[a][t];
    }
}

static void winograd(float *y, const float *x, const float *w, const shape *s) {
    const int C = s->C, H = s->H, W = s->W, O = s->O, P = s->P, Q = s->Q, across = Q / 2;
    const int x_point = C * TC + APART, y_point = O * TC + APART;
    (void)w;
    for (int l = 0; l < L; l += V)
        for (int first = 0; first < P / 2 * across; first += TC) {
            int i[TC], j[TC];            // where the squares of y begin, and those of x
            for (int t = 0; t < TC; ++t)
                i[t] = (first + t) / across * 2, j[t] = (first + t) % across * 2;
            for (int k = 0; k < C * TC; ++k) {
                const float *in = x + ((k / TC * H + i[k % TC]) * W + j[k % TC]) * L + l;
                transform_input(x_points + k, x_point, in, W * L);
            }
            for (int f = 0; f < POINTS; ++f)
                products(y_points + f * y_point, weight_points + f * O * C,
                         x_points + f * x_point, s);
            for (int k = 0; k < O * TC; ++k) {
                float *out = y + ((k / TC * P + i[k % TC]) * Q + j[k % TC]) * L + l;
                transform_output(out, Q * L, y_points + k, y_point);
            }
        }
}
// [end]

// Beside them runs the header (ch04_forms.h): step 5 for any size, stride and padding [E1.2], and
// step 6 with larger squares, F(4,3) [E1.8].

// ## 4.8 What the machine can do
//
// The peak: twelve sums in registers that do not wait for each other. One chain: the same with a
// single sum. Their ratio is how many multiply-adds must be under way, ports times latency. And
// bandwidths: how fast can a core read half an L1, half an L2, and 128 MiB? (Anew in each run:
// chapter 3's picture is of another day, and has another peak.)

// [region: machine]
enum { CHAINS = 12 };
static volatile float used;              // a result that is used may not be left out
static ALWAYS_INLINE double chains(const int n, int rounds) { // n: a constant in each copy
    vector sum[CHAINS];
    for (int k = 0; k < n; ++k) sum[k] = splat((float)k); // equal sums would be computed once
    const double start = now();
    for (int r = 0; r < rounds; ++r)
        for (int k = 0; k < n; ++k)
            sum[k] = multiply_add(sum[k], splat(0.999f), splat(0.001f));
    const double seconds = now() - start;
    for (int k = 0; k < n; ++k) used = sum[k][0];
    return 2e-9 * n * V * rounds / seconds;
}

static double peak(int rounds) { return chains(CHAINS, rounds); }
static double one_chain(int rounds) { return chains(1, rounds); }

static void read_all(const float *p, size_t floats) {
    vector sum[8];
    for (int k = 0; k < 8; ++k) sum[k] = splat(0.0f);
    for (size_t i = 0; i + 8 * V <= floats; i += 8 * V)
        for (size_t k = 0; k < 8; ++k) sum[k] += load(p + i + k * V);
    for (int k = 1; k < 8; ++k) sum[0] += sum[k];
    used = sum[0][0];
}
// [end]

// ## 4.9 Predict
//
// The counts, for one turn of each innermost loop; the printed row has them on the left, then what
// each of the five alone would allow (- if far above the peak). `l2` and `far` are the bytes that a
// turn fetches from L2 and from beyond it. In step 4 the 18 vectors of x under a tile (3 rows x 6)
// serve 9 turns, so 2 a turn come from L2, and all of x comes from beyond once for every six output
// channels; step 5 has both once for all output channels, and 6 weights a turn. A core of the last
// ten years starts two arithmetic instructions, two loads and one store in a cycle; two
// multiply-adds a cycle *are* the peak, so the peak tells how long a cycle is. Step 6 adds a turn's
// part of the transforms, 32 additions for a square of x and 24 for one of y; its points go to L2
// and come back. Its multiply-adds stand for 36/16 of the definition's.

static void count(step steps[STEPS], const shape *s) {
    const double tile = OT * TC, fmas = tile * INSTRUCTIONS, row = 4.0 * V, K = s->K;
    const double narrow = V < 8 ? V : 8;                          // compilers like vectors of eight
    const double map = (double)s->W * s->H / ((double)s->P * s->Q), in = TC + K - 1;
    const double l2 = row * in / K, far = row * map * TC / (K * K); // of step 4; step 5 shares it
    const double xs = tile / (POINTS * s->O), ys = tile / (POINTS * s->C); // a turn's squares
    const step all[STEPS] = {
        { "1 seven loops", seven_loops, .width = 1, .madds = 1, .arithmetic = 2, .loads = 2,
          .chains = 1 },
        { "2 reordered", reordered, .width = (int)narrow, .madds = 1, .arithmetic = 2, .loads = 2,
          .stores = 1, .chains = 99, .l2 = 4 * narrow * map / (K * K) },
        { "3 lanes", lanes, .lanes = true, .width = V, .madds = 1, .arithmetic = INSTRUCTIONS,
          .loads = 2, .stores = 1, .chains = 99, .l2 = row / K },
        { "4 register tile", register_tile, .lanes = true, .width = V, .madds = tile,
          .arithmetic = fmas, .loads = TC, .weights = OT, .chains = tile, .l2 = l2, .far = far },
        { "5 cache blocks", cache_blocks, pack, .lanes = true, .width = V, .madds = tile,
          .arithmetic = fmas, .loads = TC, .weights = OT, .chains = tile,
          .l2 = 4 * OT + l2 * OT / s->O, .far = far * OT / s->O },
        { "6 Winograd F(2,3)", winograd, transform_weights, .lanes = true, .width = V,
          .madds = tile, .stands_for = 36.0 / 16, .arithmetic = fmas + 32 * xs + 24 * ys,
          .loads = TC + 16 * xs + 16 * ys, .weights = OT, .stores = 16 * xs + 20 * ys,
          .chains = tile, .l2 = 4 * OT + 32 * row * (xs + ys), .far = 4 * row * map * xs },
        { "  header, direct", header_kernel, header_direct, .lanes = true },
        { "  header, F(4,3)", header_kernel, header_winograd, .lanes = true },
    };
    memcpy(steps, all, sizeof all);
}

// Each ceiling in GFLOP/s. If everything overlapped, the lowest alone would count; if nothing did,
// all times would add up. The clock should say something between.

// [region: predict]
static void predict(step *s, const machine *m) {
    const double flop = 2.0 * s->madds * s->width * fmax(1.0, s->stands_for);
    const double cycle = 2.0 * V * (2.0 / INSTRUCTIONS) / m->peak; // in nanoseconds
    const double latency = s->madds / s->chains * 2.0 * V / m->chain / INSTRUCTIONS;
    const double started = fmax(s->arithmetic, s->loads + s->weights) / 2.0;
    const double ports = cycle * fmax(started, s->stores);
    const double moved = 4.0 * s->width * (s->loads + s->stores) + 4.0 * s->weights; // bytes
    const double times[5] = { latency, ports, moved / m->l1, s->l2 / m->l2, s->far / m->far };
    static const char *const names[5] = { "latency", "ports", "L1", "L2", "beyond L2" };
    double most = 0.0, sum = 0.0;
    printf("%-17s %4.0f %4.0f %4.0f %4.0f  ", s->name, s->madds, s->loads, s->weights, s->stores);
    for (int k = 0; k < 5; ++k) {
        if (times[k] * 5.0 * m->peak < flop) printf("%7s", "-");
        else printf("%7.1f", flop / times[k]);
        most = fmax(most, times[k]);
        sum += k == 0 && s->chains > 8 ? 0.0 : times[k]; // full pipelines do not wait
    }
    for (int k = 0; k < 5; ++k)
        if (1.5 * times[k] > most) add_word(s->stop, sizeof s->stop, names[k]);
    s->intensity = flop / moved;
    printf("   %14.1f to %5.1f   %9.2f\n", flop / sum, flop / most, s->intensity);
}
// [end]

// ## 4.10 Check, then measure
//
// Adding n products, in any order, fused or not, is off by no more than n * 2^-24 times the sum of
// their absolute values, S. Both sides may be: so twice that is allowed, and a forgotten tap would
// be outside. Step 6 rounds only C + 11 times on the way to a result, but its terms are larger: in
// 4.7, y0 with all signs plus is (x0 + x2) w0 + (x1 + x2) (w0 + w1 + w2), up to 4 S for an axis and
// 16 S for two. For F(4,3) it would be 3600 S, too wide to find a fault; so that form is held to a
// thousandth of the results' root mean square, the *rms*.

static void allow(double allowed[STEPS], double S, double rms, const shape *s) { // S: times 2^-24
    const double definition = s->C * s->K * s->K * S;
    for (int k = 0; k < STEPS; ++k) allowed[k] = 2.0 * definition;
    allowed[OWN - 1] = definition + 16.0 * (s->C + 11) * S;
    allowed[STEPS - 1] = 1e-3 * rms;
}

// ## 4.11 Read the table, then the roofline
//
// On the machine of the pictures, steps 3, 4 and 5 end where they were predicted; step 1 a little
// higher, as if an addition alone took a cycle less than a multiply-add. Step 2 stays below: its
// counts know nothing of the ends of rows. Step 3 sits on the L1 line: the same counts, but no
// rest. Step 4 leaves that line and then waits for x from beyond L2; step 5 removes the wait, with
// the same innermost loop. What is left to it: the start and the end of each tile, and weights on
// their way from L2. Step 6 passes the peak, for all is counted in the definition's multiply-adds.
// It ends near its prediction's lower number: transforms and products take turns, and so add up.
//
// The *roofline* (Williams, Waterman and Patterson 2009): to the right, the flop of a loop for each
// byte it loads or stores; upwards, its speed. No loop is above the peak, and none above its
// intensity times the bandwidth of where its bytes come from. (But step 3 is, by 7 %: that line was
// measured with loads alone, and a store goes beside them, through a port of its own.) Steps 1 to 5
// stand in it; step 6 does fewer flop than it is counted for, so it has no place there.

// ## 4.12 What the fewer multiplications cost
//
// F(m,k) takes (m+k-1)^2 products where the definition takes m^2 k^2, so larger squares save more.
// But they need more points, the header's +-2 and +-1/2, whose powers make large terms that cancel
// and leave their rounding errors behind. F(2,3) is as exact as the definition, or more: its chains
// are shorter. ch04_forms.png has every form by speed and error.
//
// Does training mind? The net of chapter 12 with its settings (MNIST, 10 epochs, batch 128,
// learning rate 0.01), seeds 1 to 5, with `--direct` and without; Intel Xeon, AVX-512, 2026-12-01,
// figures/ch04_accuracy.csv; again with `sh chapters/ch04_accuracy.sh`:
//
//     test accuracy, %       mean    lowest to highest
//     by the definition     98.05    97.90 to 98.12
//     by Winograd           98.06    97.86 to 98.25
//
// The means are 0.02 apart, the two ways with one seed up to 0.13, two seeds up to 0.39: rounding
// moves a training less than another seed does.

int main(int argc, char **argv) {
    dt_comm *comm = begin_ranks(argc, argv);
    const task t = read_task(argc, argv, comm);
    const shape s = t.size;
    const machine m = measure_machine(&(questions){ peak, one_chain, read_all }, t.quick);
    const buffers b = buffers_new(&s);
    packed_weights = floats((size_t)(s.O * s.C * s.K * s.K));
    weight_points = floats((size_t)(POINTS * s.O * s.C));
    x_points = (vector *)(void *)floats((size_t)(POINTS * (s.C * TC + APART) * V));
    y_points = (vector *)(void *)floats((size_t)(POINTS * (s.O * TC + APART) * V));
    step steps[STEPS];
    count(steps, &s);
    print_counts_head();
    for (int k = 0; k < OWN; ++k) predict(&steps[k], &m);
    int failures = compare(steps, allow, &b, &s);
    measure(steps, &b, &s, t.runs);
    print_table(steps, &m);
    draw(t.folder, steps, &m, &s);
    failures += compare_forms(&t, m.peak);

    free(packed_weights), free(weight_points), free(x_points), free(y_points);
    buffers_free(&b);
    return leave_ranks(comm, failures);
}

// ## 4.13 Exercises
//
// 1. **Predict.** Tiles of 4 x 4 and 8 x 4: how many registers, and loads a multiply-add? Set OT.
// 2. **Predict.** Twice the channels (`--channels 192`): which counts change, which step notices?
// 3. **Implement.** Take the taps v = 0, 1, 2 of a row together: 6 vectors of x instead of 12.
// 4. **Measure.** CB = 4, 8, 16, 32, 96 in step 5. Where is the best, and where does L1 overflow?
// 5. **Measure.** Step 2 with rows of 128. How much of what its prediction missed were rows' ends?
// 6. **Measure.** Step 1 with `restrict` and constant sizes: how far does the compiler get alone?
// 7. **Predict.** APART = 0 in step 6: which loads and stores now meet in L1? Then measure.
// 8. **Implement.** F(4,3) in step 6's place: points 0, 1, -1, 2, -2 and infinity [E1.8].
