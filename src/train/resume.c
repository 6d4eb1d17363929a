/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resume.c - where a run starts from: --init takes weights, --resume the whole state of save.c. Rank 0 reads and everybody gets it.
 */
#include "train/run.h"

#include "base/alloc.h"

#include <lockstep/log.h>

#include <string.h>
#include <unistd.h>

#define COUNTER                                                                                    \
    "num_batches_tracked" /* files from before PyTorch had it lack it; nothing is computed from it */
#define WRAPPER "module." /* what DistributedDataParallel puts before the names of what it wraps */

/* --- comparing --- */

static void say_difference(void *arg, const char *text)
{
    text_append(arg, "  %s\n", text);
}

/* All differences to standard error: an error text has not the room for two architectures. */
static ls_status load_or_list(ls_checkpoint *file, const name_list *list, ls_load_mode mode)
{
    text_buf text = {0};
    int n_differences = 0;
    ls_status st = ls_checkpoint_compare(file, list->items, list->n, mode, say_difference, &text,
                                         &n_differences);

    if (st == LS_OK && n_differences > 1)
        progress_write(STDERR_FILENO, text_str(&text));
    text_free(&text);
    LS_TRY(st);
    return ls_checkpoint_load(file, list->items, list->n, mode);
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
    if (has_entry(file, "history.points")) {
        prefix = "model.";
        mode = LS_LOAD_SUBSET;
    } else if (is_wrapped(file)) {
        prefix = WRAPPER;
    }
    st = weights_list(run, file, prefix, &list);
    if (st == LS_OK)
        st = load_or_list(file, &list, mode);
    name_list_free(&list);
    ls_checkpoint_close(file);
    return st;
}

/* --- the whole state, on rank 0 --- */

static ls_status meta_number(const ls_checkpoint *file, const char *key, int64_t *out)
{
    const char *text = ls_checkpoint_meta(file, key);

    if (text == NULL)
        return ls_fail(LS_EFORMAT, "its metadata has no %s", key);
    return text_parse_int(text, key, 0, INT64_MAX, out);
}

/* What decides the order of samples and which of them a rank sees; differing ones give another run in mid-epoch. */
typedef struct shards {
    int64_t seed;
    int64_t world_size;
    int64_t batch_size;
    int64_t samples;
} shards;

static ls_status read_shards(const ls_checkpoint *file, shards *s)
{
    LS_TRY(meta_number(file, "seed", &s->seed));
    LS_TRY(meta_number(file, "world_size", &s->world_size));
    LS_TRY(meta_number(file, "batch_size", &s->batch_size));
    return meta_number(file, "samples", &s->samples);
}

static bool same_shards(const ls_run *run, const shards *s)
{
    return s->seed == run->flags->seed && s->world_size == run_size(run) &&
           s->batch_size == run->flags->batch_size &&
           (run->train.set == NULL || s->samples == (int64_t)ls_dataset_count(run->train.set));
}

static ls_status check_same_run(const ls_run *run, const ls_checkpoint *file,
                                const run_position *at)
{
    const char *here = run->flags->optimizer != NULL ? run->flags->optimizer : "sgd";
    const char *optimizer = ls_checkpoint_meta(file, "optimizer");
    const char *device = ls_checkpoint_meta(file, "device");
    shards s;

    LS_TRY(read_shards(file, &s));
    if (optimizer != NULL && !text_equal(optimizer, here))
        return ls_fail(LS_EINVAL, "it was saved with --optimizer %s, not %s", optimizer, here);
    if (at->batch > 0 && !same_shards(run, &s))
        return ls_fail(LS_EINVAL,
                       "it was saved in the middle of an epoch by %lld ranks with --seed %lld "
                       "--batch-size %lld on %lld samples; resume with the same",
                       (long long)s.world_size, (long long)s.seed, (long long)s.batch_size,
                       (long long)s.samples);
    if (s.world_size != run_size(run) || device == NULL ||
        !text_equal(device, ls_device_fingerprint(run->device)))
        ls_log(LS_LOG_WARN, "train",
               "resuming on %d ranks with %s what %lld ranks with %s saved: the bits may differ",
               run_size(run), ls_device_fingerprint(run->device), (long long)s.world_size,
               device != NULL ? device : "an unknown device");
    return LS_OK;
}

/* How many records of `size` bytes the file has under this name; LS_EFORMAT when that is no whole number of them or over `most`. */
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

