/* SPDX-License-Identifier: Apache-2.0 */
/* int_blocks.c - see int_blocks.h. local_mean.c calls it. Its loops are vectorized. */
#include "ddp/int_blocks.h"

#include "base/status.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Added to a number below 2^22 it leaves no bits for a fraction: rounds to nearest even. */
#define ROUNDER 12582912.0F

/* The codes are -most to most; the one below is for numbers that are not finite. */
static int most_of(int bits)
{
    return bits == 8 ? 127 : 7;
}

static size_t code_bytes(size_t n, int bits)
{
    return bits == 8 ? n : (n + 1) / 2;
}

size_t int_blocks_bytes(size_t n, int bits)
{
    const size_t full = n / INT_BLOCK;
    const size_t rest = n % INT_BLOCK;

    return full * (sizeof(float) + code_bytes(INT_BLOCK, bits)) +
           (rest > 0 ? sizeof(float) + code_bytes(rest, bits) : 0);
}

static bool is_finite(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (bits & 0x7F800000U) != 0x7F800000U;
}

static float largest(const float *src, size_t n)
{
    float most = 0;

    for (size_t i = 0; i < n; i++) {
        const float x = is_finite(src[i]) ? fabsf(src[i]) : 0;

        most = x > most ? x : most;
    }
    return most;
}

/* scale 0: all finite numbers of the block are 0, or so small that the scale is. */
static void find_codes(const float *restrict src, size_t n, float scale, int most,
                       int8_t *restrict codes)
{
    const float divisor = scale > 0 ? scale : 1;
    const float limit = (float)most;

    for (size_t i = 0; i < n; i++) {
        const bool finite = is_finite(src[i]);
        float x = (finite ? src[i] : 0) / divisor;

        x = x > limit ? limit : x; // a scale may have been rounded down
        x = x < -limit ? -limit : x;
        codes[i] = (int8_t)(finite ? (int)((x + ROUNDER) - ROUNDER) : -most - 1);
    }
}

static void pack_block(const float *src, size_t n, int bits, char *dst)
{
    const int most = most_of(bits);
    const float scale = largest(src, n) / (float)most;
    int8_t codes[INT_BLOCK + 1];

    memcpy(dst, &scale, sizeof(scale));
    dst += sizeof(scale);
    find_codes(src, n, scale, most, codes);
    if (bits == 8) {
        memcpy(dst, codes, n);
        return;
    }
    codes[n] = 0;
    for (size_t i = 0; i < (n + 1) / 2; i++)
        dst[i] = (char)((codes[2 * i] & 0xF) | (codes[2 * i + 1] & 0xF) << 4);
}

static void unpack_block(const char *src, size_t n, int bits, float *dst)
{
    const int none = -most_of(bits) - 1;
    int8_t codes[INT_BLOCK + 1];
    float scale;

    memcpy(&scale, src, sizeof(scale));
    src += sizeof(scale);
    if (bits == 8)
        memcpy(codes, src, n);
    for (size_t i = 0; bits == 4 && i < (n + 1) / 2; i++) {
        const int both = (uint8_t)src[i];

        codes[2 * i] = (int8_t)(((both & 0xF) ^ 8) - 8);
        codes[2 * i + 1] = (int8_t)((both >> 4 ^ 8) - 8);
    }
    for (size_t i = 0; i < n; i++)
        dst[i] = codes[i] == none ? NAN : (float)codes[i] * scale;
}

void int_blocks_pack(const float *src, size_t n, int bits, char *dst)
{
    for (size_t at = 0; at < n; at += INT_BLOCK) {
        const size_t count = n - at < INT_BLOCK ? n - at : INT_BLOCK;

        pack_block(src + at, count, bits, dst);
        dst += int_blocks_bytes(count, bits);
    }
}

void int_blocks_unpack(const char *src, size_t n, int bits, float *dst)
{
    for (size_t at = 0; at < n; at += INT_BLOCK) {
        const size_t count = n - at < INT_BLOCK ? n - at : INT_BLOCK;

        unpack_block(src, count, bits, dst + at);
        src += int_blocks_bytes(count, bits);
    }
}
