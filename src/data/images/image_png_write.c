/* SPDX-License-Identifier: Apache-2.0 */
/* image_png_write.c - encodes an image as PNG with libspng, for convert.c. */
#include "data/images/image_write.h"

#include "data/codecs/codec_library.h"
#include "data/images/png_library.h"

typedef struct png_writer {
    void *codec;
    spng_ctx *(*create)(struct spng_alloc *alloc, int flags);
    void (*destroy)(spng_ctx *);
    int (*set_stream)(spng_ctx *, spng_rw_fn *, void *);
    int (*set_header)(spng_ctx *, struct spng_ihdr *);
    int (*encode)(spng_ctx *, const void *, size_t, int format, int flags);
    const char *(*describe)(int error);
} png_writer;

static ls_status load_library(png_writer *w)
{
    const codec_symbol symbols[] = {
        {"spng_ctx_new2", &w->create},           {"spng_ctx_free", &w->destroy},
        {"spng_set_png_stream", &w->set_stream}, {"spng_set_ihdr", &w->set_header},
        {"spng_encode_image", &w->encode},       {"spng_strerror", &w->describe},
    };

    return codec_library_open(PNG_LIBRARY, PNG_PACKAGE, symbols, LS_COUNT_OF(symbols), &w->codec);
}

static int append(spng_ctx *ctx, void *user, void *bytes, size_t n)
{
    text_buf *out = user;

    LS_UNUSED(ctx);
    text_append_bytes(out, bytes, n);
    return out->failed ? SPNG_IO_ERROR : 0;
}

static ls_status encode(const png_writer *w, const flat_image *image, text_buf *out)
{
    struct spng_alloc memory = png_memory();
    struct spng_ihdr header = {.width = (uint32_t)image->width,
                               .height = (uint32_t)image->height,
                               .bit_depth = 8,
                               .color_type = image->channels == 1 ? SPNG_COLOR_TYPE_GRAYSCALE
                                                                  : SPNG_COLOR_TYPE_TRUECOLOR};
    const size_t bytes = (size_t)image->width * (size_t)image->height * (size_t)image->channels;
    spng_ctx *ctx = w->create(&memory, SPNG_CTX_ENCODER);
    int result;

    if (ctx == NULL)
        return ls_fail(LS_ENOMEM, "no memory to write a PNG");
    result = w->set_stream(ctx, append, out);
    if (result == 0)
        result = w->set_header(ctx, &header);
    if (result == 0)
        result = w->encode(ctx, image->bytes, bytes, SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
    w->destroy(ctx);
    LS_TRY(text_status(out));
    if (result != 0)
        return ls_fail(png_allocation_failed() ? LS_ENOMEM : LS_EINTERNAL, "cannot write a PNG: %s",
                       w->describe(result));
    return LS_OK;
}

ls_status image_write_png(const flat_image *image, text_buf *out)
{
    png_writer w = {0};
    ls_status st;

    LS_TRY(load_library(&w));
    st = encode(&w, image, out);
    codec_library_close(w.codec);
    return st;
}
