/* SPDX-License-Identifier: Apache-2.0 */
/*
 * half.h - converts fp16 and bf16 to and from float32: round to nearest even, subnormals are
 * preserved, NaN stays a quiet NaN, overflow gives infinity. Portable; vectorised versions must
 * give the same bits.
 */
#ifndef LS_BASE_COMPUTE_HALF_H
#define LS_BASE_COMPUTE_HALF_H

#include <stdint.h>

float ls_f16_to_f32(uint16_t h);
uint16_t ls_f32_to_f16(float f);
float ls_bf16_to_f32(uint16_t h);
uint16_t ls_f32_to_bf16(float f);

#endif
