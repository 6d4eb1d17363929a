/* SPDX-License-Identifier: Apache-2.0 */
/* test_freeze.c - ls_model_freeze(): what backward and optimizers do with frozen parameters. */
#include "tensor/testing.h"

#include <lockstep/nn.h>
#include <lockstep/optim.h>

#include "base/alloc.h"

#include <string.h>

enum { N_PARAMETERS = 9 };

/* A layer of each kind, whose backward computes gradients of weights in its own way. */
typedef struct scene {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_layer *conv;
    ls_layer *norm;
    ls_layer *fc;
    ls_layer *layer_norm;
    ls_tensor *table; /* of an embedding */
    ls_tensor *x;     /* (2,1,3,3) */
    ls_tensor *words; /* (2) */
    const ls_named *parameters;
} scene;

static scene open_scene(void)
{
    const ls_nn_conv2d_options kernel = {.kernel = {2, 2}};
    const int64_t words[] = {1, 0};
    scene s = {.device = open_reference()};
    int n;

    assert_status(LS_OK, ls_model_create(s.device, 5, &s.model));
    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    s.conv = ls_nn_conv2d(s.model, "body.conv", 1, 2, &kernel);
    s.norm = ls_nn_batch_norm2d(s.model, "body.norm", 2, NULL);
    s.fc = ls_nn_linear(s.model, "head.fc", 8, 3, 0);
    s.layer_norm = ls_nn_layer_norm(s.model, "head.norm", 3, NULL);
    s.table = ls_nn_parameter(s.model, "words", 2, (int64_t[]){2, 3});
    s.parameters = ls_model_parameters(s.model, &n);
    assert_int_equal(n, N_PARAMETERS);
    s.x = random_tensor(s.device, LS_F32, 4, (int64_t[]){2, 1, 3, 3}, 1);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_I64, 1, (int64_t[]){2}, &s.words));
    assert_status(LS_OK, ls_tensor_write(s.words, words, 2));
    return s;
}

static void close_scene(scene *s)
{
    ls_tape_destroy(s->tape);
    ls_tensor_destroy(s->x);
    ls_tensor_destroy(s->words);
    ls_model_destroy(s->model);
    ls_device_close(s->device);
}

static void body(ls_tape *tape, ls_tensor *const *inputs, ls_tensor **outputs, void *arg)
{
    const scene *s = arg;

    outputs[0] = ls_forward(tape, s->norm, ls_forward(tape, s->conv, inputs[0]));
}

static ls_tensor *loss_of(scene *s, bool checkpointed)
{
    ls_tensor *h;

    if (checkpointed)
        ls_tape_checkpoint(s->tape, body, s, 0, &s->x, 1, &h, 1);
    else
        body(s->tape, &s->x, &h, s);
    h = ls_forward(s->tape, s->layer_norm, ls_forward(s->tape, s->fc, ls_flatten(s->tape, h)));
    h = ls_add(s->tape, h, ls_embedding(s->tape, s->table, s->words, -1));
    return ls_sum(s->tape, ls_pow(s->tape, h, 4), NULL, 0, 0);
}

static void run_step(scene *s, bool checkpointed)
{
    ls_model_zero_grad(s->model);
    ls_tape_reset(s->tape);
    assert_status(LS_OK, ls_backward(s->tape, loss_of(s, checkpointed), 1));
}

static void freeze(scene *s, const char *pattern, int frozen)
{
    assert_status(LS_OK, ls_model_freeze(s->model, pattern, frozen, NULL));
}

static ls_status count_ready(void *arg, ls_tensor *leaf)
{
    LS_UNUSED(leaf);
    ++*(int *)arg;
    return LS_OK;
}

/* Every parameter alone, and all but it, so that each kernel runs with and without each output. */
static void others_keep_the_bits_of_their_gradients(void **state)
{
    scene s = open_scene();
    void *all[N_PARAMETERS];

    LS_UNUSED(state);
    run_step(&s, false);
    for (int i = 0; i < N_PARAMETERS; i++)
        all[i] = copy_of(ls_grad(s.parameters[i].tensor));
    for (int i = 0; i < 4 * N_PARAMETERS; i++) {
        const int chosen = i % N_PARAMETERS;
        const bool alone = i / N_PARAMETERS % 2 == 0;
        int n_ready = 0;

        freeze(&s, alone ? s.parameters[chosen].name : "*", 1);
        if (!alone)
            freeze(&s, s.parameters[chosen].name, 0);
        ls_tape_on_grad_ready(s.tape, count_ready, &n_ready);
        run_step(&s, i >= 2 * N_PARAMETERS);
        assert_int_equal(n_ready, alone ? N_PARAMETERS - 1 : 1);
        for (int k = 0; k < N_PARAMETERS; k++) {
            ls_tensor *g = ls_grad(s.parameters[k].tensor);
            void *elements;

            if ((k == chosen) == alone) {
                assert_null(g);
                continue;
            }
            elements = copy_of(g);
            assert_memory_equal(elements, all[k], tensor_bytes(g));
            ls_free(elements);
        }
        freeze(&s, "*", 0);
    }
    for (int i = 0; i < N_PARAMETERS; i++)
        ls_free(all[i]);
    close_scene(&s);
}

