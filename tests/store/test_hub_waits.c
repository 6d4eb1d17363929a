/* SPDX-License-Identifier: Apache-2.0 */
/* test_hub_waits.c - operations in which ranks wait, and the calls that they report. */
#include "store/hub_scene.h"

#include "base/clock.h"
#include "base/text.h"
#include "net/socket.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

/* --- waiting operations --- */

static void ranks_that_disagree_are_both_named_to_all(void **state)
{
    hub_thread *t = start(3);
    control *c[3];
    const op_stamp sum = stamp_of(COLL_ALL_REDUCE, 17, 100, "f+0x1c");
    const op_stamp cast = stamp_of(COLL_BROADCAST, 17, 100, "g+0x40");

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        c[i] = join(t, i, 3);
    waits(c[1], &cast, 3);
    waits(c[0], &sum, 3);
    for (int i = 0; i < 3; i++) {
        const job_cause cause = await_cause(c[i]);

        assert_int_equal(cause.kind, CAUSE_MISMATCH);
        assert_int_equal(cause.group, 0);
        assert_string_equal(cause.text,
                            "rank 0: all_reduce #17 (sum, 100 float32) at f+0x1c; rank 1: "
                            "broadcast #17 (root 0, 100 float32) at g+0x40");
    }
    for (int i = 0; i < 3; i++)
        control_close(c[i]);
    hub_thread_stop(t, SOON);
}

static void agreeing_ranks_and_other_numbers_are_left_in_peace(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    op_stamp s = stamp_of(COLL_ALL_REDUCE, 1, 100, "f+0x1c");
    op_stamp other = stamp_of(COLL_BROADCAST, 2, 7, "g+0x40");

    LS_UNUSED(state);
    waits(a, &s, 2);
    text_format(s.site, sizeof(s.site), "elsewhere");
    waits(b, &s, 2);
    waits(b, &other, 2);
    other.group = 9; // the same number in another group
    other.sequence = 1;
    waits(b, &other, 2);
    assert_ok(control_arrived(b, &s, 0));
    // Messages have numbers of their own.
    s = stamp_of(COLL_SEND, 1, 3, "h");
    s.root = 1;
    waits(a, &s, 2);
    s.kind = COLL_RECV;
    s.root = 0;
    waits(b, &s, 2);
    assert_ok(ls_store_set(control_store(a), "k", "v", 1)); // the hub has read all of it
    assert_ok(ls_store_set(control_store(b), "k", "v", 1));
    assert_false(has_cause(a));
    assert_false(has_cause(b));
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

/* Until the hub has sent a leave. */
static group_leave await_leave(control *c)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);
    group_leave leave = {0};

    while (!control_next_group_leave(c, &leave)) {
        assert_ok(net_wait(control_fd(c), POLLIN, deadline_ms));
        assert_ok(control_poll(c));
    }
    return leave;
}

static bool has_leave(control *c)
{
    group_leave leave;

    assert_ok(ls_store_set(control_store(c), "k", "v", 1)); // all that the hub sent before has come
    return control_next_group_leave(c, &leave);
}

static void members_that_wait_are_notified_of_a_leave(void **state)
{
    hub_thread *t = start(3);
    control *c[3];
    const op_stamp s = stamp_of(COLL_ALL_REDUCE, 4, 100, "f+0x1c");
    group_leave leave;
    int rank = -1;

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        c[i] = join(t, i, 3);
    waits(c[0], &s, 3);
    assert_ok(ls_store_set(control_store(c[0]), "k", "v", 1)); // the hub has read all of it
    assert_ok(control_leave(c[1], 9, 77, 3));                  // another group
    assert_ok(control_leave(c[1], 0, 3, 3));
    control_close(c[1]);
    leave = await_leave(c[0]);
    assert_int_equal(leave.group, 0);
    assert_int_equal(leave.rank, 1);
    assert_int_equal(leave.sequence, 3);
    await_count(&seen.n_left, 1);
    assert_false(has_leave(c[0]));
    assert_true(control_next_left(c[0], &rank));
    assert_int_equal(rank, 1);
    assert_false(control_next_left(c[0], &rank));
    assert_false(has_leave(c[2])); // it does not wait
    assert_true(control_next_left(c[2], &rank));
    assert_false(has_cause(c[0]));
    control_close(c[0]);
    control_close(c[2]);
    hub_thread_stop(t, SOON);
}

