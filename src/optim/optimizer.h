/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer.h - the common part of all optimizers: parameters, learning rate, and the named list
 * that checkpoints save and load.
 *
 * optim/: optimizers, clipping, scaling and schedules, behind <lockstep/optim.h>.
 */
#ifndef LS_OPTIM_OPTIMIZER_H
#define LS_OPTIM_OPTIMIZER_H

#include <lockstep/optim.h>

#include "tensor/device.h"

#define OPTIMIZER_MAX_BUFFERS 3

/* A parameter and its state. */
typedef struct optimizer_param {
    ls_tensor *tensor;
    char *name;
    int group; /* 0: none; the last ls_optimizer_group() that matched */
    double lr_factor;
    double weight_decay;
    ls_tensor *buffers[OPTIMIZER_MAX_BUFFERS]; /* such as its momentum; n_buffers of them */
    int64_t n_updates;        /* number of gradients so far; counted up to most_updates */
    uint8_t saved_updates[8]; /* little-endian: the place in the state list that a load writes */
    bool is_updated;          /* by the last optimizer_update() */
    op_update rates;          /* of it */
} optimizer_param;

typedef struct optimizer_ops {
    op_kind op; /* the operator that updates a parameter */
    /* required: the rates of the next update; n_updates does not include it */
    op_update (*rates)(const ls_optimizer *self, const optimizer_param *p);
    const char *rate_name;                           /* required: "sgd.lr" in the state list */
    const char *buffer_names[OPTIMIZER_MAX_BUFFERS]; /* "momentum_buffer" */
    const char *count_name;                          /* of n_updates in the state list */
    size_t count_bytes;                              /* there */
    int64_t most_updates;                            /* maximum of the count */
} optimizer_ops;

struct ls_optimizer {
    const optimizer_ops *ops;
    ls_grad_of_fn grad_of;
    ls_device *device; /* of all parameters; NULL without parameters */
    optimizer_param *params;
    int n_params;
    int n_groups;
    int n_buffers; /* per parameter; 0: a parameter has no state, and no count */
    double lr;
    double weight_decay; /* of parameters without a group's */
    uint8_t saved_lr[8]; /* little-endian: the place in the state list that a load writes */
    ls_named *state;
    int n_state;
};

/* Checks the common arguments of ls_sgd_create() and the like. */
LS_MUST_USE ls_status optimizer_check(const char *name, const ls_named *parameters, int n,
                                      ls_grad_of_fn grad_of, const void *opt);

/* Initialises the common part of a zeroed optimizer with ops; each parameter gets the weight decay
 * and `n_buffers` buffers of its shape. After a failure the caller calls ls_optimizer_destroy(). */
LS_MUST_USE ls_status optimizer_init(ls_optimizer *o, const ls_named *parameters, int n,
                                     double weight_decay, int n_buffers);

/* Runs (host device) or queues (stream device) the update of every parameter that has a gradient. A
 * failed check changes nothing. skip: as of OP_SGD. */
LS_MUST_USE ls_status optimizer_update(ls_optimizer *o, ls_tensor *skip);

/* Counts the updates of the last optimizer_update(), which was not skipped. */
void optimizer_count(ls_optimizer *o);

/* *has_grad: whether the parameter has a gradient; *call is then `like` with it as in[0]. The
 * gradient has the parameter's shape, type and device, and is plain. */
LS_MUST_USE ls_status optimizer_grad_call(const char *name, const ls_tensor *parameter,
                                          ls_grad_of_fn grad_of, const op_call *like, op_call *call,
                                          bool *has_grad);

/* LS_EINVAL unless `value` is finite and at least 0. */
LS_MUST_USE ls_status optimizer_check_rate(const char *optimizer, const char *name, double value);

/* LS_EINVAL unless the first learning rate is finite and over 0; 0 is an unset field. */
LS_MUST_USE ls_status optimizer_check_lr(const char *optimizer, double lr);

#endif
