/* SPDX-License-Identifier: Apache-2.0 */
/* accel_testing.h - the accelerator of the CUDA device over host memory, with the functions of the
 * core that it needs, for tests that play kernel: they link its sources, not the module. */
#ifndef TESTS_TENSOR_CUDA_ACCEL_TESTING_H
#define TESTS_TENSOR_CUDA_ACCEL_TESTING_H

#include "tensor/devices/cuda/runtime/cuda_internal.h"
#include "devices/gpu_host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

extern gpu_host *gpu;

/* Before all tests, and for each. */
void accel_testing_begin(void);
int accel_testing_reset(void **state);

#define assert_ok(call) assert_string_equal((call) == LS_OK ? "" : ls_last_error(), "")

/* `text` is a part of the error's. */
void assert_failed(ls_status want, ls_status got, const char *text);

cuda_accel *accel_testing_open(int index, bool graphs);

/* Closes it, and checks that nothing is left. */
void close_accel(cuda_accel *a);

#endif
