/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_count.c - how many GPUs a PyTorch program counts here, which is what torchrun's
 * --nproc-per-node gpu means. The kernel lists AMD's in files, so no library is needed for them.
 */
#include "diagnose/check_sources.h"

#include "base/file.h"
#include "base/text.h"
#include "launch/agent/visible_devices.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KFD_NODES "/sys/class/kfd/kfd/topology/nodes"

static const char *variable(const check_sources *from, const char *name)
{
    return from->variable(from->self, name);
}

static int count_nvidia(const check_sources *from)
{
    static gpu_list seen; /* large, and checks are for one thread */
    int n = 0;

    if (from->gpus(from->self, &seen) != LS_OK)
        return 0;
    for (int i = 0; i < seen.n; i++)
        n += seen.gpus[i].is_usable;
    return n;
}

/* A node of the topology with compute units is a GPU, one without is a processor. */
static bool is_amd_gpu(const char *path)
{
    static const char key[] = "simd_count ";
    char line[128];
    bool found = false;
    FILE *file = fopen(path, "re");

    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = text_starts(line, key) && strtol(line + sizeof(key) - 1, NULL, 10) > 0;
    if (file != NULL)
        (void)fclose(file);
    return found;
}

static int count_amd(const check_sources *from)
{
    char path[PATH_MAX];
    const struct dirent *entry;
    DIR *nodes = opendir(text_format(path, sizeof(path), "%s" KFD_NODES, from->root));
    int n = 0;

    if (nodes == NULL)
        return 0;
    while ((entry = file_next_entry(nodes)) != NULL) {
        text_format(path, sizeof(path), "%s" KFD_NODES "/%s/properties", from->root, entry->d_name);
        n += entry->d_name[0] != '.' && is_amd_gpu(path);
    }
    closedir(nodes);
    return n;
}

/* Of n GPUs those that this variable leaves; NULL: it is not set. */
static int count_visible(const check_sources *from, const char *name, int n)
{
    visible_devices v;

    if (name == NULL)
        return n;
    visible_devices_read(variable(from, name), n, &v);
    return v.n;
}

/* ROCm reads the first of these that is set. */
static const char *amd_variable(const check_sources *from)
{
    static const char *const names[] = {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                        "CUDA_VISIBLE_DEVICES"};

    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        if (variable(from, names[i]) != NULL)
            return names[i];
    return NULL;
}

ls_status check_count_gpus(const check_sources *from, int *n)
{
    const char *name =
        variable(from, "CUDA_VISIBLE_DEVICES") != NULL ? "CUDA_VISIBLE_DEVICES" : NULL;
    char kept[LS_ERROR_BYTES];
    int there;

    ls_error_save(kept);
    there = count_nvidia(from);
    ls_error_restore(kept);
    if (there == 0) {
        there = count_amd(from);
        name = amd_variable(from);
    }
    if (there == 0)
        return ls_fail(LS_ENOTFOUND, "this machine has no GPU of NVIDIA or AMD that can be used "
                                     "(lockstep check says why)");
    *n = count_visible(from, name, there);
    if (*n == 0)
        return ls_fail(LS_ENOTFOUND, "%s=%s leaves none of the %d GPU%s of this machine", name,
                       variable(from, name), there, text_plural(there));
    return LS_OK;
}
