/* SPDX-License-Identifier: Apache-2.0 */
/*
 * visible_devices.h - CUDA_VISIBLE_DEVICES, read as CUDA does: a list of numbers and of beginnings of "GPU-..." and "MIG-..." names,
 * which ends without a word at the first entry that is wrong.
 */
#ifndef LS_LAUNCH_VISIBLE_DEVICES_H
#define LS_LAUNCH_VISIBLE_DEVICES_H

#define VISIBLE_ENTRY_MAX 64

typedef struct visible_devices {
    int n;                       /* entries that count */
    const char *why;             /* why the list ends before its end; NULL: it does not */
    char bad[VISIBLE_ENTRY_MAX]; /* the entry that ends it, printable and cut */
} visible_devices;

/* n_gpus: those there are, -1: unknown. */
void visible_devices_read(const char *text, int n_gpus, visible_devices *out);

#endif
