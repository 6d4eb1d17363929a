/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_run.c - lockstep run [flags] PROG ARGS...: torchrun's flags for one machine, and any program.
 */
#include "cli/cli.h"

#include "base/text.h"
#include "base/thread.h"
#include "comm/recorder.h"
#include "launch/launch.h"
#include "net/socket.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROGRAM_ARGS_MOST = 4096, RANKS_MOST = 4096, RING_SHOWN = 3 };

typedef struct run_flags {
    const char *nproc;
    const char *nnodes;
    int64_t node_rank;
    const char *master_addr;
    int64_t master_port;
    const char *store;
    const char *run_id;
    const char *role;
    int64_t max_restarts;
    int64_t grace_s;
    int standalone;
    int no_python;
    int module;
    int no_prefix;
    int help;
    const char *ignored; /* where flags go that one machine has no use for */
} run_flags;

enum { N_FLAGS = 23 };

static void make_table(run_flags *f, ls_flag table[N_FLAGS])
{
    const ls_flag flags[N_FLAGS] = {
        {"nproc-per-node", 'n', LS_FLAG_TEXT, &f->nproc, 0, 0,
         "ranks: a number, auto or cpu (one a usable core)"},
        {"np", 0, LS_FLAG_TEXT, &f->nproc, 0, 0, NULL},
        {"nnodes", 0, LS_FLAG_TEXT, &f->nnodes, 0, 0, "machines: 1, or 1:1"},
        {"node-rank", 0, LS_FLAG_INT, &f->node_rank, 0, 65535, "which of the machines this is: 0"},
        {"standalone", 0, LS_FLAG_BOOL, &f->standalone, 0, 0,
         "one machine, as always in this version"},
        {"master-addr", 0, LS_FLAG_TEXT, &f->master_addr, 0, 0,
         "where programs meet that host their own store; 127.0.0.1"},
        {"master-port", 0, LS_FLAG_INT, &f->master_port, 0, 65535, "port of the store; a free one"},
        {"store", 0, LS_FLAG_TEXT, &f->store, 0, 0,
         "agent: MASTER_ADDR and MASTER_PORT are a store that we host for PyTorch programs; none: "
         "rank 0 hosts one; agent, but none if --master-addr is not this machine"},
        {"module", 'm', LS_FLAG_BOOL, &f->module, 0, 0,
         "PROG is a Python module: python3 -u -m PROG"},
        {"no-python", 0, LS_FLAG_BOOL, &f->no_python, 0, 0,
         "run PROG itself, even when its name ends in .py"},
        {"grace", 0, LS_FLAG_INT, &f->grace_s, 0, 86400,
         "seconds from SIGTERM to SIGKILL when the job is stopped"},
        {"shutdown-timeout", 0, LS_FLAG_INT, &f->grace_s, 0, 86400, NULL},
        {"no-prefix", 0, LS_FLAG_BOOL, &f->no_prefix, 0, 0,
         "print lines without the rank in front"},
        {"role", 0, LS_FLAG_TEXT, &f->role, 0, 0, "ROLE_NAME of the ranks; \"default\""},
        {"rdzv-id", 0, LS_FLAG_TEXT, &f->run_id, 0, 0, "TORCHELASTIC_RUN_ID; the job's name"},
        {"max-restarts", 0, LS_FLAG_INT, &f->max_restarts, 0, 65535,
         "0: this version does not start ranks again"},
        {"rdzv-backend", 0, LS_FLAG_TEXT, &f->ignored, 0, 0,
         "accepted, as are --rdzv-endpoint, --rdzv-conf, --monitor-interval, --start-method and "
         "--local-addr: one machine has no use for them"},
        {"rdzv-endpoint", 0, LS_FLAG_TEXT, &f->ignored, 0, 0, NULL},
        {"rdzv-conf", 0, LS_FLAG_TEXT, &f->ignored, 0, 0, NULL},
        {"monitor-interval", 0, LS_FLAG_TEXT, &f->ignored, 0, 0, NULL},
        {"start-method", 0, LS_FLAG_TEXT, &f->ignored, 0, 0, NULL},
        {"local-addr", 0, LS_FLAG_TEXT, &f->ignored, 0, 0, NULL},
        {"help", 'h', LS_FLAG_BOOL, &f->help, 0, 0, "print this text"},
    };

    memcpy(table, flags, sizeof(flags));
}

