/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts_internal.h - the state of agent_hosts.h and its three parts: how hosts start and end
 * (agent_hosts.c), their ranks and launch requests (agent_hosts_place.c), and what those ranks
 * print and read (agent_hosts_messages.c).
 */
#ifndef LS_LAUNCH_AGENT_STREAMS_AGENT_HOSTS_INTERNAL_H
#define LS_LAUNCH_AGENT_STREAMS_AGENT_HOSTS_INTERNAL_H

#include "launch/agent/streams/agent_hosts.h"
#include "launch/head/host_report.h"
#include "launch/hosts/starter.h"

typedef enum host_phase { HOST_STARTING, HOST_READY, HOST_LAUNCHED, HOST_FAILED } host_phase;

typedef struct remote_host {
    struct agent_hosts *owner;
    host_phase phase;
    int node; /* -1: it has no ranks */
    int rank_base;
    output_recent recent;          /* the last lines of its ranks */
    char failure[LS_ERROR_BYTES];  /* the failure that its agent has reported; "": none */
    char last_end[LS_ERROR_BYTES]; /* how its process ended */
    bool is_end_reported;          /* the head has reported why it is being ended */
    poll_timer again;              /* until it is restarted, or given up */
    int n_restarts;
} remote_host;

struct agent_hosts {
    hosts_options opt;
    const agent_context *ctx;
    const agent_hosts_spec *spec;
    starter *starter;
    remote_host *list; /* as in spec->list */
    bool *skip;        /* this machine, and hosts without ranks */
    bool is_placed;
    int world_size;
    output_stream *streams; /* two a rank of the job; those of our own ranks are not used */
    host_report failures;   /* of hosts that could not be started */
    host_report notes;      /* other lines of hosts, held back for a moment to join equal ones */
    poll_timer notes_timer;
    int n_failed;
    poll_timer wait_line; /* the next line about missing hosts */
    poll_timer give_up;   /* when a host could not be started: until the job fails */
};

static inline const char *hosts_name(const agent_hosts *h, int i)
{
    return h->spec->list->hosts[i].name;
}

/* --- agent_hosts.c --- */
/*
 * A line of this host for the user; equal lines of other hosts that follow soon are joined to it.
 */
void hosts_note(agent_hosts *h, int i, const char *text);
void hosts_flush_notes(agent_hosts *h); /* prints the notes and failures held back */

/* --- agent_hosts_place.c --- */
bool hosts_slots_are_known(const agent_hosts *h);
/* Gives every host its ranks and opens the head. */
LS_MUST_USE ls_status hosts_place(agent_hosts *h);
/* Sends a ready host its launch request, or dismisses it if it has no ranks. */
void hosts_launch(agent_hosts *h, int i);

/* --- agent_hosts_messages.c --- */
LS_MUST_USE ls_status hosts_open_streams(agent_hosts *h);
void hosts_close_streams(agent_hosts *h);
void hosts_end_streams(agent_hosts *h, int i); /* of its ranks */
LS_MUST_USE ls_status hosts_take_message(void *hosts, int i, const frame *f);
void hosts_take_line(void *arg /* hosts */, int i, const char *text);

#endif
