/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train.h - what training programs share: common flags, steps and epochs, progress, metrics,
 * evaluation, save and resume. The loop itself is in the program, in the function that
 * ls_train_main() calls on each rank:
 *
 *     while (ls_run_next(run, &batch)) {
 *         ls_tensor *logits = net_forward(&net, tape, batch.x);
 *         ls_run_step(run, ls_cross_entropy(tape, logits, batch.y));
 *     }
 *
 * Threads    One thread. After a signal that stops the job all ranks stop at the same step.
 */
#ifndef LOCKSTEP_TRAIN_H
#define LOCKSTEP_TRAIN_H

#include <lockstep/data.h>
#include <lockstep/ddp.h>
#include <lockstep/flags.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>

LS_BEGIN_DECLS

/* --- flags --- */

#define LS_TRAIN_NODES_MAX 256 /* nodes of --gpus */
/* The flags of all training programs; zero-initialise, set the program's own defaults, then parse.
 * `program --help` describes each. */
typedef struct ls_train_flags {
    /* ranks and nodes */
    int64_t nodes;       /* -n/--nodes */
    const char *gpus;    /* -g/--gpus "8,2": ranks of each node, which the program starts itself */
    int64_t node_id;     /* -i/--id */
    const char *backend; /* --backend */
    const char *device;  /* --device cpu|cuda|cuda:N|auto */
    int share_gpu;       /* --share-gpu: ranks may share a card */
    int cuda_graph;      /* --cuda-graph: kernels are launched as CUDA graphs */
    const char *cpu_isa; /* --cpu-isa, as ls_device_options.cpu_isa */
    const char *master;  /* --master HOST[:PORT] */
    int64_t local_rank;  /* --local-rank: ignored; torch.distributed.launch appends it */
    /* data and steps */
    int64_t epochs;         /* --epochs */
    int64_t start_epoch;    /* --start-epoch: from 0; --resume overrides it */
    int64_t steps;          /* --steps: stop after so many; 0: no limit */
    int64_t batch_size;     /* --batch-size: rows of one rank */
    int64_t node_batch;     /* rows of a machine that its ranks share as batch_size; 0: not so */
    int64_t accumulate;     /* --accumulate: batches of one optimizer step; 0: 1 */
    int64_t shards;         /* --shards V: the same bits on any number of ranks; 0: disabled */
    const char *balance;    /* --balance [shards|rows]: by measured speed; "": shards; NULL: no */
    const char *data;       /* --data DIR */
    int64_t seed;           /* --seed */
    int no_shuffle;         /* --no-shuffle */
    int drop_last;          /* --drop-last */
    int64_t workers;        /* --workers: loader threads */
    const char *bad_images; /* --bad-images fail|skip; NULL: fail */
    int64_t check_replicas; /* --check-replicas K */
    int64_t audit;          /* --audit K */
    int heal;               /* --heal */
    int check_nan;          /* --check-nan: ls_tape_check_nan() */
    int64_t nan_limit;      /* --nan-limit: reports without a finite loss; 0: 3, below 0: never */
    const char *capsule;    /* --capsule FILE; NULL: beside the --save file; "": none */
    int64_t capsule_step;   /* --capsule-step: after it, too; 0: none */
    const char *replay;     /* --replay FILE: computes the step of a capsule, docs/training.md */
    int evaluate;           /* -e/--evaluate: evaluate once, no training */
    /* optimization */
    const char *optimizer; /* --optimizer sgd|adam|adamw; NULL: sgd */
    double lr;             /* --lr; above 0, except with --evaluate */
    double momentum;       /* --momentum */
    int nesterov;          /* --nesterov */
    double beta1;          /* --beta1, --beta2, --eps of Adam; 0: PyTorch's defaults */
    double beta2;
    double eps;
    double weight_decay;       /* --weight-decay */
    const char *schedule;      /* --schedule constant|step|multi-step|cosine; NULL: constant */
    int64_t schedule_steps;    /* --schedule-steps: length of cosine in steps; 0: all --epochs */
    int64_t lr_step_size;      /* --lr-step-size: epochs; 0: a third of --epochs */
    const char *lr_milestones; /* --lr-milestones 30,60: epochs */
    double lr_gamma;           /* --lr-gamma; 0: 0.1 */
    double lr_min;             /* --lr-min: final rate of cosine */
    double lr_warmup_epochs;   /* --lr-warmup-epochs: linear, before the schedule */
    double lr_warmup_factor;   /* --lr-warmup-factor: of --lr, in the first step; 0: 1/3 */
    const char *precision;     /* --precision fp32|bf16|fp16: of activations; NULL: fp32 */
    double label_smoothing;    /* --label-smoothing, of ls_run_classify() */
    double clip_grad_norm;     /* --clip-grad-norm; 0: disabled */
    int sync_bn;               /* --sync-bn: batch norms use the batches of all ranks */
    const char *compress;      /* --compress none|bf16|fp16|int8|int4|powersgd:R; NULL: none */
    int64_t sync_every;        /* --sync-every H: local SGD (local_sgd.h); 0: disabled */
    int64_t sync_fragments;    /* --sync-fragments P; 0: 1 */
    int64_t sync_delay;        /* --sync-delay N, steps */
    const char *islands;       /* --islands N|host; NULL: each rank, or shard, is one */
    double outer_lr;           /* --outer-lr; 0: 0.7 */
    double outer_momentum;     /* --outer-momentum; 0: 0.9, below 0: none */
    /* output */
    int64_t print_freq;        /* -p/--print-freq: steps from line to line; 0: by time */
    const char *metrics;       /* --metrics FILE.jsonl */
    const char *tensorboard;   /* --tensorboard DIR */
    int64_t histograms;        /* --histograms: steps; 0: none */
    const char *profile;       /* --profile N:M: steps, from 1; NULL: none */
    const char *profile_file;  /* --profile-file FILE; NULL: "profile" */
    const char *save;          /* --save FILE.safetensors */
    const char *save_best;     /* --save-best FILE.safetensors; NULL: beside the --save file */
    const char *on_save_error; /* --on-save-error continue|stop; NULL: continue */
    const char *save_dtype;    /* --save-dtype fp32|fp16|bf16: of saved weights; NULL: fp32 */
    const char *init;          /* --init FILE.safetensors */
    int skip_mismatched;       /* --skip-mismatched: --init loads what matches, lists the rest */
    const char *resume;        /* --resume [PATH]; "": the --save file; "auto": if it exists */
    int no_verify;             /* --no-verify: files are loaded without comparing digests */
    int no_accel;              /* without --device: cpu, also with --backend nccl */
    int help;          /* --help or --version was given and the text is printed: exit with 0 */
    int version;       /* --version */
    int64_t not_given; /* set by ls_train_parse(): bits of flags that only rank 0 needs */
    int per_node[LS_TRAIN_NODES_MAX]; /* --gpus as numbers, set by ls_train_local_ranks() */
} ls_train_flags;

