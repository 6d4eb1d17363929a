/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_pairs.h - products of bfloat16 matrices by the instructions of AVX512_BF16, for matrices in
 * the cache. Compiled for x86-64 only, and called with ISA_AVX512_BF16 or more.
 *
 * A "pair" is two bfloat16 numbers that follow each other along the sum, the first in the low half.
 */
#ifndef LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_PAIRS_H
#define LS_TENSOR_DEVICES_ONEDNN_SIMD_SIMD_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * c (+)= a b, all offsets in pairs or in elements of c. The sum has `blocks` times `depth` pairs:
 * that of row r, block i and step k is a[r * a_row + i * a_block + k * a_step]. Columns of b and c
 * come in panels of 16: step j of the whole sum has 16 pairs at b + panel * b_panel + 16 * j, the
 * columns of row r are at c + panel * c_panel + r * c_row.
 */
typedef struct pair_product {
    size_t rows;
    size_t panels;
    size_t blocks;
    size_t depth;
    size_t a_row;
    size_t a_block;
    size_t a_step;
    size_t b_panel;
    size_t c_panel;
    size_t c_row;
} pair_product;

/* c is float32: c += a b with `add`. */
void pairs_multiply(const pair_product *p, const uint32_t *a, const uint32_t *b, float *c,
                    bool add);

/* c is bfloat16, rounded to the nearest. */
void pairs_multiply_bf16(const pair_product *p, const uint32_t *a, const uint32_t *b, uint16_t *c);

/* Rows of 16 elements, at x + at[i], as (n + 1) / 2 rows of 16 pairs; the last of an odd number is
 * paired with zeros. */
void pairs_pack(const uint16_t *x, const size_t *at, size_t n, uint32_t *out);

#endif
