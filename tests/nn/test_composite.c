/* SPDX-License-Identifier: Apache-2.0 */
/* test_composite.c - layers without tensors: functions, sequences and operators as layers. */
#include "tensor/testing.h"

#include <lockstep/nn.h>

#include <string.h>

typedef struct scene {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_tensor *x;
} scene;

/* x: (2,1,2,2), -3 to 4. */
static scene open_scene(void)
{
    scene s = {.device = open_reference()};

    assert_status(LS_OK, ls_model_create(s.device, 1, &s.model));
    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    s.x = tensor_of(s.device, LS_F32, 4, (int64_t[]){2, 1, 2, 2},
                    (double[]){-3, -2, -1, 0, 1, 2, 3, 4});
    return s;
}

static void close_scene(scene *s)
{
    ls_tape_destroy(s->tape);
    ls_tensor_destroy(s->x);
    ls_model_destroy(s->model);
    ls_device_close(s->device);
}

static void sequence_runs_its_layers_in_turn(void **state)
{
    static const ls_pool2d_params pool = {.kernel = {2, 2}};
    scene s = open_scene();
    ls_layer *inner[] = {ls_nn_function(s.model, "net.0", ls_relu),
                         ls_nn_max_pool2d(s.model, "net.1", &pool)};
    ls_layer *outer[] = {ls_nn_sequential(s.model, "net", inner, 2),
                         ls_nn_function(s.model, "flatten", ls_flatten),
                         ls_nn_linear(s.model, "fc", 1, 2, 0)};
    ls_layer *all = ls_nn_sequential(s.model, "all", outer, 3);
    ls_tensor *y;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_model_status(s.model));
    memset(outer, 0, sizeof(outer)); // the layer has copied them
    y = ls_forward(s.tape, all, s.x);
    assert_non_null(y);
    assert_int_equal(ls_tensor_n_dims(y), 2);
    assert_int_equal(ls_tensor_dim(y, 1), 2);
    assert_elements(ls_forward(s.tape, inner[1], ls_forward(s.tape, inner[0], s.x)),
                    (double[]){0, 4}, 0);
    close_scene(&s);
}

static void empty_sequence_gives_its_input(void **state)
{
    scene s = open_scene();
    ls_layer *none = ls_nn_sequential(s.model, "none", NULL, 0);

    LS_UNUSED(state);
    assert_ptr_equal(ls_forward(s.tape, none, s.x), s.x);
    close_scene(&s);
}

static void operators_as_layers_have_their_parameters(void **state)
{
    static const ls_pool2d_params pool = {.kernel = {2, 1}};
    scene s = open_scene();
    ls_layer *avg = ls_nn_avg_pool2d(s.model, "avg", &pool);
    ls_layer *adaptive = ls_nn_adaptive_avg_pool2d(s.model, "adaptive", 1, 2);
    ls_layer *all = ls_nn_dropout(s.model, "all", 1);
    ls_layer *dropout = ls_nn_dropout(s.model, "none", 0);
    double zeros[8] = {0};

    LS_UNUSED(state);
    assert_elements(ls_forward(s.tape, avg, s.x), (double[]){-2, -1, 2, 3}, 0);
    assert_elements(ls_forward(s.tape, adaptive, s.x), (double[]){-2, -1, 2, 3}, 0);
    ls_tape_set_random(s.tape, 1, 1);
    assert_elements(ls_forward(s.tape, all, s.x), zeros, 0);
    assert_ptr_equal(ls_forward(s.tape, dropout, s.x), s.x);
    ls_tape_set_training(s.tape, 0);
    assert_ptr_equal(ls_forward(s.tape, all, s.x), s.x);
    close_scene(&s);
}

/* A residual block of the program: x + fc(x), times a parameter. */
typedef struct block {
    ls_layer *fc;
    ls_tensor *scale;
} block;

static ls_tensor *block_forward(void *arg, ls_tape *tape, ls_tensor *x)
{
    const block *b = arg;

    return ls_mul(tape, ls_add(tape, x, ls_forward(tape, b->fc, x)), b->scale);
}

static void layer_of_the_program_trains_its_parameters(void **state)
{
    static const char *const names[] = {"block.scale", "block.fc.weight", "block.fc.bias"};
    scene s = open_scene();
    block b;
    const ls_named *items;
    ls_layer *layer;
    ls_tensor *x;
    int n;

    LS_UNUSED(state);
    b.scale = ls_nn_parameter(s.model, "block.scale", 1, (int64_t[]){4});
    b.fc = ls_nn_linear(s.model, "block.fc", 4, 4, 0);
    layer = ls_nn_layer(s.model, "block", block_forward, &b, sizeof(b));
    memset(&b, 0, sizeof(b)); // the layer has a copy
    assert_status(LS_OK, ls_model_status(s.model));
    items = ls_model_parameters(s.model, &n);
    assert_int_equal(n, 3);
    x = ls_reshape(s.tape, s.x, 2, (int64_t[]){2, 4});
    assert_status(LS_OK,
                  ls_backward(s.tape, ls_sum(s.tape, ls_forward(s.tape, layer, x), NULL, 0, 0), 1));
    for (int i = 0; i < n; i++) {
        assert_string_equal(items[i].name, names[i]);
        assert_non_null(ls_grad(items[i].tensor));
    }
    close_scene(&s);
}

