/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_loader.c - tests the loader over a computed data set: batches, broken samples, memory,
 * cancelling.
 */
#include "base/unit.h"

#include <lockstep/data.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "data/dataset.h"
#include "tensor/suite_device.h"
#include "tensor/tensor.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define SAMPLE_FLOATS 6
#define MOST_SAMPLES  1024
#define LARGE_SIDE    192 /* a row of this size squared is a piece of its own */
#define LARGE_ROWS    9

static ls_device *device;
static float pixels[LARGE_ROWS * LARGE_SIDE * LARGE_SIDE]; // of the batch that is checked
static int64_t labels[MOST_SAMPLES];

/* A data set that is computed: byte k of sample i is sample_byte(i + k), its label i % 10. Opening
 * one of `is_bad` fails; while `hold` is set, readers wait. */
typedef struct counting_set {
    ls_dataset common;
    bool is_bad[MOST_SAMPLES];
    atomic_bool hold;
    atomic_int n_reads;
} counting_set;

static uint8_t bytes[MOST_SAMPLES + LARGE_SIDE * LARGE_SIDE]; // all samples, one inside the other

static uint8_t sample_byte(size_t at)
{
    return (uint8_t)(at * 37 + at / 256 * 11);
}

static ls_status open_counting(const ls_dataset *self, size_t index, image_reader *r)
{
    counting_set *s = (counting_set *)(uintptr_t)self;

    atomic_fetch_add(&s->n_reads, 1);
    while (atomic_load(&s->hold))
        (void)sched_yield();
    if (s->is_bad[index])
        return ls_fail(LS_EFORMAT, "sample %zu is broken", index);
    image_open_planes(r, bytes + index, 1, (int)self->dims[1], (int)self->dims[2]);
    return LS_OK;
}

static int64_t label_counting(const ls_dataset *self, size_t index)
{
    LS_UNUSED(self);
    return (int64_t)(index % 10);
}

static void close_counting(ls_dataset *self)
{
    LS_UNUSED(self);
}

static const image_ops counting_ops = {
    .open = open_counting, .label = label_counting, .close = close_counting};

/* State of one test; the loader's options can be changed before open_loader(). */
typedef struct fixture {
    counting_set set;
    ls_sampler *sampler;
    ls_loader_options opt;
    ls_loader *loader;
} fixture;

static void set_up(fixture *f, size_t count, int batch_size)
{
    const ls_sampler_options sampler = {.size = sizeof(sampler), .count = count, .seed = 3};

    memset(f, 0, sizeof(*f));
    f->set.common = (ls_dataset){
        .images = &counting_ops, .count = count, .classes = 10, .dims = {1, 2, SAMPLE_FLOATS / 2}};
    assert_ok(ls_dataset_augment(&f->set.common, NULL));
    assert_ok(ls_sampler_create(&sampler, &f->sampler));
    f->opt = (ls_loader_options){.size = sizeof(f->opt),
                                 .device = device,
                                 .dataset = &f->set.common,
                                 .sampler = f->sampler,
                                 .batch_size = batch_size};
}

static void open_loader(fixture *f)
{
    assert_ok(ls_loader_create(&f->opt, &f->loader));
}

static void clean_up(fixture *f)
{
    ls_loader_destroy(f->loader);
    ls_sampler_destroy(f->sampler);
}

/* Row `row` of the batch must hold sample `index`; row 0 is checked first. */
static void assert_row(const fixture *f, const ls_batch *b, size_t row, size_t index)
{
    const size_t n = (size_t)(f->set.common.dims[1] * f->set.common.dims[2]);

    LS_ASSERT(ls_tensor_count(b->x) <= LS_COUNT_OF(pixels));
    if (row == 0) {
        assert_ok(ls_tensor_read(b->x, pixels, ls_tensor_count(b->x)));
        assert_ok(ls_tensor_read(b->y, labels, ls_tensor_count(b->y)));
    }
    assert_int_equal(labels[row], index % 10);
    for (size_t i = 0; i < n; i++)
        assert_true(pixels[row * n + i] == (float)sample_byte(index + i) / 255.0F);
}

