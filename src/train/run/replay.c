/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - see replay.h. run.c, loop.c and resume.c call it. */
#include "train/run/replay.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "train/finite.h"
#include "train/run/run.h"

#include <inttypes.h>
#include <string.h>

enum { PARTS_MOST = 1 << 20 };

bool replay_is_on(const ls_run *run)
{
    return run->replay.file != NULL;
}

/* --- opening --- */

static ls_status load_hashes(run_replay *r)
{
    LS_TRY(LS_NEW(&r->parameters, (size_t)r->ranks, "for hashes of %d ranks", r->ranks));
    LS_TRY(LS_NEW(&r->batches, (size_t)r->parts, "for hashes of %d batches", r->parts));
    const ls_named items[] = {
        {CAPSULE_GRADIENTS, NULL, &r->gradients, sizeof(r->gradients)},
        {CAPSULE_PARAMETERS, NULL, r->parameters, (size_t)r->ranks * sizeof(int64_t)},
        {CAPSULE_BATCHES, NULL, r->batches, (size_t)r->parts * sizeof(int64_t)},
    };
    return ls_checkpoint_load(r->file, items, LS_COUNT_OF(items), LS_LOAD_SUBSET);
}

/* Of the job: ranks, and parts of a step. */
static ls_status read_parts(run_replay *r)
{
    int64_t ranks;
    int64_t shards;
    int64_t threads;

    LS_TRY(state_meta_int(r->file, CAPSULE_RANKS, 1, PARTS_MOST, &ranks));
    LS_TRY(state_meta_int(r->file, "shards", 0, PARTS_MOST, &shards));
    LS_TRY(state_meta_int(r->file, CAPSULE_THREADS, 1, 1 << 20, &threads));
    r->threads = (int)threads;
    r->ranks = (int)ranks;
    r->has_shards = shards > 0;
    r->parts = (int)(shards > 0 ? shards : ranks);
    return LS_OK;
}

static ls_status read_facts(run_replay *r)
{
    const char *version;
    char text[32];

    LS_TRY(state_meta_text(r->file, CAPSULE_VERSION, &version));
    text_printable(text, sizeof(text), version);
    if (!text_equal(text, CAPSULE_VERSION_1))
        return ls_fail(LS_EFORMAT, "it is a capsule of another format (%s)", text);
    LS_TRY(state_meta_int(r->file, CAPSULE_STEP, 1, STEPS_MAX, &r->step));
    LS_TRY(read_parts(r));
    return load_hashes(r);
}

static ls_status fail_text(const char *what, const char *saved, const char *here)
{
    char text[STATE_SETTING_BYTES];

    text_printable(text, sizeof(text), saved);
    return ls_fail(LS_EUNSUPPORTED,
                   "the step was computed with %s %s, and this is %s: the bits "
                   "may differ",
                   what, text, here);
}

/* The flags of the program, without what reads or writes files. */
static ls_status set_flags(run_replay *r, const ls_train_flags *given)
{
    ls_train_flags *f = &r->flags;

    *f = *given;
    f->save = f->save_best = f->metrics = f->tensorboard = f->profile = f->capsule = NULL;
    f->init = f->resume = f->balance = NULL;
    f->evaluate = f->check_nan = f->heal = 0;
    f->histograms = f->check_replicas = f->audit = f->capsule_step = 0;
    f->nan_limit = -1;
    f->steps = r->step;
    LS_TRY(state_meta_int(r->file, "batch_size", 1, 1 << 24, &f->batch_size));
    if (!r->has_shards)
        f->shards = r->ranks > 1 ? r->ranks : 0;
    if (r->has_shards != (given->shards > 0) || (r->has_shards && partition_shards(f) != r->parts))
        return ls_fail(LS_EINVAL, "the step has %d shards; give the same --shards and --accumulate",
                       r->has_shards ? r->parts : 0);
    return LS_OK;
}

static ls_status open_state(run_replay *r)
{
    const char *path = ls_checkpoint_meta(r->file, CAPSULE_STATE);

    r->state = r->file;
    return path == NULL ? LS_OK : ls_checkpoint_open(path, &r->state);
}

