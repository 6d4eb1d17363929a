/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_accel.c - the accelerator of the CUDA device over host memory: memory, events, and what
 * each failure of the runtime becomes. Links the sources, not the module, to play kernel.
 */
#include "tensor/cuda/accel_testing.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

#include <string.h>

static cuda_accel *open_accel(int index)
{
    return accel_testing_open(index, false);
}

/* --- memory --- */

enum { N_BLOCKS = 600, BLOCK_BYTES = 100 };

static void a_block_is_found_by_every_address_in_it(void **state)
{
    cuda_accel *a = open_accel(0);
    accel *base = cuda_accel_base(a);
    static unsigned char *blocks[N_BLOCKS];
    unsigned char on_host = 0;

    LS_UNUSED(state);
    for (int i = 0; i < N_BLOCKS; i++) {
        blocks[i] = accel_alloc(base, BLOCK_BYTES);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 256, 0);
    }
    for (int i = 0; i < N_BLOCKS; i += 2) {
        accel_free(base, blocks[i]);
        assert_null(accel_of(blocks[i]));
    }
    for (int i = 1; i < N_BLOCKS; i += 2) {
        assert_ptr_equal(accel_of(blocks[i]), base);
        assert_ptr_equal(accel_of(blocks[i] + BLOCK_BYTES - 1), base);
        assert_null(accel_of(blocks[i] + BLOCK_BYTES));
        assert_null(accel_of(blocks[i] - 1));
    }
    assert_null(accel_of(&on_host));
    for (int i = 1; i < N_BLOCKS; i += 2)
        accel_free(base, blocks[i]);
    close_accel(a);
}

/* In a thread that has not selected a card. */
static void ask_about_host_memory(void *arg)
{
    assert_null(accel_of(&arg));
}

/* A context takes hundreds of megabytes of a card that other ranks use. */
static void questions_about_memory_make_no_context_on_another_card(void **state)
{
    cuda_accel *a = open_accel(1);
    ls_thread thread = {.started = false};

    LS_UNUSED(state);
    assert_ok(ls_thread_start(&thread, "asks", ask_about_host_memory, NULL));
    ls_thread_join(&thread);
    assert_int_equal(gpu->contexts, 1U << 1);
    close_accel(a);
}

static void memory_that_another_library_allocates_is_found_on_its_card(void **state)
{
    cuda_accel *first = open_accel(0);
    cuda_accel *second = open_accel(1);
    void *block = NULL;

    LS_UNUSED(state);
    assert_int_equal(gpu_device_set(1), 0);
    assert_int_equal(gpu_malloc(&block, BLOCK_BYTES), 0);
    assert_ptr_equal(accel_of(block), cuda_accel_base(second));
    assert_int_equal(gpu_free(block), 0);
    cuda_accel_close(first);
    close_accel(second);
}

/* Its work is in the queues of one of them. */
static void accelerators_of_one_card_have_their_own_memory(void **state)
{
    cuda_accel *both[2] = {open_accel(0), open_accel(0)};
    void *blocks[2];

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        blocks[i] = accel_alloc(cuda_accel_base(both[i]), BLOCK_BYTES);
        assert_ptr_equal(accel_of(blocks[i]), cuda_accel_base(both[i]));
    }
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(accel_of(blocks[i]), cuda_accel_base(both[i]));
        accel_free(cuda_accel_base(both[i]), blocks[i]);
    }
    cuda_accel_close(both[0]);
    close_accel(both[1]);
}

static void copies_and_fills_reach_the_queue_of_their_card(void **state)
{
    cuda_accel *a = open_accel(1);
    accel *base = cuda_accel_base(a);
    unsigned char *block = accel_alloc(base, 8);
    unsigned char *pinned = accel_alloc_host(base, 8);
    unsigned char got[8];

    LS_UNUSED(state);
    assert_non_null(pinned);
    memcpy(pinned, "12345678", 8);
    for (int i = 0; i < ACCEL_QUEUES; i++) {
        ls_queue *queue = accel_queue(base, (accel_queue_id)i);

        assert_ok(accel_copy(queue, block, pinned, 8, ACCEL_TO_DEVICE));
        assert_ok(accel_fill(queue, block + 4, 'x', 2));
        assert_ok(accel_copy(queue, block, block + 6, 2, ACCEL_ON_DEVICE));
        assert_ok(accel_copy(queue, got, block, 8, ACCEL_TO_HOST));
        assert_ok(accel_synchronize(base, "test: copies"));
        assert_memory_equal(got, "7834xx78", 8);
    }
    accel_free_host(base, pinned);
    accel_free(base, block);
    close_accel(a);
}

