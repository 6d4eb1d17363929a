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
    const size_t lanes = k->lanes;

    EACH_WIDTH(window_mean, k, x + i, y + i);
}

void SIMD_NAME(pool_mean_backward)(const avg_window *k, const float *dy, float *dx)
{
    const size_t lanes = k->lanes;

    EACH_WIDTH(window_spread, k, dy + i, dx + i);
}
