/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image_jpeg_write.c - encodes an image as JPEG with libjpeg-turbo, for convert.c. libjpeg reports
 * an error through a callback that must not return: run() is where longjmp() returns to.
 */
#include "data/images/image_write.h"

#include "data/codecs/codec_library.h"
#include "data/images/jpeg_library.h"

#include <setjmp.h>

#define PIECE_BYTES 4096

typedef struct jpeg_writer {
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    struct jpeg_destination_mgr destination;
    jmp_buf escape;
    void *codec;
    struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
    void (*create)(j_compress_ptr, int version, size_t bytes);
    void (*destroy)(j_compress_ptr);
    void (*set_defaults)(j_compress_ptr);
    void (*set_quality)(j_compress_ptr, int quality, boolean baseline);
    void (*start)(j_compress_ptr, boolean all_tables);
    JDIMENSION (*write)(j_compress_ptr, JSAMPARRAY rows, JDIMENSION n);
    void (*finish)(j_compress_ptr);
    const flat_image *image;
    int quality;
    text_buf *out;
    JOCTET piece[PIECE_BYTES];
} jpeg_writer;

static ls_status load_library(jpeg_writer *w)
{
    const codec_symbol symbols[] = {
        {"jpeg_std_error", &w->std_error},      {"jpeg_CreateCompress", &w->create},
        {"jpeg_destroy_compress", &w->destroy}, {"jpeg_set_defaults", &w->set_defaults},
        {"jpeg_set_quality", &w->set_quality},  {"jpeg_start_compress", &w->start},
        {"jpeg_write_scanlines", &w->write},    {"jpeg_finish_compress", &w->finish},
    };

    return codec_library_open(JPEG_LIBRARY, JPEG_PACKAGE, symbols, LS_COUNT_OF(symbols), &w->codec);
}

static void escape_to_caller(j_common_ptr any)
{
    longjmp(((jpeg_writer *)any->client_data)->escape, 1);
}

static void ignore_warning(j_common_ptr any, int level)
{
    LS_UNUSED(any);
    LS_UNUSED(level);
}

static void begin_piece(j_compress_ptr c)
{
    jpeg_writer *w = c->client_data;

    w->destination.next_output_byte = w->piece;
    w->destination.free_in_buffer = sizeof(w->piece);
}

static boolean flush_piece(j_compress_ptr c)
{
    jpeg_writer *w = c->client_data;

    text_append_bytes(w->out, (const char *)w->piece, sizeof(w->piece));
    begin_piece(c);
    return TRUE;
}

static void end_pieces(j_compress_ptr c)
{
    jpeg_writer *w = c->client_data;

    text_append_bytes(w->out, (const char *)w->piece,
                      sizeof(w->piece) - w->destination.free_in_buffer);
}

static void encode(jpeg_writer *w)
{
    const flat_image *image = w->image;
    const size_t stride = (size_t)image->width * (size_t)image->channels;

    w->create(&w->c, JPEG_LIB_VERSION, sizeof(w->c));
    w->destination.init_destination = begin_piece;
    w->destination.empty_output_buffer = flush_piece;
    w->destination.term_destination = end_pieces;
    w->c.dest = &w->destination;
    w->c.image_width = (JDIMENSION)image->width;
    w->c.image_height = (JDIMENSION)image->height;
    w->c.input_components = image->channels;
    w->c.in_color_space = image->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    w->set_defaults(&w->c);
    w->set_quality(&w->c, w->quality, TRUE);
    w->start(&w->c, TRUE);
    for (int y = 0; y < image->height; y++) {
        // libjpeg does not write to the rows of its input.
        JSAMPROW row = (JSAMPROW)(uintptr_t)(image->bytes + (size_t)y * stride);

        (void)w->write(&w->c, &row, 1);
    }
    w->finish(&w->c);
}

static ls_status run(jpeg_writer *w)
{
    char text[JMSG_LENGTH_MAX];

    w->c.err = w->std_error(&w->errors);
    w->c.client_data = w;
    w->errors.error_exit = escape_to_caller;
    w->errors.emit_message = ignore_warning;
    if (setjmp(w->escape) == 0) {
        encode(w);
        return text_status(w->out);
    }
    w->errors.format_message((j_common_ptr)&w->c, text);
    return ls_fail(w->errors.msg_code == JERR_OUT_OF_MEMORY ? LS_ENOMEM : LS_EINTERNAL,
                   "cannot write a JPEG: %s", text);
}

ls_status image_write_jpeg(const flat_image *image, int quality, text_buf *out)
{
    jpeg_writer w = {.image = image, .quality = quality, .out = out};
    ls_status st;

    LS_TRY(load_library(&w));
    st = run(&w);
    if (w.c.mem != NULL)
        w.destroy(&w.c);
    codec_library_close(w.codec);
    return st;
}
