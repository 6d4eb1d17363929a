/* SPDX-License-Identifier: Apache-2.0 */
/* test_onednn.c - the oneDNN device against the reference in float64, operator by operator. */
#include "tensor/op_cases.h"

#include "base/alloc.h"
#include "tensor/testing.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* oneDNN and libgomp are not built for the thread sanitizer: it reports races inside them. It can
 * check our own threads. */
#if defined(__SANITIZE_THREAD__)
enum { RACES_ARE_WATCHED = 1 };
#else
enum { RACES_ARE_WATCHED = 0 };
#endif

static bool runs_in_onednn(const op_case *c)
{
    return c->op == OP_CONV2D || c->op == OP_LINEAR || c->op == OP_MATMUL || c->op == OP_PERMUTE;
}

/* What this device does by itself: convolutions of few input channels; to few positions; of 3x3 and
 * 5x5 by Winograd's algorithm; linear layers of few rows with large weights. */
/* clang-format off */
static const op_case own_cases[] = {
    {.name = "few channels, stride 2, unlike sides", .op = OP_CONV2D, .n_dims = 4,
     .x = {3, 2, 11, 14}, .out = 24,
     .attrs = {.stride = {2, 1}, .padding = {1, 2}, .kernel = {3, 4}}},
    {.name = "few channels, dilated", .op = OP_CONV2D, .n_dims = 4, .x = {2, 4, 13, 9}, .out = 8,
     .no_bias = true,
     .attrs = {.padding = {2, 3}, .dilation = {2, 3}, .kernel = {3, 3}}},
    {.name = "few channels, 7x7 stride 2", .op = OP_CONV2D, .n_dims = 4, .x = {2, 3, 21, 23},
     .out = 40, .no_bias = true,
     .attrs = {.stride = {2, 2}, .padding = {3, 3}, .kernel = {7, 7}}},
    {.name = "few channels, all in padding", .op = OP_CONV2D, .n_dims = 4, .x = {1, 1, 1, 1},
     .out = 8,
     .attrs = {.stride = {3, 3}, .padding = {4, 4}, .kernel = {3, 3}}},
    {.name = "few positions, several blocks", .op = OP_CONV2D, .n_dims = 4, .x = {8, 264, 2, 2},
     .out = 56,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "few positions, several blocks, most taps in padding", .op = OP_CONV2D, .n_dims = 4,
     .x = {8, 264, 1, 1}, .out = 56, .no_bias = true,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "few positions, 1x1", .op = OP_CONV2D, .n_dims = 4, .x = {9, 24, 2, 2}, .out = 40,
     .attrs = {.kernel = {1, 1}}},
    {.name = "few positions, 1x1, several blocks", .op = OP_CONV2D, .n_dims = 4,
     .x = {8, 2056, 1, 2}, .out = 56, .no_bias = true,
     .attrs = {.kernel = {1, 1}}},
    {.name = "few positions, 1x1, several blocks of the gradient", .op = OP_CONV2D, .n_dims = 4,
     .x = {8, 56, 2, 1}, .out = 2056,
     .attrs = {.kernel = {1, 1}}},
    {.name = "3x3 by tiles", .op = OP_CONV2D, .n_dims = 4, .x = {2, 16, 16, 16}, .out = 32,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "3x3 by tiles that overhang", .op = OP_CONV2D, .n_dims = 4, .x = {3, 24, 15, 11},
     .out = 40,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "3x3 by tiles without padding", .op = OP_CONV2D, .n_dims = 4, .x = {2, 16, 10, 14},
     .out = 16, .no_bias = true,
     .attrs = {.kernel = {3, 3}}},
    {.name = "3x3 by tiles with much padding", .op = OP_CONV2D, .n_dims = 4, .x = {1, 16, 6, 6},
     .out = 24,
     .attrs = {.padding = {2, 2}, .kernel = {3, 3}}},
    {.name = "3x3 by tiles in several portions", .op = OP_CONV2D, .n_dims = 4, .x = {4, 40, 19, 23},
     .out = 48,
     .attrs = {.padding = {1, 0}, .kernel = {3, 3}}},
    {.name = "3x3 by tiles of blocks of 16 in several portions", .op = OP_CONV2D, .n_dims = 4,
     .x = {4, 32, 33, 31}, .out = 48,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "3x3, few tiles and many weights", .op = OP_CONV2D, .n_dims = 4, .x = {2, 144, 7, 5},
     .out = 272,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "5x5, few tiles and many weights", .op = OP_CONV2D, .n_dims = 4, .x = {2, 80, 8, 8},
     .out = 112, .no_bias = true,
     .attrs = {.padding = {2, 2}, .kernel = {5, 5}}},
    {.name = "1x5 by lines", .op = OP_CONV2D, .n_dims = 4, .x = {9, 16, 1, 120}, .out = 24,
     .attrs = {.padding = {0, 2}, .kernel = {1, 5}}},
    {.name = "1x5 by lines that overhang, several rows", .op = OP_CONV2D, .n_dims = 4,
     .x = {4, 24, 3, 91}, .out = 16, .no_bias = true,
     .attrs = {.padding = {0, 1}, .kernel = {1, 5}}},
    {.name = "5x5 by tiles that overhang", .op = OP_CONV2D, .n_dims = 4, .x = {3, 16, 13, 9},
     .out = 24,
     .attrs = {.padding = {2, 2}, .kernel = {5, 5}}},
    {.name = "5x5 by tiles without padding", .op = OP_CONV2D, .n_dims = 4, .x = {2, 24, 11, 12},
     .out = 16,
     .attrs = {.padding = {0, 1}, .kernel = {5, 5}}},
    {.name = "5x5 by tiles with full padding", .op = OP_CONV2D, .n_dims = 4, .x = {2, 16, 3, 4},
     .out = 16,
     .attrs = {.padding = {4, 4}, .kernel = {5, 5}}},
    {.name = "5x5 by tiles in several portions", .op = OP_CONV2D, .n_dims = 4, .x = {2, 32, 17, 16},
     .out = 48, .no_bias = true,
     .attrs = {.padding = {2, 2}, .kernel = {5, 5}}},
    {.name = "13 rows, weights of odd sizes", .op = OP_LINEAR, .n_dims = 2, .x = {13, 2051},
     .out = 1037},
    {.name = "24 rows, without bias", .op = OP_LINEAR, .n_dims = 2, .x = {24, 1024}, .out = 2050,
     .no_bias = true},
};

