/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.h - the inside of a running agent.
 */
#ifndef LS_LAUNCH_AGENT_H
#define LS_LAUNCH_AGENT_H

#include "launch/agent/agent_spec.h"
#include "launch/process/cgroup.h"
#include "launch/agent/error_file.h"
#include "base/wait_report.h"
#include "launch/head/head.h"
#include "launch/process/isolate.h"
#include "launch/agent/line_prefix.h"
#include "launch/agent/log_folder.h"
#include "launch/network/net_choice.h"
#include "launch/network/net_probe.h"
#include "launch/head/node_messages.h"
#include "launch/process/oom.h"
#include "launch/agent/output.h"
#include "launch/agent/output_fold.h"
#include "base/activity.h"
#include "launch/pmi/pmi.h"
#include "launch/process/pseudo_terminal.h"
#include "launch/process/shim.h"
#include "launch/agent/stdin_source.h"
#include "net/dial.h"
#include "net/frame_link.h"
#include "net/key.h"
#include "net/poller.h"
#include "net/stream_mux.h"
#include "net/user_listener.h"

#include <signal.h>

typedef struct agent agent;
struct launch_request;
typedef struct agent_hosts agent_hosts;

typedef struct agent_rank {
    agent *agent;
    int rank; /* in the job */
    pid_t
        shim; /* 0 once reaped; of an isolated rank it is nobody's to reap here: 0 until it is known, and at the rank's end */
    pid_t pid;       /* of the rank itself, 0 until it is known */
    int lifeline_fd; /* write: signals for the rank; its end kills it */
    int status_fd;
    int stream_fd[2]; /* its stdout and stderr, -1 when ended or inherited */
    int ring_fd;
    unsigned attempt;     /* its folder in agent.logs */
    int log_fd[2];        /* files of its streams, -1: none */
    text_buf filtered[2]; /* lines for agent.filtered_fd, not ended */
    char filter_prefix[LINE_PREFIX_BYTES];
    int error_fd; /* where it leaves its error, if not in that folder; -1: there */
    int pmi_fd;   /* for PMI-1, -1 when ended or not offered */
    poll_watch *pmi_watch;
    poll_watch *status_watch;
    poll_watch *stream_watch[2]; /* NULL while nobody takes what the job prints */
    output_stream stream[2];
    output_recent kept;
    bool ended;
    int wait_status;
    bool was_stopped; /* it ended after it had been signalled from here */
    int failed_code; /* it has failed, whatever its wait status: the job's exit code then; 0: nothing is known of that */
    int64_t peak_bytes;
    char memory[256]; /* it was killed for want of memory: whose limit that was; "": it was not */
    char
        activity[ACTIVITY_BYTES]; /* what its function was in the middle of when it called exit() */
    char message[LS_ERROR_BYTES]; /* why its function failed, or why it could not be run */
} agent_rank;

/* What rank 0 is to read, where that comes through us. */
typedef struct agent_input {
    int fd; /* it is written to, nonblocking; -1: it reads no more, or is not there */
    poll_watch *watch;
    byte_queue waiting; /* not taken yet; the rank of the next generation gets it if need be */
    size_t granted;     /* bytes that were asked for and have not come */
    bool has_ended;     /* no more will come */
} agent_input;
#define AGENT_LEFT_MOST 16

typedef enum agent_phase {
    AGENT_IDLE, /* no ranks: before, between and after generations */
    AGENT_RUNNING,
    AGENT_STOPPING, /* orderly: somebody asked; some time until SIGKILL */
    AGENT_FAILING   /* a rank of the job has failed: SIGTERM soon, SIGKILL after that */
} agent_phase;

struct agent { // NOLINT(clang-analyzer-optin.performance.Padding): there is one, ordered by subject
    const agent_spec *spec; /* own_spec */
    agent_spec own_spec;    /* the caller's; with hosts, what follows from them is filled in */
    agent_nodes own_nodes;
    agent_result *result;
    poller *poller;

