/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_conv.c - convolutions over a few input channels, 8 or 16 output channels at a time.
 *
 * A kernel is a list of taps, each the distance of its input from that of the first tap. The
 * innermost loops have up to 12 vectors of sums in registers and are compiled, unrolled, for every
 * number of them. Products and sums are contracted if the processor can.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

#define TILE_MAX 6
#define SUMS_MAX (2 * TILE_MAX) /* sum t * blocks + b is of member t of the tile, block b */

/* Splits n evenly into tiles of at most TILE_MAX; the first `n_larger` of them have one more
 * than `size`. */
typedef struct tiling {
    size_t size;
    size_t n_larger;
} tiling;

static inline tiling tiling_of(size_t n)
{
    const size_t n_tiles = (n + TILE_MAX - 1) / TILE_MAX;

    return (tiling){.size = n / n_tiles, .n_larger = n % n_tiles};
}

/* --- forward --- */

/* `tile` neighbouring outputs; x is the first one's input under the first tap. */
SIMD_INLINE void forward_tile(const conv_few *s, const float *x, const float *w, const float *bias,
                              float *y, size_t blocks, size_t tile)
{
    const size_t plane = s->out_h * s->out_w * 8;
    const size_t stride = s->stride[1];
    vec_8 sum[SUMS_MAX];

    SIMD_UNROLL
    for (size_t i = 0; i < tile * blocks; i++)
        load_8(&sum[i], bias + i % blocks * 8);
    for (size_t k = 0; k < s->n_taps; k++, w += s->o) {
        const float *from = x + s->taps[k];
        vec_8 weights[2];

        for (size_t b = 0; b < blocks; b++)
            load_8(&weights[b], w + b * 8);
        SIMD_UNROLL
        for (size_t i = 0; i < tile * blocks; i++)
            sum[i] += from[i / blocks * stride] * weights[i % blocks];
    }
    SIMD_UNROLL
    for (size_t i = 0; i < tile * blocks; i++)
        store_8(y + i % blocks * plane + i / blocks * 8, &sum[i]);
}

SIMD_INLINE void forward_tile_of(size_t tile, const conv_few *s, const float *x, const float *w,
                                 const float *bias, float *y, size_t blocks)
{
    switch (tile) {
    case 6:
        forward_tile(s, x, w, bias, y, blocks, 6);
        break;
    case 5:
        forward_tile(s, x, w, bias, y, blocks, 5);
        break;
    case 4:
        forward_tile(s, x, w, bias, y, blocks, 4);
        break;
    case 3:
        forward_tile(s, x, w, bias, y, blocks, 3);
        break;
    case 2:
        forward_tile(s, x, w, bias, y, blocks, 2);
        break;
    default:
        forward_tile(s, x, w, bias, y, blocks, 1);
        break;
    }
}

SIMD_INLINE void forward_blocks(const conv_few *s, const float *image, const float *w,
                                const float *bias, float *y, size_t blocks)
{
    const tiling tiles = tiling_of(s->out_w);

    for (size_t oh = 0; oh < s->out_h; oh++) {
        const float *x = image + oh * s->stride[0] * s->w;
        size_t tile;

        for (size_t ow = 0, i = 0; ow < s->out_w; ow += tile, i++) {
            tile = tiles.size + (i < tiles.n_larger);
            forward_tile_of(tile, s, x, w, bias, y, blocks);
            x += tile * s->stride[1];
            y += tile * 8;
        }
    }
}

void SIMD_NAME(conv_few_forward)(const conv_few *s, const float *image, const float *w,
                                 const float *bias, float *y)
{
    const size_t plane = s->out_h * s->out_w * 8;
    size_t o;

    for (o = 0; o + 16 <= s->o; o += 16)
        forward_blocks(s, image, w + o, bias + o, y + o / 8 * plane, 2);
    for (; o < s->o; o += 8)
        forward_blocks(s, image, w + o, bias + o, y + o / 8 * plane, 1);
}

