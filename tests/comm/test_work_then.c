/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_work_then.c - functions that are called when operations have ended: once, with the result in
 * place, on whatever thread notices the end, also when the group fails or ends first; and
 * operations that progress without a thread while their caller waits. With ranks as threads the
 * thread sanitizer sees all of it.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/thread.h"
#include "base/text.h"
#include "harness/ranks.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 3000, LARGE = 300000, CHAIN = 200, MANY = 50 };

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

/* The functions of earlier operations run while the program waits for others. */
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
    LS_TRY(ls_work_then(work, note, x)); // it has ended
    await_calls(x, MANY + 1);
    ls_comm_destroy(comm);
    ending_free(x);
    return LS_OK;
}

static void functions_are_called_while_the_program_waits(void **state)
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

/* The threads of this process with the name of the progress thread. */
static int progress_threads(void)
{
    DIR *threads = opendir("/proc/self/task");
    int n = 0;

    if (threads == NULL)
        abort();
    for (const struct dirent *d; (d = readdir(threads)) != NULL;) {
        char path[300];
        char name[32] = "";
        FILE *file;

        (void)text_format(path, sizeof(path), "/proc/self/task/%s/comm", d->d_name);
        file = fopen(path, "r");
        if (file == NULL)
            continue; // "." and "..", or the thread has ended
        n += fgets(name, sizeof(name), file) != NULL && strncmp(name, "ls-progress", 11) == 0;
        (void)fclose(file);
    }
    (void)closedir(threads);
    return n;
}

static ls_status start_large(ls_comm *comm, int32_t *data, ls_work **work)
{
    return ls_all_reduce(comm, data, data, LARGE, LS_I32, LS_SUM, work);
}

static ls_status waited_body(const ls_test_rank *self, void *arg)
{
    int32_t *data = calloc(LARGE, sizeof(*data));
    ls_work *work;
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_CHECK(data != NULL);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < MANY; i++) {
        const size_t count = i % 3 == 0 ? 1 : i % 3 == 1 ? COUNT : LARGE;

        for (size_t k = 0; k < count; k++)
            data[k] = self->rank + i + (int)k;
        LS_TRY(ls_all_reduce(comm, data, data, count, LS_I32, LS_SUM, ls_work_waited(&work)));
        if (i % 2 == 0)
            LS_TRY(ls_work_wait_for(work, -1));
        LS_TRY(ls_work_wait(work));
        for (size_t k = 0; k < count; k++)
            LS_CHECK(data[k] == 3 + 3 * (i + (int)k));
    }
    LS_TRY(ls_barrier(comm, NULL));
    LS_CHECK(progress_threads() == 0);
    LS_TRY(ls_barrier(comm, NULL));
    // The next operation is an ordinary one. It cannot end before all ranks have met.
    LS_TRY(ls_recv(comm, data, 1, LS_I32, (self->rank + 1) % 3, 0, &work));
    while (progress_threads() == 0)
        (void)usleep(1000);
    LS_TRY(ls_barrier(comm, NULL));
    LS_TRY(ls_send(comm, data + 1, 1, LS_I32, (self->rank + 2) % 3, 0, NULL));
    LS_TRY(ls_work_wait(work));
    ls_comm_destroy(comm);
    free(data);
    return LS_OK;
}

static void waited_operations_need_no_thread(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = waited_body}));
}

/* Of the two ranks of give_up_body(); outside of the library. */
typedef struct turns {
    atomic_int n_given_up;
    atomic_int n_ended;
} turns;

static void await_turn(atomic_int *counter, int n)
{
    while (atomic_load(counter) < n)
        (void)usleep(1000);
}

