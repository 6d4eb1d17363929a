/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_flags.c - the table of the flags of lockstep run, and how their values are read and checked
 * before the job starts.
 */
#include "cli/run/run_flags.h"

#include "base/clock.h"
#include "base/flags/flag_table.h"
#include "base/signal_list.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run/rank_count.h"
#include "net/reach.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { FLAGS_MOST = 80, GRACE_S = 10, TORCHRUN_GRACE_S = 30, HEARTBEAT_MAX_S = 3600 };

/* The flags in the order of the help text. */
typedef struct flag_table {
    ls_flag flags[FLAGS_MOST];
    int n;
} flag_table;

static void add(flag_table *t, const ls_flag *flags, size_t n)
{
    LS_ASSERT((size_t)t->n + n <= FLAGS_MOST);
    memcpy(t->flags + t->n, flags, n * sizeof(*flags));
    t->n += (int)n;
}

/* Where ranks run, and how machines and ranks connect. */
static void add_machine_flags(flag_table *t, run_flags *f)
{
    const ls_flag flags[] = {
        {"Ranks and hosts", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"nproc-per-node", 'n', LS_FLAG_TEXT, &f->nproc, 0, 0,
         "`N` ranks on this machine (the -n of training programs is a number of machines), or gpu: "
         "one per visible GPU, cpu: one per usable core, auto: gpu where there is one, else cpu; "
         "with -H or --hostfile: ranks of the whole job (default: 1, or one per slot)"},
        {"np", 0, LS_FLAG_TEXT, &f->nproc, 0, 0, NULL},
        {"hosts", 'H', LS_FLAG_TEXT, &f->host_text, 0, 0,
         "`LIST` machines and their numbers of ranks, a:8,b:2 (default 1); they are started from "
         "here by ssh"},
        {"host", 0, LS_FLAG_TEXT, &f->host_text, 0, 0, NULL},
        {"hostfile", 0, LS_FLAG_TEXT, &f->hostfile, 0, 0,
         "`FILE` the same from a file, lines \"a slots=8\" or \"a:8\"; without a number one rank "
         "per core"},
        {"machinefile", 0, LS_FLAG_TEXT, &f->hostfile, 0, 0, NULL},
        {"export", 'x', LS_FLAG_TEXTS, &f->exports, 0, 0,
         "`NAME[=VALUE]` environment variable for all ranks on all machines; may be repeated"},
        {"ssh", 0, LS_FLAG_TEXT, &f->ssh, 0, 0,
         "`COMMAND` command with arguments to use instead of ssh (under Slurm, instead of srun)"},
        {"ssh-port", 0, LS_FLAG_INT, &f->ssh_port, 0, 65535, "`PORT` of the ssh servers"},
        {"Several machines, with this command run on each", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"nnodes", 0, LS_FLAG_TEXT, &f->nnodes, 0, 0,
         "`N` machines, or MIN:MAX with --rdzv-backend c10d"},
        {"node-rank", 0, LS_FLAG_INT, &f->node_rank, 0, 65535,
         "rank of this machine; machine 0 is the one at --master-addr"},
        {"standalone", 0, LS_FLAG_BOOL, &f->standalone, 0, 0,
         "one machine; overrides other node options"},
        {"master-addr", 0, LS_FLAG_TEXT, &f->job.master_addr, 0, 0,
         "`HOST` address of machine 0 (127.0.0.1)"},
        {"master-port", 0, LS_FLAG_INT, &f->master_port, 0, 65535,
         "`PORT` at which the launcher of machine 0 listens (29500); with one machine the port of "
         "the store (default: a free port)"},
        {"rdzv-backend", 0, LS_FLAG_TEXT, &f->backend, 0, 0,
         "`NAME` static: node ranks from --node-rank; c10d: node ranks assigned automatically"},
        {"rdzv-endpoint", 0, LS_FLAG_TEXT, &f->endpoint, 0, 0,
         "`HOST[:PORT]` rendezvous address (--master-addr:--master-port; c10d: port 29400)"},
        {"rdzv-conf", 0, LS_FLAG_TEXT, &f->conf, 0, 0,
         "`LIST` join_timeout=S,last_call_timeout=S,is_host=0|1; torchrun's other keys are "
         "accepted and have no effect"},
        {"Networks and security", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"token-file", 0, LS_FLAG_TEXT, &f->key_file, 0, 0,
         "`FILE` key file, the same on all machines (LOCKSTEP_KEY_FILE, ~/.config/lockstep/key)"},
        {"net", 0, LS_FLAG_TEXT, &f->job.net, 0, 0,
         "`LIST` networks that may be used, separated by commas: NAME, CIDR (10.0.0.0/24), ^NAME "
         "or ^CIDR (LOCKSTEP_IFACE)"},
        {"port-range", 0, LS_FLAG_TEXT, &f->port_range, 0, 0,
         "`A-B` ports at which ranks and launchers listen for other machines (default: any free "
         "port)"},
        {"security", 0, LS_FLAG_TEXT, &f->security, 0, 0,
         "`MODE` protection of connections to other machines: auth, mac or encrypt; the same on "
         "all machines (LOCKSTEP_SECURITY, auth)"},
        {"insecure", 0, LS_FLAG_BOOL, &f->insecure, 0, 0,
         "no key: every process on the network can join the job"},
        {"The job", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"store", 0, LS_FLAG_TEXT, &f->store, 0, 0,
         "`WHERE` agent: the launcher hosts the store at MASTER_ADDR:MASTER_PORT for PyTorch "
         "programs; "
         "none: rank 0 hosts it (default: agent, none if --master-addr is not this machine)"},
        {"rdzv-id", 0, LS_FLAG_TEXT, &f->job.run_id, 0, 0,
         "`NAME` of the job, the same on all machines; the ranks get it as TORCHELASTIC_RUN_ID"},
        {"role", 0, LS_FLAG_TEXT, &f->job.role, 0, 0, "`NAME` ROLE_NAME of the ranks (default)"},
        {"elastic", 0, LS_FLAG_ATTACHED_TEXT, &f->elastic, 0, 0,
         "`MIN` when a rank is lost, the others keep their state and go on, with at least MIN "
         "ranks (1); --max-restarts lost ranks are replaced. For programs that can recover: "
         "docs/elastic.md"},
        {"max-restarts", 0, LS_FLAG_INT, &f->max_restarts, 0, 65535,
         "maximum number of restarts of all ranks after a failure (0)"},
        {"heartbeat-timeout", 0, LS_FLAG_INT, &f->heartbeat_s, 1, HEARTBEAT_MAX_S,
         "`SECONDS` after which a machine that sends nothing counts as lost, 2 to 3600; machine 0 "
         "decides for all (LOCKSTEP_HEARTBEAT_MS, 5 s)"},
    };

    add(t, flags, LS_COUNT_OF(flags));
}

