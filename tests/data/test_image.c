/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_image.c - tests reading and writing of images, intact and broken ones. image_parity.py
 * compares pixels with Pillow's.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "data/images/image.h"
#include "data/temp_files.h"
#include "data/test_pictures.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static temp_folder folder;

static ls_status decode_part(image_reader *r, const image_box *box, int shrink, image_view *out)
{
    return image_decode(r, box, shrink, 0, out);
}

static ls_status decode_all(image_reader *r, image_view *out)
{
    const image_box all = {0, 0, r->width, r->height};

    return decode_part(r, &all, 1, out);
}

static ls_status decode_bytes(image_reader *r, const void *data, size_t n)
{
    image_view view;

    LS_TRY(image_open_bytes(r, "picture", data, n));
    return decode_all(r, &view);
}

static void a_png_round_trip_is_lossless(void **state)
{
    LS_UNUSED(state);
    for (int channels = 1; channels <= 3; channels += 2) {
        const flat_image image = picture_make(37, 23, channels, 2);
        text_buf file = {0};
        image_reader r = {0};
        image_view v;

        assert_ok(image_write_png(&image, &file));
        assert_ok(image_open_bytes(&r, "picture", file.data, file.length));
        assert_int_equal(r.format, IMAGE_PNG);
        assert_int_equal(r.width, 37);
        assert_int_equal(r.height, 23);
        assert_ok(decode_all(&r, &v));
        for (size_t i = 0; i < 37 * 23; i++)
            for (size_t c = 0; c < 3; c++)
                assert_int_equal(v.pixels[i / 37 * v.stride + i % 37 * 4 + c],
                                 image.bytes[i * (size_t)channels + (channels == 1 ? 0 : c)]);
        image_reader_free(&r);
        text_free(&file);
        free((void *)(uintptr_t)image.bytes);
    }
}

static void a_jpeg_round_trip_is_close(void **state)
{
    LS_UNUSED(state);
    for (int channels = 1; channels <= 3; channels += 2) {
        const flat_image image = picture_make(96, 70, channels, 0);
        text_buf file = {0};
        image_reader r = {0};
        image_view v;
        int64_t off = 0;

        assert_ok(image_write_jpeg(&image, 95, &file));
        assert_ok(image_open_bytes(&r, "picture", file.data, file.length));
        assert_int_equal(r.format, IMAGE_JPEG);
        assert_ok(decode_all(&r, &v));
        for (size_t i = 0; i < 96 * 70; i++)
            for (size_t c = 0; c < 3; c++)
                off += abs(v.pixels[i / 96 * v.stride + i % 96 * 4 + c] -
                           image.bytes[i * (size_t)channels + (channels == 1 ? 0 : c)]);
        assert_true(off < 96 * 70 * 3 * 6);
        image_reader_free(&r);
        text_free(&file);
        free((void *)(uintptr_t)image.bytes);
    }
}

/* The whole image's pixels at 1/shrink, as a copy. */
static image_view whole_at(image_reader *r, const text_buf *file, int shrink)
{
    image_box all;
    image_view v;
    uint8_t *copy;

    assert_ok(image_open_bytes(r, "picture", file->data, file->length));
    all = (image_box){0, 0, (r->width + shrink - 1) / shrink, (r->height + shrink - 1) / shrink};
    assert_ok(decode_part(r, &all, shrink, &v));
    copy = malloc(v.stride * (size_t)v.height);
    assert_non_null(copy);
    memcpy(copy, v.pixels, v.stride * (size_t)v.height);
    v.pixels = copy;
    return v;
}

