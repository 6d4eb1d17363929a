/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conv2d_choice.c - which kernel runs a convolution, for every processor: the instruction set
 * is an argument, so the rules for AVX-512 are tested without it.
 */
#include "tensor/devices/onednn/conv2d_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ALL ((1U << CONV2D_KERNELS) - 1)

/* A convolution with square kernel, stride, padding, and the kernel that each direction gets. */
typedef struct choice_case {
    const char *name;
    int64_t n;
    int64_t in;
    int64_t out;
    int64_t side; /* of the input */
    int kernel;
    int stride;
    int padding;
    int groups;
    conv2d_kernel below_avx512[3]; /* forward, data, weights */
    conv2d_kernel with_avx512[3];
} choice_case;

#define ONEDNN   CONV2D_ONEDNN
#define FEW      CONV2D_FEW
#define ROWS     CONV2D_ROWS
#define WINOGRAD CONV2D_WINOGRAD
#define ALL_WINOGRAD                                                                               \
    {                                                                                              \
        WINOGRAD, WINOGRAD, WINOGRAD                                                               \
    }

static const choice_case cases[] = {
    {"first layer of the ConvNet", 100, 1, 16, 28, 5, 1, 2, 1, {FEW, ONEDNN, FEW}, {ONEDNN}},
    {"first layer of a ResNet", 16, 3, 64, 224, 7, 2, 3, 1, {FEW, ONEDNN, FEW}, {ONEDNN}},
    {"four input channels", 2, 4, 8, 16, 8, 1, 0, 1, {FEW, ONEDNN, FEW}, {ONEDNN}},
    {"five input channels", 2, 5, 8, 16, 3, 1, 1, 1, {ONEDNN}, {ONEDNN}},
    {"few channels, 9x9 weights", 2, 4, 8, 16, 9, 1, 0, 1, {ONEDNN}, {ONEDNN}},
    {"few channels to 12", 2, 3, 12, 16, 3, 1, 1, 1, {ONEDNN}, {ONEDNN}},
    {"depthwise", 8, 2, 8, 16, 3, 1, 1, 2, {ONEDNN}, {ONEDNN}},
    {"3x3", 16, 64, 64, 56, 3, 1, 1, 1, ALL_WINOGRAD, ALL_WINOGRAD},
    {"5x5", 100, 16, 32, 14, 5, 1, 2, 1, ALL_WINOGRAD, ALL_WINOGRAD},
    {"3x3 of 24 channels", 16, 24, 64, 56, 3, 1, 1, 1, ALL_WINOGRAD, {ONEDNN}},
    {"3x3 to 40 channels", 16, 64, 40, 56, 3, 1, 1, 1, ALL_WINOGRAD, {ONEDNN}},
    {"3x3 to 7x7 positions", 16, 512, 512, 7, 3, 1, 1, 1, ALL_WINOGRAD, ALL_WINOGRAD},
    {"3x3 with stride 2", 16, 64, 128, 56, 3, 2, 1, 1, {ONEDNN}, {ONEDNN}},
    {"7x7", 16, 64, 64, 56, 7, 1, 3, 1, {ONEDNN}, {ONEDNN}},
    {"3x3 of 8 channels", 16, 8, 64, 56, 3, 1, 1, 1, {ONEDNN}, {ONEDNN}},
    {"3x3 of 20 channels", 16, 20, 64, 56, 3, 1, 1, 1, {ONEDNN}, {ONEDNN}},
    {"3x3 in groups", 16, 64, 64, 56, 3, 1, 1, 2, {ONEDNN}, {ONEDNN}},
    {"3x3 with padding 3", 16, 64, 64, 56, 3, 1, 3, 1, {ONEDNN}, {ONEDNN}},
    {"3x3 on tiles that are mostly waste", 4, 64, 64, 5, 3, 1, 1, 1, {ONEDNN}, {ONEDNN}},
    {"3x3 to one position", 64, 512, 512, 1, 3, 1, 1, 1, {ROWS, ROWS, ROWS}, {ROWS, ROWS, ROWS}},
    {"3x3 to four positions", 8, 16, 16, 2, 3, 1, 1, 1, {ROWS, ROWS, ROWS}, {ROWS, ROWS, ROWS}},
    {"3x3 to nine positions",
     8,
     16,
     16,
     3,
     3,
     1,
     1,
     1,
     {ONEDNN, WINOGRAD, WINOGRAD},
     {ONEDNN, WINOGRAD, WINOGRAD}},
    {"one position of 7 images", 7, 512, 512, 1, 1, 1, 0, 1, {ONEDNN}, {ONEDNN}},
    {"one position, 6x6 weights", 64, 512, 512, 6, 6, 1, 0, 1, {ONEDNN}, {ONEDNN}},
};