/* Parses argv into `common` and the program's own table (may be NULL, 0). An unknown flag is
 * LS_EINVAL with the nearest known one. --help[=all] and --version print to standard output. Text
 * values point into argv. With --backend nccl and neither --device nor LOCKSTEP_DEVICE the device
 * is cuda. Without --help it also loads the library of --backend and checks that --backend and
 * --device are installed: LS_EUNSUPPORTED names those that are. Does not wait for others. */
LS_API LS_MUST_USE ls_status ls_train_parse(const char *program, const char *summary, int argc,
                                            char **argv, ls_train_flags *common, const ls_flag *own,
                                            int n_own);

/* Checks --gpus, --nodes and --id and reads --gpus into flags->per_node, for ls_spawn(). *n: ranks
 * to spawn on this node; 0 when a launcher has started this process. LS_EINVAL names flags that
 * contradict each other, or ask for more ranks than there are cards. LS_EUNSUPPORTED: --backend
 * does not support spawned ranks (ls_backend_check()). */
LS_API LS_MUST_USE ls_status ls_train_local_ranks(ls_train_flags *flags, int *n);

/* --- a run: owns device, model, tape, loaders and optimizer --- */

typedef struct ls_run ls_run;

/* Opens the device, an empty model (initial values from --seed) and a tape. On rank 0 (call
 * ls_init() before) it also checks that the files of --save, --save-best, --metrics and
 * --tensorboard can be written, and on each rank that of --profile: LS_EIO or LS_ENOTFOUND with
 * flag, path and reason. flags are borrowed until ls_run_close(). */
LS_API LS_MUST_USE ls_status ls_run_open(const ls_train_flags *flags, ls_run **out);

LS_API ls_device *ls_run_device(ls_run *run); /* borrowed, as the next two */
LS_API ls_model *ls_run_model(ls_run *run);
LS_API ls_tape *ls_run_tape(ls_run *run);

/* The training set, and the test set that is evaluated after each epoch. Both are taken, also on
 * failure. LS_EINVAL when it was set before or has no samples. */
LS_API LS_MUST_USE ls_status ls_run_train_on_take(ls_run *run, ls_dataset *set);
LS_API LS_MUST_USE ls_status ls_run_test_on_take(ls_run *run, ls_dataset *set);

