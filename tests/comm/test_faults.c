/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks hear when something goes wrong: at once, with the guilty one's name, and everybody the same. Every test runs
 * over shared memory and over TCP. LOCKSTEP_TEST_ROUNDS repeats those that depend on timing (default 3).
 */
#include "base/unit.h"
#include "harness/ranks.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/thread.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define TOLD_WITHIN_MS 1000

static const char *const transports[] = {"shm", "tcp"};

/* What each rank met, where the test can see it. */
typedef struct witness {
    ls_status status;
    char text[LS_ERROR_BYTES];
    int64_t told_ms;
    atomic_int n_done;
} witness;

typedef struct scene {
    witness ranks[LS_TEST_RANKS_MAX];
    atomic_int pids[LS_TEST_RANKS_MAX];
    _Atomic int64_t event_ms; /* when the fault happened */
    uint64_t seed;
} scene;

/* Notes how a call ended; LS_OK when it failed, as it had to. */
static ls_status note_failure(scene *s, int rank, ls_status st)
{
    witness *w = &s->ranks[rank];

    w->told_ms = ls_now_ms();
    w->status = st;
    text_format(w->text, sizeof(w->text), "%s", st == LS_OK ? "" : ls_last_error());
    return st == LS_OK ? ls_fail(LS_EINTERNAL, "the call did not fail") : LS_OK;
}

static scene *new_scene(void)
{
    scene *s = ls_test_shared(sizeof(*s));

    assert_non_null(s);
    return s;
}

static void end_scene(scene *s)
{
    (void)munmap(s, sizeof(*s));
}

static void assert_rank_told(const scene *s, int rank, ls_status status, const char *part)
{
    const witness *w = &s->ranks[rank];

    if (w->status != status || strstr(w->text, part) == NULL)
        fail_msg("rank %d heard %d \"%s\", not %d with \"%s\"", rank, (int)w->status, w->text,
                 (int)status, part);
}

static bool run_scene(scene *s, int n, ls_test_body body, const char *transport)
{
    const ls_test_job job = {.n = n, .body = body, .arg = s, .transport = transport};

    return ls_test_ranks(&job, NULL);
}

/* --- ranks that disagree --- */

typedef ls_status (*call_fn)(ls_comm *comm, float *x, float *y);

static ls_status sum_4(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 4, LS_F32, LS_SUM, NULL);
}

static ls_status max_4(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 4, LS_F32, LS_MAX, NULL);
}

static ls_status sum_5(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 5, LS_F32, LS_SUM, NULL);
}

static ls_status sum_none(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 0, LS_F32, LS_SUM, NULL);
}

static ls_status sum_many(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 50000, LS_F32, LS_SUM, NULL);
}

static ls_status sum_ints(ls_comm *comm, float *x, float *y)
{
    return ls_all_reduce(comm, x, y, 4, LS_I32, LS_SUM, NULL);
}

static ls_status from_0(ls_comm *comm, float *x, float *y)
{
    return ls_broadcast(comm, x, y, 4, LS_F32, 0, NULL);
}

static ls_status from_1(ls_comm *comm, float *x, float *y)
{
    return ls_broadcast(comm, x, y, 4, LS_F32, 1, NULL);
}

static ls_status meet(ls_comm *comm, float *x, float *y)
{
    LS_UNUSED(x);
    LS_UNUSED(y);
    return ls_barrier(comm, NULL);
}

/* Rank 1 makes the second call, all others the first; `says`: what both sides must hear. */
typedef struct quarrel {
    const char *what;
    call_fn others;
    call_fn rank_1;
    const char *says[3];
} quarrel;

