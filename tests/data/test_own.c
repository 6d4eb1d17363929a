/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_own.c - tests batches of a program's own data: padding, lengths, indices, random choices,
 * broken samples, collate, and failures of callbacks. Every element of every batch is computed.
 */
#include "base/unit.h"

#include <lockstep/data.h>
#include <lockstep/train.h>

#include "base/alloc.h"
#include "tensor/suite_device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

enum { COUNT = 47, ROWS = 8, N_FIELDS = 4 };
enum { TOKENS, MEL, LABEL, GRID };

/* Sample i has tokens (i % 5), mel (3, 1 + i % 7), one label, and a grid (i % 3, 2, i % 4). */
static const ls_field fields[N_FIELDS] = {
    {.name = "tokens", .type = LS_I32, .n_dims = 1, .dims = {-1}, .padding = -7},
    {.name = "mel", .type = LS_F32, .n_dims = 2, .dims = {3, -1}, .padding = 0.5},
    {.name = "label", .type = LS_I64},
    {.name = "grid", .type = LS_U8, .n_dims = 3, .dims = {-1, 2, -1}},
};

static ls_device *device;

typedef struct own_set {
    bool is_bad[COUNT];
    ls_status bad_status;  /* of their reads */
    const char *bad_text;  /* NULL: the callback leaves no text */
    bool stores_seeds;     /* in the next member; each sample is then read once */
    uint64_t seeds[COUNT]; /* of the last read of each sample */
    uint64_t collate_seed; /* of the batch that begins with sample 0 */
    bool collate_fails;
    atomic_int n_closed;
} own_set;

static void lengths_of(size_t i, int64_t *lengths)
{
    lengths[0] = (int64_t)i % 5;
    lengths[1] = 1 + (int64_t)i % 7;
    lengths[2] = (int64_t)i % 3;
    lengths[3] = (int64_t)i % 4;
}

/* Dimensions 0 ... of a field in sample i; 1 where it has fewer. */
static void dims_of(size_t i, int field, int64_t dims[3])
{
    int64_t lengths[4];

    lengths_of(i, lengths);
    dims[0] = field == TOKENS ? lengths[0] : field == MEL ? 3 : field == GRID ? lengths[2] : 1;
    dims[1] = field == MEL ? lengths[1] : field == GRID ? 2 : 1;
    dims[2] = field == GRID ? lengths[3] : 1;
}

static double element(size_t i, int field, int64_t a, int64_t b, int64_t c)
{
    return (double)(((int64_t)i * 31 + field * 7 + a * 5 + b * 3 + c) % 120);
}

static void put(void *values, int field, size_t at, double v)
{
    switch (field) {
    case TOKENS:
        ((int32_t *)values)[at] = (int32_t)v;
        break;
    case MEL:
        ((float *)values)[at] = (float)v;
        break;
    case LABEL:
        ((int64_t *)values)[at] = (int64_t)v;
        break;
    default:
        ((uint8_t *)values)[at] = (uint8_t)v;
    }
}

static double get(const void *values, int field, size_t at)
{
    switch (field) {
    case TOKENS:
        return ((const int32_t *)values)[at];
    case MEL:
        return (double)((const float *)values)[at];
    case LABEL:
        return (double)((const int64_t *)values)[at];
    default:
        return ((const uint8_t *)values)[at];
    }
}

/* --- callbacks --- */

static ls_status tell_lengths(void *arg, size_t index, int64_t *lengths)
{
    LS_UNUSED(arg);
    lengths_of(index, lengths);
    return LS_OK;
}

static ls_status read_sample(void *arg, const ls_sample_request *r, void *const *values)
{
    own_set *s = arg;
    int64_t lengths[4];

    lengths_of(r->index, lengths);
    if (memcmp(lengths, r->lengths, sizeof(lengths)) != 0)
        return ls_train_refuse("sample %zu has other lengths", r->index);
    if (s->stores_seeds)
        s->seeds[r->index] = r->seed;
    for (int f = 0; f < N_FIELDS; f++) {
        int64_t dims[3];
        size_t at = 0;

        dims_of(r->index, f, dims);
        for (int64_t a = 0; a < dims[0]; a++)
            for (int64_t b = 0; b < dims[1]; b++)
                for (int64_t c = 0; c < dims[2]; c++)
                    put(values[f], f, at++, element(r->index, f, a, b, c));
    }
    if (!s->is_bad[r->index])
        return LS_OK;
    if (s->bad_text != NULL && ls_train_refuse("%s", s->bad_text) == LS_OK)
        return LS_OK;
    return s->bad_status;
}

