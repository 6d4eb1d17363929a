/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_marks.h - reads the job and the agent of a process from its environment. Every process of
 * a job inherits these variables, which launch/agent/rank_env.c sets, and the job's key.
 */
#ifndef LS_HOST_PROCESS_MARKS_H
#define LS_HOST_PROCESS_MARKS_H

#include "host/process_id.h"

#include <stdbool.h>
#include <sys/types.h>

#define PROCESS_JOB_ENV      "LOCKSTEP_JOB"
#define PROCESS_AGENT_ID_ENV "LOCKSTEP_AGENT_PROCESS" /* process_id_text() of the agent */

/* The name of the memfd with the key; the process_id_text() of the process that made it follows. */
#define PROCESS_KEY_NAME "lockstep-key "

#define PROCESS_JOB_BYTES 32

/* Feed it the file /proc/PID/environ in pieces of any size, then a zero byte. Zero-initialise. */
typedef struct mark_scan {
    char entry[128]; /* the current entry so far */
    size_t n;
    char job[PROCESS_JOB_BYTES]; /* "" = none, or an invalid name */
    char agent[PROCESS_ID_TEXT_MAX];
} mark_scan;

void mark_scan_feed(mark_scan *scan, const char *bytes, size_t n);

/* The marks of a process; empty when its environment cannot be read. `root` is the prefix of
 * "/proc". */
void process_marks_read(const char *root, pid_t pid, mark_scan *scan);

/* Whether a text is a valid job name, safe to print and to pass as an argument: letters, digits,
 * '-', '_'. */
bool process_is_job_name(const char *text);

#endif
