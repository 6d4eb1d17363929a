/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resume.c - what a run starts from: --init takes weights, --resume the whole state of save.c.
 * After a restart the state that this job has saved comes first. Rank 0 reads, all ranks get it.
 */
#include "train/run.h"

#include "base/alloc.h"
#include "comm/comm.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define COUNTER                                                                                    \
    "num_batches_tracked" /* files from before PyTorch had it lack it; nothing is computed from it */
#define WRAPPER "module." /* what DistributedDataParallel puts before the names of what it wraps */

#define HISTORY "history." /* names of the run's course, which a run goes on without */

/* --- comparing --- */

enum { SHOWN_BYTES = 800 }; /* of differences in an error text: it names the file, too */

typedef struct difference_list {
    text_buf joined; /* for an error text */
    text_buf lines;  /* for standard error */
    int n;
} difference_list;

static void add_difference(void *arg, const char *text)
{
    difference_list *d = arg;

    if (text_starts(text, HISTORY))
        return;
    text_append(&d->joined, "%s%s", d->n > 0 ? "; " : "", text);
    text_append(&d->lines, "  %s\n", text);
    d->n++;
}

/* All differences in the error text, or, where that has not the room, on standard error. */
static ls_status fail_differences(const difference_list *d, const char *hint)
{
    if (d->joined.length <= SHOWN_BYTES)
        return ls_fail(LS_EFORMAT, "it does not fit: %s%s", text_str(&d->joined), hint);
    progress_write(STDERR_FILENO, text_str(&d->lines));
    return ls_fail(LS_EFORMAT, "it does not fit: %d difference%s, listed above%s", d->n,
                   text_plural(d->n), hint);
}

/* All of the list, or an error that ends with `hint`. */
static ls_status load_fitting(ls_checkpoint *file, const name_list *list, ls_load_mode mode,
                              const char *hint)
{
    difference_list found = {.n = 0};
    int n;
    ls_status st =
        ls_checkpoint_compare(file, list->items, list->n, mode, add_difference, &found, &n);

    if (st == LS_OK)
        st = text_status(&found.joined);
    if (st == LS_OK && found.n > 0)
        st = fail_differences(&found, hint);
    text_free(&found.joined);
    text_free(&found.lines);
    LS_TRY(st);
    return ls_checkpoint_load(file, list->items, list->n, LS_LOAD_SUBSET);
}

/* --- loading what fits --- */

enum { SKIPS_BYTES = 400 }; /* of the names in a line: progress_line() cuts at 512 */

/* What --skip-mismatched has left out, a line for each reason. */
typedef struct skip_list {
    text_buf lines[3];
    int n[3];
    int n_shown[3];
} skip_list;

static void add_skip(void *arg, ls_checkpoint_skip why, const char *name, const char *text)
{
    skip_list *s = arg;
    text_buf *line = &s->lines[why];
    const char *shown = why == LS_SKIP_DIFFERENT ? text : name;

    const bool is_full = s->n_shown[why] < s->n[why] || line->length + strlen(shown) > SKIPS_BYTES;

    s->n[why]++;
    if (is_full)
        return;
    text_append(line, "%s%s", line->length > 0 ? ", " : "", shown);
    s->n_shown[why]++;
}

static ls_status print_skips(ls_run *run, const skip_list *s, int n_loaded, int n)
{
    static const char *const titles[] = {[LS_SKIP_MISSING] = "missing in the file",
                                         [LS_SKIP_UNEXPECTED] = "unexpected in the file",
                                         [LS_SKIP_DIFFERENT] = "of another shape or type"};

    if (n_loaded == 0)
        return ls_fail(LS_EFORMAT, "none of its tensors fits this model");
    progress_line(&run->progress, "--skip-mismatched: %d of %d tensors loaded", n_loaded, n);
    for (int i = 0; i < 3; i++) {
        char more[32] = "";

        LS_TRY(text_status(&s->lines[i]));
        if (s->n[i] > s->n_shown[i])
            text_format(more, sizeof(more), " and %d more", s->n[i] - s->n_shown[i]);
        if (s->n[i] > 0)
            progress_line(&run->progress, "  %d %s: %s%s", s->n[i], titles[i],
                          text_str(&s->lines[i]), more);
    }
    return LS_OK;
}

