/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_trace.c - what the flight recorder has of a device's work with --trace: when it
 * executed operations and phases, on the simulated device. ctest runs it on the native backend and
 * with the fake NCCL.
 */
#include "comm/on_device.h"
#include "harness/ranks.h"
#include "devices/cudahost.h"

#include "base/text.h"
#include "base/unit.h"
#include "comm/device/device_phases.h"
#include "comm/record/recorder.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 5003, BYTES = COUNT * 4 };

/* The device's clock is compared with the host's between two readings, which a busy machine may put
 * far apart. */
#define CLOCKS_NS (10 * INT64_C(1000000000))

/* A rank whose flight recorder this process reads, with a block of device memory. */
typedef struct traced {
    ls_comm *comm;
    ls_queue *compute;
    float *block;
    int ring;
} traced;

static ls_status begin(const ls_test_rank *self, traced *t)
{
    char number[16];

    LS_TRY(recorder_create_fd(&t->ring));
    text_format(number, sizeof(number), "%d", t->ring);
    LS_CHECK(setenv("LOCKSTEP_RING_FD", number, 1) == 0);
    LS_CHECK(on_device_accel() != NULL);
    t->compute = accel_queue(on_device_accel(), ACCEL_COMPUTE);
    t->block = accel_alloc(on_device_accel(), BYTES);
    LS_CHECK(t->block != NULL);
    LS_TRY(accel_fill(t->compute, t->block, 0, BYTES));
    return ls_test_init(self, &t->comm);
}

static void end(traced *t)
{
    accel_free(on_device_accel(), t->block);
    ls_comm_destroy(t->comm);
    (void)close(t->ring);
}

/* The queue of operators stops here until the flag is set. */
static void await_flag(void *arg)
{
    const atomic_bool *flag = arg;

    while (!atomic_load(flag))
        (void)sched_yield();
}

/* The only operation on device memory. */
static ls_status read_reduce(int ring, recorder_entry *out)
{
    static recorder_entry entries[RECORDER_ENTRIES];
    int n = 0;

    LS_TRY(recorder_read(ring, entries, RECORDER_ENTRIES, &n));
    for (int i = 0; i < n; i++) {
        if (strcmp(entries[i].stamp.site, "bucket") == 0)
            *out = entries[i];
    }
    LS_CHECK(out->number != 0);
    return LS_OK;
}

static ls_status start_reduce(const traced *t, ls_work **work)
{
    comm_label(t->comm, "bucket");
    return ls_all_reduce(t->comm, t->block, t->block, COUNT, LS_F32, LS_SUM, work);
}

/* The device ends the backward after the all_reduce, because the queue stops in between. */
static ls_status overlap_body(const ls_test_rank *self, void *arg)
{
    recorder_span spans[8];
    recorder_entry reduce = {0};
    atomic_bool flag = false;
    uint64_t n_dropped = 0;
    ls_work *work = NULL;
    traced t = {0};
    int n = 0;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &t));
    comm_device_phase(t.comm, t.compute, "backward");
    LS_TRY(start_reduce(&t, &work));
    LS_TRY(accel_call(t.compute, await_flag, &flag));
    comm_device_phase(t.comm, t.compute, "optimizer");
    LS_TRY(ls_work_wait(work));
    atomic_store(&flag, true);
    LS_TRY(accel_fill(t.compute, t.block, 0, BYTES));
    comm_device_phase(t.comm, t.compute, NULL);
    LS_TRY(accel_synchronize(on_device_accel(), "test: all work"));
    comm_device_phase(t.comm, t.compute, NULL);
    LS_TRY(read_reduce(t.ring, &reduce));
    LS_TRY(recorder_read_device_phases(t.ring, spans, 8, &n, &n_dropped));
    LS_CHECK(n == 2 && n_dropped == 0);
    LS_CHECK(strcmp(spans[0].name, "backward") == 0 && strcmp(spans[1].name, "optimizer") == 0);
    LS_CHECK(spans[0].start_ns <= reduce.device_start_ns);
    LS_CHECK(reduce.start_ns <= reduce.device_start_ns + CLOCKS_NS);
    LS_CHECK(reduce.device_start_ns < reduce.device_end_ns);
    LS_CHECK(reduce.device_end_ns <= reduce.end_ns + CLOCKS_NS);
    LS_CHECK(reduce.device_end_ns <= spans[0].end_ns);
    LS_CHECK(spans[0].end_ns <= spans[1].start_ns && spans[1].start_ns <= spans[1].end_ns);
    end(&t);
    return LS_OK;
}

