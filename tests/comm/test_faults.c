/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faults.c - aborts, timeouts, stopped ranks, and new groups after a failure, over shared
 * memory and TCP.
 */
#include "comm/scene.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/engine.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
    // Rank 2 never calls, so no call could end otherwise.
    if (self->rank != 2)
        LS_TRY(scene_note(s, self->rank, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    while (self->rank == 2 && ls_comm_status(comm) == LS_OK)
        (void)usleep(1000);
    if (self->rank == 2)
        LS_TRY(scene_note(s, self->rank, ls_comm_status(comm)));
    ls_thread_join(&aborter);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void an_abort_from_another_thread_reaches_all_ranks(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        scene *s = scene_create();

        assert_true(scene_run(s, 3, abort_body, scene_transports[t]));
        for (int r = 0; r < 3; r++)
            scene_assert_failure(s, r, LS_ECANCELED, "rank 1 aborted: the data ran out");
        scene_destroy(s);
    }
}

/* Some operations have ended, others not, and others not yet begun, when the group breaks. */
static ls_status abort_many_body(const ls_test_rank *self, void *arg)
{
    enum { ROUNDS = 60, WORKS = 24 };
    ls_rng rng = {0};
    ls_comm *world;

    LS_UNUSED(arg);
    ls_rng_seed(&rng, (uint64_t)ls_test_number("LS_TEST_SEED", 1) + (uint64_t)self->rank);
    LS_TRY(ls_test_init(self, &world));
    for (int round = 0; round < ROUNDS; round++) {
        ls_work *works[WORKS] = {NULL};
        float values[WORKS] = {0};
        ls_comm *part;

        LS_TRY(ls_comm_split(world, 0, 0, &part));
        for (int i = 0; i < WORKS; i++) {
            const ls_status st =
                ls_all_reduce(part, &values[i], &values[i], 1, LS_F32, LS_SUM, &works[i]);

            LS_CHECK(st == LS_OK || st == LS_ECANCELED);
        }
        (void)usleep((useconds_t)ls_rng_below(&rng, 300));
        if (round % 2 == self->rank)
            ls_comm_abort(part, "enough");
        for (int i = 0; i < WORKS; i++) {
            const ls_status st = works[i] != NULL ? ls_work_wait(works[i]) : LS_ECANCELED;

            LS_CHECK(st == LS_OK || st == LS_ECANCELED);
        }
        LS_TRY(ls_barrier(world, NULL));
        ls_comm_destroy(part);
    }
    ls_comm_destroy(world);
    return LS_OK;
}

static void an_abort_between_operations_ends_each_once(void **state)
{
    LS_UNUSED(state);
    print_message("seed %d\n", ls_test_number("LS_TEST_SEED", 1));
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        scene *s = scene_create();

        assert_true(scene_run(s, 2, abort_many_body, scene_transports[t]));
        scene_destroy(s);
    }
}

/* Rank 1 has joined first: it aborts while the others still open their part of the group. */
static ls_status early_abort_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    float x = 0;

    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 1)
        ls_comm_abort(comm, "the disk is full");
    LS_TRY(scene_note(arg, self->rank, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void an_abort_reaches_ranks_that_are_still_joining(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 10; i++) {
        scene *s = scene_create();

        assert_true(scene_run(s, 4, early_abort_body, scene_transports[i % SCENE_TRANSPORTS]));
        for (int r = 0; r < 4; r++)
            scene_assert_failure(s, r, LS_ECANCELED, "rank 1 aborted: the disk is full");
        scene_destroy(s);
    }
}

/* Rank 1 stays away; wait_for gives up without harm, the operation's own timeout breaks the
 * group. */
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
        LS_TRY(scene_note(arg, 0, ls_work_wait(w)));
    } else {
        while (ls_comm_status(comm) == LS_OK)
            (void)usleep(2000);
        LS_TRY(scene_note(arg, 1, ls_comm_status(comm)));
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static void an_operation_ends_at_its_timeout(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        scene *s = scene_create();
        const ls_test_job job = {.n = 2,
                                 .body = timeout_body,
                                 .arg = s,
                                 .transport = scene_transports[t],
                                 .timeout_ms = 400};

        assert_true(ls_test_ranks(&job, NULL));
        for (int r = 0; r < 2; r++) {
            scene_assert_failure(s, r, LS_EDEADLINE, "rank 0 timed out after ");
            scene_assert_failure(s, r, LS_EDEADLINE, " s in all_reduce #1");
            scene_assert_failure(s, r, LS_EDEADLINE, "not arrived 1 (");
        }
        scene_destroy(s);
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
    scene_wait_for_all(s, n);
    (void)usleep(5000);
    (void)kill(atomic_load(&s->pids[victim]), SIGSTOP);
    (void)usleep(700000);
    (void)kill(atomic_load(&s->pids[victim]), SIGCONT);
    _exit(0);
}

static void a_stopped_rank_goes_on_with_the_same_bits(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        scene *s = scene_create();
        const ls_test_job job = {.n = 2,
                                 .body = stopped_body,
                                 .arg = s,
                                 .transport = scene_transports[t],
                                 .env = {"LOCKSTEP_LATE_MS=200"}};
        char expected[40];

        fork_stopper(s, 2, 1);
        assert_true(ls_test_ranks(&job, NULL));
        text_format(expected, sizeof(expected), "%a", expected_sum(2));
        for (int r = 0; r < 2; r++)
            assert_string_equal(s->ranks[r].text, expected);
        scene_destroy(s);
    }
}

