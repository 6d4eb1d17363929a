/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_sums.c - adds numbers of shards: each rank those of its pieces, then all ranks by one
 * all-reduce where its tree is that of the shards, and otherwise each rank all pieces, which are
 * gathered. sync_batch_norm.c and shards_together.c call it.
 */
#include "ddp/shard_sums.h"

#include "base/alloc.h"
#include "comm/backends/reduce.h"
#include "comm/comm.h"
#include "ddp/shard_tree.h"

#include <string.h>

/* dst = a node of this rank's range; it may be the values of the node's first shard. */
static void add_node(double *dst, shard_node node, shard_node range, double *const *values,
                     size_t n, reduce_operand *operands)
{
    for (int i = 0; i < node.n; i++)
        operands[i] =
            (reduce_operand){values[node.first - range.first + i], node.first + i, 1, true};
    reduce_tree(dst, operands, node.n, n, LS_F64, LS_SUM, false, 1);
}

/* Lists the pieces of all ranks, without their data, and the numbers that each rank sends. */
static int list_pieces(int shards, const int *starts, int size, size_t n, reduce_operand *operands,
                       size_t *counts)
{
    int n_all = 0;

    for (int r = 0; r < size; r++) {
        shard_counter pieces;

        shard_pieces(shards, shard_range_of(starts, r), &pieces);
        counts[r] = (size_t)pieces.n * n;
        for (int k = 0; k < pieces.n; k++)
            operands[n_all++] =
                (reduce_operand){NULL, pieces.pieces[k].first, pieces.pieces[k].n, true};
    }
    return n_all;
}

/* values[0] = the root, from the pieces of all ranks, which are gathered. `operands`: one for each
 * shard of all ranks; counts: of each rank. */
static ls_status gather(ls_comm *comm, int shards, const int *starts, double *const *values,
                        size_t n, reduce_operand *operands, size_t *counts)
{
    const int size = ls_comm_size(comm);
    const shard_node range = shard_range_of(starts, ls_comm_rank(comm));
    shard_counter own;
    double *sent;
    double *gathered;
    int n_all;
    ls_status st;

    shard_pieces(shards, range, &own);
    sent = ls_calloc((size_t)own.n * n, sizeof(*sent));
    for (int k = 0; k < own.n && sent != NULL; k++)
        add_node(sent + (size_t)k * n, own.pieces[k], range, values, n, operands);
    n_all = list_pieces(shards, starts, size, n, operands, counts);
    gathered = ls_calloc((size_t)n_all * n, sizeof(*gathered));
    st = sent != NULL && gathered != NULL
             ? ls_all_gather_v(comm, sent, gathered, counts, LS_F64, NULL)
             : ls_fail(LS_ENOMEM, "no memory for the sums of %d shards", shards);
    if (st == LS_OK) {
        for (int i = 0; i < n_all; i++)
            operands[i].data = gathered + (size_t)i * n;
        reduce_tree(values[0], operands, n_all, n, LS_F64, LS_SUM, false, 1);
    }
    ls_free(gathered);
    ls_free(sent);
    return st;
}

ls_status shard_sums(ls_comm *comm, int shards, const int *starts, double *const *values, size_t n)
{
    const int size = ls_comm_size(comm);
    const shard_node range = shard_range_of(starts, ls_comm_rank(comm));
    const bool is_native = size == 1 || strcmp(ls_comm_backend(comm), "native") == 0;
    reduce_operand *operands = ls_calloc((size_t)shards, sizeof(*operands));
    size_t *counts = ls_calloc((size_t)size, sizeof(*counts));
    ls_status st = LS_OK;

    comm_label(comm, "batch norm");
    if (operands == NULL || counts == NULL) {
        st = ls_fail(LS_ENOMEM, "no memory for the sums of %d shards", shards);
    } else if (is_native && shard_partition_is_aligned(shards, starts, size)) {
        add_node(values[0], range, range, values, n, operands);
        if (size > 1)
            st = ls_all_reduce(comm, values[0], values[0], n, LS_F64, LS_SUM, NULL);
    } else {
        st = gather(comm, shards, starts, values, n, operands, counts);
    }
    ls_free(operands);
    ls_free(counts);
    for (int i = 1; st == LS_OK && i < range.n; i++)
        memcpy(values[i], values[0], n * sizeof(**values));
    return st;
}
