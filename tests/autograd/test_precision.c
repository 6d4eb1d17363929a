/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_precision.c - mixed precision: the type of each operator's result and gradient, casts, and
 * gradients and losses near those of float32, on the reference and on the oneDNN device.
 */
#include "tensor/testing.h"

#include "autograd/tape.h"
#include "base/alloc.h"

#include <math.h>
#include <stdio.h>

enum { CONV, CONV_BIAS, SCALE, SHIFT, MIX, FC, FC_BIAS, GAIN, OFFSET, N_LEAVES };
enum { MEAN = N_LEAVES, VARIANCE, N_TENSORS };

static const struct {
    int n_dims;
    int64_t dims[4];
} shapes[N_TENSORS] = {
    [CONV] = {4, {16, 3, 3, 3}}, [CONV_BIAS] = {1, {16}},     [SCALE] = {1, {16}},
    [SHIFT] = {1, {16}},         [MIX] = {4, {16, 16, 1, 1}}, [FC] = {2, {5, 16}},
    [FC_BIAS] = {1, {5}},        [GAIN] = {1, {16}},          [OFFSET] = {1, {16}},
    [MEAN] = {1, {16}},          [VARIANCE] = {1, {16}},
};

enum { ROWS = 12, STEPS = 30 };

typedef struct net {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *t[N_TENSORS];
    ls_tensor *images;
    ls_tensor *labels;
} net;

/* The values of a forward pass. */
typedef struct values {
    ls_tensor *conv;
    ls_tensor *norm;
    ls_tensor *pooled;
    ls_tensor *sum;
    ls_tensor *rows;
    ls_tensor *logits;
    ls_tensor *loss;
} values;

static bool open_net(net *n, const char *device, ls_dtype compute)
{
    const ls_device_options options = {.size = sizeof(options), .name = device, .threads = 1};
    int64_t labels[ROWS];

    *n = (net){.device = NULL};
    if (ls_device_open(&options, &n->device) != LS_OK)
        return false;
    assert_status(LS_OK, ls_tape_create(n->device, &n->tape));
    assert_status(LS_OK, ls_tape_set_compute(n->tape, compute));
    for (int i = 0; i < N_TENSORS; i++) {
        n->t[i] =
            random_tensor(n->device, LS_F32, shapes[i].n_dims, shapes[i].dims, (uint64_t)i + 1);
        if (i < N_LEAVES)
            assert_status(LS_OK, ls_require_grad(n->t[i]));
    }
    for (int i = 0; i < ROWS; i++)
        labels[i] = i % 5;
    n->images = random_tensor(n->device, LS_F32, 4, (int64_t[]){ROWS, 3, 9, 8}, 77);
    assert_status(LS_OK, ls_tensor_create(n->device, LS_I64, 1, (int64_t[]){ROWS}, &n->labels));
    assert_status(LS_OK, ls_tensor_write(n->labels, labels, ROWS));
    return true;
}

static void close_net(net *n)
{
    ls_tape_destroy(n->tape);
    destroy_all(n->t, N_TENSORS);
    destroy_all((ls_tensor *[]){n->images, n->labels}, 2);
    assert_status(LS_OK, ls_device_close(n->device));
}

/* Convolution, batch norm, pool, a residual sum, layer norm, and a classifier. */
static values forward(const net *n)
{
    const ls_conv2d_params same = {.padding = {1, 1}};
    const ls_pool2d_params pool = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
    ls_tape *tape = n->tape;
    values v = {.conv = ls_conv2d(tape, n->images, n->t[CONV], n->t[CONV_BIAS], &same)};

    v.norm = ls_bn_relu(tape, v.conv, n->t[SCALE], n->t[SHIFT], n->t[MEAN], n->t[VARIANCE], NULL);
    v.pooled = ls_max_pool2d(tape, v.norm, &pool);
    v.sum = ls_add_relu(tape, ls_conv2d(tape, v.pooled, n->t[MIX], NULL, NULL), v.pooled);
    v.rows = ls_flatten(tape, ls_adaptive_avg_pool2d(tape, v.sum, 1, 1));
    v.rows = ls_layer_norm(tape, v.rows, n->t[GAIN], n->t[OFFSET], 0);
    v.logits = ls_linear(tape, v.rows, n->t[FC], n->t[FC_BIAS]);
    v.loss = ls_cross_entropy(tape, v.logits, n->labels);
    return v;
}