/* --- after a failure --- */

/* What a process holds. */
typedef struct holdings {
    int fds;
    int segments; /* mappings of shared memory */
    int64_t resident_kib;
} holdings;

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

static holdings take_stock(void)
{
    holdings h = {.fds = count_fds()};
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        h.segments += strstr(line, "memfd:") != NULL;
    if (f != NULL)
        (void)fclose(f);
    f = fopen("/proc/self/status", "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, "VmRSS:", 6) == 0)
            h.resident_kib = strtol(line + 6, NULL, 10);
    }
    if (f != NULL)
        (void)fclose(f);
    return h;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GROWTH_KIB (1 << 20) /* freed memory stays with them; what leaks they find by themselves */
#else
#define GROWTH_KIB 4096 /* the heap's own unrest; a group that leaks is more, in 1000 rounds */
#endif

/* Break, destroy, make a new group; again and again in the same processes. */
static ls_status again_body(const ls_test_rank *self, void *arg)
{
    const int rounds = *(const int *)arg;
    holdings before = {0};
    holdings after;

    for (int i = 0; i < rounds; i++) {
        float x = (float)self->rank;
        ls_comm *comm;

        LS_TRY(ls_test_init(self, &comm));
        LS_TRY(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL));
        LS_CHECK(x == 1);
        if (i % 2 == 0) {
            LS_CHECK(ls_all_reduce(comm, &x, &x, 1, LS_F32, self->rank == 0 ? LS_MIN : LS_MAX,
                                   NULL) == LS_EMISMATCH);
            // It says so for ever.
            LS_CHECK(ls_barrier(comm, NULL) == LS_EMISMATCH);
            LS_CHECK(ls_comm_status(comm) == LS_EMISMATCH);
        }
        ls_comm_destroy(comm);
        if (i == rounds / 4)
            before = take_stock();
    }
    after = take_stock();
    LS_CHECK(after.fds <= before.fds);
    LS_CHECK(after.segments <= before.segments);
    LS_CHECK(after.resident_kib <= before.resident_kib + GROWTH_KIB);
    return LS_OK;
}

static void new_groups_work_after_a_failure(void **state)
{
    int rounds = ls_test_number("LS_TEST_ROUNDS", 50);

    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        for (int rendezvous = 0; rendezvous < 2; rendezvous++) {
            const ls_test_job job = {.n = 2,
                                     .body = again_body,
                                     .arg = &rounds,
                                     .transport = scene_transports[t],
                                     .deadline_ms = 60000 + 200 * (int64_t)rounds,
                                     .rendezvous = (ls_test_rendezvous)rendezvous};

            assert_true(ls_test_ranks(&job, NULL));
        }
    }
}

/* The n-th allocation of the victim's split fails. */
typedef struct short_split {
    scene *s;
    int victim;
    uint64_t fail_at;     /* 0: none does */
    atomic_int *n_allocs; /* of the victim's split */
} short_split;

