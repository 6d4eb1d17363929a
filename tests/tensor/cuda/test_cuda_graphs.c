/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_graphs.c - the accelerator of the CUDA device with graphs: what is recorded and when it
 * runs, how graphs are used again, and what a failure becomes.
 */
#include "tensor/cuda/accel_testing.h"

#include "base/thread.h"

#include <string.h>

enum { BYTES = 8 };

typedef struct setup {
    cuda_accel *a;
    accel *base;
    ls_queue *queue; /* ACCEL_COMPUTE */
    unsigned char *block;
    unsigned char *bytes; /* of the block, as work sees them */
} setup;

static setup open_setup(void)
{
    setup s = {.a = accel_testing_open(0, true)};

    s.base = cuda_accel_base(s.a);
    s.queue = accel_queue(s.base, ACCEL_COMPUTE);
    s.block = accel_alloc(s.base, BYTES);
    assert_non_null(s.block);
    s.bytes = gpu_host_address(s.block, BYTES);
    return s;
}

static void close_setup(setup *s)
{
    accel_free(s->base, s->block);
    close_accel(s->a);
}

static void synchronize(const setup *s)
{
    assert_ok(accel_synchronize(s->base, "test: end of a segment"));
}

/* --- boundaries --- */

typedef struct other_work {
    accel_event *event;   /* of ACCEL_COPY */
    unsigned char *freed; /* at most once */
    unsigned char on_host[BYTES];
} other_work;

static void record_event(const setup *s, other_work *w)
{
    assert_ok(accel_event_record(w->event, s->queue));
}

static void wait_in_queue(const setup *s, other_work *w)
{
    assert_ok(accel_queue_wait(s->queue, w->event, "test: queue"));
}

static void wait_for_event(const setup *s, other_work *w)
{
    LS_UNUSED(s);
    assert_ok(accel_event_wait(w->event, "test: event"));
}

static void wait_for_all(const setup *s, other_work *w)
{
    LS_UNUSED(w);
    synchronize(s);
}

static void read_block(const setup *s, other_work *w)
{
    assert_ok(accel_copy(s->queue, w->on_host, s->block, BYTES, ACCEL_TO_HOST));
    assert_int_equal(w->on_host[0], 'x');
}

static void write_block(const setup *s, other_work *w)
{
    assert_ok(accel_copy(s->queue, s->block + 4, w->on_host, 4, ACCEL_TO_DEVICE));
}

static void free_block(const setup *s, other_work *w)
{
    accel_free(s->base, w->freed);
    w->freed = NULL;
}

static void forget(const setup *s, other_work *w)
{
    LS_UNUSED(w);
    cuda_accel_forget_graphs(s->a);
}

static void (*const boundaries[])(const setup *s, other_work *w) = {
    record_event, wait_in_queue, wait_for_event, wait_for_all,
    read_block,   write_block,   free_block,     forget,
};

static void recorded_work_runs_before_others_can_see_its_results(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(boundaries); i++) {
        setup s = open_setup();
        other_work w = {.freed = accel_alloc(s.base, BYTES)};

        assert_ok(accel_event_create(s.base, false, &w.event));
        assert_ok(accel_event_record(w.event, accel_queue(s.base, ACCEL_COPY)));
        assert_ok(accel_fill(s.queue, s.block, 'x', BYTES));
        assert_int_equal(s.bytes[0], 0xff);
        boundaries[i](&s, &w);
        assert_int_equal(s.bytes[0], 'x');
        assert_int_equal(cuda_accel_count_graphs(s.a).n_launches, 1);
        accel_event_destroy(w.event);
        accel_free(s.base, w.freed);
        close_setup(&s);
    }
}

