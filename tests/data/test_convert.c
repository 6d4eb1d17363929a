/* SPDX-License-Identifier: Apache-2.0 */
/* test_convert.c - tests the conversion of data sets to other formats, and their description. */
#include "base/unit.h"

#include <lockstep/data.h>

#include "base/alloc.h"
#include "data/convert.h"
#include "data/describe.h"
#include "data/sample.h"
#include "data/temp_files.h"
#include "data/test_pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static temp_folder folder;

static const char *in_folder(const char *name, char buf[TEMP_PATH_BYTES])
{
    return temp_path(&folder, name, buf);
}

static ls_dataset *open_source(size_t count, int classes, int channels, int side)
{
    const ls_synthetic_options opt = {.size = sizeof(opt),
                                      .count = count,
                                      .classes = classes,
                                      .channels = channels,
                                      .height = side};
    ls_dataset *d;

    assert_ok(ls_dataset_open_synthetic(&opt, &d));
    return d;
}

/* Every sample of `d`, as float pixels and label. */
static void read_one(const ls_dataset *d, size_t index, float *x, int64_t *y)
{
    sample_reader r = {0};

    assert_ok(sample_read(d, index, index, 0, &r, x, y));
    sample_reader_free(&r);
}

static void a_folder_holds_the_same_pixels_and_labels(void **state)
{
    const convert_options opt = {.side = 0};
    const ls_augment same = {.size = sizeof(same), .height = 12};
    char path[TEMP_PATH_BYTES];
    size_t n;
    ls_dataset *to;

    LS_UNUSED(state);
    for (int channels = 1; channels <= 3; channels += 2) {
        ls_dataset *from = open_source(60, 3, channels, 12);
        size_t at = 0;

        in_folder(channels == 1 ? "grey" : "colour", path);
        assert_ok(convert_to_folder(from, &opt, path, &n));
        assert_int_equal(n, 60);
        assert_ok(ls_dataset_open_folder(path, NULL, &to));
        assert_int_equal(ls_dataset_count(to), 60);
        assert_int_equal(ls_dataset_classes(to), 3);
        assert_ok(ls_dataset_augment(to, &same));
        // The folder is sorted by class, and by number in each.
        for (int64_t label = 0; label < 3; label++) {
            for (size_t i = 0; i < 60; i++) {
                static float x[3 * 144];
                static float y[3 * 144];
                int64_t got;

                if (ls_dataset_label(from, i) != label)
                    continue;
                read_one(from, i, x, &got);
                read_one(to, at++, y, &got);
                assert_int_equal(got, label);
                for (size_t k = 0; k < 3 * 144; k++)
                    assert_true(y[k] == x[k % (144 * (size_t)channels)]);
            }
        }
        assert_status(convert_to_folder(from, &opt, path, &n), LS_EIO);
        assert_last_error("File exists");
        ls_dataset_close(to);
        ls_dataset_close(from);
    }
}

static void classes_without_names_keep_their_order(void **state)
{
    const convert_options opt = {.side = 4, .per_class = 1, .jpeg_quality = 80};
    ls_dataset *from = open_source(500, 12, 1, 4);
    char path[TEMP_PATH_BYTES];
    ls_dataset *to;
    size_t n;

    LS_UNUSED(state);
    assert_ok(convert_to_folder(from, &opt, in_folder("twelve", path), &n));
    assert_int_equal(n, 12);
    assert_ok(ls_dataset_open_folder(path, NULL, &to));
    for (size_t i = 0; i < 12; i++)
        assert_int_equal(ls_dataset_label(to, i), i);
    assert_string_equal(ls_dataset_class_name(to, 2), "02");
    ls_dataset_close(to);
    ls_dataset_close(from);
}

