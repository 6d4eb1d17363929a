/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_bench.c - lockstep bench all_reduce [flags]: nccl-tests' flags; starts its own ranks unless a launcher has.
 */
#include "cli/bench.h"
#include "cli/cli.h"

#include <lockstep/launch.h>

#include <stdlib.h>
#include <string.h>

enum { N_FLAGS = 16 };

static void make_table(bench_options *o, int64_t *root, int *help, ls_flag table[N_FLAGS])
{
    const double most = 1e12;
    const ls_flag flags[N_FLAGS] = {
        {"minbytes", 'b', LS_FLAG_BYTES, &o->min_bytes, 0, 0, "smallest size"},
        {"maxbytes", 'e', LS_FLAG_BYTES, &o->max_bytes, 0, 0, "largest size"},
        {"stepbytes", 'i', LS_FLAG_BYTES, &o->step_bytes, 0, 0, "from size to size, without -f"},
        {"stepfactor", 'f', LS_FLAG_INT, &o->factor, 0, 1024, "times so much from size to size"},
        {"op", 'o', LS_FLAG_TEXT, &o->redop, 0, 0, "sum, avg, prod, min, max, all"},
        {"datatype", 'd', LS_FLAG_TEXT, &o->type, 0, 0,
         "int8, uint8, int32, int64, half, bfloat16, float, double, all"},
        {"root", 'r', LS_FLAG_INT, root, 0, 1 << 20, "accepted; all_reduce has none"},
        {"iters", 'n', LS_FLAG_INT, &o->iterations, 1, most, "operations that are timed"},
        {"warmup_iters", 'w', LS_FLAG_INT, &o->warmup, 0, most, "operations before them"},
        {"check", 'c', LS_FLAG_INT, &o->check, 0, most, "0: do not check results"},
        {"ngpus", 'g', LS_FLAG_INT, &o->ranks, 1, 4096, "ranks to start on this machine"},
        {"backend", 0, LS_FLAG_TEXT, &o->backend, 0, 0, "auto, native"},
        {"transport", 0, LS_FLAG_TEXT, &o->transport, 0, 0, "auto, shm, tcp"},
        {"memory", 0, LS_FLAG_TEXT, &o->memory, 0, 0, "user, or registered: from ls_comm_alloc"},
        {"json", 'J', LS_FLAG_TEXT, &o->json, 0, 0, "FILE for an array of all measurements"},
        {"help", 'h', LS_FLAG_BOOL, help, 0, 0, "print this text"},
    };

    memcpy(table, flags, sizeof(flags));
}

static ls_status check_options(const bench_options *o)
{
    if (bench_type(o->type) < 0 && !text_equal(o->type, "all"))
        return ls_fail(LS_EINVAL,
                       "-d %s is no type: int8, uint8, int32, int64, half, bfloat16, float, "
                       "double, all",
                       o->type);
    if (bench_redop(o->redop) < 0 && !text_equal(o->redop, "all"))
        return ls_fail(LS_EINVAL, "-o %s is no reduction: sum, avg, prod, min, max, all", o->redop);
    if (bench_type(o->type) >= 0 && bench_redop(o->redop) >= 0 &&
        !bench_is_defined((ls_dtype)bench_type(o->type), (ls_reduce_op)bench_redop(o->redop)))
        return ls_fail(LS_EINVAL, "-d %s -o %s: whole numbers have no average", o->type, o->redop);
    if (!text_equal(o->memory, "user") && !text_equal(o->memory, "registered"))
        return ls_fail(LS_EINVAL, "--memory %s: user or registered", o->memory);
    if (o->min_bytes > o->max_bytes)
        return ls_fail(LS_EINVAL, "-b is over -e: %lld and %lld bytes", (long long)o->min_bytes,
                       (long long)o->max_bytes);
    if (o->factor < 2 && o->step_bytes < 1)
        return ls_fail(LS_EINVAL, "-i or -f must lead from one size to the next");
    return LS_OK;
}

static ls_status run_rank(int local_rank, void *arg)
{
    const bench_options *o = arg;
    const ls_init_options init = {
        .size = sizeof(init), .backend = o->backend, .transport = o->transport};
    ls_comm *comm = NULL;
    ls_status st;

    LS_UNUSED(local_rank);
    LS_TRY(ls_init(&init, &comm));
    st = bench_all_reduce(comm, o);
    ls_comm_destroy(comm);
    return st;
}

static bool has_variable(const char *name)
{
    return getenv(name) != NULL; // NOLINT(concurrency-mt-unsafe): nobody sets it
}

/* Whether somebody has started this process as one of several ranks. */
static bool was_launched(void)
{
    static const char *const signs[] = {"LOCKSTEP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                        "PMIX_RANK", "RANK"};

    for (size_t i = 0; i < LS_COUNT_OF(signs); i++)
        if (has_variable(signs[i]))
            return true;
    return has_variable("SLURM_PROCID") && has_variable("SLURM_STEP_ID");
}

int cmd_bench(int argc, char **argv)
{
    bench_options o = {.min_bytes = 32 << 20,
                       .max_bytes = 32 << 20,
                       .step_bytes = 1 << 20,
                       .redop = "sum",
                       .type = "float",
                       .iterations = 20,
                       .warmup = 1,
                       .check = 1,
                       .ranks = 1,
                       .memory = "user"};
    ls_flag table[N_FLAGS];
    int64_t root = 0;
    int help = 0;
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "lockstep bench all_reduce",
                            .usage = "[flags]",
                            .summary = "Times all_reduce with the flags and columns of nccl-tests.",
                            .tables = {table},
                            .n = {N_FLAGS}};
    const bool named = argc > 1 && argv[1][0] != '-';
    ls_status st = LS_OK;

    make_table(&o, &root, &help, table);
    if (named && !text_equal(argv[1], "all_reduce"))
        st = ls_fail(LS_EUNSUPPORTED, "%s: this version measures all_reduce", argv[1]);
    if (st == LS_OK)
        st = ls_flags_parse(&flags, argc - named, argv + named, NULL);
    if (st == LS_OK && (help || !named))
        return print_help(&flags);
    if (st == LS_OK)
        st = check_options(&o);
    if (st == LS_OK)
        st = was_launched() ? run_rank(0, &o) : ls_spawn(run_rank, (int)o.ranks, &o, NULL);
    return st == LS_OK ? 0 : print_failure("bench", st);
}
