/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_output.h - what the ranks of a node print: their pipes or terminals, the job's stdout and
 * stderr, log files, filters, and the files in which ranks leave their errors.
 *
 *     pipe of a rank -> log file        (agent_logs.c)
 *                    -> filtered lines  (agent_filter.c)
 *                    -> console         (output.h), or the starter of this agent (agent_remote.h)
 *
 * launch/agent/streams/: output and input of ranks, and agents on other nodes. Called by
 * launch/agent.
 */
#ifndef LS_LAUNCH_AGENT_STREAMS_AGENT_OUTPUT_H
#define LS_LAUNCH_AGENT_STREAMS_AGENT_OUTPUT_H

#include "launch/agent/node/agent_context.h"
#include "launch/output/error_file.h"
#include "launch/output/line_prefix.h"
#include "launch/output/log_folder.h"
#include "launch/output/output.h"
#include "launch/output/output_fold.h"

typedef struct agent_output agent_output;
struct agent_hosts;

/* One rank of this node. */
typedef struct rank_output {
    agent_output *owner;
    int local_rank;
    int rank;                /* in the job */
    unsigned attempt;        /* names its log folder */
    int fd[2];               /* our ends of its stdout and stderr, -1 when ended or inherited */
    poll_watch *watch[2];    /* NULL while the sink takes nothing */
    output_stream stream[2]; /* its lines */
    output_recent recent;    /* its last lines, for the report */
    int log_fd[2];           /* files of its streams, -1: none */
    text_buf filtered[2];    /* unfinished lines for the filters */
    char filter_prefix[LINE_PREFIX_BYTES];
    int ring_fd;  /* its flight recorder: borrowed */
    int error_fd; /* its error file in memory; -1: in the log folder, or none */
} rank_output;

struct agent_output {
    const agent_context *ctx;
    struct agent_hosts *hosts; /* their ranks print here, too; NULL: none */
    rank_output *ranks;        /* spec->n_ranks */
    output_sink sinks[2];      /* the job's stdout and stderr */
    poll_watch *sink_watch[2]; /* while bytes wait for the reader */
    size_t n_console;          /* lines on stderr, and on stdout where that is the same file */
    output_fold *fold;         /* NULL: lines are not folded */
    poll_timer fold_timer;
    log_folder logs;
    bool has_log_failed; /* and this was reported */
    int filtered_fd[2];  /* of the present attempt, -1: none */
    bool is_drained;     /* the wait for pipes that other processes hold open is over */
    poll_timer drain_timer;
    pty_size remote_size; /* of the ranks' terminals, where the starter decides it */
};

/* --- agent_output.c --- */

void agent_output_init(agent_output *o, const agent_context *ctx);
/* For at most the ranks that the spec has now. */
LS_MUST_USE ls_status agent_output_open(agent_output *o);
void agent_output_close(agent_output *o); /* after init, also without open */

/* Before the ranks of a generation are started: no rank has any output. */
void agent_output_reset(agent_output *o);
/* The log files and filters of a generation, and folding, if a terminal shows several ranks. */
LS_MUST_USE ls_status agent_output_begin(agent_output *o);
LS_MUST_USE ls_status agent_output_open_fold(agent_output *o);

/* Opens a rank's stdout (0) or stderr (1); *child_end is the rank's. */
LS_MUST_USE ls_status agent_output_open_stream(agent_output *o, int local_rank, int which,
                                               int *child_end);

/* Ends all streams; what the pipes still hold is not read. */
void agent_output_end(agent_output *o);
/* Prints what a rank that has ended has left in its pipes, and closes them: another process will
 * have its place. */
void agent_output_end_rank(agent_output *o, int local_rank);
void agent_output_free_ranks(agent_output *o); /* after that, with their files */

/* Prints one line of the agent. */
void agent_output_note(agent_output *o, const char *line);

/* After anything was printed: waits for slow readers, pauses or resumes reading from the ranks. */
void agent_output_update(agent_output *o);
bool agent_output_is_taken(const agent_output *o); /* nothing waits for a reader */

/* Starts the time that pipes may outlive their ranks. */
void agent_output_begin_drain(agent_output *o);
/* False when all pipes have ended, or that time is over. */
bool agent_output_is_draining(const agent_output *o);
/* Ends all streams and waits until the readers have taken everything. */
LS_MUST_USE ls_status agent_output_finish(agent_output *o);

/* --- agent_terminal.c --- */

/* The size of a rank's terminal in a job of n_ranks: ours, less the prefix of its lines. */
pty_size agent_terminal_size(const agent_output *o, int n_ranks);
void agent_terminal_resize(agent_output *o, pty_size size);

/* --- agent_logs.c --- */

/* Creates the folder of the job, if files are requested. */
bool agent_logs_has_files(const agent_spec *spec);
LS_MUST_USE ls_status agent_logs_open(agent_output *o);
/*
 * Opens a rank's files. *error_path is for TORCHELASTIC_ERROR_FILE; it stays as it is when there is
 * none.
 */
LS_MUST_USE ls_status agent_logs_open_rank(rank_output *r, char *error_path, size_t n);
void agent_logs_close_rank(rank_output *r);
void agent_logs_write(rank_output *r, int which, const char *bytes, size_t n);
/* Whether a stream is printed on the console; whether it is also written to a file. */
bool agent_logs_shows(const rank_output *r, int which);
bool agent_logs_is_teed(const rank_output *r, int which);
bool agent_logs_shows_any(const agent_spec *spec, int local_rank, int rank);

/* The error file of a rank. LS_ENOTFOUND: it is empty or missing. */
LS_MUST_USE ls_status agent_logs_read_error(const rank_output *r, error_report *out);
LS_MUST_USE ls_status agent_logs_open_error(const rank_output *r, int *fd);
void agent_logs_append_folder(const rank_output *r, text_buf *out); /* a line of the report */

/* --- agent_filter.c --- */
LS_MUST_USE ls_status agent_filter_open(agent_output *o); /* before ranks start */
void agent_filter_close(agent_output *o);
void agent_filter_feed(rank_output *r, int which, const char *bytes, size_t n);
void agent_filter_end(rank_output *r, int which); /* the stream has ended */

#endif