/* Adds 1000 to the labels, and the batch's padded number of mel frames. */
static ls_status collate(void *arg, const ls_host_batch *b)
{
    own_set *s = arg;
    int64_t *labels = b->values[LABEL];

    if (s->collate_fails)
        return ls_train_refuse("no %s", "mixture");
    if (b->n_fields != N_FIELDS || b->fields[MEL].dims[0] != 3 || b->lengths[LABEL] != NULL)
        return ls_train_refuse("wrong fields");
    for (int64_t row = 0; row < b->rows; row++) {
        if (b->lengths[MEL][row] != 1 + (int64_t)b->indices[row] % 7)
            return ls_train_refuse("row %lld has a wrong length", (long long)row);
        labels[row] += 1000 + b->fields[MEL].dims[1];
    }
    if (b->indices[0] == 0)
        s->collate_seed = b->seed;
    return LS_OK;
}

static void count_close(void *arg)
{
    atomic_fetch_add(&((own_set *)arg)->n_closed, 1);
}

/* --- a loader over them --- */

typedef struct fixture {
    own_set own;
    ls_dataset_callbacks callbacks;
    ls_sampler_options sampling;
    ls_loader_options opt;
    ls_dataset *set;
    ls_sampler *sampler;
    ls_loader *loader;
} fixture;

static fixture *set_up(void)
{
    static fixture f;

    f = (fixture){.own = {.bad_status = LS_EFORMAT, .bad_text = "the sample is broken"}};
    f.callbacks = (ls_dataset_callbacks){.size = sizeof(f.callbacks),
                                         .count = COUNT,
                                         .fields = fields,
                                         .n_fields = N_FIELDS,
                                         .lengths = tell_lengths,
                                         .read = read_sample,
                                         .close = count_close,
                                         .arg = &f.own};
    f.sampling = (ls_sampler_options){.size = sizeof(f.sampling), .count = COUNT, .seed = 11};
    f.opt = (ls_loader_options){.size = sizeof(f.opt), .device = device, .batch_size = ROWS};
    return &f;
}

static void open_loader(fixture *f)
{
    assert_ok(ls_dataset_create(&f->callbacks, &f->set));
    assert_ok(ls_sampler_create(&f->sampling, &f->sampler));
    f->opt.dataset = f->set;
    f->opt.sampler = f->sampler;
    assert_ok(ls_loader_create(&f->opt, &f->loader));
}

static void clean_up(fixture *f)
{
    ls_loader_destroy(f->loader);
    ls_sampler_destroy(f->sampler);
    ls_dataset_close(f->set);
    assert_int_equal(atomic_load(&f->own.n_closed), f->set != NULL);
}

/* The padded dimensions of a field are the largest of the samples. */
static void largest_dims(const size_t *samples, size_t n, int field, int64_t largest[3])
{
    memset(largest, 0, 3 * sizeof(*largest));
    for (size_t i = 0; i < n; i++) {
        int64_t dims[3];

        dims_of(samples[i], field, dims);
        for (int k = 0; k < 3; k++)
            largest[k] = dims[k] > largest[k] ? dims[k] : largest[k];
    }
}

