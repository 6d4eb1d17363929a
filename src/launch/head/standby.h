/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standby.h - drives the machine of succession.h on an agent: the connections between the agents
 * that may host the head, and the bytes of the head's state.
 *
 * Each agent listens at an address that only agents with the key can use (listener.h). The head
 * connects to all others; after its loss a candidate does. One machine for each generation of a
 * job. All calls are on the poller's thread.
 */
#ifndef LS_LAUNCH_HEAD_STANDBY_H
#define LS_LAUNCH_HEAD_STANDBY_H

#include "launch/head/elastic/succession.h"
#include "net/address.h"
#include "net/auth/seal.h"
#include "net/key.h"
#include "net/poller.h"
#include "net/socket.h"
#include "net/wire.h"

#define STANDBY_STATE_MAX ((size_t)192 * 1024)

typedef struct standby standby;

/* Called on the poller's thread, never from within a call of this module but standby_begin(). */
typedef struct standby_calls {
    void *self;
    void (*committed)(void *self, uint64_t index); /* the head's states up to this one */
    void (*confirmed)(void *self, uint64_t round);
    /* This agent is to host the head, with this state. Valid in the call. */
    void (*lead)(void *self, const void *state, size_t bytes);
    /* Another agent hosts the head; agents connect to it there. */
    void (*follow)(void *self, const net_address *head);
    /* The head that this agent has followed so far has sent a message. */
    void (*still_led)(void *self);
    /* Without a majority of the agents: this one is to end its ranks. */
    void (*leave)(void *self);
} standby_calls;

typedef struct standby_options {
    const net_key *key;    /* of the nodes' connections; borrowed until standby_destroy() */
    net_security security; /* of these connections */
    net_ports ports;
    standby_calls calls;
} standby_options;

LS_MUST_USE ls_status standby_create(poller *p, const standby_options *opt, standby **out);
void standby_destroy(standby *s); /* NULL is allowed */

/* Listens at this host's address `at`, at a free port. */
LS_MUST_USE ls_status standby_listen(standby *s, const net_address *at, net_address *bound);

/* The ranks of this generation: this agent is node `self` of n. The first head passes where the
 * other agents listen, n addresses, its own unused; others NULL. */
typedef struct standby_group {
    uint32_t generation;
    int self;
    int n_nodes;
    int head;
    int64_t silence_ms; /* after which a silent head, or node for the head, is lost */
    const net_address *addresses;
} standby_group;

LS_MUST_USE ls_status standby_begin(standby *s, const standby_group *g);
void standby_end(standby *s); /* of the generation */

/* The ranks of this agent have ended, because it was lost: it votes, and becomes no head. */
void standby_retire(standby *s);
/* The same agent has ranks again, and the state of the head says so. */
void standby_return(standby *s);
/* Whether this agent is one of those that elect a head in this generation. */
bool standby_is_member(const standby *s, uint32_t generation);

/* Whether a lost head will be followed by another one, as far as is known here. */
bool standby_is_ready(const standby *s);

/* The head: a new state. Returns its index, for `committed`. LS_EINVAL: it is too long. */
LS_MUST_USE ls_status standby_propose(standby *s, const wire_writer *state, uint64_t *index);
/* The head: whether it is still the head. Returns the round, for `confirmed`. */
uint64_t standby_confirm(standby *s);
/* After `lead`: where agents connect to this head. */
void standby_announce(standby *s, const net_address *at);

/* --- messages; for tests --- */

typedef struct standby_state {
    net_address *addresses;
    int n_addresses;
    const uint8_t *bytes;
    size_t n;
} standby_state;

typedef struct standby_message {
    uint32_t generation;
    succession_message message;
    net_address leads_at; /* none: not announced */
    standby_state state;  /* with has_state */
} standby_message;

void standby_write_message(wire_writer *w, const standby_message *m);
/* LS_EPROTO: malformed. Free it with standby_message_free(), also after a failure; its state is in
 * the bytes that were read. */
LS_MUST_USE ls_status standby_read_message(const void *body, size_t bytes, standby_message *out);
void standby_message_free(standby_message *m);

#endif
