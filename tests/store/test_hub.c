/* SPDX-License-Identifier: Apache-2.0 */
/* test_hub.c - ranks that join a hub, leave it and die. */
#include "store/hub_scene.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "net/socket.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- joining --- */

static void ranks_meet_through_the_store(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    void *value;
    size_t bytes;

    LS_UNUSED(state);
    assert_ok(ls_store_set(control_store(a), "boot/0", "hello", 5));
    assert_ok(ls_store_get(control_store(b), "boot/0", SOON, &value, &bytes));
    assert_int_equal(bytes, 5);
    assert_string_equal(value, "hello");
    ls_store_free(value);
    await_count(&seen.n_joined, 2);
    control_close(a);
    control_close(b);
    await_count(&seen.n_left, 2);
    assert_int_equal(count_of(&seen.n_lost), 0);
    hub_thread_stop(t, SOON);
}

static void values_of_all_sizes_pass(void **state)
{
    static const size_t sizes[] = {0, 1, 65503, 65536, 1000003, LS_STORE_VALUE_MAX};
    hub_thread *t = start(1);
    control *c = join(t, 0, 1);
    uint8_t *sent = ls_calloc(1, LS_STORE_VALUE_MAX);

    LS_UNUSED(state);
    assert_non_null(sent);
    for (size_t i = 0; i < LS_STORE_VALUE_MAX; i++)
        sent[i] = (uint8_t)(i * 11);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++) {
        void *value;
        size_t bytes;

        assert_ok(ls_store_set(control_store(c), "k", sent, sizes[i]));
        assert_ok(ls_store_get(control_store(c), "k", SOON, &value, &bytes));
        assert_int_equal(bytes, sizes[i]);
        assert_memory_equal(value, sent, bytes);
        ls_store_free(value);
    }
    ls_free(sent);
    control_close(c);
    hub_thread_stop(t, SOON);
}

static void expect_refusal(const control_options *opt, ls_status st, const char *part)
{
    control *c = NULL;

    assert_status(control_open(opt, &c), st);
    assert_null(c);
    assert_last_error(part);
}

static void both_sides_report_another_world_size(void **state)
{
    hub_thread *t = start(3);
    control *a = join(t, 0, 3);
    const control_options opt = joining(t, 1, 2);
    job_cause cause;

    LS_UNUSED(state);
    expect_refusal(&opt, LS_EMISMATCH, "this job has 3 ranks, but rank 1 was started for 2 ranks");
    cause = await_cause(a);
    assert_int_equal(cause.kind, CAUSE_MISMATCH);
    assert_int_equal(cause.group, GROUP_ALL);
    assert_int_equal(cause.rank, 1);
    assert_non_null(strstr(cause.text, "this job has 3 ranks"));
    await_count(&seen.n_failed, 1);
    control_close(a);
    hub_thread_stop(t, SOON);
}

static void both_sides_report_a_duplicate_rank(void **state)
{
    hub_thread *t = start(3);
    control *a = join(t, 1, 3);
    const control_options opt = joining(t, 1, 3);

    LS_UNUSED(state);
    expect_refusal(&opt, LS_EMISMATCH, "rank 1 has already joined");
    assert_int_equal(await_cause(a).kind, CAUSE_MISMATCH);
    control_close(a);
    hub_thread_stop(t, SOON);
}

