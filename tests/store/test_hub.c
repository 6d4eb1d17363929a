/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hub.c - a hub in its thread, and ranks as control connections of this process.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/socket.h"
#include "store/control.h"
#include "store/hub.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOON 20000 /* ms: far beyond what any of this takes */
#define JOB  "0123456789abcdef"

/* What the hub told its owner; written on the hub's thread under the lock. */
typedef struct told {
    ls_mutex lock;
    int n_joined;
    int n_left;
    int n_lost;
    int n_failed;
    int n_late;
    int64_t late_ms[8];
    job_cause failed;
    char late[2048];
} told;

static told news;
static net_key key;
static net_security security;

static void on_joined(void *self, int rank, pid_t pid)
{
    told *t = self;

    LS_UNUSED(rank);
    ls_mutex_lock(&t->lock);
    t->n_joined++;
    ls_mutex_unlock(&t->lock);
    assert_int_equal(pid, getpid());
}

static void on_left(void *self, int rank)
{
    told *t = self;

    LS_UNUSED(rank);
    ls_mutex_lock(&t->lock);
    t->n_left++;
    ls_mutex_unlock(&t->lock);
}

static void on_lost(void *self, int rank)
{
    told *t = self;

    LS_UNUSED(rank);
    ls_mutex_lock(&t->lock);
    t->n_lost++;
    ls_mutex_unlock(&t->lock);
}

static void on_failed(void *self, const job_cause *cause)
{
    told *t = self;

    ls_mutex_lock(&t->lock);
    t->n_failed++;
    t->failed = *cause;
    ls_mutex_unlock(&t->lock);
}

static void on_late(void *self, const char *text)
{
    told *t = self;

    ls_mutex_lock(&t->lock);
    if (t->n_late < 8)
        t->late_ms[t->n_late] = ls_now_ms();
    t->n_late++;
    text_format(t->late, sizeof(t->late), "%s", text);
    ls_mutex_unlock(&t->lock);
}

static hub_options options(int world_size)
{
    hub_options opt = {.job = JOB, .world_size = world_size, .key = &key, .security = security};

    opt.events = (hub_events){.self = &news,
                              .joined = on_joined,
                              .left = on_left,
                              .lost = on_lost,
                              .failed = on_failed,
                              .late = on_late};
    return opt;
}

static hub_thread *start_with(const hub_options *opt)
{
    net_address at;
    hub_thread *t;

    memset(&news, 0, sizeof(news));
    ls_mutex_init(&news.lock);
    assert_ok(net_address_decode("127.0.0.1:0", &at));
    assert_ok(hub_thread_start(opt, &at, &t));
    return t;
}

static hub_thread *start(int world_size)
{
    const hub_options opt = options(world_size);

    return start_with(&opt);
}

static int count_of(const int *n)
{
    int value;

    ls_mutex_lock(&news.lock);
    value = *n;
    ls_mutex_unlock(&news.lock);
    return value;
}

static void await_count(const int *n, int wanted)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);

    while (count_of(n) < wanted && ls_deadline_left(deadline_ms) > 0)
        poll(NULL, 0, 1);
    assert_int_equal(count_of(n), wanted);
}

static control_options joining(const hub_thread *t, int rank, int world_size)
{
    return (control_options){.hub = *hub_thread_address(t),
                             .key = &key,
                             .security = security,
                             .job = JOB,
                             .rank = rank,
                             .world_size = world_size,
                             .timeout_ms = SOON};
}

static control *join(const hub_thread *t, int rank, int world_size)
{
    const control_options opt = joining(t, rank, world_size);
    control *c = NULL;

    assert_ok(control_open(&opt, &c));
    return c;
}

/* Polls until a cause has come. */
static job_cause await_cause(control *c)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);
    job_cause cause = {0};

    while (!control_next_cause(c, &cause)) {
        assert_ok(net_wait(control_fd(c), POLLIN, deadline_ms));
        assert_ok(control_poll(c));
    }
    return cause;
}

