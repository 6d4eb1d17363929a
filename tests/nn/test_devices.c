/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_devices.c - whole graphs on the onednn device against cpu_ref: values in layouts of the
 * device's own meet sharing, views, sums of gradients and kernels that it does not have. Skipped
 * where the module is missing.
 */
#include "tensor/testing.h"

#include "base/alloc.h"
#include "nn/convnet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RESULTS 24

/* Copies of tensors, to be compared after their device is gone. */
typedef struct results {
    int n;
    float *values[MAX_RESULTS];
    size_t counts[MAX_RESULTS];
} results;

static void collect(results *r, const ls_tensor *t)
{
    assert_non_null(t);
    assert_true(r->n < MAX_RESULTS);
    r->counts[r->n] = ls_tensor_count(t);
    r->values[r->n] = ls_calloc(ls_tensor_count(t) + 1, sizeof(float));
    assert_non_null(r->values[r->n]);
    assert_status(LS_OK, ls_tensor_read(t, r->values[r->n], ls_tensor_count(t)));
    r->n++;
}

static void forget(results *r)
{
    for (int i = 0; i < r->n; i++)
        ls_free(r->values[i]);
}

/* Each tensor within `tolerance` of the other's, relative in the norm of the whole. */
static void assert_near(const results *got, const results *want, double tolerance)
{
    assert_int_equal(got->n, want->n);
    for (int i = 0; i < want->n; i++) {
        double distance = 0;
        double norm = 0;

        assert_int_equal(got->counts[i], want->counts[i]);
        for (size_t k = 0; k < want->counts[i]; k++) {
            distance += pow((double)got->values[i][k] - (double)want->values[i][k], 2);
            norm += pow((double)want->values[i][k], 2);
        }
        if (!(sqrt(distance) <= tolerance * (sqrt(norm) + 1e-6)))
            fail_msg("result %d: %g away, its norm is %g", i, sqrt(distance), sqrt(norm));
    }
}

static ls_device *open_named(const char *name)
{
    ls_device *device = NULL;

    assert_status(LS_OK, ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options),
                                                             .name = name,
                                                             .threads = 1},
                                        &device));
    return device;
}

/* --- the ConvNet --- */

static void run_convnet(const char *name, int64_t rows, int n_steps, results *out)
{
    ls_device *device = open_named(name);
    ls_tape *tape = NULL;
    convnet net;
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    const ls_named *items;
    int n;

    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, convnet_create(device, 3, &net));
    assert_status(LS_OK, convnet_batch(device, rows, 11, &x, &y));
    for (int i = 0; i < n_steps; i++) {
        ls_model_zero_grad(net.model);
        assert_status(LS_OK, convnet_gradients(&net, tape, x, y, NULL));
        if (i < n_steps - 1)
            assert_status(LS_OK, convnet_descend(&net, 0.05F));
    }
    items = ls_model_parameters(net.model, &n);
    for (int i = 0; i < n; i++) {
        // Batch norm takes out whatever a convolution's bias puts in: that gradient is rounding
        // alone.
        if (strstr(items[i].name, ".0.bias") == NULL)
            collect(out, ls_grad(items[i].tensor));
    }
    items = ls_model_buffers(net.model, &n);
    for (int i = 0; i < n; i++) {
        if (ls_tensor_dtype(items[i].tensor) == LS_F32)
            collect(out, items[i].tensor);
    }
    ls_tape_set_training(tape, 0);
    collect(out, convnet_forward(&net, tape, x));
    ls_tape_destroy(tape);
    ls_model_destroy(net.model);
    destroy_all((ls_tensor *[]){x, y}, 2);
    ls_device_close(device);
}

static void a_convnets_gradients_agree(void **state)
{
    const int64_t rows[] = {1, 7, 32};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(rows); i++) {
        results want = {0};
        results got = {0};

        run_convnet("cpu_ref", rows[i], 1, &want);
        run_convnet("onednn", rows[i], 1, &got);
        assert_near(&got, &want, 1e-5);
        forget(&want);
        forget(&got);
    }
}

static void a_convnet_stays_near_over_five_steps(void **state)
{
    results want = {0};
    results got = {0};

    LS_UNUSED(state);
    run_convnet("cpu_ref", 16, 5, &want);
    run_convnet("onednn", 16, 5, &got);
    assert_near(&got, &want, 1e-3);
    forget(&want);
    forget(&got);
}

static void no_rows_give_zeros_here_too(void **state)
{
    results got = {0};

    LS_UNUSED(state);
    run_convnet("onednn", 0, 2, &got);
    for (int i = 0; i < 8; i++) {
        for (size_t k = 0; k < got.counts[i]; k++)
            assert_true(got.values[i][k] == 0);
    }
    forget(&got);
}

static void warm_steps_allocate_nothing_and_repeat_their_bits(void **state)
{
    ls_device *device = open_named("onednn");
    ls_tape *tape = NULL;
    convnet net;
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    uint64_t before = 0;
    float first = 0;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tape_create(device, &tape));
    assert_status(LS_OK, convnet_create(device, 3, &net));
    assert_status(LS_OK, convnet_batch(device, 9, 11, &x, &y));
    for (int i = 0; i < 5; i++) {
        float loss = 0;

        ls_model_zero_grad(net.model);
        assert_status(LS_OK, convnet_gradients(&net, tape, x, y, &loss));
        if (i == 0)
            first = loss;
        assert_memory_equal(&loss, &first, sizeof(loss));
        if (i == 1)
            before = ls_alloc_count();
    }
    assert_int_equal(ls_alloc_count(), before);
    ls_tape_destroy(tape);
    ls_model_destroy(net.model);
    destroy_all((ls_tensor *[]){x, y}, 2);
    ls_device_close(device);
}

