// Chapter 5. Backwards through the net                uses [S2] [S6.4] [S6.5] [S7.1] [S8.1]
//
// You will learn   to turn each forward line around; to prove a gradient right with nothing but the
//                  loss
// New since ch03   about 200 lines
// Run              make ch05 && ./ch05
// Check            ./ch05 --data synthetic --quick --figures build/check
//
//~ loss by hand <num>, by dt_forward <num>
//~ conv<num>.weight <num>   <num>   <num>   <num>
//~ fc<num>.bias <num>   <num>   <num>   <num>
//| 16 of 16 gradients are confirmed by finite differences
//~ fc<num>.bias   largest gradient <num>   largest difference <num>
//| 9840 gradients by hand are dt_backward's

#include "chapter.h"

// ## 5.1 One rule
//
// Training asks of every parameter: *if you grow a little, how does the loss change?* The net is a
// chain of layers, so the answer is passed back along the chain (Rumelhart, Hinton and Williams
// 1986). A layer gets dy, the loss's slope by each of its outputs, and owes dx, the slope by each
// of its inputs, and dw, by each weight. One rule does all of it:
//
//     forward    y += x * w
//     backward   dx += w * dy      dw += x * dy
//
// Every product of the forward pass is turned around in this way, **in place, in the same loops**.
// What was used twice gets two contributions, hence +=. Below, each backward line quotes its
// forward line.
//
// This chapter computes in double, for a reason that 5.8 shows.
//
// *Why that rule?* A product's slope by x is w: if x grows by a little e, y grows by w e, and the
// loss by dy w e. And the slopes by way of several y add up, as all of those changes happen at
// once. This is the chain rule, and there is no more to it. (dx is short for "the slope of the loss
// by x", everywhere.)

// ## 5.2 Convolution and linear
//
// Nobody asks for the slope by the image's own pixels: the first layer has no dx (NULL).

// [region: conv]
static void conv2d(double *y, const double *x, const double *w, const double *b, int N, int C,
                   int H, int O, int K) {
    const int P = H - K + 1;
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o)
            for (int i = 0; i < P; ++i)
                for (int j = 0; j < P; ++j) {
                    double sum = b[o];
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v)
                                sum += x[((n * C + c) * H + i + u) * H + j + v] *
                                       w[((o * C + c) * K + u) * K + v];
                    y[((n * O + o) * P + i) * P + j] = sum;
                }
}

static void conv2d_backward(double *dx, double *dw, double *db, const double *dy, const double *x,
                            const double *w, int N, int C, int H, int O, int K) {
    const int P = H - K + 1;
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o)
            for (int i = 0; i < P; ++i)
                for (int j = 0; j < P; ++j) {
                    const double d = dy[((n * O + o) * P + i) * P + j];
                    db[o] += d;                             /* y += b    =>  db += dy */
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v) {
                                const int at = ((n * C + c) * H + i + u) * H + j + v;
                                const int k = ((o * C + c) * K + u) * K + v;
                                dw[k] += x[at] * d;         /* y += x*w  =>  dw += x*dy */
                                if (dx) dx[at] += w[k] * d; /* y += x*w  =>  dx += w*dy */
                            }
                }
}
// [end]

static void linear(double *y, const double *x, const double *w, const double *b, int N, int I,
                   int O) {
    for (int n = 0; n < N; ++n) for (int o = 0; o < O; ++o) {
        double sum = b[o];
        for (int i = 0; i < I; ++i) sum += x[n * I + i] * w[o * I + i];
        y[n * O + o] = sum;
    }
}

static void linear_backward(double *dx, double *dw, double *db, const double *dy, const double *x,
                            const double *w, int N, int I, int O) {
    for (int n = 0; n < N; ++n) for (int o = 0; o < O; ++o) {
        const double d = dy[n * O + o];
        db[o] += d;                                             /* y += b    =>  db += dy */
        for (int i = 0; i < I; ++i) {
            dw[o * I + i] += x[n * I + i] * d;                  /* y += x*w  =>  dw += x*dy */
            dx[n * I + i] += w[o * I + i] * d;                  /* y += x*w  =>  dx += w*dy */
        }
    }
}