/* A field of the batch must have the elements of these samples, with the padding of `largest`. */
static void assert_field(const ls_batch *b, int field, const size_t *samples, size_t rows,
                         const int64_t largest[3])
{
    static double memory[ROWS * 64];
    const ls_tensor *t = ls_batch_field(b, fields[field].name);
    size_t at = 0;

    assert_ptr_equal(t, b->fields[field]);
    assert_int_equal(ls_tensor_dtype(t), fields[field].type);
    assert_int_equal(ls_tensor_n_dims(t), fields[field].n_dims + 1);
    assert_int_equal(ls_tensor_dim(t, 0), rows);
    for (int k = 0; k < fields[field].n_dims; k++)
        assert_int_equal(ls_tensor_dim(t, k + 1), largest[k]);
    assert_true(ls_tensor_count(t) <= LS_COUNT_OF(memory));
    assert_ok(ls_tensor_read(t, memory, ls_tensor_count(t)));
    for (size_t row = 0; row < rows; row++) {
        int64_t dims[3];

        dims_of(samples[row], field, dims);
        for (int64_t i = 0; i < largest[0] * largest[1] * largest[2]; i++) {
            const int64_t a = i / (largest[1] * largest[2]);
            const int64_t m = i / largest[2] % largest[1];
            const int64_t c = i % largest[2];
            const bool is_own = a < dims[0] && m < dims[1] && c < dims[2];

            assert_true(get(memory, field, at++) ==
                        (is_own ? element(samples[row], field, a, m, c) : fields[field].padding));
        }
    }
}

static void assert_lengths(const ls_batch *b, int field, const size_t *samples, size_t rows)
{
    static const int first[N_FIELDS] = {0, 1, -1, 2};
    const ls_tensor *t = ls_batch_lengths(b, fields[field].name);
    int64_t lengths[4];
    int64_t got[ROWS];

    if (first[field] < 0) {
        assert_null(t);
        assert_last_error("field \"label\" has a fixed size");
        assert_null(ls_batch_host_lengths(b, fields[field].name));
        return;
    }
    assert_int_equal(ls_tensor_count(t), rows);
    assert_ok(ls_tensor_read(t, got, rows));
    for (size_t row = 0; row < rows; row++) {
        lengths_of(samples[row], lengths);
        assert_int_equal(got[row], lengths[first[field]]);
        assert_int_equal(ls_batch_host_lengths(b, fields[field].name)[row], got[row]);
    }
}

/* The batch must have these samples, padded as the samples `like` need it. */
static void assert_batch(const ls_batch *b, const size_t *samples, size_t rows, const size_t *like,
                         size_t n_like)
{
    assert_int_equal(b->rows, rows);
    assert_int_equal(b->n_fields, N_FIELDS);
    assert_ptr_equal(b->x, b->fields[0]);
    assert_ptr_equal(b->y, b->fields[1]);
    for (size_t row = 0; row < rows; row++)
        assert_int_equal(b->indices[row], samples[row]);
    for (int f = 0; f < N_FIELDS; f++) {
        int64_t largest[3];

        largest_dims(like, n_like, f, largest);
        assert_field(b, f, samples, rows, largest);
        assert_lengths(b, f, samples, rows);
    }
}

/* Reads an epoch from `batch` on, and past its end. */
static void assert_epoch(fixture *f, size_t batch)
{
    const size_t n = ls_sampler_count(f->sampler);
    size_t samples[ROWS];
    ls_batch b;

    for (; batch < ls_loader_batches(f->loader); batch++) {
        const size_t left = n - batch * ROWS;
        const size_t rows = left < ROWS ? left : ROWS;

        for (size_t i = 0; i < rows; i++)
            samples[i] = ls_sampler_index(f->sampler, batch * ROWS + i);
        assert_ok(ls_loader_next(f->loader, &b));
        assert_batch(&b, samples, rows, samples, rows);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(ls_loader_next(f->loader, &b));
        assert_int_equal(b.rows, 0);
        assert_int_equal(ls_tensor_dim(ls_batch_field(&b, "mel"), 0), 0);
        assert_int_equal(ls_tensor_dim(ls_batch_field(&b, "mel"), 1), 3);
        assert_int_equal(ls_tensor_count(ls_batch_lengths(&b, "mel")), 0);
    }
}

/* --- tests --- */

