/* What [S1.2] promises of arguments that cannot be meant, of every public function, from one table: a ROW for each DT_API
   in dtrain.h, in the order of its sections, which calls it wrongly in this very process: NULL, out of range, too large, too
   early, twice, for another net. Each such call must return its error, NULL or neutral value, and leave one sentence that says
   why. A function without a row fails the test; so does a row without a function.

   Beside the table, every function is called as its declaration alone suggests (tests/contract_calls.py): NULL, and the ends
   of the numbers' types. And a net goes on as if nothing had been, whatever has failed on it.

       test_contract               all rows
       test_contract dt_forward    that row alone */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define DTRAIN_WITH_THREADS
#define DTRAIN_WITH_CHARTS
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

#ifndef HEADER
#define HEADER "dtrain.h"
#endif

/* AddressSanitizer, where it is built in, else ends the process at a request for too much memory. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

/* ---- The table's words. */

static const char *only, *function;            /* the row asked for; the one that runs */
static char seen[400][40];                     /* all rows */
static int rows, failures;

static bool row(const char *name) {
    if (rows < 400) snprintf(seen[rows++], sizeof seen[0], "%s", name);
    function = name;
    return !only || strcmp(only, name) == 0;
}
#define ROW(name) if (row(#name) && sizeof &(name))
#define ROW_ELSEWHERE(name) (void)row(#name)   /* of a function that this build does not have */

static bool fresh(void) {
    dt_fail(DT_OK, "nothing was said");
    return true;
}

static void failed(int line, const char *call, const char *how) {
    printf("%s, line %d: %s: %s: \"%s\"\n", function, line, call, how, dt_error());
    ++failures;
}

static bool said(const char *part) { return strstr(dt_error(), part) && !strchr(dt_error(), '\n') && !strstr(dt_error(), "nothing was said"); }

static void refuses(int line, const char *call, dt_err got, dt_err wanted, const char *part) {
    char how[128];
    snprintf(how, sizeof how, "wanted %s with \"%s\", got %s", dt_err_name(wanted), part, dt_err_name(got));
    if (got != wanted || !said(part)) failed(line, call, how);
}

/* The call returns that error, and a sentence with that part. */
#define REFUSES(call, error, part) (fresh(), refuses(__LINE__, #call, (call), error, part))
/* The neutral value, and a sentence. Of what returns nothing: NEUTRAL(DONE(call), part). */
#define NEUTRAL(same, part) (fresh() && (same) && said(part) ? (void)0 : failed(__LINE__, #same, "wanted a neutral value, and \"" part "\""))
#define DONE(call) ((call), true)
/* And what must go on working. */
#define WORKS(same) (fresh() && (same) ? (void)0 : failed(__LINE__, #same, "should work"))

/* ---- What the rows call with. */

static const dt_build_desc four = { .batch = 4, .seed = 1 };
static const dt_sgd_desc plain = { .lr = 0.1f };
static uint8_t pixels[64 * 36], labels[64];
static float mean[1] = { 0.5f }, deviation[1] = { 0.25f };
static const uint32_t index4[4] = { 0, 1, 2, 3 };
static const dt_dataset set = { .name = "noise", .count = 64, .channels = 1, .height = 6, .width = 6, .classes = 3, .mean = mean,
                                .std = deviation, .pixels = pixels, .labels = labels };
static const dt_batch batch = { .pixels = pixels, .labels = labels, .mean = mean, .std = deviation, .index = index4, .count = 4, .global_count = 4 };

static dt_net *unbuilt(void) {
    dt_net *net = dt_net_new(1, 6, 6);
    dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 3, .kernel = 3 });
    dt_relu(net);
    dt_dropout(net, 0.5f);
    dt_linear(net, "fc", 3);
    return net;
}

static dt_net *built(void) {
    dt_net *net = unbuilt();
    if (dt_net_build(net, &four) != DT_OK) fail_msg("%s", dt_error());
    return net;
}

/* Layers that cannot be meant: dt_net_build returns the error. */
#define BUILD_REFUSES(error, part, ...) do { \
        dt_net *net = dt_net_new(1, 6, 6); \
        __VA_ARGS__; \
        dt_linear(net, "last", 3); \
        REFUSES(dt_net_build(net, &four), error, part); \
        dt_net_free(net); \
    } while (0)

/* What a chart was told wrongly: writing it returns the error. */
#define CHART_REFUSES(error, part, ...) do { \
        dt_chart *c = dt_chart_new(NULL); \
        __VA_ARGS__; \
        REFUSES(dt_chart_write(c, "contract.png"), error, part); \
        dt_chart_free(c); \
    } while (0)

/* ---- [S1] to [S3] */

static void rows_of_the_ground(void) {
    ROW(dt_error) WORKS(dt_error() != NULL);
    ROW(dt_err_name) {
        WORKS(strcmp(dt_err_name((dt_err)99), "unknown") == 0);
        WORKS(strcmp(dt_err_name((dt_err)-1), "unknown") == 0);
    }
    ROW(dt_version) WORKS(strcmp(dt_version(), DTRAIN_VERSION) == 0);
    ROW(dt_now) WORKS(dt_now() > 0.0);
    ROW(dt_cores) WORKS(dt_cores() >= 1);
    ROW(dt_kernel_name) WORKS(*dt_kernel_name());
    ROW(dt_check_processor) WORKS(dt_check_processor() == DT_OK); /* where it is not: tests/test_builds.sh */
    ROW(dt_philox) WORKS(dt_philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX).v[0] != dt_philox(0, 0, 0, 0, 0).v[0]);
    ROW(dt_uniform) WORKS(dt_uniform(UINT32_MAX) < 1.0f && dt_uniform(0) >= 0.0f);
    ROW(dt_permutation) {
        uint32_t out[2] = { 7, 8 };
        NEUTRAL(DONE(dt_permutation(NULL, 3, 1, 1, 1)), "out must not be NULL");
#if SIZE_MAX > UINT32_MAX
        NEUTRAL(DONE(dt_permutation(out, (size_t)UINT32_MAX + 2, 1, 1, 1)), "4294967297 numbers");
#endif
        dt_permutation(NULL, 0, 1, 1, 1);
        WORKS(out[0] == 7 && out[1] == 8);
    }
    ROW(dt_hash) {
        NEUTRAL(dt_hash(NULL, 8, 0) == 0, "bytes must not be NULL");
        WORKS(dt_hash(NULL, 0, 5) == dt_hash("", 0, 5));
    }
    ROW(dt_tensor_count) {
        NEUTRAL(dt_tensor_count(NULL) == 0, "must not be NULL");
        NEUTRAL(dt_tensor_count(&(dt_tensor){ NULL, 5, { 2, 2, 2, 2 } }) == 0, "rank of 5");
        NEUTRAL(dt_tensor_count(&(dt_tensor){ NULL, -1, { 2, 2, 2, 2 } }) == 0, "rank of -1");
        NEUTRAL(dt_tensor_count(&(dt_tensor){ NULL, 2, { 2, -2, 0, 0 } }) == 0, "size 1 of its shape is -2");
        NEUTRAL(dt_tensor_count(&(dt_tensor){ NULL, 3, { INT_MAX, INT_MAX, INT_MAX, 0 } }) == 0, "more elements");
    }
    ROW(dt_tensor_at) {
        float x[6];
        const dt_tensor t = { x, 2, { 2, 3, 0, 0 } };
        NEUTRAL(dt_tensor_at(NULL, 0, 0, 0, 0) == NULL, "must not be NULL");
        NEUTRAL(dt_tensor_at(&(dt_tensor){ NULL, 1, { 2, 0, 0, 0 } }, 0, 0, 0, 0) == NULL, "must not be NULL");
        NEUTRAL(dt_tensor_at(&t, 0, 3, 0, 0) == NULL, "index 1 is 3");
        NEUTRAL(dt_tensor_at(&t, -1, 0, 0, 0) == NULL, "index 0 is -1");
        WORKS(dt_tensor_at(&t, 1, 2, 99, -99) == x + 5);
    }
    ROW(dt_fixed_add) {
        int64_t sum[8] = { 0 };
        float x[8] = { 1.0f, -1e11f, 1.0f, -1.03e11f, -1e30f, INFINITY, NAN, 1.0f };
        NEUTRAL(dt_fixed_add(NULL, x, 2, DT_FIXED_UNIT, 1.0f) == 0, "sum and x");
        NEUTRAL(dt_fixed_add(sum, NULL, 2, DT_FIXED_UNIT, 1.0f) == 0, "sum and x");
        WORKS(dt_fixed_add(sum, x, 8, DT_FIXED_UNIT, INFINITY) == 1 && dt_fixed_add(sum, x, 8, DT_FIXED_UNIT, NAN) == 0 && dt_fixed_add(NULL, NULL, 0, DT_FIXED_UNIT, 1.0f) == 0);
        const float units[] = { 0.0f, -1.0f, 3.0f, 0x1p-127f, 0x1p66f, INFINITY, NAN };
        for (int i = 0; i < 7; ++i) NEUTRAL(dt_fixed_add(sum, x, 1, units[i], 1.0f) == 0, "needs a power of two");
        for (int i = 1; i < 7; ++i) WORKS((dti_fixed_add(sum, x + i, 1, DT_FIXED_UNIT) <= FLT_MAX) == (i < 5));
    }
    ROW(dt_fixed_limit) {
        WORKS(dt_fixed_limit(0, DT_FIXED_UNIT) > 0.0f && dt_fixed_limit(SIZE_MAX, DT_FIXED_UNIT) > 0.0f);
        NEUTRAL(dt_fixed_limit(1, 0.3f) <= 0.0f, "needs a power of two");
    }
    ROW(dt_fixed_to_float) {
        float x;
        NEUTRAL(DONE(dt_fixed_to_float(NULL, &(int64_t){ 1 }, 1, DT_FIXED_UNIT)), "out and sum");
        NEUTRAL(DONE(dt_fixed_to_float(&x, NULL, 1, DT_FIXED_UNIT)), "out and sum");
    }
}

/* ---- [E1] */

