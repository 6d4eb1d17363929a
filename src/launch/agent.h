/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.h - the inside of a running agent.
 */
#ifndef LS_LAUNCH_AGENT_H
#define LS_LAUNCH_AGENT_H

#include "launch/launch.h"
#include "launch/error_file.h"
#include "launch/log_folder.h"
#include "launch/output.h"
#include "launch/output_fold.h"
#include "launch/pmi.h"
#include "launch/shim.h"
#include "net/key.h"
#include "net/poller.h"
#include "store/c10d_store.h"
#include "store/hub.h"

#include <signal.h>

typedef struct agent agent;

typedef struct agent_rank {
    agent *agent;
    int rank;
    pid_t shim;      /* 0 once reaped */
    pid_t pid;       /* of the rank itself, 0 until it is known */
    int lifeline_fd; /* write: signals for the rank; its end kills it */
    int news_fd;
    int stream_fd[2]; /* its stdout and stderr, -1 when ended or inherited */
    int ring_fd;
    unsigned attempt; /* its folder in agent.logs */
    int log_fd[2];    /* files of its streams, -1: none */
    int error_fd;     /* where it leaves its error, if not in that folder; -1: there */
    int pmi_fd;       /* for PMI-1, -1 when ended or not offered */
    poll_watch *pmi_watch;
    poll_watch *news_watch;
    poll_watch *stream_watch[2]; /* NULL while nobody takes what the job prints */
    output_stream stream[2];
    output_kept kept;
    int n_joins; /* connections to the hub that it has made */
    bool left;   /* the last of them ended with a goodbye */
    bool ended;
    int wait_status;
    int failed_code; /* it has failed, whatever its wait status: the job's exit code then; 0: nothing is known of that */
    int64_t peak_bytes;
    char message[LS_ERROR_BYTES]; /* why its function failed, or why it could not be run */
} agent_rank;

typedef enum agent_phase {
    AGENT_RUNNING,
    AGENT_STOPPING, /* orderly: somebody asked; grace_ms until SIGKILL */
    AGENT_FAILING   /* a rank has failed: SIGTERM soon, SIGKILL after that */
} agent_phase;

/* What broke a group or the job before any rank ended. */
typedef struct agent_cause {
    char text[sizeof(((job_cause *)0)->text)]; /* "": nothing */
    int64_t at_ms;
} agent_cause;

struct agent {
    const agent_spec *spec;
    agent_result *result;
    poller *poller;
    hub *hub;
    c10d_store *store; /* for PyTorch programs, NULL: they host their own */
    pmi *pmi;          /* NULL when the ranks run a function */
    char job[JOB_ID_BYTES];
    net_key key;
    int key_fd;
    process_fds users; /* descriptors that were open before */
    int signal_fd;
    poll_watch *signal_watch;
    sigset_t old_mask;
    struct sigaction old_pipe; /* SIGPIPE's */
    struct sigaction old_size; /* SIGXFSZ's */
    bool signals_taken;
    agent_rank *ranks;
    output_sink sinks[2];
    poll_watch *sink_watch[2]; /* while something waits */
    output_fold *fold;         /* NULL: lines are not folded */
    poll_timer fold_timer;
    log_folder logs;
    bool log_failed; /* and it has been said */
    int guardian_fd; /* its lifeline */
    pid_t guardian;
    int n_guardians; /* that were started */
    bool shim_lost;  /* a shim was killed: what its rank has forked may be below us now */

    agent_phase phase;
    int stop_signal; /* of AGENT_STOPPING */
    int n_ended;
    int n_failed;
    int root;          /* the rank that failed first, -1 */
    int64_t started_s; /* since 1970 */
    int64_t failed_ms;
    agent_cause cause;
    int64_t resumed_ms; /* when Ctrl-Z was last undone */
    int64_t oom_kills;  /* at the start */
    poll_timer term_timer;
    poll_timer kill_timer;
    poll_timer lost_timer;
    poll_timer drain_timer;
    bool drained; /* enough waiting for pipes that somebody else still holds */
};

/* --- agent_start.c: descriptors, hub, ranks, guardian --- */
LS_MUST_USE ls_status agent_open(agent *a, const agent_spec *spec, agent_result *result);
void agent_close(agent *a);
LS_MUST_USE ls_status agent_start_guardian(agent *a);

bool agent_stops_at(const agent_spec *spec, int number); /* whether this signal ends the job */

/* --- agent_output.c: what ranks print --- */

/* Prepares folding, if there is a terminal and more than one rank. */
LS_MUST_USE ls_status agent_open_fold(agent *a);

/* Takes over what a rank will print; *child_end is the rank's. */
LS_MUST_USE ls_status agent_open_stream(agent_rank *r, int which, int *child_end);
void agent_end_output(agent *a); /* whatever the pipes still hold is left there */

/* A line of our own, where the ranks' lines go to stderr. */
void agent_note(agent *a, const char *format, ...) LS_PRINTF(2, 3);

/* Reads what the ranks have left in their pipes, and waits until all of it is taken. */
LS_MUST_USE ls_status agent_drain(agent *a);

/* --- agent_logs.c: what is kept of it in files --- */

/* Makes the folder of the job, if files are wanted. */
LS_MUST_USE ls_status agent_open_logs(agent *a);
/* Opens a rank's files. *error_path is for TORCHELASTIC_ERROR_FILE; it stays as it is when there is none. */
LS_MUST_USE ls_status agent_open_rank_logs(agent_rank *r, char *error_path, size_t n);
void agent_close_rank_logs(agent_rank *r);
void agent_write_log(agent_rank *r, int which, const char *bytes, size_t n);
bool agent_shows(const agent_rank *r, int which); /* on the console */

/* What a rank has left in its error file; LS_ENOTFOUND: nothing. */
LS_MUST_USE ls_status agent_read_error(const agent_rank *r, error_report *out);

/* --- agent_report.c: why a job failed --- */

/* Moves the root to a rank that failed earlier, if its error file says so. */
void agent_settle_root(agent *a);
void agent_make_report(agent *a);
/* --- agent_pmi.c: MPI programs that ask for their launcher --- */

/* Offers PMI-1 to a rank; *child_end is the rank's. */
LS_MUST_USE ls_status agent_open_pmi(agent_rank *r, int *child_end);
/* Answers what the rank has said so far. */
void agent_hear_pmi(agent_rank *r);
void agent_end_pmi(agent_rank *r);
/* A rank that ended well, though others are in MPI with it, fails: they would wait for ever. */
void agent_end_vain_mpi(agent *a);
/* A word to who starts an Open MPI program, which cannot find its ranks under us. */
void agent_note_open_mpi(agent *a);

/* --- agent.c: what the opened things report --- */

/* A rank has failed though its exit code does not say so, or not yet; r->message tells how. */
void agent_rank_failed(agent_rank *r, int code);
void agent_on_news(void *rank, unsigned events);
void agent_on_signal(void *a, unsigned events);
hub_events agent_hub_events(agent *a);

/* "rank 1 (pid 4711) exited with code 3" */
void agent_describe_end(const agent *a, const agent_rank *r, char *buf, size_t n);

/* The job is to end in good order: number is the signal that says so. The second time it ends at once. */
void agent_stop(agent *a, int number);

#endif
