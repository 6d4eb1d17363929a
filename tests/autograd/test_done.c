/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_done.c - values that are done with: their memory is used again, and backward gives the same
 * bits as if they had stayed.
 */
#include "tensor/testing.h"

#include "autograd/autograd.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    STEM,
    STEM_SCALE,
    STEM_SHIFT,
    CONV,
    SCALE,
    SHIFT,
    SHORTCUT,
    SHORTCUT_SCALE,
    SHORTCUT_SHIFT,
    FC,
    N_LEAVES
};
enum { MEAN = N_LEAVES, VARIANCE, N_TENSORS };

static const struct {
    int n_dims;
    int64_t dims[4];
} shapes[N_TENSORS] = {
    [STEM] = {4, {32, 3, 7, 7}},
    [STEM_SCALE] = {1, {32}},
    [STEM_SHIFT] = {1, {32}},
    [CONV] = {4, {32, 32, 3, 3}},
    [SCALE] = {1, {32}},
    [SHIFT] = {1, {32}},
    [SHORTCUT] = {4, {32, 32, 1, 1}},
    [SHORTCUT_SCALE] = {1, {32}},
    [SHORTCUT_SHIFT] = {1, {32}},
    [FC] = {2, {5, 32}},
    [MEAN] = {1, {32}},
    [VARIANCE] = {1, {32}},
};

typedef struct net {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *t[N_TENSORS];
    ls_tensor *images;
    ls_tensor *labels;
    bool says_done;
    bool is_fused; /* the sum behind a batch norm is a part of it */
} net;

static bool open_net(net *n, const char *device, ls_dtype type)
{
    const ls_device_options options = {.size = sizeof(options), .name = device, .threads = 1};

    *n = (net){.device = NULL};
    if (ls_device_open(&options, &n->device) != LS_OK)
        return false;
    assert_status(LS_OK, ls_tape_create(n->device, &n->tape));
    for (int i = 0; i < N_TENSORS; i++) {
        n->t[i] = random_tensor(n->device, type, shapes[i].n_dims, shapes[i].dims, (uint64_t)i + 1);
        if (i < N_LEAVES)
            assert_status(LS_OK, ls_require_grad(n->t[i]));
    }
    n->images = random_tensor(n->device, type, 4, (int64_t[]){3, 3, 30, 26}, 77);
    assert_status(LS_OK, ls_tensor_create(n->device, LS_I64, 1, (int64_t[]){3}, &n->labels));
    assert_status(LS_OK, ls_tensor_write(n->labels, (int64_t[]){4, 0, 2}, 3));
    return true;
}

static void close_net(net *n)
{
    ls_tape_destroy(n->tape);
    destroy_all(n->t, N_TENSORS);
    destroy_all((ls_tensor *[]){n->images, n->labels}, 2);
    ls_device_close(n->device);
}

static void done(const net *n, ls_tensor *value)
{
    if (n->says_done)
        ls_tape_done(n->tape, value);
}

static ls_tensor *norm(const net *n, ls_tensor *x, int scale, int relu)
{
    ls_tensor *y = ls_batch_norm(n->tape, x, n->t[scale], n->t[scale + 1], n->t[MEAN],
                                 n->t[VARIANCE], &(ls_batch_norm_params){.relu = relu});

    done(n, x);
    return y;
}

