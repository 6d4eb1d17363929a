/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_count.c - counts the GPUs that a PyTorch program sees on this machine, which is what
 * torchrun's --nproc-per-node gpu means. AMD's GPUs are read from the kernel's files without a
 * library. Called by lockstep run.
 */
#include "diagnose/checks/check_sources.h"

#include "base/file.h"
#include "base/text.h"
#include "diagnose/gpu/visible_devices.h"

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
    static gpu_list seen; /* too large for the stack; checks run on one thread */
    int n = 0;

    if (from->gpus(from->self, &seen) != LS_OK)
        return 0;
    for (int i = 0; i < seen.n; i++)
        n += seen.gpus[i].is_usable;
    return n;
}

/* A topology node with SIMD units is a GPU; a node without is a processor. */
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

/* How many of n GPUs the variable `name` leaves visible; all when it is NULL. */
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
    char saved[LS_ERROR_BYTES];
    int n_present;

    ls_error_save(saved);
    n_present = count_nvidia(from);
    ls_error_restore(saved);
    if (n_present == 0) {
        n_present = count_amd(from);
        name = amd_variable(from);
    }
    if (n_present == 0)
        return ls_fail(
            LS_ENOTFOUND,
            "this machine has no usable GPU of NVIDIA or AMD (lockstep check shows why)");
    *n = count_visible(from, name, n_present);
    if (*n == 0)
        return ls_fail(LS_ENOTFOUND, "%s=%s leaves none of the %d GPU%s of this machine", name,
                       variable(from, name), n_present, text_plural(n_present));
    return LS_OK;
}
