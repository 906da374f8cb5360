// Chapter 3. One convolution, seven loops                      uses [S3.1] [S5.1] [S5.2] [S8.1]
//
// You will learn   how a whole net computes its answer; how to count multiply-adds; how far plain
//                  loops are from the peak
// New since ch02   about 170 lines
// Run              make ch03 && ./ch03
// Check            ./ch03 --data synthetic --quick --figures build/check
//
//| 288 convolutions and 40 poolings agree with dt_conv2d_naive and dt_maxpool2d_naive
//| conv 1x28x28 -> 10x24x24   144000 multiply-adds an image
//| conv 10x12x12 -> 20x8x8    320000 multiply-adds an image
//| linear 80 -> 50              4000 multiply-adds an image
//| linear 50 -> 10               500 multiply-adds an image
//~ <num> images: the largest difference of a log-probability is <num>, and <num> labels differ
//~ conv<num>   <num> GFLOP/s by hand   <num> GFLOP/s by the header

#include "chapter.h"
#include "ch03_report.h"

// ## 3.1 Seven loops
//
// A convolution slides a small window of weights over an image and writes down, at each place, how
// well the two agree: the sum of products. With C input channels, O output channels and N images
// that is
//
//     y[n,o,i,j] = b[o] + sum over c,u,v of  x[n, c, i*S+u-p, j*S+v-p] * w[o,c,u,v]
//
// where S is the stride and p how many zeros are thought around the image. Seven indices, seven
// loops. With the zeros an image has H + 2p rows; the window's first row can stand on the first of
// them, and every S rows further, while its K rows fit. So the output has
//
//     P = (H + 2p - K) / S + 1   rows, and Q columns likewise:   28 + 0 - 5 over 1, plus 1, is 24.
//
// The letters are the whole book's: N images of C channels (one, or red, green and blue, or what a
// layer before has found), H rows and W columns; O kernels, each with K x K weights for each of the
// C channels; each kernel finds something else, hence O channels come out, of P rows and Q columns.
// From chapter 7 on P is also the number of ranks; there is only so much alphabet. And this stride
// S, how far the window moves, is another one than chapter 1's, how far apart neighbours lie in
// memory.
//
// Nobody turns the kernel around, as a mathematician's convolution would: the weights are learned,
// they may as well be learned turned.

// [region: conv]
static void conv2d(float *y, const float *x, const float *w, const float *b,
                   int N, int C, int H, int W, int O, int K, int S, int p) {
    const int P = (H + 2 * p - K) / S + 1, Q = (W + 2 * p - K) / S + 1;
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o)
            for (int i = 0; i < P; ++i)
                for (int j = 0; j < Q; ++j) {
                    float sum = b[o];
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v) {
                                const int row = i * S + u - p, column = j * S + v - p;
                                // the zeros around
                                if (row < 0 || row >= H || column < 0 || column >= W) continue;
                                sum += x[((n * C + c) * H + row) * W + column] *
                                       w[((o * C + c) * K + u) * K + v];
                            }
                    y[((n * O + o) * P + i) * Q + j] = sum;
                }
}
// [end]

// ## 3.2 Max-pooling, ReLU, linear
//
// Pooling keeps the largest of each K x K square and so halves rows and columns for K = 2: *where*
// exactly the window agreed matters less than *that* it did. Rows that do not fill a square are
// left out. **ReLU** replaces what is negative by zero. Without something like it two linear layers
// would be one: w2 (w1 x) is (w2 w1) x, a single weight. In a linear layer every output adds up all
// inputs, each with a weight of its own; there are no places, and no window.

// [region: others]
static void maxpool2d(float *y, const float *x, int planes, int H, int W, int K) {
    const int P = H / K, Q = W / K;
    for (int c = 0; c < planes; ++c)
        for (int i = 0; i < P; ++i)
            for (int j = 0; j < Q; ++j) {
                float most = x[(c * H + i * K) * W + j * K];
                for (int u = 0; u < K; ++u)
                    for (int v = 0; v < K; ++v)
                        most = fmaxf(most, x[(c * H + i * K + u) * W + j * K + v]);
                y[(c * P + i) * Q + j] = most;
            }
}