/* --- threads --- */

typedef struct other_thread {
    accel *base;
    unsigned char *block;
    ls_status status;
} other_thread;

static void copy_in_thread(void *arg)
{
    other_thread *t = arg;
    accel_event *event = NULL;

    t->status = accel_event_create(t->base, false, &event);
    if (t->status == LS_OK)
        t->status = accel_fill(accel_queue(t->base, ACCEL_COPY), t->block, 7, 4);
    if (t->status == LS_OK)
        t->status = accel_event_record(event, accel_queue(t->base, ACCEL_COPY));
    if (t->status == LS_OK)
        t->status = accel_event_wait(event, "test: thread");
    accel_event_destroy(event);
}

/* A new thread's current card is 0; the runtime refuses queues of other cards. */
static void every_thread_selects_the_card(void **state)
{
    cuda_accel *a = open_accel(1);
    accel *base = cuda_accel_base(a);
    other_thread t = {.base = base, .block = accel_alloc(base, 4)};
    ls_thread thread = {0};

    LS_UNUSED(state);
    assert_ok(ls_thread_start(&thread, "test", copy_in_thread, &t));
    ls_thread_join(&thread);
    assert_int_equal(t.status, LS_OK);
    assert_int_equal(*(unsigned char *)gpu_host_address(t.block + 3, 1), 7);
    accel_free(base, t.block);
    close_accel(a);
}

/* --- events --- */

/* A wait of the queue of collectives announces these. */
static void an_event_that_was_not_recorded_has_happened(void **state)
{
    cuda_accel *a = open_accel(0);
    accel *base = cuda_accel_base(a);
    accel_event *event = NULL;
    bool done = false;
    size_t n_events;

    LS_UNUSED(state);
    assert_ok(accel_event_create(base, false, &event));
    assert_ok(accel_event_record(event, accel_queue(base, ACCEL_COMPUTE)));
    gpu->expects_collectives = false;
    assert_ok(accel_queue_wait(accel_queue(base, ACCEL_COPY), event, "test: recorded"));
    assert_false(gpu->expects_collectives);
    assert_ok(accel_queue_wait(accel_queue(base, ACCEL_COMMUNICATION), event, "test: recorded"));
    assert_true(gpu->expects_collectives);
    assert_ok(accel_event_wait(event, "test: recorded"));
    accel_event_destroy(event);
    n_events = gpu->n_events;
    // Neither is one that takes the place of a recorded event.
    gpu->is_lost = true; // no call of the runtime is needed
    assert_ok(accel_event_create(base, false, &event));
    assert_int_equal(gpu->n_events, n_events);
    assert_ok(accel_event_test(event, &done));
    assert_true(done);
    assert_ok(accel_event_wait(event, "test: not recorded"));
    assert_ok(accel_queue_wait(accel_queue(base, ACCEL_COPY), event, "test: not recorded"));
    gpu->is_lost = false;
    accel_event_destroy(event);
    close_accel(a);
}

static void timed_events_are_on_the_clock_of_the_host(void **state)
{
    const int64_t second = 1000 * 1000 * 1000;
    const int64_t rounding = 2000;
    cuda_accel *a = open_accel(0);
    accel *base = cuda_accel_base(a);
    ls_queue *queue = accel_queue(base, ACCEL_COMPUTE);
    accel_event *events[2];
    accel_event *untimed = NULL;
    int64_t before[2];
    int64_t after[2];
    int64_t ns[2];

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        assert_ok(accel_event_create(base, true, &events[i]));
        assert_failed(LS_EINVAL, accel_event_ns(events[i], &ns[i]), "not recorded");
        before[i] = ls_now_ns();
        assert_ok(accel_event_record(events[i], queue));
        after[i] = ls_now_ns();
        assert_ok(accel_event_ns(events[i], &ns[i]));
        // How exact it is depends on how long this process does not run.
        assert_true(ns[i] > before[i] - second && ns[i] < after[i] + second);
    }
    assert_true(ns[1] - ns[0] >= before[1] - after[0] - rounding);
    assert_true(ns[1] - ns[0] <= after[1] - before[0] + rounding);
    assert_ok(accel_event_create(base, false, &untimed));
    assert_ok(accel_event_record(untimed, queue));
    assert_failed(LS_EINVAL, accel_event_ns(untimed, &ns[0]), "not timed");
    accel_event_destroy(untimed);
    accel_event_destroy(events[0]);
    accel_event_destroy(events[1]);
    close_accel(a);
}

