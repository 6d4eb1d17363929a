/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.h - a running agent: its modules, each with its own state and header, its ranks, and what
 * joins them. Private to this folder.
 *
 *     agent.c           the loop, signals, and the result
 *     agent_start.c     opening and closing
 *     agent_messages.c  messages of the head, and reports to it
 *     agent_ranks.c     the start and end of a generation's ranks
 *     agent_watch.c     the ranks while they run
 *     agent_report.c    why they failed
 *
 * launch/agent/: the agent of a node. launch/spawn.c and the tool call agent_run(); node/ and
 * streams/ have its modules.
 */
#ifndef LS_LAUNCH_AGENT_AGENT_H
#define LS_LAUNCH_AGENT_AGENT_H

#include "launch/agent/agent_status.h"
#include "launch/agent/node/agent_containment.h"
#include "launch/agent/node/agent_context.h"
#include "launch/agent/node/agent_link.h"
#include "launch/agent/node/agent_network.h"
#include "launch/agent/node/agent_pmi.h"
#include "launch/agent/node/agent_store.h"
#include "launch/agent/streams/agent_hosts.h"
#include "launch/agent/streams/agent_input.h"
#include "launch/agent/streams/agent_output.h"
#include "launch/agent/streams/agent_remote.h"
#include "launch/isolate/shim.h"

#include <signal.h>

typedef struct agent agent;

typedef struct agent_rank {
    agent *agent;
    int rank;   /* in the job */
    int member; /* of an elastic job (recovery.h) */
    pid_t shim; /* 0: unknown, or reaped; with spec->job->isolate it is not our child */
    pid_t pid;  /* of the rank itself, 0: unknown */
    /* The shim's. Read: its records. Write: signals for the rank; the end of that direction kills
     * the rank. */
    int shim_fd;
    poll_watch *status_watch;
    int ring_fd; /* its flight recorder */
    bool ended;
    bool is_vacant;    /* no process has been here: the node has taken the place of a lost one */
    bool is_undecided; /* of an elastic job: failed, and the head may replace it */
    int wait_status;
    bool was_stopped; /* it ended after this agent had signalled it */
    int failed_code;  /* it has failed with this exit code, whatever its wait status; 0: unknown */
    int64_t peak_bytes;
    char memory[256]; /* the limit because of which the kernel killed it; "": it did not */
    char message[LS_ERROR_BYTES]; /* why its function failed, or why it could not be run */
} agent_rank;

/* The signals that this process handles itself, and what to restore. */
typedef struct agent_signals {
    bool is_taken;
    int fd;
    poll_watch *watch;
    poll_timer pause_timer; /* from Ctrl-Z until this process stops */
    sigset_t old_mask;
    struct sigaction old_pipe;
    struct sigaction old_file_size;
    struct sigaction old_terminal_input;
} agent_signals;

/* What the exit code follows from. */
typedef struct agent_outcome {
    bool is_known; /* the head has sent the end of the job */
    bool has_failed;
    int exit_code;
    int left_at_signal;   /* this agent left the job at a signal, 0: it did not */
    bool has_lost_output; /* stdout or stderr took no more, and that was reported */
} agent_outcome;

struct agent { // NOLINT(clang-analyzer-optin.performance.Padding): there is one, ordered by subject
    agent_context ctx;
    agent_spec own_spec; /* the caller's; with hosts, completed when the ranks are placed */
    job_spec own_job;
    agent_nodes own_nodes;
    agent_result *result;
    agent_outcome outcome;
    ls_status failure; /* of agent_run() itself */
    char failure_text[LS_ERROR_BYTES];
    text_buf root_error; /* the error file of the first rank that failed here; "": none */

    /* For all generations. */
    char name[17]; /* unique; carried by all processes of this agent */
    bool has_job;  /* agent_open_job() has succeeded */
    net_key key;   /* of the job */
    int key_fd;
    process_fds users; /* descriptors that were open before this agent */

    agent_signals signals;
    agent_output output;
    agent_input input;
    starter_reader starter; /* used with spec->remote */
    agent_containment containment;
    agent_pmi pmi;
    agent_link link;
    agent_network network;
    agent_store store;
    agent_status status;
    agent_hosts *hosts; /* NULL: this agent starts no others */

