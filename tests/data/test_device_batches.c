/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_batches.c - the loader with a stream device: pixels travel as bytes, batches have the
 * bits of a host device while the host runs ahead, and every wait is needed for that.
 */
#include <lockstep/data.h>

#include "base/clock.h"
#include "base/thread.h"
#include "data/loader/device_batches.h"
#include "devices/cudahost.h"
#include "tensor/testing.h"

#include <string.h>

enum {
    SAMPLES = 103,
    ROWS = 10,
    BATCHES = (SAMPLES + ROWS - 1) / ROWS,
    SIDE = 5,
    MOST_CHANNELS = 5,
    BATCH_FLOATS = ROWS * MOST_CHANNELS * SIDE * SIDE,
    N_SEEDS = 28
};

/* Images of SIDE x SIDE and what is done to them. */
typedef struct image_kind {
    const char *name;
    int channels; /* of the images */
    int sample_channels;
    ls_augment augment; /* size 0: none */
} image_kind;

static const image_kind kinds[] = {
    {.name = "grey", .channels = 1, .sample_channels = 1},
    {.name = "padded, flipped and normalized colours",
     .channels = 3,
     .sample_channels = 3,
     .augment = {.size = sizeof(ls_augment),
                 .crop = LS_CROP_PADDED,
                 .height = SIDE,
                 .pad = 2,
                 .flip = 1,
                 .normalize = 1,
                 .mean = {0.4914F, 0.4822F, 0.4465F},
                 .std = {0.2023F, 0.1994F, 0.2010F},
                 .seed = 7}},
    {.name = "random crops of grey in three planes",
     .channels = 1,
     .sample_channels = 3,
     .augment = {.size = sizeof(ls_augment),
                 .crop = LS_CROP_RANDOM_RESIZED,
                 .height = SIDE,
                 .flip = 1,
                 .channels = 3,
                 .normalize = 1,
                 .mean = {0.485F, 0.456F, 0.406F},
                 .std = {0.229F, 0.224F, 0.225F},
                 .seed = 8}},
    {.name = "five channels", .channels = MOST_CHANNELS, .sample_channels = MOST_CHANNELS},
};

enum { N_KINDS = LS_COUNT_OF(kinds) };

static gpu_host *card;

/* What an epoch gives. */
typedef struct epoch_data {
    float x[BATCHES][BATCH_FLOATS];
    int64_t y[BATCHES][ROWS];
} epoch_data;

static epoch_data expected[N_KINDS]; // of cpu_ref

typedef struct scene {
    ls_device *device;
    ls_dataset *set;
    ls_sampler *sampler;
    ls_loader *loader;
    /* copies of the batches, by operators that the host does not wait for */
    ls_tensor *x[BATCHES];
    ls_tensor *y[BATCHES];
} scene;

static void open_set(scene *s, const image_kind *kind)
{
    const ls_synthetic_options set = {.size = sizeof(set),
                                      .count = SAMPLES,
                                      .classes = 7,
                                      .channels = kind->channels,
                                      .height = SIDE,
                                      .seed = 5};
    const ls_sampler_options sampler = {.size = sizeof(sampler), .count = SAMPLES, .seed = 3};

    assert_status(LS_OK, ls_dataset_open_synthetic(&set, &s->set));
    if (kind->augment.size > 0)
        assert_status(LS_OK, ls_dataset_augment(s->set, &kind->augment));
    assert_status(LS_OK, ls_sampler_create(&sampler, &s->sampler));
}

static ls_status open_loader(scene *s)
{
    const ls_loader_options opt = {.size = sizeof(opt),
                                   .device = s->device,
                                   .dataset = s->set,
                                   .sampler = s->sampler,
                                   .batch_size = ROWS,
                                   .prefetch = 1};

    return ls_loader_create(&opt, &s->loader);
}

static scene set_up(const char *device, const image_kind *kind)
{
    scene s = {.device = open_test_device(device)};

    open_set(&s, kind);
    assert_status(LS_OK, open_loader(&s));
    for (int i = 0; i < BATCHES; i++) {
        const int64_t rows = i + 1 < BATCHES ? ROWS : SAMPLES - (BATCHES - 1) * ROWS;

        const int64_t dims[] = {rows, kind->sample_channels, SIDE, SIDE};

        assert_status(LS_OK, ls_tensor_create(s.device, LS_F32, 4, dims, &s.x[i]));
        assert_status(LS_OK, ls_tensor_create(s.device, LS_I64, 1, dims, &s.y[i]));
    }
    return s;
}

static void clean_up(scene *s)
{
    ls_loader_destroy(s->loader);
    destroy_all(s->x, BATCHES);
    destroy_all(s->y, BATCHES);
    ls_sampler_destroy(s->sampler);
    ls_dataset_close(s->set);
    assert_status(LS_OK, ls_device_close(s->device));
}

