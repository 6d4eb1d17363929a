/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_idx.c - tests idx files: plain, gzipped, truncated, changed and hostile ones, and MNIST's
 * folder.
 */
#include "base/unit.h"

#include <lockstep/data.h>

#include "base/alloc.h"
#include "data/formats/idx.h"
#include "data/sample.h"
#include "data/temp_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define HEADER_BYTES 16
#define N_IMAGES     3
#define IMAGE_BYTES  16
#define FILE_BYTES   (HEADER_BYTES + N_IMAGES * IMAGE_BYTES)

static temp_folder folder;
static char image_path[TEMP_PATH_BYTES];
static char label_path[TEMP_PATH_BYTES];
static unsigned char image_file[FILE_BYTES]; // 3 images of 2 x 8
static const unsigned char label_file[] = {0, 0, 8, 1, 0, 0, 0, N_IMAGES, 4, 0, 9};

static void put_number(unsigned char *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(v >> (24 - 8 * i));
}

/* Begins a file of 3 dimensions. */
static void put_header(unsigned char *at, uint32_t count, uint32_t height, uint32_t width)
{
    memcpy(at, (unsigned char[]){0, 0, 8, 3}, 4);
    put_number(at + 4, count);
    put_number(at + 8, height);
    put_number(at + 12, width);
}

static void write_images(const void *data, size_t bytes)
{
    temp_write(image_path, data, bytes);
}

static void write_gzipped(const void *data, size_t bytes)
{
    size_t n;
    unsigned char *z = temp_gzip(data, bytes, &n);

    write_images(z, n);
    free(z);
}

static ls_status open_both(ls_dataset **out)
{
    return ls_dataset_open_idx(image_path, label_path, out);
}

/* Opening must fail like this, naming the image file. */
static void assert_refused(const char *message)
{
    ls_dataset *d;

    assert_status(open_both(&d), LS_EFORMAT);
    assert_last_error(image_path);
    assert_last_error(message);
}

static void assert_is_the_set(const ls_dataset *d)
{
    sample_reader reader = {0};
    float x[IMAGE_BYTES];
    int64_t y;

    assert_int_equal(ls_dataset_count(d), N_IMAGES);
    assert_int_equal(ls_dataset_classes(d), 10);
    for (size_t i = 0; i < N_IMAGES; i++) {
        assert_ok(sample_read(d, i, i, 0, &reader, x, &y));
        assert_int_equal(y, label_file[8 + i]);
        for (size_t j = 0; j < IMAGE_BYTES; j++)
            assert_true(x[j] == (float)image_file[HEADER_BYTES + i * IMAGE_BYTES + j] / 255.0F);
    }
    sample_reader_free(&reader);
}

static void assert_opens(void)
{
    ls_dataset *d;

    assert_ok(open_both(&d));
    assert_is_the_set(d);
    ls_dataset_close(d);
}

static void plain_and_gzipped_files_give_the_same(void **state)
{
    ls_dataset *d;

    LS_UNUSED(state);
    write_images(image_file, FILE_BYTES);
    assert_ok(open_both(&d));
    assert_is_the_set(d);
    assert_int_equal(ls_dataset_sample_dims(d)[0], 1);
    assert_int_equal(ls_dataset_sample_dims(d)[1], 2);
    assert_int_equal(ls_dataset_sample_dims(d)[2], 8);
    ls_dataset_close(d);
    write_gzipped(image_file, FILE_BYTES);
    assert_opens();
}

static void four_dimensions_are_channels_first(void **state)
{
    unsigned char file[20 + N_IMAGES * IMAGE_BYTES];
    ls_dataset *d;

    LS_UNUSED(state);
    memcpy(file, (unsigned char[]){0, 0, 8, 4}, 4);
    put_number(file + 4, N_IMAGES);
    put_number(file + 8, 2);
    put_number(file + 12, 4);
    put_number(file + 16, 2);
    memcpy(file + 20, image_file + HEADER_BYTES, N_IMAGES * IMAGE_BYTES);
    write_images(file, sizeof(file));
    assert_ok(open_both(&d));
    assert_is_the_set(d);
    assert_int_equal(ls_dataset_sample_dims(d)[0], 2);
    assert_int_equal(ls_dataset_sample_dims(d)[1], 4);
    assert_int_equal(ls_dataset_sample_dims(d)[2], 2);
    ls_dataset_close(d);
}

