/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_cast.c - conversions between floating types, by the scalar functions of base/compute/half.h.
 */
#include "tensor/devices/cpu_ref/ref.h"

#include "base/compute/half.h"

static double cast_get(const ls_tensor *t, size_t i)
{
    const void *data = tensor_host_elements(t);

    switch (t->dtype) {
    case LS_BF16:
        return (double)ls_bf16_to_f32(((const uint16_t *)data)[i]);
    case LS_F16:
        return (double)ls_f16_to_f32(((const uint16_t *)data)[i]);
    default:
        return ref_get(data, i, ref_wide(t));
    }
}

static void cast_put(ls_tensor *t, size_t i, double value)
{
    void *data = tensor_host_elements(t);

    switch (t->dtype) {
    case LS_BF16:
        ((uint16_t *)data)[i] = ls_f32_to_bf16((float)value);
        return;
    case LS_F16:
        ((uint16_t *)data)[i] = ls_f32_to_f16((float)value);
        return;
    default:
        ref_put(data, i, value, ref_wide(t));
    }
}

ls_status ref_cast(const op_call *call)
{
    const size_t count = ls_tensor_count(call->in[0]);

    for (size_t i = 0; i < count; i++)
        cast_put(call->out[0], i, cast_get(call->in[0], i));
    return LS_OK;
}
