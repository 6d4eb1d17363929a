/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flags.c - the flags that all training programs take.
 */
#include "train/run.h"

#include "base/text.h"
#include "tensor/device.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_COMMON 64

static const double most = 1e15;

typedef struct flag_table {
    ls_flag flags[MOST_COMMON];
    int n;
} flag_table;

/* --- the common table --- */

static void add(flag_table *t, const char *name, char letter, ls_flag_kind kind, void *value,
                double min, double max, const char *help)
{
    LS_ASSERT(t->n < MOST_COMMON);
    t->flags[t->n++] = (ls_flag){name, letter, kind, value, min, max, help};
}

static void add_place(flag_table *t, ls_train_flags *f)
{
    add(t, "Ranks and machines", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL);
    add(t, "nodes", 'n', LS_FLAG_INT, &f->nodes, 0, 65536,
        "machines, when this program starts its own ranks");
    add(t, "gpus", 'g', LS_FLAG_TEXT, &f->gpus, 0, 0,
        "`LIST` ranks to start on each machine: 2, or 8,2");
    add(t, "id", 'i', LS_FLAG_INT, &f->node_id, 0, 65535, "which of the machines this is");
    add(t, "backend", 0, LS_FLAG_TEXT, &f->backend, 0, 0,
        "`NAME` communication: auto, native, mpi, mpi:openmpi, mpi:mpich, gloo");
    add(t, "device", 0, LS_FLAG_TEXT, &f->device, 0, 0, "`NAME` computation: cpu, onednn, cpu_ref");
    add(t, "master", 0, LS_FLAG_TEXT, &f->master, 0, 0, "`HOST[:PORT]` address of machine 0");
    add(t, "local-rank", 0, LS_FLAG_INT, &f->local_rank, 0, 65535,
        "accepted for torch.distributed.launch");
}

static void add_work(flag_table *t, ls_train_flags *f)
{
    add(t, "Data and steps", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL);
    add(t, "epochs", 0, LS_FLAG_INT, &f->epochs, 0, most, "passes over the training set");
    add(t, "start-epoch", 0, LS_FLAG_INT, &f->start_epoch, 0, most,
        "begin at this one, counted from 0; --resume goes on where it was");
    add(t, "steps", 0, LS_FLAG_INT, &f->steps, 0, most, "stop after so many steps; 0: no limit");
    add(t, "batch-size", 'b', LS_FLAG_INT, &f->batch_size, 1, 1 << 24,
        "samples of one rank in one batch");
    add(t, "accumulate", 0, LS_FLAG_INT, &f->accumulate, 1, 1 << 20,
        "batches whose gradients add up to one step, as with no_sync()");
    add(t, "data", 0, LS_FLAG_TEXT, &f->data, 0, 0, "`DIR` folder of the data set");
    add(t, "seed", 0, LS_FLAG_INT, &f->seed, 0, most,
        "decides initial values, order of samples and augmentation");
    add(t, "no-shuffle", 0, LS_FLAG_BOOL, &f->no_shuffle, 0, 0,
        "take the samples in the order of the files");
    add(t, "drop-last", 0, LS_FLAG_BOOL, &f->drop_last, 0, 0,
        "leave the last batch of an epoch out where it is short");
    add(t, "workers", 'j', LS_FLAG_INT, &f->workers, 0, 256, "threads that read ahead; 0: one");
    add(t, "bad-images", 0, LS_FLAG_TEXT, &f->bad_images, 0, 0,
        "`WORD` what a broken image does: fail, or skip (it is named and counted)");
    add(t, "check-replicas", 0, LS_FLAG_INT, &f->check_replicas, 0, 1 << 30,
        "compare the ranks' parameters every so many steps; 0: never");
    add(t, "evaluate", 'e', LS_FLAG_BOOL, &f->evaluate, 0, 0,
        "evaluate the weights of --init or --resume on the test set, and end");
}

