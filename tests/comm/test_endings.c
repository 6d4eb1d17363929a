/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_endings.c - the ends of operations and groups, seen from several threads: chains of
 * functions of ls_work_then() of any length, aborts from other threads and from such functions, and
 * groups that are destroyed, or processes that exit, while another thread waits in them.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/thread.h"
#include "harness/ranks.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    N_CHAIN = 100000,
    N_CHAIN_OF_TWO = 5000,
    N_GROUPS = 3,
    MANY = 50,
    ROUNDS = 20,
    SLICE_MS = 2
};

static void pause_shortly(void)
{
    (void)usleep(1000);
}

/* Outside of the library, so that only its own threads can make the number grow. */
static void await_number(atomic_int *number, int n)
{
    while (atomic_load(number) < n)
        pause_shortly();
}

/* --- chains --- */

/* An operation's function starts the next one. */
typedef struct chain {
    ls_comm *groups[N_GROUPS];
    atomic_int n_called;
    int n_left;
    int n_inside; /* functions that this chain is in */
    int most_inside;
    int32_t value;
    ls_status failure;
    atomic_int n_done;
} chain;

static void start_next(chain *c);

static void go_on(void *arg, const ls_work_end *end)
{
    chain *c = arg;

    c->n_inside++;
    if (c->n_inside > c->most_inside)
        c->most_inside = c->n_inside;
    atomic_fetch_add(&c->n_called, 1);
    c->failure = end->status;
    if (end->status == LS_OK && --c->n_left > 0)
        start_next(c);
    c->n_inside--;
    if (c->n_left == 0 || c->failure != LS_OK)
        atomic_store(&c->n_done, 1);
}

static void start_next(chain *c)
{
    ls_comm *comm = c->groups[c->n_left % N_GROUPS];
    ls_work *work;

    c->failure = ls_all_reduce(comm, &c->value, &c->value, 1, LS_I32, LS_MAX, &work);
    if (c->failure == LS_OK)
        c->failure = ls_work_then(work, go_on, c);
}

/* On two ranks each operation waits for the scheduler twice: a long chain takes minutes on a busy
 * machine. */
static int chain_length(int n_ranks)
{
    return ls_test_number("LS_TEST_CHAIN", n_ranks == 1 ? N_CHAIN : N_CHAIN_OF_TWO);
}

static ls_status chain_body(const ls_test_rank *self, void *arg)
{
    chain *c = calloc(1, sizeof(*c));
    ls_comm *world;
    ls_work *work;

    LS_UNUSED(arg);
    LS_CHECK(c != NULL);
    LS_TRY(ls_test_init(self, &world));
    for (int i = 0; i < N_GROUPS; i++)
        LS_TRY(ls_comm_split(world, 0, 0, &c->groups[i]));
    c->n_left = chain_length(self->size);
    LS_TRY(ls_barrier(world, &work));
    LS_TRY(ls_work_then(work, go_on, c));
    await_number(&c->n_done, 1);
    LS_TRY(c->failure);
    LS_CHECK(atomic_load(&c->n_called) == chain_length(self->size));
    LS_CHECK(c->most_inside == 1);
    for (int i = 0; i < N_GROUPS; i++)
        ls_comm_destroy(c->groups[i]);
    ls_comm_destroy(world);
    free(c);
    return LS_OK;
}

static void chained_functions_do_not_nest(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 1, .body = chain_body, .deadline_ms = 200000}));
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = chain_body, .deadline_ms = 200000}));
}

/* Handles that are left over from a destroyed group: the function of each calls for the next. */
typedef struct leftovers {
    ls_work **works;
    int n;
    int n_inside;
    int most_inside;
    ls_status failure;
} leftovers;

static void take_next(void *arg, const ls_work_end *end)
{
    leftovers *l = arg;

    l->n_inside++;
    if (l->n_inside > l->most_inside)
        l->most_inside = l->n_inside;
    if (end->status != LS_ECANCELED)
        l->failure = end->status;
    l->n--;
    if (l->n > 0 && l->failure == LS_OK)
        l->failure = ls_work_then(l->works[l->n - 1], take_next, l);
    l->n_inside--;
}

