/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_grad_check_images.c - backward of convolutions, batch norms and pools against differences.
 */
#include "autograd/grad_check.h"

/* --- conv2d --- */

static ls_tensor *conv(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_conv2d(tape, in[0], in[1], c->n_inputs > 2 ? in[2] : NULL, &c->conv);
}

static void conv2d_has_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"3x3",
         conv,
         3,
         3,
         {{4, {2, 2, 5, 6}}, {4, {3, 2, 3, 3}}, {1, {3}}},
         .conv = {.groups = 1}},
        {"5x5 padding 2",
         conv,
         3,
         3,
         {{4, {1, 1, 6, 5}}, {4, {2, 1, 5, 5}}, {1, {2}}},
         .conv = {.padding = {2, 2}}},
        {"stride 2 on odd sizes",
         conv,
         2,
         2,
         {{4, {3, 2, 5, 7}}, {4, {2, 2, 3, 3}}},
         .conv = {.stride = {2, 2}, .padding = {1, 1}}},
        {"unlike sides",
         conv,
         3,
         3,
         {{4, {1, 2, 6, 7}}, {4, {3, 2, 2, 3}}, {1, {3}}},
         .conv = {.stride = {2, 1}, .padding = {0, 2}}},
        {"dilation",
         conv,
         3,
         3,
         {{4, {2, 1, 7, 6}}, {4, {2, 1, 3, 2}}, {1, {2}}},
         .conv = {.padding = {2, 1}, .dilation = {2, 3}}},
        {"2 groups",
         conv,
         3,
         3,
         {{4, {2, 4, 4, 4}}, {4, {6, 2, 3, 3}}, {1, {6}}},
         .conv = {.padding = {1, 1}, .groups = 2}},
        {"depthwise",
         conv,
         3,
         3,
         {{4, {1, 3, 4, 5}}, {4, {3, 1, 3, 3}}, {1, {3}}},
         .conv = {.stride = {2, 2}, .padding = {1, 1}, .groups = 3}},
        {"skipping pixels",
         conv,
         2,
         2,
         {{4, {1, 2, 8, 7}}, {4, {2, 2, 2, 2}}},
         .conv = {.stride = {3, 4}}},
        {"1x1",
         conv,
         3,
         3,
         {{4, {3, 3, 2, 2}}, {4, {2, 3, 1, 1}}, {1, {2}}},
         .conv = {.groups = 1}},
        {"no rows",
         conv,
         3,
         3,
         {{4, {0, 2, 4, 4}}, {4, {3, 2, 3, 3}}, {1, {3}}},
         .conv = {.groups = 1}},
        {"only the image",
         conv,
         1,
         3,
         {{4, {1, 2, 4, 4}}, {4, {3, 2, 3, 3}}, {1, {3}}},
         .conv = {.groups = 1}},
    };
    const check_case no_bias_gradient = {"without a gradient for the bias",
                                         conv,
                                         2,
                                         3,
                                         {{4, {1, 2, 4, 4}}, {4, {3, 2, 3, 3}}, {1, {3}}},
                                         .conv = {.groups = 1}};

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
    check(&no_bias_gradient);
}

static ls_tensor *conv1d(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    const ls_conv1d_params params = {.stride = c->conv.stride[1],
                                     .padding = c->conv.padding[1],
                                     .dilation = c->conv.dilation[1],
                                     .groups = c->conv.groups};

    return ls_conv1d(tape, in[0], in[1], c->n_inputs > 2 ? in[2] : NULL, &params);
}