    /* The connection to the head. */
    head *head;   /* it is here, NULL: elsewhere */
    net_key base; /* what the job's key is made from */
    dial *dial;   /* while connecting */
    frame_link link;
    bool is_linked;
    bool is_paused; /* the head has said that it will be silent */
    net_address head_at;
    char join_hint[512];
    char not_head[LS_ERROR_BYTES + 64]; /* why the head could not be here, for messages; or "" */
    net_address listens_at;             /* the head, if it is here */
    char head_text[NET_ADDRESS_TEXT_MAX];
    poll_timer beat;
    poll_timer patience;      /* until a line says what we wait for */
    poll_timer pause_timer;   /* from Ctrl-Z until we stop */
    agent_hosts *hosts;       /* agents that this one starts; NULL: none */
    poll_watch *remote_watch; /* of its starter */
    frame_reader remote_in;   /* what that says */
    bool is_over;
    text_buf root_error; /* the error file of the first rank that failed here; "": it has none */
    ls_status failure;   /* why agent_run() fails */
    char failure_text[LS_ERROR_BYTES];

    /* The process, from the first welcome on also the job. */
    uint64_t uid;  /* nobody else's, and as text: */
    char name[17]; /* what its processes carry */
    net_key key;
    int key_fd;
    process_fds users; /* descriptors that were open before */
    agent_input input;
    stdin_source *source; /* our own stdin; NULL: nobody has asked for it */
    pty_size size;        /* of the ranks' terminals */
    int signal_fd;
    poll_watch *signal_watch;
    sigset_t old_mask;
    struct sigaction old_pipe; /* SIGPIPE's */
    struct sigaction old_size; /* SIGXFSZ's */
    struct sigaction old_read; /* SIGTTIN's */
    bool signals_taken;
    int stop_signal; /* that came here, 0: none has */
    output_sink sinks[2];
    size_t n_console;          /* lines on stderr, and on stdout where that is the same place */
    bool has_lost_output;      /* stdout or stderr took no more, and that was said */
    poll_watch *sink_watch[2]; /* while something waits */
    log_folder logs;
    int filtered_fd[2]; /* of the present attempt, -1: none */
    bool has_job;       /* agent_open_job() has succeeded */
    bool log_failed;    /* and it has been said */
    int guardian_fd;    /* its lifeline */
    pid_t guardian;
    int n_guardians; /* that were started */
    int n_left;
    pid_t left[AGENT_LEFT_MOST]; /* that could not be killed, and of which that was said */
    bool shim_lost; /* a shim was killed: what its rank has forked may be below us now */
    cgroup group;   /* of the ranks, if there can be one */
    oom_watch oom;

    /* A generation, from its welcome to the end of its ranks. */
    node_welcome place; /* generation 0: none yet */
    net_probe *probe;   /* while a network is sought */
    net_pick pick;      /* what was found; n 0: one node needs none */
    int master_port;    /* MASTER_PORT of the job; 0: not known */
    int ranks_port;     /* ... and of the ranks here, see agent_store_watch.c: */
    bool store_is_used; /* a connection has come through our listener */
    poll_timer store_look;
    wait_report store_quiet;       /* since rank 0 used its processor */
    int store_tree_n;              /* at the last look */
    uint64_t store_tree_ticks;     /* likewise */
    user_listener *store_listener; /* for PyTorch programs; NULL: they connect elsewhere */
    stream_mux streams;            /* their connections */
    pmi *pmi;                      /* NULL when the ranks run a function */
    node_mpi mpi_told;             /* what the head knows of it */
    agent_rank *ranks;             /* spec->n_ranks */
    isolation isolation; /* in which they are, with their shims; none unless spec->isolate */
    output_fold *fold;   /* NULL: lines are not folded */
    poll_timer fold_timer;
    agent_phase phase;
    uint32_t finished; /* the generation that the head was told has finished */
    bool is_signalled; /* SIGTERM or SIGKILL was sent to them from here */
    bool is_killed;    /* SIGKILL was */
    bool drained;      /* enough waiting for pipes that somebody else still holds */
    int n_ended;
    int root;          /* the local rank that failed first, -1 */
    int aborter;       /* the local rank that aborted the others' group, -1 */
    int64_t started_s; /* since 1970 */
    int64_t failed_ms;
    int64_t grace_ms;
    poll_timer term_timer;
    poll_timer kill_timer;
    poll_timer lost_timer;
    poll_timer drain_timer;
};

