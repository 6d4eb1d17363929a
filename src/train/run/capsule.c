/* SPDX-License-Identifier: Apache-2.0 */
/* capsule.c - see capsule.h. The other files of this folder call it. */
#include "train/run/run.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "checkpoint/program_record.h"
#include "comm/comm.h"
#include "ddp/power_sgd.h"
#include "ddp/shard_step.h"
#include "tensor/device.h"
#include "train/finite.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- where --- */

static bool has_path(const ls_run *run)
{
    const ls_train_flags *f = run->flags;

    return state_path_is_set(f->capsule != NULL ? f->capsule : f->save);
}

static ls_status find_path(const ls_run *run, char path[STATE_PATH_BYTES])
{
    if (run->flags->capsule == NULL)
        return state_path(run->flags->save, "capsule", path);
    text_format(path, STATE_PATH_BYTES, "%s", run->flags->capsule);
    return LS_OK;
}

/* --- the state before a step --- */

enum { COST_FACTOR = 200 }; /* a copy takes at most 1/200 of the time since the last one */

static const held_state *current(const ls_run *run)
{
    return &run->capsule.held[run->capsule.current];
}

static bool has_current(const ls_run *run)
{
    return current(run)->state.is_complete;
}

static bool compares_replicas(const ls_run *run)
{
    return run->ddp != NULL && run->flags->check_replicas > 0 && !run->flags->heal;
}

/* Whether the ranks compare their parameters in this step, if ever. */
static bool may_compare_now(const ls_run *run)
{
    ls_ddp_stats stats;

    if (!compares_replicas(run))
        return true;
    ls_ddp_get_stats(run->ddp, &stats);
    return stats.steps % run->flags->check_replicas == 0;
}

/* The first copy does not wait for a report: a run may diverge in its first steps. */
static bool is_due(const ls_run *run)
{
    const run_capsule *c = &run->capsule;

    if (run_rank(run) != 0 || c->is_off || run->local != NULL || run->train.set == NULL ||
        !has_path(run) || replay_is_on(run) || !may_compare_now(run) ||
        ls_now_ns() - c->held_ns < COST_FACTOR * c->cost_ns)
        return false;
    return !has_current(run) || (run->recovery.reported == run->at.step && run->report.bad.n == 0 &&
                                 run->at.step > current(run)->step);
}

/* A state that is not finite does not replace one that is. */
static ls_status hold_list(ls_run *run, const name_list *list)
{
    run_capsule *c = &run->capsule;
    held_state *h = &c->held[compares_replicas(run) ? !c->current : c->current];
    const char *name;
    ls_status st;

    c->is_off = state_copy_bytes(list) > c->state_most;
    if (c->is_off)
        return LS_OK;
    LS_TRY(finite_check(list->items, list->n, &name));
    if (name != NULL)
        return LS_OK;
    st = state_copy_take(&h->state, list);
    if (st == LS_ENOMEM) {
        capsule_close(run);
        c->is_off = true;
        ls_log(LS_LOG_INFO, "train", "no step capsules: %s", ls_last_error());
        return LS_OK;
    }
    LS_TRY(st);
    h->step = run->at.step;
    save_list_meta(run, &h->meta);
    return LS_OK;
}

ls_status capsule_hold(ls_run *run)
{
    const int64_t start_ns = ls_now_ns();
    run_capsule *c = &run->capsule;
    name_list list = {0};
    ls_status st;

    if (!is_due(run))
        return LS_OK;
    LS_TRY(run_update_scaler(run));
    st = state_list(run->model, run->optimizer, run->scaler, run->own, run->n_own, &list);
    if (st == LS_OK)
        st = hold_list(run, &list);
    name_list_free(&list);
    LS_TRY(st);
    c->held_ns = ls_now_ns();
    c->cost_ns = c->held_ns - start_ns;
    return LS_OK;
}

void capsule_confirm(ls_run *run)
{
    run_capsule *c = &run->capsule;
    const held_state *waiting = &c->held[!c->current];

    if (waiting->state.is_complete && (!has_current(run) || waiting->step > current(run)->step))
        c->current = !c->current;
}

void capsule_saved(ls_run *run)
{
    run_capsule *c = &run->capsule;

    c->saved_step = 0;
    if (c->is_off && has_path(run) && capsule_hash_parameters(run, &c->saved_hash) == LS_OK)
        c->saved_step = run->at.step;
}

