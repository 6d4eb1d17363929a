/* SPDX-License-Identifier: Apache-2.0 */
/* common_flags.c - the flags that all training programs share, by the headings of their help. */
#include "train/common_flags.h"

#include "base/status.h"

#include <string.h>

/* A count that float64 has exactly. */
#define COUNT_MOST 1e15

const char *const common_flags_brief[] = {"nodes", "gpus", "id",   "device", "epochs", "batch-size",
                                          "data",  "lr",   "save", "resume", NULL};

typedef struct flag_list {
    ls_flag *flags; /* of COMMON_FLAGS_MOST */
    size_t n;
} flag_list;

static void append(flag_list *l, const ls_flag *flags, size_t n)
{
    LS_ASSERT(l->n + n <= COMMON_FLAGS_MOST);
    memcpy(l->flags + l->n, flags, n * sizeof(*flags));
    l->n += n;
}

static void append_rank_flags(flag_list *l, ls_train_flags *f)
{
    const ls_flag flags[] = {
        {"Ranks and nodes", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"nodes", 'n', LS_FLAG_INT, &f->nodes, 0, 65536,
         "number of machines, when this program starts the ranks; -n of lockstep run is a number "
         "of ranks"},
        {"gpus", 'g', LS_FLAG_TEXT, &f->gpus, 0, 0,
         "`LIST` ranks to start on each machine, as 2 or 8,2; on GPUs one for each card"},
        {"id", 'i', LS_FLAG_INT, &f->node_id, 0, 65535, "index of this machine (node), from 0"},
        {"backend", 0, LS_FLAG_TEXT, &f->backend, 0, 0,
         "`NAME` communication backend: auto, native, nccl, mpi, mpi:openmpi, mpi:mpich, gloo"},
        {"device", 0, LS_FLAG_TEXT, &f->device, 0, 0,
         "`NAME` compute device: cpu (default; with --backend nccl: cuda), cuda, cuda:N, auto "
         "(cuda if there is a card), onednn, cpu_ref"},
        {"share-gpu", 0, LS_FLAG_BOOL, &f->share_gpu, 0, 0,
         "ranks may share a card, when a node has fewer cards than ranks"},
        {"cuda-graph", 0, LS_FLAG_BOOL, &f->cuda_graph, 0, 0,
         "launch the kernels of a step as CUDA graphs; for small networks"},
        {"cpu-isa", 0, LS_FLAG_TEXT, &f->cpu_isa, 0, 0,
         "`NAME` latest instructions to use: baseline, avx2, avx512, avx512_bf16, amx; for the "
         "same bits on machines that differ"},
        {"master", 0, LS_FLAG_TEXT, &f->master, 0, 0, "`HOST[:PORT]` address of node 0"},
        {"local-rank", 0, LS_FLAG_INT, &f->local_rank, 0, 65535,
         "ignored; torch.distributed.launch passes it"},
    };

    append(l, flags, LS_COUNT_OF(flags));
}

static void append_data_flags(flag_list *l, ls_train_flags *f)
{
    const ls_flag flags[] = {
        {"Data and steps", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"epochs", 0, LS_FLAG_INT, &f->epochs, 0, COUNT_MOST, "number of epochs"},
        {"start-epoch", 0, LS_FLAG_INT, &f->start_epoch, 0, COUNT_MOST,
         "first epoch, counted from 0; --resume overrides it"},
        {"steps", 0, LS_FLAG_INT, &f->steps, 0, COUNT_MOST,
         "stop after so many steps; 0 = no limit"},
        {"batch-size", 'b', LS_FLAG_INT, &f->batch_size, 1, 1 << 24,
         "samples per batch of one rank"},
        {"accumulate", 0, LS_FLAG_INT, &f->accumulate, 1, 1 << 20,
         "batches per optimizer step (gradient accumulation, as no_sync())"},
        {"shards", 0, LS_FLAG_INT, &f->shards, 0, 1 << 20,
         "batches per step of all ranks together: a run has the same bits on 1 to so many ranks"},
        {"balance", 0, LS_FLAG_OPTIONAL_TEXT, &f->balance, 0, 0,
         "`WORD` ranks get work by their measured speed: shards (the default, with --shards), or "
         "rows of each batch (without; bits depend on the speeds)"},
        {"data", 0, LS_FLAG_TEXT, &f->data, 0, 0, "`DIR` folder of the data set"},
        {"seed", 0, LS_FLAG_INT, &f->seed, 0, COUNT_MOST,
         "seed of weights, sample order and augmentation"},
        {"no-shuffle", 0, LS_FLAG_BOOL, &f->no_shuffle, 0, 0, "keep the order of the files"},
        {"drop-last", 0, LS_FLAG_BOOL, &f->drop_last, 0, 0,
         "drop the last batch of an epoch if it is incomplete"},
        {"workers", 'j', LS_FLAG_INT, &f->workers, 0, 256, "loader threads of one rank; 0 = 1"},
        {"bad-images", 0, LS_FLAG_TEXT, &f->bad_images, 0, 0,
         "`WORD` on a broken image: fail, or skip (log and count it)"},
        {"check-replicas", 0, LS_FLAG_INT, &f->check_replicas, 0, 1 << 30,
         "compare the parameters of all ranks every so many steps; 0 = disabled"},
        {"audit", 0, LS_FLAG_INT, &f->audit, 0, 1 << 30,
         "with --shards: every so many steps each rank also computes a shard of another one and "
         "compares the results; 0 = disabled"},
        {"heal", 0, LS_FLAG_BOOL, &f->heal, 0, 0,
         "with --check-replicas: a rank that differs from the majority gets its state; with "
         "--audit: a step is done again without the rank that computed wrongly"},
        {"check-nan", 0, LS_FLAG_BOOL, &f->check_nan, 0, 0,
         "fail at the first operator whose result is NaN or infinite, and name it (slow)"},
        {"nan-limit", 0, LS_FLAG_INT, &f->nan_limit, 0, COUNT_MOST,
         "stop after so many reports in a row whose loss is NaN or infinite; 0 = never"},
        {"capsule", 0, LS_FLAG_TEXT, &f->capsule, 0, 0,
         "`FILE` what lockstep replay needs when a step ends in NaN or replicas differ; default: "
         "beside the --save file; \"\": none"},
        {"capsule-step", 0, LS_FLAG_INT, &f->capsule_step, 0, COUNT_MOST,
         "write --capsule after this step, too; 0 = no step"},
        {"replay", 0, LS_FLAG_TEXT, &f->replay, 0, 0,
         "`FILE` compute the step of this capsule again, as lockstep replay does"},
        {"evaluate", 'e', LS_FLAG_BOOL, &f->evaluate, 0, 0,
         "evaluate the weights of --init or --resume on the test set, then exit"},
    };

    append(l, flags, LS_COUNT_OF(flags));
}

