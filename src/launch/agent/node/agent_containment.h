/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_containment.h - how an agent finds and ends every process of its ranks: a control group and
 * a namespace where the kernel offers them, the guardian, and a search for processes that carry the
 * agent's mark. A process that cannot be killed is reported once, and is not waited for.
 */
#ifndef LS_LAUNCH_AGENT_NODE_AGENT_CONTAINMENT_H
#define LS_LAUNCH_AGENT_NODE_AGENT_CONTAINMENT_H

#include "host/cgroup.h"
#include "host/process.h"
#include "launch/agent/node/agent_context.h"
#include "launch/isolate/isolate.h"
#include "launch/isolate/oom.h"

#define CONTAINMENT_LEFT_MOST 16

typedef struct agent_containment {
    const agent_context *ctx;
    process_mark mark;   /* of all processes of the ranks */
    cgroup group;        /* of the ranks; CGROUP_NONE: there is none */
    isolation isolation; /* of the ranks with their shims, with spec->job->isolate */
    oom_watch oom;
    pid_t guardian;     /* 0: it has ended */
    int guardian_fd;    /* its lifeline */
    int n_guardians;    /* started so far */
    bool has_lost_shim; /* a shim was killed: descendants of its rank may be our children now */
    int n_left;
    pid_t left[CONTAINMENT_LEFT_MOST]; /* processes reported as impossible to kill */
} agent_containment;

void agent_containment_init(agent_containment *c, const agent_context *ctx);
void agent_containment_close(agent_containment *c);

/* The guardian and, for programs, the control group of a job. Needs c->mark. */
LS_MUST_USE ls_status agent_containment_open_job(agent_containment *c);
void agent_containment_begin(agent_containment *c); /* before the ranks of each generation */

/* Ends the namespace of the ranks, and every process in their control group. */
void agent_containment_end_ranks(agent_containment *c);
/* After the end of the shims: ends processes that have escaped theirs. */
void agent_containment_sweep(agent_containment *c);
/* Removes the control group, and ends the processes in it. */
void agent_containment_end_job(agent_containment *c);

/* At SIGCHLD: replaces a guardian that has ended. */
void agent_containment_reap(agent_containment *c);

/* Reports a process that cannot be killed, once. */
void agent_containment_note_left(void *containment, pid_t pid);
/* Whether that was reported before; if not, it counts as reported now. */
bool agent_containment_was_noted(agent_containment *c, pid_t pid);

#endif