static bool has_cause(control *c)
{
    job_cause cause;

    assert_ok(control_poll(c));
    return control_next_cause(c, &cause);
}

static op_stamp stamp_of(coll_kind kind, uint64_t sequence, uint64_t count, const char *site)
{
    op_stamp s = {.sequence = sequence,
                  .kind = (uint8_t)kind,
                  .dtype = LS_F32,
                  .redop = kind == COLL_ALL_REDUCE ? 0 : 255,
                  .root = kind == COLL_BROADCAST ? 0 : -1,
                  .count = count};

    text_format(s.site, sizeof(s.site), "%s", site);
    return s;
}

static const int everybody[] = {0, 1, 2, 3};

static void waits(control *c, const op_stamp *s, int n_members)
{
    assert_ok(control_waiting(c, s, everybody, n_members, false, 20));
}

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
    await_count(&news.n_joined, 2);
    control_close(a);
    control_close(b);
    await_count(&news.n_left, 2);
    assert_int_equal(count_of(&news.n_lost), 0);
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
    assert_told(part);
}

static void another_world_size_is_told_to_both_sides(void **state)
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
    await_count(&news.n_failed, 1);
    control_close(a);
    hub_thread_stop(t, SOON);
}

static void a_second_one_of_a_rank_is_told_to_both_sides(void **state)
{
    hub_thread *t = start(3);
    control *a = join(t, 1, 3);
    const control_options opt = joining(t, 1, 3);

    LS_UNUSED(state);
    expect_refusal(&opt, LS_EMISMATCH, "rank 1 is there already");
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
    expect_refusal(&opt, LS_EMISMATCH, "rank 1 is there already");
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
    expect_refusal(&opt, LS_EAUTH, "does not know this job's key");
    opt = joining(t, 1, 2);
    opt.security = NET_MAC;
    expect_refusal(&opt, LS_EMISMATCH, "security is mac here, auth at");
    opt.security = NET_AUTH;
    opt.key = NULL;
    expect_refusal(&opt, LS_EAUTH, "no key");
    opt.insecure = true;
    expect_refusal(&opt, LS_EAUTH, "key");
    opt = joining(t, 2, 2);
    expect_refusal(&opt, LS_EINVAL, "rank 2 of 2");
    n_joined = count_of(&news.n_joined);
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
    memset(&news, 0, sizeof(news));
    ls_mutex_init(&news.lock);
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

/* Who was told the address by the hub itself does not wait for it to come back. */
static void a_hub_that_has_gone_is_not_waited_for(void **state)
{
    hub_thread *t = start(2);
    control_options opt = joining(t, 1, 2);
    const int64_t since_ms = ls_now_ms();

    LS_UNUSED(state);
    opt.is_there = true;
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
    await_count(&news.n_left, 1);
    control_close(join(t, 1, 2));
    await_count(&news.n_left, 2);
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
        text_format(named, sizeof(named), "rank 1 (pid %d) is gone", (int)getpid());
        assert_non_null(strstr(cause.text, named));
    }
    await_count(&news.n_lost, 1);
    await_count(&news.n_failed, 1);
    for (int i = 0; i < 3; i++)
        control_close(c[i]);
    hub_thread_stop(t, SOON);
}

static void a_rank_that_joins_late_hears_of_the_cause(void **state)
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
    assert_told("rank 1");
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
    assert_true(control_next_cause(w.c, &cause)); // comm hears of it all the same
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

static void a_fault_that_nobody_explains_is_told_after_the_grace(void **state)
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

static void the_end_of_the_hub_is_told(void **state)
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
    assert_told(place);
    assert_status(ls_store_set(control_store(a), "k", "v", 1), LS_EPEER);
    control_close(a);
}

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
    assert_ok(control_arrived(b, &s));
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

