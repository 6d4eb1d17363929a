/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broadcast.h - row-major tensors that are repeated along dimensions of one shape, as in PyTorch:
 * those that they lack in front or where their size is 1. The same on every device.
 *
 * tensor/formulas/: what is the same on every device: formulas (*.inc) and shapes. Used by the
 * devices, and class_rank.h by autograd.
 */
#ifndef LS_TENSOR_FORMULAS_BROADCAST_H
#define LS_TENSOR_FORMULAS_BROADCAST_H

#include "tensor/device.h"

#define BROADCAST_TENSORS 4

/* The dimensions of the shape over 1, and the steps of the tensors along them: 0 where a tensor is
 * repeated. Neighbours along which all tensors go on in step are one. */
typedef struct broadcast_dims {
    int n;
    size_t size[LS_MAX_DIMS];
    size_t step[BROADCAST_TENSORS][LS_MAX_DIMS];
} broadcast_dims;

/* Adds a dimension inside of the others. */
static inline void broadcast_append(broadcast_dims *b, size_t size, const size_t *step)
{
    const int last = b->n - 1;
    bool joins = last >= 0;

    if (size == 1)
        return;
    for (int k = 0; k < BROADCAST_TENSORS && joins; k++)
        joins = b->step[k][last] == size * step[k];
    b->size[joins ? last : b->n] = joins ? b->size[last] * size : size;
    for (int k = 0; k < BROADCAST_TENSORS; k++)
        b->step[k][joins ? last : b->n] = step[k];
    b->n += joins ? 0 : 1;
}

/* The step of `t` along dimension `d` of a shape of n_dims. */
static inline size_t broadcast_step(const ls_tensor *t, int n_dims, int d)
{
    const int own = d - (n_dims - t->n_dims);
    size_t step = 1;

    if (own < 0 || t->dims[own] == 1)
        return 0;
    for (int i = own + 1; i < t->n_dims; i++)
        step *= (size_t)t->dims[i];
    return step;
}

/* n tensors over the shape of another one; NULL is repeated everywhere. */
static inline broadcast_dims broadcast_over(const ls_tensor *shape, const ls_tensor *const *t,
                                            int n)
{
    broadcast_dims b = {.n = 0};

    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there is a shape
    for (int d = 0; d < shape->n_dims; d++) {
        size_t step[BROADCAST_TENSORS] = {0};

        for (int k = 0; k < n; k++)
            step[k] = t[k] == NULL ? 0 : broadcast_step(t[k], shape->n_dims, d);
        broadcast_append(&b, (size_t)shape->dims[d], step);
    }
    return b;
}

/* Positions of the tensors while the index goes over dimensions in row order. */
typedef struct broadcast_walk {
    size_t index[LS_MAX_DIMS];
    size_t at[BROADCAST_TENSORS];
} broadcast_walk;

/* At index `at`, counted in row order, of the first n_dims dimensions. */
static inline broadcast_walk broadcast_walk_from(const broadcast_dims *b, int n_dims, size_t at)
{
    broadcast_walk w = {{0}, {0}};

    for (int d = n_dims - 1; d >= 0; d--) {
        w.index[d] = at % b->size[d];
        at /= b->size[d];
        for (int k = 0; k < BROADCAST_TENSORS; k++)
            w.at[k] += w.index[d] * b->step[k][d];
    }
    return w;
}

/* To the next index of the first n_dims dimensions. */
static inline void broadcast_next(const broadcast_dims *b, int n_dims, broadcast_walk *w)
{
    for (int d = n_dims - 1; d >= 0; d--) {
        const bool wraps = ++w->index[d] == b->size[d];

        for (int k = 0; k < BROADCAST_TENSORS; k++)
            w->at[k] += b->step[k][d];
        if (!wraps)
            return;
        for (int k = 0; k < BROADCAST_TENSORS; k++)
            w->at[k] -= b->step[k][d] * b->size[d];
        w->index[d] = 0;
    }
}

/* Equal dimensions. */
static inline bool broadcast_is_whole(const ls_tensor *t, const ls_tensor *shape)
{
    return tensor_same_shape(t, shape);
}

#endif
