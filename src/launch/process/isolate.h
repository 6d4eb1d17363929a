/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isolate.h - a namespace of processes for the ranks of one generation on this node (lockstep run --isolate).
 *
 *     agent --+-- first process ("lockstep-init") --+-- shim --- rank --- whatever it starts
 *             +-- guardian                          +-- shim ...
 *
 * In there the first process is number 1: it reaps what nobody else does and passes nothing on. It is killed with the agent, and with it the
 * kernel kills everything in the namespace, whatever sessions, environments and parents that has given itself. All ranks of a node
 * share the namespace, so that they may read each other's memory. It has a /proc of its own and is otherwise like outside: the same files,
 * user and network.
 */
#ifndef LS_LAUNCH_ISOLATE_H
#define LS_LAUNCH_ISOLATE_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct isolation {
    pid_t pid;       /* of the first process, as it is seen from outside; 0: there is none */
    int lifeline_fd; /* its end is the end of the namespace; -1: there is none */
    uint64_t pid_ns; /* which namespace it is */
} isolation;

#define ISOLATION_NONE ((isolation){.lifeline_fd = -1})

typedef struct isolate_plan {
    int key_fd; /* that the first process keeps open, as the guardian's mark */
    /* Runs in the first process, and starts what is to be inside. proc_fd is for isolate_outer_pid(). */
    void (*fill)(void *arg, int proc_fd);
    void *arg;
} isolate_plan;

/* Makes the namespace, with rights of this user's own where the kernel allows that and root's are missing. LS_EUNSUPPORTED names what is
 * missing, and what to do. Needs a process with one thread. */
LS_MUST_USE ls_status isolate_start(const isolate_plan *plan, isolation *out);

/* Kills everything in it and waits for that, but not beyond deadline_ms: false when something still is there. */
bool isolate_end(isolation *i, int64_t deadline_ms);

/* At SIGCHLD: true, once, when the first process has ended though nobody here has ended it. */
bool isolate_has_died(isolation *i);

/* Calls fn for every process that is still in it. */
void isolate_for_each(const isolation *i, void (*fn)(void *arg, pid_t pid), void *arg);

/* The number by which those outside know the calling process; 0 when that cannot be said. */
pid_t isolate_outer_pid(int proc_fd);

#endif