static void relu(float *x, int n) {
    for (int i = 0; i < n; ++i) x[i] = x[i] < 0.0f ? 0.0f : x[i];
}

static void linear(float *y, const float *x, const float *w, const float *b, int N, int I, int O) {
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o) {
            float sum = b[o];
            for (int i = 0; i < I; ++i) sum += x[n * I + i] * w[o * I + i];
            y[n * O + o] = sum;
        }
}
// [end]

// The last layer gives ten numbers z, one for each digit, of any size and sign. **Softmax** turns
// them into ten probabilities: exp(z) over the sum of all exp(z), so that all are above zero,
// together 1, and the largest z has the largest. We take their logarithm, as the loss wants it
// (chapter 5): z minus the logarithm of that sum. exp(100) does not fit into a float, so the
// largest z is subtracted first: it cancels, and nothing overflows.

static void log_softmax(float *logp, const float *z, int N, int classes) {
    for (int n = 0; n < N; ++n) {
        float most = z[n * classes], sum = 0.0f;
        for (int k = 0; k < classes; ++k) most = fmaxf(most, z[n * classes + k]);
        for (int k = 0; k < classes; ++k) sum += expf(z[n * classes + k] - most);
        for (int k = 0; k < classes; ++k)
            logp[n * classes + k] = z[n * classes + k] - most - logf(sum);
    }
}

// Are they the header's? Random numbers, all kernels to 4, strides to 3, paddings below the kernel,
// odd sizes.

static float *random_floats(size_t n, uint32_t stream) {
    float *x = memory(n * sizeof *x);
    for (size_t i = 0; i < n; ++i)
        x[i] = 2.0f * dt_uniform(dt_philox(1, DT_RNG_TEST, 0, stream, (uint32_t)i).v[0]) - 1.0f;
    return x;
}

static float largest_difference(const float *a, const float *b, size_t n) {
    float most = 0.0f;
    for (size_t i = 0; i < n; ++i)
        if (!(fabsf(a[i] - b[i]) <= most)) most = fabsf(a[i] - b[i]); // a NaN is a difference too
    return most;
}

static void check_kernels(void) {
    enum { N = 2, MOST = 2 * 3 * 16 * 16 };
    float *x = random_floats(MOST, 0), *w = random_floats(MOST, 1), *b = random_floats(8, 2);
    float *y = random_floats(MOST, 3), *z = random_floats(MOST, 4);
    int convolutions = 0, poolings = 0;
    for (int K = 1; K <= 4; ++K)
        for (int H = 5; H <= 9; ++H)
            for (int W = 6; W <= 7; ++W) {
                for (int S = 1; S <= 3 && H % 2; ++S)
                    for (int p = 0; p < K && p < 3; ++p)
                        for (int C = 1; C <= 3; C += 2) {
                            if (K == 4 && p == 0) continue;
                            const int P = (H + 2 * p - K) / S + 1, Q = (W + 2 * p - K) / S + 1;
                            conv2d(y, x, w, b, N, C, H, W, 3, K, S, p);
                            check(NULL, dt_conv2d_naive(z, x, w, b, N, C, H, W, 3, K, S, p));
                            convolutions += largest_difference(y, z, (size_t)(N * 3 * P * Q)) <
                                            1e-5f;
                        }
                maxpool2d(y, x, 3, H, W, K);
                check(NULL, dt_maxpool2d_naive(z, x, 1, 3, H, W, K, K));
                poolings += largest_difference(y, z, (size_t)(3 * (H / K) * (W / K))) <= 0.0f;
            }
    printf("%d convolutions and %d poolings agree with dt_conv2d_naive and dt_maxpool2d_naive\n",
           convolutions, poolings);
    expect(convolutions == 288 && poolings == 40, "a kernel by hand differs from the header's");
    free(x); free(w); free(b); free(y); free(z);
}