/* The value is handed over as it lies in the environment, which outlives the flags. */
static ls_status read_variable(const ls_flags *flags, const ls_flag *flag, const char *name,
                               char *value)
{
    char first[256];
    char program[] = "lockstep run";
    char *argv[] = {program, first, value};

    if (flag->kind == LS_FLAG_BOOL)
        text_format(first, sizeof(first), "--%s=%s", flag->name, value);
    else
        text_format(first, sizeof(first), "--%s", flag->name);
    return ls_context(ls_flags_parse(flags, flag->kind == LS_FLAG_BOOL ? 2 : 3, argv, NULL), "%s",
                      name);
}

/* As torchrun: every flag --a-b may come as PET_A_B. What stands on the command line is read later, and wins. */
static ls_status read_environment(const ls_flags *flags)
{
    for (int i = 0; i < flags->n[0]; i++) {
        const ls_flag *flag = &flags->tables[0][i];
        char name[64];
        char *value;

        text_format(name, sizeof(name), "PET_%s", flag->name);
        for (char *c = name; *c != 0; c++)
            *c = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
        value = getenv(name); // NOLINT(concurrency-mt-unsafe): nobody sets it
        if (value != NULL && *value != 0)
            LS_TRY(read_variable(flags, flag, name, value));
    }
    return LS_OK;
}

static ls_status count_ranks(const run_flags *f, int *n)
{
    const char *text = f->nproc;
    int64_t number;

    if (text_equal(text, "auto") || text_equal(text, "cpu")) {
        *n = ls_usable_cores(NULL);
        return LS_OK;
    }
    LS_TRY(text_parse_int(text, "--nproc-per-node (or auto, cpu)", 1, RANKS_MOST, &number));
    *n = (int)number;
    return LS_OK;
}

static ls_status check_one_machine(const run_flags *f)
{
    if (!text_equal(f->nnodes, "1") && !text_equal(f->nnodes, "1:1"))
        return ls_fail(LS_EUNSUPPORTED, "--nnodes %s: this version starts the ranks of one machine",
                       f->nnodes);
    if (f->node_rank != 0)
        return ls_fail(LS_EINVAL, "--node-rank %lld, but there is one machine: 0",
                       (long long)f->node_rank);
    return LS_OK;
}

/* What can be bound is ours. */
static bool is_this_machine(const char *host)
{
    net_address at;
    int fd;

    if (net_address_parse(host, 0, &at) != LS_OK)
        return false;
    net_address_set_port(&at, 0);
    if (net_listen(&at, NET_STREAM, 1, &fd, NULL) != LS_OK)
        return false;
    close(fd);
    return true;
}

static ls_status choose_store(const run_flags *f, bool *hosts_store)
{
    const bool is_here = f->master_addr == NULL || is_this_machine(f->master_addr);

    *hosts_store = f->store == NULL ? is_here : text_equal(f->store, "agent");
    if (*hosts_store && !is_here)
        return ls_fail(LS_EINVAL, "--store agent, but --master-addr %s is not this machine",
                       f->master_addr);
    if (f->store != NULL && !*hosts_store && !text_equal(f->store, "none"))
        return ls_fail(LS_EINVAL, "--store \"%s\": must be agent or none", f->store);
    return LS_OK;
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s);

    return n >= strlen(end) && text_equal(s + n - strlen(end), end);
}

