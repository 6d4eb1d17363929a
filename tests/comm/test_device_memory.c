/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_memory.c - operations on the memory of an accelerator: which memory is accepted, the
 * order of operations and queues, and failures. The conformance suite checks the results
 * (on_device.h).
 */
#include "comm/on_device.h"
#include "comm/scene.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "devices/cudahost.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 20011 /* elements; some pieces of 16 KiB */

/* A block of device memory and its copy in page-locked memory. */
typedef struct block {
    float *device;
    float *host;
} block;

static ls_status make_block(block *b, size_t count)
{
    accel *a = on_device_accel();

    LS_CHECK(a != NULL);
    b->device = accel_alloc(a, count * sizeof(float));
    b->host = accel_alloc_host(a, count * sizeof(float));
    LS_CHECK(b->device != NULL && b->host != NULL);
    return LS_OK;
}

static void free_block(block *b)
{
    accel_free(on_device_accel(), b->device);
    accel_free_host(on_device_accel(), b->host);
}

static ls_queue *queue_of(accel_queue_id id)
{
    return accel_queue(on_device_accel(), id);
}

/* Queues the write of `value` to all elements. */
static ls_status write_all(block *b, size_t count, float value, ls_queue *queue)
{
    for (size_t i = 0; i < count; i++)
        b->host[i] = value;
    return accel_copy(queue, b->device, b->host, count * sizeof(float), ACCEL_TO_DEVICE);
}

/* Reads in `queue`; every element is `value`. */
static ls_status check_all(const block *b, size_t count, float value, ls_queue *queue)
{
    LS_TRY(accel_copy(queue, b->host, b->device, count * sizeof(float), ACCEL_TO_HOST));
    LS_TRY(accel_synchronize(queue->accel, "tests: the result"));
    for (size_t i = 0; i < count; i++) {
        if (b->host[i] != value)
            return ls_fail(LS_EINTERNAL, "element %zu is %g, not %g", i, (double)b->host[i],
                           (double)value);
    }
    return LS_OK;
}

static ls_status begin(const ls_test_rank *self, ls_comm **comm, block *b)
{
    LS_TRY(make_block(b, COUNT));
    return ls_test_init(self, comm);
}

static bool run(int n, ls_test_body body, scene *s)
{
    const ls_test_job job = {
        .n = n, .body = body, .arg = s, .timeout_ms = 20000, .env = {"LOCKSTEP_SEGMENT=4096"}};

    return ls_test_ranks(&job, NULL);
}

/* --- arguments --- */

static ls_status refuse_body(const ls_test_rank *self, void *arg)
{
    float x[4] = {0};
    ls_comm *comm;
    block b;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &b));
    LS_CHECK(ls_all_reduce(comm, x, b.device, 4, LS_F32, LS_SUM, NULL) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "src is in the memory of the host, dst in that of cudahost") !=
             NULL);
    LS_CHECK(ls_all_reduce(comm, b.device, x, 4, LS_F32, LS_SUM, NULL) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "dst in that of the host") != NULL);
    // An unused pointer may be anything, and no data has no kind of memory.
    if (self->rank == 0)
        LS_TRY(ls_broadcast(comm, b.device, b.device, 0, LS_F32, 0, NULL));
    else
        LS_TRY(ls_broadcast(comm, x, x, 0, LS_F32, 0, NULL));
    LS_TRY(write_all(&b, 4, (float)self->rank, queue_of(ACCEL_COMPUTE)));
    LS_TRY(ls_reduce(comm, b.device, self->rank == 0 ? b.device : x, 4, LS_F32, LS_SUM, 0, NULL));
    free_block(&b);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void buffers_of_two_kinds_are_refused(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, refuse_body, NULL));
}

