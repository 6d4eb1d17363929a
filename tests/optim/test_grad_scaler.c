/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_grad_scaler.c - gradient scaling against torch.amp.GradScaler: scales, skipped steps, state,
 * and the error after many skipped steps.
 */
#include "optim/optim_scene.h"

#include "base/alloc.h"

#include <math.h>

enum { MOST_STEPS = 24 };

typedef struct grad_scaler_case {
    int adam; /* else SGD with momentum */
    double init_scale;
    double growth_factor;
    double backoff_factor;
    int64_t growth_interval;
    const char *steps; /* . finite, i infinity, m minus infinity, n NaN */
    struct {
        double scale;
        int64_t growth_tracker;
        double parameter[3];
    } after[MOST_STEPS];
} grad_scaler_case;

#include "optim/grad_scaler_cases.h"

/* A parameter with its gradient and optimizer, and the optimizer's scaler. */
typedef struct scaler_scene {
    fixture f;
    ls_grad_scaler *s;
} scaler_scene;

static ls_status make_optimizer(const ls_named *parameter, const void *adam, ls_optimizer **out)
{
    const ls_adam_options with_adam = {.size = sizeof(with_adam), .lr = 0.1};
    const ls_sgd_options with_sgd = {.size = sizeof(with_sgd), .lr = 0.1, .momentum = 0.9};

    return *(const int *)adam ? ls_adam_create(parameter, 1, grad_of, &with_adam, out)
                              : ls_sgd_create(parameter, 1, grad_of, &with_sgd, out);
}

static scaler_scene begin_with(int adam, ls_dtype type, const ls_grad_scaler_options *opt)
{
    scaler_scene s = {.f = setup(type, scaler_start, make_optimizer, &adam)};

    assert_ok(ls_grad_scaler_create(s.f.o, opt, &s.s));
    return s;
}

static scaler_scene begin_case(const grad_scaler_case *c, ls_dtype type)
{
    const ls_grad_scaler_options opt = {.size = sizeof(opt),
                                        .init_scale = c->init_scale,
                                        .growth_factor = c->growth_factor,
                                        .backoff_factor = c->backoff_factor,
                                        .growth_interval = c->growth_interval};

    return begin_with(c->adam, type, &opt);
}

static void end(scaler_scene *s)
{
    ls_grad_scaler_destroy(s->s);
    teardown(&s->f);
}

/* The gradient that backward gives at step i, of the scaled loss. */
static void set_gradient(const scaler_scene *s, int i, char kind)
{
    double values[3];

    for (int k = 0; k < 3; k++)
        values[k] = scaler_grads[i % 4][k] * ls_grad_scaler_scale(s->s);
    if (kind == 'i' || kind == 'm')
        values[i % 3] = kind == 'i' ? (double)INFINITY : -(double)INFINITY;
    if (kind == 'n')
        values[i % 3] = (double)NAN;
    set_values(s->f.g, values);
}

static void run_step(const scaler_scene *s, int i, char kind)
{
    set_gradient(s, i, kind);
    assert_ok(ls_grad_scaler_step(s->s));
    assert_ok(ls_grad_scaler_update(s->s));
}

static int64_t saved_count(ls_grad_scaler *s, const char *name)
{
    int n = 0;
    const ls_named *items = ls_grad_scaler_state(s, &n);

    for (int i = 0; i < n; i++) {
        if (strcmp(items[i].name, name) == 0) {
            int64_t count;

            assert_int_equal(items[i].n_bytes, sizeof(count));
            memcpy(&count, items[i].bytes, sizeof(count));
            return count;
        }
    }
    fail_msg("no %s in the state", name);
    return 0;
}

