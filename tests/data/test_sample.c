/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sample.c - tests images through augmentation and loader: the same bits with any number of
 * threads, broken files logged and counted.
 */
#include "base/unit.h"

#include <lockstep/data.h>

#include "base/alloc.h"
#include "data/sample.h"
#include "data/temp_files.h"
#include "data/test_pictures.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_FILES 24
#define SIDE    48

static ls_device *device;
static temp_folder folder;

/* Images of all sizes, JPEG and PNG, in three classes. */
static void make_images(void)
{
    temp_folder_make(&folder, "a");
    temp_folder_make(&folder, "b");
    temp_folder_make(&folder, "c");
    for (int i = 0; i < N_FILES; i++) {
        char name[32];
        char path[TEMP_PATH_BYTES];

        (void)snprintf(name, sizeof(name), "%c/%02d.%s", 'a' + i / 8, i,
                       i % 3 == 0 ? "png" : "jpg");
        picture_write(temp_path(&folder, name, path), 40 + 37 * (i % 7), 30 + 29 * (i % 5), i,
                      i % 3 == 0 ? 0 : 90);
    }
}

static ls_dataset *open_images(const ls_augment *a)
{
    ls_dataset *d;

    assert_ok(ls_dataset_open_folder(folder.path, NULL, &d));
    assert_ok(ls_dataset_augment(d, a));
    return d;
}

typedef struct stream {
    ls_sampler *sampler;
    ls_loader *loader;
} stream;

static void open_stream(stream *s, const ls_dataset *d, int threads, ls_bad_images bad)
{
    const ls_sampler_options sampler = {
        .size = sizeof(sampler), .count = ls_dataset_count(d), .seed = 2};
    ls_loader_options loader = {.size = sizeof(loader),
                                .device = device,
                                .dataset = d,
                                .batch_size = 7,
                                .threads = threads,
                                .bad_images = bad};

    assert_ok(ls_sampler_create(&sampler, &s->sampler));
    loader.sampler = s->sampler;
    assert_ok(ls_loader_create(&loader, &s->loader));
}

static void close_stream(stream *s)
{
    ls_loader_destroy(s->loader);
    ls_sampler_destroy(s->sampler);
}

/* All floats of two epochs in a row; free()d by the caller. */
static float *read_epochs(stream *s, size_t *n)
{
    const size_t sample = 3 * SIDE * SIDE;
    float *all = calloc(2 * N_FILES, sample * sizeof(*all));

    assert_non_null(all);
    *n = 0;
    for (uint64_t epoch = 3; epoch < 5; epoch++) {
        ls_batch b;

        assert_ok(ls_loader_start(s->loader, epoch, 0));
        do {
            assert_ok(ls_loader_next(s->loader, &b));
            memcpy(all + *n, ls_tensor_data_const(b.x), (size_t)b.rows * sample * sizeof(*all));
            *n += (size_t)b.rows * sample;
        } while (b.rows > 0);
    }
    return all;
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    static const int threads[] = {-1, 1, 2, 5};
    ls_augment a;
    float *first = NULL;
    ls_dataset *d;

    LS_UNUSED(state);
    ls_augment_imagenet(1, SIDE, &a);
    d = open_images(&a);
    for (size_t i = 0; i < LS_COUNT_OF(threads); i++) {
        stream s;
        float *all;
        size_t n;

        open_stream(&s, d, threads[i], LS_BAD_IMAGES_FAIL);
        all = read_epochs(&s, &n);
        assert_int_equal(n, 2 * N_FILES * 3 * SIDE * SIDE);
        if (i == 0) {
            first = all;
            assert_memory_not_equal(all, all + n / 2, n / 2 * sizeof(*all)); // another epoch
        } else {
            assert_memory_equal(all, first, n * sizeof(*all));
            free(all);
        }
        close_stream(&s);
    }
    free(first);
    ls_dataset_close(d);
}

