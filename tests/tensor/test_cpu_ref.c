/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cpu_ref.c - the oracle itself: float32 within its bound of float64, and values worked out by
 * hand.
 */
#include "tensor/op_cases.h"

#include "base/alloc.h"
#include "tensor/testing.h"

#include <float.h>
#include <math.h>

static void float32_stays_near_float64_in_every_case(void **state)
{
    ls_device *device = open_reference();

    LS_UNUSED(state);
    for (int i = 0; i < n_op_cases; i++) {
        op_results narrow;
        op_results wide;

        assert_status(LS_OK, op_case_run(device, &op_cases[i], LS_F32, &narrow));
        assert_status(LS_OK, op_case_run(device, &op_cases[i], LS_F64, &wide));
        assert_int_equal(narrow.n, wide.n);
        for (int k = 0; k < wide.n; k++) {
            const double error = op_result_error(&narrow.r[k], &wide.r[k], (double)FLT_EPSILON);

            if (error > 1)
                fail_msg("%s: %s is %.3g times too far away", op_cases[i].name, wide.r[k].name,
                         error);
        }
        op_results_free(&narrow);
        op_results_free(&wide);
    }
    ls_device_close(device);
}

/* On inputs that the type holds exactly, each result is the float32 one, rounded once. */
static void mixed_precision_stays_near_float64_in_every_case(void **state)
{
    static const ls_dtype types[] = {LS_BF16, LS_F16};
    ls_device *device = open_reference();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(types) * (size_t)n_op_cases; i++) {
        op_case c = op_cases[i / LS_COUNT_OF(types)];
        op_results mixed;
        op_results wide;

        c.exact = types[i % LS_COUNT_OF(types)];
        if (!op_case_mixes(&c))
            continue;
        assert_status(LS_OK, op_case_run(device, &c, c.exact, &mixed));
        assert_status(LS_OK, op_case_run(device, &c, LS_F64, &wide));
        assert_int_equal(mixed.n, wide.n);
        for (int k = 0; k < wide.n; k++) {
            const double distance = op_result_distance(&mixed.r[k], &wide.r[k]);

            if (!(distance <= 1e-2))
                fail_msg("%s of %s: %s is %.3g away", c.name, ls_dtype_name(c.exact),
                         wide.r[k].name, distance);
        }
        op_results_free(&mixed);
        op_results_free(&wide);
    }
    ls_device_close(device);
}

/* Runs `call` and checks its outputs' status. */
static void run(ls_device *device, op_call call)
{
    assert_status(LS_OK, device_run(device, &call));
}

static void conv2d_gives_the_sums_of_its_definition(void **state)
{
    ls_device *device = open_reference();
    const double image[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const double kernel[] = {1, 0, 0, 10};
    const double bias[] = {100};
    const double want[] = {151, 162, 184, 195};
    ls_tensor *x = tensor_of(device, LS_F32, 4, (int64_t[]){1, 1, 3, 3}, image);
    ls_tensor *w = tensor_of(device, LS_F32, 4, (int64_t[]){1, 1, 2, 2}, kernel);
    ls_tensor *b = tensor_of(device, LS_F32, 1, (int64_t[]){1}, bias);
    ls_tensor *y = unplaced_of(device, LS_F32, 4, (int64_t[]){1, 1, 2, 2});

    LS_UNUSED(state);
    run(device,
        (op_call){.op = OP_CONV2D,
                  .attrs = {.stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .kernel = {2, 2}},
                  .n_in = 3,
                  .n_out = 1,
                  .in = {x, w, b},
                  .out = {y}});
    assert_elements(y, want, 0);
    destroy_all((ls_tensor *[]){x, w, b, y}, 4);
    ls_device_close(device);
}

static void batch_norm_moves_the_running_statistics_as_pytorch(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *x = tensor_of(device, LS_F64, 2, (int64_t[]){4, 1}, (double[]){1, 2, 3, 6});
    ls_tensor *one = tensor_of(device, LS_F64, 1, (int64_t[]){1}, (double[]){1});
    ls_tensor *zero = tensor_of(device, LS_F64, 1, (int64_t[]){1}, (double[]){0});
    ls_tensor *running_mean = tensor_of(device, LS_F64, 1, (int64_t[]){1}, (double[]){10});
    ls_tensor *running_var = tensor_of(device, LS_F64, 1, (int64_t[]){1}, (double[]){20});
    ls_tensor *y = unplaced_of(device, LS_F64, 2, (int64_t[]){4, 1});
    ls_tensor *counter = NULL;
    int64_t count = 0;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 0, NULL, &counter));
    assert_status(LS_OK, ls_tensor_write(counter, (int64_t[]){((int64_t)1 << 60) + 6}, 1));
    run(device, (op_call){.op = OP_BATCH_NORM,
                          .attrs = {.momentum = 0.1, .eps = 0.5, .training = true},
                          .n_in = 7,
                          .n_out = 4,
                          .in = {x, one, zero, running_mean, running_var, NULL, counter},
                          .out = {y}});
    // mean 3, variance 14 / 4, of which y has 14 / 4 + eps = 4 and the running one 14 / 3
    assert_elements(y, (double[]){-1, -0.5, 0, 1.5}, 1e-15);
    assert_elements(running_mean, (double[]){0.9 * 10 + 0.1 * 3}, 1e-14);
    assert_elements(running_var, (double[]){0.9 * 20 + 0.1 * 14 / 3}, 1e-14);
    assert_status(LS_OK, ls_tensor_read(counter, &count, 1));
    assert_true(count == ((int64_t)1 << 60) + 7);
    destroy_all((ls_tensor *[]){x, one, zero, running_mean, running_var, y, counter}, 7);
    ls_device_close(device);
}

