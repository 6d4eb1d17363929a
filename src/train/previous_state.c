/* SPDX-License-Identifier: Apache-2.0 */
/*
 * previous_state.c - keeps files at the --save path that belong to another run: they are renamed,
 * not overwritten. It also finds out whether this job was restarted. resume.c calls it.
 */
#include "train/previous_state.h"

#include "base/text.h"
#include "train/state_file.h"

#include <lockstep/checkpoint.h>

#include <lockstep/log.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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

static ls_status move(const char *from, const char *to)
{
    if (rename(from, to) != 0 && errno != ENOENT)
        return ls_fail_errno("cannot rename %s to %s", from, to);
    return LS_OK;
}

/* Moves NAME.WORD.safetensors to NAME.earlier.WORD.safetensors. */
static ls_status move_related(const char *save, const char *earlier, const char *word)
{
    char from[STATE_PATH_BYTES];
    char to[STATE_PATH_BYTES];

    LS_TRY(state_path(save, word, from));
    LS_TRY(state_path(earlier, word, to));
    return move(from, to);
}

/* The state file is moved last: after a kill in between the next run finds it and moves the
 * rest. */
static ls_status move_all(const ls_train_flags *f, const char *earlier)
{
    char best[STATE_PATH_BYTES];

    LS_TRY(move(f->save, earlier));
    if (state_path_is_set(f->save_best)) {
        LS_TRY(state_path(f->save_best, "earlier", best));
        LS_TRY(move(f->save_best, best));
    } else {
        LS_TRY(move_related(f->save, earlier, "best"));
    }
    return move_related(f->save, earlier, "resume");
}

ls_status previous_state_preserve(const ls_train_flags *f, int64_t own_step)
{
    char earlier[STATE_PATH_BYTES];
    char path[STATE_PATH_BYTES];
    int64_t step;
    int64_t earlier_step;

    if (!state_path_is_set(f->save) || f->evaluate)
        return LS_OK;
    LS_TRY(state_path(f->save, "resume", path));
    step = step_of(path);
    if (step <= own_step)
        return LS_OK;
    LS_TRY(state_path(f->save, "earlier", earlier));
    LS_TRY(state_path(earlier, "resume", path));
    earlier_step = step_of(path);
    if (earlier_step > step) {
        ls_log(LS_LOG_WARN, "train",
               "%s of another run, at step %" PRId64 ", will be overwritten; %s, at step %" PRId64
               ", stays",
               f->save, step, earlier, earlier_step);
        return LS_OK;
    }
    LS_TRY(move_all(f, earlier));
    ls_log(LS_LOG_WARN, "train",
           "%s of another run, at step %" PRId64 ", was renamed to %s: --resume %s continues it",
           f->save, step, earlier, earlier);
    return LS_OK;
}
