/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_step.h - what an ls_run needs of an ls_ddp: ls_ddp_step_shards() for a caller that has
 * state of its own for each shard, partitions of shards by speed, and a check of each new group.
 */
#ifndef LS_DDP_SHARD_STEP_H
#define LS_DDP_SHARD_STEP_H

#include <lockstep/ddp.h>

#include "base/status.h"
#include "ddp/balance.h"
#include "ddp/shard_tree.h"

#include <stdbool.h>

typedef struct shard_calls {
    ls_shard_fn compute;
    /* NULL, or called when the compute function of a shard goes on after others ran. */
    void (*resumed)(void *arg, int shard);
    void *arg;
} shard_calls;

LS_MUST_USE ls_status ddp_step_shards(ls_ddp *ddp, const shard_calls *calls, ls_ddp_step *step);

/* Whether check_replicas has found that parameters differ, on all ranks alike: the group lives. */
bool ddp_replicas_differ(const ls_ddp *ddp);

/* Whether the shards of a rank must be computed at the same time, by ddp_step_shards(), as soon as
 * there are more of them than ranks: they meet in batch norms. */
bool shards_may_meet(const ls_ddp *ddp);
/* Whether there are more in the present group. */
bool shards_are_together(const ls_ddp *ddp);

/* --- partitions by speed (balance.h) --- */

/* ls_ddp_create() with shards that are divided by the speed of the ranks, or with batch_rows > 0
 * the rows of batches, of which a rank then has so many on average. There may be fewer shards than
 * ranks, except with sync_batch_norm, where each rank has one. LS_EUNSUPPORTED on stream devices,
 * where the host does not see how long the device computes. LS_EINVAL: rows with shards, or with
 * plain_mean. */
LS_MUST_USE ls_status ddp_create_balanced(ls_comm *comm, ls_model *model, const ls_ddp_options *opt,
                                          int batch_rows, ls_ddp **out);

/* The shards of this rank in the next step. The ddp has shards. */
shard_node ddp_shard_range(const ls_ddp *ddp);

/* The rows of each rank in the batches of the next step; NULL: they are not divided by speed. */
const int *ddp_rows(const ls_ddp *ddp);

/* In place of ls_ddp_backward(), on a rank without shards. Collective. */
LS_MUST_USE ls_status ddp_step_idle(ls_ddp *ddp, ls_ddp_step *step);

/* Seconds in which batch norms have waited for other ranks, since the start. */
double ddp_batch_norm_wait(const ls_ddp *ddp);

/* Of this rank in a step. */
typedef struct ddp_times {
    int64_t n;        /* shards that it had, or rows */
    int64_t own_ns;   /* its own time for them, without waiting */
    int64_t fixed_ns; /* for the rest of the step */
    int64_t wait_ns;  /* for gradients */
} ddp_times;

/* After a step of a balanced ddp. */
void ddp_note_times(ls_ddp *ddp, const ddp_times *t);

/* Whether the next step has another partition, by speed or because of an audit (audit.h): on all
 * ranks or none. */
bool ddp_has_new_partition(const ls_ddp *ddp);

/* Before the next step: the new partition. With shards collective. */
LS_MUST_USE ls_status ddp_change_partition(ls_ddp *ddp);

/* NULL: it is not balanced. */
const balancer *ddp_balancer(const ls_ddp *ddp);

/* What a rank of a balanced ddp has. */
typedef struct balance_share {
    int n;         /* shards of the next step, or rows of its batches */
    int n_all;     /* of all ranks */
    double one_s;  /* for one, in the last steps; 0: unknown */
    double wait_s; /* for gradients, in all steps after its own were complete */
} balance_share;

balance_share ddp_share(const ls_ddp *ddp, int rank);

/* Of this rank: as one_s, also of the last step. */
double ddp_own_s(const ls_ddp *ddp);

/* --- recovery --- */

/* Broadcasts an entry of a state, in place. */
LS_MUST_USE ls_status ddp_send_item(ls_comm *comm, const ls_named *item, int source);

/* An ls_ddp for ls_ddp_elastic() only: it takes no gradients, so that local SGD (local_sgd.h) can
 * recover. */
LS_MUST_USE ls_status ddp_create_local(ls_comm *comm, ls_model *model, ls_ddp **out);
/* All ranks of it have seen that new processes wait: the next ls_ddp_recover() lets them join. */
void ddp_call(ls_ddp *ddp);

/* A collective of a group that was formed again (ls_ddp_elastic()), before ranks compare their
 * states; has_state: this rank has one. A failure is that of the recovery. */
typedef ls_status (*ddp_check_fn)(void *arg, bool has_state);
void ddp_check_groups(ls_ddp *ddp, ddp_check_fn fn, void *arg);

#endif
