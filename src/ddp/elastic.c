/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elastic.c - <lockstep/elastic.h>: recovery of an ls_ddp when ranks are lost or come.
 *
 * A step changes parameters, optimizer and *step only after all its gradients and buffers are
 * reduced, so a rank has the state of a completed step at any time. A rank that was in the middle
 * of one has changed buffers in forward: it takes back those with which the step began. Then
 *
 *   1. the group is formed again (ls_comm_rejoin()),
 *   2. all ranks learn which of them has the newest state (newest_state.h),
 *   3. if a rank lacks it, it is broadcast. A rank that has a state receives the newer one beside
 *      it and replaces its own when all has arrived: the sender may die meanwhile.
 *   4. buckets and shards are divided for the new group, and that of synchronized batch norms is
 *      split off again.
 *
 * A loss in 2 or 3 begins again at 1.
 */
#include <lockstep/elastic.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "ddp/newest_state.h"
#include "ddp/reducer.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

#include <string.h>

struct ddp_elastic {
    ls_named *items; /* all of the state */
    int n_items;
    int64_t *step;
    int64_t shape;
    bool has_state;       /* false: a new process, until it has received it */
    bool is_in_step;      /* buffers may differ from those of the last completed step */
    shard_buffers before; /* the step */
    bool has_copies;      /* `before` is open */
    ls_recovery last;
};

/* --- life --- */

static ls_status check_options(const ls_ddp *ddp, const ls_elastic_options *o)
{
    if (o->step == NULL || (o->n_state > 0 && o->state == NULL) || o->n_state < 0)
        return ls_fail(LS_EINVAL, "ls_ddp_elastic needs a step, and n_state entries of state");
    if (ddp->elastic != NULL)
        return ls_fail(LS_EINVAL, "ls_ddp_elastic: called twice for one ls_ddp");
    if (!comm_is_new(ddp->comm) && strcmp(ls_comm_backend(ddp->comm), "native") != 0)
        return ls_fail(LS_EUNSUPPORTED,
                       "recovery with backend %s: the group is formed again with backend native "
                       "only; leave out --elastic or --backend",
                       ls_comm_backend(ddp->comm));
    if (ddp->power != NULL)
        return ls_fail(LS_EUNSUPPORTED,
                       "recovery with PowerSGD: what a lost rank has not sent is lost with it; "
                       "leave out --elastic or --compress powersgd (--max-restarts works)");
    if (ddp->options.batch_norm_group != NULL)
        return ls_fail(LS_EUNSUPPORTED, "recovery with a batch_norm_group, which cannot be formed "
                                        "again; leave it out: NULL");
    return LS_OK;
}

static ls_status list_items(const ls_ddp *ddp, const ls_elastic_options *o, struct ddp_elastic *e)
{
    int n_model;
    const ls_named *model = ls_model_state(ddp->model, &n_model);
    const size_t n = (size_t)n_model + (size_t)o->n_state + 1;
    uint64_t shape = n;

    LS_TRY(LS_NEW(&e->items, n, "for a list of %zu tensors", n));
    for (int i = 0; i < n_model; i++)
        e->items[e->n_items++] = model[i];
    for (int i = 0; i < o->n_state; i++)
        e->items[e->n_items++] = o->state[i];
    e->items[e->n_items++] =
        (ls_named){.name = "step", .bytes = o->step, .n_bytes = sizeof(int64_t)};
    for (int i = 0; i < e->n_items; i++)
        shape = ls_hash3(shape, ls_hash_bytes(e->items[i].name, strlen(e->items[i].name), 1),
                         item_bytes(&e->items[i]));
    e->shape = (int64_t)(shape >> 1);
    return LS_OK;
}

static ls_status open_elastic(ls_ddp *ddp, const ls_elastic_options *o)
{
    struct ddp_elastic *e;

    LS_TRY(LS_NEW(&e, 1, "for the recovery of a ddp"));
    ddp->elastic = e;
    e->step = o->step;
    e->has_state = !comm_is_new(ddp->comm);
    LS_TRY(list_items(ddp, o, e));
    e->has_copies = true;
    return shard_buffers_open(ddp, &e->before, false);
}

void elastic_close(ls_ddp *ddp)
{
    struct ddp_elastic *e = ddp->elastic;

    if (e == NULL)
        return;
    if (e->has_copies)
        shard_buffers_close(&e->before);
    ls_free(e->items);
    ls_free(e);
    ddp->elastic = NULL;
}

void ddp_check_groups(ls_ddp *ddp, ddp_check_fn fn, void *arg)
{
    ddp->check = fn;
    ddp->check_arg = arg;
}

/* --- steps --- */

ls_status elastic_begin_step(ls_ddp *ddp)
{
    struct ddp_elastic *e = ddp->elastic;

    if (e->is_in_step)
        return LS_OK;
    LS_TRY(shard_buffers_save(ddp, &e->before));
    e->is_in_step = true;
    return LS_OK;
}

