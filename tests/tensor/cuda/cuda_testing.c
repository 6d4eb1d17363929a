/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_testing.c - see cuda_testing.h. */
#include "tensor/cuda/cuda_testing.h"

#include "base/module.h"

#include <dlfcn.h>
#include <string.h>

/* The address of gpu_host_state() in the module, which it loads. */
static void *find_state(void)
{
    void *module = NULL;
    void *symbol;

    assert_status(LS_OK, module_open("cudahost", &module));
    symbol = dlsym(module, GPU_HOST_STATE);
    assert_non_null(symbol);
    return symbol;
}

const char *cudahost_path(void)
{
    Dl_info info;

    assert_int_not_equal(dladdr(find_state(), &info), 0);
    return info.dli_fname;
}

gpu_host *reset_gpu_host(void)
{
    static gpu_host first;
    static gpu_host *state;

    if (state == NULL) {
        void *symbol = find_state();
        gpu_host_state_fn get;

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