static void add_recipe(flag_table *t, ls_train_flags *f)
{
    add(t, "Learning", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL);
    add(t, "optimizer", 0, LS_FLAG_TEXT, &f->optimizer, 0, 0, "`NAME` sgd (default), adam, adamw");
    add(t, "lr", 0, LS_FLAG_REAL, &f->lr, 0, 1e6, "learning rate at the start");
    add(t, "momentum", 0, LS_FLAG_REAL, &f->momentum, 0, 1, "of SGD");
    add(t, "nesterov", 0, LS_FLAG_BOOL, &f->nesterov, 0, 0, "Nesterov's momentum");
    add(t, "beta1", 0, LS_FLAG_REAL, &f->beta1, 0, 1, "of Adam; 0: 0.9");
    add(t, "beta2", 0, LS_FLAG_REAL, &f->beta2, 0, 1, "of Adam; 0: 0.999");
    add(t, "eps", 0, LS_FLAG_REAL, &f->eps, 0, 1, "of Adam; 0: 1e-8");
    add(t, "weight-decay", 0, LS_FLAG_REAL, &f->weight_decay, 0, 1e6, "as in torch.optim");
    add(t, "schedule", 0, LS_FLAG_TEXT, &f->schedule, 0, 0,
        "`NAME` of the learning rate: constant, step, multi-step, cosine");
    add(t, "schedule-steps", 0, LS_FLAG_INT, &f->schedule_steps, 0, most,
        "length of cosine in steps; 0: all of --epochs, whatever --steps says");
    add(t, "lr-step-size", 0, LS_FLAG_INT, &f->lr_step_size, 0, most,
        "of step: epochs from one to the next; 0: a third of all");
    add(t, "lr-milestones", 0, LS_FLAG_TEXT, &f->lr_milestones, 0, 0,
        "`LIST` of multi-step: epochs, as 30,60,80");
    add(t, "lr-gamma", 0, LS_FLAG_REAL, &f->lr_gamma, 0, 1, "factor of each step; 0: 0.1");
    add(t, "lr-min", 0, LS_FLAG_REAL, &f->lr_min, 0, 1e6, "where cosine ends");
    add(t, "lr-warmup-epochs", 0, LS_FLAG_REAL, &f->lr_warmup_epochs, 0, 1e6,
        "linear warm-up before the schedule, fractions too");
    add(t, "lr-warmup-factor", 0, LS_FLAG_REAL, &f->lr_warmup_factor, 0, 1,
        "where it begins, as a part of --lr; 0: 1/3");
    add(t, "label-smoothing", 0, LS_FLAG_REAL, &f->label_smoothing, 0, 1,
        "this share of each target is spread over all classes");
    add(t, "clip-grad-norm", 0, LS_FLAG_REAL, &f->clip_grad_norm, 0, 1e30,
        "largest norm of all gradients together; 0: any");
    add(t, "sync-bn", 0, LS_FLAG_BOOL, &f->sync_bn, 0, 0,
        "batch norms share the batches of all ranks, as SyncBatchNorm");
    add(t, "compress", 0, LS_FLAG_TEXT, &f->compress, 0, 0,
        "`TYPE` gradients between ranks as bf16 or fp16; none");
}

static void add_output(flag_table *t, ls_train_flags *f)
{
    add(t, "Output", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL);
    add(t, "print-freq", 'p', LS_FLAG_INT, &f->print_freq, 0, most,
        "a line every so many steps; 0: every few seconds");
    add(t, "metrics", 0, LS_FLAG_TEXT, &f->metrics, 0, 0,
        "`FILE` FILE.jsonl: one JSON object a line");
    add(t, "metrics-html", 0, LS_FLAG_TEXT, &f->metrics_html, 0, 0,
        "`FILE` FILE.html: a page with the course of the run, anew after each epoch");
    add(t, "save", 0, LS_FLAG_TEXT, &f->save, 0, 0,
        "`FILE` weights (safetensors), after each epoch");
    add(t, "save-best", 0, LS_FLAG_TEXT, &f->save_best, 0, 0,
        "`FILE` those of the best evaluation; default beside the --save file");
    add(t, "on-save-error", 0, LS_FLAG_TEXT, &f->on_save_error, 0, 0,
        "`WORD` when a file cannot be written: continue, or stop; the old file stays");
    add(t, "save-dtype", 0, LS_FLAG_TEXT, &f->save_dtype, 0, 0,
        "`TYPE` of saved weights: fp32, fp16, bf16; the state for --resume stays fp32");
    add(t, "init", 0, LS_FLAG_TEXT, &f->init, 0, 0, "`FILE` start from these weights");
    add(t, "skip-mismatched", 0, LS_FLAG_BOOL, &f->skip_mismatched, 0, 0,
        "with --init: load the weights whose name and shape fit, list the others");
    add(t, "resume", 0, LS_FLAG_OPTIONAL_TEXT, &f->resume, 0, 0,
        "`FILE` go on where the run that saved it ended; default the --save file; auto: "
        "that, or anew where there is none");
    add(t, "help", 'h', LS_FLAG_BOOL, &f->help, 0, 0, "print this text");
}

