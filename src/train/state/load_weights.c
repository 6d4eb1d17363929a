/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_weights.c - loads a list of tensors from a file, whole or (--skip-mismatched) as far as
 * names and shapes match. resume.c calls it on rank 0.
 */
#include "train/state/load_weights.h"

#include "base/alloc.h"
#include "train/finite.h"

#include <lockstep/log.h>

#include <string.h>
#include <unistd.h>

/* Counts batches. Files of old PyTorch versions lack it, and nothing is computed from it. */
#define COUNTER "num_batches_tracked"

enum { SHOWN_BYTES = 800 }; /* of differences in an error text */

typedef struct difference_list {
    text_buf joined; /* for an error text */
    text_buf lines;  /* for standard error */
    int n;
} difference_list;

static void add_difference(void *arg, const char *text)
{
    difference_list *d = arg;

    if (text_starts(text, STATE_HISTORY) || text_starts(text, STATE_SCALER))
        return;
    text_append(&d->joined, "%s%s", d->n > 0 ? "; " : "", text);
    text_append(&d->lines, "  %s\n", text);
    d->n++;
}

/* All differences are in the error text or, where they do not fit, on standard error. */
static ls_status fail_differences(const difference_list *d, const char *hint)
{
    if (d->joined.length <= SHOWN_BYTES)
        return ls_fail(LS_EFORMAT, "tensors do not match the model: %s%s", text_str(&d->joined),
                       hint);
    progress_write(STDERR_FILENO, text_str(&d->lines));
    return ls_fail(LS_EFORMAT, "tensors do not match the model: %d difference%s, listed above%s",
                   d->n, text_plural(d->n), hint);
}

ls_status load_list(ls_checkpoint *file, const name_list *list, ls_load_mode mode, const char *hint)
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

enum { SKIPS_BYTES = 400 }; /* of names in a line; progress_line() truncates at 512 */

/* The skipped names, a line for each reason. */
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

static ls_status print_skips(progress *p, const skip_list *s, int n_loaded, int n)
{
    static const char *const titles[] = {[LS_SKIP_MISSING] = "missing in the file",
                                         [LS_SKIP_UNEXPECTED] = "unexpected in the file",
                                         [LS_SKIP_DIFFERENT] = "with another shape or type"};

    if (n_loaded == 0)
        return ls_fail(LS_EFORMAT, "no tensor of the file matches the model");
    progress_line(p, "--skip-mismatched: %d of %d tensors loaded", n_loaded, n);
    for (int i = 0; i < 3; i++) {
        char more[32] = "";

        LS_TRY(text_status(&s->lines[i]));
        if (s->n[i] > s->n_shown[i])
            text_format(more, sizeof(more), " and %d more", s->n[i] - s->n_shown[i]);
        if (s->n[i] > 0)
            progress_line(p, "  %d %s: %s%s", s->n[i], titles[i], text_str(&s->lines[i]), more);
    }
    return LS_OK;
}

static ls_status load_matching(progress *p, ls_checkpoint *file, const name_list *list,
                               ls_load_mode mode)
{
    skip_list skipped = {.n = {0}};
    int n_loaded = 0;
    ls_status st =
        ls_checkpoint_load_fitting(file, list->items, list->n, mode, add_skip, &skipped, &n_loaded);

    if (st == LS_OK)
        st = print_skips(p, &skipped, n_loaded, list->n);
    for (int i = 0; i < 3; i++)
        text_free(&skipped.lines[i]);
    return st;
}

static bool is_counter(const char *name)
{
    const size_t n = strlen(name);

    return n >= strlen(COUNTER) && text_equal(name + n - strlen(COUNTER), COUNTER);
}

/* --- names --- */

/* The name of an entry; of types that ls_dtype lacks, too. */
static const char *entry_name(const ls_checkpoint *file, int i)
{
    ls_checkpoint_entry entry = {.name = ""};
    const ls_status ignored = ls_checkpoint_entry_at(file, i, &entry);

    LS_UNUSED(ignored);
    return entry.name;
}

/* What DistributedDataParallel and torch.compile() put into names, also of a part of a model. */
static size_t wrapper_bytes(const char *name)
{
    static const char *const wrappers[] = {"module.", "_orig_mod."};

    for (size_t i = 0; i < LS_COUNT_OF(wrappers); i++)
        if (text_starts(name, wrappers[i]))
            return strlen(wrappers[i]);
    return 0;
}

