/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_file.c - paths, names of tensors, and metadata of the files that a run saves. save.c and
 * resume.c must agree on them; previous_state.c renames the files.
 */
#include "train/state/state_file.h"

#include "base/alloc.h"
#include "base/status.h"
#include "base/text.h"
#include "data/describe.h"

#include <inttypes.h>
#include <string.h>

#define SUFFIX ".safetensors"

bool state_path_is_set(const char *path)
{
    return path != NULL && path[0] != 0;
}

ls_status state_path(const char *path, const char *word, char *out)
{
    size_t stem = strlen(path);

    if (stem > strlen(SUFFIX) && text_equal(path + stem - strlen(SUFFIX), SUFFIX))
        stem -= strlen(SUFFIX);
    if (stem + 32 > STATE_PATH_BYTES)
        return ls_fail(LS_EINVAL, "the path %s is too long", path);
    text_format(out, STATE_PATH_BYTES, "%.*s.%s%s", (int)stem, path, word, SUFFIX);
    return LS_OK;
}

ls_status state_open(const ls_train_flags *flags, const char *path, ls_checkpoint **out)
{
    return flags->no_verify ? ls_checkpoint_open_unverified(path, out)
                            : ls_checkpoint_open(path, out);
}

void name_list_free(name_list *list)
{
    for (int i = 0; i < list->n; i++) {
        char *name = (char *)(uintptr_t)list->items[i].name; /* made by name_list_add */
        ls_free(name);
    }
    ls_free(list->items);
    *list = (name_list){0};
}

ls_status state_meta_text(const ls_checkpoint *file, const char *key, const char **out)
{
    *out = ls_checkpoint_meta(file, key);
    return *out != NULL ? LS_OK : ls_fail(LS_EFORMAT, "its metadata has no %s", key);
}

ls_status state_meta_int(const ls_checkpoint *file, const char *key, int64_t least, int64_t most,
                         int64_t *out)
{
    const char *text;

    LS_TRY(state_meta_text(file, key, &text));
    return text_parse_int(text, key, least, most, out);
}

ls_status name_list_add(name_list *list, const char *prefix, const ls_named *from, int n)
{
    if (list->n + n > list->capacity) {
        const int capacity = list->n + n;
        LS_TRY(LS_RESIZE(&list->items, (size_t)capacity, "to name %d tensors", capacity));
        list->capacity = capacity;
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

ls_status state_list(ls_model *model, ls_optimizer *optimizer, ls_grad_scaler *scaler,
                     const ls_named *own, int n_own, name_list *list)
{
    int n_weights;
    int n_moments;
    int n_scaler = 0;
    const ls_named *scales = scaler == NULL ? NULL : ls_grad_scaler_state(scaler, &n_scaler);
    const ls_named *weights = ls_model_state(model, &n_weights);
    const ls_named *moments = ls_optimizer_state(optimizer, &n_moments);

    LS_TRY(name_list_add(list, "model.", weights, n_weights));
    LS_TRY(name_list_add(list, "optimizer.", moments, n_moments));
    LS_TRY(name_list_add(list, "program.", own, n_own));
    return name_list_add(list, "", scales, n_scaler);
}

static void add_setting(state_setting *list, int *n, const char *key, const char *flag,
                        const char *value)
{
    state_setting *s = &list[(*n)++];

    s->key = key;
    s->flag = flag;
    text_format(s->value, sizeof(s->value), "%s", value);
}

static void add_count(state_setting *list, int *n, const char *key, const char *flag, int64_t value)
{
    char text[32];

    add_setting(list, n, key, flag, text_format(text, sizeof(text), "%" PRId64, value));
}

int state_settings(const ls_train_flags *f, const ls_dataset *set, bool has_buckets,
                   state_setting list[STATE_SETTINGS_MAX])
{
    char augment[STATE_SETTING_BYTES];
    int n = 0;

    add_count(list, &n, "seed", "--seed", f->seed);
    add_setting(list, &n, "no_shuffle", "--no-shuffle", f->no_shuffle ? "yes" : "no");
    add_setting(list, &n, "drop_last", "--drop-last", f->drop_last ? "yes" : "no");
    if (set == NULL)
        return n;
    add_setting(list, &n, "buckets", "buckets by length", has_buckets ? "yes" : "no");
    dataset_augment_text(set, augment, sizeof(augment));
    add_count(list, &n, "samples", "training samples", (int64_t)ls_dataset_count(set));
    add_setting(list, &n, "augment", "augmentation", augment);
    return n;
}

void state_sums(rank_sums *sums, state_sum list[STATE_SUMS])
{
    const state_sum all[STATE_SUMS] = {{"epoch_loss", &sums->loss},
                                       {"epoch_rows", &sums->rows},
                                       {"epoch_ranked", &sums->ranked},
                                       {"epoch_top1", &sums->top1},
                                       {"epoch_top5", &sums->top5}};

    memcpy(list, all, sizeof(all));
}