static void rows_of_the_kernels(void) {
    float x[64] = { 0 }, y[64];
    ROW(dt_conv2d_naive) {
        REFUSES(dt_conv2d_naive(NULL, x, x, x, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "y, x and w");
        REFUSES(dt_conv2d_naive(y, NULL, x, x, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "y, x and w");
        REFUSES(dt_conv2d_naive(y, x, NULL, x, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "y, x and w");
        REFUSES(dt_conv2d_naive(y, x, x, x, 0, 1, 4, 4, 1, 3, 1, 0), DT_ESHAPE, "N=0");
        REFUSES(dt_conv2d_naive(y, x, x, x, 1, 1, 4, 4, 1, 3, 0, 0), DT_ESHAPE, "S=0");
        REFUSES(dt_conv2d_naive(y, x, x, x, 1, 1, 4, 4, 1, 3, 1, INT_MAX), DT_ESHAPE, "padding 2147483647");
        REFUSES(dt_conv2d_naive(y, x, x, x, 1, 1, 4, 4, 1, 3, 1, 1 << 30), DT_ESHAPE, "can be counted");
        REFUSES(dt_conv2d_naive(y, x, x, x, 65536, 65536, 65536, 65536, 1, 3, 1, 0), DT_ESHAPE, "can be counted");
        REFUSES(dt_conv2d_naive(y, x, x, x, 1 << 28, 1, 4, 4, INT_MAX, 3, 1, 900), DT_ESHAPE, "can be counted");
        WORKS(dt_conv2d_naive(y, x, x, NULL, 1, 1, 4, 4, 1, 3, INT_MAX, 0) == DT_OK);
    }
    ROW(dt_conv2d_naive_backward_data) {
        REFUSES(dt_conv2d_naive_backward_data(NULL, x, x, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "dx, dy and w");
        REFUSES(dt_conv2d_naive_backward_data(y, NULL, x, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "dx, dy and w");
        REFUSES(dt_conv2d_naive_backward_data(y, x, NULL, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "dx, dy and w");
        REFUSES(dt_conv2d_naive_backward_data(y, x, x, 1, 1, 4, 4, 1, 5, 1, 0), DT_ESHAPE, "no room");
    }
    ROW(dt_conv2d_naive_backward_weights) {
        REFUSES(dt_conv2d_naive_backward_weights(NULL, y, x, x, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "dw, dy and x");
        REFUSES(dt_conv2d_naive_backward_weights(y, y, NULL, x, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "dw, dy and x");
        REFUSES(dt_conv2d_naive_backward_weights(y, y, x, NULL, 1, 1, 4, 4, 1, 3, 1, 0), DT_EARG, "dw, dy and x");
        REFUSES(dt_conv2d_naive_backward_weights(y, y, x, x, -1, 1, 4, 4, 1, 3, 1, 0), DT_ESHAPE, "N=-1");
    }
    ROW(dt_lane_conv_new) {
        NEUTRAL(!dt_lane_conv_new(0, 8, 8, 1, 3, 0), "no convolution of 0 x 8 x 8");
        NEUTRAL(!dt_lane_conv_new(1, 8, 8, 1, 9, 0), "with 1 x 1 x 9 x 9");
        NEUTRAL(!dt_lane_conv_new(1, 8, INT_MIN, 1, 3, 0), "no convolution");
        NEUTRAL(!dt_lane_conv_new(INT_MAX, INT_MAX, INT_MAX, INT_MAX, 3, 0), "no convolution");
        NEUTRAL(!dt_lane_conv_new(1, 8, 8, 1, 3, 5), "no F(5,3)");
        NEUTRAL(!dt_lane_conv_new(1, 8, 8, 1, 4, 2), "no F(2,4)");
        NEUTRAL(!dt_lane_conv_new(1, 8, 8, 1, 3, -1), "no F(-1,3)");
    }
    ROW(dt_lane_conv_pack) {
        dt_lane_conv *conv = dt_lane_conv_new(1, 8, 8, 1, 3, 2);
        REFUSES(dt_lane_conv_pack(NULL, x), DT_EARG, "conv and w");
        REFUSES(dt_lane_conv_pack(conv, NULL), DT_EARG, "conv and w");
        WORKS(dt_lane_conv_pack(conv, x) == DT_OK);
        dt_lane_conv_free(conv);
    }
    ROW(dt_lane_conv_forward) {
        dt_lane_conv *conv = dt_lane_conv_new(1, 8, 8, 1, 3, 0);
        float *in = aligned_alloc(64, 2048 * sizeof *in), *out = in + 1024;
        memset(in, 0, 2048 * sizeof *in);
        REFUSES(dt_lane_conv_forward(conv, in, out), DT_EARG, "dt_lane_conv_pack comes first");
        WORKS(dt_lane_conv_pack(conv, x) == DT_OK);
        REFUSES(dt_lane_conv_forward(NULL, in, out), DT_EARG, "conv, x and y");
        REFUSES(dt_lane_conv_forward(conv, NULL, out), DT_EARG, "conv, x and y");
        REFUSES(dt_lane_conv_forward(conv, in, NULL), DT_EARG, "conv, x and y");
        REFUSES(dt_lane_conv_forward(conv, in + 1, out), DT_EARG, "multiples of 64");
        WORKS(dt_lane_conv_forward(conv, in, out) == DT_OK);
        free(in);
        dt_lane_conv_free(conv);
    }
    ROW(dt_lane_conv_free) { WORKS((dt_lane_conv_free(NULL), true)); }
    ROW(dt_maxpool2d_naive) {
        REFUSES(dt_maxpool2d_naive(NULL, x, 1, 1, 4, 4, 2, 2), DT_EARG, "y and x");
        REFUSES(dt_maxpool2d_naive(y, NULL, 1, 1, 4, 4, 2, 2), DT_EARG, "y and x");
        REFUSES(dt_maxpool2d_naive(y, x, 1, 1, 4, 4, 5, 2), DT_ESHAPE, "no 5x5 window");
        REFUSES(dt_maxpool2d_naive(y, x, INT_MAX, INT_MAX, 4, 4, 2, 2), DT_ESHAPE, "can be counted");
    }
    ROW(dt_maxpool2d_naive_backward) {
        REFUSES(dt_maxpool2d_naive_backward(NULL, x, x, 1, 1, 4, 4, 2, 2), DT_EARG, "dx, dy and x");
        REFUSES(dt_maxpool2d_naive_backward(y, NULL, x, 1, 1, 4, 4, 2, 2), DT_EARG, "dx, dy and x");
        REFUSES(dt_maxpool2d_naive_backward(y, x, NULL, 1, 1, 4, 4, 2, 2), DT_EARG, "dx, dy and x");
        REFUSES(dt_maxpool2d_naive_backward(y, x, x, 1, 1, 4, 4, 2, 0), DT_ESHAPE, "stride 0");
    }
    ROW(dt_linear_naive) {
        REFUSES(dt_linear_naive(NULL, x, x, x, 2, 2, 2), DT_EARG, "y, x and w");
        REFUSES(dt_linear_naive(y, NULL, x, x, 2, 2, 2), DT_EARG, "y, x and w");
        REFUSES(dt_linear_naive(y, x, NULL, x, 2, 2, 2), DT_EARG, "y, x and w");
        REFUSES(dt_linear_naive(y, x, x, x, 2, 0, 2), DT_ESHAPE, "I=0");
        REFUSES(dt_linear_naive(y, x, x, x, INT_MAX, INT_MAX, 2), DT_ESHAPE, "can be counted");
    }
    ROW(dt_linear_naive_backward) {
        REFUSES(dt_linear_naive_backward(y, y, y, NULL, x, x, 2, 2, 2), DT_EARG, "dy, and");
        REFUSES(dt_linear_naive_backward(y, NULL, NULL, x, x, NULL, 2, 2, 2), DT_EARG, "w for dx");
        REFUSES(dt_linear_naive_backward(NULL, y, NULL, x, NULL, x, 2, 2, 2), DT_EARG, "x for dw");
        REFUSES(dt_linear_naive_backward(y, y, y, x, x, x, 2, 2, -2), DT_ESHAPE, "O=-2");
        WORKS(dt_linear_naive_backward(NULL, NULL, NULL, x, NULL, NULL, 2, 2, 2) == DT_OK);
    }
}

/* ---- [S8] */

static void rows_of_builders(void) {
    ROW(dt_net_new) {
        const int bad[][3] = { { 0, 6, 6 }, { 1, -1, 6 }, { 1, 6, 65537 }, { INT_MAX, INT_MAX, INT_MAX }, { 65536, 65536, 65536 }, { 65536, 65536, 1 } };
        for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
            dt_net *net = dt_net_new(bad[i][0], bad[i][1], bad[i][2]);
            dt_linear(net, "fc", 3);
            REFUSES(dt_net_build(net, &four), DT_ESHAPE, "makes no image");
            dt_net_free(net);
        }
    }
    ROW(dt_net_free) WORKS(DONE(dt_net_free(NULL)));
    ROW(dt_number_parse) {
        double value;
        REFUSES(dt_number_parse(NULL, &value), DT_EARG, "text and value");
        REFUSES(dt_number_parse("1", NULL), DT_EARG, "text and value");
        REFUSES(dt_number_parse("1,5", &value), DT_EARG, "not a number");
    }
    ROW(dt_here) WORKS(dt_here(NULL).tensor == 0);
    ROW(dt_fail) WORKS(dt_fail(DT_EDATA, "%d and %s", 4, "five") == DT_EDATA && strcmp(dt_error(), "4 and five") == 0);
    ROW(dt_at) {
        BUILD_REFUSES(DT_EARG, "there is no tensor 1", dt_at(net, (dt_node){ 1 }));
        BUILD_REFUSES(DT_EARG, "there is no tensor -1", dt_at(net, (dt_node){ -1 }));
        dt_at(NULL, (dt_node){ 0 });
    }
    ROW(dt_add) {
        BUILD_REFUSES(DT_EARG, "there is no tensor 7", dt_add(net, (dt_node){ 7 }));
        dt_add(NULL, (dt_node){ 0 });
    }
    ROW(dt_conv2d) {
        BUILD_REFUSES(DT_EARG, "desc must not be NULL", dt_conv2d(net, "a", NULL));
        BUILD_REFUSES(DT_EARG, "a name of", dt_conv2d(net, NULL, &(dt_conv2d_desc){ .out = 3, .kernel = 3 }));
        BUILD_REFUSES(DT_EARG, "stride 2147483647", dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 3, .kernel = 3, .stride = INT_MAX }));
        BUILD_REFUSES(DT_EARG, "padding 2147483647", dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 3, .kernel = 3, .padding = INT_MAX }));
        BUILD_REFUSES(DT_EARG, "out 2147483647", dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = INT_MAX, .kernel = 3 }));
        BUILD_REFUSES(DT_ESHAPE, "does not fit", dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 3, .kernel = 7 }));
        BUILD_REFUSES(DT_ESHAPE, "numbers an image", dt_net_free(net); net = dt_net_new(1, 8192, 8192);
                      dt_conv2d(net, "a", &(dt_conv2d_desc){ .out = 65536, .kernel = 1 }));
        REFUSES((dt_conv2d(NULL, "a", NULL), dt_net_build(NULL, &four)), DT_ENOMEM, "memory");
    }
    ROW(dt_maxpool2d) {
        BUILD_REFUSES(DT_EARG, "kernel 0", dt_maxpool2d(net, 0));
        BUILD_REFUSES(DT_EARG, "kernel 2147483647", dt_maxpool2d(net, INT_MAX));
        BUILD_REFUSES(DT_ESHAPE, "larger than", dt_maxpool2d(net, 7));
        WORKS(DONE(dt_maxpool2d(NULL, 2)));
    }
    ROW(dt_avgpool2d) {
        BUILD_REFUSES(DT_EARG, "desc must not be NULL", dt_avgpool2d(net, NULL));
        BUILD_REFUSES(DT_EARG, "kernel 0", dt_avgpool2d(net, &(dt_avgpool2d_desc){ .padding = 0 }));
        BUILD_REFUSES(DT_EARG, "kernel 2147483647", dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = INT_MAX }));
        BUILD_REFUSES(DT_EARG, "padding 2", dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = 3, .padding = 2 }));
        BUILD_REFUSES(DT_EARG, "kernel 2", dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = 2, .global = true }));
        BUILD_REFUSES(DT_ESHAPE, "larger than", dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = 7 }));
        WORKS(DONE(dt_avgpool2d(NULL, NULL)));
    }
    ROW(dt_batchnorm2d) {
        BUILD_REFUSES(DT_EARG, "eps 0", dt_batchnorm2d(net, "bn", &(dt_batchnorm2d_desc){ .momentum = 0.1f }));
        BUILD_REFUSES(DT_EARG, "no kind of statistics number 99", dt_batchnorm2d(net, "bn", &(dt_batchnorm2d_desc){ DT_BATCHNORM2D_DEFAULTS, .over = (dt_statistics)99 }));
        BUILD_REFUSES(DT_EARG, "a name of", dt_batchnorm2d(net, NULL, NULL));
        WORKS(DONE(dt_batchnorm2d(NULL, "bn", NULL)));
    }
    ROW(dt_sigmoid) WORKS(DONE(dt_sigmoid(NULL)));
    ROW(dt_tanh) WORKS(DONE(dt_tanh(NULL)));
    ROW(dt_relu) {
        dt_net *net = built();
        dt_relu(net); /* too late: whatever would run the net says so */
        REFUSES(dt_net_load(net, &batch), DT_EARG, "relu: the net is built already");
        REFUSES(dt_forward(net), DT_EARG, "built already");
        REFUSES(dt_net_build(net, &four), DT_EARG, "built already");
        REFUSES(dt_save(net, "contract.net"), DT_EARG, "built already");
        NEUTRAL(dt_sgd(net, &plain) == NULL, "built already");
        dt_net_free(net);
        WORKS(DONE(dt_relu(NULL)));
    }
    ROW(dt_dropout) {
        BUILD_REFUSES(DT_EARG, "probability 1", dt_dropout(net, 1.0f));
        BUILD_REFUSES(DT_EARG, "probability nan", dt_dropout(net, NAN));
        WORKS(DONE(dt_dropout(NULL, 0.5f)));
    }
    ROW(dt_dropout2d) {
        BUILD_REFUSES(DT_EARG, "probability -1", dt_dropout2d(net, -1.0f));
        WORKS(DONE(dt_dropout2d(NULL, 0.5f)));
    }
    ROW(dt_linear) {
        BUILD_REFUSES(DT_EARG, "0 outputs", dt_linear(net, "a", 0));
        BUILD_REFUSES(DT_EARG, "2147483647 outputs", dt_linear(net, "a", INT_MAX));
        BUILD_REFUSES(DT_EARG, "a name of", dt_linear(net, NULL, 3));
        WORKS(DONE(dt_linear(NULL, "a", 3)));
    }
    ROW(dt_net_build) {
        dt_net *net = unbuilt();
        REFUSES(dt_net_build(NULL, &four), DT_ENOMEM, "memory");
        REFUSES(dt_net_build(net, NULL), DT_EARG, "desc must not be NULL");
        REFUSES(dt_net_build(net, &(dt_build_desc){ .batch = INT_MAX }), DT_EARG, "batch 2147483647");
        REFUSES(dt_net_build(net, &(dt_build_desc){ .batch = 4, .loss = DT_LOSSES }), DT_EARG, "no loss number 3");
        WORKS(dt_net_build(net, &four) == DT_OK);
        REFUSES(dt_net_build(net, &four), DT_EARG, "built already");
        dt_net_free(net);
        net = dt_net_new(4096, 128, 128); /* numbers that can be counted, and not be had: 2^46 weights, 2^26 numbers an image */
        dt_linear(net, "fc", 1 << 20);
        REFUSES(dt_net_build(net, &(dt_build_desc){ .batch = 1 << 20 }), DT_ENOMEM, "cannot allocate");
        REFUSES(dt_net_build(net, &(dt_build_desc){ .batch = 1 }), DT_ENOMEM, "cannot allocate");
        dt_net_free(net);
    }
    ROW(dt_net_clone) {
        dt_net *net = unbuilt();
        NEUTRAL(dt_net_clone(NULL) == NULL, "net must not be NULL");
        NEUTRAL(dt_net_clone(net) == NULL, "dt_net_build comes first");
        dt_net_free(net);
    }
}

