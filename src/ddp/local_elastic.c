/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_elastic.c - snapshots of local SGD, so that the loss of a rank takes no island with it:
 * each rank holds copies of its islands and of those of the rank before it. recover.c calls it.
 *
 * A snapshot counts when all ranks have stored it, which one all-reduce ends. A rank that was in
 * this all-reduce when the group failed has stored it, so when one living rank counts it, all can.
 */
#include "ddp/local_state.h"

#include "base/alloc.h"
#include "comm/comm.h"
#include "tensor/tensor.h"

#include <string.h>

/* --- memory --- */

static size_t outer_elements(const ls_local_sgd *l)
{
    size_t n = 0;

    for (int i = 0; i < l->n_params; i++)
        n += l->params[i].count;
    return n;
}

static int n_kinds(const ls_local_sgd *l)
{
    return l->options.delay > 0 ? 3 : 2;
}

ls_status local_sgd_protect(ls_local_sgd *l)
{
    const size_t n = (size_t)l->options.islands;
    const size_t outer = (size_t)n_kinds(l) * outer_elements(l);

    LS_TRY(LS_NEW(&l->last.copies, n, "for the snapshots of %zu islands", n));
    LS_TRY(LS_NEW(&l->next.copies, n, "for the snapshots of %zu islands", n));
    LS_TRY(LS_NEW(&l->outer_then, outer + 1, "for snapshots of the outer optimizer"));
    l->outer_items[0] = (ls_named){
        .name = "outer", .bytes = l->outer_then, .n_bytes = outer * sizeof(*l->outer_then)};
    l->outer_items[1] =
        (ls_named){.name = "flight", .bytes = &l->flight_then, .n_bytes = sizeof(l->flight_then)};
    return LS_OK;
}

const ls_named *local_sgd_protected(const ls_local_sgd *l, int *n)
{
    *n = (int)LS_COUNT_OF(l->outer_items);
    return l->outer_items;
}

static void drop(local_copy **copy)
{
    local_copy_destroy(*copy);
    *copy = NULL;
}

void local_snapshots_close(ls_local_sgd *l)
{
    for (int i = 0; i < l->options.islands; i++) {
        if (l->last.copies != NULL)
            drop(&l->last.copies[i]);
        if (l->next.copies != NULL)
            drop(&l->next.copies[i]);
    }
    ls_free(l->last.copies);
    ls_free(l->next.copies);
    ls_free(l->outer_then);
}

/* Copies what the outer optimizer has to outer_then, or back. */
static void copy_outer(ls_local_sgd *l, bool is_back)
{
    float *at = l->outer_then;

    *(is_back ? &l->flight : &l->flight_then) = is_back ? l->flight_then : l->flight;
    for (int k = 0; k < n_kinds(l); k++)
        for (int i = 0; i < l->n_params; i++) {
            const local_param *p = &l->params[i];
            float *live = tensor_host_elements(k == 0   ? p->mean
                                               : k == 1 ? p->momentum
                                                        : p->difference);

            memcpy(is_back ? live : at, is_back ? at : live, p->count * sizeof(*at));
            at += p->count;
        }
}

/* --- a snapshot --- */

static int rank_before(const ls_local_sgd *l, int rank)
{
    return rank > 0 ? rank - 1 : ls_comm_size(l->comm) - 1;
}

/* The rank that also holds the islands of `rank`; itself where it is alone. */
static int rank_behind(const ls_local_sgd *l, int rank)
{
    return rank + 1 < ls_comm_size(l->comm) ? rank + 1 : 0;
}

static ls_status store_island(ls_local_sgd *l, int island)
{
    local_copy **to = &l->next.copies[island];

    if (*to == NULL)
        LS_TRY(local_copy_create(&l->layout, to));
    if (island == l->current)
        return local_copy_store(&l->layout, *to);
    memcpy((*to)->memory, l->copies[island]->memory, l->layout.bytes);
    return LS_OK;
}

/* This rank's islands to the rank behind it, or those of the rank before it. */
static ls_status start_exchange(ls_local_sgd *l, shard_node range, bool is_sent, ls_work **works)
{
    const int rank = ls_comm_rank(l->comm);

    for (int i = 0; i < range.n; i++) {
        local_copy **copy = &l->next.copies[range.first + i];

        if (*copy == NULL)
            LS_TRY(local_copy_create(&l->layout, copy));
        comm_label(l->comm, "snapshot of an island");
        LS_TRY(is_sent ? ls_send(l->comm, (*copy)->memory, l->layout.bytes, LS_U8,
                                 rank_behind(l, rank), COPY_TAG, &works[i])
                       : ls_recv(l->comm, (*copy)->memory, l->layout.bytes, LS_U8,
                                 rank_before(l, rank), COPY_TAG, &works[i]));
    }
    return LS_OK;
}

