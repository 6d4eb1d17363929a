/* SPDX-License-Identifier: Apache-2.0 */
/* simd_avg_pool.c - average pooling of one window, vectorised over its channels. */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#define LANES 16
#include "tensor/devices/onednn/simd/simd_avg_pool.inc"
#undef LANES
#define LANES 8
#include "tensor/devices/onednn/simd/simd_avg_pool.inc"
#undef LANES
#define LANES 1
#include "tensor/devices/onednn/simd/simd_avg_pool.inc"
#undef LANES

void SIMD_NAME(pool_mean)(const avg_window *k, const float *x, float *y)
{
    size_t width;

    for (size_t i = 0; i < k->lanes; i += width) {
        width = width_for(k->lanes - i);
        if (width == 16)
            window_mean_16(k, x + i, y + i);
        else if (width == 8)
            window_mean_8(k, x + i, y + i);
        else
            window_mean_1(k, x + i, y + i);
    }
}

void SIMD_NAME(pool_mean_backward)(const avg_window *k, const float *dy, float *dx)
{
    size_t width;

    for (size_t i = 0; i < k->lanes; i += width) {
        width = width_for(k->lanes - i);
        if (width == 16)
            window_spread_16(k, dy + i, dx + i);
        else if (width == 8)
            window_spread_8(k, dy + i, dx + i);
        else
            window_spread_1(k, dy + i, dx + i);
    }
}