/* The program. */
static void add_program_flags(flag_table *t, run_flags *f)
{
    const ls_flag flags[] = {
        {"The program", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"module", 'm', LS_FLAG_BOOL, &f->module, 0, 0,
         "PROG is a Python module: python3 -u -m PROG"},
        {"no-python", 0, LS_FLAG_BOOL, &f->no_python, 0, 0,
         "run PROG itself, even when its name ends in .py"},
        {"run-path", 0, LS_FLAG_BOOL, &f->run_path, 0, 0,
         "PROG is a Python script, even when its name does not end in .py"},
        {"pass-local-rank", 0, LS_FLAG_ATTACHED_TEXT, &f->pass_local_rank, 0, 0,
         "`STYLE` pass --local-rank=N to PROG, as torch.distributed.launch does; =underscore: "
         "--local_rank=N"},
        {"use-env", 0, LS_FLAG_BOOL, &f->ignored_switch, 0, 0,
         "the opposite of --pass-local-rank, and the default"},
        {"virtual-local-rank", 0, LS_FLAG_BOOL, &f->job.virtual_local_rank, 0, 0,
         "LOCAL_RANK is 0 for every rank, and CUDA_VISIBLE_DEVICES names the device of the rank"},
        {"numa-binding", 0, LS_FLAG_TEXT, &f->numa_binding, 0, 0,
         "`NAME` bind each rank to cores and memory of the NUMA node of its GPU (without GPUs: of "
         "its share): node, socket, exclusive, core-complex"},
    };

    add(t, flags, LS_COUNT_OF(flags));
}

