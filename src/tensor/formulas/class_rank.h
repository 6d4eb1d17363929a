/* SPDX-License-Identifier: Apache-2.0 */
/*
 * class_rank.h - the place of a row's target among its classes: what top-k counts. ls_top_k_correct
 * and the kernels of OP_CLASS_SUMS use it.
 */
#ifndef LS_TENSOR_FORMULAS_CLASS_RANK_H
#define LS_TENSOR_FORMULAS_CLASS_RANK_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline double class_score(const void *logits, size_t i, bool wide)
{
    return wide ? ((const double *)logits)[i] : (double)((const float *)logits)[i];
}

/* Whether score b ranks before a; NaN ranks before all numbers. */
static inline bool class_is_larger(double b, double a)
{
    return b > a || (isnan(b) && !isnan(a));
}

/* The number of classes that rank before the target in the row that begins at element `first` of
 * float64 (`wide`) or float32 logits. Of equal scores the lower class ranks first. */
static inline int64_t class_rank(const void *logits, size_t first, int64_t n_classes,
                                 int64_t target, bool wide)
{
    const double wanted = class_score(logits, first + (size_t)target, wide);
    int64_t before = 0;

    for (int64_t c = 0; c < n_classes; c++) {
        const double other = class_score(logits, first + (size_t)c, wide);

        before += c < target ? !class_is_larger(wanted, other) : class_is_larger(other, wanted);
    }
    return before;
}

#endif
