/* SPDX-License-Identifier: Apache-2.0 */
/* test_shape_errors.c - each operator refuses what does not fit, and says what it got. */
#include "tensor/testing.h"

#include <lockstep/autograd.h>

#include <stdio.h>
#include <string.h>

typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *made[16];
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

static ls_tensor *zeros(bench *s, ls_dtype type, int n_dims, const int64_t *dims)
{
    assert_true(s->n_made < 16);
    assert_status(LS_OK, ls_tensor_create(s->device, type, n_dims, dims, &s->made[s->n_made]));
    return s->made[s->n_made++];
}

static ls_tensor *vector(bench *s, int64_t n)
{
    return zeros(s, LS_F32, 1, &n);
}

static ls_tensor *matrix(bench *s, int64_t rows, int64_t columns)
{
    return zeros(s, LS_F32, 2, (int64_t[]){rows, columns});
}

static ls_tensor *sequences(bench *s, int64_t n, int64_t c, int64_t t)
{
    return zeros(s, LS_F32, 3, (int64_t[]){n, c, t});
}

static ls_tensor *images(bench *s, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return zeros(s, LS_F32, 4, (int64_t[]){n, c, h, w});
}

/* `y` must be NULL and the tape's failure this text; the tape is ready again. */
static void assert_refused(bench *s, const ls_tensor *y, const char *text)
{
    assert_null(y);
    assert_status(LS_EINVAL, ls_tape_status(s->tape));
    assert_string_equal(ls_last_error(), text);
    ls_tape_reset(s->tape);
}

static void linear_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = matrix(&s, 100, 1568);

    LS_UNUSED(state);
    assert_refused(&s, ls_linear(s.tape, x, matrix(&s, 10, 1569), NULL),
                   "linear: input (100, 1568) does not fit weight (10, 1569)");
    assert_refused(&s, ls_linear(s.tape, x, vector(&s, 1568), NULL),
                   "linear: input (100, 1568) does not fit weight (1568)");
    assert_refused(&s, ls_linear(s.tape, images(&s, 1, 5, 2, 3), matrix(&s, 3, 2), NULL),
                   "linear: input (10, 3) does not fit weight (3, 2)");
    assert_refused(&s, ls_linear(s.tape, x, matrix(&s, 10, 1568), vector(&s, 9)),
                   "linear: bias (9) does not fit weight (10, 1568)");
    teardown(&s);
}

static void conv2d_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = images(&s, 2, 3, 8, 8);
    ls_tensor *w = images(&s, 4, 3, 3, 3);

    LS_UNUSED(state);
    assert_refused(&s, ls_conv2d(s.tape, x, images(&s, 4, 1, 3, 3), NULL, NULL),
                   "conv2d: input (2, 3, 8, 8) does not fit weight (4, 1, 3, 3) in 1 group");
    assert_refused(
        &s, ls_conv2d(s.tape, x, images(&s, 4, 1, 3, 3), NULL, &(ls_conv2d_params){.groups = 3}),
        "conv2d: input (2, 3, 8, 8) does not fit weight (4, 1, 3, 3) in 3 groups");
    assert_refused(&s, ls_conv2d(s.tape, x, w, vector(&s, 3), NULL),
                   "conv2d: bias (3) does not fit weight (4, 3, 3, 3)");
    assert_refused(
        &s, ls_conv2d(s.tape, images(&s, 2, 3, 2, 8), w, NULL, NULL),
        "conv2d: input (2, 3, 2, 8) with padding (0, 0) is smaller than kernel (3, 3) with "
        "dilation (1, 1)");
    assert_refused(
        &s, ls_conv2d(s.tape, matrix(&s, 2, 3), w, NULL, NULL),
        "conv2d: input (2, 3) and weight (4, 3, 3, 3) are not (N, C, H, W) and (O, C / groups, "
        "KH, KW)");
    assert_refused(
        &s, ls_conv2d(s.tape, images(&s, 2, 3, 0, 8), w, NULL, NULL),
        "conv2d: input (2, 3, 0, 8) and weight (4, 3, 3, 3) are not (N, C, H, W) and (O, C / "
        "groups, KH, KW)");
    assert_refused(&s, ls_conv2d(s.tape, x, w, NULL, &(ls_conv2d_params){.stride = {1, -2}}),
                   "conv2d: stride (1, -2), padding (0, 0), dilation (0, 0): none may be negative");
    assert_refused(&s, ls_conv2d(s.tape, x, w, NULL, &(ls_conv2d_params){.groups = -1}),
                   "conv2d: groups is -1; it must be at least 1");
    teardown(&s);
}

