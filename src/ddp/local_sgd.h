/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_sgd.h - what an ls_run needs of an ls_local_sgd besides <lockstep/local_sgd.h>: its state
 * in files and on other ranks. All functions but local_sgd_is_due() and those that only return a
 * list are collective.
 *
 * The state consists of the step, for each parameter its last mean (which the model has after
 * ls_local_sgd_show()) and the outer momentum, and for each island the state of model and optimizer
 * (local_copy.h). With a delay it has the mean that has been started, and is waited for.
 */
#ifndef LS_DDP_LOCAL_SGD_H
#define LS_DDP_LOCAL_SGD_H

#include <lockstep/local_sgd.h>

#include "base/status.h"

#include <stdbool.h>

/* Whether a mean is applied in step `step`, counted from 1. */
bool local_sgd_is_due(const ls_local_sgd *l, int64_t step);

/* After the last step: what has been started is applied, and then the mean of what has none of this
 * step, so that no step is lost. */
LS_MUST_USE ls_status local_sgd_finish(ls_local_sgd *l);

/* All islands begin with the state that model and optimizer have, the same on all ranks. */
LS_MUST_USE ls_status local_sgd_restart(ls_local_sgd *l, int64_t step);

/* This rank has failed: fails what other ranks wait for in the groups of islands of several ranks,
 * not in the group of all. Not collective. */
void local_sgd_abort(ls_local_sgd *l, const char *why);

/* The outer momentum, "NAME.momentum_buffer"; with a delay also the mean that is not applied yet,
 * "NAME.difference" and "flight" (local_flight in local_state.h). */
const ls_named *local_sgd_outer(const ls_local_sgd *l, int *n);

/* --- recovery (local_elastic.c) --- */

/* Memory for snapshots, of which the first one follows; not collective. */
LS_MUST_USE ls_status local_sgd_protect(ls_local_sgd *l);
/* What a new process gets of the last snapshot besides islands: the same memory always. */
const ls_named *local_sgd_protected(const ls_local_sgd *l, int *n);
/* Each rank gets copies of the islands of the rank before it. *is_called: a rank `calls`. After a
 * failure the last snapshot still counts, unless another rank counts this one. */
LS_MUST_USE ls_status local_sgd_snapshot(ls_local_sgd *l, bool calls, bool *is_called);
/* Of a failed group: frees the mean that has been started, before the group is formed again. */
void local_sgd_drop(ls_local_sgd *l);
/* In a group that was formed again, in which all count as many snapshots: all islands return to the
 * last one, of step `step`. LS_ENOTFOUND on all ranks: no rank has one of the islands. */
LS_MUST_USE ls_status local_sgd_regroup(ls_local_sgd *l, int64_t n_snapshots, int64_t step);

/* --- in files, which rank 0 reads and writes --- */

int local_sgd_islands(const ls_local_sgd *l);
int local_sgd_delay(const ls_local_sgd *l);
/* The ranks of each island; NULL: each rank has islands of its own. */
const int *local_sgd_counts(const ls_local_sgd *l);

/* Rank 0 gets copies of all islands, of each from its first rank, while the model is shown. */
LS_MUST_USE ls_status local_sgd_collect(ls_local_sgd *l);
/* Rank 0, not collective: memory for copies of all islands, to load them. */
LS_MUST_USE ls_status local_sgd_make_copies(ls_local_sgd *l);
/* The copy of an island, "model.NAME" and "optimizer.NAME". */
const ls_named *local_sgd_copy(const ls_local_sgd *l, int island, int *n);
/* Frees copies of the islands of other ranks; not collective. */
void local_sgd_drop_copies(ls_local_sgd *l);

/* All ranks get their islands from rank 0's copies, and its outer momentum; the last mean is what
 * the model has. LS_EFORMAT: rank 0 has loaded a flight that cannot be. */
LS_MUST_USE ls_status local_sgd_spread(ls_local_sgd *l, int64_t step);

#endif