/* --- a residual block whose values are used in every way there is --- */

typedef struct block {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *x;
    ls_tensor *w[2];
    ls_tensor *gamma;
    ls_tensor *beta;
    ls_tensor *mean;
    ls_tensor *variance;
    ls_tensor *fc;
    ls_tensor *goal;
} block;

enum { ROWS = 3, CHANNELS = 16, SIDE = 6 };

static ls_tensor *make(block *b, int n_dims, const int64_t *dims, uint64_t seed, bool is_leaf)
{
    ls_tensor *t = random_tensor(b->device, LS_F32, n_dims, dims, seed);

    if (is_leaf)
        assert_status(LS_OK, ls_require_grad(t));
    return t;
}

static block block_create(const char *name)
{
    block b = {.device = open_named(name)};
    const int64_t channels = CHANNELS;
    const int64_t kernel[] = {CHANNELS, CHANNELS, 3, 3};

    assert_status(LS_OK, ls_tape_create(b.device, &b.tape));
    b.x = make(&b, 4, (int64_t[]){ROWS, CHANNELS, SIDE, SIDE}, 1, true);
    b.w[0] = make(&b, 4, kernel, 2, true);
    b.w[1] = make(&b, 4, kernel, 3, true);
    b.gamma = make(&b, 1, &channels, 4, true);
    b.beta = make(&b, 1, &channels, 5, true);
    b.mean = make(&b, 1, &channels, 6, false);
    b.variance = make(&b, 1, &channels, 7, false);
    b.fc = make(&b, 2, (int64_t[]){5, CHANNELS * 3 * 3}, 8, true);
    b.goal = make(&b, 2, (int64_t[]){ROWS, 5}, 9, false);
    return b;
}

static void block_destroy(block *b)
{
    ls_tape_destroy(b->tape);
    destroy_all((ls_tensor *[]){b->x, b->w[0], b->w[1], b->gamma, b->beta, b->mean, b->variance,
                                b->fc, b->goal},
                9);
    ls_device_close(b->device);
}

static void run_block(const char *name, results *out)
{
    const ls_conv2d_params same = {.padding = {1, 1}};
    block b = block_create(name);
    ls_tensor *const leaves[] = {b.x, b.w[0], b.w[1], b.gamma, b.beta, b.fc};
    ls_tensor *h = ls_conv2d(b.tape, b.x, b.w[0], NULL, &same);
    ls_tensor *n = ls_batch_norm(b.tape, h, b.gamma, b.beta, b.mean, b.variance, NULL);
    ls_tensor *c = ls_conv2d(b.tape, ls_relu(b.tape, n), b.w[1], NULL, &same);
    ls_tensor *sum = ls_relu(b.tape, ls_add(b.tape, ls_add(b.tape, c, h), ls_add(b.tape, b.x, h)));
    // The same value as an image, and seen through another shape and back.
    ls_tensor *rotated = ls_reshape(b.tape, sum, 3, (int64_t[]){ROWS, -1, SIDE});
    ls_tensor *back = ls_reshape(b.tape, rotated, 4, (int64_t[]){ROWS, CHANNELS, SIDE, SIDE});
    ls_tensor *p =
        ls_max_pool2d(b.tape, ls_add(b.tape, back, sum), &(ls_pool2d_params){.kernel = {2, 2}});
    ls_tensor *y = ls_linear(b.tape, ls_flatten(b.tape, p), b.fc, NULL);

    ls_tape_keep(b.tape, h);
    ls_tape_keep(b.tape, sum);
    ls_tape_keep(b.tape, p);
    assert_status(LS_OK, ls_backward(b.tape, ls_mse_loss(b.tape, y, b.goal), 0.01));
    for (size_t i = 0; i < LS_COUNT_OF(leaves); i++)
        collect(out, ls_grad(leaves[i]));
    collect(out, h);
    collect(out, ls_grad(h));
    collect(out, sum);
    collect(out, ls_grad(sum));
    collect(out, p);
    collect(out, ls_grad(p));
    collect(out, b.mean);
    collect(out, b.variance);
    block_destroy(&b);
}

static void a_residual_block_agrees(void **state)
{
    results want = {0};
    results got = {0};

    LS_UNUSED(state);
    run_block("cpu_ref", &want);
    run_block("onednn", &got);
    assert_near(&got, &want, 1e-5);
    forget(&want);
    forget(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_convnets_gradients_agree),
        cmocka_unit_test(a_convnet_stays_near_over_five_steps),
        cmocka_unit_test(no_rows_give_zeros_here_too),
        cmocka_unit_test(warm_steps_allocate_nothing_and_repeat_their_bits),
        cmocka_unit_test(a_residual_block_agrees),
    };
    ls_device *device = NULL;
    const ls_status st = ls_device_open(
        &(ls_device_options){.size = sizeof(ls_device_options), .name = "onednn"}, &device);

    ls_device_close(device);
    if (st == LS_EUNSUPPORTED) {
        (void)fprintf(stderr, "skipped: %s\n", ls_last_error());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
