/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_means.h - the tree over shards with a communication hook: arithmetic on memory.
 *
 * A node is the mean over its rows, rounded to the hook's type: a leaf is the rounded gradient of a
 * shard, and the node of a and b is (rows(a) a + rows(b) b) / (rows(a) + rows(b)), in float32,
 * rounded. So each node can be communicated in 16 bits without a further rounding, and the bits do
 * not depend on which nodes are. Means instead of sums, because sums leave the range of float16,
 * and the rows of the whole step are not known when the first shards are added.
 *
 * `type` is that of a bucket: float32 values are rounded to `wire`; float64 values are not, and
 * their wire type is float64.
 */
#ifndef LS_DDP_SHARD_MEANS_H
#define LS_DDP_SHARD_MEANS_H

#include "comm/backends/reduce.h"
#include "ddp/shard_tree.h"

/* Rounds the values in place. */
void mean_round(void *values, size_t n, ls_dtype type, ls_dtype wire);

/* b = the mean of a over `a_weight` rows and b over `b_weight` rows, rounded. */
void mean_add(const void *a, double a_weight, void *b, double b_weight, size_t n, ls_dtype type,
              ls_dtype wire);

#define MEAN_CHUNK      ((size_t)256) /* elements of a part, which stay in the cache */
#define MEAN_TREE_BYTES (SHARD_PIECES_MOST * MEAN_CHUNK * sizeof(double))

/* dst = the root. The operands are nodes in the order of shards, which cover all, and means over so
 * many rows; all have the wire type. `memory` has MEAN_TREE_BYTES, aligned for double. */
void mean_tree(void *dst, const reduce_operand *operands, const double *rows, int n_operands,
               int shards, size_t n, ls_dtype type, ls_dtype wire, void *memory);

#endif
