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
#define CUDA_LIBRARY_KERNELS(X)

/* Of our own sources. */
#define CUDA_OWN_KERNELS(X)
/* clang-format on */

#define DECLARE(OP, name) ls_status cuda_##name(device_state *self, const op_call *call);
CUDA_LIBRARY_KERNELS(DECLARE)
CUDA_OWN_KERNELS(DECLARE)
#undef DECLARE

#endif