static void steps_allocate_nothing_once_the_largest_image_is_known(void **state)
{
    ls_augment a;
    ls_dataset *d;
    uint64_t before;
    stream s;
    float *all;
    size_t n;

    LS_UNUSED(state);
    ls_augment_imagenet(0, SIDE, &a);
    assert_ok(ls_dataset_open_folder(folder.path, NULL, &d));
    d->count = 3; // of which 1 and 2 are JPEG: libspng allocates for every image
    assert_ok(ls_dataset_augment(d, &a));
    open_stream(&s, d, -1, LS_BAD_IMAGES_FAIL);
    all = read_epochs(&s, &n);
    free(all);
    before = ls_alloc_count();
    for (int i = 0; i < 2; i++) {
        ls_batch b;

        assert_ok(ls_loader_start(s.loader, 0, 0));
        assert_ok(ls_loader_next(s.loader, &b));
        assert_int_equal(b.rows, 3);
    }
    assert_in_range(ls_alloc_count() - before, 2, 2 * 8); // those of one PNG
    close_stream(&s);
    ls_dataset_close(d);
}

/* --- broken files --- */

/* Standard error goes into a file until log_end(), which gives what is in it; free()d by the
 * caller. */
static int log_begin(char path[TEMP_PATH_BYTES])
{
    const int kept = dup(STDERR_FILENO);
    const int fd = open(temp_path(&folder, "log", path), O_CREAT | O_TRUNC | O_WRONLY, 0600);

    assert_true(kept >= 0 && fd >= 0);
    assert_true(dup2(fd, STDERR_FILENO) >= 0);
    (void)close(fd);
    return kept;
}

static char *log_end(int kept, const char *path)
{
    size_t bytes;
    char *text;

    (void)fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    (void)close(kept);
    text = (char *)temp_read(path, &bytes);
    text[bytes] = 0;
    return text;
}

static void break_files(void)
{
    char path[TEMP_PATH_BYTES];
    size_t bytes;
    unsigned char *data = temp_read(temp_path(&folder, "a/01.jpg", path), &bytes);

    temp_write(path, data, bytes / 2);
    free(data);
    temp_write(temp_path(&folder, "b/10.jpg", path), "", 0);
    temp_write(temp_path(&folder, "c/18.png", path), "GIF89a", 6);
}

static void restore_files(void)
{
    char path[TEMP_PATH_BYTES];

    picture_write(temp_path(&folder, "a/01.jpg", path), 40, 30, 1, 90);
    picture_write(temp_path(&folder, "b/10.jpg", path), 40, 30, 1, 90);
    picture_write(temp_path(&folder, "c/18.png", path), 40, 30, 1, 0);
}

/* A warning has the text, and only one has. */
static void assert_once(const char *logged, const char *text)
{
    const char *at = strstr(logged, text);

    assert_non_null(at);
    assert_null(strstr(at + 1, text));
}

static void broken_files_are_logged_once_and_counted_in_each_epoch(void **state)
{
    ls_augment a;
    ls_dataset *d;

    LS_UNUSED(state);
    ls_augment_imagenet(0, SIDE, &a);
    break_files();
    for (int bad = LS_BAD_IMAGES_REPLACE; bad <= LS_BAD_IMAGES_LEAVE_OUT; bad++) {
        char path[TEMP_PATH_BYTES];
        char *logged;
        stream s;
        size_t n;
        int kept;

        d = open_images(&a);
        open_stream(&s, d, 2, (ls_bad_images)bad);
        kept = log_begin(path);
        free(read_epochs(&s, &n));
        logged = log_end(kept, path);
        assert_int_equal(ls_loader_bad_images(s.loader), 6);
        assert_int_equal(n / (3 * SIDE * SIDE),
                         bad == LS_BAD_IMAGES_REPLACE ? 2 * N_FILES : 2 * (N_FILES - 3));
        assert_once(logged, "a/01.jpg: offset");
        assert_once(logged, "b/10.jpg is empty");
        assert_once(logged, "c/18.png is a GIF");
        assert_non_null(strstr(logged, bad == LS_BAD_IMAGES_REPLACE ? "replaced by another image"
                                                                    : ": skipped"));
        free(logged);
        close_stream(&s);
        ls_dataset_close(d);
    }
    restore_files();
}

