/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_product.c - a matrix product in the cache, for Winograd's convolution, convolutions of few
 * positions, and attention. Each element is added up in one order, whatever the width of the
 * vectors.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#define PART ((size_t)32) /* products of a partial sum */

#if SIMD_LANES_MAX >= 16
#define PRODUCT_TILE 12 /* of 32 registers */
#define LANES        16
#include "tensor/devices/onednn/simd/simd_product.inc"
#undef LANES
#undef PRODUCT_TILE
#endif

#define PRODUCT_TILE 6 /* of 16 registers */
#define LANES        8
#include "tensor/devices/onednn/simd/simd_product.inc"
#undef LANES

void SIMD_NAME(product)(const small_product *m, const float *a, const float *b, float *c)
{
    size_t i = 0;

#if SIMD_LANES_MAX >= 16
    for (; i + 32 <= m->columns; i += 32)
        product_two_16(m, a, b + i / 16 * m->b_panel, c + i);
    if (i + 16 <= m->columns) {
        product_one_16(m, a, b + i / 16 * m->b_panel, c + i);
        i += 16;
    }
#else
    for (; i + 16 <= m->columns; i += 16)
        product_two_8(m, a, b + i / 16 * m->b_panel, c + i);
#endif
    if (i < m->columns)
        product_one_8(m, a, b + i / 16 * m->b_panel, c + i);
}