/* Whether they are equal but for wrappers in the first one. */
static bool names_match(const char *in_file, const char *name)
{
    for (;;) {
        const size_t n = strcspn(name, ".");
        const bool is_equal = strcspn(in_file, ".") == n && strncmp(in_file, name, n) == 0;

        if (is_equal && (name[n] == 0 || in_file[n] == 0))
            return name[n] == in_file[n];
        if (!is_equal && wrapper_bytes(in_file) == 0)
            return false;
        name += is_equal ? n + 1 : 0;
        in_file += is_equal ? n + 1 : wrapper_bytes(in_file);
    }
}

/* Where a part of `in_file` begins that matches; NULL: nowhere. */
static const char *find_part(const char *in_file, const char *name)
{
    for (const char *at = in_file; at != NULL; at = strchr(at, '.')) {
        at += at[0] == '.';
        if (names_match(at, name))
            return at;
    }
    return NULL;
}

static bool all_start(const ls_checkpoint *file, const char *prefix, size_t n)
{
    for (int i = 0; i < ls_checkpoint_count(file); i++)
        if (strncmp(entry_name(file, i), prefix, n) != 0)
            return false;
    return true;
}

/* The bytes that all names of the file have before those of the model, as "model."; 0: none. */
static size_t prefix_bytes(const ls_checkpoint *file, const ls_named *state, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < ls_checkpoint_count(file); k++) {
            const char *name = entry_name(file, k);
            const char *part = find_part(name, state[i].name);

            if (part != NULL && all_start(file, name, (size_t)(part - name)))
                return (size_t)(part - name);
        }
    return 0;
}

/* The name in the file; NULL: there is none. */
static const char *find_entry(const ls_checkpoint *file, size_t prefix, const char *name)
{
    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        const char *in_file = entry_name(file, i);

        if (strlen(in_file) > prefix && names_match(in_file + prefix, name))
            return in_file;
    }
    return NULL;
}

static ls_status add_as(name_list *list, const char *prefix, const ls_named *item, const char *name)
{
    ls_named renamed = *item;

    renamed.name = name;
    return name_list_add(list, prefix, &renamed, 1);
}

/* The model's state under the names of the file, without counters that the file lacks. */
static ls_status weights_list(ls_model *model, const ls_checkpoint *file, name_list *list)
{
    int n;
    const ls_named *state = ls_model_state(model, &n);
    const size_t prefix = prefix_bytes(file, state, n);

    for (int i = 0; i < n; i++) {
        const char *name = find_entry(file, prefix, state[i].name);

        if (name != NULL || !is_counter(state[i].name))
            LS_TRY(add_as(list, "", &state[i], name != NULL ? name : state[i].name));
    }
    return LS_OK;
}

/* The same of a state file, which has its own names. */
static ls_status weights_of_state(ls_model *model, name_list *list)
{
    int n;
    const ls_named *state = ls_model_state(model, &n);

    return name_list_add(list, "model.", state, n);
}

/* --- the file --- */

static ls_status warn_not_finite(const name_list *list, const char *path)
{
    const char *name;

    LS_TRY(finite_check(list->items, list->n, &name));
    if (name != NULL)
        ls_log(LS_LOG_WARN, "train", "%s: %s has an element that is NaN or infinite", path, name);
    return LS_OK;
}

ls_status load_weights(ls_model *model, const ls_train_flags *flags, progress *p, const char *path)
{
    ls_load_mode mode = LS_LOAD_STRICT;
    ls_checkpoint *file;
    name_list list = {0};
    ls_status st;

    LS_TRY(state_open(flags, path, &file));
    if (ls_checkpoint_meta(file, "world_size") != NULL) {
        mode = LS_LOAD_SUBSET;
        st = weights_of_state(model, &list);
    } else {
        st = weights_list(model, file, &list);
    }
    if (st == LS_OK && flags->skip_mismatched)
        st = load_matching(p, file, &list, mode);
    else if (st == LS_OK)
        st = load_list(file, &list, mode,
                       flags->init != NULL ? "; --skip-mismatched loads the others" : "");
    if (st == LS_OK)
        st = warn_not_finite(&list, path);
    name_list_free(&list);
    ls_checkpoint_close(file);
    return ls_context(st, "loading %s", path);
}