static void conv1d_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = sequences(&s, 2, 3, 8);
    ls_tensor *w = sequences(&s, 4, 3, 3);

    LS_UNUSED(state);
    assert_refused(&s, ls_conv1d(s.tape, x, sequences(&s, 4, 1, 3), NULL, NULL),
                   "conv1d: input (2, 3, 8) does not fit weight (4, 1, 3) in 1 group");
    assert_refused(&s, ls_conv1d(s.tape, x, w, vector(&s, 3), NULL),
                   "conv1d: bias (3) does not fit weight (4, 3, 3)");
    assert_refused(
        &s, ls_conv1d(s.tape, x, w, NULL, &(ls_conv1d_params){.padding = 1, .dilation = 5}),
        "conv1d: input (2, 3, 8) with padding 1 is smaller than kernel 3 with dilation 5");
    assert_refused(&s, ls_conv1d(s.tape, images(&s, 2, 3, 1, 8), w, NULL, NULL),
                   "conv1d: input (2, 3, 1, 8) and weight (4, 3, 3) are not (N, C, T) and (O, C / "
                   "groups, K)");
    assert_refused(&s, ls_conv2d(s.tape, x, w, NULL, NULL),
                   "conv2d: input (2, 3, 8) and weight (4, 3, 3) are not (N, C, H, W) and (O, C / "
                   "groups, KH, KW)");
    assert_refused(&s, ls_conv1d(s.tape, x, w, NULL, &(ls_conv1d_params){.stride = -2}),
                   "conv1d: stride -2, padding 0, dilation 0: none may be negative");
    teardown(&s);
}

static void conv_transpose_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = sequences(&s, 2, 3, 8);
    ls_tensor *w = sequences(&s, 3, 4, 3);
    ls_tensor *image = images(&s, 2, 3, 1, 1);
    ls_tensor *kernel = images(&s, 3, 4, 1, 1);

    LS_UNUSED(state);
    assert_refused(&s, ls_conv_transpose1d(s.tape, x, sequences(&s, 4, 3, 3), NULL, NULL),
                   "conv_transpose1d: input (2, 3, 8) does not fit weight (4, 3, 3) in 1 group");
    assert_refused(
        &s, ls_conv_transpose1d(s.tape, x, w, NULL, &(ls_conv_transpose1d_params){.groups = 2}),
        "conv_transpose1d: input (2, 3, 8) does not fit weight (3, 4, 3) in 2 groups");
    assert_refused(&s, ls_conv_transpose1d(s.tape, x, w, vector(&s, 3), NULL),
                   "conv_transpose1d: bias (3) does not fit weight (3, 4, 3)");
    assert_refused(
        &s,
        ls_conv_transpose2d(s.tape, image, kernel, NULL,
                            &(ls_conv_transpose2d_params){.padding = {0, 1}}),
        "conv_transpose2d: input (2, 3, 1, 1) and weight (3, 4, 1, 1) with padding (0, 1) give a "
        "size of -1");
    assert_refused(&s,
                   ls_conv_transpose2d(
                       s.tape, image, kernel, NULL,
                       &(ls_conv_transpose2d_params){.stride = {2, 2}, .output_padding = {1, 2}}),
                   "conv_transpose2d: output_padding (1, 2) must not be negative, and be smaller "
                   "than stride (2, 2) or dilation (1, 1)");
    assert_refused(&s, ls_conv_transpose2d(s.tape, x, w, NULL, NULL),
                   "conv_transpose2d: input (2, 3, 8) and weight (3, 4, 3) are not (N, C, H, W) "
                   "and (C, O / groups, KH, KW)");
    teardown(&s);
}