static void conv1d_has_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"3 taps", conv1d, 3, 3, {{3, {2, 2, 6}}, {3, {3, 2, 3}}, {1, {3}}}, .conv = {.groups = 1}},
        {"5 taps padding 2",
         conv1d,
         2,
         2,
         {{3, {2, 3, 4}}, {3, {2, 3, 5}}},
         .conv = {.padding = {0, 2}}},
        {"stride and dilation in 2 groups",
         conv1d,
         3,
         3,
         {{3, {2, 4, 9}}, {3, {2, 2, 3}}, {1, {2}}},
         .conv = {.stride = {0, 2}, .padding = {0, 1}, .dilation = {0, 2}, .groups = 2}},
        {"one position", conv1d, 3, 3, {{3, {1, 2, 1}}, {3, {3, 2, 1}}, {1, {3}}}, .norm = {0}},
        {"no rows", conv1d, 3, 3, {{3, {0, 2, 4}}, {3, {3, 2, 3}}, {1, {3}}}, .norm = {0}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

/* The kernel of the pool is the output padding. */
static ls_tensor *conv_transpose(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    const ls_conv2d_params *p = &c->conv;
    ls_tensor *bias = c->n_inputs > 2 ? in[2] : NULL;

    if (c->in[0].n_dims == 3)
        return ls_conv_transpose1d(tape, in[0], in[1], bias,
                                   &(ls_conv_transpose1d_params){p->stride[1], p->padding[1],
                                                                 c->pool.kernel[1], p->dilation[1],
                                                                 p->groups});
    return ls_conv_transpose2d(tape, in[0], in[1], bias,
                               &(ls_conv_transpose2d_params){{p->stride[0], p->stride[1]},
                                                             {p->padding[0], p->padding[1]},
                                                             {c->pool.kernel[0], c->pool.kernel[1]},
                                                             {p->dilation[0], p->dilation[1]},
                                                             p->groups});
}

static void conv_transpose_has_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"2x3",
         conv_transpose,
         3,
         3,
         {{4, {2, 2, 3, 4}}, {4, {2, 3, 2, 3}}, {1, {3}}},
         .conv = {.groups = 1}},
        {"stride, padding and output padding",
         conv_transpose,
         3,
         3,
         {{4, {2, 2, 3, 2}}, {4, {2, 1, 3, 3}}, {1, {1}}},
         .conv = {.stride = {2, 3}, .padding = {1, 0}},
         .pool = {.kernel = {1, 2}}},
        {"dilation in 2 groups",
         conv_transpose,
         3,
         3,
         {{4, {1, 4, 3, 2}}, {4, {4, 3, 2, 2}}, {1, {6}}},
         .conv = {.dilation = {2, 1}, .groups = 2}},
        {"output padding of the dilation",
         conv_transpose,
         2,
         2,
         {{4, {1, 2, 3, 2}}, {4, {2, 1, 2, 3}}},
         .conv = {.stride = {2, 1}, .padding = {1, 2}, .dilation = {5, 2}},
         .pool = {.kernel = {4, 1}}},
        {"sequences",
         conv_transpose,
         3,
         3,
         {{3, {2, 3, 4}}, {3, {3, 2, 3}}, {1, {2}}},
         .conv = {.stride = {0, 2}, .padding = {0, 1}},
         .pool = {.kernel = {0, 1}}},
        {"no sequences",
         conv_transpose,
         3,
         3,
         {{3, {0, 3, 4}}, {3, {3, 2, 3}}, {1, {2}}},
         .norm = {0}},
        {"only the weight",
         conv_transpose,
         2,
         3,
         {{3, {1, 2, 1}}, {3, {2, 2, 3}}, {1, {2}}},
         .norm = {0}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

/* --- batch norm --- */

static ls_tensor *norm(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_batch_norm(tape, in[0], in[1], in[2], in[3], in[4], &c->norm);
}

static ls_tensor *norm_relu(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_bn_relu(tape, in[0], in[1], in[2], in[3], in[4], &c->norm);
}

static ls_tensor *norm_add(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_bn_add(tape, in[0], in[1], in[2], in[3], in[4], in[5], &c->norm);
}

static ls_tensor *norm_add_constant(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_bn_add(tape, in[0], in[5], in[1], in[2], in[3], in[4], &c->norm);
}

static ls_tensor *norm_of_constant_add(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_bn_add(tape, in[1], in[0], in[2], in[3], in[4], in[5], &c->norm);
}

/* Its own input is added, and two operators read the result. */
static ls_tensor *norm_add_itself(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_tensor *y = ls_bn_add(tape, in[0], in[0], in[1], in[2], in[3], in[4], &c->norm);

    return ls_bn_add(tape, ls_mul(tape, y, in[0]), y, in[1], in[2], in[3], in[4], &c->norm);
}

/* The values of other ranks in a shared batch, three per channel: they count in the statistics;
 * their loss is 0. */
static bool is_backward;

static double of_other_ranks(size_t i, size_t n)
{
    if (i == 0)
        return 3;
    if (is_backward)
        return 0;
    return i <= n / 2 ? 0.5 : 2.25;
}

static ls_status add_other_ranks(void *arg, double *values, size_t n)
{
    LS_UNUSED(arg);
    return sums_change(values, n, 1, of_other_ranks);
}

/* After forward the next sum is that of backward. */
static ls_tensor *shared_norm(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_batch_norm_params params = c->norm;
    ls_tensor *y;

    params.sync.sum = add_other_ranks;
    is_backward = false;
    y = ls_batch_norm(tape, in[0], in[1], in[2], in[3], in[4], &params);
    is_backward = true;
    return y;
}

#define CHANNELS(c)                                                                                \
    {1, {c}}, {1, {c}}, {1, {c}},                                                                  \
    {                                                                                              \
        1,                                                                                         \
        {                                                                                          \
            c                                                                                      \
        }                                                                                          \
    }

static void batch_norm_has_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"images", norm, 3, 5, {{4, {3, 2, 3, 5}}, CHANNELS(2)}, .norm = {.momentum = 0.2}},
        {"one image", norm, 3, 5, {{4, {1, 3, 2, 3}}, CHANNELS(3)}, .norm = {.eps = 1e-2}},
        {"rows", norm, 3, 5, {{2, {7, 3}}, CHANNELS(3)}, .norm = {.momentum = 0.2}},
        {"sequences", norm, 3, 5, {{3, {2, 3, 5}}, CHANNELS(3)}, .norm = {.momentum = 0.2}},
        {"sequences with relu", norm_relu, 3, 5, {{3, {3, 2, 4}}, CHANNELS(2)}, .norm = {.eps = 1}},
        {"shared images",
         shared_norm,
         3,
         5,
         {{4, {2, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.eps = 1e-3}},
        {"a shared row", shared_norm, 3, 5, {{2, {1, 3}}, CHANNELS(3)}, .norm = {.relu = 1}},
        {"no rows of many",
         shared_norm,
         3,
         5,
         {{4, {0, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.eps = 1e-3}},
        {"images with relu",
         norm_relu,
         3,
         5,
         {{4, {2, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.eps = 1e-3}},
        {"rows with relu", norm_relu, 3, 5, {{2, {5, 2}}, CHANNELS(2)}, .norm = {.momentum = 1}},
        {"no rows", norm_relu, 3, 5, {{4, {0, 3, 3, 4}}, CHANNELS(3)}, .norm = {.momentum = 0.2}},
        {"a sum", norm_add, 4, 6, {{2, {5, 2}}, {2, {5, 2}}, CHANNELS(2)}, .norm = {.eps = 1e-2}},
        {"a sum with relu",
         norm_add,
         4,
         6,
         {{4, {2, 3, 3, 4}}, {4, {2, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.eps = 1e-3, .relu = 1}},
        {"a sum of sequences with relu",
         norm_add,
         4,
         6,
         {{3, {3, 2, 4}}, {3, {3, 2, 4}}, CHANNELS(2)},
         .norm = {.eps = 1, .relu = 1}},
        {"a sum of no rows with relu",
         norm_add,
         4,
         6,
         {{4, {0, 3, 3, 4}}, {4, {0, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.relu = 1}},
        {"a sum with a constant",
         norm_add_constant,
         3,
         6,
         {{4, {2, 3, 3, 4}}, CHANNELS(3), {4, {2, 3, 3, 4}}},
         .norm = {.eps = 1e-3, .relu = 1}},
        {"a sum with a batch norm of a constant",
         norm_of_constant_add,
         1,
         6,
         {{4, {2, 3, 3, 4}}, {4, {2, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.eps = 1e-3, .relu = 1}},
        {"sums with itself",
         norm_add_itself,
         3,
         5,
         {{4, {2, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.eps = 1e-3}},
        {"sums with itself and relu",
         norm_add_itself,
         3,
         5,
         {{4, {2, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.eps = 1e-3, .relu = 1}},
        {"only the image",
         norm_relu,
         1,
         5,
         {{4, {2, 3, 3, 4}}, CHANNELS(3)},
         .norm = {.eps = 1e-3}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

/* --- max pool --- */

static ls_tensor *pool(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_max_pool2d(tape, in[0], &c->pool);
}

static void max_pool_has_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"2x2", pool, 1, 1, {{4, {2, 3, 4, 6}}}, .pool = {.kernel = {2, 2}}},
        {"2x2 on odd sizes", pool, 1, 1, {{4, {1, 2, 5, 7}}}, .pool = {.kernel = {2, 2}}},
        {"overlapping with padding",
         pool,
         1,
         1,
         {{4, {3, 1, 6, 5}}},
         .pool = {.kernel = {3, 3}, .stride = {2, 1}, .padding = {1, 1}}},
        {"unlike sides",
         pool,
         1,
         1,
         {{4, {1, 2, 5, 5}}},
         .pool = {.kernel = {1, 3}, .stride = {2, 2}, .padding = {0, 1}}},
        {"no rows", pool, 1, 1, {{4, {0, 3, 4, 6}}}, .pool = {.kernel = {2, 2}}},
        {"windows over the end",
         pool,
         1,
         1,
         {{4, {2, 2, 5, 6}}},
         .pool = {.kernel = {2, 3}, .stride = {2, 2}, .ceil_mode = 1}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

/* --- average pool --- */

static ls_tensor *avg_pool(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_avg_pool2d(tape, in[0], &c->pool);
}

static ls_tensor *adaptive_avg_pool(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_adaptive_avg_pool2d(tape, in[0], c->pool.kernel[0], c->pool.kernel[1]);
}

static void average_pool_has_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"2x2", avg_pool, 1, 1, {{4, {2, 3, 4, 6}}}, .pool = {.kernel = {2, 2}}},
        {"overlapping with padding",
         avg_pool,
         1,
         1,
         {{4, {3, 1, 6, 5}}},
         .pool = {.kernel = {3, 3}, .stride = {2, 1}, .padding = {1, 1}}},
        {"windows over the end",
         avg_pool,
         1,
         1,
         {{4, {2, 2, 5, 6}}},
         .pool = {.kernel = {2, 3}, .stride = {2, 2}, .ceil_mode = 1}},
        {"no rows", avg_pool, 1, 1, {{4, {0, 3, 4, 6}}}, .pool = {.kernel = {2, 2}}},
        {"adaptive to one",
         adaptive_avg_pool,
         1,
         1,
         {{4, {2, 3, 5, 4}}},
         .pool = {.kernel = {1, 1}}},
        {"adaptive to unequal windows",
         adaptive_avg_pool,
         1,
         1,
         {{4, {2, 2, 7, 5}}},
         .pool = {.kernel = {3, 4}}},
        {"adaptive of no rows",
         adaptive_avg_pool,
         1,
         1,
         {{4, {0, 3, 5, 4}}},
         .pool = {.kernel = {1, 1}}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv2d_has_the_right_gradients),
        cmocka_unit_test(conv1d_has_the_right_gradients),
        cmocka_unit_test(conv_transpose_has_the_right_gradients),
        cmocka_unit_test(batch_norm_has_the_right_gradients),
        cmocka_unit_test(max_pool_has_the_right_gradients),
        cmocka_unit_test(average_pool_has_the_right_gradients),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
