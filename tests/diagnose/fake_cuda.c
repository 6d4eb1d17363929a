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
SHOWN int cuModuleLoadData(void **out, const void *ptx);
SHOWN int cuModuleGetFunction(void **out, void *module, const char *name);
SHOWN int cuLaunchKernel(void *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                         unsigned threads_x, unsigned threads_y, unsigned threads_z,
                         unsigned shared_bytes, void *stream, void **arguments, void **extra);
SHOWN int cuCtxSynchronize(void);
SHOWN int cuDeviceGetCount(int *out);
SHOWN int cuDevicePrimaryCtxRetain(void **out, int device);
SHOWN int cuCtxSetCurrent(void *which);
SHOWN int cuStreamCreate(void **out, unsigned flags);
SHOWN int cuStreamSynchronize(void *stream);

static unsigned *memory; /* the last allocation */
static char context;
static char module;

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
    return ordinal >= 0 && ordinal < 2 ? 0 : 101;
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

int cuModuleLoadData(void **out, const void *ptx)
{
    *out = &module;
    return strstr(ptx, ".entry add_one(") != NULL && !is("old") ? 0 : 209;
}

int cuModuleGetFunction(void **out, void *from, const char *name)
{
    *out = &module;
    return from == &module && strcmp(name, "add_one") == 0 ? 0 : 500;
}

int cuLaunchKernel(void *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                   unsigned threads_x, unsigned threads_y, unsigned threads_z,
                   unsigned shared_bytes, void *stream, void **arguments, void **extra)
{
    unsigned *words = (unsigned *)(uintptr_t) * (uint64_t *)arguments[0];
    const unsigned n = *(unsigned *)arguments[1];

    if (function != &module || blocks_x * threads_x < n || blocks_y * blocks_z != 1 ||
        threads_y * threads_z != 1 || shared_bytes != 0 || stream != NULL || extra != NULL)
        return 1;
    for (unsigned i = 0; i < n; i++)
        words[i] += !is("idle");
    return 0;
}

int cuCtxSynchronize(void)
{
    return is("faulty") ? 719 : 0;
}

int cuDeviceGetCount(int *out)
{
    *out = is("single") ? 1 : 2;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **out, int device)
{
    *out = &context;
    return device == 40 ? 0 : 101;
}

int cuCtxSetCurrent(void *which)
{
    return which == &context ? 0 : 201;
}

int cuStreamCreate(void **out, unsigned flags)
{
    *out = &module;
    return flags == 1 ? 0 : 1;
}

int cuStreamSynchronize(void *stream)
{
    return stream == &module ? 0 : 1;
}
