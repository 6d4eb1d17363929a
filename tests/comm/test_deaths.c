/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deaths.c - ranks that end before the others: killed, exited, or left in good order, over
 * shared memory and TCP. LS_TEST_ROUNDS repeats the tests that depend on timing (default 3).
 * LS_TEST_SEED=N repeats the random choices of a run that printed it.
 */
#include "comm/scene.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/group/group.h"
#include "comm/backends/native/team/team_internal.h"
#include "host/process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Rank 1 leaves the job and exits with 0 while the others start one more operation. */
static ls_status leaver_body(const ls_test_rank *self, void *arg)
{
    float x = 1;
    ls_comm *comm;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL));
    if (self->rank != 1)
        LS_TRY(scene_note(arg, self->rank, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    return LS_OK;
}

/* Rank 1 exits with 0 without leaving the job. */
static ls_status silent_leaver_body(const ls_test_rank *self, void *arg)
{
    float x = 1;
    ls_comm *comm;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL));
    if (self->rank == 1)
        _exit(0);
    LS_TRY(scene_note(arg, self->rank, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_rank_that_leaves_early_is_named(void **state)
{
    static const ls_test_body bodies[] = {leaver_body, silent_leaver_body};

    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        for (size_t b = 0; b < LS_COUNT_OF(bodies); b++) {
            scene *s = scene_create();

            assert_true(scene_run(s, 3, bodies[b], scene_transports[t]));
            scene_assert_failure(s, 0, LS_EPEER, "rank 1");
            scene_assert_failure(s, 2, LS_EPEER, "rank 1");
            scene_destroy(s);
        }
    }
}

/* Ranks 0 to 2 make a group; rank 1 destroys its own after the first operation there, and stays in
 * the job. */
static ls_status group_leaver_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;
    ls_comm *part = NULL;
    float x = 1;

    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, self->rank < 3 ? 0 : -1, 0, &part));
    if (part != NULL)
        LS_TRY(ls_all_reduce(part, &x, &x, 1, LS_F32, LS_SUM, NULL));
    if (self->rank == 0 || self->rank == 2)
        LS_TRY(scene_note(arg, self->rank, ls_all_reduce(part, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(part);
    LS_TRY(ls_barrier(world, NULL)); // the job goes on
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_rank_that_leaves_a_group_early_is_named_with_both_operations(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        scene *s = scene_create();

        assert_true(scene_run(s, 4, group_leaver_body, scene_transports[t]));
        for (int r = 0; r < 3; r += 2) {
            scene_assert_failure(s, r, LS_EPEER, "rank 1 (pid ");
            scene_assert_failure(s, r, LS_EPEER, "left the group after operation #1, but rank ");
            scene_assert_failure(s, r, LS_EPEER, "waits for it in all_reduce #2");
        }
        scene_destroy(s);
    }
}

/* Rank 0 receives from any rank of the group: it fails only when the last other member has left. */
static ls_status any_source_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    ls_comm *world;
    ls_comm *part = NULL;
    ls_work *w = NULL;
    int x = 0;

    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, self->rank < 3 ? 0 : -1, 0, &part));
    if (self->rank == 0) {
        LS_TRY(ls_recv(part, &x, 1, LS_I32, LS_ANY_SOURCE, 0, &w));
        LS_CHECK(ls_work_wait_for(w, 1000) == LS_ETIMEOUT); // without rank 1, longer than any grace
        atomic_store(&s->ranks[0].n_done, 1);
        LS_TRY(scene_note(s, 0, ls_work_wait(w)));
    }
    while (self->rank == 2 && atomic_load(&s->ranks[0].n_done) == 0)
        (void)usleep(1000);
    ls_comm_destroy(part);
    LS_TRY(ls_barrier(world, NULL));
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_receive_from_any_rank_fails_when_the_last_member_has_left(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    assert_true(scene_run(s, 4, any_source_body, "shm"));
    scene_assert_failure(s, 0, LS_EPEER, "left the group, but rank 0 waits for it in recv #1");
    scene_destroy(s);
}

