/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture.c - PNG files of spectrograms and alignments (picture.h), which examples/tacotron2.c
 * writes. The size is checked before memory is allocated.
 */
#include "models/speech/picture.h"

#include <errno.h>
#include <math.h>
#include <spng.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 4, CHANNELS = 3 }; /* GAP: white pixels between panels */

typedef struct image {
    size_t width, height;
    unsigned char *pixels; /* [height][width][CHANNELS] */
} image;

/* Pixels of a column. */
static size_t column_width(const picture_panel *p, size_t zoom)
{
    return zoom * (p->repeat > 0 ? p->repeat : 1);
}

static ls_status create_image(const picture_panel *panels, int n, int zoom, image *out,
                              speech_error *error)
{
    *out = (image){.height = n > 0 ? (size_t)(n - 1) * GAP : 0};
    for (int i = 0; i < n; i++) {
        const picture_panel *p = &panels[i];

        if (p->columns == 0 || p->rows == 0 || p->columns > (size_t)PICTURE_MAX_SIDE ||
            p->rows > (size_t)PICTURE_MAX_SIDE || p->repeat > (size_t)PICTURE_MAX_SIDE)
            return speech_fail(error, LS_EINVAL, "a panel has %zu columns and %zu rows", p->columns,
                               p->rows);
        out->height += p->rows * (size_t)zoom;
        if (out->width < p->columns * column_width(p, (size_t)zoom))
            out->width = p->columns * column_width(p, (size_t)zoom);
    }
    if (n < 1 || zoom < 1 || out->width > PICTURE_MAX_SIDE || out->height > PICTURE_MAX_SIDE)
        return speech_fail(error, LS_EINVAL, "%zu x %zu pixels; a side has 1 to %d", out->width,
                           out->height, PICTURE_MAX_SIDE);
    out->pixels = malloc(out->width * out->height * CHANNELS);
    if (out->pixels == NULL)
        return speech_fail(error, LS_ENOMEM, "no memory for a picture");
    memset(out->pixels, 255, out->width * out->height * CHANNELS);
    return LS_OK;
}

static void find_range(const picture_panel *p, float *low, float *high)
{
    *low = p->low;
    *high = p->high;
    if (*low < *high)
        return;
    *low = INFINITY;
    *high = -INFINITY;
    for (size_t c = 0; c < p->columns; c++)
        for (size_t r = 0; r < p->rows; r++) {
            const float v = p->values[c * p->stride + r];

            if (isfinite(v)) {
                *low = fminf(*low, v);
                *high = fmaxf(*high, v);
            }
        }
}

/* Five colours of matplotlib's viridis, with straight lines between them. */
static void colour(double x, unsigned char *pixel)
{
    static const double stops[][CHANNELS] = {
        {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
    const int last = (int)(sizeof(stops) / sizeof(stops[0])) - 1;
    const double at = x > 0 ? fmin(x, 1) * last : 0; // NaN is 0
    const int i = at < last ? (int)at : last - 1;

    for (int k = 0; k < CHANNELS; k++)
        pixel[k] = (unsigned char)lround(stops[i][k] + (at - i) * (stops[i + 1][k] - stops[i][k]));
}

/* Draws a panel whose upper edge is row `top` of the image. */
static void draw(const image *to, const picture_panel *p, size_t top, size_t zoom)
{
    const size_t wide = column_width(p, zoom);
    float low, high;

    find_range(p, &low, &high);
    for (size_t y = 0; y < p->rows * zoom; y++)
        for (size_t x = 0; x < p->columns * wide; x++) {
            const float v = p->values[x / wide * p->stride + p->rows - 1 - y / zoom];
            const double share = high > low ? (double)((v - low) / (high - low)) : 0;

            colour(isfinite(v) ? share : 0, &to->pixels[((top + y) * to->width + x) * CHANNELS]);
        }
}

static ls_status encode(FILE *file, const image *what, const char *path, speech_error *error)
{
    struct spng_ihdr header = {.width = (uint32_t)what->width,
                               .height = (uint32_t)what->height,
                               .bit_depth = 8,
                               .color_type = SPNG_COLOR_TYPE_TRUECOLOR};
    spng_ctx *ctx = spng_ctx_new(SPNG_CTX_ENCODER);
    int result;

    if (ctx == NULL)
        return speech_fail(error, LS_ENOMEM, "no memory to write %s", path);
    result = spng_set_png_file(ctx, file);
    if (result == 0)
        result = spng_set_ihdr(ctx, &header);
    if (result == 0)
        result = spng_encode_image(ctx, what->pixels, what->width * what->height * CHANNELS,
                                   SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
    spng_ctx_free(ctx);
    return result == 0
               ? LS_OK
               : speech_fail(error, LS_EIO, "cannot write %s: %s", path, spng_strerror(result));
}

static ls_status save(const image *what, const char *path, speech_error *error)
{
    FILE *file = fopen(path, "wb");
    ls_status st;

    if (file == NULL)
        return speech_fail(error, LS_EIO, "cannot write %s: %s", path, strerror(errno));
    st = encode(file, what, path, error);
    if (fclose(file) != 0 && st == LS_OK)
        st = speech_fail(error, LS_EIO, "cannot write %s: %s", path, strerror(errno));
    return st;
}

ls_status picture_write(const char *path, const picture_panel *panels, int n, int zoom,
                        speech_error *error)
{
    image whole;
    size_t top = 0;
    ls_status st;

    LS_TRY(create_image(panels, n, zoom, &whole, error));
    for (int i = 0; i < n; i++) {
        draw(&whole, &panels[i], top, (size_t)zoom);
        top += panels[i].rows * (size_t)zoom + GAP;
    }
    st = save(&whole, path, error);
    free(whole.pixels);
    return st;
}

static ls_status read_all(FILE *file, const char *path, void **png, size_t *bytes,
                          speech_error *error)
{
    const long end = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;

    if (end <= 0 || fseek(file, 0, SEEK_SET) != 0)
        return speech_fail(error, LS_EIO, "cannot read %s", path);
    *bytes = (size_t)end;
    *png = malloc(*bytes);
    if (*png == NULL)
        return speech_fail(error, LS_ENOMEM, "no memory to read %s", path);
    if (fread(*png, 1, *bytes, file) == *bytes)
        return LS_OK;
    free(*png);
    return speech_fail(error, LS_EIO, "cannot read %s", path);
}

ls_status picture_read(const char *path, void **png, size_t *bytes, speech_error *error)
{
    FILE *file = fopen(path, "rb");
    ls_status st;

    if (file == NULL)
        return speech_fail(error, LS_EIO, "cannot read %s: %s", path, strerror(errno));
    st = read_all(file, path, png, bytes, error);
    (void)fclose(file);
    return st;
}
