/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_elements.c - the operators that compute each element from those at the same position. Their
 * operands take the arrangement of the first one.
 */
#include "tensor/devices/cuda/ops/packed.h"

#include <math.h>

static void launch(own_operands *o, own_kernels kernels, ls_dtype type, pointwise_args *a)
{
    const size_t pack = own_pack(own_type(type));

    a->wide = own_is_aligned(a->x) && own_is_aligned(a->y) && own_is_aligned(a->more) &&
              own_is_aligned(a->out);
    own_launch(o, kernels, own_type(type), own_blocks(o->self, (a->count + pack - 1) / pack),
               OWN_THREADS, a);
}

/* in[0], in[1]? -> out[0] */
static void run_forward(own_operands *o, const op_call *call, own_kernels kernels, pointwise_args a)
{
    const bool nhwc = own_is_nhwc(call->in[0]);

    a.x = own_operand(o, call->in[0], nhwc);
    a.y = call->n_in > 1 ? own_operand(o, call->in[1], nhwc) : NULL;
    a.out = own_output(o, call->out[0], nhwc);
    a.count = call->in[0]->count;
    launch(o, kernels, call->in[0]->dtype, &a);
}

/* in[0], in[1]: a gradient, in[2]?: what is added to it -> out[0] */
static void run_backward(own_operands *o, const op_call *call, own_kernels kernels,
                         pointwise_args a)
{
    const bool nhwc = own_is_nhwc(call->in[1]);

    a.x = own_operand(o, call->in[0], nhwc);
    a.y = own_operand(o, call->in[1], nhwc);
    a.more = own_operand(o, call->in[2], nhwc);
    a.out = own_output_over_grad(o, call, call->out[0], nhwc);
    a.count = call->in[0]->count;
    launch(o, kernels, call->in[0]->dtype, &a);
}

void cuda_relu(own_operands *o, const op_call *call)
{
    run_forward(o, call, OWN_KERNELS(relu), (pointwise_args){.count = 0});
}

void cuda_relu_backward(own_operands *o, const op_call *call)
{
    run_backward(o, call, OWN_KERNELS(relu_backward), (pointwise_args){.count = 0});
}

void cuda_add_relu(own_operands *o, const op_call *call)
{
    run_forward(o, call, OWN_KERNELS(add_relu), (pointwise_args){.count = 0});
}

static pointwise_args activation_of(const op_call *call)
{
    return (pointwise_args){.activation = (int)call->attrs.activation,
                            .param = {call->attrs.param[0], call->attrs.param[1]}};
}

void cuda_activate(own_operands *o, const op_call *call)
{
    run_forward(o, call, OWN_KERNELS(activate), activation_of(call));
}

void cuda_activate_backward(own_operands *o, const op_call *call)
{
    run_backward(o, call, OWN_KERNELS(activate_backward), activation_of(call));
}

void cuda_fill(own_operands *o, const op_call *call)
{
    const ls_tensor *dst = call->out[0];
    pointwise_args a = {.out = own_data(dst), .count = dst->count, .value = call->attrs.value};

    launch(o, OWN_KERNELS(fill), dst->dtype, &a);
}

/* dst += src */
void cuda_add_into(own_operands *o, const op_call *call)
{
    ls_tensor *dst = call->out[0];
    pointwise_args a = {.x = own_data(dst),
                        .y = own_operand(o, call->in[0], own_is_nhwc(dst)),
                        .out = own_data(dst),
                        .count = dst->count,
                        .binary = BINARY_ADD};

    launch(o, OWN_KERNELS(binary), dst->dtype, &a);
}

void own_binary_alike(own_operands *o, const op_call *call)
{
    run_forward(o, call, OWN_KERNELS(binary),
                (pointwise_args){.value = call->attrs.value, .binary = (int)call->attrs.binary});
}

void cuda_normalize(own_operands *o, const op_call *call)
{
    const ls_tensor *values = call->in[0];
    const ls_tensor *pixels = call->in[1];
    normalize_args a = {.pixels = own_data(pixels),
                        .values = own_data(values),
                        .value_step = values->dims[0] == 1 ? 0 : 256,
                        .x = own_output(o, call->out[0], true),
                        .count = pixels->count,
                        .channels = (size_t)pixels->dims[1],
                        .area = (size_t)(pixels->dims[2] * pixels->dims[3])};

    a.wide = own_is_aligned(a.x);
    if (o->status == LS_OK)
        o->status =
            cu_launch(o->self, &normalize, own_blocks(o->self, (a.count + 3) / 4), OWN_THREADS, &a);
}

