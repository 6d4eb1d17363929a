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
#include "train/history.h"
#include "train/tally.h"

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
/* Redraws the bar or writes a line, when it is time for one. */
void progress_step(ls_run *run);
/* The bar and what is beside it, as much as fits `columns` (always the epoch). Appends to *out. */
void progress_bar_text(const ls_run *run, int columns, text_buf *out);
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
    int64_t skip;  /* samples of this epoch's order that another number of ranks has trained on */
    int64_t batch; /* of what is left of the epoch: the next one to train on */
    int64_t step;
    int64_t best_epoch;
} run_position;

enum { MILESTONES_MAX = 64 };

/* The most steps of a run: numbers up to it are exact as doubles, and the sum of two fits. */
#define STEPS_MAX (INT64_C(1) << 53)

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
    int64_t milestones[MILESTONES_MAX]; /* of the schedule, in steps */
    ls_forward_fn forward;
    void *forward_arg;

    run_position at;
    int64_t epoch_steps;   /* of a whole epoch, the most of any rank */
    int64_t epoch_batches; /* of this epoch behind at.skip, the most of any rank */
    int64_t dealt_from;    /* at.skip when the training set was dealt to the ranks */
    int64_t all_steps;     /* of --epochs */
    int64_t steps_done;    /* by this process */
    bool resumed;          /* from a whole state */
    bool in_epoch;
    bool started;
    bool finished;
    int64_t rows;      /* of the batch under way */
    int64_t n_added;   /* batches whose gradients wait for the step under way */
    int64_t step_rows; /* of this rank in that step, all batches */
    int64_t mark_ns;   /* where the present phase of the step began */
    int64_t step_ns;   /* where the step began */
    ls_status failure;
    char failure_text[LS_ERROR_BYTES];

    ls_run_state state;
    progress progress;
    int64_t start_ms;
    int64_t epoch_start_ns;
    double epoch_samples; /* of all ranks in this epoch */
    double train_s;       /* spent in training steps by this process */
    double evaluate_s;    /* the last evaluation took */
    double tested;        /* samples of the last evaluation, of all ranks */
    double backward_s;    /* of the ddp's statistics, at the last step */
    double wait_s;        /* the same */
    tally window;         /* of this rank since the last report */
    tally epoch_sums;     /* of all ranks in this epoch, up to the last report */
    int64_t bad_reported; /* by all ranks before the window */
    uint64_t bad_seen[2]; /* broken images of this rank that have been counted: training, test */

    /* rank 0 only */
    history history;
    int metrics_fd;
    int64_t metrics_bytes; /* of whole lines */
    bool metrics_failed;   /* the last line could not be written, which has been reported */
    int64_t saved_step;    /* of what stands on disk; -1: nothing that this process has written */
    bool unsaved;          /* the last save has failed */
    char unsaved_text[LS_ERROR_BYTES];

    struct sigaction old_term;
    struct sigaction old_int;
    struct sigaction old_xfsz;
};

int run_rank(const ls_run *run);
int run_size(const ls_run *run);

/* --- run.c --- */

/* Batches of one optimizer step. */
int64_t run_accumulate(const ls_run *run);
/* Steps from the first epoch's start to here, counted with this run's number of ranks and batch:
 * run->at.step where neither has changed. */
int64_t run_schedule_step(const ls_run *run);
/* Steps to the end of --epochs, or to --steps where that comes first. */
int64_t run_steps_left(const ls_run *run);
/* Deals what is left of the epoch to the ranks, where at.skip has changed. Collective. */
LS_MUST_USE ls_status run_deal_epoch(ls_run *run);
/* Notes what this rank must not exit in the middle of; NULL: nothing. */
void run_set_activity(ls_run *run, const char *text);
/* SIGTERM or SIGINT has come. */
bool run_stop_signalled(void);

/* --- recipe.c: how to learn, from the flags --- */

/* LS_EINVAL names a flag whose value is not one of its words, before anything is opened. */
LS_MUST_USE ls_status recipe_check(const ls_train_flags *flags);
/* What ranks do together: SyncBatchNorm, 16 bits on the wire. */
void recipe_ask_ddp(const ls_train_flags *flags, ls_ddp_options *opt);
/* run->all_steps, and the step that --start-epoch begins at. LS_EINVAL: a flag stands for more than
 * STEPS_MAX steps. */
LS_MUST_USE ls_status recipe_count_steps(ls_run *run);
LS_MUST_USE ls_status recipe_make_schedule(ls_run *run);
LS_MUST_USE ls_status recipe_make_optimizer(ls_run *run);

