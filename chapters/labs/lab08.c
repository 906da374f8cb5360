// Lab 8. Synchronous SGD, and a sum that was thrown away            chapter 8
//
// P ranks train one net: P copies of one program, each with memory of its own. Each computes the
// gradient of its own part of the batch; then all ranks average their gradients and take the same
// step. If that is done right, P does not change what is learned. A program by a student trained
// the same net on 1 to 5 ranks and got 98.0 % on one, and 97.4, 96.6, 96.1 and 95.5 % on two to
// five. Nobody had noticed that the ranks never talked: its average_gradient is task 1 below, as it
// was, and compiles without a warning.
//
// All that ranks have in common is one function:
//
//     r->allreduce(r, sum, x, n)    sum[i] becomes the sum over all ranks of their x[i], on every
//                                   rank; x stays as it is. All ranks must call it, with the same
//                                   n, which may be 1. sum and x may be the same array.
//
// A rank sees its own g, w and m alone. scratch has room for n floats, on every rank. Mend and fill
// in, then run `make grade-lab08`. It draws new numbers each time and prints the seed; `make
// grade-lab08 ARGS="--seed 5 weighted"` repeats one run, and grades only the tasks whose name has
// that word.
//
// Before you write, predict: what does the program do that was printed? With what learning rate
// does each of its ranks train, and on how much of the data?

#include <math.h>
#include <stddef.h>

typedef struct ranks ranks;
struct ranks {
    int rank, size; // this rank's number, 0 to size-1; how many there are, P
    void (*allreduce)(const ranks *r, float *sum, const float *x, size_t n);
};

// Task 1, average_gradient (20 points). g becomes the mean over all ranks of their g. Find the
// mistake, and mend it.
void average_gradient(const ranks *r, float *g, size_t n, float *scratch) {
    // BEGIN SOLUTION
    r->allreduce(r, scratch, g, n);
    for (size_t i = 0; i < n; ++i) g[i] = scratch[i] / (float)r->size;
    //- r->allreduce(r, scratch, g, n);
    //- for (size_t i = 0; i < n; ++i) g[i] /= (float)r->size;
    // END SOLUTION
}

// Task 2, weighted_gradient (30 points). Parts of a batch need not be equally long: this rank had m
// images, and g is the mean over those. g becomes the mean over all images of all ranks, for which
// the long parts count more. A rank with m = 0 has no gradient: what stands in its g may be
// anything, also NaN, and must not count. Some rank has images.
void weighted_gradient(const ranks *r, float *g, size_t n, int m, float *scratch) {
    // BEGIN SOLUTION
    const float mine = (float)m;
    float images = 0.0f;
    r->allreduce(r, &images, &mine, 1);
    for (size_t i = 0; i < n; ++i) scratch[i] = m > 0 ? g[i] * mine : 0.0f;
    r->allreduce(r, g, scratch, n);
    for (size_t i = 0; i < n; ++i) g[i] /= images;
    // END SOLUTION
}

// Task 3, same_start (20 points). All ranks must begin with the same net: w becomes rank 0's w, on
// every rank. There is no broadcast here, only the sum; what the other ranks' w hold before may be
// anything, also NaN.
void same_start(const ranks *r, float *w, size_t n, float *scratch) {
    // BEGIN SOLUTION
    for (size_t i = 0; i < n; ++i) scratch[i] = r->rank == 0 ? w[i] : 0.0f;
    r->allreduce(r, w, scratch, n);
    // END SOLUTION
}

// Task 4, distance (30 points). The check that would have found it: how far is this rank's net from
// the mean of all? Returns the largest |w[i] - mean of all ranks' w[i]| over all i, which is 0 if
// all nets are the same. w stays as it is.
float distance(const ranks *r, const float *w, size_t n, float *scratch) {
    float most = 0.0f;
    // BEGIN SOLUTION
    r->allreduce(r, scratch, w, n);
    for (size_t i = 0; i < n; ++i)
        most = fmaxf(most, fabsf(w[i] - scratch[i] / (float)r->size));
    // END SOLUTION
    return most;
}

// Questions, to be answered in a sentence or two:
//
// 1. Why did the accuracy of the program fall from 98.0 to 95.5 %, and why only so little?
// 2. Two ranks, 30 and 10 images. What does the gradient become if the parts count the same, and
//    which images then count more than others?
