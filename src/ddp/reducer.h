/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reducer.h - the members of an ls_ddp: buckets of gradients, which are reduced while backward
 * runs.
 *
 * One step: (1) the sum of the ranks' weights starts, before forward (ls_ddp_begin) or with
 * backward; (2) autograd writes gradients straight into bucket memory, because each leaf's target
 * is a view of its bucket; (3) when the last gradient of a bucket is complete, its all-reduce
 * starts, in the order of bucket numbers on every rank, and divides by the sum of weights; (4)
 * after backward the remaining buckets start, then one small float64 operation (stop flag, used
 * parameters); (5) all are waited for.
 *
 * The sum of weights is a number of the host, also on stream devices: the program gets it in the
 * same step (ls_ddp_step), and a divisor in device memory would save no wait for the device, of
 * which a step has none. Its sum runs during forward, and the device still has the operators of
 * forward to execute when the host waits for a late rank. CUDA graphs keep no divisor: they end at
 * the all-reduces, and a step is recorded with its own weight (tests/ddp/test_ddp_graphs.c).
 *
 * ddp/: data-parallel training, behind <lockstep/ddp.h>; train also uses shard_step.h.
 */
#ifndef LS_DDP_REDUCER_H
#define LS_DDP_REDUCER_H

#include <lockstep/ddp.h>

#include "autograd/autograd.h"
#include "base/status.h"
#include "ddp/audit.h"
#include "ddp/bucket_plan.h"
#include "ddp/power_sgd.h"
#include "ddp/shard_balance.h"
#include "ddp/shard_step.h"
#include "ddp/shards.h"
#include "ddp/shards_together.h"

#include <stdbool.h>

typedef struct bucket {
    char *memory; /* part of bucket_memory: reduced without copies */
    size_t bytes;
    ls_dtype dtype;
    int n_waiting; /* gradients of this backward that are not complete yet */
    ls_work *work; /* its reduction; NULL when none is pending */
    /* Of float32 buckets with a communication hook: the elements that are reduced;
     * ddp_alloc(). */
    uint16_t *packed;
    /* On a stream device, of such buckets: tensors over `memory` and `packed`, else NULL. */
    ls_tensor *values;
    ls_tensor *halves;
} bucket;

typedef struct ddp_param {
    const char *name;
    ls_tensor *leaf;
    ls_tensor *target; /* view of its bucket's memory */
    bool ready;        /* complete in this backward */
} ddp_param;

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): by meaning
struct ls_ddp {
    ls_comm *comm;
    ls_model *model;
    ls_device *device;      /* the model's; NULL for one without tensors */
    ls_ddp_options options; /* resolved */

    ddp_param *params; /* of the model, without frozen ones */
    int n_params;
    int n_model_params; /* all of the model at ls_ddp_create() */
    int n_buffers;      /* likewise */
    bool is_compared;   /* params are the same on all ranks */
    bool is_local;      /* of ddp_create_local() */
    bucket *buckets;
    int n_buckets;
    char *bucket_memory; /* of all, one after the other; ddp_alloc() */
    bucket_plan plan;
    int next_bucket;      /* the first that has not started in this step */
    bool reducing;        /* this backward starts reductions; false: it only accumulates */
    autograd_owner owner; /* of all parameters' gradients */

    int *order;   /* of completion in the first backward, then rank 0's for all */
    int n_ready;  /* entries of order seen in this backward */
    bool ordered; /* order is rank 0's; buckets are rebuilt at the next step without gradients */
    bool rebuilt;

    shard_state *shards;       /* NULL: a step has no shards */
    shard_balance *balance;    /* NULL: shards, or rows, are divided equally */
    shards_together *together; /* shards_together.c; NULL: no step has needed it */
    bool is_computed;          /* together_give() has the gradients of the next shard */
    ls_tape *shard_tape;       /* of ls_ddp_step_shards(); NULL before the first */
    struct ddp_audit *audit;   /* audit.c; NULL: no step was audited */
    bool is_divided_anew;      /* an audit has changed the partition of the next step */

    ls_comm *batch_group; /* of synchronized batch norms; NULL without them */
    bool owns_batch_group;

    double loss_scale;    /* of ls_ddp_set_loss_scale() */
    double total_weight;  /* of all ranks: the divisor */
    ls_work *weight_work; /* its sum; NULL when it is not pending */