/* What backward would read may be overwritten: it does not read it. */
static void operators_of_frozen_layers_are_not_recorded(void **state)
{
    const float zeros[18] = {0};
    scene s = open_scene();
    ls_tensor *loss = loss_of(&s, false);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_write(s.x, zeros, 18));
    assert_status(LS_EINVAL, ls_backward(s.tape, loss, 1));
    ls_tape_reset(s.tape);
    freeze(&s, "body.*", 1);
    loss = loss_of(&s, false);
    assert_status(LS_OK, ls_tensor_write(s.x, zeros, 18));
    assert_status(LS_OK, ls_backward(s.tape, loss, 1));
    freeze(&s, "*", 1);
    ls_tape_reset(s.tape);
    assert_status(LS_EINVAL, ls_backward(s.tape, loss_of(&s, false), 1));
    assert_string_equal(ls_last_error(),
                        "backward: the loss depends on no tensor that requires a gradient");
    close_scene(&s);
}

static void freezing_between_forward_and_backward_holds_for_backward(void **state)
{
    scene s = open_scene();

    LS_UNUSED(state);
    for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
        ls_tensor *loss;

        run_step(&s, checkpointed == 1);
        ls_tape_reset(s.tape);
        loss = loss_of(&s, checkpointed == 1);
        freeze(&s, "body.*", 1);
        assert_null(ls_grad(s.parameters[0].tensor)); // forgotten
        assert_status(LS_OK, ls_backward(s.tape, loss, 1));
        assert_null(ls_grad(s.parameters[0].tensor));
        assert_non_null(ls_grad(s.parameters[N_PARAMETERS - 1].tensor));
        freeze(&s, "body.*", 0);
        run_step(&s, checkpointed == 1);
        assert_non_null(ls_grad(s.parameters[0].tensor));
    }
    close_scene(&s);
}

static void patterns_select_parameters_by_name(void **state)
{
    scene s = open_scene();
    int n = -1;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_freeze(s.model, "*.bias", 1, &n));
    assert_int_equal(n, 4);
    assert_status(LS_OK, ls_model_freeze(s.model, "h*.norm.*", 1, &n));
    assert_int_equal(n, 2);
    assert_status(LS_ENOTFOUND, ls_model_freeze(s.model, "body.norm.running_mean", 1, &n));
    assert_int_equal(n, 0);
    assert_string_equal(ls_last_error(), "no parameter matches body.norm.running_mean");
    (void)ls_model_parameters(s.model, &n);
    assert_int_equal(n, N_PARAMETERS);
    close_scene(&s);
}

/* Statistics of frozen batch norms follow the batches, as in PyTorch. */
static void optimizers_leave_frozen_parameters(void **state)
{
    const ls_adam_options opt = {.size = sizeof(opt), .lr = 0.1, .weight_decay = 0.5};
    scene s = open_scene();
    ls_optimizer *adamw = NULL;
    void *before;
    void *after;
    int n;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_adamw_create(s.parameters, N_PARAMETERS, ls_grad, &opt, &adamw));
    run_step(&s, false);
    assert_status(LS_OK, ls_optimizer_step(adamw));
    freeze(&s, "body.*", 1);
    before = copy_of(s.parameters[0].tensor);
    for (int frozen = 1; frozen >= 0; frozen--) {
        const double mean = element_of(ls_model_buffers(s.model, &n)[0].tensor, 0);

        freeze(&s, "body.*", frozen);
        run_step(&s, false);
        assert_status(LS_OK, ls_optimizer_step(adamw));
        after = copy_of(s.parameters[0].tensor);
        assert_int_equal(memcmp(before, after, tensor_bytes(s.parameters[0].tensor)) == 0, frozen);
        assert_true(element_of(ls_model_buffers(s.model, &n)[0].tensor, 0) != mean);
        ls_free(after);
    }
    ls_free(before);
    ls_optimizer_destroy(adamw);
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_keep_the_bits_of_their_gradients),
        cmocka_unit_test(operators_of_frozen_layers_are_not_recorded),
        cmocka_unit_test(freezing_between_forward_and_backward_holds_for_backward),
        cmocka_unit_test(patterns_select_parameters_by_name),
        cmocka_unit_test(optimizers_leave_frozen_parameters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
