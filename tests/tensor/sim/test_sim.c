/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sim.c - the simulated stream device gives cpu_ref's bits for every operator, at every pace.
 */
#include "tensor/op_cases.h"

#include "tensor/testing.h"

#include <string.h>

static void assert_same_bits(const char *name, const op_results *got, const op_results *want)
{
    assert_int_equal(got->n, want->n);
    for (int i = 0; i < want->n; i++) {
        assert_int_equal(got->r[i].count, want->r[i].count);
        if (memcmp(got->r[i].values, want->r[i].values, want->r[i].count * sizeof(double)) != 0)
            fail_msg("%s: %s is not cpu_ref's", name, want->r[i].name);
    }
}

static void run_all_cases(ls_dtype type)
{
    const bool is_narrow = type == LS_BF16 || type == LS_F16;
    ls_device *reference = open_test_device("cpu_ref");
    ls_device *sim = open_test_device("sim");

    for (int i = 0; i < n_op_cases; i++) {
        op_results want;
        op_results got;

        if (op_case_is_large(&op_cases[i]) || (is_narrow && !op_case_mixes(&op_cases[i])))
            continue; // large: it would only show that cpu_ref is slow
        assert_status(LS_OK, op_case_run(reference, &op_cases[i], type, &want));
        assert_status(LS_OK, op_case_run(sim, &op_cases[i], type, &got));
        assert_same_bits(op_cases[i].name, &got, &want);
        op_results_free(&want);
        op_results_free(&got);
    }
    assert_status(LS_OK, ls_device_close(sim));
    assert_status(LS_OK, ls_device_close(reference));
}

static void every_operator_gives_the_bits_of_cpu_ref_in_float32(void **state)
{
    LS_UNUSED(state);
    run_all_cases(LS_F32);
}

static void every_operator_gives_the_bits_of_cpu_ref_in_float64(void **state)
{
    LS_UNUSED(state);
    run_all_cases(LS_F64);
}

static void every_operator_gives_the_bits_of_cpu_ref_in_16_bits(void **state)
{
    LS_UNUSED(state);
    run_all_cases(LS_BF16);
    run_all_cases(LS_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_gives_the_bits_of_cpu_ref_in_float32),
        cmocka_unit_test(every_operator_gives_the_bits_of_cpu_ref_in_float64),
        cmocka_unit_test(every_operator_gives_the_bits_of_cpu_ref_in_16_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