static void every_number_of_threads_gives_the_same_padded_batches(void **state)
{
    static const int threads[] = {-1, 0, 1, 3};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(threads); i++) {
        for (int prefetch = 1; prefetch < 6; prefetch += 2) {
            fixture *f = set_up();

            f->opt.threads = threads[i];
            f->opt.prefetch = prefetch;
            open_loader(f);
            for (uint64_t epoch = 0; epoch < 3; epoch++) {
                assert_ok(ls_loader_start(f->loader, epoch, epoch * 2));
                assert_epoch(f, epoch * 2);
            }
            clean_up(f);
        }
    }
}

static void an_epoch_may_be_left_at_any_batch(void **state)
{
    fixture *f = set_up();
    ls_batch b;

    LS_UNUSED(state);
    f->opt.threads = 2;
    open_loader(f);
    for (size_t first = 0; first <= ls_loader_batches(f->loader); first++) {
        assert_ok(ls_loader_start(f->loader, first, first));
        assert_ok(ls_loader_next(f->loader, &b));
        assert_ok(ls_loader_start(f->loader, 7, first));
        assert_epoch(f, first);
    }
    clean_up(f);
}

static void random_choices_depend_on_seed_epoch_and_sample(void **state)
{
    uint64_t seen[4][COUNT];

    LS_UNUSED(state);
    for (int i = 0; i < 4; i++) {
        fixture *f = set_up();

        f->own.stores_seeds = true;
        f->opt.threads = i == 0 ? -1 : 2;
        f->opt.batch_size = i == 1 ? 3 : ROWS;
        f->sampling.seed = i == 3 ? 12 : 11;
        open_loader(f);
        assert_ok(ls_loader_start(f->loader, i == 2 ? 5 : 4, 0));
        for (ls_batch b = {.rows = 1}; b.rows > 0;)
            assert_ok(ls_loader_next(f->loader, &b));
        memcpy(seen[i], f->own.seeds, sizeof(seen[i]));
        clean_up(f);
    }
    assert_memory_equal(seen[0], seen[1], sizeof(seen[0]));
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(seen[0][i] != seen[2][i] && seen[0][i] != seen[3][i]);
        for (size_t k = 0; k < i; k++)
            assert_true(seen[0][i] != seen[0][k]);
    }
}

static void a_failed_read_names_the_sample(void **state)
{
    LS_UNUSED(state);
    for (int threads = -1; threads < 3; threads += 2) {
        for (int has_text = 0; has_text < 2; has_text++) {
            fixture *f = set_up();
            char message[64];
            ls_batch b;

            f->opt.threads = threads;
            f->own.bad_status = LS_EIO;
            f->own.bad_text = has_text ? "the disk is full" : NULL;
            open_loader(f);
            assert_ok(ls_sampler_set_epoch(f->sampler, 0));
            f->own.is_bad[ls_sampler_index(f->sampler, 20)] = true;
            f->own.is_bad[ls_sampler_index(f->sampler, 22)] = true;
            assert_ok(ls_loader_start(f->loader, 0, 0));
            assert_ok(ls_loader_next(f->loader, &b));
            assert_ok(ls_loader_next(f->loader, &b));
            assert_status(ls_loader_next(f->loader, &b), LS_EIO);
            (void)snprintf(message, sizeof(message), "data set: read of sample %zu: %s",
                           ls_sampler_index(f->sampler, 20),
                           has_text ? "the disk is full" : "input or output failed");
            assert_string_equal(ls_last_error(), message);
            clean_up(f);
        }
    }
}

/* Every n-th sample is broken. */
static void break_samples(fixture *f, size_t n)
{
    for (size_t i = 0; i < COUNT; i++)
        f->own.is_bad[i] = i % n == 0;
}

static void broken_samples_can_be_left_out(void **state)
{
    LS_UNUSED(state);
    for (int threads = -1; threads < 3; threads += 2) {
        fixture *f = set_up();
        size_t n_bad = 0;

        break_samples(f, 3);
        f->opt.threads = threads;
        f->opt.bad_images = LS_BAD_IMAGES_LEAVE_OUT;
        open_loader(f);
        assert_ok(ls_loader_start(f->loader, 0, 0));
        for (size_t first = 0; first < COUNT; first += ROWS) {
            const size_t rows = COUNT - first < ROWS ? COUNT - first : ROWS;
            size_t all[ROWS];
            size_t left[ROWS];
            size_t n = 0;
            ls_batch b;

            for (size_t i = 0; i < rows; i++) {
                all[i] = ls_sampler_index(f->sampler, first + i);
                if (!f->own.is_bad[all[i]])
                    left[n++] = all[i];
            }
            n_bad += rows - n;
            if (n == 0)
                continue;
            assert_ok(ls_loader_next(f->loader, &b));
            assert_batch(&b, left, n, all, rows);
        }
        assert_int_equal(ls_loader_bad_images(f->loader), n_bad);
        clean_up(f);
    }
}

