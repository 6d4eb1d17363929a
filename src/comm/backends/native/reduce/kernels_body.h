/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_body.h - the loops of one kernel table, in plain C that compilers vectorise. Included by
 * kernels_<isa>.c, which defines KERNELS_TABLE and KERNELS_NAME and is compiled with that
 * instruction set's flags. The tables give the same bits: every element is computed by the same
 * IEEE operations in the same order, contraction is off, and NaNs (whose payload may depend on the
 * order of an addition's operands in a register) become the canonical one at the root.
 */
#include "comm/backends/native/reduce/kernels_table.h"

#include "base/compute/half.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// dst is one of the sources exactly or overlaps none, so no iteration reads what another wrote.
#if defined(__clang__)
#define KERNEL_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define KERNEL_LOOP _Pragma("GCC ivdep")
#endif

// NOLINTBEGIN(bugprone-macro-parentheses): types and declared names cannot stand in them
#define COMBINE(name, type, value)                                                                 \
    static void name(void *dst, const void *left, const void *right, size_t count)                 \
    {                                                                                              \
        type *d = dst;                                                                             \
        const type *l = left;                                                                      \
        const type *r = right;                                                                     \
        KERNEL_LOOP                                                                                \
        for (size_t i = 0; i < count; i++) {                                                       \
            const type a = l[i];                                                                   \
            const type b = r[i];                                                                   \
            d[i] = value;                                                                          \
        }                                                                                          \
    }

// Integers wrap: the arithmetic is unsigned. Types narrower than int are widened to unsigned int
// first.
#define COMBINE_INTEGER(name, type, wide)                                                          \
    COMBINE(sum_##name, type, (type)((wide)a + (wide)b))                                           \
    COMBINE(prod_##name, type, (type)((wide)a * (wide)b))                                          \
    COMBINE(min_##name, type, a < b ? a : b)                                                       \
    COMBINE(max_##name, type, a > b ? a : b)                                                       \
    COMBINE(band_##name, type, (type)(a & b))                                                      \
    COMBINE(bor_##name, type, (type)(a | b))                                                       \
    COMBINE(bxor_##name, type, (type)(a ^ b))

// A NaN on the left wins by a != a, one on the right because no comparison with it holds.
#define COMBINE_FLOAT(name, type)                                                                  \
    COMBINE(sum_##name, type, a + b)                                                               \
    COMBINE(prod_##name, type, a *(b))                                                             \
    COMBINE(min_##name, type, ((a < b) | (a != a)) ? a : b)                                        \
    COMBINE(max_##name, type, ((a > b) | (a != a)) ? a : b)

COMBINE_INTEGER(i8, int8_t, unsigned)
COMBINE_INTEGER(u8, uint8_t, unsigned)
COMBINE_INTEGER(i32, int32_t, uint32_t)
COMBINE_INTEGER(i64, int64_t, uint64_t)
COMBINE_FLOAT(f32, float)
COMBINE_FLOAT(f64, double)

static inline float canonical_f32(float x)
{
    return x != x ? NAN : x;
}

static inline double canonical_f64(double x)
{
    return x != x ? (double)NAN : x;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void widen_bf16(void *dst, const void *src, size_t count)
{
    const uint16_t *s = src;
    float *d = dst;

    KERNEL_LOOP
    for (size_t i = 0; i < count; i++)
        d[i] = float_of((uint32_t)s[i] << 16);
}

static void widen_f16(void *dst, const void *src, size_t count)
{
    const uint16_t *s = src;
    float *d = dst;
    size_t i = 0;

#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(s + i))));
#endif
    for (; i < count; i++)
        d[i] = ls_f16_to_f32(s[i]);
}

static inline uint16_t round_bf16(float x)
{
    const uint32_t bits = bits_of(canonical_f32(x));

    // The canonical NaN ends in zeros and is not rounded up.
    return (uint16_t)((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

static void finish_bf16(void *dst, const void *src, size_t count, double divisor)
{
    const float *s = src;
    uint16_t *d = dst;
    const float n = (float)divisor;

    if (divisor == 1) {
        KERNEL_LOOP
        for (size_t i = 0; i < count; i++)
            d[i] = round_bf16(s[i]);
        return;
    }
    KERNEL_LOOP
    for (size_t i = 0; i < count; i++)
        d[i] = round_bf16(s[i] / n);
}

static void finish_f16(void *dst, const void *src, size_t count, double divisor)
{
    const float *s = src;
    uint16_t *d = dst;
    const float n = (float)divisor;
    size_t i = 0;

#if defined(__F16C__)
    const __m256 nan = _mm256_set1_ps(NAN);
    for (; i + 8 <= count; i += 8) {
        const __m256 x = _mm256_div_ps(_mm256_loadu_ps(s + i), _mm256_set1_ps(n));
        const __m256 clean = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        _mm_storeu_si128((void *)(d + i), _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < count; i++)
        d[i] = ls_f32_to_f16(canonical_f32(s[i] / n));
}

#define FINISH_FLOAT(name, type)                                                                   \
    static void finish_##name(void *dst, const void *src, size_t count, double divisor)            \
    {                                                                                              \
        const type *s = src;                                                                       \
        type *d = dst;                                                                             \
        const type n = (type)divisor;                                                              \
        if (divisor == 1) {                                                                        \
            KERNEL_LOOP                                                                            \
            for (size_t i = 0; i < count; i++)                                                     \
                d[i] = canonical_##name(s[i]);                                                     \
            return;                                                                                \
        }                                                                                          \
        KERNEL_LOOP                                                                                \
        for (size_t i = 0; i < count; i++)                                                         \
            d[i] = canonical_##name(s[i] / n);                                                     \
    }
FINISH_FLOAT(f32, float)
FINISH_FLOAT(f64, double)
// NOLINTEND(bugprone-macro-parentheses)

// NOLINTBEGIN(bugprone-macro-parentheses)
#define SUM_F32(n, value)                                                                          \
    static void sum##n##_f32(float *dst, const float *const *src, size_t count, double divisor)    \
    {                                                                                              \
        const float *a = src[0];                                                                   \
        const float *b = src[1];                                                                   \
        const float *c = n > 2 ? src[2] : a;                                                       \
        const float *d = n > 3 ? src[3] : a;                                                       \
        const float by = (float)divisor;                                                           \
        (void)c, (void)d;                                                                          \
        if (divisor == 1) {                                                                        \
            KERNEL_LOOP                                                                            \
            for (size_t i = 0; i < count; i++)                                                     \
                dst[i] = canonical_f32(value);                                                     \
            return;                                                                                \
        }                                                                                          \
        KERNEL_LOOP                                                                                \
        for (size_t i = 0; i < count; i++)                                                         \
            dst[i] = canonical_f32((value) / by);                                                  \
    }
SUM_F32(2, a[i] + b[i])
SUM_F32(3, (a[i] + b[i]) + c[i])
SUM_F32(4, (a[i] + b[i]) + (c[i] + d[i]))
// NOLINTEND(bugprone-macro-parentheses)

#define COMMON_ENTRIES(name)                                                                       \
    [LS_SUM] = sum_##name, [LS_AVG] = sum_##name, [LS_PROD] = prod_##name, [LS_MIN] = min_##name,  \
    [LS_MAX] = max_##name
#define INTEGER_ROW(name)                                                                          \
    {                                                                                              \
        COMMON_ENTRIES(name), [LS_BAND] = band_##name, [LS_BOR] = bor_##name,                      \
                              [LS_BXOR] = bxor_##name                                              \
    }
#define FLOAT_ROW(name)                                                                            \
    {                                                                                              \
        COMMON_ENTRIES(name)                                                                       \
    }

const kernel_table KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .combine = {[LS_I8] = INTEGER_ROW(i8),
                [LS_U8] = INTEGER_ROW(u8),
                [LS_I32] = INTEGER_ROW(i32),
                [LS_I64] = INTEGER_ROW(i64),
                [LS_F32] = FLOAT_ROW(f32),
                [LS_F64] = FLOAT_ROW(f64)},
    .widen = {[LS_F16] = widen_f16, [LS_BF16] = widen_bf16},
    .finish = {[LS_F16] = finish_f16,
               [LS_BF16] = finish_bf16,
               [LS_F32] = finish_f32,
               [LS_F64] = finish_f64},
    .sum_f32 = {[2] = sum2_f32, [3] = sum3_f32, [4] = sum4_f32},
};
