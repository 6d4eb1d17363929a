/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit.c - see audit.h. A digest of a shard is a list of hashes: of the gradient of each
 * parameter, of the loss and its rows, and of the buffers that it leaves. Ranks compare a hash of
 * the list, and exchange lists only where these differ. ddp.c, shards.c, elastic.c and ls_run call
 * it.
 */
#include "ddp/audit.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "ddp/reducer.h"
#include "tensor/tensor.h"

#include <string.h>

/* Behind the parameters. */
enum { DIGEST_LOSS, DIGEST_BUFFERS, DIGEST_MORE };

enum { RECORD_OWN, RECORD_AUDIT, RECORD_OFFENCES, RECORD_NUMBERS };

struct ddp_audit {
    bool is_begun; /* until the step is complete */
    int64_t number;
    audit_task task;      /* of this rank */
    int own_shard;        /* that is audited; -1: none */
    int64_t *own;         /* its digest, of n_params + DIGEST_MORE hashes */
    int64_t *of_task;     /* of the task */
    int64_t *of_again;    /* of a shard that is computed again */
    int64_t *current;     /* one of the last two */
    int64_t *gathered;    /* RECORD_NUMBERS of each rank, then offences of each rank */
    bool *is_left_out;    /* of each rank; NULL: none is */
    struct leaf **states; /* of each parameter, for gradients of audits; NULL: not made */
    int n_states;
    autograd_owner owner; /* of the states */
    shard_buffers before; /* the step */
    bool has_copies;      /* `before` is open */
};

/* --- life --- */

ls_status ddp_audit_check(const ls_ddp *ddp)
{
    if (ddp->shards == NULL)
        return ls_fail(LS_EINVAL, "--audit needs --shards V");
    if (ddp->options.sync_batch_norm)
        return ls_fail(LS_EUNSUPPORTED, "--audit with --sync-bn: a rank cannot compute a shard of "
                                        "another one alone, because all shards meet in each batch "
                                        "norm; leave one of them out");
    if (ls_device_queue(ddp->device) != NULL)
        return ls_fail(LS_EUNSUPPORTED,
                       "--audit on device %s: gradients are compared in host memory; leave it out",
                       ls_device_name(ddp->device));
    return LS_OK;
}

void audit_drop_params(ls_ddp *ddp)
{
    struct ddp_audit *a = ddp->audit;

    if (a == NULL)
        return;
    for (int i = 0; i < a->n_states; i++)
        autograd_destroy_state(a->states[i]);
    ls_free(a->states);
    ls_free(a->own);
    a->states = NULL;
    a->n_states = 0;
    a->own = a->of_task = a->of_again = NULL;
}

static ls_status note_state(void *arg, ls_tensor *leaf);