static ls_status two_kinds_body(const ls_test_rank *self, void *arg)
{
    float x[4] = {0};
    ls_comm *comm;
    block b;

    LS_TRY(begin(self, &comm, &b));
    LS_TRY(write_all(&b, 4, 1, queue_of(ACCEL_COMPUTE)));
    LS_TRY(scene_note(arg, self->rank,
                      ls_all_reduce(comm, self->rank == 0 ? b.device : x,
                                    self->rank == 0 ? b.device : x, 4, LS_F32, LS_SUM, NULL)));
    free_block(&b);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void ranks_with_memory_of_two_kinds_are_named(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    assert_true(run(2, two_kinds_body, s));
    for (int r = 0; r < 2; r++) {
        scene_assert_failure(s, r, LS_EMISMATCH, "(sum, 4 float32 on device)");
        scene_assert_failure(s, r, LS_EMISMATCH, "(sum, 4 float32)");
    }
    scene_destroy(s);
}

/* --- one rank --- */

static ls_status alone_body(const ls_test_rank *self, void *arg)
{
    ls_queue *compute = queue_of(ACCEL_COMPUTE);
    ls_work *work;
    ls_comm *comm;
    block b, to;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &b));
    LS_TRY(make_block(&to, COUNT));
    LS_TRY(write_all(&b, COUNT, 6, compute));
    LS_TRY(ls_all_reduce(comm, b.device, to.device, COUNT, LS_F32, LS_AVG, NULL));
    LS_TRY(check_all(&to, COUNT, 6, queue_of(ACCEL_COPY)));
    LS_TRY(comm_average(comm, to.device, COUNT, LS_F32, 1.5, &work));
    LS_TRY(ls_work_wait_on(work, compute));
    LS_TRY(check_all(&to, COUNT, 4, compute));
    free_block(&b);
    free_block(&to);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_group_of_one_rank_copies_and_divides(void **state)
{
    LS_UNUSED(state);
    assert_true(run(1, alone_body, NULL));
}

/* --- order --- */

/* Both copies to `b` are queued only; the second in the queue that the group follows. */
static ls_status queue_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    block b;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &b));
    for (int round = 0; round < 20; round++) {
        const bool is_set = round % 2 == 0;

        ls_comm_set_queue(comm, is_set ? queue_of(ACCEL_COPY) : NULL);
        LS_TRY(write_all(&b, COUNT, (float)round, queue_of(is_set ? ACCEL_COPY : ACCEL_COMPUTE)));
        LS_TRY(ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_SUM, NULL));
        LS_TRY(check_all(&b, COUNT, (float)(2 * round), queue_of(ACCEL_COMMUNICATION)));
    }
    free_block(&b);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void operations_follow_the_queue_of_the_group(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, queue_body, NULL));
}

/* Host operations that are called after device operations start after them on every rank; the
 * messages of a tag stay in order. */
static ls_status mixed_body(const ls_test_rank *self, void *arg)
{
    enum { ROUNDS = 10, EACH = 3 };
    ls_work *works[ROUNDS][EACH];
    float x[ROUNDS] = {0}, y[ROUNDS] = {0};
    const int other = 1 - self->rank;
    block b[ROUNDS];
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < ROUNDS; i++) {
        x[i] = (float)(self->rank + i);
        LS_TRY(make_block(&b[i], COUNT));
        LS_TRY(write_all(&b[i], COUNT, x[i], queue_of(ACCEL_COMPUTE)));
        LS_TRY(ls_all_reduce(comm, b[i].device, b[i].device, COUNT, LS_F32, LS_SUM, &works[i][0]));
        LS_TRY(ls_all_reduce(comm, &x[i], &x[i], 1, LS_F32, LS_SUM, &works[i][1]));
        if (self->rank == 0)
            LS_TRY(ls_send(comm, i % 2 == 0 ? b[i].device : &x[i], 0, LS_F32, 1, 1, &works[i][2]));
        else
            LS_TRY(ls_recv(comm, &y[i], 0, LS_F32, 0, 1, &works[i][2]));
    }
    for (int i = ROUNDS - 1; i >= 0; i--) {
        LS_TRY(ls_work_wait(works[i][1]));
        LS_CHECK(x[i] == (float)(1 + 2 * i));
        LS_TRY(ls_work_wait_on(works[i][0], queue_of(ACCEL_COMPUTE)));
        LS_TRY(check_all(&b[i], COUNT, (float)(1 + 2 * i), queue_of(ACCEL_COMPUTE)));
        LS_TRY(ls_work_wait(works[i][2]));
    }
    // Device and host memory take turns as the source of messages of one tag.
    for (int i = 0; i < ROUNDS; i++) {
        x[i] = (float)(100 * self->rank + i);
        LS_TRY(write_all(&b[i], COUNT, x[i], queue_of(ACCEL_COMPUTE)));
        LS_TRY(ls_send(comm, i % 2 == 0 ? b[i].device : &x[i], 1, LS_F32, other, 7, &works[i][0]));
    }
    for (int i = 0; i < ROUNDS; i++) {
        LS_TRY(ls_recv(comm, &y[i], 1, LS_F32, other, 7, NULL));
        LS_CHECK(y[i] == (float)(100 * other + i));
    }
    for (int i = 0; i < ROUNDS; i++) {
        LS_TRY(ls_work_wait(works[i][0]));
        free_block(&b[i]);
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static void host_operations_keep_their_order_behind_device_operations(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, mixed_body, NULL));
}