static void check_case(const grad_scaler_case *c, ls_dtype type, double tolerance)
{
    scaler_scene s = begin_case(c, type);
    int64_t n_skipped = 0;

    for (int i = 0; c->steps[i] != '\0'; i++) {
        run_step(&s, i, c->steps[i]);
        n_skipped += c->steps[i] != '.';
        assert_true(ls_grad_scaler_scale(s.s) == c->after[i].scale);
        assert_int_equal(saved_count(s.s, "grad_scaler.growth_tracker"),
                         c->after[i].growth_tracker);
        assert_int_equal(ls_grad_scaler_skipped(s.s), n_skipped);
        for (size_t k = 0; k < 3; k++) {
            if (fabs(value_at(s.f.p, k) - c->after[i].parameter[k]) > tolerance)
                fail_msg("case %s, step %d, element %zu: %.17g, PyTorch has %.17g", c->steps, i, k,
                         value_at(s.f.p, k), c->after[i].parameter[k]);
        }
    }
    end(&s);
}

static void scales_and_parameters_are_those_of_pytorch(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(grad_scaler_cases); i++) {
        check_case(&grad_scaler_cases[i], LS_F64, 1e-13);
        // A gradient times 2^126 overflows in float32.
        if (grad_scaler_cases[i].init_scale < 1e30)
            check_case(&grad_scaler_cases[i], LS_F32, 2e-5);
    }
}

static void defaults_are_those_of_pytorch(void **state)
{
    scaler_scene s = begin_with(0, LS_F32, NULL);

    LS_UNUSED(state);
    assert_true(ls_grad_scaler_scale(s.s) == 65536);
    run_step(&s, 0, 'n');
    assert_true(ls_grad_scaler_scale(s.s) == 32768);
    for (int i = 0; i < 1999; i++)
        run_step(&s, i, '.');
    assert_true(ls_grad_scaler_scale(s.s) == 32768);
    run_step(&s, 1999, '.');
    assert_true(ls_grad_scaler_scale(s.s) == 65536);
    end(&s);
}

/* The bytes of the optimizer's state: at most 4 items of 24 bytes. */
static void read_state(ls_optimizer *o, uint8_t out[4][24])
{
    int n = 0;
    const ls_named *items = ls_optimizer_state(o, &n);

    assert_in_range(n, 1, 4);
    memset(out, 0, 4 * sizeof(out[0]));
    for (int i = 0; i < n; i++) {
        if (items[i].tensor != NULL)
            assert_ok(ls_tensor_read(items[i].tensor, out[i], 3));
        else
            memcpy(out[i], items[i].bytes, items[i].n_bytes);
    }
}

static void a_skipped_step_changes_neither_parameters_nor_the_optimizer(void **state)
{
    uint8_t before[4][24];
    uint8_t after[4][24];

    LS_UNUSED(state);
    for (int adam = 0; adam < 2; adam++) {
        for (int n_before = 0; n_before < 2; n_before++) { // with and without a first update
            scaler_scene s = begin_with(adam, LS_F64, NULL);
            double was[3];

            for (int i = 0; i < n_before; i++)
                run_step(&s, i, '.');
            assert_ok(ls_tensor_read(s.f.p, was, 3));
            read_state(s.f.o, before);
            run_step(&s, 1, 'i');
            for (size_t k = 0; k < 3; k++)
                assert_true(value_at(s.f.p, k) == was[k]);
            read_state(s.f.o, after);
            assert_memory_equal(after, before, sizeof(after));
            run_step(&s, 2, '.');
            read_state(s.f.o, after);
            assert_memory_not_equal(after, before, sizeof(after));
            end(&s);
        }
    }
}