/* An epoch whose batches are copied on the device, and read at its end. */
static void run_epoch(scene *s, uint64_t epoch, epoch_data *out)
{
    ls_batch b;

    assert_status(LS_OK, ls_loader_start(s->loader, epoch, 0));
    for (int i = 0; i < BATCHES; i++) {
        assert_status(LS_OK, ls_loader_next(s->loader, &b));
        assert_status(LS_OK, ls_tensor_copy(s->x[i], b.x));
        assert_status(LS_OK, ls_tensor_copy(s->y[i], b.y));
    }
    assert_status(LS_OK, ls_loader_next(s->loader, &b));
    assert_int_equal(b.rows, 0);
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < BATCHES; i++) {
        assert_status(LS_OK, ls_tensor_read(s->x[i], out->x[i], ls_tensor_count(s->x[i])));
        assert_status(LS_OK, ls_tensor_read(s->y[i], out->y[i], ls_tensor_count(s->y[i])));
    }
}

/* The simulated card with this seed. */
static scene set_up_sim(uint64_t seed, const image_kind *kind)
{
    (void)cudahost_reset();
    card->seed = seed;
    card->delay_us = 100;
    return set_up("cudahost", kind);
}

static void batches_are_those_of_a_host_device_at_every_pace(void **state)
{
    static epoch_data got;

    LS_UNUSED(state);
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        const uint64_t k = seed % N_KINDS;
        scene s = set_up_sim(seed, &kinds[k]);

        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            run_epoch(&s, epoch, &got);
            if (epoch == 0 && memcmp(&got, &expected[k], sizeof(got)) != 0)
                fail_msg("%s: the batches differ with seed %llu", kinds[k].name,
                         (unsigned long long)seed);
        }
        clean_up(&s);
    }
}

#if !defined(__SANITIZE_THREAD__) // it reports the races
/* Whether an epoch without the wait `what` gives wrong batches with one of the seeds. */
static bool is_noticed(const char *what)
{
    static epoch_data got;
    bool noticed = false;

    for (uint64_t seed = 1; seed <= 2 * N_SEEDS && !noticed; seed++) {
        scene s = set_up_sim(seed, &kinds[0]);

        card->dropped = what;
        run_epoch(&s, 0, &got);
        card->dropped = NULL;
        noticed = memcmp(&got, &expected[0], sizeof(got)) != 0;
        clean_up(&s);
    }
    return noticed;
}

static void every_wait_is_needed(void **state)
{
    LS_UNUSED(state);
    assert_true(is_noticed("loader: copy of the batch"));
    assert_true(is_noticed("loader: use of the earlier batch"));
    assert_true(is_noticed("loader: memory of the slot"));
}
#endif

/* What the device does in an epoch in which it keeps up. */
static gpu_host count_epoch(scene *s, uint64_t epoch)
{
    gpu_host before;
    gpu_host n;
    ls_batch b;

    assert_status(LS_OK, ls_loader_start(s->loader, epoch, 0));
    before = *card;
    for (int i = 0; i <= BATCHES; i++) {
        assert_status(LS_OK, ls_loader_next(s->loader, &b));
        assert_status(LS_OK, ls_device_synchronize(s->device));
    }
    n = *card;
    n.n_host_waits -= before.n_host_waits;
    n.n_allocations -= before.n_allocations;
    n.n_launches -= before.n_launches;
    n.n_copies -= before.n_copies;
    n.n_host_bytes -= before.n_host_bytes;
    return n;
}

/* When the device keeps up, the host neither waits nor allocates device memory. */
static void a_steady_epoch_needs_no_host_wait_and_no_allocation(void **state)
{
    scene s = set_up_sim(1, &kinds[0]);
    gpu_host n;

    LS_UNUSED(state);
    (void)count_epoch(&s, 0);
    n = count_epoch(&s, 1);
    assert_int_equal(n.n_host_waits, BATCHES + 1); // the test's own
    assert_int_equal(n.n_allocations, 0);
    assert_int_equal(n.n_copies, 2 * BATCHES);
    assert_int_equal(n.n_launches, BATCHES);
    clean_up(&s);
}

static void a_pixel_travels_as_one_byte(void **state)
{
    LS_UNUSED(state);
    for (size_t k = 0; k < N_KINDS; k++) {
        scene s = set_up_sim(1, &kinds[k]);
        const size_t pixels = (size_t)SAMPLES * (size_t)kinds[k].sample_channels * SIDE * SIDE;

        assert_int_equal(count_epoch(&s, 0).n_host_bytes, pixels + SAMPLES * sizeof(int64_t));
        clean_up(&s);
    }
}

