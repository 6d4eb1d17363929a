/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_elements.h - reads and writes elements of any floating type in host memory, for the files
 * that stand in for cuDNN and cuBLASLt in tests.
 */
#ifndef TESTS_DEVICES_HOST_ELEMENTS_H
#define TESTS_DEVICES_HOST_ELEMENTS_H

#include <lockstep/base.h>

#include "base/compute/half.h"

static inline double host_get(const void *data, size_t i, int32_t type)
{
    switch (type) {
    case LS_F64:
        return ((const double *)data)[i];
    case LS_F16:
        return (double)ls_f16_to_f32(((const uint16_t *)data)[i]);
    case LS_BF16:
        return (double)ls_bf16_to_f32(((const uint16_t *)data)[i]);
    default:
        return (double)((const float *)data)[i];
    }
}

static inline void host_put(void *data, size_t i, int32_t type, double v)
{
    switch (type) {
    case LS_F64:
        ((double *)data)[i] = v;
        break;
    case LS_F16:
        ((uint16_t *)data)[i] = ls_f32_to_f16((float)v);
        break;
    case LS_BF16:
        ((uint16_t *)data)[i] = ls_f32_to_bf16((float)v);
        break;
    default:
        ((float *)data)[i] = (float)v;
    }
}

#endif