/* Of these types: gradients of 1x1 kernels as products. */
static const op_case mixed_cases[] = {
    {.name = "1x1, odd numbers of blocks and positions", .op = OP_CONV2D, .n_dims = 4,
     .x = {7, 48, 9, 11}, .out = 80, .no_bias = true,
     .attrs = {.kernel = {1, 1}}},
    {.name = "1x1 with strides", .op = OP_CONV2D, .n_dims = 4, .x = {3, 32, 11, 14}, .out = 64,
     .no_bias = true,
     .attrs = {.stride = {2, 3}, .kernel = {1, 1}}},
    {.name = "1x1 with a stride, rows of many channels", .op = OP_CONV2D, .n_dims = 4,
     .x = {2, 16, 9, 8}, .out = 1040, .no_bias = true,
     .attrs = {.stride = {2, 2}, .kernel = {1, 1}}},
    {.name = "1x1 in several pieces", .op = OP_CONV2D, .n_dims = 4, .x = {2, 96, 31, 33},
     .out = 256, .no_bias = true,
     .attrs = {.kernel = {1, 1}}},
    {.name = "1x1 with a bias", .op = OP_CONV2D, .n_dims = 4, .x = {2, 32, 5, 5}, .out = 32,
     .attrs = {.kernel = {1, 1}}},
};

