/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards_together.c - computes the shards of a rank in coroutines that wait for each other in batch
 * norms. ddp.c and sync_batch_norm.c call it.
 */
#include "ddp/shards_together.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/compute/coroutine.h"
#include "comm/comm.h"
#include "ddp/reducer.h"
#include "ddp/shard_sums.h"
#include "ddp/shard_tree.h"
#include "tensor/device.h"
#include "tensor/op_profile.h"

#include <string.h>

/* A shard of this rank. */
typedef struct own_shard {
    ls_ddp *ddp;
    int shard;
    coroutine *stack;
    ls_tape *tape;
    struct leaf **states; /* of each parameter of the ddp */
    int *ready;           /* parameters in the order of their completion */
    int n_ready;
    autograd_owner owner; /* of the states */
    ls_tensor *loss;
    int64_t rows;
    ls_status st; /* of its function and backward */

    double *values; /* its sums in the batch norm where it waits; NULL: it does not wait */
    size_t n_values;

    op_profile *profile; /* of the device, while it is suspended */
    int64_t suspended_at_ns;
} own_shard;

struct shards_together {
    own_shard *shards;
    double **values; /* of each, for shard_sums() */
    int n;
    own_shard *current; /* NULL: none runs */
    const shard_calls *calls;
    ls_status st; /* the first failure of this step */
    char text[LS_ERROR_BYTES];
    int64_t backward_ns; /* when the first backward began; 0: none has */
};

bool shards_may_meet(const ls_ddp *ddp)
{
    return ddp->options.sync_batch_norm && ddp->options.shards > 0;
}

bool shards_are_together(const ls_ddp *ddp)
{
    return shards_may_meet(ddp) && ddp->options.shards > ls_comm_size(ddp->comm);
}

/* --- life --- */

static ls_status note_ready(void *arg, ls_tensor *leaf)
{
    own_shard *s = arg;

    s->ready[s->n_ready++] = ddp_find_param(s->ddp, leaf);
    return LS_OK;
}