static void rows_of_running(void) {
    dt_net *none = unbuilt(), *net = built();
    float out[3] = { 0 };
    ROW(dt_net_load) {
        dt_batch b = batch;
        REFUSES(dt_net_load(NULL, &batch), DT_EARG, "net must not be NULL");
        REFUSES(dt_net_load(net, NULL), DT_EARG, "batch must not be NULL");
        REFUSES(dt_net_load(none, &batch), DT_EARG, "dt_net_build comes first");
        const size_t parts[] = { offsetof(dt_batch, pixels), offsetof(dt_batch, index) };
        for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
            b = batch;
            memset((char *)&b + parts[i], 0, sizeof(void *));
            REFUSES(dt_net_load(net, &b), DT_EARG, "must not be NULL");
        }
        static const float values[4 * 36] = { 0 };
        b = batch, b.mean = NULL;
        REFUSES(dt_net_load(net, &b), DT_EARG, "of mean and std both or none");
        b = batch, b.values = values;
        REFUSES(dt_net_load(net, &b), DT_EARG, "of pixels and values a batch has one");
        b.pixels = NULL, b.mean = b.std = NULL;
        WORKS(dt_net_load(net, &b) == DT_OK);
        b.augment = &(dt_augment){ .flip = 0.5f };
        REFUSES(dt_net_load(net, &b), DT_EARG, "needs pixels, and room");
        b = batch, b.augment = &(dt_augment){ .flip = 0.5f };
        REFUSES(dt_net_load(net, &b), DT_EARG, "needs pixels, and room for 16 images");
        static uint8_t room[16 * 36];
        b.room = room;
        WORKS(dt_net_load(net, &b) == DT_OK);
        b.augment = &(dt_augment){ .flip = 2.0f };
        REFUSES(dt_net_load(net, &b), DT_EARG, "flip is 2, outside of 0 to 1");
        b = batch, b.count = b.global_count = UINT32_MAX;
        REFUSES(dt_net_load(net, &b), DT_ESHAPE, "4294967295 samples");
        b = batch, b.channels = 1, b.height = 6, b.width = 7;
        REFUSES(dt_net_load(net, &b), DT_ESHAPE, "1 x 6 x 7 images, the net expects 1 x 6 x 6");
        b = batch, b.rows = 3;
        REFUSES(dt_net_load(net, &b), DT_EARG, "index[3] is row 3, the data have 3");
        b = batch, b.std = &(float){ 0.0f };
        REFUSES(dt_net_load(net, &b), DT_EARG, "standard deviation 0");
        b = batch, b.mean = &(float){ NAN };
        REFUSES(dt_net_load(net, &b), DT_EARG, "the mean nan");
        b = batch, b.labels = NULL, b.targets = (const float[64]){ 0 }, b.target_width = 2;
        REFUSES(dt_net_load(net, &b), DT_ESHAPE, "rows of 2 targets, the net has 3 outputs");
        b = (dt_batch){ .global_count = 4 };
        WORKS(dt_net_load(net, &b) == DT_OK && dt_forward(net) == DT_OK && dt_backward(net) == DT_OK); /* a rank without work */
    }
    ROW(dt_net_training) {
        NEUTRAL(DONE(dt_net_training(NULL, true)), "net must not be NULL");
        WORKS(dt_net_load(net, &batch) == DT_OK && dt_forward(net) == DT_OK);
        dt_net_training(net, false);
        REFUSES(dt_backward(net), DT_EARG, "dt_forward comes before"); /* the masks of dropout are another forward's */
        dt_net_training(net, true);
    }
    ROW(dt_forward) {
        const uint8_t bad_labels[4] = { 0, 1, 3, 0 };
        dt_batch b = batch;
        b.labels = bad_labels;
        REFUSES(dt_forward(NULL), DT_EARG, "net must not be NULL");
        REFUSES(dt_forward(none), DT_EARG, "dt_net_build comes first");
        WORKS(dt_net_load(net, &batch) == DT_OK && dt_forward(net) == DT_OK);
        REFUSES(dt_net_load(net, &b), DT_EDATA, "label 3"); /* nothing is left to run, until a load succeeds */
        REFUSES(dt_forward(net), DT_EARG, "dt_net_load that succeeds comes first");
        REFUSES(dt_backward(net), DT_EARG, "dt_forward comes before");
        WORKS(dt_net_load(net, &batch) == DT_OK && dt_forward(net) == DT_OK && dt_backward(net) == DT_OK);
    }
    ROW(dt_backward) {
        REFUSES(dt_backward(NULL), DT_EARG, "net must not be NULL");
        REFUSES(dt_backward(none), DT_EARG, "dt_net_build comes first");
        WORKS(dt_net_load(net, &batch) == DT_OK);
        REFUSES(dt_backward(net), DT_EARG, "dt_forward comes before");
        WORKS(dt_forward(net) == DT_OK);
        dt_net_values(net)[0] = NAN; /* a forward that fails after one that did not */
        REFUSES(dt_forward(net), DT_ENUMERIC, "conv.weight[0] is nan");
        REFUSES(dt_backward(net), DT_EARG, "dt_forward comes before");
        dt_net_values(net)[0] = 0.0f;
    }
    ROW(dt_accumulate_gradients) {
        dt_batch b = batch;
        REFUSES(dt_accumulate_gradients(NULL, &batch, 1), DT_EARG, "net must not be NULL");
        REFUSES(dt_accumulate_gradients(none, &batch, 1), DT_EARG, "dt_net_build comes first");
        REFUSES(dt_accumulate_gradients(net, NULL, 2), DT_EARG, "batch must not be NULL");
        b.labels = NULL;
        REFUSES(dt_accumulate_gradients(net, &b, 2), DT_EARG, "the batch has no labels");
        for (uint32_t parts = 0; parts <= 3; ++parts) WORKS(dt_accumulate_gradients(net, &batch, parts) == DT_OK);
        REFUSES(dt_forward(net), DT_EARG, "dt_net_load that succeeds comes first");
        REFUSES(dt_backward(net), DT_EARG, "dt_forward comes before");
        WORKS(dt_net_load(net, &batch) == DT_OK && dt_forward(net) == DT_OK && dt_backward(net) == DT_OK);
        static uint32_t many[64];
        b = batch, b.index = many, b.count = b.global_count = 48; /* of 16 at once */
        REFUSES(dt_accumulate_gradients(net, &b, 2), DT_ESHAPE, "32 samples, built for at most 16");
        WORKS(dt_accumulate_gradients(net, &b, 3) == DT_OK && dt_net_score(net).count == 48);
        b.count = 64;
        REFUSES(dt_accumulate_gradients(net, &b, 4), DT_EARG, "64 samples here but 48 in the global batch");
    }
    ROW(dt_backward_from) {
        dt_batch b = batch;
        REFUSES(dt_backward_from(NULL, out), DT_EARG, "net must not be NULL");
        REFUSES(dt_backward_from(none, out), DT_EARG, "dt_net_build comes first");
        b.labels = NULL; /* logits, and no loss */
        WORKS(dt_net_load(net, &b) == DT_OK);
        REFUSES(dt_backward_from(net, (const float[12]){ 0 }), DT_EARG, "dt_forward comes before dt_backward_from");
        WORKS(dt_forward(net) == DT_OK && dt_net_score(net).count == 0);
        REFUSES(dt_backward(net), DT_EARG, "the batch has no labels, and the loss is cross-entropy");
        REFUSES(dt_backward_from(net, NULL), DT_EARG, "dlogits must not be NULL");
        WORKS(dt_backward_from(net, (const float[12]){ 0 }) == DT_OK);
        REFUSES(dt_backward_from(net, (const float[12]){ NAN }), DT_ENUMERIC, "gradient of");
    }
    ROW(dt_loss_name) {
        WORKS(strcmp(dt_loss_name(DT_LOSSES), "?") == 0);
        WORKS(strcmp(dt_loss_name((dt_loss)-1), "?") == 0);
    }
    ROW(dt_net_on_gradient) NEUTRAL(DONE(dt_net_on_gradient(NULL, NULL, NULL)), "net must not be NULL");
    ROW(dt_net_on_sums) NEUTRAL(DONE(dt_net_on_sums(NULL, NULL, NULL)), "net must not be NULL");
    ROW(dt_net_count) NEUTRAL(dt_net_count(NULL) == 0, "net must not be NULL");
    ROW(dt_net_values) {
        NEUTRAL(dt_net_values(NULL) == NULL, "net must not be NULL");
        NEUTRAL(dt_net_values(none) == NULL, "dt_net_build comes first");
    }
    ROW(dt_net_gradients) {
        NEUTRAL(dt_net_gradients(NULL) == NULL, "net must not be NULL");
        NEUTRAL(dt_net_gradients(none) == NULL, "dt_net_build comes first");
    }
    ROW(dt_net_param_count) NEUTRAL(dt_net_param_count(NULL) == 0, "net must not be NULL");
    ROW(dt_net_param) {
        NEUTRAL(dt_net_param(NULL, 0) == NULL, "net must not be NULL");
        NEUTRAL(dt_net_param(net, -1) == NULL, "no parameter -1");
        NEUTRAL(dt_net_param(net, 4) == NULL, "no parameter 4");
    }
    ROW(dt_net_find) {
        NEUTRAL(dt_net_find(NULL, "fc.bias") == NULL, "must not be NULL");
        NEUTRAL(dt_net_find(net, NULL) == NULL, "must not be NULL");
        NEUTRAL(dt_net_find(net, "fc.bananas") == NULL, "fc.bananas");
    }
    ROW(dt_net_hash) {
        NEUTRAL(dt_net_hash(NULL) == 0, "net must not be NULL");
        NEUTRAL(dt_net_hash(none) == 0, "dt_net_build comes first");
    }
    ROW(dt_net_classes) NEUTRAL(dt_net_classes(NULL) == 0, "net must not be NULL");
    ROW(dt_net_bytes) NEUTRAL(dt_net_bytes(NULL) == 0, "net must not be NULL");
    ROW(dt_net_flops) NEUTRAL(!(dt_net_flops(NULL) > 0.0), "net must not be NULL");
    ROW(dt_net_score) NEUTRAL(dt_net_score(NULL).count == 0, "net must not be NULL");
    ROW(dt_net_logits) {
        REFUSES(dt_net_logits(NULL, 0, out), DT_EARG, "net must not be NULL");
        REFUSES(dt_net_logits(none, 0, out), DT_EARG, "dt_net_build comes first");
        WORKS(dt_net_load(net, &batch) == DT_OK);
        REFUSES(dt_net_logits(net, 0, out), DT_EARG, "dt_forward comes first");
        WORKS(dt_forward(net) == DT_OK && dt_net_logits(net, 3, out) == DT_OK);
        REFUSES(dt_net_logits(net, 0, NULL), DT_EARG, "out must not be NULL");
        REFUSES(dt_net_logits(net, 4, out), DT_EARG, "sample 4 of a batch of 4");
        REFUSES(dt_net_logits(net, INT_MAX, out), DT_EARG, "sample 2147483647");
        REFUSES(dt_net_logits(net, -1, out), DT_EARG, "sample -1");
    }
    ROW(dt_net_log_probabilities) {
        REFUSES(dt_net_log_probabilities(NULL, 0, out), DT_EARG, "net must not be NULL");
        WORKS(dt_net_load(net, &batch) == DT_OK);
        REFUSES(dt_net_log_probabilities(net, 0, out), DT_EARG, "dt_forward comes first");
        WORKS(dt_forward(net) == DT_OK && dt_net_log_probabilities(net, 3, out) == DT_OK);
        REFUSES(dt_net_log_probabilities(net, 16, out), DT_EARG, "sample 16 of a batch of 4");
        REFUSES(dt_net_log_probabilities(net, 0, NULL), DT_EARG, "out must not be NULL");
    }
    ROW(dt_predict) {
        float many[160];
        REFUSES(dt_predict(NULL, &set, 0, 1, many), DT_EARG, "net must not be NULL");
        REFUSES(dt_predict(none, &set, 0, 1, many), DT_EARG, "dt_net_build comes first");
        REFUSES(dt_predict(net, NULL, 0, 1, many), DT_EARG, "data and out must not be NULL");
        REFUSES(dt_predict(net, &set, 0, 1, NULL), DT_EARG, "data and out must not be NULL");
        REFUSES(dt_predict(net, &set, set.count, 1, many), DT_EARG, "dt_predict: samples");
        REFUSES(dt_predict(net, &set, 1, UINT32_MAX, many), DT_EARG, "dt_predict: samples");
        WORKS(dt_predict(net, &set, 0, 0, many) == DT_OK);
    }
    ROW(dt_net_summary) {
        char text[8] = "full";
        NEUTRAL(DONE(dt_net_summary(NULL, text, sizeof text)) && !*text, "net must not be NULL");
        NEUTRAL(DONE(dt_net_summary(net, NULL, 8)), "text must not be NULL");
        WORKS(DONE(dt_net_summary(net, NULL, 0)));
    }
    ROW(dt_net_profile) {
        REFUSES(dt_net_profile(NULL, true), DT_EARG, "net must not be NULL");
        REFUSES(dt_net_profile(none, true), DT_EARG, "dt_net_build comes first"); /* more layers may come */
    }
    ROW(dt_net_layers) NEUTRAL(dt_net_layers(NULL) == 0, "net must not be NULL");
    ROW(dt_net_layer) {
        NEUTRAL(dt_net_layer(NULL, 0, NULL, NULL) == NULL, "net must not be NULL");
        NEUTRAL(dt_net_layer(net, 4, NULL, NULL) == NULL, "no layer 4");
        NEUTRAL(dt_net_layer(net, -1, NULL, NULL) == NULL, "no layer -1");
        WORKS(dt_net_layer(net, 0, NULL, NULL) != NULL);
    }
    ROW(dt_score_loss) NEUTRAL(!(dt_score_loss(NULL) > 0.0), "score must not be NULL");
    ROW(dt_score_accuracy) NEUTRAL(!(dt_score_accuracy(NULL) > 0.0), "score must not be NULL");
    ROW(dt_score_add) {
        dt_score a = { 1, 1, 1 };
        NEUTRAL(DONE(dt_score_add(NULL, &a)), "sum and more");
        NEUTRAL(DONE(dt_score_add(&a, NULL)) && a.count == 1, "sum and more");
    }
    dt_net_free(none);
    dt_net_free(net);
}