static void a_rank_that_left_is_named_to_those_who_wait_for_it(void **state)
{
    hub_thread *t = start(3);
    control *c[3];
    const op_stamp s = stamp_of(COLL_ALL_REDUCE, 4, 100, "f+0x1c");
    const int64_t start_ms = ls_now_ms();
    job_cause cause;
    int rank = -1;

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        c[i] = join(t, i, 3);
    waits(c[0], &s, 3);
    control_close(c[1]);
    cause = await_cause(c[0]);
    assert_true(ls_now_ms() - start_ms >= 300);
    assert_int_equal(cause.kind, CAUSE_LEFT);
    assert_int_equal(cause.rank, 1);
    assert_non_null(strstr(cause.text, "rank 1 left the job (exited) while all_reduce #4"));
    assert_int_equal(await_cause(c[2]).kind, CAUSE_LEFT);
    assert_true(control_next_left(c[0], &rank));
    assert_int_equal(rank, 1);
    assert_false(control_next_left(c[0], &rank));
    control_close(c[0]);
    control_close(c[2]);
    hub_thread_stop(t, SOON);
}

static void a_wait_for_a_rank_that_left_before_is_ended_too(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    const op_stamp s = stamp_of(COLL_BARRIER, 9, 0, "f");

    LS_UNUSED(state);
    control_close(join(t, 1, 2));
    await_count(&news.n_left, 1);
    waits(a, &s, 2);
    assert_int_equal(await_cause(a).kind, CAUSE_LEFT);
    control_close(a);
    hub_thread_stop(t, SOON);
}

static void data_that_still_arrives_saves_the_group(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    const op_stamp s = stamp_of(COLL_BROADCAST, 9, 10, "f");

    LS_UNUSED(state);
    waits(a, &s, 2);
    control_close(join(t, 1, 2));
    assert_ok(control_arrived(a, &s));
    await_count(&news.n_left, 1);
    poll(NULL, 0, 400); // longer than the hub waits
    assert_false(has_cause(a));
    control_close(a);
    hub_thread_stop(t, SOON);
}

static void a_receive_from_anybody_hopes_for_the_others(void **state)
{
    hub_thread *t = start(3);
    control *c[3];
    op_stamp s = stamp_of(COLL_RECV, 2, 10, "f");

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        c[i] = join(t, i, 3);
    waits(c[0], &s, 3);
    control_close(c[1]);
    await_count(&news.n_left, 1);
    poll(NULL, 0, 400);
    assert_false(has_cause(c[0]));
    control_close(c[2]);
    assert_int_equal(await_cause(c[0]).kind, CAUSE_LEFT);
    control_close(c[0]);
    hub_thread_stop(t, SOON);
}

static void the_late_report_says_who_is_missing_and_what_it_does(void **state)
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
    assert_ok(control_waiting(c[0], &s, everybody, 4, true, 10200));
    await_count(&news.n_late, 1);
    ls_mutex_lock(&news.lock);
    print_message("%s\n", news.late);
    assert_non_null(strstr(news.late, "all_reduce #17 (sum, 262144 float32) at train_step+0x1c"));
    assert_non_null(strstr(news.late, "1 MiB"));
    assert_non_null(strstr(news.late, "waited for 10.2 s"));
    assert_non_null(strstr(news.late, "in broadcast #16"));
    assert_non_null(strstr(news.late, "last heard of"));
    assert_non_null(strstr(news.late, "3 (has not joined)"));
    ls_mutex_unlock(&news.lock);
    for (int i = 0; i < 3; i++)
        control_close(c[i]);
    hub_thread_stop(t, SOON);
}

