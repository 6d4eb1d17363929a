/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starter.h - starts an agent on each of several hosts, by ssh or srun, gives them their orders and hears what they send.
 *
 *     host: idle --window--> starting --greeting--> greeted --starter_launch()--> ordered --end--> ended
 *             ^                 |
 *             +--- sshd was ----+  (with a pause that grows, and jitter)
 *                 too busy
 *
 * Each host is one process (ssh, srun) whose stdin and stdout are one socket of ours. At most START_WINDOW of them are starting at a
 * time. Whatever ends early is told once, with the last line that the process printed and what to do about it.
 */
#ifndef LS_LAUNCH_STARTER_H
#define LS_LAUNCH_STARTER_H

#include "launch/hosts/hostlist.h"
#include "launch/hosts/start_command.h"
#include "net/frame.h"
#include "net/poller.h"

#include <signal.h>

#define START_WINDOW 32

typedef struct starter starter;

typedef struct starter_events {
    void *self;
    /* An agent is there; it has `cores` that it may use. */
    void (*greeted)(void *self, int host, int cores);
    /* A message of an agent that has its orders. A failing status ends that host with its text. */
    ls_status (*message)(void *self, int host, const frame *f);
    /* A line that the starting program or the host's login shell has printed. */
    void (*line)(void *self, int host, const char *text);
    /* It has ended: before its greeting, before its orders, or after them. Once, unless it is started again. */
    void (*ended)(void *self, int host, bool was_launched, const char *why);
} starter_events;

/* Hosts and options are borrowed until starter_destroy(); hosts with skip[i] are left alone. `mask` is the children's signal mask. */
LS_MUST_USE ls_status starter_create(poller *p, const start_options *opt, const hostlist *hosts,
                                     const bool *skip, const sigset_t *mask,
                                     const starter_events *events, starter **out);

/* Ends what is still there: the agents see the end of their stdin, and after a while the processes are killed. NULL is allowed. */
void starter_destroy(starter *s);

/* Gives a greeted host its orders: the body of one frame, a job's being REMOTE_LAUNCH_REQUEST. */
LS_MUST_USE ls_status starter_launch(starter *s, int host_index, uint32_t type, const void *body,
                                     size_t bytes);

/* What to do about the end of a host that has not got its orders, which ended() tells behind the words for it, in brackets; "": nothing. */
const char *starter_fix(const starter *s, int host_index);

/* One more message, to a host that has its orders; LS_EPEER: it has gone. What it does not take waits in memory. */
LS_MUST_USE ls_status starter_send(starter *s, int host_index, uint32_t type, const void *body,
                                   size_t bytes);

/* Starts a host that has ended once more. */
void starter_restart(starter *s, int host_index);

/* The end of its agent's stdin; of a host that has not greeted yet, the end of its process. */
void starter_dismiss(starter *s, int host_index);

/* Ends its process, for this reason, which is told when it has ended. */
void starter_end(starter *s, int host_index, const char *why);

void starter_pause(starter *s, bool pauses);   /* nothing is read from the hosts meanwhile */
void starter_reap(starter *s);                 /* at SIGCHLD */
int starter_count(const starter *s);           /* hosts that are starting, or there */
bool starter_is_settled(const starter *s);     /* each has greeted or ended */
int64_t starter_received_ms(const starter *s); /* when bytes came last from any of them */

#endif
