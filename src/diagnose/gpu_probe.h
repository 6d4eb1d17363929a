/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_probe.h - the GPUs that NVIDIA's management library lists. It is loaded in a child process: a sick driver may crash it or keep
 * it waiting in the kernel for ever, and neither must happen to a launcher.
 */
#ifndef LS_DIAGNOSE_GPU_PROBE_H
#define LS_DIAGNOSE_GPU_PROBE_H

#include "base/status.h"

#include <stdbool.h>

#define GPU_MOST          64
#define GPU_PROBE_MS      20000
#define GPU_PROBE_LIBRARY "libnvidia-ml.so.1"

typedef struct gpu_seen {
    char bus[32];   /* "00000000:85:00.0" as the library writes it; "": it could not be asked */
    char uuid[96];  /* "GPU-89..."; "": not known */
    char name[64];  /* or why it could not be asked */
    bool is_usable; /* the library gave a handle and all facts */
} gpu_seen;

typedef struct gpu_list {
    gpu_seen gpus[GPU_MOST];
    int n;
} gpu_list;

/* LS_ENOTFOUND: there is no such library. LS_ETIMEOUT: no answer within limit_ms. LS_ESYSTEM: it says, or shows by dying, that it
 * does not work. Each with a text. */
LS_MUST_USE ls_status gpu_probe(const char *library, int64_t limit_ms, gpu_list *out);

#endif
