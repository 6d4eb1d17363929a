/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_convolutions.c - convolutions of sequences, transposed convolutions and group norm behind
 * one another: on each host device and in 16 bits near the reference, the same bits with
 * checkpointing, and their names in errors.
 */
#include "tensor/testing.h"

#include <lockstep/autograd.h>

#include <math.h>
#include <string.h>

enum { TAPS, TAPS_BIAS, GAIN, OFFSET, UP, UP_BIAS, UP2, UP2_BIAS, N_LEAVES };

enum { ROWS = 3, WIDTH = 24, STEPS = 11 };

static const struct {
    int n_dims;
    int64_t dims[4];
} shapes[N_LEAVES] = {
    [TAPS] = {3, {WIDTH, 12, 5}}, [TAPS_BIAS] = {1, {WIDTH}}, [GAIN] = {1, {WIDTH}},
    [OFFSET] = {1, {WIDTH}},      [UP] = {3, {WIDTH, 10, 4}}, [UP_BIAS] = {1, {20}},
    [UP2] = {4, {5, 3, 3, 2}},    [UP2_BIAS] = {1, {3}},
};

typedef struct net {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *t[N_LEAVES];
    ls_tensor *x;
    bool has_checkpoints;
} net;

/* Conv1d, group norm and a transposed convolution: (N,12,T) -> (N,20,2 T). */
static void sequences(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    ls_tensor *const *t = ((const net *)arg)->t;
    ls_tensor *h = ls_conv1d(tape, in[0], t[TAPS], t[TAPS_BIAS], &(ls_conv1d_params){.padding = 2});

    h = ls_tanh(tape, ls_group_norm(tape, h, 4, t[GAIN], t[OFFSET], 0));
    *out =
        ls_conv_transpose1d(tape, h, t[UP], t[UP_BIAS],
                            &(ls_conv_transpose1d_params){.stride = 2, .padding = 1, .groups = 2});
}

/* The same elements as images (N,5,4,2 T) become (N,3,H,W). */
static ls_tensor *forward(net *n)
{
    const ls_conv_transpose2d_params params = {
        .stride = {2, 1}, .padding = {1, 0}, .output_padding = {1, 0}};
    ls_tensor *h;

    if (n->has_checkpoints)
        ls_tape_checkpoint(n->tape, sequences, n, 0, &n->x, 1, &h, 1);
    else
        sequences(n->tape, &n->x, &h, n);
    h = ls_reshape(n->tape, h, 4, (int64_t[]){-1, 5, 4, (int64_t)2 * STEPS});
    h = ls_conv_transpose2d(n->tape, ls_relu(n->tape, h), n->t[UP2], n->t[UP2_BIAS], &params);
    if (ls_tensor_dtype(h) != LS_F64)
        h = ls_cast(n->tape, h, LS_F32);
    return ls_mean(n->tape, ls_square(n->tape, h), NULL, 0, 0);
}

static bool open_net(net *n, const char *device, ls_dtype type, ls_dtype compute)
{
    const ls_device_options options = {.size = sizeof(options), .name = device, .threads = 1};

    *n = (net){.device = NULL};
    if (ls_device_open(&options, &n->device) != LS_OK)
        return false;
    assert_status(LS_OK, ls_tape_create(n->device, &n->tape));
    assert_status(LS_OK, ls_tape_set_compute(n->tape, compute));
    for (int i = 0; i < N_LEAVES; i++) {
        n->t[i] = random_tensor(n->device, type, shapes[i].n_dims, shapes[i].dims, (uint64_t)i + 1);
        assert_status(LS_OK, ls_require_grad(n->t[i]));
    }
    n->x = random_tensor(n->device, type, 3, (int64_t[]){ROWS, 12, STEPS}, 99);
    return true;
}

static void close_net(net *n)
{
    ls_tape_destroy(n->tape);
    destroy_all(n->t, N_LEAVES);
    ls_tensor_destroy(n->x);
    assert_status(LS_OK, ls_device_close(n->device));
}

