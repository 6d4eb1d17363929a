/* SPDX-License-Identifier: Apache-2.0 */
/* image_write.h - encodes images as PNG or JPEG, for convert.c. */
#ifndef LS_DATA_IMAGES_IMAGE_WRITE_H
#define LS_DATA_IMAGES_IMAGE_WRITE_H

#include "base/text.h"

/* Contiguous rows with 1 (grey) or 3 (red, green, blue) bytes a pixel. */
typedef struct flat_image {
    const uint8_t *bytes;
    int width;
    int height;
    int channels;
} flat_image;

/* Appends the encoded file to `out`. LS_EUNSUPPORTED when the codec's library is not installed. */
LS_MUST_USE ls_status image_write_png(const flat_image *image, text_buf *out);
/* quality 1 ... 100 */
LS_MUST_USE ls_status image_write_jpeg(const flat_image *image, int quality, text_buf *out);

#endif
