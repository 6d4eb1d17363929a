/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_sgd.c - <lockstep/local_sgd.h>: the islands of this rank, one of which is current (model
 * and optimizer have its state, the copies have those of the others), and the means of their
 * parameter differences.
 */
#include "ddp/local_sgd.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/options.h"
#include "comm/comm.h"
#include "ddp/local_rules.h"
#include "ddp/local_state.h"
#include "ddp/reducer.h"
#include "nn/buffers.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Its product with a number of fragments is an int64_t. */
#define EVERY_MOST (INT64_C(1) << 30)

/* Of the islands' own parameters, where a mean is applied later than they were sent. */
#define OWN_SHARE 0.5F

/* --- parameters --- */

static int count_frozen(const ls_model *model)
{
    int n;
    const ls_named *list = ls_model_parameters(model, &n);
    int n_frozen = 0;

    for (int i = 0; i < n; i++)
        n_frozen += autograd_is_frozen(list[i].tensor);
    return n_frozen;
}

static size_t offset_in_copy(const local_layout *l, const ls_tensor *tensor)
{
    int i = 0;

    while (l->live[i].tensor != tensor)
        i++;
    return l->offsets[i];
}

static ls_status make_like(const ls_tensor *t, ls_tensor **out)
{
    return ls_tensor_create(ls_tensor_device(t), LS_F32, ls_tensor_n_dims(t), ls_tensor_dims(t),
                            out);
}

static ls_status name_of(const char *param, const char *what, char **out)
{
    text_buf name = {0};

    text_append(&name, "%s.%s", param, what);
    LS_TRY(text_status(&name));
    *out = name.data;
    return LS_OK;
}

static ls_status open_param(ls_local_sgd *l, const ls_named *from, local_param *p)
{
    if (ls_tensor_dtype(from->tensor) != LS_F32)
        return ls_fail(LS_EUNSUPPORTED, "parameter %s is %s; local SGD needs float32", from->name,
                       ls_dtype_name(ls_tensor_dtype(from->tensor)));
    *p = (local_param){.name = from->name,
                       .live = from->tensor,
                       .in_copy = offset_in_copy(&l->layout, from->tensor),
                       .count = ls_tensor_count(from->tensor)};
    l->n_params++;
    LS_TRY(make_like(p->live, &p->mean));
    LS_TRY(name_of(from->name, "momentum_buffer", &p->momentum_name));
    LS_TRY(make_like(p->live, &p->momentum));
    if (l->options.delay == 0)
        return LS_OK;
    LS_TRY(name_of(from->name, "difference", &p->difference_name));
    LS_TRY(make_like(p->live, &p->difference));
    return ls_tensor_fill(p->difference, 0);
}

static ls_status divide_params(ls_local_sgd *l)
{
    const size_t n = (size_t)l->n_params;
    size_t *counts = ls_calloc(n + 1, sizeof(*counts));
    int *of = ls_calloc(n + 1, sizeof(*of));
    ls_status st = LS_OK;

    if (counts == NULL || of == NULL)
        st = ls_fail(LS_ENOMEM, "no memory for %zu parameters", n);
    for (size_t i = 0; i < n && st == LS_OK; i++)
        counts[i] = l->params[i].count;
    if (st == LS_OK)
        local_divide(counts, l->n_params, l->options.fragments, of);
    for (size_t i = 0; i < n && st == LS_OK; i++) {
        l->params[i].fragment = of[i];
        l->params[i].at = l->fragment_counts[of[i]];
        l->fragment_counts[of[i]] += counts[i];
    }
    ls_free(counts);
    ls_free(of);
    return st;
}

static void list_outer(ls_local_sgd *l)
{
    for (int i = 0; i < l->n_params; i++)
        l->outer[l->n_outer++] =
            (ls_named){.name = l->params[i].momentum_name, .tensor = l->params[i].momentum};
    if (l->options.delay == 0)
        return;
    for (int i = 0; i < l->n_params; i++)
        l->outer[l->n_outer++] =
            (ls_named){.name = l->params[i].difference_name, .tensor = l->params[i].difference};
    l->outer[l->n_outer++] =
        (ls_named){.name = "flight", .bytes = &l->flight, .n_bytes = sizeof(l->flight)};
}