static void a_member_that_begins_to_wait_is_sent_all_leaves_of_its_group(void **state)
{
    hub_thread *t = start(4);
    control *c[4];
    const op_stamp s = stamp_of(COLL_BARRIER, 9, 0, "f");
    uint64_t ticket = 0;

    LS_UNUSED(state);
    for (int i = 0; i < 4; i++)
        c[i] = join(t, i, 4);
    for (int i = 1; i < 3; i++) {
        assert_ok(control_leave(c[i], 0, (uint64_t)i, 4));
        assert_ok(ls_store_set(control_store(c[i]), "k", "v", 1));
    }
    assert_ok(report_wait(c[0], &s, 1, 0, -1, 20, &ticket));
    assert_false(control_is_acknowledged(c[0], ticket));
    for (int i = 1; i < 3; i++) {
        const group_leave leave = await_leave(c[0]);

        assert_int_equal(leave.rank, i);
        assert_int_equal(leave.sequence, i);
    }
    assert_false(has_leave(c[0]));
    assert_true(control_is_acknowledged(c[0], ticket));
    // The record goes with the last member.
    assert_ok(control_leave(c[0], 0, 9, 4));
    assert_ok(control_leave(c[3], 0, 9, 4));
    assert_ok(ls_store_set(control_store(c[3]), "k", "v", 1));
    waits(c[3], &s, 4);
    assert_false(has_leave(c[3]));
    for (int i = 0; i < 4; i++)
        control_close(c[i]);
    hub_thread_stop(t, SOON);
}

