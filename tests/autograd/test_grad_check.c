/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_grad_check.c - backward of every other operator against differences, in float64 over awkward
 * shapes, and the check itself.
 */
#include "autograd/grad_check.h"

#include <string.h>

/* --- the others --- */

static ls_tensor *relu(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_relu(tape, in[0]);
}

static ls_tensor *add(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_add(tape, in[0], in[1]);
}

static ls_tensor *add_relu(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_add_relu(tape, in[0], in[c->n_inputs - 1]);
}

static ls_tensor *linear(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_linear(tape, in[0], in[1], c->n_inputs > 2 ? in[2] : NULL);
}

static ls_tensor *reshape(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_reshape(tape, in[0], 3, (int64_t[]){2, -1, 3});
}

static ls_tensor *log_softmax(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_log_softmax(tape, in[0]);
}

/* Twice, with what is dropped the same at each evaluation. */
static ls_tensor *dropout(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    ls_tape_set_random(tape, 3, 14);
    return ls_dropout(tape, ls_dropout(tape, in[0], 0.25), 0.5);
}

static ls_tensor *flatten(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_relu(tape, ls_flatten(tape, in[0]));
}

static void pointwise_and_linear_have_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"relu", relu, 1, 1, .in = {{4, {2, 3, 1, 5}}}},
        {"relu of no rows", relu, 1, 1, .in = {{2, {0, 3}}}},
        {"relu of a scalar", relu, 1, 1, .in = {{0, {0}}}},
        {"add", add, 2, 2, .in = {{3, {2, 3, 1}}, {3, {2, 3, 1}}}},
        {"add of a constant", add, 1, 2, .in = {{1, {3}}, {1, {3}}}},
        {"add_relu", add_relu, 2, 2, .in = {{4, {2, 3, 1, 4}}, {4, {2, 3, 1, 4}}}},
        {"add_relu of a constant", add_relu, 1, 2, .in = {{2, {3, 5}}, {2, {3, 5}}}},
        {"add_relu of one value twice", add_relu, 1, 1, .in = {{2, {3, 5}}}},
        {"add_relu of no rows", add_relu, 2, 2, .in = {{2, {0, 5}}, {2, {0, 5}}}},
        {"reshape", reshape, 1, 1, .in = {{2, {4, 6}}}},
        {"flatten", flatten, 1, 1, .in = {{4, {3, 2, 1, 5}}}},
        {"flatten of no rows", flatten, 1, 1, .in = {{4, {0, 2, 1, 5}}}},
        {"log softmax", log_softmax, 1, 1, .in = {{2, {4, 6}}}},
        {"log softmax of no rows", log_softmax, 1, 1, .in = {{2, {0, 6}}}},
        {"dropout", dropout, 1, 1, .in = {{3, {4, 6, 3}}}},
        {"dropout of no rows", dropout, 1, 1, .in = {{2, {0, 6}}}},
        {"linear", linear, 3, 3, .in = {{2, {3, 5}}, {2, {4, 5}}, {1, {4}}}},
        {"linear of one row", linear, 3, 3, .in = {{2, {1, 7}}, {2, {1, 7}}, {1, {1}}}},
        {"linear without bias", linear, 2, 2, .in = {{2, {3, 5}}, {2, {4, 5}}}},
        {"linear of no rows", linear, 3, 3, .in = {{2, {0, 5}}, {2, {4, 5}}, {1, {4}}}},
        {"linear of a constant row", linear, 1, 3, .in = {{2, {2, 5}}, {2, {4, 5}}, {1, {4}}}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

/* --- arithmetic --- */

static ls_tensor *of_two(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return c->two(tape, in[0], in[1]);
}

static void arithmetic_has_the_right_gradients(void **state)
{
    static const struct {
        const char *name;
        ls_tensor *(*two)(ls_tape *tape, ls_tensor *a, ls_tensor *b);
    } functions[] = {{"add", ls_add}, {"sub", ls_sub},         {"mul", ls_mul},
                     {"div", ls_div}, {"maximum", ls_maximum}, {"minimum", ls_minimum}};
    const check_case shapes[] = {
        {"equal", .n_leaves = 2, .in = {{2, {3, 4}}, {2, {3, 4}}}},
        {"a constant", .n_leaves = 1, .in = {{2, {3, 4}}, {1, {4}}}},
        {"a column and a row", .n_leaves = 2, .in = {{2, {3, 1}}, {1, {5}}}},
        {"a longer shape", .n_leaves = 2, .in = {{2, {4, 1}}, {4, {2, 3, 1, 5}}}},
        {"scalars", .n_leaves = 2, .in = {{0, {0}}, {3, {2, 1, 3}}}},
        {"no rows and one", .n_leaves = 2, .in = {{2, {0, 3}}, {2, {1, 1}}}},
    };

    LS_UNUSED(state);
    for (size_t f = 0; f < LS_COUNT_OF(functions); f++) {
        for (size_t i = 0; i < LS_COUNT_OF(shapes); i++) {
            check_case c = shapes[i];

            c.name = functions[f].name;
            c.op = of_two;
            c.n_inputs = 2;
            c.two = functions[f].two;
            check(&c);
        }
    }
}

/* --- sums and extremes --- */

typedef ls_tensor *(*reduce_fn)(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes,
                                int keepdim);

static ls_tensor *variance(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim)
{
    return ls_var(tape, x, axes, n_axes, keepdim, 1);
}

static ls_tensor *cumsum(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim)
{
    LS_UNUSED(keepdim);
    return ls_cumsum(tape, x, n_axes == 0 ? -1 : axes[0]);
}

static const reduce_fn reductions[] = {ls_sum, ls_mean, ls_max, ls_min, variance, cumsum};

/* Over all dimensions, one, and two that are not neighbours. */
static ls_tensor *reduce(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    static const int axes[3][2] = {{0}, {1}, {-1, 0}};
    const int n_axes = c->pool.kernel[1];

    return reductions[c->pool.kernel[0]](tape, in[0], axes[n_axes], n_axes, n_axes == 1);
}

static void reductions_have_the_right_gradients(void **state)
{
    LS_UNUSED(state);
    for (int f = 0; f < (int)LS_COUNT_OF(reductions); f++) {
        for (int n = 0; n < 3; n++) {
            const check_case c = {"reduction", reduce,           1,
                                  1,           {{3, {3, 4, 2}}}, .pool = {.kernel = {f, n}}};

            check(&c);
        }
    }
}

/* --- selection and losses --- */

/* Constants of the check. */
typedef struct choice {
    ls_tensor *mask; /* (3, 4) */
    ls_tensor *rows; /* (4) */
} choice;

static ls_tensor *choose(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    const choice *c = arg;
    ls_tensor *y = ls_where(tape, c->mask, in[0], in[1]);

    y = ls_masked_fill(tape, ls_square(tape, y), c->mask, 3);
    y = ls_pad(tape, y, (int64_t[]){1, 2, 0, 1}, 4, 0.5);
    y = ls_mul(tape, ls_sum(tape, y, (int[]){0, 1}, 2, 0),
               ls_mul(tape, ls_embedding(tape, in[0], c->rows, -1),
                      ls_embedding(tape, in[0], c->rows, -1)));
    return ls_mean(tape, y, NULL, 0, 0);
}

static void selections_have_the_right_gradients(void **state)
{
    static const uint8_t bytes[12] = {0, 1, 0, 0, 7, 0, 1, 0, 0, 1, 0, 0};
    static const int64_t rows[4] = {2, 0, 2, 1};
    ls_device *device = open_reference();
    ls_tensor *in[2] = {random_tensor(device, LS_F64, 2, (int64_t[]){3, 4}, 1),
                        random_tensor(device, LS_F64, 2, (int64_t[]){1, 4}, 2)};
    choice c = {.mask = NULL};

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_U8, 2, (int64_t[]){3, 4}, &c.mask));
    assert_status(LS_OK, ls_tensor_write(c.mask, bytes, 12));
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, (int64_t[]){4}, &c.rows));
    assert_status(LS_OK, ls_tensor_write(c.rows, rows, 4));
    for (int i = 0; i < 2; i++)
        assert_status(LS_OK, ls_require_grad(in[i]));
    assert_status(LS_OK, ls_grad_check(choose, &c, in, 2, TOLERANCE, NULL));
    destroy_all(in, 2);
    destroy_all((ls_tensor *[]){c.mask, c.rows}, 2);
    ls_device_close(device);
}

