/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h - what the kernel offers for keeping hold of processes.
 */
#ifndef LS_LAUNCH_PROCESS_H
#define LS_LAUNCH_PROCESS_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

/* The environment variable that every process of a job carries: the agent that started it. Others
 * are in base/process_marks.h. */
#define PROCESS_AGENT_ENV "LOCKSTEP_AGENT"

#define PROCESS_SHOWN_BYTES 25 /* of the value of PROCESS_OUTER_PID_ENV, with its end */

/* A descriptor that becomes readable when the process ends, CLOEXEC; -1 where the kernel has none (before 5.3). */
int process_open(pid_t pid);

/* Kills and reaps all children of this process, and theirs as they arrive here (subreaper), until none is left or
 * deadline_ms has passed. */
void process_kill_children(int64_t deadline_ms);

/*
 * The children that the main thread of a process has started, `most` at most; gives their number.
 */
int process_list_children(pid_t parent, pid_t *out, int most);

/* How to tell an agent's processes: by LOCKSTEP_AGENT=agent in the environment they were started with, or by a descriptor of the job's key,
 * which forked children keep even where no exec gave them an environment. */
typedef struct process_mark {
    char agent[32];
    int key_fd;   /* -1: only the environment counts */
    pid_t spared; /* carries it, but is not killed; 0: none */
} process_mark;

/* Kills every process that carries the mark, but never this one. Repeats until none has been found for a while, as one may be
 * between two programs and carry nothing for that moment, or deadline_ms has passed. A process is held by pidfd while it is
 * checked, so that no other can take its number. */
void process_sweep_job(const process_mark *mark, int64_t deadline_ms);

/* Closes all descriptors but those listed. */
void process_close_all_but(const int *keep, int n);

/* The open descriptors of this process, to tell later which have come since. Zero-initialised: none. */
typedef struct process_fds {
    int *fds;
    int n;
} process_fds;
LS_MUST_USE ls_status process_list_fds(process_fds *out); /* freed with ls_free(out->fds) */

/* Closes what is in neither list. */
void process_close_since(const process_fds *then, const int *keep, int n_keep);

/* A pipe of which the reading or the writing end is ours and the other one a child's. Both CLOEXEC. */
LS_MUST_USE ls_status process_make_pipe(int *read_end, int *write_end);

int process_count_threads(void); /* of this process */

/*
 * Writes "inner:outer" over the value of PROCESS_OUTER_PID_ENV in `env`, which has PROCESS_SHOWN_BYTES: the process numbers of an isolated
 * rank inside its namespace and outside. Allocates nothing.
 */
void process_set_shown_pid(char *const *env, pid_t inner, pid_t outer);

/* "was killed by signal 9 (SIGKILL)", "exited with code 3", for a wait status. */
const char *process_end_text(char *buf, size_t n, int wait_status);
const char *process_signal_name(int number); /* "SIGKILL", "a real-time signal" */

#endif
