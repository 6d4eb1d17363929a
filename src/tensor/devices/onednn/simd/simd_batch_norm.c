/* SPDX-License-Identifier: Apache-2.0 */
/* simd_batch_norm.c - batch normalisation, vectorised over 16, 8 or 1 channels. */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#define LANES 16
#include "tensor/devices/onednn/simd/simd_batch_norm.inc"
#undef LANES
#define LANES 8
#include "tensor/devices/onednn/simd/simd_batch_norm.inc"
#undef LANES
#define LANES 1
#include "tensor/devices/onednn/simd/simd_batch_norm.inc"
#undef LANES

void SIMD_NAME(bn_moments)(const float *x, size_t rows, size_t lanes, float *mean, float *squares)
{
    size_t width;

    for (size_t i = 0; i < lanes; i += width) {
        width = width_for(lanes - i);
        if (width == 16)
            moments_16(x + i, rows, lanes, mean + i, squares + i);
        else if (width == 8)
            moments_8(x + i, rows, lanes, mean + i, squares + i);
        else
            moments_1(x + i, rows, lanes, mean + i, squares + i);
    }
}

void SIMD_NAME(bn_apply)(const float *x, float *y, size_t rows, size_t lanes, const bn_lanes *p)
{
    size_t width;

    for (size_t i = 0; i < lanes; i += width) {
        width = width_for(lanes - i);
        if (width == 16)
            apply_16(x + i, y + i, rows, lanes, p, i);
        else if (width == 8)
            apply_8(x + i, y + i, rows, lanes, p, i);
        else
            apply_1(x + i, y + i, rows, lanes, p, i);
    }
}

SIMD_INLINE void all_sums(const float *x, const float *dy, size_t rows, size_t lanes,
                          const bn_lanes *p, bool relu, float *sum_dy, float *sum_dy_x)
{
    size_t width;

    for (size_t i = 0; i < lanes; i += width) {
        width = width_for(lanes - i);
        if (width == 16)
            sums_16(x + i, dy + i, rows, lanes, p, i, relu, sum_dy + i, sum_dy_x + i);
        else if (width == 8)
            sums_8(x + i, dy + i, rows, lanes, p, i, relu, sum_dy + i, sum_dy_x + i);
        else
            sums_1(x + i, dy + i, rows, lanes, p, i, relu, sum_dy + i, sum_dy_x + i);
    }
}

void SIMD_NAME(bn_sums)(const float *x, const float *dy, size_t rows, size_t lanes,
                        const bn_lanes *p, float *sum_dy, float *sum_dy_x)
{
    if (p->relu)
        all_sums(x, dy, rows, lanes, p, true, sum_dy, sum_dy_x);
    else
        all_sums(x, dy, rows, lanes, p, false, sum_dy, sum_dy_x);
}

SIMD_INLINE void all_dx(const float *x, const float *dy, float *dx, size_t rows, size_t lanes,
                        const bn_lanes *p, const bn_slopes *s, bool relu)
{
    size_t width;

    for (size_t i = 0; i < lanes; i += width) {
        width = width_for(lanes - i);
        if (width == 16)
            dx_16(x + i, dy + i, dx + i, rows, lanes, p, s, i, relu);
        else if (width == 8)
            dx_8(x + i, dy + i, dx + i, rows, lanes, p, s, i, relu);
        else
            dx_1(x + i, dy + i, dx + i, rows, lanes, p, s, i, relu);
    }
}

void SIMD_NAME(bn_dx)(const float *x, const float *dy, float *dx, size_t rows, size_t lanes,
                      const bn_lanes *p, const bn_slopes *s)
{
    if (p->relu)
        all_dx(x, dy, dx, rows, lanes, p, s, true);
    else
        all_dx(x, dy, dx, rows, lanes, p, s, false);
}
