/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl.c - the NCCL backend over the fake NCCL and the simulated device: failures end every
 * rank's operation in time, with a text that names the cause. The conformance suite checks the
 * results.
 */
#include "comm/on_device.h"
#include "comm/scene.h"

#include "base/clock.h"
#include "base/text.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT    5003
#define LATE_MS  2000 /* within which a failure is reported */
#define NO_EVENT 0

static float *device_block(void)
{
    return on_device_accel() == NULL ? NULL : accel_alloc(on_device_accel(), COUNT * sizeof(float));
}

static ls_status reduce_on_device(ls_comm *comm, float *x)
{
    return ls_all_reduce(comm, x, x, COUNT, LS_F32, LS_SUM, NULL);
}

static ls_status begin(const ls_test_rank *self, ls_comm **comm, float **x)
{
    *x = device_block();
    LS_CHECK(*x != NULL);
    LS_TRY(accel_fill(accel_queue(on_device_accel(), ACCEL_COMPUTE), *x, 0, COUNT * sizeof(float)));
    LS_TRY(ls_test_init(self, comm));
    LS_CHECK(text_equal(ls_comm_backend(*comm), "nccl"));
    return LS_OK;
}

/* Ranks whose NCCL has these faults. outcomes NULL: all end without failure. */
static void run(int n, ls_test_body body, scene *s, const char *faults, int64_t timeout_ms,
                ls_test_outcome *outcomes)
{
    char variable[100];
    const ls_test_job job = {
        .n = n,
        .body = body,
        .arg = s,
        .timeout_ms = timeout_ms,
        .env = {text_format(variable, sizeof(variable), "FAKE_NCCL=%s", faults)}};
    const bool all = ls_test_ranks(&job, outcomes);

    assert_true(all || outcomes != NULL);
}

static void assert_in_time(const scene *s, int rank)
{
    const int64_t took_ms = s->ranks[rank].failed_ms - atomic_load(&s->event_ms);

    if (took_ms > LATE_MS)
        fail_msg("rank %d failed after %lld ms", rank, (long long)took_ms);
}

/* --- deaths --- */

/* Rank 1 is killed while the others wait for it, in the first operation (arg's n_done of rank 0 is
 * 0) or after others. */
static ls_status killed_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    ls_comm *comm;
    float *x;

    LS_TRY(begin(self, &comm, &x));
    for (int i = 0; i < atomic_load(&s->ranks[0].n_done); i++)
        LS_TRY(reduce_on_device(comm, x));
    atomic_store(&s->pids[self->rank], (int)getpid());
    if (self->rank == 1) {
        scene_wait_for_all(s, self->size);
        (void)usleep(20000); // the others are in the operation, or not yet: both must end
        atomic_store(&s->event_ms, ls_now_ms());
        (void)raise(SIGKILL);
    }
    LS_TRY(scene_note(s, self->rank, reduce_on_device(comm, x)));
    ls_comm_destroy(comm);
    accel_free(on_device_accel(), x);
    return LS_OK;
}

static void assert_survivors(scene *s, const ls_test_outcome *outcomes)
{
    for (int r = 0; r < 3; r += 2) {
        if (outcomes[r].code != 0 || outcomes[r].signal != 0)
            fail_msg("rank %d: %s", r, outcomes[r].text);
        scene_assert_failure(s, r, LS_EPEER, "rank 1");
        assert_in_time(s, r);
    }
}

static void a_killed_rank_is_named_in_time(void **state)
{
    ls_test_outcome outcomes[3];

    LS_UNUSED(state);
    for (int n_before = 0; n_before < 3; n_before += 2) {
        scene *s = scene_create();

        atomic_store(&s->ranks[0].n_done, n_before);
        run(3, killed_body, s, "", 0, outcomes);
        assert_survivors(s, outcomes);
        scene_destroy(s);
    }
}

static void an_abort_that_takes_long_does_not_delay_the_error(void **state)
{
    scene *s = scene_create();
    ls_test_outcome outcomes[3];

    LS_UNUSED(state);
    atomic_store(&s->ranks[0].n_done, 2);
    run(3, killed_body, s, "slow_abort=2500", 0, outcomes);
    assert_survivors(s, outcomes);
    scene_destroy(s);
}

/* --- failures of NCCL --- */

static ls_status failing_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    float *x;
    ls_status st = LS_OK;

    LS_TRY(begin(self, &comm, &x));
    for (int i = 0; i < 3 && st == LS_OK; i++)
        st = reduce_on_device(comm, x);
    LS_TRY(scene_note(arg, self->rank, st));
    ls_comm_destroy(comm);
    accel_free(on_device_accel(), x);
    return LS_OK;
}

static void an_operation_that_hangs_ends_by_its_timeout(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    run(2, failing_body, s, "hang=2", 400, NULL);
    for (int r = 0; r < 2; r++)
        scene_assert_failure(s, r, LS_EDEADLINE, "all_reduce #2 (sum, 5003 float32 on device)");
    scene_destroy(s);
}

