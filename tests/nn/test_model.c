/* SPDX-License-Identifier: Apache-2.0 */
/* test_model.c - names, initial values and errors of layers. */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "nn/buffers.h"
#include "nn/convnet.h"

#include <math.h>
#include <string.h>

static void assert_names(const ls_named *items, int n, const char *const *want, int n_want)
{
    assert_int_equal(n, n_want);
    for (int i = 0; i < n; i++) {
        assert_string_equal(items[i].name, want[i]);
        assert_non_null(items[i].tensor);
        assert_null(items[i].bytes);
    }
}

/* Bytes of the block from its start to the end of the tensor; 0 when it is elsewhere. */
static size_t end_within(const buffer_block *block, const ls_tensor *t)
{
    const char *start = tensor_elements(block->memory);
    const char *at = tensor_elements(t);

    return at >= start && at + tensor_bytes(t) <= start + tensor_bytes(block->memory)
               ? (size_t)(at - start) + tensor_bytes(t)
               : 0;
}

/* The second layer's statistics do not fit behind the others; the third layer's fit behind its
 * own. */
static void buffers_lie_in_few_blocks(void **state)
{
    static const int channels[] = {3, 50000, 16};
    static const char *const names[] = {"a", "b", "c"};
    ls_device *device = open_reference();
    const buffer_block *blocks;
    const ls_named *items;
    ls_model *model = NULL;
    size_t used[8] = {0};
    int n_blocks;
    int at = 0;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    (void)model_buffer_blocks(model, &n_blocks);
    assert_int_equal(n_blocks, 0);
    for (int i = 0; i < 3; i++)
        assert_non_null(ls_nn_batch_norm2d(model, names[i], channels[i], NULL));
    items = ls_model_buffers(model, &n);
    blocks = model_buffer_blocks(model, &n_blocks);
    assert_in_range(n_blocks, 2, 3);
    for (int i = 0; i < n; i++) {
        while (end_within(&blocks[at], items[i].tensor) == 0)
            assert_true(++at < n_blocks);
        assert_true(end_within(&blocks[at], items[i].tensor) - tensor_bytes(items[i].tensor) >=
                    used[at]);
        used[at] = end_within(&blocks[at], items[i].tensor);
        assert_int_equal((uintptr_t)tensor_elements(items[i].tensor) % 64, 0);
    }
    for (int i = 0; i < n_blocks; i++)
        assert_int_equal(blocks[i].used, used[i]);
    ls_model_destroy(model);
    ls_device_close(device);
}

static void names_are_those_of_pytorchs_state_dict(void **state)
{
    static const char *const in_state[] = {"layer1.0.weight",
                                           "layer1.0.bias",
                                           "layer1.1.weight",
                                           "layer1.1.bias",
                                           "layer1.1.running_mean",
                                           "layer1.1.running_var",
                                           "layer1.1.num_batches_tracked",
                                           "layer2.0.weight",
                                           "layer2.0.bias",
                                           "layer2.1.weight",
                                           "layer2.1.bias",
                                           "layer2.1.running_mean",
                                           "layer2.1.running_var",
                                           "layer2.1.num_batches_tracked",
                                           "fc.weight",
                                           "fc.bias"};
    static const char *const in_parameters[] = {
        "layer1.0.weight", "layer1.0.bias",   "layer1.1.weight", "layer1.1.bias", "layer2.0.weight",
        "layer2.0.bias",   "layer2.1.weight", "layer2.1.bias",   "fc.weight",     "fc.bias"};
    static const char *const in_buffers[] = {
        "layer1.1.running_mean", "layer1.1.running_var", "layer1.1.num_batches_tracked",
        "layer2.1.running_mean", "layer2.1.running_var", "layer2.1.num_batches_tracked"};
    ls_device *device = open_reference();
    convnet net;
    const ls_named *items;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, convnet_create(device, 1, &net));
    items = ls_model_state(net.model, &n);
    assert_names(items, n, in_state, (int)LS_COUNT_OF(in_state));
    items = ls_model_parameters(net.model, &n);
    assert_names(items, n, in_parameters, (int)LS_COUNT_OF(in_parameters));
    items = ls_model_buffers(net.model, &n);
    assert_names(items, n, in_buffers, (int)LS_COUNT_OF(in_buffers));
    assert_int_equal(ls_tensor_n_dims(items[2].tensor), 0);
    assert_int_equal(ls_tensor_dtype(items[2].tensor), LS_I64);
    ls_model_destroy(net.model);
    ls_device_close(device);
}

