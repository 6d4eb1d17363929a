/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.h - a run of an elastic job (lockstep run --elastic) goes on when ranks are lost or come:
 * <lockstep/elastic.h> with all that a run consists of. In other jobs the functions do nothing.
 */
#ifndef LS_TRAIN_RUN_RECOVER_H
#define LS_TRAIN_RUN_RECOVER_H

#include <lockstep/elastic.h>
#include <lockstep/train.h>

#include "train/rank_sums.h"
#include "train/run/report.h"
#include "train/state/state_file.h"

/* Position of a run: with the tensors, all that a resumed run needs. Broadcast as LS_I64. */
typedef struct run_position {
    int64_t epoch;
    int64_t skip;  /* samples of this epoch that another number of ranks has trained on */
    int64_t batch; /* of a part: the next one of the rest of the epoch */
    int64_t step;
    int64_t best_epoch;
    int64_t bucket_rows; /* of the rest of the epoch, where skip is above 0; 0: no buckets */
} run_position;

/*
 * What the parts of all ranks have counted since the last report, so that lost ranks take nothing
 * with them: with --shards of each shard, otherwise the sum of all ranks. In each step one
 * all-reduce brings it up to date, while backward runs. On stream devices, which are not waited for
 * in each step, it remains 0.
 */
typedef struct shared_sums {
    int n;          /* shards, or 1 */
    int width;      /* numbers of each */
    double *kept;   /* up to the last completed step or report; all n * width numbers */
    double *next;   /* with the step under way */
    double *marked; /* as recover_mark() has found them */
    ls_work *work;
} shared_sums;

/* Where ranks return to after a loss: with --sync-every, with the islands (ddp/local_sgd.h);
 * otherwise to the beginning of an evaluation and save, which are done again as a whole. */
typedef struct run_snapshot {
    run_position at;
    ls_run_state state;
    rank_sums epoch;
    report_bad bad;
    int64_t bad_step;
    int64_t bad_images;
    int64_t steps_done;
    int64_t reported; /* of run_recovery */
    double train_s;
    double results[2];
} run_snapshot;

typedef struct run_recovery {
    bool is_elastic;
    ls_ddp *ddp; /* run->ddp; with --sync-every one for recoveries only */
    run_snapshot then;
    int64_t n_history[2][2]; /* history.n_added of snapshots with even and odd numbers, or [0] */
    bool is_marked;          /* an evaluation and save is under way */
    bool is_first;           /* this rank writes the files: it has opened them */
    /* grows with each step, each report and each end of an epoch; with --sync-every: snapshots */
    int64_t completed;
    int64_t n_reports;
    int64_t reported; /* the step of the last report */
    shared_sums sums;
    int64_t n_all;     /* parts of a step, all ranks, in which run->at counts */
    double results[2]; /* of run->values: has_best, best_mean */
    name_list state;   /* names of the items of ls_ddp_elastic() */
} run_recovery;

/* At the end of ls_run_start(). A process in the place of a lost rank joins the others here. */
LS_MUST_USE ls_status recover_begin(ls_run *run);
void recover_close(ls_run *run);

/* A step of the optimizer, or the end of an epoch, is complete. */
void recover_completed(ls_run *run);

/* With --sync-every, after a report and at the end of an epoch, when nothing is counted that was
 * not reported: what the ranks return to after a loss. Collective. */
LS_MUST_USE ls_status recover_snapshot(ls_run *run);

/* Around the last backward of a step: begins to share what this rank's parts have counted; st: of
 * the backward, whose failure comes first. Collective. */
LS_MUST_USE ls_status recover_begin_sums(ls_run *run);
LS_MUST_USE ls_status recover_end_sums(ls_run *run, ls_status st);
/* After a report: what was counted before it is not needed any more. */
void recover_reported(ls_run *run);

/* Before an evaluation and save; recover_unmark() waits until rank 0 has saved. */
void recover_mark(ls_run *run);
LS_MUST_USE ls_status recover_unmark(ls_run *run);
/* Whether the evaluation and save of this position has begun and not ended: its lines are written
 * again. */
bool recover_repeats_end(const ls_run *run);

/* `st` of a call that communicates. LS_OK with *again: the run is at the beginning of a step or of
 * an evaluation, with the ranks there are; otherwise `st`, unless the recovery fails. */
LS_MUST_USE ls_status recover(ls_run *run, ls_status st, bool *again);

#endif