static ls_status load_what_fits(ls_run *run, ls_checkpoint *file, const name_list *list,
                                ls_load_mode mode)
{
    skip_list skipped = {.n = {0}};
    int n_loaded = 0;
    ls_status st =
        ls_checkpoint_load_fitting(file, list->items, list->n, mode, add_skip, &skipped, &n_loaded);

    if (st == LS_OK)
        st = print_skips(run, &skipped, n_loaded, list->n);
    for (int i = 0; i < 3; i++)
        text_free(&skipped.lines[i]);
    return st;
}

/* --- weights, on rank 0 --- */

static bool has_entry(const ls_checkpoint *file, const char *name)
{
    ls_checkpoint_entry entry;

    for (int i = 0; i < ls_checkpoint_count(file); i++)
        if (ls_checkpoint_entry_at(file, i, &entry) == LS_OK && text_equal(entry.name, name))
            return true;
    return false;
}

static bool is_wrapped(const ls_checkpoint *file)
{
    ls_checkpoint_entry entry;

    for (int i = 0; i < ls_checkpoint_count(file); i++)
        if (ls_checkpoint_entry_at(file, i, &entry) != LS_OK || !text_starts(entry.name, WRAPPER))
            return false;
    return ls_checkpoint_count(file) > 0;
}

static bool is_counter(const char *name)
{
    const size_t n = strlen(name);

    return n >= strlen(COUNTER) && text_equal(name + n - strlen(COUNTER), COUNTER);
}

/* The model's state under the names of the file, without counters that the file does not know. */
static ls_status weights_list(ls_run *run, const ls_checkpoint *file, const char *prefix,
                              name_list *list)
{
    int n;
    const ls_named *state = ls_model_state(run->model, &n);

    for (int i = 0; i < n; i++) {
        LS_TRY(name_list_add(list, prefix, &state[i], 1));
        const char *name = list->items[list->n - 1].name;
        if (is_counter(name) && !has_entry(file, name)) {
            ls_free((char *)(uintptr_t)name);
            list->n--;
        }
    }
    return LS_OK;
}

/* From a file of weights alone, with or without the wrapper's prefix, or from one of a whole state. */
static ls_status load_weights(ls_run *run, const char *path)
{
    const char *prefix = "";
    ls_load_mode mode = LS_LOAD_STRICT;
    ls_checkpoint *file;
    name_list list = {0};
    ls_status st;

    LS_TRY(ls_checkpoint_open(path, &file));
    if (ls_checkpoint_meta(file, "world_size") != NULL) {
        prefix = "model.";
        mode = LS_LOAD_SUBSET;
    } else if (is_wrapped(file)) {
        prefix = WRAPPER;
    }
    st = weights_list(run, file, prefix, &list);
    if (st == LS_OK && run->flags->skip_mismatched)
        st = load_what_fits(run, file, &list, mode);
    else if (st == LS_OK)
        st = load_fitting(file, &list, mode,
                          run->flags->init != NULL ? "; --skip-mismatched loads the others" : "");
    name_list_free(&list);
    ls_checkpoint_close(file);
    return ls_context(st, "loading %s", path);
}

/* --- the whole state, on rank 0 --- */

static ls_status meta_number(const ls_checkpoint *file, const char *key, int64_t most, int64_t *out)
{
    const char *text = ls_checkpoint_meta(file, key);

    if (text == NULL)
        return ls_fail(LS_EFORMAT, "its metadata has no %s", key);
    return text_parse_int(text, key, 0, most, out);
}

/* Of files that are older than the key, `otherwise`. */
static ls_status meta_number_or(const ls_checkpoint *file, const char *key, int64_t otherwise,
                                int64_t *out)
{
    *out = otherwise;
    return ls_checkpoint_meta(file, key) == NULL ? LS_OK : meta_number(file, key, STEPS_MAX, out);
}