/* Ranks 1 to 5 of a group wait long for its rank 0; rank 6 is no member. */
static ls_status long_wait_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;
    ls_comm *part = NULL;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, self->rank < 6 ? 0 : -1, 0, &part));
    if (self->rank == 0)
        (void)usleep(2000000);
    if (part != NULL)
        LS_TRY(ls_barrier(part, NULL));
    ls_comm_destroy(part);
    ls_comm_destroy(world);
    return LS_OK;
}

/* Each rank reports the beginning and the end of a wait, and nothing in between. */
static void a_long_wait_in_a_group_costs_the_hub_a_fixed_number_of_frames_a_rank(void **state)
{
    enum { RANKS = 7, FRAMES_A_RANK = 20 };
    uint64_t frames = 0;
    const ls_test_job job = {.n = RANKS, .body = long_wait_body, .hub_frames = &frames};

    LS_UNUSED(state);
    assert_true(ls_test_ranks(&job, NULL));
    print_message("%d frames of %d ranks\n", (int)frames, RANKS);
    assert_in_range(frames, 1, RANKS * FRAMES_A_RANK);
}

/* All ranks leave at once after their last operation: no failure, in any order. */
static ls_status leave_body(const ls_test_rank *self, void *arg)
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
    const int rounds = ls_test_number("LS_TEST_ROUNDS", 3);

    LS_UNUSED(state);
    for (int i = 0; i < 4 * rounds; i++) {
        const ls_test_job job = {.n = 2 + i % 4,
                                 .body = leave_body,
                                 .transport = scene_transports[i % 2],
                                 .rendezvous =
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
    LS_TRY(scene_note(s, self->rank, st));
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

static pid_t fork_killer(const killer *k)
{
    const pid_t pid = fork();

    if (pid == 0) {
        scene_wait_for_all(k->s, k->n);
        (void)usleep((useconds_t)k->delay_us);
        atomic_store(&k->s->event_ms, ls_now_ms());
        (void)kill(atomic_load(&k->s->pids[k->victim]), k->signal);
        _exit(0);
    }
    return pid;
}

static void kill_one(ls_test_body body, const char *transport, ls_test_rendezvous rendezvous, int n,
                     int victim, int64_t delay_us)
{
    scene *s = scene_create();
    const killer k = {.s = s, .n = n, .victim = victim, .signal = SIGKILL, .delay_us = delay_us};
    const ls_test_job job = {
        .n = n, .body = body, .arg = s, .transport = transport, .rendezvous = rendezvous};
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
        scene_assert_failure(s, r, LS_EPEER, name);
        scene_assert_in_time(s, r);
    }
    scene_destroy(s);
}

/* Another choice of victims and moments in each run. */
static void seed_printed(ls_rng *rng)
{
    const int seed = ls_test_number("LS_TEST_SEED", (int)(ls_now_ns() % 1000000000));

    print_message("LS_TEST_SEED=%d\n", seed);
    ls_rng_seed(rng, (uint64_t)seed);
}

static void a_killed_rank_is_named_within_a_second(void **state)
{
    const int rounds = ls_test_number("LS_TEST_ROUNDS", 3);
    ls_rng rng;

    LS_UNUSED(state);
    seed_printed(&rng);
    for (int i = 0; i < rounds; i++) {
        const int n = 2 + i % 3;

        for (size_t t = 0; t < SCENE_TRANSPORTS; t++)
            kill_one(victim_body, scene_transports[t], LS_TEST_AT_STARTER, n,
                     (int)ls_rng_below(&rng, (uint64_t)n), (int64_t)ls_rng_below(&rng, 50000));
    }
}

/* Without a launcher the exit status is unknown; rank 0's own hub, or its end, shows the loss. */
static void killed_rank_is_named_without_a_launcher(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        kill_one(victim_body, scene_transports[t], LS_TEST_AT_RANK_0, 3, 2, 10000);
        kill_one(victim_body, scene_transports[t], LS_TEST_AT_RANK_0, 3, 0, 10000);
    }
}

