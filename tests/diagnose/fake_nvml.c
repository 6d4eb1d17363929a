/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_nvml.c - an NVIDIA management library: FAKE_NVML is the number of GPUs, or a fault. Loaded
 * by test_gpu_probe.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

typedef struct pci {
    char bus_legacy[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device;
    unsigned pci_subsystem;
    char bus_id[32];
} pci;

SHOWN int nvmlInit_v2(void);
SHOWN const char *nvmlErrorString(int code);
SHOWN int nvmlDeviceGetCount_v2(unsigned *n);
SHOWN int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out);
SHOWN int nvmlDeviceGetPciInfo_v3(void *device, pci *out);
SHOWN int nvmlDeviceGetUUID(void *device, char *buf, unsigned n);
SHOWN int nvmlDeviceGetName(void *device, char *buf, unsigned n);

static const char *mode(void)
{
    const char *text = getenv("FAKE_NVML");

    return text != NULL ? text : "0";
}

int nvmlInit_v2(void)
{
    printf("a library may print\n");
    if (strcmp(mode(), "hangs") == 0)
        for (;;)
            (void)pause();
    if (strcmp(mode(), "crashes") == 0)
        abort();
    return strcmp(mode(), "fails") == 0 ? 9 : 0;
}

const char *nvmlErrorString(int code)
{
    return code == 15 ? "GPU is lost" : "Driver Not Loaded";
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = (unsigned)strtoul(mode(), NULL, 10);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out)
{
    static char devices[256];

    *out = &devices[i % 256];
    return i == 1 ? 15 : 0;
}

int nvmlDeviceGetPciInfo_v3(void *device, pci *out)
{
    (void)device;
    memset(out, 'x', sizeof(*out)); /* the library need not terminate its texts */
    memcpy(out->bus_id, "00000000:80:00.0", 17);
    return 0;
}

int nvmlDeviceGetName(void *device, char *buf, unsigned n)
{
    (void)device;
    (void)snprintf(buf, n, "NVIDIA \033H200");
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *buf, unsigned n)
{
    (void)device;
    memset(buf, 'y', n);
    memcpy(buf, "GPU-8932f937", 13);
    return 0;
}
