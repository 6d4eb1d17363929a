/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp.c - creates an ls_ddp and runs its steps. Every rank starts the same operations in the same
 * order; a rank that cannot finish its step aborts the group.
 */
#include "ddp/reducer.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/text.h"
#include "comm/comm.h"
#include "tensor/tensor.h"

#include <math.h>

/* The small operation's values in front of the per-parameter ones. */
enum { SMALL_STOP, SMALL_CALL, SMALL_FIXED };

static const char why_not_ls_backward[] =
    "an ls_ddp, which averages it over all ranks: call ls_ddp_backward() or ls_ddp_accumulate() "
    "instead of ls_backward()";

static const size_t default_first_bucket_bytes = (size_t)1 << 20;
static const size_t default_bucket_bytes = (size_t)25 << 20;

/* --- one backward --- */

static ls_status start_weight(ls_ddp *ddp, double weight)
{
    ddp->total_weight = weight;
    comm_label(ddp->comm, "ddp weight");
    return ls_all_reduce(ddp->comm, &ddp->total_weight, &ddp->total_weight, 1, LS_F64, LS_SUM,
                         &ddp->weight_work);
}

static ls_status wait_weight(ls_ddp *ddp)
{
    ls_work *work = ddp->weight_work;
    int64_t start_ns;
    ls_status st;

    if (work == NULL)
        return LS_OK;
    ddp->weight_work = NULL;
    start_ns = ls_now_ns();
    st = ls_work_wait(work);
    ddp->weight_wait_s += (double)(ls_now_ns() - start_ns) * 1e-9;
    return st;
}

static ls_status find_divisor(ls_ddp *ddp, double *divisor)
{
    *divisor = ddp->shards != NULL ? ddp->options.shards : ls_comm_size(ddp->comm);
    if (ddp->options.plain_mean)
        return LS_OK;
    LS_TRY(wait_weight(ddp));
    *divisor = ddp->total_weight > 0 ? ddp->total_weight : 1;
    return LS_OK;
}

/* Packed buckets are divided before they are rounded, so that float16 holds a mean instead of a
 * sum; others are divided by the all-reduce. */
static ls_status start_bucket(ls_ddp *ddp, int i)
{
    bucket *b = &ddp->buckets[i];
    const size_t count = b->bytes / ls_dtype_size(b->dtype);
    const ls_dtype wire_type = bucket_wire_type(ddp);
    double divisor;
    char label[32];

    if (i == 0)
        ddp->first_start_ns = ls_now_ns();
    if (ddp->shards != NULL)
        LS_TRY(ddp_shard_range(ddp).n > 0 ? shards_add_bucket(ddp, i) : shards_fill_idle(ddp, i));
    if (shards_exchange(ddp))
        return shards_start_bucket(ddp, i);
    if (shards_are_means(ddp))
        return LS_OK; // of one rank
    LS_TRY(find_divisor(ddp, &divisor));
    if (power_has_bucket(ddp, i))
        return power_start_bucket(ddp, i, divisor);
    if (b->packed != NULL)
        LS_TRY(bucket_pack(ddp, b, divisor));
    text_format(label, sizeof(label), "bucket %d/%d", i + 1, ddp->n_buckets);
    comm_label(ddp->comm, label);
    if (b->packed != NULL)
        return ls_all_reduce(ddp->comm, b->packed, b->packed, count, wire_type, LS_SUM, &b->work);
    return comm_average(ddp->comm, b->memory, count, b->dtype, divisor, &b->work);
}

/* Starts the complete buckets, in the order of their numbers on every rank. */
static ls_status start_ready(ls_ddp *ddp)
{
    while (ddp->next_bucket < ddp->n_buckets && ddp->buckets[ddp->next_bucket].n_waiting == 0)
        LS_TRY(start_bucket(ddp, ddp->next_bucket++));
    return LS_OK;
}

int ddp_find_param(const ls_ddp *ddp, const ls_tensor *leaf)
{
    int i = 0;

    while (ddp->params[i].leaf != leaf)
        i++;
    return i;
}

static ls_status on_grad_ready(void *arg, ls_tensor *leaf)
{
    ls_ddp *ddp = arg;
    const int i = ddp_find_param(ddp, leaf);

    LS_TRY(audit_note_gradient(ddp, i));
    ddp->params[i].ready = true;
    if (!ddp->ordered)
        ddp->order[ddp->n_ready++] = i;
    if (!ddp->reducing)
        return LS_OK;
    ddp->buckets[ddp->plan.slots[i].bucket].n_waiting--;
    return start_ready(ddp);
}

