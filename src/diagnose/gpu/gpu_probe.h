/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_probe.h - lists the GPUs of NVIDIA's management library. A child process loads the library,
 * because a faulty driver may crash the process or block it in the kernel for ever, and a launcher
 * must survive both.
 *
 * diagnose/gpu/: GPUs, asked in child processes. Called by diagnose/checks.
 */
#ifndef LS_DIAGNOSE_GPU_GPU_PROBE_H
#define LS_DIAGNOSE_GPU_GPU_PROBE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define GPU_MOST          64
#define GPU_PROBE_MS      20000
#define GPU_PROBE_LIBRARY "libnvidia-ml.so.1"

typedef struct gpu_seen {
    char bus[32];   /* "00000000:85:00.0" as the library writes it; "" when unknown */
    char uuid[96];  /* "GPU-89..."; "" when unknown */
    char name[64];  /* or the error text when not usable */
    bool is_usable; /* the library gave a handle and all facts */
} gpu_seen;

typedef struct gpu_list {
    gpu_seen gpus[GPU_MOST];
    int n;
} gpu_list;

/*
 * Forks. LS_ENOTFOUND: the library does not exist. LS_ETIMEOUT: no answer within limit_ms.
 * LS_ESYSTEM: the library reports a failure or crashes.
 */
LS_MUST_USE ls_status gpu_probe(const char *library, int64_t limit_ms, gpu_list *out);

/* A function that gpu_load() looks up; `function` points to a function pointer. */
typedef struct gpu_symbol {
    const char *name;
    void *function;
    bool is_optional; /* NULL when the library lacks it */
} gpu_symbol;

/* Loads a library for ever. LS_ENOTFOUND: it does not exist. LS_ESYSTEM: it lacks a function. */
LS_MUST_USE ls_status gpu_load(const char *path, const gpu_symbol *symbols, size_t n);

#endif