static void late_reports_come_again_with_growing_pauses(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    const op_stamp s = stamp_of(COLL_ALL_REDUCE, 1, 1, "f");
    const int64_t start_ms = ls_now_ms();
    int n;

    LS_UNUSED(state);
    assert_ok(control_waiting(a, &s, everybody, 2, true, 100));
    assert_ok(control_waiting(a, &s, everybody, 2, true, 100)); // no second line
    await_count(&news.n_late, 3);
    assert_true(news.late_ms[1] - start_ms >= 100);
    assert_true(news.late_ms[2] - start_ms >= 300);
    assert_ok(control_arrived(a, &s));
    assert_ok(ls_store_set(control_store(a), "k", "v", 1));
    n = count_of(&news.n_late);
    poll(NULL, 0, 450);
    assert_int_equal(count_of(&news.n_late), n);
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

static void calls_that_differ_are_told_to_both_sides(void **state)
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

/* Of a quick group only some calls are told; the digest covers those in between. */
static void calls_that_differed_between_samples_are_told(void **state)
{
    hub_thread *t = start(2);
    control *a = join(t, 0, 2);
    control *b = join(t, 1, 2);
    job_cause cause;

    LS_UNUSED(state);
    tell(a, COLL_ALL_REDUCE, 64, 1);
    tell(a, COLL_ALL_REDUCE, 128, 2);
    tell(b, COLL_ALL_REDUCE, 96, 5); // nobody else tells of this one
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
        cmocka_unit_test(ranks_meet_through_the_store),
        cmocka_unit_test(values_of_all_sizes_pass),
        cmocka_unit_test(another_world_size_is_told_to_both_sides),
        cmocka_unit_test(a_second_one_of_a_rank_is_told_to_both_sides),
        cmocka_unit_test(a_stray_rank_does_not_harm_a_job_that_runs),
        cmocka_unit_test(another_job_generation_or_key_is_refused_in_words),
        cmocka_unit_test(without_a_key_only_unix_sockets_of_this_user_are_served),
        cmocka_unit_test(a_hub_that_has_gone_is_not_waited_for),
        cmocka_unit_test(a_rank_may_leave_and_come_again),
        cmocka_unit_test(a_lost_rank_is_named_to_all_others),
        cmocka_unit_test(a_rank_that_joins_late_hears_of_the_cause),
        cmocka_unit_test(a_cause_ends_waits_in_the_store),
        cmocka_unit_test(the_cause_of_one_group_does_not_touch_the_store),
        cmocka_unit_test(the_first_cause_of_a_group_stands),
        cmocka_unit_test(a_death_is_a_better_cause_than_a_broken_connection),
        cmocka_unit_test(a_fault_that_nobody_explains_is_told_after_the_grace),
        cmocka_unit_test(the_end_of_the_hub_is_told),
        cmocka_unit_test(ranks_that_disagree_are_both_named_to_all),
        cmocka_unit_test(agreeing_ranks_and_other_numbers_are_left_in_peace),
        cmocka_unit_test(a_rank_that_left_is_named_to_those_who_wait_for_it),
        cmocka_unit_test(a_wait_for_a_rank_that_left_before_is_ended_too),
        cmocka_unit_test(data_that_still_arrives_saves_the_group),
        cmocka_unit_test(a_receive_from_anybody_hopes_for_the_others),
        cmocka_unit_test(the_late_report_says_who_is_missing_and_what_it_does),
        cmocka_unit_test(late_reports_come_again_with_growing_pauses),
        cmocka_unit_test(calls_that_differ_are_told_to_both_sides),
        cmocka_unit_test(calls_that_differed_between_samples_are_told),
        cmocka_unit_test(equal_calls_at_any_pace_are_left_in_peace),
    };
    const struct CMUnitTest sealed[] = {
        cmocka_unit_test(ranks_meet_through_the_store),
        cmocka_unit_test(values_of_all_sizes_pass),
        cmocka_unit_test(another_world_size_is_told_to_both_sides),
        cmocka_unit_test(a_rank_may_leave_and_come_again),
        cmocka_unit_test(a_lost_rank_is_named_to_all_others),
        cmocka_unit_test(a_cause_ends_waits_in_the_store),
        cmocka_unit_test(the_end_of_the_hub_is_told),
        cmocka_unit_test(ranks_that_disagree_are_both_named_to_all),
    };
    int failed;

    setenv("LOCKSTEP_LOG", "error", 1);
    if (net_key_random(&key) != LS_OK)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (security = NET_MAC; security <= NET_ENCRYPT; security++)
        failed += cmocka_run_group_tests_name(net_security_text(security), sealed, NULL, NULL);
    return failed;
}
