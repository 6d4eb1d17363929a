/* SPDX-License-Identifier: Apache-2.0 */
/* test_print.c - the text of ls_tensor_print() is that of NumPy. */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

typedef struct print_case {
    ls_dtype type;
    int n_dims;
    int64_t dims[4];
    int has_values; /* else start, start + step, ... */
    double values[4];
    double start;
    double step;
    const char *text;
} print_case;

#include "print_cases.h"

static ls_tensor *tensor_of_case(ls_device *device, const print_case *c)
{
    ls_tensor *t = NULL;
    size_t count;
    size_t size;
    char *elements;

    assert_status(LS_OK, ls_tensor_create(device, c->type, c->n_dims, c->dims, &t));
    count = ls_tensor_count(t);
    size = ls_dtype_size(c->type);
    elements = ls_calloc(count + 1, size);
    assert_non_null(elements);
    for (size_t i = 0; i < count; i++)
        assert_status(LS_OK,
                      tensor_encode(c->has_values ? c->values[i] : c->start + c->step * (double)i,
                                    c->type, elements + i * size));
    assert_status(LS_OK, ls_tensor_write(t, elements, count));
    ls_free(elements);
    return t;
}

static void text_is_that_of_numpy(void **state)
{
    ls_device *device = open_reference();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(print_cases); i++) {
        ls_tensor *t = tensor_of_case(device, &print_cases[i]);
        text_buf text = {0};

        assert_status(LS_OK, tensor_append_elements(t, &text));
        if (strcmp(text_str(&text), print_cases[i].text) != 0)
            fail_msg("case %zu:\n%s\nNumPy has\n%s", i, text_str(&text), print_cases[i].text);
        text_free(&text);
        ls_tensor_destroy(t);
    }
    ls_device_close(device);
}

/* Each with the digits that tell it from its neighbours. */
static void bfloat16_has_the_rules_of_the_other_types(void **state)
{
    const print_case c = {.type = LS_BF16,
                          .n_dims = 1,
                          .dims = {4},
                          .has_values = 1,
                          .values = {0.1, 1.0 / 3, -2, (double)NAN}};
    ls_device *device = open_reference();
    ls_tensor *t = tensor_of_case(device, &c);
    text_buf text = {0};

    LS_UNUSED(state);
    assert_status(LS_OK, tensor_append_elements(t, &text));
    assert_string_equal(text_str(&text), "[ 0.1    0.334 -2.       nan]");
    text_free(&text);
    ls_tensor_destroy(t);
    ls_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_that_of_numpy),
        cmocka_unit_test(bfloat16_has_the_rules_of_the_other_types),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