/* Rank 0 stops waiting, and leaves the operation to the progress thread. */
static ls_status give_up(ls_comm *comm, int32_t *data, int how, ending *x, turns *t, int turn)
{
    ls_work *work;

    LS_TRY(start_large(comm, data, ls_work_waited(&work)));
    if (how == 0)
        LS_CHECK(ls_work_wait_for(work, 1) == LS_ETIMEOUT);
    else if (how == 1)
        LS_CHECK(ls_work_test(work) == 0);
    else
        LS_TRY(ls_work_then(work, note, x));
    atomic_fetch_add(&t->n_given_up, 1);
    await_turn(&t->n_ended, turn);
    if (how < 2)
        return ls_work_wait(work);
    await_calls(x, 1);
    return x->status;
}

static ls_status give_up_body(const ls_test_rank *self, void *arg)
{
    int32_t *data = calloc(LARGE, sizeof(*data));
    turns *t = arg;
    ls_comm *comm;
    ending *x;

    LS_CHECK(data != NULL);
    LS_TRY(ls_test_init(self, &comm));
    x = ending_create(comm);
    for (int how = 0; how < 3; how++) {
        data[LARGE - 1] = self->rank + 1;
        if (self->rank == 0) {
            LS_TRY(give_up(comm, data, how, x, t, how + 1));
        } else {
            await_turn(&t->n_given_up, how + 1);
            LS_TRY(ls_all_reduce(comm, data, data, LARGE, LS_I32, LS_SUM, NULL));
            atomic_fetch_add(&t->n_ended, 1);
        }
        LS_CHECK(data[LARGE - 1] == 3);
    }
    ls_comm_destroy(comm);
    ending_free(x);
    free(data);
    return LS_OK;
}

static void an_operation_that_is_no_longer_waited_for_progresses(void **state)
{
    turns *t = ls_test_shared(sizeof(*t));

    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = give_up_body, .arg = t}));
}

/* A call that fails before it starts an operation. */
static ls_status refused(ls_comm *comm, int32_t *data, int how)
{
    ls_work *work;
    ls_status st;

    if (how == 0)
        st = ls_barrier(NULL, ls_work_waited(&work));
    else if (how == 1)
        st = ls_all_gather_v(comm, data, data, NULL, LS_I32, ls_work_waited(&work));
    else if (how == 2)
        st = ls_all_gather_list(comm, data, NULL, 1, LS_I32, ls_work_waited(&work));
    else
        st = ls_broadcast(comm, data, data, 1, LS_I32, 7, ls_work_waited(&work));
    LS_CHECK(st == LS_EINVAL && work == NULL);
    return LS_OK;
}

/* Rank 1 ends the operations that rank 0 has started, and does not wait for. */
static ls_status refused_body(const ls_test_rank *self, void *arg)
{
    int32_t *data = calloc(LARGE, sizeof(*data));
    turns *t = arg;
    ls_comm *comm;

    LS_CHECK(data != NULL);
    LS_TRY(ls_test_init(self, &comm));
    for (int how = 0; how < 4; how++) {
        ls_work *work = NULL;

        if (self->rank == 0) {
            LS_TRY(refused(comm, data, how));
            LS_TRY(start_large(comm, data, &work));
            await_turn(&t->n_ended, how + 1);
            LS_TRY(ls_work_wait(work));
        } else {
            LS_TRY(ls_all_reduce(comm, data, data, LARGE, LS_I32, LS_SUM, NULL));
            atomic_fetch_add(&t->n_ended, 1);
        }
    }
    ls_comm_destroy(comm);
    free(data);
    return LS_OK;
}

static void a_waited_call_that_fails_changes_no_other(void **state)
{
    turns *t = ls_test_shared(sizeof(*t));

    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = refused_body, .arg = t}));
}

/* Each rank's group of itself and the other ends with an operation that the rank had to wait for;
 * then the engine still knows which operations need the progress thread. */
static ls_status ended_group_body(const ls_test_rank *self, void *arg)
{
    ending *x;
    ls_comm *comm;
    ls_comm *part;
    ls_work *late;
    ls_work *work;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_comm_split(comm, 0, 0, &part));
    x = ending_create(comm);
    LS_TRY(ls_recv(part, x->value, 1, LS_I32, 1 - self->rank, 0, ls_work_waited(&late)));
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(part);
    LS_CHECK(ls_work_wait(late) == LS_ECANCELED);
    LS_TRY(start_sum(x, &work));
    LS_TRY(ls_work_then(work, note, x));
    await_calls(x, 1);
    LS_TRY(x->status);
    ls_comm_destroy(comm);
    ending_free(x);
    return LS_OK;
}

