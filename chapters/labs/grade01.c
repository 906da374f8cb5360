// Grader of lab 1: tensors of up to five dimensions, entry by entry.
#include "sandbox.h"

enum { DIMS = 5, ROOM = 4096 };
typedef struct tensor {
    int dims, shape[DIMS + 1], order[DIMS + 1], index[DIMS + 1]; // one more than there may be
    ptrdiff_t stride[DIMS + 1];
    float *data, *out; // of the view's first entry
    struct seen { ptrdiff_t at, stride[DIMS + 1]; int shape[DIMS + 1]; } *back;
} tensor;

typedef void strides_fn(ptrdiff_t *stride, const int *shape, int dims);
typedef ptrdiff_t offset_fn(const int *index, const ptrdiff_t *stride, int dims);
typedef void permute_fn(int *new_shape, ptrdiff_t *new_stride, const int *shape,
                        const ptrdiff_t *stride, const int *order, int dims);
typedef size_t copy_fn(float *out, const float *data, const int *shape, const ptrdiff_t *stride,
                       int dims);
typedef bool contiguous_fn(const int *shape, const ptrdiff_t *stride, int dims);

#ifdef RUNNER
static void call_strides(void *function, void *arg) {
    const tensor *t = arg;
    FUNCTION(strides_fn, f, function);
    f(t->back->stride, t->shape, t->dims);
}

static void call_offset(void *function, void *arg) {
    const tensor *t = arg;
    FUNCTION(offset_fn, f, function);
    t->back->at = f(t->index, t->stride, t->dims);
}

static void call_permute(void *function, void *arg) {
    const tensor *t = arg;
    FUNCTION(permute_fn, f, function);
    f(t->back->shape, t->back->stride, t->shape, t->stride, t->order, t->dims);
}

static void call_copy(void *function, void *arg) {
    const tensor *t = arg;
    FUNCTION(copy_fn, f, function);
    t->back->at = (ptrdiff_t)f(t->out, t->data, t->shape, t->stride, t->dims);
}

static void call_contiguous(void *function, void *arg) {
    const tensor *t = arg;
    FUNCTION(contiguous_fn, f, function);
    t->back->at = f(t->shape, t->stride, t->dims);
}

static const named_call calls[] = { { "strides", call_strides },
                                    { "offset", call_offset },
                                    { "permute", call_permute },
                                    { "copy", call_copy },
                                    { "contiguous", call_contiguous },
                                    { NULL, NULL } };
#include "runner.h"
#else
#include "grade.h"

static ptrdiff_t entries_behind(const tensor *t, int d) {
    ptrdiff_t n = 1;
    while (++d < t->dims) n *= t->shape[d];
    return n;
}

// Shape and row-major strides; what comes back is -9 at first.
static tensor *new_tensor(int dims, int least, int most) {
    tensor *t = shown(sizeof *t);
    t->dims = dims, t->back = returned(sizeof *t->back);
    t->back->at = -9;
    for (int d = 0; d <= DIMS; ++d) {
        t->back->stride[d] = t->back->shape[d] = -9;
        t->shape[d] = t->index[d] = 2, t->stride[d] = 1000; // behind the last: somebody else's
    }
    for (int d = 0; d < dims; ++d) t->shape[d] = between(least, most), t->order[d] = d;
    for (int d = 0; d < dims; ++d) t->stride[d] = entries_behind(t, d);
    for (int d = dims; d > 1; --d) {
        const int j = (int)draw((uint32_t)d), swap = t->order[d - 1];
        t->order[d - 1] = t->order[j], t->order[j] = swap;
    }
    return t;
}

static const char *try_strides(int dims, int most) {
    tensor *t = new_tensor(dims, 1, most);
    const char *wrong = run("strides", "strides", t, 2);
    for (int d = 0; d < dims && !wrong; ++d)
        wrong = differ_whole("stride", t->back->stride[d], t->stride[d]);
    return wrong ? wrong : differ_whole("behind the last stride", t->back->stride[dims], -9);
}

static const char *try_offset(int dims) {
    tensor *t = new_tensor(dims, 2, 7);
    ptrdiff_t wanted = 0;
    for (int d = 0; d < dims; ++d) {
        t->index[d] = d == 0 ? t->shape[d] - 1 : between(0, t->shape[d] - 1);
        t->stride[d] *= d == 0 ? -3 : between(0, 1) ? 1 : -1; // the first outweighs the others
        wanted += t->index[d] * t->stride[d];
    }
    const char *wrong = run("offset", "offset", t, 2);
    return wrong ? wrong : differ_whole("offset", t->back->at, wanted);
}