/* --- backward by weights --- */

/* Adds what one row of dy gives to `tile` neighbouring weights, whose taps begin at `taps`. */
SIMD_INLINE void backward_tile(const conv_few *s, const size_t *taps, const float *x,
                               const float *dy, float *dw, size_t blocks, size_t tile)
{
    const size_t plane = s->out_h * s->out_w * 8;
    const size_t stride = s->stride[1];
    const float *from[TILE_MAX];
    vec_8 sum[SUMS_MAX];

    SIMD_UNROLL
    for (size_t t = 0; t < tile; t++)
        from[t] = x + taps[t];
    SIMD_UNROLL
    for (size_t i = 0; i < tile * blocks; i++)
        load_8(&sum[i], dw + i / blocks * s->o + i % blocks * 8);
    for (size_t ow = 0; ow < s->out_w; ow++) {
        vec_8 d[2];

        for (size_t b = 0; b < blocks; b++)
            load_8(&d[b], dy + b * plane + ow * 8);
        SIMD_UNROLL
        for (size_t i = 0; i < tile * blocks; i++)
            sum[i] += from[i / blocks][ow * stride] * d[i % blocks];
    }
    SIMD_UNROLL
    for (size_t i = 0; i < tile * blocks; i++)
        store_8(dw + i / blocks * s->o + i % blocks * 8, &sum[i]);
}

SIMD_INLINE void backward_tile_of(size_t tile, const conv_few *s, const size_t *taps,
                                  const float *x, const float *dy, float *dw, size_t blocks)
{
    switch (tile) {
    case 6:
        backward_tile(s, taps, x, dy, dw, blocks, 6);
        break;
    case 5:
        backward_tile(s, taps, x, dy, dw, blocks, 5);
        break;
    case 4:
        backward_tile(s, taps, x, dy, dw, blocks, 4);
        break;
    case 3:
        backward_tile(s, taps, x, dy, dw, blocks, 3);
        break;
    case 2:
        backward_tile(s, taps, x, dy, dw, blocks, 2);
        break;
    default:
        backward_tile(s, taps, x, dy, dw, blocks, 1);
        break;
    }
}

SIMD_INLINE void backward_bias(const conv_few *s, const float *dy, float *db, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++) {
        const float *plane = dy + b * s->out_h * s->out_w * 8;
        vec_8 sum;

        load_8(&sum, db + b * 8);
        for (size_t ow = 0; ow < s->out_w; ow++) {
            vec_8 d;

            load_8(&d, plane + ow * 8);
            sum += d;
        }
        store_8(db + b * 8, &sum);
    }
}

/* All taps read a row of dy while it is in the L1 cache. */
SIMD_INLINE void backward_blocks(const conv_few *s, const float *image, const float *dy, float *dw,
                                 float *db, size_t blocks)
{
    const tiling tiles = tiling_of(s->n_taps);

    for (size_t oh = 0; oh < s->out_h; oh++, dy += s->out_w * 8) {
        size_t tile;

        for (size_t k = 0, i = 0; k < s->n_taps; k += tile, i++) {
            tile = tiles.size + (i < tiles.n_larger);
            backward_tile_of(tile, s, s->taps + k, image + oh * s->stride[0] * s->w, dy,
                             dw + k * s->o, blocks);
        }
        backward_bias(s, dy, db, blocks);
    }
}

void SIMD_NAME(conv_few_backward)(const conv_few *s, const float *image, const float *dy, float *dw,
                                  float *db)
{
    const size_t plane = s->out_h * s->out_w * 8;
    size_t o;

    for (o = 0; o + 16 <= s->o; o += 16)
        backward_blocks(s, image, dy + o / 8 * plane, dw + o, db + o, 2);
    for (; o < s->o; o += 8)
        backward_blocks(s, image, dy + o / 8 * plane, dw + o, db + o, 1);
}