static bool is_in_path(const char *program)
{
    const char *at = getenv("PATH"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    char path[4096];

    while (at != NULL && *at != 0) {
        const size_t n = strcspn(at, ":");
        text_format(path, sizeof(path), "%.*s/%s", (int)n, at, program);
        if (access(path, X_OK) == 0)
            return true;
        at += n + (at[n] == ':');
    }
    return false;
}

/* A bare name that PATH does not have may be one of the programs that stand beside the tool. */
static char *find_program(char *program)
{
    static char beside[4096 + 256];
    ssize_t n;

    if (strchr(program, '/') != NULL || strlen(program) > 255 || is_in_path(program))
        return program;
    n = readlink("/proc/self/exe", beside, 4096);
    while (n > 0 && beside[n - 1] != '/')
        n--;
    if (n <= 0)
        return program;
    text_format(beside + n, sizeof(beside) - (size_t)n, "%s", program);
    return access(beside, X_OK) == 0 ? beside : program;
}

/* The command that each rank runs: a Python script gets its interpreter, as torchrun does. */
static ls_status make_command(const run_flags *f, int argc, char **argv, char **command)
{
    const bool python = f->module || (!f->no_python && ends_with(argv[0], ".py"));
    static char unbuffered[] = "-u";
    static char as_module[] = "-m";
    static char standard[] = "python3";
    char *interpreter = getenv("PYTHON_EXEC"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    int n = 0;

    if (argc > PROGRAM_ARGS_MOST)
        return ls_fail(LS_EINVAL, "%d arguments for the program, %d are the most", argc,
                       PROGRAM_ARGS_MOST);
    if (python) {
        command[n++] = interpreter != NULL ? interpreter : standard;
        command[n++] = unbuffered;
        if (f->module)
            command[n++] = as_module;
    }
    command[n++] = python ? argv[0] : find_program(argv[0]);
    for (int i = 1; i < argc; i++)
        command[n++] = argv[i];
    command[n] = NULL;
    return LS_OK;
}

/* What a dead rank was doing, from its flight recorder. */
static void describe_ring(int fd, text_buf *out)
{
    recorder_entry entries[RING_SHOWN];
    int n;

    if (recorder_read(fd, entries, RING_SHOWN, &n) != LS_OK || n == 0)
        return;
    text_append(out, "  its last operations:\n");
    for (int i = 0; i < n; i++) {
        char stamp[256];
        const char *end = entries[i].status == LS_OK ? "done" : "failed";
        text_append(out, "  | %s, %s\n", stamp_text(stamp, sizeof(stamp), &entries[i].stamp),
                    entries[i].end_ns != 0 ? end : "not finished");
    }
}

static int run_job(const run_flags *f, int n_ranks, bool hosts_store, char **command)
{
    const agent_spec spec = {.n_ranks = n_ranks,
                             .argv = command,
                             .grace_ms = f->grace_s * 1000,
                             .capture = true,
                             .prefix = !f->no_prefix,
                             .hosts_store = hosts_store,
                             .master_addr = f->master_addr,
                             .master_port = (int)f->master_port,
                             .run_id = f->run_id,
                             .role = f->role,
                             .make_ring = recorder_create_fd,
                             .describe_ring = describe_ring};
    agent_result result;
    ls_status st;

    if (f->max_restarts > 0)
        print_error("lockstep: this version does not start ranks again: --max-restarts %lld has no "
                    "effect\n",
                    (long long)f->max_restarts);
    st = agent_run(&spec, &result);
    if (st != LS_OK)
        return print_failure("run", st);
    if (result.failed)
        print_error("lockstep: %s", text_str(&result.report));
    text_free(&result.report);
    return result.exit_code;
}

int cmd_run(int argc, char **argv)
{
    run_flags f = {.nproc = "1", .nnodes = "1", .grace_s = 10};
    static char *command[PROGRAM_ARGS_MOST + 4];
    ls_flag table[N_FLAGS];
    const ls_flags flags = {
        .size = sizeof(flags),
        .program = "lockstep run",
        .usage = "[flags] PROG ARGS...",
        .summary = "Starts PROG as the ranks of a job on this machine, and watches over it.",
        .tables = {table},
        .n = {N_FLAGS},
        .takes_rest = 1};
    bool hosts_store = false;
    int n_ranks = 0;
    int rest = argc;
    ls_status st;

    make_table(&f, table);
    st = read_environment(&flags);
    if (st == LS_OK)
        st = ls_flags_parse(&flags, argc, argv, &rest);
    if (st == LS_OK && f.help)
        return print_help(&flags);
    if (st == LS_OK && rest == argc)
        st = ls_fail(LS_EINVAL, "which program? lockstep run [flags] PROG ARGS...");
    if (st == LS_OK)
        st = check_one_machine(&f);
    if (st == LS_OK)
        st = count_ranks(&f, &n_ranks);
    if (st == LS_OK)
        st = choose_store(&f, &hosts_store);
    if (st == LS_OK)
        st = make_command(&f, argc - rest, argv + rest, command);
    return st == LS_OK ? run_job(&f, n_ranks, hosts_store, command) : print_failure("run", st);
}
