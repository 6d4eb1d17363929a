/* SPDX-License-Identifier: Apache-2.0 */
/*
 * half_bucket.c - converts buckets to and from 16 bits for the communication hooks: divided and
 * rounded to nearest even before the all-reduce, widened after it. ddp.c calls it. The conversion
 * of processors with F16C gives the bits of base/compute/half.h.
 */
#include "ddp/half_bucket.h"

#include "base/compute/half.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

static bool has_f16c(void)
{
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 &&
           __builtin_cpu_supports("avx");
}

/* Converts whole vectors; returns the number of elements. */
__attribute__((target("avx,f16c"))) static size_t pack_vectors(const float *src, uint16_t *dst,
                                                               size_t n, float divisor)
{
    const __m256 by = _mm256_set1_ps(divisor);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_div_ps(_mm256_loadu_ps(src + i), by);

        _mm_storeu_si128((void *)(dst + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    return i;
}

__attribute__((target("avx,f16c"))) static size_t unpack_vectors(const uint16_t *src, float *dst,
                                                                 size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(src + i))));
    return i;
}
#else
static bool has_f16c(void)
{
    return false;
}

static size_t pack_vectors(const float *src, uint16_t *dst, size_t n, float divisor)
{
    LS_UNUSED(src);
    LS_UNUSED(dst);
    LS_UNUSED(n);
    LS_UNUSED(divisor);
    return 0;
}

static size_t unpack_vectors(const uint16_t *src, float *dst, size_t n)
{
    LS_UNUSED(src);
    LS_UNUSED(dst);
    LS_UNUSED(n);
    return 0;
}
#endif

static void pack_f16(const float *src, uint16_t *dst, size_t n, float divisor, bool use_vectors)
{
    for (size_t i = use_vectors ? pack_vectors(src, dst, n, divisor) : 0; i < n; i++)
        dst[i] = ls_f32_to_f16(src[i] / divisor);
}

static void unpack_f16(const uint16_t *src, float *dst, size_t n, bool use_vectors)
{
    for (size_t i = use_vectors ? unpack_vectors(src, dst, n) : 0; i < n; i++)
        dst[i] = ls_f16_to_f32(src[i]);
}

/* ls_f32_to_bf16 in a form that compilers vectorize. */
static void pack_bf16(const float *restrict src, uint16_t *restrict dst, size_t n, float divisor)
{
    for (size_t i = 0; i < n; i++) {
        const float x = src[i] / divisor;
        uint32_t bits;
        uint32_t rounded;

        memcpy(&bits, &x, sizeof(bits));
        rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
        dst[i] = (uint16_t)((bits & 0x7FFFFFFFU) > 0x7F800000U ? bits >> 16 | 0x40U : rounded);
    }
}

static void unpack_bf16(const uint16_t *restrict src, float *restrict dst, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)src[i] << 16;

        memcpy(&dst[i], &bits, sizeof(bits));
    }
}

void half_pack(const float *src, uint16_t *dst, size_t n, float divisor, ls_dtype type)
{
    if (type == LS_BF16)
        pack_bf16(src, dst, n, divisor);
    else
        pack_f16(src, dst, n, divisor, has_f16c());
}

void half_unpack(const uint16_t *src, float *dst, size_t n, ls_dtype type)
{
    if (type == LS_BF16)
        unpack_bf16(src, dst, n);
    else
        unpack_f16(src, dst, n, has_f16c());
}
