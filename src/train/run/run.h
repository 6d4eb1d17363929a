/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h - the members of an ls_run, for the files of this folder. Each part has its own header.
 *
 * train/run/: a run and its steps, and what works on all of it: saving, recovery, reports. Programs
 * call it by <lockstep/train.h>.
 */
#ifndef LS_TRAIN_RUN_RUN_H
#define LS_TRAIN_RUN_RUN_H

#include <lockstep/train.h>

#include "train/partition.h"
#include "train/losses.h"
#include "train/output/metrics.h"
#include "train/output/progress.h"
#include "train/run/capsule.h"
#include "train/run/hyperparameters.h"
#include "train/run/profile.h"
#include "train/run/recover.h"
#include "train/run/replay.h"
#include "train/run/report.h"
#include "train/run/run_audit.h"
#include "train/run/run_balance.h"
#include "train/run/run_local.h"
#include "train/run/run_power.h"
#include "train/run/save.h"
#include "train/run/tensorboard.h"
#include "train/stop_signal.h"
#include "train/values.h"

/* What a part of this rank reads of a data set. */
typedef struct split_part {
    ls_sampler *sampler;
    ls_loader *loader;
    ls_batch batch; /* of training: the current one */
} split_part;

struct split {
    ls_dataset *set;
    const int64_t *lengths; /* of its samples, for buckets; NULL: no buckets */
    split_part *parts;      /* of this rank (partition.h); NULL: not open */
    int n_parts;
};

enum { RUN_GROUPS_MAX = 16 };

/* A group of parameters that the program has asked for. */
typedef struct run_group {
    const char *pattern; /* borrowed */
    ls_group_options options;
} run_group;

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): by meaning
struct ls_run {
    const ls_train_flags *flags;
    const ls_train_program *program; /* NULL: not of ls_train_main() */
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    split train;
    split test;
    ls_comm *comm; /* NULL: one process */
    partition partition;
    int part; /* of this rank, from 0: that of the current batch */
    ls_ddp *ddp;
    ls_ddp_hook hook;          /* of ls_run_distribute() */
    ls_local_sgd *local;       /* with --sync-every, instead of a ddp of all ranks */
    ls_ddp_options island_ddp; /* of a ddp of the ranks of an island */
    int64_t stop_at;           /* with local: all ranks have agreed to stop there; 0: not yet */
    bool collects_states; /* rank 0 writes a state, with --sync-every or PowerSGD of all ranks */
    ls_optimizer *optimizer;
    ls_grad_scaler *scaler; /* NULL: gradients are not scaled */
    bool has_scaled_step;   /* the scaler's step has no update yet */
    lr_schedule schedule;
    ls_lr_fn lr; /* instead of `schedule`; NULL: none */
    void *lr_arg;
    run_group groups[RUN_GROUPS_MAX];
    int n_groups;
    const ls_named *own; /* state of the program */
    int n_own;
    ls_forward_fn forward;
    void *forward_arg;
    ls_evaluate_fn evaluate; /* NULL: as a classifier, by `forward` */
    void *evaluate_arg;
    bool is_testing; /* values are added to the evaluation */

    run_position at;
    int64_t epoch_steps;    /* of a whole epoch, the maximum over ranks */
    int64_t epoch_batches;  /* of this epoch after at.skip, the maximum over ranks */
    int64_t sampler_skip;   /* at.skip when the sampler was created */
    int64_t bucket_rows;    /* of the training set's sampler; 0: no buckets */
    int64_t all_steps;      /* of --epochs */
    int64_t steps_done;     /* by this process, and by the ranks that it joined (recover.c) */
    bool is_resumed;        /* from a state file */
    bool continues_save;    /* that of --save: rank 0 */
    bool has_saved_islands; /* of a run with --sync-every, in the state file */
    bool is_in_epoch;
    bool is_started;
    bool is_finished;
    int64_t rows;       /* of the current batch */
    int64_t weight;     /* of the current batch: its rows, or that of ls_run_weigh() */
    bool has_weight;    /* ls_run_weigh() was called for the current batch */
    bool uses_weights;  /* every batch has ls_run_weigh() */
    int64_t n_added;    /* batches whose gradients have been accumulated for the current step */
    double step_weight; /* of the batches so far; in one process with --accumulate only */
    int64_t step_rows;  /* of this rank in the current step, all batches */
    int64_t step_ns;    /* when the step began */
    int64_t n_healed;   /* ranks, by --heal */
    ls_status failure;
    char failure_text[LS_ERROR_BYTES];

    ls_run_state state;
    int64_t start_ms;
    int64_t epoch_start_ns;
    double epoch_samples; /* of all ranks in this epoch, up to the last report */
    double train_s;       /* in training steps of this process */
    double evaluate_s;    /* of the last evaluation */
    double backward_s;    /* of the ls_ddp's statistics, at the last step; the same for wait_s */
    double wait_s;

