/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.h - --profile N:M: the operators, phases and operations of this rank in steps N to M, as
 * a trace for Perfetto and `lockstep trace summarize` (docs/training.md).
 *
 * The trace is written when step M has ended, or when the run ends before. Each rank writes its own
 * file. A failure to write is a warning: the run goes on.
 */
#ifndef LS_TRAIN_RUN_PROFILE_H
#define LS_TRAIN_RUN_PROFILE_H

#include <lockstep/train.h>

#include "tensor/op_ceilings.h"
#include "tensor/op_profile.h"

/* A phase of the program, or a step. */
typedef struct profile_span {
    const char *name; /* a constant; NULL: a step */
    int64_t step;
    int64_t start_ns;
    int64_t end_ns;
} profile_span;

/* Zero-initialise. */
typedef struct run_profile {
    int64_t first; /* steps, from 1; 0: no profile */
    int64_t last;
    bool is_on;
    op_profile operators;
    op_ceilings ceilings;
    profile_span *spans;
    int n_spans;
    int spans_capacity;
    int64_t start_ns;
    int64_t step_ns; /* when the current step began */
} run_profile;

/* Reads --profile, and checks that the file of this rank can be written. */
LS_MUST_USE ls_status profile_open(run_profile *p, const ls_train_flags *flags);

/* At the start of training and after each step: begins the profile before step N, which blocks for
 * the measurement of the ceilings, and writes it after step M. */
LS_MUST_USE ls_status profile_step(ls_run *run);

/* Adds a phase while a profile runs. */
void profile_add_phase(run_profile *p, const char *name, int64_t start_ns, int64_t end_ns);

/* At the end of a run: writes an incomplete profile, frees all. Before the device is closed. */
void profile_close(ls_run *run);

#endif
