/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_seat.c - the group of an elastic job is formed again: ranks are threads, and a thread with
 * the hubs and the machine of launch/head/elastic/recovery.h is the launcher.
 *
 * LS_TEST_ROUNDS repeats each case.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "launch/head/elastic/recovery.h"
#include "net/poller.h"
#include "hub/hub.h"
#include "store/seat_text.h"

#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { RANKS = 4, THREADS_MOST = 8, ROUNDS = 10, MEET_MS = 300, AFTER = 10 };

#define JOB "0123456789abcdef"

/* --- the launcher --- */

typedef struct launcher {
    poller *loop;
    hub *members;
    hub *hub;
    recovery *machine;
    int64_t wake_ms;
    char members_url[NET_ADDRESS_TEXT_MAX];
    char hub_url[NET_ADDRESS_TEXT_MAX]; /* of the present roster */
    ls_thread thread;
    atomic_bool ends;
    atomic_int died;    /* the number of a member that has died; -1: none that is not noted */
    atomic_int started; /* of a process that is to be started */
    atomic_int n_views;
} launcher;

static void open_hub(launcher *l, int n, int64_t roster)
{
    hub_options options = {.world_size = n, .generation = 1 + ((uint32_t)roster << 16)};
    net_address at;
    net_address bound;

    memcpy(options.job, JOB, sizeof(options.job));
    hub_destroy(l->hub);
    assert_ok(hub_create(l->loop, &options, &l->hub));
    assert_ok(net_address_fresh_unix("test-hub", &at));
    assert_ok(hub_listen(l->hub, &at, &bound));
    net_address_text(l->hub_url, sizeof(l->hub_url), &bound);
}

static void put(const launcher *l, const char *key, const char *text)
{
    assert_ok(hub_set(l->members, key, text));
}

static void give_seats(launcher *l)
{
    const recovery_seat *seats;
    char key[SEAT_KEY_BYTES];
    char text[SEAT_TEXT_BYTES];
    seat_answer answer = {.rank = 0};

    seats = recovery_roster(l->machine, &answer.size, &answer.roster);
    answer.generation = 1 + ((uint32_t)answer.roster << 16);
    open_hub(l, answer.size, answer.roster);
    text_format(answer.unix_url, sizeof(answer.unix_url), "%s", l->hub_url);
    for (; answer.rank < answer.size; answer.rank++) {
        const recovery_seat *seat = &seats[answer.rank];

        put(l, seat_answer_key(key, seat->member, seat->number), seat_write_answer(&answer, text));
    }
    atomic_fetch_add(&l->n_views, 1);
}

static void carry_out(launcher *l, const recovery_action *a)
{
    const job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .text = "a rank died"};
    char key[SEAT_KEY_BYTES];
    int64_t roster;
    int n;

    (void)recovery_roster(l->machine, &n, &roster);
    if (a->kind == RECOVERY_DO_ABORT)
        hub_abort(l->hub, &cause);
    else if (a->kind == RECOVERY_DO_CALL)
        put(l, seat_call_key(key, roster), "1");
    else if (a->kind == RECOVERY_DO_ROSTER)
        give_seats(l);
    else if (a->kind == RECOVERY_DO_START)
        atomic_store(&l->started, a->member);
    else if (a->kind == RECOVERY_DO_REFUSE)
        put(l, seat_answer_key(key, a->member, a->number), "refused it came too late");
}

static void step(launcher *l, const recovery_event *e)
{
    const recovery_result r = recovery_step(l->machine, e, ls_now_ms());

    l->wake_ms = r.wake_at_ms;
    for (int i = 0; i < r.n_actions; i++)
        carry_out(l, &r.actions[i]);
}

static void answer_check(const launcher *l, const seat_report *r)
{
    char key[SEAT_KEY_BYTES];
    char text[SEAT_TEXT_BYTES];
    int64_t roster;
    int n;

    (void)recovery_roster(l->machine, &n, &roster);
    put(l, seat_checked_key(key, r->member, r->number),
        text_format(text, sizeof(text), "%" PRId64, roster));
}

static void on_stored(void *self, const char *key, const char *value)
{
    seat_report r;

    assert_true(seat_read_report(key, value, &r));
    if (r.is_check) {
        answer_check(self, &r);
        return;
    }
    step(self, &(recovery_event){.kind = r.is_ready ? RECOVERY_READY : RECOVERY_ASKED,
                                 .member = r.member,
                                 .roster = r.roster,
                                 .number = r.number,
                                 .has_state = r.has_state});
}

static void serve(void *arg)
{
    launcher *l = arg;

    while (!atomic_load(&l->ends)) {
        const int died = atomic_exchange(&l->died, -1);

        if (died >= 0)
            step(l, &(recovery_event){.kind = RECOVERY_DIED, .member = died});
        if (ls_now_ms() >= l->wake_ms)
            step(l, &(recovery_event){.kind = RECOVERY_TICK});
        assert_ok(poller_run_once(l->loop, 2));
    }
}

