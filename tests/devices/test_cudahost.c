/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cudahost.c - the simulated card as an accelerator: queues, events, copies, failures, and
 * that what it is there for works: host dereferences and dropped waits are noticed.
 */
#include "base/compute/accel.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "devices/cudahost.h"
#include "tensor/testing.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_SEEDS 30

static gpu_host *card;

/* A device opened with this seed and short delays. */
static ls_device *open_card(uint64_t seed)
{
    (void)cudahost_reset();
    card->seed = seed;
    card->delay_us = 200;
    return open_test_device("cudahost");
}

static int reset_card(void **state)
{
    LS_UNUSED(state);
    (void)cudahost_reset();
    return 0;
}

/* --- a call that holds a queue until the test opens it --- */

typedef struct gate {
    ls_mutex lock;
    ls_cond changed;
    bool is_open;
} gate;

static void gate_init(gate *g)
{
    ls_mutex_init(&g->lock);
    ls_cond_init(&g->changed);
    g->is_open = false;
}

static void gate_open(gate *g)
{
    ls_mutex_lock(&g->lock);
    g->is_open = true;
    ls_cond_broadcast(&g->changed);
    ls_mutex_unlock(&g->lock);
}

static void gate_wait(void *arg)
{
    gate *g = arg;

    ls_mutex_lock(&g->lock);
    while (!g->is_open)
        (void)ls_cond_wait(&g->changed, &g->lock, ls_deadline_ms(-1));
    ls_mutex_unlock(&g->lock);
}

static void gate_destroy(gate *g)
{
    ls_cond_destroy(&g->changed);
    ls_mutex_destroy(&g->lock);
}

/* --- memory --- */

static void new_memory_is_nan_and_found_by_its_address(void **state)
{
    ls_device *device = open_card(1);
    accel *a = device->accel;
    unsigned char *block = accel_alloc(a, 1000);
    unsigned char bytes[1000];

    LS_UNUSED(state);
    assert_non_null(block);
    assert_int_equal((uintptr_t)block % 256, 0);
    assert_ptr_equal(accel_of(block + 999), a);
    assert_null(accel_of(bytes));
    assert_status(LS_OK, device_read(device, bytes, block, sizeof(bytes)));
    for (size_t i = 0; i < sizeof(bytes); i++)
        assert_int_equal(bytes[i], 0xFF);
    assert_non_null(card->address(block, 1000));
    assert_null(card->address(block, 1001));
    assert_null(card->address(bytes, 1));
    accel_free(a, block);
    assert_status(LS_OK, ls_device_close(device));
    assert_null(accel_of(block));
}

/* Reads device memory in a child and returns what that wrote to its standard error. */
static void read_in_child(const float *volatile *address, char *text, size_t n)
{
    int ends[2];
    size_t used = 0;
    ssize_t got;
    int status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        ls_device *device;

        (void)dup2(ends[1], STDERR_FILENO);
        (void)signal(SIGSEGV, SIG_DFL); // not the test library's
        device = open_card(1);
        *address = accel_alloc(device->accel, 4000);
        _exit((*address)[10] == 0 ? 3 : 4);
    }
    (void)close(ends[1]);
    while (used < n - 1 && (got = read(ends[0], text + used, n - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 3));
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 4);
}

static void a_host_dereference_is_named(void **state)
{
    static const float *volatile address;
    static char text[1 << 16];

    LS_UNUSED(state);
    read_in_child(&address, text, sizeof(text));
    if (strstr(text, "cudahost: the host dereferenced device memory at D+0x") == NULL ||
        strstr(text, " (byte 40 of the block of 4000 bytes of allocation ") == NULL)
        fail_msg("the child wrote: %s", text);
}

