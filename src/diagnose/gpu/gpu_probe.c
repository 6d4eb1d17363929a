/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_probe.c - lists GPUs with seven functions of NVIDIA's management library (NVML), found by
 * name: neither its header nor a CUDA context is needed. Called by check_sources.c.
 */
#include "diagnose/gpu/gpu_probe.h"

#include "base/text.h"
#include "diagnose/child.h"

#include <dlfcn.h>
#include <string.h>

typedef struct nvml_device nvml_device; /* opaque */

/* nvmlPciInfo_t as nvmlDeviceGetPciInfo_v3() fills it in. */
typedef struct nvml_pci {
    char bus_legacy[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device;
    unsigned pci_subsystem;
    char bus_id[32];
} nvml_pci;

typedef struct nvml {
    int (*init)(void);
    const char *(*error_text)(int code); /* may be NULL */
    int (*count)(unsigned *n);
    int (*handle)(unsigned i, nvml_device **out);
    int (*pci)(nvml_device *device, nvml_pci *out);
    int (*name)(nvml_device *device, char *buf, unsigned n);
    int (*uuid)(nvml_device *device, char *buf, unsigned n); /* may be NULL */
} nvml;

ls_status gpu_load(const char *path, const gpu_symbol *symbols, size_t n)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        return ls_fail(LS_ENOTFOUND, "%s cannot be loaded", path);
    for (size_t i = 0; i < n; i++) {
        void *function = dlsym(library, symbols[i].name);

        /* C has no cast from an object pointer to a function; POSIX permits copying it. */
        memcpy(symbols[i].function, &function, sizeof(function));
        if (function == NULL && !symbols[i].is_optional)
            return ls_fail(LS_ESYSTEM, "%s lacks functions: unsupported version", path);
    }
    return LS_OK;
}

static ls_status load(const char *path, nvml *api)
{
    const gpu_symbol symbols[] = {{"nvmlErrorString", &api->error_text, true},
                                  {"nvmlDeviceGetUUID", &api->uuid, true},
                                  {"nvmlInit_v2", &api->init, false},
                                  {"nvmlDeviceGetCount_v2", &api->count, false},
                                  {"nvmlDeviceGetHandleByIndex_v2", &api->handle, false},
                                  {"nvmlDeviceGetPciInfo_v3", &api->pci, false},
                                  {"nvmlDeviceGetName", &api->name, false}};

    return gpu_load(path, symbols, LS_COUNT_OF(symbols));
}

static const char *explain(const nvml *api, int code)
{
    const char *text = api->error_text != NULL ? api->error_text(code) : NULL;

    return text != NULL ? text : "no reason given";
}

static void read_gpu(const nvml *api, unsigned i, gpu_seen *out)
{
    nvml_device *device = NULL;
    nvml_pci pci;
    char name[96] = "";
    char uuid[96] = "";
    int code = api->handle(i, &device);

    memset(&pci, 0, sizeof(pci));
    if (code == 0)
        code = api->pci(device, &pci);
    if (code == 0) {
        pci.bus_id[sizeof(pci.bus_id) - 1] = 0;
        text_printable(out->bus, sizeof(out->bus), pci.bus_id);
        code = api->name(device, name, sizeof(name));
    }
    if (code == 0 && api->uuid != NULL && api->uuid(device, uuid, sizeof(uuid)) != 0)
        uuid[0] = 0;
    uuid[sizeof(uuid) - 1] = 0;
    text_printable(out->uuid, sizeof(out->uuid), uuid);
    name[sizeof(name) - 1] = 0;
    out->is_usable = code == 0;
    text_printable(out->name, sizeof(out->name), code == 0 ? name : explain(api, code));
}

static ls_status list_gpus(void *path, void *answer)
{
    gpu_list *list = answer;
    unsigned n = 0;
    int code;
    nvml api;

    LS_TRY(load(path, &api));
    code = api.init();
    if (code == 0)
        code = api.count(&n);
    if (code != 0)
        return ls_fail(LS_ESYSTEM, "NVIDIA's driver does not work: %s", explain(&api, code));
    for (unsigned i = 0; i < n && i < GPU_MOST; i++)
        read_gpu(&api, i, &list->gpus[list->n++]);
    return LS_OK;
}

ls_status gpu_probe(const char *library, int64_t limit_ms, gpu_list *out)
{
    char path[4096];
    ls_status st;

    text_format(path, sizeof(path), "%s", library);
    st = child_ask("listing the GPUs of NVIDIA's driver", limit_ms, list_gpus, path, out,
                   sizeof(*out));
    if (out->n < 0 || out->n > GPU_MOST)
        out->n = 0;
    return st;
}
