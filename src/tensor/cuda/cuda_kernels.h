/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_kernels.h - the operators that the device has kernels for, with the names of the functions
 * that queue them: X(CONV2D, conv2d) is cuda_conv2d(). One entry a line, one list for each family
 * of sources. cuda_device.c makes its table of them.
 */
#ifndef LS_TENSOR_CUDA_KERNELS_H
#define LS_TENSOR_CUDA_KERNELS_H

#include "tensor/device.h"

/* clang-format off */
/* Of cuDNN and cuBLASLt. */
#define CUDA_LIBRARY_KERNELS(X)                                                                   \
    X(CONV2D, conv2d)                                                                             \
    X(CONV2D_BACKWARD_DATA, conv2d_backward_data)                                                 \
    X(CONV2D_BACKWARD_WEIGHTS, conv2d_backward_weights)                                           \
    X(LINEAR, linear)                                                                             \
    X(LINEAR_BACKWARD_DATA, linear_backward_data)                                                 \
    X(LINEAR_BACKWARD_WEIGHTS, linear_backward_weights)                                           \
    X(MATMUL, matmul)

/* Of our own sources. */
#define CUDA_OWN_KERNELS(X)                                                                       \
    X(COPY, copy)                                                                                 \
    X(ADD_INTO, add_into)                                                                         \
    X(BATCH_NORM, own_batch_norm)                                                                 \
    X(BATCH_NORM_BACKWARD, own_batch_norm_backward)                                               \
    X(RELU, relu)                                                                                 \
    X(RELU_BACKWARD, relu_backward)                                                               \
    X(ADD_RELU, add_relu)                                                                         \
    X(MAX_POOL2D, own_max_pool2d)                                                                 \
    X(MAX_POOL2D_BACKWARD, own_max_pool2d_backward)                                               \
    X(AVG_POOL2D, own_avg_pool2d)                                                                 \
    X(AVG_POOL2D_BACKWARD, own_avg_pool2d_backward)                                               \
    X(CROSS_ENTROPY, cross_entropy)                                                               \
    X(CROSS_ENTROPY_BACKWARD, cross_entropy_backward)                                             \
    X(LOG_SOFTMAX, log_softmax)                                                                   \
    X(LOG_SOFTMAX_BACKWARD, log_softmax_backward)                                                 \
    X(NLL, nll)                                                                                   \
    X(NLL_BACKWARD, nll_backward)                                                                 \
    X(DROPOUT, dropout)                                                                           \
    X(MSE, mse)                                                                                   \
    X(MSE_BACKWARD, mse_backward)                                                                 \
    X(ACTIVATE, activate)                                                                         \
    X(ACTIVATE_BACKWARD, activate_backward)                                                       \
    X(BINARY, binary)                                                                             \
    X(EXPAND, expand)                                                                             \
    X(REDUCE, reduce)                                                                             \
    X(SELECT, select)                                                                             \
    X(EMBEDDING, embedding)                                                                       \
    X(EMBEDDING_BACKWARD, embedding_backward)                                                     \
    X(EXTREME, extreme)                                                                           \
    X(EXTREME_BACKWARD, extreme_backward)                                                         \
    X(CUMSUM, cumsum)                                                                             \
    X(PERMUTE, permute)                                                                           \
    X(CONCAT, concat)                                                                             \
    X(SLICE, slice)                                                                               \
    X(SLICE_BACKWARD, slice_backward)                                                             \
    X(LAYER_NORM, layer_norm)                                                                     \
    X(LAYER_NORM_BACKWARD, layer_norm_backward)                                                   \
    X(SOFTMAX, softmax)                                                                           \
    X(SOFTMAX_BACKWARD, softmax_backward)                                                         \
    X(ATTENTION, attention)                                                                       \
    X(ATTENTION_BACKWARD, attention_backward)                                                     \
    X(CAST, cast)                                                                                 \
    X(LSTM, lstm)                                                                                 \
    X(LSTM_BACKWARD, lstm_backward)                                                               \
    X(GRU, gru)                                                                                   \
    X(GRU_BACKWARD, gru_backward)                                                                 \
    X(FILL, fill)                                                                                 \
    X(CLASS_SUMS, class_sums)                                                                     \
    X(NORMALIZE, normalize)                                                                       \
    X(SGD, sgd)                                                                                   \
    X(ADAM, adam)                                                                                 \
    X(SQUARES, squares)                                                                           \
    X(CLIP_FACTOR, clip_factor)                                                                   \
    X(SCALE_BY, scale_by)                                                                         \
    X(CLAMP, clamp)                                                                               \
    X(UNSCALE, unscale)
/* clang-format on */

#define DECLARE(OP, name) ls_status cuda_##name(device_state *self, const op_call *call);
CUDA_LIBRARY_KERNELS(DECLARE)
CUDA_OWN_KERNELS(DECLARE)
#undef DECLARE

#endif
