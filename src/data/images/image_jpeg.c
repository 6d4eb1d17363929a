/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * image_jpeg.c - decodes the requested part of a JPEG for image.c: jpeg_crop_scanline() limits
 * the columns, jpeg_skip_scanlines() the rows.
 *
 * libjpeg reports errors through a callback that must not return, so each of its calls runs inside
 * run_guarded(), to which longjmp() returns.
 */
#include "data/images/image_jpeg.h"

#include "base/alloc.h"
#include "data/codecs/codec_library.h"
#include "data/images/jpeg_library.h"

#include <setjmp.h>

/* Limits the time that a hostile progressive file takes; real files have about ten scans. */
#define MAX_SCANS 500
/* Memory for the coefficients of a progressive image: 64 million pixels in full colour. */
#define MAX_CODEC_BYTES (512L << 20)
/* Columns decoded on both sides of the box, because libjpeg interpolates the outermost columns
 * without their neighbours. */
#define MARGIN 16
#define ROWS   16 /* decoded by one call */

typedef struct jpeg_functions {
    struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
    void (*create)(j_decompress_ptr, int version, size_t bytes);
    void (*destroy)(j_decompress_ptr);
    void (*mem_src)(j_decompress_ptr, const unsigned char *, unsigned long);
    int (*read_header)(j_decompress_ptr, boolean);
    boolean (*start)(j_decompress_ptr);
    void (*crop)(j_decompress_ptr, JDIMENSION *x, JDIMENSION *width);
    JDIMENSION (*skip)(j_decompress_ptr, JDIMENSION rows);
    JDIMENSION (*read)(j_decompress_ptr, JSAMPARRAY rows, JDIMENSION n);
    void (*abort)(j_decompress_ptr);
} jpeg_functions;

struct jpeg_codec {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    ls_status failure; /* of our part of a step */
    bool has_too_many_scans;
    void *codec;
    jpeg_functions call;
    const uint8_t *data;
    size_t bytes;

    // Arguments and result of decode_step().
    image_box box;
    int shrink;
    byte_buffer *pixels;
    image_view out;
};

/* --- errors --- */

static ls_status describe(jpeg_codec *c)
{
    char text[JMSG_LENGTH_MAX];
    const size_t left = c->d.src != NULL ? c->d.src->bytes_in_buffer : 0;

    if (c->has_too_many_scans)
        return ls_fail(LS_EFORMAT, "the JPEG has more than %d scans", MAX_SCANS);
    if (c->errors.msg_code == JERR_OUT_OF_MEMORY)
        return ls_fail(LS_ENOMEM, "no memory to decode a JPEG");
    c->errors.format_message((j_common_ptr)&c->d, text);
    if (c->errors.msg_code == JWRN_JPEG_EOF)
        return ls_fail(LS_EFORMAT, "offset %zu: the JPEG is truncated", c->bytes);
    return ls_fail(LS_EFORMAT, "near offset %zu: broken JPEG: %s",
                   left <= c->bytes ? c->bytes - left : c->bytes, text);
}

static void escape_to_caller(j_common_ptr any)
{
    longjmp(((jpeg_codec *)any->client_data)->escape, 1);
}

/* As in Pillow, truncated data is an error, where libjpeg would fill the rest with grey. All other
 * warnings are ignored. */
static void on_warning(j_common_ptr any, int level)
{
    if (level < 0 && any->err->msg_code == JWRN_JPEG_EOF)
        escape_to_caller(any);
}

static void limit_scans(j_common_ptr any)
{
    jpeg_codec *c = any->client_data;

    c->has_too_many_scans = c->d.input_scan_number > MAX_SCANS;
    if (c->has_too_many_scans)
        escape_to_caller(any);
}

/* Runs one step; an error of libjpeg inside returns here. */
static ls_status run_guarded(jpeg_codec *c, void (*step)(jpeg_codec *c))
{
    c->failure = LS_OK;
    c->has_too_many_scans = false;
    if (setjmp(c->escape) != 0)
        return describe(c);
    step(c);
    return c->failure;
}

/* --- life --- */

static void create_step(jpeg_codec *c)
{
    c->call.create(&c->d, JPEG_LIB_VERSION, sizeof(c->d));
    c->d.mem->max_memory_to_use = MAX_CODEC_BYTES;
    c->progress.progress_monitor = limit_scans;
    c->d.progress = &c->progress;
}

static ls_status load_library(jpeg_codec *c)
{
    const codec_symbol symbols[] = {
        {"jpeg_std_error", &c->call.std_error},        {"jpeg_CreateDecompress", &c->call.create},
        {"jpeg_destroy_decompress", &c->call.destroy}, {"jpeg_mem_src", &c->call.mem_src},
        {"jpeg_read_header", &c->call.read_header},    {"jpeg_start_decompress", &c->call.start},
        {"jpeg_crop_scanline", &c->call.crop},         {"jpeg_skip_scanlines", &c->call.skip},
        {"jpeg_read_scanlines", &c->call.read},        {"jpeg_abort_decompress", &c->call.abort},
    };

    return codec_library_open(JPEG_LIBRARY, JPEG_PACKAGE, symbols, LS_COUNT_OF(symbols), &c->codec);
}

