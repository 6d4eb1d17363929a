/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resume.c - loads what a run starts from: the weights of --init, or the state file of --resume or
 * of this job before a restart. Rank 0 reads the file and broadcasts it. run.c calls it.
 */
#include "train/run/run.h"

#include "base/alloc.h"
#include "comm/comm.h"
#include "ddp/local_sgd.h"
#include "ddp/power_sgd.h"
#include "ddp/shard_step.h"
#include "train/finite.h"
#include "train/state/load_weights.h"
#include "train/state/previous_state.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* --- the whole state, on rank 0 --- */

/* Files of older versions lack the key. */
static ls_status meta_number_or(const ls_checkpoint *file, const char *key, int64_t default_value,
                                int64_t *out)
{
    *out = default_value;
    return ls_checkpoint_meta(file, key) == NULL ? LS_OK
                                                 : state_meta_int(file, key, 0, STEPS_MAX, out);
}

/* Appends the settings that differ between the file and this run. Files of older versions lack
 * some. */
static void append_differences(const ls_run *run, const ls_checkpoint *file, text_buf *out)
{
    state_setting here[STATE_SETTINGS_MAX];
    const int n = state_settings(run->flags, run->train.set, run->train.lengths != NULL, here);

    for (int i = 0; i < n; i++) {
        const char *text = ls_checkpoint_meta(file, here[i].key);
        char saved[STATE_SETTING_BYTES];

        if (text == NULL || text_equal(text, here[i].value))
            continue;
        text_printable(saved, sizeof(saved), text);
        text_append(out, "%s%s %s, not %s", out->length > 0 ? "; " : "", here[i].flag, saved,
                    here[i].value);
    }
}

/* Within an epoch, other settings would change the order of its samples. */
static ls_status check_settings(const ls_run *run, const ls_checkpoint *file)
{
    text_buf differences = {0};
    ls_status st;

    append_differences(run, file, &differences);
    st = text_status(&differences);
    if (st == LS_OK && differences.length > 0)
        st = ls_fail(LS_EINVAL,
                     "the state was saved within an epoch with %s: resume with the same "
                     "settings",
                     text_str(&differences));
    text_free(&differences);
    return st;
}

static ls_status check_optimizer(const ls_run *run, const ls_checkpoint *file)
{
    const char *here = run->flags->optimizer != NULL ? run->flags->optimizer : "sgd";
    const char *text = ls_checkpoint_meta(file, "optimizer");
    char saved[STATE_SETTING_BYTES];

    if (text == NULL || text_equal(text, here))
        return LS_OK;
    text_printable(saved, sizeof(saved), text);
    return ls_fail(LS_EINVAL, "the state was saved with --optimizer %s, not %s", saved, here);
}

/* *has_islands: the file has the islands of this run. */
static ls_status check_islands(const ls_run *run, const ls_checkpoint *file, bool *has_islands)
{
    const int64_t here = run->local != NULL ? local_sgd_islands(run->local) : 0;
    int64_t saved;
    int64_t delay;

    LS_TRY(meta_number_or(file, "islands", 0, &saved));
    LS_TRY(meta_number_or(file, "sync_delay", 0, &delay));
    *has_islands = saved > 0;
    if (saved > 0 && saved == here && (delay > 0) != (local_sgd_delay(run->local) > 0))
        return ls_fail(LS_EINVAL,
                       "the state was saved with --sync-delay %" PRId64 ", this run has %d: resume "
                       "%s it",
                       delay, local_sgd_delay(run->local), delay > 0 ? "with" : "without");
    if (saved == 0 || saved == here)
        return LS_OK;
    if (here == 0)
        return ls_fail(LS_EINVAL,
                       "the state has the outer optimizer and %" PRId64 " islands of --sync-every: "
                       "resume with it, or start from the weights with --init",
                       saved);
    return ls_fail(LS_EINVAL,
                   "the state has %" PRId64 " islands, this run %" PRId64 ": resume with --shards "
                   "%" PRId64 ", which any number of ranks up to it can have, or --islands %" PRId64
                   ", which any number from it on can have",
                   saved, here, saved, saved);
}

/* *ranks: whose errors of PowerSGD the file has; 0: none, and this run begins without errors. */
static ls_status check_power(const ls_run *run, const ls_checkpoint *file, int64_t *ranks)
{
    const int here = power_rank(run->ddp);
    int64_t saved;

    *ranks = 0;
    LS_TRY(meta_number_or(file, "powersgd", 0, &saved));
    if (saved == 0)
        return LS_OK;
    if (saved != here)
        return ls_fail(LS_EINVAL,
                       "the state has what ranks have not sent with --compress powersgd:%" PRId64
                       ": resume with it, or start from the weights with --init",
                       saved);
    LS_TRY(state_meta_int(file, "world_size", 0, INT32_MAX, ranks));
    return run_power_check_file(run, file, *ranks);
}