/* Large enough for several threads. */
static const op_case shared_cases[] = {
    {.name = "mul by many channels", .op = OP_BINARY, .n_dims = 4, .x = {8, 40, 14, 14},
     .n_other = 3, .other = {40, 1, 1},
     .attrs = {.binary = BINARY_MUL}},
    {.name = "mul by channels of many samples", .op = OP_BINARY, .n_dims = 4,
     .x = {8, 40, 14, 14}, .n_other = 4,
     .other = {8, 40, 1, 1}, .attrs = {.binary = BINARY_MUL}},
    {.name = "add to many samples", .op = OP_BINARY, .n_dims = 3, .x = {40, 17, 65},
     .n_other = 3, .other = {1, 17, 65}},
    {.name = "layer norm of many rows", .op = OP_LAYER_NORM, .n_dims = 2, .x = {700, 65},
     .attrs = {.eps = 1e-6}},
    {.name = "softmax of many rows", .op = OP_SOFTMAX, .n_dims = 2, .x = {700, 65},
     .attrs = {.scale = 0.5}},
    {.name = "gelu of many numbers", .op = OP_ACTIVATE, .n_dims = 2, .x = {700, 65},
     .attrs = {.activation = LS_ACT_GELU}},
    {.name = "concat of many channels", .op = OP_CONCAT, .n_dims = 4, .x = {9, 40, 14, 14},
     .other = {9, 16, 14, 14}, .attrs = {.axis = 1}},
    {.name = "slice of many channels", .op = OP_SLICE, .n_dims = 4, .x = {9, 40, 14, 14},
     .out = 24, .attrs = {.axis = 1, .begin = 8}},
};
/* clang-format on */

static ls_status open_onednn(int threads, ls_device **out)
{
    return ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options),
                                               .name = "onednn",
                                               .threads = threads},
                          out);
}

static ls_device *onednn(int threads)
{
    ls_device *device = NULL;

    assert_status(LS_OK, open_onednn(threads, &device));
    return device;
}

/* What the reference gives for each case, in float64, worked out once: it is slow. */
static op_results *wanted; /* n_op_cases */
static op_results own_expected[LS_COUNT_OF(own_cases)];

static int run_reference(void **state)
{
    ls_device *reference = open_reference();

    LS_UNUSED(state);
    wanted = ls_calloc((size_t)n_op_cases, sizeof(*wanted));
    assert_non_null(wanted);
    for (int i = 0; i < n_op_cases; i++)
        assert_status(LS_OK, op_case_run(reference, &op_cases[i], LS_F64, &wanted[i]));
    for (size_t i = 0; i < LS_COUNT_OF(own_cases); i++)
        assert_status(LS_OK, op_case_run(reference, &own_cases[i], LS_F64, &own_expected[i]));
    ls_device_close(reference);
    return 0;
}

static int free_results(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < n_op_cases; i++)
        op_results_free(&wanted[i]);
    for (size_t i = 0; i < LS_COUNT_OF(own_cases); i++)
        op_results_free(&own_expected[i]);
    ls_free(wanted);
    return 0;
}

/* Tiles for 5x5 kernels multiply by larger numbers than those for 3x3. Where products and sums are
 * not fused, as on old processors and for sanitizers, gradients of weights are up to 1.11 times as
 * far away as plain sums may be. */
static double allowed(const op_case *c)
{
    return c->op == OP_CONV2D && c->attrs.kernel[0] == 5 && c->x[1] >= 16 ? 1.5 : 1;
}

static void compare_case(ls_device *device, const op_case *c, const op_results *want)
{
    op_results got;

    assert_status(LS_OK, op_case_run(device, c, LS_F32, &got));
    assert_int_equal(got.n, want->n);
    for (int k = 0; k < want->n; k++) {
        const double error = op_result_error(&got.r[k], &want->r[k], (double)FLT_EPSILON);

        if (error > allowed(c))
            fail_msg("%s: %s is %.3g times too far away", c->name, want->r[k].name, error);
    }
    op_results_free(&got);
}

