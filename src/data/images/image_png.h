/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * image_png.h - decodes PNG with libspng, which is loaded when the first codec is opened. Error
 * texts do not name the file.
 */
#ifndef LS_DATA_IMAGES_IMAGE_PNG_H
#define LS_DATA_IMAGES_IMAGE_PNG_H

#include "data/images/image.h"

typedef struct png_codec png_codec;

LS_MUST_USE ls_status png_codec_open(png_codec **out);
void png_codec_close(png_codec *c); /* NULL is allowed */

/* Reads the header of an image in memory, which must not change until it is decoded or the next
 * header is read. */
LS_MUST_USE ls_status png_codec_header(png_codec *c, const uint8_t *data, size_t bytes, int *width,
                                       int *height);

/* Decodes that image, once. libspng decodes all of it; the view is the box. */
LS_MUST_USE ls_status png_codec_decode(png_codec *c, const image_box *box, byte_buffer *pixels,
                                       image_view *out);

#endif
