/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * image_png.c - decodes PNG to red, green and blue for image.c, as Pillow does: transparency and
 * gamma are ignored, 16 bits are cut to the upper 8, but grey without alpha is clamped to 255.
 */
#include "data/images/image_png.h"

#include "base/alloc.h"
#include "data/codecs/codec_library.h"
#include "data/images/png_library.h"

#define MAX_CHUNK_BYTES ((size_t)64 << 20) /* of text and profiles, which are skipped */

typedef struct png_functions {
    spng_ctx *(*create)(struct spng_alloc *alloc, int flags);
    void (*destroy)(spng_ctx *);
    int (*set_buffer)(spng_ctx *, const void *, size_t);
    int (*set_chunk_limits)(spng_ctx *, size_t chunk, size_t cache);
    int (*get_header)(spng_ctx *, struct spng_ihdr *);
    int (*decode)(spng_ctx *, void *, size_t, int format, int flags);
    const char *(*describe)(int error);
} png_functions;

struct png_codec {
    void *codec;
    png_functions call;
    spng_ctx *image; /* NULL when no image is open */
    struct spng_ihdr header;
};

static ls_status load_library(png_codec *c)
{
    const codec_symbol symbols[] = {
        {"spng_ctx_new2", &c->call.create},
        {"spng_ctx_free", &c->call.destroy},
        {"spng_set_png_buffer", &c->call.set_buffer},
        {"spng_set_chunk_limits", &c->call.set_chunk_limits},
        {"spng_get_ihdr", &c->call.get_header},
        {"spng_decode_image", &c->call.decode},
        {"spng_strerror", &c->call.describe},
    };

    return codec_library_open(PNG_LIBRARY, PNG_PACKAGE, symbols, LS_COUNT_OF(symbols), &c->codec);
}

ls_status png_codec_open(png_codec **out)
{
    png_codec *c;
    ls_status st;

    LS_TRY(LS_NEW(&c, 1, "for a PNG decoder"));
    st = load_library(c);
    if (st != LS_OK) {
        png_codec_close(c);
        return st;
    }
    *out = c;
    return LS_OK;
}

static void end_image(png_codec *c)
{
    if (c->image != NULL)
        c->call.destroy(c->image);
    c->image = NULL;
}

void png_codec_close(png_codec *c)
{
    if (c == NULL)
        return;
    end_image(c);
    codec_library_close(c->codec);
    ls_free(c);
}

static ls_status check(const png_codec *c, int result)
{
    if (result == SPNG_OK)
        return LS_OK;
    if (png_allocation_failed())
        return ls_fail(LS_ENOMEM, "no memory to decode a PNG");
    if (result == SPNG_IO_EOF || result == SPNG_EOF)
        return ls_fail(LS_EFORMAT, "the PNG is truncated");
    return ls_fail(LS_EFORMAT, "broken PNG: %s", c->call.describe(result));
}

ls_status png_codec_header(png_codec *c, const uint8_t *data, size_t bytes, int *width, int *height)
{
    struct spng_alloc memory = png_memory();

    end_image(c);
    c->image = c->call.create(&memory, 0);
    if (c->image == NULL)
        return ls_fail(LS_ENOMEM, "no memory to decode a PNG");
    LS_TRY(check(c, c->call.set_chunk_limits(c->image, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES)));
    LS_TRY(check(c, c->call.set_buffer(c->image, data, bytes)));
    LS_TRY(check(c, c->call.get_header(c->image, &c->header)));
    *width = (int)c->header.width; // at most 2^31 - 1
    *height = (int)c->header.height;
    return LS_OK;
}

/* Expands n pixels of 16-bit grey to 4 bytes each, in place and from the last pixel backwards. */
static void spread_grey(uint8_t *data, size_t n)
{
    uint16_t *grey = (uint16_t *)(void *)data;

    for (size_t i = n; i-- > 0;) {
        const uint8_t v = grey[i] > 255 ? 255 : (uint8_t)grey[i];

        for (size_t k = 0; k < 4; k++)
            data[4 * i + k] = v;
    }
}

ls_status png_codec_decode(png_codec *c, const image_box *box, byte_buffer *pixels, image_view *out)
{
    const bool is_deep_grey =
        c->header.bit_depth == 16 && c->header.color_type == SPNG_COLOR_TYPE_GRAYSCALE;
    const size_t stride = (size_t)c->header.width * 4;
    const size_t n = (size_t)c->header.width * c->header.height;
    ls_status st;

    LS_TRY(byte_buffer_reserve(pixels, n * 4));
    st = check(c, c->call.decode(c->image, pixels->data, is_deep_grey ? n * 2 : n * 4,
                                 is_deep_grey ? SPNG_FMT_PNG : SPNG_FMT_RGBA8, 0));
    end_image(c);
    LS_TRY(st);
    if (is_deep_grey)
        spread_grey(pixels->data, n);
    *out = (image_view){pixels->data + (size_t)box->y * stride + (size_t)box->x * 4, stride,
                        box->width, box->height};
    return LS_OK;
}