/* --- agent_start.c: the process: signals, descriptors, guardian --- */
LS_MUST_USE ls_status agent_open(agent *a, const agent_spec *spec, agent_result *result);
void agent_close(agent *a);

/* At the first welcome: the key, the log folder, the guardian. */
LS_MUST_USE ls_status agent_open_job(agent *a);
LS_MUST_USE ls_status agent_start_guardian(agent *a);

bool agent_stops_at(const agent_spec *spec, int number); /* whether this signal ends the job */

/* --- agent_link.c: the head's orders, and what it is told --- */
LS_MUST_USE ls_status agent_open_link(agent *a);
void agent_close_link(agent *a);
LS_MUST_USE ls_status agent_open_head(agent *a);                       /* here */
void agent_send(agent *a, node_message type, const wire_writer *body); /* NULL: no body */
void agent_send_number(agent *a, node_message type, uint32_t number);
void agent_tell_failure(agent *a,
                        const agent_rank *r); /* NULL: of the start, and why is the error text */
void agent_tell_finished(agent *a);

/* The connection to the head is closed, and the ranks are killed: nobody hears how they end. */
void agent_leave_job(agent *a);

/* Ends agent_run() with this status and this thread's error text. */
void agent_give_up(agent *a, ls_status st);

/* --- agent_request.c: what agents elsewhere are to run --- */
void agent_fill_request(const agent *a,
                        struct launch_request *o); /* all that is the same everywhere */
LS_MUST_USE ls_status agent_write_request(void *a, wire_writer *w); /* for head_options */

/* --- agent_rings.c --- */

/* The flight recorders of ranks that have ended, if the head wants them. */
LS_MUST_USE ls_status agent_send_rings(agent *a);

/* --- agent_networks.c: which network is used, where there are several nodes --- */
LS_MUST_USE ls_status agent_offer_addresses(agent *a);
LS_MUST_USE ls_status agent_try_networks(agent *a, const frame *f);
LS_MUST_USE ls_status agent_take_network(agent *a, const frame *f);
void agent_tell_ready(agent *a); /* to start ranks; or why not */

/* --- agent_store.c: where PyTorch programs meet --- */

/*
 * On node 0 of several, before its ranks are ready: *port becomes MASTER_PORT of all nodes.
 * Elsewhere 0.
 */
LS_MUST_USE ls_status agent_choose_master(agent *a, int *port);

/*
 * Before the ranks start: *port is their MASTER_PORT, and what listens there, if it is to be
 * here.
 */
LS_MUST_USE ls_status agent_open_store(agent *a, int *port);
void agent_close_store(agent *a);

/* The ranks have started, with this MASTER_PORT: says so if rank 0 waits at another address. */
void agent_watch_store(agent *a, int port);
const char *agent_master_host(const agent *a, char *buf, size_t n); /* MASTER_ADDR */

/*
 * Whether a connection to node 0's listener is a process's of our user; and the answer of another
 * node's agent.
 */
LS_MUST_USE ls_status agent_tell_owner(agent *a, const frame *f);
LS_MUST_USE ls_status agent_take_owned(agent *a, const frame *f);

/* Whether this machine has InfiniBand or the like. */
bool agent_has_rdma(void);

/* A listener of a rank's on that network; -1: it finds one itself. */
LS_MUST_USE ls_status agent_open_listener(const agent *a, int rank, int *fd);

/* --- agent_ranks.c: the ranks of a generation --- */
void agent_prepare_ranks(agent *a); /* as none is there yet */
LS_MUST_USE ls_status agent_start_ranks(agent *a);
void agent_close_ranks(agent *a);

/* --- agent_watch.c: ... while they run --- */
void agent_signal_ranks(agent *a, int number);
void agent_on_shim_status(void *rank, unsigned events); /* of its shim */

