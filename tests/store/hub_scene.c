/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_scene.c - a hub in a thread, ranks that join it, and a record of its events, for the test_hub
 * tests.
 */
#include "store/hub_scene.h"

#include "base/clock.h"
#include "base/text.h"
#include "net/socket.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

seen_events seen;
static net_key key;
static net_security security;

static void on_joined(void *self, int rank, pid_t pid)
{
    seen_events *t = self;

    LS_UNUSED(rank);
    ls_mutex_lock(&t->lock);
    t->n_joined++;
    ls_mutex_unlock(&t->lock);
    assert_int_equal(pid, getpid());
}

static void on_left(void *self, int rank)
{
    seen_events *t = self;

    LS_UNUSED(rank);
    ls_mutex_lock(&t->lock);
    t->n_left++;
    ls_mutex_unlock(&t->lock);
}

static void on_lost(void *self, int rank)
{
    seen_events *t = self;

    LS_UNUSED(rank);
    ls_mutex_lock(&t->lock);
    t->n_lost++;
    ls_mutex_unlock(&t->lock);
}

static void on_failed(void *self, const job_cause *cause)
{
    seen_events *t = self;

    ls_mutex_lock(&t->lock);
    t->n_failed++;
    t->failed = *cause;
    ls_mutex_unlock(&t->lock);
}

static void on_late(void *self, const char *text)
{
    seen_events *t = self;

    ls_mutex_lock(&t->lock);
    if (t->n_late < 8)
        t->late_ms[t->n_late] = ls_now_ms();
    t->n_late++;
    text_format(t->late, sizeof(t->late), "%s", text);
    ls_mutex_unlock(&t->lock);
}

hub_options options(int world_size)
{
    hub_options opt = {.job = JOB, .world_size = world_size, .key = &key, .security = security};

    opt.events = (hub_events){.self = &seen,
                              .joined = on_joined,
                              .left = on_left,
                              .lost = on_lost,
                              .failed = on_failed,
                              .wait_report = on_late};
    return opt;
}

hub_thread *start_with(const hub_options *opt)
{
    net_address at;
    hub_thread *t;

    memset(&seen, 0, sizeof(seen));
    ls_mutex_init(&seen.lock);
    assert_ok(net_address_decode("127.0.0.1:0", &at));
    assert_ok(hub_thread_start(opt, &at, &t));
    return t;
}

hub_thread *start(int world_size)
{
    const hub_options opt = options(world_size);

    return start_with(&opt);
}

int count_of(const int *n)
{
    int value;

    ls_mutex_lock(&seen.lock);
    value = *n;
    ls_mutex_unlock(&seen.lock);
    return value;
}

void await_count(const int *n, int wanted)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);

    while (count_of(n) < wanted && ls_deadline_left(deadline_ms) > 0)
        poll(NULL, 0, 1);
    assert_int_equal(count_of(n), wanted);
}

control_options joining(const hub_thread *t, int rank, int world_size)
{
    return (control_options){.hub = *hub_thread_address(t),
                             .key = &key,
                             .security = security,
                             .job = JOB,
                             .rank = rank,
                             .world_size = world_size,
                             .timeout_ms = SOON};
}

control *join(const hub_thread *t, int rank, int world_size)
{
    const control_options opt = joining(t, rank, world_size);
    control *c = NULL;

    assert_ok(control_open(&opt, &c));
    return c;
}

/* Polls until a cause has come. */
job_cause await_cause(control *c)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);
    job_cause cause = {0};

    while (!control_next_cause(c, &cause)) {
        assert_ok(net_wait(control_fd(c), POLLIN, deadline_ms));
        assert_ok(control_poll(c));
    }
    return cause;
}

bool has_cause(control *c)
{
    job_cause cause;

    assert_ok(control_poll(c));
    return control_next_cause(c, &cause);
}

op_stamp stamp_of(coll_kind kind, uint64_t sequence, uint64_t count, const char *site)
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

const int all_ranks[4] = {0, 1, 2, 3};

ls_status report_wait(control *c, const op_stamp *s, uint64_t number, int n_members,
                      int64_t report_in_ms, int64_t waited_ms, uint64_t *ticket)
{
    const control_wait wait = {.stamp = s,
                               .number = number,
                               .members = n_members == 0 ? NULL : all_ranks,
                               .n_members = n_members,
                               .report_in_ms = report_in_ms,
                               .waited_ms = waited_ms,
                               .n_later = 0};

    return control_waiting(c, &wait, ticket);
}

void waits(control *c, const op_stamp *s, int n_members)
{
    assert_ok(report_wait(c, s, 0, n_members, -1, 20, NULL));
}

int run_hub_tests(const struct CMUnitTest *tests, size_t n, const struct CMUnitTest *sealed,
                  size_t n_sealed)
{
    int failed;

    setenv("LOCKSTEP_LOG", "error", 1);
    if (net_key_random(&key) != LS_OK)
        return 1;
    failed = _cmocka_run_group_tests("hub", tests, n, NULL, NULL);
    for (security = NET_MAC; security <= NET_ENCRYPT; security++)
        failed +=
            _cmocka_run_group_tests(net_security_text(security), sealed, n_sealed, NULL, NULL);
    return failed;
}
