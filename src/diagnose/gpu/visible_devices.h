/* SPDX-License-Identifier: Apache-2.0 */
/*
 * visible_devices.h - CUDA_VISIBLE_DEVICES, read as CUDA does: a list of numbers and of beginnings
 * of "GPU-..." and "MIG-..." names, which ends silently at the first invalid entry.
 */
#ifndef LS_DIAGNOSE_GPU_VISIBLE_DEVICES_H
#define LS_DIAGNOSE_GPU_VISIBLE_DEVICES_H

#define VISIBLE_ENTRY_MAX 64

typedef struct visible_devices {
    int n;                       /* valid entries */
    const char *why;             /* why an entry is invalid; NULL: all are valid */
    char bad[VISIBLE_ENTRY_MAX]; /* the invalid entry, printable and cut */
} visible_devices;

/* n_gpus: of this machine, -1: unknown. */
void visible_devices_read(const char *text, int n_gpus, visible_devices *out);

#endif