static void warnings_name_the_first_broken_samples_of_all_processes(void **state)
{
    const ls_synthetic_options opt = {
        .size = sizeof(opt), .count = 100, .classes = 2, .height = 2, .width = 2};
    int64_t named[DATASET_NAMED];
    ls_dataset *sets[2];

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++)
        assert_ok(ls_dataset_open_synthetic(&opt, &sets[i]));
    assert_int_equal(dataset_name_broken(sets[0], 0), BROKEN_NAME);
    assert_int_equal(dataset_name_broken(sets[0], 99), BROKEN_NAME);
    assert_int_equal(dataset_name_broken(sets[0], 0), BROKEN_KNOWN);
    dataset_get_named(sets[0], named);
    dataset_add_named(sets[1], named);
    assert_int_equal(dataset_name_broken(sets[1], 99), BROKEN_KNOWN);
    for (size_t i = 2; i < DATASET_NAMED_SAMPLES; i++)
        assert_int_equal(dataset_name_broken(sets[1], i), BROKEN_NAME);
    dataset_get_named(sets[1], named);
    named[0] = 80; // which has no place any more, so no warning has named it here
    dataset_add_named(sets[1], named);
    assert_int_equal(dataset_name_broken(sets[1], 50), BROKEN_COUNT);
    assert_int_equal(dataset_name_broken(sets[1], 50), BROKEN_KNOWN);
    assert_int_equal(dataset_name_broken(sets[1], 51), BROKEN_KNOWN);
    dataset_get_named(sets[1], named);
    dataset_add_named(sets[0], named);
    assert_int_equal(dataset_name_broken(sets[0], 52), BROKEN_KNOWN);
    for (int i = 0; i < 2; i++)
        ls_dataset_close(sets[i]);
}

static void a_broken_file_is_fatal_by_default(void **state)
{
    ls_augment a;
    ls_dataset *d;
    ls_status st;
    stream s;
    ls_batch b;

    LS_UNUSED(state);
    ls_augment_imagenet(0, SIDE, &a);
    d = open_images(&a);
    break_files();
    open_stream(&s, d, 2, LS_BAD_IMAGES_FAIL);
    assert_ok(ls_loader_start(s.loader, 0, 0));
    do {
        st = ls_loader_next(s.loader, &b);
    } while (st == LS_OK && b.rows > 0);
    assert_status(st, LS_EFORMAT);
    assert_last_error(folder.path);
    close_stream(&s);
    restore_files();
    ls_dataset_close(d);
}

/* A file that was deleted is not a broken image. */
static void a_missing_file_is_always_fatal(void **state)
{
    char path[TEMP_PATH_BYTES];
    ls_augment a;
    ls_dataset *d;
    sample_reader r = {0};
    static float x[3 * SIDE * SIDE];
    int64_t y;

    LS_UNUSED(state);
    ls_augment_imagenet(0, SIDE, &a);
    d = open_images(&a);
    assert_int_equal(remove(temp_path(&folder, "a/00.png", path)), 0);
    assert_status(sample_read(d, 0, 0, 0, &r, x, &y), LS_ENOTFOUND);
    picture_write(path, 40, 30, 0, 0);
    assert_ok(sample_read(d, 0, 0, 0, &r, x, &y));
    sample_reader_free(&r);
    ls_dataset_close(d);
}

/* --- sets in memory --- */

static void a_synthetic_set_is_the_same_on_all_ranks(void **state)
{
    const ls_synthetic_options opt = {
        .size = sizeof(opt), .count = 50, .classes = 7, .channels = 2, .height = 5, .width = 9};
    sample_reader r = {0};
    float x[90];
    float again[90];
    bool seen[7] = {false};
    double sum = 0.0;
    ls_dataset *d;
    int64_t y;

    LS_UNUSED(state);
    assert_ok(ls_dataset_open_synthetic(&opt, &d));
    assert_int_equal(ls_dataset_count(d), 50);
    assert_memory_equal(ls_dataset_sample_dims(d), ((int64_t[]){2, 5, 9}), 24);
    for (size_t i = 0; i < 50; i++) {
        assert_ok(sample_read(d, i, i, 0, &r, x, &y));
        assert_in_range(y, 0, 6);
        seen[y] = true;
        for (size_t k = 0; k < 90; k++) {
            assert_true(x[k] >= 0.0F && x[k] <= 1.0F);
            sum += (double)x[k];
        }
        assert_ok(sample_read(d, i, i, 9, &r, again, &y));
        assert_memory_equal(x, again, sizeof(x));
        assert_ok(sample_read(d, (i + 1) % 50, i, 0, &r, again, &y));
        assert_memory_not_equal(x, again, sizeof(x));
    }
    assert_true(sum / 4500 > 0.48 && sum / 4500 < 0.52);
    for (int i = 0; i < 7; i++)
        assert_true(seen[i]);
    sample_reader_free(&r);
    ls_dataset_close(d);
    assert_ok(ls_dataset_open_synthetic(NULL, &d));
    assert_int_equal(ls_dataset_count(d), 1281167);
    assert_int_equal(ls_dataset_classes(d), 1000);
    assert_memory_equal(ls_dataset_sample_dims(d), ((int64_t[]){3, 224, 224}), 24);
    ls_dataset_close(d);
}

