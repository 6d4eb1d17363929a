/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_step.h - what an ls_run needs of an ls_ddp: ls_ddp_step_shards() for a caller that has
 * state of its own for each shard, and a check of each new group.
 */
#ifndef LS_DDP_SHARD_STEP_H
#define LS_DDP_SHARD_STEP_H

#include <lockstep/ddp.h>

#include "base/status.h"

#include <stdbool.h>

typedef struct shard_calls {
    ls_shard_fn compute;
    /* NULL, or called when the compute function of a shard goes on after others ran. */
    void (*resumed)(void *arg, int shard);
    void *arg;
} shard_calls;

LS_MUST_USE ls_status ddp_step_shards(ls_ddp *ddp, const shard_calls *calls, ls_ddp_step *step);

/* Whether the shards of a rank are computed at the same time: they meet in batch norms, and there
 * are more of them than ranks. */
bool shards_are_together(const ls_ddp *ddp);

/* A collective of a group that was formed again (ls_ddp_elastic()), before ranks compare their
 * states; has_state: this rank has one. A failure is that of the recovery. */
typedef ls_status (*ddp_check_fn)(void *arg, bool has_state);
void ddp_check_groups(ls_ddp *ddp, ddp_check_fn fn, void *arg);

#endif