/* Clears the gradients of the last reduction; gradients accumulated since then stay. */
static ls_status begin_backward(ls_ddp *ddp, bool reducing)
{
    if (!ddp->pending) {
        const bool is_out_of_order = ddp->ordered && !ddp->rebuilt;

        if (is_out_of_order || ddp->buckets == NULL)
            LS_TRY(buckets_build(ddp));
        ddp->rebuilt = ddp->rebuilt || is_out_of_order;
        for (int i = 0; i < ddp->n_params; i++)
            ls_zero_grad(ddp->params[i].leaf);
    }
    for (int i = 0; i < ddp->n_params; i++)
        ddp->params[i].ready = false;
    for (int b = 0; b < ddp->n_buckets; b++)
        ddp->buckets[b].n_waiting = ddp->plan.bucket_entries[b];
    ddp->reducing = reducing;
    ddp->next_bucket = 0;
    ddp->n_ready = 0;
    return LS_OK;
}

static double weight_of(const ls_ddp *ddp, int64_t rows)
{
    return ddp->options.plain_mean ? 1.0 : (double)rows;
}

double ddp_seed(const ls_ddp *ddp, int64_t rows)
{
    const double weight = weight_of(ddp, rows);

    return ddp->loss_scale * (shards_are_means(ddp) && weight > 0 ? 1.0 : weight);
}

static ls_status run_backward(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss, int64_t rows,
                              bool reducing)
{
    ls_queue *queue = ls_device_queue(ddp->device);
    const int64_t start_ns = ls_now_ns();
    const double waited_s = ddp->weight_wait_s; // its buckets wait for the sum of weights
    int64_t end_ns;
    ls_status st;

    comm_device_phase(ddp->comm, queue, "backward");
    LS_TRY(begin_backward(ddp, reducing));
    LS_TRY(shards_begin_shard(ddp, weight_of(ddp, rows)));
    LS_TRY(audit_note_loss(ddp, loss, rows));
    st = ddp->is_computed ? together_give(ddp, shards_done(ddp))
                          : autograd_backward(tape, loss, ddp_seed(ddp, rows), &ddp->owner);
    comm_device_phase(ddp->comm, queue, NULL);
    end_ns = ls_now_ns();
    comm_phase(ddp->comm, "backward", start_ns, end_ns);
    ddp->stats.backward_s += (double)(end_ns - start_ns) * 1e-9 - (ddp->weight_wait_s - waited_s);
    ddp->stats.wait_s += ddp->weight_wait_s - waited_s;
    return st;
}

/* --- after backward --- */

/* Sets the gradients of parameters that this backward did not use to zero. */
static ls_status clear_unused(ls_ddp *ddp)
{
    for (int i = 0; i < ddp->n_params; i++) {
        const ddp_param *p = &ddp->params[i];
        if (ls_grad(p->leaf) == NULL)
            LS_TRY(tensor_zero(shards_target(ddp, i)));
    }
    return LS_OK;
}

static ls_status start_rest(ls_ddp *ddp)
{
    LS_TRY(clear_unused(ddp));
    while (ddp->next_bucket < ddp->n_buckets)
        LS_TRY(start_bucket(ddp, ddp->next_bucket++));
    return LS_OK;
}

static ls_status reduce_small(ls_ddp *ddp)
{
    const size_t at = SMALL_FIXED + (size_t)ddp->n_params;
    const size_t count = at + shard_balance_count(ddp);

    ddp->small[SMALL_STOP] = ddp->stop_requested;
    ddp->small[SMALL_CALL] = elastic_is_called(ddp);
    for (int i = 0; i < ddp->n_params; i++)
        ddp->small[SMALL_FIXED + i] =
            ls_grad(ddp->params[i].leaf) != NULL || shards_have_used(ddp, i);
    shard_balance_put(ddp, ddp->small + at);
    comm_label(ddp->comm, "ddp step");
    return ls_all_reduce(ddp->comm, ddp->small, ddp->small, count, LS_F64, LS_SUM, NULL);
}