static void invalid_synthetic_options_are_named(void **state)
{
    ls_synthetic_options opt = {.size = 1};
    ls_dataset *d;

    LS_UNUSED(state);
    assert_status(ls_dataset_open_synthetic(&opt, &d), LS_EINVAL);
    opt.size = sizeof(opt);
    opt.classes = -1;
    assert_status(ls_dataset_open_synthetic(&opt, &d), LS_EINVAL);
    opt.classes = 0;
    opt.width = 100000;
    assert_status(ls_dataset_open_synthetic(&opt, &d), LS_EINVAL);
    assert_last_error("16384");
}

/* Grey images become three channels, each normalized with its own mean and deviation. */
static void grey_sets_are_augmented_too(void **state)
{
    const ls_synthetic_options opt = {
        .size = sizeof(opt), .count = 4, .channels = 1, .height = 28, .width = 28};
    ls_augment a = {.size = sizeof(a), .height = 28, .channels = 3, .normalize = 1};
    static float plain[28 * 28];
    static float x[3 * 28 * 28];
    sample_reader r = {0};
    ls_dataset *d;
    int64_t y;

    LS_UNUSED(state);
    for (int c = 0; c < 3; c++) {
        a.mean[c] = 0.1F * (float)(c + 1);
        a.std[c] = 0.5F / (float)(c + 1);
    }
    assert_ok(ls_dataset_open_synthetic(&opt, &d));
    assert_ok(sample_read(d, 2, 2, 0, &r, plain, &y));
    assert_ok(ls_dataset_augment(d, &a));
    assert_memory_equal(ls_dataset_sample_dims(d), ((int64_t[]){3, 28, 28}), 24);
    assert_ok(sample_read(d, 2, 2, 0, &r, x, &y));
    for (size_t c = 0; c < 3; c++)
        for (size_t i = 0; i < 28 * 28; i++)
            assert_true(x[c * 28 * 28 + i] == (plain[i] - a.mean[c]) / a.std[c]);
    assert_ok(ls_dataset_augment(d, NULL));
    assert_memory_equal(ls_dataset_sample_dims(d), ((int64_t[]){1, 28, 28}), 24);
    assert_ok(sample_read(d, 2, 2, 0, &r, x, &y));
    assert_memory_equal(x, plain, sizeof(plain));
    a.std[1] = 0.0F;
    assert_status(ls_dataset_augment(d, &a), LS_EINVAL);
    sample_reader_free(&r);
    ls_dataset_close(d);
}

/* More planes than a pixel has bytes: four are processed at a time. */
static void all_channels_have_the_same_crop(void **state)
{
    const ls_synthetic_options opt = {
        .size = sizeof(opt), .count = 3, .channels = 6, .height = 10, .width = 12};
    const ls_augment a = {.size = sizeof(a), .crop = LS_CROP_CENTER, .height = 4, .width = 6};
    float plain[6 * 10 * 12];
    float x[6 * 4 * 6];
    sample_reader r = {0};
    ls_dataset *d;
    int64_t y;

    LS_UNUSED(state);
    assert_ok(ls_dataset_open_synthetic(&opt, &d));
    assert_ok(sample_read(d, 1, 1, 0, &r, plain, &y));
    assert_ok(ls_dataset_augment(d, &a));
    assert_ok(sample_read(d, 1, 1, 0, &r, x, &y));
    for (size_t c = 0; c < 6; c++)
        for (size_t row = 0; row < 4; row++)
            for (size_t col = 0; col < 6; col++)
                assert_true(x[(c * 4 + row) * 6 + col] == plain[(c * 10 + row + 3) * 12 + col + 3]);
    sample_reader_free(&r);
    ls_dataset_close(d);
}