/* --- failures --- */

static void a_lost_card_fails_every_later_call_with_the_same_text(void **state)
{
    cuda_accel *a = open_accel(0);
    accel *base = cuda_accel_base(a);
    ls_queue *queue = accel_queue(base, ACCEL_COMPUTE);
    unsigned char *block = accel_alloc(base, 8);
    accel_event *event = NULL;
    char text[LS_ERROR_BYTES];
    size_t bytes;

    LS_UNUSED(state);
    assert_ok(accel_event_create(base, false, &event));
    assert_ok(accel_event_record(event, queue));
    gpu->lose_at = 2;
    assert_ok(accel_fill(queue, block, 0, 8));
    assert_failed(LS_ESYSTEM, accel_fill(queue, block, 0, 8),
                  "cudahost:0 (host memory, PCI 0000:01:00.0) can no longer be used by this "
                  "process: memset_async failed: error 2: unspecified launch failure");
    strcpy(text, ls_last_error());
    gpu->is_lost = false; // the runtime may succeed again, but the results are not reliable
    assert_failed(LS_ESYSTEM, accel_copy(queue, block, text, 8, ACCEL_TO_DEVICE), text);
    assert_failed(LS_ESYSTEM, accel_event_record(event, queue), text);
    assert_failed(LS_ESYSTEM, accel_event_wait(event, "test: lost"), text);
    assert_failed(LS_ESYSTEM, accel_synchronize(base, "test: lost"), text);
    assert_failed(LS_ESYSTEM, accel_memory(base, &bytes, &bytes), text);
    assert_null(accel_alloc(base, 8));
    assert_null(accel_alloc_host(base, 8));
    assert_ptr_equal(accel_of(block), base); // the host must still not dereference it
    accel_event_destroy(event);
    accel_free(base, block);
    cuda_accel_close(a);
}

static void a_failure_of_an_operator_is_reported_once_by_the_next_wait(void **state)
{
    cuda_accel *a = open_accel(0);
    accel *base = cuda_accel_base(a);
    op_failure *f = cuda_accel_failure(a);
    accel_event *event = NULL;

    LS_UNUSED(state);
    assert_ok(accel_event_create(base, false, &event));
    assert_ok(accel_event_record(event, accel_queue(base, ACCEL_COMPUTE)));
    *f = (op_failure){.state = FAILURE_WRITTEN, .op = OP_NLL, .row = 3, .value = -7, .limit = 10};
    assert_failed(LS_EINVAL, accel_event_wait(event, "test: loss"),
                  "nll: target -7 of row 3 is outside [0, 10)");
    assert_ok(accel_event_wait(event, "test: loss"));
    f->state = FAILURE_WRITTEN;
    assert_failed(LS_EINVAL, accel_synchronize(base, "test: loss"), "row 3");
    assert_ok(accel_synchronize(base, "test: loss"));
    accel_event_destroy(event);
    close_accel(a);
}

