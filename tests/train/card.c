/* SPDX-License-Identifier: Apache-2.0 */
/* card.c - see card.h. The faults are those of sim.h and gpu_host.h; small_run.c and test_card.c
 * call it in the process of the rank. */
#include "train/card.h"

#include "base/module.h"
#include "base/text.h"
#include "tensor/cuda/gpu_host.h"
#include "tensor/sim/sim.h"

#include <dlfcn.h>
#include <string.h>

/* The address of a symbol of the device's module. */
static ls_status find_symbol(const char *device, const char *name, void **out)
{
    void *module = NULL;

    LS_TRY(module_open(device, &module));
    *out = dlsym(module, name);
    return *out != NULL ? LS_OK : ls_fail(LS_EINTERNAL, "device %s has no %s", device, name);
}

static ls_status host_state(gpu_host **out)
{
    gpu_host_state_fn get;
    void *symbol = NULL;

    LS_TRY(find_symbol("cudahost", GPU_HOST_STATE, &symbol));
    memcpy(&get, &symbol, sizeof(get)); // C has no conversion between these two
    *out = get();
    return LS_OK;
}

ls_status card_lose(const char *device)
{
    const sim_control *control;
    gpu_host *host = NULL;
    void *table = NULL;

    if (text_equal(device, "sim")) {
        LS_TRY(find_symbol("sim", SIM_CONTROL, &table));
        control = table;
        control->lose_after(3);
        return LS_OK;
    }
    LS_TRY(host_state(&host));
    host->lose_at = 3;
    return LS_OK;
}

ls_status card_set_memory(size_t bytes)
{
    gpu_host *host = NULL;

    LS_TRY(host_state(&host));
    host->total_bytes = bytes;
    return LS_OK;
}

ls_status card_delay(const char *device, uint64_t seed, uint64_t most_us)
{
    const sim_control *control;
    gpu_host *host = NULL;
    void *table = NULL;

    if (text_equal(device, "sim")) {
        LS_TRY(find_symbol("sim", SIM_CONTROL, &table));
        control = table;
        control->pace(seed, (int64_t)most_us);
        return LS_OK;
    }
    LS_TRY(host_state(&host));
    host->seed = seed;
    host->delay_us = most_us;
    return LS_OK;
}

ls_status card_count_graphs(uint64_t *n)
{
    gpu_host *host = NULL;

    LS_TRY(host_state(&host));
    *n = host->n_graph_launches;
    return LS_OK;
}