/* The order of a segment does not depend on when other threads ask. */
static void questions_do_not_end_a_segment(void **state)
{
    setup s = open_setup();
    unsigned char *pinned = accel_alloc_host(s.base, BYTES);
    unsigned char *other = accel_alloc(s.base, BYTES);
    accel_event *event = NULL;
    size_t bytes;
    bool done;

    LS_UNUSED(state);
    assert_ok(accel_event_create(s.base, false, &event));
    assert_ok(accel_event_record(event, s.queue));
    assert_ok(accel_fill(s.queue, s.block, 'x', BYTES));
    assert_ok(accel_event_test(event, &done));
    assert_ok(accel_memory(s.base, &bytes, &bytes));
    assert_ptr_equal(accel_of(s.block), s.base);
    assert_ok(accel_copy(accel_queue(s.base, ACCEL_COPY), other, pinned, BYTES, ACCEL_TO_DEVICE));
    assert_ok(accel_event_record(event, accel_queue(s.base, ACCEL_COPY)));
    s.base->ops->bind(s.base);
    assert_int_equal(s.bytes[0], 0xff);
    synchronize(&s);
    assert_int_equal(s.bytes[0], 'x');
    accel_event_destroy(event);
    accel_free(s.base, other);
    accel_free_host(s.base, pinned);
    close_setup(&s);
}

static void add_one(void *arg)
{
    ++*(unsigned char *)arg;
}

static void a_segment_runs_in_the_order_of_its_calls(void **state)
{
    setup s = open_setup();

    LS_UNUSED(state);
    assert_ok(accel_fill(s.queue, s.block, 'a', BYTES));
    assert_ok(accel_fill(s.queue, s.block + 2, 'x', 2));
    assert_ok(accel_call(s.queue, add_one, s.bytes + 2));
    assert_ok(accel_copy(s.queue, s.block + 4, s.block + 1, 3, ACCEL_ON_DEVICE));
    synchronize(&s);
    assert_memory_equal(s.bytes, "aayxayxa", BYTES);
    assert_int_equal(cuda_accel_count_graphs(s.a).n_launches, 1);
    close_setup(&s);
}

static void a_long_segment_is_launched_in_parts(void **state)
{
    setup s = open_setup();

    LS_UNUSED(state);
    for (int i = 0; i < 10000; i++)
        assert_ok(accel_fill(s.queue, s.block, i & 127, BYTES));
    assert_in_range(cuda_accel_count_graphs(s.a).n_launches, 2, 10);
    synchronize(&s);
    assert_int_equal(s.bytes[0], 9999 & 127);
    close_setup(&s);
}

/* --- use of executable graphs --- */

static graph_counts run_segment(const setup *s, int value, size_t n_first)
{
    assert_ok(accel_fill(s->queue, s->block, value, n_first));
    assert_ok(accel_fill(s->queue, s->block + 7, value + 1, 1));
    synchronize(s);
    assert_int_equal(s->bytes[0], value);
    assert_int_equal(s->bytes[7], value + 1);
    return cuda_accel_count_graphs(s->a);
}

static void a_segment_updates_the_graph_of_an_earlier_one(void **state)
{
    setup s = open_setup();
    graph_counts n = {0};

    LS_UNUSED(state);
    for (int i = 0; i < 5; i++) {
        n = run_segment(&s, 10 * i, 1);
        n = run_segment(&s, 10 * i + 5, 2); // another segment
    }
    assert_int_equal(n.n_launches, 10);
    assert_int_equal(n.n_instantiated, 2);
    close_setup(&s);
}

static void a_graph_that_refuses_the_update_is_made_anew(void **state)
{
    setup s = open_setup();

    LS_UNUSED(state);
    (void)run_segment(&s, 1, 1);
    gpu->refuse_update_at = 1;
    assert_int_equal(run_segment(&s, 2, 1).n_instantiated, 2);
    assert_int_equal(gpu->n_graphs, 1);
    assert_int_equal(run_segment(&s, 3, 1).n_instantiated, 2);
    close_setup(&s);
}

static void the_number_of_graphs_is_bounded(void **state)
{
    setup s = open_setup();
    unsigned char *large = accel_alloc(s.base, 1000);
    const unsigned char *bytes = gpu_host_address(large, 1000);

    LS_UNUSED(state);
    for (size_t n = 1; n < 1000; n++) {
        assert_ok(accel_fill(s.queue, large, (int)(n & 127), n));
        synchronize(&s);
        assert_int_equal(bytes[n - 1], n & 127);
        assert_in_range(gpu->n_graphs, 1, 64);
    }
    assert_int_equal(cuda_accel_count_graphs(s.a).n_instantiated, 999);
    cuda_accel_forget_graphs(s.a);
    assert_int_equal(gpu->n_graphs, 0);
    accel_free(s.base, large);
    close_setup(&s);
}