/* An element is dropped if u 2^-53 < drop for its 53 bits u: exactly if u < ceil(drop 2^53). */
void cuda_dropout(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const double drop = call->attrs.drop;
    const size_t n_rows = x->n_dims == 0 ? 1 : (size_t)x->dims[0];
    pointwise_args a = {.value = drop < 1 ? 1 / (1 - drop) : 0,
                        .random = call->attrs.random,
                        .drop_limit = (uint64_t)ceil(drop * 0x1p53),
                        .run = 1};

    if (call->attrs.drops_rows && n_rows > 0) {
        a.run = x->count / n_rows;
    } else if (own_is_nhwc(x)) {
        a.channels = (size_t)x->dims[1];
        a.area = (size_t)(x->dims[2] * x->dims[3]);
    }
    run_forward(o, call, OWN_KERNELS(dropout), a);
}

/* Images become 16-bit activations for a convolution, which reads padded channels. */
static bool is_for_convolution(const ls_tensor *x, const ls_tensor *y)
{
    return x->dtype == LS_F32 && x->n_dims == 4 && cuda_pads_channels(y->dtype, x->dims[1]);
}

static void cast_and_pad(own_operands *o, const ls_tensor *x, ls_tensor *y)
{
    const pack_form form = packed_image_form(x, y->dtype, CUDA_CHANNELS_PADDED);

    o->status = cu_host->tensor_place(
        y, &cuda_nhwc8, (size_t)(form.n * form.s * form.channels) * own_element_bytes(y->dtype));
    if (o->status == LS_OK)
        packed_write(o, own_data(x), x->dtype, &form, own_data(y));
}

void cuda_cast(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    cast_args a = {.src = own_data(x),
                   .count = x->count,
                   .wide = own_is_aligned(own_data(x)),
                   .to = own_type(call->out[0]->dtype)};

    if (is_for_convolution(x, call->out[0])) {
        cast_and_pad(o, x, call->out[0]);
        return;
    }
    a.dst = own_output(o, call->out[0], own_is_nhwc(x));
    own_launch(o, OWN_KERNELS(cast), own_type(x->dtype), own_blocks(o->self, (a.count + 3) / 4),
               OWN_THREADS, &a);
}

/* --- losses --- */

void cuda_mse(own_operands *o, const op_call *call)
{
    const bool nhwc = own_is_nhwc(call->in[0]);
    const kernel_type type = own_type(call->in[0]->dtype);
    column_args a = {.x = own_operand(o, call->in[0], nhwc),
                     .y = own_operand(o, call->in[1], nhwc),
                     .out = {own_output(o, call->out[0], false)},
                     .out_type = own_type(call->out[0]->dtype)};

    a.by = own_sum_split(o, 1, call->in[0]->count, 1, type, false);
    own_launch(o, OWN_KERNELS(mse), type, own_split_blocks(&a.by), OWN_THREADS, &a);
}

void cuda_mse_backward(own_operands *o, const op_call *call)
{
    const ls_tensor *dloss = call->in[2];
    const bool nhwc = own_is_nhwc(call->in[0]);
    pointwise_args a = {.x = own_operand(o, call->in[0], nhwc),
                        .y = own_operand(o, call->in[1], nhwc),
                        .count = call->in[0]->count,
                        .dloss = own_data(dloss),
                        .dloss_type = own_type(dloss->dtype)};

    for (int i = 0; i < 2; i++) {
        a.value = i == 0 ? 1 : -1;
        a.out = own_output(o, call->out[i], nhwc);
        if (a.out != NULL)
            launch(o, OWN_KERNELS(mse_backward), call->in[0]->dtype, &a);
    }
}

static void run_class_backward(own_operands *o, const op_call *call, own_kernels kernels)
{
    const ls_tensor *x = call->in[0];
    pointwise_args a = {.x = own_operand(o, x, false),
                        .out = own_output(o, call->out[0], false),
                        .count = x->count,
                        .value = call->attrs.label_smoothing,
                        .dloss = own_data(call->in[2]),
                        .dloss_type = own_type(call->in[2]->dtype),
                        .targets = own_operand(o, call->in[1], false),
                        .n_rows = (size_t)x->dims[0],
                        .n_classes = (size_t)x->dims[1]};

    launch(o, kernels, call->out[0]->dtype, &a);
}

void cuda_cross_entropy_backward(own_operands *o, const op_call *call)
{
    run_class_backward(o, call, OWN_KERNELS(cross_entropy_backward));
}

void cuda_nll_backward(own_operands *o, const op_call *call)
{
    run_class_backward(o, call, OWN_KERNELS(nll_backward));
}