// ## 3.3 The Net
//
// Eleven steps, one behind the other: the **forward pass**. In the comments: the shape of what is
// behind a layer, for one image; such values between two layers are called **activations**. The
// digit with the largest probability is the net's answer, and the share of the test images for
// which that is right is its **accuracy**. (While it is trained the Net has one layer more, of
// chapter 5, which does nothing when a net only answers.) Every layer that multiplies is timed, for
// 3.5.

typedef struct pass {
    int N;                       // images
    float *input, *conv1, *pool1, *conv2, *pool2, *pool3, *fc1, *fc2, *logp;
    double seconds[4];           // conv1, conv2, fc1, fc2
} pass;

// [region: net]
static void forward(pass *t, dt_net *net) {
    const float *v[8];
    for (int i = 0; i < 8; ++i) v[i] = dt_net_param(net, i)->value.data;
    const int N = t->N;
    double clock = dt_now();
    conv2d(t->conv1, t->input, v[0], v[1], N, 1, 28, 28, 10, 5, 1, 0);   // 10 x 24 x 24
    t->seconds[0] = dt_now() - clock;
    maxpool2d(t->pool1, t->conv1, N * 10, 24, 24, 2);                    // 10 x 12 x 12
    relu(t->pool1, N * 10 * 12 * 12);
    clock = dt_now();
    conv2d(t->conv2, t->pool1, v[2], v[3], N, 10, 12, 12, 20, 5, 1, 0);  // 20 x 8 x 8
    t->seconds[1] = dt_now() - clock;
    maxpool2d(t->pool2, t->conv2, N * 20, 8, 8, 2);                      // 20 x 4 x 4
    relu(t->pool2, N * 20 * 4 * 4);
    // 20 x 2 x 2, read as 80 from here on
    maxpool2d(t->pool3, t->pool2, N * 20, 4, 4, 2);
    clock = dt_now();
    linear(t->fc1, t->pool3, v[4], v[5], N, 80, 50);                     // 50
    t->seconds[2] = dt_now() - clock;
    relu(t->fc1, N * 50);
    clock = dt_now();
    linear(t->fc2, t->fc1, v[6], v[7], N, 50, 10);                       // 10
    t->seconds[3] = dt_now() - clock;
    log_softmax(t->logp, t->fc2, N, 10);
}
// [end]

static pass pass_of(const dt_dataset *data, int N) {
    const size_t n = (size_t)N;
    pass t = { .N = N };
    float **const buffer[] = { &t.input, &t.conv1, &t.pool1, &t.conv2, &t.pool2,
                               &t.pool3, &t.fc1,   &t.fc2,   &t.logp };
    const size_t floats[] = { 784, 5760, 1440, 1280, 320, 80, 50, 10, 10 };
    for (size_t i = 0; i < 9; ++i) *buffer[i] = random_floats(n * floats[i], (uint32_t)i);
    for (size_t i = 0; i < n * 784; ++i)
        t.input[i] = ((float)data->pixels[i] / 255.0f - data->mean[0]) / data->std[0];
    return t;
}

static void pass_free(const pass *t) {
    float *const buffer[] = { t->input, t->conv1, t->pool1, t->conv2, t->pool2,
                              t->pool3, t->fc1,   t->fc2,   t->logp };
    for (size_t i = 0; i < 9; ++i) free(buffer[i]);
}

// The header computes the same net with sixteen images side by side in each vector register. It
// adds in another order, so the last bits differ; nothing else may.

static void compare_with_header(const pass *t, dt_net *net) {
    float logp[10], most = 0.0f;
    int labels = 0;
    for (int n = 0; n < t->N; ++n) {
        int mine = 0, theirs = 0;
        dt_net_log_probabilities(net, n, logp);
        most = fmaxf(most, largest_difference(logp, t->logp + n * 10, 10));
        for (int k = 1; k < 10; ++k) {
            if (logp[k] > logp[theirs]) theirs = k;
            if (t->logp[n * 10 + k] > t->logp[n * 10 + mine]) mine = k;
        }
        labels += mine != theirs;
    }
    printf("%d images: the largest difference of a log-probability is %.1e, and %d labels differ\n",
           t->N, (double)most, labels);
    expect(most < 2e-5f, "dt_forward gives other log-probabilities");
}