static void run_backward(net *n)
{
    assert_status(LS_OK, ls_backward(n->tape, forward(n), 1));
    ls_tape_reset(n->tape);
}

/* The root of the mean square distance from the other's, relative to that of the other. */
static double distance(const ls_tensor *got, const ls_tensor *want)
{
    double squares = 0;
    double sum = 0;

    assert_true(ls_tensor_count(got) == ls_tensor_count(want));
    for (size_t i = 0; i < ls_tensor_count(want); i++) {
        squares += pow(element_of(want, i), 2);
        sum += pow(element_of(got, i) - element_of(want, i), 2);
    }
    return sqrt(sum / squares);
}

static void devices_and_types_are_near_the_reference(void **state)
{
    static const struct {
        const char *device;
        ls_dtype compute;
        double tolerance;
    } runs[] = {{"cpu_ref", LS_F32, 1e-5},  {"onednn", LS_F32, 1e-5}, {"cudahost", LS_F32, 1e-5},
                {"cpu_ref", LS_BF16, 0.1},  {"onednn", LS_BF16, 0.1}, {"cudahost", LS_BF16, 0.1},
                {"cudahost", LS_F16, 0.02}, {"onednn", LS_F16, 0.02}};
    net want;

    LS_UNUSED(state);
    assert_true(open_net(&want, "cpu_ref", LS_F64, LS_F32));
    run_backward(&want);
    for (size_t i = 0; i < LS_COUNT_OF(runs); i++) {
        net got;

        if (!open_net(&got, runs[i].device, LS_F32, runs[i].compute)) {
            print_message("without %s: %s\n", runs[i].device, ls_last_error());
            continue;
        }
        run_backward(&got);
        for (int k = 0; k < N_LEAVES; k++) {
            const double d = distance(ls_grad(got.t[k]), ls_grad(want.t[k]));

            assert_int_equal(ls_tensor_dtype(ls_grad(got.t[k])), LS_F32);
            if (!(d <= runs[i].tolerance))
                fail_msg("%s in %s: gradient %d is off by %.3g", runs[i].device,
                         ls_dtype_name(runs[i].compute), k, d);
        }
        close_net(&got);
    }
    close_net(&want);
}

static void checkpoints_keep_the_bits(void **state)
{
    net nets[2];

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        assert_true(open_net(&nets[i], test_device_name(), LS_F32, LS_F32));
        nets[i].has_checkpoints = i == 1;
        run_backward(&nets[i]);
    }
    for (int k = 0; k < N_LEAVES; k++)
        assert_true(distance(ls_grad(nets[0].t[k]), ls_grad(nets[1].t[k])) == 0);
    close_net(&nets[0]);
    close_net(&nets[1]);
}

/* One parameter is made infinite; the text of the failure. */
static const char *failure_with_infinite(int leaf)
{
    const float infinite = INFINITY;
    net n;

    assert_true(open_net(&n, test_device_name(), LS_F32, LS_F32));
    ls_tape_check_nan(n.tape, 1);
    assert_status(LS_OK, ls_tensor_fill(n.t[leaf], (double)infinite));
    assert_null(forward(&n));
    assert_status(LS_EFORMAT, ls_tape_status(n.tape));
    close_net(&n);
    return ls_last_error();
}

static void operators_are_named_where_results_are_not_finite(void **state)
{
    LS_UNUSED(state);
    assert_non_null(strstr(failure_with_infinite(TAPS), "conv1d of (3, 12, 11), (24, 12, 5)"));
    assert_non_null(
        strstr(failure_with_infinite(UP_BIAS), "conv_transpose1d of (3, 24, 11), (24, 10, 4)"));
    assert_non_null(
        strstr(failure_with_infinite(UP2), "conv_transpose2d of (3, 5, 4, 22), (5, 3, 3, 2)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_and_types_are_near_the_reference),
        cmocka_unit_test(checkpoints_keep_the_bits),
        cmocka_unit_test(operators_are_named_where_results_are_not_finite),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