/* Writes the set as gzip members of `piece` bytes each, with `tail` behind them. */
static void write_members(size_t piece, const void *tail, size_t tail_bytes)
{
    unsigned char all[8192];
    size_t n = 0;

    for (size_t at = 0; at < FILE_BYTES; at += piece) {
        size_t bytes;
        unsigned char *z =
            temp_gzip(image_file + at, at + piece < FILE_BYTES ? piece : FILE_BYTES - at, &bytes);

        assert_true(n + bytes + tail_bytes <= sizeof(all));
        memcpy(all + n, z, bytes);
        n += bytes;
        free(z);
    }
    memcpy(all + n, tail, tail_bytes);
    write_images(all, n + tail_bytes);
}

static void gzip_members_in_a_row_are_one_file(void **state)
{
    LS_UNUSED(state);
    for (size_t piece = 1; piece <= FILE_BYTES; piece++) {
        write_members(piece, "\0\0\0\0", piece % 5);
        assert_opens();
    }
}

static void trailing_bytes_after_gzip_data_are_refused(void **state)
{
    LS_UNUSED(state);
    write_members(FILE_BYTES, "garbage", 7);
    assert_refused("not gzip data");
    write_members(FILE_BYTES, "\0\0x", 3);
    assert_refused("not gzip data");
    write_members(FILE_BYTES, "\x1F\x8B", 2);
    assert_refused("ends too early");
    write_members(FILE_BYTES, "\x1Fxxxxxxxxxxxxxxxx", 17);
    assert_refused("broken compressed data");
}

static void a_plain_file_cut_at_any_byte_is_refused(void **state)
{
    char message[64];

    LS_UNUSED(state);
    for (size_t n = 0; n < FILE_BYTES; n++) {
        write_images(image_file, n);
        // The header's size shows a missing element before anything is read.
        (void)snprintf(message, sizeof(message),
                       n < HEADER_BYTES ? "offset %zu: the content ends" : ": ", n);
        assert_refused(message);
    }
}

static void a_gzipped_file_cut_at_any_byte_is_refused(void **state)
{
    size_t bytes;
    unsigned char *z = temp_gzip(image_file, FILE_BYTES, &bytes);

    LS_UNUSED(state);
    for (size_t n = 0; n < bytes; n++) {
        write_images(z, n);
        assert_refused("too early");
    }
    free(z);
}

static void a_changed_byte_never_gives_other_pixels(void **state)
{
    size_t bytes;
    unsigned char *z = temp_gzip(image_file, FILE_BYTES, &bytes);

    LS_UNUSED(state);
    for (size_t i = 0; i < bytes * 8; i++) {
        ls_dataset *d;
        ls_status st;

        z[i / 8] ^= (unsigned char)(1U << i % 8);
        write_images(z, bytes);
        st = open_both(&d);
        z[i / 8] ^= (unsigned char)(1U << i % 8);
        if (st == LS_OK) {
            // gzip ignores the time and the system in its header.
            assert_is_the_set(d);
            ls_dataset_close(d);
        } else {
            assert_status(st, LS_EFORMAT);
            assert_last_error(image_path);
        }
    }
    free(z);
}

static void too_many_bytes_are_refused(void **state)
{
    unsigned char file[FILE_BYTES + 1] = {0};

    LS_UNUSED(state);
    memcpy(file, image_file, FILE_BYTES);
    write_images(file, sizeof(file));
    assert_refused("offset 64: the content should end here");
    write_gzipped(file, sizeof(file));
    assert_refused("offset 64: the content should end here");
}