static void cifar_files_hold_every_sample_once(void **state)
{
    const convert_options opt = {0};
    char path[TEMP_PATH_BYTES];

    LS_UNUSED(state);
    for (int classes = 4; classes <= 40; classes += 36) {
        ls_dataset *from = open_source(53, classes, 3, 32);
        static float x[3072];
        static float y[3072];
        ls_dataset *to;
        size_t n;

        temp_folder_make(&folder, classes == 4 ? "ten" : "hundred");
        in_folder(classes == 4 ? "ten" : "hundred", path);
        assert_ok(convert_to_cifar(from, &opt, path, true, &n));
        assert_ok(convert_to_cifar(from, &opt, path, false, &n));
        assert_int_equal(n, 53);
        for (int split = 0; split < 2; split++) {
            assert_ok(ls_dataset_open_cifar(path, split == 0 ? "train" : "test", &to));
            assert_int_equal(ls_dataset_count(to), 53);
            assert_int_equal(ls_dataset_classes(to), classes == 4 ? 10 : 100);
            assert_string_equal(ls_dataset_class_name(to, 3), "3");
            for (size_t i = 0; i < 53; i++) {
                int64_t a;
                int64_t b;

                read_one(from, i, x, &a);
                read_one(to, i, y, &b);
                assert_int_equal(a, b);
                assert_memory_equal(x, y, sizeof(x));
            }
            ls_dataset_close(to);
        }
        ls_dataset_close(from);
    }
}

static void write_errors_are_reported(void **state)
{
    const convert_options opt = {0};
    char path[TEMP_PATH_BYTES];
    ls_dataset *from;
    size_t n;

    LS_UNUSED(state);
    from = open_source(5, 101, 3, 32);
    assert_status(convert_to_cifar(from, &opt, folder.path, true, &n), LS_EINVAL);
    assert_last_error("101 classes");
    ls_dataset_close(from);
    from = open_source(4, 2, 3, 32);
    assert_status(convert_to_cifar(from, &opt, folder.path, true, &n), LS_EINVAL);
    assert_last_error("too few samples (4)");
    assert_status(convert_to_cifar(from, &opt, in_folder("no/where", path), false, &n),
                  LS_ENOTFOUND);
    assert_last_error("no/where");
    assert_status(convert_to_folder(from, &opt, path, &n), LS_EIO);
    ls_dataset_close(from);
    from = open_source(4, 2, 2, 32);
    assert_status(convert_to_folder(from, &opt, in_folder("x", path), &n), LS_EINVAL);
    assert_last_error("2 channels");
    ls_dataset_close(from);
}

static void converting_without_memory_is_an_error(void **state)
{
    ls_dataset *from = open_source(6, 2, 3, 6);
    uint64_t at = 0;
    ls_status st;

    LS_UNUSED(state);
    do {
        const convert_options opt = {.side = 5};
        char name[32];
        char path[TEMP_PATH_BYTES];
        size_t n;

        (void)snprintf(name, sizeof(name), "oom-%d", (int)at);
        ls_alloc_fail_at(++at);
        st = convert_to_folder(from, &opt, in_folder(name, path), &n);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        assert_true(at < 500);
    } while (st != LS_OK);
    do {
        const convert_options opt = {0};
        size_t n;

        ls_alloc_fail_at(++at);
        st = convert_to_cifar(from, &opt, folder.path, true, &n);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
    } while (st != LS_OK);
    ls_dataset_close(from);
}

/* --- describing --- */

typedef struct notes {
    char text[4096];
    int n;
} notes;

static void note(void *arg, const char *text)
{
    notes *all = arg;

    all->n++;
    (void)strncat(all->text, text, sizeof(all->text) - strlen(all->text) - 1);
}

