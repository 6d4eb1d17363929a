/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - what a run leaves on disk.
 *
 * NAME.safetensors          the weights alone, named as PyTorch's state_dict: for others to load
 * NAME.best.safetensors     the same of the best evaluation so far (or --save-best)
 * NAME.resume.safetensors   weights ("model."), optimizer ("optimizer."), position and history together, in one file, so that a
 *                           crash at any moment leaves a state that belongs together
 */
#include "train/run.h"

#include "base/alloc.h"
#include "base/file.h"
#include "data/describe.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <string.h>

#define SUFFIX ".safetensors"

/* --- lists --- */

void name_list_free(name_list *list)
{
    for (int i = 0; i < list->n; i++) {
        char *name = (char *)(uintptr_t)list->items[i].name; /* made by name_list_add */
        ls_free(name);
    }
    ls_free(list->items);
    *list = (name_list){0};
}

ls_status name_list_add(name_list *list, const char *prefix, const ls_named *from, int n)
{
    if (list->n + n > list->room) {
        const int room = list->n + n;
        ls_named *items = ls_realloc(list->items, (size_t)room, sizeof(*items));
        if (items == NULL)
            return ls_fail(LS_ENOMEM, "no memory to name %d tensors", room);
        list->items = items;
        list->room = room;
    }
    for (int i = 0; i < n; i++) {
        text_buf name = {0};
        text_append(&name, "%s%s", prefix, from[i].name);
        LS_TRY(text_status(&name));
        list->items[list->n] = from[i];
        list->items[list->n++].name = name.data;
    }
    return LS_OK;
}

ls_status save_state_list(ls_run *run, name_list *list)
{
    int n_model;
    int n_optimizer;
    const ls_named *model = ls_model_state(run->model, &n_model);
    const ls_named *optimizer = ls_optimizer_state(run->optimizer, &n_optimizer);

    LS_TRY(name_list_add(list, "model.", model, n_model));
    return name_list_add(list, "optimizer.", optimizer, n_optimizer);
}

ls_status save_path_beside(const char *path, const char *word, char *out, size_t n)
{
    size_t stem = strlen(path);

    if (stem > strlen(SUFFIX) && text_equal(path + stem - strlen(SUFFIX), SUFFIX))
        stem -= strlen(SUFFIX);
    if (stem + 32 > n)
        return ls_fail(LS_EINVAL, "the path %s is too long", path);
    text_format(out, n, "%.*s.%s%s", (int)stem, path, word, SUFFIX);
    return LS_OK;
}

/* --- what is said about the run --- */

static void add_setting(save_setting *list, int *n, const char *key, const char *flag,
                        const char *value)
{
    save_setting *s = &list[(*n)++];

    s->key = key;
    s->flag = flag;
    text_format(s->value, sizeof(s->value), "%s", value);
}

static void add_count(save_setting *list, int *n, const char *key, const char *flag, int64_t value)
{
    char text[32];

    add_setting(list, n, key, flag, text_format(text, sizeof(text), "%" PRId64, value));
}

static const char *yes_or_no(int flag)
{
    return flag ? "yes" : "no";
}

int save_list_settings(const ls_run *run, save_setting *list)
{
    const ls_train_flags *f = run->flags;
    const ls_dataset *set = run->train.set;
    char augment[SAVE_SETTING_BYTES];
    int n = 0;

    add_count(list, &n, "seed", "--seed", f->seed);
    add_setting(list, &n, "no_shuffle", "--no-shuffle", yes_or_no(f->no_shuffle));
    add_setting(list, &n, "drop_last", "--drop-last", yes_or_no(f->drop_last));
    if (set == NULL)
        return n;
    dataset_augment_text(set, augment, sizeof(augment));
    add_count(list, &n, "samples", "training samples", (int64_t)ls_dataset_count(set));
    add_setting(list, &n, "augment", "augmentation", augment);
    return n;
}

void save_list_sums(tally *sums, save_sum list[SAVE_SUMS])
{
    const save_sum all[SAVE_SUMS] = {{"epoch_loss", &sums->loss},
                                     {"epoch_rows", &sums->rows},
                                     {"epoch_ranked", &sums->ranked},
                                     {"epoch_top1", &sums->top1},
                                     {"epoch_top5", &sums->top5}};

    memcpy(list, all, sizeof(all));
}

enum { META_MOST = 18, META_BYTES = 32 };

typedef struct meta_list {
    ls_meta items[META_MOST + SAVE_SETTINGS_MOST];
    char text[META_MOST][META_BYTES];
    save_setting settings[SAVE_SETTINGS_MOST];
    int n;
} meta_list;

static void add_number(meta_list *m, const char *key, int64_t value)
{
    text_format(m->text[m->n], META_BYTES, "%" PRId64, value);
    m->items[m->n] = (ls_meta){key, m->text[m->n]};
    m->n++;
}

static void add_real(meta_list *m, const char *key, double value)
{
    text_format(m->text[m->n], META_BYTES, "%.17g", value);
    m->items[m->n] = (ls_meta){key, m->text[m->n]};
    m->n++;
}