static void batch_norm_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = images(&s, 2, 3, 4, 4);
    ls_tensor *c = vector(&s, 3);
    ls_tensor *d = vector(&s, 4);
    ls_tensor *one = matrix(&s, 1, 3);

    LS_UNUSED(state);
    assert_refused(&s, ls_batch_norm(s.tape, x, d, c, c, c, NULL),
                   "batch_norm: weight (4) does not fit input (2, 3, 4, 4)");
    assert_refused(&s, ls_bn_relu(s.tape, x, c, c, c, d, NULL),
                   "bn_relu: running_var (4) does not fit input (2, 3, 4, 4)");
    assert_refused(&s, ls_batch_norm(s.tape, c, c, c, c, c, NULL),
                   "batch_norm: input (3) is none of (N, C), (N, C, T) and (N, C, H, W)");
    assert_refused(
        &s, ls_batch_norm(s.tape, one, c, c, c, c, NULL),
        "batch_norm: training needs more than one value per channel, not input (1, 3): leave out "
        "a last batch of one row (--drop-last)");
    assert_refused(&s, ls_batch_norm(s.tape, x, c, c, c, c, &(ls_batch_norm_params){.momentum = 2}),
                   "batch_norm: momentum is 2, eps is 1e-05; momentum must be 0 to 1, eps over 0");
    assert_refused(&s, ls_batch_norm(s.tape, x, c, NULL, c, c, NULL), "batch_norm: bias is NULL");
    assert_refused(&s, ls_bn_add(s.tape, x, images(&s, 2, 3, 4, 5), c, c, c, c, NULL),
                   "bn_add: added (2, 3, 4, 5) and input (2, 3, 4, 4) must have the same shape");
    assert_refused(&s, ls_bn_add(s.tape, x, NULL, c, c, c, c, &(ls_batch_norm_params){.relu = 1}),
                   "bn_add_relu: added is NULL");
    ls_tape_set_training(s.tape, 0);
    assert_non_null(ls_batch_norm(s.tape, one, c, c, c, c, NULL));
    teardown(&s);
}

static void max_pool_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = images(&s, 2, 3, 4, 4);

    LS_UNUSED(state);
    assert_refused(&s, ls_max_pool2d(s.tape, x, NULL), "max_pool2d: the parameters are NULL");
    assert_refused(
        &s, ls_max_pool2d(s.tape, x, &(ls_pool2d_params){.kernel = {5, 2}}),
        "max_pool2d: input (2, 3, 4, 4) with padding (0, 0) is smaller than kernel (5, 2)");
    assert_refused(&s,
                   ls_max_pool2d(s.tape, matrix(&s, 4, 4), &(ls_pool2d_params){.kernel = {2, 2}}),
                   "max_pool2d: input (4, 4) is not (N, C, H, W)");
    assert_refused(
        &s, ls_max_pool2d(s.tape, x, &(ls_pool2d_params){.kernel = {2, 2}, .padding = {2, 0}}),
        "max_pool2d: kernel (2, 2), stride (0, 0), padding (2, 0): the kernel must be at least "
        "1, the padding at most half of it");
    assert_refused(
        &s, ls_max_pool2d(s.tape, x, &(ls_pool2d_params){.kernel = {0, 2}}),
        "max_pool2d: kernel (0, 2), stride (0, 0), padding (0, 0): the kernel must be at least "
        "1, the padding at most half of it");
    teardown(&s);
}

static void average_pool_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = images(&s, 2, 3, 4, 4);

    LS_UNUSED(state);
    assert_refused(&s, ls_avg_pool2d(s.tape, x, NULL), "avg_pool2d: the parameters are NULL");
    assert_refused(
        &s, ls_avg_pool2d(s.tape, x, &(ls_pool2d_params){.kernel = {5, 2}}),
        "avg_pool2d: input (2, 3, 4, 4) with padding (0, 0) is smaller than kernel (5, 2)");
    assert_refused(&s, ls_adaptive_avg_pool2d(s.tape, matrix(&s, 4, 4), 1, 1),
                   "adaptive_avg_pool2d: input (4, 4) is not (N, C, H, W)");
    assert_refused(&s, ls_adaptive_avg_pool2d(s.tape, x, 1, 0),
                   "adaptive_avg_pool2d: the output is 1 x 0; both must be at least 1");
    teardown(&s);
}