static ls_status open_capsule(run_replay *r, const ls_train_flags *given)
{
    const char *library;

    LS_TRY(read_facts(r));
    LS_TRY(state_meta_text(r->file, CAPSULE_LIBRARY, &library));
    if (!text_equal(library, ls_version()))
        return fail_text("Lockstep", library, ls_version());
    LS_TRY(open_state(r));
    return set_flags(r, given);
}

ls_status replay_open(ls_run *run)
{
    const char *path = run->flags->replay;
    run_replay *r = &run->replay;

    if (!state_path_is_set(path))
        return LS_OK;
    LS_TRY(ls_context(ls_checkpoint_open(path, &r->file), "--replay"));
    LS_TRY(ls_context(open_capsule(r, run->flags), "--replay %s", path));
    run->flags = &r->flags;
    return LS_OK;
}

void replay_close(ls_run *run)
{
    if (run->replay.state != run->replay.file)
        ls_checkpoint_close(run->replay.state);
    ls_checkpoint_close(run->replay.file);
    ls_free(run->replay.parameters);
    ls_free(run->replay.batches);
}

int replay_threads(const ls_run *run)
{
    return run->replay.threads;
}

ls_status replay_check_device(const ls_run *run)
{
    const char *here = ls_device_fingerprint(run->device);
    const char *saved;

    if (!replay_is_on(run))
        return LS_OK;
    LS_TRY(state_meta_text(run->replay.file, "device", &saved));
    return text_equal(saved, here) ? LS_OK
                                   : ls_context(fail_text("the device", saved, here), "--replay");
}

ls_status replay_check_state(const ls_run *run)
{
    const run_replay *r = &run->replay;
    int64_t saved;
    int64_t here;

    if (r->state == r->file)
        return LS_OK;
    LS_TRY(state_meta_int(r->file, CAPSULE_STATE_HASH, INT64_MIN, INT64_MAX, &saved));
    LS_TRY(capsule_hash_parameters(run, &here));
    return saved == here ? LS_OK
                         : ls_fail(LS_EUNSUPPORTED,
                                   "the state file %.400s has been replaced since the step: "
                                   "its parameters are others",
                                   ls_checkpoint_meta(r->file, CAPSULE_STATE));
}

ls_status replay_check_ranks(const ls_run *run)
{
    if (!replay_is_on(run) || ls_comm_size(run->comm) == 1)
        return LS_OK;
    return ls_fail(LS_EINVAL, "--replay computes all ranks in one process, not in %d",
                   ls_comm_size(run->comm));
}

/* --- what is not finite --- */

/* The row of the batch that has the element, if rows of the tensor are samples; -1: unknown. */
static int64_t find_row(const ls_run *run, const nan_finding *found)
{
    const size_t count = ls_tensor_count(found->tensor);

    if (!found->is_result || ls_tensor_n_dims(found->tensor) < 1 || run->rows < 1 ||
        ls_tensor_dim(found->tensor, 0) != run->rows)
        return -1;
    return (int64_t)(found->element / (count / (size_t)run->rows));
}

static void print_finding(void *arg, const nan_finding *found)
{
    ls_run *run = arg;
    const run_replay *r = &run->replay;
    const split_part *part = &run->train.parts[run->part];
    const int64_t row = find_row(run, found);
    char sample[96] = "";

    if (r->has_found)
        return;
    run->replay.has_found = true;
    if (row >= 0 && part->batch.indices != NULL)
        text_format(sample, sizeof(sample), "; row %" PRId64 " of the batch is sample %zu", row,
                    part->batch.indices[row]);
    progress_line(&run->progress, "step %" PRId64 ", %s %d: %s%s", run->at.step + 1,
                  r->has_shards ? "shard" : "rank", run->partition.first + run->part, found->text,
                  sample);
}

void replay_watch(ls_run *run, ls_tape *tape)
{
    if (replay_is_on(run))
        autograd_watch_nan(tape, print_finding, run);
    else
        ls_tape_check_nan(tape, run->flags->check_nan);
}

/* --- the end --- */

