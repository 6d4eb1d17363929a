/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_activate.c - activations and their derivatives, without branches, for vectors.
 *
 * The tail of the normal distribution comes from erfc(z) = exp(-z^2) Q(t) with t = 1 / (1 + P z),
 * the form of Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26. Q is a
 * polynomial of degree 9 fitted to it by relative least squares at 4000 Chebyshev points of z in 0
 * to 9.4: off by 8e-8 of erfc(z) itself, and by 3e-7 in float32.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_sigmoid.h"

#include <math.h>
#include <stdbool.h>

#define SQRT_HALF    0.70710678F
#define INV_SQRT_2PI 0.39894228F

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

/* --- functions of <math.h> without branches, where loops need them to be fast --- */

SIMD_INLINE float fast_exp(float x)
{
    return exp_wide(x);
}

/* The polynomial and the halves of ln 2 are those of Moshier, "Methods and Programs for
 * Mathematical Functions", 1989 (Cephes, logf). */
SIMD_INLINE float fast_log(float x)
{
    const bool is_tiny = x < 1.17549435e-38F;
    const float scaled = is_tiny ? x * 8388608.0F : x;
    uint32_t bits;
    float m;
    float e;
    float y;

    memcpy(&bits, &scaled, sizeof(bits));
    e = (float)(int32_t)(bits >> 23) - (is_tiny ? 149.0F : 126.0F);
    bits = (bits & 0x7FFFFFU) | 0x3F000000U; // 0.5 to 1
    memcpy(&m, &bits, sizeof(m));
    e = m < 0.70710678F ? e - 1.0F : e;
    m = (m < 0.70710678F ? m + m : m) - 1.0F;
    y = 7.0376836292E-2F;
    y = y * m - 1.1514610310E-1F;
    y = y * m + 1.1676998740E-1F;
    y = y * m - 1.2420140846E-1F;
    y = y * m + 1.4249322787E-1F;
    y = y * m - 1.6668057665E-1F;
    y = y * m + 2.0000714765E-1F;
    y = y * m - 2.4999993993E-1F;
    y = y * m + 3.3333331174E-1F;
    y = y * m * m * m - e * 2.12194440e-4F - 0.5F * m * m;
    y = m + y + e * 0.693359375F;
    y = x > 3.4028235e38F ? x : y; // infinity
    y = x == 0 ? -INFINITY : y;
    return x >= 0 ? y : NAN;
}

/* e is 0 to 1. Dividing by the difference that rounding made cancels its error. */
SIMD_INLINE float fast_log1p(float e)
{
    const float u = 1.0F + e;

    return u == 1.0F ? e : fast_log(u) * (e / (u - 1.0F));
}

#define fast_sqrt  sqrtf
#define fast_sin   sinf
#define fast_cos   cosf
#define fast_expm1 expm1f
#define fast_pow   powf

#define REAL             float
#define UNARY_FN         SIMD_INLINE
#define UNARY_NAME(name) name
#define UNARY_MATH(name) fast_##name
#define UNARY_SIGMOID(x) sigmoid(x).is
#include "tensor/formulas/unary.inc"

/* --- loops --- */

SIMD_INLINE float value_of(ls_activation f, const float *p, float x)
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
    case LS_ACT_GELU:
        return x * normal_at(x).below;
    default:
        return unary_value(f, p, x);
    }
}

SIMD_INLINE float slope_of(ls_activation f, const float *p, float x)
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
    case LS_ACT_GELU:
        d = normal_at(x);
        return d.below + x * d.density;
    default:
        return unary_slope(f, p, x);
    }
}

SIMD_INLINE void values(ls_activation f, const float *numbers, const float *x, float *y, size_t n)
{
    const float p[2] = {numbers[0], numbers[1]}; // y may be anywhere

    for (size_t i = 0; i < n; i++)
        y[i] = value_of(f, p, x[i]);
}

SIMD_INLINE void slopes(ls_activation f, const float *numbers, const float *x, const float *dy,
                        float *dx, size_t n)
{
    const float p[2] = {numbers[0], numbers[1]};

    for (size_t i = 0; i < n; i++)
        dx[i] = slope_of(f, p, x[i]) * dy[i];
}

/* clang-format off */
#define EACH_ACTIVATION(X)                                                                         \
    X(LS_ACT_RELU6) X(LS_ACT_SIGMOID) X(LS_ACT_SILU) X(LS_ACT_HARDSIGMOID) X(LS_ACT_HARDSWISH)     \
    X(LS_ACT_GELU) X(LS_ACT_GELU_TANH) X(LS_ACT_EXP) X(LS_ACT_LOG) X(LS_ACT_SQRT) X(LS_ACT_RSQRT)  \
    X(LS_ACT_TANH) X(LS_ACT_ABS) X(LS_ACT_SQUARE) X(LS_ACT_RECIPROCAL) X(LS_ACT_SIN) X(LS_ACT_COS) \
    X(LS_ACT_LEAKY_RELU) X(LS_ACT_ELU) X(LS_ACT_SOFTPLUS) X(LS_ACT_CLAMP) X(LS_ACT_POW)            \
    X(LS_ACT_LINEAR)
/* clang-format on */

/* The function is a constant in each loop. */
void SIMD_NAME(activate)(ls_activation f, const float *p, const float *x, float *y, size_t n)
{
    switch (f) {
#define VALUES(F)                                                                                  \
    case F:                                                                                        \
        values(F, p, x, y, n);                                                                     \
        break;
        EACH_ACTIVATION(VALUES)
#undef VALUES
    }
}

void SIMD_NAME(activate_backward)(ls_activation f, const float *p, const float *x, const float *dy,
                                  float *dx, size_t n)
{
    switch (f) {
#define SLOPES(F)                                                                                  \
    case F:                                                                                        \
        slopes(F, p, x, dy, dx, n);                                                                \
        break;
        EACH_ACTIVATION(SLOPES)
#undef SLOPES
    }
}