/* What is printed, and which files it is written to. */
static void add_output_flags(flag_table *t, run_flags *f)
{
    const ls_flag flags[] = {
        {"Output", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"redirects", 'r', LS_FLAG_TEXT, &f->redirects, 0, 0,
         "`STREAMS` write to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or "
         "0:3,1:1 by local rank"},
        {"tee", 't', LS_FLAG_TEXT, &f->tee, 0, 0,
         "`STREAMS` write to files and to the console; values as for --redirects"},
        {"log-dir", 0, LS_FLAG_TEXT, &f->job.log_dir, 0, 0,
         "`DIR` folder of the files: DIR/<run id>_<random>/attempt_0/<local rank>/stdout.log; "
         "implies --tee 3 unless --redirects or --tee is given"},
        {"duplicate-stdout-filters", 0, LS_FLAG_TEXT, &f->job.filters[0], 0, 0,
         "`LIST` also write lines of --tee's stdout that contain one of these texts to "
         "attempt_N/filtered_stdout.log; \",,\" is a comma in a text"},
        {"duplicate-stderr-filters", 0, LS_FLAG_TEXT, &f->job.filters[1], 0, 0,
         "`LIST` the same for stderr"},
        {"log-line-prefix-template", 0, LS_FLAG_TEXT, &f->job.line_prefix, 0, 0,
         "`TEXT` prefix of each line; ${role_name}, ${rank}, ${local_rank} and ${hostname} are "
         "replaced by their values (TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE)"},
        {"local-ranks-filter", 0, LS_FLAG_TEXT, &f->local_ranks, 0, 0,
         "`LIST` print only the lines of these local ranks: 0,3 or 0-3"},
        {"ranks", 0, LS_FLAG_TEXT, &f->ranks, 0, 0,
         "`LIST` print only the lines of these ranks of the job"},
        {"trace", 0, LS_FLAG_TEXT, &f->trace, 0, 0,
         "`FILE` write a timeline of the last operations and phases of all ranks, for Perfetto"},
        {"metrics-port", 0, LS_FLAG_INT, &f->metrics_port, 1, 65535,
         "`PORT` serve metrics for Prometheus at http://127.0.0.1:PORT/metrics to this user "
         "(LOCKSTEP_METRICS_USERS=all: to all users of this machine)"},
        {"pty", 0, LS_FLAG_BOOL, &f->job.pty, 0, 0,
         "run the ranks in pseudo-terminals, so that programs print progress bars and colours; "
         "input goes to rank 0"},
        {"no-prefix", 0, LS_FLAG_BOOL, &f->no_prefix, 0, 0, "print lines without the rank prefix"},
        {"no-fold", 0, LS_FLAG_BOOL, &f->no_fold, 0, 0,
         "on a terminal, do not merge equal lines of several ranks"},
        {"help", 'h', LS_FLAG_BOOL, &f->help, 0, 0, "print this text; --help=all: with all flags"},
    };

    add(t, flags, LS_COUNT_OF(flags));
}

/* How the job ends, and flags that are accepted for compatibility with torchrun. */
static void add_end_flags(flag_table *t, run_flags *f)
{
    const ls_flag flags[] = {
        {"The end of the job", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"grace", 0, LS_FLAG_INT, &f->grace_s, 0, 86400,
         "`SECONDS` between the signal that stops the job and SIGKILL"},
        {"shutdown-timeout", 0, LS_FLAG_INT, &f->grace_s, 0, 86400, NULL},
        {"signals-to-handle", 0, LS_FLAG_TEXT, &f->signals, 0, 0,
         "`NAMES` signals that stop the job, and that the ranks then get; other signals keep their "
         "action (SIGTERM,SIGINT,SIGHUP,SIGQUIT)"},
        {"isolate", 0, LS_FLAG_ATTACHED_TEXT, &f->isolate, 0, 0,
         "`WORD` run the ranks of each machine in a PID namespace, so that the kernel kills all "
         "processes that they have started; =pid the same, =off disabled (off)"},

        {"Accepted from torchrun", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"monitor-interval", 0, LS_FLAG_TEXT, &f->ignored, 0, 0,
         "`SECONDS` no effect; likewise --start-method, --local-addr and --event-log-handler"},
        {"start-method", 0, LS_FLAG_TEXT, &f->ignored, 0, 0, NULL},
        {"local-addr", 0, LS_FLAG_TEXT, &f->ignored, 0, 0, NULL},
        {"event-log-handler", 0, LS_FLAG_TEXT, &f->ignored, 0, 0, NULL},
        {"logs-specs", 0, LS_FLAG_TEXT, &f->logs_specs, 0, 0,
         "`NAME` must be \"default\": Python plug-ins of torchrun cannot be loaded"},
        {"print-completion", 0, LS_FLAG_TEXT, &f->completion, 0, 0, NULL},
    };

    add(t, flags, LS_COUNT_OF(flags));
}

