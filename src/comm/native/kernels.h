/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - adding contributions along the aligned tree, in one pass, with the same bits on every instruction set.
 *
 * The aligned tree over n contributions: node k of level l covers [k*2^l, (k+1)*2^l); its value is left op right, a
 * missing right sibling passes left through. fp16/bf16 contributions are widened once, combined in float32, and
 * rounded once at the root; partial results (of a subtree) stay float32. min and max give NaN where either side is NaN.
 * Integers wrap; avg divides the root (floating types only). A NaN in a final result is always the positive quiet NaN
 * without payload, because processors disagree about payloads. The thread's rounding mode and flush-to-zero play no part.
 */
#ifndef LS_NATIVE_KERNELS_H
#define LS_NATIVE_KERNELS_H

#include <lockstep/comm.h>

#include <stdbool.h>

/* Type in which partial results of `type` travel: float32 for fp16 and bf16, else the type itself. */
ls_dtype reduce_partial_type(ls_dtype type);

/* One operand of a reduction: the value of the subtree of ranks [first, first + n_ranks). */
typedef struct reduce_operand {
    const void *data;
    int first;
    int n_ranks;
    bool
        partial; /* data is of the partial type; otherwise n_ranks is 1 and data is of the type itself */
} reduce_operand;

/*
 * dst = the tree over operands, which are in rank order, disjoint, and together cover [first, first + n) where that
 * range is one aligned subtree or the whole of 0..world-1. final: rounds to `type`, after avg has divided by `divisor`
 * (in the partial type; not 0); otherwise dst is of the partial type. dst may be the data of any operand whose elements are not narrower than dst's, but
 * not overlap one otherwise.
 */
void reduce_tree(void *dst, const reduce_operand *operands, int n_operands, size_t count,
                 ls_dtype type, ls_reduce_op op, bool final, double divisor);

/* "avx512", "avx2", "baseline": what the table chose; LOCKSTEP_SIMD is not read, tests choose with reduce_use(). */
const char *reduce_simd(void);
/* Tests: NULL restores the choice. False where this machine cannot. */
bool reduce_use(const char *name);

#endif