static void describe_run(ls_run *run, meta_list *m)
{
    const int n_settings = save_list_settings(run, m->settings);
    save_sum sums[SAVE_SUMS];

    save_list_sums(&run->epoch_sums, sums);
    add_number(m, "world_size", run_size(run));
    add_number(m, "batch_size", run->flags->batch_size);
    add_number(m, "accumulate", run_accumulate(run));
    add_number(m, "epoch", run->at.epoch);
    add_number(m, "skip", run->at.skip);
    add_number(m, "batch", run->at.batch);
    add_number(m, "step", run->at.step);
    add_number(m, "best_epoch", run->at.best_epoch);
    add_real(m, "best_accuracy", run->state.best_accuracy);
    for (int i = 0; i < SAVE_SUMS; i++)
        add_real(m, sums[i].key, *sums[i].value);
    for (int i = 0; i < n_settings; i++)
        m->items[m->n++] = (ls_meta){m->settings[i].key, m->settings[i].value};
    m->items[m->n++] =
        (ls_meta){"optimizer", run->flags->optimizer != NULL ? run->flags->optimizer : "sgd"};
    m->items[m->n++] = (ls_meta){"device", ls_device_fingerprint(run->device)};
    m->items[m->n++] = (ls_meta){"job", earlier_job()};
}

/* --- the files --- */

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
    const ls_named course[] = {
        {"points", NULL, h->points, (size_t)h->n_points * sizeof(*h->points)},
        {"tests", NULL, h->tests, (size_t)h->n_tests * sizeof(*h->tests)},
    };
    char path[4096];
    name_list state = {0};
    meta_list meta = {0};
    ls_status st;

    LS_TRY(save_path_beside(run->flags->save, "resume", path, sizeof(path)));
    st = save_state_list(run, &state);
    if (st == LS_OK)
        st = name_list_add(&state, "history.", course, 2);
    describe_run(run, &meta);
    if (st == LS_OK)
        st = ls_checkpoint_save(path, state.items, state.n, meta.items, meta.n);
    name_list_free(&state);
    return st;
}

bool save_is_named(const char *path)
{
    return path != NULL && path[0] != 0;
}

static ls_status save_best(ls_run *run)
{
    char beside[4096];

    if (save_is_named(run->flags->save_best))
        return save_weights(run, run->flags->save_best);
    LS_TRY(save_path_beside(run->flags->save, "best", beside, sizeof(beside)));
    return save_weights(run, beside);
}

/* The best weights come before the state that knows of them: after a crash in between they are written again. */
static ls_status save_files(ls_run *run, bool is_best)
{
    if (is_best && (save_is_named(run->flags->save) || save_is_named(run->flags->save_best)))
        LS_TRY(save_best(run));
    if (!save_is_named(run->flags->save))
        return LS_OK;
    LS_TRY(save_state(run));
    return save_weights(run, run->flags->save);
}

static ls_status probe(const char *flag, const char *path)
{
    return save_is_named(path) ? ls_context(file_atomic_probe(path), "%s", flag) : LS_OK;
}

ls_status save_probe(const ls_train_flags *f)
{
    char beside[4096];

    LS_TRY(probe("--metrics-html", f->metrics_html));
    if (f->evaluate)
        return LS_OK;
    LS_TRY(probe("--save-best", f->save_best));
    if (!save_is_named(f->save))
        return LS_OK;
    LS_TRY(probe("--save", f->save));
    LS_TRY(save_path_beside(f->save, "resume", beside, sizeof(beside)));
    return probe("--save", beside);
}

static bool goes_on(const ls_run *run)
{
    return run->flags->on_save_error == NULL || text_equal(run->flags->on_save_error, "continue");
}

ls_status save_failed(ls_run *run, ls_status st, const char *what)
{
    if (!goes_on(run))
        return ls_context(st, "saving %s", what);
    ls_log(LS_LOG_WARN, "train", "%s could not be saved at step %" PRId64 ": %s", what,
           run->at.step, ls_last_error());
    return LS_OK;
}

/* No step is trained after it. */
static bool is_last_save(const ls_run *run)
{
    return run->finished || run_steps_left(run) == 0;
}

/* A save that failed is reported again at the end, unless a later one has gone well. */
static ls_status weights_failed(ls_run *run, ls_status st)
{
    char since[64] = "no earlier ones were saved";

    if (run->saved_step >= 0)
        text_format(since, sizeof(since), "those of step %" PRId64 " stand", run->saved_step);
    text_format(run->unsaved_text, sizeof(run->unsaved_text),
                "the weights of step %" PRId64 " could not be saved, %s: %s", run->at.step, since,
                ls_last_error());
    run->unsaved = true;
    if (goes_on(run) && is_last_save(run)) /* ls_run_close() reports it */
        return LS_OK;
    return save_failed(run, st, "the weights");
}

ls_status save_page(ls_run *run)
{
    const ls_status st = page_write(run);

    return st == LS_OK ? LS_OK : save_failed(run, st, "the page of metrics");
}

ls_status save_all(ls_run *run, bool is_best)
{
    char activity[4096];
    ls_status st;

    if (run_rank(run) != 0)
        return LS_OK;
    text_format(activity, sizeof(activity), "saving step %" PRId64 " to %s", run->at.step,
                save_is_named(run->flags->save) ? run->flags->save : "the --save-best file");
    run_set_activity(run, activity);
    st = save_files(run, is_best);
    run_set_activity(run, "training");
    if (st != LS_OK) {
        LS_TRY(weights_failed(run, st));
    } else {
        run->unsaved = false;
        run->saved_step = run->at.step;
    }
    return save_page(run);
}
