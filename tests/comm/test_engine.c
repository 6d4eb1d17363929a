/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine.c - the engine over a backend without peers: progress, handles, aborts, threads,
 * timeouts.
 */
#include "base/unit.h"
#include "comm/comm.h"
#include "comm/fake_backend.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static float x[64], y[64];

/* A clock that moves on when it is looked at, and when the fake backend sleeps. 0: the system's. */
static int64_t clock_ns;

int64_t __real_ls_now_ns(void);
int64_t __wrap_ls_now_ns(void);

int64_t __wrap_ls_now_ns(void)
{
    if (clock_ns == 0)
        return __real_ls_now_ns();
    clock_ns += 500000;
    return clock_ns;
}

static ls_status sum(ls_comm *comm, ls_work **out)
{
    return ls_all_reduce(comm, x, y, 8, LS_F32, LS_SUM, out);
}

static void blocking_calls_progress_by_themselves(void **state)
{
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    s.end_in_start = 1;
    assert_ok(sum(comm, NULL));
    assert_int_equal(atomic_load(&s.n_progress), 0);
    s.end_after = 50;
    assert_ok(sum(comm, NULL));
    assert_int_equal(atomic_load(&s.n_progress), 50);
    assert_false(comm->engine->thread.started);
    ls_comm_destroy(comm);
}

static void operations_are_numbered_and_stamped(void **state)
{
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(fake_world(3, -1, &s, &comm));
    s.end_in_start = 100;
    assert_ok(sum(comm, NULL));
    assert_int_equal(s.last.stamp.sequence, 1);
    assert_non_null(strstr(s.last.stamp.site, "+0x"));
    comm_label(comm, "bucket 3/7");
    assert_ok(ls_barrier(comm, NULL));
    assert_int_equal(s.last.stamp.sequence, 2);
    assert_string_equal(s.last.stamp.site, "bucket 3/7");
    assert_ok(ls_barrier(comm, NULL));
    assert_string_not_equal(s.last.stamp.site, "bucket 3/7");
    // Messages count by peer and tag, and do not disturb the collectives.
    assert_ok(ls_send(comm, x, 1, LS_F32, 1, 5, NULL));
    assert_int_equal(s.last.stamp.sequence, 1);
    assert_ok(ls_send(comm, x, 1, LS_F32, 1, 5, NULL));
    assert_int_equal(s.last.stamp.sequence, 2);
    assert_ok(ls_send(comm, x, 1, LS_F32, 2, 5, NULL));
    assert_int_equal(s.last.stamp.sequence, 1);
    assert_ok(ls_recv(comm, x, 1, LS_F32, 1, 5, NULL));
    assert_int_equal(s.last.stamp.sequence, 1);
    assert_ok(ls_barrier(comm, NULL));
    assert_int_equal(s.last.stamp.sequence, 4);
    ls_comm_destroy(comm);
}

static void refused_arguments_take_no_number(void **state)
{
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    s.end_in_start = 100;
    assert_status(ls_broadcast(comm, x, y, 1, LS_F32, 2, NULL), LS_EINVAL);
    assert_status(ls_all_gather_v(comm, x, y, NULL, LS_F32, NULL), LS_EINVAL);
    assert_ok(sum(comm, NULL));
    assert_int_equal(s.last.stamp.sequence, 1);
    assert_ok(ls_comm_status(comm));
    ls_comm_destroy(comm);
}

static void what_moves_nothing_becomes_a_barrier(void **state)
{
    const size_t none[2] = {0, 0};
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    s.end_in_start = 100;
    assert_ok(ls_all_reduce(comm, NULL, NULL, 0, LS_F32, LS_SUM, NULL));
    assert_int_equal(s.last.kind, COLL_BARRIER);
    assert_int_equal(s.last.stamp.kind, COLL_ALL_REDUCE);
    assert_ok(ls_send(comm, NULL, 0, LS_F32, 1, 0, NULL));
    assert_int_equal(s.last.kind, COLL_SEND);
    assert_ok(ls_all_gather_v(comm, NULL, NULL, none, LS_F32, NULL));
    assert_int_equal(s.last.kind, COLL_ALL_GATHER);
    ls_comm_destroy(comm);
}

