/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - writes the files of a run on rank 0, after each epoch and when it ends. Weights,
 * optimizer, position and history are in one state file, so that a crash at any moment leaves a
 * consistent state.
 */
#include "train/run/run.h"

#include "base/clock.h"
#include "base/file.h"
#include "comm/comm.h"
#include "ddp/local_sgd.h"
#include "ddp/power_sgd.h"
#include "train/finite.h"
#include "train/state/previous_state.h"
#include "train/state/state_file.h"

#include <lockstep/checkpoint.h>
#include <lockstep/log.h>

#include <inttypes.h>
#include <string.h>

static void add_number(save_meta *m, const char *key, int64_t value)
{
    text_format(m->text[m->n], SAVE_META_BYTES, "%" PRId64, value);
    m->items[m->n] = (ls_meta){key, m->text[m->n]};
    m->n++;
}

static void add_real(save_meta *m, const char *key, double value)
{
    text_format(m->text[m->n], SAVE_META_BYTES, "%.17g", value);
    m->items[m->n] = (ls_meta){key, m->text[m->n]};
    m->n++;
}

void save_list_meta(ls_run *run, save_meta *m)
{
    const int n_settings =
        state_settings(run->flags, run->train.set, run->bucket_rows > 0, m->settings);
    state_sum sums[STATE_SUMS];

    m->n = 0;
    state_sums(&run->report.epoch, sums);
    add_number(m, "world_size", run_size(run));
    add_number(m, "batch_size", run->flags->batch_size);
    add_number(m, "shards", run->partition.has_shards ? run->partition.n_all : 0);
    add_number(m, "accumulate", run_accumulate(run));
    if (run->local != NULL) {
        add_number(m, "islands", local_sgd_islands(run->local));
        add_number(m, "sync_delay", local_sgd_delay(run->local));
    }
    if (power_rank(run->ddp) > 0)
        add_number(m, "powersgd", power_rank(run->ddp));
    add_number(m, "epoch", run->at.epoch);
    add_number(m, "skip", run->at.skip);
    add_number(m, "batch", run->at.batch);
    add_number(m, "bucket_rows", run->bucket_rows);
    add_number(m, "step", run->at.step);
    add_number(m, "best_epoch", run->at.best_epoch);
    add_real(m, "best_accuracy", run->state.best_accuracy);
    if (run->values.has_best)
        add_real(m, "best_value", run->values.best_mean);
    for (int i = 0; i < STATE_SUMS; i++)
        add_real(m, sums[i].key, *sums[i].value);
    for (int i = 0; i < n_settings; i++)
        m->items[m->n++] = (ls_meta){m->settings[i].key, m->settings[i].value};
    m->items[m->n++] =
        (ls_meta){"optimizer", run->flags->optimizer != NULL ? run->flags->optimizer : "sgd"};
    m->items[m->n++] = (ls_meta){"precision", hyperparameters_precision(run->flags)};
    m->items[m->n++] = (ls_meta){"device", ls_device_fingerprint(run->device)};
    m->items[m->n++] = (ls_meta){"job", previous_state_job()};
    if (state_path_is_set(run->flags->save_best))
        m->items[m->n++] = (ls_meta){PREVIOUS_STATE_BEST, run->flags->save_best};
}

ls_status save_agree(ls_run *run)
{
    int64_t saves = state_path_is_set(run->flags->save);

    if (run->local == NULL && power_rank(run->ddp) == 0)
        return LS_OK;
    comm_label(run->comm, "--save of rank 0");
    LS_TRY(ls_broadcast(run->comm, &saves, &saves, 1, LS_I64, 0, NULL));
    run->collects_states = saves != 0;
    return LS_OK;
}

static ls_status save_weights(ls_run *run, const char *path)
{
    const ls_meta format = {"format", "pt"}; /* what torch's loaders look for */
    const char *name = run->flags->save_dtype;
    ls_dtype type = LS_F32;
    int n;
    const ls_named *weights = ls_model_state(run->model, &n);

    if (name != NULL && !text_equal(name, "fp32"))
        type = text_equal(name, "fp16") ? LS_F16 : LS_BF16;
    return ls_checkpoint_save_as(path, weights, n, &format, 1, type);
}

static ls_status save_state(ls_run *run)
{
    const history *h = &run->history;
    const ls_named records[] = {
        {"points", NULL, h->points, (size_t)h->n_points * sizeof(*h->points)},
        {"tests", NULL, h->tests, (size_t)h->n_tests * sizeof(*h->tests)},
    };
    char path[STATE_PATH_BYTES];
    name_list state = {0};
    save_meta meta = {0};
    ls_status st;

    LS_TRY(state_path(run->flags->save, "resume", path));
    st = state_list(run->model, run->optimizer, run->scaler, run->own, run->n_own, &state);
    if (st == LS_OK)
        st = run_local_list(run, &state);
    if (st == LS_OK)
        st = run_power_list(run, &state);
    if (st == LS_OK)
        st = name_list_add(&state, STATE_HISTORY, records, 2);
    save_list_meta(run, &meta);
    if (st == LS_OK)
        st = ls_checkpoint_save(path, state.items, state.n, meta.items, meta.n);
    name_list_free(&state);
    return st;
}