static void assert_shape(const fixture *f, const ls_batch *b, size_t rows)
{
    assert_int_equal(b->rows, rows);
    assert_int_equal(ls_tensor_n_dims(b->x), 4);
    assert_int_equal(ls_tensor_dim(b->x, 0), rows);
    assert_int_equal(ls_tensor_dim(b->x, 1), 1);
    assert_int_equal(ls_tensor_dim(b->x, 2), f->set.common.dims[1]);
    assert_int_equal(ls_tensor_dim(b->x, 3), f->set.common.dims[2]);
    assert_int_equal(ls_tensor_n_dims(b->y), 1);
    assert_int_equal(ls_tensor_dim(b->y, 0), rows);
}

/* The next batch must hold samples first ... first + rows - 1 of the sampler's order. */
static void assert_batch(const fixture *f, const ls_batch *b, size_t first, size_t rows)
{
    assert_shape(f, b, rows);
    for (size_t row = 0; row < rows; row++)
        assert_row(f, b, row, ls_sampler_index(f->sampler, first + row));
}

/* Reads the rest of an epoch from `batch` on, and past its end. */
static void assert_epoch(fixture *f, size_t batch)
{
    const size_t rows = (size_t)f->opt.batch_size;
    const size_t n = ls_sampler_count(f->sampler);
    ls_batch b;

    for (; batch < ls_loader_batches(f->loader); batch++) {
        const size_t left = n - batch * rows;

        assert_ok(ls_loader_next(f->loader, &b));
        assert_batch(f, &b, batch * rows, left < rows ? left : rows);
    }
    for (int i = 0; i < 3; i++) {
        assert_ok(ls_loader_next(f->loader, &b));
        assert_batch(f, &b, 0, 0);
    }
}

static void every_number_of_threads_gives_the_same_batches(void **state)
{
    static const int threads[] = {-1, 0, 1, 2, 5};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(threads); i++) {
        for (int prefetch = 0; prefetch < 8; prefetch += 3) {
            fixture f;

            set_up(&f, 103, 10);
            f.opt.threads = threads[i];
            f.opt.prefetch = prefetch;
            open_loader(&f);
            assert_int_equal(ls_loader_batches(f.loader), 11);
            for (uint64_t epoch = 0; epoch < 3; epoch++) {
                assert_ok(ls_loader_start(f.loader, epoch, 0));
                assert_epoch(&f, 0);
            }
            clean_up(&f);
        }
    }
}

static void threads_share_batches_of_large_rows(void **state)
{
    LS_UNUSED(state);
    for (int threads = -1; threads < 6; threads += 3) {
        fixture f;

        set_up(&f, 41, LARGE_ROWS);
        f.set.common.dims[1] = LARGE_SIDE;
        f.set.common.dims[2] = LARGE_SIDE;
        assert_ok(ls_dataset_augment(&f.set.common, NULL));
        f.opt.threads = threads;
        open_loader(&f);
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            assert_ok(ls_loader_start(f.loader, epoch, epoch));
            assert_epoch(&f, epoch);
        }
        clean_up(&f);
    }
}

static void an_epoch_may_start_at_any_batch(void **state)
{
    fixture f;
    ls_batch b;

    LS_UNUSED(state);
    set_up(&f, 57, 10);
    f.opt.threads = 3;
    open_loader(&f);
    for (size_t first = 0; first <= 6; first++) {
        assert_ok(ls_loader_start(f.loader, 4, first));
        assert_epoch(&f, first);
        // Again, leaving after the first batch.
        assert_ok(ls_loader_start(f.loader, first, first));
        assert_ok(ls_loader_next(f.loader, &b));
    }
    assert_status(ls_loader_start(f.loader, 1, 7), LS_EINVAL);
    assert_last_error("batch 7 of 6");
    clean_up(&f);
}

static void a_short_last_batch_can_be_dropped(void **state)
{
    fixture f;

    LS_UNUSED(state);
    set_up(&f, 57, 10);
    f.opt.drop_last = 1;
    open_loader(&f);
    assert_int_equal(ls_loader_batches(f.loader), 5);
    assert_ok(ls_loader_start(f.loader, 0, 0));
    assert_epoch(&f, 0);
    clean_up(&f);
}

static void small_sets_give_short_epochs(void **state)
{
    LS_UNUSED(state);
    for (size_t count = 0; count < 12; count++) {
        for (int drop_last = 0; drop_last < 2; drop_last++) {
            fixture f;

            set_up(&f, count, 4);
            f.opt.drop_last = drop_last;
            f.opt.threads = 2;
            open_loader(&f);
            assert_int_equal(ls_loader_batches(f.loader), drop_last ? count / 4 : (count + 3) / 4);
            for (uint64_t epoch = 0; epoch < 2; epoch++) {
                assert_ok(ls_loader_start(f.loader, epoch, 0));
                assert_epoch(&f, 0);
            }
            clean_up(&f);
        }
    }
}

