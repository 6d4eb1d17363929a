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
    int64_t epochs;         /* --epochs */
    int64_t steps;          /* --steps: stop after so many; 0: no limit */
    int64_t batch_size;     /* --batch-size: rows of one rank */
    double lr;              /* --lr */
    double momentum;        /* --momentum */
    double weight_decay;    /* --weight-decay */
    const char *schedule;   /* --schedule constant|step|cosine */
    const char *data;       /* --data DIR */
    int64_t seed;           /* --seed */
    int no_shuffle;         /* --no-shuffle */
    int64_t workers;        /* --workers: loader threads */
    int64_t check_replicas; /* --check-replicas K */
    /* what to keep */
    const char *metrics; /* --metrics FILE.jsonl */
    const char *save;    /* --save FILE.safetensors */
    const char *init;    /* --init FILE.safetensors */
    const char *resume;  /* --resume [PATH]; without PATH: the --save file */
    int help;            /* --help was given: the text has been printed, leave with 0 */
    int per_node[LS_TRAIN_NODES_MAX]; /* --gpus as numbers, by ls_train_local_ranks() */
} ls_train_flags;

/* Parses argv into `common` and the program's own table (may be NULL, 0). An unknown flag is LS_EINVAL and names the nearest known
 * one. --help prints to standard output. Text values point into argv. */
LS_API LS_MUST_USE ls_status ls_train_parse(const char *program, const char *summary, int argc,
                                            char **argv, ls_train_flags *common, const ls_flag *own,
                                            int n_own);

/* Checks --gpus, --nodes and --id against each other and reads the list into flags->per_node, for ls_spawn(). *n: ranks to spawn
 * on this machine; 0 when the program takes its place from its launcher. LS_EINVAL says what does not fit. */
LS_API LS_MUST_USE ls_status ls_train_local_ranks(ls_train_flags *flags, int *n);

/* --- a run: owns device, model, tape, loaders and optimizer, and frees them --- */

typedef struct ls_run ls_run;

/* Opens the device, an empty model (initial values from --seed) and a tape. flags are borrowed until ls_run_close(). */
LS_API LS_MUST_USE ls_status ls_run_open(const ls_train_flags *flags, ls_run **out);

LS_API ls_device *ls_run_device(ls_run *run); /* borrowed, as the next two */
LS_API ls_model *ls_run_model(ls_run *run);
LS_API ls_tape *ls_run_tape(ls_run *run);

/* The set to learn from, and the set to be tested on after each epoch. Both are taken, also on failure. */
LS_API LS_MUST_USE ls_status ls_run_train_on_take(ls_run *run, ls_dataset *set);
LS_API LS_MUST_USE ls_status ls_run_test_on_take(ls_run *run, ls_dataset *set);

/* Trains together with the other ranks of `comm` (borrowed until ls_run_close()): each sees its share of the data,
 * gradients are averaged. Call it when the model has its layers. `opt` may be NULL. Collective. */
LS_API LS_MUST_USE ls_status ls_run_distribute(ls_run *run, ls_comm *comm,
                                               const ls_ddp_options *opt);

/* Logits (rows, classes) of the network for x; arg is the program's. */
typedef ls_tensor *(*ls_forward_fn)(void *arg, ls_tape *tape, ls_tensor *x);

/* The last step before the loop: makes the optimizer (SGD) and schedule of the flags, loads --init or --resume, opens the metrics
 * file (rank 0), takes SIGTERM and SIGINT. `forward` is used for evaluation; NULL when there is no test set. */
LS_API LS_MUST_USE ls_status ls_run_start(ls_run *run, ls_forward_fn forward, void *arg);

/* The next training batch, across epochs; at the end of an epoch evaluates, reports and saves. 0 at the end of the run or
 * after a failure (ls_run_close tells). The tape has been reset and is in training mode; buffers are equal on all ranks. */
LS_API int ls_run_next(ls_run *run, ls_batch *batch);

/* Backward from the mean loss over the batch (without a training set: over one row), reduction, optimizer step, bookkeeping. NULL (a failed forward) is allowed: the
 * failure is reported by ls_run_close. */
LS_API void ls_run_step(ls_run *run, ls_tensor *loss);

/* Restores signals, says the last word (rank 0), frees everything. Returns `st` if that is a failure, else the first failure
 * of the run. NULL gives `st`. */
LS_API LS_MUST_USE ls_status ls_run_close(ls_run *run, ls_status st);

/* Position and results so far, for a program that wants to print its own. */
typedef struct ls_run_state {
    int64_t epoch; /* from 0 */
    int64_t step;  /* of the whole run */
    double loss;   /* of the last step, mean over all ranks' rows */
    double lr;
    double samples_per_s; /* all ranks together, over the current epoch */
    double accuracy;      /* of the last evaluation, -1 before */
    int stopping;         /* a stop has been asked for and agreed */
} ls_run_state;

LS_API void ls_run_get_state(const ls_run *run, ls_run_state *out);

/* Prints the thread's last error for a program: "name: rank 1: text", on standard error; returns 1 (an exit code), or 0
 * for LS_OK. */
LS_API int ls_train_exit(const char *program, ls_status status);

LS_END_DECLS

#endif
