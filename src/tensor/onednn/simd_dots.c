/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_dots.c - the product of a few rows x with the transpose of a large matrix w, both as they
 * are in memory: dot products of rows. A general product first copies w into panels, which takes
 * longer than the multiplications of a few rows.
 */
#include "tensor/onednn/simd_isa.h"
#include "tensor/onednn/simd_lanes.h"

#define LANES SIMD_LANES_MAX
#define PART  ((size_t)2048) /* columns: a tile's rows of x stay in the caches */
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

/* Elements of two vectors of 8 floats, numbered one after the other. */
#ifdef __clang__
#define CHOOSE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CHOOSE(a, b, ...) __builtin_shuffle(a, b, (mask_8){__VA_ARGS__})
#endif

/* out[i] = the sum of the lanes of s[i], i below 4. */
SIMD_INLINE void totals(const vec_8 *s, float *out)
{
    vec_8 two[2];
    vec_8 four;
    float lanes[8];

    SIMD_UNROLL
    for (size_t i = 0; i < 2; i++)
        two[i] = CHOOSE(s[2 * i], s[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 CHOOSE(s[2 * i], s[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    four = CHOOSE(two[0], two[1], 0, 1, 8, 9, 4, 5, 12, 13) +
           CHOOSE(two[0], two[1], 2, 3, 10, 11, 6, 7, 14, 15);
    store_8(lanes, &four);
    SIMD_UNROLL
    for (size_t i = 0; i < 4; i++)
        out[i] = lanes[i] + lanes[i + 4];
}

/* Eight sums of the lanes. */
SIMD_INLINE void fold(const float *lanes, vec_8 *to)
{
    load_8(to, lanes);
    for (size_t i = 8; i < LANES; i += 8) {
        vec_8 more;

        load_8(&more, lanes + i);
        *to += more;
    }
}

/* y (+)= x w' for `tile` rows of x, `pair` rows of w, and columns [0, n). Meanwhile the row at
 * `next` comes into the cache. */
SIMD_INLINE void dots_tile(const few_rows *m, size_t n, bool add, const float *x, const float *w,
                           float *y, size_t tile, size_t pair, const float *next)
{
    V(vec) sum[2 * TILE];
    vec_8 parts[2 * TILE + 3] = {{0}};
    float of[2 * TILE + 3];
    size_t k = 0;

    SIMD_UNROLL
    for (size_t i = 0; i < tile * pair; i++)
        sum[i] = (V(vec)){0};
    for (; k + LANES <= n; k += LANES) {
        V(vec) row[2];

        __builtin_prefetch(next + k);
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
    for (size_t i = 0; i < tile * pair; i++) {
        float lanes[LANES];

        V(store)(lanes, &sum[i]);
        fold(lanes, &parts[i]);
    }
    SIMD_UNROLL
    for (size_t i = 0; i < tile * pair; i += 4)
        totals(parts + i, of + i);
    for (size_t i = 0; i < tile * pair && k < n; i++) {
        for (size_t j = k; j < n; j++)
            of[i] += x[i / pair * m->depth + j] * w[i % pair * m->depth + j];
    }
    SIMD_UNROLL
    for (size_t i = 0; i < tile * pair; i++) {
        float *to = y + i / pair * m->outputs + i % pair;

        *to = add ? *to + of[i] : of[i];
    }
}

#define TILE_OF(rows, pair)                                                                        \
    case rows:                                                                                     \
        dots_tile(m, n, add, x, w, y, rows, pair, next);                                           \
        break;

#define DOTS_OF(name, pair)                                                                        \
    static void name(const few_rows *m, size_t n, bool add, const float *x, const float *w,        \
                     float *y, size_t tile, const float *next)                                     \
    {                                                                                              \
        switch (tile) {                                                                            \
            TILE_OF(1, pair)                                                                       \
            TILE_OF(2, pair)                                                                       \
            TILE_OF(3, pair)                                                                       \
            TILE_OF(4, pair)                                                                       \
            TILE_OF(5, pair)                                                                       \
        default:                                                                                   \
            dots_tile(m, n, add, x, w, y, TILE, pair, next);                                       \
        }                                                                                          \
    }

DOTS_OF(dots_two, 2)
DOTS_OF(dots_one, 1)

/* The same for n_w rows of w, at most BLOCK. The first two tiles fetch the next block, one row of
 * two each: `ahead` is where this begins, or w. */
static void dots_block(const few_rows *m, size_t n, bool add, const float *x, const float *w,
                       float *y, size_t tile, size_t n_w, const float *ahead)
{
    size_t i = 0;

    for (; i + 2 <= n_w; i += 2)
        dots_two(m, n, add, x, w + i * m->depth, y + i, tile, ahead + i * m->depth);
    if (i < n_w)
        dots_one(m, n, add, x, w + i * m->depth, y + i, tile, ahead + i * m->depth);
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
                const size_t ahead = t < 2 && j + 2 * BLOCK <= end ? BLOCK + t : 0;
                const float *block = w + j * m->depth + k;

                dots_block(m, n, m->add || k > 0, x + row * m->depth + k, block,
                           y + row * m->outputs + j, tile, n_w, block + ahead * m->depth);
                row += tile;
            }
        }
    }
}
