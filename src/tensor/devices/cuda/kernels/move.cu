/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move.cu - the kernels that copy units of memory from one arrangement into another, and those that
 * repeat elements along dimensions. move.c launches them.
 */
#include "tensor/devices/cuda/kernels/kernel.h"

/* A unit of 16 bytes. */
typedef struct unit_16 {
    uint64_t half[2];
} __attribute__((aligned(16))) unit_16;

/* Adds, over all dimensions, the step times the index of element i. */
KERNEL_FN size_t position_of(size_t i, int n_dims, const size_t *dims, const size_t *step)
{
    size_t position = 0;

    for (int d = n_dims - 1; d > 0; d--) {
        const size_t next = divide(i, dims[d]);

        position += (i - next * dims[d]) * step[d];
        i = next;
    }
    return n_dims > 0 ? position + i * step[0] : 0;
}

#define MOVE(NAME, UNIT)                                                                           \
    KERNEL(NAME, move_args)                                                                        \
    {                                                                                              \
        for (size_t i = (size_t)at.block * at.n_threads + at.thread; i < a->count;                 \
             i += (size_t)at.n_blocks * at.n_threads)                                              \
            ((UNIT *)a->dst)[position_of(i, a->n_dims, a->dims, a->dst_step)] =                    \
                ((const UNIT *)a->src)[position_of(i, a->n_dims, a->dims, a->src_step)];           \
    }

MOVE(move_1, uint8_t)
MOVE(move_2, uint16_t)
MOVE(move_4, uint32_t)
MOVE(move_8, uint64_t)
MOVE(move_16, unit_16)

/* A block moves squares through shared memory, so that it reads and writes neighbours. The rows of
 * the square are one unit longer than its side: the banks of a column then differ. */
#define TRANSPOSE(NAME, UNIT)                                                                      \
    KERNEL_FN void NAME##_square(const transpose_args *a, const UNIT *src, UNIT *dst, size_t row,  \
                                 size_t column, const kernel_place at)                             \
    {                                                                                              \
        SHARED UNIT square[TRANSPOSE_SIDE][TRANSPOSE_SIDE + 1];                                    \
                                                                                                   \
        for (unsigned i = at.thread; i < TRANSPOSE_SIDE * TRANSPOSE_SIDE; i += at.n_threads) {     \
            const unsigned r = i / TRANSPOSE_SIDE;                                                 \
            const unsigned c = i % TRANSPOSE_SIDE;                                                 \
                                                                                                   \
            if (row + r < a->rows && column + c < a->columns)                                      \
                square[r][c] = src[(row + r) * a->columns + column + c];                           \
        }                                                                                          \
        block_sync();                                                                              \
        for (unsigned i = at.thread; i < TRANSPOSE_SIDE * TRANSPOSE_SIDE; i += at.n_threads) {     \
            const unsigned r = i % TRANSPOSE_SIDE;                                                 \
            const unsigned c = i / TRANSPOSE_SIDE;                                                 \
                                                                                                   \
            if (row + r < a->rows && column + c < a->columns)                                      \
                dst[(column + c) * a->rows + row + r] = square[r][c];                              \
        }                                                                                          \
        block_sync();                                                                              \
    }                                                                                              \
    KERNEL(NAME, transpose_args)                                                                   \
    {                                                                                              \
        const size_t across = (a->columns + TRANSPOSE_SIDE - 1) / TRANSPOSE_SIDE;                  \
        const size_t down = (a->rows + TRANSPOSE_SIDE - 1) / TRANSPOSE_SIDE;                       \
                                                                                                   \
        for (size_t i = at.block; i < a->n * across * down; i += at.n_blocks) {                    \
            const size_t matrix = i / (across * down);                                             \
                                                                                                   \
            NAME##_square(a, (const UNIT *)a->src + matrix * a->src_step,                          \
                          (UNIT *)a->dst + matrix * a->dst_step,                                   \
                          i / across % down * TRANSPOSE_SIDE, i % across * TRANSPOSE_SIDE, at);    \
        }                                                                                          \
    }

TRANSPOSE(transpose_1, uint8_t)
TRANSPOSE(transpose_2, uint16_t)
TRANSPOSE(transpose_4, uint32_t)
TRANSPOSE(transpose_8, uint64_t)

#define KERNEL_FILE "tensor/devices/cuda/kernels/broadcast.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
