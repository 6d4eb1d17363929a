/* SPDX-License-Identifier: Apache-2.0 */
/* test_ddp_misuse.c - wrong calls of a program: the calling rank gets an error that says what is
 * wrong, and the others fail too instead of waiting. */
#include "ddp/two_layers.h"

#include "harness/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What rank 1 does wrong with ls_ddp_begin(), and what the error texts of all ranks contain. */
typedef struct misuse {
    ls_status (*call)(small_net *n, ls_comm *comm);
    ls_status status; /* of rank 1 */
    const char *text;
} misuse;

static ls_status begin_twice(small_net *n, ls_comm *comm)
{
    LS_UNUSED(comm);
    LS_TRY(ls_ddp_begin(n->ddp, 1));
    return ls_ddp_begin(n->ddp, 2);
}

static ls_status begin_with_other_rows(small_net *n, ls_comm *comm)
{
    ls_ddp_step step;

    LS_UNUSED(comm);
    LS_TRY(ls_ddp_begin(n->ddp, 3));
    return rows_through(n, ddp_backward, 0, 0, 2, &step);
}

static ls_status accumulate_after_begin(small_net *n, ls_comm *comm)
{
    ls_ddp_step step;

    LS_UNUSED(comm);
    LS_TRY(ls_ddp_begin(n->ddp, 1));
    return rows_through(n, ddp_accumulate, 0, 0, 1, &step);
}

/* An operation of the program's own, which rank 0 starts after its ls_ddp_begin(). */
static ls_status skip_begin(small_net *n, ls_comm *comm)
{
    double value = 1;

    LS_UNUSED(n);
    return ls_all_reduce(comm, &value, &value, 1, LS_F64, LS_MAX, NULL);
}

static ls_status body_misuse(const ls_test_rank *self, void *arg)
{
    const misuse *m = arg;
    ls_comm *comm;
    ls_ddp_step step;
    ls_status st;
    small_net n;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    if (self->rank == 1) {
        LS_CHECK(m->call(&n, comm) == m->status);
    } else {
        st = ls_ddp_begin(n.ddp, 1);
        if (st == LS_OK)
            st = rows_through(&n, ddp_backward, 0, 0, 1, &step);
        LS_CHECK(st != LS_OK);
    }
    LS_CHECK(strstr(ls_last_error(), m->text) != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void wrong_order_of_begin_is_an_error_on_all_ranks(void **state)
{
    const misuse all[] = {
        {begin_twice, LS_EINVAL, "ls_ddp_begin: called twice before ls_ddp_backward()"},
        {begin_with_other_rows, LS_EINVAL, "rows is 2, but was 3 in ls_ddp_begin()"},
        {accumulate_after_begin, LS_EINVAL, "ls_ddp_accumulate: called between ls_ddp_begin()"},
        {skip_begin, LS_EMISMATCH, "ddp weight"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        misuse m = all[i];
        assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_misuse, .arg = &m}));
    }
}

/* --- what the ranks share --- */

static ls_status late_layer(small_net *n, ls_comm *comm)
{
    ls_ddp_step step;

    LS_UNUSED(comm);
    LS_CHECK(ls_nn_linear(n->model, "late", 2, 3, 1) != NULL);
    return rows_through(n, ddp_backward, 0, 0, 1, &step);
}

static ls_status late_layer_accumulated(small_net *n, ls_comm *comm)
{
    ls_ddp_step step;

    LS_UNUSED(comm);
    LS_CHECK(ls_nn_linear(n->model, "late", 2, 3, 1) != NULL);
    return rows_through(n, ddp_accumulate, 0, 0, 1, &step);
}

static ls_status late_batch_norm(small_net *n, ls_comm *comm)
{
    LS_UNUSED(comm);
    LS_CHECK(ls_nn_batch_norm2d(n->model, "late", 3, NULL) != NULL);
    return ls_ddp_sync_buffers(n->ddp);
}

static void layers_added_after_create_are_named(void **state)
{
    const misuse all[] = {
        {late_layer, LS_EINVAL, "late.weight was added to the model after ls_ddp_create()"},
        {late_layer_accumulated, LS_EINVAL, "late.weight was added to the model"},
        {late_batch_norm, LS_EINVAL, "late.weight was added to the model"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        misuse m = all[i];
        assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_misuse, .arg = &m}));
    }
}

static ls_status count_ready(void *arg, ls_tensor *leaf)
{
    LS_UNUSED(leaf);
    ++*(int *)arg;
    return LS_OK;
}

static ls_status body_owned(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    ls_ddp *second;
    ls_ddp_step step;
    small_net n;
    int n_params;
    int n_ready = 0;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    LS_CHECK(rows_through(&n, plain_backward, 0, 0, 1, &step) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "second.weight belongs to an ls_ddp") != NULL);
    LS_CHECK(strstr(ls_last_error(), "call ls_ddp_backward()") != NULL);
    LS_CHECK(ls_ddp_create(comm, n.model, NULL, &second) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), "first.weight belongs to another ls_ddp") != NULL);
    ls_tape_on_grad_ready(n.tape, count_ready, &n_ready);
    LS_TRY(rows_through(&n, ddp_accumulate, 0, 0, 1, &step)); /* a rank's own gradients */
    LS_CHECK(ls_grad(ls_model_parameters(n.model, &n_params)[0].tensor) != NULL);
    LS_TRY(rows_through(&n, ddp_backward, 0, 0, 1, &step));
    LS_CHECK(n_params == 4 && n_ready == 2 * n_params);
    ls_ddp_destroy(n.ddp);
    n.ddp = NULL;
    LS_TRY(rows_through(&n, plain_backward, 0, 0, 1, &step));
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void ls_backward_fails_on_a_model_of_an_ls_ddp(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_owned}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_order_of_begin_is_an_error_on_all_ranks),
        cmocka_unit_test(layers_added_after_create_are_named),
        cmocka_unit_test(ls_backward_fails_on_a_model_of_an_ls_ddp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
