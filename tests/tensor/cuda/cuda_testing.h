/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_testing.h - what the tests of the CUDA device share. */
#ifndef TESTS_TENSOR_CUDA_CUDA_TESTING_H
#define TESTS_TENSOR_CUDA_CUDA_TESTING_H

#include "tensor/testing.h"

#include "devices/cudahost.h"

/* The file of the module. */
const char *cudahost_path(void);

/* "cudahost", "cudahost:1", ...; fails the test when it cannot. */
ls_device *open_cudahost(const char *name);

#endif