/* --- without a hub --- */

typedef enum way_to_end { BY_SIGNAL, BY_EXIT, BY_LEAVING } way_to_end;

typedef struct hubless {
    scene *s;
    way_to_end way;
    bool is_message; /* for which rank 2 waits */
} hubless;

/* Rank 0, which has the hub, has left the job; rank 1 ends or leaves the group of the other two. */
static ls_status hubless_body(const ls_test_rank *self, void *arg)
{
    const hubless *h = arg;
    scene *s = h->s;
    ls_comm *world;
    ls_comm *part = NULL;
    float x = 1;

    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, self->rank > 0 ? 0 : -1, 0, &part));
    if (self->rank == 0) {
        ls_comm_destroy(world);
        atomic_store(&s->ranks[0].n_done, 1);
        return LS_OK;
    }
    while (atomic_load(&s->ranks[0].n_done) == 0)
        (void)usleep(1000);
    LS_TRY(ls_all_reduce(part, &x, &x, 1, LS_F32, LS_SUM, NULL));
    if (self->rank == 2) {
        LS_TRY(scene_note(s, 2,
                          h->is_message ? ls_recv(part, &x, 1, LS_F32, 0, 0, NULL)
                                        : ls_barrier(part, NULL)));
        atomic_store(&s->ranks[2].n_done, 1);
    } else {
        if (h->way == BY_SIGNAL)
            (void)raise(SIGKILL);
        if (h->way == BY_EXIT)
            _exit(0);
    }
    ls_comm_destroy(part);
    while (atomic_load(&s->ranks[2].n_done) == 0)
        (void)usleep(1000);
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_rank_that_ends_is_named_when_there_is_no_hub_any_more(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 12; i++) {
        hubless h = {.s = scene_create(), .way = (way_to_end)(i / 2 % 3), .is_message = i % 2 == 1};
        const char *transport = scene_transports[i / 6];
        const ls_test_job job = {.n = 3,
                                 .body = hubless_body,
                                 .arg = &h,
                                 .transport = transport,
                                 .rendezvous = LS_TEST_AT_RANK_0};
        static ls_test_outcome outcomes[3];

        print_message("%s, %s, way %d\n", transport, h.is_message ? "message" : "barrier",
                      (int)h.way);
        (void)ls_test_ranks(&job, outcomes);
        if (outcomes[2].code != 0)
            fail_msg("rank 2: %s", outcomes[2].text);
        scene_assert_failure(h.s, 2, LS_EPEER, "rank 1 ");
        scene_destroy(h.s);
    }
}

/* Rank 1 dies before it has joined: no rank waits for the join timeout. */
static ls_status stillborn_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;

    if (self->rank == 1)
        (void)raise(SIGKILL);
    LS_TRY(scene_note(arg, self->rank, ls_test_init(self, &comm)));
    return LS_OK;
}

static void a_rank_that_dies_before_it_joins_is_named(void **state)
{
    scene *s = scene_create();
    const ls_test_job job = {.n = 3, .body = stillborn_body, .arg = s};
    static ls_test_outcome outcomes[LS_TEST_RANKS_MAX];
    const int64_t begin_ms = ls_now_ms();

    LS_UNUSED(state);
    (void)ls_test_ranks(&job, outcomes);
    assert_int_equal(outcomes[0].code, 0);
    assert_int_equal(outcomes[2].code, 0);
    scene_assert_failure(s, 0, LS_EPEER, "rank 1");
    scene_assert_failure(s, 2, LS_EPEER, "rank 1");
    assert_true(ls_now_ms() - begin_ms < 10000);
    scene_destroy(s);
}

