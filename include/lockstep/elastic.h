/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elastic.h - training that goes on when ranks are lost or come, without reading a checkpoint
 * (docs/elastic.md). ls_run does all of this by itself; a program with its own loop needs:
 *
 *     ls_ddp_elastic(ddp, &options);          once, before the first step
 *     st = ls_ddp_recover(ddp, st, &again);   after each step, with its status
 *     if (again) continue;                    from `step`, on the ranks there are now
 *
 * In a job that is not started with lockstep run --elastic these functions do nothing.
 */
#ifndef LOCKSTEP_ELASTIC_H
#define LOCKSTEP_ELASTIC_H

#include <lockstep/ddp.h>

LS_BEGIN_DECLS

typedef struct ls_elastic_options {
    size_t size; /* sizeof(ls_elastic_options) */
    /* What steps change besides the model, the same on all ranks: ls_optimizer_state(), and what
     * the program counts. The array is copied; what it refers to is borrowed until the end. */
    const ls_named *state;
    int n_state;
    int64_t *step; /* completed steps: the program adds one after each update. Borrowed likewise */
} ls_elastic_options;

/*
 * From now on this rank can recover. A process that was started in the place of a lost rank has had
 * a group of itself alone until this call, which waits until the others have completed a step, lets
 * it join them and receives their state: rank, size, model, `state` and *step change. So all that
 * is collective belongs before the call on no rank, or after it on all. Otherwise it does not
 * block. LS_EUNSUPPORTED: a backend other than native, or a batch_norm_group; LS_EINVAL: a second
 * call, or `step` is NULL.
 */
LS_API LS_MUST_USE ls_status ls_ddp_elastic(ls_ddp *ddp, const ls_elastic_options *opt);

/*
 * To be called after each step, with its status, and after a collective that has failed. When the
 * group has failed because of other ranks, or new processes wait, it forms the group again and
 * returns LS_OK with *again = 1: all ranks have the state of the highest completed step, *step says
 * which. Buffers have the values with which that step ended. Rank, size and the shards of this rank
 * may have changed; call ls_optimizer_loaded() for an optimizer whose state was given. It blocks
 * until all living ranks have come. Without anything to do it returns `st` with *again = 0, without
 * communication. Another failure is returned as it is; LS_ECANCELED: the others have gone on
 * without this process. The group's sub-groups have failed: create them again.
 */
LS_API LS_MUST_USE ls_status ls_ddp_recover(ls_ddp *ddp, ls_status st, int *again);

/* LS_ECANCELED: the other ranks have gone on without this process, which must not write files. To
 * be called before a rank writes a checkpoint. LS_OK in a job that is not elastic. */
LS_API LS_MUST_USE ls_status ls_ddp_check_seat(ls_ddp *ddp);

/* The last recovery of this process. */
typedef struct ls_recovery {
    int count;      /* recoveries so far; 0: none, and all else is 0 */
    int64_t step;   /* with whose state the ranks went on */
    int ranks;      /* that there were then */
    int new_ranks;  /* among them, processes that had just been started */
    int late_ranks; /* among them, ranks that had missed the last update */
    double seconds; /* from the call to its end, on this rank */
} ls_recovery;
LS_API void ls_ddp_last_recovery(const ls_ddp *ddp, ls_recovery *out);

/*
 * Compares the parameters of all ranks, and `state` (n entries, may be NULL with 0), by hashes.
 * Ranks that differ from the majority of the ranks get its values, rank 0 logs which, and
 * *n_healed counts them. To be called between steps, in any job; call ls_optimizer_loaded() for an
 * optimizer whose state was given. Collective; blocks. LS_EMISMATCH, on all ranks: no majority
 * agrees; the text names the first difference with both hashes.
 */
LS_API LS_MUST_USE ls_status ls_ddp_heal(ls_ddp *ddp, const ls_named *state, int n, int *n_healed);

LS_END_DECLS

#endif
