/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp.h - distributed data-parallel training: every rank holds the same model and trains on its
 * own share of each batch.
 *
 *     ls_ddp_create(comm, model, NULL, &ddp);          once, after the model has all layers
 *     ...
 *     ls_ddp_begin(ddp, rows);                         before forward; optional
 *     ls_ddp_backward(ddp, tape, loss, rows, &step);   instead of ls_backward()
 *
 * Gradients are collected in buckets (the first of 1 MiB, then of 25 MiB, in reverse order of
 * use), which are reduced while backward still runs. The mean is weighted: each rank passes the
 * number of rows of its mean loss, and the sum of gradients is divided by the sum of rows, so that
 * each sample counts once even in unequal last batches. A rank without data continues with 0 rows
 * until all ranks have none; then all ranks stop at the same step.
 *
 * Threads    One thread at a time, the one that runs the tape.
 * Failure    As a group's: the first one breaks it. A step without all reductions changes nothing.
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include <lockstep/comm.h>
#include <lockstep/nn.h>

LS_BEGIN_DECLS

typedef struct ls_ddp ls_ddp;

/* How float32 gradients are communicated; float64 gradients are not changed. All ranks get the same
 * bits. FP16, BF16, as torch's fp16_compress_hook and bf16_compress_hook: divided, rounded to 16
 * bits, summed (in float32, rounded once), widened again. POWERSGD, as torch's powerSGD_hook: two
 * factors of each matrix; what they leave out is added to the rank's next gradient. INT8 and INT4:
 * for local_sgd.h only. */
typedef enum ls_ddp_hook {
    LS_DDP_HOOK_NONE,
    LS_DDP_HOOK_FP16,
    LS_DDP_HOOK_BF16,
    LS_DDP_HOOK_INT8,
    LS_DDP_HOOK_INT4,
    LS_DDP_HOOK_POWERSGD
} ls_ddp_hook;

/* Every field but `size` may be 0, which means the default. */
typedef struct ls_ddp_options {
    size_t size;               /* sizeof(ls_ddp_options) */
    size_t first_bucket_bytes; /* 1 MiB */
    size_t bucket_bytes;       /* 25 MiB */
    int no_buffer_broadcast;   /* 1: each rank keeps its own running statistics */
    int check_replicas;        /* compare hashes of parameters every so many steps; 0: disabled */
    int plain_mean;            /* 1: mean over ranks regardless of their rows, as PyTorch's DDP */
    ls_ddp_hook hook;          /* communication hook */
    /* 1: until ls_ddp_destroy() the model's batch norms use the batches of all ranks, as
     * torch.nn.SyncBatchNorm. */
    int sync_batch_norm;
    /* The ranks of sync_batch_norm; must outlive the ls_ddp. NULL: all ranks, in a new group. */
    ls_comm *batch_norm_group;
    /* Above 0: a step consists of so many shards, and its bits do not depend on the ranks. */
    int shards;
    int power_rank; /* columns of the factors of LS_DDP_HOOK_POWERSGD, 1 to 64 */
} ls_ddp_options;

/*
 * Shards (docs/elastic.md). With options.shards = V a step has V shards, V at least the number of
 * ranks: each rank computes those of ls_shard_range() in their order, all but the last one with
 * ls_ddp_accumulate(), the last one with ls_ddp_backward(). Their gradients are added in a tree
 * over the numbers of shards. So the result has the same bits on every number of ranks if all that
 * a shard computes depends on its number and on the step only: rows, random numbers
 * (ls_tape_set_random()) and threads (ls_device_options.thread_invariant).
 * ls_ddp_sync_buffers() is needed before the first shard of a step. Each shard starts with the
 * buffers that the step started with; those that shard 0 leaves are the next ones. ls_grad() is
 * valid after ls_ddp_backward() only. With a hook each node of the tree is the mean over its rows,
 * rounded to the hook's type: 1 + log2(V) roundings. With sync_batch_norm and more shards than
 * ranks a rank computes its shards at the same time, in ls_ddp_step_shards(). LS_EUNSUPPORTED: with
 * no_buffer_broadcast, or a batch_norm_group; on stream devices with a hook, or with a division
 * whose sum is not one all-reduce of backend native.
 */

/* The shards of a rank, *first to *first + *n - 1: contiguous, at least one. LS_EINVAL unless 0 <=
 * rank < size <= shards <= 2^20. Does not block; any thread. */
LS_API LS_MUST_USE ls_status ls_shard_range(int shards, int rank, int size, int *first, int *n);

/*
 * Synchronizes `model` on all ranks: compares names, shapes and types of parameters and buffers
 * (LS_EMISMATCH names the first difference and its rank), then broadcasts rank 0's values. comm and
 * model must outlive it. After layers are added to the model, every call is LS_EINVAL. Until
 * ls_ddp_destroy() the gradients of the parameters belong to the ls_ddp: ls_backward() is LS_EINVAL
 * (ls_ddp_accumulate() computes a rank's own gradients), and so is a second ls_ddp for the model.
 * Frozen parameters (ls_model_freeze()) are not reduced, and no rank waits for them; when others
 * are frozen later, the next ls_ddp_backward() compares them on all ranks and makes new buckets.
 * Collective; blocks. `opt` may be NULL.
 */
