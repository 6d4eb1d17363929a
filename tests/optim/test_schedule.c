/* SPDX-License-Identifier: Apache-2.0 */
/* test_schedule.c - learning rates against values of PyTorch, and their bits. */
#include "base/unit.h"

#include <lockstep/optim.h>

#include <math.h>

static void assert_near(double have, double want)
{
    if (fabs(have - want) > 1e-15 * fabs(want))
        fail_msg("%.17g is not %.17g", have, want);
}

static void a_constant_rate_stays(void **state)
{
    const ls_schedule s = {.kind = LS_SCHEDULE_CONSTANT, .base_lr = 0.3, .min_lr = 0.1};

    LS_UNUSED(state);
    assert_near(ls_schedule_lr(&s, 0), 0.3);
    assert_near(ls_schedule_lr(&s, INT64_MAX), 0.3);
}

/* The figures are those of torch.optim.lr_scheduler.StepLR(step_size=3, gamma=0.5). */
static void steps_are_those_of_pytorch(void **state)
{
    static const double want[] = {0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1};
    const ls_schedule s = {.kind = LS_SCHEDULE_STEP, .base_lr = 0.4, .gamma = 0.5, .step = 3};

    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(want); t++)
        assert_near(ls_schedule_lr(&s, (int64_t)t), want[t]);
}

/* The figures are those of torch.optim.lr_scheduler.CosineAnnealingLR(T_max=7, eta_min=0.01). */
static void a_cosine_is_that_of_pytorch(void **state)
{
    static const double want[] = {0.4,
                                  0.38068892924097175,
                                  0.3265805113624531,
                                  0.24839158212148135,
                                  0.16160841787851873,
                                  0.08341948863754697,
                                  0.029311070759028286,
                                  0.01};
    const ls_schedule s = {.kind = LS_SCHEDULE_COSINE, .base_lr = 0.4, .min_lr = 0.01, .total = 7};

    LS_UNUSED(state);
    for (size_t t = 0; t < LS_COUNT_OF(want); t++)
        assert_near(ls_schedule_lr(&s, (int64_t)t), want[t]);
    assert_near(ls_schedule_lr(&s, 1000), 0.01);
}

static void a_fine_cosine_agrees_with_libm(void **state)
{
    const ls_schedule s = {.kind = LS_SCHEDULE_COSINE, .base_lr = 1, .min_lr = -1, .total = 10007};

    LS_UNUSED(state);
    for (int64_t t = 0; t <= 10007; t++) {
        const double want = cos(3.141592653589793 * (double)t / 10007);

        if (fabs(ls_schedule_lr(&s, t) - want) > 1e-15)
            fail_msg("at %lld: %.17g is not %.17g", (long long)t, ls_schedule_lr(&s, t), want);
    }
}

/* The figures of the following are those of torch.optim.lr_scheduler, from a rate of 0.4. */
static void check_rates(const ls_schedule *s, const double *want, size_t n)
{
    for (size_t t = 0; t < n; t++) {
        const double have = ls_schedule_lr(s, (int64_t)t);

        if (fabs(have - want[t]) > 4e-16)
            fail_msg("at %zu: %.17g is not %.17g", t, have, want[t]);
    }
}

/* MultiStepLR([2, 5, 5], gamma=0.5) */
static void milestones_are_those_of_pytorch(void **state)
{
    static const double want[] = {0.4, 0.4, 0.2, 0.2, 0.2, 0.05, 0.05, 0.05};
    static const int64_t sorted[] = {2, 5, 5};
    static const int64_t unsorted[] = {5, 2, 5};
    ls_schedule s = {.kind = LS_SCHEDULE_MULTI_STEP,
                     .base_lr = 0.4,
                     .gamma = 0.5,
                     .milestones = sorted,
                     .n_milestones = 3};

    LS_UNUSED(state);
    check_rates(&s, want, LS_COUNT_OF(want));
    s.milestones = unsorted;
    check_rates(&s, want, LS_COUNT_OF(want));
    s.n_milestones = 0;
    assert_near(ls_schedule_lr(&s, 1000), 0.4);
}

/* LinearLR(start_factor=1, end_factor=0.1, total_iters=4) */
static void a_line_is_that_of_pytorch(void **state)
{
    static const double want[] = {0.4, 0.31, 0.22, 0.13, 0.04, 0.04};
    const ls_schedule s = {.kind = LS_SCHEDULE_LINEAR, .base_lr = 0.4, .min_lr = 0.04, .total = 4};

    LS_UNUSED(state);
    check_rates(&s, want, LS_COUNT_OF(want));
}

/* LinearLR(total_iters=3), and SequentialLR of LinearLR(start_factor=0.25) in front of
 * CosineAnnealingLR(4, 0.01) and of StepLR(2, 0.5) */
static void a_warm_up_is_that_of_pytorch(void **state)
{
    static const double alone[] = {0.13333333333333333, 0.22222222222222224, 0.3111111111111111,
                                   0.4, 0.4};
    static const double before_cosine[] = {0.1,
                                           0.2,
                                           0.30000000000000004,
                                           0.4,
                                           0.34288582233137677,
                                           0.20500000000000002,
                                           0.06711417766862325,
                                           0.01};
    static const double before_steps[] = {0.1, 0.25, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1};

    LS_UNUSED(state);
    check_rates(&(ls_schedule){.base_lr = 0.4, .warmup = 3}, alone, LS_COUNT_OF(alone));
    check_rates(&(ls_schedule){.kind = LS_SCHEDULE_COSINE,
                               .base_lr = 0.4,
                               .min_lr = 0.01,
                               .total = 4,
                               .warmup = 3,
                               .warmup_factor = 0.25},
                before_cosine, LS_COUNT_OF(before_cosine));
    check_rates(&(ls_schedule){.kind = LS_SCHEDULE_STEP,
                               .base_lr = 0.4,
                               .step = 2,
                               .gamma = 0.5,
                               .warmup = 2,
                               .warmup_factor = 0.25},
                before_steps, LS_COUNT_OF(before_steps));
}

static void defaults_and_odd_values_are_defined(void **state)
{
    const ls_schedule step = {.kind = LS_SCHEDULE_STEP, .base_lr = 1};
    const ls_schedule cosine = {.kind = LS_SCHEDULE_COSINE, .base_lr = 1, .min_lr = 0.5};

    LS_UNUSED(state);
    assert_near(ls_schedule_lr(&step, -5), 1);
    assert_near(ls_schedule_lr(&step, 2), 0.01);
    assert_true(ls_schedule_lr(&step, INT64_MAX) == 0);
    assert_near(ls_schedule_lr(&cosine, -5), 1);
    assert_near(ls_schedule_lr(&cosine, 1), 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_constant_rate_stays),
        cmocka_unit_test(steps_are_those_of_pytorch),
        cmocka_unit_test(a_cosine_is_that_of_pytorch),
        cmocka_unit_test(a_fine_cosine_agrees_with_libm),
        cmocka_unit_test(milestones_are_those_of_pytorch),
        cmocka_unit_test(a_line_is_that_of_pytorch),
        cmocka_unit_test(a_warm_up_is_that_of_pytorch),
        cmocka_unit_test(defaults_and_odd_values_are_defined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
