/* SPDX-License-Identifier: Apache-2.0 */
/* test_test_flip.c - the test hook of tensor/test_flip.h flips what it says, and no more. */
#include "base/unit.h"

#include "tensor/test_flip.h"

#include <stdlib.h>

enum { RESULTS = 6, ELEMENTS = 5 };

typedef struct step {
    ls_device *device;
    ls_tensor *results[RESULTS];
} step;

static void open_step(const char *flip, step *s)
{
    const int64_t n = ELEMENTS;
    const ls_device_options opt = {.size = sizeof(opt), .name = "cpu_ref"};

    if (flip != NULL)
        (void)setenv("LOCKSTEP_TEST_FLIP", flip, 1);
    assert_ok(ls_device_open(&opt, &s->device));
    (void)unsetenv("LOCKSTEP_TEST_FLIP");
    for (int i = 0; i < RESULTS; i++)
        assert_ok(ls_tensor_create(s->device, LS_F32, 1, &n, &s->results[i]));
}

static void close_step(step *s)
{
    for (int i = 0; i < RESULTS; i++)
        ls_tensor_destroy(s->results[i]);
    assert_ok(ls_device_close(s->device));
}

/* The bits that a step with these results, all 0, has flipped; *element: the last such word. */
static int run_step(step *s, op_kind op, uint32_t *element)
{
    int n_bits = 0;

    for (int i = 0; i < RESULTS; i++) {
        const op_call call = {.op = op, .n_out = 1, .out = {s->results[i]}};
        uint32_t bits[ELEMENTS];

        assert_ok(ls_tensor_fill(s->results[i], 0));
        if (s->device->flip != NULL)
            test_flip_results(s->device->flip, &call, 1);
        assert_ok(ls_tensor_read(s->results[i], bits, ELEMENTS));
        for (int k = 0; k < ELEMENTS; k++) {
            n_bits += __builtin_popcount(bits[k]);
            *element = bits[k] != 0 ? bits[k] : *element;
        }
    }
    if (s->device->flip != NULL)
        test_flip_results(s->device->flip, &(op_call){.op = OP_SGD}, 1);
    return n_bits;
}

static void a_device_without_the_variable_has_no_hook(void **state)
{
    step s;

    LS_UNUSED(state);
    open_step(NULL, &s);
    assert_null(s.device->flip);
    close_step(&s);
}

static void one_bit_is_flipped_in_each_step_of_the_range(void **state)
{
    static const struct {
        const char *flip;
        op_kind op;
        int bits[5];
    } cases[] = {
        {"weights", OP_LINEAR_BACKWARD_WEIGHTS, {1, 1, 1, 1, 1}},
        {"weights:2:4:5", OP_CONV2D_BACKWARD_WEIGHTS, {0, 1, 1, 1, 0}},
        {"weights", OP_LINEAR, {0, 0, 0, 0, 0}},
        {"products:3", OP_LINEAR, {0, 0, 1, 1, 1}},
        {"products", OP_MATMUL, {1, 1, 1, 1, 1}},
        {"products", OP_RELU, {0, 0, 0, 0, 0}},
        {"always:2:3", OP_LINEAR_BACKWARD_WEIGHTS, {0, RESULTS, RESULTS, 0, 0}},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        uint32_t element = 0;
        uint32_t first = 0;
        step s;

        open_step(cases[i].flip, &s);
        for (int k = 0; k < 5; k++) {
            assert_int_equal(run_step(&s, cases[i].op, &element), cases[i].bits[k]);
            first = first != 0 ? first : element;
            if (cases[i].flip[0] == 'a')
                assert_int_equal(element, first);
        }
        close_step(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_without_the_variable_has_no_hook),
        cmocka_unit_test(one_bit_is_flipped_in_each_step_of_the_range),
    };

    return cmocka_run_group_tests_name("test_flip", tests, NULL, NULL);
}