static void add_common(flag_table *t, ls_train_flags *f)
{
    add_place(t, f);
    add_work(t, f);
    add_recipe(t, f);
    add_output(t, f);
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
    flag_table table = {.n = 0};
    flag_table shown = {.n = 0};

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
    add_common(&table, common);
    flags.tables[0] = own;
    flags.n[0] = n_own;
    flags.tables[1] = table.flags;
    flags.n[1] = table.n;
    LS_TRY(ls_flags_parse(&flags, argc, argv, NULL));
    if (!common->help) {
        LS_TRY(device_check(common->device));
        return ls_backend_check(common->backend, 1);
    }
    add_common(&shown,
               &defaults); /* the help shows the defaults, not what was given beside --help */
    flags.tables[1] = shown.flags;
    return print_help(&flags);
}

/* "8,2" into flags->per_node; a list of one stands for every machine. */
static ls_status read_gpus(ls_train_flags *flags, int *n_listed)
{
    const char *at = flags->gpus;
    char number[16];

    for (*n_listed = 0; text_next_item(&at, number, sizeof(number)); ++*n_listed) {
        int64_t ranks;

        if (*n_listed == LS_TRAIN_NODES_MAX)
            return ls_fail(LS_EINVAL, "--gpus: more than %d machines", LS_TRAIN_NODES_MAX);
        LS_TRY(text_parse_int(number, "--gpus", 1, 4096, &ranks));
        flags->per_node[*n_listed] = (int)ranks;
    }
    if (*n_listed == 0)
        return ls_fail(LS_EINVAL, "--gpus is empty: give the ranks of each machine, as 2 or 8,2");
    return LS_OK;
}

/* Whether the backend can serve all ranks of the job, before the machines wait for each other. */
static ls_status check_job(const ls_train_flags *flags, int nodes)
{
    int ranks = 0;

    for (int i = 0; i < nodes; i++)
        ranks += flags->per_node[i];
    return ls_backend_check(flags->backend, ranks);
}

ls_status ls_train_local_ranks(ls_train_flags *flags, int *n)
{
    const char *rank = getenv("LOCKSTEP_RANK"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    int nodes;
    int n_listed;

    LS_TRY(LS_GIVEN(flags));
    LS_TRY(LS_GIVEN(n));
    nodes = flags->nodes > 1 ? (int)flags->nodes : 1;
    *n = 0;
    if (flags->gpus == NULL) {
        if (flags->nodes > 0 || flags->node_id > 0)
            return ls_fail(LS_EINVAL,
                           "--nodes and --id need --gpus: the ranks to start on each machine");
        return LS_OK;
    }
    if (rank != NULL)
        return ls_fail(LS_EINVAL,
                       "--gpus starts ranks, but this process is already rank %s of a job", rank);
    LS_TRY(read_gpus(flags, &n_listed));
    if (nodes > LS_TRAIN_NODES_MAX)
        return ls_fail(LS_EINVAL, "--nodes %d: at most %d", nodes, LS_TRAIN_NODES_MAX);
    if (strchr(flags->gpus, ',') == NULL)
        for (; n_listed < nodes; n_listed++)
            flags->per_node[n_listed] = flags->per_node[0];
    if (flags->nodes == 0)
        nodes = n_listed;
    if (n_listed != nodes)
        return ls_fail(LS_EINVAL, "--gpus %s names %d machine%s, --nodes says %d", flags->gpus,
                       n_listed, text_plural(n_listed), nodes);
    if (flags->node_id >= nodes)
        return ls_fail(LS_EINVAL, "--id %lld, but there %s", (long long)flags->node_id,
                       nodes == 1 ? "is one machine: 0" : "are fewer machines");
    LS_TRY(check_job(flags, nodes));
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