static void a_copy_outside_of_a_block_fails(void **state)
{
    ls_device *device = open_card(1);
    ls_queue *queue = accel_queue(device->accel, ACCEL_COPY);
    char *block = accel_alloc(device->accel, 512);
    char *other = accel_alloc(device->accel, 512);
    char host[1024];

    LS_UNUSED(state);
    assert_status(LS_ESYSTEM, accel_copy(queue, host, block, 513, ACCEL_TO_HOST));
    assert_status(LS_ESYSTEM, accel_copy(queue, host, block + 100, 413, ACCEL_TO_HOST));
    assert_status(LS_ESYSTEM, accel_copy(queue, host, block, 512, ACCEL_TO_DEVICE));
    assert_status(LS_ESYSTEM, accel_copy(queue, other, block, 512, ACCEL_TO_HOST));
    assert_status(LS_ESYSTEM, accel_fill(queue, block + 512, 0, 1));
    assert_status(LS_OK, accel_copy(queue, other, block, 512, ACCEL_ON_DEVICE));
    accel_free(device->accel, block);
    assert_status(LS_ESYSTEM, accel_copy(queue, host, block, 1, ACCEL_TO_HOST));
    accel_free(device->accel, other);
    assert_status(LS_OK, ls_device_close(device));
}

static void the_asked_allocation_fails(void **state)
{
    ls_device *device = open_card(1);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    card->fail_malloc_at = 2;
    ls_tensor_destroy(tensor_of(device, LS_F32, 1, (int64_t[]){1}, (double[]){1}));
    // The pool gives its free block back and asks again.
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 1, (int64_t[]){1000}, &t));
    ls_tensor_destroy(t);
    card->fail_malloc_at = 1;
    assert_null(accel_alloc(device->accel, 8));
    assert_status(LS_OK, accel_memory(device->accel, &free_bytes, &total_bytes));
    assert_true(free_bytes > 0 && free_bytes <= total_bytes);
    assert_null(accel_alloc(device->accel, total_bytes + 1));
    assert_status(LS_OK, ls_device_close(device));
}

static void host_memory_freed_before_its_copy_is_reported(void **state)
{
    ls_device *device = open_card(1);
    accel *a = device->accel;
    void *block = accel_alloc(a, 64);
    void *host = accel_alloc_host(a, 64);
    gate g;

    LS_UNUSED(state);
    gate_init(&g);
    assert_status(LS_OK, accel_call(accel_queue(a, ACCEL_COPY), gate_wait, &g));
    assert_status(LS_OK, accel_copy(accel_queue(a, ACCEL_COPY), block, host, 64, ACCEL_TO_DEVICE));
    accel_free_host(a, host);
    gate_open(&g);
    assert_status(LS_ESYSTEM, accel_synchronize(a, "test"));
    assert_non_null(strstr(ls_last_error(), "host memory was freed while a copy of it was queued"));
    accel_free(a, block);
    assert_status(LS_OK, ls_device_close(device));
    gate_destroy(&g);
}

/* --- order --- */

typedef struct steps {
    int order[64];
    int n;
} steps;

typedef struct step {
    steps *all;
    int number;
} step;

static void take_step(void *arg)
{
    const step *s = arg;

    s->all->order[s->all->n++] = s->number;
}

static void a_queue_runs_in_the_order_of_the_calls(void **state)
{
    LS_UNUSED(state);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        ls_device *device = open_card(seed);
        steps all = {.n = 0};
        step list[64];

        for (int i = 0; i < 64; i++) {
            list[i] = (step){&all, i};
            assert_status(LS_OK, accel_call(accel_queue(device->accel, ACCEL_COMMUNICATION),
                                            take_step, &list[i]));
        }
        assert_status(LS_OK, accel_synchronize(device->accel, "test"));
        assert_int_equal(all.n, 64);
        for (int i = 0; i < 64; i++)
            assert_int_equal(all.order[i], i);
        assert_status(LS_OK, ls_device_close(device));
    }
}

/* Two queues take turns by events: the second one writes what the first one reads, and the other
 * way round. Returns whether all values are right. */