static void graphs_are_dropped_when_there_is_no_memory_for_another(void **state)
{
    setup s = open_setup();

    LS_UNUSED(state);
    (void)run_segment(&s, 1, 1);
    (void)run_segment(&s, 2, 2);
    assert_int_equal(gpu->n_graphs, 2);
    gpu->fail_instantiate_at = 1;
    (void)run_segment(&s, 3, 3);
    assert_int_equal(gpu->n_graphs, 1);
    close_setup(&s);
}

/* --- kernels --- */

typedef struct store_args {
    unsigned char *to;
    unsigned char value;
} store_args;

static void store(const void *args, unsigned block, unsigned n_blocks, unsigned thread,
                  unsigned n_threads)
{
    const store_args *a = args;

    LS_UNUSED(block);
    LS_UNUSED(n_blocks);
    LS_UNUSED(thread);
    LS_UNUSED(n_threads);
    *a->to = a->value;
}

static const gpu_kernel store_kernel = {"store", (gpu_function)store, NULL, sizeof(store_args)};

/* As cu_launch() of the device. */
static ls_status launch(const setup *s, unsigned char *to, unsigned char value)
{
    const graph_node node = {.kind = GRAPH_KERNEL, .code = 1};
    store_args args = {.to = to, .value = value};
    ls_status st = cuda_accel_begin(s->a, &node);

    if (st != LS_OK)
        return st;
    st = cuda_accel_end(s->a, gpu_launch(&store_kernel, 1, 1, &args, s->queue->native), "store");
    args.value = 0; // they were copied
    return st;
}

/* The driver may load its code, which waits and takes memory. */
static void the_first_launch_of_a_kernel_is_not_recorded(void **state)
{
    setup s = open_setup();

    LS_UNUSED(state);
    assert_ok(accel_fill(s.queue, s.block, 'a', BYTES));
    assert_ok(launch(&s, s.block, 1));
    assert_memory_equal(s.bytes, "\1aaaaaaa", BYTES); // after what was recorded before
    assert_ok(accel_fill(s.queue, s.block + 1, 'b', 1));
    assert_memory_equal(s.bytes, "\1baaaaaa", BYTES);
    synchronize(&s);
    assert_ok(launch(&s, s.block, 2));
    assert_int_equal(s.bytes[0], 1);
    synchronize(&s);
    assert_int_equal(s.bytes[0], 2);
    close_setup(&s);
}

/* For plans that are measured, and libraries that start. */
static void work_between_pause_and_resume_runs_at_once(void **state)
{
    setup s = open_setup();

    LS_UNUSED(state);
    assert_ok(accel_fill(s.queue, s.block, 'a', BYTES));
    assert_ok(cuda_accel_pause(s.a));
    assert_int_equal(gpu_stream_synchronize(s.queue->native), 0);
    assert_ok(accel_fill(s.queue, s.block, 'b', 1));
    synchronize(&s);
    assert_ok(accel_fill(s.queue, s.block + 1, 'c', 1));
    assert_memory_equal(s.bytes, "bcaaaaaa", BYTES);
    cuda_accel_resume(s.a);
    assert_ok(accel_fill(s.queue, s.block, 'd', 1));
    assert_int_equal(s.bytes[0], 'b');
    close_setup(&s);
}

/* --- failures --- */

