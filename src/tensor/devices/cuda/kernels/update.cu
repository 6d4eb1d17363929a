/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update.cu - steps of optimizers, clipping and gradient scaling over many arrays at once. A block
 * takes chunks of any of them. Compiled without fused multiply-add, so that the results of
 * float32 and float64 are those of tensor/devices/update/ to the bit, but for the order of the sums
 * of squares. own_update.c launches them.
 */
#include "tensor/devices/cuda/kernels/kernel.h"

BLOCK_REDUCTION(block_count, int, COMBINE_SUM)
BLOCK_REDUCTION(block_total, double, COMBINE_SUM)

/* The index of the array that a chunk belongs to. */
KERNEL_FN int array_at(const update_args *a, size_t chunk)
{
    int low = 0;
    int high = a->n;

    while (high - low > 1) {
        const int middle = (low + high) / 2;

        if (a->arrays[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The chunk behind those of array i. */
KERNEL_FN size_t end_chunk(const update_args *a, int i)
{
    return i + 1 < a->n ? a->arrays[i + 1].first_chunk : a->n_chunks;
}

/* The elements of a chunk within its array. */
typedef struct chunk_range {
    size_t begin;
    size_t end;
} chunk_range;

KERNEL_FN chunk_range range_of(const update_args *a, int i, size_t chunk)
{
    const update_array *array = &a->arrays[i];
    chunk_range r;

    r.begin = (chunk - array->first_chunk) * UPDATE_CHUNK;
    r.end = r.begin + (chunk + 1 < end_chunk(a, i) ? UPDATE_CHUNK : array->tail);
    return r;
}

KERNEL_FN bool is_aligned(const update_array *array)
{
    const uintptr_t addresses = (uintptr_t)array->value | (uintptr_t)array->grad |
                                (uintptr_t)array->state[0] | (uintptr_t)array->state[1] |
                                (uintptr_t)array->state[2];

    return addresses % PACK_BYTES == 0;
}

typedef enum update_kind {
    UPDATE_SGD,
    UPDATE_ADAM,
    UPDATE_SCALE,
    UPDATE_CLAMP,
    UPDATE_UNSCALE
} update_kind;

KERNEL_FN bool has_grad(update_kind kind)
{
    return kind == UPDATE_SGD || kind == UPDATE_ADAM;
}

/* The arrays of state that an element reads and writes, at most. */
KERNEL_FN int states_of(update_kind kind)
{
    return kind == UPDATE_SGD ? 1 : kind == UPDATE_ADAM ? 3 : 0;
}

KERNEL(clip_factor, clip_factor_args)
{
    double sum = 0;
    double factor;

    if (at.block > 0 || at.thread > 0)
        return;
    for (size_t i = 0; i < a->n; i++)
        sum += a->squares[i];
    factor = a->limit / (sqrt(sum) + 1e-6);
    *a->norm = sqrt(sum);
    *a->factor = factor >= 1 ? 1 : factor; // NaN stays
}

#define KERNEL_OF_PARAMETERS_ALONE
#define KERNEL_FILE "tensor/devices/cuda/kernels/update.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
