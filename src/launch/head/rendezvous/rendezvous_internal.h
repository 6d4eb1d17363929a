/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous_internal.h - the state of the rendezvous machine, shared by its source files. */
#ifndef LS_LAUNCH_HEAD_RENDEZVOUS_RENDEZVOUS_INTERNAL_H
#define LS_LAUNCH_HEAD_RENDEZVOUS_RENDEZVOUS_INTERNAL_H

#include "launch/head/rendezvous/rendezvous.h"

#include "base/text.h"

typedef enum node_state {
    NODE_NONE = 0, /* the slot is free */
    NODE_WAITING,  /* connected, in no roster: a candidate for the next one, or a spare */
    NODE_WELCOMED, /* in the roster */
    NODE_READY,    /* has agreed to it; its ranks run in RDZV_RUN and RDZV_DRAIN */
    NODE_ENDED     /* in the roster, its ranks have ended */
} node_state;

typedef struct rdzv_node {
    node_state state;
    uint64_t conn;
    uint64_t uid;
    uint64_t order; /* of arrival */
    int id;         /* requested; -1: none */
    int index;      /* its node number in the last roster, or the one that it takes over; -1 */
    int n_local;
    bool is_head;
    bool done; /* NODE_ENDED: by themselves, all with 0, or (--elastic) some were lost */
    bool lost; /* NODE_ENDED and done, and its connection is gone: kept until the roster ends */
    bool ended_well; /* NODE_ENDED: one of its ranks did with 0, so the work is complete */
    bool is_vacant;  /* lost before its ranks had ended: another node may take its place */
    bool wait_sent;  /* RDZV_DO_WAIT, since its last welcome */
    bool leaves;     /* after SIGTERM, when the drain has ended */
    char host[RDZV_HOST_BYTES];
} rdzv_node;

/* Why the ranks are being ended. A later one takes over from an earlier one. */
typedef enum drain_reason {
    DRAIN_JOIN,  /* orderly: a new node joins */
    DRAIN_LEAVE, /* orderly: a node leaves, the others go on */
    DRAIN_STOP,  /* orderly: a stop signal was sent */
    DRAIN_LOSS,  /* a node is lost */
    DRAIN_FAILURE
} drain_reason;

/* How certain it is that a failure is not the consequence of another one. */
typedef enum failure_weight { FAILURE_NONE = 0, FAILURE_EXIT, FAILURE_CRASH } failure_weight;

/* The first failure of a roster. */
typedef struct rdzv_failure {
    failure_weight weight;
    drain_reason reason;
    int64_t at_ms;
    int exit_code;
    int n_after;
    int node; /* DRAIN_LOSS: its number */
    job_cause cause;
} rdzv_failure;

typedef struct rdzv_notes {
    char text[6][RDZV_TEXT_BYTES];
    int n;
} rdzv_notes;

struct rdzv {
    rdzv_options opt; /* pointers into the members below, times filled in */
    int *per_node;
    char version[64];
    char run_name[RDZV_NAME_BYTES];
    char host[RDZV_HOST_BYTES];

    rdzv_phase phase;
    uint32_t generation;
    int n_restarts;
    int64_t now_ms;
    rdzv_node *nodes; /* capacity slots */
    int capacity;
    uint64_t n_arrivals;
    rdzv_place *places; /* of the last roster, max_nodes */
    int n_places;
    bool *present;     /* a mark for each node id */
    rdzv_node **order; /* space for two sorted lists of nodes while a roster is made */

    int64_t join_until_ms;  /* RDZV_COLLECT */
    int64_t last_call_ms;   /* when it ends; RDZV_NEVER while there are fewer than min */
    int64_t ready_until_ms; /* RDZV_AGREE; RDZV_RUN: of nodes that take the place of lost ones */
    /* When a roster that has lost a node before its start is dissolved; RDZV_NEVER: it has not. */
    int64_t dissolve_ms;
    drain_reason reason;
    bool aborted; /* this drain is not, or no longer, an orderly one */
    bool killed;
    int64_t drain_until_ms; /* then kill, and after a kill: drop */
    int stop_signal;        /* 0: none */
    char stop_by[128];
    rdzv_failure failure;

    rdzv_action *actions; /* n_actions_max */
    int n_actions;
    int n_actions_max;
    rdzv_notes notes; /* texts of this step's actions */
    char roster[RDZV_TEXT_BYTES];
};

