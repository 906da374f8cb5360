// Lab 9. PSGD and local SGD                                         chapter 9
//
// Synchronous SGD talks in every step. PSGD (Zinkevich, Weimer, Smola and Li 2010) talks once: the
// data is cut into one part a rank, every rank runs SGD on its part alone, and at the end the
// learned weights are averaged. Local SGD stands in between: the ranks average every H steps.
//
// What is learned here is a line in D dimensions: from x, D numbers, a prediction w[0] * x[0] + ...
// + w[D-1] * x[D-1] of a number y. The loss of one sample is (prediction - y)^2 / 2, so its slope
// by w[k] is (prediction - y) * x[k].
//
// All that ranks have in common is one function:
//
//     r->allreduce(r, x, n)    x becomes the sum over all ranks of their x, n floats; all ranks
//                              must call it, with the same n
//
// Fill in what is missing, then run `make grade-lab09`. It draws new numbers each time and prints
// the seed; `make grade-lab09 ARGS="--seed 5 local"` repeats one run, and grades only the tasks
// whose name has that word. How often you call allreduce is counted.
//
// Before you write, predict: 60 000 samples, 4 ranks, one pass over the data. How many sums has
// synchronous SGD with 16 samples on each rank in every step, and how many has PSGD?

#include <stddef.h>

typedef struct ranks ranks;
struct ranks {
    int rank, size; // this rank's number, 0 to size-1; how many there are, P
    void (*allreduce)(const ranks *r, float *x, size_t n);
};

// Task 1, sgd_samples (30 points). One step for each of `count` samples, in their order, each with
// that sample alone: w -= lr * slope. x (count,D)  y (count)  w (D), changed in place. All slopes
// of a step are taken before w moves.
void sgd_samples(float *w, const float *x, const float *y, size_t count, size_t D, float lr) {
    // BEGIN SOLUTION
    for (size_t i = 0; i < count; ++i) {
        float off = -y[i];
        for (size_t k = 0; k < D; ++k) off += w[k] * x[i * D + k];
        for (size_t k = 0; k < D; ++k) w[k] -= lr * off * x[i * D + k];
    }
    // END SOLUTION
}

// Task 2, average (20 points). w becomes the mean over all ranks of their w. One sum.
void average(const ranks *r, float *w, size_t D) {
    // BEGIN SOLUTION
    r->allreduce(r, w, D);
    for (size_t k = 0; k < D; ++k) w[k] /= (float)r->size;
    // END SOLUTION
}

// Task 3, psgd (30 points). Of n samples, rank r has those from r*n/P up to, but without,
// (r+1)*n/P, rounded down. Each rank goes through its part `epochs` times, sample by sample, and
// then, once, all average their w, which was the same on all ranks at first. A rank may have no
// samples: it averages all the same.
void psgd(const ranks *r, float *w, const float *x, const float *y, size_t n, size_t D, int epochs,
          float lr) {
    // BEGIN SOLUTION
    const size_t P = (size_t)r->size, from = (size_t)r->rank * n / P;
    const size_t to = ((size_t)r->rank + 1) * n / P;
    for (int e = 0; e < epochs; ++e) sgd_samples(w, x + from * D, y + from, to - from, D, lr);
    average(r, w, D);
    // END SOLUTION
}

// Task 4, local_sgd (20 points). Every rank takes `steps` steps of one sample each, and goes
// through its own part, `count` > 0 samples in x and y, again and again. After every H steps all
// average their w; and once more at the end, if steps have been taken since the last average.
// Returns how often was averaged.
int local_sgd(const ranks *r, float *w, const float *x, const float *y, size_t count, size_t D,
              int steps, int H, float lr) {
    int averages = 0;
    // BEGIN SOLUTION
    for (int s = 0; s < steps; ++s) {
        const size_t i = (size_t)s % count;
        sgd_samples(w, x + i * D, y + i, 1, D, lr);
        if ((s + 1) % H != 0 && s + 1 < steps) continue;
        average(r, w, D);
        ++averages;
    }
    // END SOLUTION
    return averages;
}

// Questions, to be answered in a sentence or two:
//
// 1. With H = 1, what is local SGD on P ranks with one sample each the same as?
// 2. Every rank of PSGD sees only 1/P of the data. Why is the average of its nets better than any
//    one of them? Of which nets would the average be worse?
