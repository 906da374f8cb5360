// Lab 6. Optimizers                                                 chapter 6
//
// The gradient says which way the loss grows. A step goes the other way, and how far is the
// optimizer's business. All of them work number by number on flat vectors of n floats: w, the
// parameters, is changed in place; g is the gradient; m and v are the optimizer's memory, zero at
// first.
//
// Fill in what is missing, then run `make grade-lab06`. It draws new numbers each time and prints
// the seed; `make grade-lab06 ARGS="--seed 5 adam"` repeats one run, and grades one task alone.
//
// Before you write, predict: with mu = 0.9 and always the same g, how much longer than the first is
// the hundredth step?

#include <math.h>
#include <stddef.h>

// Task 1, sgd_step (20 points).      w -= lr * g
void sgd_step(float *w, const float *g, size_t n, float lr) {
    // BEGIN SOLUTION
    for (size_t i = 0; i < n; ++i) w[i] -= lr * g[i];
    // END SOLUTION
}

// Task 2, momentum_step (30 points). With weight decay wd, which pulls every parameter to zero:
//
//     g' = g + wd * w        m = mu * m + g'        w -= lr * m
//
// or, if nesterov is not 0, w -= lr * (g' + mu * m) with the new m. g itself stays as it is.
void momentum_step(float *w, const float *g, float *m, size_t n, float lr, float mu, float wd,
                   int nesterov) {
    // BEGIN SOLUTION
    for (size_t i = 0; i < n; ++i) {
        const float slope = g[i] + wd * w[i];
        m[i] = mu * m[i] + slope;
        w[i] -= lr * (nesterov ? slope + mu * m[i] : m[i]);
    }
    // END SOLUTION
}

// Task 3, adam_step (50 points). t counts steps: 1 in the first one. beta1 0.9, beta2 0.999, eps
// 1e-8:
//
//     m = beta1 * m + (1 - beta1) * g          v = beta2 * v + (1 - beta2) * g * g
//     w -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
void adam_step(float *w, const float *g, float *m, float *v, size_t n, float lr, int t) {
    // BEGIN SOLUTION
    const float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
    const float early1 = (float)(1.0 - pow(0.9, t)), early2 = (float)(1.0 - pow(0.999, t));
    for (size_t i = 0; i < n; ++i) {
        m[i] = beta1 * m[i] + (1.0f - beta1) * g[i];
        v[i] = beta2 * v[i] + (1.0f - beta2) * g[i] * g[i];
        w[i] -= lr * (m[i] / early1) / (sqrtf(v[i] / early2) + eps);
    }
    // END SOLUTION
}

// Questions, to be answered in a sentence or two:
//
// 1. A gradient is a million times smaller than another. What does that do to the steps of SGD, and
//    what to those of Adam?
// 2. How many floats does each optimizer keep for a net of n parameters?
