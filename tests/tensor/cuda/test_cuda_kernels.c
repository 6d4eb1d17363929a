/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_kernels.c - the CUDA device's own kernels, compiled for the host, beside cpu_ref: all
 * cases and types, other sizes, and the same bits from any number of blocks.
 *
 * With what nvcc compiled in their place (tests/devices/ptx/), where a case takes a hundred times
 * as long: small cases in float32 and bfloat16, from the blocks of a card and from 3, of which each
 * has several parts of the work. device_ops runs all cases and types there, with threads in random
 * orders.
 */
#include "tensor/cuda/cuda_testing.h"

#include "base/alloc.h"
#include "tensor/op_cases.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool runs_ptx(void)
{
    return getenv("GPU_HOST_KERNELS") != NULL; // NOLINT(concurrency-mt-unsafe): never set
}

/* --- beside the reference --- */

typedef struct run_counts {
    int n_cases;
    double worst;
} run_counts;

static bool have_equal_bits(const op_results *a, const op_results *b)
{
    bool are_equal = a->n == b->n;

    for (int i = 0; are_equal && i < a->n; i++)
        are_equal = memcmp(a->r[i].values, b->r[i].values, a->r[i].count * sizeof(double)) == 0;
    return are_equal;
}

/* The same bits from 1, 3 and 7 blocks; for large cases, where they are slow, from 7; of PTX from
 * 3. */
static void check_blocks(gpu_host *gpu, ls_device *device, const op_case *c, ls_dtype type,
                         const op_results *first)
{
    static const unsigned blocks[] = {3, 1, 7};

    for (size_t i = op_case_is_large(c) ? 2 : 0; i < (runs_ptx() ? 1 : LS_COUNT_OF(blocks)); i++) {
        op_results again = {0};

        gpu->n_blocks = blocks[i];
        assert_status(LS_OK, op_case_run(device, c, type, &again));
        if (!have_equal_bits(first, &again))
            fail_msg("%s in %s: other bits from %u blocks", c->name, ls_dtype_name(type),
                     blocks[i]);
        op_results_free(&again);
    }
    gpu->n_blocks = 0;
}

/* Each result near cpu_ref's: as vectors, and in float32, where cpu_ref computes in float64, each
 * element too. */
static double compare(const op_case *c, ls_dtype type, const op_results *got,
                      const op_results *want)
{
    const bool is_narrow = type == LS_BF16 || type == LS_F16;
    const double limit = is_narrow ? 1e-2 : type == LS_F32 ? 1e-4 : 1e-12;
    double worst = 0;

    assert_int_equal(got->n, want->n);
    for (int i = 0; i < got->n; i++) {
        const double distance = op_result_distance(&got->r[i], &want->r[i]);
        const double error =
            type == LS_F32 ? op_result_error(&got->r[i], &want->r[i], (double)FLT_EPSILON) : 0;

        if (!(distance <= limit) || !(error <= 1))
            fail_msg("%s in %s, %s: %g off, an element %g times its tolerance", c->name,
                     ls_dtype_name(type), got->r[i].name, distance, error);
        worst = fmax(worst, distance);
    }
    return worst;
}

/* Operators whose kernels add in another order than cpu_ref, multiply by a library, or compute in
 * float32 where cpu_ref computes in float64. All others have cpu_ref's bits. */
static const struct rounding {
    op_kind op;
    bool is_exact_in_float64;
    const char *exact[3]; /* the results that have cpu_ref's bits nevertheless */
} roundings[] = {
    {.op = OP_CONV2D},
    {.op = OP_LINEAR},
    {.op = OP_MATMUL},
    {.op = OP_ATTENTION},
    {.op = OP_BATCH_NORM, .exact = {"counter"}},
    {.op = OP_LAYER_NORM},
    {.op = OP_SOFTMAX, .is_exact_in_float64 = true},
    {.op = OP_LOG_SOFTMAX},
    {.op = OP_CROSS_ENTROPY},
    {.op = OP_MSE},
    {.op = OP_SQUARES},
    {.op = OP_CLASS_SUMS},
    {.op = OP_AVG_POOL2D, .is_exact_in_float64 = true},
    {.op = OP_EXPAND, .is_exact_in_float64 = true, .exact = {"y"}}, // its backward is a sum
    {.op = OP_BINARY, .exact = {"y", "a + y", "copy of y"}},        // the same
    {.op = OP_ACTIVATE},
    {.op = OP_DROPOUT, .is_exact_in_float64 = true},
    {.op = OP_LSTM, .is_exact_in_float64 = true},
    {.op = OP_GRU, .is_exact_in_float64 = true},
};

