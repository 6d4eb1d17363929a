/* SPDX-License-Identifier: Apache-2.0 */
/* test_sgd.c - SGD against values of PyTorch, its state, and the common part of optimizers. */
#include "optim/optim_scene.h"

#include "base/alloc.h"
#include "tensor/tensor.h"

#include <math.h>

typedef struct sgd_case {
    double momentum;
    double dampening;
    double weight_decay;
    int nesterov;
    double after[4][3]; /* the parameter after each step */
} sgd_case;

#include "optim/sgd_cases.h"

static ls_sgd_options options_of(const sgd_case *c)
{
    return (ls_sgd_options){.size = sizeof(ls_sgd_options),
                            .lr = 0.1,
                            .momentum = c->momentum,
                            .dampening = c->dampening,
                            .weight_decay = c->weight_decay,
                            .nesterov = c->nesterov};
}

static ls_status make(const ls_named *parameter, const void *opt, ls_optimizer **out)
{
    return ls_sgd_create(parameter, 1, grad_of, opt, out);
}

static void run_case(const sgd_case *c, ls_dtype type, double tolerance)
{
    const ls_sgd_options opt = options_of(c);
    fixture f = setup(type, sgd_start, make, &opt);

    for (int step = 0; step < 4; step++) {
        set_values(f.g, sgd_grads[step]);
        assert_ok(ls_optimizer_step(f.o));
        for (size_t i = 0; i < 3; i++) {
            if (fabs(value_at(f.p, i) - c->after[step][i]) > tolerance)
                fail_msg("momentum %g dampening %g decay %g nesterov %d step %d element %zu: "
                         "%.17g, PyTorch has %.17g",
                         c->momentum, c->dampening, c->weight_decay, c->nesterov, step, i,
                         value_at(f.p, i), c->after[step][i]);
        }
    }
    teardown(&f);
}

static void every_combination_gives_what_pytorch_gives(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(sgd_cases); i++) {
        run_case(&sgd_cases[i], LS_F64, 1e-15);
        run_case(&sgd_cases[i], LS_F32, 1e-6);
    }
}

static void a_rate_of_zero_leaves_its_term_out(void **state)
{
    const ls_sgd_options opt = {.size = sizeof(opt), .lr = 0.5};
    fixture f = setup(LS_F32, sgd_start, make, &opt);

    LS_UNUSED(state);
    // 0 * infinity would be NaN: without weight decay there is no product.
    set_values(f.p, (double[]){(double)INFINITY, 1, 2});
    set_values(f.g, (double[]){1, 2, 4});
    assert_ok(ls_optimizer_step(f.o));
    assert_true(isinf(value_at(f.p, 0)));
    assert_true(value_at(f.p, 1) == 0 && value_at(f.p, 2) == 0);
    teardown(&f);
}

static void a_parameter_without_gradient_is_left_alone(void **state)
{
    const sgd_case *c = &sgd_cases[LS_COUNT_OF(sgd_cases) - 1];
    const ls_sgd_options opt = options_of(c);
    fixture f = setup(LS_F64, sgd_start, make, &opt);
    const ls_named *items;
    int n = 0;

    LS_UNUSED(state);
    grads[0].grad = NULL;
    assert_ok(ls_optimizer_step(f.o));
    for (size_t i = 0; i < 3; i++)
        assert_true(value_at(f.p, i) == sgd_start[i]);
    items = ls_optimizer_state(f.o, &n);
    assert_int_equal(n, 3);
    assert_int_equal(*(const uint8_t *)items[2].bytes, 0);
    // The first gradient is the first step, however late it comes.
    grads[0].grad = f.g;
    set_values(f.g, sgd_grads[0]);
    assert_ok(ls_optimizer_step(f.o));
    for (size_t i = 0; i < 3; i++)
        assert_true(fabs(value_at(f.p, i) - c->after[0][i]) < 1e-15);
    assert_int_equal(*(const uint8_t *)items[2].bytes, 1);
    teardown(&f);
}

