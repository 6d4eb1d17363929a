/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_testing.c - see cuda_testing.h. */
#include "tensor/cuda/cuda_testing.h"

#include <dlfcn.h>

const char *cudahost_path(void)
{
    Dl_info info;

    assert_int_not_equal(dladdr(cudahost_symbol(GPU_HOST_STATE), &info), 0);
    return info.dli_fname;
}

ls_device *open_cudahost(const char *name)
{
    ls_device *device = NULL;

    assert_status(
        LS_OK, ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options), .name = name},
                              &device));
    return device;
}
