/* SPDX-License-Identifier: Apache-2.0 */
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
        cmocka_unit_test(defaults_and_odd_values_are_defined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
