/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_dots.c - products of a few rows with a large matrix w as it is in memory: x w', the dot
 * products of rows, and dy w. A general product first copies w into panels, which takes longer than
 * the multiplications of a few rows. Both read w once, in its order.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#define LANES SIMD_LANES_MAX
#define BLOCK ((size_t)16) /* rows of w, which stay in the L2 cache */

/* --- x w' --- */

/* A lane for each row of x: no sum over lanes is needed. */
#define PART        ((size_t)128) /* columns: their rows of x' stay in the L1 cache */
#define TILE        4             /* rows of w */
#define ROW_VECTORS (FEW_ROWS_MOST / LANES)

/* Sums over n columns, for `vectors` vectors of rows of x, which is transposed, and `tile` rows of
 * w. Even and odd columns are added up on their own, as one sum would wait for itself. Meanwhile
 * the rows at `next` come into the L2 cache. */
SIMD_INLINE void dots_tile(const few_rows *m, size_t n, const float *x, const float *w, float *sums,
                           bool add, ptrdiff_t next, size_t tile, size_t vectors)
{
    V(vec) sum[2 * TILE * ROW_VECTORS];
    const size_t width = vectors * LANES;
    size_t k = 0;

    SIMD_UNROLL
    for (size_t i = 0; i < 2 * tile * vectors; i++)
        sum[i] = (V(vec)){0};
    for (; k + 2 <= n; k += 2) {
        if (k % 16 == 0) {
            SIMD_UNROLL
            for (size_t i = 0; i < tile; i++)
                __builtin_prefetch(w + i * m->depth + k + next, 0, 2);
        }
        SIMD_UNROLL
        for (size_t h = 0; h < 2; h++) {
            V(vec) column[ROW_VECTORS];

            SIMD_UNROLL
            for (size_t j = 0; j < vectors; j++)
                V(load)(&column[j], x + (k + h) * width + j * LANES);
            SIMD_UNROLL
            for (size_t i = 0; i < tile; i++) {
                SIMD_UNROLL
                for (size_t j = 0; j < vectors; j++)
                    sum[(h * tile + i) * vectors + j] += w[i * m->depth + k + h] * column[j];
            }
        }
    }
    for (; k < n; k++) {
        SIMD_UNROLL
        for (size_t j = 0; j < vectors; j++) {
            V(vec) column;

            V(load)(&column, x + k * width + j * LANES);
            SIMD_UNROLL
            for (size_t i = 0; i < tile; i++)
                sum[i * vectors + j] += w[i * m->depth + k] * column;
        }
    }
    SIMD_UNROLL
    for (size_t i = 0; i < tile; i++) {
        SIMD_UNROLL
        for (size_t j = 0; j < vectors; j++) {
            float *to = sums + i * width + j * LANES;
            V(vec) total = sum[i * vectors + j] + sum[(tile + i) * vectors + j];

            if (add) {
                V(vec) before;

                V(load)(&before, to);
                total += before;
            }
            V(store)(to, &total);
        }
    }
}

SIMD_INLINE void dots_block(const few_rows *m, const float *x, const float *w, float *y, size_t n_w,
                            ptrdiff_t next, size_t vectors)
{
    const size_t width = vectors * LANES;
    float sums[BLOCK * FEW_ROWS_MOST];

    for (size_t k = 0; k < m->depth; k += PART) {
        const size_t n = m->depth - k < PART ? m->depth - k : PART;
        size_t i = 0;

        for (; i + TILE <= n_w; i += TILE)
            dots_tile(m, n, x + k * width, w + i * m->depth + k, sums + i * width, k > 0, next,
                      TILE, vectors);
        for (; i < n_w; i++)
            dots_tile(m, n, x + k * width, w + i * m->depth + k, sums + i * width, k > 0, 0, 1,
                      vectors);
    }
    for (size_t row = 0; row < m->rows; row++) {
        float *to = y + row * m->outputs;

        for (size_t i = 0; i < n_w; i++)
            // NOLINTNEXTLINE(clang-analyzer-core.*): all sums are set
            to[i] = m->add ? to[i] + sums[i * width + row] : sums[i * width + row];
    }
}

size_t SIMD_NAME(dots_width)(size_t rows)
{
    return (rows + LANES - 1) / LANES * LANES;
}

void SIMD_NAME(dots_pack)(const few_rows *m, const float *x, float *columns)
{
    const size_t width = SIMD_NAME(dots_width)(m->rows);

    for (size_t k = 0; k < m->depth; k++)
        for (size_t row = 0; row < width; row++)
            columns[k * width + row] = row < m->rows ? x[row * m->depth + k] : 0;
}

#define DOTS_OF(vectors)                                                                           \
    case vectors:                                                                                  \
        dots_block(m, x, w + j * m->depth, y + j, n_w, next, vectors);                             \
        break;

void SIMD_NAME(dots)(const few_rows *m, const float *x, const float *w, float *y, size_t begin,
                     size_t end)
{
    for (size_t j = begin; j < end; j += BLOCK) {
        const size_t n_w = end - j < BLOCK ? end - j : BLOCK;
        const ptrdiff_t next = j + 2 * BLOCK <= end ? (ptrdiff_t)(BLOCK * m->depth) : 0;

        switch (SIMD_NAME(dots_width)(m->rows) / LANES) {
            DOTS_OF(1)
            DOTS_OF(2)
#if SIMD_LANES_MAX < 16
            DOTS_OF(3)
            DOTS_OF(4)
#endif
        default:
            break;
        }
    }
}

/* --- dy w --- */

