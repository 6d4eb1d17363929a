/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_bench.c - lockstep bench OPERATION [flags]: the flags of nccl-tests and our own. It starts
 * the ranks, unless a launcher has started this process as a rank.
 */
#include "cli/bench/bench.h"
#include "cli/cli.h"
#include "comm/backends/native/team/algorithms.h"
#include "comm/comm.h"

#include "base/clock.h"
#include "tensor/device.h"

#include <lockstep/launch.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define VS_TURNS 11

enum { N_PEER_FLAGS = 33, N_OWN_FLAGS = 14 };

/* The flags of nccl-tests, with its letters. The help of a flag without effect says why. */
static void make_peer_table(bench_options *o, ls_flag table[N_PEER_FLAGS])
{
    const double most = 1e12;
    const ls_flag flags[N_PEER_FLAGS] = {
        {"As in nccl-tests", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"minbytes", 'b', LS_FLAG_BYTES, &o->min_bytes, 0, 0, "smallest size"},
        {"maxbytes", 'e', LS_FLAG_BYTES, &o->max_bytes, 0, 0, "largest size"},
        {"stepbytes", 'i', LS_FLAG_BYTES, &o->step_bytes, 0, 0,
         "added from size to size, without -f"},
        {"stepfactor", 'f', LS_FLAG_INT, &o->factor, 0, 1024, "factor from size to size"},
        {"op", 'o', LS_FLAG_TEXT, &o->redop, 0, 0,
         "`NAME` sum, avg, prod, min, max, band, bor, bxor, all"},
        {"datatype", 'd', LS_FLAG_TEXT, &o->type, 0, 0,
         "`TYPE` int8, uint8, int32, int64, half, bfloat16, float, double, all"},
        {"root", 'r', LS_FLAG_TEXT, &o->root, 0, 0, "`RANK` a rank, or all"},
        {"iters", 'n', LS_FLAG_INT, &o->iterations, 1, most, "timed iterations"},
        {"warmup_iters", 'w', LS_FLAG_INT, &o->warmup, 0, most, "warm-up iterations"},
        {"agg_iters", 'm', LS_FLAG_INT, &o->aggregate, 1, BENCH_AGGREGATE_MAX,
         "operations per iteration, started together"},
        {"run_cycles", 'N', LS_FLAG_INT, &o->cycles, 0, 1e6,
         "number of runs of the table, 0 = until interrupted; with --vs turns per row (11)"},
        {"average", 'a', LS_FLAG_INT, &o->average, 0, 3,
         "`0-3` report the time of rank 0 (0), or the mean (1), minimum (2) or maximum (3) of all "
         "ranks"},
        {"check", 'c', LS_FLAG_INT, &o->check, 0, most,
         "number of operations whose results are checked, 0 = disabled"},
        {"nthreads", 't', LS_FLAG_INT, &o->threads, 1, 4096, "ranks to start, multiplied by -g"},
        {"ngpus", 'g', LS_FLAG_INT, &o->ranks, 1, 4096, "ranks to start on this machine"},
        {"timeout", 'T', LS_FLAG_INT, &o->timeout_s, 0, 1e6, "`SECONDS` timeout of an operation"},
        {"blocking", 'z', LS_FLAG_INT, &o->blocking, 0, 3,
         "`0-3` 1: wait and barrier after each operation; 2: wait after each; 3: barrier after "
         "each iteration, which is not timed"},
        {"per_iter_timing", 'I', LS_FLAG_INT, &o->intervals, 0, 1,
         "`0|1` 1: also print minimum, maximum, 99th percentile and variation of single "
         "iterations, of the slowest rank each"},
        {"report_intervals", 0, LS_FLAG_INT, &o->intervals, 0, 1, NULL},
        {"per_iter_skip", 'K', LS_FLAG_INT, &o->skip, 0, most,
         "number of first iterations that -I skips"},
        {"report_cputime", 'C', LS_FLAG_INT, &o->cpu_time, 0, 1,
         "`0|1` 1: print the time until the asynchronous call has returned instead of the time; "
         "bandwidths are computed from the time"},
        {"report_timestamps", 'S', LS_FLAG_INT, &o->timestamps, 0, 1,
         "`0|1` 1: print the time of day of each row"},
        {"local_register", 'R', LS_FLAG_INT, &o->registration, 0, 2,
         "`0-2` 1, 2: same as --memory registered"},
        {"unalign", 'u', LS_FLAG_INT, &o->unalign, 0, 1 << 20,
         "offset of the buffers from their alignment, in elements"},
        {"memory_report", 'M', LS_FLAG_INT, &o->memory_report, 0, 1,
         "`0|1` 1: print the memory used by initialization, buffers and operations (also "
         "--memory 1)"},
        {"output_file", 'J', LS_FLAG_TEXT, &o->output_file, 0, 0,
         "`FILE` write the JSON report of nccl-tests; if FILE exists, to FILE.0"},
        {"parallel_init", 'p', LS_FLAG_TEXT, &o->unused[0], 0, 0,
         "`0|1` no effect: ranks are processes, which always initialize in parallel"},
        {"stream_null", 'y', LS_FLAG_TEXT, &o->unused[1], 0, 0,
         "`0|1` no effect: the null stream is not used"},
        {"cudagraph", 'G', LS_FLAG_TEXT, &o->unused[2], 0, 0,
         "`N` no effect: operations are not captured in CUDA graphs"},
        {"cta_policy", 'x', LS_FLAG_TEXT, &o->unused[3], 0, 0,
         "`0-2` no effect: NCCL chooses its thread blocks"},
        {"device_implementation", 'D', LS_FLAG_TEXT, &o->unused[4], 0, 0,
         "`N` no effect: NCCL's device API is not used"},
        {"device_cta_count", 'V', LS_FLAG_TEXT, &o->unused[5], 0, 0,
         "`N` no effect: NCCL chooses its thread blocks"},
    };

    memcpy(table, flags, sizeof(flags));
}