static ls_tensor *element_losses(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    const ls_loss_params weighted = {.weight = in[2], .pos_weight = in[2], .beta = 0.3};
    const ls_loss_params summed = {.weight = in[2], .sum = 1};

    LS_UNUSED(c);
    return ls_add(tape,
                  ls_add(tape, ls_l1_loss(tape, in[0], in[1], &weighted),
                         ls_smooth_l1_loss(tape, in[0], in[1], &weighted)),
                  ls_add(tape, ls_mse_loss_with(tape, in[0], in[1], &summed),
                         ls_bce_with_logits(tape, in[0], in[1], &weighted)));
}

static void losses_of_elements_have_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"losses", element_losses, 2, 3, .in = {{2, {3, 4}}, {2, {3, 4}}, {1, {4}}}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

/* --- what architectures after ResNet need --- */

static ls_tensor *activations(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_tensor *y = ls_activate(tape, in[0], LS_ACT_RELU6);

    LS_UNUSED(c);
    for (ls_activation f = LS_ACT_SIGMOID; f <= LS_ACT_GELU; f++)
        y = ls_add(tape, y, ls_activate(tape, in[f % 2], f));
    return y;
}

/* Each function alone; x of those that are not differentiable everywhere is between 1 and 3. */
static ls_tensor *function(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    const ls_activation f = c->function;
    ls_tensor *x = in[0];

    if (f == LS_ACT_LOG || f == LS_ACT_SQRT || f == LS_ACT_RSQRT || f == LS_ACT_RECIPROCAL ||
        f == LS_ACT_POW)
        x = ls_scale(tape, x, 1, 2);
    if (f == LS_ACT_CLAMP)
        return ls_clamp(tape, x, -0.41, 0.37);
    if (f == LS_ACT_POW)
        return ls_pow(tape, x, -1.5);
    if (f == LS_ACT_LINEAR)
        return ls_scale(tape, x, -2.5, 3);
    if (f == LS_ACT_SOFTPLUS)
        return ls_softplus(tape, x, 3, 2);
    return ls_activate(tape, x, f);
}