/* What the sums of a step are over: ranks, or shards. */
typedef struct adders {
    int64_t n; /* ranks, or with --shards the shards */
    bool has_shards;
} adders;

static adders adders_here(const ls_run *run)
{
    return (adders){run->partition.n_all, run->partition.has_shards};
}

static ls_status adders_of(const ls_checkpoint *file, adders *out)
{
    int64_t shards;

    LS_TRY(state_meta_int(file, "world_size", 0, INT32_MAX, &out->n));
    LS_TRY(meta_number_or(file, "shards", 0, &shards));
    out->has_shards = shards > 0;
    out->n = shards > 0 ? shards : out->n;
    return LS_OK;
}

static void warn_about_other_bits(const ls_run *run, const char *device, adders saved)
{
    const char *here = ls_device_fingerprint(run->device);
    const adders now = adders_here(run);
    char on[STATE_SETTING_BYTES];

    if (saved.n == now.n && saved.has_shards == now.has_shards && device != NULL &&
        text_equal(device, here))
        return;
    text_printable(on, sizeof(on), device != NULL ? device : "an unknown device");
    ls_log(LS_LOG_WARN, "train",
           "saved by %" PRId64 " %s%s with %s, resumed by %" PRId64
           " %s%s with %s: results may differ in the last bits",
           saved.n, saved.has_shards ? "shard" : "rank", text_plural(saved.n), on, now.n,
           now.has_shards ? "shard" : "rank", text_plural(now.n), here);
}

/* The state is in float32 and fits any precision. Files of older versions lack it. */
static void warn_about_other_precision(const ls_run *run, const ls_checkpoint *file)
{
    const char *here = hyperparameters_precision(run->flags);
    const char *text = ls_checkpoint_meta(file, "precision");
    char saved[STATE_SETTING_BYTES];

    text_printable(saved, sizeof(saved), text != NULL ? text : "fp32");
    if (!text_equal(saved, here))
        ls_log(LS_LOG_WARN, "train", "saved with --precision %s, resumed with %s", saved, here);
}

/* With another number of ranks (or shards) or batch size, the rest of the epoch begins after the
 * samples that have been trained on. */
static ls_status skip_trained(const ls_run *run, const ls_checkpoint *file, int64_t ranks,
                              run_position *at)
{
    const int64_t samples = (int64_t)ls_dataset_count(run->train.set);
    int64_t rows;
    int64_t accumulate;

    LS_TRY(state_meta_int(file, "batch_size", 0, 1 << 24, &rows));
    LS_TRY(meta_number_or(file, "accumulate", 1, &accumulate));
    if (at->skip > samples || ranks < 1 || ranks > INT32_MAX || rows < 1)
        return ls_fail(LS_EFORMAT,
                       "its position (%" PRId64 " samples and %" PRId64 " batches of %" PRId64
                       " rows on %" PRId64 " ranks) exceeds the %" PRId64 " samples of the set",
                       at->skip, at->batch, rows, ranks, samples);
    if (ranks == run->partition.n_all && rows == run->flags->batch_size &&
        accumulate == run_accumulate(run))
        return LS_OK;
    run_skip_trained(run, ranks, rows, at);
    return LS_OK;
}

static ls_status check_settings_and_place(const ls_run *run, const ls_checkpoint *file,
                                          run_position *at)
{
    adders saved;

    LS_TRY(adders_of(file, &saved));
    LS_TRY(check_optimizer(run, file));
    if (at->batch > 0 || at->skip > 0 || replay_is_on(run))
        LS_TRY(check_settings(run, file));
    if ((at->batch > 0 || at->skip > 0) && run->train.set != NULL)
        LS_TRY(skip_trained(run, file, saved.n, at));
    if (replay_is_on(run)) // it has checked that the bits are the same
        return LS_OK;
    warn_about_other_bits(run, ls_checkpoint_meta(file, "device"), saved);
    warn_about_other_precision(run, file);
    return LS_OK;
}

