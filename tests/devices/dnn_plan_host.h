/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnn_plan_host.h - how tests watch and control dnn_plan_host.c. They find dnn_host_state() with
 * dlsym() in liblockstep_cudahost.so.
 */
#ifndef TESTS_DEVICES_DNN_PLAN_HOST_H
#define TESTS_DEVICES_DNN_PLAN_HOST_H

#include "tensor/devices/cuda/dnn/dnn_graph.h"

#include <lockstep/base.h>

#include <stdint.h>

/* Plans that each graph has; they are numbered, and the first is the expected fastest. */
#define DNN_HOST_PLANS 3

typedef struct dnn_host {
    uint64_t n_created; /* plans, since the module was loaded */
    uint64_t n_loaded;  /* from texts */
    uint64_t n_runs;
    int last_run;     /* the number of the plan that ran last */
    unsigned refused; /* bit i: plan i cannot run */
    unsigned slow;    /* bit i: plan i takes an hour, by the clock of events */
    /* is called with the graph of each plan that is created or loaded; NULL: nothing is */
    void (*on_graph)(void *arg, const dnn_graph *g);
    void *arg;
} dnn_host;

/* The one state of the process. */
LS_API dnn_host *dnn_host_state(void);

#define DNN_HOST_STATE "dnn_host_state" /* the symbol */
typedef dnn_host *(*dnn_host_state_fn)(void);

#endif