static void a_stray_rank_does_not_harm_a_job_that_runs(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    control_options opt = joining(t, 1, 2);

    LS_UNUSED(state);
    expect_refusal(&opt, LS_EMISMATCH, "rank 1 has already joined");
    opt.world_size = 5;
    expect_refusal(&opt, LS_EMISMATCH, "this job has 2 ranks");
    assert_ok(ls_store_set(control_store(a), "still", "1", 1));
    assert_false(has_cause(a));
    assert_false(has_cause(b));
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

static void another_job_generation_or_key_is_refused_in_words(void **state)
{
    hub_thread *t = start(2);
    control_options opt = joining(t, 1, 2);
    net_key other;
    int n_joined;

    LS_UNUSED(state);
    text_format(opt.job, sizeof(opt.job), "fedcba9876543210");
    expect_refusal(&opt, LS_EMISMATCH, "another job");
    opt = joining(t, 1, 2);
    opt.generation = 4;
    expect_refusal(&opt, LS_EMISMATCH, "generation 0 of the job, not 4");
    opt = joining(t, 1, 2);
    assert_ok(net_key_random(&other));
    opt.key = &other;
    expect_refusal(&opt, LS_EAUTH, "does not have this job's key");
    opt = joining(t, 1, 2);
    opt.security = NET_MAC;
    expect_refusal(&opt, LS_EMISMATCH, "security is mac here, auth at");
    opt.security = NET_AUTH;
    opt.key = NULL;
    expect_refusal(&opt, LS_EAUTH, "without a key");
    opt.insecure = true;
    expect_refusal(&opt, LS_EAUTH, "key");
    opt = joining(t, 2, 2);
    expect_refusal(&opt, LS_EINVAL, "rank 2 of 2");
    n_joined = count_of(&seen.n_joined);
    assert_int_equal(n_joined, 0);
    hub_thread_stop(t, SOON);
}

static void without_a_key_only_unix_sockets_of_this_user_are_served(void **state)
{
    hub_options opt = options(1);
    control_options to = {.job = JOB, .world_size = 1, .timeout_ms = SOON};
    net_address at;
    hub_thread *t;
    control *c;

    LS_UNUSED(state);
    memset(&seen, 0, sizeof(seen));
    ls_mutex_init(&seen.lock);
    opt.key = NULL;
    assert_ok(net_address_decode("127.0.0.1:0", &at));
    assert_status(hub_thread_start(&opt, &at, &t), LS_EAUTH);
    assert_ok(net_address_fresh_unix("test", &at));
    assert_ok(hub_thread_start(&opt, &at, &t));
    to.hub = at;
    assert_ok(control_open(&to, &c));
    assert_ok(ls_store_set(control_store(c), "k", "v", 1));
    control_close(c);
    hub_thread_stop(t, SOON);
    opt.insecure = true;
    assert_ok(net_address_decode("127.0.0.1:0", &at));
    assert_ok(hub_thread_start(&opt, &at, &t));
    to.hub = *hub_thread_address(t);
    to.insecure = true;
    assert_ok(control_open(&to, &c));
    control_close(c);
    hub_thread_stop(t, SOON);
}

/* With an address from the hub itself a refused connection is final. */
static void a_hub_that_has_gone_is_not_waited_for(void **state)
{
    hub_thread *t = start(2);
    control_options opt = joining(t, 1, 2);
    const int64_t since_ms = ls_now_ms();

    LS_UNUSED(state);
    opt.refused_is_final = true;
    hub_thread_stop(t, 0);
    expect_refusal(&opt, LS_EPEER, "Connection refused");
    assert_in_range(ls_now_ms() - since_ms, 0, SOON / 2);
}

static void a_rank_may_leave_and_come_again(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);

    LS_UNUSED(state);
    control_close(join(t, 1, 2));
    await_count(&seen.n_left, 1);
    control_close(join(t, 1, 2));
    await_count(&seen.n_left, 2);
    control_close(a);
    hub_thread_stop(t, SOON);
}

/* --- deaths --- */

/* Ends the connection as a killed process would. */
static void die(control *c)
{
    assert_int_equal(shutdown(control_fd(c), SHUT_RDWR), 0);
}

static void a_lost_rank_is_named_to_all_others(void **state)
{
    hub_thread *t = start(3);
    control *c[3];
    char named[64];

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        c[i] = join(t, i, 3);
    die(c[1]);
    for (int i = 0; i < 3; i += 2) {
        const job_cause cause = await_cause(c[i]);

        assert_int_equal(cause.kind, CAUSE_DIED);
        assert_int_equal(cause.group, GROUP_ALL);
        assert_int_equal(cause.rank, 1);
        text_format(named, sizeof(named), "rank 1 (pid %d) is lost", (int)getpid());
        assert_non_null(strstr(cause.text, named));
    }
    await_count(&seen.n_lost, 1);
    await_count(&seen.n_failed, 1);
    for (int i = 0; i < 3; i++)
        control_close(c[i]);
    hub_thread_stop(t, SOON);
}