static void assert_parts_equal(const text_buf *file, int shrink)
{
    image_reader r = {0};
    const image_view whole = whole_at(&r, file, shrink);
    ls_rng rng;

    ls_rng_seed(&rng, (uint64_t)shrink);
    for (int i = 0; i < 60; i++) {
        const int w = 1 + (int)ls_rng_below(&rng, (uint64_t)whole.width);
        const int h = 1 + (int)ls_rng_below(&rng, (uint64_t)whole.height);
        const image_box box = {(int)ls_rng_below(&rng, (uint64_t)(whole.width - w) + 1),
                               (int)ls_rng_below(&rng, (uint64_t)(whole.height - h) + 1), w, h};
        image_view part;

        assert_ok(image_open_bytes(&r, "picture", file->data, file->length));
        assert_ok(decode_part(&r, &box, shrink, &part));
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                assert_memory_equal(
                    part.pixels + (size_t)y * part.stride + 4 * (size_t)x,
                    whole.pixels + (size_t)(box.y + y) * whole.stride + 4 * (size_t)(box.x + x), 3);
    }
    free((void *)(uintptr_t)whole.pixels);
    image_reader_free(&r);
}

static void a_part_is_decoded_alone_to_the_same_pixels(void **state)
{
    LS_UNUSED(state);
    for (int quality = 0; quality <= 90; quality += 90) {
        text_buf file = {0};

        picture_encode(203, 131, 3, 4, quality, &file);
        assert_parts_equal(&file, 1);
        for (int shrink = 2; shrink <= 8 && quality > 0; shrink *= 2)
            assert_parts_equal(&file, shrink);
        text_free(&file);
    }
}

/* A file truncated at any byte is an error; the reader can read the next file. */
static void a_truncated_file_is_an_error(void **state)
{
    LS_UNUSED(state);
    for (int quality = 0; quality <= 80; quality += 80) {
        text_buf file = {0};
        image_reader r = {0};

        picture_encode(40, 40, 3, 1, quality, &file);
        for (size_t n = 0; n < file.length; n++) {
            // Its own memory, so that ASan sees a read behind the end.
            uint8_t *cut = malloc(n > 0 ? n : 1);
            ls_status st;

            assert_non_null(cut);
            memcpy(cut, file.data, n);
            st = decode_bytes(&r, cut, n);
            if (st != LS_OK)
                assert_status(st, LS_EFORMAT);
            // The last chunk of a PNG and the last bits of a JPEG hold no pixels.
            assert_true(st != LS_OK || n + 20 > file.length);
            if (st != LS_OK)
                assert_last_error("picture");
            free(cut);
        }
        assert_ok(decode_bytes(&r, file.data, file.length));
        image_reader_free(&r);
        text_free(&file);
    }
}

static void changed_bytes_never_crash(void **state)
{
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 5);
    for (int quality = 0; quality <= 80; quality += 80) {
        text_buf file = {0};
        image_reader r = {0};

        picture_encode(33, 50, 3, 1, quality, &file);
        for (int i = 0; i < 1500; i++) {
            const size_t at = (size_t)ls_rng_below(&rng, file.length);
            const char old = file.data[at];
            ls_status st;

            file.data[at] = (char)ls_rng_next(&rng);
            st = decode_bytes(&r, file.data, file.length);
            if (st != LS_OK)
                assert_status(st, LS_EFORMAT);
            file.data[at] = old;
        }
        image_reader_free(&r);
        text_free(&file);
    }
}

static void other_formats_are_named(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *message;
    } others[] = {
        {"GIF89a..", 8, "is a GIF"},
        {"RIFF....WEBPVP8 ", 16, "is a WebP image"},
        {"BM......", 8, "is a BMP"},
        {"II*\0....", 8, "is a TIFF"},
        {"MM\0*....", 8, "is a TIFF"},
        {"<!DOCTYPE html>", 15, "is an HTML page"},
        {"....ftypavif", 12, "is an AVIF"},
        {"", 0, "is empty"},
        {"plain words", 11, "neither a JPEG nor a PNG"},
        {"\xFF\xD8", 2, "neither a JPEG nor a PNG"},
        {"\x89PNG", 4, "neither a JPEG nor a PNG"},
    };
    image_reader r = {0};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(others); i++) {
        assert_status(decode_bytes(&r, others[i].bytes, others[i].n), LS_EFORMAT);
        assert_last_error("picture");
        assert_last_error(others[i].message);
    }
    image_reader_free(&r);
}