static ls_status save_best(ls_run *run)
{
    char beside[STATE_PATH_BYTES];

    if (state_path_is_set(run->flags->save_best))
        return save_weights(run, run->flags->save_best);
    LS_TRY(state_path(run->flags->save, "best", beside));
    return save_weights(run, beside);
}

/* The best weights are written before the state that records them: a run that crashes in between
 * evaluates and writes them again. */
static ls_status save_files(ls_run *run, bool is_best)
{
    if (is_best &&
        (state_path_is_set(run->flags->save) || state_path_is_set(run->flags->save_best)))
        LS_TRY(save_best(run));
    if (!state_path_is_set(run->flags->save))
        return LS_OK;
    LS_TRY(save_state(run));
    capsule_saved(run);
    return save_weights(run, run->flags->save);
}

static ls_status probe(const char *flag, const char *path)
{
    return state_path_is_set(path) ? ls_context(file_atomic_probe(path), "%s", flag) : LS_OK;
}

/* Names that PyTorch's files have. */
static void warn_about_suffix(const char *path)
{
    static const char *const suffixes[] = {".pt", ".pth", ".tar", ".ckpt", ".bin"};
    const char *dot = strrchr(path, '.');

    for (size_t i = 0; dot != NULL && i < LS_COUNT_OF(suffixes); i++)
        if (text_equal(dot, suffixes[i]))
            ls_log(LS_LOG_WARN, "train",
                   "--save %s writes a safetensors file: torch.load() does not read it, "
                   "safetensors.torch.load_file() does",
                   path);
}

ls_status save_probe(const ls_train_flags *f)
{
    char beside[STATE_PATH_BYTES];

    LS_TRY(tensorboard_probe(f->tensorboard));
    if (f->evaluate)
        return LS_OK;
    LS_TRY(probe("--save-best", f->save_best));
    LS_TRY(probe("--capsule", f->capsule));
    if (!state_path_is_set(f->save))
        return LS_OK;
    warn_about_suffix(f->save);
    LS_TRY(probe("--save", f->save));
    LS_TRY(state_path(f->save, "resume", beside));
    return probe("--save", beside);
}

static bool continues_after_failure(const ls_run *run)
{
    return run->flags->on_save_error == NULL || text_equal(run->flags->on_save_error, "continue");
}

ls_status save_failed(ls_run *run, ls_status st, const char *what)
{
    if (!continues_after_failure(run))
        return ls_context(st, "saving %s", what);
    ls_log(LS_LOG_WARN, "train", "cannot save %s at step %" PRId64 ": %s", what, run->at.step,
           ls_last_error());
    return LS_OK;
}

static bool is_last_save(const ls_run *run)
{
    return run->is_finished || run_steps_left(run) == 0;
}

/* ls_run_close() reports the failure again, unless a later save succeeds. */
static ls_status weights_failed(ls_run *run, ls_status st)
{
    saver *s = &run->saver;
    char last[64] = "no step is saved";

    if (s->saved_step >= 0)
        text_format(last, sizeof(last), "the last saved step is %" PRId64, s->saved_step);
    text_format(s->failure, sizeof(s->failure),
                "cannot save the weights of step %" PRId64 " (%s): %s", run->at.step, last,
                ls_last_error());
    s->has_failed = true;
    if (continues_after_failure(run) && is_last_save(run))
        return LS_OK;
    return save_failed(run, st, "the weights");
}

ls_status save_events(ls_run *run)
{
    const ls_status st = tensorboard_flush(&run->tensorboard);

    return st == LS_OK ? LS_OK : save_failed(run, st, "the events of --tensorboard");
}

/* The loss may be finite: then no report has left a capsule. */
static ls_status explain_not_finite(ls_run *run, ls_status st)
{
    char why[LS_ERROR_BYTES];

    if (run->report.bad.n > 0)
        return st;
    text_format(why, sizeof(why), "%s", ls_last_error());
    capsule_leave_alone(run, why);
    return ls_fail(st, "%s%s", why, run->capsule.note);
}

ls_status save_all(ls_run *run, bool is_best)
{
    char activity[STATE_PATH_BYTES];
    ls_status st;

    if (run_rank(run) != 0 ||
        (!state_path_is_set(run->flags->save) && !state_path_is_set(run->flags->save_best)))
        return LS_OK;
    if (run->recovery.ddp != NULL)
        LS_TRY(ls_ddp_check_seat(run->recovery.ddp));
    text_format(activity, sizeof(activity), "saving step %" PRId64 " to %s", run->at.step,
                state_path_is_set(run->flags->save) ? run->flags->save : "the --save-best file");
    run_set_activity(run, activity);
    st = finite_to_save(run);
    if (st == LS_OK)
        st = save_files(run, is_best);
    else
        st = explain_not_finite(run, st);
    run_set_activity(run, "training");
    if (st != LS_OK) {
        LS_TRY(weights_failed(run, st));
    } else {
        run->saver.has_failed = false;
        run->saver.saved_step = run->at.step;
    }
    return LS_OK;
}