static ls_status make_states(ls_ddp *ddp, struct ddp_audit *a)
{
    const size_t n = (size_t)ddp->n_params + DIGEST_MORE;

    if (a->states != NULL)
        return LS_OK;
    a->owner = (autograd_owner){.ready = note_state, .arg = ddp, .reason = ddp->owner.reason};
    a->states = ls_calloc((size_t)ddp->n_params + 1, sizeof(struct leaf *));
    if (a->states == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the gradients of an audit");
    for (int i = 0; i < ddp->n_params; i++, a->n_states++)
        LS_TRY(autograd_create_state(ddp->params[i].leaf, &a->owner, &a->states[i]));
    LS_TRY(LS_NEW(&a->own, 3 * n, "for digests of %d parameters", ddp->n_params));
    a->of_task = a->own + n;
    a->of_again = a->of_task + n;
    return LS_OK;
}

static ls_status open_once(ls_ddp *ddp)
{
    if (ddp->audit == NULL)
        LS_TRY(LS_NEW(&ddp->audit, 1, "for audits"));
    if (!ddp->audit->has_copies) {
        ddp->audit->has_copies = true;
        LS_TRY(shard_buffers_open(ddp, &ddp->audit->before, false));
    }
    return LS_OK;
}

void audit_close(ls_ddp *ddp)
{
    struct ddp_audit *a = ddp->audit;

    if (a == NULL)
        return;
    audit_drop_params(ddp);
    if (a->has_copies)
        shard_buffers_close(&a->before);
    ls_free(a->gathered);
    ls_free(a->is_left_out);
    ls_free(a);
    ddp->audit = NULL;
}

/* --- digests --- */

static ls_status hash_tensor(const ls_tensor *t, int64_t *out)
{
    uint64_t hash = 1;

    LS_TRY(tensor_hash(t, &hash));
    *out = ls_hash_known(hash);
    return LS_OK;
}

/* NULL: the forward has failed, which backward reports. */
static ls_status hash_loss(const ls_tensor *loss, int64_t rows, int64_t *out)
{
    if (loss == NULL)
        return LS_OK;
    LS_TRY(hash_tensor(loss, out));
    *out = ls_hash_known(ls_hash3((uint64_t)*out, (uint64_t)rows, 0));
    return LS_OK;
}

static ls_status hash_buffers(const ls_ddp *ddp, int64_t *out)
{
    uint64_t hash = 1;
    int n;
    const ls_named *buffers = ls_model_buffers(ddp->model, &n);

    for (int i = 0; i < n; i++)
        LS_TRY(tensor_hash(buffers[i].tensor, &hash));
    *out = ls_hash_known(hash);
    return LS_OK;
}

static int64_t hash_digest(const ls_ddp *ddp, const int64_t *digest)
{
    const size_t n = (size_t)ddp->n_params + DIGEST_MORE;

    return ls_hash_known(ls_hash_block(digest, n * sizeof(*digest), 1));
}

/* A gradient of an audit is complete. */
static ls_status note_state(void *arg, ls_tensor *leaf)
{
    const ls_ddp *ddp = arg;

    return hash_tensor(autograd_grad_memory(leaf), &ddp->audit->current[ddp_find_param(ddp, leaf)]);
}

/* Whether the current shard is the audited one. */
static bool is_audited(const ls_ddp *ddp)
{
    const struct ddp_audit *a = ddp->audit;

    return a != NULL && a->is_begun && a->own_shard >= 0 &&
           ddp_shard_range(ddp).first + shards_done(ddp) == a->own_shard;
}

ls_status audit_note_loss(ls_ddp *ddp, const ls_tensor *loss, int64_t rows)
{
    return is_audited(ddp) ? hash_loss(loss, rows, &ddp->audit->own[ddp->n_params + DIGEST_LOSS])
                           : LS_OK;
}

ls_status audit_note_gradient(ls_ddp *ddp, int param)
{
    return is_audited(ddp)
               ? hash_tensor(autograd_grad_memory(ddp->params[param].leaf), &ddp->audit->own[param])
               : LS_OK;
}

ls_status audit_note_buffers(ls_ddp *ddp)
{
    return is_audited(ddp) ? hash_buffers(ddp, &ddp->audit->own[ddp->n_params + DIGEST_BUFFERS])
                           : LS_OK;
}

/* --- a step --- */

ls_status ddp_audit_begin(ls_ddp *ddp, int64_t number, int *shard)
{
    const int size = ls_comm_size(ddp->comm);
    const int rank = ls_comm_rank(ddp->comm);
    struct ddp_audit *a;

    LS_TRY(open_once(ddp));
    LS_TRY(ddp_follow_model(ddp));
    a = ddp->audit;
    LS_TRY(make_states(ddp, a));
    memset(a->own, 0, 3 * ((size_t)ddp->n_params + DIGEST_MORE) * sizeof(*a->own));
    a->number = number;
    a->task = audit_task_of(shards_starts(ddp), size, rank, number);
    a->own_shard = audit_own_shard(shards_starts(ddp), size, rank, number);
    a->current = a->of_task;
    LS_TRY(shard_buffers_save(ddp, &a->before));
    a->is_begun = true;
    *shard = a->task.owner < 0 ? -1 : a->task.shard;
    return LS_OK;
}

static void exchange_states(const ls_ddp *ddp)
{
    for (int i = 0; i < ddp->n_params; i++)
        autograd_exchange_state(ddp->params[i].leaf, ddp->audit->states[i]);
}

ls_status ddp_audit_backward(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss, int64_t rows)
{
    struct ddp_audit *a = ddp->audit;
    int64_t *more = a->current + ddp->n_params;
    ls_status st;

    LS_TRY(ddp_check_rows(rows));
    LS_TRY(hash_loss(loss, rows, &more[DIGEST_LOSS]));
    exchange_states(ddp);
    for (int i = 0; i < ddp->n_params; i++)
        ls_zero_grad(ddp->params[i].leaf);
    st = autograd_backward(tape, loss, ddp_seed(ddp, rows), &a->owner);
    exchange_states(ddp);
    LS_TRY(st);
    LS_TRY(hash_buffers(ddp, &more[DIGEST_BUFFERS]));
    return shard_buffers_restore(ddp, &a->before);
}

/* --- comparing --- */

/* The rank with the lowest shard that differs from its audit; -1: none. *auditor: its auditor. */
static int find_difference(const ls_ddp *ddp, const int64_t *records, int *auditor)
{
    const int size = ls_comm_size(ddp->comm);
    int owner = -1;

    for (int r = 0; r < size; r++) {
        const audit_task t = audit_task_of(shards_starts(ddp), size, r, ddp->audit->number);

        if (t.owner < 0 || records[r * RECORD_NUMBERS + RECORD_AUDIT] ==
                               records[t.owner * RECORD_NUMBERS + RECORD_OWN])
            continue;
        if (owner < 0 || t.owner < owner) {
            owner = t.owner;
            *auditor = r;
        }
    }
    return owner;
}

/* The digests of both ranks, to name what differs first. */
static ls_status compare_digests(ls_ddp *ddp, audit_finding *found)
{
    const size_t n = (size_t)ddp->n_params + DIGEST_MORE;
    const int rank = ls_comm_rank(ddp->comm);
    const struct ddp_audit *a = ddp->audit;
    int64_t *both;
    ls_status st;
    size_t i = 0;

    LS_TRY(LS_NEW(&both, 2 * n, "for digests of %d parameters", ddp->n_params));
    if (rank == found->owner)
        memcpy(both, a->own, n * sizeof(*both));
    if (rank == found->auditor)
        memcpy(both + n, a->of_task, n * sizeof(*both));
    comm_label(ddp->comm, "audit: own digest");
    st = ls_broadcast(ddp->comm, both, both, n, LS_I64, found->owner, NULL);
    comm_label(ddp->comm, "audit: digest of the auditor");
    if (st == LS_OK)
        st = ls_broadcast(ddp->comm, both + n, both + n, n, LS_I64, found->auditor, NULL);
    while (i < n - 1 && both[i] == both[n + i])
        i++;
    ls_free(both);
    found->param = i < (size_t)ddp->n_params ? ddp->params[i].name : NULL;
    found->is_loss = i == (size_t)ddp->n_params + DIGEST_LOSS;
    return st;
}

ls_status ddp_audit_compare(ls_ddp *ddp, int64_t offences, bool *differs, audit_finding *out)
{
    const int size = ls_comm_size(ddp->comm);
    struct ddp_audit *a = ddp->audit;
    const int64_t own[RECORD_NUMBERS] = {a->own_shard < 0 ? 0 : hash_digest(ddp, a->own),
                                         a->task.owner < 0 ? 0 : hash_digest(ddp, a->of_task),
                                         offences};
    int64_t *records;

    *differs = false;
    LS_TRY(LS_RESIZE(&a->gathered, (RECORD_NUMBERS + 1) * (size_t)size, "for %d ranks", size));
    records = a->gathered;
    comm_label(ddp->comm, "audit");
    LS_TRY(ls_all_gather(ddp->comm, own, records, RECORD_NUMBERS, LS_I64, NULL));
    *out = (audit_finding){.offences = records + (size_t)RECORD_NUMBERS * (size_t)size};
    out->owner = find_difference(ddp, records, &out->auditor);
    if (out->owner < 0)
        return LS_OK;
    *differs = true;
    for (int r = 0; r < size; r++)
        out->offences[r] = records[r * RECORD_NUMBERS + RECORD_OFFENCES];
    out->shard = audit_own_shard(shards_starts(ddp), size, out->owner, a->number);
    out->third = audit_third(out->owner, out->auditor, size);
    out->evidence.owner = records[out->owner * RECORD_NUMBERS + RECORD_OWN];
    out->evidence.auditor = records[out->auditor * RECORD_NUMBERS + RECORD_AUDIT];
    a->current = a->of_again;
    // A shard that is computed again begins with them.
    LS_TRY(shard_buffers_restore(ddp, &a->before));
    return compare_digests(ddp, out);
}

bool ddp_audit_is_asked(const ls_ddp *ddp, const audit_finding *found)
{
    const int rank = ls_comm_rank(ddp->comm);

    return found->third >= 0 ? rank == found->third
                             : rank == found->owner || rank == found->auditor;
}

ls_status ddp_audit_judge(ls_ddp *ddp, audit_finding *found, audit_verdict *out)
{
    int64_t *all = ddp->audit->gathered; // its records are not needed any more
    const int64_t own = ddp_audit_is_asked(ddp, found) ? hash_digest(ddp, ddp->audit->of_again) : 0;
    audit_evidence *e = &found->evidence;

    comm_label(ddp->comm, "audit: computed again");
    LS_TRY(ls_all_gather(ddp->comm, &own, all, 1, LS_I64, NULL));
    if (found->third >= 0) {
        e->third = all[found->third];
    } else {
        e->owner_again = all[found->owner];
        e->auditor_again = all[found->auditor];
    }
    *out = audit_decide(e);
    return LS_OK;
}

/* --- the step once more --- */

void ddp_audit_undo(ls_ddp *ddp)
{
    ddp->audit->is_begun = false;
    ddp->stats.steps--;
}

ls_status ddp_audit_leave_out(ls_ddp *ddp, int rank)
{
    struct ddp_audit *a = ddp->audit;

    if (a->is_left_out == NULL)
        LS_TRY(LS_NEW(&a->is_left_out, (size_t)ls_comm_size(ddp->comm), "for the ranks"));
    a->is_left_out[rank] = true;
    ddp->is_divided_anew = true;
    return LS_OK;
}

bool ddp_audit_leaves_out(const ls_ddp *ddp)
{
    return ddp != NULL && ddp->audit != NULL && ddp->audit->is_left_out != NULL;
}

bool audit_divide(const ls_ddp *ddp, int *starts)
{
    const int size = ls_comm_size(ddp->comm);
    int n_left = 0;
    int at = 0;

    if (!ddp_audit_leaves_out(ddp))
        return false;
    for (int r = 0; r < size; r++)
        n_left += !ddp->audit->is_left_out[r];
    for (int r = 0; r < size; r++) {
        const shard_node range = shard_range(ddp->options.shards, at, n_left);

        starts[r] = range.first;
        at += !ddp->audit->is_left_out[r];
    }
    starts[size] = ddp->options.shards;
    return true;
}

/* All ranks have shards again. */
static void take_all(ls_ddp *ddp)
{
    ls_free(ddp->audit->is_left_out);
    ddp->audit->is_left_out = NULL;
}

void ddp_audit_end(ls_ddp *ddp)
{
    if (ddp->audit == NULL)
        return;
    ddp->audit->is_begun = false;
    if (ddp->audit->is_left_out == NULL)
        return;
    take_all(ddp);
    ddp->is_divided_anew = true;
}

ls_status audit_drop_step(ls_ddp *ddp)
{
    struct ddp_audit *a = ddp->audit;
    bool is_begun;

    ddp->is_divided_anew = false;
    if (a == NULL)
        return LS_OK;
    is_begun = a->is_begun;
    a->is_begun = false;
    take_all(ddp);
    return is_begun ? shard_buffers_restore(ddp, &a->before) : LS_OK;
}
