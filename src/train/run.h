/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h - the inside of an ls_run, and what its files offer each other.
 */
#ifndef LS_TRAIN_RUN_H
#define LS_TRAIN_RUN_H

#include <lockstep/checkpoint.h>
#include <lockstep/train.h>

#include "base/status.h"
#include "base/text.h"

#include <signal.h>
#include <stdbool.h>

/* --- progress.c: what a person sees, on rank 0 --- */

typedef struct progress {
    bool speaks;      /* rank 0 */
    bool is_terminal; /* a bar that redraws itself instead of a line every few seconds */
    bool bar_shown;
    int64_t last_ms; /* of the last line or redraw */
} progress;

void progress_init(progress *p, int rank);
/* Redraws the bar or, every few seconds, writes a line. */
void progress_step(progress *p, const ls_run_state *state, int64_t epochs, int64_t at,
                   int64_t epoch_steps);
/* A whole line, the bar out of the way first. Nothing on ranks that do not speak. */
void progress_line(progress *p, const char *format, ...) LS_PRINTF(2, 3);
/* All of `text` to a descriptor; what cannot be written is lost. */
void progress_write(int fd, const char *text);

/* --- the run --- */

typedef struct split {
    ls_dataset *set;
    ls_sampler *sampler;
    ls_loader *loader;
} split;

/* Where a run stands; all a resumed run needs beside tensors. Goes over the wire as LS_I64. */
typedef struct run_position {
    int64_t epoch;
    int64_t batch; /* of this epoch: the next one to train on */
    int64_t step;
} run_position;

struct ls_run {
    const ls_train_flags *flags;
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    split train;
    split test;
    ls_comm *comm; /* NULL: one process */
    ls_ddp *ddp;
    ls_optimizer *optimizer;
    ls_schedule schedule;
    ls_forward_fn forward;
    void *forward_arg;

    run_position at;
    int64_t epoch_steps; /* the most of any rank */
    bool in_epoch;
    bool started;
    bool finished;
    int64_t rows;    /* of the batch under way */
    int64_t mark_ns; /* where the present phase of the step began */
    ls_status failure;
    char failure_text[LS_ERROR_BYTES];

    ls_run_state state;
    progress progress;
    int metrics_fd;
    int64_t start_ms;
    int64_t epoch_start_ns;
    double epoch_samples; /* of all ranks in this epoch */
    double loss_sum;      /* loss * rows of this rank since the last report */
    double loss_rows;

    struct sigaction old_term;
    struct sigaction old_int;
};

int run_rank(const ls_run *run);
int run_size(const ls_run *run);

/* metrics.c: one JSON object a line, on rank 0. accuracy < 0 leaves that member out. */
LS_MUST_USE ls_status metrics_open(ls_run *run);
LS_MUST_USE ls_status metrics_write(ls_run *run, double accuracy);
void metrics_close(ls_run *run);

/* evaluate.c: accuracy over the test set, every sample once. Collective. */
LS_MUST_USE ls_status evaluate(ls_run *run);

/* resume.c */
/* Rank 0 writes the weights to --save and everything a resumed run needs to the file beside it. */
LS_MUST_USE ls_status resume_save(ls_run *run);
/* --init or --resume: rank 0 reads, all ranks get it. Collective. */
LS_MUST_USE ls_status resume_load(ls_run *run);

#endif
