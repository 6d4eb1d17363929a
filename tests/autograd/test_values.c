/* SPDX-License-Identifier: Apache-2.0 */
/* test_values.c - what operators give, against numbers that PyTorch 2.11 printed. */
#include "tensor/testing.h"

#include <lockstep/autograd.h>

#include <math.h>
#include <string.h>

/* A tape on the reference device, and the float64 tensors of one test. */
typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *made[8];
    int n_made;
} bench;

static bench setup(void)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    destroy_all(s->made, s->n_made);
    ls_device_close(s->device);
}

/* Elements 0, 1, 2, ... times `step`, from `first` on. */
static ls_tensor *counting(bench *s, int n_dims, const int64_t *dims, double first, double step)
{
    ls_tensor *t = NULL;
    double values[1024];

    assert_status(LS_OK, ls_tensor_create(s->device, LS_F64, n_dims, dims, &t));
    assert_true(ls_tensor_count(t) <= LS_COUNT_OF(values));
    for (size_t i = 0; i < ls_tensor_count(t); i++)
        values[i] = first + step * (double)i;
    assert_status(LS_OK, ls_tensor_write(t, values, ls_tensor_count(t)));
    assert_true(s->n_made < 8);
    s->made[s->n_made++] = t;
    return t;
}

static void assert_gives(bench *s, const ls_tensor *y, int n_dims, const int64_t *dims,
                         const double *want)
{
    assert_status(LS_OK, ls_tape_status(s->tape));
    assert_int_equal(n_dims, ls_tensor_n_dims(y));
    for (int i = 0; i < n_dims; i++)
        assert_int_equal(dims[i], ls_tensor_dims(y)[i]);
    assert_elements(y, want, 1e-6);
}

/* Windows begin at 0, 2, 4 and, in ceil_mode, at 6, but not at 8, which is behind the image. */
static void pools_in_ceil_mode_reach_over_the_end(void **state)
{
    const ls_pool2d_params wide = {.kernel = {1, 3}, .stride = {1, 2}, .ceil_mode = 1};
    const ls_pool2d_params padded = {
        .kernel = {1, 2}, .stride = {1, 3}, .padding = {0, 1}, .ceil_mode = 1};
    bench s = setup();
    ls_tensor *x = counting(&s, 4, (int64_t[]){1, 1, 1, 8}, 1, 1);

    LS_UNUSED(state);
    assert_gives(&s, ls_max_pool2d(s.tape, x, &wide), 4, (int64_t[]){1, 1, 1, 4},
                 (double[]){3, 5, 7, 8});
    assert_gives(&s, ls_avg_pool2d(s.tape, x, &wide), 4, (int64_t[]){1, 1, 1, 4},
                 (double[]){2, 4, 6, 7.5});
    assert_gives(&s, ls_avg_pool2d(s.tape, x, &padded), 4, (int64_t[]){1, 1, 1, 3},
                 (double[]){0.5, 3.5, 6.5});
    teardown(&s);
}

/* Values and derivatives at -6, -4.5, ... 6, which are corners of some. */
static void activations_are_those_of_pytorch(void **state)
{
    static const struct {
        ls_activation function;
        double y[9];
        double dx[9];
    } cases[] = {
        {LS_ACT_RELU6, {0, 0, 0, 0, 0, 1.5, 3, 4.5, 6}, {0, 0, 0, 0, 0, 1, 1, 1, 0}},
        {LS_ACT_SIGMOID,
         {0.00247262, 0.01098694, 0.04742587, 0.18242552, 0.5, 0.81757448, 0.95257413, 0.98901306,
          0.99752738},
         {0.00246651, 0.01086623, 0.04517666, 0.14914645, 0.25, 0.14914645, 0.04517666, 0.01086623,
          0.00246651}},
        {LS_ACT_SILU,
         {-0.01483574, -0.04944124, -0.14227762, -0.27363829, 0, 1.22636171, 2.85772238, 4.45055876,
          5.98516426},
         {-0.01232643, -0.03791109, -0.08810411, -0.04129415, 0.5, 1.04129415, 1.08810411,
          1.03791109, 1.01232643}},
        {LS_ACT_HARDSIGMOID,
         {0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1},
         {0, 0, 0, 1.0 / 6, 1.0 / 6, 1.0 / 6, 0, 0, 0}},
        {LS_ACT_HARDSWISH, {0, 0, 0, -0.375, 0, 1.125, 3, 4.5, 6}, {0, 0, 0, 0, 0.5, 1, 1, 1, 1}},
        {LS_ACT_GELU,
         {0, -1.528953e-5, -0.00404969, -0.1002108, 0, 1.3997892, 2.99595031, 4.49998471, 6},
         {0, -6.852916e-5, -0.01194565, -0.12746919, 0.5, 1.12746919, 1.01194565, 1.00006853, 1}},
    };
    bench s = setup();
    ls_tensor *x = counting(&s, 1, (int64_t[]){9}, -6, 1.5);
    ls_tensor *ones = counting(&s, 1, (int64_t[]){9}, 1, 0);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(x));
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        ls_tensor *y = ls_activate(s.tape, x, cases[i].function);

        assert_gives(&s, y, 1, (int64_t[]){9}, cases[i].y);
        y = ls_linear(s.tape, ls_reshape(s.tape, y, 2, (int64_t[]){1, 9}),
                      ls_reshape(s.tape, ones, 2, (int64_t[]){1, 9}), NULL);
        ls_zero_grad(x);
        assert_status(LS_OK, ls_backward(s.tape, y, 1));
        assert_elements(ls_grad(x), cases[i].dx, 1e-6);
    }
    teardown(&s);
}