static const quarrel quarrels[] = {
    {"operation", sum_4, from_0, {"all_reduce", "broadcast", "rank 1"}},
    {"reduction", sum_4, max_4, {"sum", "max", "rank 1"}},
    {"count", sum_4, sum_5, {"4 float32", "5 float32", "rank 1"}},
    {"count, one of them large", sum_4, sum_many, {"4 float32", "50000 float32", "rank 1"}},
    {"count, one of them 0", sum_4, sum_none, {"4 float32", "0 float32", "rank 1"}},
    {"type", sum_4, sum_ints, {"float32", "int32", "rank 1"}},
    {"root", from_0, from_1, {"broadcast", "root 0", "root 1"}},
    {"barrier", meet, sum_4, {"barrier", "all_reduce", "rank 1"}},
};

static const quarrel *current_quarrel;

static ls_status quarrel_body(const ls_test_rank *self, void *arg)
{
    float *x = calloc(50000, sizeof(*x)), *y = calloc(50000, sizeof(*y));
    const quarrel *q = current_quarrel;
    ls_comm *comm;
    ls_status st;

    LS_CHECK(x != NULL && y != NULL);
    LS_TRY(ls_test_init(self, &comm));
    st = meet(comm, x, y);
    if (st == LS_OK) // else the others' quarrel was faster than this rank's way out of the barrier
        st = self->rank == 1 ? q->rank_1(comm, x, y) : q->others(comm, x, y);
    if (st == LS_OK) // a root may be done before the others have looked at what it sent
        st = meet(comm, x, y);
    LS_TRY(note_failure(arg, self->rank, st));
    // The group stays broken, with the same words.
    LS_CHECK(meet(comm, x, y) == st);
    LS_CHECK(strcmp(ls_last_error(), ((scene *)arg)->ranks[self->rank].text) == 0);
    LS_CHECK(ls_comm_status(comm) == st);
    ls_comm_destroy(comm);
    free(x);
    free(y);
    return LS_OK;
}

static void ranks_that_disagree_both_hear_both_sides(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        for (size_t i = 0; i < LS_COUNT_OF(quarrels); i++) {
            const int n = i % 2 == 0 ? 2 : 3;
            scene *s = new_scene();
            const int64_t begin_ms = ls_now_ms();

            print_message("%s: %s, %d ranks\n", transports[t], quarrels[i].what, n);
            current_quarrel = &quarrels[i];
            assert_true(run_scene(s, n, quarrel_body, transports[t]));
            for (int r = 0; r < n; r++) {
                for (int k = 0; k < 3; k++)
                    assert_rank_told(s, r, LS_EMISMATCH, quarrels[i].says[k]);
            }
            assert_true(ls_now_ms() - begin_ms < 10000);
            end_scene(s);
        }
    }
}

/* Rank 0 and rank 1 start the same two operations in different orders. */
static ls_status order_body(const ls_test_rank *self, void *arg)
{
    float x[4] = {0}, y[4], z[4] = {0};
    ls_work *first, *second;
    ls_comm *comm;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 0) {
        LS_TRY(ls_all_reduce(comm, x, y, 4, LS_F32, LS_SUM, &first));
        st = ls_broadcast(comm, z, z, 3, LS_F32, 0, &second);
    } else {
        LS_TRY(ls_broadcast(comm, z, z, 3, LS_F32, 0, &first));
        st = ls_all_reduce(comm, x, y, 4, LS_F32, LS_SUM, &second);
    }
    LS_TRY(note_failure(arg, self->rank, ls_work_wait(first)));
    st = st == LS_OK ? ls_work_wait(second) : st;
    LS_CHECK(st == LS_EMISMATCH || st == LS_OK); // a root may be done with its part
    ls_comm_destroy(comm);
    return LS_OK;
}

static void another_order_of_operations_is_told(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        scene *s = new_scene();

        assert_true(run_scene(s, 2, order_body, transports[t]));
        for (int r = 0; r < 2; r++) {
            assert_rank_told(s, r, LS_EMISMATCH, "all_reduce");
            assert_rank_told(s, r, LS_EMISMATCH, "broadcast");
        }
        end_scene(s);
    }
}