static void an_asynchronous_error_breaks_the_group_on_every_rank(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    run(3, failing_body, s, "remote_error=3,rank=1", 20000, NULL);
    for (int r = 0; r < 3; r++)
        scene_assert_failure(s, r, LS_EPEER, "NCCL 2.28.9, an operation: remote process exited");
    scene_destroy(s);
}

static void a_failure_to_connect_says_what_to_do(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    run(2, failing_body, s, "no_interface", 20000, NULL);
    for (int r = 0; r < 2; r++)
        scene_assert_failure(s, r, r == 0 ? LS_ESYSTEM : LS_EPEER,
                             "no socket interface found; set NCCL_SOCKET_IFNAME");
    scene_destroy(s);
}

static ls_status busy_body(const ls_test_rank *self, void *arg)
{
    ls_work *works[4];
    ls_comm *comm;
    float *x[4];

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x[0]));
    for (int i = 0; i < 4; i++) {
        x[i] = i == 0 ? x[0] : device_block();
        LS_TRY(ls_all_reduce(comm, x[i], x[i], COUNT, LS_F32, LS_SUM, &works[i]));
    }
    LS_TRY(ls_work_wait_on(works[3], accel_queue(on_device_accel(), ACCEL_COMPUTE)));
    for (int i = 0; i < 3; i++)
        LS_TRY(ls_work_wait(works[i]));
    ls_comm_destroy(comm);
    for (int i = 0; i < 4; i++)
        accel_free(on_device_accel(), x[i]);
    return LS_OK;
}

static void calls_in_progress_are_polled(void **state)
{
    LS_UNUSED(state);
    run(2, busy_body, NULL, "busy=5", 20000, NULL);
}

/* --- different calls --- */

static ls_status mismatch_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    float *x;
    float y[4] = {0};
    ls_status st;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    LS_TRY(reduce_on_device(comm, x));
    if (self->rank == 0)
        st = reduce_on_device(comm, x);
    else if (self->rank == 1)
        st = ls_broadcast(comm, x, x, COUNT, LS_F32, 1, NULL);
    else
        st = ls_all_reduce(comm, y, y, 4, LS_F32, LS_SUM, NULL);
    // A broadcast may end on its root; the hub breaks the group a little later.
    while (st == LS_OK)
        st = ls_comm_status(comm);
    LS_TRY(scene_note(arg, self->rank, st));
    ls_comm_destroy(comm);
    accel_free(on_device_accel(), x);
    return LS_OK;
}

static void ranks_that_call_different_operations_are_named(void **state)
{
    LS_UNUSED(state);
    for (int n = 2; n <= 3; n++) {
        scene *s = scene_create();

        run(n, mismatch_body, s, "", 20000, NULL);
        for (int r = 0; r < n; r++)
            scene_assert_failure(s, r, LS_EMISMATCH, "#2");
        scene_destroy(s);
    }
}

/* --- groups --- */

/* A broken sub-group leaves the job's group and later sub-groups usable. */
static ls_status again_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    float *x;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    for (int round = 0; round < 5; round++) {
        ls_comm *part;
        ls_work *work;

        LS_TRY(ls_comm_split(comm, 0, 0, &part));
        LS_TRY(reduce_on_device(part, x));
        LS_TRY(ls_barrier(comm, NULL)); // the operation has ended on both ranks
        if (self->rank == 0) {
            ls_comm_abort(part, "enough");
            LS_CHECK(reduce_on_device(part, x) == LS_ECANCELED);
        } else {
            ls_status st = ls_all_reduce(part, x, x, COUNT, LS_F32, LS_SUM, &work);

            st = st == LS_OK ? ls_work_wait(work) : st;
            LS_CHECK(st == LS_ECANCELED && strstr(ls_last_error(), "enough") != NULL);
        }
        ls_comm_destroy(part);
        LS_TRY(reduce_on_device(comm, x));
    }
    ls_comm_destroy(comm);
    accel_free(on_device_accel(), x);
    return LS_OK;
}

static void a_broken_group_leaves_the_others_usable(void **state)
{
    LS_UNUSED(state);
    run(2, again_body, NULL, "", 20000, NULL);
}

/* --- missing libraries --- */

static void the_check_says_which_library_is_missing(void **state)
{
    LS_UNUSED(state);
    (void)setenv("LOCKSTEP_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    assert_int_equal(ls_backend_check("nccl", 2), LS_EUNSUPPORTED);
    if (strstr(ls_last_error(), "/nowhere/libnccl.so.2: cannot open") == NULL)
        fail_msg("%s", ls_last_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_in_time),
        cmocka_unit_test(an_abort_that_takes_long_does_not_delay_the_error),
        cmocka_unit_test(an_operation_that_hangs_ends_by_its_timeout),
        cmocka_unit_test(an_asynchronous_error_breaks_the_group_on_every_rank),
        cmocka_unit_test(a_failure_to_connect_says_what_to_do),
        cmocka_unit_test(calls_in_progress_are_polled),
        cmocka_unit_test(ranks_that_call_different_operations_are_named),
        cmocka_unit_test(a_broken_group_leaves_the_others_usable),
        cmocka_unit_test(the_check_says_which_library_is_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
