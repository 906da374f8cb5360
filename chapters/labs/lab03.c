// Lab 3. Convolution                                                chapter 3
//
// A convolution slides a small array of weights, the kernel, over an image and writes down, at each
// place, the sum of products. Kernel element (u,v) meets the image's element (i*S+u, j*S+v): the
// stride S says how far the kernel moves from one output to the next. Before that the image gets a
// frame of zeros, `pad` wide on all four sides, so that it need not shrink.
//
// Fill in what is missing, then run `make grade-lab03`. It draws new numbers each time and prints
// the seed; `make grade-lab03 ARGS="--seed 5 padding"` repeats one run, and grades only the tasks
// whose name has that word.
//
// Before you write, predict: an image of 28 x 28, a kernel of 5 x 5. How large is the output? And
// with pad = 2?

#include <stdint.h>

// Task 1, out_size (10 points). How often a kernel of K fits along a side of H that is padded on
// both ends, moving S at a time: (H + 2 pad - K) / S + 1, rounded down; 0 where it never fits.
// Careful: C rounds -1 / 2 to 0.
int out_size(int H, int K, int S, int pad) {
    int P = 0;
    // BEGIN SOLUTION
    if (H + 2 * pad >= K) P = (H + 2 * pad - K) / S + 1;
    // END SOLUTION
    return P;
}

// Task 2, multiply_adds (10 points). N images of C x H x W, O kernels of C x K x K: how many
// products does the sum below have in all? Those with the frame's zeros count, too. It may be more
// than an int holds.
int64_t multiply_adds(int N, int C, int H, int W, int O, int K, int S, int pad) {
    int64_t count = 0;
    // BEGIN SOLUTION
    count = (int64_t)N * O * out_size(H, K, S, pad) * out_size(W, K, S, pad) * C * K * K;
    // END SOLUTION
    return count;
}

// Task 3, conv2d (50 points). Arrays are row-major: x[n,c,i,j] is x[((n * C + c) * H + i) * W + j].
// With P and Q rows and columns of output as in task 1,
//
//     y[n,o,i,j] = b[o] + sum over c,u,v of  x[n, c, i*S+u-pad, j*S+v-pad] * w[o,c,u,v]
//
// where x counts as zero outside of the image.   x (N,C,H,W)  w (O,C,K,K)  b (O)  y (N,O,P,Q)
void conv2d(float *y, const float *x, const float *w, const float *b, int N, int C, int H, int W,
            int O, int K, int S, int pad) {
    // BEGIN SOLUTION
    const int P = out_size(H, K, S, pad), Q = out_size(W, K, S, pad);
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

// Task 4, im2col (30 points). Many libraries turn the convolution of an image into a product of two
// matrices, for which they have fast code: column (i,j) of the matrix `cols` holds all that output
// (i,j) needs, the C*K*K elements of its window, zeros of the frame included. Then
// y = w times cols, w seen as a matrix of O x (C*K*K). One image:
//
//     cols[(c*K + u)*K + v][i*Q + j] = x[c, i*S+u-pad, j*S+v-pad]        cols (C*K*K, P*Q)
void im2col(float *cols, const float *x, int C, int H, int W, int K, int S, int pad) {
    // BEGIN SOLUTION
    const int P = out_size(H, K, S, pad), Q = out_size(W, K, S, pad);
    for (int k = 0; k < C * K * K; ++k)
        for (int i = 0; i < P; ++i)
            for (int j = 0; j < Q; ++j) {
                const int row = i * S + k / K % K - pad, column = j * S + k % K - pad;
                const int inside = row >= 0 && row < H && column >= 0 && column < W;
                const int from = (k / (K * K) * H + row) * W + column;
                cols[(k * P + i) * Q + j] = inside ? x[from] : 0.0f;
            }
    // END SOLUTION
}

// Questions, to be answered in a sentence or two:
//
// 1. Textbooks of signal processing turn the kernel around before they slide it. Why does it make
//    no difference to a net whether we do?
// 2. How many times as much memory as the image takes its matrix `cols`, for S = 1 and pad = K/2?