static void gradients_can_be_clipped_between_unscaling_and_the_step(void **state)
{
    scaler_scene s = begin_with(0, LS_F64, NULL);
    const ls_named named = {.name = "p", .tensor = s.f.p};
    double norm = 0;

    LS_UNUSED(state);
    set_values(s.f.g, (double[]){3 * 65536.0, 0, 4 * 65536.0});
    assert_ok(ls_grad_scaler_unscale(s.s));
    assert_true(value_at(s.f.g, 0) == 3 && value_at(s.f.g, 2) == 4);
    assert_status(ls_grad_scaler_unscale(s.s), LS_EINVAL);
    assert_last_error("already unscaled");
    assert_ok(ls_clip_grad_norm(&named, 1, grad_of, 2.5, &norm));
    assert_true(norm == 5);
    assert_ok(ls_grad_scaler_step(s.s));
    assert_ok(ls_grad_scaler_update(s.s));
    assert_true(fabs(value_at(s.f.p, 0) - (scaler_start[0] - 0.1 * 1.5)) < 1e-6);
    end(&s);
}

static void calls_out_of_order_are_refused(void **state)
{
    scaler_scene s = begin_with(0, LS_F32, NULL);

    LS_UNUSED(state);
    assert_status(ls_grad_scaler_update(s.s), LS_EINVAL);
    assert_last_error("ls_grad_scaler_step() comes before");
    assert_ok(ls_grad_scaler_step(s.s));
    assert_status(ls_grad_scaler_step(s.s), LS_EINVAL);
    assert_last_error("ls_grad_scaler_update()");
    assert_status(ls_grad_scaler_unscale(s.s), LS_EINVAL);
    assert_status(ls_grad_scaler_loaded(s.s), LS_EINVAL);
    assert_last_error("before a load");
    end(&s); // between a step and its update
}

static void a_parameter_without_gradient_is_left_alone(void **state)
{
    scaler_scene s = begin_with(1, LS_F32, NULL);
    uint8_t before[4][24];
    uint8_t after[4][24];

    LS_UNUSED(state);
    run_step(&s, 0, '.');
    read_state(s.f.o, before);
    grads[0].grad = NULL;
    assert_ok(ls_grad_scaler_step(s.s));
    assert_ok(ls_grad_scaler_update(s.s));
    read_state(s.f.o, after);
    assert_memory_equal(after, before, sizeof(after));
    assert_int_equal(ls_grad_scaler_skipped(s.s), 0);
    end(&s);
}

static void a_gradient_that_does_not_fit_changes_nothing(void **state)
{
    scaler_scene s = begin_with(0, LS_F32, NULL);
    ls_tensor *other = make_tensor(LS_F32, 2);

    LS_UNUSED(state);
    grads[0].grad = other;
    assert_status(ls_grad_scaler_step(s.s), LS_EINVAL);
    assert_last_error("parameter p is (3) float32 but its gradient is (2) float32");
    assert_status(ls_grad_scaler_update(s.s), LS_EINVAL);
    grads[0].grad = s.f.g;
    run_step(&s, 0, '.');
    assert_true(fabs(value_at(s.f.p, 0) - (scaler_start[0] - 0.1 * scaler_grads[0][0])) < 1e-6);
    ls_tensor_destroy(other);
    end(&s);
}

static void many_skipped_steps_in_a_row_are_an_error_with_advice(void **state)
{
    const ls_grad_scaler_options opt = {.size = sizeof(opt), .max_skipped = 3};
    scaler_scene s = begin_with(0, LS_F32, &opt);

    LS_UNUSED(state);
    run_step(&s, 0, 'n');
    run_step(&s, 1, 'n');
    run_step(&s, 2, '.'); // begins a new row
    run_step(&s, 3, 'n');
    run_step(&s, 4, 'n');
    for (int i = 5; i < 7; i++) {
        set_gradient(&s, i, 'n');
        assert_ok(ls_grad_scaler_step(s.s));
        assert_status(ls_grad_scaler_update(s.s), LS_EINVAL);
        assert_last_error(i == 5
                              ? "at step 6 the gradients are not finite with a loss scale of 4096"
                              : "at step 7 the gradients are not finite with a loss scale of 2048");
        assert_last_error("bfloat16");
        assert_last_error(i == 5 ? "; 3 steps in a row" : "; 4 steps in a row");
    }
    run_step(&s, 7, '.');
    assert_int_equal(ls_grad_scaler_skipped(s.s), 6);
    end(&s);
}