static bool pass_values(accel *a, float *block, int n)
{
    static const float source[] = {1, 2, 3, 4, 5, 6, 7, 8};
    ls_queue *copies = accel_queue(a, ACCEL_COPY);
    ls_queue *compute = accel_queue(a, ACCEL_COMPUTE);
    float got[8] = {0};
    accel_event *full = NULL;
    accel_event *empty = NULL;

    assert_true(n <= 8);
    assert_status(LS_OK, accel_event_create(a, false, &full));
    assert_status(LS_OK, accel_event_create(a, false, &empty));
    for (int i = 0; i < n; i++) {
        assert_status(LS_OK, accel_queue_wait(copies, empty, "test: block is free"));
        assert_status(LS_OK, accel_copy(copies, block, &source[i], 4, ACCEL_TO_DEVICE));
        assert_status(LS_OK, accel_event_record(full, copies));
        assert_status(LS_OK, accel_queue_wait(compute, full, "test: block is full"));
        assert_status(LS_OK, accel_copy(compute, &got[i], block, 4, ACCEL_TO_HOST));
        assert_status(LS_OK, accel_event_record(empty, compute));
    }
    assert_status(LS_OK, accel_event_wait(empty, "test: all is read"));
    assert_status(LS_OK, accel_synchronize(a, "test: end")); // a dropped wait leaves work
    accel_event_destroy(full);
    accel_event_destroy(empty);
    return memcmp(got, source, (size_t)n * sizeof(*got)) == 0;
}

static int wrong_runs_without(const char *dropped)
{
    int n_wrong = 0;

    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        ls_device *device = open_card(seed);
        float *block = accel_alloc(device->accel, 4);

        card->dropped = dropped;
        n_wrong += !pass_values(device->accel, block, 8);
        accel_free(device->accel, block);
        assert_status(LS_OK, ls_device_close(device));
    }
    return n_wrong;
}

static void events_order_two_queues(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(wrong_runs_without(NULL), 0);
}

static void a_dropped_wait_shows_in_most_runs(void **state)
{
    LS_UNUSED(state);
#ifdef __SANITIZE_THREAD__
    skip(); // a missing wait is a race, which ends the program
#endif
    assert_true(wrong_runs_without("test: block is full") >= N_SEEDS / 2);
    assert_true(wrong_runs_without("test: block is free") >= N_SEEDS / 2);
}

static void waits_are_listed_by_name(void **state)
{
    ls_device *device = open_card(1);
    accel_event *event = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, accel_event_create(device->accel, false, &event));
    for (int i = 0; i < 2; i++) {
        assert_status(LS_OK, accel_event_wait(event, "first"));
        assert_status(LS_OK,
                      accel_queue_wait(accel_queue(device->accel, ACCEL_COPY), event, "second"));
        assert_status(LS_OK, accel_synchronize(device->accel, "third"));
    }
    assert_int_equal(card->n_waits, 3);
    assert_string_equal(card->waits[0].name, "first");
    assert_string_equal(card->waits[1].name, "second");
    assert_string_equal(card->waits[2].name, "third");
    assert_int_equal(cudahost_waits_of("second"), 2);
    assert_int_equal(card->n_host_waits, 4);
    accel_event_destroy(event);
    assert_status(LS_OK, ls_device_close(device));
}

/* The event is recorded again behind a closed gate; the wait from before does not see that. */
static void a_new_recording_leaves_earlier_waits_alone(void **state)
{
    ls_device *device = open_card(1);
    accel *a = device->accel;
    ls_queue *compute = accel_queue(a, ACCEL_COMPUTE);
    accel_event *event = NULL;
    accel_event *after = NULL;
    bool done = true;
    gate g;

    LS_UNUSED(state);
    gate_init(&g);
    assert_status(LS_OK, accel_event_create(a, false, &event));
    assert_status(LS_OK, accel_event_create(a, false, &after));
    assert_status(LS_OK, accel_event_record(event, compute));
    assert_status(LS_OK, accel_queue_wait(accel_queue(a, ACCEL_COPY), event, "test"));
    assert_status(LS_OK, accel_call(compute, gate_wait, &g));
    assert_status(LS_OK, accel_event_record(event, compute));
    assert_status(LS_OK, accel_event_record(after, accel_queue(a, ACCEL_COPY)));
    assert_status(LS_OK, accel_event_wait(after, "test")); // would hang
    assert_status(LS_OK, accel_event_test(event, &done));
    assert_false(done);
    gate_open(&g);
    assert_status(LS_OK, accel_event_wait(event, "test"));
    assert_status(LS_OK, accel_event_test(event, &done));
    assert_true(done);
    accel_event_destroy(event);
    accel_event_destroy(after);
    assert_status(LS_OK, ls_device_close(device));
    gate_destroy(&g);
}

