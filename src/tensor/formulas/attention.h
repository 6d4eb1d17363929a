/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.h - the sizes of OP_ATTENTION and OP_ATTENTION_BACKWARD, and where the mask of a score
 * is; the same on every device.
 */
#ifndef LS_TENSOR_FORMULAS_ATTENTION_H
#define LS_TENSOR_FORMULAS_ATTENTION_H

#include "tensor/formulas/broadcast.h"

/* `n` attentions of `queries` rows of q over `keys` rows of k (of `width` elements) and v (of
 * `values`). The mask has `mask_row` elements from one query to the next, `mask_column` from one
 * key to the next, each 0 where it is repeated. */
typedef struct attention_sizes {
    size_t n;
    size_t queries;
    size_t keys;
    size_t width;
    size_t values;
    int n_leading;
    size_t leading[LS_MAX_DIMS];
    size_t mask_leading[LS_MAX_DIMS]; /* steps of the mask */
    size_t mask_row;
    size_t mask_column;
} attention_sizes;

/* mask: NULL, or broadcast to the scores. */
static inline attention_sizes attention_sizes_of(const ls_tensor *q, const ls_tensor *k,
                                                 const ls_tensor *v, const ls_tensor *mask)
{
    const int last = q->n_dims - 1;
    attention_sizes s = {.n = 1,
                         .queries = (size_t)q->dims[last - 1],
                         .keys = (size_t)k->dims[last - 1],
                         .width = (size_t)q->dims[last],
                         .values = (size_t)v->dims[last],
                         .n_leading = last - 1};

    for (int d = 0; d < s.n_leading; d++) {
        s.leading[d] = (size_t)q->dims[d];
        s.n *= s.leading[d];
        s.mask_leading[d] = mask == NULL ? 0 : broadcast_step(mask, last + 1, d);
    }
    s.mask_row = mask == NULL ? 0 : broadcast_step(mask, last + 1, last - 1);
    s.mask_column = mask == NULL ? 0 : broadcast_step(mask, last + 1, last);
    return s;
}

/* The position of the mask of attention `i`, query 0 and key 0. */
static inline size_t attention_mask_first(const attention_sizes *s, size_t i)
{
    size_t at = 0;

    for (int d = s->n_leading - 1; d >= 0; d--) {
        // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): each is at least 1
        at += i % s->leading[d] * s->mask_leading[d];
        i /= s->leading[d];
    }
    return at;
}

#endif