static bool is_longer(size_t i, const size_t *samples, size_t n)
{
    int64_t own[4];
    int64_t longest[4] = {0};

    for (size_t k = 0; k < n; k++) {
        int64_t lengths[4];

        lengths_of(samples[k], lengths);
        for (int j = 0; j < 4; j++)
            longest[j] = lengths[j] > longest[j] ? lengths[j] : longest[j];
    }
    lengths_of(i, own);
    return own[0] > longest[0] || own[1] > longest[1] || own[2] > longest[2] || own[3] > longest[3];
}

static void broken_samples_are_replaced_by_ones_that_fit(void **state)
{
    enum { SMALL = 3 }; // rows of a batch, so that some samples do not fit
    fixture *f = set_up();
    size_t n_longer = 0;

    LS_UNUSED(state);
    break_samples(f, 9);
    f->opt.threads = 2;
    f->opt.batch_size = SMALL;
    f->opt.bad_images = LS_BAD_IMAGES_REPLACE;
    open_loader(f);
    assert_ok(ls_loader_start(f->loader, 0, 0));
    for (size_t first = 0; first < COUNT; first += SMALL) {
        const size_t rows = COUNT - first < SMALL ? COUNT - first : SMALL;
        size_t all[SMALL];
        size_t used[SMALL];
        ls_batch b;

        for (size_t i = 0; i < rows; i++)
            all[i] = ls_sampler_index(f->sampler, first + i);
        for (size_t i = 0; i < rows; i++) {
            used[i] = all[i];
            while (f->own.is_bad[used[i]] || is_longer(used[i], all, rows)) {
                n_longer += !f->own.is_bad[used[i]];
                used[i] = (used[i] + 1) % COUNT;
            }
        }
        assert_ok(ls_loader_next(f->loader, &b));
        assert_batch(&b, used, rows, all, rows);
    }
    assert_true(n_longer > 0);
    clean_up(f);
}

static void collate_changes_a_whole_batch(void **state)
{
    uint64_t seed = 0;

    LS_UNUSED(state);
    for (int threads = -1; threads < 4; threads += 2) {
        fixture *f = set_up();
        int64_t labels[ROWS];
        ls_batch b;

        break_samples(f, 3);
        f->opt.threads = threads;
        f->opt.bad_images = LS_BAD_IMAGES_LEAVE_OUT;
        f->sampling.no_shuffle = 1;
        f->callbacks.collate = collate;
        f->own.is_bad[0] = false;
        open_loader(f);
        assert_ok(ls_loader_start(f->loader, 0, 0));
        for (b.rows = 1; b.rows > 0;) {
            assert_ok(ls_loader_next(f->loader, &b));
            assert_ok(ls_tensor_read(ls_batch_field(&b, "label"), labels, (size_t)b.rows));
            for (int64_t row = 0; row < b.rows; row++)
                assert_true(labels[row] == (int64_t)element(b.indices[row], LABEL, 0, 0, 0) + 1000 +
                                               ls_tensor_dim(ls_batch_field(&b, "mel"), 2));
        }
        assert_true(f->own.collate_seed != 0 && (seed == 0 || f->own.collate_seed == seed));
        seed = f->own.collate_seed;
        f->own.collate_fails = true;
        assert_ok(ls_loader_start(f->loader, 0, 1));
        assert_status(ls_loader_next(f->loader, &b), LS_EINVAL);
        assert_last_error("data set: collate of the batch of sample 8: no mixture");
        clean_up(f);
    }
}