static void functions_have_the_right_gradients(void **state)
{
    LS_UNUSED(state);
    for (ls_activation f = LS_ACT_RELU6; f <= LS_ACT_LINEAR; f++) {
        const check_case some = {"function", function, 1, 1, {{2, {3, 7}}}, .function = f};
        const check_case none = {"function of nothing", function,     1, 1,
                                 {{2, {0, 7}}},         .function = f};

        check(&some);
        check(&none);
    }
}

static ls_tensor *mul(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_mul(tape, in[0], in[1]);
}

static ls_tensor *expand(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_expand(tape, in[0], 3, (int64_t[]){4, 2, 3});
}

static ls_tensor *permute(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_permute(tape, in[0], (int[]){2, 0, 3, 1});
}

/* Inputs several times, and more of them than one operator takes. */
static ls_tensor *concat(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_tensor *parts[20];

    LS_UNUSED(c);
    for (int i = 0; i < 20; i++)
        parts[i] = in[i * i % 3];
    return ls_concat(tape, parts, 20, 1);
}

/* The loss does not depend on the second piece, and on the last one twice. */
static ls_tensor *split(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_tensor *out[4];

    LS_UNUSED(c);
    ls_split(tape, in[0], 1, (int64_t[]){2, 1, 0, 2}, 4, out);
    return ls_concat(tape, (ls_tensor *[]){out[3], ls_mul(tape, out[0], out[3]), out[2]}, 3, 1);
}

/* More pieces than one call of a kernel takes; some of them are not used. */
static ls_tensor *split_steps(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    int64_t ones[20];
    ls_tensor *out[20];
    ls_tensor *y;

    LS_UNUSED(c);
    for (int i = 0; i < 20; i++)
        ones[i] = 1;
    ls_split(tape, in[0], 0, ones, 20, out);
    y = out[19];
    for (int i = 0; i < 20; i += 1 + i % 3)
        y = ls_mul(tape, ls_add(tape, y, out[i]), out[i]);
    return y;
}

