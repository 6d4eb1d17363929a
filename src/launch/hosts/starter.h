/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starter.h - starts an agent on each of several hosts, by ssh or srun, sends them their launch
 * requests and passes on their messages.
 *
 *   host: idle --window--> starting --greeting--> greeted --starter_launch()--> launched --> ended
 *           ^                 |
 *           +--- sshd was ----+  (with a growing pause and jitter)
 *                 busy
 *
 * Each host is one process (ssh, srun) whose stdin and stdout are one socket. At most START_WINDOW
 * of them start at a time. An early end is reported once, with the last line of the process and a
 * fix.
 *
 * launch/hosts/: lists of hosts, and agents started on them. Called by agents, the tool
 * (hostlist.h) and diagnose/hosts.
 */
#ifndef LS_LAUNCH_HOSTS_STARTER_H
#define LS_LAUNCH_HOSTS_STARTER_H

#include "launch/hosts/hostlist.h"
#include "launch/hosts/start_command.h"
#include "net/messages/frame.h"
#include "net/poller.h"

#include <signal.h>

#define START_WINDOW 32

typedef struct starter starter;

typedef struct starter_events {
    void *self;
    /* An agent runs there; it may use `cores`. */
    void (*greeted)(void *self, int host, int cores);
    /* A message of an agent with a launch request. A failing status ends that host with its
     * text. */
    ls_status (*message)(void *self, int host, const frame *f);
    /* A line that the starting program or the host's login shell has printed. */
    void (*line)(void *self, int host, const char *text);
    /* The host has ended, before its greeting or its launch request, or after. Once per start. */
    void (*ended)(void *self, int host, bool was_launched, const char *why);
} starter_events;

/* Hosts and options are borrowed until starter_destroy(); hosts with skip[i] are not started.
 * `mask` is the children's signal mask. */
LS_MUST_USE ls_status starter_create(poller *p, const start_options *opt, const hostlist *hosts,
                                     const bool *skip, const sigset_t *mask,
                                     const starter_events *events, starter **out);

/* Ends all hosts: the agents see the end of their stdin; after a while the processes are killed.
 * NULL is allowed. */
void starter_destroy(starter *s);

/* Sends a greeted host its request: one frame, for a job REMOTE_LAUNCH_REQUEST. */
LS_MUST_USE ls_status starter_launch(starter *s, int host_index, uint32_t type, const void *body,
                                     size_t bytes);

/* The fix for the end of a host that had no launch request, which ended() reports after "; fix: ";
 * "": none. */
const char *starter_fix(const starter *s, int host_index);

/* Another frame, for a launched host; LS_EPEER: it is disconnected. Unsent bytes wait in memory. */
LS_MUST_USE ls_status starter_send(starter *s, int host_index, uint32_t type, const void *body,
                                   size_t bytes);

/* Starts a host again that has ended. */
void starter_restart(starter *s, int host_index);

/* Ends its agent's stdin, or, before the greeting, its process. */
void starter_dismiss(starter *s, int host_index);

/* Ends its process; ended() reports this reason. */
void starter_end(starter *s, int host_index, const char *why);

void starter_pause(starter *s, bool pauses);   /* nothing is read from the hosts meanwhile */
void starter_reap(starter *s);                 /* at SIGCHLD */
int starter_count(const starter *s);           /* hosts that are starting, or there */
bool starter_is_settled(const starter *s);     /* each has greeted or ended */
int64_t starter_received_ms(const starter *s); /* when bytes came last from any of them */

#endif