static void max_pool_prefers_nan_and_the_first_of_equals(void **state)
{
    ls_device *device = open_reference();
    const double image[] = {1, 7, 7, 2, 7, (double)NAN, 0, 0, 9};
    ls_tensor *x = tensor_of(device, LS_F64, 4, (int64_t[]){1, 1, 3, 3}, image);
    ls_tensor *y = unplaced_of(device, LS_F64, 4, (int64_t[]){1, 1, 2, 2});
    ls_tensor *indices = unplaced_of(device, LS_I32, 4, (int64_t[]){1, 1, 2, 2});
    const int32_t *at;

    LS_UNUSED(state);
    run(device, (op_call){.op = OP_MAX_POOL2D,
                          .attrs = {.stride = {1, 1}, .kernel = {2, 2}},
                          .n_in = 1,
                          .n_out = 2,
                          .in = {x},
                          .out = {y, indices}});
    at = ls_tensor_data_const(indices);
    assert_int_equal(at[0], 1);
    assert_int_equal(at[1], 5);
    assert_int_equal(at[2], 4);
    assert_int_equal(at[3], 5);
    assert_elements(y, (double[]){7, (double)NAN, 7, (double)NAN}, 0);
    destroy_all((ls_tensor *[]){x, y, indices}, 3);
    ls_device_close(device);
}

/* What torch.nn.functional.avg_pool2d(x, 2, 2, 1) gives: the padding counts, but not what lies
 * beyond it. */
static void average_pool_counts_the_padding(void **state)
{
    ls_device *device = open_reference();
    const double image[] = {4, 8, 12, 16, 20, 24, 28, 32, 36};
    ls_tensor *x = tensor_of(device, LS_F64, 4, (int64_t[]){1, 1, 3, 3}, image);
    ls_tensor *y = unplaced_of(device, LS_F64, 4, (int64_t[]){1, 1, 2, 2});

    LS_UNUSED(state);
    run(device, (op_call){.op = OP_AVG_POOL2D,
                          .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {2, 2}},
                          .n_in = 1,
                          .n_out = 1,
                          .in = {x},
                          .out = {y}});
    assert_elements(y, (double[]){1, 5, 11, 28}, 0);
    destroy_all((ls_tensor *[]){x, y}, 2);
    ls_device_close(device);
}

/* What torch.nn.functional.adaptive_avg_pool2d(x, 2) gives: windows share the middle row
 * and column. */
static void adaptive_average_pool_covers_the_whole_image(void **state)
{
    ls_device *device = open_reference();
    const double image[] = {4, 8, 12, 16, 20, 24, 28, 32, 36};
    ls_tensor *x = tensor_of(device, LS_F64, 4, (int64_t[]){1, 1, 3, 3}, image);
    ls_tensor *y = unplaced_of(device, LS_F64, 4, (int64_t[]){1, 1, 2, 2});

    LS_UNUSED(state);
    run(device, (op_call){.op = OP_AVG_POOL2D,
                          .attrs = {.adaptive = true},
                          .n_in = 1,
                          .n_out = 1,
                          .in = {x},
                          .out = {y}});
    assert_elements(y, (double[]){12, 16, 24, 28}, 0);
    destroy_all((ls_tensor *[]){x, y}, 2);
    ls_device_close(device);
}