static void make_table(flag_table *t, run_flags *f)
{
    t->n = 0;
    add_machine_flags(t, f);
    add_program_flags(t, f);
    add_output_flags(t, f);
    add_end_flags(t, f);
}

const char *run_flags_name(bool as_torchrun)
{
    return as_torchrun ? "torchrun" : "lockstep run";
}

/* torchrun's own flags, which its parser takes abbreviated. */
static const char *const torchrun_names[] = {"help",
                                             "nnodes",
                                             "nproc-per-node",
                                             "rdzv-backend",
                                             "rdzv-endpoint",
                                             "rdzv-id",
                                             "rdzv-conf",
                                             "standalone",
                                             "max-restarts",
                                             "monitor-interval",
                                             "start-method",
                                             "event-log-handler",
                                             "role",
                                             "module",
                                             "no-python",
                                             "run-path",
                                             "log-dir",
                                             "redirects",
                                             "tee",
                                             "log-line-prefix-template",
                                             "local-ranks-filter",
                                             "duplicate-stdout-filters",
                                             "duplicate-stderr-filters",
                                             "node-rank",
                                             "master-addr",
                                             "master-port",
                                             "local-addr",
                                             "logs-specs",
                                             "numa-binding",
                                             "signals-to-handle",
                                             "shutdown-timeout",
                                             "virtual-local-rank",
                                             "print-completion",
                                             NULL};

/* What a first job, on one machine or on several, needs. */
static const char *const brief_names[] = {
    "nproc-per-node", "hosts",       "hostfile",    "export",    "nnodes",  "node-rank",
    "standalone",     "master-addr", "master-port", "net",       "elastic", "max-restarts",
    "numa-binding",   "log-dir",     "trace",       "no-prefix", "help",    NULL};

static ls_flags describe(bool as_torchrun, const flag_table *table)
{
    return (ls_flags){.size = sizeof(ls_flags),
                      .program = run_flags_name(as_torchrun),
                      .usage = "[flags] PROG ARGS...",
                      .summary = "Starts PROG as the ranks of a job and supervises them.",
                      .tables = {NULL, table->flags},
                      .n = {0, table->n},
                      .takes_rest = 1,
                      .brief = brief_names,
                      .abbreviated = as_torchrun ? torchrun_names : NULL};
}

/* --- the environment --- */

/* The flag points to the value in the environment, which outlives the flags. */
static ls_status read_variable(const ls_flags *flags, const ls_flag *flag, const char *name,
                               char *value)
{
    char first[256];
    char program[] = "lockstep run";
    char *argv[] = {program, first, value};

    if (flag->kind == LS_FLAG_ATTACHED_TEXT) {
        *(const char **)flag->value = value;
        return LS_OK;
    }
    if (flag->kind == LS_FLAG_BOOL)
        text_format(first, sizeof(first), "--%s=%s", flag->name, value);
    else
        text_format(first, sizeof(first), "--%s", flag->name);
    return ls_context(ls_flags_parse(flags, flag->kind == LS_FLAG_BOOL ? 2 : 3, argv, NULL), "%s",
                      name);
}

