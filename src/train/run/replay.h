/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - --replay: one process computes the step of a capsule (capsule.h) again, and the steps
 * from its state up to it. The parts of all ranks are shards of this process, which add up in the
 * same tree (ddp/shard_tree.h), so all bits are those of the job. It names the first operator whose
 * result is not finite, with rank, row and sample, and compares the hashes of the capsule. A replay
 * reads nothing but the capsule and the data, and writes no file.
 *
 * Without --replay the functions do nothing.
 */
#ifndef LS_TRAIN_RUN_REPLAY_H
#define LS_TRAIN_RUN_REPLAY_H

#include <lockstep/checkpoint.h>
#include <lockstep/train.h>

#include "base/status.h"

#include <stdbool.h>

typedef struct run_replay {
    ls_checkpoint *file;  /* NULL: no replay */
    ls_checkpoint *state; /* with the state: `file`, or the state file that it names */
    ls_train_flags flags; /* of the run: without files, up to the step, with the parts as shards */
    int64_t step;         /* the last one to compute */
    int ranks;            /* of the job */
    int parts;            /* of its steps */
    int threads;          /* of its ranks */
    bool has_shards;      /* the parts are shards; otherwise one of each rank */
    int64_t gradients;    /* the hash; 0: not known, as the next two */
    int64_t *parameters;  /* of each rank */
    int64_t *batches;     /* of each part */
    bool has_found;       /* a result or gradient that is not finite */
    bool has_bad_state;   /* a tensor of the state is not finite */
    bool is_compared;     /* the last step has been computed */
} run_replay;

/* Opens the capsule of flags->replay; run->flags become those of the replay. LS_EFORMAT: the file
 * is no capsule. LS_EUNSUPPORTED: why the step cannot be computed here. */
LS_MUST_USE ls_status replay_open(ls_run *run);
void replay_close(ls_run *run);
bool replay_is_on(const ls_run *run);

/* Threads of the device; 0: the default. */
int replay_threads(const ls_run *run);
/* LS_EUNSUPPORTED: another device, whose bits differ. */
LS_MUST_USE ls_status replay_check_device(const ls_run *run);
/* LS_EINVAL: more than one process. */
LS_MUST_USE ls_status replay_check_ranks(const ls_run *run);

/* After the state has been loaded: LS_EUNSUPPORTED if it is not that of the capsule. */
LS_MUST_USE ls_status replay_check_state(const ls_run *run);

/* Lets the tape report what is not finite; without --replay as --check-nan says. */
void replay_watch(ls_run *run, ls_tape *tape);

/* After each step. The last one ends the run. LS_EMISMATCH: a hash of the capsule is another. */
LS_MUST_USE ls_status replay_step(ls_run *run);
/* At the end of a run. LS_EMISMATCH: it did not come to the step. */
LS_MUST_USE ls_status replay_end(const ls_run *run);

#endif