static void a_failed_capture_names_the_operator_and_ends_the_use_of_the_card(void **state)
{
    setup s = open_setup();
    char text[LS_ERROR_BYTES];

    LS_UNUSED(state);
    assert_ok(launch(&s, s.block, 1));
    synchronize(&s);
    assert_ok(launch(&s, s.block, 2));
    cuda_accel_name_operator(s.a, OP_NLL);
    gpu->fail_record_at = 1;
    assert_failed(LS_ESYSTEM, launch(&s, s.block + 1, 2),
                  "cudahost:0: the CUDA graph of the operators up to nll failed: store: error");
    assert_failed(LS_ESYSTEM, accel_fill(s.queue, s.block, 0, 1),
                  "without --cuda-graph and LOCKSTEP_CUDA_GRAPH");
    strcpy(text, ls_last_error());
    assert_failed(LS_ESYSTEM, accel_synchronize(s.base, "test: failed"), text);
    assert_failed(LS_ESYSTEM, launch(&s, s.block, 3), text);
    assert_int_equal(s.bytes[0], 1);
    close_setup(&s);
}

/* A library that makes such a call returns a status of its own. */
static void a_call_that_cannot_be_recorded_is_found_after_it(void **state)
{
    setup s = open_setup();
    const graph_node node = {.kind = GRAPH_COPY};

    LS_UNUSED(state);
    cuda_accel_name_operator(s.a, OP_NLL);
    assert_ok(cuda_accel_begin(s.a, &node));
    assert_int_not_equal(gpu_stream_synchronize(s.queue->native), 0);
    assert_failed(LS_ESYSTEM, cuda_accel_end(s.a, 0, "cuDNN"), "up to nll failed");
    close_setup(&s);
}

/* An argument that the runtime refuses, for example. */
static void a_failed_launch_leaves_the_rest_of_its_segment(void **state)
{
    setup s = open_setup();
    const graph_node node = {.kind = GRAPH_COPY};

    LS_UNUSED(state);
    assert_ok(accel_fill(s.queue, s.block, 'a', BYTES));
    assert_ok(cuda_accel_begin(s.a, &node));
    assert_failed(LS_ENOMEM, cuda_accel_end(s.a, 1, "memcpy_async"), "memcpy_async failed");
    assert_ok(accel_fill(s.queue, s.block, 'b', 1));
    synchronize(&s);
    assert_memory_equal(s.bytes, "baaaaaaa", BYTES);
    close_setup(&s);
}

static void a_card_that_is_lost_in_a_graph_is_reported_as_lost(void **state)
{
    setup s = open_setup();

    LS_UNUSED(state);
    assert_ok(accel_fill(s.queue, s.block, 'a', BYTES));
    gpu->lose_at = 1;
    assert_failed(LS_ESYSTEM, accel_synchronize(s.base, "test: lost"),
                  "can no longer be used by this process: graph_launch failed");
    gpu->is_lost = false;
    assert_failed(LS_ESYSTEM, accel_fill(s.queue, s.block, 'a', BYTES), "graph_launch failed");
    close_setup(&s);
}

static accel *the_accel;

/* As a call of another thread at this moment. */
static void find_loss(void)
{
    size_t bytes;

    gpu->is_lost = true;
    assert_int_equal(accel_memory(the_accel, &bytes, &bytes), LS_ESYSTEM);
    gpu->is_lost = false;
    gpu->in_capture_begin = NULL;
}

/* No lock is left: the calls after it fail, and do not wait. */
static void a_loss_that_is_found_while_a_segment_begins_fails_the_call(void **state)
{
    setup s = open_setup();

    LS_UNUSED(state);
    the_accel = s.base;
    gpu->in_capture_begin = find_loss;
    assert_failed(LS_ESYSTEM, accel_fill(s.queue, s.block, 'a', BYTES), "memory_info failed");
    assert_failed(LS_ESYSTEM, accel_synchronize(s.base, "test: lost"), "memory_info failed");
    close_setup(&s);
}

static void work_that_nothing_waited_for_runs_before_the_accelerator_is_closed(void **state)
{
    cuda_accel *a = accel_testing_open(0, true);
    accel *base = cuda_accel_base(a);
    unsigned char on_host[2] = {0};

    LS_UNUSED(state);
    assert_ok(accel_call(accel_queue(base, ACCEL_COMPUTE), add_one, on_host));
    assert_int_equal(on_host[0], 0);
    close_accel(a);
    assert_int_equal(on_host[0], 1);
}

/* --- threads --- */

enum { ROUNDS = 200 };