ls_status ddp_wait(const ls_ddp *ddp, ls_work *work)
{
    ls_queue *queue = ls_device_queue(ddp->device);

    return queue == NULL ? ls_work_wait(work) : ls_work_wait_on(work, queue);
}

/* Waits for every bucket, also after a failure: none may be pending when the caller continues. */
static ls_status wait_buckets(ls_ddp *ddp)
{
    ls_status first = wait_weight(ddp);

    for (int i = 0; i < ddp->n_buckets; i++) {
        bucket *b = &ddp->buckets[i];
        if (b->work == NULL)
            continue;
        ls_status st = ddp_wait(ddp, b->work);
        b->work = NULL;
        if (first == LS_OK)
            first = st;
        if (first == LS_OK && b->packed != NULL)
            first = bucket_unpack(ddp, b);
    }
    return first;
}

/* A parameter has a gradient on all ranks if one of them used it, and otherwise on none. */
static void resolve_used(ls_ddp *ddp)
{
    ddp->n_unused = 0;
    for (int i = 0; i < ddp->n_params; i++) {
        const bool used = ddp->small[SMALL_FIXED + i] > 0;
        autograd_set_has_grad(ddp->params[i].leaf, used);
        if (!used)
            ddp->unused[ddp->n_unused++] = ddp->params[i].name;
    }
}

/* After the first backward all ranks use the order of completion of the rank with shard 0, which is
 * rank 0 unless shards are divided by speed, parameters without gradient last. */
static ls_status agree_on_order(ls_ddp *ddp)
{
    for (int i = ddp->n_params - 1; i >= 0; i--)
        if (!ddp->params[i].ready)
            ddp->order[ddp->n_ready++] = i;
    comm_label(ddp->comm, "ddp order");
    LS_TRY(ls_broadcast(ddp->comm, ddp->order, ddp->order, (size_t)ddp->n_params, LS_I32,
                        shards_first_rank(ddp), NULL));
    ddp->ordered = true;
    return LS_OK;
}

/* The sums of the exchanged pieces; the all-gather that ends each bucket is pending then. */
static ls_status collect_exchange(ls_ddp *ddp, ls_status st)
{
    double divisor = 1;

    if (st == LS_OK)
        st = find_divisor(ddp, &divisor);
    return shards_collect(ddp, st, divisor);
}

static ls_status finish_step(ls_ddp *ddp, ls_ddp_step *step)
{
    const int64_t start_ns = ls_now_ns();
    ls_status st;
    ls_status buckets;

    st = start_rest(ddp);
    if (st == LS_OK)
        st = reduce_small(ddp);
    if (shards_exchange(ddp))
        st = collect_exchange(ddp, st);
    buckets = wait_buckets(ddp);
    LS_TRY(st);
    LS_TRY(buckets);
    LS_TRY(power_finish(ddp, ddp->small + SMALL_FIXED));
    resolve_used(ddp);
    ddp->is_called = ddp->small[SMALL_CALL] > 0;
    if (!ddp->ordered)
        LS_TRY(agree_on_order(ddp));
    shard_balance_take(ddp, ddp->small + SMALL_FIXED + ddp->n_params);
    *step = (ls_ddp_step){.weight = ddp->total_weight,
                          .more_data = ddp->total_weight > 0,
                          .stop = ddp->small[SMALL_STOP] > 0};

    const int64_t end_ns = ls_now_ns();
    comm_phase(ddp->comm, "wait for gradients", start_ns, end_ns);
    ddp->stats.wait_s += (double)(end_ns - start_ns) * 1e-9;
    ddp->stats.communication_s += (double)(end_ns - ddp->first_start_ns) * 1e-9;
    ddp->stats.n_buckets = ddp->n_buckets;
    ddp->stats.steps++;
    return LS_OK;
}

/* --- creating and destroying --- */

static ls_status resolve_options(ls_ddp_options *o, const ls_ddp_options *given)
{
    LS_TRY(OPTIONS_COPY(ls_ddp_options, given, o));
    if (o->first_bucket_bytes == 0)
        o->first_bucket_bytes = default_first_bucket_bytes;
    if (o->bucket_bytes == 0)
        o->bucket_bytes = default_bucket_bytes;
    if (o->hook == LS_DDP_HOOK_INT8 || o->hook == LS_DDP_HOOK_INT4)
        return ls_fail(LS_EUNSUPPORTED,
                       "communication hook %s: gradients are sent with 16 bits at least; integers "
                       "are for the differences of local SGD (--sync-every)",
                       o->hook == LS_DDP_HOOK_INT8 ? "int8" : "int4");
    if ((unsigned)o->hook > LS_DDP_HOOK_POWERSGD)
        return ls_fail(LS_EINVAL, "unknown communication hook %d", (int)o->hook);
    return LS_OK;
}