static const char *try_permute(int dims, bool turn) {
    tensor *t = new_tensor(dims, 2, 9);
    for (int d = 0; d < dims && turn; ++d) t->order[d] = (d + 1) % dims; // no swap of two
    const char *wrong = run("permute", "permute", t, 2);
    for (int d = 0; d < dims && !wrong; ++d) {
        wrong = differ_whole("shape", t->back->shape[d], t->shape[t->order[d]]);
        if (!wrong) wrong = differ_whole("stride", t->back->stride[d], t->stride[t->order[d]]);
    }
    return wrong ? wrong : differ_whole("behind the last shape", t->back->shape[dims], -9);
}

// Dimensions in another order, backwards, or again and again: by `kind`
static void make_view(tensor *t, int kind) {
    const tensor whole = *t;
    for (int d = 0; d < t->dims; ++d) {
        const int from = kind == 'p' ? t->order[d] : d;
        t->shape[d] = whole.shape[from], t->stride[d] = whole.stride[from];
    }
    for (int d = 0; d < t->dims; ++d)
        if (kind == 'b' && (d == 0 || draw(2))) {
            t->data += (t->shape[d] - 1) * t->stride[d];
            t->stride[d] = -t->stride[d];
        } else if (kind == '0' && (d == t->dims - 1 || draw(2))) t->stride[d] = 0;
}

static const char *try_copy(int dims, int least, int kind) {
    tensor *t = new_tensor(dims, least, 4);
    const size_t n = (size_t)entries_behind(t, -1);
    double wanted[ROOM];
    if (least == 0 && dims > 1) t->shape[between(0, dims - 1)] = 0;
    t->data = inputs(n + 1), t->out = outputs(ROOM, 5.0f);
    make_view(t, kind);
    const size_t count = (size_t)entries_behind(t, -1);
    for (size_t k = 0; k < ROOM; ++k) {
        ptrdiff_t at = 0;
        for (int d = 0; d < dims && k < count; ++d)
            at += (ptrdiff_t)k / entries_behind(t, d) % t->shape[d] * t->stride[d];
        wanted[k] = k < count ? (double)t->data[at] : 5.0;
    }
    const char *wrong = run("copy_view", "copy", t, 2);
    if (!wrong) wrong = differ_whole("how many", t->back->at, (ptrdiff_t)count);
    return wrong ? wrong : differ("out", t->out, wanted, ROOM, 0.0);
}

// what: 0 as it is, 1 a stride that is wrong, 2 one that does not matter, 3 no entries
static const char *try_contiguous(int dims, int what) {
    tensor *t = new_tensor(dims, 2, 5);
    const int d = between(0, dims - 1);
    if (what == 2) t->shape[d] = 1;
    if (what == 3) t->shape[d] = 0;
    for (int k = 0; k < dims; ++k) t->stride[k] = entries_behind(t, k);
    if (what == 3) t->stride[0] = 17, t->stride[dims - 1] = 2;
    else if (what) t->stride[d] += between(0, 1) ? 3 : -1;
    const char *wrong = run("is_contiguous", "contiguous", t, 2);
    return wrong ? wrong : differ_whole("is_contiguous", t->back->at, what != 1);
}

static const char *try_dims(const char *try(int dims, int what), int what) {
    const char *wrong = NULL;
    for (int dims = 1; dims <= DIMS && !wrong; ++dims) wrong = try(dims, what);
    return wrong;
}

static void grade(void) {
    give("strides, a matrix", 5, try_strides(2, 50));
    give("strides, any dimensions", 10,
         either(try_dims(try_strides, 9), either(try_strides(0, 9), try_strides(3, 3000))));
    give("offset, a matrix", 5, try_offset(2));
    give("offset, any dimensions", 10,
         either(either(try_offset(1), try_offset(3)), either(try_offset(5), try_offset(0))));
    give("permute, transpose", 10, try_permute(2, true));
    give("permute, any order", 10, either(try_permute(3, true), try_permute(5, false)));
    give("copy_view, as it lies", 5, either(try_copy(2, 1, 'c'), try_copy(4, 1, 'c')));
    give("copy_view, permuted", 10, either(try_copy(2, 2, 'p'), try_copy(5, 2, 'p')));
    give("copy_view, backwards", 5, either(try_copy(1, 2, 'b'), try_copy(3, 2, 'b')));
    give("copy_view, stride 0", 5, either(try_copy(2, 2, '0'), try_copy(3, 2, '0')));
    give("copy_view, one entry or none", 5, either(try_copy(0, 1, 'c'), try_copy(3, 0, 'c')));
    const char *no = either(try_contiguous(2, 1), try_contiguous(4, 1));
    if (!no) no = try_contiguous(1, 1);
    const char *yes = either(try_contiguous(3, 0), try_contiguous(5, 0));
    give("is_contiguous, yes and no", 10, either(no, yes));
    const char *ones = either(try_contiguous(4, 2), try_contiguous(2, 2));
    give("is_contiguous, one entry or none", 10, either(ones, try_contiguous(3, 3)));
}
#endif
