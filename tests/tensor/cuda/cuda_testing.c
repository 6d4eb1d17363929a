/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_testing.c - see cuda_testing.h. */
#include "tensor/cuda/cuda_testing.h"

#include "base/module.h"

#include <dlfcn.h>
#include <string.h>

gpu_host *reset_gpu_host(void)
{
    static gpu_host first;
    static gpu_host *state;

    if (state == NULL) {
        gpu_host_state_fn get;
        void *module = NULL;
        void *symbol;

        assert_status(LS_OK, module_open("cudahost", &module));
        symbol = dlsym(module, GPU_HOST_STATE);
        assert_non_null(symbol);
        memcpy(&get, &symbol, sizeof(get)); // C has no conversion between these two
        state = get();
        first = *state;
    }
    *state = first;
    return state;
}

ls_device *open_cudahost(const char *name)
{
    ls_device *device = NULL;

    assert_status(
        LS_OK, ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options), .name = name},
                              &device));
    return device;
}