/* A small residual net with everything that ResNets are made of. */
static ls_tensor *forward(const net *n)
{
    const ls_conv2d_params half = {.stride = {2, 2}, .padding = {3, 3}};
    const ls_conv2d_params same = {.padding = {1, 1}};
    const ls_pool2d_params pool = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    ls_tape *tape = n->tape;
    ls_tensor *stem = norm(n, ls_conv2d(tape, n->images, n->t[STEM], NULL, &half), STEM_SCALE, 1);
    ls_tensor *x = ls_max_pool2d(tape, stem, &pool);
    ls_tensor *inner;
    ls_tensor *h;
    ls_tensor *shortcut;
    ls_tensor *sum;

    done(n, stem);
    inner = norm(n, ls_conv2d(tape, x, n->t[CONV], NULL, &same), SCALE, 1);
    h = ls_conv2d(tape, inner, n->t[CONV], NULL, &same);
    if (!n->is_fused)
        h = norm(n, h, SCALE, 0);
    done(n, inner);
    shortcut = norm(n, ls_conv2d(tape, x, n->t[SHORTCUT], NULL, NULL), SHORTCUT_SCALE, 0);
    sum = n->is_fused ? ls_bn_add(tape, h, shortcut, n->t[SCALE], n->t[SCALE + 1], n->t[MEAN],
                                  n->t[VARIANCE], &(ls_batch_norm_params){.relu = 1})
                      : ls_add_relu(tape, h, shortcut);
    done(n, h);
    done(n, shortcut);
    done(n, x);
    h = ls_avg_pool2d(tape, sum, &(ls_pool2d_params){.kernel = {2, 2}});
    done(n, sum);
    x = ls_adaptive_avg_pool2d(tape, h, 1, 1);
    done(n, h);
    return ls_cross_entropy(tape, ls_linear(tape, ls_flatten(tape, x), n->t[FC], NULL), n->labels);
}

/* The loss and all gradients, as doubles; *n_values: how many. */
static double *gradients(const char *device, ls_dtype type, bool says_done, bool is_fused,
                         size_t *n_values)
{
    net n;
    size_t count = 1;
    double *values;
    ls_tensor *loss;

    if (!open_net(&n, device, type))
        return NULL;
    n.says_done = says_done;
    n.is_fused = is_fused;
    loss = forward(&n);
    assert_status(LS_OK, ls_backward(n.tape, loss, 1));
    for (int i = 0; i < N_LEAVES; i++)
        count += ls_tensor_count(n.t[i]);
    values = test_calloc(count, sizeof(*values));
    values[0] = element_of(loss, 0);
    count = 1;
    for (int i = 0; i < N_LEAVES; i++) {
        for (size_t k = 0; k < ls_tensor_count(n.t[i]); k++)
            values[count++] = element_of(ls_grad(n.t[i]), k);
    }
    close_net(&n);
    *n_values = count;
    return values;
}

/* Whether the memory of values is used again, and whether the sum of the block has an operator of
 * its own. */
static void backward_gives_the_same_bits(void **state)
{
    static const char *const devices[] = {"cpu_ref", "onednn"};
    static const ls_dtype types[] = {LS_F64, LS_F32};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(devices); i++) {
        size_t n = 0;
        double *kept = gradients(devices[i], types[i], false, false, &n);

        for (int variant = 1; variant < 4; variant++) {
            double *others = gradients(devices[i], types[i], variant % 2 == 1, variant >= 2, &n);

            if (kept != NULL)
                assert_memory_equal(kept, others, n * sizeof(*kept));
            test_free(others);
        }
        test_free(kept);
    }
}

/* Layouts of the device's own from the stem to the last pool, against plain ones in float64. */
static void a_residual_net_has_the_references_gradients(void **state)
{
    size_t n = 0;
    double *want = gradients("cpu_ref", LS_F64, true, true, &n);
    double *got = gradients("onednn", LS_F32, true, true, &n);
    double squares = 0;
    double distance = 0;

    LS_UNUSED(state);
    for (size_t i = 0; got != NULL && i < n; i++) {
        squares += want[i] * want[i];
        distance += pow(got[i] - want[i], 2);
    }
    assert_true(distance <= 1e-10 * squares);
    test_free(want);
    test_free(got);
    if (got == NULL) {
        print_message("skipped: there is no oneDNN device (%s)\n", ls_last_error());
        skip();
    }
}

/* x (2,2), a leaf, on the reference device. */
typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *x;
} bench;