static void layer_of(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    out[0] = ls_forward(tape, arg, in[0]);
}

static void a_checkpointed_batch_norm_counts_a_batch_once(void **state)
{
    ls_device *device = open_reference();
    ls_model *model;
    ls_layer *norm;
    ls_tape *tape;
    ls_tensor *x = random_tensor(device, LS_F32, 2, (int64_t[]){4, 3}, 1);
    ls_tensor *y;
    int64_t n_batches = 0;
    const ls_named *buffers;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    norm = ls_nn_batch_norm2d(model, "bn", 3, NULL);
    assert_status(LS_OK, ls_model_status(model));
    assert_status(LS_OK, ls_tape_create(device, &tape));
    ls_tape_checkpoint(tape, layer_of, norm, 0, &x, 1, &y, 1);
    assert_status(LS_OK, ls_backward(tape, ls_mse_loss(tape, y, x), 1));
    buffers = ls_model_buffers(model, &n);
    assert_string_equal(buffers[2].name, "bn.num_batches_tracked");
    assert_status(LS_OK, ls_tensor_read(buffers[2].tensor, &n_batches, 1));
    assert_int_equal(n_batches, 1);
    ls_tape_destroy(tape);
    ls_model_destroy(model);
    ls_tensor_destroy(x);
    ls_device_close(device);
}

/* Smallest, largest and mean of a tensor. */
typedef struct spread {
    double low;
    double high;
    double mean;
    double variance;
} spread;

static spread spread_of(const ls_tensor *t)
{
    const size_t count = ls_tensor_count(t);
    double *v = elements_of(t);
    spread s = {.low = (double)INFINITY, .high = (double)-INFINITY};

    for (size_t i = 0; i < count; i++) {
        s.low = fmin(s.low, v[i]);
        s.high = fmax(s.high, v[i]);
        s.mean += v[i] / (double)count;
    }
    for (size_t i = 0; i < count; i++)
        s.variance += pow(v[i] - s.mean, 2) / (double)count;
    ls_free(v);
    return s;
}

/* Uniform in +-bound: within it, reaching near it, mean 0, variance bound^2 / 3. */
static void assert_uniform(const ls_tensor *t, double bound)
{
    const spread s = spread_of(t);

    assert_true(s.low >= -bound * 1.000001 && s.high <= bound * 1.000001);
    assert_true(s.low < -0.95 * bound && s.high > 0.95 * bound);
    assert_true(fabs(s.mean) < 0.05 * bound);
    assert_true(fabs(s.variance - bound * bound / 3) < 0.05 * bound * bound);
}

static void weights_start_as_pytorchs(void **state)
{
    ls_device *device = open_reference();
    ls_model *model = NULL;
    const ls_named *items;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 42, &model));
    assert_non_null(
        ls_nn_conv2d(model, "conv", 16, 400, &(ls_nn_conv2d_options){.kernel = {5, 3}}));
    assert_non_null(ls_nn_conv2d(model, "grouped", 16, 400,
                                 &(ls_nn_conv2d_options){.kernel = {3, 3}, .groups = 4}));
    assert_non_null(ls_nn_linear(model, "fc", 100, 400, 0));
    assert_non_null(ls_nn_conv1d(model, "sequence", 16, 400,
                                 &(ls_nn_conv1d_options){.kernel = 5, .groups = 2}));
    assert_non_null(ls_nn_conv_transpose1d(
        model, "up", 400, 16, &(ls_nn_conv_transpose1d_options){.kernel = 3, .groups = 2}));
    assert_non_null(ls_nn_conv_transpose2d(model, "up2", 100, 400,
                                           &(ls_nn_conv_transpose2d_options){.kernel = {2, 3}}));
    items = ls_model_parameters(model, &n);
    assert_int_equal(n, 12);
    assert_uniform(items[0].tensor, 1 / sqrt(16 * 5 * 3));
    assert_uniform(items[1].tensor, 1 / sqrt(16 * 5 * 3));
    assert_int_equal(ls_tensor_dim(items[2].tensor, 1), 4);
    assert_uniform(items[2].tensor, 1 / sqrt(4 * 3 * 3));
    assert_uniform(items[3].tensor, 1 / sqrt(4 * 3 * 3));
    assert_uniform(items[4].tensor, 0.1);
    assert_uniform(items[5].tensor, 0.1);
    assert_int_equal(ls_tensor_n_dims(items[6].tensor), 3);
    assert_int_equal(ls_tensor_dim(items[6].tensor, 1), 8);
    assert_int_equal(ls_tensor_dim(items[6].tensor, 2), 5);
    assert_uniform(items[6].tensor, 1 / sqrt(8 * 5));
    assert_uniform(items[7].tensor, 1 / sqrt(8 * 5));
    assert_int_equal(ls_tensor_dim(items[8].tensor, 0), 400);
    assert_uniform(items[8].tensor, 1 / sqrt(8 * 3));
    assert_int_equal(ls_tensor_dim(items[9].tensor, 0), 16);
    assert_int_equal(ls_tensor_dim(items[10].tensor, 1), 400);
    assert_uniform(items[10].tensor, 1 / sqrt(400 * 2 * 3));
    assert_uniform(items[11].tensor, 1 / sqrt(400 * 2 * 3));
    ls_model_destroy(model);
    ls_device_close(device);
}