/* Batches of samples of similar length, in training and evaluation: by the first length of
 * `field`, NULL: of the first field that has one (ls_field). They depend on --seed, the epoch, and
 * the number of rows in a batch of all ranks. After the data sets, before ls_run_start(). LS_EINVAL
 * when it is not, or when a set has no such field. Does not block; the run's thread. */
LS_API LS_MUST_USE ls_status ls_run_bucket_by_length(ls_run *run, const char *field);

/* Trains data-parallel with the other ranks of `comm` (borrowed until ls_run_close()): each rank
 * has its share of the data, gradients are averaged. Call it after the model has all layers. `opt`
 * may be NULL; --check-replicas, --sync-bn, --compress and --shards override it. LS_EINVAL:
 * plain_mean with --accumulate, which is a mean over rows. LS_EMISMATCH on all ranks: flags differ;
 * the text names one, both values, ranks and hosts (docs/training.md). Collective. */
LS_API LS_MUST_USE ls_status ls_run_distribute(ls_run *run, ls_comm *comm,
                                               const ls_ddp_options *opt);

/* For losses that are means over other terms than the rows of a batch, as tokens or frames: the
 * program calls ls_run_weigh() for each batch that has rows. Gradients and the reported loss are
 * then means over the terms of all ranks and of all batches of a step. Before ls_run_start(), on
 * all ranks. LS_EINVAL after it. Does not block; the run's thread. */
LS_API LS_MUST_USE ls_status ls_run_use_weights(ls_run *run);

/* The learning rate of step `step`, from 0, of the `steps` of --epochs. */
typedef double (*ls_lr_fn)(void *arg, int64_t step, int64_t steps);

/* Takes the learning rates from `fn` instead of --schedule: the same on all ranks, by the step
 * only, so that a resumed run has the same ones. Before ls_run_start(). LS_EINVAL after it, and
 * with another --schedule than constant. A rate that is below 0 or not finite ends the run. arg is
 * borrowed until ls_run_close(). Does not block; the run's thread. */
LS_API LS_MUST_USE ls_status ls_run_schedule_with(ls_run *run, ls_lr_fn fn, void *arg);

/* Gives the parameters whose names match `pattern` a learning rate and a weight decay of their own
 * (ls_optimizer_group()): lr_factor times the rate of the schedule. At most 16, each for the
 * parameters that no later one matches; a resumed run makes the same ones. Before ls_run_start(),
 * which fails where no name matches; LS_EINVAL after it. pattern is borrowed until then. Does not
 * block; the run's thread. */
LS_API LS_MUST_USE ls_status ls_run_group(ls_run *run, const char *pattern,
                                          const ls_group_options *opt);

/* Saves state of the program with that of the run: rank 0's tensors and bytes (ls_named) are in the
 * file for --resume, and ls_run_start() of a resumed run loads them on all ranks; it fails with a
 * file without them. Once, before ls_run_start(); LS_EINVAL otherwise. items, with what they
 * refer to, is borrowed until ls_run_close(). Does not block; the run's thread. */
LS_API LS_MUST_USE ls_status ls_run_save_also(ls_run *run, const ls_named *items, int n);

/* --- own values: means over all ranks, in progress lines and --metrics --- */

/* Declares a value of the program, as "perplexity": at most 16, each of up to 31 letters, digits
 * and characters of _.-/. Before ls_run_start(), with the same names in the same order on all
 * ranks: otherwise ls_run_start() is LS_EMISMATCH. LS_EINVAL for an invalid name, and one that is
 * declared already. Does not block; the run's thread, as the functions below. */
LS_API LS_MUST_USE ls_status ls_run_declare(ls_run *run, const char *name);

/* The same for a value that is a function of the mean over all ranks, as the perplexity is exp of
 * the mean cross-entropy of tokens: ls_run_add() adds what is averaged, and reports, evaluations
 * and ls_run_value() have fn(mean). */
typedef double (*ls_value_fn)(double mean);
LS_API LS_MUST_USE ls_status ls_run_declare_with(ls_run *run, const char *name, ls_value_fn fn);

/*
 * Adds a value of the current batch, a mean over `weight` terms: the run reports the sum of value *
 * weight divided by the sum of the weights, of all ranks, in float64. In ls_evaluate_fn it counts
 * for the evaluation, otherwise for the training since the last report. A tensor has one element,
 * float32 or float64, on the run's device, which is not waited for; NULL (a failed forward) adds
 * nothing. ls_run_close() returns a failure: LS_EINVAL for a name that is not declared, and for a
 * weight that is below 0 or not finite.
 */