static void shapes_are_rearranged_as_pytorch_does(void **state)
{
    bench s = setup();
    ls_tensor *x = counting(&s, 3, (int64_t[]){2, 1, 3}, 0, 1);
    ls_tensor *y = counting(&s, 3, (int64_t[]){2, 2, 3}, 10, 1);
    ls_tensor *scale = counting(&s, 3, (int64_t[]){2, 1, 1}, 2, 1);
    ls_tensor *pieces[2];

    LS_UNUSED(state);
    ls_split(s.tape, y, 2, (int64_t[]){1, 2}, 2, pieces);
    assert_gives(&s, pieces[0], 3, (int64_t[]){2, 2, 1}, (double[]){10, 13, 16, 19});
    assert_gives(&s, pieces[1], 3, (int64_t[]){2, 2, 2},
                 (double[]){11, 12, 14, 15, 17, 18, 20, 21});
    assert_gives(&s, ls_permute(s.tape, x, (int[]){2, 0, 1}), 3, (int64_t[]){3, 2, 1},
                 (double[]){0, 3, 1, 4, 2, 5});
    assert_gives(&s, ls_concat(s.tape, (ls_tensor *[]){x, y}, 2, 1), 3, (int64_t[]){2, 3, 3},
                 (double[]){0, 1, 2, 10, 11, 12, 13, 14, 15, 3, 4, 5, 16, 17, 18, 19, 20, 21});
    assert_gives(&s, ls_slice(s.tape, y, 2, 1, 2), 3, (int64_t[]){2, 2, 2},
                 (double[]){11, 12, 14, 15, 17, 18, 20, 21});
    assert_gives(&s, ls_mul(s.tape, x, scale), 3, (int64_t[]){2, 1, 3},
                 (double[]){0, 2, 4, 9, 12, 15});
    assert_gives(&s, ls_add(s.tape, x, ls_slice(s.tape, x, 0, 1, 1)), 3, (int64_t[]){2, 1, 3},
                 (double[]){3, 5, 7, 6, 8, 10});
    assert_gives(&s, ls_expand(s.tape, scale, 4, (int64_t[]){2, 2, 1, 2}), 4,
                 (int64_t[]){2, 2, 1, 2}, (double[]){2, 2, 3, 3, 2, 2, 3, 3});
    teardown(&s);
}

static void convolutions_of_sequences_are_those_of_pytorch(void **state)
{
    bench s = setup();
    ls_tensor *x = counting(&s, 3, (int64_t[]){1, 2, 5}, -3, 0.5);
    ls_tensor *weight = counting(&s, 3, (int64_t[]){2, 2, 3}, -2, 0.25);
    ls_tensor *bias = counting(&s, 1, (int64_t[]){2}, 1, 1);

    LS_UNUSED(state);
    assert_gives(&s,
                 ls_conv1d(s.tape, x, weight, bias,
                           &(ls_conv1d_params){.stride = 2, .padding = 2, .dilation = 2}),
                 3, (int64_t[]){1, 2, 3}, (double[]){9.375, 11, 4.625, 2.875, 5.25, 4.125});
    teardown(&s);
}