static conv2d_kernel choose(isa_level isa, conv2d_set allowed, ls_dtype type,
                            conv2d_direction direction, const choice_case *c)
{
    const op_attrs attrs = {.stride = {c->stride, c->stride},
                            .padding = {c->padding, c->padding},
                            .dilation = {1, 1},
                            .groups = c->groups,
                            .kernel = {c->kernel, c->kernel}};
    const int64_t out = (c->side + 2 * c->padding - c->kernel) / c->stride + 1;
    const int64_t x[4] = {c->n, c->in, c->side, c->side};
    const int64_t w[4] = {c->out, c->in / c->groups, c->kernel, c->kernel};
    const int64_t y[4] = {c->n, c->out, out, out};

    return conv2d_choose(isa, allowed, type, direction, &attrs, x, w, y);
}

static void assert_choice(isa_level isa, const choice_case *c, const conv2d_kernel *wanted)
{
    for (conv2d_direction d = CONV2D_FORWARD; d <= CONV2D_BACKWARD_WEIGHTS; d++) {
        const conv2d_kernel got = choose(isa, ALL, LS_F32, d, c);

        if (got != wanted[d])
            fail_msg("%s, direction %d, level %d: %s, not %s", c->name, (int)d, (int)isa,
                     conv2d_kernel_name(got), conv2d_kernel_name(wanted[d]));
    }
}

static void each_processor_gets_its_kernels(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        assert_choice(ISA_BASELINE, &cases[i], cases[i].below_avx512);
        assert_choice(ISA_AVX2, &cases[i], cases[i].below_avx512);
        for (isa_level isa = ISA_AVX512; isa <= ISA_AMX; isa++)
            assert_choice(isa, &cases[i], cases[i].with_avx512);
    }
}

static conv2d_kernel choose_line(isa_level isa, int64_t n, int64_t length, int64_t kernel)
{
    const op_attrs attrs = {.stride = {1, 1},
                            .padding = {0, (int)kernel / 2},
                            .dilation = {1, 1},
                            .groups = 1,
                            .kernel = {1, (int)kernel}};
    const int64_t x[4] = {n, 64, 1, length};
    const int64_t w[4] = {64, 64, 1, kernel};

    return conv2d_choose(isa, ALL, LS_F32, CONV2D_BACKWARD_DATA, &attrs, x, w, x);
}

static void long_lines_are_for_winograd(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(choose_line(ISA_AVX2, 16, 401, 5), CONV2D_WINOGRAD);
    assert_int_equal(choose_line(ISA_AVX512, 16, 401, 5), CONV2D_WINOGRAD);
    assert_int_equal(choose_line(ISA_AVX2, 16, 401, 3), CONV2D_ONEDNN);
    assert_int_equal(choose_line(ISA_AVX2, 1, 401, 5), CONV2D_ONEDNN);
    assert_int_equal(choose_line(ISA_AVX2, 1024, 7, 5), CONV2D_ONEDNN);
}

static void dilated_convolutions_are_not_for_winograd(void **state)
{
    const op_attrs attrs = {
        .stride = {1, 1}, .padding = {2, 2}, .dilation = {2, 2}, .groups = 1, .kernel = {3, 3}};
    const int64_t x[4] = {16, 64, 56, 56};
    const int64_t w[4] = {64, 64, 3, 3};

    LS_UNUSED(state);
    assert_int_equal(conv2d_choose(ISA_AVX2, ALL, LS_F32, CONV2D_BACKWARD_DATA, &attrs, x, w, x),
                     CONV2D_ONEDNN);
}

static void a_kernel_that_is_not_allowed_is_not_chosen(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        for (conv2d_direction d = CONV2D_FORWARD; d <= CONV2D_BACKWARD_WEIGHTS; d++) {
            const conv2d_kernel usual = choose(ISA_AVX2, ALL, LS_F32, d, &cases[i]);

            assert_int_equal(choose(ISA_AVX2, 1U << CONV2D_ONEDNN, LS_F32, d, &cases[i]),
                             CONV2D_ONEDNN);
            if (usual != CONV2D_ONEDNN)
                assert_int_not_equal(choose(ISA_AVX2, ALL & ~(1U << usual), LS_F32, d, &cases[i]),
                                     usual);
        }
    }
}