static ls_status read_position(const ls_checkpoint *file, run_position *at, double *best)
{
    const char *text = ls_checkpoint_meta(file, "best_accuracy");

    LS_TRY(meta_number_or(file, "skip", 0, &at->skip));
    LS_TRY(meta_number_or(file, "bucket_rows", 0, &at->bucket_rows));
    LS_TRY(state_meta_int(file, "epoch", 0, INT32_MAX, &at->epoch));
    LS_TRY(state_meta_int(file, "batch", 0, STEPS_MAX, &at->batch));
    LS_TRY(state_meta_int(file, "step", 0, STEPS_MAX, &at->step));
    LS_TRY(state_meta_int(file, "best_epoch", 0, STEPS_MAX, &at->best_epoch));
    return text_parse_double(text != NULL ? text : "", "best_accuracy", -1, 1, best);
}

/* Of a run with ls_run_evaluate_with(). */
static ls_status read_best_value(const ls_checkpoint *file, run_values *v)
{
    const char *text = ls_checkpoint_meta(file, "best_value");

    if (text == NULL)
        return LS_OK;
    v->has_best = true;
    return text_parse_double(text, "best_value", -HUGE_VAL, HUGE_VAL, &v->best_mean);
}

/* The sums of the current epoch; an invalid number becomes NaN. */
static void read_epoch_sums(const ls_checkpoint *file, rank_sums *sums)
{
    state_sum list[STATE_SUMS];

    state_sums(sums, list);
    for (int i = 0; i < STATE_SUMS; i++) {
        const char *text = ls_checkpoint_meta(file, list[i].key);

        *list[i].value = 0;
        if (text != NULL &&
            text_parse_double(text, list[i].key, -HUGE_VAL, HUGE_VAL, list[i].value) != LS_OK)
            *list[i].value = (double)NAN;
    }
}

/* --- history: for display only, so errors in it are not fatal --- */

/* Counts the records of `size` bytes under this name, at most `max`. */
static ls_status count_records(const ls_checkpoint *file, const char *name, size_t size, int max,
                               int *n)
{
    ls_checkpoint_entry entry;

    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        LS_TRY(ls_checkpoint_entry_at(file, i, &entry));
        if (!text_equal(entry.name, name))
            continue;
        if (entry.n_dims != 1 || entry.dims[0] % (int64_t)size != 0 ||
            entry.dims[0] / (int64_t)size > max)
            return ls_fail(LS_EFORMAT, "%s is not a list of at most %d records of %zu bytes", name,
                           max, size);
        *n = (int)(entry.dims[0] / (int64_t)size);
        return LS_OK;
    }
    return ls_fail(LS_EFORMAT, "%s is missing", name);
}

static ls_status read_history(history *h, ls_checkpoint *file, int64_t step)
{
    LS_TRY(count_records(file, STATE_HISTORY "points", sizeof(*h->points), HISTORY_POINTS,
                         &h->n_points));
    LS_TRY(
        count_records(file, STATE_HISTORY "tests", sizeof(*h->tests), HISTORY_TESTS, &h->n_tests));
    const ls_named records[] = {
        {STATE_HISTORY "points", NULL, h->points, (size_t)h->n_points * sizeof(*h->points)},
        {STATE_HISTORY "tests", NULL, h->tests, (size_t)h->n_tests * sizeof(*h->tests)},
    };
    LS_TRY(ls_checkpoint_load(file, records, LS_COUNT_OF(records), LS_LOAD_SUBSET));
    return history_check(h, (double)step);
}

static void load_history(ls_run *run, ls_checkpoint *file)
{
    history *h = &run->history;

    if (read_history(h, file, run->at.step) == LS_OK)
        return;
    h->n_points = 0;
    h->n_tests = 0;
    ls_log(LS_LOG_WARN, "train", "ignoring the invalid history of the state file: %s",
           ls_last_error());
}

/* For the summary of a run without remaining steps. */
static void restore_results(ls_run *run)
{
    const history *h = &run->history;

    if (h->n_points > 0)
        run->state.loss = h->points[h->n_points - 1].loss;
    if (h->n_tests > 0 && isfinite(h->tests[h->n_tests - 1].top1))
        run->state.accuracy = h->tests[h->n_tests - 1].top1;
}

static bool saved_with_fp16(const ls_checkpoint *file)
{
    const char *text = ls_checkpoint_meta(file, "precision");

    return text != NULL && text_equal(text, "fp16");
}

/* A run that continues from NaN computes nothing else. */
static ls_status refuse_not_finite(const name_list *state)
{
    const char *name;

    LS_TRY(finite_check(state->items, state->n, &name));
    if (name == NULL)
        return LS_OK;
    return ls_fail(LS_EFORMAT,
                   "%s has an element that is NaN or infinite: the run that saved it had "
                   "diverged; start from an earlier file, as with --init NAME.best.safetensors",
                   name);
}