static void a_gradient_that_does_not_fit_changes_nothing(void **state)
{
    const ls_sgd_options opt = {.size = sizeof(opt), .lr = 0.5};
    ls_tensor *good = make_tensor(LS_F32, 3);
    ls_tensor *grad = make_tensor(LS_F32, 3);
    ls_tensor *bad = make_tensor(LS_F32, 4);
    ls_tensor *wide = make_tensor(LS_F64, 4);
    const ls_named named[] = {{.name = "first", .tensor = good},
                              {.name = "fc.bias", .tensor = bad}};
    ls_optimizer *o;

    LS_UNUSED(state);
    set_values(grad, (double[]){1, 1, 1});
    grads[0].parameter = good;
    grads[0].grad = grad;
    grads[1].parameter = bad;
    grads[1].grad = grad;
    assert_ok(ls_sgd_create(named, 2, grad_of, &opt, &o));
    assert_status(ls_optimizer_step(o), LS_EINVAL);
    assert_last_error("fc.bias is (4) float32 but its gradient is (3) float32");
    grads[1].grad = wide;
    assert_status(ls_optimizer_step(o), LS_EINVAL);
    assert_last_error("float64");
    for (size_t i = 0; i < 3; i++)
        assert_true(value_at(good, i) == 0);
    ls_optimizer_destroy(o);
    ls_tensor_destroy(wide);
    ls_tensor_destroy(bad);
    ls_tensor_destroy(grad);
    ls_tensor_destroy(good);
    memset(grads, 0, sizeof(grads));
}

static void a_loaded_state_continues_with_the_same_bits(void **state)
{
    const ls_sgd_options opt = options_of(&sgd_cases[LS_COUNT_OF(sgd_cases) - 1]);

    LS_UNUSED(state);
    check_continuing(sgd_start, sgd_grads, make, &opt);
}

static void a_state_that_makes_no_sense_is_refused_and_undone(void **state)
{
    const sgd_case *c = &sgd_cases[LS_COUNT_OF(sgd_cases) - 1];
    const ls_sgd_options opt = options_of(c);
    fixture f = setup(LS_F32, sgd_start, make, &opt);
    const ls_named *items;
    int n;

    LS_UNUSED(state);
    items = ls_optimizer_state(f.o, &n);
    assert_int_equal(n, 3);
    assert_string_equal(items[0].name, "sgd.lr");
    assert_string_equal(items[1].name, "p.momentum_buffer");
    assert_string_equal(items[2].name, "p.momentum_buffer_set");
    memset(items[0].bytes, 0xFF, 8);
    assert_status(ls_optimizer_loaded(f.o), LS_EFORMAT);
    assert_last_error("sgd.lr");
    assert_ok(ls_optimizer_loaded(f.o));
    assert_true(ls_optimizer_lr(f.o) == 0.1);
    *(uint8_t *)items[2].bytes = 7;
    assert_status(ls_optimizer_loaded(f.o), LS_EFORMAT);
    assert_last_error("p.momentum_buffer_set");
    assert_ok(ls_optimizer_loaded(f.o));
    teardown(&f);
}

static void the_learning_rate_is_that_of_the_last_call(void **state)
{
    const ls_sgd_options opt = {.size = sizeof(opt), .lr = 0.5};
    const double expected = 0.125;
    fixture f = setup(LS_F64, sgd_start, make, &opt);
    const ls_named *items;
    int n = 0;

    LS_UNUSED(state);
    items = ls_optimizer_state(f.o, &n);
    assert_int_equal(n, 1);
    ls_optimizer_set_lr(f.o, expected);
    assert_true(ls_optimizer_lr(f.o) == expected);
    assert_memory_equal(items[0].bytes, &expected, sizeof(expected));
    teardown(&f);
}

static void a_step_marks_parameters_as_written(void **state)
{
    const ls_sgd_options opt = {.size = sizeof(opt), .lr = 0.5};
    fixture f = setup(LS_F32, sgd_start, make, &opt);
    const uint64_t before = f.p->storage->version;

    LS_UNUSED(state);
    assert_ok(ls_optimizer_step(f.o));
    assert_true(f.p->storage->version > before);
    teardown(&f);
}