static ls_status add_history(ls_run *run, const ls_checkpoint *file, name_list *list)
{
    history *h = &run->history;

    LS_TRY(count_records(file, "history.points", sizeof(*h->points), HISTORY_POINTS, &h->n_points));
    LS_TRY(count_records(file, "history.tests", sizeof(*h->tests), HISTORY_TESTS, &h->n_tests));
    const ls_named course[] = {
        {"points", NULL, h->points, (size_t)h->n_points * sizeof(*h->points)},
        {"tests", NULL, h->tests, (size_t)h->n_tests * sizeof(*h->tests)},
    };
    return name_list_add(list, "history.", course, 2);
}

static ls_status read_position(const ls_checkpoint *file, run_position *at, double *best)
{
    const char *text = ls_checkpoint_meta(file, "best_accuracy");

    LS_TRY(meta_number(file, "epoch", &at->epoch));
    LS_TRY(meta_number(file, "batch", &at->batch));
    LS_TRY(meta_number(file, "step", &at->step));
    LS_TRY(meta_number(file, "best_epoch", &at->best_epoch));
    return text_parse_double(text != NULL ? text : "", "best_accuracy", -1, 1, best);
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
        st = add_history(run, file, &state);
    if (st == LS_OK)
        st = load_or_list(file, &state, LS_LOAD_STRICT);
    name_list_free(&state);
    LS_TRY(st);
    run->at = at;
    run->state.best_accuracy = best;
    recall_results(run);
    return LS_OK;
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

static ls_status load_state(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const char *given = f->resume[0] != 0 ? f->resume : f->save;
    char path[4096];
    ls_checkpoint *file;
    ls_status st;

    if (given == NULL)
        return ls_fail(LS_EINVAL, "--resume needs a path, or --save FILE to go on from");
    if (f->evaluate)
        return load_weights(run, given);
    LS_TRY(state_path(given, path, sizeof(path)));
    LS_TRY(ls_checkpoint_open(path, &file));
    st = load_state_from(run, file);
    ls_checkpoint_close(file);
    return ls_context(st, "resuming from %s", path);
}

/* --- and on all ranks --- */

/* One item's bytes from rank 0 to everybody. */
static ls_status share_item(ls_comm *comm, const ls_named *item)
{
    if (item->tensor == NULL)
        return ls_broadcast(comm, item->bytes, item->bytes, item->n_bytes, LS_U8, 0, NULL);
    void *data = ls_tensor_data(item->tensor);
    if (data == NULL && ls_tensor_count(item->tensor) > 0)
        return LS_ENOMEM;
    return ls_broadcast(comm, data, data, ls_tensor_count(item->tensor),
                        ls_tensor_dtype(item->tensor), 0, NULL);
}

static ls_status share_state(ls_run *run)
{
    double results[] = {run->state.best_accuracy, run->state.accuracy, run->state.loss};
    name_list state = {0};
    ls_status st;

    LS_TRY(ls_broadcast(run->comm, &run->at, &run->at, sizeof(run->at) / sizeof(int64_t), LS_I64, 0,
                        NULL));
    LS_TRY(ls_broadcast(run->comm, results, results, LS_COUNT_OF(results), LS_F64, 0, NULL));
    run->state.best_accuracy = results[0];
    run->state.accuracy = results[1];
    run->state.loss = results[2];
    st = save_state_list(run, &state);
    for (int i = 0; st == LS_OK && i < state.n; i++)
        st = share_item(run->comm, &state.items[i]);
    name_list_free(&state);
    return st;
}

ls_status resume_load(ls_run *run)
{
    int64_t loaded = 1;
    ls_status st = LS_OK;

    if (run->flags->resume == NULL && run->flags->init == NULL)
        return LS_OK;
    if (run->flags->resume != NULL && run->flags->init != NULL)
        return ls_fail(LS_EINVAL, "--init starts anew and --resume goes on: give one of them");
    if (run_rank(run) == 0)
        st = run->flags->resume != NULL ? load_state(run) : load_weights(run, run->flags->init);
    if (run->comm != NULL) {
        loaded = st == LS_OK;
        LS_TRY(ls_broadcast(run->comm, &loaded, &loaded, 1, LS_I64, 0, NULL));
    }
    LS_TRY(st);
    if (!loaded)
        return ls_fail(LS_EPEER, "rank 0 could not load the checkpoint");
    if (run->comm != NULL)
        LS_TRY(share_state(run));
    return ls_optimizer_loaded(run->optimizer);
}