static ls_status open_params(ls_local_sgd *l)
{
    int n;
    const ls_named *list = ls_model_parameters(l->model, &n);

    l->n_frozen = count_frozen(l->model);
    LS_TRY(LS_NEW(&l->params, (size_t)n + 1, "for %d parameters", n));
    LS_TRY(LS_NEW(&l->outer, 2 * (size_t)n + 1, "for %d parameters", n));
    LS_TRY(LS_NEW(&l->fragment_counts, (size_t)l->options.fragments, "for %d fragments",
                  l->options.fragments));
    for (int i = 0; i < n; i++)
        if (!autograd_is_frozen(list[i].tensor))
            LS_TRY(open_param(l, &list[i], &l->params[l->n_params]));
    list_outer(l);
    return divide_params(l);
}

/* The first one is reduced without copies. */
static ls_status open_values(ls_local_sgd *l)
{
    size_t most = 1;
    void *memory;

    for (int f = 0; f < l->options.fragments; f++)
        most = l->fragment_counts[f] > most ? l->fragment_counts[f] : most;
    LS_TRY(LS_NEW(&l->values, (size_t)l->range.n, "for %d islands", l->range.n));
    LS_TRY(ls_comm_alloc(l->comm, most * sizeof(float), &memory));
    l->values[0] = memory;
    for (int i = 1; i < l->range.n; i++)
        LS_TRY(LS_NEW(&l->values[i], most, "for the differences of %d islands", l->range.n));
    return LS_OK;
}

/* The ranks of an island hold the same; one of them exchanges it. */
static bool has_groups(const ls_local_sgd *l)
{
    return l->ranks.island != NULL;
}

ls_status local_divide_islands(ls_local_sgd *l)
{
    const int size = has_groups(l) ? l->options.islands : ls_comm_size(l->comm);

    if (l->options.islands < size)
        return ls_fail(LS_EINVAL, "%d islands on %d ranks: each rank needs one", l->options.islands,
                       size);
    LS_TRY(LS_NEW(&l->starts, (size_t)size + 1, "for the islands of %d ranks", size));
    shard_divide_equally(l->options.islands, size, l->starts);
    l->range = shard_range_of(l->starts, has_groups(l) ? l->ranks.number : ls_comm_rank(l->comm));
    return open_values(l);
}

void local_leave_group(ls_local_sgd *l)
{
    for (int i = 1; l->values != NULL && i < l->range.n; i++)
        ls_free(l->values[i]);
    if (l->values != NULL)
        ls_memory_free(l->values[0]);
    ls_free(l->values);
    ls_free(l->starts);
    l->values = NULL;
    l->starts = NULL;
}

/* --- life --- */

static ls_status resolve_options(const ls_local_sgd_options *given, int ranks,
                                 ls_local_sgd_options *o)
{
    LS_TRY(OPTIONS_COPY(ls_local_sgd_options, given, o));
    o->fragments = o->fragments == 0 ? 1 : o->fragments;
    o->islands = o->islands == 0 ? ranks : o->islands;
    o->outer_lr = o->outer_lr == 0 ? 0.7 : o->outer_lr;
    o->outer_momentum = o->outer_momentum == 0  ? 0.9
                        : o->outer_momentum < 0 ? 0
                                                : o->outer_momentum;
    if (o->every < 1 || o->every > EVERY_MOST)
        return ls_fail(LS_EINVAL, "means every %" PRId64 " steps: must be 1 to %" PRId64, o->every,
                       EVERY_MOST);
    if (o->fragments < 1 || o->fragments > o->every)
        return ls_fail(LS_EINVAL,
                       "%d fragments with means every %" PRId64
                       " steps: there must be 1 to %" PRId64 " fragments, one a step",
                       o->fragments, o->every, o->every);
    if (o->delay < 0 || o->delay > o->every / o->fragments)
        return ls_fail(LS_EINVAL,
                       "a delay of %d steps with means every %" PRId64
                       " steps of %d fragments: it must be at most %" PRId64
                       ", until the next one is sent",
                       o->delay, o->every, o->fragments, o->every / o->fragments);
    if (!(o->outer_lr > 0) || !isfinite(o->outer_lr) || !(o->outer_momentum < 1))
        return ls_fail(LS_EINVAL,
                       "outer learning rate %g, outer momentum %g: the rate must be over 0, the "
                       "momentum below 1",
                       o->outer_lr, o->outer_momentum);
    if ((o->islands < 1 && o->islands != LS_ISLANDS_OF_HOSTS) || o->islands > SHARDS_MOST)
        return ls_fail(LS_EINVAL, "%d islands: there must be 1 to %d", o->islands, SHARDS_MOST);
    if (o->hook == LS_DDP_HOOK_POWERSGD)
        return ls_fail(LS_EUNSUPPORTED, "local SGD with PowerSGD, which compresses gradients; use "
                                        "bf16, int8 or int4");
    if ((unsigned)o->hook > LS_DDP_HOOK_INT4)
        return ls_fail(LS_EINVAL, "unknown communication hook %d", (int)o->hook);
    return LS_OK;
}

