/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.h - adds contributions along the aligned tree in one pass, with the same bits on every
 * instruction set. native/reduce/kernels.c implements it; backends get reduce_tree() in their host
 * table.
 *
 * The aligned tree over n contributions: node k of level l covers [k*2^l, (k+1)*2^l). Its value is
 * left op right; without a right sibling it is left. fp16 and bf16 contributions are widened once,
 * combined in float32, and rounded once at the root; partial results (of a subtree) stay float32.
 * min and max give NaN where either side is NaN. Integers wrap. avg divides the root (floating
 * types only). A NaN in a final result is always the positive quiet NaN without payload, because
 * processors disagree about payloads. The thread's rounding mode and flush-to-zero have no effect.
 */
#ifndef LS_COMM_BACKENDS_REDUCE_H
#define LS_COMM_BACKENDS_REDUCE_H

#include <lockstep/comm.h>

#include <stdbool.h>

/* The type of partial results of `type`: float32 for fp16 and bf16, else the type itself. */
ls_dtype reduce_partial_type(ls_dtype type);

/* One operand of a reduction: the value of the subtree of ranks [first, first + n_ranks). */
typedef struct reduce_operand {
    const void *data;
    int first;
    int n_ranks;
    /* data has the partial type; otherwise n_ranks is 1 and data has the type itself */
    bool partial;
} reduce_operand;

/*
 * dst = the tree over the operands. They are in rank order and disjoint, and together cover [first,
 * first + n), which is one aligned subtree or all of 0..world-1. final: rounds to `type`, after avg
 * has divided by `divisor` (of the partial type; not 0). Otherwise dst has the partial type. dst
 * may be the data of an operand whose elements are not narrower than dst's; it must not overlap one
 * in any other way.
 */
void reduce_tree(void *dst, const reduce_operand *operands, int n_operands, size_t count,
                 ls_dtype type, ls_reduce_op op, bool final, double divisor);

#endif