/* ---- [S9] */

static void rows_of_optimizers(void) {
    dt_net *none = unbuilt(), *net = built();
    dt_optimizer *opt = dt_sgd(net, &plain);
    ROW(dt_sgd) {
        NEUTRAL(dt_sgd(NULL, &plain) == NULL, "must be built first");
        NEUTRAL(dt_sgd(net, NULL) == NULL, "desc must not be NULL");
        NEUTRAL(dt_sgd(none, &plain) == NULL, "must be built first");
        NEUTRAL(dt_sgd(net, &(dt_sgd_desc){ .lr = NAN }) == NULL, "learning rate nan");
        NEUTRAL(dt_sgd(net, &(dt_sgd_desc){ .lr = 0.0f }) == NULL, "learning rate 0");
    }
    ROW(dt_adam_defaults) { WORKS(dt_adam_defaults().beta2 == 0.999f && dt_adam_defaults().weight_decay == 0.0f); }
    ROW(dt_adamw_defaults) { WORKS(dt_adamw_defaults().beta2 == 0.999f && dt_adamw_defaults().weight_decay == 1e-2f); }
    ROW(dt_novograd_defaults) { WORKS(dt_novograd_defaults().beta1 == 0.95f && !dt_novograd_defaults().averaging); }
    ROW(dt_adam) {
        const dt_adam_desc adam = { DT_ADAM_DEFAULTS };
        NEUTRAL(dt_adam(NULL, &adam) == NULL, "must be built first");
        NEUTRAL(dt_adam(net, NULL) == NULL, "desc must not be NULL");
        NEUTRAL(dt_adam(none, &adam) == NULL, "must be built first");
        NEUTRAL(dt_adam(net, &(dt_adam_desc){ .lr = 1.0f, .beta1 = NAN }) == NULL, "beta1 nan");
    }
    ROW(dt_adamw) {
        const dt_adam_desc adamw = { DT_ADAMW_DEFAULTS };
        NEUTRAL(dt_adamw(NULL, &adamw) == NULL, "adamw: the net must be built first");
        NEUTRAL(dt_adamw(net, NULL) == NULL, "desc must not be NULL");
        NEUTRAL(dt_adamw(none, &adamw) == NULL, "must be built first");
        NEUTRAL(dt_adamw(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS, .weight_decay = -1.0f }) == NULL, "adamw: beta1 0.9");
    }
    ROW(dt_novograd) {
        const dt_novograd_desc novograd = { DT_NOVOGRAD_DEFAULTS };
        NEUTRAL(dt_novograd(NULL, &novograd) == NULL, "novograd: the net must be built first");
        NEUTRAL(dt_novograd(net, NULL) == NULL, "desc must not be NULL");
        NEUTRAL(dt_novograd(none, &novograd) == NULL, "must be built first");
        NEUTRAL(dt_novograd(net, &(dt_novograd_desc){ .lr = 1.0f, .eps = 1e-8f, .beta2 = 1.0f }) == NULL, "beta2 1");
        NEUTRAL(dt_novograd(net, &(dt_novograd_desc){ DT_NOVOGRAD_DEFAULTS, .weight_decay = NAN }) == NULL, "weight decay nan");
    }
    ROW(dt_optimizer_group) {
        REFUSES(dt_optimizer_group(NULL, &(dt_group_desc){ .names = "*" }), DT_EARG, "opt, desc and its names");
        REFUSES(dt_optimizer_group(opt, NULL), DT_EARG, "opt, desc and its names");
        REFUSES(dt_optimizer_group(opt, &(dt_group_desc){ .frozen = true }), DT_EARG, "opt, desc and its names");
        REFUSES(dt_optimizer_group(opt, &(dt_group_desc){ .names = "*.biases" }), DT_EARG, "fits no trained parameter");
        REFUSES(dt_optimizer_group(opt, &(dt_group_desc){ .names = "*", .lr_factor = NAN }), DT_EARG, "factor nan");
        REFUSES(dt_optimizer_group(opt, &(dt_group_desc){ .names = "*", .weight_decay = -1.0f }), DT_EARG, "weight decay -1");
    }
    ROW(dt_optimizer_clip) {
        REFUSES(dt_optimizer_clip(NULL, 1.0f), DT_EARG, "opt must not be NULL");
        REFUSES(dt_optimizer_clip(opt, -1.0f), DT_EARG, "a norm of -1");
        REFUSES(dt_optimizer_clip(opt, INFINITY), DT_EARG, "a norm of inf");
        WORKS(dt_optimizer_clip(opt, 0.0f) == DT_OK);
    }
    ROW(dt_schedule_lr) {
        const dt_schedule cosine = { .curve = DT_LR_COSINE, .over = 5, .by_step = true };
        dt_schedule s = { .curve = DT_LR_CURVES };
        NEUTRAL(!(dt_schedule_lr(&s, 1.0f, 0, 0) > 0.0f), "no curve number 4");
        s.curve = DT_LR_LINEAR;
        NEUTRAL(!(dt_schedule_lr(&s, 1.0f, 0, 0) > 0.0f), "piece 1 lasts over 0");
        s = (dt_schedule){ .curve = DT_LR_STEPS, .factor = 0.5f };
        NEUTRAL(!(dt_schedule_lr(&s, 1.0f, 0, 0) > 0.0f), "every 0");
        s = (dt_schedule){ .curve = DT_LR_STEPS, .every = 3, .factor = NAN };
        NEUTRAL(!(dt_schedule_lr(&s, 1.0f, 0, 0) > 0.0f), "piece 1: nan may not be negative");
        s = (dt_schedule){ .curve = DT_LR_COSINE, .over = 3, .end = -1.0f };
        NEUTRAL(!(dt_schedule_lr(&s, 1.0f, 0, 0) > 0.0f), "piece 1: -1 may not be negative");
        s = (dt_schedule){ .then = &cosine };
        NEUTRAL(!(dt_schedule_lr(&s, 1.0f, 0, 0) > 0.0f), "piece 1 lasts over 0");
        s.over = 2;
        NEUTRAL(!(dt_schedule_lr(&s, 1.0f, 0, 0) > 0.0f), "piece 2 counts steps");
        s.then = &s; /* in a circle */
        NEUTRAL(!(dt_schedule_lr(&s, 1.0f, 0, 0) > 0.0f), "more than 64 pieces");
        WORKS(dt_schedule_lr(NULL, 1.0f, 7, 9) > 0.5f);
    }
    ROW(dt_lr_scaled) {
        NEUTRAL(!(dt_lr_scaled(1.0f, (dt_lr_scaling)3, 2, 1) > 0.0f), "no scaling number 3");
        NEUTRAL(!(dt_lr_scaled(1.0f, DT_SCALE_SQRT, 2, 0) > 0.0f), "from batches of 0");
        WORKS(dt_lr_scaled(1.0f, DT_SCALE_NONE, 0, 0) > 0.5f);
    }
    ROW(dt_optimizer_free) WORKS(DONE(dt_optimizer_free(NULL)));
    ROW(dt_optimizer_step) NEUTRAL(DONE(dt_optimizer_step(NULL)), "opt must not be NULL");
    ROW(dt_optimizer_change) {
        float out[1] = { 7.0f };
        NEUTRAL(DONE(dt_optimizer_change(NULL, out)), "opt and out");
        NEUTRAL(DONE(dt_optimizer_change(opt, NULL)), "opt and out");
    }
    ROW(dt_optimizer_reset) NEUTRAL(DONE(dt_optimizer_reset(NULL)), "opt must not be NULL");
    ROW(dt_optimizer_lr) NEUTRAL(!(dt_optimizer_lr(NULL) > 0.0f), "opt must not be NULL");
    ROW(dt_optimizer_set_lr) {
        REFUSES(dt_optimizer_set_lr(NULL, 0.1f), DT_EARG, "opt must not be NULL");
        REFUSES(dt_optimizer_set_lr(opt, -1.0f), DT_EARG, "learning rate -1");
        REFUSES(dt_optimizer_set_lr(opt, INFINITY), DT_EARG, "learning rate inf");
    }
    ROW(dt_optimizer_name) NEUTRAL(strcmp(dt_optimizer_name(NULL), "?") == 0, "opt must not be NULL");
    ROW(dt_optimizer_clone) {
        dt_net *other = dt_net_new(1, 6, 6);
        dt_linear(other, "fc", 3);
        WORKS(dt_net_build(other, &four) == DT_OK);
        NEUTRAL(dt_optimizer_clone(NULL, net) == NULL, "opt and net");
        NEUTRAL(dt_optimizer_clone(opt, NULL) == NULL, "opt and net");
        NEUTRAL(dt_optimizer_clone(opt, none) == NULL, "parameters");
        NEUTRAL(dt_optimizer_clone(opt, other) == NULL, "parameters");
        dt_net_free(other);
    }
    dt_optimizer_free(opt);
    dt_net_free(none);
    dt_net_free(net);
}

/* ---- [S10] */

static dt_err run_of_a_rank(dt_comm *comm, void *arg) {
    (void)arg;
    const int to = 1 - dt_comm_rank(comm);
    char mine = 1, other = 0;
    DT_TRY(dt_sendrecv(comm, &mine, 1, to, &other, 1, to, 0));
    return other == 1 && dt_send(comm, &mine, 1, dt_comm_rank(comm), 0) == DT_EARG ? DT_OK : dt_fail(DT_EDATA, "got %d", other);
}

static void rows_of_ranks(dt_comm *c) {
    ROW(dt_comm_alone) WORKS(c != NULL);
    ROW(dt_comm_world) {
        dt_comm *world = dt_comm_world(NULL, NULL);
        WORKS(world != NULL);
        dt_comm_free(world);
    }
    ROW(dt_comm_free) WORKS(DONE(dt_comm_free(NULL)));
    ROW(dt_comm_rank) NEUTRAL(dt_comm_rank(NULL) == 0, "comm must not be NULL");
    ROW(dt_comm_size) NEUTRAL(dt_comm_size(NULL) == 0, "comm must not be NULL");
    ROW(dt_comm_hosts) NEUTRAL(dt_comm_hosts(NULL) == 0, "comm must not be NULL");
    ROW(dt_comm_host) {
        NEUTRAL(strcmp(dt_comm_host(NULL, 0), "?") == 0, "comm must not be NULL");
        NEUTRAL(strcmp(dt_comm_host(c, 1), "?") == 0, "1 is not a rank");
        NEUTRAL(strcmp(dt_comm_host(c, -1), "?") == 0, "-1 is not a rank");
    }
    ROW(dt_comm_backend_name) NEUTRAL(strcmp(dt_comm_backend_name(NULL), "?") == 0, "comm must not be NULL");
    ROW(dt_comm_abort) NEUTRAL(DONE(dt_comm_abort(NULL, 1)), "comm must not be NULL");
    ROW(dt_run_ranks) {
        REFUSES(dt_run_ranks(0, run_of_a_rank, NULL), DT_EARG, "0 ranks");
        REFUSES(dt_run_ranks(-5, run_of_a_rank, NULL), DT_EARG, "-5 ranks");
        REFUSES(dt_run_ranks(INT_MAX, run_of_a_rank, NULL), DT_EARG, "2147483647 ranks");
        REFUSES(dt_run_ranks(2, NULL, NULL), DT_EARG, "fn must not be NULL");
        WORKS(dt_run_ranks(2, run_of_a_rank, NULL) == DT_OK);
    }
#ifdef DTRAIN_WITH_MPI
    ROW(dt_comm_from_mpi) {
        const MPI_Comm nobody = MPI_COMM_NULL;
        NEUTRAL(dt_comm_from_mpi(NULL) == NULL, "must not be NULL");
        int started = 0, ended = 0;
        MPI_Initialized(&started), MPI_Finalized(&ended);
        if (!started || ended) NEUTRAL(dt_comm_from_mpi(&nobody) == NULL, "MPI has ");
        else NEUTRAL(dt_comm_from_mpi(&nobody) == NULL, "MPI_COMM_NULL");
    }
    ROW(dt_comm_mpi) {
        int ended = 0;
        MPI_Finalized(&ended);
        if (ended) NEUTRAL(dt_comm_mpi(NULL, NULL) == NULL, "MPI has ended"); /* dt_comm_world's row has begun and ended it */
        else {
            dt_comm *all = dt_comm_mpi(NULL, NULL);
            WORKS(all != NULL);
            dt_comm_free(all);
        }
    }
#else
    ROW_ELSEWHERE(dt_comm_from_mpi);
    ROW_ELSEWHERE(dt_comm_mpi);
#endif
    ROW(dt_comm_set_wait) {
        NEUTRAL(DONE(dt_comm_set_wait(NULL, DT_WAIT_AUTO)), "comm must not be NULL");
        NEUTRAL(DONE(dt_comm_set_wait(c, (dt_wait)4)), "no way to wait number 4");
        NEUTRAL(DONE(dt_comm_set_wait(c, (dt_wait)-1)), "no way to wait number -1");
    }
    ROW(dt_comm_times) NEUTRAL(dt_comm_times(NULL).collectives == 0, "comm must not be NULL");
    ROW(dt_algorithm_name) {
        WORKS(strcmp(dt_algorithm_name(DT_ALGORITHMS), "?") == 0);
        WORKS(strcmp(dt_algorithm_name((dt_algorithm)-1), "?") == 0);
    }
    ROW(dt_algorithm_parse) {
        dt_algorithm a;
        REFUSES(dt_algorithm_parse(NULL, &a), DT_EARG, "name and out");
        REFUSES(dt_algorithm_parse("ring", NULL), DT_EARG, "name and out");
        REFUSES(dt_algorithm_parse("rings", &a), DT_EARG, "\"rings\" is not one of");
    }
    ROW(dt_comm_set_algorithm) {
        REFUSES(dt_comm_set_algorithm(NULL, DT_RING), DT_EARG, "comm must not be NULL");
        REFUSES(dt_comm_set_algorithm(c, DT_ALGORITHMS), DT_EARG, "no algorithm 8");
        REFUSES(dt_comm_set_algorithm(c, (dt_algorithm)-1), DT_EARG, "no algorithm -1");
    }
    ROW(dt_allreduce_step) {
        dt_step step;
        NEUTRAL(!dt_allreduce_step(DT_RING, 0, 0, 2, 8, NULL), "step must not be NULL");
        NEUTRAL(!dt_allreduce_step(DT_RING, -1, 0, 2, 8, &step), "step -1");
        NEUTRAL(!dt_allreduce_step(DT_RING, 0, 2, 2, 8, &step), "rank 2 of 2");
        NEUTRAL(!dt_allreduce_step(DT_RING, 0, 0, 0, 8, &step), "rank 0 of 0");
        NEUTRAL(!dt_allreduce_step(DT_ALGORITHMS, 0, 0, 2, 8, &step), "algorithm 8");
        for (int a = DT_NAIVE; a <= DT_HALVING; ++a) {
            NEUTRAL(!dt_allreduce_step((dt_algorithm)a, 0, 0, INT_MAX, 8, &step), "of 2147483647");
            WORKS(!dt_allreduce_step((dt_algorithm)a, INT_MAX, 0, 5, 8, &step));
        }
        WORKS(!dt_allreduce_step(DT_SHARED, 0, 0, 2, 8, &step));
    }
}

