/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_weights.c - one weight in several linear operators: how many products compute its gradient,
 * and that the gradient has all their terms. The numbers are small integers, so sums are exact.
 */
#include "tensor/testing.h"

#include "autograd/autograd.h"
#include "tensor/pool.h"
#include "tensor/tensor.h"

#include <string.h>

/* The device's operators, whose products of weight gradients are counted. */
static const device_ops *real_ops;
static int n_products;
static ls_dtype counted_type; /* of x: an operator on 16-bit floats may run one on float32 */

static kernel_fn counting_find_kernel(device_state *self, const op_call *call)
{
    n_products += call->op == OP_LINEAR_BACKWARD_WEIGHTS && call->in[0]->dtype == counted_type;
    return real_ops->find_kernel(self, call);
}

/* A device, a tape, and a square weight with a bias. */
typedef struct bench {
    device_ops ops;
    ls_device *device;
    ls_tape *tape;
    ls_tensor *x;    /* (2,2): 1 2, 3 4 */
    ls_tensor *w;    /* (2,2): 1 0, 0 1, a leaf */
    ls_tensor *b;    /* (2): 1 -1, a leaf */
    ls_tensor *ones; /* (1,4) */
} bench;

static void setup(bench *s)
{
    const double identity[] = {1, 0, 0, 1};

    s->device = open_reference();
    real_ops = s->device->ops;
    s->ops = *real_ops;
    s->ops.find_kernel = counting_find_kernel;
    s->device->ops = &s->ops;
    n_products = 0;
    counted_type = LS_F32;
    assert_status(LS_OK, ls_tape_create(s->device, &s->tape));
    s->x = tensor_of(s->device, LS_F32, 2, (int64_t[]){2, 2}, (double[]){1, 2, 3, 4});
    s->w = tensor_of(s->device, LS_F32, 2, (int64_t[]){2, 2}, identity);
    s->b = tensor_of(s->device, LS_F32, 1, (int64_t[]){2}, (double[]){1, -1});
    s->ones = tensor_of(s->device, LS_F32, 2, (int64_t[]){1, 4}, (double[]){1, 1, 1, 1});
    assert_status(LS_OK, ls_require_grad(s->w));
    assert_status(LS_OK, ls_require_grad(s->b));
}

static void teardown(bench *s)
{
    ls_tape_destroy(s->tape);
    destroy_all((ls_tensor *[]){s->x, s->w, s->b, s->ones}, 4);
    s->device->ops = real_ops;
    assert_status(LS_OK, ls_device_close(s->device));
}

/* The sum of the elements of a (2,2) tensor. */
static ls_tensor *sum(bench *s, ls_tensor *y)
{
    return ls_linear(s->tape, ls_reshape(s->tape, y, 2, (int64_t[]){1, 4}), s->ones, NULL);
}

/* y = x; n times y = y W^T + b. With W = 1: y_t = x + t b, d/dW = sum of ones^T y_t over t < n. */
static ls_tensor *cell(bench *s, int n, ls_tensor *bias)
{
    ls_tensor *y = s->x;

    for (int i = 0; i < n; i++)
        y = ls_linear(s->tape, y, s->w, bias);
    return y;
}

static void a_cells_weight_gets_one_product(void **state)
{
    bench s;
    // ones^T y_t is (4 + 2t, 6 - 2t), the sum over t < 5 is (40, 10)
    const double want[] = {40, 10, 40, 10};

    LS_UNUSED(state);
    setup(&s);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, cell(&s, 5, s.b)), 1));
    assert_int_equal(n_products, 1);
    assert_elements(ls_grad(s.w), want, 0);
    assert_elements(ls_grad(s.b), (double[]){10, 10}, 0);

    ls_tape_reset(s.tape); // adds to what is there
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, cell(&s, 5, s.b)), 2));
    assert_int_equal(n_products, 2);
    assert_elements(ls_grad(s.w), (double[]){120, 30, 120, 30}, 0);
    assert_elements(ls_grad(s.b), (double[]){30, 30}, 0);
    teardown(&s);
}

static void a_weight_that_is_used_once_is_not_copied(void **state)
{
    bench s;
    size_t n_live;

    LS_UNUSED(state);
    setup(&s);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, cell(&s, 1, NULL)), 1));
    n_live = pool_live_tensors(s.device);
    assert_int_equal(n_products, 1);
    assert_elements(ls_grad(s.w), (double[]){4, 6, 4, 6}, 0);
    assert_null(ls_grad(s.b));
    assert_int_equal(pool_live_tensors(s.device), n_live);
    teardown(&s);
}

