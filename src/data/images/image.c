/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - opens an image of a file or of memory and passes it to the decoder of its format, which
 * the content decides. Data sets open images, sample.c and convert.c decode them.
 */
#include "data/images/image.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "data/images/image_jpeg.h"
#include "data/images/image_png.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct signature {
    const char *name;
    size_t offset;
    const char *bytes;
    size_t n;
} signature;

#define BYTES(text) text, sizeof(text) - 1

/* Formats that are recognized for the error message only. */
static const signature others[] = {
    {"a GIF", 0, BYTES("GIF8")},         {"a WebP image", 8, BYTES("WEBP")},
    {"a BMP", 0, BYTES("BM")},           {"a TIFF", 0, BYTES("II*\0")},
    {"a TIFF", 0, BYTES("MM\0*")},       {"an HTML page", 0, BYTES("<!")},
    {"an HTML page", 0, BYTES("<html")}, {"an AVIF or HEIF image", 4, BYTES("ftyp")},
};

static bool begins(const uint8_t *data, size_t n_bytes, size_t offset, const char *with, size_t n)
{
    return n_bytes >= offset + n && memcmp(data + offset, with, n) == 0;
}

static ls_status fail_format(const image_reader *r)
{
    if (r->n_bytes == 0)
        return ls_fail(LS_EFORMAT, "%s is empty", r->name);
    for (size_t i = 0; i < LS_COUNT_OF(others); i++)
        if (begins(r->bytes, r->n_bytes, others[i].offset, others[i].bytes, others[i].n))
            return ls_fail(LS_EFORMAT, "%s is %s: only JPEG and PNG are supported", r->name,
                           others[i].name);
    return ls_fail(LS_EFORMAT, "%s: offset 0: neither a JPEG nor a PNG signature", r->name);
}

static ls_status read_jpeg_header(image_reader *r)
{
    r->format = IMAGE_JPEG;
    if (r->jpeg == NULL)
        LS_TRY(ls_context(jpeg_codec_open(&r->jpeg), "%s is a JPEG", r->name));
    return ls_context(jpeg_codec_header(r->jpeg, r->bytes, r->n_bytes, &r->width, &r->height), "%s",
                      r->name);
}

static ls_status read_png_header(image_reader *r)
{
    r->format = IMAGE_PNG;
    if (r->png == NULL)
        LS_TRY(ls_context(png_codec_open(&r->png), "%s is a PNG", r->name));
    return ls_context(png_codec_header(r->png, r->bytes, r->n_bytes, &r->width, &r->height), "%s",
                      r->name);
}

static ls_status read_header(image_reader *r)
{
    if (begins(r->bytes, r->n_bytes, 0, BYTES("\xFF\xD8\xFF")))
        LS_TRY(read_jpeg_header(r));
    else if (begins(r->bytes, r->n_bytes, 0, BYTES("\x89PNG\r\n\x1A\n")))
        LS_TRY(read_png_header(r));
    else
        return fail_format(r);
    if (r->width < 1 || r->height < 1)
        return ls_fail(LS_EFORMAT, "%s: the header has %d x %d pixels", r->name, r->width,
                       r->height);
    if (r->width > IMAGE_MAX_SIDE || r->height > IMAGE_MAX_SIDE ||
        (int64_t)r->width * r->height > IMAGE_MAX_PIXELS)
        return ls_fail(LS_EFORMAT, "%s: %d x %d pixels, more than %lld in all or %d a side",
                       r->name, r->width, r->height, (long long)IMAGE_MAX_PIXELS, IMAGE_MAX_SIDE);
    r->channels = 3;
    return LS_OK;
}

ls_status image_open_bytes(image_reader *r, const char *name, const void *data, size_t bytes)
{
    r->name = name;
    r->bytes = data;
    r->n_bytes = bytes;
    return read_header(r);
}