static void an_event_may_be_destroyed_while_a_queue_waits_for_it(void **state)
{
    ls_device *device = open_card(1);
    accel *a = device->accel;
    accel_event *event = NULL;
    gate g;

    LS_UNUSED(state);
    gate_init(&g);
    assert_status(LS_OK, accel_event_create(a, false, &event));
    assert_status(LS_OK, accel_call(accel_queue(a, ACCEL_COMPUTE), gate_wait, &g));
    assert_status(LS_OK, accel_event_record(event, accel_queue(a, ACCEL_COMPUTE)));
    assert_status(LS_OK, accel_queue_wait(accel_queue(a, ACCEL_COPY), event, "test"));
    accel_event_destroy(event);
    gate_open(&g);
    assert_status(LS_OK, accel_synchronize(a, "test"));
    assert_status(LS_OK, ls_device_close(device));
    gate_destroy(&g);
}

static void a_copy_reads_its_source_when_it_runs(void **state)
{
    ls_device *device = open_card(1);
    accel *a = device->accel;
    int *block = accel_alloc(a, sizeof(int));
    int *host = accel_alloc_host(a, sizeof(int));
    int got = 0;
    gate g;

    LS_UNUSED(state);
    gate_init(&g);
    *host = 1;
    assert_status(LS_OK, accel_call(accel_queue(a, ACCEL_COMPUTE), gate_wait, &g));
    assert_status(LS_OK, accel_copy(accel_queue(a, ACCEL_COMPUTE), block, host, sizeof(int),
                                    ACCEL_TO_DEVICE));
    *host = 2;
    gate_open(&g);
    assert_status(LS_OK, device_read(device, &got, block, sizeof(int)));
    assert_int_equal(got, 2);
    accel_free_host(a, host);
    accel_free(a, block);
    assert_status(LS_OK, ls_device_close(device));
    gate_destroy(&g);
}

/* --- failures --- */

/* Queues a cross entropy whose second target is out of range. */
static void queue_failure(ls_device *device)
{
    const int64_t wrong[] = {1, 7};
    ls_tensor *logits = random_tensor(device, LS_F32, 2, (int64_t[]){2, 5}, 1);
    ls_tensor *loss = unplaced_of(device, LS_F32, 0, NULL);
    ls_tensor *targets = NULL;

    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, (int64_t[]){2}, &targets));
    assert_status(LS_OK, ls_tensor_write(targets, wrong, 2));
    assert_status(LS_OK, device_run(device, &(op_call){.op = OP_CROSS_ENTROPY,
                                                       .n_in = 2,
                                                       .n_out = 2,
                                                       .in = {logits, targets},
                                                       .out = {loss}}));
    destroy_all((ls_tensor *[]){logits, targets, loss}, 3);
}

static void an_operators_failure_is_returned_by_the_next_wait_once(void **state)
{
    ls_device *device = open_card(1);
    accel *a = device->accel;
    accel_event *other = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, accel_event_create(a, false, &other));
    queue_failure(device);
    assert_status(LS_OK, accel_event_record(other, accel_queue(a, ACCEL_COPY)));
    assert_status(LS_OK, accel_event_wait(other, "test")); // another queue's
    assert_status(LS_EINVAL, device_synchronize(device, "test"));
    assert_string_equal(ls_last_error(), "cross_entropy: target 7 of row 1 is outside [0, 5)");
    assert_status(LS_OK, device_synchronize(device, "test"));
    accel_event_destroy(other);
    assert_status(LS_OK, ls_device_close(device));
}

static void a_failure_that_no_wait_has_returned_is_counted(void **state)
{
    ls_device *device = open_card(1);

    LS_UNUSED(state);
    queue_failure(device);
    assert_status(LS_OK, ls_device_close(device));
    assert_int_equal(card->n_lost_failures, 1);
}

