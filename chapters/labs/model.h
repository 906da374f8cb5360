// What lab12.c is handed, as it stands there: for the grader and for the measurements. A submission
// includes nothing of ours, so the lab says it again.
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct model model;
struct model {
    size_t n;
    uint32_t images, tests;
    void (*gradient)(const model *m, float *g, const float *w, const uint32_t *image,
                     uint32_t count);
    uint32_t (*correct)(const model *m, const float *w, uint32_t from, uint32_t to, int training);
    double (*seconds)(const model *m);
};

typedef struct ranks ranks;
struct ranks {
    int rank, size;
    void (*allreduce)(const ranks *r, float *x, size_t n);
};

typedef struct outcome { double seconds, percent; } outcome;

#endif
