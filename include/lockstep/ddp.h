/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp.h - distributed data-parallel training: every rank holds the same model and sees its own share of each batch.
 *
 *     ls_ddp_create(comm, model, NULL, &ddp);          once, when the model has all its layers
 *     ...
 *     ls_ddp_begin(ddp, rows);                         before forward; may be left out
 *     ls_ddp_backward(ddp, tape, loss, rows, &step);   instead of ls_backward()
 *
 * Gradients are collected in buckets (the first of 1 MiB, then of 25 MiB, in reverse order of use) which are reduced while
 * backward still runs. The mean is weighted: each rank gives the number of rows behind its mean loss, and the sum of
 * gradients is divided once by the sum of weights, so that unequal last batches count each sample once. A rank that has
 * run out of data goes on with 0 rows until all have; then all stop at the same step.
 *
 * Threads    One thread at a time, the one that runs the tape.
 * Failure    As a group's: the first failure breaks it. No parameter changes in a step whose buckets were not all reduced.
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include <lockstep/comm.h>
#include <lockstep/nn.h>

LS_BEGIN_DECLS

typedef struct ls_ddp ls_ddp;

/* What float32 gradients are while they cross the wire, as with torch's fp16_compress_hook and bf16_compress_hook: divided, rounded to 16
 * bits, summed (in float32, rounded once), widened again. All ranks keep the same bits. float64 gradients stay as they are. */
typedef enum ls_ddp_hook { LS_DDP_HOOK_NONE = 0, LS_DDP_HOOK_FP16, LS_DDP_HOOK_BF16 } ls_ddp_hook;

/* Every field but `size` may be 0, which means the default. */
typedef struct ls_ddp_options {
    size_t size;               /* sizeof(ls_ddp_options) */
    size_t first_bucket_bytes; /* 1 MiB */
    size_t bucket_bytes;       /* 25 MiB */
    int no_buffer_broadcast;   /* 1: running statistics stay each rank's own */
    int check_replicas;        /* compare a hash of parameters every so many steps; 0: never */
    int plain_mean;            /* 1: mean over ranks whatever their rows, as PyTorch's DDP */
    ls_ddp_hook hook;          /* communication hook */
    int sync_batch_norm; /* 1: the model's batch norms share the batches of all ranks, as torch.nn.SyncBatchNorm, until
                                  ls_ddp_destroy() */
    ls_comm *
        batch_norm_group; /* the ranks that do so; must outlive the ls_ddp; NULL: all, in a sub-group of their own */
} ls_ddp_options;

/*
 * Joins `model` on all ranks: names, shapes and types of parameters and buffers are compared
 * (LS_EMISMATCH names the first that differ and where), then rank 0's values are broadcast. comm
 * and model must outlive it. Layers that are added to the model later make every later call
 * LS_EINVAL. Until ls_ddp_destroy() the parameters' gradients belong to the ls_ddp: ls_backward()
 * through one is LS_EINVAL (ls_ddp_accumulate() gives a rank's own gradients), and so is a second
 * ls_ddp for the model. Collective; blocks. `opt` may be NULL.
 */
LS_API LS_MUST_USE ls_status ls_ddp_create(ls_comm *comm, ls_model *model,
                                           const ls_ddp_options *opt, ls_ddp **out);

/* The parameters' gradients are gone afterwards. After an ls_ddp_begin() without
 * ls_ddp_backward() it blocks until all ranks have made that call or the group fails. NULL is
 * allowed. */
LS_API void ls_ddp_destroy(ls_ddp *ddp);

/* Makes the buffers equal on all ranks (rank 0's). Called at the start of each training forward; the first step after a
 * switch to evaluation or a save needs it too (ls_run does). Starts nothing when there are none. Collective. */
LS_API LS_MUST_USE ls_status ls_ddp_sync_buffers(ls_ddp *ddp);

/* What all ranks know after a step. */
typedef struct ls_ddp_step {
    double weight; /* sum over ranks: rows of this step (and of the accumulated ones before it) */
    int more_data; /* 1: at least one rank gave rows > 0 */
    int stop; /* 1: some rank has asked to stop (ls_ddp_request_stop): all see it at this step */
} ls_ddp_step;

/*
 * Starts a step before its forward, so that the sum of all ranks' rows is complete when the first
 * bucket is. `rows` is what ls_ddp_backward() gets afterwards; without this call it starts the sum
 * itself. LS_EINVAL, which breaks the group: two calls in a step, other rows in ls_ddp_backward(),
 * and ls_ddp_accumulate() in between. Collective, at the same place in every rank's order of
 * operations; blocks only to compare replicas (check_replicas).
 */
LS_API LS_MUST_USE ls_status ls_ddp_begin(ls_ddp *ddp, int64_t rows);

/*
 * Runs backward from the mean loss over `rows` rows, reduces all gradients on the way, and leaves the weighted mean in
 * ls_grad() of every parameter: the same bits on every rank. Parameters that no rank used have no gradient.
 * With step->more_data == 0 nothing was to be learnt: do not step the optimizer. Collective; blocks until all is reduced.
 */
LS_API LS_MUST_USE ls_status ls_ddp_backward(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss,
                                             int64_t rows, ls_ddp_step *step);

/* Backward without communication (PyTorch's no_sync): gradients and rows add up until the next
 * ls_ddp_backward(). ls_model_zero_grad() before that, or before its ls_ddp_begin(), drops both. */
LS_API LS_MUST_USE ls_status ls_ddp_accumulate(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss,
                                               int64_t rows);

/* Asks all ranks to stop at the same step: carried in the next ls_ddp_backward(). */
LS_API void ls_ddp_request_stop(ls_ddp *ddp);

/* Names of parameters that no rank used in the last step; the array lives until the next step. */
LS_API const char *const *ls_ddp_unused(const ls_ddp *ddp, int *n);

typedef struct ls_ddp_stats {
    int64_t steps;
    int n_buckets;
    int64_t bytes_a_step; /* of gradients, this rank's view */
    double backward_s;    /* all in seconds, summed over steps */
    double
        wait_s; /* spent waiting for buckets after backward had ended: communication not hidden */
    double communication_s; /* from the first bucket's start to the last one's end */
} ls_ddp_stats;

LS_API void ls_ddp_get_stats(const ls_ddp *ddp, ls_ddp_stats *out);

LS_END_DECLS

#endif
