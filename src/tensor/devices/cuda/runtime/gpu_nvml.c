/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_nvml.c - how busy a card is, from NVIDIA's management library. That is a part of the driver,
 * so it is loaded at the first call, and a machine without it only lacks this number. gpu_cuda.c's
 * part of gpu.h calls nothing of it.
 */
#include "tensor/devices/cuda/runtime/gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* The part of nvml.h that is needed; 0 is success. */
typedef struct nvml_utilization {
    unsigned gpu; /* percent of the last sample period in which a kernel ran */
    unsigned memory;
} nvml_utilization;

static struct {
    bool is_loaded;
    int (*init)(void);
    int (*find)(const char *bus_id, void **card);
    int (*utilization)(void *card, nvml_utilization *out);
} nvml;

/* Sets the function pointer at `function`. */
static bool find_symbol(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof(symbol)); // C has no conversion between these two
    return symbol != NULL;
}

/* The library stays loaded and started until the process ends. */
static void load(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    nvml.is_loaded = library != NULL && find_symbol(library, "nvmlInit_v2", &nvml.init) &&
                     find_symbol(library, "nvmlDeviceGetHandleByPciBusId_v2", &nvml.find) &&
                     find_symbol(library, "nvmlDeviceGetUtilizationRates", &nvml.utilization) &&
                     nvml.init() == 0;
}

int gpu_busy_percent(const char *bus_id)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    nvml_utilization now;
    void *card;

    (void)pthread_once(&once, load);
    if (!nvml.is_loaded || nvml.find(bus_id, &card) != 0 || nvml.utilization(card, &now) != 0)
        return -1;
    return (int)now.gpu;
}
