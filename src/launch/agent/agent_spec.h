/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_spec.h - what an agent is asked to run, and how a job has ended: the arguments and the
 * result of agent_run().
 *
 * Threads    The agent is single-threaded and forks; signals are taken by signalfd while it runs.
 */
#ifndef LS_LAUNCH_AGENT_SPEC_H
#define LS_LAUNCH_AGENT_SPEC_H

#include <lockstep/launch.h>

#include "base/status.h"
#include "base/text.h"
#include "launch/head/rendezvous.h"
#include "launch/hosts/hostlist.h"
#include "launch/hosts/rank_list.h"
#include "launch/hosts/start_command.h"
#include "launch/process/pseudo_terminal.h"
#include "net/address.h"
#include "net/key.h"
#include "net/seal.h"
#include "net/socket.h"

#include <stdbool.h>

/* A job that has, or may have, more than one node. */
typedef struct agent_nodes {
    bool is_head;       /* the head is here: */
    bool may_join;      /* ... unless somebody else has taken its port, who is the head then */
    net_address listen; /* is_head: where the others come to */
    const char *head;   /* where it is, "HOST:PORT" */
    const net_address
        *heads; /* ... and may be found, n_heads of them; `head` is for messages then */
    int n_heads;
    const char *name;      /* of this node, for messages; NULL: the machine's */
    const net_key *key;    /* NULL: --insecure */
    net_security security; /* of all TCP connections: LOCKSTEP_SECURITY */
    int id;                /* of this node, -1: as it comes */
} agent_nodes;

/* Hosts on which the agent starts others, and is their head. */
typedef struct agent_hosts_spec {
    hostlist
        *list;   /* a node each, in this order; slots 0: one a core of it. Slots become the ranks */
    int own;     /* which of them is this machine; -1: none, then no rank runs here */
    int n_ranks; /* of the job; 0: one in each slot */
    start_options start;
    const char *folder;   /* to work in */
    char *const *exports; /* "NAME=VALUE" to set there, besides what is always sent */
    int n_exports;
} agent_hosts_spec;

/* Of an agent that was started so. */
typedef struct agent_remote {
    int in_fd;           /* its end: the job is over here */
    int out_fd;          /* frames of launch_request.h go here, what the ranks print among them */
    bool terminal;       /* one is behind the job's stderr */
    bool input_terminal; /* ... and behind its stdin */
    pty_size size;       /* of the ranks' terminals, with agent_spec.pty */
} agent_remote;

typedef struct agent_spec {
    int n_ranks;       /* on this node; found by itself where there are hosts */
    char *const *argv; /* program and arguments, or NULL: */
    ls_spawn_fn fn;    /* ... a function that each rank runs */
    void *fn_arg;
    int64_t grace_ms; /* between SIGTERM and SIGKILL at an orderly end */
    bool
        capture; /* ranks write into pipes that the agent prints line by line; otherwise they inherit its own */
    bool prefix; /* "rank 1| " in front of each line */
    bool pty;    /* captured ranks write to terminals; rank 0 reads from one if our stdin is one */
    bool hosts_store; /* the launcher hosts the store of PyTorch programs, see agent_store.c */
    const char *master_addr; /* MASTER_ADDR without that store; NULL: rank 0's machine */
    int master_port;         /* 0: a free one */
    const char *run_id;      /* TORCHELASTIC_RUN_ID; NULL: the job's own name */
    const char *role;        /* ROLE_NAME; NULL: "default" */
    bool isolate; /* ranks and what they start are in a namespace of processes: isolate.h */
    bool virtual_local_rank; /* LOCAL_RANK=0 for every rank, and one visible device each */
    uint64_t stop_signals;   /* bit i: signal i ends the job in good order; 0: TERM INT HUP QUIT */

    /* What becomes of captured lines. Lists are by local rank where nothing else is said. */
    const rank_list *redirect;    /* written to files, not shown; NULL: none */
    const rank_list *tee;         /* written to files, and shown; NULL: none */
    const rank_list *shown_local; /* NULL: all */
    const rank_list *shown;       /* by rank in the job; NULL: all */
    /* Which lines of teed streams also go to one file (agent_filter.c), by stream: a comma list of
     * texts of at most LINE_FILTER_MOST bytes; NULL: none. */
    const char *filters[2];
    /* What stands in front of each line, where `prefix` is set (line_prefix.h); NULL: "rank 1| ". */
    const char *line_prefix;
    const char *log_dir; /* for the files, see log_folder.h; NULL: a new folder in $TMPDIR */
    /* Where this agent leaves the error of a job that failed, in torchrun's form (error_file.h);
     * NULL: nowhere. */
    const char *error_path;
    bool fold; /* on a terminal the same line of several ranks is printed once */

    const agent_nodes *nodes; /* NULL: this one alone */
    const char *net; /* --net, which networks may be used (net/interface.h); NULL or "": any */
    net_ports ports; /* for what listens to other nodes */
    const agent_hosts_spec
        *hosts;                 /* NULL: no agent is started elsewhere. Needs nodes, with a key */
    const agent_remote *remote; /* NULL: this agent prints what its ranks do */
    rdzv_options rendezvous;    /* zeros: one node, no restart; grace_ms is the one above */

    /* Makes the memfd of a rank's flight recorder, which outlives the rank; may be NULL. */
    ls_status (*make_ring)(int *fd);
    /* Appends what a rank that has ended noted that it must not exit in the middle of; may be
     * NULL. */
    void (*read_activity)(int ring_fd, text_buf *out);
    /* Appends what a dead rank's flight recorder says; may be NULL. */
    void (*describe_ring)(int ring_fd, text_buf *out);
    /* Where the head is: gets the flight recorder of every rank that has ended, on any node, in this start of the job (generation).
     * behind_ns: what to add to that machine's monotonic clock for that of this one. NULL: nobody wants them. */
    void (*keep_ring)(void *ring_keeper, uint32_t generation, int rank, const char *host,
                      int64_t behind_ns, int ring_fd);
    void *ring_keeper;
} agent_spec;

typedef struct agent_result {
    int exit_code; /* 0; that of the rank that failed first (128 + signal); 128 + signal when the job was stopped by one */
    bool failed;   /* a rank failed; report says which and why */
    text_buf
        report; /* one root cause, the last lines of that rank, how many others followed; freed by the caller */
} agent_result;

/* Makes this process's stdin and stdout an agent_remote's, and puts /dev/null in their place, so that nothing else holds the starter's
 * connection; other descriptors are closed. */
LS_MUST_USE ls_status agent_remote_take_streams(agent_remote *out);

/* Runs the job to its end. A failing status means that the job could not be started; a rank's failure is in *out. */
LS_MUST_USE ls_status agent_run(const agent_spec *spec, agent_result *out);

#endif