static void transformers_parts_are_those_of_pytorch(void **state)
{
    bench s = setup();
    ls_tensor *x = counting(&s, 2, (int64_t[]){2, 3}, 0, 0.5);
    ls_tensor *weight = counting(&s, 1, (int64_t[]){3}, 1, 1);
    ls_tensor *bias = counting(&s, 1, (int64_t[]){3}, 0, 1);
    ls_tensor *a = counting(&s, 3, (int64_t[]){2, 2, 3}, -2, 0.5);
    ls_tensor *b = counting(&s, 3, (int64_t[]){2, 2, 3}, -4, 1);

    LS_UNUSED(state);
    assert_gives(&s, ls_layer_norm(s.tape, x, weight, bias, 0), 2, (int64_t[]){2, 3},
                 (double[]){-1.22470813, 1, 5.67412439, -1.22470813, 1, 5.67412439});
    assert_gives(
        &s, ls_softmax(s.tape, ls_mul(s.tape, x, x), 0.7), 2, (int64_t[]){2, 3},
        (double[]){0.23781219, 0.28329287, 0.47889494, 0.04796436, 0.16327865, 0.78875699});
    assert_gives(&s, ls_matmul(s.tape, a, b, 1), 3, (int64_t[]){2, 2, 2},
                 (double[]){14.5, 1, 1, 1, 14.5, 28, 28, 55});
    teardown(&s);
}

/* The first row takes part whole, of the second one element, of the third none. */
static void a_row_without_elements_has_probabilities_of_0(void **state)
{
    static const uint8_t bytes[9] = {0, 0, 0, 1, 0, 9, 1, 1, 1};
    const double minus = -(double)INFINITY;
    bench s = setup();
    ls_tensor *x = counting(&s, 2, (int64_t[]){3, 3}, 0, 0);
    ls_tensor *mask = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_U8, 2, (int64_t[]){3, 3}, &mask));
    assert_status(LS_OK, ls_tensor_write(mask, bytes, 9));
    s.made[s.n_made++] = mask;
    assert_gives(&s, ls_softmax_over(s.tape, x, -1, mask), 2, (int64_t[]){3, 3},
                 (double[]){1.0 / 3, 1.0 / 3, 1.0 / 3, 0, 1, 0, 0, 0, 0});
    assert_gives(&s, ls_softmax_over(s.tape, x, 0, mask), 2, (int64_t[]){3, 3},
                 (double[]){1, 0.5, 1, 0, 0.5, 0, 0, 0, 0});
    for (size_t i = 6; i < 9; i++)
        assert_true(element_of(ls_log_softmax_over(s.tape, x, -1, mask), i) == minus);
    assert_true(element_of(ls_log_softmax_over(s.tape, x, -1, mask), 3) == minus);
    assert_true(element_of(ls_softmax_over(s.tape, ls_scale(s.tape, x, 1, minus), -1, NULL), 4) ==
                0);
    teardown(&s);
}

/* Weights of 0 and 1: the mean of what they leave, 0 of nothing. */
static void a_masked_mean_is_of_the_elements_with_weight(void **state)
{
    bench s = setup();
    ls_tensor *x = counting(&s, 2, (int64_t[]){2, 2}, 1, 1);
    ls_tensor *zeros = counting(&s, 2, (int64_t[]){2, 2}, 0, 0);
    ls_loss_params params = {.weight = counting(&s, 1, (int64_t[]){2}, 0, 1), .masked_mean = 1};

    LS_UNUSED(state);
    assert_gives(&s, ls_l1_loss(s.tape, x, zeros, &params), 0, NULL, (double[]){3});
    assert_gives(&s, ls_mse_loss_with(s.tape, x, zeros, &params), 0, NULL, (double[]){10});
    params.masked_mean = 0;
    assert_gives(&s, ls_l1_loss(s.tape, x, zeros, &params), 0, NULL, (double[]){1.5});
    params = (ls_loss_params){.weight = zeros, .masked_mean = 1};
    assert_gives(&s, ls_l1_loss(s.tape, x, zeros, &params), 0, NULL, (double[]){0});
    params = (ls_loss_params){.pos_weight = x, .sum = 1}; // targets of 0 have no such term
    assert_gives(&s, ls_bce_with_logits(s.tape, zeros, zeros, &params), 0, NULL,
                 (double[]){4 * 0.69314718});
    assert_gives(&s, ls_mean(s.tape, ls_slice(s.tape, x, 0, 0, 1), NULL, 0, 0), 0, NULL,
                 (double[]){1.5});
    teardown(&s);
}

