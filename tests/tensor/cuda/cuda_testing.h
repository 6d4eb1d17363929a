/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_testing.h - what the tests of the CUDA device share. */
#ifndef TESTS_TENSOR_CUDA_CUDA_TESTING_H
#define TESTS_TENSOR_CUDA_CUDA_TESTING_H

#include "tensor/testing.h"

#include "tensor/cuda/gpu_host.h"

/* The state of liblockstep_cudahost.so as it is at first; loads the module. */
gpu_host *reset_gpu_host(void);

/* The file of the module. */
const char *cudahost_path(void);

/* "cudahost", "cudahost:1", ...; fails the test when it cannot. */
ls_device *open_cudahost(const char *name);

#endif