/* The loss and all gradients after one backward with `seed`, divided by it. */
static double *gradients(const char *device, ls_dtype compute, double seed, size_t *n_values)
{
    net n;
    size_t count = 1;
    double *found;
    ls_tensor *loss;

    if (!open_net(&n, device, compute))
        return NULL;
    loss = forward(&n).loss;
    assert_status(LS_OK, ls_backward(n.tape, loss, seed));
    for (int i = 0; i < N_LEAVES; i++)
        count += ls_tensor_count(n.t[i]);
    found = test_calloc(count, sizeof(*found));
    found[0] = element_of(loss, 0);
    count = 1;
    for (int i = 0; i < N_LEAVES; i++) {
        assert_int_equal(ls_tensor_dtype(ls_grad(n.t[i])), LS_F32);
        for (size_t k = 0; k < ls_tensor_count(n.t[i]); k++)
            found[count++] = element_of(ls_grad(n.t[i]), k) / seed;
    }
    close_net(&n);
    *n_values = count;
    return found;
}

static double distance(const double *got, const double *want, size_t n)
{
    double error = 0;
    double size = 0;

    for (size_t i = 0; i < n; i++) {
        error += pow(got[i] - want[i], 2);
        size += want[i] * want[i];
    }
    return sqrt(error / size);
}

/* The reference, or the simulated device, and the one for users. */
enum { DEVICES = 2 };

static const char *device_at(size_t i)
{
    return i == 0 ? test_device_name() : "onednn";
}

static void gradients_are_near_those_of_float32(void **state)
{
    static const struct {
        ls_dtype type;
        double seed;
        double allowed;
    } cases[] = {{LS_BF16, ROWS, 1.5e-2}, {LS_F16, 65536, 1e-3}};

    LS_UNUSED(state);
    for (size_t d = 0; d < DEVICES; d++) {
        size_t n = 0;
        double *want = gradients(device_at(d), LS_F32, 1, &n);

        for (size_t i = 0; want != NULL && i < LS_COUNT_OF(cases); i++) {
            double *got = gradients(device_at(d), cases[i].type, cases[i].seed, &n);
            const double away = distance(got, want, n);

            if (!(away <= cases[i].allowed))
                fail_msg("%s on %s: gradients are %.3g away", ls_dtype_name(cases[i].type),
                         device_at(d), away);
            test_free(got);
        }
        test_free(want);
    }
}

static void activations_have_the_compute_type_and_losses_float32(void **state)
{
    net n;
    values v;

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_BF16));
    assert_int_equal(ls_tape_compute(n.tape), LS_BF16);
    v = forward(&n);
    ls_tape_keep(n.tape, v.norm);
    ls_tape_keep(n.tape, v.logits);
    assert_int_equal(ls_tensor_dtype(v.conv), LS_BF16);
    assert_int_equal(ls_tensor_dtype(v.norm), LS_BF16);
    assert_int_equal(ls_tensor_dtype(v.pooled), LS_BF16);
    assert_int_equal(ls_tensor_dtype(v.sum), LS_BF16);
    assert_int_equal(ls_tensor_dtype(v.rows), LS_BF16);
    assert_int_equal(ls_tensor_dtype(v.logits), LS_BF16);
    assert_int_equal(ls_tensor_dtype(v.loss), LS_F32);
    assert_int_equal(ls_tensor_dtype(ls_softmax(n.tape, v.logits, 1)), LS_F32);
    assert_int_equal(ls_tensor_dtype(ls_log_softmax(n.tape, v.logits)), LS_F32);
    assert_status(LS_OK, ls_backward(n.tape, v.loss, 1));
    assert_int_equal(ls_tensor_dtype(ls_grad(v.norm)), LS_BF16);
    assert_int_equal(ls_tensor_dtype(ls_grad(v.logits)), LS_BF16);
    close_net(&n);
}

/* Evaluation computes in the same types. */
static void evaluation_computes_in_the_compute_type(void **state)
{
    net n;

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_F16));
    ls_tape_set_training(n.tape, 0);
    assert_int_equal(ls_tensor_dtype(forward(&n).logits), LS_F16);
    close_net(&n);
}

