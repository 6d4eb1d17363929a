/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_updates.c - steps of optimizers, clipping and gradient scaling over many arrays on the
 * CUDA device, compiled for the host: the bits of cpu_ref, in few launches.
 */
#include "tensor/cuda/cuda_testing.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

enum { N_ARRAYS = 100, N_TENSORS = 5, N_STEPS = 3 };

/* Around packs, chunks of 8192 elements, and several of them. */
static const int64_t sizes[] = {0, 1, 3, 31, 33, 4097, 8192, 8193, 20001, 64};

/* A gradient, a parameter and its state for each array, and the calls that update them. */
typedef struct updates {
    ls_device *device;
    ls_tensor *tensors[N_TENSORS][N_ARRAYS];
    op_call calls[N_ARRAYS];
} updates;

/* Gradients and values are random, the state is 0. */
static void make_updates(updates *u, ls_device *device, ls_dtype type, const op_call *like)
{
    memset(u, 0, sizeof(*u));
    u->device = device;
    for (int i = 0; i < N_ARRAYS; i++) {
        const int64_t size = sizes[(size_t)i % LS_COUNT_OF(sizes)];

        for (int k = 0; k < like->n_out + 1 && k < 2; k++)
            u->tensors[k][i] = random_tensor(device, type, 1, &size, (uint64_t)(2 * i + k));
        for (int k = 2; k < like->n_out + 1; k++)
            assert_status(LS_OK, ls_tensor_create(device, type, 1, &size, &u->tensors[k][i]));
        u->calls[i] = *like;
        u->calls[i].in[0] = u->tensors[0][i];
        for (int k = 0; k < like->n_out; k++)
            u->calls[i].out[k] = u->tensors[k + 1][i];
    }
}

static void free_updates(updates *u)
{
    for (int k = 0; k < N_TENSORS; k++)
        destroy_all(u->tensors[k], N_ARRAYS);
}

static void assert_equal_bits(const ls_tensor *a, const ls_tensor *b, const char *what, int i)
{
    void *mine = copy_of(a);
    void *other = copy_of(b);

    if (memcmp(mine, other, tensor_bytes(a)) != 0)
        fail_msg("%s: other bits in tensor %d of %zu elements", what, i, ls_tensor_count(a));
    ls_free(mine);
    ls_free(other);
}

/* Some steps on both devices; all tensors have equal bits afterwards. */
static void check_bits(const char *what, ls_dtype type, op_call like, op_update rates)
{
    static updates cuda;
    static updates reference;
    gpu_host *gpu = cudahost_reset();
    ls_device *devices[2] = {open_cudahost("cudahost"), open_reference()};
    uint64_t before;

    like.update = &rates;
    make_updates(&cuda, devices[0], type, &like);
    make_updates(&reference, devices[1], type, &like);
    for (int step = 0; step < N_STEPS; step++) {
        rates.first = step == 0;
        before = gpu->n_launches;
        assert_status(LS_OK, device_run_many(devices[0], cuda.calls, N_ARRAYS));
        assert_int_equal(gpu->n_launches - before, 2);
        assert_status(LS_OK, device_run_many(devices[1], reference.calls, N_ARRAYS));
    }
    for (int k = 0; k < like.n_out + 1; k++) {
        for (int i = 0; i < N_ARRAYS; i++)
            assert_equal_bits(cuda.tensors[k][i], reference.tensors[k][i], what, i);
    }
    free_updates(&cuda);
    free_updates(&reference);
    assert_status(LS_OK, ls_device_close(devices[0]));
    assert_status(LS_OK, ls_device_close(devices[1]));
}

