/* SPDX-License-Identifier: Apache-2.0 */
#include "base/unit.h"

#include "base/half.h"
#include "cli/bench.h"

#include <stdlib.h>

#define COUNT 301

/* One element as a number. */
static double value_of(const void *buffer, size_t i, ls_dtype type)
{
    switch (type) {
    case LS_I8:
        return ((const int8_t *)buffer)[i];
    case LS_U8:
        return ((const uint8_t *)buffer)[i];
    case LS_I32:
        return ((const int32_t *)buffer)[i];
    case LS_I64:
        return (double)((const int64_t *)buffer)[i];
    case LS_F16:
        return (double)ls_f16_to_f32(((const uint16_t *)buffer)[i]);
    case LS_BF16:
        return (double)ls_bf16_to_f32(((const uint16_t *)buffer)[i]);
    case LS_F32:
        return (double)((const float *)buffer)[i];
    case LS_F64:
        return ((const double *)buffer)[i];
    }
    return -1;
}

static void names_lead_there_and_back(void **state)
{
    LS_UNUSED(state);
    for (int t = 0; t < LS_DTYPE_COUNT; t++)
        assert_int_equal(bench_type(bench_type_name((ls_dtype)t)), t);
    for (int op = 0; op < LS_REDUCE_OP_COUNT; op++)
        assert_int_equal(bench_redop(bench_redop_name((ls_reduce_op)op)), op);
    assert_int_equal(bench_type("float"), LS_F32);
    assert_int_equal(bench_type("half"), LS_F16);
    assert_int_equal(bench_type("fp8"), -1);
    assert_int_equal(bench_redop("all"), -1);
}

/* The inputs of one rank alone are their own reduction; those of others are not. */
static void inputs_are_small_whole_numbers_and_differ(void **state)
{
    static int64_t a[COUNT], b[COUNT];

    LS_UNUSED(state);
    for (int t = 0; t < LS_DTYPE_COUNT; t++) {
        bench_fill(a, COUNT, (ls_dtype)t, LS_SUM, 0);
        bench_fill(b, COUNT, (ls_dtype)t, LS_SUM, 1);
        for (size_t i = 0; i < COUNT; i++) {
            const double v = value_of(a, i, (ls_dtype)t);
            assert_true(v == (double)(int)v && v >= 0 && v < 5);
        }
        assert_int_equal(bench_count_wrong(a, COUNT, (ls_dtype)t, LS_SUM, 1), 0);
        assert_true(bench_count_wrong(b, COUNT, (ls_dtype)t, LS_SUM, 1) > COUNT / 2);
    }
}

/* The sum over 3 ranks, made here in the plainest way, is what is expected; each changed element is counted. */
static void every_changed_element_is_counted(void **state)
{
    static float sum[COUNT], one[COUNT];

    LS_UNUSED(state);
    memset(sum, 0, sizeof(sum));
    for (int r = 0; r < 3; r++) {
        bench_fill(one, COUNT, LS_F32, LS_SUM, r);
        for (size_t i = 0; i < COUNT; i++)
            sum[i] += one[i];
    }
    assert_int_equal(bench_count_wrong(sum, COUNT, LS_F32, LS_SUM, 3), 0);
    for (size_t i = 0; i < COUNT; i++)
        one[i] = sum[i] / 3.0F;
    assert_int_equal(bench_count_wrong(one, COUNT, LS_F32, LS_AVG, 3), 0);
    sum[0] += 1;
    sum[COUNT - 1] = -0.0F;
    assert_int_equal(bench_count_wrong(sum, COUNT, LS_F32, LS_SUM, 3), 2);
}

static void products_and_extremes_are_exact(void **state)
{
    static float product[COUNT], least[COUNT], most[COUNT], one[COUNT];

    LS_UNUSED(state);
    for (int r = 0; r < 8; r++) {
        bench_fill(one, COUNT, LS_F32, LS_PROD, r);
        for (size_t i = 0; i < COUNT; i++)
            product[i] = r == 0 ? one[i] : product[i] * one[i];
        bench_fill(one, COUNT, LS_F32, LS_MIN, r);
        for (size_t i = 0; i < COUNT; i++)
            least[i] = r == 0 || one[i] < least[i] ? one[i] : least[i];
        bench_fill(one, COUNT, LS_F32, LS_MAX, r);
        for (size_t i = 0; i < COUNT; i++)
            most[i] = r == 0 || one[i] > most[i] ? one[i] : most[i];
    }
    assert_int_equal(bench_count_wrong(product, COUNT, LS_F32, LS_PROD, 8), 0);
    assert_int_equal(bench_count_wrong(least, COUNT, LS_F32, LS_MIN, 8), 0);
    assert_int_equal(bench_count_wrong(most, COUNT, LS_F32, LS_MAX, 8), 0);
}

static void averages_are_for_floating_types(void **state)
{
    LS_UNUSED(state);
    assert_false(bench_is_defined(LS_I8, LS_AVG) || bench_is_defined(LS_U8, LS_AVG));
    assert_false(bench_is_defined(LS_I32, LS_AVG) || bench_is_defined(LS_I64, LS_AVG));
    assert_true(bench_is_defined(LS_F16, LS_AVG) && bench_is_defined(LS_BF16, LS_AVG));
    assert_true(bench_is_defined(LS_F32, LS_AVG) && bench_is_defined(LS_F64, LS_AVG));
    assert_true(bench_is_defined(LS_I8, LS_SUM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_lead_there_and_back),
        cmocka_unit_test(inputs_are_small_whole_numbers_and_differ),
        cmocka_unit_test(every_changed_element_is_counted),
        cmocka_unit_test(products_and_extremes_are_exact),
        cmocka_unit_test(averages_are_for_floating_types),
    };

    return cmocka_run_group_tests_name("bench data", tests, NULL, NULL);
}