/* Receives from one peer with different tags have the same number there. */
static void hub_distinguishes_two_receives_of_a_rank_from_one_peer(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    op_stamp s = stamp_of(COLL_RECV, 1, 10, "f");

    LS_UNUSED(state);
    s.root = 1;
    assert_ok(report_wait(a, &s, 1, 2, -1, 20, NULL));
    assert_ok(report_wait(a, &s, 2, 2, 0, 50, NULL));
    assert_ok(control_arrived(a, &s, 1));
    await_count(&seen.n_late, 3); // the other one is still reported
    assert_ok(control_arrived(a, &s, 2));
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

static void hub_makes_a_wait_report_on_request(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    const op_stamp s = stamp_of(COLL_BARRIER, 3, 0, "f");

    LS_UNUSED(state);
    assert_ok(report_wait(a, &s, 1, 0, 60, 20, NULL));
    await_count(&seen.n_late, 2);
    ls_mutex_lock(&seen.lock);
    assert_non_null(strstr(seen.late, "barrier #3"));
    assert_non_null(strstr(seen.late, "arrived 0, not arrived 1 (has not joined)"));
    ls_mutex_unlock(&seen.lock);
    control_close(a);
    hub_thread_stop(t, SOON);
}

/* The report of an operation blocks the thread of the hub, as a suspension does, until long after
 * the report of another one is due. */
static void suspension_of_the_hub_counts_in_no_wait_report(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    const op_stamp late = stamp_of(COLL_BARRIER, 3, 0, "f");
    const op_stamp now = stamp_of(COLL_BARRIER, 4, 0, "g");
    float waited_s = -1;

    LS_UNUSED(state);
    assert_ok(report_wait(a, &late, 1, 0, 200, 20, NULL));
    assert_ok(ls_store_set(control_store(a), "k", "v", 1)); // the hub has read it
    ls_mutex_lock(&seen.lock);
    assert_ok(report_wait(a, &now, 2, 0, 0, 20, NULL));
    (void)poll(NULL, 0, 3000);
    ls_mutex_unlock(&seen.lock);
    assert_ok(control_arrived(a, &now, 2));
    while (waited_s < 0) {
        ls_mutex_lock(&seen.lock);
        if (strstr(seen.late, "barrier #3") != NULL)
            waited_s = strtof(strstr(seen.late, "waited for ") + strlen("waited for "), NULL);
        ls_mutex_unlock(&seen.lock);
        (void)poll(NULL, 0, 5);
    }
    assert_true(waited_s < 2.5F);
    control_close(a);
    hub_thread_stop(t, SOON);
}

static void wait_report_names_the_missing_ranks_and_their_state(void **state)
{
    hub_thread *t = start(4);
    control *c[4];
    const op_stamp s = stamp_of(COLL_ALL_REDUCE, 17, 262144, "train_step+0x1c");
    const op_stamp other = stamp_of(COLL_BROADCAST, 16, 1, "load+0x8");

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        c[i] = join(t, i, 4);
    waits(c[2], &other, 4);
    waits(c[1], &s, 4);
    assert_ok(report_wait(c[0], &s, 0, 4, 0, 10200, NULL));
    await_count(&seen.n_late, 1);
    ls_mutex_lock(&seen.lock);
    print_message("%s\n", seen.late);
    assert_non_null(strstr(seen.late, "all_reduce #17 (sum, 262144 float32) at train_step+0x1c"));
    assert_non_null(strstr(seen.late, "1 MiB"));
    assert_non_null(strstr(seen.late, "waited for 10.2 s"));
    assert_non_null(strstr(seen.late, "in broadcast #16"));
    assert_non_null(strstr(seen.late, "last message "));
    assert_non_null(strstr(seen.late, "3 (has not joined)"));
    ls_mutex_unlock(&seen.lock);
    for (int i = 0; i < 3; i++)
        control_close(c[i]);
    hub_thread_stop(t, SOON);
}

static void describe_stopped(void *self, int rank, char *buf, size_t n)
{
    LS_UNUSED(self);
    text_format(buf, n, "%s", rank == 1 ? "stopped" : "running");
}

static void a_rank_that_is_stopped_after_it_arrived_is_named(void **state)
{
    const op_stamp s = stamp_of(COLL_ALL_REDUCE, 1, 1, "f");
    hub_options opt = options(2);
    hub_thread *t;
    control *c[2];
    job_cause cause = {.kind = CAUSE_DEADLINE, .group = 0, .rank = -1, .text = "its timeout"};

    LS_UNUSED(state);
    opt.events.describe = describe_stopped;
    t = start_with(&opt);
    for (int i = 0; i < 2; i++)
        c[i] = join(t, i, 2);
    waits(c[1], &s, 2);
    assert_ok(ls_store_set(control_store(c[1]), "k", "v", 1)); // the hub has read it
    assert_ok(report_wait(c[0], &s, 0, 2, 0, 5000, NULL));
    await_count(&seen.n_late, 1);
    ls_mutex_lock(&seen.lock);
    assert_non_null(strstr(seen.late, "arrived 0-1: all ranks have arrived; stopped: 1 (pid "));
    ls_mutex_unlock(&seen.lock);
    assert_ok(control_fail(c[0], &cause));
    cause = await_cause(c[0]);
    assert_non_null(strstr(cause.text, "its timeout; stopped: 1 (pid "));
    for (int i = 0; i < 2; i++)
        control_close(c[i]);
    hub_thread_stop(t, SOON);
}

static void wait_reports_repeat_with_growing_pauses(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    const op_stamp s = stamp_of(COLL_ALL_REDUCE, 1, 1, "f");
    const int64_t start_ms = ls_now_ms();
    int n;

    LS_UNUSED(state);
    assert_ok(report_wait(a, &s, 0, 2, 0, 100, NULL));
    assert_ok(report_wait(a, &s, 0, 2, 0, 100, NULL)); // no second line
    await_count(&seen.n_late, 3);
    assert_true(seen.late_ms[1] - start_ms >= 100);
    assert_true(seen.late_ms[2] - start_ms >= 300);
    assert_ok(control_arrived(a, &s, 0));
    assert_ok(ls_store_set(control_store(a), "k", "v", 1));
    n = count_of(&seen.n_late);
    poll(NULL, 0, 450);
    assert_int_equal(count_of(&seen.n_late), n);
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

/* --- stages --- */

/* Ranks 0 and 1 connect; rank 0 watches over its stage itself, rank 1's engine does not let it. */
static void a_stage_that_lasts_is_reported(void **state)
{
    const control_stage stage = {
        .group = GROUP_CONNECT, .n_members = 3, .what = "connecting to the other ranks"};
    control_stage blind = stage;
    hub_thread *t = start(3);
    control *a = join(t, 0, 3);
    control *b = join(t, 1, 3);

    LS_UNUSED(state);
    setenv("LOCKSTEP_LATE_MS", "60", 1);
    control_begin_stage(a, &stage);
    while (count_of(&seen.n_late) == 0) {
        assert_ok(control_poll(a));
        (void)control_watch(a);
        poll(NULL, 0, 1);
    }
    ls_mutex_lock(&seen.lock);
    assert_int_equal(strncmp(seen.late, "connecting to the other ranks has waited for ", 45), 0);
    assert_non_null(strstr(seen.late, "arrived 0, not arrived 1 ("));
    assert_non_null(strstr(seen.late, ", 2 (has not joined)"));
    ls_mutex_unlock(&seen.lock);
    control_end_stage(a);
    assert_ok(ls_store_set(control_store(a), "k", "v", 1)); // no report of it is to come any more
    ls_mutex_lock(&seen.lock);
    seen.n_late = 0;
    ls_mutex_unlock(&seen.lock);
    blind.is_blind = true;
    control_begin_stage(b, &blind);
    while (count_of(&seen.n_late) == 0)
        poll(NULL, 0, 1);
    control_end_stage(b);
    unsetenv("LOCKSTEP_LATE_MS");
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

/* --- what was called, where the backend does not compare it --- */

static void tell(control *c, coll_kind kind, uint64_t sequence, uint64_t digest)
{
    const op_stamp s = stamp_of(kind, sequence, 100, "f+0x1c");

    assert_ok(control_called(c, &s, &digest, 1));
}

static void both_ranks_receive_different_calls(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);

    LS_UNUSED(state);
    tell(a, COLL_ALL_REDUCE, 3, 77);
    tell(a, COLL_ALL_REDUCE, 4, 78);
    tell(b, COLL_ALL_REDUCE, 3, 77);
    tell(b, COLL_BROADCAST, 4, 79);
    for (int i = 0; i < 2; i++) {
        const job_cause cause = await_cause(i == 0 ? a : b);

        assert_int_equal(cause.kind, CAUSE_MISMATCH);
        assert_string_equal(cause.text,
                            "rank 0: all_reduce #4 (sum, 100 float32) at f+0x1c; rank 1: "
                            "broadcast #4 (root 0, 100 float32) at f+0x1c");
    }
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

/* Only some calls of a quick group are reported; the digest covers those in between. */
static void hub_detects_different_calls_between_samples(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    job_cause cause;

    LS_UNUSED(state);
    tell(a, COLL_ALL_REDUCE, 64, 1);
    tell(a, COLL_ALL_REDUCE, 128, 2);
    tell(b, COLL_ALL_REDUCE, 96, 5); // no other rank reports this one
    tell(b, COLL_ALL_REDUCE, 128, 3);
    cause = await_cause(a);
    assert_int_equal(cause.kind, CAUSE_MISMATCH);
    assert_non_null(strstr(cause.text, "rank 0 and rank 1 have not called the same operations"));
    assert_non_null(strstr(cause.text, "before all_reduce #128"));
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

static void equal_calls_at_any_pace_are_left_in_peace(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);

    LS_UNUSED(state);
    for (uint64_t i = 1; i <= 500; i++)
        tell(a, COLL_ALL_REDUCE, i, i);
    assert_ok(ls_store_set(control_store(a), "k", "v", 1)); // all of that has been seen
    tell(b, COLL_BROADCAST, 2, 9);                          // too old to be remembered
    for (uint64_t i = 3; i <= 500; i++)
        tell(b, COLL_ALL_REDUCE, i, i);
    assert_ok(ls_store_set(control_store(b), "k", "v", 1));
    assert_false(has_cause(a));
    assert_false(has_cause(b));
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_disagree_are_both_named_to_all),
        cmocka_unit_test(agreeing_ranks_and_other_numbers_are_left_in_peace),
        cmocka_unit_test(members_that_wait_are_notified_of_a_leave),
        cmocka_unit_test(a_member_that_begins_to_wait_is_sent_all_leaves_of_its_group),
        cmocka_unit_test(hub_distinguishes_two_receives_of_a_rank_from_one_peer),
        cmocka_unit_test(hub_makes_a_wait_report_on_request),
        cmocka_unit_test(suspension_of_the_hub_counts_in_no_wait_report),
        cmocka_unit_test(wait_report_names_the_missing_ranks_and_their_state),
        cmocka_unit_test(a_rank_that_is_stopped_after_it_arrived_is_named),
        cmocka_unit_test(wait_reports_repeat_with_growing_pauses),
        cmocka_unit_test(a_stage_that_lasts_is_reported),
        cmocka_unit_test(both_ranks_receive_different_calls),
        cmocka_unit_test(hub_detects_different_calls_between_samples),
        cmocka_unit_test(equal_calls_at_any_pace_are_left_in_peace),
    };
    const struct CMUnitTest sealed[] = {
        cmocka_unit_test(ranks_that_disagree_are_both_named_to_all),
    };

    return run_hub_tests(tests, LS_COUNT_OF(tests), sealed, LS_COUNT_OF(sealed));
}