/* Functions of an element that are rounded once at most. */
static bool is_rounded_once(const op_case *c)
{
    switch (c->attrs.activation) {
    case LS_ACT_RELU6:
    case LS_ACT_ABS:
    case LS_ACT_SQUARE:
    case LS_ACT_LEAKY_RELU:
    case LS_ACT_CLAMP:
        return true;
    default:
        return false;
    }
}

static bool has_bits_of_reference(const op_case *c, ls_dtype type, const char *name)
{
    size_t i = 0;

    while (i < LS_COUNT_OF(roundings) && roundings[i].op != c->op)
        i++;
    if (i == LS_COUNT_OF(roundings) || (roundings[i].is_exact_in_float64 && type == LS_F64) ||
        (c->op == OP_ACTIVATE && is_rounded_once(c)))
        return true;
    if (c->op == OP_BINARY && c->attrs.binary == BINARY_SQUARE)
        return false; // the difference and its square are rounded
    for (int k = 0; k < 3 && roundings[i].exact[k] != NULL; k++) {
        if (strcmp(roundings[i].exact[k], name) == 0)
            return true;
    }
    return false;
}

/* `want`: cpu_ref's results in the same type. */
static void check_bits(const op_case *c, ls_dtype type, const op_results *got,
                       const op_results *want)
{
    for (int i = 0; i < got->n; i++) {
        if (has_bits_of_reference(c, type, got->r[i].name) &&
            memcmp(got->r[i].values, want->r[i].values, got->r[i].count * sizeof(double)) != 0)
            fail_msg("%s in %s, %s: other bits than cpu_ref's", c->name, ls_dtype_name(type),
                     got->r[i].name);
    }
}

static void check_case(gpu_host *gpu, ls_device *device, ls_device *reference, const op_case *c,
                       ls_dtype type, run_counts *n)
{
    const bool is_narrow = type == LS_BF16 || type == LS_F16;
    op_results got = {0};
    op_results want = {0};
    op_results same = {0};

    if ((is_narrow && !op_case_mixes(c)) || (op_case_is_large(c) && (type != LS_F32 || runs_ptx())))
        return;
    assert_status(LS_OK, op_case_run(reference, c, is_narrow ? type : LS_F64, &want));
    assert_status(LS_OK, op_case_run(device, c, type, &got));
    n->worst = fmax(n->worst, compare(c, type, &got, &want));
    if (type == LS_F32)
        assert_status(LS_OK, op_case_run(reference, c, LS_F32, &same));
    check_bits(c, type, &got, type == LS_F32 ? &same : &want);
    op_results_free(&same);
    n->n_cases++;
    check_blocks(gpu, device, c, type, &got);
    op_results_free(&got);
    op_results_free(&want);
}

static void check_type(ls_dtype type)
{
    gpu_host *gpu = cudahost_reset();
    ls_device *device = open_cudahost("cudahost");
    ls_device *reference = open_reference();
    run_counts n = {0};

    for (int i = 0; i < n_op_cases; i++)
        check_case(gpu, device, reference, &op_cases[i], type, &n);
    print_message("%s: %d cases, at most %.2g off\n", ls_dtype_name(type), n.n_cases, n.worst);
    assert_true(n.n_cases > 80);
    ls_device_close(reference);
    assert_status(LS_OK, ls_device_close(device));
    assert_int_equal(gpu->used_bytes, 0);
}

static void kernels_agree_with_the_reference_in_float32(void **state)
{
    LS_UNUSED(state);
    check_type(LS_F32);
}

/* As on a card: the threads of a block meet at barriers. Without one that is needed the order of
 * the threads between barriers decides the result. */
static void check_threads(gpu_host *gpu, ls_device *device, ls_device *reference, const op_case *c,
                          ls_dtype type)
{
    const bool is_narrow = type == LS_BF16;
    op_results want = {0};
    op_results got[2] = {{0}};

    if ((is_narrow && !op_case_mixes(c)) || op_case_is_large(c))
        return;
    assert_status(LS_OK, op_case_run(reference, c, is_narrow ? type : LS_F64, &want));
    for (int i = 0; i < 2; i++) {
        gpu->is_reversed = i == 1;
        assert_status(LS_OK, op_case_run(device, c, type, &got[i]));
        (void)compare(c, type, &got[i], &want);
    }
    if (!have_equal_bits(&got[0], &got[1]))
        fail_msg("%s in %s: other bits in another order of threads", c->name, ls_dtype_name(type));
    op_results_free(&want);
    op_results_free(&got[0]);
    op_results_free(&got[1]);
}