static ls_status leftovers_body(const ls_test_rank *self, void *arg)
{
    static int32_t values[MANY];
    ls_work *works[MANY];
    leftovers l = {.works = works, .n = MANY};
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < MANY; i++)
        LS_TRY(ls_recv(comm, &values[i], 1, LS_I32, 1 - self->rank, i, &works[i]));
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    LS_TRY(ls_work_then(works[MANY - 1], take_next, &l));
    LS_CHECK(l.n == 0 && l.most_inside == 1);
    return l.failure == LS_EPEER ? LS_OK : l.failure; // the other rank may have left first
}

static void functions_of_left_handles_do_not_nest(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = leftovers_body}));
}

/* --- locks of the program --- */

/* A lock that the program holds while it starts operations, and takes in their functions. */
typedef struct guarded {
    ls_mutex mu;
    atomic_int n_called;
} guarded;

static void take_lock(void *arg, const ls_work_end *end)
{
    guarded *g = arg;

    LS_UNUSED(end);
    ls_mutex_lock(&g->mu);
    atomic_fetch_add(&g->n_called, 1);
    ls_mutex_unlock(&g->mu);
}

static ls_status guarded_body(const ls_test_rank *self, void *arg)
{
    guarded *g = calloc(1, sizeof(*g));
    int32_t values[MANY] = {0};
    ls_work *work;
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_CHECK(g != NULL);
    ls_mutex_init(&g->mu);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < MANY; i++) {
        ls_mutex_lock(&g->mu);
        LS_TRY(ls_all_reduce(comm, &values[i], &values[i], 1, LS_I32, LS_SUM, &work));
        LS_TRY(ls_barrier(comm, NULL));
        (void)ls_work_test(work);
        LS_TRY(ls_comm_status(comm));
        ls_mutex_unlock(&g->mu);
        LS_TRY(ls_work_then(work, take_lock, g));
        ls_mutex_lock(&g->mu);
        LS_TRY(ls_recv(comm, &values[i], 1, LS_I32, 1 - self->rank, i, &work));
        ls_mutex_unlock(&g->mu);
        LS_TRY(ls_work_then(work, take_lock, g));
        ls_mutex_lock(&g->mu);
        LS_TRY(ls_send(comm, &values[i], 1, LS_I32, 1 - self->rank, i, NULL));
        LS_TRY(ls_barrier(comm, NULL));
        ls_mutex_unlock(&g->mu);
    }
    await_number(&g->n_called, 2 * MANY);
    ls_comm_destroy(comm);
    ls_mutex_destroy(&g->mu);
    free(g);
    return LS_OK;
}

static void calls_that_start_or_wait_call_no_function(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = guarded_body}));
}

/* --- aborts --- */

typedef struct aborted {
    ls_comm *comm;
    atomic_int n_called;
    int n_canceled;
    int n_inside;
    int most_inside;
    bool aborts; /* the first function does */
} aborted;

static void count_canceled(void *arg, const ls_work_end *end)
{
    aborted *a = arg;

    a->n_inside++;
    if (a->n_inside > a->most_inside)
        a->most_inside = a->n_inside;
    if (a->aborts && a->n_called == 0)
        ls_comm_abort(a->comm, "in a function");
    a->n_canceled += end->status == LS_ECANCELED && end->text[0] != '\0';
    a->n_inside--;
    atomic_fetch_add(&a->n_called, 1);
}

/* Receives to which nothing is sent. The progress thread sleeps when the abort comes. */
static ls_status abort_body(const ls_test_rank *self, void *arg)
{
    const bool in_function = arg != NULL;
    static int32_t values[LS_TEST_RANKS_MAX][MANY];
    aborted *a = calloc(1, sizeof(*a));
    ls_comm *world;
    ls_work *work;

    LS_CHECK(a != NULL);
    LS_TRY(ls_test_init(self, &world));
    LS_TRY(ls_comm_split(world, 0, 0, &a->comm));
    a->aborts = in_function && self->rank == 0;
    for (int i = 0; i < MANY; i++) {
        LS_TRY(ls_recv(a->comm, &values[self->rank][i], 1, LS_I32, 1 - self->rank, i, &work));
        LS_TRY(ls_work_then(work, count_canceled, a));
    }
    LS_TRY(ls_barrier(world, NULL));
    (void)usleep(50000);
    if (in_function && self->rank == 1)
        LS_TRY(ls_send(a->comm, &values[1][0], 1, LS_I32, 0, 0, NULL));
    else if (!in_function && self->rank == 0)
        ls_comm_abort(a->comm, "enough");
    await_number(&a->n_called, MANY);
    LS_CHECK(a->n_canceled >= MANY - 1 && a->most_inside == 1);
    LS_TRY(ls_barrier(world, NULL));
    ls_comm_destroy(a->comm);
    LS_CHECK(a->n_called == MANY);
    ls_comm_destroy(world);
    free(a);
    return LS_OK;
}

