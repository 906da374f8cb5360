// Lab 4. Convolution, fast                                          chapter 4
//
// The sum of lab 3, in another order: at least twice, and at best four times as fast as the plain
// loops on this machine. No stride and no padding here; P = H - K + 1 and Q = W - K + 1.
//
//     y[n,o,i,j] = b[o] + sum over c,u,v of  x[n, c, i+u, j+v] * w[o,c,u,v]
//
//     x (N,C,H,W)  w (O,C,K,K)  b (O)  y (N,O,P,Q), all row-major:
//     x[n,c,i,j] is x[((n * C + c) * H + i) * W + j]
//
// Fill in what is missing, then run `make grade-lab04`. It draws new numbers each time and prints
// the seed; `make grade-lab04 ARGS="--seed 5 fast"` repeats one run, and grades only the tasks
// whose name has that word.
//
// Before you write, predict: of the plain loops' instructions in the innermost loop, how many
// multiply and add, and how many only fetch numbers, count and compare?

// Task 1, conv2d (20 points). By the definition, as in lab 3: seven loops, the sum in the innermost
// three. It is what your second version is measured against.
void conv2d(float *y, const float *x, const float *w, const float *b, int N, int C, int H, int W,
            int O, int K) {
    // BEGIN SOLUTION
    const int P = H - K + 1, Q = W - K + 1;
    for (int n = 0; n < N; ++n)
        for (int o = 0; o < O; ++o)
            for (int i = 0; i < P; ++i)
                for (int j = 0; j < Q; ++j) {
                    float sum = b[o];
                    for (int c = 0; c < C; ++c)
                        for (int u = 0; u < K; ++u)
                            for (int v = 0; v < K; ++v)
                                sum += x[((n * C + c) * H + i + u) * W + j + v] *
                                       w[((o * C + c) * K + u) * K + v];
                    y[((n * O + o) * P + i) * Q + j] = sum;
                }
    // END SOLUTION
}

// Task 2, conv2d_fast (80 points: 40 if it is right, 20 more each at 2 and at 4 times the plain
// loops' speed). Chapter 4 has the ideas: sums that do not wait for each other; one weight for many
// outputs; x and y that cannot be the same memory (`restrict`), so that the compiler may take
// several numbers at once. Any one thread will do it: what counts is computing time, of all threads
// together.
//
// Speed is measured with 8 images of 16 x 32 x 32 and 16 kernels of 3 x 3, every time with new
// numbers, and against the faster of your conv2d and the grader's own plain loops.
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