static ls_status split_body(const ls_test_rank *self, void *arg)
{
    const short_split *now = arg;
    const bool is_victim = self->rank == now->victim;
    ls_comm *comm;
    ls_comm *half = NULL;
    uint64_t before;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_barrier(comm, NULL));
    before = ls_alloc_count();
    ls_alloc_fail_at(is_victim ? now->fail_at : 0);
    st = ls_comm_split(comm, 0, 0, &half);
    ls_alloc_fail_at(0);
    if (is_victim)
        atomic_store(now->n_allocs, (int)(ls_alloc_count() - before));
    if (st == LS_OK)
        atomic_store(&now->s->ranks[self->rank].n_done, 1);
    else
        LS_TRY(scene_note(now->s, self->rank, st));
    ls_comm_destroy(half);
    ls_comm_destroy(comm);
    return LS_OK;
}

/* Gives the number of the victim's allocations. */
static int split_short(int victim, uint64_t fail_at)
{
    scene *s = scene_create();
    short_split now = {.s = s, .victim = victim, .fail_at = fail_at, .n_allocs = &s->pids[0]};
    const ls_test_job job = {.n = 2, .body = split_body, .arg = &now, .deadline_ms = 20000};
    int n_allocs;
    char text[64];

    if (!ls_test_ranks(&job, NULL))
        fail_msg("allocation %d of rank %d's split failed", (int)fail_at, victim);
    text_format(text, sizeof(text), "rank %d could not split the group: ", victim);
    assert_int_equal(atomic_load(&s->ranks[0].n_done), atomic_load(&s->ranks[1].n_done));
    if (atomic_load(&s->ranks[victim].n_done) == 0) {
        assert_int_equal(s->ranks[victim].status, LS_ENOMEM);
        scene_assert_failure(s, 1 - victim, LS_EPEER, text);
    }
    n_allocs = atomic_load(&s->pids[0]);
    scene_destroy(s);
    return n_allocs;
}

static void split_that_fails_on_one_rank_fails_on_all(void **state)
{
    LS_UNUSED(state);
    for (int victim = 0; victim < 2; victim++) {
        const int n_allocs = split_short(victim, 0);

        assert_true(n_allocs > 2);
        for (int at = 1; at <= n_allocs; at++)
            (void)split_short(victim, (uint64_t)at);
    }
}

/* A child of a rank can neither use the group nor keep its connections open when the rank dies. */
static ls_status forking_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    const int parent = (int)atomic_load(&s->event_ms); // which rank forks, until the event
    witness *w = &s->ranks[parent];
    ls_comm *comm;
    float x = 0;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_barrier(comm, NULL));
    if (self->rank == parent) {
        if (fork() == 0) {
            const bool refused = ls_barrier(comm, NULL) == LS_EINVAL;

            ls_comm *part = NULL;
            const bool no_split = ls_comm_split(comm, 0, 0, &part) == LS_EINVAL;

            ls_comm_destroy(comm);
            atomic_store(&w->n_done, refused && no_split ? 1 : 2);
            (void)sleep(5);
            _exit(0);
        }
        while (atomic_load(&w->n_done) == 0)
            (void)usleep(500);
        LS_CHECK(atomic_load(&w->n_done) == 1);
        // The group is still whole, and the child's end of it does not keep it alive.
        LS_TRY(ls_barrier(comm, NULL));
        atomic_store(&s->event_ms, ls_now_ms());
        (void)raise(SIGKILL);
    }
    LS_TRY(ls_barrier(comm, NULL));
    LS_TRY(scene_note(s, self->rank, ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL)));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_forked_child_is_no_part_of_the_group(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        for (int parent = 0; parent < 2; parent++) {
            scene *s = scene_create();
            const ls_test_job job = {.n = 2,
                                     .body = forking_body,
                                     .arg = s,
                                     .transport = scene_transports[t],
                                     .rendezvous = LS_TEST_AT_RANK_0};
            static ls_test_outcome outcomes[2];
            char name[16];

            atomic_store(&s->event_ms, parent);
            (void)ls_test_ranks(&job, outcomes);
            if (outcomes[1 - parent].code != 0)
                fail_msg("rank %d: %s", 1 - parent, outcomes[1 - parent].text);
            scene_assert_failure(s, 1 - parent, LS_EPEER,
                                 text_format(name, sizeof(name), "rank %d", parent));
            scene_assert_in_time(s, 1 - parent);
            scene_destroy(s);
        }
    }
}

/* --- what a lost rank has given --- */

static scene *held_scene; /* NULL: notifications are not held back */

ls_status __real_control_poll(control *c);
ls_status __wrap_control_poll(control *c);