/* Rank 1 never joins and exits with 0. */
static ls_status absent_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;

    if (self->rank == 1)
        return LS_OK;
    LS_TRY(scene_note(arg, self->rank, ls_test_init(self, &comm)));
    return LS_OK;
}

static void a_rank_that_exits_instead_of_joining_is_named(void **state)
{
    scene *s = scene_create();

    LS_UNUSED(state);
    assert_true(scene_run(s, 3, absent_body, "auto"));
    scene_assert_failure(s, 0, LS_EPEER, "rank 1 exited");
    scene_assert_failure(s, 2, LS_EPEER, "rank 1 exited");
    scene_destroy(s);
}

/* Ranks join and leave all the time; one is killed somewhere in between, also while the others
 * join. */
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
            LS_TRY(scene_note(s, self->rank, st));
        ls_comm_destroy(comm);
    }
    return LS_OK;
}

static void a_rank_killed_while_ranks_join_is_named(void **state)
{
    const int rounds = ls_test_number("LS_TEST_ROUNDS", 3);
    ls_rng rng;

    LS_UNUSED(state);
    seed_printed(&rng);
    for (int i = 0; i < 2 * rounds; i++) {
        const int victim = (int)ls_rng_below(&rng, 3);

        kill_one(joiner_body, scene_transports[i % 2], LS_TEST_AT_STARTER, 3, victim,
                 (int64_t)ls_rng_below(&rng, 20000));
    }
}

/* How rank 1 ends after it has joined. */
typedef enum early_end {
    EARLY_DESTROY,
    EARLY_RETURN,
    EARLY_EXIT,
    EARLY_KILL,
    EARLY_ENDS
} early_end;

typedef struct early_scene {
    scene *s;
    early_end end;
    bool is_local; /* the ranks share memory */
} early_scene;

/* Rank 0 stops inside ls_init() until rank 1, which needs it no longer, has joined and ended. */
static _Thread_local struct {
    scene *s; /* NULL: of no test, or the rank goes on */
    int rank;
    int rank_1; /* its pidfd */
    bool is_local;
    int n_published; /* counters of the team */
} early;

/* Until it has stopped. */
static void wait_for_rank_0(scene *s)
{
    while (atomic_load(&s->ranks[0].n_done) == 0)
        (void)usleep(200);
}

static void wait_for_end_of_rank_1(void)
{
    struct pollfd process = {.fd = early.rank_1, .events = POLLIN};

    atomic_store(&early.s->ranks[0].n_done, 1);
    (void)poll(&process, 1, -1);
    atomic_store(&early.s->event_ms, ls_now_ms());
    early.s = NULL;
}

ls_status __real_group_create(engine *e, const ls_comm *of, uint32_t id, int rank, int size,
                              int *members, ls_comm **out);
ls_status __wrap_group_create(engine *e, const ls_comm *of, uint32_t id, int rank, int size,
                              int *members, ls_comm **out);
void __real_team_publish(team *t, _Atomic uint64_t *counter, uint64_t value);
void __wrap_team_publish(team *t, _Atomic uint64_t *counter, uint64_t value);
void __real_local_prepare_sleep(local *l);
void __wrap_local_prepare_sleep(local *l);

/* Over TCP no rank waits for others in this last step of ls_init(). */
ls_status __wrap_group_create(engine *e, const ls_comm *of, uint32_t id, int rank, int size,
                              int *members, ls_comm **out)
{
    if (early.s != NULL && early.rank == 0 && !early.is_local)
        wait_for_end_of_rank_1();
    return __real_group_create(e, of, id, rank, size, members, out);
}

/* Over shared memory all ranks wait for all twice: rank 1 comes last. */
void __wrap_team_publish(team *t, _Atomic uint64_t *counter, uint64_t value)
{
    early.n_published++;
    if (early.s != NULL && early.rank == 1 && early.is_local && early.n_published == 2)
        wait_for_rank_0(early.s);
    __real_team_publish(t, counter, value);
}

