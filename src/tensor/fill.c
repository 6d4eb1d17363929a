/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill.c - ls_item(), ls_tensor_fill() and random values for programs and initial values: numbers
 * from and to tensors of any type. Elements are converted on the host, so all devices give the same
 * bits.
 */
#include "base/alloc.h"
#include "base/compute/half.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* Memory of one element of any type. */
typedef union any_element {
    int64_t integer;
    double real;
} any_element;

static bool is_integer(ls_dtype type)
{
    return type == LS_I8 || type == LS_U8 || type == LS_I32 || type == LS_I64;
}

double tensor_decode(const void *element, ls_dtype type)
{
    switch (type) {
    case LS_I8:
        return *(const int8_t *)element;
    case LS_U8:
        return *(const uint8_t *)element;
    case LS_I32:
        return *(const int32_t *)element;
    case LS_I64:
        return (double)*(const int64_t *)element;
    case LS_F16:
        return (double)ls_f16_to_f32(*(const uint16_t *)element);
    case LS_BF16:
        return (double)ls_bf16_to_f32(*(const uint16_t *)element);
    case LS_F32:
        return (double)*(const float *)element;
    default:
        return *(const double *)element;
    }
}

ls_status ls_item(const ls_tensor *t, double *out)
{
    any_element element;

    LS_TRY(LS_GIVEN(t));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(ls_tensor_read(t, &element, 1));
    *out = tensor_decode(&element, t->dtype);
    return LS_OK;
}

/* --- fill --- */

ls_status tensor_encode(double value, ls_dtype type, void *out)
{
    static const double most[] = {
        [LS_I8] = 0x1p7, [LS_U8] = 0x1p8, [LS_I32] = 0x1p31, [LS_I64] = 0x1p63};

    if (is_integer(type) && !(value == floor(value) && value < most[type] &&
                              value >= (type == LS_U8 ? 0 : -most[type])))
        return ls_fail(LS_EINVAL, "%g is no %s", value, ls_dtype_name(type));
    switch (type) {
    case LS_I8:
        *(int8_t *)out = (int8_t)value;
        return LS_OK;
    case LS_U8:
        *(uint8_t *)out = (uint8_t)value;
        return LS_OK;
    case LS_I32:
        *(int32_t *)out = (int32_t)value;
        return LS_OK;
    case LS_I64:
        *(int64_t *)out = (int64_t)value;
        return LS_OK;
    case LS_F16:
        *(uint16_t *)out = ls_f32_to_f16((float)value);
        return LS_OK;
    case LS_BF16:
        *(uint16_t *)out = ls_f32_to_bf16((float)value);
        return LS_OK;
    case LS_F32:
        *(float *)out = (float)value;
        return LS_OK;
    default:
        *(double *)out = value;
        return LS_OK;
    }
}

ls_status ls_tensor_fill(ls_tensor *t, double value)
{
    any_element element;
    const size_t bytes = ls_dtype_size(ls_tensor_dtype(t));
    const size_t count = ls_tensor_count(t);
    char *all;
    ls_status st;

    LS_TRY(LS_GIVEN(t));
    LS_TRY(ls_context(tensor_encode(value, t->dtype, &element), "ls_tensor_fill"));
    all = ls_calloc(count > 0 ? count : 1, bytes);
    if (all == NULL)
        return ls_fail(LS_ENOMEM, "no memory to fill a tensor of %zu elements", count);
    for (size_t i = 0; i < count; i++)
        memcpy(all + i * bytes, &element, bytes);
    st = ls_tensor_write(t, all, count);
    ls_free(all);
    return st;
}

/* --- random numbers --- */

typedef struct draw {
    ls_dtype type;
    void (*next)(void *arg, double *out, size_t n);
    void *arg;
} draw;

static void draw_piece(void *arg, void *piece, size_t bytes)
{
    const draw *d = arg;
    const size_t size = ls_dtype_size(d->type);

    const size_t count = bytes / size;
    double numbers[256];

    for (size_t at = 0; at < count; at += LS_COUNT_OF(numbers)) {
        const size_t n = count - at < LS_COUNT_OF(numbers) ? count - at : LS_COUNT_OF(numbers);

        d->next(d->arg, numbers, n);
        for (size_t i = 0; i < n; i++) {
            const ls_status st =
                tensor_encode(numbers[i], d->type, (char *)piece + (at + i) * size);

            LS_ASSERT(st == LS_OK); // floating-point types have all numbers
        }
    }
}

ls_status tensor_draw(ls_tensor *t, void (*next)(void *arg, double *out, size_t n), void *arg)
{
    draw d = {.type = t->dtype, .next = next, .arg = arg};

    if (is_integer(t->dtype))
        return ls_fail(LS_EINVAL, "random values need a floating-point type, not %s",
                       ls_dtype_name(t->dtype));
    return tensor_write_pieces(t, draw_piece, &d);
}

void random_uniform(void *source, double *out, size_t n)
{
    const random_source *s = source;

    for (size_t i = 0; i < n; i++)
        out[i] = s->mean + (2 * ls_rng_double(s->rng) - 1) * s->scale;
}

void random_normal(void *source, double *out, size_t n)
{
    const random_source *s = source;

    ls_rng_normals(s->rng, out, n);
    for (size_t i = 0; i < n; i++)
        out[i] = s->mean + out[i] * s->scale;
}

ls_status ls_tensor_uniform(ls_tensor *t, double low, double high, uint64_t seed)
{
    ls_rng rng;

    LS_TRY(LS_GIVEN(t));
    if (!isfinite(low) || !isfinite(high) || low > high)
        return ls_fail(LS_EINVAL, "ls_tensor_uniform: %g to %g is no interval", low, high);
    ls_rng_seed(&rng, seed);
    return tensor_draw(t, random_uniform,
                       &(random_source){&rng, low / 2 + high / 2, high / 2 - low / 2});
}

ls_status ls_tensor_normal(ls_tensor *t, double mean, double std, uint64_t seed)
{
    ls_rng rng;

    LS_TRY(LS_GIVEN(t));
    if (!isfinite(mean) || !isfinite(std) || std < 0)
        return ls_fail(LS_EINVAL,
                       "ls_tensor_normal: mean %g, deviation %g; they must be finite, and the "
                       "deviation at least 0",
                       mean, std);
    ls_rng_seed(&rng, seed);
    return tensor_draw(t, random_normal, &(random_source){&rng, mean, std});
}
