/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flags.c - the flags that all training programs share, their help, and the number of ranks to
 * start on this node. Programs call it first.
 */
#include <lockstep/train.h>

#include "base/status.h"
#include "base/text.h"
#include "tensor/device.h"
#include "train/common_flags.h"
#include "train/progress.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the common table --- */

int common_flags_list(ls_train_flags *f, ls_flag out[COMMON_FLAGS_MOST])
{
    const double most = 1e15;
    const ls_flag common[] = {
        {"Ranks and nodes", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"nodes", 'n', LS_FLAG_INT, &f->nodes, 0, 65536,
         "number of nodes, when this program starts the ranks"},
        {"gpus", 'g', LS_FLAG_TEXT, &f->gpus, 0, 0,
         "`LIST` ranks to start on each node, as 2 or 8,2; on GPUs one for each card"},
        {"id", 'i', LS_FLAG_INT, &f->node_id, 0, 65535, "index of this node, from 0"},
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
         "`NAME` latest instructions to use: baseline, avx2, avx512; for the same bits on machines "
         "that differ"},
        {"master", 0, LS_FLAG_TEXT, &f->master, 0, 0, "`HOST[:PORT]` address of node 0"},
        {"local-rank", 0, LS_FLAG_INT, &f->local_rank, 0, 65535,
         "ignored; torch.distributed.launch passes it"},
        {"Data and steps", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"epochs", 0, LS_FLAG_INT, &f->epochs, 0, most, "number of epochs"},
        {"start-epoch", 0, LS_FLAG_INT, &f->start_epoch, 0, most,
         "first epoch, counted from 0; --resume overrides it"},
        {"steps", 0, LS_FLAG_INT, &f->steps, 0, most, "stop after so many steps; 0 = no limit"},
        {"batch-size", 'b', LS_FLAG_INT, &f->batch_size, 1, 1 << 24,
         "samples per batch of one rank"},
        {"accumulate", 0, LS_FLAG_INT, &f->accumulate, 1, 1 << 20,
         "batches per optimizer step (gradient accumulation, as no_sync())"},
        {"shards", 0, LS_FLAG_INT, &f->shards, 0, 1 << 20,
         "batches per step of all ranks together: a run has the same bits on 1 to so many ranks"},
        {"data", 0, LS_FLAG_TEXT, &f->data, 0, 0, "`DIR` folder of the data set"},
        {"seed", 0, LS_FLAG_INT, &f->seed, 0, most,
         "seed of weights, sample order and augmentation"},
        {"no-shuffle", 0, LS_FLAG_BOOL, &f->no_shuffle, 0, 0, "keep the order of the files"},
        {"drop-last", 0, LS_FLAG_BOOL, &f->drop_last, 0, 0,
         "drop the last batch of an epoch if it is incomplete"},
        {"workers", 'j', LS_FLAG_INT, &f->workers, 0, 256, "loader threads of one rank; 0 = 1"},
        {"bad-images", 0, LS_FLAG_TEXT, &f->bad_images, 0, 0,
         "`WORD` on a broken image: fail, or skip (log and count it)"},
        {"check-replicas", 0, LS_FLAG_INT, &f->check_replicas, 0, 1 << 30,
         "compare the parameters of all ranks every so many steps; 0 = disabled"},
        {"heal", 0, LS_FLAG_BOOL, &f->heal, 0, 0,
         "with --check-replicas: a rank that differs from the majority gets its state"},
        {"check-nan", 0, LS_FLAG_BOOL, &f->check_nan, 0, 0,
         "fail at the first operator whose result is NaN or infinite, and name it (slow)"},
        {"evaluate", 'e', LS_FLAG_BOOL, &f->evaluate, 0, 0,
         "evaluate the weights of --init or --resume on the test set, then exit"},
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
        {"schedule-steps", 0, LS_FLAG_INT, &f->schedule_steps, 0, most,
         "length of the cosine schedule in steps; 0 = all --epochs, even with --steps"},
        {"lr-step-size", 0, LS_FLAG_INT, &f->lr_step_size, 0, most,
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
         "`TYPE` activations in bf16 or fp16 (mixed precision); fp32"},
        {"label-smoothing", 0, LS_FLAG_REAL, &f->label_smoothing, 0, 1,
         "label smoothing of the loss"},
        {"clip-grad-norm", 0, LS_FLAG_REAL, &f->clip_grad_norm, 0, 1e30,
         "maximum norm of all gradients together; 0 = disabled"},
        {"sync-bn", 0, LS_FLAG_BOOL, &f->sync_bn, 0, 0,
         "synchronize batch norms across ranks, as SyncBatchNorm"},
        {"compress", 0, LS_FLAG_TEXT, &f->compress, 0, 0,
         "`TYPE` communicate gradients as bf16 or fp16; none"},
        {"Output", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"print-freq", 'p', LS_FLAG_INT, &f->print_freq, 0, most,
         "steps from one progress line to the next; 0 = every few seconds"},
        {"metrics", 0, LS_FLAG_TEXT, &f->metrics, 0, 0,
         "`FILE` write metrics to FILE.jsonl, a JSON object a line, for lockstep report"},
        {"tensorboard", 0, LS_FLAG_TEXT, &f->tensorboard, 0, 0,
         "`DIR` write an event file for TensorBoard to this folder"},
        {"histograms", 0, LS_FLAG_INT, &f->histograms, 0, most,
         "with --tensorboard: steps from one histogram of weights and gradients to the next; "
         "0 = none"},
        {"save", 0, LS_FLAG_TEXT, &f->save, 0, 0,
         "`FILE` save weights (safetensors) after each epoch"},
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
        {"help", 'h', LS_FLAG_BOOL, &f->help, 0, 0, "print this text"},
    };

    _Static_assert(sizeof(common) <= COMMON_FLAGS_MOST * sizeof(ls_flag), "the table is too small");
    memcpy(out, common, sizeof(common));
    return (int)LS_COUNT_OF(common);
}