static void a_step_allocates_nothing(void **state)
{
    const sgd_case *c = &sgd_cases[LS_COUNT_OF(sgd_cases) - 1];
    const ls_sgd_options opt = options_of(c);
    fixture f = setup(LS_F32, sgd_start, make, &opt);
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
        ls_sgd_options opt;
        const char *error;
    } cases[] = {
        {{.size = 1, .lr = 0.1}, "options"},
        {{.size = sizeof(ls_sgd_options), .lr = -1}, "lr"},
        {{.size = sizeof(ls_sgd_options), .lr = (double)NAN}, "lr"},
        {{.size = sizeof(ls_sgd_options), .lr = 1, .momentum = -0.1}, "momentum"},
        {{.size = sizeof(ls_sgd_options), .lr = 1, .weight_decay = (double)INFINITY},
         "weight_decay"},
        {{.size = sizeof(ls_sgd_options), .lr = 1, .dampening = (double)NAN}, "dampening"},
        {{.size = sizeof(ls_sgd_options), .lr = 1, .nesterov = 1}, "nesterov"},
        {{.size = sizeof(ls_sgd_options),
          .lr = 1,
          .momentum = 0.9,
          .dampening = 0.1,
          .nesterov = 1},
         "nesterov"},
    };
    ls_tensor *t = make_tensor(LS_F32, 3);
    const ls_named named = {.name = "p", .tensor = t};
    ls_optimizer *o;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        assert_status(ls_sgd_create(&named, 1, grad_of, &cases[i].opt, &o), LS_EINVAL);
        assert_last_error(cases[i].error);
    }
    assert_status(ls_sgd_create(&named, 1, NULL, &cases[0].opt, &o), LS_EINVAL);
    ls_tensor_destroy(t);
}

static void parameters_must_have_names_tensors_and_a_float_type(void **state)
{
    const ls_sgd_options opt = {.size = sizeof(opt), .lr = 0.5};
    ls_tensor *t = make_tensor(LS_F32, 3);
    ls_tensor *counter = make_tensor(LS_I64, 1);
    const ls_named twice[] = {{.name = "p", .tensor = t}, {.name = "p", .tensor = t}};
    const ls_named unnamed = {.tensor = t};
    const ls_named empty = {.name = "p"};
    const ls_named integer = {.name = "bn.num_batches_tracked", .tensor = counter};
    ls_optimizer *o;

    LS_UNUSED(state);
    assert_status(ls_sgd_create(twice, 2, grad_of, &opt, &o), LS_EINVAL);
    assert_last_error("two parameters are named p");
    assert_status(ls_sgd_create(&unnamed, 1, grad_of, &opt, &o), LS_EINVAL);
    assert_last_error("parameter 0 has no name");
    assert_status(ls_sgd_create(&empty, 1, grad_of, &opt, &o), LS_EINVAL);
    assert_last_error("no tensor");
    assert_status(ls_sgd_create(&integer, 1, grad_of, &opt, &o), LS_EUNSUPPORTED);
    assert_last_error("bn.num_batches_tracked is int64");
    assert_ok(ls_sgd_create(NULL, 0, grad_of, &opt, &o));
    assert_ok(ls_optimizer_step(o));
    ls_optimizer_destroy(o);
    ls_optimizer_destroy(NULL);
    ls_tensor_destroy(counter);
    ls_tensor_destroy(t);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    const ls_sgd_options opt = {.size = sizeof(opt), .lr = 0.5, .momentum = 0.9};
    ls_tensor *a = make_tensor(LS_F32, 3);
    ls_tensor *b = make_tensor(LS_F64, 1000);
    const ls_named named[] = {{.name = "a", .tensor = a}, {.name = "b", .tensor = b}};
    ls_optimizer *o = NULL;
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    do {
        ls_alloc_fail_at(++n);
        st = ls_sgd_create(named, 2, grad_of, &opt, &o);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        assert_true(n < 1000);
    } while (st != LS_OK);
    assert_true(n > 5);
    ls_optimizer_destroy(o);
    ls_tensor_destroy(b);
    ls_tensor_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_gives_what_pytorch_gives),
        cmocka_unit_test(a_rate_of_zero_leaves_its_term_out),
        cmocka_unit_test(a_parameter_without_gradient_is_left_alone),
        cmocka_unit_test(a_gradient_that_does_not_fit_changes_nothing),
        cmocka_unit_test(a_loaded_state_continues_with_the_same_bits),
        cmocka_unit_test(a_state_that_makes_no_sense_is_refused_and_undone),
        cmocka_unit_test(the_learning_rate_is_that_of_the_last_call),
        cmocka_unit_test(a_step_marks_parameters_as_written),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(wrong_options_say_what_is_wrong),
        cmocka_unit_test(parameters_must_have_names_tensors_and_a_float_type),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
