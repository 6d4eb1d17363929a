/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_ref.c - the reference device: plain C, one thread, plain layouts, every operator for float32
 * and float64. Tests compare the other devices with it, and device_run() uses it for operators
 * without a kernel.
 */
#include "tensor/cpu_ref/ref.h"

#include "base/alloc.h"

static const kernel_fn kernels[OP_COUNT] = {
    [OP_COPY] = ref_copy,
    [OP_ADD_INTO] = ref_add_into,
    [OP_CONV2D] = ref_conv2d,
    [OP_CONV2D_BACKWARD_DATA] = ref_conv2d_backward_data,
    [OP_CONV2D_BACKWARD_WEIGHTS] = ref_conv2d_backward_weights,
    [OP_BATCH_NORM] = ref_batch_norm,
    [OP_BATCH_NORM_BACKWARD] = ref_batch_norm_backward,
    [OP_RELU] = ref_relu,
    [OP_RELU_BACKWARD] = ref_relu_backward,
    [OP_ADD] = ref_add,
    [OP_ADD_RELU] = ref_add_relu,
    [OP_MAX_POOL2D] = ref_max_pool2d,
    [OP_MAX_POOL2D_BACKWARD] = ref_max_pool2d_backward,
    [OP_AVG_POOL2D] = ref_avg_pool2d,
    [OP_AVG_POOL2D_BACKWARD] = ref_avg_pool2d_backward,
    [OP_LINEAR] = ref_linear,
    [OP_LINEAR_BACKWARD_DATA] = ref_linear_backward_data,
    [OP_LINEAR_BACKWARD_WEIGHTS] = ref_linear_backward_weights,
    [OP_CROSS_ENTROPY] = ref_cross_entropy,
    [OP_CROSS_ENTROPY_BACKWARD] = ref_cross_entropy_backward,
    [OP_LOG_SOFTMAX] = ref_log_softmax,
    [OP_LOG_SOFTMAX_BACKWARD] = ref_log_softmax_backward,
    [OP_NLL] = ref_nll,
    [OP_NLL_BACKWARD] = ref_nll_backward,
    [OP_DROPOUT] = ref_dropout,
    [OP_MSE] = ref_mse,
    [OP_MSE_BACKWARD] = ref_mse_backward,
    [OP_ACTIVATE] = ref_activate,
    [OP_ACTIVATE_BACKWARD] = ref_activate_backward,
    [OP_BROADCAST] = ref_broadcast,
    [OP_BROADCAST_BACKWARD] = ref_broadcast_backward,
    [OP_PERMUTE] = ref_permute,
    [OP_CONCAT] = ref_concat,
    [OP_SLICE] = ref_slice,
    [OP_SLICE_BACKWARD] = ref_slice_backward,
    [OP_MATMUL] = ref_matmul,
    [OP_LAYER_NORM] = ref_layer_norm,
    [OP_LAYER_NORM_BACKWARD] = ref_layer_norm_backward,
    [OP_SOFTMAX] = ref_softmax,
    [OP_SOFTMAX_BACKWARD] = ref_softmax_backward,
};

kernel_fn ref_find_kernel(device_state *self, const op_call *call)
{
    const ls_dtype type = call->in[0]->dtype;

    LS_UNUSED(self);
    if (call->op >= OP_COUNT)
        return NULL;
    if (call->op != OP_COPY && type != LS_F32 && type != LS_F64)
        return NULL;
    return kernels[call->op];
}

/* The device has no state; its kernels get NULL. */
static ls_status ref_open(const device_settings *settings, device_state **out)
{
    LS_UNUSED(settings);
    *out = NULL;
    return LS_OK;
}

static void ref_close(device_state *self)
{
    LS_UNUSED(self);
}

static const char *ref_fingerprint(device_state *self)
{
    LS_UNUSED(self);
    return "cpu_ref 1 thread";
}

static void *ref_alloc(device_state *self, size_t bytes)
{
    LS_UNUSED(self);
    return ls_alloc_aligned(64, bytes);
}

static void ref_free(device_state *self, void *block, size_t bytes)
{
    LS_UNUSED(self);
    LS_UNUSED(bytes);
    ls_free(block);
}

const device_ops cpu_ref_device_ops = {
    .abi = DEVICE_ABI,
    .name = "cpu_ref",
    .open = ref_open,
    .close = ref_close,
    .fingerprint = ref_fingerprint,
    .alloc = ref_alloc,
    .free = ref_free,
    .find_kernel = ref_find_kernel,
};
