/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit.h - ranks check each other's shards (--audit): in an audited step each rank with shards
 * also computes one shard of another rank, from the same inputs, and compares digests of gradients,
 * loss and buffers with those of the rank that has the shard. audit_plan.h assigns shards to ranks.
 *
 *     ddp_audit_begin()      after ls_ddp_sync_buffers(): which shard this rank computes
 *     ddp_audit_backward()   for that shard, before the first shard of the step
 *     ...                    the step, up to ls_ddp_backward() or ddp_step_idle()
 *     ddp_audit_compare()    before the optimizer: whether results differ, and of which ranks
 *     ddp_audit_end()        after the optimizer
 *
 * After a difference a third rank, or without one both ranks, compute the shard again
 * (ddp_audit_backward()), ddp_audit_judge() says which one is wrong, and ddp_audit_undo() takes the
 * step back, to be done again without it.
 *
 * The cost of an audit: a shard, two digests of the gradients, a copy of the buffers, an all-gather
 * of 24 bytes a rank; memory for the gradients of one shard.
 *
 * An ls_run calls these. Only with shards, on host devices, without sync_batch_norm.
 */
#ifndef LS_DDP_AUDIT_H
#define LS_DDP_AUDIT_H

#include <lockstep/ddp.h>

#include "base/status.h"
#include "ddp/audit_plan.h"

#include <stdbool.h>

/* The same on all ranks. */
typedef struct audit_finding {
    int shard;
    int owner; /* the rank that has it */
    int auditor;
    int third;         /* audit_third() */
    const char *param; /* the first parameter with another gradient; NULL: none */
    bool is_loss;      /* without such a parameter: the loss differs, else buffers */
    audit_evidence evidence;
    int64_t *offences; /* of each rank: how often it was wrong before; of the ddp */
} audit_finding;

/* LS_EUNSUPPORTED, LS_EINVAL: why shards of this ddp cannot be audited. */
LS_MUST_USE ls_status ddp_audit_check(const ls_ddp *ddp);

/* Begins audit `number`; *shard: what this rank has to compute, -1: nothing. Not collective. */
LS_MUST_USE ls_status ddp_audit_begin(ls_ddp *ddp, int64_t number, int *shard);

/* Backward of a shard for an audit, from its mean loss over so many rows: digests only. Changes
 * neither gradients nor buffers of the model. Not collective. */
LS_MUST_USE ls_status ddp_audit_backward(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss, int64_t rows);

/* *differs: some rank's result is another one than that of its auditor; *out is the one with the
 * lowest shard, and the buffers are those with which the step began. offences: of this rank.
 * Collective. */
LS_MUST_USE ls_status ddp_audit_compare(ls_ddp *ddp, int64_t offences, bool *differs,
                                        audit_finding *out);

/* Whether this rank computes the shard of the finding again. */
bool ddp_audit_is_asked(const ls_ddp *ddp, const audit_finding *found);

/* After the ranks that are asked have done it. Completes the evidence. Collective. */
LS_MUST_USE ls_status ddp_audit_judge(ls_ddp *ddp, audit_finding *found, audit_verdict *out);

/* The step is not complete; the optimizer must not have run. */
void ddp_audit_undo(ls_ddp *ddp);
/* The next step, which ddp_change_partition() must precede, is done by the other ranks. The ranks
 * that are left out in a step have no shards; ddp_audit_end() ends that. The same on all ranks. */
LS_MUST_USE ls_status ddp_audit_leave_out(ls_ddp *ddp, int rank);
bool ddp_audit_leaves_out(const ls_ddp *ddp);

/* The step is complete. */
void ddp_audit_end(ls_ddp *ddp);

/* --- for ddp/ --- */

/* Of this rank's shards: of the current one before backward, when a gradient is complete, and after
 * its last one. Nothing unless it is audited. */
LS_MUST_USE ls_status audit_note_loss(ls_ddp *ddp, const ls_tensor *loss, int64_t rows);
LS_MUST_USE ls_status audit_note_gradient(ls_ddp *ddp, int param);
LS_MUST_USE ls_status audit_note_buffers(ls_ddp *ddp);

/* The partition without the ranks that are left out. False: there are none. */
bool audit_divide(const ls_ddp *ddp, int *starts);
/* The parameters of the ddp change. */
void audit_drop_params(ls_ddp *ddp);
/* Before a recovery: as if no audit had begun. */
LS_MUST_USE ls_status audit_drop_step(ls_ddp *ddp);
void audit_close(ls_ddp *ddp);

#endif