/* Compares models and gives all ranks the values of rank 0. */
static ls_status equalize(ls_comm *comm, ls_model *model)
{
    ls_ddp *ddp;

    LS_TRY(ddp_create_local(comm, model, &ddp));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static ls_status open(ls_local_sgd *l, ls_optimizer *optimizer, const ls_local_sgd_options *opt)
{
    LS_TRY(resolve_options(opt, ls_comm_size(l->comm), &l->options));
    LS_TRY(local_layout_open(l->model, optimizer, &l->layout));
    if (ls_device_queue(l->layout.device) != NULL)
        return ls_fail(LS_EUNSUPPORTED, "local SGD on device %s: use a device of the host, as cpu",
                       ls_device_name(l->layout.device));
    LS_TRY(local_ranks_open(l->comm, &l->options.islands, &l->ranks));
    LS_TRY(LS_NEW(&l->copies, (size_t)l->options.islands, "for %d islands", l->options.islands));
    LS_TRY(open_params(l));
    LS_TRY(local_divide_islands(l));
    LS_TRY(equalize(l->comm, l->model));
    return local_sgd_restart(l, 0);
}

ls_status ls_local_sgd_create(ls_comm *comm, ls_model *model, ls_optimizer *optimizer,
                              const ls_local_sgd_options *opt, ls_local_sgd **out)
{
    ls_local_sgd *l;
    ls_status st;

    LS_TRY(LS_GIVEN(comm));
    LS_TRY(LS_GIVEN(model));
    LS_TRY(LS_GIVEN(optimizer));
    LS_TRY(LS_GIVEN(opt));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(ls_model_status(model));
    LS_TRY(LS_NEW(&l, 1, "for local SGD"));
    l->comm = comm;
    l->model = model;
    st = open(l, optimizer, opt);
    if (st != LS_OK) {
        ls_local_sgd_destroy(l);
        return ls_context(st, "ls_local_sgd_create");
    }
    *out = l;
    return LS_OK;
}

/* A rank of a group that has failed is not waited for in the other ones. */
static void abort_if_failed(const ls_local_sgd *l)
{
    ls_comm *const groups[] = {l->comm, l->ranks.island, l->ranks.firsts};
    char why[LS_ERROR_BYTES];

    ls_error_save(why);
    for (size_t i = 0; i < LS_COUNT_OF(groups) && has_groups(l); i++)
        if (groups[i] != NULL && ls_comm_status(groups[i]) != LS_OK)
            local_ranks_abort(&l->ranks, ls_last_error());
    ls_error_restore(why);
}

void ls_local_sgd_destroy(ls_local_sgd *local)
{
    ls_local_sgd *l = local;

    if (l == NULL)
        return;
    abort_if_failed(l);
    local_sgd_drop(l);
    for (int i = 0; l->copies != NULL && i < l->options.islands; i++)
        local_copy_destroy(l->copies[i]);
    for (int i = 0; i < l->n_params; i++) {
        ls_tensor_destroy(l->params[i].mean);
        ls_tensor_destroy(l->params[i].momentum);
        ls_tensor_destroy(l->params[i].difference);
        ls_free(l->params[i].momentum_name);
        ls_free(l->params[i].difference_name);
    }
    local_leave_group(l);
    local_ranks_close(&l->ranks);
    local_snapshots_close(l);
    local_layout_close(&l->layout);
    ls_free(l->copies);
    ls_free(l->params);
    ls_free(l->outer);
    ls_free(l->fragment_counts);
    ls_free(l);
}

/* --- islands --- */

ls_comm *ls_local_sgd_group(const ls_local_sgd *local)
{
    return local == NULL ? NULL : local->ranks.island;
}

int ls_local_sgd_island(const ls_local_sgd *local)
{
    return local == NULL ? -1 : local->range.first;
}

bool local_is_own(const ls_local_sgd *l, int island)
{
    return island >= l->range.first && island < l->range.first + l->range.n;
}

static ls_status need_copy(ls_local_sgd *l, int island)
{
    return l->copies[island] != NULL ? LS_OK : local_copy_create(&l->layout, &l->copies[island]);
}

/* Afterwards the copies of all islands of this rank are current. */
static ls_status leave_island(ls_local_sgd *l)
{
    if (l->current == NO_ISLAND)
        return LS_OK;
    LS_TRY(need_copy(l, l->current));
    LS_TRY(local_copy_store(&l->layout, l->copies[l->current]));
    l->current = NO_ISLAND;
    return LS_OK;
}

ls_status ls_local_sgd_enter(ls_local_sgd *local, int island)
{
    ls_local_sgd *l = local;

    LS_TRY(LS_GIVEN(l));
    if (!local_is_own(l, island))
        return ls_fail(LS_EINVAL,
                       "ls_local_sgd_enter: island %d is not of this rank, which has %d "
                       "to %d",
                       island, l->range.first, l->range.first + l->range.n - 1);
    if (l->current == island)
        return LS_OK;
    LS_TRY(leave_island(l));
    LS_TRY(local_copy_load(&l->layout, l->copies[island]));
    l->current = island;
    l->is_shown = false;
    return LS_OK;
}

/* The parameters in an island of this rank. */
static float *param_of(const ls_local_sgd *l, int island, const local_param *p)
{
    if (island == l->current)
        return tensor_host_elements(p->live);
    return (float *)(void *)(l->copies[island]->memory + p->in_copy);
}

/* --- means --- */

static void subtract(const ls_local_sgd *l, int fragment, int i)
{
    for (int k = 0; k < l->n_params; k++) {
        const local_param *p = &l->params[k];
        const float *mean = tensor_host_elements(p->mean);
        const float *own;
        float *to = l->values[i] + p->at;

        if (p->fragment != fragment)
            continue;
        own = param_of(l, l->range.first + i, p);
        for (size_t j = 0; j < p->count; j++)
            to[j] = mean[j] - own[j];
    }
}

static ls_status check_finite(const ls_local_sgd *l)
{
    for (int k = 0; k < l->n_params; k++) {
        const local_param *p = &l->params[k];

        for (size_t j = 0; j < p->count && p->fragment == l->flight.fragment; j++)
            if (!isfinite(l->values[0][p->at + j]))
                return ls_fail(LS_EFORMAT,
                               "step %" PRId64 ": the mean difference of parameter %s over %d "
                               "islands is NaN or infinite: an island has diverged",
                               l->flight.started, p->name, l->options.islands);
    }
    return LS_OK;
}

/* Parameters of the current island, which operators may have rearranged. */
static ls_status make_plain(const ls_local_sgd *l)
{
    void *ignored;

    for (int k = 0; k < l->n_params; k++)
        LS_TRY(tensor_plain(l->params[k].live, &ignored));
    return LS_OK;
}

/* Other ranks of the island and those of other islands wait for this one in different groups. */
static ls_status abort_groups(const ls_local_sgd *l, ls_status st)
{
    char why[LS_ERROR_BYTES];

    if (st == LS_OK || !has_groups(l))
        return st;
    ls_error_save(why);
    local_ranks_abort(&l->ranks, why);
    ls_error_restore(why);
    return st;
}

static ls_status start_exchange(ls_local_sgd *l, int fragment)
{
    ls_comm *comm = has_groups(l) ? l->ranks.firsts : l->comm;

    if (comm == NULL)
        return LS_OK;
    for (int i = 0; i < l->range.n; i++)
        subtract(l, fragment, i);
    return local_mean_start(comm, l->options.islands, l->starts, l->values,
                            l->fragment_counts[fragment], l->options.hook, &l->exchange);
}

static ls_status start_mean(ls_local_sgd *l, int fragment, int delay)
{
    if (count_frozen(l->model) != l->n_frozen)
        return ls_fail(LS_EINVAL, "local SGD: ls_model_freeze() after ls_local_sgd_create()");
    LS_TRY(make_plain(l));
    LS_TRY(abort_groups(l, start_exchange(l, fragment)));
    l->is_awaited = true;
    l->flight = (local_flight){l->options.fragments, fragment, l->step, l->step + delay};
    return LS_OK;
}

/* The mean in values[0] of all ranks. */
static ls_status end_exchange(ls_local_sgd *l)
{
    local_exchange *x = l->exchange;

    l->exchange = NULL;
    if (x != NULL)
        LS_TRY(local_mean_end(x));
    return !has_groups(l)
               ? LS_OK
               : local_ranks_share(&l->ranks, l->values[0], l->fragment_counts[l->flight.fragment],
                                   LS_F32, "mean of differences");
}

ls_status local_flight_wait(ls_local_sgd *l)
{
    if (!l->is_awaited)
        return LS_OK;
    l->is_awaited = false;
    LS_TRY(abort_groups(l, end_exchange(l)));
    LS_TRY(check_finite(l));
    for (int k = 0; k < l->n_params && l->options.delay > 0; k++) {
        const local_param *p = &l->params[k];

        if (p->fragment == l->flight.fragment)
            memcpy(tensor_host_elements(p->difference), l->values[0] + p->at,
                   p->count * sizeof(float));
    }
    return LS_OK;
}

static void update(const ls_local_sgd *l, const local_param *p)
{
    const float *d =
        p->difference != NULL ? tensor_host_elements(p->difference) : l->values[0] + p->at;
    float *mean = tensor_host_elements(p->mean);

    local_outer_step(mean, tensor_host_elements(p->momentum), d, p->count,
                     (float)l->options.outer_lr, (float)l->options.outer_momentum);
    for (int i = 0; i < l->range.n; i++) {
        float *own = param_of(l, l->range.first + i, p);

        if (l->flight.started == l->step)
            memcpy(own, mean, p->count * sizeof(float));
        else
            local_mix(own, mean, p->count, OWN_SHARE);
    }
    tensor_written(p->live, "ls_local_sgd_step()");
}

/* The mean that has been started, if one has. */
static ls_status apply_mean(ls_local_sgd *l)
{
    if (l->flight.fragment == NO_FRAGMENT)
        return LS_OK;
    LS_TRY(local_flight_wait(l));
    LS_TRY(make_plain(l));
    for (int k = 0; k < l->n_params; k++)
        if (l->params[k].fragment == l->flight.fragment)
            update(l, &l->params[k]);
    l->flight.fragment = NO_FRAGMENT;
    return LS_OK;
}

/* A mean of two operations starts the second one when half of the delay is over. */
static ls_status go_on_with_mean(ls_local_sgd *l)
{
    const local_flight *f = &l->flight;

    if (f->fragment == NO_FRAGMENT)
        return LS_OK;
    if (l->step >= f->due)
        return apply_mean(l);
    return l->exchange != NULL && l->step >= f->started + (f->due - f->started + 1) / 2
               ? abort_groups(l, local_mean_go_on(l->exchange))
               : LS_OK;
}

static bool is_fragment_due(const ls_local_sgd *l, int64_t step, int fragment)
{
    return local_is_due(step, l->options.every, fragment, l->options.fragments);
}

bool local_sgd_is_due(const ls_local_sgd *l, int64_t step)
{
    for (int f = 0; f < l->options.fragments; f++)
        if (is_fragment_due(l, step - l->options.delay, f))
            return true;
    return false;
}

ls_status ls_local_sgd_step(ls_local_sgd *local)
{
    ls_local_sgd *l = local;

    LS_TRY(LS_GIVEN(l));
    if (l->is_shown)
        return ls_fail(LS_EINVAL, "ls_local_sgd_step: the model has been shown; call "
                                  "ls_local_sgd_enter() before the next step");
    l->step++;
    LS_TRY(go_on_with_mean(l));
    for (int f = 0; f < l->options.fragments; f++) {
        if (!is_fragment_due(l, l->step, f))
            continue;
        LS_TRY(apply_mean(l)); // of a state that was saved with another H
        LS_TRY(start_mean(l, f, l->options.delay));
        if (l->options.delay == 0)
            LS_TRY(apply_mean(l));
    }
    return LS_OK;
}

ls_status local_sgd_finish(ls_local_sgd *l)
{
    LS_TRY(apply_mean(l));
    for (int f = 0; f < l->options.fragments; f++) {
        if (is_fragment_due(l, l->step, f))
            continue;
        LS_TRY(start_mean(l, f, 0));
        LS_TRY(apply_mean(l));
    }
    return LS_OK;
}

/* --- the last mean --- */

static ls_status broadcast_buffers(const ls_local_sgd *l)
{
    int n;
    const buffer_block *blocks = model_buffer_blocks(l->model, &n);
    const ls_named *buffers;

    for (int i = 0; i < n; i++) {
        void *data;

        LS_TRY(tensor_plain(blocks[i].memory, &data));
        comm_label(l->comm, "buffers");
        LS_TRY(ls_broadcast(l->comm, data, data, blocks[i].used, LS_U8, 0, NULL));
    }
    buffers = ls_model_buffers(l->model, &n);
    for (int i = 0; i < n; i++)
        tensor_written(buffers[i].tensor, "ls_local_sgd_show()");
    return LS_OK;
}

ls_status ls_local_sgd_show(ls_local_sgd *local)
{
    ls_local_sgd *l = local;

    LS_TRY(LS_GIVEN(l));
    if (l->is_shown)
        return LS_OK;
    LS_TRY(leave_island(l));
    if (local_is_own(l, 0))
        LS_TRY(local_copy_load(&l->layout, l->copies[0]));
    for (int k = 0; k < l->n_params; k++)
        LS_TRY(ls_tensor_copy(l->params[k].live, l->params[k].mean));
    LS_TRY(broadcast_buffers(l));
    l->is_shown = true;
    return LS_OK;
}

static ls_status take_last_mean(ls_local_sgd *l)
{
    for (int k = 0; k < l->n_params; k++)
        LS_TRY(ls_tensor_copy(l->params[k].mean, l->params[k].live));
    return LS_OK;
}

ls_status local_sgd_restart(ls_local_sgd *l, int64_t step)
{
    l->step = step;
    l->flight = (local_flight){.fragments = l->options.fragments, .fragment = NO_FRAGMENT};
    l->is_shown = false;
    LS_TRY(take_last_mean(l));
    for (int k = 0; k < l->n_params; k++)
        LS_TRY(ls_tensor_fill(l->params[k].momentum, 0));
    // A process in the place of a lost rank gets its islands from the other ranks.
    for (int i = 0; i < l->range.n && l->range.n > 1 && !comm_is_new(l->comm); i++) {
        LS_TRY(need_copy(l, l->range.first + i));
        LS_TRY(local_copy_store(&l->layout, l->copies[l->range.first + i]));
    }
    l->current = l->range.first;
    return LS_OK;
}

/* --- files --- */

const ls_named *local_sgd_outer(const ls_local_sgd *l, int *n)
{
    *n = l->n_outer;
    return l->outer;
}

int local_sgd_islands(const ls_local_sgd *l)
{
    return l->options.islands;
}

int local_sgd_delay(const ls_local_sgd *l)
{
    return l->options.delay;
}

const int *local_sgd_counts(const ls_local_sgd *l)
{
    return l->ranks.counts;
}

void local_sgd_abort(ls_local_sgd *l, const char *why)
{
    local_ranks_abort(&l->ranks, why);
}

const ls_named *local_sgd_copy(const ls_local_sgd *l, int island, int *n)
{
    *n = l->copies[island]->n;
    return l->copies[island]->items;
}

ls_status local_sgd_make_copies(ls_local_sgd *l)
{
    for (int i = 0; i < l->options.islands; i++)
        LS_TRY(need_copy(l, i));
    return LS_OK;
}

void local_sgd_drop_copies(ls_local_sgd *l)
{
    for (int i = 0; i < l->options.islands; i++) {
        if (local_is_own(l, i))
            continue;
        local_copy_destroy(l->copies[i]);
        l->copies[i] = NULL;
    }
}

int local_rank_of(const ls_local_sgd *l, int island)
{
    int r = 0;

    if (has_groups(l))
        return l->ranks.first_of[island];
    while (l->starts[r + 1] <= island)
        r++;
    return r;
}

static ls_status receive_copy(const ls_local_sgd *l, local_copy **copy, int from)
{
    local_copy *received;
    ls_status st;

    LS_TRY(local_copy_create(&l->layout, &received));
    st = ls_recv(l->comm, received->memory, l->layout.bytes, LS_U8, from, COPY_TAG, NULL);
    local_copy_destroy(st == LS_OK ? *copy : received);
    if (st == LS_OK)
        *copy = received;
    return st;
}

ls_status local_send_copy(const ls_local_sgd *l, local_copy **copy, int from, int to)
{
    const int rank = ls_comm_rank(l->comm);

    comm_label(l->comm, "state of an island");
    if (from == to)
        return LS_OK;
    if (rank == from)
        return ls_send(l->comm, (*copy)->memory, l->layout.bytes, LS_U8, to, COPY_TAG, NULL);
    return rank == to ? receive_copy(l, copy, from) : LS_OK;
}

ls_status local_sgd_collect(ls_local_sgd *l)
{
    LS_TRY(local_flight_wait(l));
    for (int i = 0; i < l->options.islands; i++)
        LS_TRY(local_send_copy(l, &l->copies[i], local_rank_of(l, i), 0));
    return LS_OK;
}

/* What a file has, at step `step`. */
static ls_status check_flight(const ls_local_sgd *l, int64_t step)
{
    const local_flight *f = &l->flight;

    if (l->options.delay == 0 || f->fragment == NO_FRAGMENT)
        return LS_OK;
    if (f->fragments < 1 || f->fragments > EVERY_MOST || f->fragment < 0 ||
        f->fragment >= f->fragments || f->started < 1 || f->started > step || f->due <= step ||
        f->due > step + EVERY_MOST)
        return ls_fail(LS_EFORMAT,
                       "outer.flight of the state is damaged: fragment %" PRId64 " of %" PRId64
                       ", from step %" PRId64 " to %" PRId64 ", at step %" PRId64,
                       f->fragment, f->fragments, f->started, f->due, step);
    if (f->fragments != l->options.fragments)
        return ls_fail(LS_EINVAL,
                       "the state has a mean of one of %" PRId64 " fragments that is not applied "
                       "yet: resume with --sync-fragments %" PRId64,
                       f->fragments, f->fragments);
    return LS_OK;
}

/* The copy of the island from its first rank. */
static ls_status share_copy(ls_local_sgd *l)
{
    const int island = l->range.first;

    if (!has_groups(l))
        return LS_OK;
    LS_TRY(need_copy(l, island));
    return local_ranks_share(&l->ranks, l->copies[island]->memory, l->layout.bytes, LS_U8,
                             "state of an island");
}

ls_status local_sgd_spread(ls_local_sgd *l, int64_t step)
{
    for (int i = 0; i < l->n_outer; i++)
        LS_TRY(ddp_send_item(l->comm, &l->outer[i], 0));
    LS_TRY(check_flight(l, step));
    for (int i = 0; i < l->options.islands; i++)
        LS_TRY(local_send_copy(l, &l->copies[i], 0, local_rank_of(l, i)));
    LS_TRY(share_copy(l));
    local_sgd_drop_copies(l);
    LS_TRY(take_last_mean(l));
    l->step = step;
    l->current = NO_ISLAND;
    l->is_shown = true;
    return LS_OK;
}
