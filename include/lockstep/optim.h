/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.h - optimizers, clipping, gradient scaling and learning-rate schedules, as PyTorch defines
 * them.
 *
 * Threads    An optimizer, with its scaler, is used by one thread at a time.
 * Devices    A device with queues gets the work queued; no function waits for it unless it says so.
 *            Failures of queued work are returned by later functions that wait.
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

/* An optimizer over `n` named parameters (float32 or float64, of one device, names differ), which
 * must outlive it; the names are copied. */
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

/* A group of parameters, as one of torch's param_groups. 0, but in `size`: the default. */
typedef struct ls_group_options {
    size_t size;         /* sizeof(ls_group_options) */
    double lr_factor;    /* the group's rate is this times the optimizer's; 0 means 1 */
    double weight_decay; /* at least 0; 0 means the optimizer's */
    int no_weight_decay; /* 1: none, as usual for biases and norms */
} ls_group_options;

/* Makes a group of the parameters whose names match `pattern` ("*.bias"; as in ls_model_freeze() of
 * <lockstep/nn.h>); they leave an earlier group. Groups are no part of the state: a program makes
 * them again before it loads one. LS_ENOTFOUND: no name matches. LS_EINVAL: numbers below 0. */
LS_API LS_MUST_USE ls_status ls_optimizer_group(ls_optimizer *o, const char *pattern,
                                                const ls_group_options *opt);

/* Updates every parameter that has a gradient. A gradient of another shape, type or device fails
 * before any parameter has changed. Allocates nothing. */
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
 * norm before. Summed in float64 in an order that the kind of device fixes: equal gradients give
 * equal bits on every rank, and on all CPUs. A norm that is not finite makes the gradients NaN or
 * 0, as in PyTorch: check *norm. All parameters are on one device. Allocates nothing after the
 * first call. Waits for the device's queue only to give *norm. */
LS_API LS_MUST_USE ls_status ls_clip_grad_norm(const ls_named *parameters, int n,
                                               ls_grad_of_fn grad_of, double max_norm,
                                               double *norm);

/* torch.nn.utils.clip_grad_value_: clamps elements to [-limit, limit], limit >= 0; not NaN. */
LS_API LS_MUST_USE ls_status ls_clip_grad_value(const ls_named *parameters, int n,
                                                ls_grad_of_fn grad_of, double limit);

/* --- gradient scaling: for float16, whose small gradients would become 0 ---
 *
 *     ls_backward(tape, loss, ls_grad_scaler_scale(s))     with DDP: ls_ddp_set_loss_scale()
 *     ls_grad_scaler_unscale(s)                            only if they are then clipped
 *     ls_grad_scaler_step(s)                               instead of ls_optimizer_step()
 *     ls_grad_scaler_update(s)                             before the next ls_grad_scaler_scale()
 *
 * A step with a gradient that is not finite is skipped: parameters and optimizer stay as they are,
 * and the scale becomes smaller. With DDP the gradients are the reduced ones, which have the same
 * bits on every rank: all ranks skip the same steps and have the same scale, without communication.
 */

typedef struct ls_grad_scaler ls_grad_scaler;

/* The constants of torch.amp.GradScaler. `opt` may be NULL, and every field but `size` 0. */
typedef struct ls_grad_scaler_options {
    size_t size;             /* sizeof(ls_grad_scaler_options) */
    double init_scale;       /* over 0, a float32; 0 means 65536 */
    double growth_factor;    /* over 1; 0 means 2 */
    double backoff_factor;   /* below 1; 0 means 0.5 */
    int64_t growth_interval; /* steps without a skip before the scale grows; 0 means 2000 */
    int64_t max_skipped;     /* skipped steps in a row that are an error; 0 means 100 */
} ls_grad_scaler_options;

/* A scaler for the gradients of an optimizer with at least one parameter, which must outlive it. */
LS_API LS_MUST_USE ls_status ls_grad_scaler_create(ls_optimizer *optimizer,
                                                   const ls_grad_scaler_options *opt,
                                                   ls_grad_scaler **out);
LS_API void ls_grad_scaler_destroy(ls_grad_scaler *s); /* NULL is allowed */

/* What the loss of the next step is multiplied by. */
LS_API double ls_grad_scaler_scale(const ls_grad_scaler *s);

/* Divides the optimizer's gradients by the scale, and looks for values that are not finite. Once a
 * step at most: LS_EINVAL. A gradient that does not fit its parameter fails before any changes. */
LS_API LS_MUST_USE ls_status ls_grad_scaler_unscale(ls_grad_scaler *s);

/* Unscales, unless that is done, and runs the optimizer's step, which is skipped if a gradient was
 * not finite. LS_EINVAL when the step before has no ls_grad_scaler_update(). */
LS_API LS_MUST_USE ls_status ls_grad_scaler_step(ls_grad_scaler *s);

/*
 * Ends a step; with a queue it waits until the step is known to be done or skipped, not for work
 * queued later. It may thus follow the next forward pass. Updates the scale: backoff_factor times
 * after a skipped step, growth_factor times after growth_interval steps in a row that were not; and
 * the optimizer's counts of updates, which a skipped step does not change. LS_EINVAL when no step
 * came before, and, with step, scale and advice, for each skipped step from the max_skipped-th in a
 * row on.
 */
LS_API LS_MUST_USE ls_status ls_grad_scaler_update(ls_grad_scaler *s);

/* The number of skipped steps so far, those before a load included. */
LS_API int64_t ls_grad_scaler_skipped(const ls_grad_scaler *s);

/* The state for a checkpoint, as that of an optimizer: "grad_scaler.scale" (float64), and as int64
 * "grad_scaler.growth_tracker", "grad_scaler.steps", "grad_scaler.skipped" and
 * "grad_scaler.skipped_in_row". It and the optimizer's state are current after each
 * ls_grad_scaler_update(); between a step and its update ls_grad_scaler_loaded() is LS_EINVAL. */
LS_API const ls_named *ls_grad_scaler_state(ls_grad_scaler *s, int *n);
LS_API LS_MUST_USE ls_status ls_grad_scaler_loaded(ls_grad_scaler *s);

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
 * schedule has no other state: a checkpoint saves only t. Same bits on every machine: no libm. */
LS_API double ls_schedule_lr(const ls_schedule *s, int64_t t);

LS_END_DECLS

#endif
