/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_sums.h - what a rank counts during training steps and evaluations: losses, hits, rows, and
 * seconds of each phase. The sums of all ranks make a report.
 */
#ifndef LS_TRAIN_RANK_SUMS_H
#define LS_TRAIN_RANK_SUMS_H

#include <lockstep/autograd.h>
#include <lockstep/comm.h>

#include <stdbool.h>

typedef enum phase {
    PHASE_DATA,          /* waiting for the next batch */
    PHASE_FORWARD,       /* the program's part */
    PHASE_BACKWARD,      /* with the communication that it overlaps */
    PHASE_COMMUNICATION, /* waiting for other ranks */
    PHASE_OPTIMIZER,
    PHASE_TRAINING, /* number of phases of a training step */
    PHASE_EVALUATION = PHASE_TRAINING,
    PHASE_SAVE,
    PHASES
} phase;

/* "data", "forward", ... */
const char *phase_name(phase which);

enum { VALUES_MOST = 16 };

/* Doubles only: an all-reduce adds them up as LS_F64. */
typedef struct rank_sums {
    double loss; /* times rows, or the weights of batches (ls_run_weigh) */
    double rows; /* or the sum of these weights */
    double samples;
    double ranked; /* rows that top1 and top5 are counted over */
    double top1;
    double top5;
    double bad;         /* broken images */
    double needs_ranks; /* above 0: the times of each rank are written */
    double seconds[PHASES];
    double values[VALUES_MOST]; /* of the program (values.h), times their weights */
    double weights[VALUES_MOST];
} rank_sums;

/* The sum over all ranks; comm may be NULL. Collective. */
ls_status rank_sums_reduce(ls_comm *comm, const rank_sums *own, rank_sums *out) LS_MUST_USE;

/* Adds the hits among logits (N, K), float32, and with `with_loss` their cross-entropy. On a stream
 * device nothing is waited for: they are added to *pending, which is created if it is NULL and is
 * the caller's, until rank_sums_read(). */
ls_status rank_sums_add_logits(rank_sums *sums, ls_tensor **pending, const ls_tensor *logits,
                               const ls_tensor *targets, bool with_loss) LS_MUST_USE;

/* Adds what is pending, sets it to 0, and returns failures of the operators that counted it. NULL:
 * nothing is pending. */
ls_status rank_sums_read(rank_sums *sums, ls_tensor *pending, bool with_loss) LS_MUST_USE;

#endif
