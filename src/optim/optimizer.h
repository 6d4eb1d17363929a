/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer.h - what all optimizers share: their parameters, the learning rate, and the named list
 * that checkpoints save and load.
 */
#ifndef LS_OPTIM_OPTIMIZER_H
#define LS_OPTIM_OPTIMIZER_H

#include <lockstep/optim.h>

#include "base/status.h"

#include <stdbool.h>

/* A buffer beside one parameter, such as its momentum, and whether a step has used it yet. */
typedef struct optimizer_buffer {
    ls_tensor *tensor; /* NULL: this optimizer keeps none */
    bool is_set;
    uint8_t saved_is_set; /* the place in the state list that a load writes */
} optimizer_buffer;

/* A parameter, and where this step finds its elements (NULL grad: it has no gradient). */
typedef struct optimizer_param {
    ls_tensor *tensor;
    char *name;
    optimizer_buffer buffer;
    size_t count;
    void *value;
    void *grad;
    void *buffer_data;
} optimizer_param;

typedef struct optimizer_ops {
    /* required: updates all parameters that have a gradient; cannot fail */
    void (*update)(ls_optimizer *self);
    const char *rate_name;   /* required: "sgd.lr" in the state list */
    const char *buffer_name; /* required: "momentum_buffer" */
} optimizer_ops;

struct ls_optimizer {
    const optimizer_ops *ops;
    ls_grad_of_fn grad_of;
    optimizer_param *params;
    int n_params;
    double lr;
    uint8_t saved_lr[8]; /* little-endian: the place in the state list that a load writes */
    ls_named *state;
    int n_state;
};

/* Sets the common part of a zeroed optimizer up; with `with_buffers` each parameter gets a buffer of
 * its shape. On failure ls_optimizer_destroy() frees what there is. */
LS_MUST_USE ls_status optimizer_init(ls_optimizer *o, const ls_named *parameters, int n,
                                     bool with_buffers);

#endif
