/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim.h - the two helper processes of an agent: a shim above each rank, and the guardian.
 */
#ifndef LS_LAUNCH_SHIM_H
#define LS_LAUNCH_SHIM_H

#include <lockstep/launch.h>

#include "launch/process/cgroup.h"
#include "launch/process/process.h"

#include <signal.h>
#include <sys/types.h>

/* What a shim and its rank tell the agent, one record a write() (smaller than PIPE_BUF, so never torn). */
typedef enum shim_status {
    SHIM_PID,         /* value: pid of the shim itself, if the agent cannot know it */
    SHIM_STARTED,     /* value: pid of the rank */
    SHIM_NOT_STARTED, /* value: errno */
    SHIM_EXEC_FAILED, /* value: errno; from the rank */
    SHIM_UNFINISHED, /* text: what its function was in the middle of when it called exit(); from the
                         rank */
    SHIM_MESSAGE,    /* text: why the rank's function failed; from the rank */
    SHIM_ENDED,      /* value: wait status of the rank */
    SHIM_UNKILLABLE  /* value: pid of a process below the rank that cannot be killed */
} shim_status;

typedef struct shim_record {
    int32_t status;
    int32_t value;
    int64_t peak_bytes; /* of SHIM_ENDED: the most memory that the rank had */
    char text[LS_ERROR_BYTES];
} shim_record;

typedef struct shim_spec {
    int local_rank;
    char *const *argv; /* program and arguments of the rank; NULL: fn */
    ls_spawn_fn fn;    /* the function that the rank runs; NULL: argv */
    void *fn_arg;
    char *const *environment; /* of the rank, whole */
    int lifeline_fd; /* read: signal numbers for the rank's process group; its end: the agent is gone */
    int status_fd;       /* write: shim_record */
    int stdin_fd;        /* -1: /dev/null */
    int stdout_fd;       /* -1: inherited */
    int stderr_fd;       /* -1: inherited */
    int key_fd;          /* kept open for the rank under the same number; -1: none */
    int ring_fd;         /* likewise */
    int pmi_fd;          /* likewise */
    int listen_fd;       /* likewise */
    const cgroup *group; /* where the rank is born */
    int proc_fd;   /* of isolate_plan.fill: the shim is in a namespace of its own; -1: it is not */
    sigset_t mask; /* signal mask for the rank */
    const process_fds
        *users; /* open before there was an agent: a function that is run may know them */
} shim_spec;

/* Forks a shim, which forks the rank. *pid is the shim's. */
LS_MUST_USE ls_status shim_start(const shim_spec *spec, pid_t *pid);

/* The same from a process that the agent is not; what becomes of it is told as news. */
void shim_start_inside(const shim_spec *spec);

/* Forks the guardian: waits for the end of lifeline_fd, then ends the group, if there is one, and sweeps the job. */
LS_MUST_USE ls_status guardian_start(const process_mark *job, const cgroup *group, int lifeline_fd,
                                     pid_t *pid);

#endif
