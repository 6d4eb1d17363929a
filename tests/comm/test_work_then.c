/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_work_then.c - functions that are called when operations have ended: once, with the result in
 * place, on whatever thread notices the end, also when the group fails or ends first. With ranks as
 * threads the thread sanitizer sees all of it.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/thread.h"
#include "base/text.h"
#include "harness/ranks.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 3000, CHAIN = 200, MANY = 50 };

/* What a test waits for, and what the function got. */
typedef struct ending {
    ls_mutex mu;
    ls_cond changed;
    int n_calls;
    ls_status status;
    int source;
    char text[200];
    /* for chains */
    ls_comm *comm;
    int32_t value[COUNT];
    int n_left;
    ls_status failure; /* of a call inside the function */
} ending;

static ending *ending_create(ls_comm *comm)
{
    ending *x = calloc(1, sizeof(*x));

    if (x == NULL)
        abort();
    ls_mutex_init(&x->mu);
    ls_cond_init(&x->changed);
    x->comm = comm;
    return x;
}

static void ending_free(ending *x)
{
    ls_cond_destroy(&x->changed);
    ls_mutex_destroy(&x->mu);
    free(x);
}

static void note(void *arg, const ls_work_end *end)
{
    ending *x = arg;

    ls_mutex_lock(&x->mu);
    x->n_calls++;
    x->status = end->status;
    x->source = end->source;
    (void)text_format(x->text, sizeof(x->text), "%s", end->text);
    ls_cond_broadcast(&x->changed);
    ls_mutex_unlock(&x->mu);
}

/* Outside of the library, so that only the progress thread can call. */
static void await_calls(ending *x, int n)
{
    ls_mutex_lock(&x->mu);
    while (x->n_calls < n)
        (void)ls_cond_wait(&x->changed, &x->mu, ls_deadline_ms(-1));
    ls_mutex_unlock(&x->mu);
}

static int calls_of(ending *x)
{
    int n;

    ls_mutex_lock(&x->mu);
    n = x->n_calls;
    ls_mutex_unlock(&x->mu);
    return n;
}

static ls_status start_sum(ending *x, ls_work **work)
{
    return ls_all_reduce(x->comm, x->value, x->value, COUNT, LS_I32, LS_SUM, work);
}

static ls_status progress_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *work;
    ending *x;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    x = ending_create(comm);
    for (int i = 1; i <= MANY; i++) {
        for (int k = 0; k < COUNT; k++)
            x->value[k] = self->rank + i + k;
        LS_TRY(start_sum(x, &work));
        LS_TRY(ls_work_then(work, note, x));
        await_calls(x, i);
        LS_CHECK(x->status == LS_OK && x->text[0] == '\0' && x->source == -1);
        for (int k = 0; k < COUNT; k++)
            LS_CHECK(x->value[k] == 3 + 3 * (i + k));
    }
    LS_CHECK(calls_of(x) == MANY);
    ls_comm_destroy(comm);
    LS_CHECK(calls_of(x) == MANY);
    ending_free(x);
    return LS_OK;
}

static void the_progress_thread_calls_when_the_result_is_there(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = progress_body}));
}

/* Starts the next operation of the chain in the function of the one before; every second one is
 * also waited for. */
static void go_on(void *arg, const ls_work_end *end)
{
    ending *x = arg;
    ls_work *work;
    ls_status st = end->status;

    if (st == LS_OK && x->n_left % 2 == 0)
        st = ls_barrier(x->comm, NULL);
    if (st == LS_OK && --x->n_left > 0) {
        x->value[0]++;
        st = ls_all_reduce(x->comm, x->value, x->value, 1, LS_I32, LS_MAX, &work);
        if (st == LS_OK)
            st = ls_work_then(work, go_on, x);
        if (st == LS_OK)
            return;
    }
    x->failure = st;
    note(x, end);
}

static ls_status chain_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *work;
    ending *x;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    x = ending_create(comm);
    x->n_left = CHAIN;
    LS_TRY(ls_barrier(comm, &work));
    LS_TRY(ls_work_then(work, go_on, x));
    await_calls(x, 1);
    LS_TRY(x->failure);
    LS_CHECK(x->value[0] == CHAIN - 1);
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    ending_free(x);
    return LS_OK;
}

static void functions_may_start_operations_and_wait_for_them(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = chain_body}));
}

