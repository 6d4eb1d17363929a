/* SPDX-License-Identifier: Apache-2.0 */
/* test_check_nan.c - ls_tape_check_nan(): the first operator with a result that is not finite. */
#include "tensor/testing.h"

#include "autograd/autograd.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *x; /* (1,2): 2 3 */
    ls_tensor *w; /* (1,2): 5 7, a leaf */
} bench;

static bench setup(void)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    s.x = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 2}, (double[]){2, 3});
    s.w = tensor_of(s.device, LS_F32, 2, (int64_t[]){1, 2}, (double[]){5, 7});
    assert_status(LS_OK, ls_require_grad(s.w));
    ls_tape_check_nan(s.tape, 1);
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    destroy_all((ls_tensor *[]){s->x, s->w}, 2);
    assert_status(LS_OK, ls_device_close(s->device));
}

static void write(ls_tensor *t, float first, float second)
{
    assert_status(LS_OK, ls_tensor_write(t, (float[]){first, second}, 2));
}

static void the_operator_and_the_element_are_named(void **state)
{
    bench s = setup();

    LS_UNUSED(state);
    write(s.w, 1e38F, -1e38F);
    assert_null(ls_relu(s.tape, ls_mul(s.tape, s.w, ls_add(s.tape, s.x, s.x))));
    assert_status(LS_EFORMAT, ls_tape_status(s.tape));
    assert_string_equal(ls_last_error(), "mul of (1, 2), (1, 2): the result (1, 2) float32 has inf "
                                         "at element 0; the inputs are finite");
    teardown(&s);
}

static void inputs_that_are_not_finite_are_named(void **state)
{
    bench s = setup();

    LS_UNUSED(state);
    write(s.x, 1, NAN);
    assert_null(ls_linear(s.tape, s.x, s.w, NULL));
    assert_status(LS_EFORMAT, ls_tape_status(s.tape));
    assert_string_equal(ls_last_error(),
                        "linear of (1, 2), (1, 2), nothing: the result (1, 1) float32 has nan at "
                        "element 0; input has nan at element 1");
    ls_tape_reset(s.tape);
    // not an input of any operator with such a result
    assert_non_null(ls_slice(s.tape, s.x, 1, 0, 1));
    ls_tape_check_nan(s.tape, 0);
    assert_non_null(ls_linear(s.tape, s.x, s.w, NULL));
    ls_tape_check_nan(NULL, 1);
    teardown(&s);
}

static void every_floating_type_is_checked(void **state)
{
    const ls_dtype types[] = {LS_BF16, LS_F16};
    bench s = setup();
    ls_tensor *wide = tensor_of(s.device, LS_F64, 1, (int64_t[]){2}, (double[]){1e200, -1e200});

    LS_UNUSED(state);
    assert_null(ls_mul(s.tape, wide, wide));
    assert_status(LS_EFORMAT, ls_tape_status(s.tape));
    assert_error("the result (2) float64 has inf at element 0");
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        ls_tape_reset(s.tape);
        assert_status(LS_OK, ls_tape_set_compute(s.tape, types[i]));
        write(s.x, 1, 1e38F);
        assert_non_null(ls_cast(s.tape, s.w, types[i]));
        if (types[i] == LS_F16)
            assert_null(ls_cast(s.tape, s.x, types[i]));
        else
            assert_null(
                ls_mul(s.tape, ls_cast(s.tape, s.x, types[i]), ls_cast(s.tape, s.x, types[i])));
        assert_status(LS_EFORMAT, ls_tape_status(s.tape));
        assert_error("has inf at element 1");
    }
    ls_tensor_destroy(wide);
    teardown(&s);
}

static void the_backward_that_overflows_is_named(void **state)
{
    bench s = setup();
    ls_tensor *y;

    LS_UNUSED(state);
    y = ls_linear(s.tape, ls_mul(s.tape, s.w, s.x), s.x, NULL);
    assert_status(LS_EFORMAT, ls_backward(s.tape, y, 1e38));
    assert_string_equal(ls_last_error(),
                        "mul backward: the gradient of a (1, 2) float32 has inf at element 0");
    ls_tape_reset(s.tape);
    ls_zero_grad(s.w);
    (void)autograd_enter(s.tape, "decoder.fc");
    y = ls_linear(s.tape, s.x, s.w, NULL);
    (void)autograd_enter(s.tape, NULL);
    assert_status(LS_EFORMAT, ls_backward(s.tape, ls_add(s.tape, y, y), 1e38));
    assert_error("decoder.fc: linear backward: the gradient of weight (1, 2) float32 has inf");
    teardown(&s);
}

/* The scaler of gradients needs to see the overflow. */
/* As an all-reduce does in another thread. */
static ls_status overwrite(void *arg, ls_tensor *leaf)
{
    int *n_calls = arg;

    ++*n_calls;
    write(ls_grad(leaf), NAN, NAN);
    return LS_OK;
}

static void a_gradient_is_checked_before_it_is_handed_over(void **state)
{
    bench s = setup();
    int n_calls = 0;

    LS_UNUSED(state);
    ls_tape_on_grad_ready(s.tape, overwrite, &n_calls);
    assert_status(LS_OK, ls_backward(s.tape, ls_linear(s.tape, s.x, s.w, NULL), 1));
    assert_int_equal(n_calls, 1);
    ls_tape_reset(s.tape);
    ls_zero_grad(s.w);
    assert_status(LS_EFORMAT, ls_backward(s.tape, ls_linear(s.tape, s.x, s.w, NULL), 2e38));
    assert_error("linear backward: the gradient of weight (1, 2) float32 has inf");
    assert_int_equal(n_calls, 1);
    teardown(&s);
}

static void gradients_of_float16_are_not_checked(void **state)
{
    bench s = setup();
    ls_tensor *y;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tape_set_compute(s.tape, LS_F16));
    y = ls_cast(s.tape, ls_linear(s.tape, s.x, s.w, NULL), LS_F32);
    assert_status(LS_OK, ls_backward(s.tape, y, 1e30));
    assert_true(isinf(element_of(ls_grad(s.w), 0)));
    teardown(&s);
}

static void bits_do_not_depend_on_the_check(void **state)
{
    double gradients[2][2];
    bench s = setup();

    LS_UNUSED(state);
    for (int on = 0; on < 2; on++) {
        ls_tape_reset(s.tape);
        ls_zero_grad(s.w);
        ls_tape_check_nan(s.tape, on);
        assert_status(
            LS_OK,
            ls_backward(s.tape, ls_linear(s.tape, ls_softmax(s.tape, s.w, 0.3), s.x, NULL), 0.7));
        for (size_t i = 0; i < 2; i++)
            gradients[on][i] = element_of(ls_grad(s.w), i);
    }
    assert_memory_equal(gradients[0], gradients[1], sizeof(gradients[0]));
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_operator_and_the_element_are_named),
        cmocka_unit_test(inputs_that_are_not_finite_are_named),
        cmocka_unit_test(every_floating_type_is_checked),
        cmocka_unit_test(the_backward_that_overflows_is_named),
        cmocka_unit_test(a_gradient_is_checked_before_it_is_handed_over),
        cmocka_unit_test(gradients_of_float16_are_not_checked),
        cmocka_unit_test(bits_do_not_depend_on_the_check),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
