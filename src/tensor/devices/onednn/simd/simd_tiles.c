/* SPDX-License-Identifier: Apache-2.0 */
/* simd_tiles.c - 32 rows and 32 columns at a time: four tiles of sums, which stay in registers. */
#include "tensor/devices/onednn/simd/simd_tiles.h"

#include <immintrin.h>
#include <string.h>

/* Of a tile: rows, or columns of sums; elements of a row of a. Two tiles side by side. */
enum { SIDE = 16, DEPTH = 32, BOTH = 32 };

void tiles_begin(void)
{
    struct {
        uint8_t palette;
        uint8_t start_row;
        uint8_t reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;

    memset(&config, 0, sizeof(config));
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = SIDE;
    }
    // gcc 12 takes the instruction to read 8 bytes only, and would leave out the other stores.
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

void tiles_end(void)
{
    _tile_release();
}

/* 32 rows, 32 columns. */
static void multiply_block(const tile_product *p, const uint16_t *a, const uint32_t *b, float *c)
{
    const size_t a_bytes = p->a_row * sizeof(*a);
    const size_t b_bytes = p->b_row * sizeof(*b);
    const size_t c_bytes = p->c_row * sizeof(*c);
    float *const below = c + SIDE * p->c_row;

    if (p->add) {
        _tile_loadd(0, c, c_bytes);
        _tile_loadd(1, c + SIDE, c_bytes);
        _tile_loadd(2, below, c_bytes);
        _tile_loadd(3, below + SIDE, c_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t k = 0; k < p->depth; k += DEPTH, b += SIDE * p->b_row) {
        _tile_loadd(4, a + k, a_bytes);
        _tile_loadd(5, a + SIDE * p->a_row + k, a_bytes);
        _tile_loadd(6, b, b_bytes);
        _tile_loadd(7, b + p->b_panel, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + SIDE, c_bytes);
    _tile_stored(2, below, c_bytes);
    _tile_stored(3, below + SIDE, c_bytes);
}

void tiles_multiply(const tile_product *p, const uint16_t *a, const uint32_t *b, float *c)
{
    for (size_t row = 0; row < p->rows; row += BOTH) {
        for (size_t column = 0; column < p->columns; column += BOTH)
            multiply_block(p, a + row * p->a_row, b + column / SIDE * p->b_panel,
                           c + row * p->c_row + column);
    }
}

void tiles_pair(const uint16_t *first, const uint16_t *second, uint32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = first[i] | (uint32_t)second[i] << 16;
}

void tiles_split(const uint32_t *pairs, uint16_t *first, uint16_t *second, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        first[i] = (uint16_t)pairs[i];
        second[i] = (uint16_t)(pairs[i] >> 16);
    }
}