static void late_rank_receives_the_cause(void **state)
{
    hub_thread *t = start(3);
    control *a = join(t, 0, 3);
    control *b = join(t, 1, 3);

    LS_UNUSED(state);
    die(b);
    assert_int_equal(await_cause(a).kind, CAUSE_DIED);
    control_close(b);
    b = join(t, 2, 3);
    assert_int_equal(await_cause(b).rank, 1);
    assert_status(ls_store_set(control_store(b), "k", "v", 1), LS_EPEER);
    assert_last_error("rank 1");
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

/* A store wait in a thread of its own. */
typedef struct waiter {
    control *c;
    ls_status st;
    char text[256];
    int64_t end_ms;
} waiter;

static void wait_in_store(void *arg)
{
    static const char *const keys[] = {"never", "neither"};
    waiter *w = arg;

    w->st = ls_store_wait(control_store(w->c), keys, 2, -1);
    text_format(w->text, sizeof(w->text), "%s", ls_last_error());
    w->end_ms = ls_now_ms();
}

static void a_cause_ends_waits_in_the_store(void **state)
{
    hub_thread *t = start(2);
    waiter w = {.c = join(t, 0, 2)};
    control *b = join(t, 1, 2);
    ls_thread thread = {0};
    job_cause cause = {
        .kind = CAUSE_ABORTED, .group = GROUP_ALL, .rank = 1, .text = "rank 1 gave up"};
    int64_t start_ms;

    LS_UNUSED(state);
    assert_ok(ls_thread_start(&thread, "wait", wait_in_store, &w));
    poll(NULL, 0, 50); // most likely it waits by now; if not, the result is the same
    start_ms = ls_now_ms();
    assert_ok(control_fail(b, &cause));
    ls_thread_join(&thread);
    assert_status(w.st, LS_ECANCELED);
    assert_non_null(strstr(w.text, "rank 1 gave up"));
    assert_true(w.end_ms - start_ms < 5000);
    assert_true(control_next_cause(w.c, &cause)); // comm receives it as well
    assert_status(ls_store_set(control_store(w.c), "k", "v", 1), LS_ECANCELED); // the job is over
    control_close(w.c);
    control_close(b);
    hub_thread_stop(t, SOON);
}

static void the_cause_of_one_group_does_not_touch_the_store(void **state)
{
    hub_thread *t = start(2);
    waiter w = {.c = join(t, 0, 2)};
    control *b = join(t, 1, 2);
    ls_thread thread = {0};
    job_cause cause = {.kind = CAUSE_DEADLINE, .group = 5, .rank = -1, .text = "too slow"};

    LS_UNUSED(state);
    assert_ok(ls_thread_start(&thread, "wait", wait_in_store, &w));
    assert_ok(control_fail(b, &cause));
    assert_ok(ls_store_set(control_store(b), "never", "1", 1));
    assert_ok(ls_store_set(control_store(b), "neither", "1", 1));
    ls_thread_join(&thread);
    assert_ok(w.st);
    assert_string_equal(await_cause(w.c).text, "too slow");
    control_close(w.c);
    control_close(b);
    hub_thread_stop(t, SOON);
}

static void the_first_cause_of_a_group_stands(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    job_cause cause = {.kind = CAUSE_DEADLINE, .group = 3, .rank = -1, .text = "first"};

    LS_UNUSED(state);
    assert_ok(control_fail(b, &cause));
    text_format(cause.text, sizeof(cause.text), "second");
    assert_ok(control_fail(b, &cause));
    cause.group = 4;
    text_format(cause.text, sizeof(cause.text), "another group");
    assert_ok(control_fail(b, &cause));
    assert_string_equal(await_cause(a).text, "first");
    assert_string_equal(await_cause(a).text, "another group");
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

static void a_death_is_a_better_cause_than_a_broken_connection(void **state)
{
    hub_options opt = options(3);
    hub_thread *t;
    control *c[3];
    job_cause fault = {
        .kind = CAUSE_FAULT, .group = 0, .rank = 1, .text = "connection to rank 1 lost"};

    LS_UNUSED(state);
    opt.death_grace_ms = 500;
    t = start_with(&opt);
    for (int i = 0; i < 3; i++)
        c[i] = join(t, i, 3);
    die(c[1]);
    assert_ok(control_fail(c[0], &fault)); // the hub may see either first
    assert_int_equal(await_cause(c[2]).kind, CAUSE_DIED);
    assert_int_equal(await_cause(c[0]).kind, CAUSE_DIED);
    for (int i = 0; i < 3; i++)
        control_close(c[i]);
    hub_thread_stop(t, SOON);
}

static void fault_without_a_better_cause_is_sent_after_the_grace(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    job_cause cause = {
        .kind = CAUSE_FAULT, .group = 0, .rank = 1, .text = "connection to rank 1 lost"};

    LS_UNUSED(state);
    assert_ok(control_fail(a, &cause));
    cause = await_cause(b);
    assert_int_equal(cause.kind, CAUSE_FAULT);
    assert_string_equal(cause.text, "connection to rank 1 lost");
    control_close(a);
    control_close(b);
    hub_thread_stop(t, SOON);
}

static void ranks_report_the_end_of_the_hub(void **state)
{
    hub_thread *t = start(1);
    control *a = join(t, 0, 1);
    char place[NET_ADDRESS_TEXT_MAX];
    ls_status st = LS_OK;

    LS_UNUSED(state);
    net_address_text(place, sizeof(place), hub_thread_address(t));
    hub_thread_stop(t, 0);
    while (st == LS_OK) {
        assert_ok(net_wait(control_fd(a), POLLIN, ls_deadline_ms(SOON)));
        st = control_poll(a);
    }
    assert_status(st, LS_EPEER);
    assert_last_error(place);
    assert_status(ls_store_set(control_store(a), "k", "v", 1), LS_EPEER);
    control_close(a);
}

/* The rank sends to a hub that has ended, before it reads what the hub has sent last. */
static void what_the_hub_sent_before_its_end_is_read(void **state)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    int rank = -1;

    LS_UNUSED(state);
    control_close(join(t, 1, 2));
    await_count(&seen.n_left, 1);
    hub_thread_stop(t, 0);
    while (control_leave(a, 1, 0, 2) == LS_OK && ls_deadline_left(deadline_ms) > 0)
        poll(NULL, 0, 1);
    assert_status(control_poll(a), LS_EPEER);
    assert_true(control_next_left(a, &rank));
    assert_int_equal(rank, 1);
    control_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_through_the_store),
        cmocka_unit_test(values_of_all_sizes_pass),
        cmocka_unit_test(both_sides_report_another_world_size),
        cmocka_unit_test(both_sides_report_a_duplicate_rank),
        cmocka_unit_test(a_stray_rank_does_not_harm_a_job_that_runs),
        cmocka_unit_test(another_job_generation_or_key_is_refused_in_words),
        cmocka_unit_test(without_a_key_only_unix_sockets_of_this_user_are_served),
        cmocka_unit_test(a_hub_that_has_gone_is_not_waited_for),
        cmocka_unit_test(a_rank_may_leave_and_come_again),
        cmocka_unit_test(a_lost_rank_is_named_to_all_others),
        cmocka_unit_test(late_rank_receives_the_cause),
        cmocka_unit_test(a_cause_ends_waits_in_the_store),
        cmocka_unit_test(the_cause_of_one_group_does_not_touch_the_store),
        cmocka_unit_test(the_first_cause_of_a_group_stands),
        cmocka_unit_test(a_death_is_a_better_cause_than_a_broken_connection),
        cmocka_unit_test(fault_without_a_better_cause_is_sent_after_the_grace),
        cmocka_unit_test(ranks_report_the_end_of_the_hub),
        cmocka_unit_test(what_the_hub_sent_before_its_end_is_read),
    };
    const struct CMUnitTest sealed[] = {
        cmocka_unit_test(ranks_meet_through_the_store),
        cmocka_unit_test(values_of_all_sizes_pass),
        cmocka_unit_test(both_sides_report_another_world_size),
        cmocka_unit_test(a_rank_may_leave_and_come_again),
        cmocka_unit_test(a_lost_rank_is_named_to_all_others),
        cmocka_unit_test(a_cause_ends_waits_in_the_store),
        cmocka_unit_test(ranks_report_the_end_of_the_hub),
        cmocka_unit_test(what_the_hub_sent_before_its_end_is_read),
    };

    return run_hub_tests(tests, LS_COUNT_OF(tests), sealed, LS_COUNT_OF(sealed));
}
