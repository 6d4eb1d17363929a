/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync_batch_norm.c - lets batch norms use the statistics of all ranks' batches. Their sums run
 * in a group of their own, because buckets of gradients are reduced at the same time. ddp.c calls
 * it.
 */
#include "ddp/reducer.h"

#include "base/clock.h"
#include "base/compute/accel.h"
#include "comm/comm.h"
#include "ddp/shard_sums.h"

static ls_status add_up_ranks(const ls_ddp *ddp, double *values, size_t n)
{
    ls_comm *comm = ddp->batch_group;
    accel *a = accel_of(values);
    ls_work *work;

    if (a == NULL && ddp->shards != NULL)
        return shard_sums(comm, ddp->options.shards, shards_starts(ddp), &values, n);

    comm_label(comm, "batch norm");
    if (a == NULL)
        return ls_all_reduce(comm, values, values, n, LS_F64, LS_SUM, NULL);
    LS_TRY(ls_all_reduce(comm, values, values, n, LS_F64, LS_SUM, &work));
    return ls_work_wait_on(work, accel_queue(a, ACCEL_COMPUTE));
}

static ls_status add_up(void *arg, double *values, size_t n)
{
    ls_ddp *ddp = arg;
    int64_t start_ns;
    ls_status st;

    if (shards_are_together(ddp))
        return together_sum(ddp, values, n);
    start_ns = ls_now_ns();
    st = add_up_ranks(ddp, values, n);
    ddp->batch_norm_wait_s += (double)(ls_now_ns() - start_ns) * 1e-9;
    return st;
}

double ddp_batch_norm_wait(const ls_ddp *ddp)
{
    return ddp->batch_norm_wait_s;
}

ls_status sync_batch_norm_begin(ls_ddp *ddp)
{
    ls_batch_norm_sync sync = {.sum = add_up, .arg = ddp};

    if (!ddp->options.sync_batch_norm)
        return LS_OK;
    if (ddp->options.batch_norm_group == ddp->comm)
        return ls_fail(LS_EINVAL,
                       "batch_norm_group must not be the group of the gradients; create another "
                       "one with ls_comm_split()");
    ddp->batch_group = ddp->options.batch_norm_group;
    if (ddp->batch_group == NULL) {
        LS_TRY(ls_comm_split(ddp->comm, 0, ls_comm_rank(ddp->comm), &ddp->batch_group));
        ddp->owns_batch_group = true;
    }
    // With one rank that has one shard the local statistics are the same.
    if (ls_comm_size(ddp->batch_group) > 1 || shards_are_together(ddp))
        ls_model_sync_batch_norm(ddp->model, &sync);
    return LS_OK;
}

void sync_batch_norm_end(ls_ddp *ddp)
{
    if (ddp->batch_group == NULL)
        return;
    ls_model_sync_batch_norm(ddp->model, NULL);
    if (ddp->owns_batch_group)
        ls_comm_destroy(ddp->batch_group);
    ddp->batch_group = NULL;
}
