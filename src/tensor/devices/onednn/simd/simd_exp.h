/* SPDX-License-Identifier: Apache-2.0 */
/* simd_exp.h - the exponential function in a form that the compiler vectorises. */
#ifndef LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_EXP_H
#define LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_EXP_H

#include <stdint.h>
#include <string.h>

#define EXP_LEAST (-87.0F) /* below, a result would not be a normal number */

/*
 * exp(t) = 2^k exp(r) with k = round(t / ln 2) and |r| <= ln 2 / 2; exp(r) by its Taylor polynomial
 * to r^7, whose remainder is below a tenth of a rounding error. ln 2 is split in two, so that t - k
 * ln 2 is exact to the last place. Adding 1.5 * 2^23 rounds to an integer, which is then in the low
 * bits.
 */
static inline float exp_fraction(float t, uint32_t *shifted_bits)
{
    const float shifter = 12582912.0F;
    const float shifted = t * 1.44269504F + shifter;
    const float k = shifted - shifter;
    const float r = (t - k * 0.693359375F) - k * -2.12194440e-4F;
    float p = 1.0F / 5040;

    p = p * r + 1.0F / 720;
    p = p * r + 1.0F / 120;
    p = p * r + 1.0F / 24;
    p = p * r + 1.0F / 6;
    p = p * r + 0.5F;
    memcpy(shifted_bits, &shifted, sizeof(*shifted_bits));
    return p * r * r + r + 1.0F;
}

static inline float exp_power(uint32_t k)
{
    const uint32_t bits = (k + 127U) << 23;
    float power;

    memcpy(&power, &bits, sizeof(power));
    return power;
}

/* For t where the result is a normal number. */
static inline float exp_of(float t)
{
    uint32_t k;
    const float p = exp_fraction(t, &k);

    return p * exp_power(k);
}

/* For every t: 2^k in two factors, which may be below or above the normal numbers together. */
static inline float exp_wide(float t)
{
    const float low = t < -104.0F ? -104.0F : t;
    uint32_t bits;
    const float p = exp_fraction(low > 89.0F ? 89.0F : low, &bits);
    const int32_t k = (int32_t)(bits - 0x4B400000U); // less the shifter's
    const int32_t half = k >> 1;

    return p * exp_power((uint32_t)half) * exp_power((uint32_t)(k - half));
}

#endif