/* --- waiting in a queue --- */

typedef struct gate {
    atomic_bool is_open;
} gate;

static void pass_gate(void *arg)
{
    gate *g = arg;

    while (!atomic_load(&g->is_open))
        (void)usleep(100);
}

/* The compute queue is held while the call that orders it returns. */
static ls_status wait_on_body(const ls_test_rank *self, void *arg)
{
    gate held = {.is_open = false};
    ls_queue *compute = queue_of(ACCEL_COMPUTE);
    ls_work *work;
    ls_comm *comm;
    block b;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &b));
    LS_TRY(write_all(&b, COUNT, 3, compute));
    LS_TRY(ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_SUM, &work));
    LS_TRY(accel_call(compute, pass_gate, &held));
    LS_TRY(ls_work_wait_on(work, compute));
    atomic_store(&held.is_open, true);
    LS_TRY(check_all(&b, COUNT, 6, compute));
    // Also of an operation that a wait of this thread was to progress.
    atomic_store(&held.is_open, false);
    LS_TRY(ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_AVG, ls_work_waited(&work)));
    LS_TRY(accel_call(compute, pass_gate, &held));
    LS_TRY(ls_work_wait_on(work, compute));
    atomic_store(&held.is_open, true);
    LS_TRY(check_all(&b, COUNT, 6, compute));
    // The group may be destroyed when the queue has been ordered.
    LS_TRY(ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_SUM, &work));
    LS_TRY(ls_work_wait_on(work, compute));
    ls_comm_destroy(comm);
    LS_TRY(check_all(&b, COUNT, 12, compute));
    free_block(&b);
    return LS_OK;
}

static void wait_on_orders_a_queue_and_does_not_wait_for_it(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, wait_on_body, NULL));
}

/* --- failures --- */

static ls_status killed_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    ls_comm *comm;
    block b;

    LS_TRY(begin(self, &comm, &b));
    LS_TRY(write_all(&b, COUNT, 1, queue_of(ACCEL_COMPUTE)));
    LS_TRY(ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_SUM, NULL));
    atomic_store(&s->pids[self->rank], (int)getpid());
    if (self->rank == 1) {
        scene_wait_for_all(s, self->size);
        atomic_store(&s->event_ms, ls_now_ms());
        (void)raise(SIGKILL);
    }
    LS_TRY(scene_note(s, self->rank,
                      ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    free_block(&b);
    return LS_OK;
}

static void a_killed_rank_is_named_in_time(void **state)
{
    scene *s = scene_create();
    const ls_test_job job = {.n = 3, .body = killed_body, .arg = s};
    ls_test_outcome outcomes[3];

    LS_UNUSED(state);
    (void)ls_test_ranks(&job, outcomes);
    for (int r = 0; r < 3; r += 2) {
        if (outcomes[r].code != 0)
            fail_msg("rank %d: %s", r, outcomes[r].text);
        scene_assert_failure(s, r, LS_EPEER, "rank 1");
        scene_assert_in_time(s, r);
    }
    scene_destroy(s);
}

static ls_status late_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    block b;

    LS_TRY(begin(self, &comm, &b));
    LS_TRY(write_all(&b, COUNT, 1, queue_of(ACCEL_COMPUTE)));
    if (self->rank == 0)
        LS_TRY(scene_note(arg, 0,
                          ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_SUM, NULL)));
    else
        while (ls_comm_status(comm) == LS_OK)
            (void)usleep(1000);
    ls_comm_destroy(comm);
    free_block(&b);
    return LS_OK;
}

static void a_timeout_names_the_operation_and_the_late_rank(void **state)
{
    scene *s = scene_create();
    const ls_test_job job = {.n = 2, .body = late_body, .arg = s, .timeout_ms = 300};

    LS_UNUSED(state);
    assert_true(ls_test_ranks(&job, NULL));
    scene_assert_failure(s, 0, LS_EDEADLINE, "20011 float32 on device)");
    scene_assert_failure(s, 0, LS_EDEADLINE, "not arrived 1 ");
    scene_destroy(s);
}