/* Rows are dropped as a whole, and which ones depends on seed, step and call alone. */
static void stochastic_depth_drops_rows(void **state)
{
    bench s = setup();
    ls_tensor *x = counting(&s, 2, (int64_t[]){64, 3}, 1, 0);
    double first[64];
    int n_nonzero = 0;

    LS_UNUSED(state);
    assert_null(ls_stochastic_depth(s.tape, x, 0.25));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    ls_tape_reset(s.tape);
    for (int pass = 0; pass < 2; pass++) {
        const ls_tensor *y;

        ls_tape_set_random(s.tape, 5, 6);
        y = ls_stochastic_depth(s.tape, x, 0.25);
        for (size_t row = 0; row < 64; row++) {
            const double v = element_of(y, 3 * row);

            assert_true(v == 0 || v == 1 / 0.75);
            assert_true(element_of(y, 3 * row + 1) == v && element_of(y, 3 * row + 2) == v);
            assert_true(pass == 0 || first[row] == v);
            first[row] = v;
            n_nonzero += v != 0;
        }
    }
    assert_in_range(n_nonzero, 2 * 32, 2 * 63);
    ls_tape_set_training(s.tape, 0);
    assert_ptr_equal(ls_stochastic_depth(s.tape, x, 0.25), x);
    teardown(&s);
}

/* The tape fails with this text, and works again. */
static void assert_tape_fails(bench *s, const ls_tensor *y, const char *text)
{
    assert_null(y);
    assert_status(LS_EINVAL, ls_tape_status(s->tape));
    assert_non_null(strstr(ls_last_error(), text));
    ls_tape_reset(s->tape);
}

static void negative_dimensions_count_from_the_end(void **state)
{
    bench s = setup();
    ls_tensor *x = counting(&s, 2, (int64_t[]){2, 3}, 0, 1);
    ls_tensor *parts[2];

    LS_UNUSED(state);
    assert_gives(&s, ls_concat(s.tape, (ls_tensor *[]){x, x}, 2, -2), 2, (int64_t[]){4, 3},
                 (double[]){0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
    assert_gives(&s, ls_slice(s.tape, x, -1, 1, 2), 2, (int64_t[]){2, 2}, (double[]){1, 2, 4, 5});
    ls_split(s.tape, x, -1, (int64_t[]){1, 2}, 2, parts);
    assert_gives(&s, parts[0], 2, (int64_t[]){2, 1}, (double[]){0, 3});
    assert_gives(&s, parts[1], 2, (int64_t[]){2, 2}, (double[]){1, 2, 4, 5});
    assert_gives(&s, ls_permute(s.tape, x, (int[]){-1, 0}), 2, (int64_t[]){3, 2},
                 (double[]){0, 3, 1, 4, 2, 5});
    assert_tape_fails(&s, ls_slice(s.tape, x, -3, 0, 1), "no dimension -3");
    assert_tape_fails(&s, ls_permute(s.tape, x, (int[]){-1, 1}), "order[1] is 1");
    teardown(&s);
}

static void tensors_are_stacked_along_a_new_dimension(void **state)
{
    bench s = setup();
    ls_tensor *a = counting(&s, 2, (int64_t[]){2, 2}, 0, 1);
    ls_tensor *b = counting(&s, 2, (int64_t[]){2, 2}, 10, 1);
    ls_tensor *six = counting(&s, 6, (int64_t[]){1, 1, 1, 1, 1, 1}, 0, 1);
    ls_tensor *pair[] = {a, b};
    ls_tensor *y;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(b));
    assert_gives(&s, ls_stack(s.tape, pair, 2, 0), 3, (int64_t[]){2, 2, 2},
                 (double[]){0, 1, 2, 3, 10, 11, 12, 13});
    y = ls_stack(s.tape, pair, 2, -1);
    assert_gives(&s, y, 3, (int64_t[]){2, 2, 2}, (double[]){0, 10, 1, 11, 2, 12, 3, 13});
    y = ls_mul(s.tape, y, y);
    assert_status(LS_OK, ls_backward(s.tape, ls_sum(s.tape, y, NULL, 0, 0), 1));
    assert_elements(ls_grad(b), (double[]){20, 22, 24, 26}, 0);
    ls_tape_reset(s.tape);
    assert_tape_fails(&s, ls_stack(s.tape, pair, 2, 3), "stack: input (2, 2) cannot get");
    assert_tape_fails(&s, ls_stack(s.tape, &six, 1, 0), "stack: input (1, 1, 1, 1, 1, 1)");
    assert_tape_fails(&s, ls_stack(s.tape, pair, 0, 0), "stack: ");
    assert_tape_fails(&s, ls_stack(s.tape, (ls_tensor *[]){a, six}, 2, 0), "");
    assert_tape_fails(&s, ls_stack(s.tape, (ls_tensor *[]){a, NULL}, 2, 0), "NULL");
    teardown(&s);
}

static void constants_have_a_value_in_any_type(void **state)
{
    bench s = setup();
    const ls_tensor *y;
    int64_t sevens[3];

    LS_UNUSED(state);
    assert_gives(&s, ls_full(s.tape, LS_F64, 2, (int64_t[]){1, 2}, 0.25), 2, (int64_t[]){1, 2},
                 (double[]){0.25, 0.25});
    assert_gives(&s, ls_full(s.tape, LS_F32, 0, NULL, 0), 0, NULL, (double[]){0});
    y = ls_full(s.tape, LS_I64, 1, (int64_t[]){3}, -7);
    assert_status(LS_OK, ls_tape_status(s.tape));
    assert_int_equal(LS_I64, ls_tensor_dtype(y));
    assert_status(LS_OK, ls_tensor_read(y, sevens, 3));
    assert_int_equal(-7, sevens[2]);
    assert_tape_fails(&s, ls_full(s.tape, LS_U8, 1, (int64_t[]){1}, 0.5), "full");
    assert_tape_fails(&s, ls_full(s.tape, LS_F32, 1, (int64_t[]){-1}, 0), "full");
    teardown(&s);
}

static void padding_is_what_lies_behind_the_lengths(void **state)
{
    const uint8_t want[] = {1, 1, 1, 0, 1, 1, 0, 0, 0};
    uint8_t mask[sizeof(want)];
    bench s = setup();
    ls_tensor *lengths = NULL;
    const ls_tensor *y;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_I64, 1, (int64_t[]){3}, &lengths));
    s.made[s.n_made++] = lengths;
    assert_status(LS_OK, ls_tensor_write(lengths, (int64_t[]){0, 1, 3}, 3));
    y = ls_padding_mask(s.tape, lengths, 3);
    assert_status(LS_OK, ls_tape_status(s.tape));
    assert_int_equal(LS_U8, ls_tensor_dtype(y));
    assert_int_equal(9, ls_tensor_count(y));
    assert_status(LS_OK, ls_tensor_read(y, mask, sizeof(mask)));
    assert_memory_equal(want, mask, sizeof(want));
    assert_tape_fails(&s, ls_padding_mask(s.tape, lengths, 2), "lengths[2] is 3");
    assert_tape_fails(&s, ls_padding_mask(s.tape, counting(&s, 1, (int64_t[]){2}, 0, 1), 2),
                      "must be (N) int64");
    teardown(&s);
}

