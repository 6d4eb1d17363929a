/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_watch.c - the engine's watchdog and its threads over a backend without peers: causes at the
 * end of a group, and threads that sleep or wait behind another one. The fake backend sleeps until
 * it is woken, so a wake-up that is missing leaves the test waiting.
 */
#include "base/unit.h"
#include "comm/comm.h"
#include "comm/fake_backend.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

enum { SOON_MS = 60000 };

static float x[8], y[8];

static ls_status sum(ls_comm *comm, ls_work **out)
{
    return ls_all_reduce(comm, x, y, 8, LS_F32, LS_SUM, out);
}

/* --- a thread that waits --- */

typedef struct waiter {
    ls_work *work;
    ls_thread thread;
    ls_status status;
    char text[LS_ERROR_BYTES];
    atomic_bool has_returned;
} waiter;

static void wait_for_work(void *arg)
{
    waiter *w = arg;

    w->status = ls_work_wait(w->work);
    ls_error_save(w->text);
    atomic_store(&w->has_returned, true);
}

static void wait_for_event(void *arg)
{
    waiter *w = arg;
    engine *e = w->work->engine;

    engine_enter(e);
    (void)drive_until(e, w->work, -1);
    engine_leave(e);
    atomic_store(&w->has_returned, true);
}

static void start_waiter(waiter *w, ls_work *work, void (*fn)(void *))
{
    w->work = work;
    assert_ok(ls_thread_start(&w->thread, "waiter", fn, w));
}

static void await_waiter(waiter *w)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON_MS);

    while (!atomic_load(&w->has_returned) && ls_deadline_left(deadline_ms) != 0)
        (void)usleep(1000);
    assert_true(atomic_load(&w->has_returned));
    ls_thread_join(&w->thread);
}

/* A group with an operation for which a thread sleeps in the backend. */
static void start_sleeper(backend_state *s, ls_comm **comm, waiter *w)
{
    ls_work *work;

    assert_ok(fake_world(2, -1, s, comm));
    s->sleeps_on = true;
    assert_ok(ls_all_reduce(*comm, x, y, 8, LS_F32, LS_SUM, ls_work_waited(&work)));
    start_waiter(w, work, wait_for_work);
    while (atomic_load(&s->n_wait) == 0)
        (void)usleep(1000);
}

/* --- causes --- */

/* Rank 1 has left after the operation, but the connection has lost its part of it. */
static void group_breaks_when_the_part_of_a_rank_that_has_left_is_lost(void **state)
{
    const job_cause lost = {.kind = CAUSE_FAULT, .rank = 1, .text = "connection to rank 1 lost"};
    backend_state s;
    ls_comm *comm;
    ls_work *w;

    LS_UNUSED(state);
    assert_ok(fake_world(2, SOON_MS, &s, &comm));
    assert_ok(ls_all_reduce(comm, x, y, 8, LS_F32, LS_SUM, ls_work_waited(&w)));
    engine_enter(comm->engine);
    comm->engine->left_ns[1] = ls_now_ns();
    comm->left_after = ls_calloc(2, sizeof(*comm->left_after));
    assert_non_null(comm->left_after);
    comm->left_after[1] = w->b.op.stamp.sequence + 1;
    comm->engine->host.broken(comm->engine, &lost);
    engine_leave(comm->engine);
    assert_status(ls_work_wait(w), LS_EPEER);
    assert_string_equal(ls_last_error(), lost.text);
    ls_comm_destroy(comm);
}

/* The same, when the rank's leave of the job is known before that of the group. */
static void it_breaks_when_the_last_operation_is_known(void **state)
{
    const job_cause lost = {.kind = CAUSE_FAULT, .rank = 1, .text = "connection to rank 1 lost"};
    const int64_t now_ns = ls_now_ns();
    backend_state s;
    ls_comm *comm;
    ls_work *w;
    engine *e;

    LS_UNUSED(state);
    assert_ok(fake_world(2, SOON_MS, &s, &comm));
    e = comm->engine;
    assert_ok(ls_all_reduce(comm, x, y, 8, LS_F32, LS_SUM, ls_work_waited(&w)));
    engine_enter(e);
    e->left_ns[1] = now_ns;
    e->host.broken(e, &lost);
    watch_check(e, now_ns);
    assert_int_equal(comm->status, LS_OK);
    comm->left_after = ls_calloc(2, sizeof(*comm->left_after));
    assert_non_null(comm->left_after);
    comm->left_after[1] = w->b.op.stamp.sequence + 1;
    watch_at(e, now_ns);
    watch_check(e, now_ns);
    assert_int_equal(comm->status, LS_EPEER);
    engine_leave(e);
    assert_status(ls_work_wait(w), LS_EPEER);
    assert_string_equal(ls_last_error(), lost.text);
    ls_comm_destroy(comm);
}

