/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub.h - what all ranks of a job connect to: the key-value store, and the control channel that
 * reports failures to the ranks.
 *
 * The hub runs on a poller: in the agent's loop (lockstep run, ls_spawn), or in a thread of rank 0
 * when no agent started the job (hub_thread_start). Each rank keeps one connection to the hub for
 * its whole life (control.h). A connection that ends without a leave shows that the rank is lost,
 * unless the rank's parent process reports a better cause.
 *
 * Every connection is authenticated before any request is read (net/auth/handshake.h); unix sockets
 * may use the peer's uid instead. All lengths, the number of connections and the sum of stored
 * bytes are bounded.
 *
 * hub/: the server of a job (hub_*.c) and its clients (control.h, hublink.h). comm uses control.h,
 * stamp.h and cause.h, launch hub.h.
 */
#ifndef LS_HUB_HUB_H
#define LS_HUB_HUB_H

#include "hub/cause.h"
#include "net/address.h"
#include "net/auth/handshake.h"
#include "net/poller.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct hub hub;

/* Events for the owner, all optional. Called on the poller's thread; must not destroy the hub. */
typedef struct hub_events {
    void *self;
    void (*joined)(void *self, int rank, pid_t pid);
    void (*left)(void *self, int rank); /* in good order */

    /* A connection ended without a leave. The job ends with this cause after death_grace_ms, unless
     * the owner calls hub_abort() with a better one before. */
    void (*lost)(void *self, int rank);

    /* Something other than hub_abort() broke a group or the job. */
    void (*failed)(void *self, const job_cause *cause);

    /* "all_reduce #17 ... arrived 0 2, not arrived 1 (stopped)"; if NULL, the hub logs it. */
    void (*wait_report)(void *self, const char *text);

    /* A client has set a key of the store. `value` is terminated. */
    void (*stored)(void *self, const char *key, const char *value);

    /* The state of a rank's process ("running", "stopped"); "" when unknown. */
    void (*describe)(void *self, int rank, char *buf, size_t n);
} hub_events;

typedef struct hub_options {
    char job[JOB_ID_BYTES];
    int world_size; /* 0: only a store, for all clients with the key */
    uint32_t generation;
    const net_key *key; /* NULL: unix sockets of the same uid only; borrowed until hub_destroy() */
    bool insecure;      /* TCP without a key: --insecure */
    net_security security; /* of TCP connections; clients must ask for the same */

    /* How long a lost connection waits for a better cause; 0: 200, negative: not at all. */
    int64_t death_grace_ms;
    char join_advice[512]; /* added to wait reports of joining ranks; "": nothing */
    hub_events events;
} hub_options;

LS_MUST_USE ls_status hub_create(poller *p, const hub_options *opt, hub **out);
void hub_destroy(hub *h); /* closes all connections; NULL is allowed */

/* Listens at an address (unix or tcp); *bound gets the real port. May be called several times. */
LS_MUST_USE ls_status hub_listen(hub *h, const net_address *at, net_address *bound);

/* Serves a socket that listens already. Takes the descriptor. */
LS_MUST_USE ls_status hub_listen_take(hub *h, int fd);

/* Sends the cause to all ranks of cause->group (GROUP_ALL: all ranks), once for each group. */
void hub_abort(hub *h, const job_cause *cause);

/* Whether all ranks have been connected at the same time. */
bool hub_has_formed(const hub *h);

/* Sets a key of the store to a text, as a client does. */
LS_MUST_USE ls_status hub_set(hub *h, const char *key, const char *text);

/* The launcher saw this rank exit with code 0: the same as a leave, for ranks that sent none. */
void hub_rank_exited(hub *h, int rank);

/* The number of open connections, and of those among them that are not authenticated yet. */
void hub_count(const hub *h, int *n_open, int *n_unauthenticated);

/* The number of frames received so far. */
uint64_t hub_frames(const hub *h);

/* A hub in a thread "ls-hub" with its own poller, on which all events are called. stop waits until
 * all authenticated connections are closed or grace_ms has passed, then closes the rest. */
typedef struct hub_thread hub_thread;
LS_MUST_USE ls_status hub_thread_start(const hub_options *opt, const net_address *at,
                                       hub_thread **out);
const net_address *hub_thread_address(const hub_thread *t);
void hub_thread_stop(hub_thread *t, int64_t grace_ms); /* NULL is allowed */

#endif