static void wrong_magic_numbers_are_explained(void **state)
{
    static const struct {
        unsigned char magic[4];
        const char *message;
    } cases[] = {
        {{1, 0, 8, 3}, "offset 0: 01000803 is not the start of an idx file"},
        {{0, 0, 0x0D, 3}, "offset 2: type 0x0d (float32)"},
        {{0, 0, 0x09, 3}, "signed bytes"},
        {{0, 0, 0x0B, 3}, "16-bit integers"},
        {{0, 0, 0x0C, 3}, "32-bit integers"},
        {{0, 0, 0x0E, 3}, "float64"},
        {{0, 0, 0x77, 3}, "type 0x77 (unknown)"},
        {{0, 0, 8, 1}, "offset 3: 1 dimensions, expected 3 or 4 (images)"},
        {{0, 0, 8, 5}, "offset 3"},
        {{0, 0, 8, 255}, "offset 3: 255"},
    };
    unsigned char file[FILE_BYTES];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        memcpy(file, image_file, FILE_BYTES);
        memcpy(file, cases[i].magic, 4);
        write_images(file, FILE_BYTES);
        assert_refused(cases[i].message);
    }
}

static void impossible_dimensions_are_refused(void **state)
{
    static const struct {
        uint32_t dims[3];
        const char *message;
    } cases[] = {
        {{0xFFFFFFFF, 2, 8}, "offset 4: dimension 0 is -1"},
        {{3, 0x80000000, 8}, "offset 8: dimension 1 is -2147483648"},
        {{3, 2, 0}, "offset 12: dimension 2 is 0"},
        {{0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF}, "a sample has more"},
        {{0, 0x7FFFFFFF, 0x7FFFFFFF}, "a sample has more"},
        {{1, 0x10000, 0x10000}, "a sample has more"},
        {{0x40000000, 0x40000000, 16}, "a sample has more"}, // the product is 0 in 64 bits
        {{60000, 28, 28}, "more than a file of"},
        {{5, 2, 8}, "more than a file of"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        unsigned char file[FILE_BYTES];

        memcpy(file, image_file, FILE_BYTES);
        put_header(file, cases[i].dims[0], cases[i].dims[1], cases[i].dims[2]);
        write_images(file, FILE_BYTES);
        assert_refused(cases[i].message);
    }
}

static void a_small_gzipped_file_allocates_little(void **state)
{
    unsigned char file[HEADER_BYTES];

    LS_UNUSED(state);
    put_header(file, 0x7FFFFFFF, 28, 28);
    write_gzipped(file, sizeof(file));
    assert_refused("more than a file of");
    // Memory grows with the content where the file's size does not limit it.
    put_header(file, 30, 28, 28);
    write_gzipped(file, sizeof(file));
    assert_refused("offset 16: the content ends");
}

static void long_gzipped_content_is_read_in_pieces(void **state)
{
    const uint32_t count = 3;
    const size_t bytes = (size_t)count * 2000 * 1000;
    unsigned char *file = calloc(HEADER_BYTES + bytes, 1);
    idx_array a;

    LS_UNUSED(state);
    assert_non_null(file);
    put_header(file, count, 2000, 1000);
    file[HEADER_BYTES + bytes - 1] = 77;
    write_gzipped(file, HEADER_BYTES + bytes);
    assert_ok(idx_read(image_path, 3, 3, &a));
    assert_int_equal(a.bytes, bytes);
    assert_memory_equal(a.data, file + HEADER_BYTES, bytes);
    ls_free(a.data);
    free(file);
}

static void mismatched_counts_name_both_sides(void **state)
{
    static const unsigned char two[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 0};
    ls_dataset *d;

    LS_UNUSED(state);
    write_images(image_file, FILE_BYTES);
    temp_write(label_path, two, sizeof(two));
    assert_status(open_both(&d), LS_EFORMAT);
    assert_last_error(image_path);
    assert_last_error("3 images");
    assert_last_error(label_path);
    assert_last_error("2 labels");
    temp_write(label_path, label_file, sizeof(label_file));
}

static void broken_labels_name_their_file(void **state)
{
    ls_dataset *d;

    LS_UNUSED(state);
    write_images(image_file, FILE_BYTES);
    for (size_t n = 0; n < sizeof(label_file); n++) {
        temp_write(label_path, label_file, n);
        assert_status(open_both(&d), LS_EFORMAT);
        assert_last_error(label_path);
    }
    temp_write(label_path, image_file, FILE_BYTES);
    assert_status(open_both(&d), LS_EFORMAT);
    assert_last_error("expected 1 (labels)");
    temp_write(label_path, label_file, sizeof(label_file));
}

static void an_empty_set_is_a_set(void **state)
{
    static const unsigned char none[] = {0, 0, 8, 1, 0, 0, 0, 0};
    unsigned char file[HEADER_BYTES];
    ls_dataset *d;

    LS_UNUSED(state);
    put_header(file, 0, 28, 28);
    write_images(file, sizeof(file));
    temp_write(label_path, none, sizeof(none));
    assert_ok(open_both(&d));
    assert_int_equal(ls_dataset_count(d), 0);
    assert_int_equal(ls_dataset_classes(d), 0);
    ls_dataset_close(d);
    temp_write(label_path, label_file, sizeof(label_file));
}

static void paths_that_are_no_regular_files_are_refused(void **state)
{
    char path[TEMP_PATH_BYTES];
    ls_dataset *d;

    LS_UNUSED(state);
    assert_status(ls_dataset_open_idx(temp_path(&folder, "nowhere", path), label_path, &d),
                  LS_ENOTFOUND);
    assert_last_error(path);
    assert_status(ls_dataset_open_idx(folder.path, label_path, &d), LS_EIO);
    assert_last_error("not a regular file");
    assert_int_equal(mkfifo(temp_path(&folder, "pipe", path), 0600), 0);
    assert_status(ls_dataset_open_idx(path, label_path, &d), LS_EIO);
    assert_status(ls_dataset_open_idx(NULL, label_path, &d), LS_EINVAL);
    ls_dataset_close(NULL);
}

static void bytes_become_the_floats_of_pytorch(void **state)
{
    unsigned char file[HEADER_BYTES + 256];
    static const unsigned char one[] = {0, 0, 8, 1, 0, 0, 0, 1, 0};
    sample_reader reader = {0};
    float x[256];
    int64_t y;
    ls_dataset *d;

    LS_UNUSED(state);
    put_header(file, 1, 16, 16);
    for (int i = 0; i < 256; i++)
        file[HEADER_BYTES + i] = (unsigned char)i;
    write_images(file, sizeof(file));
    temp_write(label_path, one, sizeof(one));
    assert_ok(open_both(&d));
    assert_ok(sample_read(d, 0, 0, 0, &reader, x, &y));
    for (int i = 0; i < 256; i++)
        assert_true(x[i] == (float)i / 255.0F);
    assert_true(x[255] == 1.0F);
    sample_reader_free(&reader);
    ls_dataset_close(d);
    temp_write(label_path, label_file, sizeof(label_file));
}

static void a_folder_with_mnists_file_names_opens(void **state)
{
    char path[TEMP_PATH_BYTES];
    size_t bytes;
    unsigned char *z = temp_gzip(image_file, FILE_BYTES, &bytes);
    ls_dataset *d;

    LS_UNUSED(state);
    assert_status(ls_dataset_open_mnist(folder.path, "train", &d), LS_ENOTFOUND);
    assert_last_error("train-images-idx3-ubyte.gz");
    assert_last_error(folder.path);
    temp_folder_make(&folder, "train");
    assert_status(ls_dataset_open_mnist(folder.path, "train", &d), LS_ENOTFOUND);
    assert_last_error("a folder train/: if it has a folder of images for each class, run:");
    temp_write(temp_path(&folder, "train-images-idx3-ubyte.gz", path), z, bytes);
    assert_status(ls_dataset_open_mnist(folder.path, "train", &d), LS_ENOTFOUND);
    assert_last_error("train-labels-idx1-ubyte");
    temp_write(temp_path(&folder, "train-labels-idx1-ubyte", path), label_file, sizeof(label_file));
    assert_ok(ls_dataset_open_mnist(folder.path, "train", &d));
    assert_is_the_set(d);
    ls_dataset_close(d);
    assert_status(ls_dataset_open_mnist(folder.path, "t10k", &d), LS_ENOTFOUND);
    assert_status(ls_dataset_open_mnist(folder.path, "test", &d), LS_EINVAL);
    assert_last_error("test");
    assert_status(ls_dataset_open_mnist(NULL, "train", &d), LS_EINVAL);
    free(z);
}

/* 7-Zip writes a dot for the first hyphen; torchvision makes the folder MNIST/raw. */
static void names_of_7zip_and_folders_of_torchvision_open(void **state)
{
    static const char *const names[][2] = {
        {"t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"},
        {"MNIST/raw/t10k-images-idx3-ubyte", "MNIST/raw/t10k-labels-idx1-ubyte"},
    };
    char path[TEMP_PATH_BYTES];
    ls_dataset *d;

    LS_UNUSED(state);
    temp_folder_make(&folder, "MNIST");
    temp_folder_make(&folder, "MNIST/raw");
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        temp_write(temp_path(&folder, names[i][0], path), image_file, FILE_BYTES);
        temp_write(temp_path(&folder, names[i][1], path), label_file, sizeof(label_file));
        assert_ok(ls_dataset_open_mnist(folder.path, "t10k", &d));
        assert_is_the_set(d);
        ls_dataset_close(d);
        for (int k = 0; k < 2; k++)
            assert_int_equal(remove(temp_path(&folder, names[i][k], path)), 0);
    }
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    ls_dataset *d = NULL;
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    write_gzipped(image_file, FILE_BYTES);
    do {
        ls_alloc_fail_at(++n);
        st = open_both(&d);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        assert_true(n < 100);
    } while (st != LS_OK);
    assert_true(n > 4);
    ls_dataset_close(d);
}