typedef struct worker {
    const setup *s;
    unsigned char *at; /* its own byte of the block */
    ls_status status;
    int n_wrong;
} worker;

static void record_in_thread(void *arg)
{
    worker *w = arg;
    accel_event *event = NULL;

    w->status = accel_event_create(w->s->base, false, &event);
    if (w->status == LS_OK)
        w->status = accel_event_record(event, w->s->queue);
    accel_event_destroy(event);
}

static void any_thread_may_end_a_segment(void **state)
{
    setup s = open_setup();
    worker w = {.s = &s};
    ls_thread thread = {.started = false};

    LS_UNUSED(state);
    assert_ok(accel_fill(s.queue, s.block, 'a', BYTES));
    assert_ok(ls_thread_start(&thread, "records", record_in_thread, &w));
    ls_thread_join(&thread);
    assert_int_equal(w.status, LS_OK);
    assert_int_equal(s.bytes[0], 'a');
    close_setup(&s);
}

/* Adds one to its byte with an own segment for each round, or none: others end it. */
static void work(void *arg)
{
    worker *w = arg;
    accel_event *event = NULL;

    w->status = accel_event_create(w->s->base, false, &event);
    for (int i = 0; i < ROUNDS && w->status == LS_OK; i++) {
        const unsigned char value = (unsigned char)i;

        w->status = launch(w->s, w->at, value);
        if (w->status == LS_OK)
            w->status = accel_call(w->s->queue, add_one, w->at);
        if (w->status == LS_OK)
            w->status = accel_event_record(event, w->s->queue);
        if (w->status == LS_OK)
            w->status = i % 2 == 0 ? accel_event_wait(event, "test: worker")
                                   : accel_synchronize(w->s->base, "test: worker");
        w->n_wrong += *w->at != (unsigned char)(value + 1);
    }
    accel_event_destroy(event);
}

static void threads_that_queue_work_at_the_same_time_keep_their_order(void **state)
{
    setup s = open_setup();
    worker workers[3];
    ls_thread threads[LS_COUNT_OF(workers)] = {{.started = false}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(workers); i++) {
        workers[i] = (worker){.s = &s, .at = s.bytes + i};
        assert_ok(ls_thread_start(&threads[i], "works", work, &workers[i]));
    }
    for (size_t i = 0; i < LS_COUNT_OF(workers); i++) {
        ls_thread_join(&threads[i]);
        assert_int_equal(workers[i].status, LS_OK);
        assert_int_equal(workers[i].n_wrong, 0);
    }
    close_setup(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_work_runs_before_others_can_see_its_results),
        cmocka_unit_test(questions_do_not_end_a_segment),
        cmocka_unit_test(a_segment_runs_in_the_order_of_its_calls),
        cmocka_unit_test(a_long_segment_is_launched_in_parts),
        cmocka_unit_test(a_segment_updates_the_graph_of_an_earlier_one),
        cmocka_unit_test(a_graph_that_refuses_the_update_is_made_anew),
        cmocka_unit_test(the_number_of_graphs_is_bounded),
        cmocka_unit_test(graphs_are_dropped_when_there_is_no_memory_for_another),
        cmocka_unit_test(the_first_launch_of_a_kernel_is_not_recorded),
        cmocka_unit_test(work_between_pause_and_resume_runs_at_once),
        cmocka_unit_test(a_failed_capture_names_the_operator_and_ends_the_use_of_the_card),
        cmocka_unit_test(a_call_that_cannot_be_recorded_is_found_after_it),
        cmocka_unit_test(a_failed_launch_leaves_the_rest_of_its_segment),
        cmocka_unit_test(a_card_that_is_lost_in_a_graph_is_reported_as_lost),
        cmocka_unit_test(a_loss_that_is_found_while_a_segment_begins_fails_the_call),
        cmocka_unit_test(work_that_nothing_waited_for_runs_before_the_accelerator_is_closed),
        cmocka_unit_test(any_thread_may_end_a_segment),
        cmocka_unit_test(threads_that_queue_work_at_the_same_time_keep_their_order),
    };

    accel_testing_begin();
    return cmocka_run_group_tests(tests, accel_testing_reset, NULL);
}
