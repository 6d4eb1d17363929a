/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image_png.h - PNG by libspng, which is loaded when the first codec is made. Error texts do not name the file.
 */
#ifndef LS_DATA_IMAGE_PNG_H
#define LS_DATA_IMAGE_PNG_H

#include "data/images/image.h"

typedef struct png_codec png_codec;

LS_MUST_USE ls_status png_codec_open(png_codec **out);
void png_codec_close(png_codec *c); /* NULL is allowed */

/* Reads the header of an image in memory, which stays as it is until it is decoded or the next one comes. */
LS_MUST_USE ls_status png_codec_header(png_codec *c, const uint8_t *data, size_t bytes, int *width,
                                       int *height);

/* Decodes that image, once. All of it is decoded, whatever the box is. */
LS_MUST_USE ls_status png_codec_decode(png_codec *c, const image_box *box, room *pixels,
                                       image_view *out);

#endif
