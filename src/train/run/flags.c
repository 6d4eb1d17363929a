/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flags.c - reads the flags of a training program, and says how many ranks to start on this node.
 * Programs call it first.
 */
#include <lockstep/train.h>

#include "base/status.h"
#include "base/text.h"
#include "comm/record/recorder.h"
#include "tensor/device.h"
#include "train/common_flags.h"
#include "train/finite.h"
#include "train/output/progress.h"
#include "train/run/agree.h"
#include "train/run/run_local.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* program: as the user has typed it. */
static ls_status print_help(const ls_flags *flags, const char *program)
{
    const char *argument = strchr(flags->usage, ' '); // behind "[flags]"
    char end[512];
    char *text;

    LS_TRY(ls_flags_help(flags, &text));
    progress_write(STDOUT_FILENO, text);
    ls_flags_free(text);
    text_format(end, sizeof(end),
                "\nExample, on 2 ranks:\n  lockstep run -n 2 %s%s --epochs 2 --save FILE\n"
                "Page: docs/training.md\n",
                program[0] == '.' ? program : flags->program, argument != NULL ? argument : "");
    progress_write(STDOUT_FILENO, end);
    return LS_OK;
}

static void print_version(const char *program)
{
    char line[256];

    text_format(line, sizeof(line), "%s (lockstep %s)\n", program, ls_version());
    progress_write(STDOUT_FILENO, line);
}

static ls_status parse(const char *program, const char *summary, int argc, char **argv,
                       ls_train_flags *common, const ls_flag *own, int n_own)
{
    char usage[64] = "[flags]";
    ls_flags flags = {
        .size = sizeof(flags), .program = program, .usage = usage, .summary = summary};
    ls_train_flags defaults;
    ls_flag table[COMMON_FLAGS_MOST];

    if (common->accumulate == 0)
        common->accumulate = 1;
    if (common->nan_limit == 0)
        common->nan_limit = NAN_LIMIT;
    if (common->outer_lr == 0)
        common->outer_lr = LOCAL_OUTER_LR;
    if (common->outer_momentum == 0)
        common->outer_momentum = LOCAL_OUTER_MOMENTUM;
    defaults = *common;
    for (int i = 0; i < n_own; i++)
        if (own[i].kind == LS_FLAG_ARGUMENT)
            text_format(usage, sizeof(usage), "[flags] %s", own[i].name);
    flags.tables[0] = own;
    flags.n[0] = n_own;
    flags.tables[1] = table;
    flags.n[1] = common_flags_list(common, table);
    LS_TRY(ls_flags_parse(&flags, argc, argv, NULL));
    if (common->version) {
        common->help = 1;
        print_version(program);
        return LS_OK;
    }
    if (is_set(common->replay)) { // one process computes all ranks
        common->gpus = common->backend = NULL;
        common->nodes = common->node_id = 0;
    }
    agree_note_defaults(common, &defaults);
    if (common->nan_limit == 0)
        common->nan_limit = -1; // 0 in the struct stands for the default, as in the next two
    if (common->outer_lr == 0)
        common->outer_lr = -1;
    if (common->outer_momentum == 0)
        common->outer_momentum = -1;
    if (!common->help) {
        LS_TRY(check_device(common));
        return ls_backend_check(common->backend, 1);
    }
    flags.brief = common->help > 1 ? NULL : common_flags_brief;
    // Help shows the defaults, not values given with --help.
    (void)common_flags_list(&defaults, table);
    return print_help(&flags, argv[0]);
}

ls_status ls_train_parse(const char *program, const char *summary, int argc, char **argv,
                         ls_train_flags *common, const ls_flag *own, int n_own)
{
    LS_TRY(LS_GIVEN(program));
    LS_TRY(LS_GIVEN(summary));
    LS_TRY(LS_GIVEN(argv));
    LS_TRY(LS_GIVEN(common));
    if (n_own > 0)
        LS_TRY(LS_GIVEN(own));
    return parse(program, summary, argc, argv, common, own, n_own);
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

/* Checks --gpus against --nodes and --id, and completes per_node. */
static ls_status count_nodes(ls_train_flags *flags, int *out)
{
    int nodes = flags->nodes > 1 ? (int)flags->nodes : 1;
    int n_listed;

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
    *out = nodes;
    return LS_OK;
}

ls_status ls_train_local_ranks(ls_train_flags *flags, int *n)
{
    const char *rank =
        getenv("LOCKSTEP_RANK"); // NOLINT(concurrency-mt-unsafe): no thread changes it
    int nodes = 1;

    LS_TRY(LS_GIVEN(flags));
    LS_TRY(LS_GIVEN(n));
    *n = 0;
    if (flags->gpus == NULL) {
        if (flags->nodes > 0 || flags->node_id > 0)
            return ls_fail(LS_EINVAL,
                           "--nodes and --id (-n, -i) need --gpus (-g), the ranks to start on each "
                           "machine; 2 ranks on this machine: -g 2");
        return LS_OK;
    }
    if (rank != NULL)
        return ls_fail(
            LS_EINVAL,
            "--gpus starts ranks, but this process is already rank %s of a job; omit --gpus", rank);
    LS_TRY(count_nodes(flags, &nodes));
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
    text_append(&t, "%s: %s", program == NULL ? "program" : program, ls_last_error());
    recorder_note_failure_line(text_str(&t));
    text_append(&t, "\n");
    progress_write(STDERR_FILENO, text_str(&t));
    text_free(&t);
    return EXIT_FAILURE;
}
