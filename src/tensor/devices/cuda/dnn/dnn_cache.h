/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnn_cache.h - the plans of a device by graph: made or read from the user's folder at first use,
 * measured, and kept. cuda_conv2d.c runs graphs through it.
 *
 * A plan's choice is stored in a file of its own below LOCKSTEP's cache folder, whose name is a
 * hash of the graph, the limits, the card and cuDNN's version. Files that do not have the expected
 * form, or that other users could write, are ignored and replaced.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_DNN_DNN_CACHE_H
#define LS_TENSOR_DEVICES_CUDA_DNN_DNN_CACHE_H

#include "tensor/devices/cuda/dnn/dnn_plan.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"

/* Plans that are kept in memory at most; past it the least recently used is destroyed. */
#define DNN_PLANS_MOST 1024

/* Plans of a graph that are measured. */
#define DNN_TUNED_MOST 8

typedef struct dnn_cache_options {
    dnn_limits limits;
    bool autotune;      /* false: the plan that cuDNN expects to be the fastest */
    const char *folder; /* "": plans are not stored; copied */
} dnn_cache_options;

LS_MUST_USE ls_status dnn_cache_open(device_state *device, const dnn_cache_options *options,
                                     dnn_cache **out);

/* NULL is allowed. The device's queues are empty. */
void dnn_cache_close(dnn_cache *c);

/* Queues the graph; data as of dnn_plan_run(). The first run of a graph may measure plans: it then
 * blocks, and overwrites the graph's outputs several times. */
LS_MUST_USE ls_status dnn_cache_run(dnn_cache *c, const dnn_graph *g, void *const *data);

/* $XDG_CACHE_HOME/lockstep/plans or $HOME/.cache/lockstep/plans, created with its parents; "" where
 * neither variable is set or the folder cannot be used safely. `n`: at least PATH_MAX. */
void dnn_cache_folder(char *buf, size_t n);

#endif
