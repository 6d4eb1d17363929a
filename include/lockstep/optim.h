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
    size_t size; /* sizeof(ls_sgd_options) */
    double lr;   /* at least 0, as momentum and weight_decay */
    double momentum;
    double dampening;
    double weight_decay;
    int nesterov; /* needs momentum > 0 and dampening 0 */
} ls_sgd_options;

/* The gradient of a parameter for this step, NULL for "leave it alone". ls_grad fits. */
typedef ls_tensor *(*ls_grad_of_fn)(const ls_tensor *parameter);

/* An optimizer over `n` named parameters (float32 or float64, names differ), which must outlive it;
 * the names are copied. */
LS_API LS_MUST_USE ls_status ls_sgd_create(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                                           const ls_sgd_options *opt, ls_optimizer **out);
LS_API void ls_optimizer_destroy(ls_optimizer *o); /* NULL is allowed */

/* Updates every parameter that has a gradient. A shape or type that does not fit fails before any
 * parameter has changed. Allocates nothing. */
LS_API LS_MUST_USE ls_status ls_optimizer_step(ls_optimizer *o);

LS_API void ls_optimizer_set_lr(ls_optimizer *o, double lr);
LS_API double ls_optimizer_lr(const ls_optimizer *o);

/* Its state for a checkpoint: "sgd.lr" (float64 as bytes) and, with momentum, for each parameter
 * "NAME.momentum_buffer" and the byte "NAME.momentum_buffer_set" (0: no step has used it yet; its
 * elements are zeros). The array and what it points to live as long as the optimizer and are always
 * current. Loading writes into the same places and is then told by ls_optimizer_loaded(): LS_EFORMAT
 * names a scalar that makes no sense; the scalars are then what they were before. */
LS_API const ls_named *ls_optimizer_state(ls_optimizer *o, int *n);
LS_API LS_MUST_USE ls_status ls_optimizer_loaded(ls_optimizer *o);

/* --- schedules: pure functions of the position --- */

typedef enum ls_schedule_kind {
    LS_SCHEDULE_CONSTANT = 0,
    LS_SCHEDULE_STEP,  /* torch StepLR: base_lr * gamma^(t / step) */
    LS_SCHEDULE_COSINE /* torch CosineAnnealingLR, closed form:
                          min_lr + (base_lr - min_lr) * (1 + cos(pi * t / total)) / 2 */
} ls_schedule_kind;

typedef struct ls_schedule {
    ls_schedule_kind kind;
    double base_lr;
    double min_lr;
    double gamma;  /* 0 means 0.1 */
    int64_t step;  /* STEP: period in the units of t; below 1 means 1 */
    int64_t total; /* COSINE: t at which min_lr is reached; stays there after; below 1 means 1 */
} ls_schedule;

/* The learning rate at position t (epochs or steps, as the caller counts; below 0 means 0). The same
 * bits on every machine: it does not ask libm. */
LS_API double ls_schedule_lr(const ls_schedule *s, int64_t t);

LS_END_DECLS

#endif
