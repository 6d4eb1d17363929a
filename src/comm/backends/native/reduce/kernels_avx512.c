/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_avx512.c - the reduction loops for AVX-512 F, BW, DQ and VL. kernels.c selects the table
 * at run time.
 */
#define KERNELS_TABLE kernels_avx512
#define KERNELS_NAME  "avx512"
#include "comm/backends/native/reduce/kernels_body.h"