/* Convolutions in bfloat16, and which gradients are products: 1 data, 2 weights. */
static const struct {
    choice_case c;
    unsigned products;
} product_cases[] = {
    {{"1x1", 16, 64, 256, 56, 1, 1, 0, 1, {ONEDNN}, {ONEDNN}}, 3},
    {{"1x1 with stride 2", 16, 256, 512, 56, 1, 2, 0, 1, {ONEDNN}, {ONEDNN}}, 3},
    {{"1x1 with padding", 16, 64, 64, 56, 1, 1, 1, 1, {ONEDNN}, {ONEDNN}}, 0},
    {{"3x3", 16, 256, 256, 14, 3, 1, 1, 1, {ONEDNN}, {ONEDNN}}, 0},
    {{"3x3 to 7x7", 16, 512, 512, 7, 3, 1, 1, 1, {ONEDNN}, {ONEDNN}}, 2},
    {{"3x3 with stride 2", 16, 256, 256, 28, 3, 2, 1, 1, {ONEDNN}, {ONEDNN}}, 2},
    {{"3x3 of too many columns", 64, 256, 256, 28, 3, 2, 1, 1, {ONEDNN}, {ONEDNN}}, 0},
    {{"first layer", 16, 3, 64, 224, 7, 2, 3, 1, {ONEDNN}, {ONEDNN}}, 0},
    {{"1x1 in groups", 16, 64, 64, 56, 1, 1, 0, 2, {ONEDNN}, {ONEDNN}}, 0},
};

/* The gradients of a convolution of that type, one bit for each: 1 data, 2 weights. */
static unsigned products_of(isa_level isa, conv2d_set allowed, ls_dtype type, const choice_case *c)
{
    unsigned set = 0;

    for (conv2d_direction d = CONV2D_FORWARD; d <= CONV2D_BACKWARD_WEIGHTS; d++) {
        const conv2d_kernel got = choose(isa, allowed, type, d, c);

        assert_true(got == CONV2D_PRODUCT || got == CONV2D_PAIRS || type == LS_F32 ||
                    got == CONV2D_ONEDNN);
        set |= got == CONV2D_PRODUCT ? (unsigned)d : 0;
    }
    return set;
}

/* In blocks of 16, which of the same gradients are products of pairs. */
static void pairs_are_for_gradients_of_pointwise_kernels_in_blocks(void **state)
{
    const choice_case fits = {"1x1", 16, 64, 256, 56, 1, 2, 0, 1, {ONEDNN}, {ONEDNN}};
    choice_case c = fits;

    LS_UNUSED(state);
    for (conv2d_direction d = CONV2D_FORWARD; d <= CONV2D_BACKWARD_WEIGHTS; d++) {
        const conv2d_kernel wanted = d == CONV2D_FORWARD ? CONV2D_ONEDNN : CONV2D_PAIRS;

        assert_int_equal(choose(ISA_AVX512_BF16, ALL, LS_BF16, d, &c), wanted);
        assert_int_equal(choose(ISA_AVX512_BF16, ALL & ~(1U << CONV2D_PAIRS), LS_BF16, d, &c),
                         CONV2D_ONEDNN);
        assert_int_not_equal(choose(ISA_AVX512_BF16, ALL | CONV2D_CHANNELS_LAST, LS_BF16, d, &c),
                             CONV2D_PAIRS);
        assert_int_equal(choose(ISA_AVX512, ALL, LS_BF16, d, &c), CONV2D_ONEDNN);
        assert_int_equal(choose(ISA_AVX512_BF16, ALL, LS_F16, d, &c), CONV2D_ONEDNN);
    }
    c.in = 72;
    assert_int_equal(choose(ISA_AVX512_BF16, ALL, LS_BF16, CONV2D_BACKWARD_DATA, &c), ONEDNN);
    c = fits;
    c.groups = 2;
    assert_int_equal(choose(ISA_AVX512_BF16, ALL, LS_BF16, CONV2D_BACKWARD_DATA, &c), ONEDNN);
    c = fits;
    c.padding = 1;
    assert_int_equal(choose(ISA_AVX512_BF16, ALL, LS_BF16, CONV2D_BACKWARD_DATA, &c), ONEDNN);
}