/* Appends each setting of the file that this run has otherwise. A file without one is older than
 * it. */
static void append_differences(const ls_run *run, const ls_checkpoint *file, text_buf *out)
{
    save_setting here[SAVE_SETTINGS_MOST];
    const int n = save_list_settings(run, here);

    for (int i = 0; i < n; i++) {
        const char *text = ls_checkpoint_meta(file, here[i].key);
        char there[SAVE_SETTING_BYTES];

        if (text == NULL || text_equal(text, here[i].value))
            continue;
        text_printable(there, sizeof(there), text);
        text_append(out, "%s%s %s, not %s", out->length > 0 ? "; " : "", here[i].flag, there,
                    here[i].value);
    }
}

/* In the middle of an epoch other settings give another order of samples. */
static ls_status check_settings(const ls_run *run, const ls_checkpoint *file)
{
    text_buf differences = {0};
    ls_status st;

    append_differences(run, file, &differences);
    st = text_status(&differences);
    if (st == LS_OK && differences.length > 0)
        st = ls_fail(LS_EINVAL,
                     "it was saved in the middle of an epoch with %s: resume with the "
                     "same",
                     text_str(&differences));
    text_free(&differences);
    return st;
}

static ls_status check_optimizer(const ls_run *run, const ls_checkpoint *file)
{
    const char *here = run->flags->optimizer != NULL ? run->flags->optimizer : "sgd";
    const char *text = ls_checkpoint_meta(file, "optimizer");
    char there[SAVE_SETTING_BYTES];

    if (text == NULL || text_equal(text, here))
        return LS_OK;
    text_printable(there, sizeof(there), text);
    return ls_fail(LS_EINVAL, "it was saved with --optimizer %s, not %s", there, here);
}

static void warn_of_other_bits(const ls_run *run, const char *device, int64_t ranks)
{
    const char *here = ls_device_fingerprint(run->device);
    char there[SAVE_SETTING_BYTES];

    if (ranks == run_size(run) && device != NULL && text_equal(device, here))
        return;
    text_printable(there, sizeof(there), device != NULL ? device : "an unknown device");
    ls_log(LS_LOG_WARN, "train",
           "resuming on %d rank%s with %s what %" PRId64 " rank%s with %s saved: the bits may "
           "differ",
           run_size(run), text_plural(run_size(run)), here, ranks, text_plural(ranks), there);
}

/* Another number of ranks, or steps of other batches, begin behind the samples that those of the
 * file have trained on. */
static ls_status deal_rest(const ls_run *run, const ls_checkpoint *file, int64_t ranks,
                           run_position *at)
{
    const int64_t samples = (int64_t)ls_dataset_count(run->train.set);
    int64_t rows;
    int64_t accumulate;

    LS_TRY(meta_number(file, "batch_size", 1 << 24, &rows));
    LS_TRY(meta_number_or(file, "accumulate", 1, &accumulate));
    if (at->skip > samples || ranks < 1 || rows < 1)
        return ls_fail(LS_EFORMAT,
                       "its position, %" PRId64 " samples and %" PRId64 " batches of %" PRId64
                       " rows on %" PRId64 " ranks, is not one of %" PRId64 " samples",
                       at->skip, at->batch, rows, ranks, samples);
    if (ranks == run_size(run) && rows == run->flags->batch_size &&
        accumulate == run_accumulate(run))
        return LS_OK;
    if (at->batch > (samples - at->skip) / (ranks * rows))
        at->skip = samples;
    else
        at->skip += at->batch * ranks * rows;
    at->batch = 0;
    return LS_OK;
}

static ls_status check_same_run(const ls_run *run, const ls_checkpoint *file, run_position *at)
{
    int64_t ranks;

    LS_TRY(meta_number(file, "world_size", INT32_MAX, &ranks));
    LS_TRY(check_optimizer(run, file));
    if (at->batch > 0 || at->skip > 0)
        LS_TRY(check_settings(run, file));
    if ((at->batch > 0 || at->skip > 0) && run->train.set != NULL)
        LS_TRY(deal_rest(run, file, ranks, at));
    warn_of_other_bits(run, ls_checkpoint_meta(file, "device"), ranks);
    return LS_OK;
}