static void an_abort_calls_the_functions_of_what_is_pending(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < ROUNDS / 4; i++)
        assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = abort_body}));
}

static void a_function_may_abort_its_group(void **state)
{
    static int yes;

    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = abort_body, .arg = &yes}));
}

/* --- the end of a group in which a thread waits --- */

typedef enum wait_kind {
    WAIT_IN_CALL = 0,
    WAIT_FOR_HANDLE,
    WAIT_IN_SLICES,
    WAIT_AT_ONCE,
    WAIT_AT_MONITORED_BARRIER,
    WAIT_IN_SPLIT,
    WAIT_FOR_GROUP,
    WAIT_KINDS
} wait_kind;

typedef struct waiter {
    wait_kind kind;
    ls_comm *comm;
    int peer;
    atomic_int n_begun;
    ls_status status;
    char text[LS_ERROR_BYTES];
} waiter;

static ls_status wait_for_handle(ls_work *work, bool in_slices)
{
    while (in_slices && ls_work_wait_for(work, SLICE_MS) == LS_ETIMEOUT)
        continue;
    return ls_work_wait(work);
}

static ls_status wait_in_group(const waiter *w)
{
    const int both[] = {0, 1};
    int32_t value = 0;
    ls_work *work;
    ls_comm *made = NULL;

    switch (w->kind) {
    case WAIT_IN_CALL:
        return ls_recv(w->comm, &value, 1, LS_I32, w->peer, 0, NULL);
    case WAIT_FOR_HANDLE:
    case WAIT_IN_SLICES:
    case WAIT_AT_ONCE:
        LS_TRY(ls_recv(w->comm, &value, 1, LS_I32, w->peer, 0,
                       w->kind == WAIT_AT_ONCE ? ls_work_waited(&work) : &work));
        return wait_for_handle(work, w->kind == WAIT_IN_SLICES);
    case WAIT_AT_MONITORED_BARRIER:
        return ls_comm_monitored_barrier(w->comm, -1);
    case WAIT_IN_SPLIT:
        return ls_comm_split(w->comm, 0, 0, &made);
    default:
        return ls_comm_create_group(w->comm, both, 2, "both", -1, &made);
    }
}

static void wait_until_destroyed(void *arg)
{
    waiter *w = arg;

    atomic_store(&w->n_begun, 1);
    w->status = wait_in_group(w);
    ls_error_save(w->text);
}

/* Rank 0 destroys a group in which a thread of it waits for rank 1. */
static ls_status destroy_round(const ls_test_rank *self, ls_comm *world, wait_kind kind, int round)
{
    waiter *w = calloc(1, sizeof(*w));
    ls_thread t = {0};

    LS_CHECK(w != NULL);
    *w = (waiter){.kind = kind, .peer = 1 - self->rank};
    LS_TRY(ls_comm_split(world, 0, 0, &w->comm));
    if (self->rank == 0) {
        LS_TRY(ls_thread_start(&t, "waiter", wait_until_destroyed, w));
        await_number(&w->n_begun, 1);
        (void)usleep((round + 1) * 3000); // until it waits: a call may not begin after the end
    }
    ls_comm_destroy(w->comm);
    ls_thread_join(&t);
    if (self->rank == 0 && (w->status != LS_ECANCELED || strstr(w->text, "destroyed") == NULL) &&
        w->status != LS_EPEER)
        return ls_fail(LS_EINTERNAL, "kind %d: status %d, \"%.300s\"", (int)kind, (int)w->status,
                       w->text);
    free(w);
    return ls_barrier(world, NULL);
}

static ls_status destroy_body(const ls_test_rank *self, void *arg)
{
    ls_comm *world;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &world));
    for (int kind = 0; kind < WAIT_KINDS; kind++)
        for (int round = 0; round < 3; round++)
            LS_TRY(destroy_round(self, world, (wait_kind)kind, round));
    ls_comm_destroy(world);
    return LS_OK;
}

