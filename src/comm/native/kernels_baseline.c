/* SPDX-License-Identifier: Apache-2.0 */
#define KERNELS_TABLE kernels_baseline
#define KERNELS_NAME  "baseline"
#include "comm/native/kernels_body.h"