static void end_of_a_group_does_not_hide_an_earlier_failure(void **state)
{
    backend_state s;
    ls_comm *comm;
    ls_work *w;

    LS_UNUSED(state);
    assert_ok(fake_world(2, -1, &s, &comm));
    assert_ok(ls_all_reduce(comm, x, y, 8, LS_F32, LS_SUM, ls_work_waited(&w)));
    fake_end(comm, &s, 0, LS_ENOMEM, "no memory for a message");
    ls_comm_destroy(comm);
    assert_status(ls_work_wait(w), LS_ENOMEM);
    assert_last_error("no memory for a message");
}

/* --- wake-ups --- */

static void a_break_by_another_thread_wakes_the_sleeper(void **state)
{
    const job_cause cause = {.kind = CAUSE_FAULT, .rank = 1, .text = "rank 1 is lost"};
    waiter w = {0};
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    start_sleeper(&s, &comm, &w);
    engine_enter(comm->engine);
    engine_break(comm->engine, comm, &cause, LS_EPEER, false);
    engine_leave(comm->engine);
    await_waiter(&w);
    assert_int_equal(w.status, LS_EPEER);
    assert_string_equal(w.text, cause.text);
    ls_comm_destroy(comm);
}

static void a_shorter_timeout_wakes_the_sleeper(void **state)
{
    waiter w = {0};
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    start_sleeper(&s, &comm, &w);
    ls_work_set_timeout(w.work, 0);
    await_waiter(&w);
    assert_int_equal(w.status, LS_EDEADLINE);
    ls_comm_destroy(comm);
}

/* The event of the second operation becomes known to a thread that waits for the first. */
static void a_caller_behind_another_gets_its_event(void **state)
{
    static int event;
    waiter first = {0};
    waiter second = {0};
    backend_state s;
    ls_comm *comm;
    ls_work *work;
    engine *e;
    bool waits = false;
    int n_passes;

    LS_UNUSED(state);
    start_sleeper(&s, &comm, &first);
    e = comm->engine;
    assert_ok(ls_all_reduce(comm, x, y, 8, LS_F32, LS_SUM, ls_work_waited(&work)));
    work->waits_for_event = true;
    start_waiter(&second, work, wait_for_event);
    while (!waits) {
        (void)usleep(1000);
        engine_enter(e);
        waits = e->n_waiting == 1;
        engine_leave(e);
    }
    engine_enter(e);
    work->b.event = (accel_event *)&event;
    s.n_moves = INT_MAX;
    n_passes = atomic_load(&s.n_progress);
    e->parts.ops->wake(e->parts.backend);
    engine_leave(e);
    while (atomic_load(&s.n_progress) == n_passes)
        (void)usleep(1000);
    engine_enter(e);
    s.n_moves = 0;
    engine_leave(e);
    await_waiter(&second);
    engine_enter(e);
    work->b.event = NULL;
    work->waits_for_event = false;
    engine_leave(e);
    fake_end(comm, &s, 1, LS_OK, NULL);
    fake_end(comm, &s, 0, LS_OK, NULL);
    await_waiter(&first);
    assert_int_equal(first.status, LS_OK);
    assert_ok(ls_work_wait(work));
    ls_comm_destroy(comm);
}

/* --- the progress thread --- */

static bool has_no_threads;
static int n_refused;

ls_status __real_ls_thread_start(ls_thread *t, const char *name, void (*fn)(void *), void *arg);
ls_status __wrap_ls_thread_start(ls_thread *t, const char *name, void (*fn)(void *), void *arg);

ls_status __wrap_ls_thread_start(ls_thread *t, const char *name, void (*fn)(void *), void *arg)
{
    if (!has_no_threads)
        return __real_ls_thread_start(t, name, fn, arg);
    n_refused++;
    return ls_fail(LS_ENOMEM, "no thread \"%s\"", name);
}

static void a_progress_thread_that_cannot_start_is_tried_once(void **state)
{
    backend_state s;
    ls_comm *comm;

    LS_UNUSED(state);
    has_no_threads = true;
    assert_ok(fake_world(2, -1, &s, &comm));
    for (int i = 0; i < 5; i++) {
        ls_work *w;

        assert_ok(sum(comm, &w));
        fake_end(comm, &s, 0, LS_OK, NULL);
        assert_ok(ls_work_wait(w));
    }
    assert_int_equal(n_refused, 1);
    ls_comm_destroy(comm);
    has_no_threads = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_breaks_when_the_part_of_a_rank_that_has_left_is_lost),
        cmocka_unit_test(it_breaks_when_the_last_operation_is_known),
        cmocka_unit_test(end_of_a_group_does_not_hide_an_earlier_failure),
        cmocka_unit_test(a_break_by_another_thread_wakes_the_sleeper),
        cmocka_unit_test(a_shorter_timeout_wakes_the_sleeper),
        cmocka_unit_test(a_caller_behind_another_gets_its_event),
        cmocka_unit_test(a_progress_thread_that_cannot_start_is_tried_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
