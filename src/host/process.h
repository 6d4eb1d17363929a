/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h - finding, holding and killing processes, and closing descriptors: wrappers of pidfds,
 * /proc and close_range().
 *
 * host/: this machine and its processes: /proc, control groups, cores, leftovers of jobs, memfds.
 * All headers are open to net and every layer above.
 */
#ifndef LS_HOST_PROCESS_H
#define LS_HOST_PROCESS_H

#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The environment variable by which every process of a job names its agent; further marks are in
 * host/process_marks.h.
 */
#define PROCESS_AGENT_ENV "LOCKSTEP_AGENT"

/*
 * Open files of an agent, and of it for each rank. At least: a rank takes two pipes, a socket to
 * its shim, its flight recorder, its error file, PMI's socket and the connection to the hub; one
 * more in elastic jobs, and one more with log files.
 */
#define AGENT_FILES_LEAST      24
#define AGENT_FILES_LEAST_RANK 7
/* With connections of the program's own to the head (PyTorch's store). */
#define AGENT_FILES      64
#define AGENT_FILES_RANK 13

/* Raises the limit of open files to `needed`, or as far as it may be raised. */
void process_allow_files(uint64_t needed);

#define PROCESS_SHOWN_BYTES 25 /* of the value of PROCESS_OUTER_PID_ENV, with its zero */

/* A pidfd, CLOEXEC: readable when the process has exited; -1 before Linux 5.3. */
int process_open(pid_t pid);

/* For a child between fork and exec: signals have their usual actions and this mask. */
void process_reset_signals(const sigset_t *mask);

/* Sends SIGKILL through a pidfd, or to the pid when fd is -1. False: not sent. */
bool process_kill(int fd, pid_t pid);

/*
 * Kills and reaps all children of this process, which is a subreaper, and their orphans, until none
 * is left or deadline_ms has passed.
 */
void process_kill_children(int64_t deadline_ms);

/* Lists at most `most` children of a process's main thread; returns their number. */
int process_list_children(pid_t parent, pid_t *out, int most);

/*
 * Identifies an agent's processes: LOCKSTEP_AGENT=agent in the environment they were started with,
 * or a descriptor of the job's key, which forked children keep without exec.
 */
typedef struct process_mark {
    char agent[32];
    int key_fd;   /* -1: use the environment only */
    pid_t spared; /* has the mark, but is not killed; 0: none */
} process_mark;

/*
 * Kills every process with the mark except this one. Repeats until several scans find none, because
 * a process has no mark for a moment during exec, or until deadline_ms has passed. A pidfd holds
 * each process while it is checked, so a reused pid is never killed.
 */
void process_sweep_job(const process_mark *mark, int64_t deadline_ms);

/* Closes all descriptors but those listed. */
void process_close_all_but(const int *keep, int n);

/* A list of open descriptors of this process. Zero-initialised: empty. */
typedef struct process_fds {
    int *fds;
    int n;
} process_fds;

/* The caller frees out->fds with ls_free(). */
LS_MUST_USE ls_status process_list_fds(process_fds *out);

/* Closes descriptors that are in neither list. */
void process_close_since(const process_fds *then, const int *keep, int n_keep);

/* A pipe to a child; both ends CLOEXEC. */
LS_MUST_USE ls_status process_make_pipe(int *read_end, int *write_end);

/* Two connected sockets, for messages between this process and a child; CLOEXEC. Reading fails once
 * with ECONNRESET when the other side has closed and has not read all messages; then come its
 * own. */
LS_MUST_USE ls_status process_make_channel(int *ours, int *childs);

int process_count_threads(void); /* of this process */

/*
 * Writes "INNER:OUTER", the pids of an isolated rank inside and outside its namespace, over the
 * value of PROCESS_OUTER_PID_ENV in `env`, which has PROCESS_SHOWN_BYTES. Allocates nothing.
 */
void process_set_shown_pid(char *const *env, pid_t inner, pid_t outer);

/* "was killed by signal 9 (SIGKILL)", "exited with code 3", for a wait status. */
const char *process_end_text(char *buf, size_t n, int wait_status);
const char *process_signal_name(int number); /* "SIGKILL", "a real-time signal" */

#endif