static void the_end_of_a_group_ends_what_nothing_waits_for(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = ended_group_body}));
}

static void abort_it(void *arg)
{
    ls_comm_abort(arg, "enough");
}

/* Rank 0's abort comes before the wait or in it. */
static ls_status aborted_body(const ls_test_rank *self, void *arg)
{
    ls_thread t = {0};
    int32_t value = 0;
    ls_status st;
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < MANY; i++) {
        ls_comm *part;
        ls_work *work;

        LS_TRY(ls_comm_split(comm, 0, 0, &part));
        LS_TRY(ls_recv(part, &value, 1, LS_I32, 1 - self->rank, 0, ls_work_waited(&work)));
        LS_TRY(ls_barrier(comm, NULL));
        if (self->rank == 0)
            LS_TRY(ls_thread_start(&t, "abort", abort_it, part));
        st = ls_work_wait(work);
        LS_CHECK(st == LS_ECANCELED && strstr(ls_last_error(), "enough") != NULL);
        ls_thread_join(&t);
        LS_TRY(ls_barrier(comm, NULL)); // the end of a rank's group also ends the wait
        ls_comm_destroy(part);
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static void an_abort_ends_the_wait(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = aborted_body}));
}

/* A group and the thread that uses it. */
typedef struct own_group {
    ls_thread thread;
    ls_comm *comm;
    int n_right;
} own_group;

static void use_group(void *arg)
{
    own_group *g = arg;
    int32_t *data = calloc(LARGE, sizeof(*data));

    for (int i = 0; data != NULL && i < MANY; i++) {
        ls_work *work;

        data[0] = data[LARGE - 1] = i;
        if (start_large(g->comm, data, ls_work_waited(&work)) != LS_OK ||
            ls_work_wait(work) != LS_OK)
            break;
        g->n_right += data[0] == 2 * i && data[LARGE - 1] == 2 * i;
    }
    free(data);
}

static ls_status threads_body(const ls_test_rank *self, void *arg)
{
    own_group groups[2] = {{.n_right = 0}};
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < 2; i++)
        LS_TRY(ls_comm_split(comm, 0, 0, &groups[i].comm));
    for (int i = 0; i < 2; i++)
        LS_TRY(ls_thread_start(&groups[i].thread, "user", use_group, &groups[i]));
    for (int i = 0; i < 2; i++) {
        ls_thread_join(&groups[i].thread);
        LS_CHECK(groups[i].n_right == MANY);
        ls_comm_destroy(groups[i].comm);
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static void two_threads_wait_for_their_own_groups(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = threads_body}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_progress_thread_calls_when_the_result_is_there),
        cmocka_unit_test(functions_may_start_operations_and_wait_for_them),
        cmocka_unit_test(functions_are_called_while_the_program_waits),
        cmocka_unit_test(the_source_of_a_message_is_passed),
        cmocka_unit_test(a_failure_is_passed_with_its_text),
        cmocka_unit_test(the_end_of_a_group_calls_what_is_pending),
        cmocka_unit_test(a_group_of_one_calls_at_once),
        cmocka_unit_test(waited_operations_need_no_thread),
        cmocka_unit_test(an_operation_that_is_no_longer_waited_for_progresses),
        cmocka_unit_test(a_waited_call_that_fails_changes_no_other),
        cmocka_unit_test(the_end_of_a_group_ends_what_nothing_waits_for),
        cmocka_unit_test(an_abort_ends_the_wait),
        cmocka_unit_test(two_threads_wait_for_their_own_groups),
    };

    return cmocka_run_group_tests_name("functions of ended operations", tests, NULL, NULL);
}
