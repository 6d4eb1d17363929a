/* SPDX-License-Identifier: Apache-2.0 */
/* ref_shape.c - operators that move elements: permute, concat, slice. */
#include "tensor/devices/cpu_ref/ref.h"
#include "tensor/formulas/axis.h"

#include <string.h>

/* Visits the elements of one tensor in row order, with their positions in another tensor. */
typedef struct walk {
    int n_dims;
    int64_t dims[LS_MAX_DIMS];
    size_t step[LS_MAX_DIMS]; /* in the other tensor, from one position to the next */
    int64_t index[LS_MAX_DIMS];
    size_t at; /* in the other tensor */
} walk;

REF_INLINE void walk_on(walk *w)
{
    for (int d = w->n_dims - 1; d >= 0; d--) {
        w->at += w->step[d];
        if (++w->index[d] < w->dims[d])
            return;
        w->at -= w->step[d] * (size_t)w->dims[d];
        w->index[d] = 0;
    }
}

/* Along `over`, with all steps 0. */
static walk walk_over(const ls_tensor *over)
{
    walk w = {.n_dims = over->n_dims};

    memcpy(w.dims, over->dims, sizeof(w.dims));
    return w;
}

/* --- permute --- */

ls_status ref_permute(const op_call *call)
{
    const ls_tensor *x = call->in[0];
    ls_tensor *y = call->out[0];
    const bool wide = ref_wide(x);
    walk w = walk_over(y);

    for (int d = 0; d < y->n_dims; d++)
        w.step[d] = axis_split(x, call->attrs.order[d]).inner;
    for (size_t i = 0; i < ls_tensor_count(y); i++, walk_on(&w))
        ref_put(tensor_elements(y), i, ref_get(tensor_elements(x), w.at, wide), wide);
    return LS_OK;
}

/* --- concat and slice: copies of contiguous runs --- */

/* Copies between `part` and the positions of `whole` from `begin` on. */
static void copy_part(const op_call *call, const ls_tensor *part, const ls_tensor *whole,
                      int64_t begin, bool into_whole)
{
    const axis_parts p = axis_split(part, call->attrs.axis);
    const axis_parts all = axis_split(whole, call->attrs.axis);
    const size_t width = ref_wide(part) ? sizeof(double) : sizeof(float);
    const size_t run = p.n * p.inner * width;
    const size_t step = all.n * all.inner * width;
    char *small = tensor_elements(part);
    char *large = tensor_elements(whole);

    if (run == 0)
        return;
    large += (size_t)begin * p.inner * width;
    for (size_t i = 0; i < p.outer; i++, small += run, large += step)
        memcpy(into_whole ? large : small, into_whole ? small : large, run);
}

ls_status ref_concat(const op_call *call)
{
    int64_t begin = 0;

    for (int i = 0; i < call->n_in; i++) {
        copy_part(call, call->in[i], call->out[0], begin, true);
        begin += call->in[i]->dims[call->attrs.axis];
    }
    return LS_OK;
}

ls_status ref_slice(const op_call *call)
{
    copy_part(call, call->out[0], call->in[0], call->attrs.begin, false);
    return LS_OK;
}

ls_status ref_slice_backward(const op_call *call)
{
    ls_tensor *dx = call->out[0];

    for (size_t i = 0; i < ls_tensor_count(dx); i++)
        ref_put(tensor_elements(dx), i, call->attrs.value, ref_wide(dx));
    copy_part(call, call->in[0], dx, call->attrs.begin, true);
    return LS_OK;
}