static void a_description_counts_images_and_names_broken_ones(void **state)
{
    char path[TEMP_PATH_BYTES];

    LS_UNUSED(state);
    temp_folder_make(&folder, "mixed");
    temp_folder_make(&folder, "mixed/a");
    temp_folder_make(&folder, "mixed/b");
    picture_write(in_folder("mixed/a/1.png", path), 20, 50, 0, 0);
    picture_write(in_folder("mixed/a/2.jpg", path), 70, 10, 0, 90);
    picture_write(in_folder("mixed/b/1.jpg", path), 30, 30, 0, 90);
    temp_write(in_folder("mixed/b/2.jpg", path), "\xFF\xD8\xFFx", 4);
    temp_write(in_folder("mixed/b/3.png", path), "", 0);
    temp_write(in_folder("mixed/b/list.txt", path), "", 0);
    for (int threads = 1; threads <= 3; threads++) {
        for (int quick = 0; quick < 2; quick++) {
            notes message = {.n = 0};
            const describe_options opt = {
                .threads = threads, .is_quick = quick != 0, .bad = note, .arg = &message};
            dataset_facts f;
            ls_dataset *d;

            assert_ok(ls_dataset_open_folder(in_folder("mixed", path), NULL, &d));
            assert_ok(dataset_describe(d, &opt, &f));
            assert_int_equal(f.count, 5);
            assert_int_equal(f.n_bad, 2);
            assert_int_equal(message.n, 2);
            assert_non_null(strstr(message.text, "b/2.jpg: "));
            assert_non_null(strstr(message.text, "b/3.png is empty"));
            assert_int_equal(f.n_jpeg, 2);
            assert_int_equal(f.n_png, 1);
            assert_int_equal(f.n_others, 1);
            assert_int_equal(f.width[0], 20);
            assert_int_equal(f.width[1], 70);
            assert_int_equal(f.height[0], 10);
            assert_int_equal(f.height[1], 50);
            assert_int_equal(f.n_classes, 2);
            assert_int_equal(f.classes[0], 2);
            assert_int_equal(f.classes[1], 3);
            assert_int_equal(f.has_moments, !quick);
            dataset_facts_free(&f);
            ls_dataset_close(d);
        }
    }
}

static void moments_cover_all_pixels(void **state)
{
    ls_dataset *d = open_source(40, 2, 2, 9);
    static float x[2 * 81];
    double sum[2] = {0.0, 0.0};
    double squares[2] = {0.0, 0.0};
    dataset_facts f;

    LS_UNUSED(state);
    for (size_t i = 0; i < 40; i++) {
        int64_t y;

        read_one(d, i, x, &y);
        for (size_t k = 0; k < 2 * 81; k++) {
            sum[k / 81] += (double)x[k];
            squares[k / 81] += (double)x[k] * (double)x[k];
        }
    }
    assert_ok(dataset_describe(d, &(describe_options){.threads = 2}, &f));
    assert_int_equal(f.n_channels, 2);
    for (int c = 0; c < 2; c++) {
        const double mean = sum[c] / (40 * 81);

        assert_true(fabs(f.mean[c] - mean) < 1e-6);
        assert_true(fabs(f.std[c] - sqrt(squares[c] / (40 * 81) - mean * mean)) < 1e-6);
    }
    dataset_facts_free(&f);
    ls_dataset_close(d);
}

static void describing_without_memory_is_an_error(void **state)
{
    ls_dataset *d = open_source(10, 2, 3, 9);
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    do {
        dataset_facts f;

        ls_alloc_fail_at(++n);
        st = dataset_describe(d, &(describe_options){.threads = 1}, &f);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        dataset_facts_free(&f);
        assert_true(n < 100);
    } while (st != LS_OK);
    ls_dataset_close(d);
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
        cmocka_unit_test(a_folder_holds_the_same_pixels_and_labels),
        cmocka_unit_test(classes_without_names_keep_their_order),
        cmocka_unit_test(cifar_files_hold_every_sample_once),
        cmocka_unit_test(write_errors_are_reported),
        cmocka_unit_test(converting_without_memory_is_an_error),
        cmocka_unit_test(a_description_counts_images_and_names_broken_ones),
        cmocka_unit_test(moments_cover_all_pixels),
        cmocka_unit_test(describing_without_memory_is_an_error),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
