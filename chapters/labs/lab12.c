// Lab 12. The whole sheet                                           chapters 9, 10 and 12
//
// A lab sheet asks: train a net for handwritten digits by PSGD on P = 1 to 5 workers, and by
// Hogwild on as many; for both, time and accuracy for every P, a graph of the speedup, and a
// comment. Here you write all that is not the net, in five functions. Then
//
//     make grade-lab12     grades them, with a small net that knows what it was asked
//     make run-lab12       runs them, with the real one: prints the table, draws both graphs
//
// and you write the report: lab12_report.md is its frame, and says what is expected of it.
// `make grade-lab12 ARGS="--seed 5 psgd"` repeats one grading, and shows only the tasks whose name
// has that word.
//
// Before you write, predict: how many times as fast is PSGD on two workers of your machine? On as
// many as it has cores? On one more?

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// A net, as you see it: n parameters in one vector w, which is yours; what it does to images.
// Images are numbers: 0 to images-1 for training, 0 to tests-1 for testing. Each worker has a model
// of its own, and hands it to the functions it calls.
typedef struct model model;
struct model {
    size_t n;
    uint32_t images, tests;
    // g becomes the mean gradient over `count` > 0 images, with dropout
    void (*gradient)(const model *m, float *g, const float *w, const uint32_t *image,
                     uint32_t count);
    // how many of test images from, from+1, ..., to-1 it recognises; with dropout if training is
    // not 0
    uint32_t (*correct)(const model *m, const float *w, uint32_t from, uint32_t to, int training);
    double (*seconds)(const model *m); // a clock
};

typedef struct ranks ranks;
struct ranks {
    int rank, size; // this rank's number, 0 to size-1; how many there are, P
    // x becomes the sum over all ranks of their x
    void (*allreduce)(const ranks *r, float *x, size_t n);
};

// Task 1, share (5 points). A worker's part of n images: P consecutive parts, the cut before part r
// at r*n/P, rounded down. Sets *first, and returns how many. r*n may need 64 bits.
uint32_t share(uint32_t *first, uint32_t n, uint32_t rank, uint32_t P) {
    uint32_t count = 0;
    // BEGIN SOLUTION
    *first = (uint32_t)((uint64_t)rank * n / P);
    count = (uint32_t)((uint64_t)(rank + 1) * n / P) - *first;
    // END SOLUTION
    return count;
}

// Task 2, train_alone (25 points). SGD with momentum on the images mine[0] to mine[count-1], in
// this order, `epochs` times: batch by batch, the last one of an epoch perhaps shorter. v is room
// for the momentum's memory, to be zero before the first step; g room for a gradient; both n
// floats.
//
//     v = mu * v + gradient of the batch        w -= lr * v
void train_alone(const model *m, float *w, float *v, float *g, const uint32_t *mine,
                 uint32_t count, uint32_t batch, int epochs, float lr, float mu) {
    // BEGIN SOLUTION
    for (size_t i = 0; i < m->n; ++i) v[i] = 0.0f;
    for (int e = 0; e < epochs; ++e)
        for (uint32_t at = 0; at < count; at += batch) {
            m->gradient(m, g, w, mine + at, count - at < batch ? count - at : batch);
            for (size_t i = 0; i < m->n; ++i) {
                v[i] = mu * v[i] + g[i];
                w[i] -= lr * v[i];
            }
        }
    // END SOLUTION
}

// Task 3, psgd (35 points). One worker of PSGD; w is the same on all at first. Its images are its
// share (task 1) of `shuffled`, which has the numbers of all training images, the same on all
// workers. It trains alone (task 2), with batches of batch/P images, rounded down, but at least 1;
// then, once, all average their w. Then the net that came out is tested, without dropout, every
// worker on its share of the test images, and what they recognise is added up.
//
// seconds: by the model's clock, this worker's training and the averaging. Testing does not count.
// percent: of all test images, those recognised; not rounded.
typedef struct outcome { double seconds, percent; } outcome;

void psgd(const ranks *r, const model *m, float *w, float *v, float *g, const uint32_t *shuffled,
          uint32_t batch, int epochs, float lr, float mu, outcome *out) {
    // BEGIN SOLUTION
    const uint32_t rank = (uint32_t)r->rank, P = (uint32_t)r->size;
    const uint32_t each = batch / P > 0 ? batch / P : 1;
    uint32_t first, count = share(&first, m->images, rank, P);
    const double start = m->seconds(m);
    train_alone(m, w, v, g, shuffled + first, count, each, epochs, lr, mu);
    r->allreduce(r, w, m->n);
    for (size_t i = 0; i < m->n; ++i) w[i] /= (float)P;
    out->seconds = m->seconds(m) - start;
    count = share(&first, m->tests, rank, P);
    float right = (float)m->correct(m, w, first, first + count, 0);
    r->allreduce(r, &right, 1);
    out->percent = 100.0 * (double)right / m->tests;
    // END SOLUTION
}

// Task 4, hogwild (20 points). One worker of Hogwild, by plain SGD. `shared` is the parameter
// vector of all workers, each float kept as its bits; they all work on it at the same time (lab 10
// has the addition). For each batch: copy the vector to w, take the gradient there, and add
// -lr * gradient to the shared one, number by number, so that nothing is lost.
void hogwild(const model *m, _Atomic uint32_t *shared, float *w, float *g, const uint32_t *mine,
             uint32_t count, uint32_t batch, int epochs, float lr) {
    // BEGIN SOLUTION
    for (int e = 0; e < epochs; ++e)
        for (uint32_t at = 0; at < count; at += batch) {
            for (size_t i = 0; i < m->n; ++i) {
                const uint32_t raw = atomic_load_explicit(&shared[i], memory_order_relaxed);
                memcpy(&w[i], &raw, sizeof raw);
            }
            m->gradient(m, g, w, mine + at, count - at < batch ? count - at : batch);
            for (size_t i = 0; i < m->n; ++i) {
                uint32_t old = atomic_load_explicit(&shared[i], memory_order_relaxed), wanted;
                do {
                    float value;
                    memcpy(&value, &old, sizeof value);
                    value -= lr * g[i];
                    memcpy(&wanted, &value, sizeof wanted);
                } while (!atomic_compare_exchange_weak_explicit(
                    &shared[i], &old, wanted, memory_order_relaxed, memory_order_relaxed));
            }
        }
    // END SOLUTION
}

// Task 5, speedup (15 points). seconds has `runs` measurements, an odd number of at most 9, for
// each of 1 to `most` workers: seconds[(P - 1) * runs + k]. Sets median[P-1], s[P-1], how many
// times as fast as one worker P are, by the medians, and efficiency[P-1], the speedup of each of
// the P workers, 1 at best as a rule. seconds stays as it is.
void speedup(double *median, double *s, double *efficiency, const double *seconds, int most,
             int runs) {
    // BEGIN SOLUTION
    for (int P = 1; P <= most; ++P) {
        double sorted[9];
        for (int k = 0; k < runs; ++k) {
            int at = k;
            for (; at > 0 && sorted[at - 1] > seconds[(P - 1) * runs + k]; --at)
                sorted[at] = sorted[at - 1];
            sorted[at] = seconds[(P - 1) * runs + k];
        }
        median[P - 1] = sorted[runs / 2];
        s[P - 1] = median[0] / median[P - 1];
        efficiency[P - 1] = s[P - 1] / P;
    }
    // END SOLUTION
}
