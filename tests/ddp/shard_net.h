/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_net.h - a small network whose steps are divided into shards: it has a batch norm, a dropout
 * and a layer that some shards do not use.
 */
#ifndef TESTS_DDP_SHARD_NET_H
#define TESTS_DDP_SHARD_NET_H

#include "ddp/small_net.h"

#include <stdbool.h>

enum { IN = 7, HIDDEN = 37, OUT = 3, STEPS = 4, SHARDS_TOP = 13, RANKS_TOP = 5 };
enum { FIRST, NORM, SECOND, EXTRA, LAST_NORM }; /* layers */

bool is_stream_device(void);

LS_MUST_USE ls_status shard_net_open(small_net *n);

/* Shards have different numbers of rows; in odd steps one has none. */
int shard_rows_of(int step, int shard);
LS_MUST_USE ls_status shard_rows_at(small_net *n, int step, int shard, ls_tensor **x,
                                    ls_tensor **y);

/* The loss of a shard on n->tape; the caller destroys *x and *y. */
LS_MUST_USE ls_status shard_loss_of(small_net *n, int step, int shard, ls_tensor **x, ls_tensor **y,
                                    ls_tensor **loss);

/* Forward and backward of a shard; with is_last the end of the step. */
LS_MUST_USE ls_status shard_through(small_net *n, int step, int shard, bool is_last,
                                    ls_ddp_step *result);

/* A step of ls_ddp_step_shards(). */
typedef struct shard_step {
    small_net *net;
    int step;
    ls_tensor *x[SHARDS_TOP];
    ls_tensor *y[SHARDS_TOP];
} shard_step;

/* For ls_ddp_step_shards(), with a shard_step. */
ls_status shard_compute(void *arg, int shard, ls_tape *tape, ls_tensor **loss, int64_t *rows);

/* A whole step in one call. */
LS_MUST_USE ls_status shard_step_run(small_net *n, int step, ls_shard_fn fn, ls_ddp_step *result);

#endif
