/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_ops.h - the arithmetic instructions of PTX as C functions of the bits of registers, for the
 * kernels that translate.py writes. NVIDIA, "PTX ISA", chapter 9. Signed overflow wraps (-fwrapv).
 * Approximations (ex2, rcp) are those of the C library: their last bits differ from a card's.
 */
#ifndef TESTS_DEVICES_PTX_PTX_OPS_H
#define TESTS_DEVICES_PTX_PTX_OPS_H

#include "devices/ptx/ptx.h"

#include "base/compute/half.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

#define FN static inline

FN float float_of(uint32_t bits)
{
    float v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

FN uint32_t bits_of_f32(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

FN double double_of(uint64_t bits)
{
    double v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

FN uint64_t bits_of_f64(double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

/* An instruction a line. */
/* clang-format off */

/* --- integers: TYPE of PTX, its C type, the unsigned one, bits --- */

#define FOR_INTEGERS(M)                                                                            \
    M(u16, uint16_t, uint16_t, 16)                                                                 \
    M(s16, int16_t, uint16_t, 16)                                                                  \
    M(b16, uint16_t, uint16_t, 16)                                                                 \
    M(u32, uint32_t, uint32_t, 32)                                                                 \
    M(s32, int32_t, uint32_t, 32)                                                                  \
    M(b32, uint32_t, uint32_t, 32)                                                                 \
    M(u64, uint64_t, uint64_t, 64)                                                                 \
    M(s64, int64_t, uint64_t, 64)                                                                  \
    M(b64, uint64_t, uint64_t, 64)

/* A division by 0 gives what a card gives: all bits, and the dividend. */
#define INTEGER(TYPE, C, U, BITS)                                                                  \
    FN U mov_##TYPE(U a) { return a; }                                                             \
    FN U add_##TYPE(U a, U b) { return (U)(a + b); }                                               \
    FN U sub_##TYPE(U a, U b) { return (U)(a - b); }                                               \
    FN U mul_lo_##TYPE(U a, U b) { return (U)((uint64_t)a * b); }                                  \
    FN U mad_lo_##TYPE(U a, U b, U c) { return (U)((uint64_t)a * b + c); }                         \
    FN U div_##TYPE(C a, C b) { return b == 0 ? (U)-1 : (U)(a / b); }                              \
    FN U rem_##TYPE(C a, C b) { return b == 0 ? (U)a : (U)(a % b); }                               \
    FN U min_##TYPE(C a, C b) { return (U)(a < b ? a : b); }                                       \
    FN U max_##TYPE(C a, C b) { return (U)(a > b ? a : b); }                                       \
    FN U neg_##TYPE(U a) { return (U)(0 - a); }                                                    \
    FN U and_##TYPE(U a, U b) { return a & b; }                                                    \
    FN U or_##TYPE(U a, U b) { return a | b; }                                                     \
    FN U xor_##TYPE(U a, U b) { return a ^ b; }                                                    \
    FN U not_##TYPE(U a) { return (U)~a; }                                                         \
    FN U shl_##TYPE(U a, uint32_t n) { return n >= BITS ? 0 : (U)((uint64_t)a << n); }             \
    FN U shr_##TYPE(C a, uint32_t n) { return n >= BITS ? (U)(a < 0 ? -1 : 0) : (U)(a >> n); }     \
    FN U selp_##TYPE(U a, U b, bool p) { return p ? a : b; }                                       \
    FN bool setp_eq_##TYPE(C a, C b) { return a == b; }                                            \
    FN bool setp_ne_##TYPE(C a, C b) { return a != b; }                                            \
    FN bool setp_lt_##TYPE(C a, C b) { return a < b; }                                             \
    FN bool setp_le_##TYPE(C a, C b) { return a <= b; }                                            \
    FN bool setp_gt_##TYPE(C a, C b) { return a > b; }                                             \
    FN bool setp_ge_##TYPE(C a, C b) { return a >= b; }

/* Of b bits at `at`, from a. */
#define BIT_FIELD(BITS)                                                                            \
    FN uint##BITS##_t bfi_b##BITS(uint##BITS##_t a, uint##BITS##_t b, uint32_t at, uint32_t n)     \
    {                                                                                              \
        const uint##BITS##_t ones = n >= BITS ? ~(uint##BITS##_t)0 : ((uint##BITS##_t)1 << n) - 1; \
        const uint##BITS##_t mask = at >= BITS ? 0 : (uint##BITS##_t)(ones << at);                 \
                                                                                                   \
        return (b & ~mask) | (at >= BITS ? 0 : (a << at) & mask);                                  \
    }

FOR_INTEGERS(INTEGER)
BIT_FIELD(32)
BIT_FIELD(64)

/* clang-format on */

FN uint32_t mul_wide_u16(uint16_t a, uint16_t b)
{
    return (uint32_t)a * b;
}

FN uint64_t mul_wide_u32(uint32_t a, uint32_t b)
{
    return (uint64_t)a * b;
}

FN uint64_t mul_wide_s32(int32_t a, int32_t b)
{
    return (uint64_t)((int64_t)a * b);
}

FN uint64_t mad_wide_u32(uint32_t a, uint32_t b, uint64_t c)
{
    return (uint64_t)a * b + c;
}

FN uint32_t mul_hi_u32(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

FN uint64_t mul_hi_u64(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

FN uint32_t clz_b64(uint64_t a)
{
    return a == 0 ? 64 : (uint32_t)__builtin_clzll(a);
}

/* Of the eight bytes of b and a, those that the digits of `choice` name; 8 more: its sign. */
FN uint32_t prmt_b32(uint32_t a, uint32_t b, uint32_t choice)
{
    const uint64_t both = a | (uint64_t)b << 32;
    uint32_t v = 0;

    for (int i = 0; i < 4; i++) {
        const uint32_t digit = choice >> 4 * i & 15;
        const uint8_t byte = (uint8_t)(both >> 8 * (digit & 7));

        v |= (uint32_t)((digit & 8) == 0 ? byte : byte & 0x80 ? 0xFF : 0) << 8 * i;
    }
    return v;
}

/* --- sums of 32 bits with a carry --- */

FN uint32_t with_carry(uint64_t sum, uint32_t *carry)
{
    *carry = (uint32_t)(sum >> 32) & 1;
    return (uint32_t)sum;
}

FN uint32_t add_cc_u32(uint32_t a, uint32_t b, uint32_t *carry)
{
    return with_carry((uint64_t)a + b, carry);
}

FN uint32_t addc_cc_u32(uint32_t a, uint32_t b, uint32_t *carry)
{
    return with_carry((uint64_t)a + b + *carry, carry);
}

FN uint32_t addc_u32(uint32_t a, uint32_t b, const uint32_t *carry)
{
    return a + b + *carry;
}

FN uint32_t sub_cc_u32(uint32_t a, uint32_t b, uint32_t *carry)
{
    return with_carry((uint64_t)a - b, carry);
}

FN uint32_t subc_cc_u32(uint32_t a, uint32_t b, uint32_t *carry)
{
    return with_carry((uint64_t)a - b - *carry, carry);
}

FN uint32_t subc_u32(uint32_t a, uint32_t b, const uint32_t *carry)
{
    return a - b - *carry;
}

FN uint32_t mad_lo_cc_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t *carry)
{
    return add_cc_u32(a * b, c, carry);
}

FN uint32_t madc_lo_cc_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t *carry)
{
    return addc_cc_u32(a * b, c, carry);
}

FN uint32_t madc_hi_cc_u32(uint32_t a, uint32_t b, uint32_t c, uint32_t *carry)
{
    return addc_cc_u32(mul_hi_u32(a, b), c, carry);
}

FN uint32_t madc_hi_u32(uint32_t a, uint32_t b, uint32_t c, const uint32_t *carry)
{
    return addc_u32(mul_hi_u32(a, b), c, carry);
}

/* --- predicates --- */

FN bool mov_pred(uint64_t a)
{
    return a != 0;
}

FN bool and_pred(bool a, bool b)
{
    return a && b;
}

FN bool or_pred(bool a, bool b)
{
    return a || b;
}

FN bool xor_pred(bool a, bool b)
{
    return a != b;
}

FN bool not_pred(bool a)
{
    return !a;
}

/* An instruction a line. */
/* clang-format off */

/* --- floating point: TYPE of PTX, its bits, value of bits, suffix of the C library --- */

#define FLOATING(TYPE, U, VALUE, F)                                                                \
    FN U mov_##TYPE(U a) { return a; }                                                             \
    FN U selp_##TYPE(U a, U b, bool p) { return p ? a : b; }                                       \
    FN U add_##TYPE(U a, U b) { return bits_of_##TYPE(VALUE(a) + VALUE(b)); }                      \
    FN U add_rn_##TYPE(U a, U b) { return add_##TYPE(a, b); }                                      \
    FN U sub_##TYPE(U a, U b) { return bits_of_##TYPE(VALUE(a) - VALUE(b)); }                      \
    FN U sub_rn_##TYPE(U a, U b) { return sub_##TYPE(a, b); }                                      \
    FN U mul_##TYPE(U a, U b) { return bits_of_##TYPE(VALUE(a) * VALUE(b)); }                      \
    FN U mul_rn_##TYPE(U a, U b) { return mul_##TYPE(a, b); }                                      \
    FN U div_rn_##TYPE(U a, U b) { return bits_of_##TYPE(VALUE(a) / VALUE(b)); }                   \
    FN U rcp_rn_##TYPE(U a) { return bits_of_##TYPE(1 / VALUE(a)); }                               \
    FN U sqrt_rn_##TYPE(U a) { return bits_of_##TYPE(sqrt##F(VALUE(a))); }                         \
    FN U fma_rn_##TYPE(U a, U b, U c)                                                              \
    {                                                                                              \
        return bits_of_##TYPE(fma##F(VALUE(a), VALUE(b), VALUE(c)));                               \
    }                                                                                              \
    FN U min_##TYPE(U a, U b) { return bits_of_##TYPE(fmin##F(VALUE(a), VALUE(b))); }              \
    FN U max_##TYPE(U a, U b) { return bits_of_##TYPE(fmax##F(VALUE(a), VALUE(b))); }              \
    FN U neg_##TYPE(U a) { return bits_of_##TYPE(-VALUE(a)); }                                     \
    FN U abs_##TYPE(U a) { return bits_of_##TYPE(fabs##F(VALUE(a))); }                             \
    FN U copysign_##TYPE(U a, U b) { return bits_of_##TYPE(copysign##F(VALUE(b), VALUE(a))); }     \
    FN bool setp_nan_##TYPE(U a, U b) { return isnan(VALUE(a)) || isnan(VALUE(b)); }               \
    FN bool setp_eq_##TYPE(U a, U b) { return VALUE(a) == VALUE(b); }                              \
    FN bool setp_ne_##TYPE(U a, U b) { return VALUE(a) < VALUE(b) || VALUE(a) > VALUE(b); }        \
    FN bool setp_lt_##TYPE(U a, U b) { return VALUE(a) < VALUE(b); }                               \
    FN bool setp_le_##TYPE(U a, U b) { return VALUE(a) <= VALUE(b); }                              \
    FN bool setp_gt_##TYPE(U a, U b) { return VALUE(a) > VALUE(b); }                               \
    FN bool setp_ge_##TYPE(U a, U b) { return VALUE(a) >= VALUE(b); }                              \
    FN bool setp_neu_##TYPE(U a, U b) { return VALUE(a) != VALUE(b); }                             \
    FN bool setp_ltu_##TYPE(U a, U b) { return !(VALUE(a) >= VALUE(b)); }                          \
    FN bool setp_leu_##TYPE(U a, U b) { return !(VALUE(a) > VALUE(b)); }                           \
    FN bool setp_gtu_##TYPE(U a, U b) { return !(VALUE(a) <= VALUE(b)); }                          \
    FN bool setp_geu_##TYPE(U a, U b) { return !(VALUE(a) < VALUE(b)); }

FLOATING(f32, uint32_t, float_of, f)
FLOATING(f64, uint64_t, double_of, )

/* clang-format on */

FN uint32_t ex2_approx_f32(uint32_t a)
{
    return bits_of_f32(exp2f(float_of(a)));
}

FN uint32_t ex2_approx_ftz_f32(uint32_t a)
{
    return ex2_approx_f32(a);
}

FN uint32_t rcp_approx_ftz_f32(uint32_t a)
{
    return rcp_rn_f32(a);
}

FN uint64_t rcp_approx_ftz_f64(uint64_t a)
{
    return rcp_rn_f64(a) & 0xFFFFFFFF00000000;
}

FN uint32_t fma_rm_f32(uint32_t a, uint32_t b, uint32_t c)
{
    const double exact = (double)float_of(a) * (double)float_of(b); // 48 bits
    const double sum = exact + (double)float_of(c);
    const double rest = (exact - (sum - (double)float_of(c))) +
                        ((double)float_of(c) - (sum - (sum - (double)float_of(c))));
    float v = (float)sum;

    // Down: the nearest float may lie above the sum, or be equal to a sum that was rounded up.
    if ((double)v > sum || ((double)v == sum && rest < 0))
        v = nextafterf(v, -INFINITY);
    return bits_of_f32(v);
}

FN uint32_t add_rz_f32(uint32_t a, uint32_t b)
{
    const double sum = (double)float_of(a) + (double)float_of(b);
    const float v = (float)sum;

    return bits_of_f32(fabs((double)v) > fabs(sum) ? nextafterf(v, 0) : v);
}

/* --- conversions --- */

FN double within(double v, double least, double most)
{
    return isnan(v) ? 0 : v < least ? least : v > most ? most : v;
}

/* An instruction a line. */
/* clang-format off */
#define CONVERT_INTEGERS(TO, U, FROM, C)                                                           \
    FN U cvt_##TO##_##FROM(C a) { return (U)a; }
#define CONVERT_FROM(FROM, C)                                                                      \
    CONVERT_INTEGERS(u16, uint16_t, FROM, C)                                                       \
    CONVERT_INTEGERS(s16, uint16_t, FROM, C)                                                       \
    CONVERT_INTEGERS(u32, uint32_t, FROM, C)                                                       \
    CONVERT_INTEGERS(s32, uint32_t, FROM, C)                                                       \
    CONVERT_INTEGERS(u64, uint64_t, FROM, C)                                                       \
    CONVERT_INTEGERS(s64, uint64_t, FROM, C)                                                       \
    FN uint32_t cvt_rn_f32_##FROM(C a) { return bits_of_f32((float)a); }                           \
    FN uint64_t cvt_rn_f64_##FROM(C a) { return bits_of_f64((double)a); }
#define ROUNDED(MODE, FUNCTION)                                                                    \
    FN uint32_t cvt_##MODE##_f32_f32(uint32_t a) { return bits_of_f32(FUNCTION##f(float_of(a))); } \
    FN uint64_t cvt_##MODE##_f64_f64(uint64_t a) { return bits_of_f64(FUNCTION(double_of(a))); }   \
    FN uint32_t cvt_##MODE##_s32_f64(uint64_t a)                                                   \
    {                                                                                              \
        return (uint32_t)(int32_t)within(FUNCTION(double_of(a)), -0x1p31, 0x1p31 - 1);             \
    }                                                                                              \
    FN uint32_t cvt_##MODE##_s32_f32(uint32_t a)                                                   \
    {                                                                                              \
        return cvt_##MODE##_s32_f64(bits_of_f64((double)float_of(a)));                             \
    }

CONVERT_FROM(u8, uint8_t)
CONVERT_FROM(s8, int8_t)
CONVERT_FROM(u16, uint16_t)
CONVERT_FROM(s16, int16_t)
CONVERT_FROM(u32, uint32_t)
CONVERT_FROM(s32, int32_t)
CONVERT_FROM(u64, uint64_t)
CONVERT_FROM(s64, int64_t)
ROUNDED(rni, rint)
ROUNDED(rmi, floor)
ROUNDED(rzi, trunc)

/* clang-format on */

FN uint64_t cvt_f64_f32(uint32_t a)
{
    return bits_of_f64((double)float_of(a));
}

FN uint32_t cvt_rn_f32_f64(uint64_t a)
{
    return bits_of_f32((float)double_of(a));
}

FN uint32_t cvt_sat_f32_f32(uint32_t a)
{
    return bits_of_f32((float)within((double)float_of(a), 0, 1));
}

FN uint32_t cvt_f32_f16(uint16_t a)
{
    return bits_of_f32(ls_f16_to_f32(a));
}

FN uint16_t cvt_rn_f16_f32(uint32_t a)
{
    return ls_f32_to_f16(float_of(a));
}

FN uint32_t cvt_rn_f16x2_f32(uint32_t upper, uint32_t lower)
{
    return (uint32_t)cvt_rn_f16_f32(upper) << 16 | cvt_rn_f16_f32(lower);
}

/* NaN has one form on a card. */
FN uint16_t cvt_rn_bf16_f32(uint32_t a)
{
    return isnan(float_of(a)) ? 0x7FFF : ls_f32_to_bf16(float_of(a));
}

FN uint32_t cvt_rn_bf16x2_f32(uint32_t upper, uint32_t lower)
{
    return (uint32_t)cvt_rn_bf16_f32(upper) << 16 | cvt_rn_bf16_f32(lower);
}

FN uint64_t cvta_to_shared_u64(uint64_t a)
{
    return a;
}

FN uint64_t cvta_shared_u64(uint64_t a)
{
    return a;
}

FN uint64_t cvta_to_global_u64(uint64_t a)
{
    return a;
}

#endif