static void kaiming_normal_weights_have_the_variance_of_their_fan_out(void **state)
{
    ls_device *device = open_reference();
    ls_model *model = NULL;
    const ls_named *items;
    spread s;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 42, &model));
    assert_non_null(
        ls_nn_conv2d(model, "conv", 40, 400,
                     &(ls_nn_conv2d_options){.kernel = {3, 3}, .init = LS_INIT_KAIMING_NORMAL}));
    items = ls_model_parameters(model, &n);
    s = spread_of(items[0].tensor);
    assert_true(fabs(s.mean) < 0.01 * sqrt(s.variance));
    assert_true(fabs(s.variance * 400 * 9 / 2 - 1) < 0.02);
    // A normal distribution reaches past three deviations, a uniform one would not.
    assert_true(s.high > 3 * sqrt(s.variance) && s.low < -3 * sqrt(s.variance));
    assert_uniform(items[1].tensor, 1 / sqrt(40 * 9));
    assert_null(ls_nn_conv2d(model, "odd", 1, 1,
                             &(ls_nn_conv2d_options){.kernel = {1, 1}, .init = (ls_nn_init)7}));
    assert_status(LS_EINVAL, ls_model_status(model));
    assert_string_equal(ls_last_error(), "layer odd: 7 is not an ls_nn_init");
    ls_model_destroy(model);
    ls_device_close(device);
}

static void norms_have_the_parameters_that_are_asked_for(void **state)
{
    static const char *const names[] = {"groups.weight", "groups.bias", "no_bias.weight"};
    ls_device *device = open_reference();
    ls_model *model = NULL;
    const ls_named *items;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 42, &model));
    assert_non_null(ls_nn_group_norm(model, "groups", 2, 6, 0));
    assert_non_null(
        ls_nn_layer_norm(model, "none", 6, &(ls_nn_layer_norm_options){.no_affine = 1}));
    assert_non_null(
        ls_nn_layer_norm(model, "no_bias", 6, &(ls_nn_layer_norm_options){.no_bias = 1}));
    items = ls_model_parameters(model, &n);
    assert_names(items, n, names, (int)LS_COUNT_OF(names));
    assert_elements(items[0].tensor, (double[]){1, 1, 1, 1, 1, 1}, 0);
    assert_elements(items[1].tensor, (double[]){0, 0, 0, 0, 0, 0}, 0);
    assert_elements(items[2].tensor, (double[]){1, 1, 1, 1, 1, 1}, 0);
    assert_null(ls_nn_group_norm(model, "odd", 4, 6, 0));
    assert_status(LS_EINVAL, ls_model_status(model));
    assert_string_equal(ls_last_error(), "layer odd: 6 channels cannot be split into 4 groups");
    ls_model_destroy(model);
    ls_device_close(device);
}

static void batch_norm_starts_as_the_identity(void **state)
{
    ls_device *device = open_reference();
    ls_model *model = NULL;
    const ls_named *items;
    int64_t count = -1;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 42, &model));
    assert_non_null(ls_nn_batch_norm2d(model, "bn", 2, NULL));
    items = ls_model_state(model, &n);
    assert_int_equal(n, 5);
    assert_elements(items[0].tensor, (double[]){1, 1}, 0);
    assert_elements(items[1].tensor, (double[]){0, 0}, 0);
    assert_elements(items[2].tensor, (double[]){0, 0}, 0);
    assert_elements(items[3].tensor, (double[]){1, 1}, 0);
    assert_status(LS_OK, ls_tensor_read(items[4].tensor, &count, 1));
    assert_int_equal(count, 0);
    ls_model_destroy(model);
    ls_device_close(device);
}

