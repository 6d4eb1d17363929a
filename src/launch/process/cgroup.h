/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.h - control groups: where this process is in them, and one of our own for the ranks of a job.
 *
 * Where the kernel and whoever divides the machine let us (root, a delegated group of systemd's), the ranks of a node are in a group of
 * version 2 below the agent's own, "lockstep-JOB-AGENT/N", N the number of the start. No process can leave it without rights to another one, and one write kills all
 * in it. No controller is turned on for it. Everything works without it.
 */
#ifndef LS_LAUNCH_CGROUP_H
#define LS_LAUNCH_CGROUP_H

#include "base/process_id.h"
#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

#define CGROUP_PATH_BYTES 1024 /* a group deeper than that is not used */
#define CGROUP_JOB_BYTES  32
#define CGROUP_NAME_BYTES (16 + CGROUP_JOB_BYTES + PROCESS_ID_TEXT_MAX)

/* --- where a process is --- */

typedef struct cgroup_place {
    char path[CGROUP_PATH_BYTES]; /* of its group in the file system */
    size_t n_mount; /* how much of that is the tree's; the rest is the group's name: "/x" */
} cgroup_place;

/* This process's place in the tree of version 2 (controller NULL), or in that of a controller of version 1. `root` stands before "/proc"
 * and the tree. LS_ENOTFOUND: it has none that can be seen. */
LS_MUST_USE ls_status cgroup_locate(const char *root, const char *controller, cgroup_place *out);

/* The same from the texts of /proc/self/mountinfo and /proc/self/cgroup. */
LS_MUST_USE ls_status cgroup_find_place(const char *mounts, const char *groups,
                                        const char *controller, cgroup_place *out);

/* --- a job's own --- */

/* What the name of a group says about its job; false: it is none of a job's. `name` ends at a '/' or its end. */
bool cgroup_parse_name(const char *name, char job[CGROUP_JOB_BYTES], process_id *agent);

typedef struct cgroup {
    char name[CGROUP_NAME_BYTES];
    cgroup_place parent;
    int parent_fd; /* folders; -1: there is no group */
    int fd;
    int leaf_fd;      /* the group in it where processes are, -1: none yet */
    int n_leaves;     /* that there have been */
    bool takes_forks; /* a process may be born there */
} cgroup;

#define CGROUP_NONE ((cgroup){.parent_fd = -1, .fd = -1, .leaf_fd = -1})

/* Makes a group for a job of this agent. A failing status says why there can be none. Empty groups of dead agents beside it are removed. */
LS_MUST_USE ls_status cgroup_create(const char *job, cgroup *out);

/* Must be called again when all in it have been killed, before the next fork. Does nothing where there is no group. */
LS_MUST_USE ls_status cgroup_begin(cgroup *g);

/* As fork(), but the child and what it starts are in the group. Where that cannot be, or there is none, it is where its parent is. The
 * parent has one thread. */
pid_t cgroup_fork(const cgroup *g);

void cgroup_kill(const cgroup *g); /* all that is in it, at once (SIGKILL) */

/* Kills what is in it, and removes it with all groups below it when that is gone. False: something still is there at deadline_ms. */
bool cgroup_remove(const cgroup *g, int64_t deadline_ms);
void cgroup_close(cgroup *g);

/* Removes the empty groups that dead agents have left on this machine, as far as this user may. */
void cgroup_remove_stale(void);

/* Calls fn for every process that is in it. */
void cgroup_for_each(const cgroup *g, void (*fn)(void *arg, pid_t pid), void *arg);

#endif