static void rows_of_messages(dt_comm *c) {
    char byte[8] = { 0 };
    int64_t number = 3;
    ROW(dt_broadcast) {
        REFUSES(dt_broadcast(NULL, byte, 1, 0), DT_EARG, "comm and buf");
        REFUSES(dt_broadcast(c, NULL, 1, 0), DT_EARG, "comm and buf");
        REFUSES(dt_broadcast(c, byte, 1, 1), DT_EARG, "1 is not a rank");
        REFUSES(dt_broadcast(c, byte, 1, -1), DT_EARG, "-1 is not a rank");
        WORKS(dt_broadcast(c, NULL, 0, 0) == DT_OK);
    }
    ROW(dt_send) {
        REFUSES(dt_send(NULL, byte, 1, 0, 0), DT_EARG, "comm and buf");
        REFUSES(dt_send(c, NULL, 1, 0, 0), DT_EARG, "comm and buf");
        REFUSES(dt_send(c, byte, 1, 0, 0), DT_EARG, "to itself");
        REFUSES(dt_send(c, byte, 1, 1, 0), DT_EARG, "1 is not a rank");
    }
    ROW(dt_recv) {
        REFUSES(dt_recv(NULL, byte, 1, 0, 0), DT_EARG, "comm and buf");
        REFUSES(dt_recv(c, NULL, 1, 0, 0), DT_EARG, "comm and buf");
        REFUSES(dt_recv(c, byte, 1, 0, 0), DT_EARG, "to itself");
        REFUSES(dt_recv(c, byte, 1, -1, 0), DT_EARG, "-1 is not a rank");
    }
    ROW(dt_sendrecv) {
        REFUSES(dt_sendrecv(NULL, byte, 1, 0, byte + 1, 1, 0, 0), DT_EARG, "comm, send and recv");
        REFUSES(dt_sendrecv(c, NULL, 1, 0, byte + 1, 1, 0, 0), DT_EARG, "comm, send and recv");
        REFUSES(dt_sendrecv(c, byte, 1, 0, NULL, 1, 0, 0), DT_EARG, "comm, send and recv");
        REFUSES(dt_sendrecv(c, byte, 1, 0, byte + 1, 1, 7, 0), DT_EARG, "0 to itself");
        REFUSES(dt_sendrecv(c, byte, 1, 0, byte + 1, 1, 0, -1), DT_EARG, "tag -1");
        REFUSES(dt_sendrecv(c, byte, 1, 0, byte + 1, 1, 0, 32001), DT_EARG, "tag 32001");
        WORKS(dt_sendrecv(c, "x", 1, 0, byte, 1, 0, 0) == DT_OK && byte[0] == 'x');
    }
    ROW(dt_barrier) REFUSES(dt_barrier(NULL), DT_EARG, "must not be NULL");
    ROW(dt_allgather) {
        REFUSES(dt_allgather(NULL, byte, 1, byte + 1), DT_EARG, "comm, mine and all");
        REFUSES(dt_allgather(c, NULL, 1, byte), DT_EARG, "comm, mine and all");
        REFUSES(dt_allgather(c, byte, 1, NULL), DT_EARG, "comm, mine and all");
        REFUSES(dt_allgather(c, byte, SIZE_MAX, byte + 1), DT_EARG, "memory can hold");
    }
    ROW(dt_allreduce) {
        REFUSES(dt_allreduce(NULL, &number, 1, DT_I64, DT_SUM, DT_AUTO), DT_EARG, "must not be NULL");
        REFUSES(dt_allreduce(c, NULL, 1, DT_I64, DT_SUM, DT_AUTO), DT_EARG, "buf must not be NULL");
        REFUSES(dt_allreduce(c, &number, SIZE_MAX, DT_I64, DT_SUM, DT_AUTO), DT_EARG, "memory can hold");
        REFUSES(dt_allreduce(c, &number, 1, (dt_type)3, DT_SUM, DT_AUTO), DT_EARG, "no type number 3");
        REFUSES(dt_allreduce(c, &number, 1, DT_I64, (dt_op)-1, DT_AUTO), DT_EARG, "no operation number -1");
        REFUSES(dt_allreduce(c, &number, 1, DT_I64, DT_SUM, (dt_algorithm)99), DT_EARG, "no algorithm 99");
        WORKS(dt_allreduce(c, NULL, 0, DT_F32, DT_MAX, DT_AUTO) == DT_OK);
    }
    ROW(dt_allreduce_start) {
        dt_request r = { 0 };
        dt_allreduce_desc d = { &number, 1, DT_I64, DT_SUM, DT_AUTO };
        REFUSES(dt_allreduce_start(NULL, &d, &r), DT_EARG, "must not be NULL");
        REFUSES(dt_allreduce_start(c, NULL, &r), DT_EARG, "must not be NULL");
        REFUSES(dt_allreduce_start(c, &d, NULL), DT_EARG, "must not be NULL");
        d.type = (dt_type)7;
        REFUSES(dt_allreduce_start(c, &d, &r), DT_EARG, "no type number 7");
    }
    ROW(dt_allreduce_test) {
        dt_request r = { 0 };
        bool done;
        REFUSES(dt_allreduce_test(NULL, &r, &done), DT_EARG, "must not be NULL");
        REFUSES(dt_allreduce_test(c, NULL, &done), DT_EARG, "must not be NULL");
        REFUSES(dt_allreduce_test(c, &r, NULL), DT_EARG, "must not be NULL");
        r.number = 12345; /* never started */
        WORKS(dt_allreduce_test(c, &r, &done) == DT_OK && done);
    }
    ROW(dt_allreduce_wait) {
        dt_request r = { 0 };
        REFUSES(dt_allreduce_wait(NULL, &r), DT_EARG, "comm and request");
        REFUSES(dt_allreduce_wait(c, NULL), DT_EARG, "comm and request");
        WORKS(dt_allreduce_start(c, &(dt_allreduce_desc){ &number, 1, DT_I64, DT_SUM, DT_AUTO }, &r) == DT_OK);
        WORKS(dt_allreduce_wait(c, &r) == DT_OK && dt_allreduce_wait(c, &r) == DT_OK);
        r.number = 12345;
        WORKS(dt_allreduce_wait(c, &r) == DT_OK);
    }
}

static void rows_of_failure(dt_comm *c) {
    char text[512] = "full";
    ROW(dt_comm_progress) WORKS(DONE(dt_comm_progress(NULL, 1, "x")) && DONE(dt_comm_progress(c, UINT64_MAX, NULL)));
    ROW(dt_comm_phase) WORKS(DONE(dt_comm_phase(NULL, "x")) && DONE(dt_comm_phase(c, NULL)));
    ROW(dt_comm_set_patience) {
        NEUTRAL(DONE(dt_comm_set_patience(NULL, 1.0)), "comm must not be NULL");
        NEUTRAL(DONE(dt_comm_set_patience(c, -1.0)), "patience of -1");
        NEUTRAL(DONE(dt_comm_set_patience(c, NAN)), "patience of nan");
        NEUTRAL(DONE(dt_comm_set_patience(c, 1e300)), "patience of 1e+300");
    }
    ROW(dt_comm_watch) {
        REFUSES(dt_comm_watch(NULL, 2), DT_EARG, "comm must not be NULL");
        WORKS(dt_comm_watch(c, -1) == DT_OK);
    }
    ROW(dt_comm_may_speak) WORKS(dt_comm_may_speak(NULL) && dt_comm_may_speak(c));
    ROW(dt_comm_complaint) {
        NEUTRAL(DONE(dt_comm_complaint(c, NULL, 8)), "text must not be NULL");
        WORKS(DONE(dt_comm_complaint(NULL, text, sizeof text)) && strcmp(text, "nothing was said") == 0);
        WORKS(DONE(dt_comm_complaint(c, NULL, 0)));
    }
    ROW(dt_comm_same) {
        REFUSES(dt_comm_same(NULL, "x", 1), DT_EARG, "comm and what");
        REFUSES(dt_comm_same(c, NULL, 1), DT_EARG, "comm and what");
    }
    ROW(dt_comm_doctor) {
        REFUSES(dt_comm_doctor(NULL, &(dt_doctor_desc){ 0 }, text, sizeof text), DT_EARG, "comm, desc and text");
        REFUSES(dt_comm_doctor(c, NULL, text, sizeof text), DT_EARG, "comm, desc and text");
        REFUSES(dt_comm_doctor(c, &(dt_doctor_desc){ 0 }, NULL, 8), DT_EARG, "comm, desc and text");
        WORKS(DONE(dt_comm_doctor(c, &(dt_doctor_desc){ .lane_groups = UINT32_MAX }, NULL, 0))); /* under a launcher it finds several jobs */
    }
    ROW(dt_comm_profile) {
        dt_profile each;
        REFUSES(dt_comm_profile(NULL, &(dt_comm_cost){ 0 }, 1.0, &each), DT_EARG, "comm, since and each");
        REFUSES(dt_comm_profile(c, NULL, 1.0, &each), DT_EARG, "comm, since and each");
        REFUSES(dt_comm_profile(c, &(dt_comm_cost){ 0 }, 1.0, NULL), DT_EARG, "comm, since and each");
    }
    ROW(dt_trace_start) {
        REFUSES(dt_trace_start(NULL, 8), DT_EARG, "comm must not be NULL");
        REFUSES(dt_trace_start(c, SIZE_MAX / 8), DT_ENOMEM, "no memory for");
        REFUSES(dt_trace_start(c, SIZE_MAX), DT_ENOMEM, "no memory for");
        WORKS(DONE(dt_trace(c, "after a start that failed", 1.0, 2.0)));
        WORKS(dt_trace_start(c, 0) == DT_OK && dt_trace_start(c, 2) == DT_OK);
    }
    ROW(dt_trace) {
        NEUTRAL(DONE(dt_trace(NULL, "x", 1.0, 2.0)), "comm and name");
        NEUTRAL(DONE(dt_trace(c, NULL, 1.0, 2.0)), "comm and name");
        WORKS(dt_trace_start(c, 4) == DT_OK);
        dt_trace(c, "x", 1.0, NAN), dt_trace(c, "x", 0.0, INFINITY), dt_trace(c, "x", 2.0, 1.0);
        WORKS(c->traced == 0);
    }
    ROW(dt_trace_write) {
        REFUSES(dt_trace_write(NULL, "contract.json"), DT_EARG, "comm and path");
        REFUSES(dt_trace_write(c, NULL), DT_EARG, "comm and path");
        REFUSES(dt_trace_write(c, "/nowhere/at/all.json"), DT_EIO, "/nowhere/at/all.json");
    }
}

/* ---- [S4] */