void capsule_drop(ls_run *run)
{
    run->capsule.saved_step = 0;
    run->capsule.cost_ns = 0; // the next copy is due at once
    for (int i = 0; i < 2; i++)
        run->capsule.held[i].state.is_complete = false;
}

void capsule_close(ls_run *run)
{
    for (int i = 0; i < 2; i++)
        state_copy_free(&run->capsule.held[i].state);
}

/* --- what was found in a step --- */

ls_status capsule_hash_gradients(const ls_run *run, int64_t *out)
{
    uint64_t hash = 1;
    int n;
    const ls_named *p = ls_model_parameters(run->model, &n);

    for (int i = 0; i < n; i++)
        LS_TRY(tensor_hash(ls_grad(p[i].tensor), &hash));
    *out = ls_hash_known(hash);
    return LS_OK;
}

ls_status capsule_hash_parameters(const ls_run *run, int64_t *out)
{
    uint64_t hash = 1;
    int n;
    const ls_named *p = ls_model_parameters(run->model, &n);

    for (int i = 0; i < n; i++)
        LS_TRY(tensor_hash(p[i].tensor, &hash));
    *out = ls_hash_known(hash);
    return LS_OK;
}

ls_status capsule_hash_batch(const ls_run *run, int part, int64_t *out)
{
    const ls_batch *b = &run->train.parts[part].batch;
    uint64_t hash = 1;

    *out = 0;
    if (b->fields == NULL)
        return LS_OK;
    for (int i = 0; i < b->n_fields && b->rows > 0; i++)
        LS_TRY(tensor_hash(b->fields[i], &hash));
    *out = ls_hash_known(hash);
    return LS_OK;
}

/* Numbers of all ranks: a hash of the batch of each part, then of the parameters of each rank. */
typedef struct step_hashes {
    int64_t *all;
    int n_parts;
    int n_ranks;
    int64_t gradients; /* 0: the step has not ended, or the next one has begun */
} step_hashes;

/* Batches and gradients of a step are there until the next one begins. */
static ls_status hash_step(ls_run *run, step_hashes *h)
{
    for (int i = 0; run->train.parts != NULL && i < run->partition.n; i++)
        LS_TRY(capsule_hash_batch(run, i, &h->all[run->partition.first + i]));
    return capsule_hash_gradients(run, &h->gradients);
}

/* The caller frees h->all. */
static ls_status open_hashes(const ls_run *run, step_hashes *h)
{
    *h = (step_hashes){.n_parts = run->partition.n_all, .n_ranks = run_size(run)};
    return LS_NEW(&h->all, (size_t)h->n_parts + (size_t)h->n_ranks, "for the hashes of a step");
}

/* --- the file --- */

typedef struct extra_meta {
    ls_meta items[SAVE_META_MOST + STATE_SETTINGS_MAX + 10];
    char numbers[4][SAVE_META_BYTES];
    char state[STATE_PATH_BYTES];
    save_meta own; /* without a held state */
    int n;
} extra_meta;

static void add_meta(extra_meta *m, const char *key, const char *value)
{
    m->items[m->n++] = (ls_meta){key, value};
}

static void fill_meta(ls_run *run, int64_t step, const char *reason, extra_meta *m)
{
    const save_meta *state = &current(run)->meta;

    if (run->capsule.is_off) {
        save_list_meta(run, &m->own);
        state = &m->own;
    }
    memcpy(m->items, state->items, (size_t)state->n * sizeof(*m->items));
    m->n = state->n;
    text_format(m->numbers[0], SAVE_META_BYTES, "%" PRId64, step);
    text_format(m->numbers[1], SAVE_META_BYTES, "%d", run->device->threads);
    text_format(m->numbers[2], SAVE_META_BYTES, "%d", run_size(run));
    add_meta(m, CAPSULE_VERSION, CAPSULE_VERSION_1);
    add_meta(m, CAPSULE_STEP, m->numbers[0]);
    add_meta(m, CAPSULE_THREADS, m->numbers[1]);
    add_meta(m, CAPSULE_RANKS, m->numbers[2]);
    add_meta(m, CAPSULE_REASON, reason);
    add_meta(m, CAPSULE_LIBRARY, ls_version());
}

