/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_activate.c - activations and their derivatives, without branches, for vectors.
 *
 * The tail of the normal distribution comes from erfc(z) = exp(-z^2) Q(t) with t = 1 / (1 + P z),
 * the form of Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26. Q is a
 * polynomial of degree 9 fitted to it by relative least squares at 4000 Chebyshev points of z in 0
 * to 9.4: off by 8e-8 of erfc(z) itself, and by 3e-7 in float32.
 */
#include "tensor/onednn/simd_exp.h"
#include "tensor/onednn/simd_isa.h"
#include "tensor/onednn/simd_lanes.h"

#include <math.h>

#define SQRT_HALF    0.70710678F
#define INV_SQRT_2PI 0.39894228F

/* 1 / (1 + exp(-x)), and 1 minus that, both without cancellation. */
typedef struct parted {
    float is;
    float rest;
} parted;

SIMD_INLINE float exp_or_0(float t)
{
    return t < EXP_LEAST ? 0.0F : exp_of(t);
}

SIMD_INLINE parted sigmoid(float x)
{
    const float e = exp_or_0(-fabsf(x));
    const float large = 1.0F / (1.0F + e);
    const float small = e / (1.0F + e);

    return (parted){.is = x < 0 ? small : large, .rest = x < 0 ? large : small};
}

/* The normal distribution's share below x, and its density at x. */
typedef struct normal {
    float below;
    float density;
} normal;

SIMD_INLINE normal normal_at(float x)
{
    const float e = exp_or_0(-0.5F * x * x);
    const float t = 1.0F / (1.0F + 0.675F * SQRT_HALF * fabsf(x));
    float q = 0.1055646F;
    float tail;

    q = q * t - 0.55793897F;
    q = q * t + 1.16868283F;
    q = q * t - 1.10988601F;
    q = q * t + 0.2997915F;
    q = q * t + 0.02469455F;
    q = q * t + 0.30860605F;
    q = q * t + 0.37961495F;
    q = q * t + 0.38087058F;
    tail = 0.5F * e * q * t;
    return (normal){.below = x < 0 ? tail : 1.0F - tail, .density = INV_SQRT_2PI * e};
}

/* NaN stays NaN. */
SIMD_INLINE float clamp_to_6(float x)
{
    const float low = x < 0 ? 0 : x;

    return low > 6 ? 6 : low;
}

SIMD_INLINE float value_of(ls_activation f, float x)
{
    switch (f) {
    case LS_ACT_RELU6:
        return clamp_to_6(x);
    case LS_ACT_SIGMOID:
        return sigmoid(x).is;
    case LS_ACT_SILU:
        return x * sigmoid(x).is;
    case LS_ACT_HARDSIGMOID:
        return clamp_to_6(x + 3) / 6;
    case LS_ACT_HARDSWISH:
        return x * clamp_to_6(x + 3) / 6;
    default:
        return x * normal_at(x).below;
    }
}

SIMD_INLINE float slope_of(ls_activation f, float x)
{
    parted s;
    normal d;

    switch (f) {
    case LS_ACT_RELU6:
        return x <= 0 || x >= 6 ? 0.0F : 1.0F;
    case LS_ACT_SIGMOID:
        s = sigmoid(x);
        return s.is * s.rest;
    case LS_ACT_SILU:
        s = sigmoid(x);
        return s.is * (1.0F + x * s.rest);
    case LS_ACT_HARDSIGMOID:
        return x <= -3 || x >= 3 ? 0.0F : 1.0F / 6;
    case LS_ACT_HARDSWISH:
        return x <= -3 ? 0.0F : x >= 3 ? 1.0F : x / 3 + 0.5F;
    default:
        d = normal_at(x);
        return d.below + x * d.density;
    }
}

SIMD_INLINE void values(ls_activation f, const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = value_of(f, x[i]);
}

SIMD_INLINE void slopes(ls_activation f, const float *x, const float *dy, float *dx, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = slope_of(f, x[i]) * dy[i];
}

void SIMD_NAME(activate)(ls_activation f, const float *x, float *y, size_t n)
{
    switch (f) {
    case LS_ACT_RELU6:
        values(LS_ACT_RELU6, x, y, n);
        break;
    case LS_ACT_SIGMOID:
        values(LS_ACT_SIGMOID, x, y, n);
        break;
    case LS_ACT_SILU:
        values(LS_ACT_SILU, x, y, n);
        break;
    case LS_ACT_HARDSIGMOID:
        values(LS_ACT_HARDSIGMOID, x, y, n);
        break;
    case LS_ACT_HARDSWISH:
        values(LS_ACT_HARDSWISH, x, y, n);
        break;
    default:
        values(LS_ACT_GELU, x, y, n);
        break;
    }
}

void SIMD_NAME(activate_backward)(ls_activation f, const float *x, const float *dy, float *dx,
                                  size_t n)
{
    switch (f) {
    case LS_ACT_RELU6:
        slopes(LS_ACT_RELU6, x, dy, dx, n);
        break;
    case LS_ACT_SIGMOID:
        slopes(LS_ACT_SIGMOID, x, dy, dx, n);
        break;
    case LS_ACT_SILU:
        slopes(LS_ACT_SILU, x, dy, dx, n);
        break;
    case LS_ACT_HARDSIGMOID:
        slopes(LS_ACT_HARDSIGMOID, x, dy, dx, n);
        break;
    case LS_ACT_HARDSWISH:
        slopes(LS_ACT_HARDSWISH, x, dy, dx, n);
        break;
    default:
        slopes(LS_ACT_GELU, x, dy, dx, n);
        break;
    }
}