LS_API void ls_run_add(ls_run *run, const char *name, const ls_tensor *value, double weight);
LS_API void ls_run_add_number(ls_run *run, const char *name, double value, double weight);

/* Adds a PNG file in memory (`bytes` bytes, copied) to the event file of --tensorboard, under
 * `name` and the current step. Nothing happens on other ranks than 0 and without --tensorboard.
 * LS_EFORMAT: the bytes do not begin as a PNG file. Does not block; the run's thread. */
LS_API LS_MUST_USE ls_status ls_run_image(ls_run *run, const char *name, const void *png,
                                          size_t bytes);

/* The mean in the last report, or of the last evaluation; NAN before, and for other names. */
LS_API double ls_run_value(const ls_run *run, const char *name, int of_test);

/* Evaluates a batch of the test set: computes and calls ls_run_add(). The tape is reset and not in
 * training mode. A failure ends the run. */
typedef ls_status (*ls_evaluate_fn)(void *arg, ls_run *run, const ls_batch *batch);

/* Evaluates with `fn` instead of top-1, top-5 and cross-entropy of logits. `best`, a declared
 * value, decides which evaluation is the best one (--save-best): the highest, or with
 * lowest_is_best the lowest. Before ls_run_start(), whose `forward` may then be NULL. LS_EINVAL
 * after it, and when `best` is not declared. arg is borrowed until ls_run_close(). */
LS_API LS_MUST_USE ls_status ls_run_evaluate_with(ls_run *run, ls_evaluate_fn fn, void *arg,
                                                  const char *best, int lowest_is_best);

/* Returns the logits (rows, classes) of the network for x; arg is that of ls_run_start(). */
typedef ls_tensor *(*ls_forward_fn)(void *arg, ls_tape *tape, ls_tensor *x);

/* Call it before the loop: creates the optimizer and the schedule, loads --init or --resume,
 * removes later lines from the metrics file (rank 0), handles the signals that stop the job. After
 * a restart by the launcher, the state that the job has saved to --save overrides --init and
 * --resume. Files of another run that --save would overwrite are renamed (docs/training.md).
 * `forward` is for evaluation; NULL without a test set and with ls_run_evaluate_with(). Collective.
 * When rank 0 cannot load the checkpoint it aborts the group: LS_EPEER with the reason on the other
 * ranks. LS_EINVAL: no ls_run_distribute() in a job of several ranks. LS_EMISMATCH: other data. */
LS_API LS_MUST_USE ls_status ls_run_start(ls_run *run, ls_forward_fn forward, void *arg);

/* The next training batch, with --shards that of the next shard of this rank: a step takes as many
 * as the rank has; with --audit some steps have batches of other ranks' shards, too. At the end of
 * an epoch it evaluates, reports and saves. 0 at the end of the run or after a failure, which
 * ls_run_close() returns. The tape is reset and in training mode; buffers are equal on all ranks.
 * With --evaluate it evaluates the test set once and returns 0. */
LS_API int ls_run_next(ls_run *run, ls_batch *batch);

/* The loss of a classifier: cross-entropy with --label-smoothing, mean over the batch. Also counts
 * top-1 and top-5 hits. NULL gives NULL. */
LS_API ls_tensor *ls_run_classify(ls_run *run, ls_tensor *logits, ls_tensor *targets);

/* Between ls_run_next() and ls_run_step(), in a run with ls_run_use_weights(): the loss of the
 * current batch is a mean over `weight` terms. 0 leaves the batch out. ls_run_close() returns a
 * failure, LS_EINVAL for a weight below 0. Does not block; the run's thread. */
LS_API void ls_run_weigh(ls_run *run, int64_t weight);

/* Backward from the mean loss over the batch (without a training set: over one row), all-reduce,
 * optimizer step, report. With --accumulate N gradients accumulate without communication; the step
 * is at the N-th batch or the last one of an epoch, with the mean over all their rows. NULL (a
 * failed forward) is allowed: ls_run_close() returns the failure. */
LS_API void ls_run_step(ls_run *run, ls_tensor *loss);

/* Computes the mean loss of a batch with operators on ls_run_tape(): what stands between
 * ls_run_next() and ls_run_step(). NULL after a failure. */
typedef ls_tensor *(*ls_loss_fn)(void *arg, ls_run *run, const ls_batch *batch);

