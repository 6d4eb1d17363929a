/* SPDX-License-Identifier: Apache-2.0 */
/* ref_pointwise.c - copies, fills, sums, ReLU and floats of bytes, element by element. */
#include "tensor/devices/cpu_ref/ref.h"
#include "tensor/formulas/axis.h"

#include "base/compute/half.h"

#include <string.h>

ls_status ref_copy(const op_call *call)
{
    const size_t bytes = tensor_bytes(call->in[0]);

    if (bytes > 0)
        memmove(tensor_elements(call->out[0]), tensor_elements(call->in[0]), bytes);
    return LS_OK;
}

REF_INLINE void add_into(const op_call *call, bool wide)
{
    const void *src = tensor_elements(call->in[0]);
    void *dst = tensor_elements(call->out[0]);
    const size_t count = ls_tensor_count(call->in[0]);

    for (size_t i = 0; i < count; i++)
        ref_put(dst, i, ref_get(dst, i, wide) + ref_get(src, i, wide), wide);
}

REF_KERNEL(ref_add_into, add_into)

REF_INLINE void fill(void *dst, size_t count, double value, bool wide)
{
    for (size_t i = 0; i < count; i++)
        ref_put(dst, i, value, wide);
}

static void fill_halves(uint16_t *dst, size_t count, uint16_t value)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = value;
}

ls_status ref_normalize(const op_call *call)
{
    const ls_tensor *pixels = call->in[1];
    const uint8_t *bytes = tensor_host_elements(pixels);
    const float *values = tensor_host_elements(call->in[0]);
    const size_t n_tables = (size_t)call->in[0]->dims[0];
    const size_t area = (size_t)(pixels->dims[2] * pixels->dims[3]);
    const size_t n_planes = (size_t)(pixels->dims[0] * pixels->dims[1]);
    float *x;

    x = tensor_host_elements(call->out[0]);
    for (size_t plane = 0; plane < n_planes; plane++) {
        const float *of_byte = values + plane % n_tables * 256; // C is a multiple of n_tables

        for (size_t i = plane * area; i < (plane + 1) * area; i++)
            x[i] = of_byte[bytes[i]];
    }
    return LS_OK;
}

ls_status ref_fill(const op_call *call)
{
    const ls_tensor *dst = call->out[0];
    const size_t count = ls_tensor_count(dst);
    const float value = (float)call->attrs.value;

    if (dst->dtype == LS_F16)
        fill_halves(tensor_elements(dst), count, ls_f32_to_f16(value));
    else if (dst->dtype == LS_BF16)
        fill_halves(tensor_elements(dst), count, ls_f32_to_bf16(value));
    else
        REF_RUN(dst, fill, tensor_elements(dst), count, call->attrs.value);
    return LS_OK;
}

/* y = max(0, a + b); NaN stays NaN. */
REF_INLINE void add_relu(const op_call *call, bool wide)
{
    const void *a = tensor_elements(call->in[0]);
    const void *b = tensor_elements(call->in[1]);
    void *y = tensor_elements(call->out[0]);
    const size_t count = ls_tensor_count(call->in[0]);

    for (size_t i = 0; i < count; i++) {
        const double sum = ref_get(a, i, wide) + ref_get(b, i, wide);

        ref_put(y, i, sum <= 0 ? 0 : sum, wide);
    }
}

REF_KERNEL(ref_add_relu, add_relu)

/* max(0, x); NaN stays NaN. */
REF_INLINE void relu(const op_call *call, bool wide)
{
    const void *x = tensor_elements(call->in[0]);
    void *y = tensor_elements(call->out[0]);
    const size_t count = ls_tensor_count(call->in[0]);

    for (size_t i = 0; i < count; i++) {
        const double v = ref_get(x, i, wide);

        ref_put(y, i, v <= 0 ? 0 : v, wide);
    }
}

REF_KERNEL(ref_relu, relu)

/* The derivative at 0 is 0, as PyTorch's. */
REF_INLINE void relu_backward(const op_call *call, bool wide)
{
    const void *y = tensor_elements(call->in[0]);
    const void *dy = tensor_elements(call->in[1]);
    const void *dy2 = call->in[2] == NULL ? NULL : tensor_elements(call->in[2]);
    void *dx = tensor_elements(call->out[0]);
    const size_t count = ls_tensor_count(call->in[0]);

    for (size_t i = 0; i < count; i++) {
        const double more = dy2 == NULL ? -0.0 : ref_get(dy2, i, wide); // v + -0 is v, also for -0

        ref_put(dx, i, ref_get(y, i, wide) <= 0 ? 0 : ref_get(dy, i, wide) + more, wide);
    }
}

REF_KERNEL(ref_relu_backward, relu_backward)

REF_INLINE void dropout(const op_call *call, bool wide)
{
    const void *x = tensor_elements(call->in[0]);
    void *y = tensor_elements(call->out[0]);
    const size_t count = ls_tensor_count(call->in[0]);
    const double scale = call->attrs.drop < 1 ? 1 / (1 - call->attrs.drop) : 0;
    const size_t run = call->attrs.drops_rows ? axis_split(call->in[0], 0).inner : 1;

    for (size_t i = 0; i < count; i++)
        ref_put(y, i, device_drops(&call->attrs, i / run) ? 0 : ref_get(x, i, wide) * scale, wide);
}

REF_KERNEL(ref_dropout, dropout)
