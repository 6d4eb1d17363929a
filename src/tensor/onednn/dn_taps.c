/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_taps.c - copies a convolution's weights from the plain (O,C,KH,KW) into panels for our matrix
 * product.
 */
#include "tensor/onednn/dn.h"

#include <string.h>

size_t taps_panels(size_t channels)
{
    return (channels + 15) / 16;
}

size_t taps_floats(const tap_weights *k)
{
    return k->in * taps_panels(k->out) * 16;
}

#define TILE                                                                                       \
    16 /* channels: a tile of the weights is read and written while it stays in the first cache */

/* One tap of outputs [o, end_o), which `to` is a panel of, and inputs [i, end_i): along rows of
 * the result. */
static void arrange_tile(const tap_weights *k, const float *weights, size_t o, size_t end_o,
                         size_t i, size_t end_i, float *to)
{
    for (size_t r = i; r < end_i; r++) {
        const float *from = weights + (r * k->out + o) * k->n;

        for (size_t c = 0; c < end_o - o; c++)
            to[(r - i) * 16 + c] = from[c * k->n];
    }
}

/* The same along its columns: the neighbours in memory are inputs. */
static void turn_tile(const tap_weights *k, const float *weights, size_t o, size_t end_o, size_t i,
                      size_t end_i, float *to)
{
    for (size_t c = o; c < end_o; c++) {
        const float *from = weights + (c * k->in + i) * k->n;

        for (size_t r = 0; r < end_i - i; r++)
            to[r * 16 + (c - o)] = from[r * k->n];
    }
}

void taps_arrange(const tap_weights *k, const float *weights, float *taps)
{
    const size_t count = taps_floats(k);

    if (k->out % 16 != 0)
        memset(taps, 0, k->n * count * sizeof(*taps));
    for (size_t o = 0; o < k->out; o += 16) {
        const size_t end_o = k->out < o + 16 ? k->out : o + 16;

        for (size_t i = 0; i < k->in; i += TILE) {
            const size_t end_i = k->in < i + TILE ? k->in : i + TILE;

            for (size_t t = 0; t < k->n; t++) {
                float *to = taps + t * count + o * k->in + i * 16;

                if (k->rotated)
                    arrange_tile(k, weights + (k->n - 1 - t), o, end_o, i, end_i, to);
                else
                    turn_tile(k, weights + t, o, end_o, i, end_i, to);
            }
        }
    }
}
