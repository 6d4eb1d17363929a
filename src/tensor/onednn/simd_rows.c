/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_rows.c - what losses do with a row of numbers. Reductions go to as many parts as the widest processor has lanes, number i to
 * part i mod PARTS, so that every processor adds in the same order.
 */
#include "tensor/onednn/simd_isa.h"

#include <math.h>
#include <string.h>

#define EXP_LEAST (-87.0F) /* below, a result would not be a normal number */

enum { PARTS = 16 };

/*
 * exp(t) = 2^k exp(r) with k = round(t / ln 2) and |r| <= ln 2 / 2; exp(r) by its Taylor polynomial to r^7, whose rest is below a
 * tenth of a rounding error. ln 2 is split in two, so that t - k ln 2 is exact to the last place. Adding 1.5 * 2^23 rounds to an
 * integer, which then stands in the low bits.
 */
static inline float exp_of(float t)
{
    const float shifter = 12582912.0F;
    const float shifted = t * 1.44269504F + shifter;
    const float k = shifted - shifter;
    const float r = (t - k * 0.693359375F) - k * -2.12194440e-4F;
    float p = 1.0F / 5040;
    uint32_t bits;
    float power;

    p = p * r + 1.0F / 720;
    p = p * r + 1.0F / 120;
    p = p * r + 1.0F / 24;
    p = p * r + 1.0F / 6;
    p = p * r + 0.5F;
    p = p * r * r + r + 1.0F;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127U) << 23;
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}

void SIMD_NAME(exp_below)(const float *x, float top, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float t = x[i] - top;

        out[i] = t < EXP_LEAST ? 0.0F : exp_of(t);
    }
}

float SIMD_NAME(largest)(const float *x, size_t n)
{
    float part[PARTS];

    for (size_t k = 0; k < PARTS; k++)
        part[k] = -INFINITY;
    for (size_t i = 0; i + PARTS <= n; i += PARTS) {
        for (size_t k = 0; k < PARTS; k++)
            part[k] = x[i + k] > part[k] ? x[i + k] : part[k];
    }
    for (size_t k = 0; k < n % PARTS; k++) {
        const float last = x[n - n % PARTS + k];

        part[k] = last > part[k] ? last : part[k];
    }
    for (size_t k = 1; k < PARTS; k++)
        part[0] = part[k] > part[0] ? part[k] : part[0];
    return part[0];
}

double SIMD_NAME(sum)(const float *x, size_t n)
{
    double part[PARTS] = {0};

    for (size_t i = 0; i + PARTS <= n; i += PARTS) {
        for (size_t k = 0; k < PARTS; k++)
            part[k] += (double)x[i + k];
    }
    for (size_t k = 0; k < n % PARTS; k++)
        part[k] += (double)x[n - n % PARTS + k];
    for (size_t half = PARTS / 2; half > 0; half /= 2) {
        for (size_t k = 0; k < half; k++)
            part[k] += part[k + half];
    }
    return part[0];
}

void SIMD_NAME(shift)(const float *x, float a, float b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] - a - b;
}

void SIMD_NAME(shift_scale)(const float *x, float a, float b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - a) * b;
}

void SIMD_NAME(log_softmax_dx)(const float *y, const float *dy, float sum, float *dx, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = dy[i] - (y[i] < EXP_LEAST ? 0.0F : exp_of(y[i])) * sum;
}