void __wrap_local_prepare_sleep(local *l)
{
    if (early.s != NULL && early.rank == 0 && early.is_local && early.n_published == 2)
        wait_for_end_of_rank_1();
    __real_local_prepare_sleep(l);
}

static ls_status end_early(ls_comm *comm, early_end end)
{
    if (end == EARLY_EXIT)
        _exit(0);
    if (end == EARLY_KILL)
        (void)raise(SIGKILL);
    if (end == EARLY_DESTROY)
        ls_comm_destroy(comm);
    return ls_fail(LS_ENOMEM, "no memory for the first step");
}

static ls_status early_body(const ls_test_rank *self, void *arg)
{
    const early_scene *with = arg;
    ls_comm *comm = NULL;
    float x = 0;
    ls_status st;

    atomic_store(&with->s->pids[self->rank], getpid());
    scene_wait_for_all(with->s, 3);
    early.s = with->s;
    early.rank = self->rank;
    early.rank_1 = process_open(atomic_load(&with->s->pids[1]));
    early.is_local = with->is_local;
    st = ls_test_init(self, &comm);
    if (st == LS_OK && self->rank == 1) {
        wait_for_rank_0(with->s);
        return end_early(comm, with->end);
    }
    if (st == LS_OK)
        st = ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL);
    st = scene_note(with->s, self->rank, st);
    ls_comm_destroy(comm);
    return st;
}

static void fail_early(early_end end, bool is_local, ls_test_rendezvous rendezvous)
{
    early_scene with = {.s = scene_create(), .end = end, .is_local = is_local};
    const ls_test_job job = {.n = 3,
                             .body = early_body,
                             .arg = &with,
                             .transport = is_local ? "shm" : "tcp",
                             .rendezvous = rendezvous};
    static ls_test_outcome outcomes[LS_TEST_RANKS_MAX];

    print_message("%s, end %d, rendezvous %d\n", job.transport, (int)end, (int)rendezvous);
    (void)ls_test_ranks(&job, outcomes);
    for (int r = 0; r < 3; r += 2) {
        if (outcomes[r].code != 0 || outcomes[r].was_killed)
            fail_msg("rank %d: %s", r, outcomes[r].text);
        scene_assert_failure(with.s, r, LS_EPEER, "rank 1 ");
    }
    scene_assert_in_time(with.s, 0);
    scene_destroy(with.s);
}

static void a_rank_that_fails_before_all_have_joined_is_named(void **state)
{
    static const ls_test_rendezvous rendezvous[] = {LS_TEST_AT_STARTER, LS_TEST_AT_RANK_0};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rendezvous); i++) {
        for (int end = 0; end < EARLY_ENDS; end++) {
            fail_early((early_end)end, false, rendezvous[i]);
            fail_early((early_end)end, true, rendezvous[i]);
        }
    }
}

static ls_status missing_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;

    if (self->rank == 1 || self->rank == 3)
        return LS_OK;
    LS_TRY(scene_note(arg, self->rank, ls_test_init(self, &comm)));
    return LS_OK;
}

static void ranks_that_do_not_come_are_listed(void **state)
{
    scene *s = scene_create();
    const ls_test_job job = {.n = 4,
                             .body = missing_body,
                             .arg = s,
                             .join_timeout_ms = 700,
                             .rendezvous = LS_TEST_AT_RANK_0};

    LS_UNUSED(state);
    assert_true(ls_test_ranks(&job, NULL));
    scene_assert_failure(s, 0, LS_ETIMEOUT, "ranks 1, 3 of 4 did not join");
    scene_destroy(s);
}

/* An argument chooses tests by pattern: '*killed*'. */
/* --- a child that a rank forks --- */

