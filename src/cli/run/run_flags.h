/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_flags.h - the flags of lockstep run (those of torchrun, and more), and the settings that
 * follow from them.
 *
 * cli/run/: lockstep run, agent and join.
 */
#ifndef LS_CLI_RUN_RUN_FLAGS_H
#define LS_CLI_RUN_RUN_FLAGS_H

#include <lockstep/flags.h>

#include "base/status.h"
#include "launch/launch.h"
#include "launch/spec/endpoint.h"

#include <stdbool.h>

#define RUN_EXPORTS_MOST 256
#define RUN_PATH_MOST    4096

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): by meaning
typedef struct run_flags {
    bool as_torchrun; /* called by that name */

    job_spec job; /* the flags of texts and bools write into it, run_flags_read() the rest */

    /* As given. */
    const char *nproc; /* NULL: not given */
    const char *host_text;
    const char *hostfile;
    const char *ssh;
    int64_t ssh_port;
    ls_flag_texts exports; /* into: */
    const char *export_items[RUN_EXPORTS_MOST];
    const char *nnodes;
    int64_t node_rank;
    const char *backend;
    const char *endpoint;
    const char *conf;
    const char *key_file;
    int insecure;
    const char *security;
    const char *port_range;
    int64_t master_port;
    const char *store;
    int64_t max_restarts;
    int64_t heartbeat_s; /* 0: not given */
    const char *elastic; /* NULL: the job is not elastic */
    int64_t grace_s;
    int standalone;
    int no_python;
    int module;
    int run_path;
    const char *pass_local_rank; /* NULL: not given */
    const char *numa_binding;
    const char *signals;
    const char *isolate; /* NULL: not given; "": given without a value */
    const char *redirects;
    const char *tee;
    const char *trace;
    int64_t metrics_port;
    const char *logs_specs;
    const char *completion;
    const char *local_ranks;
    const char *ranks;
    int no_prefix;
    int no_fold;
    int help;
    const char *ignored; /* of flags that have no effect */
    int ignored_switch;

    /* What follows from them. */
    bool has_nodes; /* more than one machine, or possibly more */
    agent_nodes nodes;
    rdzv_options rendezvous;
    net_key key;
    char head[ENDPOINT_BYTES]; /* nodes.head */
    bool has_hosts;            /* this command starts the agents of all machines */
    agent_hosts_spec hosts;
    hostlist host_list;
    char *export_list[RUN_EXPORTS_MOST];
    char folder[RUN_PATH_MOST];
    char tool[RUN_PATH_MOST];
    int n_ranks;
} run_flags;

/* Reads PET_* variables, then the command line, and checks the values; with --help it sets only
 * f->help. argv[*rest] is the program. */
LS_MUST_USE ls_status run_flags_read(run_flags *f, bool as_torchrun, int argc, char **argv,
                                     int *rest);
/* Returns the exit code. with_all: the help lists all flags. */
int run_flags_help(bool as_torchrun, bool with_all);

/* Settings of the flags about nodes (run_nodes.c). f->n_ranks is set. */
LS_MUST_USE ls_status run_flags_settle_nodes(run_flags *f);

/* Checks --port-range, also where it has no effect. */
LS_MUST_USE ls_status run_flags_settle_ports(run_flags *f);

/* --net and LOCKSTEP_SECURITY, for run_nodes.c and run_hosts.c. */
LS_MUST_USE ls_status run_flags_settle_networks(run_flags *f);

/* Settings for -H, --hostfile or a Slurm allocation (run_hosts.c). With hosts it replaces
 * run_flags_settle_nodes(). */
LS_MUST_USE ls_status run_flags_settle_hosts(run_flags *f);

/* "torchrun" or "lockstep run", for messages. */
const char *run_flags_name(bool as_torchrun);

#endif
