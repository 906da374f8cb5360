// Lab 10. Hogwild, with atomics                                     chapter 10
//
// In Hogwild (Recht, Re, Wright and Niu 2011) the threads of one process train one parameter vector
// at the same time, and nobody waits for anybody: no lock, no order. C calls it a data race, and
// allows a compiler to do what it likes, if two threads use the same float at once and one of them
// writes. So the parameters are atomic here: reading one, or exchanging it, happens as a whole. C
// has no atomic addition of floats; the bits of a float are kept in an _Atomic uint32_t, and an
// addition is a loop:
//
//     read the old bits; compute the new ones; exchange old for new, *if* the old ones are still
//     there; if they are not, somebody else was faster: do it again with what is there now
//
// atomic_compare_exchange_weak_explicit does the line with the *if*; memory_order_relaxed will do
// everywhere, as no order among different parameters is promised.
//
// Fill in what is missing, then run `make grade-lab10`. It draws new numbers each time and prints
// the seed; `make grade-lab10 ARGS="--seed 5 add"` repeats one run, and grades only the tasks whose
// name has that word. Four threads try your functions, and one that is interrupted again and again,
// at any instruction, by another worker.
//
// Before you write, predict: two threads add 1 to the same float a million times each, by a load,
// an addition and a store. Between which two numbers may the result lie?

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Task 1, get and put (10 points). The float whose bits these are, and the other way round. memcpy
// between a float and a uint32_t is how C sees the bits of the one as the other.
float get(_Atomic uint32_t *bits) {
    float value = 0.0f;
    // BEGIN SOLUTION
    const uint32_t raw = atomic_load_explicit(bits, memory_order_relaxed);
    memcpy(&value, &raw, sizeof value);
    // END SOLUTION
    return value;
}

void put(_Atomic uint32_t *bits, float value) {
    // BEGIN SOLUTION
    uint32_t raw;
    memcpy(&raw, &value, sizeof raw);
    atomic_store_explicit(bits, raw, memory_order_relaxed);
    // END SOLUTION
}

// Task 2, add (40 points). Adds to the float whose bits these are. No addition may be lost, however
// many threads add at once.
void add(_Atomic uint32_t *bits, float by) {
    // BEGIN SOLUTION
    uint32_t old = atomic_load_explicit(bits, memory_order_relaxed), wanted;
    do {
        float value;
        memcpy(&value, &old, sizeof value);
        value += by;
        memcpy(&wanted, &value, sizeof wanted);
    } while (!atomic_compare_exchange_weak_explicit(bits, &old, wanted, memory_order_relaxed,
                                                    memory_order_relaxed));
    // END SOLUTION
}

// Task 3, next (20 points). Threads take samples 0 to n-1 from one counter, 0 at first, that all
// share: every call returns another sample, until none is left; from then on n. The counter must
// not go on growing, as it would begin again from 0 one day: it never stands above n.
uint32_t next(_Atomic uint32_t *counter, uint32_t n) {
    uint32_t mine = n;
    // BEGIN SOLUTION
    mine = atomic_load_explicit(counter, memory_order_relaxed);
    while (mine < n && !atomic_compare_exchange_weak_explicit(
                           counter, &mine, mine + 1, memory_order_relaxed, memory_order_relaxed)) {
    }
    if (mine > n) mine = n;
    // END SOLUTION
    return mine;
}

// Task 4, hogwild_step (30 points). One step with one sparse sample: of all inputs only `count` are
// not zero, those with numbers index[0] to index[count-1], all different, and they are x[0] to
// x[count-1]. The prediction is the sum of w[index[k]] * x[k], the slope by w[index[k]] is
// (prediction - y) * x[k], and w -= lr * slope. Adds to these w alone, atomically, and leaves all
// others alone: sparse samples rarely meet, and that is why Hogwild works.
void hogwild_step(_Atomic uint32_t *w, const uint32_t *index, const float *x, size_t count, float y,
                  float lr) {
    // BEGIN SOLUTION
    float off = -y;
    for (size_t k = 0; k < count; ++k) off += get(&w[index[k]]) * x[k];
    for (size_t k = 0; k < count; ++k) add(&w[index[k]], -lr * off * x[k]);
    // END SOLUTION
}

// Questions, to be answered in a sentence or two:
//
// 1. What may have happened to w[index[0]] between the two loops of a hogwild_step? Why is it no
//    mistake, and when would it become one?
// 2. Run two threads' worth of `add` on one float, and on two floats that are neighbours, and time
//    both. Why is the second as slow?
