/* SPDX-License-Identifier: Apache-2.0 */
/* small_ranks.h - the small run (small_run.h) on several ranks of one test. */
#ifndef TESTS_TRAIN_SMALL_RANKS_H
#define TESTS_TRAIN_SMALL_RANKS_H

#include "harness/ranks.h"
#include "train/small_folder.h"
#include "train/small_run.h"

/* Of each rank, in shared memory. */
extern small_result *small_results;

/* small_dir_make(), and memory for the results. */
int small_ranks_set_up(void **state);

/* A body for ls_test_ranks(), whose arg is a small_job: only the last rank stops or spoils. */
ls_status small_rank(const ls_test_rank *self, void *arg);

/* The same bits of weights, losses and evaluations. */
void small_assert_same(const small_result *a, const small_result *b);

/* The job fails on `n` ranks, at most 2, and rank 0's error has this text. */
void small_expect_error(int n, const small_job *job, const char *text);

/* The result of rank 0; asserts that all ranks have its weights. */
small_result small_run_on(int n, const small_job *job);

#endif
