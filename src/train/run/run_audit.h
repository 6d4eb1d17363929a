/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_audit.h - --audit K: in every K-th step each rank also computes a shard of another rank, and
 * compares the results before the optimizer runs (ddp/audit.h). To the program that shard is one
 * more batch of ls_run_next(), before those of the rank's own shards; what it counts for it is
 * dropped. When results differ, the ranks that decide get the batch of that shard once more. Then
 * the run ends, or with --heal the step is done again without the wrong rank, which ends at its
 * second offence in an elastic job.
 *
 * Without --audit the functions do nothing.
 */
#ifndef LS_TRAIN_RUN_RUN_AUDIT_H
#define LS_TRAIN_RUN_RUN_AUDIT_H

#include <lockstep/train.h>

#include "base/status.h"
#include "ddp/audit.h"
#include "train/rank_sums.h"

#include <stdbool.h>

struct split_part;

typedef enum audit_batch { AUDIT_NONE, AUDIT_GIVEN, AUDIT_COMPUTED } audit_batch;

typedef struct run_audit {
    struct split_part *reader; /* of shards of other ranks; NULL: not open */
    bool is_begun;             /* the current step is audited */
    bool differs;              /* results differ: the ranks that decide compute a shard again */
    int shard;                 /* that this rank has to compute now; -1: none */
    audit_batch batch;         /* whether the current batch is that of `shard` */
    audit_finding found;
    rank_sums window; /* what the program counts for such batches */
    int64_t start_ns; /* of the batch of an audit */
    int64_t ns;       /* in such batches, since the last step */
    // What is counted at the beginning of the step.
    rank_sums *before; /* of each part; NULL: not kept */
    double samples;
    int64_t bad_step;
    int64_t offences; /* how often this rank was wrong */
    // Of this process: steps that were audited, differences, steps that were done again.
    int64_t n_steps;
    int64_t n_found;
    int64_t n_again;
} run_audit;

/* LS_EINVAL, LS_EUNSUPPORTED: why this run cannot be audited. */
LS_MUST_USE ls_status audit_check_run(const ls_run *run);
void audit_close_run(ls_run *run);
/* The shards are read by other samplers from now on. */
void audit_close_reader(ls_run *run);

/* At the beginning of a step, when buffers are synchronized. */
LS_MUST_USE ls_status audit_begin(ls_run *run);
/* Whether the next batch is one of an audit, and that batch. */
bool audit_has_batch(const ls_run *run);
LS_MUST_USE ls_status audit_load(ls_run *run, ls_batch *batch);
/* In place of a step: backward of that batch. */
LS_MUST_USE ls_status audit_backward(ls_run *run, ls_tensor *loss);
/* Before the next batch. LS_EINVAL: the program has not computed that one. */
LS_MUST_USE ls_status audit_leave_batch(ls_run *run);

/* After the last backward of a step. *differs: the step does not end. Collective. */
LS_MUST_USE ls_status audit_compare(ls_run *run, bool *differs);
/* Then, when this rank has no batch to compute: which rank is wrong. LS_OK: the run is at the
 * beginning of the step again. Collective. */
LS_MUST_USE ls_status audit_judge(ls_run *run);

/* The step is complete. */
void audit_end(ls_run *run);
/* After a recovery: as if the step had not begun. */
void audit_drop(ls_run *run);

/* The time of audits since the last call. */
int64_t audit_take_ns(ls_run *run);

/* In the last lines of a run. On rank 0. */
void audit_print(ls_run *run);

#endif