static void threads_of_a_block_wait_for_each_other(void **state)
{
    gpu_host *gpu;
    ls_device *device;
    ls_device *reference;

    LS_UNUSED(state);
#if defined(__SANITIZE_THREAD__)
    skip(); // the thread sanitizer does not follow changes of the stack
#endif
    if (runs_ptx())
        skip();
    gpu = cudahost_reset();
    device = open_cudahost("cudahost");
    reference = open_reference();
    gpu->n_threads = 64;
    for (int i = 0; i < n_op_cases; i++) {
        check_threads(gpu, device, reference, &op_cases[i], LS_F32);
        check_threads(gpu, device, reference, &op_cases[i], LS_BF16);
    }
    ls_device_close(reference);
    assert_status(LS_OK, ls_device_close(device));
}

static void kernels_agree_with_the_reference_in_float64(void **state)
{
    LS_UNUSED(state);
    if (runs_ptx())
        skip();
    check_type(LS_F64);
}

static void kernels_agree_with_the_reference_in_bfloat16(void **state)
{
    LS_UNUSED(state);
    check_type(LS_BF16);
}

static void kernels_agree_with_the_reference_in_float16(void **state)
{
    LS_UNUSED(state);
    if (runs_ptx())
        skip();
    check_type(LS_F16);
}

/* --- alignment --- */

static bool sums_rows(const op_case *c)
{
    return (c->op == OP_LAYER_NORM || c->op == OP_SOFTMAX || c->op == OP_LOG_SOFTMAX ||
            c->op == OP_CROSS_ENTROPY || c->op == OP_SQUARES) &&
           !c->arranged && !op_case_is_large(c);
}

/* The gradients of layer norm's parameters are sums of columns, divided in another way. */
static bool is_sum_of_columns(const char *name)
{
    return strstr(name, "weight") != NULL || strstr(name, "bias") != NULL;
}

static void check_alignment(ls_device *device, const op_case *c, ls_dtype type)
{
    op_case cases[2] = {*c, *c};
    op_results got[2] = {{0}};

    for (int i = 0; i < 2; i++) {
        cases[i].unaligned = i == 1;
        assert_status(LS_OK, op_case_run(device, &cases[i], type, &got[i]));
    }
    for (int i = 0; i < got[0].n; i++) {
        const op_result *r = &got[0].r[i];

        if (!is_sum_of_columns(r->name) &&
            memcmp(r->values, got[1].r[i].values, r->count * sizeof(double)) != 0)
            fail_msg("%s in %s, %s: other bits where elements are not aligned", c->name,
                     ls_dtype_name(type), r->name);
    }
    op_results_free(&got[0]);
    op_results_free(&got[1]);
}

static void sums_of_rows_do_not_depend_on_the_alignment(void **state)
{
    gpu_host *gpu;
    ls_device *device;

    LS_UNUSED(state);
#if defined(__SANITIZE_THREAD__)
    skip(); // as above
#endif
    gpu = cudahost_reset();
    device = open_cudahost("cudahost");
    gpu->n_threads = 64;
    for (int i = 0; i < n_op_cases; i++) {
        if (!sums_rows(&op_cases[i]))
            continue;
        check_alignment(device, &op_cases[i], LS_F32);
        if (op_case_mixes(&op_cases[i]))
            check_alignment(device, &op_cases[i], LS_BF16);
    }
    assert_status(LS_OK, ls_device_close(device));
}

/* --- arrangements --- */

/* Brings the values of a plain tensor through a kernel that leaves NHWC, into *out. */
static ls_tensor *to_nhwc(ls_device *device, ls_tensor *plain)
{
    ls_tensor *y = unplaced_of(device, plain->dtype, plain->n_dims, plain->dims);

    // A window of one position: the maximum is the element.
    assert_status(LS_OK,
                  device_run(device, &(op_call){.op = OP_MAX_POOL2D,
                                                .attrs = {.kernel = {1, 1}, .stride = {1, 1}},
                                                .n_in = 1,
                                                .n_out = 2,
                                                .in = {plain},
                                                .out = {y}}));
    return y;
}

static void assert_same_elements(const ls_tensor *got, const ls_tensor *want)
{
    const size_t count = ls_tensor_count(want);

    assert_int_equal(ls_tensor_count(got), count);
    for (size_t i = 0; i < count; i++) {
        if (element_of(got, i) != element_of(want, i))
            fail_msg("element %zu is %g, not %g", i, element_of(got, i), element_of(want, i));
    }
}