/* --- rendezvous_drain.c: actions, and how the ranks of a roster are ended --- */

rdzv_action *rdzv_act(rdzv *m, rdzv_action_kind kind, uint64_t conn);
void rdzv_act_text(rdzv *m, rdzv_action_kind kind, uint64_t conn, const char *text);

/* An empty text of RDZV_TEXT_BYTES that lives until the next step. */
char *rdzv_new_text(rdzv *m);

/* To RDZV_END; all nodes are notified. */
void rdzv_end_job(rdzv *m, int exit_code, const char *text);
void rdzv_end_stopped(rdzv *m);
/* The job is over for this node only. */
void rdzv_dismiss(rdzv *m, rdzv_node *node);
/* Nodes that stay when all that want to leave have left. */
int rdzv_count_staying(const rdzv *m);

/* A member is lost, or reports a failure. Both only record the cause: the caller removes a lost
 * member from the table, then rdzv_abort_for_failure() ends the ranks, also those of an orderly
 * drain. */
void rdzv_record_loss(rdzv *m, const rdzv_node *node, int64_t last_seen_ms, const char *why);
void rdzv_record_failure(rdzv *m, const rdzv_node *node, const rdzv_event *e, const char *text);
void rdzv_abort_for_failure(rdzv *m);

/* The orderly way into RDZV_DRAIN. */
void rdzv_stop_ranks(rdzv *m, drain_reason reason, int number, const char *text);
void rdzv_kill_ranks(rdzv *m);
void rdzv_settle_drain(rdzv *m);

/* --- rendezvous_roster.c: the nodes, and the rosters made of them --- */

rdzv_node *rdzv_find(const rdzv *m, uint64_t conn);
int rdzv_count(const rdzv *m, node_state from, node_state to); /* connected nodes in these states */
int rdzv_count_done(const rdzv *m);                            /* members, also lost ones */
bool rdzv_has_finished_node(const rdzv *m); /* the ranks of one have completed their work */
bool rdzv_has_finished(const rdzv *m);      /* ... and those of all others have ended */
bool rdzv_is_member(const rdzv_node *node);
bool rdzv_is_running(const rdzv_node *node); /* a member whose ranks have not ended */
const rdzv_place *rdzv_place_of(const rdzv *m, const rdzv_node *node); /* a member's */

/* Puts an accepted node into a free slot. */
rdzv_node *rdzv_add_node(rdzv *m, uint64_t conn, const rdzv_hello *hello);

/* Whether the waiting nodes can make a roster now; considers last_call_ms and join_until_ms. */
bool rdzv_is_complete(const rdzv *m);

/* The waiting node that may take the place of this lost one; NULL: none. */
rdzv_node *rdzv_find_spare(const rdzv *m, const rdzv_node *lost);

/* Makes the next generation of at most max_nodes waiting nodes. */
void rdzv_make_roster(rdzv *m);

/* To RDZV_COLLECT: all that are connected wait for the next roster. */
void rdzv_start_collecting(rdzv *m);

/* --- rendezvous_hello.c: which nodes may join --- */

/* True; or false with the reason in why, and in *holder the node that has the requested id. */
bool rdzv_accepts(const rdzv *m, const rdzv_hello *hello, char *why, size_t n,
                  const rdzv_node **holder);
/* Whether the job ends because of a node that was rejected. */
bool rdzv_ends_with(const rdzv *m, const rdzv_hello *hello);

/* --- rendezvous_text.c: texts --- */

/* Appends to terminated text in buf; what does not fit is cut. */
void rdzv_append(char *buf, size_t n, const char *format, ...) LS_PRINTF(3, 4);

void rdzv_write_roster(const rdzv *m, char *buf, size_t n);

/* Appends the missing nodes: "nodes 1, 3 did not join", "only 1 node of at least 2 rejoined". */
void rdzv_append_missing(const rdzv *m, char *buf, size_t n);

/* "4 nodes", "1 node". */
const char *rdzv_nodes_text(char *buf, size_t n, int count);

/* "node 1 (b)". */
const char *rdzv_node_text(char *buf, size_t n, const rdzv_place *place);

/* "rank 4", "ranks 4-7". */
const char *rdzv_ranks_text(char *buf, size_t n, const rdzv_place *place);

#endif