static void rows_of_data(void) {
    dt_dataset d = { .count = 5 };
    ROW(dt_idx_load) {
        REFUSES(dt_idx_load(NULL, "i", "l", 10), DT_EARG, "must not be NULL");
        REFUSES(dt_idx_load(&d, NULL, "l", 10), DT_EARG, "must not be NULL");
        REFUSES(dt_idx_load(&d, "i", NULL, 10), DT_EARG, "must not be NULL");
        REFUSES(dt_idx_load(&d, "i", "l", 257), DT_EARG, "257 classes");
        REFUSES(dt_idx_load(&d, "/nowhere/i", "l", 10), DT_EIO, "/nowhere/i");
        WORKS(d.count == 0 && !d.pixels);
    }
    ROW(dt_dataset_from) {
        static const float x[6] = { 0 };
        REFUSES(dt_dataset_from(NULL, &(dt_arrays){ .count = 1 }), DT_EARG, "d must not be NULL");
        REFUSES(dt_dataset_from(&d, NULL), DT_EARG, "arrays must not be NULL");
        REFUSES(dt_dataset_from(&d, &(dt_arrays){ .count = 1 }), DT_EARG, "the dataset is empty");
        REFUSES(dt_dataset_from(&d, &(dt_arrays){ .count = 2, .channels = INT_MIN, .values = x, .targets = x, .target_width = 1 }), DT_ESHAPE, "images of");
        WORKS(dt_dataset_from(&d, &(dt_arrays){ .count = 2, .channels = 3, .values = x, .targets = x, .target_width = 1 }) == DT_OK);
        dt_dataset_free(&d);
    }
    ROW(dt_cifar10_load) {
        const char *const none[] = { NULL }, *const nowhere[] = { "/nowhere/b" };
        REFUSES(dt_cifar10_load(NULL, nowhere, 1), DT_EARG, "d and paths");
        REFUSES(dt_cifar10_load(&d, NULL, 1), DT_EARG, "d and paths");
        REFUSES(dt_cifar10_load(&d, none, 1), DT_EARG, "path 0 of 1 must not be NULL");
        REFUSES(dt_cifar10_load(&d, nowhere, 0), DT_EARG, "0 files");
        REFUSES(dt_cifar10_load(&d, nowhere, 1), DT_EIO, "/nowhere/b");
        WORKS(d.count == 0 && !d.pixels);
    }
    ROW(dt_dataset_find) {
        REFUSES(dt_dataset_find(NULL, NULL, "mars"), DT_EARG, "mars");
        WORKS(dt_dataset_find(NULL, NULL, "synthetic") == DT_OK);
    }
    ROW(dt_dataset_known) {
        WORKS(!dt_dataset_known(-1) && !dt_dataset_known(INT_MAX) && dt_dataset_known(0));
    }
    ROW(dt_dataset_synthetic) {
        REFUSES(dt_dataset_synthetic(NULL, 5, 1), DT_EARG, "must not be NULL");
        REFUSES(dt_dataset_synthetic(&d, 0, 1), DT_EARG, "at least 1 image");
    }
    ROW(dt_dataset_view) {
        dt_dataset bad = set;
        REFUSES(dt_dataset_view(NULL, &set, 0, 1), DT_EARG, "must not be NULL");
        REFUSES(dt_dataset_view(&d, NULL, 0, 1), DT_EARG, "must not be NULL");
        REFUSES(dt_dataset_view(&d, &(dt_dataset){ .count = 5 }, 0, 1), DT_EARG, "is empty");
        REFUSES(dt_dataset_view(&d, &set, 63, 2), DT_EARG, "leaves");
        bad.channels = 0;
        REFUSES(dt_dataset_view(&d, &bad, 0, 1), DT_ESHAPE, "images of 0 x 6 x 6");
        bad.channels = 4, bad.height = bad.width = INT_MAX;
        REFUSES(dt_dataset_view(&d, &bad, 0, 1), DT_ESHAPE, "memory can hold");
    }
    ROW(dt_dataset_free) {
        d = (dt_dataset){ .count = 5 };
        dt_dataset_free(NULL);
        dt_dataset_free(&d);
        dt_dataset_free(&d);
        WORKS(d.count == 0);
    }
    ROW(dt_partition) {
        uint32_t index[4], start[3];
        REFUSES(dt_partition(NULL, start, NULL, 2, 4, 1), DT_EARG, "index and start");
        REFUSES(dt_partition(index, NULL, NULL, 2, 4, 1), DT_EARG, "index and start");
        REFUSES(dt_partition(index, start, NULL, 0, 4, 1), DT_EARG, "at least 1 share");
        REFUSES(dt_partition(index, start, (float[]){ INFINITY, 0.5f }, 2, 4, 1), DT_EARG, "fraction 0 is inf");
    }
}

static void rows_of_samplers(dt_comm *c) {
    ROW(dt_sampler_init) {
        dt_sampler s;
        REFUSES(dt_sampler_init(NULL, &(dt_sampler_desc){ .count = 4, .ranks = 1 }), DT_EARG, "s must not be NULL");
        REFUSES(dt_sampler_init(&s, NULL), DT_EARG, "desc must not be NULL");
        REFUSES(dt_sampler_init(&s, &(dt_sampler_desc){ .count = 4, .rank = -1, .ranks = 1 }), DT_EARG, "rank -1");
        WORKS(dt_sampler_init(&s, &(dt_sampler_desc){ .count = 4, .ranks = INT_MAX, .drop_last = true }) == DT_OK && s.per_rank == 0);
        dt_sampler_free(&s);
    }
    ROW(dt_sampler_set_epoch) {
        dt_sampler s = { .per_rank = 0 };
        NEUTRAL(DONE(dt_sampler_set_epoch(NULL, 1)), "must not be NULL");
        NEUTRAL(DONE(dt_sampler_set_epoch(&s, 1)), "dt_sampler_init");
    }
    ROW(dt_sampler_free) {
        dt_sampler s;
        WORKS(dt_sampler_init(&s, &(dt_sampler_desc){ .count = 4, .ranks = 1 }) == DT_OK);
        dt_sampler_free(NULL), dt_sampler_free(&s), dt_sampler_free(&s);
        NEUTRAL(DONE(dt_sampler_set_epoch(&s, 1)), "dt_sampler_init");
    }
    ROW(dt_batches_init) {
        dt_batches it;
        const dt_batches_desc good = { .global_batch = 8, .rank = dt_comm_rank(c), .size = dt_comm_size(c) };
        dt_dataset bad = set;
        REFUSES(dt_batches_init(NULL, &set, &good), DT_EARG, "it must not be NULL");
        REFUSES(dt_batches_init(&it, NULL, &good), DT_EARG, "the dataset must not be NULL");
        REFUSES(dt_batches_init(&it, &set, NULL), DT_EARG, "desc must not be NULL");
        REFUSES(dt_batches_init(&it, &set, &(dt_batches_desc){ .global_batch = 8, .size = INT_MIN }), DT_EARG, "of -2147483648 ranks");
        bad.labels = NULL;
        REFUSES(dt_batches_init(&it, &bad, &good), DT_EARG, "neither labels nor targets");
        bad = set, bad.channels = 0;
        REFUSES(dt_batches_init(&it, &bad, &good), DT_ESHAPE, "images of 0 x 6 x 6");
        WORKS(dt_batches_init(&it, &set, &(dt_batches_desc){ .global_batch = UINT32_MAX, .rank = INT_MAX - 1, .size = INT_MAX }) == DT_OK && it.steps == 1);
        dt_batches_free(&it);
    }
    ROW(dt_batches_begin) {
        dt_batches it = { .count = 0 };
        NEUTRAL(DONE(dt_batches_begin(NULL, 0)), "must not be NULL");
        NEUTRAL(DONE(dt_batches_begin(&it, 0)), "dt_batches_init");
    }
    ROW(dt_batches_next) {
        dt_batches it;
        dt_batch b;
        WORKS(dt_batches_init(&it, &set, &(dt_batches_desc){ .global_batch = 8 }) == DT_OK);
        NEUTRAL(!dt_batches_next(NULL, &b), "must not be NULL");
        NEUTRAL(!dt_batches_next(&it, NULL), "must not be NULL");
        for (int i = 0; i < 8; ++i) WORKS(dt_batches_next(&it, &b));
        WORKS(!dt_batches_next(&it, &b) && !dt_batches_next(&it, &b));
        dt_batches_free(&it);
        NEUTRAL(!dt_batches_next(&it, &b), "dt_batches_init");
    }
    ROW(dt_batches_free) {
        dt_batches it = { .count = 0 };
        WORKS(DONE(dt_batches_free(NULL)) && DONE(dt_batches_free(&it)));
    }
}

/* ---- [S11] */

static const dt_train_desc once = { .data = &set, .epochs = 1, .batch = 4 };

/* The settings that no trainer takes; `train` is a call of one with (net, opt, desc). */
#define TRAINER_REFUSES(train) do { \
        dt_train_desc d = once; \
        REFUSES(train(NULL, opt, &d), DT_EARG, "net must not be NULL"); \
        REFUSES(train(net, NULL, &d), DT_EARG, "opt and desc"); \
        REFUSES(train(net, opt, NULL), DT_EARG, "opt and desc"); \
        REFUSES(train(none, opt, &d), DT_EARG, "dt_net_build comes first"); \
        REFUSES(train(net, others, &d), DT_EARG, "made for another net"); \
        d = once, d.data = NULL; \
        REFUSES(train(net, opt, &d), DT_EARG, "the dataset must not be NULL"); \
        d = once, d.data = &wide; \
        REFUSES(train(net, opt, &d), DT_ESHAPE, "1 x 6 x 5 images, the net expects 1 x 6 x 6"); \
        d = once, d.data = &flat; \
        REFUSES(train(net, opt, &d), DT_EARG, "standard deviation 0"); \
        d = once, d.epochs = 0; \
        REFUSES(train(net, opt, &d), DT_EARG, "0 epochs"); \
        d = once, d.batch = 0; \
        REFUSES(train(net, opt, &d), DT_EARG, "batch 0"); \
        d = once, d.algorithm = (dt_algorithm)77; \
        REFUSES(train(net, opt, &d), DT_EARG, "no algorithm number 77"); \
        WORKS(train(net, opt, &once) == DT_OK); \
    } while (0)
#define BY_SYNC(net, opt, desc) dt_train_sync(net, opt, c, desc, &result)
#define BY_PSGD(net, opt, desc) dt_train_psgd(net, opt, c, desc, &result)
#define BY_HOGWILD(net, opt, desc) dt_train_hogwild(net, opt, 2, desc, &hogwild)
#define BY_SHARING(net, opt, desc) dt_train_shared(net, opt, 2, DT_SHARE_LOCKED, desc, &hogwild)

static void rows_of_training(dt_comm *c) {
    dt_net *none = unbuilt(), *net = built(), *other = built();
    dt_optimizer *opt = dt_sgd(net, &plain), *others = dt_sgd(other, &plain);
    static dt_train_result result;
    static dt_hogwild_result hogwild;
    dt_dataset wide = set, flat = set, unscaled = set;
    dt_score score;
    wide.width = 5;
    flat.std = &(float){ 0.0f };
    unscaled.mean = NULL;
    ROW(dt_share_statistics) {
        REFUSES(dt_share_statistics(NULL, c), DT_EARG, "net must not be NULL");
        REFUSES(dt_share_statistics(none, c), DT_EARG, "dt_net_build comes first");
        WORKS(dt_share_statistics(net, c) == DT_OK && dt_share_statistics(net, NULL) == DT_OK);
    }
    ROW(dt_broadcast_parameters) {
        REFUSES(dt_broadcast_parameters(NULL, c), DT_EARG, "net must not be NULL");
        REFUSES(dt_broadcast_parameters(none, c), DT_EARG, "dt_net_build comes first");
        REFUSES(dt_broadcast_parameters(net, NULL), DT_EARG, "comm");
    }
    ROW(dt_average_gradients) {
        REFUSES(dt_average_gradients(NULL, c), DT_EARG, "net must not be NULL");
        REFUSES(dt_average_gradients(none, c), DT_EARG, "dt_net_build comes first");
        REFUSES(dt_average_gradients(net, NULL), DT_EARG, "comm must not be NULL");
    }
    ROW(dt_average_parameters) {
        REFUSES(dt_average_parameters(NULL, c), DT_EARG, "net must not be NULL");
        REFUSES(dt_average_parameters(none, c), DT_EARG, "dt_net_build comes first");
        REFUSES(dt_average_parameters(net, NULL), DT_EARG, "comm must not be NULL");
    }
    ROW(dt_evaluate) {
        REFUSES(dt_evaluate(NULL, &set, c, &score), DT_EARG, "net must not be NULL");
        REFUSES(dt_evaluate(none, &set, c, &score), DT_EARG, "dt_net_build comes first");
        REFUSES(dt_evaluate(net, NULL, c, &score), DT_EARG, "the dataset must not be NULL");
        REFUSES(dt_evaluate(net, &set, c, NULL), DT_EARG, "score must not be NULL");
        REFUSES(dt_evaluate(net, &wide, c, &score), DT_ESHAPE, "1 x 6 x 5 images, the net expects 1 x 6 x 6");
        REFUSES(dt_evaluate(net, &flat, c, &score), DT_EARG, "standard deviation 0");
        REFUSES(dt_evaluate(net, &unscaled, c, &score), DT_EARG, "of mean and std both or none");
        WORKS(dt_evaluate(net, &set, NULL, &score) == DT_OK && score.count == 64);
        REFUSES(dt_backward(net), DT_EARG, "dt_forward comes before");
    }
    ROW(dt_check_replicas) {
        REFUSES(dt_check_replicas(NULL, c), DT_EARG, "net must not be NULL");
        REFUSES(dt_check_replicas(none, c), DT_EARG, "dt_net_build comes first");
        REFUSES(dt_check_replicas(net, NULL), DT_EARG, "comm must not be NULL");
    }
    ROW(dt_train_sync) {
        REFUSES(dt_train_sync(net, opt, NULL, &once, &result), DT_EARG, "comm and result");
        REFUSES(dt_train_sync(net, opt, c, &once, NULL), DT_EARG, "result must not be NULL");
        REFUSES(dt_train_sync(net, opt, NULL, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = 4, .threads = 1025 }, &result), DT_EARG, "1..1024");
        REFUSES(dt_train_sync(NULL, opt, NULL, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = 4, .threads = 2 }, &result), DT_EARG, "net must not be NULL");
        REFUSES(dt_train_sync(net, NULL, NULL, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = 4, .threads = 2 }, &result), DT_EARG, "opt and desc");
        REFUSES(dt_train_sync(net, opt, c, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = UINT32_MAX }, &result), DT_ESHAPE, "64 samples, built for");
        REFUSES(dt_train_sync(net, opt, c, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = 4, .target = 1.5f }, &result), DT_EARG, "a target of 1.5");
        REFUSES(dt_train_sync(net, opt, c, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = 4, .validation = &(dt_dataset){ .count = 5 } }, &result),
                DT_EARG, "validation: the dataset is empty");
        REFUSES(dt_train_sync(net, opt, c, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = 4, .schedule = &(dt_schedule){ .curve = DT_LR_COSINE } }, &result),
                DT_EARG, "schedule: piece 1 lasts over 0");
        TRAINER_REFUSES(BY_SYNC);
    }
    ROW(dt_train_psgd) {
        REFUSES(dt_train_psgd(net, opt, NULL, &once, &result), DT_EARG, "comm and result");
        REFUSES(dt_train_psgd(net, opt, c, &once, NULL), DT_EARG, "result must not be NULL");
        REFUSES(dt_train_psgd(net, opt, c, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = UINT32_MAX }, &result), DT_ESHAPE, "64 samples, built for");
        TRAINER_REFUSES(BY_PSGD);
    }
    ROW(dt_psgd_batch) {
        NEUTRAL(dt_psgd_batch(5, 0) == 0, "0 ranks");
        NEUTRAL(dt_psgd_batch(5, -1) == 0, "-1 ranks");
        WORKS(dt_psgd_batch(UINT32_MAX, 2) == 1u << 31 && dt_psgd_batch(UINT32_MAX, 1) == UINT32_MAX && dt_psgd_batch(5, INT_MAX) == 16);
    }
    ROW(dt_train_hogwild) {
        REFUSES(dt_train_hogwild(net, opt, 2, &once, NULL), DT_EARG, "result must not be NULL");
        REFUSES(dt_train_hogwild(net, opt, 0, &once, &hogwild), DT_EARG, "0 workers");
        REFUSES(dt_train_hogwild(net, opt, INT_MAX, &once, &hogwild), DT_EARG, "2147483647 workers");
        REFUSES(dt_train_hogwild(net, opt, 2, &(dt_train_desc){ .data = &set, .epochs = 1, .batch = 4, .target = 0.5f }, &hogwild), DT_EARG, "do not meet");
        TRAINER_REFUSES(BY_HOGWILD);
    }
    ROW(dt_train_shared) {
        REFUSES(dt_train_shared(net, opt, 2, DT_SHARE_LOCKED, &once, NULL), DT_EARG, "result must not be NULL");
        REFUSES(dt_train_shared(net, opt, 2, (dt_sharing)3, &once, &hogwild), DT_EARG, "no way to share number 3");
        TRAINER_REFUSES(BY_SHARING);
    }
    dt_optimizer_free(opt);
    dt_optimizer_free(others);
    dt_net_free(none);
    dt_net_free(net);
    dt_net_free(other);
}

