/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl.c - the NCCL backend over the fake NCCL and the simulated device: failures end every
 * rank's operation in time, with a text that names the cause. The conformance suite checks the
 * results.
 */
#include "comm/on_device.h"
#include "comm/scene.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"

#include <dlfcn.h>
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

/* Also registers the memory, if NCCL can: *x is zeroed. */
static ls_status begin_registered(const ls_test_rank *self, ls_comm **comm, float **x)
{
    LS_TRY(begin(self, comm, x));
    LS_TRY(comm_add_memory(*comm, *x, COUNT * sizeof(float)));
    return accel_fill(accel_queue(on_device_accel(), ACCEL_COMPUTE), *x, 0, COUNT * sizeof(float));
}

/* Also of a broken group. */
static void end(ls_comm *comm, float *x)
{
    comm_remove_memory(comm, x);
    ls_comm_destroy(comm);
    accel_free(on_device_accel(), x);
}

/* Ranks whose NCCL has these faults. outcomes NULL: all end without failure. */
static void run(int n, ls_test_body body, void *arg, const char *faults, int64_t timeout_ms,
                ls_test_outcome *outcomes)
{
    char variable[100];
    const ls_test_job job = {
        .n = n,
        .body = body,
        .arg = arg,
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

/* What a function of the fake NCCL has counted in this process. */
static int fake_count(const char *function)
{
    void *library = dlopen(getenv("LOCKSTEP_NCCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    int (*ask)(void) = NULL;
    void *f = library == NULL ? NULL : dlsym(library, function);

    memcpy(&ask, &f, sizeof(f));
    return ask == NULL ? -1 : ask();
}

/* --- deaths --- */

/* Rank 1 is killed while the others wait for it, in the first operation (arg's n_done of rank 0 is
 * 0) or after others. */
static ls_status killed_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    ls_comm *comm;
    float *x;

    if (atomic_load(&s->ranks[0].n_done) > 0)
        LS_TRY(begin_registered(self, &comm, &x));
    else
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
    end(comm, x);
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

/* Each allocation of an abort fails in turn on rank 0, also that for the thread that would end the
 * communicator. NCCL goes on to write to the memory of an operation that is not aborted. */
static ls_status no_memory_body(const ls_test_rank *self, void *arg)
{
    int64_t n_rounds = 1;
    ls_comm *comm;
    float *x;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    for (int64_t i = 0; i < n_rounds; i++) {
        uint64_t n_before;
        ls_comm *part;
        ls_work *work;

        LS_TRY(ls_comm_split(comm, 0, 0, &part));
        LS_TRY(reduce_on_device(part, x));
        LS_TRY(ls_all_reduce(part, x, x, COUNT, LS_F32, LS_SUM, &work));
        LS_TRY(ls_barrier(comm, NULL)); // both ranks have called it
        if (self->rank == 0) {
            n_before = ls_alloc_count();
            ls_alloc_fail_at((uint64_t)i);
            ls_comm_abort(part, "enough");
            ls_alloc_fail_at(0);
            LS_CHECK(fake_count("fake_nccl_n_aborted") == i + 1);
            n_rounds = i > 0 ? n_rounds : 1 + (int64_t)(ls_alloc_count() - n_before);
        }
        LS_TRY(ls_broadcast(comm, &n_rounds, &n_rounds, 1, LS_I64, 0, NULL));
        ls_comm_abort(part, "enough");
        LS_CHECK(ls_work_wait(work) == LS_ECANCELED);
        ls_comm_destroy(part);
    }
    end(comm, x);
    return LS_OK;
}

static void an_operation_is_aborted_without_memory_for_a_thread(void **state)
{
    LS_UNUSED(state);
    run(2, no_memory_body, NULL, "hang=2", 20000, NULL);
}

static ls_status failing_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    float *x;
    ls_status st = LS_OK;

    LS_TRY(begin(self, &comm, &x));
    for (int i = 0; i < 3 && st == LS_OK; i++)
        st = reduce_on_device(comm, x);
    LS_TRY(scene_note(arg, self->rank, st));
    end(comm, x);
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

/* A rank that waits does not ask NCCL all the time, which takes locks of NCCL. */
static ls_status rarely_asked_body(const ls_test_rank *self, void *arg)
{
    int64_t begin_ms;
    ls_comm *comm;
    float *x;
    int n_before;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    LS_TRY(reduce_on_device(comm, x));
    n_before = fake_count("fake_nccl_n_asked");
    begin_ms = ls_now_ms();
    LS_CHECK(reduce_on_device(comm, x) == LS_EDEADLINE);
    LS_CHECK(fake_count("fake_nccl_n_asked") - n_before <= ls_now_ms() - begin_ms + 10);
    end(comm, x);
    return LS_OK;
}

static void nccl_is_rarely_asked_while_an_operation_runs(void **state)
{
    LS_UNUSED(state);
    run(2, rarely_asked_body, NULL, "hang=2", 400, NULL);
}

static void an_asynchronous_error_breaks_the_group_on_every_rank(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    run(3, failing_body, s, "remote_error=3,rank=1", 20000, NULL);
    for (int r = 0; r < 3; r++)
        scene_assert_failure(s, r, LS_EPEER, "NCCL 2.32.3, an operation: remote process exited");
    scene_destroy(s);
}

static void a_failure_to_connect_says_what_to_do(void **state)
{
    // NCCL's text and the advice, for each error of nccl_fake.c
    static const char *const wants[] = {
        "no socket interface found; unset NCCL_SOCKET_IFNAME, or set it",
        "CUDA device 4000; two ranks use one GPU: start one rank for each GPU",
        "33030532 bytes; /dev/shm is too small: mount -o remount,size=8G",
        "No space left on device; /dev/shm is too small",
        "CUDA runtime version'; the driver is too old for this NCCL",
        "these two devices'; NCCL_P2P_DISABLE=1 works around it",
        "Connection refused; allow connections in the firewall",
        "'out of memory'; nvidia-smi shows which process uses the memory",
        "an error of another kind; NCCL_DEBUG=WARN shows more",
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(wants); i++) {
        scene *s = scene_create();
        char faults[32];

        text_format(faults, sizeof(faults), "no_id=%d", (int)i + 1);
        run(2, failing_body, s, faults, 20000, NULL);
        for (int r = 0; r < 2; r++)
            scene_assert_failure(s, r, r == 0 ? LS_ESYSTEM : LS_EPEER, wants[i]);
        scene_destroy(s);
    }
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
    for (int i = 1; i < 4; i++)
        accel_free(on_device_accel(), x[i]);
    end(comm, x[0]);
    return LS_OK;
}

static void calls_in_progress_are_polled(void **state)
{
    LS_UNUSED(state);
    run(2, busy_body, NULL, "busy=5", 20000, NULL);
}

/* Rank 1 is slower than rank 0: the works of both groups must enter its one queue in the order of
 * the calls, or each rank waits for what the other one has queued second. */
static ls_status two_groups_body(const ls_test_rank *self, void *arg)
{
    ls_work *works[6];
    ls_comm *comm;
    ls_comm *part;
    float *x[6];

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x[0]));
    LS_TRY(ls_comm_split(comm, 0, 0, &part));
    LS_TRY(reduce_on_device(comm, x[0]));
    LS_TRY(reduce_on_device(part, x[0]));
    for (int i = 0; i < 6; i++) {
        ls_comm *of = i % 3 == 2 ? part : comm;

        x[i] = i == 0 ? x[0] : device_block();
        LS_TRY(ls_all_reduce(of, x[i], x[i], COUNT, LS_F32, LS_SUM, &works[i]));
    }
    for (int i = 0; i < 6; i++)
        LS_TRY(ls_work_wait(works[i]));
    for (int i = 1; i < 6; i++)
        accel_free(on_device_accel(), x[i]);
    ls_comm_destroy(part);
    end(comm, x[0]);
    return LS_OK;
}

static void operations_of_two_groups_keep_the_order_of_the_calls(void **state)
{
    LS_UNUSED(state);
    run(2, two_groups_body, NULL, "busy=5,rank=1", 20000, NULL);
    run(2, two_groups_body, NULL, "late=5,rank=1", 20000, NULL);
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
    end(comm, x);
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

/* As docs/backends.md says: rank 0 sends, rank 2 receives, rank 1 has no part in it. */
static ls_status message_body(const ls_test_rank *self, void *arg)
{
    const size_t none[2] = {0, 0};
    const size_t to_second[2] = {0, COUNT};
    const size_t from_first[2] = {COUNT, 0};
    const bool sends = self->rank == 0;
    ls_queue *queue;
    ls_comm *comm;
    ls_comm *pair;
    float *host;
    float *x;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    queue = accel_queue(on_device_accel(), ACCEL_COMPUTE);
    host = accel_alloc_host(on_device_accel(), COUNT * sizeof(float));
    LS_CHECK(host != NULL);
    LS_TRY(ls_comm_split(comm, self->rank == 1 ? -1 : 0, 0, &pair));
    if (pair != NULL) {
        LS_TRY(accel_fill(queue, x, sends ? 1 : 0, COUNT * sizeof(float)));
        LS_TRY(ls_all_to_all_v(pair, x, sends ? to_second : none, x, sends ? none : from_first,
                               LS_F32, NULL));
        LS_TRY(accel_copy(queue, host, x, COUNT * sizeof(float), ACCEL_TO_HOST));
        LS_TRY(accel_synchronize(on_device_accel(), "tests: the message"));
        for (size_t i = 0; i < COUNT * sizeof(float); i++)
            LS_CHECK(((unsigned char *)host)[i] == 1);
        ls_comm_destroy(pair);
    }
    accel_free_host(on_device_accel(), host);
    end(comm, x);
    return LS_OK;
}

static void two_ranks_exchange_a_message(void **state)
{
    LS_UNUSED(state);
    run(3, message_body, NULL, "busy=2", 20000, NULL);
}

/* Rank 1 receives before it joins the operation that rank 0 has called before it sends. */
static ls_status message_beside_body(const ls_test_rank *self, void *arg)
{
    ls_work *work = NULL;
    ls_comm *comm;
    float *x;
    float *y;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    LS_TRY(reduce_on_device(comm, x));
    y = device_block();
    if (self->rank == 0) {
        LS_TRY(ls_all_reduce(comm, x, x, COUNT, LS_F32, LS_SUM, &work));
        LS_TRY(ls_send(comm, y, COUNT, LS_F32, 1, 0, NULL));
        LS_TRY(ls_work_wait(work));
    } else {
        LS_TRY(ls_recv(comm, y, COUNT, LS_F32, 0, 0, NULL));
        LS_TRY(reduce_on_device(comm, x));
    }
    accel_free(on_device_accel(), y);
    end(comm, x);
    return LS_OK;
}

static void a_message_does_not_wait_for_an_operation_of_nccl(void **state)
{
    LS_UNUSED(state);
    run(2, message_beside_body, NULL, "", 20000, NULL);
}

/* An abort would also end what NCCL still sends to the others, which are in the operation. */
static ls_status orderly_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_comm *part;
    float *x;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    LS_TRY(ls_comm_split(comm, 0, 0, &part));
    LS_TRY(reduce_on_device(part, x));
    LS_TRY(reduce_on_device(comm, x));
    ls_comm_destroy(part);
    end(comm, x);
    LS_CHECK(fake_count("fake_nccl_n_aborted") == 0);
    return LS_OK;
}

static void communicators_are_aborted_only_with_operations(void **state)
{
    LS_UNUSED(state);
    run(3, orderly_body, NULL, "busy=2", 20000, NULL);
}

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
    end(comm, x);
    return LS_OK;
}

static void a_broken_group_leaves_the_others_usable(void **state)
{
    LS_UNUSED(state);
    run(2, again_body, NULL, "", 20000, NULL);
}

/* --- registration of memory --- */

/* arg: how often memory is registered for each comm_add_memory() on rank 0. The fake NCCL ends the
 * process when a registration outlives the memory or ends before the operations on it, and when it
 * exists on one rank only. */
static ls_status registered_body(const ls_test_rank *self, void *arg)
{
    const int each = *(const int *)arg;
    ls_queue *queue;
    ls_work *work;
    ls_comm *comm;
    ls_comm *part;
    float *x;

    LS_TRY(begin_registered(self, &comm, &x));
    queue = accel_queue(on_device_accel(), ACCEL_COMPUTE);
    for (int i = 0; i < 3; i++)
        LS_TRY(reduce_on_device(comm, x));
    LS_CHECK(self->rank != 0 || fake_count("fake_nccl_n_registered") == each);
    LS_TRY(ls_comm_split(comm, 0, 0, &part));
    for (int round = 0; round < 2; round++) {
        LS_TRY(comm_add_memory(part, x, COUNT * sizeof(float)));
        for (int i = 0; i < 4; i++) {
            LS_TRY(ls_all_reduce(part, x, x, COUNT, LS_F32, LS_SUM, &work));
            LS_TRY(ls_work_wait_on(work, queue));
        }
        comm_remove_memory(part, x);
        LS_CHECK(self->rank != 0 || fake_count("fake_nccl_n_registered") == (2 + round) * each);
    }
    LS_TRY(comm_add_memory(part, x, COUNT * sizeof(float)));
    LS_TRY(reduce_on_device(part, x));
    ls_comm_destroy(part); // ends the registration that is left
    end(comm, x);
    return LS_OK;
}

static void memory_is_registered_once_until_it_is_removed(void **state)
{
    int each = 1;

    LS_UNUSED(state);
    run(3, registered_body, &each, "busy=2", 20000, NULL);
}

static void memory_is_registered_on_all_ranks_or_on_none(void **state)
{
    int each[2] = {0, 1};

    LS_UNUSED(state);
    run(3, registered_body, &each[0], "no_register", 20000, NULL);
    run(3, registered_body, &each[1], "no_register,rank=1", 20000, NULL);
}

static ls_status closed_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    float *x;

    LS_UNUSED(arg);
    LS_TRY(begin_registered(self, &comm, &x));
    LS_TRY(reduce_on_device(comm, x));
    LS_CHECK(fake_count("fake_nccl_n_registered") == 1);
    LS_TRY(on_device_close());
    comm_remove_memory(comm, x);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void registrations_end_before_the_device_is_closed(void **state)
{
    LS_UNUSED(state);
    run(2, closed_body, NULL, "", 20000, NULL);
}

/* Rank 1 calls another operation than the last one of comm_add_memory(). */
static ls_status half_registered_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    float *x;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    if (self->rank == 1) {
        LS_TRY(ls_broadcast(comm, x, x, 1, LS_U8, 0, NULL));
        LS_CHECK(ls_barrier(comm, NULL) == LS_EMISMATCH);
    } else {
        LS_CHECK(comm_add_memory(comm, x, COUNT * sizeof(float)) == LS_EMISMATCH);
        LS_CHECK(fake_count("fake_nccl_n_registered") == 1);
    }
    accel_free(on_device_accel(), x);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void memory_is_not_registered_after_a_failure(void **state)
{
    LS_UNUSED(state);
    run(2, half_registered_body, NULL, "", 20000, NULL);
}

/* Of NCCL's allocator; the accelerator's where it has none. */
static ls_status allocated_body(const ls_test_rank *self, void *arg)
{
    const bool has_memory = *(const bool *)arg;
    ls_queue *queue;
    ls_comm *comm;
    float *x;
    float *y;

    LS_TRY(begin(self, &comm, &x));
    queue = accel_queue(on_device_accel(), ACCEL_COMPUTE);
    y = comm_alloc_memory(comm, on_device_accel(), COUNT * sizeof(float));
    LS_CHECK((y != NULL) == has_memory);
    LS_CHECK(fake_count("fake_nccl_n_allocated") == has_memory);
    LS_CHECK(fake_count("fake_nccl_max_ctas") == 0);
    if (has_memory) {
        LS_TRY(comm_add_memory(comm, y, COUNT * sizeof(float)));
        LS_TRY(accel_fill(queue, y, 0, COUNT * sizeof(float)));
        LS_TRY(reduce_on_device(comm, y));
        LS_CHECK(fake_count("fake_nccl_max_ctas") == 16);
        comm_remove_memory(comm, y);
    }
    end(comm, x);
    LS_CHECK(comm_free_memory(y) == has_memory); // after the group
    LS_CHECK(fake_count("fake_nccl_n_freed") == has_memory);
    return LS_OK;
}

static void memory_is_of_nccl_where_it_has_some(void **state)
{
    bool has_memory[2] = {false, true};

    LS_UNUSED(state);
    run(2, allocated_body, &has_memory[1], "", 20000, NULL);
    run(2, allocated_body, &has_memory[0], "no_alloc", 20000, NULL);
}

/* It has no operations for which memory would be registered, and nothing waits for the work of the
 * accelerator before NCCL frees it. */
static ls_status alone_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_comm *alone;
    float *x;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    LS_TRY(ls_comm_split(comm, self->rank, 0, &alone));
    LS_CHECK(comm_alloc_memory(alone, on_device_accel(), COUNT * sizeof(float)) == NULL);
    ls_comm_destroy(alone);
    end(comm, x);
    return LS_OK;
}

