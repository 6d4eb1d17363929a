/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_move.c - the operators that move elements: copy, permute, concat, slice, expand. Each is a
 * copy between two views with steps, which one of the kernels of move.cu does, or the runtime when
 * both are one run of bytes.
 */
#include "tensor/devices/cuda/ops/own.h"

#include <string.h>

own_view own_view_of(const ls_tensor *t)
{
    const size_t nhwc_order[4] = {1, 3, 2, 0}; // from the innermost
    const bool is_padded = own_is_padded(t);
    own_view v = {
        .data = own_data(t), .element_bytes = own_element_bytes(t->dtype), .n_dims = t->n_dims};
    size_t step = 1;

    for (int d = 0; d < t->n_dims; d++)
        v.dims[d] = (size_t)t->dims[d];
    for (int i = 0; i < t->n_dims; i++) {
        const bool is_last = own_is_nhwc(t) || is_padded;
        const size_t d = is_last ? nhwc_order[i] : (size_t)(t->n_dims - 1 - i);

        v.step[d] = step;
        step *= is_padded && i == 0 ? CUDA_CHANNELS_PADDED : v.dims[d];
    }
    return v;
}

/* --- copies between views --- */

/* The dimensions of a copy in the order of the destination's steps, neighbours merged where both
 * sides allow it. */
typedef struct copy_plan {
    int n_dims;
    size_t count;
    size_t dims[MOVE_DIMS];
    size_t src_step[MOVE_DIMS];
    size_t dst_step[MOVE_DIMS];
} copy_plan;

/* Inserts a dimension behind those with larger steps in the destination. */
static void insert_dim(copy_plan *p, size_t size, size_t src_step, size_t dst_step)
{
    int at = p->n_dims++;

    for (; at > 0 && p->dst_step[at - 1] < dst_step; at--) {
        p->dims[at] = p->dims[at - 1];
        p->src_step[at] = p->src_step[at - 1];
        p->dst_step[at] = p->dst_step[at - 1];
    }
    p->dims[at] = size;
    p->src_step[at] = src_step;
    p->dst_step[at] = dst_step;
}

static void merge_dims(copy_plan *p)
{
    int n = 0;

    for (int d = 1; d < p->n_dims; d++) {
        const bool fits = p->src_step[n] == p->src_step[d] * p->dims[d] &&
                          p->dst_step[n] == p->dst_step[d] * p->dims[d];

        n += fits ? 0 : 1;
        p->dims[n] = fits ? p->dims[n] * p->dims[d] : p->dims[d];
        p->src_step[n] = p->src_step[d];
        p->dst_step[n] = p->dst_step[d];
    }
    p->n_dims = n + 1;
}

static copy_plan plan_of(const own_view *dst, const own_view *src)
{
    copy_plan p = {.count = 1};

    for (int d = 0; d < dst->n_dims; d++) {
        p.count *= dst->dims[d];
        if (dst->dims[d] != 1)
            insert_dim(&p, dst->dims[d], src->step[d], dst->step[d]);
    }
    if (p.n_dims == 0)
        insert_dim(&p, 1, 1, 1);
    merge_dims(&p);
    return p;
}

/* Widens the unit of the copy to the largest power of two, up to 16 bytes, that all steps and
 * addresses are multiples of; its bytes. */
static size_t widen_units(copy_plan *p, uintptr_t addresses, size_t bytes)
{
    const int inner = p->n_dims - 1;

    while (bytes < PACK_BYTES && p->src_step[inner] == 1 && p->dst_step[inner] == 1 &&
           p->dims[inner] % 2 == 0 && addresses % (2 * bytes) == 0) {
        for (int d = 0; d < inner; d++) {
            if (p->src_step[d] % 2 != 0 || p->dst_step[d] % 2 != 0)
                return bytes;
        }
        for (int d = 0; d < inner; d++) {
            p->src_step[d] /= 2;
            p->dst_step[d] /= 2;
        }
        p->dims[inner] /= 2;
        p->count /= 2;
        bytes *= 2;
    }
    return bytes;
}

static const gpu_kernel *kernel_for(size_t bytes, const gpu_kernel *const kernels[5])
{
    int i = 0;

    while ((size_t)1 << i < bytes)
        i++;
    return kernels[i];
}

static ls_status move_units(device_state *self, const own_view *dst, const own_view *src,
                            copy_plan *p)
{
    static const gpu_kernel *const kernels[5] = {&move_1, &move_2, &move_4, &move_8, &move_16};
    const size_t bytes =
        widen_units(p, (uintptr_t)dst->data | (uintptr_t)src->data, dst->element_bytes);
    move_args a = {.src = src->data, .dst = dst->data, .count = p->count, .n_dims = p->n_dims};

    for (int d = 0; d < p->n_dims; d++) {
        a.dims[d] = p->dims[d];
        a.src_step[d] = p->src_step[d];
        a.dst_step[d] = p->dst_step[d];
    }
    return cu_launch(self, kernel_for(bytes, kernels), own_blocks(self, p->count), OWN_THREADS, &a);
}

