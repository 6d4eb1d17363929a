/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h - what the kernel offers for keeping hold of processes.
 */
#ifndef LS_LAUNCH_PROCESS_H
#define LS_LAUNCH_PROCESS_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

/* Environment variable that every process of a job carries. */
#define PROCESS_JOB_ENV "LOCKSTEP_JOB"

/* A descriptor that becomes readable when the process ends, CLOEXEC; -1 where the kernel has none (before 5.3). */
int process_open(pid_t pid);

/* Kills and reaps all children of this process, and theirs as they arrive here (subreaper), until none is left or
 * deadline_ms has passed. */
void process_kill_children(int64_t deadline_ms);

/* Kills every process whose environment says LOCKSTEP_JOB=job, but never this one. Repeats until none is found or
 * deadline_ms has passed. A process is held by pidfd while it is checked, so that no other can take its number. */
void process_sweep_job(const char *job, int64_t deadline_ms);

/* Closes all descriptors but those listed. */
void process_close_all_but(const int *keep, int n);

/* Closes those that an exec would close (CLOEXEC), but none of those listed. */
void process_close_private(const int *keep, int n);

/* "was killed by signal 9 (SIGKILL)", "exited with code 3", for a wait status. */
const char *process_end_text(char *buf, size_t n, int wait_status);
const char *process_signal_name(int number); /* "SIGKILL", "a real-time signal" */

/* The kernel's count of processes killed for want of memory, in this cgroup or the machine; -1 when unknown. */
int64_t process_oom_kills(void);

#endif