static bench setup(void)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    s.x = tensor_of(s.device, LS_F64, 2, (int64_t[]){2, 2}, (double[]){1, -2, 3, 4});
    assert_status(LS_OK, ls_require_grad(s.x));
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    ls_tensor_destroy(s->x);
    ls_device_close(s->device);
}

static void its_memory_is_used_again(void **state)
{
    bench s = setup();
    ls_tensor *sum = ls_add(s.tape, s.x, s.x);
    ls_tensor *twice = ls_add(s.tape, sum, sum);
    const void *memory = ls_tensor_data_const(sum);

    LS_UNUSED(state);
    ls_tape_done(s.tape, sum);
    assert_ptr_equal(ls_tensor_data_const(ls_add(s.tape, twice, twice)), memory);
    assert_null(ls_add(s.tape, twice, sum));
    assert_non_null(strstr(ls_last_error(), "was released by backward"));
    teardown(&s);
}

static void what_backward_reads_stays(void **state)
{
    bench s = setup();
    ls_tensor *positive = ls_relu(s.tape, s.x);
    ls_tensor *sum = ls_add(s.tape, positive, positive);
    ls_tensor *loss = ls_mse_loss(s.tape, sum, s.x);

    LS_UNUSED(state);
    ls_tape_done(s.tape, positive);
    ls_tape_done(s.tape, sum);
    assert_status(LS_OK, ls_backward(s.tape, loss, 4));
    // d/dx of (2 max(0, x) - x)^2, the second x being a target and part of the loss as well
    assert_elements(ls_grad(s.x), (double[]){2, -4, 6, 8}, 1e-14);
    teardown(&s);
}

/* What no operator was recorded for can still be what a later one's backward reads. */
static void a_constant_that_backward_reads_stays(void **state)
{
    bench s = setup();
    ls_tensor *rows = tensor_of(s.device, LS_F64, 2, (int64_t[]){1, 2}, (double[]){3, 5});
    ls_tensor *twice = ls_add(s.tape, rows, rows);
    ls_tensor *y = ls_linear(s.tape, twice, s.x, NULL);
    ls_tensor *zero = tensor_of(s.device, LS_F64, 2, (int64_t[]){1, 2}, (double[]){0, 0});

    LS_UNUSED(state);
    ls_tape_done(s.tape, twice);
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, y, zero), 1));
    // y = (-14, 58): dx = y (6, 10)
    assert_elements(ls_grad(s.x), (double[]){-84, -140, 348, 580}, 1e-12);
    destroy_all((ls_tensor *[]){rows, zero}, 2);
    teardown(&s);
}

static void retained_values_leaves_and_null_are_ignored(void **state)
{
    bench s = setup();
    ls_tensor *sum = ls_add(s.tape, s.x, s.x);

    LS_UNUSED(state);
    ls_tape_keep(s.tape, sum);
    ls_tape_done(s.tape, sum);
    ls_tape_done(s.tape, s.x);
    ls_tape_done(s.tape, NULL);
    assert_elements(sum, (double[]){2, -4, 6, 8}, 0);
    assert_elements(s.x, (double[]){1, -2, 3, 4}, 0);
    teardown(&s);
}

static void in_evaluation_nothing_is_read_again(void **state)
{
    bench s = setup();
    ls_tensor *positive;

    LS_UNUSED(state);
    ls_tape_set_training(s.tape, 0);
    positive = ls_relu(s.tape, s.x);
    ls_tape_done(s.tape, positive);
    assert_null(ls_tensor_data_const(positive));
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_gives_the_same_bits),
        cmocka_unit_test(a_residual_net_has_the_references_gradients),
        cmocka_unit_test(its_memory_is_used_again),
        cmocka_unit_test(what_backward_reads_stays),
        cmocka_unit_test(a_constant_that_backward_reads_stays),
        cmocka_unit_test(retained_values_leaves_and_null_are_ignored),
        cmocka_unit_test(in_evaluation_nothing_is_read_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