static void next_needs_a_started_epoch(void **state)
{
    fixture f;
    ls_batch b;

    LS_UNUSED(state);
    set_up(&f, 10, 4);
    open_loader(&f);
    assert_status(ls_loader_next(f.loader, &b), LS_EINVAL);
    assert_last_error("ls_loader_start");
    clean_up(&f);
}

static void next_returns_the_error_of_a_reader_thread(void **state)
{
    LS_UNUSED(state);
    for (int threads = -1; threads <= 3; threads++) {
        char message[64];
        fixture f;
        ls_batch b;

        set_up(&f, 40, 10);
        f.opt.threads = threads;
        open_loader(&f);
        assert_ok(ls_sampler_set_epoch(f.sampler, 0));
        f.set.is_bad[ls_sampler_index(f.sampler, 25)] = true;
        f.set.is_bad[ls_sampler_index(f.sampler, 28)] = true;
        (void)snprintf(message, sizeof(message), "sample %zu is broken",
                       ls_sampler_index(f.sampler, 25));
        assert_ok(ls_loader_start(f.loader, 0, 0));
        assert_ok(ls_loader_next(f.loader, &b));
        assert_ok(ls_loader_next(f.loader, &b));
        for (int i = 0; i < 3; i++) {
            assert_status(ls_loader_next(f.loader, &b), LS_EFORMAT);
            assert_last_error(message);
        }
        // The next epoch starts without the failure.
        f.opt.batch_size = 10;
        assert_ok(ls_loader_start(f.loader, 0, 3));
        assert_epoch(&f, 3);
        clean_up(&f);
    }
}

/* Every third sample and all of batch 2 are broken. */
static void break_samples(fixture *f)
{
    assert_ok(ls_sampler_set_epoch(f->sampler, 0));
    for (size_t i = 0; i < 40; i++)
        f->set.is_bad[i] = i % 3 == 0;
    for (size_t i = 20; i < 30; i++)
        f->set.is_bad[ls_sampler_index(f->sampler, i)] = true;
}

static size_t next_whole(const fixture *f, size_t index)
{
    while (f->set.is_bad[index])
        index = (index + 1) % f->set.common.count;
    return index;
}

static void broken_images_are_replaced(void **state)
{
    LS_UNUSED(state);
    for (int threads = -1; threads <= 3; threads += 2) {
        size_t n_bad = 0;
        fixture f;
        ls_batch b;

        set_up(&f, 47, 10);
        f.opt.threads = threads;
        f.opt.bad_images = LS_BAD_IMAGES_REPLACE;
        open_loader(&f);
        break_samples(&f);
        assert_ok(ls_loader_start(f.loader, 0, 0));
        assert_int_equal(ls_loader_bad_images(f.loader), 0);
        for (size_t i = 0; i < 47; i++) {
            const size_t index = ls_sampler_index(f.sampler, i);

            if (i % 10 == 0) {
                assert_ok(ls_loader_next(f.loader, &b));
                assert_shape(&f, &b, i == 40 ? 7 : 10);
            }
            assert_row(&f, &b, i % 10, next_whole(&f, index));
            n_bad += f.set.is_bad[index];
        }
        assert_int_equal(ls_loader_bad_images(f.loader), n_bad);
        clean_up(&f);
    }
}

/* Reads the rows of one batch that are not broken; false when there is none. */
static bool assert_whole_rows(const fixture *f, size_t first, size_t rows, size_t *n_bad)
{
    size_t n_whole = 0;
    size_t at = 0;
    ls_batch b;

    for (size_t i = 0; i < rows; i++)
        n_whole += !f->set.is_bad[ls_sampler_index(f->sampler, first + i)];
    *n_bad += rows - n_whole;
    if (n_whole == 0)
        return false;
    assert_ok(ls_loader_next(f->loader, &b));
    assert_shape(f, &b, n_whole);
    for (size_t i = 0; i < rows; i++) {
        const size_t index = ls_sampler_index(f->sampler, first + i);

        if (!f->set.is_bad[index])
            assert_row(f, &b, at++, index);
    }
    return true;
}

