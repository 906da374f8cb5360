// Lab 2. Dealing images out                                         chapter 2
//
// P ranks train on one set of n images. Who takes which? Three functions below say so. A rank is a
// process with a number, 0 to P-1; each of them calls these functions by itself, and nobody talks.
//
// Fill in what is missing, then run `make grade-lab02`. It draws new numbers each time and prints
// the seed; `make grade-lab02 ARGS="--seed 5 sampler"` repeats one run, and grades one task alone.
//
// Before you write, predict: 10 images, 4 ranks. Who gets how many by 1, by 2?

#include <stdbool.h>
#include <stdint.h>

// Task 1, partition (30 points). Cuts n images into P consecutive shares: share r is start[r] up
// to, but without, start[r+1]. start has P+1 places. The cut before share r lies at r*n/P, rounded
// down. All images belong to somebody, and no two shares differ by more than one. r*n may need 64
// bits.
void partition(uint32_t *start, uint32_t n, uint32_t P) {
    // BEGIN SOLUTION
    for (uint32_t r = 0; r <= P; ++r) start[r] = (uint32_t)((uint64_t)r * n / P);
    // END SOLUTION
}

// Task 2, sampler (40 points). Deals the epoch's order out like cards: rank r takes order[r],
// order[r+P], order[r+2P], ... All ranks take equally many: where P does not divide n, the order
// begins again from its head until the last round is full; with drop_last the last round is left
// out instead. Returns how many this rank takes; they go to out.
uint32_t sampler(uint32_t *out, const uint32_t *order, uint32_t n, uint32_t rank, uint32_t P,
                 bool drop_last) {
    uint32_t each = 0;
    // BEGIN SOLUTION
    each = drop_last ? n / P : (n + P - 1) / P;
    for (uint32_t i = 0; i < each; ++i) out[i] = order[(i * P + rank) % n];
    // END SOLUTION
    return each;
}

// Task 3, part (30 points). A global batch of so many images consists of groups of 16, the last one
// perhaps shorter. Of G groups, rank r takes groups r*G/P up to, but without, (r+1)*G/P, rounded
// down. Sets *first to its first image's place in the batch, and returns how many images it has.
uint32_t part(uint32_t *first, uint32_t batch, uint32_t rank, uint32_t P) {
    uint32_t count = 0;
    // BEGIN SOLUTION
    const uint32_t groups = (batch + 15) / 16;
    const uint32_t from = rank * groups / P * 16, to = (rank + 1) * groups / P * 16;
    *first = from;
    count = (to < batch ? to : batch) - from;
    // END SOLUTION
    return count;
}

// Questions, to be answered in a sentence or two:
//
// 1. With the sampler of task 2, 60 000 images and 7 ranks: how many images are seen twice in an
//    epoch? What does that do to an accuracy that is computed over such shares?
// 2. A batch of 128 on 3 ranks, by task 3: who has how many images? How much faster than one rank
//    can three be at best?
