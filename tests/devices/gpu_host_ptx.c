/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_ptx.c - launches what nvcc compiled in place of the kernels that are compiled as C:
 * GPU_HOST_KERNELS=FILE,FILE... names modules that tests/devices/ptx/ makes from the PTX. Of
 * kernels that several have, that of the first one runs. A fault is printed, and the card is lost.
 * GPU_HOST_LAUNCHED=FILE: the name of each kernel is added to the file when it is first launched.
 */
#include "devices/gpu_host_internal.h"

#include "base/status.h"
#include "base/text.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_MODULES = 16, N_KERNELS = 512, N_CONSTANTS = 64, N_RANGES = 1 << 16 };

/* Set before the first launch. */
static const ptx_kernel *tables[N_MODULES];
static size_t n_tables;
static ptx_range constants[N_CONSTANTS];
static size_t n_constants;
static ptx_run_fn run_ptx;

static void *symbol_of(void *module, const char *name)
{
    void *symbol = module == NULL ? NULL : dlsym(module, name);

    if (symbol == NULL)
        (void)fprintf(stderr, "cudahost: GPU_HOST_KERNELS: %s\n", dlerror());
    LS_ASSERT(symbol != NULL);
    return symbol;
}

static void load(const char *file)
{
    void *module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *function = symbol_of(module, "ptx_run");
    const ptx_range *constant = symbol_of(module, "ptx_constants");

    memcpy(&run_ptx, &function, sizeof(run_ptx)); // C has no conversion between these two
    LS_ASSERT(n_tables < N_MODULES);
    tables[n_tables++] = symbol_of(module, "ptx_kernels");
    for (; constant->start != NULL; constant++) {
        LS_ASSERT(n_constants < N_CONSTANTS);
        constants[n_constants++] = *constant;
    }
}

void gpu_host_load_kernels(const char *files)
{
    char file[512];

    while (files != NULL && text_next_item(&files, file, sizeof(file)))
        load(file);
}

bool gpu_host_has_kernels(void)
{
    return n_tables > 0;
}

static const ptx_kernel *find(const gpu_kernel *kernel)
{
    for (size_t i = 0; i < n_tables; i++) {
        for (const ptx_kernel *k = tables[i]; k->name != NULL; k++) {
            if (strcmp(k->name, kernel->name) == 0 && k->args_bytes == kernel->args_bytes)
                return k;
        }
    }
    return NULL;
}

static void note_launch(const ptx_kernel *kernel)
{
    static const ptx_kernel *noted[N_KERNELS];
    const char *path = getenv("GPU_HOST_LAUNCHED");
    size_t i = 0;
    FILE *file;

    while (i < N_KERNELS && noted[i] != NULL && noted[i] != kernel)
        i++;
    if (path == NULL || i == N_KERNELS || noted[i] == kernel)
        return;
    noted[i] = kernel;
    file = fopen(path, "ae");
    LS_ASSERT(file != NULL);
    (void)fprintf(file, "%s\n", kernel->name);
    (void)fclose(file);
}

static int by_address(const void *a, const void *b)
{
    const ptx_range *one = a;
    const ptx_range *other = b;

    return one->start < other->start ? -1 : one->start > other->start;
}

/* One call at a time. */
gpu_error gpu_host_run_kernel(const gpu_kernel *kernel, const void *args, unsigned n_blocks,
                              unsigned n_threads)
{
    static ptx_range ranges[N_RANGES];
    const bool is_cooperative = kernel->second != NULL;
    const size_t n = gpu_host_ranges(ranges, N_RANGES - n_constants);
    const gpu_host *state = gpu_host_state();
    const ptx_launch launch = {.kernel = find(kernel),
                               .args = args,
                               .n_blocks = is_cooperative && n_blocks > PTX_RESIDENT ? PTX_RESIDENT
                                                                                     : n_blocks,
                               .n_threads = n_threads,
                               .is_cooperative = is_cooperative,
                               .ranges = ranges,
                               .n_ranges = n + n_constants,
                               .seed = state->seed + state->n_launches};
    char text[256];

    if (launch.kernel == NULL) {
        (void)fprintf(stderr, "cudahost: no module has kernel %s\n", kernel->name);
        return HOST_KERNEL_FAULT;
    }
    note_launch(launch.kernel);
    memcpy(ranges + n, constants, n_constants * sizeof(*constants));
    qsort(ranges, launch.n_ranges, sizeof(*ranges), by_address);
    if (run_ptx(&launch, text, sizeof(text)))
        return HOST_OK;
    (void)fprintf(stderr, "cudahost: %s\n", text);
    return HOST_KERNEL_FAULT;
}
