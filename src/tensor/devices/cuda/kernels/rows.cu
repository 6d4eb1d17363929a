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