/* Listens at this address and the hub's port. */
static ls_status bind_beside(const char *host, int type, int port, int *fd)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

    LS_CHECK(inet_pton(AF_INET, host, &at.sin_addr) == 1);
    *fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    LS_CHECK(*fd >= 0 && bind(*fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    LS_CHECK(type == SOCK_DGRAM || listen(*fd, 1) == 0);
    return LS_OK;
}

/* Descriptors of stream sockets at 127.0.0.1 and the hub's port. */
static int count_hub_sockets(int port)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in at = {0};
        socklen_t bytes = sizeof(at);
        int type = 0;
        socklen_t type_bytes = sizeof(type);

        n += getsockname(fd, (struct sockaddr *)&at, &bytes) == 0 && at.sin_family == AF_INET &&
             getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) == 0 && type == SOCK_STREAM &&
             at.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && at.sin_port == htons((uint16_t)port);
    }
    return n;
}

static ls_status fork_beside_hub(int port, const int foreign[2])
{
    int status = -1;
    const pid_t pid = fork();

    if (pid == 0)
        _exit((fcntl(foreign[0], F_GETFD) < 0 ? 1 : 0) + (fcntl(foreign[1], F_GETFD) < 0 ? 2 : 0) +
              (count_hub_sockets(port) > 0 ? 4 : 0));
    LS_CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    LS_CHECK(count_hub_sockets(port) >= 2); // the hub's, and its connection with rank 1
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return LS_OK;
}

static ls_status forker_body(const ls_test_rank *self, void *arg)
{
    const int port = *(const int *)arg;
    int foreign[2];
    ls_comm *comm;

    if (self->rank == 0) {
        LS_TRY(bind_beside("127.0.0.2", SOCK_STREAM, port, &foreign[0]));
        LS_TRY(bind_beside("127.0.0.1", SOCK_DGRAM, port, &foreign[1]));
    }
    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 0)
        LS_TRY(fork_beside_hub(port, foreign));
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void forked_child_closes_the_hubs_sockets_and_no_others(void **state)
{
    ls_test_job job = {.n = 2,
                       .body = forker_body,
                       .rendezvous = LS_TEST_AT_MASTER,
                       .env = {"MASTER_ADDR=127.0.0.1"}};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(at);
    const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char home[] = "/tmp/lockstep-test-XXXXXX";
    char home_variable[64];
    char port_variable[32];
    char remove_home[64];
    int port;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(home));
    assert_int_equal(bind(probe, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(getsockname(probe, (struct sockaddr *)&at, &bytes), 0);
    port = ntohs(at.sin_port);
    close(probe);
    job.env[1] = text_format(port_variable, sizeof(port_variable), "MASTER_PORT=%d", port);
    job.env[2] = text_format(home_variable, sizeof(home_variable), "HOME=%s", home);
    job.arg = &port;
    assert_true(ls_test_ranks(&job, NULL));
    text_format(remove_home, sizeof(remove_home), "rm -r '%s'", home);
    assert_int_equal(system(remove_home), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_leaves_early_is_named),
        cmocka_unit_test(a_rank_that_leaves_a_group_early_is_named_with_both_operations),
        cmocka_unit_test(a_receive_from_any_rank_fails_when_the_last_member_has_left),
        cmocka_unit_test(a_long_wait_in_a_group_costs_the_hub_a_fixed_number_of_frames_a_rank),
        cmocka_unit_test(leaving_after_the_last_operation_is_no_failure),
        cmocka_unit_test(a_killed_rank_is_named_within_a_second),
        cmocka_unit_test(killed_rank_is_named_without_a_launcher),
        cmocka_unit_test(a_rank_that_ends_is_named_when_there_is_no_hub_any_more),
        cmocka_unit_test(a_rank_that_dies_before_it_joins_is_named),
        cmocka_unit_test(a_rank_that_exits_instead_of_joining_is_named),
        cmocka_unit_test(a_rank_killed_while_ranks_join_is_named),
        cmocka_unit_test(a_rank_that_fails_before_all_have_joined_is_named),
        cmocka_unit_test(ranks_that_do_not_come_are_listed),
        cmocka_unit_test(forked_child_closes_the_hubs_sockets_and_no_others),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
