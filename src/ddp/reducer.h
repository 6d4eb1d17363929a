/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reducer.h - the inside of an ls_ddp: buckets of gradients that are reduced while backward still runs.
 *
 * Life of a step: the sum of the ranks' weights starts, before forward (ls_ddp_begin) or with
 * backward; gradients are written by autograd straight into bucket memory (each leaf's target is a
 * view of its bucket); as a bucket's last gradient becomes complete, its all-reduce starts, in the
 * order of bucket numbers on every rank, and divides by that sum; after backward the rest starts,
 * followed by one small float64 operation (flags, which parameters were used); then everything is
 * waited for.
 */
#ifndef LS_DDP_REDUCER_H
#define LS_DDP_REDUCER_H

#include <lockstep/ddp.h>

#include "autograd/autograd.h"
#include "base/status.h"
#include "ddp/bucket_plan.h"

#include <stdbool.h>

typedef struct bucket {
    char *memory; /* ls_comm_alloc: reduced without copies */
    size_t bytes;
    ls_dtype dtype;
    int n_waiting; /* gradients of this backward that are not complete yet */
    ls_work *work; /* its reduction, while under way */
    uint16_t *
        packed; /* with a communication hook, float32 buckets: what is reduced instead; ls_comm_alloc */
} bucket;

typedef struct ddp_param {
    const char *name;
    ls_tensor *leaf;
    ls_tensor *target; /* view of its bucket's memory */
    bool fired;        /* complete in this backward */
} ddp_param;

struct ls_ddp {
    ls_comm *comm;
    ls_model *model;
    ls_ddp_options options; /* resolved */

    ddp_param *params;
    int n_params;
    int n_buffers; /* of the model, as n_params at ls_ddp_create() */
    bucket *buckets;
    int n_buckets;
    bucket_plan plan;
    int next_bucket;      /* the first that has not started in this step */
    bool reducing;        /* this backward starts reductions; false: it only accumulates */
    autograd_owner owner; /* of all parameters' gradients */

    int *order;   /* of completion in the first backward, then rank 0's for all */
    int n_fired;  /* entries of order seen in this backward */
    bool ordered; /* order is rank 0's: buckets are laid out anew at the next fresh step */
    bool rebuilt;

    ls_comm *batch_group; /* of synchronised batch norms; NULL: there are none */
    bool owns_batch_group;

    double total_weight;  /* of all ranks: the divisor, whose sum runs ahead of the first bucket */
    ls_work *weight_work; /* while under way */

    char *buffer_block; /* all buffers back to back, for one broadcast; ls_comm_alloc */
    size_t buffer_bytes;

    double pending_weight; /* of ls_ddp_accumulate, not reduced yet */
    int64_t begun_rows;    /* of ls_ddp_begin(), without accumulated ones */
    bool pending;
    bool begun; /* the sum of weights of the next ls_ddp_backward() has been started */
    bool stop_requested;
    double *small; /* the small operation: SMALL_FIXED values, then one a parameter */
    const char **unused;
    int n_unused;

    int64_t first_start_ns; /* of this step's first bucket */
    ls_ddp_stats stats;
};

/* LS_EINVAL, told to all ranks, when the model has other tensors than at ls_ddp_create(). */
LS_MUST_USE ls_status ddp_check_model(ls_ddp *ddp);

/* replicas.c: making and keeping the ranks' copies equal. All are collective. */
LS_MUST_USE ls_status replicas_compare(ls_ddp *ddp);   /* names, shapes, types */
LS_MUST_USE ls_status replicas_broadcast(ls_ddp *ddp); /* rank 0's parameters and buffers */
LS_MUST_USE ls_status replicas_check(ls_ddp *ddp);     /* LS_EMISMATCH names parameter and ranks */

/* sync_batch_norm.c: as the options ask. Both are collective. */
LS_MUST_USE ls_status sync_batch_norm_begin(ls_ddp *ddp);
void sync_batch_norm_end(ls_ddp *ddp);

/* buckets.c: memory and views for the current plan. */
LS_MUST_USE ls_status
buckets_build(ls_ddp *ddp); /* from ddp->order; the old ones are freed first */
void buckets_free(ls_ddp *ddp);
/* The type in which float32 gradients cross the wire. */
ls_dtype bucket_wire_type(const ls_ddp *ddp);

#endif
