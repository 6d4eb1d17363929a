/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit_plan.h - which rank computes which shard of another rank in an audit, and which one is
 * wrong when two results differ. Pure: all ranks come to the same result.
 *
 * Of the m ranks that have shards each audits one other, and each is audited by one. In audit t
 * rank p of these m audits rank p + d (modulo m) with d = 1 + t mod (m - 1), namely its shard
 * number (t / (m - 1)) modulo its shards. So after (m - 1) k audits, of which k is the most shards
 * of a rank, each shard has been computed by every other rank with shards. A rank without shards
 * (--balance) audits none: it would be too slow for one.
 */
#ifndef LS_DDP_AUDIT_PLAN_H
#define LS_DDP_AUDIT_PLAN_H

#include <stdint.h>

/* A shard of another rank; owner -1: none. */
typedef struct audit_task {
    int owner;
    int shard;
} audit_task;

/* What rank `rank` computes in audit t >= 0; starts: the partition (shard_tree.h). */
audit_task audit_task_of(const int *starts, int size, int rank, int64_t t);

/* The shard of this rank that another one audits then; -1: none. */
int audit_own_shard(const int *starts, int size, int rank, int64_t t);

/* The rank that decides between two: the lowest other one; -1: there are only two. */
int audit_third(int owner, int auditor, int size);

/* What is known when owner and auditor have different results: hashes. */
typedef struct audit_evidence {
    int64_t owner;
    int64_t auditor;
    int64_t third;         /* 0: there is no third rank, and both have computed it again: */
    int64_t owner_again;   /* with a third rank 0 */
    int64_t auditor_again; /* likewise */
} audit_evidence;

typedef enum audit_verdict {
    AUDIT_UNDECIDED,
    AUDIT_OWNER_WRONG,
    AUDIT_AUDITOR_WRONG
} audit_verdict;

/* With a third rank, the one that it does not agree with. Without, the one that does not repeat its
 * result while the other one does. */
audit_verdict audit_decide(const audit_evidence *e);

#endif