static void counts_are_copied(void **state)
{
    size_t counts[2] = {3, 4};
    backend_state s;
    ls_comm *comm;
    ls_work *w;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    assert_ok(ls_all_gather_v(comm, x, y, counts, LS_F32, &w));
    counts[0] = 99;
    assert_ptr_not_equal(s.last.dst_counts, counts);
    assert_int_equal(s.last.dst_counts[0], 3);
    assert_int_equal(s.last.dst_counts[1], 4);
    fake_end(comm, &s, 0, LS_OK, NULL);
    assert_ok(ls_work_wait(w));
    ls_comm_destroy(comm);
}

static void all_to_all_in_place_reads_from_a_copy(void **state)
{
    backend_state s;
    ls_comm *comm;
    ls_work *w;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    x[0] = 42;
    assert_ok(ls_all_to_all(comm, x, x, 4, LS_F32, &w));
    assert_ptr_not_equal(s.last.src, s.last.dst);
    assert_memory_equal(s.last.src, x, 8 * sizeof(float));
    fake_end(comm, &s, 0, LS_OK, NULL);
    assert_ok(ls_work_wait(w));
    ls_comm_destroy(comm);
}

static void waiting_for_a_while_leaves_the_work_pending(void **state)
{
    backend_state s;
    ls_comm *comm;
    ls_work *w;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    assert_ok(sum(comm, &w));
    assert_int_equal(ls_work_test(w), 0);
    assert_status(ls_work_wait_for(w, 0), LS_ETIMEOUT);
    assert_status(ls_work_wait_for(w, 20), LS_ETIMEOUT);
    assert_last_error("all_reduce #1");
    fake_end(comm, &s, 0, LS_OK, NULL);
    assert_ok(ls_work_wait_for(w, 0));
    assert_int_equal(ls_work_test(w), 1);
    assert_ok(ls_work_wait(w));
    ls_comm_destroy(comm);
}

/* No thread waits, yet it ends; and without progress no thread spins. */
static void the_progress_thread_carries_on_and_sleeps(void **state)
{
    backend_state s;
    ls_comm *comm;
    ls_work *w;
    int before;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    assert_ok(sum(comm, &w));
    (void)usleep(60000);
    before = atomic_load(&s.n_progress);
    (void)usleep(100000);
    assert_in_range(atomic_load(&s.n_progress) - before, 0, 20);
    fake_end(comm, &s, 0, LS_OK, NULL);
    assert_int_equal(ls_work_test(w), 1);
    assert_ok(ls_work_wait(w));
    before = atomic_load(&s.n_progress);
    (void)usleep(30000);
    assert_in_range(atomic_load(&s.n_progress) - before, 0, 3);
    ls_comm_destroy(comm);
}

static void set_flag(void *arg, const ls_work_end *end)
{
    atomic_store((atomic_int *)arg, end->status == LS_OK ? 1 : -1);
}

static void await_flag(atomic_int *flag)
{
    const int64_t deadline_ms = ls_deadline_ms(60000);

    while (atomic_load(flag) == 0 && ls_deadline_left(deadline_ms) > 0)
        (void)usleep(1000);
    assert_int_equal(atomic_load(flag), 1);
}

static void await_sleep(backend_state *s, int n_before)
{
    while (atomic_load(&s->n_wait) <= n_before)
        (void)usleep(1000);
}

static void wait_for_work(void *arg)
{
    assert_ok(ls_work_wait(arg));
}

/* Starts an operation that moves in several passes, while a thread sleeps in the backend. */
static void start_what_moves_on(ls_comm *comm, backend_state *s)
{
    atomic_int has_ended = 0;
    ls_work *w;

    engine_enter(comm->engine);
    s->n_moves = 4;
    engine_leave(comm->engine);
    assert_ok(sum(comm, &w));
    assert_ok(ls_work_then(w, set_flag, &has_ended));
    await_flag(&has_ended);
}