static void make_own_table(bench_options *o, int *help, ls_flag table[N_OWN_FLAGS])
{
    const ls_flag flags[N_OWN_FLAGS] = {
        {"Lockstep's own", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"backend", 0, LS_FLAG_TEXT, &o->backend, 0, 0, "`NAME` auto, native, mpi, nccl, gloo"},
        {"transport", 0, LS_FLAG_TEXT, &o->transport, 0, 0, "`NAME` auto, shm, tcp"},
        {"device", 0, LS_FLAG_TEXT, &o->device, 0, 0,
         "`NAME` operate on the memory of cpu, cuda (one card for each rank), or cuda:N (cpu)"},
        {"share-gpu", 0, LS_FLAG_BOOL, &o->share_gpu, 0, 0,
         "ranks may share a card, when there are fewer cards than ranks"},
        {"memory", 0, LS_FLAG_TEXT, &o->memory, 0, 0,
         "`KIND` user, or registered: memory as of the buckets of DDP"},
        {"json", 0, LS_FLAG_TEXT, &o->json, 0, 0, "`FILE` write an array of all measurements"},
        {"touch", 0, LS_FLAG_BOOL, &o->touch, 0, 0,
         "write the source before each operation and read the destination after it, as training "
         "does; neither is timed"},
        {"vs", 0, LS_FLAG_TEXT, &o->vs, 0, 0,
         "`LIST` backends to compare with, in alternating turns of one run: mpi:openmpi,mpi:mpich,"
         "gloo"},
        {"bind-to", 0, LS_FLAG_TEXT, &o->bind, 0, 0,
         "`WHAT` none, or core: one core per rank if there are enough (none; with --vs core)"},
        {"watch", 0, LS_FLAG_ATTACHED_TEXT, &o->watch, 0, 0,
         "`N` with sendrecv: print the throughput between ranks each second, until Ctrl-C or, with "
         "=N, N times"},
        {"show-algorithms", 0, LS_FLAG_BOOL, &o->show_algorithms, 0, 0,
         "print which algorithm the native backend uses for each operation and size, and exit"},
        {"turn", 0, LS_FLAG_TEXT, &o->turn, 0, 0, NULL},
        {"help", 'h', LS_FLAG_BOOL, help, 0, 0, "print this text"},
    };

    memcpy(table, flags, sizeof(flags));
}

