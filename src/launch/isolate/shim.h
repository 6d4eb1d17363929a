/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim.h - the two helper processes of an agent: a shim above each rank, and the guardian.
 *
 * launch/isolate/: what stands between an agent and its ranks: shims, namespaces, binding, out of
 * memory. Called by agents.
 */
#ifndef LS_LAUNCH_ISOLATE_SHIM_H
#define LS_LAUNCH_ISOLATE_SHIM_H

#include <lockstep/launch.h>

#include "host/cgroup.h"
#include "host/process.h"
#include "launch/isolate/binding.h"

#include <signal.h>
#include <sys/types.h>

/* Records that a shim and its rank send to the agent, each one message. */
typedef enum shim_status {
    SHIM_PID,         /* value: pid of the shim, when the agent did not fork it */
    SHIM_STARTED,     /* value: pid of the rank */
    SHIM_NOT_STARTED, /* value: errno */
    SHIM_EXEC_FAILED, /* value: errno; from the rank */
    SHIM_MESSAGE,     /* text: the error of the rank's function; from the rank */
    SHIM_ENDED,       /* value: wait status of the rank */
    SHIM_UNKILLABLE   /* value: pid of a descendant that cannot be killed */
} shim_status;

typedef struct shim_record {
    int32_t status;
    int32_t value;
    int64_t peak_bytes; /* of SHIM_ENDED: peak memory of the rank */
    char text[LS_ERROR_BYTES];
} shim_record;

typedef struct shim_spec {
    int local_rank;
    char *const *argv; /* program and arguments of the rank; NULL: fn */
    ls_spawn_fn fn;    /* the function that the rank runs; NULL: argv */
    void *fn_arg;
    char *const *environment; /* of the rank, complete */
    /* Its end of process_make_channel(). Read: signal numbers for the rank's process group; end of
     * file when the agent has exited, or ends the rank. Write: shim_record. */
    int agent_fd;
    int stdin_fd;        /* -1: /dev/null */
    int stdout_fd;       /* -1: inherited */
    int stderr_fd;       /* -1: inherited */
    int key_fd;          /* inherited by the rank under the same number; -1: none */
    int ring_fd;         /* as key_fd */
    int pmi_fd;          /* as key_fd */
    int listen_fd;       /* as key_fd */
    int error_fd;        /* as key_fd */
    const cgroup *group; /* of the rank */
    const rank_binding *binding;
    int proc_fd;   /* of isolate_plan.fill in a pid namespace; -1 outside */
    sigset_t mask; /* signal mask for the rank */
    /* Descriptors that were open before the agent; the rank's function may use them. */
    const process_fds *users;
} shim_spec;

/* Forks a shim, which forks the rank. *pid is the shim's pid. */
LS_MUST_USE ls_status shim_start(const shim_spec *spec, pid_t *pid);

/* The same in the first process of a namespace; failures are sent as status. */
void shim_start_inside(const shim_spec *spec);

/*
 * Forks the guardian. It waits for end of file on lifeline_fd, then kills the control group, if
 * any, and all processes of the job.
 */
LS_MUST_USE ls_status guardian_start(const process_mark *job, const cgroup *group, int lifeline_fd,
                                     pid_t *pid);

#endif