/* Though no event wakes a thread. */
static void what_can_move_on_does(void **state)
{
    ls_thread waiter = {0};
    backend_state s;
    ls_comm *comm;
    ls_work *first;
    int n_sleeps;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    s.sleeps_on = true;
    assert_ok(sum(comm, &first));
    await_sleep(&s, 0); // the progress thread
    start_what_moves_on(comm, &s);
    n_sleeps = atomic_load(&s.n_wait);
    assert_ok(ls_thread_start(&waiter, "waiter", wait_for_work, first));
    await_sleep(&s, n_sleeps);
    start_what_moves_on(comm, &s);
    fake_end(comm, &s, 0, LS_OK, NULL);
    ls_thread_join(&waiter);
    ls_comm_destroy(comm);
}

/* How often `n` operations sleep that end `late_ms` after their start, when sleepers wake every
 * millisecond. */
static int count_sleeps(ls_comm *comm, backend_state *s, int n, int64_t late_ms)
{
    const int before = atomic_load(&s->n_wait);

    s->end_late_ns = late_ms * 1000000;
    for (int i = 0; i < n; i++)
        assert_ok(sum(comm, NULL));
    return atomic_load(&s->n_wait) - before;
}

/* The machine as the engine sees it: a file in the form of /proc/loadavg. */
static void set_runnable(ls_comm *comm, long n)
{
    static char path[64];
    static int fd = -1;
    char text[64];

    if (fd < 0)
        fd = memfd_create("loadavg", MFD_CLOEXEC);
    assert_true(fd >= 0);
    (void)text_format(path, sizeof(path), "/proc/self/fd/%d", fd);
    (void)text_format(text, sizeof(text), "0.50 0.40 0.30 %ld/1000 4711\n", n);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, text, strlen(text), 0), strlen(text));
    comm->engine->contention.path = path;
}

/* Otherwise two ranks that come back late could wake each other in every operation. */
static void rank_that_slept_for_little_stays_awake_next_time(void **state)
{
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    clock_ns = ls_now_ns();
    assert_ok(fake_world(2, -1, &s, &comm));
    set_runnable(comm, 1);
    s.sleep_ms = 1;
    s.clock_ns = &clock_ns;
    for (int i = 0; i < 3; i++) {
        assert_in_range(count_sleeps(comm, &s, 1, 8), 1, 8);
        assert_int_equal(count_sleeps(comm, &s, 3, 8), 0);
        assert_in_range(count_sleeps(comm, &s, 1, 60), 1, 60); // too long to stay awake for
    }
    clock_ns = 0;
    ls_comm_destroy(comm);
}

/* A waiting rank leaves its core to other threads that want it. */
static void ranks_sleep_while_threads_compete_for_cores(void **state)
{
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    clock_ns = ls_now_ns();
    assert_ok(fake_world(2, -1, &s, &comm));
    s.sleep_ms = 1;
    s.clock_ns = &clock_ns;
    set_runnable(comm, n_cores + 1);
    (void)count_sleeps(comm, &s, 20, 8);
    for (int i = 0; i < 5; i++)
        assert_in_range(count_sleeps(comm, &s, 1, 8), 3, 8);
    set_runnable(comm, n_cores);
    (void)count_sleeps(comm, &s, 40, 8);
    assert_int_equal(count_sleeps(comm, &s, 5, 8), 0);
    clock_ns = 0;
    ls_comm_destroy(comm);
}

static void a_failed_work_breaks_its_group_for_ever(void **state)
{
    backend_state s;
    ls_comm *comm;
    ls_work *first, *second;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    assert_ok(sum(comm, &first));
    assert_ok(sum(comm, &second));
    fake_end(comm, &s, 1, LS_EMISMATCH, "rank 0 wants this, rank 1 that");
    assert_status(ls_work_wait(first), LS_EMISMATCH);
    assert_string_equal(ls_last_error(), "rank 0 wants this, rank 1 that");
    assert_status(ls_work_wait(second), LS_EMISMATCH);
    assert_string_equal(ls_last_error(), "rank 0 wants this, rank 1 that");
    assert_status(sum(comm, NULL), LS_EMISMATCH);
    assert_string_equal(ls_last_error(), "rank 0 wants this, rank 1 that");
    assert_status(ls_comm_status(comm), LS_EMISMATCH);
    assert_int_equal(s.n_works, 0);
    ls_comm_destroy(comm);
}

