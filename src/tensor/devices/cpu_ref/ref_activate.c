/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_activate.c - activations and their derivatives, by definition.
 *
 * GELU is x P(x) with P(x) = (1 + erf(x / sqrt(2))) / 2 (Hendrycks and Gimpel, "Gaussian Error
 * Linear Units", 2016); its derivative is P(x) + x exp(-x^2 / 2) / sqrt(2 pi). The hard functions
 * are those of "Searching for MobileNetV3" (Howard et al., 2019).
 */
#include "tensor/devices/cpu_ref/ref.h"

#include <math.h>

#define SQRT_HALF    0.70710678118654752440
#define INV_SQRT_2PI 0.39894228040143267794 /* 1 / sqrt(2 pi) */

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

#define REAL             double
#define UNARY_FN         static
#define UNARY_NAME(name) name
#define UNARY_MATH(name) name
#define UNARY_SIGMOID    sigmoid
#include "tensor/formulas/unary.inc"

/* NaN stays NaN. */
static double clamp(double x, double low, double high)
{
    if (x < low)
        return low;
    return x > high ? high : x;
}

static double value_of(ls_activation f, const double *p, double x)
{
    switch (f) {
    case LS_ACT_RELU6:
        return clamp(x, 0, 6);
    case LS_ACT_SIGMOID:
        return sigmoid(x);
    case LS_ACT_SILU:
        return x * sigmoid(x);
    case LS_ACT_HARDSIGMOID:
        return clamp(x + 3, 0, 6) / 6;
    case LS_ACT_HARDSWISH:
        return x * clamp(x + 3, 0, 6) / 6;
    case LS_ACT_GELU:
        return x * erfc(-x * SQRT_HALF) / 2;
    default:
        return unary_value(f, p, x);
    }
}

static double slope_of(ls_activation f, const double *p, double x)
{
    const double s = sigmoid(x);

    switch (f) {
    case LS_ACT_RELU6:
        return x <= 0 || x >= 6 ? 0 : 1;
    case LS_ACT_SIGMOID:
        return s * (1 - s);
    case LS_ACT_SILU:
        return s * (1 + x * (1 - s));
    case LS_ACT_HARDSIGMOID:
        return x <= -3 || x >= 3 ? 0 : 1.0 / 6;
    case LS_ACT_HARDSWISH:
        if (x <= -3)
            return 0;
        return x >= 3 ? 1 : x / 3 + 0.5;
    case LS_ACT_GELU:
        return erfc(-x * SQRT_HALF) / 2 + x * INV_SQRT_2PI * exp(-x * x / 2);
    default:
        return unary_slope(f, p, x);
    }
}

ls_status ref_activate(const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const bool wide = ref_wide(x);

    for (size_t i = 0; i < ls_tensor_count(x); i++)
        ref_put(tensor_elements(call->out[0]), i,
                value_of(call->attrs.activation, call->attrs.param,
                         ref_get(tensor_elements(x), i, wide)),
                wide);
    return LS_OK;
}

ls_status ref_activate_backward(const op_call *call)
{
    const ls_tensor *x = call->in[0];
    const void *dy = tensor_elements(call->in[1]);
    const bool wide = ref_wide(x);

    for (size_t i = 0; i < ls_tensor_count(x); i++) {
        const double slope = slope_of(call->attrs.activation, call->attrs.param,
                                      ref_get(tensor_elements(x), i, wide));

        ref_put(tensor_elements(call->out[0]), i, slope * ref_get(dy, i, wide), wide);
    }
    return LS_OK;
}