static void broken_images_can_be_skipped(void **state)
{
    LS_UNUSED(state);
    for (int threads = -1; threads <= 3; threads += 2) {
        size_t n_bad = 0;
        size_t n_batches = 0;
        fixture f;
        ls_batch b;

        set_up(&f, 47, 10);
        f.opt.threads = threads;
        f.opt.bad_images = LS_BAD_IMAGES_LEAVE_OUT;
        open_loader(&f);
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            break_samples(&f);
            assert_ok(ls_loader_start(f.loader, 0, 0));
            for (size_t i = 0; i < 47; i += 10)
                n_batches += assert_whole_rows(&f, i, i == 40 ? 7 : 10, &n_bad);
            assert_ok(ls_loader_next(f.loader, &b));
            assert_shape(&f, &b, 0);
        }
        assert_int_equal(n_batches, 8);
        assert_int_equal(ls_loader_bad_images(f.loader), n_bad);
        clean_up(&f);
    }
}

static void a_set_of_broken_images_is_refused(void **state)
{
    fixture f;
    ls_batch b;

    LS_UNUSED(state);
    set_up(&f, 12, 4);
    f.opt.bad_images = LS_BAD_IMAGES_REPLACE;
    memset(f.set.is_bad, 1, sizeof(f.set.is_bad));
    open_loader(&f);
    assert_ok(ls_loader_start(f.loader, 0, 0));
    assert_status(ls_loader_next(f.loader, &b), LS_EFORMAT);
    assert_last_error("12 images in a row are broken, the last one: sample ");
    clean_up(&f);
    set_up(&f, 12, 4);
    f.opt.bad_images = LS_BAD_IMAGES_LEAVE_OUT;
    memset(f.set.is_bad, 1, sizeof(f.set.is_bad));
    open_loader(&f);
    assert_ok(ls_loader_start(f.loader, 0, 0));
    assert_ok(ls_loader_next(f.loader, &b));
    assert_shape(&f, &b, 0);
    assert_int_equal(ls_loader_bad_images(f.loader), 12);
    clean_up(&f);
}

static void steps_after_the_first_epoch_allocate_nothing(void **state)
{
    uint64_t before;
    fixture f;

    LS_UNUSED(state);
    set_up(&f, 103, 10);
    f.opt.threads = 2;
    open_loader(&f);
    assert_ok(ls_loader_start(f.loader, 0, 0));
    assert_epoch(&f, 0);
    before = ls_alloc_count();
    for (uint64_t epoch = 1; epoch < 4; epoch++) {
        ls_batch b;

        assert_ok(ls_loader_start(f.loader, epoch, 0));
        do
            assert_ok(ls_loader_next(f.loader, &b));
        while (b.rows > 0);
    }
    if (ls_device_queue(device) == NULL) // the simulated device allocates its queues' items
        assert_int_equal(ls_alloc_count(), before);
    clean_up(&f);
}

static void returned_batches_count_as_written(void **state)
{
    ls_tensor *first = NULL;
    uint64_t version = 0;
    ls_batch b;
    fixture f;

    LS_UNUSED(state);
    set_up(&f, 50, 10);
    f.opt.prefetch = 1;
    open_loader(&f);
    assert_ok(ls_loader_start(f.loader, 0, 0));
    for (int i = 0; i < 3; i++) {
        assert_ok(ls_loader_next(f.loader, &b));
        if (i == 0) {
            first = b.x;
            version = b.x->storage->version;
        }
    }
    assert_ptr_equal(b.x, first); // two slots: the third batch is in the first's
    assert_true(b.x->storage->version > version);
    clean_up(&f);
}

static void a_loader_without_threads_has_memory_for_one_batch(void **state)
{
    ls_batch first;
    ls_batch b;
    fixture f;

    LS_UNUSED(state);
    set_up(&f, 50, 10);
    f.opt.threads = -1;
    open_loader(&f);
    assert_ok(ls_loader_start(f.loader, 0, 0));
    assert_ok(ls_loader_next(f.loader, &first));
    assert_ok(ls_loader_next(f.loader, &b));
    if (ls_device_queue(device) == NULL) // otherwise one is copied while the next one is read
        assert_ptr_equal(b.x, first.x);
    clean_up(&f);
}