static void a_bias_without_a_gradient_changes_nothing(void **state)
{
    bench s;
    ls_tensor *constant;

    LS_UNUSED(state);
    setup(&s);
    constant = tensor_of(s.device, LS_F32, 1, (int64_t[]){2}, (double[]){1, -1});
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, cell(&s, 5, constant)), 1));
    assert_int_equal(n_products, 1);
    assert_elements(ls_grad(s.w), (double[]){40, 10, 40, 10}, 0);
    ls_tensor_destroy(constant);
    teardown(&s);
}

/* First, between and last in backward there are uses that are no linear operators. */
static void uses_by_other_operators_are_added(void **state)
{
    bench s;
    ls_tensor *y;

    LS_UNUSED(state);
    setup(&s);
    y = cell(&(bench){.tape = s.tape, .x = ls_add(s.tape, s.x, s.w), .w = s.w}, 2, s.b);
    y = cell(&(bench){.tape = s.tape, .x = ls_add(s.tape, y, s.w), .w = s.w}, 1, s.b);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, ls_add(s.tape, y, s.w)), 1));
    assert_int_equal(n_products, 1);
    // x + 1 = (2 2, 3 5), then (3 1, 4 4), then + b + 1 (5 0, 5 4): column sums (5, 7), (7, 5),
    // (10, 4)
    assert_elements(ls_grad(s.w), (double[]){3 + 22, 3 + 16, 3 + 22, 3 + 16}, 0);
    assert_elements(ls_grad(s.b), (double[]){6, 6}, 0);
    teardown(&s);
}

static void biases_need_products_of_their_own(void **state)
{
    bench s;
    ls_tensor *y;
    ls_tensor *made;

    LS_UNUSED(state);
    setup(&s);
    made = ls_add(s.tape, s.b, s.b); // a bias that an operator made
    y = ls_linear(s.tape, s.x, s.w, s.b);
    y = ls_linear(s.tape, y, s.w, made);
    y = ls_linear(s.tape, y, s.w, made);
    y = cell(&(bench){.tape = s.tape, .x = y, .w = s.w}, 2, s.b);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, y), 1));
    assert_int_equal(n_products, 4);
    // y_t = x + (0, 1, 3, 5, 6) b: the sum of column sums (4 + 2k, 6 - 2k) is (50, 0)
    assert_elements(ls_grad(s.w), (double[]){50, 0, 50, 0}, 0);
    assert_elements(ls_grad(s.b), (double[]){6 + 8, 6 + 8}, 0);
    teardown(&s);
}

static void many_rows_and_many_bytes_are_not_collected(void **state)
{
    bench s;
    ls_tensor *many;
    ls_tensor *wide;
    ls_tensor *weight;
    ls_tensor *losses[3];
    const int64_t columns = 16384; // 16 MiB hold 255 rows of these and their result

    LS_UNUSED(state);
    setup(&s);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_F32, 2, (int64_t[]){513, 2}, &many));
    assert_status(LS_OK, ls_tensor_create(s.device, LS_F32, 2, (int64_t[]){100, columns}, &wide));
    assert_status(LS_OK, ls_tensor_create(s.device, LS_F32, 2, (int64_t[]){1, columns}, &weight));
    assert_status(LS_OK, ls_require_grad(weight));
    for (int i = 0; i < 2; i++)
        losses[i] = ls_linear(s.tape, many, s.w, NULL);
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, losses[0], losses[1]), 1));
    assert_int_equal(n_products, 2);
    assert_elements(ls_grad(s.w), (double[]){0, 0, 0, 0}, 0);

    n_products = 0;
    for (int i = 0; i < 3; i++)
        losses[i] = ls_linear(s.tape, wide, weight, NULL);
    losses[0] = ls_add(s.tape, ls_add(s.tape, losses[0], losses[1]), losses[2]);
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, losses[0], losses[0]), 1));
    assert_int_equal(n_products, 2);
    destroy_all((ls_tensor *[]){many, wide, weight}, 3);
    teardown(&s);
}

