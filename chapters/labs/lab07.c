// Lab 7. All-reduce by hand                                         chapter 7
//
// p ranks hold a vector of n floats each. Afterwards every rank is to hold the sum of all p
// vectors. Ranks have no memory in common: all they can do is to send and to receive, by the three
// functions below, which `ranks` points at. Bytes are those of memory: 4 for a float.
//
//     send      hands bytes to rank `to`; returns once they are on their way
//     recv      waits for bytes from rank `from`
//     sendrecv  both at once, so that nobody waits for one who waits
//
// Fill in what is missing, then run `make grade-lab07`. It tries 1 to 5 ranks and awkward lengths,
// and counts what you send. `make grade-lab07 ARGS="--seed 5 ring"` repeats one run, and grades one
// task.
//
// Before you write, predict: on 5 ranks, how many floats does rank 0 send by the first way, how
// many by the second?

#include <stddef.h>

typedef struct ranks ranks;
struct ranks {
    int rank, size; // this rank's number, 0 to size-1; how many there are, P
    void (*send)(const ranks *r, const void *data, size_t bytes, int to);
    void (*recv)(const ranks *r, void *data, size_t bytes, int from);
    void (*sendrecv)(const ranks *r, const void *give, size_t give_bytes, int to, void *take,
                     size_t take_bytes, int from);
};

// Task 1, naive_allreduce (30 points). Rank 0 receives everybody's vector, adds it, and sends the
// sum back to everybody. scratch has room for n floats, on every rank.
void naive_allreduce(const ranks *r, float *x, size_t n, float *scratch) {
    // BEGIN SOLUTION
    if (r->rank > 0) {
        r->send(r, x, n * sizeof *x, 0);
        r->recv(r, x, n * sizeof *x, 0);
        return;
    }
    for (int from = 1; from < r->size; ++from) {
        r->recv(r, scratch, n * sizeof *x, from);
        for (size_t i = 0; i < n; ++i) x[i] += scratch[i];
    }
    for (int to = 1; to < r->size; ++to) r->send(r, x, n * sizeof *x, to);
    // END SOLUTION
}

// Task 2, ring_allreduce (70 points). The vector is cut into p blocks; block i is the numbers from
// i*n/p up to, but without, (i+1)*n/p, rounded down. In each step every rank gives a block to its
// right neighbour, rank+1, and takes one from its left. In the first p-1 steps it adds what it
// takes to its own; then each rank has one complete block. In p-1 more steps the complete blocks go
// round.
//
//     step 0    0 -b0-> 1 -b1-> 2 -b2-> 3 -b3-> 0
//     step 1    0 -b3-> 1 -b0-> 2 -b1-> 3 -b2-> 0        and so on
//
// No rank sends more than 2 (p-1) blocks: that is what the ring is for, and 20 of the points.
void ring_allreduce(const ranks *r, float *x, size_t n, float *scratch) {
    // BEGIN SOLUTION
    const int p = r->size, right = (r->rank + 1) % p, left = (r->rank + p - 1) % p;
    for (int step = 0; step < 2 * (p - 1); ++step) {
        const int give = ((r->rank - step) % p + p) % p, take = (give + p - 1) % p;
        const size_t g0 = (size_t)give * n / (size_t)p, g1 = (size_t)(give + 1) * n / (size_t)p;
        const size_t t0 = (size_t)take * n / (size_t)p, t1 = (size_t)(take + 1) * n / (size_t)p;
        float *into = step < p - 1 ? scratch : x + t0;
        r->sendrecv(r, x + g0, (g1 - g0) * sizeof *x, right, into, (t1 - t0) * sizeof *x, left);
        for (size_t i = t0; i < t1 && step < p - 1; ++i) x[i] += scratch[i - t0];
    }
    // END SOLUTION
}

// Questions, to be answered in a sentence or two:
//
// 1. What happens if all ranks first send and then receive? Why may it work for short vectors?
// 2. A message takes 10 us to start and 1 ns a byte. For which lengths is the ring on 5 ranks
//    faster than the naive way?
