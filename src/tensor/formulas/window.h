/* SPDX-License-Identifier: Apache-2.0 */
/* window.h - which positions of an axis an averaging window covers; the same on every device. */
#ifndef LS_TENSOR_FORMULAS_WINDOW_H
#define LS_TENSOR_FORMULAS_WINDOW_H

#include "tensor/device.h"

/* The part of a window that lies in the plane, and how long it counts for. */
typedef struct window_span {
    int64_t begin;
    int64_t end;
    int64_t size;
} window_span;

static inline int64_t window_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Window `i` of `out` along an axis (0: height, 1: width) of `in` positions, as OP_AVG_POOL2D
 * defines it. */
static inline window_span window_average(const op_attrs *a, int axis, int64_t in, int64_t out,
                                         int64_t i)
{
    int64_t begin = i * in / out;
    int64_t end = ((i + 1) * in + out - 1) / out;

    if (!a->adaptive) {
        begin = i * a->stride[axis] - a->padding[axis];
        end = window_min(begin + a->kernel[axis], in + a->padding[axis]);
    }
    return (window_span){
        .begin = begin < 0 ? 0 : begin, .end = window_min(end, in), .size = end - begin};
}

#endif
