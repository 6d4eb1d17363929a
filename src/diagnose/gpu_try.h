/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_try.h - whether GPUs can be used: each is opened through CUDA's driver library, and some of its memory taken, written, read and
 * given back. One child process for each, all at once: one GPU that hangs or crashes its driver hides nothing of the others.
 */
#ifndef LS_DIAGNOSE_GPU_TRY_H
#define LS_DIAGNOSE_GPU_TRY_H

#include "diagnose/gpu_probe.h"

#define GPU_TRY_MS      60000 /* the first program after a start of the machine waits for the driver */
#define GPU_TRY_BYTES   ((size_t)16 * 1024 * 1024)
#define GPU_TRY_LIBRARY "libcuda.so.1"

typedef struct gpu_trial {
    ls_status status; /* LS_OK: it works. LS_ETIMEOUT: no answer. LS_ENOTFOUND: it was not tried */
    char why[192];    /* unless OK */
} gpu_trial;

typedef struct gpu_trials {
    gpu_trial gpus[GPU_MOST]; /* as in the list that was tried */
    int n;
} gpu_trials;

/* Tries those of the list that are usable. LS_ENOTFOUND: there is no such library. Needs a process with one thread. */
LS_MUST_USE ls_status gpu_try(const char *library, int64_t limit_ms, const gpu_list *gpus,
                              gpu_trials *out);

#endif
