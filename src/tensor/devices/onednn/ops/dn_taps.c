/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_taps.c - copies a convolution's weights from the plain (O,C,KH,KW) into panels for our matrix
 * product.
 */
#include "tensor/devices/onednn/dn.h"

#include <string.h>

size_t taps_panels(size_t channels)
{
    return (channels + 15) / 16;
}

size_t taps_floats(const tap_weights *k)
{
    return k->in * taps_panels(k->out) * 16;
}

#define AHEAD 16 /* rows of weights that come into the cache meanwhile */

/* A panel from columns of (out, in, tap). */
static void turn_panel(const simd_table *simd, const tap_weights *k, const float *from, size_t rows,
                       float *to, ptrdiff_t tap_size)
{
    const size_t row = k->in * k->n;

    if (k->n == 1) {
        simd->transpose(from, row, rows, k->in, to, 16);
        return;
    }
    for (size_t i = 0; i < k->in; i++)
        simd->transpose(from + i * k->n, row, rows, k->n, to + i * 16, tap_size);
}

/* A panel from rows of (in, out, tap), with the taps in reverse order. */
static void rotate_panel(const simd_table *simd, const tap_weights *k, const float *from,
                         size_t rows, float *to, ptrdiff_t tap_size)
{
    const size_t row = k->out * k->n;
    float *last = to + (ptrdiff_t)(k->n - 1) * tap_size;

    for (size_t i = 0; i < k->in; i++, from += row, last += 16) {
        if (i + AHEAD < k->in) {
            for (size_t at = 0; at < rows * k->n; at += 16)
                __builtin_prefetch(from + AHEAD * row + at);
        }
        if (k->n == 1)
            memcpy(last, from, rows * sizeof(*last));
        else
            simd->transpose(from, k->n, rows, k->n, last, -tap_size);
    }
}

void taps_arrange(const simd_table *simd, const tap_weights *k, const float *weights, size_t begin,
                  size_t end, float *taps)
{
    const size_t panel = k->in * 16;
    const size_t tap_size = (end - begin) * panel;

    for (size_t b = begin; b < end; b++, taps += panel) {
        const size_t rows = (b + 1) * 16 <= k->out ? 16 : k->out - b * 16;

        for (size_t t = 0; t < k->n && rows < 16; t++)
            memset(taps + t * tap_size, 0, panel * sizeof(*taps));
        if (k->rotated)
            rotate_panel(simd, k, weights + b * 16 * k->n, rows, taps, (ptrdiff_t)tap_size);
        else
            turn_panel(simd, k, weights + b * panel * k->n, rows, taps, (ptrdiff_t)tap_size);
    }
}
