/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_plans.c - cuDNN has plans for convolutions with unusual sizes on an sm_90, all within
 * the limits: planned for a profile of the card, so that no GPU is needed. With --all every
 * candidate. network_plans.c plans the graphs of networks.
 */
#include "tensor/testing.h"

#include <stdio.h>
#include <string.h>

#ifdef HAS_CUDNN
#include "tensor/cuda/planning.h"
#include "tensor/devices/cuda/dnn/conv_graph.h"

#include "base/alloc.h"

static bool plans_all;

/* --- shapes --- */

typedef struct shape {
    int64_t n;
    int64_t c;
    int64_t size[2]; /* height and width */
    int64_t outputs;
    int kernel[2];
    int stride[2];
    int padding[2];
    int dilation[2];
    int groups;
    bool has_bias;
} shape;

/* clang-format off */
static const shape shapes[] = {
    /* the ConvNet */
    {100, 1, {28, 28}, 16, {5, 5}, {1, 1}, {2, 2}, {1, 1}, 1, true},
    {100, 16, {14, 14}, 32, {5, 5}, {1, 1}, {2, 2}, {1, 1}, 1, true},
    /* one pixel; outputs that meet no pixel */
    {1, 1, {1, 1}, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, false},
    {8, 16, {1, 1}, 16, {1, 1}, {4, 4}, {2, 2}, {1, 1}, 1, true},
    /* groups */
    {2, 6, {5, 5}, 4, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2, true},
    {2, 128, {7, 6}, 128, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 32, false},
    {2, 8, {6, 7}, 8, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 8, true},
    {1, 3, {6, 7}, 9, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 3, true},
    /* unlike sides, strides and dilations */
    {2, 3, {8, 11}, 4, {3, 5}, {2, 1}, {1, 2}, {1, 1}, 1, true},
    {2, 3, {9, 10}, 5, {3, 3}, {1, 1}, {2, 1}, {2, 3}, 1, true},
    {1, 16, {13, 12}, 16, {3, 3}, {2, 3}, {2, 2}, {2, 2}, 1, false},
    /* channels that are no multiple of 8 */
    {3, 17, {5, 3}, 33, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, true},
};
/* clang-format on */

/* --- planning --- */

static convolution convolution_for(const shape *s, ls_dtype type)
{
    const int64_t x[4] = {s->n, s->c, s->size[0], s->size[1]};
    const int64_t w[4] = {s->outputs, s->c / s->groups, s->kernel[0], s->kernel[1]};
    int64_t y[4] = {s->n, s->outputs, 0, 0};
    op_attrs attrs = {.groups = s->groups};

    for (int i = 0; i < 2; i++) {
        attrs.stride[i] = s->stride[i];
        attrs.padding[i] = s->padding[i];
        attrs.dilation[i] = s->dilation[i];
        y[2 + i] = (s->size[i] + 2 * s->padding[i] - s->dilation[i] * (s->kernel[i] - 1) - 1) /
                       s->stride[i] +
                   1;
    }
    return convolution_of(type, x, w, y, &attrs);
}

static dnn_planner *open_sm90(void)
{
    dnn_planner *p = NULL;

    assert_status(LS_OK, open_profile(90, &p));
    return p;
}

/* The number of plans; 0 with a line on the missing one. */
static int count_plans(dnn_planner *p, const dnn_graph *g, const dnn_limits *limits)
{
    dnn_plan *plans[8];
    int n = 0;

    if (dnn_plans_create(p, g, limits, plans_all ? 8 : 1, plans, &n) != LS_OK)
        print_error("%s%s\n", ls_last_error(), limits->deterministic ? " (deterministic)" : "");
    for (int i = 0; i < n; i++) {
        assert_true(dnn_plan_workspace_bytes(plans[i]) <= limits->workspace_bytes);
        dnn_plan_destroy(plans[i]);
    }
    return n;
}

/* The graphs of all shapes that have no plan. */
static int count_missing(ls_dtype type, const dnn_limits *limits)
{
    dnn_planner *p = open_sm90();
    int missing = 0;

    for (size_t i = 0; i < LS_COUNT_OF(shapes); i++) {
        const convolution c = convolution_for(&shapes[i], type);

        for (int op = DNN_CONV; op <= DNN_CONV_WEIGHTS; op++) {
            const bool has_bias = op == DNN_CONV && shapes[i].has_bias;
            const dnn_graph g = convolution_graph(&c, (dnn_op)op, has_bias);

            missing += count_plans(p, &g, limits) == 0;
        }
    }
    dnn_planner_close(p);
    return missing;
}

static void check_type(ls_dtype type)
{
    const dnn_limits usual = {.workspace_bytes = WORKSPACE_BYTES};
    const dnn_limits same_bits = {.deterministic = true, .workspace_bytes = WORKSPACE_BYTES};
    const dnn_limits tf32 = {.tf32 = true, .workspace_bytes = WORKSPACE_BYTES};

    assert_int_equal(count_missing(type, &usual), 0);
    assert_int_equal(count_missing(type, &same_bits), 0);
    if (type == LS_F32)
        assert_int_equal(count_missing(type, &tf32), 0);
}