ls_status jpeg_codec_open(jpeg_codec **out)
{
    jpeg_codec *c;
    ls_status st;

    LS_TRY(LS_NEW(&c, 1, "for a JPEG decoder"));
    st = load_library(c);
    if (st == LS_OK) {
        c->d.err = c->call.std_error(&c->errors);
        c->d.client_data = c;
        c->errors.error_exit = escape_to_caller;
        c->errors.emit_message = on_warning;
        st = run_guarded(c, create_step);
    }
    if (st != LS_OK) {
        jpeg_codec_close(c);
        return st;
    }
    *out = c;
    return LS_OK;
}

void jpeg_codec_close(jpeg_codec *c)
{
    if (c == NULL)
        return;
    if (c->d.mem != NULL)
        c->call.destroy(&c->d);
    codec_library_close(c->codec);
    ls_free(c);
}

/* --- reading --- */

static void header_step(jpeg_codec *c)
{
    c->call.abort(&c->d); // ends the previous image
    c->call.mem_src(&c->d, c->data, c->bytes);
    (void)c->call.read_header(&c->d, TRUE);
}

ls_status jpeg_codec_header(jpeg_codec *c, const uint8_t *data, size_t bytes, int *width,
                            int *height)
{
    c->data = data;
    c->bytes = bytes;
    LS_TRY(run_guarded(c, header_step));
    if (c->d.num_components != 1 && c->d.num_components != 3 && c->d.num_components != 4)
        return ls_fail(LS_EFORMAT, "the JPEG has %d colour channels, expected 1, 3 or 4",
                       c->d.num_components);
    *width = (int)c->d.image_width; // at most 65500
    *height = (int)c->d.image_height;
    return LS_OK;
}

/* a * b / 255, rounded. */
static unsigned multiply(unsigned a, unsigned b)
{
    const unsigned t = a * b + 128;

    return (t + (t >> 8)) >> 8;
}

/* In place, with Pillow's formula. The bytes are inverted, as Adobe and all others write CMYK. */
static void cmyk_to_rgb(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++, p += 4) {
        const unsigned light = p[3];

        for (int k = 0; k < 3; k++)
            p[k] = (uint8_t)(light - multiply(255U - p[k], light));
    }
}

/* Limits the columns that are decoded; returns the first one. */
static size_t crop_columns(jpeg_codec *c)
{
    const int left = c->box.x > MARGIN ? c->box.x - MARGIN : 0;
    const int right = c->box.x + c->box.width + MARGIN;
    JDIMENSION x = (JDIMENSION)left;
    JDIMENSION end = (JDIMENSION)right < c->d.output_width ? (JDIMENSION)right : c->d.output_width;
    JDIMENSION width = end - x;

    if (width < c->d.output_width)
        c->call.crop(&c->d, &x, &width);
    return x;
}

static void read_rows(jpeg_codec *c, size_t stride)
{
    const int n_rows = c->box.height;

    if (c->box.y > 0)
        (void)c->call.skip(&c->d, (JDIMENSION)c->box.y);
    for (int y = 0; y < n_rows;) {
        JSAMPROW rows[ROWS];
        const int n = n_rows - y < ROWS ? n_rows - y : ROWS;
        int got;

        for (int i = 0; i < n; i++)
            rows[i] = c->pixels->data + (size_t)(y + i) * stride;
        got = (int)c->call.read(&c->d, rows, (JDIMENSION)n);
        for (int i = 0; i < got && c->d.out_color_space == JCS_CMYK; i++)
            cmyk_to_rgb(rows[i], c->d.output_width);
        y += got;
    }
}

static void decode_step(jpeg_codec *c)
{
    size_t first;
    size_t stride;

    c->d.out_color_space = c->d.num_components == 4 ? JCS_CMYK : JCS_EXT_RGBX;
    c->d.scale_num = 8 / (unsigned)c->shrink;
    c->d.scale_denom = 8;
    (void)c->call.start(&c->d);
    LS_ASSERT(c->box.width <= (int)c->d.output_width - c->box.x);
    LS_ASSERT(c->box.height <= (int)c->d.output_height - c->box.y);
    first = crop_columns(c);
    stride = (size_t)c->d.output_width * 4;
    c->failure = byte_buffer_reserve(c->pixels, stride * (size_t)c->box.height);
    if (c->failure != LS_OK)
        return;
    read_rows(c, stride);
    c->call.abort(&c->d);
    c->out = (image_view){c->pixels->data + ((size_t)c->box.x - first) * 4, stride, c->box.width,
                          c->box.height};
}

ls_status jpeg_codec_decode(jpeg_codec *c, const image_box *box, int shrink, byte_buffer *pixels,
                            image_view *out)
{
    c->box = *box;
    c->shrink = shrink;
    c->pixels = pixels;
    LS_TRY(run_guarded(c, decode_step));
    *out = c->out;
    return LS_OK;
}