static ls_status open_shard(ls_ddp *ddp, own_shard *s)
{
    s->ddp = ddp;
    s->owner = (autograd_owner){.ready = note_ready, .arg = s, .reason = ddp->owner.reason};
    s->states = ls_calloc((size_t)ddp->n_params + 1, sizeof(struct leaf *));
    s->ready = ls_calloc((size_t)ddp->n_params + 1, sizeof(*s->ready));
    if (s->states == NULL || s->ready == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d parameters", ddp->n_params);
    for (int i = 0; i < ddp->n_params; i++)
        LS_TRY(autograd_create_state(ddp->params[i].leaf, &s->owner, &s->states[i]));
    LS_TRY(coroutine_create(&s->stack));
    return ls_tape_create(ddp->device, &s->tape);
}

static ls_status open_all(ls_ddp *ddp)
{
    const shard_node range = ddp_shard_range(ddp);
    shards_together *t;

    LS_TRY(LS_NEW(&t, 1, "for shards"));
    ddp->together = t;
    t->shards = ls_calloc((size_t)range.n, sizeof(*t->shards));
    t->values = ls_calloc((size_t)range.n, sizeof(*t->values));
    if (t->shards == NULL || t->values == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d shards", range.n);
    t->n = range.n;
    for (int i = 0; i < t->n; i++) {
        t->shards[i].shard = range.first + i;
        LS_TRY(open_shard(ddp, &t->shards[i]));
        if (i > 0)
            autograd_keep_statistics(t->shards[i].tape);
    }
    return LS_OK;
}

void together_close(ls_ddp *ddp)
{
    shards_together *t = ddp->together;

    if (t == NULL)
        return;
    for (int k = 0; t->shards != NULL && k < t->n; k++) {
        own_shard *s = &t->shards[k];

        for (int i = 0; s->states != NULL && i < ddp->n_params; i++)
            autograd_destroy_state(s->states[i]);
        ls_free(s->states);
        ls_free(s->ready);
        coroutine_destroy(s->stack);
        ls_tape_destroy(s->tape);
    }
    ls_free(t->shards);
    ls_free(t->values);
    ls_free(t);
    ddp->together = NULL;
}

static ls_status open_once(ls_ddp *ddp)
{
    ls_status st = ddp->together != NULL ? LS_OK : open_all(ddp);

    if (st != LS_OK)
        together_close(ddp);
    return st;
}

/* --- computing --- */

/* The states of all parameters: those of the ddp become the shard's, and back. */
static void exchange_states(const own_shard *s)
{
    for (int i = 0; i < s->ddp->n_params; i++)
        autograd_exchange_state(s->ddp->params[i].leaf, s->states[i]);
}

/* A shard's function and backward, in its coroutine. */
static void compute(void *arg)
{
    own_shard *s = arg;
    shards_together *t = s->ddp->together;
    const shard_calls *calls = t->calls;

    ls_tape_set_training(s->tape, 1);
    ls_tape_reset(s->tape);
    for (int i = 0; i < s->ddp->n_params; i++)
        ls_zero_grad(s->ddp->params[i].leaf);
    s->loss = NULL;
    s->rows = 0;
    s->n_ready = 0;
    s->st = calls->compute(calls->arg, s->shard, s->tape, &s->loss, &s->rows);
    if (t->backward_ns == 0)
        t->backward_ns = ls_now_ns();
    if (s->st == LS_OK)
        s->st = ddp_check_rows(s->rows);
    if (s->st == LS_OK)
        s->st = autograd_backward(s->tape, s->loss, ddp_seed(s->ddp, s->rows), &s->owner);
}

/* Lets the shard's coroutine run until it waits in a batch norm, or has ended. */
static void resume(shards_together *t, own_shard *s)
{
    ls_device *device = s->ddp->device;
    op_profile *profile = device->profile;

    device->profile = s->profile;
    if (profile != NULL && s->values != NULL)
        profile->suspended_ns = ls_now_ns() - s->suspended_at_ns;
    exchange_states(s);
    t->current = s;
    (void)coroutine_resume(s->stack);
    t->current = NULL;
    exchange_states(s);
    s->profile = device->profile;
    s->suspended_at_ns = ls_now_ns();
    device->profile = profile;
    if (s->st != LS_OK && t->st == LS_OK) {
        t->st = s->st;
        ls_error_save(t->text);
    }
}

/* The sums of the batch norm in which all shards wait. */
static ls_status add_values(ls_ddp *ddp, shards_together *t, int n_waiting)
{
    const own_shard *first = &t->shards[0];
    const int64_t start_ns = ls_now_ns();
    ls_status st;

    for (int i = 0; i < t->n; i++) {
        const own_shard *s = &t->shards[i];

        if (n_waiting < t->n || s->n_values != first->n_values)
            return ls_fail(
                LS_EINVAL,
                "shards %d to %d have computed different batch norms: with "
                "sync_batch_norm (--sync-bn) all shards of a step need the same ones, in "
                "the same order",
                first->shard, t->shards[t->n - 1].shard);
        t->values[i] = s->values;
    }
    st = shard_sums(ddp->batch_group, ddp->options.shards, shards_starts(ddp), t->values,
                    first->n_values);
    ddp->batch_norm_wait_s += (double)(ls_now_ns() - start_ns) * 1e-9;
    return st;
}

static int run_to_next_sum(shards_together *t)
{
    int n_waiting = 0;

    for (int i = 0; i < t->n; i++) {
        resume(t, &t->shards[i]);
        n_waiting += t->shards[i].values != NULL;
    }
    return n_waiting;
}

ls_status together_compute(ls_ddp *ddp, const shard_calls *calls)
{
    shards_together *t;
    int n_waiting;

    LS_TRY(open_once(ddp));
    t = ddp->together;
    t->calls = calls;
    t->st = LS_OK;
    t->backward_ns = 0;
    for (int i = 0; i < t->n; i++) {
        t->shards[i].st = LS_OK;
        t->shards[i].profile = ddp->device->profile;
        coroutine_start(t->shards[i].stack, compute, &t->shards[i]);
    }
    while ((n_waiting = run_to_next_sum(t)) > 0) {
        if (t->st != LS_OK)
            continue; // those that wait end with this failure
        t->st = add_values(ddp, t, n_waiting);
        if (t->st != LS_OK)
            ls_error_save(t->text);
    }
    ddp->stats.backward_s += (double)(ls_now_ns() - t->backward_ns) * 1e-9;
    if (t->st != LS_OK)
        ls_error_restore(t->text);
    return t->st;
}

/* Suspends the shard that runs until values[0..n) are the sums over all. */
static ls_status wait_for_sum(shards_together *t, own_shard *s, double *values, size_t n)
{
    if (t->st == LS_OK) {
        s->values = values;
        s->n_values = n;
        coroutine_suspend(s->stack);
        s->values = NULL;
    }
    if (t->st != LS_OK) {
        ls_error_restore(t->text);
        return t->st;
    }
    if (t->calls->resumed != NULL)
        t->calls->resumed(t->calls->arg, s->shard);
    return LS_OK;
}

/* The sums of a stream device are added by the host. */
static ls_status wait_on_device(shards_together *t, own_shard *s, double *values, size_t n)
{
    ls_device *device = s->ddp->device;
    double *on_host = ls_calloc(n, sizeof(*on_host));
    ls_status st = on_host != NULL ? device_read(device, on_host, values, n * sizeof(*values))
                                   : ls_fail(LS_ENOMEM, "no memory for the sums of a batch norm");

    if (st == LS_OK)
        st = wait_for_sum(t, s, on_host, n);
    if (st == LS_OK)
        st = device_write(device, values, on_host, n * sizeof(*values));
    ls_free(on_host);
    return st;
}

ls_status together_sum(ls_ddp *ddp, double *values, size_t n)
{
    shards_together *t = ddp->together;
    own_shard *s = t == NULL ? NULL : t->current;

    if (s == NULL)
        return ls_fail(LS_EUNSUPPORTED,
                       "%d shards on %d ranks with sync_batch_norm (--sync-bn): all shards of a "
                       "step meet in each batch norm; compute them in ls_ddp_step_shards(), or in "
                       "a run with ls_run_train()",
                       ddp->options.shards, ls_comm_size(ddp->comm));
    return s->ddp->device->accel == NULL ? wait_for_sum(t, s, values, n)
                                         : wait_on_device(t, s, values, n);
}

/* --- what has been computed --- */

ls_tape *together_tape(const ls_ddp *ddp, int i)
{
    return ddp->together->shards[i].tape;
}

ls_tensor *together_loss(const ls_ddp *ddp, int i)
{
    return ddp->together->shards[i].loss;
}

int64_t together_rows(const ls_ddp *ddp, int i)
{
    return ddp->together->shards[i].rows;
}

ls_status together_give(ls_ddp *ddp, int i)
{
    const own_shard *s = &ddp->together->shards[i];

    for (int k = 0; k < s->n_ready; k++) {
        const int at = s->ready[k];
        ls_tensor *leaf = ddp->params[at].leaf;

        LS_TRY(ls_tensor_copy(shards_target(ddp, at), autograd_state_grad(s->states[at])));
        autograd_set_has_grad(leaf, true);
        LS_TRY(ddp->owner.ready(ddp->owner.arg, leaf));
    }
    return LS_OK;
}
