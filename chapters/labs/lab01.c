// Lab 1. Tensors and strides                                        chapter 1
//
// A tensor is an array of any number of dimensions: a number is one of none, a vector of one, a
// matrix of two, a batch of colour images of four. Memory has one dimension only. Between the two
// stand the shape, how many entries each dimension has, and the strides: how many numbers further
// in memory the next entry of a dimension lies. Entry (i0, i1, ...) lies at
//
//     i0 * stride[0] + i1 * stride[1] + ...
//
// Whoever changes shape and strides alone sees the same numbers in another order, and has copied
// none of them: such a thing is called a view.
//
// Fill in what is missing, then run `make grade-lab01`. It draws new numbers each time and prints
// the seed; `make grade-lab01 ARGS="--seed 5 strides"` repeats one run, and grades only the tasks
// whose name has that word.
//
// Before you write, predict: a tensor of shape 2 x 3 x 4, row-major. How far is (1,2,3) from its
// beginning?

#include <stdbool.h>
#include <stddef.h>

enum { MOST_DIMS = 8 }; // no tensor here has more

// Task 1, strides (15 points). Row-major: the last dimension's entries are neighbours, stride 1;
// one step in any other dimension skips all entries of those behind it.
void strides(ptrdiff_t *stride, const int *shape, int dims) {
    // BEGIN SOLUTION
    ptrdiff_t step = 1;
    for (int d = dims - 1; d >= 0; --d) {
        stride[d] = step;
        step *= shape[d];
    }
    // END SOLUTION
}

// Task 2, offset (15 points). How far from the beginning the entry lies that `index` names, dims
// numbers. A tensor of no dimensions has one entry, at 0.
ptrdiff_t offset(const int *index, const ptrdiff_t *stride, int dims) {
    ptrdiff_t at = 0;
    // BEGIN SOLUTION
    for (int d = 0; d < dims; ++d) at += index[d] * stride[d];
    // END SOLUTION
    return at;
}

// Task 3, permute (20 points). A view with its dimensions in another order: dimension d of the view
// is dimension order[d] of the tensor. Order {1, 0} turns a matrix into its transpose. Results and
// arguments are not the same memory.
void permute(int *new_shape, ptrdiff_t *new_stride, const int *shape, const ptrdiff_t *stride,
             const int *order, int dims) {
    // BEGIN SOLUTION
    for (int d = 0; d < dims; ++d) {
        new_shape[d] = shape[order[d]];
        new_stride[d] = stride[order[d]];
    }
    // END SOLUTION
}

// Task 4, copy_view (30 points). Writes all entries of a view to `out`, one behind the other, in
// row-major order: the last index runs fastest. Strides may be anything, also 0 (the same numbers
// again and again) or negative (backwards). Returns how many entries there are, which is 0 if any
// dimension has 0 entries, and 1 if there are no dimensions.
size_t copy_view(float *out, const float *data, const int *shape, const ptrdiff_t *stride,
                 int dims) {
    size_t count = 1;
    // BEGIN SOLUTION
    for (int d = 0; d < dims; ++d) count *= (size_t)shape[d];
    for (size_t k = 0; k < count; ++k) {
        size_t rest = k;
        ptrdiff_t at = 0;
        for (int d = dims - 1; d >= 0; --d) {
            at += (ptrdiff_t)(rest % (size_t)shape[d]) * stride[d];
            rest /= (size_t)shape[d];
        }
        out[k] = data[at];
    }
    // END SOLUTION
    return count;
}

// Task 5, is_contiguous (20 points). Whether the entries, in row-major order, lie one behind the
// other, as task 1's strides have it. Of a dimension with one entry the stride says nothing, as
// nobody ever takes that step. A tensor without entries is contiguous.
bool is_contiguous(const int *shape, const ptrdiff_t *stride, int dims) {
    bool yes = false;
    // BEGIN SOLUTION
    ptrdiff_t step = 1;
    yes = true;
    for (int d = dims - 1; d >= 0; --d) {
        if (shape[d] == 0) return true;
        if (shape[d] > 1 && stride[d] != step) yes = false;
        step *= shape[d];
    }
    // END SOLUTION
    return yes;
}

// Questions, to be answered in a sentence or two:
//
// 1. Which strides show the columns of a 3 x 4 matrix from right to left, and where does the view
//    begin?
// 2. A view has shape 1000 x 1000 and strides 0 and 1. How much memory does it show?