/* The orders that end them. */
void agent_stop_ranks(agent *a, const node_stop *stop);
void agent_note_stop(agent *a,
                     const node_stop *stop); /* says so; where there are ranks, the above does */
void agent_abort_ranks(agent *a);
void agent_kill_ranks(agent *a);

/* A rank has failed though its exit code does not say so, or not yet; r->message tells how. */
void agent_rank_failed(agent_rank *r, int code);
void agent_reap(agent *a); /* shims and the guardian */
bool agent_ended_well(const agent_rank *r);
int agent_exit_code(const agent_rank *r);
bool agent_has_crashed(const agent_rank *r);

/* "rank 1 (pid 4711) exited with code 3" */
void agent_describe_end(const agent *a, const agent_rank *r, char *buf, size_t n);
/* A local rank has aborted the others' group: the report is about this rank. */
void agent_note_abort(void *a, int local_rank);
/* "running": what a rank is doing. */
void agent_describe_rank(void *a, int local_rank, char *buf, size_t n);

/* --- agent_hold.c: what the kernel keeps together, and what is left when it has killed all --- */

/* A control group for the ranks, where there can be one; for those of each generation anew. */
void agent_open_group(agent *a);
void agent_begin_group(agent *a);

/* Ends the namespace of the ranks, and whatever is in their control group. */
void agent_end_below(agent *a);
void agent_remove_group(agent *a);
/* A line about a process that cannot be killed, once. */
void agent_note_left(void *a, pid_t pid);
bool agent_has_noted(agent *a, pid_t pid); /* false the first time */

/* --- agent_output.c: what ranks print --- */

/* Prepares folding, if there is a terminal and more than one rank. */
LS_MUST_USE ls_status agent_open_fold(agent *a);

/* Takes over what a rank will print; *child_end is the rank's. */
LS_MUST_USE ls_status agent_open_stream(agent_rank *r, int which, int *child_end);
void agent_end_output(agent *a); /* whatever the pipes still hold is left there */

/* After anything was printed, also by the ranks of other hosts: who waits, and who goes on. */
void agent_mind_output(agent *a);
bool agent_output_is_taken(const agent *a);

/* A line of our own, where the ranks' lines go to stderr. */
void agent_note(agent *a, const char *format, ...) LS_PRINTF(2, 3);

/* Reads what the ranks have left in their pipes, and waits until all of it is taken. */
LS_MUST_USE ls_status agent_drain(agent *a);

/* --- agent_input.c: what rank 0 reads --- */

/* Where rank 0 does not inherit our stdin: *child_end is its own. Nothing is done for any other. */
LS_MUST_USE ls_status agent_open_input(const agent_rank *r, int stdout_end, int *child_end);
void agent_end_input(agent *a);   /* rank 0 is gone */
void agent_close_input(agent *a); /* ... and no other will come */

/* What has come for it; no bytes: the end. LS_EPROTO: nobody asked for that. */
LS_MUST_USE ls_status agent_take_input(agent *a, const char *bytes, size_t n);

/* So many bytes more of our own stdin may be given to bytes(self, ...). */
LS_MUST_USE ls_status agent_want_stdin(agent *a, size_t more, void *self,
                                       void (*bytes)(void *self, const char *bytes, size_t n));

/* --- agent_terminal.c: what a rank has of ours --- */

/* Of a rank's terminal, in a job of so many. */
pty_size agent_terminal_size(const agent *a, int n_ranks);
void agent_resize_ranks(agent *a, pty_size size);
void agent_on_resize(agent *a); /* at SIGWINCH */

/* --- agent_logs.c: what is kept of it in files --- */

/* Makes the folder of the job, if files are wanted. */
LS_MUST_USE ls_status agent_open_logs(agent *a);
/* Opens a rank's files. *error_path is for TORCHELASTIC_ERROR_FILE; it stays as it is when there is none. */
LS_MUST_USE ls_status agent_open_rank_logs(agent_rank *r, char *error_path, size_t n);
void agent_close_rank_logs(agent_rank *r);
void agent_write_log(agent_rank *r, int which, const char *bytes, size_t n);
bool agent_shows(const agent_rank *r, int which); /* on the console */
bool agent_shows_any(const agent_spec *spec, int local_rank, int rank);

