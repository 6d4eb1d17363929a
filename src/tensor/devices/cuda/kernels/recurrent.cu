/* SPDX-License-Identifier: Apache-2.0 */
/* recurrent.cu - the kernels of steps of LSTM and GRU cells. own_recurrent.c launches them. */
#include "tensor/devices/cuda/kernels/kernel.h"

/* Whether the row has this step. The thread of unit 0 checks the row's length. */
KERNEL_FN bool has_step(const recurrent_args *a, size_t row, size_t unit)
{
    int64_t length;

    if (a->lengths == NULL)
        return true;
    length = a->lengths[row];
    if (unit == 0 && (length < 0 || length > a->limit))
        report_failure(a->failure, a->op, (int64_t)row, length, a->limit);
    return length > a->position;
}

/* The place of gate k of a unit in a matrix with n of them. */
KERNEL_FN size_t gate_at(const recurrent_args *a, size_t row, size_t unit, int n, int k)
{
    return (row * (size_t)n + (size_t)k) * a->units + unit;
}

#define KERNEL_FILE "tensor/devices/cuda/kernels/recurrent.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