static void find_device(ls_ddp *ddp)
{
    int n;
    const ls_named *state = ls_model_state(ddp->model, &n);

    ddp->device = n > 0 ? ls_tensor_device(state[0].tensor) : NULL;
}

/* The gradients of all parameters belong to the ddp, also of those that are frozen now. */
static ls_status claim_params(ls_ddp *ddp)
{
    const ls_named *list = ls_model_parameters(ddp->model, &ddp->n_model_params);

    for (int i = 0; i < ddp->n_model_params; i++) {
        const ls_dtype type = ls_tensor_dtype(list[i].tensor);

        if (type != LS_F32 && type != LS_F64)
            return ls_fail(LS_EUNSUPPORTED, "parameter %s is %s; ddp reduces float32 and float64",
                           list[i].name, ls_dtype_name(type));
        if (!autograd_claim(list[i].tensor, &ddp->owner, list[i].name))
            return ls_fail(LS_EINVAL, "parameter %s belongs to another ls_ddp; destroy it first",
                           list[i].name);
    }
    return LS_OK;
}

static void drop_params(ls_ddp *ddp)
{
    together_close(ddp);
    audit_drop_params(ddp);
    ls_free(ddp->params);
    ls_free(ddp->order);
    ls_free(ddp->small);
    ls_free(ddp->unused);
    ddp->params = NULL;
    ddp->order = NULL;
    ddp->small = NULL;
    ddp->unused = NULL;
    ddp->n_params = 0;
    ddp->n_unused = 0;
}