/* A receive that expects other than what was sent fails on both sides. */
static ls_status message_body(const ls_test_rank *self, void *arg)
{
    static char data[400000];
    const size_t count = self->rank == 0 ? 100000 : 99999;
    ls_comm *comm;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 0)
        st = ls_send(comm, data, count, LS_F32, 1, 4, NULL);
    else
        st = ls_recv(comm, data, count, LS_F32, 0, 4, NULL);
    if (st == LS_OK) // a send may be over before the receiver has looked
        st = ls_barrier(comm, NULL);
    LS_TRY(note_failure(arg, self->rank, st));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_message_of_another_size_fails_on_both_sides(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        scene *s = new_scene();

        assert_true(run_scene(s, 2, message_body, transports[t]));
        for (int r = 0; r < 2; r++) {
            assert_rank_told(s, r, LS_EMISMATCH, "100000 float32");
            assert_rank_told(s, r, LS_EMISMATCH, "99999 float32");
        }
        end_scene(s);
    }
}

/* --- ranks that end --- */

/* Rank 1 says goodbye and exits with 0 while the others want one more operation. */
static ls_status leaver_body(const ls_test_rank *self, void *arg)
{
    float x = 1;
    ls_comm *comm;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL));
    if (self->rank != 1)
        LS_TRY(note_failure(arg, self->rank, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    return LS_OK;
}

/* Rank 1 exits with 0 and without a goodbye. */
static ls_status silent_leaver_body(const ls_test_rank *self, void *arg)
{
    float x = 1;
    ls_comm *comm;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL));
    if (self->rank == 1)
        _exit(0);
    LS_TRY(note_failure(arg, self->rank, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_rank_that_leaves_early_is_named(void **state)
{
    static const ls_test_body bodies[] = {leaver_body, silent_leaver_body};

    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        for (size_t b = 0; b < LS_COUNT_OF(bodies); b++) {
            scene *s = new_scene();

            assert_true(run_scene(s, 3, bodies[b], transports[t]));
            assert_rank_told(s, 0, LS_EPEER, "rank 1");
            assert_rank_told(s, 2, LS_EPEER, "rank 1");
            end_scene(s);
        }
    }
}

/* All leave at once after their last operation: that is no failure, whoever is first. */
static ls_status farewell_body(const ls_test_rank *self, void *arg)
{
    float x = 1;
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < 20; i++) {
        LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_MAX, NULL));
        LS_TRY(ls_broadcast(comm, &x, &x, 1, LS_F32, i % self->size, NULL));
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static void leaving_after_the_last_operation_is_no_failure(void **state)
{
    const int rounds = ls_test_number("LOCKSTEP_TEST_ROUNDS", 3);

    LS_UNUSED(state);
    for (int i = 0; i < 4 * rounds; i++) {
        const ls_test_job job = {.n = 2 + i % 4,
                                 .body = farewell_body,
                                 .transport = transports[i % 2],
                                 .meeting =
                                     i / 2 % 2 == 0 ? LS_TEST_AT_STARTER : LS_TEST_AT_RANK_0};

        assert_true(ls_test_ranks(&job, NULL));
    }
}

/* The victim is killed at a random moment in a loop of operations. */
static ls_status victim_body(const ls_test_rank *self, void *arg)
{
    enum { COUNT = 20000 };
    float *x = calloc(COUNT, sizeof(*x));
    scene *s = arg;
    ls_comm *comm;
    ls_status st = LS_OK;

    LS_CHECK(x != NULL);
    LS_TRY(ls_test_init(self, &comm));
    atomic_store(&s->pids[self->rank], getpid());
    for (int i = 0; st == LS_OK; i++) {
        const size_t count = (size_t)(i % 3 == 0 ? 1 : i % 3 == 1 ? 700 : COUNT);

        st = i % 4 == 3 ? ls_barrier(comm, NULL)
                        : ls_all_reduce(comm, x, x, count, LS_F32, LS_MAX, NULL);
    }
    LS_TRY(note_failure(s, self->rank, st));
    ls_comm_destroy(comm);
    free(x);
    return LS_OK;
}

