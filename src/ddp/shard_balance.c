/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_balance.c - see shard_balance.h. All numbers that decide about the partition are sums of
 * integers below 2^53 with zeros, so they are the same on all ranks.
 */
#include "ddp/shard_balance.h"

#include "base/alloc.h"
#include "comm/comm.h"
#include "ddp/reducer.h"

#include <string.h>

enum { SHARD_NS, FIXED_NS, WAIT_NS, N_NUMBERS };

ls_status shard_balance_open(ls_ddp *ddp)
{
    shard_balance *b = ddp->balance;
    const int size = ls_comm_size(ddp->comm);
    const bool is_native = strcmp(ls_comm_backend(ddp->comm), "native") == 0;
    const int least = ddp->options.sync_batch_norm != 0;

    b->has_change = false;
    LS_TRY(balancer_open(&b->all, ddp->options.shards, size, least,
                         !is_native || shards_are_means(ddp)));
    return LS_NEW(&b->speeds, (size_t)size, "for the speeds of %d ranks", size);
}

void shard_balance_close(ls_ddp *ddp)
{
    shard_balance *b = ddp->balance;

    if (b == NULL)
        return;
    balancer_close(&b->all);
    ls_free(b->speeds);
    b->speeds = NULL;
}

ls_status shard_balance_regroup(ls_ddp *ddp)
{
    shard_balance *b = ddp->balance;
    balance_speed own;

    if (b == NULL)
        return LS_OK;
    shard_balance_close(ddp);
    LS_TRY(shard_balance_open(ddp));
    own = balance_meter_speed(&b->own, 0);
    comm_label(ddp->comm, "speeds of ranks");
    LS_TRY(ls_all_gather(ddp->comm, &own, b->speeds, sizeof(own) / sizeof(int64_t), LS_I64, NULL));
    balancer_begin(&b->all, b->speeds);
    return LS_OK;
}

size_t shard_balance_count(const ls_ddp *ddp)
{
    return ddp->balance == NULL ? 0 : (size_t)ls_comm_size(ddp->comm) * N_NUMBERS;
}

void shard_balance_put(const ls_ddp *ddp, double *numbers)
{
    const shard_balance *b = ddp->balance;
    balance_speed own;

    if (b == NULL)
        return;
    own = balance_meter_speed(&b->own, b->wait_ns);
    memset(numbers, 0, shard_balance_count(ddp) * sizeof(*numbers));
    numbers += (size_t)ls_comm_rank(ddp->comm) * N_NUMBERS;
    numbers[SHARD_NS] = (double)own.shard_ns;
    numbers[FIXED_NS] = (double)own.fixed_ns;
    numbers[WAIT_NS] = (double)own.wait_ns;
}

void shard_balance_take(ls_ddp *ddp, const double *numbers)
{
    shard_balance *b = ddp->balance;

    if (b == NULL || ddp_audit_leaves_out(ddp))
        return;
    for (int r = 0; r < b->all.ranks; r++, numbers += N_NUMBERS)
        b->speeds[r] = (balance_speed){.shard_ns = (int64_t)numbers[SHARD_NS],
                                       .fixed_ns = (int64_t)numbers[FIXED_NS],
                                       .wait_ns = (int64_t)numbers[WAIT_NS]};
    b->has_change = balancer_step(&b->all, b->speeds) || b->has_change;
}

/* --- for an ls_run --- */

void ddp_note_times(ls_ddp *ddp, int64_t shards_ns, int64_t fixed_ns, int64_t wait_ns)
{
    if (ddp_audit_leaves_out(ddp)) // not the partition that was planned
        return;
    balance_meter_add(&ddp->balance->own, ddp_shard_range(ddp).n, shards_ns, fixed_ns);
    ddp->balance->wait_ns = wait_ns;
}

int64_t ddp_shard_ns(const ls_ddp *ddp)
{
    return balance_times_middle(&ddp->balance->own.shard);
}

bool ddp_has_new_partition(const ls_ddp *ddp)
{
    return ddp->is_divided_anew || (ddp->balance != NULL && ddp->balance->has_change);
}

/* The buffers that the next step starts with are on the rank that had shard 0. */
ls_status ddp_change_partition(ls_ddp *ddp)
{
    LS_TRY(replicas_broadcast_buffers(ddp));
    if (ddp->balance != NULL)
        ddp->balance->has_change = false;
    ddp->is_divided_anew = false;
    together_close(ddp);
    buckets_free(ddp);
    shards_close(ddp);
    LS_TRY(shards_open(ddp));
    return buckets_build(ddp);
}

const balancer *ddp_balancer(const ls_ddp *ddp, const balance_speed **speeds)
{
    if (ddp == NULL || ddp->balance == NULL)
        return NULL;
    *speeds = ddp->balance->speeds;
    return &ddp->balance->all;
}
