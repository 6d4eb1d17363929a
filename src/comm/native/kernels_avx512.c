/* SPDX-License-Identifier: Apache-2.0 */
#define KERNELS_TABLE kernels_avx512
#define KERNELS_NAME  "avx512"
#include "comm/native/kernels_body.h"
