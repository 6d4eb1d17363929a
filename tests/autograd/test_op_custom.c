/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_op_custom.c - ls_op_run(): operators of the program on host and stream devices, their
 * gradients, their errors, and what the tape does for them.
 */
#include "tensor/testing.h"

#include "autograd/autograd.h"
#include "base/compute/accel.h"
#include "tensor/pool.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

static void assert_error(const char *text)
{
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not tell \"%s\"", ls_last_error(), text);
}

#define MAX_ELEMENTS 16

/* Copies through host memory: works on every device. */
static void read_all(const ls_tensor *t, double *out)
{
    assert_true(ls_tensor_count(t) <= MAX_ELEMENTS);
    assert_status(LS_OK, ls_tensor_read(t, out, ls_tensor_count(t)));
}

static void write_all(ls_tensor *t, const double *values)
{
    assert_status(LS_OK, ls_tensor_write(t, values, ls_tensor_count(t)));
}

/* --- sine, and cosine as a second result: gradients of both, an attribute, a constant input --- */

typedef struct wave_attrs {
    double frequency;
} wave_attrs;

static ls_status wave_forward(const ls_op_call *call)
{
    const wave_attrs *a = call->attrs;
    double x[MAX_ELEMENTS];
    double y[2][MAX_ELEMENTS];

    read_all(call->inputs[0], x);
    for (size_t i = 0; i < ls_tensor_count(call->inputs[0]); i++) {
        y[0][i] = sin(a->frequency * x[i]);
        y[1][i] = cos(a->frequency * x[i]);
    }
    for (int i = 0; i < 2; i++)
        write_all(call->outputs[i], y[i]);
    return LS_OK;
}

static ls_status wave_backward(const ls_op_call *call)
{
    const wave_attrs *a = call->attrs;
    double y[2][MAX_ELEMENTS];
    double dy[2][MAX_ELEMENTS];
    double dx[MAX_ELEMENTS];

    for (int i = 0; i < 2; i++) {
        read_all(call->outputs[i], y[i]);
        read_all(call->d_outputs[i], dy[i]);
    }
    for (size_t i = 0; i < ls_tensor_count(call->inputs[0]); i++)
        dx[i] = a->frequency * (dy[0][i] * y[1][i] - dy[1][i] * y[0][i]);
    if (call->d_inputs[0] != NULL)
        write_all(call->d_inputs[0], dx);
    return LS_OK;
}

static const ls_op wave_op = {
    .size = sizeof(wave_op), .name = "wave", .forward = wave_forward, .backward = wave_backward};

static ls_tensor *wave(ls_tape *tape, ls_tensor *x, bool second)
{
    wave_attrs a = {.frequency = 1.7};
    ls_tensor *y[2];

    ls_op_run(tape, &wave_op, &a, sizeof(a), &x, 1, y, 2);
    a.frequency = 0; // the copy counts
    return second ? ls_mul(tape, y[0], y[1]) : y[0];
}

static ls_tensor *wave_loss(ls_tape *tape, ls_tensor *const *in, void *arg)
{
    ls_tensor *y = wave(tape, wave(tape, in[0], true), *(bool *)arg);

    return ls_mse_loss(tape, y, in[1]);
}

static void gradients_are_those_of_differences(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *in[] = {random_tensor(device, LS_F64, 2, (int64_t[]){2, 3}, 1),
                       random_tensor(device, LS_F64, 2, (int64_t[]){2, 3}, 2)};
    bool second = false;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(in[0]));
    assert_status(LS_OK, ls_grad_check(wave_loss, &second, in, 2, 1e-6, NULL));
    second = true;
    assert_status(LS_OK, ls_grad_check(wave_loss, &second, in, 2, 1e-6, NULL));
    destroy_all(in, 2);
    assert_status(LS_OK, ls_device_close(device));
}

/* --- shapes, integer inputs and outputs: rows of a table, and how often each is taken --- */

static ls_status gather_shape(const ls_op_call *call)
{
    if (call->n_inputs != 2 || call->n_outputs != 2 || ls_tensor_dtype(call->inputs[1]) != LS_I64)
        return LS_EINVAL;
    call->shapes[0] = (ls_op_shape){.type = ls_tensor_dtype(call->inputs[0]),
                                    .n_dims = 1,
                                    .dims = {ls_tensor_dim(call->inputs[1], 0)}};
    call->shapes[1] =
        (ls_op_shape){.type = LS_I64, .n_dims = 1, .dims = {ls_tensor_dim(call->inputs[0], 0)}};
    return LS_OK;
}