// ## 5.3 Layers that choose
//
// Max-pool and ReLU only let through. Backward, the slope takes the way the number took: to the
// window's largest (of equals, the first), or nowhere. So forward has to leave a note: max-pool
// writes down where, and of ReLU the output is note enough.
//
// *Why dropout?* (Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov 2014.) A net with
// many parameters and few images can learn by heart: one output that fires for just one training
// image, several that only make sense together. That is overfitting (0.8). Erase values at random
// while training, others for each image, and none can rely on a particular one: what is learned has
// to work from several sides. When the net only answers, nothing is erased.
//
// Dropout2d erases whole planes, (image, channel) pairs, with probability p, since neighbours in a
// plane say nearly the same, and multiplies the others by 1/(1-p), so that the sum behind it keeps
// its expectation: (1-p) of the planes, each 1/(1-p) times as large. The mask is a function of
// (seed, layer, epoch, image): chapter 1's Philox. That lets us compute the header's mask here, and
// it keeps the loss *the same function* from one call to the next: without that, no finite
// difference of it would mean anything.

// [region: choose]
static void maxpool(double *y, int *where, const double *x, int planes, int H) {
    const int P = H / 2;
    for (int c = 0; c < planes; ++c) for (int i = 0; i < P; ++i) for (int j = 0; j < P; ++j) {
        int best = (c * H + 2 * i) * H + 2 * j;
        for (int u = 0; u < 2; ++u) for (int v = 0; v < 2; ++v) {
            const int at = (c * H + 2 * i + u) * H + 2 * j + v;
            if (x[at] > x[best]) best = at;
        }
        where[(c * P + i) * P + j] = best;
        y[(c * P + i) * P + j] = x[best];
    }
}

static void maxpool_backward(double *dx, const double *dy, const int *where, int n) {
    for (int i = 0; i < n; ++i) dx[where[i]] += dy[i]; /* y = x[best]  =>  dx[best] += dy */
}

static void relu(double *x, int n) { for (int i = 0; i < n; ++i) x[i] = x[i] > 0.0 ? x[i] : 0.0; }

static void relu_backward(double *d, const double *y, int n) {
    for (int i = 0; i < n; ++i)
        d[i] = y[i] > 0.0 ? d[i] : 0.0; /* y = x > 0 ? x : 0  =>  dx = y > 0 ? dy : 0 */
}

static void dropout2d(double *x, int images, int channels, int plane, uint64_t seed) {
    enum { LAYER = 5 }; /* its place in the header's list, from 0 */
    for (int n = 0; n < images; ++n) for (int c = 0; c < channels; ++c) {
            const uint32_t bits =
                dt_philox(seed, DT_RNG_DROPOUT | LAYER << 8, 0, (uint32_t)n, (uint32_t)c / 4)
                    .v[c % 4];
            const double m = dt_uniform(bits) < 0.5f ? 0.0 : 2.0;
            for (int i = 0; i < plane; ++i)
                x[(n * channels + c) * plane + i] *= m; /* y = x*m  =>  dx = dy*m: the same loop */
    }
}
// [end]

// ## 5.4 The loss
//
// The net's ten numbers z become ten probabilities, p_k = exp(z_k) / sum of exp(z_j): all above
// zero, together one. The loss of an image is -log p of its right label, and the batch's loss is
// the mean.
//
// *Why -log p?* A net that gives N images' right labels the probabilities p_1 ... p_N gives all of
// them together p_1 * p_2 * ... * p_N, and the best net is the one to which what happened was most
// probable. Products of thousands of small numbers fit into no float; their logarithm is a sum, and
// its mean with a minus is small where the product is large. It is 0 for a net that is sure and
// right, 2.30 (log 10) for one that knows nothing, and grows without end for one that is sure and
// wrong.
//
// *Its slope.* Of one image with the right label r, the loss is -log p_r = log(sum of exp(z_j)) -
// z_r. By z_k the first term has the slope exp(z_k) / sum of exp(z_j), which is p_k. The second has
// -1 if k is r, and else 0. So
//
//     dz_k = p_k - 1  for the right label,     dz_k = p_k  for the others
//
// divided by N for the mean: push down what is too probable, push up what is not probable enough.