/* Waits until all ranks are at work, then kills the victim after `delay_us`. */
typedef struct killer {
    scene *s;
    int n;
    int victim;
    int signal;
    int64_t delay_us;
} killer;

static void wait_for_all(const scene *s, int n)
{
    for (int r = 0; r < n; r++) {
        while (atomic_load(&s->pids[r]) == 0)
            (void)usleep(200);
    }
}

static pid_t fork_killer(const killer *k)
{
    const pid_t pid = fork();

    if (pid == 0) {
        wait_for_all(k->s, k->n);
        (void)usleep((useconds_t)k->delay_us);
        atomic_store(&k->s->event_ms, ls_now_ms());
        (void)kill(atomic_load(&k->s->pids[k->victim]), k->signal);
        _exit(0);
    }
    return pid;
}

static void assert_told_in_time(const scene *s, int rank)
{
    const int64_t took_ms = s->ranks[rank].told_ms - atomic_load(&s->event_ms);

    if (took_ms > TOLD_WITHIN_MS)
        fail_msg("rank %d heard of it after %lld ms", rank, (long long)took_ms);
}

static void kill_one(ls_test_body body, const char *transport, ls_test_meeting meeting, int n,
                     int victim, int64_t delay_us)
{
    scene *s = new_scene();
    const killer k = {.s = s, .n = n, .victim = victim, .signal = SIGKILL, .delay_us = delay_us};
    const ls_test_job job = {
        .n = n, .body = body, .arg = s, .transport = transport, .meeting = meeting};
    static ls_test_outcome outcomes[LS_TEST_RANKS_MAX];
    char name[16];

    print_message("%s, %d ranks: rank %d is killed after %lld us\n", transport, n, victim,
                  (long long)delay_us);
    assert_true(fork_killer(&k) > 0);
    (void)ls_test_ranks(&job, outcomes);
    assert_int_equal(outcomes[victim].signal, SIGKILL);
    text_format(name, sizeof(name), "rank %d ", victim);
    for (int r = 0; r < n; r++) {
        if (r == victim)
            continue;
        if (outcomes[r].code != 0)
            fail_msg("rank %d: %s", r, outcomes[r].text);
        assert_rank_told(s, r, LS_EPEER, name);
        assert_told_in_time(s, r);
    }
    end_scene(s);
}

static void a_killed_rank_is_named_within_a_second(void **state)
{
    const int rounds = ls_test_number("LOCKSTEP_TEST_ROUNDS", 3);
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, (uint64_t)ls_now_ns());
    for (int i = 0; i < rounds; i++) {
        const int n = 2 + i % 3;

        for (size_t t = 0; t < LS_COUNT_OF(transports); t++)
            kill_one(victim_body, transports[t], LS_TEST_AT_STARTER, n,
                     (int)ls_rng_below(&rng, (uint64_t)n), (int64_t)ls_rng_below(&rng, 50000));
    }
}

/* Without a starter nobody sees how it ended; rank 0's own hub, or its end, tells the others. */
static void a_killed_rank_is_named_without_a_starter(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        kill_one(victim_body, transports[t], LS_TEST_AT_RANK_0, 3, 2, 10000);
        kill_one(victim_body, transports[t], LS_TEST_AT_RANK_0, 3, 0, 10000);
    }
}

/* Rank 1 dies before it has joined: nobody waits for the join timeout. */
static ls_status stillborn_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;

    if (self->rank == 1)
        (void)raise(SIGKILL);
    LS_TRY(note_failure(arg, self->rank, ls_test_init(self, &comm)));
    return LS_OK;
}