static void open_launcher(launcher *l, int max_replacements)
{
    const hub_options options = {.events = {.self = l, .stored = on_stored}};
    net_address at;
    net_address bound;

    *l = (launcher){.wake_ms = RECOVERY_NEVER};
    atomic_init(&l->died, -1);
    atomic_init(&l->started, -1);
    assert_ok(recovery_create(&(recovery_options){.n_slots = RANKS,
                                                  .min_ranks = 1,
                                                  .max_replacements = max_replacements,
                                                  .meet_ms = MEET_MS},
                              &l->machine));
    assert_ok(poller_create(&l->loop));
    assert_ok(hub_create(l->loop, &options, &l->members));
    assert_ok(net_address_fresh_unix("test-members", &at));
    assert_ok(hub_listen(l->members, &at, &bound));
    net_address_text(l->members_url, sizeof(l->members_url), &bound);
    open_hub(l, RANKS, 0);
    assert_ok(ls_thread_start(&l->thread, "test-launcher", serve, l));
}

static void close_launcher(launcher *l)
{
    atomic_store(&l->ends, true);
    poller_wake(l->loop);
    ls_thread_join(&l->thread);
    hub_destroy(l->hub);
    hub_destroy(l->members);
    recovery_destroy(l->machine);
    poller_destroy(l->loop);
}

/* --- the ranks --- */

typedef struct test_rank {
    launcher *l;
    int member;
    int is_new;
    char hub_url[NET_ADDRESS_TEXT_MAX];
    char rank[8];
    ls_thread thread;
    ls_status (*body)(struct test_rank *r, ls_comm *comm);
    ls_status status;
    char text[LS_ERROR_BYTES];
} test_rank;

static const char *variable(void *self, const char *name)
{
    const test_rank *r = self;

    if (strcmp(name, "LOCKSTEP_RANK") == 0 || strcmp(name, "LOCKSTEP_MEMBER") == 0)
        return r->rank;
    if (strcmp(name, "LOCKSTEP_WORLD_SIZE") == 0)
        return r->is_new ? "8" : "4";
    if (strcmp(name, "LOCKSTEP_STORE") == 0)
        return r->hub_url;
    if (strcmp(name, "LOCKSTEP_ELASTIC") == 0)
        return r->l->members_url;
    if (strcmp(name, "LOCKSTEP_NEW_MEMBER") == 0)
        return r->is_new ? "1" : NULL;
    if (strcmp(name, "LOCKSTEP_JOB") == 0)
        return JOB;
    return strcmp(name, "LOCKSTEP_GENERATION") == 0 ? "1" : NULL;
}

static void run_rank(void *arg)
{
    test_rank *r = arg;
    const comm_env env = {.get = variable, .self = r};
    ls_comm *comm = NULL;

    r->status = comm_init_in(&env, NULL, &comm);
    if (r->status == LS_OK)
        r->status = r->body(r, comm);
    if (r->status != LS_OK)
        text_format(r->text, sizeof(r->text), "%s", ls_last_error());
    ls_comm_destroy(comm);
}

static void start(test_rank *r, launcher *l, int member, bool is_new,
                  ls_status (*body)(test_rank *r, ls_comm *comm))
{
    *r = (test_rank){.l = l, .member = member, .is_new = is_new, .body = body};
    text_format(r->rank, sizeof(r->rank), "%d", member);
    text_format(r->hub_url, sizeof(r->hub_url), "%s", is_new ? "unix:@unused" : l->hub_url);
    assert_ok(ls_thread_start(&r->thread, "test-rank", run_rank, r));
}

static void end(test_rank *r)
{
    ls_thread_join(&r->thread);
    if (r->status != LS_OK)
        fail_msg("member %d: %s", r->member, r->text);
}

/* Each rank adds 1, and rank 0 adds 100 when new processes wait. */
static ls_status add_up(ls_comm *comm, bool *is_called)
{
    float sum = 1 + (ls_comm_rank(comm) == 0 && ls_comm_is_called(comm) ? 100.0F : 0);

    LS_TRY(ls_all_reduce(comm, &sum, &sum, 1, LS_F32, LS_SUM, NULL));
    *is_called = sum > 100;
    sum -= *is_called ? 100 : 0;
    if ((int)sum != ls_comm_size(comm))
        return ls_fail(LS_EINTERNAL, "a sum of %g on %d ranks", (double)sum, ls_comm_size(comm));
    return LS_OK;
}

