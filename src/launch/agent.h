/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.h - the inside of a running agent.
 */
#ifndef LS_LAUNCH_AGENT_H
#define LS_LAUNCH_AGENT_H

#include "launch/launch.h"
#include "launch/output.h"
#include "launch/shim.h"
#include "net/key.h"
#include "net/poller.h"
#include "store/hub.h"

#include <signal.h>

typedef struct agent agent;

typedef struct agent_rank {
    agent *agent;
    int rank;
    pid_t shim;      /* 0 once reaped */
    pid_t pid;       /* of the rank itself, 0 until it is known */
    int lifeline_fd; /* write: signals for the rank; its end kills it */
    int news_fd;
    int stream_fd[2]; /* its stdout and stderr, -1 when ended or inherited */
    int ring_fd;
    poll_watch *news_watch;
    poll_watch *stream_watch[2];
    output_stream stream[2];
    bool joined; /* the hub knows it */
    bool left;   /* it said goodbye there */
    bool ended;
    int wait_status;
    char message[LS_ERROR_BYTES]; /* why its function failed, or why it could not be run */
} agent_rank;

typedef enum agent_phase {
    AGENT_RUNNING,
    AGENT_STOPPING, /* orderly: somebody asked; grace_ms until SIGKILL */
    AGENT_FAILING   /* a rank has failed: SIGTERM soon, SIGKILL after that */
} agent_phase;

struct agent {
    const agent_spec *spec;
    agent_result *result;
    poller *poller;
    hub *hub;
    char job[JOB_ID_BYTES];
    net_key key;
    int key_fd;
    int signal_fd;
    poll_watch *signal_watch;
    sigset_t old_mask;
    bool mask_taken;
    agent_rank *ranks;
    output_sink sinks[2];
    int guardian_fd; /* its lifeline */
    pid_t guardian;
    bool shim_lost; /* a shim was killed: what its rank has forked may be below us now */

    agent_phase phase;
    int stop_signal;
    int n_ended;
    int root;    /* the rank that failed first, -1 */
    int n_after; /* that failed after it */
    char cause[sizeof(
        ((job_cause *)0)->text)]; /* reported through the hub before any rank ended; "" */
    int64_t resumed_ms;           /* when Ctrl-Z was last undone */
    int64_t oom_kills;            /* at the start */
    poll_timer term_timer;
    poll_timer kill_timer;
    poll_timer drain_timer;
    bool drained; /* enough waiting for pipes that somebody else still holds */
};

/* agent_start.c: descriptors, hub, ranks, guardian. */
LS_MUST_USE ls_status agent_open(agent *a, const agent_spec *spec, agent_result *result);
void agent_close(agent *a);

/* agent.c: what the opened things report. */
void agent_on_news(void *rank, unsigned events);
void agent_on_stream(void *rank, unsigned events, int which);
void agent_on_signal(void *a, unsigned events);
hub_events agent_hub_events(agent *a);

#endif