static void unequal_shapes_are_both_named(void **state)
{
    bench s = setup();
    ls_tensor *a = matrix(&s, 2, 3);
    ls_tensor *b = matrix(&s, 3, 2);

    LS_UNUSED(state);
    assert_refused(&s, ls_add(s.tape, a, b),
                   "add: a (2, 3) and b (3, 2) cannot be broadcast to one shape");
    assert_refused(&s, ls_add_relu(s.tape, a, b),
                   "add_relu: a (2, 3) and b (3, 2) must have the same shape");
    assert_refused(&s, ls_mse_loss(s.tape, a, b),
                   "mse_loss: prediction (2, 3) and target (3, 2) must have the same shape");
    teardown(&s);
}

static void cross_entropy_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *logits = matrix(&s, 2, 3);
    ls_tensor *three = zeros(&s, LS_I64, 1, (int64_t[]){3});
    ls_tensor *two = zeros(&s, LS_I64, 1, (int64_t[]){2});

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_write(two, (int64_t[]){0, -4}, 2));
    assert_refused(&s, ls_cross_entropy(s.tape, logits, three),
                   "cross_entropy: targets (3) int64 do not fit logits (2, 3); they must be (N) "
                   "int64 for (N, K)");
    assert_refused(&s, ls_cross_entropy(s.tape, logits, vector(&s, 2)),
                   "cross_entropy: targets (2) float32 do not fit logits (2, 3); they must be (N) "
                   "int64 for (N, K)");
    if (s.device->accel == NULL) {
        assert_refused(&s, ls_cross_entropy(s.tape, logits, two),
                       "cross_entropy of (2, 3), (2): target -4 of row 1 is outside [0, 3)");
    } else { // a queued operator's failure is that of the next wait
        assert_non_null(ls_cross_entropy(s.tape, logits, two));
        assert_status(LS_EINVAL, device_synchronize(s.device, "test"));
        assert_string_equal(ls_last_error(), "cross_entropy: target -4 of row 1 is outside [0, 3)");
    }
    teardown(&s);
}

static void reshape_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = matrix(&s, 4, 6);
    ls_tensor *none = matrix(&s, 0, 6);
    ls_tensor *scalar = zeros(&s, LS_F32, 0, NULL);

    LS_UNUSED(state);
    assert_refused(&s, ls_reshape(s.tape, x, 2, (int64_t[]){5, 5}),
                   "reshape: (4, 6) cannot be reshaped to (5, 5)");
    assert_refused(&s, ls_reshape(s.tape, x, 2, (int64_t[]){-1, 5}),
                   "reshape: (4, 6) cannot be reshaped to (-1, 5)");
    assert_refused(&s, ls_reshape(s.tape, x, 2, (int64_t[]){-1, -1}),
                   "reshape: (4, 6) cannot be reshaped to (-1, -1)");
    assert_refused(&s, ls_reshape(s.tape, none, 2, (int64_t[]){0, -1}),
                   "reshape: (0, 6) cannot be reshaped to (0, -1)");
    assert_refused(&s, ls_reshape(s.tape, x, 2, (int64_t[]){INT64_MAX, 4}),
                   "reshape: (4, 6) cannot be reshaped to (9223372036854775807, 4)");
    assert_refused(&s, ls_reshape(s.tape, x, 7, (int64_t[]){1, 1, 1, 1, 1, 4, 6}),
                   "reshape: 7 dimensions; 0 to 6 are supported");
    assert_refused(&s, ls_flatten(s.tape, scalar), "flatten: input () has no rows");
    assert_int_equal(ls_tensor_dim(ls_reshape(s.tape, none, 2, (int64_t[]){-1, 3}), 0), 0);
    teardown(&s);
}

