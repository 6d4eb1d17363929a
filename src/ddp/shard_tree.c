/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_tree.c - divides the shards of a step among ranks and finds the nodes of the tree that a
 * rank can add up alone. The result depends on the arguments only, so all ranks compute the same
 * partition. shards.c calls it.
 */
#include "ddp/shard_tree.h"

static int first_of(int shards, int rank, int size)
{
    return (int)(((int64_t)shards * rank + size - 1) / size);
}

shard_node shard_range(int shards, int rank, int size)
{
    const int first = first_of(shards, rank, size);

    return (shard_node){first, first_of(shards, rank + 1, size) - first};
}

void shard_divide_equally(int shards, int size, int *starts)
{
    for (int r = 0; r <= size; r++)
        starts[r] = first_of(shards, r, size);
}

shard_node shard_range_of(const int *starts, int rank)
{
    return (shard_node){starts[rank], starts[rank + 1] - starts[rank]};
}

/* `size` is that of the full node at the level of `last`. A node whose right half does not exist is
 * its left half: then the level grows without an addition. Left halves are always full. */
int shard_counter_add(shard_counter *c, int shards, shard_node node)
{
    shard_node last = node;
    int size = 1;
    int n_added = 0;

    while (size < node.n)
        size *= 2;
    while (size < shards) {
        const bool is_right = last.first / size % 2 == 1;
        const int left = last.first - size;

        if (!is_right && last.first + size < shards)
            break; // its right half is not complete yet
        if (is_right) {
            const shard_node *before = c->n > n_added ? &c->pieces[c->n - n_added - 1] : NULL;

            if (before == NULL || before->first != left || before->n != size)
                break; // its left half is another rank's
            last = (shard_node){left, last.n + before->n};
            n_added++;
        }
        size *= 2;
    }
    c->n -= n_added;
    c->pieces[c->n++] = last;
    return n_added;
}

void shard_pieces(int shards, shard_node range, shard_counter *out)
{
    out->n = 0;
    for (int i = 0; i < range.n; i++)
        (void)shard_counter_add(out, shards, (shard_node){range.first + i, 1});
}

/* Of the nodes that begin at a shard, the largest within the range is a piece. */
int shard_count_pieces(int shards, shard_node range)
{
    const int end = range.first + range.n;
    int n = 0;

    for (int at = range.first; at < end; n++) {
        int size = 1;

        while (size < shards && at % (2 * size) == 0 && (end == shards || at + 2 * size <= end))
            size *= 2;
        at += size;
    }
    return n;
}

/* A node of the tree over ranks, and what it has of the tree over shards. */
typedef struct rank_node {
    int n_ranks;
    shard_node shards;
} rank_node;

/* *left becomes the node over both. A node without shards changes nothing. False: the two are not
 * the halves of one node. */
static bool join(int shards, rank_node *left, const rank_node *right)
{
    const shard_node a = left->shards;
    const shard_node b = right->shards;
    const int after = shards - a.first - a.n;

    left->n_ranks += right->n_ranks;
    if (a.n == 0)
        left->shards = b;
    if (a.n == 0 || b.n == 0)
        return true;
    left->shards.n += b.n;
    return (a.n & (a.n - 1)) == 0 && a.first % (2 * a.n) == 0 && b.first == a.first + a.n &&
           b.n == (after < a.n ? after : a.n);
}

bool shard_partition_is_aligned(int shards, const int *starts, int size)
{
    rank_node nodes[32]; /* complete ones, of which each has fewer ranks than the one before it */
    int n = 0;

    for (int r = 0; r < size; r++) {
        const shard_node range = shard_range_of(starts, r);

        if (shard_count_pieces(shards, range) > 1)
            return false;
        nodes[n++] = (rank_node){1, range};
        for (; n > 1 && nodes[n - 2].n_ranks == nodes[n - 1].n_ranks; n--)
            if (!join(shards, &nodes[n - 2], &nodes[n - 1]))
                return false;
    }
    for (; n > 1; n--)
        if (!join(shards, &nodes[n - 2], &nodes[n - 1]))
            return false;
    return true;
}