/* As of the same rows in a matrix. */
static void cross_entropy_takes_any_dimensions(void **state)
{
    bench s = setup();
    ls_tensor *cube = counting(&s, 3, (int64_t[]){2, 3, 4}, 0, 0.1);
    ls_tensor *one = counting(&s, 1, (int64_t[]){2}, 0, 1);
    ls_tensor *targets = NULL, *flat;
    double want, got;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_I64, 2, (int64_t[]){2, 3}, &targets));
    s.made[s.n_made++] = targets;
    assert_status(LS_OK, ls_tensor_write(targets, (int64_t[]){0, 1, 2, 3, 0, 1}, 6));
    flat = ls_reshape(s.tape, targets, 1, (int64_t[]){6});
    assert_status(LS_OK, ls_item(ls_cross_entropy(
                                     s.tape, ls_reshape(s.tape, cube, 2, (int64_t[]){6, 4}), flat),
                                 &want));
    assert_status(LS_OK, ls_item(ls_cross_entropy(s.tape, cube, targets), &got));
    assert_true(want == got);
    assert_status(
        LS_OK, ls_item(ls_cross_entropy(s.tape, one, ls_full(s.tape, LS_I64, 0, NULL, 1)), &got));
    assert_true(fabs(got - log(1 + exp(-1))) < 1e-12);
    assert_tape_fails(&s, ls_cross_entropy(s.tape, cube, flat), "do not fit logits (2, 3, 4)");
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_in_ceil_mode_reach_over_the_end),
        cmocka_unit_test(activations_are_those_of_pytorch),
        cmocka_unit_test(shapes_are_rearranged_as_pytorch_does),
        cmocka_unit_test(convolutions_of_sequences_are_those_of_pytorch),
        cmocka_unit_test(transformers_parts_are_those_of_pytorch),
        cmocka_unit_test(a_row_without_elements_has_probabilities_of_0),
        cmocka_unit_test(a_masked_mean_is_of_the_elements_with_weight),
        cmocka_unit_test(stochastic_depth_drops_rows),
        cmocka_unit_test(negative_dimensions_count_from_the_end),
        cmocka_unit_test(tensors_are_stacked_along_a_new_dimension),
        cmocka_unit_test(constants_have_a_value_in_any_type),
        cmocka_unit_test(padding_is_what_lies_behind_the_lengths),
        cmocka_unit_test(cross_entropy_takes_any_dimensions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