static bool are_equal(const ls_tensor *a, const ls_tensor *b)
{
    void *first = copy_of(a);
    void *second = copy_of(b);
    const bool equal = memcmp(first, second, tensor_bytes(a)) == 0;

    ls_free(first);
    ls_free(second);
    return equal;
}

static void a_batch_norm_adds_before_its_relu(void **state)
{
    const ls_nn_batch_norm_options relu = {.relu = 1};
    ls_device *device = open_reference();
    ls_tensor *x = tensor_of(device, LS_F32, 2, (int64_t[]){2, 1}, (double[]){-2, 2});
    ls_tensor *added = tensor_of(device, LS_F32, 2, (int64_t[]){2, 1}, (double[]){-3, 0.5});
    ls_model *model = NULL;
    ls_tape *tape = NULL;
    ls_layer *norm;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    assert_status(LS_OK, ls_tape_create(device, &tape));
    norm = ls_nn_batch_norm1d(model, "bn", 1, &(ls_nn_batch_norm_options){.eps = 1e-12});
    assert_elements(ls_forward_add(tape, norm, x, added, 0), (double[]){-4, 1.5}, 1e-6);
    assert_elements(ls_forward_add(tape, norm, x, added, 1), (double[]){0, 1.5}, 1e-6);
    assert_elements(ls_layer_tensor(norm, "num_batches_tracked"), (double[]){2}, 0);
    assert_null(ls_forward_add(tape, norm, x, NULL, 1));
    assert_string_equal(ls_last_error(), "bn: bn_add_relu: added is NULL");
    ls_tape_reset(tape);
    assert_null(ls_forward_add(tape, ls_nn_batch_norm1d(model, "cut", 1, &relu), x, added, 1));
    assert_string_equal(ls_last_error(), "cut: ls_forward_add() needs a batch norm without relu");
    ls_tape_reset(tape);
    assert_null(ls_forward_add(tape, ls_nn_linear(model, "fc", 1, 1, 0), x, added, 0));
    assert_string_equal(ls_last_error(), "fc: ls_forward_add() needs a batch norm without relu");
    assert_null(ls_forward_add(tape, NULL, x, added, 0));
    destroy_all((ls_tensor *[]){x, added}, 2);
    ls_tape_destroy(tape);
    ls_model_destroy(model);
    ls_device_close(device);
}

static void the_seed_alone_decides_the_initial_values(void **state)
{
    ls_device *device = open_reference();
    convnet a;
    convnet b;
    convnet c;
    const ls_named *items[3];
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, convnet_create(device, 7, &a));
    assert_status(LS_OK, convnet_create(device, 7, &b));
    assert_status(LS_OK, convnet_create(device, 8, &c));
    items[0] = ls_model_state(a.model, &n);
    items[1] = ls_model_state(b.model, &n);
    items[2] = ls_model_state(c.model, &n);
    for (int i = 0; i < n; i++)
        assert_true(are_equal(items[0][i].tensor, items[1][i].tensor));
    assert_false(are_equal(items[0][0].tensor, items[2][0].tensor));
    ls_model_destroy(a.model);
    ls_model_destroy(b.model);
    ls_model_destroy(c.model);
    ls_device_close(device);
}

static void layers_without_bias_have_none(void **state)
{
    ls_device *device = open_reference();
    ls_model *model = NULL;
    ls_tape *tape = NULL;
    ls_layer *conv;
    ls_layer *fc;
    ls_tensor *x = random_tensor(device, LS_F32, 4, (int64_t[]){2, 1, 1, 1}, 1);
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    assert_status(LS_OK, ls_tape_create(device, &tape));
    conv =
        ls_nn_conv2d(model, "conv", 1, 3, &(ls_nn_conv2d_options){.kernel = {1, 1}, .no_bias = 1});
    fc = ls_nn_linear(model, "fc", 3, 2, 1);
    (void)ls_model_parameters(model, &n);
    assert_int_equal(n, 2);
    assert_non_null(ls_forward(tape, fc, ls_flatten(tape, ls_forward(tape, conv, x))));
    ls_tape_destroy(tape);
    ls_tensor_destroy(x);
    ls_model_destroy(model);
    ls_device_close(device);
}

