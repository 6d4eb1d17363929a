/* SPDX-License-Identifier: Apache-2.0 */
/* test_op_profile.c - what operators cost by their shapes, and the records of a profile. */
#include "tensor/op_profile.h"

#include "tensor/op_ceilings.h"

#include "tensor/testing.h"

#include <string.h>

typedef struct shape {
    int n_dims; /* 0 with `none`: no tensor */
    int64_t dims[4];
    int none;
} shape;

static op_cost cost_of(ls_device *device, op_call call, const shape *shapes, ls_dtype type)
{
    op_cost cost;

    for (int i = 0; i < call.n_in + call.n_out; i++) {
        ls_tensor **t = i < call.n_in ? &call.in[i] : &call.out[i - call.n_in];

        *t = shapes[i].none ? NULL : unplaced_of(device, type, shapes[i].n_dims, shapes[i].dims);
    }
    cost = op_cost_of(&call);
    destroy_all(call.in, call.n_in);
    destroy_all(call.out, call.n_out);
    return cost;
}

static void products_count_two_operations_for_each_pair(void **state)
{
    static const shape conv[] = {
        {4, {2, 6, 8, 8}, 0}, {4, {10, 3, 5, 5}, 0}, {0, {0}, 1}, {4, {2, 10, 4, 4}, 0}};
    static const shape weights[] = {
        {4, {2, 6, 8, 8}, 0}, {4, {2, 10, 4, 4}, 0}, {4, {10, 3, 5, 5}, 0}};
    static const shape linear[] = {{2, {7, 11}, 0}, {2, {5, 11}, 0}, {1, {5}, 0}, {2, {7, 5}, 0}};
    static const shape matrices[] = {{3, {3, 4, 5}, 0}, {3, {3, 4, 6}, 0}, {3, {3, 5, 6}, 0}};
    ls_device *device = open_reference();
    op_cost c = cost_of(device, (op_call){.op = OP_CONV2D, .n_in = 3, .n_out = 1}, conv, LS_F32);

    (void)state;
    assert_true(c.flops == 2.0 * (2 * 10 * 4 * 4) * (3 * 5 * 5));
    assert_true(c.bytes == 4.0 * (2 * 6 * 64 + 10 * 75 + 2 * 10 * 16));
    c = cost_of(device, (op_call){.op = OP_CONV2D_BACKWARD_WEIGHTS, .n_in = 2, .n_out = 1}, weights,
                LS_F32);
    assert_true(c.flops == 2.0 * (2 * 10 * 4 * 4) * (3 * 5 * 5));
    c = cost_of(device, (op_call){.op = OP_LINEAR, .n_in = 3, .n_out = 1}, linear, LS_F64);
    assert_true(c.flops == 2.0 * 7 * 5 * 11);
    assert_true(c.bytes == 8.0 * (7 * 11 + 5 * 11 + 5 + 7 * 5));
    c = cost_of(device,
                (op_call){.op = OP_MATMUL, .n_in = 2, .n_out = 1, .attrs.transposed = {true}},
                matrices, LS_F32);
    assert_true(c.flops == 2.0 * 3 * 5 * 6 * 4);
    assert_status(LS_OK, ls_device_close(device));
}

static void attention_counts_its_five_products(void **state)
{
    static const shape forward[] = {
        {3, {2, 8, 16}, 0}, {3, {2, 12, 16}, 0}, {3, {2, 12, 4}, 0}, {3, {2, 8, 4}, 0}};
    static const shape backward[] = {{3, {2, 8, 16}, 0},
                                     {3, {2, 8, 4}, 0},
                                     {3, {2, 12, 16}, 0},
                                     {3, {2, 12, 4}, 0},
                                     {3, {2, 8, 16}, 0}};
    const double pairs = 2 * 8 * 12;
    ls_device *device = open_reference();
    op_call call = {.op = OP_ATTENTION, .n_in = 3, .n_out = 1};

    (void)state;
    assert_true(cost_of(device, call, forward, LS_F32).flops == 2 * pairs * (16 + 4));
    call.attrs.causal = true;
    assert_true(cost_of(device, call, forward, LS_F32).flops == pairs * (16 + 4));
    call = (op_call){.op = OP_ATTENTION_BACKWARD, .n_in = 4, .n_out = 1};
    assert_true(cost_of(device, call, backward, LS_F32).flops == 2 * pairs * (3 * 16 + 2 * 4));
    assert_status(LS_OK, ls_device_close(device));
}

