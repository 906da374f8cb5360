// The least-squares fit of alpha, beta and gamma (7.5), for chapters 7 and 12.
#ifndef CH07_FIT_H
#define CH07_FIT_H

#include "chapter.h"

// one measurement: c[0] alpha + c[1] beta + c[2] gamma = t
typedef struct fit_row { double c[3], t; } fit_row;

// Solves the normal equations over the chosen unknowns (bits of mask); the others are 0. Returns
// the squared error.
CHAPTER_FN double solve(const fit_row *rows, int count, int mask, double u[3]) {
    double m[3][4] = { { 0 } }, error = 0.0;
    for (int k = 0; k < count; ++k)
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 4; ++j)
                m[i][j] += rows[k].c[i] / rows[k].t * (j < 3 ? rows[k].c[j] / rows[k].t : 1.0);
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 4; ++j)
            if (!(mask >> i & 1) || (j < 3 && !(mask >> j & 1))) m[i][j] = i == j;
    for (int i = 0; i < 3; ++i) // Gauss and Jordan; the matrix is positive definite
        for (int k = 0; k < 3; ++k) {
            const double f = k == i ? 0.0 : m[k][i] / m[i][i];
            for (int j = i; j < 4; ++j) m[k][j] -= f * m[i][j];
        }
    for (int i = 0; i < 3; ++i) u[i] = mask >> i & 1 ? m[i][3] / m[i][i] : 0.0;
    for (int k = 0; k < count; ++k) {
        const double e =
            (rows[k].c[0] * u[0] + rows[k].c[1] * u[1] + rows[k].c[2] * u[2]) / rows[k].t - 1.0;
        error += e * e;
    }
    return error;
}

// No cost is negative: of the solutions over every choice of unknowns, the best without a negative
// number.
CHAPTER_FN void fit(const fit_row *rows, int count, double u[3]) {
    double best = INFINITY, v[3];
    for (int mask = 1; mask < 8; ++mask) {
        const double error = solve(rows, count, mask, v);
        if (error < best && v[0] >= 0.0 && v[1] >= 0.0 && v[2] >= 0.0)
            best = error, memcpy(u, v, sizeof v);
    }
}

#endif
