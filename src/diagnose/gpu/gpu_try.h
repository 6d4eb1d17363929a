/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_try.h - tests whether GPUs can be used: CUDA's driver library opens each GPU, allocates
 * memory on it, writes and reads it, runs a kernel on it, and frees it. All GPUs are tested at the
 * same time, each in a child process of its own, so one that hangs or crashes its driver does not
 * hide the results of the others.
 */
#ifndef LS_DIAGNOSE_GPU_GPU_TRY_H
#define LS_DIAGNOSE_GPU_GPU_TRY_H

#include "diagnose/gpu/gpu_probe.h"

#define GPU_TRY_MS      60000 /* the driver is slow for the first program after a boot */
#define GPU_TRY_BYTES   ((size_t)16 * 1024 * 1024)
#define GPU_TRY_LIBRARY "libcuda.so.1"

typedef struct gpu_trial {
    ls_status status; /* LS_OK, LS_ETIMEOUT: it hangs, LS_ENOTFOUND: not tested, or another error */
    char why[192];    /* the error text unless LS_OK */
} gpu_trial;

typedef struct gpu_trials {
    gpu_trial gpus[GPU_MOST]; /* in the order of the gpu_list */
    int n;
} gpu_trials;

/*
 * Tests the usable GPUs of the list. Forks: needs a process with one thread. LS_ENOTFOUND: the
 * library does not exist.
 */
LS_MUST_USE ls_status gpu_try(const char *library, int64_t limit_ms, const gpu_list *gpus,
                              gpu_trials *out);

#endif