static void fields_are_found_by_name(void **state)
{
    fixture *f = set_up();
    const ls_field *found;
    ls_batch b = {0};
    int n;

    LS_UNUSED(state);
    open_loader(f);
    found = ls_dataset_fields(f->set, &n);
    assert_int_equal(n, N_FIELDS);
    assert_string_equal(found[GRID].name, "grid");
    assert_null(ls_batch_field(&b, "mel"));
    assert_last_error("needs a batch");
    assert_ok(ls_loader_start(f->loader, 0, 0));
    assert_ok(ls_loader_next(f->loader, &b));
    assert_null(ls_batch_field(&b, "mels"));
    assert_last_error("no field \"mels\"; its fields are tokens, mel, label, grid");
    assert_null(ls_batch_lengths(&b, "label"));
    assert_null(ls_batch_host_lengths(&b, "x"));
    clean_up(f);
}

static void arrays_give_their_rows(void **state)
{
    static float points[COUNT][2][3];
    static int64_t classes[COUNT];
    static const float none[1];
    const ls_array arrays[] = {
        {.field = {.name = "points", .type = LS_F32, .n_dims = 2, .dims = {2, 3}}, .data = points},
        {.field = {.name = "class", .type = LS_I64}, .data = classes},
        {.field = {.name = "nothing", .type = LS_F32, .n_dims = 1, .dims = {0}}, .data = none},
        {.field = {.name = "null", .type = LS_F32, .n_dims = 1, .dims = {0}}},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < COUNT; i++) {
        classes[i] = (int64_t)i - 3;
        for (int k = 0; k < 6; k++)
            points[i][k / 3][k % 3] = (float)i * 8 + (float)k;
    }
    for (int threads = -1; threads < 3; threads++) {
        fixture *f = set_up();
        uint64_t before = 0;
        float got[ROWS][2][3];
        int64_t labels[ROWS];
        ls_batch b;

        assert_ok(ls_dataset_from_arrays(arrays, 4, COUNT, &f->set));
        assert_ok(ls_sampler_create(&f->sampling, &f->sampler));
        f->opt.dataset = f->set;
        f->opt.sampler = f->sampler;
        f->opt.threads = threads;
        assert_ok(ls_loader_create(&f->opt, &f->loader));
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            if (epoch == 1)
                before = ls_alloc_count();
            assert_ok(ls_loader_start(f->loader, epoch, 0));
            for (size_t at = 0; at < COUNT; at += (size_t)b.rows) {
                assert_ok(ls_loader_next(f->loader, &b));
                assert_ok(ls_tensor_read(b.x, got, ls_tensor_count(b.x)));
                assert_ok(ls_tensor_read(b.y, labels, (size_t)b.rows));
                assert_int_equal(ls_tensor_dim(ls_batch_field(&b, "null"), 0), b.rows);
                for (size_t row = 0; row < (size_t)b.rows; row++) {
                    const size_t i = ls_sampler_index(f->sampler, at + row);

                    assert_int_equal(b.indices[row], i);
                    assert_int_equal(labels[row], classes[i]);
                    assert_memory_equal(got[row], points[i], sizeof(points[i]));
                }
            }
        }
        if (ls_device_queue(device) == NULL) // the simulated device allocates its queues' items
            assert_int_equal(ls_alloc_count(), before);
        ls_loader_destroy(f->loader);
        ls_sampler_destroy(f->sampler);
        ls_dataset_close(f->set);
    }
}

/* The set must work as an empty one. */
static void assert_no_batches(fixture *f)
{
    ls_batch b;

    open_loader(f);
    assert_int_equal(ls_loader_batches(f->loader), 0);
    assert_ok(ls_loader_start(f->loader, 0, 0));
    assert_ok(ls_loader_next(f->loader, &b));
    assert_int_equal(b.rows, 0);
    assert_int_equal(ls_tensor_count(ls_batch_field(&b, "mel")), 0);
    clean_up(f);
}

static void a_set_without_samples_has_no_batches(void **state)
{
    fixture *f = set_up();

    LS_UNUSED(state);
    f->callbacks.count = 0;
    f->sampling.count = 0;
    assert_no_batches(f);
}

