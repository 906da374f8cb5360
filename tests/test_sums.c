/* Exact sums [S3]: the same bits in every order and for every division over ranks, held against sums that another
   method makes exactly. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

static uint64_t state;
static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static double uniform(void) { return (double)(draw() >> 11) * 0x1p-53; }
static double normal(void) { return sqrt(-2.0 * log(1.0 - uniform())) * cos(6.283185307179586 * uniform()); }
static void shuffle(double *x, int n) {
    for (int i = n - 1; i > 0; --i) {
        const int k = (int)(draw() % (uint64_t)(i + 1));
        const double t = x[i];
        x[i] = x[k];
        x[k] = t;
    }
}

/* ---- The reference: Shewchuk 1997, as Python's math.fsum has it. The sum is kept as doubles whose digits do not
   overlap, so nothing is ever rounded until the end; exact whatever the terms, as long as nothing underflows. */
static double exact_sum(const double *x, int n) {
    static double part[1200];
    int parts = 0;
    for (int i = 0; i < n; ++i) {
        double v = x[i];
        int kept = 0;
        for (int k = 0; k < parts; ++k) {
            double y = part[k];
            if (fabs(v) < fabs(y)) { const double t = v; v = y; y = t; }
            const double hi = v + y, lo = y - (hi - v);
            if (lo != 0.0) part[kept++] = lo;
            v = hi;
        }
        part[kept++] = v;
        parts = kept;
    }
    double hi = 0.0, lo = 0.0;
    while (parts > 0) {
        const double v = hi, y = part[--parts];
        hi = v + y;
        lo = y - (hi - v);
        if (lo != 0.0) break;
    }
    /* hi is halfway between two doubles, and what remains says which one is nearer */
    if (parts > 0 && ((lo < 0.0 && part[parts - 1] < 0.0) || (lo > 0.0 && part[parts - 1] > 0.0))) {
        const double y = lo * 2.0, v = hi + y;
        if (y == v - hi) hi = v;
    }
    return hi;
}

static uint64_t bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

enum { MOST = 4096 };
static double term[MOST], turned[MOST];

static void wide_add_all(int64_t *limb, const double *x, int n) {
    for (int i = 0; i < n; ++i) assert_true(dti_wide_add(limb, x[i]));
}

/* All terms on one rank, in turned orders, and divided over ranks whose limbs are added as an all-reduce does. */
static void check_wide(const char *what, int n, double wanted) {
    int64_t limb[DTI_WIDE] = { 0 };
    wide_add_all(limb, term, n);
    const double sum = dti_wide_value(limb);
    if (bits(sum) != bits(wanted)) fail_msg("%s, %d terms: %a, wanted %a", what, n, sum, wanted);
    memcpy(turned, term, sizeof turned);
    for (int ranks = 1; ranks <= 7; ++ranks) {
        int64_t all[DTI_WIDE] = { 0 };
        shuffle(turned, n);
        for (int r = 0; r < ranks; ++r) {
            int64_t one[DTI_WIDE] = { 0 };
            const int from = (int)((int64_t)n * r / ranks), to = (int)((int64_t)n * (r + 1) / ranks);
            wide_add_all(one, turned + from, to - from);
            for (int i = 0; i < DTI_WIDE; ++i) all[i] += one[i];
        }
        if (bits(dti_wide_value(all)) != bits(wanted))
            fail_msg("%s, %d terms on %d ranks: %a, wanted %a", what, n, ranks, dti_wide_value(all), wanted);
    }
}

static void wide_sums_are_exact(void **unused) {
    (void)unused;
    state = 1;
    for (int round = 0; round < 40; ++round) {
        const int n = round % 2 ? MOST : 1 + (int)(draw() % 200);
        for (int i = 0; i < n; ++i) term[i] = normal();
        check_wide("N(0,1)", n, exact_sum(term, n));
        for (int i = 0; i < n; ++i) term[i] = 1e6 + 1e-3 * normal();
        check_wide("a mean large against its spread", n, exact_sum(term, n));
        for (int i = 0; i < n; ++i) term[i] = (double)(float)(normal() * (i % 3 == 0 ? 1e30 : i % 3 == 1 ? 1e-20 : 1.0));
        check_wide("1e30, 1 and 1e-20", n, exact_sum(term, n));
        for (int i = 0; i < n; ++i) { /* any finite float */
            const uint32_t u = (uint32_t)(draw() >> 32);
            float f;
            memcpy(&f, &u, sizeof f);
            term[i] = fabsf(f) <= FLT_MAX ? (double)f : 0.0;
        }
        check_wide("any float", n, exact_sum(term, n));
        for (int i = 0; i < n; ++i) { /* and its square, as long as none of its 48 bits lies below the unit */
            const double x = (double)(float)ldexp(normal(), (int)(draw() % 174) - 50);
            term[i] = i % 2 ? x * x : -x * x;
        }
        check_wide("squares", n, exact_sum(term, n));
        for (int i = 0; i < n; ++i) term[i] = i < n / 2 * 2 ? (i % 2 ? -term[i - 1] : 1e30 * normal()) : 1e-20;
        check_wide("all but the last cancel", n, n % 2 ? 1e-20 : 0.0);
    }
}