    report report;
    losses losses;
    run_values values;
    progress progress;
    history history; /* rank 0 only */
    metrics_file metrics;
    tensorboard tensorboard; /* rank 0 only */
    run_profile profile;
    saver saver; /* rank 0 only */
    stop_signal signals;
    run_recovery recovery;
    run_balance balance;
    run_audit audit;
    run_capsule capsule;
    run_replay replay;
};

int run_rank(const ls_run *run);
int run_size(const ls_run *run);

/* --- loop.c --- */

/* The next batch of `part`, whose number among all is `number`, for run->tape. */
LS_MUST_USE ls_status run_load_batch(ls_run *run, split_part *part, int number, ls_batch *batch);

/* Stores the first failure for ls_run_close() and aborts the group. */
void run_fail(ls_run *run, ls_status st);

/* --- run.c --- */

/* Batches of one part in an optimizer step. */
int64_t run_accumulate(const ls_run *run);
/* Steps since the first epoch, counted with this run's number of ranks and batch size: run->at.step
 * unless one of them has changed. */
int64_t run_schedule_step(const ls_run *run);
/* Steps to the end of --epochs, or to --steps where that comes first. */
int64_t run_steps_left(const ls_run *run);
/* The rest of the epoch begins behind the samples of at->batch batches of `rows` rows that `ranks`
 * ranks (or shards) have trained on; the last batches of an epoch may be filled up. */
void run_skip_trained(const ls_run *run, int64_t ranks, int64_t rows, run_position *at);
/* Divides the rest of the epoch among the ranks, after at.skip has changed. Collective. */
LS_MUST_USE ls_status run_divide_epoch(ls_run *run);
/* The parts of this rank in the present partition; shards 0: one part a rank. */
partition run_find_partition(const ls_run *run, int shards);
/* Opens what reads part `number` of all; threads: of ls_loader_options. */
LS_MUST_USE ls_status run_open_part(ls_run *run, const split *s, bool training, int number,
                                    int threads, split_part *out);
void run_close_part(split_part *p);
/* Opens loaders and sums for a new group of ranks, which has changed run->partition. Collective. */
LS_MUST_USE ls_status run_divide_again(ls_run *run);
/* Changes run->partition between two steps. Loaders of shards that this rank keeps stay open, with
 * the batches that they have read ahead. Collective. */
LS_MUST_USE ls_status run_change_partition(ls_run *run, const partition *to);
/* The rows of each rank's batches become those of ddp_rows(), between two steps. Loaders are opened
 * again: batches that they have read ahead are read again. Not collective. */
LS_MUST_USE ls_status run_change_rows(ls_run *run);
/* The rows of a full batch of part `number` of all. */
int64_t run_batch_rows(const ls_run *run, int number);
/* Opens the files that rank 0 writes, at the step of run->at. One that cannot be opened is like one
 * that cannot be saved. */
LS_MUST_USE ls_status run_open_files(ls_run *run);
/* The same of a rank that has opened them, after a return to an earlier line. */
LS_MUST_USE ls_status run_open_again(ls_run *run);
/* Sets what this rank is doing: an exit before it has ended is reported as a failure. NULL:
 * nothing. */
void run_set_activity(ls_run *run, const char *text);

/* The logits in float32, for losses and counts. NULL: the tape has failed. */
ls_tensor *run_read_logits(ls_run *run, ls_tensor *logits);

/* Updates the scaler after its last step: as late as possible, because it may wait for the device.
 * Before backward, and before the state is saved. */
LS_MUST_USE ls_status run_update_scaler(ls_run *run);

/* --- run_finite.c --- */

/* After each batch: the sum of the losses since the last report. Notes the first step in which it
 * is not finite; on stream devices, which are not waited for, nothing. */
void finite_loss(ls_run *run, double sum);

/* Counts the loss of a report: LS_EFORMAT when so many in a row are not finite. The same on all
 * ranks. With such a loss it is collective. */
LS_MUST_USE ls_status finite_report(ls_run *run, double loss);

/* At the end of a run: LS_EFORMAT when the loss of the last report is not finite. */
LS_MUST_USE ls_status finite_end(const ls_run *run);

/* Whether weights and optimizer may replace the saved ones; LS_EFORMAT names what is not finite. On
 * rank 0. */
LS_MUST_USE ls_status finite_to_save(ls_run *run);

/* --- evaluate.c, summary.c, resume.c --- */

/* Evaluates the test set, every sample once. Collective. */
LS_MUST_USE ls_status evaluate(ls_run *run);

/* Prints the last lines of a run, on rank 0. */
void summary_print(ls_run *run);

/* Loads what the run starts from: a saved state, weights, or nothing. Rank 0 reads the file and
 * broadcasts it. Files of another run at the --save path are renamed. Collective. */
LS_MUST_USE ls_status resume_load(ls_run *run);

#endif
