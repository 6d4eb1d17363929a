/* SPDX-License-Identifier: Apache-2.0 */
/*
 * previous_state.c - keeps files at the --save path that belong to another run: they are renamed,
 * not overwritten. It also finds out whether this job was restarted. resume.c calls it.
 */
#include "train/state/previous_state.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "train/state/state_file.h"

#include <lockstep/checkpoint.h>

#include <lockstep/log.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// NOLINTBEGIN(concurrency-mt-unsafe): no thread changes the variables
const char *previous_state_job(void)
{
    const char *job = getenv("LOCKSTEP_JOB");

    if (job == NULL)
        job = getenv("TORCHELASTIC_RUN_ID");
    return job != NULL ? job : "";
}

static bool exceeds(const char *name, int64_t limit)
{
    const char *text = getenv(name);
    int64_t n;

    return text != NULL && text_parse_int(text, name, 0, INT32_MAX, &n) == LS_OK && n > limit;
}

/* For lockstep run joining nodes are a new generation; torchrun does not count them as a
 * restart. */
bool previous_state_is_restart(void)
{
    if (getenv("LOCKSTEP_JOB") != NULL)
        return exceeds("LOCKSTEP_GENERATION", 1);
    return exceeds("TORCHELASTIC_RESTART_COUNT", 0);
}
// NOLINTEND(concurrency-mt-unsafe)

/* The step of a state file; -1 when the file is missing or is not a state file. */
static int64_t step_of(const char *path)
{
    ls_checkpoint *file;
    const char *text;
    int64_t step = -1;

    if (ls_checkpoint_open(path, &file) != LS_OK)
        return -1;
    text = ls_checkpoint_meta(file, "step");
    if (text == NULL || text_parse_int(text, "step", 0, STEPS_MAX, &step) != LS_OK)
        step = -1;
    ls_checkpoint_close(file);
    return step;
}

/* --- files of another run --- */

enum { N_FILES = 3 }; /* of a run; the state file is the last one */

typedef struct saved_paths {
    char path[N_FILES][STATE_PATH_BYTES]; /* "": none */
} saved_paths;

/* Where a run saves, or with a word: where the files of another one go. */
static ls_status list_paths(const ls_train_flags *f, const char *word, saved_paths *out)
{
    char save[STATE_PATH_BYTES] = "";

    memset(out, 0, sizeof(*out));
    if (state_path_is_set(f->save_best) && word != NULL)
        LS_TRY(state_path(f->save_best, word, out->path[1]));
    else if (state_path_is_set(f->save_best))
        text_format(out->path[1], STATE_PATH_BYTES, "%s", f->save_best);
    if (!state_path_is_set(f->save))
        return LS_OK;
    if (word != NULL)
        LS_TRY(state_path(f->save, word, save));
    else
        text_format(save, sizeof(save), "%s", f->save);
    text_format(out->path[0], STATE_PATH_BYTES, "%s", save);
    if (!state_path_is_set(f->save_best))
        LS_TRY(state_path(save, "best", out->path[1]));
    return state_path(save, "resume", out->path[2]);
}

static bool has_file(const saved_paths *p)
{
    for (int i = 0; i < N_FILES; i++)
        if (p->path[i][0] != 0 && file_exists(p->path[i]))
            return true;
    return false;
}

/* The first set of names under which there is no file. */
static ls_status find_free_paths(const ls_train_flags *f, saved_paths *out)
{
    char word[FILE_EARLIER_WORD_BYTES];
    int i = 1;

    do
        LS_TRY(list_paths(f, file_earlier_word(i++, word), out));
    while (has_file(out));
    return LS_OK;
}

/* The state file is moved last: after a kill in between the next run finds it and moves the
 * rest. */
static ls_status move_all(const saved_paths *from, const saved_paths *to)
{
    for (int i = 0; i < N_FILES; i++)
        if (from->path[i][0] != 0 && rename(from->path[i], to->path[i]) != 0 && errno != ENOENT)
            return ls_fail_errno("cannot rename %s to %s", from->path[i], to->path[i]);
    return LS_OK;
}

static void note(const saved_paths *from, const saved_paths *to, int64_t step)
{
    const int i = from->path[0][0] != 0 ? 0 : 1;

    if (step >= 0)
        ls_log(LS_LOG_WARN, "train",
               "%s of another run, at step %" PRId64
               ", was renamed to %s: --resume %s continues it",
               from->path[i], step, to->path[i], to->path[i]);
    else
        ls_log(LS_LOG_WARN, "train", "%s, which this run has not written, was renamed to %s",
               from->path[i], to->path[i]);
}

/* With its numbers in one allocation: paths are long. */
typedef struct move_paths {
    saved_paths from;
    saved_paths to;
} move_paths;

static ls_status preserve(const ls_train_flags *f, move_paths *m)
{
    int64_t step;

    LS_TRY(list_paths(f, NULL, &m->from));
    if (!has_file(&m->from))
        return LS_OK;
    step = m->from.path[2][0] != 0 ? step_of(m->from.path[2]) : -1;
    LS_TRY(find_free_paths(f, &m->to));
    LS_TRY(move_all(&m->from, &m->to));
    note(&m->from, &m->to, step);
    return LS_OK;
}

ls_status previous_state_preserve(const ls_train_flags *f)
{
    move_paths *m;
    ls_status st;

    if (f->evaluate)
        return LS_OK;
    LS_TRY(LS_NEW(&m, 1, "for the paths of --save"));
    st = preserve(f, m);
    ls_free(m);
    return st;
}

ls_status previous_state_preserve_best(const ls_train_flags *f, const char *best)
{
    char renamed[FILE_EARLIER_BYTES];

    if (f->evaluate || !state_path_is_set(f->save_best) ||
        (best != NULL && text_equal(best, f->save_best)))
        return LS_OK;
    LS_TRY(ls_context(file_keep_earlier(f->save_best, renamed), "--save-best"));
    if (renamed[0] != 0)
        ls_log(LS_LOG_WARN, "train", "%s, which this run has not written, was renamed to %s",
               f->save_best, renamed);
    return LS_OK;
}

ls_status previous_state_is_at(const char *path, const ls_train_flags *f, bool *is_same)
{
    char own[STATE_PATH_BYTES];
    struct stat a;
    struct stat b;

    *is_same = false;
    if (!state_path_is_set(f->save))
        return LS_OK;
    LS_TRY(state_path(f->save, "resume", own));
    *is_same =
        stat(path, &a) == 0 && stat(own, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    return LS_OK;
}