// [region: loss]
static double loss_of(double *logp, const double *z, const uint8_t *label, int N) {
    double loss = 0.0;
    for (int n = 0; n < N; ++n) {
        double most = z[n * 10], sum = 0.0;
        for (int k = 1; k < 10; ++k) most = larger(most, z[n * 10 + k]);
        for (int k = 0; k < 10; ++k) sum += exp(z[n * 10 + k] - most);
        for (int k = 0; k < 10; ++k) logp[n * 10 + k] = z[n * 10 + k] - most - log(sum);
        loss -= logp[n * 10 + label[n]] / N;
    }
    return loss;
}

static void loss_backward(double *dz, const double *logp, const uint8_t *label, int N) {
    for (int n = 0; n < N; ++n) for (int k = 0; k < 10; ++k)
        dz[n * 10 + k] = (exp(logp[n * 10 + k]) - (k == label[n])) / N;
}
// [end]

// ## 5.5 The chain
//
// Forward top to bottom, backward bottom to top, each line facing its counterpart. The d… buffers
// mirror the others.

enum {
    MOST = 64,
    ALL = 9840,
    W1 = 0,
    B1 = 250,
    W2 = 260,
    B2 = 5260,
    W3 = 5280,
    B3 = 9280,
    W4 = 9330,
    B4 = 9830
};
typedef struct buffers {
    double conv1[MOST * 5760], pool1[MOST * 1440], conv2[MOST * 1280], pool2[MOST * 320],
        pool3[MOST * 80], fc1[MOST * 50], fc2[MOST * 10];
} buffers;
static double input[MOST * 784], logp[MOST * 10], values[ALL], grads[ALL];
static uint8_t labels[MOST];
static int where1[MOST * 1440], where2[MOST * 320], where3[MOST * 80];
static buffers a, d;

// [region: chain]
static double forward(int N, uint64_t seed) {
    conv2d(a.conv1, input, values + W1, values + B1, N, 1, 28, 10, 5);
    maxpool(a.pool1, where1, a.conv1, N * 10, 24);
    relu(a.pool1, N * 1440);
    conv2d(a.conv2, a.pool1, values + W2, values + B2, N, 10, 12, 20, 5);
    maxpool(a.pool2, where2, a.conv2, N * 20, 8);
    dropout2d(a.pool2, N, 20, 16, seed);
    relu(a.pool2, N * 320);
    maxpool(a.pool3, where3, a.pool2, N * 20, 4);
    linear(a.fc1, a.pool3, values + W3, values + B3, N, 80, 50);
    relu(a.fc1, N * 50);
    linear(a.fc2, a.fc1, values + W4, values + B4, N, 50, 10);
    return loss_of(logp, a.fc2, labels, N);
}

static void backward(int N, uint64_t seed) {
    memset(&d, 0, sizeof d);
    memset(grads, 0, sizeof grads);
    loss_backward(d.fc2, logp, labels, N);
    linear_backward(d.fc1, grads + W4, grads + B4, d.fc2, a.fc1, values + W4, N, 50, 10);
    relu_backward(d.fc1, a.fc1, N * 50);
    linear_backward(d.pool3, grads + W3, grads + B3, d.fc1, a.pool3, values + W3, N, 80, 50);
    maxpool_backward(d.pool2, d.pool3, where3, N * 80);
    relu_backward(d.pool2, a.pool2, N * 320);
    dropout2d(d.pool2, N, 20, 16, seed);
    maxpool_backward(d.conv2, d.pool2, where2, N * 320);
    conv2d_backward(d.pool1, grads + W2, grads + B2, d.conv2, a.pool1, values + W2, N, 10, 12, 20,
                    5);
    relu_backward(d.pool1, a.pool1, N * 1440);
    maxpool_backward(d.conv1, d.pool1, where1, N * 1440);
    conv2d_backward(NULL, grads + W1, grads + B1, d.conv1, input, values + W1, N, 1, 28, 10, 5);
}
// [end]

