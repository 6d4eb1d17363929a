/* SPDX-License-Identifier: Apache-2.0 */
/*
 * int_blocks.h - float32 numbers as integers of 8 or 4 bits, with a float32 scale for each block of
 * INT_BLOCK: 8.125 or 4.125 bits each in a full block. Pure.
 *
 * The scale of a block is its largest absolute value, divided by 127 or 7. A number is divided by
 * the scale and rounded to nearest even: it changes by at most half a scale, 1/254 or 1/14 of the
 * largest absolute value, and 0 stays 0. NaN and infinite numbers do not change the scale, and come
 * back as NaN, by a code of their own.
 *
 * A block in memory: the scale, then a code of 8 bits for each number, or of 4, two in a byte, the
 * first one in its low bits.
 */
#ifndef LS_DDP_INT_BLOCKS_H
#define LS_DDP_INT_BLOCKS_H

#include <stddef.h>

enum { INT_BLOCK = 256 };

/* Of n numbers, whose last block may be shorter. bits: 8 or 4, as below. */
size_t int_blocks_bytes(size_t n, int bits);

void int_blocks_pack(const float *src, size_t n, int bits, char *dst);
void int_blocks_unpack(const char *src, size_t n, int bits, float *dst);

#endif