static void release_readers(void *arg)
{
    counting_set *s = arg;

    atomic_store(&s->hold, false);
}

static void a_loader_can_be_destroyed_while_threads_read(void **state)
{
    LS_UNUSED(state);
    for (int restart = 0; restart < 2; restart++) {
        ls_thread helper = {0};
        fixture f;

        set_up(&f, 1000, 100);
        f.opt.threads = 2;
        open_loader(&f);
        atomic_store(&f.set.hold, true);
        assert_ok(ls_loader_start(f.loader, 0, 0));
        while (atomic_load(&f.set.n_reads) == 0)
            (void)sched_yield();
        assert_ok(ls_thread_start(&helper, "release", release_readers, &f.set));
        if (restart) {
            assert_ok(ls_loader_start(f.loader, 1, 2));
            assert_epoch(&f, 2);
        }
        clean_up(&f);
        ls_thread_join(&helper);
    }
}

static void invalid_options_are_named(void **state)
{
    ls_sampler *other;
    const ls_sampler_options other_opt = {.size = sizeof(other_opt), .count = 9};
    fixture f;

    LS_UNUSED(state);
    set_up(&f, 10, 4);
    assert_ok(ls_sampler_create(&other_opt, &other));
    for (int i = 0; i < 9; i++) {
        ls_loader_options opt = f.opt;

        opt.size = i == 0 ? 8 : opt.size;
        opt.device = i == 1 ? NULL : opt.device;
        opt.dataset = i == 2 ? NULL : opt.dataset;
        opt.sampler = i == 3 ? NULL : i == 7 ? other : opt.sampler;
        opt.batch_size = i == 4 ? 0 : opt.batch_size;
        opt.threads = i == 5 ? 100000 : opt.threads;
        opt.prefetch = i == 6 ? -1 : opt.prefetch;
        opt.bad_images = i == 8 ? 3 : opt.bad_images;
        assert_status(ls_loader_create(&opt, &f.loader), LS_EINVAL);
        assert_last_error("loader: ");
        if (i == 7)
            assert_last_error("sampler is for 9 samples, the data set has 10");
    }
    f.set.common.dims[1] = 0;
    assert_ok(ls_dataset_augment(&f.set.common, NULL));
    assert_status(ls_loader_create(&f.opt, &f.loader), LS_EINVAL);
    assert_last_error("the images differ in size; set a common size with ls_dataset_augment()");
    assert_status(ls_loader_create(NULL, &f.loader), LS_EINVAL);
    ls_sampler_destroy(other);
    ls_loader_destroy(NULL);
    f.loader = NULL;
    clean_up(&f);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    uint64_t n = 0;
    ls_status st;
    fixture f;

    LS_UNUSED(state);
    set_up(&f, 57, 10);
    f.opt.threads = 2;
    do {
        ls_alloc_fail_at(++n);
        st = ls_loader_create(&f.opt, &f.loader);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        assert_true(n < 1000);
    } while (st != LS_OK);
    assert_true(n > 3);
    clean_up(&f);
}

static int open_device(void **state)
{
    const ls_device_options opt = {.size = sizeof(opt), .name = test_device_name()};

    LS_UNUSED(state);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = sample_byte(i);
    return ls_device_open(&opt, &device) == LS_OK ? 0 : -1;
}

static int close_device(void **state)
{
    LS_UNUSED(state);
    ls_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_threads_gives_the_same_batches),
        cmocka_unit_test(threads_share_batches_of_large_rows),
        cmocka_unit_test(an_epoch_may_start_at_any_batch),
        cmocka_unit_test(a_short_last_batch_can_be_dropped),
        cmocka_unit_test(small_sets_give_short_epochs),
        cmocka_unit_test(next_needs_a_started_epoch),
        cmocka_unit_test(next_returns_the_error_of_a_reader_thread),
        cmocka_unit_test(broken_images_are_replaced),
        cmocka_unit_test(broken_images_can_be_skipped),
        cmocka_unit_test(a_set_of_broken_images_is_refused),
        cmocka_unit_test(steps_after_the_first_epoch_allocate_nothing),
        cmocka_unit_test(returned_batches_count_as_written),
        cmocka_unit_test(a_loader_without_threads_has_memory_for_one_batch),
        cmocka_unit_test(a_loader_can_be_destroyed_while_threads_read),
        cmocka_unit_test(invalid_options_are_named),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