/* As in torchrun, PET_A_B sets flag --a-b. The command line is read later and takes precedence. */
static ls_status read_environment(const ls_flags *flags)
{
    for (int i = 0; i < n_flags(flags); i++) {
        const ls_flag *flag = flag_at(flags, i);
        char name[64];
        char *value;

        if (flag->kind == LS_FLAG_HEADING)
            continue;
        text_format(name, sizeof(name), "PET_%s", flag->name);
        for (char *c = name; *c != 0; c++)
            *c = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
        value = getenv(name); // NOLINT(concurrency-mt-unsafe): there is one thread
        if (value != NULL && *value != 0)
            LS_TRY(read_variable(flags, flag, name, value));
    }
    return LS_OK;
}

/* --- what they mean --- */

static ls_status count_ranks(run_flags *f)
{
    int64_t number = 1;
    const bool has_hosts = f->host_text != NULL || f->hostfile != NULL;

    f->n_ranks = 1;
    if (f->nproc == NULL)
        return LS_OK;
    if (has_hosts) {
        const ls_status st = text_parse_int(f->nproc, "-n", 1, HOSTLIST_SLOTS_MAX, &number);

        f->n_ranks = (int)number;
        return st == LS_OK ? st
                           : ls_fail(st,
                                     "-n %s: with -H, -n is the number of ranks of the whole job; "
                                     "give the ranks of each host after its name (-H "
                                     "node0:8,node1:8)",
                                     f->nproc);
    }
    return rank_count_read(f->nproc, &f->n_ranks);
}

static ls_status choose_store(run_flags *f)
{
    net_address master;
    const bool is_here =
        f->has_nodes || f->job.master_addr == NULL ||
        (net_address_parse(f->job.master_addr, 0, &master) == LS_OK && net_reach_is_local(&master));

    f->job.hosts_store = f->store == NULL ? is_here : text_equal(f->store, "agent");
    if (f->job.hosts_store && !is_here)
        return ls_fail(LS_EINVAL, "--store agent, but --master-addr %s is not this machine",
                       f->job.master_addr);
    if (f->store != NULL && !f->job.hosts_store && !text_equal(f->store, "none"))
        return ls_fail(LS_EINVAL, "--store \"%s\": must be agent or none", f->store);
    return LS_OK;
}

/* Which streams go to files; --log-dir alone means all, and the console too. */
static ls_status read_streams(run_flags *f)
{
    f->job.tee.otherwise = f->job.log_dir != NULL && f->redirects == NULL && f->tee == NULL
                               ? RANK_STREAMS_BOTH
                               : RANK_STREAMS_NONE;
    if (f->redirects != NULL)
        LS_TRY(rank_list_parse_streams(f->redirects, "--redirects", &f->job.redirect));
    if (f->tee != NULL)
        LS_TRY(rank_list_parse_streams(f->tee, "--tee", &f->job.tee));
    if (f->local_ranks != NULL)
        LS_TRY(rank_list_parse_ranks(f->local_ranks, "--local-ranks-filter", &f->job.shown_local));
    if (f->ranks != NULL)
        LS_TRY(rank_list_parse_ranks(f->ranks, "--ranks", &f->job.shown));
    return LS_OK;
}

static ls_status check_words(const run_flags *f)
{
    const char *style = f->pass_local_rank;

    if (style != NULL && *style != 0 && !text_equal(style, "dash") &&
        !text_equal(style, "underscore"))
        return ls_fail(LS_EINVAL, "--pass-local-rank=%s: dash or underscore", style);
    if (f->logs_specs != NULL && !text_equal(f->logs_specs, "default"))
        return ls_fail(LS_EUNSUPPORTED,
                       "--logs-specs %s: plug-ins of torchrun cannot be loaded; use -r, -t and "
                       "--log-dir instead",
                       f->logs_specs);
    if (f->module && f->no_python)
        return ls_fail(LS_EINVAL, "--module and --no-python exclude each other");
    return LS_OK;
}

