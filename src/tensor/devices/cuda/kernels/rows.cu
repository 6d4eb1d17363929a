/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.cu - the kernels that need sums over a row: softmax, layer norm, cross-entropy. A block
 * takes a row at a time. rows.c and losses.c launch them.
 */
#include "tensor/devices/cuda/kernels/kernel.h"

#define NO_ROW INT64_MAX

#define COMBINE_LEAST(a, b)   ((a) < (b) ? (a) : (b))
#define COMBINE_EXTREME(a, b) ((a) > (b) || (a) != (a) ? (a) : (b)) /* a NaN, if there is one */

BLOCK_REDUCTION(block_count, int, COMBINE_SUM)
BLOCK_REDUCTION(block_total, double, COMBINE_SUM)
BLOCK_REDUCTION(block_least, int64_t, COMBINE_LEAST)

/*
 * A row of an array, divided among the threads of a block by packs: the next pack of a thread is
 * `step` elements behind the last one. A turn is what a thread reads before it uses the first of
 * it: ROW_PACKS packs by one access each (`wide`), or one by its elements. Both give the same order
 * of sums.
 */
typedef struct row_range {
    size_t first;
    size_t end;
    size_t begin; /* the thread's first pack, which may begin before the row or behind it */
    size_t step;
    bool has_parts; /* whether packs may be in it in part */
} row_range;

/* Divided by the packs of the array, so that those of rows of any length are aligned. */
KERNEL_FN row_range row_in_array(size_t first, size_t n, size_t pack, const kernel_place at)
{
    const row_range r = {first, first + n, first / pack * pack + at.thread * pack,
                         at.n_threads * pack, true};

    return r;
}

/* Divided by packs that begin where the row does, so that equal rows have equal sums. `wide`: n is
 * a multiple of `pack`. */
KERNEL_FN row_range row_alone(size_t first, size_t n, size_t pack, bool wide, const kernel_place at)
{
    const row_range r = {first, first + n, first + at.thread * pack, at.n_threads * pack, !wide};

    return r;
}

KERNEL_FN int packs_of_turn(bool wide)
{
    return wide ? ROW_PACKS : 1;
}

KERNEL_FN size_t turn_step(const row_range *r, bool wide)
{
    return (size_t)packs_of_turn(wide) * r->step;
}

/* Whether one wide turn of all threads reads a row_alone(). */
KERNEL_FN bool fits_turn(const row_range *r)
{
    return r->end - r->first <= turn_step(r, true);
}

/* The elements of a pack that are in the row. */
typedef struct pack_part {
    int begin;
    int end;
} pack_part;

KERNEL_FN pack_part part_in_row(const row_range *r, size_t i, int pack)
{
    pack_part p = {0, i < r->end ? pack : 0};

    if (r->has_parts && i < r->first)
        p.begin = (int)(r->first - i);
    if (r->has_parts && i < r->end && r->end - i < (size_t)pack)
        p.end = (int)(r->end - i);
    return p;
}

KERNEL_FN bool is_row(const embedding_args *a, int64_t row)
{
    return row >= 0 && row < a->n_rows;
}

KERNEL_FN bool is_class(const loss_args *a, size_t row)
{
    return a->targets[row] >= 0 && a->targets[row] < (int64_t)a->n_classes;
}

/* The sum over all rows of number k of a row's values. */
KERNEL_FN double sum_of_rows(const loss_args *a, int k, const kernel_place at)
{
    double sum = 0;

    for (size_t row = at.thread; row < a->n_rows; row += at.n_threads)
        sum += a->row_values[row * LOSS_VALUES + (size_t)k];
    return block_total(sum, at);
}

/* Reports the first row whose target is not a class; one block calls it. */
KERNEL_FN void check_targets(const loss_args *a, const kernel_place at)
{
    int64_t first = NO_ROW;

    for (size_t row = at.thread; row < a->n_rows && first == NO_ROW; row += at.n_threads) {
        if (!is_class(a, row))
            first = (int64_t)row;
    }
    first = block_least(first, at);
    if (first != NO_ROW && at.thread == 0)
        report_failure(a->failure, a->op, first, a->targets[first], (int64_t)a->n_classes);
}

#define KERNEL_FILE "tensor/devices/cuda/kernels/rows.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
