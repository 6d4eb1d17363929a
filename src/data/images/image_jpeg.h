/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * image_jpeg.h - decodes JPEG with libjpeg-turbo, which is loaded when the first codec is opened.
 * Error texts do not name the file.
 */
#ifndef LS_DATA_IMAGES_IMAGE_JPEG_H
#define LS_DATA_IMAGES_IMAGE_JPEG_H

#include "data/images/image.h"

typedef struct jpeg_codec jpeg_codec;

LS_MUST_USE ls_status jpeg_codec_open(jpeg_codec **out);
void jpeg_codec_close(jpeg_codec *c); /* NULL is allowed */

/* Reads the header of an image in memory, which must not change until it is decoded or the next
 * header is read. */
LS_MUST_USE ls_status jpeg_codec_header(jpeg_codec *c, const uint8_t *data, size_t bytes,
                                        int *width, int *height);

/* Decodes that image, once, into `pixels`; see image_decode(). */
LS_MUST_USE ls_status jpeg_codec_decode(jpeg_codec *c, const image_box *box, int shrink,
                                        byte_buffer *pixels, image_view *out);

#endif
