/* SPDX-License-Identifier: Apache-2.0 */
/* native_oracle.c - reductions computed naively, one element at a time, for comparing bits. */
#include "comm/native_oracle.h"

#include "base/compute/half.h"

#include <math.h>
#include <string.h>

static const uint32_t awkward_f32[] = {0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000,
                                       0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000,
                                       0xFFC12345, 0x7F800001, 0x3F800000, 0xBF800000, 0x33800000};
static const uint64_t awkward_f64[] = {0,
                                       UINT64_C(1) << 63,
                                       1,
                                       0x7FEFull << 48 | 0xFFFFFFFFFFFF,
                                       0x7FF0ull << 48,
                                       0xFFF0ull << 48,
                                       0x7FF8ull << 48,
                                       0xFFF8ull << 48 | 77,
                                       0x7FF0ull << 48 | 1,
                                       0x3FF0ull << 48,
                                       0x000Full << 48};

static uint64_t random_f32(ls_rng *rng)
{
    const uint64_t kind = ls_rng_below(rng, 16);
    float f;
    uint32_t bits;

    if (kind == 0)
        return awkward_f32[ls_rng_below(rng, sizeof(awkward_f32) / sizeof(awkward_f32[0]))];
    if (kind < 4)
        return ls_rng_next(rng) & UINT32_MAX;
    f = (float)(ls_rng_normal(rng) * (kind < 8 ? 1e4 : 1.0));
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static uint64_t random_f64(ls_rng *rng)
{
    const uint64_t kind = ls_rng_below(rng, 16);
    double f;
    uint64_t bits;

    if (kind == 0)
        return awkward_f64[ls_rng_below(rng, sizeof(awkward_f64) / sizeof(awkward_f64[0]))];
    if (kind < 3)
        return ls_rng_next(rng);
    f = ls_rng_normal(rng);
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

void oracle_fill(void *data, size_t count, ls_dtype type, ls_rng *rng)
{
    const size_t size = ls_dtype_size(type);
    unsigned char *at = data;

    for (size_t i = 0; i < count; i++, at += size) {
        uint64_t bits = ls_rng_next(rng);
        float f;

        if (type == LS_F32 || ((type == LS_F16 || type == LS_BF16) && bits % 4 != 0)) {
            bits = random_f32(rng);
            memcpy(&f, &bits, sizeof(f));
            if (type == LS_F16)
                bits = ls_f32_to_f16(f);
            else if (type == LS_BF16)
                bits = ls_f32_to_bf16(f);
        } else if (type == LS_F64) {
            bits = random_f64(rng);
        }
        memcpy(at, &bits, size);
    }
}

/* A value of any type while it is being combined. */
typedef union value {
    uint64_t u;
    int64_t i;
    float f;
    double d;
} value;

static value load(const void *src, size_t i, ls_dtype type)
{
    const unsigned char *at = (const unsigned char *)src + i * ls_dtype_size(type);
    value v = {0};
    uint16_t half;

    memcpy(&half, at, type == LS_I8 || type == LS_U8 ? 1 : 2);
    switch (type) {
    case LS_I8:
        v.i = *(const signed char *)at;
        break;
    case LS_U8:
        v.i = *at;
        break;
    case LS_I32: {
        int32_t x;
        memcpy(&x, at, 4);
        v.i = x;
        break;
    }
    case LS_F16:
        v.f = ls_f16_to_f32(half);
        break;
    case LS_BF16:
        v.f = ls_bf16_to_f32(half);
        break;
    case LS_F32:
        memcpy(&v.f, at, 4);
        break;
    case LS_I64:
    case LS_F64:
        memcpy(&v, at, 8);
        break;
    }
    return v;
}

/* Integers narrower than 64 bits wrap when they are combined, not only at the end: min and max see
 * wrapped values. */
static int64_t wrap(uint64_t u, ls_dtype type)
{
    switch (type) {
    case LS_I8:
        return (int8_t)u;
    case LS_U8:
        return (uint8_t)u;
    case LS_I32:
        return (int32_t)u;
    default:
        return (int64_t)u;
    }
}

#define COMBINE_REAL(a, b, op)                                                                     \
    ((op) == LS_PROD  ? (a) * (b)                                                                  \
     : (op) == LS_MIN ? (isnan(a) || (!isnan(b) && (a) < (b)) ? (a) : (b))                         \
     : (op) == LS_MAX ? (isnan(a) || (!isnan(b) && (a) > (b)) ? (a) : (b))                         \
                      : (a) + (b))

static value combine(value a, value b, ls_dtype type, ls_reduce_op op)
{
    value v = {0};

    if (type == LS_F64)
        v.d = COMBINE_REAL(a.d, b.d, op);
    else if (type == LS_F32 || type == LS_F16 || type == LS_BF16)
        v.f = COMBINE_REAL(a.f, b.f, op);
    else if (op == LS_MIN)
        v.i = a.i < b.i ? a.i : b.i;
    else if (op == LS_MAX)
        v.i = a.i > b.i ? a.i : b.i;
    else if (op == LS_BAND)
        v.u = a.u & b.u;
    else if (op == LS_BOR)
        v.u = a.u | b.u;
    else if (op == LS_BXOR)
        v.u = a.u ^ b.u;
    else
        v.i = wrap(op == LS_PROD ? a.u * b.u : a.u + b.u, type);
    return v;
}

/* Ranks [first, first + n) of element i; src[0] is rank `zero`. */
static value tree(const void *const *src, int zero, int first, int n, size_t i, ls_dtype type,
                  ls_reduce_op op)
{
    int half = 1;

    if (n == 1)
        return load(src[first - zero], i, type);
    while (half * 2 < n)
        half *= 2;
    return combine(tree(src, zero, first, half, i, type, op),
                   tree(src, zero, first + half, n - half, i, type, op), type, op);
}

static void store(void *dst, size_t i, value v, ls_dtype type, int n, bool final)
{
    const bool is_half = type == LS_F16 || type == LS_BF16;
    const size_t size = is_half && !final ? 4 : ls_dtype_size(type);

    if (final && type == LS_F64)
        v.d = isnan(v.d / n) ? (double)NAN : v.d / n;
    if (final && (type == LS_F32 || is_half))
        v.f = isnan(v.f / (float)n) ? NAN : v.f / (float)n;
    if (final && type == LS_F16)
        v.u = ls_f32_to_f16(v.f);
    if (final && type == LS_BF16)
        v.u = ls_f32_to_bf16(v.f);
    memcpy((char *)dst + i * size, &v, size);
}

void oracle_reduce(void *dst, const void *const *src, int first, int n, size_t count, ls_dtype type,
                   ls_reduce_op op, bool final)
{
    for (size_t i = 0; i < count; i++)
        store(dst, i, tree(src, first, first, n, i, type, op), type, op == LS_AVG ? n : 1, final);
}

static bool both_nan(const void *a, const void *b, size_t i, ls_dtype type)
{
    const value x = load(a, i, type);
    const value y = load(b, i, type);

    if (type == LS_F64)
        return isnan(x.d) && isnan(y.d);
    return (type == LS_F32 || type == LS_F16 || type == LS_BF16) && isnan(x.f) && isnan(y.f);
}

size_t oracle_differs(const void *a, const void *b, size_t count, ls_dtype type, bool any_nan)
{
    const size_t size = ls_dtype_size(type);

    for (size_t i = 0; i < count; i++) {
        if (memcmp((const char *)a + i * size, (const char *)b + i * size, size) != 0 &&
            !(any_nan && both_nan(a, b, i, type)))
            return i;
    }
    return count;
}
