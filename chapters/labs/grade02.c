// Grader of lab 2: three ways to deal images out, each against its definition.
#include "sandbox.h"

typedef void partition_fn(uint32_t *start, uint32_t n, uint32_t P);
typedef uint32_t sampler_fn(uint32_t *out, const uint32_t *order, uint32_t n, uint32_t rank,
                            uint32_t P, bool drop_last);
typedef uint32_t part_fn(uint32_t *first, uint32_t batch, uint32_t rank, uint32_t P);

enum { ROOM = 4096 };
typedef struct deal {
    uint32_t n, rank, P;
    bool drop_last;
    uint32_t order[ROOM];
    struct dealt { uint32_t count, first, out[ROOM]; } *back;
} deal;

#ifdef RUNNER
static void call_partition(void *function, void *arg) {
    const deal *d = arg;
    FUNCTION(partition_fn, f, function);
    f(d->back->out, d->n, d->P);
}

static void call_sampler(void *function, void *arg) {
    const deal *d = arg;
    FUNCTION(sampler_fn, f, function);
    d->back->count = f(d->back->out, d->order, d->n, d->rank, d->P, d->drop_last);
}

static void call_part(void *function, void *arg) {
    const deal *d = arg;
    FUNCTION(part_fn, f, function);
    d->back->count = f(&d->back->first, d->n, d->rank, d->P);
}

static const named_call calls[] = { { "partition", call_partition },
                                    { "sampler", call_sampler },
                                    { "part", call_part },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static const char *compare(const char *what, uint32_t at, uint32_t got, uint32_t wanted,
                           const deal *d) {
    static char text[200];
    hash_bytes(&hash, &got, sizeof got);
    if (got == wanted) return NULL;
    snprintf(text, sizeof text, "%u images, rank %u of %u: %s %u: wanted %u, got %u", d->n, d->rank,
             d->P, what, at, wanted, got);
    return text;
}

static const char *try_partition(deal *d) {
    const char *wrong = run("partition", "partition", d, 2);
    for (uint32_t r = 0; r <= d->P && !wrong; ++r)
        wrong = compare("start of share", r, d->back->out[r],
                        (uint32_t)((uint64_t)r * d->n / d->P), d);
    return wrong ? wrong
                 : compare("the place behind the last share, number", d->P + 1,
                           d->back->out[d->P + 1], 77, d);
}

static const char *try_sampler(deal *d) {
    const uint32_t each = d->drop_last ? d->n / d->P : (d->n + d->P - 1) / d->P;
    uint32_t wanted[ROOM];
    for (uint32_t i = 0; i < each; ++i) wanted[i] = d->order[(i * d->P + d->rank) % d->n];
    const char *wrong = run("sampler", "sampler", d, 2);
    if (!wrong) wrong = compare("how many,", each, d->back->count, each, d);
    for (uint32_t i = 0; i < each && !wrong; ++i)
        wrong = compare("image", i, d->back->out[i], wanted[i], d);
    return wrong ? wrong
                 : compare("the place behind the last image, number", each, d->back->out[each],
                           77, d);
}

static const char *try_part(deal *d) {
    const uint32_t groups = (d->n + 15) / 16, from = d->rank * groups / d->P * 16;
    uint32_t to = (d->rank + 1) * groups / d->P * 16;
    if (to > d->n) to = d->n;
    const char *wrong = run("part", "part", d, 2);
    if (!wrong) wrong = compare("how many,", to - from, d->back->count, to - from, d);
    if (!wrong && to > from) wrong = compare("first,", from, d->back->first, from, d);
    return wrong;
}

static deal *new_deal(uint32_t n, uint32_t P) {
    deal *d = shown(sizeof *d);
    d->back = returned(sizeof *d->back);
    d->n = n, d->P = P, d->rank = draw(P);
    for (uint32_t i = 0; i < ROOM; ++i) d->back->out[i] = 77, d->order[i] = i;
    for (uint32_t i = n < ROOM ? n : 0; i > 1; --i) {
        const uint32_t j = draw(i), swap = d->order[i - 1];
        d->order[i - 1] = d->order[j], d->order[j] = swap;
    }
    d->back->first = 99999;
    return d;
}

static void grade(void) {
    const char *wrong = try_partition(new_deal(5 * (1 + draw(200)), 5));
    give("partition, P divides n", 10, wrong);
    wrong = NULL;
    for (int i = 0; i < 4 && !wrong; ++i)
        wrong = try_partition(new_deal(1 + draw(1000), 2 + draw(9)));
    give("partition, any n and P", 10, wrong);
    give("partition, billions of images", 10,
         try_partition(new_deal(4000000000u + draw(1000000), 3 + draw(5))));

    give("sampler, P divides n", 10, try_sampler(new_deal(4 * (1 + draw(100)), 4)));
    wrong = NULL;
    for (int i = 0; i < 6 && !wrong; ++i) wrong = try_sampler(new_deal(1 + draw(60), 1 + draw(7)));
    if (!wrong) wrong = try_sampler(new_deal(2, 5)); // begins again more than once
    give("sampler, the order begins again", 20, wrong);
    wrong = NULL;
    for (int i = 0; i < 4 && !wrong; ++i) {
        deal *d = new_deal(8 + draw(60), 2 + draw(6));
        d->drop_last = true;
        wrong = try_sampler(d);
    }
    give("sampler, drop_last", 10, wrong);

    wrong = NULL;
    for (uint32_t P = 1; P <= 5 && !wrong; ++P) wrong = try_part(new_deal(128, P));
    give("part, a full batch", 15, wrong);
    wrong = NULL;
    for (uint32_t i = 0; i < 5 && !wrong; ++i) { // the last rank has the shorter group
        deal *d = new_deal(16 * draw(9) + 1 + draw(15), 1 + i);
        d->rank = d->P - 1;
        wrong = try_part(d);
    }
    give("part, a batch that ends early", 15, wrong);
}
#endif
