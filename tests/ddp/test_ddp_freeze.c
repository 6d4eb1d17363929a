/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ddp_freeze.c - frozen parameters and ls_ddp: ranks that freeze before or after
 * ls_ddp_create(), or between two steps, compute what one process does; ranks that freeze different
 * parameters fail.
 */
#include "ddp/two_layers.h"

#include "harness/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    STEPS = 8,
    FIRST_VALUES = IN * HIDDEN + HIDDEN,
    ALL_VALUES = FIRST_VALUES + HIDDEN * OUT + OUT
};

/* When first.* is frozen. */
typedef struct plan {
    bool before_create;
    int freeze_at;   /* step; STEPS: never */
    int unfreeze_at; /* step */
    bool between;    /* freezes between ls_ddp_accumulate() and ls_ddp_backward() */
} plan;

static ls_status freeze_at(small_net *n, const plan *p, int step)
{
    if (step == p->freeze_at)
        LS_TRY(ls_model_freeze(n->model, "first.*", 1, NULL));
    if (step == p->unfreeze_at)
        LS_TRY(ls_model_freeze(n->model, "first.*", 0, NULL));
    return LS_OK;
}

/* One step of ours on this rank's 3 rows, in two parts, and of the whole on all rows. */
static ls_status train_step(small_net *ours, small_net *whole, const plan *p, int i, ls_comm *comm)
{
    const int rows = 3;
    const int first = rows * ls_comm_rank(comm);
    ls_ddp_step step;

    if (!p->between)
        LS_TRY(freeze_at(ours, p, i));
    LS_TRY(freeze_at(whole, p, i));
    LS_TRY(rows_through(ours, ddp_accumulate, i, first, 1, &step));
    if (p->between)
        LS_TRY(freeze_at(ours, p, i));
    LS_TRY(ls_ddp_begin(ours->ddp, rows - 1));
    LS_TRY(rows_through(ours, ddp_backward, i, first + 1, rows - 1, &step));
    LS_CHECK(step.weight == rows * ls_comm_size(comm));
    LS_TRY(ls_optimizer_step(ours->sgd));
    LS_TRY(rows_through(whole, plain_backward, i, 0, rows * ls_comm_size(comm), &step));
    return ls_optimizer_step(whole->sgd);
}

/* Parameters near those of the whole; those of first.* exactly the ones of before if frozen. */
static ls_status check_step(small_net *ours, small_net *whole, const float *before, bool is_frozen)
{
    const ls_named *list = ls_model_parameters(ours->model, &(int){0});
    float x[VALUES_MOST];
    float y[VALUES_MOST];
    ls_ddp_stats stats;
    int n_unused;
    size_t n;

    LS_TRY(read_parameters(ours, x, &n));
    LS_TRY(read_parameters(whole, y, &n));
    LS_CHECK(n == ALL_VALUES);
    for (size_t i = 0; i < n; i++)
        LS_CHECK(fabs((double)x[i] - (double)y[i]) < 1e-5);
    LS_CHECK((memcmp(x, before, FIRST_VALUES * sizeof(float)) == 0) == is_frozen);
    LS_CHECK(memcmp(x + FIRST_VALUES, before + FIRST_VALUES,
                    (ALL_VALUES - FIRST_VALUES) * sizeof(float)) != 0);
    LS_CHECK((ls_grad(list[0].tensor) == NULL) == is_frozen);
    ls_ddp_get_stats(ours->ddp, &stats);
    LS_CHECK(stats.bytes_a_step == 4 * (is_frozen ? ALL_VALUES - FIRST_VALUES : ALL_VALUES));
    (void)ls_ddp_unused(ours->ddp, &n_unused);
    LS_CHECK(n_unused == 0);
    return LS_OK;
}

static ls_status train(small_net *ours, small_net *whole, ls_comm *comm, const plan *p)
{
    float before[VALUES_MOST];
    size_t n;

    for (int i = 0; i < STEPS; i++) {
        LS_TRY(read_parameters(ours, before, &n));
        LS_TRY(train_step(ours, whole, p, i, comm));
        LS_TRY(check_step(ours, whole, before,
                          (p->before_create || i >= p->freeze_at) && i < p->unfreeze_at));
    }
    return LS_OK;
}

static ls_status body_plan(const ls_test_rank *self, void *arg)
{
    const plan *p = arg;
    const ls_ddp_options opt = {.size = sizeof(opt), .check_replicas = 1};
    ls_comm *comm;
    small_net ours;
    small_net whole;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&ours, 100 + (uint64_t)self->rank));
    LS_TRY(net_open(&whole, 100));
    if (p->before_create) {
        LS_TRY(ls_model_freeze(ours.model, "first.*", 1, NULL));
        LS_TRY(ls_model_freeze(whole.model, "first.*", 1, NULL));
    }
    LS_TRY(net_join(&ours, comm, &opt));
    LS_TRY(net_join(&whole, NULL, NULL));
    st = train(&ours, &whole, comm, p);
    small_net_close(&ours);
    small_net_close(&whole);
    ls_comm_destroy(comm);
    return st;
}

static void ranks_freeze_as_one_process_does(void **state)
{
    const plan plans[] = {
        {.before_create = true, .freeze_at = STEPS, .unfreeze_at = STEPS},
        {.before_create = true, .freeze_at = STEPS, .unfreeze_at = 3},
        {.freeze_at = 0, .unfreeze_at = 2},
        {.freeze_at = 3, .unfreeze_at = 6},
        {.freeze_at = 5, .unfreeze_at = STEPS, .between = true},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(plans); i++) {
        plan p = plans[i];
        assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = body_plan, .arg = &p}));
    }
}

/* --- ranks that differ --- */

/* What each of two ranks freezes, NULL for nothing, and a part of the error text of both. */
typedef struct difference {
    const char *patterns[2];
    bool before_create;
    const char *text;
} difference;

static ls_status body_difference(const ls_test_rank *self, void *arg)
{
    const difference *d = arg;
    const char *pattern = d->patterns[self->rank];
    ls_ddp_step step;
    ls_comm *comm;
    small_net n;
    ls_status st = LS_OK;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(net_open(&n, 1));
    if (!d->before_create)
        LS_TRY(net_join(&n, comm, NULL));
    if (pattern != NULL)
        LS_TRY(ls_model_freeze(n.model, pattern, 1, NULL));
    if (d->before_create)
        st = ls_ddp_create(comm, n.model, NULL, &n.ddp);
    else
        st = rows_through(&n, ddp_backward, 0, 0, 1, &step);
    LS_CHECK(st == LS_EMISMATCH);
    LS_CHECK(strstr(ls_last_error(), d->text) != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void ranks_that_freeze_different_parameters_fail(void **state)
{
    const char *const weight = "rank 1 has parameter first.weight (9, 7) float32 where rank 0 has "
                               "parameter first.weight (9, 7) float32, frozen";
    const difference all[] = {
        {{"first.*", "second.*"}, true, weight},
        {{"first.*", NULL}, true, weight},
        {{"first.*", "second.*"}, false, weight},
        {{"first.*", NULL}, false, "ddp model"},
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        difference d = all[i];
        assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_difference, .arg = &d}));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_freeze_as_one_process_does),
        cmocka_unit_test(ranks_that_freeze_different_parameters_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
