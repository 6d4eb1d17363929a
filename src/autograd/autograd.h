/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autograd.h - functions of autograd for nn, ddp and train, besides the public header: they place
 * gradients of leaves into given memory, claim leaves, mark a tape as failed, add up losses and
 * hits, and run steps of recurrent layers.
 */
#ifndef LS_AUTOGRAD_AUTOGRAD_H
#define LS_AUTOGRAD_AUTOGRAD_H

#include <lockstep/autograd.h>

#include "base/status.h"

#include <stdbool.h>

/*
 * From now on the gradient of the leaf `t` lives in `target`: a plain tensor of the leaf's shape,
 * type and device, borrowed until another is set or the leaf is destroyed. The kernels of weight
 * gradients write straight into it, and ls_grad() gives it whenever there is a gradient. A gradient
 * that exists is copied over. NULL brings it back into memory of the leaf's own and never fails:
 * where there is no memory for it, an existing gradient is forgotten.
 */
ls_status autograd_set_grad_target(ls_tensor *t, ls_tensor *target);

/* Where the leaf's gradient is written, whether or not there is one: the target, else its own
 * memory, else NULL. */
ls_tensor *autograd_grad_memory(const ls_tensor *t);

/* Makes the leaf a constant, and forgets its gradient; ls_require_grad() ends that. Not during
 * a backward. */
void autograd_freeze(ls_tensor *t);
bool autograd_is_frozen(const ls_tensor *t); /* false for other tensors */

/* What turns the gradients of its leaves into something else during backward: an ls_ddp. */
typedef struct autograd_owner {
    ls_grad_ready_fn ready; /* called before the tape's own, for the owner's leaves only */
    void *arg;
    /* for the error of any other backward: what the owner is, and which function to call */
    const char *reason;
} autograd_owner;

/*
 * From now on only autograd_backward() by this owner computes the gradient of the leaf `t`; any
 * other backward that reaches it fails and names it `name`. Owner and name are borrowed until the
 * release. False: the leaf has an owner already.
 */
LS_MUST_USE bool autograd_claim(ls_tensor *t, const autograd_owner *owner, const char *name);

/* Ends the claim; one of another owner stays. */
void autograd_release(ls_tensor *t, const autograd_owner *owner);

/* ls_backward() by the owner of some leaves. NULL: by none. */
LS_MUST_USE ls_status autograd_backward(ls_tape *tape, ls_tensor *loss, double seed,
                                        const autograd_owner *owner);

/* Declares that the gradient's memory holds a gradient, or that it does not (as ls_zero_grad).
 * Without any memory nothing changes. */
void autograd_set_has_grad(ls_tensor *t, bool has_grad);

/*
 * A second state of a leaf: gradient, owner, and the position of a backward that has not ended. So
 * one backward can be interrupted while another one runs on another tape. At first without a
 * gradient, with memory of its own for one, and with the owner `owner`, borrowed. LS_ENOMEM. NULL
 * may be destroyed.
 */
struct leaf;
LS_MUST_USE ls_status autograd_create_state(const ls_tensor *t, const autograd_owner *owner,
                                            struct leaf **out);
void autograd_destroy_state(struct leaf *state);

/* Exchanges the leaf's state with `state`, which was made for it. */
void autograd_exchange_state(ls_tensor *t, struct leaf *state);

/* The gradient in a state that the leaf does not have now; NULL: there is none. */
ls_tensor *autograd_state_grad(const struct leaf *state);

/* Whether the text of a failure is that of ls_tape_check_nan(), also as another rank reports it. */
bool check_nan_is_cause(const char *text);

/* What ls_tape_check_nan() finds. */
typedef struct nan_finding {
    const char *text; /* operator, layer, tensor and element */
    size_t element;   /* the first of the tensor that is not finite */
    const ls_tensor *tensor;
    bool is_result; /* of a forward, whose rows may be samples; otherwise a gradient */
} nan_finding;

/* Calls fn for the first result or gradient that is not finite, instead of the failure of
 * ls_tape_check_nan(), and ends the check. NULL: no check. */
typedef void (*nan_found_fn)(void *arg, const nan_finding *found);
void autograd_watch_nan(ls_tape *tape, nan_found_fn fn, void *arg);

/* Batch norms in training do not change running statistics and counters on this tape. */
void autograd_keep_statistics(ls_tape *tape);

/* Makes this thread's last error the tape's failure, unless it has one already. Gives NULL, as a
 * failed operator. */
ls_tensor *autograd_fail(ls_tape *tape, ls_status status);

/* Checks logits and targets as ls_top_k_correct() does, and adds their OP_CLASS_SUMS to `sums`. k
 * has sums' elements - 2 entries. */
LS_MUST_USE ls_status class_sums_add(const ls_tensor *logits, const ls_tensor *targets,
                                     const int *k, ls_tensor *sums);

/* The operators from now on belong to the layer of this name (NULL: to none), which errors of their
 * backward name: borrowed until the tape's reset. Returns the name before. */
const char *autograd_enter(ls_tape *tape, const char *layer);

/* Whether the tape has failed. */
bool autograd_has_failed(const ls_tape *tape);

/* Puts "where: " in front of the text of the tape's failure. */
void autograd_context(ls_tape *tape, const char *where);

/* --- the steps of recurrent layers --- */

/* Which step of sequences of different lengths it is. */
typedef struct recurrent_step {
    ls_tensor *lengths; /* int64 (N), each 0 to n_steps; NULL: all rows have all steps */
    int64_t position;
    int64_t n_steps;
} recurrent_step;

/* ls_linear() of (N,I), whose result is read by the forward of one step alone: not computed if that
 * takes its results from those retained for backward. */
ls_tensor *autograd_gates(ls_tape *tape, ls_tensor *x, ls_tensor *weight, ls_tensor *bias);

/*
 * The states behind the step, *h and *c, and what it gives, *y, which is *h without lengths. Rows
 * that do not have this step keep their states, and give 0. x_gates: x W_ih^T + b_ih; h_gates: h
 * W_hh^T + b_hh; both (N,4H) or for the GRU (N,3H). All are NULL on failure, which the tape has.
 */
void autograd_lstm_step(ls_tape *tape, ls_tensor *x_gates, ls_tensor *h_gates,
                        const recurrent_step *step, ls_tensor **h, ls_tensor **c, ls_tensor **y);
void autograd_gru_step(ls_tape *tape, ls_tensor *x_gates, ls_tensor *h_gates,
                       const recurrent_step *step, ls_tensor **h, ls_tensor **y);

#endif