/* Elements -3 to 3 in turn, times `step`. */
static void fill_in_turn(ls_tensor *t, int cycle, double first, double step)
{
    float values[64];

    assert_true(ls_tensor_count(t) <= LS_COUNT_OF(values));
    for (size_t i = 0; i < ls_tensor_count(t); i++)
        values[i] = (float)(step * ((double)(i % (size_t)cycle) + first));
    assert_status(LS_OK, ls_tensor_write(t, values, ls_tensor_count(t)));
}

/* What torch.nn.MultiheadAttention(4, 2, batch_first=True) of PyTorch 2.11 gives with these
 * weights. */
static void self_attention_is_that_of_pytorch(void **state)
{
    static const char *const names[] = {"a.in_proj_weight", "a.in_proj_bias", "a.out_proj.weight",
                                        "a.out_proj.bias"};
    const double want[] = {-0.47273878, 2.5370846,   0.34362017,  -2.1167593,  -0.06152822,
                           0.1139596,   0.31715478,  -1.21531623, 0.86593141,  -3.84228352,
                           0.66620204,  -0.14823215, -1.58017399, -1.63888605, -0.87449442,
                           1.07322383,  -0.74509396, -0.8283852,  -0.22986774, 0.29942244,
                           0.08873484,  -1.4725085,  0.3811314,   0.16592944};
    ls_device *device = open_reference();
    ls_tensor *x = NULL;
    ls_model *model = NULL;
    ls_tape *tape = NULL;
    const ls_named *items;
    ls_layer *layer;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 3, (int64_t[]){2, 3, 4}, &x));
    layer = ls_nn_self_attention(model, "a", 4, 2);
    items = ls_model_parameters(model, &n);
    assert_names(items, n, names, 4);
    for (int i = 0; i < n; i++)
        fill_in_turn(items[i].tensor, 7, -3, 0.25);
    fill_in_turn(x, 5, -2, 1);
    assert_elements(ls_forward(tape, layer, x), want, 1e-5);
    assert_null(ls_forward(tape, layer, ls_reshape(tape, x, 2, (int64_t[]){6, 4})));
    assert_status(LS_EINVAL, ls_tape_status(tape));
    assert_string_equal(ls_last_error(), "a: the input has 2 dimensions; it must be (N, T, D)");
    ls_tape_destroy(tape);
    ls_tensor_destroy(x);
    ls_model_destroy(model);
    ls_device_close(device);
}

static void an_embedding_has_a_row_of_padding(void **state)
{
    ls_device *device = open_reference();
    ls_model *model = NULL;
    ls_tape *tape = NULL;
    ls_tensor *ids = NULL;
    ls_layer *layer;
    const ls_tensor *y;
    float weight[15];

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 2, (int64_t[]){1, 3}, &ids));
    assert_status(LS_OK, ls_tensor_write(ids, (int64_t[]){4, 2, 4}, 3));
    layer = ls_nn_embedding(model, "words", 5, 3, 2);
    assert_status(LS_OK, ls_model_status(model));
    assert_status(LS_OK, ls_tensor_read(ls_layer_tensor(layer, "weight"), weight, 15));
    y = ls_forward(tape, layer, ids);
    assert_status(LS_OK, ls_tape_status(tape));
    assert_int_equal(3, ls_tensor_n_dims(y));
    for (int i = 0; i < 3; i++) {
        assert_true(element_of(y, (size_t)i) == (double)weight[12 + i] && weight[12 + i] != 0);
        assert_true(weight[6 + i] == 0 && element_of(y, (size_t)(3 + i)) == 0);
    }
    assert_null(ls_nn_embedding(model, "bad", 5, 3, 5));
    assert_status(LS_EINVAL, ls_model_status(model));
    assert_non_null(strstr(ls_last_error(), "layer bad: 5 rows of width 3, padding_index 5"));
    ls_tape_destroy(tape);
    ls_tensor_destroy(ids);
    ls_model_destroy(model);
    assert_status(LS_OK, ls_device_close(device));
}

