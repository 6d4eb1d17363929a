/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isolate.h - a pid namespace for the ranks of one generation on this node (lockstep run
 * --isolate).
 *
 *     agent --+-- first process ("lockstep-init") --+-- shim --- rank --- its descendants
 *             +-- guardian                          +-- shim ...
 *
 * The first process is pid 1 of the namespace: it reaps orphans and forwards nothing. It dies with
 * the agent, and the kernel then kills everything in the namespace, whatever sessions, environments
 * and parents those processes have. All ranks of a node share the namespace, so that they may read
 * each other's memory. It has its own /proc; files, user and network are those of the host.
 */
#ifndef LS_LAUNCH_ISOLATE_ISOLATE_H
#define LS_LAUNCH_ISOLATE_ISOLATE_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct isolation {
    pid_t pid;       /* of the first process, outside the namespace; 0: none */
    int lifeline_fd; /* closing it ends the namespace; -1: none */
    uint64_t pid_ns; /* inode of the namespace */
} isolation;

#define ISOLATION_NONE ((isolation){.lifeline_fd = -1})

typedef struct isolate_plan {
    int key_fd; /* stays open in the first process, as the guardian's mark */
    /* Runs in the first process and starts the others. proc_fd is for isolate_outer_pid(). */
    void (*fill)(void *arg, int proc_fd);
    void *arg;
} isolate_plan;

/*
 * Creates the namespace; without root's rights inside a user namespace. LS_EUNSUPPORTED names the
 * missing right or feature and its fix. Needs a process with one thread.
 */
LS_MUST_USE ls_status isolate_start(const isolate_plan *plan, isolation *out);

/*
 * Kills all processes in it and waits until they have exited; false when one is left at
 * deadline_ms.
 */
bool isolate_end(isolation *i, int64_t deadline_ms);

/* Call at SIGCHLD: true, once, when the first process has exited without isolate_end(). */
bool isolate_has_died(isolation *i);

/* Calls fn for every process in it except the first. */
void isolate_for_each(const isolation *i, void (*fn)(void *arg, pid_t pid), void *arg);

/* The pid of the calling process outside the namespace; 0 when unknown. */
pid_t isolate_outer_pid(int proc_fd);

#endif
