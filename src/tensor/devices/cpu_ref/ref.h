/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref.h - the reference kernels, and how they read and write elements.
 *
 * A kernel finds its outputs placed. It is written once, over `double`; the element width is an
 * argument that the compiler folds away. Sums of float32 results are therefore in double and
 * rounded once.
 *
 * tensor/devices/cpu_ref/: the reference device, part of the library. tensor/device_open.c opens
 * it.
 */
#ifndef LS_TENSOR_DEVICES_CPU_REF_REF_H
#define LS_TENSOR_DEVICES_CPU_REF_REF_H

#include "tensor/device.h"

#define REF_INLINE static inline __attribute__((always_inline))

/* Element i of float64 (`wide`) or float32 elements. */
REF_INLINE double ref_get(const void *data, size_t i, bool wide)
{
    return wide ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

REF_INLINE void ref_put(void *data, size_t i, double value, bool wide)
{
    if (wide)
        ((double *)data)[i] = value;
    else
        ((float *)data)[i] = (float)value;
}

/* Writes a gradient, or adds to it. */
REF_INLINE void ref_give(void *data, size_t i, double value, bool accumulate, bool wide)
{
    ref_put(data, i, accumulate ? ref_get(data, i, wide) + value : value, wide);
}

static inline bool ref_wide(const ls_tensor *t)
{
    return t->dtype == LS_F64;
}

/* f(..., wide), compiled once for each element width; t decides which one runs. */
#define REF_RUN(t, f, ...)                                                                         \
    do {                                                                                           \
        if (ref_wide(t))                                                                           \
            f(__VA_ARGS__, true);                                                                  \
        else                                                                                       \
            f(__VA_ARGS__, false);                                                                 \
    } while (0)

/* Defines kernel NAME, which runs BODY(call, wide). */
#define REF_KERNEL(NAME, BODY)                                                                     \
    ls_status NAME(const op_call *call)                                                            \
    {                                                                                              \
        REF_RUN(call->in[0], BODY, call);                                                          \
        return LS_OK;                                                                              \
    }

typedef ls_status (*ref_kernel)(const op_call *call);

/* The kernels: ref_copy(), ref_conv2d(), ... */
#define OPERATOR(KIND, name, ...) ls_status ref_##name(const op_call *call);
#include "tensor/operators.inc"

#endif
