/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_tree.h - the fixed tree in which the gradients of shards are added: pure arithmetic.
 *
 * A step has V shards, numbered from 0. Node k of level l covers the shards [k 2^l, (k+1) 2^l) that
 * exist, and is the sum of its halves; if the right half has no shards, it is the left half. The
 * root covers all shards. V = 5, as in comm/backends/reduce.h:
 *
 *     level 3             0..4
 *     level 2       0..3        4
 *     level 1    0..1  2..3     4
 *     level 0    0  1  2  3     4
 *
 * A *partition* gives each of n ranks a contiguous range of shards: rank r has the shards
 * [starts[r], starts[r + 1]), which may be none; starts[0] is 0 and starts[n] is V. In an equal
 * partition starts[r] is r V / n, rounded up. The tree does not depend on the partition. A rank
 * adds its own shards as far as the tree allows, which leaves it the *pieces* of its range: the
 * largest nodes that lie within it.
 */
#ifndef LS_DDP_SHARD_TREE_H
#define LS_DDP_SHARD_TREE_H

#include "base/status.h"

#include <stdbool.h>

enum {
    SHARDS_MOST = 1 << 20,
    /* of one rank: at most two of each level below the root's, 20 */
    SHARD_PIECES_MOST = 40
};

/* A node: the shards [first, first + n). */
typedef struct shard_node {
    int first;
    int n;
} shard_node;

/* The pieces that a rank has after some of its shards, in the order of shards: the digits of a
 * binary counter. Zeroed before the first shard. */
typedef struct shard_counter {
    int n;
    shard_node pieces[SHARD_PIECES_MOST];
} shard_counter;

/* The shards of a rank in an equal partition, 0 <= rank < size. */
shard_node shard_range(int shards, int rank, int size);

/* The equal partition; starts has size + 1 numbers. With fewer shards than ranks some have none. */
void shard_divide_equally(int shards, int size, int *starts);

/* The shards of a rank in a partition. */
shard_node shard_range_of(const int *starts, int rank);

/* Adds the next node in the order of shards to the counter. Returns how many pieces are added up
 * with it, the last ones of the counter: together with it they are the new last piece. */
int shard_counter_add(shard_counter *c, int shards, shard_node node);

/* The pieces of a whole range. */
void shard_pieces(int shards, shard_node range, shard_counter *out);

/* The number of them, without listing them. */
int shard_count_pieces(int shards, shard_node range);

/* Whether each rank has one piece or none, and the tree over ranks (comm/backends/reduce.h) is the
 * tree over their pieces: then one all-reduce adds them up, in which ranks without shards take part
 * with -0.0, to which each number can be added without changing. */
bool shard_partition_is_aligned(int shards, const int *starts, int size);

#endif
