/* SPDX-License-Identifier: Apache-2.0 */
/* doubles.c - see doubles.h. The tests of tensor, autograd, nn and optim use it. */
#include "tensor/doubles.h"

#include "base/alloc.h"
#include "base/compute/half.h"
#include "tensor/device.h"

#include <math.h>

static double widened(const void *raw, size_t i, ls_dtype type)
{
    switch (type) {
    case LS_F64:
        return ((const double *)raw)[i];
    case LS_F32:
        return (double)((const float *)raw)[i];
    case LS_BF16:
        return (double)ls_bf16_to_f32(((const uint16_t *)raw)[i]);
    case LS_F16:
        return (double)ls_f16_to_f32(((const uint16_t *)raw)[i]);
    case LS_I64:
        return (double)((const int64_t *)raw)[i];
    case LS_U8:
        return (double)((const uint8_t *)raw)[i];
    default:
        return (double)NAN;
    }
}

static void narrow(void *raw, size_t i, ls_dtype type, double value)
{
    switch (type) {
    case LS_F64:
        ((double *)raw)[i] = value;
        return;
    case LS_BF16:
        ((uint16_t *)raw)[i] = ls_f32_to_bf16((float)value);
        return;
    case LS_F16:
        ((uint16_t *)raw)[i] = ls_f32_to_f16((float)value);
        return;
    case LS_I64:
        ((int64_t *)raw)[i] = (int64_t)value;
        return;
    case LS_U8:
        ((uint8_t *)raw)[i] = (uint8_t)value;
        return;
    default:
        ((float *)raw)[i] = (float)value;
    }
}

/* Memory for the elements as they are. */
static ls_status raw_for(const ls_tensor *t, void **out)
{
    *out = ls_calloc(ls_tensor_count(t) + 1, ls_dtype_size(ls_tensor_dtype(t)));
    return *out != NULL ? LS_OK
                        : ls_fail(LS_ENOMEM, "no memory for %zu elements", ls_tensor_count(t));
}

ls_status doubles_read(const ls_tensor *t, double *out)
{
    const size_t count = ls_tensor_count(t);
    void *raw;
    ls_status st;

    LS_TRY(raw_for(t, &raw));
    st = ls_tensor_read(t, raw, count);
    for (size_t i = 0; st == LS_OK && i < count; i++)
        out[i] = widened(raw, i, ls_tensor_dtype(t));
    ls_free(raw);
    return st;
}

ls_status doubles_read_one(const ls_tensor *t, size_t i, double *out)
{
    const size_t size = ls_dtype_size(t->dtype);
    ls_tensor seen = *t; // its storage is that of t
    void *data;
    double raw;

    LS_ASSERT(i < ls_tensor_count(t));
    LS_TRY(tensor_plain(&seen, &data));
    LS_TRY(device_read(t->device, &raw, (const char *)data + i * size, size));
    *out = widened(&raw, 0, t->dtype);
    return LS_OK;
}

ls_status doubles_write(ls_tensor *t, const double *values)
{
    const size_t count = ls_tensor_count(t);
    void *raw;
    ls_status st;

    LS_TRY(raw_for(t, &raw));
    for (size_t i = 0; i < count; i++)
        narrow(raw, i, ls_tensor_dtype(t), values[i]);
    st = ls_tensor_write(t, raw, count);
    ls_free(raw);
    return st;
}
