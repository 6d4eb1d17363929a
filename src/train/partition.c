/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partition.c - adds up what the parts of a step have counted. run.c, report.c and evaluate.c call
 * it.
 */
#include "train/partition.h"

#include "base/alloc.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/backends/reduce.h"
#include "comm/comm.h"

#include <limits.h>
#include <string.h>

enum { N_SUMS = sizeof(rank_sums) / sizeof(double) };

int partition_shards(const ls_train_flags *flags)
{
    const int64_t batches = flags->accumulate > 1 ? flags->accumulate : 1;

    return flags->shards > INT_MAX / batches ? INT_MAX : (int)(flags->shards * batches);
}

bool partition_divides_rows(const ls_train_flags *flags)
{
    return flags->balance != NULL && text_equal(flags->balance, "rows");
}

/* What a rank counts, and not a part. */
static void copy_of_rank(const rank_sums *from, rank_sums *to)
{
    to->bad = from->bad;
    to->needs_ranks = from->needs_ranks;
    memcpy(to->seconds, from->seconds, sizeof(to->seconds));
}

/* All shards' sums on all ranks, behind them those of ranks: each rank adds its own to zeros. */
static ls_status gather(const partition *d, ls_comm *comm, const rank_sums *own, rank_sums *all)
{
    static const rank_sums none;
    double *values = (double *)(all + d->first);
    const double *from = (const double *)own;

    for (size_t i = 0; i < (size_t)d->n * N_SUMS; i++)
        values[i] = from[i] + 0.0; // -0 becomes 0, as in a sum with zeros
    for (int i = 0; i < d->n; i++)
        copy_of_rank(&none, &all[d->first + i]);
    copy_of_rank(own, &all[d->n_all]);
    comm_label(comm, "report");
    return ls_all_reduce(comm, all, all, ((size_t)d->n_all + 1) * N_SUMS, LS_F64, LS_SUM, NULL);
}

ls_status partition_sums(const partition *d, ls_comm *comm, const rank_sums *own, rank_sums *out)
{
    reduce_operand *operands;
    rank_sums *all;
    ls_status st;

    if (!d->has_shards)
        return rank_sums_reduce(comm, own, out);
    all = ls_calloc((size_t)d->n_all + 1, sizeof(*all));
    operands = ls_calloc((size_t)d->n_all, sizeof(*operands));
    st = all != NULL && operands != NULL
             ? gather(d, comm, own, all)
             : ls_fail(LS_ENOMEM, "no memory for the sums of %d shards", d->n_all);
    if (st == LS_OK) {
        for (int i = 0; i < d->n_all; i++)
            operands[i] = (reduce_operand){&all[i], i, 1, true};
        reduce_tree(out, operands, d->n_all, N_SUMS, LS_F64, LS_SUM, true, 1);
        copy_of_rank(&all[d->n_all], out);
    }
    ls_free(operands);
    ls_free(all);
    return st;
}

ls_status partition_move(const partition *d, const partition *to, ls_comm *comm,
                         const rank_sums *own, rank_sums *out)
{
    rank_sums *all;
    ls_status st;

    LS_TRY(LS_NEW(&all, (size_t)d->n_all + 1, "for the sums of %d shards", d->n_all));
    st = gather(d, comm, own, all);
    if (st == LS_OK) {
        memcpy(out, all + to->first, (size_t)to->n * sizeof(*out));
        copy_of_rank(own, out);
    }
    ls_free(all);
    return st;
}