/* --- the device --- */

static bool is_set(const char *text)
{
    return text != NULL && text[0] != 0;
}

/* NCCL reduces the memory of GPUs. True: without --device and LOCKSTEP_DEVICE it decides. */
static bool take_device_of_backend(ls_train_flags *flags)
{
    if (flags->device != NULL)
        return false;
    if (flags->no_accel)
        flags->device = "cpu";
    else if (flags->backend != NULL && text_equal(flags->backend, "nccl") &&
             !is_set(getenv("LOCKSTEP_DEVICE"))) // NOLINT(concurrency-mt-unsafe): never set
        flags->device = "cuda";
    return flags->device != NULL && !flags->no_accel;
}

static ls_device_options device_of(const ls_train_flags *flags)
{
    return (ls_device_options){.size = sizeof(ls_device_options),
                               .name = flags->device,
                               .share_gpu = flags->share_gpu,
                               .cuda_graph = flags->cuda_graph,
                               .cpu_isa = flags->cpu_isa};
}

static ls_status check_device(ls_train_flags *flags)
{
    const bool is_of_backend = take_device_of_backend(flags);
    const ls_device_options device = device_of(flags);
    const ls_status st = device_check(&device);

    return st == LS_OK || !is_of_backend
               ? st
               : ls_context(st, "--backend nccl computes on GPUs, unless --device is given");
}

/* --- the public calls --- */

static ls_status print_help(const ls_flags *flags)
{
    char *text;

    LS_TRY(ls_flags_help(flags, &text));
    progress_write(STDOUT_FILENO, text);
    ls_flags_free(text);
    return LS_OK;
}

ls_status ls_train_parse(const char *program, const char *summary, int argc, char **argv,
                         ls_train_flags *common, const ls_flag *own, int n_own)
{
    char usage[64] = "[flags]";
    ls_flags flags = {
        .size = sizeof(flags), .program = program, .usage = usage, .summary = summary};
    ls_train_flags defaults;
    ls_flag table[COMMON_FLAGS_MOST];

    LS_TRY(LS_GIVEN(program));
    LS_TRY(LS_GIVEN(summary));
    LS_TRY(LS_GIVEN(argv));
    LS_TRY(LS_GIVEN(common));
    if (n_own > 0)
        LS_TRY(LS_GIVEN(own));
    if (common->accumulate == 0)
        common->accumulate = 1;
    defaults = *common;
    for (int i = 0; i < n_own; i++)
        if (own[i].kind == LS_FLAG_ARGUMENT)
            text_format(usage, sizeof(usage), "[flags] %s", own[i].name);
    flags.tables[0] = own;
    flags.n[0] = n_own;
    flags.tables[1] = table;
    flags.n[1] = common_flags_list(common, table);
    LS_TRY(ls_flags_parse(&flags, argc, argv, NULL));
    if (!common->help) {
        LS_TRY(check_device(common));
        return ls_backend_check(common->backend, 1);
    }
    // Help shows the defaults, not values given with --help.
    (void)common_flags_list(&defaults, table);
    return print_help(&flags);
}