static void layer_norm_normalises_channels_first_or_last(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *x = NULL;
    ls_model *model = NULL;
    ls_tape *tape = NULL;
    ls_layer *first;
    ls_layer *last;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, ls_tensor_create(device, LS_F32, 4, (int64_t[]){1, 2, 1, 2}, &x));
    fill_in_turn(x, 3, 0, 1); // 0 1, 2 0
    last = ls_nn_layer_norm(model, "last", 2, NULL);
    first = ls_nn_layer_norm(model, "first", 2,
                             &(ls_nn_layer_norm_options){.eps = 0.75, .channels_first = 1});
    ls_model_init(model, "first.bias", &(ls_nn_init_options){.kind = LS_INIT_CONSTANT, .value = 3});
    assert_elements(ls_forward(tape, last, x), (double[]){-1, 1, 1, -1}, 1e-4);
    // Means 1 and 1/2, variances 1 and 1/4.
    assert_elements(ls_forward(tape, first, x),
                    (double[]){3 - 1 / sqrt(1.75), 3.5, 3 + 1 / sqrt(1.75), 2.5}, 1e-6);
    ls_tape_destroy(tape);
    ls_tensor_destroy(x);
    ls_model_destroy(model);
    ls_device_close(device);
}

static void parameters_are_named(void **state)
{
    static const char *const names[] = {"class_token", "fc.weight", "fc.bias"};
    ls_device *device = open_reference();
    ls_tensor *token;
    ls_model *model = NULL;
    const ls_named *items;
    ls_layer *layer;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    token = ls_nn_parameter(model, "class_token", 3, (int64_t[]){1, 1, 500});
    layer = ls_nn_linear(model, "fc", 2, 1, 0);
    items = ls_model_parameters(model, &n);
    assert_names(items, n, names, 3);
    assert_ptr_equal(items[0].tensor, token);
    assert_true(element_of(token, 499) == 0);
    assert_ptr_equal(ls_layer_tensor(layer, "bias"), items[2].tensor);
    assert_null(ls_layer_tensor(layer, "c.bias"));
    assert_status(LS_OK, ls_model_status(model));
    assert_null(ls_nn_self_attention(model, "a", 6, 4));
    ls_model_destroy(model);
    ls_device_close(device);
}

static void bad_layers_mark_the_model(void **state)
{
    static const char *const texts[] = {
        "layer fc: 0 to 3 features; both must be at least 1",
        "layer conv: 3 and 4 channels cannot be split into 2 groups",
        "layer conv: 3 to 4 channels, kernel (0, 0); all must be at least 1",
        "layer conv: stride, padding and dilation must not be negative",
        "layer bn: channels is 0; it must be at least 1",
        "layer : a layer needs a name",
        "layer NULL: a layer needs a name",
        "layer fc: the model has a layer of this name",
    };
    ls_device *device = open_reference();

    LS_UNUSED(state);
    for (int i = 0; i < (int)LS_COUNT_OF(texts); i++) {
        ls_model *model = NULL;
        ls_layer *layer = NULL;
        int n;

        assert_status(LS_OK, ls_model_create(device, 1, &model));
        if (i == 7)
            assert_non_null(ls_nn_linear(model, "fc", 1, 1, 0));
        if (i == 0)
            layer = ls_nn_linear(model, "fc", 0, 3, 0);
        else if (i == 1)
            layer = ls_nn_conv2d(model, "conv", 3, 4,
                                 &(ls_nn_conv2d_options){.kernel = {3, 3}, .groups = 2});
        else if (i == 2)
            layer = ls_nn_conv2d(model, "conv", 3, 4, NULL);
        else if (i == 3)
            layer = ls_nn_conv2d(model, "conv", 3, 4,
                                 &(ls_nn_conv2d_options){.kernel = {3, 3}, .padding = {0, -1}});
        else if (i == 4)
            layer = ls_nn_batch_norm2d(model, "bn", 0, NULL);
        else
            layer = ls_nn_linear(model, i == 5 ? "" : i == 6 ? NULL : "fc", 2, 3, 0);
        assert_null(layer);
        assert_status(LS_EINVAL, ls_model_status(model));
        assert_string_equal(ls_last_error(), texts[i]);
        assert_null(ls_nn_linear(model, "later", 1, 1, 0));
        (void)ls_model_state(model, &n);
        assert_int_equal(n, i == 7 ? 2 : 0);
        ls_model_destroy(model);
    }
    assert_null(ls_nn_linear(NULL, "fc", 1, 1, 0));
    ls_model_destroy(NULL);
    ls_device_close(device);
}