static void a_rank_that_dies_before_it_joins_is_named(void **state)
{
    scene *s = new_scene();
    const ls_test_job job = {.n = 3, .body = stillborn_body, .arg = s};
    static ls_test_outcome outcomes[LS_TEST_RANKS_MAX];
    const int64_t begin_ms = ls_now_ms();

    LS_UNUSED(state);
    (void)ls_test_ranks(&job, outcomes);
    assert_int_equal(outcomes[0].code, 0);
    assert_int_equal(outcomes[2].code, 0);
    assert_rank_told(s, 0, LS_EPEER, "rank 1");
    assert_rank_told(s, 2, LS_EPEER, "rank 1");
    assert_true(ls_now_ms() - begin_ms < 10000);
    end_scene(s);
}

/* Rank 1 never joins and exits with 0. */
static ls_status absent_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;

    if (self->rank == 1)
        return LS_OK;
    LS_TRY(note_failure(arg, self->rank, ls_test_init(self, &comm)));
    return LS_OK;
}

static void a_rank_that_exits_instead_of_joining_is_named(void **state)
{
    scene *s = new_scene();

    LS_UNUSED(state);
    assert_true(run_scene(s, 3, absent_body, "auto"));
    assert_rank_told(s, 0, LS_EPEER, "rank 1 exited");
    assert_rank_told(s, 2, LS_EPEER, "rank 1 exited");
    end_scene(s);
}

/* Ranks join and leave all the time; one is killed somewhere in between, also while the others join. */
static ls_status joiner_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    ls_status st = LS_OK;

    while (st == LS_OK) {
        ls_comm *comm = NULL;

        st = ls_test_init(self, &comm);
        if (st == LS_OK)
            st = ls_barrier(comm, NULL);
        atomic_store(&s->pids[self->rank], getpid());
        if (st != LS_OK)
            LS_TRY(note_failure(s, self->rank, st));
        ls_comm_destroy(comm);
    }
    return LS_OK;
}

static void a_rank_killed_while_ranks_join_is_named(void **state)
{
    const int rounds = ls_test_number("LOCKSTEP_TEST_ROUNDS", 3);
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, (uint64_t)ls_now_ns());
    for (int i = 0; i < 2 * rounds; i++) {
        const int victim = (int)ls_rng_below(&rng, 3);

        kill_one(joiner_body, transports[i % 2], LS_TEST_AT_STARTER, 3, victim,
                 (int64_t)ls_rng_below(&rng, 20000));
    }
}

static ls_status missing_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;

    if (self->rank == 1 || self->rank == 3)
        return LS_OK;
    LS_TRY(note_failure(arg, self->rank, ls_test_init(self, &comm)));
    return LS_OK;
}

static void ranks_that_do_not_come_are_listed(void **state)
{
    scene *s = new_scene();
    const ls_test_job job = {.n = 4,
                             .body = missing_body,
                             .arg = s,
                             .join_timeout_ms = 700,
                             .meeting = LS_TEST_AT_RANK_0};

    LS_UNUSED(state);
    assert_true(ls_test_ranks(&job, NULL));
    assert_rank_told(s, 0, LS_ETIMEOUT, "ranks 1, 3 of 4 did not come");
    end_scene(s);
}

/* --- abort, timeout, stop --- */

static void abort_soon(void *arg)
{
    (void)usleep(30000);
    ls_comm_abort(arg, "the data ran out");
}