static ls_status tell_zeros(void *arg, size_t index, int64_t *lengths)
{
    LS_UNUSED(arg);
    LS_UNUSED(index);
    memset(lengths, 0, 4 * sizeof(*lengths));
    return LS_OK;
}

static ls_status read_nothing(void *arg, const ls_sample_request *request, void *const *values)
{
    LS_UNUSED(arg);
    LS_UNUSED(request);
    *(int64_t *)values[LABEL] = 3;
    return LS_OK;
}

static void samples_may_have_no_elements(void **state)
{
    fixture *f = set_up();
    ls_batch b;

    LS_UNUSED(state);
    f->callbacks.lengths = tell_zeros;
    f->callbacks.read = read_nothing;
    f->opt.threads = 2;
    open_loader(f);
    assert_ok(ls_loader_start(f->loader, 0, 0));
    do {
        assert_ok(ls_loader_next(f->loader, &b));
        assert_int_equal(ls_tensor_count(ls_batch_field(&b, "mel")), 0);
        assert_int_equal(ls_tensor_count(ls_batch_field(&b, "label")), b.rows);
    } while (b.rows > 0);
    clean_up(f);
}

static void a_batch_of_another_size_voids_the_one_before(void **state)
{
    fixture *f = set_up();
    const ls_tensor *first[3];
    ls_batch b;

    LS_UNUSED(state);
    f->opt.prefetch = 1; // two slots
    f->sampling.no_shuffle = 1;
    open_loader(f);
    assert_ok(ls_loader_start(f->loader, 0, 0));
    for (int i = 0; i < 3; i++) {
        assert_ok(ls_loader_next(f->loader, &b));
        first[i] = b.x;
    }
    assert_ptr_equal(first[0], first[2]); // a tape may still refer to it
    clean_up(f);
}

static ls_status open_all(fixture *f)
{
    LS_TRY(ls_dataset_create(&f->callbacks, &f->set));
    f->opt.dataset = f->set;
    return ls_loader_create(&f->opt, &f->loader);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    uint64_t n = 0;
    int n_closed = 0;
    ls_status st;
    fixture *f = set_up();

    LS_UNUSED(state);
    assert_ok(ls_sampler_create(&f->sampling, &f->sampler));
    f->opt.sampler = f->sampler;
    f->opt.threads = 2;
    do {
        f->set = NULL;
        ls_alloc_fail_at(++n);
        st = open_all(f);
        ls_alloc_fail_at(0);
        ls_loader_destroy(f->loader);
        f->loader = NULL;
        ls_dataset_close(f->set);
        assert_true(st == LS_OK || st == LS_ENOMEM);
        assert_int_equal(atomic_load(&f->own.n_closed), ++n_closed);
    } while (st != LS_OK && n < 1000);
    assert_ok(st);
    assert_true(n > 10);
    ls_sampler_destroy(f->sampler);
}

static int open_device(void **state)
{
    const ls_device_options opt = {.size = sizeof(opt), .name = test_device_name()};

    LS_UNUSED(state);
    return ls_device_open(&opt, &device) == LS_OK ? 0 : -1;
}

static int close_device(void **state)
{
    LS_UNUSED(state);
    return ls_device_close(device) == LS_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_threads_gives_the_same_padded_batches),
        cmocka_unit_test(an_epoch_may_be_left_at_any_batch),
        cmocka_unit_test(random_choices_depend_on_seed_epoch_and_sample),
        cmocka_unit_test(a_failed_read_names_the_sample),
        cmocka_unit_test(broken_samples_can_be_left_out),
        cmocka_unit_test(broken_samples_are_replaced_by_ones_that_fit),
        cmocka_unit_test(collate_changes_a_whole_batch),
        cmocka_unit_test(fields_are_found_by_name),
        cmocka_unit_test(arrays_give_their_rows),
        cmocka_unit_test(a_set_without_samples_has_no_batches),
        cmocka_unit_test(samples_may_have_no_elements),
        cmocka_unit_test(a_batch_of_another_size_voids_the_one_before),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