static void updates_read_what_they_write_and_tables_are_read_in_part(void **state)
{
    static const shape sgd[] = {{1, {100}, 0}, {1, {100}, 0}, {1, {100}, 0}};
    static const shape embedding[] = {{2, {50000, 8}, 0}, {1, {3}, 0}, {2, {3, 8}, 0}};
    ls_device *device = open_reference();
    op_cost c = cost_of(device, (op_call){.op = OP_SGD, .n_in = 1, .n_out = 2}, sgd, LS_F32);

    (void)state;
    assert_true(c.bytes == 4.0 * (100 + 2 * 200) && c.flops > 0);
    c = cost_of(device, (op_call){.op = OP_EMBEDDING, .n_in = 2, .n_out = 1}, embedding, LS_F32);
    assert_true(c.bytes == 4.0 * (3 + 2 * 24));
    assert_status(LS_OK, ls_device_close(device));
}

/* A call of each operator with square matrices. */
static void every_operator_moves_bytes(void **state)
{
    static const shape squares[] = {{2, {4, 4}, 0}, {2, {4, 4}, 0}, {2, {4, 4}, 0},
                                    {2, {4, 4}, 0}, {2, {4, 4}, 0}, {2, {4, 4}, 0}};
    ls_device *device = open_reference();

    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        const op_cost c =
            cost_of(device, (op_call){.op = (op_kind)op, .n_in = 5, .n_out = 1}, squares, LS_F32);

        assert_true(c.bytes >= 4.0 * 16 && c.flops >= 0);
    }
    assert_status(LS_OK, ls_device_close(device));
}

static void a_profile_records_calls_and_not_what_they_run_inside(void **state)
{
    static const double values[] = {1, -2, 3, -4};
    op_profile p = {.phase = "forward", .layer = "conv1", .step = 7};
    ls_device *device = open_reference();
    ls_tensor *x = tensor_of(device, LS_F32, 2, (int64_t[]){2, 2}, values);
    ls_tensor *y = unplaced_of(device, LS_F32, 2, (int64_t[]){2, 2});
    op_call calls[2] = {{.op = OP_CLAMP, .n_in = 1, .n_out = 1, .attrs.value = 2},
                        {.op = OP_CLAMP, .n_in = 1, .n_out = 1, .attrs.value = 2}};

    (void)state;
    device->profile = &p;
    assert_status(
        LS_OK, device_run(device,
                          &(op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    for (int i = 0; i < 2; i++)
        calls[i].in[0] = calls[i].out[0] = i == 0 ? x : y;
    p.layer = NULL;
    assert_status(LS_OK, device_run_many(device, calls, 2));
    device->profile = NULL;
    assert_status(LS_OK, device_run(device, &calls[0]));
    assert_int_equal(p.n, 2);
    assert_int_equal(p.records[0].op, OP_RELU);
    assert_int_equal(p.records[0].step, 7);
    assert_string_equal(p.records[0].phase, "forward");
    assert_string_equal(p.records[0].layer, "conv1");
    assert_string_equal(p.records[0].shapes, "(2, 2) -> (2, 2)");
    assert_true(p.records[0].end_ns >= p.records[0].start_ns);
    assert_int_equal(p.records[1].n_calls, 2);
    assert_true(p.records[1].cost.bytes == 2 * 32);
    assert_string_equal(p.records[1].layer, "");
    assert_elements(y, (const double[]){1, 0, 2, 0}, 0);
    op_profile_free(&p);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    assert_status(LS_OK, ls_device_close(device));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_count_two_operations_for_each_pair),
        cmocka_unit_test(attention_counts_its_five_products),
        cmocka_unit_test(updates_read_what_they_write_and_tables_are_read_in_part),
        cmocka_unit_test(every_operator_moves_bytes),
        cmocka_unit_test(a_profile_records_calls_and_not_what_they_run_inside),
    };

    return cmocka_run_group_tests_name("op_profile", tests, NULL, NULL);
}