/* The loader waits for copies, in a thread of its own. */
static void a_failure_of_an_operator_is_not_reported_by_waits_for_other_queues(void **state)
{
    cuda_accel *a = open_accel(0);
    accel *base = cuda_accel_base(a);
    op_failure *f = cuda_accel_failure(a);
    accel_event *event = NULL;

    LS_UNUSED(state);
    assert_ok(accel_event_create(base, false, &event));
    *f = (op_failure){.state = FAILURE_WRITTEN, .op = OP_NLL, .row = 3, .value = -7, .limit = 10};
    for (int i = 0; i < ACCEL_QUEUES; i++) {
        assert_ok(accel_event_record(event, accel_queue(base, (accel_queue_id)i)));
        if (i != ACCEL_COMPUTE)
            assert_ok(accel_event_wait(event, "test: another queue"));
    }
    assert_ok(accel_event_record(event, accel_queue(base, ACCEL_COMPUTE)));
    assert_failed(LS_EINVAL, accel_event_wait(event, "test: loss"), "row 3");
    accel_event_destroy(event);
    close_accel(a);
}

static void writes_past_the_end_of_a_block_are_noticed_when_it_is_freed(void **state)
{
    cuda_accel *a = open_accel(0);
    accel *base = cuda_accel_base(a);
    unsigned char *block = accel_alloc(base, 10);

    LS_UNUSED(state);
#ifdef __SANITIZE_ADDRESS__
    skip(); // which ends the program at the write
#endif
    ((unsigned char *)gpu_host_address(block, 10))[10] = 1;
    accel_free(base, block);
    assert_failed(LS_ESYSTEM, accel_synchronize(base, "test: overrun"),
                  "a kernel has written past the end of a block");
    close_accel(a);
}

static void too_little_memory_is_no_loss(void **state)
{
    cuda_accel *a = open_accel(0);
    accel *base = cuda_accel_base(a);
    void *block;

    LS_UNUSED(state);
    gpu->fail_malloc_at = 1;
    assert_null(accel_alloc(base, 8));
    gpu->fail_pinned_at = 1;
    assert_null(accel_alloc_host(base, 8));
    block = accel_alloc(base, 8);
    assert_non_null(block);
    accel_free(base, block);
    close_accel(a);
}

static void an_accelerator_that_cannot_be_opened_leaves_nothing(void **state)
{
    const gpu_properties card = {.name = "host memory"};
    cuda_accel *a = NULL;
    int n_failed = 0;

    LS_UNUSED(state);
    for (uint64_t n = 1; n < 20; n++) {
        ls_status st;

        ls_alloc_fail_at(n);
        st = cuda_accel_open(0, &card, false, &a);
        ls_alloc_fail_at(0);
        n_failed += st != LS_OK;
        if (st == LS_OK)
            cuda_accel_close(a);
        assert_int_equal(gpu->n_streams + gpu->n_events + gpu->n_pinned, 0);
    }
    assert_int_equal(n_failed, 8); // the record, five streams, the clock's event, pinned memory
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_block_is_found_by_every_address_in_it, accel_testing_reset),
        cmocka_unit_test_setup(questions_about_memory_make_no_context_on_another_card,
                               accel_testing_reset),
        cmocka_unit_test_setup(memory_that_another_library_allocates_is_found_on_its_card,
                               accel_testing_reset),
        cmocka_unit_test_setup(accelerators_of_one_card_have_their_own_memory, accel_testing_reset),
        cmocka_unit_test_setup(copies_and_fills_reach_the_queue_of_their_card, accel_testing_reset),
        cmocka_unit_test_setup(every_thread_selects_the_card, accel_testing_reset),
        cmocka_unit_test_setup(an_event_that_was_not_recorded_has_happened, accel_testing_reset),
        cmocka_unit_test_setup(timed_events_are_on_the_clock_of_the_host, accel_testing_reset),
        cmocka_unit_test_setup(a_lost_card_fails_every_later_call_with_the_same_text,
                               accel_testing_reset),
        cmocka_unit_test_setup(a_failure_of_an_operator_is_reported_once_by_the_next_wait,
                               accel_testing_reset),
        cmocka_unit_test_setup(a_failure_of_an_operator_is_not_reported_by_waits_for_other_queues,
                               accel_testing_reset),
        cmocka_unit_test_setup(writes_past_the_end_of_a_block_are_noticed_when_it_is_freed,
                               accel_testing_reset),
        cmocka_unit_test_setup(too_little_memory_is_no_loss, accel_testing_reset),
        cmocka_unit_test_setup(an_accelerator_that_cannot_be_opened_leaves_nothing,
                               accel_testing_reset),
    };

    accel_testing_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
