/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resize.h - Pillow 13's bilinear resize with antialias of 8-bit images, bit by bit, and only the
 * part of the result that is wanted.
 *
 * Images are rows of pixels of 4 bytes. A pixel of the result is the mean of the source's pixels
 * under a triangle whose half width is the step from one result pixel to the next, at least 1. The
 * horizontal pass runs first and is rounded to bytes, then the vertical pass. Where the height
 * shrinks by more than twice as many pixels as the width, the vertical pass runs first.
 */
#ifndef LS_DATA_IMAGES_RESIZE_H
#define LS_DATA_IMAGES_RESIZE_H

#include "data/codecs/byte_buffer.h"

#include <stdbool.h>

/* Pixels of 4 bytes; `stride` bytes from one row to the next. BYTE_BUFFER_SLACK bytes behind the
 * last pixel are readable. */
typedef struct image_view {
    const uint8_t *pixels;
    size_t stride;
    int width;
    int height;
} image_view;

/* One direction of a resize. */
typedef struct resize_axis {
    int in;   /* pixels of the source */
    int out;  /* of the whole result */
    int from; /* the part of the result that is wanted: from ... from + count - 1 */
    int count;
    int first; /* the part of the source that this needs: first ... end - 1 */
    int end;
    size_t n_taps;       /* weights a pixel, an even number, the last ones may be 0 */
    byte_buffer starts;  /* int[count]: source pixel of the first weight, from `first` on */
    byte_buffer weights; /* resize_weight[count * n_taps / 2] */
} resize_axis;

/* Zero-initialise. Used by one thread. */
typedef struct resizer {
    resize_axis x;
    resize_axis y;
    byte_buffer sums;       /* double weights of one pixel, while planning */
    byte_buffer horizontal; /* result of the horizontal pass */
    byte_buffer vertical;   /* result of the vertical pass */
} resizer;

/* Plans the part `window` (x, y, width, height) of the result out_w x out_h from a source of
 * in_w x in_h. Afterwards r->x.first ... r->y.end are the part of the source that is needed. */
LS_MUST_USE ls_status resize_plan(resizer *r, int in_w, int in_h, int out_w, int out_h,
                                  const int window[4]);

/* Runs the plan; `source` is the needed part. *out is valid until the next plan. */
LS_MUST_USE ls_status resize_run(resizer *r, const image_view *source, image_view *out);

void resizer_free(resizer *r);

/* --- resize_rows.c: the inner loops --- */

/* Two neighbouring weights with RESIZE_BITS fractional bits. Each is split into its upper bits and
 * its lower RESIZE_LOW bits, so that products with bytes fit 16-bit multipliers and sums are
 * exact. */
typedef struct resize_weight {
    int16_t high[2];
    int16_t low[2];
} resize_weight;

enum { RESIZE_BITS = 22, RESIZE_LOW = 11 };

/* One row: dst[i] = the weighted sum of n_pairs * 2 pixels of src from starts[i] on. */
void resize_row_horizontal(const uint8_t *src, const int *starts, const resize_weight *weights,
                           size_t n_pairs, uint8_t *dst, size_t count);

/* One row: dst[i] = the weighted sum of byte i of n_rows rows from src on. Where n_rows is odd, the
 * last weight is 0. */
void resize_rows_vertical(const uint8_t *src, size_t stride, size_t n_rows,
                          const resize_weight *weights, uint8_t *dst, size_t bytes);

#endif
