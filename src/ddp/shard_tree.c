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

/* All ranks but the last have the same power of two of shards, and the last one has not more. */
bool shard_partition_is_aligned(int shards, int size)
{
    const int each = shard_range(shards, 0, size).n;

    if (size == 1)
        return true;
    if ((each & (each - 1)) != 0)
        return false;
    for (int r = 0; r < size; r++) {
        const shard_node range = shard_range(shards, r, size);

        if (range.first != r * each || (r < size - 1 && range.n != each) || range.n > each)
            return false;
    }
    return true;
}
