/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image_write.h - images as PNG or JPEG bytes, for the converter.
 */
#ifndef LS_DATA_IMAGE_WRITE_H
#define LS_DATA_IMAGE_WRITE_H

#include "base/text.h"

/* Rows of `channels` bytes a pixel, 1 (grey) or 3 (red, green, blue), without gaps. */
typedef struct flat_image {
    const uint8_t *bytes;
    int width;
    int height;
    int channels;
} flat_image;

/* Appends the file's bytes to `out`. LS_EUNSUPPORTED: the codec is not installed. */
LS_MUST_USE ls_status image_write_png(const flat_image *image, text_buf *out);
/* quality 1 ... 100 */
LS_MUST_USE ls_status image_write_jpeg(const flat_image *image, int quality, text_buf *out);

#endif