/* Two parts that overlap. */
static ls_tensor *slices(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_mul(tape, ls_slice(tape, in[0], 1, 0, 3), ls_slice(tape, in[0], 1, 2, 3));
}

static ls_tensor *matmul(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_matmul(tape, in[0], in[1], 0);
}

static ls_tensor *matmul_transposed(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_matmul(tape, in[0], in[1], 1);
}

static ls_tensor *attention(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    const ls_attention_params params = {.mask = c->n_inputs > 3 ? in[3] : NULL};

    return ls_attention(tape, in[0], in[1], in[2], &params);
}

static ls_tensor *attention_causal(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    const ls_attention_params params = {
        .causal = 1, .mask = c->n_inputs > 3 ? in[3] : NULL, .scale = 0.7, .dropout = 0.3};

    ls_tape_set_random(tape, 3, 14);
    return ls_attention(tape, in[0], in[1], in[2], &params);
}

static ls_tensor *attention_of_itself(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_attention(tape, in[0], in[0], in[0], NULL);
}

static ls_tensor *layer_norm(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_layer_norm(tape, in[0], c->n_inputs > 1 ? in[1] : NULL,
                         c->n_inputs > 2 ? in[2] : NULL, c->norm.eps);
}

/* In as many groups as a convolution's. */
static ls_tensor *group_norm(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_group_norm(tape, in[0], c->conv.groups, c->n_inputs > 1 ? in[1] : NULL,
                         c->n_inputs > 2 ? in[2] : NULL, c->norm.eps);
}

static ls_tensor *softmax(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    return ls_softmax(tape, in[0], 1.5);
}

static ls_tensor *stochastic_depth(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    LS_UNUSED(c);
    ls_tape_set_random(tape, 3, 14);
    return ls_stochastic_depth(tape, in[0], 0.5);
}

