/* SPDX-License-Identifier: Apache-2.0 */
/*
 * earlier.c - what stands at the --save path when a run starts: the state of this job before its
 * restart, or the files of another run, which are renamed and not overwritten. resume.c calls it.
 */
#include "train/run.h"

#include <lockstep/log.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PATH_BYTES = 4096 };

/* --- the job --- */

// NOLINTBEGIN(concurrency-mt-unsafe): no thread sets the variables
const char *earlier_job(void)
{
    const char *job = getenv("LOCKSTEP_JOB");

    if (job == NULL)
        job = getenv("TORCHELASTIC_RUN_ID");
    return job != NULL ? job : "";
}

static bool is_over(const char *name, int64_t least)
{
    const char *text = getenv(name);
    int64_t n;

    return text != NULL && text_parse_int(text, name, 0, INT32_MAX, &n) == LS_OK && n > least;
}

/* A join of nodes is a new generation of lockstep run, but no restart in torchrun's count. */
bool earlier_is_restart(void)
{
    if (getenv("LOCKSTEP_JOB") != NULL)
        return is_over("LOCKSTEP_GENERATION", 1);
    return is_over("TORCHELASTIC_RESTART_COUNT", 0);
}
// NOLINTEND(concurrency-mt-unsafe)

/* --- files of another run --- */

/* The step of a resume file; -1: there is no such file, or it is no resume file. */
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

/* NAME.WORD.safetensors to NAME.earlier.WORD.safetensors. */
static ls_status move_kin(const char *save, const char *kept, const char *word)
{
    char from[PATH_BYTES];
    char to[PATH_BYTES];

    LS_TRY(save_path_beside(save, word, from, sizeof(from)));
    LS_TRY(save_path_beside(kept, word, to, sizeof(to)));
    return move(from, to);
}

/* The state is the last: a run that is killed before leaves it, and the next one finds it. */
static ls_status move_all(const ls_train_flags *f, const char *kept)
{
    char best[PATH_BYTES];

    LS_TRY(move(f->save, kept));
    if (save_is_named(f->save_best)) {
        LS_TRY(save_path_beside(f->save_best, "earlier", best, sizeof(best)));
        LS_TRY(move(f->save_best, best));
    } else {
        LS_TRY(move_kin(f->save, kept, "best"));
    }
    return move_kin(f->save, kept, "resume");
}

ls_status earlier_keep(const ls_run *run)
{
    const ls_train_flags *f = run->flags;
    char kept[PATH_BYTES];
    char path[PATH_BYTES];
    int64_t step;
    int64_t kept_step;

    if (!save_is_named(f->save) || f->evaluate)
        return LS_OK;
    LS_TRY(save_path_beside(f->save, "resume", path, sizeof(path)));
    step = step_of(path);
    if (step <= run->at.step)
        return LS_OK;
    LS_TRY(save_path_beside(f->save, "earlier", kept, sizeof(kept)));
    LS_TRY(save_path_beside(kept, "resume", path, sizeof(path)));
    kept_step = step_of(path);
    if (kept_step > step) {
        ls_log(LS_LOG_WARN, "train",
               "%s of another run, at step %" PRId64 ", will be overwritten; %s, at step %" PRId64
               ", is kept",
               f->save, step, kept, kept_step);
        return LS_OK;
    }
    LS_TRY(move_all(f, kept));
    ls_log(LS_LOG_WARN, "train",
           "%s of another run, at step %" PRId64 ", is now %s: --resume %s goes on from it",
           f->save, step, kept, kept);
    return LS_OK;
}
