/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts_internal.h - the parts of what an agent knows of hosts that it starts: how they come and go (agent_hosts.c), their ranks and
 * launch request (agent_hosts_place.c), and what those ranks print and read (agent_hosts_talk.c).
 */
#ifndef LS_LAUNCH_AGENT_HOSTS_INTERNAL_H
#define LS_LAUNCH_AGENT_HOSTS_INTERNAL_H

#include "launch/agent/agent.h"
#include "launch/head/host_report.h"
#include "launch/hosts/starter.h"

typedef enum host_phase { NOT_THERE, IS_THERE, HAS_REQUEST, HAS_FAILED } host_phase;

typedef struct remote_host {
    host_phase phase;
    int cores;
    int node; /* -1: it has no ranks */
    int rank_base;
    char failure[LS_ERROR_BYTES];  /* its agent's own words */
    output_recent kept;            /* what its ranks printed last */
    char last_end[LS_ERROR_BYTES]; /* how its process ended */
    bool is_told;                  /* why it is being ended */
    poll_timer again;              /* until it is started once more, or given up */
    int n_again;
    struct agent_hosts *owner;
} remote_host;

struct agent_hosts {
    agent *agent;
    const agent_hosts_spec *spec;
    starter *starter;
    remote_host *list; /* as in spec->list */
    bool *skip;
    bool is_placed;
    host_report failures; /* of hosts that could not be started */
    host_report notes;    /* what they say otherwise, for a moment */
    poll_timer notes_timer;
    int n_failed;
    int world_size;
    output_stream *streams; /* two a rank of the job; those of our own ranks are not used */
    poll_timer patience;
    poll_timer patience_for_others;
};

static inline const char *hosts_name(const agent_hosts *h, int i)
{
    return h->spec->list->hosts[i].name;
}

/* --- agent_hosts.c --- */
/* A line of this host for a person; the same of others, told soon after, joins it. */
void hosts_note(agent_hosts *h, int i, const char *text);
void hosts_tell(agent_hosts *h); /* what has not been told yet, of notes and failures */

/* --- agent_hosts_place.c --- */
bool hosts_slots_are_known(const agent_hosts *h);
/* Once it is known how many ranks each host takes: the head may say who the nodes are. */
LS_MUST_USE ls_status hosts_place(agent_hosts *h);
/* Gives a host that is there its launch request, or sends it home if it has no ranks. */
void hosts_order(agent_hosts *h, int i);

/* --- agent_hosts_talk.c --- */
LS_MUST_USE ls_status hosts_open_streams(agent_hosts *h);
void hosts_close_streams(agent_hosts *h);
void hosts_end_streams(agent_hosts *h, int i); /* of its ranks */
LS_MUST_USE ls_status hosts_take_message(void *arg, int i, const frame *f);
void hosts_take_line(void *arg, int i, const char *text);

#endif