/* The device of rank 1 is lost in the middle of the operation. */
static ls_status lost_body(const ls_test_rank *self, void *arg)
{
    gpu_host *card = cudahost();
    ls_comm *comm;
    block b;

    LS_CHECK(card != NULL);
    LS_TRY(begin(self, &comm, &b));
    LS_TRY(write_all(&b, COUNT, 1, queue_of(ACCEL_COMPUTE)));
    LS_TRY(accel_synchronize(on_device_accel(), "tests: before the loss"));
    if (self->rank == 1)
        card->lose_at = 7;
    LS_TRY(scene_note(arg, self->rank,
                      ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    free_block(&b);
    return LS_OK;
}

static void the_loss_of_a_device_is_named_on_every_rank(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    assert_true(run(3, lost_body, s));
    scene_assert_failure(s, 1, LS_ESYSTEM, "cudahost");
    scene_assert_failure(s, 1, LS_ESYSTEM, "all_reduce #1 (sum, 20011 float32 on device)");
    for (int r = 0; r < 3; r++)
        scene_assert_failure(s, r, r == 1 ? LS_ESYSTEM : LS_EPEER, "can no longer be used");
    scene_destroy(s);
}

/* The group outlives the device: operations on host memory go on. */
static ls_status close_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *work;
    float x = 1;
    block b;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &b));
    LS_TRY(write_all(&b, COUNT, 1, queue_of(ACCEL_COMPUTE)));
    LS_TRY(ls_all_reduce(comm, b.device, b.device, COUNT, LS_F32, LS_SUM, &work));
    LS_TRY(ls_work_wait_on(work, queue_of(ACCEL_COMPUTE)));
    LS_TRY(check_all(&b, COUNT, 2, queue_of(ACCEL_COMPUTE)));
    free_block(&b);
    LS_TRY(on_device_close());
    LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL));
    LS_CHECK(x == 2);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_device_may_be_closed_before_the_group(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, close_body, NULL));
}

/* After the failure of an operation its memory is the caller's: what the caller writes stays. */
static ls_status abort_body(const ls_test_rank *self, void *arg)
{
    enum { ROUNDS = 40 };
    ls_rng rng = {0};
    ls_comm *world;
    block b;
    block again; /* the same device memory: the first copy from b.host may still be queued */

    LS_UNUSED(arg);
    ls_rng_seed(&rng, (uint64_t)ls_test_number("LS_TEST_SEED", 1) + (uint64_t)self->rank);
    LS_TRY(begin(self, &world, &b));
    again = (block){.device = b.device,
                    .host = accel_alloc_host(on_device_accel(), COUNT * sizeof(float))};
    LS_CHECK(again.host != NULL);
    for (int round = 0; round < ROUNDS; round++) {
        ls_work *work;
        ls_comm *part;
        ls_status st;

        LS_TRY(ls_comm_split(world, 0, 0, &part));
        LS_TRY(write_all(&b, COUNT, 1, queue_of(ACCEL_COMPUTE)));
        st = ls_all_reduce(part, b.device, b.device, COUNT, LS_F32, LS_SUM, &work);
        LS_CHECK(st == LS_OK || st == LS_ECANCELED); // canceled: aborted before
        (void)usleep((useconds_t)ls_rng_below(&rng, 2000));
        if (self->rank == 1)
            ls_comm_abort(part, "enough");
        if (st != LS_OK || ls_work_wait(work) != LS_OK) {
            LS_TRY(write_all(&again, COUNT, -1, queue_of(ACCEL_COMPUTE)));
            LS_TRY(check_all(&again, COUNT, -1, queue_of(ACCEL_COMPUTE)));
        }
        ls_comm_destroy(part);
        LS_TRY(ls_barrier(world, NULL));
    }
    ls_comm_destroy(world);
    accel_free_host(on_device_accel(), again.host);
    free_block(&b);
    return LS_OK;
}

static void no_copy_touches_memory_after_an_abort(void **state)
{
    LS_UNUSED(state);
    print_message("seed %d\n", ls_test_number("LS_TEST_SEED", 1));
    assert_true(run(2, abort_body, NULL));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_of_two_kinds_are_refused),
        cmocka_unit_test(ranks_with_memory_of_two_kinds_are_named),
        cmocka_unit_test(a_group_of_one_rank_copies_and_divides),
        cmocka_unit_test(operations_follow_the_queue_of_the_group),
        cmocka_unit_test(host_operations_keep_their_order_behind_device_operations),
        cmocka_unit_test(wait_on_orders_a_queue_and_does_not_wait_for_it),
        cmocka_unit_test(a_killed_rank_is_named_in_time),
        cmocka_unit_test(a_timeout_names_the_operation_and_the_late_rank),
        cmocka_unit_test(the_loss_of_a_device_is_named_on_every_rank),
        cmocka_unit_test(a_device_may_be_closed_before_the_group),
        cmocka_unit_test(no_copy_touches_memory_after_an_abort),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
