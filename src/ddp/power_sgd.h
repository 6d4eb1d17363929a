/* SPDX-License-Identifier: Apache-2.0 */
/*
 * power_sgd.h - the hook LS_DDP_HOOK_POWERSGD of an ls_ddp (low_rank.h; as torch has it): of a
 * matrix two factors are sent, and what they do not give stays on the rank that has it and is
 * added to its next gradient (error feedback).
 *
 * For a bucket, with g this rank's share of the mean gradient, e its error, n ranks:
 *
 *     m = g + e;  p = m q          at the bucket's start; all-reduce 1: sum of p, and the gradients
 *     p orthogonal;  q = m^T p     after backward         of other parameters
 *     gradient = p q^T;  e = m - gradient / n             all-reduce 2: sum of q
 *
 * q is the same on all ranks, and that of the next step begins with it (warm start). Parameters
 * with fewer than two dimensions, and those whose factors are not at most half of them, are not
 * compressed, nor is float64. A parameter of several dimensions is a matrix of its first one.
 *
 * In files: q, the number of steps, and the error of each rank. Only the sum of all errors matters
 * for the gradient, so another number of ranks can have them: rank k's goes to rank k mod n.
 */
#ifndef LS_DDP_POWER_SGD_H
#define LS_DDP_POWER_SGD_H

#include <lockstep/ddp.h>

#include "base/status.h"
#include "ddp/low_rank.h"

#include <stdbool.h>

/* --- for ddp.c: nothing, and false, with another hook --- */

/* LS_EUNSUPPORTED: shards, stream devices. LS_EINVAL: options.power_rank. Not collective. */
LS_MUST_USE ls_status power_open(ls_ddp *ddp);
void power_close(ls_ddp *ddp);
/* Of parameter i of the model, which has `count` numbers: how many are sent. */
size_t power_count(const ls_ddp *ddp, int i, size_t count);
/* Memory for the factors of all buckets, when these have been built. */
LS_MUST_USE ls_status power_make_buckets(ls_ddp *ddp);
void power_drop_buckets(ls_ddp *ddp);
/* Whether bucket i has a compressed parameter. */
bool power_has_bucket(const ls_ddp *ddp, int i);
/* Starts the first all-reduce, as work of the bucket. */
LS_MUST_USE ls_status power_start_bucket(ls_ddp *ddp, int i, double divisor);
/* When the first ones have ended: the second ones, and the gradients. is_used[k]: a rank has used
 * parameter k; the errors of others stay, and in a step without rows all. */
LS_MUST_USE ls_status power_finish(ls_ddp *ddp, const double *is_used);

/* --- for ls_run: files, which rank 0 reads and writes; nothing with another hook --- */

/* 0: another hook. */
int power_rank(const ls_ddp *ddp);
/* How many numbers a rank's error has. */
int64_t power_numbers(const ls_ddp *ddp);
/* Rank 0 gets the errors of all ranks, until power_drop(). Collective. */
LS_MUST_USE ls_status power_collect(ls_ddp *ddp);
/* On rank 0, not collective: memory for the errors of `ranks` ranks, to load them. */
LS_MUST_USE ls_status power_make(ls_ddp *ddp, int ranks);
/* Of rank 0 between these: "step", "NAME.q", and "error.K.NAME" of each rank K. */
const ls_named *power_list(const ls_ddp *ddp, int *n);
void power_drop(ls_ddp *ddp);
/* All ranks get what rank 0 has loaded, if it has (power_make()). Collective. */
LS_MUST_USE ls_status power_spread(ls_ddp *ddp);

#endif