/* LS_LOAD_SUBSET: of a capsule. */
static ls_status load_state_from(ls_run *run, ls_checkpoint *file, ls_load_mode mode)
{
    run_position at;
    double best;
    name_list state = {0};
    bool has_islands;
    int64_t power_ranks;
    ls_status st;

    LS_TRY(check_islands(run, file, &has_islands));
    LS_TRY(check_power(run, file, &power_ranks));
    LS_TRY(read_position(file, &at, &best));
    LS_TRY(read_best_value(file, &run->values));
    LS_TRY(check_settings_and_place(run, file, &at));
    st = state_list(run->model, run->optimizer, saved_with_fp16(file) ? run->scaler : NULL,
                    run->own, run->n_own, &state);
    if (st == LS_OK && has_islands)
        st = local_sgd_make_copies(run->local);
    if (st == LS_OK && has_islands)
        st = run_local_list(run, &state);
    if (st == LS_OK)
        st = run_power_make(run, power_ranks);
    if (st == LS_OK && power_ranks > 0)
        st = run_power_list(run, &state);
    if (st == LS_OK)
        st = load_list(file, &state, mode, "");
    if (st == LS_OK)
        st = refuse_not_finite(&state);
    name_list_free(&state);
    LS_TRY(st);
    run->at = at;
    run->is_resumed = true;
    run->has_saved_islands = has_islands;
    run->state.best_accuracy = best;
    read_epoch_sums(file, &run->report.epoch);
    if (!replay_is_on(run))
        load_history(run, file);
    restore_results(run);
    return LS_OK;
}

static ls_status load_replayed(ls_run *run)
{
    LS_TRY(load_state_from(run, run->replay.state, LS_LOAD_SUBSET));
    return replay_check_state(run);
}

static bool is_auto(const ls_train_flags *f)
{
    return f->resume != NULL && text_equal(f->resume, "auto");
}

/* There is no state file beside `given`: it is a state file under another name, or an error. */
static ls_status open_given(const ls_train_flags *f, const char *given, const char *beside,
                            ls_checkpoint **out)
{
    const ls_status st = state_open(f, given, out);

    if (st == LS_ENOTFOUND)
        return ls_fail(
            st,
            "--resume %.400s: no such file; give the --save file of the run to continue, "
            "or omit --resume to start from scratch",
            given);
    LS_TRY(ls_context(st, "--resume"));
    if (ls_checkpoint_meta(*out, "world_size") != NULL)
        return LS_OK;
    ls_checkpoint_close(*out);
    return ls_fail(LS_ENOTFOUND,
                   "--resume %.300s: the file holds weights only, and the state file %.300s is "
                   "missing; use --init to start from these weights",
                   given, beside);
}

/* The state file of --resume: beside the weights `given`, or that file itself. */
static ls_status open_state(const ls_train_flags *f, const char *given, char path[STATE_PATH_BYTES],
                            ls_checkpoint **out)
{
    char beside[STATE_PATH_BYTES];
    ls_status st;

    LS_TRY(state_path(given, "resume", beside));
    st = state_open(f, beside, out);
    text_format(path, STATE_PATH_BYTES, "%s", st == LS_ENOTFOUND ? given : beside);
    return st == LS_ENOTFOUND ? open_given(f, given, beside, out) : st;
}

/* Takes the file. */
static ls_status load_state_take(ls_run *run, ls_checkpoint *file, const char *path)
{
    ls_status st = ls_context(load_state_from(run, file, LS_LOAD_STRICT), "resuming from %s", path);

    if (st == LS_OK)
        st = previous_state_is_at(path, run->flags, &run->continues_save);
    if (st == LS_OK && run->continues_save)
        st =
            previous_state_preserve_best(run->flags, ls_checkpoint_meta(file, PREVIOUS_STATE_BEST));
    ls_checkpoint_close(file);
    LS_TRY(st);
    progress_line(&run->progress, "resuming from %s: epoch %" PRId64 ", step %" PRId64, path,
                  run->at.epoch + 1, run->at.step);
    return LS_OK;
}

static ls_status load_given_state(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const char *given = f->resume[0] != 0 && !is_auto(f) ? f->resume : f->save;
    char path[STATE_PATH_BYTES];
    ls_checkpoint *file;

    if (!state_path_is_set(given))
        return ls_fail(LS_EINVAL, "--resume needs a file, its own or that of --save");
    if (f->evaluate)
        return load_weights(run->model, f, &run->progress, given);
    LS_TRY(open_state(f, given, path, &file));
    return load_state_take(run, file, path);
}

/* The state at the --save path, if there is one: of any run with --resume auto, of this job after a
 * restart. */
