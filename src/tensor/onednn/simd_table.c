/* SPDX-License-Identifier: Apache-2.0 */
/* simd_table.c - the table of the inner loops of one instruction set. */
#include "tensor/onednn/simd_isa.h"

#define SIMD_QUOTE(isa) #isa
#define SIMD_TEXT(isa)  SIMD_QUOTE(isa)

const simd_table SIMD_NAME(simd_table) = {
    .isa = SIMD_TEXT(SIMD_ISA),
#if defined(__AVX512F__)
    .level = ISA_AVX512,
#elif defined(__AVX2__)
    .level = ISA_AVX2,
#endif
    .widen_bf16 = SIMD_NAME(widen_bf16),
    .narrow_bf16 = SIMD_NAME(narrow_bf16),
    .widen_f16 = SIMD_NAME(widen_f16),
    .narrow_f16 = SIMD_NAME(narrow_f16),
    .relu = SIMD_NAME(relu),
    .relu_backward = SIMD_NAME(relu_backward),
    .add = SIMD_NAME(add),
    .binary = SIMD_NAME(binary),
    .binary_slope = SIMD_NAME(binary_slope),
    .accumulate = SIMD_NAME(accumulate),
    .add_relu = SIMD_NAME(add_relu),
    .bn_moments = SIMD_NAME(bn_moments),
    .bn_apply = SIMD_NAME(bn_apply),
    .bn_sums = SIMD_NAME(bn_sums),
    .bn_dx = SIMD_NAME(bn_dx),
    .pool_max = SIMD_NAME(pool_max),
    .pool_max_backward = SIMD_NAME(pool_max_backward),
    .pool_mean = SIMD_NAME(pool_mean),
    .pool_mean_backward = SIMD_NAME(pool_mean_backward),
    .conv_few_forward = SIMD_NAME(conv_few_forward),
    .conv_few_backward = SIMD_NAME(conv_few_backward),
    .wino_image = SIMD_NAME(wino_image),
    .wino_gradient = SIMD_NAME(wino_gradient),
    .wino_results = SIMD_NAME(wino_results),
    .wino_weights = SIMD_NAME(wino_weights),
    .wino_taps = SIMD_NAME(wino_taps),
    .product = SIMD_NAME(product),
    .exp_below = SIMD_NAME(exp_below),
    .exp_sum = SIMD_NAME(exp_sum),
    .transpose_rows = SIMD_NAME(transpose_rows),
    .largest = SIMD_NAME(largest),
    .sum = SIMD_NAME(sum),
    .shift = SIMD_NAME(shift),
    .shift_scale = SIMD_NAME(shift_scale),
    .log_softmax_dx = SIMD_NAME(log_softmax_dx),
    .dropout = SIMD_NAME(dropout),
    .activate = SIMD_NAME(activate),
    .activate_backward = SIMD_NAME(activate_backward),
    .dot = SIMD_NAME(dot),
    .spread = SIMD_NAME(spread),
    .norm_apply = SIMD_NAME(norm_apply),
    .norm_slopes = SIMD_NAME(norm_slopes),
    .norm_dx = SIMD_NAME(norm_dx),
    .norm_sums = SIMD_NAME(norm_sums),
    .softmax_dx = SIMD_NAME(softmax_dx),
    .lstm = SIMD_NAME(lstm),
    .lstm_backward = SIMD_NAME(lstm_backward),
    .gru = SIMD_NAME(gru),
    .gru_backward = SIMD_NAME(gru_backward),
};