static ls_status gather_forward(const ls_op_call *call)
{
    double table[MAX_ELEMENTS];
    int64_t rows[MAX_ELEMENTS];
    double y[MAX_ELEMENTS];
    int64_t uses[MAX_ELEMENTS] = {0};
    const size_t n = ls_tensor_count(call->inputs[1]);

    read_all(call->inputs[0], table);
    assert_status(LS_OK, ls_tensor_read(call->inputs[1], rows, n));
    for (size_t i = 0; i < n; i++) {
        if (rows[i] < 0 || rows[i] >= ls_tensor_dim(call->inputs[0], 0))
            return LS_EFORMAT;
        y[i] = table[rows[i]];
        uses[rows[i]]++;
    }
    write_all(call->outputs[0], y);
    return ls_tensor_write(call->outputs[1], uses, ls_tensor_count(call->outputs[1]));
}

static ls_status gather_backward(const ls_op_call *call)
{
    int64_t rows[MAX_ELEMENTS];
    double dy[MAX_ELEMENTS];
    double d_table[MAX_ELEMENTS] = {0};
    const size_t n = ls_tensor_count(call->inputs[1]);

    assert_null(call->d_inputs[1]);
    assert_null(call->d_outputs[1]);
    assert_status(LS_OK, ls_tensor_read(call->inputs[1], rows, n));
    read_all(call->d_outputs[0], dy);
    for (size_t i = 0; i < n; i++)
        d_table[rows[i]] += dy[i];
    write_all(call->d_inputs[0], d_table);
    return LS_OK;
}

static const ls_op gather_op = {.size = sizeof(gather_op),
                                .name = "gather",
                                .shape = gather_shape,
                                .forward = gather_forward,
                                .backward = gather_backward};

/* A table of 3, a leaf, and the rows 2, 0, 2 of it. */
typedef struct bench {
    ls_device *device;
    ls_tape *tape;
    ls_tensor *table; /* (3): 10 20 30 */
    ls_tensor *rows;  /* (3): 2 0 2 */
    ls_tensor *goal;  /* (3): 0 */
} bench;

static bench setup(void)
{
    bench s = {.device = open_reference()};

    assert_status(LS_OK, ls_tape_create(s.device, &s.tape));
    s.table = tensor_of(s.device, LS_F64, 1, (int64_t[]){3}, (double[]){10, 20, 30});
    s.goal = tensor_of(s.device, LS_F64, 1, (int64_t[]){3}, (double[]){0, 0, 0});
    assert_status(LS_OK, ls_tensor_create(s.device, LS_I64, 1, (int64_t[]){3}, &s.rows));
    assert_status(LS_OK, ls_tensor_write(s.rows, (int64_t[]){2, 0, 2}, 3));
    assert_status(LS_OK, ls_require_grad(s.table));
    return s;
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    destroy_all((ls_tensor *[]){s->table, s->rows, s->goal}, 3);
    assert_status(LS_OK, ls_device_close(s->device));
}

static ls_tensor *gather(bench *s, ls_tensor *rows, ls_tensor **uses)
{
    ls_tensor *y[2] = {rows, rows};

    ls_op_run(s->tape, &gather_op, NULL, 0, (ls_tensor *[]){s->table, rows}, 2, y, 2);
    if (y[0] == NULL)
        assert_null(y[1]);
    if (uses != NULL)
        *uses = y[1];
    return y[0];
}

static void integers_have_no_gradient(void **state)
{
    bench s = setup();
    ls_tensor *uses;
    ls_tensor *y = gather(&s, s.rows, &uses);
    int64_t got[3];

    LS_UNUSED(state);
    assert_elements(y, (double[]){30, 10, 30}, 0);
    assert_status(LS_OK, ls_tensor_read(uses, got, 3));
    assert_memory_equal(got, ((int64_t[]){1, 0, 2}), sizeof(got));
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, y, s.goal), 3));
    assert_elements(ls_grad(s.table), (double[]){20, 0, 120}, 1e-12);
    ls_tape_reset(s.tape);

    // an integer result is a constant for later operators
    y = gather(&s, s.rows, &uses);
    y = gather(&s, uses, NULL);
    assert_elements(y, (double[]){20, 10, 30}, 0);
    ls_tape_reset(s.tape);
    ls_tape_set_training(s.tape, 0);
    assert_elements(gather(&s, s.rows, NULL), (double[]){30, 10, 30}, 0);
    teardown(&s);
}