static void copies_keep_the_elements_in_every_arrangement(void **state)
{
    static const int64_t shapes[][4] = {{2, 3, 5, 7}, {1, 33, 31, 2}, {3, 1, 4, 5},
                                        {2, 8, 1, 1}, {0, 3, 2, 2},   {2, 64, 8, 9}};
    static const ls_dtype types[] = {LS_F32, LS_F64, LS_BF16, LS_F16};
    ls_device *device;

    LS_UNUSED(state);
    cudahost_reset();
    device = open_cudahost("cudahost");
    for (size_t i = 0; i < LS_COUNT_OF(shapes) * LS_COUNT_OF(types); i++) {
        const int64_t *dims = shapes[i / LS_COUNT_OF(types)];
        const ls_dtype type = types[i % LS_COUNT_OF(types)];
        ls_tensor *plain = random_tensor(device, type, 4, dims, i);
        ls_tensor *nhwc = to_nhwc(device, plain);
        ls_tensor *copy = NULL;

        assert_status(LS_OK, ls_tensor_create(device, type, 4, dims, &copy));
        assert_status(
            LS_OK,
            device_run(
                device,
                &(op_call){.op = OP_COPY, .n_in = 1, .n_out = 1, .in = {nhwc}, .out = {copy}}));
        assert_same_elements(copy, plain);
        // Back into NHWC: the destination was placed by a kernel.
        assert_status(
            LS_OK,
            device_run(
                device,
                &(op_call){.op = OP_ADD_INTO, .n_in = 1, .n_out = 1, .in = {copy}, .out = {nhwc}}));
        for (size_t e = 0; e < ls_tensor_count(plain); e++)
            assert_true(element_of(nhwc, e) == 2 * element_of(plain, e));
        destroy_all((ls_tensor *[]){plain, nhwc, copy}, 3);
    }
    assert_status(LS_OK, ls_device_close(device));
}

/* --- dropout --- */

static void check_drops(ls_device *device, ls_tensor *x, const op_attrs *attrs)
{
    ls_tensor *y = unplaced_of(device, x->dtype, x->n_dims, x->dims);
    const size_t count = ls_tensor_count(x);
    const size_t run = attrs->drops_rows ? count / (size_t)x->dims[0] : 1;

    assert_status(
        LS_OK,
        device_run(
            device,
            &(op_call){
                .op = OP_DROPOUT, .attrs = *attrs, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}}));
    for (size_t i = 0; i < count; i++) {
        if ((element_of(y, i) == 0) != device_drops(attrs, i / run))
            fail_msg("drop %g: element %zu is %g", attrs->drop, i, element_of(y, i));
    }
    ls_tensor_destroy(y);
}

static void dropout_drops_the_elements_of_every_device(void **state)
{
    static const double drops[] = {0, 0x1p-53, 0.1, 0.5, 1 - 0x1p-53, 1};
    const int64_t dims[4] = {5, 17, 6, 7};
    ls_device *device;
    ls_tensor *plain;
    ls_tensor *nhwc;

    LS_UNUSED(state);
    cudahost_reset();
    device = open_cudahost("cudahost");
    plain = random_tensor(device, LS_F32, 4, dims, 7);
    nhwc = to_nhwc(device, plain);
    for (size_t i = 0; i < 2 * LS_COUNT_OF(drops); i++) {
        const op_attrs attrs = {.drop = drops[i / 2], .random = 1000 + i, .drops_rows = i % 2 == 1};

        check_drops(device, plain, &attrs);
        check_drops(device, nhwc, &attrs);
    }
    destroy_all((ls_tensor *[]){plain, nhwc}, 2);
    assert_status(LS_OK, ls_device_close(device));
}

/* --- failures --- */

static void a_target_out_of_range_is_reported_by_the_next_wait(void **state)
{
    static const op_kind ops[] = {OP_CROSS_ENTROPY, OP_NLL};
    const int64_t dims[2] = {5, 4};
    const int64_t targets[5] = {0, 3, 4, -1, 2};
    ls_device *device;
    ls_tensor *x;
    ls_tensor *t = NULL;

    LS_UNUSED(state);
    cudahost_reset();
    device = open_cudahost("cudahost");
    x = random_tensor(device, LS_F32, 2, dims, 1);
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, dims, &t));
    assert_status(LS_OK, ls_tensor_write(t, targets, 5));
    for (size_t i = 0; i < LS_COUNT_OF(ops); i++) {
        ls_tensor *loss = unplaced_of(device, LS_F32, 0, NULL);
        float value;

        assert_status(
            LS_OK,
            device_run(
                device,
                &(op_call){.op = ops[i], .n_in = 2, .n_out = 2, .in = {x, t}, .out = {loss}}));
        assert_status(LS_EINVAL, ls_tensor_read(loss, &value, 1));
        assert_non_null(strstr(ls_last_error(), "target 4 of row 2 is outside [0, 4)"));
        assert_non_null(strstr(ls_last_error(), device_op_name(ops[i])));
        assert_status(LS_OK, ls_tensor_read(loss, &value, 1));
        ls_tensor_destroy(loss);
    }
    destroy_all((ls_tensor *[]){x, t}, 2);
    assert_status(LS_OK, ls_device_close(device));
}

