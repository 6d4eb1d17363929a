/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_resnet.c - the ResNets of models/: torchvision's names, sizes and initial values; steps that
 * allocate nothing and leave every activation where its kernel has put it.
 */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "models/architectures.h"
#include "tensor/device.h"

#include <math.h>
#include <string.h>

typedef struct bench {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    network *net;
    const char *arch;
} bench;

static bench setup(const char *device, const char *arch, int classes)
{
    const ls_device_options options = {.size = sizeof(options), .name = device, .threads = 1};
    bench b = {.arch = arch};

    assert_status(LS_OK, ls_device_open(&options, &b.device));
    assert_status(LS_OK, ls_model_create(b.device, 5, &b.model));
    assert_status(LS_OK, ls_tape_create(b.device, &b.tape));
    b.net = net_create(b.model, architecture_find(arch, NULL, 0), classes, 224);
    assert_non_null(b.net);
    assert_status(LS_OK, ls_model_status(b.model));
    return b;
}

static void teardown(bench *b)
{
    ls_tape_destroy(b->tape);
    net_destroy(b->net);
    ls_model_destroy(b->model);
    ls_device_close(b->device);
}

/* Both nets of all tests: to draw the initial values of one takes longer than its steps. */
static bench small; /* resnet18 */
static bench large; /* resnet50 */

static int open_nets(void **state)
{
    LS_UNUSED(state);
    small = setup("cpu", "resnet18", 1000);
    large = setup("cpu", "resnet50", 1000);
    return 0;
}

static int close_nets(void **state)
{
    LS_UNUSED(state);
    teardown(&small);
    teardown(&large);
    return 0;
}

static ls_tensor *tensor_named(const bench *b, const char *name)
{
    int n;
    const ls_named *state = ls_model_state(b->model, &n);

    for (int i = 0; i < n; i++) {
        if (strcmp(state[i].name, name) == 0)
            return state[i].tensor;
    }
    fail_msg("there is no %s", name);
    return NULL;
}

/* Trained values, and entries of the state_dict, as torchvision's model has them. */
static void assert_size(const bench *b, size_t want_values, int want_state)
{
    size_t n_values = 0;
    const ls_named *p;
    int n;

    p = ls_model_parameters(b->model, &n);
    for (int k = 0; k < n; k++)
        n_values += ls_tensor_count(p[k].tensor);
    assert_int_equal(n_values, want_values);
    (void)ls_model_state(b->model, &n);
    assert_int_equal(n, want_state);
}

static void names_come_in_the_order_of_torchvisions_state_dict(void **state)
{
    static const char *const first[] = {
        "conv1.weight",          "bn1.weight",         "bn1.bias",
        "bn1.running_mean",      "bn1.running_var",    "bn1.num_batches_tracked",
        "layer1.0.conv1.weight", "layer1.0.bn1.weight"};
    static const char *const block[] = {
        "layer1.0.bn3.num_batches_tracked", "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.weight", "layer1.0.downsample.1.bias"};
    const ls_named *items;
    int n;

    LS_UNUSED(state);
    assert_size(&large, 25557032, 320);
    items = ls_model_state(large.model, &n);
    for (size_t i = 0; i < LS_COUNT_OF(first); i++)
        assert_string_equal(items[i].name, first[i]);
    for (size_t i = 0; i < LS_COUNT_OF(block); i++)
        assert_string_equal(items[23 + i].name, block[i]);
    assert_string_equal(items[n - 2].name, "fc.weight");
    assert_string_equal(items[n - 1].name, "fc.bias");
    assert_int_equal(ls_tensor_dim(tensor_named(&large, "layer4.0.downsample.0.weight"), 1), 1024);
    assert_int_equal(ls_tensor_dim(tensor_named(&large, "layer4.2.conv2.weight"), 2), 3);
    assert_int_equal(ls_tensor_dim(items[n - 1].tensor, 0), 1000);
}

static void weights_start_as_torchvisions(void **state)
{
    const ls_tensor *w = tensor_named(&small, "layer2.0.conv1.weight"); /* (128, 64, 3, 3) */
    const ls_tensor *gain = tensor_named(&small, "layer2.0.bn2.weight");
    const size_t count = ls_tensor_count(w);
    double squares = 0;

    LS_UNUSED(state);
    assert_size(&small, 11689512, 122);
    for (size_t i = 0; i < count; i++)
        squares += pow(element_of(w, i), 2);
    assert_true(fabs(squares / (double)count * 128 * 9 / 2 - 1) < 0.03);
    for (size_t i = 0; i < ls_tensor_count(gain); i++)
        assert_true(element_of(gain, i) == 1);
}