static void compare_all(int threads)
{
    ls_device *device = onednn(threads);

    for (int i = 0; i < n_op_cases; i++) {
        if (threads == 1 || !RACES_ARE_WATCHED || !runs_in_onednn(&op_cases[i]))
            compare_case(device, &op_cases[i], &wanted[i]);
    }
    for (size_t i = 0; i < LS_COUNT_OF(own_cases); i++) {
        if (threads == 1 || !RACES_ARE_WATCHED) // their layouts come from oneDNN
            compare_case(device, &own_cases[i], &own_expected[i]);
    }
    ls_device_close(device);
}

static void every_case_is_near_the_reference(void **state)
{
    LS_UNUSED(state);
    compare_all(1);
}

static void every_case_is_near_the_reference_on_3_threads(void **state)
{
    LS_UNUSED(state);
    compare_all(3);
}

static void compare_bits(ls_device *one, ls_device *other, const op_case *c, ls_dtype type)
{
    op_results want;
    op_results got;

    assert_status(LS_OK, op_case_run(one, c, type, &want));
    assert_status(LS_OK, op_case_run(other, c, type, &got));
    for (int k = 0; k < want.n; k++) {
        if (memcmp(got.r[k].values, want.r[k].values, want.r[k].count * sizeof(double)) != 0)
            fail_msg("%s: %s differs", c->name, want.r[k].name);
    }
    op_results_free(&want);
    op_results_free(&got);
}

static void the_number_of_threads_changes_no_bit(void **state)
{
    ls_device *alone = onednn(1);
    ls_device *several = onednn(3);
    ls_device *reference = open_reference();
    // elsewhere, and with a bias, oneDNN computes the gradients of the mixed cases
    const bool has_pairs = strstr(ls_device_fingerprint(alone), "avx512_core_bf16") != NULL;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(shared_cases); i++) {
        op_results wide;

        assert_status(LS_OK, op_case_run(reference, &shared_cases[i], LS_F64, &wide));
        compare_case(several, &shared_cases[i], &wide);
        compare_bits(alone, several, &shared_cases[i], LS_F32);
        op_results_free(&wide);
    }
    for (size_t i = 0; i < LS_COUNT_OF(mixed_cases) && has_pairs && !RACES_ARE_WATCHED; i++) {
        if (mixed_cases[i].no_bias)
            compare_bits(alone, several, &mixed_cases[i], LS_BF16);
    }
    ls_device_close(alone);
    ls_device_close(several);
    ls_device_close(reference);
}

/* The root mean square of the errors, relative to that of the values. */
static double mean_error(const op_result *got, const op_result *want)
{
    double error = 0;
    double size = 0;

    for (size_t i = 0; i < want->count; i++) {
        const double d = got->values[i] - want->values[i];

        error += d * d;
        size += want->values[i] * want->values[i];
    }
    return sqrt(error / size);
}

/* A plain float32 sum of 512 products is 3.4 FLT_EPSILON away on average, and tiles of Winograd's
 * algorithm with plain sums over 256 channels are 13. Such errors decide how many activations next
 * to 0 the ReLU treats otherwise than in float64. */
