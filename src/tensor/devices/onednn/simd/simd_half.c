/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_half.c - conversions between float32 and 16-bit floats without branches, in a form that the
 * compiler vectorises; the bits are those of base/compute/half.h.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

SIMD_INLINE uint32_t bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

SIMD_INLINE float float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* All ones where the condition holds. */
SIMD_INLINE uint32_t mask_of(int condition)
{
    return 0U - (uint32_t)condition;
}

SIMD_INLINE uint32_t choose(uint32_t mask, uint32_t yes, uint32_t no)
{
    return (mask & yes) | (~mask & no);
}

void SIMD_NAME(widen_bf16)(const uint16_t *from, float *to, size_t n)
{
    size_t i = 0;

    // Where the processor has vectors of 16 the compiler uses those of 8.
    for (; SIMD_LANES_MAX == 16 && i + 16 <= n; i += 16) {
        bits_16 b;
        bits_16 nan;

        unpack_16(&b, from + i);
        b <<= 16;
        nan = (bits_16)((mask_16)(b & 0x7FFFFFFFU) > 0x7F800000);
        b |= nan & 0x400000U;
        memcpy(to + i, &b, sizeof(b));
    }
    for (; i < n; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        const uint32_t nan = mask_of((int32_t)(bits & 0x7FFFFFFFU) > 0x7F800000);

        to[i] = float_of(bits | (nan & 0x400000U));
    }
}

void SIMD_NAME(narrow_bf16)(const float *from, uint16_t *to, size_t n)
{
    size_t i = 0;

    for (; SIMD_LANES_MAX == 16 && i + 16 <= n; i += 16) {
        vec_16 v;

        load_16(&v, from + i);
        put_16(to, i, &v, true);
    }
    for (; i < n; i++) {
        const uint32_t bits = bits_of(from[i]);
        const uint32_t nan = mask_of((int32_t)(bits & 0x7FFFFFFFU) > 0x7F800000);
        const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;

        to[i] = (uint16_t)choose(nan, bits >> 16 | 0x40U, rounded);
    }
}

/* A subnormal is fraction * 2^-24. */
void SIMD_NAME(widen_f16)(const uint16_t *from, float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t h = from[i];
        const uint32_t magnitude = h & 0x7FFFU;
        const uint32_t normal = (magnitude << 13) + (112U << 23);
        const uint32_t special = (magnitude << 13) | 0x7F800000U;
        const uint32_t small = bits_of((float)(int32_t)magnitude * 0x1p-24F);
        const uint32_t quiet = mask_of((int32_t)magnitude > 0x7C00) & 0x400000U;
        const uint32_t large =
            choose(mask_of((int32_t)magnitude >= 0x7C00), special | quiet, normal);

        to[i] = float_of(choose(mask_of((int32_t)magnitude < 0x400), small, large) | (h & 0x8000U)
                                                                                         << 16);
    }
}

/* Adding 0.5 to a number below 2^-14 rounds it to a multiple of 2^-24, the step of subnormals,
 * which the lowest bits of the sum then count. */
void SIMD_NAME(narrow_f16)(const float *from, uint16_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of(from[i]);
        const uint32_t magnitude = bits & 0x7FFFFFFFU;
        const uint32_t rest = magnitude - (112U << 23);
        const uint32_t normal = (rest + 0xFFFU + ((rest >> 13) & 1U)) >> 13;
        const uint32_t small = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000U;
        const uint32_t nan = 0x7E00U | ((magnitude >> 13) & 0x1FFU);
        const uint32_t finite = choose(mask_of((int32_t)magnitude < 0x38800000), small, normal);
        const uint32_t large = choose(mask_of((int32_t)magnitude > 0x7F800000), nan, 0x7C00U);

        to[i] = (uint16_t)(choose(mask_of((int32_t)magnitude >= 0x477FF000), large, finite) |
                           ((bits >> 16) & 0x8000U));
    }
}
