/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capsule.h - a step capsule: a file with which `lockstep replay` computes a step of all ranks
 * again. Rank 0 writes it when the loss or weights to save become NaN or infinite, when replicas or
 * the gradients of an audit differ, when --check-nan ends the run, and after the step of
 * --capsule-step.
 *
 * It has the state of a run before some step (a state file's tensors and metadata), the number of
 * the step to compute, and what was found in it: hashes of the gradients, of the parameters of each
 * rank and of the batch of each part, and how the program was started. Samples, augmentation and
 * random numbers are functions of the seed, the position and the part (partition.h), so the steps
 * from that state on are computed again, without more to record.
 *
 * Rank 0 holds a copy of a state, which it takes behind a report whose loss was finite, so it is
 * older than any loss that is not. With --check-replicas a copy counts when the ranks have compared
 * it. It takes the next one when its time is at most 1/200 of the time since the last one. A state
 * of more than CAPSULE_STATE_MOST is not held: the capsule names the state file of --save instead.
 */
#ifndef LS_TRAIN_RUN_CAPSULE_H
#define LS_TRAIN_RUN_CAPSULE_H

#include "train/run/save.h"
#include "train/state/state_copy.h"

#define CAPSULE_STATE_MOST ((size_t)1 << 30) /* bytes of a state that is held */

enum { CAPSULE_NOTE_BYTES = 384 };

/* Keys of the metadata besides those of a state file. */
#define CAPSULE_VERSION   "capsule" /* its value is CAPSULE_VERSION_1 */
#define CAPSULE_VERSION_1 "1"
#define CAPSULE_STEP      "capsule_step"
#define CAPSULE_RANKS     "capsule_ranks" /* in the step; with shards the state may be of others */
#define CAPSULE_REASON    "capsule_reason"
#define CAPSULE_LIBRARY   "capsule_lockstep"
#define CAPSULE_THREADS   "capsule_threads"
/* Where the state is not in the file: its path, and a hash of its parameters. */
#define CAPSULE_STATE      "capsule_state"
#define CAPSULE_STATE_HASH "capsule_state_hash"
/* Items: hashes as bytes of int64_t, 0 where it is not known. */
#define CAPSULE_GRADIENTS  "capsule.gradients"
#define CAPSULE_PARAMETERS "capsule.parameters" /* of each rank */
#define CAPSULE_BATCHES    "capsule.batches"    /* of each part */

typedef struct held_state {
    state_copy state;
    save_meta meta;
    int64_t step; /* steps that it has completed */
} held_state;

typedef struct run_capsule {
    held_state held[2]; /* the current one, and one that waits for a comparison of replicas */
    int current;
    size_t state_most;  /* CAPSULE_STATE_MOST, except in tests */
    int64_t saved_step; /* of the state file, for a state that is too large to hold; 0: none */
    int64_t saved_hash; /* of its parameters */
    bool is_off;        /* the state is too large, or there is no memory for it */
    int64_t cost_ns;    /* of the last copy */
    int64_t held_ns;    /* when it was taken */
    char note[CAPSULE_NOTE_BYTES]; /* on all ranks: which capsule there is, "; ..." or "" */
} run_capsule;

/* Before each step: holds the state, if that is due. */
LS_MUST_USE ls_status capsule_hold(ls_run *run);
/* After each step: the replicas were equal at its start, and so is what was held there. */
void capsule_confirm(ls_run *run);
/* After each save of the state: where it is too large to hold, the saved one is the older state. */
void capsule_saved(ls_run *run);
/* The held state is not of this group of ranks any more. */
void capsule_drop(ls_run *run);
void capsule_close(ls_run *run);

/* Leaves the capsule of the last completed step; run->capsule.note says where, or why not. A file
 * that cannot be written fails nothing. Collective. */
LS_MUST_USE ls_status capsule_leave(ls_run *run, const char *reason);
/* The same for --capsule-step; prints the note. */
LS_MUST_USE ls_status capsule_leave_asked(ls_run *run);
/* The same of the step under way, when its gradients are reduced and the optimizer has not run;
 * they are clipped. */
LS_MUST_USE ls_status capsule_leave_begun(ls_run *run, const char *reason);
/* The same on rank 0 alone, without hashes of the other ranks. Not collective. */
void capsule_leave_alone(ls_run *run, const char *reason);
/* A later message does not name the capsule there is. */
void capsule_forget_note(ls_run *run);
/* After a failure (run->failure_text) that a capsule explains: leaves it, and appends its note to
 * the text. Collective if replicas differ; otherwise on rank 0 only. */
void capsule_leave_failed(ls_run *run);

/* --- hashes, also of a step that is computed again --- */

/* Of all gradients, as the optimizer has used them. */
LS_MUST_USE ls_status capsule_hash_gradients(const ls_run *run, int64_t *out);
/* Of the parameters of this rank, and of the last batch of a part of it; 0: there is none. */
LS_MUST_USE ls_status capsule_hash_parameters(const ls_run *run, int64_t *out);
LS_MUST_USE ls_status capsule_hash_batch(const ls_run *run, int part, int64_t *out);

#endif
