/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tally.h - what training steps are counted by: losses, hits, rows, and where the time goes.
 */
#ifndef LS_TRAIN_TALLY_H
#define LS_TRAIN_TALLY_H

#include <lockstep/autograd.h>
#include <lockstep/comm.h>

#include <stdbool.h>

typedef enum phase {
    PHASE_DATA,          /* waiting for the next batch */
    PHASE_FORWARD,       /* the program's part */
    PHASE_BACKWARD,      /* communication that it hides included */
    PHASE_COMMUNICATION, /* waiting for the other ranks */
    PHASE_OPTIMIZER,
    PHASE_TRAINING, /* how many of them make up a training step */
    PHASE_EVALUATION = PHASE_TRAINING,
    PHASE_SAVE,
    PHASES
} phase;

/* "data", "forward", ... */
const char *phase_name(phase which);

/* Sums; doubles only, as it goes over the wire as LS_F64. */
typedef struct tally {
    double loss; /* times rows */
    double rows;
    double ranked; /* rows whose target's place among the logits is known */
    double top1;
    double top5;
    double bad; /* images left out or replaced */
    double seconds[PHASES];
} tally;

/* The sum over all ranks; comm may be NULL. Collective. */
ls_status tally_sum(ls_comm *comm, const tally *mine, tally *out) LS_MUST_USE;

/* Adds the hits among logits (N, K), float32, and with `with_loss` their cross-entropy. */
ls_status tally_logits(tally *t, const ls_tensor *logits, const ls_tensor *targets,
                       bool with_loss) LS_MUST_USE;

#endif