ls_status elastic_end_step(ls_ddp *ddp)
{
    if (ddp->elastic == NULL)
        return LS_OK;
    LS_TRY(replicas_broadcast_buffers(ddp));
    ddp->elastic->is_in_step = false;
    return LS_OK;
}

bool elastic_is_called(const ls_ddp *ddp)
{
    return ddp->elastic != NULL && ls_comm_rank(ddp->comm) == 0 && ls_comm_is_called(ddp->comm);
}

/* --- the newest state --- */

static ls_status compare_states(const ls_ddp *ddp, newest_state *out)
{
    const struct ddp_elastic *e = ddp->elastic;
    const int size = ls_comm_size(ddp->comm);
    const state_record own = {.has_state = e->has_state, .step = *e->step, .shape = e->shape};
    state_record *all;
    ls_status st;

    LS_TRY(LS_NEW(&all, (size_t)size, "for the states of %d ranks", size));
    comm_label(ddp->comm, "steps of all ranks");
    st = ls_all_gather(ddp->comm, &own, all, sizeof(own) / sizeof(int64_t), LS_I64, NULL);
    if (st == LS_OK)
        st = newest_state_find(all, size, out);
    ls_free(all);
    return st;
}

/* Where an item is received. */
typedef struct arrival {
    ls_tensor *tensor; /* of a tensor, beside it */
    char *bytes;
} arrival;

static ls_status make_arrival(const ls_ddp *ddp, const ls_named *item, arrival *a, void **to)
{
    const int64_t n = (int64_t)item_bytes(item);

    if (item->tensor != NULL) {
        LS_TRY(tensor_create_undefined(ddp->device, LS_U8, 1, &n, &a->tensor));
        *to = tensor_elements(a->tensor);
        return LS_OK;
    }
    a->bytes = ls_calloc((size_t)n + 1, 1);
    *to = a->bytes;
    return a->bytes != NULL ? LS_OK : ls_fail(LS_ENOMEM, "no memory for %s", item->name);
}

static ls_status broadcast_item(ls_comm *comm, const ls_named *item, int source, void *to)
{
    void *own = item->bytes;

    if (item->tensor != NULL)
        LS_TRY(tensor_plain(item->tensor, &own));
    comm_label(comm, item->name);
    return ls_broadcast(comm, own, to != NULL ? to : own, item_bytes(item), LS_U8, source, NULL);
}

static ls_status send_beside(ls_ddp *ddp, const ls_named *item, int source, arrival *beside)
{
    void *to;

    if (item_bytes(item) == 0)
        return LS_OK;
    LS_TRY(make_arrival(ddp, item, beside, &to));
    return broadcast_item(ddp->comm, item, source, to);
}

ls_status ddp_send_item(ls_comm *comm, const ls_named *item, int source)
{
    if (item_bytes(item) == 0)
        return LS_OK;
    LS_TRY(broadcast_item(comm, item, source, NULL));
    tensor_written(item->tensor, "a broadcast of the state");
    return LS_OK;
}

static ls_status put_in_place(const ls_ddp *ddp, const ls_named *item, const arrival *a)
{
    void *own;

    if (item_bytes(item) == 0)
        return LS_OK;
    if (item->tensor == NULL) {
        memcpy(item->bytes, a->bytes, item->n_bytes);
        return LS_OK;
    }
    LS_TRY(tensor_plain(item->tensor, &own));
    LS_TRY(device_copy(ddp->device, own, tensor_elements(a->tensor), item_bytes(item)));
    tensor_written(item->tensor, "ls_ddp_recover()");
    return LS_OK;
}

static ls_status receive_beside(ls_ddp *ddp, int source)
{
    const struct ddp_elastic *e = ddp->elastic;
    arrival *all;
    ls_status st = LS_OK;

    LS_TRY(LS_NEW(&all, (size_t)e->n_items, "for the state of another rank"));
    for (int i = 0; st == LS_OK && i < e->n_items; i++)
        st = send_beside(ddp, &e->items[i], source, &all[i]);
    for (int i = 0; st == LS_OK && i < e->n_items; i++)
        st = put_in_place(ddp, &e->items[i], &all[i]);
    for (int i = 0; i < e->n_items; i++) {
        ls_tensor_destroy(all[i].tensor);
        ls_free(all[i].bytes);
    }
    ls_free(all);
    return st;
}

static ls_status share_state(ls_ddp *ddp, const newest_state *newest)
{
    struct ddp_elastic *e = ddp->elastic;

    if (!newest->is_sent)
        return LS_OK;
    if (e->has_state && *e->step < newest->step)
        return receive_beside(ddp, newest->source);
    for (int i = 0; i < e->n_items; i++)
        LS_TRY(ddp_send_item(ddp->comm, &e->items[i], newest->source));
    e->has_state = true;
    return LS_OK;
}

/* --- recovery --- */

