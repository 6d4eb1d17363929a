/* SPDX-License-Identifier: Apache-2.0 */
/* test_summary.c - the table of ls_model_summary(). */
#include "tensor/testing.h"

#include "nn/model.h"

typedef struct net {
    ls_layer *body;
    ls_layer *lstm;
    ls_layer *head;
} net;

static ls_tensor *forward(void *arg, ls_tape *tape, ls_tensor *x)
{
    const net *n = arg;
    ls_rnn_state last;
    ls_tensor *h = ls_forward(tape, n->body, ls_forward(tape, n->body, x));

    h = ls_forward_sequence(tape, n->lstm, ls_reshape(tape, h, 3, (int64_t[]){2, 1, 4}), NULL, NULL,
                            &last);
    return ls_forward(tape, n->head, ls_flatten(tape, h));
}

static net make_net(ls_model *model)
{
    ls_layer *layers[] = {ls_nn_linear(model, "body.fc", 4, 4, 0),
                          ls_nn_function(model, "body.relu", ls_relu)};
    net n = {.body = ls_nn_sequential(model, "body", layers, 2)};

    n.lstm = ls_nn_lstm(model, "lstm", 4, 8, NULL);
    (void)ls_nn_linear(model, "unused", 2, 3, 0);
    n.head = ls_nn_linear(model, "head", 8, 2, 1);
    (void)ls_nn_parameter(model, "token", 2, (int64_t[]){1, 6});
    (void)ls_nn_buffer(model, "count", LS_I64, 0, NULL);
    assert_status(LS_OK, ls_model_status(model));
    return n;
}

static void table_has_the_layers_in_the_order_of_use(void **state)
{
    ls_device *device = open_reference();
    ls_model *model = NULL;
    ls_tensor *x = random_tensor(device, LS_F32, 2, (int64_t[]){2, 4}, 1);
    text_buf text = {0};
    net n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    n = make_net(model);
    assert_status(LS_OK, ls_model_freeze(model, "body.*", 1, NULL));
    assert_status(LS_OK, model_summary_text(model, forward, &n, x, &text));
    // lstm: 4 * 8 * (4 + 8) + 2 * 4 * 8.
    assert_string_equal(
        text_str(&text),
        "layer         output shape   parameters\n"
        "body          (2, 4)         --\n"
        "  body.fc     (2, 4)         (20)\n"
        "  body.relu   (2, 4)         --\n"
        "body          (2, 4)         repeated\n"
        "  body.fc     (2, 4)         (20)   repeated\n"
        "  body.relu   (2, 4)         repeated\n"
        "lstm          (2, 1, 8)      448\n"
        "head          (2, 2)         16\n"
        "unused        --             9   did not run\n"
        "token         (1, 6)         6   parameter\n"
        "count         ()             buffer\n"
        "parameters: 499, trainable: 479, frozen: 20\n"
        "parameters: 1.9 KiB, buffers: 8 B, input: 32 B, results of layers: 208 B\n");
    text_free(&text);
    ls_tensor_destroy(x);
    ls_model_destroy(model);
    ls_device_close(device);
}

static ls_tensor *return_nothing(void *arg, ls_tape *tape, ls_tensor *x)
{
    LS_UNUSED(arg);
    LS_UNUSED(tape);
    LS_UNUSED(x);
    return NULL;
}

static ls_tensor *run_layer(void *arg, ls_tape *tape, ls_tensor *x)
{
    return ls_forward(tape, arg, x);
}

/* The state of batch norms does not change, and later forwards do not reach the summary. */
static void model_is_as_before(void **state)
{
    ls_device *device = open_reference();
    ls_model *model = NULL;
    ls_tensor *x = random_tensor(device, LS_F32, 2, (int64_t[]){2, 4}, 1);
    text_buf text = {0};
    ls_tape *tape = NULL;
    ls_layer *norm;
    ls_tensor *mean;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_create(device, 1, &model));
    assert_status(LS_OK, ls_tape_create(device, &tape));
    norm = ls_nn_batch_norm2d(model, "norm", 4, NULL);
    mean = ls_layer_tensor(norm, "running_mean");
    assert_status(LS_EINVAL, model_summary_text(model, return_nothing, NULL, x, &text));
    assert_string_equal(ls_last_error(), "the function returned NULL");
    assert_status(LS_OK, ls_model_summary(model, run_layer, norm, x));
    assert_true(element_of(mean, 0) == 0);
    assert_non_null(ls_forward(tape, norm, x));
    assert_true(element_of(mean, 0) != 0);
    text_free(&text);
    ls_tape_destroy(tape);
    ls_tensor_destroy(x);
    ls_model_destroy(model);
    ls_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_has_the_layers_in_the_order_of_use),
        cmocka_unit_test(model_is_as_before),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
