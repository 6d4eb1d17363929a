/* SPDX-License-Identifier: Apache-2.0 */
/* simd_sigmoid.h - the logistic function and tanh in a form that the compiler vectorises. */
#ifndef LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_SIGMOID_H
#define LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_SIGMOID_H

#include "tensor/devices/onednn/simd/simd_exp.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#include <math.h>
#include <stdbool.h>

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
    const bool is_small = x < 0;

    // Choosing before dividing: a caller of one of both has one division.
    return (parted){.is = (is_small ? e : 1.0F) / (1.0F + e),
                    .rest = (is_small ? 1.0F : e) / (1.0F + e)};
}

/* Moshier, "Methods and Programs for Mathematical Functions", 1989 (Cephes, tanhf). */
SIMD_INLINE float fast_tanh(float x)
{
    const float z = x * x;
    const float size = fabsf(x);
    const float far = 1.0F - 2.0F / (exp_wide(2.0F * size) + 1.0F);
    float near = -5.70498872745E-3F;

    near = near * z + 2.06390887954E-2F;
    near = near * z - 5.37397155531E-2F;
    near = near * z + 1.33314422036E-1F;
    near = near * z - 3.33332819422E-1F;
    near = near * z * x + x;
    return size < 0.625F ? near : x < 0 ? -far : far;
}

#endif