static void a_group_of_one_rank_has_no_memory_of_nccl(void **state)
{
    LS_UNUSED(state);
    run(2, alone_body, NULL, "", 20000, NULL);
}

/* --- the end of communicators --- */

static ls_status ending_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_comm *part;
    float *x;

    LS_UNUSED(arg);
    LS_TRY(begin(self, &comm, &x));
    LS_TRY(ls_comm_split(comm, 0, 0, &part));
    LS_TRY(reduce_on_device(part, x));
    ls_comm_destroy(part);
    LS_CHECK(fake_count("fake_nccl_n_destroyed") == 0);
    accel_free(on_device_accel(), x);
    LS_TRY(on_device_close());
    LS_CHECK(fake_count("fake_nccl_n_destroyed") == 1);
    ls_comm_destroy(comm);
    return LS_OK;
}

/* That of a group that is destroyed already, whose end is slow. */
static void a_communicator_ends_before_its_device_is_closed(void **state)
{
    LS_UNUSED(state);
    run(2, ending_body, NULL, "slow_end=300", 20000, NULL);
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
        cmocka_unit_test(an_operation_is_aborted_without_memory_for_a_thread),
        cmocka_unit_test(nccl_is_rarely_asked_while_an_operation_runs),
        cmocka_unit_test(an_asynchronous_error_breaks_the_group_on_every_rank),
        cmocka_unit_test(a_failure_to_connect_says_what_to_do),
        cmocka_unit_test(calls_in_progress_are_polled),
        cmocka_unit_test(operations_of_two_groups_keep_the_order_of_the_calls),
        cmocka_unit_test(ranks_that_call_different_operations_are_named),
        cmocka_unit_test(two_ranks_exchange_a_message),
        cmocka_unit_test(a_message_does_not_wait_for_an_operation_of_nccl),
        cmocka_unit_test(communicators_are_aborted_only_with_operations),
        cmocka_unit_test(a_broken_group_leaves_the_others_usable),
        cmocka_unit_test(memory_is_registered_once_until_it_is_removed),
        cmocka_unit_test(memory_is_registered_on_all_ranks_or_on_none),
        cmocka_unit_test(memory_is_of_nccl_where_it_has_some),
        cmocka_unit_test(a_group_of_one_rank_has_no_memory_of_nccl),
        cmocka_unit_test(registrations_end_before_the_device_is_closed),
        cmocka_unit_test(memory_is_not_registered_after_a_failure),
        cmocka_unit_test(a_communicator_ends_before_its_device_is_closed),
        cmocka_unit_test(the_check_says_which_library_is_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