static ls_status untraced_body(const ls_test_rank *self, void *arg)
{
    recorder_span spans[8];
    recorder_entry reduce = {0};
    uint64_t n_dropped = 0;
    traced t = {0};
    int n = 0;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &t));
    comm_device_phase(t.comm, t.compute, "backward");
    LS_TRY(start_reduce(&t, NULL));
    comm_device_phase(t.comm, t.compute, NULL);
    LS_TRY(accel_synchronize(on_device_accel(), "test: all work"));
    comm_device_phase(t.comm, t.compute, NULL);
    LS_TRY(read_reduce(t.ring, &reduce));
    LS_TRY(recorder_read_device_phases(t.ring, spans, 8, &n, &n_dropped));
    LS_CHECK(reduce.end_ns != 0 && reduce.device_start_ns == 0 && reduce.device_end_ns == 0);
    LS_CHECK(n == 0 && n_dropped == 0);
    end(&t);
    return LS_OK;
}

/* More phases than fit, while the device stands still: no call waits for it. The device is closed
 * with those that fit in the ring. */
static ls_status dropped_body(const ls_test_rank *self, void *arg)
{
    enum { PHASES = DEVICE_PHASES_PENDING + 36 };
    const gpu_host *card = cudahost();
    static recorder_span spans[RECORDER_ENTRIES];
    atomic_bool flag = false;
    uint64_t n_dropped = 0;
    uint64_t waits;
    traced t = {0};
    int n = 0;

    LS_UNUSED(arg);
    LS_CHECK(card != NULL);
    LS_TRY(begin(self, &t));
    LS_TRY(accel_call(t.compute, await_flag, &flag));
    waits = card->n_host_waits;
    for (int i = 0; i < PHASES; i++)
        comm_device_phase(t.comm, t.compute, "forward");
    comm_device_phase(t.comm, t.compute, NULL);
    LS_CHECK(card->n_host_waits == waits);
    LS_TRY(recorder_read_device_phases(t.ring, spans, RECORDER_ENTRIES, &n, &n_dropped));
    LS_CHECK(n == 0 && n_dropped == PHASES - DEVICE_PHASES_PENDING);
    atomic_store(&flag, true);
    accel_free(on_device_accel(), t.block);
    t.block = NULL;
    LS_TRY(on_device_close());
    LS_TRY(recorder_read_device_phases(t.ring, spans, RECORDER_ENTRIES, &n, &n_dropped));
    LS_CHECK(n == DEVICE_PHASES_PENDING && n_dropped == PHASES - DEVICE_PHASES_PENDING);
    for (int i = 1; i < n; i++)
        LS_CHECK(spans[i - 1].end_ns <= spans[i].start_ns);
    ls_comm_destroy(t.comm);
    (void)close(t.ring);
    return LS_OK;
}

static void run(int n, ls_test_body body, const char *variable)
{
    assert_true(ls_test_ranks(&(ls_test_job){.n = n, .body = body, .env = {variable}}, NULL));
}

static void an_operation_that_ends_within_a_phase_is_shown_within_it(void **state)
{
    LS_UNUSED(state);
    run(2, overlap_body, "LOCKSTEP_TRACE=1");
}

static void without_trace_nothing_of_the_device_is_recorded(void **state)
{
    LS_UNUSED(state);
    run(2, untraced_body, "LOCKSTEP_TRACE=0");
}

static void phases_that_do_not_fit_are_dropped_and_counted(void **state)
{
    LS_UNUSED(state);
    run(1, dropped_body, "LOCKSTEP_TRACE=1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_that_ends_within_a_phase_is_shown_within_it),
        cmocka_unit_test(without_trace_nothing_of_the_device_is_recorded),
        cmocka_unit_test(phases_that_do_not_fit_are_dropped_and_counted),
    };

    return cmocka_run_group_tests_name("device trace", tests, NULL, NULL);
}