static void inputs_of_two_types_are_added_in_float32(void **state)
{
    net n;
    ls_tensor *low;
    ls_tensor *sum;
    ls_tensor *loss;

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_BF16));
    low = ls_linear(n.tape, ls_reshape(n.tape, n.t[FC], 2, (int64_t[]){5, 16}), n.t[FC],
                    n.t[FC_BIAS]);
    ls_tape_keep(n.tape, low);
    sum = ls_add(n.tape, low, n.t[FC_BIAS]);
    assert_int_equal(ls_tensor_dtype(low), LS_BF16);
    assert_int_equal(ls_tensor_dtype(sum), LS_F32);
    loss = ls_mse_loss(n.tape, sum, ls_expand(n.tape, n.t[FC_BIAS], 2, (int64_t[]){5, 5}));
    assert_status(LS_OK, ls_backward(n.tape, loss, 1));
    assert_int_equal(ls_tensor_dtype(ls_grad(low)), LS_BF16);
    assert_int_equal(ls_tensor_dtype(ls_grad(n.t[FC])), LS_F32);
    assert_int_equal(ls_tensor_dtype(ls_grad(n.t[FC_BIAS])), LS_F32);
    close_net(&n);
}

/* A second reader of the batch, and a second cast of the logits, add no cast; cross-entropy reads
 * 16-bit logits as they are. */
static void an_input_that_is_read_twice_is_cast_once(void **state)
{
    net n;
    ls_tensor *logits;
    int n_before;

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_BF16));
    logits = forward(&n).logits;
    n_before = n.tape->n_values;
    (void)ls_cross_entropy(n.tape, logits, n.labels);
    assert_int_equal(n.tape->n_values, n_before + 1);
    assert_ptr_equal(ls_cast(n.tape, logits, LS_F32), ls_cast(n.tape, logits, LS_F32));
    assert_int_equal(n.tape->n_values, n_before + 2);
    ls_tape_reset(n.tape);
    (void)ls_conv2d(n.tape, n.images, n.t[CONV], NULL, NULL);
    (void)ls_conv2d(n.tape, n.images, n.t[CONV], NULL, NULL);
    assert_int_equal(n.tape->n_values, 3);
    close_net(&n);
}

/* A write between two readers makes the first cast out of date. */
static void an_input_that_was_written_is_cast_again(void **state)
{
    net n;
    ls_tensor *first;
    ls_tensor *second;
    float two[ROWS * 3 * 9 * 8] = {2};

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_BF16));
    first = ls_cast(n.tape, n.images, LS_BF16);
    assert_status(LS_OK, ls_tensor_write(n.images, two, LS_COUNT_OF(two)));
    second = ls_cast(n.tape, n.images, LS_BF16);
    assert_ptr_not_equal(first, second);
    assert_float_equal(element_of(ls_cast(n.tape, second, LS_F32), 0), 2, 0);
    close_net(&n);
}

static void float64_is_never_cast(void **state)
{
    net n;
    ls_tensor *x;
    ls_tensor *y;

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_BF16));
    x = random_tensor(n.device, LS_F64, 2, (int64_t[]){4, 4}, 5);
    y = ls_softmax(n.tape, ls_matmul(n.tape, x, x, 0), 1);
    assert_int_equal(ls_tensor_dtype(y), LS_F64);
    ls_tensor_destroy(x);
    close_net(&n);
}

static void a_change_resets_the_tape(void **state)
{
    net n;

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_F32));
    (void)forward(&n);
    assert_status(LS_OK, ls_tape_set_compute(n.tape, LS_F32));
    assert_true(n.tape->n_values > 0);
    assert_status(LS_OK, ls_tape_set_compute(n.tape, LS_F16));
    assert_int_equal(n.tape->n_values, 0);
    assert_int_equal(ls_tape_compute(n.tape), LS_F16);
    assert_status(LS_EINVAL, ls_tape_set_compute(n.tape, LS_I32));
    assert_string_equal(ls_last_error(), "tape: activations cannot be computed in int32; float32, "
                                         "bfloat16 and float16 are supported");
    assert_int_equal(ls_tape_compute(n.tape), LS_F16);
    close_net(&n);
}

static void a_loss_of_16_bits_is_refused(void **state)
{
    net n;
    ls_tensor *y;

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_F16));
    y = ls_slice(n.tape, ls_slice(n.tape, forward(&n).logits, 0, 0, 1), 1, 0, 1);
    assert_status(LS_EINVAL, ls_backward(n.tape, y, 1));
    assert_string_equal(ls_last_error(),
                        "backward: the loss (1, 1) float16 must be float32 or float64");
    close_net(&n);
}