static float step(bench *b, ls_tensor *x, ls_tensor *y)
{
    ls_tensor *loss;
    float value = 0;

    ls_tape_reset(b->tape);
    ls_model_zero_grad(b->model);
    loss = ls_cross_entropy(b->tape, net_forward(b->net, b->tape, x), y);
    assert_status(LS_OK, ls_backward(b->tape, loss, 1));
    assert_status(LS_OK, ls_tensor_read(loss, &value, 1));
    return value;
}

static void make_batch(const bench *b, int64_t rows, int64_t side, ls_tensor **x, ls_tensor **y)
{
    *x = random_tensor(b->device, LS_F32, 4, (int64_t[]){rows, 3, side, side}, 3);
    assert_status(LS_OK, ls_tensor_create(b->device, LS_I64, 1, &rows, y));
}

static void a_warm_step_allocates_nothing(void **state)
{
    ls_tensor *x;
    ls_tensor *y;
    uint64_t before;
    float loss;

    LS_UNUSED(state);
    make_batch(&large, 2, 32, &x, &y);
    loss = step(&large, x, y);
    assert_true(loss > 0 && loss < 20);
    (void)step(&large, x, y);
    before = ls_alloc_count();
    (void)step(&large, x, y);
    assert_int_equal(ls_alloc_count(), before);
    destroy_all((ls_tensor *[]){x, y}, 2);
}

enum { SIDE = 112 }; /* half of what ImageNet's are usually trained at, in a quarter of the time */

typedef struct moves {
    int64_t side;
    int parameters;
    int images;
    int others; /* activations and their gradients */
    int64_t dims[4];
} moves;

static void note_move(void *arg, const device_move *m)
{
    moves *seen = arg;

    if (m->of_parameter) {
        seen->parameters++;
    } else if (m->n_dims == 4 && m->dims[1] == 3 && m->dims[2] == seen->side) {
        seen->images++;
    } else {
        seen->others++;
        memcpy(seen->dims, m->dims, sizeof(*m->dims) * (size_t)m->n_dims);
    }
}

static moves moves_of_a_warm_step(bench *b, int64_t rows, int64_t side)
{
    const device_ops *ops = b->device->ops;
    moves seen = {.side = side};
    ls_tensor *x;
    ls_tensor *y;

    make_batch(b, rows, side, &x, &y);
    (void)step(b, x, y);
    ops->watch(b->device->state, note_move, &seen);
    (void)step(b, x, y);
    ops->watch(b->device->state, NULL, NULL);
    destroy_all((ls_tensor *[]){x, y}, 2);
    return seen;
}

/* In a step layouts change for weights (packed) and for gradients of weights (into their places),
 * and of the images for the first convolution, once forward and once backward; from there to the
 * loss and back nothing is moved. */
static void nothing_is_moved_between_stem_and_loss(void **state)
{
    bench *const nets[] = {&small, &large};

    LS_UNUSED(state);
    if (small.device->ops->watch == NULL) {
        print_message("device %s has one layout\n", ls_device_name(small.device));
        skip();
    }
    for (size_t i = 0; i < 2 * LS_COUNT_OF(nets); i++) {
        bench *b = nets[i / 2];
        const ls_dtype type = i % 2 == 0 ? LS_F32 : LS_BF16;
        moves seen;

        assert_status(LS_OK, ls_tape_set_compute(b->tape, type));
        seen = moves_of_a_warm_step(b, 1, SIDE);
        if (seen.others > 0)
            fail_msg("%s in %s: %d activations are moved, one of (%lld, %lld, %lld, %lld)", b->arch,
                     ls_dtype_name(type), seen.others, (long long)seen.dims[0],
                     (long long)seen.dims[1], (long long)seen.dims[2], (long long)seen.dims[3]);
        assert_true(seen.parameters > 0);
        assert_in_range(seen.images, 0, 2);
        assert_status(LS_OK, ls_tape_set_compute(b->tape, LS_F32));
    }
}

static void a_batch_of_no_rows_gives_gradients_of_zero(void **state)
{
    const ls_named *p;
    ls_tensor *x;
    ls_tensor *y;
    int n;

    LS_UNUSED(state);
    make_batch(&small, 0, 32, &x, &y);
    assert_true(step(&small, x, y) == 0);
    p = ls_model_parameters(small.model, &n);
    for (int i = 0; i < n; i++) {
        const ls_tensor *g = ls_grad(p[i].tensor);

        assert_non_null(g);
        assert_true(element_of(g, 0) == 0);
    }
    destroy_all((ls_tensor *[]){x, y}, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_come_in_the_order_of_torchvisions_state_dict),
        cmocka_unit_test(weights_start_as_torchvisions),
        cmocka_unit_test(a_warm_step_allocates_nothing),
        cmocka_unit_test(nothing_is_moved_between_stem_and_loss),
        cmocka_unit_test(a_batch_of_no_rows_gives_gradients_of_zero),
    };

    return cmocka_run_group_tests(tests, open_nets, close_nets);
}