ls_status ddp_take_params(ls_ddp *ddp)
{
    int n;
    const ls_named *list = ls_model_parameters(ddp->model, &n);

    drop_params(ddp);
    ddp->params = ls_calloc((size_t)n + 1, sizeof(*ddp->params));
    ddp->order = ls_calloc((size_t)n + 1, sizeof(*ddp->order));
    ddp->small = ls_calloc((size_t)n + SMALL_FIXED + shard_balance_count(ddp), sizeof(*ddp->small));
    ddp->unused = ls_calloc((size_t)n + 1, sizeof(*ddp->unused));
    if (ddp->params == NULL || ddp->order == NULL || ddp->small == NULL || ddp->unused == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d parameters", n);
    ddp->stats.bytes_a_step = 0;
    for (int i = 0; i < n; i++) {
        const ls_dtype type = ls_tensor_dtype(list[i].tensor);

        if (autograd_is_frozen(list[i].tensor))
            continue;
        ddp->params[ddp->n_params++] = (ddp_param){.name = list[i].name, .leaf = list[i].tensor};
        ddp->stats.bytes_a_step +=
            (int64_t)(power_count(ddp, i, ls_tensor_count(list[i].tensor)) *
                      ls_dtype_size(type == LS_F32 ? bucket_wire_type(ddp) : type));
    }
    for (int i = 0; i < ddp->n_params; i++)
        ddp->order[i] = ddp->n_params - 1 - i; // backward usually completes the last one first
    ddp->ordered = false;
    ddp->rebuilt = false;
    return LS_OK;
}

/* Whether the ddp has the parameters that are not frozen. */
static bool has_params(const ls_ddp *ddp)
{
    int n;
    const ls_named *list = ls_model_parameters(ddp->model, &n);
    int k = 0;

    for (int i = 0; i < n; i++) {
        if (autograd_is_frozen(list[i].tensor))
            continue;
        if (k == ddp->n_params || ddp->params[k].leaf != list[i].tensor)
            return false;
        k++;
    }
    return k == ddp->n_params;
}

static int count_gradients(const ls_ddp *ddp)
{
    int n = 0;

    for (int i = 0; i < ddp->n_params; i++)
        n += ls_grad(ddp->params[i].leaf) != NULL;
    return n;
}

ls_status ddp_follow_model(ls_ddp *ddp)
{
    int n_had;

    if (has_params(ddp))
        return LS_OK;
    if (shards_done(ddp) > 0)
        return ls_fail(LS_EINVAL, "ls_model_freeze() was called between the shards of a step");
    ddp->is_compared = false;
    n_had = ddp->pending ? count_gradients(ddp) : 0;
    buckets_free(ddp);
    LS_TRY(ddp_take_params(ddp));
    LS_TRY(buckets_build(ddp));
    if (count_gradients(ddp) < n_had)
        return ls_fail(LS_ENOMEM, "no memory for the gradients of ls_ddp_accumulate()");
    return LS_OK;
}

static ls_status open_balance(ls_ddp *ddp, int batch_rows)
{
    LS_TRY(LS_NEW(&ddp->balance, 1, "to divide steps by speed"));
    ddp->balance->batch_rows = batch_rows;
    return shard_balance_open(ddp);
}

/* What takes gradients. */
static ls_status open_buckets(ls_ddp *ddp)
{
    LS_TRY(buckets_build(ddp));
    return sync_batch_norm_begin(ddp);
}

typedef struct ddp_kind {
    bool is_local;
    bool is_balanced;
    int batch_rows; /* of ddp_create_balanced() */
} ddp_kind;

static ls_status create(ls_comm *comm, ls_model *model, const ls_ddp_options *opt, ddp_kind kind,
                        ls_ddp **out)
{
    ls_status st;
    ls_ddp *ddp;

    LS_TRY(LS_GIVEN(out));
    if (comm == NULL || model == NULL)
        return ls_fail(LS_EINVAL, "ls_ddp_create needs a group and a model");
    LS_TRY(ls_model_status(model));
    LS_TRY(LS_NEW(&ddp, 1, "for a ddp"));
    ddp->comm = comm;
    ddp->model = model;
    ddp->owner.ready = on_grad_ready;
    ddp->owner.arg = ddp;
    ddp->owner.reason = why_not_ls_backward;
    ddp->loss_scale = 1;

    find_device(ddp);
    (void)ls_model_buffers(model, &ddp->n_buffers);
    st = resolve_options(&ddp->options, opt);
    ddp->is_local = kind.is_local;
    if (st == LS_OK && kind.is_balanced)
        st = open_balance(ddp, kind.batch_rows);
    if (st == LS_OK)
        st = power_open(ddp); // refuses shards
    if (st == LS_OK)
        st = shards_open(ddp);
    if (st == LS_OK && !ddp->is_local)
        st = claim_params(ddp);
    if (st == LS_OK)
        st = ddp_take_params(ddp);
    if (st == LS_OK)
        st = replicas_compare(ddp);
    ddp->is_compared = true;
    if (st == LS_OK)
        st = replicas_broadcast(ddp);
    // A new process does it when it joins a group.
    if (st == LS_OK && !ddp->is_local && !comm_is_new(comm))
        st = open_buckets(ddp);
    if (st != LS_OK) {
        ls_ddp_destroy(ddp);
        return ls_context(st, "ls_ddp_create");
    }
    *out = ddp;
    return LS_OK;
}

ls_status ls_ddp_create(ls_comm *comm, ls_model *model, const ls_ddp_options *opt, ls_ddp **out)
{
    return create(comm, model, opt, (ddp_kind){.is_local = false}, out);
}

ls_status ddp_create_balanced(ls_comm *comm, ls_model *model, const ls_ddp_options *opt,
                              int batch_rows, ls_ddp **out)
{
    return create(comm, model, opt, (ddp_kind){.is_balanced = true, .batch_rows = batch_rows}, out);
}

ls_status ddp_create_local(ls_comm *comm, ls_model *model, ls_ddp **out)
{
    return create(comm, model, NULL, (ddp_kind){.is_local = true}, out);
}

void ddp_call(ls_ddp *ddp)
{
    ddp->is_called = true;
}

void ls_ddp_destroy(ls_ddp *ddp)
{
    const ls_named *list;
    ls_status ignored;

    if (ddp == NULL)
        return;
    list = ls_model_parameters(ddp->model, &(int){0});
    ignored = wait_weight(ddp); // into memory that is freed here
    LS_UNUSED(ignored);
    sync_batch_norm_end(ddp);
    ddp->pending = false;
    buckets_free(ddp);
    for (int i = 0; i < ddp->n_model_params; i++)
        autograd_release(list[i].tensor, &ddp->owner);
    power_close(ddp);
    drop_params(ddp);
    audit_close(ddp);
    ls_tape_destroy(ddp->shard_tape);
    shards_close(ddp);
    shard_balance_close(ddp);
    ls_free(ddp->balance);
    elastic_close(ddp);
    ls_free(ddp);
}

/* --- the public calls --- */

ls_status ddp_abort(ls_ddp *ddp, ls_status st)
{
    char why[LS_ERROR_BYTES];
    ls_status ignored;

    ls_error_save(why);
    ls_comm_abort(ddp->comm, why);
    if (ddp->batch_group != NULL)
        ls_comm_abort(ddp->batch_group, why);
    if (shards_exchange(ddp)) {
        ignored = shards_collect(ddp, st, 1);
        LS_UNUSED(ignored);
    }
    ignored = wait_buckets(ddp);
    LS_UNUSED(ignored); // the first failure is reported
    ls_error_restore(why);
    return st;
}

void ddp_drop_step(ls_ddp *ddp)
{
    ls_status ignored = wait_buckets(ddp); // and for the sum of weights

    LS_UNUSED(ignored);
    ddp->begun = false;
    ddp->pending = false;
    ddp->pending_weight = 0;
    ddp->is_called = false;
}

ls_status ddp_check_model(ls_ddp *ddp)
{
    const char *added = NULL;
    int n;
    const ls_named *list = ls_model_buffers(ddp->model, &n);

    if (n > ddp->n_buffers)
        added = list[ddp->n_buffers].name;
    list = ls_model_parameters(ddp->model, &n);
    if (n > ddp->n_model_params)
        added = list[ddp->n_model_params].name;
    if (added == NULL)
        return LS_OK;
    return ddp_abort(ddp, ls_fail(LS_EINVAL,
                                  "%s was added to the model after ls_ddp_create(); add all layers "
                                  "before",
                                  added));
}

ls_status ddp_check_rows(int64_t rows)
{
    return rows >= 0 ? LS_OK : ls_fail(LS_EINVAL, "rows is %lld, below 0", (long long)rows);
}

/* Rows do not count when the program has cleared their gradients (ls_model_zero_grad). Those of
 * shards have been added to their pieces. */
static void drop_cleared(ls_ddp *ddp)
{
    if (ddp->shards != NULL)
        return;
    for (int i = 0; i < ddp->n_params; i++)
        if (ls_grad(ddp->params[i].leaf) != NULL)
            return;
    ddp->pending = false;
    ddp->pending_weight = 0;
}

static ls_status begin_step(ls_ddp *ddp, int64_t rows)
{
    const int every = ddp->options.check_replicas;
    ls_status st = LS_OK;

    LS_TRY(ddp_check_model(ddp));
    drop_cleared(ddp);
    if (every > 0 && ddp->stats.steps % every == 0)
        st = replicas_check(ddp);
    if (st == LS_EMISMATCH) { // on all ranks
        ddp->replicas_differ = true;
        return st;
    }
    if (st == LS_OK)
        st = ddp_check_rows(rows);
    if (st == LS_OK)
        st = start_weight(ddp, ddp->pending_weight + (double)rows);
    if (st != LS_OK)
        return ddp_abort(ddp, st);
    ddp->begun = true;
    ddp->begun_rows = rows;
    return LS_OK;
}

ls_status ls_ddp_begin(ls_ddp *ddp, int64_t rows)
{
    LS_TRY(LS_GIVEN(ddp));
    if (ddp->begun)
        return ddp_abort(ddp, ls_fail(LS_EINVAL,
                                      "ls_ddp_begin: called twice before ls_ddp_backward(), with "
                                      "%lld and %lld rows; call it once a step",
                                      (long long)ddp->begun_rows, (long long)rows));
    return begin_step(ddp, rows);
}

/* Compares the parameters, if they have changed. */
static ls_status prepare_backward(ls_ddp *ddp)
{
    LS_TRY(ddp_follow_model(ddp));
    LS_TRY(shards_check_turn(ddp, true));
    if (!ddp->is_compared)
        LS_TRY(replicas_compare(ddp));
    ddp->is_compared = true;
    return LS_OK;
}

ls_status ls_ddp_backward(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss, int64_t rows,
                          ls_ddp_step *step)
{
    ls_status st;

    LS_TRY(LS_GIVEN(ddp));
    LS_TRY(LS_GIVEN(tape));
    LS_TRY(LS_GIVEN(step));
    if (!ddp->begun)
        LS_TRY(begin_step(ddp, rows));
    ddp->begun = false;
    st = prepare_backward(ddp);
    if (st != LS_OK)
        return ddp_abort(ddp, st);
    st = ddp->begun_rows == rows
             ? run_backward(ddp, tape, loss, rows, true)
             : ls_fail(LS_EINVAL, "ls_ddp_backward: rows is %lld, but was %lld in ls_ddp_begin()",
                       (long long)rows, (long long)ddp->begun_rows);
    if (st != LS_OK)
        return ddp_abort(ddp, st);
    LS_TRY(finish_step(ddp, step));
    ddp->pending = false;
    ddp->pending_weight = 0;
    LS_TRY(audit_note_buffers(ddp));
    LS_TRY(shards_end_shard(ddp));
    return elastic_end_step(ddp);
}

ls_status ddp_step_idle(ls_ddp *ddp, ls_ddp_step *step)
{
    ls_status st;

    if (!ddp->begun)
        LS_TRY(begin_step(ddp, 0));
    ddp->begun = false;
    st = prepare_backward(ddp);
    if (st == LS_OK)
        st = begin_backward(ddp, true);
    if (st != LS_OK)
        return ddp_abort(ddp, st);
    LS_TRY(finish_step(ddp, step));
    return elastic_end_step(ddp);
}

/* Adds the gradients of a shard that is not the last one of this rank. */
static ls_status add_shard(ls_ddp *ddp)
{
    for (int i = 0; i < ddp->n_params; i++)
        shards_note_used(ddp, i, ls_grad(ddp->params[i].leaf) != NULL);
    LS_TRY(clear_unused(ddp));
    for (int i = 0; i < ddp->n_buckets; i++)
        LS_TRY(shards_add_bucket(ddp, i));
    LS_TRY(audit_note_buffers(ddp));
    return shards_end_shard(ddp);
}

ls_status ls_ddp_accumulate(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss, int64_t rows)
{
    ls_status st;

    LS_TRY(LS_GIVEN(ddp));
    LS_TRY(LS_GIVEN(tape));
    if (ddp->begun)
        return ddp_abort(ddp, ls_fail(LS_EINVAL, "ls_ddp_accumulate: called between ls_ddp_begin() "
                                                 "and ls_ddp_backward(); call it before"));
    LS_TRY(ddp_check_model(ddp));
    LS_TRY(ddp_check_rows(rows));
    drop_cleared(ddp);
    st = ddp_follow_model(ddp);
    if (st == LS_OK)
        st = shards_check_turn(ddp, false);
    if (st != LS_OK)
        return ddp_abort(ddp, st);
    LS_TRY(run_backward(ddp, tape, loss, rows, false));
    ddp->pending_weight += (double)rows;
    if (ddp->shards != NULL)
        return add_shard(ddp);
    ddp->pending = true;
    return LS_OK;
}

ls_status ls_ddp_set_loss_scale(ls_ddp *ddp, double scale)
{
    LS_TRY(LS_GIVEN(ddp));
    if (!(scale > 0) || !isfinite(scale))
        return ls_fail(LS_EINVAL, "ls_ddp_set_loss_scale: %g is not over 0 and finite", scale);
    if (ddp->power != NULL && scale != 1)
        return ls_fail(LS_EUNSUPPORTED,
                       "ls_ddp_set_loss_scale with PowerSGD: what is not sent in a "
                       "step has the scale of that step; use bf16, or no hook");
    ddp->loss_scale = scale;
    return LS_OK;
}

bool ddp_replicas_differ(const ls_ddp *ddp)
{
    return ddp->replicas_differ;
}

void ls_ddp_request_stop(ls_ddp *ddp)
{
    if (ddp == NULL)
        return;
    ddp->stop_requested = true;
}

const char *const *ls_ddp_unused(const ls_ddp *ddp, int *n)
{
    if (n == NULL)
        return NULL;
    *n = ddp == NULL ? 0 : ddp->n_unused;
    return ddp == NULL ? NULL : ddp->unused;
}

void ls_ddp_get_stats(const ls_ddp *ddp, ls_ddp_stats *out)
{
    if (ddp == NULL || out == NULL)
        return;
    *out = ddp->stats;
}