static const struct {
    const char *name;
    op_update rates;
    op_kind op;
    int n_out;
} optimizers[] = {
    {"sgd", {.lr = 0.1}, OP_SGD, 1},
    {"sgd with weight decay", {.lr = 0.1, .weight_decay = 1e-3}, OP_SGD, 1},
    {"sgd with momentum", {.lr = 0.1, .momentum = 0.9, .dampening = 0.1}, OP_SGD, 2},
    {"sgd of nesterov",
     {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4, .nesterov = true},
     OP_SGD,
     2},
    {"adam",
     {.beta1 = 0.9,
      .beta2 = 0.999,
      .eps = 1e-8,
      .step_size = 0.01,
      .root_scale = 0.03,
      .decay_factor = 1},
     OP_ADAM,
     3},
    {"adam with weight decay and the largest square",
     {.beta1 = 0.9,
      .beta2 = 0.99,
      .eps = 1e-8,
      .step_size = 0.01,
      .root_scale = 0.3,
      .added_decay = 0.01,
      .decay_factor = 1},
     OP_ADAM,
     4},
    {"adamw",
     {.beta1 = 0.8,
      .beta2 = 0.999,
      .eps = 1e-6,
      .step_size = 0.01,
      .root_scale = 0.03,
      .decay_factor = 0.999},
     OP_ADAM,
     3},
};

static void optimizers_have_the_bits_of_the_reference(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(optimizers); i++) {
        const op_call like = {.op = optimizers[i].op, .n_in = 1, .n_out = optimizers[i].n_out};

        check_bits(optimizers[i].name, LS_F32, like, optimizers[i].rates);
        check_bits(optimizers[i].name, LS_F64, like, optimizers[i].rates);
    }
}

static void calls_of_other_types_and_rates_have_their_own_launches(void **state)
{
    static updates u;
    const op_update rates[2] = {{.lr = 0.1, .momentum = 0.9, .first = true},
                                {.lr = 0.1, .momentum = 0.9}};
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    const op_call like = {.op = OP_SGD, .n_in = 1, .n_out = 2};
    uint64_t before;

    LS_UNUSED(state);
    make_updates(&u, device, LS_F32, &like);
    for (int i = 0; i < N_ARRAYS; i++)
        u.calls[i].update = &rates[i >= 10];
    before = gpu->n_launches;
    assert_status(LS_OK, device_run_many(device, u.calls, 20));
    assert_int_equal(gpu->n_launches - before, 2);
    // momentum = grad with the first rates, (1 - 0) grad + 0.9 * 0 with the others
    for (int i = 0; i < 20; i++)
        assert_equal_bits(u.tensors[2][i], u.tensors[0][i], "momentum", i);
    free_updates(&u);
    assert_status(LS_OK, ls_device_close(device));
}

static void a_step_that_is_skipped_changes_nothing(void **state)
{
    static updates u;
    static updates before;
    const op_update rates = optimizers[4].rates;
    ls_device *device;
    ls_tensor *skip;
    op_call like = {.op = OP_ADAM, .n_in = 2, .n_out = 3, .update = &rates};

    LS_UNUSED(state);
    cudahost_reset();
    device = open_cudahost("cudahost");
    skip = tensor_of(device, LS_F32, 0, NULL, (const double[]){1});
    like.in[1] = skip;
    make_updates(&u, device, LS_F32, &like);
    make_updates(&before, device, LS_F32, &like);
    assert_status(LS_OK, device_run_many(device, u.calls, N_ARRAYS));
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < N_ARRAYS; i++)
            assert_equal_bits(u.tensors[k][i], before.tensors[k][i], "skipped", i);
    }
    free_updates(&u);
    free_updates(&before);
    ls_tensor_destroy(skip);
    assert_status(LS_OK, ls_device_close(device));
}

/* In place: out[0] is in[0]. */
static void make_in_place(updates *u, ls_device *device, op_call like)
{
    make_updates(u, device, LS_F32, &like);
    for (int i = 0; i < N_ARRAYS; i++) {
        u->calls[i].out[0] = u->calls[i].in[0];
        u->calls[i].out[1] = like.out[1];
        u->calls[i].in[1] = like.in[1];
    }
}