LS_API LS_MUST_USE ls_status ls_ddp_create(ls_comm *comm, ls_model *model,
                                           const ls_ddp_options *opt, ls_ddp **out);

/* Clears the gradients of the parameters. After ls_ddp_begin() without ls_ddp_backward() it blocks
 * until all ranks have called ls_ddp_begin() or the group fails. NULL is allowed. */
LS_API void ls_ddp_destroy(ls_ddp *ddp);

/* Broadcasts rank 0's buffers. To be called before each training forward, and before an evaluation
 * or a save (ls_run does it). Nothing when the model has no buffers. Collective. */
LS_API LS_MUST_USE ls_status ls_ddp_sync_buffers(ls_ddp *ddp);

/* The result of a step, the same on all ranks. */
typedef struct ls_ddp_step {
    double weight; /* rows of all ranks in this step, with those of ls_ddp_accumulate() */
    int more_data; /* 1: at least one rank passed rows > 0 */
    int stop;      /* 1: a rank has called ls_ddp_request_stop() */
} ls_ddp_step;

/*
 * Starts the sum of all ranks' rows before forward, so that it is complete before the first bucket.
 * `rows` is the value for the next ls_ddp_backward(), which starts the sum itself without this
 * call. LS_EINVAL, which breaks the group: two calls in a step, different rows in
 * ls_ddp_backward(), or ls_ddp_accumulate() in between. Collective, in the same order of operations
 * on all ranks; blocks only to compare replicas (check_replicas).
 */
LS_API LS_MUST_USE ls_status ls_ddp_begin(ls_ddp *ddp, int64_t rows);

/*
 * Runs backward from the mean loss over `rows` rows and reduces all gradients meanwhile. ls_grad()
 * of every parameter is then the weighted mean, with the same bits on every rank. Parameters that
 * no rank used have no gradient. With step->more_data == 0 no rank had data: do not step the
 * optimizer. Collective; blocks until all gradients are reduced.
 */
LS_API LS_MUST_USE ls_status ls_ddp_backward(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss,
                                             int64_t rows, ls_ddp_step *step);

/* Backward without communication (PyTorch's no_sync): gradients and rows accumulate until the next
 * ls_ddp_backward(); ls_model_zero_grad() before it, and before its ls_ddp_begin(), clears both. */
LS_API LS_MUST_USE ls_status ls_ddp_accumulate(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss,
                                               int64_t rows);

/* Computes the mean loss of shard `shard` (ls_shard_range()) with operators on `tape`, which is
 * reset and in training mode, and needs ls_tape_set_random() for random operators. *loss, which can
 * be read in this function only: NULL when the tape has failed; *rows: at least 0. It gives the
 * same result however many shards a rank has. A failure, with its error text, ends the step. */
typedef ls_status (*ls_shard_fn)(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                 int64_t *rows);

/*
 * A step with shards: calls fn for each shard of this rank, and does for them what
 * ls_ddp_accumulate() and ls_ddp_backward() do; ls_ddp_sync_buffers() comes before, as with these.
 * With sync_batch_norm and more shards than ranks all of them are computed at the same time: fn is
 * suspended in each batch norm until the other shards have arrived there, with those of other
 * ranks. All run in this thread, one at a time, each on a stack of its own of the size of the main
 * thread's. So fn must not hold a lock while it calls operators, nor write state that is shared by
 * shards, of which buffers of the model other than those of batch norms are one; all shards need
 * the same batch norms in the same order (LS_EINVAL), and the memory of their activations is
 * needed for all. Otherwise one shard is computed after the other. Collective; blocks. LS_EINVAL
 * without options.shards, and after ls_ddp_begin().
 */
LS_API LS_MUST_USE ls_status ls_ddp_step_shards(ls_ddp *ddp, ls_shard_fn fn, void *arg,
                                                ls_ddp_step *step);

/* From now on the backward functions compute the gradients of scale * loss, so that small gradients
 * are not 0 in float16: the scale of an ls_grad_scaler, which divides them again. At first 1; over
 * 0 and finite, else LS_EINVAL. Equal on all ranks, and the same in all backwards of a step. */
LS_API LS_MUST_USE ls_status ls_ddp_set_loss_scale(ls_ddp *ddp, double scale);

/* Requests that all ranks stop at the same step; sent with the next ls_ddp_backward(). */
LS_API void ls_ddp_request_stop(ls_ddp *ddp);

/* Names of parameters that no rank used in the last step; the array lives until the next step. */
LS_API const char *const *ls_ddp_unused(const ls_ddp *ddp, int *n);

typedef struct ls_ddp_stats {
    int64_t steps;
    int n_buckets;
    int64_t bytes_a_step;   /* of gradients of this rank */
    double backward_s;      /* seconds of all steps, as the next two */
    double wait_s;          /* waiting for other ranks and buckets: communication without overlap */
    double communication_s; /* from the start of the first bucket to the end of the last one */
} ls_ddp_stats;

LS_API void ls_ddp_get_stats(const ls_ddp *ddp, ls_ddp_stats *out);

LS_END_DECLS

#endif
