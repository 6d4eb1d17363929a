/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_nodes.h - simulated nodes around the rendezvous machine, their connections and faults,
 * for test_rendezvous_sim.c, which is the head: it carries out the machine's actions and judges
 * them.
 *
 * Time is simulated: messages take random times, in order on one connection and in any order
 * between nodes; connections die with or without a word; nodes crash, come back, come twice, come
 * as spares, do not get ready, cannot be killed, get SIGTERM; ranks fail, and drag others along.
 * After a while no new faults happen.
 */
#ifndef LS_TEST_RENDEZVOUS_NODES_H
#define LS_TEST_RENDEZVOUS_NODES_H

#include "base/unit.h"

#include "base/rng.h"
#include "launch/head/rendezvous/rendezvous.h"

#include <inttypes.h>

enum { NODES_MAX = 1100, CONNS_MAX = 1 << 16, MESSAGES_MAX = 65536 };

typedef enum life {
    LIFE_AWAY,    /* no process, no connection */
    LIFE_COMING,  /* its hello is on the way, or it is collected */
    LIFE_AGREED,  /* ready has been sent */
    LIFE_RUNNING, /* its ranks run */
    LIFE_ENDED,   /* they have ended, of the generation it knows */
    LIFE_STUCK    /* runs, and cannot be ended */
} life;

typedef struct sim_node {
    life life;
    uint64_t conn; /* of this life; 0: none */
    uint64_t uid;
    int id;
    int n_local;
    int host;
    uint32_t generation;
    bool is_cut;        /* nothing gets through in either direction any more */
    int64_t to_head_ms; /* nothing may arrive before what was sent before */
    int64_t to_node_ms;
    bool unkillable;
    bool stays_away; /* once it has gone */
    bool rejected;   /* or at the end: it stays away */
} sim_node;

typedef enum message_kind {
    MSG_EVENT,       /* to the head, from a connection that may be gone by then */
    MSG_ACTION,      /* to a node */
    MSG_CRASH,       /* a node's process ends */
    MSG_CUT,         /* a node's network is cut */
    MSG_COME,        /* a node starts and connects */
    MSG_RECONNECT,   /* a connected node connects again, leaving its old connection open */
    MSG_FAIL,        /* a rank of a node fails by itself */
    MSG_DONE,        /* the ranks of a node end well */
    MSG_DRAG,        /* a rank of a node fails because another node's ranks are gone */
    MSG_LEAVE,       /* a node gets SIGTERM */
    MSG_LEAVE_AGAIN, /* a second one */
    MSG_STOP         /* the end is requested */
} message_kind;

typedef struct message {
    int64_t at_ms;
    uint64_t order;
    message_kind kind;
    int node;
    uint64_t conn;
    uint32_t generation;
    rdzv_event event;
    rdzv_action_kind action;
} message;

typedef struct sim {
    uint64_t seed;
    ls_rng rng;
    rdzv *m;
    rdzv_options opt;
    int64_t now;
    int64_t wake_at;
    int64_t calm_ms; /* no faults after it */
    int64_t last_status_ms;
    int fault_percent;
    int n_nodes;
    uint64_t n_conns;
    uint64_t order;
    message *box[MESSAGES_MAX]; /* a heap by time */
    message store[MESSAGES_MAX];
    message *unused[MESSAGES_MAX];
    int n_box;
    int n_unused;

    /* What the head's actions have announced. */
    uint32_t generation;
    int status_nodes;
    bool started;
    int n_restarts;
    bool ended;
    int exit_code;
    char end_text[RDZV_TEXT_BYTES];
    bool has_cause; /* the oracle's: the first failure that the head received in this roster */
    bool cause_crash;
    int64_t cause_ms;
    char cause_text[64];
    int stop_signal;
    int n_rejected;
} sim;

extern sim_node sim_nodes[NODES_MAX];

#define CHECK(s, expr)                                                                             \
    do {                                                                                           \
        if (!(expr))                                                                               \
            fail_msg("LS_TEST_SEED=%" PRIu64 ": %s, at %" PRId64 " ms", (s)->seed, #expr,          \
                     (s)->now);                                                                    \
    } while (0)

int sim_below(sim *s, int n);
bool sim_chance(sim *s, int percent);
/* Only before the calm, and as often as this schedule has it. */
bool sim_fault(sim *s, int percent);

/* A message at this time; valid until it is taken. */
message *sim_post(sim *s, message_kind kind, int node, int64_t at_ms);
message sim_take(sim *s); /* the first of those that are left */
/* When a message that is sent now arrives: not before what was sent before it. */
int64_t sim_arrival(sim *s, int64_t *last_ms);
/* What a message does to its node, or to the head by sim_step(). */
void sim_deliver(sim *s, const message *m);

/* The head receives an event of this node: test_rendezvous_sim.c. */
void sim_step(sim *s, rdzv_event *e, int node);

#endif
