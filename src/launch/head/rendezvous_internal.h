/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous_internal.h - the inside of the rendezvous machine.
 */
#ifndef LS_LAUNCH_RENDEZVOUS_INTERNAL_H
#define LS_LAUNCH_RENDEZVOUS_INTERNAL_H

#include "launch/head/rendezvous.h"

#include "base/text.h"

typedef enum node_state {
    NODE_NONE = 0, /* the slot is free */
    NODE_WAITING,  /* connected, in no view: the next one's candidate, or a spare */
    NODE_WELCOMED, /* in the view */
    NODE_READY,    /* has agreed to it; its ranks run in RDZV_RUN and RDZV_DRAIN */
    NODE_ENDED     /* in the view, its ranks have ended */
} node_state;

typedef struct rdzv_node {
    node_state state;
    uint64_t conn;
    uint64_t uid;
    uint64_t order; /* of arrival */
    int id;         /* that it claims, -1 */
    int index;      /* its node number in the last view, or the one that it takes over; -1 */
    int n_local;
    bool is_head;
    bool done;      /* NODE_ENDED: by themselves, all with 0 */
    bool lost;      /* NODE_ENDED and done, and its connection is gone: kept until the view ends */
    bool told_wait; /* since it was last welcomed */
    char host[RDZV_HOST_BYTES];
} rdzv_node;

/* Why the ranks are being ended. A later one takes over from an earlier one. */
typedef enum drain_reason {
    DRAIN_JOIN, /* orderly, so that a newcomer can be taken in */
    DRAIN_STOP, /* orderly, because somebody asked */
    DRAIN_LOSS, /* a node is gone */
    DRAIN_FAILURE
} drain_reason;

/* How surely a failure is nobody else's consequence. */
typedef enum blame_weight { BLAME_NONE = 0, BLAME_EXIT, BLAME_CRASH } blame_weight;

/* The first failure of a view. */
typedef struct rdzv_blame {
    blame_weight weight;
    drain_reason reason;
    int64_t at_ms;
    int exit_code;
    int n_after;
    int node; /* DRAIN_LOSS: which one */
    job_cause cause;
} rdzv_blame;

typedef struct rdzv_notes {
    char text[6][RDZV_TEXT_BYTES];
    int n;
} rdzv_notes;

struct rdzv {
    rdzv_options opt; /* pointers into the members below, times filled in */
    int *per_node;
    char version[64];
    char host[RDZV_HOST_BYTES];

    rdzv_phase phase;
    uint32_t generation;
    int n_restarts;
    int64_t now_ms;
    rdzv_node *nodes; /* capacity slots */
    int capacity;
    uint64_t n_arrivals;
    rdzv_place *places; /* of the last view, max_nodes */
    int n_places;
    bool *here;        /* room for one mark a node */
    rdzv_node **order; /* room for two sorted lists of nodes while a view is made */

    int64_t join_until_ms;  /* RDZV_COLLECT */
    int64_t last_call_ms;   /* when it ends; RDZV_NEVER while there are fewer than min */
    int64_t ready_until_ms; /* RDZV_AGREE */
    int64_t
        dissolve_ms; /* when a view that has lost a node before its start is given up; RDZV_NEVER: it has not */
    drain_reason reason;
    bool aborted; /* this drain is no orderly one, or no longer */
    bool killed;
    int64_t drain_until_ms; /* then kill, or when that was done: drop */
    int stop_signal;        /* 0: nobody asked */
    char stop_by[128];
    rdzv_blame blame;

    rdzv_action *actions; /* room for n_actions_max */
    int n_actions;
    int n_actions_max;
    rdzv_notes notes; /* texts of this step's actions */
    char roster[RDZV_TEXT_BYTES];
};

/* --- rendezvous_drain.c: actions, and how the ranks of a view are ended --- */

rdzv_action *rdzv_act(rdzv *m, rdzv_action_kind kind, uint64_t conn);
void rdzv_act_text(rdzv *m, rdzv_action_kind kind, uint64_t conn, const char *text);

/* An empty text of RDZV_TEXT_BYTES that lives until the next step. */
char *rdzv_new_text(rdzv *m);

/* To RDZV_END, with a word to everybody. */
void rdzv_end_job(rdzv *m, int exit_code, const char *text);
void rdzv_end_stopped(rdzv *m);

/* A member is lost, or says that it has failed. Both only find the cause: the caller takes a lost member out of the table, then
 * rdzv_drain_for_blame() ends the ranks, also those that were ending in good order. */
void rdzv_blame_loss(rdzv *m, const rdzv_node *node, int64_t heard_ms, const char *why);
void rdzv_blame_failure(rdzv *m, const rdzv_node *node, const rdzv_event *e, const char *text);
void rdzv_drain_for_blame(rdzv *m);

/* The orderly way into RDZV_DRAIN. */
void rdzv_stop_ranks(rdzv *m, drain_reason reason, int number, const char *text);
void rdzv_kill_ranks(rdzv *m);
void rdzv_settle_drain(rdzv *m);

/* --- rendezvous_view.c: who is there, and the views made of them --- */

rdzv_node *rdzv_find(const rdzv *m, uint64_t conn);
int rdzv_count(const rdzv *m, node_state from, node_state to); /* connected nodes in these states */
int rdzv_count_done(const rdzv *m);                            /* members, also lost ones */
bool rdzv_is_member(const rdzv_node *node);
bool rdzv_is_running(const rdzv_node *node); /* a member whose ranks have not ended */
const rdzv_place *rdzv_place_of(const rdzv *m, const rdzv_node *node); /* a member's */

/* Puts an accepted node into a free slot. */
rdzv_node *rdzv_seat(rdzv *m, uint64_t conn, const rdzv_hello *hello);

/* Whether those that wait can make a view now; last_call_ms and join_until_ms have been looked at. */
bool rdzv_is_complete(const rdzv *m);

/* Makes the next generation of those that wait, at most max_nodes. */
void rdzv_make_view(rdzv *m);

/* To RDZV_COLLECT: all that are connected wait for the next view. */
void rdzv_start_collecting(rdzv *m);

/* --- rendezvous_hello.c: who is let in --- */

/* True, or false with the words for the newcomer in why and for the holder of its place in *holder. */
bool rdzv_fits(const rdzv *m, const rdzv_hello *hello, char *why, size_t n,
               const rdzv_node **holder);

/* --- rendezvous_text.c: words --- */

/* Appends to terminated text in buf; what does not fit is cut. */
void rdzv_say(char *buf, size_t n, const char *format, ...) LS_PRINTF(3, 4);

void rdzv_write_roster(const rdzv *m, char *buf, size_t n);

/* Appends who did not come: "node 1 and node 3 did not come", "host b did not come back". */
void rdzv_say_missing(const rdzv *m, char *buf, size_t n);

/* "4 nodes", "1 node". */
const char *rdzv_nodes_text(char *buf, size_t n, int count);

/* "node 1 (b)". */
const char *rdzv_node_text(char *buf, size_t n, const rdzv_place *place);

/* "rank 4", "ranks 4-7". */
const char *rdzv_ranks_text(char *buf, size_t n, const rdzv_place *place);

#endif