/* Whether each of the matrices in the last two dimensions is transposed. */
static bool is_transpose(const copy_plan *p)
{
    const int rows = p->n_dims - 1;
    const int columns = p->n_dims - 2;

    return (p->n_dims == 2 || p->n_dims == 3) && p->dst_step[rows] == 1 &&
           p->src_step[columns] == 1 && p->src_step[rows] == p->dims[columns] &&
           p->dst_step[columns] == p->dims[rows];
}

static ls_status transpose(device_state *self, const own_view *dst, const own_view *src,
                           const copy_plan *p)
{
    static const gpu_kernel *const kernels[5] = {&transpose_1, &transpose_2, &transpose_4,
                                                 &transpose_8, NULL};
    const int rows = p->n_dims - 1;
    const int columns = p->n_dims - 2;
    const bool has_batch = p->n_dims == 3;
    const transpose_args a = {.src = src->data,
                              .dst = dst->data,
                              .n = has_batch ? p->dims[0] : 1,
                              .rows = p->dims[rows],
                              .columns = p->dims[columns],
                              .src_step = has_batch ? p->src_step[0] : 0,
                              .dst_step = has_batch ? p->dst_step[0] : 0};
    const size_t squares = a.n * ((a.rows + TRANSPOSE_SIDE - 1) / TRANSPOSE_SIDE) *
                           ((a.columns + TRANSPOSE_SIDE - 1) / TRANSPOSE_SIDE);

    return cu_launch(self, kernel_for(dst->element_bytes, kernels),
                     own_blocks(self, squares * OWN_THREADS), OWN_THREADS, &a);
}

void own_move(own_operands *o, const own_view *dst, const own_view *src)
{
    copy_plan p = plan_of(dst, src);

    if (p.count == 0 || o->status != LS_OK)
        return;
    if (p.n_dims == 1 && p.src_step[0] == 1 && p.dst_step[0] == 1)
        o->status = cu_copy(o->self, dst->data, src->data, p.count * dst->element_bytes);
    else if (is_transpose(&p))
        o->status = transpose(o->self, dst, src, &p);
    else
        o->status = move_units(o->self, dst, src, &p);
}

/* --- operators --- */

void cuda_copy(own_operands *o, const op_call *call)
{
    const own_view src = own_view_of(call->in[0]);
    const own_view dst = own_view_of(call->out[0]);

    own_move(o, &dst, &src);
}

void cuda_permute(own_operands *o, const op_call *call)
{
    const own_view x = own_view_of(call->in[0]);
    own_view src = x;
    own_view dst;

    if (own_output(o, call->out[0], false) == NULL)
        return;
    dst = own_view_of(call->out[0]);
    for (int d = 0; d < dst.n_dims; d++) {
        src.dims[d] = x.dims[call->attrs.order[d]];
        src.step[d] = x.step[call->attrs.order[d]];
    }
    own_move(o, &dst, &src);
}

void cuda_expand(own_operands *o, const op_call *call)
{
    const own_view x = own_view_of(call->in[0]);
    own_view src;
    own_view dst;

    if (own_output(o, call->out[0], false) == NULL)
        return;
    dst = own_view_of(call->out[0]);
    src = dst;
    src.data = x.data;
    for (int d = 0; d < dst.n_dims; d++) {
        const int own = d - (dst.n_dims - x.n_dims);

        src.step[d] = own < 0 || x.dims[own] == 1 ? 0 : x.step[own];
    }
    own_move(o, &dst, &src);
}

/* The positions of `whole` along an axis from `begin` on, as many as `part` has. */
static own_view part_of(const ls_tensor *whole, const ls_tensor *part, int axis, int64_t begin)
{
    own_view v = own_view_of(whole);

    v.data = (char *)v.data + (size_t)begin * v.step[axis] * v.element_bytes;
    v.dims[axis] = (size_t)part->dims[axis];
    return v;
}

void cuda_concat(own_operands *o, const op_call *call)
{
    const int axis = call->attrs.axis;
    int64_t begin = 0;

    if (own_output(o, call->out[0], own_is_nhwc(call->in[0])) == NULL)
        return;
    for (int i = 0; i < call->n_in; i++) {
        const own_view src = own_view_of(call->in[i]);
        const own_view dst = part_of(call->out[0], call->in[i], axis, begin);

        own_move(o, &dst, &src);
        begin += call->in[i]->dims[axis];
    }
}

void cuda_slice(own_operands *o, const op_call *call)
{
    own_view src;
    own_view dst;

    if (own_output(o, call->out[0], own_is_nhwc(call->in[0])) == NULL)
        return;
    src = part_of(call->in[0], call->out[0], call->attrs.axis, call->attrs.begin);
    dst = own_view_of(call->out[0]);
    own_move(o, &dst, &src);
}

void cuda_slice_backward(own_operands *o, const op_call *call)
{
    ls_tensor *dx = call->out[0];
    void *data = own_output(o, dx, own_is_nhwc(call->in[0]));
    own_view src;
    own_view dst;

    if (data == NULL)
        return;
    if (call->attrs.value == 0)
        own_zero(o, data, dx->count * own_element_bytes(dx->dtype));
    else
        cuda_fill(
            o, &(op_call){
                   .op = OP_FILL, .attrs = {.value = call->attrs.value}, .n_out = 1, .out = {dx}});
    src = own_view_of(call->in[0]);
    dst = part_of(dx, call->in[0], call->attrs.axis, call->attrs.begin);
    own_move(o, &dst, &src);
}
