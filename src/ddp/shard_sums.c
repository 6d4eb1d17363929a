/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_sums.c - adds numbers of shards: each rank those of its pieces, then all ranks by one
 * all-reduce where its tree is that of the shards, and otherwise each rank all pieces, which are
 * gathered. sync_batch_norm.c and shards_together.c call it.
 */
#include "ddp/shard_sums.h"

#include "base/alloc.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "ddp/shard_tree.h"

#include <string.h>

typedef struct sum_memory {
    double *own;      /* the pieces of this rank */
    double *gathered; /* of all ranks */
    size_t *counts;   /* of numbers that each rank sends */
    reduce_operand *operands;
} sum_memory;

static void free_memory(sum_memory *m)
{
    ls_free(m->own);
    ls_free(m->gathered);
    ls_free(m->counts);
    ls_free(m->operands);
}

static ls_status make_memory(sum_memory *m, size_t n_own, size_t n_all, size_t n_operands, int size)
{
    m->own = ls_calloc(n_own, sizeof(double));
    m->gathered = ls_calloc(n_all, sizeof(double));
    m->counts = ls_calloc((size_t)size, sizeof(size_t));
    m->operands = ls_calloc(n_operands, sizeof(reduce_operand));
    if (m->own == NULL || m->gathered == NULL || m->counts == NULL || m->operands == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the sums of shards");
    return LS_OK;
}

/* dst = a node of this rank's range. */
static void add_piece(double *dst, shard_node piece, shard_node range, double *const *values,
                      size_t n, reduce_operand *operands)
{
    for (int i = 0; i < piece.n; i++)
        operands[i] =
            (reduce_operand){values[piece.first - range.first + i], piece.first + i, 1, true};
    reduce_tree(dst, operands, piece.n, n, LS_F64, LS_SUM, false, 1);
}

/* values = the root, from the pieces of all ranks. */
static ls_status add_gathered(ls_comm *comm, int shards, double *values, size_t n, sum_memory *m)
{
    const int size = ls_comm_size(comm);
    shard_counter pieces;
    int n_all = 0;

    for (int r = 0; r < size; r++) {
        shard_pieces(shards, shard_range(shards, r, size), &pieces);
        m->counts[r] = (size_t)pieces.n * n;
        for (int k = 0; k < pieces.n; k++, n_all++)
            m->operands[n_all] = (reduce_operand){m->gathered + (size_t)n_all * n,
                                                  pieces.pieces[k].first, pieces.pieces[k].n, true};
    }
    LS_TRY(ls_all_gather_v(comm, m->own, m->gathered, m->counts, LS_F64, NULL));
    reduce_tree(values, m->operands, n_all, n, LS_F64, LS_SUM, false, 1);
    return LS_OK;
}

static int count_pieces(int shards, int size)
{
    shard_counter pieces;
    int n = 0;

    for (int r = 0; r < size; r++) {
        shard_pieces(shards, shard_range(shards, r, size), &pieces);
        n += pieces.n;
    }
    return n;
}

static ls_status add_all(ls_comm *comm, int shards, double *const *values, size_t n, sum_memory *m)
{
    const int size = ls_comm_size(comm);
    const shard_node range = shard_range(shards, ls_comm_rank(comm), size);
    const bool is_tree = shard_division_is_aligned(shards, size) &&
                         (size == 1 || strcmp(ls_comm_backend(comm), "native") == 0);
    const int n_all = is_tree ? 1 : count_pieces(shards, size);
    shard_counter own;

    shard_pieces(shards, range, &own);
    LS_TRY(make_memory(m, (size_t)own.n * n, (size_t)n_all * n,
                       (size_t)(range.n > n_all ? range.n : n_all), size));
    for (int k = 0; k < own.n; k++)
        add_piece(m->own + (size_t)k * n, own.pieces[k], range, values, n, m->operands);
    if (!is_tree)
        LS_TRY(add_gathered(comm, shards, values[0], n, m));
    else if (size > 1)
        LS_TRY(ls_all_reduce(comm, m->own, values[0], n, LS_F64, LS_SUM, NULL));
    else
        memcpy(values[0], m->own, n * sizeof(double));
    for (int i = 1; i < range.n; i++)
        memcpy(values[i], values[0], n * sizeof(double));
    return LS_OK;
}

ls_status shard_sums(ls_comm *comm, int shards, double *const *values, size_t n)
{
    sum_memory m = {NULL};
    ls_status st;

    comm_label(comm, "batch norm");
    st = add_all(comm, shards, values, n, &m);
    free_memory(&m);
    return st;
}
