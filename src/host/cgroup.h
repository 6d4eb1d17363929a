/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.h - control groups: the group of this process, and groups of their own for the ranks of a
 * job.
 *
 * Where the kernel and the rights of this user allow it (root, or a group that systemd delegates),
 * the ranks of a node run in a version 2 group below the agent's, "lockstep-JOB-AGENT/N", where N
 * is the number of the start. No process leaves it without rights to another group, and one write
 * kills all processes in it. No controller is enabled for it. Jobs also run without groups.
 */
#ifndef LS_HOST_CGROUP_H
#define LS_HOST_CGROUP_H

#include "base/status.h"
#include "host/process_id.h"

#include <stdbool.h>
#include <sys/types.h>

#define CGROUP_PATH_BYTES 1024 /* longer paths are not used */
#define CGROUP_JOB_BYTES  32
#define CGROUP_NAME_BYTES (16 + CGROUP_JOB_BYTES + PROCESS_ID_TEXT_MAX)

/* --- the group of a process --- */

typedef struct cgroup_place {
    char path[CGROUP_PATH_BYTES]; /* of the group in the file system */
    size_t n_mount; /* length of the mount point in `path`; the rest is the group's name */
} cgroup_place;

/*
 * Finds the group of this process in the hierarchy of version 2 (controller NULL), or of a version
 * 1 controller. `root` is a prefix of "/proc" and of the hierarchy. LS_ENOTFOUND: no visible group.
 */
LS_MUST_USE ls_status cgroup_locate(const char *root, const char *controller, cgroup_place *out);

/* The same from the texts of /proc/self/mountinfo and /proc/self/cgroup. */
LS_MUST_USE ls_status cgroup_find_place(const char *mounts, const char *groups,
                                        const char *controller, cgroup_place *out);

/* --- groups of jobs --- */

/* Reads job and agent from the name of a job's group, up to a '/'; false for other groups. */
bool cgroup_parse_name(const char *name, char job[CGROUP_JOB_BYTES], process_id *agent);

typedef struct cgroup {
    char name[CGROUP_NAME_BYTES];
    cgroup_place parent;
    int parent_fd; /* folders; -1: there is no group */
    int fd;
    int leaf_fd;      /* the subgroup of the current start; -1: none yet */
    int n_leaves;     /* subgroups so far */
    bool takes_forks; /* clone3() into the subgroup works */
} cgroup;

#define CGROUP_NONE ((cgroup){.parent_fd = -1, .fd = -1, .leaf_fd = -1})

/*
 * Creates the group of a job of this agent and removes empty groups of dead agents beside it. A
 * failure means that the job runs without a group.
 */
LS_MUST_USE ls_status cgroup_create(const char *job, cgroup *out);

/*
 * Creates the subgroup for the next start; needed after cgroup_kill(), before the next fork. Does
 * nothing without a group.
 */
LS_MUST_USE ls_status cgroup_begin(cgroup *g);

/*
 * As fork(), but the child starts in the subgroup if possible, else in the group of its parent. The
 * parent must have one thread.
 */
pid_t cgroup_fork(const cgroup *g);

/* Kills all processes in the group at once (SIGKILL). */
void cgroup_kill(const cgroup *g);

/*
 * Kills all processes in the group, waits for their end and removes it with all subgroups. False
 * when a process is left at deadline_ms.
 */
bool cgroup_remove(const cgroup *g, int64_t deadline_ms);
void cgroup_close(cgroup *g);

/* Removes empty groups of dead agents on this machine, as far as this user may. */
void cgroup_remove_stale(void);

/* Calls fn for every process in the current subgroup. */
void cgroup_for_each(const cgroup *g, void (*fn)(void *arg, pid_t pid), void *arg);

#endif
