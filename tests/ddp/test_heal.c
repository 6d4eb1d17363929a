/* SPDX-License-Identifier: Apache-2.0 */
/* test_heal.c - ls_ddp_heal(): a rank that differs gets the state of the majority. */
#include <lockstep/elastic.h>

#include "ddp/small_net.h"
#include "harness/ranks.h"
#include "tensor/suite_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 6 };

static ls_status open_net(small_net *n, ls_comm *comm)
{
    LS_TRY(small_net_open(n, test_device_name(), 1));
    n->layers[0] = ls_nn_linear(n->model, "linear", COUNT, 1, 1);
    return small_net_join(n, comm, NULL, 0.1);
}

/* The weight, whose first element this rank changes to `first`. */
static ls_tensor *change(small_net *n, float first)
{
    int count;
    ls_tensor *t = ls_model_parameters(n->model, &count)[0].tensor;
    float values[COUNT];

    if (ls_tensor_read(t, values, COUNT) != LS_OK)
        return NULL;
    values[0] = first;
    return ls_tensor_write(t, values, COUNT) == LS_OK ? t : NULL;
}

static ls_status first_of(ls_tensor *t, float *out)
{
    float values[COUNT];

    LS_TRY(ls_tensor_read(t, values, COUNT));
    *out = values[0];
    return LS_OK;
}

static ls_status body_majority(const ls_test_rank *self, void *arg)
{
    int64_t counted = self->rank == 2 ? 8 : 7;
    const ls_named state = {.name = "counted", .bytes = &counted, .n_bytes = sizeof(counted)};
    ls_comm *comm;
    small_net n;
    ls_tensor *t;
    float first;
    int n_healed;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(open_net(&n, comm));
    t = change(&n, self->rank == 0 ? 2.0F : 1.0F);
    LS_CHECK(t != NULL);
    LS_TRY(ls_ddp_heal(n.ddp, NULL, 0, &n_healed)); // rank 0 differs
    LS_TRY(first_of(t, &first));
    LS_CHECK(n_healed == 1 && first == 1.0F);
    LS_TRY(ls_ddp_heal(n.ddp, &state, 1, &n_healed)); // the state of rank 2
    LS_CHECK(n_healed == 1 && counted == 7);
    LS_TRY(ls_ddp_heal(n.ddp, &state, 1, &n_healed));
    LS_CHECK(n_healed == 0);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static ls_status body_no_majority(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    small_net n;
    int n_healed;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(open_net(&n, comm));
    LS_CHECK(change(&n, (float)self->rank) != NULL);
    LS_CHECK(ls_ddp_heal(n.ddp, NULL, 0, &n_healed) == LS_EMISMATCH && n_healed == 0);
    LS_CHECK(strstr(ls_last_error(), "linear.weight differs and no majority of the 2 ranks") !=
             NULL);
    LS_CHECK(strstr(ls_last_error(), " on rank 0 and ") != NULL);
    LS_CHECK(strstr(ls_last_error(), " on rank 1") != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void the_majority_heals_a_rank(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = body_majority}));
}

static void without_a_majority_both_hashes_are_named(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_no_majority}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_majority_heals_a_rank),
        cmocka_unit_test(without_a_majority_both_hashes_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