/* Trains to the end: as a loop of ls_run_next() and ls_run_step() with the losses of `loss`. With
 * --sync-bn and more shards than ranks (--shards) the only way to train a network with batch norms:
 * there ls_run_tape() differs from shard to shard, and what ls_ddp_step_shards() says of its
 * function is true of `loss`. ls_run_close() returns a failure. Collective; blocks. */
LS_API void ls_run_train(ls_run *run, ls_loss_fn loss, void *arg);

/* Prints the summary (rank 0), restores signal handlers and frees everything. Returns `st` if that
 * is a failure, else the first failure of the run. LS_EINVAL when the program still has tensors on
 * the run's device: destroy them before. NULL gives `st`. */
LS_API LS_MUST_USE ls_status ls_run_close(ls_run *run, ls_status st);

/* Position and results so far, for a program that prints its own. Shares are between 0 and 1. */
typedef struct ls_run_state {
    int64_t epoch; /* from 0 */
    int64_t step;  /* of the optimizer, in the whole run */
    double loss;   /* of the last report, mean over all ranks' rows */
    double lr;
    double samples_per_s; /* all ranks together, over the current epoch */
    double accuracy;      /* of the last evaluation, -1 before */
    int stopping;         /* all ranks have agreed to stop */
    double top1;          /* of ls_run_classify() in training, of the last report; -1 before */
    double top5;
    double accuracy5;     /* top-5 accuracy of the last evaluation, -1 before */
    double test_loss;     /* of the last evaluation: mean cross-entropy, without label smoothing */
    double best_accuracy; /* of all evaluations, including those before a resume; -1 before */
    int64_t best_epoch;   /* number of epochs before that evaluation */
    double data_wait;     /* share of time spent waiting for batches in the last report */
    int64_t bad_images;   /* skipped by all ranks (--bad-images skip), up to the last report */
    double seconds_left;  /* estimated, with evaluations; -1 before */
} ls_run_state;

LS_API void ls_run_get_state(const ls_run *run, ls_run_state *out);

/* The first failure of the run, whose text becomes this thread's last error; LS_OK before. For what
 * a program does after the loop, which ends at a failure too. Does not block; the run's thread. */
LS_API LS_MUST_USE ls_status ls_run_status(const ls_run *run);

/* Rejects flags: sets the error text that ls_train_exit() prints, returns LS_EINVAL. */
LS_API LS_MUST_USE ls_status ls_train_refuse(const char *format, ...) LS_PRINTF(1, 2);

/* Prints "program: " and the thread's last error to standard error and returns the exit code 1;
 * returns 0 for LS_OK. */
LS_API int ls_train_exit(const char *program, ls_status status);

/* --- a program --- */

/* Trains on one rank: builds the network, gives the data sets to the run and has the loop; what
 * `run` still uses lives until it returns. A failure with its error text ends the program. */
typedef ls_status (*ls_train_fn)(ls_run *run, ls_comm *comm, void *arg);

/* Checks the parsed flags before ranks start, and may change them. */
typedef ls_status (*ls_train_check_fn)(void *arg);

/* Decides how many ranks this process starts, as ls_train_local_ranks(): *n, 0 for none, and on
 * which nodes (*spawn, all 0 but its size). */
typedef ls_status (*ls_train_place_fn)(void *arg, ls_spawn_options *spawn, int *n);

typedef struct ls_train_program {
    size_t size;                 /* sizeof(ls_train_program) */
    const char *name;            /* in the help, and before error texts: "mnist" */
    const char *summary;         /* first line of the help */
    ls_train_flags *flags;       /* with the program's defaults; the parsed values go here */
    const ls_flag *own;          /* flags of this program only; NULL: none */
    int n_own;                   /* their number */
    const ls_init_options *init; /* how ranks join, as `check` leaves it; NULL: all default */
    ls_train_check_fn check;     /* NULL: nothing to check */
    ls_train_place_fn place;     /* NULL: by --gpus, --nodes, --id, --master */
    ls_train_fn train;           /* needed */
    void *arg;                   /* of the three functions */
    /* Own flags that may differ between ranks, NULL ends it; NULL: none. The others must be equal,
     * except those whose help begins with `FILE` or `DIR`: ls_run_distribute(). */
    const char *const *local;
} ls_train_program;

/* The main function of a training program: parses and checks the flags, starts the ranks of --gpus
 * or is a rank of a launcher, joins the job (ls_init(), with --backend), opens a run, calls
 * `train`, closes the run and leaves the job. Returns the exit code: 0, also after --help and
 * --version, or 1 with the error text on standard error. Blocks until training has ended. Call it
 * on the main thread, before others start. */
LS_API int ls_train_main(const ls_train_program *program, int argc, char **argv);

LS_END_DECLS

#endif