/* The rows of in[0] that tell how often each row of the table is taken. */
static void gather_uses(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    bench *s = arg;
    ls_tensor *y[2];

    (void)gather(s, s->rows, &y[1]);
    ls_op_run(tape, &gather_op, NULL, 0, (ls_tensor *[]){in[0], y[1]}, 2, y, 2);
    out[0] = y[0];
}

static void no_gradient_passes_through_integers(void **state)
{
    bench s = setup();
    ls_tensor *other = tensor_of(s.device, LS_F64, 1, (int64_t[]){3}, (double[]){1, 2, 3});

    LS_UNUSED(state);
    assert_status(LS_OK, ls_require_grad(other));
    for (int is_checkpointed = 0; is_checkpointed < 2; is_checkpointed++) {
        ls_tensor *y;

        if (is_checkpointed)
            ls_tape_checkpoint(s.tape, gather_uses, &s, 0, &other, 1, &y, 1);
        else
            gather_uses(s.tape, &other, &y, &s);
        assert_elements(y, (double[]){2, 1, 3}, 0);
        assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, y, s.goal), 3));
        assert_elements(ls_grad(other), (double[]){2, 4, 6}, 1e-12);
        assert_null(ls_grad(s.table));
        ls_tape_reset(s.tape);
        ls_zero_grad(other);
    }
    ls_tensor_destroy(other);
    teardown(&s);
}

static void failures_name_operator_shapes_and_function(void **state)
{
    bench s = setup();
    ls_tensor *other = tensor_of(s.device, LS_F64, 1, (int64_t[]){2}, (double[]){1, 1});

    LS_UNUSED(state);
    assert_null(gather(&s, other, NULL));
    assert_status(LS_EINVAL, ls_tape_status(s.tape));
    assert_error("gather of (3), (2): the shape function returned -1 (");
    ls_tape_reset(s.tape);
    assert_status(LS_OK, ls_tensor_write(s.rows, (int64_t[]){2, 3, 2}, 3));
    assert_null(gather(&s, s.rows, NULL));
    assert_status(LS_EFORMAT, ls_tape_status(s.tape));
    assert_error("gather of (3), (3): the forward function returned");
    ls_tape_reset(s.tape);
    assert_null(gather(&s, NULL, NULL));
    ls_tape_reset(s.tape);
    assert_null(ls_relu(s.tape, NULL));
    assert_null(gather(&s, s.rows, NULL));
    assert_error("relu: input is NULL");
    ls_tensor_destroy(other);
    teardown(&s);
}

static void what_backward_reads_must_not_change(void **state)
{
    bench s = setup();
    ls_tensor *y = gather(&s, s.rows, NULL);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_write(s.rows, (int64_t[]){0, 0, 0}, 3));
    assert_status(LS_EINVAL, ls_backward(s.tape, ls_mse_loss(s.tape, y, s.goal), 1));
    assert_error("gather backward: input 2 (3) int64 was overwritten");
    teardown(&s);
}

/* --- functions that fail --- */

static ls_status fails_in_library(const ls_op_call *call)
{
    return ls_tensor_write(call->d_inputs == NULL ? call->outputs[0] : call->d_inputs[0], NULL, 99);
}

static ls_status fills(const ls_op_call *call)
{
    const double zeros[MAX_ELEMENTS] = {0};

    write_all(call->outputs[0], zeros);
    return LS_OK;
}

static ls_status bad_shape(const ls_op_call *call)
{
    call->shapes[0] = (ls_op_shape){.type = LS_F64, .n_dims = 1, .dims = {-3}};
    return LS_OK;
}

