/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_poller.c - the event loop: descriptors, timers that change in callbacks, and wake-ups from
 * other threads.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "host/process_id.h"
#include "base/thread.h"
#include "net/poller.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- descriptors --- */

typedef struct watcher {
    poller *p;
    poll_watch *watch;
    poll_watch *also_unwatch;
    int fd;
    int n_calls;
    unsigned last;
} watcher;

static void on_event(void *arg, unsigned events)
{
    watcher *w = arg;
    char byte;

    w->n_calls++;
    w->last = events;
    if ((events & POLL_READ) != 0 && recv(w->fd, &byte, 1, MSG_DONTWAIT) < 0)
        w->last |= POLL_BROKEN;
    poller_unwatch(&w->also_unwatch);
}

static void open_pair(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static void readable_and_writable_are_reported(void **state)
{
    poller *p;
    watcher w = {0};
    int fds[2];

    LS_UNUSED(state);
    open_pair(fds);
    w.fd = fds[0];
    assert_ok(poller_create(&p));
    assert_ok(poller_watch(p, fds[0], POLL_READ, on_event, &w, &w.watch));
    assert_ok(poller_run_once(p, 0));
    assert_int_equal(w.n_calls, 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    assert_ok(poller_run_once(p, 1000));
    assert_int_equal(w.n_calls, 1);
    assert_int_equal(w.last, POLL_READ);
    assert_ok(poller_change(w.watch, POLL_WRITE));
    assert_ok(poller_run_once(p, 1000));
    assert_int_equal(w.last, POLL_WRITE);
    assert_ok(poller_change(w.watch, POLL_READ));
    close(fds[1]);
    assert_ok(poller_run_once(p, 1000));
    assert_true((w.last & POLL_READ) != 0); // the end of the stream is readable
    poller_unwatch(&w.watch);
    w.n_calls = 0;
    assert_ok(poller_run_once(p, 0));
    assert_int_equal(w.n_calls, 0);
    poller_destroy(p);
    close(fds[0]);
}

static void an_unwatched_descriptor_is_silent_even_in_the_same_batch(void **state)
{
    poller *p;
    watcher w[2] = {{0}, {0}};
    int a[2];
    int b[2];

    LS_UNUSED(state);
    open_pair(a);
    open_pair(b);
    w[0].fd = a[0];
    w[1].fd = b[0];
    assert_ok(poller_create(&p));
    assert_ok(poller_watch(p, a[0], POLL_READ, on_event, &w[0], &w[0].watch));
    assert_ok(poller_watch(p, b[0], POLL_READ, on_event, &w[1], &w[1].watch));
    w[0].also_unwatch = w[1].watch; // the first callback unwatches the other
    w[1].also_unwatch = w[0].watch;
    assert_int_equal(write(a[1], "x", 1), 1);
    assert_int_equal(write(b[1], "x", 1), 1);
    assert_ok(poller_run_once(p, 1000));
    assert_int_equal(w[0].n_calls + w[1].n_calls, 1);
    poller_destroy(p);
    close(a[0]);
    close(a[1]);
    close(b[0]);
    close(b[1]);
}

/* --- timers --- */

typedef struct alarm_state {
    poller *p;
    poll_timer timer;
    struct alarm_state *cancels;
    int n_calls;
    int order;
    int again_ms; /* > 0: sets itself again */
} alarm_state;

static int n_calls;

static void on_alarm(void *arg)
{
    alarm_state *a = arg;

    a->n_calls++;
    a->order = ++n_calls;
    if (a->cancels != NULL)
        poller_timer_cancel(&a->cancels->timer);
    if (a->again_ms > 0)
        poller_timer_set(a->p, &a->timer, ls_now_ms() + a->again_ms - 1, on_alarm, a);
}

static void run_for(poller *p, int ms)
{
    const int64_t end_ms = ls_deadline_ms(ms);

    while (ls_deadline_left(end_ms) > 0)
        assert_ok(poller_run_once(p, ls_deadline_left(end_ms)));
}

static void timers_fire_in_order_and_not_too_early(void **state)
{
    poller *p;
    alarm_state a[3] = {{0}};
    const int64_t now_ms = ls_now_ms();

    LS_UNUSED(state);
    n_calls = 0;
    assert_ok(poller_create(&p));
    poller_timer_set(p, &a[0].timer, now_ms + 60, on_alarm, &a[0]);
    poller_timer_set(p, &a[1].timer, now_ms + 20, on_alarm, &a[1]);
    poller_timer_set(p, &a[2].timer, now_ms + 40, on_alarm, &a[2]);
    while (n_calls < 3) {
        assert_ok(poller_run_once(p, 10000));
        for (int i = 0; i < 3; i++)
            assert_true(a[i].n_calls == 0 || ls_now_ms() >= a[i].timer.due_ms);
    }
    assert_int_equal(a[1].order, 1);
    assert_int_equal(a[2].order, 2);
    assert_int_equal(a[0].order, 3);
    poller_destroy(p);
}

static void timers_can_be_moved_cancelled_and_set_from_callbacks(void **state)
{
    poller *p;
    alarm_state a[3] = {{0}};
    const int64_t now_ms = ls_now_ms();

    LS_UNUSED(state);
    n_calls = 0;
    assert_ok(poller_create(&p));
    a[0].cancels = &a[1];
    a[2].p = p;
    a[2].again_ms = 1;
    poller_timer_set(p, &a[0].timer, now_ms + 100000, on_alarm, &a[0]);
    poller_timer_set(p, &a[0].timer, now_ms, on_alarm, &a[0]); // moved
    poller_timer_set(p, &a[1].timer, now_ms, on_alarm, &a[1]); // due in the same round
    poller_timer_set(p, &a[2].timer, now_ms, on_alarm, &a[2]);
    assert_ok(poller_run_once(p, 0));
    assert_int_equal(a[0].n_calls, 1);
    assert_int_equal(a[1].n_calls, 0);
    assert_int_equal(a[2].n_calls, 1); // once per round, although due again at once
    assert_ok(poller_run_once(p, 1000));
    assert_int_equal(a[2].n_calls, 2);
    poller_timer_cancel(&a[2].timer);
    poller_timer_cancel(&a[2].timer);
    run_for(p, 20);
    assert_int_equal(a[2].n_calls, 2);
    poller_destroy(p);
}

/* --- waking --- */

typedef struct waker {
    poller *p;
    atomic_int n_asked; // written by the thread, read by the loop
} waker;

static void wake_often(void *arg)
{
    waker *w = arg;

    for (int i = 0; i < 1000; i++) {
        atomic_fetch_add_explicit(&w->n_asked, 1, memory_order_release);
        poller_wake(w->p);
    }
}

static void wake_ups_of_other_threads_are_never_lost(void **state)
{
    waker w = {0};
    ls_thread thread = {0};
    const int64_t deadline_ms = ls_deadline_ms(30000);

    LS_UNUSED(state);
    assert_ok(poller_create(&w.p));
    assert_ok(ls_thread_start(&thread, "wake", wake_often, &w));
    while (atomic_load_explicit(&w.n_asked, memory_order_acquire) < 1000)
        assert_ok(poller_run_once(w.p, 30000)); // with a lost wake-up this waits until its timeout
    ls_thread_join(&thread);
    assert_true(ls_deadline_left(deadline_ms) > 0);
    poller_destroy(w.p);
}

static void many_wake_ups_end_one_wait_and_no_more(void **state)
{
    poller *p;
    int64_t start_ms;

    LS_UNUSED(state);
    assert_ok(poller_create(&p));
    for (int i = 0; i < 3; i++)
        poller_wake(p);
    start_ms = ls_now_ms();
    assert_ok(poller_run_once(p, 30000));
    assert_true(ls_now_ms() - start_ms < 30000);
    start_ms = ls_now_ms();
    assert_ok(poller_run_once(p, 20));
    assert_true(ls_now_ms() - start_ms >= 20);
    poller_destroy(p);
}

/* --- a process that was stopped --- */

typedef struct stopped_run {
    _Atomic bool timer_ran;
    _Atomic bool has_read;
    _Atomic bool timer_was_first;
} stopped_run;

static void on_due(void *arg)
{
    stopped_run *r = arg;

    r->timer_was_first = !r->has_read;
    r->timer_ran = true;
}

static void on_byte(void *arg, unsigned events)
{
    stopped_run *r = arg;

    LS_UNUSED(events);
    r->has_read = true;
}

/* The child's loop, until the timer and the byte have come. */
static void run_loop(stopped_run *r, int fd, int64_t due_ms)
{
    poll_timer timer = {.is_set = false};
    poll_watch *watch;
    poller *p;

    if (poller_create(&p) != LS_OK || poller_watch(p, fd, POLL_READ, on_byte, r, &watch) != LS_OK)
        _exit(2);
    poller_timer_set(p, &timer, due_ms, on_due, r);
    while (!r->timer_ran || !r->has_read)
        if (poller_run_once(p, -1) != LS_OK)
            _exit(2);
    _exit(0);
}

/* Stops a child that waits, until a byte has come and the timer is due. False: the timer was due
 * before it was stopped. */
static bool stop_while_it_waits(stopped_run *r, int64_t wait_ms)
{
    const int64_t due_ms = ls_now_ms() + wait_ms;
    bool was_early;
    int fds[2];
    int status;
    pid_t child;

    *r = (stopped_run){.timer_ran = false};
    open_pair(fds);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        run_loop(r, fds[0], due_ms);
    while (process_state(child) != 'S' && !r->timer_ran)
        usleep(1000);
    assert_int_equal(kill(child, SIGSTOP), 0);
    while (process_state(child) != 'T')
        usleep(1000);
    was_early = !r->timer_ran;
    assert_int_equal(write(fds[1], "x", 1), 1);
    while (ls_now_ms() <= due_ms)
        usleep(1000);
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(fds[0]);
    close(fds[1]);
    return was_early;
}

static void what_came_while_the_process_was_stopped_comes_before_timers(void **state)
{
    stopped_run *r =
        mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int64_t wait_ms = 100;

    LS_UNUSED(state);
    assert_true(r != MAP_FAILED);
    while (!stop_while_it_waits(r, wait_ms))
        wait_ms *= 2;
    assert_false(r->timer_was_first);
    assert_int_equal(munmap(r, sizeof(*r)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readable_and_writable_are_reported),
        cmocka_unit_test(an_unwatched_descriptor_is_silent_even_in_the_same_batch),
        cmocka_unit_test(timers_fire_in_order_and_not_too_early),
        cmocka_unit_test(timers_can_be_moved_cancelled_and_set_from_callbacks),
        cmocka_unit_test(what_came_while_the_process_was_stopped_comes_before_timers),
        cmocka_unit_test(wake_ups_of_other_threads_are_never_lost),
        cmocka_unit_test(many_wake_ups_end_one_wait_and_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
