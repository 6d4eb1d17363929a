/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd_max_pool.c - max pooling of one plane, vectorised over its channels. Windows of 2x2 with
 * stride 2, the most common ones, are compiled as constants.
 */
#include "tensor/devices/onednn/simd/simd_isa.h"
#include "tensor/devices/onednn/simd/simd_lanes.h"

/* The part of a window that lies in the plane: h * w positions. */
typedef struct window {
    uint32_t h;
    uint32_t w;
    size_t row;   /* floats between two rows of the plane */
    size_t lanes; /* floats between two positions */
    size_t first; /* number of the first of these positions in the whole window ... */
    size_t width; /* ... whose rows have so many */
} window;

#define LANES 16
#include "tensor/devices/onednn/simd/simd_max_pool.inc"
#undef LANES
#define LANES 8
#include "tensor/devices/onednn/simd/simd_max_pool.inc"
#undef LANES
#define LANES 1
#include "tensor/devices/onednn/simd/simd_max_pool.inc"
#undef LANES

/* The part of a window along one axis that lies in the plane. */
typedef struct reach {
    size_t from;    /* position in the plane */
    uint32_t count; /* of positions */
    size_t skipped; /* positions of the window before `from` */
} reach;

SIMD_INLINE reach reach_of(size_t out, size_t kernel, size_t stride, size_t padding, size_t size)
{
    const size_t begin = out * stride; // all positions are shifted by `padding` until the end
    const size_t from = begin < padding ? padding : begin;
    const size_t end = begin + kernel < size + padding ? begin + kernel : size + padding;

    return (reach){
        .from = from - padding, .count = (uint32_t)(end - from), .skipped = from - begin};
}

SIMD_INLINE window window_of(const reach *h, const reach *w, const pool_plane *p, size_t lanes)
{
    return (window){.h = h->count,
                    .w = w->count,
                    .row = p->w * lanes,
                    .lanes = lanes,
                    .first = h->skipped * p->kernel[1] + w->skipped,
                    .width = p->kernel[1]};
}

SIMD_INLINE void max_lanes(const float *x, window k, float *y, uint8_t *indices)
{
    const size_t lanes = k.lanes;

    EACH_WIDTH(window_max, x + i, k, y + i, indices == NULL ? NULL : indices + i);
}

static void max_any(const pool_plane *p, const float *x, float *y, uint8_t *indices)
{
    for (size_t oh = 0; oh < p->out_h; oh++) {
        const reach h = reach_of(oh, p->kernel[0], p->stride[0], p->padding[0], p->h);

        for (size_t ow = 0; ow < p->out_w; ow++) {
            const reach w = reach_of(ow, p->kernel[1], p->stride[1], p->padding[1], p->w);
            const size_t out = (oh * p->out_w + ow) * p->lanes;

            max_lanes(x + (h.from * p->w + w.from) * p->lanes, window_of(&h, &w, p, p->lanes),
                      y + out, indices == NULL ? NULL : indices + out);
        }
    }
}

SIMD_INLINE void max_2x2(const pool_plane *p, size_t lanes, const float *x, float *y,
                         uint8_t *indices)
{
    const window k = {.h = 2, .w = 2, .row = p->w * lanes, .lanes = lanes, .width = 2};

    for (size_t oh = 0; oh < p->out_h; oh++) {
        for (size_t ow = 0; ow < p->out_w; ow++) {
            const size_t out = (oh * p->out_w + ow) * lanes;

            max_lanes(x + (2 * oh * p->w + 2 * ow) * lanes, k, y + out,
                      indices == NULL ? NULL : indices + out);
        }
    }
}

static bool is_2x2(const pool_plane *p)
{
    return p->kernel[0] == 2 && p->kernel[1] == 2 && p->stride[0] == 2 && p->stride[1] == 2 &&
           p->padding[0] == 0 && p->padding[1] == 0 && 2 * p->out_h <= p->h && 2 * p->out_w <= p->w;
}

void SIMD_NAME(pool_max)(const pool_plane *p, const float *x, float *y, uint8_t *indices)
{
    if (!is_2x2(p))
        max_any(p, x, y, indices);
    else if (p->lanes == 8)
        max_2x2(p, 8, x, y, indices);
    else if (p->lanes == 16)
        max_2x2(p, 16, x, y, indices);
    else
        max_2x2(p, p->lanes, x, y, indices);
}

/* --- backward --- */

SIMD_INLINE void back_lanes(const float *dy, const uint8_t *indices, window k, bool add, float *dx)
{
    const size_t lanes = k.lanes;

    EACH_WIDTH(window_back, dy + i, indices + i, k, add, dx + i);
}

static void back_any(const pool_plane *p, const float *dy, const uint8_t *indices, float *dx)
{
    memset(dx, 0, p->h * p->w * p->lanes * sizeof(*dx));
    for (size_t oh = 0; oh < p->out_h; oh++) {
        const reach h = reach_of(oh, p->kernel[0], p->stride[0], p->padding[0], p->h);

        for (size_t ow = 0; ow < p->out_w; ow++) {
            const reach w = reach_of(ow, p->kernel[1], p->stride[1], p->padding[1], p->w);
            const size_t out = (oh * p->out_w + ow) * p->lanes;

            back_lanes(dy + out, indices + out, window_of(&h, &w, p, p->lanes), true,
                       dx + (h.from * p->w + w.from) * p->lanes);
        }
    }
}

/* Windows do not overlap: every position is written once, but for an odd last row or column, which
 * no window covers. */
SIMD_INLINE void back_2x2(const pool_plane *p, size_t lanes, const float *dy,
                          const uint8_t *indices, float *dx)
{
    const size_t row = p->w * lanes;
    const window k = {.h = 2, .w = 2, .row = row, .lanes = lanes, .width = 2};

    for (size_t oh = 0; oh < p->out_h; oh++) {
        for (size_t ow = 0; ow < p->out_w; ow++) {
            const size_t out = (oh * p->out_w + ow) * lanes;

            back_lanes(dy + out, indices + out, k, false, dx + 2 * oh * row + 2 * ow * lanes);
        }
        for (size_t h = 2 * oh; h < 2 * oh + 2 && 2 * p->out_w < p->w; h++)
            memset(dx + h * row + 2 * p->out_w * lanes, 0, lanes * sizeof(*dx));
    }
    if (2 * p->out_h < p->h)
        memset(dx + 2 * p->out_h * row, 0, row * sizeof(*dx));
}

void SIMD_NAME(pool_max_backward)(const pool_plane *p, const float *dy, const uint8_t *indices,
                                  float *dx)
{
    if (!is_2x2(p))
        back_any(p, dy, indices, dx);
    else if (p->lanes == 8)
        back_2x2(p, 8, dy, indices, dx);
    else if (p->lanes == 16)
        back_2x2(p, 16, dy, indices, dx);
    else
        back_2x2(p, p->lanes, dy, indices, dx);
}