/* Rows of dy by vectors of a row of w: registers of sums. */
#if SIMD_LANES_MAX >= 16
#define DX_TILE    8
#define DX_VECTORS 2
#else
#define DX_TILE    4
#define DX_VECTORS 3
#endif

/* Of BLOCK rows of w. */
typedef struct dx_block {
    const few_rows *m;
    size_t n; /* rows of w */
    const float *w;
    ptrdiff_t next;                  /* from w to the rows that come into the L2 cache meanwhile */
    bool add;                        /* to dx, as for all blocks but the first */
    float dy[BLOCK * FEW_ROWS_MOST]; /* transposed */
} dx_block;

/* For `tile` rows from `row` on and `vectors` vectors from `column` on. Each block is added up from
 * zero, so that the sums stay as exact as those of a product in blocks. */
SIMD_INLINE void dx_tile(const dx_block *b, size_t row, size_t column, float *dx, size_t tile,
                         size_t vectors)
{
    const size_t n_rows = b->m->rows;
    const size_t n_columns = b->m->depth;
    const float *w = b->w + column;
    const float *dy = b->dy + row;
    float *to = dx + row * n_columns + column;
    V(vec) sum[DX_TILE * DX_VECTORS];

    SIMD_UNROLL
    for (size_t i = 0; i < tile * vectors; i++)
        sum[i] = (V(vec)){0};
    for (size_t k = 0; k < b->n; k++, w += n_columns) {
        V(vec) part[DX_VECTORS];

        SIMD_UNROLL
        for (size_t j = 0; j < vectors; j++) {
            V(load)(&part[j], w + j * LANES);
            if (j * LANES % 16 == 0)
                __builtin_prefetch(w + j * LANES + b->next, 0, 2);
        }
        SIMD_UNROLL
        for (size_t i = 0; i < tile; i++) {
            SIMD_UNROLL
            for (size_t j = 0; j < vectors; j++)
                sum[i * vectors + j] += dy[k * n_rows + i] * part[j];
        }
    }
    SIMD_UNROLL
    for (size_t i = 0; i < tile * vectors; i++) {
        float *at = to + i / vectors * n_columns + i % vectors * LANES;

        if (b->add) {
            V(vec) before;

            V(load)(&before, at);
            sum[i] += before;
        }
        V(store)(at, &sum[i]);
    }
}

#define DX_TILE_OF(rows, vectors)                                                                  \
    case rows:                                                                                     \
        dx_tile(b, row, column, dx, rows, vectors);                                                \
        break;

#if DX_TILE == 8
#define DX_MORE_TILES(vectors)                                                                     \
    DX_TILE_OF(4, vectors)                                                                         \
    DX_TILE_OF(5, vectors)                                                                         \
    DX_TILE_OF(6, vectors)                                                                         \
    DX_TILE_OF(7, vectors)
#else
#define DX_MORE_TILES(vectors)
#endif

#define DX_OF(name, vectors)                                                                       \
    static void name(const dx_block *b, size_t row, size_t column, float *dx, size_t tile)         \
    {                                                                                              \
        switch (tile) {                                                                            \
            DX_TILE_OF(1, vectors)                                                                 \
            DX_TILE_OF(2, vectors)                                                                 \
            DX_TILE_OF(3, vectors)                                                                 \
            DX_MORE_TILES(vectors)                                                                 \
        default:                                                                                   \
            dx_tile(b, row, column, dx, DX_TILE, vectors);                                         \
        }                                                                                          \
    }

DX_OF(dx_wide, DX_VECTORS)
DX_OF(dx_narrow, 1)

/* The columns behind the last vector, added up in the same order. */
static void dx_rest(const dx_block *b, size_t row, size_t column, float *dx)
{
    float sum = 0;

    for (size_t k = 0; k < b->n; k++)
        sum += b->dy[k * b->m->rows + row] * b->w[k * b->m->depth + column];
    dx += row * b->m->depth + column;
    *dx = b->add ? *dx + sum : sum;
}

static void dx_columns(const dx_block *b, float *dx, size_t begin, size_t end)
{
    const size_t rows = b->m->rows;
    const size_t n_tiles = (rows + DX_TILE - 1) / DX_TILE;
    size_t at = begin;

    while (at + LANES <= end) {
        const bool is_wide = at + (size_t)DX_VECTORS * LANES <= end;

        for (size_t t = 0, row = 0; t < n_tiles; t++) {
            const size_t tile = rows / n_tiles + (t < rows % n_tiles);

            (is_wide ? dx_wide : dx_narrow)(b, row, at, dx, tile);
            row += tile;
        }
        at += (size_t)(is_wide ? DX_VECTORS : 1) * LANES;
    }
    for (; at < end; at++)
        for (size_t row = 0; row < rows; row++)
            dx_rest(b, row, at, dx);
}

void SIMD_NAME(dots_dx)(const few_rows *m, const float *dy, const float *w, float *dx, size_t begin,
                        size_t end)
{
    dx_block b = {.m = m};

    for (size_t k = 0; k < m->outputs; k += BLOCK) {
        b.n = m->outputs - k < BLOCK ? m->outputs - k : BLOCK;
        b.w = w + k * m->depth;
        b.next = k + 2 * BLOCK <= m->outputs ? (ptrdiff_t)(BLOCK * m->depth) : 0;
        b.add = m->add || k > 0;
        for (size_t row = 0; row < m->rows; row++)
            for (size_t i = 0; i < b.n; i++)
                b.dy[i * m->rows + row] = dy[row * m->outputs + k + i];
        dx_columns(&b, dx, begin, end);
    }
}
