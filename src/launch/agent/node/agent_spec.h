/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_spec.h - what an agent is asked to run, and how a job has ended: the arguments and the
 * result of agent_run().
 *
 * Threads    The agent is single-threaded and forks; signals are taken by signalfd while it runs.
 */
#ifndef LS_LAUNCH_AGENT_NODE_AGENT_SPEC_H
#define LS_LAUNCH_AGENT_NODE_AGENT_SPEC_H

#include <lockstep/launch.h>

#include "base/status.h"
#include "base/text.h"
#include "host/pseudo_terminal.h"
#include "launch/head/rendezvous/rendezvous.h"
#include "launch/hosts/hostlist.h"
#include "launch/hosts/start_command.h"
#include "launch/spec/job_spec.h"
#include "net/address.h"
#include "net/auth/seal.h"
#include "net/key.h"
#include "net/socket.h"

#include <stdbool.h>

/* The nodes of a job that has, or may have, more than one. */
typedef struct agent_nodes {
    bool is_head;       /* this agent hosts the head */
    bool may_join;      /* if `listen` is taken, this agent joins the head that has taken it */
    net_address listen; /* with is_head: where the other nodes connect to */
    const char *head;   /* the address of the head, "HOST:PORT" */
    const net_address *heads; /* ... if not NULL, n_heads addresses that may be its own */
    int n_heads;
    const char *name;      /* of this node, for messages; NULL: the machine's */
    const net_key *key;    /* NULL: --insecure */
    net_security security; /* of all TCP connections: LOCKSTEP_SECURITY */
    int id;                /* of this node, -1: assigned by the head */
} agent_nodes;

/* Hosts on which this agent starts agents. It hosts the head of the job. */
typedef struct agent_hosts_spec {
    hostlist *list; /* one node each, in this order; slots 0: one per core. Slots become ranks */
    int own;        /* the entry that is this machine; -1: none, then no rank runs here */
    int n_ranks;    /* of the job; 0: one in each slot */
    start_options start;
    const char *folder; /* working folder of the ranks */
    char *const
        *exports; /* "NAME=VALUE" to set there, besides the variables that are always sent */
    int n_exports;
} agent_hosts_spec;

/* The connection of an agent to the agent on another machine that has started it. */
typedef struct agent_remote {
    int in_fd;           /* when it ends, the agent ends its ranks */
    int out_fd;          /* frames of launch_request.h, with the ranks' output among them */
    bool terminal;       /* the job's stderr is a terminal */
    bool input_terminal; /* ... its stdin is */
    pty_size size;       /* of the ranks' terminals, with job_spec.pty */
} agent_remote;

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): by meaning
typedef struct agent_spec {
    int n_ranks; /* on this node; with hosts the most, and the list decides */
    const job_spec *job;
    ls_spawn_fn fn; /* what the ranks run instead of job->argv */
    void *fn_arg;
    int master_port; /* 0: a free one */
    bool capture;    /* the agent prints what ranks write; otherwise they inherit its descriptors */
    bool prefix;     /* "rank 1| " in front of each line */
    bool fold;       /* on a terminal the same line of several ranks is printed once */
    /*
     * Where this agent writes the error of a failed job, in torchrun's form (error_file.h); NULL:
     * nowhere.
     */
    const char *error_path;

    const agent_nodes *nodes;      /* NULL: a job of one node */
    const agent_hosts_spec *hosts; /* NULL: starts no other agents. Needs nodes with a key */
    const agent_remote *remote;    /* NULL: this agent was not started by another one */
    rdzv_options rendezvous;       /* zeros: one node, no restart; its grace_ms is not used */

    int metrics_port; /* --metrics-port; 0: none */
    /*
     * Where the head is: receives the flight recorder of every rank that has ended, on any node, in
     * this start of the job (generation). behind_ns: the difference of that machine's monotonic
     * clock to ours, to be added. NULL: recorders are not collected.
     */
    void (*keep_ring)(void *ring_keeper, uint32_t generation, int rank, const char *host,
                      int64_t behind_ns, int ring_fd);
    void *ring_keeper;
} agent_spec;

typedef struct agent_result {
    /* 0: the ranks have completed their work; that of the rank that failed first; 128 + the signal
     * that ended rank or job. */
    int exit_code;
    bool failed;     /* a rank failed, and the report says why */
    text_buf report; /* one cause, the last lines of that rank; freed by the caller */
} agent_result;

/*
 * Makes stdin and stdout of this process the connection of an agent_remote, and replaces them by
 * /dev/null. Closes all other descriptors, so that only this process holds the connection.
 */
LS_MUST_USE ls_status agent_remote_take_streams(agent_remote *out);

/*
 * Runs the job to its end. A failing status means that the job could not be started, or lost its
 * head; the failure of a rank is in *out.
 */
LS_MUST_USE ls_status agent_run(const agent_spec *spec, agent_result *out);

#endif
