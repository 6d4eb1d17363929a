/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftover.h - processes of dead jobs, told from those of living ones with certainty.
 *
 * Whatever a rank starts inherits marks that name the agent of its job (process number, start and namespace): LOCKSTEP_AGENT_PROCESS in
 * its environment, the name of the memfd with the job's key, and that of the ranks' control group, where there is one. A leftover carries a mark whose agent is dead, and none whose
 * agent lives or is in another namespace of processes: so neither new sessions, forks and programs in between, nor an agent that
 * is only stopped mislead it, and a number that was given again does not either. A process that has no mark any more
 * (its environment replaced and all descriptors closed, and no control group) is not found.
 */
#ifndef LS_LAUNCH_LEFTOVER_H
#define LS_LAUNCH_LEFTOVER_H

#include "base/process_marks.h"
#include "base/status.h"

#include <sys/types.h>

typedef struct leftover {
    process_id id;
    uid_t uid;
    process_id agent;            /* dead */
    char job[PROCESS_JOB_BYTES]; /* "": nothing that is left of it tells */
    char program[64];
    int64_t age_s;
} leftover;

typedef struct leftover_query {
    const char *root; /* before "/proc" */
    bool
        all_users; /* otherwise only what is this user's in every respect: no program that has taken another user's rights */
    const char *job; /* NULL: of any job */
} leftover_query;

typedef struct leftovers {
    leftover *items; /* by process number */
    int n;
    process_id living; /* the agent of query.job, when that lives (its pid is not 0 then) */
} leftovers;

/* LS_ESYSTEM: /proc is missing or of another namespace. This process and those above it are never listed. */
LS_MUST_USE ls_status leftover_find(const leftover_query *query, leftovers *out);
void leftovers_free(leftovers *list);

/* Told once for each: it has ended, or cannot be ended (it waits for a device, or the kernel refuses). */
typedef void (*leftover_report_fn)(void *arg, const leftover *what, bool ended);

/*
 * Kills (SIGKILL) what leftover_find() finds on this machine, again until nothing has come after it for a while or deadline_ms has
 * passed. Each process is held by a pidfd while it is looked at once more. *n_left: those that could not be ended.
 */
LS_MUST_USE ls_status leftover_end(const leftover_query *query, int64_t deadline_ms,
                                   leftover_report_fn told, void *arg, int *n_left);

/* "pid 4711 (python3), 3 h old, of job 0123456789abcdef", into buf, which it returns. */
const char *leftover_text(char *buf, size_t n, const leftover *what);

#endif
