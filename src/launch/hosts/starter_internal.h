/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starter_internal.h - the state of a starter, shared by its parts: processes from start to end
 * (starter.c) and their streams (starter_io.c).
 */
#ifndef LS_LAUNCH_HOSTS_STARTER_INTERNAL_H
#define LS_LAUNCH_HOSTS_STARTER_INTERNAL_H

#include "launch/hosts/starter.h"

#include "base/rng.h"
#include "base/text.h"

#include <sys/types.h>

#define STARTER_LINE_MOST 1024 /* of a line that is shown */

typedef enum host_state {
    HOST_IDLE,
    HOST_STARTING,
    HOST_GREETED,
    HOST_LAUNCHED,
    HOST_ENDED
} host_state;

typedef struct starter_host {
    starter *owner;
    int index;
    host_state state;
    int n_tries;
    pid_t pid; /* 0: none, or reaped */
    int wait_status;
    int fd; /* its stdin and stdout; -1: ended */
    int err_fd;
    poll_watch *watch;
    poll_watch *err_watch;
    poll_timer timer; /* until the next try, for the greeting, or for the rest of its end */
    text_buf line;    /* of stderr, being gathered */
    char last_line[STARTER_LINE_MOST];
    char fix[512]; /* what to do about its end */
    size_t n_shell_bytes;
    frame_reader in;
    byte_queue out;
    size_t agent_binary_left; /* bytes of the agent binary to be sent */
    bool ending;
    char
        why[STARTER_LINE_MOST + 256]; /* the starter ends it for this reason; "": it ended itself */
} starter_host;

struct starter {
    poller *loop;
    start_options opt;
    const hostlist *hosts;
    sigset_t mask;
    starter_events events;
    ls_rng jitter;
    starter_host *list;
    int n;
    poll_timer start_timer; /* to start more */
    bool paused;
    int64_t received_ms;
    char *agent_binary; /* the bytes of the agent binary, read at the first need */
    size_t agent_binary_bytes;
};

/* --- starter.c --- */
const char *starter_name_of(const starter_host *h);

/* Starts waiting hosts, at most a window; deferred, as the caller may iterate over the hosts. */
void starter_start_soon(starter *s);

/* The process, its stdout or its stderr has ended; the others follow within TAIL_MS. */
void starter_begin_end(starter_host *h);
void starter_fail_host(starter_host *h, const char *why); /* ends it */
void starter_close_channel(starter_host *h);              /* its stdin and stdout */
void starter_close_errors(starter_host *h);               /* its stderr */

/* --- starter_io.c --- */
void starter_on_host(void *arg, unsigned events); /* arg: the host */
void starter_on_errors(void *arg, unsigned events);
void starter_read_errors(starter_host *h);    /* all that its stderr has */
void starter_update_channel(starter_host *h); /* which events are polled */
void starter_flush(starter_host *h);

#endif