// --- checks ---

static ls_status check_names(const bench_options *o)
{
    int64_t root;

    if (bench_type(o->type) < 0 && !text_equal(o->type, "all"))
        return ls_fail(
            LS_EINVAL,
            "-d %s: unknown type; must be int8, uint8, int32, int64, half, bfloat16, float, "
            "double, all",
            o->type);
    if (bench_redop(o->redop) < 0 && !text_equal(o->redop, "all"))
        return ls_fail(LS_EINVAL,
                       "-o %s: unknown reduction; must be sum, avg, prod, min, max, band, bor, "
                       "bxor, all",
                       o->redop);
    if (bench_reduces(o->kind) && bench_type(o->type) >= 0 && bench_redop(o->redop) >= 0 &&
        !reduce_is_defined((ls_reduce_op)bench_redop(o->redop), (ls_dtype)bench_type(o->type)))
        return ls_fail(LS_EINVAL, "-d %s -o %s: %s types have no %s", o->type, o->redop,
                       text_equal(o->redop, "avg") ? "integer" : "floating-point", o->redop);
    if (!text_equal(o->root, "all"))
        LS_TRY(text_parse_int(o->root, "--root", -1, INT32_MAX, &root));
    if (!text_equal(o->memory, "user") && !text_equal(o->memory, "registered"))
        return ls_fail(LS_EINVAL, "--memory %s: must be user or registered; 0 or 1 mean -M",
                       o->memory);
    if (!text_equal(o->bind, "none") && !text_equal(o->bind, "core"))
        return ls_fail(LS_EINVAL, "--bind-to %s: must be none or core", o->bind);
    return LS_OK;
}

static ls_status check_together(const bench_options *o)
{
    if (o->watch == NULL && o->min_bytes > o->max_bytes)
        return ls_fail(LS_EINVAL, "-b %lld is larger than -e %lld", (long long)o->min_bytes,
                       (long long)o->max_bytes);
    if (o->factor < 2 && o->step_bytes < 1)
        return ls_fail(LS_EINVAL, "-i 0 without -f gives no next size");
    if (o->skip >= o->iterations)
        return ls_fail(LS_EINVAL, "-K %lld skips all iterations: -n is %lld", (long long)o->skip,
                       (long long)o->iterations);
    if (o->watch != NULL && o->kind != BENCH_SEND_RECV)
        return ls_fail(LS_EINVAL, "--watch is for sendrecv");
    if (o->device != NULL && o->touch)
        return ls_fail(LS_EINVAL, "--touch with --device: it is for the caches of CPUs");
    if (o->vs != NULL && o->cycles < 1)
        return ls_fail(LS_EINVAL, "-N 0 with --vs: give the number of turns, 1 or more");
    if (o->vs != NULL && o->output_file != NULL)
        return ls_fail(LS_EINVAL, "-J with --vs: the report is for one backend; use --json");
    return LS_OK;
}

static ls_status read_min_bandwidth(double *out)
{
    const char *text = getenv("NCCL_TESTS_MIN_BW"); // NOLINT(concurrency-mt-unsafe)

    *out = -1;
    return text != NULL && *text != '\0' ? text_parse_double(text, "NCCL_TESTS_MIN_BW", 0, 1e9, out)
                                         : LS_OK;
}

// --- flags without effect ---

/* Appends a line for each of these flags that is given: "# -G 10 has no effect: ...". */
static ls_status note_unused(const ls_flag *peers, text_buf *notes)
{
    for (int i = N_PEER_FLAGS - BENCH_UNUSED_FLAGS; i < N_PEER_FLAGS; i++) {
        const char *value = *(const char **)peers[i].value;
        char what[64];
        int64_t number;

        if (value == NULL)
            continue;
        text_format(what, sizeof(what), "--%s", peers[i].name);
        LS_TRY(text_parse_int(value, what, INT32_MIN, INT32_MAX, &number));
        text_append(notes, "# -%c %lld has %s\n", peers[i].letter, (long long)number,
                    strstr(peers[i].help, "no effect"));
    }
    return LS_OK;
}