/* LS_EUNSUPPORTED: the data are others. */
static ls_status compare_batches(const ls_run *run)
{
    const run_replay *r = &run->replay;

    for (int i = 0; i < r->parts; i++) {
        int64_t hash;

        LS_TRY(capsule_hash_batch(run, i, &hash));
        if (r->batches[i] != 0 && r->batches[i] != hash)
            return ls_fail(LS_EUNSUPPORTED,
                           "the data have changed: %s %d has another batch in step %" PRId64,
                           r->has_shards ? "shard" : "rank", i, r->step);
    }
    return LS_OK;
}

/* Names the ranks that had other parameters. */
static ls_status compare_parameters(const ls_run *run)
{
    const run_replay *r = &run->replay;
    text_buf others = {0};
    int n_others = 0;
    int n_known = 0;
    int64_t hash;
    ls_status st;

    LS_TRY(capsule_hash_parameters(run, &hash));
    for (int i = 0; i < r->ranks; i++) {
        n_known += r->parameters[i] != 0;
        if (r->parameters[i] == 0 || r->parameters[i] == hash)
            continue;
        if (n_others++ < 16)
            text_append(&others, "%s%d", n_others > 1 ? ", " : "", i);
    }
    st = text_status(&others);
    if (st == LS_OK && n_others > 0)
        st = ls_fail(LS_EMISMATCH,
                     "after step %" PRId64 " the parameters are not those of %d of %d ranks: %s%s",
                     r->step, n_others, n_known, text_str(&others), n_others > 16 ? ", ..." : "");
    text_free(&others);
    return st;
}

static bool has_hashes(const run_replay *r)
{
    return r->gradients != 0 || r->parameters[0] != 0;
}

static ls_status compare_gradients(ls_run *run)
{
    const run_replay *r = &run->replay;
    int64_t hash;

    LS_TRY(capsule_hash_gradients(run, &hash));
    progress_line(&run->progress, "step %" PRId64 ": gradient hash %016" PRIx64 "%s", r->step,
                  (uint64_t)hash, hash == r->gradients ? ", as in the capsule" : "");
    LS_TRY(compare_batches(run));
    if (r->gradients == 0 || hash == r->gradients)
        return LS_OK;
    return ls_fail(LS_EMISMATCH,
                   "step %" PRId64 " has other gradients here than in the job (%016" PRIx64
                   "): a processor has computed wrongly, the data of an earlier step have changed, "
                   "or the program is not deterministic",
                   r->step, (uint64_t)r->gradients);
}

static ls_status compare(ls_run *run)
{
    LS_TRY(compare_gradients(run));
    LS_TRY(compare_parameters(run));
    if (has_hashes(&run->replay) || run->replay.has_found)
        return LS_OK;
    return ls_fail(LS_EMISMATCH,
                   "all results up to step %" PRId64 " are finite here, and one in the job was not",
                   run->replay.step);
}

/* What a step has left: running statistics are no results of operators. */
static ls_status check_state(ls_run *run)
{
    name_list state = {0};
    const char *name = NULL;
    ls_status st = LS_OK;

    if (run->replay.has_bad_state)
        return LS_OK;
    st = state_list(run->model, run->optimizer, NULL, NULL, 0, &state);
    if (st == LS_OK)
        st = finite_check(state.items, state.n, &name);
    run->replay.has_bad_state = name != NULL;
    if (name != NULL)
        progress_line(&run->progress,
                      "after step %" PRId64 " %s has an element that is NaN or infinite",
                      run->at.step, name);
    name_list_free(&state);
    return st;
}

ls_status replay_step(ls_run *run)
{
    if (!replay_is_on(run))
        return LS_OK;
    LS_TRY(check_state(run));
    if (run->at.step < run->replay.step)
        return LS_OK;
    run->is_finished = true;
    if (!run->replay.has_found && !run->replay.has_bad_state)
        progress_line(&run->progress, "all results up to step %" PRId64 " are finite",
                      run->replay.step);
    run->replay.is_compared = true;
    return ls_context(compare(run), "--replay");
}

ls_status replay_end(const ls_run *run)
{
    if (!replay_is_on(run) || run->replay.is_compared)
        return LS_OK;
    return ls_fail(LS_EMISMATCH,
                   "--replay: the run has ended after step %" PRId64
                   ", before the comparison of step %" PRId64,
                   run->at.step, run->replay.step);
}
