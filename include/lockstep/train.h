/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train.h - what every training program shares: common flags, the loop's bookkeeping, progress, metrics, evaluation, save
 * and resume. The loop itself stays in the program:
 *
 *     while (ls_run_next(run, &batch)) {
 *         ls_tensor *logits = net_forward(&net, tape, batch.x);
 *         ls_run_step(run, ls_cross_entropy(tape, logits, batch.y));
 *     }
 *
 * Threads    One thread. SIGTERM and SIGINT become a request to stop, which all ranks obey at the same step.
 */
#ifndef LOCKSTEP_TRAIN_H
#define LOCKSTEP_TRAIN_H

#include <lockstep/data.h>
#include <lockstep/ddp.h>
#include <lockstep/flags.h>
#include <lockstep/optim.h>

LS_BEGIN_DECLS

/* --- flags --- */

#define LS_TRAIN_NODES_MAX 256 /* machines of --gpus */

/* The flags that all programs take; zero-initialise, set the program's own defaults, then parse. */
typedef struct ls_train_flags {
    /* where and with whom */
    int64_t nodes;       /* -n/--nodes */
    const char *gpus;    /* -g/--gpus "8,2": ranks of each node; set: the program spawns its own */
    int64_t node_id;     /* -i/--id */
    const char *backend; /* --backend */
    const char *device;  /* --device cpu|cuda */
    const char *master;  /* --master HOST[:PORT] */
    int64_t local_rank;  /* --local-rank: accepted, as torch.distributed.launch appends it */
    /* what to train with */
    int64_t epochs; /* --epochs */
    int64_t
        start_epoch; /* --start-epoch: begin at this one, counted from 0; --resume knows better */
    int64_t steps;   /* --steps: stop after so many; 0: no limit */
    int64_t batch_size;     /* --batch-size: rows of one rank */
    int64_t accumulate;     /* --accumulate: batches of one optimizer step; 0: 1 */
    const char *data;       /* --data DIR */
    int64_t seed;           /* --seed */
    int no_shuffle;         /* --no-shuffle */
    int drop_last;          /* --drop-last: leave the short last batch of an epoch out */
    int64_t workers;        /* --workers: loader threads */
    const char *bad_images; /* --bad-images fail|skip; NULL: fail */
    int64_t check_replicas; /* --check-replicas K */
    int evaluate;           /* -e/--evaluate: the test set once, no training */
    /* how to learn */
    const char *optimizer; /* --optimizer sgd|adam|adamw; NULL: sgd */
    double lr;             /* --lr; over 0, except with --evaluate */
    double momentum;       /* --momentum */
    int nesterov;          /* --nesterov */
    double beta1;          /* --beta1, --beta2, --eps of Adam; 0: PyTorch's defaults */
    double beta2;
    double eps;
    double weight_decay;       /* --weight-decay */
    const char *schedule;      /* --schedule constant|step|multi-step|cosine; NULL: constant */
    int64_t schedule_steps;    /* --schedule-steps: length of cosine in steps; 0: all --epochs */
    int64_t lr_step_size;      /* --lr-step-size: epochs; 0: a third of all */
    const char *lr_milestones; /* --lr-milestones 30,60: epochs */
    double lr_gamma;           /* --lr-gamma; 0: 0.1 */
    double lr_min;             /* --lr-min: where cosine ends */
    double lr_warmup_epochs;   /* --lr-warmup-epochs: linear, before the schedule */
    double lr_warmup_factor;   /* --lr-warmup-factor: of the first step's rate; 0: 1/3 */
    double label_smoothing;    /* --label-smoothing, of ls_run_classify() */
    double clip_grad_norm;     /* --clip-grad-norm; 0: off */
    int sync_bn;               /* --sync-bn: batch norms share the batches of all ranks */
    const char *compress;      /* --compress none|bf16|fp16: gradients on their way; NULL: none */
    /* what to keep and to show */
    int64_t print_freq;        /* -p/--print-freq: a line every so many steps; 0: by time */
    const char *metrics;       /* --metrics FILE.jsonl */
    const char *metrics_html;  /* --metrics-html FILE.html */
    const char *save;          /* --save FILE.safetensors */
    const char *save_best;     /* --save-best FILE.safetensors; NULL: beside the --save file */
    const char *on_save_error; /* --on-save-error continue|stop; NULL: continue */
    const char *save_dtype;    /* --save-dtype fp32|fp16|bf16: of saved weights; NULL: fp32 */
    const char *init;          /* --init FILE.safetensors */
    int skip_mismatched;       /* --skip-mismatched: --init loads what fits and lists the rest */
    const char *resume;        /* --resume [PATH]; "": the --save file; "auto": if there is one */
    int help;                  /* --help was given: the text has been printed, leave with 0 */
    int per_node[LS_TRAIN_NODES_MAX]; /* --gpus as numbers, by ls_train_local_ranks() */
} ls_train_flags;

/* Parses argv into `common` and the program's own table (may be NULL, 0). An unknown flag is LS_EINVAL
 * and names the nearest known one. --help prints to standard output. Text values point into argv.
 * Without --help it also finds out whether --backend and --device are part of this installation:
 * LS_EUNSUPPORTED names those that are. Loads the backend's library; waits for no other process. */
LS_API LS_MUST_USE ls_status ls_train_parse(const char *program, const char *summary, int argc,
                                            char **argv, ls_train_flags *common, const ls_flag *own,
                                            int n_own);

/* Checks --gpus, --nodes and --id against each other and reads the list into flags->per_node, for
 * ls_spawn(). *n: ranks to spawn on this machine; 0 when the program takes its place from its
 * launcher. LS_EINVAL says what does not fit. LS_EUNSUPPORTED: --backend cannot serve ranks that are
 * started so (ls_backend_check()). */
