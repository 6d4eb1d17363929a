/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_operands.c - tensors as the device's own kernels see them; all own_*.c call it. Temporary
 * memory comes from the pool of tensors, so that a step allocates nothing after warm-up.
 */
#include "tensor/devices/cuda/ops/own.h"

kernel_type own_type(ls_dtype type)
{
    switch (type) {
    case LS_F64:
        return KERNEL_F64;
    case LS_BF16:
        return KERNEL_BF16;
    case LS_F16:
        return KERNEL_F16;
    default:
        return KERNEL_F32;
    }
}

size_t own_element_bytes(ls_dtype type)
{
    static const size_t bytes[LS_DTYPE_COUNT] = {
        [LS_I8] = 1,  [LS_U8] = 1,   [LS_I32] = 4, [LS_I64] = 8,
        [LS_F16] = 2, [LS_BF16] = 2, [LS_F32] = 4, [LS_F64] = 8,
    };

    return bytes[type];
}

void *own_data(const ls_tensor *t)
{
    return t == NULL ? NULL : (char *)t->storage->data + t->offset;
}

bool own_is_nhwc(const ls_tensor *t)
{
    return t->storage->layout == &cuda_nhwc;
}

bool own_is_padded(const ls_tensor *t)
{
    return t->storage->layout == &cuda_nhwc8;
}

bool own_has_whole_packs(const ls_tensor *t, const void *p)
{
    return p == own_data(t) && own_is_aligned(p) && own_is_aligned(t->storage->data) &&
           t->storage->bytes % PACK_BYTES == 0;
}

/* Whether (N,H,W,C) and (N,C,H,W) are the same in memory. */
static bool is_both(const ls_tensor *t)
{
    return t->n_dims != 4 || t->dims[1] == 1 || t->dims[2] * t->dims[3] == 1;
}

/* As (N,H,W,C), if it has four dimensions; else row-major. */
static ls_status place(ls_tensor *t, bool nhwc)
{
    return cu_host->tensor_place(t, nhwc && !is_both(t) ? &cuda_nhwc : NULL,
                                 t->count * own_element_bytes(t->dtype));
}

unsigned own_blocks(const device_state *self, size_t n)
{
    const size_t blocks = (n + OWN_THREADS - 1) / OWN_THREADS;
    const size_t most = 8 * (size_t)self->card.n_processors; // all threads that run at once

    return (unsigned)(blocks < most ? blocks : most);
}

own_operands own_begin(device_state *self)
{
    return (own_operands){.self = self, .status = LS_OK};
}

ls_status own_end(own_operands *o)
{
    for (int i = 0; i < o->n; i++)
        cu_host->tensor_destroy(o->temporary[i]);
    o->n = 0;
    return o->status;
}

/* A temporary tensor without memory; NULL after a failure. */
static ls_tensor *temporary(own_operands *o, ls_dtype type, int n_dims, const int64_t *dims)
{
    ls_tensor *t = NULL;

    if (o->status == LS_OK && o->n == OWN_OPERANDS)
        o->status = cu_fail(LS_EINTERNAL, "a kernel uses more than %d temporary tensors", o->n);
    if (o->status == LS_OK)
        o->status = cu_host->tensor_shape(o->self->device, type, n_dims, dims, &t);
    if (o->status != LS_OK)
        return NULL;
    o->temporary[o->n++] = t;
    return t;
}

void *own_memory(own_operands *o, ls_dtype type, size_t count)
{
    const int64_t dims = (int64_t)count;

    return own_output(o, temporary(o, type, 1, &dims), false);
}

void *own_output(own_operands *o, ls_tensor *t, bool nhwc)
{
    if (t == NULL || o->status != LS_OK)
        return NULL;
    o->status = place(t, nhwc);
    return o->status == LS_OK ? own_data(t) : NULL;
}

void *own_operand(own_operands *o, const ls_tensor *t, bool nhwc)
{
    own_view src;
    own_view dst;
    ls_tensor *copy;

    if (t == NULL || o->status != LS_OK)
        return NULL;
    if (own_is_nhwc(t) == nhwc || is_both(t))
        return own_data(t);
    copy = temporary(o, t->dtype, t->n_dims, t->dims);
    if (own_output(o, copy, nhwc) == NULL)
        return NULL;
    src = own_view_of(t);
    dst = own_view_of(copy);
    own_move(o, &dst, &src);
    return o->status == LS_OK ? dst.data : NULL;
}

void *own_output_over_grad(own_operands *o, const op_call *call, ls_tensor *t, bool nhwc)
{
    const ls_tensor *grad = call->in[1];

    if (o->status != LS_OK || !call->may_reuse_grad || grad->dtype != t->dtype ||
        grad->count != t->count || own_is_nhwc(grad) != (nhwc && !is_both(grad)))
        return own_output(o, t, nhwc);
    cu_host->tensor_share(t, grad);
    return own_data(grad);
}

void own_launch(own_operands *o, own_kernels kernels, kernel_type type, unsigned n_blocks,
                unsigned n_threads, const void *args)
{
    if (o->status == LS_OK)
        o->status = cu_launch(o->self, kernels[type], n_blocks, n_threads, args);
}

void own_zero(own_operands *o, void *p, size_t bytes)
{
    if (o->status == LS_OK && bytes > 0)
        o->status = cu_fill(o->self, p, 0, bytes);
}