static void long_sums_of_products_stay_near_the_reference(void **state)
{
    static const struct {
        op_case c;
        double allowed; /* in FLT_EPSILON, on average */
    } cases[] = {
        {{.name = "512 channels, few positions",
          .op = OP_CONV2D,
          .n_dims = 4,
          .x = {8, 512, 1, 1},
          .out = 512,
          .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
         2.5},
        {{.name = "256 channels, tiles",
          .op = OP_CONV2D,
          .n_dims = 4,
          .x = {2, 16, 8, 8},
          .out = 256,
          .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
         9},
        {{.name = "256 channels, lines",
          .op = OP_CONV2D,
          .n_dims = 4,
          .x = {8, 256, 1, 128},
          .out = 16,
          .attrs = {.padding = {0, 2}, .kernel = {1, 5}}},
         9},
    };
    ls_device *reference = open_reference();
    ls_device *device = onednn(1);

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        op_results want;
        op_results got;

        assert_status(LS_OK, op_case_run(reference, &cases[i].c, LS_F64, &want));
        assert_status(LS_OK, op_case_run(device, &cases[i].c, LS_F32, &got));
        for (int k = 0; k < want.n; k++) {
            const double error = mean_error(&got.r[k], &want.r[k]) / (double)FLT_EPSILON;

            if (error > cases[i].allowed)
                fail_msg("%s: %s is %.3g FLT_EPSILON away on average", cases[i].c.name,
                         want.r[k].name, error);
        }
        op_results_free(&want);
        op_results_free(&got);
    }
    ls_device_close(device);
    ls_device_close(reference);
}

static void float64_is_left_to_the_reference(void **state)
{
    ls_device *device = onednn(1);

    LS_UNUSED(state);
    for (int i = 0; i < n_op_cases; i++) {
        const op_results *want = &wanted[i];
        op_results got;

        assert_status(LS_OK, op_case_run(device, &op_cases[i], LS_F64, &got));
        for (int k = 0; k < want->n; k++)
            assert_true(op_result_error(&got.r[k], &want->r[k], DBL_EPSILON) == 0);
        op_results_free(&got);
    }
    ls_device_close(device);
}

static void a_length_out_of_range_is_refused(void **state)
{
    const int64_t wide[2] = {2, 6};
    const int64_t dims[2] = {2, 2};
    const int64_t lengths[2] = {5, -1};
    ls_device *device = onednn(1);
    ls_tensor *in[4] = {NULL};
    ls_tensor *out[2];

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++)
        in[i] = random_tensor(device, LS_F32, 2, i < 2 ? wide : dims, (uint64_t)i);
    for (int i = 0; i < 2; i++)
        out[i] = unplaced_of(device, LS_F32, 2, dims);
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, dims, &in[3]));
    assert_status(LS_OK, ls_tensor_write(in[3], lengths, 2));
    assert_status(LS_EINVAL, device_run(device, &(op_call){.op = OP_GRU,
                                                           .attrs.limit = 5,
                                                           .n_in = 4,
                                                           .n_out = 3,
                                                           .in = {in[0], in[1], in[2], in[3]},
                                                           .out = {out[0], out[1]}}));
    assert_non_null(strstr(ls_last_error(), "length -1 of row 1 is outside [0, 5]"));
    destroy_all(in, 4);
    destroy_all(out, 2);
    ls_device_close(device);
}

/* Kernels may round more often than the reference does: within a hundredth of float64. */
static void compare_mixed(ls_device *reference, ls_device *device, const op_case *c)
{
    op_results want;
    op_results got;

    assert_status(LS_OK, op_case_run(reference, c, LS_F64, &want));
    assert_status(LS_OK, op_case_run(device, c, c->exact, &got));
    assert_int_equal(got.n, want.n);
    for (int k = 0; k < want.n; k++) {
        const double distance = op_result_distance(&got.r[k], &want.r[k]);

        if (!(distance <= 1e-2))
            fail_msg("%s of %s: %s is %.3g away", c->name, ls_dtype_name(c->exact), want.r[k].name,
                     distance);
    }
    op_results_free(&want);
    op_results_free(&got);
}

static void mixed_precision_stays_near_the_reference(void **state)
{
    static const ls_dtype types[] = {LS_BF16, LS_F16};
    const size_t n_cases = (size_t)n_op_cases + LS_COUNT_OF(mixed_cases);
    ls_device *reference = open_reference();
    ls_device *device = onednn(RACES_ARE_WATCHED ? 1 : 3);

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(types) * n_cases; i++) {
        const size_t at = i / LS_COUNT_OF(types);
        op_case c = at < (size_t)n_op_cases ? op_cases[at] : mixed_cases[at - (size_t)n_op_cases];

        c.exact = types[i % LS_COUNT_OF(types)];
        if (op_case_mixes(&c))
            compare_mixed(reference, device, &c);
    }
    ls_device_close(device);
    ls_device_close(reference);
}