static void handles_outlive_their_group(void **state)
{
    backend_state s;
    ls_comm *comm;
    ls_work *good, *pending;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    s.end_in_start = 1;
    assert_ok(sum(comm, &good));
    assert_ok(sum(comm, &pending));
    ls_comm_destroy(comm);
    assert_int_equal(ls_work_test(pending), 1);
    assert_status(ls_work_wait_for(pending, 0), LS_ECANCELED);
    assert_status(ls_work_wait(pending), LS_ECANCELED);
    assert_last_error("destroyed");
    assert_ok(ls_work_wait(good));
}

static void operations_end_at_their_timeout(void **state)
{
    backend_state s;
    ls_comm *comm;
    int64_t begin_ms = ls_now_ms();

    LS_UNUSED(state);
    assert_ok(fake_world(2, 60, &s, &comm));
    assert_status(sum(comm, NULL), LS_EDEADLINE);
    assert_true(ls_now_ms() - begin_ms >= 60);
    assert_last_error("all_reduce #1");
    ls_comm_destroy(comm);
}

static void abort_later(void *arg)
{
    (void)usleep(20000);
    ls_comm_abort(arg, "enough");
}

/* Where it is stopped makes no difference: here it spins. */
static void the_time_of_a_stopped_process_does_not_count(void **state)
{
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    clock_ns = ls_now_ns();
    assert_ok(fake_world(2, 5000, &s, &comm));
    s.clock_ns = &clock_ns;
    s.end_after = 6;
    s.jump_at = 3;
    s.jump_ns = INT64_C(60000000000);
    assert_ok(sum(comm, NULL));
    clock_ns = 0;
    ls_comm_destroy(comm);
}

static void abort_wakes_waiting_threads(void **state)
{
    ls_thread t = {0};
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    assert_ok(ls_thread_start(&t, "abort", abort_later, comm));
    assert_status(sum(comm, NULL), LS_ECANCELED);
    assert_string_equal(ls_last_error(), "rank 0 aborted: enough");
    ls_thread_join(&t);
    ls_comm_destroy(comm);
}

static void run_one(void *arg)
{
    ls_comm *comm = arg;

    for (int i = 0; i < 200; i++) {
        if (sum(comm, NULL) != LS_OK)
            ls_comm_abort(comm, "failed");
    }
}

/* Two groups of one engine, each used by a thread of its own, and a third thread's handles. */
static void groups_may_be_used_by_several_threads(void **state)
{
    ls_thread t = {0};
    backend_state s;
    ls_comm *comm, *child;
    int *members = ls_calloc(2, sizeof(*members));

    LS_UNUSED(state);
    members[1] = 1;
    assert_ok(fake_world(2, -1, &s, &comm));
    assert_ok(group_create(comm->engine, comm, 1, 0, 2, members, &child));
    s.end_after = 3;
    assert_ok(ls_thread_start(&t, "child", run_one, child));
    for (int i = 0; i < 100; i++) {
        ls_work *w;

        assert_ok(sum(comm, &w));
        assert_ok(sum(comm, NULL));
        assert_ok(ls_work_wait(w));
    }
    ls_thread_join(&t);
    assert_ok(ls_comm_status(child));
    ls_comm_destroy(child);
    ls_comm_destroy(comm);
}

static void abort_while_it_opens(void *arg)
{
    ls_comm *const *comms = arg;
    backend_state *s = comms[0]->engine->parts.backend;

    while (!atomic_load(&s->is_opening))
        (void)usleep(500);
    // First a group without waiting threads, then the one of which a part is being opened.
    ls_comm_abort(comms[1], "the other one");
    ls_comm_abort(comms[0], "enough");
}