/* Batches without their broken rows share one place. */
static void a_reduced_batch_may_have_more_rows_than_the_one_before(void **state)
{
    static const size_t rows[] = {2, ROWS, 1};
    const batch_sizes sizes = {.n_slots = 1, .batch_rows = ROWS};
    scene s = {.device = NULL};
    device_batches *b;
    batch_layout columns;
    ls_tensor *tensors[BATCH_MAX_COLUMNS];
    void *values[BATCH_MAX_COLUMNS];

    LS_UNUSED(state);
    (void)cudahost_reset();
    s.device = open_test_device("cudahost");
    open_set(&s, &kinds[0]);
    assert_status(LS_OK, batch_layout_make(s.set, true, ROWS, &columns));
    assert_status(LS_OK, device_batches_create(s.device, &columns, &sizes, &b));
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        const batch_shape shape = {.rows = rows[i], .longest = NULL};

        assert_status(LS_OK, device_batches_prepare(b, 0, &shape, values));
        memset(values[0], 255, rows[i] * SIDE * SIDE);
        memset(values[1], 0, rows[i] * sizeof(int64_t));
        assert_status(LS_OK, device_batches_send(b, 0, BATCH_REDUCED, &shape));
        assert_status(LS_OK, device_batches_receive(b, 0, tensors));
        assert_int_equal(ls_tensor_count(tensors[0]), rows[i] * SIDE * SIDE);
        for (size_t k = 0; k < rows[i] * SIDE * SIDE; k++)
            assert_true(element_of(tensors[0], k) == 1);
        assert_status(LS_OK, device_batches_release(b));
    }
    device_batches_destroy(b);
    clean_up(&s);
}

typedef struct gate {
    ls_mutex lock;
    ls_cond opened;
    bool is_open;
} gate;

static void wait_for_gate(void *arg)
{
    gate *g = arg;

    ls_mutex_lock(&g->lock);
    while (!g->is_open)
        (void)ls_cond_wait(&g->opened, &g->lock, ls_deadline_ms(-1));
    ls_mutex_unlock(&g->lock);
}

static void open_gate(gate *g)
{
    ls_mutex_lock(&g->lock);
    g->is_open = true;
    ls_cond_broadcast(&g->opened);
    ls_mutex_unlock(&g->lock);
}

/* A batch arrives while an earlier operator still runs. */
static void copies_run_beside_operators(void **state)
{
    scene s = set_up_sim(1, &kinds[0]);
    gate g = {.is_open = false};
    accel_event *copied;
    ls_batch b;

    LS_UNUSED(state);
    ls_mutex_init(&g.lock);
    ls_cond_init(&g.opened);
    assert_status(LS_OK, accel_event_create(s.device->accel, false, &copied));
    assert_status(LS_OK, ls_loader_start(s.loader, 0, 0));
    assert_status(LS_OK, accel_call(ls_device_queue(s.device), wait_for_gate, &g));
    assert_status(LS_OK, ls_loader_next(s.loader, &b));
    assert_status(LS_OK, accel_event_record(copied, accel_queue(s.device->accel, ACCEL_COPY)));
    assert_status(LS_OK, accel_event_wait(copied, "test: copies")); // else it blocks for ever
    open_gate(&g);
    accel_event_destroy(copied);
    assert_status(LS_OK, ls_device_synchronize(s.device));
    ls_cond_destroy(&g.opened);
    ls_mutex_destroy(&g.lock);
    clean_up(&s);
}

static void no_device_memory_is_an_error_at_every_allocation(void **state)
{
    scene s = {.device = NULL};
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    (void)cudahost_reset();
    s.device = open_test_device("cudahost");
    open_set(&s, &kinds[0]);
    do {
        card->fail_malloc_at = ++n;
        st = open_loader(&s);
        card->fail_malloc_at = 0;
        if (st != LS_OK)
            assert_status(LS_ENOMEM, st);
        assert_true(n < 100);
    } while (st != LS_OK);
    assert_true(n > 3);
    clean_up(&s);
}

static void a_lost_device_ends_the_epoch_with_an_error(void **state)
{
    scene s = set_up_sim(1, &kinds[0]);
    ls_status st = LS_OK;
    ls_batch b;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_loader_start(s.loader, 0, 0));
    card->lose_at = 7;
    for (int i = 0; i <= BATCHES && st == LS_OK; i++) {
        st = ls_loader_next(s.loader, &b);
        if (st == LS_OK)
            st = ls_device_synchronize(s.device);
    }
    assert_true(st != LS_OK);
    if (strstr(ls_last_error(), "can no longer be used") == NULL)
        fail_msg("\"%s\" does not name the loss", ls_last_error());
    assert_true(ls_loader_next(s.loader, &b) != LS_OK);
    clean_up(&s);
}

static int make_expected(void **state)
{
    LS_UNUSED(state);
    card = cudahost();
    if (card == NULL) {
        print_error("%s\n", ls_last_error());
        return -1;
    }
    for (size_t k = 0; k < N_KINDS; k++) {
        scene s = set_up("cpu_ref", &kinds[k]);

        run_epoch(&s, 0, &expected[k]);
        clean_up(&s);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_those_of_a_host_device_at_every_pace),
#if !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(every_wait_is_needed),
#endif
        cmocka_unit_test(a_steady_epoch_needs_no_host_wait_and_no_allocation),
        cmocka_unit_test(a_pixel_travels_as_one_byte),
        cmocka_unit_test(a_reduced_batch_may_have_more_rows_than_the_one_before),
        cmocka_unit_test(copies_run_beside_operators),
        cmocka_unit_test(no_device_memory_is_an_error_at_every_allocation),
        cmocka_unit_test(a_lost_device_ends_the_epoch_with_an_error),
    };

    return cmocka_run_group_tests(tests, make_expected, NULL);
}
