/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * image.h - reads images of files and of memory: first the size, then the pixels of a part.
 *
 * Content decides the format, never the name. Colours become RGB as by Pillow's convert("RGB");
 * EXIF orientation is ignored, as in torchvision. A broken image is LS_EFORMAT.
 *
 * data/images/: reading, writing and resizing images, for data and data/formats.
 */
#ifndef LS_DATA_IMAGES_IMAGE_H
#define LS_DATA_IMAGES_IMAGE_H

#include "data/images/resize.h"

/* Larger images and files are LS_EFORMAT. */
#define IMAGE_MAX_PIXELS     ((int64_t)1 << 26)
#define IMAGE_MAX_SIDE       65535
#define IMAGE_MAX_FILE_BYTES ((size_t)1 << 28)

typedef enum image_format {
    IMAGE_PLANES, /* bytes in memory: channels x height x width */
    IMAGE_JPEG,
    IMAGE_PNG
} image_format;

typedef struct image_box {
    int x;
    int y;
    int width;
    int height;
} image_box;

struct jpeg_codec;
struct png_codec;

/* Reads one image after the other; used by one thread. Zero-initialise. */
typedef struct image_reader {
    // The image that is open.
    image_format format;
    int width;
    int height;
    int channels;     /* IMAGE_PLANES: any; else 3 */
    const char *name; /* for errors; borrowed until the next image */
    const uint8_t *bytes;
    size_t n_bytes;

    // Reused for the next image.
    struct jpeg_codec *jpeg; /* NULL before the first JPEG; the same for png */
    struct png_codec *png;
    byte_buffer file;
    byte_buffer pixels;
    char path[4096]; /* for data sets that compose the path of a file */
} image_reader;

/* Opens the image in a file. LS_ENOTFOUND or LS_EIO when the file cannot be read, LS_EUNSUPPORTED
 * when the codec's library is not installed. */
LS_MUST_USE ls_status image_open_file(image_reader *r, const char *path);
/* Opens an encoded image in memory, which must not change until the next image is opened. */
LS_MUST_USE ls_status image_open_bytes(image_reader *r, const char *name, const void *data,
                                       size_t bytes);
/* Opens an uncompressed image: channels x height x width bytes, borrowed. */
void image_open_planes(image_reader *r, const uint8_t *planes, int channels, int height, int width);

/*
 * * The pixels of `box`, 4 bytes each: red, green, blue and an undefined one. With shrink 2, 4 or 8
 * (JPEG only) the image is decoded at that fraction of its size, rounded up, and `box` is in pixels
 * of the smaller image. IMAGE_PLANES gives up to 4 planes, from `plane` on. Valid until the next
 * call.
 */
LS_MUST_USE ls_status image_decode(image_reader *r, const image_box *box, int shrink, int plane,
                                   image_view *out);

void image_reader_free(image_reader *r);

#endif