static void relu_lets_nan_through(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *x = tensor_of(device, LS_F32, 1, (int64_t[]){4}, (double[]){-1, 0, 2, (double)NAN});
    ls_tensor *y = unplaced_of(device, LS_F32, 1, (int64_t[]){4});

    LS_UNUSED(state);
    run(device, (op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    assert_elements(y, (double[]){0, 0, 2, (double)NAN}, 0);
    destroy_all((ls_tensor *[]){x, y}, 2);
    ls_device_close(device);
}

static void a_target_out_of_range_is_named(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *logits =
        tensor_of(device, LS_F32, 2, (int64_t[]){2, 3}, (double[]){1, 2, 3, 4, 5, 6});
    ls_tensor *targets = NULL;
    ls_tensor *loss = unplaced_of(device, LS_F32, 0, NULL);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, (int64_t[]){2}, &targets));
    assert_status(LS_OK, ls_tensor_write(targets, (int64_t[]){2, 3}, 2));
    assert_status(LS_EINVAL, device_run(device, &(op_call){.op = OP_CROSS_ENTROPY,
                                                           .n_in = 2,
                                                           .n_out = 2,
                                                           .in = {logits, targets},
                                                           .out = {loss}}));
    assert_string_equal(ls_last_error(), "target 3 of row 1 is outside [0, 3)");
    destroy_all((ls_tensor *[]){logits, targets, loss}, 3);
    ls_device_close(device);
}

/* Losses log(2), log(3) and NaN; the places of the targets are 1, 2 and 0. */
static void class_sums_add_losses_rows_and_hits(void **state)
{
    ls_device *device = open_reference();
    const double scores[] = {0, 0, -2000, 1, 1, 1, 5, 6, (double)NAN};
    ls_tensor *logits = tensor_of(device, LS_F64, 2, (int64_t[]){3, 3}, scores);
    ls_tensor *first = tensor_of(device, LS_F64, 2, (int64_t[]){2, 3}, scores);
    ls_tensor *sums = tensor_of(device, LS_F64, 1, (int64_t[]){4}, (double[]){10, 20, 30, 40});
    ls_tensor *targets = NULL;
    ls_tensor *some = NULL;
    op_call call = {.op = OP_CLASS_SUMS, .attrs = {.top_k = {1, 2}}, .n_in = 2, .n_out = 1};

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, (int64_t[]){3}, &targets));
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, (int64_t[]){2}, &some));
    assert_status(LS_OK, ls_tensor_write(targets, (int64_t[]){1, 2, 2}, 3));
    assert_status(LS_OK, ls_tensor_write(some, (int64_t[]){1, 2}, 2));
    call.in[0] = first;
    call.in[1] = some;
    call.out[0] = sums;
    run(device, call);
    assert_elements(sums, (double[]){10 + log(2) + log(3), 22, 30, 41}, 1e-14);
    call.in[0] = logits;
    call.in[1] = targets;
    run(device, call);
    assert_elements(sums, (double[]){(double)NAN, 25, 31, 43}, 0);
    destroy_all((ls_tensor *[]){logits, first, sums, targets, some}, 5);
    ls_device_close(device);
}

static void class_sums_stay_as_they_are_with_a_target_out_of_range(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *logits = tensor_of(device, LS_F32, 2, (int64_t[]){2, 2}, (double[]){1, 2, 3, 4});
    ls_tensor *sums = tensor_of(device, LS_F64, 1, (int64_t[]){3}, (double[]){1, 2, 3});
    ls_tensor *targets = NULL;

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, (int64_t[]){2}, &targets));
    assert_status(LS_OK, ls_tensor_write(targets, (int64_t[]){0, -1}, 2));
    assert_status(LS_EINVAL, device_run(device, &(op_call){.op = OP_CLASS_SUMS,
                                                           .attrs = {.top_k = {1}},
                                                           .n_in = 2,
                                                           .n_out = 1,
                                                           .in = {logits, targets},
                                                           .out = {sums}}));
    assert_string_equal(ls_last_error(), "target -1 of row 1 is outside [0, 2)");
    assert_elements(sums, (double[]){1, 2, 3}, 0);
    destroy_all((ls_tensor *[]){logits, sums, targets}, 3);
    ls_device_close(device);
}

static void fills_have_the_floating_types(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *half = NULL;
    uint16_t halves[2];

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_BF16, 1, (int64_t[]){2}, &half));
    run(device, (op_call){.op = OP_FILL, .attrs = {.value = -1.5}, .n_out = 1, .out = {half}});
    assert_status(LS_OK, ls_tensor_read(half, halves, 2));
    assert_int_equal(halves[0], 0xBFC0);
    assert_int_equal(halves[1], 0xBFC0);
    ls_tensor_destroy(half);
    assert_status(LS_OK, ls_tensor_create(device, LS_F16, 1, (int64_t[]){2}, &half));
    run(device, (op_call){.op = OP_FILL, .attrs = {.value = -1.5}, .n_out = 1, .out = {half}});
    assert_status(LS_OK, ls_tensor_read(half, halves, 2));
    assert_int_equal(halves[1], 0xBE00);
    ls_tensor_destroy(half);
    ls_device_close(device);
}