static ls_status read_lines(run_flags *f)
{
    static const char *const flags[] = {"--duplicate-stdout-filters", "--duplicate-stderr-filters"};

    for (int which = 0; which < 2; which++) {
        if (f->job.filters[which] != NULL && f->job.filters[which][0] == 0)
            f->job.filters[which] = NULL; /* matches no line */
        if (f->job.filters[which] != NULL && strlen(f->job.filters[which]) > LINE_FILTER_MOST)
            return ls_fail(LS_EINVAL, "%s: longer than %d bytes", flags[which], LINE_FILTER_MOST);
    }
    if (f->job.line_prefix == NULL)
        f->job.line_prefix =
            getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"); // NOLINT(concurrency-mt-unsafe)
    if (f->job.line_prefix != NULL && f->job.line_prefix[0] == 0)
        f->job.line_prefix = NULL;
    return LS_OK;
}

static ls_status choose_isolation(run_flags *f)
{
    const char *word = f->isolate != NULL ? f->isolate : "off";

    f->job.isolate = !text_equal(word, "off");
    if (f->job.isolate && word[0] != 0 && !text_equal(word, "pid"))
        return ls_fail(LS_EINVAL, "--isolate=%s: must be pid or off", word);
    return LS_OK;
}

static ls_status read_elastic(run_flags *f)
{
    int64_t n = 1;

    if (f->elastic == NULL)
        return LS_OK;
    if (f->elastic[0] != 0)
        LS_TRY(text_parse_int(f->elastic, "--elastic", 1, 65536, &n));
    if (f->job.isolate)
        return ls_fail(LS_EUNSUPPORTED, "--elastic with --isolate: a process cannot be added to a "
                                        "namespace that runs; leave one of them out");
    f->rendezvous.min_ranks = (int)n;
    return LS_OK;
}

static ls_status settle(run_flags *f)
{
    LS_TRY(count_ranks(f));
    if (f->security != NULL)
        LS_TRY(net_security_set(f->security, "--security"));
    if (f->heartbeat_s > 0)
        LS_TRY(ls_context(net_set_silence(f->heartbeat_s * 1000), "--heartbeat-timeout"));
    LS_TRY(run_flags_settle_hosts(f));
    if (!f->has_hosts)
        LS_TRY(run_flags_settle_nodes(f));
    LS_TRY(choose_store(f));
    LS_TRY(read_streams(f));
    LS_TRY(read_lines(f));
    LS_TRY(check_words(f));
    LS_TRY(binding_parse(f->numa_binding, &f->job.binding));
    LS_TRY(choose_isolation(f));
    LS_TRY(read_elastic(f));
    f->job.grace_ms = ls_duration_of_s((double)f->grace_s);
    if (f->signals != NULL)
        LS_TRY(signal_list_parse(f->signals, "--signals-to-handle", &f->job.stop_signals));
    return LS_OK;
}

static void set_defaults(run_flags *f, bool as_torchrun)
{
    *f = (run_flags){.as_torchrun = as_torchrun, .job = JOB_SPEC_DEFAULTS};
    f->nnodes = "1";
    f->backend = "static";
    f->grace_s = as_torchrun ? TORCHRUN_GRACE_S : GRACE_S;
    f->exports = (ls_flag_texts){.items = f->export_items, .most = RUN_EXPORTS_MOST};
}