static int set_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_create(&folder);
    (void)temp_path(&folder, "images", image_path);
    (void)temp_path(&folder, "labels", label_path);
    put_header(image_file, N_IMAGES, 2, 8);
    for (size_t i = HEADER_BYTES; i < FILE_BYTES; i++)
        image_file[i] = (unsigned char)(i * 37);
    temp_write(label_path, label_file, sizeof(label_file));
    return 0;
}

static int clean_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_and_gzipped_files_give_the_same),
        cmocka_unit_test(four_dimensions_are_channels_first),
        cmocka_unit_test(gzip_members_in_a_row_are_one_file),
        cmocka_unit_test(trailing_bytes_after_gzip_data_are_refused),
        cmocka_unit_test(a_plain_file_cut_at_any_byte_is_refused),
        cmocka_unit_test(a_gzipped_file_cut_at_any_byte_is_refused),
        cmocka_unit_test(a_changed_byte_never_gives_other_pixels),
        cmocka_unit_test(too_many_bytes_are_refused),
        cmocka_unit_test(wrong_magic_numbers_are_explained),
        cmocka_unit_test(impossible_dimensions_are_refused),
        cmocka_unit_test(a_small_gzipped_file_allocates_little),
        cmocka_unit_test(long_gzipped_content_is_read_in_pieces),
        cmocka_unit_test(mismatched_counts_name_both_sides),
        cmocka_unit_test(broken_labels_name_their_file),
        cmocka_unit_test(an_empty_set_is_a_set),
        cmocka_unit_test(paths_that_are_no_regular_files_are_refused),
        cmocka_unit_test(bytes_become_the_floats_of_pytorch),
        cmocka_unit_test(a_folder_with_mnists_file_names_opens),
        cmocka_unit_test(names_of_7zip_and_folders_of_torchvision_open),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
