/* SPDX-License-Identifier: Apache-2.0 */
#define KERNELS_TABLE kernels_avx2
#define KERNELS_NAME  "avx2"
#include "comm/native/kernels_body.h"