    double pending_weight; /* of ls_ddp_accumulate, not reduced yet */
    int64_t begun_rows;    /* of ls_ddp_begin(), without accumulated ones */
    bool pending;          /* ls_ddp_accumulate() has left gradients */
    bool begun;            /* the sum of weights of the next ls_ddp_backward() has been started */
    bool stop_requested;
    bool replicas_differ; /* of check_replicas */
    double *small;        /* the small operation: SMALL_FIXED values, then one a parameter */
    const char **unused;
    int n_unused;

    struct power_state *power;   /* power_sgd.c; NULL: another hook */
    struct ddp_elastic *elastic; /* elastic.c; NULL: it cannot recover */
    ddp_check_fn check;          /* of each group that is formed again; NULL: none */
    void *check_arg;
    bool is_called; /* new processes wait for the group to be formed again */

    int64_t first_start_ns; /* of this step's first bucket */
    double weight_wait_s;   /* waiting for the sum of weights */
    double batch_norm_wait_s;
    ls_ddp_stats stats;
};

/* LS_EINVAL, which aborts the group, when tensors were added to the model after ls_ddp_create(). */
LS_MUST_USE ls_status ddp_check_model(ls_ddp *ddp);

/* After ls_model_freeze(): buckets for the parameters that are not frozen now. Accumulated
 * gradients stay. */
LS_MUST_USE ls_status ddp_follow_model(ls_ddp *ddp);

/* Aborts the group, because the other ranks wait for this rank's buckets. Returns `st`. */
ls_status ddp_abort(ls_ddp *ddp, ls_status st);

/* LS_EINVAL when they are below 0. */
LS_MUST_USE ls_status ddp_check_rows(int64_t rows);

/* The number of a parameter. */
int ddp_find_param(const ls_ddp *ddp, const ls_tensor *leaf);

/* What a backward from the mean loss over so many rows begins with. */
double ddp_seed(const ls_ddp *ddp, int64_t rows);

/* Lists the parameters that are not frozen; the buckets of others must be free. */
LS_MUST_USE ls_status ddp_take_params(ls_ddp *ddp);
/* As if the current step had not begun; waits for what it has started. */
void ddp_drop_step(ls_ddp *ddp);

/* elastic.c. Without ls_ddp_elastic(): nothing, false. */
void elastic_close(ls_ddp *ddp);
LS_MUST_USE ls_status elastic_begin_step(ls_ddp *ddp); /* ddp->elastic is not NULL */
LS_MUST_USE ls_status elastic_end_step(ls_ddp *ddp);   /* when all gradients are reduced */
bool elastic_is_called(const ls_ddp *ddp);

/* replicas.c: makes the ranks' models equal and checks it. All are collective. */
LS_MUST_USE ls_status replicas_compare(ls_ddp *ddp);   /* names, shapes, types */
LS_MUST_USE ls_status replicas_broadcast(ls_ddp *ddp); /* rank 0's parameters and buffers */
LS_MUST_USE ls_status replicas_broadcast_buffers(ls_ddp *ddp);
LS_MUST_USE ls_status replicas_check(ls_ddp *ddp); /* LS_EMISMATCH names parameter and ranks */

/* sync_batch_norm.c: with options.sync_batch_norm. Both are collective. */
LS_MUST_USE ls_status sync_batch_norm_begin(ls_ddp *ddp);
void sync_batch_norm_end(ls_ddp *ddp);

/* Waits for the end of an operation and frees its handle. On a stream device the device's later
 * operators wait, and the host does not. */
LS_MUST_USE ls_status ddp_wait(const ls_ddp *ddp, ls_work *work);

/* bucket_pack.c: for communication hooks. On a stream device both are queued. */
/* packed = memory / divisor, rounded to the hook's type. */
LS_MUST_USE ls_status bucket_pack(ls_ddp *ddp, bucket *b, double divisor);
/* memory = packed, in float32. */
LS_MUST_USE ls_status bucket_unpack(ls_ddp *ddp, bucket *b);

/* buckets.c: memory and views for the current plan. */
/* Builds them in the order of ddp->order; the old ones are freed first. */
LS_MUST_USE ls_status buckets_build(ls_ddp *ddp);
void buckets_free(ls_ddp *ddp);
/* Memory that is reduced: the device's on a stream device, else ls_comm_alloc()'s. NULL may be
 * freed. */
LS_MUST_USE ls_status ddp_alloc(ls_ddp *ddp, size_t bytes, void **out);
void ddp_free(ls_ddp *ddp, void *memory);
/* The type in which float32 gradients are communicated. */
ls_dtype bucket_wire_type(const ls_ddp *ddp);

#endif