static void a_hundred_skipped_steps_are_too_many_by_default(void **state)
{
    scaler_scene s = begin_with(0, LS_F32, NULL);

    LS_UNUSED(state);
    for (int i = 0; i < 99; i++)
        run_step(&s, i, 'i');
    set_gradient(&s, 99, 'i');
    assert_ok(ls_grad_scaler_step(s.s));
    assert_status(ls_grad_scaler_update(s.s), LS_EINVAL);
    assert_last_error("at step 100 ");
    end(&s);
}

/* Copies the lists of `from` to `to`, as a save and a load. */
static void take_over(const scaler_scene *from, const scaler_scene *to)
{
    int n = 0;
    int n_to = 0;
    const ls_named *src = ls_grad_scaler_state(from->s, &n);
    const ls_named *dst = ls_grad_scaler_state(to->s, &n_to);

    copy_state(from->f.o, to->f.o);
    copy_items(src, n, dst, n_to);
    assert_ok(ls_optimizer_loaded(to->f.o));
    assert_ok(ls_grad_scaler_loaded(to->s));
    assert_ok(ls_tensor_copy(to->f.p, from->f.p));
}

static void a_loaded_state_continues_as_without_interruption(void **state)
{
    LS_UNUSED(state);
    for (size_t c = 0; c < LS_COUNT_OF(grad_scaler_cases); c++) {
        const grad_scaler_case *of = &grad_scaler_cases[c];
        const int n_steps = (int)strlen(of->steps);

        for (int n_before = 0; n_before < n_steps; n_before += 5) {
            scaler_scene first = begin_case(of, LS_F64);
            scaler_scene second;

            for (int i = 0; i < n_before; i++)
                run_step(&first, i, of->steps[i]);
            second = begin_with(of->adam, LS_F64,
                                &(ls_grad_scaler_options){.size = sizeof(ls_grad_scaler_options),
                                                          .growth_factor = of->growth_factor,
                                                          .backoff_factor = of->backoff_factor,
                                                          .growth_interval = of->growth_interval});
            take_over(&first, &second);
            assert_int_equal(ls_grad_scaler_skipped(second.s), ls_grad_scaler_skipped(first.s));
            for (int i = n_before; i < n_steps; i++)
                run_step(&second, i, of->steps[i]);
            assert_true(ls_grad_scaler_scale(second.s) == of->after[n_steps - 1].scale);
            for (size_t k = 0; k < 3; k++)
                assert_true(fabs(value_at(second.f.p, k) - of->after[n_steps - 1].parameter[k]) <
                            1e-13);
            end(&second);
            ls_grad_scaler_destroy(first.s);
            ls_optimizer_destroy(first.f.o);
            ls_tensor_destroy(first.f.p);
            ls_tensor_destroy(first.f.g);
        }
    }
}

static void a_state_that_makes_no_sense_is_refused_and_undone(void **state)
{
    static const double bad_scales[] = {0, -2, (double)NAN, (double)INFINITY, 1e300, 0.1};
    scaler_scene s = begin_with(0, LS_F32, NULL);
    int n = 0;
    const ls_named *items = ls_grad_scaler_state(s.s, &n);

    LS_UNUSED(state);
    assert_int_equal(n, 5);
    assert_string_equal(items[0].name, "grad_scaler.scale");
    for (size_t i = 0; i < LS_COUNT_OF(bad_scales); i++) {
        memcpy(items[0].bytes, &bad_scales[i], 8);
        assert_status(ls_grad_scaler_loaded(s.s), LS_EFORMAT);
        assert_last_error("grad_scaler.scale");
        assert_true(ls_grad_scaler_scale(s.s) == 65536);
        assert_ok(ls_grad_scaler_loaded(s.s));
    }
    for (int i = 1; i < n; i++) {
        memset(items[i].bytes, 0xFF, 8);
        assert_status(ls_grad_scaler_loaded(s.s), LS_EFORMAT);
        assert_last_error(items[i].name);
        assert_ok(ls_grad_scaler_loaded(s.s));
    }
    end(&s);
}

