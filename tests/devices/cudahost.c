/* SPDX-License-Identifier: Apache-2.0 */
/* cudahost.c - see cudahost.h. */
#include "devices/cudahost.h"

#include "base/module.h"

#include <dlfcn.h>
#include <string.h>

static gpu_host at_first;

void *cudahost_symbol(const char *name)
{
    void *module = NULL;
    void *symbol;

    if (module_open("cudahost", &module) != LS_OK)
        return NULL;
    symbol = dlsym(module, name);
    if (symbol == NULL)
        (void)ls_fail(LS_EINTERNAL, "liblockstep_cudahost.so has no %s", name);
    return symbol;
}

gpu_host *cudahost(void)
{
    static gpu_host *state;

    if (state == NULL) {
        void *symbol = cudahost_symbol(GPU_HOST_STATE);
        gpu_host_state_fn get;

        if (symbol == NULL)
            return NULL;
        memcpy(&get, &symbol, sizeof(get)); // C has no conversion between these two
        state = get();
        at_first = *state;
    }
    return state;
}

gpu_host *cudahost_reset(void)
{
    gpu_host *state = cudahost();

    LS_ASSERT(state != NULL);
    *state = at_first;
    return state;
}

uint64_t cudahost_waits_of(const char *name)
{
    const gpu_host *state = cudahost();

    LS_ASSERT(state != NULL);
    for (size_t i = 0; i < state->n_waits; i++) {
        if (strcmp(state->waits[i].name, name) == 0)
            return state->waits[i].n;
    }
    return 0;
}