// ## 5.6 Ask the loss itself
//
// Two hundred lines, and a sign error anywhere still trains, badly. There is a judge that shares no
// line with them: change one parameter by h to both sides, and see what the loss does.
//
//     numeric gradient = (loss(w + h) - loss(w - h)) / 2h       error about h*h, plus rounding / h
//
// *Why the square of h?* Near w the loss is loss(w) + s h + c h^2 + d h^3 + ..., with s the slope.
// To the other side s and d change sign, c does not. So loss(w) and c fall out of the difference,
// and what is left beside s is d h^2. (With one side only it would be c h.) The rounding of the two
// losses, a fixed small number, is divided by 2h, and so grows as h shrinks.
//
// Two parameters of each tensor, drawn at random; behind an erased plane or a sleeping ReLU the
// gradient is zero, and the next one that is not is taken. "Relative" is to the larger of the
// gradient and a hundredth of the tensor's largest one.

// [region: numeric]
static double numeric(int at, double h, int N, uint64_t seed) {
    const double w = values[at];
    values[at] = w + h;
    const double above = forward(N, seed);
    values[at] = w - h;
    const double below = forward(N, seed);
    values[at] = w;
    return (above - below) / (2.0 * h);
}
// [end]

static double largest(const double *x, size_t n) {
    double most = 0.0;
    for (size_t i = 0; i < n; ++i) most = larger(most, fabs(x[i]));
    return most;
}

static void check_gradients(const dt_net *net, int N, uint64_t seed) {
    int right = 0, asked = 0;
    printf("\n%-18s   %13s %13s %10s\n", "parameter", "numeric", "analytic", "relative");
    for (int i = 0; i < dt_net_param_count(net); ++i) {
        const dt_param *p = dt_net_param(net, i);
        const size_t n = dt_tensor_count(&p->value);
        for (uint32_t k = 0; k < 2; ++k, ++asked) {
            size_t j = dt_philox(seed, DT_RNG_TEST, 0, (uint32_t)i, k).v[0] % n;
            for (size_t step = 0; step < n && fabs(grads[p->offset + j]) <= 0.0; ++step)
                j = (j + 1) % n;
            const double found = numeric((int)(p->offset + j), 1e-6, N, seed),
                         claimed = grads[p->offset + j];
            const double error = fabs(found - claimed) /
                                 fmax(fabs(claimed), 0.01 * largest(grads + p->offset, n));
            printf("%-12s %5zu   %13.9f %13.9f %10.1e\n", p->name, j, found, claimed, error);
            right += error < 1e-4;
        }
    }
    printf("%d of %d gradients are confirmed by finite differences\n", right, asked);
    expect(right == asked, "a gradient differs from the loss's slope");
}

// ## 5.7 And the header's
//
// dt_backward computes in float, in lanes, with the layers fused. Here all 9 840 gradients are
// compared, tensor by tensor.

static void compare_with_header(dt_net *net) {
    double worst = 0.0;
    printf("\n");
    for (int i = 0; i < dt_net_param_count(net); ++i) {
        const dt_param *p = dt_net_param(net, i);
        double difference = 0.0, most = largest(grads + p->offset, dt_tensor_count(&p->grad));
        for (size_t k = 0; k < dt_tensor_count(&p->grad); ++k)
            difference = larger(difference, fabs((double)p->grad.data[k] - grads[p->offset + k]));
        worst = fmax(worst, difference / most);
        printf("%-12s   largest gradient %.6f   largest difference %.1e\n", p->name, most,
               difference);
    }
    if (worst < 1e-5) printf("%zu gradients by hand are dt_backward's\n", dt_net_count(net));
    expect(worst < 1e-5, "dt_backward gives other gradients");
}