static void a_step_allocates_nothing(void **state)
{
    scaler_scene s = begin_with(1, LS_F32, NULL);
    uint64_t before;

    LS_UNUSED(state);
    before = count_allocations();
    for (int i = 0; i < 10; i++)
        run_step(&s, i, i % 3 == 0 ? 'n' : '.');
    assert_int_equal(count_allocations(), before);
    end(&s);
}

static void wrong_options_say_what_is_wrong(void **state)
{
    static const struct {
        ls_grad_scaler_options opt;
        const char *error;
    } cases[] = {
        {{.size = 1}, "options"},
        {{.size = sizeof(ls_grad_scaler_options), .init_scale = -1}, "init_scale is -1"},
        {{.size = sizeof(ls_grad_scaler_options), .init_scale = 1e39}, "init_scale"},
        {{.size = sizeof(ls_grad_scaler_options), .init_scale = (double)NAN}, "init_scale"},
        {{.size = sizeof(ls_grad_scaler_options), .growth_factor = 1}, "growth_factor is 1"},
        {{.size = sizeof(ls_grad_scaler_options), .growth_factor = (double)INFINITY},
         "growth_factor"},
        {{.size = sizeof(ls_grad_scaler_options), .backoff_factor = 1}, "backoff_factor is 1"},
        {{.size = sizeof(ls_grad_scaler_options), .backoff_factor = -0.5}, "backoff_factor"},
        {{.size = sizeof(ls_grad_scaler_options), .growth_interval = -1}, "growth_interval is -1"},
        {{.size = sizeof(ls_grad_scaler_options), .max_skipped = -1}, "max_skipped -1"},
    };
    scaler_scene s = begin_with(0, LS_F32, NULL);
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 1};
    ls_grad_scaler *none = NULL;
    ls_optimizer *empty = NULL;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        assert_status(ls_grad_scaler_create(s.f.o, &cases[i].opt, &none), LS_EINVAL);
        assert_last_error(cases[i].error);
    }
    assert_ok(ls_sgd_create(NULL, 0, grad_of, &sgd, &empty));
    assert_status(ls_grad_scaler_create(empty, NULL, &none), LS_EINVAL);
    assert_last_error("no parameters");
    ls_optimizer_destroy(empty);
    end(&s);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    scaler_scene s = begin_with(0, LS_F32, NULL);
    ls_grad_scaler *other = NULL;
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    do {
        ls_alloc_fail_at(++n);
        st = ls_grad_scaler_create(s.f.o, NULL, &other);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        assert_true(n < 100);
    } while (st != LS_OK);
    assert_true(n > 1);
    ls_grad_scaler_destroy(other);
    ls_grad_scaler_destroy(NULL);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_and_parameters_are_those_of_pytorch),
        cmocka_unit_test(defaults_are_those_of_pytorch),
        cmocka_unit_test(a_skipped_step_changes_neither_parameters_nor_the_optimizer),
        cmocka_unit_test(gradients_can_be_clipped_between_unscaling_and_the_step),
        cmocka_unit_test(calls_out_of_order_are_refused),
        cmocka_unit_test(a_parameter_without_gradient_is_left_alone),
        cmocka_unit_test(a_gradient_that_does_not_fit_changes_nothing),
        cmocka_unit_test(many_skipped_steps_in_a_row_are_an_error_with_advice),
        cmocka_unit_test(a_hundred_skipped_steps_are_too_many_by_default),
        cmocka_unit_test(a_loaded_state_continues_as_without_interruption),
        cmocka_unit_test(a_state_that_makes_no_sense_is_refused_and_undone),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(wrong_options_say_what_is_wrong),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
