/* SPDX-License-Identifier: Apache-2.0 */
/* test_adam.c - Adam and AdamW against values of PyTorch, and their state. */
#include "optim/optim_scene.h"

#include "base/alloc.h"

#include <math.h>

typedef struct adam_case {
    int decoupled;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    int amsgrad;
    double after[4][3]; /* the parameter after each step */
} adam_case;

#include "optim/adam_cases.h"

static ls_status make(const ls_named *parameter, const void *arg, ls_optimizer **out)
{
    const adam_case *c = arg;
    const ls_adam_options opt = {.size = sizeof(opt),
                                 .lr = 0.1,
                                 .beta1 = c->beta1 == 0 ? -1 : c->beta1,
                                 .beta2 = c->beta2,
                                 .eps = c->eps,
                                 .weight_decay = c->weight_decay,
                                 .amsgrad = c->amsgrad};

    return (c->decoupled ? ls_adamw_create : ls_adam_create)(parameter, 1, grad_of, &opt, out);
}

static void run_case(const adam_case *c, ls_dtype type, double tolerance)
{
    fixture f = setup(type, adam_start, make, c);

    for (int step = 0; step < 4; step++) {
        set_values(f.g, adam_grads[step]);
        assert_ok(ls_optimizer_step(f.o));
        for (size_t i = 0; i < 3; i++) {
            if (fabs(value_at(f.p, i) - c->after[step][i]) > tolerance)
                fail_msg("%s betas %g %g decay %g amsgrad %d step %d element %zu: %.17g, PyTorch "
                         "has %.17g",
                         c->decoupled ? "AdamW" : "Adam", c->beta1, c->beta2, c->weight_decay,
                         c->amsgrad, step, i, value_at(f.p, i), c->after[step][i]);
        }
    }
    teardown(&f);
}

static void every_combination_gives_what_pytorch_gives(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(adam_cases); i++) {
        run_case(&adam_cases[i], LS_F64, 1e-14);
        run_case(&adam_cases[i], LS_F32, 2e-6);
    }
}

static ls_status make_default(const ls_named *parameter, const void *arg, ls_optimizer **out)
{
    const ls_adam_options opt = {.size = sizeof(opt), .lr = 0.1};

    LS_UNUSED(arg);
    return ls_adam_create(parameter, 1, grad_of, &opt, out);
}

static void zeros_mean_the_defaults_of_pytorch(void **state)
{
    fixture f = setup(LS_F64, adam_start, make_default, NULL);

    LS_UNUSED(state);
    for (int step = 0; step < 4; step++) {
        set_values(f.g, adam_grads[step]);
        assert_ok(ls_optimizer_step(f.o));
    }
    for (size_t i = 0; i < 3; i++)
        assert_true(fabs(value_at(f.p, i) - adam_cases[0].after[3][i]) < 1e-14);
    teardown(&f);
}

static void a_loaded_state_continues_with_the_same_bits(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(adam_cases); i++)
        check_continuing(adam_start, adam_grads, make, &adam_cases[i]);
}

static const adam_case *with_amsgrad(int decoupled)
{
    for (size_t i = 0; i < LS_COUNT_OF(adam_cases); i++) {
        if (adam_cases[i].amsgrad && adam_cases[i].decoupled == decoupled)
            return &adam_cases[i];
    }
    return NULL;
}

static void the_state_has_the_names_of_pytorch(void **state)
{
    static const char *const names[] = {"adamw.lr", "p.exp_avg", "p.exp_avg_sq", "p.max_exp_avg_sq",
                                        "p.step"};
    fixture f = setup(LS_F32, adam_start, make, with_amsgrad(1));
    const ls_named *items;
    int n = 0;

    LS_UNUSED(state);
    items = ls_optimizer_state(f.o, &n);
    assert_int_equal(n, LS_COUNT_OF(names));
    for (int i = 0; i < n; i++)
        assert_string_equal(items[i].name, names[i]);
    assert_int_equal(items[4].n_bytes, 8);
    for (int i = 0; i < 3; i++)
        assert_ok(ls_optimizer_step(f.o));
    assert_int_equal(((const uint8_t *)items[4].bytes)[0], 3);
    grads[0].grad = NULL; // a step without gradient does not count
    assert_ok(ls_optimizer_step(f.o));
    assert_int_equal(((const uint8_t *)items[4].bytes)[0], 3);
    ((uint8_t *)items[4].bytes)[7] = 0x80; // a negative number of steps
    assert_status(ls_optimizer_loaded(f.o), LS_EFORMAT);
    assert_last_error("p.step");
    assert_ok(ls_optimizer_loaded(f.o));
    assert_int_equal(((const uint8_t *)items[4].bytes)[0], 3);
    teardown(&f);
}

static void a_step_allocates_nothing(void **state)
{
    fixture f = setup(LS_F32, adam_start, make, with_amsgrad(0));
    uint64_t before;

    LS_UNUSED(state);
    before = count_allocations();
    for (int i = 0; i < 10; i++)
        assert_ok(ls_optimizer_step(f.o));
    assert_int_equal(count_allocations(), before);
    teardown(&f);
}

static void wrong_options_say_what_is_wrong(void **state)
{
    static const struct {
        ls_adam_options opt;
        const char *error;
    } cases[] = {
        {{.size = 1, .lr = 0.1}, "options"},
        {{.size = sizeof(ls_adam_options), .lr = -1}, "lr"},
        {{.size = sizeof(ls_adam_options), .lr = 1, .beta1 = 1}, "beta1"},
        {{.size = sizeof(ls_adam_options), .lr = 1, .beta2 = (double)NAN}, "beta2"},
        {{.size = sizeof(ls_adam_options), .lr = 1, .eps = -1e-8}, "eps"},
        {{.size = sizeof(ls_adam_options), .lr = 1, .weight_decay = (double)INFINITY},
         "weight_decay"},
    };
    ls_tensor *t = make_tensor(LS_F32, 3);
    const ls_named named = {.name = "p", .tensor = t};
    ls_optimizer *o;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        assert_status(ls_adam_create(&named, 1, grad_of, &cases[i].opt, &o), LS_EINVAL);
        assert_last_error(cases[i].error);
        assert_last_error("adam:");
    }
    assert_status(ls_adamw_create(&named, 1, NULL, &cases[0].opt, &o), LS_EINVAL);
    assert_last_error("adamw:");
    ls_tensor_destroy(t);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    ls_tensor *a = make_tensor(LS_F32, 3);
    const ls_named named = {.name = "a", .tensor = a};
    ls_optimizer *o = NULL;
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    do {
        ls_alloc_fail_at(++n);
        st = make(&named, with_amsgrad(0), &o);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        assert_true(n < 1000);
    } while (st != LS_OK);
    assert_true(n > 5);
    ls_optimizer_destroy(o);
    ls_tensor_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_gives_what_pytorch_gives),
        cmocka_unit_test(zeros_mean_the_defaults_of_pytorch),
        cmocka_unit_test(a_loaded_state_continues_with_the_same_bits),
        cmocka_unit_test(the_state_has_the_names_of_pytorch),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(wrong_options_say_what_is_wrong),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