static void norms_with_and_without_parameters_have_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"layer norm without bias", layer_norm, 2, 2, .in = {{3, {2, 3, 5}}, {1, {5}}}},
        {"layer norm without both", layer_norm, 1, 1, .in = {{2, {4, 5}}}},
        {"group norm", group_norm, 3, 3, .in = {{4, {2, 4, 3, 2}}, {1, {4}}, {1, {4}}},
         .conv = {.groups = 2}},
        {"group norm of one channel each", group_norm, 2, 2, .in = {{3, {3, 3, 5}}, {1, {3}}},
         .conv = {.groups = 3}},
        {"group norm of rows", group_norm, 1, 1, .in = {{2, {3, 6}}}, .conv = {.groups = 2}},
        {"group norm of no rows", group_norm, 3, 3, .in = {{3, {0, 4, 3}}, {1, {4}}, {1, {4}}},
         .conv = {.groups = 2}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

static void later_architectures_have_the_right_gradients(void **state)
{
    const check_case cases[] = {
        {"activations", activations, 2, 2, .in = {{2, {7, 9}}, {2, {7, 9}}}},
        {"activations of no rows", activations, 2, 2, .in = {{2, {0, 9}}, {2, {0, 9}}}},
        {"mul of equal shapes", mul, 2, 2, .in = {{3, {2, 3, 1}}, {3, {2, 3, 1}}}},
        {"mul by channels of samples", mul, 2, 2, .in = {{4, {2, 3, 4, 2}}, {4, {2, 3, 1, 1}}}},
        {"mul by channels", mul, 2, 2, .in = {{4, {2, 3, 4, 2}}, {3, {3, 1, 1}}}},
        {"mul by a constant number", mul, 1, 2, .in = {{2, {2, 3}}, {0, {0}}}},
        {"mul of no rows", mul, 2, 2, .in = {{4, {0, 3, 4, 2}}, {3, {3, 1, 1}}}},
        {"add to each sample", add, 2, 2, .in = {{3, {3, 4, 2}}, {3, {1, 4, 2}}}},
        {"add along two dimensions", add, 2, 2, .in = {{4, {3, 4, 2, 2}}, {4, {1, 4, 1, 2}}}},
        {"expand", expand, 1, 1, .in = {{2, {1, 3}}}},
        {"permute", permute, 1, 1, .in = {{4, {2, 3, 4, 5}}}},
        {"concat", concat, 3, 3, .in = {{3, {2, 1, 3}}, {3, {2, 4, 3}}, {3, {2, 2, 3}}}},
        {"concat with constants", concat, 1, 3, .in = {{2, {2, 1}}, {2, {2, 4}}, {2, {2, 2}}}},
        {"slices", slices, 1, 1, .in = {{3, {2, 5, 3}}}},
        {"split", split, 1, 1, .in = {{3, {2, 5, 3}}}},
        {"split of no rows", split, 1, 1, .in = {{3, {0, 5, 3}}}},
        {"split in many steps", split_steps, 1, 1, .in = {{2, {20, 1}}}},
        {"matmul", matmul, 2, 2, .in = {{4, {2, 3, 4, 5}}, {4, {2, 3, 5, 2}}}},
        {"matmul of one matrix", matmul, 2, 2, .in = {{2, {1, 5}}, {2, {5, 3}}}},
        {"matmul transposed", matmul_transposed, 2, 2, .in = {{3, {2, 4, 5}}, {3, {2, 3, 5}}}},
        {"matmul by a constant", matmul, 1, 2, .in = {{3, {2, 4, 5}}, {3, {2, 5, 3}}}},
        {"matmul of rows", matmul, 2, 2, .in = {{4, {2, 3, 4, 5}}, {3, {1, 5, 3}}}},
        {"matmul of rows by a transposed one", matmul_transposed, 2, 2,
         .in = {{3, {2, 4, 5}}, {2, {3, 5}}}},
        {"matmul of repeated ones", matmul, 2, 2, .in = {{4, {2, 1, 4, 5}}, {3, {3, 5, 2}}}},
        {"matmul of one by many", matmul_transposed, 2, 2, .in = {{2, {4, 5}}, {3, {3, 2, 5}}}},
        {"attention", attention, 3, 3,
         .in = {{4, {2, 2, 4, 3}}, {4, {2, 2, 5, 3}}, {4, {2, 2, 5, 2}}}},
        {"attention with a mask", attention, 3, 4,
         .in = {{3, {2, 4, 3}}, {3, {2, 5, 3}}, {3, {2, 5, 2}}, {2, {4, 5}}}},
        {"attention of repeated ones", attention, 3, 4,
         .in = {{2, {4, 3}}, {3, {2, 5, 3}}, {4, {2, 1, 5, 2}}, {4, {2, 1, 1, 5}}}},
        {"attention of no keys", attention, 3, 3, .in = {{2, {4, 3}}, {2, {0, 3}}, {2, {0, 2}}}},
        {"attention of no queries", attention, 3, 3, .in = {{2, {0, 3}}, {2, {2, 3}}, {2, {2, 2}}}},
        {"attention with a constant", attention, 1, 3,
         .in = {{3, {2, 4, 3}}, {3, {2, 5, 3}}, {3, {2, 5, 2}}}},
        {"causal attention with dropout", attention_causal, 3, 3,
         .in = {{3, {2, 6, 3}}, {3, {2, 6, 3}}, {3, {2, 6, 2}}}},
        {"causal attention of more keys", attention_causal, 3, 4,
         .in = {{3, {2, 4, 3}}, {3, {2, 6, 3}}, {3, {2, 6, 2}}, {1, {6}}}},
        {"attention of itself", attention_of_itself, 1, 1, .in = {{3, {2, 5, 3}}}},
        {"linear of tokens", linear, 3, 3, .in = {{3, {2, 3, 5}}, {2, {4, 5}}, {1, {4}}}},
        {"layer norm", layer_norm, 3, 3, .in = {{3, {2, 3, 5}}, {1, {5}}, {1, {5}}}},
        {"layer norm of images", layer_norm, 3, 3, .in = {{4, {2, 2, 1, 7}}, {1, {7}}, {1, {7}}},
         .norm = {.eps = 1e-2}},
        {"layer norm of no rows", layer_norm, 3, 3, .in = {{2, {0, 5}}, {1, {5}}, {1, {5}}}},
        {"only the input", layer_norm, 1, 3, .in = {{2, {3, 5}}, {1, {5}}, {1, {5}}}},
        {"softmax", softmax, 1, 1, .in = {{4, {2, 3, 2, 5}}}},
        {"softmax of no rows", softmax, 1, 1, .in = {{2, {0, 5}}}},
        {"stochastic depth", stochastic_depth, 1, 1, .in = {{3, {6, 2, 3}}}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

/* --- values and leaves that are used several times --- */

static ls_tensor *twice_added(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_tensor *r = ls_relu(tape, in[0]);

    LS_UNUSED(c);
    return ls_add(tape, ls_add(tape, r, r), ls_add(tape, in[0], r));
}

static ls_tensor *shared_weight(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_tensor *h = ls_relu(tape, ls_linear(tape, in[0], in[1], in[2]));

    LS_UNUSED(c);
    return ls_linear(tape, h, in[1], NULL);
}

static ls_tensor *made_weight(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_tensor *w = ls_reshape(tape, in[1], 2, (int64_t[]){4, 3});

    LS_UNUSED(c);
    return ls_linear(tape, ls_linear(tape, in[0], w, in[2]),
                     ls_reshape(tape, w, 2, (int64_t[]){3, 4}), NULL);
}

static ls_tensor *weight_as_bias(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    return ls_batch_norm(tape, in[0], in[1], in[1], in[2], in[3], &c->norm);
}

static ls_tensor *residual(ls_tape *tape, ls_tensor *const *in, const check_case *c)
{
    ls_tensor *h = ls_bn_relu(tape, in[0], in[1], in[2], in[4], in[5], &c->norm);

    return ls_flatten(tape, ls_add(tape, ls_conv2d(tape, h, in[3], NULL, &c->conv), in[0]));
}

static void values_used_several_times_get_all_their_gradients(void **state)
{
    const check_case cases[] = {
        {"added to itself", twice_added, 1, 1, .in = {{2, {3, 4}}}},
        {"one weight in two layers", shared_weight, 3, 3,
         .in = {{2, {2, 3}}, {2, {3, 3}}, {1, {3}}}},
        {"a weight that an operator made", made_weight, 3, 3,
         .in = {{2, {2, 3}}, {1, {12}}, {1, {4}}}},
        {"weight and bias in one",
         weight_as_bias,
         2,
         4,
         {{2, {5, 3}}, {1, {3}}, {1, {3}}, {1, {3}}},
         .norm = {.eps = 1e-3}},
        {"a residual block",
         residual,
         4,
         6,
         {{4, {2, 2, 3, 4}}, {1, {2}}, {1, {2}}, {4, {2, 2, 3, 3}}, {1, {2}}, {1, {2}}},
         .conv = {.padding = {1, 1}},
         .norm = {.eps = 1e-3}},
    };

    LS_UNUSED(state);
    check_each(cases, LS_COUNT_OF(cases));
}

/* --- losses --- */

static ls_tensor *smoothed_cross_entropy_of(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    return ls_cross_entropy_with(tape, in[0], arg,
                                 &(ls_cross_entropy_params){.label_smoothing = 0.2});
}

static ls_tensor *nll_of(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    return ls_nll_loss(tape, in[0], arg);
}

static ls_tensor *nll_of_log_softmax(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    return ls_nll_loss(tape, ls_log_softmax(tape, in[0]), arg);
}

static ls_tensor *cross_entropy_of(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    return ls_cross_entropy(tape, in[0], arg);
}

static void losses_of_classes_have_the_right_gradients(void **state)
{
    static const ls_grad_check_fn losses[] = {cross_entropy_of, smoothed_cross_entropy_of, nll_of,
                                              nll_of_log_softmax};
    const int64_t shapes[][2] = {{3, 5}, {1, 1}, {0, 4}, {7, 2}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(shapes); i++) {
        ls_device *device = open_reference();
        ls_tensor *logits = random_tensor(device, LS_F64, 2, shapes[i], 5);
        ls_tensor *targets = NULL;
        int64_t values[8];

        assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, shapes[i], &targets));
        for (int64_t n = 0; n < shapes[i][0]; n++)
            values[n] = n % shapes[i][1];
        assert_status(LS_OK, ls_tensor_write(targets, values, (size_t)shapes[i][0]));
        assert_status(LS_OK, ls_require_grad(logits));
        for (size_t l = 0; l < LS_COUNT_OF(losses); l++)
            assert_status(LS_OK, ls_grad_check(losses[l], targets, &logits, 1, TOLERANCE, NULL));
        destroy_all((ls_tensor *[]){logits, targets}, 2);
        ls_device_close(device);
    }
}

static ls_tensor *mse_of_both(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    LS_UNUSED(arg);
    return ls_mse_loss(tape, in[0], in[1]);
}

static void mse_has_the_right_gradients_on_both_sides(void **state)
{
    LS_UNUSED(state);
    for (int mask = 1; mask < 4; mask++) {
        ls_device *device = open_reference();
        ls_tensor *in[] = {random_tensor(device, LS_F64, 2, (int64_t[]){3, 5}, 1),
                           random_tensor(device, LS_F64, 2, (int64_t[]){3, 5}, 2)};

        for (int i = 0; i < 2; i++) {
            if ((mask & 1 << i) != 0)
                assert_status(LS_OK, ls_require_grad(in[i]));
        }
        assert_status(LS_OK, ls_grad_check(mse_of_both, NULL, in, 2, TOLERANCE, NULL));
        destroy_all(in, 2);
        ls_device_close(device);
    }
}

/* --- the check itself --- */

/* Its value depends on which call it is, so that no backward can fit it. */
static ls_tensor *moody(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    int *n_calls = arg;
    ls_tensor *goal = in[1];

    (*n_calls)++;
    assert_status(LS_OK, ls_tensor_write(goal, (double[]){*n_calls * 1e-3}, 1));
    return ls_mse_loss(tape, in[0], goal);
}

static void the_check_names_what_does_not_fit(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *in[] = {random_tensor(device, LS_F64, 1, (int64_t[]){1}, 1),
                       random_tensor(device, LS_F64, 1, (int64_t[]){1}, 2)};
    int n_calls = 0;
    double worst = 0;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(in[0]));
    assert_status(LS_EFORMAT, ls_grad_check(moody, &n_calls, in, 2, TOLERANCE, &worst));
    assert_non_null(strstr(ls_last_error(), "input 0, element 0: backward gives"));
    assert_true(worst > TOLERANCE);
    destroy_all(in, 2);
    ls_device_close(device);
}

static void the_check_needs_float64_leaves(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *in[] = {random_tensor(device, LS_F32, 1, (int64_t[]){1}, 1),
                       random_tensor(device, LS_F32, 1, (int64_t[]){1}, 2)};

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(in[0]));
    assert_status(LS_EINVAL, ls_grad_check(mse_of_both, NULL, in, 2, TOLERANCE, NULL));
    assert_status(LS_EINVAL, ls_grad_check(mse_of_both, NULL, in, 0, TOLERANCE, NULL));
    destroy_all(in, 2);
    ls_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pointwise_and_linear_have_the_right_gradients),
        cmocka_unit_test(arithmetic_has_the_right_gradients),
        cmocka_unit_test(functions_have_the_right_gradients),
        cmocka_unit_test(reductions_have_the_right_gradients),
        cmocka_unit_test(selections_have_the_right_gradients),
        cmocka_unit_test(losses_of_elements_have_the_right_gradients),
        cmocka_unit_test(norms_with_and_without_parameters_have_the_right_gradients),
        cmocka_unit_test(later_architectures_have_the_right_gradients),
        cmocka_unit_test(values_used_several_times_get_all_their_gradients),
        cmocka_unit_test(losses_of_classes_have_the_right_gradients),
        cmocka_unit_test(mse_has_the_right_gradients_on_both_sides),
        cmocka_unit_test(the_check_names_what_does_not_fit),
        cmocka_unit_test(the_check_needs_float64_leaves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