/* Sums in the middle between two doubles, and a trace beside it, which decides. */
static void wide_values_are_rounded_once(void **unused) {
    (void)unused;
    for (int e = -90; e < 250; ++e)
        for (int odd = 0; odd < 2; ++odd)
            for (int trace = -1; trace <= 1; ++trace) {
                term[0] = ldexp(0x1p52 + odd, e - 52);
                term[1] = ldexp(0.5, e - 52);
                term[2] = trace * 0x1p-149;
                for (int sign = 0; sign < 2; ++sign) {
                    const bool up = trace > 0 || (trace == 0 && odd); /* to even in the middle */
                    const double wanted = ldexp(0x1p52 + odd + up, e - 52);
                    check_wide("a middle", 3, sign ? -wanted : wanted);
                    for (int i = 0; i < 3; ++i) term[i] = -term[i];
                }
            }
}

/* The bounds that the comment states. */
static void wide_sums_have_room(void **unused) {
    (void)unused;
    int64_t limb[DTI_WIDE] = { 0 }, many[DTI_WIDE] = { 0 };
    const double largest = nextafter(0x1p260, 0.0);
    const double refused[] = { 0x1p260, -0x1p260, HUGE_VAL, -HUGE_VAL, nan("") };
    for (int i = 0; i < 5; ++i) assert_false(dti_wide_add(limb, refused[i]));
    assert_true(dti_wide_value(limb) == 0.0);
    /* 2^40 terms: 2^20 of them here, doubled twenty times, which adds what an all-reduce would */
    for (int sign = 0; sign < 2; ++sign) {
        memset(limb, 0, sizeof limb);
        for (int i = 0; i < 1 << 20; ++i) assert_true(dti_wide_add(limb, sign ? -largest : largest));
        for (int k = 0; k < 20; ++k) {
            for (int i = 0; i < DTI_WIDE; ++i) limb[i] *= 2;
            dti_wide_carry(limb, 0, DTI_WIDE, -((int64_t)1 << (DTI_WIDE_BITS - 1)));
        }
        assert_true(dti_wide_value(limb) == ldexp(sign ? -largest : largest, 40));
    }
    /* 2^17 ranks whose limbs are as full as they can be */
    for (int i = 0; i < DTI_WIDE - 1; ++i) limb[i] = (int64_t)1 << (DTI_WIDE_BITS - 1);
    limb[DTI_WIDE - 1] = 0;
    const double one = dti_wide_value(limb);
    for (int i = 0; i < DTI_WIDE; ++i) many[i] = limb[i] * ((int64_t)1 << 17);
    assert_true(dti_wide_value(many) == ldexp(one, 17));
    /* the smallest float is a unit; half of it goes to even, each term alone */
    memset(limb, 0, sizeof limb);
    for (int i = 0; i < 1000; ++i) assert_true(dti_wide_add(limb, 0x1p-149));
    for (int i = 0; i < 1000; ++i) assert_true(dti_wide_add(limb, 0x1p-150));
    assert_true(dti_wide_value(limb) == 1000 * 0x1p-149);
    for (int i = 0; i < 1000; ++i) assert_true(dti_wide_add(limb, -0x1.8p-149));
    assert_true(dti_wide_value(limb) == -1000 * 0x1p-149);
}

/* ---- Sums with a unit of their own size. */