static void float32_convolutions_have_plans(void **state)
{
    LS_UNUSED(state);
    check_type(LS_F32);
}

static void bfloat16_convolutions_have_plans(void **state)
{
    LS_UNUSED(state);
    check_type(LS_BF16);
}

static void float16_convolutions_have_plans(void **state)
{
    LS_UNUSED(state);
    check_type(LS_F16);
}

static void float64_convolutions_have_plans(void **state)
{
    LS_UNUSED(state);
    check_type(LS_F64);
}

static dnn_graph first_graph(ls_dtype type)
{
    const convolution c = convolution_for(&shapes[1], type);

    return convolution_graph(&c, DNN_CONV, false);
}

static void a_convolution_without_tf32_has_other_plans(void **state)
{
    dnn_planner *p = open_sm90();
    const dnn_graph g = first_graph(LS_F32);
    dnn_plan *exact = NULL;
    dnn_plan *rounded = NULL;
    char *texts[2];
    size_t bytes[2];
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, dnn_plans_create(p, &g, &(dnn_limits){.workspace_bytes = WORKSPACE_BYTES},
                                          1, &exact, &n));
    assert_status(LS_OK, dnn_plans_create(
                             p, &g, &(dnn_limits){.tf32 = true, .workspace_bytes = WORKSPACE_BYTES},
                             1, &rounded, &n));
    assert_status(LS_OK, dnn_plan_save(exact, &texts[0], &bytes[0]));
    assert_status(LS_OK, dnn_plan_save(rounded, &texts[1], &bytes[1]));
    assert_true(bytes[0] != bytes[1] || memcmp(texts[0], texts[1], bytes[0]) != 0);
    ls_free(texts[0]);
    ls_free(texts[1]);
    dnn_plan_destroy(exact);
    dnn_plan_destroy(rounded);
    dnn_planner_close(p);
}

static void a_plan_is_read_from_its_text(void **state)
{
    dnn_planner *p = open_sm90();
    const dnn_graph g = first_graph(LS_BF16);
    dnn_plan *plan = NULL;
    dnn_plan *copy = NULL;
    char *text;
    size_t bytes;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, dnn_plans_create(p, &g, &(dnn_limits){.workspace_bytes = WORKSPACE_BYTES},
                                          1, &plan, &n));
    assert_status(LS_OK, dnn_plan_save(plan, &text, &bytes));
    assert_status(LS_OK, dnn_plan_load(p, &g, text, bytes, &copy));
    assert_int_equal(dnn_plan_workspace_bytes(plan), dnn_plan_workspace_bytes(copy));
    dnn_plan_destroy(copy);
    for (size_t shorter = 0; shorter < bytes; shorter += bytes / 7 + 1)
        assert_int_not_equal(dnn_plan_load(p, &g, text, shorter, &copy), LS_OK);
    ls_free(text);
    dnn_plan_destroy(plan);
    dnn_planner_close(p);
}

static void a_graph_without_plan_is_named(void **state)
{
    dnn_planner *p = open_sm90();
    const dnn_graph g = first_graph(LS_BF16);
    const dnn_limits no_plan = {.workspace_bytes = 0};
    dnn_graph empty = g;
    dnn_plan *plans[1];
    int n;

    LS_UNUSED(state);
    empty.tensors[CONV_X].dims[0] = 0;
    assert_status(LS_EUNSUPPORTED, dnn_plans_create(p, &empty, &no_plan, 1, plans, &n));
    assert_non_null(strstr(ls_last_error(), "cuDNN has no plan for convolution (0,16,"));
    assert_int_equal(n, 0);
    dnn_planner_close(p);
}

static void a_damaged_profile_is_an_error(void **state)
{
    dnn_planner *p = NULL;

    LS_UNUSED(state);
    assert_int_not_equal(dnn_planner_open_profile("{\"deviceVer\": ", 14, &p), LS_OK);
    assert_non_null(strstr(ls_last_error(), "cuDNN could not read the profile of a card"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_convolutions_have_plans),
        cmocka_unit_test(bfloat16_convolutions_have_plans),
        cmocka_unit_test(float16_convolutions_have_plans),
        cmocka_unit_test(float64_convolutions_have_plans),
        cmocka_unit_test(a_convolution_without_tf32_has_other_plans),
        cmocka_unit_test(a_plan_is_read_from_its_text),
        cmocka_unit_test(a_graph_without_plan_is_named),
        cmocka_unit_test(a_damaged_profile_is_an_error),
    };

    plans_all = argc == 2 && strcmp(argv[1], "--all") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    (void)printf("skipped: no CUDA toolkit\n");
    return 77;
}
#endif