/* The functions of earlier operations run in calls that block for others. */
static ls_status blocked_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *work;
    ending *x;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    x = ending_create(comm);
    for (int i = 0; i < MANY; i++) {
        LS_TRY(start_sum(x, &work));
        LS_TRY(ls_work_then(work, note, x));
    }
    LS_TRY(ls_barrier(comm, NULL));
    await_calls(x, MANY);
    LS_TRY(ls_barrier(comm, &work));
    LS_TRY(ls_work_wait_for(work, -1));
    LS_TRY(ls_work_then(work, note, x)); // it has ended: called at once
    LS_CHECK(calls_of(x) == MANY + 1);
    ls_comm_destroy(comm);
    ending_free(x);
    return LS_OK;
}

static void functions_are_called_in_calls_that_wait(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = blocked_body}));
}

/* Rank 0 receives from any rank what rank 1 sends when both have started. */
static ls_status source_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *work;
    ending *x;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    x = ending_create(comm);
    if (self->rank == 0)
        LS_TRY(ls_recv(comm, x->value, 1, LS_I32, LS_ANY_SOURCE, 7, &work));
    else
        LS_TRY(ls_send(comm, x->value, 1, LS_I32, 0, 7, &work));
    LS_TRY(ls_work_then(work, note, x));
    await_calls(x, 1);
    LS_CHECK(x->status == LS_OK && x->source == (self->rank == 0 ? 1 : -1));
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    ending_free(x);
    return LS_OK;
}

static void the_source_of_a_message_is_passed(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = source_body}));
}

/* Rank 1 leaves while rank 0 waits for it. */
static ls_status failure_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *work[2];
    ending *x;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    x = ending_create(comm);
    if (self->rank == 1) {
        ls_comm_destroy(comm);
        ending_free(x);
        return LS_OK;
    }
    LS_TRY(start_sum(x, &work[0]));
    LS_TRY(ls_work_then(work[0], note, x));
    await_calls(x, 1);
    LS_CHECK(x->status == LS_EPEER && strstr(x->text, "rank 1") != NULL);
    LS_CHECK(ls_barrier(comm, NULL) == LS_EPEER);
    ls_comm_destroy(comm);
    LS_CHECK(calls_of(x) == 1);
    ending_free(x);
    return LS_OK;
}

static void a_failure_is_passed_with_its_text(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = failure_body}));
}

/* Nothing is sent: the operations are pending when rank 0 ends its group. */
static ls_status destroy_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *late;
    ending *x;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    x = ending_create(comm);
    for (int i = 0; i < MANY; i++) {
        ls_work *work;

        LS_TRY(ls_recv(comm, &x->value[i], 1, LS_I32, 1 - self->rank, i, &work));
        LS_TRY(ls_work_then(work, note, x));
    }
    LS_TRY(ls_recv(comm, &x->value[MANY], 1, LS_I32, 1 - self->rank, MANY, &late));
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    LS_CHECK(calls_of(x) == MANY);
    LS_CHECK(x->status == LS_ECANCELED || x->status == LS_EPEER);
    LS_CHECK(x->text[0] != '\0');
    LS_TRY(ls_work_then(late, note, x)); // its group is gone: called at once
    LS_CHECK(calls_of(x) == MANY + 1 && x->status != LS_OK && x->text[0] != '\0');
    ending_free(x);
    return LS_OK;
}

static void the_end_of_a_group_calls_what_is_pending(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = destroy_body}));
}

static ls_status alone_body(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_work *work;
    ending *x;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    x = ending_create(comm);
    LS_TRY(start_sum(x, &work));
    LS_CHECK(ls_work_then(work, NULL, x) == LS_EINVAL);
    LS_TRY(ls_work_then(work, note, x));
    LS_CHECK(calls_of(x) == 1 && x->status == LS_OK);
    ls_comm_destroy(comm);
    ending_free(x);
    return LS_OK;
}

static void a_group_of_one_calls_at_once(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 1, .body = alone_body}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_progress_thread_calls_when_the_result_is_there),
        cmocka_unit_test(functions_may_start_operations_and_wait_for_them),
        cmocka_unit_test(functions_are_called_in_calls_that_wait),
        cmocka_unit_test(the_source_of_a_message_is_passed),
        cmocka_unit_test(a_failure_is_passed_with_its_text),
        cmocka_unit_test(the_end_of_a_group_calls_what_is_pending),
        cmocka_unit_test(a_group_of_one_calls_at_once),
    };

    return cmocka_run_group_tests_name("functions of ended operations", tests, NULL, NULL);
}
