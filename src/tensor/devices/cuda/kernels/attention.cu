/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.cu - scaled dot-product attention by blocks of queries and keys, of all types and
 * sizes; attention_tiles.cu has those of tensor cores. own_attention.c launches both.
 */
#include "tensor/devices/cuda/kernels/attention.h"

/* A block's part: ATTENTION_ROWS rows of attention i, and columns of the result. */
typedef struct part {
    size_t i;
    size_t row;
    size_t column;
} part;

KERNEL_FN size_t part_count(const attention_args *a, size_t rows, size_t columns)
{
    return a->n * ((rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS) *
           ((columns + ATTENTION_WIDTH - 1) / ATTENTION_WIDTH);
}

KERNEL_FN part part_of(size_t unit, size_t rows, size_t columns)
{
    const size_t row_tiles = (rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    const size_t column_tiles = (columns + ATTENTION_WIDTH - 1) / ATTENTION_WIDTH;
    const size_t tile = divide(unit, column_tiles);
    const part p = {divide(tile, row_tiles), tile % row_tiles * ATTENTION_ROWS,
                    unit % column_tiles * ATTENTION_WIDTH};

    return p;
}

/* The columns of the part. */
KERNEL_FN size_t part_width(const part *p, size_t columns)
{
    if (columns <= p->column)
        return 0;
    return columns - p->column < ATTENTION_WIDTH ? columns - p->column : ATTENTION_WIDTH;
}

#define KERNEL_FILE "tensor/devices/cuda/kernels/attention.inc"
#include "tensor/devices/cuda/kernels/kernel_types.inc"
