/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_avx2.c - the reduction loops for AVX2 and F16C. kernels.c selects the table at run time.
 */
#define KERNELS_TABLE kernels_avx2
#define KERNELS_NAME  "avx2"
#include "comm/backends/native/reduce/kernels_body.h"