static void a_tape_of_float32_refuses_16_bits(void **state)
{
    net n;
    ls_tensor *x = NULL;

    LS_UNUSED(state);
    assert_true(open_net(&n, test_device_name(), LS_F32));
    assert_status(LS_OK, ls_tensor_create(n.device, LS_BF16, 1, (int64_t[]){3}, &x));
    assert_null(ls_relu(n.tape, x));
    assert_status(LS_EINVAL, ls_tape_status(n.tape));
    assert_string_equal(ls_last_error(), "relu: input (3) bfloat16 must be float32 or float64");
    ls_tape_reset(n.tape);
    assert_null(ls_cast(n.tape, n.images, LS_BF16));
    assert_status(LS_EINVAL, ls_tape_status(n.tape));
    assert_string_equal(ls_last_error(),
                        "cast: float32 to bfloat16 on a tape that computes in float32");
    ls_tensor_destroy(x);
    close_net(&n);
}

static void step(net *n, float rate)
{
    enum { MOST = 16 * 16 * 3 };
    float data[MOST];
    float g[MOST];

    for (int i = 0; i < N_LEAVES; i++) {
        const size_t count = ls_tensor_count(n->t[i]);

        assert_true(count <= MOST);
        assert_status(LS_OK, ls_tensor_read(n->t[i], data, count));
        assert_status(LS_OK, ls_tensor_read(ls_grad(n->t[i]), g, count));
        for (size_t k = 0; k < count; k++)
            data[k] -= rate * g[k];
        assert_status(LS_OK, ls_tensor_write(n->t[i], data, count));
        ls_zero_grad(n->t[i]);
    }
}

/* The losses of STEPS steps of gradient descent. */
static bool descend(const char *device, ls_dtype compute, double seed, double *losses)
{
    net n;

    if (!open_net(&n, device, compute))
        return false;
    for (int i = 0; i < STEPS; i++) {
        ls_tensor *loss = forward(&n).loss;

        assert_status(LS_OK, ls_backward(n.tape, loss, seed));
        losses[i] = element_of(loss, 0);
        ls_tape_reset(n.tape);
        step(&n, (float)(0.05 / seed));
    }
    close_net(&n);
    return true;
}

/* A bfloat16 number is up to 2^-9 away, which 30 steps of a falling loss may double a few times:
 * each loss is within 1 % of float32's, with float16 within 0.2 %. */
static void losses_fall_as_in_float32(void **state)
{
    static const struct {
        ls_dtype type;
        double seed;
        double allowed;
    } cases[] = {{LS_BF16, 1, 1e-2}, {LS_F16, 1024, 2e-3}};
    double want[STEPS];
    double got[STEPS];

    LS_UNUSED(state);
    for (size_t d = 0; d < DEVICES; d++) {
        if (!descend(device_at(d), LS_F32, 1, want))
            continue;
        assert_true(want[STEPS - 1] < 0.7 * want[0]);
        for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
            assert_true(descend(device_at(d), cases[i].type, cases[i].seed, got));
            for (int k = 0; k < STEPS; k++) {
                if (!(fabs(got[k] - want[k]) <= cases[i].allowed * want[k]))
                    fail_msg("%s on %s: loss %d is %.4f, not %.4f", ls_dtype_name(cases[i].type),
                             device_at(d), k, got[k], want[k]);
            }
        }
    }
}

/* Each allocation of a step fails once: the step reports it, and nothing is leaked. */
static void a_step_without_memory_leaks_nothing(void **state)
{
    LS_UNUSED(state);
    for (uint64_t at = 1;; at += 3) {
        net n;
        ls_status st;

        assert_true(open_net(&n, "cpu_ref", LS_BF16));
        ls_alloc_fail_at(at);
        st = ls_backward(n.tape, forward(&n).loss, 1);
        ls_alloc_fail_at(0);
        close_net(&n);
        if (st == LS_OK) {
            assert_true(at > 20);
            return;
        }
        assert_status(LS_ENOMEM, st);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_near_those_of_float32),
        cmocka_unit_test(activations_have_the_compute_type_and_losses_float32),
        cmocka_unit_test(evaluation_computes_in_the_compute_type),
        cmocka_unit_test(inputs_of_two_types_are_added_in_float32),
        cmocka_unit_test(an_input_that_is_read_twice_is_cast_once),
        cmocka_unit_test(an_input_that_was_written_is_cast_again),
        cmocka_unit_test(float64_is_never_cast),
        cmocka_unit_test(a_change_resets_the_tape),
        cmocka_unit_test(a_loss_of_16_bits_is_refused),
        cmocka_unit_test(a_tape_of_float32_refuses_16_bits),
        cmocka_unit_test(losses_fall_as_in_float32),
        cmocka_unit_test(a_step_without_memory_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
