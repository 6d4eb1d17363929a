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

/* Where a unit is read and written. */
typedef struct unit_place {
    size_t src;
    size_t dst;
} unit_place;

/* Of a turn's units i, i + step, ...; those behind the last one are at the place of the first. */
KERNEL_FN void find_places(const move_args *a, size_t i, size_t step, int n, unit_place *places)
{
    size_t rest[4];

    for (int k = 0; k < n; k++) {
        places[k].src = 0;
        places[k].dst = 0;
        rest[k] = inside_or(i + (size_t)k * step, a->count, i);
    }
    for (int d = a->n_dims - 1; d >= 0; d--) {
        for (int k = 0; k < n; k++) {
            const size_t next = d > 0 ? divide(rest[k], a->dims[d]) : 0;
            const size_t index = rest[k] - next * a->dims[d];

            places[k].src += index * a->src_step[d];
            places[k].dst += index * a->dst_step[d];
            rest[k] = next;
        }
    }
}

/* A thread reads AT_ONCE units before it writes the first. */
#define MOVE(NAME, UNIT, AT_ONCE)                                                                  \
    KERNEL(NAME, move_args)                                                                        \
    {                                                                                              \
        const size_t step = (size_t)at.n_blocks * at.n_threads;                                    \
                                                                                                   \
        for (size_t i = (size_t)at.block * at.n_threads + at.thread; i < a->count;                 \
             i += step * (AT_ONCE)) {                                                              \
            unit_place places[AT_ONCE];                                                            \
            UNIT units[AT_ONCE];                                                                   \
                                                                                                   \
            find_places(a, i, step, AT_ONCE, places);                                              \
            for (int k = 0; k < (AT_ONCE); k++)                                                    \
                units[k] = ((const UNIT *)a->src)[places[k].src];                                  \
            for (int k = 0; k < (AT_ONCE) && i + (size_t)k * step < a->count; k++)                 \
                ((UNIT *)a->dst)[places[k].dst] = units[k];                                        \
        }                                                                                          \
    }

MOVE(move_1, uint8_t, 4)
MOVE(move_2, uint16_t, 4)
MOVE(move_4, uint32_t, 4)
MOVE(move_8, uint64_t, 4)
MOVE(move_16, unit_16, 2)

/* Of a square at whose first row (column) the matrix has `n` left. */
KERNEL_FN unsigned side_of(size_t n)
{
    return n < TRANSPOSE_SIDE ? (unsigned)n : TRANSPOSE_SIDE;
}

/* A block moves squares through shared memory, so that it reads and writes neighbours. The rows of
 * the square are one unit longer than its side: the banks of a column then differ. A thread reads
 * AT_ONCE units before it writes the first; outside of the matrix those of the last row or column.
 */
#define TRANSPOSE(NAME, UNIT, AT_ONCE)                                                             \
    KERNEL_FN void NAME##_square(const transpose_args *a, const UNIT *src, UNIT *dst, size_t row,  \
                                 size_t column, const kernel_place at)                             \
    {                                                                                              \
        SHARED UNIT square[TRANSPOSE_SIDE][TRANSPOSE_SIDE + 1];                                    \
        const unsigned n_read = TRANSPOSE_SIDE * side_of(a->rows - row);                           \
        const unsigned n_written = TRANSPOSE_SIDE * side_of(a->columns - column);                  \
                                                                                                   \
        for (unsigned i = at.thread; i < n_read; i += at.n_threads * (AT_ONCE)) {                  \
            UNIT units[AT_ONCE];                                                                   \
                                                                                                   \
            for (unsigned k = 0; k < (AT_ONCE); k++) {                                             \
                const size_t r = row + (i + k * at.n_threads) / TRANSPOSE_SIDE;                    \
                const size_t c = column + (i + k * at.n_threads) % TRANSPOSE_SIDE;                 \
                                                                                                   \
                units[k] = src[inside_or(r, a->rows, a->rows - 1) * a->columns +                   \
                               inside_or(c, a->columns, a->columns - 1)];                          \
            }                                                                                      \
            for (unsigned k = 0; k < (AT_ONCE); k++) {                                             \
                const unsigned to = i + k * at.n_threads;                                          \
                                                                                                   \
                square[to / TRANSPOSE_SIDE][to % TRANSPOSE_SIDE] = units[k];                       \
            }                                                                                      \
        }                                                                                          \
        block_sync();                                                                              \
        for (unsigned i = at.thread; i < n_written; i += at.n_threads) {                           \
            const unsigned r = i % TRANSPOSE_SIDE;                                                 \
            const unsigned c = i / TRANSPOSE_SIDE;                                                 \
                                                                                                   \
            if (row + r < a->rows)                                                                 \
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

TRANSPOSE(transpose_1, uint8_t, 16)
TRANSPOSE(transpose_2, uint16_t, 16)
TRANSPOSE(transpose_4, uint32_t, 8)
TRANSPOSE(transpose_8, uint64_t, 4)

#define KERNEL_FILE "tensor/devices/cuda/kernels/broadcast.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
