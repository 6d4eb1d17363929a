/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_baseline.c - the reduction loops for any processor. kernels.c selects the table at run
 * time.
 */
#define KERNELS_TABLE kernels_baseline
#define KERNELS_NAME  "baseline"
#include "comm/backends/native/reduce/kernels_body.h"
