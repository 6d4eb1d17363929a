/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_pairs.c - products of pairs of bfloat16. A tile of at most MOST_ROWS rows and two panels
 * stays in registers.
 */
#include "tensor/devices/onednn/simd/simd_pairs.h"

#include "tensor/devices/onednn/simd/simd_lanes.h"

enum { LANES = 16, MOST_ROWS = 12 };

/* What is done with the sums of a tile. */
typedef enum pair_result { PAIRS_STORE, PAIRS_ADD, PAIRS_ROUND } pair_result;

SIMD_INLINE void put_sums(const pair_product *p, pair_result how, const __m512 *sums, void *c,
                          size_t rows, size_t panels)
{
    SIMD_UNROLL
    for (size_t i = 0; i < rows * panels; i++) {
        const size_t at = i % panels * p->c_panel + i / panels * p->c_row;
        float *to = (float *)c + at;

        if (how == PAIRS_ROUND)
            _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)c + at),
                                (__m256i)_mm512_cvtneps_pbh(sums[i]));
        else if (how == PAIRS_ADD)
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sums[i]));
        else
            _mm512_storeu_ps(to, sums[i]);
    }
}

SIMD_INLINE void multiply_tile(const pair_product *p, pair_result how, const uint32_t *a,
                               const uint32_t *b, void *c, size_t rows, size_t panels)
{
    __m512 sums[2 * MOST_ROWS];

    SIMD_UNROLL
    for (size_t i = 0; i < rows * panels; i++)
        sums[i] = _mm512_setzero_ps();
    for (size_t block = 0; block < p->blocks; block++) {
        const uint32_t *row = a + block * p->a_block;

        for (size_t k = 0; k < p->depth; k++, row += p->a_step, b += LANES) {
            __m512bh columns[2];

            SIMD_UNROLL
            for (size_t i = 0; i < panels; i++)
                columns[i] = (__m512bh)_mm512_loadu_si512(b + i * p->b_panel);
            SIMD_UNROLL
            for (size_t i = 0; i < rows * panels; i++) {
                const int pair = (int)row[i / panels * p->a_row];

                sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)_mm512_set1_epi32(pair),
                                           columns[i % panels]);
            }
        }
    }
    put_sums(p, how, sums, c, rows, panels);
}

#define TILE_OF(n)                                                                                 \
    case n:                                                                                        \
        multiply_tile(p, how, a, b, c, n, panels);                                                 \
        break;

/* Rows in even tiles. */
SIMD_INLINE void multiply_panels(const pair_product *p, pair_result how, const uint32_t *a,
                                 const uint32_t *b, char *c, size_t panels)
{
    const size_t n_tiles = (p->rows + MOST_ROWS - 1) / MOST_ROWS;
    const size_t element = how == PAIRS_ROUND ? sizeof(uint16_t) : sizeof(float);

    for (size_t i = 0, done = 0; i < n_tiles; i++) {
        const size_t tile = (p->rows - done) / (n_tiles - i);

        switch (tile) {
            TILE_OF(2)
            TILE_OF(3)
            TILE_OF(4)
            TILE_OF(5)
            TILE_OF(6)
            TILE_OF(7)
            TILE_OF(8)
            TILE_OF(9)
            TILE_OF(10)
            TILE_OF(11)
            TILE_OF(12)
        default:
            multiply_tile(p, how, a, b, c, 1, panels);
        }
        a += tile * p->a_row;
        c += tile * p->c_row * element;
        done += tile;
    }
}

SIMD_INLINE void multiply(const pair_product *p, pair_result how, const uint32_t *a,
                          const uint32_t *b, void *c)
{
    const size_t element = how == PAIRS_ROUND ? sizeof(uint16_t) : sizeof(float);
    char *to = c;
    size_t i = 0;

    for (; i + 2 <= p->panels; i += 2, to += 2 * p->c_panel * element)
        multiply_panels(p, how, a, b + i * p->b_panel, to, 2);
    if (i < p->panels)
        multiply_panels(p, how, a, b + i * p->b_panel, to, 1);
}

void pairs_multiply(const pair_product *p, const uint32_t *a, const uint32_t *b, float *c, bool add)
{
    if (add)
        multiply(p, PAIRS_ADD, a, b, c);
    else
        multiply(p, PAIRS_STORE, a, b, c);
}

void pairs_multiply_bf16(const pair_product *p, const uint32_t *a, const uint32_t *b, uint16_t *c)
{
    multiply(p, PAIRS_ROUND, a, b, c);
}

void pairs_pack(const uint16_t *x, const size_t *at, size_t n, uint32_t *out)
{
    uint16_t order[2 * LANES];
    __m512i by_pair;

    for (size_t i = 0; i < 2 * LANES; i++)
        order[i] = (uint16_t)(i / 2 + i % 2 * 2 * LANES);
    by_pair = _mm512_loadu_si512(order);
    for (size_t i = 0; i < n; i += 2, out += LANES) {
        const __m256i first = _mm256_loadu_si256((const __m256i *)(const void *)(x + at[i]));
        __m256i second = _mm256_setzero_si256();

        if (i + 1 < n)
            second = _mm256_loadu_si256((const __m256i *)(const void *)(x + at[i + 1]));
        _mm512_storeu_si512(out, _mm512_permutex2var_epi16(_mm512_castsi256_si512(first), by_pair,
                                                           _mm512_castsi256_si512(second)));
    }
}
