// Lab 5. Backward passes                                            chapter 5
//
// Training asks how the loss changes with every parameter. The answer is passed back from layer to
// layer: each is handed dy, the loss's slope by its outputs, and owes dx, the slope by its inputs,
// and dw and db, those by its parameters. One rule does it: where the forward pass has y += x * w,
// the backward pass has dx += w * dy and dw += x * dy, in the same loops.
//
// All slopes here are *added* to what stands in dx, dw and db: somebody else may have added theirs
// before. Fill in what is missing, then run `make grade-lab05`. It draws new numbers each time and
// prints the seed; `make grade-lab05 ARGS="--seed 5 linear"` repeats one run, and grades one task
// alone.
//
// Before you write, predict: which of dx, dw, db needs x, and which needs w?

#include <math.h>

// Task 1, linear_backward (30 points). Forward: y[n,o] = b[o] + sum over i of x[n,i] * w[o,i]
// x (N,I)  w (O,I)  b (O)  y (N,O)
void linear_backward(float *dx, float *dw, float *db, const float *dy, const float *x,
                     const float *w, int N, int I, int O) {
    // BEGIN SOLUTION
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o) {
            const float d = dy[n * O + o];
            db[o] += d;
            for (int i = 0; i < I; ++i) {
                dw[o * I + i] += x[n * I + i] * d;
                dx[n * I + i] += w[o * I + i] * d;
            }
        }
    // END SOLUTION
}

// Task 2, conv2d_backward (30 points). Forward, no stride, no padding, with P = H-K+1 and Q =
// W-K+1: y[n,o,i,j] = b[o] + sum over c,u,v of x[n,c,i+u,j+v] * w[o,c,u,v] x (N,C,H,W)  w (O,C,K,K)
// b (O)  y (N,O,P,Q), all row-major
void conv2d_backward(float *dx, float *dw, float *db, const float *dy, const float *x,
                     const float *w, int N, int C, int H, int W, int O, int K) {
    // BEGIN SOLUTION
    const int P = H - K + 1, Q = W - K + 1;
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o)
            for (int i = 0; i < P; ++i)
                for (int j = 0; j < Q; ++j) {
                    const float d = dy[((n * O + o) * P + i) * Q + j];
                    db[o] += d;
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v) {
                                const int at = ((n * C + c) * H + i + u) * W + j + v;
                                const int k = ((o * C + c) * K + u) * K + v;
                                dw[k] += x[at] * d;
                                dx[at] += w[k] * d;
                            }
                }
    // END SOLUTION
}

// Task 3, maxpool_backward (20 points). Forward: each K x K square of a plane becomes its largest
// value, P = H/K, Q = W/K; rows and columns that fill no square are left out. The slope goes to
// where the largest value stood, of equal ones the first, row by row. x (planes,H,W)  dy
// (planes,P,Q)
void maxpool_backward(float *dx, const float *dy, const float *x, int planes, int H, int W, int K) {
    // BEGIN SOLUTION
    const int P = H / K, Q = W / K;
    for (int c = 0; c < planes; ++c)
        for (int i = 0; i < P; ++i)
            for (int j = 0; j < Q; ++j) {
                int best = (c * H + i * K) * W + j * K;
                for (int u = 0; u < K; ++u)
                    for (int v = 0; v < K; ++v) {
                        const int at = (c * H + i * K + u) * W + j * K + v;
                        if (x[at] > x[best]) best = at;
                    }
                dx[best] += dy[(c * P + i) * Q + j];
            }
    // END SOLUTION
}

// Task 4, loss_backward (20 points). Of N rows of ten numbers z, the loss is the mean over the rows
// of -log p[label], where p is exp(z) over the sum of all ten exp(z). Its slope by z is *written*
// to dz. z may be 100 or more, and exp(100) fits into no float: subtract the row's largest z first.
void loss_backward(float *dz, const float *z, const unsigned char *label, int N) {
    // BEGIN SOLUTION
    for (int n = 0; n < N; ++n) {
        float most = z[n * 10], sum = 0.0f;
        for (int k = 1; k < 10; ++k) most = fmaxf(most, z[n * 10 + k]);
        for (int k = 0; k < 10; ++k) sum += expf(z[n * 10 + k] - most);
        for (int k = 0; k < 10; ++k)
            dz[n * 10 + k] = (expf(z[n * 10 + k] - most) / sum - (float)(k == label[n])) / (float)N;
    }
    // END SOLUTION
}

// Questions, to be answered in a sentence or two:
//
// 1. Each row of dz adds up to zero. Why?
// 2. How many multiply-adds has conv2d_backward for every one of the forward pass?
