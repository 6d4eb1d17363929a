/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts.h - the other hosts of a job, on which this agent starts agents (starter.h): how they
 * start and end, which ranks they get, and what those ranks print and read.
 */
#ifndef LS_LAUNCH_AGENT_STREAMS_AGENT_HOSTS_H
#define LS_LAUNCH_AGENT_STREAMS_AGENT_HOSTS_H

#include "launch/agent/node/agent_link.h"
#include "launch/agent/streams/agent_input.h"
#include "launch/agent/streams/agent_output.h"

#include <signal.h>

typedef struct agent_hosts agent_hosts;

/* This machine's part of a job whose ranks have been placed. */
typedef struct hosts_own_node {
    int n_nodes;      /* of the job */
    int n_ranks;      /* on this machine; 0: none */
    int node;         /* its number; -1: it has no ranks */
    const char *name; /* as the user calls it; NULL: it has no ranks */
} hosts_own_node;

typedef struct hosts_options {
    agent_output *output;
    agent_input *input;
    agent_link *link;
    const sigset_t *mask; /* signal mask of the processes that are started */
    void *agent;
    /* Every host has its ranks: opens the head. */
    ls_status (*placed)(void *agent, const hosts_own_node *own);
} hosts_options;

/* Starts the hosts of the spec. *out is set even on failure. */
LS_MUST_USE ls_status agent_hosts_open(const hosts_options *opt, agent_hosts **out);
void agent_hosts_close(agent_hosts *h);

/* Prints the rest of what the hosts send, when the job is over. */
LS_MUST_USE ls_status agent_hosts_finish(agent_hosts *h);

/* Ends a node that is silent. */
void agent_hosts_end_node(agent_hosts *h, int node, const char *why);

/* --- these take NULL --- */

/* How many ranks the job has, and how many of them print; false: no hosts. */
bool agent_hosts_count_ranks(const agent_hosts *h, int *n_ranks, int *n_shown);
void agent_hosts_show_deferred(const agent_hosts *h);
void agent_hosts_resize(const agent_hosts *h); /* the user's terminal has another size */
void agent_hosts_pause(const agent_hosts *h, bool pauses); /* stops reading from the hosts */
void agent_hosts_reap(const agent_hosts *h);               /* at SIGCHLD */
/* Appends the last lines of the ranks of a node. */
void agent_hosts_append_recent(const agent_hosts *h, int node, size_t most, text_buf *out);

#endif