static void append_optimization_flags(flag_list *l, ls_train_flags *f)
{
    const ls_flag flags[] = {
        {"Optimization", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"optimizer", 0, LS_FLAG_TEXT, &f->optimizer, 0, 0, "`NAME` sgd (default), adam, adamw"},
        {"lr", 0, LS_FLAG_REAL, &f->lr, 0, 1e6, "initial learning rate"},
        {"momentum", 0, LS_FLAG_REAL, &f->momentum, 0, 1, "momentum of SGD"},
        {"nesterov", 0, LS_FLAG_BOOL, &f->nesterov, 0, 0, "use Nesterov momentum"},
        {"beta1", 0, LS_FLAG_REAL, &f->beta1, 0, 1, "beta1 of Adam; 0 = 0.9"},
        {"beta2", 0, LS_FLAG_REAL, &f->beta2, 0, 1, "beta2 of Adam; 0 = 0.999"},
        {"eps", 0, LS_FLAG_REAL, &f->eps, 0, 1, "epsilon of Adam; 0 = 1e-8"},
        {"weight-decay", 0, LS_FLAG_REAL, &f->weight_decay, 0, 1e6,
         "weight decay, as in torch.optim"},
        {"schedule", 0, LS_FLAG_TEXT, &f->schedule, 0, 0,
         "`NAME` learning rate schedule: constant, step, multi-step, cosine"},
        {"schedule-steps", 0, LS_FLAG_INT, &f->schedule_steps, 0, COUNT_MOST,
         "length of the cosine schedule in steps; 0 = all --epochs, even with --steps"},
        {"lr-step-size", 0, LS_FLAG_INT, &f->lr_step_size, 0, COUNT_MOST,
         "step schedule: epochs from one step to the next; 0 = a third of --epochs"},
        {"lr-milestones", 0, LS_FLAG_TEXT, &f->lr_milestones, 0, 0,
         "`LIST` multi-step schedule: epochs, as 30,60,80"},
        {"lr-gamma", 0, LS_FLAG_REAL, &f->lr_gamma, 0, 1,
         "step and multi-step schedule: factor; 0 = 0.1"},
        {"lr-min", 0, LS_FLAG_REAL, &f->lr_min, 0, 1e6, "cosine schedule: final learning rate"},
        {"lr-warmup-epochs", 0, LS_FLAG_REAL, &f->lr_warmup_epochs, 0, 1e6,
         "linear warmup before the schedule, in epochs or fractions of one"},
        {"lr-warmup-factor", 0, LS_FLAG_REAL, &f->lr_warmup_factor, 0, 1,
         "factor of --lr at the start of the warmup; 0 = 1/3"},
        {"precision", 0, LS_FLAG_TEXT, &f->precision, 0, 0,
         "`TYPE` of activations: fp32 (default), or bf16 or fp16 (mixed precision)"},
        {"label-smoothing", 0, LS_FLAG_REAL, &f->label_smoothing, 0, 1,
         "label smoothing of the loss"},
        {"clip-grad-norm", 0, LS_FLAG_REAL, &f->clip_grad_norm, 0, 1e30,
         "maximum norm of all gradients together; 0 = disabled"},
        {"sync-bn", 0, LS_FLAG_BOOL, &f->sync_bn, 0, 0,
         "synchronize batch norms across ranks, as SyncBatchNorm"},
        {"compress", 0, LS_FLAG_TEXT, &f->compress, 0, 0,
         "`TYPE` send gradients as bf16, fp16 or powersgd:R; with --sync-every differences of "
         "parameters as bf16, fp16, int8 or int4; none (default)"},
        {"sync-every", 0, LS_FLAG_INT, &f->sync_every, 0, 1 << 30,
         "steps of each rank, or shard, alone between means of parameters (DiLoCo); 0 = none"},
        {"sync-fragments", 0, LS_FLAG_INT, &f->sync_fragments, 0, 4096,
         "with --sync-every: parts of the parameters that are averaged one after the other; 0 = 1"},
        {"sync-delay", 0, LS_FLAG_INT, &f->sync_delay, 0, 1 << 30,
         "with --sync-every: steps for which ranks train on while a mean is sent; 0 = they wait"},
        {"islands", 0, LS_FLAG_TEXT, &f->islands, 0, 0,
         "`N` with --sync-every: so many islands, whose ranks add up gradients in each step; host: "
         "the ranks of each host are one; default: each rank"},
        {"outer-lr", 0, LS_FLAG_REAL, &f->outer_lr, 0, 1e6,
         "with --sync-every: learning rate of the outer optimizer"},
        {"outer-momentum", 0, LS_FLAG_REAL, &f->outer_momentum, 0, 1,
         "with --sync-every: Nesterov momentum of the outer optimizer; 0 = none"},
    };

    append(l, flags, LS_COUNT_OF(flags));
}

