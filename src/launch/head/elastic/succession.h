/* SPDX-License-Identifier: Apache-2.0 */
/*
 * succession.h - which node of a job hosts its head: one machine on each node, which agree with
 * each other by messages. The head's state is known to a majority of the nodes before its effects
 * are visible; when the head is lost, a majority elects a node that knows it.
 *
 *     FOLLOWER --the head is lost--> PRE_CANDIDATE --a majority would vote--> CANDIDATE
 *     CANDIDATE --a majority votes--> HEAD --no majority, or a later head--> OUT
 *
 * It is Raft (Ongaro, Ousterhout: In Search of an Understandable Consensus Algorithm, 2014;
 * election 5.2, its restriction 5.4, commitment 5.3) with a log of one entry: each state replaces
 * the one before. From Ongaro's dissertation: CONFIRM is the read index (6.4); a node that receives
 * messages of a head votes for no other (4.2.3), so the head has a lease (6.4.1): for silence_ms
 * from a message that a majority has answered; a node begins a new term only after a majority has
 * answered that it would vote (9.6, pre-vote), so a node that was cut off disturbs no head when it
 * returns. A refusal ends no head: where a node is in a later term, because its election has
 * failed, the head asks for votes in a term after that one and continues to lead.
 *
 * The nodes are those with which the ranks were started; their number does not change. A node
 * whose ranks have ended may vote on (RETIRE), and stand again with new ranks (RETURN). A node
 * whose process has ended does not come back.
 *
 * A pure step function: an event goes in, actions come out. It reads no clock, opens nothing and
 * allocates only in succession_create(). The driver (standby.c) holds the bytes of the state: the
 * machine handles its term and index only.
 *
 * Promises, for any loss, delay, repetition and order of messages
 *   - In each term at most one node gets DO_LEAD.
 *   - A state for which a head got DO_COMMIT is contained in the state with which each later head
 *     gets DO_LEAD.
 *   - When a head gets DO_CONFIRM, no other node had got DO_LEAD in a later term when it asked.
 *   - When a head gets one of these three it has its lease: no other node has got DO_LEAD in a
 *     later term, also if this process was stopped before. Only this promise needs clocks that run
 *     equally fast, also while a process is stopped, and ends of connections that both ends notice.
 *   - While a majority of the nodes is connected, one of them leads, soon.
 */
#ifndef LS_LAUNCH_HEAD_ELASTIC_SUCCESSION_H
#define LS_LAUNCH_HEAD_ELASTIC_SUCCESSION_H

#include "base/status.h"

#include <stdbool.h>

#define SUCCESSION_NODES_MAX   128
#define SUCCESSION_ACTIONS_MAX (SUCCESSION_NODES_MAX + 8) /* of a step */

typedef struct succession succession;

typedef struct succession_options {
    int self;
    int n_nodes;
    int head;           /* in term 1, when all nodes are alive */
    int64_t beat_ms;    /* between messages of the head */
    int64_t silence_ms; /* without a message: the head is lost, or a node for the head */
    int64_t give_up_ms; /* a node without a head for so long leaves, and retires */
} succession_options;

typedef enum succession_kind {
    SUCCESSION_STATE = 1, /* head: this is the newest state */
    SUCCESSION_STORED,    /* its answer */
    SUCCESSION_ASK,       /* candidate: for a vote */
    SUCCESSION_VOTE,
    SUCCESSION_REFUSE,   /* to STATE of an earlier term, to ASK, or to PRE_ASK */
    SUCCESSION_PRE_ASK,  /* whether the other node would vote in the next term */
    SUCCESSION_PRE_VOTE, /* it would */
    SUCCESSION_KINDS
} succession_kind;

/* A state is identified by the term and the index of the head that has made it. */
typedef struct succession_message {
    succession_kind kind;
    uint64_t term;
    uint64_t state_term; /* of the state; in ASK, PRE_ASK the newest one of the candidate */
    uint64_t state_index;
    uint64_t round;  /* STATE: of the last CONFIRM; STORED repeats it */
    int64_t sent_ms; /* STATE: the head's time; STORED repeats it */
    bool has_state;  /* STATE: the driver adds the state's bytes */
} succession_message;

typedef enum succession_event_kind {
    SUCCESSION_TICK,
    SUCCESSION_MESSAGE,   /* node, message */
    SUCCESSION_CONNECTED, /* node: messages can be sent to it */
    SUCCESSION_LOST,      /* node: its connection has ended */
    SUCCESSION_PROPOSE,   /* the head: the driver has a new state */
    SUCCESSION_CONFIRM,   /* the head: whether it is still the head */
    SUCCESSION_RETIRE,    /* the ranks here have ended: this node votes, and asks for no votes */
    SUCCESSION_RETURN     /* it has ranks again */
} succession_event_kind;

typedef struct succession_event {
    succession_event_kind kind;
    int node;
    const succession_message *message;
} succession_event;

typedef enum succession_action_kind {
    SUCCESSION_DO_SEND,    /* node, message */
    SUCCESSION_DO_STORE,   /* the state of the message at hand becomes the driver's */
    SUCCESSION_DO_DIAL,    /* this node asks for votes: it is to connect to the other nodes */
    SUCCESSION_DO_LEAD,    /* this node is the head, with the state that the driver has */
    SUCCESSION_DO_COMMIT,  /* number: states up to this index are known to each later head */
    SUCCESSION_DO_CONFIRM, /* number: rounds up to this one are confirmed */
    SUCCESSION_DO_FOLLOW,  /* node: is the head */
    SUCCESSION_DO_LEAVE    /* the head has lost the majority, or no head was elected in time */
} succession_action_kind;

typedef struct succession_action {
    succession_action_kind kind;
    int node;
    uint64_t number;
    succession_message message;
} succession_action;

/* Valid until the next step. */
typedef struct succession_result {
    const succession_action *actions;
    int n_actions;
    int64_t wake_at_ms; /* when a tick is needed; INT64_MAX: never */
} succession_result;

/* LS_EINVAL: fewer than 3 nodes, or numbers out of range. */
LS_MUST_USE ls_status succession_create(const succession_options *opt, int64_t now_ms,
                                        succession **out);
void succession_destroy(succession *s); /* NULL is allowed */

/* Takes one event. now_ms never goes back. Events that do not fit the node's role do nothing. */
succession_result succession_step(succession *s, const succession_event *e, int64_t now_ms);

bool succession_is_head(const succession *s); /* it has got DO_LEAD, or was the first, and acts */
int succession_head(const succession *s);     /* -1: none is known */
uint64_t succession_term(const succession *s);
uint64_t succession_index(const succession *s); /* of the newest state here */
uint64_t succession_round(const succession *s); /* of the last CONFIRM */

#endif