/* ||error|| / ||sum|| of eight terms N(0,1) * scale, 4096 of each, against sums in doubles; below 0: refused. */
static double relative_error(double scale, bool chosen) {
    enum { TERMS = 8 };
    static float x[TERMS][MOST], sum[MOST];
    static int64_t fixed[MOST];
    double size = 0.0, error = 0.0, norm = 0.0;
    for (int t = 0; t < TERMS; ++t) {
        float largest = 0.0f;
        for (int i = 0; i < MOST; ++i) x[t][i] = (float)(normal() * scale);
        for (int i = 0; i < MOST; ++i) largest = fmaxf(largest, fabsf(x[t][i]));
        size += (double)largest;
    }
    const float unit = chosen ? dti_unit_for(size, dti_log2_terms(TERMS)) : DT_FIXED_UNIT;
    memset(fixed, 0, sizeof fixed);
    for (int t = 0; t < TERMS; ++t)
        if (dt_fixed_add(fixed, x[t], MOST, unit, dt_fixed_limit(TERMS, unit)) < MOST) return -1.0;
    dt_fixed_to_float(sum, fixed, MOST, unit);
    for (int i = 0; i < MOST; ++i) {
        double wanted = 0.0;
        for (int t = 0; t < TERMS; ++t) wanted += (double)x[t][i];
        error += ((double)sum[i] - wanted) / scale * (((double)sum[i] - wanted) / scale);
        norm += wanted / scale * (wanted / scale);
    }
    return sqrt(error / norm);
}

static void a_sum_keeps_its_digits(void **unused) {
    (void)unused;
    state = 2;
    printf("scale     2^-40      chosen\n");
    for (int e = -20; e <= 8; ++e) {
        const double scale = pow(10.0, e), fixed = relative_error(scale, false), chosen = relative_error(scale, true);
        printf("1e%-+4d     %-10.2g %.2g\n", e, fixed, chosen);
        assert_true(chosen >= 0.0 && chosen <= 6e-8);
        if (e <= -7) assert_true(fixed > 1e-6);
        if (e >= 6) assert_true(fixed < 0.0);
    }
    for (int e = -30; e <= 36; ++e) assert_true(relative_error(pow(10.0, e), true) <= 6e-8);
}

/* The bounds of a unit: terms of up to 2^15 times the size it was chosen for fit, and of 2^-15 keep their digits. */
static void a_unit_has_room(void **unused) {
    (void)unused;
    for (int k = 0; k <= 12; k += 3)
        for (int e = -70; e <= 60; e += 20) {
            const double size = ldexp(1.9, e);
            const float unit = dti_unit_for(size, k);
            const float limit = dt_fixed_limit((size_t)1 << k, unit);
            assert_true((double)limit >= ldexp(size, 15 - k / 2));
            assert_true(dti_unit_suits(unit, (int64_t)(ldexp(size, -14 + k / 2) / (double)unit)));
            assert_false(dti_unit_suits(unit, (int64_t)(ldexp(size, -18 + k / 2) / (double)unit)));
        }
    assert_true(dti_unit_suits(1.0f, 0)); /* zeros */
    assert_true(dti_unit_suits(DTI_UNIT_LEAST, 1));
    assert_true(dti_unit_for(1e-300, 3) >= DTI_UNIT_LEAST && dti_unit_for(1e300, 3) <= DTI_UNIT_MOST);
}

/* AVX-512's conversion, and the one for all machines: the last few of an odd number of values go the second way. */
static void units_round_alike(void **unused) {
    (void)unused;
    state = 3;
    for (int e = -126; e <= 65; ++e) {
        const float unit = ldexpf(1.0f, e);
        float x[15];
        int64_t sum[15] = { 0 }, one;
        for (int round = 0; round < 20; ++round) {
            for (int i = 0; i < 15; ++i) x[i] = (float)ldexp(normal(), e + (int)(draw() % 56));
            memset(sum, 0, sizeof sum);
            float largest = 0.0f;
            for (int i = 0; i < 15; ++i) largest = fmaxf(largest, fabsf(x[i]));
            assert_true(dti_fixed_add(sum, x, 15, unit) == largest);
            for (int i = 0; i < 15; ++i) {
                one = 0;
                (void)dti_fixed_add(&one, x + i, 1, unit);
                assert_true(sum[i] == one);
                if (fabsf(x[i]) < ldexpf(1.0f, 53 + e > 127 ? 127 : 53 + e))
                    assert_true(one == llrint(ldexp((double)x[i], -e)));
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_sums_are_exact),
        cmocka_unit_test(wide_values_are_rounded_once),
        cmocka_unit_test(wide_sums_have_room),
        cmocka_unit_test(a_sum_keeps_its_digits),
        cmocka_unit_test(a_unit_has_room),
        cmocka_unit_test(units_round_alike),
    };
    return cmocka_run_group_tests_name("sums [S3]", tests, NULL, NULL);
}