static void note_others(const bench_options *o, bool launched, text_buf *notes)
{
    if (launched && o->turn == NULL && o->ranks * o->threads > 1)
        text_append(notes, "# -g and -t have no effect: the launcher has started the ranks\n");
    if (o->skip > 0 && o->intervals == 0)
        text_append(notes, "# -K has no effect without -I 1\n");
    if (o->vs != NULL && o->cpu_time > 0)
        text_append(notes, "# -C has no effect with --vs, which compares times\n");
    if (o->vs != NULL && o->memory_report > 0)
        text_append(notes, "# -M has no effect with --vs\n");
}

// --- ranks ---

/* Binds one rank per core if there are enough cores; otherwise the kernel places the ranks. */
static void bind_to_core(const ls_comm *comm)
{
    int left = ls_comm_local_rank(comm);
    cpu_set_t all;
    cpu_set_t one;

    if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < ls_comm_local_size(comm))
        return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && left-- == 0)
            CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof(one), &one);
}

static ls_status join_and_run(const bench_options *o, ls_queue *queue)
{
    const ls_init_options init = {.size = sizeof(init),
                                  .backend = o->backend,
                                  .transport = o->transport,
                                  .timeout_ms = ls_duration_of_s((double)o->timeout_s)};
    const int64_t used = bench_memory_used(queue);
    ls_comm *comm = NULL;
    ls_status st;

    LS_TRY(ls_init(&init, &comm));
    if (text_equal(o->bind, "core"))
        bind_to_core(comm);
    st = o->watch != NULL ? bench_watch(comm, queue, o) : bench_run(comm, queue, o, used);
    ls_comm_destroy(comm);
    return st;
}

/* A rank opens its device before it joins: what is wrong there is found before ranks wait. */
static ls_status run_rank(int local_rank, void *arg)
{
    const bench_options *o = arg;
    const ls_device_options options = {
        .size = sizeof(options), .name = o->device, .share_gpu = o->share_gpu};
    ls_device *device = NULL;
    ls_queue *queue;
    ls_status st;

    LS_UNUSED(local_rank);
    if (o->device == NULL)
        return join_and_run(o, NULL);
    LS_TRY(ls_device_open(&options, &device));
    queue = ls_device_queue(device);
    if (queue != NULL)
        st = join_and_run(o, queue);
    else
        st = ls_fail(LS_EINVAL, "--device %s: it has no memory of its own; leave the flag out",
                     o->device);
    (void)ls_device_close(device);
    return st;
}

static bool has_variable(const char *name)
{
    return getenv(name) != NULL; // NOLINT(concurrency-mt-unsafe): there is one thread
}

