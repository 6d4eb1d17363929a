/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resume.c - what a run leaves on disk.
 *
 * NAME.safetensors          the weights alone, named as PyTorch's state_dict: for others to load
 * NAME.resume.safetensors   weights ("model."), optimizer ("optimizer.") and position together, in one file, so that a
 *                           crash at any moment leaves a state that belongs together
 */
#include "train/run.h"

#include "base/alloc.h"

#include <lockstep/log.h>

#include <string.h>

#define SUFFIX ".safetensors"

typedef struct name_list {
    ls_named *items;
    int n;
} name_list;

static void free_list(name_list *list)
{
    for (int i = 0; i < list->n; i++) {
        char *name = (char *)(uintptr_t)list->items[i].name; /* made by append_list */
        ls_free(name);
    }
    ls_free(list->items);
    *list = (name_list){0};
}

static ls_status append_list(name_list *list, const char *prefix, const ls_named *from, int n)
{
    for (int i = 0; i < n; i++) {
        text_buf name = {0};
        text_append(&name, "%s%s", prefix, from[i].name);
        LS_TRY(text_status(&name));
        list->items[list->n] = from[i];
        list->items[list->n++].name = name.data;
    }
    return LS_OK;
}

/* Everything that makes up the state of a run, under the names of the resume file. */
static ls_status whole_state(ls_run *run, name_list *list)
{
    int n_model;
    int n_optimizer;
    const ls_named *model = ls_model_state(run->model, &n_model);
    const ls_named *optimizer = ls_optimizer_state(run->optimizer, &n_optimizer);

    list->items = ls_calloc((size_t)(n_model + n_optimizer) + 1, sizeof(*list->items));
    if (list->items == NULL)
        return ls_fail(LS_ENOMEM, "no memory to name the state of the run");
    LS_TRY(append_list(list, "model.", model, n_model));
    return append_list(list, "optimizer.", optimizer, n_optimizer);
}

/* NAME.safetensors -> NAME.resume.safetensors. */
static ls_status resume_path(const char *path, char *out, size_t n)
{
    size_t stem = strlen(path);

    if (stem > strlen(SUFFIX) && text_equal(path + stem - strlen(SUFFIX), SUFFIX))
        stem -= strlen(SUFFIX);
    if (stem + 32 > n)
        return ls_fail(LS_EINVAL, "the path %s is too long", path);
    text_format(out, n, "%.*s.resume%s", (int)stem, path, SUFFIX);
    return LS_OK;
}

/* --- saving --- */

enum { META_MOST = 9 };

typedef struct meta_list {
    ls_meta items[META_MOST];
    char text[META_MOST][32];
    int n;
} meta_list;

static void add_number(meta_list *m, const char *key, int64_t value)
{
    text_format(m->text[m->n], sizeof(m->text[0]), "%lld", (long long)value);
    m->items[m->n] = (ls_meta){key, m->text[m->n]};
    m->n++;
}

static void describe_run(const ls_run *run, meta_list *m)
{
    add_number(m, "epoch", run->at.epoch);
    add_number(m, "batch", run->at.batch);
    add_number(m, "step", run->at.step);
    add_number(m, "seed", run->flags->seed);
    add_number(m, "world_size", run_size(run));
    add_number(m, "batch_size", run->flags->batch_size);
    m->items[m->n++] = (ls_meta){"device", ls_device_fingerprint(run->device)};
}

static ls_status save_files(ls_run *run)
{
    const char *path = run->flags->save;
    const ls_meta format = {"format", "pt"}; /* what torch's loaders look for */
    char beside[4096];
    name_list state = {0};
    meta_list meta = {0};
    const ls_named *weights;
    ls_status st;
    int n;

    LS_TRY(resume_path(path, beside, sizeof(beside)));
    st = whole_state(run, &state);
    describe_run(run, &meta);
    if (st == LS_OK)
        st = ls_checkpoint_save(beside, state.items, state.n, meta.items, meta.n);
    free_list(&state);
    LS_TRY(st);
    weights = ls_model_state(run->model, &n);
    return ls_checkpoint_save(path, weights, n, &format, 1);
}