/* Each float of the set's samples is the value of the byte at its place. */
static void check_bytes(const ls_dataset *d)
{
    static float x[6 * SIDE * SIDE];
    static uint8_t bytes[6 * SIDE * SIDE];
    const int64_t *dims = ls_dataset_sample_dims(d);
    const size_t area = (size_t)(dims[1] * dims[2]);
    sample_reader r = {0};
    int64_t y[2];

    for (size_t index = 0; index < ls_dataset_count(d); index++) {
        memset(bytes, 0xAB, sizeof(bytes));
        assert_ok(sample_read(d, index, index, 3, &r, x, &y[0]));
        assert_ok(sample_read_bytes(d, index, index, 3, &r, bytes, &y[1]));
        assert_int_equal(y[0], y[1]);
        for (size_t i = 0; i < (size_t)dims[0] * area; i++)
            assert_true(x[i] == sample_values(d, (int)(i / area))[bytes[i]]);
    }
    sample_reader_free(&r);
}

static void floats_are_the_values_of_the_bytes(void **state)
{
    const ls_synthetic_options synthetic = {
        .size = sizeof(synthetic), .count = 20, .channels = 6, .height = 10, .width = 12};
    const ls_augment cut = {
        .size = sizeof(cut), .crop = LS_CROP_PADDED, .height = 9, .width = 14, .pad = 8, .flip = 1};
    ls_augment a;
    ls_dataset *d;

    LS_UNUSED(state);
    for (int train = 0; train < 2; train++) {
        ls_augment_imagenet(train, SIDE, &a);
        d = open_images(&a);
        check_bytes(d);
        ls_dataset_close(d);
    }
    a = cut;
    a.normalize = 1;
    for (int c = 0; c < 3; c++) {
        a.mean[c] = 0.1F * (float)(c + 1);
        a.std[c] = 0.5F / (float)(c + 1);
    }
    d = open_images(&a);
    check_bytes(d);
    ls_dataset_close(d);
    assert_ok(ls_dataset_open_synthetic(&synthetic, &d));
    check_bytes(d);
    assert_ok(ls_dataset_augment(d, &cut));
    check_bytes(d);
    ls_dataset_close(d);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    static float x[3 * SIDE * SIDE];
    ls_augment a;
    ls_dataset *d;

    LS_UNUSED(state);
    ls_augment_imagenet(1, SIDE, &a);
    d = open_images(&a);
    for (size_t index = 0; index < 2; index++) {
        uint64_t n = 0;
        ls_status st;

        do {
            sample_reader r = {0};
            int64_t y;

            ls_alloc_fail_at(++n);
            st = sample_read(d, index, index, 0, &r, x, &y);
            ls_alloc_fail_at(0);
            if (st != LS_OK)
                assert_status(st, LS_ENOMEM);
            sample_reader_free(&r);
            assert_true(n < 100);
        } while (st != LS_OK);
        assert_true(n > 5);
    }
    ls_dataset_close(d);
}

static int set_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_create(&folder);
    make_images();
    return ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options),
                                               .name = "cpu_ref",
                                               .threads = 1},
                          &device) == LS_OK
               ? 0
               : -1;
}

static int clean_up(void **state)
{
    LS_UNUSED(state);
    ls_device_close(device);
    temp_folder_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(steps_allocate_nothing_once_the_largest_image_is_known),
        cmocka_unit_test(broken_files_are_logged_once_and_counted_in_each_epoch),
        cmocka_unit_test(warnings_name_the_first_broken_samples_of_all_processes),
        cmocka_unit_test(a_broken_file_is_fatal_by_default),
        cmocka_unit_test(a_missing_file_is_always_fatal),
        cmocka_unit_test(a_synthetic_set_is_the_same_on_all_ranks),
        cmocka_unit_test(invalid_synthetic_options_are_named),
        cmocka_unit_test(grey_sets_are_augmented_too),
        cmocka_unit_test(all_channels_have_the_same_crop),
        cmocka_unit_test(floats_are_the_values_of_the_bytes),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