static void integers_can_be_reshaped(void **state)
{
    bench s = setup();
    ls_tensor *targets = zeros(&s, LS_I64, 2, (int64_t[]){2, 3});
    const int64_t values[] = {5, 4, 3, 2, 1, 0};
    int64_t read[6];
    ls_tensor *y;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_write(targets, values, 6));
    y = ls_reshape(s.tape, targets, 1, (int64_t[]){-1});
    assert_status(LS_OK, ls_tape_status(s.tape));
    assert_int_equal(ls_tensor_n_dims(y), 1);
    assert_status(LS_OK, ls_tensor_read(y, read, 6));
    assert_memory_equal(read, values, sizeof(values));
    y = ls_flatten(s.tape, targets);
    assert_status(LS_OK, ls_tape_status(s.tape));
    assert_int_equal(ls_tensor_dtype(y), LS_I64);
    teardown(&s);
}

static void types_and_devices_must_agree(void **state)
{
    bench s = setup();
    ls_device *other = open_reference();
    ls_tensor *wide = zeros(&s, LS_F64, 2, (int64_t[]){2, 3});
    ls_tensor *whole = zeros(&s, LS_I32, 2, (int64_t[]){2, 3});
    ls_tensor *elsewhere = NULL;
    char devices[160];

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(other, LS_F32, 2, (int64_t[]){2, 3}, &elsewhere));
    assert_refused(&s, ls_add(s.tape, matrix(&s, 2, 3), wide),
                   "add: b is float64 but a is float32");
    assert_refused(&s, ls_relu(s.tape, whole),
                   "relu: input (2, 3) int32 must be float32 or float64");
    (void)snprintf(devices, sizeof(devices),
                   "relu: input (2, 3) float32 is on device %s, but the tape is on another "
                   "device %s",
                   test_device_name(), test_device_name());
    assert_refused(&s, ls_relu(s.tape, elsewhere), devices);
    ls_tensor_destroy(elsewhere);
    teardown(&s);
    ls_device_close(other);
}

/* One input has another type than the first: both are named. */
static void an_input_of_another_type_is_named(void **state)
{
    bench s = setup();
    ls_tensor *x = images(&s, 2, 3, 4, 4);
    ls_tensor *rows = matrix(&s, 4, 3);
    ls_tensor *c = vector(&s, 3);
    ls_tensor *c64 = zeros(&s, LS_F64, 1, (int64_t[]){3});
    ls_tensor *w64 = zeros(&s, LS_F64, 2, (int64_t[]){2, 3});
    ls_tensor *kernel = images(&s, 5, 3, 3, 3);
    ls_tensor *bias64 = zeros(&s, LS_F64, 1, (int64_t[]){5});
    ls_tensor *rows64 = zeros(&s, LS_F64, 2, (int64_t[]){4, 3});
    ls_tensor *whole = zeros(&s, LS_I64, 2, (int64_t[]){4, 3});

    LS_UNUSED(state);
    assert_refused(&s, ls_linear(s.tape, rows, w64, NULL),
                   "linear: weight is float64 but input is float32");
    assert_refused(&s, ls_conv2d(s.tape, x, kernel, bias64, NULL),
                   "conv2d: bias is float64 but input is float32");
    assert_refused(&s, ls_batch_norm(s.tape, x, c, c, c, c64, NULL),
                   "batch_norm: running_var is float64 but input is float32");
    assert_refused(&s, ls_layer_norm(s.tape, rows, c, c64, 0),
                   "layer_norm: bias is float64 but input is float32");
    assert_refused(&s, ls_matmul(s.tape, rows, rows64, 1), "matmul: b is float64 but a is float32");
    assert_refused(&s, ls_mse_loss(s.tape, rows64, rows),
                   "mse_loss: target is float32 but prediction is float64");
    assert_refused(&s, ls_concat(s.tape, (ls_tensor *[]){rows, rows, rows64}, 3, 0),
                   "concat: input 3 is float64 but input 1 is float32");
    assert_refused(&s, ls_softmax(s.tape, whole, 1),
                   "softmax: input (4, 3) int64 must be float32 or float64");
    assert_refused(&s, ls_cross_entropy(s.tape, rows, NULL), "cross_entropy: targets is NULL");
    teardown(&s);
}