static ls_status abort_body(const ls_test_rank *self, void *arg)
{
    ls_thread aborter = {0};
    scene *s = arg;
    ls_comm *comm;
    float x = 0;

    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 1)
        LS_TRY(ls_thread_start(&aborter, "abort", abort_soon, comm));
    // Rank 2 never calls, so nobody's call could end otherwise.
    if (self->rank != 2)
        LS_TRY(note_failure(s, self->rank, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    while (self->rank == 2 && ls_comm_status(comm) == LS_OK)
        (void)usleep(1000);
    if (self->rank == 2)
        LS_TRY(note_failure(s, self->rank, ls_comm_status(comm)));
    ls_thread_join(&aborter);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void an_abort_from_another_thread_reaches_all_ranks(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        scene *s = new_scene();

        assert_true(run_scene(s, 3, abort_body, transports[t]));
        for (int r = 0; r < 3; r++)
            assert_rank_told(s, r, LS_ECANCELED, "rank 1 aborted: the data ran out");
        end_scene(s);
    }
}

/* Rank 1 stays away; wait_for gives up without harm, the operation's own timeout breaks the group. */
static ls_status timeout_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *w;
    float x = 0;

    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 0) {
        LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, &w));
        LS_CHECK(ls_work_wait_for(w, 50) == LS_ETIMEOUT);
        LS_CHECK(ls_work_test(w) == 0);
        LS_CHECK(ls_comm_status(comm) == LS_OK);
        LS_TRY(note_failure(arg, 0, ls_work_wait(w)));
    } else {
        while (ls_comm_status(comm) == LS_OK)
            (void)usleep(2000);
        LS_TRY(note_failure(arg, 1, ls_comm_status(comm)));
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static void an_operation_ends_at_its_timeout(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        scene *s = new_scene();
        const ls_test_job job = {
            .n = 2, .body = timeout_body, .arg = s, .transport = transports[t], .timeout_ms = 400};

        assert_true(ls_test_ranks(&job, NULL));
        for (int r = 0; r < 2; r++) {
            assert_rank_told(s, r, LS_EDEADLINE, "rank 0 waited 0.4 s in all_reduce #1");
            assert_rank_told(s, r, LS_EDEADLINE, "not arrived 1 (");
        }
        end_scene(s);
    }
}

/* Sums that show every step; ends after a number of them. */
static ls_status stopped_body(const ls_test_rank *self, void *arg)
{
    enum { STEPS = 3000 };
    scene *s = arg;
    double sum = 0;
    ls_comm *comm;

    LS_TRY(ls_test_init(self, &comm));
    atomic_store(&s->pids[self->rank], getpid());
    for (int i = 0; i < STEPS; i++) {
        double x = 1.0 / (i + 1 + self->rank);

        LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F64, LS_SUM, NULL));
        sum += x;
        // Slow enough that the stop falls into the loop.
        if (i % 10 == 0)
            (void)usleep(300);
    }
    text_format(s->ranks[self->rank].text, LS_ERROR_BYTES, "%a", sum);
    ls_comm_destroy(comm);
    return LS_OK;
}

/* The expected sum, by the same steps on one rank's own. */
static double expected_sum(int n)
{
    double sum = 0;

    for (int i = 0; i < 3000; i++) {
        double x = 1.0 / (i + 1);

        for (int r = 1; r < n; r++)
            x += 1.0 / (i + 1 + r);
        sum += x;
    }
    return sum;
}

static void fork_stopper(scene *s, int n, int victim)
{
    if (fork() != 0)
        return;
    wait_for_all(s, n);
    (void)usleep(5000);
    (void)kill(atomic_load(&s->pids[victim]), SIGSTOP);
    (void)usleep(700000);
    (void)kill(atomic_load(&s->pids[victim]), SIGCONT);
    _exit(0);
}

static void a_stopped_rank_goes_on_with_the_same_bits(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        scene *s = new_scene();
        const ls_test_job job = {.n = 2,
                                 .body = stopped_body,
                                 .arg = s,
                                 .transport = transports[t],
                                 .env = {"LOCKSTEP_LATE_MS=200"}};
        char expected[40];

        fork_stopper(s, 2, 1);
        assert_true(ls_test_ranks(&job, NULL));
        text_format(expected, sizeof(expected), "%a", expected_sum(2));
        for (int r = 0; r < 2; r++)
            assert_string_equal(s->ranks[r].text, expected);
        end_scene(s);
    }
}

/* --- after a failure --- */

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        (void)closedir(d);
    return n;
}