/* Rank 1 is between a pass over its data and the notifications while rank 0 calls, and is lost. */
ls_status __wrap_control_poll(control *c)
{
    scene *s = held_scene;

    held_scene = NULL;
    if (s != NULL) {
        struct pollfd fd = {.fd = control_fd(c), .events = POLLIN};

        atomic_store(&s->ranks[1].n_done, 1);
        (void)poll(&fd, 1, 10000);
    }
    return __real_control_poll(c);
}

/* What rank 0 gives in its last operation. */
typedef struct giving {
    ls_status (*give)(ls_comm *comm, float *data, size_t n, ls_work **out);
    ls_status (*take)(ls_comm *comm, float *data, size_t n, ls_work **out);
    size_t n;
    float expected;
} giving;

static ls_status give_sum(ls_comm *comm, float *data, size_t n, ls_work **out)
{
    return ls_all_reduce(comm, data, data, n, LS_F32, LS_SUM, out);
}

static ls_status give_message(ls_comm *comm, float *data, size_t n, ls_work **out)
{
    return ls_send(comm, data, n, LS_F32, 1, 3, out);
}

static ls_status take_message(ls_comm *comm, float *data, size_t n, ls_work **out)
{
    return ls_recv(comm, data, n, LS_F32, 0, 3, out);
}

static const giving givings[] = {{give_sum, give_sum, 1, 2},
                                 {give_message, take_message, 1000, 1},
                                 {give_sum, give_sum, 500000, 2}}; // in several pieces

static const giving *given; /* of this test */

/* Rank 0 gives when rank 1 is ready, and is lost. */
static ls_status give_and_die(scene *s, ls_comm *comm, float *data)
{
    while (atomic_load(&s->ranks[1].n_done) == 0)
        (void)usleep(500);
    LS_TRY(given->give(comm, data, given->n, NULL));
    atomic_store(&s->ranks[0].n_done, 1);
    (void)raise(SIGKILL);
    return LS_OK;
}

/* Of `given`: 1 in each element. */
static ls_status begin_giving(const ls_test_rank *self, ls_comm **comm, float **data)
{
    *data = ls_calloc(given->n, sizeof(**data));
    LS_CHECK(*data != NULL);
    for (size_t i = 0; i < given->n; i++)
        (*data)[i] = 1;
    LS_TRY(ls_test_init(self, comm));
    return ls_barrier(*comm, NULL);
}

static ls_status end_giving(scene *s, ls_comm *comm, float *data)
{
    for (size_t i = 0; i < given->n; i++)
        LS_CHECK(data[i] == given->expected);
    LS_TRY(scene_note(s, 1, ls_barrier(comm, NULL)));
    ls_comm_destroy(comm);
    ls_free(data);
    return LS_OK;
}

static ls_status lost_after_giving_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    float *data;
    ls_comm *comm;

    LS_TRY(begin_giving(self, &comm, &data));
    if (self->rank == 0)
        LS_TRY(give_and_die(s, comm, data));
    held_scene = s;
    LS_TRY(given->take(comm, data, given->n, NULL));
    LS_CHECK(held_scene == NULL);
    return end_giving(s, comm, data);
}

static void run_lost_after_giving(ls_test_body body, const char *transport)
{
    scene *s = scene_create();
    const ls_test_job job = {.n = 2,
                             .body = body,
                             .arg = s,
                             .transport = transport,
                             .rendezvous = LS_TEST_AT_RANK_0,
                             .env = {"LOCKSTEP_ALGORITHMS=all:staged"}};
    static ls_test_outcome outcomes[2];

    (void)ls_test_ranks(&job, outcomes);
    if (outcomes[1].code != 0)
        fail_msg("rank 1, operation %d over %s: %s", (int)(given - givings), transport,
                 outcomes[1].text);
    scene_assert_failure(s, 1, LS_EPEER, "rank 0");
    scene_destroy(s);
}

static void what_a_lost_rank_has_given_counts(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        for (given = givings; given < givings + 2; given++)
            run_lost_after_giving(lost_after_giving_body, scene_transports[t]);
    }
}

static void no_stack(void *arg, char *text, size_t bytes)
{
    LS_UNUSED(arg);
    text_format(text, bytes, "none");
}

/* The thread of ls_comm_set_stack() reads the notification: rank 1 is outside of the library, in
 * which it has made as few passes as rank 0 needs. */