/* Other ranks may never open their part of a new group; an abort does not wait for that. */
static void an_abort_ends_a_split_that_waits_for_others(void **state)
{
    ls_thread t = {0};
    backend_state s;
    ls_comm *comms[2];
    ls_comm *child = NULL;
    int *members = ls_calloc(2, sizeof(*members));
    int *again = ls_calloc(2, sizeof(*again));

    LS_UNUSED(state);
    members[1] = again[1] = 1;
    assert_ok(fake_world(2, -1, &s, &comms[0]));
    assert_ok(group_create(comms[0]->engine, comms[0], 1, 0, 2, members, &comms[1]));
    s.opens_never = true;
    assert_ok(ls_thread_start(&t, "abort", abort_while_it_opens, comms));
    assert_status(group_create(comms[0]->engine, comms[0], 2, 0, 2, again, &child), LS_ECANCELED);
    assert_non_null(strstr(ls_last_error(), "rank 0 aborted: enough"));
    ls_thread_join(&t);
    assert_status(ls_comm_status(comms[1]), LS_ECANCELED);
    assert_non_null(strstr(ls_last_error(), "the other one"));
    assert_status(sum(comms[0], NULL), LS_ECANCELED);
    ls_comm_destroy(comms[1]);
    ls_comm_destroy(comms[0]);
}

static void groups_of_one_copy(void **state)
{
    const float in[4] = {1, 2, 3, 4};
    const size_t counts[1] = {4};
    backend_state s;
    float out[4];
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(fake_world(1, -1, &s, &comm));
#define GIVES_THE_SAME(call)                                                                       \
    memset(out, 0, sizeof(out));                                                                   \
    assert_ok(call);                                                                               \
    assert_memory_equal(out, in, sizeof(in))
    GIVES_THE_SAME(ls_all_reduce(comm, in, out, 4, LS_F32, LS_AVG, NULL));
    GIVES_THE_SAME(ls_reduce(comm, in, out, 4, LS_F32, LS_PROD, 0, NULL));
    GIVES_THE_SAME(ls_broadcast(comm, in, out, 4, LS_F32, 0, NULL));
    GIVES_THE_SAME(ls_all_gather(comm, in, out, 4, LS_F32, NULL));
    GIVES_THE_SAME(ls_gather(comm, in, out, 4, LS_F32, 0, NULL));
    GIVES_THE_SAME(ls_scatter(comm, in, out, 4, LS_F32, 0, NULL));
    GIVES_THE_SAME(ls_reduce_scatter(comm, in, out, 4, LS_F32, LS_MAX, NULL));
    GIVES_THE_SAME(ls_all_to_all(comm, in, out, 4, LS_F32, NULL));
    GIVES_THE_SAME(ls_all_gather_v(comm, in, out, counts, LS_F32, NULL));
    GIVES_THE_SAME(ls_all_to_all_v(comm, in, counts, out, counts, LS_F32, NULL));
#undef GIVES_THE_SAME
    assert_ok(ls_all_reduce(comm, out, out, 4, LS_F32, LS_SUM, NULL));
    assert_memory_equal(out, in, sizeof(in));
    assert_ok(ls_barrier(comm, NULL));
    assert_status(ls_send(comm, in, 1, LS_F32, 0, 0, NULL), LS_EINVAL);
    assert_status(ls_recv(comm, out, 1, LS_F32, LS_ANY_SOURCE, 0, NULL), LS_EINVAL);
    assert_string_equal(ls_comm_transport(comm), "self");
    ls_comm_destroy(comm);
}

