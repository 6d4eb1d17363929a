/* SPDX-License-Identifier: Apache-2.0 */
/* device_open.h - what opening a device and asking whether it can be used have in common. */
#ifndef LS_TENSOR_DEVICE_OPEN_H
#define LS_TENSOR_DEVICE_OPEN_H

#include "tensor/device.h"

/* The options of a device with all defaults in their places. */
typedef struct device_choice {
    char name[40]; /* "cpu", "auto", or that of a built-in device or module, without ":N" */
    device_settings settings;
    bool needs_graphs;      /* a device without device_ops.has_graphs is an error */
    const char *spin_count; /* for omp_spin_enter() */
} device_choice;

/* Reads name and index ("cuda:1"), and the variables of settings and launchers. Loads nothing.
 * LS_EUNSUPPORTED: there is no such device; the text names those that are available. */
LS_MUST_USE ls_status device_choose(const ls_device_options *o, device_choice *out);

/* Whether that is the processor, whose devices need no more to be used. */
bool device_is_cpu(const device_choice *choice);

/* Adds the devices for users, which are available, to the last error; cpu_ref is for tests. */
ls_status device_fail_with_alternatives(ls_status st);

/* The functions of the device, and its module if it is one, which the caller unloads. */
LS_MUST_USE ls_status device_load(const device_choice *choice, const device_ops **ops,
                                  void **module);

#endif
