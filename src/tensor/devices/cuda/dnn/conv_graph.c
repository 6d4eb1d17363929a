/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv_graph.c - describes convolutions as graphs of cuDNN: activations and weights with the
 * channels last, sums in float32 (float64 for float64). cuda_conv2d.c calls it.
 */
#include "tensor/devices/cuda/dnn/conv_graph.h"

#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <string.h>

convolution convolution_of(ls_dtype type, const int64_t *x, const int64_t *w, const int64_t *y,
                           const op_attrs *attrs)
{
    convolution c = {.type = type, .channels = x[1], .attrs = *attrs};

    memcpy(c.x, x, sizeof(c.x));
    memcpy(c.w, w, sizeof(c.w));
    memcpy(c.y, y, sizeof(c.y));
    if (attrs->groups == 1 && cuda_pads_channels(type, x[1]))
        c.x[1] = c.w[1] = CUDA_CHANNELS_PADDED;
    return c;
}

/* The result of the convolution goes through a virtual tensor to the sum, which is y. */
static void add_bias(dnn_graph *g, const convolution *c)
{
    const int64_t bias[4] = {1, c->w[0], 1, 1};
    const ls_dtype sum_type = c->type == LS_F64 ? LS_F64 : LS_F32;
    int sum;

    (void)dnn_graph_tensor(g, c->type, bias);
    sum = dnn_graph_tensor(g, sum_type, c->y);
    g->tensors[sum].is_virtual = 1;
    g->nodes[0].tensors[2] = sum;
    (void)dnn_graph_op(g, DNN_ADD, (const int[]){sum, CONV_BIAS, CONV_Y});
}

dnn_graph convolution_graph(const convolution *c, dnn_op op, bool has_bias)
{
    dnn_graph g;
    dnn_node *node;

    dnn_graph_begin(&g);
    (void)dnn_graph_tensor(&g, c->type, c->x);
    (void)dnn_graph_tensor(&g, c->type, c->w);
    (void)dnn_graph_tensor(&g, c->type, c->y);
    node = dnn_graph_op(&g, op, (const int[]){CONV_X, CONV_W, CONV_Y});
    for (int i = 0; i < 2; i++) {
        node->stride[i] = c->attrs.stride[i];
        node->padding[i] = c->attrs.padding[i];
        node->dilation[i] = c->attrs.dilation[i];
    }
    if (has_bias)
        add_bias(&g, c);
    return g;
}