static void cross_entropy_of_huge_logits_stays_finite(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *logits = tensor_of(device, LS_F32, 2, (int64_t[]){1, 2}, (double[]){30000, -30000});
    ls_tensor *targets = NULL;
    ls_tensor *loss = unplaced_of(device, LS_F32, 0, NULL);

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, (int64_t[]){1}, &targets));
    assert_status(LS_OK, ls_tensor_write(targets, (int64_t[]){1}, 1));
    run(device,
        (op_call){
            .op = OP_CROSS_ENTROPY, .n_in = 2, .n_out = 2, .in = {logits, targets}, .out = {loss}});
    assert_elements(loss, (double[]){60000}, 0);
    destroy_all((ls_tensor *[]){logits, targets, loss}, 3);
    ls_device_close(device);
}

/* Ties, overflow, subnormals, infinity and NaN. */
static void a_cast_rounds_to_nearest_even(void **state)
{
    const double inf = (double)INFINITY;
    const double nan = (double)NAN;
    const double from[] = {1,       1.00390625, 1.01171875, 65519, 65520,
                           3.39e38, 3.4e38,     0x1p-25,    -inf,  nan};
    const double as_bf16[] = {1, 1, 1.015625, 65536, 65536, 0x1.fep127, inf, 0x1p-25, -inf, nan};
    const double as_f16[] = {1, 1.00390625, 1.01171875, 65504, inf, inf, inf, 0, -inf, nan};
    const int64_t n = (int64_t)LS_COUNT_OF(from);
    ls_device *device = open_reference();
    ls_tensor *x = tensor_of(device, LS_F64, 1, &n, from);

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        ls_tensor *y = unplaced_of(device, i == 0 ? LS_BF16 : LS_F16, 1, &n);
        ls_tensor *back = unplaced_of(device, LS_F32, 1, &n);

        run(device, (op_call){.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
        run(device, (op_call){.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {y}, .out = {back}});
        assert_elements(back, i == 0 ? as_bf16 : as_f16, 0);
        destroy_all((ls_tensor *[]){y, back}, 2);
    }
    ls_tensor_destroy(x);
    ls_device_close(device);
}

/* Each allocation fails once: the call fails or succeeds, and nothing is leaked. */
static void a_widened_call_without_memory_leaks_nothing(void **state)
{
    const int64_t dims[2] = {3, 5};

    LS_UNUSED(state);
    for (uint64_t n = 1;; n++) {
        ls_device *device = open_reference();
        ls_tensor *x = NULL;
        ls_tensor *y = unplaced_of(device, LS_BF16, 2, dims);
        ls_status st;

        assert_status(LS_OK, ls_tensor_create(device, LS_BF16, 2, dims, &x));
        ls_alloc_fail_at(n);
        st = device_run(
            device, &(op_call){.op = OP_ADD_RELU, .n_in = 2, .n_out = 1, .in = {x, x}, .out = {y}});
        ls_alloc_fail_at(0);
        destroy_all((ls_tensor *[]){x, y}, 2);
        assert_status(LS_OK, ls_device_close(device)); // no tensor is left
        if (st == LS_OK) {
            assert_true(n > 1);
            return;
        }
        assert_status(LS_ENOMEM, st);
    }
}

static void a_type_without_kernel_is_named(void **state)
{
    ls_device *device = open_reference();
    ls_tensor *x = NULL;
    ls_tensor *y = unplaced_of(device, LS_I32, 1, (int64_t[]){3});

    LS_UNUSED(state);
    assert_status(LS_OK, ls_tensor_create(device, LS_I32, 1, (int64_t[]){3}, &x));
    assert_status(
        LS_EUNSUPPORTED,
        device_run(device,
                   &(op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    assert_string_equal(ls_last_error(), "no kernel for relu of (3) int32 on device cpu_ref");
    destroy_all((ls_tensor *[]){x, y}, 2);
    ls_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_stays_near_float64_in_every_case),
        cmocka_unit_test(mixed_precision_stays_near_float64_in_every_case),
        cmocka_unit_test(a_cast_rounds_to_nearest_even),
        cmocka_unit_test(a_widened_call_without_memory_leaks_nothing),
        cmocka_unit_test(conv2d_gives_the_sums_of_its_definition),
        cmocka_unit_test(batch_norm_moves_the_running_statistics_as_pytorch),
        cmocka_unit_test(max_pool_prefers_nan_and_the_first_of_equals),
        cmocka_unit_test(average_pool_counts_the_padding),
        cmocka_unit_test(adaptive_average_pool_covers_the_whole_image),
        cmocka_unit_test(relu_lets_nan_through),
        cmocka_unit_test(a_target_out_of_range_is_named),
        cmocka_unit_test(class_sums_add_losses_rows_and_hits),
        cmocka_unit_test(class_sums_stay_as_they_are_with_a_target_out_of_range),
        cmocka_unit_test(fills_have_the_floating_types),
        cmocka_unit_test(cross_entropy_of_huge_logits_stays_finite),
        cmocka_unit_test(a_type_without_kernel_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