static ls_status read_by_another_thread_body(const ls_test_rank *self, void *arg)
{
    ls_status st = LS_OK;
    scene *s = arg;
    float *data;
    ls_comm *comm;
    ls_work *w;

    LS_TRY(begin_giving(self, &comm, &data));
    LS_TRY(ls_comm_set_stack(comm, no_stack, NULL));
    if (self->rank == 0)
        LS_TRY(give_and_die(s, comm, data));
    LS_TRY(given->take(comm, data, given->n, ls_work_waited(&w)));
    atomic_store(&s->ranks[1].n_done, 1);
    while (st == LS_OK) {
        (void)usleep(1000);
        engine_enter(comm->engine);
        st = comm->status;
        if (st == LS_OK && atomic_load(&s->ranks[0].n_done) == 0)
            drive_pass(comm->engine);
        engine_leave(comm->engine);
    }
    LS_TRY(ls_work_wait(w));
    return end_giving(s, comm, data);
}

static void it_counts_when_another_thread_reads_of_the_loss(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        // over TCP the last pieces may be lost with their sender
        for (given = givings; given < givings + LS_COUNT_OF(givings) - t; given++)
            run_lost_after_giving(read_by_another_thread_body, scene_transports[t]);
    }
}

/* --- ranks that leave --- */

enum { PENDING = 1 << 20 };

/* Rank 1 destroys the group, or with it its place in the job, before its operation has ended. */
static ls_status left_pending_body(const ls_test_rank *self, void *arg)
{
    scene *s = arg;
    const bool leaves_job = atomic_load(&s->event_ms) != 0;
    float *x = ls_calloc(PENDING, sizeof(*x));
    ls_comm *world;
    ls_comm *part = NULL;
    ls_work *w;

    LS_CHECK(x != NULL);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    LS_TRY(ls_barrier(part, NULL));
    if (self->rank == 1) {
        LS_TRY(ls_all_reduce(part, x, x, PENDING, LS_F32, LS_SUM, &w));
        ls_comm_destroy(part);
        LS_CHECK(ls_work_wait(w) == LS_ECANCELED);
        atomic_store(&s->ranks[1].n_done, 1);
    } else {
        while (atomic_load(&s->ranks[1].n_done) == 0)
            (void)usleep(500);
        LS_TRY(scene_note(s, 0, ls_all_reduce(part, x, x, PENDING, LS_F32, LS_SUM, NULL)));
        ls_comm_destroy(part);
    }
    if (!leaves_job)
        LS_TRY(ls_barrier(world, NULL));
    ls_comm_destroy(world);
    ls_free(x);
    return LS_OK;
}

static void rank_that_leaves_a_pending_operation_is_named(void **state)
{
    LS_UNUSED(state);
    for (int leaves_job = 0; leaves_job < 2; leaves_job++) {
        for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
            scene *s = scene_create();

            atomic_store(&s->event_ms, leaves_job);
            assert_true(scene_run(s, 2, left_pending_body, scene_transports[t]));
            scene_assert_failure(s, 0, LS_EPEER, "rank 1");
            scene_destroy(s);
        }
    }
}

/* Rank 0 leaves the job, and the hub ends with it. The others split a group afterwards. */
static ls_status split_without_hub_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;
    ls_comm *rest = NULL;
    ls_comm *child = NULL;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, self->rank == 0 ? -1 : 0, 0, &rest));
    LS_TRY(ls_barrier(world, NULL));
    if (self->rank != 0) {
        struct pollfd at = {.fd = world->engine->parts.control_fd, .events = POLLRDHUP};

        LS_CHECK(poll(&at, 1, 60000) == 1);
        LS_TRY(ls_comm_split(rest, 0, 0, &child));
        LS_TRY(ls_barrier(child, NULL));
    }
    ls_comm_destroy(child);
    ls_comm_destroy(rest);
    ls_comm_destroy(world);
    return LS_OK;
}

static void a_group_is_split_after_the_hub_has_left(void **state)
{
    LS_UNUSED(state);
    for (size_t t = 0; t < SCENE_TRANSPORTS; t++) {
        const ls_test_job job = {.n = 3,
                                 .body = split_without_hub_body,
                                 .transport = scene_transports[t],
                                 .rendezvous = LS_TEST_AT_RANK_0};

        assert_true(ls_test_ranks(&job, NULL));
    }
}
/* --- a message from a rank that has left --- */

enum { SLOW_BYTES_A_SECOND = 400000, SLOW_MESSAGE = 600000 };

static bool is_slow; /* sockets of this process */