/* After warm-up an operation allocates nothing, blocking or not. */
static void steady_operations_allocate_nothing(void **state)
{
    const size_t counts[2] = {1, 2};
    backend_state s;
    uint64_t before = 0;
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    s.end_after = 2;
    for (int i = 0; i < 20; i++) {
        ls_work *w;

        if (i == 10)
            before = ls_alloc_count();
        assert_ok(sum(comm, &w));
        assert_ok(ls_all_gather_v(comm, x, y, counts, LS_F32, NULL));
        assert_ok(ls_work_wait(w));
    }
    assert_int_equal(ls_alloc_count(), before);
    ls_comm_destroy(comm);
}

static void no_memory_fails_the_call_alone(void **state)
{
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    s.end_in_start = 1;
    ls_alloc_fail_at(1);
    assert_status(sum(comm, NULL), LS_ENOMEM);
    ls_alloc_fail_at(0);
    assert_ok(sum(comm, NULL));
    assert_int_equal(s.last.stamp.sequence, 1);
    ls_comm_destroy(comm);
}

static void a_forked_child_is_refused(void **state)
{
    backend_state s;
    ls_comm *comm;
    int status;
    pid_t pid;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    pid = fork();
    if (pid == 0) {
        const bool is_refused = sum(comm, NULL) == LS_EINVAL && ls_comm_status(comm) == LS_EINVAL;

        ls_comm_abort(comm, "nothing happens");
        ls_comm_destroy(comm);
        _exit(is_refused ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_ok(ls_comm_status(comm));
    ls_comm_destroy(comm);
}

static void the_recorder_sees_every_operation(void **state)
{
    recorder_entry entries[8];
    backend_state s;
    ls_comm *comm;
    ls_work *w;
    int fd, n;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    assert_ok(recorder_create_fd(&fd));
    recorder_close(comm->engine->parts.recorder);
    assert_ok(recorder_open(fd, 0, &comm->engine->parts.recorder));
    s.end_in_start = 1;
    assert_ok(sum(comm, NULL));
    assert_ok(ls_barrier(comm, &w));
    assert_ok(recorder_read(fd, entries, 8, &n));
    assert_int_equal(n, 2);
    assert_int_equal(entries[0].stamp.kind, COLL_ALL_REDUCE);
    assert_int_equal(entries[0].bytes, 8 * sizeof(float)); // as nccl-tests counts them
    assert_true(entries[0].end_ns >= entries[0].start_ns);
    assert_int_equal(entries[1].stamp.kind, COLL_BARRIER);
    assert_int_equal(entries[1].end_ns, 0);
    fake_end(comm, &s, 0, LS_OK, NULL);
    assert_ok(ls_work_wait(w));
    ls_comm_destroy(comm);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocking_calls_progress_by_themselves),
        cmocka_unit_test(operations_are_numbered_and_stamped),
        cmocka_unit_test(refused_arguments_take_no_number),
        cmocka_unit_test(what_moves_nothing_becomes_a_barrier),
        cmocka_unit_test(counts_are_copied),
        cmocka_unit_test(all_to_all_in_place_reads_from_a_copy),
        cmocka_unit_test(waiting_for_a_while_leaves_the_work_pending),
        cmocka_unit_test(the_progress_thread_carries_on_and_sleeps),
        cmocka_unit_test(what_can_move_on_does),
        cmocka_unit_test(rank_that_slept_for_little_stays_awake_next_time),
        cmocka_unit_test(ranks_sleep_while_threads_compete_for_cores),
        cmocka_unit_test(a_failed_work_breaks_its_group_for_ever),
        cmocka_unit_test(handles_outlive_their_group),
        cmocka_unit_test(operations_end_at_their_timeout),
        cmocka_unit_test(the_time_of_a_stopped_process_does_not_count),
        cmocka_unit_test(abort_wakes_waiting_threads),
        cmocka_unit_test(groups_may_be_used_by_several_threads),
        cmocka_unit_test(an_abort_ends_a_split_that_waits_for_others),
        cmocka_unit_test(groups_of_one_copy),
        cmocka_unit_test(steady_operations_allocate_nothing),
        cmocka_unit_test(no_memory_fails_the_call_alone),
        cmocka_unit_test(a_forked_child_is_refused),
        cmocka_unit_test(the_recorder_sees_every_operation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
