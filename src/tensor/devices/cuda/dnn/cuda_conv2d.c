/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_conv2d.c - convolutions and their gradients by plans of cuDNN, on activations in NHWC and
 * weights in packed form; some gradients of 1x1 kernels are products by cuBLASLt.
 */
#include "tensor/devices/cuda/dnn/conv_graph.h"
#include "tensor/devices/cuda/dnn/cuda_math.h"

static convolution convolution_of_tensors(const ls_tensor *x, const ls_tensor *w,
                                          const ls_tensor *y, const op_attrs *attrs)
{
    return convolution_of(y->dtype, x->dims, w->dims, y->dims, attrs);
}

/* Nothing is computed without images. */
static bool is_empty(const convolution *c)
{
    return c->x[0] == 0;
}

static pack_form weight_form(const convolution *c)
{
    return (pack_form){.type = c->type,
                       .n = c->w[0],
                       .c = convolution_is_padded(c) ? c->channels : c->w[1],
                       .s = c->w[2] * c->w[3],
                       .channels = c->w[1]};
}

/* The elements of an activation in NHWC with `channels`. */
static void *image_operand(own_operands *o, const ls_tensor *t, int64_t channels)
{
    const pack_form form = packed_image_form(t, t->dtype, channels);

    if (channels != form.c || !own_is_aligned(own_data(t)))
        return packed_copy(o, own_data(t), t->dtype, &form);
    return own_is_padded(t) ? own_data(t) : own_operand(o, t, true);
}

static void run(own_operands *o, const dnn_graph *g, void *const *data)
{
    dnn_cache *cache;

    if (o->status == LS_OK)
        o->status = cuda_math_dnn(o->self, &cache);
    if (o->status == LS_OK)
        o->status =
            cuda_accel_check_library(o->self->accel, dnn_cache_run(cache, g, data), "cuDNN");
}

void cuda_conv2d(own_operands *o, const op_call *call)
{
    const convolution c =
        convolution_of_tensors(call->in[0], call->in[1], call->out[0], &call->attrs);
    const pack_form w = weight_form(&c);
    const pack_form b = {.type = c.type, .n = c.w[0], .c = 1, .s = 1, .channels = 1};
    ls_tensor *bias = call->in[2];
    const dnn_graph g = convolution_graph(&c, DNN_CONV, bias != NULL);
    void *data[DNN_MAX_TENSORS] = {[CONV_Y] = own_output(o, call->out[0], true)};

    if (is_empty(&c))
        return;
    data[CONV_X] = image_operand(o, call->in[0], c.x[1]);
    data[CONV_W] = packed_parameter(o, call->in[1], &w);
    if (bias != NULL)
        data[CONV_BIAS] = packed_parameter(o, bias, &b);
    run(o, &g, data);
}

void cuda_conv2d_backward_data(own_operands *o, const op_call *call)
{
    ls_tensor *dx = call->out[0];
    const convolution c = convolution_of_tensors(dx, call->in[1], call->in[0], &call->attrs);
    const pack_form w = weight_form(&c);
    const dnn_graph g = convolution_graph(&c, DNN_CONV_DATA, false);
    void *out = own_output(o, dx, true);
    void *data[DNN_MAX_TENSORS] = {NULL};
    pack_form form;

    if (out == NULL || is_empty(&c))
        return;
    form = packed_image_form(dx, c.type, c.x[1]);
    data[CONV_X] = packed_begin(o, out, c.type, &form, false);
    data[CONV_W] = packed_parameter(o, call->in[1], &w);
    data[CONV_Y] = image_operand(o, call->in[0], c.y[1]);
    run(o, &g, data);
    packed_finish(o, out, c.type, &form, false, data[CONV_X], NULL);
}

/* Whether the gradient of the weights is computed as a product of matrices, whose result is float32
 * in the order of the weights, so that it is not rounded to 16 bits, nor copied. */
static bool is_product(const convolution *c)
{
    const op_attrs *a = &c->attrs;

    return (c->type == LS_BF16 || c->type == LS_F16) && !convolution_is_padded(c) &&
           a->groups == 1 && c->w[2] * c->w[3] == 1 && a->stride[0] * a->stride[1] == 1 &&
           a->padding[0] + a->padding[1] == 0;
}

void cuda_conv2d_backward_weights(own_operands *o, const op_call *call)
{
    ls_tensor *dw = call->out[0];
    const convolution c = convolution_of_tensors(call->in[0], dw, call->in[1], &call->attrs);
    const pack_form form = weight_form(&c);
    const dnn_graph g = convolution_graph(&c, DNN_CONV_WEIGHTS, false);
    void *data[DNN_MAX_TENSORS] = {NULL};
    column_args sums;

    if (is_empty(&c)) {
        cuda_no_gradients(o, call);
        return;
    }
    data[CONV_X] = image_operand(o, call->in[0], c.x[1]);
    data[CONV_Y] = image_operand(o, call->in[1], c.y[1]);
    if (is_product(&c)) {
        cuda_weight_gradients(o, call, data[CONV_X], data[CONV_Y], c.y[0] * c.y[2] * c.y[3]);
        return;
    }
    data[CONV_W] = packed_begin(o, own_data(dw), dw->dtype, &form, call->accumulate);
    run(o, &g, data);
    if (call->out[1] != NULL)
        sums = own_bias_sums(o, call, data[CONV_Y], own_type(c.type),
                             (size_t)(c.y[0] * c.y[2] * c.y[3]), (size_t)c.y[1]);
    packed_finish(o, own_data(dw), dw->dtype, &form, call->accumulate, data[CONV_W],
                  call->out[1] == NULL ? NULL : &sums);
}
