/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_pool.c - maximum and average pooling, for all parameters and types. The indices of maxima are
 * positions in their windows, in NHWC: one byte each where a window has at most 256 positions.
 */
#include "tensor/devices/cuda/ops/own.h"

/* `image` has the shape of x, `pooled` that of y. */
static pool_args sizes_of(const op_attrs *attrs, const ls_tensor *image, const ls_tensor *pooled)
{
    pool_args a = {.adaptive = attrs->adaptive,
                   .n = (size_t)image->dims[0],
                   .h = (int)image->dims[2],
                   .w = (int)image->dims[3],
                   .out_h = (int)pooled->dims[2],
                   .out_w = (int)pooled->dims[3],
                   .channels = (int)image->dims[1]};

    for (int i = 0; i < 2; i++) {
        a.kernel[i] = attrs->kernel[i];
        a.stride[i] = attrs->stride[i];
        a.padding[i] = attrs->padding[i];
    }
    a.small_indices = a.kernel[0] * (int64_t)a.kernel[1] <= 256;
    return a;
}

/* `result` is the tensor that has an element for each thread's work. */
static void launch(own_operands *o, own_kernels kernels, const ls_tensor *result, pool_args *a)
{
    const int pack = (int)(PACK_BYTES / own_element_bytes(result->dtype));
    size_t units = result->count;

    a->wide = a->channels % pack == 0 && own_is_aligned(a->x) && own_is_aligned(a->y);
    units /= a->wide ? (size_t)pack : 1;
    own_launch(o, kernels, own_type(result->dtype), own_blocks(o->self, units), OWN_THREADS, a);
}

void cuda_max_pool2d(own_operands *o, const op_call *call)
{
    pool_args a = sizes_of(&call->attrs, call->in[0], call->out[0]);
    ls_tensor *indices = call->out[1];

    a.x = own_operand(o, call->in[0], true);
    a.y = own_output(o, call->out[0], true);
    if (indices != NULL && a.small_indices)
        indices->dtype = LS_U8;
    a.indices = own_output(o, indices, true);
    launch(o, OWN_KERNELS(max_pool), call->out[0], &a);
}

void cuda_max_pool2d_backward(own_operands *o, const op_call *call)
{
    pool_args a = sizes_of(&call->attrs, call->out[0], call->in[0]);

    // That of a flattened result is row-major.
    a.x = own_data(call->in[0]);
    a.is_plain = !own_is_nhwc(call->in[0]);
    a.indices = own_operand(o, call->in[1], true);
    a.y = own_output(o, call->out[0], true);
    launch(o, OWN_KERNELS(max_pool_backward), call->out[0], &a);
}

void cuda_avg_pool2d(own_operands *o, const op_call *call)
{
    pool_args a = sizes_of(&call->attrs, call->in[0], call->out[0]);

    a.x = own_operand(o, call->in[0], true);
    a.y = own_output(o, call->out[0], true);
    launch(o, OWN_KERNELS(avg_pool), call->out[0], &a);
}

void cuda_avg_pool2d_backward(own_operands *o, const op_call *call)
{
    pool_args a = sizes_of(&call->attrs, call->out[0], call->in[0]);

    a.x = own_operand(o, call->in[0], true);
    a.y = own_output(o, call->out[0], true);
    launch(o, OWN_KERNELS(avg_pool_backward), call->out[0], &a);
}
