/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftover.h - finds and kills processes of dead jobs, without touching those of living jobs.
 *
 * A process that a rank starts inherits marks that name the agent of its job (pid, start time and
 * pid namespace): LOCKSTEP_AGENT_PROCESS in its environment, the name of the memfd that holds the
 * job's key, and the name of the ranks' control group if there is one. A leftover has a mark whose
 * agent is dead, and no mark whose agent is alive or in another pid namespace. So new sessions,
 * forks, intermediate programs, stopped agents and reused pids make no difference. A process
 * without marks (environment replaced, all descriptors closed, no control group) is not found.
 */
#ifndef LS_HOST_LEFTOVER_H
#define LS_HOST_LEFTOVER_H

#include "base/status.h"
#include "host/process_marks.h"

#include <sys/types.h>

typedef struct leftover {
    process_id id;
    uid_t uid;
    process_id agent;            /* dead */
    char job[PROCESS_JOB_BYTES]; /* "" when unknown */
    char program[64];
    int64_t age_s;
} leftover;

typedef struct leftover_query {
    const char *root; /* prefix of "/proc" */
    bool all_users;   /* false: only processes whose user ids are all this user's */
    const char *job;  /* NULL: any job */
} leftover_query;

typedef struct leftovers {
    leftover *items; /* by pid */
    int n;
    process_id living; /* the agent of query.job when it is alive; else pid 0 */
} leftovers;

/*
 * Lists leftovers, never this process or its ancestors. LS_ESYSTEM: /proc is missing or of another
 * pid namespace.
 */
LS_MUST_USE ls_status leftover_find(const leftover_query *query, leftovers *out);
void leftovers_free(leftovers *list);

/*
 * Called once for each process: whether it was killed. One that waits for a device cannot be
 * killed.
 */
typedef void (*leftover_report_fn)(void *arg, const leftover *what, bool ended);

/*
 * Kills (SIGKILL) the processes of leftover_find(), and repeats until several scans find none or
 * deadline_ms has passed. A pidfd holds each process while it is examined again. *n_left: processes
 * that could not be killed.
 */
LS_MUST_USE ls_status leftover_end(const leftover_query *query, int64_t deadline_ms,
                                   leftover_report_fn report, void *arg, int *n_left);

/* "pid 4711 (python3), 3 h old, of job 0123456789abcdef", into buf, which it returns. */
const char *leftover_text(char *buf, size_t n, const leftover *what);

#endif
