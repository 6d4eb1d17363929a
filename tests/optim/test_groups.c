/* SPDX-License-Identifier: Apache-2.0 */
/* test_groups.c - groups of parameters: an optimizer with groups does what one optimizer a group
 * does. */
#include "optim/optim_scene.h"

#include "base/alloc.h"

enum { PARAMS = 4, VALUES = 3, STEPS = 4 };

static const char *const names[PARAMS] = {"a.weight", "a.bias", "b.weight", "b.bias"};

/* The gradient of all parameters. */
static ls_tensor *gradient;

static ls_tensor *same_gradient(const ls_tensor *parameter)
{
    LS_UNUSED(parameter);
    return gradient;
}

typedef enum rule { SGD, ADAM, ADAMW, N_RULES } rule;

static ls_optimizer *create(rule r, const ls_named *list, int n, double lr, double weight_decay)
{
    const ls_sgd_options sgd = {
        .size = sizeof(sgd), .lr = lr, .momentum = 0.9, .weight_decay = weight_decay};
    const ls_adam_options adam = {.size = sizeof(adam), .lr = lr, .weight_decay = weight_decay};
    ls_optimizer *o = NULL;

    if (r == SGD)
        assert_ok(ls_sgd_create(list, n, same_gradient, &sgd, &o));
    else if (r == ADAM)
        assert_ok(ls_adam_create(list, n, same_gradient, &adam, &o));
    else
        assert_ok(ls_adamw_create(list, n, same_gradient, &adam, &o));
    return o;
}

static void make_parameters(ls_named list[PARAMS])
{
    for (int i = 0; i < PARAMS; i++) {
        list[i] = (ls_named){.name = names[i], .tensor = make_tensor(LS_F32, VALUES)};
        set_values(list[i].tensor, (double[]){0.5 + i, -1, 0.25 * i});
    }
}

static void destroy_parameters(const ls_named list[PARAMS])
{
    for (int i = 0; i < PARAMS; i++)
        ls_tensor_destroy(list[i].tensor);
}

static void set_gradient(int step)
{
    set_values(gradient, (double[]){0.3 - step, 0.01 * step, 2});
}

/* Biases: no decay. b.*: half the rate, and after that only b.weight has its own decay. */
static ls_optimizer *create_grouped(rule r, const ls_named *list)
{
    const ls_group_options bias = {.size = sizeof(bias), .no_weight_decay = 1};
    const ls_group_options b = {.size = sizeof(b), .lr_factor = 0.5};
    const ls_group_options b_weight = {.size = sizeof(b), .lr_factor = 0.25, .weight_decay = 0.7};
    ls_optimizer *o = create(r, list, PARAMS, 0.1, 0.2);

    assert_ok(ls_optimizer_group(o, "*.bias", &bias));
    assert_ok(ls_optimizer_group(o, "b.*", &b));
    assert_ok(ls_optimizer_group(o, "b.w*", &b_weight));
    return o;
}

static const double lr_factors[PARAMS] = {1, 1, 0.25, 0.5};
static const double decays[PARAMS] = {0.2, 0, 0.7, 0.2};

static void assert_same_values(const ls_named *a, const ls_named *b)
{
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < VALUES; k++)
            assert_true(value_at(a[i].tensor, k) == value_at(b[i].tensor, k));
}

static void run_rule(rule r)
{
    ls_named ours[PARAMS];
    ls_named theirs[PARAMS];
    ls_optimizer *alone[PARAMS];
    ls_optimizer *grouped;

    make_parameters(ours);
    make_parameters(theirs);
    grouped = create_grouped(r, ours);
    for (int i = 0; i < PARAMS; i++)
        alone[i] = create(r, &theirs[i], 1, 0.1 * lr_factors[i], decays[i]);
    for (int step = 0; step < STEPS; step++) {
        const double lr = 0.1 / (1 + step); // as a schedule

        set_gradient(step);
        ls_optimizer_set_lr(grouped, lr);
        assert_ok(ls_optimizer_step(grouped));
        for (int i = 0; i < PARAMS; i++) {
            ls_optimizer_set_lr(alone[i], lr * lr_factors[i]);
            assert_ok(ls_optimizer_step(alone[i]));
        }
        assert_same_values(ours, theirs);
    }
    for (int i = 0; i < PARAMS; i++)
        ls_optimizer_destroy(alone[i]);
    ls_optimizer_destroy(grouped);
    destroy_parameters(ours);
    destroy_parameters(theirs);
}