static ls_tensor *fail_quietly(void *arg, ls_tape *tape, ls_tensor *x)
{
    LS_UNUSED(arg);
    LS_UNUSED(tape);
    LS_UNUSED(x);
    return NULL;
}

static ls_tensor *fail_inside(void *arg, ls_tape *tape, ls_tensor *x)
{
    return ls_forward(tape, arg, ls_reshape(tape, x, 1, (int64_t[]){8}));
}

static void failures_name_the_layers_from_outside_in(void **state)
{
    scene s = open_scene();
    ls_layer *fc = ls_nn_linear(s.model, "net.1.fc", 2, 2, 0);
    ls_layer *layers[] = {ls_nn_layer(s.model, "net.1", fail_inside, fc, 0)};
    ls_layer *net = ls_nn_sequential(s.model, "net", layers, 1);
    ls_layer *quiet = ls_nn_layer(s.model, "quiet", fail_quietly, NULL, 0);
    const char *const outer = "net: net.1: net.1.fc: linear: ";

    LS_UNUSED(state);
    assert_null(ls_forward(s.tape, net, s.x));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_memory_equal(ls_last_error(), outer, strlen(outer));
    ls_tape_reset(s.tape);
    assert_null(ls_forward(s.tape, quiet, s.x));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_string_equal(ls_last_error(), "quiet: the function returned NULL");
    ls_tape_reset(s.tape);
    assert_null(ls_forward(s.tape, quiet, NULL));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_string_equal(ls_last_error(), "quiet: the input is NULL");
    close_scene(&s);
}

static ls_layer *make_bad(ls_model *model, ls_model *other, int i)
{
    ls_layer *foreign[] = {ls_nn_linear(model, "fc", 1, 1, 0), ls_nn_linear(other, "fc", 1, 1, 0)};
    ls_layer *null[] = {NULL};

    switch (i) {
    case 0:
        return ls_nn_sequential(model, "net", foreign, 2);
    case 1:
        return ls_nn_sequential(model, "net", null, 1);
    case 2:
        return ls_nn_sequential(model, "net", foreign, -1);
    case 3:
        return ls_nn_function(model, "net", NULL);
    case 4:
        return ls_nn_max_pool2d(model, "net", NULL);
    default:
        return ls_nn_sequential(model, "fc", foreign, 1);
    }
}

static void bad_layers_mark_the_model(void **state)
{
    static const char *const texts[] = {
        "layer net: layer 1 belongs to another model",
        "layer net: layer 0 is NULL",
        "layer net: -1 layers",
        "layer net: its function is NULL",
        "layer net: its argument is NULL",
        "layer fc: the model has a layer of this name",
    };
    scene s = open_scene();

    LS_UNUSED(state);
    for (int i = 0; i < (int)LS_COUNT_OF(texts); i++) {
        ls_model *model = NULL;
        ls_model *other = NULL;

        assert_status(LS_OK, ls_model_create(s.device, 1, &model));
        assert_status(LS_OK, ls_model_create(s.device, 1, &other));
        assert_null(make_bad(model, other, i));
        assert_status(LS_EINVAL, ls_model_status(model));
        assert_string_equal(ls_last_error(), texts[i]);
        ls_model_destroy(model);
        ls_model_destroy(other);
    }
    close_scene(&s);
}

static void buffers_of_the_program_are_state(void **state)
{
    scene s = open_scene();
    ls_tensor *count = ls_nn_buffer(s.model, "count", LS_I64, 0, NULL);
    ls_tensor *six = ls_nn_buffer(s.model, "six", LS_F64, 6, (int64_t[]){1, 2, 1, 1, 1, 3});
    const ls_named *items;
    int n;

    LS_UNUSED(state);
    assert_int_equal(ls_tensor_dtype(count), LS_I64);
    assert_int_equal(ls_tensor_count(count), 1);
    assert_true(element_of(six, 5) == 0);
    (void)ls_model_parameters(s.model, &n);
    assert_int_equal(n, 0);
    items = ls_model_buffers(s.model, &n);
    assert_int_equal(n, 2);
    assert_string_equal(items[1].name, "six");
    assert_null(ls_nn_buffer(s.model, "seven", LS_F32, 7, (int64_t[]){1, 1, 1, 1, 1, 1, 1}));
    assert_status(LS_EINVAL, ls_model_status(s.model));
    assert_string_equal(ls_last_error(), "buffer seven: 7 dimensions; 0 to 6 are supported");
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequence_runs_its_layers_in_turn),
        cmocka_unit_test(empty_sequence_gives_its_input),
        cmocka_unit_test(operators_as_layers_have_their_parameters),
        cmocka_unit_test(layer_of_the_program_trains_its_parameters),
        cmocka_unit_test(failures_name_the_layers_from_outside_in),
        cmocka_unit_test(bad_layers_mark_the_model),
        cmocka_unit_test(buffers_of_the_program_are_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