static ls_status read_position(const ls_checkpoint *file, run_position *at, double *best)
{
    const char *text = ls_checkpoint_meta(file, "best_accuracy");

    LS_TRY(meta_number_or(file, "skip", 0, &at->skip));
    LS_TRY(meta_number(file, "epoch", STEPS_MAX, &at->epoch));
    LS_TRY(meta_number(file, "batch", STEPS_MAX, &at->batch));
    LS_TRY(meta_number(file, "step", STEPS_MAX, &at->step));
    LS_TRY(meta_number(file, "best_epoch", STEPS_MAX, &at->best_epoch));
    return text_parse_double(text != NULL ? text : "", "best_accuracy", -1, 1, best);
}

/* What the epoch under way has added up so far; a sum that is no number stays none. */
static void read_epoch_sums(const ls_checkpoint *file, tally *sums)
{
    save_sum list[SAVE_SUMS];

    save_list_sums(sums, list);
    for (int i = 0; i < SAVE_SUMS; i++) {
        const char *text = ls_checkpoint_meta(file, list[i].key);

        *list[i].value = 0;
        if (text != NULL &&
            text_parse_double(text, list[i].key, -HUGE_VAL, HUGE_VAL, list[i].value) != LS_OK)
            *list[i].value = (double)NAN;
    }
}

/* --- the history: telemetry, which decides nothing --- */

/* How many records of `size` bytes the file has under this name, at most `most`. */
static ls_status count_records(const ls_checkpoint *file, const char *name, size_t size, int most,
                               int *n)
{
    ls_checkpoint_entry entry;

    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        LS_TRY(ls_checkpoint_entry_at(file, i, &entry));
        if (!text_equal(entry.name, name))
            continue;
        if (entry.n_dims != 1 || entry.dims[0] % (int64_t)size != 0 ||
            entry.dims[0] / (int64_t)size > most)
            return ls_fail(LS_EFORMAT, "%s is no list of at most %d records of %zu bytes", name,
                           most, size);
        *n = (int)(entry.dims[0] / (int64_t)size);
        return LS_OK;
    }
    return ls_fail(LS_EFORMAT, "%s is missing", name);
}

static ls_status read_history(history *h, ls_checkpoint *file, int64_t step)
{
    LS_TRY(count_records(file, HISTORY "points", sizeof(*h->points), HISTORY_POINTS, &h->n_points));
    LS_TRY(count_records(file, HISTORY "tests", sizeof(*h->tests), HISTORY_TESTS, &h->n_tests));
    const ls_named course[] = {
        {HISTORY "points", NULL, h->points, (size_t)h->n_points * sizeof(*h->points)},
        {HISTORY "tests", NULL, h->tests, (size_t)h->n_tests * sizeof(*h->tests)},
    };
    LS_TRY(ls_checkpoint_load(file, course, LS_COUNT_OF(course), LS_LOAD_SUBSET));
    return history_check(h, (double)step);
}

static void load_history(ls_run *run, ls_checkpoint *file)
{
    history *h = &run->history;

    if (read_history(h, file, run->at.step) == LS_OK)
        return;
    h->n_points = 0;
    h->n_tests = 0;
    ls_log(LS_LOG_WARN, "train", "the checkpoint's history cannot be used, it starts anew: %s",
           ls_last_error());
}

/* For the last words of a run that has nothing left to do. */
static void recall_results(ls_run *run)
{
    const history *h = &run->history;

    if (h->n_points > 0)
        run->state.loss = h->points[h->n_points - 1].loss;
    if (h->n_tests > 0)
        run->state.accuracy = h->tests[h->n_tests - 1].top1;
}