// ## 5.8 How small a step?
//
// Mathematics says h towards 0. The machine disagrees: loss(w + h) and loss(w - h) agree in ever
// more of their digits, and the difference is made of the few that are left. Large h: the curve is
// not a line. Small h: rounding. In between, the best step, where both errors are alike: h^2 = e /
// h, with e = 10^-16 in double and 6 * 10^-8 in float, gives h = 5 * 10^-6 and 0.004; the picture's
// title has 10^-5 and 0.003. The error over h is a V. Four of them, each for the parameter with its
// tensor's largest gradient:
//
//   - one side only, (loss(w + h) - loss(w)) / h: the left leg is the same, the right one falls
//     more slowly;
//   - both sides: the same rounding, and an error of h^2;
//   - the same with a float loss, the header's: its left leg lies higher by the digits that a float
//     has less than a double. Hence this chapter's double;
//   - both sides, but a weight of conv1: the windows of max-pool behind it change their minds at
//     some h, and each such kink is a place where the loss has no slope. A small h crosses few.
//
// Picture: ch05_steps

enum { STEPS = 23 };

static double float_loss(dt_net *net) { // the header's
    check(NULL, dt_forward(net));
    const dt_score score = dt_net_score(net);
    return dt_score_loss(&score);
}

static int steepest(const dt_param *p) {
    size_t best = 0;
    for (size_t k = 1; k < dt_tensor_count(&p->value); ++k)
        if (fabs(grads[p->offset + k]) > fabs(grads[p->offset + best])) best = k;
    return (int)(p->offset + best);
}

static void draw_v(dt_net *net, int N, uint64_t seed, const char *data, const char *folder) {
    static const char *const names[4] = { "one side", "both sides", "both sides, float loss",
                                          "both sides, conv1" };
    const int smooth = steepest(dt_net_find(net, "fc2.weight")),
              kinked = steepest(dt_net_find(net, "conv1.weight"));
    double h[STEPS], error[4][STEPS], here = forward(N, seed);
    int best[4] = { 0 };
    for (int s = 0; s < STEPS; ++s) {
        h[s] = pow(10.0, -12.0 + 0.5 * s);
        float *w = dt_net_values(net) + smooth;
        const float kept = *w;
        // the step that the float takes, not the one we asked for
        *w = (float)((double)kept + h[s]);
        const double up = (double)*w, above = float_loss(net);
        *w = (float)((double)kept - h[s]);
        const double down = (double)*w, below = float_loss(net);
        *w = kept;
        values[smooth] += h[s];
        const double one = (forward(N, seed) - here) / h[s];
        values[smooth] -= h[s];
        const double found[4] = { one, numeric(smooth, h[s], N, seed),
                                  up > down ? (above - below) / (up - down) : (double)NAN,
                                  numeric(kinked, h[s], N, seed) };
        for (int k = 0; k < 4; ++k) {
            const double right = grads[k == 3 ? kinked : smooth];
            error[k][s] = fabs(found[k] - right) / fabs(right);
            if (error[k][s] <= 0.0) error[k][s] = 1e-16; // a log axis has no zero
            if (isnan(error[k][best[k]]) || error[k][s] < error[k][best[k]]) best[k] = s;
        }
    }
    printf("\nbest step, and the relative error there\n");
    for (int k = 0; k < 4; ++k)
        printf("%-24s h = %.0e   %.0e\n", names[k], h[best[k]], error[k][best[k]]);
    static const double ticks[] = { 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2 };
    char title[200], caption[160];
    char step[2][48];
    // as the axes write it
    for (int k = 0; k < 2; ++k) dt_number_text(h[best[1 + k]], 1, step[k], sizeof step[k]);
    snprintf(title, sizeof title,
             "The best step for a gradient check is about %s in double, %s with a float loss",
             step[0], step[1]);
    snprintf(caption, sizeof caption, "MNIST net with dropout, %d images of %s", N, data);
    dt_chart *c = dt_chart_new(
        &(dt_chart_desc){ .title = title,
                          .x_label = "step h",
                          .y_label = "relative error of the numeric gradient",
                          .subtitle = "steepest weight of fc2 (three lines) and of conv1",
                          .x_scale = DT_LOG10,
                          .y_scale = DT_LOG10,
                          .x_ticks = ticks,
                          .x_tick_count = 6,
                          .caption = caption,
                          .machine = true });
    for (int k = 0; k < 4; ++k)
        dt_chart_line(c, &(dt_series){ .label = names[k], .n = STEPS, .x = h, .y = error[k] });
    save_picture(NULL, c, "picture  ", "%s/ch05_steps.png", folder);
}

