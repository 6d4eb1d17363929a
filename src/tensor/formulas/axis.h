/* SPDX-License-Identifier: Apache-2.0 */
/* axis.h - a row-major tensor seen from one of its dimensions; the same on every device. */
#ifndef LS_TENSOR_FORMULAS_AXIS_H
#define LS_TENSOR_FORMULAS_AXIS_H

#include "tensor/device.h"

/* outer blocks of n positions of `inner` neighbouring elements. */
typedef struct axis_parts {
    size_t outer;
    size_t n;
    size_t inner;
} axis_parts;

static inline axis_parts axis_split(const ls_tensor *t, int axis)
{
    axis_parts p = {.outer = 1, .n = (size_t)t->dims[axis], .inner = 1};

    for (int i = 0; i < axis; i++)
        p.outer *= (size_t)t->dims[i];
    for (int i = axis + 1; i < t->n_dims; i++)
        p.inner *= (size_t)t->dims[i];
    return p;
}

/* Its rows: outer rows of n elements. */
static inline axis_parts axis_rows(const ls_tensor *t)
{
    return axis_split(t, t->n_dims - 1);
}

#endif