static ls_status load_state_from(ls_run *run, ls_checkpoint *file)
{
    run_position at;
    double best;
    name_list state = {0};
    ls_status st;

    LS_TRY(read_position(file, &at, &best));
    LS_TRY(check_same_run(run, file, &at));
    st = save_state_list(run, &state);
    if (st == LS_OK)
        st = load_fitting(file, &state, LS_LOAD_STRICT, "");
    name_list_free(&state);
    LS_TRY(st);
    run->at = at;
    run->resumed = true;
    run->state.best_accuracy = best;
    read_epoch_sums(file, &run->epoch_sums);
    load_history(run, file);
    recall_results(run);
    return LS_OK;
}

static bool is_auto(const ls_train_flags *f)
{
    return f->resume != NULL && text_equal(f->resume, "auto");
}

/* The file beside PATH, or PATH when that is such a file itself. */
static ls_status state_path(const char *path, char *out, size_t n)
{
    if (strstr(path, ".resume.") == NULL)
        return save_path_beside(path, "resume", out, n);
    if (strlen(path) >= n)
        return ls_fail(LS_EINVAL, "the path %s is too long", path);
    text_format(out, n, "%s", path);
    return LS_OK;
}

/* `given` is not beside a state: it is a state under another name, or an error that names it. */
static ls_status open_given(const char *given, const char *beside, ls_checkpoint **out)
{
    const ls_status st = ls_checkpoint_open(given, out);

    if (st == LS_ENOTFOUND)
        return ls_fail(st,
                       "--resume %.400s: there is no such file; name the --save file of the run "
                       "to go on with, or leave --resume out to begin anew",
                       given);
    LS_TRY(ls_context(st, "--resume"));
    if (ls_checkpoint_meta(*out, "world_size") != NULL)
        return LS_OK;
    ls_checkpoint_close(*out);
    return ls_fail(LS_ENOTFOUND,
                   "--resume %.300s: it holds weights only, and the state of the run, %.300s, is "
                   "missing; give --init instead to begin anew with these weights",
                   given, beside);
}

/* The state that --resume names: beside the weights `given`, or in that file itself. */
static ls_status open_state(const char *given, char *path, size_t n, ls_checkpoint **out)
{
    char beside[4096];
    ls_status st;

    LS_TRY(state_path(given, beside, sizeof(beside)));
    st = ls_checkpoint_open(beside, out);
    text_format(path, n, "%s", st == LS_ENOTFOUND ? given : beside);
    return st == LS_ENOTFOUND ? open_given(given, beside, out) : st;
}

/* Takes the file. */
static ls_status load_state_take(ls_run *run, ls_checkpoint *file, const char *path)
{
    const ls_status st = load_state_from(run, file);

    ls_checkpoint_close(file);
    if (st != LS_OK)
        return ls_context(st, "resuming from %s", path);
    progress_line(&run->progress, "resuming from %s: epoch %" PRId64 ", step %" PRId64, path,
                  run->at.epoch + 1, run->at.step);
    return LS_OK;
}

static ls_status load_given_state(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const char *given = f->resume[0] != 0 && !is_auto(f) ? f->resume : f->save;
    char path[4096];
    ls_checkpoint *file;

    if (!save_is_named(given))
        return ls_fail(LS_EINVAL, "--resume needs a path, or --save FILE to go on from");
    if (f->evaluate)
        return load_weights(run, given);
    LS_TRY(open_state(given, path, sizeof(path), &file));
    return load_state_take(run, file, path);
}

/* The state at the --save path, where --resume auto or a restart asks for one that is there. After
 * a restart that is one of this job: where it has saved none yet, it starts as the flags say. */
static ls_status load_saved_state(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const bool is_any = is_auto(f);
    const char *job;
    char path[4096];
    ls_checkpoint *file;
    ls_status st;

    if (f->evaluate || !save_is_named(f->save) || (!is_any && !earlier_is_restart()))
        return LS_OK;
    LS_TRY(save_path_beside(f->save, "resume", path, sizeof(path)));
    st = ls_checkpoint_open(path, &file);
    if (st == LS_ENOTFOUND)
        return LS_OK;
    LS_TRY(st);
    job = ls_checkpoint_meta(file, "job");
    if (is_any || (job != NULL && text_equal(job, earlier_job())))
        return load_state_take(run, file, path);
    ls_checkpoint_close(file);
    return LS_OK;
}