static ls_status add_state_path(const ls_run *run, extra_meta *m)
{
    char path[STATE_PATH_BYTES];

    LS_TRY(state_path(run->flags->save, "resume", path));
    if (realpath(path, m->state) == NULL)
        return ls_fail_errno("%s", path);
    text_format(m->numbers[3], SAVE_META_BYTES, "%" PRId64, run->capsule.saved_hash);
    add_meta(m, CAPSULE_STATE, m->state);
    add_meta(m, CAPSULE_STATE_HASH, m->numbers[3]);
    return LS_OK;
}

/* The items of the file besides the hashes. */
static ls_status add_state(const ls_run *run, name_list *list, extra_meta *m)
{
    const name_list *held = &current(run)->state.list;

    return run->capsule.is_off ? add_state_path(run, m)
                               : name_list_add(list, "", held->items, held->n);
}

/* `step`: the last one to compute. */
static ls_status write_file(ls_run *run, const char *path, int64_t step, step_hashes *hashes,
                            const char *reason)
{
    const ls_named items[] = {
        {CAPSULE_GRADIENTS, NULL, &hashes->gradients, sizeof(hashes->gradients)},
        {CAPSULE_BATCHES, NULL, hashes->all, (size_t)hashes->n_parts * sizeof(int64_t)},
        {CAPSULE_PARAMETERS, NULL, hashes->all + hashes->n_parts,
         (size_t)hashes->n_ranks * sizeof(int64_t)},
    };
    text_buf program = {0};
    name_list list = {0};
    extra_meta *meta;
    ls_status st;

    LS_TRY(LS_NEW(&meta, 1, "for the metadata of a capsule"));
    fill_meta(run, step, reason, meta);
    st = program_record_append(&program);
    add_meta(meta, PROGRAM_RECORD_KEY, text_str(&program));
    if (st == LS_OK)
        st = add_state(run, &list, meta);
    if (st == LS_OK)
        st = name_list_add(&list, "", items, LS_COUNT_OF(items));
    if (st == LS_OK)
        st = ls_checkpoint_save(path, list.items, list.n, meta->items, meta->n);
    name_list_free(&list);
    text_free(&program);
    ls_free(meta);
    return st;
}

/* Whether one process adds up the gradients of all parts as the ranks did; NULL: it does. */
static const char *reason_of_sums(const ls_run *run)
{
    if (run->comm == NULL || run->partition.has_shards || run_size(run) == 1)
        return NULL;
    if (!text_equal(ls_comm_backend(run->comm), "native"))
        return "without --shards only the gradients of backend native are added up again alike";
    if (partition_divides_rows(run->flags))
        return "with --balance rows the batches of a step depend on measured times";
    if (run_accumulate(run) > 1)
        return "steps of several ranks with --accumulate are computed again with --shards only";
    return run->hook != LS_DDP_HOOK_NONE
               ? "steps of several ranks with --compress are computed again with --shards only"
               : NULL;
}

/* Why the steps up to `step` cannot be computed again; NULL: they can. */
static const char *reason_for_none(const ls_run *run, int64_t step)
{
    const run_capsule *c = &run->capsule;

    if (run->train.set == NULL)
        return "the program does not take its batches from ls_run_next()";
    if (run->local != NULL)
        return "with --sync-every the parameters of ranks differ";
    if (power_rank(run->ddp) > 0)
        return "with --compress powersgd a step depends on what earlier ones have not sent";
    if (c->is_off && (c->saved_step == 0 || c->saved_step >= step))
        return "there is no memory for a copy of the state, and no saved state of an earlier step";
    if (!c->is_off && (!has_current(run) || current(run)->step >= step))
        return "no step has been computed since a state was held";
    return reason_of_sums(run);
}

/* On rank 0. */
static void write_note(ls_run *run, int64_t step, step_hashes *hashes, const char *reason)
{
    char *note = run->capsule.note;
    const char *none = reason_for_none(run, step);
    char path[STATE_PATH_BYTES];
    char activity[STATE_PATH_BYTES];

    note[0] = 0;
    if (!has_path(run))
        return;
    if (none != NULL || find_path(run, path) != LS_OK) {
        text_format(note, CAPSULE_NOTE_BYTES, "; no step capsule: %.300s",
                    none != NULL ? none : ls_last_error());
        return;
    }
    text_format(activity, sizeof(activity), "writing the step capsule %s", path);
    run_set_activity(run, activity);
    if (write_file(run, path, step, hashes, reason) == LS_OK)
        text_format(note, CAPSULE_NOTE_BYTES,
                    "; `lockstep replay %.256s` computes step %" PRId64 " again", path, step);
    else
        text_format(note, CAPSULE_NOTE_BYTES, "; no step capsule: %.300s", ls_last_error());
    run_set_activity(run, "training");
}