static void a_missing_layer_marks_the_tape(void **state)
{
    ls_device *device = open_reference();
    ls_tape *tape = NULL;
    ls_tensor *x = random_tensor(device, LS_F32, 2, (int64_t[]){1, 1}, 1);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_null(ls_forward(tape, NULL, x));
    assert_status(LS_EINVAL, ls_tape_status(tape));
    assert_string_equal(ls_last_error(),
                        "forward: the layer is NULL; ls_model_status() returns the reason");
    assert_null(ls_forward(NULL, NULL, x));
    ls_tape_destroy(tape);
    ls_tensor_destroy(x);
    ls_device_close(device);
}

static void a_failing_layer_is_named(void **state)
{
    ls_device *device = open_reference();
    ls_tape *tape = NULL;
    convnet net;
    ls_tensor *x = random_tensor(device, LS_F32, 4, (int64_t[]){2, 1, 12, 12}, 1);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, convnet_create(device, 1, &net));
    assert_null(convnet_forward(&net, tape, x));
    assert_status(LS_EINVAL, ls_tape_status(tape));
    assert_string_equal(ls_last_error(), "fc: linear: input (2, 45) does not fit weight (4, 20)");
    ls_tape_destroy(tape);
    ls_tensor_destroy(x);
    ls_model_destroy(net.model);
    ls_device_close(device);
}

static void a_model_without_memory_fails_cleanly(void **state)
{
    ls_device *device = open_reference();
    bool whole = false;

    LS_UNUSED(state);
    for (uint64_t n = 1; !whole; n++) {
        convnet net = {0};
        ls_status st;

        assert_true(n < 500);
        ls_alloc_fail_at(n);
        st = convnet_create(device, 1, &net);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(LS_ENOMEM, st);
        whole = st == LS_OK;
        ls_model_destroy(net.model);
    }
    ls_device_close(device);
}

static void a_device_stays_open_while_something_uses_it(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *t = random_tensor(device, LS_F32, 1, (const int64_t[]){4}, 1);
    ls_tensor *view = NULL;
    ls_tape *tape = NULL;
    ls_model *model = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_view(t, 2, (const int64_t[]){2, 2}, &view));
    assert_status(LS_EINVAL, ls_device_close(device));
    assert_non_null(strstr(ls_last_error(), "2 tensors and 0 tapes and models; destroy"));
    ls_tensor_destroy(t);
    assert_status(LS_EINVAL, ls_device_close(device));
    (void)element_of(view, 3);
    ls_tensor_destroy(view);
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    assert_status(LS_EINVAL, ls_device_close(device));
    assert_non_null(strstr(ls_last_error(), "0 tensors and 2 tapes and models; destroy"));
    ls_tape_destroy(tape);
    assert_status(LS_EINVAL, ls_device_close(device));
    ls_model_destroy(model);
    assert_status(LS_OK, ls_device_close(device));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_those_of_pytorchs_state_dict),
        cmocka_unit_test(a_checkpointed_batch_norm_counts_a_batch_once),
        cmocka_unit_test(weights_start_as_pytorchs),
        cmocka_unit_test(kaiming_normal_weights_have_the_variance_of_their_fan_out),
        cmocka_unit_test(norms_have_the_parameters_that_are_asked_for),
        cmocka_unit_test(batch_norm_starts_as_the_identity),
        cmocka_unit_test(a_batch_norm_adds_before_its_relu),
        cmocka_unit_test(the_seed_alone_decides_the_initial_values),
        cmocka_unit_test(layers_without_bias_have_none),
        cmocka_unit_test(bad_layers_mark_the_model),
        cmocka_unit_test(a_missing_layer_marks_the_tape),
        cmocka_unit_test(a_failing_layer_is_named),
        cmocka_unit_test(a_model_without_memory_fails_cleanly),
        cmocka_unit_test(a_device_stays_open_while_something_uses_it),
        cmocka_unit_test(self_attention_is_that_of_pytorch),
        cmocka_unit_test(an_embedding_has_a_row_of_padding),
        cmocka_unit_test(layer_norm_normalises_channels_first_or_last),
        cmocka_unit_test(parameters_are_named),
        cmocka_unit_test(buffers_lie_in_few_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