static void no_rows_give_zeros(void **state)
{
    bench s;
    ls_tensor *none;
    ls_tensor *y;

    LS_UNUSED(state);
    setup(&s);
    assert_status(LS_OK, ls_tensor_create(s.device, LS_F32, 2, (int64_t[]){0, 2}, &none));
    y = cell(&(bench){.tape = s.tape, .x = none, .w = s.w}, 3, s.b);
    assert_status(LS_OK, ls_backward(s.tape, ls_mse_loss(s.tape, y, none), 1));
    assert_int_equal(n_products, 1);
    assert_elements(ls_grad(s.w), (double[]){0, 0, 0, 0}, 0);
    assert_elements(ls_grad(s.b), (double[]){0, 0}, 0);
    ls_tensor_destroy(none);
    teardown(&s);
}

/* --- hooks --- */

typedef struct hook_log {
    int n;
    const ls_tensor *leaves[4];
    bool fails;
} hook_log;

static ls_status note(void *arg, ls_tensor *leaf)
{
    hook_log *log = arg;

    assert_true(log->n < 4);
    log->leaves[log->n++] = leaf;
    return log->fails ? ls_fail(LS_EPEER, "rank 3 died") : LS_OK;
}

static void hooks_are_called_once_after_the_last_use(void **state)
{
    bench s;
    hook_log log = {0};

    LS_UNUSED(state);
    setup(&s);
    ls_tape_on_grad_ready(s.tape, note, &log);
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, cell(&s, 4, s.b)), 1));
    assert_int_equal(log.n, 2);
    assert_ptr_equal(log.leaves[0], s.w);
    assert_ptr_equal(log.leaves[1], s.b);
    teardown(&s);
}

static void a_failed_backward_frees_what_it_has_collected(void **state)
{
    bench s;
    hook_log log = {.fails = true};
    ls_tensor *first;
    size_t n_live;

    LS_UNUSED(state);
    setup(&s);
    first = tensor_of(s.device, LS_F32, 2, (int64_t[]){2, 2}, (double[]){1, 1, 1, 1});
    assert_status(LS_OK, ls_require_grad(first));
    n_live = pool_live_tensors(s.device);
    ls_tape_on_grad_ready(s.tape, note, &log);
    // w is used before and after `first`, whose hook fails between the two.
    assert_status(LS_EPEER,
                  ls_backward(s.tape,
                              sum(&s, cell(&(bench){.tape = s.tape,
                                                    .x = ls_add(s.tape, cell(&s, 2, s.b), first),
                                                    .w = s.w},
                                           2, s.b)),
                              1));
    assert_ptr_equal(log.leaves[0], first);
    ls_tape_reset(s.tape);
    assert_int_equal(pool_live_tensors(s.device), n_live + 2); // the gradient of `first`, the seed
    log = (hook_log){0};
    assert_status(LS_OK, ls_backward(s.tape, sum(&s, cell(&s, 5, s.b)), 1));
    assert_elements(ls_grad(s.w), (double[]){40, 10, 40, 10}, 0);
    ls_tensor_destroy(first);
    teardown(&s);
}

static void the_16_bit_inputs_of_a_cell_are_collected(void **state)
{
    bench s;

    LS_UNUSED(state);
    setup(&s);
    counted_type = LS_BF16;
    assert_status(LS_OK, ls_tape_set_compute(s.tape, LS_BF16));
    assert_status(LS_OK,
                  ls_backward(s.tape, ls_cast(s.tape, sum(&s, cell(&s, 5, s.b)), LS_F32), 1));
    assert_int_equal(n_products, 1);
    assert_elements(ls_grad(s.w), (double[]){40, 10, 40, 10}, 0);
    assert_elements(ls_grad(s.b), (double[]){10, 10}, 0);
    teardown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cells_weight_gets_one_product),
        cmocka_unit_test(a_weight_that_is_used_once_is_not_copied),
        cmocka_unit_test(a_bias_without_a_gradient_changes_nothing),
        cmocka_unit_test(uses_by_other_operators_are_added),
        cmocka_unit_test(biases_need_products_of_their_own),
        cmocka_unit_test(many_rows_and_many_bytes_are_not_collected),
        cmocka_unit_test(no_rows_give_zeros),
        cmocka_unit_test(hooks_are_called_once_after_the_last_use),
        cmocka_unit_test(a_failed_backward_frees_what_it_has_collected),
        cmocka_unit_test(the_16_bit_inputs_of_a_cell_are_collected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