int main(int argc, char **argv) {
    const char *which = "auto", *folder = "out";
    int N = 0;
    uint64_t seed = 1234;
    bool quick = false;
    const option_desc options[] = {
        DATA_OPTION(&which),
        { "images", UP_TO(MOST), &N, "N   in the batch; default 20, with --quick 5" },
        { "seed", 'u', &seed,
          "S   of weights, dropout, and which gradients are asked for; default 1234" },
        FIGURES_OPTION(&folder),
        QUICK_OPTION(&quick),
    };
    dt_comm *comm = begin_program(argc, argv, "Chapter 5: backward passes and the gradient check.",
                                  options, sizeof options);
    check_output(comm, "%s/ch05_steps.png", folder);
    if (!N) N = quick ? 5 : 20;
    dt_dataset train, test;
    load_data(comm, which, "ch05", &train, &test);
    print_machine(comm, &train, 1);

    uint32_t index[MOST];
    for (int n = 0; n < MOST; ++n) index[n] = (uint32_t)n;
    dt_net *net = mnist_net(10);
    check(comm, dt_net_build(net, &(dt_build_desc){ .batch = N, .seed = seed }));
    const dt_batch batch = batch_of(&train, index, 0, (uint32_t)N);
    check(comm, dt_net_load(net, &batch));
    for (int i = 0; i < ALL; ++i) values[i] = (double)dt_net_values(net)[i];
    for (int n = 0; n < N; ++n) labels[n] = train.labels[n];
    for (int i = 0; i < N * 784; ++i)
        input[i] = (train.pixels[i] / 255.0 - (double)train.mean[0]) / (double)train.std[0];

    const double mine = forward(N, seed), theirs = float_loss(net);
    printf("\nloss by hand %.6f, by dt_forward %.6f\n", mine, theirs);
    expect(fabs(mine - theirs) < 1e-5, "dt_forward gives another loss");
    backward(N, seed);
    check(comm, dt_backward(net));
    check_gradients(net, N, seed);
    compare_with_header(net);
    draw_v(net, N, seed, train.name, folder);

    dt_net_free(net);
    return end_program(comm, &train, &test);
}

// ## 5.9 Exercises
//
// 1. **Predict.** Which lines of 5.6's table change if `relu_backward` is forgotten in front of
//    fc1? Which stay right, and why?
// 2. **Predict.** The loss divides by N. Two ranks with 10 images each sum their gradients: what
//    must they divide by instead?
// 3. **Implement.** Average pooling, forward and backward, in place of the third max-pool. The
//    table is your test.
// 4. **Implement.** Dropout on single values instead of planes, drawn as the header draws it
//    [S6.5]; compare with a net in which `dt_dropout` takes dt_dropout2d's place.
// 5. **Measure.** Seconds of `forward` and of `backward`. Count multiply-adds first: what should
//    the ratio be?
