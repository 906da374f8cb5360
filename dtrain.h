/* dtrain.h 0.2.0: convolutional networks, trained in parallel on CPUs, in one C file to read.

   Do this in exactly one C file:
       #define DTRAIN_IMPLEMENTATION
       #include "dtrain.h"
   and include it without the define wherever else it is used, from C or C++.

   It does: convolution, pooling, batch norm, linear layers and dropout, forward and backward, close
   to the machine's peak; SGD and Adam; MNIST-like data; training on one core, on threads, on MPI
   ranks, exactly (the same bits for every number of ranks), by rare averages, or Hogwild;
   evaluation; files that PyTorch reads; charts as PNG. Its sections are written to be read in
   order, and the chapters beside it build the same things by hand first.

   It does not: run on GPUs, differentiate arbitrary code, know other data types than 32-bit
   floats, print, or end your program. It is not thread-safe per object: one net belongs to one
   thread at a time.

   A whole training run (error checks left out):

       dt_net *net = dt_net_new(1, 28, 28);
       dt_conv2d   (net, "conv1", &(dt_conv2d_desc){ .out = 10, .kernel = 5 });
       dt_maxpool2d(net, 2);
       dt_relu     (net);
       dt_linear   (net, "fc", 10);
       dt_net_build(net, &(dt_build_desc){ .batch = 128, .seed = 1 });
       dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f });
       dt_batches it;
       dt_batches_init(&it, &train, &(dt_batches_desc){ .global_batch = 128, .shuffle = true });
       for (uint32_t epoch = 0; epoch < 10; ++epoch) {
           dt_batches_begin(&it, epoch);
           for (dt_batch batch; dt_batches_next(&it, &batch);) {
               dt_net_load(net, &batch);
               dt_forward(net);
               dt_backward(net);
               dt_optimizer_step(opt);
           }
       }

   Contents. Part I is the book, to be read from top to bottom: a section uses only what stands
   above it, and the doors. A section opens with its idea and says what to read first.

     [S1]  Ground       .1 configuration  .2 errors  .3 memory, time  .4 the doors to Part II
     [S2]  Random numbers: Philox, permutations, hashes
     [S3]  Tensors      .1 shapes, names  .2 exact sums  .3 wide sums
     [S4]  Data         .1 data sets, arrays  .2 IDX, CIFAR-10  .3 sets known by name
                        .4 partition, sampler  .5 global batches  .6 augmentation  .7 into lanes
     [S5]  Kernels to read   .1 convolution  .2 max-pooling, linear
     [S6]  Layers       .1 what a layer is  .2 convolution  .3 max-pool  .4 ReLU  .5 dropout
                        .6 linear  .7 sum (residual)  .8 average pool  .9 sigmoid  .10 tanh
                        .11 batch norm
     [S7]  Losses       .1 what a loss is  .2 cross-entropy  .3 mean squared  .4 binary
     [S8]  Nets         .1 from outside  .2 fused layers  .3 the plan: order, memory
                        .4 building: parameters, initial values  .5 running forward
                        .6 backward; exact sums and their units; batches in parts
     [S9]  Optimizers   .1 what an optimizer is  .2 SGD  .3 Adam  .4 AdamW  .5 NovoGrad
                        .6 groups, clipping  .7 schedules of learning rates
     [S10] Ranks        .1 ranks  .2 messages, collectives  .3 all-reduces by hand
     [S11] Training     .1 broadcast, average, evaluate  .2 the epoch driver: stopping, going on
                        from a checkpoint  .3 synchronous SGD  .4 PSGD, local SGD, outer
                        momentum  .5 Hogwild

   Part II is the engine room; each room opens with what it is for.

     [E1]  Lane kernels .1 lanes  .2-.4 convolution  .5 .6 max-pooling  .7 linear  .8 Winograd
                        .9 arithmetic  .10 images altered, and into lanes  .11 integers of
                        exact sums
     [E2]  Waiting      .1 a communicator's parts  .2 cores  .3 waiting  .4 collectives in flight
                        .5 threads as ranks
     [E3]  MPI          .1 what the launcher says  .2 messages, shared memory of a host
     [E4]  Failure      .1 signs of life, patience  .2 heartbeats  .3 who has failed  .4 watcher
                        .5 usher  .6 guardian  .7 start and end of a job
     [E5]  Reports      .1 MPI doctor  .2 profile, trace  .3 the machine  .4 inside a net
     [E6]  Files        .1 outputs  .2 JSON  .3 saved parameters  .4 CSV  .5 data sets: readers,
                        search  .6 numbers as text  .7 checkpoints
     [E7]  Digits       .1 stroke font  .2 synthetic digits
     [E8]  Charts       .1 what a chart is told, colours  .2 ink  .3 text  .4 axes  .5 places of
                        labels  .6 marks  .7 layout, drawing  .8 writing
     [E9]  Checks: what is refused   .1 sizes  .2 data, batches  .3 nets  .4 training

   Where a new thing goes: a layer is one subsection of [S6], a loss one of [S7] and a row of its
   table, an optimizer one of [S9], a curve of the learning rate a row of [S9.7], a data set a row
   of [S4.3] and its reader in [E6.5], an all-reduce a schedule of [S10.3] and its row, a way to
   train a method of [S11], a fusion of layers a row of [S8.2], a chart's mark one of [E8.6], a
   refusal a line of [E9].

   Define before including, everywhere alike (all are off by default)
     DTRAIN_IMPLEMENTATION   this C file holds the implementation
     DTRAIN_WITH_MPI         ranks as processes, [E3]; compile with mpicc
     DTRAIN_WITH_THREADS     threads as ranks [E2.5], Hogwild [S11.5]; link with -pthread
     DTRAIN_WITH_CHARTS      [E8]; needs stb_image_write.h
     DT_STATIC               every function static to the including file
     DT_API                  what stands before each declaration; default extern
     DT_MALLOC, DT_FREE      both or neither; default malloc and free

   Compiler flags: -O3 -march=native for speed. The kernels say where they fuse multiply and add;
   with -ffp-contract=off the rest is not fused behind their back, and builds for different
   instruction sets with FMA give the same bits. -ffast-math and its parts are refused. Links
   with libm. C11; GCC or Clang give vectors, other compilers plain loops. Licence: MIT, at the
   end. */

/* ==== [S1] Ground =========================================================

   What all other sections stand on: how one file is both header and implementation, and which parts
   of it a build contains [S1.1]; how a function says that something is wrong [S1.2]; where memory
   comes from [S1.3]; what Part I asks of Part II [S1.4]. To read: [S1.2], as every function below
   keeps to it; the rest when a name from it turns up. */

/* ==== [S1.1] Configuration ================================================ */

/* Each section below has declarations (read the first time the header is
   included) and an implementation (read in the one C file that defines
   DTRAIN_IMPLEMENTATION). Both stand together, so that the file reads as one
   text; these two names are how a section tells them apart. */
#ifndef DTRAIN_H
#define DTRAIN_H
#define DTI_DECLARE
#endif
#if defined(DTRAIN_IMPLEMENTATION) && !defined(DTRAIN_IMPLEMENTED)
#define DTRAIN_IMPLEMENTED
#define DTI_IMPLEMENT
#ifdef __cplusplus
#error "dtrain.h: compile the implementation as C; C++ programs include the declarations, link it"
#undef DTI_IMPLEMENT /* here and below: that one error is enough */
#endif
/* Exact sums, exp and the tests for NaN are written for IEEE 754, and these flags are a licence
   to compute something else. What shows in no macro is found when a net is built [E1.9]. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    defined(__NO_SIGNED_ZEROS__) || defined(_M_FP_FAST)
#error "dtrain.h: compile the implementation without -ffast-math, -Ofast and their parts"
#undef DTI_IMPLEMENT
#endif
/* Several ranks need processes or threads. One alone needs neither, and the C library is then
   enough: what stands under DTI_RANKS is left out, headers and all. */
#if defined(DTRAIN_WITH_MPI) || defined(DTRAIN_WITH_THREADS)
#define DTI_RANKS
#endif
/* Ranks and threads need POSIX and a little more, which -std=c11 hides unless a macro asks for
   it before the first header of the C library. */
#if defined(__linux__) && defined(DTI_RANKS) && !defined(_FEATURES_H)
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#elif defined(__linux__) && defined(DTRAIN_WITH_MPI) && !defined(__USE_MISC) && \
    !defined(_BSD_SOURCE)
#error "dtrain.h: DTRAIN_WITH_MPI needs -D_DEFAULT_SOURCE, or this header before the C library's"
#undef DTI_IMPLEMENT
#endif
#endif

#ifdef DTI_DECLARE
#define DTRAIN_VERSION_MAJOR 0
#define DTRAIN_VERSION_MINOR 2
#define DTRAIN_VERSION_PATCH 0
#define DTRAIN_VERSION "0.2.0"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__MINGW32__)
#define DTI_UNUSED __attribute__((unused))
/* gnu_printf knows %zu; plain printf is Microsoft's old one */
#define DTI_PRINTF(f, a) __attribute__((format(gnu_printf, f, a)))
#elif defined(__GNUC__)
#define DTI_UNUSED __attribute__((unused))
#define DTI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DTI_UNUSED
#define DTI_PRINTF(f, a)
#endif

#ifndef DT_API
#ifdef DT_STATIC
#define DT_API static DTI_UNUSED
#else
#define DT_API extern
#endif
#endif

#if defined(DT_MALLOC) != defined(DT_FREE)
#error "dtrain.h: define both DT_MALLOC(bytes) and DT_FREE(pointer), or neither"
#undef DTI_IMPLEMENT
#endif

#define DT_LANES 16 /* images in a lane group, on every machine: see [E1.1] */

#ifdef __cplusplus
extern "C" {
#endif
#endif /* DTI_DECLARE */

#ifdef DTI_IMPLEMENT
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* A static function that some configurations do not call. */
#define DTI_LOCAL static DTI_UNUSED
/* Sanitizers put checks around every access, and take many minutes where templates are unrolled
   into dozens of instances [E1.2]; so there is then one of each, with its sizes in variables. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DTI_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer) || \
    __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define DTI_SANITIZED
#endif
#endif
#if defined(DTI_SANITIZED)
#define DTI_THREAD_LOCAL __thread
#define DTI_INLINE static __attribute__((noinline, unused))
#elif defined(__GNUC__)
#define DTI_THREAD_LOCAL __thread
#define DTI_INLINE static inline __attribute__((always_inline, unused))
#else
#define DTI_THREAD_LOCAL _Thread_local
#define DTI_INLINE static inline
#endif
#ifndef DT_MALLOC
#define DT_MALLOC(bytes) malloc(bytes)
#define DT_FREE(pointer) free(pointer)
#endif
#endif /* DTI_IMPLEMENT */

/* ==== [S1.2] Errors, and numbers as text =================================== */

/* Every function that can fail returns a dt_err. dt_error() then holds one
   sentence, with the numbers in it, about the last failure on this thread.
   Nothing in this file prints, exits or aborts.

   What every function does with arguments that cannot be meant:

     NULL     where its comment does not allow it, is refused: DT_EARG from a function that
              returns a dt_err, NULL from one that returns a pointer, 0 or false from one that
              returns a number, "?" from one that returns a name; what returns nothing does
              nothing. dt_error() then says which argument. What frees takes NULL.
     numbers  outside of the range in the comment, enum values that do not exist, ranks, samples
              and layers that are not there: the same.
     sizes    are multiplied and added so that they cannot wrap round [S1.3]: what is too large
              is refused, as DT_ESHAPE or DT_ENOMEM.
     data     have the net's shape, rows and labels lie inside of what there is: DT_ESHAPE,
              DT_EARG, DT_EDATA.
     order    a call before the one that it needs is DT_EARG, and says which comes first. A call
              that fails undoes what it needed: after a dt_net_load that failed there is nothing
              to run.
     builders of nets and charts remember the first error, until the call that builds or writes
     returns it.

   What cannot be seen is believed: that a pointer leads to an object that lives, an array to as
   many values as said. tests/test_contract.c holds every public function to this. */
#ifdef DTI_DECLARE
typedef enum dt_err {
    DT_OK = 0,
    DT_EARG,     /* an argument that cannot be meant: a zero learning rate, an unknown name */
    DT_ESHAPE,   /* sizes that do not fit each other */
    DT_ENOMEM,   /* memory could not be had */
    DT_EIO,      /* a file could not be opened, read or written */
    DT_EDATA,    /* a file was read, but holds what it must not */
    DT_ECOMM,    /* a rank failed, or the ranks disagree */
    DT_ENUMERIC  /* a value is not finite, or outside of what exact sums hold */
} dt_err;

DT_API const char *dt_error(void);        /* the last failure's sentence; "" before the first */
DT_API const char *dt_err_name(dt_err code); /* "shape", "memory", ... */
DT_API const char *dt_version(void);      /* DTRAIN_VERSION of the implementation */

/* dt_fail: code, after setting dt_error()'s sentence, for callbacks and for functions beside
   these. The arguments may quote dt_error() itself. return dt_fail(DT_EDATA, "%s: line %d has no
   label", path, line); */
DT_API dt_err dt_fail(dt_err code, const char *format, ...) DTI_PRINTF(2, 3);

/* Hands an error upward: DT_TRY(dt_net_build(net, &desc)); */
#define DT_TRY(call) do { dt_err dt_try_ = (call); if (dt_try_ != DT_OK) return dt_try_; } while (0)

/* The decimal number that is the whole text, "0.01" or "1e-3", for command lines and files: it
   has a point in every locale, as all numbers have that this file writes. DT_EARG if the text is
   not a number, or one too large for a double. */
DT_API dt_err dt_number_parse(const char *text, double *value);
#endif

#ifdef DTI_IMPLEMENT
static DTI_THREAD_LOCAL char dti_error_text[512];

DT_API const char *dt_error(void) { return dti_error_text; }
DT_API const char *dt_version(void) { return DTRAIN_VERSION; }

DT_API const char *dt_err_name(dt_err code) {
    static const char *const names[] = { "ok",   "argument", "shape",         "memory",
                                         "file", "data",     "communication", "numeric" };
    return (unsigned)code < sizeof names / sizeof *names ? names[code] : "unknown";
}

/* Leaves a public function, with the neutral value of its kind, where it was not given what it
   needs. */
#define DTI_NEED(given, names, neutral) \
    do { \
        if (!(given)) { \
            (void)dt_fail(DT_EARG, "%s: %s must not be NULL", __func__, names); \
            return neutral; \
        } \
    } while (0)

/* An enum's value: one of 0..count-1. */
static dt_err dti_check_enum(const char *who, const char *what, unsigned value, unsigned count) {
    if (value < count) return DT_OK;
    return dt_fail(DT_EARG, "%s: there is no %s number %d", who, what, (int)value);
}
#endif

/* ==== [S1.3] Memory and time ============================================== */

/* Memory comes from DT_MALLOC in few large blocks, zeroed, at multiples of 64
   bytes: one cache line, one AVX-512 register. */
#ifdef DTI_DECLARE
DT_API double dt_now(void); /* seconds on a clock that only goes forward */
#endif

#ifdef DTI_IMPLEMENT
/* Sizes made of a caller's numbers: what does not fit into a size_t becomes SIZE_MAX, which no
   more factors and terms make small again, and which nobody can allocate. So a formula is
   written as it is, and checked once, at its end. */
DTI_INLINE size_t dti_times(size_t a, size_t b) { return b && a > SIZE_MAX / b ? SIZE_MAX : a * b; }
DTI_INLINE size_t dti_plus(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }
DTI_INLINE size_t dti_round_up(size_t n, size_t unit) {
    return dti_plus(n, unit - 1) / unit * unit;
}

/* bytes of zeros at a multiple of 64; NULL and a sentence if there are none. The pointer that
   DT_FREE will want stands in front of the block:

       raw                 |  just before it:   raw + shift, a multiple of 64
       | not used          |  raw itself        | the caller's block ... */
static void *dti_alloc(size_t bytes) {
    if (bytes > SIZE_MAX / 2) {
        dt_fail(DT_ENOMEM, "cannot allocate more bytes than there are addresses");
        return NULL;
    }
    char *raw = DT_MALLOC(bytes + 128);
    if (!raw) {
        dt_fail(DT_ENOMEM, "cannot allocate %zu bytes", bytes);
        return NULL;
    }
    size_t shift = 128 - ((uintptr_t)raw & 63u); /* 65..128: room for the raw pointer below */
    char *block = raw + shift;
    memcpy(block - sizeof raw, &raw, sizeof raw);
    memset(block, 0, bytes);
    return block;
}

static void *dti_alloc_many(size_t count, size_t each) { return dti_alloc(dti_times(count, each)); }

static void dti_release(void *block) {
    if (!block) return;
    char *raw;
    memcpy(&raw, (char *)block - sizeof raw, sizeof raw);
    DT_FREE(raw);
}

/* Windows' C library has neither of the two others; its clock() counts milliseconds that pass,
   not those of work. */
DT_API double dt_now(void) {
#if defined(_WIN32)
    return (double)clock() / CLOCKS_PER_SEC;
#else
    struct timespec t;
    /* in WASI's C library strict C hides the function */
#if defined(CLOCK_MONOTONIC) && !(defined(__wasi__) && !defined(_BSD_SOURCE))
    clock_gettime(CLOCK_MONOTONIC, &t);
#else
    timespec_get(&t, TIME_UTC);
#endif
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

DTI_INLINE size_t dti_min_size(size_t a, size_t b) { return a < b ? a : b; }
DTI_INLINE uint32_t dti_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
#endif

/* ==== [S1.4] The doors ==================================================== */

/* Nobody needs to read this now: it is the place to look when a name is used that nothing above
   has defined.

   This file has two parts. Part I, sections S1 to S11, is the book: it is read from top to
   bottom, and uses what stands above. Part II, rooms E1 to E9, is the engine: how the kernels
   are made fast, how ranks wait, fail and are found, how files and charts are written, what is
   refused. What Part I asks of Part II, and one room of a later one, stands here, a line each.
   These are the only forward declarations of the file; a test holds the rest to its order.

   And a public function that a section declares and does not define is not one of its ideas, but
   a convenience: what a net tells of itself is in [E5.4], how data sets are made and found in
   [E6.5], numbers as text, dt_fail among them, in [E6.6], the calls of communicators in [E2]. */
#ifdef DTI_IMPLEMENT
typedef struct dt_comm dt_comm;
typedef struct dt_dataset dt_dataset;
typedef struct dt_net dt_net;
typedef struct dt_param dt_param;

/* ---- E1, lane kernels: x, y of one lane group [C][H][W][16]; outputs overwritten, no alias;
   scratch as large as dti_conv_scratch_floats says. packed: weights as the kernels read them,
   made once a step. */
typedef struct dti_conv { int C, H, W, O, P, Q, K, S, pad; } dti_conv; /* P = (H+2pad-K)/S + 1 */
DTI_LOCAL size_t dti_conv_packed_floats(const dti_conv *c);
DTI_LOCAL size_t dti_conv_scratch_floats(const dti_conv *c);
DTI_LOCAL void dti_conv_pack(const dti_conv *c, const float *w, float *packed);
DTI_LOCAL void dti_conv_forward(const dti_conv *c, const float *x, const float *packed,
                                const float *b, float *y, float *scratch);
DTI_LOCAL void dti_conv_backward_data(const dti_conv *c, const float *dy, const float *packed,
                                      float *dx, float *scratch);
DTI_LOCAL void dti_conv_backward_weights(const dti_conv *c, const float *x, const float *dy,
                                         float *dw, float *db, float *scratch);
/* convolution and 2x2 max-pooling in one; argmax: the place u*2 + v of each maximum, or 4
   where ReLU lets nothing through. dx NULL: not wanted */
DTI_LOCAL void dti_conv_pool_forward(const dti_conv *g, const float *x, const float *packed,
                                     const float *b, bool relu, float *y, uint8_t *argmax,
                                     float *scratch);
DTI_LOCAL void dti_conv_pool_backward(const dti_conv *g, const float *x, const float *packed,
                                      const float *dy, const uint8_t *argmax, float *dx, float *dw,
                                      float *db, float *scratch);
DTI_LOCAL void dti_maxpool_forward(int C, int H, int W, int K, int S, const float *x, float *y,
                                   uint8_t *argmax);
DTI_LOCAL void dti_maxpool_backward(int C, int H, int W, int K, int S, const float *dy,
                                    const uint8_t *argmax, float *dx);
/* a linear layer of I inputs and O outputs over G lane groups, which lie xs and ys floats apart */
DTI_LOCAL size_t dti_linear_packed_floats(int I, int O);
DTI_LOCAL void dti_linear_pack(int I, int O, const float *w, float *packed);
DTI_LOCAL void dti_linear_forward(int I, int O, int G, const float *x, size_t xs,
                                  const float *packed, const float *b, float *y, size_t ys);
DTI_LOCAL void dti_linear_backward_data(int I, int O, int G, const float *dy, size_t dys,
                                        const float *packed, float *dx, size_t dxs);
DTI_LOCAL void dti_linear_backward_weights(int I, int O, const float *x, const float *dy, float *dw,
                                           float *db);

/* Winograd's algorithm: rule says by which form a convolution goes, NULL for none; shares,
   whether it is better over many lane groups at once. Backward: dx, or dw and db, may be NULL. */
typedef struct dti_wino_form dti_wino_form;
/* maps of several lane groups, `group` floats apart; argmax where they are pooled */
typedef struct dti_wino_maps {
    float *at;
    uint8_t *argmax;
    size_t group, argmax_group;
    int channels, rows, columns;
} dti_wino_maps;
DTI_LOCAL const dti_wino_form *dti_wino_rule(const dti_conv *g);
DTI_LOCAL bool dti_wino_shares(const dti_conv *g, const dti_wino_form *form);
DTI_LOCAL size_t dti_wino_packed_floats(const dti_conv *g, const dti_wino_form *form);
DTI_LOCAL size_t dti_wino_scratch_floats(const dti_conv *g, const dti_wino_form *form);
DTI_LOCAL void dti_wino_pack(const dti_conv *g, const dti_wino_form *form, const float *w,
                             float *packed);
DTI_LOCAL void dti_wino_forward(const dti_conv *g, const dti_wino_form *form, int groups,
                                const dti_wino_maps *x, const float *packed, const float *b,
                                bool relu, const dti_wino_maps *y, float *scratch);
DTI_LOCAL void dti_wino_backward(const dti_conv *g, const dti_wino_form *form, int groups,
                                 const dti_wino_maps *x, const dti_wino_maps *dy,
                                 const float *packed, const dti_wino_maps *dx, float *dw, float *db,
                                 float *scratch);

/* exact sums [S3.2]: sum[i] += round(x[i] / unit). The largest |x[i]|, or a NaN or infinity among
   them, whatever else there is. */
static float dti_fixed_add(int64_t *sum, const float *x, size_t n, float unit);
static dt_err dti_check_unit(const char *who, float unit); /* a power of two in range? */
/* a net's units [S8.6]: do they suit the step's sums; those for the next step; those for this one
   again; back to those at its beginning, true if they were others; a number that ranks share only
   if they are alike. bits: by which a limit is above its unit */
static bool dti_units_suit(const dt_net *net);
static void dti_units_follow(dt_net *net);
static void dti_units_anew(dt_net *net);
static bool dti_units_begin(dt_net *net);
static int64_t dti_units_number(const dt_net *net);
static int dti_limit_bits(const dt_net *net);
static void dti_gradient_to_floats(dt_net *net);
static dt_err dti_bad_gradient(const dt_net *net, const dt_param *p, const float *share);
static dt_err dti_no_unit(const dt_net *net); /* of a share that fits none: 2^126 and more */
/* wide sums [S3.3]: limb[0..DTI_WIDE-1] += x; false, and nothing added, if x is not finite or too
   large. And the sum as the nearest double, in the middle the even one, rounded this once. */
enum { DTI_WIDE = 10, DTI_WIDE_BITS = 45 }; /* limbs; bits that each of them counts */
DTI_LOCAL bool dti_wide_add(int64_t *limb, double x);
DTI_LOCAL double dti_wide_value(const int64_t *limbs);

static void dti_sqrt_all(float *x, size_t n); /* x[i] = sqrt(x[i]) */
/* out[i][lane] = row[lane][offset+i] * a + b for i < n */
static void dti_pack_lanes(const uint8_t *const row[DT_LANES], size_t n, size_t offset, float a,
                           float b, float *restrict out);
static void dti_pack_floats(const float *const row[DT_LANES], size_t n, size_t offset, float a,
                            float b, float *restrict out);
typedef struct dti_alteration {    /* what was drawn for one image [S4.6] */
    bool flip;
    double angle, scale, shear;    /* degrees, factor, degrees */
    float factor[3];               /* of brightness, contrast, saturation; 1 changes nothing */
    int order;                     /* which of the 6 orders of these three */
} dti_alteration;
/* one image (C,H,W) into another; no alias */
static void dti_alter(const dti_alteration *a, int C, int H, int W, const uint8_t *in,
                      uint8_t *out);
static dt_err dti_check_thread(void);         /* DT_ENUMERIC: the processor is set oddly */
static dt_err dti_check_arithmetic(void);     /* the same, or the compiler broke IEEE 754 */
static uint64_t dti_arithmetic_hash(void);    /* of what decides a result's last bits */

/* ---- E2, cores and waiting: which cores this process may use, and what a rank does while it has
   nothing to do. Ranks often outnumber cores, so it sleeps rather than spins. */
DT_API int dt_cores(void);
typedef struct dti_cpus { unsigned long bit[16]; } dti_cpus;
DTI_LOCAL bool dti_cpus_get(dti_cpus *c); /* false where nothing is known */
DTI_LOCAL bool dti_cpus_set(const dti_cpus *c);
DTI_LOCAL void dti_pin(const dti_cpus *allowed, int k); /* this thread, to the k-th of these */
DTI_LOCAL void dti_doze(long microseconds);
/* this rank waits at that place, one of so many */
DTI_LOCAL void dti_move(dt_comm *c, int place, int places);
/* where ranks outnumber the cores of their one host, each goes to the core that suits its work */
DTI_LOCAL dt_err dti_take_place(dt_comm *comm, uint32_t work, dti_cpus *allowed, bool *placed);
/* a trainer that was given no communicator: desc->threads of them are its ranks */
typedef struct dt_optimizer dt_optimizer;
typedef struct dt_train_desc dt_train_desc;
typedef struct dt_train_result dt_train_result;
typedef dt_err dti_trainer(dt_net *net, dt_optimizer *opt, dt_comm *comm, const dt_train_desc *desc,
                           dt_train_result *result);
static dt_err dti_train_on_threads(dti_trainer *trainer, const char *who, dt_net *net,
                                   dt_optimizer *opt, const dt_train_desc *desc,
                                   dt_train_result *result);

/* ---- E3, MPI, asked by E2: an all-reduce of MPI's own that goes on while this rank computes */
struct dti_flight;
struct dti_mpi_group;
static dt_err dti_mpi_reduce_start(dt_comm *c, struct dti_flight *f);
static dt_err dti_mpi_reduce_test(dt_comm *c, struct dti_flight *f, bool *done);

/* ---- E4, failure: a rank shows that it lives, and hears who does not. A board is what the ranks
   of a host share about that, zeroed, with a seat for each; it keeps the first failure alone. */
struct dti_board;
struct dti_signs;
static struct dti_signs *dti_signs_new(void); /* seen by nobody yet; NULL: no memory */
static void dti_signs_free(dt_comm *c);
static size_t dti_board_bytes(int ranks);
/* NULL: there is none; mapped: its bytes, where it is to be unmapped with the communicator */
static dt_err dti_take_seat(dt_comm *c, struct dti_board *board, size_t mapped);
static void dti_leave_seat(dt_comm *c);                      /* goodbye */
static bool dti_fails_first(dt_comm *c);                     /* it fails, as no other has before */
static int dti_failed_rank(struct dti_board *b, bool *hung); /* the first that has; -1: none */
/* hooks, for whoever works or waits */
static void dti_moved(dt_comm *c);             /* the work went forward */
static void dti_waits(dt_comm *c, bool waits); /* a wait begins, or ends */
static dt_err dti_idles(dt_comm *c);           /* nothing to do yet; DT_ECOMM: another has failed */
static dt_err dti_look_around(dt_comm *c);     /* now and then: DT_ECOMM if one is gone or hangs */
static uint64_t dti_build_hash(void);          /* of what two ranks must have in common */
DT_API void dt_comm_progress(dt_comm *comm, uint64_t step, const char *what);
DT_API void dt_comm_phase(dt_comm *comm, const char *what);
DT_API dt_err dt_comm_same(dt_comm *comm, const char *what, uint64_t hash);
#ifdef DTRAIN_WITH_MPI
/* how far a rank has come with its end. GOODBYE: it waits for the others to say it too; ENDING:
   all have, and it remains to end MPI */
enum { DTI_SILENT, DTI_GOODBYE, DTI_ENDING, DTI_ENDED, DTI_ABORTED };
static void dti_farewell(dt_comm *c, int farewell);
static bool dti_job_ends(dt_comm *c);     /* it is to be ended; true: by this process's death */
static void dti_beats_start(dt_comm *c);  /* several hosts: they hear from each other */
#endif

/* ---- E5, traces: one stretch of a rank's time, from start to end on dt_now's clock */
DT_API void dt_trace(dt_comm *comm, const char *name, double start, double end);
static void dti_trace_add(dt_comm *c, const char *name, double start, double end);

/* ---- E6, checkpoints [E6.7]. Before the first step: goes to where a checkpoint stands, if the run
   begins with one. Behind each step: writes one, if it is due. */
struct dti_training;
static dt_err dti_resume(struct dti_training *run);
static dt_err dti_keep_place(struct dti_training *run);

/* ---- E6, files. An output is written beside its place, and takes it when it is whole. */
enum { DTI_PATH_MAX = 1024 };
typedef struct dti_output {
    FILE *file;
    const char *path;          /* as the caller names it */
    char target[DTI_PATH_MAX]; /* the same, links followed */
    char beside[DTI_PATH_MAX + 16];
} dti_output;
static bool dti_file_exists(const char *path); /* also one that may not be read */
static FILE *dti_open_plain(const char *path); /* to read; NULL: not there, or no plain file */
static dt_err dti_output_open(dti_output *o, const char *path);
static dt_err dti_output_close(dti_output *o);
static void dti_output_drop(dti_output *o);
static size_t dti_utf8_bytes(const char *s, size_t left); /* of the character at s; 0: none */
/* snprintf and vsnprintf, with a decimal point in every locale; the length that is wanted */
DTI_LOCAL size_t dti_print(char *out, size_t size, const char *format, ...) DTI_PRINTF(3, 4);
DTI_LOCAL size_t dti_vprint(char *out, size_t size, const char *format, va_list args);
static void dti_json_quote(char *out, const char *text);
/* where a file of a data set is, also by its other spelling; what a folder holds, in words */
static bool dti_data_path(char *path, size_t size, const char *folder, const char *file,
                          const char *suffix);
static void dti_describe_folder(const char *folder, char *text, size_t size);
static dt_err dti_cifar_count(const char *path, uint32_t *records);

/* ---- E7, drawn digits, for machines without any data set; the same on every machine */
static dt_err dti_synthetic_load(dt_dataset *d, const char *folder, int part);

/* ---- E9, checks: DT_OK, or an error whose sentence says what was given and what is wanted. who:
   the name with which that sentence begins. */
typedef struct dt_augment dt_augment;
typedef struct dt_batch dt_batch;
typedef struct dt_batches_desc dt_batches_desc;
typedef struct dt_build_desc dt_build_desc;
typedef struct dt_optimizer dt_optimizer;
typedef struct dt_schedule dt_schedule;
typedef struct dt_train_desc dt_train_desc;
typedef struct dti_layer dti_layer;
typedef struct dti_list dti_list;
static dt_err dti_conv_check(const char *who, int N, int C, int H, int W, int O, int K, int S,
                             int p);
static dt_err dti_pool_check(const char *who, int N, int C, int H, int W, int K, int S);
static dt_err dti_linear_check(const char *who, int N, int I, int O);
static dt_err dti_size_check(const dti_layer *l); /* what a class's shape may not leave behind */
static dt_err dti_name_check(const dti_list *list, const char *kind, const char *name);
/* can it be used, also one that a program has put together itself? */
static dt_err dti_check_dataset(const char *who, const dt_dataset *d);
static dt_err dti_check_augment(const dt_augment *a, int channels, int height, int width);
static dt_err dti_batches_check(const dt_dataset *data, const dt_batches_desc *desc, int rank,
                                int size);
static dt_err dti_build_check(const dt_net *net, const dt_build_desc *desc);
/* images of that shape, one mean and deviation a channel */
static dt_err dti_check_images(const dt_net *net, const char *name, int channels, int height,
                               int width, const float *mean, const float *std);
static dt_err dti_check_batch(const dt_net *net, const dt_batch *batch);
/* in parts: no layer looks further than the lane group */
static dt_err dti_check_parts(const char *who, const dt_net *net, uint32_t parts);
/* do layers that compute over a scope of images [S6.1] have the fewest that they need? */
static dt_err dti_check_scopes(const dt_net *net, uint32_t images, uint32_t global, bool meets);
/* the error of a loss that is not finite; names the parameter, if one of them is not finite */
static dt_err dti_bad_loss(const dt_net *net, uint32_t sample, float loss);
static bool dti_betas_meant(const char *who, float beta1, float beta2, float eps, float decay);
static dt_err dti_schedule_check(const dt_schedule *first);
static dt_err dti_check_train(const char *who, const dt_net *net, const dt_optimizer *opt,
                              const dt_train_desc *d);
/* can the net be trained on every step of an epoch of `count` samples, also the smaller last
   one? */
static dt_err dti_check_steps(const dt_net *net, uint32_t count, uint32_t batch, int ranks);
/* where each worker takes steps of its own: no layer that looks at the global batch */
static dt_err dti_check_alone(const char *who, const dt_net *net, int workers);
/* what must be alike on every rank, and a broadcast of the values cannot mend: data and settings */
static dt_err dti_check_alike(const dt_net *net, const dt_optimizer *opt, dt_comm *comm,
                              const dt_train_desc *d);
#endif

/* ==== [S2] Random numbers ================================================= */

/* The usual generator has a state: each call changes it, and the millionth number exists only
   after the 999 999 before it. Two ranks that draw in different order then disagree about
   everything, and a resumed run must find the state again.

   A random number here is a function of what it is for. Philox4x32-10 (Salmon, Moraes, Dror,
   Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) mixes a counter of four words
   under a key of two, in ten rounds, until counters that differ in one bit have nothing in common
   any more. The key is the seed; the counter says what the number is for:

       word         0                1                2          3
       counter      running number   sample           epoch      purpose
       e.g.         0, 1, 2 ...      image 4711       epoch 3    DT_RNG_DROPOUT | layer << 8

   So the dropout mask of image 4711 in epoch 3 is the same on whichever rank holds the image, in
   whichever order ranks compute, and after a resume. */
#ifdef DTI_DECLARE
/* Purposes: streams that never share a counter. Their values are part of every result's bits, so
   a new one takes the next number, and none is ever given away again. */
enum {
    DT_RNG_INIT = 1,      /* initial weights; sample: the layer */
    DT_RNG_SHUFFLE = 2,   /* the order of an epoch's images */
    DT_RNG_PARTITION = 3, /* which images are whose, once for a whole training */
    DT_RNG_DROPOUT = 4,   /* what dropout erases; the layer's number in bits 8 and above */
    DT_RNG_AUGMENT = 5,   /* how an image is turned, moved and coloured */
    DT_RNG_SYNTHETIC = 6, /* digits that are drawn instead of read */
    DT_RNG_TEST = 7       /* whatever a test or a chapter needs */
};

typedef struct dt_philox_block { uint32_t v[4]; } dt_philox_block;

/* dt_philox: 128 random bits for this seed and this counter (words 3, 2, 1, 0 of the picture
   above). Any bits may be given; the period is 2^128. */
DT_API dt_philox_block dt_philox(uint64_t seed, uint32_t purpose, uint32_t epoch, uint32_t sample,
                                 uint32_t counter);

/* dt_uniform: 24 of the 32 bits as a float in [0, 1), each of 2^24 values equally likely. */
DT_API float dt_uniform(uint32_t bits);

/* dt_permutation: out becomes a permutation of 0..n-1, each equally likely (Fisher and Yates,
   with Lemire's unbiased bounded numbers). n steps, no memory. n < 2^32. */
DT_API void dt_permutation(uint32_t *out, size_t n, uint64_t seed, uint32_t purpose,
                           uint32_t epoch);

/* dt_hash: 64 bits that change with any bit of the input; chain blocks by passing the last
   result as start (0 first). FNV-1a's step on 8-byte words with a final mix; for comparison, not
   for security. n is 0 where bytes is NULL. */
DT_API uint64_t dt_hash(const void *bytes, size_t n, uint64_t start);
#endif

#ifdef DTI_IMPLEMENT
/* A round multiplies two of the words by odd constants, which spreads each of their bits over the
   64 of a product, mixes the products' upper halves with the other two words and the key, and lets
   all four change places. The key moves on by a constant, so that no two rounds are alike. */
DT_API dt_philox_block dt_philox(uint64_t seed, uint32_t purpose, uint32_t epoch, uint32_t sample,
                                 uint32_t counter) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = counter, c1 = sample, c2 = epoch, c3 = purpose;
    for (int round = 0; round < 10; ++round) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    return (dt_philox_block){ { c0, c1, c2, c3 } };
}

/* The upper 24 bits, as a float has 24: with more of them, numbers near 1 would be rounded, some of
   them to 1 itself. */
DT_API float dt_uniform(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }

/* Ten rounds for sixteen samples at once: one sample a lane. The loops are
   plain so that the compiler turns each into vector code. */
DTI_LOCAL void dti_philox_lanes(uint32_t out[4][DT_LANES], uint64_t seed, uint32_t purpose,
                                uint32_t epoch, const uint32_t sample[DT_LANES], uint32_t counter) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0[DT_LANES], c1[DT_LANES], c2[DT_LANES], c3[DT_LANES];
    for (int l = 0; l < DT_LANES; ++l) {
        c0[l] = counter;
        c1[l] = sample[l];
        c2[l] = epoch;
        c3[l] = purpose;
    }
    for (int round = 0; round < 10; ++round) {
        for (int l = 0; l < DT_LANES; ++l) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[l], p1 = (uint64_t)0xCD9E8D57u * c2[l];
            c0[l] = (uint32_t)(p1 >> 32) ^ c1[l] ^ k0;
            c2[l] = (uint32_t)(p0 >> 32) ^ c3[l] ^ k1;
            c1[l] = (uint32_t)p1;
            c3[l] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out[0], c0, sizeof c0); memcpy(out[1], c1, sizeof c1);
    memcpy(out[2], c2, sizeof c2); memcpy(out[3], c3, sizeof c3);
}

/* Fisher and Yates: from the end, each place changes with one drawn from the i places up to it. A
   32-bit number modulo i would prefer small places wherever i does not divide 2^32. Lemire ("Fast
   random integer generation in an interval", 2019) takes the upper half of number * i, which is a
   place below i, and draws again where the lower half is below 2^32 mod i: then each place is left
   with the same count of numbers. For i = 3 that throws away 1 of 2^32. */
DT_API void dt_permutation(uint32_t *out, size_t n, uint64_t seed, uint32_t purpose,
                           uint32_t epoch) {
    DTI_NEED(out || n == 0, "out", );
    if (n > UINT32_MAX) {
        (void)dt_fail(DT_EARG, "dt_permutation: %zu numbers; at most %lu", n,
                      (unsigned long)UINT32_MAX);
        return;
    }
    for (size_t i = 0; i < n; ++i) out[i] = (uint32_t)i;
    dt_philox_block block = { { 0, 0, 0, 0 } };
    uint64_t used = 0;
    for (size_t i = n; i > 1; --i) {
        uint64_t product;
        uint32_t low, floor = (uint32_t)(-(uint32_t)i) % (uint32_t)i; /* 2^32 mod i */
        do {
            if ((used & 3u) == 0)
                block =
                    dt_philox(seed, purpose, epoch, (uint32_t)(used >> 34), (uint32_t)(used >> 2));
            product = (uint64_t)block.v[used++ & 3u] * i;
            low = (uint32_t)product;
        } while (low < floor);
        size_t j = (size_t)(product >> 32);
        uint32_t swap = out[i - 1];
        out[i - 1] = out[j];
        out[j] = swap;
    }
}

/* Eight bytes at a time: exclusive or with what is there, times FNV's prime, which carries every
   bit upwards; the shift brings the upper ones down again, and two more such rounds at the end
   let the last byte, too, reach every bit.

   Numbers of `each` bytes are hashed as if they lay lowest byte first, as on most machines:
   elsewhere byte i of a number is found at i ^ (each - 1). */
DTI_INLINE uint64_t dti_hash_numbers(const void *numbers, size_t n, size_t each, uint64_t start) {
    static const uint16_t one = 1;
    const size_t turn = *(const unsigned char *)&one ? 0 : each - 1;
    const unsigned char *p = numbers;
    uint64_t h = start ^ 0xcbf29ce484222325u ^ (uint64_t)n;
    while (n >= 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8; ++i) word |= (uint64_t)p[i ^ turn] << (8 * i);
        h = (h ^ word) * 0x100000001b3u;
        h ^= h >> 29;
        p += 8;
        n -= 8;
    }
    for (size_t i = 0; i < n; ++i) h = (h ^ p[i ^ turn]) * 0x100000001b3u;
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdu;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53u;
    return h ^ (h >> 33);
}

static uint64_t dti_hash_floats(const float *x, size_t n) {
    return dti_hash_numbers(x, n * sizeof *x, sizeof *x, 0);
}

DT_API uint64_t dt_hash(const void *bytes, size_t n, uint64_t start) {
    DTI_NEED(bytes || n == 0, "bytes", 0);
    return dti_hash_numbers(bytes, n, 1, start);
}
#endif

/* ==== [S3] Tensors, named values, exact sums ============================== */

/* ==== [S3.1] Tensors ====================================================== */

/* A tensor is a pointer with a shape: row-major, the last index fastest, no
   memory of its own. Size letters in this whole file:

     N images   C input channels   O output channels   H,W input rows, columns
     P,Q output rows, columns   K kernel   S stride   p padding
     L = 16 lanes   G lane groups   I inputs of a linear layer */
#ifdef DTI_DECLARE
#define DT_MAX_RANK 4
typedef struct dt_tensor {
    float *data;
    int rank;                /* how many of the sizes count */
    int shape[DT_MAX_RANK];
} dt_tensor;

/* product of the shape: floats in the tensor; 0 if a size is below 0, or it is too large */
DT_API size_t dt_tensor_count(const dt_tensor *t);
/* dt_tensor_at: address of t[i][j][k][l]; indices beyond the rank are ignored. offset = ((i*s1 +
   j)*s2 + k)*s3 + l. NULL where there is no such element. */
DT_API float *dt_tensor_at(const dt_tensor *t, int i, int j, int k, int l);

/* A named view into a net's one parameter vector: "conv1.weight", its values and its gradient. */
typedef struct dt_param {
    const char *name;
    dt_tensor value, grad;
    size_t offset;           /* of value.data in the parameter vector, in floats */
    bool trained;            /* false: running statistics, saved but not stepped */
    float unit;              /* of the gradient's exact sum [S3.2]; it follows its size [S8.6] */
} dt_param;
#endif

#ifdef DTI_IMPLEMENT
DT_API size_t dt_tensor_count(const dt_tensor *t) {
    DTI_NEED(t, "t", 0);
    size_t count = 1;
    if (t->rank < 0 || t->rank > DT_MAX_RANK)
        return dt_fail(DT_ESHAPE, "tensor: a rank of %d; 0..%d", t->rank, DT_MAX_RANK), 0;
    for (int d = 0; d < t->rank; ++d) {
        if (t->shape[d] < 0)
            return dt_fail(DT_ESHAPE, "tensor: size %d of its shape is %d", d, t->shape[d]), 0;
        count = dti_times(count, (size_t)t->shape[d]);
    }
    if (count == SIZE_MAX)
        return dt_fail(DT_ESHAPE, "tensor: more elements than there are addresses"), 0;
    return count;
}

DT_API float *dt_tensor_at(const dt_tensor *t, int i, int j, int k, int l) {
    DTI_NEED(t && t->data, "t and its data", NULL);
    const int index[DT_MAX_RANK] = { i, j, k, l };
    size_t offset = 0;
    if (dt_tensor_count(t) == 0) return NULL;
    for (int d = 0; d < t->rank; ++d) {
        if (index[d] < 0 || index[d] >= t->shape[d])
            return dt_fail(DT_EARG, "tensor: index %d is %d, outside of 0..%d", d, index[d],
                           t->shape[d] - 1),
                   NULL;
        offset = offset * (size_t)t->shape[d] + (size_t)index[d];
    }
    return t->data + offset;
}
#endif

/* ==== [S3.2] Exact sums =================================================== */

/* Floating-point addition has an order: (a+b)+c need not be a+(b+c). Integer addition has none.
   So a gradient that many ranks add up is first rounded to a multiple of some unit, a power of
   two, and kept as a 64-bit integer; the sum is then the same for every number of ranks and
   every all-reduce. What is rounded is one lane group's share (16 images), which is computed the
   same way wherever it is computed.

     fixed(x) = round(x / unit)     |x| < limit = 2^62 unit / terms, with terms rounded up to 2^k

   At most `terms` such integers stay within 2^62, so a sum never wraps. A value that does not
   fit, or is not a number, is reported. Which unit? Too small, and shares do not fit; too large,
   and their digits are lost:

       2^62       2^(62-k)             2^(46-k/2)           2^30              1
        |----------|--------------------|--------------------|-----------------|
        the sum    limit of a share     size, as chosen      size, at least    unit

   The size of a sum is that of its largest elements before any of them cancel: the sum, over the
   lane groups, of the largest |x| in each one's share. The sum's own size would not do: the
   gradient of a bias that batch norm takes away again is 0, up to the rounding of shares which
   are not small.

   At 2^30 units a float's 24 digits are there, and rounding the shares to the unit changes less
   than their own rounding. Training [S8.6] chooses each tensor's unit by the size of its last
   sum, so that the next one may be some 2^15 times as large or as small; if it is not even that,
   the step is taken again with another unit. Eight terms N(0,1) * scale, |error| / |sum|, beside
   one unit of 2^-40 for all (tests/test_sums.c; to round the sum to a float already costs
   2.5e-8):

       scale      1e-20     1e-13     1e-9      1e-7      1e-4      1         1e5       1e8
       chosen     2.6e-8    2.6e-8    2.6e-8    2.5e-8    2.5e-8    2.5e-8    2.5e-8    2.6e-8
       2^-40      1         1         2.6e-4    2.6e-6    2.5e-8    2.5e-8    2.6e-8    refused */
#ifdef DTI_DECLARE
#define DT_FIXED_UNIT 0x1p-40f
/* All units are powers of two, 2^-126 .. 2^65; any other is DT_EARG. */

/* dt_fixed_add: sum[i] += fixed(x[i]) for i < n. Returns the index of the first x[i] with
   !(|x[i]| < limit), with nothing promised about sum then; n if all fitted. limit is at most
   dt_fixed_limit(terms, unit). */
DT_API size_t dt_fixed_add(int64_t *sum, const float *x, size_t n, float unit, float limit);
/* 2^62 * unit / terms, rounded down to a power of two; 0 for no unit */
DT_API float dt_fixed_limit(size_t terms, float unit);
/* out[i] = sum[i] * unit, rounded once */
DT_API void dt_fixed_to_float(float *out, const int64_t *sum, size_t n, float unit);
#endif


/* ==== [S3.3] Wide sums ==================================================== */

/* The sums of [S3.2] have one unit and a limit. A sum in the middle of a forward pass (a batch's
   mean, its variance) must hold whatever comes. One 64-bit integer cannot, nor can two: a float
   is a multiple of 2^-149 below 2^128, its square is below 2^256, and 2^40 terms of that size
   make 2^296; a sum of both kinds spans 445 bits and a sign.

   So a wide sum is one integer of 450 bits, in ten limbs of 45 (Kulisch 1971 builds such a sum
   in hardware). Limb i counts units of 2^(45 i - 149):

       limb  9              8          ...   1                  0
             sign, 44 bits  45 bits          2^-104 .. 2^-60    2^-149 .. 2^-105

   A double has 53 bits, so it lies in at most three limbs, and is added there as an integer. A
   limb is kept within -2^44..2^44 by carrying into the next. Both signs, because a sum that goes
   back and forth around 0 would else carry through all ten limbs each time. The rest of its 64
   bits is room for ranks: the limbs of up to 2^17 ranks may be added one by one, by any
   all-reduce of DT_I64, and whoever reads the sum carries again.

     unit    2^-149, the smallest float. Floats, and sums of floats, are held exactly.
     terms   |x| < 2^260 (1.8e78). What a term has below the unit is rounded to the nearest
             multiple, in the middle to the even one: each term alone, so order does not matter.
     sum     |sum| < 2^300, that is 2^40 terms of any size, or more of smaller ones.

   To add takes some 40 ns, so it is not for each value: what is added up in doubles within one
   lane group, where no rank changes the order, is one term here. The arithmetic is in [E1.11]. */

/* ==== [S4] Data =========================================================== */

/* What a net learns from: how samples come from files, or from a program's arrays, and how every
   step of a training gets its own. The rule of this section is that nothing is left to luck: which
   samples a rank sees, in which order, and how each is altered, follow from seeds and numbers.

       [S4.2] [S4.3]        [S4.4]              [S4.5]                [S4.6] [S4.7]
       files, by name  ->   shares of ranks  -> a step's samples  ->  altered, scaled, in lanes
       arrays [S4.1]        (PSGD)              (every trainer)       (sixteen side by side) */

/* ==== [S4.1] Datasets ===================================================== */

/* A dataset is a row of numbers for each sample, and what is wanted of it. Images are rows of
   bytes, and stay bytes until a lane group is packed; a program's own measurements are rows of
   floats. On the way into the net both are brought near zero, channel by channel, with
   v = pixel/255 or the float itself:

       x = (v - mean[c]) / std[c]                        mean and std NULL: x = v

   A sample of 4 measurements is an image of 4 channels with one pixel each, (N,4,1,1): so each
   measurement has a mean and a deviation of its own. */
#ifdef DTI_DECLARE
typedef struct dt_dataset {
    char name[32];           /* "MNIST", "Fashion-MNIST", "synthetic digits", "IDX" */
    uint32_t count;          /* N samples */
    int channels, height, width;
    int classes;             /* or target_width, where targets are wanted */
    uint8_t *pixels;         /* (N,C,H,W); or NULL, and then */
    float *values;           /* (N,C,H,W) */
    uint8_t *labels;         /* (N), each below classes; or NULL, and then */
    float *targets;          /* (N,target_width) numbers that are wanted [S7] */
    int target_width;
    float *mean, *std;       /* (C) each, or both NULL */
    char source[256];        /* the folder or file it was read from */
    uint64_t hash;           /* of rows and what is wanted: equal hash, equal data */
    void *block;             /* what dt_dataset_free gives back; NULL of a view */
} dt_dataset;

/* dt_dataset_from                                              [S4.1]
   A dataset over a program's own arrays, which are not copied and must stay. Bytes or floats,
   labels or targets: one of each. Measures mean and std of each channel where none are given, and
   refuses floats that are not finite (DT_EDATA), labels of a class that there is not (DT_EDATA),
   sizes that cannot be meant (DT_ESHAPE). Test samples want the training samples' mean and std:
   give theirs, or make one dataset and two views of it.

       dt_dataset_from(&all, &(dt_arrays){ .count = 900, .channels = 2, .values = xy,
                                           .labels = side, .classes = 2 }); */
typedef struct dt_arrays {
    const char *name;        /* NULL: "arrays" */
    uint32_t count;
    int channels, height, width; /* height and width 0: 1, for plain vectors */
    const uint8_t *pixels;   /* (N,C,H,W), 0..255; or */
    const float *values;     /* (N,C,H,W) */
    const uint8_t *labels;   /* (N) of 0..classes-1; or */
    int classes;
    const float *targets;    /* (N,target_width) */
    int target_width;
    const float *mean, *std; /* (C) each; NULL: measured */
    bool unscaled;           /* neither: the net sees floats as they are, bytes as pixel/255 */
} dt_arrays;
DT_API dt_err dt_dataset_from(dt_dataset *d, const dt_arrays *arrays);

/* dt_idx_load                                                  [S4.2]  chapter 2
   Reads one pair of IDX files (LeCun, Cortes, Burges, "The MNIST database"), 1 channel, and
   measures mean and std. DT_EIO if a file cannot be opened or read, DT_EDATA if it is not what it
   should be, with one sentence that names the file and the numbers. *d is overwritten; after an
   error it is empty. */
DT_API dt_err dt_idx_load(dt_dataset *d, const char *images_path, const char *labels_path,
                          int classes);

/* dt_cifar10_load                                              [S4.2]
   Reads n files of CIFAR-10's binary layout, one after the other, as one dataset of 3 x 32 x 32
   images and 10 classes, and measures mean and std of each colour. A file may hold any number of
   records. What is checked, errors and *d as for dt_idx_load; DT_EARG if n is below 1. */
DT_API dt_err dt_cifar10_load(dt_dataset *d, const char *const *paths, int n);

/* dt_dataset_find                                              [S4.3]  chapter 2
   Loads a dataset by name, one of dt_dataset_known or "auto", from $DTRAIN_DATA, else from ./data.
   "auto", or NULL, takes MNIST, else Fashion-MNIST; where $DTRAIN_DATA is set, from there alone;
   where it is not and ./data has neither, the synthetic digits. train->name says which. Asked for
   by name or by $DTRAIN_DATA and not there: DT_EIO with what is there and how to get it. Files that
   are there but broken are an error under "auto" as well. train or test may be NULL. */
DT_API dt_err dt_dataset_find(dt_dataset *train, dt_dataset *test, const char *which);

/* dt_dataset_known                                             [S4.3]
   The i-th dataset that dt_dataset_find knows by name, in the order in which "auto" looks; NULL for
   an i below 0 or past the last. For help texts, and for programs that ask what a name stands for
   before they load it. Sizes are those published: what a file says of itself counts more. */
typedef struct dt_dataset_kind {
    const char *option, *name; /* "mnist" to ask for it; "MNIST" in tables and pictures */
    int channels, height, width, classes;
} dt_dataset_kind;
DT_API const dt_dataset_kind *dt_dataset_known(int i);

/* dt_dataset_synthetic                                         [E7.2]  chapter 2
   Draws count digits, 28x28: image i is a function of (seed, i) alone, the same bits on every
   machine. The sets of dt_dataset_find are images 0..59999 and 60000..69999 of seed 1. About 20 us
   an image. DT_EARG if count is 0. */
DT_API dt_err dt_dataset_synthetic(dt_dataset *d, uint32_t count, uint64_t seed);

/* dt_dataset_view: samples first .. first+count-1 of another dataset, not copied; `of` must outlive
   the view, which keeps its mean and std. DT_EARG if the range is empty or leaves the dataset. */
DT_API dt_err dt_dataset_view(dt_dataset *view, const dt_dataset *of, uint32_t first,
                              uint32_t count);

/* dt_dataset_free: gives the block back (a view has none) and empties the struct. An empty one is
   allowed, also NULL. */
DT_API void dt_dataset_free(dt_dataset *d);
#endif

#ifdef DTI_IMPLEMENT
DT_API void dt_dataset_free(dt_dataset *d) {
    if (!d) return;
    dti_release(d->block);
    memset(d, 0, sizeof *d);
}

DTI_LOCAL size_t dti_image_bytes(const dt_dataset *d) {
    return dti_times((size_t)d->channels, dti_times((size_t)d->height, (size_t)d->width));
}

/* Integer sums, so mean and std do not depend on the order of addition. */
static void dti_measure_bytes(const dt_dataset *d, int c, double *mean, double *variance) {
    const size_t plane = (size_t)d->height * (size_t)d->width;
    uint64_t sum = 0, squares = 0;
    for (uint32_t n = 0; n < d->count; ++n) {
        const uint8_t *x = d->pixels + ((size_t)n * (size_t)d->channels + (size_t)c) * plane;
        for (size_t i = 0; i < plane; ++i) { sum += x[i]; squares += (uint64_t)x[i] * x[i]; }
    }
    const double count = (double)d->count * (double)plane;
    *mean = (double)sum / count;
    *variance = (double)squares / count - *mean * *mean;
}

/* Of floats the mean first: E[x^2] - E[x]^2 would lose all digits of a spread that is small beside
   the mean. */
static void dti_measure_floats(const dt_dataset *d, int c, double *mean, double *variance) {
    const size_t plane = (size_t)d->height * (size_t)d->width;
    const double count = (double)d->count * (double)plane;
    *mean = *variance = 0.0;
    for (int pass = 0; pass < 2; ++pass)
        for (uint32_t n = 0; n < d->count; ++n) {
            const float *x = d->values + ((size_t)n * (size_t)d->channels + (size_t)c) * plane;
            for (size_t i = 0; i < plane; ++i)
                if (pass == 0) *mean += (double)x[i] / count;
                else *variance += ((double)x[i] - *mean) * ((double)x[i] - *mean) / count;
        }
}

/* Mean and standard deviation of each channel, in units of the full range of a byte or as they
   are. */
static void dti_dataset_measure(dt_dataset *d) {
    for (int c = 0; c < d->channels; ++c) {
        double mean, variance, unit = d->pixels ? 255.0 : 1.0;
        if (d->pixels) dti_measure_bytes(d, c, &mean, &variance);
        else dti_measure_floats(d, c, &mean, &variance);
        d->mean[c] = (float)(mean / unit);
        /* a channel that never changes stays finite */
        d->std[c] = variance > 0.0 ? (float)(sqrt(variance) / unit) : 1.0f;
        if (!(d->std[c] > 0.0f)) d->std[c] = 1.0f;
    }
}

/* Rows, then what is wanted of them: two machines with the same data get the same number. */
static void dti_dataset_hash(dt_dataset *d) {
    const size_t row = dti_image_bytes(d), numbers = (size_t)d->count * row,
                 wanted = (size_t)d->count * (size_t)d->target_width;
    d->hash = d->pixels ? dt_hash(d->pixels, numbers, 0)
                        : dti_hash_numbers(d->values, 4 * numbers, 4, 0);
    if (d->labels) d->hash = dt_hash(d->labels, d->count, d->hash);
    if (d->targets) d->hash = dti_hash_numbers(d->targets, 4 * wanted, 4, d->hash);
}
#endif

/* ==== [S4.2] IDX and CIFAR-10 ============================================= */

/* An IDX file is a header of big-endian 32-bit numbers and then the bytes:

       images   0x00000803  N  rows  columns   N*rows*columns pixels
       labels   0x00000801  N                  N labels

   CIFAR-10 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009) has no
   header. Its binary version is records of 3073 bytes, ten thousand in each of data_batch_1.bin to
   data_batch_5.bin, the training images, and in test_batch.bin:

       label 0..9   1024 bytes red   1024 bytes green   1024 bytes blue       (32 rows of 32 each)

   Both come from outside, so nothing in them is believed: lengths must be as promised, to the byte,
   and labels must be classes. The readers, whose work is mostly that, are in [E6.5]. */
#ifdef DTI_IMPLEMENT
/* Of a folder: five files of training images, then the test images. */
static const char *const dti_cifar_names[] = { "data_batch_1.bin", "data_batch_2.bin",
                                               "data_batch_3.bin", "data_batch_4.bin",
                                               "data_batch_5.bin", "test_batch.bin", NULL };

/* The published set and nothing else: ten thousand records in each file. */
static dt_err dti_load_cifar10(dt_dataset *d, const char *folder, int part) {
    enum { PUBLISHED = 10000 };
    char path[5][DTI_PATH_MAX + 64];
    const char *paths[5];
    const int first = part ? 5 : 0, n = part ? 1 : 5;
    for (int i = 0; i < n; ++i) {
        uint32_t records = 0;
        snprintf(path[i], sizeof path[i], "%s/%s", folder, dti_cifar_names[first + i]);
        paths[i] = path[i];
        DT_TRY(dti_cifar_count(paths[i], &records));
        if (records != PUBLISHED)
            return dt_fail(DT_EDATA, "%s holds %u records, CIFAR-10's files hold %d", paths[i],
                           records, PUBLISHED);
    }
    return dt_cifar10_load(d, paths, n);
}
#endif

/* ==== [S4.3] Finding a dataset ============================================ */

/* What is known of a dataset stands in one row of the table below: how it is asked for, where it
   lies, what it holds, who reads it. $DTRAIN_DATA is searched first, then ./data. In each, a
   dataset is a folder with plain files; torchvision's folder names are known too. $DTRAIN_DATA may
   also point straight at the files. Those of MNIST and Fashion-MNIST are named alike, so there the
   first ten labels decide.

   A dataset counts as present when one of its files is there; that the others are missing is then
   an error, not a reason to take something else. And who sets $DTRAIN_DATA asks for what it names:
   if that holds no dataset, "auto" takes neither ./data nor the synthetic digits for it. */
#ifdef DTI_IMPLEMENT
/* Of each part, training and test: images, labels. */
static const char *const dti_idx_files[] = { "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                             "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
                                             NULL };

static dt_err dti_load_idx(dt_dataset *d, const char *folder, int part) {
    char images[DTI_PATH_MAX + 64], labels[DTI_PATH_MAX + 64];
    dti_data_path(images, sizeof images, folder, dti_idx_files[2 * part], "");
    dti_data_path(labels, sizeof labels, folder, dti_idx_files[2 * part + 1], "");
    return dt_idx_load(d, images, labels, 10);
}

/* The labels are bytes 8 and on of their file; the first ten of Fashion-MNIST are these. */
static bool dti_is_fashion(const char *folder) {
    static const uint8_t first[10] = { 9, 0, 0, 3, 0, 2, 7, 2, 5, 5 };
    char path[DTI_PATH_MAX + 64];
    uint8_t head[18];
    const bool there = dti_data_path(path, sizeof path, folder, dti_idx_files[1], "");
    FILE *f = there ? dti_open_plain(path) : NULL;
    const size_t got = f ? fread(head, 1, sizeof head, f) : 0;
    if (f) fclose(f);
    return got == sizeof head && memcmp(head + 8, first, sizeof first) == 0;
}

static bool dti_is_mnist(const char *folder) { return !dti_is_fashion(folder); }

/* What there is to know of a dataset. A new one is a function that loads it and a row: the help
   texts of programs, what "auto" takes, and every error that names datasets follow from here. */
typedef struct dti_data_class {
    dt_dataset_kind kind;
    bool automatic;           /* "auto" takes it, if no earlier one is there */
    const char *folders[3];   /* where it lies in $DTRAIN_DATA or ./data */
    const char *const *files; /* one of these there: the set is. NULL: it is drawn, not read */
    bool (*owns)(const char *folder); /* of sets whose files are named alike, is it this one's? */
    const float *mean, *std;  /* (C) of the training pixels/255, as everybody rounds them. NULL: as
                                 the loader measures them, and the test images use the training's */
    dt_err (*load)(dt_dataset *d, const char *folder, int part); /* 0 training, 1 test */
} dti_data_class;

static const dti_data_class dti_data_classes[] = {
    { .kind = { "mnist", "MNIST", 1, 28, 28, 10 },
      .automatic = true,
      .folders = { "mnist", "MNIST", "MNIST/raw" },
      .files = dti_idx_files,
      .owns = dti_is_mnist,
      .mean = (const float[]){ 0.1307f },
      .std = (const float[]){ 0.3081f },
      .load = dti_load_idx },
    { .kind = { "fashion", "Fashion-MNIST", 1, 28, 28, 10 },
      .automatic = true,
      .folders = { "fashion", "fashion-mnist", "FashionMNIST/raw" },
      .files = dti_idx_files,
      .owns = dti_is_fashion,
      .mean = (const float[]){ 0.2860f },
      .std = (const float[]){ 0.3530f },
      .load = dti_load_idx },
    { .kind = { "cifar10", "CIFAR-10", 3, 32, 32, 10 },
      .folders = { "cifar10", "cifar-10-batches-bin", "cifar10-jpeg" }, /* see make data */
      .files = dti_cifar_names,
      .mean = (const float[]){ 0.4914f, 0.4822f, 0.4465f },
      .std = (const float[]){ 0.2470f, 0.2435f, 0.2616f },
      .load = dti_load_cifar10 },
    { .kind = { "synthetic", "synthetic digits", 1, 28, 28, 10 },
      .automatic = true,
      .load = dti_synthetic_load },
};
enum { DTI_DATA_CLASSES = sizeof dti_data_classes / sizeof *dti_data_classes };

DT_API const dt_dataset_kind *dt_dataset_known(int i) {
    return i >= 0 && i < DTI_DATA_CLASSES ? &dti_data_classes[i].kind : NULL;
}

/* One part of a set, called and scaled as its row says. */
static dt_err dti_load_part(dt_dataset *d, const dti_data_class *set, const char *folder,
                            int part) {
    DT_TRY(set->load(d, folder, part));
    snprintf(d->name, sizeof d->name, "%s", set->kind.name);
    if (*folder) snprintf(d->source, sizeof d->source, "%.255s", folder);
    for (int c = 0; set->mean && c < d->channels; ++c) {
        d->mean[c] = set->mean[c];
        d->std[c] = set->std[c];
    }
    return DT_OK;
}

/* Both parts or none, and of one size. */
static dt_err dti_load_set(dt_dataset *train, dt_dataset *test, const dti_data_class *set,
                           const char *folder) {
    dt_err err = train ? dti_load_part(train, set, folder, 0) : DT_OK;
    if (err == DT_OK && test) err = dti_load_part(test, set, folder, 1);
    const bool both = err == DT_OK && train && test;
    if (both && (train->height != test->height || train->width != test->width))
        err = dt_fail(DT_EDATA, "%s: the training images are %dx%d, the test images %dx%d", folder,
                      train->height, train->width, test->height, test->width);
    else if (both) /* the test images are seen through the training images' mean and std */
        memcpy(test->mean, train->mean, 2 * (size_t)test->channels * sizeof *test->mean);
    if (err != DT_OK) {
        dt_dataset_free(train);
        dt_dataset_free(test);
    }
    return err;
}

#endif

/* ==== [S4.4] Partition and sampler ======================================== */

/* Two ways to give every rank its images. A partition cuts a shuffled dataset once into shares, for
   workers that never meet (PSGD). The sampler deals a new shuffle out in every epoch, like cards,
   as PyTorch's DistributedSampler does. With the permutation 7 2 9 4 0 5 8 1 6 3 and 4 ranks:

       partition         7 2 | 9 4 0 | 5 8 | 1 6 3       cut at 10 i / 4, rounded down
       sampler           7 0 6 | 2 5 3 | 9 8 7* | 4 1 2*      * the head again, to come out even
       with drop_last    7 0 | 2 5 | 9 8 | 4 1                6 and 3 are left out

   The sampler's epoch thus depends on the number of ranks a little: an image counts twice, or not.
   Its set_epoch must be called with each epoch's number, or all epochs have epoch 0's order. The
   batches of [S4.5] need neither repeat nor drop. */
#ifdef DTI_DECLARE
/* dt_partition                                                 [S4.4]  chapters 2 and 9
   Cuts a permutation of 0..n-1 into k shares: share i is index[start[i]] .. index[start[i+1]-1].
   index (n) and start (k+1) are overwritten. fractions (k), each >= 0, with sum 1 to a thousandth,
   or NULL for equal shares; share i ends at n times the sum of the first i+1 fractions, rounded, so
   that the sizes add up to n and equal shares differ by at most 1. DT_EARG on bad fractions or
   k = 0. */
DT_API dt_err dt_partition(uint32_t *index, uint32_t *start, const float *fractions, uint32_t k,
                           uint32_t n, uint64_t seed);

/* PyTorch's torch.utils.data.DistributedSampler: ranks get per_rank = ceil(n/ranks) positions each,
   the permutation's head repeated cyclically to fill the last; with drop_last, per_rank =
   floor(n/ranks) and the tail is left out. Rank r takes positions r, r+ranks, r+2*ranks, ... */
typedef struct dt_sampler_desc {
    uint32_t count;      /* n images, at least 1 */
    int rank, ranks;
    bool shuffle, drop_last;
    uint64_t seed;
} dt_sampler_desc;

typedef struct dt_sampler {
    dt_sampler_desc desc;
    uint32_t per_rank;   /* images of each rank in each epoch */
    uint32_t *index;     /* (per_rank), this rank's images of the current epoch */
    uint32_t *order;     /* (n), the epoch's permutation */
} dt_sampler;

/* allocates, and begins epoch 0 */
DT_API dt_err dt_sampler_init(dt_sampler *s, const dt_sampler_desc *desc);
DT_API void dt_sampler_set_epoch(dt_sampler *s, uint32_t epoch);           /* allocates nothing */
DT_API void dt_sampler_free(dt_sampler *s);
#endif

#ifdef DTI_IMPLEMENT
/* `sum` divides the fractions, so that those that add up to 0.9995 still end at n. */
DT_API dt_err dt_partition(uint32_t *index, uint32_t *start, const float *fractions, uint32_t k,
                           uint32_t n, uint64_t seed) {
    double sum = 0.0, before = 0.0;
    DTI_NEED((index || n == 0) && start, "index and start", DT_EARG);
    if (k == 0) return dt_fail(DT_EARG, "a partition needs at least 1 share");
    for (uint32_t i = 0; fractions && i < k; ++i) {
        if (!(fractions[i] >= 0.0f && fractions[i] <= 1.0f))
            return dt_fail(DT_EARG, "partition: fraction %u is %g, outside of 0 to 1", i,
                           (double)fractions[i]);
        sum += (double)fractions[i];
    }
    if (fractions && fabs(sum - 1.0) > 1e-3)
        return dt_fail(DT_EARG, "partition: the %u fractions add up to %g, not to 1", k, sum);
    for (uint32_t i = 0; i < k; ++i) {
        start[i] = fractions ? (uint32_t)(before / sum * (double)n + 0.5)
                             : (uint32_t)((uint64_t)i * n / k);
        if (fractions) before += (double)fractions[i];
    }
    start[k] = n;
    dt_permutation(index, n, seed, DT_RNG_PARTITION, 0);
    return DT_OK;
}

DT_API dt_err dt_sampler_init(dt_sampler *s, const dt_sampler_desc *desc) {
    DTI_NEED(s, "s", DT_EARG);
    memset(s, 0, sizeof *s);
    DTI_NEED(desc, "desc", DT_EARG);
    if (desc->count == 0) return dt_fail(DT_EARG, "the sampler has no images to deal out");
    if (desc->ranks < 1 || desc->rank < 0 || desc->rank >= desc->ranks)
        return dt_fail(DT_EARG, "sampler: rank %d of %d ranks", desc->rank, desc->ranks);
    const uint32_t ranks = (uint32_t)desc->ranks;
    s->desc = *desc;
    s->per_rank = desc->count / ranks + (!desc->drop_last && desc->count % ranks != 0);
    s->index = dti_alloc_many(s->per_rank, sizeof *s->index);
    s->order = dti_alloc_many(desc->count, sizeof *s->order);
    if (!s->index || !s->order) {
        dt_sampler_free(s);
        return DT_ENOMEM;
    }
    dt_sampler_set_epoch(s, 0);
    return DT_OK;
}

/* A new deal: position i of rank r is card i*ranks + r, counted round the permutation where it
   ends. */
DT_API void dt_sampler_set_epoch(dt_sampler *s, uint32_t epoch) {
    DTI_NEED(s && s->order, "s, and what dt_sampler_init makes,", );
    const uint32_t n = s->desc.count;
    if (s->desc.shuffle) dt_permutation(s->order, n, s->desc.seed, DT_RNG_SHUFFLE, epoch);
    else for (uint32_t i = 0; i < n; ++i) s->order[i] = i;
    for (uint32_t i = 0; i < s->per_rank; ++i)
        s->index[i] =
            s->order[((uint64_t)i * (uint32_t)s->desc.ranks + (uint32_t)s->desc.rank) % n];
}

DT_API void dt_sampler_free(dt_sampler *s) {
    if (!s) return;
    dti_release(s->index);
    dti_release(s->order);
    memset(s, 0, sizeof *s);
}
#endif

/* ==== [S4.5] Exact global batches ========================================= */

/* The batches that all training here uses. The epoch's permutation is cut into
   global batches; a global batch into lane groups of 16 consecutive positions, the
   last one possibly partial; and of its G groups, rank r of P takes groups
   r*G/P .. (r+1)*G/P - 1, rounded down:

       global batch of 128, 3 ranks   |0 1|2 3 4|5 6 7|     8 groups, 2 + 3 + 3

   So for every P each image is used exactly once in an epoch, and a group holds
   the same images in the same lanes. A rank may get no image in a step (count 0):
   it still takes part in the step's sum. */
#ifdef DTI_DECLARE
/* How images are altered on their way into a batch [S4.6]; what is 0 is left out. Drawn anew for
   each image in each epoch, uniformly within these bounds. */
typedef struct dt_augment {
    uint64_t seed;
    float flip;                  /* probability of left and right changing places, 0..1 */
    float rotate;                /* degrees: by -rotate..rotate about the centre, 0..180 */
    float scale_low, scale_high; /* by a factor between these, 0.25..4; both 0: none */
    float shear;                 /* degrees: rows shifted, by -shear..shear, 0..45 */
    /* by a factor between 1-x and 1+x, x in 0..1; the last two need 1 or 3 channels */
    float brightness, contrast, saturation;
} dt_augment;

/* One step's images: rows of a data set [S4] that this rank holds. */
typedef struct dt_batch {
    const uint8_t *pixels;   /* (N,C,H,W), the whole data set; or NULL, and then */
    const float *values;     /* (N,C,H,W) */
    const uint8_t *labels;   /* (N); or NULL: nothing is known, and dt_backward refuses */
    const float *mean, *std; /* (C): x = (v - mean) / std, v pixel/255 or the value; NULL: x = v */
    const uint32_t *index;   /* (count) rows of this rank's samples */
    uint32_t count;          /* 0 is allowed: a rank without work in this step */
    uint32_t global_count;   /* samples of all ranks together: what the mean divides by */
    uint32_t first;          /* position of index[0] in the epoch */
    uint32_t epoch;          /* for dropout's random numbers */
    /* of an image, held against the net's; 0: nobody has said, and it is as the net's */
    int channels, height, width;
    uint32_t rows;           /* in pixels and labels, held against index; 0: nobody has said */
    /* (N, target_width) numbers that are wanted instead of labels, one for each output */
    const float *targets;
    int target_width;
    const dt_augment *augment; /* NULL: images as they are */
    uint8_t *room;           /* (16,C,H,W), where a lane group is altered; with augment */
} dt_batch;

typedef struct dt_batches_desc {
    uint32_t global_batch;    /* images a step over all ranks; give this ... */
    uint32_t per_rank_batch;  /* ... or this: the global batch is then this times the ranks */
    /* whose part of each batch: dt_comm_rank, dt_comm_size; size 0 means 1 */
    int rank, size;
    uint64_t seed;
    uint32_t epoch;           /* the epoch that dt_batches_init begins */
    bool shuffle;             /* else in the order of the dataset or the subset */
    bool drop_last;           /* leave a last, smaller global batch out */
    /* rows to use instead of all: a share, a sampler's index; not copied */
    const uint32_t *subset;
    uint32_t subset_count;
    const dt_augment *augment; /* NULL: images as they are; not copied */
} dt_batches_desc;

typedef struct dt_batches {
    const dt_dataset *data;
    dt_batches_desc desc;
    uint32_t rank, size;
    uint32_t batch;           /* images a full global batch */
    uint32_t count;           /* images an epoch, dropped ones not counted */
    uint32_t steps;           /* global batches an epoch */
    uint32_t position;        /* images before the next global batch */
    uint32_t epoch;
    uint32_t *order;          /* the epoch's rows */
    uint8_t *room;            /* of a lane group that is altered; NULL without augment */
} dt_batches;

/* dt_batches_init: checks the description, allocates its buffers and begins desc->epoch. The
   dataset, the subset and augment must stay. DT_EARG on a batch of 0, a rank outside of its size, a
   subset row outside of the dataset, or bounds of augment that cannot be meant. */
DT_API dt_err dt_batches_init(dt_batches *it, const dt_dataset *data, const dt_batches_desc *desc);
/* dt_batches_begin: goes to the start of an epoch; its order depends on (seed, epoch) alone. */
DT_API void dt_batches_begin(dt_batches *it, uint32_t epoch);
/* dt_batches_next: this rank's part of the next global batch; false at the end of the epoch, on all
   ranks at once. */
DT_API bool dt_batches_next(dt_batches *it, dt_batch *out);
DT_API void dt_batches_free(dt_batches *it);
#endif

#ifdef DTI_IMPLEMENT
enum { DTI_AUGMENT_SIDE = 2048 };

DT_API dt_err dt_batches_init(dt_batches *it, const dt_dataset *data, const dt_batches_desc *desc) {
    DTI_NEED(it, "it", DT_EARG);
    memset(it, 0, sizeof *it);
    DTI_NEED(desc, "desc", DT_EARG);
    const int rank = desc->rank, size = desc->size ? desc->size : 1;
    DT_TRY(dti_batches_check(data, desc, rank, size));
    const uint32_t n = desc->subset ? desc->subset_count : data->count;
    it->data = data;
    it->desc = *desc;
    it->rank = (uint32_t)rank;
    it->size = (uint32_t)size;
    it->batch = desc->global_batch ? desc->global_batch : desc->per_rank_batch * it->size;
    it->count = desc->drop_last ? n - n % it->batch : n;
    it->steps = it->count / it->batch + (it->count % it->batch != 0);
    it->order = dti_alloc_many(n, sizeof *it->order);
    if (desc->augment) it->room = dti_alloc_many(DT_LANES, dti_image_bytes(data));
    if (!it->order || (desc->augment && !it->room)) {
        dt_batches_free(it);
        return DT_ENOMEM;
    }
    dt_batches_begin(it, desc->epoch);
    return DT_OK;
}

/* A permutation of positions; where there is a subset, a position stands for its row. */
DT_API void dt_batches_begin(dt_batches *it, uint32_t epoch) {
    DTI_NEED(it && it->order, "it, and what dt_batches_init makes,", );
    const uint32_t *subset = it->desc.subset, n = subset ? it->desc.subset_count : it->data->count;
    if (it->desc.shuffle) dt_permutation(it->order, n, it->desc.seed, DT_RNG_SHUFFLE, epoch);
    else for (uint32_t i = 0; i < n; ++i) it->order[i] = i;
    if (subset) for (uint32_t i = 0; i < n; ++i) it->order[i] = subset[it->order[i]];
    it->epoch = epoch;
    it->position = 0;
}

/* Where piece k of n begins, when so many images are cut into whole lane groups: piece k holds
   groups k*G/n .. (k+1)*G/n-1, of which the last may be partial. */
static uint32_t dti_piece_begin(uint32_t images, uint32_t k, uint32_t n) {
    const uint32_t groups = images / DT_LANES + (images % DT_LANES != 0);
    const uint64_t at = (uint64_t)k * groups / n * DT_LANES;
    return at < images ? (uint32_t)at : images;
}

DT_API bool dt_batches_next(dt_batches *it, dt_batch *out) {
    DTI_NEED(it && it->order && out, "it, what dt_batches_init makes, and out", false);
    const uint32_t left = it->count - it->position;
    if (left == 0) return false;
    const uint32_t global = dti_min_u32(left, it->batch),
                   from = dti_piece_begin(global, it->rank, it->size),
                   to = dti_piece_begin(global, it->rank + 1, it->size);
    *out = (dt_batch) { .pixels = it->data->pixels,
                        .values = it->data->values,
                        .labels = it->data->labels,
                        .targets = it->data->targets,
                        .target_width = it->data->target_width,
                        .mean = it->data->mean,
                        .std = it->data->std,
                        .index = it->order + it->position + from,
                        .count = to - from,
                        .global_count = global,
                        .first = it->position + from,
                        .epoch = it->epoch,
                        .channels = it->data->channels,
                        .height = it->data->height,
                        .width = it->data->width,
                        .rows = it->data->count,
                        .augment = it->desc.augment,
                        .room = it->room };
    it->position += global;
    return true;
}

DT_API void dt_batches_free(dt_batches *it) {
    if (!it) return;
    dti_release(it->order);
    dti_release(it->room);
    memset(it, 0, sizeof *it);
}
#endif

/* ==== [S4.6] Augmentation ================================================= */

/* A net that sees each image a little differently in every epoch learns the thing and not the
   picture. What is done to an image, in this order:

       flip      left and right change places, with probability 1/2, say
       rotate    by U(-10, 10) degrees about the centre
       affine    scaled by U(0.8, 1.2), each row shifted in proportion to its height (shear)
       colours   brightness, contrast and saturation, in an order that is drawn, too:
                 I becomes clip(f I + (1-f) D), with f from U(0.8, 1.2), and
                 D = 0 | the mean of the image's grey | each pixel's own grey

   The random numbers are Philox words [S2] of (seed, epoch, image): so the rank that holds the
   image does not matter, nor the batch, nor whether the run was resumed. An image becomes another
   image of bytes, and is then packed like any other; no part of the training knows of it.

   A map of the plane is applied backwards, as everybody does it: for each pixel of the result one
   asks where it comes from. Take the centre of pixel (x,y), x + 1/2 and y + 1/2, through the
   inverse of the map; the pixel that the point falls into gives its value, and beyond the edge is
   0. A column of three pixels, scaled by 2 about its centre 1.5:

       y = 0:  (0.5 - 1.5)/2 + 1.5 = 1.0   pixel 1
       y = 1:  (1.5 - 1.5)/2 + 1.5 = 1.5   pixel 1
       y = 2:  (2.5 - 1.5)/2 + 1.5 = 2.0   pixel 2

   The two maps are applied one after the other, as torchvision's RandomRotation and RandomAffine
   are: each rounds to whole pixels. All this is bit for bit what those transforms do to images of
   Pillow (its affine_fixed for the maps, with numbers of 16 binary places; Image.blend and its
   convert("L") for the colours, which cut off what is behind the point); tests/make_augment.py
   holds it against Pillow itself. Whole numbers also make it the same on every machine. */
#ifdef DTI_IMPLEMENT
/* What happens to this image in this epoch: eight numbers of two Philox blocks, drawn whether
   they are needed or not, so that one setting does not shift the draws of another. */
static dti_alteration dti_draw_alteration(const dt_augment *d, uint32_t epoch, uint32_t image) {
    const dt_philox_block p = dt_philox(d->seed, DT_RNG_AUGMENT, epoch, image, 0),
                          q = dt_philox(d->seed, DT_RNG_AUGMENT, epoch, image, 1);
    const float jitter[3] = { d->brightness, d->contrast, d->saturation };
    dti_alteration a = { .flip = dt_uniform(p.v[0]) < d->flip,
                         .angle = (2.0 * (double)dt_uniform(p.v[1]) - 1.0) * (double)d->rotate,
                         .scale = 1.0,
                         .shear = (2.0 * (double)dt_uniform(p.v[2]) - 1.0) * (double)d->shear,
                         .order = (int)((uint64_t)q.v[3] * 6 >> 32) };
    const double low = (double)d->scale_low, high = (double)d->scale_high;
    if (high > 0.0) a.scale = low + (high - low) * (double)dt_uniform(p.v[3]);
    for (int k = 0; k < 3; ++k)
        a.factor[k] = 1.0f + (2.0f * dt_uniform(q.v[k]) - 1.0f) * jitter[k];
    return a;
}
#endif

/* ==== [S4.7] Into lanes =================================================== */

/* The kernels want sixteen images side by side, [C][H][W][16] floats; the data are rows of bytes.
   So a lane group is transposed while its bytes become numbers, x = pixel * a + b, with
   a = 1/(255 std) and b = -mean/std:

       image 0   p0 p1 p2 ...          p0 of images 0..15 | p1 of images 0..15 | ...
       image 1   p0 p1 p2 ...    ->    one register each
       ...                             lanes without an image hold zeros */
#ifdef DTI_IMPLEMENT
/* Lane group g of a batch whose images are (C,H,W): out becomes [C][H][W][16]. */
static void dti_batch_lanes(const dt_batch *batch, int C, int H, int W, int g, float *out) {
    const size_t plane = (size_t)H * (size_t)W, image = plane * (size_t)C;
    const int lanes = (int)dti_min_u32(DT_LANES, batch->count - (uint32_t)g * DT_LANES);
    const uint32_t *index = batch->index + g * DT_LANES;
    const uint8_t *row[DT_LANES];
    const float *value[DT_LANES];
    for (int l = 0; l < DT_LANES; ++l) {
        const size_t at = index[l < lanes ? l : 0] * image; /* empty lanes are cleared below */
        row[l] = batch->pixels ? batch->pixels + at : NULL;
        value[l] = batch->values ? batch->values + at : NULL;
        if (!batch->augment || l >= lanes) continue;
        const dti_alteration a = dti_draw_alteration(batch->augment, batch->epoch, index[l]);
        dti_alter(&a, C, H, W, row[l], batch->room + (size_t)l * image);
        row[l] = batch->room + (size_t)l * image;
    }
    const float unit = batch->pixels ? 255.0f : 1.0f;
    for (int c = 0; c < C; ++c) {
        const size_t from = (size_t)c * plane;
        const float a = 1.0f / (unit * (batch->std ? batch->std[c] : 1.0f)),
                    b = batch->mean ? -batch->mean[c] / batch->std[c] : 0.0f;
        if (batch->pixels) dti_pack_lanes(row, plane, from, a, b, out + from * DT_LANES);
        else dti_pack_floats(value, plane, from, a, b, out + from * DT_LANES);
    }
    if (lanes < DT_LANES)
        for (size_t i = 0; i < image; ++i)
            memset(out + i * DT_LANES + lanes, 0, (size_t)(DT_LANES - lanes) * sizeof(float));
}
#endif

/* ==== [S5] Kernels to read ================================================

   A layer is a formula, and these functions are the formulas written down: one loop for each index,
   in the order in which the formula names them, nothing else. They are to be read before the layers
   [S6], and to be compared with: the fast kernels [E1] compute the same sums in another order, and
   every one of them is tested against its twin here.

   An image is a map of C channels (1 for grey, 3 for colours, more behind a layer), each of H rows
   and W columns; a batch is N images, one after the other. Its element [n][c][i][j] stands at
   ((n*C + c)*H + i)*W + j: neighbours in a row are neighbours in memory, rows are W apart, channels
   H*W, images C*H*W. dti_at computes that for any four indices.

   Backward. Training asks how the loss changes with each number that went into it. The loss knows
   that for the last layer's y: dy[i] is the loss's derivative by y[i]. The chain rule takes it one
   layer back: wherever forward said y += x*w, a small change of x changes y by w times as much, so
   backward says dx += w*dy; and likewise dw += x*dy. That is all: each backward function below is
   its forward one with the innermost line exchanged.

   Sizes: N images, C input channels, O output channels, H W input rows and columns, P Q output rows
   and columns, K kernel, S stride, p padding, L = 16 lanes, G lane groups. */

/* ==== [S5.1] Naive convolution ============================================

   A kernel of K x K weights for each input channel is laid over the image; each weight is
   multiplied with the number under it, and all products are added up: one number of the output.
   Then the kernel moves on by S. Padding lets it hang over the edge by p places, where x counts
   as zero. Each of the O output channels has kernels of its own, and a bias b that its sum
   starts from.

       K = 3, S = 1, p = 0, H = W = 5           K = 3, S = 2, p = 1
       [. . .] .  .     P = (5-3)/1 + 1 = 3     [0 0 0]0 0 0 0     P = (5+2-3)/2 + 1 = 3
       [. . .] .  .                             [0 . .]. . . 0
       [. . .] .  .                             [0 . .]. . . 0
        .  .  .  .  .                            0 . . . . . 0

   What it costs: each of the N*O*P*Q outputs is C*K*K products. The first layer of chapter
   3's net, 1x28x28 to 10x24x24 with K = 5: 10*24*24 outputs of 25 products, 144000 multiply-adds an
   image. */
#ifdef DTI_DECLARE

/* dt_conv2d_naive                                              [S5.1]  chapter 3
   y[n,o,i,j] = b[o] + sum_{c,u,v} x[n,c,i*S+u-p,j*S+v-p] * w[o,c,u,v]
   (no flip: the correlation that papers call convolution).  Outside of the image x is zero.
   x (N,C,H,W)  w (O,C,K,K)  b (O) or NULL  ->  y (N,O,P,Q), overwritten, no alias.
   P = (H+2p-K)/S + 1, Q likewise from W.   2*N*O*P*Q*C*K*K flop.
   DT_ESHAPE if a size is below 1, p < 0, or P or Q < 1. */
DT_API dt_err dt_conv2d_naive(float *y, const float *x, const float *w, const float *b,
                              int N, int C, int H, int W, int O, int K, int S, int p);

/* dx[n,c,i*S+u-p,j*S+v-p] += sum_{o} w[o,c,u,v] * dy[n,o,i,j]        dx (N,C,H,W), accumulated
   No alias. Sizes, cost and errors as dt_conv2d_naive. */
DT_API dt_err dt_conv2d_naive_backward_data(float *dx, const float *dy, const float *w,
                                            int N, int C, int H, int W, int O, int K, int S, int p);

/* dw[o,c,u,v] += sum_{n,i,j} x[n,c,i*S+u-p,j*S+v-p] * dy[n,o,i,j]    dw (O,C,K,K), accumulated
   db[o]       += sum_{n,i,j} dy[n,o,i,j]                             db (O) or NULL, accumulated
   No alias. Sizes, cost and errors as dt_conv2d_naive. */
DT_API dt_err dt_conv2d_naive_backward_weights(float *dw, float *db, const float *dy,
                                               const float *x, int N, int C, int H, int W, int O,
                                               int K, int S, int p);
#endif

#ifdef DTI_IMPLEMENT
/* Where element [i][j][k][l] of a tensor of n1 x n2 x n3 behind each i stands. */
DTI_INLINE size_t dti_at(int i, int n1, int j, int n2, int k, int n3, int l) {
    return (((size_t)i * (size_t)n1 + (size_t)j) * (size_t)n2 + (size_t)k) * (size_t)n3 + (size_t)l;
}

/* The seven loops. The outer four walk over the outputs; the inner three over the products of one
   output. r and s are the row and column of the image that lie under weight (u, v). */
DT_API dt_err dt_conv2d_naive(float *y, const float *x, const float *w, const float *b,
                              int N, int C, int H, int W, int O, int K, int S, int p) {
    DTI_NEED(y && x && w, "y, x and w", DT_EARG);
    DT_TRY(dti_conv_check("dt_conv2d_naive", N, C, H, W, O, K, S, p));
    const int P = (H + 2 * p - K) / S + 1, Q = (W + 2 * p - K) / S + 1;
    for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o)
    for (int i = 0; i < P; ++i)
    for (int j = 0; j < Q; ++j) {
        float sum = b ? b[o] : 0.0f;
        for (int c = 0; c < C; ++c)
        for (int u = 0; u < K; ++u)
        for (int v = 0; v < K; ++v) {
            const int r = i * S + u - p, s = j * S + v - p;
            if (r < 0 || r >= H || s < 0 || s >= W) continue;
            sum += x[dti_at(n, C, c, H, r, W, s)]
                 * w[dti_at(o, C, c, K, u, K, v)];
        }
        y[dti_at(n, O, o, P, i, Q, j)] = sum;
    }
    return DT_OK;
}

/* Each output has touched C*K*K numbers of the image; it gives each of them its part of the
   derivative. Windows overlap, so a number of the image hears from several outputs: hence +=. */
DT_API dt_err dt_conv2d_naive_backward_data(float *dx, const float *dy, const float *w,
                                            int N, int C, int H, int W, int O, int K, int S,
                                            int p) {
    DTI_NEED(dx && dy && w, "dx, dy and w", DT_EARG);
    DT_TRY(dti_conv_check("dt_conv2d_naive_backward_data", N, C, H, W, O, K, S, p));
    const int P = (H + 2 * p - K) / S + 1, Q = (W + 2 * p - K) / S + 1;
    for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o)
    for (int i = 0; i < P; ++i)
    for (int j = 0; j < Q; ++j) {
        const float d = dy[dti_at(n, O, o, P, i, Q, j)];
        for (int c = 0; c < C; ++c)
        for (int u = 0; u < K; ++u)
        for (int v = 0; v < K; ++v) {
            const int r = i * S + u - p, s = j * S + v - p;
            if (r < 0 || r >= H || s < 0 || s >= W) continue;
            dx[dti_at(n, C, c, H, r, W, s)]
                += d * w[dti_at(o, C, c, K, u, K, v)]; /* y += x*w  =>  dx += w*dy */
        }
    }
    return DT_OK;
}

/* A weight was used at every place of every image, so its derivative is a sum over all of them: the
   one sum over the batch in training, and what ranks must add up [S10]. */
DT_API dt_err dt_conv2d_naive_backward_weights(float *dw, float *db, const float *dy,
                                               const float *x, int N, int C, int H, int W, int O,
                                               int K, int S, int p) {
    DTI_NEED(dw && dy && x, "dw, dy and x", DT_EARG);
    DT_TRY(dti_conv_check("dt_conv2d_naive_backward_weights", N, C, H, W, O, K, S, p));
    const int P = (H + 2 * p - K) / S + 1, Q = (W + 2 * p - K) / S + 1;
    for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o)
    for (int i = 0; i < P; ++i)
    for (int j = 0; j < Q; ++j) {
        const float d = dy[dti_at(n, O, o, P, i, Q, j)];
        if (db) db[o] += d;  /* y += b    =>  db += dy */
        for (int c = 0; c < C; ++c)
        for (int u = 0; u < K; ++u)
        for (int v = 0; v < K; ++v) {
            const int r = i * S + u - p, s = j * S + v - p;
            if (r < 0 || r >= H || s < 0 || s >= W) continue;
            dw[dti_at(o, C, c, K, u, K, v)]
                += d * x[dti_at(n, C, c, H, r, W, s)]; /* y += x*w  =>  dw += x*dy */
        }
    }
    return DT_OK;
}
#endif

/* ==== [S5.2] Naive max-pooling and linear layer ============================

   Max-pooling keeps the largest number of each K x K window: the map becomes smaller, and what was
   found counts, not exactly where. A linear layer connects everything with everything: each output
   is a sum over all inputs, a matrix times a vector. */
#ifdef DTI_DECLARE

/* dt_maxpool2d_naive                                           [S5.2]  chapter 3
   y[n,c,i,j] = max_{u,v < K} x[n,c,i*S+u,j*S+v]
   x (N,C,H,W) -> y (N,C,P,Q), overwritten, no alias.
   P = (H-K)/S + 1 (rows that do not fill a window are dropped), Q likewise.
   N*C*P*Q*K*K comparisons.   DT_ESHAPE if a size is below 1 or K exceeds H or W. */
DT_API dt_err dt_maxpool2d_naive(float *y, const float *x, int N, int C, int H, int W, int K,
                                 int S);

/* dx at the place of each window's maximum += dy; of equal values the first in row-major order
   is the maximum. dx (N,C,H,W), accumulated, no alias; dy (N,C,P,Q), x as dt_maxpool2d_naive got
   it. */
DT_API dt_err dt_maxpool2d_naive_backward(float *dx, const float *dy, const float *x, int N, int C,
                                          int H, int W, int K, int S);

/* dt_linear_naive
   y[n,o] = b[o] + sum_i x[n,i] * w[o,i]
   x (N,I)  w (O,I)  b (O) or NULL -> y (N,O), overwritten, no alias.   2*N*I*O flop.
   DT_ESHAPE if a size is below 1. */
DT_API dt_err dt_linear_naive(float *y, const float *x, const float *w, const float *b, int N,
                              int I, int O);

/* dx[n,i] += sum_o w[o,i] * dy[n,o]    dw[o,i] += sum_n x[n,i] * dy[n,o]    db[o] += sum_n dy[n,o]
   Each of dx, dw, db may be NULL; accumulated, no alias. */
DT_API dt_err dt_linear_naive_backward(float *dx, float *dw, float *db, const float *dy,
                                       const float *x, const float *w, int N, int I, int O);
#endif

#ifdef DTI_IMPLEMENT
/* Where the maximum of one KxK window stands, as an offset from its corner. */
static size_t dti_window_maximum(const float *corner, int W, int K) {
    size_t best = 0;
    for (int u = 0; u < K; ++u)
    for (int v = 0; v < K; ++v) {
        const size_t at = (size_t)u * (size_t)W + (size_t)v;
        if (corner[at] > corner[best]) best = at;
    }
    return best;
}

/* m counts the N*C maps: to a window it does not matter of which image its channel is. */
DT_API dt_err dt_maxpool2d_naive(float *y, const float *x, int N, int C, int H, int W, int K,
                                 int S) {
    DTI_NEED(y && x, "y and x", DT_EARG);
    DT_TRY(dti_pool_check("dt_maxpool2d_naive", N, C, H, W, K, S));
    const int P = (H - K) / S + 1, Q = (W - K) / S + 1;
    for (size_t m = 0; m < (size_t)N * (size_t)C; ++m)
    for (int i = 0; i < P; ++i)
    for (int j = 0; j < Q; ++j) {
        const float *corner = x + (m * (size_t)H + (size_t)(i * S)) * (size_t)W + (size_t)(j * S);
        *y++ = corner[dti_window_maximum(corner, W, K)];
    }
    return DT_OK;
}

/* The largest number alone has made y; the others could be a little larger or smaller, and y would
   be the same, so their derivative is 0. */
DT_API dt_err dt_maxpool2d_naive_backward(float *dx, const float *dy, const float *x, int N, int C,
                                          int H, int W, int K, int S) {
    DTI_NEED(dx && dy && x, "dx, dy and x", DT_EARG);
    DT_TRY(dti_pool_check("dt_maxpool2d_naive_backward", N, C, H, W, K, S));
    const int P = (H - K) / S + 1, Q = (W - K) / S + 1;
    for (size_t m = 0; m < (size_t)N * (size_t)C; ++m)
    for (int i = 0; i < P; ++i)
    for (int j = 0; j < Q; ++j) {
        const size_t corner = (m * (size_t)H + (size_t)(i * S)) * (size_t)W + (size_t)(j * S);
        /* y = max(x)  =>  dx[argmax] += dy */
        dx[corner + dti_window_maximum(x + corner, W, K)] += *dy++;
    }
    return DT_OK;
}

DT_API dt_err dt_linear_naive(float *y, const float *x, const float *w, const float *b, int N,
                              int I, int O) {
    DTI_NEED(y && x && w, "y, x and w", DT_EARG);
    DT_TRY(dti_linear_check("dt_linear_naive", N, I, O));
    for (size_t n = 0; n < (size_t)N; ++n)
    for (size_t o = 0; o < (size_t)O; ++o) {
        float sum = b ? b[o] : 0.0f;
        for (size_t i = 0; i < (size_t)I; ++i) sum += x[n * (size_t)I + i] * w[o * (size_t)I + i];
        y[n * (size_t)O + o] = sum;
    }
    return DT_OK;
}

DT_API dt_err dt_linear_naive_backward(float *dx, float *dw, float *db, const float *dy,
                                       const float *x, const float *w, int N, int I, int O) {
    DTI_NEED(dy && (w || !dx) && (x || !dw), "dy, and w for dx, and x for dw,", DT_EARG);
    DT_TRY(dti_linear_check("dt_linear_naive_backward", N, I, O));
    for (size_t n = 0; n < (size_t)N; ++n)
    for (size_t o = 0; o < (size_t)O; ++o) {
        const float d = dy[n * (size_t)O + o];
        if (db) db[o] += d; /* y += b  =>  db += dy */
        /* y += x*w  =>  dx += w*dy, dw += x*dy */
        for (size_t i = 0; i < (size_t)I; ++i) {
            if (dx) dx[n * (size_t)I + i] += d * w[o * (size_t)I + i];
            if (dw) dw[o * (size_t)I + i] += d * x[n * (size_t)I + i];
        }
    }
    return DT_OK;
}
#endif

/* ==== [S6] Layers =========================================================

   A net is layers, one behind the other: each turns one tensor into the next, and most have
   parameters that training changes. This section first says what a layer is to the net [S6.1];
   then each subsection is one layer, whole. Its first sentences give the formula and what it is
   good for, then come the builder that a program calls, the shape, the way forward and the way
   back.

       with parameters            without                   across images
       [S6.2] convolution         [S6.3] max-pool           [S6.11] batch norm
       [S6.6] linear              [S6.4] ReLU
                                  [S6.5] dropout
                                  [S6.7] sum of two tensors
                                  [S6.8] average pool
                                  [S6.9] sigmoid, [S6.10] tanh

   To read: [S6.1] as far as struct dti_layer_class; [S6.4], the smallest layer; [S6.6], the
   smallest one with parameters; then any. */

/* ==== [S6.1] What a net and a layer are ===================================

   A net is a graph told as a list. Its tensors are numbered: tensor 0 is the image, layer i
   reads one that is there (the last, unless dt_at has said another) and makes tensor i+1.

       dt_node skip = dt_here(net);           tensor 3               3 ----.
       dt_conv2d(net, "a", ...);              3 -> 4               a |     |
       dt_relu(net);                          4 -> 5            relu |     | skip
       dt_add(net, skip);                     5 and 3 -> 6           + <---'
                                                                     6

   Sixteen images travel together, a lane group: a tensor holds [C][H][W][16] floats for each
   group, so the sixteen values of one place lie side by side, one AVX-512 register, and a kernel
   is a loop over places that never asks which image a value is of. 40 images are three groups, the
   last with 8 empty lanes.

   A layer is written in one place, its subsection below: description and builder, then a class
   that says all that a net wants to know of it. Nothing else asks what kind a layer is, so a new
   one is a new subsection. When its functions are called:

       the builder      shape     sizes fit? out[], parameters              [S6.1] dti_append
       dt_net_build     needs     scratch, notes from forward to backward   [S8.3]
       each step        pack      the parameters as the kernels like them   [S8.5]
                        forward   x -> y, for each lane group
                        backward  dy -> dx and the parameters' gradient,    [S8.6]
                                  for each lane group

   Backward is the chain rule [S5]: it is handed dy, the derivative of the loss by each number of
   y, and leaves the derivatives by x and by the parameters. */
#ifdef DTI_DECLARE
typedef struct dt_net dt_net;
typedef struct dt_node { int tensor; } dt_node;

DT_API dt_net *dt_net_new(int channels, int height, int width); /* NULL if memory is short */
DT_API void dt_net_free(dt_net *net);                           /* NULL is allowed */

/* Builders add a layer behind the tensor that stands here. They return nothing, and remember the
   first error: dt_net_build returns it, and if the net was built already, whatever would run it.
   So a net is written down without a test behind each line. No layer may have more than 2^27
   numbers an image. A NULL net (no memory) is passed along. */
/* the tensor that the next layer will read */
DT_API dt_node dt_here(const dt_net *net);
/* the next layer reads that one instead */
DT_API void dt_at(dt_net *net, dt_node node);
#endif

#ifdef DTI_IMPLEMENT
typedef struct dti_layer dti_layer;
typedef struct dti_op dti_op;

/* What every layer may look at while a net runs. */
typedef struct dti_pass {
    /* which pass it is */
    bool training;           /* false: dropout is the identity */
    uint64_t seed;
    uint32_t epoch;
    const uint32_t *sample;  /* [G][16]: which sample of the data set each lane holds */
    uint32_t images, global_images; /* in this rank's batch; in all ranks' together */

    /* what it works with */
    const float *values;     /* the parameter vector */
    float *group_grad;       /* one layer's parameter gradient for one lane group, overwritten */
    float *scratch;          /* for kernels, as large as the largest asks */
    dt_err *error;           /* a class that fails leaves its error there; dti_pass_fails */

    /* Of what is saved but not trained, such as running means: where shares of this batch's own are
       added up, a wide sum [S3.3] each, in the order of the parameter vector, from number `trained`
       on. */
    int64_t *shares;
    size_t trained;

    /* the sink for sums over ranks that a pass cannot go on without, see dt_net_on_sums; NULL: no
       rank but this one is asked */
    dt_err (*sum)(void *user, int64_t *sums, size_t count);
    void *sum_user;
} dti_pass;

/* What backward reads beside dy. The planner [S8.3] keeps those tensors until then, and lets
   another layer write over the rest: a class that says more than it needs costs memory, one that
   says less gets wrong numbers. */
enum { DTI_READS_X = 1, DTI_READS_Y = 2, DTI_READS_SIGN = 4 /* of y alone: positive or not */ };

/* Over which images a layer computes together while training. Most treat each image by itself. */
typedef enum dti_scope {
    DTI_OVER_EACH,
    DTI_OVER_GROUP,
    DTI_OVER_RANK,
    DTI_OVER_BATCH,
    DTI_SCOPES
} dti_scope;

/* All that a net wants to know of a kind of layer. What is NULL or 0 a layer does without. */
typedef struct dti_layer_class {
    const char *name;
    size_t own;              /* bytes of what a layer of this class keeps of its description */
    size_t said;             /* at their start those that say what it computes: 4-byte numbers */
    /* From l->in and the description: checks it, sets l->out, what is in l->own, and the parameters
       (dti_parameter). */
    dt_err (*shape)(dti_layer *l, const void *desc);
    /* sets packed_floats, scratch_floats, notes_bytes, sums, whole_batch, scope, fewest; NULL:
       none of them */
    void (*needs)(dti_op *op);
    int reads;                          /* in backward: a sum of DTI_READS_ */
    bool in_place;                      /* y may lie where x lies, and dx where dy lies */
    /* y is above 0 where x is, or is 0 where dx will be: a ReLU before it may be overwritten */
    bool keeps_sign;
    /* better, or only right, over all lane groups at once [S8.5] */
    bool whole_batch;
    /* backward adds to dx where op->add_dx or op->add_dx2 says so */
    bool adds;
    double (*macs)(const dti_layer *l); /* multiply-adds of one image's forward pass; NULL: 0 */
    /* parameters as the kernels read them, once a step */
    void (*pack)(const dti_op *op, const float *values);
    void (*forward)(const dti_op *op, const dti_pass *run, int first_group, int groups);
    /* run->group_grad and dx, overwritten */
    void (*backward)(const dti_op *op, const dti_pass *run, int group);
    /* dx apart, if better so */
    void (*backward_data)(const dti_op *op, const dti_pass *run, int first_group, int groups);
    /* of a whole number that PyTorch saves with such a layer [E6.3]; NULL: it saves none */
    const char *counter;
} dti_layer_class;

/* A tensor of the parameter vector: "weight" of layer "conv1" is called "conv1.weight". */
typedef struct dti_slot {
    const char *suffix;
    dt_tensor shape;         /* without data */
    float bound, value;      /* initial values are value + U(-bound, +bound) */
    bool trained;            /* false: saved, but no optimizer steps it */
    /* of what is not trained: each step it moves by this part of its distance to the batch's own */
    float follow;
    size_t offset;           /* in the parameter vector */
} dti_slot;

enum {
    DTI_MAX_LAYERS = 128,
    DTI_SLOTS = 4,
    DTI_NAME = 64,
    /* numbers of one image in one tensor: an int holds any place in a lane group */
    DTI_MAX_IMAGE = INT_MAX / DT_LANES
};

/* A line of the user's list. */
struct dti_layer {
    const dti_layer_class *class;
    char name[DTI_NAME];
    int x, with;             /* the tensors it reads; with -1: only one */
    int in[3], out[3];       /* C, H, W of one image */
    void *own;
    uint32_t stream;         /* its place in the list: dropout layers draw different numbers */
    int slots, first_param;  /* its parameters, and the number of the first in the net */
    dti_slot slot[DTI_SLOTS];
    /* floats in its trained slots, which lie behind one another from slot[0].offset on */
    size_t params;
};

/* A tensor of all lane groups: group g begins at + g * stride. stride 0: one buffer serves every
   group in turn. */
typedef struct dti_lanes { float *at; size_t stride; } dti_lanes;

/* A line of the plan [S8.3]: what is done in a layer's place, or in the place of several that a
   pattern has fused [S8.2]; with where its tensors lie. This is what forward and backward are
   handed. */
struct dti_op {
    /* what is done */
    const dti_layer_class *class;
    const dti_layer *layer;  /* whose parameters and description: the first fused */
    int layers;              /* how many it stands for */
    int in[3], out[3];
    bool direct;             /* dt_build_desc's */

    /* with which tensors: their numbers, and where they lie; dx, dx2 at NULL: not wanted */
    int tensor, tensor2, made;       /* x, x2 and y; tensor2 -1: it has no x2 */
    dti_lanes x, x2, y, dx, dx2, dy;
    bool add_dx, add_dx2;    /* another reader's gradient is there already */
    dti_lanes spare;         /* where a class that cannot add leaves dx first */

    /* over which lane groups: one by one, or all at once, with the ops [begin, end) that are driven
       alike; and over which images it computes together */
    bool whole_batch;
    int begin, end;
    dti_scope scope;
    uint32_t fewest;         /* images that its scope must hold, if it holds any */

    /* what its class has asked for, and where it is */
    size_t packed_floats, scratch_floats, notes_bytes, sums;
    float *packed;           /* parameters as the kernels read them */
    unsigned char *notes;    /* forward's to backward, as places of maxima; of each group */
    int64_t *wide;           /* [sums] for sums over lane groups and ranks */
};

/* Where an op's tensors are for lane group g; NULL where there is none. */
DTI_INLINE float *dti_lanes_of(dti_lanes t, int g) {
    return t.at ? t.at + (size_t)g * t.stride : NULL;
}
DTI_INLINE const float *dti_x(const dti_op *op, int g) { return dti_lanes_of(op->x, g); }
DTI_INLINE float *dti_y(const dti_op *op, int g) { return dti_lanes_of(op->y, g); }
DTI_INLINE const float *dti_dy(const dti_op *op, int g) { return dti_lanes_of(op->dy, g); }
DTI_INLINE unsigned char *dti_notes_of(const dti_op *op, int g) {
    return op->notes + (size_t)g * op->notes_bytes;
}
/* Where backward puts dx; NULL if nobody wants it. */
DTI_INLINE dti_lanes dti_dx_lanes(const dti_op *op) {
    return op->add_dx && !op->class->adds ? op->spare : op->dx;
}
DTI_INLINE float *dti_dx(const dti_op *op, int g) { return dti_lanes_of(dti_dx_lanes(op), g); }

/* Numbers of one image, floats of a lane group, inputs of a layer that forgets the shape. */
DTI_INLINE size_t dti_volume(const int shape[3]) {
    return (size_t)shape[0] * (size_t)shape[1] * (size_t)shape[2];
}
DTI_INLINE size_t dti_group_floats(const int shape[3]) { return dti_volume(shape) * DT_LANES; }
DTI_INLINE int dti_inputs(const dti_layer *l) { return l->in[0] * l->in[1] * l->in[2]; }

/* The list while it grows. It is the first thing in a dt_net [S8.1]. */
typedef struct dti_list {
    dt_err error;            /* the first one a builder met */
    char error_text[512];
    bool closed;             /* dt_net_build has been there */
    int input[3];            /* the image */
    int layers, here;        /* here: the tensor that the next layer reads */
    dti_layer layer[DTI_MAX_LAYERS];
} dti_list;

static dti_list *dti_list_of(dt_net *net) { return (dti_list *)(void *)net; }

static const int *dti_tensor_shape(const dti_list *list, int tensor) {
    return tensor == 0 ? list->input : list->layer[tensor - 1].out;
}

/* keeps the first error and its sentence */
static void dti_list_fail(dti_list *list, dt_err code) {
    if (list->error != DT_OK) return;
    list->error = code;
    snprintf(list->error_text, sizeof list->error_text, "%s", dt_error());
}

/* A parameter of the layer, to be called by its class's shape: trained ones first, in the order in
   which backward leaves their gradients. */
static dti_slot *dti_parameter(dti_layer *l, const char *suffix, dt_tensor shape, float bound) {
    dti_slot *slot = &l->slot[l->slots++];
    *slot = (dti_slot){ .suffix = suffix, .shape = shape, .bound = bound, .trained = true };
    l->params = dti_plus(l->params, dt_tensor_count(&shape));
    return slot;
}

/* A number that follows the batches and is not trained, such as a running mean; after the trained
   ones. */
static void dti_statistic(dti_layer *l, const char *suffix, dt_tensor shape, float value,
                          float follow) {
    l->slot[l->slots++] = (dti_slot){
        .suffix = suffix, .shape = shape, .value = value, .trained = false, .follow = follow
    };
}

/* The first error of a pass, which ends it. */
static void dti_pass_fails(const dti_pass *run, dt_err code) {
    if (*run->error == DT_OK) *run->error = code;
}

static bool dti_fits_image(const int shape[3]) {
    return dti_times(dti_times((size_t)shape[0], (size_t)shape[1]), (size_t)shape[2]) <=
           DTI_MAX_IMAGE;
}

/* A layer of that class at the end of the list, as its shape says; after an error the list is as it
   was. */
static dt_err dti_append_checked(dti_list *list, const dti_layer_class *class, const char *name,
                                 const void *desc, int with) {
    if (list->closed) return dt_fail(DT_EARG, "%s: the net is built already", class->name);
    if (list->layers == DTI_MAX_LAYERS)
        return dt_fail(DT_EARG, "%s: more than %d layers", class->name, DTI_MAX_LAYERS);
    DT_TRY(dti_name_check(list, class->name, name));
    dti_layer *l = &list->layer[list->layers];
    *l = (dti_layer){ .class = class, .x = list->here, .with = with,
                      .stream = (uint32_t)list->layers };
    memcpy(l->name, name, strlen(name) + 1);
    memcpy(l->in, dti_tensor_shape(list, list->here), sizeof l->in);
    memcpy(l->out, l->in, sizeof l->out);
    if (class->own && !(l->own = dti_alloc(class->own))) return DT_ENOMEM;
    dt_err error = class->shape ? class->shape(l, desc) : DT_OK;
    if (error == DT_OK) error = dti_size_check(l);
    if (error != DT_OK) {
        dti_release(l->own);
        l->own = NULL;
        return error;
    }
    list->here = ++list->layers;
    return DT_OK;
}

/* What every builder does. name NULL: the class's. with: a second tensor to read, or -1. */
static void dti_append(dt_net *net, const dti_layer_class *class, const char *name,
                       const void *desc, int with) {
    dti_list *list = dti_list_of(net);
    if (!list || list->error != DT_OK) return;
    dt_err error = dti_append_checked(list, class, name ? name : class->name, desc, with);
    if (error != DT_OK) dti_list_fail(list, error);
}

DT_API dt_node dt_here(const dt_net *net) {
    return (dt_node){ net ? ((const dti_list *)(const void *)net)->here : 0 };
}

DT_API void dt_at(dt_net *net, dt_node node) {
    dti_list *list = dti_list_of(net);
    if (!list || list->error != DT_OK) return;
    if (node.tensor >= 0 && node.tensor <= list->layers) list->here = node.tensor;
    else
        dti_list_fail(list, dt_fail(DT_EARG, "dt_at: there is no tensor %d; the net has 0..%d",
                                    node.tensor, list->layers));
}
#endif

/* ==== [S6.2] Convolution ==================================================

   y[n,o,i,j] = b[o] + sum_{c,u,v} x[n,c,i*S+u-p,j*S+v-p] * w[o,c,u,v]   x (N,C,H,W) -> y (N,O,P,Q)

   The same few weights look at every place of the map: what is worth finding in one corner of an
   image is worth finding in the other. [S5.1] shows the sum, and what stride and padding are.

   Parameters: name.weight (O,C,K,K), name.bias (O) unless no_bias, both from
   U(-1/sqrt(C*K*K), +1/sqrt(C*K*K)). From 10 to 20 channels with K = 5 these are 20*10*25 + 20 =
   5020, on maps of any size. O*P*Q*C*K*K multiply-adds an image forward, twice that backward.

   There are two sets of kernels behind it: by the definition [E1.2], and by Winograd's algorithm
   [E1.8], which needs fewer multiplications for 3x3 and 5x5 at stride 1. Which one a layer takes
   depends on its sizes alone, never on the machine, so the bits do not change from one to another.
   And each exists with a 2x2 max-pool done on the way, for fused layers [S8.2]: then notes hold the
   place of each maximum. */
#ifdef DTI_DECLARE
typedef struct dt_conv2d_desc {
    int out;                 /* output channels, >= 1 */
    int kernel;              /* K: a square of K x K, 1..15 */
    int stride;              /* 0 means 1; up to 65536 */
    int padding;             /* zeros around the map, 0..K-1; or DT_SAME */
    bool no_bias;
} dt_conv2d_desc;

/* (K-1)/2 of an odd K: at stride 1 the map keeps its size, at stride S it becomes the S-th part,
   rounded up */
#define DT_SAME (-65536)

/* x (N,C,H,W) -> y (N,out,P,Q), P = (H+2p-K)/S + 1, Q likewise; a name that no other layer has.
   The error that is remembered: DT_EARG for a number outside of what stands above, DT_ESHAPE if the
   kernel is larger than the padded map. */
DT_API void dt_conv2d(dt_net *net, const char *name, const dt_conv2d_desc *desc);
#endif

#ifdef DTI_IMPLEMENT
/* What a convolution keeps: its sizes, and by which algorithm it goes. */
typedef struct dti_conv2d {
    dti_conv conv;
    /* of Winograd's algorithm, by which it goes; NULL: by the definition */
    const dti_wino_form *form;
} dti_conv2d;

/* P = (H+2p-K)/S + 1, Q likewise; weight and bias. */
static dt_err dti_conv2d_shape(dti_layer *l, const void *description) {
    const dt_conv2d_desc *d = description;
    dti_conv *conv = &((dti_conv2d *)l->own)->conv;
    if (!d) return dt_fail(DT_EARG, "conv2d \"%s\": desc must not be NULL", l->name);
    const bool same = d->padding == DT_SAME && d->kernel % 2 == 1;
    const int K = d->kernel, S = d->stride == 0 ? 1 : d->stride;
    const int p = same ? (K - 1) / 2 : d->padding;
    if (d->out < 1 || d->out > 65536 || K < 1 || K > 15 || S < 1 || S > 65536 || p < 0 || p >= K)
        return dt_fail(
            DT_EARG,
            "conv2d \"%s\": out %d, kernel %d, stride %d, padding %d; needs out 1..65536, "
            "kernel 1..15, stride 1..65536, padding 0..kernel-1, or DT_SAME and an odd kernel",
            l->name, d->out, K, d->stride, p);
    if (l->in[1] + 2 * p < K || l->in[2] + 2 * p < K)
        return dt_fail(
            DT_ESHAPE,
            "conv2d \"%s\": a %d x %d kernel does not fit into the %d x %d input with padding %d",
            l->name, K, K, l->in[1], l->in[2], p);
    l->out[0] = d->out;
    l->out[1] = (l->in[1] + 2 * p - K) / S + 1;
    l->out[2] = (l->in[2] + 2 * p - K) / S + 1;
    *conv = (dti_conv){ .C = l->in[0], .H = l->in[1], .W = l->in[2],
                        .O = l->out[0], .P = l->out[1], .Q = l->out[2], .K = K, .S = S, .pad = p };
    const float bound = 1.0f / sqrtf((float)(conv->C * K * K));
    dti_parameter(l, "weight", (dt_tensor){ NULL, 4, { conv->O, conv->C, K, K } }, bound);
    if (!d->no_bias) dti_parameter(l, "bias", (dt_tensor){ NULL, 1, { conv->O, 0, 0, 0 } }, bound);
    return DT_OK;
}

/* Which kernels, and what those want: weights in another order, and room to work in. */
static void dti_conv2d_needs(dti_op *op) {
    dti_conv2d *l = op->layer->own;
    const dti_conv *c = &l->conv;
    l->form = op->direct ? NULL : dti_wino_rule(c);
    op->packed_floats = l->form ? dti_wino_packed_floats(c, l->form) : dti_conv_packed_floats(c);
    op->scratch_floats = l->form ? dti_wino_scratch_floats(c, l->form) : dti_conv_scratch_floats(c);
    op->whole_batch = l->form && dti_wino_shares(c, l->form);
}

static double dti_conv2d_macs(const dti_layer *l) {
    const dti_conv *c = &((const dti_conv2d *)l->own)->conv;
    return (double)c->O * c->P * c->Q * c->C * c->K * c->K;
}

/* The weights as the kernels read them. */
static void dti_conv2d_pack(const dti_op *op, const float *values) {
    const dti_conv2d *l = op->layer->own;
    const float *w = values + op->layer->slot[0].offset;
    if (l->form) dti_wino_pack(&l->conv, l->form, w, op->packed);
    else dti_conv_pack(&l->conv, w, op->packed);
}

/* Of a layer with weight and bias: the bias among the parameters, or the bias's gradient behind the
   weight's; or NULL. */
static const float *dti_bias(const dti_layer *l, const float *values) {
    return l->slots > 1 ? values + l->slot[1].offset : NULL;
}
static float *dti_bias_grad(const dti_layer *l, float *group_grad) {
    return l->slots > 1 ? group_grad + dt_tensor_count(&l->slot[0].shape) : NULL;
}

/* The maps of lane groups from `group` on, as Winograd's kernels [E1.8] want them; y and dy with
   the places of maxima where they are pooled. */
static dti_wino_maps dti_conv2d_maps(const dti_op *op, dti_lanes lanes, const int shape[3],
                                     int group) {
    const bool pooled = shape == op->out && op->notes_bytes > 0;
    return (dti_wino_maps) { dti_lanes_of(lanes, group),
                             pooled ? dti_notes_of(op, group) : NULL,
                             lanes.stride,
                             pooled ? op->notes_bytes : 0,
                             shape[0],
                             shape[1],
                             shape[2] };
}

/* One of four: Winograd or not, pooled on the way or not; relu only where it is pooled. */
static void dti_conv2d_run(const dti_op *op, const dti_pass *run, int first, int groups,
                           bool relu) {
    const dti_conv2d *l = op->layer->own;
    const float *bias = dti_bias(op->layer, run->values);
    if (l->form) {
        const dti_wino_maps x = dti_conv2d_maps(op, op->x, op->in, first),
                            y = dti_conv2d_maps(op, op->y, op->out, first);
        dti_wino_forward(&l->conv, l->form, groups, &x, op->packed, bias, relu, &y, run->scratch);
        return;
    }
    for (int g = first; g < first + groups; ++g)
        if (op->notes_bytes)
            dti_conv_pool_forward(&l->conv, dti_x(op, g), op->packed, bias, relu, dti_y(op, g),
                                  dti_notes_of(op, g), run->scratch);
        else dti_conv_forward(&l->conv, dti_x(op, g), op->packed, bias, dti_y(op, g), run->scratch);
}

static void dti_conv2d_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    dti_conv2d_run(op, run, first, groups, false);
}

/* y += x*w  =>  dx += w*dy,  dw += x*dy;   y += b  =>  db += dy */
static void dti_conv2d_backward(const dti_op *op, const dti_pass *run, int g) {
    const dti_conv2d *l = op->layer->own;
    float *dw = run->group_grad, *db = dti_bias_grad(op->layer, dw), *dx = dti_dx(op, g);
    if (l->form) {
        const dti_wino_maps x = dti_conv2d_maps(op, op->x, op->in, g),
                            dy = dti_conv2d_maps(op, op->dy, op->out, g);
        const dti_wino_maps to = dti_conv2d_maps(op, dti_dx_lanes(op), op->in, g);
        dti_wino_backward(&l->conv, l->form, 1, &x, &dy, op->packed,
                          dx && !op->whole_batch ? &to : NULL, dw, db, run->scratch);
    } else if (op->notes_bytes)
        dti_conv_pool_backward(&l->conv, dti_x(op, g), op->packed, dti_dy(op, g),
                               dti_notes_of(op, g), dx, dw, db, run->scratch);
    else {
        dti_conv_backward_weights(&l->conv, dti_x(op, g), dti_dy(op, g), dw, db, run->scratch);
        if (dx) dti_conv_backward_data(&l->conv, dti_dy(op, g), op->packed, dx, run->scratch);
    }
}

/* dx of many lane groups, where they share a pass over the weights; else it is done with dw. */
static void dti_conv2d_backward_data(const dti_op *op, const dti_pass *run, int first, int groups) {
    const dti_conv2d *l = op->layer->own;
    if (!l->form || !op->whole_batch) return;
    const dti_wino_maps dy = dti_conv2d_maps(op, op->dy, op->out, first),
                        dx = dti_conv2d_maps(op, dti_dx_lanes(op), op->in, first);
    dti_wino_backward(&l->conv, l->form, groups, NULL, &dy, op->packed, &dx, NULL, NULL,
                      run->scratch);
}

static const dti_layer_class dti_conv2d_class = {
    .name = "conv2d", .own = sizeof(dti_conv2d), .said = sizeof(dti_conv),
    .shape = dti_conv2d_shape,
    .needs = dti_conv2d_needs, .reads = DTI_READS_X, .macs = dti_conv2d_macs,
    .pack = dti_conv2d_pack, .forward = dti_conv2d_forward, .backward = dti_conv2d_backward,
    .backward_data = dti_conv2d_backward_data
};

DT_API void dt_conv2d(dt_net *net, const char *name, const dt_conv2d_desc *desc) {
    dti_append(net, &dti_conv2d_class, name ? name : "", desc, -1);
}

#endif

/* ==== [S6.3] Max-pool =====================================================

   y[n,c,i,j] = max_{u,v < K} x[n,c,i*K+u,j*K+v]; of equal values the first in row-major order is
   the maximum. A map of a quarter of the size for K = 2, and what was found may have moved by a
   pixel.

       x                 y              dy             dx: where the maximum was, else 0
       1 3 | 2 0                                        .  . |  b  .
       4 2 | 1 1         4 2            a b             a  . |  .  .
       ----+----   ->                           ->     ------+------
       0 5 | 6 2         5 6            c d             .  c |  d  .
       1 1 | 3 3                                        .  . |  .  .

   The place of each maximum is noted, a byte each, so that backward need not look at x again. */
#ifdef DTI_DECLARE
/* K 1..15; stride = kernel, no padding, floor */
DT_API void dt_maxpool2d(dt_net *net, int kernel);
#endif

#ifdef DTI_IMPLEMENT
/* Whole windows only: rows and columns that fill none are not read. */
static dt_err dti_maxpool2d_shape(dti_layer *l, const void *kernel) {
    const int K = *(int *)l->own = *(const int *)kernel;
    if (K < 1 || K > 15) return dt_fail(DT_EARG, "maxpool2d: kernel %d; needs 1..15", K);
    if (l->in[1] < K || l->in[2] < K)
        return dt_fail(DT_ESHAPE, "maxpool2d: kernel %d is larger than the %d x %d input", K,
                       l->in[1], l->in[2]);
    l->out[1] = l->in[1] / K;
    l->out[2] = l->in[2] / K;
    return DT_OK;
}

/* a place each */
static void dti_maxpool2d_needs(dti_op *op) { op->notes_bytes = dti_group_floats(op->out); }

static void dti_maxpool2d_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    const int K = *(const int *)op->layer->own;
    (void)run;
    for (int g = first; g < first + groups; ++g)
        dti_maxpool_forward(op->in[0], op->in[1], op->in[2], K, K, dti_x(op, g), dti_y(op, g),
                            dti_notes_of(op, g));
}

/* y = x[argmax]  =>  dx[argmax] += dy */
static void dti_maxpool2d_backward(const dti_op *op, const dti_pass *run, int g) {
    const int K = *(const int *)op->layer->own;
    (void)run;
    if (dti_dx(op, g))
        dti_maxpool_backward(op->in[0], op->in[1], op->in[2], K, K, dti_dy(op, g),
                             dti_notes_of(op, g), dti_dx(op, g));
}

static const dti_layer_class dti_maxpool2d_class = {
    .name = "maxpool2d", .own = sizeof(int), .said = sizeof(int), .shape = dti_maxpool2d_shape,
    .needs = dti_maxpool2d_needs, .forward = dti_maxpool2d_forward,
    .backward = dti_maxpool2d_backward
};

DT_API void dt_maxpool2d(dt_net *net, int kernel) {
    dti_append(net, &dti_maxpool2d_class, NULL, &kernel, -1);
}
#endif

/* ==== [S6.4] ReLU =========================================================

   y = max(x, 0); a NaN stays a NaN. Without something that is not linear between them, two
   layers of sums would be one: w2*(w1*x) = (w2*w1)*x. ReLU is the cheapest such thing, and where
   it is open it hands dy on as it is, through any number of layers.

   The mask for backward is y itself: it is above 0 just where x was. So x need not be kept, and
   y may be written over it. */
#ifdef DTI_DECLARE
/* x -> y of the same shape, one comparison a number */
DT_API void dt_relu(dt_net *net);
#endif

#ifdef DTI_IMPLEMENT
/* A layer that goes number by number is two functions of one number: y of x, and dy/dx told from y.
   They are constants where these two are called, and so inlined into the loops. ReLU's way back
   is its own: 0 where nothing came through, even if dy is a NaN. */
typedef float dti_of_one(float x);

DTI_INLINE void dti_each_forward(dti_of_one *value, const dti_op *op, int first, int groups) {
    const size_t n = dti_group_floats(op->out);
    for (int g = first; g < first + groups; ++g) {
        const float *x = dti_x(op, g);
        float *y = dti_y(op, g);
        for (size_t i = 0; i < n; ++i) y[i] = value(x[i]);
    }
}

/* y = value(x)  =>  dx = dy * slope(y);   dx may be dy */
DTI_INLINE void dti_each_backward(dti_of_one *slope, const dti_op *op, int g) {
    const float *y = dti_y(op, g), *dy = dti_dy(op, g);
    float *dx = dti_dx(op, g);
    for (size_t i = 0, n = dx ? dti_group_floats(op->out) : 0; i < n; ++i)
        dx[i] = dy[i] * slope(y[i]);
}

DTI_INLINE float dti_rectified(float x) { return x < 0.0f ? 0.0f : x; }
static void dti_relu_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    (void)run;
    dti_each_forward(dti_rectified, op, first, groups);
}

/* y = x > 0 ? x : 0  =>  dx = y > 0 ? dy : 0;   n floats, dx may be dy */
static void dti_relu_gradient(const float *y, const float *dy, float *dx, size_t n) {
    for (size_t i = 0; i < n; ++i) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

static void dti_relu_backward(const dti_op *op, const dti_pass *run, int g) {
    (void)run;
    if (dti_dx(op, g))
        dti_relu_gradient(dti_y(op, g), dti_dy(op, g), dti_dx(op, g), dti_group_floats(op->out));
}

static const dti_layer_class dti_relu_class = {
    .name = "relu", .reads = DTI_READS_SIGN, .in_place = true, .keeps_sign = true,
    .forward = dti_relu_forward, .backward = dti_relu_backward
};

DT_API void dt_relu(dt_net *net) { dti_append(net, &dti_relu_class, NULL, NULL, -1); }
#endif

/* ==== [S6.5] Dropout ======================================================

   Training: y = x * m with m = 0 with probability p, else 1/(1-p); evaluation: y = x. Numbers
   that may be gone at any time cannot be relied on alone, so the net learns to say the same
   thing in several ways, and learns less by heart. Why 1/(1-p): the mean of m is p*0 +
   (1-p)/(1-p) = 1, so the next layer sees sums of the same size in training and evaluation.

   Dropout draws an m for every value, Dropout2d one for every (image, channel) plane, as
   neighbours in a plane say nearly the same. Source: Srivastava et al. 2014; Tompson et al. 2015
   for the planes. m is kept for backward. The draw is a function of (seed, layer, epoch, sample,
   number of the value) [S2]: it belongs to the image and not to the rank that holds it. */
#ifdef DTI_DECLARE
/* of a value to become zero, 0 <= p < 1 */
DT_API void dt_dropout(dt_net *net, float probability);
/* of a whole (image, channel) plane */
DT_API void dt_dropout2d(dt_net *net, float probability);
#endif

#ifdef DTI_IMPLEMENT
typedef struct dti_dropout {
    float probability;
    size_t plane;            /* values that share an m */
} dti_dropout;

static dt_err dti_dropout_shape(dti_layer *l, const void *probability) {
    dti_dropout *d = l->own;
    *d = (dti_dropout){ *(const float *)probability, 1 };
    if (d->probability >= 0.0f && d->probability < 1.0f) return DT_OK;
    return dt_fail(DT_EARG, "%s: probability %g; needs 0 <= p < 1", l->name,
                   (double)d->probability);
}

static dt_err dti_dropout2d_shape(dti_layer *l, const void *probability) {
    DT_TRY(dti_dropout_shape(l, probability));
    ((dti_dropout *)l->own)->plane = (size_t)l->in[1] * (size_t)l->in[2];
    return DT_OK;
}

static size_t dti_dropout_planes(const dti_op *op) {
    return dti_volume(op->in) / ((const dti_dropout *)op->layer->own)->plane;
}

static void dti_dropout_needs(dti_op *op) {
    op->notes_bytes = dti_dropout_planes(op) * DT_LANES * sizeof(float);
}

/* m of a lane group, four draws from one block of Philox; lanes side by side. */
static void dti_dropout_draw(const dti_op *op, const dti_pass *run, int g) {
    float *mask = (float *)(void *)dti_notes_of(op, g);
    const float p = ((const dti_dropout *)op->layer->own)->probability, keep = 1.0f / (1.0f - p);
    const uint32_t *sample = run->sample + (size_t)g * DT_LANES,
                   purpose = DT_RNG_DROPOUT | op->layer->stream << 8;
    const size_t count = dti_dropout_planes(op);
    for (size_t i = 0; i < count; i += 4) {
        uint32_t bits[4][DT_LANES];
        dti_philox_lanes(bits, run->seed, purpose, run->epoch, sample, (uint32_t)(i / 4));
        for (size_t k = 0; k < 4 && i + k < count; ++k)
            for (size_t lane = 0; lane < DT_LANES; ++lane)
                mask[(i + k) * DT_LANES + lane] = dt_uniform(bits[k][lane]) < p ? 0.0f : keep;
    }
}

/* to = from * m, both ways: y = x*m forward, dx = dy*m backward; `to` may be `from`. */
static void dti_dropout_apply(const dti_op *op, const dti_pass *run, int g, const float *from,
                              float *to) {
    const float *restrict mask = (const float *)(const void *)dti_notes_of(op, g);
    const size_t plane = ((const dti_dropout *)op->layer->own)->plane,
                 planes = dti_dropout_planes(op);
    if (to != from) memcpy(to, from, dti_group_floats(op->out) * sizeof *to);
    for (size_t c = 0; c < planes && run->training; ++c) {
        /* restrict: m stays in a register for the whole plane */
        const float *restrict m = mask + c * DT_LANES;
        float *restrict v = to + c * plane * DT_LANES;
        for (size_t i = 0; i < plane; ++i)
            for (size_t lane = 0; lane < DT_LANES; ++lane) v[i * DT_LANES + lane] *= m[lane];
    }
}

static void dti_dropout_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    for (int g = first; g < first + groups; ++g) {
        if (run->training) dti_dropout_draw(op, run, g);
        dti_dropout_apply(op, run, g, dti_x(op, g), dti_y(op, g));
    }
}

/* y = x*m  =>  dx = dy*m */
static void dti_dropout_backward(const dti_op *op, const dti_pass *run, int g) {
    if (dti_dx(op, g)) dti_dropout_apply(op, run, g, dti_dy(op, g), dti_dx(op, g));
}

static const dti_layer_class dti_dropout_class = {
    .name = "dropout", .own = sizeof(dti_dropout), .said = sizeof(float),
    .shape = dti_dropout_shape,
    .needs = dti_dropout_needs, .in_place = true, .keeps_sign = true,
    .forward = dti_dropout_forward, .backward = dti_dropout_backward
},
    dti_dropout2d_class = {
        .name = "dropout2d", .own = sizeof(dti_dropout), .said = sizeof(float),
        .shape = dti_dropout2d_shape,
        .needs = dti_dropout_needs, .in_place = true, .keeps_sign = true,
        .forward = dti_dropout_forward, .backward = dti_dropout_backward
    };

DT_API void dt_dropout(dt_net *net, float probability) {
    dti_append(net, &dti_dropout_class, NULL, &probability, -1);
}
DT_API void dt_dropout2d(dt_net *net, float probability) {
    dti_append(net, &dti_dropout2d_class, NULL, &probability, -1);
}
#endif

/* ==== [S6.6] Linear =======================================================

   y[n,o] = b[o] + sum_i x[n,i] * w[o,i]; (C,H,W) is flattened to I = C*H*W inputs, [S5.2].
   Parameters: name.weight (O,I), name.bias (O), both from U(-1/sqrt(I), +1/sqrt(I)).

   Each weight is used once an image, where a convolution's is used at every place: to read the
   weights takes longer than to multiply with them. So this layer asks for all lane groups at once;
   a weight that is in a register then serves several groups. 320 inputs and 50 outputs are 16000
   weights, 64 KB, more than a first-level cache: of 8 groups each alone would read them all. */
#ifdef DTI_DECLARE
/* x (N,C,H,W) -> y (N,out,1,1); out 1..2^20, a name that no other layer has. 2*N*I*out flop
   forward, twice that backward. */
DT_API void dt_linear(dt_net *net, const char *name, int out);
#endif

#ifdef DTI_IMPLEMENT
/* The shape (C,H,W) is forgotten: I = C*H*W inputs, and the output is a map of one place. */
static dt_err dti_fc_shape(dti_layer *l, const void *out) {
    const int O = *(const int *)out, I = dti_inputs(l);
    if (O < 1 || O > 1 << 20)
        return dt_fail(DT_EARG, "linear \"%s\": %d outputs; needs 1..%d", l->name, O, 1 << 20);
    l->out[0] = O;
    l->out[1] = l->out[2] = 1;
    const float bound = 1.0f / sqrtf((float)I);
    dti_parameter(l, "weight", (dt_tensor){ NULL, 2, { O, I, 0, 0 } }, bound);
    dti_parameter(l, "bias", (dt_tensor){ NULL, 1, { O, 0, 0, 0 } }, bound);
    return DT_OK;
}

static void dti_fc_needs(dti_op *op) {
    op->packed_floats = dti_linear_packed_floats(dti_inputs(op->layer), op->out[0]);
}

static double dti_fc_macs(const dti_layer *l) { return (double)l->out[0] * dti_inputs(l); }

static void dti_fc_pack(const dti_op *op, const float *values) {
    dti_linear_pack(dti_inputs(op->layer), op->out[0], values + op->layer->slot[0].offset,
                    op->packed);
}

static void dti_fc_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    dti_linear_forward(dti_inputs(op->layer), op->out[0], groups, dti_x(op, first), op->x.stride,
                       op->packed, dti_bias(op->layer, run->values), dti_y(op, first),
                       op->y.stride);
}

/* y[o] += x[i]*w[o,i]  =>  dw[o,i] += x[i]*dy[o],  dx[i] += w[o,i]*dy[o]
   y[o] += b[o]         =>  db[o] += dy[o] */
static void dti_fc_backward(const dti_op *op, const dti_pass *run, int g) {
    dti_linear_backward_weights(dti_inputs(op->layer), op->out[0], dti_x(op, g), dti_dy(op, g),
                                run->group_grad, dti_bias_grad(op->layer, run->group_grad));
}

static void dti_fc_backward_data(const dti_op *op, const dti_pass *run, int first, int groups) {
    (void)run;
    dti_linear_backward_data(dti_inputs(op->layer), op->out[0], groups, dti_dy(op, first),
                             op->dy.stride, op->packed, dti_dx(op, first), dti_dx_lanes(op).stride);
}

static const dti_layer_class dti_fc_class = {
    .name = "linear", .shape = dti_fc_shape, .needs = dti_fc_needs, .reads = DTI_READS_X,
    .whole_batch = true, .macs = dti_fc_macs, .pack = dti_fc_pack, .forward = dti_fc_forward,
    .backward = dti_fc_backward, .backward_data = dti_fc_backward_data
};

DT_API void dt_linear(dt_net *net, const char *name, int out) {
    dti_append(net, &dti_fc_class, name ? name : "", &out, -1);
}
#endif

/* ==== [S6.7] Adding an earlier tensor =====================================

   y = x + x2, what makes a residual block (He, Zhang, Ren, Sun 2016): x is what stands here, x2
   an earlier tensor of the same shape. The layers between x2 and x then need only learn what is
   to be added to x2; and dy reaches x2 directly, past all of them, so that a deep net's first
   layers hear of the loss as loudly as its last.

   dy goes to both. x2 has another reader, the first layer of the block: so its gradient is the
   sum of two, and the planner says who of them writes and who adds [S8.3]. */
#ifdef DTI_DECLARE
/* what stands here, plus the tensor that dt_here gave; DT_ESHAPE if their shapes differ, DT_EARG if
   there is no such tensor. N*C*H*W additions. */
DT_API void dt_add(dt_net *net, dt_node node);
#endif

#ifdef DTI_IMPLEMENT
static dt_err dti_add_shape(dti_layer *l, const void *other) {
    const int *in = l->in, *shape = other;
    if (memcmp(in, shape, sizeof l->in) == 0) return DT_OK;
    return dt_fail(DT_ESHAPE,
                   "add: what stands here is %d x %d x %d, the other tensor %d x %d x %d", in[0],
                   in[1], in[2], shape[0], shape[1], shape[2]);
}

/* y may be x: then x2 is added to it where it lies. */
static void dti_add_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    const size_t n = dti_group_floats(op->out);
    (void)run;
    for (int g = first; g < first + groups; ++g) {
        const float *x = dti_x(op, g), *x2 = dti_lanes_of(op->x2, g);
        float *y = dti_y(op, g);
        for (size_t i = 0; i < n; ++i) y[i] = x[i] + x2[i];
    }
}

/* y = x + x2  =>  dx += dy,  dx2 += dy */
static void dti_add_to(float *dx, const float *dy, size_t n, bool add) {
    if (!dx || dx == dy) return;
    if (!add) memcpy(dx, dy, n * sizeof *dx);
    else for (size_t i = 0; i < n; ++i) dx[i] += dy[i];
}

static void dti_add_backward(const dti_op *op, const dti_pass *run, int g) {
    const size_t n = dti_group_floats(op->out);
    (void)run;
    dti_add_to(dti_lanes_of(op->dx2, g), dti_dy(op, g), n, op->add_dx2);
    dti_add_to(dti_dx(op, g), dti_dy(op, g), n, op->add_dx);
}

static const dti_layer_class dti_add_class = {
    .name = "add", .shape = dti_add_shape, .in_place = true, .adds = true,
    .forward = dti_add_forward, .backward = dti_add_backward
};

/* The builder alone knows both shapes, so it hands the other one to dti_add_shape. */
DT_API void dt_add(dt_net *net, dt_node node) {
    dti_list *list = dti_list_of(net);
    if (!list || list->error != DT_OK) return;
    if (node.tensor < 0 || node.tensor > list->layers)
        dti_list_fail(list, dt_fail(DT_EARG, "add: there is no tensor %d; the net has 0..%d",
                                    node.tensor, list->layers));
    else dti_append(net, &dti_add_class, NULL, dti_tensor_shape(list, node.tensor), node.tensor);
}
#endif

/* ==== [S6.8] Average pooling ============================================== */

/* y[n,c,i,j] = (sum of the K x K window at i*K-p, j*K-p) / (K*K): windows side by side, as those of
   max-pool. Outside of the map there are zeros, and they count: at a padded edge the mean is
   smaller. What is left of the map behind the last whole window is not read (floor).

   Max-pool must note where each maximum was. The mean is the same sum wherever its terms lie, so
   backward needs nothing of forward: every place of a window gets the same K*K-th part of dy. */
#ifdef DTI_DECLARE
typedef struct dt_avgpool2d_desc {
    int kernel;              /* K, 1..65536 */
    int padding;             /* zeros around the map, 0..K/2 */
    bool global;             /* one window over the whole map instead: kernel and padding 0 */
} dt_avgpool2d_desc;

/* x (N,C,H,W) -> y (N,C,P,Q), P = (H+2p)/K, Q likewise from W; N*C*H*W additions */
DT_API void dt_avgpool2d(dt_net *net, const dt_avgpool2d_desc *desc);
#endif

#ifdef DTI_IMPLEMENT
typedef struct dti_avgpool2d { int rows, columns, pad; } dti_avgpool2d; /* of a window */

/* A global one is a window of the size of the map. */
static dt_err dti_avgpool2d_shape(dti_layer *l, const void *description) {
    const dt_avgpool2d_desc *d = description;
    dti_avgpool2d *a = l->own;
    if (!d) return dt_fail(DT_EARG, "avgpool2d: desc must not be NULL");
    const int K = d->kernel, p = d->padding;
    if (d->global ? K != 0 || p != 0 : K < 1 || K > 65536 || p < 0 || p > K / 2)
        return dt_fail(DT_EARG, "avgpool2d: kernel %d, padding %d; needs 1..65536 and 0..kernel/2, "
                       "or 0 and 0 where it is global", K, p);
    *a = d->global ? (dti_avgpool2d){ l->in[1], l->in[2], 0 } : (dti_avgpool2d){ K, K, p };
    l->out[1] = (l->in[1] + 2 * p) / a->rows;
    l->out[2] = (l->in[2] + 2 * p) / a->columns;
    if (l->out[1] < 1 || l->out[2] < 1)
        return dt_fail(DT_ESHAPE, "avgpool2d: kernel %d is larger than the %d x %d input with "
                       "padding %d", K, l->in[1], l->in[2], p);
    return DT_OK;
}

/* What of window i lies in a map of so many rows (or columns): [from, to). Windows of 3 with one
   place of padding over 5 rows: -1..1 is [0, 2), 2..4 is [2, 5). */
static void dti_window(int i, int size, int pad, int map, int *from, int *to) {
    const int begin = i * size - pad, end = begin + size;
    *from = begin > 0 ? begin : 0;
    *to = end < map ? end : map;
}

/* One output's sixteen lanes: the sum over its window, added up row by row. */
static void dti_window_mean(const float *x, int columns, const int rows[2], const int cols[2],
                            float part, float *y) {
    float sum[DT_LANES] = { 0 };
    for (int u = rows[0]; u < rows[1]; ++u)
        for (int v = cols[0]; v < cols[1]; ++v)
            for (int l = 0; l < DT_LANES; ++l)
                sum[l] += x[((size_t)u * (size_t)columns + (size_t)v) * DT_LANES + (size_t)l];
    for (int l = 0; l < DT_LANES; ++l) y[l] = sum[l] * part;
}

/* y = sum of x / K*K  =>  dx = dy / K*K, the same at each place of the window. */
static void dti_window_spread(const float *dy, int columns, const int rows[2], const int cols[2],
                              float part, float *dx) {
    for (int u = rows[0]; u < rows[1]; ++u)
        for (int v = cols[0]; v < cols[1]; ++v)
            for (int l = 0; l < DT_LANES; ++l)
                dx[((size_t)u * (size_t)columns + (size_t)v) * DT_LANES + (size_t)l] =
                    dy[l] * part;
}

/* Group by group, channel by channel, window by window; y is written from front to back. */
static void dti_avgpool2d_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    const dti_avgpool2d *a = op->layer->own;
    const int H = op->in[1], W = op->in[2];
    const float part = 1.0f / ((float)a->rows * (float)a->columns);
    (void)run;
    for (int g = first; g < first + groups; ++g) {
        float *y = dti_y(op, g);
        for (int c = 0; c < op->in[0]; ++c) {
            const float *x = dti_x(op, g) + (size_t)c * (size_t)H * (size_t)W * DT_LANES;
            for (int i = 0, rows[2]; i < op->out[1]; ++i) {
                dti_window(i, a->rows, a->pad, H, &rows[0], &rows[1]);
                for (int j = 0, cols[2]; j < op->out[2]; ++j, y += DT_LANES) {
                    dti_window(j, a->columns, a->pad, W, &cols[0], &cols[1]);
                    dti_window_mean(x, W, rows, cols, part, y);
                }
            }
        }
    }
}

/* Likewise; windows do not overlap, so each writes its places, and where none lies dx is 0. */
static void dti_avgpool2d_backward(const dti_op *op, const dti_pass *run, int g) {
    const dti_avgpool2d *a = op->layer->own;
    const int H = op->in[1], W = op->in[2];
    const float part = 1.0f / ((float)a->rows * (float)a->columns), *dy = dti_dy(op, g);
    float *dx = dti_dx(op, g);
    (void)run;
    if (!dx) return;
    memset(dx, 0, dti_group_floats(op->in) * sizeof *dx);
    for (int c = 0; c < op->in[0]; ++c, dx += (size_t)H * (size_t)W * DT_LANES)
        for (int i = 0, rows[2]; i < op->out[1]; ++i) {
            dti_window(i, a->rows, a->pad, H, &rows[0], &rows[1]);
            for (int j = 0, cols[2]; j < op->out[2]; ++j, dy += DT_LANES) {
                dti_window(j, a->columns, a->pad, W, &cols[0], &cols[1]);
                dti_window_spread(dy, W, rows, cols, part, dx);
            }
        }
}

static const dti_layer_class dti_avgpool2d_class = {
    .name = "avgpool2d", .own = sizeof(dti_avgpool2d), .said = sizeof(dti_avgpool2d),
    .shape = dti_avgpool2d_shape,
    .forward = dti_avgpool2d_forward, .backward = dti_avgpool2d_backward
};

DT_API void dt_avgpool2d(dt_net *net, const dt_avgpool2d_desc *desc) {
    dti_append(net, &dti_avgpool2d_class, NULL, desc, -1);
}
#endif

/* ==== [S6.9] Sigmoid ====================================================== */

/* y = 1 / (1 + exp(-x)): any number becomes one between 0 and 1. Its derivative can be told from y
   alone, y * (1 - y), so that x need not be kept.

   exp is our own, because the C library's has other last bits on every system. Write x = n ln 2 + r
   with a whole n and |r| <= ln 2 / 2; then exp(x) = 2^n exp(r), where exp(r) is a polynomial of
   degree 7 and 2^n is made by adding n to the exponent's bits. exp(10): n = 14, r = 0.296, and
   16384 * 1.3444 = 22026. Plain arithmetic: sixteen lanes go through it side by side.

   n is found without a conversion. Floats from 2^23 on are whole numbers, so x/ln 2 + 1.5*2^23 is
   rounded to one, which stands in its low bits; to take 1.5*2^23 off again leaves n as a float. */
#ifdef DTI_DECLARE
/* x -> y of the same shape, each in 0..1; relative error at most 4e-7, the same bits on every
   machine that fuses multiply and add */
DT_API void dt_sigmoid(dt_net *net);
#endif

#ifdef DTI_IMPLEMENT
#if defined(__FMA__) || defined(__aarch64__) || defined(__ARM_FEATURE_FMA)
DTI_INLINE float dti_fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
DTI_INLINE float dti_fmaf(float a, float b, float c) { return a * b + c; }
#endif

/* exp(x), a relative error of at most 2.5e-7 for -87 <= x <= 88; beyond, the value at that end. */
DTI_INLINE float dti_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x; /* both leave a NaN as it is */
    const float magic = 0x1.8p23f;
    float shifted = dti_fmaf(x, 0x1.715476p0f, magic), n = shifted - magic;
    float r = dti_fmaf(n, -0x1.62e400p-1f, x);
    r = dti_fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.a01a02p-13f;
    p = dti_fmaf(p, r, 0x1.6c16c2p-10f);
    p = dti_fmaf(p, r, 0x1.111112p-7f);
    p = dti_fmaf(p, r, 0x1.555556p-5f);
    p = dti_fmaf(p, r, 0x1.555556p-3f);
    p = dti_fmaf(p, r, 0.5f);
    p = dti_fmaf(p, r, 1.0f);
    p = dti_fmaf(p, r, 1.0f);
    uint32_t bits, exponent;
    memcpy(&bits, &p, 4);
    memcpy(&exponent, &shifted, 4);
    bits += exponent << 23; /* the low bits of shifted hold n */
    memcpy(&p, &bits, 4);
    return p;
}

/* exp of a number that is not positive: never too large, and where x is large against 0 the
   quotient is 1 - or, from the other side, a small number with all of its digits. */
DTI_INLINE float dti_logistic(float x) {
    const float e = dti_exp(-fabsf(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

static void dti_sigmoid_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    (void)run;
    dti_each_forward(dti_logistic, op, first, groups);
}

/* y = 1/(1+exp(-x))  =>  dy/dx = exp(-x)/(1+exp(-x))^2 = y*(1-y) */
DTI_INLINE float dti_logistic_slope(float y) { return y * (1.0f - y); }
static void dti_sigmoid_backward(const dti_op *op, const dti_pass *run, int g) {
    (void)run;
    dti_each_backward(dti_logistic_slope, op, g);
}

static const dti_layer_class dti_sigmoid_class = {
    .name = "sigmoid", .reads = DTI_READS_Y, .in_place = true,
    .forward = dti_sigmoid_forward, .backward = dti_sigmoid_backward
};

DT_API void dt_sigmoid(dt_net *net) { dti_append(net, &dti_sigmoid_class, NULL, NULL, -1); }
#endif

/* ==== [S6.10] Tanh ======================================================== */

/* y = tanh(x): as sigmoid [S6.9], between -1 and 1 and 0 at 0; tanh(x) = 2 sigmoid(2x) - 1. Near
   0 that difference loses the digits of a small x: for x = 0.0001 sigmoid(2x) is 0.50005, a
   float next to which the others are 6e-8 away, so that three digits of tanh(x) would be right.
   So there the odd polynomial of Moshier's Cephes library, x + x^3 P(x^2), takes over: both are
   computed, and one is taken, without a branch. */
#ifdef DTI_DECLARE
/* x -> y of the same shape, each in -1..1 */
DT_API void dt_tanh(dt_net *net);
#endif

#ifdef DTI_IMPLEMENT
/* A relative error of at most 4e-7. */
DTI_INLINE float dti_tanh(float x) {
    const float e = dti_exp(-2.0f * fabsf(x)), far = (1.0f - e) / (1.0f + e), z = x * x;
    float p = -5.70498872745e-3f;
    p = dti_fmaf(p, z, 2.06390887954e-2f);
    p = dti_fmaf(p, z, -5.37397155531e-2f);
    p = dti_fmaf(p, z, 1.33314422036e-1f);
    p = dti_fmaf(p, z, -3.33332819422e-1f);
    const float near = dti_fmaf(p * z, x, x);
    return z < 0.390625f ? near : x < 0.0f ? -far : far; /* |x| < 0.625 */
}

static void dti_tanh_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    (void)run;
    dti_each_forward(dti_tanh, op, first, groups);
}

/* y = tanh(x)  =>  dy/dx = 1 - y^2 */
DTI_INLINE float dti_tanh_slope(float y) { return 1.0f - y * y; }
static void dti_tanh_backward(const dti_op *op, const dti_pass *run, int g) {
    (void)run;
    dti_each_backward(dti_tanh_slope, op, g);
}

static const dti_layer_class dti_tanh_class = {
    .name = "tanh", .reads = DTI_READS_Y, .in_place = true, .keeps_sign = true,
    .forward = dti_tanh_forward, .backward = dti_tanh_backward
};

DT_API void dt_tanh(dt_net *net) { dti_append(net, &dti_tanh_class, NULL, NULL, -1); }
#endif

/* ==== [S6.11] Batch norm ================================================== */

/* Batch norm (Ioffe, Szegedy 2015) gives every channel of a map the mean beta and the standard
   deviation gamma, whatever the layers before it do:

     mu = mean of the channel's numbers      var = mean of (x - mu)^2
     h = (x - mu) / sqrt(var + eps)          y = gamma * h + beta

   The means go over all places of the map and over several images, so images that were strangers in
   every other layer meet here. Which images these are is a choice:

     the batch    all images of the step, on all ranks, as if one rank held them: the same answer
                  for every number of ranks, at the price of two sums over the ranks in forward and
                  one in backward
     the rank     those that this rank holds: no sums over ranks, and an answer that depends on them
     the group    the sixteen of a lane group ("ghost" batch norm: Hoffer, Hubara, Soudry 2017):
                  no sums over ranks, and the same answer for every number of them

   When the net is used there is no batch to look at. Then mu and var are running values, which each
   step moves a little towards the batch's own: running = (1 - momentum) * running + momentum *
   batch, for var with the unbiased n/(n-1) * var. Groups and ranks have several means: their mean
   is taken; of the groups' and ranks' variances likewise. They ride behind the gradient in its
   message, and the step that the optimizer takes moves the running values, so a rank's copy is
   every rank's.

   Parameters: name.weight (gamma, C, from 1), name.bias (beta, C, from 0), and, saved but not
   trained, name.running_mean (C, from 0), name.running_var (C, from 1). Names and numbers are
   PyTorch's.

   With eps left out: a channel with the numbers 1 3 5 7 has mu = 4, var = (9+1+1+9)/4 = 5, and
   h = -1.34 -0.45 0.45 1.34; the running variance moves towards 5 * 4/3 = 6.67.

   In training a channel needs two numbers to have a spread. A batch, rank or lane group of one
   image on a 1 x 1 map is refused: DT_ESHAPE, by trainers before they begin, else by dt_forward. */
#ifdef DTI_DECLARE
typedef enum dt_statistics {
    DT_STATISTICS_BATCH, /* 0: the global batch */
    DT_STATISTICS_RANK,
    DT_STATISTICS_GROUP,
    DT_STATISTICS_KINDS
} dt_statistics;

typedef struct dt_batchnorm2d_desc {
    float eps;               /* above 0 */
    float momentum;          /* 0..1, of the running values */
    dt_statistics over;      /* which images have a mean together */
} dt_batchnorm2d_desc;

#define DT_BATCHNORM2D_DEFAULTS .eps = 1e-5f, .momentum = 0.1f

/* desc NULL: DT_BATCHNORM2D_DEFAULTS, over the batch. Over the batch, several ranks need
   dt_share_statistics [S11.1], which dt_train_sync does by itself; without, it is over the rank. */
DT_API void dt_batchnorm2d(dt_net *net, const char *name, const dt_batchnorm2d_desc *desc);
#endif

#ifdef DTI_IMPLEMENT
typedef struct dti_batchnorm {
    float eps;
    dti_scope scope;
} dti_batchnorm;

enum { DTI_BN_WEIGHT, DTI_BN_BIAS, DTI_BN_MEAN, DTI_BN_VAR }; /* its slots */

/* Two numbers a channel that are trained, two that follow. */
static dt_err dti_batchnorm_shape(dti_layer *l, const void *desc) {
    static const dti_scope scopes[] = { DTI_OVER_BATCH, DTI_OVER_RANK, DTI_OVER_GROUP };
    static const dt_batchnorm2d_desc defaults = { DT_BATCHNORM2D_DEFAULTS };
    const dt_batchnorm2d_desc *d = desc ? desc : &defaults;
    if (!(d->eps > 0.0f && d->eps <= FLT_MAX && d->momentum >= 0.0f && d->momentum <= 1.0f))
        return dt_fail(DT_EARG, "batchnorm2d \"%s\": eps %g, momentum %g; needs eps > 0, "
                       "momentum 0..1",
                       l->name, (double)d->eps, (double)d->momentum);
    DT_TRY(dti_check_enum("batchnorm2d", "kind of statistics", d->over, DT_STATISTICS_KINDS));
    const dt_tensor channels = { NULL, 1, { l->in[0] } };
    *(dti_batchnorm *)l->own = (dti_batchnorm){ d->eps, scopes[d->over] };
    dti_parameter(l, "weight", channels, 0.0f)->value = 1.0f;
    dti_parameter(l, "bias", channels, 0.0f);
    dti_statistic(l, "running_mean", channels, 0.0f, d->momentum);
    dti_statistic(l, "running_var", channels, 1.0f, d->momentum);
    return DT_OK;
}

/* What forward finds out of a channel, for backward too: h = ((x - near) - rest) * scale. The mean
   is near + rest, two floats: with a mean of 10000 and a spread of 1, the nearest float alone would
   be 0.0005 away from it. */
typedef struct dti_channel { float near, rest, scale; } dti_channel;

/* Notes: a dti_channel for each channel. Sums: two a channel, and in front of them a count of
   numbers that are not finite. */
static void dti_batchnorm_needs(dti_op *op) {
    const dti_batchnorm *l = op->layer->own;
    op->scope = l->scope;
    op->whole_batch = l->scope != DTI_OVER_GROUP;
    op->fewest = op->in[1] * op->in[2] == 1 ? 2 : 1;
    op->notes_bytes = (size_t)op->in[0] * sizeof(dti_channel);
    op->sums = op->whole_batch ? 1 + 2 * DTI_WIDE * (size_t)op->in[0] : 0;
}

/* The channels as lane group g sees them: its own, or those of all groups, with the first one's
   notes. */
static dti_channel *dti_channels_of(const dti_op *op, int g) {
    return (dti_channel *)(void *)dti_notes_of(op, op->scope == DTI_OVER_GROUP ? g : 0);
}

/* Lanes of a group that hold an image: the others are computed like them, and counted nowhere. */
static int dti_lanes_in(const dti_pass *run, int g) {
    return (int)dti_min_u32(DT_LANES, run->images - (uint32_t)g * DT_LANES);
}

/* ---- One channel of one lane group, a plane of n places in sixteen lanes.

   Its sums come together in three levels, of which the first is cheap and the others exact enough:
   eight places in a float, lane by lane; those, in a double; the lanes, one after the other. */
enum { DTI_BN_PLACES = 8 };

static double dti_lanes_total(const double sum[DT_LANES], int lanes) {
    double total = 0.0;
    for (int l = 0; l < lanes; ++l) total += sum[l];
    return total;
}

/* The sum of a plane's numbers in the lanes that hold an image. */
static double dti_plane_sum(const float *restrict x, size_t n, int lanes) {
    double sum[DT_LANES] = { 0.0 };
    for (size_t from = 0; from < n; from += DTI_BN_PLACES) {
        float part[DT_LANES] = { 0.0f };
        for (size_t i = from; i < n && i < from + DTI_BN_PLACES; ++i)
            for (size_t l = 0; l < DT_LANES; ++l) part[l] += x[i * DT_LANES + l];
        for (size_t l = 0; l < DT_LANES; ++l) sum[l] += (double)part[l];
    }
    return dti_lanes_total(sum, lanes);
}

/* sums of a and of a*d, with d = x - near; a is dy, or, where that is NULL, d itself */
typedef struct dti_two_sums { double a, ad; } dti_two_sums;

static dti_two_sums dti_plane_products(const float *restrict x, const float *restrict dy,
                                       float near, size_t n, int lanes) {
    double sum[DT_LANES] = { 0.0 }, product[DT_LANES] = { 0.0 };
    for (size_t from = 0; from < n; from += DTI_BN_PLACES) {
        float part[DT_LANES] = { 0.0f }, more[DT_LANES] = { 0.0f };
        for (size_t i = from; i < n && i < from + DTI_BN_PLACES; ++i)
            for (size_t l = 0; l < DT_LANES; ++l) {
                const float d = x[i * DT_LANES + l] - near, a = dy ? dy[i * DT_LANES + l] : d;
                part[l] += a;
                more[l] += a * d;
            }
        for (size_t l = 0; l < DT_LANES; ++l) {
            sum[l] += (double)part[l];
            product[l] += (double)more[l];
        }
    }
    return (dti_two_sums) { dti_lanes_total(sum, lanes), dti_lanes_total(product, lanes) };
}

/* ---- Sums over lane groups and ranks: wide ones [S3.3], so that neither order nor ranks matter.
   A number that is not finite cannot be added; it is counted in wide[0] instead, which travels with
   the sums, so that all ranks hear of it. */
static int64_t *dti_wide_of(const dti_op *op, int i) { return op->wide + 1 + i * DTI_WIDE; }

static void dti_wide_put(const dti_op *op, int i, double x) {
    if (!dti_wide_add(dti_wide_of(op, i), x)) ++*op->wide;
}

/* The first `sums` of them become the whole batch's; false if the pass has failed. */
static bool dti_wide_meet(const dti_op *op, const dti_pass *run, int sums) {
    if (op->scope == DTI_OVER_BATCH && run->sum && *run->error == DT_OK)
        dti_pass_fails(run, run->sum(run->sum_user, op->wide, 1 + (size_t)sums * DTI_WIDE));
    if (*op->wide && *run->error == DT_OK)
        dti_pass_fails(run, dt_fail(DT_ENUMERIC,
                                    "batchnorm2d \"%s\": a number that it reads is not finite",
                                    op->layer->name));
    return *run->error == DT_OK;
}

static void dti_wide_clear(const dti_op *op) { memset(op->wide, 0, op->sums * sizeof *op->wide); }

/* Numbers that a channel's mean is taken over, where it is not over a lane group. */
static double dti_batchnorm_count(const dti_op *op, const dti_pass *run) {
    const bool meets = op->scope == DTI_OVER_BATCH && run->sum;
    return (double)(meets ? run->global_images : run->images) * op->in[1] * op->in[2];
}

/* ---- Forward.

   mean(x^2) - mean(x)^2 would need one pass over the numbers, and would lose them: with a mean of
   10000 and a spread of 1 both terms are 1e8, and a float has seven digits. So there are two
   passes: the mean; then, with d = x - near, the means of d and d^2. near, the first pass's mean
   rounded to a float, is so close that the d are as small as the spread; and what it misses is the
   mean of the d (Chan, Golub, LeVeque 1983):

       mu = near + mean(d)       var = mean(d^2) - mean(d)^2, the second term next to nothing */

/* A share of what the running value of channel c follows. A float, whose sum over equal ranks is
   exact. */
static void dti_batchnorm_share(const dti_op *op, const dti_pass *run, int slot, int c,
                                double value) {
    const size_t at = op->layer->slot[slot].offset + (size_t)c - run->trained;
    if (!dti_wide_add(run->shares + at * DTI_WIDE, (double)(float)value))
        dti_pass_fails(run, dt_fail(DT_ENUMERIC, "batchnorm2d \"%s\": the %s of channel %d is %g",
                                    op->layer->name, slot == DTI_BN_MEAN ? "mean" : "variance", c,
                                    value));
}

/* of channel c, n numbers have the sums of d and d^2 */
static dti_channel dti_batchnorm_channel(const dti_op *op, const dti_pass *run, int c, float near,
                                         double n, dti_two_sums d) {
    const double rest = d.a / n, var = d.ad / n - rest * rest;
    const float eps = ((const dti_batchnorm *)op->layer->own)->eps;
    dti_batchnorm_share(op, run, DTI_BN_MEAN, c, (double)near + rest);
    dti_batchnorm_share(op, run, DTI_BN_VAR, c, var > 0.0 ? var * n / (n - 1.0) : var * 0.0);
    return (dti_channel) { near, (float)rest, (float)(1.0 / sqrt(fmax(var, 0.0) + (double)eps)) };
}

/* The channels of one lane group, from its own numbers alone. */
static void dti_batchnorm_over_group(const dti_op *op, const dti_pass *run, int g) {
    const size_t places = (size_t)op->in[1] * (size_t)op->in[2];
    const int lanes = dti_lanes_in(run, g);
    const double n = (double)places * lanes;
    for (int c = 0; c < op->in[0]; ++c) {
        const float *x = dti_x(op, g) + (size_t)c * places * DT_LANES;
        const float near = (float)(dti_plane_sum(x, places, lanes) / n);
        const dti_two_sums d = dti_plane_products(x, NULL, near, places, lanes);
        dti_channels_of(op, g)[c] = dti_batchnorm_channel(op, run, c, near, n, d);
    }
}

/* The same in two rounds of sums over all groups, on this rank or on all. */
static void dti_batchnorm_over_batch(const dti_op *op, const dti_pass *run, int first, int groups) {
    const size_t places = (size_t)op->in[1] * (size_t)op->in[2];
    const double n = dti_batchnorm_count(op, run);
    dti_channel *channel = dti_channels_of(op, 0);
    if (n == 0.0) return; /* no images, and nobody to meet */
    dti_wide_clear(op);
    for (int g = first; g < first + groups; ++g)
        for (int c = 0; c < op->in[0]; ++c)
            dti_wide_put(op, c, dti_plane_sum(dti_x(op, g) + (size_t)c * places * DT_LANES, places,
                                              dti_lanes_in(run, g)));
    if (!dti_wide_meet(op, run, op->in[0])) return;
    for (int c = 0; c < op->in[0]; ++c)
        channel[c].near = (float)(dti_wide_value(dti_wide_of(op, c)) / n);
    dti_wide_clear(op);
    for (int g = first; g < first + groups; ++g)
        for (int c = 0; c < op->in[0]; ++c) {
            const float *x = dti_x(op, g) + (size_t)c * places * DT_LANES;
            const dti_two_sums d =
                dti_plane_products(x, NULL, channel[c].near, places, dti_lanes_in(run, g));
            dti_wide_put(op, 2 * c, d.a);
            dti_wide_put(op, 2 * c + 1, d.ad);
        }
    if (!dti_wide_meet(op, run, 2 * op->in[0])) return;
    for (int c = 0; c < op->in[0]; ++c) {
        const dti_two_sums d = { dti_wide_value(dti_wide_of(op, 2 * c)),
                                 dti_wide_value(dti_wide_of(op, 2 * c + 1)) };
        channel[c] = dti_batchnorm_channel(op, run, c, channel[c].near, n, d);
    }
    dti_wide_clear(op);
}

/* When the net is used: the running values. */
static void dti_batchnorm_saved(const dti_op *op, const dti_pass *run, int g) {
    const dti_slot *slot = op->layer->slot;
    const double eps = (double)((const dti_batchnorm *)op->layer->own)->eps;
    const float *mean = run->values + slot[DTI_BN_MEAN].offset,
                *var = run->values + slot[DTI_BN_VAR].offset;
    for (int c = 0; c < op->in[0]; ++c)
        dti_channels_of(op, g)[c] =
            (dti_channel) { mean[c], 0.0f, (float)(1.0 / sqrt((double)var[c] + eps)) };
}

/* What the channels' means are, from whom the scope says; then one multiplication and one
   addition for each number. */
static void dti_batchnorm_forward(const dti_op *op, const dti_pass *run, int first, int groups) {
    const size_t plane = (size_t)op->in[1] * (size_t)op->in[2] * DT_LANES;
    const float *gamma = run->values + op->layer->slot[DTI_BN_WEIGHT].offset,
                *beta = run->values + op->layer->slot[DTI_BN_BIAS].offset;
    if (run->training && op->scope != DTI_OVER_GROUP)
        dti_batchnorm_over_batch(op, run, first, groups);
    for (int g = first; g < first + groups; ++g) {
        if (!run->training) dti_batchnorm_saved(op, run, g);
        else if (op->scope == DTI_OVER_GROUP) dti_batchnorm_over_group(op, run, g);
        for (int c = 0; c < op->in[0]; ++c) {
            /* y = gamma * h + beta = (x - near) * a + b */
            const dti_channel k = dti_channels_of(op, g)[c];
            const float a = gamma[c] * k.scale, b = beta[c] - k.rest * a, near = k.near;
            const float *restrict x = dti_x(op, g) + (size_t)c * plane;
            float *restrict y = dti_y(op, g) + (size_t)c * plane;
            for (size_t i = 0; i < plane; ++i) y[i] = (x[i] - near) * a + b;
        }
    }
}

/* ---- Backward.

   y = gamma * h + beta   =>  d gamma = sum of dy * h      d beta = sum of dy

   and h gets dh = gamma * dy. Now x acts in three ways: by itself, through mu, and through var. Let
   s = 1/sqrt(var + eps), so that h = (x - mu) * s; the sums go over the n numbers of a channel.

     by itself     h = (x - mu) * s           gives  s * dh
     through mu    each h falls by s when mu grows, and mu by 1/n when x does:
                                              gives  -s/n * sum of dh
     through s     var moves by 2 (x - mu)/n = 2 h/(s n) when x does; s by -s^3/2 when var does;
                   each h by x - mu = h/s when s does:
                   2 h/(s n) * (-s^3/2) * (sum of dh * h)/s
                                              gives  -s/n * h * sum of dh * h

   (That mu moves var as well adds nothing: the x - mu sum to 0.) Together

     dx = s * (dh - mean(dh) - h * mean(dh * h)) = gamma * s * (dy - mean(dy) - h * mean(dy * h))

   so what of dy is the same for all, or follows h, does not reach x: it would only move the mean
   and the spread, which batch norm sets anyway. The means are d beta / n and d gamma / n. With
   running values, which do not depend on x, only the first of the three ways is left: both means
   are 0.

   In an empty lane dy is 0 but dx would not be, and would enter the gradients of the layers before:
   it is cleared. */
static void dti_batchnorm_dx(const dti_op *op, const dti_pass *run, int g, int c, double mean_dy,
                             double mean_dyh) {
    const size_t places = (size_t)op->in[1] * (size_t)op->in[2], at = (size_t)c * places * DT_LANES;
    const dti_channel k = dti_channels_of(op, g)[c];
    const int lanes = dti_lanes_in(run, g);
    const float *restrict x = dti_x(op, g) + at, *restrict dy = dti_dy(op, g) + at;
    float *restrict dx = dti_dx(op, g) + at;
    /* h = ((x - near) - rest) * s, so dx = a * dy + b * (x - near) + add */
    const float gamma = run->values[op->layer->slot[DTI_BN_WEIGHT].offset + (size_t)c];
    const double s = (double)k.scale, gs = (double)gamma * s;
    const float near = k.near, a = (float)gs, b = (float)(-gs * s * mean_dyh),
                add = (float)(gs * (s * mean_dyh * (double)k.rest - mean_dy));
    for (size_t i = 0; i < places * DT_LANES; ++i) dx[i] = a * dy[i] + b * (x[i] - near) + add;
    for (size_t i = 0; i < places && lanes < DT_LANES; ++i)
        memset(dx + i * DT_LANES + lanes, 0, (size_t)(DT_LANES - lanes) * sizeof *dx);
}

/* d gamma and d beta of a lane group; and its dx, where that needs no other group. */
static void dti_batchnorm_backward(const dti_op *op, const dti_pass *run, int g) {
    const size_t places = (size_t)op->in[1] * (size_t)op->in[2];
    const int C = op->in[0], lanes = dti_lanes_in(run, g);
    const bool wanted = dti_dx(op, g) != NULL;
    const bool alone = op->scope == DTI_OVER_GROUP || !run->training;
    const double n = run->training ? (double)places * lanes : INFINITY; /* x/n = 0: no mean */
    for (int c = 0; c < C; ++c) {
        const float *x = dti_x(op, g) + (size_t)c * places * DT_LANES,
                    *dy = dti_dy(op, g) + (size_t)c * places * DT_LANES;
        const dti_channel k = dti_channels_of(op, g)[c];
        const dti_two_sums d = dti_plane_products(x, dy, k.near, places, lanes);
        const double dyh = (d.ad - (double)k.rest * d.a) * (double)k.scale;
        run->group_grad[c] = (float)dyh;
        run->group_grad[C + c] = (float)d.a;
        if (wanted && alone) dti_batchnorm_dx(op, run, g, c, d.a / n, dyh / n);
        if (!wanted || alone) continue;
        dti_wide_put(op, 2 * c, d.a);
        dti_wide_put(op, 2 * c + 1, dyh);
    }
}

/* dx of all groups, once the sums over all of them are known. */
static void dti_batchnorm_backward_data(const dti_op *op, const dti_pass *run, int first,
                                        int groups) {
    const double n = dti_batchnorm_count(op, run);
    if (op->scope == DTI_OVER_GROUP || !run->training || n == 0.0 ||
        !dti_wide_meet(op, run, 2 * op->in[0]))
        return;
    for (int c = 0; c < op->in[0]; ++c) {
        const double dy = dti_wide_value(dti_wide_of(op, 2 * c)),
                     dyh = dti_wide_value(dti_wide_of(op, 2 * c + 1));
        for (int g = first; g < first + groups; ++g)
            dti_batchnorm_dx(op, run, g, c, dy / n, dyh / n);
    }
    dti_wide_clear(op);
}

static const dti_layer_class dti_batchnorm_class = {
    .name = "batchnorm2d", .own = sizeof(dti_batchnorm), .said = sizeof(dti_batchnorm),
    .shape = dti_batchnorm_shape,
    .needs = dti_batchnorm_needs, .reads = DTI_READS_X, .forward = dti_batchnorm_forward,
    .backward = dti_batchnorm_backward, .backward_data = dti_batchnorm_backward_data,
    .counter = "num_batches_tracked"
};

DT_API void dt_batchnorm2d(dt_net *net, const char *name, const dt_batchnorm2d_desc *desc) {
    dti_append(net, &dti_batchnorm_class, name ? name : "", desc, -1);
}
#endif

/* ==== [S7] Losses ======================================================= */

/* ==== [S7.1] What a loss is =============================================== */

/* A loss says in one number how far a sample's K last outputs z[0..K-1], the logits, are from what
   was wanted of them: a label, or a row of K targets. Training makes its mean over the global batch
   small, and backward begins with its derivative by each logit. A loss is a subsection below,
   whole, and a row of the table behind them. */
#ifdef DTI_DECLARE
typedef enum dt_loss {
    DT_CROSS_ENTROPY,        /* one of K classes is right [S7.2] */
    DT_MEAN_SQUARED,         /* K numbers are wanted [S7.3] */
    DT_BINARY_CROSS_ENTROPY, /* K questions, each with yes or no [S7.4] */
    DT_LOSSES
} dt_loss;
/* "cross-entropy", "mean squared error", ...; "?" for none of them */
DT_API const char *dt_loss_name(dt_loss loss);
#endif

#ifdef DTI_IMPLEMENT
/* What is wanted of a lane group. Of lanes that hold no sample nothing is. */
typedef struct dti_wanted {
    int count;               /* lanes with a sample, the first ones */
    const int *label;        /* [16]; -1: the batch has none */
    const float *target;     /* [K][16]; NULL: the batch has none, or the loss wants labels */
} dti_wanted;

typedef struct dti_loss_class {
    const char *name;
    bool targets;            /* wants a target for each output, not a label */
    float low, high;         /* between these a target makes sense */
    /* z [K][16] -> logp [K][16], if the loss has a notion of probability; loss [16]: each sample's,
       0 where nothing is wanted */
    void (*forward)(int K, const float *z, const dti_wanted *w, float *logp, float *loss);
    bool probabilities;      /* forward writes logp */
    /* dz [K][16] = scale * d loss / d z, overwritten; 0 in lanes without a sample */
    void (*backward)(int K, const float *z, const float *logp, const dti_wanted *w, float scale,
                     float *dz);
    /* is that lane's sample right? Where nobody can say, false */
    bool (*right)(int K, const float *z, const dti_wanted *w, int lane);
} dti_loss_class;

/* A label is right if its logit is the largest; of equal ones the first counts. */
static bool dti_largest_is_label(int K, const float *z, const dti_wanted *w, int lane) {
    int best = 0;
    for (int k = 1; k < K; ++k)
        best = z[k * DT_LANES + lane] > z[best * DT_LANES + lane] ? k : best;
    return best == w->label[lane];
}
#endif

/* ==== [S7.2] Cross-entropy ================================================= */

/* One of K classes is right. The logits become probabilities, positive and of sum 1, by the softmax

     p[k] = exp(z[k]) / sum_j exp(z[j])          log p[k] = z[k] - log(sum_j exp(z[j]))

   and the loss is -log p[t] of the right class t. Why the logarithm: samples are independent, so
   what the net holds for probable of all of them together is a product; its logarithm is a sum over
   samples, whose mean a batch can estimate, and to make the product large is to make -log small. It
   is 0 where the net is sure and right, log K where it knows nothing, and grows without bound where
   it is sure and wrong.

   The derivative is the softmax minus one where the label is:

     loss     = log(sum_j exp(z[j])) - z[t]
     d/dz[k] of the first term  = exp(z[k]) / sum_j exp(z[j])  =  p[k]
     d/dz[k] of the second term = [k == t]
     d loss / d z[k]            = p[k] - [k == t]

   so each logit is pushed by exactly as much as its probability is off, and the pushes add up to 0.

   exp(z) overflows from z = 89 on, but only differences of logits count: the largest is taken off
   all of them first. */
#ifdef DTI_IMPLEMENT
/* logp [K][16] from logits [K][16]. */
static void dti_log_softmax(int classes, const float *z, float *logp) {
    float max[DT_LANES], sum[DT_LANES] = { 0 };
    for (int l = 0; l < DT_LANES; ++l) max[l] = z[l];
    for (int k = 1; k < classes; ++k)
        for (int l = 0; l < DT_LANES; ++l)
            max[l] = z[k * DT_LANES + l] > max[l] ? z[k * DT_LANES + l] : max[l];
    for (int k = 0; k < classes; ++k)
        for (int l = 0; l < DT_LANES; ++l) sum[l] += dti_exp(z[k * DT_LANES + l] - max[l]);
    for (int l = 0; l < DT_LANES; ++l) max[l] += logf(sum[l]);
    for (int k = 0; k < classes; ++k)
        for (int l = 0; l < DT_LANES; ++l) logp[k * DT_LANES + l] = z[k * DT_LANES + l] - max[l];
}

static void dti_cross_entropy_forward(int K, const float *z, const dti_wanted *w, float *logp,
                                      float *loss) {
    dti_log_softmax(K, z, logp);
    for (int l = 0; l < DT_LANES; ++l)
        loss[l] = w->label[l] >= 0 ? -logp[w->label[l] * DT_LANES + l] : 0.0f;
}

/* loss = -logp[t]  =>  dz[k] = exp(logp[k]) - [k == t] */
static void dti_cross_entropy_backward(int K, const float *z, const float *logp,
                                       const dti_wanted *w, float scale, float *dz) {
    (void)z;
    for (int k = 0; k < K; ++k)
        for (int l = 0; l < DT_LANES; ++l) {
            const float p = dti_exp(logp[k * DT_LANES + l]), one = k == w->label[l] ? 1.0f : 0.0f;
            dz[k * DT_LANES + l] = l < w->count ? (p - one) * scale : 0.0f;
        }
}
#endif

/* ==== [S7.3] Mean squared error =========================================== */

/* K numbers are wanted: loss = 1/K sum_k (z[k] - t[k])^2. Its derivative, 2/K (z[k] - t[k]), grows
   with the distance: one target far away from all others outweighs many near ones. Targets of about
   the size 1 train best; what one sample's loss may be ends at 2^20 (dt_forward).

   A label stands for the row of targets that is 1 at its class and 0 elsewhere; of a net with one
   output, for the number that it is. */
#ifdef DTI_IMPLEMENT
static void dti_mean_squared_forward(int K, const float *z, const dti_wanted *w, float *logp,
                                     float *loss) {
    float sum[DT_LANES] = { 0 };
    (void)logp;
    for (int i = 0; i < K * DT_LANES && w->target; ++i) {
        const float off = z[i] - w->target[i];
        sum[i % DT_LANES] += off * off;
    }
    for (int l = 0; l < DT_LANES; ++l) loss[l] = sum[l] / (float)K;
}

/* loss = 1/K sum (z-t)^2  =>  dz = 2/K (z-t) */
static void dti_mean_squared_backward(int K, const float *z, const float *logp,
                                      const dti_wanted *w, float scale, float *dz) {
    const float each = 2.0f * scale / (float)K;
    (void)logp;
    for (int i = 0; i < K * DT_LANES; ++i)
        dz[i] = i % DT_LANES < w->count ? (z[i] - w->target[i]) * each : 0.0f;
}

/* Of a number nobody can say that it is right, but of a class. */
static bool dti_mean_squared_right(int K, const float *z, const dti_wanted *w, int lane) {
    return K > 1 && dti_largest_is_label(K, z, w, lane);
}
#endif

/* ==== [S7.4] Binary cross-entropy ========================================= */

/* K questions, each with its own yes or no: p = sigmoid(z) [S6.9] is held for the probability of
   yes, and t, 0 or 1 or between, for what is wanted. The loss of a question is cross-entropy [S7.2]
   over its two answers, and a sample's the mean of its K:

     -t log p - (1-t) log(1-p)  =  max(z,0) - z t + log(1 + exp(-|z|))          dz = p - t

   The left side loses all digits, or divides by 0, once p has been rounded to 1; the right side,
   which is the same, does not: its exp never sees a positive number. log p itself is
   min(z,0) - log(1 + exp(-|z|)). Labels stand for targets as in [S7.3]. */
#ifdef DTI_IMPLEMENT
/* The right side of the formula above; z - below is max(z,0). */
static void dti_binary_forward(int K, const float *z, const dti_wanted *w, float *logp,
                               float *loss) {
    float sum[DT_LANES] = { 0 };
    for (int i = 0; i < K * DT_LANES; ++i) {
        const float below = z[i] < 0.0f ? z[i] : 0.0f, rest = log1pf(dti_exp(-fabsf(z[i])));
        logp[i] = below - rest;
        if (w->target) sum[i % DT_LANES] += (z[i] - below) - z[i] * w->target[i] + rest;
    }
    for (int l = 0; l < DT_LANES; ++l) loss[l] = sum[l] / (float)K;
}

static void dti_binary_backward(int K, const float *z, const float *logp, const dti_wanted *w,
                                float scale, float *dz) {
    const float each = scale / (float)K;
    (void)logp;
    for (int i = 0; i < K * DT_LANES; ++i) {
        const float off = dti_logistic(z[i]) - w->target[i];
        dz[i] = i % DT_LANES < w->count ? off * each : 0.0f;
    }
}

/* Every answer is on the side of its target. */
static bool dti_binary_right(int K, const float *z, const dti_wanted *w, int lane) {
    bool right = true;
    for (int i = lane; i < K * DT_LANES; i += DT_LANES)
        right = right && (z[i] > 0.0f) == (w->target[i] > 0.5f);
    return K > 1 && w->label[lane] >= 0 ? dti_largest_is_label(K, z, w, lane) : right;
}

static const dti_loss_class dti_losses[] = {
    { "cross-entropy", false, 0.0f, 0.0f, dti_cross_entropy_forward, true,
      dti_cross_entropy_backward, dti_largest_is_label },
    { "mean squared error", true, -FLT_MAX, FLT_MAX, dti_mean_squared_forward, false,
      dti_mean_squared_backward, dti_mean_squared_right },
    { "binary cross-entropy", true, 0.0f, 1.0f, dti_binary_forward, true, dti_binary_backward,
      dti_binary_right },
};

DT_API const char *dt_loss_name(dt_loss loss) {
    return (unsigned)loss < DT_LOSSES ? dti_losses[loss].name : "?";
}
#endif

/* ==== [S8] Nets ===========================================================

   The layers of [S6] are a list of what is to be done. A net makes a machine of that list. When
   it is built, it decides once in which order the work is done and where every number will lie;
   then it runs the same step thousands of times, and asks nobody for memory.

       the user's list         the plan                        a step
       conv1                   op 0  conv1, pool, relu         dt_net_load   images, in lanes
       maxpool2d    fusing     op 1  conv2, pool, relu         dt_forward    ops 0 1 2 3; the loss
       relu        ------->    op 2  linear fc1                dt_backward   ops 3 2 1 0: gradients
       conv2        [S8.2]     op 3  linear fc2                (an optimizer steps [S9])
       maxpool2d              tensors, and where each lies
       ...                                [S8.3]

   Three words that are used throughout. A lane group is sixteen images side by side, the unit in
   which all work is done; a batch is cut into lane groups, and those are dealt out to ranks
   [S4.5]. A share is what one lane group adds to a gradient. It is the same whichever rank
   computes it, and shares are added up exactly [S3.2]: that is why the number of ranks does not
   change the answer. And an op is a line of the plan: what is done in the place of one layer, or
   of several.

   To read: [S8.1], what a net looks like from outside; then [S8.5] and [S8.6], how it runs forward
   and back, with the plan believed; then [S8.2] to [S8.4], how the plan is made. */

/* ==== [S8.1] A net from outside =========================================== */

/* A step is dt_net_load (which images), dt_forward, dt_backward, and then an optimizer [S9].
   What is made small is the mean loss [S7] over the global batch, that is over the samples of
   all ranks. So a rank's gradient is its part of the whole, already divided by the global
   batch's count, and the parts are summed (dt_average_gradients, [S11.1]): with 128 images on 3
   ranks, of which this one holds 32, its gradient is the sum of 32 images' gradients, over 128. */
#ifdef DTI_DECLARE
typedef struct dt_build_desc {
    /* the most samples one dt_net_load brings, >= 1; whole lane groups are planned */
    int batch;
    uint64_t seed;           /* for initial values and dropout */
    /* add gradients as floats: faster, but the last bits depend on the order [S3.2] */
    bool float_sums;
    /* of the exact sums: 0, and each tensor's unit follows its gradient; else a power of two that
       all keep, and a gradient that does not fit is an error */
    float unit;
    bool direct;             /* convolutions by their definition, never by Winograd's algorithm
                                [E1.8]: slower, rounded less */
    dt_loss loss;            /* 0: DT_CROSS_ENTROPY */
} dt_build_desc;

/* The sums of one or more batches; exact, so that they add up the same over any number of ranks. */
typedef struct dt_score {
    int64_t loss_fixed;      /* sum of the samples' losses in units of 2^-24, each rounded once */
    /* samples that are right: with labels, the largest logit is the label's; with binary
       targets, all of them are met; with other targets none, as nobody can say. And samples that
       were scored */
    int64_t correct, count;
} dt_score;

/* dt_net_build: plans the buffers, draws initial values U(-1/sqrt(fan_in), +1/sqrt(fan_in)) for
   weights and biases, fan_in = C*K*K or inputs. The last layer's outputs are the logits of
   out[0] classes. */
DT_API dt_err dt_net_build(dt_net *net, const dt_build_desc *desc);
/* dt_net_clone: a second net of the same layers, settings and values, with buffers of its own;
   NULL on error. */
DT_API dt_net *dt_net_clone(const dt_net *net);

/* dt_net_load: packs the images into lanes and keeps labels or targets, as the loss wants them
   [S7]; the batch's arrays may go. Without any, dt_forward gives logits and no score. DT_ESHAPE,
   DT_EARG or DT_EDATA if it does not fit the net, and then there is nothing to run until a load
   succeeds. */
DT_API dt_err dt_net_load(dt_net *net, const dt_batch *batch);
/* true after build; false turns dropout off. A change needs a dt_forward before the next
   dt_backward */
DT_API void dt_net_training(dt_net *net, bool training);
/* logits, log-probabilities, score. DT_ENUMERIC if a sample's loss is not finite, or above 2^20, or
   this thread's processor is not set to IEEE 754 (see [E1.9]) */
DT_API dt_err dt_forward(dt_net *net);
/* gradients of this rank's share, overwritten; needs dt_forward before it. DT_ENUMERIC names the
   tensor whose gradient is not finite or does not fit */
DT_API dt_err dt_backward(dt_net *net);
/* dt_backward_from: the same for a loss of one's own. dlogits [count][dt_net_classes]: the
   derivative of the global batch's loss by each logit of this rank's samples, taken as it is (a
   mean is divided by global_count already). Neither labels nor targets are needed. */
DT_API dt_err dt_backward_from(dt_net *net, const float *dlogits);

/* dt_accumulate_gradients: load, forward and backward of a batch that may be larger than what the
   net was built for, in `parts` micro-batches of whole lane groups, one after the other; 0 means 1.
   Gradients and score are the whole batch's: with exact sums the same bits as in one piece. Logits
   are the last part's. Layers that look at more than a lane group are refused, DT_EARG: they would
   see a micro-batch. With several parts the batch's arrays must stay until the optimizer's step. */
DT_API dt_err dt_accumulate_gradients(dt_net *net, const dt_batch *batch, uint32_t parts);

/* During dt_backward, fn(user, offset, count) is called as soon as gradients
   offset..offset+count-1 hold this rank's whole share: layer by layer from the last to the
   first, the same calls on every rank. NULL turns it off. From then on the stretch is fn's: with
   exact sums it is in int64 form, and nobody turns it into floats but who has summed it. An
   error from fn ends dt_backward. */
typedef dt_err dt_gradient_fn(void *user, size_t offset, size_t count);
DT_API void dt_net_on_gradient(dt_net *net, dt_gradient_fn *fn, void *user);

/* Layers that look at the global batch, batch norm for one [S6.11], need sums over the ranks in the
   middle of a pass. While dt_forward and dt_backward run, fn(user, sums, count) is to add up
   sums[0..count-1] over all ranks, in place; each rank gets the same calls in the same order, one
   with an empty batch too. Without fn the sums are this rank's own: right for one rank.
   dt_share_statistics [S11.1] hands in a communicator's all-reduce, and trainers do so by
   themselves. */
typedef dt_err dt_sum_fn(void *user, int64_t *sums, size_t count);
DT_API void dt_net_on_sums(dt_net *net, dt_sum_fn *fn, void *user);

DT_API size_t dt_net_count(const dt_net *net);                 /* floats in the parameter vector */
/* the parameter vector itself, in dt_param order */
DT_API float *dt_net_values(dt_net *net);
DT_API float *dt_net_gradients(dt_net *net);                   /* parallel to it */
DT_API int dt_net_param_count(const dt_net *net);
/* named views; NULL outside 0..count-1 */
DT_API const dt_param *dt_net_param(const dt_net *net, int i);
/* "conv1.weight"; NULL if there is none */
DT_API const dt_param *dt_net_find(const dt_net *net, const char *name);
/* 64-bit hash of the parameter vector's bits, on every machine */
DT_API uint64_t dt_net_hash(const dt_net *net);
DT_API int dt_net_classes(const dt_net *net);
DT_API size_t dt_net_bytes(const dt_net *net);                 /* memory the net holds */
/* useful flop of forward and backward for one sample */
DT_API double dt_net_flops(const dt_net *net);
DT_API dt_score dt_net_score(const dt_net *net);               /* of the last dt_forward */
/* logits and log-probabilities of sample i of the batch, after dt_forward; out has dt_net_classes()
   floats. DT_EARG if there is no such sample, or the loss knows no probabilities */
DT_API dt_err dt_net_logits(const dt_net *net, int i, float *out);
DT_API dt_err dt_net_log_probabilities(const dt_net *net, int i, float *out);
/* What the net says of samples first .. first+count-1 of the data, one or many; they need no labels.
   out [count][dt_net_classes]: probabilities, or the outputs themselves where the loss knows none.
   Dropout is off, and batch norm takes what it has saved. DT_EARG, DT_ESHAPE */
DT_API dt_err dt_predict(dt_net *net, const dt_dataset *data, uint32_t first, uint32_t count,
                         float *out);
/* one line a layer: name, shape, parameters, flop */
DT_API void dt_net_summary(const dt_net *net, char *text, size_t size);

/* dt_net_profile(net, true) starts timing every layer (two clock reads a layer and group);
   dt_net_layer tells layer i's name, and what it took since then. i counts layers as built; a
   layer that is done by the one before it takes 0. */
DT_API dt_err dt_net_profile(dt_net *net, bool on);
DT_API int dt_net_layers(const dt_net *net);
DT_API const char *dt_net_layer(const dt_net *net, int i, double *forward_seconds,
                                double *backward_seconds);

/* mean loss of a sample; 0 for none */
DT_API double dt_score_loss(const dt_score *score);
/* fraction of samples that are right; 0 for none */
DT_API double dt_score_accuracy(const dt_score *score);
DT_API void dt_score_add(dt_score *sum, const dt_score *more);
#endif

#ifdef DTI_IMPLEMENT
/* Whole numbers that travel behind the gradient: the score, a wish to stop, and how many shares of
   statistics there are for each scope. */
enum {
    DTI_LOSS,
    DTI_CORRECT,
    DTI_COUNT,
    DTI_STOP,
    DTI_SHARES,
    DTI_SCORE = DTI_SHARES + DTI_SCOPES
};

/* What one layer hands to the next, and what the planner has found out about it. */
typedef struct dti_tensor {
    int shape[3];
    int readers;             /* how often ops read it */
    bool learns;             /* something before it is trained, so its gradient is wanted */
    int kept;                /* what backward reads of it: DTI_READS_Y, DTI_READS_SIGN */
    /* the tensor in whose memory it lies: itself, or the one an op in place writes over */
    int place;
    dti_lanes value, grad;
} dti_tensor;

/* Before the gradient's sums lie numbers about them, and travel with the last of its messages: a
   check that ranks use the same units, how many shares did not fit, and from DTI_SIZES on each
   tensor's size [S3.2]. */
enum { DTI_SAME_UNITS, DTI_MISFITS, DTI_SIZES };

struct dt_net {
    dti_list list;           /* what the builders made; must come first [S6.1] */

    /* how it was built */
    dt_build_desc desc;
    const dti_loss_class *loss;
    int classes, max_groups; /* outputs; lane groups planned for */

    /* the parameter vector and its gradient [S8.4] */
    size_t count, trained;   /* floats in it; of them, trained ones, which come first */
    float *values, *grad;    /* [count] */
    int params;
    dt_param *param;         /* [params] names and views */
    char (*param_name)[DTI_NAME + 32];

    /* a step's sums as they travel between ranks, in one piece */
    int64_t *head;           /* [heads] DTI_SAME_UNITS, ... */
    size_t heads;
    /* right behind them, [dti_tail + DTI_SCORE]: exact sums of the gradient, wide ones of
       statistics, then the score */
    int64_t *fixed;
    /* [params] see [S8.6]: units when the step began, alike on all ranks; for the next step; and
       the largest of this rank's shares */
    float *first_unit, *next_unit, *largest;
    /* not dt_backward but the function that has set on_gradient looks at the sums' sizes, and takes
       the step again if need be */
    bool judged_later;
    uint64_t retaken;        /* steps taken again with another unit */

    /* this batch, and how far it has come */
    /* the step's batch on this rank; what is loaded of it: piece number `part` of `parts` */
    dt_batch whole, batch;
    uint32_t part, parts;
    int groups;              /* lane groups in it */
    bool training;
    /* there is a batch; its logits; and what dt_backward needs beside them */
    bool loaded, forwarded, masked;
    bool wanted;             /* the batch says what is wanted of it */
    uint32_t *sample;        /* [max_groups][16] data set rows, for dropout */
    int *label;              /* [max_groups][16] */
    float *target;           /* [max_groups][classes][16], if the loss wants targets */
    dt_score score;

    /* what passes write: log-probabilities and the logits' gradient, [max_groups][classes][16]; one
       layer's gradient for one lane group; room for kernels */
    float *logp, *dlogits, *group_grad, *scratch;

    /* who is told, or asked */
    dt_gradient_fn *on_gradient;
    void *on_gradient_user;
    dt_sum_fn *on_sums;
    void *on_sums_user;

    /* Statistics of the last forward pass: shares that were given for a layer of each scope; and
       whether what is saved has not yet followed them. */
    int64_t shares[DTI_SCOPES];
    bool fresh;
    int64_t followed;        /* steps in which it has */

    /* the plan [S8.3] */
    int ops;
    dti_op op[DTI_MAX_LAYERS];
    dti_tensor tensor[DTI_MAX_LAYERS + 1];
    void *block;             /* all of the buffers above */
    size_t bytes;
    double *layer_seconds;   /* [layers][2] forward, backward; NULL unless dt_net_profile asked */
};

static const int *dti_image_shape(const dt_net *net) { return net->list.input; }
static dti_tensor *dti_logits(dt_net *net) { return &net->tensor[net->op[net->ops - 1].made]; }

/* A step's message lies in one piece, in integers or in floats:

       trained gradients | statistics that are not trained | score ...
       0        trained                                     dti_tail

   Statistics are wide sums among integers, so they are DTI_WIDE times as long there. */
static size_t dti_tail(const dt_net *net) {
    return net->desc.float_sums ? net->count
                                : net->trained + (net->count - net->trained) * DTI_WIDE;
}

/* DT_OK if a net can be run: there is one, its builders have met no error, and it is built. */
static dt_err dti_ready(const char *who, const dt_net *net) {
    if (!net) return dt_fail(DT_EARG, "%s: net must not be NULL", who);
    if (net->list.error != DT_OK) return dt_fail(net->list.error, "%s", net->list.error_text);
    return net->list.closed ? DT_OK : dt_fail(DT_EARG, "%s: dt_net_build comes first", who);
}

/* An empty list that knows its image. A size that cannot be is the first error that it
   remembers. */
DT_API dt_net *dt_net_new(int channels, int height, int width) {
    dt_net *net = dti_alloc(sizeof *net);
    if (!net) return NULL;
    const int shape[3] = { channels, height, width };
    memcpy(net->list.input, shape, sizeof shape);
    net->training = true;
    if (channels < 1 || height < 1 || width < 1 || channels > 65536 || height > 65536 ||
        width > 65536 || !dti_fits_image(shape))
        dti_list_fail(&net->list,
                      dt_fail(DT_ESHAPE, "net: an input of %d x %d x %d makes no image", channels,
                              height, width));
    return net;
}

DT_API void dt_net_free(dt_net *net) {
    if (!net) return;
    for (int i = 0; i < net->list.layers; ++i) dti_release(net->list.layer[i].own);
    dti_release(net->block);
    dti_release(net->param);
    dti_release(net->layer_seconds);
    dti_release(net);
}
#endif

/* ==== [S8.2] Fused layers =================================================

   The plan begins as the list: an op for each layer. Then neighbours that fit a pattern become
   one op, where that saves work. The list stays as the user wrote it, and so do names,
   parameters and random streams: only who does the work changes.

       conv2d -> relu -> maxpool2d         as written
       conv2d -> maxpool2d -> relu         1: they change places
       (conv2d, maxpool2d) -> relu         2: one op
       (conv2d, maxpool2d, relu)           3: one op

   What it saves, in the first layer of chapter 3's net: the convolution's map, 10x24x24 numbers
   an image, is never written to memory nor read again; what is written is a quarter of it,
   10x12x12. A new fusion is a class as in [S6.1] and a row of the table. */
#ifdef DTI_IMPLEMENT

/* A 2x2 max-pool behind a convolution [E1.6], and with it the ReLU behind the pool. Winograd's
   kernels do them while the convolution's outputs are still in registers. */
static void dti_conv_pooled_needs(dti_op *op) {
    dti_conv2d_needs(op);
    op->notes_bytes = dti_group_floats(op->out); /* the place of each maximum */
}

static void dti_conv_rectified_forward(const dti_op *op, const dti_pass *run, int first,
                                       int groups) {
    dti_conv2d_run(op, run, first, groups, true);
}

static void dti_conv_rectified_backward(const dti_op *op, const dti_pass *run, int g) {
    /* the places tell Winograd's kernels what ReLU let through; for the others the mask is applied
       where dy lies, which is this op's alone to read */
    float *dy = dti_lanes_of(op->dy, g);
    if (!((const dti_conv2d *)op->layer->own)->form)
        dti_relu_gradient(dti_y(op, g), dy, dy, dti_group_floats(op->out));
    dti_conv2d_backward(op, run, g);
}

static const dti_layer_class dti_conv_pooled_class = {
    .name = "conv2d, maxpool2d", .needs = dti_conv_pooled_needs, .reads = DTI_READS_X,
    .pack = dti_conv2d_pack, .forward = dti_conv2d_forward, .backward = dti_conv2d_backward,
    .backward_data = dti_conv2d_backward_data
},
    dti_conv_rectified_class = {
        .name = "conv2d, maxpool2d, relu", .needs = dti_conv_pooled_needs,
        .reads = DTI_READS_X | DTI_READS_SIGN, .pack = dti_conv2d_pack,
        .forward = dti_conv_rectified_forward, .backward = dti_conv_rectified_backward,
        .backward_data = dti_conv2d_backward_data
    };

static bool dti_pools_by_two(const dti_op *a, const dti_op *b) {
    (void)a;
    return *(const int *)b->layer->own == 2;
}

/* Each pattern: an op of class `first`, and behind it one of class `second` that alone reads its
   tensor (were there another reader, it would miss it). They become one op of class `both`; or,
   where that is NULL, they change places. */
static const struct dti_pattern {
    const dti_layer_class *first, *second, *both;
    bool (*fits)(const dti_op *first, const dti_op *second); /* NULL: always */
} dti_patterns[] = {
    /* max(relu(x)) = relu(max(x)), values and gradients: behind a pool a ReLU has a fraction of the
       work, and the pool can be done by the convolution before both */
    { &dti_relu_class, &dti_maxpool2d_class, NULL, NULL },
    { &dti_conv2d_class, &dti_maxpool2d_class, &dti_conv_pooled_class, dti_pools_by_two },
    { &dti_conv_pooled_class, &dti_relu_class, &dti_conv_rectified_class, NULL },
};

/* x -> first -> t -> second -> y becomes x -> second -> t -> first -> y. */
static void dti_swap_ops(dt_net *net, int i) {
    dti_op *a = &net->op[i], *b = &net->op[i + 1], first = *a;
    *a = *b;
    *b = first;
    a->tensor = b->tensor;
    b->tensor = b->made; /* t */
    b->made = a->made;   /* y */
    a->made = b->tensor;
    memcpy(a->in, b->in, sizeof a->in);
    memcpy(b->in, a->out, sizeof b->in);
    memcpy(b->out, a->out, sizeof b->out);
}

/* x -> first -> t -> second -> y becomes x -> both -> y; t is no more. */
static void dti_merge_ops(dt_net *net, int i, const dti_layer_class *class) {
    dti_op *a = &net->op[i], *b = &net->op[i + 1];
    a->class = class;
    a->layers += b->layers;
    a->made = b->made;
    memcpy(a->out, b->out, sizeof a->out);
    --net->ops;
    memmove(b, b + 1, (size_t)(net->ops - i - 1) * sizeof *b);
}

/* Does that op read the tensor, as its x, and no other op at all? */
static bool dti_alone_reads(const dt_net *net, int op, int tensor) {
    bool alone = net->op[op].tensor == tensor;
    for (int i = 0; i < net->ops; ++i)
        alone = alone && (i == op || net->op[i].tensor != tensor) && net->op[i].tensor2 != tensor;
    return alone;
}

/* Applies the first pattern that fits anywhere, in the order of the table; false: none does. Each
   makes the plan shorter or moves a ReLU towards its end, so it comes to an end itself. */
static bool dti_fuse_one(dt_net *net) {
    for (size_t k = 0; k < sizeof dti_patterns / sizeof *dti_patterns; ++k)
        for (int i = 0; i + 1 < net->ops; ++i) {
            const struct dti_pattern *p = &dti_patterns[k];
            const dti_op *a = &net->op[i], *b = a + 1;
            if (a->class != p->first || b->class != p->second ||
                !dti_alone_reads(net, i + 1, a->made))
                continue;
            if (p->fits && !p->fits(a, b)) continue;
            if (p->both) dti_merge_ops(net, i, p->both);
            else dti_swap_ops(net, i);
            return true;
        }
    return false;
}
#endif

/* ==== [S8.3] The plan =====================================================

   Four passes over the list: which ops there are; who reads which tensor, and which op may write
   its y over its x; which ops see all lane groups at once; and where everything lies.

   Memory. Forward's tensors are read again by backward, in the reverse order, so most of them
   must be kept for long, but not all, and never all of the gradients. A buffer lives from the op
   that writes it to the last that reads it; two whose lives do not meet may lie in the same
   memory. Time is counted in ops: forward 0 .. n-1, the loss n, backward n+1 .. 2n, so that op i
   runs at i and 2n-i. Three ops that all read their x in backward:

       time       -1    0    1    2    3    4    5    6
                 load  ' forward '  loss ' backward  '
       value 0     |==================================|   images: a step may be taken again
       value 1          |========================|        op 1 reads it at 1 and at 5
       value 2               |==============|             op 2, at 2 and at 4
       value 3                    |===================|   the logits: looked at after the step
       grad  3                         |====|
       grad  2                              |====|
       grad  1                                   |====|   may lie where value 2 lay, or grad 3

   Width. If all that happens to a buffer happens while one lane group is driven through a
   stretch of ops, the next group may use the same memory: one group's floats are enough, and
   they stay in the cache. Else it is wide: it holds every group of the batch. */
#ifdef DTI_IMPLEMENT
/* An op for each layer, then fused; then each says what it needs (scratch, notes, sums). */
static void dti_plan_ops(dt_net *net) {
    net->ops = net->list.layers;
    for (int i = 0; i < net->ops; ++i) {
        const dti_layer *l = &net->list.layer[i];
        dti_op *op = &net->op[i];
        *op = (dti_op){ .class = l->class, .layer = l, .layers = 1,
                        .tensor = l->x, .tensor2 = l->with, .made = i + 1 };
        memcpy(op->in, l->in, sizeof op->in);
        memcpy(op->out, l->out, sizeof op->out);
    }
    while (dti_fuse_one(net)) {}
    for (int i = 0; i < net->ops; ++i) {
        dti_op *op = &net->op[i];
        op->whole_batch = op->class->whole_batch;
        op->direct = net->desc.direct;
        if (op->class->needs) op->class->needs(op);
    }
}

static void dti_note_reader(dt_net *net, int op, int tensor) {
    dti_tensor *t = &net->tensor[tensor];
    ++t->readers;
    if (net->op[op].class->reads & DTI_READS_X) t->kept |= DTI_READS_Y;
}

/* In place: y is written over x. Not where x has another reader, nor where backward needs x as it
   was, nor over the images, which a step may need again. */
static bool dti_may_overwrite(const dt_net *net, const dti_op *op) {
    const dti_tensor *x = &net->tensor[op->tensor];
    const bool needed =
        x->kept & DTI_READS_Y || (x->kept & DTI_READS_SIGN && !op->class->keeps_sign);
    return op->class->in_place && x->readers == 1 && !needed && op->tensor > 0;
}

/* Who reads what, whose gradient is wanted, and whose memory each tensor shares. A tensor learns if
   a parameter lies before it: the images do not, so the first layer's dx is never computed. */
static void dti_plan_tensors(dt_net *net) {
    memset(net->tensor, 0, sizeof net->tensor);
    memcpy(net->tensor[0].shape, net->list.input, sizeof net->list.input);
    for (int i = 0; i < net->ops; ++i) {
        const dti_op *op = &net->op[i];
        dti_tensor *y = &net->tensor[op->made];
        memcpy(y->shape, op->out, sizeof y->shape);
        y->kept |= op->class->reads & (DTI_READS_Y | DTI_READS_SIGN);
        y->learns = op->layer->params > 0 || net->tensor[op->tensor].learns ||
                    (op->tensor2 >= 0 && net->tensor[op->tensor2].learns);
        dti_note_reader(net, i, op->tensor);
        if (op->tensor2 >= 0) dti_note_reader(net, i, op->tensor2);
    }
    /* logits are looked at after the step */
    net->tensor[net->op[net->ops - 1].made].kept |= DTI_READS_Y;
    for (int i = 0; i < net->ops; ++i) {
        const dti_op *op = &net->op[i];
        dti_tensor *x = &net->tensor[op->tensor], *y = &net->tensor[op->made];
        y->place = op->made;
        if (!dti_may_overwrite(net, op)) continue;
        y->place = x->place;
        y->kept |= x->kept; /* and is not overwritten for x's sake either */
    }
}

/* Which ops see all lane groups at once, and the stretches of neighbours that are driven alike. An
   op that may lie in place does what it does to each number by itself, so it follows the op before
   it. conv, relu, fc, relu, fc: the stretches are [conv relu], group by group, and [fc relu fc],
   all groups at once. */
static void dti_plan_stretches(dt_net *net) {
    bool whole = false;
    for (int i = 0; i < net->ops; ++i) {
        const dti_layer_class *class = net->op[i].class;
        whole = net->op[i].whole_batch || (whole && class->in_place);
        net->op[i].whole_batch = whole;
    }
    for (int begin = 0, end; begin < net->ops; begin = end) {
        end = begin + 1;
        while (end < net->ops && net->op[end].whole_batch == net->op[begin].whole_batch) ++end;
        for (int i = begin; i < end; ++i) net->op[i].begin = begin, net->op[i].end = end;
    }
}

/* From when to when a buffer is needed, counted in ops, and, should it be wide, in whole stretches:
   from the begin of the first stretch that touches it to the end of the last. */
typedef struct dti_life {
    bool used, wide;
    int from, to, wide_from, wide_to;
} dti_life;

/* It is needed from..to as well; another stretch than before makes it wide. */
static void dti_lives_from_to(dti_life *life, int from, int to, int wide_from, int wide_to) {
    if (!life->used) *life = (dti_life){ true, life->wide, from, to, wide_from, wide_to };
    life->wide = life->wide || wide_from != life->wide_from || wide_to != life->wide_to;
    life->from = from < life->from ? from : life->from;
    life->to = to > life->to ? to : life->to;
    life->wide_from = wide_from < life->wide_from ? wide_from : life->wide_from;
    life->wide_to = wide_to > life->wide_to ? wide_to : life->wide_to;
}

/* Op i touches it, on its way forward or back. */
static void dti_lives_at(dti_life *life, const dt_net *net, int i, bool backward) {
    const dti_op *op = &net->op[i];
    const int n = net->ops, at = backward ? 2 * n - i : i;
    dti_lives_from_to(life, at, at, backward ? 2 * n - op->end + 1 : op->begin,
                      backward ? 2 * n - op->begin : op->end - 1);
    life->wide = life->wide || op->whole_batch;
}

typedef struct dti_room { /* of the memory that buffers share */
    int from, to;
    size_t at, bytes;
} dti_room;

typedef struct dti_rooms {
    char *base;
    int count;
    size_t bytes;
    dti_room room[3 * DTI_MAX_LAYERS + 2];
} dti_rooms;

/* The lowest place that no buffer with a life in common takes. Without a base only the places are
   counted, which tells how much memory there must be. */
static dti_lanes dti_find_room(dti_rooms *all, const dti_life *life, size_t floats, int groups) {
    dti_room p = { life->wide ? life->wide_from : life->from, life->wide ? life->wide_to : life->to,
                   0,
                   dti_times(dti_times(life->wide ? (size_t)groups : 1, floats), sizeof(float)) };
    if (!life->used) return (dti_lanes){ NULL, 0 };
    for (int k = 0; k < all->count;) {
        const dti_room *other = &all->room[k++];
        if (other->from > p.to || p.from > other->to || other->at >= dti_plus(p.at, p.bytes) ||
            p.at >= dti_plus(other->at, other->bytes))
            continue;
        p.at = dti_plus(other->at, other->bytes);
        k = 0; /* the earlier ones again, from the new place */
    }
    all->room[all->count++] = p;
    if (dti_plus(p.at, p.bytes) > all->bytes) all->bytes = dti_plus(p.at, p.bytes);
    return (dti_lanes) { all->base ? (float *)(void *)(all->base + p.at) : NULL,
                         life->wide ? floats : 0 };
}

/* The rows of the picture above: what every op reads and writes, forward and back. */
static void dti_lives_of_ops(const dt_net *net, dti_life *value, dti_life *grad) {
    const int n = net->ops, logits = net->op[n - 1].made;
    /* dt_net_load fills all groups, and a step may be taken again */
    dti_lives_from_to(&value[0], -1, 2 * n, -1, 2 * n);
    for (int i = 0; i < n; ++i) {
        const dti_op *op = &net->op[i];
        const int x = net->tensor[op->tensor].place, y = net->tensor[op->made].place;
        const int x2 = op->tensor2 >= 0 ? net->tensor[op->tensor2].place : x;
        dti_lives_at(&value[x], net, i, false);
        dti_lives_at(&value[x2], net, i, false);
        dti_lives_at(&value[y], net, i, false);
        if (!net->tensor[op->made].learns) continue; /* it has no backward pass */
        if (op->class->reads & DTI_READS_X) dti_lives_at(&value[x], net, i, true);
        if (op->class->reads & ~DTI_READS_X) dti_lives_at(&value[y], net, i, true);
        dti_lives_at(&grad[y], net, i, true);
        if (net->tensor[op->tensor].learns) dti_lives_at(&grad[x], net, i, true);
        if (op->tensor2 >= 0 && net->tensor[op->tensor2].learns)
            dti_lives_at(&grad[x2], net, i, true);
    }
    /* looked at after the step */
    dti_lives_from_to(&value[net->tensor[logits].place], 2 * n, 2 * n, 2 * n, 2 * n);
    /* the loss writes it */
    dti_lives_from_to(&grad[net->tensor[logits].place], n, n, n, n);
}

/* Places all tensors and their gradients, tells each op where its x, y, dx, dy are, and who
   adds. Of several readers of a tensor the last one in the list is the first in backward: it
   writes the gradient, the others add theirs to it. One that cannot add leaves its own in a
   spare buffer. */
static size_t dti_plan_tensors_memory(dt_net *net, char *base) {
    static const dti_lanes none = { NULL, 0 };
    dti_life value[DTI_MAX_LAYERS + 1] = { { false } }, grad[DTI_MAX_LAYERS + 1] = { { false } };
    dti_rooms all = { .base = base };
    bool written[DTI_MAX_LAYERS + 1] = { false };
    dti_lives_of_ops(net, value, grad);
    for (int i = 0; i <= net->list.layers; ++i) {
        dti_tensor *t = &net->tensor[i];
        const size_t floats = dti_group_floats(t->shape);
        t->value = t->place == i ? dti_find_room(&all, &value[i], floats, net->max_groups)
                                 : net->tensor[t->place].value;
        t->grad = t->place == i ? dti_find_room(&all, &grad[i], floats, net->max_groups)
                                : net->tensor[t->place].grad;
    }
    /* backward's order: who writes a gradient first, and who adds to it */
    for (int i = net->ops - 1; i >= 0; --i) {
        dti_op *op = &net->op[i];
        const dti_tensor *x = &net->tensor[op->tensor],
                         *x2 = op->tensor2 >= 0 ? &net->tensor[op->tensor2] : NULL;
        dti_life once = { false };
        op->x = x->value, op->y = net->tensor[op->made].value, op->dy = net->tensor[op->made].grad;
        op->dx = x->learns ? x->grad : none;
        op->x2 = x2 ? x2->value : none;
        op->dx2 = x2 && x2->learns ? x2->grad : none;
        if (x2) op->add_dx2 = written[op->tensor2], written[op->tensor2] = true;
        op->add_dx = written[op->tensor] && x->learns;
        written[op->tensor] = true;
        dti_lives_at(&once, net, i, true);
        if (op->add_dx && !op->class->adds)
            op->spare = dti_find_room(&all, &once, dti_group_floats(x->shape), net->max_groups);
    }
    return all.bytes;
}

/* The next piece of a block, 64-byte aligned: for so many groups so many things of that size. */
static void *dti_take(char *base, size_t *used, size_t groups, size_t count, size_t size) {
    void *piece = base ? base + *used : NULL;
    *used = dti_round_up(dti_plus(*used, dti_times(dti_times(groups, count), size)), 64);
    return piece;
}

/* Hands out addresses. Run twice: once from zero, which tells the size, once from the block of that
   size; so there is one list of what a net holds, and it cannot disagree with itself. */
static size_t dti_plan_memory(dt_net *net, char *base) {
    const size_t G = (size_t)net->max_groups, f = sizeof(float);
    size_t used = 0, largest = 0, scratch = 0, slots = 0;
    for (int i = 0; i < net->list.layers; ++i) slots += (size_t)net->list.layer[i].slots;
    for (int i = 0; i < net->ops; ++i) {
        if (net->op[i].layer->params > largest) largest = net->op[i].layer->params;
        if (net->op[i].scratch_floats > scratch) scratch = net->op[i].scratch_floats;
    }
    net->values = dti_take(base, &used, 1, net->count, f);
    net->grad = dti_take(base, &used, 1, dti_plus(net->count, DTI_SCORE), f);
    const size_t wide = dti_times(net->count - net->trained, DTI_WIDE);
    net->heads = dti_round_up(DTI_SIZES + slots, 8);
    const size_t message = dti_plus(dti_plus(net->trained, wide), DTI_SCORE);
    net->head = dti_take(base, &used, 1, dti_plus(net->heads, message), sizeof(int64_t));
    net->fixed = base ? net->head + net->heads : NULL;
    net->first_unit = dti_take(base, &used, 1, slots, f);
    net->next_unit = dti_take(base, &used, 1, slots, f);
    net->largest = dti_take(base, &used, 1, slots, f);
    net->group_grad = dti_take(base, &used, 1, largest, f);
    net->scratch = dti_take(base, &used, 1, scratch, f);
    net->sample = dti_take(base, &used, G, DT_LANES, sizeof(uint32_t));
    net->label = dti_take(base, &used, G, DT_LANES, sizeof(int));
    net->logp = dti_take(base, &used, G, (size_t)net->classes * DT_LANES, f);
    net->dlogits = dti_take(base, &used, G, (size_t)net->classes * DT_LANES, f);
    const size_t targets = net->loss->targets ? (size_t)net->classes * DT_LANES : 0;
    net->target = dti_take(base, &used, G, targets, f);
    for (int i = 0; i < net->ops; ++i) {
        dti_op *op = &net->op[i];
        op->notes = dti_take(base, &used, G, op->notes_bytes, 1);
        op->packed = dti_take(base, &used, 1, op->packed_floats, f);
        op->wide = dti_take(base, &used, 1, op->sums, sizeof(int64_t));
    }
    return dti_plus(used, dti_plan_tensors_memory(net, base ? base + used : NULL));
}
#endif

/* ==== [S8.4] Building =====================================================

   The parameters of all layers lie in one vector, the trained ones first, and the gradient is a
   second vector just like it. So an optimizer, an all-reduce, a file or a check of replicas is a
   loop over floats that knows nothing of layers; names are views into the vectors:

       values   conv1.weight | conv1.bias | ... | fc.bias | bn.running_mean | bn.running_var
                0                                   trained                          count     */
#ifdef DTI_IMPLEMENT
/* Trained parameters in the order of the list, and behind all of them what is only saved. */
static void dti_plan_parameters(dt_net *net) {
    net->count = 0;
    for (int trained = 1; trained >= 0; --trained) {
        for (int i = 0; i < net->list.layers; ++i)
            for (dti_slot *s = net->list.layer[i].slot, *end = s + net->list.layer[i].slots;
                 s < end; ++s) {
                if (s->trained != trained) continue;
                s->offset = net->count;
                net->count = dti_plus(net->count, dt_tensor_count(&s->shape));
            }
        if (trained) net->trained = net->count;
    }
}

/* Each tensor's views: name, shape, and where its values and its gradient lie. */
static void dti_name_parameters(dt_net *net) {
    for (int i = 0; i < net->list.layers; ++i) {
        dti_layer *l = &net->list.layer[i];
        l->first_param = net->params;
        for (int k = 0; k < l->slots; ++k) {
            const dti_slot *s = &l->slot[k];
            dt_param *p = &net->param[net->params];
            snprintf(net->param_name[net->params], sizeof *net->param_name, "%s.%s", l->name,
                     s->suffix);
            *p = (dt_param){ .name = net->param_name[net->params], .value = s->shape,
                             .grad = s->shape, .offset = s->offset, .trained = s->trained };
            p->value.data = net->values + s->offset;
            p->grad.data = net->grad + s->offset;
            /* first gradients are mostly of 1e-4 to 10, of which this holds all digits */
            p->unit = net->desc.unit != 0.0f ? net->desc.unit : 0x1p-46f;
            net->next_unit[net->params] = p->unit;
            ++net->params;
        }
    }
}

/* Initial values: number k of a layer's parameters is made from number k of its random stream
   [S2], and streams count the layers that have parameters. So the same seed gives the same net
   everywhere, and a layer without parameters that comes or goes changes nothing.

   Why U(-1/sqrt(fan_in), 1/sqrt(fan_in)): an output is a sum of fan_in products, and must not
   grow with their number. Weights of that range have the variance 1/(3 fan_in), so the mean square
   of an output is a third of its inputs', however many they are. */
static void dti_initialise(dt_net *net) {
    uint32_t stream = 0;
    for (int i = 0; i < net->list.layers; ++i) {
        const dti_layer *l = &net->list.layer[i];
        uint32_t k = 0;
        for (const dti_slot *s = l->slot; s < l->slot + l->slots; ++s)
            for (size_t n = dt_tensor_count(&s->shape), at = 0; at < n; ++at, ++k) {
                const dt_philox_block r = dt_philox(net->desc.seed, DT_RNG_INIT, 0, stream, k / 4);
                net->values[s->offset + at] =
                    s->value + (2.0f * dt_uniform(r.v[k % 4]) - 1.0f) * s->bound;
            }
        stream += l->slots > 0;
    }
}

/* Checks, the four passes of [S8.3], one block of memory, initial values. A build that failed for
   want of memory may be tried again. */
DT_API dt_err dt_net_build(dt_net *net, const dt_build_desc *desc) {
    if (!net) return dt_fail(DT_ENOMEM, "net: no memory for the net itself");
    DT_TRY(dti_build_check(net, desc));
    DT_TRY(dti_check_arithmetic());
    net->desc = *desc;
    net->loss = &dti_losses[desc->loss];
    net->classes = dti_tensor_shape(&net->list, net->list.layers)[0];
    net->max_groups = (desc->batch + DT_LANES - 1) / DT_LANES;
    dti_plan_parameters(net);
    if (net->trained == 0) return dt_fail(DT_EARG, "net: it has no parameters");
    dti_plan_ops(net);
    dti_plan_tensors(net);
    dti_plan_stretches(net);
    net->bytes = dti_plan_memory(net, NULL);
    const size_t names = DTI_SLOTS * (size_t)net->list.layers;
    if (!net->param) net->param = dti_alloc_many(names, sizeof(dt_param) + sizeof *net->param_name);
    if (!net->param || !(net->block = dti_alloc(net->bytes))) return DT_ENOMEM;
    net->param_name = (char (*)[sizeof *net->param_name])(void *)(net->param + names);
    dti_plan_memory(net, net->block);
    dti_name_parameters(net);
    dti_initialise(net);
    net->list.closed = true;
    return DT_OK;
}

/* The list is copied, with what each layer keeps of its description, and built again: so the
   clone has the same plan, at other addresses. Then the values, and the units that the next step
   would use. */
DT_API dt_net *dt_net_clone(const dt_net *net) {
    if (dti_ready(__func__, net) != DT_OK) return NULL;
    dt_net *twin = dti_alloc(sizeof *twin);
    if (!twin) return NULL;
    twin->list = net->list;
    twin->list.closed = false;
    twin->training = net->training;
    bool good = true;
    for (int i = 0; i < twin->list.layers; ++i) {
        dti_layer *l = &twin->list.layer[i];
        const size_t own = l->class->own;
        if (own) good = (l->own = dti_alloc(own)) && good;
        if (l->own) memcpy(l->own, net->list.layer[i].own, own);
    }
    if (!good || dt_net_build(twin, &net->desc) != DT_OK) { dt_net_free(twin); return NULL; }
    memcpy(twin->values, net->values, net->count * sizeof(float));
    memcpy(twin->next_unit, net->next_unit, (size_t)net->params * sizeof(float));
    return twin;
}
#endif

/* ==== [S8.5] Running forward ==============================================

   Sixteen images (one lane group) pass through all layers while their activations are still in
   the cache; then the next sixteen. Layers that gain from seeing all groups at once (linear: a
   weight is read once for several groups) ask for the whole batch, and the plan is cut into
   stretches of the one kind and of the other. With three groups and four ops, of which the last
   two see all groups:

       group 0: op 0, op 1    group 1: op 0, op 1    group 2: op 0, op 1
       groups 0 1 2: op 2     groups 0 1 2: op 3     then the loss, group by group

   A batch that is too large for memory is taken in parts, one after the other [S8.6].

   To read: dt_net_load; dt_forward and dti_forward_stretch. */
#ifdef DTI_IMPLEMENT
/* Dropout's masks are forward's: after a change there are none that backward could use. */
DT_API void dt_net_training(dt_net *net, bool training) {
    DTI_NEED(net, "net", );
    if (net->training != training) net->masked = false;
    net->training = training;
}

/* The label of sample i; -1: the batch has none. Lanes without a sample get 0, which nobody
   reads. */
static dt_err dti_load_label(dt_net *net, uint32_t i) {
    const dt_batch *b = &net->batch;
    const bool number = net->loss->targets && net->classes == 1; /* wanted as it is, no class */
    net->label[i] = 0;
    if (i < b->count) net->label[i] = b->labels ? b->labels[b->index[i]] : -1;
    if (net->label[i] < net->classes || number) return DT_OK;
    return dt_fail(DT_EDATA, "net: sample %u has label %d, the net has %d classes",
                   (unsigned)net->sample[i], net->label[i], net->classes);
}

/* What is wanted of each output: the row of targets, or what the label stands for [S7.3]. */
static dt_err dti_load_targets(dt_net *net, uint32_t i) {
    const dt_batch *b = &net->batch;
    const size_t K = (size_t)net->classes;
    float *lane = net->target + i / DT_LANES * K * DT_LANES + i % DT_LANES;
    for (size_t k = 0; k < K; ++k) {
        float t = 0.0f;
        if (i < b->count && b->targets) t = b->targets[b->index[i] * K + k];
        else if (i < b->count) t = K == 1 ? (float)net->label[i] : net->label[i] == (int)k;
        if (!(t >= net->loss->low && t <= net->loss->high))
            return dt_fail(DT_EDATA, "net: sample %u wants %g of output %zu; %s takes %g to %g",
                           (unsigned)net->sample[i], (double)t, k, net->loss->name,
                           (double)net->loss->low, (double)net->loss->high);
        lane[k * DT_LANES] = t;
    }
    return DT_OK;
}

/* Row numbers, labels and targets of all lanes, also of empty ones; then the images into lanes: 20
   samples are two groups, of which the second has 12 empty lanes, rows UINT32_MAX and images of
   zeros. They are computed like the others, and their gradients are 0. */
static dt_err dti_load_images(dt_net *net, const dt_batch *batch) {
    net->batch = *batch;
    net->groups = (int)((batch->count + DT_LANES - 1) / DT_LANES);
    net->wanted = batch->labels || (batch->targets && net->loss->targets) || batch->count == 0;
    for (uint32_t i = 0; i < (uint32_t)net->groups * DT_LANES; ++i) {
        net->sample[i] = i < batch->count ? batch->index[i] : UINT32_MAX;
        DT_TRY(dti_load_label(net, i));
        if (net->wanted && net->loss->targets) DT_TRY(dti_load_targets(net, i));
    }
    const int *shape = dti_image_shape(net);
    for (int g = 0; g < net->groups; ++g)
        dti_batch_lanes(batch, shape[0], shape[1], shape[2], g,
                        dti_lanes_of(net->tensor[0].value, g));
    net->loaded = true;
    return DT_OK;
}

/* A step's batch, which will come in so many parts. */
static dt_err dti_begin_step(const char *who, dt_net *net, const dt_batch *batch, uint32_t parts) {
    DT_TRY(dti_ready(who, net));
    net->loaded = net->forwarded = net->masked = false;
    net->part = 0, net->parts = parts ? parts : 1;
    DTI_NEED(batch, "batch", DT_EARG);
    DT_TRY(dti_check_parts(who, net, net->parts));
    DT_TRY(dti_check_batch(net, batch));
    net->whole = *batch;
    return net->parts == 1 ? dti_load_images(net, batch) : DT_OK;
}

DT_API dt_err dt_net_load(dt_net *net, const dt_batch *batch) {
    return dti_begin_step(__func__, net, batch, 1);
}

/* Micro-batch `part` of a step's batch: its rows, whole lane groups, as if they were a batch; but
   global_count stays the step's, so that the means divide by the same number. */
static dt_err dti_load_piece(dt_net *net, uint32_t part) {
    dt_batch batch = net->whole;
    const uint32_t from = dti_piece_begin(batch.count, part, net->parts);
    net->part = part;
    batch.count = dti_piece_begin(batch.count, part + 1, net->parts) - from;
    batch.first += from;
    if (batch.count > 0) batch.index += from;
    return dti_load_images(net, &batch);
}

/* Adds what an op took to its first layer's seconds; every layer's, if a profile was asked for. */
static void dti_took(const dt_net *net, const dti_op *op, int way, double start) {
    if (net->layer_seconds)
        net->layer_seconds[2 * (op->layer - net->list.layer) + way] += dt_now() - start;
}

/* What layers may look at [S6.1], of this net and this batch. */
static dti_pass dti_pass_of(const dt_net *net, dt_err *error) {
    return (dti_pass) { .training = net->training,
                        .seed = net->desc.seed,
                        .epoch = net->batch.epoch,
                        .sample = net->sample,
                        .values = net->values,
                        .group_grad = net->group_grad,
                        .scratch = net->scratch,
                        .images = net->batch.count,
                        .global_images = net->batch.global_count,
                        .shares = net->fixed + net->trained,
                        .trained = net->trained,
                        .sum = net->on_sums,
                        .sum_user = net->on_sums_user,
                        .error = error };
}

/* What the loss is to look at in lane group g. */
static dti_wanted dti_wanted_of(const dt_net *net, int g) {
    const uint32_t left = net->batch.count - (uint32_t)g * DT_LANES;
    return (dti_wanted){
        .count = (int)dti_min_u32(DT_LANES, left),
        .label = net->label + g * DT_LANES,
        .target = net->wanted && net->loss->targets
                      ? net->target + (size_t)g * (size_t)net->classes * DT_LANES
                      : NULL
    };
}

/* The log-probabilities of lane group g, [classes][16]; not every loss writes them. */
static float *dti_logp_of(const dt_net *net, int g) {
    return net->logp + (size_t)g * (size_t)net->classes * DT_LANES;
}
/* What backward begins with; kept, because a step may be taken again. */
static float *dti_dlogits_of(const dt_net *net, int g) {
    return net->dlogits + (size_t)g * (size_t)net->classes * DT_LANES;
}

/* Loss and score of one lane group from its logits. A sample's loss is rounded once, to a
   multiple of 2^-24, and then added as an integer: so a score, too, is the same for every number
   of ranks. */
static dt_err dti_score_group(dt_net *net, int g) {
    const dti_wanted wanted = dti_wanted_of(net, g);
    const float *z = dti_lanes_of(dti_logits(net)->value, g);
    float loss[DT_LANES];
    net->loss->forward(net->classes, z, &wanted, dti_logp_of(net, g), loss);
    for (int l = 0; l < wanted.count && net->wanted; ++l) {
        if (!(loss[l] < 0x1p20f)) return dti_bad_loss(net, net->sample[g * DT_LANES + l], loss[l]);
        net->score.loss_fixed += (int64_t)((double)loss[l] * 0x1p24 + 0.5);
        net->score.correct += net->loss->right(net->classes, z, &wanted, l);
        ++net->score.count;
    }
    return DT_OK;
}

DT_API void dt_net_on_sums(dt_net *net, dt_sum_fn *fn, void *user) {
    DTI_NEED(net, "net", );
    net->on_sums = fn;
    net->on_sums_user = user;
}

/* Before a training pass, which gives shares of statistics; the step's first finds none. */
static void dti_count_shares(dt_net *net) {
    const int64_t groups = net->groups, with = groups > 0;
    const int64_t shares[DTI_SCOPES] = { with, groups, with, net->on_sums ? 1 : with };
    const size_t sums = net->part == 0 ? (net->count - net->trained) * DTI_WIDE : 0;
    memset(net->fixed + net->trained, 0, sums * sizeof *net->fixed);
    for (int s = 0; s < DTI_SCOPES; ++s)
        net->shares[s] = shares[s] + (net->part > 0 ? net->shares[s] : 0);
    net->fresh = true;
}

/* Number i of the parameter vector, which is not trained: the sum of its shares. */
static double dti_share_sum(const dt_net *net, size_t i) {
    return dti_wide_value(net->fixed + net->trained + (i - net->trained) * DTI_WIDE);
}

/* A statistic is the mean of its shares; it lies where a gradient would. summed: there lies
   already, as a float, their sum. Equal shares of many ranks have one of them as their mean, to the
   bit: the sum fits into a double. */
static void dti_settle_statistics(dt_net *net, bool summed) {
    for (const dti_op *op = net->op; op < net->op + net->ops && net->fresh; ++op)
        for (const dti_slot *s = op->layer->slot; s < op->layer->slot + op->layer->slots; ++s) {
            const size_t n = s->trained ? 0 : dt_tensor_count(&s->shape), from = s->offset;
            const double shares = (double)net->shares[op->scope];
            for (size_t i = from; i < from + n && shares > 0.0; ++i)
                net->grad[i] =
                    (float)((summed ? (double)net->grad[i] : dti_share_sum(net, i)) / shares);
        }
}

/* What is saved follows the batch's statistics: value = (1 - follow) * value + follow * the
   batch's. Once a step, by whoever takes the step [S9.1]. */
static void dti_follow_statistics(dt_net *net) {
    const dti_layer *end = net->list.layer + (net->fresh ? net->list.layers : 0);
    for (const dti_layer *l = net->list.layer; l < end; ++l)
        for (const dti_slot *s = l->slot; s < l->slot + l->slots; ++s) {
            const size_t n = s->trained ? 0 : dt_tensor_count(&s->shape);
            float *value = net->values + s->offset;
            const float *batch = net->grad + s->offset;
            for (size_t i = 0; i < n; ++i)
                value[i] = (1.0f - s->follow) * value[i] + s->follow * batch[i];
        }
    net->followed += net->fresh;
    net->fresh = false;
}

/* A rank without images does nothing but take part in sums over the batch. */
static void dti_forward_sums(const dt_net *net, const dti_pass *run, int begin, int end) {
    for (const dti_op *op = net->op + begin; op < net->op + end; ++op)
        if (op->scope == DTI_OVER_BATCH) op->class->forward(op, run, 0, 0);
}

/* One stretch of ops over groups [g, g+n). */
static void dti_forward_stretch(const dt_net *net, const dti_pass *run, int begin, int end, int g,
                                int n) {
    for (const dti_op *op = net->op + begin; op < net->op + end; ++op) {
        const double start = net->layer_seconds ? dt_now() : 0.0;
        op->class->forward(op, run, g, n);
        dti_took(net, op, 0, start);
    }
}

/* Weights as the kernels want them, once; then stretch by stretch, and in a stretch that goes group
   by group, n is 1, else all groups at once; then the loss. */
DT_API dt_err dt_forward(dt_net *net) {
    DT_TRY(dti_ready(__func__, net));
    if (!net->loaded)
        return dt_fail(DT_EARG, "dt_forward: a dt_net_load that succeeds comes first");
    net->forwarded = net->masked = false;
    DT_TRY(dti_check_thread());
    const dt_batch *batch = &net->batch;
    dt_err error = DT_OK;
    dti_pass run = dti_pass_of(net, &error);
    if (net->part == 0) net->score = (dt_score){ 0, 0, 0 };
    if (net->training) {
        DT_TRY(dti_check_scopes(net, batch->count, batch->global_count, net->on_sums != NULL));
        dti_count_shares(net);
    }
    for (const dti_op *op = net->op; op < net->op + net->ops && net->part == 0; ++op)
        if (op->class->pack) op->class->pack(op, net->values);
    for (int begin = 0, end; begin < net->ops; begin = end) {
        end = net->op[begin].end;
        const int n = net->op[begin].whole_batch ? net->groups : 1; /* groups at once */
        if (net->groups == 0) dti_forward_sums(net, &run, begin, end);
        for (int g = 0; g < net->groups; g += n) dti_forward_stretch(net, &run, begin, end, g, n);
        DT_TRY(error);
    }
    for (int g = 0; g < net->groups; ++g) DT_TRY(dti_score_group(net, g));
    net->forwarded = net->masked = true;
    return DT_OK;
}
#endif

/* ==== [S8.6] Backward, and exact sums of gradients ========================

   Backward takes the stretches in reverse:

       groups 0 1 2: op 3     groups 0 1 2: op 2
       group 0: op 1, op 0    group 1: op 1, op 0    group 2: op 1, op 0

   After a layer's backward on one lane group, that group's share of the weight gradient is added
   to the exact sums [S3.2] (or to the float gradient). The share of a group does not depend on
   which other groups this rank holds, nor on whether they are there at the same time: a batch
   taken in parts ends in the same sums (gradient accumulation).

   Shares are added as whole numbers of a unit. Whose unit, and when does it change?

   A step begins with the units that the last one has chosen. When all shares are added up, on this
   rank or over all of them, the sums' sizes say whether every share fitted and every sum has its
   digits. Mostly so; then they choose the next step's units. If not, the step is taken again from
   dt_forward on, on all ranks alike, with units chosen by the largest shares, which now certainly
   fit. Nothing else has changed meanwhile: the optimizer has not stepped, and statistics have not
   followed.

   An example: 8 lane groups, and a tensor whose last sum had the size 0.9 [S3.2]. It gets the unit
   2^-45. In the next step a share fits as long as it is below 2^59 units, which is 16384, and the
   sum keeps its digits from 2^30 units on, a size of 3e-5. A gradient that grows or shrinks by more
   than that from one step to the next is rare, but training begins with a guess, 2^-46.

   All of this depends on lane groups' shares alone, so it is the same for every number of ranks.

   To read: dti_backward_once and dti_backward_op; dti_add_share; dti_judge_alone. */
#ifdef DTI_IMPLEMENT

/* Adds one lane group's share of one tensor's gradient, and notes its size. A share that does
   not fit is counted; where units are not to change, or it is not finite, it is an error. */
static dt_err dti_add_share(dt_net *net, int i, const float *share) {
    const dt_param *p = &net->param[i];
    const bool keeps = net->desc.unit != 0.0f || (net->on_gradient && !net->judged_later);
    const size_t n = dt_tensor_count(&p->value);
    const float largest = dti_fixed_add(net->fixed + p->offset, share, n, p->unit);
    const bool fits = largest < ldexpf(p->unit, dti_limit_bits(net));
    if (!(largest <= FLT_MAX) || (!fits && keeps)) return dti_bad_gradient(net, p, share);
    if (largest > net->largest[i]) net->largest[i] = largest;
    if (fits) net->head[DTI_SIZES + i] += (int64_t)ceil((double)largest / (double)p->unit);
    else ++net->head[DTI_MISFITS];
    return DT_OK;
}

/* Adds one lane group's share of one layer's gradient. */
static dt_err dti_add_gradient(dt_net *net, const dti_layer *l) {
    const float *share = net->group_grad;
    for (int k = 0; k < l->slots; ++k) {
        const size_t n = l->slot[k].trained ? dt_tensor_count(&l->slot[k].shape) : 0;
        float *grad = net->grad + l->slot[k].offset;
        if (net->desc.float_sums) for (size_t j = 0; j < n; ++j) grad[j] += share[j];
        else if (n > 0) DT_TRY(dti_add_share(net, l->first_param + k, share));
        share += n;
    }
    return DT_OK;
}

/* Before a step's first share is added. */
static void dti_clear_gradient(dt_net *net) {
    if (net->part > 0) return;
    for (int i = 0; i < net->params; ++i) net->largest[i] = 0.0f;
    if (net->desc.float_sums) memset(net->grad, 0, net->trained * sizeof(float));
    else memset(net->head, 0, (net->heads + net->trained) * sizeof(int64_t));
}

DT_API void dt_net_on_gradient(dt_net *net, dt_gradient_fn *fn, void *user) {
    DTI_NEED(net, "net", );
    net->on_gradient = fn;
    net->on_gradient_user = user;
}

/* No more shares will come for this layer: on_gradient is told so. */
static dt_err dti_gradient_final(const dt_net *net, const dti_layer *l) {
    return net->on_gradient && l->params && net->part + 1 == net->parts
               ? net->on_gradient(net->on_gradient_user, l->slot[0].offset, l->params)
               : DT_OK;
}

/* dx += spare, for classes that do not add themselves. */
static void dti_add_spare(const dti_op *op, int g) {
    if (!op->spare.at) return;
    float *dx = dti_lanes_of(op->dx, g);
    const float *more = dti_lanes_of(op->spare, g);
    for (size_t i = 0; i < dti_group_floats(op->in); ++i) dx[i] += more[i];
}

/* One op over groups [g, g+n): its share for each group, added up; then dx, by itself where the
   class computes that apart. Behind the last group the layer's gradient is final. */
static dt_err dti_backward_op(dt_net *net, const dti_pass *run, const dti_op *op, int g, int n) {
    const dti_layer *l = op->layer;
    const double start = net->layer_seconds ? dt_now() : 0.0;
    for (int k = g; k < g + n; ++k) {
        op->class->backward(op, run, k);
        if (l->params) DT_TRY(dti_add_gradient(net, l));
    }
    if (op->class->backward_data && op->dx.at) op->class->backward_data(op, run, g, n);
    DT_TRY(*run->error);
    for (int k = g; k < g + n; ++k) dti_add_spare(op, k);
    if (g + n == net->groups) DT_TRY(dti_gradient_final(net, l));
    dti_took(net, op, 1, start);
    return DT_OK;
}

/* A rank without images: its share is zeros; it takes part in sums over the batch, in the order of
   the others. */
static dt_err dti_backward_sums(const dt_net *net, const dti_pass *run) {
    for (const dti_op *op = net->op + net->ops; op-- > net->op;) {
        if (op->scope == DTI_OVER_BATCH && op->dx.at) op->class->backward_data(op, run, 0, 0);
        DT_TRY(*run->error);
        DT_TRY(dti_gradient_final(net, op->layer));
    }
    return DT_OK;
}

/* Ops [begin, end) in reverse over groups [g, g+n). */
static dt_err dti_backward_stretch(dt_net *net, const dti_pass *run, int begin, int end, int g,
                                   int n) {
    for (const dti_op *op = net->op + end; op-- > net->op + begin;)
        if (net->tensor[op->made].learns) DT_TRY(dti_backward_op(net, run, op, g, n));
    return DT_OK;
}

/* All layers once, in the units that are set, from the logits' gradient on. */
static dt_err dti_backward_once(dt_net *net) {
    const size_t floats = dti_group_floats(dti_logits(net)->shape);
    dt_err error = DT_OK;
    dti_pass run = dti_pass_of(net, &error);
    dti_clear_gradient(net);
    for (int g = 0; g < net->groups; ++g)
        memcpy(dti_lanes_of(dti_logits(net)->grad, g), dti_dlogits_of(net, g),
               floats * sizeof(float));
    if (net->groups == 0) DT_TRY(dti_backward_sums(net, &run));
    for (int end = net->ops, begin; end > 0; end = begin) {
        begin = net->op[end - 1].begin;
        const int n = net->op[begin].whole_batch ? net->groups : 1;
        for (int g = 0; g < net->groups; g += n)
            DT_TRY(dti_backward_stretch(net, &run, begin, end, g, n));
    }
    return DT_OK;
}

/* What backward begins with: the loss's derivative by each logit of what is loaded. */
static dt_err dti_backward_loss(dt_net *net) {
    if (!net->wanted)
        return dt_fail(DT_EARG, "dt_backward: the batch has no %s, and the loss is %s",
                       net->loss->targets ? "targets and no labels" : "labels", net->loss->name);
    for (int g = 0; g < net->groups; ++g) {
        const dti_wanted wanted = dti_wanted_of(net, g);
        net->loss->backward(net->classes, dti_lanes_of(dti_logits(net)->value, g),
                            dti_logp_of(net, g), &wanted, 1.0f / (float)net->batch.global_count,
                            dti_dlogits_of(net, g));
    }
    return DT_OK;
}

/* One part of the step's batch, up to its logits' gradient. */
static dt_err dti_forward_part(dt_net *net, uint32_t part) {
    if (net->parts > 1) DT_TRY(dti_load_piece(net, part));
    DT_TRY(dt_forward(net));
    return dti_backward_loss(net);
}

/* Forward and backward of each micro-batch in turn; the gradient's sums grow from the first to the
   last. */
static dt_err dti_all_parts(dt_net *net) {
    dt_err error = DT_OK;
    for (uint32_t part = 0; part < net->parts && error == DT_OK; ++part)
        if ((error = dti_forward_part(net, part)) == DT_OK) error = dti_backward_once(net);
    net->loaded = net->loaded && net->parts == 1; /* the last of several is no batch */
    return error;
}

/* The step from dt_forward on, once more. */
static dt_err dti_step_again(dt_net *net) {
    if (!net->masked)
        return dt_fail(DT_EARG, "net: its gradient needs other units, so the step is to be taken "
                                "again; but another batch has been there since");
    if (net->parts > 1) return dti_all_parts(net);
    DT_TRY(dt_forward(net));
    return dti_backward_once(net);
}

/* Where this rank has the whole batch, it can judge for itself; else the sums over the ranks
   tell, and dti_judge [S11.1] does the same with them. */
static dt_err dti_judge_alone(dt_net *net) {
    if (!dti_units_suit(net)) {
        dti_units_anew(net);
        DT_TRY(dti_step_again(net));
    }
    if (net->head[DTI_MISFITS] > 0) return dti_no_unit(net);
    dti_units_follow(net);
    return DT_OK;
}

/* The units that the last step has chosen are this one's, and remembered in case that it is taken
   again. */
static void dti_begin_backward(dt_net *net) {
    for (int i = 0; i < net->params; ++i)
        net->param[i].unit = net->first_unit[i] = net->next_unit[i];
}

/* The last part has been there. */
static dt_err dti_end_backward(dt_net *net) {
    if (net->on_gradient) return DT_OK;
    if (!net->desc.float_sums && !net->on_sums && net->whole.count == net->whole.global_count)
        DT_TRY(dti_judge_alone(net));
    dti_gradient_to_floats(net);
    dti_settle_statistics(net, false);
    return DT_OK;
}

/* A step's backward pass, once the logits' gradient stands. */
static dt_err dti_backward(dt_net *net) {
    dti_begin_backward(net);
    DT_TRY(dti_backward_once(net));
    return dti_end_backward(net);
}

DT_API dt_err dt_accumulate_gradients(dt_net *net, const dt_batch *batch, uint32_t parts) {
    DT_TRY(dti_begin_step(__func__, net, batch, parts));
    dti_begin_backward(net);
    DT_TRY(dti_all_parts(net));
    return dti_end_backward(net);
}

static dt_err dti_may_go_back(const char *who, const dt_net *net) {
    DT_TRY(dti_ready(who, net));
    return net->masked && net->loaded
               ? DT_OK
               : dt_fail(DT_EARG, "net: dt_forward comes before %s", who);
}

/* The loss's derivative by every logit, divided by the global batch's count; then the layers. */
DT_API dt_err dt_backward(dt_net *net) {
    DT_TRY(dti_may_go_back(__func__, net));
    DT_TRY(dti_backward_loss(net));
    return dti_backward(net);
}

/* The same with the caller's derivatives, put into lanes. */
DT_API dt_err dt_backward_from(dt_net *net, const float *dlogits) {
    DT_TRY(dti_may_go_back(__func__, net));
    DTI_NEED(dlogits || net->batch.count == 0, "dlogits", DT_EARG);
    const size_t K = (size_t)net->classes;
    for (uint32_t i = 0; i < (uint32_t)net->groups * DT_LANES; ++i) {
        float *dz = dti_dlogits_of(net, (int)(i / DT_LANES)) + i % DT_LANES;
        for (size_t k = 0; k < K; ++k)
            dz[k * DT_LANES] = i < net->batch.count ? dlogits[i * K + k] : 0.0f;
    }
    return dti_backward(net);
}
#endif

/* ==== [S9] Optimizers and schedules ======================================= */

/* The gradient says which way the loss grows. An optimizer turns it into a change of the
   parameters: plain loops over flat vectors, with the formulas of PyTorch's torch.optim. It knows
   nothing of layers, only where each tensor begins and ends in the vectors, since some treat a
   tensor as one thing and people want to treat some tensors differently [S9.6]. Each kind is a
   subsection: its description, and a class that says all that is to know of it. */

/* ==== [S9.1] What an optimizer is =========================================

   Three vectors side by side, and a class that fills one from the others:

       values      w0 w1 w2 ...         the net's, as far as they are trained
       gradients   g0 g1 g2 ...         the net's; with ranks, already summed [S11.1]
       state       m0 m1 m2 ...         the optimizer's own: none, one or two, from 0

       class->change:  change[i] = f(values[i], gradients[i], state[i])      then values += change

   As all ranks step along the same gradient, their values and states stay the same without being
   sent. */
#ifdef DTI_DECLARE
typedef struct dt_optimizer dt_optimizer;

/* The makers below, such as dt_sgd [S9.2], make one for a net that is built: NULL with dt_error()
   on a setting that cannot be meant. It steps this net's vectors, and ends before the net does. */
DT_API void dt_optimizer_free(dt_optimizer *opt);

/* values += change(gradients); what is not trained, such as running means, follows the batch */
DT_API void dt_optimizer_step(dt_optimizer *opt);
/* dt_optimizer_change: the step's change without taking it; out [dt_net_count]: of
   the trained parameters, which come first, overwritten. Advances the state. */
DT_API void dt_optimizer_change(dt_optimizer *opt, float *out);
/* forgets momentum and the step count */
DT_API void dt_optimizer_reset(dt_optimizer *opt);
DT_API float dt_optimizer_lr(const dt_optimizer *opt);
DT_API dt_err dt_optimizer_set_lr(dt_optimizer *opt, float lr);
DT_API const char *dt_optimizer_name(const dt_optimizer *opt); /* "sgd", "adam", ... */
/* A second one with the same settings and a fresh state, for another net of the same layers. */
DT_API dt_optimizer *dt_optimizer_clone(const dt_optimizer *opt, dt_net *net);
#endif

#ifdef DTI_IMPLEMENT
enum { DTI_KNOBS = 4, DTI_STATES = 2 };

/* One trained tensor: floats offset .. offset+n-1 of the vectors. */
typedef struct dti_part {
    const char *name;        /* the net's */
    size_t offset, n;
    float decay, factor;     /* weight decay; times the learning rate */
    bool frozen;             /* takes no step */
    double second;           /* NovoGrad: its v */
} dti_part;

typedef struct dti_optimizer_class {
    const char *name;
    int states;              /* vectors of its own, each as long as the parameters */
    /* before each step, the first one has opt->steps 0; NULL: nothing to do */
    void (*begin)(dt_optimizer *opt);
    /* change[i] for the parameters offset .. offset+n-1, which lie in that part */
    void (*change)(const dt_optimizer *opt, const dti_part *part, size_t offset, size_t n,
                   float *restrict change);
} dti_optimizer_class;

struct dt_optimizer {
    const dti_optimizer_class *class;
    float lr, setting[DTI_KNOBS]; /* of its description; equal settings, equal optimizer */
    dt_net *net;
    float *values, *gradients; /* the net's two vectors, as far as they are trained */
    size_t count;
    int64_t steps;           /* taken so far */
    double power[DTI_STATES]; /* Adam: beta1^t, beta2^t */
    float *state[DTI_STATES]; /* [count] each */
    int parts;
    dti_part *part;          /* [parts] one behind the other */
    float most;              /* clipping: the gradient's largest norm; 0: any */
};

static bool dti_not_negative(float x) { return x >= 0.0f && x <= FLT_MAX; } /* false for NaN */

/* A learning rate of 0 is a program that forgot to give one. */
static dt_err dti_lr_check(const char *name, float lr) {
    if (lr > 0.0f && lr <= FLT_MAX) return DT_OK;
    return dt_fail(DT_EARG, "%s: learning rate %g; it must be above 0", name, (double)lr);
}

/* A part for each trained tensor, with the settings of the whole until a group says others
   [S9.6]. */
static void dti_optimizer_parts(dt_optimizer *opt, float decay) {
    for (int i = 0; i < opt->net->params; ++i) {
        const dt_param *p = &opt->net->param[i];
        if (!p->trained) continue;
        opt->part[opt->parts++] = (dti_part){ .name = p->name, .offset = p->offset,
                                              .n = dt_tensor_count(&p->value), .decay = decay,
                                              .factor = 1.0f };
    }
}

/* What every maker ends in. The optimizer, its state and its parts lie in one block, states
   zeroed:

       dt_optimizer | state[0], as long as the net's trained values | state[1] ... | parts */
static dt_optimizer *dti_optimizer_new(dt_net *net, const dti_optimizer_class *class, float lr,
                                       float decay, const float setting[DTI_KNOBS]) {
    if (!net || !net->list.closed) {
        dt_fail(DT_EARG, "%s: the net must be built first", class->name);
        return NULL;
    }
    if (dti_ready(class->name, net) != DT_OK) return NULL;
    if (dti_lr_check(class->name, lr) != DT_OK) return NULL;
    const size_t head = dti_round_up(sizeof(dt_optimizer), 64),
                 vector = dti_round_up(net->trained * sizeof(float), 64),
                 vectors = dti_times(vector, (size_t)class->states);
    char *block = dti_alloc(
        dti_plus(dti_plus(head, vectors), dti_times((size_t)net->params, sizeof(dti_part))));
    if (!block) return NULL;
    dt_optimizer *opt = (dt_optimizer *)(void *)block;
    *opt = (dt_optimizer){ .class = class, .lr = lr, .net = net, .values = net->values,
                           .gradients = net->grad, .count = net->trained,
                           .part = (dti_part *)(void *)(block + head + vectors) };
    memcpy(opt->setting, setting, sizeof opt->setting);
    for (int i = 0; i < class->states; ++i)
        opt->state[i] = (float *)(void *)(block + head + vector * (size_t)i);
    dti_optimizer_parts(opt, decay);
    return opt;
}

DT_API void dt_optimizer_free(dt_optimizer *opt) { dti_release(opt); }
DT_API float dt_optimizer_lr(const dt_optimizer *opt) { DTI_NEED(opt, "opt", 0); return opt->lr; }
DT_API const char *dt_optimizer_name(const dt_optimizer *opt) {
    DTI_NEED(opt, "opt", "?");
    return opt->class->name;
}

DT_API dt_err dt_optimizer_set_lr(dt_optimizer *opt, float lr) {
    DTI_NEED(opt, "opt", DT_EARG);
    DT_TRY(dti_lr_check(opt->class->name, lr));
    opt->lr = lr;
    return DT_OK;
}

/* Settings of the whole and of its groups; no state. The other net's tensors must be cut alike, as
   groups are told by tensor. */
DT_API dt_optimizer *dt_optimizer_clone(const dt_optimizer *opt, dt_net *net) {
    DTI_NEED(opt && net, "opt and net", NULL);
    if (net->trained != opt->count) {
        dt_fail(DT_ESHAPE, "optimizer: the nets have %zu and %zu parameters", opt->count,
                net->trained);
        return NULL;
    }
    dt_optimizer *twin = dti_optimizer_new(net, opt->class, opt->lr, 0.0f, opt->setting);
    for (int i = 0; twin && i < opt->parts; ++i) {
        if (i == twin->parts || twin->part[i].n != opt->part[i].n) {
            dt_fail(DT_ESHAPE, "optimizer: the nets' parameters are cut into other tensors");
            dt_optimizer_free(twin);
            return NULL;
        }
        const char *name = twin->part[i].name;
        twin->part[i] = opt->part[i];
        twin->part[i].name = name, twin->part[i].second = 0.0;
    }
    if (twin) twin->most = opt->most;
    return twin;
}

/* State as it was when the optimizer was made; settings, groups and learning rate stay. */
DT_API void dt_optimizer_reset(dt_optimizer *opt) {
    DTI_NEED(opt, "opt", );
    for (int i = 0; i < opt->class->states; ++i)
        memset(opt->state[i], 0, opt->count * sizeof(float));
    for (int i = 0; i < opt->parts; ++i) opt->part[i].second = 0.0;
    opt->steps = 0;
}

/* In double the square of a float is exact, and sixteen sums, each of every sixteenth square, are
   rounded alike however wide the machine's registers are. */
static double dti_sum_of_squares(const float *x, size_t n) {
    double sum[DT_LANES] = { 0.0 }, total = 0.0;
    const size_t whole = n - n % DT_LANES;
    for (size_t i = 0; i < whole; i += DT_LANES)
        for (size_t l = 0; l < DT_LANES; ++l) sum[l] += (double)x[i + l] * (double)x[i + l];
    for (size_t i = whole; i < n; ++i) sum[i - whole] += (double)x[i] * (double)x[i];
    for (size_t l = 0; l < DT_LANES; ++l) total += sum[l];
    return total;
}

/* Clipping [S9.6]: g *= min(1, most / (|g| + 1e-6)), the norm over all parts that step. */
static void dti_clip_gradient(dt_optimizer *opt) {
    double square = 0.0;
    for (const dti_part *p = opt->part; p < opt->part + opt->parts; ++p)
        if (!p->frozen) square += dti_sum_of_squares(opt->gradients + p->offset, p->n);
    const double factor = (double)opt->most / (sqrt(square) + 1e-6);
    for (size_t i = 0; i < opt->count && factor < 1.0; ++i) opt->gradients[i] *= (float)factor;
}

/* One step: the gradient clipped, the class's begin, then part by part the change, which is
   added to the values or, for Hogwild, left in out. */
static void dti_change(dt_optimizer *opt, float *out, bool add) {
    enum { BLOCK = 1024 }; /* the change of a block stays in the L1 cache until it is added */
    float change[BLOCK];
    if (opt->most > 0.0f) dti_clip_gradient(opt);
    if (opt->class->begin) opt->class->begin(opt);
    for (const dti_part *p = opt->part; p < opt->part + opt->parts; ++p) {
        if (p->frozen && !add) memset(out + p->offset, 0, p->n * sizeof *out);
        for (size_t at = p->offset, end = at + p->n; at < end && !p->frozen; at += BLOCK) {
            const size_t n = dti_min_size(BLOCK, end - at);
            opt->class->change(opt, p, at, n, add ? change : out + at);
            for (size_t i = 0; i < n && add; ++i) opt->values[at + i] += change[i];
        }
    }
    ++opt->steps;
}

DT_API void dt_optimizer_step(dt_optimizer *opt) {
    DTI_NEED(opt, "opt", );
    dti_change(opt, NULL, true);
    dti_follow_statistics(opt->net);
}
DT_API void dt_optimizer_change(dt_optimizer *opt, float *out) {
    DTI_NEED(opt && out, "opt and out", );
    dti_change(opt, out, false);
}
#endif

/* ==== [S9.2] SGD ========================================================== */

/* The plain step is w -= lr * g. Where the loss is a long valley, g points mostly at its walls: the
   step jumps from wall to wall and hardly moves along. Momentum steps by a sum of gradients
   instead, of which the older count less:

     buf = g + mu * g_1 + mu^2 * g_2 + ...              g_k: the gradient of k steps ago

   What changes its sign from step to step cancels; what stays adds up. If g stays the same, buf
   comes to g * (1 + mu + mu^2 + ...) = g / (1 - mu): with mu = 0.9 a step is ten times as long as
   lr says, and looks back on about ten gradients. So who turns momentum on divides lr by as much,
   or means to go faster. */
#ifdef DTI_DECLARE
/* SGD (Robbins, Monro 1951; momentum: Polyak 1964; Nesterov's form as in Sutskever et al. 2013):
     g += wd*w;  buf = g the first time, then buf = mu*buf + (1-damp)*g
     g = nesterov ? g + mu*buf : buf;  w -= lr*g
   lr > 0; 0 <= momentum; 0 <= weight_decay; nesterov needs momentum > 0 and dampening 0. */
typedef struct dt_sgd_desc {
    float lr, momentum, dampening, weight_decay;
    bool nesterov;
} dt_sgd_desc;
DT_API dt_optimizer *dt_sgd(dt_net *net, const dt_sgd_desc *desc);
#endif

#ifdef DTI_IMPLEMENT
enum { DTI_SGD_MOMENTUM, DTI_SGD_DAMPENING, DTI_SGD_NESTEROV };

/* The first step has no buf to look back on: it is g itself, without dampening, as in PyTorch.
   Without momentum buf is written and not used, which costs less than a second loop would to
   read. */
static void dti_sgd_change(const dt_optimizer *opt, const dti_part *part, size_t offset, size_t n,
                           float *restrict change) {
    const float *restrict w = opt->values + offset, *restrict grad = opt->gradients + offset,
                          *set = opt->setting;
    float *restrict buf = opt->state[0] + offset;
    const float lr = opt->lr * part->factor, mu = set[DTI_SGD_MOMENTUM], wd = part->decay,
                keep = 1.0f - set[DTI_SGD_DAMPENING];
    const bool first = opt->steps == 0, nesterov = set[DTI_SGD_NESTEROV] > 0.0f,
               plain = !(mu > 0.0f);
    for (size_t i = 0; i < n; ++i) {
        float g = grad[i] + wd * w[i];
        float b = first ? g : mu * buf[i] + keep * g;
        buf[i] = b;
        float step = nesterov ? g + mu * b : b;
        change[i] = -lr * (plain ? g : step);
    }
}

static const dti_optimizer_class dti_sgd_class = { .name = "sgd", .states = 1,
                                                   .change = dti_sgd_change };

DT_API dt_optimizer *dt_sgd(dt_net *net, const dt_sgd_desc *d) {
    DTI_NEED(d, "desc", NULL);
    if (!dti_not_negative(d->momentum) || !dti_not_negative(d->weight_decay) ||
        !(d->dampening >= 0.0f && d->dampening <= 1.0f)) {
        dt_fail(DT_EARG, "sgd: momentum %g, dampening %g, weight decay %g; none may be negative, "
                "dampening at most 1", (double)d->momentum, (double)d->dampening,
                (double)d->weight_decay);
        return NULL;
    }
    if (d->nesterov && !(d->momentum > 0.0f && d->dampening <= 0.0f)) {
        dt_fail(DT_EARG, "sgd: nesterov needs a momentum above 0 and no dampening");
        return NULL;
    }
    const float setting[DTI_KNOBS] = { d->momentum, d->dampening, d->nesterov };
    return dti_optimizer_new(net, &dti_sgd_class, d->lr, d->weight_decay, setting);
}
#endif

/* ==== [S9.3] Adam ========================================================= */

/* One lr for all parameters is too large for some and too small for others. Adam measures each
   parameter's gradients: m is their running mean, v the running mean of their squares, and the step
   is lr * m / sqrt(v). So it is about lr where gradients agree, whatever their size, and small
   where they contradict each other.

   Both means begin at 0, which is no measurement. After t steps the weights of the gradients in m,
   (1-b1) * (1 + b1 + ... + b1^(t-1)), add up to 1 - b1^t, the rest being that 0: so m is divided by
   1 - b1^t, and v by 1 - b2^t. Without it the first step would be m / sqrt(v) = 0.1 g / (0.032
   |g|), three times too long, at the moment when least is known. */
#ifdef DTI_DECLARE
/* Adam (Kingma, Ba 2015), weight decay as L2 in g:
     g += wd*w;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g
     w -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)
   No hidden values: &(dt_adam_desc){ DT_ADAM_DEFAULTS } says PyTorch's by name; in C++, which has
   no such initialisers before C++20, dt_adam_desc adam = dt_adam_defaults(). */
typedef struct dt_adam_desc {
    float lr, beta1, beta2, eps, weight_decay;
} dt_adam_desc;
#define DT_ADAM_DEFAULTS .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f
DT_API dt_adam_desc dt_adam_defaults(void);
DT_API dt_optimizer *dt_adam(dt_net *net, const dt_adam_desc *desc);
#endif

#ifdef DTI_IMPLEMENT
enum { DTI_ADAM_BETA1, DTI_ADAM_BETA2, DTI_ADAM_EPS };

static void dti_adam_begin(dt_optimizer *opt) {
    if (opt->steps == 0) opt->power[0] = opt->power[1] = 1.0;
    for (int i = 0; i < 2; ++i) opt->power[i] *= (double)opt->setting[DTI_ADAM_BETA1 + i];
}

/* Moments and step of n parameters; decay: what is added to g as L2. */
static void dti_adam_descend(const dt_optimizer *opt, size_t offset, size_t n, float lr,
                             float decay, float *restrict change) {
    const float *restrict w = opt->values + offset, *restrict grad = opt->gradients + offset,
                          *set = opt->setting;
    float *restrict m = opt->state[0] + offset, *restrict v = opt->state[1] + offset;
    const float b1 = set[DTI_ADAM_BETA1], b2 = set[DTI_ADAM_BETA2], eps = set[DTI_ADAM_EPS];
    const float rate = (float)((double)lr / (1.0 - opt->power[0])),
                root = (float)(1.0 / sqrt(1.0 - opt->power[1]));
    for (size_t i = 0; i < n; ++i) {
        float g = grad[i] + decay * w[i];
        m[i] = b1 * m[i] + (1.0f - b1) * g;
        v[i] = b2 * v[i] + (1.0f - b2) * g * g;
        change[i] = v[i];
    }
    dti_sqrt_all(change, n);
    for (size_t i = 0; i < n; ++i) change[i] = -rate * m[i] / (change[i] * root + eps);
}

static void dti_adam_change(const dt_optimizer *opt, const dti_part *part, size_t offset, size_t n,
                            float *restrict change) {
    dti_adam_descend(opt, offset, n, opt->lr * part->factor, part->decay, change);
}

static const dti_optimizer_class dti_adam_class = {
    .name = "adam", .states = 2, .begin = dti_adam_begin, .change = dti_adam_change
};

static dt_optimizer *dti_adam_new(dt_net *net, const dti_optimizer_class *class,
                                  const dt_adam_desc *d) {
    if (!dti_betas_meant(class->name, d->beta1, d->beta2, d->eps, d->weight_decay)) return NULL;
    const float setting[DTI_KNOBS] = { d->beta1, d->beta2, d->eps };
    return dti_optimizer_new(net, class, d->lr, d->weight_decay, setting);
}

DT_API dt_adam_desc dt_adam_defaults(void) { return (dt_adam_desc){ DT_ADAM_DEFAULTS }; }
DT_API dt_optimizer *dt_adam(dt_net *net, const dt_adam_desc *d) {
    DTI_NEED(d, "desc", NULL);
    return dti_adam_new(net, &dti_adam_class, d);
}
#endif

/* ==== [S9.4] AdamW ======================================================== */

/* Weight decay means to pull every weight towards 0 by the same share of itself. As L2 in Adam's g
   it does not: there it is divided by sqrt(v), and a weight with large gradients is hardly pulled
   at all. AdamW takes the decay out of g and applies it to the weight itself (Loshchilov, Hutter
   2019, "Decoupled weight decay regularization"). */
#ifdef DTI_DECLARE
/* w *= 1 - lr*wd;  then Adam's step [S9.3] with g as it is. &(dt_adam_desc){ DT_ADAMW_DEFAULTS }
   says PyTorch's values: Adam's, and a weight decay of 0.01. */
#define DT_ADAMW_DEFAULTS DT_ADAM_DEFAULTS, .weight_decay = 1e-2f
DT_API dt_adam_desc dt_adamw_defaults(void);
DT_API dt_optimizer *dt_adamw(dt_net *net, const dt_adam_desc *desc);
#endif

#ifdef DTI_IMPLEMENT
/* w*(1 - lr*wd) - step is w + (-step - lr*wd*w): the pull is one more term of the change. */
static void dti_adamw_change(const dt_optimizer *opt, const dti_part *part, size_t offset,
                             size_t n, float *restrict change) {
    const float *restrict w = opt->values + offset;
    const float lr = opt->lr * part->factor, pull = lr * part->decay;
    dti_adam_descend(opt, offset, n, lr, 0.0f, change);
    for (size_t i = 0; i < n; ++i) change[i] -= pull * w[i];
}

static const dti_optimizer_class dti_adamw_class = {
    .name = "adamw", .states = 2, .begin = dti_adam_begin, .change = dti_adamw_change
};

DT_API dt_adam_desc dt_adamw_defaults(void) { return (dt_adam_desc){ DT_ADAMW_DEFAULTS }; }
DT_API dt_optimizer *dt_adamw(dt_net *net, const dt_adam_desc *d) {
    DTI_NEED(d, "desc", NULL);
    return dti_adam_new(net, &dti_adamw_class, d);
}
#endif

/* ==== [S9.5] NovoGrad ===================================================== */

/* With large batches lr must be large, and what a layer can bear depends on how large its gradient
   is beside its weights; where one layer is thrown off, the net is. NovoGrad gives every tensor a
   step of the same length: it divides a tensor's gradient by the norm of the whole tensor's, where
   Adam divides each number by its own. That is one v a tensor, and half of Adam's memory.

   v is a sum over a tensor, and the ranks must agree on its last bit. They do, as each makes it
   from the averaged gradient, which is the same on all, in an order that is fixed here. */
#ifdef DTI_DECLARE
/* NovoGrad (Ginsburg et al. 2019). For each tensor v = |g|^2 the first time, then
   v = b2*v + (1-b2)*|g|^2;
     g = g / (sqrt(v) + eps) + wd*w;  if averaging g *= 1-b1;  m = b1*m + g;  w -= lr*m
   No bias correction: v begins with a measurement, and m as in [S9.2], with 1/(1-b1).
   &(dt_novograd_desc){ DT_NOVOGRAD_DEFAULTS }: lr 0.001, b1 0.95, b2 0, eps 1e-8. */
typedef struct dt_novograd_desc {
    float lr, beta1, beta2, eps, weight_decay;
    bool averaging;
} dt_novograd_desc;
#define DT_NOVOGRAD_DEFAULTS .lr = 1e-3f, .beta1 = 0.95f, .beta2 = 0.0f, .eps = 1e-8f
DT_API dt_novograd_desc dt_novograd_defaults(void);
DT_API dt_optimizer *dt_novograd(dt_net *net, const dt_novograd_desc *desc);
#endif

#ifdef DTI_IMPLEMENT
enum { DTI_NOVO_BETA1, DTI_NOVO_BETA2, DTI_NOVO_EPS, DTI_NOVO_AVERAGING };

/* v of each tensor, before the first change: a change needs the whole tensor's, and is asked for in
   blocks. */
static void dti_novograd_begin(dt_optimizer *opt) {
    const double b2 = (double)opt->setting[DTI_NOVO_BETA2];
    for (dti_part *p = opt->part; p < opt->part + opt->parts; ++p) {
        const double square = dti_sum_of_squares(opt->gradients + p->offset, p->n);
        p->second = opt->steps == 0 ? square : b2 * p->second + (1.0 - b2) * square;
    }
}

static void dti_novograd_change(const dt_optimizer *opt, const dti_part *part, size_t offset,
                                size_t n, float *restrict change) {
    const float *restrict w = opt->values + offset, *restrict grad = opt->gradients + offset,
                          *set = opt->setting;
    float *restrict m = opt->state[0] + offset;
    const float b1 = set[DTI_NOVO_BETA1], lr = opt->lr * part->factor, wd = part->decay,
                share = set[DTI_NOVO_AVERAGING] > 0.0f ? 1.0f - b1 : 1.0f,
                unit = (float)(1.0 / (sqrt(part->second) + (double)set[DTI_NOVO_EPS]));
    for (size_t i = 0; i < n; ++i) {
        const float g = grad[i] * unit + wd * w[i];
        m[i] = b1 * m[i] + share * g;
        change[i] = -lr * m[i];
    }
}

static const dti_optimizer_class dti_novograd_class = {
    .name = "novograd", .states = 1, .begin = dti_novograd_begin, .change = dti_novograd_change
};

DT_API dt_novograd_desc dt_novograd_defaults(void) {
    return (dt_novograd_desc){ DT_NOVOGRAD_DEFAULTS };
}
DT_API dt_optimizer *dt_novograd(dt_net *net, const dt_novograd_desc *d) {
    DTI_NEED(d, "desc", NULL);
    if (!dti_betas_meant("novograd", d->beta1, d->beta2, d->eps, d->weight_decay)) return NULL;
    const float setting[DTI_KNOBS] = { d->beta1, d->beta2, d->eps, d->averaging };
    return dti_optimizer_new(net, &dti_novograd_class, d->lr, d->weight_decay, setting);
}
#endif

/* ==== [S9.6] Parameter groups, clipping =================================== */

/* What is right for a layer's weights need not be for all that is trained. Weight decay on a bias
   or on batch norm's gamma only holds back what the layer is shifted and stretched by, so they are
   usually spared; layers that come from another net are frozen, or learn more slowly. Parameters
   are called by their names: a pattern, in which * stands for any letters, says whom.

       dt_optimizer_group(opt, &(dt_group_desc){ .names = "*.bias" });           no decay on biases
       dt_optimizer_group(opt, &(dt_group_desc){ .names = "conv1.*", .frozen = true });

   And where one batch in a thousand has a gradient a hundred times as long as the others, one step
   along it can undo them all. Clipping by global norm shortens it to a given length and leaves its
   direction: g *= min(1, most / (|g| + 1e-6)), |g| the norm of all parameters' gradients together
   (Pascanu, Mikolov, Bengio 2013). */
#ifdef DTI_DECLARE
typedef struct dt_group_desc {
    const char *names;       /* "conv1.weight", "*.bias", "bn*" */
    float lr_factor;         /* times the optimizer's learning rate; 0 means 1 */
    float weight_decay;      /* instead of the optimizer's; 0: none */
    bool frozen;             /* takes no step; its gradient does not count for clipping */
} dt_group_desc;

/* Its settings hold where the pattern fits, instead of those before. DT_EARG if it fits none. */
DT_API dt_err dt_optimizer_group(dt_optimizer *opt, const dt_group_desc *desc);
/* The next steps clip the gradient, where it lies, to that norm; 0: no more. */
DT_API dt_err dt_optimizer_clip(dt_optimizer *opt, float norm);
#endif

#ifdef DTI_IMPLEMENT
/* Letters fit themselves. A star takes as little as it can; where that turns out too little, as
   much more as the rest of the pattern needs. */
static bool dti_name_fits(const char *pattern, const char *name) {
    const char *star = NULL, *from = NULL;
    while (*name) {
        if (*pattern == '*') star = pattern++, from = name;
        else if (*pattern == *name) ++pattern, ++name;
        else if (star) pattern = star + 1, name = ++from;
        else return false;
    }
    return strspn(pattern, "*") == strlen(pattern);
}

/* All three settings of every part whose name fits: a group says everything, so of two that fit the
   later one counts. */
DT_API dt_err dt_optimizer_group(dt_optimizer *opt, const dt_group_desc *d) {
    DTI_NEED(opt && d && d->names, "opt, desc and its names", DT_EARG);
    if (!dti_not_negative(d->lr_factor) || !dti_not_negative(d->weight_decay))
        return dt_fail(DT_EARG, "group \"%.60s\": factor %g, weight decay %g; none may be negative",
                       d->names, (double)d->lr_factor, (double)d->weight_decay);
    bool some = false;
    for (dti_part *p = opt->part; p < opt->part + opt->parts; ++p) {
        if (!dti_name_fits(d->names, p->name)) continue;
        p->decay = d->weight_decay;
        p->factor = d->lr_factor > 0.0f ? d->lr_factor : 1.0f;
        p->frozen = d->frozen;
        some = true;
    }
    return some ? DT_OK : dt_fail(DT_EARG, "group \"%.60s\": fits no trained parameter", d->names);
}

DT_API dt_err dt_optimizer_clip(dt_optimizer *opt, float norm) {
    DTI_NEED(opt, "opt", DT_EARG);
    if (!dti_not_negative(norm))
        return dt_fail(DT_EARG, "clipping: a norm of %g; it may not be negative", (double)norm);
    opt->most = norm;
    return DT_OK;
}
#endif

/* ==== [S9.7] Schedules ==================================================== */

/* Far from a minimum long steps are cheap progress; near it they jump over it from side to side,
   and the loss stays where the noise of the batches holds it. So the learning rate falls while
   training goes on. And it may rise first: a net fresh from its random numbers has gradients that
   say little of where it will be in a hundred steps, and a large batch is stepped on with a large
   rate (Goyal et al. 2017), so the first steps are kept short: warm-up.

   A schedule is the learning rate as a function of t, which counts epochs or steps from 0, made of
   pieces that follow each other; t begins at 0 in each.

       lr |     ____                  linear, from 1/3, over 5 ...
          |   /      `-.              ... then cosine, over 25
          | /             `-.
          |                   `--__
          +----------------------------- t
          0     5                   30

       static const dt_schedule fall = { .curve = DT_LR_COSINE, .over = 25 };
       static const dt_schedule rise = { DT_WARMUP_DEFAULTS, .then = &fall };

   Trainers [S11] set it before each step; loops of one's own call dt_schedule_lr. */
#ifdef DTI_DECLARE
typedef enum dt_curve {
    DT_LR_CONSTANT,
    DT_LR_LINEAR,   /* lr * (from + (to - from) * min(t,T)/T), T = over: PyTorch's LinearLR */
    DT_LR_STEPS,    /* lr * factor^floor(t/every): StepLR */
    DT_LR_COSINE,   /* end + (lr - end) * (1 + cos(pi*min(t,T)/T)) / 2: CosineAnnealingLR */
    DT_LR_CURVES
} dt_curve;

typedef struct dt_schedule {
    dt_curve curve;
    bool by_step;            /* t counts steps, else epochs; alike in all pieces */
    uint32_t over;           /* T; and, where another piece follows, when: at t = T */
    float from, to;          /* linear: factors of lr */
    uint32_t every;          /* steps: at least 1 */
    float factor;            /* steps */
    float end;               /* cosine: a learning rate */
    const struct dt_schedule *then; /* NULL: it goes on as it is */
} dt_schedule;
#define DT_WARMUP_DEFAULTS .curve = DT_LR_LINEAR, .from = 1.0f / 3.0f, .to = 1.0f, .over = 5

/* The learning rate at that epoch and step, both counted from 0 over the whole training; lr: the
   optimizer's own. schedule NULL: lr. 0 and a sentence where the schedule cannot be meant. */
DT_API float dt_schedule_lr(const dt_schedule *schedule, float lr, uint32_t epoch, uint64_t step);

/* A batch k times as large has k times fewer steps an epoch, each along a mean that is less noisy.
   Two rules for how much longer they may then be: k times, so that an epoch comes as far (Goyal et
   al. 2017), or sqrt(k) times, so that the noise of a step stays as it was (Krizhevsky 2014). */
typedef enum dt_lr_scaling { DT_SCALE_NONE, DT_SCALE_LINEAR, DT_SCALE_SQRT } dt_lr_scaling;
/* lr, which was found for batches of lr_batch, for batches of `batch`. 0 and a sentence where there
   is no such scaling, or a batch is 0. */
DT_API float dt_lr_scaled(float lr, dt_lr_scaling how, uint32_t batch, uint32_t lr_batch);
#endif

#ifdef DTI_IMPLEMENT
/* A curve: the learning rate at t of its own piece, and what of a description it cannot do
   without. */
typedef struct dti_curve_class {
    double (*at)(const dt_schedule *s, double lr, uint64_t t);
    bool over, every;        /* what it cannot do without */
} dti_curve_class;

/* How much of a piece is behind us, 0..1. */
static double dti_share_of(uint64_t t, uint32_t T) { return t < T ? (double)t / (double)T : 1.0; }

static double dti_constant_at(const dt_schedule *s, double lr, uint64_t t) {
    return (void)s, (void)t, lr;
}

static double dti_linear_at(const dt_schedule *s, double lr, uint64_t t) {
    const double from = (double)s->from, to = (double)s->to;
    return lr * (from + (to - from) * dti_share_of(t, s->over));
}

/* By squares, in few multiplications whose order is fixed: pow has other last bits elsewhere. */
static double dti_steps_at(const dt_schedule *s, double lr, uint64_t t) {
    double square = (double)s->factor;
    for (uint64_t n = t / s->every; n; n >>= 1, square *= square)
        if (n & 1) lr *= square;
    return lr;
}

/* (1 + cos(2a)) / 2 = 1 - sin(a)^2, here with a = pi/2 * t/T: one quarter of a wave, for which
   Taylor's series to a^19 is off by 3e-16 at most. The C library's cos would do, but for its last
   bits, in which ranks on different systems might differ. */
static double dti_cosine_at(const dt_schedule *s, double lr, uint64_t t) {
    const double a = 0x1.921fb54442d18p0 * dti_share_of(t, s->over), end = (double)s->end;
    double sine = 1.0; /* / a: 1 - a^2/(2*3) * (1 - a^2/(4*5) * (1 - ... */
    for (int k = 19; k > 1; k -= 2) sine = 1.0 - a * a / (double)(k * (k - 1)) * sine;
    sine *= a;
    return end + (lr - end) * (1.0 - sine * sine);
}

static const dti_curve_class dti_curves[] = { { dti_constant_at, false, false },
                                              { dti_linear_at, true, false },
                                              { dti_steps_at, false, true },
                                              { dti_cosine_at, true, false } };

/* What two schedules that are alike have in common. */
static uint64_t dti_schedule_hash(const dt_schedule *s, uint64_t hash) {
    for (; s; s = s->then) {
        const uint64_t whole[] = { (uint64_t)s->curve, s->by_step, s->over, s->every };
        const float numbers[] = { s->from, s->to, s->factor, s->end };
        hash = dt_hash(numbers, sizeof numbers, dt_hash(whole, sizeof whole, hash));
    }
    return hash;
}

/* Finds the piece in which t lies: with 5 epochs of warm-up in front, epoch 7 is t = 2 of the
   cosine. */
static float dti_schedule_at(const dt_schedule *s, float lr, uint32_t epoch, uint64_t step) {
    uint64_t t = s && s->by_step ? step : epoch;
    while (s && s->then && t >= s->over) t -= s->over, s = s->then;
    return s ? (float)dti_curves[s->curve].at(s, (double)lr, t) : lr;
}

DT_API float dt_schedule_lr(const dt_schedule *s, float lr, uint32_t epoch, uint64_t step) {
    return dti_schedule_check(s) == DT_OK ? dti_schedule_at(s, lr, epoch, step) : 0.0f;
}

/* 0.01 found for batches of 64, for batches of 1024: 0.16 by the linear rule, 0.04 by the root. */
DT_API float dt_lr_scaled(float lr, dt_lr_scaling how, uint32_t batch, uint32_t lr_batch) {
    if (dti_check_enum("learning rate", "scaling", how, DT_SCALE_SQRT + 1u) != DT_OK) return 0.0f;
    if (how == DT_SCALE_NONE) return lr;
    if (batch == 0 || lr_batch == 0)
        return dt_fail(DT_EARG, "learning rate: from batches of %u to batches of %u; needs both",
                       (unsigned)lr_batch, (unsigned)batch), 0.0f;
    const double k = (double)batch / (double)lr_batch;
    return (float)((double)lr * (how == DT_SCALE_LINEAR ? k : sqrt(k)));
}
#endif

/* ==== [S10] Ranks =========================================================

   To train one model on several cores or machines, several copies of the program run at once. Each
   copy is a rank: it has a number, 0 to p-1, all the parameters, and a part of every batch. Ranks
   share nothing; they send each other messages. And nearly all that they have to say to each other
   is one thing: everybody has a vector, its share of the gradient, and everybody wants the sum.
   That is an all-reduce, and how to do it with few messages and few bytes is what this section is
   about.

       rank 0   g0 --.                        .-->  g0+g1+g2
       rank 1   g1 ---+--   all-reduce   ----+--->  g0+g1+g2
       rank 2   g2 --'                        '-->  g0+g1+g2

   The ranks of a group, with all that one needs in order to reach the others, are a communicator, a
   dt_comm. There are three kinds of them:

       alone     one process, one rank: every sum is there already
       threads   p threads of one process (dt_run_ranks): for tests, and where there is no MPI
       MPI       p processes started by mpiexec (compile with DTRAIN_WITH_MPI and mpicc.mpich)

   A trainer never asks which one it has. What they differ in, how a message gets from one rank to
   the other, is in [E2.5] and [E3.2]; how ranks wait for each other, in [E2.3].

   A collective is a call that is finished by all ranks together: broadcast, allgather, barrier,
   all-reduce. There is one rule: every rank calls the same ones in the same order. A rank that
   leaves one out leaves the others waiting; a rank that dies, hangs, differs or drifts is noticed
   and named, see [E4.1].

   To read: the declarations of [S10.1] and [S10.2] once; then [S10.3], the algorithms. */

/* ==== [S10.1] Ranks ========================================================= */
#ifdef DTI_DECLARE

typedef struct dt_comm dt_comm;

/* The one-rank communicator. NULL if memory is out. Free with dt_comm_free. */
DT_API dt_comm *dt_comm_alone(void);

/* What a chapter starts with: MPI where it is compiled in, with a watcher [E4.1] that writes to
   standard error; else alone. Call it first in main, before any thread is started: under mpiexec it
   forks. argc and argv are main's, or both NULL. NULL on failure, with the reason in dt_error(). */
DT_API dt_comm *dt_comm_world(int *argc, char ***argv);

/* Says goodbye to the other ranks and releases everything; ends MPI if dt_comm_mpi began it.
   NULL is allowed. A rank of several that ends without this call has failed, whatever its exit
   code. */
DT_API void dt_comm_free(dt_comm *comm);

DT_API int dt_comm_rank(const dt_comm *comm);  /* 0 .. size-1 */
DT_API int dt_comm_size(const dt_comm *comm);
DT_API int dt_comm_hosts(const dt_comm *comm); /* on how many machines the ranks are */
/* the name of the machine on which that rank runs; "localhost" in a build without MPI and
   threads */
DT_API const char *dt_comm_host(const dt_comm *comm, int rank);
DT_API const char *dt_comm_backend_name(const dt_comm *comm); /* "alone", "threads", "MPI" */

/* Ends the whole job: under MPI every process stops, and mpiexec does not end with 0; under threads
   every rank that waits, or will wait, in this section returns DT_ECOMM. */
DT_API void dt_comm_abort(dt_comm *comm, int exit_code);

#ifdef DTRAIN_WITH_THREADS
/* Runs fn(comm, arg) on p ranks at once, 1..1024, each a thread; rank 0 is the caller's own.
   Returns when all have returned: DT_OK, or the error of the first rank that failed. A rank that
   returns an error frees the others from waiting. */
DT_API dt_err dt_run_ranks(int p, dt_err (*fn)(dt_comm *comm, void *arg), void *arg);
#endif

#ifdef DTRAIN_WITH_MPI
/* Starts MPI and wraps all its processes. NULL on failure, with the reason in dt_error(). */
DT_API dt_comm *dt_comm_mpi(int *argc, char ***argv);

/* For programs that have started MPI themselves: the group of the MPI_Comm to which the pointer
   points (a copy is made; MPI is not ended by dt_comm_free). A void pointer, so that these
   declarations need no mpi.h. */
DT_API dt_comm *dt_comm_from_mpi(const void *mpi_comm_pointer);
#endif

/* How a rank waits. Ranks often outnumber cores, and a rank that waits must not hold the core that
   another rank needs in order to arrive.

     DT_WAIT_SPIN    keeps testing: the shortest delay, and a wasted core
     DT_WAIT_YIELD   gives the core away between two tests (sched_yield), so it costs nothing when
                     others have work
     DT_WAIT_SLEEP   sleeps until the last rank has brought its part (on Linux, through shared
                     memory), else 50 microseconds between two tests: a cool machine, and late by
                     the time it takes to wake
     DT_WAIT_AUTO    spins for microseconds, then yields for a millisecond, then sleeps; how long
                     each follows from how many ranks there are for how many cores [E2.3]

   Environment: DTRAIN_WAIT=spin|yield|sleep, read when the communicator is made. */
typedef enum dt_wait { DT_WAIT_AUTO, DT_WAIT_SPIN, DT_WAIT_YIELD, DT_WAIT_SLEEP } dt_wait;
DT_API void dt_comm_set_wait(dt_comm *comm, dt_wait wait);

/* What communication has cost this rank since the communicator was made. */
typedef struct dt_comm_cost {
    double   wait;        /* seconds spent waiting for other ranks */
    double   reduce;      /* seconds spent copying and adding */
    uint64_t bytes;       /* given to others (to MPI or to shared memory: once per all-reduce) */
    uint64_t messages;    /* sends of the hand-written algorithms */
    uint64_t collectives; /* all-reduces, broadcasts, gathers and barriers */
} dt_comm_cost;
DT_API dt_comm_cost dt_comm_times(const dt_comm *comm);

#endif /* DTI_DECLARE */

/* ==== [S10.2] Messages and collectives ====================================== */
#ifdef DTI_DECLARE

typedef enum dt_type { DT_F32, DT_F64, DT_I64 } dt_type;
typedef enum dt_op   { DT_SUM, DT_MIN, DT_MAX } dt_op;

/* The ways to all-reduce, and what each costs in the usual model: a message of n bytes takes a +
   n b seconds, a to get it going and b for each byte; adding a byte takes c. On p ranks (lg is
   the logarithm to base 2, rounded up; Thakur, Rabenseifner, Gropp 2005):

     DT_NAIVE     rank 0 gathers, adds, sends back       2(p-1)(a + nb) + (p-1)nc at rank 0
     DT_TREE      the same along a binomial tree         2 lg p (a + nb) + lg p nc
     DT_RING      p blocks travel once and once more     2(p-1)a + 2(p-1)/p nb + (p-1)/p nc
     DT_DOUBLING  everybody exchanges everything         lg p (a + nb + nc)
     DT_HALVING   halves, quarters ..., and back         2 lg p a + 2(p-1)/p nb + (p-1)/p nc
     DT_MPI       the MPI library's own choice
     DT_SHARED    through memory that all ranks of one host see; no messages at all
     DT_AUTO      what dt_comm_set_algorithm has said, else DT_SHARED where all ranks are on one
                  host, else DT_MPI

   Two terms pull against each other. A short vector is all a, and wants few messages: doubling
   has lg p of them. A long one is all nb, and wants few bytes: no rank can do with less than
   2(p-1)/p n, and ring and halving need no more. With p = 8, a = 1 us, b = 1/10 ns and c = 0:
   for n = 100 bytes the ring takes 14 us and doubling 3; for 10 MB the ring 1.8 ms and doubling
   3.

   Where p is not a power of two, DOUBLING and HALVING first fold the extra ranks into others,
   and unfold at the end: two more messages of n bytes. */
typedef enum dt_algorithm {
    DT_AUTO, DT_NAIVE, DT_TREE, DT_RING, DT_DOUBLING, DT_HALVING, DT_MPI, DT_SHARED, DT_ALGORITHMS
} dt_algorithm;

/* "ring"; "?" if there is no such one */
DT_API const char *dt_algorithm_name(dt_algorithm algorithm);
/* the other way round; DT_EARG, naming those there are */
DT_API dt_err dt_algorithm_parse(const char *name, dt_algorithm *out);

/* What DT_AUTO means on this communicator from now on, for trainers, averages and barriers alike;
   DT_AUTO: the choice above again. Every rank says the same. DT_EARG or DT_ECOMM, and nothing
   changes, if these ranks cannot use it. */
DT_API dt_err dt_comm_set_algorithm(dt_comm *comm, dt_algorithm algorithm);

/* buf of root reaches everybody's buf, along a binomial tree: lg p messages of `bytes`. */
DT_API dt_err dt_broadcast(dt_comm *comm, void *buf, size_t bytes, int root);

/* One message to, or from, one rank. Both sides give the same size and tag (0 .. 32000), or
   DT_ECOMM. A send may wait until the other side receives, so two ranks that send to each other
   first may wait for ever: use dt_sendrecv. To oneself: dt_sendrecv with to and from alike, else
   DT_EARG. */
DT_API dt_err dt_send(dt_comm *comm, const void *buf, size_t bytes, int to, int tag);
DT_API dt_err dt_recv(dt_comm *comm, void *buf, size_t bytes, int from, int tag);
DT_API dt_err dt_sendrecv(dt_comm *comm, const void *send, size_t send_bytes, int to,
                          void *recv, size_t recv_bytes, int from, int tag);

/* Nobody leaves before everybody has come. */
DT_API dt_err dt_barrier(dt_comm *comm);

/* all[r*bytes ..] = mine of rank r, on every rank. mine and all do not overlap. p-1 messages of
   `bytes`. */
DT_API dt_err dt_allgather(dt_comm *comm, const void *mine, size_t bytes, void *all);

/* buf[i] = op over all ranks of buf[i], i < n, in place, the same bits on every rank. Algorithms
   may differ from each other in a float's last bits, because they add in different orders:
   (a+b)+c is not a+(b+c). DT_I64 never does (sums wrap at 64 bits), which is why gradients
   travel as integers [S3.2]. */
DT_API dt_err dt_allreduce(dt_comm *comm, void *buf, size_t n, dt_type type, dt_op op,
                           dt_algorithm algorithm);

/* The same in two parts, so that computing goes on meanwhile. Several may be in flight (32; one
   more first waits for the oldest). buf belongs to the request until wait, or test with *done,
   has returned. Nobody works on it behind your back: it goes forward inside test and wait, which
   bring on all requests in flight, in whatever order they are waited for. So call test now and
   then in a long computation. */
typedef struct dt_allreduce_desc {
    void        *buf;
    size_t       n;
    dt_type      type;
    dt_op        op;
    dt_algorithm algorithm;
} dt_allreduce_desc;
/* 0: none; waiting for none returns at once */
typedef struct dt_request { uint64_t number; } dt_request;
DT_API dt_err dt_allreduce_start(dt_comm *comm, const dt_allreduce_desc *desc, dt_request *request);
DT_API dt_err dt_allreduce_test(dt_comm *comm, dt_request *request, bool *done);
DT_API dt_err dt_allreduce_wait(dt_comm *comm, dt_request *request);

/* What rank does in step k of an all-reduce of n elements over p ranks, at most 65536: the
   algorithms as data, for pictures, for counting, and for running them. False where the algorithm
   has no step k (and for DT_MPI, DT_SHARED, DT_AUTO). */
typedef struct dt_step {
    int    to;   size_t send_at, send_n; /* to   < 0: sends nothing */
    int    from; size_t recv_at, recv_n; /* from < 0: receives nothing */
    bool   add;                          /* what comes is added to what is there, or replaces it */
} dt_step;
DT_API bool dt_allreduce_step(dt_algorithm algorithm, int k, int rank, int p, size_t n,
                              dt_step *step);

#endif /* DTI_DECLARE */

/* ==== [S10.3] All-reduce by hand ============================================

   An algorithm is a function of (k, rank, p, n) that says what this rank sends and receives in step
   k. Nothing else is needed: one engine [E2.4] carries the steps out, over messages between threads
   or between processes, blocking or in flight. A rank is in step k when its steps 0 .. k-1 are
   through; what it waits for in a step is only what that step receives, so ranks need not be in the
   same step at the same time. A message of zero elements is not sent.

   Why the sums come out right on every rank, whatever the order in which they run: each element of
   each rank's vector is added into the result once. Watch in the pictures where an element goes. */
#ifdef DTI_IMPLEMENT
/* Where part i begins when n things are cut into p parts that differ by at most one: floor(i n /
   p), written so that i n need not fit. Also right for n < p. 10 things in 4 parts: 0 2 5 7 10. */
static size_t dti_cut(size_t n, int p, int i) {
    return n / (size_t)p * (size_t)i + n % (size_t)p * (size_t)i / (size_t)p;
}

static void dti_step_send(dt_step *s, int to, size_t begin, size_t end) {
    s->to = to, s->send_at = begin, s->send_n = end - begin;
}

static void dti_step_recv(dt_step *s, int from, size_t begin, size_t end, bool add) {
    s->from = from, s->recv_at = begin, s->recv_n = end - begin, s->add = add;
}

/*  Naive: 1, 2 and 3 give to 0, one after the other; 0 gives the sum to 1, 2 and 3.

      0 <- 1    0 <- 2    0 <- 3    0 -> 1    0 -> 2    0 -> 3                               */
static bool dti_step_naive(int k, int rank, int p, size_t n, dt_step *s) {
    if (rank > 0) {
        if (k == 0) dti_step_send(s, 0, 0, n);
        if (k == 1) dti_step_recv(s, 0, 0, n, false);
        return k < 2;
    }
    if (k < p - 1) dti_step_recv(s, k + 1, 0, n, true);
    else           dti_step_send(s, k - p + 2, 0, n);
    return k < 2 * (p - 1);
}

static int dti_log2_up(int p) {
    int h = 0;
    while (1 << h < p) ++h;
    return h;
}

/*  Tree: sums flow down to rank 0 in lg p rounds, and the result flows up the same branches in
    reverse.

      0   1   2   3   4   5   6   7
      |--<    |--<    |--<    |--<       round 0: distance 1
      |------<        |------<           round 1: distance 2
      |--------------<                   round 2: distance 4; then the same, backwards, with >

    A rank is a branch's foot in round j if its lowest j+1 bits are 0, and its tip if they are
    10..0: rank 6 = 110 is the foot of 7 in round 0, and the tip that gives to 4 in round 1. */
static bool dti_step_tree(int k, int rank, int p, size_t n, dt_step *s) {
    int rounds = dti_log2_up(p);
    bool down = k < rounds;
    if (k >= 2 * rounds) return false;
    int distance = 1 << (down ? k : 2 * rounds - 1 - k);
    if (rank % distance != 0) return true; /* not at a branch of this round */
    if (rank & distance) {
        if (down) dti_step_send(s, rank - distance, 0, n);
        else      dti_step_recv(s, rank - distance, 0, n, false);
    } else if (rank + distance < p) {
        if (down) dti_step_recv(s, rank + distance, 0, n, true);
        else      dti_step_send(s, rank + distance, 0, n);
    }
    return true;
}

/*  Ring: the vector is cut into p blocks. In every step each rank passes one block to the right. In
    the first p-1 steps the receiver adds: block b sets out from rank b and is complete when it
    reaches rank b-1. In the next p-1 steps the complete blocks go round once more. Both halves are
    the same formula.

      step 0     0 -b0-> 1 -b1-> 2 -b2-> 3 -b3-> 0
      step 1     0 -b3-> 1 -b0-> 2 -b1-> 3 -b2-> 0                                           */
static bool dti_step_ring(int k, int rank, int p, size_t n, dt_step *s) {
    int give = ((rank - k) % p + p) % p, take = (give + p - 1) % p;
    dti_step_send(s, (rank + 1) % p, dti_cut(n, p, give), dti_cut(n, p, give + 1));
    dti_step_recv(s, (rank + p - 1) % p, dti_cut(n, p, take), dti_cut(n, p, take + 1), k < p - 1);
    return k < 2 * (p - 1);
}

/* Doubling and halving need q = 2^m ranks. Step 0: rank q+i gives its vector to rank i. Last step:
   it gets the result. Returns the step's number within the inner algorithm of q ranks, or -1 where
   this rank has nothing to do in it.

      p = 6, q = 4:    4 -> 0, 5 -> 1    |   0 1 2 3 among themselves   |    0 -> 4, 1 -> 5     */
static int dti_step_fold(int k, int steps, int rank, int p, int q, size_t n, dt_step *s) {
    const bool first = k == 0;
    if (!first && k <= steps) return rank < q ? k - 1 : -1;
    if (rank >= q) {
        if (first) dti_step_send(s, rank - q, 0, n);
        else       dti_step_recv(s, rank - q, 0, n, false);
    } else if (rank + q < p) {
        if (first) dti_step_recv(s, rank + q, 0, n, true);
        else       dti_step_send(s, rank + q, 0, n);
    }
    return -1;
}

/*  Recursive doubling: in round j everybody exchanges the whole vector with the rank at distance
    2^j. After round j a rank has the sum over the 2^(j+1) ranks that differ from it in the lowest
    j+1 bits.

      0 <-> 1   2 <-> 3        then   0 <-> 2   1 <-> 3                                      */
static bool dti_step_doubling(int k, int rank, int p, size_t n, dt_step *s) {
    int rounds = dti_log2_up(p + 1) - 1, q = 1 << rounds; /* the largest power of two <= p */
    int j = dti_step_fold(k, rounds, rank, p, q, n, s);
    if (j >= 0) {
        dti_step_send(s, rank ^ 1 << j, 0, n);
        dti_step_recv(s, rank ^ 1 << j, 0, n, true);
    }
    return k < rounds + 2;
}

/*  Halving-doubling (Rabenseifner): the distance halves q/2, q/4, .. 1, and so does the piece: of
    the piece that two partners share, each gives away the half in which it does not live, and adds
    what it gets for the half in which it does. Then rank r has the whole sum of block r, and the
    same exchanges in reverse collect the blocks.

      rank 0 of 4:   gives 2 3 to rank 2, gives 1 to rank 1, has 0   |
                     gets 1 from rank 1, gets 2 3 from rank 2                                */
static bool dti_step_halving(int k, int rank, int p, size_t n, dt_step *s) {
    int rounds = dti_log2_up(p + 1) - 1, q = 1 << rounds;
    int j = dti_step_fold(k, 2 * rounds, rank, p, q, n, s);
    if (j >= 0) {
        bool halving = j < rounds;
        int distance = halving ? q >> (j + 1) : 1 << (j - rounds), partner = rank ^ distance;
        int mine = rank - rank % distance, other = partner - partner % distance;
        int give = halving ? other : mine, take = halving ? mine : other;
        dti_step_send(s, partner, dti_cut(n, q, give), dti_cut(n, q, give + distance));
        dti_step_recv(s, partner, dti_cut(n, q, take), dti_cut(n, q, take + distance), halving);
    }
    return k < 2 * rounds + 2;
}

/* Broadcast from rank 0 is the second half of the tree; an all-gather is the first half of the ring
   without adding. */
static bool dti_step_broadcast(int k, int rank, int p, size_t n, dt_step *s) {
    return dti_step_tree(k + dti_log2_up(p), rank, p, n, s);
}

static bool dti_step_allgather(int k, int rank, int p, size_t n, dt_step *s) {
    dti_step_ring(k, rank, p, n, s);
    s->add = false;
    return k < p - 1;
}

/* The table: a new algorithm is a function such as those above, a value of dt_algorithm and a row.
   What has no schedule goes by other means than messages, [E2.4] and [E3.2]. */
typedef bool dti_schedule(int k, int rank, int p, size_t n, dt_step *step);

static const struct { const char *name; dti_schedule *schedule; } dti_algorithms[DT_ALGORITHMS] = {
    [DT_AUTO]     = { "auto",     NULL },
    [DT_NAIVE]    = { "naive",    dti_step_naive },
    [DT_TREE]     = { "tree",     dti_step_tree },
    [DT_RING]     = { "ring",     dti_step_ring },
    [DT_DOUBLING] = { "doubling", dti_step_doubling },
    [DT_HALVING]  = { "halving",  dti_step_halving },
    [DT_MPI]      = { "mpi",      NULL },
    [DT_SHARED]   = { "shared",   NULL },
};

DT_API const char *dt_algorithm_name(dt_algorithm algorithm) {
    return (unsigned)algorithm < DT_ALGORITHMS ? dti_algorithms[algorithm].name : "?";
}

DT_API dt_err dt_algorithm_parse(const char *name, dt_algorithm *out) {
    DTI_NEED(name && out, "name and out", DT_EARG);
    for (int a = 0; a < DT_ALGORITHMS; ++a)
        if (strcmp(name, dti_algorithms[a].name) == 0) {
            *out = (dt_algorithm)a;
            return DT_OK;
        }
    return dt_fail(DT_EARG, "algorithm \"%s\" is not one of auto, naive, tree, ring, doubling, "
                            "halving, mpi, shared", name);
}

/* One step of a schedule; a message of no elements becomes none. */
static bool dti_schedule_step(dti_schedule *schedule, int k, int rank, int p, size_t n,
                              dt_step *s) {
    *s = (dt_step){ .to = -1, .from = -1 };
    if (p < 2 || !schedule(k, rank, p, n, s)) return false;
    if (s->send_n == 0) s->to = -1;
    if (s->recv_n == 0) s->from = -1;
    return true;
}

DT_API bool dt_allreduce_step(dt_algorithm algorithm, int k, int rank, int p, size_t n,
                              dt_step *step) {
    DTI_NEED(step, "step", false);
    if (k < 0 || p < 1 || p > 65536 || rank < 0 || rank >= p ||
        (unsigned)algorithm >= DT_ALGORITHMS)
        return dt_fail(DT_EARG,
                       "all-reduce: there is no step %d of rank %d of %d with algorithm %d", k,
                       rank, p, (int)algorithm),
               false;
    dti_schedule *schedule = dti_algorithms[algorithm].schedule;
    return schedule && dti_schedule_step(schedule, k, rank, p, n, step);
}
#endif

/* ==== [S11] Training ======================================================

   Training is one loop: epochs, in each of them steps, in each step a batch, a gradient and a
   change of the parameters. Several ranks bring in one question: when do they speak to each
   other, and what about? There are three answers, from often to never:

                                 they exchange            how often          the result depends on
       synchronous SGD [S11.3]   gradients, summed        every step         nothing of the ranks
       PSGD, local SGD [S11.4]   parameters, averaged     every H steps,     the number of ranks
                                                          or once at the end
       Hogwild [S11.5]           nothing: threads share   -                  the number of threads,
                                 the parameters                              and chance

   The loop is written once, in [S11.2], and a method hands it what differs:

       dti_run_each_epoch            for each epoch: the samples in a new order
           dti_run_epoch                 until the last step:
               dt_batches_next               this rank's part of a batch [S4.5]
               dti_schedule_at               the learning rate [S9.7]
               method->step              <-- gradient and change, the method's way
               on_step                       the caller is told, and may wish to stop
           method->epoch_end         <-- replicas compared, or averaged
           dti_good_enough               method->judge: is the target reached?

   To read: [S11.1], the verbs that loops of one's own are made of; [S11.2]; then one method. */

/* ==== [S11.1] The verbs of data parallelism ===============================

   A program that writes its own loop (the one at the top of this file) becomes parallel with two
   lines: dt_broadcast_parameters before it, so that all begin alike, and dt_average_gradients
   between dt_backward and dt_optimizer_step, so that all step alike. Replicas then stay equal
   without ever being compared; dt_check_replicas compares them all the same. */
#ifdef DTI_DECLARE
/* Rank 0's parameter values reach every rank, and its units of exact sums. */
DT_API dt_err dt_broadcast_parameters(dt_net *net, dt_comm *comm);

/* dt_average_gradients: each rank's gradient is its share of the global batch's mean [S8.1]; the
   shares are summed over the ranks, exactly unless the net was built with float_sums, and
   dt_net_gradients holds the result on every rank. dt_net_score becomes the global batch's.
   Uneven shares need no weights: each sample counts 1/global_count. */
DT_API dt_err dt_average_gradients(dt_net *net, dt_comm *comm);

/* dt_share_statistics: from now on layers that look at the global batch, such as batch norm
   [S6.11], add up over the ranks of comm: dt_forward and dt_backward then are collectives, and each
   rank calls them in every step, with an empty batch too. comm NULL ends that, and must before comm
   does. Trainers do both by themselves. */
DT_API dt_err dt_share_statistics(dt_net *net, dt_comm *comm);

/* dt_average_parameters: values = sum over ranks of values / ranks, exact sums, the same bits on
   every rank. */
DT_API dt_err dt_average_parameters(dt_net *net, dt_comm *comm);

/* dt_evaluate: score of the net on a whole data set with dropout off, its lane groups shared out
   over the ranks; no sample is padded or dropped. Every rank gets the same sums. comm NULL: this
   process alone. DT_ECOMM if the ranks' data, or their nets' batches, differ. */
DT_API dt_err dt_evaluate(dt_net *net, const dt_dataset *data, dt_comm *comm, dt_score *score);

/* dt_check_replicas: DT_ECOMM, naming rank and tensor, unless every rank holds the same bits in
   every parameter. */
DT_API dt_err dt_check_replicas(dt_net *net, dt_comm *comm);
#endif

#ifdef DTI_IMPLEMENT
/* Units are part of what must be alike: the integers of two ranks can only be added if both
   count in the same unit. */
DT_API dt_err dt_broadcast_parameters(dt_net *net, dt_comm *comm) {
    DT_TRY(dti_ready(__func__, net));
    DT_TRY(dt_broadcast(comm, net->values, net->count * sizeof(float), 0));
    return dt_broadcast(comm, net->next_unit, (size_t)net->params * sizeof(float), 0);
}

/* The score, a wish to stop and what batch statistics need, behind the gradient in the same
   message [S8.1]: a message more would cost its start-up time in each step [S10.2]. Among
   floats, where a sum of losses in units of 2^-24 would soon be too large for 24 digits, the
   loss goes as a number. */
static void dti_attach_score(dt_net *net, bool stop) {
    const size_t tail = dti_tail(net);
    int64_t slot[DTI_SCORE] = { net->score.loss_fixed, net->score.correct, net->score.count, stop };
    memcpy(slot + DTI_SHARES, net->shares, sizeof net->shares);
    for (size_t i = net->trained; i < net->count && net->desc.float_sums; ++i)
        net->grad[i] = (float)dti_share_sum(net, i);
    for (int i = 0; i < DTI_SCORE; ++i)
        if (net->desc.float_sums)
            net->grad[tail + (size_t)i] = (float)slot[i] * (i == 0 ? 0x1p-24f : 1.0f);
        else net->fixed[tail + (size_t)i] = slot[i];
}

/* The same numbers, now summed over the ranks, taken out again. True: some rank wished to stop. */
static bool dti_detach_score(dt_net *net) {
    const size_t tail = dti_tail(net);
    int64_t slot[DTI_SCORE];
    for (int i = 0; i < DTI_SCORE; ++i)
        slot[i] = net->desc.float_sums
                      ? (int64_t)(net->grad[tail + (size_t)i] * (i == 0 ? 0x1p24f : 1.0f))
                      : net->fixed[tail + (size_t)i];
    net->score = (dt_score){ slot[DTI_LOSS], slot[DTI_CORRECT], slot[DTI_COUNT] };
    memcpy(net->shares, slot + DTI_SHARES, sizeof net->shares);
    dti_settle_statistics(net, net->desc.float_sums);
    return slot[DTI_STOP] > 0;
}

/* Gradients [from, to) set out, as they lie: nothing is copied. With those from 0 on go the numbers
   about all of them [S8.1], which lie just before. */
static dt_err dti_start_sum(dt_net *net, dt_comm *comm, dt_algorithm algorithm, size_t from,
                            size_t to, dt_request *request) {
    dt_allreduce_desc desc = { .n = to - from, .op = DT_SUM, .algorithm = algorithm };
    if (net->desc.float_sums) { desc.buf = net->grad + from; desc.type = DT_F32; }
    else { desc.buf = net->fixed + from; desc.type = DT_I64; }
    if (from == 0 && !net->desc.float_sums) {
        net->head[DTI_SAME_UNITS] = dti_units_number(net);
        desc.buf = net->head;
        desc.n += net->heads;
    }
    return dt_allreduce_start(comm, &desc, request);
}

/* The sums of all ranks have come. *again: the step is to be taken again, and the units for that
   are set. Else the next step's are, if every share has fitted. */
static dt_err dti_judge(dt_net *net, dt_comm *comm, bool again_already, bool *again) {
    *again = false;
    if (net->desc.float_sums) return DT_OK;
    const int64_t same = dti_units_number(net) * dt_comm_size(comm);
    if (net->head[DTI_SAME_UNITS] != same)
        return dt_fail(DT_ECOMM, "rank %d: the ranks add up their gradients in different units; "
                                 "dt_broadcast_parameters comes before the first step together",
                       dt_comm_rank(comm));
    *again = !again_already && !dti_units_suit(net);
    if (!*again && net->head[DTI_MISFITS] > 0) return dti_no_unit(net);
    if (!*again) return dti_units_follow(net), DT_OK;
    DT_TRY(dt_allreduce(comm, net->largest, (size_t)net->params, DT_F32, DT_MAX, DT_AUTO));
    dti_units_anew(net);
    return DT_OK;
}

/* One message: gradient and score. If the sums' sizes ask for other units, the step is taken again
   with those, once; see [S8.6]. */
DT_API dt_err dt_average_gradients(dt_net *net, dt_comm *comm) {
    dt_request request;
    DT_TRY(dti_ready(__func__, net));
    DTI_NEED(comm, "comm", DT_EARG);
    if (dt_comm_size(comm) == 1) return DT_OK;
    bool again = dti_units_begin(net); /* a rank that alone has samples has judged for itself */
    if (again) DT_TRY(dti_step_again(net));
    for (int tries = 0; tries == 0 || again; ++tries) {
        if (tries > 0) DT_TRY(dti_step_again(net));
        dti_attach_score(net, false);
        DT_TRY(dti_start_sum(net, comm, DT_AUTO, 0, dti_tail(net) + DTI_SCORE, &request));
        DT_TRY(dt_allreduce_wait(comm, &request));
        DT_TRY(dti_judge(net, comm, tries > 0, &again));
    }
    dti_gradient_to_floats(net);
    dti_detach_score(net);
    return DT_OK;
}

/* The sink that batch norm's sums go to in the middle of a pass (dt_net_on_sums). */
static dt_err dti_sum_statistics(void *comm, int64_t *sums, size_t count) {
    const double start = dt_now();
    DT_TRY(dt_allreduce(comm, sums, count, DT_I64, DT_SUM, DT_AUTO));
    dt_trace(comm, "statistics", start, dt_now());
    return DT_OK;
}

DT_API dt_err dt_share_statistics(dt_net *net, dt_comm *comm) {
    DT_TRY(dti_ready(__func__, net));
    dt_net_on_sums(net, comm && dt_comm_size(comm) > 1 ? dti_sum_statistics : NULL, comm);
    return DT_OK;
}

/* Ranks' values of what is saved and not trained become their mean. A running variance may be of
   any size, so these are wide sums [S3.3]; put, added up by whoever calls, and taken. */
static dt_err dti_put_statistics(dt_net *net) {
    int64_t *sums = net->fixed + net->trained;
    const size_t n = net->count - net->trained;
    memset(sums, 0, n * DTI_WIDE * sizeof *sums);
    for (size_t i = 0; i < n; ++i)
        if (!dti_wide_add(sums + i * DTI_WIDE, (double)net->values[net->trained + i]))
            return dt_fail(DT_ENUMERIC, "a running statistic is %g",
                           (double)net->values[net->trained + i]);
    return DT_OK;
}

/* The mean of what has been put, over so many ranks. */
static void dti_take_statistics(dt_net *net, int ranks) {
    for (size_t i = net->trained; i < net->count; ++i)
        net->values[i] = (float)(dti_share_sum(net, i) / ranks);
}

/* values = sum of the ranks' values / ranks. What is trained is rounded to multiples of
   DT_FIXED_UNIT [S3.2], statistics are wide sums; integers are added, in any order, and divided
   once at the end. So every rank has the same bits afterwards, whatever the all-reduce.

   A wish to stop may ride along: *stop becomes true on every rank if it was wished on any; NULL
   is allowed. */
static dt_err dti_average_parameters(dt_net *net, dt_comm *comm, dt_algorithm algorithm, bool wish,
                                     bool *stop) {
    const int ranks = dt_comm_size(comm);
    const size_t n = net->trained, wished = n + (net->count - n) * DTI_WIDE;
    if (stop) *stop = wish;
    if (ranks == 1) return DT_OK;
    memset(net->fixed, 0, n * sizeof(int64_t));
    size_t at = dt_fixed_add(net->fixed, net->values, n, DT_FIXED_UNIT,
                             dt_fixed_limit((size_t)ranks, DT_FIXED_UNIT));
    if (at < n)
        return dt_fail(DT_ENUMERIC, "parameter [%zu] is %g, which cannot be averaged", at,
                       (double)net->values[at]);
    DT_TRY(dti_put_statistics(net));
    net->fixed[wished] = wish;
    DT_TRY(dt_allreduce(comm, net->fixed, wished + 1, DT_I64, DT_SUM, algorithm));
    for (size_t i = 0; i < n; ++i)
        net->values[i] = (float)((double)net->fixed[i] * (double)DT_FIXED_UNIT / ranks);
    dti_take_statistics(net, ranks);
    if (stop) *stop = net->fixed[wished] > 0;
    return DT_OK;
}

DT_API dt_err dt_average_parameters(dt_net *net, dt_comm *comm) {
    DT_TRY(dti_ready(__func__, net));
    DTI_NEED(comm, "comm", DT_EARG);
    return dti_average_parameters(net, comm, DT_AUTO, false, NULL);
}

/* A dataset that this net can look at: there are samples, and they have the net's shape. */
static dt_err dti_check_data(const char *who, const dt_net *net, const dt_dataset *d) {
    DT_TRY(dti_check_dataset(who, d));
    char name[64];
    snprintf(name, sizeof name, "%s: %s", who, *d->name ? d->name : "the dataset");
    return dti_check_images(net, name, d->channels, d->height, d->width, d->mean, d->std);
}

/* All that a step reads of a data set; it may have been put together by hand. */
static uint64_t dti_data_hash(const dt_dataset *d) {
    const uint64_t numbers[] = { d->hash, d->count, (uint64_t)d->channels, (uint64_t)d->height,
                                 (uint64_t)d->width, (uint64_t)d->classes };
    const size_t bytes = d->mean ? (size_t)d->channels * sizeof(float) : 0;
    return dt_hash(d->mean, bytes, dt_hash(d->std, bytes, dt_hash(numbers, sizeof numbers, 0)));
}

/* score becomes that of all ranks together: three integers, added up. */
static dt_err dti_sum_score(dt_comm *comm, dt_score *score) {
    int64_t sums[3] = { score->loss_fixed, score->correct, score->count };
    if (dt_comm_size(comm) > 1) DT_TRY(dt_allreduce(comm, sums, 3, DT_I64, DT_SUM, DT_AUTO));
    *score = (dt_score){ sums[0], sums[1], sums[2] };
    return DT_OK;
}

/* Batches as large as the net was built for, on every rank, dropout off, and no backward. Integers
   again, so the score of 10000 images is the same for every number of ranks that share the work. */
DT_API dt_err dt_evaluate(dt_net *net, const dt_dataset *data, dt_comm *comm, dt_score *score) {
    DTI_NEED(score, "score", DT_EARG);
    *score = (dt_score){ 0, 0, 0 };
    DT_TRY(dti_ready(__func__, net));
    DT_TRY(dti_check_data("evaluating", net, data));
    const uint32_t batch = (uint32_t)net->max_groups * DT_LANES;
    const int ranks = comm ? dt_comm_size(comm) : 1;
    dt_batches it;
    const bool was_training = net->training;
    dt_err error = DT_OK;
    const uint64_t rows = dt_hash(&batch, sizeof batch, dti_data_hash(data));
    if (ranks > 1) DT_TRY(dt_comm_same(comm, "the data to evaluate, or their batches", rows));
    DT_TRY(dt_batches_init(&it, data,
                           &(dt_batches_desc) { .per_rank_batch = batch,
                                                .rank = comm ? dt_comm_rank(comm) : 0,
                                                .size = ranks }));
    net->training = false;
    dt_comm_phase(comm, "evaluating");
    for (dt_batch b; error == DT_OK && dt_batches_next(&it, &b);) {
        if ((error = dt_net_load(net, &b)) == DT_OK && (error = dt_forward(net)) == DT_OK) {
            dt_score mine = dt_net_score(net);
            dt_score_add(score, &mine);
        }
    }
    net->training = was_training;
    net->masked = false; /* a backward pass would need dropout's masks */
    dt_batches_free(&it);
    return error == DT_OK && ranks > 1 ? dti_sum_score(comm, score) : error;
}

/* One number for all parameters first: it is equal as long as all is well. Only where it is not
   does the search for the tensor begin. */
DT_API dt_err dt_check_replicas(dt_net *net, dt_comm *comm) {
    DT_TRY(dti_ready(__func__, net));
    DTI_NEED(comm, "comm", DT_EARG);
    const dt_err error = dt_comm_same(comm, "parameters", dt_net_hash(net));
    /* every rank has met it, so all look for the tensor together */
    for (int i = 0; i < net->params && error == DT_ECOMM; ++i) {
        const dt_param *p = &net->param[i];
        DT_TRY(dt_comm_same(comm, p->name,
                            dti_hash_floats(p->value.data, dt_tensor_count(&p->value))));
    }
    return error;
}
#endif

/* ==== [S11.2] One epoch driver ============================================

   Every way to train walks through epochs and steps alike, and differs in what a step does: with
   all ranks together, alone, or on values that are shared. So there is one driver, and a method
   [S11.3 to S11.5] hands it its step.

   Stopping is the delicate part. on_step may say "enough" on one rank alone, while the others
   are already waiting for that rank's next message. So it is a wish at first: the method decides
   when it takes effect, at a moment at which all ranks that meet have heard of it.

       on_step says false  ->  run->wish  ->  travels with the next sum  ->  run->stop, on all ranks

   A run of hours is to survive its machine. On what does its next step depend? On the parameters,
   and what batch norm has saved; on the optimizer's vectors and its count of steps; on the units of
   exact sums [S8.6]; and on where the run stands: epoch, step, the epoch's score so far, for how
   many epochs the target has been met. Not on the images' order, dropout or augmentation, which
   are functions of (seed, epoch, image) [S2]: the sampler counts its way back to a step. And, where
   the ranks take each step together and their sums are exact, not on how many they are. So these
   few vectors and numbers are a checkpoint, and a run that goes on from it, at whatever step and on
   whatever ranks, ends in the bits in which it would have ended.

   A checkpoint stands between two steps. Behind an epoch's last step, what ends the epoch is still
   to come; a run that goes on from there begins with that. Under PSGD each rank is elsewhere: the
   file holds them all, and only as many ranks can go on. Hogwild's workers never meet, and have
   none. */
#ifdef DTI_DECLARE
/* What a trainer tells after every step (on every rank). */
typedef struct dt_progress {
    int epoch, epochs;
    uint32_t step, steps;      /* in this epoch, from 1 */
    double seconds;            /* of training since the start */
    uint64_t samples;          /* by all workers since the start, as far as this worker knows */
    /* of this epoch so far: all ranks' under synchronous SGD, this worker's own else */
    dt_score score;
    bool epoch_ended;
    float lr;                  /* of this step */
    /* why the checkpoint behind the step before could not be written (rank 0); NULL: it was, or
       none was due. Training goes on */
    const char *complaint;
} dt_progress;

typedef struct dt_outer_desc { /* local SGD's step from average to average [S11.4] */
    float lr, momentum;        /* above 0; 0 and more */
    bool nesterov;
} dt_outer_desc;
#define DT_DILOCO_DEFAULTS .lr = 0.7f, .momentum = 0.9f, .nesterov = true

typedef struct dt_train_desc {
    const dt_dataset *data;
    int epochs;
    /* samples a step over all ranks (Hogwild: samples a worker's step) */
    uint32_t batch;
    uint64_t seed;             /* of shuffling and partition */
    dt_algorithm algorithm;    /* of the sums of gradients, and of PSGD's averages; DT_AUTO is 0 */
    /* of gradient that starts on its way while backward goes on; 0 means DT_BUCKET_BYTES */
    size_t bucket_bytes;
    /* compare the replicas every so many steps, and at the end of each epoch; 0 means 100 */
    uint32_t check_every;
    /* Hogwild: worker i stays on core i (Linux; elsewhere nothing happens) */
    bool pin;
    uint32_t average_every;    /* PSGD: average every so many steps; 0: once, at the very end */
    /* PSGD: how averages are stepped to; NULL: they are taken as they are. Without checkpoints */
    const dt_outer_desc *outer;
    /* learning rates [S9.7]: the trainer sets the optimizer's before each step, and gives it its
       own back at the end. NULL: it stays as it is */
    const dt_schedule *schedule;
    /* the optimizer's rate was found for batches of lr_batch: it is scaled to `batch` before the
       schedule sees it */
    dt_lr_scaling lr_scaling;
    uint32_t lr_batch;
    const dt_augment *augment; /* how the images are altered [S4.6]; NULL: not at all */
    /* each worker takes its part of a batch in so many micro-batches [S8.1], for which its net was
       built; 0 means 1. The result is the same, and it may differ from rank to rank */
    uint32_t accumulate;
    /* not Hogwild: looked at by all ranks behind each epoch, with PSGD's average. Training ends
       once the accuracy on it, or else in training, was `target` or more for `patience` epochs
       in a row (0 means 1). NULL: no look; target 0: no end */
    const dt_dataset *validation;
    float target;
    uint32_t patience;
    /* not Hogwild. The file that rank 0 writes behind every so many steps (0: behind each epoch)
       and where training ends; and the one to go on from, which may be the same, made with the
       same settings but for epochs, algorithm, bucket_bytes and check_every, and under
       dt_train_sync the number of ranks. NULL: none. DT_EDATA says why a file is refused */
    const char *checkpoint, *resume;
    uint32_t checkpoint_every;
    /* where the trainer is given no communicator: so many threads of this process are its ranks, and
       on_step is rank 0's. More than one needs DTRAIN_WITH_THREADS */
    int threads;
    /* false asks to stop; NULL is allowed */
    bool (*on_step)(const dt_progress *progress, void *user);
    void *user;
} dt_train_desc;

/* dt_progress_line: "epoch 3/10  step 120/469  loss 0.1234  81234 images/s  12 s left", cut to
   size. */
DT_API void dt_progress_line(const dt_progress *progress, char *text, size_t size);

#define DT_BUCKET_BYTES ((size_t)1 << 20) /* a net of MNIST's size then goes in one message */
#define DT_MAX_EPOCHS_KEPT 256
typedef struct dt_train_result {
    double seconds;            /* the slowest worker's, training alone */
    uint64_t samples;          /* trained on by all workers together */
    /* of the last epoch, all workers', as seen while training (dropout on) */
    dt_score score;
    int epochs;                /* ended */
    double epoch_seconds[DT_MAX_EPOCHS_KEPT]; /* the slowest worker's, of the first epochs */
    bool stopped;              /* on_step asked to, or the target was reached */
    uint64_t retaken;          /* steps taken again with other units [S8.6], by all workers */
    dt_score validation;       /* of the last epoch */
    uint32_t reached;          /* how many of the last epochs, in a row, were at the target */
    uint64_t resumed;          /* steps that desc->resume had done */
    int resumed_epochs;        /* that its run was to have; desc->epochs may say another number */
    uint32_t checkpoints;      /* written (rank 0) */
    char complaint[256];       /* why the last one could not be written; "" if it was */
} dt_train_result;
#endif

#ifdef DTI_IMPLEMENT
typedef struct dti_training dti_training;

/* What a way to train hands to the driver. */
typedef struct dti_method {
    /* ranks begin and end each epoch together, and it took as long as the slowest one */
    bool meets;
    bool apart;                /* each rank has values of its own */
    const char *name;          /* as a checkpoint has it */
    /* batch NULL: this rank has none left while others do. Sets run->stop where it is decided
       that training ends. */
    dt_err (*step)(dti_training *run, const dt_batch *batch);
    /* on_step has asked to stop: sets run->stop where this rank may end by itself; else the wish
       travels with a later step. */
    void (*wished)(dti_training *run);
    dt_err (*epoch_end)(dti_training *run); /* NULL: nothing */
    /* the ranks' common score, of the validation set or of this epoch; NULL: they have none */
    dt_err (*judge)(dti_training *run, dt_score *score);
} dti_method;

/* One rank's training. */
struct dti_training {
    const dti_method *method;
    void *own;                 /* the method's */
    dt_net *net;
    dt_optimizer *opt;
    dt_comm *comm;
    const dt_train_desc *d;
    dt_train_result *result;
    dt_batches it;             /* this rank's */
    dt_progress p;             /* where it stands; p.steps is alike on all ranks that meet */
    bool wish, stop;           /* on_step has asked to stop; training does */
    float lr;                  /* scaled; what the schedule begins with */
    int64_t retaken;           /* what the net had counted of them, less this training's */
    double spent;              /* seconds of this epoch before a resume, then 0 */
    double begun;              /* when the epoch would have begun without a pause */
};

static bool dti_tell(const dt_train_desc *d, const dt_progress *p) {
    return !d->on_step || d->on_step(p, d->user);
}

/* From the step at which p stands to the end of the epoch. Its time is what the slowest rank took,
   from one barrier on; the same exchange tells everybody whether training stops. */
static dt_err dti_run_epoch(dti_training *run) {
    dt_progress *p = &run->p;
    if (run->method->meets) DT_TRY(dt_barrier(run->comm));
    const double start = run->begun = dt_now() - run->spent, before = run->result->seconds;
    run->spent = 0.0;
    while (p->step < p->steps && !run->stop) {
        dt_batch batch;
        const bool mine = dt_batches_next(&run->it, &batch);
        dt_comm_progress(run->comm, (uint64_t)p->epoch * p->steps + p->step + 1, "training");
        if (run->d->schedule)
            run->opt->lr = dti_schedule_at(run->d->schedule, run->lr, (uint32_t)p->epoch,
                                           (uint64_t)p->epoch * p->steps + p->step);
        p->lr = run->opt->lr;
        DT_TRY(run->method->step(run, mine ? &batch : NULL));
        if (mine) dt_score_add(&p->score, &run->net->score);
        p->samples += mine ? batch.global_count : 0;
        ++p->step;
        p->seconds = before + dt_now() - start;
        p->epoch_ended = p->step == p->steps;
        if (!dti_tell(run->d, p)) run->wish = true;
        if (run->wish) run->method->wished(run);
        if (run->d->checkpoint) DT_TRY(dti_keep_place(run));
    }
    if (run->method->epoch_end) DT_TRY(run->method->epoch_end(run));
    double end[2] = { dt_now() - start, run->stop };
    if (run->method->meets && dt_comm_size(run->comm) > 1)
        DT_TRY(dt_allreduce(run->comm, end, 2, DT_F64, DT_MAX, DT_AUTO));
    run->stop = end[1] > 0.0;
    if (run->result->epochs < DT_MAX_EPOCHS_KEPT)
        run->result->epoch_seconds[run->result->epochs] = end[0];
    run->result->seconds += end[0];
    ++run->result->epochs;
    return DT_OK;
}

/* A target is a float: 9900 of 10000 reach 0.99f, though that is a little more than 0.99. */
static bool dti_reaches(const dt_score *score, float target) {
    return (float)dt_score_accuracy(score) >= target;
}

/* Is it good enough? All ranks look at the same score, and so they stop together. `patience` epochs
   in a row must be, as one alone may be luck: accuracies 0.985, 0.991, 0.989, 0.991, 0.992 reach a
   target of 0.99 with patience 2 in the fifth epoch. */
static dt_err dti_good_enough(dti_training *run) {
    const dt_train_desc *d = run->d;
    dt_train_result *r = run->result;
    dt_score score = run->p.score;
    if (run->stop || !(d->validation || d->target > 0.0f)) return DT_OK;
    DT_TRY(run->method->judge(run, &score));
    if (d->validation) r->validation = score;
    r->reached = dti_reaches(&score, d->target) ? r->reached + 1 : 0;
    run->stop = d->target > 0.0f && r->reached >= (d->patience ? d->patience : 1);
    return DT_OK;
}

/* All epochs, the result kept up to date behind each, so that a training that fails in the
   middle has one, too. */
static dt_err dti_run_each_epoch(dti_training *run) {
    dt_progress *p = &run->p;
    dt_batch done;
    run->retaken = (int64_t)run->net->retaken;
    if (run->d->checkpoint || run->d->resume) DT_TRY(dti_resume(run));
    for (; p->epoch < run->d->epochs && !run->stop; ++p->epoch) {
        dt_batches_begin(&run->it, (uint32_t)p->epoch);
        for (uint32_t k = 0; k < p->step; ++k) (void)dt_batches_next(&run->it, &done);
        DT_TRY(dti_run_epoch(run));
        DT_TRY(dti_good_enough(run));
        run->result->score = p->score;
        run->result->samples = p->samples;
        run->result->stopped = run->stop;
        run->result->retaken = (uint64_t)((int64_t)run->net->retaken - run->retaken);
        p->step = 0;
        p->score = (dt_score){ 0, 0, 0 };
    }
    return DT_OK;
}

/* The learning rate is the trainer's meanwhile, where it was asked to look after it. */
static dt_err dti_run_epochs(dti_training *run) {
    const dt_train_desc *d = run->d;
    const float own = run->opt->lr;
    if (d->lr_scaling) run->opt->lr = dt_lr_scaled(own, d->lr_scaling, d->batch, d->lr_batch);
    run->lr = run->opt->lr;
    const dt_err error = dti_run_each_epoch(run);
    if (d->schedule || d->lr_scaling) run->opt->lr = own;
    return error;
}
#endif

/* ==== [S11.3] Synchronous SGD =============================================

   Every step takes one global batch, whatever the number of ranks: each rank does its lane
   groups, gradients are summed, every rank takes the same step. With exact sums the parameters
   have the same bits for 1 rank and for 100.

   Gradients become final from the last layer to the first, so their sums can travel while
   earlier layers still compute (Li et al. 2020, "PyTorch Distributed", call the pieces buckets).
   A bucket is started once it holds bucket_bytes; since parameters lie in layer order, buckets
   are filled from the end of the vector, and the step's score rides behind the first one:

       the vector        conv1 | conv2 | fc1 | fc2 | score
                                       ^                  ^
       behind fc1's backward           low                high: low .. high-1 may set out

       backward          fc2 | fc1 | conv2 | conv1 |  wait  | optimizer
       1st bucket                  [ fc1 fc2 score ==>]
       2nd, the last                               [conv1 conv2 ==>]

   The last bucket is what a step waits for, so it should be small; but each message costs its
   start [S10.2], so there should be few. For a net of MNIST's size, one is fastest. */
#ifdef DTI_DECLARE
/* dt_train_sync: DT_EARG for settings that cannot be meant, DT_ENUMERIC for a value that is not
   finite, DT_ECOMM if ranks fail or differ. Broadcasts rank 0's parameters first. */
DT_API dt_err dt_train_sync(dt_net *net, dt_optimizer *opt, dt_comm *comm,
                            const dt_train_desc *desc, dt_train_result *result);
#endif

#ifdef DTI_IMPLEMENT
/* The sums of one backward pass that are on their way, and what waits to set out. */
typedef struct dti_buckets {
    dt_net *net;
    dt_comm *comm;
    dt_algorithm algorithm;
    size_t floor;              /* bytes that start a bucket */
    size_t low, high;          /* gradients that are final and not yet on their way */
    int started;
    dt_request request[32];
} dti_buckets;

/* What is final and not yet on its way, gradients low .. high-1, sets out. */
static dt_err dti_bucket_start(dti_buckets *b) {
    DT_TRY(dti_start_sum(b->net, b->comm, b->algorithm, b->low, b->high, &b->request[b->started]));
    ++b->started;
    b->high = b->low;
    return DT_OK;
}

/* Called by dt_backward for each layer whose gradient is final. */
static dt_err dti_bucket_fill(void *user, size_t offset, size_t count) {
    dti_buckets *b = user;
    const size_t unit = b->net->desc.float_sums ? sizeof(float) : sizeof(int64_t);
    bool done;
    (void)count;
    b->low = offset;
    /* the last one sets out when all is known about it [S8.1] */
    if (b->low > 0 && (b->high - b->low) * unit >= b->floor && b->started < 31)
        return dti_bucket_start(b);
    /* moves all of them on */
    return b->started ? dt_allreduce_test(b->comm, &b->request[b->started - 1], &done) : DT_OK;
}

/* Behind backward: the rest, and then all of them must have come. */
static dt_err dti_bucket_wait(dti_buckets *b) {
    b->low = 0;
    DT_TRY(dti_bucket_start(b));
    for (int i = 0; i < b->started; ++i) DT_TRY(dt_allreduce_wait(b->comm, &b->request[i]));
    return DT_OK;
}

/* Forward, backward, and the sums over the ranks on their way meanwhile. */
static dt_err dti_sync_pass(dti_training *run) {
    dt_net *net = run->net;
    dti_buckets b = { .net = net,
                      .comm = run->comm,
                      .algorithm = run->d->algorithm,
                      .high = dti_tail(net) + DTI_SCORE,
                      .floor = run->d->bucket_bytes ? run->d->bucket_bytes : DT_BUCKET_BYTES };
    const bool alone = dt_comm_size(run->comm) == 1;
    for (uint32_t part = 0; part < net->parts; ++part) {
        const double start = dt_now();
        DT_TRY(dti_forward_part(net, part));
        const double middle = dt_now();
        dt_trace(run->comm, "forward", start, middle);
        if (!alone && part + 1 == net->parts) { /* then gradients become final */
            dti_attach_score(net, run->wish);
            dt_net_on_gradient(net, dti_bucket_fill, &b);
            net->judged_later = true;
        }
        dt_err error = dti_backward_once(net);
        dt_net_on_gradient(net, NULL, NULL);
        net->judged_later = false;
        DT_TRY(error);
        dt_trace(run->comm, "backward", middle, dt_now());
    }
    net->loaded = net->parts == 1;
    return alone ? dti_end_backward(net) : dti_bucket_wait(&b);
}

/* The gradient of the global batch. *stop becomes true on every rank if it was wished on any. */
static dt_err dti_sync_gradient(dti_training *run, const dt_batch *batch, bool *stop) {
    dt_net *net = run->net;
    bool again;
    DT_TRY(dti_begin_step("dt_train_sync", net, batch, run->d->accumulate));
    dti_begin_backward(net);
    DT_TRY(dti_sync_pass(run));
    if (dt_comm_size(run->comm) == 1) return DT_OK;
    DT_TRY(dti_judge(net, run->comm, false, &again));
    if (again) {
        DT_TRY(dti_sync_pass(run));
        DT_TRY(dti_judge(net, run->comm, true, &again));
    }
    dti_gradient_to_floats(net);
    *stop = dti_detach_score(net);
    return DT_OK;
}

/* A wish to stop travels with the gradient, so it takes effect after the step that follows it. */
static dt_err dti_sync_step(dti_training *run, const dt_batch *batch) {
    const uint32_t every = run->d->check_every ? run->d->check_every : 100;
    bool stop = run->wish;
    DT_TRY(dti_sync_gradient(run, batch, &stop));
    const double last = dt_now();
    dt_optimizer_step(run->opt);
    dt_trace(run->comm, "optimizer", last, dt_now());
    run->stop = stop;
    return (run->p.step + 1) % every == 0 ? dt_check_replicas(run->net, run->comm) : DT_OK;
}

static void dti_sync_wished(dti_training *run) {
    run->stop = run->stop || dt_comm_size(run->comm) == 1;
}

static dt_err dti_sync_epoch_end(dti_training *run) {
    return dt_check_replicas(run->net, run->comm);
}

/* The epoch's score is all ranks' already. */
static dt_err dti_sync_judge(dti_training *run, dt_score *score) {
    const dt_dataset *data = run->d->validation;
    return data ? dt_evaluate(run->net, data, run->comm, score) : DT_OK;
}

static const dti_method dti_sync = { .name = "sync", .meets = true, .step = dti_sync_step,
                                     .wished = dti_sync_wished, .epoch_end = dti_sync_epoch_end,
                                     .judge = dti_sync_judge };

/* A rank's work is its lane groups of a full batch. Where ranks outnumber cores it says which
   core it had best stand on [E2.2]; afterwards the process may go anywhere again. */
static dt_err dti_sync_run(dti_training *run) {
    const uint64_t groups = dti_round_up(run->it.batch, DT_LANES) / DT_LANES, rank = run->it.rank,
                   size = run->it.size;
    dti_cpus allowed;
    bool placed = false;
    dt_err error =
        dti_take_place(run->comm, (uint32_t)((rank + 1) * groups / size - rank * groups / size),
                       &allowed, &placed);
    if (error == DT_OK) error = dti_run_epochs(run);
    if (placed) {
        dti_move(run->comm, 0, 1 + dt_cores());
        (void)dti_cpus_set(&allowed);
    }
    return error;
}

/* Checks on every rank, what must be alike compared, rank 0's values sent to all; then epochs.
   The net gets its sink for statistics back as it was. */
DT_API dt_err dt_train_sync(dt_net *net, dt_optimizer *opt, dt_comm *comm, const dt_train_desc *d,
                            dt_train_result *result) {
    dti_training run = {
        .method = &dti_sync, .net = net, .opt = opt, .comm = comm, .d = d, .result = result
    };
    if (!comm) return dti_train_on_threads(dt_train_sync, __func__, net, opt, d, result);
    DTI_NEED(result, "result", DT_EARG);
    *result = (dt_train_result){ .seconds = 0.0 };
    DT_TRY(dti_check_train(__func__, net, opt, d));
    DT_TRY(dti_check_steps(net, d->data->count, d->batch, dt_comm_size(comm)));
    DT_TRY(dti_check_alike(net, opt, comm, d));
    DT_TRY(dt_broadcast_parameters(net, comm));
    DT_TRY(dt_batches_init(&run.it, d->data,
                           &(dt_batches_desc) { .global_batch = d->batch,
                                                .rank = dt_comm_rank(comm),
                                                .size = dt_comm_size(comm),
                                                .seed = d->seed,
                                                .shuffle = true,
                                                .augment = d->augment }));
    run.p = (dt_progress){ .epochs = d->epochs, .steps = run.it.steps };
    dt_sum_fn *const fn = net->on_sums;
    void *const user = net->on_sums_user;
    dt_err error = dt_share_statistics(net, comm);
    if (error == DT_OK) error = dti_sync_run(&run);
    dt_net_on_sums(net, fn, user);
    dt_batches_free(&run.it);
    return error;
}
#endif

/* ==== [S11.4] Parallel SGD with rare averages =============================

   PSGD (Zinkevich, Weimer, Smola, Li 2010, algorithm 3): the data are cut into one random share a
   rank; each rank runs SGD on its share alone, and at the end the parameters are averaged once.
   Local SGD is the same with an average every H steps; with H = 1 and plain SGD it is synchronous
   SGD. What is saved is messages: one average takes the place of H sums of gradients.

       rank 0   w0 -> step step step --.            .-> step step step --.
       rank 1   w0 -> step step step ---+- average -+-> step step step ---+- average      H = 3
       rank 2   w0 -> step step step --'            '-> step step step --'

   Why an average of parameters makes sense at all: ranks that begin at the same place and go few
   steps stay in the same valley of the loss, and the middle of points in a valley lies in it, too.
   The longer they go alone, the less that is so; chapter 9 measures it.

   A rank's batch is batch/ranks rounded up to whole lane groups, because a group that is part empty
   costs what a full one costs: 128 on 3 ranks is 48 each.

   Outer momentum (SlowMo: Wang, Tantia, Ballas, Rabbat 2020; DiLoCo: Douillard et al. 2023). The
   way from the last common values to the average is a direction that P ranks have found in H steps
   each. One may take it for a gradient, and step along it as an optimizer does [S9.2]: longer or
   shorter, and with momentum, in which what average after average agrees on adds up, and what
   changes from one to the next cancels:

       D = common - average        buf = mu * buf + D
       common -= lr * (D + mu * buf), Nesterov's form, or lr * buf

   With lr 1 and mu 0 that is the average itself. The ranks' own optimizers keep their states, and
   nothing more is sent: every rank takes the same outer step. */
#ifdef DTI_DECLARE
/* dt_train_psgd: errors as dt_train_sync; every rank needs samples, and no layer may look at the
   batch of all ranks. average_every 0 is PSGD, H local SGD. At the end all ranks have the
   average. */
DT_API dt_err dt_train_psgd(dt_net *net, dt_optimizer *opt, dt_comm *comm,
                            const dt_train_desc *desc, dt_train_result *result);
/* samples of one rank's step, see above; 0 if there are no ranks */
DT_API uint32_t dt_psgd_batch(uint32_t batch, int ranks);
#endif

#ifdef DTI_IMPLEMENT
DT_API uint32_t dt_psgd_batch(uint32_t batch, int ranks) {
    if (ranks < 1) return dt_fail(DT_EARG, "dt_psgd_batch: %d ranks; needs at least 1", ranks), 0;
    const uint32_t share = batch / (uint32_t)ranks + (batch % (uint32_t)ranks != 0);
    /* of two ranks or more: at most 2^31 */
    return ranks == 1 ? batch : (share + DT_LANES - 1) / DT_LANES * DT_LANES;
}

/* This worker's share of the data as its batches; *index, which they read, is given back by
   dti_share_end. 10 samples and 3 workers: shares of 3, 3 and 4; with batches of 2 an epoch has two
   steps, the second one smaller where the share is 3. */
static dt_err dti_share_begin(dti_training *run, uint32_t batch, int worker, int workers,
                              uint32_t **index) {
    const dt_dataset *data = run->d->data;
    const uint32_t n = data->count, k = (uint32_t)workers;
    if (n < k)
        return dt_fail(DT_EARG, "training: %u samples are too few for %d workers", (unsigned)n,
                       workers);
    /* shares have two sizes */
    for (uint32_t share = n / k; share <= n / k + (n % k != 0); ++share)
        DT_TRY(dti_check_steps(run->net, share, batch, 1));
    if (!(*index = dti_alloc_many(dti_plus(n, (size_t)k + 1), sizeof **index))) return DT_ENOMEM;
    /* one permutation of all rows, and behind it where each worker's begin */
    uint32_t *start = *index + n;
    dt_err error = dt_partition(*index, start, NULL, k, n, run->d->seed);
    if (error == DT_OK)
        error = dt_batches_init(
            &run->it, data,
            &(dt_batches_desc) { .global_batch = batch,
                                 .size = 1,
                                 .seed = run->d->seed + (uint64_t)worker,
                                 .shuffle = true,
                                 .augment = run->d->augment,
                                 .subset = *index + start[worker],
                                 .subset_count = start[worker + 1] - start[worker] });
    if (error != DT_OK) dti_release(*index);
    const uint32_t most = n / k + (n % k != 0); /* the largest share's */
    run->p = (dt_progress){ .epochs = run->d->epochs, .steps = most / batch + (most % batch != 0) };
    return error;
}

static void dti_share_end(dti_training *run, uint32_t *index) {
    dt_batches_free(&run->it);
    dti_release(index);
}

/* What outer momentum remembers, behind each other in one block; all ranks alike. */
typedef struct dti_outer {
    const dt_outer_desc *d;
    float *common, *buf;       /* [trained] */
    bool due;                  /* there were steps since the last average */
} dti_outer;

/* From values that all ranks have in common. */
static dt_err dti_outer_begin(dti_outer *o, const dt_net *net, const dt_outer_desc *d) {
    *o = (dti_outer){ .d = d, .common = dti_alloc_many(net->trained, 2 * sizeof(float)) };
    if (!o->common) return DT_ENOMEM;
    o->buf = o->common + net->trained; /* zeros */
    memcpy(o->common, net->values, net->trained * sizeof(float));
    return DT_OK;
}

/* The average lies in values; the outer step ends there, too. */
static void dti_outer_step(const dti_outer *o, float *values, size_t n) {
    const float lr = o->d->lr, mu = o->d->momentum;
    for (size_t i = 0; i < n; ++i) {
        const float way = o->common[i] - values[i], buf = mu * o->buf[i] + way;
        o->buf[i] = buf;
        o->common[i] -= lr * (o->d->nesterov ? way + mu * buf : buf);
        values[i] = o->common[i];
    }
}

/* All ranks' values become the average, or where the outer step from the last one leads. */
static dt_err dti_psgd_average(dti_training *run, bool *stop) {
    dti_outer *o = run->own;
    DT_TRY(dti_average_parameters(run->net, run->comm, run->d->algorithm, run->wish, stop));
    if (o->d) dti_outer_step(o, run->net->values, run->net->trained);
    o->due = false;
    return DT_OK;
}

/* A wish to stop is heard by the others at the next average or checkpoint; where there is neither,
   each rank ends by itself, and the others at the end of the epoch. */
static dt_err dti_psgd_step(dti_training *run, const dt_batch *batch) {
    const uint32_t every = run->d->average_every;
    if (batch) { /* a share may be one step shorter than the longest */
        DT_TRY(dt_accumulate_gradients(run->net, batch, run->d->accumulate));
        dt_optimizer_step(run->opt);
    }
    const uint64_t steps = (uint64_t)run->p.epoch * run->p.steps + run->p.step + 1;
    ((dti_outer *)run->own)->due = true;
    return every && steps % every == 0 ? dti_psgd_average(run, &run->stop) : DT_OK;
}

static void dti_psgd_wished(dti_training *run) {
    run->stop = run->stop || !(run->d->average_every || run->d->checkpoint);
}

/* Looks with the average, and goes on from where each rank was: its values wait in the gradient's
   place, which nobody needs between steps. */
static dt_err dti_psgd_judge(dti_training *run, dt_score *score) {
    dt_net *net = run->net;
    if (!run->d->validation) return dti_sum_score(run->comm, score);
    memcpy(net->grad, net->values, net->count * sizeof(float));
    dt_err error = dti_average_parameters(net, run->comm, run->d->algorithm, false, NULL);
    if (error == DT_OK) error = dt_evaluate(net, run->d->validation, run->comm, score);
    memcpy(net->values, net->grad, net->count * sizeof(float));
    return error;
}

static const dti_method dti_psgd = { .name = "psgd", .meets = true, .apart = true,
                                     .step = dti_psgd_step, .wished = dti_psgd_wished,
                                     .judge = dti_psgd_judge };

/* The last average, and what all ranks have done together. */
static dt_err dti_psgd_end(dti_training *run) {
    const double start = dt_now();
    dt_train_result *result = run->result;
    /* without steps since the last average, an outer one would go on by its momentum alone */
    const dti_outer *outer = run->own;
    if (outer->due || !outer->d) DT_TRY(dti_psgd_average(run, NULL));
    result->seconds += dt_now() - start;
    int64_t sums[5] = { result->score.loss_fixed, result->score.correct, result->score.count,
                        (int64_t)result->samples, (int64_t)result->retaken };
    if (dt_comm_size(run->comm) > 1)
        DT_TRY(dt_allreduce(run->comm, sums, 5, DT_I64, DT_SUM, DT_AUTO));
    result->score = (dt_score){ sums[0], sums[1], sums[2] };
    result->samples = (uint64_t)sums[3];
    result->retaken = (uint64_t)sums[4];
    return dt_check_replicas(run->net, run->comm);
}

/* As dt_train_sync begins; but then each rank has its own share of the data, and an average ends
   it. */
DT_API dt_err dt_train_psgd(dt_net *net, dt_optimizer *opt, dt_comm *comm, const dt_train_desc *d,
                            dt_train_result *result) {
    dti_outer outer = { .d = NULL };
    dti_training run = { .method = &dti_psgd, .own = &outer, .net = net, .opt = opt, .comm = comm,
                         .d = d, .result = result };
    const int rank = dt_comm_rank(comm), ranks = dt_comm_size(comm);
    uint32_t *index = NULL;
    if (!comm) return dti_train_on_threads(dt_train_psgd, __func__, net, opt, d, result);
    DTI_NEED(result, "result", DT_EARG);
    *result = (dt_train_result){ .seconds = 0.0 };
    DT_TRY(dti_check_train(__func__, net, opt, d));
    DT_TRY(dti_check_alone(__func__, net, ranks));
    DT_TRY(dti_check_alike(net, opt, comm, d));
    DT_TRY(dt_broadcast_parameters(net, comm));
    DT_TRY(dti_share_begin(&run, dt_psgd_batch(d->batch, ranks), rank, ranks, &index));
    dt_err error = d->outer ? dti_outer_begin(&outer, net, d->outer) : DT_OK;
    if (error == DT_OK) error = dti_run_epochs(&run);
    if (error == DT_OK) error = dti_psgd_end(&run);
    dti_release(outer.common);
    dti_share_end(&run, index);
    return error;
}
#endif

/* ==== [S11.5] Hogwild =====================================================

   Hogwild (Recht, Re, Wright, Niu 2011): threads share one parameter vector and take no lock. A
   worker copies the vector, computes a gradient on its own batch, lets its own optimizer turn it
   into a change, and adds the change to the shared vector, number by number.

   Every access to the shared vector is a relaxed C11 atomic load or store, so there is no data
   race in the language's sense. But load, add, store is not one operation: if two workers add to
   the same number at once, one of the two changes may be lost. The theory asks for sparse
   gradients, where that is rare; a dense convolutional net touches every number in every step.
   How it is lost:

       the shared number w is 5         worker A adds 1            worker B adds 2
                                        loads 5                    loads 5
                                        stores 6
                                                                   stores 7: A's change is gone

   The staleness histogram says how many changes by others came between a worker's copy and its
   own change. With k workers as fast as each other it is k-1.

   Shared is what is trained, and nothing else. Running means and variances [S6.11] follow each
   worker's own batches; at the end the net gets their mean.

   Two other ways to share stand beside it, to compare with: under a lock, where no change is lost
   and a copy is never torn, but workers wait for each other; and averaging once an epoch, where
   workers share nothing in between.

   To read: dti_hogwild_change, a worker's step; dti_hogwild_add, the three that are not one; then
   dti_worker_main, a worker's life. */
#ifdef DTI_DECLARE
#ifdef DTRAIN_WITH_THREADS
typedef enum dt_sharing { DT_SHARE_FREE, DT_SHARE_LOCKED, DT_SHARE_AVERAGED } dt_sharing;

#define DT_STALENESS_BINS 64
typedef struct dt_hogwild_result {
    dt_train_result train;
    /* steps by the number of others' steps in between; the last bin: that or more */
    uint64_t staleness[DT_STALENESS_BINS];
    double worker_seconds[64];             /* of the first 64 workers */
} dt_hogwild_result;

/* dt_train_hogwild: `workers` threads, each on 1/workers of the data with its own clone of net
   and optimizer. The result ends in net. desc->batch is one worker's. on_step is called by
   worker 0 alone. */
DT_API dt_err dt_train_hogwild(dt_net *net, const dt_optimizer *opt, int workers,
                               const dt_train_desc *desc, dt_hogwild_result *result);
/* The same with a chosen way of sharing; dt_train_hogwild is DT_SHARE_FREE. */
DT_API dt_err dt_train_shared(dt_net *net, const dt_optimizer *opt, int workers, dt_sharing sharing,
                              const dt_train_desc *desc, dt_hogwild_result *result);
#endif
#endif

#if defined(DTI_IMPLEMENT) && defined(DTRAIN_WITH_THREADS)
#include <pthread.h>
#include <stdatomic.h>

/* Two floats, read and written at once: half as many accesses, and each of them is one
   instruction on a 64-bit machine. */
typedef _Atomic uint64_t dti_pair;

typedef struct dti_hogwild { /* what the workers share; each is a rank of dt_run_ranks [E2.5] */
    const dt_net *net;
    const dt_optimizer *opt;
    const dt_train_desc *d;
    struct dti_worker *worker;
    dti_pair *values;
    size_t pairs;
    atomic_uint_fast64_t clock; /* changes added so far, by all */
    atomic_bool stop;
    dt_sharing sharing;
    pthread_mutex_t lock;       /* of values, when locked */
} dti_hogwild;

/* What is one worker's. Its change, an image of the parameters, is what it adds to the shared
   ones. */
typedef struct dti_worker {
    dti_hogwild *shared;
    dti_training run;
    dt_train_desc d;
    dt_train_result result;
    float *change;
    uint64_t staleness[DT_STALENESS_BINS];
} dti_worker;

/* n numbers, of which the last may be half a pair: behind it lies what is each worker's own */
static void dti_hogwild_read(dti_hogwild *h, float *values, size_t n) {
    for (size_t i = 0; i < h->pairs; ++i) {
        uint64_t pair = atomic_load_explicit(&h->values[i], memory_order_relaxed);
        memcpy(values + 2 * i, &pair, 2 * i + 1 < n ? sizeof pair : sizeof *values);
    }
}

/* Load, add, store: two numbers at a time, each access atomic, the three together not. */
static void dti_hogwild_add(dti_hogwild *h, const float *change) {
    for (size_t i = 0; i < h->pairs; ++i) {
        float two[2];
        uint64_t pair = atomic_load_explicit(&h->values[i], memory_order_relaxed);
        memcpy(two, &pair, sizeof pair);
        two[0] += change[2 * i];
        two[1] += change[2 * i + 1];
        memcpy(&pair, two, sizeof pair);
        atomic_store_explicit(&h->values[i], pair, memory_order_relaxed);
    }
}

/* Does nothing but where sharing under a lock was asked for. */
static void dti_hogwild_lock(dti_hogwild *h, bool on) {
    if (h->sharing != DT_SHARE_LOCKED) return;
    if (on) pthread_mutex_lock(&h->lock);
    else pthread_mutex_unlock(&h->lock);
}

/* Copies the shared values, computes, adds the change; counts the changes that others have added
   meanwhile. */
static dt_err dti_hogwild_change(dti_worker *w, const dt_batch *batch) {
    dti_hogwild *h = w->shared;
    dti_hogwild_lock(h, true);
    const uint64_t seen = atomic_load_explicit(&h->clock, memory_order_relaxed);
    dti_hogwild_read(h, w->run.net->values, w->run.net->trained);
    dti_hogwild_lock(h, false);
    DT_TRY(dt_accumulate_gradients(w->run.net, batch, w->d.accumulate));
    dt_optimizer_change(w->run.opt, w->change);
    dti_follow_statistics(w->run.net);
    dti_hogwild_lock(h, true);
    dti_hogwild_add(h, w->change);
    dti_hogwild_lock(h, false);
    const uint64_t others = atomic_fetch_add_explicit(&h->clock, 1, memory_order_relaxed) - seen;
    ++w->staleness[others < DT_STALENESS_BINS ? others : DT_STALENESS_BINS - 1];
    return DT_OK;
}

/* A step of one worker, in the way of sharing that was chosen. */
static dt_err dti_hogwild_step(dti_training *run, const dt_batch *batch) {
    dti_worker *w = run->own;
    if (batch && w->shared->sharing == DT_SHARE_AVERAGED) {
        DT_TRY(dt_accumulate_gradients(run->net, batch, run->d->accumulate));
        dt_optimizer_step(run->opt);
    } else if (batch) DT_TRY(dti_hogwild_change(w, batch));
    run->stop = atomic_load_explicit(&w->shared->stop, memory_order_relaxed);
    return DT_OK;
}

static void dti_hogwild_wished(dti_training *run) {
    dti_worker *w = run->own;
    atomic_store_explicit(&w->shared->stop, true, memory_order_relaxed);
    run->stop = true;
}

static dt_err dti_averaged_epoch_end(dti_training *run) {
    return dti_average_parameters(run->net, run->comm, DT_AUTO, run->stop, &run->stop);
}

static const dti_method dti_hogwild_free = { .step = dti_hogwild_step,
                                             .wished = dti_hogwild_wished };
static const dti_method dti_hogwild_averaged = { .step = dti_hogwild_step,
                                                 .wished = dti_hogwild_wished,
                                                 .epoch_end = dti_averaged_epoch_end };

/* on_step is called by worker 0 alone, and told what all have done, as far as it can know. */
static bool dti_hogwild_tell(const dt_progress *p, void *user) {
    const dti_worker *w = user;
    dt_progress all = *p;
    all.samples *= (uint64_t)dt_comm_size(w->run.comm);
    return dti_tell(w->shared->d, &all);
}

/* A worker's own: a clone of net and optimizer, a share of the data, room for a change. */
static dt_err dti_worker_begin(dti_worker *w, dti_hogwild *h, dt_comm *comm, uint32_t **index) {
    dti_training *run = &w->run;
    const bool averaged = h->sharing == DT_SHARE_AVERAGED, first = dt_comm_rank(comm) == 0;
    w->shared = h;
    w->d = *h->d;
    w->d.on_step = first && h->d->on_step ? dti_hogwild_tell : NULL;
    w->d.user = w;
    *run = (dti_training){ .method = averaged ? &dti_hogwild_averaged : &dti_hogwild_free,
                           .own = w, .comm = comm, .d = &w->d, .result = &w->result };
    if (!(run->net = dt_net_clone(h->net)) || !(run->opt = dt_optimizer_clone(h->opt, run->net)))
        return DT_ENOMEM;
    if (!(w->change = dti_alloc((run->net->trained + 1) * sizeof(float)))) return DT_ENOMEM;
    return dti_share_begin(run, h->d->batch, dt_comm_rank(comm), dt_comm_size(comm), index);
}

static void dti_worker_end(dti_worker *w, uint32_t *index) {
    dti_share_end(&w->run, index);
    dti_release(w->change);
    dt_optimizer_free(w->run.opt);
    /* worker 0's brings the averaged values back */
    if (dt_comm_rank(w->run.comm) > 0) dt_net_free(w->run.net);
}

/* The workers' own running statistics become their mean, on each of them; exact sums, as
   everywhere. */
static dt_err dti_worker_statistics(const dti_worker *w) {
    dt_net *net = w->run.net;
    const size_t sums = (net->count - net->trained) * DTI_WIDE;
    DT_TRY(dti_put_statistics(net));
    if (sums > 0)
        DT_TRY(dt_allreduce(w->run.comm, net->fixed + net->trained, sums, DT_I64, DT_SUM, DT_AUTO));
    dti_take_statistics(net, dt_comm_size(w->run.comm));
    return DT_OK;
}

/* A worker that fails tells the others to stop, and says where it was. */
static dt_err dti_worker_run(dti_worker *w) {
    dt_comm *comm = w->run.comm;
    dti_cpus allowed;
    const bool pinned = w->d.pin && dti_cpus_get(&allowed);
    if (pinned) dti_pin(&allowed, dt_comm_rank(comm) % dt_cores()); /* the cache stays warm */
    dt_err error = dt_barrier(comm);                                /* start together */
    if (error == DT_OK) error = dti_run_epochs(&w->run);
    if (error == DT_OK) error = dti_worker_statistics(w);
    /* worker 0 is the caller's thread */
    if (pinned) (void)dti_cpus_set(&allowed);
    if (error == DT_OK) return DT_OK;
    atomic_store(&w->shared->stop, true);
    return dt_fail(error, "Hogwild worker %d, epoch %d, step %u: %s", dt_comm_rank(comm),
                   w->run.p.epoch, (unsigned)w->run.p.step, dt_error());
}

/* What dt_run_ranks [S10.1] calls on each thread: its rank is the worker's number. */
static dt_err dti_worker_main(dt_comm *comm, void *shared) {
    dti_hogwild *h = shared;
    dti_worker *w = &h->worker[dt_comm_rank(comm)];
    uint32_t *index = NULL;
    dt_err error = dti_worker_begin(w, h, comm, &index);
    if (error == DT_OK) error = dti_worker_run(w);
    dti_worker_end(w, index);
    return error;
}

/* Times are the slowest worker's, counts are everybody's, added up. */
static void dti_hogwild_collect(dt_hogwild_result *result, const dti_hogwild *h, int workers) {
    dt_train_result *t = &result->train;
    for (int i = 0; i < workers; ++i) {
        const dti_worker *w = &h->worker[i];
        if (i < 64) result->worker_seconds[i] = w->result.seconds;
        if (w->result.seconds > t->seconds) t->seconds = w->result.seconds;
        t->samples += w->result.samples;
        t->retaken += w->result.retaken;
        dt_score_add(&t->score, &w->result.score);
        for (int b = 0; b < DT_STALENESS_BINS; ++b) result->staleness[b] += w->staleness[b];
        for (int e = 0; e < DT_MAX_EPOCHS_KEPT; ++e)
            if (w->result.epoch_seconds[e] > t->epoch_seconds[e])
                t->epoch_seconds[e] = w->result.epoch_seconds[e];
    }
    t->epochs = h->worker[0].result.epochs;
    t->stopped = h->worker[0].result.stopped;
}

/* Copies the values to where all share them, lets the workers run, and copies them back. */
static dt_err dti_hogwild_train(dt_net *net, int workers, dti_hogwild *h,
                                dt_hogwild_result *result) {
    const size_t bytes = net->trained * sizeof(float);
    h->pairs = (net->trained + 1) / 2;
    h->worker = dti_alloc((size_t)workers * sizeof *h->worker);
    h->values = dti_alloc(h->pairs * sizeof *h->values);
    if (!h->worker || !h->values) return DT_ENOMEM;
    memcpy((void *)(uintptr_t)h->values, net->values, bytes); /* no thread runs yet */
    DT_TRY(dt_run_ranks(workers, dti_worker_main, h));
    const bool averaged = h->sharing == DT_SHARE_AVERAGED;
    memcpy(net->values, h->worker[0].run.net->values, net->count * sizeof(float));
    if (!averaged) memcpy(net->values, (const float *)(uintptr_t)h->values, bytes);
    dti_hogwild_collect(result, h, workers);
    return DT_OK;
}

DT_API dt_err dt_train_shared(dt_net *net, const dt_optimizer *opt, int workers, dt_sharing sharing,
                              const dt_train_desc *d, dt_hogwild_result *result) {
    dti_hogwild h = { .net = net, .opt = opt, .d = d, .sharing = sharing };
    DTI_NEED(result, "result", DT_EARG);
    memset(result, 0, sizeof *result);
    DT_TRY(dti_check_train(__func__, net, opt, d));
    DT_TRY(dti_check_alone(__func__, net, workers));
    DT_TRY(dti_check_enum("Hogwild", "way to share", sharing, DT_SHARE_AVERAGED + 1u));
    if (d->validation || d->target > 0.0f || d->checkpoint || d->resume)
        return dt_fail(DT_EARG, "Hogwild: no validation, no target and no checkpoints; its workers "
                                "do not meet");
    if (workers < 1 || workers > 1024)
        return dt_fail(DT_EARG, "Hogwild: %d workers; needs 1..1024", workers);
    const uint32_t parts = d->accumulate ? d->accumulate : 1;
    if (d->batch - dti_piece_begin(d->batch, parts - 1, parts) >
        (uint32_t)net->max_groups * DT_LANES)
        return dt_fail(DT_EARG, "Hogwild: batch %u, the net was built for %d", (unsigned)d->batch,
                       net->max_groups * DT_LANES);
    if (d->data->count < (uint32_t)workers)
        return dt_fail(DT_EARG, "training: %u samples are too few for %d workers",
                       (unsigned)d->data->count, workers);
    if (pthread_mutex_init(&h.lock, NULL)) return dt_fail(DT_ENOMEM, "Hogwild: no lock");
    dt_err error = dti_hogwild_train(net, workers, &h, result);
    pthread_mutex_destroy(&h.lock);
    if (h.worker) dt_net_free(h.worker[0].run.net);
    dti_release((void *)(uintptr_t)h.values);
    dti_release(h.worker);
    return error;
}

DT_API dt_err dt_train_hogwild(dt_net *net, const dt_optimizer *opt, int workers,
                               const dt_train_desc *d, dt_hogwild_result *result) {
    return dt_train_shared(net, opt, workers, DT_SHARE_FREE, d, result);
}
#endif

/* =============================================================================
   Part II, the engine room. Each room opens with what it is for, and where to
   begin reading in it; rooms may be read in any order. A room uses Part I, and
   other rooms; nothing in Part I knows more of it than the doors [S1.4].
   ============================================================================= */

/* ==== [E1] Lane kernels ====================================================

   The convolution, pooling and linear layer of [S5] once more, near the machine's peak. Sixteen images stand
   side by side in memory, so one vector instruction does to sixteen images what a scalar one does to one
   image. To read:

     [E1.1]   the vector of sixteen images
     [E1.2]   the tile of sums in registers: the loop in which every direct kernel spends its time
     [E1.3]   convolution, forward and backward for data: what its tiles' rows, columns and steps are
     [E1.4]   convolution, backward for weights
     [E1.5]   max-pooling; [E1.6] behind a convolution, in one op; [E1.7] the linear layer
     [E1.8]   Winograd's algorithm, which multiplies less: it has the 3x3 and 5x5 convolutions of stride 1
              whose channels make it pay. It stands on E1.1
     [E1.9]   what all of this takes for granted of the arithmetic
     [E1.10]  images into lanes; [E1.11] integers for exact sums

   So the direct kernels are left with other strides and kernels, tiny maps, first layers of few channels,
   and nets that ask for them. They have one tile and one loop nest for all of these, and nothing that is
   made for one size. What both ways reach of the machine's peak is measured at dti_wino_rule.

   Letters, as in [S1.4]: a convolution g takes C maps of H x W to O maps of P x Q with K x K taps, stride S.
   Floats of an array are counted, not bytes; a name like y_row is how many of them lie between two rows. */

/* ==== [E1.1] Lanes ========================================================
   Activations are [C][H][W][16]: a lane group, in which each number of the network stands sixteen times, one
   for each image.

       x[c][h][w]    | image 0 | image 1 | ...                                      | image 15 |    64 bytes
       dti_v         |<----- AVX-512: one vector, DTI_W = 16, DTI_PARTS = 1 ------------------->|
                     |<----- AVX: 8 --------->|<---------- a second part --------------------->|
                     |<- SSE, NEON: 4 ->|

   A lane never meets another one, except where a weight's gradient adds up its sixteen partial sums
   (dti_fold). So the width of the vector cannot change a result: what must be the same everywhere is only
   the order of the additions in each element, and every kernel below states that order.

   Nearly all that knows of instruction sets stands here: below, a kernel is written once, in these few words.

       dti_load, dti_store    sixteen lanes or a part of them, from or to memory at a multiple of its size
       dti_splat(a)           the number a in every lane
       dti_fma(a, b, c)       a * b + c, fused where the machine can
       dti_places             what max-pooling keeps: in which place of its window a maximum was
       dti_fold, dti_turn     lanes added up; rows and columns exchanged
       DTI_UNROLL             a loop with constant bounds becomes straight code, and its arrays registers */
#ifdef DTI_IMPLEMENT
#if defined(__AVX512F__) || defined(__AVX__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#define DTI_L ((size_t)DT_LANES) /* floats from one position to the next */

#if defined(__GNUC__)
#define DTI_NOINLINE static __attribute__((noinline))
#else
#define DTI_NOINLINE static
#endif

#if defined(DTI_SANITIZED)
#define DTI_UNROLL
#elif defined(__clang__)
#define DTI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define DTI_UNROLL _Pragma("GCC unroll 32")
#else
#define DTI_UNROLL
#endif

#if !defined(__GNUC__)
#define DTI_W 1
#define DTI_REGISTERS 16
typedef float dti_v;
DTI_INLINE dti_v dti_fma(dti_v a, dti_v b, dti_v c) { return a * b + c; }
DTI_INLINE dti_v dti_splat(float a) { return a; }
DTI_INLINE dti_v dti_vsqrt(dti_v a) { return sqrtf(a); }
DTI_INLINE dti_v dti_vmax(dti_v a, dti_v b) { return b > a ? b : a; }
#elif defined(__AVX512F__)
#define DTI_W 16
#define DTI_REGISTERS 32
typedef float dti_v __attribute__((vector_size(64), may_alias));
DTI_INLINE dti_v dti_fma(dti_v a, dti_v b, dti_v c) { return _mm512_fmadd_ps(a, b, c); }
DTI_INLINE dti_v dti_splat(float a) { return _mm512_set1_ps(a); }
DTI_INLINE dti_v dti_vsqrt(dti_v a) { return _mm512_sqrt_ps(a); }
DTI_INLINE dti_v dti_vmax(dti_v a, dti_v b) { return _mm512_max_ps(b, a); } /* b > a ? b : a, NaN too */
#elif defined(__AVX__)
#define DTI_W 8
#define DTI_REGISTERS 16
typedef float dti_v __attribute__((vector_size(32), may_alias));
#if defined(__FMA__)
DTI_INLINE dti_v dti_fma(dti_v a, dti_v b, dti_v c) { return _mm256_fmadd_ps(a, b, c); }
#else
DTI_INLINE dti_v dti_fma(dti_v a, dti_v b, dti_v c) { return a * b + c; }
#endif
DTI_INLINE dti_v dti_splat(float a) { return _mm256_set1_ps(a); }
DTI_INLINE dti_v dti_vsqrt(dti_v a) { return _mm256_sqrt_ps(a); }
DTI_INLINE dti_v dti_vmax(dti_v a, dti_v b) { return _mm256_max_ps(b, a); }
#else
#define DTI_W 4
typedef float dti_v __attribute__((vector_size(16), may_alias));
DTI_INLINE dti_v dti_splat(float a) { return (dti_v){ a, a, a, a }; }
#if defined(__ARM_NEON) && defined(__aarch64__)
#define DTI_REGISTERS 32
DTI_INLINE dti_v dti_fma(dti_v a, dti_v b, dti_v c) { return vfmaq_f32(c, a, b); }
DTI_INLINE dti_v dti_vsqrt(dti_v a) { return vsqrtq_f32(a); }
DTI_INLINE dti_v dti_vmax(dti_v a, dti_v b) { return vbslq_f32(vcgtq_f32(b, a), b, a); }
#else
#define DTI_REGISTERS 16
DTI_INLINE dti_v dti_fma(dti_v a, dti_v b, dti_v c) { return a * b + c; }
DTI_INLINE dti_v dti_vsqrt(dti_v a) { return (dti_v){ sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3]) }; }
DTI_INLINE dti_v dti_vmax(dti_v a, dti_v b)
{
    DTI_UNROLL for (int k = 0; k < 4; ++k) a[k] = b[k] > a[k] ? b[k] : a[k];
    return a;
}
#endif
#endif
#define DTI_PARTS (16 / DTI_W)

DTI_INLINE dti_v dti_load(const float *a) { return *(const dti_v *)(const void *)a; } /* aligned */
DTI_INLINE void dti_store(float *a, dti_v v) { *(dti_v *)(void *)a = v; }

/* Places of maxima: small integers kept in float vectors while they are compared, in bytes in memory, one
   per lane. */
#if defined(__AVX512F__)
DTI_INLINE dti_v dti_if_greater(dti_v a, dti_v b, dti_v yes, dti_v no)              /* a > b ? yes : no */
{ return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), no, yes); }
DTI_INLINE void dti_store_places(uint8_t *to, dti_v v)
{ _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v))); }
typedef __m512i dti_places;
DTI_INLINE dti_places dti_load_places(const uint8_t *from)
{ return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from)); }
DTI_INLINE dti_v dti_if_place(dti_places a, int place, dti_v d)                     /* a == place ? d : 0 */
{ return _mm512_maskz_mov_ps(_mm512_cmpeq_epi32_mask(a, _mm512_set1_epi32(place)), d); }
#elif defined(__GNUC__)
typedef int dti_places __attribute__((vector_size(4 * DTI_W)));
typedef uint8_t dti_bytes __attribute__((vector_size(DTI_W)));
DTI_INLINE dti_v dti_if_greater(dti_v a, dti_v b, dti_v yes, dti_v no)
{ const dti_places m = a > b; return (dti_v)(((dti_places)yes & m) | ((dti_places)no & ~m)); }
DTI_INLINE void dti_store_places(uint8_t *to, dti_v v)
{
    const dti_bytes b = __builtin_convertvector(__builtin_convertvector(v, dti_places), dti_bytes);
    memcpy(to, &b, sizeof b);
}
DTI_INLINE dti_places dti_load_places(const uint8_t *from)
{ dti_bytes b; memcpy(&b, from, sizeof b); return __builtin_convertvector(b, dti_places); }
DTI_INLINE dti_v dti_if_place(dti_places a, int place, dti_v d)
{ return (dti_v)((dti_places)d & (a == place)); }
#else
typedef int dti_places;
DTI_INLINE dti_v dti_if_greater(dti_v a, dti_v b, dti_v yes, dti_v no) { return a > b ? yes : no; }
DTI_INLINE void dti_store_places(uint8_t *to, dti_v v) { *to = (uint8_t)v; }
DTI_INLINE dti_places dti_load_places(const uint8_t *from) { return *from; }
DTI_INLINE dti_v dti_if_place(dti_places a, int place, dti_v d) { return a == place ? d : 0.0f; }
#endif

#if defined(__GNUC__)
/* Four floats; DTI_PICK: four of the eight of a and b, by their places, 0 to 7. */
typedef float dti_four __attribute__((vector_size(16), may_alias));
#if defined(__clang__)
#define DTI_PICK(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int dti_four_places __attribute__((vector_size(16)));
#define DTI_PICK(a, b, i, j, k, l) __builtin_shuffle(a, b, (dti_four_places){ i, j, k, l })
#endif
#endif

/* sums[r] = the sixteen lanes of row r of acc[rows][16], folded l + (l+8), + (l+4), + (l+2), + (l+1). Four
   rows at a time, so that the last two steps, which would use half and a quarter of a vector, stay full. */
static void dti_fold(float *sums, const float *acc, int rows)
{
    int r = 0;
#if defined(__GNUC__)
    for (; r < rows && rows >= 4; r += 4) {
        if (r + 4 > rows) r = rows - 4; /* the last ones again, to the same bits */
        dti_four q[4];
        DTI_UNROLL for (int k = 0; k < 4; ++k) {
            const dti_four *a = (const dti_four *)(const void *)(acc + (size_t)(r + k) * DTI_L);
            q[k] = (a[0] + a[2]) + (a[1] + a[3]);
        }
        const dti_four s = DTI_PICK(q[0], q[1], 0, 1, 4, 5) + DTI_PICK(q[0], q[1], 2, 3, 6, 7);
        const dti_four t = DTI_PICK(q[2], q[3], 0, 1, 4, 5) + DTI_PICK(q[2], q[3], 2, 3, 6, 7);
        const dti_four f = DTI_PICK(s, t, 0, 2, 4, 6) + DTI_PICK(s, t, 1, 3, 5, 7);
        memcpy(sums + r, &f, sizeof f);
    }
#endif
    for (; r < rows; ++r) {
        const float *a = acc + (size_t)r * DTI_L;
        float q[4];
        for (int k = 0; k < 4; ++k) q[k] = (a[k] + a[k + 8]) + (a[k + 4] + a[k + 12]);
        sums[r] = (q[0] + q[2]) + (q[1] + q[3]);
    }
}

/* to[j][i] = from[i][j] for i < rows, j < columns, in blocks of 4x4, the last ones overlapping. */
static void dti_turn(float *to, ptrdiff_t to_row, const float *from, ptrdiff_t from_row,
                     ptrdiff_t rows, ptrdiff_t columns)
{
#if defined(__GNUC__)
    for (ptrdiff_t i = 0; i < rows && rows >= 4 && columns >= 4; i += 4) {
        if (i + 4 > rows) i = rows - 4;
        for (ptrdiff_t j = 0; j < columns; j += 4) {
            if (j + 4 > columns) j = columns - 4;
            dti_four a[4], b[4];
            DTI_UNROLL for (int k = 0; k < 4; ++k)
                memcpy(&a[k], from + (i + k) * from_row + j, sizeof a[k]);
            DTI_UNROLL for (int k = 0; k < 4; k += 2) {
                b[k] = DTI_PICK(a[k], a[k + 1], 0, 4, 1, 5);
                b[k + 1] = DTI_PICK(a[k], a[k + 1], 2, 6, 3, 7);
            }
            DTI_UNROLL for (int k = 0; k < 2; ++k) {
                a[2 * k] = DTI_PICK(b[k], b[k + 2], 0, 1, 4, 5);
                a[2 * k + 1] = DTI_PICK(b[k], b[k + 2], 2, 3, 6, 7);
            }
            DTI_UNROLL for (int k = 0; k < 4; ++k)
                memcpy(to + (j + k) * to_row + i, &a[k], sizeof a[k]);
        }
    }
    if (rows >= 4 && columns >= 4) return;
#endif
    if (rows > columns)                     /* the long loop inside */
        for (ptrdiff_t j = 0; j < columns; ++j)
            for (ptrdiff_t i = 0; i < rows; ++i) to[j * to_row + i] = from[i * from_row + j];
    else
        for (ptrdiff_t i = 0; i < rows; ++i)
            for (ptrdiff_t j = 0; j < columns; ++j) to[j * to_row + i] = from[i * from_row + j];
}

#if DTI_W == 16
/* 16 x 16. A vector a[4*q + k] takes the quarter q of the rows k, k+4, k+8, k+12, straight from
   memory; in each lane of four numbers, vectors k = 0 to 3 are then a 4x4 square to turn. */
static void dti_turn_square(float *to, ptrdiff_t to_row, const float *from, ptrdiff_t from_row)
{
    DTI_UNROLL for (int q = 0; q < 4; ++q) {
        __m512 a[4];
        DTI_UNROLL for (int k = 0; k < 4; ++k) {
            const float *at = from + k * from_row + 4 * q;
            a[k] = _mm512_castps128_ps512(_mm_load_ps(at));
            a[k] = _mm512_insertf32x4(a[k], _mm_load_ps(at + 4 * from_row), 1);
            a[k] = _mm512_insertf32x4(a[k], _mm_load_ps(at + 8 * from_row), 2);
            a[k] = _mm512_insertf32x4(a[k], _mm_load_ps(at + 12 * from_row), 3);
        }
        const __m512d x = _mm512_castps_pd(_mm512_unpacklo_ps(a[0], a[1]));
        const __m512d y = _mm512_castps_pd(_mm512_unpackhi_ps(a[0], a[1]));
        const __m512d z = _mm512_castps_pd(_mm512_unpacklo_ps(a[2], a[3]));
        const __m512d w = _mm512_castps_pd(_mm512_unpackhi_ps(a[2], a[3]));
        float *out = to + 4 * q * to_row;
        dti_store(out, _mm512_castpd_ps(_mm512_unpacklo_pd(x, z)));
        dti_store(out + to_row, _mm512_castpd_ps(_mm512_unpackhi_pd(x, z)));
        dti_store(out + 2 * to_row, _mm512_castpd_ps(_mm512_unpacklo_pd(y, w)));
        dti_store(out + 3 * to_row, _mm512_castpd_ps(_mm512_unpackhi_pd(y, w)));
    }
}
#else
static void dti_turn_square(float *to, ptrdiff_t to_row, const float *from, ptrdiff_t from_row)
{
    dti_turn(to, to_row, from, from_row, 16, 16);
}
#endif

/* x[i] = sqrt(x[i]), a register at a time. */
static void dti_sqrt_all(float *x, size_t n) {
    size_t i = 0;
    for (; i + DTI_W <= n; i += DTI_W) {
        dti_v v;
        memcpy(&v, x + i, sizeof v);
        v = dti_vsqrt(v);
        memcpy(x + i, &v, sizeof v);
    }
    for (; i < n; ++i) x[i] = sqrtf(x[i]);
}
#endif

/* ==== [E1.2] The register tile ============================================
   Nearly all of the direct kernels' time passes in one small loop, which makes a tile of sums:

       y[row][column] = start[row] + sum over steps k of w[k][row] * x[k][column]

   A column is a vector of lanes, a row has one weight for all of them. The sums stay in registers from the
   first step to the last. With 32 registers the tile is 8 x 3:

                       x[k][0]  x[k][1]  x[k][2]       3 vectors loaded
           w[k][0]     y[0][0]  y[0][1]  y[0][2]
           w[k][1]     y[1][0]  y[1][1]  y[1][2]       24 sums: in one step each takes one multiply-add
             ...         ...      ...      ...
           w[k][7]     y[7][0]  y[7][1]  y[7][2]
       8 weights loaded, each repeated over the lanes

   Why this shape: a core starts two multiply-adds and two loads in a cycle. One sum alone would load two
   numbers for each multiply-add, and wait four cycles for the sum before. 24 multiply-adds take 12 cycles;
   their 11 loads, and two that say where the step's numbers are, take 6.5 and hide behind them. Where there
   is a single column, the tile is 16 x 1. What the passes call a row, a column and a step:

       pass                         rows           columns               steps
       forward                      out channels   output positions      in channels x taps
       backward, data               in channels    input positions       out channels x taps
       backward, weights, turned    out channels   taps x vectors        lanes x positions
       backward, weights, lanewise  out channels   taps x in channels    positions
       linear layer                 outputs        lane groups           inputs

   Tiles differ between machines. A sum takes its steps in the same order in each, and so has the same bits.
   To read: dti_tile, then dti_tile_run; dti_tile_rows cuts what there is to do into tiles. */
#ifdef DTI_IMPLEMENT
enum { DTI_BLOCK = 16, DTI_TILE_COLUMNS = 3 };   /* most rows, and most columns, of a tile */

static int dti_least(int a, int b) { return a < b ? a : b; }
static size_t dti_whole_lines(size_t floats) { return (floats + 15) & ~(size_t)15; }

typedef struct dti_step { ptrdiff_t x, w; } dti_step;   /* how far into x and w, in floats */

typedef struct dti_tile {
    int rows, columns;              /* rows: of those that the tile has room for, so many are stored */
    const float *x[DTI_TILE_COLUMNS];    /* each column's first input */
    float *y[DTI_TILE_COLUMNS];          /* each column's sum in the first row of all, */
    ptrdiff_t y_row, y_first;       /* floats from a row to the next, and to the tile's first row */
    bool resume;                    /* go on from what y holds; else from start[row], or zero if NULL */
    const float *start;
    bool lanewise;                  /* a weight is a vector, a number for each lane */
    const float *w;                 /* the first row's weight; the others follow it, */
    ptrdiff_t w_row;                /* lanewise so many floats apart */
    const dti_step *steps;          /* the sum goes `rounds` times through the list of steps, */
    int n_steps, rounds;
    ptrdiff_t x_round, w_round;     /* x and w moving on after each round */
} dti_tile;

/* ROWS, COLUMNS and LANEWISE are constants at each call, so that the loops over rows and columns are
   unrolled and sum[][] is registers. A row beyond the last is computed with the others, from any weight, and
   not stored. */
DTI_INLINE void dti_tile_run(const int ROWS, const int COLUMNS, const bool LANEWISE, const dti_tile *a)
{
    const dti_step *const end = a->steps + a->n_steps;
    ptrdiff_t w_at[DTI_BLOCK];
    DTI_UNROLL for (int r = 0; r < ROWS; ++r) w_at[r] = LANEWISE ? (r < a->rows ? r : 0) * a->w_row : r;
    for (ptrdiff_t part = 0; part < DT_LANES; part += DTI_W) {
        const ptrdiff_t first = a->y_first + part;
        dti_v sum[DTI_BLOCK][DTI_TILE_COLUMNS];
        DTI_UNROLL for (int r = 0; r < ROWS; ++r)
            DTI_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                const bool resume = a->resume && r < a->rows, start = a->start && r < a->rows;
                if (resume) sum[r][c] = dti_load(a->y[c] + first + r * a->y_row);
                else sum[r][c] = dti_splat(start ? a->start[r] : 0.0f);
            }
        const float *w = a->w + (LANEWISE ? part : 0);
        ptrdiff_t x = part;
        for (int round = a->rounds; round > 0; --round, x += a->x_round, w += a->w_round)
            for (const dti_step *k = a->steps; k < end; ++k) {
                dti_v xs[DTI_TILE_COLUMNS];
                DTI_UNROLL for (int c = 0; c < COLUMNS; ++c) xs[c] = dti_load(a->x[c] + x + k->x);
                DTI_UNROLL for (int r = 0; r < ROWS; ++r) {
                    const float *wr = w + k->w + w_at[r];
                    const dti_v ws = LANEWISE ? dti_load(wr) : dti_splat(*wr);
                    DTI_UNROLL for (int c = 0; c < COLUMNS; ++c) sum[r][c] = dti_fma(ws, xs[c], sum[r][c]);
                }
            }
        DTI_UNROLL for (int r = 0; r < ROWS; ++r)
            DTI_UNROLL for (int c = 0; c < COLUMNS; ++c) /* not dti_store: in [E1.7] y is dw, not aligned */
                if (r < a->rows) memcpy(a->y[c] + first + r * a->y_row, &sum[r][c], sizeof(dti_v));
    }
}

/* The tiles; each is a function of its own, which keeps compilers fast. */
#if DTI_REGISTERS == 32
enum { DTI_ROWS = 8 };
#else
enum { DTI_ROWS = 4 };
#endif
DTI_NOINLINE void dti_tile_1(const dti_tile *a) { dti_tile_run(2 * DTI_ROWS, 1, false, a); }
DTI_NOINLINE void dti_tile_2(const dti_tile *a) { dti_tile_run(DTI_ROWS, 2, false, a); }
DTI_NOINLINE void dti_tile_3(const dti_tile *a) { dti_tile_run(DTI_ROWS, 3, false, a); }
DTI_NOINLINE void dti_tile_3_low(const dti_tile *a) { dti_tile_run(DTI_ROWS / 2, 3, false, a); }
DTI_NOINLINE void dti_lanewise_1(const dti_tile *a) { dti_tile_run(4, 1, true, a); }
DTI_NOINLINE void dti_lanewise_2(const dti_tile *a) { dti_tile_run(4, 2, true, a); }
DTI_NOINLINE void dti_lanewise_3(const dti_tile *a) { dti_tile_run(4, 3, true, a); }

/* What a kernel knows of its machine. */
static const struct dti_machine {
    /* By columns, 1 to 3; low: for three columns and few rows. All sums, a step's columns and a weight must
       fit the registers; of the tiles that do, these were the fastest in bench.c. */
    struct dti_shape { int rows; void (*make)(const dti_tile *); } plain[3], low, lanewise[3];
    /* What a band of rows [E1.4] may bring to L1 and to L2, in bytes. The same on every machine, for where a
       band ends can be seen in a sum's last bit; 32 to 48 KiB of L1 and 1 to 2 MiB of L2 are usual, and half
       and twice these were slower. */
    int l1_bytes, l2_bytes;
} dti_machine = {
    .plain = { { 2 * DTI_ROWS, dti_tile_1 }, { DTI_ROWS, dti_tile_2 }, { DTI_ROWS, dti_tile_3 } },
    .low = { DTI_ROWS / 2, dti_tile_3_low },
    .lanewise = { { 4, dti_lanewise_1 }, { 4, dti_lanewise_2 }, { 4, dti_lanewise_3 } },
    .l1_bytes = 32 * 1024, .l2_bytes = 512 * 1024
};

static const struct dti_shape *dti_shape_of(const dti_tile *a, int rows)
{
    if (a->lanewise) return &dti_machine.lanewise[a->columns - 1];
    if (a->columns == 3 && rows <= dti_machine.low.rows) return &dti_machine.low;
    return &dti_machine.plain[a->columns - 1];
}

/* Columns of the next tile, of the n that are left: not such that one remains alone. */
static int dti_tile_take(int n) { return n == 4 ? 2 : dti_least(n, DTI_TILE_COLUMNS); }

/* All rows over the tile's columns. Weights, if not lanewise, stand in blocks of 16 rows, w_block floats
   apart. */
static void dti_tile_rows(dti_tile *a, int rows, const float *w, ptrdiff_t w_block, const float *start)
{
    for (int row = 0; row < rows; row += a->rows) {
        const struct dti_shape *s = dti_shape_of(a, rows - row);
        a->rows = dti_least(s->rows, rows - row);
        a->w = w + (a->lanewise ? row * a->w_row : row / DTI_BLOCK * w_block + row % DTI_BLOCK);
        a->start = start ? start + row : NULL;
        a->y_first = row * a->y_row;
        s->make(a);
    }
}
#endif

/* ==== [E1.3] Convolution, forward and backward for data ===================
   y += x*w  =>  dx += w*dy: both passes read one map through a window of taps and write another, and both are
   dti_correlate, below. Forward, output i reads with tap u the input i*S + u - pad. Backward, the place r of
   dx has shares from the outputs (r + pad - u)/S, where that is whole.

   Not every output has all taps: at an edge some would read padding, which is zero, and backward at stride S
   a place has only every S-th tap. A textbook puts zeros there and multiplies them. Here outputs that have
   the same taps are a run, and each run goes through a list of the taps that it has. A row of six, K = 3,
   pad = 1, forward:

       x             0 | a  b  c  d  e  f | 0
       taps of y[0]  -   1  2                       run 1: y[0], two taps
       taps of y[1]      0  1  2                    run 2: y[1] to y[4], three taps
       taps of y[5]                  0  1   -       run 3: y[5], two taps

   Rows have runs and columns have runs; a map's corners, edges and middle are the pairs of them. Taps that
   no output has are dropped from the kernel: on a 1x1 map a padded 3x3 kernel is 1x1, a ninth of the weights
   and of the work. */
#ifdef DTI_IMPLEMENT
/* One axis of a pass. */
typedef struct dti_axis {
    int outs, ins, S, pad;
    int first, taps;                /* of the kernel's taps these are used */
    bool backward;
} dti_axis;

/* The input that output i reads with tap u, or -1. */
static int dti_axis_in(const dti_axis *a, int i, int u)
{
    const int at = a->backward ? i + a->pad - u : i * a->S + u - a->pad;
    if (at < 0 || (a->backward && at % a->S != 0)) return -1;
    const int in = a->backward ? at / a->S : at;
    return in < a->ins ? in : -1;
}

/* `n` outputs, `step` apart, that have the same taps. The first output reads the input `in` with tap `tap`.
   */
typedef struct dti_run { int n, step, out, taps, tap, in; } dti_run;

static dti_run dti_run_of_one(const dti_axis *a, int i)
{
    dti_run r = { .n = 1, .step = a->backward ? a->S : 1, .out = i };
    for (int u = a->first + a->taps; u-- > a->first;) {
        const int in = dti_axis_in(a, i, u);
        if (in >= 0) r.tap = u, r.in = in, ++r.taps;
    }
    return r;
}

/* The run after *r, or the first if that is { 0 }. Outputs that have not the same remainder by step have no
   tap in common: the runs go through one remainder after the other. */
static bool dti_next_run(const dti_axis *a, dti_run *r)
{
    int i = r->out + r->n * r->step;
    if (i >= a->outs) {
        i = r->out % r->step + 1;
        if (i >= r->step || i >= a->outs) return false;
    }
    *r = dti_run_of_one(a, i);
    while ((i += r->step) < a->outs) {
        const dti_run next = dti_run_of_one(a, i);
        if (next.taps != r->taps || next.tap != r->tap) break;
        ++r->n;
    }
    return true;
}

/* The axis of a pass: `in` inputs and `out` outputs of the forward pass, which backward change places. first
   and taps leave out the kernel's taps that no output has. */
static dti_axis dti_axis_of(int in, int out, const dti_conv *c, bool backward)
{
    const dti_axis whole = { out, in, c->S, c->pad, 0, c->K, false };
    int first = c->K, end = 0;
    for (int i = 0; i < out; ++i) {
        const dti_run r = dti_run_of_one(&whole, i);
        if (r.taps == 0) continue;
        first = dti_least(first, r.tap);
        end = r.tap + r.taps > end ? r.tap + r.taps : end;
    }
    const int taps = end > first ? end - first : 0;
    if (backward) return (dti_axis){ in, out, c->S, c->pad, first, taps, true };
    return (dti_axis){ out, in, c->S, c->pad, first, taps, false };
}

static dti_axis dti_rows_of(const dti_conv *c, bool back) { return dti_axis_of(c->H, c->P, c, back); }
static dti_axis dti_columns_of(const dti_conv *c, bool back) { return dti_axis_of(c->W, c->Q, c, back); }

/* Weights are packed once a training step, in the order in which tiles read them: [block of 16
   outs][in][u][v][16], the taps that are used; behind a last block that is not full there is room. */
static size_t dti_packed_pass_floats(int outs, int ins, int K)
{
    const size_t blocks = (size_t)(outs + DTI_BLOCK - 1) / DTI_BLOCK;
    return blocks * DTI_BLOCK * (size_t)ins * (size_t)K * (size_t)K;
}

DTI_LOCAL size_t dti_conv_packed_floats(const dti_conv *c)
{
    return dti_packed_pass_floats(c->O, c->C, c->K) + dti_packed_pass_floats(c->C, c->O, c->K);
}

/* One pass's weights. The loops: blocks of 16 outs; ins; lines of taps, each turned as a whole. */
static void dti_pack_pass(const dti_conv *c, bool backward, const float *w, float *packed)
{
    const dti_axis rows = dti_rows_of(c, backward), columns = dti_columns_of(c, backward);
    const ptrdiff_t KK = (ptrdiff_t)c->K * c->K, filter = c->C * KK;
    const ptrdiff_t out_step = backward ? KK : filter, in_step = backward ? filter : KK;
    const int outs = backward ? c->C : c->O;
    int ins = backward ? c->O : c->C, lines = rows.taps;
    ptrdiff_t across = columns.taps;                    /* taps of a line lie side by side in w; */
    if (rows.taps * columns.taps == KK) lines = 1, across = KK;     /* if none is dropped, all do, */
    if (across == KK && !backward) across *= ins, ins = 1;          /* and forward those of all inputs */
    for (int o = 0; o < outs; o += DTI_BLOCK)
        for (int i = 0; i < ins; ++i)
            for (int u = 0; u < lines; ++u, packed += across * DTI_BLOCK) {
                const float *from = w + o * out_step + i * in_step + (rows.first + u) * c->K + columns.first;
                const int block = dti_least(outs - o, DTI_BLOCK);
                if (across == 1 && out_step == 1) memcpy(packed, from, (size_t)block * sizeof *packed);
                else dti_turn(packed, DTI_BLOCK, from, out_step, block, across);
            }
}

/* w[O][C][K][K] -> packed for dti_conv_forward, and behind it for dti_conv_backward_data. */
DTI_LOCAL void dti_conv_pack(const dti_conv *c, const float *w, float *packed)
{
    dti_pack_pass(c, false, w, packed);
    dti_pack_pass(c, true, w, packed + dti_packed_pass_floats(c->O, c->C, c->K));
}

/* A list of steps covers several rounds if it is short: its end comes often, and a processor that did not
   foresee the end has lost the time of several steps. The rounds must be a multiple. */
enum { DTI_LIST = 32 };

static int dti_rounds_a_list(int taps, int rounds)
{
    int times = taps > 0 ? DTI_LIST / taps : 1;
    while (times > 1 && rounds % times) --times;
    return times > 1 ? times : 1;
}

/* The list of one sum's taps; scratch of a pass begins with it. */
static size_t dti_steps_floats(const dti_conv *c)
{
    const int most = c->K * c->K > DTI_LIST ? c->K * c->K : DTI_LIST;
    return dti_whole_lines((size_t)most * sizeof(dti_step) / sizeof(float));
}

/* in [ins][rows][columns][16] -> out [outs][rows][columns][16], a whole map of one lane group. The loops:
     runs       outputs that have the same taps, one list: inside of the map, at each edge
     places     as many of these as a tile has columns; their inputs, some rows of all channels, stay in L1
     outs       all tiles of rows over these columns; the weights stream by from L2, or L3 if they are many
     ins, taps  the sum, in registers */
static void dti_correlate(const dti_conv *g, bool backward, const float *in, const float *packed,
                          const float *bias, float *out, float *scratch)
{
    const dti_axis rows = dti_rows_of(g, backward), columns = dti_columns_of(g, backward);
    const int outs = backward ? g->C : g->O, ins = backward ? g->O : g->C, sign = backward ? -1 : 1;
    const int tap_step = backward ? g->S : 1, in_step = backward ? 1 : g->S;
    const ptrdiff_t in_row = (ptrdiff_t)DT_LANES * columns.ins, out_row = (ptrdiff_t)DT_LANES * columns.outs;
    const ptrdiff_t in_map = rows.ins * in_row, w_in = (ptrdiff_t)DTI_BLOCK * rows.taps * columns.taps;
    dti_step *steps = (dti_step *)(void *)scratch;
    dti_tile a = { .y_row = rows.outs * out_row, .steps = steps };
    for (dti_run r = { 0 }; dti_next_run(&rows, &r); )
    for (dti_run q = { 0 }; dti_next_run(&columns, &q); ) {
        const int times = dti_rounds_a_list(r.taps * q.taps, ins);
        const int row = r.tap - rows.first, column = q.tap - columns.first;     /* the run's first tap */
        a.n_steps = 0;
        for (int i = 0; i < times; ++i)
            for (int u = 0; u < r.taps; ++u)
                for (int v = 0; v < q.taps; ++v) {
                    const ptrdiff_t tap = (row + u * tap_step) * columns.taps + column + v * tap_step;
                    const ptrdiff_t from = sign * (u * in_row + v * DT_LANES);
                    steps[a.n_steps++] = (dti_step){ i * in_map + from, i * w_in + tap * DTI_BLOCK };
                }
        a.rounds = ins / times;
        a.x_round = times * in_map;
        a.w_round = times * w_in;
        for (int places = r.n * q.n, k = 0; k < places; k += a.columns) {
            a.columns = dti_tile_take(places - k);
            for (int c = 0; c < a.columns; ++c) {
                const int i = (k + c) / q.n, j = (k + c) % q.n;
                a.x[c] = in + (r.in + i * in_step) * in_row + (q.in + j * in_step) * DT_LANES;
                a.y[c] = out + (r.out + i * r.step) * out_row + (q.out + j * q.step) * DT_LANES;
                if (a.n_steps == 0) a.x[c] = in;            /* a place without taps reads nothing */
            }
            dti_tile_rows(&a, outs, packed, ins * w_in, bias);
        }
    }
}

/* y[o,i,j] = b[o] + sum_{c,u,v} x[c,i*S+u-p,j*S+v-p] * w[o,c,u,v] for one lane group. x [C][H][W][16],
   packed by dti_conv_pack, b (O) or NULL -> y [O][P][Q][16], overwritten, no alias. 2*O*P*Q*C*K*K*16 flop.
   */
DTI_LOCAL void dti_conv_forward(const dti_conv *c, const float *x, const float *packed, const float *b,
                                float *y, float *scratch)
{
    dti_correlate(c, false, x, packed, b, y, scratch);
}

/* dx[c,r,s] = sum_{o,u,v} dy[o,(r+p-u)/S,(s+p-v)/S] * w[o,c,u,v]; dx [C][H][W][16], overwritten, no alias. */
DTI_LOCAL void dti_conv_backward_data(const dti_conv *c, const float *dy, const float *packed, float *dx,
                                      float *scratch)
{
    dti_correlate(c, true, dy, packed + dti_packed_pass_floats(c->O, c->C, c->K), NULL, dx, scratch);
}
#endif

/* ==== [E1.4] Convolution, backward for weights =============================
   dw[o,c,u,v] = sum over positions and lanes of x * dy. Both factors are vectors over the lanes, and a
   weight wants one number. There are two ways to it, chosen by the number of input channels:

     turned     from 12 channels on. x and dy are transposed, 16 channels for 16 lanes at each position:

                      16 lanes                  16 channels
                   +-----------+               +-----------+      x: a vector is 16 input channels of one lane
        16 channels|           |  turned  lanes|           |      dy: 16 output channels, the tile's weights
                   +-----------+               +-----------+

                Lanes are then steps of the sum, as positions are, and every lane of a register has work.
     lanewise   for first layers, whose one or three channels would leave those vectors all but empty. dy's
                vectors are the weights, each sum is a vector of sixteen partial sums, folded at the end.

   Either way a tile's columns are neighbouring taps of a kernel row over all positions that have them, a run
   as in [E1.3]. The order of a sum: bands of output rows; runs of columns; turned, lanes; positions in
   row-major order. A band is as many rows as stay in L2, lanewise in L1, while all taps go over them. Begin
   with dti_conv_backward_weights, at the end, then dti_weights_band. */
#ifdef DTI_IMPLEMENT
/* Floats from lane to lane of n turned positions: an odd number of cache lines, because a power of two would
   put all sixteen lanes into the same few places of L1. */
static ptrdiff_t dti_lane_floats(ptrdiff_t n) { return (n | 1) * DTI_BLOCK; }

/* from [channels][..][16], of it n positions -> to [block of 16 channels][16 lanes][n][16 channels];
   channels that there are not are zero. */
static void dti_turn_positions(float *to, const float *from, ptrdiff_t channel, int channels, ptrdiff_t n)
{
    const ptrdiff_t lane = dti_lane_floats(n);
    for (; channels > 0; channels -= DTI_BLOCK, from += DTI_BLOCK * channel, to += DT_LANES * lane) {
        if (channels < DTI_BLOCK) memset(to, 0, (size_t)(DT_LANES * lane) * sizeof *to);
        for (ptrdiff_t k = 0; k < n; ++k)
            if (channels < DTI_BLOCK)
                dti_turn(to + k * DTI_BLOCK, lane, from + k * DT_LANES, channel, channels, DT_LANES);
            else dti_turn_square(to + k * DTI_BLOCK, lane, from + k * DT_LANES, channel);
    }
}

/* db[o] = sum of channel o of dy, n positions: per lane in eight chains, position k in chain k mod 8, folded
   k + (k+4), + (k+2), + (k+1); the lanes then by dti_fold. */
static void dti_bias_gradient(float *db, const float *dy, int channels, ptrdiff_t n)
{
    for (int o = 0; o < channels; ++o, dy += n * DT_LANES) {
        float lanes[DT_LANES];
        for (ptrdiff_t part = 0; part < DT_LANES; part += DTI_W) {
            dti_v s[8];
            DTI_UNROLL for (int k = 0; k < 8; ++k) s[k] = dti_splat(0.0f);
            for (ptrdiff_t at = 0; at < n; at += 8)
                DTI_UNROLL for (int k = 0; k < 8; ++k)
                    if (at + k < n) s[k] += dti_load(dy + (at + k) * DT_LANES + part);
            s[0] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
            memcpy(lanes + part, &s[0], sizeof s[0]);
        }
        dti_fold(db + o, lanes, 1);
    }
}

static size_t dti_padded_floats(const dti_conv *c)
{
    return (size_t)c->C * (size_t)(c->H + 2 * c->pad) * (size_t)(c->W + 2 * c->pad) * DTI_L;
}

/* How a layer's weights are done, and where in scratch its parts begin. */
typedef struct dti_wplan {
    bool turned;
    dti_axis rows, columns;
    int taps;
    int items;                      /* vectors of input channels; lanewise, channels */
    int outs;                       /* output channels at a time: all; lanewise few, for L1 */
    int band;                       /* output rows at a time */
    size_t sums, dy, x, end;        /* in scratch, behind the steps */
} dti_wplan;

/* A band's rows: as many as bring l2_bytes of turned x, or l1_bytes of dy lanewise; at least two, an even
   number, at most all. */
static dti_wplan dti_wplan_of(const dti_conv *g)
{
    dti_wplan p = { g->C >= 12, dti_rows_of(g, false), dti_columns_of(g, false), 0, 0, 0, 0, 0, 0, 0, 0 };
    const int line = DT_LANES * (int)sizeof(float), blocks = (g->O + DTI_BLOCK - 1) / DTI_BLOCK;
    p.taps = p.rows.taps * p.columns.taps;
    p.items = p.turned ? (g->C + DT_LANES - 1) / DT_LANES : g->C;
    p.outs = p.turned ? g->O : dti_least(g->O, 4);
    p.band = p.turned ? dti_machine.l2_bytes / line / DT_LANES / (p.items * g->S * g->W)
                      : dti_machine.l1_bytes / line / (p.outs * g->Q);
    p.band = dti_least(p.band < 2 ? 2 : p.band & ~1, g->P);
    const int x_rows = dti_least(g->H, (p.band - 1) * g->S + p.rows.taps);
    const size_t steps = (size_t)(p.band * g->Q) * sizeof(dti_step) / sizeof(float);
    p.sums = dti_whole_lines(steps);
    p.dy = p.sums + (size_t)(p.outs * p.items * p.taps) * DTI_L;
    p.x = p.dy + (p.turned ? (size_t)(blocks * dti_lane_floats(p.band * g->Q)) * DTI_L : 0);
    p.end = p.x + (p.turned ? (size_t)(p.items * dti_lane_floats(x_rows * g->W)) * DTI_L : 0);
    return p;
}

/* What a band reads, and the sums that it is added to. */
typedef struct dti_band {
    int from, to, outs;             /* output rows from .. to-1 */
    const float *x, *dy;            /* input row x_from and output row `from` are the first */
    int x_from;
    ptrdiff_t x_item, dy_block;     /* floats from item to item; between blocks of 16 outs */
    float *sums;                    /* [outs][items][taps][16] */
    dti_step *steps;
} dti_band;

/* The loops:
     runs          of columns with the same taps, one list of positions
     kernel rows   and the output rows that have them
     columns       as many taps of the kernel row, and items, as a tile has columns
     outs          all tiles of rows over these columns
     positions     the sum, in registers, turned: for each lane; x and dy of the band lie in L1 or L2 */
static void dti_weights_band(const dti_conv *g, const dti_wplan *p, const dti_band *b, dti_tile *a)
{
    const ptrdiff_t x_row = (ptrdiff_t)DT_LANES * g->W, dy_row = (ptrdiff_t)DT_LANES * g->Q;
    for (dti_run q = { 0 }; dti_next_run(&p->columns, &q); ) {
        for (int i = 0, n = 0; i < b->to - b->from; ++i)
            for (int j = 0; j < q.n; ++j)
                b->steps[n++] = (dti_step){ g->S * (i * x_row + j * DT_LANES), i * dy_row + j * DT_LANES };
        for (int u = 0; u < p->rows.taps; ++u) {
            const int tap = p->rows.first + u;
            int low = b->from, high = b->to;            /* output rows that have this tap */
            while (low < high && dti_axis_in(&p->rows, low, tap) < 0) ++low;
            while (low < high && dti_axis_in(&p->rows, high - 1, tap) < 0) --high;
            if (low == high) continue;
            a->n_steps = (high - low) * q.n;
            const float *x = b->x + (dti_axis_in(&p->rows, low, tap) - b->x_from) * x_row + q.in * DT_LANES;
            const float *dy = b->dy + (low - b->from) * dy_row + q.out * DT_LANES;
            float *sums = b->sums + (u * p->columns.taps + q.tap - p->columns.first) * DT_LANES;
            for (int n = q.taps * p->items, k = 0; k < n; k += a->columns) {
                a->columns = dti_tile_take(n - k);
                for (int c = 0; c < a->columns; ++c) {
                    const int item = (k + c) / q.taps, v = (k + c) % q.taps;
                    a->x[c] = x + item * b->x_item + v * DT_LANES;
                    a->y[c] = sums + (item * p->taps + v) * DT_LANES;
                }
                dti_tile_rows(a, b->outs, dy, b->dy_block, NULL);
            }
        }
    }
}

/* x and dy of a band, as they lie or turned into scratch. */
static dti_tile dti_weights_tile(const dti_conv *g, const dti_wplan *p, const float *x, const float *dy,
                                 float *scratch, dti_band *b)
{
    const ptrdiff_t x_row = (ptrdiff_t)DT_LANES * g->W, dy_row = (ptrdiff_t)DT_LANES * g->Q;
    dti_tile a = { .resume = true, .y_row = (ptrdiff_t)p->items * p->taps * DT_LANES, .steps = b->steps };
    b->dy = dy + b->from * dy_row;
    if (!p->turned) {
        a.lanewise = true;
        a.rounds = 1;
        a.w_row = g->P * dy_row;
        b->x = x;
        b->x_from = 0;
        b->x_item = g->H * x_row;
        return a;
    }
    const int top = b->from * g->S - g->pad + p->rows.first, y_rows = b->to - b->from;
    const int bottom = dti_least(g->H, top + (y_rows - 1) * g->S + p->rows.taps);
    b->x_from = dti_least(top > 0 ? top : 0, g->H);
    const int x_rows = bottom > b->x_from ? bottom - b->x_from : 0;
    dti_turn_positions(scratch + p->x, x + b->x_from * x_row, g->H * x_row, g->C, x_rows * g->W);
    dti_turn_positions(scratch + p->dy, b->dy, g->P * dy_row, g->O, y_rows * g->Q);
    a.rounds = DT_LANES;
    a.x_round = dti_lane_floats(x_rows * g->W);
    a.w_round = dti_lane_floats(y_rows * g->Q);
    b->x = scratch + p->x;
    b->dy = scratch + p->dy;
    b->x_item = DT_LANES * a.x_round;
    b->dy_block = DT_LANES * a.w_round;
    return a;
}

/* Finished sums, folded or turned back, to dw of o0 .. o0+outs-1; taps that were dropped have no gradient. */
static void dti_weights_finish(const dti_conv *g, const dti_wplan *p, int o0, int outs, const float *sums,
                               float *dw)
{
    const int KK = g->K * g->K;
    const bool all = p->taps == KK;
    const int across = all ? KK : p->columns.taps, lines = all ? 1 : p->rows.taps;
    dw += (ptrdiff_t)o0 * g->C * KK;
    if (!all) memset(dw, 0, (size_t)(outs * g->C * KK) * sizeof *dw);
    dw += p->rows.first * g->K + p->columns.first;
    for (int o = 0; o < outs; ++o, dw += (ptrdiff_t)g->C * KK)
        for (int c = 0; c < g->C; c += p->turned ? DT_LANES : 1)
            for (int u = 0; u < lines; ++u, sums += across * DT_LANES) {
                float *line = dw + (ptrdiff_t)c * KK + u * g->K;
                if (p->turned) dti_turn(line, KK, sums, DT_LANES, across, dti_least(g->C - c, DT_LANES));
                else dti_fold(line, sums, across);
            }
}

/* x with its padding, as zeros. */
static void dti_pad(const dti_conv *g, const float *x, float *to)
{
    const ptrdiff_t W = g->W + 2 * g->pad;
    memset(to, 0, dti_padded_floats(g) * sizeof *to);
    for (int c = 0; c < g->C; ++c, to += 2 * g->pad * W * DT_LANES)
        for (int i = 0; i < g->H; ++i, to += W * DT_LANES, x += g->W * DT_LANES)
            memcpy(to + (g->pad * W + g->pad) * DT_LANES, x, (size_t)g->W * DTI_L * sizeof *to);
}

/* dw[o,c,u,v] = sum_{i,j,l} x[c,i*S+u-p,j*S+v-p,l] * dy[o,i,j,l],  db[o] = sum_{i,j,l} dy[o,i,j,l]: sums of
   one lane group, in the order stated above; dw (O,C,K,K), db (O) or NULL, overwritten.
   2*O*P*Q*C*K*K*16 flop. */
DTI_LOCAL void dti_conv_backward_weights(const dti_conv *g, const float *x, const float *dy, float *dw,
                                         float *db, float *scratch)
{
    const dti_wplan p = dti_wplan_of(g);
    const ptrdiff_t map = (ptrdiff_t)g->P * g->Q * DT_LANES;
    if (db) dti_bias_gradient(db, dy, g->O, (ptrdiff_t)g->P * g->Q);
    if (!p.turned && g->S == 1 && g->pad > 0 && p.taps == g->K * g->K) {
        dti_conv wide = *g;                             /* zeros cost less than each band's edges */
        wide.H += 2 * g->pad;
        wide.W += 2 * g->pad;
        wide.pad = 0;
        dti_pad(g, x, scratch);
        dti_conv_backward_weights(&wide, scratch, dy, dw, NULL, scratch + dti_padded_floats(g));
        return;
    }
    dti_band b = { .sums = scratch + p.sums, .steps = (dti_step *)(void *)scratch };
    for (int o = 0; o < g->O; o += p.outs) {
        b.outs = dti_least(p.outs, g->O - o);
        memset(b.sums, 0, (size_t)(b.outs * p.items * p.taps) * DTI_L * sizeof *b.sums);
        for (b.from = 0; b.from < g->P; b.from = b.to) {
            b.to = dti_least(b.from + p.band, g->P);
            dti_tile a = dti_weights_tile(g, &p, x, dy + o * map, scratch, &b);
            dti_weights_band(g, &p, &b, &a);
        }
        dti_weights_finish(g, &p, o, b.outs, b.sums, dw);
    }
}
#endif

/* ==== [E1.5] Max-pooling ===================================================
   y = the maximum of each K x K window, argmax its place u*K + v, per lane; of equal values the first in
   row-major order. Backward, each dy goes to its window's place.

       one lane, K = 2:     x  1  7        y 7        dx  0  dy        places   0  1
                               3  5        place 1        0  0                  2  3

   To search the windows again on the way back would need x once more, and a comparison for each number; a
   place is one byte. With ReLU in the same pass a place of 4 says that nothing goes back. The places of
   sixteen lanes are compared as vectors. To read: dti_pool_row. */
#ifdef DTI_IMPLEMENT
/* One row of windows of one channel: W columns of x, of which each window begins S after the last. */
DTI_INLINE void dti_pool_row(int W, int K, int S, const float *x, float *y, uint8_t *argmax)
{
    for (int j = 0; j + K <= W; j += S, y += DT_LANES, argmax += DT_LANES)
        for (ptrdiff_t part = 0; part < DT_LANES; part += DTI_W) {
            dti_v best = dti_load(x + j * DT_LANES + part), place = dti_splat(0.0f);
            for (int u = 0; u < K; ++u)
            for (int v = 0; v < K; ++v) {
                const dti_v a = dti_load(x + ((ptrdiff_t)u * W + j + v) * DT_LANES + part);
                place = dti_if_greater(a, best, dti_splat((float)(u * K + v)), place);
                best = dti_vmax(best, a);
            }
            dti_store(y + part, best);
            dti_store_places(argmax + part, place);
        }
}

/* y[c,i,j] = max_{u,v < K} x[c,i*S+u,j*S+v]       x [C][H][W][16] -> y, argmax [C][P][Q][16], overwritten, no
   alias. K <= 15. */
DTI_LOCAL void dti_maxpool_forward(int C, int H, int W, int K, int S, const float *x, float *y,
                                   uint8_t *argmax)
{
    const ptrdiff_t P = (H - K) / S + 1, row = ((W - K) / S + 1) * DT_LANES;
    for (int c = 0; c < C; ++c)
    for (int i = 0; i < P; ++i, y += row, argmax += row) {
        const float *from = x + ((ptrdiff_t)c * H + i * S) * W * DT_LANES;
        if (K == 2 && S == 2) dti_pool_row(W, 2, 2, from, y, argmax);  /* constants: unrolled */
        else dti_pool_row(W, K, S, from, y, argmax);
    }
}

/* The way back: dx += dy where the maximum was. */
DTI_INLINE void dti_unpool_row(int W, int K, int S, const float *dy, const uint8_t *argmax, float *dx)
{
    for (int j = 0; j + K <= W; j += S, dy += DT_LANES, argmax += DT_LANES)
        for (ptrdiff_t part = 0; part < DT_LANES; part += DTI_W) {
            const dti_v d = dti_load(dy + part);
            const dti_places place = dti_load_places(argmax + part);
            for (int u = 0; u < K; ++u)
            for (int v = 0; v < K; ++v) {
                float *to = dx + ((ptrdiff_t)u * W + j + v) * DT_LANES + part;
                dti_store(to, dti_load(to) + dti_if_place(place, u * K + v, d));
            }
        }
}

/* dx[c, place of each window's maximum] = the sum of dy of the windows that chose it; dx overwritten, no
   alias. */
DTI_LOCAL void dti_maxpool_backward(int C, int H, int W, int K, int S, const float *dy, const uint8_t *argmax,
                                    float *dx)
{
    const ptrdiff_t P = (H - K) / S + 1, row = ((W - K) / S + 1) * DT_LANES;
    memset(dx, 0, (size_t)C * (size_t)H * (size_t)W * DTI_L * sizeof *dx);
    for (int c = 0; c < C; ++c)
    for (int i = 0; i < P; ++i, dy += row, argmax += row) {
        float *to = dx + ((ptrdiff_t)c * H + i * S) * W * DT_LANES;
        if (K == 2 && S == 2) dti_unpool_row(W, 2, 2, dy, argmax, to);
        else dti_unpool_row(W, K, S, dy, argmax, to);
    }
}

/* The four numbers of a 2x2 window, in row-major order, that a kernel has in registers -> the maximum and
   its place. With ReLU a maximum that is not above zero gives zero, and the place 4: nothing of its gradient
   goes back. */
DTI_INLINE void dti_tile_pool(const dti_v *a, bool relu, float *y, uint8_t *argmax)
{
    const dti_v up = dti_vmax(a[0], a[1]), down = dti_vmax(a[2], a[3]), most = dti_vmax(up, down);
    const dti_v zero = dti_splat(0.0f);
    dti_store(y, relu ? dti_vmax(most, zero) : most);
#if defined(__AVX512BW__) && defined(__AVX512VL__) /* places as bytes at once: half of the work */
    const __m128i up_at = _mm_maskz_mov_epi8(_mm512_cmp_ps_mask(a[1], a[0], _CMP_GT_OQ), _mm_set1_epi8(1));
    const __m128i down_at = _mm_mask_mov_epi8(_mm_set1_epi8(2), _mm512_cmp_ps_mask(a[3], a[2], _CMP_GT_OQ),
                                              _mm_set1_epi8(3));
    __m128i at = _mm_mask_mov_epi8(up_at, _mm512_cmp_ps_mask(down, up, _CMP_GT_OQ), down_at);
    if (relu) at = _mm_mask_mov_epi8(_mm_set1_epi8(4), _mm512_cmp_ps_mask(most, zero, _CMP_GT_OQ), at);
    _mm_storeu_si128((__m128i *)(void *)argmax, at);
#else
    const dti_v up_at = dti_if_greater(a[1], a[0], dti_splat(1.0f), dti_splat(0.0f));
    const dti_v down_at = dti_if_greater(a[3], a[2], dti_splat(3.0f), dti_splat(2.0f));
    const dti_v at = dti_if_greater(down, up, down_at, up_at);
    dti_store_places(argmax, relu ? dti_if_greater(most, zero, at, dti_splat(4.0f)) : at);
#endif
}
#endif

/* ==== [E1.6] Convolution and 2x2 max-pooling together =======================
   The map between a convolution and its pooling is four times as large as what the pooling leaves of it. A
   net that does both in one op keeps it for one lane group at a time, in scratch, instead of for the whole
   batch. */
#ifdef DTI_IMPLEMENT
static size_t dti_map_floats(const dti_conv *c) { return (size_t)(c->O * c->P) * (size_t)c->Q * DTI_L; }

/* For each pass of [E1.3] and [E1.4], alone or behind a pooling. */
DTI_LOCAL size_t dti_conv_scratch_floats(const dti_conv *c)
{
    const size_t steps = dti_steps_floats(c), weights = dti_padded_floats(c) + dti_wplan_of(c).end;
    return dti_map_floats(c) + (steps > weights ? steps : weights);
}

/* y = maxpool2x2(conv(x)), then ReLU if relu; odd last rows and columns are dropped. y, argmax
   [O][P/2][Q/2][16], overwritten, no alias. */
DTI_LOCAL void dti_conv_pool_forward(const dti_conv *g, const float *x, const float *packed,
                                     const float *b, bool relu, float *y, uint8_t *argmax,
                                     float *scratch)
{
    float *map = scratch;
    dti_conv_forward(g, x, packed, b, map, scratch + dti_map_floats(g));
    dti_maxpool_forward(g->O, g->P, g->Q, 2, 2, map, y, argmax);
    const size_t n = (size_t)(g->O * (g->P / 2)) * (size_t)(g->Q / 2) * DTI_L;
    for (size_t i = 0; i < n && relu; ++i) y[i] = y[i] < 0.0f ? 0.0f : y[i];
}

/* Backward of dti_conv_pool_forward: dy (pooled) and argmax -> dx [C][H][W][16] unless NULL, dw, db (O) or
   NULL; all overwritten. */
DTI_LOCAL void dti_conv_pool_backward(const dti_conv *g, const float *x, const float *packed, const float *dy,
                                      const uint8_t *argmax, float *dx, float *dw, float *db, float *scratch)
{
    float *map = scratch;
    scratch += dti_map_floats(g);
    if (db) dti_bias_gradient(db, dy, g->O, (ptrdiff_t)(g->P / 2) * (g->Q / 2));
    dti_maxpool_backward(g->O, g->P, g->Q, 2, 2, dy, argmax, map);
    dti_conv_backward_weights(g, x, map, dw, NULL, scratch);
    if (dx) dti_conv_backward_data(g, map, packed, dx, scratch);
}
#endif

/* ==== [E1.7] Linear layer ==================================================
   The tile on a 1x1 map. Its columns are lane groups, so that a weight that is loaded serves several groups:

       columns: lane groups  g0   g1   g2
       rows: outputs         .    .    .        steps: inputs; weights packed as a 1x1 convolution's

   The weights' gradient is that of [E1.4], turned: vectors of 16 inputs, and a sum over sixteen lanes. Its
   tiles go straight into dw. To read: dti_linear_forward. */
#ifdef DTI_IMPLEMENT
static dti_conv dti_linear_as_conv(int I, int O) { return (dti_conv){ I, 1, 1, O, 1, 1, 1, 1, 0 }; }

DTI_LOCAL size_t dti_linear_packed_floats(int I, int O)
{
    const dti_conv c = dti_linear_as_conv(I, O);
    return dti_conv_packed_floats(&c);
}

/* Pack w[O][I] for the forward and backward-data passes, once a training step. */
DTI_LOCAL void dti_linear_pack(int I, int O, const float *w, float *packed)
{
    const dti_conv c = dti_linear_as_conv(I, O);
    dti_conv_pack(&c, w, packed);
}

/* y[g,o] = b[o] + sum_i x[g,i] * w[o,i] for G lane groups, xs and ys floats apart; overwritten, no alias.
   2*G*I*O*16 flop. */
DTI_LOCAL void dti_linear_forward(int I, int O, int G, const float *x, size_t xs, const float *packed,
                                  const float *b, float *y, size_t ys)
{
    dti_step steps[DTI_LIST];
    const int times = dti_rounds_a_list(1, I);
    for (int i = 0; i < times; ++i) steps[i] = (dti_step){ i * DT_LANES, i * DTI_BLOCK };
    dti_tile a = { .y_row = DT_LANES, .steps = steps, .n_steps = times, .rounds = I / times,
                   .x_round = times * DT_LANES, .w_round = times * DTI_BLOCK };
    for (int g = 0; g < G; g += a.columns) {
        a.columns = dti_tile_take(G - g);
        for (int c = 0; c < a.columns; ++c) {
            a.x[c] = x + (size_t)(g + c) * xs;
            a.y[c] = y + (size_t)(g + c) * ys;
        }
        dti_tile_rows(&a, O, packed, (ptrdiff_t)I * DTI_BLOCK, b);
    }
}

/* dx[g,i] = sum_o dy[g,o] * w[o,i], overwritten, no alias. */
DTI_LOCAL void dti_linear_backward_data(int I, int O, int G, const float *dy, size_t dys, const float *packed,
                                        float *dx, size_t dxs)
{
    dti_linear_forward(O, I, G, dy, dys, packed + dti_packed_pass_floats(O, I, 1), NULL, dx, dxs);
}

/* dw[o][i] = sum_l dy[o][l] * x[i][l], db[o] = sum_l dy[o][l] of one lane group; dw (O,I), db (O)
   or NULL, overwritten. Where 16 does not divide I, the last 16 inputs start early. */
DTI_LOCAL void dti_linear_backward_weights(int I, int O, const float *x, const float *dy,
                                           float *dw, float *db)
{
    enum { WIDE = 32 };             /* vectors of inputs turned at a time, 1 KiB each */
    _Alignas(64) float xs[WIDE][DT_LANES][DT_LANES], dys[DT_LANES][DTI_BLOCK];
    _Alignas(64) float narrow[DTI_BLOCK][DT_LANES]; /* dw where I < 16 */
    const int vectors = (I + DT_LANES - 1) / DT_LANES, last = I < DT_LANES ? 0 : I - DT_LANES;
    dti_step steps[DT_LANES];
    for (int l = 0; l < DT_LANES; ++l) steps[l] = (dti_step){ l * DT_LANES, l * DTI_BLOCK };
    for (int first = 0; first < vectors; first += WIDE) {
        const int n = dti_least(vectors - first, WIDE);
        for (int k = 0; k < n; ++k) {
            const float *from = x + (ptrdiff_t)dti_least((first + k) * DT_LANES, last) * DT_LANES;
            dti_turn_positions(xs[k][0], from, DT_LANES, dti_least(I, DT_LANES), 1);
        }
        for (int o = 0; o < O; o += DTI_BLOCK) {
            const int outs = dti_least(DTI_BLOCK, O - o);
            float *to = I < DT_LANES ? narrow[0] : dw + (ptrdiff_t)o * I;
            dti_tile a = { .y_row = I < DT_LANES ? DT_LANES : I, .steps = steps,
                           .n_steps = DT_LANES, .rounds = 1 };
            dti_turn_positions(dys[0], dy + (ptrdiff_t)o * DT_LANES, DT_LANES, outs, 1);
            for (int k = 0; k < n; k += a.columns) {
                a.columns = dti_tile_take(n - k);
                for (int c = 0; c < a.columns; ++c) {
                    a.x[c] = xs[k + c][0];
                    a.y[c] = to + dti_least((first + k + c) * DT_LANES, last);
                }
                dti_tile_rows(&a, outs, dys[0], 0, NULL);
            }
            for (int r = 0; r < outs && I < DT_LANES; ++r)
                memcpy(dw + (ptrdiff_t)(o + r) * I, narrow[r], (size_t)I * sizeof *dw);
        }
    }
    if (db) dti_fold(db, dy, O);
}
#endif

/* ==== [E1.8] Winograd in lanes ============================================
   A 3x3 or 5x5 convolution of stride 1 with fewer multiplications than the definition has. Convolutional
   networks spend most of their time in such layers. The best that the direct kernels [E1.2] could ever do is
   100 % of the machine's peak, and 33 to 94 % is what they do; where a layer has channels enough, this room
   does 110 to 260 %, counted in the multiplications of the definition (the table at dti_wino_rule).

   The idea. Two polynomials are multiplied by evaluating both at n points, multiplying the values, and
   interpolating: n products for a result of n coefficients, where the definition takes one for each pair
   of coefficients. A correlation is that product transposed. So along one axis m outputs of a kernel of K
   taps need n = m + K - 1 products, not m*K; a tile of m x m outputs needs n*n, not m*m*K*K: 36 for 144
   with m = 4, K = 3; 64 for 400 with m = 4, K = 5. This is called F(m, K). Each of the n*n points of a tile
   knows only itself, so the sum over channels is, point by point, an ordinary matrix product.

       x  n x n  -- B' x B -->  V  n x n                    one tile, one channel:
                                |                           8 x 8 of x give 4 x 4 of y
                                |  M = sum over c of U*V       +--------+
       w  K x K  -- G w G' -->  U  n x n                       | n x n  |   neighbours overlap
                                |                              |  +----+--+     by K - 1
       y  m x m  <-- A' M A --  M  n x n                       +--| y  |  |

   A' is the transpose of A. Begin to read at dti_wino_forward, which calls what stands above it. From top to
   bottom:

       transforms of one axis      dti_wino_interpolate is B', dti_wino_evaluate A and G, .._back B and A'
       transforms of a tile        the same along one axis, then along the other: dti_wino_x, dti_wino_y ..
       transforms of weights       dti_wino_w, sixteen kernels side by side
       the product                 dti_product_run, M = U V: here the time goes
       weights, once a step        dti_wino_pack: U, in the order in which the product reads it
       tiles of a layer's maps     cut out, padded, pooled: dti_wino_take_x .., dti_wino_give_y ..
       scratch                     dti_wino_room: how large V, M .. are
       forward, backward           a chunk of tiles at a time, in it a column of points at a time
       lines                       the same along one axis only, for the few channels of a first layer
       the rule                    which convolution goes which way, and what that was measured to gain

   What lies where. c and o are channels of x and y, t a tile of the chunk, i and j the row and column of a
   point, u and v those of a tap. An element of V, M and Z is a vector of sixteen lanes, one of U a number:

       V[j][i][t][c]    U[j][i][c][o]    and of one column j    M[i][t][o]    then its rows    Z[j][t][o][i]

   Z = A' M, of whose n rows m are left, is M transformed along one axis; y = Z A. For the weights' gradient
   R = G' dU is the same.

   The points are 0, then pairs +-1, +-2, +-1/2, then infinity (the leading coefficient): n = 4, 6, 8 with
   one, two, three pairs. As indices 0 is 0, pair a is 2a + 1 and 2a + 2, infinity is n - 1.
     A (n x m)  evaluates a polynomial of m coefficients: row a is 1, a, a^2 ..; row infinity takes the last.
     G (n x K)  does so with K coefficients and divides row a by M'(a), the derivative at a of
                M(z) = z * product of (z - a) over the pairs.
     B' (n x n) row a holds the coefficients of M(z)/(z - a), ascending; row infinity those of M(z).
   With q(z) = product of (z - a^2) over the pairs, M(z) = z q(z^2). To check one by hand, n = 4: q = z - 1,
     M = z^3 - z,  M/z = z^2 - 1,  M/(z-1) = z^2 + z,  M/(z+1) = z^2 - z,
     M' = 3z^2 - 1 is -1 at 0 and 2 at +-1:
           | -1  0  1  0 |         | -1    0    0  |         | 1  0 |
      B' = |  0  1  1  0 |     G = | 1/2  1/2  1/2 |     A = | 1  1 |
           |  0 -1  1  0 |         | 1/2 -1/2  1/2 |         | 1 -1 |
           |  0 -1  0  1 |         |  0    0    1  |         | 0  1 |
     y = A' ((G w) * (B' x)): y0 = x0 w0 + x1 w1 + x2 w2, y1 = x1 w0 + x2 w1 + x3 w2.
   A pair +-a shares its work: M/(z -+ a) = z^2 q_a(z^2) +- a z q_a(z^2), with q_a = q without that pair, is
   an even part plus or minus an odd part.

   Backward is the same algorithm transposed, map by map: y = A' M A gives dM = A dy A', M = U V gives
   dV = U dM and dU = dM V, V = B' x B gives dx += B dV B' over overlapping tiles, U = G w G' gives
   dw = G' dU G. Four transforms (B', B, A, A') serve all.

   In lanes every number above is sixteen images', so the transforms are plain vector arithmetic without a
   shuffle. Only dU sums over lanes. Where the channels of one factor fill vectors, it is transposed,
   channels for lanes, as in [E1.4], and the product runs over tiles and lanes; else the sums stay in lanes
   and are folded at the end.

   What it costs: rounding. Coefficients up to 5.25 cancel in B' x, so the largest error of F(4,5) is 1e-5 of
   the output's rms where the definition's is 2e-6; that of F(2,3) is no larger than the definition's.

   Order of the sums, the same on every machine: an element of M or dV is one chain over the channels; one
   of dU one chain over the tiles of a chunk, at each the lanes 0 to 15, or folded as dti_fold does; chunks
   of at most 8 tiles are added in ascending order; dx adds its tiles in ascending order. Chunks may span
   lane groups, except for dU: a group's share of a gradient is its own.

   Sources: Winograd 1980; Lavin and Gray 2016, Fast Algorithms for Convolutional Neural Networks. */
#ifdef DTI_IMPLEMENT
/* The machine. What stands here changes the speed, never a bit; DTI_WINO_CHUNK is for all machines,
   for it is part of dU's order. */
enum { DTI_WINO_CHUNK = 8 }; /* tiles transformed together: they share a pass over the weights */
static const struct {
    int outs, tiles; /* register tile of a product: channels x tiles accumulators, outs + tiles loads:
                        24 of 32 registers, or 12 of 16 */
    int depth;    /* channels of one pass: tiles * depth vectors stay in L1, 4 * 128 * 64 bytes = 32 KiB */
    size_t slice; /* floats for the part of dU that is in the making: 512 KiB of L2 */
} dti_wino_machine = { DTI_REGISTERS == 32 ? 6 : 3, 4, 128, 128 * 1024 };

/* ---- The transforms of one axis. A pair is 0, 1, 2 for +-1, +-2, +-1/2. n is a constant at each call, so
   that all loops are unrolled and a transform of eight numbers is some twenty vector instructions. */

DTI_INLINE float dti_wino_point(int pair) { return pair == 0 ? 1.0f : pair == 1 ? 2.0f : 0.5f; }

DTI_INLINE float dti_wino_power(int pair, int k) /* a^k, exact */
{
    float p = 1.0f;
    for (int i = 0; i < k; ++i) p *= dti_wino_point(pair);
    return p;
}

/* Coefficient k of z^k in q, and in q_a: the tables' rows are for n = 4, 6, 8. q = z - 1; (z - 1)(z - 4);
   (z - 1)(z - 4)(z - 1/4). */
DTI_INLINE float dti_wino_q(const int n, int k)
{
    static const float q[3][4] = { { -1, 1 }, { 4, -5, 1 }, { -1, 5.25f, -5.25f, 1 } };
    return q[n / 2 - 2][k];
}

DTI_INLINE float dti_wino_qa(const int n, int pair, int k)
{
    static const float q[3][3][3] = { { { 1 } },
                                      { { -4, 1 }, { -1, 1 } },
                                      { { 1, -4.25f, 1 }, { 0.25f, -1.25f, 1 }, { 4, -5, 1 } } };
    return q[n / 2 - 2][pair][k];
}

/* 1/M' at point i: M'(0) = q(0), M'(+-a) = 2 a^2 q_a(a^2); 1 at infinity. */
DTI_INLINE dti_v dti_wino_scale(const int n, int i)
{
    static const float s[3][4] = { { -1, 1 / 2.0f },
                                   { 1 / 4.0f, -1 / 6.0f, 1 / 24.0f },
                                   { -1, -1 / 4.5f, 1 / 90.0f, 1 / 1.40625f } };
    return dti_splat(i == n - 1 ? 1.0f : s[n / 2 - 2][(i + 1) / 2]);
}

/* y[n] = B' x[n]: the points 0 and infinity first, then each pair as its even part plus and minus a times its
   odd part */
DTI_INLINE void dti_wino_interpolate(const int n, dti_v *y, const dti_v *x)
{
    y[0] = x[n - 2], y[n - 1] = x[n - 1];
    DTI_UNROLL for (int k = n / 2 - 2; k >= 0; --k) {
        y[0] = dti_fma(dti_splat(dti_wino_q(n, k)), x[2 * k], y[0]);
        y[n - 1] = dti_fma(dti_splat(dti_wino_q(n, k)), x[2 * k + 1], y[n - 1]);
    }
    DTI_UNROLL for (int a = 0; a < n / 2 - 1; ++a) {
        dti_v even = x[n - 2], odd = x[n - 3];
        DTI_UNROLL for (int k = n / 2 - 3; k >= 0; --k) {
            even = dti_fma(dti_splat(dti_wino_qa(n, a, k)), x[2 * k + 2], even);
            odd = dti_fma(dti_splat(dti_wino_qa(n, a, k)), x[2 * k + 1], odd);
        }
        y[2 * a + 1] = dti_fma(dti_splat(dti_wino_point(a)), odd, even);
        y[2 * a + 2] = dti_fma(dti_splat(-dti_wino_point(a)), odd, even);
    }
}

/* y[n] = A x[m]; with m = K it is G x but for dti_wino_scale */
DTI_INLINE void dti_wino_evaluate(const int n, const int m, dti_v *y, const dti_v *x)
{
    y[0] = x[0], y[n - 1] = x[m - 1];
    DTI_UNROLL for (int a = 0; a < n / 2 - 1; ++a) {
        dti_v even = x[0], odd = x[1];
        DTI_UNROLL for (int k = 2; k < m; k += 2)
            even = dti_fma(dti_splat(dti_wino_power(a, k)), x[k], even);
        DTI_UNROLL for (int k = 3; k < m; k += 2)
            odd = dti_fma(dti_splat(dti_wino_power(a, k - 1)), x[k], odd);
        y[2 * a + 1] = dti_fma(dti_splat(dti_wino_point(a)), odd, even);
        y[2 * a + 2] = dti_fma(dti_splat(-dti_wino_point(a)), odd, even);
    }
}

/* Transposed, a pair +-a comes as its sum to even places and as its difference to odd ones. */
DTI_INLINE void dti_wino_pairs(const int n, const dti_v *x, dti_v *sum, dti_v *difference)
{
    DTI_UNROLL for (int a = 0; a < n / 2 - 1; ++a) {
        sum[a] = x[2 * a + 1] + x[2 * a + 2];
        difference[a] = x[2 * a + 1] - x[2 * a + 2];
    }
}

/* y[n] = B x[n] */
DTI_INLINE void dti_wino_interpolate_back(const int n, dti_v *y, const dti_v *x)
{
    dti_v sum[3], difference[3];
    dti_wino_pairs(n, x, sum, difference);
    y[n - 2] = x[0], y[n - 1] = x[n - 1];
    DTI_UNROLL for (int k = n / 2 - 2; k >= 0; --k) {
        y[2 * k] = x[0] * dti_splat(dti_wino_q(n, k));
        y[2 * k + 1] = x[n - 1] * dti_splat(dti_wino_q(n, k));
    }
    DTI_UNROLL for (int k = 0; k < n / 2 - 1; ++k)
        DTI_UNROLL for (int a = 0; a < n / 2 - 1; ++a) {
            const float q = dti_wino_qa(n, a, k);
            y[2 * k + 2] = dti_fma(dti_splat(q), sum[a], y[2 * k + 2]);
            y[2 * k + 1] = dti_fma(dti_splat(q * dti_wino_point(a)), difference[a], y[2 * k + 1]);
        }
}

/* y[m] = A' x[n] */
DTI_INLINE void dti_wino_evaluate_back(const int n, const int m, dti_v *y, const dti_v *x)
{
    dti_v sum[3], difference[3];
    dti_wino_pairs(n, x, sum, difference);
    DTI_UNROLL for (int k = 0; k < m; ++k) {
        y[k] = k % 2 ? difference[0] : sum[0];
        DTI_UNROLL for (int a = 1; a < n / 2 - 1; ++a)
            y[k] = dti_fma(dti_splat(dti_wino_power(a, k)), k % 2 ? difference[a] : sum[a], y[k]);
    }
    y[0] += x[0];
    y[m - 1] += x[n - 1];
}

/* ---- The transforms of a tile, channel by channel. A map is [channel][row][column][16]; points are
   [column j][row i], each `point` floats from the next. `part` goes through the sixteen lanes, a vector at a
   time. x becomes V, and dV becomes dx, whole tiles at once. M is as large as all else together, so it exists
   one column of points at a time, in L1 or L2: a column's rows are transformed (dti_wino_rows) right after
   its products, the columns (dti_wino_y) when all are there. */
typedef struct dti_wino_square { /* a tile's square of a map */
    float *at;
    size_t channel, row; /* floats to the next */
    int channels;
} dti_wino_square;

/* V = B' x B, points [j][i]: B' along each row of x, then along each column of that, t */
DTI_INLINE void dti_wino_x(const int n, const dti_wino_square *s, float *v, size_t point)
{
    const size_t channel = s->channel, row = s->row;
    for (int c = 0; c < s->channels; ++c, v += DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            const float *x = s->at + (size_t)c * channel + part;
            dti_v t[8][8], a[8], b[8];
            for (int i = 0; i < n; ++i) {
                DTI_UNROLL for (int j = 0; j < n; ++j)
                    a[j] = dti_load(x + (size_t)i * row + (size_t)j * DTI_L);
                dti_wino_interpolate(n, t[i], a);
            }
            for (int j = 0; j < n; ++j) {
                DTI_UNROLL for (int i = 0; i < n; ++i) a[i] = t[i][j];
                dti_wino_interpolate(n, b, a);
                DTI_UNROLL for (int i = 0; i < n; ++i)
                    dti_store(v + part + (size_t)(j * n + i) * point, b[i]);
            }
        }
}

/* dx += B dV B': along each column of dV, then along each row of that, which is added to dx */
DTI_INLINE void dti_wino_x_back(const int n, const dti_wino_square *s, const float *v, size_t point)
{
    const size_t channel = s->channel, row = s->row;
    for (int c = 0; c < s->channels; ++c, v += DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            float *x = s->at + (size_t)c * channel + part;
            dti_v t[8][8], a[8], b[8];
            for (int j = 0; j < n; ++j) {
                DTI_UNROLL for (int i = 0; i < n; ++i)
                    a[i] = dti_load(v + part + (size_t)(j * n + i) * point);
                dti_wino_interpolate_back(n, b, a);
                DTI_UNROLL for (int i = 0; i < n; ++i) t[i][j] = b[i];
            }
            for (int i = 0; i < n; ++i) {
                dti_wino_interpolate_back(n, b, t[i]);
                for (int j = 0; j < n; ++j) {
                    float *d = x + (size_t)i * row + (size_t)j * DTI_L;
                    dti_store(d, dti_load(d) + b[j]);
                }
            }
        }
}

/* y = Z A + bias, Z = A' M of m rows: z[j][channel][i] */
DTI_INLINE void dti_wino_y(const int n, const int m, const dti_wino_square *s, const float *bias,
                           const float *z, size_t point)
{
    const size_t channel = s->channel, row = s->row;
    for (int c = 0; c < s->channels; ++c, z += (size_t)m * DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            float *y = s->at + (size_t)c * channel + part;
            const dti_v start = dti_splat(bias ? bias[c] : 0.0f);
            for (int i = 0; i < m; ++i) {
                dti_v a[8], b[8];
                DTI_UNROLL for (int j = 0; j < n; ++j)
                    a[j] = dti_load(z + part + (size_t)i * DTI_L + (size_t)j * point);
                dti_wino_evaluate_back(n, m, b, a);
                DTI_UNROLL for (int j = 0; j < m; ++j)
                    dti_store(y + (size_t)i * row + (size_t)j * DTI_L, b[j] + start);
            }
        }
}

/* Z = dy A', z[j][channel][i] */
DTI_INLINE void dti_wino_y_back(const int n, const int m, const dti_wino_square *s, float *z,
                                size_t point)
{
    const size_t channel = s->channel, row = s->row;
    for (int c = 0; c < s->channels; ++c)
        for (int i = 0; i < m; ++i, z += DTI_L)
            for (size_t part = 0; part < 16; part += DTI_W) {
                const float *y = s->at + (size_t)c * channel + (size_t)i * row + part;
                dti_v a[8], b[8];
                DTI_UNROLL for (int j = 0; j < m; ++j) a[j] = dti_load(y + (size_t)j * DTI_L);
                dti_wino_evaluate(n, m, b, a);
                DTI_UNROLL for (int j = 0; j < n; ++j)
                    dti_store(z + part + (size_t)j * point, b[j]);
            }
}

/* The other axis of M, for `items` pairs (tile, channel): z[item][m] = A' m[n][item], points `point` floats
   apart; and back, m[n][item] = A z[item][m] */
DTI_INLINE void dti_wino_rows(const int n, const int m, int items, const float *from, size_t point,
                              float *z)
{
    for (int k = items; k > 0; --k, from += DTI_L, z += (size_t)m * DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            dti_v a[8], b[8];
            DTI_UNROLL for (int i = 0; i < n; ++i) a[i] = dti_load(from + part + (size_t)i * point);
            dti_wino_evaluate_back(n, m, b, a);
            DTI_UNROLL for (int i = 0; i < m; ++i) dti_store(z + part + (size_t)i * DTI_L, b[i]);
        }
}

DTI_INLINE void dti_wino_rows_back(const int n, const int m, int items, const float *z, float *to,
                                   size_t point)
{
    for (int k = items; k > 0; --k, to += DTI_L, z += (size_t)m * DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            dti_v a[8], b[8];
            DTI_UNROLL for (int i = 0; i < m; ++i) a[i] = dti_load(z + part + (size_t)i * DTI_L);
            dti_wino_evaluate(n, m, b, a);
            DTI_UNROLL for (int i = 0; i < n; ++i) dti_store(to + part + (size_t)i * point, b[i]);
        }
}

/* ---- The transforms of weights: sixteen of them side by side. */

/* U[j][i][16] = G w G' of w[K*K][16]: along each row of w, then along each column of that. */
DTI_INLINE void dti_wino_w(const int n, const int K, const float *w, float *u)
{
    for (size_t part = 0; part < 16; part += DTI_W) {
        dti_v t[5][8], a[8], b[8];
        DTI_UNROLL for (int i = 0; i < K; ++i) {
            DTI_UNROLL for (int j = 0; j < K; ++j)
                a[j] = dti_load(w + (size_t)(i * K + j) * DTI_L + part);
            dti_wino_evaluate(n, K, t[i], a);
        }
        DTI_UNROLL for (int j = 0; j < n; ++j) {
            DTI_UNROLL for (int i = 0; i < K; ++i) a[i] = t[i][j] * dti_wino_scale(n, j);
            dti_wino_evaluate(n, K, b, a);
            DTI_UNROLL for (int i = 0; i < n; ++i)
                dti_store(u + (size_t)(j * n + i) * DTI_L + part, b[i] * dti_wino_scale(n, i));
        }
    }
}

/* One axis of dw = G' dU G, for `items` vectors: r[k][item] (+)= sum_i G[i][k] u[i][item] */
DTI_INLINE void dti_wino_w_back(const int n, const int K, int items, const float *u, size_t u_point,
                                float *r, size_t r_tap, bool add)
{
    for (int k = items; k > 0; --k, u += DTI_L, r += DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            dti_v a[8], b[8];
            DTI_UNROLL for (int i = 0; i < n; ++i)
                a[i] = dti_load(u + part + (size_t)i * u_point) * dti_wino_scale(n, i);
            dti_wino_evaluate_back(n, K, b, a);
            DTI_UNROLL for (int i = 0; i < K; ++i) {
                float *to = r + part + (size_t)i * r_tap;
                if (add) b[i] += dti_load(to);
                dti_store(to, b[i]);
            }
        }
}

/* ---- The forms F(m, K), compiled. A form is the transforms above with n, m and K filled in: DTI_WINO_SIDE
   makes those that depend on n alone, DTI_WINO_FORM the others, DTI_WINO_ROW lists them for
   dti_wino_forms. */
struct dti_wino_form {
    int n, m, K;
    void (*x)(const dti_wino_square *s, float *v, size_t point);
    void (*x_back)(const dti_wino_square *s, const float *v, size_t point);
    void (*y)(const dti_wino_square *s, const float *bias, const float *z, size_t point);
    void (*y_back)(const dti_wino_square *s, float *z, size_t point);
    void (*rows)(int items, const float *from, size_t point, float *z);
    void (*rows_back)(int items, const float *z, float *to, size_t point);
    void (*w)(const float *w, float *u);
    void (*w_back)(int items, const float *u, size_t u_point, float *r, size_t r_tap, bool add);
    /* in lines, below: all of a pass; NULL where tiles are squares */
    void (*line_pack)(const dti_conv *g, const float *w, float *packed);
    void (*line_forward)(const dti_conv *g, const dti_wino_form *form, const dti_wino_maps *x,
                         const float *packed, const float *b, bool relu, const dti_wino_maps *y,
                         float *scratch);
    void (*line_backward)(const dti_conv *g, const dti_wino_form *form, const dti_wino_maps *x,
                          const dti_wino_maps *dy, const float *packed, const dti_wino_maps *dx, float *dw,
                          float *db, float *scratch);
};

#define DTI_WINO_SIDE(n) \
    DTI_NOINLINE void dti_wino_x_##n(const dti_wino_square *s, float *v, size_t point) \
    { \
        dti_wino_x(n, s, v, point); \
    } \
    DTI_NOINLINE void dti_wino_x_back_##n(const dti_wino_square *s, const float *v, size_t point) \
    { \
        dti_wino_x_back(n, s, v, point); \
    }
#define DTI_WINO_FORM(n, m, K) \
    DTI_NOINLINE void dti_wino_y_##m##K(const dti_wino_square *s, const float *bias, \
                                        const float *z, size_t point) \
    { \
        dti_wino_y(n, m, s, bias, z, point); \
    } \
    DTI_NOINLINE void dti_wino_y_back_##m##K(const dti_wino_square *s, float *z, size_t point) \
    { \
        dti_wino_y_back(n, m, s, z, point); \
    } \
    DTI_NOINLINE void dti_wino_rows_##m##K(int items, const float *from, size_t point, float *z) \
    { \
        dti_wino_rows(n, m, items, from, point, z); \
    } \
    DTI_NOINLINE void dti_wino_rows_back_##m##K(int items, const float *z, float *to, \
                                                size_t point) \
    { \
        dti_wino_rows_back(n, m, items, z, to, point); \
    } \
    DTI_NOINLINE void dti_wino_w_##m##K(const float *w, float *u) { dti_wino_w(n, K, w, u); } \
    DTI_NOINLINE void dti_wino_w_back_##m##K(int items, const float *u, size_t u_point, float *r, \
                                             size_t r_tap, bool add) \
    { \
        dti_wino_w_back(n, K, items, u, u_point, r, r_tap, add); \
    }
#define DTI_WINO_ROW(n, m, K) \
    { \
        n, m, K, dti_wino_x_##n, dti_wino_x_back_##n, dti_wino_y_##m##K, dti_wino_y_back_##m##K, \
            dti_wino_rows_##m##K, dti_wino_rows_back_##m##K, dti_wino_w_##m##K, \
            dti_wino_w_back_##m##K, NULL, NULL, NULL \
    }
DTI_WINO_SIDE(4)
DTI_WINO_SIDE(6)
DTI_WINO_SIDE(8)
DTI_WINO_FORM(4, 2, 3)
DTI_WINO_FORM(6, 4, 3)
DTI_WINO_FORM(8, 6, 3)
DTI_WINO_FORM(6, 2, 5)
DTI_WINO_FORM(8, 4, 5)

/* ---- The product: out[o][t] (+)= sum_k a[k][o] * b[t][k], b and out vectors, for several points. k is a
   term, t a tile. All passes are this product, with other things in the places of its letters:

                        a                       b               out     k, a term           t, a "tile"
     forward            U                       V               M       channel of x        tile
     backward, data     U, channels exchanged   dM              dV      channel of y        tile
     backward, weights  V, or dM                the other,      dU      tile, and each      16 channels of b
                                                turned                  of its 16 lanes

   So of a there are two kinds:
     packed    numbers [term][o] in blocks of OT: the weights
     lanes     numbers that are the lanes of vectors, those of the next o 16 floats on */
typedef struct dti_product {            /* the geometry; where a, b and out are goes beside it */
    size_t a_point, b_point, out_point; /* floats to the next point, */
    size_t b_tile, out_tile;            /* .. to the next tile; to the next o of out they are 16, */
    size_t a_term;                      /* .. where terms are tiles: to the next */
    int points, terms;
    bool lanes;
    bool resume; /* go on from what out holds */
} dti_product;

/* OT x TT accumulators in registers, as in [E1.2]: OT channels o by TT tiles. The loops:
     points       f, of one column; or one
     blocks       OT channels o each
     parts        of the sixteen lanes, a vector each
     tiles, terms the sum: packed, the terms alone; lanes, 16 terms a tile
   OT, TT and LANES are constants at each call. as_of, bs_of, outs_of: a, b and out of the first point. */
DTI_INLINE void dti_product_run(const int OT, const int TT, const bool LANES, const dti_product *p,
                                const float *as_of, const float *bs_of, float *outs_of, int blocks)
{
    const size_t b_tile = p->b_tile, out_tile = p->out_tile, step = LANES ? DTI_L : 1;
    const int tiles = LANES ? p->terms : 1, terms = LANES ? 16 : p->terms;
    for (int f = 0; f < p->points; ++f)
        for (int k = 0; k < blocks; ++k)
            for (size_t part = 0; part < 16; part += DTI_W) {
                float *out = outs_of + (size_t)f * p->out_point + (size_t)(k * OT) * DTI_L + part;
                const float *a = as_of + (size_t)f * p->a_point +
                                 (size_t)(k * OT) * (LANES ? DTI_L : (size_t)terms);
                const float *b = bs_of + (size_t)f * p->b_point + part;
                dti_v acc[4][6];
                DTI_UNROLL for (int t = 0; t < TT; ++t)
                    DTI_UNROLL for (int o = 0; o < OT; ++o) {
                        acc[t][o] = dti_splat(0.0f);
                        if (p->resume) acc[t][o] = dti_load(out + (size_t)t * out_tile + (size_t)o * DTI_L);
                    }
                for (int tile = tiles; tile > 0; --tile, a += LANES ? p->a_term - DTI_L : 0)
                    for (int i = terms; i > 0; --i, a += LANES ? 1 : OT, b += DTI_L) {
                        dti_v bs[4];
                        DTI_UNROLL for (int t = 0; t < TT; ++t) bs[t] = dti_load(b + (size_t)t * b_tile);
                        DTI_UNROLL for (int o = 0; o < OT; ++o) {
                            const dti_v as = dti_splat(a[(size_t)o * step]);
                            DTI_UNROLL for (int t = 0; t < TT; ++t) acc[t][o] = dti_fma(as, bs[t], acc[t][o]);
                        }
                    }
                DTI_UNROLL for (int t = 0; t < TT; ++t)
                    DTI_UNROLL for (int o = 0; o < OT; ++o)
                        dti_store(out + (size_t)t * out_tile + (size_t)o * DTI_L, acc[t][o]);
            }
}

/* From here to dti_product_size: the sizes that come as numbers become constants. Each OT is a function of
   its own, which keeps compilers fast. */
DTI_INLINE void dti_product_tiles(const int OT, const bool LANES, const dti_product *p,
                                  const float *a, const float *b, float *out, int tiles, int blocks)
{
    if (tiles == 4) dti_product_run(OT, 4, LANES, p, a, b, out, blocks);
    else if (tiles == 3) dti_product_run(OT, 3, LANES, p, a, b, out, blocks);
    else if (tiles == 2) dti_product_run(OT, 2, LANES, p, a, b, out, blocks);
    else dti_product_run(OT, 1, LANES, p, a, b, out, blocks);
}

DTI_INLINE void dti_product_any(const int OT, const dti_product *p, const float *a, const float *b,
                                float *out, int tiles, int blocks)
{
    if (p->lanes) dti_product_tiles(OT, true, p, a, b, out, tiles, blocks);
    else dti_product_tiles(OT, false, p, a, b, out, tiles, blocks);
}

DTI_NOINLINE void dti_product_1(const dti_product *p, const float *a, const float *b, float *out,
                                int tiles, int blocks)
{
    dti_product_any(1, p, a, b, out, tiles, blocks);
}
DTI_NOINLINE void dti_product_2(const dti_product *p, const float *a, const float *b, float *out,
                                int tiles, int blocks)
{
    dti_product_any(2, p, a, b, out, tiles, blocks);
}
DTI_NOINLINE void dti_product_3(const dti_product *p, const float *a, const float *b, float *out,
                                int tiles, int blocks)
{
    dti_product_any(3, p, a, b, out, tiles, blocks);
}
#if DTI_REGISTERS == 32
DTI_NOINLINE void dti_product_4(const dti_product *p, const float *a, const float *b, float *out,
                                int tiles, int blocks)
{
    dti_product_any(4, p, a, b, out, tiles, blocks);
}
DTI_NOINLINE void dti_product_5(const dti_product *p, const float *a, const float *b, float *out,
                                int tiles, int blocks)
{
    dti_product_any(5, p, a, b, out, tiles, blocks);
}
DTI_NOINLINE void dti_product_6(const dti_product *p, const float *a, const float *b, float *out,
                                int tiles, int blocks)
{
    dti_product_any(6, p, a, b, out, tiles, blocks);
}
#endif

/* The function for OT channels. */
static void dti_product_size(int OT, const dti_product *p, const float *a, const float *b,
                             float *out, int tiles, int blocks)
{
    switch (OT) {
#if DTI_REGISTERS == 32
    case 6: dti_product_6(p, a, b, out, tiles, blocks); break;
    case 5: dti_product_5(p, a, b, out, tiles, blocks); break;
    case 4: dti_product_4(p, a, b, out, tiles, blocks); break;
#endif
    case 3: dti_product_3(p, a, b, out, tiles, blocks); break;
    case 2: dti_product_2(p, a, b, out, tiles, blocks); break;
    default: dti_product_1(p, a, b, out, tiles, blocks); break;
    }
}

/* n things in the fewest parts of at most `most`, as even as can be: the first `wide` parts are of `size`,
   the others one less. 20 channels, at most 6: four parts of 5; 10: two of 5; 16: 6, 5, 5. */
typedef struct dti_parts {
    int count, size, wide;
} dti_parts;
static dti_parts dti_parts_of(int n, int most)
{
    const int count = (n + most - 1) / most, size = (n + count - 1) / count;
    return (dti_parts){ count, size, n - count * (size - 1) };
}
static int dti_part_begin(const dti_parts *p, int k)
{
    return k * p->size - (k > p->wide ? k - p->wide : 0);
}

/* All of a's `outs` with b's `tiles`. */
static void dti_product_do(const dti_product *p, const float *a, const float *b, float *out,
                           int outs, int tiles)
{
    const dti_parts o = dti_parts_of(outs, dti_wino_machine.outs),
                    t = dti_parts_of(tiles, dti_wino_machine.tiles);
    const size_t rest = (size_t)(o.wide * o.size),
                 a_rest = rest * (p->lanes ? DTI_L : (size_t)p->terms); /* after the wide blocks */
    for (int k = 0; k < t.count; ++k) {
        const int width = t.size - (k >= t.wide);
        dti_product_size(o.size, p, a, b, out, width, o.wide);
        if (o.wide < o.count)
            dti_product_size(o.size - 1, p, a + a_rest, b, out + rest * DTI_L, width,
                             o.count - o.wide);
        b += (size_t)width * p->b_tile;
        out += (size_t)width * p->out_tile;
    }
}

/* One column of points: out[i][t][o] = sum over c of U[i][c][o] * in[i][t][c]. U is dti_wino_pack's, of
   all_outs channels o; `outs` of them are computed. Where the channels are many, passes over `depth` of them
   keep the vectors of four tiles in L1 while all weights of the pass go by. */
static void dti_wino_products(int n, int all_outs, int outs, int ins, int tiles, const float *u,
                              const float *in, size_t in_point, float *out, size_t out_point)
{
    const dti_parts passes = dti_parts_of(ins, dti_wino_machine.depth);
    const int together = passes.count == 1 ? n : 1;
    dti_product p = { .b_tile = (size_t)ins * DTI_L,
                      .out_tile = (size_t)outs * DTI_L,
                      .points = together,
                      .a_point = (size_t)ins * (size_t)all_outs,
                      .b_point = in_point,
                      .out_point = out_point };
    for (int f = 0; f < n; f += together)
        for (int k = 0; k < passes.count; ++k) {
            const int first = dti_part_begin(&passes, k);
            p.terms = passes.size - (k >= passes.wide);
            p.resume = k > 0;
            dti_product_do(&p, u + ((size_t)f * (size_t)ins + (size_t)first) * (size_t)all_outs,
                           in + (size_t)f * in_point + (size_t)first * DTI_L,
                           out + (size_t)f * out_point, outs, tiles);
        }
}

/* ---- Weights, once a step: U[point][pass][block][c of the pass][o of the block], the order in which the
   product reads them; behind it, for backward-data, the same with the channels exchanged. A pass is at most
   `depth` channels c, a block at most `outs` channels o, both as even as dti_parts_of makes them. */
DTI_LOCAL size_t dti_wino_packed_floats(const dti_conv *g, const dti_wino_form *form)
{
    if (form->line_pack) return 2 * dti_whole_lines((size_t)(g->O * g->C) * (size_t)(form->K * form->n));
    return 2 * (size_t)(form->n * form->n) * dti_whole_lines((size_t)g->C * (size_t)g->O);
}

/* The loops: passes; 16 channels o, whose kernels are transformed side by side; the pass's channels c. */
static void dti_wino_pack_pass(const dti_wino_form *form, int outs, int ins, const float *w,
                               size_t w_out, size_t w_in, float *packed)
{
    const int taps = form->K * form->K, points = form->n * form->n;
    const dti_parts passes = dti_parts_of(ins, dti_wino_machine.depth),
                    blocks = dti_parts_of(outs, dti_wino_machine.outs);
    const size_t point = (size_t)outs * (size_t)ins;
    _Alignas(64) float from[25 * 16], to[64 * 16];
    memset(from, 0, sizeof from);
    for (int k = 0; k < passes.count; ++k)
        for (int o0 = 0; o0 < outs; o0 += DT_LANES) {
            const int c0 = dti_part_begin(&passes, k), depth = passes.size - (k >= passes.wide),
                      lanes = outs - o0 < DT_LANES ? outs - o0 : DT_LANES;
            size_t at[DT_LANES], step[DT_LANES]; /* of each o: its place at c0, and to the next c */
            for (int l = 0, b = 0; l < lanes; ++l) {
                while (b + 1 < blocks.count && dti_part_begin(&blocks, b + 1) <= o0 + l) ++b;
                const int begin = dti_part_begin(&blocks, b);
                at[l] = (size_t)c0 * (size_t)outs + (size_t)begin * (size_t)depth +
                        (size_t)(o0 + l - begin);
                step[l] = (size_t)(blocks.size - (b >= blocks.wide));
            }
            for (int c = 0; c < depth; ++c) {
                for (int l = 0; l < lanes; ++l)
                    for (int t = 0; t < taps; ++t)
                        from[t * DT_LANES + l] =
                            w[(size_t)(o0 + l) * w_out + (size_t)(c0 + c) * w_in + (size_t)t];
                form->w(from, to);
                for (int f = 0; f < points; ++f)
                    for (int l = 0; l < lanes; ++l)
                        packed[(size_t)f * point + at[l] + (size_t)c * step[l]] =
                            to[f * DT_LANES + l];
            }
        }
}

/* w[O][C][K][K] -> U for the forward pass, and behind it U for backward-data. */
DTI_LOCAL void dti_wino_pack(const dti_conv *g, const dti_wino_form *form, const float *w,
                             float *packed)
{
    const size_t taps = (size_t)(g->K * g->K), row = (size_t)g->C * taps;
    if (form->line_pack) {
        form->line_pack(g, w, packed);
        return;
    }
    dti_wino_pack_pass(form, g->O, g->C, w, row, taps, packed);
    dti_wino_pack_pass(form, g->C, g->O, w, taps, row,
                       packed + dti_wino_packed_floats(g, form) / 2);
}

/* ---- Tiles of a layer's maps. */

/* the rows and columns of a tile that lie in the map: top..bottom-1, left..right-1 */
typedef struct dti_wino_place {
    int top, bottom, left, right;
} dti_wino_place;

static int dti_wino_tiles(const dti_conv *g, const dti_wino_form *form)
{
    return ((g->P + form->m - 1) / form->m) * ((g->Q + form->m - 1) / form->m);
}

/* Tile t, counted through the groups and in each row by row: side x side numbers of the maps, tiles `step`
   apart, the first one starting `pad` outside. *in: what of it lies in the map. */
static dti_wino_square dti_wino_tile(const dti_conv *g, const dti_wino_form *form,
                                     const dti_wino_maps *maps, int t, int step, int side, int pad,
                                     dti_wino_place *in)
{
    const int per = dti_wino_tiles(g, form), across = (g->Q + form->m - 1) / form->m;
    const int r = t % per / across * step - pad, c = t % across * step - pad;
    *in = (dti_wino_place){ r < 0 ? -r : 0, maps->rows - r < side ? maps->rows - r : side,
                            c < 0 ? -c : 0, maps->columns - c < side ? maps->columns - c : side };
    return (dti_wino_square){ maps->at + (size_t)(t / per) * maps->group +
                                  ((ptrdiff_t)r * maps->columns + c) * (ptrdiff_t)DTI_L,
                              (size_t)maps->rows * (size_t)maps->columns * DTI_L,
                              (size_t)maps->columns * DTI_L, maps->channels };
}
static bool dti_wino_full(const dti_wino_place *in, int side)
{
    return in->top == 0 && in->left == 0 && in->bottom == side && in->right == side;
}

/* to (+)= from where the tile lies in the map; 16 lanes a place, rows to_row and from_row floats
   apart */
static void dti_wino_copy(const dti_wino_place *in, float *to, size_t to_row, const float *from,
                          size_t from_row, bool add)
{
    for (int i = in->top; i < in->bottom; ++i)
        for (int j = in->left; j < in->right; ++j)
            for (size_t part = 0; part < 16; part += DTI_W) {
                float *at = to + (size_t)i * to_row + (size_t)j * DTI_L + part;
                dti_v v = dti_load(from + (size_t)i * from_row + (size_t)j * DTI_L + part);
                if (add) v += dti_load(at);
                dti_store(at, v);
            }
}

/* V of tiles t0 .. t0+tiles-1. A tile that reaches beyond the map goes by way of a square of its own, `own`,
   a channel at a time: zeros, and in them what there is. */
static void dti_wino_take_x(const dti_conv *g, const dti_wino_form *form, const dti_wino_maps *x,
                            int t0, int tiles, float *v, size_t point)
{
    _Alignas(64) float own[64 * 16];
    const size_t row = (size_t)form->n * DTI_L;
    for (int t = 0; t < tiles; ++t) {
        dti_wino_place in;
        const dti_wino_square s = dti_wino_tile(g, form, x, t0 + t, form->m, form->n, g->pad, &in);
        float *to = v + (size_t)(t * g->C) * DTI_L;
        if (dti_wino_full(&in, form->n)) {
            form->x(&s, to, point);
            continue;
        }
        memset(own, 0, sizeof own);
        for (int c = 0; c < g->C; ++c, to += DTI_L) {
            dti_wino_copy(&in, own, row, s.at + (size_t)c * s.channel, s.row, false);
            form->x(&(dti_wino_square){ own, 0, row, 1 }, to, point);
        }
    }
}

/* The way back: dx += B dV B' of these tiles. */
static void dti_wino_give_dx(const dti_conv *g, const dti_wino_form *form, const dti_wino_maps *dx,
                             int t0, int tiles, const float *v, size_t point)
{
    _Alignas(64) float own[64 * 16];
    const size_t row = (size_t)form->n * DTI_L;
    for (int t = 0; t < tiles; ++t) {
        dti_wino_place in;
        const dti_wino_square s = dti_wino_tile(g, form, dx, t0 + t, form->m, form->n, g->pad, &in);
        const float *from = v + (size_t)(t * g->C) * DTI_L;
        if (dti_wino_full(&in, form->n)) {
            form->x_back(&s, from, point);
            continue;
        }
        for (int c = 0; c < g->C; ++c, from += DTI_L) {
            memset(own, 0, sizeof own);
            form->x_back(&(dti_wino_square){ own, 0, row, 1 }, from, point);
            dti_wino_copy(&in, s.at + (size_t)c * s.channel, s.row, own, row, true);
        }
    }
}

/* One channel's tile y[m][m] -> 2x2 maxima and their places, as [E1.5]; and back, zeros where no
   maximum was. */
static void dti_wino_pool(const dti_wino_place *in, int m, const float *y, bool relu, float *to,
                          uint8_t *argmax, size_t row)
{
    for (int i = 0; i < in->bottom; ++i)
        for (int j = 0; j < in->right; ++j)
            for (size_t part = 0; part < 16; part += DTI_W) {
                const float *at = y + (size_t)(2 * i * m + 2 * j) * DTI_L + part;
                const dti_v window[4] = { dti_load(at), dti_load(at + DTI_L),
                                          dti_load(at + (size_t)m * DTI_L),
                                          dti_load(at + (size_t)(m + 1) * DTI_L) };
                const size_t out = (size_t)i * row + (size_t)j * DTI_L + part;
                dti_tile_pool(window, relu, to + out, argmax + out);
            }
}

static void dti_wino_unpool(const dti_wino_place *in, int m, float *y, const float *from,
                            const uint8_t *argmax, size_t row)
{
    for (int i = 0; i < in->bottom; ++i)
        for (int j = 0; j < in->right; ++j)
            for (size_t part = 0; part < 16; part += DTI_W) {
                const size_t at = (size_t)i * row + (size_t)j * DTI_L + part;
                const dti_v d = dti_load(from + at);
                const dti_places place = dti_load_places(argmax + at);
                float *to = y + (size_t)(2 * i * m + 2 * j) * DTI_L + part;
                dti_store(to, dti_if_place(place, 0, d));
                dti_store(to + DTI_L, dti_if_place(place, 1, d));
                dti_store(to + (size_t)m * DTI_L, dti_if_place(place, 2, d));
                dti_store(to + (size_t)(m + 1) * DTI_L, dti_if_place(place, 3, d));
            }
}

/* y of tiles t0 .. t0+tiles-1 from z[j][t][o][i], pooled and rectified if so wished. */
static void dti_wino_give_y(const dti_conv *g, const dti_wino_form *form, const dti_wino_maps *y,
                            int t0, int tiles, const float *bias, bool relu, const float *z,
                            size_t point)
{
    _Alignas(64) float own[36 * 16];
    const int m = form->m, side = y->argmax ? m / 2 : m;
    const size_t row = (size_t)m * DTI_L;
    for (int t = 0; t < tiles; ++t, z += (size_t)g->O * row) {
        dti_wino_place in;
        const dti_wino_square s = dti_wino_tile(g, form, y, t0 + t, side, side, 0, &in);
        if (!y->argmax && dti_wino_full(&in, m)) {
            form->y(&s, bias, z, point);
            continue;
        }
        const int group = (t0 + t) / dti_wino_tiles(g, form);
        const ptrdiff_t at = s.at - (y->at + (size_t)group * y->group);
        for (int o = 0; o < g->O; ++o) {
            form->y(&(dti_wino_square){ own, 0, row, 1 }, bias ? bias + o : NULL,
                    z + (size_t)o * row, point);
            if (y->argmax)
                dti_wino_pool(&in, m, own, relu, s.at + (size_t)o * s.channel,
                              y->argmax + (size_t)group * y->argmax_group + at +
                                  (size_t)o * s.channel,
                              s.row);
            else dti_wino_copy(&in, s.at + (size_t)o * s.channel, s.row, own, row, false);
        }
    }
}

/* z[j][t][o][i] = dy A' */
static void dti_wino_take_dy(const dti_conv *g, const dti_wino_form *form, const dti_wino_maps *dy,
                             int t0, int tiles, float *z, size_t point)
{
    _Alignas(64) float own[36 * 16];
    const int m = form->m, side = dy->argmax ? m / 2 : m;
    const size_t row = (size_t)m * DTI_L;
    for (int t = 0; t < tiles; ++t, z += (size_t)g->O * row) {
        dti_wino_place in;
        const dti_wino_square s = dti_wino_tile(g, form, dy, t0 + t, side, side, 0, &in);
        if (!dy->argmax && dti_wino_full(&in, m)) {
            form->y_back(&s, z, point);
            continue;
        }
        const int group = (t0 + t) / dti_wino_tiles(g, form);
        const ptrdiff_t at = s.at - (dy->at + (size_t)group * dy->group);
        memset(own, 0, sizeof own);
        for (int o = 0; o < g->O; ++o) {
            if (dy->argmax)
                dti_wino_unpool(&in, m, own, s.at + (size_t)o * s.channel,
                                dy->argmax + (size_t)group * dy->argmax_group + at +
                                    (size_t)o * s.channel,
                                s.row);
            else dti_wino_copy(&in, own, row, s.at + (size_t)o * s.channel, s.row, false);
            form->y_back(&(dti_wino_square){ own, 0, row, 1 }, z + (size_t)o * row, point);
        }
    }
}

/* ---- Scratch: V and dV, a column of M, Z, and what dU needs. A point's floats are an odd number
   of cache lines, so that the points of an element do not all fall into one set of the cache.

   dU = dM V sums over lanes, and there are two ways to it, as in [E1.4]. Turned: one factor has its channels
   in place of its lanes, and dU is a table of vectors, `across` times 16 channels of that factor by `down`
   channels of the other. Folded: dU's sums are vectors of lanes, 4 x 4 channels at a time, added up at the
   end. */
typedef struct dti_wino_room {
    size_t v, m, z; /* floats of one point of V, one point of M, one column of Z */
    bool fold;      /* folded: where channels are few or fill vectors badly */
    bool turn_dy;   /* turned is dM, or else V: the one that leaves fewer lanes empty */
    int across, down; /* the turned factor's vectors of sixteen channels; the other factor's channels. Folded:
                         how many blocks of 4 x 4; 1 */
    int block;        /* of `down`, so many at a time, for dU to stay in L2 */
    size_t turned; /* floats of one point's turned factor; folded 0 */
    size_t du, r;  /* floats of one point of dU, of one tap of R */
} dti_wino_room;

static size_t dti_wino_lines(int tiles, int channels)
{
    return ((size_t)tiles * (size_t)channels | 1) * DTI_L;
}

/* What a chunk of that many tiles needs. */
static dti_wino_room dti_wino_room_of(const dti_conv *g, const dti_wino_form *form, int tiles)
{
    dti_wino_room r = { .v = dti_wino_lines(tiles, g->C),
                        .m = dti_wino_lines(tiles, g->O),
                        .z = dti_wino_lines(tiles, g->O * form->m) };
    const int xs = (g->C + 15) / 16, ys = (g->O + 15) / 16;
    r.turn_dy = ys * g->C <= xs * g->O;
    /* at most sixteen channels on a side; or, turned, more than an eighth of all lanes would be empty */
    r.fold = dti_least(g->C, g->O) <= 16 ||
             7.0 * 16 * (r.turn_dy ? ys * g->C : xs * g->O) > 8.0 * g->C * g->O;
    r.across = r.turn_dy ? ys : xs;
    r.down = r.turn_dy ? g->C : g->O;
    /* block: as many of `down` as the slice of L2 holds, in whole register tiles; at least one tile, at most
       all */
    const int fit = (int)(dti_wino_machine.slice / (size_t)(form->n * r.across * 16));
    r.block = fit < dti_wino_machine.outs ? dti_wino_machine.outs
              : fit < r.down              ? fit / dti_wino_machine.outs * dti_wino_machine.outs
                                          : r.down;
    r.turned = (size_t)(r.across * tiles) * 16 * DTI_L;
    if (r.fold) { /* a vector is what 4 x 4 channels have folded */
        r.across = (g->O + 3) / 4 * ((g->C + 3) / 4);
        r.down = r.block = 1;
        r.turned = 0;
    }
    r.du = dti_wino_lines(r.across, r.block);
    r.r = (size_t)(r.across * r.down) * DTI_L;
    return r;
}

static int dti_wino_chunk(int tiles) { return dti_parts_of(tiles, DTI_WINO_CHUNK).size; }

/* The maps of group k alone */
static dti_wino_maps dti_wino_group(const dti_wino_maps *maps, int k)
{
    dti_wino_maps one = *maps;
    one.at += (size_t)k * maps->group;
    if (one.argmax) one.argmax += (size_t)k * maps->argmax_group;
    return one;
}

/* ---- Forward: y = conv(x) + b for `groups` lane groups, pooled and rectified if y has an argmax.
   2*O*n*n*C*16 flop a tile, and the transforms.

       for each chunk of at most 8 tiles       x -> V                  dti_wino_take_x
           for each column j of points         M = U V                 dti_wino_products      M in L1 or L2
                                               Z[j] = A' M             form->rows
           then                                y = Z A + b             dti_wino_give_y
   */
DTI_LOCAL void dti_wino_forward(const dti_conv *g, const dti_wino_form *form, int groups,
                                const dti_wino_maps *x, const float *packed, const float *b,
                                bool relu, const dti_wino_maps *y, float *scratch)
{
    const int n = form->n, all = groups * dti_wino_tiles(g, form), chunk = dti_wino_chunk(all);
    for (int k = 0; form->line_forward && k < groups; ++k) {
        const dti_wino_maps from = dti_wino_group(x, k), to = dti_wino_group(y, k);
        form->line_forward(g, form, &from, packed, b, relu, &to, scratch);
    }
    for (int t0 = 0; !form->line_forward && t0 < all; t0 += chunk) {
        const int tiles = all - t0 < chunk ? all - t0 : chunk;
        const dti_wino_room r = dti_wino_room_of(g, form, tiles);
        float *v = scratch, *m = v + (size_t)(n * n) * r.v, *z = m + (size_t)n * r.m;
        dti_wino_take_x(g, form, x, t0, tiles, v, r.v);
        /* M[i][t][o] of column j, then its rows: where V of a column is small, for one block of o after the
           other, so that M is still in L1 */
        const bool small = (size_t)(n * tiles * g->C) * DTI_L * sizeof(float) <= (size_t)dti_machine.l1_bytes;
        const dti_parts blocks = dti_parts_of(g->O, small ? dti_wino_machine.outs : g->O);
        for (int j = 0; j < n; ++j)
            for (int k = 0; k < blocks.count; ++k) {
                const int o = dti_part_begin(&blocks, k), outs = blocks.size - (k >= blocks.wide);
                const size_t at = (size_t)(j * n);
                dti_wino_products(n, g->O, outs, g->C, tiles,
                                  packed + at * (size_t)(g->O * g->C) + (size_t)(o * g->C),
                                  v + at * r.v, r.v, m, r.m);
                for (int t = 0; t < tiles; ++t)
                    form->rows(outs, m + (size_t)(t * outs) * DTI_L, r.m,
                               z + (size_t)j * r.z + (size_t)((t * g->O + o) * form->m) * DTI_L);
            }
        dti_wino_give_y(g, form, y, t0, tiles, b, relu, z, r.z);
    }
}

/* sums[r] = the lanes of row r folded in the order of dti_fold. With 512-bit vectors sixteen rows at a time,
   in registers: a round adds halves, then quarters, .. of two vectors and leaves the sums of both in one.
   After four rounds the sixteen vectors are one, whose lane r is the sum of row r. */
#if DTI_W == 16
#define DTI_FOLD_TWO(a, b, upper, swap) /* lanes of b where `upper` says so; swap exchanges halves */ \
    ((dti_v)_mm512_mask_blend_ps(upper, a, b) + (dti_v)swap(_mm512_mask_blend_ps(upper, b, a)))
#define DTI_SWAP_8(x) _mm512_shuffle_f32x4(x, x, 0x4E)
#define DTI_SWAP_4(x) _mm512_shuffle_f32x4(x, x, 0xB1)
#define DTI_SWAP_2(x) _mm512_permute_ps(x, 0x4E)
#define DTI_SWAP_1(x) _mm512_permute_ps(x, 0xB1)
DTI_INLINE dti_v dti_fold_16(dti_v *a)
{
    DTI_UNROLL for (int k = 0; k < 8; ++k) a[k] = DTI_FOLD_TWO(a[k], a[k + 8], 0xFF00, DTI_SWAP_8);
    DTI_UNROLL for (int k = 0; k < 4; ++k) a[k] = DTI_FOLD_TWO(a[k], a[k + 4], 0xF0F0, DTI_SWAP_4);
    DTI_UNROLL for (int k = 0; k < 2; ++k) a[k] = DTI_FOLD_TWO(a[k], a[k + 2], 0xCCCC, DTI_SWAP_2);
    return DTI_FOLD_TWO(a[0], a[1], 0xAAAA, DTI_SWAP_1);
}
#endif

static void dti_wino_fold(float *sums, const float *acc, int rows)
{
    int r = 0;
#if DTI_W == 16
    for (; r + 16 <= rows; r += 16) {
        dti_v a[16];
        DTI_UNROLL for (int k = 0; k < 16; ++k) a[k] = dti_load(acc + (size_t)(r + k) * DTI_L);
        _mm512_storeu_ps(sums + r, dti_fold_16(a));
    }
#endif
    if (r < rows) dti_fold(sums + r, acc + (size_t)r * DTI_L, rows - r);
}

/* dU of 4 channels o and CT of 4 channels c at one point, folded: sums[4*o + c] */
DTI_INLINE void dti_wino_fold_block(const int CT, int tiles, const float *m, size_t m_tile, const float *v,
                                    size_t v_tile, float *sums)
{
    enum { ROWS = DTI_REGISTERS == 32 ? 4 : 2 };
    _Alignas(64) float lanes[16 * DT_LANES];
    for (int row = 0; row < 4; row += ROWS)
        for (size_t part = 0; part < 16; part += DTI_W) {
            const float *a = m + (size_t)row * DTI_L + part, *b = v + part;
            dti_v acc[4 * ROWS];
            DTI_UNROLL for (int k = 0; k < 4 * ROWS; ++k) acc[k] = dti_splat(0.0f);
            for (int t = tiles; t > 0; --t, a += m_tile, b += v_tile) {
                dti_v bs[4];
                DTI_UNROLL for (int c = 0; c < CT; ++c) bs[c] = dti_load(b + (size_t)c * DTI_L);
                DTI_UNROLL for (int o = 0; o < ROWS; ++o) {
                    const dti_v as = dti_load(a + (size_t)o * DTI_L);
                    DTI_UNROLL for (int c = 0; c < CT; ++c)
                        acc[4 * o + c] = dti_fma(as, bs[c], acc[4 * o + c]);
                }
            }
#if DTI_W == 16
            dti_store(sums, dti_fold_16(acc));
#else
            DTI_UNROLL for (int k = 0; k < 4 * ROWS; ++k)
                dti_store(lanes + (size_t)(4 * row + k) * DTI_L + part, acc[k]);
#endif
        }
    if (DTI_W < 16) dti_fold(sums, lanes, 16);
}

/* All of a point, blocks of 4 x 4; what a block has behind the last channel nobody reads. */
DTI_NOINLINE void dti_wino_fold_point(const dti_conv *g, int tiles, const float *m, const float *v,
                                      float *sums)
{
    const size_t m_tile = (size_t)g->O * DTI_L, v_tile = (size_t)g->C * DTI_L;
    for (int o = 0; o < g->O; o += 4)
        for (int c = 0; c < g->C; c += 4, sums += DTI_L) {
            const float *a = m + (size_t)o * DTI_L, *b = v + (size_t)c * DTI_L;
            if (g->C - c > 2) dti_wino_fold_block(4, tiles, a, m_tile, b, v_tile, sums);
            else dti_wino_fold_block(2, tiles, a, m_tile, b, v_tile, sums);
        }
}

/* dU of column j: folded, or one factor of each point turned, and multiplied; then G' dU, the one axis, into
   R[j]. The loops of turning: points i of the column; vectors of 16 channels; tiles. */
static void dti_wino_column_w(const dti_conv *g, const dti_wino_form *form, const dti_wino_room *r,
                              int tiles, const float *v, const float *m, float *turned, float *du,
                              float *into, bool add)
{
    const float *vectors = r->turn_dy ? m : v, *numbers = r->turn_dy ? v : m;
    const size_t vectors_point = r->turn_dy ? r->m : r->v, numbers_point = r->turn_dy ? r->v : r->m;
    const int channels = r->turn_dy ? g->O : g->C;
    if (r->fold) {
        for (int i = 0; i < form->n; ++i)
            dti_wino_fold_point(g, tiles, m + (size_t)i * r->m, v + (size_t)i * r->v,
                                du + (size_t)i * r->du);
        form->w_back(r->across, du, r->du, into, r->r, add);
        return;
    }
    for (int i = 0; i < form->n; ++i)
        for (int k = 0; k < r->across; ++k)
            for (int t = 0; t < tiles; ++t)
                dti_turn_square( /* what lies behind the last channel nobody reads */
                    turned + (size_t)i * r->turned + (size_t)(k * tiles + t) * 16 * DTI_L, DT_LANES,
                    vectors + (size_t)i * vectors_point + (size_t)(t * channels + 16 * k) * DTI_L, DT_LANES);
    dti_product p = { .a_point = numbers_point,
                      .a_term = (size_t)r->down * DTI_L,
                      .b_point = r->turned,
                      .b_tile = (size_t)tiles * 16 * DTI_L,
                      .out_point = r->du,
                      .points = form->n,
                      .terms = tiles,
                      .lanes = true };
    for (int k = 0; k < r->down; k += r->block) {
        const int rows = r->down - k < r->block ? r->down - k : r->block;
        p.out_tile = (size_t)rows * DTI_L;
        dti_product_do(&p, numbers + (size_t)k * DTI_L, turned, du, rows, r->across);
        form->w_back(rows * r->across, du, r->du, into + (size_t)(k * r->across) * DTI_L, r->r, add);
    }
}

/* dw = R G, the other axis, from R[j][u][block][across][down of the block]. Then the channels are turned
   back: the sixteen lanes of a vector are channels o (turn_dy), or channels c, or 4 x 4 of both (fold). */
static void dti_wino_give_dw(const dti_conv *g, const dti_wino_form *form, const dti_wino_room *r,
                             const float *from, float *own, float *dw)
{
    const int K = form->K, taps = K * K, row = g->C * taps;
    for (int first = 0; first < r->down; first += r->block) {
        const int rows = dti_least(r->block, r->down - first);
        for (int k = 0; k < r->across; ++k)
            for (int d = first; d < first + rows; ++d, from += DTI_L) {
                for (int u = 0; u < K; ++u)
                    form->w_back(1, from + (size_t)u * r->r, (size_t)K * r->r, own + (size_t)(u * K) * DTI_L,
                                 DTI_L, false);
                if (r->fold) {
                    const int across = (g->C + 3) / 4, o = k / across * 4, c = k % across * 4;
                    for (int i = 0; i < dti_least(4, g->O - o); ++i)
                        dti_turn(dw + (ptrdiff_t)(o + i) * row + c * taps, taps, own + 4 * i, DT_LANES, taps,
                                 dti_least(4, g->C - c));
                } else if (r->turn_dy)
                    dti_turn(dw + (ptrdiff_t)(16 * k) * row + d * taps, row, own, DT_LANES, taps,
                             dti_least(16, g->O - 16 * k));
                else
                    dti_turn(dw + (ptrdiff_t)d * row + 16 * k * taps, taps, own, DT_LANES, taps,
                             dti_least(16, g->C - 16 * k));
            }
    }
}

/* ---- Backward, any of: dx of `groups` lane groups unless dx is NULL; dw and db (may be NULL) unless dw is
   NULL, of one group. All are overwritten. dy with its argmax where the convolution pools.

       for each chunk of at most 8 tiles       dy -> Z = dy A'         dti_wino_take_dy
                                               x -> V                  dti_wino_take_x        for dw
           for each column j of points         dM = A Z[j]             form->rows_back
                                               R[j] += G' dU           dti_wino_column_w      for dw
                                               dV = U dM               dti_wino_products      for dx
           then                                dx += B dV B'           dti_wino_give_dx
       after all chunks                        dw = R G                dti_wino_give_dw
   */
DTI_LOCAL void dti_wino_backward(const dti_conv *g, const dti_wino_form *form, int groups,
                                 const dti_wino_maps *x, const dti_wino_maps *dy,
                                 const float *packed, const dti_wino_maps *dx, float *dw, float *db,
                                 float *scratch)
{
    if (form->line_backward) {
        for (int k = 0; k < groups; ++k) {
            const dti_wino_maps d = dti_wino_group(dy, k), to = dx ? dti_wino_group(dx, k) : *dy;
            form->line_backward(g, form, x, &d, packed, dx ? &to : NULL, dw, db, scratch);
        }
        return;
    }
    const int n = form->n, all = groups * dti_wino_tiles(g, form), chunk = dti_wino_chunk(all);
    const dti_wino_room most = dti_wino_room_of(g, form, chunk);
    float *v = scratch, *m = v + (size_t)(n * n) * most.v, *z = m + (size_t)n * most.m;
    float *turned = z + (size_t)n * most.z, *du = turned + (size_t)n * most.turned,
          *r_all = du + (size_t)n * most.du;
    float *sums = r_all + (size_t)(n * form->K) * most.r, *own = sums + (size_t)g->O * DTI_L;
    for (int k = 0; dx && k < groups; ++k)
        memset(dx->at + (size_t)k * dx->group, 0,
               (size_t)g->C * (size_t)g->H * (size_t)g->W * DTI_L * sizeof(float));
    for (int t0 = 0; t0 < all; t0 += chunk) {
        const int tiles = all - t0 < chunk ? all - t0 : chunk;
        const dti_wino_room r = dti_wino_room_of(g, form, tiles);
        dti_wino_take_dy(g, form, dy, t0, tiles, z, r.z);
        if (dw) dti_wino_take_x(g, form, x, t0, tiles, v, r.v);
        for (int j = 0; j < n; ++j) {
            const size_t at = (size_t)(j * n);
            form->rows_back(tiles * g->O, z + (size_t)j * r.z, m,
                            r.m); /* dM[i][t][o] of column j */
            if (dw)
                dti_wino_column_w(g, form, &r, tiles, v + at * r.v, m, turned, du,
                                  r_all + (size_t)(j * form->K) * r.r, t0 > 0);
            if (dx) /* dV takes the place of V, which has served */
                dti_wino_products(n, g->C, g->C, g->O, tiles,
                                  packed + dti_wino_packed_floats(g, form) / 2 + at * (size_t)(g->O * g->C),
                                  m, r.m, v + at * r.v, r.v);
            if (db && j == 1) /* dM at the point (1, 1) is the sum of the tile's dy */
                for (int o = 0; o < g->O; ++o)
                    for (size_t part = 0; part < 16; part += DTI_W) {
                        float *sum = sums + (size_t)o * DTI_L + part;
                        dti_v s = dti_splat(0.0f);
                        if (t0 > 0) s = dti_load(sum);
                        for (int t = 0; t < tiles; ++t)
                            s += dti_load(m + r.m + (size_t)(t * g->O + o) * DTI_L + part);
                        dti_store(sum, s);
                    }
        }
        if (dx) dti_wino_give_dx(g, form, dx, t0, tiles, v, r.v);
    }
    if (dw) dti_wino_give_dw(g, form, &most, r_all, own, dw);
    if (db) dti_fold(db, sums, g->O);
}

/* ---- Lines: the same along a row only. Between few channels the transforms of a square cost more than its
   products save. A line is a row of a tile, n numbers of x for m of y; the kernel's rows stay as in the
   definition:

       x row r   n numbers  --> V[r] = B' x   n points         M[i] = sum over c, u of U[u] * V[i + u - pad]
       w row u   K numbers  --> U[u] = G w    n points         y row i = A' M[i]

   With m = 4, K = 5 four outputs take 40 products and 16 multiply-adds for A' M; the definition takes 100.
   V and dM are [channel][row][point][16], M [channel][two rows][point][16]; rows outside of the map are left
   out. A product is a tile of registers: two channels x two rows x a few points, over channels and taps. A
   row of points that is loaded serves two rows and two channels; a number of U that is repeated serves two
   rows. Here a tile is all rows of the map in n columns; `first` is its first column.

   Order of the sums: an element of M and dV is one chain over channels, then taps; one of dU a chain over
   tiles, then rows, whose sixteen lanes are then folded. Begin with dti_line_forward. */
/* points of a product at a time, so that its sums fit the registers: of M 2 x 2 x 4 or 2 x 2 x 2; of dU,
   which has K = 5 of each, 2 x 2 x 5 or 2 x 1 x 5 */
enum { DTI_LINE_POINTS = DTI_REGISTERS == 32 ? 4 : 2, DTI_LINE_W_POINTS = DTI_REGISTERS == 32 ? 2 : 1 };

/* V of all rows of x for the tile whose first number is column `first`; zero where that is outside */
DTI_INLINE void dti_line_x(const int n, const dti_wino_maps *x, int first, float *v)
{
    const int low = first < 0 ? -first : 0, high = dti_least(n, x->columns - first);
    for (int r = 0; r < x->channels * x->rows; ++r, v += (size_t)n * DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            const float *row = x->at + ((ptrdiff_t)r * x->columns + first) * DT_LANES + (ptrdiff_t)part;
            dti_v a[8], b[8];
            DTI_UNROLL for (int j = 0; j < n; ++j) {
                a[j] = dti_splat(0.0f);
                if (j >= low && j < high) a[j] = dti_load(row + j * DT_LANES);
            }
            dti_wino_interpolate(n, b, a);
            DTI_UNROLL for (int j = 0; j < n; ++j) dti_store(v + (size_t)j * DTI_L + part, b[j]);
        }
}

/* dM = A dy of channel o, `rows` rows; where dy is pooled, zeros where no maximum was */
DTI_INLINE void dti_line_dy(const int n, const int m, const dti_wino_maps *dy, int o, int rows, int first,
                            float *dm)
{
    const bool pooled = dy->argmax != NULL;
    for (int i = 0; i < rows; ++i, dm += (size_t)n * DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            const int row = pooled ? i / 2 : i, column = pooled ? first / 2 : first;
            const size_t at = ((size_t)(o * dy->rows + row) * (size_t)dy->columns + (size_t)column) * DTI_L +
                              part;
            const int there = row < dy->rows ? dy->columns - column : 0;
            dti_v a[8], b[8];
            DTI_UNROLL for (int j = 0; j < m; ++j) {
                a[j] = dti_splat(0.0f);
                if (!pooled && j < there) a[j] = dti_load(dy->at + at + (size_t)j * DTI_L);
            }
            if (pooled)
                DTI_UNROLL for (int j = 0; j < m / 2; ++j)
                    if (j < there) {
                        const dti_v d = dti_load(dy->at + at + (size_t)j * DTI_L);
                        const dti_places place = dti_load_places(dy->argmax + at + (size_t)j * DTI_L);
                        a[2 * j] = dti_if_place(place, i % 2 * 2, d);
                        a[2 * j + 1] = dti_if_place(place, i % 2 * 2 + 1, d);
                    }
            dti_wino_evaluate(n, m, b, a);
            DTI_UNROLL for (int j = 0; j < n; ++j) dti_store(dm + (size_t)j * DTI_L + part, b[j]);
        }
}

/* Rows i and i+1 of y from M, pooled and rectified if so wished */
DTI_INLINE void dti_line_y(const int n, const int m, const float *sums, bool relu, const dti_wino_maps *y,
                           int o, int i, int first)
{
    const bool pooled = y->argmax != NULL;
    const int row = pooled ? i / 2 : i, column = pooled ? first / 2 : first;
    const size_t at = ((size_t)(o * y->rows + row) * (size_t)y->columns + (size_t)column) * DTI_L;
    const int across = y->columns - column, down = y->rows - row;
    for (size_t part = 0; part < 16; part += DTI_W) {
        dti_v a[8], b[2][8];
        DTI_UNROLL for (int r = 0; r < 2; ++r) {
            DTI_UNROLL for (int j = 0; j < n; ++j) a[j] = dti_load(sums + (size_t)(r * n + j) * DTI_L + part);
            dti_wino_evaluate_back(n, m, b[r], a);
        }
        if (pooled)
            DTI_UNROLL for (int j = 0; j < m / 2; ++j) {
                const dti_v window[4] = { b[0][2 * j], b[0][2 * j + 1], b[1][2 * j], b[1][2 * j + 1] };
                const size_t to = at + (size_t)j * DTI_L + part;
                if (j < across && down > 0)
                    dti_tile_pool(window, relu, y->at + to, y->argmax + to);
            }
        else
            DTI_UNROLL for (int r = 0; r < 2; ++r)
                DTI_UNROLL for (int j = 0; j < m; ++j)
                    if (j < across && r < down)
                        dti_store(y->at + at + (size_t)(r * y->columns + j) * DTI_L + part, b[r][j]);
    }
}

/* Rows r and r+1 of dx += B dV */
DTI_INLINE void dti_line_dx(const int n, const float *sums, const dti_wino_maps *dx, int c, int r, int first)
{
    for (int i = 0; i < 2 && r + i < dx->rows; ++i, sums += (size_t)n * DTI_L)
        for (size_t part = 0; part < 16; part += DTI_W) {
            float *row = dx->at + ((ptrdiff_t)(c * dx->rows + r + i) * dx->columns + first) * DT_LANES +
                         (ptrdiff_t)part;
            dti_v a[8], b[8];
            DTI_UNROLL for (int j = 0; j < n; ++j) a[j] = dti_load(sums + (size_t)j * DTI_L + part);
            dti_wino_interpolate_back(n, b, a);
            DTI_UNROLL for (int j = 0; j < n; ++j)
                if (first + j >= 0 && first + j < dx->columns)
                    dti_store(row + j * DT_LANES, dti_load(row + j * DT_LANES) + b[j]);
        }
}

/* M of OUTS channels and two rows, PT points: sum over c, q of U[o][c][q] * V[c][top + row + q]. WHOLE: all
   of those rows are there. start: the bias of each channel, or NULL; it is put in at point 1, the point +1,
   from which each of a line's outputs takes its share once. acc[o][row][p].
     n, K, OUTS, WHOLE      constants at each call: points and taps of a line; channels o, one or two
     channels, rows, top    of v: how many c, rows of each; the first row that is read, perhaps outside
     v, u, u_out            V from the first of these points on; U likewise, u_out floats from o to o
     sums                   [o][two rows][n points][16] */
DTI_INLINE void dti_line_product(const int n, const int K, const int OUTS, const bool WHOLE, int channels,
                                 int rows, int top, const float *v, const float *u, size_t u_out,
                                 const float *start, float *sums)
{
    const int PT = DTI_LINE_POINTS;
    for (size_t part = 0; part < 16; part += DTI_W) {
        dti_v acc[2][2][4];
        DTI_UNROLL for (int o = 0; o < OUTS; ++o)
            DTI_UNROLL for (int p = 0; p < PT; ++p)
                acc[o][0][p] = acc[o][1][p] = dti_splat(p == 1 && start ? start[o] : 0.0f);
        for (int c = 0; c < channels; ++c) {
            const float *row = v + (ptrdiff_t)(c * rows + top) * n * DT_LANES + (ptrdiff_t)part;
            const float *uc = u + (size_t)(c * K * n);
            DTI_UNROLL for (int q = 0; q <= K; ++q) { /* tap q of the first row, q - 1 of the second */
                if (!WHOLE && (top + q < 0 || top + q >= rows)) continue;
                DTI_UNROLL for (int p = 0; p < PT; ++p) {
                    const dti_v x = dti_load(row + (q * n + p) * DT_LANES);
                    DTI_UNROLL for (int o = 0; o < OUTS; ++o) {
                        const float *uo = uc + (size_t)o * u_out;
                        if (q < K) acc[o][0][p] = dti_fma(dti_splat(uo[q * n + p]), x, acc[o][0][p]);
                        if (q > 0) acc[o][1][p] = dti_fma(dti_splat(uo[(q - 1) * n + p]), x, acc[o][1][p]);
                    }
                }
            }
        }
        DTI_UNROLL for (int o = 0; o < OUTS; ++o)
            DTI_UNROLL for (int r = 0; r < 2; ++r)
                DTI_UNROLL for (int p = 0; p < PT; ++p)
                    dti_store(sums + (size_t)((o * 2 + r) * n + p) * DTI_L + part, acc[o][r][p]);
    }
}

/* M of two rows for all `outs` channels */
DTI_INLINE void dti_line_products(const int n, const int K, int outs, int channels, int rows, int top,
                                  const float *v, const float *u, const float *bias, float *sums)
{
    const size_t u_out = (size_t)(channels * K * n);
    const bool whole = top >= 0 && top + K < rows;
    for (int p = 0; p < n; p += DTI_LINE_POINTS)
        for (int o = 0; o < outs; o += 2) {
            const float *in = v + (size_t)p * DTI_L, *by = u + (size_t)o * u_out + p;
            const float *start = p == 0 && bias ? bias + o : NULL;
            float *to = sums + (size_t)(o * 2 * n + p) * DTI_L;
            if (o + 1 == outs)
                dti_line_product(n, K, 1, false, channels, rows, top, in, by, u_out, start, to);
            else if (whole) dti_line_product(n, K, 2, true, channels, rows, top, in, by, u_out, start, to);
            else dti_line_product(n, K, 2, false, channels, rows, top, in, by, u_out, start, to);
        }
}

/* dU[o][u] of OUTS channels o, one c, a few points: += sum over i of dM[o][i] * V[i + u - pad], of `tiles`
   tiles. sums: [point][o][u][16], the points `sums_point`, the o `sums_out` floats apart. acc[o][p][u]; the
   loops of the sum: tiles; rows i of dM; taps u.
     n, K, OUTS             constants at each call: points and taps of a line; channels o, one or two
     v, v_tile              V of channel c from the first of these points on; floats from tile to tile
     dm, dm_tile            dM of the first channel o, likewise
     resume                 go on from what sums holds, of the tiles before */
DTI_INLINE void dti_line_weights(const int n, const int K, const int OUTS, const dti_conv *g, int tiles,
                                 const float *v, size_t v_tile, const float *dm, size_t dm_tile, float *sums,
                                 size_t sums_point, size_t sums_out, bool resume)
{
    const int PT = DTI_LINE_W_POINTS;
    for (size_t part = 0; part < 16; part += DTI_W) {
        dti_v acc[2][2][5];
        DTI_UNROLL for (int o = 0; o < OUTS; ++o)
            DTI_UNROLL for (int p = 0; p < PT; ++p)
                DTI_UNROLL for (int u = 0; u < K; ++u) {
                    acc[o][p][u] = dti_splat(0.0f);
                    if (resume)
                        acc[o][p][u] = dti_load(sums + (size_t)p * sums_point + (size_t)o * sums_out +
                                                (size_t)u * DTI_L + part);
                }
        for (int t = 0; t < tiles; ++t)
            for (int i = 0; i < g->P; ++i) {
                const ptrdiff_t line = (ptrdiff_t)n * DT_LANES;
                const float *d = dm + (size_t)t * dm_tile + i * line + part,
                            *x = v + (size_t)t * v_tile + part;
                const int top = i - g->pad;
                const bool whole = top >= 0 && top + K <= g->H;
                dti_v ds[2][2];
                DTI_UNROLL for (int o = 0; o < OUTS; ++o)
                    DTI_UNROLL for (int p = 0; p < PT; ++p)
                        ds[o][p] = dti_load(d + o * g->P * line + p * DT_LANES);
                DTI_UNROLL for (int u = 0; u < K; ++u) {
                    if (!whole && (top + u < 0 || top + u >= g->H)) continue;
                    DTI_UNROLL for (int p = 0; p < PT; ++p) {
                        const dti_v xs = dti_load(x + (top + u) * line + p * DT_LANES);
                        DTI_UNROLL for (int o = 0; o < OUTS; ++o)
                            acc[o][p][u] = dti_fma(ds[o][p], xs, acc[o][p][u]);
                    }
                }
            }
        DTI_UNROLL for (int o = 0; o < OUTS; ++o)
            DTI_UNROLL for (int p = 0; p < PT; ++p)
                DTI_UNROLL for (int u = 0; u < K; ++u)
                    dti_store(sums + (size_t)p * sums_point + (size_t)o * sums_out + (size_t)u * DTI_L + part,
                              acc[o][p][u]);
    }
}

/* Tiles that are done together: of two channels, dM then stays in L1 until dU has been made of it. */
static int dti_line_chunk(const dti_conv *g, const dti_wino_form *form)
{
    const int tile = 2 * g->P * form->n * (int)DTI_L * (int)sizeof(float), fit = dti_machine.l1_bytes / tile;
    return dti_least(fit < 1 ? 1 : fit, (g->Q + form->m - 1) / form->m);
}

/* Where the parts of scratch begin, in floats; V is at 0. */
typedef struct dti_line_room {
    int rows, vectors;                  /* rows of all kernels, O*C*K; sixteen of them are a vector */
    size_t sums_point, du_point;        /* floats of a point's sums of dU in lanes, and folded */
    size_t dm, m, sums, du, r, bias, end;
} dti_line_room;

/* One part behind the other: V, dM, M, dU's sums in lanes, dU, R, the bias. */
static dti_line_room dti_line_room_of(const dti_conv *g, const dti_wino_form *form)
{
    const size_t n = (size_t)form->n, K = (size_t)form->K, chunk = (size_t)dti_line_chunk(g, form);
    const size_t most = (size_t)(g->C > g->O ? g->C : g->O) + 1;
    dti_line_room r = { .rows = g->O * g->C * g->K };
    r.vectors = (r.rows + 15) / 16;
    r.sums_point = dti_wino_lines(1, r.rows);
    r.du_point = dti_wino_lines(1, r.vectors);
    r.dm = chunk * (size_t)(g->C * g->H) * n * DTI_L;
    r.m = r.dm + chunk * (size_t)(g->O * g->P) * n * DTI_L;
    r.sums = r.m + most * 2 * n * DTI_L;
    r.du = r.sums + n * r.sums_point;
    r.r = r.du + n * r.du_point;
    r.bias = r.r + K * r.du_point;
    r.end = r.bias + (size_t)g->O * DTI_L;
    return r;
}

/* Weights: U[o][c][u][point], and behind it [c][o][K-1-u][point] for dV. Sixteen rows of kernels are
   transformed side by side. */
DTI_INLINE void dti_line_pack(const int n, const int K, const dti_conv *g, const float *w, float *packed)
{
    const int rows = g->O * g->C * K;
    float *back = packed + dti_whole_lines((size_t)(rows * n));
    for (int first = 0; first < rows; first += DT_LANES) {
        const int lanes = dti_least(rows - first, DT_LANES);
        _Alignas(64) float from[5][DT_LANES] = { { 0 } }, to[8][DT_LANES];
        for (int l = 0; l < lanes; ++l)
            for (int j = 0; j < K; ++j) from[j][l] = w[(first + l) * K + j];
        for (size_t part = 0; part < 16; part += DTI_W) {
            dti_v a[5], b[8];
            DTI_UNROLL for (int j = 0; j < K; ++j) a[j] = dti_load(from[j] + part);
            dti_wino_evaluate(n, K, b, a);
            DTI_UNROLL for (int j = 0; j < n; ++j) dti_store(to[j] + part, b[j] * dti_wino_scale(n, j));
        }
        for (int l = 0; l < lanes; ++l) {
            const int u = (first + l) % K, c = (first + l) / K % g->C, o = (first + l) / K / g->C;
            for (int j = 0; j < n; ++j)
                packed[(first + l) * n + j] = back[((c * g->O + o) * K + K - 1 - u) * n + j] = to[j][l];
        }
    }
}

/* y of one group: V of n columns of x, then, two rows at a time, M and y. */
DTI_INLINE void dti_line_forward(const int n, const int m, const int K, const dti_conv *g,
                                 const dti_wino_form *form, const dti_wino_maps *x, const float *packed,
                                 const float *b, bool relu, const dti_wino_maps *y, float *scratch)
{
    float *v = scratch, *sums = scratch + dti_line_room_of(g, form).m;
    for (int first = 0; first < g->Q; first += m) {     /* V of a tile, in L1 where channels are few */
        dti_line_x(n, x, first - g->pad, v);
        for (int i = 0; i < g->P; i += 2) {             /* M of two rows, in L1 */
            dti_line_products(n, K, g->O, g->C, g->H, i - g->pad, v, packed, b, sums);
            for (int o = 0; o < g->O; ++o)
                dti_line_y(n, m, sums + (size_t)(o * 2 * n) * DTI_L, relu, y, o, i, first);
        }
    }
}

/* Of one group: dx unless NULL, dw and db unless NULL; all are overwritten. The loops:
     chunks          of `now` tiles: V of all channels of x, for dw
     two channels o  dM of them; db; dU of them, a few points by one channel c at a time
     tiles           dV and dx of all channels, two rows at a time, once dM of all o is there
   Without dx, dM is kept of two channels only. */
DTI_INLINE void dti_line_backward(const int n, const int m, const int K, const dti_conv *g,
                                  const dti_wino_form *form, const dti_wino_maps *x, const dti_wino_maps *dy,
                                  const float *packed, const dti_wino_maps *dx, float *dw, float *db,
                                  float *scratch)
{
    const dti_line_room r = dti_line_room_of(g, form);
    const int tiles = (g->Q + m - 1) / m, chunk = dti_line_chunk(g, form), outs = dx ? g->O : 2;
    const size_t line = (size_t)n * DTI_L, v_tile = (size_t)(g->C * g->H) * line,
                 dm_row = (size_t)g->P * line;
    const size_t dm_tile = (size_t)outs * dm_row, kernels = (size_t)(g->C * K) * DTI_L;
    float *v = scratch, *dm = scratch + r.dm, *sums = scratch + r.sums, *bias = scratch + r.bias;
    if (dx) memset(dx->at, 0, (size_t)(g->C * g->H) * (size_t)g->W * DTI_L * sizeof(float));
    for (int t0 = 0; t0 < tiles; t0 += chunk) {
        const int now = dti_least(chunk, tiles - t0);
        for (int t = 0; dw && t < now; ++t) dti_line_x(n, x, (t0 + t) * m - g->pad, v + (size_t)t * v_tile);
        for (int o = 0; o < g->O; o += 2) {             /* dM of two channels, in L1 */
            const int two = dti_least(2, g->O - o);
            float *d = dm + (dx ? (size_t)o * dm_row : 0), *s = sums + (size_t)o * kernels;
            for (int k = 0; k < two; ++k)
                for (int t = 0; t < now; ++t) {
                    float *to = d + (size_t)t * dm_tile + (size_t)k * dm_row;
                    dti_line_dy(n, m, dy, o + k, g->P, (t0 + t) * m, to);
                    for (size_t part = 0; db && part < 16; part += DTI_W) { /* point +1: the sum of m of dy */
                        float *sum = bias + (size_t)(o + k) * DTI_L + part;
                        dti_v all = dti_splat(0.0f);
                        if (t0 + t > 0) all = dti_load(sum);
                        for (int i = 0; i < g->P; ++i) all += dti_load(to + (size_t)i * line + DTI_L + part);
                        dti_store(sum, all);
                    }
                }
            for (int p = 0; dw && p < n; p += DTI_LINE_W_POINTS)
                for (int c = 0; c < g->C; ++c) {
                    const float *vc = v + (size_t)(c * g->H) * line + (size_t)p * DTI_L,
                                *dp = d + (size_t)p * DTI_L;
                    float *sp = s + (size_t)p * r.sums_point + (size_t)(c * K) * DTI_L;
                    if (two == 2)
                        dti_line_weights(n, K, 2, g, now, vc, v_tile, dp, dm_tile, sp, r.sums_point, kernels,
                                         t0 > 0);
                    else
                        dti_line_weights(n, K, 1, g, now, vc, v_tile, dp, dm_tile, sp, r.sums_point, kernels,
                                         t0 > 0);
                }
            for (int p = 0; dw && t0 + now == tiles && p < n; ++p)
                dti_wino_fold(scratch + r.du + (size_t)p * r.du_point + (size_t)(o * g->C * K),
                              s + (size_t)p * r.sums_point, two * g->C * K);
        }
        for (int t = 0; dx && t < now; ++t)
            for (int i = 0; i < g->H; i += 2) {
                dti_line_products(n, K, g->C, g->O, g->P, i + g->pad - K + 1, dm + (size_t)t * dm_tile,
                                  packed + dti_whole_lines((size_t)(r.rows * n)), NULL, scratch + r.m);
                for (int c = 0; c < g->C; ++c)
                    dti_line_dx(n, scratch + r.m + (size_t)(c * 2) * line, dx, c, i, (t0 + t) * m - g->pad);
            }
    }
    if (db) dti_fold(db, bias, g->O);
    if (!dw) return;
    dti_wino_w_back(n, K, r.vectors, scratch + r.du, r.du_point, scratch + r.r, r.du_point, false);
    dti_turn(dw, K, scratch + r.r, (ptrdiff_t)r.du_point, K, r.rows);
}

/* F(4, 5) in lines. */
DTI_NOINLINE void dti_line_pack_45(const dti_conv *g, const float *w, float *packed)
{
    dti_line_pack(8, 5, g, w, packed);
}

DTI_NOINLINE void dti_line_forward_45(const dti_conv *g, const dti_wino_form *form, const dti_wino_maps *x,
                                      const float *packed, const float *b, bool relu, const dti_wino_maps *y,
                                      float *scratch)
{
    dti_line_forward(8, 4, 5, g, form, x, packed, b, relu, y, scratch);
}

DTI_NOINLINE void dti_line_backward_45(const dti_conv *g, const dti_wino_form *form, const dti_wino_maps *x,
                                       const dti_wino_maps *dy, const float *packed, const dti_wino_maps *dx,
                                       float *dw, float *db, float *scratch)
{
    dti_line_backward(8, 4, 5, g, form, x, dy, packed, dx, dw, db, scratch);
}

/* Floats of scratch for any pass over any number of groups. */
DTI_LOCAL size_t dti_wino_scratch_floats(const dti_conv *g, const dti_wino_form *form)
{
    const size_t n = (size_t)form->n;
    if (form->line_pack) return dti_line_room_of(g, form).end;
    const dti_wino_room r = dti_wino_room_of(g, form, DTI_WINO_CHUNK);
    return n * n * r.v + n * (r.m + r.z + r.turned + r.du + (size_t)form->K * r.r) +
           (size_t)g->O * DTI_L + 25 * 16;
}

#define DTI_LINE_ROW(n, m, K) \
    { \
        n, m, K, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, dti_line_pack_##m##K, \
            dti_line_forward_##m##K, dti_line_backward_##m##K \
    }
static const dti_wino_form dti_line_45 = DTI_LINE_ROW(8, 4, 5);
static const dti_wino_form dti_wino_forms[] = { DTI_WINO_ROW(4, 2, 3), DTI_WINO_ROW(6, 4, 3),
                                                DTI_WINO_ROW(8, 6, 3), DTI_WINO_ROW(6, 2, 5),
                                                DTI_WINO_ROW(8, 4, 5) };

/* F(m, K) in squares, or NULL if there is none. */
DTI_LOCAL const dti_wino_form *dti_wino_find(int m, int K)
{
    for (size_t k = 0; k < sizeof dti_wino_forms / sizeof *dti_wino_forms; ++k)
        if (dti_wino_forms[k].m == m && dti_wino_forms[k].K == K) return &dti_wino_forms[k];
    return NULL;
}

/* The rule: which F(m, K) a convolution goes by, or NULL for the direct kernels [E1.2]. It knows the shape
   alone, never the machine, the rank or the batch, so that the bits are the same everywhere.

   It is drawn from measurements. Percent of the peak, in the definition's multiply-adds, Winograd : direct,
   for C->O channels, kernel, map (3x3 kernels with a padding of 1); one core of a Zen 5 with 512-bit
   vectors, four lane groups, medians of 9 rounds on 1 December 2026 (`make bench`; figures/bench.csv has the
   ranges):

                         forward     backward-data   backward-weights   both backward passes in one
     10->20  k5 12x12    251 : 92      250 : 53         186 : 64              241
      6->16  k5 14x14    138 : 94      132 : 51         111 : 66              142
     32->32  k3  4x4     167 : 84      130 : 85         108 : 75              116
     16->160 k3 28x28    148 : 93      171 : 33         142 : 79              192
    160->160 k3 28x28    258 : 94      252 : 80         235 : 91              241
    320->320 k3 14x14    186 : 91      179 : 89         179 : 90              177
    640->640 k3  7x7     175 : 78      169 : 79         112 : 70              134

   A layer goes one way in all passes, for forward and both backward passes together decide. The transforms
   grow with C + O, the products that they save with C*O, so what decides is C*O / (C + O): at least 8 for 3x3
   kernels (16->16 channels, or 10->40), at least 4 for 5x5 (8->8, or 6->12). 5x5 kernels below that go in
   lines (in brackets the direct kernels, alone and with the pooling that follows in a net; p2: padding of
   2):

                             forward         backward-weights
      1->10  k5 28x28       85 (69, 62)        90 (50, 48)
      1->6   k5 28x28 p2    79 (54, 49)        83 (41, 39)

   3x3 kernels below it go direct: 8->8 k3 12x12 by squares got 76 % forward and 66 % backward, no more than
   the direct kernels of then. From 8->8 on 5x5 squares were as fast as lines, for 6->16 a fifth faster; for
   4->8 lines were faster. (These three are older: of earlier that day, and of direct kernels that had a tile
   for each height, which the present, simpler ones do not reach.)
   F(6,3) saves a fifth of F(4,3)'s products where 6
   divides the map, at twice its error; F(2,3) and F(2,5) save about half as much: they are here to be
   compared (chapter 4 draws all of them, speed against error). */
DTI_LOCAL const dti_wino_form *dti_wino_rule(const dti_conv *g)
{
    if (g->S != 1 || (g->K != 3 && g->K != 5) || g->P < 3 || g->Q < 3) return NULL;
    if ((double)g->C * g->O >= (g->K == 3 ? 8.0 : 4.0) * (g->C + g->O)) return dti_wino_find(4, g->K);
    return g->K == 5 ? &dti_line_45 : NULL;
}

/* Does a pass over one lane group leave the products with too few tiles for each weight? Then the net runs
   all its groups at once. Enough tiles are those of a register tile; or, where the weights of one point are
   more than 64 Ki floats (256 KiB), those of a whole chunk, which share one pass over them. */
DTI_LOCAL bool dti_wino_shares(const dti_conv *g, const dti_wino_form *form)
{
    return dti_wino_tiles(g, form) <
           ((double)g->C * g->O > 64 * 1024 ? DTI_WINO_CHUNK : dti_wino_machine.tiles);
}
#endif

/* ---- One convolution by a form of one's choice. Nets take the rule's; chapter 4 and whoever else wants to
   compare the forms takes each in turn. */
#ifdef DTI_DECLARE
/* dt_lane_conv                                                [E1.8]  chapter 4
     y[o,i,j,l] = sum_{c,u,v} x[c,i+u,j+v,l] * w[o,c,u,v]      sixteen images l side by side
     x (C,H,W,16)  w (O,C,K,K)  ->  y (O,P,Q,16), overwritten, no alias; P = H-K+1, Q = W-K+1; x and y at
     multiples of 64 bytes. 2*16*O*P*Q*C*K*K flop by the definition.
   form: 0 for the direct kernel [E1.3], m for F(m,K) as far as it is there: m = 2, 4, 6 with K = 3, m = 2, 4
   with K = 5. NULL and DT_EARG for another; DT_ESHAPE for sizes below 1, K above H or W, more than 2^26
   values in 16 images, or more weights than that; DT_ENOMEM.
   dt_lane_conv_pack takes the weights in, once for many calls; forward before it is DT_EARG. One thread at a
   time to each dt_lane_conv. */
typedef struct dt_lane_conv dt_lane_conv;
DT_API dt_lane_conv *dt_lane_conv_new(int C, int H, int W, int O, int K, int form);
DT_API dt_err dt_lane_conv_pack(dt_lane_conv *conv, const float *w);
DT_API dt_err dt_lane_conv_forward(dt_lane_conv *conv, const float *x, float *y);
DT_API void dt_lane_conv_free(dt_lane_conv *conv);
#endif

#ifdef DTI_IMPLEMENT
struct dt_lane_conv {
    dti_conv sizes;
    const dti_wino_form *form; /* NULL: direct */
    float *packed, *scratch;
    bool ready;                /* weights are packed */
};

DT_API dt_lane_conv *dt_lane_conv_new(int C, int H, int W, int O, int K, int form) {
    const double most = 1 << 26, P = (double)H - K + 1, Q = (double)W - K + 1;
    if (C < 1 || O < 1 || K < 1 || P < 1.0 || Q < 1.0 || 16.0 * C * H * W > most ||
        16.0 * O * P * Q > most || (double)O * C * K * K > most) {
        (void)dt_fail(DT_ESHAPE, "dt_lane_conv_new: no convolution of %d x %d x %d with %d x %d x %d x %d", C,
                      H, W, O, C, K, K);
        return NULL;
    }
    const dti_wino_form *found = form > 0 ? dti_wino_find(form, K) : NULL;
    if (form < 0 || (form > 0 && !found)) {
        (void)dt_fail(DT_EARG, "dt_lane_conv_new: there is no F(%d,%d)", form, K);
        return NULL;
    }
    dt_lane_conv *v = dti_alloc(sizeof *v);
    if (!v) return NULL;
    v->form = found;
    v->sizes = (dti_conv){ .C = C, .H = H, .W = W, .O = O, .P = H - K + 1, .Q = W - K + 1, .K = K, .S = 1 };
    v->packed = dti_alloc_many(found ? dti_wino_packed_floats(&v->sizes, found)
                                     : dti_conv_packed_floats(&v->sizes), sizeof(float));
    v->scratch = dti_alloc_many(found ? dti_wino_scratch_floats(&v->sizes, found)
                                      : dti_conv_scratch_floats(&v->sizes), sizeof(float));
    if (v->packed && v->scratch) return v;
    dt_lane_conv_free(v);
    return NULL;
}

DT_API dt_err dt_lane_conv_pack(dt_lane_conv *conv, const float *w) {
    DTI_NEED(conv && w, "conv and w", DT_EARG);
    if (conv->form) dti_wino_pack(&conv->sizes, conv->form, w, conv->packed);
    else dti_conv_pack(&conv->sizes, w, conv->packed);
    conv->ready = true;
    return DT_OK;
}

DT_API dt_err dt_lane_conv_forward(dt_lane_conv *conv, const float *x, float *y) {
    DTI_NEED(conv && x && y, "conv, x and y", DT_EARG);
    const dti_conv *g = &conv->sizes;
    if (!conv->ready) return dt_fail(DT_EARG, "dt_lane_conv_forward: dt_lane_conv_pack comes first");
    if (((uintptr_t)x | (uintptr_t)y) & 63u)
        return dt_fail(DT_EARG, "dt_lane_conv_forward: x and y must lie at multiples of 64 bytes");
    if (conv->form) {
        const dti_wino_maps in = { .at = (float *)(uintptr_t)x, .channels = g->C, .rows = g->H,
                                   .columns = g->W }; /* only read */
        const dti_wino_maps out = { .at = y, .channels = g->O, .rows = g->P, .columns = g->Q };
        dti_wino_forward(g, conv->form, 1, &in, conv->packed, NULL, false, &out, conv->scratch);
    } else dti_conv_forward(g, x, conv->packed, NULL, y, conv->scratch);
    return DT_OK;
}

DT_API void dt_lane_conv_free(dt_lane_conv *conv) {
    if (!conv) return;
    dti_release(conv->packed);
    dti_release(conv->scratch);
    dti_release(conv);
}
#endif

/* ==== [E1.9] The arithmetic beneath ========================================

   A training gives the same bits on one rank or on eight, with AVX2 or AVX-512. All of that counts on IEEE
   754: a sum keeps its order, NaN compares false, results round to nearest, and numbers below 2^-126 are not
   zero. Two things take that away without a word. The compiler, told -ffast-math or a part of it; [S1.1]
   refuses what shows in a macro. And the program: one that is linked with a library built with -Ofast starts
   with a processor that takes denormal numbers (those below 2^-126) for zero. So a net is built only after a
   few small sums whose results are known:

       who                        is asked                            where a wrong answer comes from
       dti_check_thread           1 + 2^-25, 2^-126 * 1/2 ..          the processor, as this thread has set it
       dti_broken_rule            sums, exact sums, exp, 41/41 ..     the compiler's flags
       dti_arithmetic_hash        the last bits of all of these       two builds that are right, but not alike

   The hash tells ranks, and a checkpoint from its run, that they do not round alike. To read:
   dti_check_arithmetic. */
#ifdef DTI_IMPLEMENT
static uint32_t dti_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

/* How this thread's processor is set; takes a few nanoseconds. volatile: for the processor to
   compute, not for the compiler. */
static dt_err dti_check_thread(void) {
    const volatile float least = 0x1p-126f, denormal = 0x1p-127f, half = 0.5f, one = 1.0f, bit = 0x1p-25f;
    const char *does = NULL;
    if (dti_bits(one + bit) != dti_bits(one) || dti_bits(one + 3.0f * bit) == dti_bits(one))
        does = "does not round to nearest";
    if (dti_bits(least * half) != dti_bits(denormal) || dti_bits(denormal / half) != dti_bits(least))
        does = "takes numbers below 2^-126 for zero, as linking a library built with -Ofast makes it do";
    if (!does) return DT_OK;
    return dt_fail(DT_ENUMERIC, "this thread's processor %s; call fesetenv(FE_DFL_ENV) first", does);
}

/* What the compiler made of this file: NULL, or the rule that it has broken. ones are all 1; they, 41 and 0
   come as arguments, so that the compiler does not know them and cannot compute at home. */
DTI_NOINLINE const char *dti_broken_rule(const float *ones, float forty_one, float zero) {
    static const struct { float x; int64_t fixed; } known[] = { /* fixed * 2^-40; two lie halfway between */
        { 0x1.99999ap-4f, 0x199999a000 }, { -0x1.8p-40f, -2 }, { 0x1p-41f, 0 },
        { -0x1.fffffep21f, -0x3fffffc000000000 } };
    enum { N = 19 };                         /* no multiple of 4, 8 or 16: vectors, and what is left over */
    float x[N], z[3 * DT_LANES], sum = 0x1p24f;
    int64_t fixed[N];
    for (size_t k = 0; k < sizeof known / sizeof *known; ++k) {
        for (int i = 0; i < N; ++i) x[i] = known[k].x * ones[i], fixed[i] = 7;
        if (dt_fixed_add(fixed, x, N, DT_FIXED_UNIT, INFINITY) != N) return "exact sums take what fits";
        for (int i = 0; i < N; ++i)
            if (fixed[i] != 7 + known[k].fixed) return "exact sums round to the nearest 2^-40";
    }
    for (int i = 0; i < N; ++i) x[i] = zero / zero, fixed[i] = 0;
    if (dt_fixed_add(fixed, x, N, DT_FIXED_UNIT, INFINITY) != 0) return "exact sums find a NaN";
    for (int i = 0; i < 3 * DT_LANES; ++i) z[i] = (float)(i / DT_LANES) * *ones;
    dti_log_softmax(3, z, z);
    for (int i = 0; i < 3 * DT_LANES; ++i)                      /* 2.4076059 = log(1 + e + e*e) */
        if (!(fabsf(z[i] - ((float)(i / DT_LANES) - 2.4076059f)) < 1e-6f)) return "exp and log of [S7.2]";
    for (int i = 0; i < N; ++i) sum += ones[i], x[i] = (ones[i] + 0x1p-25f) - ones[i];
    for (int i = 0; i < N; ++i)
        if (sum != 0x1p24f || x[i] != 0.0f) return "a sum keeps its order";
    for (int i = 0; i < N; ++i) x[i] = ones[i] * forty_one / 41.0f;
    for (int i = 0; i < N; ++i)                                 /* in floats, 41*(1/41) is not */
        if (x[i] != 1.0f) return "41/41 is 1";
    if (dti_bits(-zero + 0.0f) != 0 || (double)0.1f == 0.1) return "-0 + 0 is 0, and 0.1 is a double";
    return NULL;
}

static dt_err dti_check_arithmetic(void) {
    float ones[19];
    volatile float one = 1.0f, forty_one = 41.0f, zero = 0.0f;
    for (int i = 0; i < 19; ++i) ones[i] = one;
    DT_TRY(dti_check_thread());
    const char *rule = dti_broken_rule(ones, forty_one, zero);
    if (!rule) return DT_OK;
    return dt_fail(DT_ENUMERIC, "the compiler broke a rule of arithmetic (%s); compile dtrain.h "
                   "without -ffast-math and its parts", rule);
}

/* A hash of what may differ between two sound builds, or two machines, and then shows in a result's
   last bits: whether kernels fuse multiply and add, whether the compiler does so elsewhere
   (-ffp-contract), and the C library's logarithm. */
static uint64_t dti_arithmetic_hash(void) {
    float x[4 * DT_LANES], a[DTI_W];
    volatile float step = 0x1.23456p-4f;
    for (int i = 0; i < 4 * DT_LANES; ++i) x[i] = (float)(i * i % 61) * step;
    for (int i = 0; i < DTI_W; ++i) a[i] = x[i + 1];
    dti_v v;
    memcpy(&v, a, sizeof v);
    v = dti_fma(v, v, dti_splat(-step * step));
    memcpy(a, &v, sizeof v);
    dti_log_softmax(4, x, x);
    for (int i = 1; i < 4 * DT_LANES; ++i) x[i] = x[i] * x[i - 1] + x[i];
    return dt_hash(x, sizeof x, dt_hash(a, sizeof *a, (uint64_t)FLT_EVAL_METHOD));
}
#endif

/* ==== [E1.10] Into lanes ==================================================

   A data set holds one image after the other, as bytes; a kernel [E1.1] wants sixteen images side by side, as
   floats. Each image of each batch passes through here, so the way is short:

       bytes of 16 images  [16][C H W]     those of the data set
         -- dti_alter -->  [16][C H W]     only if the images are to be altered [S4.6]: turned, scaled,
                                           slanted, mirrored (dti_move_pixels), then brightness, contrast and
                                           saturation (dti_blend, dti_saturate)
         -- dti_pack_lanes --> [C H W][16] floats, each byte times a plus b [S4.7]

   What is gained: byte by byte each of the sixteen rows would be read in steps of one and written in steps of
   64 bytes; here a 16 x 16 block of bytes is transposed in registers and leaves as whole vectors. Each
   function stays one of its own: where the compiler puts all of them into their caller, packing is a quarter
   slower. To read: dti_pack_lanes; then dti_alter. */
#ifdef DTI_IMPLEMENT
/* out[i][lane] = row[lane][offset+i] * a + b for i < n: sixteen rows of bytes turned into lanes. Sixteen
   bytes of each row make a 16 x 16 block; four rounds of interleaving transpose it, 16 instructions a
   round. */
#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 12)
typedef uint8_t dti_sixteen __attribute__((vector_size(16)));

/* t[l][k] -> t[k][l], 16 x 16 bytes. Each round interleaves vector k with vector k + 8. */
DTI_INLINE void dti_transpose_bytes(dti_sixteen t[DT_LANES]) {
    dti_sixteen u[DT_LANES];
    for (int round = 0; round < 4; ++round) {
        for (int k = 0; k < 8; ++k) {
            u[2 * k] = __builtin_shufflevector(t[k], t[k + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                               21, 6, 22, 7, 23);
            u[2 * k + 1] = __builtin_shufflevector(t[k], t[k + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                                   28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(t, u, sizeof u);
    }
}
#endif

DTI_NOINLINE void dti_pack_lanes(const uint8_t *const row[DT_LANES], size_t n, size_t offset, float a,
                           float b, float *restrict out) {
    size_t i = 0;
#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 12)
    for (; i + DT_LANES <= n; i += DT_LANES) {
        dti_sixteen t[DT_LANES];
        for (int l = 0; l < DT_LANES; ++l) memcpy(&t[l], row[l] + offset + i, sizeof t[l]);
        dti_transpose_bytes(t);
        for (size_t k = 0; k < DT_LANES; ++k)
            for (int l = 0; l < DT_LANES; ++l)
                out[(i + k) * DT_LANES + (size_t)l] = dti_fmaf((float)t[k][l], a, b);
    }
#endif
    for (; i < n; ++i)
        for (int l = 0; l < DT_LANES; ++l)
            out[i * DT_LANES + (size_t)l] = dti_fmaf((float)row[l][offset + i], a, b);
}

/* The same of floats. */
DTI_NOINLINE void dti_pack_floats(const float *const row[DT_LANES], size_t n, size_t offset, float a,
                            float b, float *restrict out) {
    for (size_t i = 0; i < n; ++i)
        for (int l = 0; l < DT_LANES; ++l)
            out[i * DT_LANES + (size_t)l] = dti_fmaf(row[l][offset + i], a, b);
}

/* Of the point (x,y): x' = (m[0] x + m[1] y + m[2]) >> 16, y' likewise from m[3..5]. Sides are at
   most DTI_AUGMENT_SIDE, factors at most 8, so that no sum leaves 32 bits. */
typedef struct dti_plane_map { int32_t m[6]; } dti_plane_map;

/* The inverse map x' = a (x - W/2) + b (y - H/2) + W/2, y' = c (x - W/2) + d (y - H/2) + H/2 in 16
   binary places, for x and y that count pixels: 1/2 is added on the way in, dropped on the way out. */
static dti_plane_map dti_map_about_centre(double a, double b, double c, double d, int H, int W) {
    const double x = 0.5 - 0.5 * W, y = 0.5 - 0.5 * H;
    const double m[6] = { a, b, a * x + b * y + 0.5 * W, c, d, c * x + d * y + 0.5 * H };
    dti_plane_map map;
    for (int k = 0; k < 6; ++k) map.m[k] = (int32_t)floor(m[k] * 65536.0 + 0.5);
    return map;
}

DTI_INLINE int32_t dti_within(int32_t x, int32_t sides) {
    return x < 0 ? 0 : x >= sides ? sides - 1 : x;
}

/* Where in a plane the n pixels (x,y), (x+1,y), ... come from; inside is -1, or 0 for those from beyond the
   edge. The way goes back from the altered image to the given one: the affine map comes first (x2, within
   the image x1), as it was the last to be applied, then the rotation (xr, within it x0), then the mirror.
   Nothing in the loop branches: what lies outside is brought to the edge and goes on; so it becomes vector
   code. */
static void dti_trace_row(const dti_plane_map *affine, const dti_plane_map *rotation, bool flip, int H, int W,
                          int x, int y, int n, int32_t *restrict from,
                          int32_t *restrict inside) {
    const int32_t *m = affine->m, r[6] = { rotation->m[0], rotation->m[1], rotation->m[2],
                                           rotation->m[3], rotation->m[4], rotation->m[5] };
    const int32_t right = m[0], down = m[3], start_x = m[0] * x + m[1] * y + m[2],
                  start_y = m[3] * x + m[4] * y + m[5];
    const int32_t first = flip ? W - 1 : 0, step = flip ? -1 : 1;
    for (int i = 0; i < n; ++i) {
        const int32_t x2 = (right * i + start_x) >> 16, y2 = (down * i + start_y) >> 16;
        const int32_t x1 = dti_within(x2, W), y1 = dti_within(y2, H);
        const int32_t xr = (r[0] * x1 + r[1] * y1 + r[2]) >> 16,
                      yr = (r[3] * x1 + r[4] * y1 + r[5]) >> 16;
        const int32_t x0 = dti_within(xr, W), y0 = dti_within(yr, H);
        const int32_t moved = (x1 ^ x2) | (y1 ^ y2) | (x0 ^ xr) | (y0 ^ yr);
        from[i] = y0 * W + first + step * x0;
        inside[i] = moved ? 0 : -1;
    }
}

/* An image through both maps and the mirror, 64 pixels of a row at a time: where they come from, then the
   bytes of all channels. What comes from outside is 0. */
static void dti_move_pixels(const dti_alteration *a, int C, int H, int W, const uint8_t *in,
                            uint8_t *out) {
    enum { PIECE = 64 }; /* pixels of a row at a time */
    const double degree = 3.14159265358979323846 / 180.0, cosine = cos(a->angle * degree),
                 sine = sin(a->angle * degree), slope = tan(a->shear * degree);
    const dti_plane_map affine = dti_map_about_centre(1.0 / a->scale, slope / a->scale, 0.0,
                                                1.0 / a->scale, H, W),
                  rotation = dti_map_about_centre(cosine, -sine, sine, cosine, H, W);
    const size_t plane = (size_t)H * (size_t)W;
    int32_t from[PIECE], inside[PIECE];
    for (int y = 0; y < H; ++y)
        for (int x = 0; x < W; x += PIECE) {
            const int n = W - x < PIECE ? W - x : PIECE;
            uint8_t *to = out + (size_t)y * (size_t)W + (size_t)x;
            dti_trace_row(&affine, &rotation, a->flip, H, W, x, y, n, from, inside);
            for (size_t c = 0; c < (size_t)C; ++c)
                for (int i = 0; i < n; ++i) /* no branch here either: what is outside reads pixel 0 */
                    to[c * plane + (size_t)i] =
                        (uint8_t)(in[c * plane + (size_t)(from[i] & inside[i])] & inside[i]);
        }
}

/* Left and right exchanged. */
static void dti_mirror(int C, int H, int W, const uint8_t *in, uint8_t *out) {
    const size_t rows = (size_t)C * (size_t)H, w = (size_t)W;
    for (size_t y = 0; y < rows; ++y)
        for (size_t x = 0; x < w; ++x) out[y * w + x] = in[y * w + w - 1 - x];
}

/* clip(d + f (x - d)) to 0 .. 255, its fraction dropped: x moved away from d, or towards it. */
DTI_INLINE uint8_t dti_mix(float f, int x, int d) {
    const float mixed = (float)d + f * (float)(x - d), low = mixed > 0.0f ? mixed : 0.0f;
    return (uint8_t)(int)(low < 255.0f ? low : 255.0f);
}

static void dti_blend(uint8_t *x, size_t n, float f, int d) {
    for (size_t i = 0; i < n; ++i) x[i] = dti_mix(f, x[i], d);
}

/* A pixel's grey: 0.299 red + 0.587 green + 0.114 blue, in 16 binary places, rounded. */
DTI_INLINE int dti_grey(int red, int green, int blue) {
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

static int dti_mean_grey(const uint8_t *x, size_t plane, int C) {
    uint64_t sum = 0;
    for (size_t i = 0; i < plane; ++i)
        sum += C == 3 ? (uint64_t)dti_grey(x[i], x[i + plane], x[i + 2 * plane]) : x[i];
    return (int)((2 * sum + plane) / (2 * plane)); /* rounded */
}

static void dti_saturate(uint8_t *restrict red, uint8_t *restrict green, uint8_t *restrict blue,
                         size_t n, float f) {
    for (size_t i = 0; i < n; ++i) {
        const int grey = dti_grey(red[i], green[i], blue[i]);
        red[i] = dti_mix(f, red[i], grey);
        green[i] = dti_mix(f, green[i], grey);
        blue[i] = dti_mix(f, blue[i], grey);
    }
}

/* One image (C,H,W) into another; no alias. A factor of 1 changes nothing. orders: in which brightness 0,
   contrast 1 and saturation 2 come, as a->order says. Brightness mixes with black, contrast with the image's
   mean grey, saturation with each pixel's own. */
DTI_NOINLINE void dti_alter(const dti_alteration *a, int C, int H, int W, const uint8_t *in,
                      uint8_t *out) {
    static const uint8_t orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                          { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    const size_t plane = (size_t)H * (size_t)W, image = plane * (size_t)C;
    if (a->angle != 0.0 || a->scale != 1.0 || a->shear != 0.0)
        dti_move_pixels(a, C, H, W, in, out);
    else if (a->flip) dti_mirror(C, H, W, in, out);
    else memcpy(out, in, image);
    for (int k = 0; k < 3; ++k) {
        const int what = orders[a->order][k];
        const float f = a->factor[what];
        if (f == 1.0f) continue;
        if (what == 0) dti_blend(out, image, f, 0);
        if (what == 1) dti_blend(out, image, f, dti_mean_grey(out, plane, C));
        /* grey has no colour to lose */
        if (what == 2 && C == 3) dti_saturate(out, out + plane, out + 2 * plane, plane, f);
    }
}
#endif

/* ==== [E1.11] Integers for exact sums ======================================

   A sum of floats depends on the order of its terms, a sum of integers does not; so what ranks add up is
   integers. [S3.2] and [S3.3] say why and which; here is the arithmetic, in three parts:

       a unit's sums    x -> round(x / unit), added to an int64_t     dt_fixed_add, dti_fixed_add
       wide sums        x -> ten limbs of 45 bits                     dti_wide_add, dti_wide_value
       a net's units    which unit each tensor of gradients has       dti_units_follow, dti_unit_for

   Each float of a gradient is rounded once a step for every lane group, so the first wants vector
   instructions: eight floats at a time with AVX-512, and elsewhere an addition of 1.5 * 2^52, of which
   compilers make vector code. The second is for a few sums a channel and takes some 40 ns a term. To read:
   dti_round_to_fixed, then dti_wide_add. */
#ifdef DTI_IMPLEMENT
#define DTI_UNIT_LEAST 0x1p-126f /* 1 / unit is a float, and so is 2^62 units */
#define DTI_UNIT_MOST 0x1p65f

static dt_err dti_check_unit(const char *who, float unit) {
    int exponent;
    if (unit >= DTI_UNIT_LEAST && unit <= DTI_UNIT_MOST && frexpf(unit, &exponent) == 0.5f)
        return DT_OK;
    return dt_fail(DT_EARG, "%s: a unit of %g; needs a power of two, 2^-126 .. 2^65", who,
                   (double)unit);
}

/* the smallest k with 2^k >= terms */
static int dti_log2_terms(size_t terms) {
    int k = 0;
    while (k < 62 && ((size_t)1 << k) < terms) ++k;
    return k;
}

DT_API float dt_fixed_limit(size_t terms, float unit) {
    if (dti_check_unit(__func__, unit) != DT_OK) return 0.0f;
    return ldexpf(unit, 62 - dti_log2_terms(terms));
}

/* The unit in which a sum of that size, of 2^k terms, has room above and below: 2^(45-k/2) to 2^(46-k/2)
   units, in the middle between what a share may be at most, 2^(62-k), and the 2^30 that dti_unit_suits
   wants. */
static float dti_unit_for(double size, int k) {
    int exponent;
    (void)frexp(size, &exponent);
    const float unit = (float)ldexp(1.0, exponent - (46 - k / 2));
    return unit < DTI_UNIT_LEAST ? DTI_UNIT_LEAST : unit < DTI_UNIT_MOST ? unit : DTI_UNIT_MOST;
}

/* Whether so many units are enough: a sum of zeros, or one that keeps its digits. */
static bool dti_unit_suits(float unit, int64_t size) {
    return size == 0 || size >= (int64_t)1 << 30 || unit <= DTI_UNIT_LEAST;
}

DT_API size_t dt_fixed_add(int64_t *sum, const float *x, size_t n, float unit, float limit) {
    DTI_NEED((sum && x) || n == 0, "sum and x", 0);
    if (dti_check_unit(__func__, unit) != DT_OK) return 0;
    if (limit > dt_fixed_limit(1, unit)) limit = dt_fixed_limit(1, unit);
    size_t done = 0;
    while (done < n) { /* in blocks, so that the test costs one branch a block */
        size_t block = dti_min_size(n - done, 512);
        if (!(dti_fixed_add(sum + done, x + done, block, unit) < limit))
            for (size_t i = done; i < done + block; ++i)
                if (!(fabsf(x[i]) < limit)) return i;
        done += block;
    }
    return n;
}

DT_API void dt_fixed_to_float(float *out, const int64_t *sum, size_t n, float unit) {
    DTI_NEED((out && sum) || n == 0, "out and sum", );
    if (dti_check_unit(__func__, unit) != DT_OK) return;
    for (size_t i = 0; i < n; ++i) out[i] = (float)((double)sum[i] * (double)unit);
}
/* x / unit is exact in double. Adding 1.5*2^52 to a double of magnitude below 2^51 leaves its nearest
   integer in the low bits of the sum: a conversion that every machine has as plain vector adds. The
   range is made by splitting: hi = x rounded to a multiple of 2^24 units, lo = the rest, both exact. */
DTI_INLINE int64_t dti_round_to_fixed(float x, double per_unit) {
    const double magic = 0x1.8p52, upper = (double)x * (per_unit * 0x1p-24);
    double hi = (upper + magic) - magic;
    double lo = (upper - hi) * 0x1p24 + magic;
    double big = hi + magic;
    int64_t h, l, m;
    memcpy(&h, &big, 8);
    memcpy(&l, &lo, 8);
    memcpy(&m, &magic, 8);
    /* unsigned: what is too large may wrap */
    return (int64_t)((((uint64_t)h - (uint64_t)m) << 24) + ((uint64_t)l - (uint64_t)m));
}

/* sum[i] += fixed(x[i]). Returns the largest |x[i]|, a NaN or infinity if there is one: the bits of
   |x|, taken as integers, are ordered as the numbers are, and NaNs come last. AVX-512 converts
   floats to 64-bit integers itself, rounding to nearest even as the two steps above do: x / unit is
   exact as a float, or far below half a unit, so both give the same integer. */
#if defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__GNUC__)
#include <immintrin.h>
#define DTI_FIXED_EIGHT
#endif
static float dti_fixed_add(int64_t *sum, const float *x, size_t n, float unit) {
    const float per_unit = 1.0f / unit;
    uint32_t most = 0;
    float largest;
    size_t i = 0;
#ifdef DTI_FIXED_EIGHT
    const __m256 scale = _mm256_set1_ps(per_unit);
    const __m256i size = _mm256_set1_epi32(INT32_MAX); /* all bits but the sign */
    __m256i eight = _mm256_setzero_si256();
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        eight = _mm256_max_epu32(eight, _mm256_and_si256(_mm256_castps_si256(v), size));
        _mm512_storeu_si512(sum + i, _mm512_add_epi64(_mm512_loadu_si512(sum + i),
                                                      _mm512_cvtps_epi64(_mm256_mul_ps(v, scale))));
    }
    uint32_t lane[8];
    memcpy(lane, &eight, sizeof lane);
    for (int k = 0; k < 8; ++k) most = lane[k] > most ? lane[k] : most;
#endif
    for (; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= INT32_MAX;
        most = bits > most ? bits : most;
        sum[i] =
            (int64_t)((uint64_t)sum[i] + (uint64_t)dti_round_to_fixed(x[i], (double)per_unit));
    }
    memcpy(&largest, &most, sizeof largest);
    return largest;
}

/* Limbs from..to, and further while anything moves, hand on what they hold beyond low .. low+2^45-1 to the
   next one. The last limb keeps all. low: -2^44 while terms are added, 0 for a value's digits. */
DTI_INLINE void dti_wide_carry(int64_t *limb, int from, int to, int64_t low) {
    const int64_t shift = (int64_t)1 << 62; /* a multiple of 2^45: what is divided is not below 0 */
    for (int i = from; i < DTI_WIDE - 1; ++i) {
        const uint64_t above = (uint64_t)(limb[i] - low + shift);
        const int64_t carry = (int64_t)(above >> DTI_WIDE_BITS) - (shift >> DTI_WIDE_BITS);
        if (carry == 0 && i >= to) return;
        limb[i] -= carry * ((int64_t)1 << DTI_WIDE_BITS);
        limb[i + 1] += carry;
    }
}

/* limb[0..DTI_WIDE-1] += x; ten zeros are an empty sum. False, and nothing added, if x is not
   finite or too large. */
DTI_LOCAL bool dti_wide_add(int64_t *limb, double x) {
    if (!(fabs(x) < 0x1p260)) return false;
    const double units = rint(fabs(x) * 0x1p149); /* below 2^409; exact but for this rounding */
    if (units == 0.0) return true;
    uint64_t digits; /* IEEE 754: units = (2^52 + the low 52 bits) * 2^(the high bits - 1075) */
    memcpy(&digits, &units, sizeof digits);
    const int exponent = (int)(digits >> 52) - 1075;
    digits = (digits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1 << 52;
    if (exponent < 0) digits >>= -exponent; /* an integer, so only zeros go */
    const int place = exponent < 0 ? 0 : exponent;
    const int at = place / DTI_WIDE_BITS, up = place % DTI_WIDE_BITS, down = DTI_WIDE_BITS - up;
    const uint64_t mask = ((uint64_t)1 << DTI_WIDE_BITS) - 1;
    const int64_t part[3] = { (int64_t)(digits << up & mask), (int64_t)(digits >> down & mask),
                              (int64_t)(digits >> down >> DTI_WIDE_BITS) };
    for (int i = 0; i < 3; ++i) limb[at + i] += x < 0.0 ? -part[i] : part[i];
    dti_wide_carry(limb, at, at + 3, -((int64_t)1 << (DTI_WIDE_BITS - 1)));
    return true;
}

/* The sum as the nearest double, in the middle the even one, rounded this once. The limbs stay as
   they are. */
DTI_LOCAL double dti_wide_value(const int64_t *limbs) {
    enum { MOST = 62 }; /* more than a double's 53, and an int64_t holds them */
    int64_t limb[DTI_WIDE];
    memcpy(limb, limbs, sizeof limb);
    dti_wide_carry(limb, 0, DTI_WIDE, 0); /* now only the last limb can be below 0 */
    const bool negative = limb[DTI_WIDE - 1] < 0;
    for (int i = 0; negative && i < DTI_WIDE; ++i) limb[i] = -limb[i];
    dti_wide_carry(limb, 0, DTI_WIDE, 0); /* now none is */
    int top = DTI_WIDE - 1, have = 0;
    while (top > 0 && limb[top] == 0) --top;
    int64_t digits = limb[top];
    while (digits >> have) ++have;
    /* The first 62 bits go into one integer, and its last bit says whether anything lies below
       them. To round that integer to 53 bits is then to round all of the sum. */
    int exponent = DTI_WIDE_BITS * top - 149;
    bool below = false;
    for (int i = top; i-- > 0;) {
        const int take = DTI_WIDE_BITS < MOST - have ? DTI_WIDE_BITS : MOST - have;
        const int left = DTI_WIDE_BITS - take;
        digits = digits << take | limb[i] >> left;
        below = below || (limb[i] & (((int64_t)1 << left) - 1)) != 0;
        have += take;
        exponent -= take;
    }
    const double size = ldexp((double)(digits | below), exponent);
    return negative ? -size : size;
}

/* ---- A net's units, as [S8.6] tells it. */
static int dti_log2_groups(const dt_net *net) {
    return dti_log2_terms((net->batch.global_count + DT_LANES - 1) / DT_LANES);
}

static int dti_limit_bits(const dt_net *net) { return 62 - dti_log2_groups(net); }

static dt_err dti_bad_gradient(const dt_net *net, const dt_param *p, const float *share) {
    size_t worst = 0;
    for (size_t k = 0; k < dt_tensor_count(&p->value); ++k)
        if (!(fabsf(share[k]) <= fabsf(share[worst]))) worst = k;
    return dt_fail(DT_ENUMERIC,
                   "gradient of %s[%zu] is %g, which an exact sum cannot hold; a lane group's "
                   "share may be %g here",
                   p->name, worst, (double)share[worst],
                   ldexp((double)p->unit, 62 - dti_log2_groups(net)));
}

/* A number that two ranks share only if all of their units are alike. */
static int64_t dti_units_number(const dt_net *net) {
    uint64_t hash = 0;
    for (int i = 0; i < net->params; ++i)
        hash = dt_hash(&net->param[i].unit, sizeof net->param[i].unit, hash);
    return (int64_t)(hash >> 32);
}

/* Back to the units with which all ranks began the step; true if they were others. */
static bool dti_units_begin(dt_net *net) {
    bool others = false;
    for (int i = 0; i < net->params; ++i) {
        others = others || net->param[i].unit != net->first_unit[i];
        net->param[i].unit = net->first_unit[i];
    }
    return others;
}

static bool dti_units_suit(const dt_net *net) {
    bool suit = net->head[DTI_MISFITS] == 0;
    for (int i = 0; i < net->params; ++i)
        suit = suit && dti_unit_suits(net->param[i].unit, net->head[DTI_SIZES + i]);
    return suit || net->desc.unit != 0.0f;
}

/* For the step after this one. A tensor of zeros keeps its unit. */
static void dti_units_follow(dt_net *net) {
    for (int i = 0; i < net->params; ++i) {
        const int64_t size = net->head[DTI_SIZES + i];
        const float unit = net->param[i].unit;
        net->next_unit[i] = size > 0 && net->desc.unit == 0.0f
                                 ? dti_unit_for((double)size * (double)unit, dti_log2_groups(net))
                                 : unit;
    }
}

/* For this step again. */
static void dti_units_anew(dt_net *net) {
    for (int i = 0; i < net->params; ++i)
        if (net->largest[i] > 0.0f)
            net->param[i].unit =
                dti_unit_for((double)net->largest[i], dti_log2_groups(net));
    ++net->retaken;
}

/* The error for a share that fits no unit: 2^126 and more. */
static dt_err dti_no_unit(const dt_net *net) {
    int worst = 0;
    for (int i = 0; i < net->params; ++i)
        if (net->largest[i] > net->largest[worst]) worst = i;
    return dt_fail(DT_ENUMERIC, "gradient of %s is up to %g here, and too large for an exact sum",
                   net->param[worst].name, (double)net->largest[worst]);
}

/* The integers' sums as floats, once a step: what an optimizer reads. */
static void dti_gradient_to_floats(dt_net *net) {
    for (int i = 0; i < net->params; ++i) {
        const dt_param *p = &net->param[i];
        const size_t n = dt_tensor_count(&p->value);
        const bool fits = net->largest[i] < ldexpf(p->unit, 62 - dti_log2_groups(net));
        if (!p->trained || net->desc.float_sums) continue;
        dt_fixed_to_float(p->grad.data, net->fixed + p->offset, n, p->unit);
        /* a share of several ranks' batch; dt_average_gradients [S11.1] makes it good */
        for (size_t k = 0; k < n && !fits; ++k) p->grad.data[k] = NAN;
    }
}
#endif

/* ==== [E2] Shared memory and waiting =======================================

   How ranks add their vectors, and what one does while another has not come yet. The plain way to wait, to
   test again and again, holds the core that another rank needs in order to arrive: three ranks on two cores
   then take turns at the system's pace, milliseconds. To sleep at once is late by the time it takes to wake,
   tens of microseconds, in every one of the hundreds of waits of a second. Here a rank that waits knows how
   many others wait on its core, and spins, yields or sleeps accordingly [E2.3]. All collectives, be they
   messages, shared memory or MPI's own, are carried out by one loop [E2.4].

       dt_allreduce_start   puts a flight into a slot            flights  [5][6][7][ ][ ] ...   in order
       dt_allreduce_wait    dti_flight_wait: until it has landed,
           dti_progress         brings every flight forward as far as it goes now:
               dti_steps_progress     by messages, a step at a time, as its schedule [S10.3] says
               dti_shared_progress    by memory: written, added, read, each chunk by chunk
               dti_mpi_reduce_test    by MPI itself [E3.2]
           dti_comm_idle        nothing moved: spins, yields or sleeps, and looks whether all still live [E4]

   Where all ranks are on one host they share a block of memory (dti_comm_block [E2.1]):

       places          one for each core: which ranks wait there, and what wakes them        [E2.3]
       locks           for a chunk that several ranks add to: a lock for each part of it     [E2.4]
       line 0 .. p-1   of each rank, which alone writes it: how many chunks it has written, added, read
       chunks          DTI_DEPTH of each rank, used in turn: pieces of the vectors that are being added

   To read: dti_comm_idle, then dti_flight_wait, then one of the three ways, such as dti_shared_progress;
   [E2.5] for how threads send each other messages. */

/* ==== [E2.1] The communicator's parts ======================================

   A dt_comm [S10.1] is one struct for every backend, with a stretch for each room that works with it. A
   backend is four functions: start a message, see whether it is through, stop the job, close. To read:
   dt_comm, then dti_flight, which is one collective on its way [E2.4]. */
#ifdef DTI_IMPLEMENT
#include <stdatomic.h>
#ifdef DTI_RANKS
#include <sched.h>
#include <sys/select.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__linux__) && defined(__LP64__) && (defined(_DEFAULT_SOURCE) || defined(_GNU_SOURCE))
#include <sys/syscall.h>
/* sleep until another process says so; elsewhere ranks look again every 50 microseconds */
#define DTI_HAS_FUTEX
#endif
#endif
#ifdef DTRAIN_WITH_THREADS
#include <pthread.h>
#endif
#ifdef DTRAIN_WITH_MPI
#include <mpi.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#endif

enum {
    DTI_FLIGHTS = 32,                 /* collectives in flight at once */
    DTI_DEPTH   = 4,                  /* chunks of shared memory a rank may be ahead of the slowest reader */
    DTI_CHUNK   = 256 * 1024,         /* bytes of a chunk; less where very many ranks share a host */
    DTI_LOCKS   = 4,                  /* parts of a chunk that different ranks can add to at the same time */
    DTI_PLACES  = 64,                 /* cores that can be told apart by those who wait */
    DTI_HOST    = 64
};

/* Messages between threads [E2.5]. A letter is the sender's, one for each lane; a box is the receiver's. */
typedef struct dti_letter {
    _Alignas(64) _Atomic int taken;   /* the receiver has copied it */
    int         from, lane, tag;
    const void *buf;
    size_t      bytes;
    struct dti_letter *next;          /* in the box, then in the receiver's own list */
} dti_letter;

typedef struct dti_mailbox { _Alignas(64) _Atomic(dti_letter *) first; } dti_mailbox;

typedef struct dti_message {
    void  *buf;
    size_t bytes;
    int    peer, lane, tag;           /* lane: its flight's slot, or DTI_FLIGHTS for dt_send and dt_recv */
    bool   incoming, pending;
#ifdef DTRAIN_WITH_MPI
    MPI_Request mpi;
#endif
} dti_message;

typedef struct dti_buffer { char *memory; size_t bytes; } dti_buffer;

/* A collective that has been started. Every rank starts the same ones in the same order, so that its
   number means the same on every rank. Flight number i lives in slot i % DTI_FLIGHTS. */
typedef struct dti_flight {
    uint64_t      number;             /* 0: the slot is free */
    dt_allreduce_desc d;
    size_t        size;               /* bytes of an element */
    int           rank;               /* as the schedule numbers us: counted from the root in a broadcast */
    dti_schedule *schedule;           /* by steps, where not NULL */
    int           k;
    bool          in_step;
    dt_step       step;
    dti_message   in, out;
    dti_buffer    scratch;            /* where values arrive that are to be added */
    uint64_t      first, last;        /* DT_SHARED: its chunks [first, last) */
#ifdef DTRAIN_WITH_MPI
    MPI_Request   mpi;                /* DT_MPI */
#endif
} dti_flight;

/* What a rank shows to the others of its host: how many chunks it has written, added up, and read. Only it
   writes here. */
typedef struct dti_comm_line {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t added;
    _Alignas(64) _Atomic uint64_t read;
} dti_comm_line;

/* Where ranks wait for one another: at place 0, until training gives each core one of its own [S11.3]. */
typedef struct dti_place {
    _Alignas(64) _Atomic uint32_t event; /* counts the moments at which sleepers are woken */
    _Atomic uint32_t ranks;           /* that belong here */
    _Atomic uint64_t asleep;          /* of them: a bit for each, taken away by who wakes it */
} dti_place;

/* A part of a chunk that ranks add to one after the other: a lock, and the number of the chunk in it, plus
   one. */
typedef struct dti_lock {
    _Alignas(64) _Atomic uint32_t held;
    uint64_t chunk;
} dti_lock;

/* Memory through which all ranks reduce: this, then a line for each rank, then DTI_DEPTH chunks for each
   rank. Processes map it at different addresses, so it holds no pointers. */
typedef struct dti_comm_block {
    _Alignas(64) size_t chunk;        /* bytes */
    bool together;                    /* integers are added in one chunk, by the ranks in turn */
    _Atomic uint32_t places;          /* of which that many are in use */
    dti_place place[DTI_PLACES];
    dti_lock lock[DTI_DEPTH][DTI_LOCKS];
} dti_comm_block;

typedef struct dti_interval { const char *name; double start, end; } dti_interval;

typedef struct dti_backend {
    const char *name;
    dt_err (*post)(dt_comm *comm, dti_message *m);       /* starts a message */
    dt_err (*test)(dt_comm *comm, dti_message *m);       /* clears m->pending when it is through */
    void   (*stop)(dt_comm *comm, int exit_code);
    void   (*close)(dt_comm *comm);
} dti_backend;

/* What every rank knows of its group. What only one room works with, it keeps in a struct of its own. */
struct dt_comm {
    const dti_backend *backend;
    int rank, size, here, hosts;            /* here: how many ranks share this host */
    int away;                               /* the number of our host; rank 0 is on number 0 */
    int seat;                               /* our place among the ranks of this host */
    char (*host)[DTI_HOST];                 /* of each rank */
    uint64_t *compared;                     /* two hashes of each rank: dt_comm_same [E4.3] */
    dt_algorithm algorithm;                 /* what DT_AUTO means; DT_AUTO: the best */
    dt_comm_cost cost;
    struct dti_signs *signs;                /* our signs of life, and who looks after them [E4.1] */
    struct dti_mpi_group *mpi;              /* NULL: the ranks are no processes [E3.1] */
    dti_mailbox *boxes;                     /* threads: one for each rank */
    dti_letter *letters;                    /* ours to send: one for each lane */
    dti_letter *arrived;                    /* taken from our box and not yet expected */
    struct dti_board *alone;                /* the board of a rank that has it for itself */
    /* waiting [E2.3] */
    int spins, yields[2];                   /* tests before the first yield; before the first sleep, for
                                               messages and for memory */
    bool wait_auto;                         /* nobody asked for another way to wait */
    uint64_t ticks;                         /* tests that found nothing */
    int place;                              /* where we wait: 1 + our core, or 0 */
    uint32_t event;                         /* of that place, before the last test */
    /* collectives in flight [E2.4] */
    uint64_t started, finished;             /* 1..finished are over, started is the newest */
    dti_flight flights[DTI_FLIGHTS];
    dti_buffer spare[DTI_FLIGHTS];          /* a stack: [taken ..) are free, kept for later flights */
    int taken;
    dti_comm_block *block;                  /* NULL: not all ranks share memory */
    bool on_memory;                         /* what is waited for comes through it, not as a message */
    uint64_t chunks, written, added, read;  /* chunks given to flights; and our own line's counts */
    uint32_t given;                         /* a bit for each part of chunk `written` with our numbers */
    /* traces [E5.2] */
    double trace_zero;
    dti_interval *trace;
    size_t traced, trace_most, untraced;
};

static dti_comm_line *dti_line_of(const dt_comm *c, int rank) {
    return (dti_comm_line *)(void *)(c->block + 1) + rank;
}

static char *dti_chunk_of(const dt_comm *c, int rank, uint64_t chunk) {
    size_t index = (size_t)rank * DTI_DEPTH + (size_t)(chunk % DTI_DEPTH);
    return (char *)dti_line_of(c, c->size) + index * c->block->chunk;
}

static size_t dti_block_chunk(int p) {
    /* containers have 64 MB of shared memory */
    size_t most = (size_t)32 * 1024 * 1024 / DTI_DEPTH / (size_t)p / 4096 * 4096;
    return most < 4096 ? 4096 : most < DTI_CHUNK ? most : DTI_CHUNK;
}

static size_t dti_block_bytes(int p) {
    return sizeof(dti_comm_block) + (size_t)p * (sizeof(dti_comm_line) + DTI_DEPTH * dti_block_chunk(p));
}

DT_API int dt_comm_rank(const dt_comm *c) { DTI_NEED(c, "comm", 0); return c->rank; }
DT_API int dt_comm_size(const dt_comm *c) { DTI_NEED(c, "comm", 0); return c->size; }
DT_API int dt_comm_hosts(const dt_comm *c) { DTI_NEED(c, "comm", 0); return c->hosts; }
DT_API const char *dt_comm_backend_name(const dt_comm *c) {
    DTI_NEED(c, "comm", "?");
    return c->backend->name;
}
DT_API dt_comm_cost dt_comm_times(const dt_comm *c) {
    DTI_NEED(c, "comm", ((dt_comm_cost){ .wait = 0.0 }));
    return c->cost;
}
DT_API void dt_comm_abort(dt_comm *c, int exit_code) {
    DTI_NEED(c, "comm", );
    c->backend->stop(c, exit_code);
}

static dt_err dti_check_rank(const dt_comm *c, const char *who, int rank) {
    return rank >= 0 && rank < c->size ? DT_OK
               : dt_fail(DT_EARG, "%s: %d is not a rank of 0..%d", who, rank, c->size - 1);
}

DT_API const char *dt_comm_host(const dt_comm *c, int rank) {
    DTI_NEED(c, "comm", "?");
    return dti_check_rank(c, __func__, rank) == DT_OK ? c->host[rank] : "?";
}

/* The ways to wait: tests before the first yield, then yields before the first sleep, for messages and for
   memory. Spinning pays only while every rank has a core; a test of shared memory takes well under a
   microsecond, and a rank that is later than 20 microseconds will be a good deal later. */
static const struct dti_way { const char *name; int spins, yields[2]; } dti_ways[] = {
    [DT_WAIT_AUTO]      = { "auto", 100, { 2000, 2000 } },          /* where every rank has a core */
    [DT_WAIT_SPIN]      = { "spin", INT_MAX, { 2000, 2000 } },
    [DT_WAIT_YIELD]     = { "yield", 0, { INT_MAX, INT_MAX } },
    [DT_WAIT_SLEEP]     = { "sleep", 0, { 0, 0 } },
    [DT_WAIT_SLEEP + 1] = { "auto", 0, { 2000, 10 } },              /* auto, where ranks outnumber cores */
};

DT_API void dt_comm_set_wait(dt_comm *c, dt_wait wait) {
    DTI_NEED(c, "comm", );
    if (dti_check_enum(__func__, "way to wait", wait, DT_WAIT_SLEEP + 1u) != DT_OK) return;
    c->wait_auto = wait == DT_WAIT_AUTO;
    const struct dti_way *way = &dti_ways[c->wait_auto && c->here > dt_cores() ? DT_WAIT_SLEEP + 1 : wait];
    c->spins = way->spins, c->yields[0] = way->yields[0], c->yields[1] = way->yields[1];
}

static void dti_comm_wait_from_environment(dt_comm *c) {
    const char *text = getenv("DTRAIN_WAIT");
    unsigned wait = DT_WAIT_SLEEP;
    while (wait > 0 && !(text && strcmp(text, dti_ways[wait].name) == 0)) --wait;
    dt_comm_set_wait(c, (dt_wait)wait); /* auto, unless another one is named */
}

#define DTI_GET(atom) atomic_load_explicit(&(atom), memory_order_relaxed)
#define DTI_SET(atom, value) atomic_store_explicit(&(atom), value, memory_order_relaxed)
#endif

/* ==== [E2.2] Cores ========================================================

   How many cores there are, and on which of them a rank stays. To leave that to the system is right while
   every rank has a core of its own; where ranks outnumber cores, a step is over before the system has moved
   one. To read: dti_take_place. */
#ifdef DTI_DECLARE
/* dt_cores                                                            [E2.2]
   Cores this process may run on: its affinity mask on Linux, so that taskset
   and batch systems are believed, else the cores online. At least 1. A bound
   on cpu time that a container sets by quota is not seen. */
DT_API int dt_cores(void);

/* The vector instructions that the kernels [E1.1] were compiled to: "AVX-512, 16 lanes a register". */
DT_API const char *dt_kernel_name(void);
#endif

#ifdef DTI_IMPLEMENT
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

/* The text after "name :" in a file like /proc/cpuinfo. False if there is none. */
static bool dti_proc_line(const char *path, const char *name, char *out, size_t n) {
    FILE *f = fopen(path, "r");
    char line[1024];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, name, strlen(name)) != 0) continue;
        const char *text = colon + 1 + strspn(colon + 1, " \t");
        snprintf(out, n, "%.*s", (int)strcspn(text, "\n"), text);
        found = true;
    }
    if (f) fclose(f);
    return found;
}

/* /proc rather than sched_getaffinity, which the headers hide without _GNU_SOURCE. */
DT_API int dt_cores(void) {
    char mask[1024];
    int cores = 0;
    if (dti_proc_line("/proc/self/status", "Cpus_allowed:", mask, sizeof mask))
        for (const char *s = mask; *s; ++s) {
            const int digit = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : 0;
            cores += (digit & 1) + (digit >> 1 & 1) + (digit >> 2 & 1) + (digit >> 3);
        }
#if defined(_SC_NPROCESSORS_ONLN)
    if (cores < 1) cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return cores < 1 ? 1 : cores;
}
#endif

#ifdef DTI_IMPLEMENT
/* The cores a thread may run on, as bits. The system calls themselves, because the C library declares its
   wrappers only for _GNU_SOURCE; elsewhere than on Linux nothing is known and nothing happens. */
#define DTI_CPU_BITS ((int)(8 * sizeof(unsigned long)))
#if defined(DTI_RANKS) && defined(__linux__) && (defined(_DEFAULT_SOURCE) || defined(_GNU_SOURCE))
#include <sys/syscall.h>
DTI_LOCAL bool dti_cpus_get(dti_cpus *c) {
    memset(c, 0, sizeof *c);
    return syscall(SYS_sched_getaffinity, 0, sizeof *c, c) > 0;
}

DTI_LOCAL bool dti_cpus_set(const dti_cpus *c) {
    return syscall(SYS_sched_setaffinity, 0, sizeof *c, c) == 0;
}
#else
DTI_LOCAL bool dti_cpus_get(dti_cpus *c) { memset(c, 0, sizeof *c); return false; }
DTI_LOCAL bool dti_cpus_set(const dti_cpus *c) { (void)c; return false; }
#endif

/* Keeps the calling thread on the k-th of these cores. Not being allowed to is no error: it then stays where
   it is put. */
DTI_LOCAL void dti_pin(const dti_cpus *allowed, int k) {
    dti_cpus one = { { 0 } };
    for (int at = 0; at < 16 * DTI_CPU_BITS; ++at)
        if (allowed->bit[at / DTI_CPU_BITS] >> (at % DTI_CPU_BITS) & 1ul && k-- == 0) {
            one.bit[at / DTI_CPU_BITS] = 1ul << (at % DTI_CPU_BITS);
            (void)dti_cpus_set(&one);
            return;
        }
}

/* Gives each rank a core. Where ranks outnumber the cores of their one host, a step lasts as long as the
   core with the most work: with 8 lane groups, five ranks do 1, 2, 1, 2, 2 of them, which two cores share
   evenly only if the right ranks stand together. So each rank takes its place itself: the rank with the most
   work first, each to the core that has least so far (Graham 1969). All stay where they are if some rank may
   use other cores than the rest, or its environment says DTRAIN_PLACE=off. */
DTI_LOCAL dt_err dti_take_place(dt_comm *comm, uint32_t work, dti_cpus *allowed, bool *placed) {
    enum { MOST = 256 };
    const int ranks = dt_comm_size(comm), cores = dt_cores();
    const char *wish = getenv("DTRAIN_PLACE");
    const bool willing = ranks > cores && cores < DTI_PLACES && !(wish && strcmp(wish, "off") == 0)
                         && dti_cpus_get(allowed);
    uint64_t mine = willing ? dt_hash(allowed, sizeof *allowed, 0) : 0;
    uint32_t all[MOST], load[MOST] = { 0 };
    *placed = false;
    if (ranks == 1 || ranks > MOST || dt_comm_hosts(comm) > 1) return DT_OK;
    /* all ranks have the same cores if the largest hash is the smallest, which is ~ of the largest ~hash */
    int64_t bounds[2] = { (int64_t)mine, ~(int64_t)mine };
    DT_TRY(dt_allreduce(comm, bounds, 2, DT_I64, DT_MAX, DT_AUTO));
    if (!willing || bounds[0] != ~bounds[1]) return DT_OK;
    DT_TRY(dt_allgather(comm, &work, sizeof work, all));
    for (int turn = 0; turn < ranks; ++turn) { /* the rank with most work left -> the core with least */
        int most = -1, least = 0;
        for (int r = 0; r < ranks; ++r)
            if (all[r] != UINT32_MAX && (most < 0 || all[r] > all[most])) most = r;
        for (int core = 1; core < cores; ++core)
            if (load[core] < load[least]) least = core;
        load[least] += all[most];
        all[most] = UINT32_MAX; /* placed */
        if (most == dt_comm_rank(comm)) {
            dti_pin(allowed, least);
            dti_move(comm, 1 + least, 1 + cores);
            *placed = true;
        }
    }
    return DT_OK;
}
#endif

/* ==== [E2.3] Waiting ====================================================

   A rank waits at a place, which is a core where training has given it one [S11.3], and place 0 otherwise:

       place    event    counts the moments at which something could be found; the sleepers' alarm clock
                ranks    how many wait here
                asleep   which of them do so in the kernel, a bit for each

   A rank that brings the last missing part of something wakes the sleepers.

   DT_WAIT_AUTO spins for a few microseconds where every rank has a core of its own, then yields for a
   millisecond, then sleeps. Where ranks outnumber cores and a rank that waits can be woken, it yields ten
   times and then sleeps: of three ranks on a core, two that only yield keep taking turns with each other.
   And where training has given each rank its core [S11.3], of the ranks that wait on one core all sleep, so
   that a rank with work has the core; but the last one that is awake spins: nobody else could use the core,
   and to wake an idle one takes 45 microseconds in a virtual machine. Measured in November 2026, with the
   kernels of then: MNIST on 2 cores, images/s of 3, 4, 5 ranks over those of 2, medians: yielding 0.65, 0.96,
   0.65; the default 0.76, 0.95, 0.90. To read: dti_comm_idle. */
#ifdef DTI_IMPLEMENT
/* How long a rank waits in which way. A test with its pause takes 40 to 140 cycles, by the processor. */
static const struct dti_waiting {
    int  spins;          /* tests of the last rank awake on a core before it sleeps: 0.2 to 1 ms */
    int  looks_spun;     /* tests between two looks at the other ranks, 1 to 3 ms: a look takes time */
    int  looks_yielded;  /* yields between two such looks */
    long doze;           /* us asleep where nothing wakes us: Linux makes a shorter sleep so long, too */
    long nap;            /* ns asleep where others wake us: for failures that nobody announces, see dti_nap */
} dti_waiting = { .spins = 20000, .looks_spun = 65536, .looks_yielded = 64, .doze = 50, .nap = 20000000 };

#ifdef DTI_RANKS
static void dti_yield(void) { sched_yield(); }

/* select, because a strict -std=c11 does not declare nanosleep. */
DTI_LOCAL void dti_doze(long microseconds) {
    select(0, NULL, NULL, NULL,
           &(struct timeval){ .tv_sec = microseconds / 1000000, .tv_usec = microseconds % 1000000 });
}
#else /* nobody is waited for */
static void dti_yield(void) { }
DTI_LOCAL void dti_doze(long microseconds) { (void)microseconds; }
#endif

/* Sleeps until dti_wake. No wake is missed: c->event was read before the test that found nothing; a rank
   that made something since has counted the place's event up, and then the kernel does not let us sleep.
   What comes as a message wakes nobody, so that is asked for again after a doze.

   The nap's time limit is longer than the system's tick, 1 to 10 ms: a limit that comes before the next
   tick has to be written into the processor's timer, which in a virtual machine stops it. Measured, from
   one rank's sleep to the next one's work on the same core: 27 us with a limit of 1 ms, 6 us with this
   one. */
static void dti_nap(dt_comm *c) {
#ifdef DTI_HAS_FUTEX
    if (c->on_memory) {
        const struct { long seconds, nanoseconds; } patience = { 0, dti_waiting.nap };
        dti_place *here = &c->block->place[c->place];
        const uint64_t me = (uint64_t)1 << c->rank % 64;
        atomic_fetch_or(&here->asleep, me);
        (void)syscall(SYS_futex, &here->event, 0 /* FUTEX_WAIT, between processes */, c->event, &patience,
                      NULL, 0);
        atomic_fetch_and(&here->asleep, ~me);
        return;
    }
#else
    (void)c;
#endif
    dti_doze(dti_waiting.doze);
}

/* How many ranks wait for their core, and no longer for an event. */
static uint32_t dti_awake(const dti_place *place) {
    uint32_t n = DTI_GET(place->ranks);
    for (uint64_t asleep = atomic_load(&place->asleep); asleep && n; asleep &= asleep - 1) --n;
    return n;
}

/* Something has moved that waiting ranks may be waiting for. Every rank that sees it wakes those of its own
   core; the rank that came last, and so completed it, also wakes the cores on which all are asleep. */
static void dti_wake(dt_comm *c, bool came_last) {
#ifdef DTI_HAS_FUTEX
    const int places = (int)DTI_GET(c->block->places);
    for (int i = came_last ? 0 : c->place; i < (came_last ? places : c->place + 1); ++i) {
        dti_place *place = &c->block->place[i];
        atomic_fetch_add(&place->event, 1);
        if ((i == c->place || dti_awake(place) == 0) && atomic_exchange(&place->asleep, 0))
            (void)syscall(SYS_futex, &place->event, 1 /* FUTEX_WAKE */, INT_MAX, NULL, NULL, 0);
    }
#else
    (void)c, (void)came_last;
#endif
}

/* From now on this rank waits at that place, one of so many that are in use. */
static void dti_move(dt_comm *c, int place, int places) {
    if (!c->block) return;
    atomic_fetch_sub(&c->block->place[c->place].ranks, 1);
    c->place = place;
    atomic_fetch_add(&c->block->place[c->place].ranks, 1);
    DTI_SET(c->block->places, (uint32_t)places);
}

/* A moment in which this core does nothing. */
static void dti_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Between two tests. DT_ECOMM if another rank has failed meanwhile, so that nobody waits for the dead. */
static dt_err dti_comm_idle(dt_comm *c, int tries) {
    ++c->ticks;
    DT_TRY(dti_idles(c));
    /* here: the ranks of our core are known, and can be woken */
    const dti_place *here = c->on_memory && c->place && c->wait_auto ? &c->block->place[c->place] : NULL;
    const int own_core = here && dti_awake(here) > 1 ? 0 : dti_waiting.spins;
    if (tries < (here ? own_core : c->spins)) {
        dti_pause();
        return c->ticks % (unsigned)dti_waiting.looks_spun == 0 ? dti_look_around(c) : DT_OK;
    }
    const bool nap = here || tries >= c->yields[c->on_memory];
    if (nap) dti_nap(c);
    else dti_yield();
    return nap || c->ticks % (unsigned)dti_waiting.looks_yielded == 0 ? dti_look_around(c) : DT_OK;
}
#endif

/* ==== [E2.4] Flights: carrying collectives out =============================

   A collective that has been started and is not over yet is a flight. Flights are numbered, and every rank
   starts the same ones in the same order, so the number says which belong together; up to DTI_FLIGHTS are on
   their way at once. A wait for one of them brings all of them forward.

   Why several at once: a layer's gradient can travel while the one before it is still being computed, and a
   rank that comes late to one sum may be early at the next. To read: dti_flight_wait, dti_progress, then one
   of the three ways below, such as dti_shared_progress. */
#ifdef DTI_IMPLEMENT
static size_t dti_type_size(dt_type type) { return type == DT_F32 ? 4 : 8; }

/* y[i] = y[i] op x[i]. The sum of integers goes through unsigned ones, which may overflow. */
static void dti_combine(void *restrict y, const void *restrict x, size_t n, dt_type type, dt_op op) {
#define DTI_COMBINE(number, sum) do { \
        number *a = y; const number *b = x; \
        if (op == DT_SUM) for (size_t i = 0; i < n; ++i) a[i] = (number)((sum)a[i] + (sum)b[i]); \
        if (op == DT_MIN) for (size_t i = 0; i < n; ++i) a[i] = b[i] < a[i] ? b[i] : a[i]; \
        if (op == DT_MAX) for (size_t i = 0; i < n; ++i) a[i] = b[i] > a[i] ? b[i] : a[i]; \
    } while (0)
    if (type == DT_F32) DTI_COMBINE(float, float);
    else if (type == DT_F64) DTI_COMBINE(double, double);
    else DTI_COMBINE(int64_t, uint64_t);
#undef DTI_COMBINE
}

/* ---- by messages: a step of the schedule at a time [S10.3] ---- */

static dt_err dti_post(dt_comm *c, dti_message *m, bool incoming, void *buf, size_t bytes, int peer,
                       int lane, int tag) {
    m->buf = buf, m->bytes = bytes, m->peer = peer, m->lane = lane, m->tag = tag, m->incoming = incoming;
    if (!incoming) c->cost.bytes += bytes, c->cost.messages++;
    return c->backend->post(c, m);
}

static int dti_from_root(const dt_comm *c, const dti_flight *f, int rank) {
    return (rank + c->rank - f->rank + c->size) % c->size;
}

/* Starts the two messages of one step; what is to be added comes into scratch first. */
static dt_err dti_step_begin(dt_comm *c, dti_flight *f) {
    const dt_step *s = &f->step;
    char *buf = f->d.buf;
    int lane = (int)(f->number % DTI_FLIGHTS);
    char *into = s->add ? f->scratch.memory : buf + s->recv_at * f->size;
    if (s->from >= 0)
        DT_TRY(dti_post(c, &f->in, true, into, s->recv_n * f->size, dti_from_root(c, f, s->from),
                        lane, lane));
    if (s->to >= 0)
        DT_TRY(dti_post(c, &f->out, false, buf + s->send_at * f->size, s->send_n * f->size,
                        dti_from_root(c, f, s->to), lane, lane));
    f->in_step = true;
    return DT_OK;
}

/* As many steps as can be done now: what comes in a step is waited for, then added. */
static dt_err dti_steps_progress(dt_comm *c, dti_flight *f, bool *done) {
    for (;; ++f->k, f->in_step = false) {
        if (!f->in_step) {
            if (!dti_schedule_step(f->schedule, f->k, f->rank, c->size, f->d.n, &f->step))
                return *done = true, DT_OK;
            DT_TRY(dti_step_begin(c, f));
        }
        if (f->in.pending)  DT_TRY(c->backend->test(c, &f->in));
        if (f->out.pending) DT_TRY(c->backend->test(c, &f->out));
        if (f->in.pending || f->out.pending) return DT_OK;
        dti_moved(c);
        if (f->step.from >= 0 && f->step.add) {
            double t = dt_now();
            dti_combine((char *)f->d.buf + f->step.recv_at * f->size, f->scratch.memory, f->step.recv_n,
                        f->d.type, f->d.op);
            c->cost.reduce += dt_now() - t;
        }
    }
}

/* Scratch memory for the longest step. It grows in the first all-reduce of a kind, and stays. */
static dt_err dti_steps_prepare(dt_comm *c, dti_flight *f) {
    size_t most = 0;
    for (int k = 0; dti_schedule_step(f->schedule, k, f->rank, c->size, f->d.n, &f->step); ++k)
        if (f->step.add && f->step.recv_n > most) most = f->step.recv_n;
    dti_buffer *b = &f->scratch;
    *b = c->spare[c->taken];
    c->spare[c->taken++] = (dti_buffer){ NULL, 0 };
    if (most * f->size <= b->bytes) return DT_OK;
    dti_release(b->memory);
    b->memory = dti_alloc(most * f->size);
    b->bytes = b->memory ? most * f->size : 0;
    return b->memory ? DT_OK : dt_fail(DT_ENOMEM, "all-reduce: no memory for %zu bytes", most * f->size);
}

static void dti_flight_end(dt_comm *c, dti_flight *f) {
    f->number = 0;
    dti_moved(c);
    if (!f->schedule) return;
    c->spare[--c->taken] = f->scratch;
    f->scratch = (dti_buffer){ NULL, 0 };
}

/* ---- through shared memory ----

   A vector is cut into chunks, which pass through three stages; each rank counts, on its own line of the
   block, how many chunks it has brought through each:

       written    our numbers are in the block
       added      our part of the work of adding is done
       read       the sum is in our own buffer, and the chunk's place may be used again

   Integers: the ranks add their vectors into one chunk, rank 0's, in whatever order they come; that is what
   exact sums [S3.2] allow. Each rank adds, says so (written), and when all have, copies the sum out: one
   meeting per all-reduce, and each rank touches the vector twice, not p times. So that two ranks can add at
   once, a chunk has DTI_LOCKS parts with a lock each, and ranks begin at different parts. The chunk may be
   overwritten DTI_DEPTH chunks later, when all have read it: by then they nearly always have, so that is no
   second meeting.

   Floats must be added in the order of ranks, or the bits would change from run to run. Each rank writes its
   vector into a chunk of its own, and adds all ranks' chunks straight into its own buffer. With more ranks
   that would be p-1 reads of everything by everybody. So a longer chunk is sliced: rank r adds slice r of all
   ranks, in place in its own chunk (nobody else reads that slice), says so (added), and when all have, copies
   p slices together: 2(p-1)/p reads instead of p-1, for a second meeting. Integers go that way as well where
   many ranks run at the same time and would queue at the locks.

   Measured on 2 cores (Xeon with AMX, MPICH 4.0.2, November 2026), median microseconds of an int64 all-reduce
   over MPI ranks: added together, sliced, and by MPI_Iallreduce, which is tested and yields between tests as
   everything here:

                  8 bytes              79 KB                 1 MB                   8 MB
     2 ranks   0.7 | 0.5 |  0.9    12 | 10 |  17     109 | 160 |  158     1030 | 1420 |  1090
     3 ranks   4.6 | 0.6 | 10      11 | 26 |  65     256 | 404 |  877     2240 | 3170 |  7660
     4 ranks   2.6 | 2.8 |  7.3    18 | 20 |  65     238 | 325 |  494     2360 | 3590 |  3720
     5 ranks   4.3 | 4.5 | 15      31 | 28 | 146     344 | 520 | 1110     3480 | 5050 | 14470

   So DT_AUTO takes shared wherever it can. Of floats, 79 KB over 5 ranks take twice as long unsliced; below
   32 KB slices gain nothing.

   Chunks are numbered through all flights, and each rank works on them in order, so one counter per stage is
   enough. Release and acquire on the counters order the plain data between them. */

static bool dti_all_reached(const dt_comm *c, size_t counter, uint64_t value) {
    for (int r = 0; r < c->size; ++r) {
        const char *line = (const char *)dti_line_of(c, r);
        if (atomic_load_explicit((const _Atomic uint64_t *)(const void *)(line + counter),
                                 memory_order_acquire) < value)
            return false;
    }
    return true;
}
#define DTI_ALL_REACHED(c, counter, value) dti_all_reached(c, offsetof(dti_comm_line, counter), value)

typedef struct dti_piece { char *buf; size_t n, from, to; uint64_t chunk; bool together, sliced; } dti_piece;

/* The part of the vector that chunk number `chunk` carries; [from, to) is our slice of it. */
static dti_piece dti_piece_of(const dt_comm *c, const dti_flight *f, uint64_t chunk) {
    size_t per = c->block->chunk / f->size, begin = (size_t)(chunk - f->first) * per;
    dti_piece p = { .buf = (char *)f->d.buf + begin * f->size, .chunk = chunk, .n = f->d.n - begin };
    if (p.n > per) p.n = per;
    p.together = f->d.type == DT_I64 && c->block->together;
    p.sliced = !p.together && c->size > 2 && p.n * f->size > 32768;
    p.from = dti_cut(p.n, c->size, c->rank), p.to = dti_cut(p.n, c->size, c->rank + 1);
    return p;
}

/* into[from..to) = op over all ranks' chunks, a few kilobytes at a time, so that `into` stays in the first
   cache */
static void dti_add_ranks(const dt_comm *c, const dti_flight *f, uint64_t chunk, char *into, size_t from,
                          size_t to) {
    for (size_t i = from; i < to; i += 1024) { /* 8 KB of the sum, which all ranks' numbers are added to */
        size_t n = to - i < 1024 ? to - i : 1024, at = i * f->size;
        _Alignas(64) char sum[1024 * 8];
        memcpy(sum, dti_chunk_of(c, 0, chunk) + at, n * f->size);
        for (int r = 1; r < c->size; ++r)
            dti_combine(sum, dti_chunk_of(c, r, chunk) + at, n, f->d.type, f->d.op);
        memcpy(into + at, sum, n * f->size);
    }
}

/* Adds our numbers to the sum in rank 0's chunk, part by part, starting at another part than our neighbour;
   the first to come to a part finds an older chunk in it, and overwrites. False while another rank works on a
   part that still lacks ours. */
static bool dti_give(dt_comm *c, const dti_flight *f, const dti_piece *p) {
    const uint32_t every = (1u << DTI_LOCKS) - 1;
    char *sum = dti_chunk_of(c, 0, p->chunk);
    for (int pass = 0; c->given != every && pass < 1000; ++pass) { /* all parts, while some are held */
        if (pass > 32) dti_yield();         /* the rank that works on it may need our core */
        else if (pass) dti_pause();
        for (int i = 0; i < DTI_LOCKS; ++i) { /* a part: passed over if it has our numbers, or is held */
            const int part = (i + c->rank * DTI_LOCKS / 2) % DTI_LOCKS;
            dti_lock *lock = &c->block->lock[p->chunk % DTI_DEPTH][part];
            if (c->given & 1u << part || atomic_exchange_explicit(&lock->held, 1, memory_order_acquire))
                continue;
            const size_t from = dti_cut(p->n, DTI_LOCKS, part), n = dti_cut(p->n, DTI_LOCKS, part + 1) - from;
            if (lock->chunk == p->chunk + 1)
                dti_combine(sum + from * f->size, p->buf + from * f->size, n, f->d.type, f->d.op);
            else if (n) memcpy(sum + from * f->size, p->buf + from * f->size, n * f->size);
            lock->chunk = p->chunk + 1;
            atomic_store_explicit(&lock->held, 0, memory_order_release);
            c->given |= 1u << part;
        }
    }
    if (c->given != every) return false;
    c->given = 0;
    return true;
}

/* The finished sum of a chunk into our own buffer: copied; or, of floats unsliced, added here. */
static void dti_shared_read(const dt_comm *c, const dti_flight *f, const dti_piece *p) {
    if (p->together) {
        if (p->n) memcpy(p->buf, dti_chunk_of(c, 0, p->chunk), p->n * f->size);
        return;
    }
    if (!p->sliced) {
        dti_add_ranks(c, f, p->chunk, p->buf, 0, p->n);
        return;
    }
    for (int r = 0; r < c->size; ++r) {
        size_t from = dti_cut(p->n, c->size, r) * f->size, to = dti_cut(p->n, c->size, r + 1) * f->size;
        memcpy(p->buf + from, dti_chunk_of(c, r, p->chunk) + from, to - from);
    }
}

/* After a turn that began at time t with these counts: if any has grown, says so to those who wait for it. */
static void dti_shared_moved(dt_comm *c, uint64_t written, uint64_t added, uint64_t read, double t) {
    if (c->written == written && c->added == added && c->read == read) return;
    /* of two ranks that come last together, at least one sees both */
    atomic_thread_fence(memory_order_seq_cst);
    const bool came_last = (c->written > written && DTI_ALL_REACHED(c, written, c->written))
                        || (c->added > added && DTI_ALL_REACHED(c, added, c->added));
    if (came_last || c->added > added || c->read > read) dti_wake(c, came_last);
    const double end = dt_now();
    c->cost.reduce += end - t;
    dti_moved(c);
    dti_trace_add(c, "reduce", t, end);
}

/* Does what can be done now, each stage as far ahead as it may be: a chunk is written when all have read what
   was in its place, added when all have written, read when all have added. True when all of it is read. */
static bool dti_shared_progress(dt_comm *c, dti_flight *f) {
    dti_comm_line *me = dti_line_of(c, c->rank);
    double t = dt_now();
    const uint64_t written = c->written, added = c->added, read = c->read;
    while (c->written >= f->first && c->written < f->last
           && (c->written < DTI_DEPTH || DTI_ALL_REACHED(c, read, c->written - DTI_DEPTH + 1))) {
        dti_piece p = dti_piece_of(c, f, c->written);
        if (p.together && !dti_give(c, f, &p)) break;
        if (p.n && !p.together) memcpy(dti_chunk_of(c, c->rank, p.chunk), p.buf, p.n * f->size);
        atomic_store_explicit(&me->written, ++c->written, memory_order_release);
    }
    while (c->added >= f->first && c->added < c->written && c->added < f->last
           && DTI_ALL_REACHED(c, written, c->added + 1)) {
        dti_piece p = dti_piece_of(c, f, c->added);
        if (p.sliced) dti_add_ranks(c, f, p.chunk, dti_chunk_of(c, c->rank, p.chunk), p.from, p.to);
        atomic_store_explicit(&me->added, ++c->added, memory_order_release);
    }
    while (c->read >= f->first && c->read < c->added && c->read < f->last) {
        dti_piece p = dti_piece_of(c, f, c->read);
        if (p.sliced && !DTI_ALL_REACHED(c, added, c->read + 1)) break;
        dti_shared_read(c, f, &p);
        atomic_store_explicit(&me->read, ++c->read, memory_order_release);
    }
    dti_shared_moved(c, written, added, read, t);
    return c->read >= f->last;
}

/* ---- all of them ---- */

static dti_flight *dti_flight_of(dt_comm *c, uint64_t number) { return &c->flights[number % DTI_FLIGHTS]; }

/* Brings every flight forward, the oldest first. */
static dt_err dti_progress(dt_comm *c) {
    for (uint64_t i = c->finished + 1; i <= c->started; ++i) {
        dti_flight *f = dti_flight_of(c, i);
        bool done = false;
        if (f->number == i) {
            if (f->schedule)                      DT_TRY(dti_steps_progress(c, f, &done));
            else if (f->d.algorithm == DT_SHARED) done = dti_shared_progress(c, f);
            else                                  DT_TRY(dti_mpi_reduce_test(c, f, &done));
            if (done) dti_flight_end(c, f);
        }
        if (f->number == 0 && c->finished == i - 1) c->finished = i;
    }
    return DT_OK;
}

/* A wait that begins, and one that ends: shown on the board, timed, and traced. */
static void dti_wait_begin(dt_comm *c) {
    dti_moved(c);
    dti_waits(c, true);
}

static void dti_wait_end(dt_comm *c, double start, double reduce) {
    double end = dt_now();
    dti_waits(c, false);
    dti_moved(c);
    c->cost.wait += end - start - reduce;
    dti_trace_add(c, "wait", start, end);
}

/* Until that flight has landed. The place's event is read before the flights are looked at: see dti_nap. */
static dt_err dti_flight_wait(dt_comm *c, uint64_t number) {
    double start = dt_now(), reduce = c->cost.reduce;
    dt_err error = DT_OK;
    const dti_flight *flight = dti_flight_of(c, number);
    dti_wait_begin(c);
    for (int tries = 0; error == DT_OK; tries += tries < INT_MAX) {
        if (c->block) c->event = atomic_load(&c->block->place[c->place].event);
        if ((error = dti_progress(c)) != DT_OK || flight->number != number) break;
        c->on_memory = c->block && !flight->schedule && flight->d.algorithm == DT_SHARED;
        error = dti_comm_idle(c, tries);
        c->on_memory = false;
    }
    dti_wait_end(c, start, c->cost.reduce - reduce);
    return error;
}

/* Starts a flight on the next number; one that still holds the slot, 32 numbers ago, is waited for. */
static dt_err dti_flight_start(dt_comm *c, const dt_allreduce_desc *d, dti_schedule *schedule, size_t size,
                               int root, dt_request *request) {
    uint64_t number = c->started + 1;
    dti_flight *f = dti_flight_of(c, number);
    if (f->number) DT_TRY(dti_flight_wait(c, f->number));
    c->cost.collectives++;
    f->d = *d, f->schedule = schedule, f->size = size, f->k = 0, f->in_step = false;
    f->in.pending = f->out.pending = false;
    f->rank = (c->rank - root + c->size) % c->size;
    f->number = c->started = request->number = number;
    if (schedule) return dti_steps_prepare(c, f);
    if (d->algorithm != DT_SHARED) return dti_mpi_reduce_start(c, f);
    size_t per = c->block->chunk / size, chunks = d->n ? (d->n + per - 1) / per : 1;
    f->first = c->chunks, f->last = c->chunks += chunks;
    c->cost.bytes += d->n * size;
    return DT_OK;
}

/* What DT_AUTO means here, and whether the algorithm can be had at all. */
static dt_err dti_pick(const dt_comm *c, dt_algorithm *a) {
    bool mpi = strcmp(c->backend->name, "MPI") == 0;
    if ((unsigned)*a >= DT_ALGORITHMS)
        return dt_fail(DT_EARG, "all-reduce: there is no algorithm %d", (int)*a);
    if (c->size == 1) return DT_OK;
    if (*a == DT_AUTO) *a = c->algorithm;
    if (*a == DT_AUTO) *a = c->block ? DT_SHARED : DT_MPI;
    if (*a == DT_MPI && !mpi)
        return dt_fail(DT_EARG, "all-reduce by mpi: the ranks are %s; start the program with mpiexec, or "
                       "choose another algorithm", c->backend->name);
    if (*a == DT_SHARED && !c->block)
        return dt_fail(DT_ECOMM,
                       "all-reduce by shared: the ranks share no memory (%d hosts); choose auto, mpi or ring",
                       c->hosts);
    return DT_OK;
}

DT_API dt_err dt_comm_set_algorithm(dt_comm *c, dt_algorithm algorithm) {
    DTI_NEED(c, "comm", DT_EARG);
    dt_algorithm a = algorithm;
    DT_TRY(a == DT_AUTO ? DT_OK : dti_pick(c, &a));
    c->algorithm = algorithm;
    return DT_OK;
}

static dt_err dti_check_reduce(const dt_allreduce_desc *d) {
    DT_TRY(dti_check_enum("all-reduce", "type", d->type, DT_I64 + 1u));
    DT_TRY(dti_check_enum("all-reduce", "operation", d->op, DT_MAX + 1u));
    if (!d->buf && d->n) return dt_fail(DT_EARG, "all-reduce: buf must not be NULL");
    if (d->n > SIZE_MAX / 16)
        return dt_fail(DT_EARG, "all-reduce: %zu elements are more than memory can hold", d->n);
    return DT_OK;
}

DT_API dt_err dt_allreduce_start(dt_comm *c, const dt_allreduce_desc *desc, dt_request *request) {
    DTI_NEED(c && desc && request, "comm, desc and request", DT_EARG);
    dt_allreduce_desc d = *desc;
    request->number = 0;
    DT_TRY(dti_check_reduce(&d));
    DT_TRY(dti_pick(c, &d.algorithm));
    if (c->size == 1) return DT_OK;
    dti_schedule *schedule = dti_algorithms[d.algorithm].schedule;
    DT_TRY(dti_flight_start(c, &d, schedule, dti_type_size(d.type), 0, request));
    return dti_progress(c);
}

DT_API dt_err dt_allreduce_test(dt_comm *c, dt_request *request, bool *done) {
    DTI_NEED(c && request && done, "comm, request and done", DT_EARG);
    *done = true;
    if (request->number == 0) return DT_OK;
    DT_TRY(dti_progress(c));
    *done = dti_flight_of(c, request->number)->number != request->number;
    if (*done) request->number = 0;
    return DT_OK;
}

DT_API dt_err dt_allreduce_wait(dt_comm *c, dt_request *request) {
    DTI_NEED(c && request, "comm and request", DT_EARG);
    uint64_t number = request->number;
    request->number = 0;
    return number ? dti_flight_wait(c, number) : DT_OK;
}

DT_API dt_err dt_allreduce(dt_comm *c, void *buf, size_t n, dt_type type, dt_op op, dt_algorithm algorithm) {
    dt_request request;
    DT_TRY(dt_allreduce_start(c, &(dt_allreduce_desc){ buf, n, type, op, algorithm }, &request));
    return dt_allreduce_wait(c, &request);
}

DT_API dt_err dt_broadcast(dt_comm *c, void *buf, size_t bytes, int root) {
    dt_request request;
    DTI_NEED(c && (buf || bytes == 0), "comm and buf", DT_EARG);
    DT_TRY(dti_check_rank(c, "broadcast: root", root));
    DT_TRY(dti_flight_start(c, &(dt_allreduce_desc){ .buf = buf, .n = bytes }, dti_step_broadcast, 1, root,
                            &request));
    return dt_allreduce_wait(c, &request);
}

DT_API dt_err dt_allgather(dt_comm *c, const void *mine, size_t bytes, void *all) {
    dt_request request;
    DTI_NEED(c && ((mine && all) || bytes == 0), "comm, mine and all", DT_EARG);
    if (dti_times(bytes, (size_t)c->size) > SIZE_MAX / 2)
        return dt_fail(DT_EARG, "allgather: %zu bytes of each rank are more than memory can hold", bytes);
    if (bytes) memcpy((char *)all + (size_t)c->rank * bytes, mine, bytes);
    DT_TRY(dti_flight_start(c, &(dt_allreduce_desc){ .buf = all, .n = bytes * (size_t)c->size },
                            dti_step_allgather, 1, 0, &request));
    return dt_allreduce_wait(c, &request);
}

/* A barrier is an all-reduce of one number: nobody can know a sum before everybody has given to it. */
DT_API dt_err dt_barrier(dt_comm *c) {
    int64_t one = 1;
    return dt_allreduce(c, &one, 1, DT_I64, DT_SUM, DT_AUTO);
}

/* ---- single messages ---- */

/* Until both messages are through; of those that are not pending nothing is awaited. */
static dt_err dti_messages_wait(dt_comm *c, dti_message *out, dti_message *in) {
    double start = dt_now();
    dt_err error = DT_OK;
    dti_wait_begin(c);
    for (int tries = 0; error == DT_OK && (out->pending || in->pending); tries += tries < INT_MAX) {
        if (out->pending) error = c->backend->test(c, out);
        if (in->pending && error == DT_OK) error = c->backend->test(c, in);
        if (error == DT_OK && (out->pending || in->pending)) error = dti_comm_idle(c, tries);
    }
    dti_wait_end(c, start, 0.0);
    return error;
}

/* Alone, a message to oneself would wait for ever for its other half. */
static dt_err dti_message_check(const dt_comm *c, const char *what, int peer, int tag, bool both) {
    DT_TRY(dti_check_rank(c, what, peer));
    if (peer == c->rank && !both)
        return dt_fail(DT_EARG, "%s: rank %d to itself; only dt_sendrecv can do that, to and from", what,
                       peer);
    if (tag < 0 || tag > 32000)      return dt_fail(DT_EARG, "%s: tag %d is not in 0..32000", what, tag);
    return DT_OK;
}

/* The transports take a plain pointer for both directions; what is sent is only read. */
static void *dti_unconst(const void *p) {
    union { const void *in; void *out; } u = { .in = p };
    return u.out;
}

DT_API dt_err dt_send(dt_comm *c, const void *buf, size_t bytes, int to, int tag) {
    dti_message out = { 0 }, in = { 0 };
    DTI_NEED(c && (buf || bytes == 0), "comm and buf", DT_EARG);
    DT_TRY(dti_message_check(c, "send", to, tag, false));
    DT_TRY(dti_post(c, &out, false, dti_unconst(buf), bytes, to, DTI_FLIGHTS, tag));
    return dti_messages_wait(c, &out, &in);
}

DT_API dt_err dt_recv(dt_comm *c, void *buf, size_t bytes, int from, int tag) {
    dti_message out = { 0 }, in = { 0 };
    DTI_NEED(c && (buf || bytes == 0), "comm and buf", DT_EARG);
    DT_TRY(dti_message_check(c, "recv", from, tag, false));
    DT_TRY(dti_post(c, &in, true, buf, bytes, from, DTI_FLIGHTS, tag));
    return dti_messages_wait(c, &out, &in);
}

DT_API dt_err dt_sendrecv(dt_comm *c, const void *send, size_t send_bytes, int to, void *recv,
                          size_t recv_bytes, int from, int tag) {
    dti_message out = { 0 }, in = { 0 };
    DTI_NEED(c && (send || send_bytes == 0) && (recv || recv_bytes == 0), "comm, send and recv", DT_EARG);
    DT_TRY(dti_message_check(c, "sendrecv", to, tag, to == from));
    DT_TRY(dti_message_check(c, "sendrecv", from, tag, to == from));
    DT_TRY(dti_post(c, &in, true, recv, recv_bytes, from, DTI_FLIGHTS, tag));
    DT_TRY(dti_post(c, &out, false, dti_unconst(send), send_bytes, to, DTI_FLIGHTS, tag));
    return dti_messages_wait(c, &out, &in);
}
#endif

/* ==== [E2.5] Threads as ranks, and one rank alone ==========================

   dt_run_ranks starts p threads and gives each a dt_comm. A message between two of them is a letter: the
   sender's note of where the bytes lie. The receiver copies them from there, so they are copied once.

       sender    letter { from, lane, tag, buf, bytes }  ->  box of the receiver, a list without a lock
       receiver  empties its box into a list of its own; memcpy from letter->buf; letter->taken = 1
       sender    sees taken: its buffer is free again

   One rank alone is the same with p = 1, and nobody ever writes. To read: dti_threads_post, dti_threads_test,
   then dt_run_ranks. */
#ifdef DTI_IMPLEMENT
/* Puts the letter into the receiver's box, on top of what is there. A lane carries one message at a time,
   so a rank has a letter for each lane; memory grows with the number of ranks, not with its square. */
static dt_err dti_threads_post(dt_comm *c, dti_message *m) {
    m->pending = true;
    if (m->incoming) return DT_OK;
    dti_letter *letter = &c->letters[m->lane];
    letter->from = c->rank, letter->lane = m->lane, letter->tag = m->tag, letter->buf = m->buf,
    letter->bytes = m->bytes;
    atomic_store_explicit(&letter->taken, 0, memory_order_relaxed);
    letter->next = atomic_load_explicit(&c->boxes[m->peer].first, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&c->boxes[m->peer].first, &letter->next, letter,
                                                  memory_order_release, memory_order_relaxed)) {}
    return DT_OK;
}

/* Takes the letter of that sender and lane out of the list; NULL if it has not arrived. */
static dti_letter *dti_expected_letter(dt_comm *c, int from, int lane) {
    dti_letter *box = atomic_exchange_explicit(&c->boxes[c->rank].first, NULL, memory_order_acquire);
    while (box) {
        dti_letter *letter = box;
        box = letter->next;
        letter->next = c->arrived;
        c->arrived = letter;
    }
    for (dti_letter **at = &c->arrived; *at; at = &(*at)->next) {
        dti_letter *letter = *at;
        if (letter->from != from || letter->lane != lane) continue;
        *at = letter->next;
        return letter;
    }
    return NULL;
}

/* Sent: has the receiver taken it? To come: is there a letter, and the right one? Then it is copied. */
static dt_err dti_threads_test(dt_comm *c, dti_message *m) {
    if (!m->incoming) {
        m->pending = atomic_load_explicit(&c->letters[m->lane].taken, memory_order_acquire) == 0;
        return DT_OK;
    }
    dti_letter *letter = dti_expected_letter(c, m->peer, m->lane);
    if (!letter) return DT_OK;
    m->pending = false;
    if (letter->bytes != m->bytes || letter->tag != m->tag)
        return dt_fail(DT_ECOMM, "rank %d expects %zu bytes with tag %d from rank %d, which sends %zu bytes "
                       "with tag %d", c->rank, m->bytes, m->tag, m->peer, letter->bytes, letter->tag);
    memcpy(m->buf, letter->buf, m->bytes);
    atomic_store_explicit(&letter->taken, 1, memory_order_release);
    return DT_OK;
}

static void dti_threads_stop(dt_comm *c, int exit_code) { (void)exit_code, (void)dti_fails_first(c); }

DTI_LOCAL void dti_threads_close(dt_comm *c) { (void)c; } /* dt_run_ranks owns what the ranks share */

static void dti_alone_close(dt_comm *c) {
    dti_release(c->alone);
    dti_release(c->boxes);
}

static const dti_backend dti_alone = { "alone", dti_threads_post, dti_threads_test, dti_threads_stop,
                                       dti_alone_close };
#ifdef DTRAIN_WITH_THREADS
static const dti_backend dti_threads = { "threads", dti_threads_post, dti_threads_test, dti_threads_stop,
                                         dti_threads_close };
#endif

/* This process' number and this host's name; not known, nor needed, where one rank is all there is. */
#ifdef DTI_RANKS
static int dti_process(void) { return (int)getpid(); }
static void dti_own_host(char *name) { /* uname is there under a strict -std=c11, gethostname is not */
    struct utsname machine;
    snprintf(name, DTI_HOST, "%.*s", (int)DTI_HOST - 1,
             uname(&machine) >= 0 ? machine.nodename : "localhost");
}
#else
static int dti_process(void) { return 0; }
static void dti_own_host(char *name) { memcpy(name, "localhost", sizeof "localhost"); }
#endif

/* A communicator of that backend, as if all ranks were on this host; a backend that knows better says so
   then. */
static dt_comm *dti_comm_new(const dti_backend *backend, int rank, int size) {
    dt_comm *c = dti_alloc(sizeof *c);
    if (!c) return NULL;
    c->host = dti_alloc((size_t)size * (sizeof *c->host + 2 * sizeof *c->compared));
    c->signs = c->host ? dti_signs_new() : NULL;
    if (!c->signs) return dti_release(c->host), dti_release(c), NULL;
    c->compared = (uint64_t *)(void *)(c->host + size);
    c->backend = backend, c->rank = c->seat = rank, c->size = size, c->here = size, c->hosts = 1;
    dti_own_host(c->host[0]);
    for (int r = 1; r < size; ++r) memcpy(c->host[r], c->host[0], DTI_HOST);
    dti_comm_wait_from_environment(c);
    return c;
}

DT_API void dt_comm_free(dt_comm *c) {
    if (!c) return;
    dti_leave_seat(c);
    for (int i = 0; i < DTI_FLIGHTS; ++i)
        dti_release(c->flights[i].scratch.memory), dti_release(c->spare[i].memory);
    c->backend->close(c);
    dti_signs_free(c);
    dti_release(c->trace);
    dti_release(c->host);
    dti_release(c);
}

static dti_comm_block *dti_block_behind(struct dti_board *board, int p) {
    return (dti_comm_block *)(void *)((char *)board + dti_board_bytes(p));
}

/* Once, by one rank, before the others look. */
static void dti_block_open(struct dti_board *board, int p) {
    dti_comm_block *block = dti_block_behind(board, p);
    block->chunk = dti_block_chunk(p);
    block->together = p <= 2 * DTI_LOCKS || dt_cores() <= 2 * DTI_LOCKS;
    block->places = 1;
    block->place[0].ranks = (uint32_t)p;
}

/* What p threads share: a board with the memory to reduce through behind it, and the boxes with all
   letters behind them. */
static bool dti_threads_share(int p, struct dti_board **board, dti_mailbox **boxes) {
    *board = dti_alloc(dti_board_bytes(p) + dti_block_bytes(p));
    *boxes = dti_alloc((size_t)p * (sizeof **boxes + (DTI_FLIGHTS + 1) * sizeof(dti_letter)));
    if (*board) dti_block_open(*board, p);
    return *board && *boxes;
}

/* The board is taken in any case: to be freed with the communicator where it is alone. */
static dt_err dti_threads_join(dt_comm *c, struct dti_board *board, dti_mailbox *boxes) {
    c->boxes = boxes;
    c->letters = (dti_letter *)(void *)(boxes + c->size) + (size_t)c->rank * (DTI_FLIGHTS + 1);
    c->block = dti_block_behind(board, c->size);
    return dti_take_seat(c, board, 0);
}

DT_API dt_comm *dt_comm_alone(void) {
    dt_comm *c = dti_comm_new(&dti_alone, 0, 1);
    struct dti_board *board = NULL;
    dti_mailbox *boxes = NULL;
    bool good = c && dti_threads_share(1, &board, &boxes) && dti_threads_join(c, board, boxes) == DT_OK;
    if (c && !good) {
        c->boxes = NULL;
        dt_comm_free(c), c = NULL;
        dti_release(board), dti_release(boxes);
    }
    if (!c) return dt_fail(DT_ENOMEM, "no memory for a communicator"), NULL;
    c->alone = board;
    return c;
}

#ifdef DTRAIN_WITH_THREADS
typedef struct dti_rank {
    dt_comm  *comm;
    dt_err  (*fn)(dt_comm *comm, void *arg);
    void     *arg;
    dt_err    result;
    bool      running;
    _Atomic int returned;
    char      message[sizeof dti_error_text];
    pthread_t thread;
} dti_rank;

/* A thread's whole life: the program's function, its error kept, a goodbye. */
static void *dti_rank_main(void *pointer) {
    dti_rank *r = pointer;
    r->result = r->fn(r->comm, r->arg);
    if (r->result != DT_OK) {
        snprintf(r->message, sizeof r->message, "%s", dt_error()); /* dt_error() belongs to this thread */
        dt_comm_abort(r->comm, 1);
    }
    dti_leave_seat(r->comm);
    atomic_store(&r->returned, 1);
    return NULL;
}

/* Joins a thread. One that hangs cannot be ended from outside: after a second it is left to itself, and
   false. */
static bool dti_rank_join(dti_rank *r, struct dti_board *board) {
    bool hung;
    if (dti_failed_rank(board, &hung) != r->comm->rank) hung = false;
    for (int i = 0; hung && i < 1000 && !atomic_load(&r->returned); ++i) dti_doze(1000);
    if (!hung || atomic_load(&r->returned)) return pthread_join(r->thread, NULL), true;
    pthread_detach(r->thread);
    return false;
}

/* The error of dt_run_ranks: that of the rank which failed first, in its words; one that hangs has none. */
static dt_err dti_ranks_result(dti_rank *ranks, struct dti_board *board) {
    bool hung;
    const int first = dti_failed_rank(board, &hung);
    if (first < 0) return DT_OK;
    if (hung) {
        int witness = first == 0; /* any other rank has given up, and says why */
        return dt_fail(DT_ECOMM, "%s", ranks[witness].message);
    }
    if (ranks[first].result != DT_OK)
        return dt_fail(ranks[first].result, "rank %d: %s", first, ranks[first].message);
    return dt_fail(DT_ECOMM, "rank %d stopped the job", first);
}

DT_API dt_err dt_run_ranks(int p, dt_err (*fn)(dt_comm *comm, void *arg), void *arg) {
    if (p < 1 || p > 1024) return dt_fail(DT_EARG, "dt_run_ranks: %d ranks, wanted 1..1024", p);
    DTI_NEED(fn, "fn", DT_EARG);
    struct dti_board *board = NULL;
    dti_mailbox *boxes = NULL;
    dti_rank *ranks = dti_alloc((size_t)p * sizeof *ranks);
    bool good = ranks && dti_threads_share(p, &board, &boxes), joined = true;
    dt_err result = good ? DT_OK : dt_fail(DT_ENOMEM, "no memory for %d ranks", p);

    for (int r = 0; r < p && good; ++r) {
        ranks[r].comm = dti_comm_new(&dti_threads, r, p), ranks[r].fn = fn, ranks[r].arg = arg;
        good = ranks[r].comm && dti_threads_join(ranks[r].comm, board, boxes) == DT_OK;
        if (!good) result = dt_fail(DT_ENOMEM, "no memory for rank %d", r);
    }
    for (int r = 1; r < p && good; ++r) {
        ranks[r].running = pthread_create(&ranks[r].thread, NULL, dti_rank_main, &ranks[r]) == 0;
        if (ranks[r].running) continue;
        result = dt_fail(DT_ENOMEM, "rank %d of %d: the system gives no more threads", r, p);
        dt_comm_abort(ranks[r].comm, 1); /* those that run already must not wait for it */
        good = false;
    }
    if (good) dti_rank_main(&ranks[0]);
    for (int r = 1; r < p && ranks; ++r)
        if (ranks[r].running) joined = dti_rank_join(&ranks[r], board) && joined;

    if (result == DT_OK) result = dti_ranks_result(ranks, board);
    if (!joined) return result; /* the thread that hangs may still use all this */
    for (int r = 0; r < p && ranks; ++r) dt_comm_free(ranks[r].comm);
    dti_release(boxes), dti_release(board), dti_release(ranks);
    return result;
}
#endif /* DTRAIN_WITH_THREADS */
#endif

/* ---- A trainer without a communicator makes its own: rank 0 has the caller's net and optimizer, the others
   twins of them. They are made before the first collective, which no rank leaves before all have come: so
   rank 0 has not stepped yet. */
#ifdef DTI_IMPLEMENT
#ifdef DTRAIN_WITH_THREADS
typedef struct dti_crew {
    dti_trainer *trainer;
    dt_net *net;
    dt_optimizer *opt;
    const dt_train_desc *d;
    dt_train_result *result;
} dti_crew;

/* An optimizer for another net with the same state. */
static dt_optimizer *dti_optimizer_twin(const dt_optimizer *opt, dt_net *net) {
    dt_optimizer *twin = dt_optimizer_clone(opt, net);
    if (!twin) return NULL;
    twin->steps = opt->steps;
    memcpy(twin->power, opt->power, sizeof opt->power);
    for (int i = 0; i < opt->class->states; ++i)
        memcpy(twin->state[i], opt->state[i], opt->count * sizeof *opt->state[i]);
    for (int i = 0; i < opt->parts; ++i) twin->part[i].second = opt->part[i].second;
    return twin;
}

/* One thread of a trainer: rank 0 with what the caller gave, each other rank with twins, which only train. */
static dt_err dti_crew_rank(dt_comm *comm, void *crew) {
    const dti_crew *c = crew;
    if (dt_comm_rank(comm) == 0) return c->trainer(c->net, c->opt, comm, c->d, c->result);
    dt_train_desc d = *c->d;
    dt_train_result result;
    dt_net *net = dt_net_clone(c->net);
    dt_optimizer *opt = net ? dti_optimizer_twin(c->opt, net) : NULL;
    d.on_step = NULL;
    const dt_err error = opt ? c->trainer(net, opt, comm, &d, &result) : DT_ENOMEM;
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error;
}
#endif

/* A trainer that was called without a communicator: d->threads ranks, of which 1 needs no threads. */
static dt_err dti_train_on_threads(dti_trainer *trainer, const char *who, dt_net *net,
                                   dt_optimizer *opt, const dt_train_desc *d,
                                   dt_train_result *result) {
    if (!d || !result || d->threads < 1 || d->threads > 1024)
        return dt_fail(DT_EARG, "%s: comm and result must not be NULL, or desc->threads is 1..1024", who);
    if (d->threads == 1) {
        dt_comm *alone = dt_comm_alone();
        const dt_err error = alone ? trainer(net, opt, alone, d, result) : DT_ENOMEM;
        dt_comm_free(alone);
        return error;
    }
#ifdef DTRAIN_WITH_THREADS
    DT_TRY(dti_check_train(who, net, opt, d));
    dti_crew crew = { trainer, net, opt, d, result };
    return dt_run_ranks(d->threads, dti_crew_rank, &crew);
#else
    return dt_fail(DT_EARG, "%s: %d threads need DTRAIN_WITH_THREADS", who, d->threads);
#endif
}
#endif

/* ==== [E3] MPI =============================================================

   What differs where ranks are processes: how a communicator is made of an MPI group, how messages travel,
   and how MPI is left at the end. The plain way is to call MPI for everything. But its blocking calls spin
   inside the library and so hold a core that another rank may need: a blocking MPI_Allreduce of 88 KB over
   more ranks than cores took 11 to 44 ms (MPICH, November 2026). So each MPI operation is started, and then
   tested in the same loop as everything else [E2.3], which gives the core away between the tests. And where
   the ranks of a host can map one window of memory, sums and signs of life need no messages at all:

       window of a host    | board [E4] | seat 0 | seat 1 | ... | block [E2.4]: places, locks, lines, chunks |
                                                                  only where all ranks are on one host

   To read: dti_mpi_wrap makes the communicator, dti_mpi_share maps the window, dti_mpi_post and dti_mpi_test
   carry a message, dti_mpi_close leaves MPI, in an order that older MPICH over TCP needs. */

/* ==== [E3.1] What the launcher says ========================================

   A process knows from its environment, before MPI has started, how many ranks its job has and which one it
   is. Each launcher says it in variables of its own, by which the doctor [E5.1] tells that a program was
   started by the launcher of another MPI than its own. To read: dti_launch. */
#ifdef DTI_IMPLEMENT
/* The number in a variable of the environment. */
static int dti_environment(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* The variables of each: how many ranks there are, which one we are, how many are on this host. */
typedef struct dti_launcher { const char *size, *rank, *here, *name; } dti_launcher;
static const dti_launcher dti_launchers[] = {
    { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI" },
    { "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPICH" },
    { "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "", "Slurm" } };

/* The launcher that has started several processes together, of which we are one. NULL: none has. */
static const dti_launcher *dti_launch(int *ranks, int *rank) {
    *ranks = *rank = 0;
    for (size_t i = 0; i < sizeof dti_launchers / sizeof *dti_launchers; ++i) {
        *ranks = dti_environment(dti_launchers[i].size, 0), *rank = dti_environment(dti_launchers[i].rank, 0);
        if (*ranks > 1) return &dti_launchers[i];
    }
    return NULL;
}

DTI_LOCAL int dti_launched_ranks(void) {
    int ranks, rank;
    return dti_launch(&ranks, &rank) ? ranks : 0;
}
#endif

/* ==== [E3.2] Messages, and the hosts' memory ===============================

   The four functions of a backend [E2.1], by MPI: a message is started (dti_mpi_post) and asked after
   (dti_mpi_test), never waited for inside of MPI. And the memory that the ranks of one host map, which is all
   that sums and signs of life need there. A job's way through this room:

       dt_comm_mpi        stack and /dev/shm looked at, MPI_Init_thread, then dti_mpi_wrap:
         dti_mpi_hosts      who shares a host with whom; the first rank of each is its leader
         dti_mpi_share      a window of memory for each host; zeroed, then everybody takes a seat
       ...                the job
       dti_mpi_close      GOODBYE, all greet all, ENDING, groups freed, MPI_Finalize, ENDED     [E4.7] */
#ifdef DTI_IMPLEMENT
#ifdef DTRAIN_WITH_MPI
#ifdef __linux__
#include <sys/mman.h>
/* Zeroed memory that processes forked later see as well. NULL if there is none. */
static void *dti_map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void dti_unmap(void *memory, size_t bytes) { munmap(memory, bytes); }
#else
static void *dti_map(size_t bytes) { (void)bytes; return NULL; }
static void dti_unmap(void *memory, size_t bytes) { (void)memory, (void)bytes; }
#endif

/* What only this room works with. */
struct dti_mpi_group {
    MPI_Comm group, messages;         /* collectives and the steps of all-reduces; dt_send and dt_recv */
    MPI_Comm leaders;                 /* the first ranks of the hosts; MPI_COMM_NULL on all others */
    MPI_Win  window;                  /* memory that the ranks of this host share */
    bool     has_window, ends;        /* ends: we have started MPI, and so end it */
};

/* MPI says "Message truncated" where two ranks are at different places: more comes than is waited for. */
static dt_err dti_mpi_failed(const dt_comm *c, const char *what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0, kind = 0;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE)
        return dt_fail(DT_ECOMM, "another rank sends more than this one expects: not all ranks run the same "
                       "program, or call the same collectives");
    MPI_Error_string(code, text, &length);
    return dt_fail(DT_ECOMM, "rank %d: %s: %s", c->rank, what, text);
}

/* MPI_Test belongs to no communicator: what goes wrong in it is reported to MPI_COMM_WORLD, which ends the
   job in MPI's words. So where we have started MPI, errors there come back to us while we test; all others
   stay fatal. */
static bool dti_mpi_testing;

static void dti_mpi_error(MPI_Comm *comm, int *code, ...) {
    if (dti_mpi_testing) return;
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_call_errhandler(*comm, *code);
}

static void dti_mpi_errors_return(void) {
    MPI_Errhandler handler;
    MPI_Comm_create_errhandler(dti_mpi_error, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    MPI_Errhandler_free(&handler);
}

static int dti_mpi_ask(MPI_Request *request, int *done, MPI_Status *status) {
    dti_mpi_testing = true;
    const int code = MPI_Test(request, done, status);
    dti_mpi_testing = false;
    return code;
}

static dt_err dti_mpi_post(dt_comm *c, dti_message *m) {
    MPI_Comm comm = m->lane == DTI_FLIGHTS ? c->mpi->messages : c->mpi->group;
    if (m->bytes > INT_MAX) return dt_fail(DT_EARG, "a message of %zu bytes is longer than 2 GB", m->bytes);
    int code = m->incoming ? MPI_Irecv(m->buf, (int)m->bytes, MPI_BYTE, m->peer, m->tag, comm, &m->mpi)
                           : MPI_Isend(m->buf, (int)m->bytes, MPI_BYTE, m->peer, m->tag, comm, &m->mpi);
    m->pending = true;
    return code == MPI_SUCCESS ? DT_OK : dti_mpi_failed(c, m->incoming ? "MPI_Irecv" : "MPI_Isend", code);
}

/* Is it through? Of what has come, the length must be the one that was expected. */
static dt_err dti_mpi_test(dt_comm *c, dti_message *m) {
    int done = 0, bytes = 0;
    MPI_Status status;
    int code = dti_mpi_ask(&m->mpi, &done, &status);
    if (code != MPI_SUCCESS) return dti_mpi_failed(c, m->incoming ? "receiving" : "sending", code);
    if (!done) return DT_OK;
    m->pending = false;
    if (!m->incoming) return DT_OK;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if ((size_t)bytes == m->bytes) return DT_OK;
    return dt_fail(DT_ECOMM, "rank %d expects %zu bytes from rank %d, which sends %d: not all ranks run the "
                   "same program, or call the same collectives", c->rank, m->bytes, m->peer, bytes);
}

static dt_err dti_mpi_reduce_start(dt_comm *c, dti_flight *f) {
    MPI_Datatype type = f->d.type == DT_F32 ? MPI_FLOAT : f->d.type == DT_F64 ? MPI_DOUBLE : MPI_INT64_T;
    MPI_Op op = f->d.op == DT_SUM ? MPI_SUM : f->d.op == DT_MIN ? MPI_MIN : MPI_MAX;
    if (f->d.n > INT_MAX)
        return dt_fail(DT_EARG, "all-reduce by mpi: %zu elements, at most %d", f->d.n, INT_MAX);
    c->cost.bytes += f->d.n * f->size;
    int code = MPI_Iallreduce(MPI_IN_PLACE, f->d.buf, (int)f->d.n, type, op, c->mpi->group, &f->mpi);
    return code == MPI_SUCCESS ? DT_OK : dti_mpi_failed(c, "MPI_Iallreduce", code);
}

static dt_err dti_mpi_reduce_test(dt_comm *c, dti_flight *f, bool *done) {
    int flag = 0, code = dti_mpi_ask(&f->mpi, &flag, MPI_STATUS_IGNORE);
    *done = flag != 0;
    return code == MPI_SUCCESS ? DT_OK : dti_mpi_failed(c, "MPI_Iallreduce", code);
}

/* MPI_Abort would add a line of its own, and takes half a second over several hosts; so it is the last
   resort. */
static void dti_mpi_stop(dt_comm *c, int exit_code) {
    if (dti_job_ends(c)) _exit(exit_code ? exit_code : 1);
    MPI_Abort(c->mpi->group, exit_code ? exit_code : 1);
}

/* A byte from each rank to each other one. A rank that has them all knows that all have come here. */
static void dti_mpi_greet(dt_comm *c) {
    MPI_Request *request = dti_alloc(2 * (size_t)c->size * sizeof *request);
    char *heard = dti_alloc((size_t)c->size);
    for (int r = 0; r < c->size && request && heard; ++r) {
        MPI_Irecv(&heard[r], 1, MPI_BYTE, r, 0, c->mpi->group, &request[2 * r]);
        MPI_Isend("", 1, MPI_BYTE, r, 0, c->mpi->group, &request[2 * r + 1]);
    }
    for (int i = 0; i < 2 * c->size && request && heard; ++i) MPI_Wait(&request[i], MPI_STATUS_IGNORE);
    dti_release(request), dti_release(heard);
}

/* Whether this is an MPICH, before 4.2 and on UCX, whose MPI_Finalize may hang over TCP. It takes leave of
   every rank that it has sent to: it asks, and waits for an answer. A rank that has all its answers then
   waits for the others at the launcher, and while it does it answers nobody: one that comes to MPI_Finalize
   later asks in vain [1 job in 20 to 1 in 2; mended in 4.2 by pull request 6596]. */
static bool dti_mpich_hangs(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, major = 0, minor = 0;
    MPI_Get_library_version(text, &length);
    if (sscanf(text, "MPICH Version: %d.%d", &major, &minor) != 2 || major > 4 || (major == 4 && minor > 1))
        return false;
    /* that option: the launcher is spoken to in other words */
    return strstr(text, "ch4:ucx") && !strstr(text, "--with-pmi=");
}

/* Where it may hang, the ranks meet at the launcher before MPI_Finalize, by the line that MPICH sends there
   for the same purpose (PMI-1). So all enter it together, and none is asleep at the launcher when another
   asks. As every rank has greeted every other, each asks each; and a rank has its answer only when the
   other is inside as well. */
static void dti_meet_at_launcher(void) {
    static const char here[] = "cmd=barrier_in\n";
    const char *text = getenv("PMI_FD");
    const int line = text && dti_mpich_hangs() ? atoi(text) : -1;
    if (line < 0 || write(line, here, sizeof here - 1) != (ssize_t)sizeof here - 1) return;
    ssize_t n = 1;
    for (char letter = ' '; letter != '\n' && (n == 1 || (n < 0 && errno == EINTR));)
        n = read(line, &letter, 1);
}

/* Leaves MPI; the order is that of [E4.7]'s picture. */
static void dti_mpi_close(dt_comm *c) {
    int finalized = 0;
    MPI_Finalized(&finalized);
    dti_farewell(c, finalized ? DTI_ENDED : DTI_GOODBYE);
    if (finalized) { dti_release(c->mpi); return; }
    if (c->mpi->has_window) MPI_Win_unlock_all(c->mpi->window), MPI_Win_free(&c->mpi->window);
    dti_mpi_greet(c);
    dti_farewell(c, DTI_ENDING);  /* all have said goodbye, and what follows is quick */
    if (c->mpi->leaders != MPI_COMM_NULL) MPI_Comm_free(&c->mpi->leaders);
    if (c->mpi->messages != MPI_COMM_NULL) MPI_Comm_free(&c->mpi->messages);
    if (c->mpi->group != MPI_COMM_NULL) MPI_Comm_free(&c->mpi->group);
    if (c->mpi->ends) dti_meet_at_launcher(), MPI_Finalize();
    dti_farewell(c, DTI_ENDED);
    dti_release(c->mpi);
}

static const dti_backend dti_mpi = { "MPI", dti_mpi_post, dti_mpi_test, dti_mpi_stop, dti_mpi_close };

/* Room in /dev/shm, which is where memory for several processes comes from: free now, and in all. False where
   there is no such place, or none to write to; MPI libraries then look elsewhere. */
static bool dti_shm_room(uint64_t *now, uint64_t *all) {
    struct statvfs s;
    *now = *all = 0;
    if (statvfs("/dev/shm", &s) != 0 || (s.f_flag & ST_RDONLY)) return false;
    *now = (uint64_t)s.f_bavail * s.f_frsize, *all = (uint64_t)s.f_blocks * s.f_frsize;
    return true;
}

/* UCX, on which MPICH may stand, takes 5.2 MB of /dev/shm for each rank, and MPI_Init fails where it cannot
   have them, though there are other ways: so it is told not to ask, unless somebody has told it something
   else. */
static void dti_shm_avoid(void) {
    const uint64_t need = 6u << 20, ranks = (uint64_t)dti_launched_ranks();
    uint64_t now, all;
    if (ranks && (!dti_shm_room(&now, &all) || now < need || all < need * ranks))
        setenv("UCX_TLS", "^posix", 0);
}

/* A window of memory for the ranks of this host. Not every library begins it at a cache line (Open MPI does
   not); where it begins, counted from one, is the same for all. */
static bool dti_mpi_window(dt_comm *c, MPI_Comm local, size_t bytes, void **base) {
    MPI_Aint size = c->seat == 0 ? (MPI_Aint)bytes + 64 : 0;
    uint64_t now, all;
    /* a file there may be larger than the place: a bus error later */
    int unit = 1, room = !dti_shm_room(&now, &all) || now > bytes + 65536;
    MPI_Bcast(&room, 1, MPI_INT, 0, local);
    if (!room) return false;
    MPI_Comm_set_errhandler(local, MPI_ERRORS_RETURN);
    c->mpi->has_window = MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, local, base,
                                                 &c->mpi->window) == MPI_SUCCESS;
    bool good = c->mpi->has_window
        && MPI_Win_shared_query(c->mpi->window, 0, &size, &unit, base) == MPI_SUCCESS;
    if (c->mpi->has_window) MPI_Win_lock_all(MPI_MODE_NOCHECK, c->mpi->window);
    int shift = good ? (int)(-(uintptr_t)*base & 63u) : -1, ends[2] = { shift, -shift };
    MPI_Allreduce(MPI_IN_PLACE, ends, 2, MPI_INT, MPI_MAX, local);
    if (good) *base = (char *)*base + shift;
    return good && ends[0] == -ends[1];
}

/* Memory that the ranks of this host see: a board for failures, and where all ranks are on this host, a
   block for sums. Where it cannot be had (a container without /dev/shm) no rank has a block or a seat, and
   DT_AUTO means DT_MPI. Each of the two all-reduces says whether it went well on all ranks, and separates
   what they do: the memory is zeroed before anybody looks at it, and everybody has a seat before anybody
   watches. */
static void dti_mpi_share(dt_comm *c, MPI_Comm local) {
    size_t board = dti_board_bytes(c->here),
        bytes = board + (c->here == c->size ? dti_block_bytes(c->size) : 0);
    void *base = NULL;
    bool lone = c->here == 1 && c->size > 1;
    int good = lone ? (base = dti_map(bytes)) != NULL : dti_mpi_window(c, local, bytes, &base);
    if (good && c->seat == 0) {
        memset(base, 0, bytes);
        if (c->here == c->size) dti_block_open(base, c->size);
    }
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, local);
    if (good) good = dti_take_seat(c, base, lone ? bytes : 0) == DT_OK;
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, local);
    if (good && c->here == c->size) c->block = dti_block_behind(base, c->here);
    if (!good) (void)dti_take_seat(c, NULL, 0);
}

/* Counts the hosts and learns their names. */
static void dti_mpi_hosts(dt_comm *c, MPI_Comm local) {
    char mine[DTI_HOST];
    int leader = c->seat == 0;
    MPI_Comm_split(c->mpi->group, leader ? 0 : MPI_UNDEFINED, c->rank, &c->mpi->leaders);
    if (leader) MPI_Comm_rank(c->mpi->leaders, &c->away);
    MPI_Bcast(&c->away, 1, MPI_INT, 0, local);
    memcpy(mine, c->host[c->rank], sizeof mine);
    MPI_Allgather(mine, DTI_HOST, MPI_CHAR, c->host, DTI_HOST, MPI_CHAR, c->mpi->group);
    MPI_Allreduce(&leader, &c->hosts, 1, MPI_INT, MPI_SUM, c->mpi->group);
}

/* A communicator over an MPI group: two groups of our own, for collectives and for single messages; the
   hosts; the memory. */
static dt_comm *dti_mpi_wrap(MPI_Comm group, bool ends_mpi) {
    int rank = 0, size = 1;
    MPI_Comm local;
    MPI_Comm_rank(group, &rank);
    MPI_Comm_size(group, &size);
    dt_comm *c = dti_comm_new(&dti_mpi, rank, size);
    if (c) c->mpi = dti_alloc(sizeof *c->mpi);
    if (!c || !c->mpi) return dt_fail(DT_ENOMEM, "no memory for a communicator"), NULL;
    c->mpi->ends = ends_mpi;
    MPI_Comm_dup(group, &c->mpi->group);
    MPI_Comm_dup(group, &c->mpi->messages);
    MPI_Comm_set_errhandler(c->mpi->group, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(c->mpi->messages, MPI_ERRORS_RETURN);
    MPI_Comm_split_type(c->mpi->group, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local);
    MPI_Comm_size(local, &c->here);
    MPI_Comm_rank(local, &c->seat);
    dti_mpi_hosts(c, local);
    dti_mpi_share(c, local);
    MPI_Comm_free(&local);
    dti_beats_start(c);
    dti_comm_wait_from_environment(c);  /* again: now we know who shares our cores */
    return c;
}

DT_API dt_comm *dt_comm_from_mpi(const void *mpi_comm_pointer) {
    int started = 0, ended = 0;
    DTI_NEED(mpi_comm_pointer, "mpi_comm_pointer", NULL);
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (!started || ended)
        return dt_fail(DT_EARG, "dt_comm_from_mpi: MPI %s", ended ? "has ended" : "has not started"), NULL;
    if (*(const MPI_Comm *)mpi_comm_pointer == MPI_COMM_NULL)
        return dt_fail(DT_EARG, "dt_comm_from_mpi: the group is MPI_COMM_NULL"), NULL;
    return dti_mpi_wrap(*(const MPI_Comm *)mpi_comm_pointer, false);
}

/* MPI_Init crashes on a small stack [measured: MPICH 4.0.2 on UCX, at 140 KB, no longer at 150]. */
static dt_err dti_enough_stack(void) {
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= 192 * 1024) return DT_OK;
    return dt_fail(DT_ECOMM, "a stack of %u KB is too small for MPI, which takes 192; type ulimit -s 8192",
                   (unsigned)(stack.rlim_cur / 1024));
}

DT_API dt_comm *dt_comm_mpi(int *argc, char ***argv) {
    int started = 0, ended = 0, level = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (ended) return dt_fail(DT_EARG, "MPI has ended, and cannot be started again"), NULL;
    if (!started && dti_enough_stack() != DT_OK) return NULL;
    if (!started) dti_shm_avoid();
    if (!started && MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return dt_fail(DT_ECOMM, "MPI did not start"), NULL;
    if (!started) dti_mpi_errors_return();
    return dti_mpi_wrap(MPI_COMM_WORLD, !started);
}

#else /* without MPI */

static dt_err dti_mpi_reduce_start(dt_comm *c, dti_flight *f) {
    (void)c, (void)f;
    return dt_fail(DT_EARG, "no MPI");
}

static dt_err dti_mpi_reduce_test(dt_comm *c, dti_flight *f, bool *done) {
    (void)c, (void)f, *done = true;
    return DT_OK;
}

#endif /* DTRAIN_WITH_MPI */
#endif

/* ==== [E4] Failure =========================================================

   What happens when one rank of a job fails: it crashes, is stopped, loops for ever, or leaves while others
   still wait for it. Left alone, the others wait for ever without a word, and some of these failures end a
   job with exit code 0. The plain remedy, a time limit on every wait, blames a slow rank like a dead one,
   and comes too late to speak: when a process of a job dies, mpiexec kills the others within two
   milliseconds.

   Here each rank shows signs of life, a few stores into a board in memory that its host shares, and processes
   that are not ranks look at the board. When a rank fails, one line on standard error names it, its host, its
   step and what it was doing; the others are ended within seconds; and the job's exit code is not 0. This is
   the only room that prints, forks, or ends a process.

       mpiexec
         proxy of this host           the launcher's process on each host, which starts what is below
           guardian of rank 0         waits for rank 0, passes signals on to it, and ends non-zero if it fails
             rank 0                   trains
           guardian of rank 1
             rank 1
       usher of this host             hears all ranks and guardians, by sockets, until MPI has started
       watcher of this host           looks at the board, from then on

       the board    failed   hung   watched   patience          what the ranks of a host share about failure
         seat 0     state rank pid guardian | waiting stepping | moves ticks seen | step what | took
         seat 1     the same of the next rank; only that rank writes there, all may read

     usher     one for each host, while MPI starts. It names a rank that ends in MPI_Init, or never comes to
               it while others wait there, and ends the job.

     watcher   one for each host, from then on. It looks ten times a second; when a rank fails, it writes the
               line and kills the ranks of its host.

     guardian  one for each rank: the process that mpiexec started, whose child the rank is. It makes sure
               that the job does not end with 0, and that mpiexec does not act before the watcher has spoken.
               It watches until the rank is out of MPI_Finalize. What a program does after that is its own
               affair.

   How long a rank may be silent is its patience: 5 seconds, or 100 median steps if these take longer.
   Patience is counted only while nobody's work goes forward and at least one healthy rank waits, so a rank
   that is slow, or waits, or loses its core to other programs, is not blamed. Outside of training steps
   (loading, evaluating, saving) it is twelve times as long. A rank that a signal has stopped is named after
   the plain patience even if the others still work. For MPI to start it is six times as long, or twelve
   times if ranks of other hosts are missing, and only DTRAIN_PATIENCE can change it.

   To read: the pulse and the board [E4.1], then what one look makes of them, dti_look in [E4.3], which
   threads use as well: there every rank that waits also watches. Then the helpers: watcher [E4.4], usher
   [E4.5], guardian [E4.6]. Hosts have no board in common, and send each other beats [E4.2]. dt_comm_world
   [E4.7] starts it all. */

/* ==== [E4.1] Signs of life ==================================================

   A rank writes its signs of life into its seat on the board, with a few plain stores: no lock, no system
   call. `moves` counts whatever brings its work forward, `ticks` the tests that found nothing while it
   waits:

       moves go on                       it works
       only ticks go on, `waiting` is 1  it waits for another rank
       both stand still                  it is stuck, stopped or dead: the one to blame if others wait

   To read: dti_pulse, which is a seat, and dti_board; then dt_comm_progress [E4.2], which writes there. */
#ifdef DTI_DECLARE

/* Signs of life. Trainers call dt_comm_progress in every step, and again within it if there is a tensor to
   name; and dt_comm_phase for what is no step: "loading data", "evaluating". A few stores. 47 letters of
   `what` are kept; comm may be NULL. */
DT_API void dt_comm_progress(dt_comm *comm, uint64_t step, const char *what);
DT_API void dt_comm_phase(dt_comm *comm, const char *what);

/* Seconds, below four million; 0 is the default: the larger of 5 seconds and 100 median steps. Environment:
   DTRAIN_PATIENCE. */
DT_API void dt_comm_set_patience(dt_comm *comm, double seconds);

/* Starts this host's watcher, which writes to the file descriptor fd (2: standard error), or nowhere but
   still ends the job (-1). dt_comm_world has done it already, unless the environment says DTRAIN_WATCH=off;
   for dt_comm_mpi and dt_comm_from_mpi it is yours to call, on every rank, before much memory is in use.
   Without a watcher, and between threads, the ranks that wait watch the others, and return DT_ECOMM. DT_ECOMM
   if it cannot be started. */
DT_API dt_err dt_comm_watch(dt_comm *comm, int fd);

/* True on the first rank of a host that asks: it is the one to print its error, then to call dt_comm_abort.
   Where an error meets every rank alike, that makes one line of many. True for NULL: without a communicator
   there is no other rank to speak. */
DT_API bool dt_comm_may_speak(dt_comm *comm);

/* That line: "rank 2 (vm), step 17: " and dt_error(). With one rank, or NULL: dt_error() alone. */
DT_API void dt_comm_complaint(const dt_comm *comm, char *text, size_t size);

/* DT_ECOMM on every rank, naming the first rank that differs and what differs, unless `hash` is the same on
   all. A rank is said to differ from what most have; where no value has most, from rank 0. */
DT_API dt_err dt_comm_same(dt_comm *comm, const char *what, uint64_t hash);

#endif /* DTI_DECLARE */

#ifdef DTI_IMPLEMENT
#ifdef DTRAIN_WITH_MPI
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#endif
#endif

/* The times of this room, in seconds, and factors of patience. */
static const struct dti_clock {
    double counted;   /* the most that one look adds to a rank's silence. A process that looks late, because
                         it was itself kept from its core, has not seen whether the others moved meanwhile */
    double quiet;     /* so long without a sign of life, and /proc is asked whether a signal has stopped it */
    double alive;     /* a rank that waits is healthy if its ticks moved within this time: it naps for 0.02 */
    double patience;  /* unless asked for otherwise, or `steps` median steps take longer */
    double steps, loading, starting;  /* loading: outside of training steps; starting: for MPI to start */
} dti_clock = { .counted = 0.25, .quiet = 0.4, .alive = 1.0, .patience = 5.0,
                .steps = 100.0, .loading = 12.0, .starting = 6.0 };

static double dti_counted(double passed) { return passed < dti_clock.counted ? passed : dti_clock.counted; }

/* A rank's signs of life. Only it writes here; the ranks of its host and their watcher read. */
enum { DTI_UNBORN, DTI_RUNNING, DTI_GONE };   /* state: GONE has said goodbye */
typedef struct dti_pulse {
    _Alignas(64) _Atomic int state;
    _Atomic int rank, pid, guardian;  /* guardian: the process that waits for pid to end; 0: there is none */
    _Atomic int waiting;              /* inside of a wait [E2.3] */
    _Atomic int stepping;             /* in a training step, rather than loading, evaluating, saving */
    _Atomic uint64_t moves;           /* counts whatever brings the work forward */
    _Atomic uint64_t ticks;           /* counts tests that found nothing: alive, but waiting */
    _Atomic uint64_t seen;            /* when that last happened, in nanoseconds */
    _Atomic int64_t  step;            /* -1 before the first */
    _Atomic uint64_t what[6];         /* 47 letters: a tensor, or what is being done */
    _Atomic uint32_t took[16];        /* microseconds of the last steps */
} dti_pulse;

/* What the ranks of a host share about failure: this, then a pulse for each of them. */
typedef struct dti_board {
    _Alignas(64) _Atomic int failed;  /* 1 + the first rank that failed */
    _Atomic int hung;                 /* it has not come back since */
    _Atomic int watched;              /* by a watcher process; else each waiting rank watches the others */
    _Atomic uint32_t patience;        /* milliseconds; 0: the default */
} dti_board;

/* What a watcher remembers of a rank from look to look. */
typedef struct dti_glance { uint64_t moves, ticks; double silent, stopped; uint32_t looks; } dti_glance;
typedef struct dti_watch { double looked, still; uint64_t moves; } dti_watch;

/* What a rank keeps for itself about that. */
struct dti_signs {
    dti_board  *board;                /* NULL: the ranks of this host share no memory */
    dti_pulse  *pulse;                /* ours, on the board; never NULL */
    dti_pulse   own;                  /* where there is no board */
    void       *mapped;               /* the board, where we and our watcher alone see it; else NULL */
    size_t      mapped_bytes;
    uint64_t    moves, steps;
    double      step_began;
    dti_watch   watch;
    dti_glance *glance;               /* of each rank of this host */
    struct dti_guard *guard;          /* NULL: there is none */
    long        watcher;              /* its process, where we have started it */
    struct dti_peer *peer;            /* of each host, where there are several and we are a first rank */
    double      beaten, still;        /* when beats were last looked after; seconds without a move here */
    uint64_t    still_moves;
};

#ifdef DTRAIN_WITH_MPI
typedef struct dti_lines { int rank, guardians, ranks; } dti_lines;  /* two lines to the usher; -1: none */

/* What a rank and its guardian share. */
struct dti_guard {
    _Atomic int farewell, hosts, rank, seat;
    _Atomic int orphaned;             /* the process that started the guardian has ended */
    double patience;                  /* with MPI_Finalize, in seconds; set before farewell says ENDING */
    char host[DTI_HOST];
    dti_lines lines;                  /* to the usher */
};
#endif

/* Signs of life that nobody sees yet. */
static struct dti_signs *dti_signs_new(void) {
    struct dti_signs *l = dti_alloc(sizeof *l);
    if (!l) return NULL;
    l->pulse = &l->own;
    l->own.step = -1;
    return l;
}

static size_t dti_board_bytes(int ranks) { return sizeof(dti_board) + (size_t)ranks * sizeof(dti_pulse); }

static dti_pulse *dti_pulse_at(const dt_comm *c, int seat) {
    return (dti_pulse *)(void *)(c->signs->board + 1) + seat;
}

static void dti_be_patient(dt_comm *c, double seconds) {
    dti_board *board = c->signs->board;
    if (board && seconds >= 0.0 && seconds < 4e6) DTI_SET(board->patience, (uint32_t)(seconds * 1000.0));
}

/* Takes this rank's place on the board, which the backend has filled with zeros; gives it up where there is
   none. */
static dt_err dti_take_seat(dt_comm *c, struct dti_board *board, size_t mapped) {
    const char *patience = getenv("DTRAIN_PATIENCE");
    struct dti_signs *l = c->signs;
    double seconds;
    if (!l->glance) l->glance = dti_alloc((size_t)c->here * sizeof *l->glance);
    if (!l->glance) return DT_ENOMEM;
    l->board = board;
    l->pulse = board ? dti_pulse_at(c, c->seat) : &l->own;
    if (mapped) l->mapped = board, l->mapped_bytes = mapped;
    if (!board) return DT_OK;
    DTI_SET(l->pulse->step, -1);
    DTI_SET(l->pulse->rank, c->rank);
    DTI_SET(l->pulse->pid, dti_process());
    atomic_store_explicit(&l->pulse->state, DTI_RUNNING, memory_order_release);
    if (patience && dt_number_parse(patience, &seconds) == DT_OK) dti_be_patient(c, seconds);
    return DT_OK;
}

static void dti_leave_seat(dt_comm *c) {
    atomic_store_explicit(&c->signs->pulse->state, DTI_GONE, memory_order_release);
}

static void dti_signs_free(dt_comm *c) {
#ifdef DTRAIN_WITH_MPI
    if (c->signs->mapped) dti_unmap(c->signs->mapped, c->signs->mapped_bytes);
#endif
    dti_release(c->signs->glance);
    dti_release(c->signs);
    c->signs = NULL;
}

static bool dti_fails_first(dt_comm *c) {
    int failed = 0;
    return atomic_compare_exchange_strong(&c->signs->board->failed, &failed, c->rank + 1)
        || failed == c->rank + 1;
}

DTI_LOCAL int dti_failed_rank(struct dti_board *b, bool *hung) {
    *hung = atomic_load(&b->hung) != 0;
    return atomic_load(&b->failed) - 1;
}

static void dti_moved(dt_comm *c) { DTI_SET(c->signs->pulse->moves, ++c->signs->moves); }

static void dti_waits(dt_comm *c, bool waits) { DTI_SET(c->signs->pulse->waiting, waits); }

DT_API void dt_comm_set_patience(dt_comm *c, double seconds) {
    DTI_NEED(c, "comm", );
    if (seconds >= 0.0 && seconds < 4e6) dti_be_patient(c, seconds);
    else (void)dt_fail(DT_EARG, "patience of %g seconds; needs 0 to 4000000", seconds);
}

static void dti_pulse_say(dti_pulse *p, const char *what) {
    char text[sizeof p->what] = "";
    uint64_t word[sizeof p->what / 8];
    for (size_t i = 0; i + 1 < sizeof text && what && what[i]; ++i) text[i] = what[i];
    memcpy(word, text, sizeof text);
    for (size_t i = 0; i < sizeof word / sizeof *word; ++i) DTI_SET(p->what[i], word[i]);
}

static bool dti_running(const dt_comm *c, int seat) {
    return atomic_load_explicit(&dti_pulse_at(c, seat)->state, memory_order_acquire) == DTI_RUNNING;
}

static double dti_median_step(const dti_pulse *p) {
    uint32_t took[16], n = 0;
    for (int i = 0; i < 16; ++i) {
        uint32_t x = DTI_GET(p->took[i]), at = n;
        if (!x) continue;
        for (; at > 0 && took[at - 1] > x; --at) took[at] = took[at - 1];
        took[at] = x, ++n;
    }
    return n ? took[n / 2] * 1e-6 : 0.0;
}

static double dti_patience(const dt_comm *c) {
    double said = DTI_GET(c->signs->board->patience) * 1e-3, patience = dti_clock.patience;
    if (said > 0.0) return said;
    for (int i = 0; i < c->here; ++i) {
        double steps = dti_clock.steps * dti_median_step(dti_pulse_at(c, i));
        if (steps > patience) patience = steps;
    }
    return patience;
}

static bool dti_under_mpi(const dt_comm *c) { return c->backend->name[0] == 'M'; }
#endif

/* ==== [E4.2] Heartbeats between hosts =====================================

   A watcher sees its own host only. So the first rank of each host sends the first ranks of the others a
   beat twice a second, whenever it passes here: in a wait, at a step, at a phase. A beat says where the
   rank is, and for how long all ranks of its host have done nothing but wait. A host is missed by another
   on which all ranks wait and nothing moves, if no beat of it came for the whole patience; its first rank
   is the one that is named. And if all hosts say that all of their ranks wait, they wait for each other.

       host A   board, watcher          host B   board, watcher
         rank 0  ----- beat, 2 a second ----->     rank 2         the first ranks of their hosts
                <----------------------------
         rank 1                                    rank 3         these send nothing

   A beat is some eighty bytes, sent and received without waiting. To read: dti_beats, dti_miss_a_host. */
#ifdef DTI_IMPLEMENT
#ifdef DTRAIN_WITH_MPI

typedef struct dti_beat {
    int64_t  step;
    uint64_t what[6];
    int32_t  rank, pid, stepping, leaving;
    int32_t  gone;                /* a rank of this host that has said goodbye; -1: none has */
    float    still;  /* seconds for which all ranks of this host have waited, and none has moved */
} dti_beat;
struct dti_peer {
    dti_beat    in, out, last;
    MPI_Request coming, going;
    uint64_t    got, sent;
    double      silent;        /* seconds since its last beat came, as counted here */
    double      told;          /* when our last one was sent to it */
};

static void dti_beats_start(dt_comm *c) {
    if (c->hosts < 2 || c->seat != 0 || !c->signs->board) return;
    c->signs->peer = dti_alloc((size_t)c->hosts * sizeof *c->signs->peer);
    for (int h = 0; h < c->hosts && c->signs->peer; ++h) {
        struct dti_peer *p = &c->signs->peer[h];
        p->coming = p->going = MPI_REQUEST_NULL;
        p->last.rank = -1;  /* nothing is known of it, and it is not blamed */
        if (h != c->away) MPI_Irecv(&p->in, (int)sizeof p->in, MPI_BYTE, h, 0, c->mpi->leaders, &p->coming);
    }
}

/* True if each rank of this host waits or has said goodbye. *gone: one that has; -1: none. */
static bool dti_all_wait(const dt_comm *c, int *gone) {
    *gone = -1;
    for (int i = 0; i < c->here; ++i)
        if (!dti_running(c, i)) *gone = DTI_GET(dti_pulse_at(c, i)->rank);
        else if (!DTI_GET(dti_pulse_at(c, i)->waiting)) return false;
    return true;
}

/* A beat to the first rank of that host, unless the one before is still on its way. */
static void dti_beat_send(dt_comm *c, int host) {
    struct dti_peer *p = &c->signs->peer[host];
    const bool leaving = DTI_GET(c->signs->pulse->state) == DTI_GONE;
    int free_again = 0, gone;
    const bool wait = dti_all_wait(c, &gone);
    MPI_Test(&p->going, &free_again, MPI_STATUS_IGNORE);
    if (!free_again && !leaving) return;  /* the other side is slow: one at a time is enough */
    if (!free_again) MPI_Wait(&p->going, MPI_STATUS_IGNORE);
    const dti_pulse *own = c->signs->pulse;
    p->out = (dti_beat){ .step = DTI_GET(own->step), .rank = c->rank, .pid = DTI_GET(own->pid),
                         .stepping = DTI_GET(own->stepping), .leaving = leaving, .gone = gone,
                         .still = wait ? (float)c->signs->still : 0.0f };
    for (int i = 0; i < 6; ++i) p->out.what[i] = DTI_GET(own->what[i]);
    MPI_Isend(&p->out, (int)sizeof p->out, MPI_BYTE, host, 0, c->mpi->leaders, &p->going);
    ++p->sent;
}

/* Takes in what has come, and sends what is due: ten looks and two beats a second. */
static void dti_beats(dt_comm *c, bool at_once) {
    const double now = c->signs->peer ? dt_now() : 0.0, passed = now - c->signs->beaten;
    if (!c->signs->peer || (passed < 0.1 && !at_once)) return;
    c->signs->beaten = now;
    for (int h = 0; h < c->hosts; ++h) {
        struct dti_peer *p = &c->signs->peer[h];
        if (h == c->away) continue;
        p->silent += dti_counted(passed);
        for (int came = 1; MPI_Test(&p->coming, &came, MPI_STATUS_IGNORE) == MPI_SUCCESS && came;) {
            p->last = p->in, p->silent = 0.0, ++p->got;
            MPI_Irecv(&p->in, (int)sizeof p->in, MPI_BYTE, h, 0, c->mpi->leaders, &p->coming);
        }
        if (now < p->told + 0.5 && !at_once) continue;
        p->told = now;
        dti_beat_send(c, h);
    }
    uint64_t moves = 0;
    for (int i = 0; i < c->here; ++i) moves += DTI_GET(dti_pulse_at(c, i)->moves);
    const bool moved = moves != c->signs->still_moves;
    c->signs->still = moved ? 0.0 : c->signs->still + dti_counted(passed);
    c->signs->still_moves = moves;
}

/* Called in a wait. DT_ECOMM if a host from which this one waits for something has gone silent; or if all
   hosts do nothing but wait. Not while a rank of this host is at work: it may be what the others wait for,
   and if it is stuck our own watcher names it. */
static dt_err dti_miss_a_host(dt_comm *c) {
    int gone, standing = 1;
    if (!c->signs->peer || c->signs->still < 0.1 || !dti_all_wait(c, &gone)) return DT_OK;
    const double patience = dti_patience(c);
    for (int h = 0; h < c->hosts; ++h) {
        const struct dti_peer *p = &c->signs->peer[h];
        /* a second more than that host's own watcher takes, which knows more and is to speak first */
        const double factor = p->last.stepping || p->last.leaving ? 1.0 : dti_clock.loading;
        const double enough = 1.0 + factor * patience;
        if (h != c->away && p->last.rank >= 0 && p->last.gone >= 0) gone = p->last.gone;
        standing += h != c->away && p->last.rank >= 0 && (double)p->last.still > patience;
        if (h == c->away || p->last.rank < 0 || c->signs->still <= enough || p->silent <= enough) continue;
        char what[sizeof p->last.what], where[48] = "before the first step";
        memcpy(what, p->last.what, sizeof what);
        what[sizeof what - 1] = '\0';
        if (p->last.step >= 0)
            snprintf(where, sizeof where, "%s step %lld", p->last.leaving ? "after" : "in",
                     (long long)p->last.step);
        return dt_fail(DT_ECOMM, "rank %d (%s, process %d) %s, last seen %s%s%s%s; the others have waited "
                       "%d s", (int)p->last.rank, dt_comm_host(c, p->last.rank), (int)p->last.pid,
                       p->last.leaving ? "has left, though others wait for it" : "is not heard from",
                       where, what[0] ? " (" : "", what, what[0] ? ")" : "", (int)c->signs->still);
    }
    if (standing < c->hosts || c->signs->still <= patience) return DT_OK;
    if (gone >= 0)
        return dt_fail(DT_ECOMM, "rank %d (%s) has left, though others wait for it", gone,
                       dt_comm_host(c, gone));
    return dt_fail(DT_ECOMM, "all ranks wait for each other: they do not call the same collectives");
}

/* Says goodbye, and takes in the beats that are still under way: each host tells the others how many it has
   sent them. */
static void dti_beats_stop(dt_comm *c) {
    if (!c->signs->peer) return;
    uint64_t *count = dti_alloc(2 * (size_t)c->hosts * sizeof *count);
    dti_beats(c, true);
    for (int h = 0; h < c->hosts && count; ++h) count[h] = c->signs->peer[h].sent;
    if (count) MPI_Alltoall(count, 1, MPI_UINT64_T, count + c->hosts, 1, MPI_UINT64_T, c->mpi->leaders);
    for (int h = 0; h < c->hosts && count; ++h) {
        struct dti_peer *p = &c->signs->peer[h];
        if (h == c->away) continue;
        for (; p->got < count[c->hosts + h]; ++p->got) {
            MPI_Wait(&p->coming, MPI_STATUS_IGNORE);
            MPI_Irecv(&p->in, (int)sizeof p->in, MPI_BYTE, h, 0, c->mpi->leaders, &p->coming);
        }
        MPI_Cancel(&p->coming);
        MPI_Wait(&p->coming, MPI_STATUS_IGNORE);
        MPI_Wait(&p->going, MPI_STATUS_IGNORE);
    }
    dti_release(count);
    dti_release(c->signs->peer);
    c->signs->peer = NULL;
}
#else
static void dti_beats(dt_comm *c, bool at_once) { (void)c, (void)at_once; }
static dt_err dti_miss_a_host(dt_comm *c) { (void)c; return DT_OK; }
#endif

DT_API void dt_comm_progress(dt_comm *c, uint64_t step, const char *what) {
    if (!c) return;
    dti_pulse *p = c->signs->pulse;
    const bool first = !DTI_GET(p->stepping);
    if (first || DTI_GET(p->step) != (int64_t)step) {
        double now = dt_now(), took = (now - c->signs->step_began) * 1e6;
        if (DTI_GET(p->stepping))
            DTI_SET(p->took[c->signs->steps++ % 16], took < 4e9 ? (uint32_t)took : UINT32_MAX);
        c->signs->step_began = now;
        DTI_SET(p->seen, (uint64_t)(now * 1e9));
        DTI_SET(p->step, (int64_t)step);
        DTI_SET(p->stepping, 1);
    }
    dti_pulse_say(p, what);
    dti_moved(c);
    dti_beats(c, first);
}

DT_API void dt_comm_phase(dt_comm *c, const char *what) {
    if (!c) return;
    DTI_SET(c->signs->pulse->stepping, 0);
    dti_pulse_say(c->signs->pulse, what);
    dti_moved(c);
    dti_beats(c, true);
}
#endif

/* ==== [E4.3] Who has failed =================================================

   One look at all ranks of the host (dti_look). It compares each rank's numbers with those of the look
   before, its glance, and so knows since when neither moves nor ticks have changed. The watcher looks ten
   times a second; where there is none (threads; DTRAIN_WATCH=off) each rank that waits looks, twenty times
   a second, and when one finds a failure all that wait return DT_ECOMM. */
#ifdef DTI_IMPLEMENT
/* Appends to a text, as printf would with %s, %d and %llu, of which alone it knows. Without the C library: a
   child of fork may call only few of its functions until it calls exec. Numbers are not negative. */
static void dti_add_text(char *text, size_t size, const char *format, ...) DTI_PRINTF(3, 4);
static void dti_add_text(char *text, size_t size, const char *format, ...) {
    size_t n = 0;
    va_list args;
    while (n < size && text[n]) ++n;
    va_start(args, format);
    for (; *format; ++format) {
        char digits[24] = "";
        char *at = digits + sizeof digits - 2;
        const char *more = at;
        if (*format != '%') *at = *format;
        else if (*++format == 's') more = va_arg(args, const char *);
        else {
            unsigned long long number = 0;
            if (*format == 'd') number = (unsigned)va_arg(args, int);
            else number = va_arg(args, unsigned long long), format += 2;
            for (*at = (char)('0' + number % 10); number /= 10;) *--at = (char)('0' + number % 10);
            more = at;
        }
        while (n + 1 < size && *more) text[n++] = *more++;
    }
    if (n < size) text[n] = '\0';
    va_end(args);
}

typedef enum dti_fate { DTI_FINE, DTI_DEAD, DTI_STOPPED, DTI_STUCK, DTI_LEFT, DTI_CIRCLE } dti_fate;

/* "rank 1 (vm, process 4711) makes no progress, in step 17 (gradients); others have waited 5 s for it" */
static void dti_obituary(const dt_comm *c, int seat, dti_fate fate, char *text, size_t size) {
    static const char *const says[] = {
        "is well", "ended without saying goodbye", "is stopped by a signal", "makes no progress",
        "has left, though others wait for it",
        "and the others wait for each other: they do not call the same collectives" };
    const dti_pulse *p = dti_pulse_at(c, seat);
    uint64_t word[sizeof p->what / 8];
    char what[sizeof word];
    int rank = DTI_GET(p->rank);
    for (size_t i = 0; i < sizeof word / sizeof *word; ++i) word[i] = DTI_GET(p->what[i]);
    memcpy(what, word, sizeof what);
    what[sizeof what - 1] = '\0';
    text[0] = '\0';
    dti_add_text(text, size, "rank %d (%s, process %d) %s", rank, dt_comm_host(c, rank), DTI_GET(p->pid),
                 says[fate]);
    if (DTI_GET(p->step) < 0) dti_add_text(text, size, ", before the first step");
    else dti_add_text(text, size, ", %s step %llu", DTI_GET(p->stepping) ? "in" : "after",
                    (unsigned long long)DTI_GET(p->step));
    if (what[0]) dti_add_text(text, size, " (%s)", what);
    else if (DTI_GET(p->waiting)) dti_add_text(text, size, " (in a collective)");
}

#ifdef DTRAIN_WITH_MPI
/* The letter that Linux gives to a process: R runs, S sleeps, T stopped, Z dead but not yet buried; ' ' if
   unknown. And its parent, 0 if unknown. They stand behind its name: "4711 (name) S 4710 ..." */
static char dti_process_stat(int pid, int *parent) {
    char path[40] = "", text[512];
    dti_add_text(path, sizeof path, "/proc/%d/stat", pid);
    const int file = open(path, O_RDONLY);
    const ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');     /* the name may hold anything, also this */
    const bool good = end && strlen(end) > 4;
    *parent = good ? atoi(end + 4) : 0;
    return good ? end[2] : ' ';
}

static char dti_process_state(int pid) { int parent; return dti_process_stat(pid, &parent); }

/* True if there is no such process. */
static bool dti_gone(long pid) { return kill((pid_t)pid, 0) != 0 && errno == ESRCH; }
#else /* threads are one process, which lives while it asks */
static char dti_process_state(int pid) { return (void)pid, ' '; }
static bool dti_gone(long pid) { return (void)pid, false; }
#endif

/* Whether a signal has stopped the rank; or, asked once a second, its guardian: that is the process whose
   number mpiexec shows, and so the one that a user stops. */
static bool dti_stopped(const dti_pulse *p, dti_glance *g) {
    int guardian = DTI_GET(p->guardian);
    if (g->silent > dti_clock.quiet && dti_process_state(DTI_GET(p->pid)) == 'T') return true;
    return guardian && (g->stopped > 0.0 || ++g->looks % 10 == 0) && dti_process_state(guardian) == 'T';
}

/* Updates what is remembered of each rank; returns how many healthy ones wait. */
static int dti_glances(dt_comm *c, double dt, bool processes) {
    uint64_t moves = 0;
    int waiters = 0;
    for (int i = 0; i < c->here; ++i) {
        const dti_pulse *p = dti_pulse_at(c, i);
        dti_glance *g = &c->signs->glance[i];
        uint64_t m = DTI_GET(p->moves), t = DTI_GET(p->ticks);
        g->silent = m != g->moves || t != g->ticks ? 0.0 : g->silent + dt;
        g->moves = m, g->ticks = t;
        moves += m;
        bool stopped = processes && dti_running(c, i) && dti_stopped(p, g);
        g->stopped = stopped ? g->stopped + dt : 0.0;
        waiters += dti_running(c, i) && DTI_GET(p->waiting) && g->silent < dti_clock.alive;
    }
    c->signs->watch.still = moves == c->signs->watch.moves && waiters ? c->signs->watch.still + dt : 0.0;
    c->signs->watch.moves = moves;
    return waiters;
}

/* The rank to blame: of those that are not in a wait the most silent one; if all are in a wait, one whose
   tests have stopped. -1: there is none. */
static int dti_culprit(const dt_comm *c) {
    int worst = -1;
    for (int waiting = 0; waiting < 2 && worst < 0; ++waiting)
        for (int i = 0; i < c->here; ++i) {
            if (!dti_running(c, i) || DTI_GET(dti_pulse_at(c, i)->waiting) != waiting
                || c->signs->glance[i].silent < (waiting ? dti_clock.alive : 0.0)) continue;
            if (worst < 0 || c->signs->glance[i].silent > c->signs->glance[worst].silent) worst = i;
        }
    return worst;
}

/* The fate of the rank at *seat, which has failed; DTI_FINE if none has. */
static dti_fate dti_look(dt_comm *c, bool processes, int *seat) {
    double now = dt_now(), dt = now - c->signs->watch.looked, patience;
    c->signs->watch.looked = now;
    int waiters = dti_glances(c, dti_counted(dt), processes), others = 0, stopped = 0;
    for (int i = 0; i < c->here; ++i) {
        stopped += c->signs->glance[i].stopped > 0.0;
        others += c->signs->glance[i].silent < dti_clock.quiet || !dti_running(c, i);
    }
    if (c->signs->watch.still == 0.0 && !stopped) return DTI_FINE;
    patience = dti_patience(c);
    for (*seat = 0; *seat < c->here; ++*seat)
        if (c->signs->glance[*seat].stopped > patience && others) return DTI_STOPPED;
    if (c->signs->watch.still <= patience || !waiters) return DTI_FINE;
    *seat = dti_culprit(c);
    if (*seat >= 0) {
        if (c->signs->glance[*seat].stopped > 0.0) return DTI_STOPPED;
        const bool plain = DTI_GET(dti_pulse_at(c, *seat)->stepping);
        return plain || c->signs->watch.still > dti_clock.loading * patience ? DTI_STUCK : DTI_FINE;
    }
    if (c->hosts > 1) return DTI_FINE;  /* they may wait for a rank that we do not see */
    for (*seat = 0; *seat < c->here; ++*seat)
        if (!dti_running(c, *seat)) return DTI_LEFT;
    *seat = 0;
    return DTI_CIRCLE;
}

/* Writes on the board who has failed and how; false if another rank stands there already. */
static bool dti_blame(dt_comm *c, int seat, dti_fate fate) {
    int none = 0, rank = DTI_GET(dti_pulse_at(c, seat)->rank);
    DTI_SET(c->signs->board->hung, (int)fate);
    return atomic_compare_exchange_strong(&c->signs->board->failed, &none, rank + 1);
}

/* What a wait returns when another rank has failed. Under MPI that was said already, and we are about to be
   ended: so no second line is added, by keeping still for three seconds, in which that happens. */
static dt_err dti_give_up(dt_comm *c, int failed) {
    char text[320];
    dti_fate fate = (dti_fate)DTI_GET(c->signs->board->hung);
    int seat = 0;
    while (seat + 1 < c->here && DTI_GET(dti_pulse_at(c, seat)->rank) != failed) ++seat;
    if (dti_under_mpi(c) && !(fate && !DTI_GET(c->signs->board->watched))) dti_doze(3000000);
    if (!fate) return dt_fail(DT_ECOMM, "rank %d gave up because rank %d failed", c->rank, failed);
    dti_obituary(c, seat, fate, text, sizeof text);
    return dt_fail(DT_ECOMM, "%s", text);
}

/* What a rank does in a long wait: shows that it lives, sends beats, and where there is no watcher looks
   itself. */
static dt_err dti_look_around(dt_comm *c) {
    int seat = -1;
    dti_fate fate = DTI_FINE;
    double now = dt_now();
    DTI_SET(c->signs->pulse->seen, (uint64_t)(now * 1e9));
    dti_beats(c, false);
    DT_TRY(dti_miss_a_host(c));
    if (c->size == 1 || !c->signs->board || DTI_GET(c->signs->board->watched)
        || now < c->signs->watch.looked + 0.05) return DT_OK;
    for (int i = 0; i < c->here && dti_under_mpi(c) && fate == DTI_FINE; ++i)
        if (dti_running(c, i) && dti_gone(DTI_GET(dti_pulse_at(c, i)->pid))) seat = i, fate = DTI_DEAD;
    if (fate == DTI_FINE) fate = dti_look(c, dti_under_mpi(c), &seat);
    if (fate == DTI_FINE) return DT_OK;
    (void)dti_blame(c, seat, fate);
    return dti_give_up(c, atomic_load(&c->signs->board->failed) - 1);
}

static dt_err dti_idles(dt_comm *c) {
    const dti_board *board = c->signs->board;
    const int failed = board ? atomic_load_explicit(&board->failed, memory_order_acquire) : 0;
    if (failed) return dti_give_up(c, failed - 1);
    DTI_SET(c->signs->pulse->ticks, c->ticks);
    return DT_OK;
}

/* Claims the word for this rank: true for one rank of the job, as far as that can be known. */
static bool dti_speaks_first(dt_comm *c) {
    if (c->size == 1) return true;
    /* an error that meets every host alike is said by the first, which then ends all */
    dti_doze(300000l * (c->away < 5 ? c->away : 5)); /* 0.3 s a host, at most 1.5 s */
    if (!c->signs->board || dti_fails_first(c)) return true;
    return DTI_GET(c->signs->board->hung) && !DTI_GET(c->signs->board->watched)
        && !atomic_exchange(&c->signs->board->watched, 1);
}

DT_API bool dt_comm_may_speak(dt_comm *c) { return !c || dti_speaks_first(c); }

DT_API void dt_comm_complaint(const dt_comm *c, char *text, size_t size) {
    DTI_NEED(text || size == 0, "text", );
    int64_t step = c ? DTI_GET(c->signs->pulse->step) : -1;
    if (!c || c->size == 1) snprintf(text, size, "%s", dt_error());
    else if (step < 0) snprintf(text, size, "rank %d (%s): %s", c->rank, c->host[c->rank], dt_error());
    else snprintf(text, size, "rank %d (%s), step %lld: %s", c->rank, c->host[c->rank], (long long)step,
                  dt_error());
}

/* The rank whose value differs from most; -1 if none does. */
static int dti_odd_one(const uint64_t *all, size_t stride, int p) {
    int best = 0, most = 0, alike = 1;
    while (alike < p && all[(size_t)alike * stride] == all[0]) ++alike;
    for (int r = 0; r < p && alike < p; ++r) {
        int same = 0;
        for (int s = 0; s < p; ++s) same += all[(size_t)s * stride] == all[(size_t)r * stride];
        if (same > most) most = same, best = r;
    }
    for (int r = 0; r < p && alike < p; ++r)
        if (all[(size_t)r * stride] != all[(size_t)best * stride]) return r;
    return -1;
}

DT_API dt_err dt_comm_same(dt_comm *c, const char *what, uint64_t hash) {
    DTI_NEED(c && what, "comm and what", DT_EARG);
    const uint64_t mine[2] = { hash, dt_hash(what, strlen(what), 0) };
    if (c->size == 1) return DT_OK;
    DT_TRY(dt_allgather(c, mine, sizeof mine, c->compared));
    const int other = dti_odd_one(c->compared + 1, 2, c->size), odd = dti_odd_one(c->compared, 2, c->size);
    if (other >= 0)
        return dt_fail(DT_ECOMM, "rank %d (%s) is elsewhere in the program: it does not compare \"%s\"",
                       other, c->host[other], what);
    if (odd >= 0)
        return dt_fail(DT_ECOMM, "rank %d (%s) differs from the others in %s", odd, c->host[odd], what);
    return DT_OK;
}
#endif

/* ==== [E4.4] The watcher ==================================================

   A process that does nothing but look at the board. The first rank of the host that wants a watcher forks
   it; it knows all ranks by the board. A session of its own keeps it alive when the ranks are ended. It
   closes all files but the one to which it writes: mpiexec waits for that one to close, and so gets the
   line. A pidfd tells at once when a rank's process ends; where the system has none, each look asks for the
   process. To read: dti_watcher_main. */
#ifdef DTI_IMPLEMENT
#ifdef DTRAIN_WITH_MPI

/* The end of a helper that has ended its host's ranks. Slurm does not end those of other nodes because of
   that, unless srun was told --kill-on-bad-exit, and then not at once; so scancel asks it to. Not where
   mpiexec was typed inside of a Slurm step, which then is not ours. */
static void dti_watcher_leave(int size, int here) {
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    char name[64] = "";
    if (here < size && job && step && dti_environment("SLURM_STEP_NUM_TASKS", 0) == size) {
        dti_add_text(name, sizeof name, "%s.%s", job, step);
        execlp("scancel", "scancel", "--quiet", "--signal=KILL", name, (char *)NULL);
    }
    _exit(0);
}

/* What every helper does first: a session of its own, deaf to what ends a job, and only these two files
   open. */
static void dti_watcher_detach(int fd, int other) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    setsid();
    for (int number = 1; number < 32; ++number) {
        bool ignore = number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGPIPE;
        action.sa_handler = ignore ? SIG_IGN : SIG_DFL;
        sigaction(number, &action, NULL);
    }
    for (int i = 0; i < 1024; ++i)
        if (i != fd && i != other) close(i);
#if defined(__linux__) && defined(SYS_sched_setattr)
    /* A short time slice: Linux then lets it run as soon as it wakes, also on a busy machine. It is not
       needed, only quick. */
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t slice, deadline, period;
    } fast = { .size = 48, .slice = 100000 };
    syscall(SYS_sched_setattr, 0, &fast, 0);
#endif
}

static void dti_watcher_kill(const dt_comm *c) {
    for (int i = 0; i < c->here; ++i)
        if (dti_running(c, i)) {
            int guardian = DTI_GET(dti_pulse_at(c, i)->guardian);
            kill((pid_t)DTI_GET(dti_pulse_at(c, i)->pid), SIGKILL);
            if (guardian && c->signs->glance[i].stopped > 0.0) kill((pid_t)guardian, SIGKILL);
        }
}

/* Writes a sentence, without the C library's buffers. That it may fail changes nothing. */
static void dti_say(int fd, const char *text) {
    const ssize_t n = write(fd, text, strlen(text));
    (void)n;
}

/* The watcher's last act: the line, the ranks of this host killed, itself ended. */
static void dti_watcher_end(dt_comm *c, int fd, int seat, dti_fate fate) {
    char text[384] = "", about[320];
    int waited = (int)c->signs->watch.still;
    dti_obituary(c, seat, fate, about, sizeof about);
    dti_add_text(text, sizeof text, "dtrain: %s", about);
    if (fate != DTI_DEAD && waited > 0)
        dti_add_text(text, sizeof text, "; the others have waited %d s", waited);
    dti_add_text(text, sizeof text, "\n");
    if (dti_blame(c, seat, fate) && fd >= 0) dti_say(fd, text);
    dti_watcher_kill(c);
    dti_watcher_leave(c->size, c->here);
}

/* The rank that has ended since the last look. Of several, the one whose last sign of life is the oldest: it
   went first, and mpiexec has ended the others. -1: nobody has failed. -2: nobody is left to watch. */
static int dti_watcher_deaths(const dt_comm *c, struct pollfd *process) {
    int first = -1, left = 0;
    for (int i = 0; i < c->here; ++i) {
        const dti_pulse *p = dti_pulse_at(c, i);
        if (!dti_running(c, i) || process[i].fd == -2) { process[i].fd = -2; continue; }
        bool dead = process[i].fd >= 0 ? process[i].revents != 0
                  : dti_gone(DTI_GET(p->pid)) || dti_process_state(DTI_GET(p->pid)) == 'Z';
        if (dead) process[i].fd = -2;  /* so that neither poll nor the next look finds it again */
        left += !dead;
        if (dead && dti_running(c, i)
            && (first < 0 || DTI_GET(p->seen) < DTI_GET(dti_pulse_at(c, first)->seen))) first = i;
    }
    return first >= 0 ? first : left ? -1 : -2;
}

/* Over several hosts: whether mpiexec or Slurm has ended this host's part, because of a failure elsewhere
   that is named there. Then the guardian was killed, and the rank with it, in either order, and on a busy
   machine with a pause between the two; else it buries its rank, and outlives it by half a second. So this
   waits until the one or the other has happened. */
static bool dti_ended_by_launcher(const dt_comm *c, int seat) {
    const int guardian = c->hosts > 1 ? DTI_GET(dti_pulse_at(c, seat)->guardian) : 0;
    const int rank = DTI_GET(dti_pulse_at(c, seat)->pid);
    for (int i = 0; guardian && i < 200; ++i) {
        if (dti_gone(guardian) || dti_process_state(guardian) == 'Z') return true;
        if (dti_gone(rank) && i >= 15) return false;
        dti_doze(10000);
    }
    return false;
}

/* One turn, ten times a second or when a process ends: who has died; has a rank said that it failed; has
   somebody else ended this host's part; then the look of [E4.3]. */
static void dti_watcher_main(dt_comm *c, int fd, struct pollfd *process) {
    double failed_at = 0.0;
    dti_watcher_detach(fd, fd);
    for (int i = 0; i < c->here; ++i) {
        process[i] = (struct pollfd){ .fd = -1, .events = POLLIN };
#if defined(__linux__) && defined(SYS_pidfd_open)
        process[i].fd = (int)syscall(SYS_pidfd_open, DTI_GET(dti_pulse_at(c, i)->pid), 0);
#endif
    }
    for (;;) {
        int seat = -1;
        poll(process, (nfds_t)c->here, 100);
        int dead = dti_watcher_deaths(c, process);
        if (dead == -2) _exit(0);
        /* that rank speaks for itself, and ends the job; it has two seconds for it */
        if (atomic_load(&c->signs->board->failed)) {
            if (failed_at == 0.0) failed_at = dt_now();
            if (dead < 0 && dt_now() < failed_at + 2.0) continue;
            dti_watcher_kill(c);
            dti_watcher_leave(c->size, c->here);
        }
        /* the launcher has ended: the guardian has said so */
        if (dead >= 0 && c->signs->guard && atomic_load(&c->signs->guard->orphaned))
            dti_watcher_kill(c), _exit(0);
        if (dead >= 0 && dti_ended_by_launcher(c, dead)) _exit(0);
        if (dead >= 0) dti_watcher_end(c, fd, dead, DTI_DEAD);
        if (dt_now() < c->signs->watch.looked + 0.09) continue;
        dti_fate fate = dti_look(c, true, &seat);
        if (fate != DTI_FINE) dti_watcher_end(c, fd, seat, fate);
    }
}

/* Forks the watcher, once for each host. */
static dt_err dti_watcher_start(dt_comm *c, int fd) {
    if (c->size == 1 || !dti_under_mpi(c)) return DT_OK;
    if (!c->signs->board)
        return dt_fail(DT_ECOMM, "no watcher: the ranks of %s share no memory", c->host[c->rank]);
    /* started by the first rank that comes here: it need not be rank 0, whose environment may say "off" */
    if (atomic_exchange(&c->signs->board->watched, 1)) return DT_OK;
    struct pollfd *process = dti_alloc((size_t)c->here * sizeof *process);
    pid_t child = process ? fork() : -1;
    if (child == 0) dti_watcher_main(c, fd, process);
    dti_release(process);
    if (child < 0) DTI_SET(c->signs->board->watched, 0);
    c->signs->watcher = child > 0 ? (long)child : 0;
    return child > 0 ? DT_OK : dt_fail(DT_ECOMM, "no watcher: %s", strerror(errno));
}

static void dti_watcher_stop(dt_comm *c) {
    if (!c->signs->watcher) return;
    kill((pid_t)c->signs->watcher, SIGKILL);
    while (waitpid((pid_t)c->signs->watcher, NULL, 0) < 0 && errno == EINTR) { }
    c->signs->watcher = 0;
}

DT_API dt_err dt_comm_watch(dt_comm *c, int fd) {
    DTI_NEED(c, "comm", DT_EARG);
    return dti_watcher_start(c, fd);
}
#else
DT_API dt_err dt_comm_watch(dt_comm *c, int fd) {
    DTI_NEED(c, "comm", DT_EARG);
    (void)fd;
    return DT_OK;
}
#endif /* DTRAIN_WITH_MPI */
#endif

/* ==== [E4.5] The usher =====================================================

   A job whose rank 3 crashes in MPI_Init, or never gets there, hangs: the others wait in MPI_Init, without a
   word and for ever. Until MPI has started, the ranks of a host share nothing, and no launcher tells one that
   another has ended, or was never there. So the first rank that comes to dt_comm_world forks an usher, a
   process that listens at a socket and hears from all ranks of its host until all of them have started.

   The others find the socket by its name, which is made of what they have in common: the process that
   launched them. (The name is an abstract one of Linux, no file: nothing of it is left, however the job
   ends.) Two lines of news, both sockets, lead from each rank to the usher:

       guardian --COMES, ENDED-------->  usher   the rank is there; it has ended, with this code; and if this
                                                 line closes without that, the guardian was killed
       rank ------THROUGH or FAILS---->          MPI has started and the rank is watched; or it has an error

   A guest is what the usher knows of a rank. It has come, once its COMES was heard, and is through, once its
   THROUGH was. A rank that FAILS is the speaker: it prints its error itself, and is given a second for it.
   The start can end in four ways:

       all that have come are through               the usher ends, without a word
       a rank ends before it is through             the usher names it; all others are killed
       a rank fails                                 it says why; then all others are killed
       nobody is through in six times patience      the usher says whom the others wait for; all are killed
         (twelve times, if those who are missing
         belong to other hosts)

   To kill all that have come is enough: the launcher then ends the job. All this costs one process for each
   host and two sockets for each rank, until MPI has started, and nothing afterwards. To read: dti_usher_call,
   which is a rank's side of it, then dti_usher_main. */
#ifdef DTI_IMPLEMENT
#ifdef DTRAIN_WITH_MPI
#ifdef __linux__
enum { DTI_NEWS_COMES, DTI_NEWS_ENDED, DTI_NEWS_THROUGH, DTI_NEWS_FAILS };
/* number: with COMES the rank's process, with ENDED its status as of waitpid. */
typedef struct dti_news { int what, rank, number; } dti_news;

/* A rank as the usher knows it. */
typedef struct dti_guest {
    int pid, guardian, line;              /* its two processes, 0 before it has come; the guardian's line */
    bool through, closed;                 /* closed: that line, since the last look */
} dti_guest;

typedef struct dti_usher {
    struct pollfd *line;                  /* [0] listens for new ones; behind it, up to two for each rank */
    dti_guest *guest;                     /* size of them, by rank */
    int size, here;                       /* ranks of the job; of this host, 0 if the launcher does not say */
    int lines, came, through;             /* how many lines; how many ranks have come, and are through */
    bool over;                            /* the start has failed: also a rank that comes late is ended */
    int speaker;                          /* 1 + the rank that may say why; 0: none */
    int caller, parent;                   /* the rank that has started the usher, and its guardian */
    double waited, since, limit;          /* seconds since the first came; since it is over; at most */
    char host[DTI_HOST];
} dti_usher;

/* A rank's or its guardian's side: sends one piece of news, on the line that is for it. */
static void dti_usher_tell(const dti_lines *l, int what, int number) {
    const dti_news news = { what, l->rank, number };
    const int line = what < DTI_NEWS_THROUGH ? l->guardians : l->ranks;
    if (line >= 0) (void)send(line, &news, sizeof news, MSG_NOSIGNAL);
}

/* Kills a rank, unless it is through: from then on it is the watcher's. A guardian that a signal has stopped
   would not see its rank end, so it goes as well. */
static void dti_usher_kill(const dti_guest *g) {
    if (!g->pid || g->through) return;
    kill((pid_t)g->pid, SIGKILL);
    if (dti_process_state(g->guardian) == 'T') kill((pid_t)g->guardian, SIGKILL);
}

/* To be called when the speaker has spoken: as soon as one rank is killed, the launcher ends the others. */
static void dti_usher_kill_all(dti_usher *u) {
    u->over = true, u->speaker = 0;
    for (int rank = 0; rank < u->size; ++rank) dti_usher_kill(&u->guest[rank]);
}

/* The start has failed, and this is why. Only the first reason is said: what follows is its consequence. */
static void dti_usher_say(dti_usher *u, const char *text) {
    if (u->over) return;
    dti_say(2, text);
    dti_usher_kill_all(u);
}

/* The ranks that have come, or those that have not: "rank 1 has", "ranks 0, 2 have". */
static void dti_usher_list(const dti_usher *u, bool come, char *text, size_t size) {
    const int count = come ? u->came : u->size - u->came;
    char number[16];
    snprintf(text, size, count == 1 ? "rank" : "ranks");
    for (int rank = 0, listed = 0; rank < u->size && listed <= 16; ++rank) {
        if ((u->guest[rank].pid != 0) != come) continue;
        snprintf(number, sizeof number, listed ? ", %d" : " %d", rank);
        dti_add_text(text, size, "%s", listed++ < 16 ? number : ", ...");
    }
    dti_add_text(text, size, count == 1 ? " has" : " have");
}

/* A rank has ended. status: as of waitpid; -1: its guardian was killed. */
static void dti_usher_miss(dti_usher *u, int rank, int status) {
    char how[192], ranks[128], text[384];
    if (rank + 1 == u->speaker) dti_usher_kill_all(u);
    if (u->guest[rank].through || u->over) return;
    dti_usher_list(u, false, ranks, sizeof ranks);
    if (status >= 0 && WIFSIGNALED(status)) snprintf(how, sizeof how, "by signal %d", WTERMSIG(status));
    else if (status >= 0) snprintf(how, sizeof how, "with exit code %d", WEXITSTATUS(status));
    else if (u->came < u->here && u->here == u->size)
        snprintf(how, sizeof how, "killed with its guardian, when %s not come", ranks);
    else snprintf(how, sizeof how, "killed with its guardian");
    snprintf(text, sizeof text, "dtrain: rank %d (%s, process %d) ended before MPI had started, %s\n", rank,
             u->host, u->guest[rank].pid, how);
    dti_usher_say(u, text);
}

/* The guardians of these ranks were killed since the last look. The launcher kills the others a few
   milliseconds after the first, so that on a busy machine they are found together. */
static void dti_usher_miss_closed(dti_usher *u) {
    int first = -1, count = 0;
    char number[16], text[384] = "dtrain: one of the ranks";
    for (int rank = 0; rank < u->size; ++rank) {
        if (!u->guest[rank].closed || u->guest[rank].through) continue;
        u->guest[rank].closed = false;
        snprintf(number, sizeof number, count ? ", %d" : " %d", rank);
        if (count < 16) dti_add_text(text, sizeof text, "%s", number);
        if (++count == 1) first = rank;
    }
    if (count == 1) dti_usher_miss(u, first, -1);
    if (count < 2) return;
    dti_add_text(text, sizeof text, "%s (%s) was killed with its guardian before MPI had started, and then "
               "the launcher ended the others\n", count > 16 ? ", ..." : "", u->host);
    dti_usher_say(u, text);
}

/* A rank that a signal has stopped; -1: none. */
static int dti_usher_stopped(const dti_usher *u) {
    for (int rank = 0; rank < u->size; ++rank) {
        const dti_guest *g = &u->guest[rank];
        if (!g->pid) continue;
        if (dti_process_state(g->pid) == 'T' || dti_process_state(g->guardian) == 'T') return rank;
    }
    return -1;
}

/* The start has taken too long: says whom it waits for. */
static void dti_usher_give_up(dti_usher *u) {
    const char *const reasons = "not found, ended already, or busy before dt_comm_world";
    char ranks[160], text[512], whom[384];
    const int stopped = dti_usher_stopped(u);
    dti_usher_list(u, u->here != u->size, ranks, sizeof ranks);
    u->since = 1.0;                       /* a rank that has not come by now is not waited for */
    if (stopped >= 0)
        snprintf(whom, sizeof whom, "rank %d (%s, process %d) is stopped by a signal", stopped, u->host,
                 u->guest[stopped].pid);
    else if (u->came == u->size)
        snprintf(whom, sizeof whom, "all %d ranks are there, and wait in MPI_Init", u->size);
    else if (u->here == u->size)
        snprintf(whom, sizeof whom, "%s not come (%s)", ranks, reasons);
    else if (u->here > u->came)
        snprintf(whom, sizeof whom, "of the %d ranks of %s only %s come (the others: %s)", u->here, u->host,
                 ranks, reasons);
    else
        snprintf(whom, sizeof whom, "%s come on %s, but not all of the other hosts", ranks, u->host);
    snprintf(text, sizeof text,
             "dtrain: MPI has not started in %.0f s: %s; a larger DTRAIN_PATIENCE waits longer\n",
             u->waited, whom);
    dti_usher_say(u, text);
}

/* A new line is taken in, if its process is the same user's. */
static void dti_usher_admit(dti_usher *u) {
    struct { pid_t pid; uid_t uid; gid_t gid; } peer = { 0, (uid_t)-1, (gid_t)-1 }; /* as struct ucred, */
    socklen_t size = sizeof peer;                     /* which only _GNU_SOURCE declares */
    const int line = accept(u->line[0].fd, NULL, NULL);
    if (line < 0) return;
    const bool ours = getsockopt(line, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
    if (ours && u->lines < 2 * u->size)
        u->line[1 + u->lines++] = (struct pollfd){ .fd = line, .events = POLLIN };
    else close(line);
}

/* Is that line a guardian's? */
static bool dti_usher_guardians(const dti_usher *u, int line) {
    for (int rank = 0; rank < u->size; ++rank)
        if (u->guest[rank].pid && u->guest[rank].line == line) return true;
    return false;
}

/* One piece of news from a line, or its end. The answer, a byte, is what the sender waits for: a guardian
   before it forks its rank, a rank that fails before it speaks. */
static void dti_usher_hear(dti_usher *u, struct pollfd *line) {
    dti_news news;
    const ssize_t n = recv(line->fd, &news, sizeof news, MSG_DONTWAIT);
    if (n != (ssize_t)sizeof news) {                  /* closed */
        for (int rank = 0; rank < u->size; ++rank)
            if (u->guest[rank].pid && u->guest[rank].line == line->fd) u->guest[rank].closed = true;
        close(line->fd);
        line->fd = -1;
        return;
    }
    if (news.rank < 0 || news.rank >= u->size) return;
    dti_guest *g = &u->guest[news.rank];
    if (news.what == DTI_NEWS_COMES) {
        if (!g->pid) {
            g->guardian = news.number, g->line = line->fd, ++u->came;
            (void)send(line->fd, "", 1, MSG_NOSIGNAL); /* which the guardian waits for before it forks */
        }
        g->pid = news.number;  /* told twice: before the guardian forks the rank, and after */
        if (u->over && !u->speaker) dti_usher_kill(g);
    } else if (news.what == DTI_NEWS_ENDED) dti_usher_miss(u, news.rank, news.number);
    else if (news.what == DTI_NEWS_THROUGH) g->through = true, ++u->through;
    else if (!u->over) {  /* of several ranks that fail alike, the first says why */
        u->over = true, u->speaker = news.rank + 1;
        (void)send(line->fd, "", 1, MSG_NOSIGNAL);
    }
}

/* The usher ends when all that have come are through: as MPI starts for all ranks together, none is missing
   then. After a failure it stays for ranks that come late, which else would call a new usher; and with
   other hosts for 1.5 s in all, because Slurm loses an order to end a step that it is still starting there
   [its other node's ranks went on in 2 of 25 such starts].

   One turn, ten times a second or when there is news: news; guardians that were killed; new lines; the
   clocks; after a failure, is it over for all? else, has it taken too long? */
static void dti_usher_main(dti_usher *u) {
    dti_watcher_detach(2, u->line[0].fd);
    for (double before = dt_now(), now, passed; u->through < u->came || !u->came; before = now) {
        poll(u->line, (nfds_t)u->lines + 1, 100);
        now = dt_now(), passed = dti_counted(now - before);
        for (int last = 0; last < 2; ++last)  /* guardians last: THROUGH is to be heard before ENDED */
            for (int i = 1; i <= u->lines; ++i)
                if (u->line[i].fd >= 0 && u->line[i].revents
                    && dti_usher_guardians(u, u->line[i].fd) == last) {
                    dti_usher_hear(u, &u->line[i]);
                    u->line[i].revents = 0;
                }
        dti_guest *caller = &u->guest[u->caller];     /* it may be killed before it has sent COMES */
        if (!caller->pid && getppid() != u->parent) caller->pid = u->parent, caller->closed = true, ++u->came;
        dti_usher_miss_closed(u);
        if (u->line[0].revents) dti_usher_admit(u);
        u->waited += passed;
        /* a second after the failure: the speaker has spoken by now, and ranks that come are killed at
           once */
        if (u->over && (u->since += passed) > 1.0) dti_usher_kill_all(u);
        const bool all = u->came >= u->here || u->since > 1.0;
        if (u->over && !u->speaker && all && u->waited > (u->here < u->size ? 1.5 : 0.0)) /* see above */
            dti_watcher_leave(u->size, u->here ? u->here : u->size);
        if (u->over || u->through || u->waited < u->limit) continue;
        if (!u->came) break;
        const bool by_this_host = u->came < u->here || u->here == u->size || dti_usher_stopped(u) >= 0;
        if (by_this_host || u->waited > 2.0 * u->limit) dti_usher_give_up(u);
    }
    _exit(0);
}

/* Whether that process was started with this variable set. */
static bool dti_process_has(int pid, const char *name) {
    const size_t length = strlen(name);
    char path[40];
    bool has = false;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *file = fopen(path, "r");
    size_t at = 0;  /* letters that were as in the name; SIZE_MAX: it is another variable */
    for (int letter; file && !has && (letter = getc(file)) != EOF;) {
        has = at == length && letter == '=';
        at = letter == '\0' ? 0 : at < length && letter == name[at] ? at + 1 : SIZE_MAX;
    }
    if (file) fclose(file);
    return has;
}

/* The process that has started that one; 0 if unknown. */
static int dti_process_parent(int pid) { int parent; return (void)dti_process_stat(pid, &parent), parent; }

/* The name of the socket. Our launcher is the nearest of our ancestors that was not itself told a rank (a
   shell between the two was told ours). Under Slurm each step has a number as well. */
static void dti_usher_address(struct sockaddr_un *address, const char *rank_variable) {
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    char space[64] = "";  /* the namespace of processes: in another one their numbers mean others */
    int launcher = (int)getppid();
    while (launcher > 1 && dti_process_has(launcher, rank_variable))
        launcher = dti_process_parent(launcher);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = '\0';
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "dtrain %u %d %.20s %.20s.%.20s",
             (unsigned)getuid(), launcher, space, job ? job : "", step ? step : "");
}

/* How many ranks the launcher has started on this host; 0: it does not say. */
static int dti_ranks_here(const dti_launcher *launcher) {
    const char *list = getenv("SLURM_GTIDS");         /* "0,1,2" */
    int here = list && *list;
    while (list && *list) here += *list++ == ',';
    return dti_environment(launcher->here, here);
}

/* The error when fork has failed: with the limit of processes, where that is why. */
static dt_err dti_no_process(const char *what) {
    struct rlimit most;
    if (errno != EAGAIN || getrlimit(RLIMIT_NPROC, &most) != 0 || most.rlim_cur == RLIM_INFINITY)
        return dt_fail(DT_ECOMM, "no process for the %s of this rank: %s", what, strerror(errno));
    return dt_fail(DT_ECOMM,
                   "no process for the %s of this rank: all %llu that `ulimit -u` allows are in use",
                   what, (unsigned long long)most.rlim_cur);
}

/* Forks the usher, which listens at the socket `door`. */
static dt_err dti_usher_start(int door, int size, int rank, int here) {
    const char *patience = getenv("DTRAIN_PATIENCE");
    double said = 0.0;
    if (patience) (void)dt_number_parse(patience, &said);
    dti_usher u = { .size = size, .here = here, .caller = rank >= 0 && rank < size ? rank : 0,
                    .parent = (int)getpid(),
                    .limit = dti_clock.starting * (said > 0.0 ? said : dti_clock.patience) };
    u.line = dti_alloc((2 * (size_t)size + 1) * sizeof *u.line);
    u.guest = dti_alloc((size_t)size * sizeof *u.guest);
    dt_err error = u.line && u.guest ? DT_OK : DT_ENOMEM;
    if (error == DT_OK) {
        dti_own_host(u.host);
        u.line[0] = (struct pollfd){ .fd = door, .events = POLLIN };
        const pid_t child = fork();
        if (child == 0) dti_usher_main(&u);
        if (child < 0) error = dti_no_process("usher");
    }
    dti_release(u.line), dti_release(u.guest);
    return error;
}

/* A line to the usher, which is started if there is none yet. *line: -1 where there are no such sockets.
   Whoever can bind the name is the first and starts the usher; the others try again each millisecond, a
   second at most. */
static dt_err dti_usher_line(const struct sockaddr_un *name, int size, int rank, int here, int *line) {
    const struct sockaddr *address = (const struct sockaddr *)(const void *)name;
    for (int tries = 0; tries < 1000; ++tries) {
        *line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (*line < 0 || connect(*line, address, sizeof *name) == 0) return DT_OK;
        const bool nobody = errno == ECONNREFUSED;
        close(*line), *line = -1;
        if (!nobody) return DT_OK;
        const int door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const bool first = door >= 0 && bind(door, address, sizeof *name) == 0 && listen(door, 4096) == 0;
        const dt_err error = first ? dti_usher_start(door, size, rank, here) : DT_OK;
        if (door >= 0) close(door);
        if (error != DT_OK) return error;
        if (!first) dti_doze(1000);       /* another rank was faster: its usher will listen in a moment */
    }
    return DT_OK;
}

/* A rank's side, at the beginning of dt_comm_world: opens both lines, says that it comes, and waits up to 3
   s for the usher's answer. Does nothing where no launcher is known. */
static dt_err dti_usher_call(dti_lines *l) {
    struct sockaddr_un name;
    int size;
    const dti_launcher *launcher = dti_launch(&size, &l->rank);
    l->guardians = l->ranks = -1;
    if (!launcher) return DT_OK;
    dti_usher_address(&name, launcher->rank);
    DT_TRY(dti_usher_line(&name, size, l->rank, dti_ranks_here(launcher), &l->guardians));
    dti_usher_tell(l, DTI_NEWS_COMES, (int)getpid());
    char answer;
    struct pollfd known = { .fd = l->guardians, .events = POLLIN };
    if (l->guardians >= 0 && poll(&known, 1, 3000) == 1)
        (void)!recv(l->guardians, &answer, 1, MSG_DONTWAIT);
    return l->guardians < 0 ? DT_OK
        : dti_usher_line(&name, size, l->rank, dti_ranks_here(launcher), &l->ranks);
}
#endif
#endif
#endif

/* ==== [E4.6] The guardian ==================================================

   mpiexec ends a job when one of its processes ends, but with exit code 0 in most runs if that one ended
   with 0 [measured: MPICH 4.0.2, 16 of 16 on 2 ranks, 8 of 16 on 4]. And it kills the others so soon that
   nobody can tell which was first. So under dt_comm_world the process that mpiexec started only waits: it
   forks before MPI_Init, and the child is the rank.

       the rank ends without a goodbye   the guardian gives the watcher time to speak, then ends non-zero;
                                         over several hosts it kills itself, because there mpiexec waits for
                                         ever if a process exits, whatever its code [measured: MPICH 4.0.2]
       the guardian is killed            the kernel kills the rank
       the launcher is killed            the guardian ends the rank
       a signal comes                    it is passed on; a request to end that comes again within half a
                                         second is the same one, sent to us and by the launcher as well
       the rank does not come out of     nobody else watches any more: the guardian says so, and ends it
         MPI_Finalize

   To read: dti_guardian_start, then dti_guardian_main. */
#ifdef DTI_IMPLEMENT
#ifdef DTRAIN_WITH_MPI

#ifdef __linux__
typedef struct dti_guardian {
    struct dti_guard *guard;
    pid_t child, launcher, above;     /* the rank; our parent; and its parent */
    bool ended_it;                    /* the guardian has ended the rank, and said why */
    double looked;                    /* when it last looked */
    double late;                      /* seconds for which the rank should have ended, and has not */
    double asked[32];                 /* when a signal that asks to end was last passed on */
} dti_guardian;

/* Ends the rank, and says why unless that is "" or nobody is there to hear. */
static void dti_guardian_ends(dti_guardian *g, const char *why) {
    const struct dti_guard *about = g->guard;
    char text[256];
    snprintf(text, sizeof text, "dtrain: rank %d (%s, process %d) %s\n", atomic_load(&about->rank),
             about->host, (int)g->child, why);
    if (*why && atomic_load(&about->hosts)) dti_say(2, text);
    g->ended_it = true;
    kill(g->child, SIGKILL);
}

/* Passes a signal on; one that asks to end, and comes again within half a second, only once. */
static void dti_guardian_pass(dti_guardian *g, int number) {
    const bool asks = number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT;
    const double now = dt_now();
    if (asks && g->asked[number] > 0.0 && now < g->asked[number] + 0.5) return;
    if (asks) g->asked[number] = now;
    /* a rank in MPI_Finalize has done its work, and would not act on a signal */
    if (asks && atomic_load(&g->guard->farewell) == DTI_ENDING) dti_guardian_ends(g, "");
    else kill(g->child, number);
}

/* Four times a second. Of several ranks that do not end, one is to speak, and those speak first that are
   more likely the cause: one that is stopped at once, one that computes after half a second, one that
   sleeps, and so may wait for the others, after a second. */
static void dti_guardian_look(dti_guardian *g) {
    char why[96];
    const double now = dt_now(), passed = now - g->looked;
    const int farewell = atomic_load(&g->guard->farewell), rank = atomic_load(&g->guard->rank);
    /* a launcher's process that a signal has stopped cannot end us when mpiexec, its parent, ends; but it
       then has another parent */
    const bool lost = dti_process_state((int)g->launcher) == 'T'
        && dti_process_parent((int)g->launcher) != (int)g->above;
    if (getppid() != g->launcher || lost) {
        if (atomic_load(&g->guard->seat) > 0) dti_doze(500000);  /* the host's first rank's guardian speaks */
        atomic_store(&g->guard->orphaned, 1);
        snprintf(why, sizeof why, "is ended, because what started it (process %d) has ended",
                 (int)(lost ? g->above : g->launcher));
        dti_guardian_ends(g, atomic_load(&g->guard->seat) > 0 ? "" : why);
        return;
    }
    g->looked = now;
    const bool leaves = farewell == DTI_GOODBYE || farewell == DTI_ENDING;
    const char state = leaves ? dti_process_state((int)g->child) : ' ';
    g->late = farewell == DTI_ENDING || state == 'T' ? g->late + (passed < 0.5 ? passed : 0.5) : 0.0;
    const double asleep = state == 'R' ? 0.5 : 1.0;
    const double more = (state == 'T' ? 0.0 : asleep) + 0.05 * (rank < 20 ? rank : 20);
    if (g->late <= g->guard->patience + more) return;
    snprintf(why, sizeof why, "has said goodbye, and does not come out of MPI_Finalize%s",
             state == 'T' ? ": a signal has stopped it" : "");
    dti_guardian_ends(g, why);
}

/* Keeps the guardian's exit code from being lost. After mpiexec has passed a signal on, it takes 0 for the
   exit code of each process whose pipes have all closed before it has asked for that code; and it asks
   whenever a pipe of anybody's brings something [read in MPICH 4.0.2]. So a child keeps our two pipes open:
   it closes the one when the guardian has ended, upon which mpiexec asks, and the other when it has. */
static void dti_guardian_linger(void) {
    const pid_t guardian = getpid();
    if (fork() != 0) return;
    dti_watcher_detach(1, 2);
    for (int i = 0; i < 2000 && getppid() == guardian; ++i) dti_doze(1000);
    close(1);
    for (int i = 0; i < 1000 && kill(guardian, 0) == 0; ++i) dti_doze(1000);
    _exit(0);
}

/* A guardian's whole life: passes signals on and looks, until the rank has ended; tells the usher; then
   finds an exit code that says what became of the rank, and ends with it. */
static void dti_guardian_main(struct dti_guard *guard, pid_t child, const sigset_t *all) {
    const struct timespec quarter = { .tv_nsec = 250000000 };
    dti_guardian g = { .guard = guard, .child = child, .launcher = getppid(), .looked = dt_now() };
    g.above = dti_process_parent((int)g.launcher);
    int status = 0, code;
    for (pid_t ended = 0; ended != child;) {
        const int number = sigtimedwait(all, NULL, &quarter);
        if (number > 0 && number != SIGCHLD) dti_guardian_pass(&g, number);
        if (!g.ended_it && dt_now() > g.looked + 0.2) dti_guardian_look(&g);
        pid_t dead;
        for (int how; (dead = waitpid(-1, &how, WNOHANG)) > 0;)  /* the rank, or the usher, which it buries */
            if (dead == child) ended = dead, status = how;
        if (dead < 0 && errno == ECHILD) break;
    }
    dti_usher_tell(&guard->lines, DTI_NEWS_ENDED, status);
    const int farewell = atomic_load(&guard->farewell);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    /* the watcher's time to speak: 0.2 s, over several hosts 0.5 s [E4.4] */
    if (farewell == DTI_SILENT) dti_doze(atomic_load(&guard->hosts) > 1 ? 500000 : 200000);
    if ((farewell == DTI_GOODBYE || farewell == DTI_ENDING) && WIFSIGNALED(status) && !g.ended_it)
        dti_guardian_ends(&g, "has said goodbye, but a signal ended it before it came out of MPI_Finalize");
    const bool failed = atomic_load(&guard->farewell) != DTI_ENDED;
    if (failed || code) dti_guardian_linger();
    if (failed && atomic_load(&guard->hosts) != 1) {
        kill(getpid(), SIGKILL);
        pause();
    }
    _exit(failed && code == 0 ? 1 : code);
}

/* Returns in the child alone, or with an error if there are no processes to be had. */
static dt_err dti_guardian_start(struct dti_guard **made) {
    sigset_t all, before;
    pid_t parent = getpid(), child;
    struct dti_guard *guard = *made = dti_map(sizeof *guard);
    if (!guard) return dt_fail(DT_ENOMEM, "no memory for a guardian");
    guard->lines = (dti_lines){ 0, -1, -1 };  /* one rank alone has nobody to wait for */
    if (dti_launched_ranks() > 1) DT_TRY(dti_usher_call(&guard->lines));
    else dti_own_host(guard->host), atomic_store(&guard->hosts, 1);
    signal(SIGCHLD, SIG_DFL);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    child = fork();
    if (child > 0) {
        if (guard->lines.ranks >= 0) close(guard->lines.ranks);
        dti_usher_tell(&guard->lines, DTI_NEWS_COMES, (int)child);
        dti_guardian_main(guard, child, &all);
    }
    if (child == 0) {
        setpgid(0, 0);  /* so that a signal to the group comes once, passed on by the guardian */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        if (guard->lines.guardians >= 0) close(guard->lines.guardians);
    }
    const dt_err error = child < 0 ? dti_no_process("guardian") : DT_OK;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Tells the usher how the start ended. Where it failed, dt_error() says why; of several ranks that fail alike
   the first returns and may say so, and the others wait here until they are ended. */
static void dti_start_over(const struct dti_guard *guard, bool well) {
    if (!guard || guard->lines.ranks < 0) return;
    dti_usher_tell(&guard->lines, well ? DTI_NEWS_THROUGH : DTI_NEWS_FAILS, 0);
    char answer;
    if (!well) poll(&(struct pollfd){ .fd = guard->lines.ranks, .events = POLLIN }, 1, 3000);
    if (!well && recv(guard->lines.ranks, &answer, 1, MSG_DONTWAIT) != 1) dti_doze(3000000);
    close(guard->lines.ranks);
}
#else
static dt_err dti_guardian_start(struct dti_guard **guard) { return (void)guard, DT_OK; }
static void dti_start_over(const struct dti_guard *guard, bool well) { (void)guard, (void)well; }
#endif

#endif /* DTRAIN_WITH_MPI */
#endif

/* ==== [E4.7] The start and the end of a job =================================

   dt_comm_world calls the usher, forks the guardian, starts MPI, starts the watcher, and lets the usher go,
   in that order, so that at each moment somebody watches. The end runs through what a rank tells its
   guardian:

       SILENT --> GOODBYE ----> ENDING -------------> ENDED
                  beats stop    all have said it:     out of MPI_Finalize
                                the watcher stops

   or is ABORTED: the job is to end, and a rank has said why. To read: dt_comm_world. */
#ifdef DTI_IMPLEMENT
#ifdef DTRAIN_WITH_MPI
static void dti_guard_hosts(dt_comm *c) {
    if (!c->signs->guard) return;
    memcpy(c->signs->guard->host, c->host[c->rank], DTI_HOST);
    atomic_store(&c->signs->guard->rank, c->rank);
    atomic_store(&c->signs->guard->seat, c->seat);
    atomic_store(&c->signs->guard->hosts, c->hosts);
}

static void dti_farewell(dt_comm *c, int farewell) {
    struct dti_guard *guard = c->signs->guard;
    if (guard && farewell == DTI_GOODBYE) {  /* later the board is no longer there */
        const double patience = c->signs->board ? dti_patience(c) : dti_clock.patience;
        guard->patience = patience > 2.0 ? patience : 2.0;
    }
    if (guard) atomic_store(&guard->farewell, c->size == 1 && farewell != DTI_ABORTED ? DTI_ENDED : farewell);
    if (farewell == DTI_GOODBYE) dti_beats_stop(c);
    if (farewell == DTI_ENDING) dti_watcher_stop(c);
}

/* Ends the job after a failure. If another rank was faster to claim the word, it gets a second to speak. */
static bool dti_job_ends(dt_comm *c) {
    const dti_board *board = c->signs->board;
    if (c->size > 1 && !dti_speaks_first(c)) dti_doze(1000000);
    dti_farewell(c, DTI_ABORTED);
    /* then the watcher ends the others; over several hosts, the guardian's death does */
    return c->hosts == 1 ? board && DTI_GET(board->watched) : c->signs->guard != NULL;
}

DT_API dt_comm *dt_comm_world(int *argc, char ***argv) {
    const char *watch = getenv("DTRAIN_WATCH");
    int started = 0;
    MPI_Initialized(&started);
    bool watched = !(watch && strcmp(watch, "off") == 0);
    /* PMI_RANK: also the one rank of mpiexec -n 1, whose exit code would be lost without a guardian */
    bool guarded = watched && !started && (dti_launched_ranks() > 1 || getenv("PMI_RANK"));
    struct dti_guard *guard = NULL;
    dt_comm *c = guarded && dti_guardian_start(&guard) != DT_OK ? NULL : dt_comm_mpi(argc, argv);
    if (!c) return dti_start_over(guard, false), NULL;
    c->signs->guard = guard;
    dti_guard_hosts(c);
    if (c->size == 1) dti_farewell(c, DTI_ENDED);                        /* nobody waits for it */
    if (guard) DTI_SET(c->signs->pulse->guardian, (int)getppid());
    if (watched) (void)dti_watcher_start(c, 2);  /* should it fail, waiting ranks watch */
    dti_start_over(guard, true);
    if (c->size > 1) MPI_Barrier(c->mpi->group);  /* nobody fails before all are watched */
    return c;
}
#else
DT_API dt_comm *dt_comm_world(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return dt_comm_alone();
}
#endif
#endif /* DTI_IMPLEMENT */

/* ==== [E5] Doctor, profile, trace ==========================================

   What a program can say of itself: how its job was started [E5.1], where its time went [E5.2], and what it
   runs on [E5.3]. Without them one guesses: a job started the wrong way trains on, five times the same; and
   of a slow one the total time does not say whether it computes or waits. Nothing of that is needed to
   train; all of it is what one wishes to know when training is slow or wrong. Last, what nets and trainers
   tell of themselves when they are asked [E5.4]. */

/* ==== [E5.1] The MPI doctor ================================================

   A job that was started the wrong way runs, and computes something else: five copies of a program with one
   rank each look like five ranks, a rank with other data trains on. What can be seen is looked for once,
   before the first step:

       one rank, but a launcher's variables say more   the wrong mpiexec, or none; its name says which to type
       a rank's hash of something is not the others'   its build, arithmetic, command line, or data
       files in /dev/shm that no process has open      left by jobs that crashed; they fill the memory
       more ranks than lane groups, or than cores      ranks that do nothing, or take turns

   Each rank tells a row of numbers; one all-gather brings all rows to all ranks, and every rank reads them
   alike, so that all write the same lines:

       rank 0   build  arithmetic  settings  data | files  bytes  kinds      hashes: is one not the others'?
       rank 1   ...                                                          and what lies in its /dev/shm

   Begin to read at dt_comm_doctor. It takes a millisecond, and some 10 more where it looks for files. */
#ifdef DTI_DECLARE

/* What a program tells the doctor. Zero or NULL: not to be looked at. */
typedef struct dt_doctor_desc {
    const char *program;     /* "./ch12", for what to type instead */
    uint32_t    lane_groups; /* of a step, over all ranks: batch / DT_LANES, rounded up */
    const char *settings;    /* what the command line said, one option a line: "--epochs 2\n--profile\n" */
    const char *data_name;   /* "mnist" */
    uint64_t    data;        /* hash of the data, if data_name is set; 0: this rank does not have them */
    bool        leftovers;   /* look for what crashed jobs have left in /dev/shm; reads /proc/.../maps */
} dt_doctor_desc;

/* Looks at how the job was started, and writes one line for each finding, "error: ..." or "warning: ...",
   with what to do instead, the same text on every rank (launched as several jobs: in the first of them).
   Empty if all is well. Collective. DT_ECOMM if there is an error among them, and then dt_error() is its
   sentence. */
DT_API dt_err dt_comm_doctor(dt_comm *comm, const dt_doctor_desc *desc, char *text, size_t size);

#endif /* DTI_DECLARE */

#ifdef DTI_IMPLEMENT
#if defined(__linux__) && defined(DTRAIN_WITH_MPI)
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#endif

/* What two ranks must have in common to understand each other; for their floats, see [E1.9]. */
static uint64_t dti_build_hash(void) {
    char text[256];
    snprintf(text, sizeof text, "%s %s lanes %d pointer %zu big %d", DTRAIN_VERSION,
#ifdef __VERSION__
             __VERSION__,
#else
             "?",
#endif
             DT_LANES, sizeof(void *), (int)(*(const uint16_t *)(const void *)"\1" == 256));
    return dt_hash(text, strlen(text), 0);
}

typedef struct dti_notes { char *text; size_t size; bool error; } dti_notes;

static void dti_note(dti_notes *n, bool error, const char *format, ...) DTI_PRINTF(3, 4);
static void dti_note(dti_notes *n, bool error, const char *format, ...) {
    char line[400];
    va_list args;
    va_start(args, format);
    dti_vprint(line, sizeof line, format, args);
    va_end(args);
    if (error && !n->error) dt_fail(DT_ECOMM, "%s", line);
    n->error |= error;
    dti_add_text(n->text, n->size, "%s: %s\n", error ? "error" : "warning", line);
}

/* One rank alone, though a launcher has started several? */
static void dti_examine_launch(const dt_comm *c, const char *program, dti_notes *n) {
    int rank, jobs;
    const dti_launcher *launcher = c->size == 1 ? dti_launch(&jobs, &rank) : NULL;
    if (!launcher) return;
    const char *mpi = "", *instead = "mpiexec";
#if defined(DTRAIN_WITH_MPI) && defined(OPEN_MPI)
    mpi = "Open MPI", instead = "mpiexec.openmpi";
#elif defined(DTRAIN_WITH_MPI)
    mpi = "MPICH", instead = "mpiexec.mpich";
#endif
    if (strcmp(launcher->name, mpi) == 0) /* each says it: there may be no other */
        dti_note(n, true, "%s runs as one rank alone, though its environment says %s=%d: left over from "
                 "another job, or from a launcher that %s cannot reach; type %s -n %d %s, or unset %s",
                 program, launcher->size, jobs, mpi, instead, jobs, program, launcher->size);
    else if (rank > 0)
        n->error = true, dt_fail(DT_ECOMM, "this is one of %d jobs of one rank", jobs);
    else if (!dti_under_mpi(c))
        dti_note(n, true, "%s's launcher started %d jobs of one rank: %s was compiled without MPI; start it "
                 "without a launcher, or compile it with mpicc.mpich and -DDTRAIN_WITH_MPI",
                 launcher->name, jobs, program);
    else if (strcmp(launcher->name, "Slurm") == 0)
        dti_note(n, true, "Slurm started %d jobs of one rank; type srun --mpi=pmi2 -n %d %s",
                 jobs, jobs, program);
    else
        dti_note(n, true, "the launcher of %s started %d jobs of one rank, because %s is linked with %s; "
                 "type %s -n %d %s", launcher->name, jobs, program, mpi, instead, jobs, program);
}

/* A line of settings that `other` does not have, or NULL. */
static const char *dti_line_not_in(const char *settings, const char *other, int *length) {
    for (const char *s = settings; *s; s += *length + (s[*length] != '\0')) {
        bool there = false;
        *length = (int)strcspn(s, "\n");
        for (const char *t = other; *t && !there; t += strcspn(t, "\n"), t += *t != '\0')
            there = strcspn(t, "\n") == (size_t)*length && memcmp(s, t, (size_t)*length) == 0;
        if (!there) return s;
    }
    return NULL;
}

/* What is left of jobs that crashed: MPI libraries share memory through files, and remove them at their
   end. */
static const char *const dti_left_names[] = {
    "mpich_shar_tmp", "ucx_shm_posix_", "vader_segment.", "sm_segment."
};
enum { DTI_LEFT_NAMES = sizeof dti_left_names / sizeof *dti_left_names, DTI_LEFT_MOST = 256 };
typedef struct dti_left { char name[64]; uint64_t bytes; int kind; bool used; } dti_left;

#if defined(__linux__) && defined(DTRAIN_WITH_MPI)
/* Marks those of the files that this process has mapped. */
static void dti_left_used(const char *pid, dti_left *left, int n) {
    static const char folder[] = "/dev/shm/";
    char line[512];
    snprintf(line, sizeof line, "/proc/%.16s/maps", pid);
    FILE *maps = fopen(line, "r");
    while (maps && fgets(line, sizeof line, maps)) {
        const char *name = strstr(line, folder);
        for (int i = 0; name && i < n; ++i) {
            const size_t length = strlen(left[i].name);
            const char *behind = name + sizeof folder - 1;
            left[i].used |= strncmp(behind, left[i].name, length) == 0 && strchr(" \n", behind[length]);
        }
    }
    if (maps) fclose(maps);
}

/* Such files of this user, older than a minute, so that they are not those of a job that starts just now. */
static int dti_left_files(dti_left *left) {
    DIR *folder = opendir("/dev/shm");
    const time_t old = time(NULL) - 60;
    int n = 0;
    for (struct dirent *e; folder && n < DTI_LEFT_MOST && (e = readdir(folder)) != NULL;)
        for (int kind = 0; kind < DTI_LEFT_NAMES; ++kind) {
            struct stat about;
            const size_t length = strlen(e->d_name);
            if (strncmp(e->d_name, dti_left_names[kind], strlen(dti_left_names[kind])) != 0) continue;
            if (length >= sizeof left->name) break;
            if (fstatat(dirfd(folder), e->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) break;
            if (about.st_uid != getuid() || about.st_mtime > old) break;
            left[n].bytes = (uint64_t)about.st_blocks * 512, left[n].kind = kind;
            memcpy(left[n++].name, e->d_name, length + 1);
            break;
        }
    if (folder) closedir(folder);
    return n;
}

/* Counts those of the files that no process has mapped: how many, their bytes, and which names, a bit
   each. */
static void dti_left_look(uint64_t *files, uint64_t *bytes, uint64_t *kinds) {
    dti_left *left = dti_alloc(DTI_LEFT_MOST * sizeof *left);
    const int n = left ? dti_left_files(left) : 0;
    DIR *processes = n ? opendir("/proc") : NULL;
    for (struct dirent *e; processes && (e = readdir(processes)) != NULL;)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9') dti_left_used(e->d_name, left, n);
    if (processes) closedir(processes);
    for (int i = 0; i < n; ++i)
        if (!left[i].used) ++*files, *bytes += left[i].bytes, *kinds |= (uint64_t)1 << left[i].kind;
    dti_release(left);
}
#else
static void dti_left_look(uint64_t *files, uint64_t *bytes, uint64_t *kinds) {
    (void)files, (void)bytes, (void)kinds;
}
#endif

/* Which columns of what the ranks have told are looked at. */
enum { DTI_BUILD, DTI_ARITHMETIC, DTI_SETTINGS, DTI_DATA, DTI_FILES, DTI_BYTES, DTI_FILE_KINDS, DTI_COLUMNS };

/* Each host's first rank has told what is left there. */
static void dti_examine_left(const dt_comm *c, const uint64_t *all, dti_notes *n) {
    for (int r = 0; r < c->size; ++r) {
        const uint64_t *of = all + r * DTI_COLUMNS;
        char names[160] = "";
        for (int kind = 0; kind < DTI_LEFT_NAMES; ++kind) {
            if (of[DTI_FILE_KINDS] >> kind & 1)
                dti_add_text(names, sizeof names, " /dev/shm/%s*", dti_left_names[kind]);
        }
        const int files = (int)of[DTI_FILES];
        if (files)
            dti_note(n, false, "host %s: %d file%s of %.1f MB in /dev/shm %s left over from MPI jobs that "
                     "crashed or were killed, and no process of yours uses them; while no MPI job runs "
                     "there, type rm -f%s",
                     c->host[r], files, files == 1 ? "" : "s", 1e-6 * (double)of[DTI_BYTES],
                     files == 1 ? "is" : "are", names);
    }
}

/* Two ranks were told different things: which. All ranks hear both, and write the same line. */
static dt_err dti_examine_settings(dt_comm *c, const char *name, const char *settings, int odd, int like,
                                   dti_notes *n) {
    enum { MOST = 2048 }; /* of a longer command line, the beginning */
    static const char *const word[] = { "without", "with" };
    char one[MOST] = "", two[MOST] = "";
    int own = 0, theirs = 0;
    if (c->rank == odd) snprintf(one, MOST, "%s\n%s", name, settings);
    if (c->rank == like) snprintf(two, MOST, "%s\n%s", name, settings);
    DT_TRY(dt_broadcast(c, one, MOST, odd));
    DT_TRY(dt_broadcast(c, two, MOST, like));
    const char *has = dti_line_not_in(one, two, &own), *lacks = dti_line_not_in(two, one, &theirs);
    own = own < 80 ? own : 80, theirs = theirs < 80 ? theirs : 80;
    if (has && lacks)
        dti_note(n, true, "rank %d (%s) was started with %.*s, rank %d with %.*s; give all ranks one "
                 "command line", odd, c->host[odd], own, has, like, theirs, lacks);
    else if (has || lacks)
        dti_note(n, true, "rank %d (%s) was started %s %.*s, rank %d %s it; give all ranks one command "
                 "line", odd, c->host[odd], word[has != NULL], has ? own : theirs, has ? has : lacks,
                 like, word[lacks != NULL]);
    else
        dti_note(n, true, "rank %d (%s) was started with another command line than rank %d; give all "
                 "ranks the same", odd, c->host[odd], like);
    return DT_OK;
}

/* The rank whose number in a column is not the others', or -1. */
static int dti_odd_rank(const dt_comm *c, const uint64_t *all, int column) {
    return dti_odd_one(all + column, DTI_COLUMNS, c->size);
}

/* The same program everywhere? Another build may not understand the messages; other arithmetic rounds
   otherwise. */
static void dti_examine_build(const dt_comm *c, const uint64_t *all, const char *program, dti_notes *n) {
    int odd = dti_odd_rank(c, all, DTI_BUILD);
    if (odd >= 0) {
        dti_note(n, true, "rank %d (%s) runs another build than the others; build %s once and copy it to "
                 "every host", odd, c->host[odd], program);
        return;
    }
    odd = dti_odd_rank(c, all, DTI_ARITHMETIC);
    if (odd >= 0)
        dti_note(n, true, "rank %d (%s) computes other last digits than the others (built for a processor "
                 "with or without FMA, with other flags, or with another C library); build %s once and copy "
                 "it to every host", odd, c->host[odd], program);
}

/* The same data everywhere? */
static void dti_examine_data(const dt_comm *c, const uint64_t *all, const char *data, dti_notes *n) {
    const int odd = dti_odd_rank(c, all, DTI_DATA);
    int lacks = 0; /* the first rank without them */
    while (lacks < c->size && all[lacks * DTI_COLUMNS + DTI_DATA]) ++lacks;
    if (lacks < c->size)
        dti_note(n, true, "rank %d: host %s does not have the data (%s); type `make data` there, or set "
                 "DTRAIN_DATA to a directory that all hosts see", lacks, c->host[lacks], data);
    else if (odd >= 0)
        dti_note(n, true, "rank %d (%s) reads other %s data than the others; copy one directory to all "
                 "hosts, or set DTRAIN_DATA to one that all see", odd, c->host[odd], data);
}

/* All that the rows of numbers show. */
static dt_err dti_examine_ranks(dt_comm *c, const dt_doctor_desc *d, const char *program, const char *name,
                                const uint64_t *all, dti_notes *n) {
    const uint64_t *said = all + DTI_SETTINGS;
    const int odd = dti_odd_rank(c, all, DTI_SETTINGS);
    int like = 0; /* the first rank that was told something else than the odd one */
    dti_examine_build(c, all, program, n);
    while (odd >= 0 && said[like * DTI_COLUMNS] == said[odd * DTI_COLUMNS]) ++like;
    if (odd >= 0) DT_TRY(dti_examine_settings(c, name, d->settings ? d->settings : "", odd, like, n));
    if (d->data_name) dti_examine_data(c, all, d->data_name, n);
    dti_examine_left(c, all, n);
    return DT_OK;
}

/* More ranks than there is work for, or cores; or ranks of one host without memory in common. */
static dt_err dti_examine_place(dt_comm *c, uint32_t lane_groups, dti_notes *n) {
    const int known = dt_cores(), groups = (int)dti_min_size(lane_groups, INT_MAX), idle = c->size - groups;
    int64_t here = c->here, cores = known > 0 ? known : 1;
    DT_TRY(dt_allreduce(c, &here, 1, DT_I64, DT_MAX, DT_AUTO));
    DT_TRY(dt_allreduce(c, &cores, 1, DT_I64, DT_MIN, DT_AUTO));
    if (groups && idle > 0)
        dti_note(n, false, "%d ranks share %d group%s of %d images a step, so %d of them do nothing; type "
                 "-n %d, or a larger --batch", c->size, groups, groups == 1 ? "" : "s", DT_LANES, idle,
                 groups);
    if (c->size > 1 && here > cores)
        dti_note(n, false, "%lld ranks share %lld core%s, so more ranks do not make it faster; type -n %lld",
                 (long long)here, (long long)cores, cores == 1 ? "" : "s", (long long)(cores * c->hosts));
    if (c->size > 1 && c->hosts == 1 && !c->block)
        dti_note(n, false, "the ranks share no memory, so sums go by messages and nobody watches for "
                 "failures; make room in /dev/shm (in a container: docker run --shm-size=256m)");
    return DT_OK;
}

DT_API dt_err dt_comm_doctor(dt_comm *c, const dt_doctor_desc *d, char *text, size_t size) {
    DTI_NEED(c && d && (text || size == 0), "comm, desc and text", DT_EARG);
    dti_notes n = { text, size, false };
    const char *program = d->program ? d->program : "./program";
    const char *name = strrchr(program, '/') ? strrchr(program, '/') + 1 : program; /* folders may differ */
    const uint64_t named = dt_hash(name, strlen(name), 0);
    const uint64_t said = d->settings ? dt_hash(d->settings, strlen(d->settings), named) : named;
    uint64_t mine[DTI_COLUMNS] = { dti_build_hash(), dti_arithmetic_hash(), said, d->data, 0, 0, 0 };
    uint64_t *files = mine + DTI_FILES, *bytes = mine + DTI_BYTES, *kinds = mine + DTI_FILE_KINDS;
    if (size) text[0] = '\0';
    if (d->leftovers && c->seat == 0) dti_left_look(files, bytes, kinds);
    dti_examine_launch(c, program, &n);
    uint64_t *all = dti_alloc((size_t)c->size * sizeof mine);
    if (!all) return DT_ENOMEM;
    dt_err error = dt_allgather(c, mine, sizeof mine, all);
    if (error == DT_OK) error = dti_examine_ranks(c, d, program, name, all, &n);
    dti_release(all);
    if (error == DT_OK) error = dti_examine_place(c, d->lane_groups, &n);
    if (error != DT_OK) return error;
    return n.error ? DT_ECOMM : DT_OK;
}
#endif /* DTI_IMPLEMENT */

/* ==== [E5.2] Where the time went ===========================================

   Two answers, in numbers and in a picture. The profile splits an epoch of each rank into computing, waiting
   and adding, which the communicator [S10] has timed all along. A trace keeps when each wait and each sum
   began and ended, 24 bytes apiece in an array made before: a rank pays two looks at the clock for an
   interval, and nothing where no trace was started. At the end the arrays travel to rank 0 in messages of a
   few hundred lines, and become a file:

       rank 0  |== forward ==|== backward ==|wait|sum|       one line of time for each rank, from one zero on:
       rank 1  |== forward ====|== backward ====|sum|        the moment at which all left a barrier

   To read: dt_comm_profile, dti_trace_add, dt_trace_write. */
#ifdef DTI_DECLARE

typedef struct dt_profile { double seconds, compute, wait, reduce; uint64_t bytes; } dt_profile;

/* each[r] = rank r's `seconds` (an epoch's, say) split into waiting, adding, and the rest, which is
   computing; counted since `since`, an earlier dt_comm_times of this rank. Collective; `each` has one place
   for every rank. */
DT_API dt_err dt_comm_profile(dt_comm *comm, const dt_comm_cost *since, double seconds, dt_profile *each);

/* Records intervals for a picture: waits and sums by themselves, the program's own with dt_trace. Room for
   `capacity` of them (24 bytes each) is made here, none later; what comes after that is counted and left out.
   Collective. */
DT_API dt_err dt_trace_start(dt_comm *comm, size_t capacity);

/* Records [start, end), two times of dt_now(). `name` must stay where it is until dt_trace_write, as a
   literal does. */
DT_API void dt_trace(dt_comm *comm, const char *name, double start, double end);

/* Rank 0 gathers what was recorded and writes it as Chrome trace JSON, one line of time for each rank: open
   it with ui.perfetto.dev or chrome://tracing. Collective. DT_EIO on every rank if the file cannot be
   written. */
DT_API dt_err dt_trace_write(dt_comm *comm, const char *path);

#endif /* DTI_DECLARE */

#ifdef DTI_IMPLEMENT
DT_API dt_err dt_comm_profile(dt_comm *c, const dt_comm_cost *since, double seconds, dt_profile *each) {
    DTI_NEED(c && since && each, "comm, since and each", DT_EARG);
    dt_profile mine = { .seconds = seconds, .bytes = c->cost.bytes - since->bytes,
                        .wait = c->cost.wait - since->wait, .reduce = c->cost.reduce - since->reduce };
    mine.compute = seconds - mine.wait - mine.reduce;
    if (mine.compute < 0.0) mine.compute = 0.0;
    return dt_allgather(c, &mine, sizeof mine, each);
}

static void dti_trace_add(dt_comm *c, const char *name, double start, double end) {
    if (!c->trace || !(end - start >= 1e-6 && end - start < 1e9)) return; /* nor one whose end is no number */
    if (c->traced < c->trace_most) c->trace[c->traced++] = (dti_interval){ name, start, end };
    else ++c->untraced;
}

DT_API void dt_trace(dt_comm *c, const char *name, double start, double end) {
    DTI_NEED(c && name, "comm and name", );
    dti_trace_add(c, name, start, end);
}

/* Clocks of different hosts have nothing in common but the moment at which all leave this barrier. */
DT_API dt_err dt_trace_start(dt_comm *c, size_t capacity) {
    DTI_NEED(c, "comm", DT_EARG);
    dti_release(c->trace);
    c->trace = NULL;
    c->traced = c->untraced = 0, c->trace_most = capacity;
    dti_interval *room = dti_alloc_many(dti_plus(capacity, 1), sizeof *room);
    int64_t good = room != NULL;
    dt_err error = dt_allreduce(c, &good, 1, DT_I64, DT_MIN, DT_AUTO);
    if (error == DT_OK && !good)
        error = dt_fail(DT_ENOMEM, "trace: no memory for %zu intervals on some rank", capacity);
    if (error != DT_OK) return dti_release(room), error;
    double zero = dt_now(); /* ranks of a host read one clock; another host's zero is when it hears */
    error = dt_broadcast(c, &zero, sizeof zero, 0);
    if (error != DT_OK) return dti_release(room), error;
    c->trace_zero = strcmp(c->host[c->rank], c->host[0]) == 0 ? zero : dt_now();
    c->trace = room;
    return DT_OK;
}

typedef struct dti_trace_line { char name[32]; double start, end; } dti_trace_line;

static void dti_trace_print(FILE *file, const dti_trace_line *line, int rank) {
    char name[6 * sizeof line->name + 3], text[sizeof name + 160];
    dti_json_quote(name, line->name);
    dti_print(text, sizeof text,
              ",\n{\"name\":%s,\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f}", name,
              rank, line->start * 1e6, (line->end - line->start) * 1e6);
    fputs(text, file);
}

/* One rank's intervals, a few hundred a message, to rank 0. file NULL: they are taken, and thrown away. */
static dt_err dti_trace_gather(dt_comm *c, int rank, const dti_interval *trace, uint64_t count, FILE *file) {
    enum { MANY = 256 };
    dti_trace_line line[MANY];
    if (rank > 0 && c->rank == rank) DT_TRY(dt_send(c, &count, sizeof count, 0, 1));
    if (rank > 0 && c->rank == 0)    DT_TRY(dt_recv(c, &count, sizeof count, rank, 1));
    for (uint64_t at = 0; at < count; at += MANY) {
        size_t n = count - at < MANY ? (size_t)(count - at) : MANY;
        for (size_t i = 0; i < n && c->rank == rank; ++i) {
            const dti_interval *t = &trace[at + i];
            line[i] = (dti_trace_line){ .start = t->start - c->trace_zero, .end = t->end - c->trace_zero };
            dti_add_text(line[i].name, sizeof line[i].name, "%s", t->name);
        }
        if (rank > 0 && c->rank == rank) DT_TRY(dt_send(c, line, n * sizeof *line, 0, 1));
        if (rank > 0 && c->rank == 0)    DT_TRY(dt_recv(c, line, n * sizeof *line, rank, 1));
        for (size_t i = 0; i < n && c->rank == 0 && file; ++i) dti_trace_print(file, &line[i], rank);
    }
    return DT_OK;
}

/* The name of a rank's line. */
static void dti_trace_name(FILE *file, const dt_comm *c, int rank) {
    char who[96], name[6 * sizeof who + 3];
    snprintf(who, sizeof who, "rank %d, %s", rank, c->host[rank]);
    dti_json_quote(name, who);
    fprintf(file, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,", rank);
    fprintf(file, "\"args\":{\"name\":%s}}", name);
}

DT_API dt_err dt_trace_write(dt_comm *c, const char *path) {
    DTI_NEED(c && path, "comm and path", DT_EARG);
    dti_interval *trace = c->trace;
    dti_output out = { .file = NULL };
    int64_t failed = c->rank == 0 && dti_output_open(&out, path) != DT_OK;
    FILE *file = out.file;
    dt_err error = DT_OK;
    c->trace = NULL; /* what follows is not to be recorded */
    if (file)
        fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"dtrain\"}}");
    for (int r = 0; r < c->size && error == DT_OK; ++r) {
        const uint64_t count = r == c->rank && trace ? c->traced : 0;
        if (file) dti_trace_name(file, c, r);
        if (c->rank == 0 || c->rank == r) error = dti_trace_gather(c, r, trace, count, file);
    }
    if (file) {
        fprintf(file, "\n]}\n");
        if (error != DT_OK) dti_output_drop(&out);
        else failed = dti_output_close(&out) != DT_OK;
    }
    c->trace = trace;
    if (error == DT_OK) error = dt_allreduce(c, &failed, 1, DT_I64, DT_MAX, DT_AUTO);
    if (error == DT_OK && failed)
        error = c->rank == 0 ? DT_EIO : dt_fail(DT_EIO, "%s: rank 0 cannot write the trace", path);
    return error;
}
#endif /* DTI_IMPLEMENT */

/* ==== [E5.3] The machine =================================================

   A time without the machine it was taken on says nothing, so every table and every chart [E8] ends with one
   line about it. */
#ifdef DTI_DECLARE
/* dt_machine_caption                                                  [E5.3]
   "Intel Xeon Processor, 2 cores, AVX-512, gcc 12.2.0, 2026-11-20" into n
   bytes, cut to fit, always terminated. Processor and cores are those of the
   machine that runs, compiler and instruction set those of the build; the date
   is UTC. Not for several threads at once: it calls gmtime. */
DT_API void dt_machine_caption(char *buf, size_t n);
#endif

#ifdef DTI_IMPLEMENT
#if defined(__wasm__)
#define DTI_PROCESSOR "WebAssembly"
#elif defined(__x86_64__)
#define DTI_PROCESSOR "x86-64 processor"
#elif defined(__aarch64__)
#define DTI_PROCESSOR "aarch64 processor"
#else
#define DTI_PROCESSOR "unknown processor"
#endif

/* The processor's name without its trademark signs and double spaces. */
static void dti_cpu_name(char *out, size_t n) {
    char raw[256] = DTI_PROCESSOR;
    if (!dti_proc_line("/proc/cpuinfo", "model name", raw, sizeof raw))
        (void)dti_proc_line("/proc/cpuinfo", "Model", raw, sizeof raw);
    size_t k = 0;
    for (const char *s = raw; *s && k + 1 < n; ++s) {
        if (strncmp(s, "(R)", 3) == 0) { s += 2; continue; }
        if (strncmp(s, "(TM)", 4) == 0 || strncmp(s, "(tm)", 4) == 0) { s += 3; continue; }
        if (*s == ' ' && (k == 0 || out[k - 1] == ' ')) continue;
        out[k++] = *s;
    }
    if (n) out[k] = 0;
}

/* The vector instructions of the build, the best of them first. */
#if !defined(__GNUC__)
#define DTI_SIMD "plain C"
#elif defined(__AVX512F__)
#define DTI_SIMD "AVX-512"
#elif defined(__AVX2__)
#define DTI_SIMD "AVX2"
#elif defined(__AVX__)
#define DTI_SIMD "AVX"
#elif defined(__SSE2__)
#define DTI_SIMD "SSE2"
#elif defined(__ARM_NEON)
#define DTI_SIMD "NEON"
#elif defined(__wasm_simd128__)
#define DTI_SIMD "SIMD128"
#else
#define DTI_SIMD "plain C"
#endif

DT_API const char *dt_kernel_name(void) {
    static const char *const names[] = { DTI_SIMD ", one lane at a time", DTI_SIMD ", 4 lanes a register",
                                         DTI_SIMD ", 8 lanes a register", DTI_SIMD ", 16 lanes a register" };
    return names[(DTI_W >= 4) + (DTI_W >= 8) + (DTI_W >= 16)];
}

DT_API void dt_machine_caption(char *buf, size_t n) {
    char cpu[128], compiler[64], date[32] = "";
    DTI_NEED(buf || n == 0, "buf", );
    dti_cpu_name(cpu, sizeof cpu);
#if defined(__clang__)
    snprintf(compiler, sizeof compiler, "clang %d.%d.%d", __clang_major__, __clang_minor__,
             __clang_patchlevel__);
#elif defined(__GNUC__)
    snprintf(compiler, sizeof compiler, "gcc %d.%d.%d", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
    snprintf(compiler, sizeof compiler, "unknown compiler");
#endif
    const time_t now = time(NULL);
    const struct tm *day = gmtime(&now);
    if (day) strftime(date, sizeof date, "%Y-%m-%d", day);
    const int cores = dt_cores();
    const char *s = cores == 1 ? "" : "s";
    snprintf(buf, n, "%s, %d core%s, %s, %s, %s", cpu, cores, s, DTI_SIMD, compiler, date);
}
#endif

/* ==== [E5.4] A look inside ==============================================

   What a net and its training tell when asked. The functions are declared where one meets them, in [S8.1] and
   [S11.2], and stand here because none of them is an idea of the book: most are three lines.

       how large is it?             dt_net_count, dt_net_bytes, dt_net_layers, dt_net_classes
       what are its values?         dt_net_find by name, dt_net_param by number, dt_net_hash of all
       what does it say?            dt_net_logits, dt_net_log_probabilities of a batch; dt_predict of a data
       set
       how much work is it?         dt_net_flops, dt_net_summary: counted from the shapes
       where does the time go?      dt_net_profile, then dt_net_layer: measured by the clock
       how well does it do?         dt_score_loss, dt_score_accuracy, dt_progress_line

   Nothing here changes what is learned: dt_predict loads batches of its own into the net, and takes the mode
   of training back as it was. To read: dt_predict. */
#ifdef DTI_IMPLEMENT
DT_API size_t dt_net_count(const dt_net *net) { DTI_NEED(net, "net", 0); return net->count; }
DT_API float *dt_net_values(dt_net *net) {
    return dti_ready(__func__, net) == DT_OK ? net->values : NULL;
}
DT_API float *dt_net_gradients(dt_net *net) {
    return dti_ready(__func__, net) == DT_OK ? net->grad : NULL;
}
DT_API int dt_net_param_count(const dt_net *net) { DTI_NEED(net, "net", 0); return net->params; }
DT_API int dt_net_classes(const dt_net *net) { DTI_NEED(net, "net", 0); return net->classes; }
DT_API size_t dt_net_bytes(const dt_net *net) {
    DTI_NEED(net, "net", 0);
    return net->bytes + sizeof *net;
}
DT_API dt_score dt_net_score(const dt_net *net) {
    DTI_NEED(net, "net", ((dt_score) { 0, 0, 0 }));
    return net->score;
}
DT_API int dt_net_layers(const dt_net *net) { DTI_NEED(net, "net", 0); return net->list.layers; }

DT_API uint64_t dt_net_hash(const dt_net *net) {
    return dti_ready(__func__, net) == DT_OK ? dti_hash_floats(net->values, net->count) : 0;
}

DT_API const dt_param *dt_net_param(const dt_net *net, int i) {
    DTI_NEED(net, "net", NULL);
    return i >= 0 && i < net->params ? &net->param[i]
               : (dt_fail(DT_EARG, "net: no parameter %d; 0..%d", i, net->params - 1), NULL);
}

DT_API const dt_param *dt_net_find(const dt_net *net, const char *name) {
    DTI_NEED(net && name, "net and name", NULL);
    for (int i = 0; i < net->params; ++i)
        if (strcmp(net->param[i].name, name) == 0) return &net->param[i];
    return dt_fail(DT_EARG, "net: no parameter is named \"%.100s\"", name), NULL;
}

/* The numbers of sample i, one a class, out of rows [class][16] of its lane group; groups are `stride`
   apart. */
static void dti_lane_out(const dt_net *net, const float *rows, size_t stride, int i, float *out) {
    const float *group = rows + (size_t)(i / DT_LANES) * stride;
    for (int k = 0; k < net->classes; ++k) out[k] = group[k * DT_LANES + i % DT_LANES];
}

/* Is there a sample i whose outputs can be asked for? */
static dt_err dti_check_lane(const char *who, const dt_net *net, int i, const float *out) {
    DT_TRY(dti_ready(who, net));
    if (!net->forwarded) return dt_fail(DT_EARG, "%s: dt_forward comes first", who);
    if (i < 0 || (uint32_t)i >= net->batch.count)
        return dt_fail(DT_EARG, "%s: sample %d of a batch of %u", who, i, (unsigned)net->batch.count);
    return out ? DT_OK : dt_fail(DT_EARG, "%s: out must not be NULL", who);
}

DT_API dt_err dt_net_logits(const dt_net *net, int i, float *out) {
    DT_TRY(dti_check_lane(__func__, net, i, out));
    const dti_lanes logits = net->tensor[net->op[net->ops - 1].made].value;
    dti_lane_out(net, logits.at, logits.stride, i, out);
    return DT_OK;
}

DT_API dt_err dt_net_log_probabilities(const dt_net *net, int i, float *out) {
    DT_TRY(dti_check_lane(__func__, net, i, out));
    if (!net->loss->probabilities)
        return dt_fail(DT_EARG, "%s: %s knows no probabilities", __func__, net->loss->name);
    dti_lane_out(net, net->logp, (size_t)net->classes * DT_LANES, i, out);
    return DT_OK;
}

/* out[sample][class]: probabilities; or what the last layer gives, where the loss knows none. */
static dt_err dti_predict_batch(dt_net *net, const dt_batch *batch, float *out) {
    const size_t K = (size_t)net->classes;
    DT_TRY(dt_net_load(net, batch));
    DT_TRY(dt_forward(net));
    for (int i = 0; i < (int)batch->count; ++i, out += K) {
        if (!net->loss->probabilities) { DT_TRY(dt_net_logits(net, i, out)); continue; }
        DT_TRY(dt_net_log_probabilities(net, i, out));
        for (size_t k = 0; k < K; ++k) out[k] = expf(out[k]);
    }
    return DT_OK;
}

DT_API dt_err dt_predict(dt_net *net, const dt_dataset *data, uint32_t first, uint32_t count,
                         float *out) {
    DT_TRY(dti_ready(__func__, net));
    DTI_NEED(data && out, "data and out", DT_EARG);
    if (count > data->count || first > data->count - count)
        return dt_fail(DT_EARG, "dt_predict: samples %u to %u of %u", (unsigned)first,
                       (unsigned)(first + count), (unsigned)data->count);
    const uint32_t most = (uint32_t)net->max_groups * DT_LANES;
    uint32_t index[16 * DT_LANES];      /* 256 samples at a time, or as many as the net was built for */
    const bool training = net->training;
    dt_err error = DT_OK;
    net->training = false;
    for (uint32_t n; count > 0 && error == DT_OK; first += n, count -= n) {
        n = dti_min_u32(count, dti_min_u32(most, 16 * DT_LANES));
        for (uint32_t i = 0; i < n; ++i) index[i] = first + i;
        const dt_batch batch = { .pixels = data->pixels, .values = data->values, .mean = data->mean,
                                 .std = data->std, .index = index, .count = n, .global_count = n,
                                 .channels = data->channels, .height = data->height,
                                 .width = data->width, .rows = data->count };
        error = dti_predict_batch(net, &batch, out);
        out += (size_t)n * (size_t)net->classes;
    }
    net->training = training;
    net->masked = false;
    return error;
}

static double dti_layer_macs(const dti_layer *l) {
    return l->class->macs ? l->class->macs(l) : 0.0;
}

/* Of one image, forward and backward: forward, backward-weights, and backward-data where something before
   the layer learns, 2 flop a multiply-add each, as the definition counts them and not Winograd's algorithm
   [E1.8]. */
DT_API double dt_net_flops(const dt_net *net) {
    DTI_NEED(net, "net", 0.0);
    double flops = 0.0;
    for (const dti_layer *l = net->list.layer; l < net->list.layer + net->list.layers; ++l)
        flops += 2.0 * dti_layer_macs(l) * (net->tensor[l->x].learns ? 3.0 : 2.0);
    return flops;
}

DT_API void dt_net_summary(const dt_net *net, char *text, size_t size) {
    size_t used = 0;
    DTI_NEED(text || size == 0, "text", );
    if (size) text[0] = '\0';
    DTI_NEED(net, "net", );
    for (int i = 0; i < net->list.layers && used < size; ++i) {
        const dti_layer *l = &net->list.layer[i];
        used += dti_print(text + used, size - used,
            "%-10s %3d x %2d x %2d -> %3d x %2d x %2d %8zu parameters %9.0f multiply-adds\n",
            l->name, l->in[0], l->in[1], l->in[2], l->out[0], l->out[1], l->out[2], l->params,
            dti_layer_macs(l));
    }
}

DT_API dt_err dt_net_profile(dt_net *net, bool on) {
    DT_TRY(dti_ready(__func__, net));
    dti_release(net->layer_seconds);
    net->layer_seconds = NULL;
    if (on && !(net->layer_seconds = dti_alloc_many((size_t)net->list.layers * 2, sizeof(double))))
        return DT_ENOMEM;
    return DT_OK;
}

DT_API const char *dt_net_layer(const dt_net *net, int i, double *forward_seconds,
                                double *backward_seconds) {
    DTI_NEED(net, "net", NULL);
    if (i < 0 || i >= net->list.layers)
        return dt_fail(DT_EARG, "net: no layer %d; 0..%d", i, net->list.layers - 1), NULL;
    if (forward_seconds) *forward_seconds = net->layer_seconds ? net->layer_seconds[2 * i] : 0.0;
    if (backward_seconds) *backward_seconds = net->layer_seconds ? net->layer_seconds[2 * i + 1] : 0.0;
    return net->list.layer[i].name;
}

/* loss_fixed counts 2^-24 of a loss, so that its sum is exact. */
DT_API double dt_score_loss(const dt_score *score) {
    DTI_NEED(score, "score", 0.0);
    return score->count ? (double)score->loss_fixed * 0x1p-24 / (double)score->count : 0.0;
}

DT_API double dt_score_accuracy(const dt_score *score) {
    DTI_NEED(score, "score", 0.0);
    return score->count ? (double)score->correct / (double)score->count : 0.0;
}

DT_API void dt_score_add(dt_score *sum, const dt_score *more) {
    DTI_NEED(sum && more, "sum and more", );
    sum->loss_fixed += more->loss_fixed;
    sum->correct += more->correct;
    sum->count += more->count;
}

DT_API void dt_progress_line(const dt_progress *p, char *text, size_t size) {
    DTI_NEED(text || size == 0, "text", );
    if (size) text[0] = '\0';
    DTI_NEED(p, "progress", );
    double done = p->epochs > 0 ? (p->epoch + (p->steps ? (double)p->step / p->steps : 1.0)) / p->epochs
                      : 0.0;
    double left = done > 0.0 ? p->seconds * (1.0 - done) / done : 0.0;
    dti_print(text, size, "epoch %d/%d  step %u/%u  loss %.4f  %.0f images/s  %.0f s left",
              p->epoch + 1, p->epochs, (unsigned)p->step, (unsigned)p->steps,
              dt_score_loss(&p->score), p->seconds > 0.0 ? (double)p->samples / p->seconds : 0.0,
              left);
}
#endif

/* ==== [E6] Files ===========================================================

   What is kept: parameters, measurements, pictures; and what is read: those, and data sets. The plain way,
   to open a file and write, leaves half a file where a program is killed or a disk is full, in place of the
   whole one that was there. To read as if a file were what its name says ends in memory that is not ours.
   So here a file is written whole or not at all, and nothing that a file says is believed before it is
   checked:

       [E6.1] outputs   x.part, then renamed to x       a reader finds the old file or the new one, never half
       [E6.2] JSON      text between programs           a question for each thing that must come next
       [E6.3] saved parameters: length, JSON, floats    the header is checked whole before a net is touched
       [E6.4] CSV rows                                  appended under a header that must be the same
       [E6.5] data files: IDX, CIFAR-10                 each size in them is held against the file's length
       [E6.7] checkpoints                               a hash over all of it, settings compared by name

   To read: dti_output_open and dti_output_close, then dt_save; for reading, dti_idx_open. [E6.6] reads and
   writes numbers in no locale. */

/* ==== [E6.1] Files ========================================================

   A file is replaced whole. What is written goes into a new file beside it, which takes its name once all of
   it is on the disk: a reader at that time, or after the power failed, finds the old file or the new one.

       x.part    created, written, flushed to the disk, closed, renamed to x
       folder    flushed to the disk, so that the new name lasts as well

   The new file gets the permissions and the owner of the old one, and a link is followed to the file it
   names, be it there already or not. Where a new file cannot take the old one's place, the old one is
   written as it stands: a device, a pipe, a file with several names, another user's file, a folder that
   takes no new files. A pipe that nobody reads is an error, not waited for. */
#ifdef DTI_DECLARE
/* dt_check_writable: whether a file of this name could be written now, to be asked before the
   hours of work that the file is for; nothing is changed. DT_EIO with the reason, such as a
   folder that does not exist. Whether a pipe is read can only be seen when it is written. */
DT_API dt_err dt_check_writable(const char *path);
#endif

#ifdef DTI_IMPLEMENT
#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
/* POSIX functions are declared: unless the program asks for strict C and for nothing more. */
#if defined(_DEFAULT_SOURCE) || defined(_GNU_SOURCE) || !(defined(__GLIBC__) || defined(__STRICT_ANSI__))
#define DTI_POSIX_FILES
#include <fcntl.h>
#endif
#endif

/* Opens a file to read. A pipe or a device in its place is refused: opening a pipe would wait
   until somebody writes. */
static FILE *dti_open_plain(const char *path) {
#if defined(__unix__) || defined(__APPLE__)
    struct stat s;
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode)) {
        const char *kind = S_ISDIR(s.st_mode) ? "folder" : S_ISFIFO(s.st_mode) ? "pipe" : "device";
        dt_fail(DT_EIO, "%s is not a plain file but a %s", path, kind);
        return NULL;
    }
#endif
    errno = 0;
    FILE *f = fopen(path, "rb");
    if (!f) dt_fail(DT_EIO, "cannot open %s: %s", path, errno ? strerror(errno) : "unknown reason");
    return f;
}

static dt_err dti_output_failed(const dti_output *o, int why) {
    const char *reason = why == ENXIO ? "it is a pipe that nobody reads"
                       : why ? strerror(why) : "the reason is not known";
    return dt_fail(DT_EIO, "%s: cannot write it: %s", o->path, reason);
}

#ifdef DTI_POSIX_FILES
/* A new file with the permissions and the owner of the old one, from its first moment no more
   open than that. */
static FILE *dti_create(const char *path, const struct stat *old) {
    struct stat now;
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, old ? old->st_mode & 0777 : 0666);
    if (fd < 0) return NULL;
    bool alike = fstat(fd, &now) == 0;
    const bool ours = alike && (!old || (now.st_uid == old->st_uid && now.st_gid == old->st_gid));
    if (alike && !ours) alike = fchown(fd, old->st_uid, old->st_gid) == 0;
    if (alike && old) alike = fchmod(fd, old->st_mode & 07777) == 0;
    FILE *f = alike ? fdopen(fd, "wb") : NULL;
    if (f) return f;
    const int why = errno;
    close(fd);
    unlink(path);
    errno = why;
    return NULL;
}

/* The name that a path has in the end, links followed; realpath would stop where nothing is
   there yet. False: a name too long, or links in a circle. */
static bool dti_follow(const char *path, char target[DTI_PATH_MAX]) {
    char link[DTI_PATH_MAX];
    if (strlen(path) >= DTI_PATH_MAX) return false;
    memcpy(target, path, strlen(path) + 1);
    for (int links = 0; links < 40; ++links) {
        const ssize_t n = readlink(target, link, sizeof link);
        if (n < 0) return true;                     /* no link, or nothing there */
        const char *slash = strrchr(target, '/');
        const size_t folder = link[0] == '/' || !slash ? 0 : (size_t)(slash - target) + 1;
        if (folder + (size_t)n >= DTI_PATH_MAX) return false;
        memcpy(target + folder, link, (size_t)n);
        target[folder + (size_t)n] = '\0';
    }
    return false;
}

/* Opens the file beside. false: the target is to be written as it stands. true with no o->file:
   errno says what failed. */
static bool dti_output_beside(dti_output *o) {
    struct stat old, now;
    const bool there = stat(o->path, &old) == 0;
    if (there && (!S_ISREG(old.st_mode) || old.st_nlink > 1 || access(o->path, W_OK) != 0)) return false;
    if (!there && (errno != ENOENT || !*o->path)) return false;
    if (!dti_follow(o->path, o->target)) return false;
    /* /dev/stdout leads to an open file, whose name may be another's by now */
    if (there && (stat(o->target, &now) != 0 || now.st_dev != old.st_dev || now.st_ino != old.st_ino))
        return false;
    /* x.part may be a file of the user's, or of another run's */
    for (int i = 1; i < 100; ++i) {
        if (i == 1) snprintf(o->beside, sizeof o->beside, "%s.part", o->target);
        else snprintf(o->beside, sizeof o->beside, "%s.part%d", o->target, i);
        o->file = dti_create(o->beside, there ? &old : NULL);
        if (o->file || errno != EEXIST) break;
    }
    if (o->file) return true;
    o->beside[0] = '\0';
    return !there || (errno != EACCES && errno != EPERM && errno != ENAMETOOLONG && errno != EEXIST);
}

/* Waits until the disk has it. What is no file of a disk cannot be waited for. */
static bool dti_flush_to_disk(int fd) {
    return fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
}

/* The folder's entry for the new name, on the disk as well. */
static bool dti_flush_folder(const char *path) {
    char folder[DTI_PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    const int fd = open(folder, O_RDONLY | O_CLOEXEC);
    /* a folder may be written and not read: this is all there is to do */
    if (fd < 0) return true;
    const bool good = dti_flush_to_disk(fd);
    close(fd);
    return good;
}

DT_API dt_err dt_check_writable(const char *path) {
    DTI_NEED(path, "path", DT_EARG);
    dti_output o = { .path = path };
    if (dti_output_beside(&o)) {
        if (!o.file) return dti_output_failed(&o, errno);
        fclose(o.file);
        unlink(o.beside);
        return DT_OK;
    }
    struct stat s;
    /* not opened: whoever reads a pipe would take that for its end */
    if (stat(path, &s) != 0) return dti_output_failed(&o, errno);
    if (S_ISDIR(s.st_mode)) return dti_output_failed(&o, EISDIR);
    return access(path, W_OK) == 0 ? DT_OK : dti_output_failed(&o, errno);
}

/* Opens a file that is written as it stands; mode: "wb", "ab". Opening a pipe would wait until
   somebody reads it, perhaps for ever; this fails with ENXIO instead. */
static FILE *dti_open_in_place(const char *path, const char *mode) {
    struct stat s;
    if (stat(path, &s) != 0 || !S_ISFIFO(s.st_mode)) return fopen(path, mode);
    const int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return NULL;
    (void)fcntl(fd, F_SETFL, 0);                    /* to write, it may wait */
    return fdopen(fd, mode);
}
#else
static bool dti_output_beside(dti_output *o) { (void)o; return false; }
static FILE *dti_open_in_place(const char *path, const char *mode) { return fopen(path, mode); }
DT_API dt_err dt_check_writable(const char *path) {
    DTI_NEED(path, "path", DT_EARG);
    FILE *f = fopen(path, "ab");
    if (f) fclose(f);
    return f ? DT_OK : dti_output_failed(&(dti_output){ .path = path }, errno);
}
#endif

static dt_err dti_output_open(dti_output *o, const char *path) {
    memset(o, 0, sizeof *o);
    o->path = path;
    errno = 0;
    if (!dti_output_beside(o)) o->file = dti_open_in_place(path, "wb");
    return o->file ? DT_OK : dti_output_failed(o, errno);
}

/* Gives up what was written. Where it was written in place, the half stays. */
static void dti_output_drop(dti_output *o) {
    fclose(o->file);
    if (o->beside[0]) remove(o->beside);
}

/* Ends a file that is complete. It takes the name only if every byte has arrived. */
static dt_err dti_output_close(dti_output *o) {
    /* if not, errno is still that of the write that failed */
    bool good = !ferror(o->file);
    if (good) errno = 0;
    good = good && fflush(o->file) == 0;
#ifdef DTI_POSIX_FILES
    good = good && dti_flush_to_disk(fileno(o->file));
#endif
    int why = errno;
    if (fclose(o->file) != 0 && good) { good = false; why = errno; }
    if (good && o->beside[0]) {
        good = rename(o->beside, o->target) == 0;
#ifdef DTI_POSIX_FILES
        if (good && !dti_flush_folder(o->target)) return dti_output_failed(o, errno);
#endif
        why = errno;
    }
    if (good) return DT_OK;
    if (o->beside[0]) remove(o->beside);
    return dti_output_failed(o, why);
}

/* Opens a file whose length its contents will be held against. *file NULL: not open. */
static dt_err dti_open_measured(FILE **file, const char *path, long *length) {
    *file = dti_open_plain(path);
    if (!*file) return DT_EIO;
    *length = fseek(*file, 0, SEEK_END) == 0 ? ftell(*file) : -1;
    if (*length >= 0 && fseek(*file, 0, SEEK_SET) == 0) return DT_OK;
    *length = 0;
    return dt_fail(DT_EIO, "%s is not a plain file", path);
}

/* A file that is there but may not be read counts as present: opening it will say why. */
static bool dti_file_exists(const char *path) {
    errno = 0;
#if defined(__unix__) || defined(__APPLE__)
    struct stat s;
    const bool there = stat(path, &s) == 0;
#else
    FILE *f = fopen(path, "rb");
    const bool there = f != NULL;
    if (f) fclose(f);
#endif
    return there || (errno != ENOENT && errno != ENOTDIR);
}
#endif

/* ==== [E6.2] JSON =========================================================

   Text between programs (RFC 8259): {"name": value, ...}, [value, ...], "text", numbers. The plain way reads
   it into a tree of values, which costs an allocation each and a stack as deep as its brackets, and then asks
   the tree. There is no tree here. Whoever reads knows what must come next, and asks for that, in the shape
   of a loop:

       dti_json_take(&j, '{', "'{' is missing");
       for (int n = 0; dti_json_more(&j, n, '}'); ++n)      one turn for each name
           if (dti_json_name(&j, name, sizeof name, &length)) count = dti_json_wholes(&j, values, most);
       if (j.why) ...                                       the first error; j.at is where it was met

   Anything else than what was asked for is an error, so text from outside cannot lead anywhere. After an
   error every question is answered with no, and loops end. */
#ifdef DTI_IMPLEMENT
/* Bytes of the UTF-8 character at s, of which `left` bytes are there; 0 if it is cut off, overlong, half
   of a surrogate pair, or beyond U+10FFFF. */
static size_t dti_utf8_bytes(const char *s, size_t left) {
    const unsigned a = left > 0 ? (unsigned char)s[0] : 0xff, b = left > 1 ? (unsigned char)s[1] : 0;
    const size_t n = a < 0x80 ? 1 : 1 + (size_t)(a >= 0xc2) + (a >= 0xe0) + (a >= 0xf0);
    if (n > left || (a >= 0x80 && a < 0xc2) || a >= 0xf5) return 0;
    for (size_t i = 1; i < n; ++i)
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
    const bool overlong = (a == 0xe0 && b < 0xa0) || (a == 0xf0 && b < 0x90);
    const bool surrogate = a == 0xed && b >= 0xa0, beyond = a == 0xf4 && b >= 0x90;
    return overlong || surrogate || beyond ? 0 : n;
}

static size_t dti_utf8_put(char *out, uint32_t code) {
    static const unsigned char first[5] = { 0, 0x00, 0xc0, 0xe0, 0xf0 };
    const size_t n = 1 + (size_t)(code >= 0x80) + (code >= 0x800) + (code >= 0x10000);
    for (size_t i = n; i-- > 1; code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(first[n] | code);
    return n;
}

/* text as a JSON string, quotes and all, into at least 6 * strlen(text) + 3 bytes. What is not UTF-8
   becomes U+FFFD. */
static void dti_json_quote(char *out, const char *text) {
    *out++ = '"';
    for (size_t n; *text; text += n) {
        n = dti_utf8_bytes(text, strlen(text));
        if (n == 0) out += dti_utf8_put(out, 0xfffd), n = 1;
        else if ((unsigned char)*text < ' ') out += sprintf(out, "\\u%04x", (unsigned)*text);
        else {
            if (*text == '"' || *text == '\\') *out++ = '\\';
            memcpy(out, text, n);
            out += n;
        }
    }
    memcpy(out, "\"", 2);
}

typedef struct dti_json {
    const char *begin, *at, *end;                /* the text, and where the next byte is read */
    const char *why;                             /* the first error; NULL: none so far */
} dti_json;

static bool dti_json_fail(dti_json *j, const char *why) {
    if (!j->why) j->why = why;
    return false;
}

/* The next byte that is not blank, which stays where it is; 0 at the end. */
static char dti_json_peek(dti_json *j) {
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r')) ++j->at;
    return j->at < j->end ? *j->at : '\0';
}

/* For sentences, a string as it was written, which has no control characters: where it begins, and how
   much to show. */
static const char *dti_json_here(dti_json *j) { dti_json_peek(j); return j->at; }
static int dti_json_shown(const dti_json *j, const char *from) {
    size_t n = dti_min_size((size_t)(j->at - from), 80);
    /* without the colon; cut inside a string, to its start */
    while (n > 0 && from[n - 1] != '"') --n;
    return (int)n;
}

static bool dti_json_take(dti_json *j, char wanted, const char *otherwise) {
    if (j->why || dti_json_peek(j) != wanted) return dti_json_fail(j, otherwise);
    ++j->at;
    return true;
}

/* Whether one more item follows in a list or an object of which `count` have been read; takes the comma or
   the end. */
static bool dti_json_more(dti_json *j, int count, char end) {
    if (j->why) return false;
    if (dti_json_peek(j) == end) { ++j->at; return false; }
    return count == 0 ||
           dti_json_take(j, ',', end == '}' ? "',' or '}' is missing" : "',' or ']' is missing");
}

static bool dti_json_hex(dti_json *j, uint32_t *code) { /* \u and four digits */
    if (j->end - j->at < 6 || j->at[0] != '\\' || j->at[1] != 'u')
        return dti_json_fail(j, "an escape that JSON does not have");
    *code = 0;
    for (int i = 2; i < 6; ++i) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *d = j->at[i] ? strchr(digits, j->at[i]) : NULL;
        if (!d) return dti_json_fail(j, "\\u without four hexadecimal digits");
        *code = *code << 4 | ((uint32_t)(d - digits) & 15);
    }
    j->at += 6;
    return true;
}

/* One escape as UTF-8; its bytes, or 0. Characters beyond U+FFFF come as two: D800 + ten bits, DC00 + ten
   more. */
static size_t dti_json_escape(dti_json *j, char *out) {
    static const char letter[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *known = j->end - j->at > 1 && j->at[1] ? strchr(letter, j->at[1]) : NULL;
    uint32_t code, low = 0;
    if (known) { j->at += 2; *out = meant[known - letter]; return 1; }
    if (!dti_json_hex(j, &code)) return 0;
    if (code >= 0xd800 && code < 0xe000) {
        if (code >= 0xdc00 || !dti_json_hex(j, &low) || low < 0xdc00 || low > 0xdfff)
            return dti_json_fail(j, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return dti_utf8_put(out, code);
}

/* A string into out, its escapes resolved, with a NUL behind it; one that does not fit is cut, and *length
   then >= size. */
static bool dti_json_string(dti_json *j, char *out, size_t size, size_t *length) {
    *length = 0;
    if (!dti_json_take(j, '"', "'\"' is missing")) return false;
    while (j->at < j->end && *j->at != '"') {
        char one[4];
        size_t n = 0;
        if (*j->at == '\\') n = dti_json_escape(j, one);
        else if ((unsigned char)*j->at < ' ') dti_json_fail(j, "a control character in a string");
        else if ((n = dti_utf8_bytes(j->at, (size_t)(j->end - j->at))) > 0) {
            memcpy(one, j->at, n);
            j->at += n;
        } else dti_json_fail(j, "a string that is not UTF-8");
        if (n == 0) return false;
        for (size_t i = 0; i < n; ++i)
            if (*length + i + 1 < size) out[*length + i] = one[i];
        *length += n;
    }
    if (size) out[dti_min_size(*length, size - 1)] = '\0';
    return dti_json_take(j, '"', "a string without an end");
}

/* Whether a string that was read, `length` bytes of it, NULs and all, is this one. */
static bool dti_json_is(const char *read, size_t length, const char *text) {
    return length == strlen(text) && memcmp(read, text, length) == 0;
}

/* A name and its colon. */
static bool dti_json_name(dti_json *j, char *out, size_t size, size_t *length) {
    return dti_json_string(j, out, size, length) && dti_json_take(j, ':', "':' is missing");
}

/* A whole number from 0 to 2^64 - 1. */
static bool dti_json_whole(dti_json *j, uint64_t *number) {
    const char first = dti_json_peek(j), *from = j->at;
    *number = 0;
    if (first < '0' || first > '9') return dti_json_fail(j, "a whole number, 0 or more, is missing");
    for (; j->at < j->end && *j->at >= '0' && *j->at <= '9'; ++j->at) {
        const uint64_t digit = (uint64_t)(*j->at - '0');
        if (*number > (UINT64_MAX - digit) / 10) return dti_json_fail(j, "a number beyond 64 bits");
        *number = 10 * *number + digit;
    }
    if (first == '0' && j->at - from > 1) return dti_json_fail(j, "a number that begins with 0");
    if (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E'))
        return dti_json_fail(j, "a number that is not whole");
    return true;
}

/* [number, ...]: how many, or -1. More than `most` are an error. */
static int dti_json_wholes(dti_json *j, uint64_t *out, int most) {
    int n = 0;
    dti_json_take(j, '[', "'[' is missing");
    for (; dti_json_more(j, n, ']'); ++n) {
        if (n == most) dti_json_fail(j, "a list that is too long");
        else dti_json_whole(j, &out[n]);
    }
    return j->why ? -1 : n;
}
#endif

/* ==== [E6.3] Saved parameters =============================================

   A file of parameters that other programs read, too: safetensors, which is a length, a header in JSON, and
   floats.

       0        8                                                                              8 + length
       | length | {"conv1.weight":{"dtype":"F32","shape":[10,1,5,5],"data_offsets":[0,1000]}, ...} | floats

   Writing is short. Reading is most of this section, because a file may come from anywhere: all of the header
   is held against the net and against the length of the file first, until every byte behind it belongs to one
   parameter; only then is the net written. A file that is refused has changed nothing. Begin to read at
   dti_take_bytes. */
#ifdef DTI_DECLARE
/* dt_save: writes the named parameters as a safetensors file: u64 little-endian length of a JSON header,
   the header (name -> dtype F32, shape, byte range), raw little-endian floats. Names and shapes are
   PyTorch's ("conv1.weight", [10,1,5,5], rows of output channels first). Written as [E6.1] says, so that
   no half file is left. DT_EARG, DT_EIO. */
DT_API dt_err dt_save(const dt_net *net, const char *path);
/* dt_load: reads such a file into a net that has the same names and shapes, no more and no fewer. The file
   is held against the whole format first: after an error the net is as it was. DT_EARG, DT_EIO, DT_ENOMEM,
   DT_EDATA. */
DT_API dt_err dt_load(dt_net *net, const char *path);
#endif

#ifdef DTI_IMPLEMENT
static void dti_put_le(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t dti_get_le(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

/* A tensor of a file: what its header says of it, and where the numbers are in memory. */
typedef struct dti_saved {
    char name[DTI_NAME + 32];
    const char *type;        /* "F32", "F64", "I64" */
    int rank;
    uint64_t shape[DT_MAX_RANK];
    void *data;              /* NULL: not wanted of a file */
    bool optional;           /* a file may be without it, and it is not read */
    bool there;              /* the header has it, and these are its bytes behind the header */
    uint64_t begin, end;
} dti_saved;

static int dti_saved_width(const dti_saved *p) { return p->type[1] == '3' ? 4 : 8; }
static size_t dti_saved_count(const dti_saved *p) {
    size_t n = 1;
    for (int d = 0; d < p->rank; ++d) n = dti_times(n, (size_t)p->shape[d]);
    return n;
}
static size_t dti_saved_bytes(const dti_saved *p) {
    return dti_times(dti_saved_count(p), (size_t)dti_saved_width(p));
}

/* What PyTorch's batch norm saves beside its tensors: a scalar, "bn.num_batches_tracked", of dtype I64.
   Files that are to load there must have one; nothing here depends on it. They come first in the file,
   where eight bytes are aligned. */
static int dti_counter_pieces(const dt_net *net, dti_saved *piece) {
    int n = 0;
    for (const dti_layer *l = net->list.layer; l < net->list.layer + net->list.layers; ++l) {
        if (!l->class->counter) continue;
        dti_saved *p = &piece[n++];
        *p = (dti_saved){ .type = "I64", .data = (void *)(uintptr_t)&net->followed, .optional = true };
        snprintf(p->name, sizeof p->name, "%s.%s", l->name, l->class->counter);
    }
    return n;
}

/* Of a net: the counters, then the parameters, whose values lie in values. Returns how many: at most
   dti_most_pieces. */
static int dti_most_pieces(const dt_net *net) { return net->list.layers + net->params; }
static int dti_net_pieces(const dt_net *net, float *values, dti_saved *piece) {
    int n = dti_counter_pieces(net, piece);
    for (const dt_param *q = net->param; q < net->param + net->params; ++q) {
        dti_saved *p = &piece[n++];
        *p = (dti_saved){ .type = "F32", .rank = q->value.rank, .data = values + q->offset };
        snprintf(p->name, sizeof p->name, "%s", q->name);
        for (int d = 0; d < p->rank; ++d) p->shape[d] = (uint64_t)q->value.shape[d];
    }
    return n;
}

/* The JSON header: "__metadata__" as it is given, or "", and the pieces end to end; the length it would
   have if size is too small, as snprintf. */
static size_t dti_safetensors_header(char *text, size_t size, const char *metadata,
                                     const dti_saved *piece, int count) {
    uint64_t begin = 0;
    size_t used = dti_print(text, size, "{%s", metadata);
    for (int i = 0; i < count; ++i) {
        char name[6 * sizeof piece->name + 3], shape[24 * DT_MAX_RANK] = "";
        const dti_saved *p = &piece[i];
        const uint64_t end = begin + dti_saved_bytes(p);
        dti_json_quote(name, p->name);
        for (int d = 0, at = 0; d < p->rank; ++d)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%llu", d ? "," : "",
                           (unsigned long long)p->shape[d]);
        const size_t room = used < size ? size - used : 0;
        used += dti_print(room ? text + used : NULL, room,
                          "%s%s:{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                          i > 0 || *metadata ? "," : "", name, p->type, shape,
                          (unsigned long long)begin, (unsigned long long)end);
        begin = end;
    }
    const size_t room = used < size ? size - used : 0;
    return used + dti_print(room ? text + used : NULL, room, "}");
}

/* A number in memory and in a file, where its lowest byte comes first. */
static void dti_put_number(unsigned char *to, const void *number, int width) {
    uint64_t wide;
    uint32_t narrow;
    if (width == 4) memcpy(&narrow, number, 4), dti_put_le(to, narrow, 4);
    else memcpy(&wide, number, 8), dti_put_le(to, wide, 8);
}

static void dti_get_number(void *number, const unsigned char *from, int width) {
    const uint64_t wide = dti_get_le(from, width);
    const uint32_t narrow = (uint32_t)wide;
    if (width == 4) memcpy(number, &narrow, 4);
    else memcpy(number, &wide, 8);
}

/* The file as it will be, the caller's to release. */
static dt_err dti_safetensors_bytes(const char *metadata, const dti_saved *piece, int count,
                                    unsigned char **bytes, size_t *size) {
    const size_t used = dti_safetensors_header(NULL, 0, metadata, piece, count),
                 padded = dti_round_up(used, 8);
    *size = dti_plus(8, padded);
    for (int i = 0; i < count; ++i) *size = dti_plus(*size, dti_saved_bytes(&piece[i]));
    if (!(*bytes = dti_alloc(*size))) return DT_ENOMEM;
    unsigned char *at = *bytes + 8 + padded;
    dti_put_le(*bytes, padded, 8);
    dti_safetensors_header((char *)*bytes + 8, *size - 8, metadata, piece, count);
    /* the format allows spaces; the numbers start at a multiple of 8 */
    memset(*bytes + 8 + used, ' ', padded - used);
    for (int i = 0; i < count; ++i) {
        const size_t n = dti_saved_count(&piece[i]), width = (size_t)dti_saved_width(&piece[i]);
        const char *data = piece[i].data;
        for (size_t k = 0; k < n; ++k, at += width) dti_put_number(at, data + k * width, (int)width);
    }
    return DT_OK;
}

static dt_err dti_write_all(const char *path, const unsigned char *bytes, size_t size) {
    dti_output out;
    DT_TRY(dti_output_open(&out, path));
    fwrite(bytes, 1, size, out.file);
    return dti_output_close(&out); /* knows what failed on the way */
}

DT_API dt_err dt_save(const dt_net *net, const char *path) {
    DT_TRY(dti_ready(__func__, net));
    DTI_NEED(path, "path", DT_EARG);
    unsigned char *bytes = NULL;
    size_t size;
    dti_saved *piece = dti_alloc_many((size_t)dti_most_pieces(net), sizeof *piece);
    if (!piece) return DT_ENOMEM;
    dt_err error = dti_safetensors_bytes("", piece, dti_net_pieces(net, net->values, piece), &bytes, &size);
    if (error == DT_OK) error = dti_write_all(path, bytes, size);
    dti_release(bytes);
    dti_release(piece);
    return error;
}

/* Whole file into memory, which is the caller's to release. */
static dt_err dti_read_all(const char *path, unsigned char **bytes, size_t *size) {
    FILE *f;
    long length = 0;
    dt_err error = dti_open_measured(&f, path, &length);
    *size = (size_t)length;
    if (error == DT_OK && !(*bytes = dti_alloc(*size + 1))) error = DT_ENOMEM;
    if (error == DT_OK && fread(*bytes, 1, *size, f) != *size) {
        error = dt_fail(DT_EIO, "%s: could not be read to its end", path);
        dti_release(*bytes);
        *bytes = NULL;
    }
    if (f) fclose(f);
    return error;
}

static dt_err dti_json_error(const dti_json *j, const char *path) {
    return dt_fail(DT_EDATA, "%s: byte %zu of the header: %s", path, (size_t)(j->at - j->begin), j->why);
}

/* "__metadata__": names and texts, which are read as strictly as the rest. They become lines "name: text"
   in lines, which is as large as the header; NULL: they are forgotten. */
static void dti_read_metadata(dti_json *j, char *lines) {
    size_t length, used = 0;
    const size_t size = lines ? (size_t)(j->end - j->begin) : 0;
    dti_json_take(j, '{', "__metadata__ is no object");
    for (int n = 0; dti_json_more(j, n, '}'); ++n) {
        char *at = lines ? lines + used : NULL;
        if (!dti_json_name(j, at, size - used, &length)) return;
        if (lines) memcpy(at + length, ": ", 3), used += length + 2, at += length + 2;
        if (!dti_json_string(j, at, size - used, &length)) return;
        if (lines) memcpy(at + length, "\n", 2), used += length + 1;
    }
}

/* What an entry says, held against what it is about. */
static dt_err dti_check_entry(dti_saved *p, const uint64_t *shape, int rank, const uint64_t *range,
                              int ends, const char *path) {
    const size_t bytes = dti_saved_bytes(p);
    bool same = rank == p->rank;
    for (int d = 0; same && d < rank; ++d) same = shape[d] == p->shape[d];
    if (!same) return dt_fail(DT_EDATA, "%s: %s has another shape than the net's", path, p->name);
    if (ends != 2 || range[1] < range[0] || range[1] - range[0] != bytes)
        return dt_fail(DT_EDATA, "%s: the data_offsets of %s do not say where its %zu bytes lie",
                       path, p->name, bytes);
    p->begin = range[0], p->end = range[1];
    p->there = true;
    return DT_OK;
}

/* {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}: each once, in any order, and nothing
   else. */
static dt_err dti_read_entry(dti_json *j, dti_saved *p, const char *path) {
    static const char *const keys[3] = { "dtype", "shape", "data_offsets" };
    uint64_t shape[DT_MAX_RANK], range[2] = { 0, 0 };
    char word[16];
    size_t length;
    int seen[3] = { 0, 0, 0 }, rank = -1, ends = -1;
    dti_json_take(j, '{', "'{' is missing");
    for (int n = 0, k = 0; dti_json_more(j, n, '}'); ++n) {
        const char *from = dti_json_here(j);
        if (!dti_json_name(j, word, sizeof word, &length)) break;
        for (k = 0; k < 3 && (length >= sizeof word || !dti_json_is(word, length, keys[k]));) ++k;
        if (k == 3 || seen[k]++)
            return dt_fail(DT_EDATA, "%s: %s has %s %.*s", path, p->name,
                           k == 3 ? "a key that the format does not know," : "two keys",
                           dti_json_shown(j, from), from);
        from = dti_json_here(j);
        if (k == 1) rank = dti_json_wholes(j, shape, DT_MAX_RANK);
        else if (k == 2) ends = dti_json_wholes(j, range, 2);
        else if (dti_json_string(j, word, sizeof word, &length) &&
                 (length != 3 || !dti_json_is(word, 3, p->type)))
            return dt_fail(DT_EDATA, "%s: %s is of dtype %.*s, not \"%s\"", path, p->name,
                           dti_json_shown(j, from), from, p->type);
    }
    if (j->why) return dti_json_error(j, path);
    for (int k = 0; k < 3; ++k)
        if (!seen[k]) return dt_fail(DT_EDATA, "%s: %s has no \"%s\"", path, p->name, keys[k]);
    return dti_check_entry(p, shape, rank, range, ends, path);
}

/* The header's object: each piece once, if it is not optional, and nothing else but "__metadata__". */
static dt_err dti_read_header(dti_json *j, dti_saved *piece, int count, char *metadata, const char *path) {
    char name[sizeof piece->name];
    size_t length;
    bool told = false;
    dti_json_take(j, '{', "'{' is missing");
    for (int n = 0; dti_json_more(j, n, '}'); ++n) {
        const char *as_written = dti_json_here(j);
        if (!dti_json_name(j, name, sizeof name, &length)) break;
        const int shown = dti_json_shown(j, as_written);
        int i = 0;
        while (i < count && (length >= sizeof name || !dti_json_is(name, length, piece[i].name))) ++i;
        const bool about = length == 12 && dti_json_is(name, length, "__metadata__");
        if (!about && i == count)
            return dt_fail(DT_EDATA, "%s: holds %.*s, which the net does not have", path, shown, as_written);
        if (about ? told : piece[i].there)
            return dt_fail(DT_EDATA, "%s: holds %.*s twice", path, shown, as_written);
        if (about) { told = true; dti_read_metadata(j, metadata); }
        else DT_TRY(dti_read_entry(j, &piece[i], path));
    }
    if (!j->why && dti_json_peek(j)) dti_json_fail(j, "something stands behind the last '}'");
    if (!j->why && j->at < j->end) dti_json_fail(j, "a NUL byte");
    if (j->why) return dti_json_error(j, path);
    for (int i = 0; i < count; ++i)
        if (!piece[i].there && !piece[i].optional)
            return dt_fail(DT_EDATA, "%s: has no %s", path, piece[i].name);
    return DT_OK;
}

/* Those that are not there come last. */
static int dti_by_begin(const void *a, const void *b) {
    const dti_saved *p = a, *q = b;
    if (p->there != q->there) return q->there - p->there;
    return (p->begin > q->begin) - (p->begin < q->begin);
}

/* The pieces, in order, must lie end to end and fill the file: then every byte is one piece's, and none is
   two's. */
static dt_err dti_check_stretches(dti_saved *piece, int count, size_t size, const char *path) {
    uint64_t at = 0;
    qsort(piece, (size_t)count, sizeof *piece, dti_by_begin);
    for (int i = 0; i < count && piece[i].there; at = piece[i++].end)
        if (piece[i].begin != at)
            return dt_fail(DT_EDATA, "%s: %s begins at byte %llu of the data, where the one before "
                           "it ends at %llu: %s", path, piece[i].name,
                           (unsigned long long)piece[i].begin, (unsigned long long)at,
                           piece[i].begin > at ? "a hole" : "they overlap");
    if (at != size)
        return dt_fail(DT_EDATA, "%s: the parameters take %llu bytes, but %zu stand behind the header", path,
                       (unsigned long long)at, size);
    return DT_OK;
}

/* A file of these pieces, in memory. All of it is checked before the first number is taken. */
static dt_err dti_take_bytes(const unsigned char *bytes, size_t size, dti_saved *piece, int count,
                             char *metadata, const char *path) {
    const uint64_t length = size >= 8 ? dti_get_le(bytes, 8) : 0;
    if (size < 8 || length < 2 || length > size - 8 || bytes[8] != '{')
        return dt_fail(DT_EDATA, "%s: is not a safetensors file (%zu bytes)", path, size);
    const unsigned char *data = bytes + 8 + length;
    const char *text = (const char *)bytes + 8;
    dti_json json = { text, text, text + length, NULL };
    DT_TRY(dti_read_header(&json, piece, count, metadata, path));
    DT_TRY(dti_check_stretches(piece, count, size - 8 - (size_t)length, path));
    for (int i = 0; i < count && piece[i].there; ++i) {
        const size_t n = piece[i].optional || !piece[i].data ? 0 : dti_saved_count(&piece[i]),
                     width = (size_t)dti_saved_width(&piece[i]);
        for (size_t k = 0; k < n; ++k)
            dti_get_number((char *)piece[i].data + k * width, data + piece[i].begin + k * width, (int)width);
    }
    return DT_OK;
}

static dt_err dti_load_bytes(dt_net *net, const unsigned char *bytes, size_t size, const char *path) {
    dti_saved *piece = dti_alloc_many((size_t)dti_most_pieces(net), sizeof *piece);
    if (!piece) return DT_ENOMEM;
    const int count = dti_net_pieces(net, net->values, piece);
    const dt_err error = dti_take_bytes(bytes, size, piece, count, NULL, path);
    dti_release(piece);
    return error;
}

DT_API dt_err dt_load(dt_net *net, const char *path) {
    size_t size;
    DT_TRY(dti_ready(__func__, net));
    DTI_NEED(path, "path", DT_EARG);
    unsigned char *bytes = NULL;
    DT_TRY(dti_read_all(path, &bytes, &size));
    const dt_err error = dti_load_bytes(net, bytes, size, path);
    dti_release(bytes);
    return error;
}
#endif

/* ==== [E6.4] CSV ==========================================================

   Measurements of many runs in one file, a row each. The plain way, fopen to append, mixes columns when a
   program has changed, and continues a row that a killed run has left half. So the header that is there must
   be the one that is meant, and a row without its end is ended first. To read: dt_csv_append. */
#ifdef DTI_DECLARE
/* dt_csv_append: appends one row, made as by printf but with a point in every locale, to a file; writes
   the header first if the file is new or empty, or is no plain file. DT_EDATA if the file begins with
   another header, DT_EIO if it cannot be written. */
DT_API dt_err dt_csv_append(const char *path, const char *header, const char *row_format, ...)
    DTI_PRINTF(3, 4);
/* dt_csv_check: whether it could, asked before there is a row; nothing is changed. */
DT_API dt_err dt_csv_check(const char *path, const char *header);
#endif

#ifdef DTI_IMPLEMENT
/* What a file of rows ends with: *empty, or *torn, a row without its end. A path without a plain file
   counts as empty. */
static dt_err dti_csv_look(const char *path, const char *header, bool *empty, bool *torn) {
    char first[1024] = "";
    *empty = true, *torn = false;
    FILE *f = dti_open_plain(path);
    if (!f) return DT_OK;                           /* opening it to write will tell */
    *empty = !fgets(first, sizeof first, f);
    first[strcspn(first, "\r\n")] = '\0';
    *torn = !*empty && fseek(f, -1, SEEK_END) == 0 && fgetc(f) != '\n';
    fclose(f);
    if (*empty || strcmp(first, header) == 0) return DT_OK;
    return dt_fail(DT_EDATA, "%s: has the columns \"%.80s\", not \"%.80s\"; name another file",
                   path, first, header);
}

DT_API dt_err dt_csv_check(const char *path, const char *header) {
    bool empty, torn;
    DTI_NEED(path && header, "path and header", DT_EARG);
    DT_TRY(dti_csv_look(path, header, &empty, &torn));
    return dt_check_writable(path);
}

DT_API dt_err dt_csv_append(const char *path, const char *header, const char *row_format, ...) {
    dti_output out = { .path = path };
    bool empty, torn;
    DTI_NEED(path && header && row_format, "path, header and row_format", DT_EARG);
    DT_TRY(dti_csv_look(path, header, &empty, &torn));
    va_list args, again;
    va_start(args, row_format);
    va_copy(again, args);
    const size_t room = dti_vprint(NULL, 0, row_format, args) + 1;
    char *row = dti_alloc(room);
    if (row) dti_vprint(row, room, row_format, again);
    va_end(args), va_end(again);
    if (!row) return DT_ENOMEM;
    out.file = dti_open_in_place(path, "ab");
    const int why = errno;
    if (out.file)
        fprintf(out.file, "%s%s%s%s\n", torn ? "\n" : "", empty ? header : "", empty ? "\n" : "", row);
    dti_release(row);
    return out.file ? dti_output_close(&out) : dti_output_failed(&out, why);
}
#endif

/* ==== [E6.5] Data files ===================================================

   The readers of [S4.2], and how [S4.3] finds a set in its folders.

       IDX images   | 0x803 | count | rows | columns | pixels row by row |   numbers: 4 bytes, high one first
       IDX labels   | 0x801 | count | labels |                               pixels and labels: 1 byte
       CIFAR-10     | label | 32 x 32 red | green | blue | label | ...       3073 bytes an image, no header

   The plain way asks for as much memory as the header says, and reads. But a header may say anything. The
   length of a file is all that its contents can be held against: so it is measured first, and every size in
   the file must agree with it before memory is asked for. Rows and columns of an IDX file end at 4096, which
   keeps N*rows*columns below 2^56. To read: dti_idx_open, then dt_idx_load. */
#ifdef DTI_IMPLEMENT
#if defined(__unix__) || defined(__APPLE__)
#include <dirent.h>
#endif

/* Where a file of a set is: as it is called, or train-images.idx3-ubyte for
   train-images-idx3-ubyte, as some archives unpack it. */
static bool dti_data_path(char *path, size_t size, const char *folder, const char *file,
                          const char *suffix) {
    const int length = snprintf(path, size, "%s/%s%s", folder, file, suffix);
    const char *kind = strstr(file, "-idx");
    if (length < 0 || (size_t)length >= size) return false;
    if (dti_file_exists(path)) return true;
    if (!kind) return false;
    char *mark = path + strlen(folder) + 1 + (kind - file);
    *mark = '.';
    if (dti_file_exists(path)) return true;
    *mark = '-';
    return false;
}

/* What a folder holds, in a few words: "it holds a, b, c and 4 more". */
static void dti_describe_folder(const char *folder, char *text, size_t size) {
#if defined(__unix__) || defined(__APPLE__)
    DIR *d = opendir(folder);
    if (!d) { snprintf(text, size, "%s", strerror(errno)); return; }
    size_t used = (size_t)snprintf(text, size, "it holds");
    int n = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.' || ++n > 3) continue;
        used += (size_t)snprintf(text + used, size - used, "%s %.30s", n > 1 ? "," : "", e->d_name);
    }
    closedir(d);
    for (char *c = text; *c; ++c) if ((unsigned char)*c < ' ') *c = '?';
    if (n == 0) snprintf(text, size, "it is empty");
    else if (n > 3) snprintf(text + used, size - used, " and %d more", n - 3);
#else
    snprintf(text, size, "it holds none of their files");
    (void)folder;
#endif
}

/* Sets the sizes, and allocates pixels, labels, mean and std in one block. */
static dt_err dti_dataset_alloc(dt_dataset *d, uint32_t count, int channels, int height, int width,
                                int classes) {
    d->count = count;
    d->channels = channels;
    d->height = height;
    d->width = width;
    d->classes = classes;
    const size_t pixels = dti_round_up(dti_times(count, dti_image_bytes(d)), 64),
                 labels = dti_round_up(count, 64), scale = 2 * (size_t)channels * sizeof(float);
    if (pixels > SIZE_MAX / 2)
        return dt_fail(DT_ENOMEM, "%u images of %dx%d do not fit into memory", count, height, width);
    uint8_t *block = dti_alloc(pixels + labels + scale);
    if (!block) return DT_ENOMEM;
    d->block = d->pixels = block;
    d->labels = block + pixels;
    d->mean = (float *)(void *)(block + pixels + labels);
    d->std = d->mean + channels;
    return DT_OK;
}

static dt_err dti_check_floats(const char *what, const float *x, uint32_t rows, size_t width) {
    for (size_t i = 0; x && i < rows * width; ++i)
        if (!(fabsf(x[i]) <= FLT_MAX))
            return dt_fail(DT_EDATA, "a dataset: %s %zu of sample %zu is %g, not a number to learn "
                                     "from", what, i % width, i / width, (double)x[i]);
    return DT_OK;
}

DT_API dt_err dt_dataset_from(dt_dataset *d, const dt_arrays *a) {
    DTI_NEED(d, "d", DT_EARG);
    memset(d, 0, sizeof *d);
    DTI_NEED(a, "arrays", DT_EARG);
    dt_dataset own = { .count = a->count,
                       .channels = a->channels,
                       .height = a->height ? a->height : 1,
                       .width = a->width ? a->width : 1,
                       .classes = a->labels ? a->classes : a->target_width,
                       .pixels = (uint8_t *)a->pixels, /* read, never written: nor the others */
                       .values = (float *)a->values,
                       .labels = (uint8_t *)a->labels,
                       .targets = (float *)a->targets,
                       .target_width = a->targets ? a->target_width : 0,
                       .mean = (float *)a->mean,
                       .std = (float *)a->std };
    DT_TRY(dti_check_dataset("a dataset", &own));
    if (a->labels && (a->classes < 1 || a->classes > 256))
        return dt_fail(DT_EARG, "a dataset: %d classes, outside of 1 to 256", a->classes);
    for (uint32_t n = 0; a->labels && n < a->count; ++n)
        if (a->labels[n] >= a->classes)
            return dt_fail(DT_EDATA, "a dataset: sample %u has label %u, but there are %d classes",
                           (unsigned)n, a->labels[n], a->classes);
    const size_t row = dti_image_bytes(&own), channels = (size_t)own.channels;
    DT_TRY(dti_check_floats("value", a->values, a->count, row));
    DT_TRY(dti_check_floats("target", a->targets, a->count, (size_t)own.target_width));
    if (!a->unscaled) {
        if (!(own.block = dti_alloc_many(2 * channels, sizeof(float)))) return DT_ENOMEM;
        own.mean = own.block;
        own.std = own.mean + channels;
        if (!a->mean) dti_dataset_measure(&own);
        for (size_t c = 0; a->mean && c < channels; ++c)
            own.mean[c] = a->mean[c], own.std[c] = a->std[c];
    }
    snprintf(own.name, sizeof own.name, "%.31s", a->name ? a->name : "arrays");
    snprintf(own.source, sizeof own.source, "the program's own arrays");
    dti_dataset_hash(&own);
    *d = own;
    return DT_OK;
}

DT_API dt_err dt_dataset_view(dt_dataset *view, const dt_dataset *of, uint32_t first, uint32_t count) {
    DTI_NEED(view, "view", DT_EARG);
    DT_TRY(dti_check_dataset("a view", of));
    if (count == 0 || first >= of->count || count > of->count - first)
        return dt_fail(DT_EARG, "a view of %u images from %u on leaves the dataset \"%s\" of %u images",
                       count, first, of->name, of->count);
    dt_dataset v = *of;
    if (v.pixels) v.pixels += (size_t)first * dti_image_bytes(of);
    if (v.values) v.values += (size_t)first * dti_image_bytes(of);
    if (v.labels) v.labels += first;
    if (v.targets) v.targets += (size_t)first * (size_t)of->target_width;
    v.count = count;
    v.block = NULL;
    dti_dataset_hash(&v);
    *view = v;
    return DT_OK;
}

/* Data as they are downloaded, not unpacked yet. */
static dt_err dti_refuse_gzip(const char *path, const uint8_t *head, size_t got) {
    if (got < 2 || head[0] != 0x1f || head[1] != 0x8b) return DT_OK;
    return dt_fail(DT_EDATA, "%s is compressed with gzip: unpack it with gunzip, or run \"make data\"", path);
}

typedef struct dti_idx {
    FILE *file;
    const char *path;
    uint32_t count, rows, columns;
} dti_idx;

static uint32_t dti_big_endian(const uint8_t *b) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

enum { DTI_IDX_IMAGES = 0x803, DTI_IDX_LABELS = 0x801, DTI_IDX_MAX_SIDE = 4096 };

/* Why the first bytes are not those of the wanted kind of file. */
static dt_err dti_idx_wrong_magic(const char *path, const uint8_t *head, size_t got, uint32_t wanted) {
    const char *kind = wanted == DTI_IDX_IMAGES ? "images" : "labels";
    const char *other = wanted == DTI_IDX_IMAGES ? "labels" : "images";
    DT_TRY(dti_refuse_gzip(path, head, got));
    if (got < 4)
        return dt_fail(DT_EDATA, "%s has %zu bytes, too few for an IDX file of %s", path, got, kind);
    if (dti_big_endian(head) == (wanted ^ DTI_IDX_IMAGES ^ DTI_IDX_LABELS))
        return dt_fail(DT_EDATA, "%s is an IDX file of %s where %s are expected: are the two files swapped?",
                       path, other, kind);
    return dt_fail(DT_EDATA, "%s begins with 0x%08x, an IDX file of %s with 0x%08x", path,
                   (unsigned)dti_big_endian(head), kind, (unsigned)wanted);
}

/* Opens the file, checks the header against the length, and leaves the position at the first data byte. */
static dt_err dti_idx_open(dti_idx *f, const char *path, uint32_t wanted) {
    const bool images = wanted == DTI_IDX_IMAGES;
    const size_t header = images ? 16 : 8;
    uint8_t head[16];
    memset(f, 0, sizeof *f);
    f->path = path;
    long length;
    DT_TRY(dti_open_measured(&f->file, path, &length));
    const size_t got = fread(head, 1, header, f->file);
    if (ferror(f->file)) return dt_fail(DT_EIO, "cannot read %s: %s", path, strerror(errno));
    if (got < 4 || dti_big_endian(head) != wanted) return dti_idx_wrong_magic(path, head, got, wanted);
    if (got < header)
        return dt_fail(DT_EDATA, "%s is cut off inside its header: %zu of %zu bytes", path, got, header);
    f->count = dti_big_endian(head + 4);
    f->rows = images ? dti_big_endian(head + 8) : 1;
    f->columns = images ? dti_big_endian(head + 12) : 1;
    if (f->count == 0) return dt_fail(DT_EDATA, "%s holds no %s", path, images ? "images" : "labels");
    if (f->rows == 0 || f->columns == 0 || f->rows > DTI_IDX_MAX_SIDE || f->columns > DTI_IDX_MAX_SIDE)
        return dt_fail(DT_EDATA, "%s says that its images are %ux%u, outside of 1x1 to %dx%d",
                       path, f->rows, f->columns, DTI_IDX_MAX_SIDE, DTI_IDX_MAX_SIDE);
    const uint64_t promised = header + (uint64_t)f->count * f->rows * f->columns;
    if ((uint64_t)length < promised)
        return dt_fail(DT_EDATA, "%s is truncated: %ld bytes, its header promises %llu", path, length,
                       (unsigned long long)promised);
    if ((uint64_t)length > promised)
        return dt_fail(DT_EDATA, "%s has %llu trailing bytes: %ld bytes, its header promises %llu", path,
                       (unsigned long long)((uint64_t)length - promised), length,
                       (unsigned long long)promised);
    return DT_OK;
}

static dt_err dti_idx_read(const dti_idx *f, uint8_t *out) {
    const size_t bytes = (size_t)f->count * f->rows * f->columns, got = fread(out, 1, bytes, f->file);
    if (got == bytes) return DT_OK;
    return dt_fail(DT_EIO, "%s: only %zu of %zu data bytes could be read", f->path, got, bytes);
}

/* Images and their labels, as many of the one as of the other, every label a class. */
static dt_err dti_idx_read_pair(dt_dataset *d, const dti_idx *images, const dti_idx *labels, int classes) {
    if (images->count != labels->count)
        return dt_fail(DT_EDATA, "%s holds %u images, %s holds %u labels", images->path,
                       images->count, labels->path, labels->count);
    DT_TRY(dti_dataset_alloc(d, images->count, 1, (int)images->rows, (int)images->columns, classes));
    DT_TRY(dti_idx_read(images, d->pixels));
    DT_TRY(dti_idx_read(labels, d->labels));
    for (uint32_t n = 0; n < d->count; ++n)
        if (d->labels[n] >= classes)
            return dt_fail(DT_EDATA, "%s: label %u at index %u, but there are %d classes",
                           labels->path, d->labels[n], n, classes);
    return DT_OK;
}

/* The end of loading: a set that is whole gets its names, measures and hash, another one is freed. */
static dt_err dti_dataset_end(dt_dataset *d, dt_err err, const char *name, const char *source) {
    if (err != DT_OK) {
        dt_dataset_free(d);
        return err;
    }
    snprintf(d->name, sizeof d->name, "%s", name);
    snprintf(d->source, sizeof d->source, "%.255s", source);
    dti_dataset_measure(d);
    dti_dataset_hash(d);
    return DT_OK;
}

DT_API dt_err dt_idx_load(dt_dataset *d, const char *images_path, const char *labels_path, int classes) {
    dti_idx images, labels = { NULL, NULL, 0, 0, 0 };
    DTI_NEED(d && images_path && labels_path, "d, images_path and labels_path", DT_EARG);
    memset(d, 0, sizeof *d);
    if (classes < 1 || classes > 256) return dt_fail(DT_EARG, "%d classes, outside of 1 to 256", classes);
    dt_err err = dti_idx_open(&images, images_path, DTI_IDX_IMAGES);
    if (err == DT_OK) err = dti_idx_open(&labels, labels_path, DTI_IDX_LABELS);
    if (err == DT_OK) err = dti_idx_read_pair(d, &images, &labels, classes);
    if (images.file) fclose(images.file);
    if (labels.file) fclose(labels.file);
    return dti_dataset_end(d, err, "IDX", images_path);
}

/* ---- CIFAR-10 */

enum { DTI_CIFAR_PIXELS = 3 * 32 * 32, DTI_CIFAR_RECORD = 1 + DTI_CIFAR_PIXELS };

/* Opens a file whose length is that of whole records; *records is how many. *file NULL: not open. */
static dt_err dti_cifar_open(FILE **file, const char *path, uint32_t *records) {
    uint8_t head[2];
    long length;
    DT_TRY(dti_open_measured(file, path, &length));
    const size_t got = fread(head, 1, sizeof head, *file);
    rewind(*file);
    DT_TRY(dti_refuse_gzip(path, head, got));
    if (got == sizeof head && head[0] == 0x80) /* no label: it is how a pickle begins */
        return dt_fail(DT_EDATA, "%s is of CIFAR-10's Python version: the binary one is needed", path);
    if (length == 0 || length % DTI_CIFAR_RECORD != 0)
        return dt_fail(DT_EDATA, "%s has %ld bytes, which are no whole records of %d bytes", path, length,
                       DTI_CIFAR_RECORD);
    if ((uint64_t)length / DTI_CIFAR_RECORD > UINT32_MAX / 2)
        return dt_fail(DT_EDATA, "%s has %ld bytes, more than are read", path, length);
    *records = (uint32_t)(length / DTI_CIFAR_RECORD);
    return DT_OK;
}

/* How many records a file has. */
static dt_err dti_cifar_count(const char *path, uint32_t *records) {
    FILE *file;
    const dt_err err = dti_cifar_open(&file, path, records);
    if (file) fclose(file);
    return err;
}

/* A file's records become images `first` and on; *next is the one behind them. */
static dt_err dti_cifar_read(dt_dataset *d, const char *path, uint32_t first, uint32_t *next) {
    FILE *file;
    uint32_t records = 0;
    dt_err err = dti_cifar_open(&file, path, &records);
    if (err == DT_OK && records > d->count - first)
        err = dt_fail(DT_EIO, "%s has grown while it was read", path);
    for (uint32_t i = 0; i < records && err == DT_OK; ++i) {
        uint8_t *label = d->labels + first + i;
        uint8_t *pixels = d->pixels + (size_t)(first + i) * DTI_CIFAR_PIXELS;
        if (fread(label, 1, 1, file) != 1 || fread(pixels, DTI_CIFAR_PIXELS, 1, file) != 1)
            err = dt_fail(DT_EIO, "%s: only %u of %u records could be read", path, i, records);
        else if (*label >= d->classes)
            err = dt_fail(DT_EDATA, "%s: label %u in record %u, but there are %d classes", path, *label, i,
                          d->classes);
    }
    if (file) fclose(file);
    *next = first + records;
    return err;
}

/* All files into one set, in their order. */
static dt_err dti_cifar_read_all(dt_dataset *d, const char *const *paths, int n) {
    uint64_t images = 0;
    uint32_t records, at = 0;
    for (int i = 0; i < n; ++i) { /* all lengths before memory is asked for */
        if (!paths[i]) return dt_fail(DT_EARG, "CIFAR-10: path %d of %d must not be NULL", i, n);
        DT_TRY(dti_cifar_count(paths[i], &records));
        images += records;
    }
    if (images > UINT32_MAX)
        return dt_fail(DT_EDATA, "%s and the others hold %llu images, more than are read", paths[0],
                       (unsigned long long)images);
    DT_TRY(dti_dataset_alloc(d, (uint32_t)images, 3, 32, 32, 10));
    for (int i = 0; i < n; ++i) DT_TRY(dti_cifar_read(d, paths[i], at, &at));
    return at == d->count ? DT_OK : dt_fail(DT_EIO, "%s or another file shrank while it was read", paths[0]);
}

DT_API dt_err dt_cifar10_load(dt_dataset *d, const char *const *paths, int n) {
    DTI_NEED(d && paths, "d and paths", DT_EARG);
    memset(d, 0, sizeof *d);
    if (n < 1) return dt_fail(DT_EARG, "CIFAR-10: %d files; at least 1", n);
    return dti_dataset_end(d, dti_cifar_read_all(d, paths, n), "CIFAR-10", paths[0]);
}

/* ---- A dataset is found: of each folder that may hold one, its table row [S4.3] says which file shows that
   it does. */
typedef struct dti_search {
    char folder[DTI_PATH_MAX]; /* where the files are */
    char zipped[DTI_PATH_MAX]; /* a folder that has them with gzip only, for the error text */
    bool found;
} dti_search;

/* Whether a folder has one of these files. */
static bool dti_any_file(const char *const *files, const char *folder, const char *suffix) {
    char path[DTI_PATH_MAX + 64];
    for (; *files; ++files)
        if (dti_data_path(path, sizeof path, folder, *files, suffix)) return true;
    return false;
}

/* Looks into one folder, root/sub; remembers one that has the files with gzip only. */
static bool dti_search_folder(dti_search *s, const dti_data_class *set, const char *root, const char *sub) {
    char folder[DTI_PATH_MAX];
    const int n = snprintf(folder, sizeof folder, "%s%s%s", root, *sub ? "/" : "", sub);
    if (n < 0 || (size_t)n >= sizeof folder) return false;
    if (!dti_any_file(set->files, folder, "")) {
        if (!s->zipped[0] && dti_any_file(set->files, folder, ".gz"))
            memcpy(s->zipped, folder, sizeof folder);
        return false;
    }
    memcpy(s->folder, folder, sizeof folder);
    return s->found = true;
}

/* In this order: the folders of the set's name in the one given; that one itself; those in ./data. */
static void dti_search_set(dti_search *s, const dti_data_class *set, const char *given, bool elsewhere) {
    for (int i = 0; given && i < 3 && set->folders[i]; ++i)
        if (dti_search_folder(s, set, given, set->folders[i])) return;
    if (given && (!set->owns || set->owns(given)) && dti_search_folder(s, set, given, "")) return;
    for (int i = 0; elsewhere && i < 3 && set->folders[i]; ++i)
        if (dti_search_folder(s, set, "data", set->folders[i])) return;
}

/* The sentence for a set that is not there: where it was looked for, what was found instead, what to do. */
static dt_err dti_set_missing(const dti_search *s, const dti_data_class *set, const char *names,
                              const char *given, bool elsewhere) {
    char held[160], advice[160];
    snprintf(advice, sizeof advice,
             "run \"make data\", or set DTRAIN_DATA to the folder above %s/%s", set->folders[0],
             set->files[0]);
    if (s->zipped[0])
        return dt_fail(DT_EIO, "%s is only there as gzip files in %.128s: unpack them with gunzip, "
                       "or run \"make data\"",
                       names, s->zipped);
    if (!given) return dt_fail(DT_EIO, "no %s in ./data: %s", names, advice);
    dti_describe_folder(given, held, sizeof held);
    return dt_fail(DT_EIO, "no %s in DTRAIN_DATA=%.128s (%s)%s: %s", names, given, held,
                   elsewhere ? " nor in ./data" : "", advice);
}

/* Option names of all sets, or names of those that "auto" looks for: "mnist, fashion and more". */
static void dti_list_sets(char *text, size_t size, bool looked_for, const char *and) {
    const char *words[DTI_DATA_CLASSES];
    size_t n = 0, used = 0;
    for (int i = 0; i < DTI_DATA_CLASSES; ++i) {
        const dti_data_class *set = &dti_data_classes[i];
        if (!looked_for) words[n++] = set->kind.option;
        else if (set->automatic && set->files) words[n++] = set->kind.name;
    }
    *text = '\0';
    for (size_t i = 0; i < n && used < size; ++i)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 i == 0 ? "" : i + 1 < n ? ", " : and, words[i]);
}

DT_API dt_err dt_dataset_find(dt_dataset *train, dt_dataset *test, const char *which) {
    dti_search search = { .found = false };
    char names[256];
    if (train) memset(train, 0, sizeof *train);
    if (test) memset(test, 0, sizeof *test);
    const bool any = !which || strcmp(which, "auto") == 0;
    const char *given = getenv("DTRAIN_DATA");
    if (given && !*given) given = NULL;
    for (int i = 0; i < DTI_DATA_CLASSES; ++i) {
        const dti_data_class *set = &dti_data_classes[i];
        const bool drawn = !set->files;
        const bool asked_for = any ? set->automatic && !(drawn && given)
                                   : strcmp(which, set->kind.option) == 0;
        if (!asked_for) continue;
        if (!drawn) dti_search_set(&search, set, given, !any || !given);
        if (drawn || search.found) return dti_load_set(train, test, set, search.folder);
        if (!any) return dti_set_missing(&search, set, set->kind.name, given, true);
    }
    dti_list_sets(names, sizeof names, any, any ? " or " : " and ");
    if (any) return dti_set_missing(&search, &dti_data_classes[0], names, given, false);
    return dt_fail(DT_EARG, "no dataset is named \"%.64s\": auto, %s are", which, names);
}
#endif

/* ==== [E6.6] Numbers as text =============================================

   printf writes a comma for the decimal point where a program has said setlocale(LC_ALL, "de_DE.UTF-8"), and
   strtod then wants one: no JSON, and a row "0,5,0,25" of a CSV file that nobody can read back. So whatever
   dtrain.h writes with a number in it goes through the three functions here, and what it reads through
   dt_number_parse below. To read: dti_point, then dti_vprint. */
#ifdef DTI_IMPLEMENT
/* What stands between the characters that printf may use for a number is the locale's decimal point. */
static size_t dti_point(char *number, size_t n) { /* n: its length; returns the new one */
    static const char known[] = " +-.0123456789abcdefinpxABCDEFINPX";
    char *point = number + strspn(number, known);
    const size_t wide = strcspn(point, known), behind = strlen(point);
    if (wide == 0) return n;
    *point = '.';
    memmove(point + 1, point + wide, behind - wide + 1);
    return n - wide + 1;
}

/* One conversion, such as "%8.3f", of the next argument. snprintf makes it; the type follows
   from its last letters. */
#define DTI_CONVERT(type) snprintf(at, room, one, va_arg(args, type))

/* vsnprintf, with a point in every locale. It knows all conversions but %n and those of wide
   characters. */
DTI_LOCAL size_t dti_vprint(char *out, size_t size, const char *format, va_list args) {
    size_t used = 0;
    if (size) *out = '\0';
    while (*format) {
        char one[48], *at = used < size ? out + used : NULL;
        size_t k = 0, plain = strcspn(format, "%"), room = used < size ? size - used : 0;
        int n = 0;
        if (plain) {
            used += (size_t)snprintf(at, room, "%.*s", (int)plain, format);
            format += plain;
            continue;
        }
        do { /* the conversion, a number in place of each star; a precision below 0 is none */
            const int star = *format == '*' ? va_arg(args, int) : 0;
            if (*format != '*') one[k++] = *format;
            else if (star < 0 && one[k - 1] == '.') --k;
            else k += (size_t)snprintf(one + k, sizeof one - k, "%d", star);
        } while ((k == 1 || !strchr("diouxXcspeEfFgGaA%", *format)) && *++format && k < sizeof one - 12);
        if (*format) ++format;
        one[k] = '\0';
        const char kind = one[k - 1], length = k > 1 ? one[k - 2] : ' ';
        if (strchr("eEfFgGaA", kind)) {
            n = length == 'L' ? DTI_CONVERT(long double) : DTI_CONVERT(double);
            if (at && n > 0) n = (int)dti_point(at, (size_t)n);
        } else if (kind == 's') n = DTI_CONVERT(const char *);
        else if (kind == 'p') n = DTI_CONVERT(void *);
        else if (kind == '%') n = snprintf(at, room, "%%");
        else if (length == 'z') n = DTI_CONVERT(size_t);
        else if (length == 'j') n = DTI_CONVERT(intmax_t);
        else if (length == 't') n = DTI_CONVERT(ptrdiff_t);
        else if (length == 'l') n = one[k - 3] == 'l' ? DTI_CONVERT(long long) : DTI_CONVERT(long);
        else n = DTI_CONVERT(int);
        used += n > 0 ? (size_t)n : 0;
    }
    return used;
}
#undef DTI_CONVERT

DTI_LOCAL size_t dti_print(char *out, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const size_t n = dti_vprint(out, size, format, args);
    va_end(args);
    return n;
}

DT_API dt_err dt_fail(dt_err code, const char *format, ...) {
    char text[sizeof dti_error_text]; /* the arguments may quote dt_error() itself */
    va_list args;
    va_start(args, format);
    dti_vprint(text, sizeof text, format, args);
    va_end(args);
    memcpy(dti_error_text, text, sizeof text);
    return code;
}

/* strtod reads the number as this locale would write it; how that is, it shows with one half. */
DT_API dt_err dt_number_parse(const char *text, double *value) {
    DTI_NEED(text && value, "text and value", DT_EARG);
    enum { MOST = 400 };
    char half[16], local[8 * MOST], *end = local;
    const size_t digits = strspn(text, "+-.0123456789eE");
    const int point = snprintf(half, sizeof half, "%.1f", 0.5) - 2;
    size_t n = 0;
    for (size_t i = 0; i < digits && digits <= MOST; ++i)
        if (text[i] == '.') for (int k = 1; k <= point; ++k) local[n++] = half[k];
        else local[n++] = text[i];
    local[n] = '\0';
    const double read = strtod(local, &end);
    if (n == 0 || text[digits] || *end || !(read <= DBL_MAX && read >= -DBL_MAX))
        return dt_fail(DT_EARG, "\"%.40s\" is not a number such as 0.01", text);
    *value = read;
    return DT_OK;
}
#endif

/* ==== [E6.7] Checkpoints ==================================================

   A run that is stopped, by a batch system or a power cut, goes on later as if it had not been: to the same
   bits. For that a file must hold all that the next step depends on [S11.2]. It is a safetensors file:
   whoever reads those can open the weights of a run that is still going on, under their usual names, and the
   reader of [E6.3] believes nothing already. Beside the parameters it holds

       __metadata__        "dtrain.checkpoint": a hash of all of the file but these its 16 digits; then a
                           setting each, "batch": "64", or a hash of what would be long
       dtrain.whole        I64: epoch, step, scores, counts
       dtrain.real         F64: the optimizer's few numbers, seconds
       dtrain.units        F32: of exact sums, one a parameter
       dtrain.optimizer    F32: its vectors, one behind the other
       dtrain.rank1.whole ...  under PSGD the same of the other ranks, and dtrain.rank1.values

   Three things are handled below, each made of the one before it:

       kept     dti_kept         what one rank has to keep, copied into one block of memory, which can be sent
       piece    dti_saved        one tensor of the file: a name, a type, a size, and where in a block its
                                 numbers are (the struct of [E6.3])
       file     dti_file         a checkpoint in hand: the settings as text, the blocks of all ranks whose
                                 values differ (one block, under PSGD one for each rank), and the list of all
                                 their pieces

       net, optimizer,  --dti_keep_vectors-->  blocks  --dti_kept_pieces-->  pieces  --dti_file_write-->  x
       place in the run <-dti_give_vectors---  [kept 0][kept 1] ..           name it <--dti_file_read---

   Any flipped bit or missing byte shows in the hash. The other checks are for files whose hash is right: of
   another net, other settings, another program. They are refused by name. Everything is checked in memory of
   its own, the blocks, before the net or the optimizer is touched. Rank 0 reads the file and hands its bytes
   on, so hosts need no folder in common, and all ranks come to the same verdict.

   A file is as large as the parameters and the optimizer's vectors, with Adam three times the parameters
   (under PSGD that for each rank); for the time of saving or loading memory holds it two or three times. To
   read: dt_checkpoint_save and dt_checkpoint_load at the end; for trainers dti_keep_now, dti_resume. */
#ifdef DTI_DECLARE
/* For loops of one's own (trainers do it by themselves: .checkpoint and .resume of dt_train_desc). Before a
   load net, opt, it and settings are filled in. */
typedef struct dt_checkpoint {
    dt_net *net;
    dt_optimizer *opt;
    dt_batches *it;          /* which images; its place in the epoch */
    /* lines "name: value" that a run and its checkpoint must have in common, beside what net, optimizer and
       batches say; NULL: none */
    const char *settings;
    uint32_t epoch, step;    /* where the loop stands: so many steps of this epoch are done */
    dt_score score;          /* of the epoch so far */
    double own[8];           /* whatever else it adds up or counts */
} dt_checkpoint;

/* dt_checkpoint_save: called between two steps by one rank; all have the same to tell. Written as [E6.1]
   says: there is the old file or the new one. DT_EARG, DT_ENOMEM, DT_EIO. */
DT_API dt_err dt_checkpoint_save(const dt_checkpoint *c, const char *path);
/* dt_checkpoint_load: called by all ranks of comm (NULL: this process alone), of which rank 0 reads the file.
   Net and optimizer, with its learning rate, become what they were, `it` goes to the step that follows, and
   epoch, step, score and own are set. The number of ranks may be another one, but where the result depends
   on it: float sums, batch norm over a rank. DT_EDATA says what is wrong with a file; after an error nothing
   has changed. */
DT_API dt_err dt_checkpoint_load(dt_checkpoint *c, dt_comm *comm, const char *path);
#endif

#ifdef DTI_IMPLEMENT
/* ---- Settings: what a run and its checkpoint must have in common, as lines "name: value". A value that
   begins with # is a hash, of what would be long. */

/* All layers, as they were asked for: their shapes, connections, numbers. */
static uint64_t dti_layers_hash(const dt_net *net) {
    uint64_t hash = dti_hash_numbers(net->list.input, sizeof net->list.input, sizeof(int), 0);
    for (const dti_layer *l = net->list.layer; l < net->list.layer + net->list.layers; ++l) {
        const int places[] = { l->x, l->with, l->in[0], l->in[1], l->in[2], l->out[0], l->out[1], l->out[2] };
        hash = dt_hash(l->class->name, strlen(l->class->name), dt_hash(l->name, strlen(l->name), hash));
        hash = dti_hash_numbers(places, sizeof places, sizeof *places, hash);
        hash = dti_hash_numbers(l->own, l->class->said, 4, hash);
        for (const dti_slot *s = l->slot; s < l->slot + l->slots; ++s)
            hash = dti_hash_numbers(&s->follow, sizeof s->follow, sizeof s->follow, hash);
    }
    return hash;
}

/* A number in as few digits as give it back. */
typedef struct dti_digits { char text[24]; } dti_digits;
static dti_digits dti_shortest(float x) {
    dti_digits d;
    double back = 0.0;
    for (int n = 6; n <= 9; ++n) {
        dti_print(d.text, sizeof d.text, "%.*g", n, (double)x);
        if (dt_number_parse(d.text, &back) == DT_OK && dti_bits((float)back) == dti_bits(x)) break;
    }
    return d;
}

/* The lines of a net and its optimizer, but for the learning rate; returns their length, as snprintf. */
static size_t dti_net_settings(char *text, size_t size, const dt_net *net, const dt_optimizer *opt) {
    uint64_t groups = 0;
    for (const dti_part *p = opt->part; p < opt->part + opt->parts; ++p) {
        const float numbers[] = { p->decay, p->factor, p->frozen };
        groups = dti_hash_numbers(numbers, sizeof numbers, sizeof *numbers, groups);
    }
    dti_digits set[DTI_KNOBS];
    for (int i = 0; i < DTI_KNOBS; ++i) set[i] = dti_shortest(opt->setting[i]);
    return dti_print(text, size,
                     "arithmetic: #%016llx\nlayers: #%016llx\nloss: %s\nseed of the net: %llu\nsums: %s\n"
                     "unit of the sums: %g\nconvolutions: %s\noptimizer: %s\n"
                     "settings of the optimizer: %s %s %s %s\nclipping: %s\n"
                     "parameter groups: #%016llx\n",
                     (unsigned long long)dti_arithmetic_hash(), (unsigned long long)dti_layers_hash(net),
                     net->loss->name, (unsigned long long)net->desc.seed,
                     net->desc.float_sums ? "float" : "exact",
                     (double)net->desc.unit, net->desc.direct ? "direct" : "Winograd's where they pay",
                     opt->class->name, set[0].text, set[1].text, set[2].text, set[3].text,
                     dti_shortest(opt->most).text, (unsigned long long)groups);
}

static uint64_t dti_augment_hash(const dt_augment *a) {
    if (!a) return 0;
    const float numbers[] = { a->flip, a->rotate, a->scale_low, a->scale_high, a->shear, a->brightness,
                              a->contrast, a->saturation };
    return dti_hash_numbers(numbers, sizeof numbers, sizeof *numbers, a->seed);
}

/* The lines of a training; lr: with which its schedule begins. */
static size_t dti_train_settings(char *text, size_t size, const dt_train_desc *d, float lr) {
    return dti_print(text, size,
                     "learning rate: %s\nschedule: #%016llx\nbatch: %u\nseed: %llu\ndata: #%016llx\n"
                     "augmentation: #%016llx\naverage every: %u\nvalidation: #%016llx\ntarget: %s\n"
                     "patience: %u\n",
                     dti_shortest(lr).text, (unsigned long long)dti_schedule_hash(d->schedule, 0),
                     (unsigned)d->batch, (unsigned long long)d->seed,
                     (unsigned long long)dti_data_hash(d->data),
                     (unsigned long long)dti_augment_hash(d->augment), (unsigned)d->average_every,
                     (unsigned long long)(d->validation ? dti_data_hash(d->validation) : 0),
                     dti_shortest(d->target).text, (unsigned)d->patience);
}

/* ---- Kept: one rank's block. The places of its whole numbers: where the run stands (epoch, step; of how
   many epochs); counts (the optimizer's steps; those that batch norm's running statistics have followed;
   steps taken again; samples; epochs at the target); scores of three numbers each (this epoch's so far, the
   last one's, the validation's). */
enum {
    DTI_KEPT_EPOCH, DTI_KEPT_STEP, DTI_KEPT_EPOCHS, DTI_KEPT_STEPPED, DTI_KEPT_FOLLOWED, DTI_KEPT_RETAKEN,
    DTI_KEPT_SAMPLES, DTI_KEPT_REACHED,
    DTI_KEPT_SCORE, DTI_KEPT_LAST = DTI_KEPT_SCORE + 3, DTI_KEPT_VALIDATION = DTI_KEPT_LAST + 3,
    DTI_KEPT_WHOLES = DTI_KEPT_VALIDATION + 3
};
/* And of its real numbers: Adam's powers of beta, the learning rate, seconds of all epochs and of this one,
   `own` of dt_checkpoint, seconds of each epoch; then, as many as the optimizer has parts, NovoGrad's v. */
enum {
    DTI_KEPT_POWER, DTI_KEPT_LR = DTI_KEPT_POWER + DTI_STATES, DTI_KEPT_SECONDS, DTI_KEPT_SPENT, DTI_KEPT_OWN,
    DTI_KEPT_EPOCH_SECONDS = DTI_KEPT_OWN + 8,
    DTI_KEPT_SECOND = DTI_KEPT_EPOCH_SECONDS + DT_MAX_EPOCHS_KEPT   /* NovoGrad's v, one a part */
};

/* The block's stretches, in the order in which they lie, and how many numbers each has. */
typedef struct dti_kept {
    size_t reals, units, states, count, bytes;      /* of real, unit, state, value; of the whole block */
    int64_t *whole;          /* [DTI_KEPT_WHOLES], the block's beginning */
    double *real;
    float *unit, *state, *value;
} dti_kept;

/* A block as its stretches; block NULL: only how large it is. */
static dti_kept dti_kept_of(const dt_net *net, const dt_optimizer *opt, void *block) {
    dti_kept k = { .reals = DTI_KEPT_SECOND + (size_t)opt->parts, .units = (size_t)net->params,
                   .states = dti_times((size_t)opt->class->states, opt->count), .count = net->count };
    const size_t front = DTI_KEPT_WHOLES * sizeof *k.whole + k.reals * sizeof *k.real;
    k.bytes = dti_plus(front, dti_times(dti_plus(dti_plus(k.units, k.states), k.count), sizeof *k.unit));
    k.bytes = dti_round_up(k.bytes, 8);
    if (!block) return k;
    k.whole = block;
    k.real = (double *)(void *)(k.whole + DTI_KEPT_WHOLES);
    k.unit = (float *)(void *)(k.real + k.reals);
    k.state = k.unit + k.units;
    k.value = k.state + k.states;
    return k;
}

static void dti_put_score(int64_t *to, const dt_score *s) {
    to[0] = s->loss_fixed, to[1] = s->correct, to[2] = s->count;
}
static dt_score dti_get_score(const int64_t *from) { return (dt_score){ from[0], from[1], from[2] }; }

/* Net and optimizer into the block, and back. */
static void dti_keep_vectors(dti_kept *k, const dt_net *net, const dt_optimizer *opt) {
    k->whole[DTI_KEPT_STEPPED] = opt->steps;
    k->whole[DTI_KEPT_FOLLOWED] = net->followed;
    memcpy(k->real + DTI_KEPT_POWER, opt->power, sizeof opt->power);
    k->real[DTI_KEPT_LR] = (double)opt->lr;
    for (int i = 0; i < opt->parts; ++i) k->real[DTI_KEPT_SECOND + i] = opt->part[i].second;
    memcpy(k->unit, net->next_unit, k->units * sizeof *k->unit);
    for (int i = 0; i < opt->class->states; ++i)
        memcpy(k->state + (size_t)i * opt->count, opt->state[i], opt->count * sizeof(float));
    memcpy(k->value, net->values, k->count * sizeof *k->value);
}

static void dti_give_vectors(const dti_kept *k, dt_net *net, dt_optimizer *opt) {
    opt->steps = k->whole[DTI_KEPT_STEPPED];
    net->followed = k->whole[DTI_KEPT_FOLLOWED];
    net->loaded = net->forwarded = net->masked = net->fresh = false;
    memcpy(opt->power, k->real + DTI_KEPT_POWER, sizeof opt->power);
    opt->lr = (float)k->real[DTI_KEPT_LR];
    for (int i = 0; i < opt->parts; ++i) opt->part[i].second = k->real[DTI_KEPT_SECOND + i];
    memcpy(net->next_unit, k->unit, k->units * sizeof *k->unit);
    for (int i = 0; i < opt->class->states; ++i)
        memcpy(opt->state[i], k->state + (size_t)i * opt->count, opt->count * sizeof(float));
    memcpy(net->values, k->value, k->count * sizeof *k->value);
}

/* Numbers that no training could have: the hash is right, so another program wrote them. */
static dt_err dti_check_kept(const dti_kept *k, const char *path) {
    for (int i = 0; i < DTI_KEPT_WHOLES; ++i)
        if (k->whole[i] < 0)
            return dt_fail(DT_EDATA, "%s: dtrain.whole[%d] is %lld", path, i, (long long)k->whole[i]);
    for (size_t i = 0; i < k->reals; ++i)
        if (!(fabs(k->real[i]) <= DBL_MAX))
            return dt_fail(DT_EDATA, "%s: dtrain.real[%zu] is %g", path, i, k->real[i]);
    if (!(k->real[DTI_KEPT_LR] > 0.0 && k->real[DTI_KEPT_LR] <= (double)FLT_MAX))
        return dt_fail(DT_EDATA, "%s: the learning rate is %g", path, k->real[DTI_KEPT_LR]);
    for (size_t i = 0; i < k->units; ++i)
        if (dti_check_unit(path, k->unit[i]) != DT_OK) return DT_EDATA;
    return DT_OK;
}

/* ---- Pieces: the block's stretches as tensors of the file, and rank 0's values as the net's parameters,
   each under its name. Nothing is copied: a piece points into the block, for writing and for reading. */
static dti_saved dti_row_of(int rank, const char *what, const char *type, size_t n, void *data) {
    dti_saved p = { .type = type, .rank = 1, .shape = { n }, .data = data };
    if (rank == 0) snprintf(p.name, sizeof p.name, "dtrain.%s", what);
    else snprintf(p.name, sizeof p.name, "dtrain.rank%d.%s", rank, what);
    return p;
}

static int dti_kept_pieces(const dt_net *net, int rank, const dti_kept *k, dti_saved *piece) {
    int n = 0;
    piece[n++] = dti_row_of(rank, "whole", "I64", DTI_KEPT_WHOLES, k->whole);
    piece[n++] = dti_row_of(rank, "real", "F64", k->reals, k->real);
    piece[n++] = dti_row_of(rank, "units", "F32", k->units, k->unit);
    piece[n++] = dti_row_of(rank, "optimizer", "F32", k->states, k->state);
    if (rank > 0) piece[n++] = dti_row_of(rank, "values", "F32", k->count, k->value);
    else n += dti_net_pieces(net, k->value, piece + n);
    return n;
}

/* ---- File: a checkpoint in hand, on its way from the net to the disk or back. */
typedef struct dti_file {
    const dt_net *net;
    const dt_optimizer *opt;
    const char *path;
    char *settings;          /* as lines: this run's, to be written or to be compared with the file's */
    int ranks;               /* that have a block in it: all where each has values of its own, else 1 */
    char *blocks;            /* [ranks][bytes] */
    size_t bytes;            /* of one block */
    dti_saved *piece;        /* [most], and as many to put in order */
    size_t most;             /* at most five pieces a rank, and the net's */
    int pieces;
} dti_file;

static dt_err dti_file_begin(dti_file *f, int ranks) {
    f->ranks = ranks;
    f->bytes = dti_kept_of(f->net, f->opt, NULL).bytes;
    f->blocks = dti_alloc_many((size_t)ranks, f->bytes);
    f->most = 5 * (size_t)ranks + (size_t)dti_most_pieces(f->net);
    f->piece = dti_alloc_many(f->most, 2 * sizeof *f->piece);
    return f->blocks && f->piece ? DT_OK : DT_ENOMEM;
}

static void dti_file_end(dti_file *f) {
    dti_release(f->settings);
    dti_release(f->blocks);
    dti_release(f->piece);
}

/* The block of that rank. */
static dti_kept dti_file_kept(const dti_file *f, int rank) {
    return dti_kept_of(f->net, f->opt, f->blocks + (size_t)rank * f->bytes);
}

/* Makes the list of all pieces: those of eight bytes a number first, for there they are aligned. */
static void dti_file_pieces(dti_file *f) {
    dti_saved *all = f->piece + f->most;
    int count = 0;
    for (int r = 0; r < f->ranks; ++r) {
        const dti_kept k = dti_file_kept(f, r);
        count += dti_kept_pieces(f->net, r, &k, all + count);
    }
    f->pieces = 0;
    for (int width = 8; width >= 4; width -= 4)
        for (int i = 0; i < count; ++i)
            if (dti_saved_width(&all[i]) == width) f->piece[f->pieces++] = all[i];
}

/* Behind the eight bytes of its length the header of a checkpoint begins with this mark, the hash in 16
   hexadecimal digits, and a quotation mark. DTI_MARK_HASH: where the digits begin in the file. */
static const char dti_checkpoint_mark[] = "{\"__metadata__\":{\"dtrain.checkpoint\":\"";
enum { DTI_MARK = sizeof dti_checkpoint_mark - 1, DTI_MARK_HASH = 8 + DTI_MARK };

static uint64_t dti_file_hash(const unsigned char *bytes, size_t size) {
    const size_t behind = DTI_MARK_HASH + 16;
    return dt_hash(bytes + behind, size - behind, dt_hash(bytes, DTI_MARK_HASH, 0));
}

/* The settings as JSON behind the mark, zeros for the hash; the caller's to release. size: a byte takes at
   most six as JSON, and each line has some punctuation. */
static char *dti_file_metadata(const dti_file *f) {
    const size_t size = 7 * strlen(f->settings) + 8 * 64 + DTI_MARK;
    char *text = dti_alloc(size), *line = dti_alloc(strlen(f->settings) + 1);
    size_t used = 0;
    if (text && line) used = dti_print(text, size, "%s%016llx\"", dti_checkpoint_mark + 1, 0ull);
    for (const char *at = f->settings; text && line && *at; at += strcspn(at, "\n"), at += *at == '\n') {
        const size_t length = strcspn(at, "\n");
        memcpy(line, at, length + 1);
        line[length] = '\0';
        char *value = strstr(line, ": ");
        if (value) *value = '\0', value += 2;
        text[used++] = ',';
        dti_json_quote(text + used, line);
        used += strlen(text + used);
        text[used++] = ':';
        dti_json_quote(text + used, value ? value : "");
        used += strlen(text + used);
    }
    if (text && line) memcpy(text + used, "}", 2);
    else dti_release(text), text = NULL;
    dti_release(line);
    return text;
}

/* Blocks, pieces, bytes; then the hash of the bytes is put into them, and all is written at once. */
static dt_err dti_file_write(dti_file *f) {
    unsigned char *bytes = NULL;
    char hash[17], *metadata = dti_file_metadata(f);
    size_t size;
    if (!metadata) return DT_ENOMEM;
    dti_file_pieces(f);
    dt_err error = dti_safetensors_bytes(metadata, f->piece, f->pieces, &bytes, &size);
    if (error == DT_OK) {
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)dti_file_hash(bytes, size));
        memcpy(bytes + DTI_MARK_HASH, hash, 16);
        error = dti_write_all(f->path, bytes, size);
    }
    dti_release(metadata);
    dti_release(bytes);
    return error;
}

/* Rank 0's error, with its sentence, on every rank. */
static dt_err dti_same_error(dt_comm *comm, dt_err error) {
    struct { int32_t error; char text[sizeof dti_error_text]; } told;
    if (!comm || dt_comm_size(comm) == 1) return error;
    memset(&told, 0, sizeof told);
    told.error = (int32_t)error;
    if (error != DT_OK) snprintf(told.text, sizeof told.text, "%s", dt_error());
    DT_TRY(dt_broadcast(comm, &told, sizeof told, 0));
    return told.error == DT_OK ? DT_OK : dt_fail((dt_err)told.error, "%s", told.text);
}

/* The file's bytes on every rank: rank 0 reads, tells their number, and broadcasts them once all have
   memory. */
static dt_err dti_fetch(dt_comm *comm, const char *path, unsigned char **bytes, size_t *size) {
    const bool reads = !comm || dt_comm_rank(comm) == 0;
    DT_TRY(dti_same_error(comm, reads ? dti_read_all(path, bytes, size) : DT_OK));
    if (!comm || dt_comm_size(comm) == 1) return DT_OK;
    uint64_t wide = *size;
    DT_TRY(dt_broadcast(comm, &wide, sizeof wide, 0));
    *size = (size_t)wide;
    int64_t none = !reads && !(*bytes = dti_alloc(*size + 1));
    DT_TRY(dt_allreduce(comm, &none, 1, DT_I64, DT_MAX, DT_AUTO));
    if (none) return dt_fail(DT_ENOMEM, "%s: no memory for %zu bytes", path, *size);
    return dt_broadcast(comm, *bytes, *size, 0);
}

/* Is it a checkpoint, and whole? */
static dt_err dti_check_mark(const unsigned char *bytes, size_t size, const char *path) {
    char hash[17];
    if (size < DTI_MARK_HASH + 16 || memcmp(bytes + 8, dti_checkpoint_mark, DTI_MARK) != 0)
        return dt_fail(DT_EDATA, "%s: is no checkpoint of dtrain's (%zu bytes)", path, size);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)dti_file_hash(bytes, size));
    if (memcmp(bytes + DTI_MARK_HASH, hash, 16) == 0) return DT_OK;
    return dt_fail(DT_EDATA, "%s: is damaged or cut off: its %zu bytes have another hash than it says", path,
                   size);
}

/* The sentence for two lines of settings that differ; each ends with the line or the text. */
static dt_err dti_other_setting(const char *path, const char *there, const char *here) {
    const int a = (int)strcspn(there, "\n"), b = (int)strcspn(here, "\n");
    const char *of_there = strstr(there, ": "), *of_here = strstr(here, ": ");
    const int name = of_here && of_here < here + b ? (int)(of_here - here) : b;
    if (!of_there || !of_here || of_there - there != name || memcmp(there, here, (size_t)name) != 0)
        return dt_fail(DT_EDATA, "%s: it says \"%.*s\" where this run says \"%.*s\"", path, a < 80 ? a : 80,
                       there, b < 80 ? b : 80, here);
    if (of_here[2] == '#')
        return dt_fail(DT_EDATA, "%s: it was made with other %.*s than this run has", path, name, here);
    return dt_fail(DT_EDATA, "%s: it was made with %.*s %.*s, and this run has %.*s", path, name, here,
                   a - name - 2, of_there + 2, b - name - 2, of_here + 2);
}

/* there: the file's lines, of which the first is its hash. */
static dt_err dti_check_settings(const char *there, const char *here, const char *path) {
    there += strcspn(there, "\n"), there += *there == '\n';
    while (*there || *here) {
        const size_t a = strcspn(there, "\n"), b = strcspn(here, "\n");
        if (a != b || memcmp(there, here, a) != 0) return dti_other_setting(path, there, here);
        there += a, there += *there == '\n';
        here += b, here += *here == '\n';
    }
    return DT_OK;
}

/* The bytes into f's blocks, checked in this order: hash, settings, names and shapes, numbers; at last
   whether all ranks stand at the same step (the first two whole numbers). */
static dt_err dti_check_file(dti_file *f, const unsigned char *bytes, size_t size) {
    DT_TRY(dti_check_mark(bytes, size, f->path));
    char *lines = dti_alloc(size);
    if (!lines) return DT_ENOMEM;
    /* settings first: they say best why a file does not fit */
    const uint64_t length = dti_get_le(bytes, 8);
    dt_err error = length > size - 8 ? dt_fail(DT_EDATA, "%s: ends in its header", f->path) : DT_OK;
    if (error == DT_OK) {
        const char *text = (const char *)bytes + 8;
        dti_json json = { text, text + sizeof "{\"__metadata__\":" - 1, text + length, NULL };
        dti_read_metadata(&json, lines);
        error = json.why ? dti_json_error(&json, f->path) : dti_check_settings(lines, f->settings, f->path);
    }
    dti_file_pieces(f);
    if (error == DT_OK) error = dti_take_bytes(bytes, size, f->piece, f->pieces, NULL, f->path);
    for (int r = 0; r < f->ranks && error == DT_OK; ++r) {
        const dti_kept k = dti_file_kept(f, r), first = dti_file_kept(f, 0);
        error = dti_check_kept(&k, f->path);
        if (error == DT_OK && memcmp(k.whole, first.whole, 2 * sizeof *k.whole) != 0)
            error = dt_fail(DT_EDATA, "%s: its ranks stand at different steps", f->path);
    }
    dti_release(lines);
    return error;
}

/* The file's bytes on all ranks, and the verdict on them, which is the same. */
static dt_err dti_file_read(dti_file *f, dt_comm *comm) {
    unsigned char *bytes = NULL;
    size_t size = 0;
    dt_err error = dti_fetch(comm, f->path, &bytes, &size);
    if (error == DT_OK) error = dti_check_file(f, bytes, size);
    dti_release(bytes);
    return error;
}

/* Does the result depend on how a batch is cut up? Where each rank has its own values, or shares of floats,
   or a batch norm of its own. */
static bool dti_cut_matters(const dt_net *net, bool apart) {
    bool matters = apart || net->desc.float_sums;
    for (const dti_op *op = net->op; op < net->op + net->ops; ++op)
        matters = matters || op->scope == DTI_OVER_RANK;
    return matters;
}

/* All lines of settings: net and optimizer, ranks where they matter, `first`, `more`; the caller's to
   release. */
static char *dti_all_settings(const dt_net *net, const dt_optimizer *opt, bool apart, int ranks,
                              const char *first, const char *more) {
    char line[80] = "";
    if (dti_cut_matters(net, apart))
        snprintf(line, sizeof line, "ranks, on whose number the result depends: %d\n", ranks);
    const size_t net_lines = dti_net_settings(NULL, 0, net, opt),
                 size = net_lines + strlen(line) + strlen(first) + strlen(more) + 2;
    char *text = dti_alloc(size);
    if (!text) return NULL;
    dti_net_settings(text, size, net, opt);
    dti_print(text + net_lines, size - net_lines, "%s%s%s", line, first, more);
    return text;
}

/* ---- Trainers: the driver [S11.2] calls dti_resume before the first step and dti_keep_place behind each.
   `apart`: each rank has values of its own (PSGD), and so a block of its own. */

/* A file for this run, with room for its blocks, nothing in them yet. */
static dt_err dti_run_file(const dti_training *run, const char *path, dti_file *f) {
    const int ranks = dt_comm_size(run->comm);
    const bool apart = run->method->apart;
    char lines[1024];
    const uint32_t parts = dti_cut_matters(run->net, apart) && run->d->accumulate ? run->d->accumulate : 1;
    const size_t used = dti_print(lines, sizeof lines, "method: %s\nparts of a batch: %u\n",
                                  run->method->name, (unsigned)parts);
    dti_train_settings(lines + used, sizeof lines - used, run->d, run->lr);
    *f = (dti_file){ .net = run->net, .opt = run->opt, .path = path };
    f->settings = dti_all_settings(run->net, run->opt, apart, ranks, lines, "");
    return f->settings ? dti_file_begin(f, apart ? ranks : 1) : DT_ENOMEM;
}

/* Net, optimizer and the run's place into the block; and back, but for a learning rate that a schedule
   gives. */
static void dti_keep_run(const dti_training *run, dti_kept *k) {
    const dt_progress *p = &run->p;
    const dt_train_result *r = run->result;
    dti_keep_vectors(k, run->net, run->opt);
    k->whole[DTI_KEPT_EPOCH] = p->epoch;
    k->whole[DTI_KEPT_STEP] = p->step;
    k->whole[DTI_KEPT_EPOCHS] = run->d->epochs;
    k->whole[DTI_KEPT_RETAKEN] = (int64_t)run->net->retaken - run->retaken;
    k->whole[DTI_KEPT_SAMPLES] = (int64_t)p->samples;
    k->whole[DTI_KEPT_REACHED] = r->reached;
    dti_put_score(k->whole + DTI_KEPT_SCORE, &p->score);
    dti_put_score(k->whole + DTI_KEPT_LAST, &r->score);
    dti_put_score(k->whole + DTI_KEPT_VALIDATION, &r->validation);
    k->real[DTI_KEPT_SECONDS] = r->seconds;
    k->real[DTI_KEPT_SPENT] = dt_now() - run->begun;
    memcpy(k->real + DTI_KEPT_EPOCH_SECONDS, r->epoch_seconds, sizeof r->epoch_seconds);
}

static void dti_give_run(const dti_kept *k, dti_training *run) {
    dt_progress *p = &run->p;
    dt_train_result *r = run->result;
    const float lr = run->opt->lr;
    dti_give_vectors(k, run->net, run->opt);
    if (run->d->schedule) run->opt->lr = lr;
    p->epoch = r->epochs = (int)k->whole[DTI_KEPT_EPOCH];
    p->step = (uint32_t)k->whole[DTI_KEPT_STEP];
    p->samples = (uint64_t)k->whole[DTI_KEPT_SAMPLES];
    p->score = dti_get_score(k->whole + DTI_KEPT_SCORE);
    p->seconds = k->real[DTI_KEPT_SECONDS] + k->real[DTI_KEPT_SPENT];
    run->retaken = (int64_t)run->net->retaken - k->whole[DTI_KEPT_RETAKEN];
    run->spent = k->real[DTI_KEPT_SPENT];
    r->score = dti_get_score(k->whole + DTI_KEPT_LAST);
    r->validation = dti_get_score(k->whole + DTI_KEPT_VALIDATION);
    r->reached = (uint32_t)k->whole[DTI_KEPT_REACHED];
    r->seconds = k->real[DTI_KEPT_SECONDS];
    memcpy(r->epoch_seconds, k->real + DTI_KEPT_EPOCH_SECONDS, sizeof r->epoch_seconds);
    r->resumed = (uint64_t)p->epoch * p->steps + p->step;
    r->resumed_epochs = (int)k->whole[DTI_KEPT_EPOCHS];
}

/* Is the place one that this run will pass? */
static dt_err dti_check_place(const dti_file *f, int epochs, uint32_t steps) {
    const dti_kept k = dti_file_kept(f, 0);
    const int64_t epoch = k.whole[DTI_KEPT_EPOCH], step = k.whole[DTI_KEPT_STEP];
    if (epoch >= INT_MAX || step > steps)
        return dt_fail(DT_EDATA, "%s: stands at step %lld of epoch %lld, which has %u", f->path,
                       (long long)step, (long long)epoch + 1, (unsigned)steps);
    if (epoch < epochs) return DT_OK;
    return dt_fail(DT_EDATA, "%s: stands in epoch %lld, and this run is to end after epoch %d", f->path,
                   (long long)epoch + 1, epochs);
}

/* Before the first step: whether .checkpoint can be written at all, for to find that out at the end of an
   hour is late; then to where .resume stands. */
static dt_err dti_resume(dti_training *run) {
    const dt_train_desc *d = run->d;
    dti_file f;
    const bool asks = d->checkpoint && dt_comm_rank(run->comm) == 0;
    DT_TRY(dti_same_error(run->comm, asks ? dt_check_writable(d->checkpoint) : DT_OK));
    if (!d->resume) return DT_OK;
    dt_comm_phase(run->comm, "reading a checkpoint");
    dt_err error = dti_run_file(run, d->resume, &f);
    if (error == DT_OK) error = dti_file_read(&f, run->comm);
    if (error == DT_OK) error = dti_check_place(&f, d->epochs, run->p.steps);
    if (error == DT_OK) {
        const dti_kept k = dti_file_kept(&f, run->method->apart ? dt_comm_rank(run->comm) : 0);
        dti_give_run(&k, run);
    }
    dti_file_end(&f);
    return error;
}

/* Where the ranks are apart, all come to rank 0 with their blocks; and stop, if any of them is to. */
static dt_err dti_gather_kept(dti_training *run, dti_file *f) {
    enum { TAG = 311 };
    const int rank = dt_comm_rank(run->comm), ranks = dt_comm_size(run->comm);
    int64_t wish = run->wish;
    DT_TRY(dt_allreduce(run->comm, &wish, 1, DT_I64, DT_MAX, DT_AUTO));
    run->stop = run->stop || wish;
    if (rank > 0) return dt_send(run->comm, f->blocks + (size_t)rank * f->bytes, f->bytes, 0, TAG);
    dt_err error = DT_OK;
    for (int r = 1; r < ranks && error == DT_OK; ++r)
        error = dt_recv(run->comm, f->blocks + (size_t)r * f->bytes, f->bytes, r, TAG);
    return error;
}

/* Is a checkpoint due behind this step? When training ends or is asked to stop; else every so many steps, or
   at each epoch's end. */
static bool dti_due(const dti_training *run) {
    const dt_progress *p = &run->p;
    const uint32_t every = run->d->checkpoint_every;
    const bool last = p->step == p->steps && p->epoch + 1 == run->d->epochs;
    if (run->stop || last) return true;
    return every ? ((uint64_t)p->epoch * p->steps + p->step) % every == 0 : p->step == p->steps;
}

/* Writes one. A file that cannot be written ends no training: rank 0's result says why, and the old file is
   still there. What fails between ranks is an error. */
static dt_err dti_keep_now(dti_training *run) {
    const int rank = dt_comm_rank(run->comm);
    const bool apart = run->method->apart;
    dti_file f;
    if (rank > 0 && !apart) return DT_OK;
    dt_comm_phase(run->comm, "writing a checkpoint");
    dt_err error = dti_run_file(run, run->d->checkpoint, &f), written = DT_OK;
    if (error == DT_OK) {
        dti_kept k = dti_file_kept(&f, apart ? rank : 0);
        dti_keep_run(run, &k);
        if (apart) error = dti_gather_kept(run, &f);
    }
    if (error == DT_OK && rank == 0) written = dti_file_write(&f);
    dti_file_end(&f);
    if (error == DT_ENOMEM && !apart) written = error, error = DT_OK;
    run->result->checkpoints += rank == 0 && written == DT_OK;
    run->result->complaint[0] = '\0';
    if (written == DT_OK) return error;
    dti_print(run->result->complaint, sizeof run->result->complaint, "%s", dt_error());
    run->p.complaint = run->result->complaint;
    return error;
}

/* Behind each step. */
static dt_err dti_keep_place(dti_training *run) {
    const double start = dt_now();
    run->p.complaint = NULL;
    if (!dti_due(run)) return DT_OK;
    const dt_err error = dti_keep_now(run);
    dt_trace(run->comm, "checkpoint", start, dt_now());
    return error;
}

/* ---- Loops of one's own. A file as dti_run_file's, of one block: ranks have the same values. */
static dt_err dti_loop_file(const char *who, const dt_checkpoint *c, const char *path, dti_file *f) {
    if (!c || !path) return dt_fail(DT_EARG, "%s: checkpoint and path must not be NULL", who);
    DT_TRY(dti_ready(who, c->net));
    if (!c->opt || c->opt->values != c->net->values)
        return dt_fail(DT_EARG, "%s: the optimizer must be this net's", who);
    if (!c->it || !c->it->order)
        return dt_fail(DT_EARG, "%s: it must be what dt_batches_init makes", who);
    const dt_batches *it = c->it;
    const size_t rows = it->desc.subset ? it->desc.subset_count * sizeof *it->desc.subset : 0;
    char lines[512];
    dti_print(lines, sizeof lines, "method: a loop of its own\nbatch: %u\nseed: %llu\ndata: #%016llx\n"
              "augmentation: #%016llx\norder: %s\nlast batch: %s\nsubset: #%016llx\n", (unsigned)it->batch,
              (unsigned long long)it->desc.seed, (unsigned long long)dti_data_hash(it->data),
              (unsigned long long)dti_augment_hash(it->desc.augment),
              it->desc.shuffle ? "shuffled" : "as it is", it->desc.drop_last ? "dropped" : "kept",
              (unsigned long long)dt_hash(it->desc.subset, rows, 0));
    *f = (dti_file){ .net = c->net, .opt = c->opt, .path = path };
    const char *more = c->settings ? c->settings : "";
    f->settings = dti_all_settings(c->net, c->opt, false, (int)it->size, lines, more);
    return f->settings ? dti_file_begin(f, 1) : DT_ENOMEM;
}

DT_API dt_err dt_checkpoint_save(const dt_checkpoint *c, const char *path) {
    dti_file f = { .net = NULL };
    dt_err error = dti_loop_file(__func__, c, path, &f);
    if (error == DT_OK && c->step > c->it->steps)
        error = dt_fail(DT_EARG, "%s: step %u of an epoch of %u", __func__, (unsigned)c->step,
                        (unsigned)c->it->steps);
    if (error == DT_OK) {
        dti_kept k = dti_file_kept(&f, 0);
        dti_keep_vectors(&k, c->net, c->opt);
        k.whole[DTI_KEPT_EPOCH] = c->epoch;
        k.whole[DTI_KEPT_STEP] = c->step;
        dti_put_score(k.whole + DTI_KEPT_SCORE, &c->score);
        memcpy(k.real + DTI_KEPT_OWN, c->own, sizeof c->own);
        error = dti_file_write(&f);
    }
    dti_file_end(&f);
    return error;
}

DT_API dt_err dt_checkpoint_load(dt_checkpoint *c, dt_comm *comm, const char *path) {
    dti_file f = { .net = NULL };
    dt_err error = dti_loop_file(__func__, c, path, &f);
    if (error == DT_OK) error = dti_file_read(&f, comm);
    if (error == DT_OK) error = dti_check_place(&f, INT_MAX, c->it->steps);
    if (error == DT_OK) {
        const dti_kept k = dti_file_kept(&f, 0);
        dt_batch done;
        dti_give_vectors(&k, c->net, c->opt);
        c->epoch = (uint32_t)k.whole[DTI_KEPT_EPOCH];
        c->step = (uint32_t)k.whole[DTI_KEPT_STEP];
        c->score = dti_get_score(k.whole + DTI_KEPT_SCORE);
        memcpy(c->own, k.real + DTI_KEPT_OWN, sizeof c->own);
        dt_batches_begin(c->it, c->epoch);
        for (uint32_t i = 0; i < c->step; ++i) (void)dt_batches_next(c->it, &done);
    }
    dti_file_end(&f);
    return error;
}
#endif

/* ==== [E7] Stroke font, synthetic digits ===================================

   Letters for the charts, and images of digits to learn from, both drawn with strokes of one pen: no font
   file, no download. A chart thickens the strokes [E7.1]; a synthetic digit bends, slants and smears them
   first [E7.2]. To read: the picture of the 'R' below, then dti_font_path, which walks such a row; then
   dti_synthetic. */

/* ==== [E7.1] Stroke font ==================================================

   Every glyph is a few strokes, which the caller thickens, so that it serves at any size. An outline font
   would need a file, a parser of a few thousand lines, and a rasterizer.

   The table has a row for each glyph: its code point, its width, and the way of the pen, in hundredths of the
   height of a capital. x goes to the right, y upward from the baseline; small letters are 70 high, tails
   reach down to -30. The width is also the distance to the next glyph. M lifts the pen and sets it down; a
   bare pair of numbers draws a line to that point; Q turns a corner: from the pen towards the first pair,
   ending at the second, along a quarter of an ellipse where the two directions are square to each other.

       100  +-----.        { 'R', 78, "M15 0 15 100 42 100 Q68 100 68 73 Q68 46 42 46 15 46 M45 46 72 0" }
            |      \
            |      |       down at (15,0), up the stem, right to (42,100); around the corner (68,100) to
        46  +--+--'        (68,73), around (68,46) to (42,46), back to the stem; the leg to (72,0)
            |   \
         0  +    \
           15    72

   A stroke 10 thick stays inside of the glyph's width, DTI_FONT_BOTTOM and DTI_FONT_TOP. Digits are 76 wide,
   all of them, and centred at (38, 50). Letters with accents, raised digits and a few signs are made of other
   glyphs. */
#ifdef DTI_IMPLEMENT

#define DTI_FONT_TOP     1.20f
#define DTI_FONT_BOTTOM -0.36f
enum { DTI_FONT_TURN = 12, DTI_FONT_SEGMENTS = 256 }; /* lines drawn for one Q; the most lines in one glyph */

typedef struct dti_segment { float x0, y0, x1, y1; } dti_segment;
typedef struct dti_glyph { int code; int width; const char *path; } dti_glyph;

static const dti_glyph dti_glyphs[] = {
    { ' ',  38, "" },                                     { '!',  30, "M15 100 15 28 M15 0 15 5" },
    { '"',  44, "M14 100 14 74 M30 100 30 74" },
    { '#',  84, "M34 96 22 4 M62 96 50 4 M14 66 74 66 M10 34 70 34" },
    { '$',  76, "M38 112 38 -12 "
                "M64 78 Q58 92 38 92 Q13 92 13 72 Q13 57 38 51 Q66 44 66 27 Q66 8 38 8 Q16 8 10 24" },
    { '%', 100, "M82 100 18 0 M26 100 Q10 100 10 78 Q10 56 26 56 Q42 56 42 78 Q42 100 26 100 "
                "M74 44 Q58 44 58 22 Q58 0 74 0 Q90 0 90 22 Q90 44 74 44" },
    { '&',  88, "M80 0 25 62 Q16 72 16 81 Q16 100 34 100 Q52 100 52 82 Q52 68 32 56 "
                "Q10 43 10 25 Q10 0 36 0 Q64 0 74 42" },
    { '\'', 28, "M14 100 14 74" },                        { '(',  40, "M32 110 Q12 84 12 45 Q12 6 32 -20" },
    { ')',  40, "M8 110 Q28 84 28 45 Q28 6 8 -20" },
    { '*',  56, "M28 96 28 52 M9 85 47 63 M9 63 47 85" }, { '+',  76, "M38 79 38 17 M7 48 69 48" },
    { ',',  30, "M16 4 16 0 Q15 -10 9 -18" },             { '-',  50, "M8 42 42 42" },
    { '.',  30, "M15 0 15 5" },                           { '/',  54, "M5 -12 49 108" },
    { '0',  76, "M38 100 Q10 100 10 50 Q10 0 38 0 Q66 0 66 50 Q66 100 38 100" },
    { '1',  76, "M18 80 44 100 44 0" },
    { '2',  76, "M12 74 Q12 100 38 100 Q64 100 64 73 Q64 55 46 37 10 0 66 0" },
    { '3',  76, "M13 80 Q15 100 37 100 Q61 100 61 78 Q61 54 37 54 27 54 "
                "M37 54 Q66 54 66 27 Q66 0 37 0 Q12 0 10 22" },
    { '4',  76, "M50 0 50 100 8 28 70 28" },
    { '5',  76, "M62 100 19 100 14 53 Q22 65 38 65 Q66 65 66 33 Q66 0 37 0 Q14 0 10 19" },
    { '6',  76, "M61 88 Q55 100 40 100 Q10 100 10 44 10 32 Q10 0 38 0 Q66 0 66 31 "
                "Q66 62 38 62 Q10 62 10 32" },
    { '7',  76, "M10 100 66 100 Q36 62 30 0" },
    { '8',  76, "M38 54 Q14 54 14 77 Q14 100 38 100 Q62 100 62 77 Q62 54 38 54 "
                "Q10 54 10 27 Q10 0 38 0 Q66 0 66 27 Q66 54 38 54" },
    { '9',  76, "M15 12 Q21 0 36 0 Q66 0 66 56 66 68 Q66 100 38 100 Q10 100 10 69 "
                "Q10 38 38 38 Q66 38 66 68" },
    { ':',  30, "M15 0 15 5 M15 57 15 62" },
    { ';',  30, "M15 57 15 62 M16 4 16 0 Q15 -10 9 -18" }, { '<',  76, "M66 82 10 48 66 14" },
    { '=',  76, "M8 62 68 62 M8 34 68 34" },              { '>',  76, "M10 82 66 48 10 14" },
    { '?',  64, "M8 78 Q10 100 32 100 Q56 100 56 76 Q56 60 43 50 Q31 41 31 26 M31 0 31 5" },
    { '@', 116, "M80 -14 Q70 -20 58 -20 Q10 -20 10 40 Q10 100 58 100 Q106 100 106 48 Q106 18 91 18 "
                "Q78 18 78 36 78 64 M78 42 Q78 64 58 64 Q38 64 38 41 Q38 18 57 18 Q78 18 78 42" },
    { 'A',  80, "M5 0 40 100 75 0 M17 34 63 34" },
    { 'B',  78, "M15 0 15 100 40 100 Q63 100 63 77 Q63 54 40 54 15 54 M40 54 Q68 54 68 27 Q68 0 40 0 15 0" },
    { 'C',  82, "M74 80 Q66 100 44 100 Q10 100 10 50 Q10 0 44 0 Q66 0 74 20" },
    { 'D',  84, "M15 0 15 100 36 100 Q74 100 74 50 Q74 0 36 0 15 0" },
    { 'E',  70, "M63 0 15 0 15 100 63 100 M15 53 56 53" }, { 'F',  66, "M15 0 15 100 61 100 M15 51 54 51" },
    { 'G',  86, "M74 80 Q66 100 44 100 Q10 100 10 50 Q10 0 44 0 Q74 0 74 36 74 46 48 46" },
    { 'H',  86, "M15 0 15 100 M71 0 71 100 M15 52 71 52" },
    { 'I',  30, "M15 0 15 100" },                         { 'J',  62, "M47 100 47 28 Q47 0 26 0 Q9 0 6 18" },
    { 'K',  76, "M15 0 15 100 M68 100 15 40 M34 61 71 0" },
    { 'L',  64, "M15 100 15 0 59 0" },                    { 'M',  98, "M15 0 15 100 49 32 83 100 83 0" },
    { 'N',  88, "M15 0 15 100 73 0 73 100" },
    { 'O',  92, "M46 100 Q10 100 10 50 Q10 0 46 0 Q82 0 82 50 Q82 100 46 100" },
    { 'P',  74, "M15 0 15 100 42 100 Q68 100 68 72 Q68 44 42 44 15 44" },
    { 'Q',  92, "M46 100 Q10 100 10 50 Q10 0 46 0 Q82 0 82 50 Q82 100 46 100 M56 24 84 -8" },
    { 'R',  78, "M15 0 15 100 42 100 Q68 100 68 73 Q68 46 42 46 15 46 M45 46 72 0" },
    { 'S',  76, "M66 82 Q60 100 39 100 Q13 100 13 77 Q13 59 39 52 Q68 45 68 25 Q68 0 39 0 Q15 0 9 20" },
    { 'T',  76, "M5 100 71 100 M38 100 38 0" },
    { 'U',  84, "M14 100 14 34 Q14 0 42 0 Q70 0 70 34 70 100" },
    { 'V',  78, "M5 100 39 0 73 100" },                   { 'W', 110, "M5 100 29 0 55 90 81 0 105 100" },
    { 'X',  78, "M8 100 70 0 M70 100 8 0" },              { 'Y',  76, "M5 100 38 48 71 100 M38 48 38 0" },
    { 'Z',  76, "M10 100 66 100 8 0 68 0" },              { '[',  42, "M34 110 14 110 14 -20 34 -20" },
    { '\\', 54, "M5 108 49 -12" },                        { ']',  42, "M8 110 28 110 28 -20 8 -20" },
    { '^',  70, "M12 58 35 100 58 58" },                  { '_',  64, "M5 -12 59 -12" },
    { '`',  40, "M11 102 27 84" },
    { 'a',  70, "M13 56 Q18 70 34 70 Q55 70 55 47 55 0 M55 41 33 41 Q10 41 10 20 Q10 0 29 0 Q49 0 55 22" },
    { 'b',  74, "M15 100 15 0 M15 35 Q15 70 40 70 Q64 70 64 35 Q64 0 40 0 Q15 0 15 35" },
    { 'c',  62, "M56 55 Q51 70 35 70 Q10 70 10 35 Q10 0 35 0 Q51 0 56 15" },
    { 'd',  74, "M59 100 59 0 M59 35 Q59 70 34 70 Q10 70 10 35 Q10 0 34 0 Q59 0 59 35" },
    { 'e',  68, "M10 36 58 36 Q58 70 34 70 Q10 70 10 35 Q10 0 35 0 Q51 0 57 15" },
    { 'f',  44, "M39 98 Q37 100 33 100 Q18 100 18 82 18 0 M5 70 37 70" },
    { 'g',  74, "M59 35 Q59 70 34 70 Q10 70 10 35 Q10 0 34 0 Q59 0 59 35 "
                "M59 70 59 -4 Q59 -30 35 -30 Q20 -30 13 -20" },
    { 'h',  72, "M15 100 15 0 M15 42 Q17 70 37 70 Q57 70 57 45 57 0" },
    { 'i',  30, "M15 70 15 0 M15 94 15 98" },
    { 'j',  34, "M19 70 19 -12 Q19 -30 5 -30 M19 94 19 98" },
    { 'k',  66, "M15 100 15 0 M55 70 15 29 M29 43 60 0" }, { 'l',  36, "M15 100 15 14 Q15 0 28 0" },
    { 'm', 106, "M15 70 15 0 M15 44 Q16 70 34 70 Q53 70 53 46 53 0 M53 44 Q55 70 73 70 Q91 70 91 46 91 0" },
    { 'n',  72, "M15 70 15 0 M15 42 Q17 70 37 70 Q57 70 57 45 57 0" },
    { 'o',  72, "M36 70 Q10 70 10 35 Q10 0 36 0 Q62 0 62 35 Q62 70 36 70" },
    { 'p',  74, "M15 70 15 -30 M15 35 Q15 70 40 70 Q64 70 64 35 Q64 0 40 0 Q15 0 15 35" },
    { 'q',  74, "M59 70 59 -30 M59 35 Q59 70 34 70 Q10 70 10 35 Q10 0 34 0 Q59 0 59 35" },
    { 'r',  48, "M15 70 15 0 M15 40 Q18 70 37 70 43 69" },
    { 's',  60, "M50 57 Q45 70 30 70 Q11 70 11 53 Q11 41 30 36 Q52 31 52 18 Q52 0 30 0 Q12 0 8 15" },
    { 't',  46, "M18 90 18 18 Q18 0 33 0 40 2 M5 70 37 70" },
    { 'u',  72, "M15 70 15 25 Q15 0 35 0 Q55 0 57 28 M57 70 57 0" },
    { 'v',  64, "M5 70 32 0 59 70" },                     { 'w',  92, "M5 70 26 0 46 62 66 0 87 70" },
    { 'x',  62, "M7 70 55 0 M55 70 7 0" },
    { 'y',  64, "M5 70 32 0 M59 70 24 -20 Q20 -30 8 -30" },
    { 'z',  62, "M9 70 53 70 7 0 55 0" },
    { '{',  46, "M38 110 Q22 110 22 94 22 62 Q22 45 8 45 Q22 45 22 28 22 -4 Q22 -20 38 -20" },
    { '|',  30, "M15 112 15 -22" },
    { '}',  46, "M8 110 Q24 110 24 94 24 62 Q24 45 38 45 Q24 45 24 28 24 -4 Q24 -20 8 -20" },
    { '~',  76, "M8 38 Q10 57 23 57 Q31 57 38 48 Q45 39 53 39 Q66 39 68 58" },
    /* Beyond ASCII the signs that a chart says: degree, plus-minus, micro, middle dot, times, divide, dotless
       i, alpha, beta, mu, dashes, apostrophe, dots, arrow, minus, about, bounds. */
    { 0x00b0, 44, "M22 100 Q8 100 8 85 Q8 70 22 70 Q36 70 36 85 Q36 100 22 100" },
    { 0x00b1, 76, "M38 88 38 32 M8 60 68 60 M8 14 68 14" },
    { 0x00b5, 74, "M15 70 15 -30 M15 25 Q15 0 35 0 Q55 0 57 28 M57 70 57 0" },
    { 0x00b7, 30, "M15 42 15 47" },                       { 0x00d7, 68, "M12 70 56 26 M56 70 12 26" },
    { 0x00f7, 76, "M8 48 68 48 M38 76 38 81 M38 15 38 20" },
    { 0x0131, 30, "M15 70 15 0" },
    { 0x03b1, 78, "M66 70 Q60 0 34 0 Q10 0 10 35 Q10 70 34 70 Q56 70 70 0" },
    { 0x03b2, 74, "M15 -30 15 72 Q15 100 38 100 Q60 100 60 79 Q60 57 36 56 Q65 55 65 28 "
                  "Q65 0 39 0 Q20 0 15 16" },
    { 0x03bc, 74, "M15 70 15 -30 M15 25 Q15 0 35 0 Q55 0 57 28 M57 70 57 0" },
    { 0x2013, 66, "M6 42 60 42" },                        { 0x2014, 106, "M6 42 100 42" },
    { 0x2019, 28, "M14 100 14 94 Q13 84 8 79" },          { 0x2026, 90, "M15 0 15 5 M45 0 45 5 M75 0 75 5" },
    { 0x2192, 96, "M8 42 88 42 M64 62 88 42 64 22" },     { 0x2212, 76, "M8 48 68 48" },
    { 0x2248, 76, "M8 54 Q10 73 23 73 Q31 73 38 64 Q45 55 53 55 Q66 55 68 74 "
                  "M8 24 Q10 43 23 43 Q31 43 38 34 Q45 25 53 25 Q66 25 68 44" },
    { 0x2264, 76, "M66 92 10 60 66 28 M10 8 66 8" },      { 0x2265, 76, "M10 92 66 60 10 28 M10 8 66 8" },
};
static const dti_glyph dti_glyph_missing = { 0, 60, "M10 0 50 0 50 100 10 100 10 0" };

/* Accents, in the middle of a letter at x = 0. 1: one above, which stands on a small letter here, and is
   pressed flat onto a high one. 0: one below, or through the letter. */
static const dti_glyph dti_marks[] = {
    { '`', 1, "M-10 98 6 84" },              { '\'', 1, "M10 98 -6 84" },
    { '^', 1, "M-14 84 0 98 14 84" },        { '<', 1, "M-14 98 0 84 14 98" },
    { ':', 1, "M-11 89 -11 94 M11 89 11 94" }, { '.', 1, "M0 89 0 94" },
    { '-', 1, "M-15 90 15 90" },             { '~', 1, "M-16 86 -7 95 7 87 16 96" },
    { '%', 1, "M-4 98 -14 84 M14 98 4 84" }, { '(', 1, "M-14 97 Q-13 84 0 84 Q13 84 14 97" },
    { '*', 1, "M0 80 Q-9 80 -9 89 Q-9 98 0 98 Q9 98 9 89 Q9 80 0 80" },
    { ',', 0, "M0 0 0 -8 Q11 -9 10 -18 Q8 -25 -8 -24" }, { ';', 0, "M6 0 Q-7 -13 3 -23 Q6 -26 14 -23" },
    { '/', 0, "M-22 -6 22 76" }, { '=', 0, "M-24 82 24 82" }, { '+', 0, "M-27 38 -1 62" },
};

/* U+00C0 to U+017F, two characters each: a letter and its mark, or two letters; a space is no mark. */
static const char dti_latin[] =
    "A`A'A^A~A:A*AEC,E`E'E^E:I`I'I^I:D=N~O`O'O^O~O:x O/U`U'U^U:Y'Thss" /* U+00C0 */
    "a`a'a^a~a:a*aec,e`e'e^e:i`i'i^i:d=n~o`o'o^o~o:: o/u`u'u^u:y'thy:" /* U+00E0 */
    "A-a-A(a(A;a;C'c'C^c^C.c.C<c<D<d<D=d=E-e-E(e(E.e.E;e;E<e<G^g^G(g(" /* U+0100 */
    "G.g.G,g'H^h^H=h=I~i~I-i-I(i(I;i;I.i IJijJ^j^K,k,k L'l'L,l,L<l<L." /* U+0120 */
    "l.L+l+N'n'N,n,N<n<n'N,n,O-o-O(o(O%o%OEoeR'r'R,r,R<r<S's'S^s^S,s," /* U+0140 */
    "S<s<T,t,T<t<T=t=U~u~U-u-U(u(U*u*U%u%U;u;W^w^Y^y^Y:Z'z'Z.z.Z<z<s "; /* U+0160 */

/* Characters drawn as others are: raised digits and the minus of powers, spaces, hyphens, quotes. */
static const int dti_raised[] = { /* in the order of "0123456789-" */
    0x2070, 0x00b9, 0x00b2, 0x00b3, 0x2074, 0x2075, 0x2076, 0x2077, 0x2078, 0x2079, 0x207b
};
static const struct { int code; char as; } dti_alike[] = {
    { 0x00a0, ' ' }, { 0x2009, ' ' }, { 0x202f, ' ' }, { 0x2010, '-' }, { 0x2011, '-' }, { 0x2018, '\'' },
    { 0x201c, '"' }, { 0x201d, '"' }, { 0x201e, '"' },
};

/* What a character is made of. */
typedef struct dti_made { const dti_glyph *glyph, *second, *mark; bool raised; } dti_made;

/* Looked for in this order: ASCII, other glyphs, raised digits, lookalikes, letters with marks. */
static dti_made dti_font_find(int code) {
    if (code >= 32 && code <= 126) return (dti_made){ .glyph = &dti_glyphs[code - 32] };
    for (size_t i = 95; i < sizeof dti_glyphs / sizeof *dti_glyphs; ++i)
        if (dti_glyphs[i].code == code) return (dti_made){ .glyph = &dti_glyphs[i] };
    for (size_t i = 0; i < sizeof dti_raised / sizeof *dti_raised; ++i)
        if (dti_raised[i] == code)
            return (dti_made){ .glyph = &dti_glyphs["0123456789-"[i] - 32], .raised = true };
    for (size_t i = 0; i < sizeof dti_alike / sizeof *dti_alike; ++i)
        if (dti_alike[i].code == code) return (dti_made){ .glyph = &dti_glyphs[dti_alike[i].as - 32] };
    if (code < 0xc0 || code > 0x17f) return (dti_made){ .glyph = &dti_glyph_missing };
    const char *pair = &dti_latin[2 * (code - 0xc0)];
    dti_made made = { .glyph = &dti_glyphs[pair[0] - 32] };
    for (size_t i = 0; i < sizeof dti_marks / sizeof *dti_marks; ++i)
        if (dti_marks[i].code == pair[1]) made.mark = &dti_marks[i];
    if (!made.mark && pair[1] != ' ') made.second = &dti_glyphs[pair[1] - 32];
    return made;
}

/* Its width in hundredths of a cap height. */
static int dti_made_width(const dti_made *m) {
    const int width = m->glyph->width + (m->second ? m->second->width : 0);
    return m->raised ? width * 6 / 10 : width;
}

/* The next number of a path, in cap heights. Ours rather than strtof, which obeys the locale. */
static float dti_font_number(const char **path) {
    const char *s = *path;
    while (*s == ' ') ++s;
    const int sign = *s == '-' ? (++s, -1) : 1;
    int value = 0;
    for (; *s >= '0' && *s <= '9'; ++s) value = 10 * value + (*s - '0');
    *path = s;
    return (float)(sign * value) * 0.01f;
}

/* A path's lines, in cap heights, behind the n that are there; returns how many there are then. */
static int dti_font_path(const char *path, dti_segment *segment, int n) {
    float x = 0, y = 0;
    for (;;) {
        while (*path == ' ') ++path;
        if (*path == 0) return n;
        const char pen = *path == 'M' || *path == 'Q' ? *path++ : 'L';
        const float px = dti_font_number(&path), py = dti_font_number(&path);
        if (pen == 'L' && n < DTI_FONT_SEGMENTS) segment[n++] = (dti_segment){ x, y, px, py };
        if (pen != 'Q') { x = px; y = py; continue; }

        /* Cubic from (x,y) to (ex,ey), handles 0.5523 of the way to the corner (px,py): a quarter ellipse to
           0.03 % */
        const float ex = dti_font_number(&path), ey = dti_font_number(&path), k = 0.5523f;
        const float ax = x + k * (px - x), ay = y + k * (py - y);
        const float bx = ex + k * (px - ex), by = ey + k * (py - ey);
        float fx = x, fy = y;
        for (int i = 1; i <= DTI_FONT_TURN && n < DTI_FONT_SEGMENTS; ++i) {
            const float t = (float)i / DTI_FONT_TURN, s = 1 - t;
            const float w0 = s * s * s, w1 = 3 * s * s * t, w2 = 3 * s * t * t, w3 = t * t * t;
            const float tx = w0 * x + w1 * ax + w2 * bx + w3 * ex, ty = w0 * y + w1 * ay + w2 * by + w3 * ey;
            segment[n++] = (dti_segment){ fx, fy, tx, ty };
            fx = tx; fy = ty;
        }
        x = ex; y = ey;
    }
}

/* Lines stretched from (0,0), and then moved. */
static void dti_font_move(dti_segment *segment, int n, float sx, float sy, float x, float y) {
    for (int i = 0; i < n; ++i) {
        const dti_segment s = segment[i];
        segment[i] = (dti_segment){ sx * s.x0 + x, sy * s.y0 + y, sx * s.x1 + x, sy * s.y1 + y };
    }
}

/* A mark of `count` lines onto a letter: made narrower where it would come nearer than 0.05 to the letter's
   ends. */
static void dti_font_set_mark(dti_segment *mark, int count, const dti_made *m) {
    const char letter = (char)m->glyph->code;
    const bool high = (letter >= 'A' && letter <= 'Z') || strchr("bdfhklt", letter);
    const bool above = m->mark->width > 0;
    const float half = 0.005f * (float)m->glyph->width;
    float reach = 0;
    for (int i = 0; i < count; ++i) reach = fmaxf(reach, fmaxf(fabsf(mark[i].x0), fabsf(mark[i].x1)));
    const float sx = reach > half - 0.05f ? (half - 0.05f) / reach : 1;
    if (!high || (!above && m->mark->code != '/')) dti_font_move(mark, count, sx, 1, half, 0);
    else if (above) dti_font_move(mark, count, sx, 0.5f, half, 0.65f); /* 0.80 becomes 1.05, 0.98: 1.14 */
    else dti_font_move(mark, count, sx, 1.4f, half, 0);
}

/* dti_font_strokes                                                                            [E7.1] The
   glyph of a Unicode code point as line segments, in heights of a capital; of one the font lacks, an empty
   box. Consecutive segments of one stroke share an end. segment holds DTI_FONT_SEGMENTS, overwritten; width
   may be NULL. Returns the number of segments: 0 only for a space. A lone dot is a segment 0.05 long. */
DTI_LOCAL int dti_font_strokes(int code, dti_segment *segment, float *width) {
    const dti_made m = dti_font_find(code);
    const bool dot = m.glyph->code == 'i' || m.glyph->code == 'j';
    int n = dti_font_path(m.glyph->path, segment, 0);
    if (m.mark && m.mark->width && dot) --n; /* the mark takes the dot's place */
    const int first = n;
    if (m.second) {
        n = dti_font_path(m.second->path, segment, n);
        dti_font_move(segment + first, n - first, 1, 1, 0.01f * (float)m.glyph->width, 0);
    }
    if (m.mark) {
        n = dti_font_path(m.mark->path, segment, n);
        dti_font_set_mark(segment + first, n - first, &m);
    }
    if (m.raised) dti_font_move(segment, n, 0.6f, 0.6f, 0, 0.45f);
    if (width) *width = (float)dti_made_width(&m) * 0.01f;
    return n;
}

/* The next code point of UTF-8 text, 0 at its end. A malformed byte counts as one unknown character. */
DTI_LOCAL int dti_text_next(const char **text) {
    static const int first[5] = { 0, 0x7f, 0x1f, 0x0f, 0x07 }; /* the bits that the first of n bytes has */
    const char *s = *text;
    const size_t n = dti_utf8_bytes(s, 4); /* which stops at the end of the text */
    *text += n && *s ? n : *s != '\0';
    if (n == 0) return 0xfffd;
    int code = s[0] & first[n];
    for (size_t i = 1; i < n; ++i) code = code << 6 | (s[i] & 0x3f);
    return code;
}

/* Width of the first `bytes` bytes of a text (SIZE_MAX: all of it) in cap heights. */
DTI_LOCAL float dti_text_width(const char *text, size_t bytes) {
    int width = 0;
    const char *s = text;
    while ((size_t)(s - text) < bytes) {
        const int code = dti_text_next(&s);
        if (code == 0) break;
        const dti_made made = dti_font_find(code);
        width += dti_made_width(&made);
    }
    return (float)width * 0.01f;
}

#endif

/* ==== [E7.2] Synthetic digits =============================================

   A data set that is always there: without it every program here would begin with a download. The plain
   way, the font's ten digits with a little noise over them, would be ten pictures, each many times. So each
   image is written by a hand of its own:

       strokes of "4"  ->  bent, slanted, turned, stretched, shifted  ->  ends moved a little, stray strokes
                       ->  a pen of random width and softness         ->  noise over it: 28 x 28 bytes

   From the strokes on everything is integer arithmetic, in 1/64 of a pixel; the two exceptions, one product
   and one square root, are single correctly rounded operations on whole numbers below 2^24. No sine (a
   rotation by 2*atan(t) needs only t), no sum that a compiler could fuse: every machine draws the same bits.
   20 us an image. */
#ifdef DTI_IMPLEMENT
enum {
    DTI_DIGIT_SIDE = 28,
    DTI_DIGIT_PIXELS = DTI_DIGIT_SIDE * DTI_DIGIT_SIDE,
    DTI_DIGIT_LINES = 64,   /* most pieces of one digit */
    DTI_PIXEL = 64,         /* units a pixel */
    DTI_CAP = 1024,         /* units a cap height, before the map */
    DTI_SYNTHETIC_SEED = 1, DTI_SYNTHETIC_TRAIN = 60000, DTI_SYNTHETIC_TEST = 10000
};

typedef struct dti_stroke_line { int x0, y0, x1, y1; } dti_stroke_line;
typedef struct dti_digit { int count; dti_stroke_line line[DTI_DIGIT_LINES]; } dti_digit;

/* Adds a line in pieces of at most a quarter of the cap height, so that bending shows. */
static void dti_digit_add(dti_digit *d, dti_stroke_line l) {
    const int dx = l.x1 - l.x0, dy = l.y1 - l.y0;
    int pieces = 1;
    while (dx * dx + dy * dy > pieces * pieces * (DTI_CAP / 4) * (DTI_CAP / 4)) ++pieces;
    for (int i = 0; i < pieces && d->count < DTI_DIGIT_LINES; ++i)
        d->line[d->count++] = (dti_stroke_line){ l.x0 + dx * i / pieces, l.y0 + dy * i / pieces,
                                                 l.x0 + dx * (i + 1) / pieces, l.y0 + dy * (i + 1) / pieces };
}

/* Rounded at 0.55 rather than 0.5: no point of the ten digits is within 0.002 units of that, so the last bit
   of the font's float arithmetic, which a fused multiply-add may change, is rounded away. */
static int dti_cap_units(float x) { return (int)floorf(x * (float)DTI_CAP + 0.45f); }

/* One digit's strokes about its centre, y downward; the font's short chords are joined up to 1/8 of the cap
   height. */
static void dti_digit_load(dti_digit *d, int digit) {
    dti_segment segment[DTI_FONT_SEGMENTS];
    const int count = dti_font_strokes('0' + digit, segment, NULL);
    dti_stroke_line run = { 0, 0, 0, 0 };
    d->count = 0;
    for (int i = 0; i < count; ++i) {
        const dti_segment s = segment[i];
        const dti_stroke_line next = { dti_cap_units(s.x0 - 0.38f), dti_cap_units(0.5f - s.y0),
                                       dti_cap_units(s.x1 - 0.38f), dti_cap_units(0.5f - s.y1) };
        const int dx = next.x1 - run.x0, dy = next.y1 - run.y0, least = DTI_CAP / 8;
        const bool meet = i > 0 && next.x0 == run.x1 && next.y0 == run.y1;
        const bool joins = meet && dx * dx + dy * dy < least * least;
        if (i > 0 && !joins) dti_digit_add(d, run);
        run = (dti_stroke_line){ joins ? run.x0 : next.x0, joins ? run.y0 : next.y0, next.x1, next.y1 };
    }
    dti_digit_add(d, run);
}

/* A whole number in [low, high], from 32 random bits. */
static int dti_between(uint32_t bits, int low, int high) {
    return low + (int)((uint64_t)bits * (uint32_t)(high - low + 1) >> 32);
}

/* What one image does to the strokes. Fractions in 1/4096. */
typedef struct dti_hand {
    uint64_t seed;            /* of which set, */
    uint32_t sample;          /* and which image of it */
    int bend[5];              /* second- and third-order terms, before the affine map */
    int m00, m01, m10, m11;   /* the affine map, cap units to 1/64 pixel */
    int x, y;                 /* where the centre goes, 1/64 pixel */
    int radius, soft;         /* half the pen's width; width of its edge, 1/64 pixel */
    int ink, noise;           /* brightness of the stroke, amplitude of the noise */
    int wobble, strays;
} dti_hand;

/* A hand from 24 random words: each of its numbers has a word of its own, and the bounds that stand here. */
static void dti_hand_draw(dti_hand *h, const uint32_t r[24]) {
    for (int i = 0; i < 5; ++i) h->bend[i] = dti_between(r[i], -560, 560);
    /* (cos, sin) = (1-t^2, 2t)/(1+t^2) with t = tan(angle/2); at most 22 degrees either way */
    const int64_t t = dti_between(r[5], -796, 796), one = 4096, norm = one * one + t * t;
    const int64_t cosine = one * (one * one - t * t) / norm, sine = 2 * one * one * t / norm;
    const int64_t slant = dti_between(r[6], -1500, 1500);
    const int64_t wide = dti_between(r[7], 3000, 5600);
    const int64_t high = dti_between(r[8], 3500, 5400); /* 13.7 to 21 pixels */
    h->m00 = (int)(cosine * wide / one);
    h->m10 = (int)(sine * wide / one);
    h->m01 = (int)((cosine * slant / one - sine) * high / one);
    h->m11 = (int)((sine * slant / one + cosine) * high / one);
    h->x = 14 * DTI_PIXEL + dti_between(r[9], -3 * DTI_PIXEL, 3 * DTI_PIXEL);
    h->y = 14 * DTI_PIXEL + dti_between(r[10], -2 * DTI_PIXEL, 2 * DTI_PIXEL);
    h->radius = dti_between(r[11], 32, 100);
    h->soft = dti_between(r[12], 64, 140);
    h->ink = dti_between(r[13], 150, 255);
    h->noise = dti_between(r[14], 0, 50);
    h->wobble = dti_between(r[15], 0, 48);
    h->strays = dti_between(r[16], 0, 3) / 3 * dti_between(r[17], 1, 2); /* none for three images of four */
}

/* A point (u,v) of a stroke, in cap units about the digit's centre, bent, then mapped: (x,y) in 1/64
   pixel. */
static void dti_hand_point(const dti_hand *h, int u, int v, int *x, int *y) {
    const int vv = v * v / 512, uv = u * v / 512, uu = u * u / 512;
    const int bu = u + (h->bend[0] * vv + h->bend[1] * uv + h->bend[2] * (vv * v / 512)) / 4096;
    const int bv = v + (h->bend[3] * uu + h->bend[4] * uv) / 4096;
    *x = h->x + (h->m00 * bu + h->m01 * bv) / 4096;
    *y = h->y + (h->m10 * bu + h->m11 * bv) / 4096;
}

/* The pixels that a pen reaches around a stretch from a to b, in either order: the first, and the one behind
   the last. */
static void dti_pen_reaches(int a, int b, int reach, int *from, int *to) {
    const int first = ((b < a ? b : a) - reach) / DTI_PIXEL, last = ((b < a ? a : b) + reach) / DTI_PIXEL + 1;
    *from = first < 0 ? 0 : first;
    *to = last > DTI_DIGIT_SIDE ? DTI_DIGIT_SIDE : last;
}

/* nearest[i] = min(nearest[i], squared distance of pixel i's centre to the line), where the pen reaches. */
static void dti_ink_line(int32_t *nearest, dti_stroke_line l, int reach) {
    const int dx = l.x1 - l.x0, dy = l.y1 - l.y0, length2 = dx * dx + dy * dy;
    const float per = length2 ? 256.0f / (float)length2 : 0.0f;
    int left, right, top, bottom;
    dti_pen_reaches(l.x0, l.x1, reach, &left, &right);
    dti_pen_reaches(l.y0, l.y1, reach, &top, &bottom);
    for (int i = top; i < bottom; ++i) {
        int32_t *row = nearest + i * DTI_DIGIT_SIDE;
        const int wy = i * DTI_PIXEL + DTI_PIXEL / 2 - l.y0;
        for (int j = left; j < right; ++j) {
            const int wx = j * DTI_PIXEL + DTI_PIXEL / 2 - l.x0;
            int along = wx * dx + wy * dy;                  /* 0 at one end, length2 at the other */
            along = along < 0 ? 0 : along > length2 ? length2 : along;
            const int t = (int)((float)along * per);        /* the same, as 0..256 */
            const int ex = wx - dx * t / 256, ey = wy - dy * t / 256, d = ex * ex + ey * ey;
            row[j] = d < row[j] ? d : row[j];
        }
    }
}

static int dti_wobble(const dti_hand *h, uint32_t bits) { return dti_between(bits, -h->wobble, h->wobble); }

/* nearest[pixel]: the squared distance to the nearest stroke. Pieces that meet move together: where one
   ends, its wobble is the next one's beginning. */
static void dti_draw_strokes(int32_t *nearest, const dti_digit *digit, const dti_hand *h) {
    const int reach = h->radius + h->soft;
    for (int i = 0; i < DTI_DIGIT_PIXELS; ++i) nearest[i] = reach * reach;
    int wx = 0, wy = 0, lastx = INT32_MAX, lasty = INT32_MAX;
    for (int i = 0; i < digit->count; ++i) {
        const dti_stroke_line g = digit->line[i];
        const dt_philox_block r = dt_philox(h->seed, DT_RNG_SYNTHETIC, 1, h->sample, (uint32_t)i);
        dti_stroke_line l;
        if (g.x0 != lastx || g.y0 != lasty) wx = dti_wobble(h, r.v[0]), wy = dti_wobble(h, r.v[1]);
        dti_hand_point(h, g.x0 + wx, g.y0 + wy, &l.x0, &l.y0);
        wx = dti_wobble(h, r.v[2]), wy = dti_wobble(h, r.v[3]); /* the next piece starts at this one's end */
        dti_hand_point(h, g.x1 + wx, g.y1 + wy, &l.x1, &l.y1);
        dti_ink_line(nearest, l, reach);
        lastx = g.x1, lasty = g.y1;
    }
    for (int i = 0; i < h->strays; ++i) {
        const dt_philox_block r = dt_philox(h->seed, DT_RNG_SYNTHETIC, 2, h->sample, (uint32_t)i);
        const int x = dti_between(r.v[0], 0, 28 * DTI_PIXEL), y = dti_between(r.v[1], 0, 28 * DTI_PIXEL);
        const int dx = dti_between(r.v[2], -400, 400), dy = dti_between(r.v[3], -400, 400);
        dti_ink_line(nearest, (dti_stroke_line){ x, y, x + dx, y + dy }, reach);
    }
}

/* Full ink inside the pen's radius, falling to none over `soft`; then noise, two uniform numbers a pixel. */
static void dti_develop(uint8_t *out, const int32_t *nearest, const dti_hand *h) {
    const int reach = h->radius + h->soft;
    for (int i = 0; i < DTI_DIGIT_PIXELS; i += 8) {
        const dt_philox_block r = dt_philox(h->seed, DT_RNG_SYNTHETIC, 3, h->sample, (uint32_t)i / 8);
        for (int k = 0; k < 8; ++k) {
            const uint32_t bits = r.v[k / 2] >> (16 * (k & 1));
            const int grain = (int)(bits & 255u) + (int)(bits >> 8 & 255u) - 255;
            int inside = reach - (int)sqrtf((float)nearest[i + k]);
            if (inside > h->soft) inside = h->soft;
            const int value = inside * h->ink / h->soft + grain * h->noise / 256;
            out[i + k] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
}

/* Images first .. first+count-1 of the seed's endless set. */
static dt_err dti_synthetic(dt_dataset *d, uint32_t first, uint32_t count, uint64_t seed) {
    dti_digit digits[10];
    int32_t nearest[DTI_DIGIT_PIXELS];
    if (!d) return dt_fail(DT_EARG, "dt_dataset_synthetic: d must not be NULL");
    memset(d, 0, sizeof *d);
    if (count == 0) return dt_fail(DT_EARG, "a synthetic set needs at least 1 image");
    const dt_err err = dti_dataset_alloc(d, count, 1, DTI_DIGIT_SIDE, DTI_DIGIT_SIDE, 10);
    for (int i = 0; i < 10; ++i) dti_digit_load(&digits[i], i);
    for (uint32_t n = 0; n < count && err == DT_OK; ++n) {
        const uint32_t sample = first + n;
        uint32_t words[24];
        dti_hand hand = { .seed = seed, .sample = sample };
        for (uint32_t i = 0; i < 6; ++i) {
            const dt_philox_block r = dt_philox(seed, DT_RNG_SYNTHETIC, 0, sample, i);
            memcpy(words + 4 * i, r.v, sizeof r.v);
        }
        dti_hand_draw(&hand, words);
        d->labels[n] = (uint8_t)dti_between(words[23], 0, 9);
        dti_draw_strokes(nearest, &digits[d->labels[n]], &hand);
        dti_develop(d->pixels + (size_t)n * DTI_DIGIT_PIXELS, nearest, &hand);
    }
    char source[64];
    snprintf(source, sizeof source, "drawn from the chart font, seed %llu", (unsigned long long)seed);
    return dti_dataset_end(d, err, "synthetic digits", source);
}

DT_API dt_err dt_dataset_synthetic(dt_dataset *d, uint32_t count, uint64_t seed) {
    return dti_synthetic(d, 0, count, seed);
}

/* The test images are later ones of the same seed. Nothing is read, so the folder does not matter. */
static dt_err dti_synthetic_load(dt_dataset *d, const char *folder, int part) {
    (void)folder;
    if (part) return dti_synthetic(d, DTI_SYNTHETIC_TRAIN, DTI_SYNTHETIC_TEST, DTI_SYNTHETIC_SEED);
    return dti_synthetic(d, 0, DTI_SYNTHETIC_TRAIN, DTI_SYNTHETIC_SEED);
}
#endif

/* ==== [E8] Charts ==========================================================

   Numbers become a picture: lines, bars, histograms, reference lines, shaded regions, sheets of images. A
   program says what is to be seen, in data and words, and gets a PNG, beside it the CSV it was drawn from:

       dt_chart *c = dt_chart_new(&(dt_chart_desc){
           .title = "Two ranks train 1.9x faster", .x_label = "ranks", .y_label = "speedup over one rank",
           .caption = "MNIST, median of 5 runs with min and max", .machine = true });
       dt_chart_line(c, &(dt_series){ .label = "synchronous SGD", .n = 5, .x = ranks, .y = speedup });
       dt_chart_reference(c, &(dt_reference){ .label = "ideal", .slope = 1 });
       dt_chart_shade_cores(c);
       DT_TRY(dt_chart_save(c, "figures/mnist_speedup.png"));
       dt_chart_free(c);

   Nobody positions anything. The plain way, where the caller says where titles, ticks and labels go, is wrong
   again with the next run's numbers, and a legend in a corner lies on the data of one chart in four. Here
   every text is measured and gets its room, from the canvas' edge inward; what is left becomes the plot; and
   labels in the plot look for places where they cover nothing:

       +-----------------------------------------------+
       | title, subtitle                               |
       | legend, where labels do not fit at the right  |
       |  y  1.0 +--------------------------+          |
       |  l      |                          | label    |     labels at the right: beside the points
       |  a  0.5 |           plot           | label    |     where their lines end
       |  b      |                          |          |
       |  e  0.0 +--------------------------+          |
       |  l      1      2      3      4     5          |
       |                   x label                     |
       | caption                                       |
       +-----------------------------------------------+

   What is shown is a list of items, each of a kind: a mark. To read: the data [E8.1]; then one mark whole,
   the line in [E8.6]; then dti_chart_draw in [E8.7], which draws them all. The rest when one wonders:
   shapes -> coverage -> ink [E8.2], texts -> lines of words with their boxes [E8.3], numbers -> ranges and
   ticks of axes [E8.4], free places for labels [E8.5], PNG and CSV [E8.8]. A new mark is a subsection of
   [E8.6] and a row of dti_all_marks behind them.

   Texts are UTF-8. Drawn are ASCII, the Latin letters with accents of European languages (U+00C0 to U+017F; a
   letter the font has no form for by its like, as ss for U+00DF), raised digits, and
   ° ± · × ÷ µ α β – — ‘ ’ “ ” … → − ≈ ≤ ≥.
   Any other character is an empty box. Not drawn are NaN, infinities, values from 1e300 on, and on log axes
   what is not above 0; how many of these there were but NaN, the caption says. An axis that does not begin
   at 0 where one would expect it says so in its label.

   Only with DTRAIN_WITH_CHARTS, which needs stb_image_write.h (public domain; Debian: libstb-dev). A picture
   of 1200 x 750 pixels takes about 0.1 s. */
#ifdef DTRAIN_WITH_CHARTS

/* ==== [E8.1] What a chart is told ========================================

   The structs that a program fills in, one for each kind of thing to show, and how a chart keeps them: copied
   (dti_keep), as a list of items. So whoever draws later never meets memory that is gone, and an error while
   building waits in the chart until it is written. To read: dt_series and dt_chart_line's kin; dti_item and
   dti_mark, of which each kind has one row of functions. */

#ifdef DTI_DECLARE
typedef enum dt_axis_scale { DT_LINEAR, DT_LOG2, DT_LOG10 } dt_axis_scale;

/* How an axis writes a number. SI: 20 k, 3 M. Bytes: 64 KiB. Seconds: 10 µs. Percent: 0.5 is written 50%. */
typedef enum dt_tick_format {
    DT_TICKS_PLAIN, DT_TICKS_SI, DT_TICKS_BYTES, DT_TICKS_SECONDS, DT_TICKS_PERCENT
} dt_tick_format;

typedef enum dt_line_style {
    DT_LINE_AUTO,   /* a line, with markers while there are at most 40 points */
    DT_LINE_PLAIN,  /* a line without markers */
    DT_LINE_DASHED, /* dashes without markers: a model beside its measurements */
    DT_LINE_POINTS  /* markers without a line */
} dt_line_style;

typedef struct dt_chart_desc {
    const char *title;      /* the finding; wrapped */
    const char *subtitle;   /* what was measured; wrapped */
    const char *caption;    /* below the chart; wrapped, and shrunk where it must be */
    bool machine;           /* ends the caption with dt_machine_caption() */
    const char *x_label, *y_label;            /* with units */
    dt_axis_scale x_scale, y_scale;           /* log axes leave out what is not above 0 */
    dt_tick_format x_format, y_format;
    const double *x_ticks; size_t x_tick_count; /* NULL: the measured x if few and whole, else round ones */
    double x_min, x_max, y_min, y_max;        /* both 0: taken from the data */
    int width, height;      /* pixels; 0: 1200 x 750, or as high as the pictures need */
} dt_chart_desc;

typedef struct dt_series {
    const char *label;      /* written at the line's end; NULL: none */
    size_t n;
    const double *x, *y;    /* n each; a NaN breaks the line */
    const double *y_min, *y_max; /* n each or NULL: an error bar from one to the other */
    dt_line_style style;
    int colour;             /* 1..8 of the palette; 0: the next one */
} dt_series;

typedef struct dt_bars {
    size_t groups, series;
    const char *const *names;   /* groups names below the axis */
    const char *const *labels;  /* series labels, or NULL if there is one series */
    const double *y;            /* y[s * groups + g] */
    const double *y_min, *y_max; /* the same, or NULL; not when stacked */
    bool stacked;               /* the series of a group on top of each other */
    bool values;                /* write each bar's height (a stack's sum) above it */
} dt_bars;

typedef struct dt_histogram {
    const char *label;
    size_t n;
    const double *values;
    size_t bins;                /* 0: the square root of n, from 5 to 60 */
} dt_histogram;

typedef struct dt_reference {
    const char *label;          /* written along the line */
    double slope, offset;       /* y = slope * x + offset; a slope of 0 is a ceiling at offset */
    double from, to;            /* the x it is drawn over; both 0: the whole axis */
} dt_reference;

typedef struct dt_shade {
    const char *label;
    double from, to;            /* x; -INFINITY and INFINITY are the axis' ends */
} dt_shade;

typedef struct dt_images {
    size_t n, columns;          /* columns 0: chosen to fit */
    int width, height, channels; /* channels 0 or 1: grey; 3: red, green, blue planes */
    const uint8_t *pixels;      /* n * channels * height * width bytes, 255 = white */
    const char *const *captions; /* n, below the pictures; NULL: none */
} dt_images;

typedef struct dt_chart dt_chart;

/* Building. Everything is copied, so the arguments need not outlive the call. Errors wait: the first one is
   what dt_chart_write returns, and a NULL chart (no memory) is passed along the same way. A NULL desc is a
   chart without words. At most 40 labels: that many combinations of colour and marker can be told apart. */
DT_API dt_chart *dt_chart_new(const dt_chart_desc *desc);
DT_API void dt_chart_free(dt_chart *c);
DT_API void dt_chart_line(dt_chart *c, const dt_series *series);
DT_API void dt_chart_bars(dt_chart *c, const dt_bars *bars);
DT_API void dt_chart_histogram(dt_chart *c, const dt_histogram *histogram);
DT_API void dt_chart_reference(dt_chart *c, const dt_reference *reference);
DT_API void dt_chart_shade(dt_chart *c, const dt_shade *shade);
DT_API void dt_chart_shade_cores(dt_chart *c); /* shades the x beyond dt_cores(), and says so */
DT_API void dt_chart_images(dt_chart *c, const dt_images *images);

/* dt_chart_write, dt_chart_write_csv, dt_chart_save                   [E8.7] The PNG; the numbers it was
   drawn from, into the same name with its ending made .csv; both. One CSV line a point: series, x, y, min,
   max. DT_EIO with the file's name if it cannot be written, DT_ENOMEM, DT_ESHAPE if the texts leave no room
   for a plot, or the first error of building. */
DT_API dt_err dt_chart_write(dt_chart *c, const char *png);
DT_API dt_err dt_chart_write_csv(dt_chart *c, const char *png);
DT_API dt_err dt_chart_save(dt_chart *c, const char *png);

/* dt_chart_check                                                      [E8.7] DT_OK if every text lies inside
   the canvas and overlaps no other; else DT_ESHAPE and a sentence quoting the texts. */
DT_API dt_err dt_chart_check(dt_chart *c);

/* The drawn picture: 3 bytes a pixel, rows from the top, valid until the next call with this chart. NULL on
   failure. */
DT_API const uint8_t *dt_chart_pixels(dt_chart *c, int *width, int *height);

/* A number as axes and labels write it, into at most 48 bytes: 0.25, 3x10^-5 with raised digits. digits: how
   many count, 1..6. */
DT_API void dt_number_text(double value, int digits, char *text, size_t size);
#endif

#ifdef DTI_IMPLEMENT
#if !defined(INCLUDE_STB_IMAGE_WRITE_H) /* else the program has its own */
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define DTI_STB_OURS
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif
#if __has_include(<stb/stb_image_write.h>)
#include <stb/stb_image_write.h>
#else
#include "stb_image_write.h"
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#ifdef DTI_STB_OURS
#undef STB_IMAGE_WRITE_IMPLEMENTATION
#endif

/* Okabe and Ito's palette, told apart with every kind of colour blindness; its yellow is unreadable on white
   and gives way to a brown. With five markers that makes 40 pairs, as 8 and 5 have no factor in common. */
static const uint32_t dti_palette[] = {
    0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x7f5539, 0x404040
};
enum {
    DTI_BLACK = 0x1a1a1a, DTI_GREY = 0x5f6368, DTI_PALE = 0xe4e6e9, DTI_WHITE = 0xffffff,
    DTI_COLOURS = sizeof dti_palette / sizeof *dti_palette,
    DTI_MARKERS = 5, DTI_TAGS = DTI_COLOURS * DTI_MARKERS,
    DTI_TICKS = 64,            /* most ticks of an axis */
    DTI_SEEN = 16,             /* so many different x are still a tick each */
    DTI_NUMBER = 48,           /* bytes of a number as text */
    DTI_WORDS = 200,           /* bytes of what a chart adds to its caption, and to the label of an axis */
    DTI_MOST_DRAWN = 1 << 27,  /* points of a line */
    DTI_MOST_BARS = 1 << 13    /* bars, bins and pictures: one each pixel */
};
/* What is shown: one item for each series of points, reference, shade or sheet of pictures. Lines, bars and
   histograms are points with a label, a colour, and perhaps errors; they differ in how wide a point is, 0 for
   a line, and in where it stands: a bar from `foot` up. */
typedef struct dti_item {
    struct dti_item *next;
    const struct dti_mark *mark;   /* its kind */
    const char *label;
    int index;                     /* of its colour and its marker */
    size_t n;                      /* points, or pictures */
    const double *x, *y, *lo, *hi; /* lo and hi, the ends of error bars: NULL if there are none */
    const char *const *names;      /* of the points, for the CSV; or NULL */
    dt_line_style style;
    double left, right;            /* a bar goes from x + left to x + right, */
    const double *foot;            /* and from foot to foot + y; NULL: from 0 */
    float opacity;
    bool values, stacked;          /* heights are written above the bars; bars on top of each other */
    size_t lost;                   /* values of a histogram that are in no bin */
    double slope, offset, from, to; /* of a reference and of a shade */
    dt_images images;
} dti_item;

/* One line of the CSV: a group's name stands for x, NaN is left empty. */
typedef struct dti_row { const char *series, *name; double v[4]; } dti_row;

/* An item is asked what the axes must show, three times: for its points; once the x axis is known, for what
   lies above and below it; and once the y axis is known, for room above its top. */
typedef enum dti_ask { DTI_ASK_POINTS, DTI_ASK_SPAN, DTI_ASK_AIR } dti_ask;

/* From the back to the front. Between UNDER and BODY comes the grid, behind BODY the x axis. */
enum { DTI_UNDER, DTI_BODY, DTI_OVER, DTI_ERRORS, DTI_POINTS, DTI_LABELS, DTI_SHEET, DTI_LAYERS };

/* A mark: what an item of this kind can do. A function that is NULL does nothing. */
typedef struct dti_mark {
    bool series;       /* has points and a colour, and its label at the right edge or in the legend */
    bool open;         /* ends in a point, beside which its label may stand inside of the plot */
    bool stands;       /* on the x axis: which then is at y = 0, and ends with the outermost bar */
    float sample;      /* the room of draw_sample in a legend, in letter heights */
    void (*range)(dt_chart *c, const dti_item *item, dti_ask ask);
    bool (*end)(const dt_chart *c, const dti_item *item, size_t i, float *x, float *y); /* if it ends at i */
    void (*draw_sample)(dt_chart *c, const dti_item *item, float x, float y, float size);
    void (*draw[DTI_LAYERS])(dt_chart *c, const dti_item *item);
    float (*height)(const dt_chart *c, const dti_item *item, float width); /* has no axes, but a height */
    bool (*row)(const dt_chart *c, const dti_item *item, size_t i, dti_row *row); /* false behind the last */
} dti_mark;

typedef struct dti_chart_axis {
    dt_axis_scale scale;
    dt_tick_format format;
    double lo, hi;          /* the values at its two ends */
    float from, to;         /* and where these are on the canvas */
    double tick[DTI_TICKS];
    int ticks;
    double step;            /* between automatic linear ticks, which share their decimals; else 0 */
    double seen[DTI_SEEN];  /* the distinct values, while few; sorted */
    int distinct;           /* DTI_SEEN + 1: too many, or not whole numbers */
} dti_chart_axis;

typedef struct dti_box { float corner[4][2]; } dti_box;
typedef struct dti_text { dti_box box; char head[40]; } dti_text;

struct dt_chart {
    dt_chart_desc desc;
    dt_err failed;
    char why[256];
    void *blocks;           /* all that was copied, linked by its first pointer */
    dti_item *first, *last;
    int colours, labels;    /* taken from the palette so far; items with a label */
    size_t groups;          /* bars whose names stand below the x axis; 0: it has numbers */
    const char *const *names;
    char *caption, *y_label; /* with what the chart has to add: see dti_caption_words */
    size_t said;            /* characters of the caption before that */

    int w, h;               /* the canvas: */
    float *rgb, *mask;      /* colours; coverage of what is being drawn, 0 outside of the dirty rectangle. all
                               four are one block, which begins at rgb */
    uint8_t *busy, *bytes;  /* pixels with data on them, which labels avoid; the finished picture */
    bool marking;           /* ink makes pixels busy */
    int clip[4], dirty[4];  /* x0 y0 x1 y1 */
    float unit, small;      /* 1 on a canvas of 1200 x 750; the size of numbers, and of labels in the plot */
    float plot[4];          /* x0 y0 x1 y1 of the plot */
    dti_chart_axis x, y;
    dti_text *texts;
    int text_count, text_room;
};

/* Twice as much is still a number: an axis has a length. */
static bool dti_drawable(double v) { return fabs(v) < 1e300; }
static uint32_t dti_colour_of(const dti_item *item) { return dti_palette[item->index % DTI_COLOURS]; }

/* Remembers the first error, and its sentence. */
static void dti_chart_fail(dt_chart *c, dt_err code) {
    if (code == DT_OK || c->failed != DT_OK) return;
    c->failed = code;
    snprintf(c->why, sizeof c->why, "%.255s", dt_error());
}

/* A block owned by the chart; a copy of `source` if that is given. NULL, and a failed chart, if there is no
   memory. */
static void *dti_keep(dt_chart *c, const void *source, size_t bytes) {
    char *block = dti_alloc(dti_plus(64, bytes));
    if (!block) { dti_chart_fail(c, DT_ENOMEM); return NULL; }
    memcpy(block, &c->blocks, sizeof c->blocks);
    c->blocks = block;
    if (source) memcpy(block + 64, source, bytes);
    return block + 64;
}

static double *dti_keep_numbers(dt_chart *c, const double *v, size_t n) {
    return dti_keep(c, v, dti_times(n, sizeof *v));
}

static const char *dti_keep_text(dt_chart *c, const char *s) {
    return s && *s ? dti_keep(c, s, strlen(s) + 1) : NULL;
}

static const char *const *dti_keep_texts(dt_chart *c, const char *const *s, size_t n) {
    const char **copy = s ? dti_keep(c, NULL, dti_times(n, sizeof *copy)) : NULL;
    for (size_t i = 0; copy && i < n; ++i) copy[i] = dti_keep_text(c, s[i]);
    return copy;
}

/* Room for a text and for what is added to it later. */
static char *dti_keep_room(dt_chart *c, const char *text, const char *more) {
    const size_t room = (text ? strlen(text) : 0) + strlen(more) + 2 + DTI_WORDS;
    char *copy = dti_keep(c, NULL, room);
    if (copy) snprintf(copy, room, "%s%s%s", text ? text : "", text && *text && *more ? "\n" : "", more);
    return copy;
}

DT_API dt_chart *dt_chart_new(const dt_chart_desc *desc) {
    static const dt_chart_desc none;
    dt_chart *c = dti_alloc(sizeof *c);
    if (!c) return NULL;
    c->desc = desc ? *desc : none;
    dt_chart_desc *d = &c->desc;
    char machine[256] = "";
    if (d->machine) dt_machine_caption(machine, sizeof machine);
    d->title = dti_keep_text(c, d->title);
    d->subtitle = dti_keep_text(c, d->subtitle);
    c->caption = dti_keep_room(c, d->caption, machine);
    c->y_label = dti_keep_room(c, d->y_label, "");
    d->x_label = dti_keep_text(c, d->x_label);
    d->y_label = dti_keep_text(c, d->y_label);
    c->said = c->caption ? strlen(c->caption) : 0;
    if (d->x_ticks) d->x_ticks = dti_keep_numbers(c, d->x_ticks, d->x_tick_count);
    if (d->width < 0 || d->height < 0 || d->width > 8192 || d->height > 8192)
        dti_chart_fail(c, dt_fail(DT_EARG, "chart: a canvas of %d x %d pixels; 1 to 8192 each way",
                                  d->width, d->height));
    dti_chart_fail(c, dti_check_enum("chart", "scale", d->x_scale, DT_LOG10 + 1u));
    dti_chart_fail(c, dti_check_enum("chart", "scale", d->y_scale, DT_LOG10 + 1u));
    dti_chart_fail(c, dti_check_enum("chart", "tick format", d->x_format, DT_TICKS_PERCENT + 1u));
    dti_chart_fail(c, dti_check_enum("chart", "tick format", d->y_format, DT_TICKS_PERCENT + 1u));
    return c;
}

DT_API void dt_chart_free(dt_chart *c) {
    if (!c) return;
    while (c->blocks) {
        void *next;
        memcpy(&next, c->blocks, sizeof next);
        dti_release(c->blocks);
        c->blocks = next;
    }
    dti_release(c->rgb), dti_release(c->texts), dti_release(c);
}

/* Whether something can be added: there is a chart, nothing has failed, and what is told can be meant. */
static bool dti_told(dt_chart *c, const char *who, const void *told, bool good) {
    static const char *const why[2] = { "its description must not be NULL",
                                        "sizes, or an enum's value, that cannot be drawn" };
    if (!c) return false;
    if (!good) dti_chart_fail(c, dt_fail(DT_EARG, "%s: %s", who, why[told != NULL]));
    return c->failed == DT_OK;
}

/* A new item at the list's end; NULL, and a failed chart, without memory or with too many labels. */
static dti_item *dti_chart_add(dt_chart *c, const dti_mark *mark, const char *label, int index) {
    dti_item *item = dti_keep(c, NULL, sizeof *item);
    if (!item) return NULL;
    item->mark = mark;
    item->label = dti_keep_text(c, label);
    item->index = index;
    item->opacity = 1;
    if (c->last) c->last->next = item; else c->first = item;
    c->last = item;
    if (!item->label || !mark->series || ++c->labels <= DTI_TAGS) return item;
    dti_chart_fail(c, dt_fail(DT_EARG, "chart: \"%.40s\" is label %d, and colours and markers tell %d apart; "
                              "leave labels out", item->label, c->labels, (int)DTI_TAGS));
    return NULL;
}

/* ==== [E8.2] Ink =========================================================

   The plain way colours every pixel whose centre lies inside the shape: edges become stairs. Mixing the
   colour in by how much of the pixel is covered mends the stairs, and shows every joint: where two pieces of
   a line meet, their pale edge pixels are painted twice. So a shape, all its pieces, first goes into a mask,
   0 to 1 a pixel, in which a pixel keeps the largest coverage that a piece gave it; then one colour is laid
   through the mask.

       distance from the pixel's centre to the shape's edge:   0.5 inside   on it   0.5 outside
       coverage:                                               1            0.5     0

   That is one square root a pixel, where sixteen samples a pixel would be sixteen tests, and as smooth. The
   mask is as large as the canvas; only the dirty rectangle of it is read, and left clean. */

/* The pixels from (x0,y0) to (x1,y1), cut to the clip, as box; they become dirty. */
static void dti_touch(dt_chart *c, float x0, float y0, float x1, float y1, int box[4]) {
    const float limit[4] = { (float)c->clip[0], (float)c->clip[1], (float)c->clip[2], (float)c->clip[3] };
    box[0] = (int)fminf(fmaxf(floorf(x0), limit[0]), limit[2]);
    box[1] = (int)fminf(fmaxf(floorf(y0), limit[1]), limit[3]);
    box[2] = (int)fminf(fmaxf(ceilf(x1), limit[0]), limit[2]);
    box[3] = (int)fminf(fmaxf(ceilf(y1), limit[1]), limit[3]);
    if (box[0] >= box[2] || box[1] >= box[3]) { box[2] = box[0]; box[3] = box[1]; return; }
    for (int i = 0; i < 2; ++i) {
        if (box[i] < c->dirty[i]) c->dirty[i] = box[i];
        if (box[i + 2] > c->dirty[i + 2]) c->dirty[i + 2] = box[i + 2];
    }
}

static void dti_clip(dt_chart *c, float x0, float y0, float x1, float y1) {
    c->clip[0] = (int)fmaxf(0, floorf(x0));
    c->clip[1] = (int)fmaxf(0, floorf(y0));
    c->clip[2] = (int)fminf((float)c->w, ceilf(x1));
    c->clip[3] = (int)fminf((float)c->h, ceilf(y1));
}

static void dti_cover(dt_chart *c, int x, int y, float coverage) {
    float *m = &c->mask[(size_t)y * (size_t)c->w + (size_t)x];
    if (coverage > *m) *m = coverage > 1 ? 1 : coverage;
}

/* A line with round ends; a disc if it has no length. */
static void dti_mask_line(dt_chart *c, float x0, float y0, float x1, float y1, float radius) {
    int box[4];
    const float reach = radius + 1, dx = x1 - x0, dy = y1 - y0, length2 = dx * dx + dy * dy;
    const float full = fminf(1, 2 * radius); /* a hair line is paler, not wider */
    dti_touch(c, fminf(x0, x1) - reach, fminf(y0, y1) - reach,
              fmaxf(x0, x1) + reach, fmaxf(y0, y1) + reach, box);
    for (int y = box[1]; y < box[3]; ++y)
        for (int x = box[0]; x < box[2]; ++x) { /* e: from the nearest point of the line */
            const float px = (float)x + 0.5f - x0, py = (float)y + 0.5f - y0;
            const float t = length2 > 0 ? fminf(1, fmaxf(0, (px * dx + py * dy) / length2)) : 0;
            const float ex = px - t * dx, ey = py - t * dy;
            dti_cover(c, x, y, fminf(full, radius + 0.5f - sqrtf(ex * ex + ey * ey)));
        }
}

/* An upright rectangle, by the exact area of it in each pixel. */
static void dti_mask_rect(dt_chart *c, float x0, float y0, float x1, float y1) {
    int box[4];
    const float left = fminf(x0, x1), right = fmaxf(x0, x1), top = fminf(y0, y1), foot = fmaxf(y0, y1);
    dti_touch(c, left, top, right, foot, box);
    for (int y = box[1]; y < box[3]; ++y)
        for (int x = box[0]; x < box[2]; ++x)
            dti_cover(c, x, y, (fminf((float)x + 1, right) - fmaxf((float)x, left)) *
                               (fminf((float)y + 1, foot) - fmaxf((float)y, top)));
}

/* A regular polygon: n corners at `radius`, the first at `turn` radians clockwise from the right. */
static void dti_mask_polygon(dt_chart *c, float cx, float cy, float radius, int n, float turn) {
    int box[4];
    const float angle = 6.2831853f / (float)n, inner = radius * cosf(angle / 2);
    dti_touch(c, cx - radius - 1, cy - radius - 1, cx + radius + 1, cy + radius + 1, box);
    for (int y = box[1]; y < box[3]; ++y)
        for (int x = box[0]; x < box[2]; ++x) {
            const float px = (float)x + 0.5f - cx, py = (float)y + 0.5f - cy;
            float outside = -radius; /* of the edge that is farthest inward */
            for (int i = 0; i < n; ++i) {
                const float a = turn + angle * ((float)i + 0.5f);
                outside = fmaxf(outside, px * cosf(a) + py * sinf(a) - inner);
            }
            dti_cover(c, x, y, 0.5f - outside);
        }
}

/* A polyline through n points (x,y), broken where one is NaN; dash 0 draws it solid. Dashes run on around
   corners. */
static void dti_mask_path(dt_chart *c, const float *point, size_t n, float radius, float dash) {
    float walked = 0;
    for (size_t i = 1; i < n; ++i) {
        const float *p = &point[2 * i - 2], x0 = p[0], y0 = p[1], dx = p[2] - x0, dy = p[3] - y0;
        const float length = hypotf(dx, dy);
        if (!(length < 1e6f)) { walked = 0; continue; }
        if (dash <= 0) { dti_mask_line(c, x0, y0, p[2], p[3], radius); continue; }
        for (float at = 0, end; at < length; at = end) { /* a dash, then a gap of 0.8 dashes */
            const float phase = fmodf(walked, 1.8f * dash);
            const float left = (phase < dash ? dash : 1.8f * dash) - phase;
            end = fminf(length, at + fmaxf(left, 0.01f));
            const float a = at / length, b = end / length;
            if (phase < dash) dti_mask_line(c, x0 + a * dx, y0 + a * dy, x0 + b * dx, y0 + b * dy, radius);
            walked += end - at;
        }
    }
}

/* Lays a colour through the mask, which is then empty again. */
static void dti_ink(dt_chart *c, uint32_t colour, float opacity) {
    const uint32_t red = colour >> 16, green = colour >> 8 & 255, blue = colour & 255;
    const float rgb[3] = { (float)red / 255, (float)green / 255, (float)blue / 255 };
    for (int y = c->dirty[1]; y < c->dirty[3]; ++y)
        for (int x = c->dirty[0]; x < c->dirty[2]; ++x) {
            const size_t i = (size_t)y * (size_t)c->w + (size_t)x;
            const float a = c->mask[i] * opacity;
            if (c->mask[i] <= 0) continue;
            if (c->marking && c->mask[i] > 0.3f) c->busy[i] = 1;
            for (size_t k = 0; k < 3; ++k) c->rgb[3 * i + k] += a * (rgb[k] - c->rgb[3 * i + k]);
            c->mask[i] = 0;
        }
    c->dirty[0] = c->dirty[1] = INT_MAX;
    c->dirty[2] = c->dirty[3] = 0;
}

/* Disc, square, triangle, diamond, triangle on its tip: shapes differ as well as colours, for print without
   them. A white rim first keeps a mark apart from what it stands on. */
static void dti_marker(dt_chart *c, float x, float y, float r, int index) {
    typedef struct shape { float size, down, turn; int corners; } shape;
    static const shape shapes[DTI_MARKERS] = {
        { 1, 0, 0, 0 }, { 1.25f, 0, -0.7853982f, 4 }, { 1.4f, 0.15f, -1.5707963f, 3 },
        { 1.3f, 0, -1.5707963f, 4 }, { 1.4f, -0.15f, 1.5707963f, 3 },
    };
    const shape *s = &shapes[index % DTI_MARKERS];
    for (int pass = 0; pass < 2; ++pass) {
        const float grown = s->size * (pass ? r : r + 1.3f * c->unit), middle = y + s->down * r;
        if (s->corners) dti_mask_polygon(c, x, middle, grown, s->corners, s->turn);
        else dti_mask_line(c, x, middle, x, middle, grown);
        dti_ink(c, pass ? dti_palette[index % DTI_COLOURS] : DTI_WHITE, 1);
    }
}

/* ==== [E8.3] Text ========================================================

   The font [E7.1] knows glyphs; here they become words, lines and paragraphs, whose width and height are
   known before anything is drawn: that is what the layout [E8.7] asks for first. dti_wrap breaks a text into
   lines of a width, dti_fit makes it smaller until it is no higher than it may be, dti_put_paragraph draws
   it.

   Sizes are cap heights in pixels. A line of text stands in a box from 1.1 sizes above its baseline to 0.4
   below; lines are 1.75 sizes apart. Every text drawn leaves its box in c->texts, so that later labels can
   keep away from it and dt_chart_check can prove that all of them did. */
typedef struct dti_pen {
    float weight;           /* a stroke is weight * size thick */
    uint32_t colour;
    float angle;            /* of the text: counter-clockwise, in radians */
    bool halo;              /* white around the letters, where they must stand on data */
} dti_pen;

static const dti_pen dti_plain = { .weight = 0.1f, .colour = DTI_BLACK };
static const dti_pen dti_quiet = { .weight = 0.1f, .colour = DTI_GREY };

typedef struct dti_paragraph {
    const char *text;
    float size, limit;      /* lines are broken to be at most so wide; how wide and high it then is: */
    float width, height;
    int lines;
} dti_paragraph;

#define DTI_UPRIGHT 1.5707963f  /* the angle of text that reads upward */

/* The rectangle w x h with its upper left corner at (x,y), turned counter-clockwise about that corner. */
static dti_box dti_box_at(float x, float y, float w, float h, float angle) {
    const float dx = cosf(angle), dy = -sinf(angle); /* along the text; down is (-dy, dx) */
    const float ex = x + w * dx, ey = y + w * dy;
    return (dti_box){ { { x, y }, { ex, ey }, { ex - h * dy, ey + h * dx }, { x - h * dy, y + h * dx } } };
}

/* Whether two boxes overlap by more than slack: seen along none of their four directions are they apart. */
static bool dti_boxes_meet(const dti_box *a, const dti_box *b, float slack) {
    for (int k = 0; k < 4; ++k) {
        const float (*edge)[2] = &(k < 2 ? a : b)->corner[k & 1];
        const float nx = edge[1][0] - edge[0][0], ny = edge[1][1] - edge[0][1], length = hypotf(nx, ny);
        if (length <= 0) return false;
        float range[2][2] = { { INFINITY, -INFINITY }, { INFINITY, -INFINITY } };
        for (int j = 0; j < 8; ++j) {
            const float *p = (j < 4 ? a : b)->corner[j % 4], along = (p[0] * nx + p[1] * ny) / length;
            range[j / 4][0] = fminf(range[j / 4][0], along);
            range[j / 4][1] = fmaxf(range[j / 4][1], along);
        }
        if (fminf(range[0][1], range[1][1]) - fmaxf(range[0][0], range[1][0]) <= slack) return false;
    }
    return true;
}

/* Remembers where a text stands, and how it begins, for dt_chart_check. */
static void dti_text_note(dt_chart *c, const dti_box *box, const char *s, size_t bytes) {
    if (c->text_count == c->text_room) {
        const int room = 2 * c->text_room + 128;
        dti_text *grown = dti_alloc((size_t)room * sizeof *grown);
        if (!grown) { dti_chart_fail(c, DT_ENOMEM); return; }
        if (c->texts) memcpy(grown, c->texts, (size_t)c->text_count * sizeof *grown);
        dti_release(c->texts);
        c->texts = grown;
        c->text_room = room;
    }
    dti_text *t = &c->texts[c->text_count++];
    t->box = *box;
    snprintf(t->head, sizeof t->head, "%.*s", (int)dti_min_size(bytes, 200), s);
}

/* One line of text, its baseline starting at (x,y): a white halo first if the pen has one, then the
   letters. */
static void dti_put(dt_chart *c, const char *s, size_t bytes, float x, float y, float size,
                    const dti_pen *pen) {
    const float dx = cosf(pen->angle), dy = -sinf(pen->angle), above = 1.1f * size;
    const float width = dti_text_width(s, bytes) * size, radius = fmaxf(0.45f, 0.5f * pen->weight * size);
    if (width <= 0) return;
    const dti_box box = dti_box_at(x + above * dy, y - above * dx, width, 1.5f * size, pen->angle);
    dti_text_note(c, &box, s, bytes);
    for (int pass = pen->halo ? 0 : 1; pass < 2; ++pass) {
        float at = 0, advance;
        for (const char *p = s; (size_t)(p - s) < bytes; at += advance) {
            const int code = dti_text_next(&p);
            if (code == 0) break;
            dti_segment g[DTI_FONT_SEGMENTS];
            const int n = dti_font_strokes(code, g, &advance);
            for (int i = 0; i < n; ++i) {
                const float x0 = (at + g[i].x0) * size, y0 = g[i].y0 * size;
                const float x1 = (at + g[i].x1) * size, y1 = g[i].y1 * size;
                dti_mask_line(c, x + x0 * dx + y0 * dy, y + x0 * dy - y0 * dx, x + x1 * dx + y1 * dy,
                              y + x1 * dy - y1 * dx, pass ? radius : radius + 2.2f * c->unit);
            }
        }
        dti_ink(c, pass ? pen->colour : DTI_WHITE, pass ? 1 : 0.85f);
    }
}

/* The line at *s, to be at most `width` cap heights wide; its bytes, and *s at the next line. It ends at a
   newline, at the last space before what is too wide, or inside of a word that is too wide alone: *cut. */
static size_t dti_next_line(const char **s, float width, bool *cut) {
    const char *at = *s, *end = NULL;
    *cut = false;
    for (const char *next = at; *at && *at != '\n'; at = next) {
        dti_text_next(&next);
        if (*at == ' ') end = at > *s ? at : NULL;
        else if (at > *s && dti_text_width(*s, (size_t)(next - *s)) > width) { *cut = !end; break; }
    }
    if (!end || !*at || *at == '\n') end = at;
    size_t bytes = (size_t)(end - *s);
    while (bytes && (*s)[bytes - 1] == ' ') --bytes;
    *s = *end == '\n' ? end + 1 : end + strspn(end, " ");
    return bytes;
}

static dti_paragraph dti_wrap(const char *text, float size, float width) {
    dti_paragraph p = { .text = text ? text : "", .size = size, .limit = width };
    bool cut;
    for (const char *s = p.text, *line = s; *s; line = s, ++p.lines) {
        const size_t bytes = dti_next_line(&s, width / size, &cut);
        p.width = fmaxf(p.width, dti_text_width(line, bytes) * size);
    }
    p.height = p.lines ? (1.5f + 1.75f * (float)(p.lines - 1)) * size : 0;
    return p;
}

/* The same, with letters made smaller until it is at most `height` high, down to 5 pixels. */
static dti_paragraph dti_fit(const char *text, float size, float width, float height) {
    dti_paragraph p = dti_wrap(text, size, width);
    while (p.height > height && size > 5) p = dti_wrap(text, size *= 0.95f, width);
    return p;
}

/* Whether a text fits only by being cut inside a word, or in more than three lines. */
static bool dti_breaks_words(const dti_paragraph *p) {
    bool cut = false;
    for (const char *s = p->text; *s && !cut;) dti_next_line(&s, p->limit / p->size, &cut);
    return cut || p->lines > 3;
}

/* Draws a paragraph whose box has its upper left corner at (x,y) and is `width` wide; align 0 left, 0.5
   centre, 1 right. */
static void dti_put_paragraph(dt_chart *c, const dti_paragraph *p, float x, float y, float width, float align,
                              const dti_pen *pen) {
    const float dx = cosf(pen->angle), dy = -sinf(pen->angle);
    float down = 1.1f * p->size;
    bool cut;
    for (const char *s = p->text, *line = s; *s; line = s, down += 1.75f * p->size) {
        const size_t bytes = dti_next_line(&s, p->limit / p->size, &cut);
        const float along = align * (width - dti_text_width(line, bytes) * p->size);
        dti_put(c, line, bytes, x + along * dx - down * dy, y + along * dy + down * dx, p->size, pen);
    }
}

/* ==== [E8.4] Axes ========================================================

   The plain way divides the range of the data by five: ticks at 0.8166, 0.9079, ... , which nobody can read
   between. Here a range grows to round numbers first, and steps are 1, 2, 2.5 or 5 times a power of ten:

       values 0.8166 ... 1.273    a seventh of that is 0.0652, the next round step 0.1    axis 0.8 ... 1.3

   Few whole numbers on the x axis, such as 1, 2, 3, 4, 5 ranks, are themselves the ticks, as nothing was
   measured between. Powers of ten take a decade a tick, or 1, 2 and 5 of each while there are few; powers of
   two likewise. */

static double dti_axis_unit(const dti_chart_axis *a, double v) {
    return a->scale == DT_LINEAR ? v : log10(v);
}

static bool dti_axis_has(const dti_chart_axis *a, double v) {
    return dti_drawable(v) && (a->scale == DT_LINEAR || v > 1e-300);
}

/* Where a value lies on the canvas; NaN for one the axis cannot show. */
static float dti_axis_at(const dti_chart_axis *a, double v) {
    if (!dti_axis_has(a, v)) return NAN;
    const double lo = dti_axis_unit(a, a->lo), hi = dti_axis_unit(a, a->hi);
    return a->from + (a->to - a->from) * (float)fmin(20, fmax(-20, (dti_axis_unit(a, v) - lo) / (hi - lo)));
}

/* The value at a fraction of the axis. */
static double dti_axis_value(const dti_chart_axis *a, double t) {
    const double lo = dti_axis_unit(a, a->lo), v = lo + t * (dti_axis_unit(a, a->hi) - lo);
    return a->scale == DT_LINEAR ? v : pow(10, v);
}

/* Widens the axis to a value, and remembers it while there are few. */
static void dti_axis_take(dti_chart_axis *a, double v) {
    if (!dti_axis_has(a, v)) return;
    a->lo = fmin(a->lo, v);
    a->hi = fmax(a->hi, v);
    int at = 0;
    while (at < a->distinct && at < DTI_SEEN && a->seen[at] < v) ++at;
    if (a->distinct > DTI_SEEN || (at < a->distinct && a->seen[at] <= v)) return;
    if (a->distinct == DTI_SEEN || floor(v) < v) { a->distinct = DTI_SEEN + 1; return; }
    memmove(&a->seen[at + 1], &a->seen[at], (size_t)(a->distinct++ - at) * sizeof *a->seen);
    a->seen[at] = v;
}

/* The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `least`. */
static double dti_round_step(double least) {
    static const double round[] = { 1, 2, 2.5, 5, 10 };
    const double ten = pow(10, floor(log10(least)));
    int k = 0;
    while (k < 4 && least / ten > round[k]) ++k;
    return ten * round[k];
}

/* Makes the range sound: not empty, not a point, 0 included where the values come near enough to it. */
static void dti_axis_range(dti_chart_axis *a, double given_lo, double given_hi, bool zero) {
    const bool log = a->scale != DT_LINEAR;
    if (given_lo < given_hi && dti_axis_has(a, given_lo) && dti_axis_has(a, given_hi)) {
        a->lo = given_lo, a->hi = given_hi; /* nothing given is 0 and 0, which is no range */
        return;
    }
    if (!(a->lo <= a->hi)) a->lo = log ? 1 : 0, a->hi = log ? 10 : 1;
    if (log) {
        if (!(a->hi > 1.5 * a->lo)) a->lo /= 2, a->hi *= 2;
        return;
    }
    if (zero && a->lo > 0 && a->lo < 0.5 * a->hi) a->lo = 0;
    if (a->hi - a->lo > fmax(1e-9 * fabs(a->hi), 1e-300)) return;
    const double d = fabs(a->hi) > 1e-299 ? 0.1 * fabs(a->hi) : 1;
    a->lo -= d, a->hi += d;
}

/* Moves the ends outward: to round ticks (linear, `round`), else by a share of the length. */
static void dti_axis_widen(dti_chart_axis *a, bool round, double share) {
    if (a->scale == DT_LINEAR && round) {
        const double step = a->step = dti_round_step((a->hi - a->lo) / 7);
        a->lo = step * floor(a->lo / step + 1e-9);
        a->hi = step * ceil(a->hi / step - 1e-9);
    } else { /* within the doubles: a share of 300 decades may lie beyond them */
        const double lo = dti_axis_value(a, -share), hi = dti_axis_value(a, 1 + share);
        a->lo = a->scale == DT_LINEAR ? lo : fmax(lo, 1e-300);
        a->hi = a->scale == DT_LINEAR ? hi : fmin(hi, 1e300);
    }
}

static void dti_axis_tick(dti_chart_axis *a, double v) {
    const double slack = 1e-9 * (a->scale == DT_LINEAR ? a->hi - a->lo : fabs(v)); /* logs have no one size */
    const bool in = dti_axis_has(a, v) && v >= a->lo - slack && v <= a->hi + slack;
    if (in && a->ticks < DTI_TICKS) a->tick[a->ticks++] = v;
}

static void dti_log_ticks(dti_chart_axis *a) {
    static const double part[2][3] = { { 1, 2, 5 }, { 1, 0, 0 } }; /* 0 is no tick */
    const bool two = a->scale == DT_LOG2;
    const double lo = two ? log2(a->lo) : log10(a->lo), hi = two ? log2(a->hi) : log10(a->hi);
    const double every = fmax(1, two ? ceil((hi - ceil(lo - 1e-9)) / 14) : ceil((hi - lo) / 12));
    for (double k = two ? ceil(lo - 1e-9) : floor(lo); k <= hi + 1e-9 && a->ticks < DTI_TICKS; k += every)
        for (int i = 0; i < 3; ++i) dti_axis_tick(a, part[two || hi - lo >= 2.5][i] * pow(two ? 2 : 10, k));
}

/* Those given; else powers on a log axis; else, or where these are fewer than two, round numbers. */
static void dti_axis_ticks(dti_chart_axis *a, const double *given, size_t n) {
    const double step = a->step;
    a->ticks = 0;
    a->step = 0;
    for (size_t i = 0; given && i < n; ++i) dti_axis_tick(a, given[i]);
    if (a->ticks) return;
    if (a->scale != DT_LINEAR) dti_log_ticks(a);
    if (a->ticks > 1) return;
    a->ticks = 0;
    a->step = step > 0 ? step : dti_round_step((a->hi - a->lo) / 8.5);
    const double first = ceil(a->lo / a->step - 1e-9), end = a->hi + 1e-9 * a->step;
    for (int k = 0; k < DTI_TICKS && (first + k) * a->step <= end; ++k)
        dti_axis_tick(a, (first + k) * a->step);
}

/* Appends a power: 2.5 becomes 2.5×10⁻⁷, and 1 becomes 10⁻⁷. */
static void dti_append_power(char out[DTI_NUMBER], int base, int exponent) {
    static const char *const raised[] = { "⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹" };
    char digits[16];
    const size_t n = strlen(out);
    const bool one = strcmp(out, "1") == 0 || strcmp(out, "-1") == 0;
    snprintf(one ? out + n - 1 : out + n, 8, one ? "%d" : "×%d", base);
    snprintf(digits, sizeof digits, "%d", exponent);
    for (const char *d = digits; *d; ++d) strcat(out, *d == '-' ? "⁻" : raised[*d - '0']);
}

/* v = m * 10^exponent with 1 <= |m| < 10 as it is rounded to so many digits. v is not 0. */
static int dti_exponent(double v, int digits) {
    char text[DTI_NUMBER];
    dti_print(text, sizeof text, "%.*e", digits - 1, v);
    return (int)strtol(strchr(text, 'e') + 1, NULL, 10);
}

static double dti_scaled(double v, int exponent) { /* v / 10^exponent; in two steps, as 10^324 is no double */
    const int half = exponent / 2;
    return v / pow(10, half) / pow(10, exponent - half);
}

/* m×10^e, m with so many digits at most. */
static void dti_power_text(double v, int e, int digits, char out[DTI_NUMBER]) {
    dti_print(out, DTI_NUMBER, "%.*g", digits, dti_scaled(v, e));
    dti_append_power(out, 10, e);
}

/* A number by itself, to about so many digits: with a power of ten from a million on and below a
   thousandth. */
static void dti_number_text(double v, int digits, char out[DTI_NUMBER]) {
    const int e = v != 0 && isfinite(v) ? dti_exponent(v, digits) : 0;
    if (e < -3 || e >= 6) dti_power_text(v, e, digits, out);
    else dti_print(out, DTI_NUMBER, "%.*g", e < digits ? digits : e + 1, v);
}

DT_API void dt_number_text(double value, int digits, char *text, size_t size) {
    char out[DTI_NUMBER];
    DTI_NEED(text || size == 0, "text", );
    dti_number_text(value, (int)fmin(6, fmax(1, digits)), out);
    dti_print(text, size, "%s", out);
}

/* The decimals that tell multiples of a step apart. */
static int dti_decimals(double step) {
    int decimals = 0;
    for (; decimals < 12 && fabs(step - floor(step + 0.5)) > 1e-6 * step; step *= 10) ++decimals;
    return decimals;
}

/* A plain number on an axis whose ticks go from `least` (but 0) to `most`. If one of them needs a power of
   ten, all have one: 10⁻⁵ beside 10⁻³, not beside 0.001. Round ticks, `step` apart, share the power,
   and their decimals. */
static void dti_plain_text(const dti_chart_axis *a, double v, double step, double most, double least,
                           char out[DTI_NUMBER]) {
    const bool large = most >= 999999.5, powers = large || least < 0.0009999995;
    int two;
    if (step > 0) { /* 0.5×10⁶, 1.0×10⁶ */
        const int e = most > 0 && (large || most < 0.0009999995) ? dti_exponent(most, 9) : 0;
        const int decimals = v != 0 || e == 0 ? dti_decimals(dti_scaled(step, e)) : 0;
        dti_print(out, DTI_NUMBER, "%.*f", decimals, dti_scaled(v, e));
        if (v != 0 && e != 0) dti_append_power(out, 10, e);
    } else if (a->scale == DT_LOG2 && powers && !(fabs(frexp(v, &two)) > 0.5)) { /* 2²⁰ */
        strcpy(out, "1");
        dti_append_power(out, 2, two - 1);
    } else if (powers && v != 0 && !(v >= 0.9999995 && v < 99.99995)) {
        dti_power_text(v, dti_exponent(v, 4), 4, out);
    } else {
        dti_number_text(v, 6, out);
    }
    const size_t digits = strspn(out, "0123456789"), n = strlen(out);
    if (digits > (most >= 10000 ? 3 : 4) && n < 24) { /* 60000 -> 60,000 */
        memmove(out + digits - 2, out + digits - 3, n - digits + 4);
        out[digits - 3] = ',';
    }
}

/* A number with a unit: 64 KiB, 10 µs. Beyond the largest and the smallest unit, the number alone with its
   power. */
static void dti_unit_text(dt_tick_format format, double v, int digits, char out[DTI_NUMBER]) {
    typedef struct unit { double base; int own, most; const char *name[9]; } unit;
    static const unit units[] = {
        [DT_TICKS_SI]      = { 1000, 4, 8, { " p", " n", " µ", " m", "", " k", " M", " G", " T" } },
        [DT_TICKS_BYTES]   = { 1024, 0, 4, { " B", " KiB", " MiB", " GiB", " TiB" } },
        [DT_TICKS_SECONDS] = { 1000, 4, 4, { " ps", " ns", " µs", " ms", " s" } },
    };
    const unit *u = &units[format];
    int k = u->own;
    double scaled = v;
    for (; fabs(scaled) >= 0.99995 * u->base && k < u->most; ++k) scaled /= u->base;
    for (; scaled != 0 && fabs(scaled) < 0.99995 && k > 0; --k) scaled *= u->base;
    if (scaled != 0 && (fabs(scaled) < 0.99995 || fabs(scaled) >= 0.99995 * u->base)) scaled = v, k = u->own;
    dti_number_text(scaled, digits, out);
    strcat(out, u->name[k]);
}

/* The number as the axis writes it. */
static void dti_tick_text(const dti_chart_axis *a, double v, char out[DTI_NUMBER]) {
    const double nothing = 1e-9 * fabs(a->step);
    if (fabs(v) < nothing) v = 0;
    if (a->format != DT_TICKS_PLAIN && a->format != DT_TICKS_PERCENT) {
        const int more = v != 0 && a->step > 0 ? dti_exponent(v, 4) - dti_exponent(a->step, 4) : 0;
        const int digits = (int)fmin(12, fmax(4, 3 + more)); /* far from 0, so many tell ticks apart */
        dti_unit_text(a->format, v, digits, out);
        return;
    }
    const double hundred = a->format == DT_TICKS_PERCENT ? 100 : 1;
    double most = fabs(v), least = v != 0 ? fabs(v) : INFINITY;
    for (int i = 0; i < a->ticks; ++i) {
        const double tick = fabs(a->tick[i]);
        if (!(tick > nothing)) continue;
        most = fmax(most, tick);
        least = fmin(least, tick);
    }
    dti_plain_text(a, hundred * v, hundred * a->step, hundred * most, hundred * least, out);
    if (hundred > 1) strcat(out, "%");
}

/* A line across the plot at a place of an axis; on the x axis it is upright, and reaches below the plot. */
static void dti_rule(dt_chart *c, const dti_chart_axis *a, float at, float below) {
    const float *p = c->plot, line = floorf(at) + 0.5f, hair = 0.5f * fmaxf(1, c->unit);
    if (a == &c->x) dti_mask_line(c, line, p[1], line, p[3] + below, hair);
    else dti_mask_line(c, p[0], line, p[2], line, hair);
}

/* Fainter lines at 2..9 times the powers of ten, by which one sees that an axis is logarithmic. */
static void dti_draw_minor(dt_chart *c, const dti_chart_axis *a) {
    if (a->scale != DT_LOG10 || a->hi / a->lo > 1e7) return;
    for (double ten = pow(10, floor(log10(a->lo))); ten < a->hi; ten *= 10)
        for (int m = 2; m <= 9; ++m)
            if (m * ten >= a->lo && m * ten <= a->hi) dti_rule(c, a, dti_axis_at(a, m * ten), 0);
    dti_ink(c, 0xf3f4f5, 1);
}

/* Grid and numbers of an axis, in the order in which they lie on it. Where there is no room for a number
   between the one before (taken) and its own end (from), the grid line stays alone. */
static void dti_draw_axis(dt_chart *c, const dti_chart_axis *a) {
    const bool x = a == &c->x;
    const float u = c->unit, size = c->small, *p = c->plot;
    char text[DTI_NUMBER];
    float taken = -INFINITY;
    for (int i = 0; i < a->ticks; ++i) {
        const float at = dti_axis_at(a, a->tick[i]), line = floorf(at) + 0.5f;
        dti_rule(c, a, at, 5 * u);
        dti_ink(c, DTI_PALE, 1);
        dti_tick_text(a, a->tick[i], text);
        const float width = dti_text_width(text, SIZE_MAX) * size;
        const float centred = fminf(fmaxf(at - width / 2, 4), (float)c->w - 4 - width);
        const float left = x ? centred : p[0] - 10 * u - width;
        const float foot = x ? p[3] + 8 * u + 1.1f * size : line + 0.5f * size;
        const float from = x ? left : -(line + 0.75f * size);
        if (from < taken) continue;
        taken = x ? left + width + 0.6f * size : -(line - 0.95f * size);
        dti_put(c, text, SIZE_MAX, left, foot, size, &dti_quiet);
    }
}

/* ==== [E8.5] Free places for labels ======================================

   The plain way writes a label beside its point, over whatever is there. Here a label tries a few dozen
   places, from the one liked best on, and takes the cheapest:

       cost of a place  =  1 for each pixel of data below it
                        +  a million at the plot's edge, ten million on another text
                        +  a taste: a few for each step away from where a reader looks first

   which is why ink on data marks its pixels as busy, and why every text leaves its box. */

/* A label at a place in the plot: of the two, `best` is the cheaper one so far. */
typedef struct dti_spot {
    const dti_paragraph *text;
    float x, y, angle;      /* of its upper left corner */
    float line[4];          /* a hair line between it and what it names; all 0: none */
    float cost;
} dti_spot;

/* What a label in this box would spoil. */
static float dti_box_cost(const dt_chart *c, const dti_box *box) {
    const float (*at)[2] = box->corner, *plot = c->plot;
    float cost = 0, lo[2] = { INFINITY, INFINITY }, hi[2] = { -INFINITY, -INFINITY };
    for (int i = 0; i < c->text_count; ++i)
        if (dti_boxes_meet(box, &c->texts[i].box, -3 * c->unit)) cost += 1e7f;
    for (int i = 0; i < 8; ++i) {
        lo[i % 2] = fminf(lo[i % 2], at[i / 2][i % 2]);
        hi[i % 2] = fmaxf(hi[i % 2], at[i / 2][i % 2]);
    }
    if (lo[0] < plot[0] || lo[1] < plot[1] || hi[0] > plot[2] || hi[1] > plot[3]) return cost + 1e6f;
    const float ux = at[1][0] - at[0][0], uy = at[1][1] - at[0][1], width2 = ux * ux + uy * uy;
    const float vx = at[3][0] - at[0][0], vy = at[3][1] - at[0][1], height2 = vx * vx + vy * vy;
    for (int y = (int)lo[1]; y < (int)hi[1]; ++y)
        for (int x = (int)lo[0]; x < (int)hi[0]; ++x) { /* (u,v): the pixel in the box, 0 to 1 each way */
            const float px = (float)x + 0.5f - at[0][0], py = (float)y + 0.5f - at[0][1];
            const float u = (px * ux + py * uy) / width2, v = (px * vx + py * vy) / height2;
            const bool in = u >= 0 && u <= 1 && v >= 0 && v <= 1;
            if (in) cost += (float)c->busy[(size_t)y * (size_t)c->w + (size_t)x];
        }
    return cost;
}

/* Takes the new spot, whose cost so far is taste alone, if it is cheaper than the best one. */
static void dti_try(const dt_chart *c, dti_spot *best, dti_spot spot) {
    if (spot.cost >= best->cost) return;
    const dti_box box = dti_box_at(spot.x, spot.y, spot.text->width, spot.text->height, spot.angle);
    spot.cost += dti_box_cost(c, &box);
    if (spot.cost < best->cost) *best = spot;
}

/* Writes the label; with a halo if it lies on more than so many pixels of data. */
static void dti_put_spot(dt_chart *c, const dti_spot *best, dti_pen pen, float crowded) {
    const float *line = best->line;
    if (!best->text || !(best->cost < INFINITY)) return;
    if (hypotf(line[2] - line[0], line[3] - line[1]) > 0) {
        dti_mask_line(c, line[0], line[1], line[2], line[3], 0.45f * c->unit);
        dti_ink(c, pen.colour, 0.7f);
    }
    pen.angle = best->angle;
    pen.halo = best->cost >= crowded;
    dti_put_paragraph(c, best->text, best->x, best->y, best->text->width, 0, &pen);
}

/* ==== [E8.6] Marks =======================================================

   Each subsection is one kind of thing to show, whole: how it is told, its place on the canvas, how it is
   drawn, what it says in the CSV; then the class dti_mark that the chart knows of it. A number that is
   multiplied by c->unit is in pixels of a canvas of 1200 x 750; by a size, in heights of a capital; alone, in
   a cost, it is a taste [E8.5]. First, what series of points have in common. */

static float dti_at_x(const dt_chart *c, double x) { return dti_axis_at(&c->x, x); }
static float dti_at_y(const dt_chart *c, double y) { return dti_axis_at(&c->y, y); }

static double dti_foot(const dti_item *item, size_t i) { return item->foot ? item->foot[i] : 0; }
static double dti_top(const dti_item *item, size_t i) { return dti_foot(item, i) + item->y[i]; }

/* A point on the canvas; false if it cannot be drawn. */
static bool dti_point_at(const dt_chart *c, const dti_item *item, size_t i, float *x, float *y) {
    *x = dti_at_x(c, item->x[i]);
    *y = dti_at_y(c, dti_top(item, i));
    return *x < INFINITY && *y < INFINITY;
}

/* The numbers of a line or of bars; lo and hi are given both or not at all. */
static void dti_item_points(dt_chart *c, dti_item *item, size_t n, const double *x, const double *y,
                            const double *lo, const double *hi) {
    const bool errors = lo && hi;
    item->n = n;
    item->x = dti_keep_numbers(c, x, n);
    item->y = dti_keep_numbers(c, y, n);
    if (errors) item->lo = dti_keep_numbers(c, lo, n), item->hi = dti_keep_numbers(c, hi, n);
}

/* A point counts where both of its numbers can be drawn; the number above a bar needs room as well. */
static void dti_series_range(dt_chart *c, const dti_item *item, dti_ask ask) {
    const double air = item->values ? 1.06 : 1;
    for (size_t i = 0; i < item->n && ask == DTI_ASK_POINTS; ++i) {
        const double top = dti_top(item, i);
        if (!dti_axis_has(&c->x, item->x[i]) || !dti_axis_has(&c->y, top)) continue;
        dti_axis_take(&c->x, item->x[i] + item->left);
        dti_axis_take(&c->x, item->x[i] + item->right);
        dti_axis_take(&c->y, air * top);
        if (item->lo) dti_axis_take(&c->y, item->lo[i]), dti_axis_take(&c->y, air * item->hi[i]);
    }
}

/* Error bars: a line from lo to hi, and a cap at each end. */
static void dti_draw_errors(dt_chart *c, const dti_item *item) {
    const float cap = 4.5f * c->unit, r = 0.8f * c->unit;
    float point, y;
    for (size_t i = 0; i < item->n && item->lo; ++i) {
        const float a = dti_at_y(c, item->lo[i]), b = dti_at_y(c, item->hi[i]);
        if (!dti_point_at(c, item, i, &point, &y) || !(a < INFINITY && b < INFINITY)) continue;
        const float x = dti_at_x(c, item->x[i] + 0.5 * (item->left + item->right));
        dti_mask_line(c, x, a, x, b, r);
        dti_mask_line(c, x - cap, a, x + cap, a, r);
        dti_mask_line(c, x - cap, b, x + cap, b, r);
    }
    dti_ink(c, item->mark->stands ? DTI_BLACK : dti_colour_of(item), 1);
}

static bool dti_series_row(const dt_chart *c, const dti_item *item, size_t i, dti_row *row) {
    (void)c;
    if (i >= item->n) return false;
    *row = (dti_row){ item->label, NULL, { item->x[i], item->y[i], NAN, NAN } };
    if (item->names) row->name = item->names[i];
    if (item->lo) row->v[2] = item->lo[i], row->v[3] = item->hi[i];
    return true;
}

/* ---- Lines ---- */

static bool dti_has_markers(const dti_item *item) {
    return item->style == DT_LINE_POINTS || (item->style == DT_LINE_AUTO && item->n <= 40);
}

static void dti_draw_line(dt_chart *c, const dti_item *item) {
    const float width = (item->n > 200 ? 0.8f : item->style == DT_LINE_DASHED ? 1.0f : 1.4f) * c->unit;
    float *point = item->style == DT_LINE_POINTS ? NULL : dti_alloc_many(item->n, 2 * sizeof *point);
    if (item->style == DT_LINE_POINTS) return;
    if (!point) { dti_chart_fail(c, DT_ENOMEM); return; }
    for (size_t i = 0; i < item->n; ++i) dti_point_at(c, item, i, &point[2 * i], &point[2 * i + 1]);
    dti_mask_path(c, point, item->n, width, item->style == DT_LINE_DASHED ? 7 * c->unit : 0);
    dti_release(point);
    dti_ink(c, dti_colour_of(item), item->opacity);
}

static void dti_draw_markers(dt_chart *c, const dti_item *item) {
    const float radius = (item->n > 200 ? 2.5f : 4.5f) * c->unit;
    float x, y;
    for (size_t i = 0; i < item->n && dti_has_markers(item); ++i)
        if (dti_point_at(c, item, i, &x, &y)) dti_marker(c, x, y, radius, item->index);
}

/* A piece of the line with its marker. */
static void dti_line_sample(dt_chart *c, const dti_item *item, float x, float y, float size) {
    const float wide = 2.4f * size, dash = item->style == DT_LINE_DASHED ? 7 * c->unit : 0;
    if (item->style != DT_LINE_POINTS)
        dti_mask_path(c, (float[]){ x, y, x + wide, y }, 2, 1.2f * c->unit, dash);
    dti_ink(c, dti_colour_of(item), 1);
    if (dti_has_markers(item)) dti_marker(c, x + wide / 2, y, 4.5f * c->unit, item->index);
}

static const dti_mark dti_line_mark = {
    .series = true, .open = true, .range = dti_series_range, .end = dti_point_at, .row = dti_series_row,
    .draw = { [DTI_OVER] = dti_draw_line, [DTI_ERRORS] = dti_draw_errors, [DTI_POINTS] = dti_draw_markers },
    .sample = 3.24f, .draw_sample = dti_line_sample
};

DT_API void dt_chart_line(dt_chart *c, const dt_series *s) {
    if (!dti_told(c, __func__, s, s && s->style <= DT_LINE_POINTS && s->n <= DTI_MOST_DRAWN)) return;
    const bool own = s->colour >= 1 && s->colour <= DTI_COLOURS;
    dti_item *item = dti_chart_add(c, &dti_line_mark, s->label, own ? s->colour - 1 : c->colours++);
    if (!item) return;
    item->style = s->style;
    dti_item_points(c, item, s->x && s->y ? s->n : 0, s->x, s->y, s->y_min, s->y_max);
}

/* ---- Bars, and histograms, which are bars side by side ---- */

/* A bar on the canvas, x0 y0 x1 y1 from its foot to its top; on a log axis all stand on the lower end. */
static bool dti_bar_at(const dt_chart *c, const dti_item *item, size_t i, float bar[4]) {
    const double foot = dti_foot(item, i);
    bar[0] = dti_at_x(c, item->x[i] + item->left);
    bar[1] = dti_at_y(c, c->y.scale == DT_LINEAR ? foot : fmax(foot, c->y.lo));
    bar[2] = dti_at_x(c, item->x[i] + item->right);
    bar[3] = dti_at_y(c, dti_top(item, i));
    return bar[0] < bar[2] && bar[3] < INFINITY;
}

/* The middle of a bar's right edge, where in a stack its label belongs. */
static bool dti_bar_end(const dt_chart *c, const dti_item *item, size_t i, float *x, float *y) {
    float bar[4];
    if (!dti_bar_at(c, item, i, bar)) return false;
    *x = bar[2];
    *y = 0.5f * (bar[1] + bar[3]);
    return true;
}

/* Those of a stack are a white seam apart. */
static void dti_draw_bars(dt_chart *c, const dti_item *item) {
    float bar[4];
    for (size_t i = 0; i < item->n; ++i) {
        if (!dti_bar_at(c, item, i, bar)) continue;
        const float seam = dti_foot(item, i) > 0 && bar[1] - bar[3] > 3 ? c->unit : 0;
        dti_mask_rect(c, bar[0], bar[1] - seam, bar[2], bar[3]);
    }
    dti_ink(c, dti_colour_of(item), item->opacity);
}

/* The heights of bars, above them and their error bars; upright where bars are narrower than numbers. */
static void dti_label_bars(dt_chart *c, const dti_item *item) {
    static const dti_pen upright = { .weight = 0.1f, .colour = DTI_BLACK, .angle = DTI_UPRIGHT };
    const float least = fminf(7, c->small);
    char text[DTI_NUMBER];
    float bar[4];
    for (size_t i = 0; i < item->n && item->values; ++i) {
        const double height = item->foot && !dti_drawable(item->y[i]) ? item->foot[i] : dti_top(item, i);
        const float top = dti_at_y(c, item->hi ? fmax(height, item->hi[i]) : height);
        dti_bar_at(c, item, i, bar);
        if (!(top < INFINITY)) continue;
        dti_number_text(height, 3, text);
        const float width = dti_text_width(text, SIZE_MAX), mid = 0.5f * (bar[0] + bar[2]);
        const float fits = fminf(c->small, (item->stacked ? 1.9f : 1.2f) * (bar[2] - bar[0]) / width);
        if (fits < least) dti_put(c, text, SIZE_MAX, mid + 0.5f * least, top - 6 * c->unit, least, &upright);
        else dti_put(c, text, SIZE_MAX, mid - width * fits / 2, top - 0.55f * fits, fits, &dti_plain);
    }
}

static void dti_bar_sample(dt_chart *c, const dti_item *item, float x, float y, float size) {
    dti_mask_rect(c, x, y - 0.55f * size, x + 1.1f * size, y + 0.55f * size);
    dti_ink(c, dti_colour_of(item), 1);
}

static const dti_mark dti_bar_mark = {
    .series = true, .stands = true, .range = dti_series_range, .end = dti_bar_end, .row = dti_series_row,
    .draw = { [DTI_BODY] = dti_draw_bars, [DTI_ERRORS] = dti_draw_errors, [DTI_LABELS] = dti_label_bars },
    .sample = 1.8f, .draw_sample = dti_bar_sample
};

/* Each series is an item of bars, around x = 0, 1, ... for the groups, which take 0.74 of the room between
   them, a stack four fifths of that. */
DT_API void dt_chart_bars(dt_chart *c, const dt_bars *b) {
    if (!dti_told(c, __func__, b, b && b->series <= DTI_MOST_BARS && b->groups <= DTI_MOST_BARS)) return;
    const size_t n = b->y ? b->groups : 0;
    const double share = b->stacked ? 0.592 : 0.74 / (double)b->series;
    const double gap = b->series > 1 && !b->stacked ? 0.05 * share : 0;
    const bool errors = b->y_min && b->y_max && !b->stacked;
    const char *const *names = dti_keep_texts(c, b->names, n);
    double *x = dti_keep_numbers(c, NULL, n), *sum = b->stacked ? dti_keep_numbers(c, NULL, n) : NULL;
    for (size_t g = 0; x && g < n; ++g) x[g] = (double)g;
    for (size_t s = 0; s < b->series && n; ++s) {
        dti_item *item = dti_chart_add(c, &dti_bar_mark, b->labels ? b->labels[s] : NULL, c->colours++);
        if (!item) return;
        const double *y = b->y + s * n;
        item->left = gap + (b->stacked ? -0.5 * share : (double)s * share - 0.37);
        item->right = item->left + share - 2 * gap;
        item->names = names;
        item->stacked = b->stacked;
        item->values = b->values && (!b->stacked || s + 1 == b->series);
        dti_item_points(c, item, n, x, y, errors ? b->y_min + s * n : NULL, errors ? b->y_max + s * n : NULL);
        if (sum) item->foot = dti_keep_numbers(c, sum, n);
        for (size_t g = 0; sum && g < n; ++g) sum[g] += dti_drawable(y[g]) ? y[g] : 0;
    }
    if (!c->groups) c->groups = n, c->names = names;
}

/* One item of bars, a hundredth of a bin's width apart on each side. A value in no bin is counted as lost. */
DT_API void dt_chart_histogram(dt_chart *c, const dt_histogram *h) {
    if (!dti_told(c, __func__, h, h && (h->values || h->n == 0) && h->bins <= DTI_MOST_BARS)) return;
    dti_item *item = dti_chart_add(c, &dti_bar_mark, h->label, c->colours++);
    double lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < h->n; ++i)
        if (dti_drawable(h->values[i])) { lo = fmin(lo, h->values[i]); hi = fmax(hi, h->values[i]); }
    if (!(lo <= hi)) lo = 0, hi = 1;
    if (!(hi - lo > 1e-9 * fabs(hi))) lo -= 0.5, hi += 0.5;
    const size_t bins = h->bins ? h->bins : (size_t)fmin(60, fmax(5, sqrt((double)h->n)));
    const double step = (hi - lo) / (double)bins;
    double *middle = dti_keep_numbers(c, NULL, bins), *count = dti_keep_numbers(c, NULL, bins);
    if (!item || !middle || !count) return;
    for (size_t i = 0; i < bins; ++i) middle[i] = lo + step * ((double)i + 0.5);
    for (size_t i = 0; i < h->n; ++i) {
        const double v = h->values[i];
        if (dti_drawable(v)) count[(size_t)fmin((double)(bins - 1), (v - lo) / step)] += 1;
        else if (!isnan(v)) ++item->lost;
    }
    item->n = bins;
    item->x = middle;
    item->y = count;
    item->left = -0.49 * step;
    item->right = 0.49 * step;
    item->opacity = 0.85f; /* another one may stand behind it */
}

/* ---- References ---- */

/* The two x between which a reference is drawn. */
static void dti_reference_ends(const dt_chart *c, const dti_item *r, double *from, double *to) {
    const bool whole = !(r->from != 0 || r->to != 0);
    *from = whole ? c->x.lo : r->from;
    *to = whole ? c->x.hi : r->to;
}

/* Its highest point belongs to the chart; and a ceiling at the top needs air for its label. */
static void dti_reference_range(dt_chart *c, const dti_item *r, dti_ask ask) {
    dti_chart_axis *y = &c->y;
    double from, to;
    dti_reference_ends(c, r, &from, &to);
    if (ask == DTI_ASK_SPAN) dti_axis_take(y, r->slope * (r->slope < 0 ? from : to) + r->offset);
    const bool air = ask == DTI_ASK_AIR && !(fabs(r->slope) > 0) && y->step > 0;
    if (air && r->offset > y->hi - 0.08 * (y->hi - y->lo)) y->hi += y->step;
}

enum { DTI_REFERENCE_POINTS = 257 }; /* on a logarithmic axis a straight line is bent */

/* The line in pixels; points outside of its own range, or off the plot, are NaN. */
static void dti_reference_path(const dt_chart *c, const dti_item *r, float point[2 * DTI_REFERENCE_POINTS]) {
    double from, to;
    dti_reference_ends(c, r, &from, &to);
    dti_chart_axis part = c->x;
    part.lo = fmax(from, c->x.lo), part.hi = fmin(to, c->x.hi);
    for (int i = 0; i < DTI_REFERENCE_POINTS; ++i) {
        const double x = dti_axis_value(&part, (double)i / (DTI_REFERENCE_POINTS - 1));
        const float py = dti_at_y(c, r->slope * x + r->offset);
        const bool in = part.hi > part.lo && py >= c->plot[1] - 1 && py <= c->plot[3] + 1;
        point[2 * i] = dti_at_x(c, x);
        point[2 * i + 1] = in ? py : NAN;
    }
}

static void dti_draw_reference(dt_chart *c, const dti_item *r) {
    float point[2 * DTI_REFERENCE_POINTS];
    dti_reference_path(c, r, point);
    dti_mask_path(c, point, DTI_REFERENCE_POINTS, 0.9f * c->unit, 8 * c->unit);
    dti_ink(c, DTI_GREY, 1);
}

/* Its label, above or below any of its points; the right end is liked best. Along the line, if that is long
   enough from there on; level, ending at the line; or level and away from it, with a hair line between. */
static void dti_label_reference(dt_chart *c, const dti_item *r) {
    enum { ALONG, LEVEL, NEAR, FAR, WAYS };
    static const float distance[WAYS] = { 0, 0, 35, 70 };
    const float *plot = c->plot, size = c->small;
    float point[2 * DTI_REFERENCE_POINTS], *last = point + 2 * DTI_REFERENCE_POINTS;
    dti_spot best = { .cost = INFINITY };
    if (!r->label) return;
    dti_reference_path(c, r, point);
    const dti_paragraph q = dti_fit(r->label, size, 0.9f * (plot[2] - plot[0]), 0.3f * (plot[3] - plot[1]));
    for (int k = 0; k < 2 * WAYS * DTI_REFERENCE_POINTS; ++k) {
        const int i = k / (2 * WAYS), way = k / 2 % WAYS;
        const bool below = k & 1, along = way == ALONG;
        const float *p = &point[2 * i], *end = p, away = distance[way] * c->unit;
        while (along && end < last && !(hypotf(end[0] - p[0], end[1] - p[1]) >= q.width)) end += 2;
        if (end == last || !(p[1] < INFINITY) || !(end[1] < INFINITY)) continue;
        const float angle = along ? -atan2f(end[1] - p[1], end[0] - p[0]) : 0, hair = p[0] - size;
        const float off = below ? 0.25f * size + away : -q.height - 0.15f * size - away;
        const float right = 0.05f * (float)(DTI_REFERENCE_POINTS - i);
        dti_try(c, &best, (dti_spot){ .text = &q, .angle = angle,
            .x = p[0] + off * sinf(angle) - (along ? 0 : q.width), .y = p[1] + off * cosf(angle),
            .line = { hair, p[1], hair, p[1] + (below ? away : -away) },
            .cost = right + (below ? 8 : 0) + (along ? 0 : 100) + 3 * away });
    }
    dti_put_spot(c, &best, dti_quiet, 400);
}

/* Its two ends. */
static bool dti_reference_row(const dt_chart *c, const dti_item *r, size_t i, dti_row *row) {
    double end[2];
    if (i >= 2) return false;
    dti_reference_ends(c, r, &end[0], &end[1]);
    *row = (dti_row){ r->label, NULL, { end[i], r->slope * end[i] + r->offset, NAN, NAN } };
    return true;
}

static const dti_mark dti_reference_mark = {
    .range = dti_reference_range, .row = dti_reference_row,
    .draw = { [DTI_BODY] = dti_draw_reference, [DTI_LABELS] = dti_label_reference }
};

DT_API void dt_chart_reference(dt_chart *c, const dt_reference *r) {
    if (!dti_told(c, __func__, r, r != NULL)) return;
    dti_item *item = dti_chart_add(c, &dti_reference_mark, r->label, 0);
    if (item) item->slope = r->slope, item->offset = r->offset, item->from = r->from, item->to = r->to;
}

/* ---- Shades ---- */

/* The x at which a shade begins and ends on the canvas; false if none of it is in the plot. */
static bool dti_shade_ends(const dt_chart *c, const dti_item *s, float *from, float *to) {
    const float *p = c->plot;
    *from = s->from < c->x.lo ? p[0] : fmaxf(p[0], dti_at_x(c, s->from));
    *to = s->to > c->x.hi ? p[2] : fminf(p[2], dti_at_x(c, s->to));
    return *from < *to;
}

static void dti_draw_shade(dt_chart *c, const dti_item *s) {
    float from, to;
    if (!dti_shade_ends(c, s, &from, &to)) return;
    dti_mask_rect(c, from, c->plot[1], to, c->plot[3]);
    dti_ink(c, 0xf1f0ec, 1);
}

/* A shade's label: level in one of its corners, at four heights; or upright along its edge, if the shade is
   narrow. */
static void dti_label_shade(dt_chart *c, const dti_item *s) {
    const float *p = c->plot, size = c->small, pad = 0.8f * size;
    float from, to;
    if (!s->label || !dti_shade_ends(c, s, &from, &to)) return;
    const float wide = to - from - 2 * pad, high = p[3] - p[1] - 2 * pad;
    const dti_paragraph level = dti_wrap(s->label, size, wide), upright = dti_wrap(s->label, size, high);
    const bool cut = dti_breaks_words(&level);
    dti_spot best = { .cost = INFINITY };
    for (int k = 0; k < 14; ++k) {
        const bool up = k >= 8;
        const dti_paragraph *q = up ? &upright : &level;
        const float spare_x = wide - (up ? q->height : q->width);
        const float spare_y = high - (up ? q->width : q->height);
        const float down = up ? (float)((k - 8) / 2) / 2 : (float)(k / 2) / 3;
        const bool ill = spare_x < 0 || spare_y < 0 || (!up && cut);
        dti_try(c, &best, (dti_spot){ .text = q, .angle = up ? DTI_UPRIGHT : 0,
            .x = from + pad + (k & 1 ? spare_x : 0), .y = p[1] + pad + down * spare_y + (up ? q->width : 0),
            .cost = (float)k + (ill ? 1e6f : 0) });
    }
    dti_put_spot(c, &best, dti_quiet, 20);
}

static const dti_mark dti_shade_mark = {
    .draw = { [DTI_UNDER] = dti_draw_shade, [DTI_LABELS] = dti_label_shade }
};

DT_API void dt_chart_shade(dt_chart *c, const dt_shade *s) {
    if (!dti_told(c, __func__, s, s != NULL)) return;
    dti_item *item = dti_chart_add(c, &dti_shade_mark, s->label, 0);
    if (item) item->from = s->from, item->to = s->to;
}

DT_API void dt_chart_shade_cores(dt_chart *c) {
    char label[64];
    if (!c) return;
    const int cores = dt_cores();
    const double from = c->desc.x_scale == DT_LINEAR ? cores + 0.5 : cores * sqrt(2.0);
    snprintf(label, sizeof label, "more than the machine's %d core%s", cores, cores == 1 ? "" : "s");
    dt_chart_shade(c, &(dt_shade){ .label = label, .from = from, .to = INFINITY });
}

/* ---- Pictures ---- */

/* A sheet of pictures: how many in a row; how often each pixel is repeated, so that it stays a square; the
   gap between pictures, the width and the height of a caption, and the height of all. */
typedef struct dti_sheet { size_t columns; int zoom; float gap, room, caption, height; } dti_sheet;

/* Lays the pictures out, `width` wide. */
static dti_sheet dti_sheet_of(const dt_chart *c, const dti_item *item, float width) {
    const dt_images *m = &item->images;
    dti_sheet s = { .gap = 6 * c->unit };
    s.columns = dti_min_size(item->n, m->columns ? m->columns : (size_t)ceil(sqrt((double)item->n * 1.7)));
    s.zoom = (int)fmaxf(1, fminf(6, floorf((width / (float)s.columns - s.gap) / (float)m->width)));
    s.room = (float)(s.zoom * m->width) + s.gap / 2;
    for (size_t i = 0; item->names && i < item->n; ++i) {
        const dti_paragraph p = dti_wrap(item->names[i], fmaxf(6, 10 * c->unit), s.room);
        s.caption = fmaxf(s.caption, p.height + 8 * c->unit);
    }
    const size_t rows = (item->n + s.columns - 1) / s.columns;
    s.height = (float)rows * ((float)(m->height * s.zoom) + s.gap + s.caption);
    return s;
}

static float dti_images_height(const dt_chart *c, const dti_item *item, float width) {
    return dti_sheet_of(c, item, width).height;
}

/* A sheet: pictures row by row, each pixel of them zoom x zoom of the canvas, captions below. */
static void dti_draw_images(dt_chart *c, const dti_item *item) {
    const dt_images *m = &item->images;
    const float width = c->plot[2] - c->plot[0];
    const dti_sheet s = dti_sheet_of(c, item, width);
    const int wide = m->width * s.zoom, high = m->height * s.zoom;
    const size_t plane = (size_t)m->width * (size_t)m->height;
    const float pitch = fminf(width / (float)s.columns, (float)wide + 4 * s.gap);
    for (size_t i = 0; i < item->n; ++i) {
        const float fx = c->plot[0] + (float)(i % s.columns) * pitch;
        const float fy = c->plot[1] + (float)(i / s.columns) * ((float)high + s.gap + s.caption);
        const int left = (int)fx, top = (int)fy;
        const uint8_t *source = m->pixels + i * plane * (size_t)m->channels;
        for (int y = 0; y < high && top + y < c->h; ++y)
            for (int x = 0; x < wide && left + x < c->w; ++x) {
                const uint8_t *from = source + y / s.zoom * m->width + x / s.zoom;
                float *to = &c->rgb[3 * ((size_t)(top + y) * (size_t)c->w + (size_t)(left + x))];
                for (size_t k = 0; k < 3; ++k) to[k] = (float)from[m->channels == 3 ? k * plane : 0] / 255;
            }
        if (!item->names) continue;
        const dti_paragraph p = dti_wrap(item->names[i], fmaxf(6, 10 * c->unit), s.room);
        dti_put_paragraph(c, &p, fx - s.gap / 4, (float)(top + high) + 2 * c->unit, s.room, 0.5f, &dti_plain);
    }
}

/* Their captions. */
static bool dti_images_row(const dt_chart *c, const dti_item *item, size_t i, dti_row *row) {
    (void)c;
    if (i >= item->n) return false;
    *row = (dti_row){ item->names ? item->names[i] : NULL, NULL, { (double)i, NAN, NAN, NAN } };
    return true;
}

static const dti_mark dti_images_mark = {
    .height = dti_images_height, .row = dti_images_row, .draw = { [DTI_SHEET] = dti_draw_images }
};

DT_API void dt_chart_images(dt_chart *c, const dt_images *m) {
    const bool good = m && m->width <= 8192 && m->height <= 8192 && m->n <= DTI_MOST_BARS;
    if (!dti_told(c, __func__, m, good)) return;
    dti_item *item = dti_chart_add(c, &dti_images_mark, NULL, 0);
    if (!item || !m->pixels || m->width < 1 || m->height < 1) return;
    const size_t planes = m->channels == 3 ? 3 : 1, pixels = (size_t)m->width * (size_t)m->height;
    item->n = m->n;
    item->names = dti_keep_texts(c, m->captions, m->n);
    item->images = *m;
    item->images.channels = (int)planes;
    item->images.pixels = dti_keep(c, m->pixels, dti_times(m->n * planes, pixels));
}

/* ---- All marks: in this order, where they share a layer ---- */

static const dti_mark *const dti_all_marks[] = {
    &dti_bar_mark, &dti_reference_mark, &dti_line_mark, &dti_shade_mark, &dti_images_mark
};

static void dti_draw_layer(dt_chart *c, int layer) {
    for (size_t k = 0; k < sizeof dti_all_marks / sizeof *dti_all_marks; ++k)
        for (const dti_item *item = c->first; item && dti_all_marks[k]->draw[layer]; item = item->next)
            if (item->mark == dti_all_marks[k]) item->mark->draw[layer](c, item);
}

static void dti_ask_ranges(dt_chart *c, dti_ask ask) {
    for (const dti_item *item = c->first; item; item = item->next)
        if (item->mark->range) item->mark->range(c, item, ask);
}

/* ==== [E8.7] Layout and drawing ==========================================

   In the order of the picture at the head of this room: the ranges of the axes; title, subtitle and caption
   at the canvas' edges; then what stands between these and the plot, where numbers and names are as wide as
   they turn out; then all is drawn, from the back to the front. A legend sends the eye to and fro, so
   labels stand at the right edge while they fit there, all of them in half of the height. What could not be
   drawn, and an axis without its 0, is said in words that are added here. To read: dti_chart_draw, at the
   end. */

/* A tag names one series: at the right edge beside its last point, or in the legend. */
typedef struct dti_tag {
    const dti_item *item;
    bool inside;            /* its series ends well before the right edge: it is written there, in the plot */
    float x, y;             /* where its series ends on the canvas */
    float top;              /* where it is written */
    dti_paragraph p;
} dti_tag;

typedef struct dti_layout {
    dti_tag tag[DTI_TAGS];
    int tags;
    bool direct;            /* tags at the right edge, not in a legend */
    dti_paragraph title, subtitle, caption, x_label, y_label;
    float size, margin;     /* of letters of labels */
    float names;            /* the height of what is written below the axis */
    float head;             /* the height of title and subtitle */
    bool upright;           /* the names of groups stand on their ends */
} dti_layout;

/* Counts a value that its axis cannot show: too large [0], or not above 0 on a log axis [1]. A NaN was left
   out on purpose. */
static void dti_miss(const dti_chart_axis *a, double v, size_t missed[2]) {
    if (!isnan(v) && !dti_axis_has(a, v)) ++missed[dti_drawable(v) ? 1 : 0];
}

/* Ends the caption with how many values are not drawn, so that no picture leaves them out in silence. */
static void dti_caption_words(dt_chart *c) {
    static const char *const why[2] = { "infinite or beyond 10³⁰⁰",
                                        "not above 0 on a logarithmic axis" };
    size_t missed[2] = { 0, 0 }, used = c->said;
    for (const dti_item *item = c->first; item; item = item->next) {
        missed[0] += item->lost;
        for (size_t i = 0; i < item->n && item->mark->series; ++i) {
            dti_miss(&c->x, item->x[i], missed);
            dti_miss(&c->y, item->y[i], missed);
            if (item->lo) dti_miss(&c->y, item->lo[i], missed), dti_miss(&c->y, item->hi[i], missed);
        }
    }
    c->caption[used] = '\0';
    for (int k = 0; k < 2; ++k) {
        const char *before = used > c->said ? ", " : c->said ? "\nNot drawn: " : "Not drawn: ";
        if (missed[k])
            used += (size_t)snprintf(c->caption + used, DTI_WORDS / 2, "%s%zu value%s %s", before, missed[k],
                                     missed[k] == 1 ? "" : "s", why[k]);
    }
    if (used > c->said) strcpy(c->caption + used, ".");
}

/* Ends the y label with where an axis begins that has no 0: its lines look steeper than they are. */
static void dti_label_words(dt_chart *c) {
    const dti_chart_axis *y = &c->y;
    const size_t said = c->desc.y_label ? strlen(c->desc.y_label) : 0;
    char end[DTI_NUMBER];
    c->y_label[said] = '\0';
    if (y->scale != DT_LINEAR || (y->lo <= 0 && y->hi >= 0)) return;
    const bool above = y->lo > 0;
    dti_tick_text(y, above ? y->lo : y->hi, end);
    snprintf(c->y_label + said, DTI_WORDS, "%s(axis %s %s)", said ? " " : "", above ? "from" : "up to", end);
}

/* Range and ticks of both axes. */
static void dti_chart_ranges(dt_chart *c) {
    const dt_chart_desc *d = &c->desc;
    dti_chart_axis *x = &c->x, *y = &c->y;
    const bool given_x = d->x_min != 0 || d->x_max != 0, given_y = d->y_min != 0 || d->y_max != 0;
    bool bars = false;
    *x = *y = (dti_chart_axis){ .lo = INFINITY, .hi = -INFINITY, .to = 1 };
    x->scale = d->x_scale, x->format = d->x_format, y->scale = d->y_scale, y->format = d->y_format;
    if (c->groups) x->scale = DT_LINEAR;
    for (const dti_item *item = c->first; item; item = item->next) bars = bars || item->mark->stands;
    dti_ask_ranges(c, DTI_ASK_POINTS);
    if (c->groups) x->lo = -0.5, x->hi = (double)c->groups - 0.5;
    else dti_axis_range(x, d->x_min, d->x_max, false);
    dti_ask_ranges(c, DTI_ASK_SPAN);
    if (bars && y->scale == DT_LINEAR) dti_axis_take(y, 0);
    dti_axis_range(y, d->y_min, d->y_max, true);
    if (!given_y) dti_axis_widen(y, true, 0.06);
    dti_ask_ranges(c, DTI_ASK_AIR);
    dti_axis_ticks(y, NULL, 0);
    if (!bars && !given_x) dti_axis_widen(x, false, 0.03);
    const bool counted = x->distinct > 0 && x->distinct <= DTI_SEEN && x->scale != DT_LOG10 && !bars;
    if (d->x_ticks) dti_axis_ticks(x, d->x_ticks, d->x_tick_count);
    else dti_axis_ticks(x, counted ? x->seen : NULL, (size_t)x->distinct);
    if (c->groups) x->ticks = 0; /* it has names */
}

/* Where a series ends on the canvas: at its last point that can be drawn; the foot of the right edge if there
   is none. */
static void dti_item_end(const dt_chart *c, const dti_item *item, float *x, float *y) {
    for (size_t i = item->n; i-- > 0;)
        if (item->mark->end(c, item, i, x, y)) return;
    *x = c->x.to;
    *y = c->y.from;
}

/* What needs a name, and how wide the names are when they stand at the right edge: not with bars side by
   side, which have no end there. The plot has no size yet: an axis goes from 0 to 1. */
static float dti_layout_tags(const dt_chart *c, dti_layout *l) {
    bool apart = false;
    float widest = 0, height = 0, end, y;
    for (const dti_item *item = c->first; item; item = item->next) {
        if (!item->label || !item->mark->series) continue;
        dti_tag *t = &l->tag[l->tags++];
        t->item = item;
        t->p = dti_wrap(item->label, l->size, 0.2f * (float)c->w);
        dti_item_end(c, item, &end, &y);
        t->inside = item->mark->open && end < 0.93f;
        apart = apart || (item->mark->stands && !item->stacked);
        if (t->inside) continue;
        widest = fmaxf(widest, t->p.width + 16 * c->unit);
        height += t->p.height + 0.3f * l->size;
    }
    l->direct = l->tags > 0 && !apart && height < 0.5f * (float)c->h;
    return widest;
}

/* The legend, a row or more from (x,y) on; returns its height. Only measures if draw is false. */
static float dti_legend(dt_chart *c, const dti_layout *l, float x, float y, float width, bool draw) {
    float at = 0, row = 0, pitch = 2.1f * l->size;
    for (int i = 0; i < l->tags; ++i) {
        const dti_item *item = l->tag[i].item;
        const dti_paragraph p = dti_fit(item->label, l->size, width - 3.36f * l->size, 1.6f * l->size);
        const float lead = item->mark->sample * l->size; /* the swatch, and a gap */
        if (at > 0 && at + lead + p.width > width) { at = 0; row += pitch; pitch = 2.1f * l->size; }
        pitch = fmaxf(pitch, p.height + 0.6f * l->size);
        if (draw) {
            item->mark->draw_sample(c, item, x + at, y + row + 0.65f * l->size, l->size);
            dti_put_paragraph(c, &p, x + at + lead, y + row, p.width, 0, &dti_plain);
        }
        at += lead + p.width + 1.8f * l->size;
    }
    return l->tags ? row + pitch + 0.6f * l->size : 0;
}

/* The name below a group of bars: wrapped into its share of the axis, or upright and small enough for it. */
static dti_paragraph dti_group_name(const dt_chart *c, const dti_layout *l, size_t g) {
    const float share = (c->plot[2] - c->plot[0]) / (float)c->groups;
    const char *name = c->names ? c->names[g] : NULL;
    if (l->upright) return dti_fit(name, fminf(c->small, 0.6f * share), 0.25f * (float)c->h, 0.9f * share);
    return dti_wrap(name, c->small, 0.92f * share);
}

/* The room of the names of groups: flat, and if that breaks a word, upright. */
static void dti_layout_names(const dt_chart *c, dti_layout *l) {
    l->names = 1.5f * c->small;
    for (size_t g = 0; g < c->groups && !l->upright; ++g) {
        const dti_paragraph p = dti_group_name(c, l, g);
        l->names = fmaxf(l->names, p.height);
        l->upright = dti_breaks_words(&p);
    }
    if (!l->upright) return;
    l->names = 0;
    for (size_t g = 0; g < c->groups; ++g) l->names = fmaxf(l->names, dti_group_name(c, l, g).width);
}

static float dti_height_with(const dti_paragraph *p, float gap) { return p->lines ? p->height + gap : 0; }

/* Title, subtitle, caption, and the plot as if there were no axes. */
static void dti_layout_frame(dt_chart *c, dti_layout *l) {
    const float u = c->unit, w = (float)c->w, h = (float)c->h, m = l->margin = 26 * u;
    l->size = fmaxf(6, 12 * u);
    c->small = fmaxf(5.5f, 11 * u);
    l->title = dti_fit(c->desc.title, fmaxf(8, 19 * u), w - 2 * m, 0.17f * h);
    l->subtitle = dti_fit(c->desc.subtitle, fmaxf(6, 13 * u), w - 2 * m, 0.1f * h);
    l->caption = dti_fit(c->caption, fmaxf(5.5f, 9.5f * u), w - 2 * m, 0.14f * h);
    l->head = dti_height_with(&l->title, 9 * u) + dti_height_with(&l->subtitle, 10 * u);
    c->plot[0] = m;
    c->plot[1] = m + l->head + 8 * u;
    c->plot[2] = w - m;
    c->plot[3] = h - m + 6 * u - dti_height_with(&l->caption, 14 * u);
}

/* Room for tags or a legend, and for labels and numbers of the axes. */
static dt_err dti_layout_axes(dt_chart *c, dti_layout *l) {
    const float u = c->unit, m = l->margin, tag_width = dti_layout_tags(c, l);
    char text[DTI_NUMBER];
    float numbers = 0;
    for (int i = 0; i < c->y.ticks; ++i) {
        dti_tick_text(&c->y, c->y.tick[i], text);
        numbers = fmaxf(numbers, dti_text_width(text, SIZE_MAX) * c->small);
    }
    if (l->direct) c->plot[2] -= tag_width;
    else c->plot[1] += dti_legend(c, l, m, 0, c->plot[2] - m, false);
    l->x_label = dti_fit(c->desc.x_label, l->size, c->plot[2] - m, 4 * l->size);
    l->y_label = dti_fit(c->y_label, l->size, 0.96f * (c->plot[3] - c->plot[1] - 4 * l->size), 4 * l->size);
    c->plot[0] += numbers + 10 * u + dti_height_with(&l->y_label, 6 * u);
    dti_layout_names(c, l);
    c->plot[3] -= l->names + 10 * u + dti_height_with(&l->x_label, 8 * u);
    for (int i = 0; i < 4; ++i) c->plot[i] = floorf(c->plot[i]);
    if (c->plot[2] - c->plot[0] < 10 || c->plot[3] - c->plot[1] < 10)
        return dt_fail(DT_ESHAPE, "chart: its texts leave no room for a plot on %d x %d pixels", c->w, c->h);
    c->x.from = c->plot[0], c->x.to = c->plot[2];
    c->y.from = c->plot[3], c->y.to = c->plot[1];
    return DT_OK;
}

/* The names of groups of bars, below the x axis. */
static void dti_draw_names(dt_chart *c, const dti_layout *l) {
    const dti_pen pen = { .weight = 0.1f, .colour = DTI_BLACK, .angle = l->upright ? DTI_UPRIGHT : 0 };
    const float top = c->plot[3] + 8 * c->unit;
    for (size_t g = 0; g < c->groups; ++g) {
        const dti_paragraph p = dti_group_name(c, l, g);
        const float at = dti_at_x(c, (double)g);
        if (l->upright) dti_put_paragraph(c, &p, at - p.height / 2, top + p.width, p.width, 1, &pen);
        else dti_put_paragraph(c, &p, at - p.width / 2, top, p.width, 0.5f, &pen);
    }
}

/* Texts around the plot. A long label of an axis may reach past the axis' foot. */
static void dti_draw_frame(dt_chart *c, const dti_layout *l, bool axes) {
    const float u = c->unit, m = l->margin, w = (float)c->w - 2 * m, *p = c->plot;
    const dti_pen bold = { .weight = 0.15f, .colour = DTI_BLACK };
    const dti_pen turned = { .weight = 0.1f, .colour = DTI_BLACK, .angle = DTI_UPRIGHT };
    dti_put_paragraph(c, &l->title, m, m, w, 0, &bold);
    dti_put_paragraph(c, &l->subtitle, m, m + dti_height_with(&l->title, 9 * u), w, 0, &dti_quiet);
    dti_put_paragraph(c, &l->caption, m, (float)c->h - m + 8 * u - l->caption.height, w, 0, &dti_quiet);
    if (!axes) return;
    if (!l->direct) dti_legend(c, l, m, m + l->head + 5 * u, w, true);
    const float wide = fmaxf(l->x_label.width, p[2] - p[0]), high = fmaxf(p[3] - p[1], l->y_label.width);
    dti_put_paragraph(c, &l->x_label, p[2] - wide, p[3] + l->names + 16 * u, wide, 0.5f, &dti_plain);
    dti_put_paragraph(c, &l->y_label, m, p[1] + high, high, 0.5f, &turned);
}

static dti_pen dti_tag_pen(const dti_tag *t) {
    return (dti_pen){ .weight = 0.115f, .colour = dti_colour_of(t->item) };
}

/* A tag inside the plot: beside its point, on whichever side is free, farther off with a line to it if none
   is. */
static void dti_label_point(dt_chart *c, const dti_tag *t) {
    static const signed char side[8][2] = {
        { 1, 0 }, { 0, -1 }, { 0, 1 }, { -1, 0 }, { 1, -1 }, { 1, 1 }, { -1, -1 }, { -1, 1 }
    };
    dti_spot best = { .cost = INFINITY };
    for (int k = 0; k < 32; ++k) {
        const float dx = side[k % 8][0], dy = side[k % 8][1], off = (9 + 20 * (float)(k / 8)) * c->unit;
        const float lead = k < 8 ? 0 : off - 4 * c->unit;
        dti_try(c, &best, (dti_spot){ .text = &t->p, .cost = 5 * (float)k,
            .x = t->x + dx * off + (dx - 1) / 2 * t->p.width,
            .y = t->y + dy * off + (dy - 1) / 2 * t->p.height,
            .line = { t->x, t->y, t->x + dx * lead, t->y + dy * lead } });
    }
    dti_put_spot(c, &best, dti_tag_pen(t), INFINITY);
}

/* Moves tags, sorted from the top down, apart: neighbours push each other by half of what they overlap; then
   those at the ends back onto the canvas, and their neighbours with them. */
static void dti_spread_tags(dti_tag **tag, int n, float gap, float top, float foot) {
    for (int round = 0; round < 300; ++round)
        for (int i = 1; i < n; ++i) {
            const float over = tag[i - 1]->top + tag[i - 1]->p.height + gap - tag[i]->top;
            if (over > 0) tag[i - 1]->top -= over / 2, tag[i]->top += over / 2;
        }
    for (int i = 0; i < n; ++i) {
        tag[i]->top = fmaxf(tag[i]->top, top);
        top = tag[i]->top + tag[i]->p.height + gap;
    }
    for (int i = n; i-- > 0;) {
        tag[i]->top = fminf(tag[i]->top, foot - tag[i]->p.height);
        foot = tag[i]->top - gap;
    }
}

/* Tags at the right edge: each as near as it can be to where its line ends, in the same order, none
   overlapping. */
static void dti_draw_tags(dt_chart *c, dti_layout *l) {
    const float u = c->unit;
    dti_tag *order[DTI_TAGS];
    int n = 0;
    for (int i = 0; i < l->tags; ++i) {
        dti_tag *t = &l->tag[i];
        dti_item_end(c, t->item, &t->x, &t->y);
        t->top = t->y - 0.5f * t->p.height + 0.1f * l->size; /* the box has air above the letters */
        if (t->inside) { dti_label_point(c, t); continue; }
        int at = n++; /* sorted in by height */
        for (; at > 0 && order[at - 1]->y > t->y; --at) order[at] = order[at - 1];
        order[at] = t;
    }
    dti_spread_tags(order, n, 0.3f * l->size, c->plot[1] - 0.8f * l->size, c->plot[3] + l->size);
    for (int i = 0; i < n; ++i) {
        const dti_tag *t = order[i];
        const bool bar = t->item->mark->stands;
        const dti_pen pen = dti_tag_pen(t);
        const float mid = t->top + 0.5f * t->p.height - 0.1f * l->size, left = c->plot[2] + 14 * u;
        if (fabsf(mid - t->y) > 0.5f * l->size || bar) { /* a thin line leads to a label that had to move */
            dti_mask_line(c, t->x + (bar ? 2 : 7) * u, t->y, left - 4 * u, mid, 0.45f * u);
            dti_ink(c, pen.colour, 0.7f);
        }
        dti_put_paragraph(c, &t->p, left, t->top, t->p.width, 0, &pen);
    }
}

/* The canvas in white. What has no axes decides its own height. */
static dt_err dti_chart_canvas(dt_chart *c, const dti_item *sheet) {
    c->w = c->desc.width ? c->desc.width : 1200;
    c->h = c->desc.height ? c->desc.height : 750;
    const float area = (float)c->w * (float)c->h / (1200.0f * 750.0f);
    c->unit = fmaxf(0.3f, powf(area, area < 1 ? 0.35f : 0.5f)); /* small pictures keep readable letters */
    if (sheet && c->desc.height == 0) {
        dti_layout l = { 0 };
        c->unit = fmaxf(0.5f, (float)c->w / 1200);
        dti_layout_frame(c, &l);
        const float around = (float)c->h - (c->plot[3] - c->plot[1]);
        const float high = sheet->mark->height(c, sheet, (float)c->w - 2 * l.margin);
        c->h = (int)fminf(8192, around + high + 4 * c->unit);
    }
    const size_t pixels = (size_t)c->w * (size_t)c->h;
    dti_release(c->rgb);
    c->rgb = dti_alloc(pixels * (4 * sizeof *c->rgb + 4));
    if (!c->rgb) return DT_ENOMEM;
    c->mask = c->rgb + 3 * pixels;
    c->busy = (uint8_t *)(c->mask + pixels);
    c->bytes = c->busy + pixels;
    for (size_t i = 0; i < 3 * pixels; ++i) c->rgb[i] = 1;
    c->text_count = 0;
    dti_clip(c, 0, 0, (float)c->w, (float)c->h);
    dti_ink(c, DTI_WHITE, 0); /* nothing is dirty */
    return DT_OK;
}

/* What lies inside the axes. Lines, then error bars, then markers, each for all series: no line hides another
   one's marker. */
static void dti_draw_items(dt_chart *c) {
    const float *p = c->plot, reach = 7 * c->unit; /* a marker on the edge is not cut */
    dti_clip(c, p[0] - reach, p[1] - reach, p[2] + reach, p[3] + reach);
    c->marking = true;
    dti_draw_layer(c, DTI_BODY);
    c->marking = false;
    dti_mask_line(c, p[0], p[3], p[2], p[3], 0.7f * c->unit);
    dti_ink(c, DTI_GREY, 1);
    c->marking = true;
    for (int layer = DTI_OVER; layer <= DTI_POINTS; ++layer) dti_draw_layer(c, layer);
    c->marking = false;
    dti_clip(c, 0, 0, (float)c->w, (float)c->h);
}

/* All of a chart that has axes, from the back to the front. */
static dt_err dti_draw_axes(dt_chart *c, dti_layout *l) {
    DT_TRY(dti_layout_axes(c, l));
    dti_draw_layer(c, DTI_UNDER);
    dti_draw_minor(c, &c->x), dti_draw_minor(c, &c->y);
    dti_draw_axis(c, &c->x), dti_draw_axis(c, &c->y);
    dti_draw_names(c, l);
    dti_draw_items(c);
    if (l->direct) dti_draw_tags(c, l);
    dti_draw_layer(c, DTI_LABELS);
    return DT_OK;
}

/* A chart that can be asked for something: it is there, and nothing has failed. */
static dt_err dti_chart_good(const dt_chart *c) {
    if (!c) return dt_fail(DT_ENOMEM, "chart: no memory for the chart itself");
    return c->failed == DT_OK ? DT_OK : dt_fail(c->failed, "%s", c->why);
}

/* The whole picture, from a white canvas to bytes. A chart of nothing but pictures has no axes. */
static dt_err dti_chart_draw(dt_chart *c) {
    DT_TRY(dti_chart_good(c));
    const dti_item *sheet = NULL;
    bool axes = false;
    for (const dti_item *item = c->first; item; item = item->next)
        if (item->mark->height) sheet = item->n ? item : sheet; else axes = true;
    axes = axes || !sheet;
    DT_TRY(dti_chart_canvas(c, axes ? NULL : sheet));
    dti_layout l = { 0 };
    if (axes) dti_chart_ranges(c), dti_caption_words(c), dti_label_words(c);
    dti_layout_frame(c, &l);
    if (axes) DT_TRY(dti_draw_axes(c, &l));
    else sheet->mark->draw[DTI_SHEET](c, sheet);
    dti_draw_frame(c, &l, axes);
    for (size_t i = 0; i < 3 * (size_t)c->w * (size_t)c->h; ++i)
        c->bytes[i] = (uint8_t)(fminf(1, fmaxf(0, c->rgb[i])) * 255 + 0.5f);
    return dti_chart_good(c);
}

/* ==== [E8.8] Asking and writing ==========================================

   The finished picture as pixels, as a PNG, and the numbers in it as CSV; and whether its texts are whole and
   apart (dt_chart_check), which is how a test looks at a picture. Who wants the picture draws it first; files
   are written as [E6.1] says. */

DT_API const uint8_t *dt_chart_pixels(dt_chart *c, int *width, int *height) {
    DTI_NEED(width && height, "width and height", NULL);
    if (dti_chart_draw(c) != DT_OK) return NULL;
    *width = c->w;
    *height = c->h;
    return c->bytes;
}

DT_API dt_err dt_chart_check(dt_chart *c) {
    DT_TRY(dti_chart_draw(c));
    for (int i = 0; i < c->text_count; ++i) {
        const dti_text *t = &c->texts[i], *other = c->texts;
        for (int k = 0; k < 4; ++k) {
            const float x = t->box.corner[k][0], y = t->box.corner[k][1];
            if (x < 0 || y < 0 || x > (float)c->w || y > (float)c->h)
                return dt_fail(DT_ESHAPE, "chart: text \"%s\" reaches (%.0f, %.0f), outside of the canvas of "
                               "%d x %d", t->head, (double)x, (double)y, c->w, c->h);
        }
        for (; other < t; ++other)
            if (dti_boxes_meet(&t->box, &other->box, 0.5f))
                return dt_fail(DT_ESHAPE, "chart: texts \"%s\" and \"%s\" overlap", other->head, t->head);
    }
    return DT_OK;
}

static void dti_png_bytes(void *file, void *data, int size) { (void)fwrite(data, 1, (size_t)size, file); }

DT_API dt_err dt_chart_write(dt_chart *c, const char *png) {
    dti_output out;
    DTI_NEED(png, "png", DT_EARG);
    DT_TRY(dti_chart_draw(c));
    DT_TRY(dti_output_open(&out, png));
    if (stbi_write_png_to_func(dti_png_bytes, out.file, c->w, c->h, 3, c->bytes, 3 * c->w))
        return dti_output_close(&out);
    dti_output_drop(&out);
    return dt_fail(DT_ENOMEM, "%s: there is no memory to compress the picture", png);
}

static void dti_csv_text(FILE *f, const char *s) {
    fputc('"', f);
    for (; s && *s; ++s) { if (*s == '"') fputc('"', f); fputc(*s == '\n' ? ' ' : *s, f); }
    fputc('"', f);
}

/* series, x, y, min, max. */
static void dti_csv_row(FILE *f, const dti_row *row) {
    dti_csv_text(f, row->series);
    for (int i = 0; i < 4; ++i) {
        char number[DTI_NUMBER] = "";
        fputc(',', f);
        if (!isnan(row->v[i])) dti_print(number, sizeof number, "%.9g", row->v[i]);
        if (i == 0 && row->name) dti_csv_text(f, row->name);
        else fputs(number, f);
    }
    fputc('\n', f);
}

DT_API dt_err dt_chart_write_csv(dt_chart *c, const char *png) {
    char path[1024];
    dti_output out;
    dti_row row;
    DTI_NEED(png, "png", DT_EARG);
    DT_TRY(dti_chart_good(c));
    const size_t n = strlen(png), stem = n > 4 && strcmp(png + n - 4, ".png") == 0 ? n - 4 : n;
    if (stem + 5 > sizeof path)
        return dt_fail(DT_EARG, "chart: the path \"%.40s...\" has %zu bytes, more than 1019", png, n);
    snprintf(path, sizeof path, "%.*s.csv", (int)stem, png);
    DT_TRY(dti_output_open(&out, path));
    dti_chart_ranges(c);
    fprintf(out.file, "series,");
    dti_csv_text(out.file, c->desc.x_label ? c->desc.x_label : "x");
    fputc(',', out.file);
    dti_csv_text(out.file, c->desc.y_label ? c->desc.y_label : "y");
    fprintf(out.file, ",min,max\n");
    for (const dti_item *item = c->first; item; item = item->next)
        for (size_t i = 0; item->mark->row && item->mark->row(c, item, i, &row); ++i)
            dti_csv_row(out.file, &row);
    return dti_output_close(&out);
}

DT_API dt_err dt_chart_save(dt_chart *c, const char *png) {
    DT_TRY(dt_chart_write(c, png));
    return dt_chart_write_csv(c, png);
}
#endif /* DTI_IMPLEMENT */
#endif /* DTRAIN_WITH_CHARTS */

/* ==== [E9] Checks ==========================================================

   What is refused, and in which words. A library that takes whatever it is given fails later, somewhere else,
   or trains on nonsense. So the functions of Part I ask here first whether what they were given can be meant,
   and then go on; their own text stays free of it. Each check returns DT_OK, or an error whose sentence says
   what was given and what is wanted, with the numbers in it:

       conv2d "conv2": a 4x4 image with padding 0 has no room for a 5x5 kernel
       who             what was given                           what is wanted

                                          asked by                            how often
       [E9.1] sizes and names             naive kernels, builders of layers   each call; once a layer
       [E9.2] data and batches            loaders, dt_batches_init            once a data set
       [E9.3] nets                        dt_net_build; dt_net_load           once; each batch
       [E9.4] optimizers and training     dt_adam and its like, dt_train ..   once a training

   What it costs: a handful of comparisons; of a batch one comparison an image; and over ranks three numbers
   that are compared before the first step (dti_check_alike). Nothing here changes anything, so the order of
   reading is any: dti_conv_check is a good first one. */

/* ==== [E9.1] Sizes and names ==============================================

   Is there a tensor of that shape, and can its numbers be counted? All sizes come as int, and are multiplied
   in size_t, where dti_times [S1.3] cannot wrap round. Names of layers are held to what files can hold. */
#ifdef DTI_IMPLEMENT
/* Whether a tensor of that shape, sizes all positive, has more bytes than there are addresses. */
static bool dti_too_many(int a, int b, int c, int d)
{
    return dti_times(dti_times((size_t)a, (size_t)b), dti_times((size_t)c, (size_t)d)) >
           SIZE_MAX / 2 / sizeof(float);
}

/* Sizes positive; images and kernels countable; room for one window; outputs countable. */
static dt_err dti_conv_check(const char *who, int N, int C, int H, int W, int O, int K, int S, int p)
{
    if (N < 1 || C < 1 || H < 1 || W < 1 || O < 1 || K < 1 || S < 1 || p < 0)
        return dt_fail(
            DT_ESHAPE,
            "%s: sizes N=%d C=%d H=%d W=%d O=%d K=%d S=%d must be positive, padding %d must not be negative",
            who, N, C, H, W, O, K, S, p);
    if (dti_too_many(N, C, H, W) || dti_too_many(O, C, K, K) || p > (INT_MAX - (H > W ? H : W)) / 2)
        return dt_fail(DT_ESHAPE,
                       "%s: N=%d C=%d H=%d W=%d O=%d K=%d padding %d make more numbers than can be counted",
                       who, N, C, H, W, O, K, p);
    if (H + 2 * p < K || W + 2 * p < K)
        return dt_fail(DT_ESHAPE, "%s: a %dx%d image with padding %d has no room for a %dx%d kernel", who, H,
                       W, p, K, K);
    if (dti_too_many(N, O, (H + 2 * p - K) / S + 1, (W + 2 * p - K) / S + 1))
        return dt_fail(DT_ESHAPE, "%s: N=%d O=%d H=%d W=%d padding %d make more outputs than can be counted",
                       who, N, O, H, W, p);
    return DT_OK;
}

static dt_err dti_pool_check(const char *who, int N, int C, int H, int W, int K, int S)
{
    if (N < 1 || C < 1 || H < 1 || W < 1 || K < 1 || S < 1 || K > H || K > W)
        return dt_fail(DT_ESHAPE, "%s: no %dx%d window with stride %d in N=%d C=%d H=%d W=%d", who, K, K, S,
                       N, C, H, W);
    if (dti_too_many(N, C, H, W))
        return dt_fail(DT_ESHAPE, "%s: N=%d C=%d H=%d W=%d make more numbers than can be counted", who, N, C,
                       H, W);
    return DT_OK;
}

static dt_err dti_linear_check(const char *who, int N, int I, int O)
{
    if (N < 1 || I < 1 || O < 1)
        return dt_fail(DT_ESHAPE, "%s: sizes N=%d I=%d O=%d must be positive", who, N, I, O);
    if (dti_too_many(N, I, 1, 1) || dti_too_many(N, O, 1, 1) || dti_too_many(I, O, 1, 1))
        return dt_fail(DT_ESHAPE, "%s: N=%d I=%d O=%d make more numbers than can be counted", who, N, I, O);
    return DT_OK;
}

/* What a class of layers has made of a layer's shape [S6.1]: an image's numbers fit, and so does each
   parameter. */
static dt_err dti_size_check(const dti_layer *l) {
    if (!dti_fits_image(l->out))
        return dt_fail(DT_ESHAPE, "%s \"%s\": gives %d x %d x %d numbers an image; at most %d",
                       l->class->name, l->name, l->out[0], l->out[1], l->out[2], DTI_MAX_IMAGE);
    for (int i = 0; i < l->slots; ++i)
        if (dt_tensor_count(&l->slot[i].shape) == 0)
            return dt_fail(DT_ESHAPE, "%s \"%s\": more parameters than there are addresses",
                           l->class->name, l->name);
    return DT_OK;
}

/* Of a layer that is to be added to the list. */
static dt_err dti_name_check(const dti_list *list, const char *kind, const char *name) {
    if (!*name || strlen(name) >= DTI_NAME)
        return dt_fail(DT_EARG, "%s: a name of 1 to %d characters is needed", kind, DTI_NAME - 1);
    /* names stand in files and sentences */
    for (size_t i = 0, left = strlen(name), n; left > 0; i += n, left -= n) {
        n = dti_utf8_bytes(name + i, left);
        if (n > 1 || (n == 1 && name[i] >= ' ' && name[i] != 0x7f)) continue;
        return dt_fail(DT_EARG, "%s: byte %zu of the name, 0x%02x, is %s", kind, i,
                       (unsigned char)name[i], n ? "a control character" : "not UTF-8");
    }
    for (int i = 0; i < list->layers; ++i)
        if (strcmp(list->layer[i].name, name) == 0 && list->layer[i].slots)
            return dt_fail(DT_EARG, "%s \"%s\": the net has a layer of that name", kind, name);
    return DT_OK;
}
#endif

/* ==== [E9.2] Data and batches =============================================

   Can a net be fed with this? A data set has pixels or values, labels or targets, and one shape for all of
   its images [S4.1]; augmentation has bounds [S4.6], so that 32 bits hold what is computed with it; a batch
   is given in one way, for all ranks or for each [S4.5]. */
#ifdef DTI_IMPLEMENT
/* A dataset that can be used: also one that a program has put together itself. */
static dt_err dti_check_dataset(const char *who, const dt_dataset *d) {
    if (!d) return dt_fail(DT_EARG, "%s: the dataset must not be NULL", who);
    if (!(d->pixels || d->values) || !(d->labels || d->targets) || d->count == 0)
        return dt_fail(DT_EARG, "%s: the dataset is empty", who);
    if ((d->pixels && d->values) || (d->labels && d->targets) || !d->mean != !d->std)
        return dt_fail(DT_EARG,
                       "%s: of pixels and values, and of labels and targets, a dataset has one; of "
                       "mean and std both or none", who);
    if (d->channels < 1 || d->height < 1 || d->width < 1)
        return dt_fail(DT_ESHAPE, "%s: images of %d x %d x %d; needs channels, and pixels", who,
                       d->channels, d->height, d->width);
    if (d->targets && d->target_width < 1)
        return dt_fail(DT_ESHAPE, "%s: rows of %d targets; at least 1", who, d->target_width);
    const size_t row = dti_plus(dti_image_bytes(d), d->targets ? (size_t)d->target_width : 0);
    if (dti_times(d->count, row) > SIZE_MAX / 8)
        return dt_fail(DT_ESHAPE, "%s: %u images of %d x %d x %d are more than memory can hold",
                       who, (unsigned)d->count, d->channels, d->height, d->width);
    return DT_OK;
}

/* NULL: no augmentation, which suits every image. */
static dt_err dti_check_augment(const dt_augment *a, int channels, int height, int width) {
    if (!a) return DT_OK;
    const struct { const char *name; float value, most; } bounds[] = {
        { "flip", a->flip, 1.0f },
        { "rotate", a->rotate, 180.0f },
        { "shear", a->shear, 45.0f },
        { "brightness", a->brightness, 1.0f },
        { "contrast", a->contrast, 1.0f },
        { "saturation", a->saturation, 1.0f },
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; ++i)
        if (!(bounds[i].value >= 0.0f && bounds[i].value <= bounds[i].most))
            return dt_fail(DT_EARG, "augment: %s is %g, outside of 0 to %g", bounds[i].name,
                           (double)bounds[i].value, (double)bounds[i].most);
    const bool scales = a->scale_low != 0.0f || a->scale_high != 0.0f;
    if (scales &&
        !(a->scale_low >= 0.25f && a->scale_high <= 4.0f && a->scale_low <= a->scale_high))
        return dt_fail(DT_EARG, "augment: scale from %g to %g; needs 0.25 <= low <= high <= 4",
                       (double)a->scale_low, (double)a->scale_high);
    if (height > DTI_AUGMENT_SIDE || width > DTI_AUGMENT_SIDE)
        return dt_fail(DT_ESHAPE, "augment: images of %d x %d pixels; at most %d a side", height,
                       width, DTI_AUGMENT_SIDE);
    if ((a->contrast > 0.0f || a->saturation > 0.0f) && channels != 1 && channels != 3)
        return dt_fail(DT_ESHAPE,
                       "augment: contrast and saturation need grey or three colours, not %d "
                       "channels",
                       channels);
    return DT_OK;
}

/* The data, how batches are cut, and which rank of how many takes its share. */
static dt_err dti_batches_check(const dt_dataset *data, const dt_batches_desc *desc, int rank,
                                int size) {
    DT_TRY(dti_check_dataset("batches", data));
    if (desc->augment && !data->pixels)
        return dt_fail(DT_EARG, "batches: augment is for images of bytes, these are floats");
    DT_TRY(dti_check_augment(desc->augment, data->channels, data->height, data->width));
    if (size < 1 || rank < 0 || rank >= size)
        return dt_fail(DT_EARG, "batches: rank %d of %d ranks", rank, size);
    if ((desc->global_batch == 0) == (desc->per_rank_batch == 0))
        return dt_fail(DT_EARG, "batches: give one of global_batch (%u) and per_rank_batch (%u)",
                       desc->global_batch, desc->per_rank_batch);
    if (desc->per_rank_batch > UINT32_MAX / (uint32_t)size)
        return dt_fail(DT_EARG, "batches: %u images for each of %d ranks are too many",
                       desc->per_rank_batch, size);
    if (!desc->subset) return DT_OK;
    if (desc->subset_count == 0) return dt_fail(DT_EARG, "batches: the subset is empty");
    for (uint32_t i = 0; i < desc->subset_count; ++i)
        if (desc->subset[i] >= data->count)
            return dt_fail(DT_EARG, "batches: subset[%u] is row %u, the dataset has %u", i,
                           desc->subset[i], data->count);
    return DT_OK;
}
#endif

/* ==== [E9.3] Nets =========================================================

   Does the list of layers make a net, and does this batch fit it? A net that is built knows its shapes, so a
   batch is held against them; and some layers compute over more than one image, a batch norm over a lane
   group, a rank or the batch [S6.11], which then must have images enough. */
#ifdef DTI_IMPLEMENT
/* Before building: an error of a builder, kept until now; the loss; the last layer gives one number a class;
   and each layer but the last is read by another. */
static dt_err dti_build_check(const dt_net *net, const dt_build_desc *desc) {
    if (net->list.error != DT_OK) return dt_fail(net->list.error, "%s", net->list.error_text);
    if (net->list.closed) return dt_fail(DT_EARG, "net: built already");
    if (!desc) return dt_fail(DT_EARG, "dt_net_build: desc must not be NULL");
    if (desc->batch < 1 || desc->batch > 1 << 20)
        return dt_fail(DT_EARG, "net: batch %d; needs 1..%d", desc->batch, 1 << 20);
    if (desc->unit != 0.0f) DT_TRY(dti_check_unit("net", desc->unit));
    DT_TRY(dti_check_enum("net", "loss", desc->loss, DT_LOSSES));
    if (net->list.layers == 0) return dt_fail(DT_EARG, "net: it has no layers");
    const int *out = dti_tensor_shape(&net->list, net->list.layers);
    if (out[1] != 1 || out[2] != 1)
        return dt_fail(DT_ESHAPE,
                       "net: the last layer gives %d x %d x %d; it must give one number a class "
                       "(end in dt_linear)",
                       out[0], out[1], out[2]);
    for (int i = 1; i < net->list.layers; ++i) {
        bool read = false;
        for (int k = i; k < net->list.layers; ++k)
            read = read || net->list.layer[k].x == i || net->list.layer[k].with == i;
        if (!read)
            return dt_fail(DT_EARG, "net: nothing reads what %s (layer %d) makes",
                           net->list.layer[i - 1].name, i - 1);
    }
    return DT_OK;
}

/* Images of that shape, one mean and deviation a channel. */
static dt_err dti_check_images(const dt_net *net, const char *name, int channels, int height,
                               int width, const float *mean, const float *std) {
    const int *in = dti_image_shape(net);
    if (channels != in[0] || height != in[1] || width != in[2])
        return dt_fail(DT_ESHAPE, "%s has %d x %d x %d images, the net expects %d x %d x %d", name,
                       channels, height, width, in[0], in[1], in[2]);
    for (int c = 0; mean && c < channels; ++c)
        if (!(fabsf(mean[c]) <= FLT_MAX && std[c] > 0.0f && std[c] <= FLT_MAX))
            return dt_fail(DT_EARG,
                           "%s: channel %d has the mean %g and the standard deviation %g; needs "
                           "numbers, the second above 0",
                           name, c, (double)mean[c], (double)std[c]);
    return DT_OK;
}

/* A batch whose shape was not told (channels 0) is taken to be of the net's. */
static dt_err dti_check_batch(const dt_net *net, const dt_batch *batch) {
    const int *in = dti_image_shape(net);
    const bool told = batch->channels || batch->height || batch->width;
    if (batch->count && !((batch->pixels || batch->values) && batch->index))
        return dt_fail(DT_EARG,
                       "net: of a batch of %u samples, pixels or values, and index must not be NULL",
                       (unsigned)batch->count);
    if ((batch->pixels && batch->values) || !batch->mean != !batch->std)
        return dt_fail(DT_EARG, "net: of pixels and values a batch has one, of mean and std both or "
                                "none");
    if (batch->targets && batch->target_width != net->classes)
        return dt_fail(DT_ESHAPE, "net: rows of %d targets, the net has %d outputs",
                       batch->target_width, net->classes);
    /* the last part is as large as any */
    const uint32_t most = batch->count - dti_piece_begin(batch->count, net->parts - 1, net->parts);
    if (most > (uint32_t)net->max_groups * DT_LANES)
        return dt_fail(DT_ESHAPE, "net: %u samples, built for at most %d", (unsigned)most,
                       net->max_groups * DT_LANES);
    if (batch->global_count < batch->count || batch->global_count < 1)
        return dt_fail(DT_EARG, "net: %u samples here but %u in the global batch",
                       (unsigned)batch->count, (unsigned)batch->global_count);
    for (uint32_t i = 0; i < batch->count; ++i)
        if (batch->rows && batch->index[i] >= batch->rows)
            return dt_fail(DT_EARG, "net: index[%u] is row %u, the data have %u", (unsigned)i,
                           (unsigned)batch->index[i], (unsigned)batch->rows);
    if (batch->count == 0) return DT_OK;
    if (batch->augment && !(batch->room && batch->pixels))
        return dt_fail(DT_EARG, "net: a batch with augment needs pixels, and room for 16 images");
    DT_TRY(dti_check_augment(batch->augment, in[0], in[1], in[2]));
    return dti_check_images(net, "the batch", told ? batch->channels : in[0],
                            told ? batch->height : in[1], told ? batch->width : in[2], batch->mean,
                            batch->std);
}

/* In parts, no layer may look further than the lane group. */
static dt_err dti_check_parts(const char *who, const dt_net *net, uint32_t parts) {
    for (const dti_op *op = net->op; op < net->op + net->ops && parts > 1; ++op)
        if (op->scope > DTI_OVER_GROUP)
            return dt_fail(DT_EARG, "%s: %s \"%s\" looks at all images of a step together, but "
                           "they come in %u parts; let it look at the lane group", who,
                           op->layer->class->name, op->layer->name, (unsigned)parts);
    return DT_OK;
}

/* A layer that computes over a scope of images may need some fewest of them. images: of this rank; global:
   of the batch; meets: ranks add up what is over the batch. over[]: how many images there are in the
   smallest scope of each kind. */
static dt_err dti_check_scopes(const dt_net *net, uint32_t images, uint32_t global, bool meets) {
    static const char *const scopes[] = { "image", "lane group", "rank", "batch" };
    const uint32_t over[DTI_SCOPES] = { 1, images ? (images - 1) % DT_LANES + 1 : 0, images,
                                       meets ? global : images };
    for (const dti_op *op = net->op; op < net->op + net->ops; ++op)
        if (over[op->scope] && over[op->scope] < op->fewest)
            return dt_fail(DT_ESHAPE,
                           "%s \"%s\": %u of %u images, on a %d x %d map, are the only ones of a "
                           "%s; it needs %u of them in training",
                           op->layer->class->name, op->layer->name, (unsigned)over[op->scope],
                           (unsigned)global, op->in[1], op->in[2], scopes[op->scope],
                           (unsigned)op->fewest);
    return DT_OK;
}

/* The error of a loss that is no number: with the first parameter that is none, where the fault lies with
   one. */
static dt_err dti_bad_loss(const dt_net *net, uint32_t sample, float loss) {
    for (int i = 0; i < net->params; ++i)
        for (size_t k = 0; k < dt_tensor_count(&net->param[i].value); ++k)
            if (!(fabsf(net->param[i].value.data[k]) <= FLT_MAX))
                return dt_fail(DT_ENUMERIC, "loss of sample %u is %g: %s[%zu] is %g",
                               (unsigned)sample, (double)loss, net->param[i].name, k,
                               (double)net->param[i].value.data[k]);
    return dt_fail(DT_ENUMERIC, "loss of sample %u is %g", (unsigned)sample, (double)loss);
}
#endif

/* ==== [E9.4] Optimizers and training ======================================

   Can this training be meant, and do all ranks mean the same? The first is asked of the descriptors alone.
   For the second ranks compare hashes [E4.3]: of the build, of the data, of all settings. */
#ifdef DTI_IMPLEMENT
static bool dti_betas_meant(const char *who, float beta1, float beta2, float eps, float decay) {
    if (beta1 >= 0.0f && beta1 < 1.0f && beta2 >= 0.0f && beta2 < 1.0f && eps > 0.0f &&
        dti_not_negative(decay))
        return true;
    dt_fail(DT_EARG, "%s: beta1 %g, beta2 %g, eps %g, weight decay %g; needs 0 <= beta < 1, eps > "
            "0, weight decay >= 0", who, (double)beta1, (double)beta2, (double)eps, (double)decay);
    return false;
}

/* Every piece of the chain. */
static dt_err dti_schedule_check(const dt_schedule *first) {
    int piece = 0;
    for (const dt_schedule *s = first; s; s = s->then) {
        DT_TRY(dti_check_enum("schedule", "curve", s->curve, DT_LR_CURVES));
        if (++piece > 64) return dt_fail(DT_EARG, "schedule: more than 64 pieces");
        const dti_curve_class *class = &dti_curves[s->curve];
        if (((class->over || s->then) && s->over == 0) || (class->every && s->every == 0))
            return dt_fail(DT_EARG, "schedule: piece %d lasts over %u, with a step every %u of it",
                           piece, (unsigned)s->over, (unsigned)s->every);
        const float numbers[] = { s->from, s->to, s->factor, s->end };
        for (int i = 0; i < 4; ++i)
            if (!dti_not_negative(numbers[i]))
                return dt_fail(DT_EARG, "schedule: piece %d: %g may not be negative", piece,
                               (double)numbers[i]);
        if (s->by_step != first->by_step)
            return dt_fail(DT_EARG, "schedule: piece %d counts %s, the first one does not", piece,
                           s->by_step ? "steps" : "epochs");
    }
    return DT_OK;
}

/* What every trainer is given. */
static dt_err dti_check_train(const char *who, const dt_net *net, const dt_optimizer *opt,
                              const dt_train_desc *d) {
    DT_TRY(dti_ready(who, net));
    if (!opt || !d) return dt_fail(DT_EARG, "%s: opt and desc must not be NULL", who);
    if (opt->values != net->values)
        return dt_fail(DT_EARG, "%s: the optimizer was made for another net", who);
    if (d->epochs < 1) return dt_fail(DT_EARG, "training: %d epochs; needs at least 1", d->epochs);
    if (d->batch < 1)
        return dt_fail(DT_EARG, "training: batch %u; needs at least 1", (unsigned)d->batch);
    DT_TRY(dti_check_enum("training", "algorithm", d->algorithm, DT_ALGORITHMS));
    DT_TRY(dti_schedule_check(d->schedule));
    if (!(d->target >= 0.0f && d->target <= 1.0f))
        return dt_fail(DT_EARG, "training: a target of %g; needs 0..1", (double)d->target);
    if (d->validation) DT_TRY(dti_check_data("validation", net, d->validation));
    if (!(dt_lr_scaled(opt->lr, d->lr_scaling, d->batch, d->lr_batch) > 0.0f)) return DT_EARG;
    DT_TRY(dti_check_parts(who, net, d->accumulate));
    const dt_outer_desc *o = d->outer;
    if (o && !(o->lr > 0.0f && o->lr <= FLT_MAX && dti_not_negative(o->momentum)))
        return dt_fail(DT_EARG, "training: an outer learning rate of %g, momentum %g; needs above 0, "
                       "and 0 or more", (double)o->lr, (double)o->momentum);
    if (o && (d->checkpoint || d->resume))
        return dt_fail(DT_EARG, "training: checkpoints do not hold outer momentum");
    return dti_check_data("training", net, d->data);
}

/* The steps of an epoch of `count` samples are of `batch` and, the last one, of what is left: can
   the net be trained on both? Of a step's lane groups all are full but the last, which the last
   rank holds [S4.5]. */
static dt_err dti_check_steps(const dt_net *net, uint32_t count, uint32_t batch, int ranks) {
    const uint32_t sizes[2] = { count >= batch ? batch : 0, count % batch };
    for (int k = 0; k < 2; ++k) {
        const uint64_t P = (uint64_t)ranks;
        const uint64_t groups = sizes[k] / DT_LANES + (sizes[k] % DT_LANES != 0);
        const uint32_t before = (uint32_t)((P - 1) * groups / P) * DT_LANES;
        DT_TRY(dti_check_scopes(net, sizes[k] - before, sizes[k], true));
    }
    return DT_OK;
}

/* Where each worker takes steps of its own, there is no global batch to look at. */
static dt_err dti_check_alone(const char *who, const dt_net *net, int workers) {
    for (const dti_op *op = net->op; op < net->op + net->ops && workers > 1; ++op)
        if (op->scope == DTI_OVER_BATCH)
            return dt_fail(DT_EARG, "%s: %s \"%s\" looks at the batch of all %d workers together, "
                           "but each of them takes its own steps; let it look at the rank or the "
                           "lane group", who, op->layer->class->name, op->layer->name, workers);
    return DT_OK;
}

/* What must be alike on every rank, and what a broadcast of the values cannot mend: the data, and the
   settings. */
static dt_err dti_check_alike(const dt_net *net, const dt_optimizer *opt, dt_comm *comm,
                              const dt_train_desc *d) {
    char text[2048];
    const size_t used = dti_net_settings(text, sizeof text, net, opt);
    dti_train_settings(text + used, sizeof text - used, d, opt->lr);
    const float outer[] = { d->outer ? d->outer->lr : 0.0f, d->outer ? d->outer->momentum : 0.0f,
                            d->outer && d->outer->nesterov ? 1.0f : 0.0f };
    const uint64_t others[] = { dt_hash(outer, sizeof outer, 0),
                                (uint64_t)d->epochs,
                                d->check_every,
                                d->bucket_bytes,
                                (uint64_t)d->algorithm,
                                (uint64_t)d->lr_scaling,
                                d->lr_batch,
                                d->checkpoint != NULL,
                                d->resume != NULL,
                                d->checkpoint_every };
    DT_TRY(dt_comm_same(comm, "the build, or how it rounds",
                        dti_build_hash() ^ dti_arithmetic_hash()));
    DT_TRY(dt_comm_same(comm, "the training data", dti_data_hash(d->data)));
    return dt_comm_same(comm, "the settings of training",
                        dt_hash(others, sizeof others, dt_hash(text, strlen(text), 0)));
}
#endif

/* ==== End ================================================================= */
#if defined(DTI_DECLARE) && defined(__cplusplus)
}
#endif
#undef DTI_DECLARE
#undef DTI_IMPLEMENT

/* MIT License

   Copyright (c) 2026 the dtrain authors

   Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
   associated documentation files (the "Software"), to deal in the Software without restriction, including
   without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
   copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the
   following conditions:

   The above copyright notice and this permission notice shall be included in all copies or substantial
   portions of the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT
   LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO
   EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER
   IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR
   THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