/* ---- [E6] */

static void rows_of_reports(void) {
    dt_net *none = unbuilt(), *net = built();
    const char *volatile nothing = NULL; /* volatile: the compiler knows that a format is not NULL */
    char text[64] = "full", own[40]; /* a file of this rank's own */
    snprintf(own, sizeof own, "contract_%ld.net", (long)getpid());
    ROW(dt_save) {
        REFUSES(dt_save(NULL, own), DT_EARG, "net must not be NULL");
        REFUSES(dt_save(net, NULL), DT_EARG, "path must not be NULL");
        REFUSES(dt_save(none, own), DT_EARG, "dt_net_build comes first");
        WORKS(access(own, F_OK) != 0);
    }
    ROW(dt_load) {
        REFUSES(dt_load(NULL, own), DT_EARG, "net must not be NULL");
        REFUSES(dt_load(net, NULL), DT_EARG, "path must not be NULL");
        REFUSES(dt_load(none, own), DT_EARG, "dt_net_build comes first");
        /* a file that does not fit into memory: 1 GB of nothing, where no GB may be had */
        struct rlimit may, little;
        FILE *large = fopen(own, "wb");
        assert_true(large && fseek(large, 1L << 30, SEEK_SET) == 0 && fputc(0, large) == 0 && fclose(large) == 0);
        getrlimit(RLIMIT_AS, &may);
        little = may;
        little.rlim_cur = 1 << 20;
        setrlimit(RLIMIT_AS, &little);
        void *volatile probe = malloc(1 << 30);                     /* an emulator may know no limits */
        if (!probe) REFUSES(dt_load(net, own), DT_ENOMEM, "cannot allocate");
        free(probe);
        setrlimit(RLIMIT_AS, &may);
        remove(own);
    }
    ROW(dt_check_writable) {
        REFUSES(dt_check_writable(NULL), DT_EARG, "path must not be NULL");
        REFUSES(dt_check_writable("no/such/folder/x"), DT_EIO, "no/such/folder/x");
    }
    ROW(dt_csv_check) {
        REFUSES(dt_csv_check(NULL, "a"), DT_EARG, "path and header");
        REFUSES(dt_csv_check("contract.csv", NULL), DT_EARG, "path and header");
        REFUSES(dt_csv_check("no/such/folder/x", "a"), DT_EIO, "no/such/folder/x");
    }
    ROW(dt_csv_append) {
        REFUSES(dt_csv_append(NULL, "a", "%d", 1), DT_EARG, "path, header and row_format");
        REFUSES(dt_csv_append("contract.csv", NULL, "%d", 1), DT_EARG, "path, header and row_format");
        REFUSES(dt_csv_append("contract.csv", "a", nothing, 1), DT_EARG, "path, header and row_format");
        WORKS(access("contract.csv", F_OK) != 0);
    }
    dt_batches it;
    dt_optimizer *opt = dt_sgd(net, &plain);
    assert_int_equal(dt_batches_init(&it, &set, &(dt_batches_desc){ .global_batch = 4 }), DT_OK);
    ROW(dt_checkpoint_save) {
        const dt_checkpoint good = { .net = net, .opt = opt, .it = &it };
        dt_checkpoint c = good;
        REFUSES(dt_checkpoint_save(NULL, own), DT_EARG, "checkpoint and path must not be NULL");
        REFUSES(dt_checkpoint_save(&c, NULL), DT_EARG, "checkpoint and path must not be NULL");
        REFUSES((c.net = NULL, dt_checkpoint_save(&c, own)), DT_EARG, "net must not be NULL");
        REFUSES((c.net = none, dt_checkpoint_save(&c, own)), DT_EARG, "dt_net_build comes first");
        REFUSES((c = good, c.opt = NULL, dt_checkpoint_save(&c, own)), DT_EARG, "the optimizer must be this net's");
        REFUSES((c = good, c.it = NULL, dt_checkpoint_save(&c, own)), DT_EARG, "what dt_batches_init makes");
        REFUSES((c = good, c.step = 1000, dt_checkpoint_save(&c, own)), DT_EARG, "step 1000 of an epoch of");
        WORKS(access(own, F_OK) != 0);
    }
    ROW(dt_checkpoint_load) {
        dt_checkpoint c = { .net = net, .opt = opt, .it = &it };
        REFUSES(dt_checkpoint_load(NULL, NULL, own), DT_EARG, "checkpoint and path must not be NULL");
        REFUSES(dt_checkpoint_load(&c, NULL, NULL), DT_EARG, "checkpoint and path must not be NULL");
        REFUSES((c.net = none, dt_checkpoint_load(&c, NULL, own)), DT_EARG, "dt_net_build comes first");
        REFUSES((c.net = net, dt_checkpoint_load(&c, NULL, own)), DT_EIO, "cannot open contract_");
    }
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    ROW(dt_progress_line) {
        const dt_progress p = { .epochs = 0, .steps = 0 };
        NEUTRAL(DONE(dt_progress_line(NULL, text, sizeof text)) && !*text, "progress must not be NULL");
        NEUTRAL(DONE(dt_progress_line(&p, NULL, 8)), "text must not be NULL");
        WORKS(DONE(dt_progress_line(&p, text, sizeof text)) && !strstr(text, "nan") && !strstr(text, "inf"));
    }
    ROW(dt_machine_caption) {
        NEUTRAL(DONE(dt_machine_caption(NULL, 8)), "buf must not be NULL");
        WORKS(DONE(dt_machine_caption(NULL, 0)));
    }
    dt_net_free(none);
    dt_net_free(net);
}

/* ---- [E8] */

static void rows_of_charts(void) {
    const double x[2] = { 1, 2 };
    const uint8_t grey[4] = { 0 };
    int w, h;
    ROW(dt_number_text) {
        char text[48];
        NEUTRAL(DONE(dt_number_text(1.0, 3, NULL, 48)), "text must not be NULL");
        WORKS(DONE(dt_number_text(0.25, -5, text, sizeof text)) && strcmp(text, "0.2") == 0);
        WORKS(DONE(dt_number_text(0.25, 3, text, 3)) && strcmp(text, "0.") == 0);
    }
    ROW(dt_chart_new) {
        const dt_chart_desc bad[] = { { .width = -1 }, { .height = 8193 }, { .x_scale = (dt_axis_scale)3 }, { .y_scale = (dt_axis_scale)-1 },
                                      { .x_format = (dt_tick_format)5 }, { .y_format = (dt_tick_format)99 },
                                      { .x_ticks = x, .x_tick_count = SIZE_MAX / 8 } };
        for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
            dt_chart *c = dt_chart_new(&bad[i]);
            REFUSES(dt_chart_check(c), i < 6 ? DT_EARG : DT_ENOMEM, i < 6 ? "chart: " : "cannot allocate");
            dt_chart_free(c);
        }
        dt_chart *c = dt_chart_new(NULL);
        WORKS(dt_chart_check(c) == DT_OK);
        dt_chart_free(c);
    }
    ROW(dt_chart_free) WORKS(DONE(dt_chart_free(NULL)));
    ROW(dt_chart_line) {
        CHART_REFUSES(DT_EARG, "dt_chart_line: its description", dt_chart_line(c, NULL));
        CHART_REFUSES(DT_EARG, "dt_chart_line: sizes", dt_chart_line(c, &(dt_series){ .n = SIZE_MAX / 8, .x = x, .y = x }));
        CHART_REFUSES(DT_EARG, "dt_chart_line: sizes", dt_chart_line(c, &(dt_series){ .n = 2, .x = x, .y = x, .style = (dt_line_style)4 }));
        WORKS(DONE(dt_chart_line(NULL, &(dt_series){ .n = 2, .x = x, .y = x })));
    }
    ROW(dt_chart_bars) {
        CHART_REFUSES(DT_EARG, "dt_chart_bars: its description", dt_chart_bars(c, NULL));
        CHART_REFUSES(DT_EARG, "dt_chart_bars: sizes", dt_chart_bars(c, &(dt_bars){ .groups = 2, .series = SIZE_MAX, .y = x }));
        CHART_REFUSES(DT_EARG, "dt_chart_bars: sizes", dt_chart_bars(c, &(dt_bars){ .groups = SIZE_MAX / 2 + 2, .series = 2, .y = x }));
        WORKS(DONE(dt_chart_bars(NULL, NULL)));
    }
    ROW(dt_chart_histogram) {
        CHART_REFUSES(DT_EARG, "dt_chart_histogram: its description", dt_chart_histogram(c, NULL));
        CHART_REFUSES(DT_EARG, "dt_chart_histogram: sizes", dt_chart_histogram(c, &(dt_histogram){ .n = 2 }));
        CHART_REFUSES(DT_EARG, "dt_chart_histogram: sizes", dt_chart_histogram(c, &(dt_histogram){ .n = 2, .values = x, .bins = SIZE_MAX }));
        WORKS(DONE(dt_chart_histogram(NULL, NULL)));
    }
    ROW(dt_chart_reference) {
        CHART_REFUSES(DT_EARG, "dt_chart_reference: its description", dt_chart_reference(c, NULL));
        WORKS(DONE(dt_chart_reference(NULL, NULL)));
    }
    ROW(dt_chart_shade) {
        CHART_REFUSES(DT_EARG, "dt_chart_shade: its description", dt_chart_shade(c, NULL));
        WORKS(DONE(dt_chart_shade(NULL, NULL)));
    }
    ROW(dt_chart_shade_cores) WORKS(DONE(dt_chart_shade_cores(NULL)));
    ROW(dt_chart_images) {
        CHART_REFUSES(DT_EARG, "dt_chart_images: its description", dt_chart_images(c, NULL));
        CHART_REFUSES(DT_EARG, "dt_chart_images: sizes", dt_chart_images(c, &(dt_images){ .n = SIZE_MAX / 4 + 2, .width = 2, .height = 2, .pixels = grey }));
        CHART_REFUSES(DT_EARG, "dt_chart_images: sizes", dt_chart_images(c, &(dt_images){ .n = 1, .width = 65536, .height = 65536, .pixels = grey }));
        WORKS(DONE(dt_chart_images(NULL, NULL)));
    }
    dt_chart *c = dt_chart_new(NULL);
    ROW(dt_chart_write) {
        REFUSES(dt_chart_write(NULL, "contract.png"), DT_ENOMEM, "memory");
        REFUSES(dt_chart_write(c, NULL), DT_EARG, "png must not be NULL");
        REFUSES(dt_chart_write(c, "/nowhere/at/all.png"), DT_EIO, "/nowhere/at/all.png");
    }
    ROW(dt_chart_write_csv) {
        REFUSES(dt_chart_write_csv(NULL, "contract.png"), DT_ENOMEM, "memory");
        REFUSES(dt_chart_write_csv(c, NULL), DT_EARG, "png must not be NULL");
    }
    ROW(dt_chart_save) {
        REFUSES(dt_chart_save(NULL, "contract.png"), DT_ENOMEM, "memory");
        REFUSES(dt_chart_save(c, NULL), DT_EARG, "png must not be NULL");
    }
    ROW(dt_chart_check) REFUSES(dt_chart_check(NULL), DT_ENOMEM, "memory");
    ROW(dt_chart_pixels) {
        NEUTRAL(dt_chart_pixels(NULL, &w, &h) == NULL, "memory");
        NEUTRAL(dt_chart_pixels(c, NULL, &h) == NULL, "width and height");
        NEUTRAL(dt_chart_pixels(c, &w, NULL) == NULL, "width and height");
    }
    dt_chart_free(c);
}