static void the_end_of_a_group_ends_the_wait_of_another_thread(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = destroy_body}));
}

/* The last group of the job: its engine ends as well. Rank 1 waits outside of the library. */
static ls_status last_group_body(const ls_test_rank *self, void *arg)
{
    waiter *w = calloc(1, sizeof(*w));
    atomic_int *n_over = arg;
    ls_thread t = {0};

    LS_CHECK(w != NULL);
    *w = (waiter){.kind = WAIT_IN_SLICES, .peer = 1 - self->rank};
    LS_TRY(ls_test_init(self, &w->comm));
    LS_TRY(ls_barrier(w->comm, NULL));
    if (self->rank == 0) {
        LS_TRY(ls_thread_start(&t, "waiter", wait_until_destroyed, w));
        await_number(&w->n_begun, 1);
        (void)usleep(10000);
    } else {
        await_number(n_over, 1);
    }
    ls_comm_destroy(w->comm);
    ls_thread_join(&t);
    atomic_fetch_add(n_over, 1);
    LS_CHECK(self->rank != 0 || w->status == LS_ECANCELED);
    free(w);
    return LS_OK;
}

static void the_end_of_the_last_group_ends_the_wait_of_another_thread(void **state)
{
    atomic_int *n_over = ls_test_shared(sizeof(*n_over));

    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = last_group_body, .arg = n_over}));
}

/* --- the end of a process in which a thread waits --- */

static ls_comm *at_exit_comm;
static ls_thread at_exit_thread;

static void destroy_at_exit(void)
{
    ls_comm_destroy(at_exit_comm);
    ls_thread_join(&at_exit_thread); // it has got its error
}

/* arg: whether an exit handler destroys the group. */
static ls_status exit_body(const ls_test_rank *self, void *arg)
{
    waiter *w = calloc(1, sizeof(*w));

    LS_CHECK(w != NULL);
    *w = (waiter){.peer = 1 - self->rank};
    LS_TRY(ls_test_init(self, &w->comm));
    LS_TRY(ls_barrier(w->comm, NULL));
    if (self->rank == 1) { // until rank 0 is gone
        LS_CHECK(ls_barrier(w->comm, NULL) == LS_EPEER);
        ls_comm_destroy(w->comm);
        free(w);
        return LS_OK;
    }
    at_exit_comm = w->comm;
    if (arg != NULL)
        LS_CHECK(atexit(destroy_at_exit) == 0);
    LS_TRY(ls_thread_start(&at_exit_thread, "waiter", wait_until_destroyed, w));
    await_number(&w->n_begun, 1);
    (void)usleep(10000);
    exit(7); // NOLINT(concurrency-mt-unsafe): as programs do
}

static void check_exit(void *arg)
{
    ls_test_outcome outcomes[2];

    (void)ls_test_ranks(&(ls_test_job){.n = 2, .body = exit_body, .arg = arg}, outcomes);
    if (outcomes[0].code != 7 || outcomes[1].code != 0)
        print_error("%s\n%s\n", outcomes[0].text, outcomes[1].text);
    assert_int_equal(outcomes[0].signal, 0);
    assert_false(outcomes[0].was_killed);
    assert_int_equal(outcomes[0].code, 7);
    assert_int_equal(outcomes[1].code, 0);
}

static void a_process_exits_while_a_thread_waits(void **state)
{
    static int yes;

    LS_UNUSED(state);
    check_exit(NULL);
    check_exit(&yes);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(chained_functions_do_not_nest),
        cmocka_unit_test(functions_of_left_handles_do_not_nest),
        cmocka_unit_test(calls_that_start_or_wait_call_no_function),
        cmocka_unit_test(an_abort_calls_the_functions_of_what_is_pending),
        cmocka_unit_test(a_function_may_abort_its_group),
        cmocka_unit_test(the_end_of_a_group_ends_the_wait_of_another_thread),
        cmocka_unit_test(the_end_of_the_last_group_ends_the_wait_of_another_thread),
        cmocka_unit_test(a_process_exits_while_a_thread_waits),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("ends of operations and groups", tests, NULL, NULL);
}