LS_API LS_MUST_USE ls_status ls_train_local_ranks(ls_train_flags *flags, int *n);

/* --- a run: owns device, model, tape, loaders and optimizer, and frees them --- */

typedef struct ls_run ls_run;

/* Opens the device, an empty model (initial values from --seed) and a tape. On rank 0 of the
 * process's job, which ls_init() has joined before, it also finds out whether the files of
 * --save, --save-best, --metrics and --metrics-html can be written: LS_EIO or LS_ENOTFOUND names
 * flag, path and reason. flags are borrowed until ls_run_close(). */
LS_API LS_MUST_USE ls_status ls_run_open(const ls_train_flags *flags, ls_run **out);

LS_API ls_device *ls_run_device(ls_run *run); /* borrowed, as the next two */
LS_API ls_model *ls_run_model(ls_run *run);
LS_API ls_tape *ls_run_tape(ls_run *run);

/* The set to learn from, and the set to be tested on after each epoch. Both are taken, also on
 * failure. LS_EINVAL: there is one already, or it has no samples. */
LS_API LS_MUST_USE ls_status ls_run_train_on_take(ls_run *run, ls_dataset *set);
LS_API LS_MUST_USE ls_status ls_run_test_on_take(ls_run *run, ls_dataset *set);

/* Trains together with the other ranks of `comm` (borrowed until ls_run_close()): each sees its share of the data,
 * gradients are averaged. Call it when the model has its layers. `opt` may be NULL;
 * --check-replicas, --sync-bn and --compress go before it. LS_EINVAL: plain_mean with --accumulate,
 * whose mean is over the rows of all batches. Collective. */
LS_API LS_MUST_USE ls_status ls_run_distribute(ls_run *run, ls_comm *comm,
                                               const ls_ddp_options *opt);

/* Logits (rows, classes) of the network for x; arg is the program's. */
typedef ls_tensor *(*ls_forward_fn)(void *arg, ls_tape *tape, ls_tensor *x);

/* The last step before the loop: makes the optimizer and schedule of the flags, loads --init or
 * --resume, cuts the metrics file at its step (rank 0), takes SIGTERM and SIGINT. In a job that its
 * launcher has started again, what the job has saved to --save comes before --init and --resume.
 * Files of another run that --save would overwrite are renamed (docs/training.md). `forward` is
 * used for evaluation; NULL when there is no test set. Collective. When rank 0 cannot load the
 * checkpoint, it fails the group with its reason: LS_EPEER on the other ranks. */
LS_API LS_MUST_USE ls_status ls_run_start(ls_run *run, ls_forward_fn forward, void *arg);

/* The next training batch, across epochs; at the end of an epoch evaluates, reports and saves. 0 at the end of the run or
 * after a failure (ls_run_close tells). The tape has been reset and is in training mode; buffers are equal on all ranks.
 * With --evaluate the test set is evaluated once, and there is no batch. */
LS_API int ls_run_next(ls_run *run, ls_batch *batch);

/* The loss of a classifier: cross-entropy with --label-smoothing, mean over the batch. Counts on the way how often the target
 * had the largest logit, or one of the five largest. NULL gives NULL. */
LS_API ls_tensor *ls_run_classify(ls_run *run, ls_tensor *logits, ls_tensor *targets);

/* Backward from the mean loss over the batch (without a training set: over one row), reduction,
 * optimizer step, bookkeeping. With --accumulate N gradients add up, without communication, until
 * the N-th batch or the last one of an epoch, which makes the step: the mean over all their rows.
 * NULL (a failed forward) is allowed: the failure is reported by ls_run_close. */
LS_API void ls_run_step(ls_run *run, ls_tensor *loss);

/* Destroy the program's own tensors on the run's device before: LS_EINVAL when there are some.
 * Restores signals, says the last word (rank 0), frees everything. Returns `st` if that is a failure, else the first failure
 * of the run. NULL gives `st`. */
LS_API LS_MUST_USE ls_status ls_run_close(ls_run *run, ls_status st);

/* Position and results so far, for a program that wants to print its own. Shares are of 1. */
typedef struct ls_run_state {
    int64_t epoch; /* from 0 */
    int64_t step;  /* of the optimizer, in the whole run */
    double loss;   /* of the last report, mean over all ranks' rows */
    double lr;
    double samples_per_s; /* all ranks together, over the current epoch */
    double accuracy;      /* of the last evaluation, -1 before */
    int stopping;         /* a stop has been asked for and agreed */
    double top1;          /* of ls_run_classify() in training, of the last report; -1 before */
    double top5;
    double accuracy5; /* of the last evaluation: the target was among the five largest; -1 before */
    double test_loss; /* of the last evaluation: mean cross-entropy, without smoothing */
    double best_accuracy; /* of all evaluations, those before a resume included; -1 before */
    int64_t best_epoch;   /* after how many epochs that was */
    double
        data_wait; /* share of the last report's time spent waiting for batches, mean over ranks */
    int64_t bad_images;  /* skipped by all ranks (--bad-images skip), up to the last report */
    double seconds_left; /* estimated, evaluations included; -1 before */
} ls_run_state;

LS_API void ls_run_get_state(const ls_run *run, ls_run_state *out);

/* A program's own objection to what it was given: makes the text that ls_train_exit() prints, and gives LS_EINVAL. */
LS_API LS_MUST_USE ls_status ls_train_refuse(const char *format, ...) LS_PRINTF(1, 2);

/* Prints the thread's last error for a program: "name: rank 1: text", on standard error; returns 1 (an exit code), or 0
 * for LS_OK. */
LS_API int ls_train_exit(const char *program, ls_status status);

LS_END_DECLS

#endif