/* Whether a launcher has started this process as a rank. */
static bool is_launched(void)
{
    static const char *const names[] = {"LOCKSTEP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                        "PMIX_RANK", "RANK"};

    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        if (has_variable(names[i]))
            return true;
    return has_variable("SLURM_PROCID") && has_variable("SLURM_STEP_ID");
}

/* --memory 0 or 1 is -M, as in nccl-tests; our --memory names the kind of memory. The CPU is no
 * device here: it has host memory. */
static void set_memory(bench_options *o)
{
    if (o->device != NULL && text_equal(o->device, "cpu"))
        o->device = NULL;
    if (text_equal(o->memory, "0") || text_equal(o->memory, "1")) {
        o->memory_report = text_equal(o->memory, "1");
        o->memory = "user";
    }
    if (o->registration > 0)
        o->memory = "registered";
}

/* Before ranks are started; a rank that is started finds out by itself. */
static ls_status check_device(const bench_options *o, bool is_rank)
{
    const ls_device_options device = {
        .size = sizeof(device), .name = o->device, .share_gpu = o->share_gpu};

    return o->device == NULL || is_rank ? LS_OK : device_check(&device);
}

static ls_status run(bench_options *o, const ls_flag *peers, text_buf *notes)
{
    const bool launched = is_launched();

    set_memory(o);
    if (o->bind == NULL)
        o->bind = o->vs != NULL ? "core" : "none";
    if (o->vs != NULL && o->cycles == 1)
        o->cycles = VS_TURNS;
    LS_TRY(check_names(o));
    LS_TRY(check_together(o));
    LS_TRY(read_min_bandwidth(&o->min_bandwidth));
    if (launched && o->vs != NULL && o->turn == NULL)
        return ls_fail(LS_EINVAL, "--vs starts its own ranks: run it without a launcher (-g N)");
    LS_TRY(note_unused(peers, notes));
    note_others(o, launched, notes);
    LS_TRY(text_status(notes));
    o->notes = text_str(notes);
    LS_TRY(check_device(o, launched));
    if (o->vs != NULL && o->turn == NULL)
        return bench_vs(o, o->argc - 1, o->argv + 1);
    return launched ? run_rank(0, o) : ls_spawn(run_rank, (int)(o->ranks * o->threads), o, NULL);
}

static ls_status show_algorithms(void)
{
    text_buf text = {0};
    ls_status st = algorithms_text(&text);

    if (st == LS_OK)
        st = text_status(&text);
    if (st == LS_OK)
        print_out("%s", text_str(&text));
    text_free(&text);
    return st;
}

static int fail_bench(const char *program, ls_status status)
{
    print_error("%s: %s\n", program, ls_last_error());
    return status == LS_EINVAL ? 2 : 1;
}

/* argv: the flags, after the name of the operation. kind -1: no operation is given. */
static int bench_command(const ls_flags *described, int kind, int argc, char **argv)
{
    bench_options o = {.min_bytes = 32 << 20,
                       .max_bytes = 32 << 20,
                       .step_bytes = 1 << 20,
                       .redop = "sum",
                       .type = "float",
                       .root = "0",
                       .iterations = 20,
                       .warmup = 1,
                       .aggregate = 1,
                       .cycles = 1,
                       .average = BENCH_MEAN,
                       .check = 1,
                       .threads = 1,
                       .ranks = 1,
                       .memory = "user",
                       .argc = argc,
                       .argv = argv};
    ls_flag peers[N_PEER_FLAGS];
    ls_flag own[N_OWN_FLAGS];
    ls_flags flags = *described;
    text_buf notes = {0};
    int help = 0;
    ls_status st;

    make_peer_table(&o, peers);
    make_own_table(&o, &help, own);
    flags.tables[0] = peers;
    flags.tables[1] = own;
    flags.n[0] = N_PEER_FLAGS;
    flags.n[1] = N_OWN_FLAGS;
    st = ls_flags_parse(&flags, argc, argv, NULL);
    if (st == LS_OK && (help || (kind < 0 && !o.show_algorithms)))
        return print_help(&flags);
    o.kind = kind;
    if (st == LS_OK)
        st = o.show_algorithms ? show_algorithms() : run(&o, peers, &notes);
    text_free(&notes);
    return st == LS_OK ? 0 : fail_bench(flags.program, st);
}

int cmd_bench(int argc, char **argv)
{
    char operations[256];
    char summary[320];
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "lockstep bench",
                            .usage = "OPERATION [flags]",
                            .summary = summary};
    const bool named = argc > 1 && argv[1][0] != '-';
    const bench_kind kind = named ? bench_kind_of(argv[1]) : -1;

    bench_kind_names(operations, sizeof(operations));
    text_format(summary, sizeof(summary),
                "Times an operation with the flags and columns of nccl-tests: %s.", operations);
    if (named && kind < 0)
        return fail_bench(flags.program, ls_fail(LS_EINVAL, "%.40s: unknown operation; must be %s",
                                                 argv[1], operations));
    return bench_command(&flags, kind, argc - named, argv + named);
}

bool is_perf_program(const char *name)
{
    return bench_kind_of_program(name) >= 0;
}

int cmd_perf(const char *program, int argc, char **argv)
{
    const ls_flags flags = {.size = sizeof(flags),
                            .program = program,
                            .usage = "[flags]",
                            .summary = "Times the operation that the program is named after, as "
                                       "lockstep bench OPERATION does."};

    return bench_command(&flags, bench_kind_of_program(program), argc, argv);
}