static void run_one(bench *s, const ls_op *op, const char *want)
{
    ls_tensor *y = s->goal;
    size_t n_live;

    ls_tape_reset(s->tape);
    n_live = pool_live_tensors(s->device);
    ls_op_run(s->tape, op, NULL, 0, &s->table, 1, &y, 1);
    if (y != NULL)
        assert_int_not_equal(LS_OK, ls_backward(s->tape, ls_mse_loss(s->tape, y, s->goal), 1));
    else
        assert_int_not_equal(LS_OK, ls_tape_status(s->tape));
    assert_error(want);
    ls_tape_reset(s->tape);
    assert_int_equal(pool_live_tensors(s->device), n_live);
}

static void operators_that_are_wrong_are_refused(void **state)
{
    bench s = setup();
    const ls_op good = {.size = sizeof(good), .name = "mine", .forward = fills};
    ls_op op = good;
    ls_tensor *y[LS_OP_MAX_OUTPUTS + 1] = {NULL};

    LS_UNUSED(state);
    // makes what stays: the tape's seed and the table's gradient
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, s.table, s.goal), 1));
    op.size = 0;
    run_one(&s, &op, "op: ls_op.size is 0: it must be sizeof(ls_op)");
    run_one(&s, NULL, "op: the ls_op is NULL, or lacks its name or forward function");
    op = good;
    op.forward = fails_in_library;
    run_one(&s, &op, "mine of (3): tensor: 99 elements for (3) float64, which has 3");
    op = good;
    op.backward = fails_in_library;
    run_one(&s, &op, "mine backward: tensor: 99 elements for (3) float64, which has 3");
    op = good;
    op.shape = bad_shape;
    run_one(&s, &op, "mine of (3): output 0: tensor: dimension 0 is -3");
    // without a backward the result is a constant
    run_one(&s, &good, "depends on no tensor that requires a gradient");
    ls_op_run(s.tape, &good, NULL, 0, NULL, 0, y, 1);
    assert_null(y[0]);
    assert_error("mine of : without a shape function the first input must not be NULL");
    ls_tape_reset(s.tape);
    ls_op_run(s.tape, &good, NULL, 0, &s.table, 1, y, LS_OP_MAX_OUTPUTS + 1);
    assert_error("op: mine: 1 inputs at inputs, 9 outputs at outputs; up to 8 inputs and 1 to 8");
    ls_op_run(NULL, &good, NULL, 0, &s.table, 1, y, 1);
    assert_error("op: the tape is NULL");
    teardown(&s);
}

/* --- work in the device's queue --- */

static ls_status copy_in_queue(const ls_op_call *call, ls_tensor *dst, const ls_tensor *src)
{
    const size_t bytes = tensor_bytes(src);

    if (call->queue == NULL) {
        memcpy(ls_tensor_data(dst), ls_tensor_data_const(src), bytes);
        return LS_OK;
    }
    return accel_copy(call->queue, ls_tensor_address(dst), ls_tensor_address_const(src), bytes,
                      ACCEL_ON_DEVICE);
}

static ls_status copy_forward(const ls_op_call *call)
{
    return copy_in_queue(call, call->outputs[0], call->inputs[0]);
}

static ls_status copy_backward(const ls_op_call *call)
{
    return copy_in_queue(call, call->d_inputs[0], call->d_outputs[0]);
}

/* Between operators of the device that are queued as well. */
static void queued_work_runs_in_the_order_of_operators(void **state)
{
    const ls_op op = {
        .size = sizeof(op), .name = "copy", .forward = copy_forward, .backward = copy_backward};
    bench s = setup();
    ls_tensor *y = s.table;

    LS_UNUSED(state);
    for (int i = 0; i < 8; i++) {
        ls_tensor *const x = ls_add(s.tape, y, s.table);

        ls_op_run(s.tape, &op, NULL, 0, &x, 1, &y, 1);
        ls_tape_done(s.tape, x); // backward reads it: it stays
    }
    assert_elements(y, (double[]){90, 180, 270}, 0);
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, y, s.goal), 3));
    assert_elements(ls_grad(s.table), (double[]){9 * 180, 9 * 360, 9 * 540}, 1e-9);
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_differences),
        cmocka_unit_test(integers_have_no_gradient),
        cmocka_unit_test(no_gradient_passes_through_integers),
        cmocka_unit_test(failures_name_operator_shapes_and_function),
        cmocka_unit_test(what_backward_reads_must_not_change),
        cmocka_unit_test(operators_that_are_wrong_are_refused),
        cmocka_unit_test(queued_work_runs_in_the_order_of_operators),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