/* Adds up until the group has had `n` ranks for AFTER sums in the last of `n_groups` groups. */
static ls_status work(ls_comm *comm, int n_groups)
{
    int n = 0;

    while (n_groups > 1 || n < AFTER) {
        bool is_called = false;
        ls_status st = add_up(comm, &is_called);

        if (st != LS_OK && st != LS_EPEER && st != LS_ECANCELED)
            return st;
        n++;
        if (st == LS_OK && !is_called)
            continue;
        LS_TRY(ls_comm_rejoin(comm, true));
        LS_TRY(ls_comm_check_seat(comm));
        n_groups--;
        n = 0;
    }
    return LS_OK;
}

static ls_status survivor(test_rank *r, ls_comm *comm)
{
    LS_UNUSED(r);
    LS_TRY(ls_comm_report_state(comm));
    return work(comm, 3); // of four ranks, of three, with the new one
}

static ls_status survivor_of_two(test_rank *r, ls_comm *comm)
{
    LS_UNUSED(r);
    LS_TRY(ls_comm_report_state(comm));
    return work(comm, 2);
}

/* Its connections end as those of a killed process do, and its parent reports it. */
static ls_status victim(test_rank *r, ls_comm *comm)
{
    bool is_called;

    LS_TRY(ls_comm_report_state(comm));
    for (int i = 0; i < 3; i++)
        LS_TRY(add_up(comm, &is_called));
    atomic_store(&r->l->died, r->member);
    poller_wake(r->l->loop);
    return LS_OK;
}

static ls_status new_rank(test_rank *r, ls_comm *comm)
{
    LS_UNUSED(r);
    if (!comm_is_new(comm) || ls_comm_size(comm) != 1)
        return ls_fail(LS_EINTERNAL, "a new process has a group of %d", ls_comm_size(comm));
    LS_TRY(ls_comm_rejoin(comm, false));
    if (comm_is_new(comm) || ls_comm_rank(comm) != RANKS - 1)
        return ls_fail(LS_EINTERNAL, "a new process has become rank %d", ls_comm_rank(comm));
    LS_TRY(ls_comm_report_state(comm));
    return work(comm, 1);
}

/* Does not ask until the others have gone on. */
static ls_status stopped(test_rank *r, ls_comm *comm)
{
    bool is_called;
    ls_status st;

    LS_TRY(ls_comm_report_state(comm));
    LS_TRY(add_up(comm, &is_called));
    ls_comm_abort(comm, "the other ranks do not wait for a stopped one");
    while (atomic_load(&r->l->n_views) == 0)
        (void)poll(NULL, 0, 1);
    st = ls_comm_check_seat(comm);
    if (st != LS_ECANCELED || strstr(ls_last_error(), "must not write files") == NULL)
        return ls_fail(LS_EINTERNAL, "the seat of a stopped rank: %d %s", (int)st, ls_last_error());
    st = ls_comm_rejoin(comm, true);
    if (st != LS_ECANCELED || strstr(ls_last_error(), "it came too late") == NULL)
        return ls_fail(LS_EINTERNAL, "a stopped rank joins: %d %s", (int)st, ls_last_error());
    st = add_up(comm, &is_called);
    if (st != LS_ECANCELED)
        return ls_fail(LS_EINTERNAL, "the group of a stopped rank: %d", (int)st);
    return LS_OK;
}

static int rounds(void)
{
    const char *text = getenv("LS_TEST_ROUNDS");

    return ROUNDS * (text == NULL ? 1 : (int)strtol(text, NULL, 10));
}

static void a_lost_rank_is_replaced(void **state)
{
    static test_rank ranks[THREADS_MOST];

    (void)state;
    for (int round = 0; round < rounds(); round++) {
        const int dies = round % RANKS;
        launcher l;
        int member;

        open_launcher(&l, 1);
        for (int i = 0; i < RANKS; i++)
            start(&ranks[i], &l, i, false, i == dies ? victim : survivor);
        while ((member = atomic_load(&l.started)) < 0)
            (void)poll(NULL, 0, 1);
        start(&ranks[RANKS], &l, member, true, new_rank);
        for (int i = 0; i <= RANKS; i++)
            end(&ranks[i]);
        close_launcher(&l);
    }
}

static void a_stopped_rank_is_fenced(void **state)
{
    static test_rank ranks[THREADS_MOST];

    (void)state;
    for (int round = 0; round < rounds() / 4 + 1; round++) {
        const int stops = round % RANKS;
        launcher l;

        open_launcher(&l, 0);
        for (int i = 0; i < RANKS; i++)
            start(&ranks[i], &l, i, false, i == stops ? stopped : survivor_of_two);
        for (int i = 0; i < RANKS; i++)
            end(&ranks[i]);
        close_launcher(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_rank_is_replaced),
        cmocka_unit_test(a_stopped_rank_is_fenced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
