/* SPDX-License-Identifier: Apache-2.0 */
/* test_cifar.c - tests CIFAR data sets: layouts, labels, broken files, missing files. */
#include "base/unit.h"

#include <lockstep/data.h>

#include "base/alloc.h"
#include "data/sample.h"
#include "data/temp_files.h"

#include <stdio.h>
#include <stdlib.h>

#define IMAGE_BYTES 3072

static temp_folder folder;

/* n records; byte k of record i is (first + i) * 7 + k, its label (first + i) % 10. */
static void write_records(const char *name, size_t first, size_t n, size_t label_bytes)
{
    const size_t record = label_bytes + IMAGE_BYTES;
    uint8_t *data = calloc(n, record);
    char path[TEMP_PATH_BYTES];

    assert_non_null(data);
    for (size_t i = 0; i < n; i++) {
        uint8_t *r = data + i * record;

        r[0] = (uint8_t)((first + i) % 10);
        r[label_bytes - 1] = (uint8_t)((first + i) % (label_bytes == 1 ? 10 : 100));
        for (size_t k = 0; k < IMAGE_BYTES; k++)
            r[label_bytes + k] = (uint8_t)((first + i) * 7 + k);
    }
    temp_write(temp_path(&folder, name, path), data, n * record);
    free(data);
}

/* Batches of 1, 2, 3, 4 and 5 records, and a test set of 4. */
static void write_cifar10(void)
{
    char path[TEMP_PATH_BYTES];
    char name[32];
    size_t first = 0;

    for (size_t i = 1; i <= 5; i++) {
        (void)snprintf(name, sizeof(name), "data_batch_%zu.bin", i);
        write_records(name, first, i, 1);
        first += i;
    }
    write_records("test_batch.bin", 3, 4, 1);
    temp_write(temp_path(&folder, "batches.meta.txt", path), "\xEF\xBB\xBFplane\ncar\r\n\nbird",
               20);
}

static ls_status open_set(const char *split, ls_dataset **out)
{
    return ls_dataset_open_cifar(folder.path, split, out);
}

static void assert_sample(const ls_dataset *d, size_t index, size_t number, int64_t label)
{
    static float x[IMAGE_BYTES];
    sample_reader r = {0};
    int64_t y;

    assert_ok(sample_read(d, index, index, 0, &r, x, &y));
    assert_int_equal(y, label);
    assert_int_equal(ls_dataset_label(d, index), label);
    for (size_t k = 0; k < IMAGE_BYTES; k++)
        assert_true(x[k] == (float)(uint8_t)(number * 7 + k) / 255.0F);
    sample_reader_free(&r);
}

static void cifar10_is_five_files_and_one(void **state)
{
    ls_dataset *d;

    LS_UNUSED(state);
    write_cifar10();
    assert_ok(open_set("train", &d));
    assert_int_equal(ls_dataset_count(d), 15);
    assert_int_equal(ls_dataset_classes(d), 10);
    assert_memory_equal(ls_dataset_sample_dims(d), ((int64_t[]){3, 32, 32}), 24);
    for (size_t i = 0; i < 15; i++)
        assert_sample(d, i, i, (int64_t)(i % 10));
    assert_string_equal(ls_dataset_class_name(d, 0), "plane");
    assert_string_equal(ls_dataset_class_name(d, 1), "car");
    assert_string_equal(ls_dataset_class_name(d, 2), "bird");
    assert_null(ls_dataset_class_name(d, 3));
    assert_null(ls_dataset_class_name(d, -1));
    assert_null(ls_dataset_class_name(d, 10));
    ls_dataset_close(d);
    assert_ok(open_set("test", &d));
    assert_int_equal(ls_dataset_count(d), 4);
    assert_sample(d, 1, 4, 4);
    ls_dataset_close(d);
}

static void cifar100_has_two_labels(void **state)
{
    ls_dataset *d;

    LS_UNUSED(state);
    write_records("train.bin", 40, 70, 2);
    assert_ok(open_set("train", &d));
    assert_int_equal(ls_dataset_count(d), 70);
    assert_int_equal(ls_dataset_classes(d), 100);
    assert_sample(d, 59, 99, 99);
    assert_sample(d, 60, 100, 0);
    assert_null(ls_dataset_class_name(d, 0));
    ls_dataset_close(d);
    assert_status(open_set("test", &d), LS_ENOTFOUND);
    assert_last_error("test.bin");
}

static void the_folder_of_the_archive_is_found(void **state)
{
    ls_dataset *d;

    LS_UNUSED(state);
    temp_folder_make(&folder, "cifar-100-binary");
    write_records("cifar-100-binary/test.bin", 0, 3, 2);
    assert_ok(open_set("test", &d));
    assert_int_equal(ls_dataset_count(d), 3);
    ls_dataset_close(d);
}

