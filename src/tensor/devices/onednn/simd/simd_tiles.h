/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_tiles.h - products of bfloat16 matrices in the tiles of AMX, for small matrices in the
 * cache. Compiled for x86-64 only, and called with ISA_AMX only: then oneDNN has asked the kernel
 * for the tiles' state.
 *
 * A "pair" is two bfloat16 numbers that follow each other along the sum, the first in the low half.
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_TILES_H
#define LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_TILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* c (+)= a b of (rows, depth) and (depth, columns), all multiples of 32. Rows of a and c lie a_row
 * and c_row elements apart. b is pairs: those of a pair of rows lie side by side, the next pair of
 * rows b_row pairs on, the next 16 columns b_panel pairs on. */
typedef struct tile_product {
    size_t rows;
    size_t columns;
    size_t depth;
    size_t a_row;
    size_t b_row;
    size_t b_panel;
    size_t c_row;
    bool add;
} tile_product;

/* Around the products of a thread. */
void tiles_begin(void);
void tiles_end(void);

void tiles_multiply(const tile_product *p, const uint16_t *a, const uint32_t *b, float *c);

/* Rows of 16-bit elements as pairs: out[i] = first[i] | second[i] << 16. */
void tiles_pair(const uint16_t *first, const uint16_t *second, uint32_t *out, size_t n);

/* The halves of n pairs. */
void tiles_split(const uint32_t *pairs, uint16_t *first, uint16_t *second, size_t n);

#endif