static ls_status fail_file(const char *path, const char *did)
{
    return ls_fail(errno == ENOENT ? LS_ENOTFOUND : LS_EIO, "cannot %s %s: %s", did, path,
                   ls_errno_text(errno));
}

static ls_status fail_open(const char *path)
{
    const int error = errno;
    char target[1024];
    const ssize_t n = error == ENOENT ? readlink(path, target, sizeof(target)) : -1;

    errno = error;
    if (n < 0)
        return fail_file(path, "open");
    return ls_fail(LS_ENOTFOUND, "cannot open %s: it is a link to %.*s, which does not exist", path,
                   (int)n, target);
}

static ls_status read_file(image_reader *r, int fd, const char *path, size_t *bytes)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return fail_file(path, "examine");
    if (!S_ISREG(info.st_mode))
        return ls_fail(LS_EFORMAT, "%s is not a regular file", path);
    if ((uint64_t)info.st_size > IMAGE_MAX_FILE_BYTES)
        return ls_fail(LS_EFORMAT, "%s has %lld bytes, more than %zu", path,
                       (long long)info.st_size, IMAGE_MAX_FILE_BYTES);
    *bytes = (size_t)info.st_size;
    LS_TRY(byte_buffer_reserve(&r->file, *bytes));
    return file_pread_all(fd, path, r->file.data, *bytes, 0);
}

ls_status image_open_file(image_reader *r, const char *path)
{
    size_t bytes = 0;
    ls_status st;
    // O_NONBLOCK: opening a named pipe would otherwise wait for its writer.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return fail_open(path);
    st = read_file(r, fd, path, &bytes);
    file_close(&fd);
    return st == LS_OK ? image_open_bytes(r, path, r->file.data, bytes) : st;
}

void image_open_planes(image_reader *r, const uint8_t *planes, int channels, int height, int width)
{
    r->format = IMAGE_PLANES;
    r->channels = channels;
    r->height = height;
    r->width = width;
    r->bytes = planes;
}

/* Interleaves up to 4 planes into pixels of 4 bytes. */
static ls_status pack_planes(image_reader *r, const image_box *box, int plane, image_view *out)
{
    const size_t plane_bytes = (size_t)r->width * (size_t)r->height;
    const int n = r->channels - plane < 4 ? r->channels - plane : 4;
    const size_t stride = (size_t)box->width * 4;

    LS_TRY(byte_buffer_reserve(&r->pixels, stride * (size_t)box->height));
    for (int y = 0; y < box->height; y++) {
        const size_t at = (size_t)(box->y + y) * (size_t)r->width + (size_t)box->x;
        uint8_t *row = r->pixels.data + (size_t)y * stride;

        for (int c = 0; c < 4; c++) {
            const uint8_t *src = r->bytes + (size_t)(plane + (c < n ? c : 0)) * plane_bytes + at;

            for (size_t x = 0; x < (size_t)box->width; x++)
                row[4 * x + (size_t)c] = src[x];
        }
    }
    *out = (image_view){r->pixels.data, stride, box->width, box->height};
    return LS_OK;
}

ls_status image_decode(image_reader *r, const image_box *box, int shrink, int plane,
                       image_view *out)
{
    LS_ASSERT(box->x >= 0 && box->y >= 0 && box->width > 0 && box->height > 0);
    LS_ASSERT(shrink == 1 || r->format == IMAGE_JPEG);
    switch (r->format) {
    case IMAGE_JPEG:
        return ls_context(jpeg_codec_decode(r->jpeg, box, shrink, &r->pixels, out), "%s", r->name);
    case IMAGE_PNG:
        return ls_context(png_codec_decode(r->png, box, &r->pixels, out), "%s", r->name);
    case IMAGE_PLANES:
        break;
    }
    return pack_planes(r, box, plane, out);
}

void image_reader_free(image_reader *r)
{
    jpeg_codec_close(r->jpeg);
    png_codec_close(r->png);
    byte_buffer_free(&r->file);
    byte_buffer_free(&r->pixels);
    *r = (image_reader){0};
}
