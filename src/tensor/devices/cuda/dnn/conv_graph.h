/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv_graph.h - the graphs of convolutions and their gradients for cuDNN. Pure: cuda_conv2d.c and
 * the test that plans all graphs without a GPU use it.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_DNN_CONV_GRAPH_H
#define LS_TENSOR_DEVICES_CUDA_DNN_CONV_GRAPH_H

#include "tensor/device.h"

#include "tensor/devices/cuda/dnn/dnn_graph.h"

/* A convolution as cuDNN sees it: the dimensions of the forward's tensors, channels padded. */
typedef struct convolution {
    ls_dtype type;    /* of activations and, packed, of weights and bias */
    int64_t channels; /* of x and w, not padded */
    int64_t x[4];
    int64_t w[4];
    int64_t y[4];
    op_attrs attrs;
} convolution;

/*
 * Images of 2 to 7 channels in 16 bits are padded to 8: engines that use tensor cores would
 * otherwise copy them into their workspace (200 MB for ResNet's first layer).
 */
convolution convolution_of(ls_dtype type, const int64_t *x, const int64_t *w, const int64_t *y,
                           const op_attrs *attrs);

static inline bool convolution_is_padded(const convolution *c)
{
    return c->x[1] != c->channels;
}

/* The tensors of a graph; the last two only with a bias. For gradients x, w or y is the result. */
enum { CONV_X, CONV_W, CONV_Y, CONV_BIAS };

/* `op`: DNN_CONV, DNN_CONV_DATA or DNN_CONV_WEIGHTS. has_bias: y = convolution + bias. */
dnn_graph convolution_graph(const convolution *c, dnn_op op, bool has_bias);

#endif