// ## 3.4 What it costs
//
// An output of a convolution takes `C*K*K` multiply-adds, and there are `O*P*Q` of them. Counting
// needs no clock: it says what must be done, on any machine. Two thirds of this net's are in its
// second convolution, nearly all others in its first; the linear layers have one in a hundred,
// though nearly half of the parameters.

// [region: count]
static const char *const layer_names[4] = { "conv1", "conv2", "fc1", "fc2" };
static const double multiply_adds[4] = { 10.0 * 24 * 24 * 1 * 5 * 5, 20.0 * 8 * 8 * 10 * 5 * 5,
                                         50.0 * 80, 10.0 * 50 };
// [end]

static void print_counts(const dt_net *net) {
    const char *const what[] = { "conv 1x28x28 -> 10x24x24", "conv 10x12x12 -> 20x8x8",
                                 "linear 80 -> 50", "linear 50 -> 10" };
    double all = 0.0, training = 0.0;
    printf("\n");
    for (int i = 0; i < 4; ++i) {
        printf("%-25s %7.0f multiply-adds an image\n", what[i], multiply_adds[i]);
        all += multiply_adds[i];
        // chapter 5: backward costs twice as much, the first layer once
        training += 2.0 * multiply_adds[i] * (i == 0 ? 2.0 : 3.0);
    }
    printf("%-25s %7.0f, of which conv2 %.0f %%\n", "together", all,
           100.0 * multiply_adds[1] / all);
    expect(fabs(training - dt_net_flops(net)) < 0.5, "dt_net_flops counts otherwise");
}

// ## 3.5 How fast is that?
//
// A multiply-add is two floating-point operations (flop). Counted flop over measured seconds is a
// speed (1 GFLOP/s is 10^9 in a second), and a speed wants a ceiling: what can this core do at
// best? We ask it: ten vectors, each multiplied and added to again and again, all in registers, no
// memory. (A vector is several floats in one register, and one instruction works on all of them:
// chapter 4.) Ten, since on many cores a multiply-add takes four cycles and two may begin in each:
// eight must be under way at any time.
//
// In the picture's run (figures/ch03_gflops.csv) seven loops reach 1.9 % of the peak in conv2, and
// the header 85 %: what lies between is chapter 4. (The header is told here to do the multiply-adds
// that the seven loops do. Left to itself it finds the same outputs with fewer, 4.7.)
//
// Picture: ch03_gflops

#if defined(__AVX512F__)
typedef float vector __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float vector __attribute__((vector_size(32)));
#else
typedef float vector __attribute__((vector_size(16)));
#endif

// [region: peak]
// Here, and nowhere else, the compiler may fuse multiply and add, and use its widest registers.
#if defined(__clang__)
__attribute__((min_vector_width(512)))
#else
__attribute__((optimize("fp-contract=fast")))
#endif
static double peak_gflops(int rounds) {
#if defined(__clang__)
#pragma clang fp contract(fast)
#endif
    double best = 0.0;
    for (int attempt = 0; attempt < 10; ++attempt) {
        vector a[10], m = { 0 }, s = { 0 };
        m = m + 0.999f;
        s = s + 0.001f;
        for (int k = 0; k < 10; ++k) a[k] = s * (float)k;
        const double start = dt_now();
        for (int r = 0; r < rounds; ++r)
            for (int k = 0; k < 10; ++k) a[k] = a[k] * m + s;
        const double seconds = dt_now() - start;
        for (int k = 1; k < 10; ++k) a[0] += a[k];
        volatile float used = a[0][0]; // so that the work may not be left out
        (void)used;
        best = fmax(best, 2.0 * 10.0 * (double)(sizeof(vector) / sizeof(float)) * rounds / seconds *
                              1e-9);
    }
    return best;
}
// [end]

