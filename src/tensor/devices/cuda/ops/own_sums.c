/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_sums.c - divides sums over the rows of matrices among blocks, for batch norm, layer norm,
 * losses, broadcasts and bias gradients. The division depends on the sizes alone, and with it the
 * bits of a sum.
 */
#include "tensor/devices/cuda/ops/own.h"

enum {
    LANES_MOST = 32,    /* threads side by side: a row of them reads at least 64 bytes, */
    PACKS_MOST = 8,     /* or 128, so that narrow matrices have many parts */
    SUM_BLOCKS = 512,   /* that a sum is divided into, if it has the rows */
    ROWS_OF_THREAD = 16 /* at least, where rows are divided */
};

static unsigned power_of_two_from(size_t n, unsigned most)
{
    unsigned p = 1;

    while (p < n && p < most)
        p *= 2;
    return p;
}

static size_t at_most(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The division, with the rows in as many parts as make `blocks` blocks. */
static column_split split_of(size_t n, size_t rows, size_t columns, kernel_type type, bool wide,
                             size_t blocks)
{
    column_split by = {.n = n, .rows = rows, .columns = columns};
    size_t units = columns;
    size_t parts;

    by.wide = wide && columns % own_pack(type) == 0;
    if (by.wide)
        units /= own_pack(type);
    by.lanes = power_of_two_from(units, by.wide ? PACKS_MOST : LANES_MOST);
    by.tiles = (unsigned)((units + by.lanes - 1) / by.lanes);
    parts = n * by.tiles == 0 ? 1 : blocks / (n * by.tiles);
    parts = at_most(parts, rows / ((size_t)(OWN_THREADS / by.lanes) * ROWS_OF_THREAD));
    by.splits = parts == 0 ? 1 : (unsigned)parts;
    return by;
}

column_split own_sum_split(own_operands *o, size_t n, size_t rows, size_t columns, kernel_type type,
                           bool wide)
{
    column_split by = split_of(n, rows, columns, type, wide, SUM_BLOCKS);

    by.tickets = o->self->tickets;
    by.partial = own_memory(o, LS_F64, n * by.splits * columns * COLUMN_SUMS);
    return by;
}

column_split own_apply_split(size_t rows, size_t columns, kernel_type type, bool wide)
{
    return split_of(1, rows, columns, type, wide, (size_t)4 * SUM_BLOCKS);
}

unsigned own_split_blocks(const column_split *by)
{
    const size_t n = by->n * by->tiles * by->splits;

    return (unsigned)at_most(n, 1 << 20); // blocks take several tiles
}

column_args own_bias_sums(own_operands *o, const op_call *call, const void *x, kernel_type type,
                          size_t rows, size_t columns)
{
    const ls_tensor *dbias = call->out[1];

    return (column_args){.by = own_sum_split(o, 1, rows, columns, type, own_is_aligned(x)),
                         .x = x,
                         .out = {own_data(dbias)},
                         .out_type = own_type(dbias->dtype),
                         .scale = 1,
                         .accumulate = call->accumulate};
}

void own_launch_sums(own_operands *o, const column_args *a, kernel_type type)
{
    own_launch(o, OWN_KERNELS(column_sum), type, own_split_blocks(&a->by), OWN_THREADS, a);
}