static void a_length_out_of_range_is_reported_by_the_next_wait(void **state)
{
    const int64_t wide[2] = {3, 8};
    const int64_t dims[2] = {3, 2};
    const int64_t lengths[3] = {5, 0, 6};
    ls_device *device;
    ls_tensor *in[5] = {NULL};
    ls_tensor *out[3];
    float values[6];

    LS_UNUSED(state);
    cudahost_reset();
    device = open_cudahost("cudahost");
    for (int i = 0; i < 4; i++)
        in[i] = random_tensor(device, LS_F32, 2, i < 2 ? wide : dims, (uint64_t)i);
    for (int i = 0; i < 3; i++)
        out[i] = unplaced_of(device, LS_F32, 2, dims);
    assert_status(LS_OK, ls_tensor_create(device, LS_I64, 1, dims, &in[4]));
    assert_status(LS_OK, ls_tensor_write(in[4], lengths, 3));
    assert_status(LS_OK, device_run(device, &(op_call){.op = OP_LSTM,
                                                       .attrs.limit = 5,
                                                       .n_in = 5,
                                                       .n_out = 4,
                                                       .in = {in[0], in[1], in[2], in[3], in[4]},
                                                       .out = {out[0], out[1], out[2]}}));
    assert_status(LS_EINVAL, ls_tensor_read(out[0], values, 6));
    assert_non_null(strstr(ls_last_error(), "lstm: length 6 of row 2 is outside [0, 5]"));
    destroy_all(in, 5);
    destroy_all(out, 3);
    assert_status(LS_OK, ls_device_close(device));
}

static ls_status add_nothing(void *arg, double *values, size_t n)
{
    LS_UNUSED(arg);
    LS_UNUSED(values);
    LS_UNUSED(n);
    return LS_OK;
}

static void one_value_per_channel_over_all_ranks_is_refused(void **state)
{
    const int64_t dims[2] = {1, 3};
    ls_device *device;
    ls_tensor *t[6];
    float values[3];

    LS_UNUSED(state);
    cudahost_reset();
    device = open_cudahost("cudahost");
    t[0] = random_tensor(device, LS_F32, 2, dims, 1);
    for (int i = 1; i < 5; i++)
        t[i] = random_tensor(device, LS_F32, 1, &dims[1], (uint64_t)i);
    t[5] = unplaced_of(device, LS_F32, 2, dims);
    assert_status(LS_OK, device_run(device, &(op_call){.op = OP_BATCH_NORM,
                                                       .attrs = {.training = true,
                                                                 .momentum = 0.1,
                                                                 .eps = 1e-5,
                                                                 .sync = {.sum = add_nothing}},
                                                       .n_in = 5,
                                                       .n_out = 4,
                                                       .in = {t[0], t[1], t[2], t[3], t[4]},
                                                       .out = {t[5]}}));
    assert_status(LS_EINVAL, ls_tensor_read(t[5], values, 3));
    assert_non_null(strstr(ls_last_error(), "more than one value per channel over all ranks"));
    destroy_all(t, 6);
    assert_status(LS_OK, ls_device_close(device));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_the_reference_in_float32),
        cmocka_unit_test(kernels_agree_with_the_reference_in_float64),
        cmocka_unit_test(threads_of_a_block_wait_for_each_other),
        cmocka_unit_test(kernels_agree_with_the_reference_in_bfloat16),
        cmocka_unit_test(kernels_agree_with_the_reference_in_float16),
        cmocka_unit_test(sums_of_rows_do_not_depend_on_the_alignment),
        cmocka_unit_test(copies_keep_the_elements_in_every_arrangement),
        cmocka_unit_test(dropout_drops_the_elements_of_every_device),
        cmocka_unit_test(a_target_out_of_range_is_reported_by_the_next_wait),
        cmocka_unit_test(a_length_out_of_range_is_reported_by_the_next_wait),
        cmocka_unit_test(one_value_per_channel_over_all_ranks_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