static void append_output_flags(flag_list *l, ls_train_flags *f)
{
    const ls_flag flags[] = {
        {"Output", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"print-freq", 'p', LS_FLAG_INT, &f->print_freq, 0, COUNT_MOST,
         "steps from one progress line to the next; 0 = every few seconds"},
        {"metrics", 0, LS_FLAG_TEXT, &f->metrics, 0, 0,
         "`FILE` write metrics to FILE (as run.jsonl), a JSON object a line, for lockstep report"},
        {"tensorboard", 0, LS_FLAG_TEXT, &f->tensorboard, 0, 0,
         "`DIR` write an event file for TensorBoard to this folder"},
        {"histograms", 0, LS_FLAG_INT, &f->histograms, 0, COUNT_MOST,
         "with --tensorboard: steps from one histogram of weights and gradients to the next; "
         "0 = none"},
        {"profile", 0, LS_FLAG_TEXT, &f->profile, 0, 0,
         "`N:M` write the operators of steps N to M as a trace for Perfetto and lockstep trace "
         "summarize"},
        {"profile-file", 0, LS_FLAG_TEXT, &f->profile_file, 0, 0,
         "`FILE` with --profile: rank R writes FILE.rankR.json; default: profile"},
        {"save", 0, LS_FLAG_TEXT, &f->save, 0, 0,
         "`FILE` save weights after each epoch, as safetensors whatever its name ends with"},
        {"save-best", 0, LS_FLAG_TEXT, &f->save_best, 0, 0,
         "`FILE` save the weights of the best evaluation; default: beside the --save file"},
        {"on-save-error", 0, LS_FLAG_TEXT, &f->on_save_error, 0, 0,
         "`WORD` if a file cannot be written: continue, or stop; the old file stays"},
        {"save-dtype", 0, LS_FLAG_TEXT, &f->save_dtype, 0, 0,
         "`TYPE` of saved weights: fp32, fp16, bf16; the state for --resume stays fp32"},
        {"init", 0, LS_FLAG_TEXT, &f->init, 0, 0, "`FILE` load initial weights"},
        {"skip-mismatched", 0, LS_FLAG_BOOL, &f->skip_mismatched, 0, 0,
         "with --init: load weights whose name and shape match, list the others"},
        {"resume", 0, LS_FLAG_OPTIONAL_TEXT, &f->resume, 0, 0,
         "`FILE` continue the run that saved it; default: the --save file; auto: "
         "that file if it exists, else a new run"},
        {"no-verify", 0, LS_FLAG_BOOL, &f->no_verify, 0, 0,
         "load files whose data or header does not match its digest"},
        {"help", 'h', LS_FLAG_BOOL, &f->help, 0, 0, "print this text; --help=all: with all flags"},
        {"version", 0, LS_FLAG_BOOL, &f->version, 0, 0, "print the version of Lockstep"},
    };

    append(l, flags, LS_COUNT_OF(flags));
}

int common_flags_list(ls_train_flags *f, ls_flag out[COMMON_FLAGS_MOST])
{
    flag_list l = {.flags = out};

    append_rank_flags(&l, f);
    append_data_flags(&l, f);
    append_optimization_flags(&l, f);
    append_output_flags(&l, f);
    return (int)l.n;
}