static void products_are_for_gradients_in_channels_last(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(product_cases); i++) {
        const choice_case *c = &product_cases[i].c;
        const unsigned products = product_cases[i].products;

        if (products_of(ISA_AMX, ALL, LS_BF16, c) != products)
            fail_msg("%s: other products than %u", c->name, products);
        assert_int_equal(products_of(ISA_AVX512_BF16, ALL | CONV2D_CHANNELS_LAST, LS_BF16, c),
                         products);
        assert_int_equal(products_of(ISA_AVX512_BF16, ALL, LS_BF16, c), 0);
        assert_int_equal(products_of(ISA_AMX, ALL | CONV2D_BLOCKED, LS_BF16, c), 0);
        assert_int_equal(products_of(ISA_AMX, ALL & ~(1U << CONV2D_PRODUCT), LS_BF16, c), 0);
        assert_int_equal(products_of(ISA_AMX, ALL | CONV2D_CHANNELS_LAST, LS_F32, c), 0);
        assert_int_equal(products_of(ISA_AMX, ALL | CONV2D_CHANNELS_LAST, LS_F16, c), 0);
    }
}

static void sets_are_read_from_names(void **state)
{
    static const char unknown[] = "few,winogard,rows";
    conv2d_set set = 0;
    const char *bad = NULL;

    LS_UNUSED(state);
    assert_true(conv2d_set_parse("few,rows,winograd,product,pairs", &set, &bad));
    assert_int_equal(set, ALL);
    assert_true(conv2d_set_parse("onednn", &set, &bad));
    assert_int_equal(set, 1U << CONV2D_ONEDNN);
    assert_true(conv2d_set_parse("winograd", &set, &bad));
    assert_int_equal(set, 1U << CONV2D_ONEDNN | 1U << CONV2D_WINOGRAD);
    assert_false(conv2d_set_parse(unknown, &set, &bad));
    assert_ptr_equal(bad, unknown + 4);
    assert_false(conv2d_set_parse("few,", &set, &bad));
    assert_false(conv2d_set_parse("fe", &set, &bad));
    assert_false(conv2d_set_parse("fewer", &set, &bad));
}

static void names_of_instruction_sets_have_levels(void **state)
{
    static const struct {
        const char *name;
        isa_level level;
    } names[] = {{"generic", ISA_BASELINE},
                 {"sse41", ISA_BASELINE},
                 {"avx", ISA_BASELINE},
                 {"avx2", ISA_AVX2},
                 {"avx2_vnni", ISA_AVX2},
                 {"avx512_core", ISA_AVX512},
                 {"avx512_core_vnni", ISA_AVX512},
                 {"avx512", ISA_AVX512},
                 {"avx512_core_bf16", ISA_AVX512_BF16},
                 {"avx512_core_fp16", ISA_AVX512_BF16},
                 {"avx512_core_amx", ISA_AMX},
                 {"avx512_core_amx_fp16", ISA_AMX}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        assert_int_equal(isa_level_of(names[i].name), names[i].level);
}

static void each_processor_gets_its_layout(void **state)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};

    LS_UNUSED(state);
    for (isa_level isa = ISA_BASELINE; isa <= ISA_AMX; isa++) {
        for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
            const bool is_last = isa == ISA_AMX && types[i] == LS_BF16;

            assert_int_equal(conv2d_channels_last(isa, ALL, types[i]), is_last);
            assert_false(conv2d_channels_last(isa, ALL | CONV2D_BLOCKED, types[i]));
            assert_true(conv2d_channels_last(isa, CONV2D_CHANNELS_LAST, types[i]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_processor_gets_its_kernels),
        cmocka_unit_test(long_lines_are_for_winograd),
        cmocka_unit_test(dilated_convolutions_are_not_for_winograd),
        cmocka_unit_test(a_kernel_that_is_not_allowed_is_not_chosen),
        cmocka_unit_test(products_are_for_gradients_in_channels_last),
        cmocka_unit_test(pairs_are_for_gradients_of_pointwise_kernels_in_blocks),
        cmocka_unit_test(sets_are_read_from_names),
        cmocka_unit_test(names_of_instruction_sets_have_levels),
        cmocka_unit_test(each_processor_gets_its_layout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