static ls_status exchange(ls_local_sgd *l)
{
    const int rank = ls_comm_rank(l->comm);
    const shard_node before = shard_range_of(l->starts, rank_before(l, rank));
    const int n = l->range.n + before.n;
    ls_work **works;
    ls_status st;

    if (ls_comm_size(l->comm) == 1)
        return LS_OK;
    LS_TRY(LS_NEW(&works, (size_t)n, "for the snapshots of %d islands", n));
    st = start_exchange(l, l->range, true, works);
    if (st == LS_OK)
        st = start_exchange(l, before, false, works + l->range.n);
    for (int i = 0; i < n; i++) {
        const ls_status ended = works[i] != NULL ? ls_work_wait(works[i]) : LS_OK;

        st = st == LS_OK ? ended : st;
    }
    ls_free(works);
    return st;
}

static void count_snapshot(ls_local_sgd *l)
{
    const local_snapshot last = l->last;

    l->last = l->next;
    l->next = last;
    l->n_snapshots++;
}

ls_status local_sgd_snapshot(ls_local_sgd *l, bool calls, bool *is_called)
{
    int64_t called = calls;

    LS_TRY(local_flight_wait(l));
    for (int i = 0; i < l->range.n; i++)
        LS_TRY(store_island(l, l->range.first + i));
    LS_TRY(exchange(l));
    comm_label(l->comm, "snapshot");
    LS_TRY(ls_all_reduce(l->comm, &called, &called, 1, LS_I64, LS_MAX, NULL));
    *is_called = called != 0;
    copy_outer(l, false);
    count_snapshot(l);
    return LS_OK;
}

/* --- a new group --- */

static bool holds(const ls_local_sgd *l, const uint8_t *table, int rank, int island)
{
    return table[(size_t)rank * (size_t)l->options.islands + (size_t)island] != 0;
}

/* The rank that gives an island to others: the one that will have it, if it can. */
static int find_source(const ls_local_sgd *l, const uint8_t *table, int island)
{
    const int owner = local_rank_of(l, island);
    const int size = ls_comm_size(l->comm);
    int r = 0;

    if (holds(l, table, owner, island))
        return owner;
    while (r < size && !holds(l, table, r, island))
        r++;
    return r;
}

static ls_status move_islands(ls_local_sgd *l, const uint8_t *table)
{
    for (int i = 0; i < l->options.islands; i++) {
        const int owner = local_rank_of(l, i);
        const int second = rank_behind(l, owner);
        const int source = find_source(l, table, i);

        if (source == ls_comm_size(l->comm))
            return ls_fail(LS_ENOTFOUND,
                           "island %d is lost: its rank and the rank behind it were lost at once; "
                           "the run goes on from its saved state (--max-restarts, or --resume)",
                           i);
        LS_TRY(local_send_copy(l, &l->last.copies[i], source, owner));
        if (second != owner && second != source && !holds(l, table, second, i))
            LS_TRY(local_send_copy(l, &l->last.copies[i], source, second));
    }
    return LS_OK;
}

static ls_status share_islands(ls_local_sgd *l)
{
    const size_t n = (size_t)l->options.islands;
    uint8_t *table = ls_calloc((size_t)ls_comm_size(l->comm) + 1, n);
    uint8_t *own = table;
    ls_status st;

    if (table == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the islands of all ranks");
    own += n * (size_t)ls_comm_size(l->comm);
    for (size_t i = 0; i < n; i++)
        own[i] = l->last.copies[i] != NULL;
    comm_label(l->comm, "islands of all ranks");
    st = ls_all_gather(l->comm, own, table, n, LS_U8, NULL);
    if (st == LS_OK)
        st = move_islands(l, table);
    ls_free(table);
    return st;
}

/* Copies of islands that are neither this rank's nor those of the rank before it. */
static void drop_others(ls_local_sgd *l)
{
    const int before = rank_before(l, ls_comm_rank(l->comm));

    for (int i = 0; i < l->options.islands; i++) {
        if (!local_is_own(l, i))
            drop(&l->copies[i]);
        if (local_is_own(l, i) || local_rank_of(l, i) == before)
            continue;
        drop(&l->last.copies[i]);
        drop(&l->next.copies[i]);
    }
}

static ls_status return_to_snapshot(ls_local_sgd *l)
{
    copy_outer(l, true);
    for (int i = l->range.first; i < l->range.first + l->range.n; i++) {
        if (l->copies[i] == NULL)
            LS_TRY(local_copy_create(&l->layout, &l->copies[i]));
        memcpy(l->copies[i]->memory, l->last.copies[i]->memory, l->layout.bytes);
    }
    l->current = NO_ISLAND;
    l->is_shown = false;
    return LS_OK;
}

void local_sgd_drop(ls_local_sgd *l)
{
    local_mean_drop(l->exchange);
    l->exchange = NULL;
    l->is_awaited = false;
}

ls_status local_sgd_regroup(ls_local_sgd *l, int64_t n_snapshots, int64_t step)
{
    if (n_snapshots == l->n_snapshots + 1)
        count_snapshot(l);
    l->n_snapshots = n_snapshots;
    l->step = step;
    local_leave_group(l);
    LS_TRY(local_divide_islands(l));
    LS_TRY(share_islands(l));
    comm_label(l->comm, "islands of all ranks");
    LS_TRY(ls_barrier(l->comm, NULL)); // a copy is needed until others have come
    drop_others(l);
    return return_to_snapshot(l);
}
