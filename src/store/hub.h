/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub.h - one job's meeting point: the key-value store, and the control channel over which ranks
 * learn who failed.
 *
 * The hub runs on a poller: inside the agent's loop (lockstep run, ls_spawn), or in a thread of
 * rank 0 where nobody else started the job (hub_thread_start). A rank keeps one connection to it
 * for its whole life (control.h). That connection ending without a goodbye is how the hub learns of
 * a death when no parent tells it.
 *
 * Every connection is authenticated before anything it says is read (net/handshake.h); unix sockets
 * may use the peer's uid instead. All lengths, the number of connections and the sum of stored
 * bytes are bounded.
 */
#ifndef LS_STORE_HUB_H
#define LS_STORE_HUB_H

#include "net/address.h"
#include "net/handshake.h"
#include "net/poller.h"
#include "store/cause.h"
#include "store/stamp.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct hub hub;

/* What the hub tells its owner; every member is optional. Called on the poller's thread; must not
 * destroy the hub. */
typedef struct hub_events {
    void *self;
    void (*joined)(void *self, int rank, pid_t pid);
    void (*left)(void *self, int rank); /* said goodbye */

    /* A connection ended without a goodbye. The others are told only after death_grace_ms, unless
     * hub_abort() comes first with a better cause. */
    void (*lost)(void *self, int rank);

    /* Something other than hub_abort() broke a group or the job. */
    void (*failed)(void *self, const job_cause *cause);

    /* A rank has waited for long: the whole report ("all_reduce #17 ... arrived 0 2, not arrived 1
     * (stopped)"). Without this member the hub logs it. */
    void (*wait_report)(void *self, const char *text);

    /* What a rank that has not arrived is doing, from whoever can look ("running", "stopped"); ""
     * when unknown. */
    void (*describe)(void *self, int rank, char *buf, size_t n);
} hub_events;

typedef struct hub_options {
    char job[JOB_ID_BYTES];
    int world_size; /* 0: only a store, for anybody who knows the key */
    uint32_t generation;
    const net_key *key; /* NULL: unix sockets of the same uid only; borrowed until hub_destroy() */
    bool insecure;      /* without a key, TCP as well: --insecure */
    net_security security; /* of TCP connections; clients must ask for the same */

    /* How long to wait for a better cause before a lost connection is reported; 0: 200, negative:
     * not at all. */
    int64_t death_grace_ms;
    char join_advice[512]; /* added to reports of ranks that wait for others to join; "": nothing */
    hub_events events;
} hub_options;

LS_MUST_USE ls_status hub_create(poller *p, const hub_options *opt, hub **out);
void hub_destroy(hub *h); /* closes all connections; NULL is allowed */

/* Listens at an address (unix or tcp); *bound gets the real port. May be called several times. */
LS_MUST_USE ls_status hub_listen(hub *h, const net_address *at, net_address *bound);

/* Serves a listening socket that somebody else bound. Takes the descriptor. */
LS_MUST_USE ls_status hub_listen_take(hub *h, int fd);

/* Tells every rank of cause->group (GROUP_ALL: of the job) why it must stop. The first cause of a
 * group stands. */
void hub_abort(hub *h, const job_cause *cause);

/* The starter saw this rank end well: the same as its goodbye, for ranks that ended without one. */
void hub_rank_exited(hub *h, int rank);

/* How many connections are open, and how many of them have not proved the key yet. */
void hub_count(const hub *h, int *n_open, int *n_unauthenticated);

/* How many frames all connections have sent so far. */
uint64_t hub_frames(const hub *h);

/* Rank 0's own hub: a thread "ls-hub" with a poller of its own, on which all events are called.
 * stop waits until all connections are closed or grace_ms has passed; then it closes them. */
typedef struct hub_thread hub_thread;
LS_MUST_USE ls_status hub_thread_start(const hub_options *opt, const net_address *at,
                                       hub_thread **out);
const net_address *hub_thread_address(const hub_thread *t);
void hub_thread_stop(hub_thread *t, int64_t grace_ms); /* NULL is allowed */

#endif
