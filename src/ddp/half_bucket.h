/* SPDX-License-Identifier: Apache-2.0 */
/* half_bucket.h - converts float32 elements to and from the 16-bit type of a communication hook. */
#ifndef LS_DDP_HALF_BUCKET_H
#define LS_DDP_HALF_BUCKET_H

#include "base/status.h"

#include <stdbool.h>

/* dst = src / divisor, rounded to `type` (LS_F16 or LS_BF16) as base/compute/half.h does. */
void half_pack(const float *src, uint16_t *dst, size_t n, float divisor, ls_dtype type);

/* The same numbers in float32. */
void half_unpack(const uint16_t *src, float *dst, size_t n, ls_dtype type);

#endif
