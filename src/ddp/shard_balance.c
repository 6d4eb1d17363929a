/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_balance.c - see shard_balance.h. All numbers that decide about the partition are sums of
 * integers below 2^53 with zeros, so they are the same on all ranks.
 */
#include "ddp/shard_balance.h"

#include "base/alloc.h"
#include "comm/comm.h"
#include "ddp/reducer.h"

#include <limits.h>
#include <string.h>

enum { SHARD_NS, FIXED_NS, WAIT_NS, N_NUMBERS };

enum { RANK_UNITS = 64 }; /* at least, of a rank on average, where it has as many rows */

static ls_status open_shards(const ls_ddp *ddp, shard_balance *b)
{
    const bool is_native = strcmp(ls_comm_backend(ddp->comm), "native") == 0;
    const bool may_add_up = is_native && !shards_are_means(ddp);

    b->unit = 1;
    return balancer_open(&b->all, ddp->options.shards, ls_comm_size(ddp->comm),
                         ddp->options.sync_batch_norm != 0,
                         may_add_up ? BALANCE_BY_PIECES : BALANCE_EXCHANGE);
}

static ls_status check_rows(const ls_ddp *ddp, const shard_balance *b)
{
    const int64_t batch = (int64_t)b->batch_rows * ls_comm_size(ddp->comm);

    if (ddp->options.shards > 0)
        return ls_fail(LS_EINVAL, "--balance rows in a program that divides its steps into shards; "
                                  "use --balance");
    if (ddp->options.plain_mean)
        return ls_fail(LS_EINVAL, "--balance rows in a program with plain_mean, where all ranks "
                                  "have the same weight; leave one of them out");
    if (batch > INT_MAX || batch / b->unit > SHARDS_MOST)
        return ls_fail(LS_EINVAL,
                       "--balance rows: %d rows on each of %d ranks are too many units of %d; use "
                       "a smaller --batch-size, or a multiple of %d",
                       b->batch_rows, ls_comm_size(ddp->comm), b->unit, RANK_UNITS);
    return LS_OK;
}

static void set_rows(shard_balance *b)
{
    for (int r = 0; r < b->all.ranks; r++)
        b->rows[r] = shard_range_of(b->all.starts, r).n * b->unit;
}

static ls_status open_rows(const ls_ddp *ddp, shard_balance *b)
{
    const int size = ls_comm_size(ddp->comm);

    b->unit = b->batch_rows / RANK_UNITS;
    while (b->unit > 1 && b->batch_rows % b->unit != 0)
        b->unit--;
    b->unit = b->unit > 0 ? b->unit : 1;
    LS_TRY(check_rows(ddp, b));
    LS_TRY(balancer_open(&b->all, b->batch_rows / b->unit * size, size,
                         b->unit > 1 || b->batch_rows == 1 ? 1 : 2, BALANCE_ONE_SUM));
    LS_TRY(LS_NEW(&b->rows, (size_t)size, "for the rows of %d ranks", size));
    set_rows(b);
    return LS_OK;
}

ls_status shard_balance_open(ls_ddp *ddp)
{
    shard_balance *b = ddp->balance;
    const int size = ls_comm_size(ddp->comm);

    if (ls_device_queue(ddp->device) != NULL)
        return ls_fail(LS_EUNSUPPORTED,
                       "--balance on device %s: the host does not see how long its shards or rows "
                       "take; leave it out",
                       ls_device_name(ddp->device));
    b->has_change = false;
    LS_TRY(b->batch_rows > 0 ? open_rows(ddp, b) : open_shards(ddp, b));
    return LS_NEW(&b->speeds, (size_t)size, "for the speeds of %d ranks", size);
}

void shard_balance_close(ls_ddp *ddp)
{
    shard_balance *b = ddp->balance;

    if (b == NULL)
        return;
    balancer_close(&b->all);
    ls_free(b->speeds);
    ls_free(b->rows);
    b->speeds = NULL;
    b->rows = NULL;
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
    if (b->rows != NULL)
        set_rows(b);
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

void ddp_note_times(ls_ddp *ddp, const ddp_times *t)
{
    shard_balance *b = ddp->balance;

    if (ddp_audit_leaves_out(ddp)) // not the partition that was planned
        return;
    b->wait_ns = t->wait_ns;
    if (b->rows == NULL)
        balance_meter_add(&b->own, (int)t->n, t->own_ns, t->fixed_ns);
    else if (t->n > 0) // of one unit
        balance_meter_add(&b->own, 1, (int64_t)((double)t->own_ns * b->unit / (double)t->n),
                          t->fixed_ns);
}

bool ddp_has_new_partition(const ls_ddp *ddp)
{
    return ddp->is_divided_anew || (ddp->balance != NULL && ddp->balance->has_change);
}

/* The buffers that the next step starts with are on the rank that had shard 0. */
static ls_status change_shards(ls_ddp *ddp)
{
    LS_TRY(replicas_broadcast_buffers(ddp));
    ddp->is_divided_anew = false;
    together_close(ddp);
    buckets_free(ddp);
    shards_close(ddp);
    LS_TRY(shards_open(ddp));
    return buckets_build(ddp);
}

ls_status ddp_change_partition(ls_ddp *ddp)
{
    shard_balance *b = ddp->balance;

    if (b != NULL)
        b->has_change = false;
    if (ddp->shards != NULL)
        return change_shards(ddp);
    set_rows(b);
    return LS_OK;
}

const int *ddp_rows(const ls_ddp *ddp)
{
    return ddp == NULL || ddp->balance == NULL ? NULL : ddp->balance->rows;
}

const balancer *ddp_balancer(const ls_ddp *ddp)
{
    return ddp == NULL || ddp->balance == NULL ? NULL : &ddp->balance->all;
}

/* Seconds for a shard, or a row. */
static double seconds_for_one(const shard_balance *b, int64_t unit_ns)
{
    return (double)unit_ns * 1e-9 / b->unit;
}

balance_share ddp_share(const ls_ddp *ddp, int rank)
{
    const shard_balance *b = ddp->balance;

    return (balance_share){.n = shard_range_of(b->all.starts, rank).n * b->unit,
                           .n_all = b->all.shards * b->unit,
                           .one_s = seconds_for_one(b, b->speeds[rank].shard_ns),
                           .wait_s = (double)b->all.wait_total[rank] * 1e-9};
}

double ddp_own_s(const ls_ddp *ddp)
{
    return seconds_for_one(ddp->balance, balance_times_middle(&ddp->balance->own.shard));
}