/* Ranks other than 0 wait until it is written: the first one that fails ends the job. */
static ls_status leave_together(ls_run *run, int64_t step, const char *reason, step_hashes *h)
{
    const size_t n = (size_t)h->n_parts + (size_t)h->n_ranks;

    if (run->comm != NULL) {
        comm_label(run->comm, "hashes of a step");
        LS_TRY(ls_all_reduce(run->comm, h->all, h->all, n, LS_I64, LS_SUM, NULL));
    }
    if (run_rank(run) == 0)
        write_note(run, step, h, reason);
    if (run->comm == NULL)
        return LS_OK;
    comm_label(run->comm, "step capsule");
    return ls_broadcast(run->comm, run->capsule.note, run->capsule.note, CAPSULE_NOTE_BYTES, LS_U8,
                        0, NULL);
}

enum { HASH_STEP = 1, HASH_PARAMETERS = 2, IS_ALONE = 4 }; /* on rank 0 */

static ls_status leave(ls_run *run, int64_t step, const char *reason, int how)
{
    step_hashes h;
    ls_status st = LS_OK;

    LS_TRY(open_hashes(run, &h));
    if ((how & HASH_STEP) != 0)
        st = hash_step(run, &h);
    if (st == LS_OK && (how & HASH_PARAMETERS) != 0)
        st = capsule_hash_parameters(run, &h.all[h.n_parts + run_rank(run)]);
    if (st == LS_OK && (how & IS_ALONE) != 0)
        write_note(run, step, &h, reason);
    else if (st == LS_OK)
        st = leave_together(run, step, reason, &h);
    ls_free(h.all);
    return st;
}

ls_status capsule_leave(ls_run *run, const char *reason)
{
    return leave(run, run->at.step, reason, HASH_STEP | HASH_PARAMETERS);
}

ls_status capsule_leave_begun(ls_run *run, const char *reason)
{
    const double most = run->flags->clip_grad_norm;
    int n;
    const ls_named *p = ls_model_parameters(run->model, &n);

    if (run->scaler != NULL) {
        text_format(run->capsule.note, CAPSULE_NOTE_BYTES,
                    "; no step capsule: with --precision fp16 the gradients are scaled");
        return LS_OK;
    }
    if (most > 0) // as the optimizer would use them, and a replay compares them
        LS_TRY(ls_clip_grad_norm(p, n, ls_grad, most, NULL));
    return leave(run, run->at.step + 1, reason, HASH_STEP);
}

void capsule_leave_alone(ls_run *run, const char *reason)
{
    const ls_status ignored =
        leave(run, run->at.step, reason, HASH_STEP | HASH_PARAMETERS | IS_ALONE);

    LS_UNUSED(ignored);
}

void capsule_forget_note(ls_run *run)
{
    run->capsule.note[0] = '\0';
}

ls_status capsule_leave_asked(ls_run *run)
{
    LS_TRY(capsule_leave(run, "--capsule-step"));
    progress_line(&run->progress, "step %" PRId64 "%s", run->at.step, run->capsule.note);
    capsule_forget_note(run);
    return LS_OK;
}

void capsule_leave_failed(ls_run *run)
{
    const bool differs = run->ddp != NULL && ddp_replicas_differ(run->ddp);
    ls_status st = LS_OK;
    size_t used;

    if (!differs && !(run->flags->check_nan && check_nan_is_cause(run->failure_text)))
        return;
    capsule_forget_note(run); // of an earlier step
    if (differs)              // the next step has begun
        st = leave(run, run->at.step, run->failure_text, HASH_PARAMETERS);
    else if (run_rank(run) == 0)
        st = leave(run, run->at.step + 1, run->failure_text, IS_ALONE);
    if (st != LS_OK)
        ls_log(LS_LOG_WARN, "train", "no step capsule: %s", ls_last_error());
    used = strlen(run->failure_text);
    text_format(run->failure_text + used, sizeof(run->failure_text) - used, "%s",
                run->capsule.note);
}