static void assert_refused(const char *split, const char *file, const char *message)
{
    ls_dataset *d;

    assert_status(open_set(split, &d), LS_EFORMAT);
    assert_last_error(file);
    assert_last_error(message);
}

static void wrong_lengths_are_reported_with_offset(void **state)
{
    char path[TEMP_PATH_BYTES];
    size_t bytes;
    unsigned char *data;

    LS_UNUSED(state);
    write_cifar10();
    data = temp_read(temp_path(&folder, "data_batch_3.bin", path), &bytes);
    temp_write(path, data, bytes - 1);
    assert_refused("train", path,
                   "offset 6146: the content ends with 3072 bytes of a record of 3073");
    temp_write(path, data, 1);
    assert_refused("train", path, "offset 0: the content ends with 1 bytes");
    temp_write(path, data, 0);
    assert_refused("train", path, "offset 0: the content ends with 0 bytes");
    free(data);
}

static void labels_out_of_range_are_reported_with_offset(void **state)
{
    char path[TEMP_PATH_BYTES];
    size_t bytes;
    unsigned char *data;

    LS_UNUSED(state);
    write_cifar10();
    data = temp_read(temp_path(&folder, "test_batch.bin", path), &bytes);
    data[3 * 3073] = 10;
    temp_write(path, data, bytes);
    assert_refused("test", path, "offset 9219: label 10; labels of CIFAR-10 are below 10");
    free(data);
}

static void both_labels_of_cifar100_are_checked(void **state)
{
    char path[TEMP_PATH_BYTES];
    size_t bytes;
    unsigned char *data;

    LS_UNUSED(state);
    write_records("test.bin", 0, 3, 2);
    data = temp_read(temp_path(&folder, "test.bin", path), &bytes);
    data[3074] = 20;
    temp_write(path, data, bytes);
    assert_refused("test", path, "offset 3074: label 20; labels of CIFAR-100 are below 20");
    data[3074] = 0;
    data[3075] = 100;
    temp_write(path, data, bytes);
    assert_refused("test", path, "offset 3075: label 100; labels of CIFAR-100 are below 100");
    free(data);
}

static void missing_files_are_named(void **state)
{
    char path[TEMP_PATH_BYTES];
    ls_dataset *d;

    LS_UNUSED(state);
    assert_status(open_set("train", &d), LS_ENOTFOUND);
    assert_last_error("neither CIFAR-10");
    temp_write(temp_path(&folder, "data_batch_1", path), "", 0);
    assert_status(open_set("train", &d), LS_ENOTFOUND);
    assert_last_error("download the binary version");
    write_cifar10();
    assert_int_equal(remove(temp_path(&folder, "data_batch_4.bin", path)), 0);
    assert_status(open_set("train", &d), LS_ENOTFOUND);
    assert_last_error("data_batch_4.bin");
    assert_status(open_set("val", &d), LS_EINVAL);
    assert_last_error("split: val");
    assert_status(ls_dataset_open_cifar(NULL, "train", &d), LS_EINVAL);
}

static void class_names_are_optional(void **state)
{
    char path[TEMP_PATH_BYTES];
    ls_dataset *d;

    LS_UNUSED(state);
    write_cifar10();
    temp_write(temp_path(&folder, "batches.meta.txt", path),
               "a\nb\x1B[31m\nc\nd\ne\nf\ng\nh\ni\nj\nk\n", 28);
    assert_ok(open_set("test", &d));
    assert_string_equal(ls_dataset_class_name(d, 1), "b?[31m");
    assert_string_equal(ls_dataset_class_name(d, 9), "j");
    ls_dataset_close(d);
    assert_int_equal(remove(path), 0);
    assert_ok(open_set("test", &d));
    assert_null(ls_dataset_class_name(d, 1));
    ls_dataset_close(d);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    write_cifar10();
    do {
        ls_dataset *d = NULL;

        ls_alloc_fail_at(++n);
        st = open_set("train", &d);
        ls_alloc_fail_at(0);
        // Without memory for its path a file counts as missing.
        if (st != LS_OK)
            assert_true(st == LS_ENOMEM || st == LS_ENOTFOUND);
        ls_dataset_close(d);
        assert_true(n < 100);
    } while (st != LS_OK || n < 20);
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

#define test(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(cifar10_is_five_files_and_one),
        test(cifar100_has_two_labels),
        test(the_folder_of_the_archive_is_found),
        test(wrong_lengths_are_reported_with_offset),
        test(labels_out_of_range_are_reported_with_offset),
        test(both_labels_of_cifar100_are_checked),
        test(missing_files_are_named),
        test(class_names_are_optional),
        test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
