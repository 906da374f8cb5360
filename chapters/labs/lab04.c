// Lab 4. Convolution, then fast                                     chapters 3 and 4
//
// A convolution slides a kernel of weights over an image and writes down, at each place, the sum of
// products. First by the definition, seven loops; then the same sum in another order, at least
// twice and at best four times as fast as your own first version on this machine.
//
// Fill in what is missing, then run `make grade-lab04`. It draws new numbers each time and prints
// the seed; `make grade-lab04 ARGS="--seed 5 padding"` repeats one run, and grades one task alone.
//
// Before you write, predict: 1 x 28 x 28 inputs, 10 kernels of 5 x 5. How many multiply-adds?

// Arrays are row-major: x[n][c][i][j] is x[((n * C + c) * H + i) * W + j]. With
// P = (H + 2 pad - K) / S + 1 rows and Q columns likewise,
//
//     y[n,o,i,j] = b[o] + sum over c,u,v of  x[n, c, i*S+u-pad, j*S+v-pad] * w[o,c,u,v]
//
// where x counts as zero outside of the image. Task 1, conv2d (60 points).
void conv2d(float *y, const float *x, const float *w, const float *b, int N, int C, int H, int W,
            int O, int K, int S, int pad) {
    // BEGIN SOLUTION
    const int P = (H + 2 * pad - K) / S + 1, Q = (W + 2 * pad - K) / S + 1;
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o)
            for (int i = 0; i < P; ++i)
                for (int j = 0; j < Q; ++j) {
                    float sum = b[o];
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v) {
                                const int row = i * S + u - pad, column = j * S + v - pad;
                                if (row < 0 || row >= H || column < 0 || column >= W) continue;
                                sum += x[((n * C + c) * H + row) * W + column] *
                                       w[((o * C + c) * K + u) * K + v];
                            }
                    y[((n * O + o) * P + i) * Q + j] = sum;
                }
    // END SOLUTION
}

// Task 2, conv2d_fast (40 points: 20 if it is right, 10 more each at 2 and at 4 times conv2d's
// speed). The same for S = 1 and no padding. Speed is measured with 8 images of 16 x 32 x 32, 16
// kernels of 3 x 3. Chapter 4 has the ideas: sums that do not wait for each other; one weight for
// many outputs; x and y that cannot be the same memory (`restrict`), so that the compiler may take
// several at once.
void conv2d_fast(float *restrict y, const float *restrict x, const float *restrict w,
                 const float *restrict b, int N, int C, int H, int W, int O, int K) {
    // BEGIN SOLUTION
    const int P = H - K + 1, Q = W - K + 1;
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o) {
            float *restrict out = y + (n * O + o) * P * Q;
            for (int k = 0; k < P * Q; ++k) out[k] = b[o];
            for (int c = 0; c < C; ++c)
                for (int u = 0; u < K; ++u)
                    for (int v = 0; v < K; ++v) {
                        const float weight = w[((o * C + c) * K + u) * K + v];
                        for (int i = 0; i < P; ++i) {
                            const float *in = x + ((n * C + c) * H + i + u) * W + v;
                            for (int j = 0; j < Q; ++j) out[i * Q + j] += in[j] * weight;
                        }
                    }
        }
    // END SOLUTION
}

// Questions, to be answered in a sentence or two:
//
// 1. Count the loads and the stores of your two innermost loops. Which of the five ways to be slow
//    (4.1) stops the first, which the second?
// 2. How many multiply-adds has the speed test, and how many GFLOP/s do your two versions reach?
