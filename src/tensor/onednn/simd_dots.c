/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_dots.c - the product of a few rows x with the transpose of a large matrix w, both as they
 * are in memory: dot products of rows. A general product first copies w into panels, which takes
 * longer than the multiplications of a few rows.
 */
#include "tensor/onednn/simd_isa.h"
#include "tensor/onednn/simd_lanes.h"

#define LANES SIMD_LANES_MAX
#define PART  ((size_t)1024) /* columns: a tile's rows of x stay in the L1 cache */
#define BLOCK ((size_t)16)   /* rows of w, which stay in the L2 cache for all tiles */

#define TILE 6 /* rows of x, by two rows of w: 12 registers of sums */

/* Without this GCC reads a value of x from memory again for each of its uses. */
#if defined(__AVX512F__)
#define IN_REGISTER(value) __asm__("" : "+v"(value))
#elif defined(__AVX2__) && SIMD_LANES_MAX == 8
#define IN_REGISTER(value) __asm__("" : "+x"(value))
#else
#define IN_REGISTER(value)
#endif

SIMD_INLINE float total(float *lane)
{
    SIMD_UNROLL
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    }
    return lane[0];
}

/* y (+)= x w' for `tile` rows of x, `pair` rows of w, and columns [0, n). */
SIMD_INLINE void dots_tile(const few_rows *m, size_t n, bool add, const float *x, const float *w,
                           float *y, size_t tile, size_t pair)
{
    V(vec) sum[2 * TILE];
    float lanes[2 * TILE][LANES];
    size_t k = 0;

    SIMD_UNROLL
    for (size_t i = 0; i < tile * pair; i++)
        sum[i] = (V(vec)){0};
    for (; k + LANES <= n; k += LANES) {
        V(vec) row[2];

        SIMD_UNROLL
        for (size_t i = 0; i < pair; i++)
            V(load)(&row[i], w + i * m->depth + k);
        SIMD_UNROLL
        for (size_t i = 0; i < tile; i++) {
            V(vec) value;

            V(load)(&value, x + i * m->depth + k);
            IN_REGISTER(value);
            SIMD_UNROLL
            for (size_t j = 0; j < pair; j++)
                sum[i * pair + j] += value * row[j];
        }
    }
    SIMD_UNROLL
    for (size_t i = 0; i < tile * pair; i++)
        V(store)(lanes[i], &sum[i]);
    for (size_t i = 0; i < tile * pair; i++) {
        float *to = y + i / pair * m->outputs + i % pair;
        float of = total(lanes[i]);

        for (size_t j = k; j < n; j++)
            of += x[i / pair * m->depth + j] * w[i % pair * m->depth + j];
        *to = add ? *to + of : of;
    }
}

#define TILE_OF(rows, pair)                                                                        \
    case rows:                                                                                     \
        dots_tile(m, n, add, x, w, y, rows, pair);                                                 \
        break;

#define DOTS_OF(name, pair)                                                                        \
    static void name(const few_rows *m, size_t n, bool add, const float *x, const float *w,        \
                     float *y, size_t tile)                                                        \
    {                                                                                              \
        switch (tile) {                                                                            \
            TILE_OF(1, pair)                                                                       \
            TILE_OF(2, pair)                                                                       \
            TILE_OF(3, pair)                                                                       \
            TILE_OF(4, pair)                                                                       \
            TILE_OF(5, pair)                                                                       \
        default:                                                                                   \
            dots_tile(m, n, add, x, w, y, TILE, pair);                                             \
        }                                                                                          \
    }

DOTS_OF(dots_two, 2)
DOTS_OF(dots_one, 1)

/* The same for n_w rows of w, at most BLOCK. */
static void dots_block(const few_rows *m, size_t n, bool add, const float *x, const float *w,
                       float *y, size_t tile, size_t n_w)
{
    size_t i = 0;

    for (; i + 2 <= n_w; i += 2)
        dots_two(m, n, add, x, w + i * m->depth, y + i, tile);
    if (i < n_w)
        dots_one(m, n, add, x, w + i * m->depth, y + i, tile);
}

void SIMD_NAME(dots)(const few_rows *m, const float *x, const float *w, float *y, size_t begin,
                     size_t end)
{
    const size_t n_tiles = (m->rows + TILE - 1) / TILE;

    for (size_t k = 0; k < m->depth; k += PART) {
        const size_t n = m->depth - k < PART ? m->depth - k : PART;

        for (size_t j = begin; j < end; j += BLOCK) {
            const size_t n_w = end - j < BLOCK ? end - j : BLOCK;

            // Even tiles: one of few rows multiplies slowly.
            for (size_t t = 0, row = 0; t < n_tiles; t++) {
                const size_t tile = m->rows / n_tiles + (t < m->rows % n_tiles);

                dots_block(m, n, m->add || k > 0, x + row * m->depth + k, w + j * m->depth + k,
                           y + row * m->outputs + j, tile, n_w);
                row += tile;
            }
        }
    }
}
