/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer.h - the common part of all optimizers: parameters, learning rate, and the named list
 * that checkpoints save and load.
 */
#ifndef LS_OPTIM_OPTIMIZER_H
#define LS_OPTIM_OPTIMIZER_H

#include <lockstep/optim.h>

#include "base/status.h"

#include <stdbool.h>

#define OPTIMIZER_MAX_BUFFERS 3

/* A parameter, its state, and the arrays of the current step (grad NULL: it has no gradient). */
typedef struct optimizer_param {
    ls_tensor *tensor;
    char *name;
    ls_tensor *buffers[OPTIMIZER_MAX_BUFFERS]; /* such as its momentum; n_buffers of them */
    int64_t n_updates;        /* number of gradients so far; counted up to most_updates */
    uint8_t saved_updates[8]; /* little-endian: the place in the state list that a load writes */
    size_t count;
    void *value;
    void *grad;
    void *buffer_data[OPTIMIZER_MAX_BUFFERS];
} optimizer_param;

typedef struct optimizer_ops {
    /* required: updates all parameters that have a gradient; cannot fail. n_updates does not
     * include this step. */
    void (*update)(ls_optimizer *self);
    const char *rate_name;                           /* required: "sgd.lr" in the state list */
    const char *buffer_names[OPTIMIZER_MAX_BUFFERS]; /* "momentum_buffer" */
    const char *count_name;                          /* of n_updates in the state list */
    size_t count_bytes;                              /* there */
    int64_t most_updates;                            /* maximum of the count */
} optimizer_ops;

struct ls_optimizer {
    const optimizer_ops *ops;
    ls_grad_of_fn grad_of;
    optimizer_param *params;
    int n_params;
    int n_buffers; /* per parameter; 0: a parameter has no state, and no count */
    double lr;
    uint8_t saved_lr[8]; /* little-endian: the place in the state list that a load writes */
    ls_named *state;
    int n_state;
};

/* Checks the common arguments of ls_sgd_create() and the like. */
LS_MUST_USE ls_status optimizer_check(const char *name, const ls_named *parameters, int n,
                                      ls_grad_of_fn grad_of, const void *opt);

/* Initialises the common part of a zeroed optimizer with ops; each parameter gets `n_buffers`
 * buffers of its shape. After a failure the caller calls ls_optimizer_destroy(). */
LS_MUST_USE ls_status optimizer_init(ls_optimizer *o, const ls_named *parameters, int n,
                                     int n_buffers);

/* The elements of the parameter's gradient, of the same shape and type, to read and write. */
LS_MUST_USE ls_status optimizer_grad(const ls_named *parameter, ls_tensor *grad, void **out);

/* LS_EINVAL unless `value` is finite and at least 0. */
LS_MUST_USE ls_status optimizer_check_rate(const char *optimizer, const char *name, double value);

/* LS_EINVAL unless the first learning rate is finite and over 0; 0 is an unset field. */
LS_MUST_USE ls_status optimizer_check_lr(const char *optimizer, double lr);

#endif
