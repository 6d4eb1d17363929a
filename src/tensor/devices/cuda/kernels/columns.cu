/* SPDX-License-Identifier: Apache-2.0 */
/*
 * columns.cu - sums over the rows of matrices, and the kernels that consist of them: batch norm,
 * weight gradients of layer norm, bias gradients. own_norm.c, own_sums.c and packed.c launch them.
 *
 * A block sums a part of the rows for a tile of columns; the block that finishes a tile last adds
 * up the parts in their order. Sums are in float64, but those of a few rows, of float32 and smaller
 * types, in float32.
 */
#include "tensor/devices/cuda/kernels/repack.h"

#include "tensor/devices/cuda/kernels/kernel.h"

typedef enum column_kind {
    COLUMN_SUM,
    COLUMN_PRODUCT,
    COLUMN_DISTANCE, /* squared */
    COLUMN_MOMENTS,  /* of the distances from the first row's values, so that nothing cancels */
    COLUMN_NORM_BACK,
    COLUMN_MASK_BACK, /* the same, of the gradient that it masks and writes first */
    COLUMN_LAYER_BACK,
    COLUMN_APPLY, /* batch norm of rows */
    COLUMN_APPLY_ADDED
} column_kind;

#define ROWS_OF_A_SUM 16 /* that a thread adds up in the type of arithmetic */
#define ROWS_AT_ONCE  8  /* that a thread reads before it uses the first, at most */

KERNEL_FN int sums_of(column_kind kind)
{
    return kind == COLUMN_SUM || kind == COLUMN_PRODUCT || kind == COLUMN_DISTANCE ? 1 : 2;
}

/* A divisor of ROWS_OF_A_SUM: as many packs of 16 bytes as registers hold, so that the 512 threads
 * of a multiprocessor ask for 32 to 64 KiB at a time. */
KERNEL_FN int rows_at_once(column_kind kind)
{
    switch (kind) {
    case COLUMN_SUM:
    case COLUMN_MOMENTS:
    case COLUMN_APPLY:
        return ROWS_AT_ONCE;
    case COLUMN_NORM_BACK: // of three arrays
    case COLUMN_MASK_BACK: // of four
        return ROWS_AT_ONCE / 4;
    default:
        return ROWS_AT_ONCE / 2;
    }
}

KERNEL_FN bool is_norm_back(column_kind kind)
{
    return kind == COLUMN_NORM_BACK || kind == COLUMN_MASK_BACK;
}

/* What a block works on. */
typedef struct column_tile {
    size_t matrix;
    size_t column; /* the first */
    size_t first_row;
    size_t end_row;
    unsigned split;
    unsigned ticket;
} column_tile;

KERNEL_FN size_t count_of_tiles(const column_split *by)
{
    return by->n * by->tiles * by->splits;
}

KERNEL_FN column_tile tile_at(const column_split *by, size_t i, int width)
{
    const size_t rows = (by->rows + by->splits - 1) / by->splits;
    const size_t tile = i / by->splits;
    column_tile t;

    t.split = (unsigned)(i % by->splits);
    t.ticket = (unsigned)tile;
    t.matrix = tile / by->tiles;
    t.column = tile % by->tiles * by->lanes * (size_t)width;
    t.first_row = t.split * rows;
    t.end_row = t.first_row + rows < by->rows ? t.first_row + rows : by->rows;
    return t;
}

/* Threads side by side: `lanes`, or 1 thread that takes one lane after the other. */
KERNEL_FN unsigned threads_abreast(const column_split *by, const kernel_place at)
{
    return at.n_threads < by->lanes ? at.n_threads : by->lanes;
}

KERNEL_FN double *partial_at(const column_split *by, const column_tile *t, unsigned split, int k,
                             size_t column)
{
    return &by->partial[((t->matrix * by->splits + split) * COLUMN_SUMS + (size_t)k) * by->columns +
                        column];
}

#define KERNEL_FILE "tensor/devices/cuda/kernels/columns.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
