// Lab 11. Batch norm across ranks             after chapter 8; the header's section [S6.11]
//
// Batch normalisation (Ioffe and Szegedy 2015) brings every channel of a layer to mean 0 and
// variance 1, over all images of the batch and all places of the image, and then lets the net scale
// and shift it:
//
//     y = gamma * (x - mean) / sqrt(var + eps) + beta               one gamma and beta per channel
//
// Where P ranks have parts of one batch, mean and variance of a part are not those of the batch: a
// net that uses its own part's learns something else for every P. So they are computed over all
// ranks. All that ranks have in common is one function, here of doubles:
//
//     r->allreduce(r, x, n)    x becomes the sum over all ranks of their x, n doubles; all ranks
//                              must call it, with the same n
//
// x (N,C,L): N images on this rank, C channels, L places each: x[n,c,l] is x[(n * C + c) * L + l].
// N may differ from rank to rank, and be 0 on some, but not on all.
//
// Fill in what is missing, then run `make grade-lab11`. It draws new numbers each time and prints
// the seed; `make grade-lab11 ARGS="--seed 5 moments"` repeats one run, and grades only the tasks
// whose name has that word.
//
// Before you write, predict: rank 0 has the numbers 1 and 3, rank 1 has 11 and 13. What is the
// variance on each, and over both? Is it the mean of the two?

#include <math.h>
#include <stddef.h>

enum { MOST_CHANNELS = 16 };

typedef struct ranks ranks;
struct ranks {
    int rank, size; // this rank's number, 0 to size-1; how many there are, P
    void (*allreduce)(const ranks *r, double *x, size_t n);
};

// Task 1, moments (40 points). mean[c] and var[c] of all images of all ranks, and how many numbers
// of each channel that were (what it returns). The variance is the mean of (x - mean)^2, not
// divided by one less. Channels may lie around 100 000 and differ by 1: take care what you square.
double moments(const ranks *r, double *mean, double *var, const float *x, int N, int C, int L) {
    double count = 0.0;
    // BEGIN SOLUTION
    count = (double)N * L;
    r->allreduce(r, &count, 1);
    for (int c = 0; c < C; ++c) {
        mean[c] = 0.0;
        for (int n = 0; n < N; ++n)
            for (int l = 0; l < L; ++l) mean[c] += (double)x[(n * C + c) * L + l];
    }
    r->allreduce(r, mean, (size_t)C);
    for (int c = 0; c < C; ++c) {
        mean[c] /= count;
        var[c] = 0.0;
        for (int n = 0; n < N; ++n)
            for (int l = 0; l < L; ++l) {
                const double off = (double)x[(n * C + c) * L + l] - mean[c];
                var[c] += off * off;
            }
    }
    r->allreduce(r, var, (size_t)C);
    for (int c = 0; c < C; ++c) var[c] /= count;
    // END SOLUTION
    return count;
}

// Task 2, normalise (15 points). The formula above for this rank's images.
void normalise(float *y, const float *x, const double *mean, const double *var, const float *gamma,
               const float *beta, int N, int C, int L, double eps) {
    // BEGIN SOLUTION
    for (int n = 0; n < N; ++n)
        for (int c = 0; c < C; ++c)
            for (int l = 0; l < L; ++l) {
                const int at = (n * C + c) * L + l;
                const double by = 1.0 / sqrt(var[c] + eps);
                y[at] = (float)(gamma[c] * (x[at] - mean[c]) * by + beta[c]);
            }
    // END SOLUTION
}

// Task 3, remember (15 points). What the net uses later, when it is tested, image by image: a mean
// and a variance that every batch moves a bit, by the share `momentum`:
//
//     old_mean += momentum * (mean - old_mean)
//     old_var  += momentum * (var * count / (count - 1) - old_var)
//
// count / (count - 1) makes the variance of a sample an estimate of that of all images; where count
// is 1, leave it out.
void remember(double *old_mean, double *old_var, const double *mean, const double *var,
              double count, double momentum, int C) {
    // BEGIN SOLUTION
    const double by = count > 1.0 ? count / (count - 1.0) : 1.0;
    for (int c = 0; c < C; ++c) {
        old_mean[c] += momentum * (mean[c] - old_mean[c]);
        old_var[c] += momentum * (var[c] * by - old_var[c]);
    }
    // END SOLUTION
}

// Task 4, backward (30 points). dy is the loss's slope by y, dx that by x. With h = (x - mean) /
// sqrt(var + eps), and sums over all images of *all* ranks, of which there are `count` numbers a
// channel,
//
//     A = sum of dy        B = sum of dy * h
//     dx = gamma / sqrt(var + eps) * (dy - A / count - h * B / count)             overwritten
//
// as each x has moved the mean and the variance, too. The slopes by the parameters are the same two
// sums over *this* rank's images alone, as all gradients are summed over ranks later, with those of
// the other layers. They are added to what stands there: dbeta += A of this rank, dgamma += B of
// this rank. One allreduce is enough. Doubles for the sums.
void backward(const ranks *r, float *dx, float *dgamma, float *dbeta, const float *dy,
              const float *x, const double *mean, const double *var, const float *gamma,
              double count, int N, int C, int L, double eps) {
    // BEGIN SOLUTION
    double sums[2 * MOST_CHANNELS] = { 0.0 }, *A = sums, *B = sums + C;
    for (int n = 0; n < N; ++n)
        for (int c = 0; c < C; ++c)
            for (int l = 0; l < L; ++l) {
                const int at = (n * C + c) * L + l;
                A[c] += dy[at];
                B[c] += dy[at] * (x[at] - mean[c]) / sqrt(var[c] + eps);
            }
    for (int c = 0; c < C; ++c) {
        dbeta[c] += (float)A[c];
        dgamma[c] += (float)B[c];
    }
    r->allreduce(r, sums, 2 * (size_t)C);
    for (int n = 0; n < N; ++n)
        for (int c = 0; c < C; ++c)
            for (int l = 0; l < L; ++l) {
                const int at = (n * C + c) * L + l;
                const double by = 1.0 / sqrt(var[c] + eps), h = (x[at] - mean[c]) * by;
                dx[at] = (float)(gamma[c] * by * (dy[at] - A[c] / count - h * B[c] / count));
            }
    // END SOLUTION
}

// Questions, to be answered in a sentence or two:
//
// 1. By how much is the mean of the ranks' variances too small? Write it as a formula of the ranks'
//    means.
// 2. A batch of 8 on 8 ranks, one image each: what does a layer of 1 x 1 places do to its channels
//    if every rank normalises by its own part?
