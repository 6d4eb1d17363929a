/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_math.h - what the kernels of cuDNN and cuBLASLt share: the libraries' state and workspace.
 * packed.h has tensors in the form that the libraries read.
 *
 * tensor/devices/cuda/dnn/: operators by cuDNN and cuBLASLt, and the plans for them. cuda_device.c
 * calls it.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_DNN_CUDA_MATH_H
#define LS_TENSOR_DEVICES_CUDA_DNN_CUDA_MATH_H

#include "tensor/devices/cuda/dnn/dnn_cache.h"
#include "tensor/devices/cuda/dnn/gemm.h"
#include "tensor/devices/cuda/ops/packed.h"

/* The libraries, opened at their first use: loading them takes a second. */
LS_MUST_USE ls_status cuda_math_dnn(device_state *self, dnn_cache **out);
LS_MUST_USE ls_status cuda_math_gemm(device_state *self, gemm_engine **out);

/* Closes both and frees the workspace; the queues are empty. */
void cuda_math_close(device_state *self);

/* The device's workspace, of at least `bytes`; valid until the next call. */
LS_MUST_USE ls_status cu_workspace(device_state *self, size_t bytes, void **out);

/* Writes zeros to the outputs of a call for gradients of parameters, unless it adds to them. */
void cuda_no_gradients(own_operands *o, const op_call *call);

/* Runs a call for the gradients of weights dw (O,I) and, unless it is NULL, of a bias: dw = dy' x
 * for row-major x (n,I) and dy (n,O) of the type of in[0], in the type of dw; and the sums of dy.
 * n is at least 1. */
void cuda_weight_gradients(own_operands *o, const op_call *call, const void *x, const void *dy,
                           int64_t n);

#endif
