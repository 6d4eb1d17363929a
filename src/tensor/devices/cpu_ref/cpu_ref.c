/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_ref.c - the reference device: plain C, one thread, plain layouts, every operator for float32
 * and float64, and casts from and to 16-bit floats. Tests compare the other devices with it, and
 * device_run() uses it for operators without a kernel.
 */
#include "tensor/devices/cpu_ref/ref.h"

#include "base/alloc.h"

static const ref_kernel kernels[OP_COUNT] = {
#define OPERATOR(KIND, name, ...) ref_##name,
#include "tensor/operators.inc"
};

static ls_status run(device_state *self, const op_call *call)
{
    LS_UNUSED(self);
    for (int i = 0; i < call->n_out; i++) {
        ls_tensor *out = call->out[i];

        if (out != NULL && out->storage == NULL)
            LS_TRY(tensor_place(out, NULL, 0));
    }
    return kernels[call->op](call);
}

/* float32 and float64; copies, casts and fills have more types. */
static bool has_type(const op_call *call, ls_dtype type)
{
    if (call->op == OP_COPY || call->op == OP_CAST || type == LS_F32 || type == LS_F64)
        return true;
    return call->op == OP_FILL && (type == LS_F16 || type == LS_BF16);
}

static kernel_fn ref_find_kernel(device_state *self, const op_call *call)
{
    LS_UNUSED(self);
    return call->op < OP_COUNT && has_type(call, device_typed(call)->dtype) ? run : NULL;
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

static const char *ref_slow_type(device_state *self, ls_dtype type)
{
    LS_UNUSED(self);
    LS_UNUSED(type);
    return "device cpu_ref computes in float32 and converts inputs and results";
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
    .slow_type = ref_slow_type,
};