static void gradients_are_clipped_and_scaled_as_by_the_reference(void **state)
{
    static updates u[2];
    ls_device *devices[2];
    ls_tensor *factor[2];

    LS_UNUSED(state);
    cudahost_reset();
    devices[0] = open_cudahost("cudahost");
    devices[1] = open_reference();
    for (int d = 0; d < 2; d++) {
        factor[d] = tensor_of(devices[d], LS_F64, 0, NULL, (const double[]){0.7});
        make_in_place(&u[d], devices[d],
                      (op_call){.op = OP_SCALE_BY, .n_in = 2, .n_out = 1, .in = {NULL, factor[d]}});
        assert_status(LS_OK, device_run_many(devices[d], u[d].calls, N_ARRAYS));
        for (int i = 0; i < N_ARRAYS; i++) {
            u[d].calls[i].op = OP_CLAMP;
            u[d].calls[i].n_in = 1;
            u[d].calls[i].attrs.value = 0.25;
        }
        assert_status(LS_OK, device_run_many(devices[d], u[d].calls, N_ARRAYS));
    }
    for (int i = 0; i < N_ARRAYS; i++)
        assert_equal_bits(u[0].tensors[0][i], u[1].tensors[0][i], "clipped", i);
    for (int d = 0; d < 2; d++) {
        free_updates(&u[d]);
        ls_tensor_destroy(factor[d]);
        assert_status(LS_OK, ls_device_close(devices[d]));
    }
}

static void unscaling_finds_what_is_not_finite(void **state)
{
    static updates u;
    const double values[3] = {1, (double)INFINITY, 2};
    ls_device *device;
    ls_tensor *found;

    LS_UNUSED(state);
    cudahost_reset();
    device = open_cudahost("cudahost");
    found = tensor_of(device, LS_F32, 0, NULL, (const double[]){0});
    make_in_place(&u, device,
                  (op_call){.op = OP_UNSCALE,
                            .attrs = {.scale = 0.5},
                            .n_in = 1,
                            .n_out = 2,
                            .out = {NULL, found}});
    assert_status(LS_OK, device_run_many(device, u.calls, N_ARRAYS));
    assert_true(element_of(found, 0) == 0);
    // the array of 3 elements
    assert_status(LS_OK,
                  ls_tensor_write(u.tensors[0][2], (const float[]){1, (float)values[1], 2}, 3));
    assert_status(LS_OK, device_run_many(device, u.calls, N_ARRAYS));
    assert_true(element_of(found, 0) == 1);
    assert_elements(u.tensors[0][2], (const double[]){0.5, (double)INFINITY, 1}, 0);
    free_updates(&u);
    ls_tensor_destroy(found);
    assert_status(LS_OK, ls_device_close(device));
}

/* The sums that 1, 3, 7 blocks and a launch's own number give. */
static void sums_of_squares_do_not_depend_on_the_blocks(void **state)
{
    static updates u;
    static const unsigned blocks[] = {0, 1, 3, 7};
    const int64_t n = N_ARRAYS;
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    ls_tensor *squares[LS_COUNT_OF(blocks)] = {NULL};

    LS_UNUSED(state);
    make_updates(&u, device, LS_F32, &(op_call){.op = OP_SQUARES, .n_in = 1, .n_out = 1});
    for (size_t b = 0; b < LS_COUNT_OF(blocks); b++) {
        gpu->n_blocks = blocks[b];
        squares[b] = random_tensor(device, LS_F64, 1, &n, 1);
        for (int i = 0; i < N_ARRAYS; i++) {
            u.calls[i].out[0] = squares[b];
            u.calls[i].attrs.begin = i;
        }
        assert_status(LS_OK, device_run_many(device, u.calls, N_ARRAYS));
        assert_equal_bits(squares[b], squares[0], "squares", (int)blocks[b]);
    }
    for (int i = 0; i < N_ARRAYS; i++) {
        double *values = elements_of(u.tensors[0][i]);
        double sum = 0;

        for (size_t e = 0; e < ls_tensor_count(u.tensors[0][i]); e++)
            sum += values[e] * values[e];
        assert_true(fabs(element_of(squares[0], (size_t)i) - sum) <= 1e-13 * sum);
        ls_free(values);
    }
    gpu->n_blocks = 0;
    destroy_all(squares, LS_COUNT_OF(squares));
    free_updates(&u);
    assert_status(LS_OK, ls_device_close(device));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_have_the_bits_of_the_reference),
        cmocka_unit_test(calls_of_other_types_and_rates_have_their_own_launches),
        cmocka_unit_test(a_step_that_is_skipped_changes_nothing),
        cmocka_unit_test(gradients_are_clipped_and_scaled_as_by_the_reference),
        cmocka_unit_test(unscaling_finds_what_is_not_finite),
        cmocka_unit_test(sums_of_squares_do_not_depend_on_the_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