static void groups_do_what_optimizers_of_their_own_do(void **state)
{
    LS_UNUSED(state);
    for (rule r = 0; r < N_RULES; r++)
        run_rule(r);
}

/* The state has the entries of an optimizer without groups. */
static void loaded_state_continues_with_the_same_groups(void **state)
{
    ls_named ours[PARAMS];
    ls_named theirs[PARAMS];
    int n;
    int n_plain;

    LS_UNUSED(state);
    for (rule r = 0; r < N_RULES; r++) {
        ls_optimizer *first;
        ls_optimizer *second;

        make_parameters(ours);
        make_parameters(theirs);
        first = create_grouped(r, ours);
        second = create(r, theirs, PARAMS, 0.1, 0.2);
        (void)ls_optimizer_state(second, &n_plain);
        ls_optimizer_destroy(second);
        second = create_grouped(r, theirs);
        (void)ls_optimizer_state(first, &n);
        assert_int_equal(n, n_plain);
        for (int step = 0; step < STEPS; step++) {
            set_gradient(step);
            assert_ok(ls_optimizer_step(first));
            if (step == 1) {
                copy_state(first, second);
                assert_ok(ls_optimizer_loaded(second));
                for (int i = 0; i < PARAMS; i++)
                    assert_ok(ls_tensor_copy(theirs[i].tensor, ours[i].tensor));
            } else if (step > 1) {
                assert_ok(ls_optimizer_step(second));
                assert_same_values(ours, theirs);
            }
        }
        ls_optimizer_destroy(first);
        ls_optimizer_destroy(second);
        destroy_parameters(ours);
        destroy_parameters(theirs);
    }
}

static void wrong_groups_are_named(void **state)
{
    const struct {
        ls_group_options options;
        const char *pattern;
        ls_status status;
        const char *text;
    } all[] = {
        {{.size = sizeof(ls_group_options)},
         "c.*",
         LS_ENOTFOUND,
         "group: no parameter matches c.*"},
        {{.size = 0}, "*", LS_EINVAL, "group: ls_group_options.size is 0"},
        {{.size = sizeof(ls_group_options), .lr_factor = -1},
         "*",
         LS_EINVAL,
         "group: lr_factor is -1; it must be at least 0"},
        {{.size = sizeof(ls_group_options), .weight_decay = -0.1},
         "*",
         LS_EINVAL,
         "group: weight_decay is -0.1; it must be at least 0"},
        {{.size = sizeof(ls_group_options), .weight_decay = 0.1, .no_weight_decay = 1},
         "*",
         LS_EINVAL,
         "group: weight_decay is 0.1, with no_weight_decay"},
    };
    ls_named list[PARAMS];
    ls_optimizer *o;

    LS_UNUSED(state);
    make_parameters(list);
    o = create(SGD, list, PARAMS, 0.1, 0);
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        assert_status(ls_optimizer_group(o, all[i].pattern, &all[i].options), all[i].status);
        assert_last_error(all[i].text);
    }
    ls_optimizer_destroy(o);
    destroy_parameters(list);
}

static int open_all(void **state)
{
    const int failed = open_device(state);

    gradient = failed ? NULL : make_tensor(LS_F32, VALUES);
    return failed;
}

static int close_all(void **state)
{
    ls_tensor_destroy(gradient);
    return close_device(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_do_what_optimizers_of_their_own_do),
        cmocka_unit_test(loaded_state_continues_with_the_same_groups),
        cmocka_unit_test(wrong_groups_are_named),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