static ls_tensor *halves(ls_device *device, int64_t rows, int64_t columns)
{
    float values[64];
    ls_tensor *x = tensor_of(device, LS_F32, 2, (int64_t[]){rows, columns}, (double[64]){0});
    ls_tensor *y = unplaced_of(device, LS_BF16, 2, (int64_t[]){rows, columns});

    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = (float)(i % 5) - 2;
    assert_status(LS_OK, ls_tensor_write(x, values, (size_t)(rows * columns)));
    assert_status(
        LS_OK, device_run(device,
                          &(op_call){.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    ls_tensor_destroy(x);
    return y;
}

/* The weights are packed as bfloat16 at their first use, and again after a write. */
static void packed_weights_of_bfloat16_follow_writes(void **state)
{
    ls_device *device = onednn(1);
    ls_tensor *x = halves(device, 2, 16);
    ls_tensor *w = tensor_of(device, LS_F32, 2, (int64_t[]){16, 16}, (double[256]){[3] = 2});
    float written[256] = {[3] = 4};
    float got[2];

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        ls_tensor *y = unplaced_of(device, LS_BF16, 2, (int64_t[]){2, 16});
        ls_tensor *wide = unplaced_of(device, LS_F32, 2, (int64_t[]){2, 16});

        assert_status(LS_OK, device_run(device, &(op_call){.op = OP_LINEAR,
                                                           .n_in = 3,
                                                           .n_out = 1,
                                                           .in = {x, w, NULL},
                                                           .out = {y}}));
        assert_status(
            LS_OK,
            device_run(device,
                       &(op_call){.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {y}, .out = {wide}}));
        got[i] = (float)element_of(wide, 0);
        destroy_all((ls_tensor *[]){y, wide}, 2);
        assert_status(LS_OK, ls_tensor_write(w, written, 256));
    }
    assert_float_equal(got[0], 2, 0); // x[3] is 1
    assert_float_equal(got[1], 4, 0);
    destroy_all((ls_tensor *[]){x, w}, 2);
    assert_status(LS_OK, ls_device_close(device));
}

static void slow_types_have_a_reason(void **state)
{
    ls_device *device = onednn(1);
    const char *bf16 = device_slow_type(device, LS_BF16);
    const bool has_bf16 = strstr(ls_device_fingerprint(device), "_bf16") != NULL ||
                          strstr(ls_device_fingerprint(device), "_amx") != NULL;

    LS_UNUSED(state);
    assert_non_null(strstr(device_slow_type(device, LS_F16), "no kernels for float16"));
    if (has_bf16)
        assert_null(bf16);
    else if (strstr(ls_device_fingerprint(device), "avx2") != NULL)
        assert_non_null(strstr(bf16, "this processor has no instructions for bfloat16"));
    ls_device_close(device);
}

static void the_fingerprint_names_library_and_threads(void **state)
{
    ls_device *device = onednn(1);

    LS_UNUSED(state);
    assert_string_equal(ls_device_name(device), "onednn");
    assert_true(strncmp(ls_device_fingerprint(device), "onednn 2.", 9) == 0 ||
                strncmp(ls_device_fingerprint(device), "onednn 3.", 9) == 0);
    assert_non_null(strstr(ls_device_fingerprint(device), " 1 thread"));
    if (getenv("ONEDNN_MAX_CPU_ISA") != NULL) // AVX2, in test_onednn_avx2
        assert_null(strstr(ls_device_fingerprint(device), "avx512"));
    ls_device_close(device);
}

static void unknown_convolutions_are_refused(void **state)
{
    static const char *const names[] = {"onednn", "cpu"};

    LS_UNUSED(state);
    assert_int_equal(setenv("LOCKSTEP_CONVOLUTIONS", "rows,fast,few", 1), 0);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        ls_device_options opt = {.size = sizeof(opt), .name = names[i]};
        ls_device *device = NULL;

        assert_status(LS_EINVAL, ls_device_open(&opt, &device));
        assert_null(device);
        assert_non_null(strstr(ls_last_error(), "LOCKSTEP_CONVOLUTIONS: \"fast\" is not one of "
                                                "onednn, few, rows, winograd, product, pairs, "
                                                "blocked, channels_last"));
    }
    assert_int_equal(unsetenv("LOCKSTEP_CONVOLUTIONS"), 0);
}

/* oneDNN's own convolutions give what ours give, but for rounding. */
static void every_case_is_near_the_reference_without_our_convolutions(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(setenv("LOCKSTEP_CONVOLUTIONS", "onednn", 1), 0);
    compare_all(1);
    assert_int_equal(unsetenv("LOCKSTEP_CONVOLUTIONS"), 0);
}

/* Also where another layout is chosen on this processor. */
static void every_case_is_near_the_reference_in_each_layout(void **state)
{
    static const char *const layouts[] = {"onednn,blocked", "onednn,channels_last",
                                          "product,channels_last"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(layouts); i++) {
        assert_int_equal(setenv("LOCKSTEP_CONVOLUTIONS", layouts[i], 1), 0);
        compare_all(1);
    }
    assert_int_equal(unsetenv("LOCKSTEP_CONVOLUTIONS"), 0);
}

/* --- threads that wait --- */

/* What libgomp, loaded in a process of its own with these variables, has read as GOMP_SPINCOUNT. */
static void spin_count_of(const char *variables, int threads, char *out, int n)
{
    char command[256];
    char line[256];
    FILE *f;

    assert_true(snprintf(command, sizeof(command),
                         "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=VERBOSE %s "
                         "/proc/%d/exe %d 2>&1",
                         variables, (int)getpid(), threads) < (int)sizeof(command));
    f = popen(command, "re");
    assert_non_null(f);
    *out = '\0';
    while (fgets(line, sizeof(line), f) != NULL) {
        const char *value = strstr(line, "GOMP_SPINCOUNT = ");

        if (value != NULL)
            (void)snprintf(out, (size_t)n, "%.*s", (int)strcspn(value + 17, "\n"), value + 17);
    }
    assert_int_equal(pclose(f), 0);
}

/* Opens the device, and finds the environment as it was. */
static int open_only(int threads)
{
    ls_device *device = NULL;
    const ls_status st = open_onednn(threads, &device);
    const char *given = getenv("GOMP_SPINCOUNT");

    ls_device_close(device);
    return st != LS_OK || (given != NULL && strcmp(given, "77") != 0);
}

static void threads_spin_briefly_or_not_at_all_unless_the_user_says_how(void **state)
{
    static const struct {
        const char *variables;
        int threads;
        const char *wanted;
    } cases[] = {
        {"", 1, "'3000'"},
        {"", 1000000, "'0'"},
        {"LOCKSTEP_LOCAL_WORLD_SIZE=1000000", 1, "'0'"},
        {"GOMP_SPINCOUNT=77", 1000000, "'77'"},
        {"OMP_WAIT_POLICY=active", 1, "'30000000000'"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        char got[64];

        spin_count_of(cases[i].variables, cases[i].threads, got, sizeof(got));
        assert_string_equal(got, cases[i].wanted);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_is_near_the_reference),
        cmocka_unit_test(every_case_is_near_the_reference_on_3_threads),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(long_sums_of_products_stay_near_the_reference),
        cmocka_unit_test(float64_is_left_to_the_reference),
        cmocka_unit_test(a_length_out_of_range_is_refused),
        cmocka_unit_test(mixed_precision_stays_near_the_reference),
        cmocka_unit_test(packed_weights_of_bfloat16_follow_writes),
        cmocka_unit_test(slow_types_have_a_reason),
        cmocka_unit_test(the_fingerprint_names_library_and_threads),
        cmocka_unit_test(unknown_convolutions_are_refused),
        cmocka_unit_test(every_case_is_near_the_reference_without_our_convolutions),
        cmocka_unit_test(every_case_is_near_the_reference_in_each_layout),
        cmocka_unit_test(threads_spin_briefly_or_not_at_all_unless_the_user_says_how),
    };
    ls_device *device = NULL;

    if (argc > 1)
        return open_only(atoi(argv[1]));
    if (open_onednn(1, &device) != LS_OK) {
        print_message("skipped: %s\n", ls_last_error());
        return 77;
    }
    ls_device_close(device);
    return cmocka_run_group_tests(tests, run_reference, free_results);
}