/* Break, destroy, make a new group; again and again in the same processes. */
static ls_status again_body(const ls_test_rank *self, void *arg)
{
    int n_fds = 0;

    LS_UNUSED(arg);
    for (int i = 0; i < 6; i++) {
        float x = (float)self->rank;
        ls_comm *comm;

        LS_TRY(ls_test_init(self, &comm));
        LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL));
        LS_CHECK(x == 1);
        if (i % 2 == 0)
            LS_CHECK(ls_all_reduce(comm, &x, &x, 1, LS_F32, self->rank == 0 ? LS_MIN : LS_MAX,
                                   NULL) == LS_EMISMATCH);
        ls_comm_destroy(comm);
        if (i == 1)
            n_fds = count_fds();
    }
    LS_CHECK(count_fds() <= n_fds);
    return LS_OK;
}

static void new_groups_work_after_a_failure(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        for (int meeting = 0; meeting < 2; meeting++) {
            const ls_test_job job = {.n = 2,
                                     .body = again_body,
                                     .transport = transports[t],
                                     .meeting = (ls_test_meeting)meeting};

            assert_true(ls_test_ranks(&job, NULL));
        }
    }
}

/* A child of a rank can neither use the group nor keep its connections open. */
static ls_status forking_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    ls_comm *comm;
    float x = 0;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_barrier(comm, NULL));
    if (self->rank == 1) {
        const pid_t child = fork();

        if (child == 0) {
            const bool refused = ls_barrier(comm, NULL) == LS_EINVAL;

            ls_comm_destroy(comm);
            atomic_store(&s->ranks[1].n_done, refused ? 1 : 2);
            (void)sleep(5);
            _exit(0);
        }
        while (atomic_load(&s->ranks[1].n_done) == 0)
            (void)usleep(500);
        LS_CHECK(atomic_load(&s->ranks[1].n_done) == 1);
        // The group is still whole, and the child's end of it does not keep it alive.
        LS_TRY(ls_barrier(comm, NULL));
        atomic_store(&s->event_ms, ls_now_ms());
        (void)raise(SIGKILL);
    }
    LS_TRY(ls_barrier(comm, NULL));
    LS_TRY(note_failure(s, 0, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_forked_child_is_no_part_of_the_group(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(transports); t++) {
        scene *s = new_scene();
        const ls_test_job job = {.n = 2,
                                 .body = forking_body,
                                 .arg = s,
                                 .transport = transports[t],
                                 .meeting = LS_TEST_AT_RANK_0};
        static ls_test_outcome outcomes[2];

        (void)ls_test_ranks(&job, outcomes);
        if (outcomes[0].code != 0)
            fail_msg("rank 0: %s", outcomes[0].text);
        assert_rank_told(s, 0, LS_EPEER, "rank 1");
        assert_told_in_time(s, 0);
        end_scene(s);
    }
}

/* An argument chooses tests by pattern: test_comm_faults '*killed*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_disagree_both_hear_both_sides),
        cmocka_unit_test(another_order_of_operations_is_told),
        cmocka_unit_test(a_message_of_another_size_fails_on_both_sides),
        cmocka_unit_test(a_rank_that_leaves_early_is_named),
        cmocka_unit_test(leaving_after_the_last_operation_is_no_failure),
        cmocka_unit_test(a_killed_rank_is_named_within_a_second),
        cmocka_unit_test(a_killed_rank_is_named_without_a_starter),
        cmocka_unit_test(a_rank_that_dies_before_it_joins_is_named),
        cmocka_unit_test(a_rank_that_exits_instead_of_joining_is_named),
        cmocka_unit_test(a_rank_killed_while_ranks_join_is_named),
        cmocka_unit_test(ranks_that_do_not_come_are_listed),
        cmocka_unit_test(an_abort_from_another_thread_reaches_all_ranks),
        cmocka_unit_test(an_operation_ends_at_its_timeout),
        cmocka_unit_test(a_stopped_rank_goes_on_with_the_same_bits),
        cmocka_unit_test(new_groups_work_after_a_failure),
        cmocka_unit_test(a_forked_child_is_no_part_of_the_group),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