/* --- and on all ranks --- */

/* One item's bytes from rank 0 to all ranks. */
static ls_status share_item(ls_comm *comm, const ls_named *item)
{
    comm_label(comm, item->name);
    if (item->tensor == NULL)
        return ls_broadcast(comm, item->bytes, item->bytes, item->n_bytes, LS_U8, 0, NULL);
    void *data = ls_tensor_data(item->tensor);
    if (data == NULL && ls_tensor_count(item->tensor) > 0)
        return LS_ENOMEM;
    return ls_broadcast(comm, data, data, ls_tensor_count(item->tensor),
                        ls_tensor_dtype(item->tensor), 0, NULL);
}

static ls_status share_tensors(ls_run *run)
{
    name_list state = {0};
    ls_status st = save_state_list(run, &state);

    for (int i = 0; st == LS_OK && i < state.n; i++)
        st = share_item(run->comm, &state.items[i]);
    name_list_free(&state);
    return st;
}

/* *has_state: rank 0 has read tensors; all ranks get them. */
static ls_status share_state(ls_run *run, bool *has_state)
{
    double results[] = {run->state.best_accuracy, run->state.accuracy, run->state.loss, *has_state};

    comm_label(run->comm, "resume");
    LS_TRY(ls_broadcast(run->comm, &run->at, &run->at, sizeof(run->at) / sizeof(int64_t), LS_I64, 0,
                        NULL));
    comm_label(run->comm, "resume");
    LS_TRY(ls_broadcast(run->comm, results, results, LS_COUNT_OF(results), LS_F64, 0, NULL));
    run->state.best_accuracy = results[0];
    run->state.accuracy = results[1];
    run->state.loss = results[2];
    *has_state = results[3] != 0;
    return *has_state ? share_tensors(run) : LS_OK;
}

/* Rank 0's failure reaches all ranks as the group's: those wait for its broadcast meanwhile. */
static ls_status share_failure(ls_run *run, ls_status st)
{
    char why[LS_ERROR_BYTES];

    if (run->comm == NULL)
        return st;
    text_format(why, sizeof(why), "%s", ls_last_error());
    ls_comm_abort(run->comm, why);
    return ls_fail(st, "%s", why);
}

/* --resume with a path, or with a word that leaves no other way than to load. */
static bool must_resume(const ls_train_flags *f)
{
    return f->resume != NULL && (!is_auto(f) || f->evaluate || !save_is_named(f->save));
}

/* *has_state: tensors have been read. */
static ls_status load(ls_run *run, bool *has_state)
{
    const ls_train_flags *f = run->flags;

    LS_TRY(load_saved_state(run));
    if (!run->resumed && must_resume(f))
        LS_TRY(load_given_state(run));
    else if (!run->resumed && f->init != NULL)
        LS_TRY(load_weights(run, f->init));
    *has_state = run->resumed || must_resume(f) || f->init != NULL;
    if (is_auto(f) && !*has_state)
        progress_line(&run->progress, "nothing is saved at %s yet: starting anew", f->save);
    return earlier_keep(run);
}

ls_status resume_load(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    bool has_state = false;
    ls_status st = LS_OK;

    if (f->resume == NULL && f->init == NULL && !save_is_named(f->save))
        return LS_OK;
    if (f->resume != NULL && f->init != NULL && !is_auto(f))
        return ls_fail(LS_EINVAL, "--init starts anew and --resume goes on: give one of them");
    if (run_rank(run) == 0)
        st = load(run, &has_state);
    if (st != LS_OK)
        return share_failure(run, st);
    if (run->comm != NULL)
        LS_TRY(share_state(run, &has_state));
    return has_state ? ls_optimizer_loaded(run->optimizer) : LS_OK;
}