/* --- report.c: what all ranks have seen since the last report --- */

/* Counts a phase of the step that has just ended, and begins the next one. */
void report_phase(ls_run *run, phase which);
/* After each step: a report every so many steps, and a first look sooner. Collective. */
LS_MUST_USE ls_status report_step(ls_run *run);
/* Broken images that a loader has met since the last call; `seen` keeps the count. */
double report_bad_images(const ls_loader *loader, uint64_t *seen);
/* Adds up what is left in the window. Collective. */
LS_MUST_USE ls_status report_rest(ls_run *run, history_point *seen);

/* --- metrics.c: one JSON object a line, on rank 0 --- */

/* Opens the file and leaves what it holds; LS_EIO names the flag, the path and the reason. */
LS_MUST_USE ls_status metrics_open(ls_run *run);
/* Before the first line: empties the file; for a resumed run, removes the lines behind its step. */
LS_MUST_USE ls_status metrics_begin(ls_run *run);
/* `seen`: since the last line; `tested`: with what the evaluation has given. */
LS_MUST_USE ls_status metrics_write(ls_run *run, const history_point *seen, bool tested);
void metrics_close(ls_run *run);

/* --- page.c: --metrics-html, rank 0 --- */

/* Writes the page anew from the history; nothing without the flag. */
LS_MUST_USE ls_status page_write(ls_run *run);

/* --- evaluate.c --- */

/* The test set, every sample once. Collective. */
LS_MUST_USE ls_status evaluate(ls_run *run);

/* --- summary.c: the last lines of a run, on rank 0 --- */
void summary_print(ls_run *run);

/* --- save.c --- */

/* Rank 0 writes the weights to --save, those of the best evaluation to --save-best, and everything a resumed run needs to the
 * file beside the former; and the page. What cannot be written is said, and ends the run with --on-save-error stop only. */
LS_MUST_USE ls_status save_all(ls_run *run, bool is_best);
/* Whether the files of the flags can be written; names the flag, the path and the reason. */
LS_MUST_USE ls_status save_probe(const ls_train_flags *flags);
/* The page of --metrics-html, anew, on rank 0. */
LS_MUST_USE ls_status save_page(ls_run *run);
/* What to do with a failure to write: LS_OK when the run goes on. */
LS_MUST_USE ls_status save_failed(ls_run *run, ls_status st, const char *what);
/* False for NULL and for "", which takes a program's default away. */
bool save_is_named(const char *path);
/* NAME.safetensors -> NAME.WORD.safetensors. */
LS_MUST_USE ls_status save_path_beside(const char *path, const char *word, char *out, size_t n);

/* Tensors and bytes of several lists under longer names. Zero-initialise. */
typedef struct name_list {
    ls_named *items;
    int n;
    int room;
} name_list;

LS_MUST_USE ls_status name_list_add(name_list *list, const char *prefix, const ls_named *from,
                                    int n);
void name_list_free(name_list *list);
enum { SAVE_SETTINGS_MOST = 8, SAVE_SETTING_BYTES = 512, SAVE_SUMS = 5 };

/* A setting that decides the order of samples and what a rank sees of them. */
typedef struct save_setting {
    const char *key;                /* in the metadata of the resume file */
    const char *flag;               /* for a message */
    char value[SAVE_SETTING_BYTES]; /* printable */
} save_setting;

/* The settings of this run; gives their number, at most SAVE_SETTINGS_MOST. */
int save_list_settings(const ls_run *run, save_setting *list);

/* A number of the epoch under way, under its name in the metadata. */
typedef struct save_sum {
    const char *key;
    double *value;
} save_sum;

void save_list_sums(tally *sums, save_sum list[SAVE_SUMS]);

/* Model and optimizer, under the names of the resume file. */
LS_MUST_USE ls_status save_state_list(ls_run *run, name_list *list);

/* --- earlier.c: what another process has saved to the --save path --- */

/* The launcher's name of this job, the same after a restart; "": there is none. */
const char *earlier_job(void);
/* The launcher has started this job's ranks again, after a failure or for more nodes. */
bool earlier_is_restart(void);
/* Renames the files of a run that this run does not go on from, and that are of a later step than
 * its start: NAME becomes NAME.earlier. Of two such runs the one of the later step is kept.
 * On rank 0. */
LS_MUST_USE ls_status earlier_keep(const ls_run *run);

/* --- resume.c --- */

/* What the run starts from: a saved state, weights, or nothing. Rank 0 finds it and reads it, all
 * ranks get it. Files of another run that --save would replace are kept. Collective. */
LS_MUST_USE ls_status resume_load(ls_run *run);

#endif