static void attention_refuses_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *q = zeros(&s, LS_F32, 3, (int64_t[]){2, 4, 3});
    ls_tensor *k = zeros(&s, LS_F32, 3, (int64_t[]){2, 5, 3});
    ls_tensor *five = zeros(&s, LS_F32, 3, (int64_t[]){5, 5, 3});
    ls_tensor *row = vector(&s, 3);
    ls_tensor *empty = matrix(&s, 4, 0);
    ls_tensor *mask = zeros(&s, LS_F32, 4, (int64_t[]){3, 2, 4, 5});
    ls_tensor *ints = zeros(&s, LS_I64, 2, (int64_t[]){4, 5});
    ls_tensor *learned = matrix(&s, 4, 5);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(learned));
    assert_refused(&s, ls_attention(s.tape, q, k, q, NULL),
                   "attention: q (2, 4, 3), k (2, 5, 3) and v (2, 4, 3) are not (..., T, D), "
                   "(..., S, D) and (..., S, E)");
    assert_refused(&s, ls_attention(s.tape, q, five, five, NULL),
                   "attention: q (2, 4, 3), k (5, 5, 3) and v (5, 5, 3) are not (..., T, D), "
                   "(..., S, D) and (..., S, E)");
    assert_refused(&s, ls_attention(s.tape, row, k, k, NULL),
                   "attention: q (3), k (2, 5, 3) and v (2, 5, 3) are not (..., T, D), "
                   "(..., S, D) and (..., S, E)");
    assert_refused(&s, ls_attention(s.tape, empty, empty, empty, NULL),
                   "attention: q (4, 0), k (4, 0) and v (4, 0) are not (..., T, D), "
                   "(..., S, D) and (..., S, E)");
    assert_refused(&s, ls_attention(s.tape, q, NULL, k, NULL), "attention: k is NULL");
    assert_refused(
        &s, ls_attention(s.tape, q, k, k, &(ls_attention_params){.mask = mask}),
        "attention: mask (3, 2, 4, 5) cannot be broadcast to the scores of q (2, 4, 3) and "
        "k (2, 5, 3)");
    assert_refused(&s, ls_attention(s.tape, q, k, k, &(ls_attention_params){.mask = ints}),
                   "attention: mask is int64; it must be uint8 or float32");
    assert_refused(&s, ls_attention(s.tape, q, k, k, &(ls_attention_params){.mask = learned}),
                   "attention: mask gets no gradient: use ls_matmul() and ls_softmax_over()");
    assert_refused(&s, ls_attention(s.tape, q, k, k, &(ls_attention_params){.dropout = 1.5}),
                   "attention: the probability is 1.5; it must be 0 to 1");
    assert_refused(&s, ls_attention(s.tape, q, k, k, &(ls_attention_params){.dropout = 0.5}),
                   "attention: call ls_tape_set_random() first: without it all ranks would drop "
                   "the same elements");
    assert_refused(&s, ls_matmul(s.tape, q, five, 1),
                   "matmul: a (2, 4, 3) cannot be multiplied with b (5, 5, 3) transposed");
    assert_refused(&s, ls_matmul(s.tape, row, k, 1),
                   "matmul: a (3) cannot be multiplied with b (2, 5, 3) transposed");
    teardown(&s);
}

/* All results of a failed operator are NULL. */
static ls_tensor *split(bench *s, ls_tensor *x, int axis, const int64_t *sizes, int n)
{
    ls_tensor *out[3] = {x, x, x};

    ls_split(s->tape, x, axis, sizes, n, out);
    for (int i = 1; i < n && i < 3; i++)
        assert_null(out[i]);
    return n > 0 ? out[0] : NULL;
}