/* What a rank has left in its error file; LS_ENOTFOUND: nothing. */
LS_MUST_USE ls_status agent_read_error(const agent_rank *r, error_report *out);
LS_MUST_USE ls_status agent_open_error(const agent_rank *r, int *fd); /* likewise, to read it */

/* Whether this stream is written to a file and shown as well. */
bool agent_is_teed(const agent_rank *r, int which);

/* --- agent_filter.c: lines with certain texts in a file of their own --- */
LS_MUST_USE ls_status agent_open_filters(agent *a, unsigned attempt); /* before ranks start */
void agent_close_filters(agent *a);
void agent_filter_output(agent_rank *r, int which, const char *bytes, size_t n);
void agent_end_filter(agent_rank *r, int which); /* the stream has ended */

/* --- agent_hosts*.c: agents that are started from here, and their ranks --- */
LS_MUST_USE ls_status agent_open_hosts(agent *a);
LS_MUST_USE ls_status
agent_finish_hosts(agent *a); /* prints the rest of what they send, when the job is over */
void agent_close_hosts(agent *a);
void agent_end_host(void *a, int node, const char *why); /* for head_options */

/* NULL is allowed from here on. How many ranks the job has, and how many of them print; false: no hosts. */
bool agent_hosts_show(const agent_hosts *h, int *n_ranks, int *n_shown);
void agent_hosts_show_deferred(const agent_hosts *h);
void agent_hosts_resize(const agent_hosts *h);
void agent_hosts_pause(const agent_hosts *h, bool pauses);
void agent_hosts_reap(const agent_hosts *h);
/* What the ranks of that node printed last, if it is a host that was started from here: for head_options. */
void agent_hosts_append_last(void *a, int node, size_t most, text_buf *out);

/* --- agent_remote.c: an agent that was started so --- */
LS_MUST_USE ls_status agent_open_remote(agent *a);
void agent_remote_output(const agent_rank *r, int which, const char *bytes,
                         size_t n); /* none: the end */
void agent_remote_note(agent *a, const char *line);
void agent_remote_grant(agent *a, size_t more); /* bytes for rank 0 */
void agent_remote_lost(agent *a);               /* its stdout is broken */

/* --- agent_report.c: why the ranks here failed --- */

/* The rank that failed first by what is known now, and the lines about it. */
void agent_make_report(agent *a, node_end *end, text_buf *details);
void agent_count_ends(const agent *a, node_end *end); /* behind it, where there is a report */

/* --- agent_error.c: the error file of this launcher --- */
void agent_keep_error(agent *a, const agent_rank *r);
/* At the end: `status` is what agent_run() fails with, its text the last error. */
void agent_write_error(agent *a, ls_status status);

/* --- agent_pmi.c: MPI programs that ask for their launcher --- */

/* Offers PMI-1 to a rank; *child_end is the rank's. */
LS_MUST_USE ls_status agent_open_pmi(agent_rank *r, int *child_end);
/* Answers what the rank has said so far. */
void agent_hear_pmi(agent_rank *r);
void agent_end_pmi(agent_rank *r);
/* Tells the head what the ranks do in MPI, if that has changed. */
void agent_tell_mpi(agent *a);
/* What the head says of it. */
LS_MUST_USE ls_status agent_learn_keys(agent *a, const frame *f);
LS_MUST_USE ls_status agent_pass_barrier(agent *a, const frame *f);
LS_MUST_USE ls_status agent_take_early_exit(agent *a, const frame *f);
/* A word to who starts an Open MPI program, which cannot find its ranks under us. */
void agent_note_open_mpi(agent *a);

/* --- agent.c: signals, and the loop --- */
void agent_on_signal(void *a, unsigned events);

/* Somebody here wants the job to end in good order: number is the signal that says so. The second time it ends at once. */
void agent_stop(agent *a, int number);

#endif