// Each layer by hand and by the header, several times; the median counts, the smallest and the
// largest become error bars.
static void measure(pass *t, dt_net *net, int runs, speeds *s) {
    // where they stand in the header's list of layers: with chapter 5's, without the softmax
    static const int at[LAYERS] = { 0, 3, 8, 10 };
    double speed[2 * LAYERS][MOST_RUNS];
    for (int r = 0; r < runs; ++r) {
        forward(t, net);
        check(NULL, dt_net_profile(net, true));
        check(NULL, dt_forward(net));
        for (int i = 0; i < LAYERS; ++i) {
            double seconds = 0.0;
            dt_net_layer(net, at[i], &seconds, NULL);
            speed[i][r] = 2e-9 * multiply_adds[i] * t->N / t->seconds[i];
            speed[LAYERS + i][r] = 2e-9 * multiply_adds[i] * t->N / seconds;
        }
    }
    check(NULL, dt_net_profile(net, false));
    for (int k = 0; k < 2 * LAYERS; ++k) {
        sort_numbers(speed[k], (size_t)runs);
        s->low[k] = speed[k][0], s->median[k] = speed[k][runs / 2], s->high[k] = speed[k][runs - 1];
    }
}

int main(int argc, char **argv) {
    const char *which = "auto", *folder = "out";
    int images = 0, runs = 0;
    bool quick = false;
    const option_desc options[] = {
        DATA_OPTION(&which),
        { "images", UP_TO(10000), &images, "N   in the batch; default 128, with --quick 20" },
        { "runs", UP_TO(MOST_RUNS), &runs,
          "N   of which the median counts; default 11, with --quick 3" },
        FIGURES_OPTION(&folder),
        QUICK_OPTION(&quick),
    };
    dt_comm *comm = begin_program(argc, argv,
                                  "Chapter 3: convolution, and the whole net's forward pass.",
                                  options, sizeof options);
    check_output(comm, "%s/ch03_gflops.png", folder);
    if (!images) images = quick ? 20 : 128;
    if (!runs) runs = quick ? 3 : 11;
    dt_dataset train, test;
    load_data(comm, which, "ch03", &train, &test);
    print_machine(comm, &train, 1);

    uint32_t *index = memory((size_t)images * sizeof *index);
    for (int i = 0; i < images; ++i) index[i] = (uint32_t)i;
    dt_net *net = mnist_net(10);
    // direct: by the definition; else the header multiplies less (chapter 4)
    check(comm, dt_net_build(net, &(dt_build_desc){ .batch = images, .seed = 1234,
                                                    .direct = true }));
    dt_net_training(net, false);
    const dt_batch batch = batch_of(&train, index, 0, (uint32_t)images);
    check(comm, dt_net_load(net, &batch));
    pass t = pass_of(&train, images);

    check_kernels();
    print_counts(net);
    printf("\n");
    forward(&t, net);
    check(comm, dt_forward(net));
    compare_with_header(&t, net);

    speeds s = { .layer = layer_names, .peak = peak_gflops(quick ? 100000 : 1000000) };
    measure(&t, net, runs, &s);
    print_speeds(&s);
    draw_speeds(&s, folder, train.name, images);

    pass_free(&t);
    dt_net_free(net);
    free(index);
    return end_program(comm, &train, &test);
}

// ## 3.6 Exercises
//
// 1. **Predict.** Padding 2 keeps conv1's output at 28 x 28. By what factor do its multiply-adds
//    grow? What must fc1 then expect?
// 2. **Predict.** ReLU stands behind the pooling here. Put it before: do the outputs change? Does
//    the cost?
// 3. **Implement.** Average pooling. Then a depthwise convolution (output channel o sees only input
//    channel o); count its multiply-adds for 10 channels of 24 x 24.
// 4. **Measure.** Swap the loops over j and v in `conv2d`, so that neighbouring outputs are
//    computed together. How many GFLOP/s? (Chapter 4 takes this path to its end.)
// 5. **Measure.** Change the ten vectors of `peak_gflops` to two, four, six, eight. At which number
//    does the speed stop growing, and what does that say about the latency of a multiply-add here,
//    the cycles until its result is there?