static void split_names_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = matrix(&s, 4, 3);

    LS_UNUSED(state);
    assert_refused(&s, split(&s, x, 2, (int64_t[]){1, 2}, 2),
                   "split: input (4, 3) has no dimension 2");
    assert_refused(&s, split(&s, x, 1, (int64_t[]){1, 1}, 2),
                   "split: the sizes add up to 2, but dimension 1 of input (4, 3) has 3 positions");
    assert_refused(&s, split(&s, x, 1, (int64_t[]){-1, 2, 2}, 3),
                   "split: sizes[0] is -1; it must be 0 to 3");
    assert_refused(&s, split(&s, x, 1, (int64_t[]){1, INT64_MAX}, 2),
                   "split: sizes[1] is 9223372036854775807; it must be 0 to 3");
    assert_refused(&s, split(&s, x, 1, NULL, 2), "split: the sizes are NULL");
    assert_refused(&s, split(&s, x, 1, (int64_t[]){3}, 0),
                   "split: 0 outputs at out; at least 1 is needed");
    assert_refused(&s, split(&s, NULL, 1, (int64_t[]){1, 2}, 2), "split: input is NULL");
    teardown(&s);
}

static void operators_of_later_architectures_name_what_does_not_fit(void **state)
{
    bench s = setup();
    ls_tensor *x = matrix(&s, 4, 3);
    ls_tensor *y = matrix(&s, 4, 2);
    ls_tensor *three = vector(&s, 3);

    LS_UNUSED(state);
    assert_refused(&s, ls_activate(s.tape, x, 0),
                   "activate: 0 is not an ls_activation without numbers");
    assert_refused(&s, ls_clamp(s.tape, x, 2, 1), "clamp: low is 2, but high is 1");
    assert_refused(&s, ls_softplus(s.tape, x, 0, 20), "softplus: beta is 0; it must be over 0");
    assert_refused(&s, ls_mul(s.tape, x, y),
                   "mul: a (4, 3) and b (4, 2) cannot be broadcast to one shape");
    assert_refused(&s, ls_div(s.tape, y, three),
                   "div: a (4, 2) and b (3) cannot be broadcast to one shape");
    assert_refused(&s, ls_expand(s.tape, x, 1, (int64_t[]){3}),
                   "expand: (4, 3) cannot be broadcast to (3)");
    assert_refused(&s, ls_expand(s.tape, x, 7, (int64_t[]){1, 1, 1, 1, 1, 4, 3}),
                   "expand: 7 dimensions at dims; 0 to 6 are supported");
    assert_refused(&s, ls_masked_fill(s.tape, x, y, 0),
                   "masked_fill: mask (4, 2) float32 must be uint8");
    assert_refused(&s, ls_masked_fill(s.tape, x, zeros(&s, LS_U8, 1, (int64_t[]){2}), 0),
                   "masked_fill: (4, 3), a number and mask (2) cannot be broadcast to one shape");
    assert_refused(
        &s, ls_embedding(s.tape, x, y, -1),
        "embedding: indices (4, 2) float32 must be int64 of at most 5 dimensions, weight "
        "(4, 3) (V, D)");
    assert_refused(
        &s, ls_pad(s.tape, x, (int64_t[]){1}, 1, 0),
        "pad: 1 numbers at padding do not fit input (4, 3): two for each dimension, from "
        "the last on");
    assert_refused(&s, ls_pad(s.tape, x, (int64_t[]){0, -1}, 2, 0),
                   "pad: 0 and -1 positions around dimension 1");
    assert_refused(&s, ls_l1_loss(s.tape, x, y, NULL),
                   "l1_loss: prediction (4, 3) and target (4, 2) must have the same shape");
    assert_refused(&s, ls_bce_with_logits(s.tape, x, y, NULL),
                   "bce_with_logits: logits (4, 3) and target (4, 2) must have the same shape");
    assert_refused(&s, ls_sum(s.tape, x, (int[]){2}, 1, 0), "sum: input (4, 3) has no dimension 2");
    assert_refused(&s, ls_mean(s.tape, x, (int[]){1, -1}, 2, 0),
                   "mean: dimension -1 of input (4, 3) is named twice");
    assert_refused(&s, ls_max(s.tape, matrix(&s, 2, 0), (int[]){1}, 1, 0),
                   "max: input (2, 0) has no elements along these dimensions");
    assert_refused(&s, ls_cumsum(s.tape, x, 2), "cumsum: input (4, 3) has no dimension 2");
    assert_refused(&s, ls_transpose(s.tape, x, 0, 2),
                   "permute: input (4, 3) has no dimensions 0 and 2");
    assert_refused(&s, ls_permute(s.tape, x, (int[]){1, 1}),
                   "permute: order[1] is 1; order must have each of 0 to 1 once");
    assert_refused(&s, ls_concat(s.tape, (ls_tensor *[]){x, y}, 2, 0),
                   "concat: (4, 2) does not fit (4, 3) along dimension 0");
    assert_refused(&s, ls_concat(s.tape, (ls_tensor *[]){x, NULL}, 2, 0),
                   "concat: NULL does not fit (4, 3) along dimension 0");
    assert_refused(&s, ls_concat(s.tape, (ls_tensor *[]){x, y}, 2, 2),
                   "concat: input (4, 3) has no dimension 2");
    assert_refused(&s, ls_slice(s.tape, x, 1, 2, 2),
                   "slice: 2 positions from 2 on, but dimension 1 has 3");
    assert_refused(&s, ls_matmul(s.tape, x, y, 0),
                   "matmul: a (4, 3) cannot be multiplied with b (4, 2)");
    assert_refused(&s, ls_matmul(s.tape, x, y, 1),
                   "matmul: a (4, 3) cannot be multiplied with b (4, 2) transposed");
    assert_refused(&s, ls_layer_norm(s.tape, y, three, three, 0),
                   "layer_norm: weight (3) does not fit input (4, 2)");
    assert_refused(&s, ls_layer_norm(s.tape, x, three, three, -1),
                   "layer_norm: eps is -1; it must be over 0");
    assert_refused(&s, ls_group_norm(s.tape, x, 2, NULL, NULL, 0),
                   "group_norm: input (4, 3) cannot be split into 2 groups of channels");
    assert_refused(&s, ls_group_norm(s.tape, y, 2, three, NULL, 0),
                   "group_norm: weight (3) does not fit input (4, 2)");
    assert_refused(&s, ls_group_norm(s.tape, x, 1, three, three, -1),
                   "group_norm: eps is -1; it must be over 0");
    assert_refused(&s, ls_group_norm(s.tape, sequences(&s, 2, 3, 0), 1, NULL, NULL, 0),
                   "group_norm: input (2, 3, 0) has no elements in a group");
    assert_refused(&s, ls_softmax(s.tape, zeros(&s, LS_F32, 0, NULL), 1),
                   "softmax: input () has no rows");
    assert_refused(&s, ls_stochastic_depth(s.tape, x, 2),
                   "stochastic_depth: the probability is 2; it must be 0 to 1");
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_names_what_does_not_fit),
        cmocka_unit_test(conv2d_names_what_does_not_fit),
        cmocka_unit_test(conv1d_names_what_does_not_fit),
        cmocka_unit_test(conv_transpose_names_what_does_not_fit),
        cmocka_unit_test(batch_norm_names_what_does_not_fit),
        cmocka_unit_test(max_pool_names_what_does_not_fit),
        cmocka_unit_test(average_pool_names_what_does_not_fit),
        cmocka_unit_test(unequal_shapes_are_both_named),
        cmocka_unit_test(cross_entropy_names_what_does_not_fit),
        cmocka_unit_test(reshape_names_what_does_not_fit),
        cmocka_unit_test(integers_can_be_reshaped),
        cmocka_unit_test(types_and_devices_must_agree),
        cmocka_unit_test(an_input_of_another_type_is_named),
        cmocka_unit_test(attention_refuses_what_does_not_fit),
        cmocka_unit_test(split_names_what_does_not_fit),
        cmocka_unit_test(operators_of_later_architectures_name_what_does_not_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