/* The sizes of a PNG's header are checked before memory is allocated for them. */
static void sizes_out_of_bounds_are_refused(void **state)
{
    static const struct {
        uint32_t width;
        uint32_t height;
    } sizes[] = {{0, 1}, {1, 0}, {0x7FFFFFFF, 0x7FFFFFFF}, {70000, 1}, {1, 70000}, {60000, 60000}};
    // The checksums of these headers.
    image_reader r = {0};
    text_buf file = {0};

    LS_UNUSED(state);
    picture_encode(9, 9, 3, 0, 0, &file);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        const uint64_t before = ls_alloc_count();

        for (int k = 0; k < 4; k++) {
            file.data[16 + k] = (char)(sizes[i].width >> (24 - 8 * k));
            file.data[20 + k] = (char)(sizes[i].height >> (24 - 8 * k));
        }
        assert_status(image_open_bytes(&r, "picture", file.data, file.length), LS_EFORMAT);
        assert_last_error("picture: ");
        assert_true(ls_alloc_count() < before + 30);
    }
    image_reader_free(&r);
    text_free(&file);
}

static void a_jpeg_of_too_many_pixels_is_refused(void **state)
{
    image_reader r = {0};
    text_buf file = {0};
    size_t at = 0;

    LS_UNUSED(state);
    picture_encode(16, 16, 3, 0, 90, &file);
    while (memcmp(file.data + at, "\xFF\xC0", 2) !=
           0) // the frame: length, precision, height, width
        at++;
    memset(file.data + at + 5, 0xF0, 4);
    assert_status(image_open_bytes(&r, "picture", file.data, file.length), LS_EFORMAT);
    assert_last_error("61680 x 61680 pixels, more than 67108864");
    image_reader_free(&r);
    text_free(&file);
}

/* A progressive file may repeat scans without limit, each over all pixels. */
static void a_jpeg_of_too_many_scans_is_refused(void **state)
{
    static const char path[] = CORPUS "/image/scans.jpg"; // with 600, behind the fuzzer's own byte
    image_reader r = {0};
    unsigned char *data;
    size_t bytes;

    LS_UNUSED(state);
    data = temp_read(path, &bytes);
    assert_status(decode_bytes(&r, data + 1, bytes - 1), LS_EFORMAT);
    assert_last_error("more than 500 scans");
    image_reader_free(&r);
    free(data);
}

static void unreadable_files_are_reported(void **state)
{
    char path[TEMP_PATH_BYTES];
    image_reader r = {0};
    int fd;

    LS_UNUSED(state);
    assert_status(image_open_file(&r, temp_path(&folder, "nothing.png", path)), LS_ENOTFOUND);
    assert_last_error("nothing.png");
    assert_status(image_open_file(&r, folder.path), LS_EFORMAT);
    assert_last_error("not a regular file");
    assert_int_equal(mkfifo(temp_path(&folder, "pipe.png", path), 0600), 0);
    assert_status(image_open_file(&r, path), LS_EFORMAT);
    fd = open(temp_path(&folder, "hole.png", path), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)1 << 29), 0);
    assert_int_equal(close(fd), 0);
    assert_status(image_open_file(&r, path), LS_EFORMAT);
    assert_last_error("more than 268435456");
    temp_write(temp_path(&folder, "empty.jpg", path), "", 0);
    assert_status(image_open_file(&r, path), LS_EFORMAT);
    assert_last_error("empty.jpg is empty");
    image_reader_free(&r);
}