/* torchrun's variable for --shutdown-timeout. */
static ls_status read_shutdown_timeout(run_flags *f)
{
    static const char name[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    const char *value = getenv(name); // NOLINT(concurrency-mt-unsafe): there is one thread

    return value == NULL || *value == 0 ? LS_OK
                                        : text_parse_int(value, name, 0, 86400, &f->grace_s);
}

enum { NODE_RANK_UNSET = -1 };

/* Without --node-rank and PET_NODE_RANK it is the index of the pod in a Job of Kubernetes. Jobs of
 * one machine have such an index, too: there each pod is a job of its own. */
static ls_status settle_node_rank(run_flags *f)
{
    static const char name[] = "JOB_COMPLETION_INDEX";
    const char *value = getenv(name); // NOLINT(concurrency-mt-unsafe): there is one thread

    if (f->node_rank != NODE_RANK_UNSET)
        return LS_OK;
    f->node_rank = 0;
    if (value == NULL || *value == 0 || f->standalone || text_equal(f->nnodes, "1"))
        return LS_OK;
    return text_parse_int(value, name, 0, 65535, &f->node_rank);
}

/* Flags of other launchers, and what to do instead. */
static const char *const flags_of_others[][2] = {
    {"genv", "pass the variable with -x NAME=VALUE"},
    {"env", "pass the variable with -x NAME=VALUE"},
    {"genvall", "ranks of this machine have all variables; -x NAME passes one to other machines"},
    {"envall", "ranks of this machine have all variables; -x NAME passes one to other machines"},
    {"genvlist", "pass each variable with -x NAME"},
    {"envlist", "pass each variable with -x NAME"},
    {"oversubscribe", "not needed, ranks may outnumber the cores"},
    {"use-hwthread-cpus", "not needed, ranks may outnumber the cores"},
    {"allow-run-as-root", "not needed"},
    {"bind-to", "pass --numa-binding"},
    {"map-by", "pass the ranks of each machine with -H HOST:N, and --numa-binding"},
    {"ppn", "pass the ranks of each machine with -H HOST:N"},
    {"perhost", "pass the ranks of each machine with -H HOST:N"},
    {"npernode", "pass the ranks of each machine with -H HOST:N"},
    {"N", "pass the ranks of each machine with -H HOST:N"},
    {"tag-output", "not needed, lines have their rank in front"},
    {"prepend-rank", "not needed, lines have their rank in front"},
    {"mca", "for Open MPI's own settings start lockstep run mpirun"},
};

/* `name`: as it was typed, with its dashes. */
static ls_status explain_unknown_flag(const char *name, bool as_torchrun)
{
    const char *bare = name + strspn(name, "-");
    const size_t n = strcspn(bare, "=");

    for (size_t i = 0; i < LS_COUNT_OF(flags_of_others); i++)
        if (strlen(flags_of_others[i][0]) == n && memcmp(flags_of_others[i][0], bare, n) == 0)
            return ls_fail(LS_EINVAL,
                           "unknown flag %.*s, which mpirun has: %s (%s --help=all lists all)",
                           (int)(n + (size_t)(bare - name)), name, flags_of_others[i][1],
                           run_flags_name(as_torchrun));
    return LS_EINVAL; // as it was
}

/* ls_flags_parse() stops at the first flag that it does not know, and names it. */
static ls_status parse(const ls_flags *flags, bool as_torchrun, int argc, char **argv, int *rest)
{
    static const char unknown[] = "unknown flag ";
    const ls_status st = ls_flags_parse(flags, argc, argv, rest);
    char text[LS_ERROR_BYTES];

    if (st != LS_EINVAL || !text_starts(ls_last_error(), unknown))
        return st;
    text_format(text, sizeof(text), "%s", ls_last_error() + strlen(unknown));
    text[strcspn(text, ": ")] = 0;
    return explain_unknown_flag(text, as_torchrun);
}

ls_status run_flags_read(run_flags *f, bool as_torchrun, int argc, char **argv, int *rest)
{
    flag_table table;
    ls_flags flags;

    set_defaults(f, as_torchrun);
    f->node_rank = NODE_RANK_UNSET;
    make_table(&table, f);
    flags = describe(as_torchrun, &table);
    LS_TRY(read_shutdown_timeout(f));
    LS_TRY(read_environment(&flags));
    LS_TRY(parse(&flags, as_torchrun, argc, argv, rest));
    if (f->help)
        return LS_OK;
    if (f->completion != NULL)
        return ls_fail(LS_EUNSUPPORTED,
                       "--print-completion %s: not supported (torchrun's comes from the Python "
                       "package shtab); %s --help=all lists all flags",
                       f->completion, run_flags_name(as_torchrun));
    if (*rest == argc)
        return ls_fail(LS_EINVAL, "no program given; usage: %s [flags] PROG ARGS...",
                       run_flags_name(as_torchrun));
    LS_TRY(settle_node_rank(f));
    return settle(f);
}

int run_flags_help(bool as_torchrun, bool with_all)
{
    static run_flags f;
    flag_table table;
    ls_flags flags;

    set_defaults(&f, as_torchrun);
    make_table(&table, &f);
    flags = describe(as_torchrun, &table);
    if (with_all)
        flags.brief = NULL;
    return print_help(&flags);
}