/* Reads "8,2" into flags->per_node. */
static ls_status read_gpus(ls_train_flags *flags, int *n_listed)
{
    const char *at = flags->gpus;
    char number[16];

    for (*n_listed = 0; text_next_item(&at, number, sizeof(number)); ++*n_listed) {
        int64_t ranks;

        if (*n_listed == LS_TRAIN_NODES_MAX)
            return ls_fail(LS_EINVAL, "--gpus: more than %d nodes", LS_TRAIN_NODES_MAX);
        LS_TRY(text_parse_int(number, "--gpus", 1, 4096, &ranks));
        flags->per_node[*n_listed] = (int)ranks;
    }
    if (*n_listed == 0)
        return ls_fail(LS_EINVAL, "--gpus is empty: give the ranks of each node, as 2 or 8,2");
    return LS_OK;
}

/* Whether the backend can serve all ranks of the job, before the nodes wait for each other. */
static ls_status check_job(const ls_train_flags *flags, int nodes)
{
    int ranks = 0;

    for (int i = 0; i < nodes; i++)
        ranks += flags->per_node[i];
    return ls_backend_check(flags->backend, ranks);
}

/* --device cuda:N is one card for all ranks. */
static ls_status check_cards(const ls_train_flags *flags, int ranks)
{
    const ls_device_options device = device_of(flags);
    int n;

    if (flags->share_gpu || (flags->device != NULL && strchr(flags->device, ':') != NULL))
        return LS_OK;
    LS_TRY(ls_device_count(&device, &n));
    if (n == 0 || ranks <= n)
        return LS_OK;
    return ls_fail(LS_EINVAL,
                   "--gpus %s: %d ranks on this node, which has %d GPU%s: start at most %d here; "
                   "or use --share-gpu, or --device cpu",
                   flags->gpus, ranks, n, text_plural(n), n);
}

ls_status ls_train_local_ranks(ls_train_flags *flags, int *n)
{
    const char *rank =
        getenv("LOCKSTEP_RANK"); // NOLINT(concurrency-mt-unsafe): no thread changes it
    int nodes;
    int n_listed;

    LS_TRY(LS_GIVEN(flags));
    LS_TRY(LS_GIVEN(n));
    nodes = flags->nodes > 1 ? (int)flags->nodes : 1;
    *n = 0;
    if (flags->gpus == NULL) {
        if (flags->nodes > 0 || flags->node_id > 0)
            return ls_fail(LS_EINVAL,
                           "--nodes and --id need --gpus, the ranks to start on each node");
        return LS_OK;
    }
    if (rank != NULL)
        return ls_fail(
            LS_EINVAL,
            "--gpus starts ranks, but this process is already rank %s of a job; omit --gpus", rank);
    LS_TRY(read_gpus(flags, &n_listed));
    if (nodes > LS_TRAIN_NODES_MAX)
        return ls_fail(LS_EINVAL, "--nodes %d: at most %d", nodes, LS_TRAIN_NODES_MAX);
    if (strchr(flags->gpus, ',') == NULL)
        for (; n_listed < nodes; n_listed++)
            flags->per_node[n_listed] = flags->per_node[0];
    if (flags->nodes == 0)
        nodes = n_listed;
    if (n_listed != nodes)
        return ls_fail(LS_EINVAL, "--gpus %s lists %d node%s, but --nodes is %d", flags->gpus,
                       n_listed, text_plural(n_listed), nodes);
    if (flags->node_id >= nodes)
        return ls_fail(LS_EINVAL, "--id %lld: must be below the number of nodes, %d",
                       (long long)flags->node_id, nodes);
    LS_TRY(check_job(flags, nodes));
    LS_TRY(check_cards(flags, flags->per_node[flags->node_id]));
    flags->nodes = nodes;
    *n = flags->per_node[flags->node_id];
    return LS_OK;
}

ls_status ls_train_refuse(const char *format, ...)
{
    va_list args;
    ls_status st;

    LS_TRY(LS_GIVEN(format));
    va_start(args, format);
    st = ls_vfail(LS_EINVAL, format, args);
    va_end(args);
    return st;
}

int ls_train_exit(const char *program, ls_status status)
{
    text_buf t = {0};

    if (status == LS_OK)
        return EXIT_SUCCESS;
    text_append(&t, "%s: %s\n", program == NULL ? "program" : program, ls_last_error());
    progress_write(STDERR_FILENO, text_str(&t));
    text_free(&t);
    return EXIT_FAILURE;
}
