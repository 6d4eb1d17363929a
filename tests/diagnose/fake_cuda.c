/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.c - a CUDA driver library with faults: the device is CUDA_VISIBLE_DEVICES, whose part
 * behind the last "-" names the fault. Loaded by test_gpu_probe.c.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

SHOWN int cuInit(unsigned flags);
SHOWN int cuGetErrorString(int code, const char **out);
SHOWN int cuDeviceGet(int *out, int ordinal);
SHOWN int cuCtxCreate_v2(void **out, unsigned flags, int device);
SHOWN int cuCtxDestroy_v2(void *context);
SHOWN int cuMemAlloc_v2(uint64_t *address, size_t bytes);
SHOWN int cuMemFree_v2(uint64_t address);
SHOWN int cuMemsetD32_v2(uint64_t address, unsigned value, size_t n);
SHOWN int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);

static unsigned *memory;
static char context;

static int is(const char *how)
{
    const char *gpu = getenv("CUDA_VISIBLE_DEVICES");
    const char *dash = gpu != NULL ? strrchr(gpu, '-') : NULL;

    return dash != NULL && strcmp(dash + 1, how) == 0;
}

int cuInit(unsigned flags)
{
    if (is("hangs"))
        for (;;)
            (void)pause();
    if (is("crashes"))
        abort();
    return flags != 0 || is("lost") ? 999 : 0;
}

int cuGetErrorString(int code, const char **out)
{
    *out = code == 2 ? "out of memory" : "unknown error";
    return 0;
}

int cuDeviceGet(int *out, int ordinal)
{
    *out = 40;
    return ordinal == 0 ? 0 : 101;
}

int cuCtxCreate_v2(void **out, unsigned flags, int device)
{
    *out = &context;
    return flags == 0 && device == 40 ? 0 : 101;
}

int cuCtxDestroy_v2(void *which)
{
    return which == &context && memory == NULL ? 0 : 201;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    if (is("full"))
        return 2;
    memory = malloc(bytes);
    *address = (uint64_t)(uintptr_t)memory;
    return 0;
}

int cuMemFree_v2(uint64_t address)
{
    const int code = address == (uint64_t)(uintptr_t)memory ? 0 : 1;

    free(memory);
    memory = NULL;
    return code;
}

int cuMemsetD32_v2(uint64_t address, unsigned value, size_t n)
{
    unsigned *at = (unsigned *)(uintptr_t)address;

    for (size_t i = 0; i < n; i++)
        at[i] = value;
    if (is("worn"))
        at[n - 1] ^= 1;
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}
