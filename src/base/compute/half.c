/* SPDX-License-Identifier: Apache-2.0 */
/*
 * half.c - scalar conversions of 16-bit floats, exact by integer arithmetic. The reference for the
 * vectorised kernels of comm/native and tensor/.
 */
#include "base/compute/half.h"

#include <string.h>

static uint32_t bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

float ls_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000U) << 16;
    const uint32_t exponent = (h >> 10) & 0x1FU;
    const uint32_t fraction = h & 0x3FFU;

    if (exponent == 0) {
        // A subnormal is fraction * 2^-24, which float32 represents exactly.
        const float magnitude = (float)fraction * 0x1p-24F;

        return float_of(bits_of(magnitude) | sign);
    }
    if (exponent == 31) {
        const uint32_t quiet = fraction != 0 ? 0x400000U : 0;

        return float_of(sign | 0x7F800000U | quiet | fraction << 13);
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Drops the low `n` bits of v, to nearest, ties to even. 0 < n < 32 and v < 2^31. */
static uint32_t drop_bits(uint32_t v, unsigned n)
{
    const uint32_t saved = v >> n;
    const uint32_t rest = v & ((1U << n) - 1);
    const uint32_t tie = 1U << (n - 1);

    return saved + (rest > tie || (rest == tie && (saved & 1U) != 0) ? 1 : 0);
}

uint16_t ls_f32_to_f16(float f)
{
    const uint32_t bits = bits_of(f);
    const uint32_t sign = (bits >> 16) & 0x8000U;
    const uint32_t magnitude = bits & 0x7FFFFFFFU;
    const uint32_t exponent = magnitude >> 23;

    if (magnitude > 0x7F800000U)
        return (uint16_t)(sign | 0x7E00U | ((magnitude >> 13) & 0x1FFU));
    // 65520 is halfway between the largest float16 and the next power of two.
    if (magnitude >= 0x477FF000U)
        return (uint16_t)(sign | 0x7C00U);
    // a carry out of the fraction correctly raises the exponent
    if (exponent >= 113)
        return (uint16_t)(sign | drop_bits(magnitude - (112U << 23), 13));
    // Below 2^-25 everything rounds to 0; 2^-25 itself is a tie, which goes to the even 0.
    if (exponent < 102)
        return (uint16_t)sign;
    return (uint16_t)(sign | drop_bits((magnitude & 0x7FFFFFU) | 0x800000U, 126 - exponent));
}

float ls_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;

    if ((bits & 0x7FFFFFFFU) > 0x7F800000U)
        bits |= 0x400000U;
    return float_of(bits);
}

uint16_t ls_f32_to_bf16(float f)
{
    const uint32_t bits = bits_of(f);

    if ((bits & 0x7FFFFFFFU) > 0x7F800000U)
        return (uint16_t)(bits >> 16 | 0x40U);
    // A carry never reaches the sign: the largest finite value rounds up to infinity.
    return (uint16_t)((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}