    /* The ranks of a generation. */
    agent_rank *ranks; /* ctx.spec->n_ranks */
    int n_ended;
    int root;          /* the local rank that failed first, -1: none */
    int aborter;       /* the local rank that aborted a group, -1: none */
    bool is_signalled; /* this agent has sent them a signal that ends them */
    bool is_killed;    /* ... SIGKILL */
    int stop_number;   /* ... this one, because the job was stopped; 0: none */
    bool has_left;     /* the job goes on without this node */
    uint32_t finished; /* the last generation reported as finished, */
    node_end last_end; /* and that report, without its texts */
    int64_t started_s; /* since 1970 */
    int64_t failed_ms; /* when `root` failed */
    int64_t grace_ms;
    poll_timer term_timer;
    poll_timer kill_timer;
    poll_timer lost_timer; /* until a rank counts as impossible to kill */
};

static inline int agent_local_rank(const agent_rank *r)
{
    return (int)(r - r->agent->ranks);
}

/* --- agent.c --- */
/* The ranks of this generation run, or have ended by themselves, which the head knows. */
bool agent_has_started(const void *arg /* agent */);
void agent_on_signal(void *arg /* agent */, unsigned events);
/* Ends the job as a signal of this number does; the second time at once. */
void agent_stop(agent *a, int number);
/* The job goes on without this node, whose ranks get SIGTERM and their grace. */
void agent_leave_orderly(agent *a);
/* Closes the connection to the head and kills the ranks; the head counts this node as lost. */
void agent_leave_job(agent *a);

/* --- agent_start.c --- */
LS_MUST_USE ls_status agent_open(agent *a, const agent_spec *spec, agent_result *result);
void agent_close(agent *a);
LS_MUST_USE ls_status agent_open_job(agent *a);          /* at the first welcome of the head */
bool agent_stops_at(const agent_spec *spec, int number); /* whether this signal ends the job */

/* --- agent_messages.c --- */
void agent_set_link_calls(agent *a);
/* What its flight recorder has about why a group of it broke. */
void agent_send_cause(const agent *a, const agent_rank *r);
void agent_send_failure(const agent *a, int local_rank, const agent_rank *r, const char *why);
void agent_send_finished(agent *a);

/* --- agent_ranks.c --- */
void agent_reset_ranks(agent *a); /* as if none had been started */
LS_MUST_USE ls_status agent_start_ranks(agent *a);
void agent_close_ranks(agent *a);
/* Starts a new process in the place of a rank that has ended (--elastic). After a failure the rank
 * has ended as before. */
LS_MUST_USE ls_status agent_replace_rank(agent *a, const node_slot *slot);

/* --- agent_watch.c --- */
void agent_signal_ranks(agent *a, int number);
void agent_on_status(void *rank, unsigned events); /* records of a shim */
void agent_reap(agent *a);                         /* at SIGCHLD: shims, hosts, the guardian */
/* The others go on: the failure of this rank is not what the job ends with. */
void agent_forget_failure(agent *a, int local_rank);
void agent_evict_rank(agent *a, int local_rank); /* SIGKILL */
bool agent_fail_rank(void *agent, int local_rank, int exit_code, const char *why);

/* Messages of the head that end the ranks. */
void agent_stop_ranks(agent *a, const node_stop *stop);
void agent_note_stop(agent *a, const node_stop *stop);
void agent_abort_ranks(agent *a);
void agent_kill_ranks(void *arg /* agent */);

bool agent_ended_well(const agent_rank *r);
bool agent_has_crashed(const agent_rank *r);
int agent_exit_code(const agent_rank *r);
/* "rank 1 (pid 4711) exited with code 3" */
void agent_describe_end(const agent_rank *r, char *buf, size_t n);
/* "running": what a rank is doing. */
void agent_describe_rank(void *arg /* agent */, int local_rank, char *buf, size_t n);

/* --- agent_report.c --- */
/* The rank that failed first, by what is known now, and the lines of the report about it. */
void agent_make_report(agent *a, node_end *end, text_buf *details);
void agent_count_ends(const agent *a, node_end *end);

/* --- agent_rings.c --- */
/* Sends the flight recorders of ranks that have ended, if the head requests them. */
LS_MUST_USE ls_status agent_send_rings(agent *a);

/* --- agent_error.c --- */
void agent_save_error(agent *a, const agent_rank *r); /* the error file of the first failed rank */
/* `status` is what agent_run() fails with, its text the last error. */
void agent_write_error(agent *a, ls_status status);

#endif