int __real_socket(int family, int type, int protocol);
int __wrap_socket(int family, int type, int protocol);

int __wrap_socket(int family, int type, int protocol)
{
    const uint64_t rate = SLOW_BYTES_A_SECOND;
    const int fd = __real_socket(family, type, protocol);

    if (fd >= 0 && is_slow && family != AF_UNIX)
        (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
    return fd;
}

static ls_status sender_that_leaves_body(const ls_test_rank *self, void *arg)
{
    const int source = *(const int *)arg;
    uint8_t *data = ls_calloc(SLOW_MESSAGE, 1);
    ls_status st;
    ls_comm *comm;

    LS_CHECK(data != NULL);
    is_slow = true;
    LS_TRY(ls_test_init(self, &comm));
    if (self->rank == 1)
        memset(data, 7, SLOW_MESSAGE);
    st = self->rank == 1 ? ls_send(comm, data, SLOW_MESSAGE, LS_U8, 0, 3, NULL)
                         : ls_recv(comm, data, SLOW_MESSAGE, LS_U8, source, 3, NULL);
    LS_TRY(st);
    LS_CHECK(data[0] == 7 && data[SLOW_MESSAGE - 1] == 7);
    ls_comm_destroy(comm);
    ls_free(data);
    return LS_OK;
}

static void run_from_sources(ls_test_body body)
{
    static const int sources[] = {1, LS_ANY_SOURCE};

    for (size_t i = 0; i < LS_COUNT_OF(sources); i++) {
        int source = sources[i];
        const ls_test_job job = {.n = 2, .body = body, .arg = &source, .transport = "tcp"};

        assert_true(ls_test_ranks(&job, NULL));
    }
}

static void a_message_arrives_after_its_sender_has_left(void **state)
{
    LS_UNUSED(state);
    run_from_sources(sender_that_leaves_body);
}

/* From now on each message is sent half a second after the one before. */
static void slow_down_sockets(void)
{
    const uint64_t rate = 1500;

    for (int fd = 0; fd < 256; fd++) {
        int family = AF_UNIX;
        socklen_t bytes = sizeof(family);

        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 && family != AF_UNIX)
            (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
    }
}

static ls_status slow_messages_body(const ls_test_rank *self, void *arg)
{
    const int source = *(const int *)arg;
    uint8_t data[900] = {0};
    ls_comm *comm;

    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < 20; i++) // the system does not pace the first 10 segments
        LS_TRY(ls_barrier(comm, NULL));
    slow_down_sockets();
    for (int i = 1; i <= 3; i++) {
        memset(data, self->rank == 1 ? i : 0, sizeof(data));
        if (self->rank == 1)
            LS_TRY(ls_send(comm, data, sizeof(data), LS_U8, 0, 3, NULL));
        else
            LS_TRY(ls_recv(comm, data, sizeof(data), LS_U8, source, 3, NULL));
        LS_CHECK(data[0] == i && data[sizeof(data) - 1] == i);
    }
    if (self->rank == 0)
        LS_CHECK(ls_recv(comm, data, sizeof(data), LS_U8, source, 3, NULL) == LS_EPEER);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void messages_arrive_one_by_one_after_their_sender_has_left(void **state)
{
    LS_UNUSED(state);
    run_from_sources(slow_messages_body);
}

/* An argument chooses tests by pattern: '*killed*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_from_another_thread_reaches_all_ranks),
        cmocka_unit_test(an_abort_between_operations_ends_each_once),
        cmocka_unit_test(an_abort_reaches_ranks_that_are_still_joining),
        cmocka_unit_test(an_operation_ends_at_its_timeout),
        cmocka_unit_test(a_stopped_rank_goes_on_with_the_same_bits),
        cmocka_unit_test(new_groups_work_after_a_failure),
        cmocka_unit_test(split_that_fails_on_one_rank_fails_on_all),
        cmocka_unit_test(a_forked_child_is_no_part_of_the_group),
        cmocka_unit_test(what_a_lost_rank_has_given_counts),
        cmocka_unit_test(it_counts_when_another_thread_reads_of_the_loss),
        cmocka_unit_test(rank_that_leaves_a_pending_operation_is_named),
        cmocka_unit_test(a_group_is_split_after_the_hub_has_left),
        cmocka_unit_test(a_message_arrives_after_its_sender_has_left),
        cmocka_unit_test(messages_arrive_one_by_one_after_their_sender_has_left),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
