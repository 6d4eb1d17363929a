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

void SIMD_NAME(bn_moments)(const void *x, bool bf16, size_t rows, size_t lanes, float *mean,
                           float *squares)
{
    if (bf16)
        EACH_WIDTH(moments, x, rows, lanes, true, i, mean, squares);
    else
        EACH_WIDTH(moments, x, rows, lanes, false, i, mean, squares);
}

/* bf16 and a NULL of added are constants. */
SIMD_INLINE void all_apply(const void *x, const void *added, void *y, bool bf16, size_t rows,
                           size_t lanes, const bn_lanes *p)
{
    EACH_WIDTH(apply, x, added, y, rows, lanes, bf16, p, i);
}

void SIMD_NAME(bn_apply)(const void *x, const void *added, void *y, bool bf16, size_t rows,
                         size_t lanes, const bn_lanes *p)
{
    if (bf16 && added != NULL)
        all_apply(x, added, y, true, rows, lanes, p);
    else if (bf16)
        all_apply(x, NULL, y, true, rows, lanes, p);
    else if (added != NULL)
        all_apply(x, added, y, false, rows, lanes, p);
    else
        all_apply(x, NULL, y, false, rows, lanes, p);
}

/* bf16, relu, and a NULL of m or m->dy2 are constants. */
SIMD_INLINE void all_sums(const void *x, const void *dy, const bn_mask *m, bool bf16, size_t rows,
                          size_t lanes, const bn_lanes *p, bool relu, float *sum_dy,
                          float *sum_dy_x)
{
    EACH_WIDTH(sums, x, dy, m, rows, lanes, bf16, p, i, relu, sum_dy, sum_dy_x);
}

SIMD_INLINE void sums_of(const void *x, const void *dy, const bn_mask *m, bool bf16, size_t rows,
                         size_t lanes, const bn_lanes *p, float *sum_dy, float *sum_dy_x)
{
    if (m != NULL && m->dy2 != NULL) {
        all_sums(x, dy, m, bf16, rows, lanes, p, false, sum_dy, sum_dy_x);
    } else if (m != NULL) {
        const bn_mask alone = {.result = m->result, .dy2 = NULL, .masked = m->masked};

        all_sums(x, dy, &alone, bf16, rows, lanes, p, false, sum_dy, sum_dy_x);
    } else if (p->relu) {
        all_sums(x, dy, NULL, bf16, rows, lanes, p, true, sum_dy, sum_dy_x);
    } else {
        all_sums(x, dy, NULL, bf16, rows, lanes, p, false, sum_dy, sum_dy_x);
    }
}

void SIMD_NAME(bn_sums)(const void *x, const void *dy, const bn_mask *m, bool bf16, size_t rows,
                        size_t lanes, const bn_lanes *p, float *sum_dy, float *sum_dy_x)
{
    if (bf16)
        sums_of(x, dy, m, true, rows, lanes, p, sum_dy, sum_dy_x);
    else
        sums_of(x, dy, m, false, rows, lanes, p, sum_dy, sum_dy_x);
}

SIMD_INLINE void all_dx(const void *x, const void *dy, void *dx, bool bf16, size_t rows,
                        size_t lanes, const bn_lanes *p, const bn_slopes *s, bool relu)
{
    EACH_WIDTH(dx, x, dy, dx, rows, lanes, bf16, p, s, i, relu);
}

void SIMD_NAME(bn_dx)(const void *x, const void *dy, void *dx, bool bf16, size_t rows, size_t lanes,
                      const bn_lanes *p, const bn_slopes *s)
{
    if (bf16 && p->relu)
        all_dx(x, dy, dx, true, rows, lanes, p, s, true);
    else if (bf16)
        all_dx(x, dy, dx, true, rows, lanes, p, s, false);
    else if (p->relu)
        all_dx(x, dy, dx, false, rows, lanes, p, s, true);
    else
        all_dx(x, dy, dx, false, rows, lanes, p, s, false);
}