static void a_lost_device_fails_every_call_and_blocks_none(void **state)
{
    static const char text[] = "cudahost:0 (host memory, PCI 10000000:00:00.0) can no longer be";

    LS_UNUSED(state);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        ls_device *device = open_card(seed);
        accel *a = device->accel;
        ls_tensor *t = tensor_of(device, LS_F32, 1, (int64_t[]){2}, (double[]){1, 2});
        accel_event *event = NULL;
        size_t bytes = 0;
        bool done = false;
        float got[2];

        assert_status(LS_OK, accel_event_create(a, true, &event));
        card->lose_at = 1 + seed % 5;
        for (int i = 0; i < 5; i++) {
            const ls_status st = device_fill(device, tensor_elements(t), 0, 8);

            assert_true(st == LS_OK || st == LS_ESYSTEM);
        }
        assert_status(LS_ESYSTEM, ls_tensor_read(t, got, 2));
        assert_non_null(strstr(ls_last_error(), text));
        assert_status(LS_ESYSTEM, device_synchronize(device, "test"));
        assert_status(LS_ESYSTEM, accel_event_record(event, accel_queue(a, ACCEL_COPY)));
        assert_status(LS_ESYSTEM, accel_event_test(event, &done));
        assert_status(LS_ESYSTEM, accel_memory(a, &bytes, &bytes));
        assert_null(accel_alloc(a, 8));
        assert_status(LS_ESYSTEM, ls_tensor_write(t, got, 2));
        assert_non_null(strstr(ls_last_error(), text));
        accel_event_destroy(event);
        ls_tensor_destroy(t);
        assert_status(LS_OK, ls_device_close(device));
    }
}

static void a_device_that_cannot_be_made_leaves_nothing(void **state)
{
    int n_failed = 0;

    LS_UNUSED(state);
    (void)cudahost_reset();
    for (uint64_t n = 1; n <= 16; n++) {
        const ls_device_options opt = {.size = sizeof(opt), .name = "cudahost"};
        ls_device *device = NULL;
        ls_status st;

        ls_alloc_fail_at(n);
        st = ls_device_open(&opt, &device);
        ls_alloc_fail_at(0);
        n_failed += st != LS_OK;
        if (st != LS_OK)
            assert_status(LS_ENOMEM, st);
        assert_status(LS_OK, ls_device_close(device));
    }
    assert_true(n_failed >= 4); // the device, its pool, its state, its memory
}

static void queued_work_without_memory_fails_and_leaves_nothing(void **state)
{
    ls_device *device = open_card(1);
    ls_tensor *x = tensor_of(device, LS_F32, 1, (int64_t[]){2}, (double[]){1, -2});
    int n_failed = 0;

    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 12; n++) {
        ls_tensor *y = unplaced_of(device, LS_F32, 1, (int64_t[]){2});
        op_call call = {.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}};
        ls_status st;

        ls_alloc_fail_at(n);
        st = device_run(device, &call);
        ls_alloc_fail_at(0);
        n_failed += st != LS_OK;
        if (st == LS_OK)
            assert_elements(y, (double[]){1, 0}, 0);
        else
            assert_status(LS_ENOMEM, st);
        ls_tensor_destroy(y);
    }
    assert_true(n_failed > 0);
    ls_tensor_destroy(x);
    assert_status(LS_OK, ls_device_close(device));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_memory_is_nan_and_found_by_its_address),
        cmocka_unit_test(a_host_dereference_is_named),
        cmocka_unit_test(a_copy_outside_of_a_block_fails),
        cmocka_unit_test(the_asked_allocation_fails),
        cmocka_unit_test(host_memory_freed_before_its_copy_is_reported),
        cmocka_unit_test(a_queue_runs_in_the_order_of_the_calls),
        cmocka_unit_test(events_order_two_queues),
        cmocka_unit_test(a_dropped_wait_shows_in_most_runs),
        cmocka_unit_test(waits_are_listed_by_name),
        cmocka_unit_test(a_new_recording_leaves_earlier_waits_alone),
        cmocka_unit_test(an_event_may_be_destroyed_while_a_queue_waits_for_it),
        cmocka_unit_test(a_copy_reads_its_source_when_it_runs),
        cmocka_unit_test(an_operators_failure_is_returned_by_the_next_wait_once),
        cmocka_unit_test(a_failure_that_no_wait_has_returned_is_counted),
        cmocka_unit_test(a_lost_device_fails_every_call_and_blocks_none),
        cmocka_unit_test(a_device_that_cannot_be_made_leaves_nothing),
        cmocka_unit_test(queued_work_without_memory_fails_and_leaves_nothing),
    };

    card = cudahost();
    if (card == NULL) {
        print_error("%s\n", ls_last_error());
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, reset_card);
}
