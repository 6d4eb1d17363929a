/* SPDX-License-Identifier: Apache-2.0 */
/*
 * partition.c - divides a step into parts, and adds up what they have counted. run.c, report.c and
 * evaluate.c call it.
 */
#include "train/partition.h"

#include "base/alloc.h"
#include "base/status.h"
#include "comm/backends/reduce.h"
#include "comm/comm.h"

#include <limits.h>

enum { N_SUMS = sizeof(rank_sums) / sizeof(double) };

int partition_shards(const ls_train_flags *flags)
{
    const int64_t batches = flags->accumulate > 1 ? flags->accumulate : 1;

    return flags->shards > INT_MAX / batches ? INT_MAX : (int)(flags->shards * batches);
}

ls_status partition_make(int shards, int rank, int size, partition *out)
{
    *out = (partition){.n_all = size, .first = rank, .n = 1, .has_shards = shards > 0};
    if (shards == 0)
        return LS_OK;
    out->n_all = shards;
    return ls_shard_range(shards, rank, size, &out->first, &out->n);
}

/* All shards' sums on all ranks: each rank adds its own to zeros. */
static ls_status gather(const partition *d, ls_comm *comm, const rank_sums *own, rank_sums *all)
{
    double *values = (double *)(all + d->first);
    const double *from = (const double *)own;

    for (size_t i = 0; i < (size_t)d->n * N_SUMS; i++)
        values[i] = from[i] + 0.0; // -0 becomes 0, as in a sum with zeros
    comm_label(comm, "report");
    return ls_all_reduce(comm, all, all, (size_t)d->n_all * N_SUMS, LS_F64, LS_SUM, NULL);
}

ls_status partition_sums(const partition *d, ls_comm *comm, const rank_sums *own, rank_sums *out)
{
    reduce_operand *operands;
    rank_sums *all;
    ls_status st;

    if (!d->has_shards)
        return rank_sums_reduce(comm, own, out);
    all = ls_calloc((size_t)d->n_all, sizeof(*all));
    operands = ls_calloc((size_t)d->n_all, sizeof(*operands));
    st = all != NULL && operands != NULL
             ? gather(d, comm, own, all)
             : ls_fail(LS_ENOMEM, "no memory for the sums of %d shards", d->n_all);
    if (st == LS_OK) {
        for (int i = 0; i < d->n_all; i++)
            operands[i] = (reduce_operand){&all[i], i, 1, true};
        reduce_tree(out, operands, d->n_all, N_SUMS, LS_F64, LS_SUM, true, 1);
    }
    ls_free(operands);
    ls_free(all);
    return st;
}