static ls_status load_saved_state(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const bool is_any = is_auto(f);
    const char *job;
    char path[STATE_PATH_BYTES];
    ls_checkpoint *file;
    ls_status st;

    if (f->evaluate || !state_path_is_set(f->save) || (!is_any && !previous_state_is_restart()))
        return LS_OK;
    LS_TRY(state_path(f->save, "resume", path));
    st = state_open(f, path, &file);
    if (st == LS_ENOTFOUND)
        return LS_OK;
    LS_TRY(st);
    job = ls_checkpoint_meta(file, "job");
    if (is_any || (job != NULL && text_equal(job, previous_state_job())))
        return load_state_take(run, file, path);
    ls_checkpoint_close(file);
    return LS_OK;
}

/* --- on all ranks --- */

static ls_status broadcast_tensors(ls_run *run)
{
    name_list state = {0};
    ls_status st =
        state_list(run->model, run->optimizer, run->scaler, run->own, run->n_own, &state);

    for (int i = 0; st == LS_OK && i < state.n; i++)
        st = ddp_send_item(run->comm, &state.items[i], 0);
    name_list_free(&state);
    return st;
}

/* *has_state: rank 0 has loaded tensors, which all ranks receive. */
static ls_status broadcast_state(ls_run *run, bool *has_state)
{
    double results[] = {
        run->state.best_accuracy, run->state.accuracy,   run->state.loss,       *has_state,
        run->values.has_best,     run->values.best_mean, run->has_saved_islands};

    comm_label(run->comm, "resume");
    LS_TRY(ls_broadcast(run->comm, &run->at, &run->at, sizeof(run->at) / sizeof(int64_t), LS_I64, 0,
                        NULL));
    comm_label(run->comm, "resume");
    LS_TRY(ls_broadcast(run->comm, results, results, LS_COUNT_OF(results), LS_F64, 0, NULL));
    run->state.best_accuracy = results[0];
    run->state.accuracy = results[1];
    run->state.loss = results[2];
    *has_state = results[3] != 0;
    run->values.has_best = results[4] != 0;
    run->values.best_mean = results[5];
    run->has_saved_islands = results[6] != 0;
    return *has_state ? broadcast_tensors(run) : LS_OK;
}

/* Aborts the group, because the other ranks are waiting for rank 0's broadcast. */
static ls_status fail_all_ranks(ls_run *run, ls_status st)
{
    char why[LS_ERROR_BYTES];

    if (run->comm == NULL)
        return st;
    text_format(why, sizeof(why), "%s", ls_last_error());
    ls_comm_abort(run->comm, why);
    return ls_fail(st, "%s", why);
}

/* --resume with a file, or auto where a state is required. */
static bool must_resume(const ls_train_flags *f)
{
    return f->resume != NULL && (!is_auto(f) || f->evaluate || !state_path_is_set(f->save));
}

/* *has_state: tensors have been loaded. */
static ls_status load(ls_run *run, bool *has_state)
{
    const ls_train_flags *f = run->flags;

    *has_state = replay_is_on(run);
    if (*has_state)
        return ls_context(load_replayed(run), "--replay");
    if (f->resume != NULL && f->init != NULL && !is_auto(f))
        return ls_fail(LS_EINVAL, "--init and --resume exclude each other: --init starts a new "
                                  "run, --resume continues one");
    LS_TRY(load_saved_state(run));
    if (!run->is_resumed && must_resume(f))
        LS_TRY(load_given_state(run));
    else if (!run->is_resumed && f->init != NULL)
        LS_TRY(load_weights(run->model, f, &run->progress, f->init));
    *has_state = run->is_resumed || must_resume(f) || f->init != NULL;
    if (is_auto(f) && !*has_state)
        progress_line(&run->progress, "no saved state at %s: starting from scratch", f->save);
    return run->continues_save ? LS_OK : previous_state_preserve(f);
}

static ls_status load_state(ls_run *run)
{
    bool has_state = false;
    ls_status st = LS_OK;

    if (run->comm != NULL && comm_is_new(run->comm)) // the other ranks have the state
        return LS_OK;
    if (run_rank(run) == 0) // the others may lack its flags
        st = load(run, &has_state);
    if (st != LS_OK)
        return fail_all_ranks(run, st);
    if (run->comm != NULL)
        LS_TRY(broadcast_state(run, &has_state));
    if (!has_state)
        return LS_OK;
    LS_TRY(ls_optimizer_loaded(run->optimizer));
    return run->scaler == NULL ? LS_OK : ls_grad_scaler_loaded(run->scaler);
}

ls_status resume_load(ls_run *run)
{
    LS_TRY(load_state(run));
    LS_TRY(run_power_begin(run));
    return run_local_begin(run, run->has_saved_islands);
}