/* ---- The tests. */

static void every_function_refuses(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pixels; ++i) pixels[i] = (uint8_t)(i * 97);
    for (size_t i = 0; i < sizeof labels; ++i) labels[i] = (uint8_t)(i % 3);
    dt_comm *alone = dt_comm_alone();
    rows_of_the_ground();
    rows_of_the_kernels();
    rows_of_builders();
    rows_of_running();
    rows_of_optimizers();
    rows_of_ranks(alone);
    rows_of_messages(alone);
    rows_of_failure(alone);
    rows_of_data();
    rows_of_samplers(alone);
    rows_of_training(alone);
    rows_of_reports();
    rows_of_charts();
    dt_comm_free(alone);
    if (failures) fail_msg("%d calls were not refused as they should", failures);
}

/* Every function that the header declares has a row, and every row a function. */
static void every_function_has_a_row(void **state) {
    (void)state;
    static char line[4096];
    bool declared[400] = { false };
    int without = 0;
    FILE *f = fopen(HEADER, "r");
    if (!f) fail_msg("%s cannot be read; run this from the project's folder", HEADER);
    while (fgets(line, sizeof line, f)) {
        char name[64] = "";
        const char *end = strncmp(line, "DT_API ", 7) == 0 ? strchr(line, '(') : NULL, *begin = end;
        if (!end) continue;
        while (begin > line && (begin[-1] == '_' || (begin[-1] >= 'a' && begin[-1] <= 'z') || (begin[-1] >= '0' && begin[-1] <= '9'))) --begin;
        snprintf(name, sizeof name, "%.*s", (int)(end - begin), begin);
        int i = 0;
        while (i < rows && strcmp(seen[i], name) != 0) ++i;
        if (i < rows) declared[i] = true;
        else printf("%s has no row\n", name), ++without;
    }
    fclose(f);
    for (int i = 0; i < rows; ++i)
        if (!declared[i]) printf("%s is not declared\n", seen[i]), ++without;
    if (without || rows < 100) fail_msg("%d of %d rows and functions lack the other", without, rows);
}

/* Calls made from the declarations: they come back, an error has its one sentence, and a pointer that is not there as well. */
static int calls, silent;
static void answered(const char *call, bool error) {
    ++calls;
    if (!error || said("")) return;
    printf("%s: \"%s\"\n", call, dt_error());
    ++silent;
}
#define CALL_ERR(call) (fresh(), answered(#call, (call) != DT_OK));
#define CALL_POINTER(call) do { const void *got = (fresh(), (const void *)(call)); answered(#call, got == NULL); } while (0);
#define CALL_MADE(call, release) do { void *got = (fresh(), (void *)(call)); answered(#call, got == NULL); release(got); } while (0);
#define CALL_VALUE(call) (fresh(), (void)(call), answered(#call, false));
#define CALL_NOTHING(call) (fresh(), (call), answered(#call, false));

static void every_declaration_called(void **state) {
    (void)state;
#include "build/tests/contract_calls.h"
    if (silent || calls < 300) fail_msg("%d of %d calls failed without a sentence", silent, calls);
}

/* ---- A net after a call that failed. */

static dt_err dataset_of(dt_net *net, int channels, int height, int classes, uint32_t first) {
    dt_batch b = batch;
    uint32_t rows4[4];
    uint8_t label[64];
    for (uint32_t i = 0; i < 4; ++i) rows4[i] = first + i;
    for (size_t i = 0; i < sizeof label; ++i) label[i] = (uint8_t)(labels[i] + (classes > 3 ? 3 : 0));
    b.index = rows4, b.labels = label, b.rows = 64, b.channels = channels, b.height = height, b.width = 6;
    return dt_net_load(net, &b);
}

typedef struct learner { dt_net *net; dt_optimizer *opt; } learner;

static dt_err one_step(const learner *who, uint32_t at) {
    DT_TRY(dataset_of(who->net, 1, 6, 3, at));
    DT_TRY(dt_forward(who->net));
    DT_TRY(dt_backward(who->net));
    dt_optimizer_step(who->opt);
    return DT_OK;
}

/* The k-th way to fail on a net that trains; the error that it gave. */
enum { WAYS = 18 };
static dt_err goes_wrong(const learner *who, int k) {
    dt_net *net = who->net;
    float *w = dt_net_values(net), was = w[0], out[12] = { NAN };
    dt_comm *alone = NULL;
    dt_train_result result;
    dt_err error = DT_OK;
    switch (k) {
    case 0: return dataset_of(net, 2, 6, 3, 0);
    case 1: return dataset_of(net, 1, 7, 3, 0);
    case 2: return dataset_of(net, 1, 6, 4, 0);
    case 3: return dataset_of(net, 1, 6, 3, 61);
    case 4: return dt_net_load(net, NULL);
    case 5: return dt_backward(net);                                    /* after a step there is a forward; see below */
    case 6: w[0] = NAN, error = dataset_of(net, 1, 6, 3, 0), error = error == DT_OK ? dt_forward(net) : DT_OK, w[0] = was; return error;
    case 7: w[0] = INFINITY, error = dataset_of(net, 1, 6, 3, 0), error = error == DT_OK ? dt_forward(net) : DT_OK, w[0] = was; return error;
    case 8: return dataset_of(net, 1, 6, 3, 0) == DT_OK && dt_forward(net) == DT_OK ? dt_backward_from(net, out) : DT_OK;
    case 9: return dt_net_build(net, &four);
    case 10: return dt_load(net, "contract_is_not_there.safetensors");
    case 11: return dt_save(net, "no/such/folder/x");
    case 12: return dt_accumulate_gradients(net, &(dt_batch){ .pixels = pixels, .index = index4, .count = 4, .global_count = 4 }, 2);
    case 13: return dt_net_logits(net, 99, out);
    case 14: return dt_predict(net, &set, 60, 10, out);
    case 15: return dt_optimizer_set_lr(who->opt, NAN);
    case 16: return dt_optimizer_group(who->opt, &(dt_group_desc){ .names = "nobody" });
    default:
        alone = dt_comm_alone();
        error = dt_train_sync(net, who->opt, alone, &(dt_train_desc){ .data = &set, .epochs = 1 }, &result);
        dt_comm_free(alone);
        return error;
    }
}

static void a_net_outlives_errors(void **state) {
    (void)state;
    learner it = { built(), NULL }, twin = { built(), NULL };
    it.opt = dt_adam(it.net, &(dt_adam_desc){ DT_ADAM_DEFAULTS });
    twin.opt = dt_adam(twin.net, &(dt_adam_desc){ DT_ADAM_DEFAULTS });
    for (int k = 0; k < WAYS; ++k) {
        if (k == 5) assert_int_equal(dataset_of(it.net, 1, 6, 3, 7), DT_OK); /* nothing was computed from these */
        fresh();
        if (goes_wrong(&it, k) == DT_OK || !said("")) fail_msg("way %d did not fail with its sentence", k);
        assert_int_equal(one_step(&it, (uint32_t)k), DT_OK);
        assert_int_equal(one_step(&twin, (uint32_t)k), DT_OK);
        if (dt_net_hash(it.net) != dt_net_hash(twin.net)) fail_msg("after way %d the next step is another", k);
    }
    dt_optimizer_free(it.opt);
    dt_optimizer_free(twin.opt);
    dt_net_free(it.net);
    dt_net_free(twin.net);
}

/* A set of other images than the net's, of exactly its own size: a byte further is not ours. */
static void other_images(void **state) {
    (void)state;
    const int shape[][3] = { { 1, 8, 16 }, { 1, 16, 8 }, { 2, 16, 16 }, { 1, 32, 32 } };
    dt_net *net = dt_net_new(1, 16, 16);
    dt_linear(net, "fc", 3);
    assert_int_equal(dt_net_build(net, &four), DT_OK);
    dt_optimizer *opt = dt_sgd(net, &plain);
    dt_comm *alone = dt_comm_alone();
    for (size_t i = 0; i < sizeof shape / sizeof *shape; ++i) {
        dt_dataset d = { .name = "other", .count = 32, .channels = shape[i][0], .height = shape[i][1], .width = shape[i][2], .classes = 3,
                         .mean = (float[]){ 0.5f, 0.5f }, .std = (float[]){ 0.25f, 0.25f } };
        d.pixels = calloc(32, (size_t)(d.channels * d.height * d.width));
        d.labels = calloc(32, 1);
        dt_score score;
        dt_train_result result;
        dt_batches it;
        dt_batch b;
        assert_int_equal(dt_evaluate(net, &d, alone, &score), DT_ESHAPE);
        assert_int_equal(dt_train_sync(net, opt, alone, &(dt_train_desc){ .data = &d, .epochs = 1, .batch = 4 }, &result), DT_ESHAPE);
        assert_int_equal(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 4 }), DT_OK);
        assert_true(dt_batches_next(&it, &b)); /* a program's own loop */
        assert_int_equal(dt_net_load(net, &b), DT_ESHAPE);
        assert_int_equal(dt_forward(net), DT_EARG);
        dt_batches_free(&it);
        free(d.pixels);
        free(d.labels);
    }
    dt_comm_free(alone);
    dt_optimizer_free(opt);
    dt_net_free(net);
}

/* Many channels, each with a mean of its own: the data set's evaluation is that of the batch made by hand. */
static void many_channels(void **state) {
    (void)state;
    enum { IMAGES = 16, SIDE = 3, MOST = 19 };
    static uint8_t px[IMAGES * MOST * SIDE * SIDE], lb[IMAGES];
    static float means[MOST], deviations[MOST];
    uint32_t rows16[IMAGES];
    for (size_t i = 0; i < sizeof px; ++i) px[i] = (uint8_t)(i * 31);
    for (uint32_t i = 0; i < IMAGES; ++i) rows16[i] = i, lb[i] = (uint8_t)(i % 2);
    for (int c = 0; c < MOST; ++c) means[c] = 0.25f + 0.01f * (float)c, deviations[c] = 0.5f + 0.01f * (float)c;
    const int counts[] = { 2, 5, 16, MOST };
    for (size_t k = 0; k < sizeof counts / sizeof *counts; ++k) {
        const int C = counts[k];
        dt_dataset d = { .name = "bands", .count = IMAGES, .channels = C, .height = SIDE, .width = SIDE, .classes = 2, .mean = means, .std = deviations, .pixels = px, .labels = lb };
        dt_net *net = dt_net_new(C, SIDE, SIDE);
        dt_linear(net, "fc", 2);
        assert_int_equal(dt_net_build(net, &(dt_build_desc){ .batch = IMAGES, .seed = 1 }), DT_OK);
        dt_score score;
        assert_int_equal(dt_evaluate(net, &d, NULL, &score), DT_OK);
        const dt_batch b = { .pixels = px, .labels = lb, .mean = means, .std = deviations, .index = rows16, .count = IMAGES, .global_count = IMAGES,
                             .channels = C, .height = SIDE, .width = SIDE, .rows = IMAGES };
        assert_int_equal(dt_net_load(net, &b), DT_OK);
        assert_int_equal(dt_forward(net), DT_OK);
        const dt_score direct = dt_net_score(net);
        assert_memory_equal(&direct, &score, sizeof score);
        dt_net_free(net);
    }
}

/* The hash of a net is of its values, lowest byte first: numbers that are the same on every machine. */
static void hash_of_a_net(void **state) {
    (void)state;
    dt_net *net = dt_net_new(1, 1, 3); /* 2 * 3 + 2 values, and 3 * 3 + 3: an odd number of them leaves half a word */
    dt_linear(net, "fc", 2);
    assert_int_equal(dt_net_build(net, &four), DT_OK);
    for (size_t i = 0; i < dt_net_count(net); ++i) dt_net_values(net)[i] = (float)i * 0.75f - 1.0f;
    const uint64_t even = dt_net_hash(net), odd = dti_hash_floats(dt_net_values(net), 7);
    unsigned char bytes[8 * 4];
    for (size_t i = 0; i < 8; ++i) {
        uint32_t bits;
        memcpy(&bits, &dt_net_values(net)[i], 4);
        dti_put_le(bytes + 4 * i, bits, 4);
    }
    assert_true(even == dt_hash(bytes, 32, 0) && odd == dt_hash(bytes, 28, 0));
    assert_true(even == 0xe21d66e1ff1c6550u && odd == 0x12955180f8f89da8u); /* on s390x too, whose bytes lie the other way round */
    dt_net_free(net);
}

int main(int argc, char **argv) {
    only = argc > 1 ? argv[1] : NULL;
    alarm(60); /* a call that waits for ever */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_function_refuses), cmocka_unit_test(every_function_has_a_row), cmocka_unit_test(other_images),
        cmocka_unit_test(many_channels),          cmocka_unit_test(hash_of_a_net),            cmocka_unit_test(every_declaration_called),
        cmocka_unit_test(a_net_outlives_errors),
    };
    const struct CMUnitTest one[] = { cmocka_unit_test(every_function_refuses) };
    return only ? cmocka_run_group_tests_name("contract", one, NULL, NULL) : cmocka_run_group_tests_name("contract", tests, NULL, NULL);
}
