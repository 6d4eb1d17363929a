/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.h - optimizers and learning-rate schedules, as PyTorch defines them.
 *
 * Threads    An optimizer is used by one thread at a time.
 */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/tensor.h>

LS_BEGIN_DECLS

typedef struct ls_optimizer ls_optimizer;

/* torch.optim.SGD: g += weight_decay*p; buf = momentum*buf + (1-dampening)*g (first step: buf = g);
 * g = nesterov ? g + momentum*buf : buf; p -= lr*g. Terms whose factor is 0 are left out. */
typedef struct ls_sgd_options {
    size_t size;     /* sizeof(ls_sgd_options) */
    double lr;       /* over 0; ls_optimizer_set_lr() accepts 0 as well */
    double momentum; /* at least 0, as weight_decay */
    double dampening;
    double weight_decay;
    int nesterov; /* needs momentum > 0 and dampening 0 */
} ls_sgd_options;

/* The gradient of a parameter for this step; NULL: the step does not change the parameter. ls_grad
 * is such a function. */
typedef ls_tensor *(*ls_grad_of_fn)(const ls_tensor *parameter);

/* An optimizer over `n` named parameters (float32 or float64, names differ), which must outlive it;
 * the names are copied. */
LS_API LS_MUST_USE ls_status ls_sgd_create(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                                           const ls_sgd_options *opt, ls_optimizer **out);

/* torch.optim.Adam, with step t counted from 1:
 *     m = beta1*m + (1-beta1)*g,  v = beta2*v + (1-beta2)*g*g,
 *     p -= lr/(1-beta1^t) * m / (sqrt(v)/sqrt(1-beta2^t) + eps)
 * weight_decay: Adam begins with g += weight_decay*p, AdamW with p -= lr*weight_decay*p instead.
 * amsgrad: the root is taken of the largest v so far. */
typedef struct ls_adam_options {
    size_t size;  /* sizeof(ls_adam_options) */
    double lr;    /* over 0 (PyTorch's default is 0.001); ls_optimizer_set_lr() accepts 0 as well */
    double beta1; /* below 1; 0 means 0.9, negative means 0 */
    double beta2; /* below 1; 0 means 0.999, negative means 0 */
    double eps;   /* 0 means 1e-8 */
    /* PyTorch's default is 0 for Adam and 0.01 for AdamW; here 0 means none for both */
    double weight_decay;
    int amsgrad;
} ls_adam_options;

/* As ls_sgd_create. */
LS_API LS_MUST_USE ls_status ls_adam_create(const ls_named *parameters, int n,
                                            ls_grad_of_fn grad_of, const ls_adam_options *opt,
                                            ls_optimizer **out);
LS_API LS_MUST_USE ls_status ls_adamw_create(const ls_named *parameters, int n,
                                             ls_grad_of_fn grad_of, const ls_adam_options *opt,
                                             ls_optimizer **out);
LS_API void ls_optimizer_destroy(ls_optimizer *o); /* NULL is allowed */

/* Updates every parameter that has a gradient. A gradient of another shape or type fails before any
 * parameter has changed. Allocates nothing. */
LS_API LS_MUST_USE ls_status ls_optimizer_step(ls_optimizer *o);

LS_API void ls_optimizer_set_lr(ls_optimizer *o, double lr);
LS_API double ls_optimizer_lr(const ls_optimizer *o);

/* The state for a checkpoint, scalars as little-endian bytes:
 *     SGD         "sgd.lr" (float64); with momentum, for each parameter "NAME.momentum_buffer" and
 *                 the byte "NAME.momentum_buffer_set" (0: no step has used it; it holds zeros)
 *     Adam(W)     "adam.lr" or "adamw.lr"; for each parameter "NAME.exp_avg", "NAME.exp_avg_sq",
 *                 with amsgrad "NAME.max_exp_avg_sq", and "NAME.step" (int64: number of gradients)
 * The array and the memory it points to are valid until the optimizer is destroyed, and always
 * current. To load a state, write into the same memory and call ls_optimizer_loaded(): LS_EFORMAT
 * names an invalid scalar; all scalars then have their values of before. */
LS_API const ls_named *ls_optimizer_state(ls_optimizer *o, int *n);
LS_API LS_MUST_USE ls_status ls_optimizer_loaded(ls_optimizer *o);

/* --- clipping: between backward and the step; with DDP of reduced gradients --- */

/* torch.nn.utils.clip_grad_norm_: when the 2-norm of all gradients taken as one vector is over
 * max_norm (over 0), each is multiplied by max_norm / (norm + 1e-6). *norm (may be NULL) gets the
 * norm before. Summed in float64 in one fixed order: equal gradients give equal bits on every rank
 * and machine. A norm that is not finite makes the gradients NaN or 0, as in PyTorch: check *norm.
 * All parameters are on one device. Allocates nothing after the first call. A device with queues is
 * waited for only to give *norm. */
LS_API LS_MUST_USE ls_status ls_clip_grad_norm(const ls_named *parameters, int n,
                                               ls_grad_of_fn grad_of, double max_norm,
                                               double *norm);

/* torch.nn.utils.clip_grad_value_: clamps every element to [-limit, limit] (limit at least 0). NaN
 * stays NaN. */
LS_API LS_MUST_USE ls_status ls_clip_grad_value(const ls_named *parameters, int n,
                                                ls_grad_of_fn grad_of, double limit);

/* --- schedules: pure functions of the position --- */

typedef enum ls_schedule_kind {
    LS_SCHEDULE_CONSTANT = 0,
    /* torch StepLR: base_lr * gamma^(t / step) */
    LS_SCHEDULE_STEP,
    /* torch CosineAnnealingLR: min_lr + (base_lr - min_lr) * (1 + cos(pi * t / total)) / 2 */
    LS_SCHEDULE_COSINE,
    /* torch MultiStepLR: base_lr * gamma^(number of milestones at or before t) */
    LS_SCHEDULE_MULTI_STEP,
    /* torch LinearLR from base_lr to min_lr: base_lr + (min_lr - base_lr) * t / total */
    LS_SCHEDULE_LINEAR
} ls_schedule_kind;

/* Torch's SequentialLR([LinearLR(start_factor=warmup_factor, total_iters=warmup), kind], [warmup]):
 * while t < warmup the rate is base_lr * (warmup_factor + (1 - warmup_factor) * t / warmup), then
 * the schedule of `kind` begins at its own t = 0. CONSTANT with a warm-up is LinearLR alone. */
typedef struct ls_schedule {
    ls_schedule_kind kind;
    double base_lr;
    double min_lr;
    double gamma; /* 0 means 0.1 */
    int64_t step; /* STEP: period in the units of t; below 1 means 1 */
    /* COSINE, LINEAR: the rate is min_lr from this t on; below 1 means 1 */
    int64_t total;
    /* MULTI_STEP: in any order; borrowed for as long as the schedule is used */
    const int64_t *milestones;
    int n_milestones;
    int64_t warmup;       /* length of the warm-up in the units of t; below 1: none */
    double warmup_factor; /* its first rate over base_lr; 0 means 1/3, torch's default */
} ls_schedule;

/* The learning rate at position t (epochs or steps, as the caller counts; below 0 means 0). A
 * schedule has no other state: a checkpoint saves only t. Same bits on every machine: libm is not
 * used. */
LS_API double ls_schedule_lr(const ls_schedule *s, int64_t t);

LS_END_DECLS

#endif