static void content_decides_the_format(void **state)
{
    char path[TEMP_PATH_BYTES];
    image_reader r = {0};
    image_view v;

    LS_UNUSED(state);
    picture_write(temp_path(&folder, "really-a-png.jpg", path), 20, 10, 0, 0);
    assert_ok(image_open_file(&r, path));
    assert_int_equal(r.format, IMAGE_PNG);
    assert_ok(decode_all(&r, &v));
    picture_write(temp_path(&folder, "really-a-jpeg.png", path), 20, 10, 0, 90);
    assert_ok(image_open_file(&r, path));
    assert_int_equal(r.format, IMAGE_JPEG);
    assert_ok(decode_all(&r, &v));
    image_reader_free(&r);
}

static void planes_are_packed_four_at_a_time(void **state)
{
    uint8_t planes[5 * 3 * 2];
    image_reader r = {0};
    image_view v;

    LS_UNUSED(state);
    for (size_t i = 0; i < sizeof(planes); i++)
        planes[i] = (uint8_t)i;
    image_open_planes(&r, planes, 5, 2, 3);
    assert_ok(image_decode(&r, &(image_box){1, 0, 2, 2}, 1, 0, &v));
    assert_memory_equal(v.pixels, ((uint8_t[]){1, 7, 13, 19, 2, 8, 14, 20, 4, 10, 16, 22}), 12);
    assert_ok(image_decode(&r, &(image_box){1, 1, 1, 1}, 1, 4, &v));
    assert_int_equal(v.pixels[0], 28);
    assert_int_equal(v.pixels[3], 28); // a missing plane repeats the first one
    image_reader_free(&r);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    char path[TEMP_PATH_BYTES];

    LS_UNUSED(state);
    for (int quality = 0; quality <= 90; quality += 90) {
        uint64_t n = 0;
        ls_status st;

        picture_write(temp_path(&folder, "picture", path), 30, 30, 0, quality);
        do {
            image_reader r = {0};
            image_view v;

            ls_alloc_fail_at(++n);
            st = image_open_file(&r, path);
            if (st == LS_OK)
                st = decode_all(&r, &v);
            ls_alloc_fail_at(0);
            if (st != LS_OK)
                assert_status(st, LS_ENOMEM);
            image_reader_free(&r);
            assert_true(n < 100);
        } while (st != LS_OK);
        assert_true(n > 3);
    }
}

static void writing_without_memory_is_an_error(void **state)
{
    const flat_image image = picture_make(30, 30, 3, 0);

    LS_UNUSED(state);
    for (int png = 0; png < 2; png++) {
        uint64_t n = 0;
        ls_status st;

        do {
            text_buf file = {0};

            ls_alloc_fail_at(++n);
            st = png ? image_write_png(&image, &file) : image_write_jpeg(&image, 90, &file);
            ls_alloc_fail_at(0);
            if (st != LS_OK)
                assert_status(st, LS_ENOMEM);
            text_free(&file);
            assert_true(n < 100);
        } while (st != LS_OK);
    }
    free((void *)(uintptr_t)image.bytes);
}

static int make_folder(void **state)
{
    LS_UNUSED(state);
    temp_folder_create(&folder);
    return 0;
}

static int remove_folder(void **state)
{
    LS_UNUSED(state);
    temp_folder_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_png_round_trip_is_lossless),
        cmocka_unit_test(a_jpeg_round_trip_is_close),
        cmocka_unit_test(a_part_is_decoded_alone_to_the_same_pixels),
        cmocka_unit_test(a_truncated_file_is_an_error),
        cmocka_unit_test(changed_bytes_never_crash),
        cmocka_unit_test(other_formats_are_named),
        cmocka_unit_test(sizes_out_of_bounds_are_refused),
        cmocka_unit_test(a_jpeg_of_too_many_pixels_is_refused),
        cmocka_unit_test(a_jpeg_of_too_many_scans_is_refused),
        cmocka_unit_test(unreadable_files_are_reported),
        cmocka_unit_test(content_decides_the_format),
        cmocka_unit_test(planes_are_packed_four_at_a_time),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
        cmocka_unit_test(writing_without_memory_is_an_error),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