ls_status resume_save(ls_run *run)
{
    if (run->flags->save == NULL || run_rank(run) != 0)
        return LS_OK;
    return ls_context(save_files(run), "saving");
}

/* --- loading, on rank 0 --- */

static ls_status load_weights(ls_run *run)
{
    ls_checkpoint *file;
    ls_status st;
    int n;

    LS_TRY(ls_checkpoint_open(run->flags->init, &file));
    const ls_named *weights = ls_model_state(run->model, &n);
    st = ls_checkpoint_load(file, weights, n, LS_LOAD_STRICT);
    ls_checkpoint_close(file);
    return st;
}

static ls_status meta_number(const ls_checkpoint *file, const char *key, int64_t *out)
{
    const char *text = ls_checkpoint_meta(file, key);

    if (text == NULL)
        return ls_fail(LS_EFORMAT, "its metadata has no %s", key);
    return text_parse_int(text, key, 0, INT64_MAX, out);
}

/* The position is only meaningful for the same shards of the same order. */
static ls_status check_same_run(const ls_run *run, const ls_checkpoint *file,
                                const run_position *at)
{
    const char *device = ls_checkpoint_meta(file, "device");
    int64_t seed;
    int64_t world_size;
    int64_t batch_size;

    LS_TRY(meta_number(file, "seed", &seed));
    LS_TRY(meta_number(file, "world_size", &world_size));
    LS_TRY(meta_number(file, "batch_size", &batch_size));
    if (at->batch > 0 && (seed != run->flags->seed || world_size != run_size(run) ||
                          batch_size != run->flags->batch_size))
        return ls_fail(LS_EINVAL,
                       "it was saved in the middle of an epoch by %lld ranks with --seed %lld "
                       "--batch-size %lld; "
                       "resume with the same",
                       (long long)world_size, (long long)seed, (long long)batch_size);
    if (world_size != run_size(run) || device == NULL ||
        !text_equal(device, ls_device_fingerprint(run->device)))
        ls_log(LS_LOG_WARN, "train",
               "resuming on %d ranks with %s what %lld ranks with %s saved: the bits may differ",
               run_size(run), ls_device_fingerprint(run->device), (long long)world_size,
               device != NULL ? device : "an unknown device");
    return LS_OK;
}

static ls_status load_state_from(ls_run *run, ls_checkpoint *file)
{
    run_position at;
    name_list state = {0};
    ls_status st;

    LS_TRY(meta_number(file, "epoch", &at.epoch));
    LS_TRY(meta_number(file, "batch", &at.batch));
    LS_TRY(meta_number(file, "step", &at.step));
    LS_TRY(check_same_run(run, file, &at));
    st = whole_state(run, &state);
    if (st == LS_OK)
        st = ls_checkpoint_load(file, state.items, state.n, LS_LOAD_STRICT);
    free_list(&state);
    LS_TRY(st);
    run->at = at;
    return LS_OK;
}

static ls_status load_state(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const char *path = f->resume[0] != 0 ? f->resume : f->save;
    char beside[4096];
    ls_checkpoint *file;
    ls_status st;

    if (path == NULL)
        return ls_fail(LS_EINVAL, "--resume needs a path, or --save FILE to go on from");
    LS_TRY(resume_path(path, beside, sizeof(beside)));
    LS_TRY(ls_checkpoint_open(beside, &file));
    st = load_state_from(run, file);
    ls_checkpoint_close(file);
    return ls_context(st, "resuming from %s", beside);
}

static ls_status load_here(ls_run *run)
{
    if (run->flags->resume != NULL)
        return load_state(run);
    return load_weights(run);
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
    name_list state = {0};
    ls_status st;

    st = ls_broadcast(run->comm, &run->at, &run->at, sizeof(run->at) / sizeof(int64_t), LS_I64, 0,
                      NULL);
    if (st == LS_OK)
        st = whole_state(run, &state);
    for (int i = 0; st == LS_OK && i < state.n; i++)
        st = share_item(run->comm, &state.items[i]);
    free_list(&state);
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
        st = load_here(run);
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