/* Whether the group has failed because of another rank: that it is lost, late, or has given up. */
static bool is_recoverable(ls_ddp *ddp, ls_status st)
{
    char kept[LS_ERROR_BYTES];
    bool is_broken;

    if (st != LS_EPEER && st != LS_ETIMEOUT && st != LS_EDEADLINE && st != LS_ECANCELED)
        return false;
    ls_error_save(kept);
    is_broken = ls_comm_status(ddp->comm) == st;
    ls_error_restore(kept);
    return is_broken;
}

/* The parameters in rank 0's order, if it has completed a backward: so that buckets are built once,
 * and not again after the next step. */
static ls_status take_order(ls_ddp *ddp)
{
    const int n_had = ddp->ordered ? ddp->n_params : 0;
    int *shared;
    int n;
    ls_status st;

    (void)ls_model_parameters(ddp->model, &n);
    LS_TRY(LS_NEW(&shared, (size_t)n + 1, "for the order of %d parameters", n));
    shared[n] = n_had;
    if (n_had > 0)
        memcpy(shared, ddp->order, (size_t)n_had * sizeof(*shared));
    comm_label(ddp->comm, "ddp order");
    st = ls_broadcast(ddp->comm, shared, shared, (size_t)n + 1, LS_I32, 0, NULL);
    if (st == LS_OK)
        st = ddp_take_params(ddp);
    if (st == LS_OK && shared[n] > 0 && shared[n] == ddp->n_params) {
        memcpy(ddp->order, shared, (size_t)ddp->n_params * sizeof(*shared));
        ddp->ordered = ddp->rebuilt = true;
    }
    ls_free(shared);
    return st;
}

/* In the new group. */
static ls_status go_on(ls_ddp *ddp, newest_state *newest)
{
    if (ddp->check != NULL)
        LS_TRY(ddp->check(ddp->check_arg, ddp->elastic->has_state));
    LS_TRY(compare_states(ddp, newest));
    LS_TRY(share_state(ddp, newest));
    ddp->stats.steps = newest->step; // check_replicas goes by it, on all ranks alike
    if (ddp->is_local)
        return LS_OK;
    LS_TRY(shard_balance_regroup(ddp));
    LS_TRY(shards_open(ddp));
    LS_TRY(take_order(ddp));
    LS_TRY(buckets_build(ddp));
    return sync_batch_norm_begin(ddp);
}

static ls_status regroup(ls_ddp *ddp)
{
    struct ddp_elastic *e = ddp->elastic;
    const int64_t start_ns = ls_now_ns();
    newest_state newest = {0};
    ls_status st;

    ddp_drop_step(ddp);
    if (e->is_in_step)
        LS_TRY(shard_buffers_restore(ddp, &e->before));
    e->is_in_step = false;
    LS_TRY(audit_drop_step(ddp));
    do {
        sync_batch_norm_end(ddp);
        buckets_free(ddp);
        shards_close(ddp);
        LS_TRY(ls_comm_rejoin(ddp->comm, e->has_state));
        st = go_on(ddp, &newest);
    } while (is_recoverable(ddp, st));
    LS_TRY(st);
    LS_TRY(ls_comm_report_state(ddp->comm));
    e->last = (ls_recovery){.count = e->last.count + 1,
                            .step = newest.step,
                            .ranks = ls_comm_size(ddp->comm),
                            .new_ranks = newest.n_without,
                            .late_ranks = newest.n_behind,
                            .seconds = (double)(ls_now_ns() - start_ns) * 1e-9};
    return LS_OK;
}

/* --- the public calls --- */

ls_status ls_ddp_elastic(ls_ddp *ddp, const ls_elastic_options *opt)
{
    ls_elastic_options o;

    LS_TRY(LS_GIVEN(ddp));
    LS_TRY(LS_GIVEN(opt));
    LS_TRY(OPTIONS_COPY(ls_elastic_options, opt, &o));
    if (!comm_is_elastic(ddp->comm))
        return LS_OK;
    LS_TRY(check_options(ddp, &o));
    LS_TRY(open_elastic(ddp, &o));
    return comm_is_new(ddp->comm) ? regroup(ddp) : ls_comm_report_state(ddp->comm);
}

ls_status ls_ddp_recover(ls_ddp *ddp, ls_status st, int *again)
{
    LS_TRY(LS_GIVEN(ddp));
    LS_TRY(LS_GIVEN(again));
    *again = 0;
    if (ddp->elastic == NULL || !((st == LS_OK && ddp->is_called) || is_recoverable(ddp, st)))
        return st;
    LS_TRY(regroup(ddp));
    *again = 1;
    return LS_OK;
}

ls_status ls_ddp_check_seat(ls_ddp *ddp)
{
    LS_TRY(LS_GIVEN(ddp));
    return ls_comm_check_seat(ddp->comm);
}

void ls_ddp_last_recovery(const ls_ddp *ddp, ls_recovery *out)
{
    if (out == NULL)
        return;
    *out = ddp != NULL && ddp->elastic != NULL ? ddp->elastic->last : (ls_recovery){.count = 0};
}
