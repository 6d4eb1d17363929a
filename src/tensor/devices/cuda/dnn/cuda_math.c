/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_math.c - opens cuDNN and cuBLASLt for the device's kernels, and gives them memory. All of it
 * belongs to the thread that runs operators.
 */
#include "tensor/devices/cuda/dnn/cuda_math.h"

#include <limits.h>

/* Plans that need more are not chosen. */
#define DNN_WORKSPACE_BYTES_MOST ((size_t)256 << 20)

ls_status cuda_math_dnn(device_state *self, dnn_cache **out)
{
    const dnn_limits limits = {.tf32 = self->tf32_convolutions,
                               .deterministic = self->is_deterministic,
                               .workspace_bytes = DNN_WORKSPACE_BYTES_MOST};
    char folder[PATH_MAX];

    if (self->dnn == NULL) {
        dnn_cache_folder(folder, sizeof(folder));
        LS_TRY(cuda_accel_check_library(
            self->accel,
            dnn_cache_open(self,
                           &(dnn_cache_options){
                               .limits = limits, .autotune = self->autotune, .folder = folder},
                           &self->dnn),
            "cuDNN"));
    }
    *out = self->dnn;
    return LS_OK;
}

ls_status cuda_math_gemm(device_state *self, gemm_engine **out)
{
    if (self->gemm == NULL)
        LS_TRY(cuda_accel_check_library(self->accel, gemm_open(self->tf32_matrices, &self->gemm),
                                        "cuBLASLt"));
    *out = self->gemm;
    return LS_OK;
}

void cuda_math_close(device_state *self)
{
    dnn_cache_close(self->dnn);
    gemm_close(self->gemm);
    if (self->workspace != NULL) {
        accel *a = cuda_accel_base(self->accel);

        a->ops->free(a, self->workspace);
    }
}

/* The largest that was needed: the operators of a stream use it one after the other. */
ls_status cu_workspace(device_state *self, size_t bytes, void **out)
{
    accel *a = cuda_accel_base(self->accel);

    if (bytes > self->workspace_bytes) {
        if (self->workspace != NULL)
            a->ops->free(a, self->workspace);
        self->workspace = NULL;
        self->workspace_bytes = 0;
        LS_TRY(cu_host->device_alloc(self->device, bytes, &self->workspace));
        self->workspace_bytes = bytes;
    }
    *out = self->workspace;
    return LS_OK;
}

void cuda_no_gradients(own_operands *o, const op_call *call)
{
    for (int i = 0; i < call->n_out && !call->accumulate; i++) {
        const ls_tensor *t = call->out[i];

        if (t != NULL)
            own_zero(o, own_data(t), t->count * own_element_bytes(t->dtype));
    }
}
