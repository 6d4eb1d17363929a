/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_internal.h - the parts of a hub. All of them run on the poller's thread.
 *
 *   hub.c         creation, listening
 *   hub_conn.c    connections
 *   hub_store.c   requests to the key-value store, hub_gather.c those for one value of each rank
 *   hub_ranks.c   which ranks have joined, left or are lost
 *   hub_causes.c  why the job or a group ends
 *   hub_watch.c   operations in which ranks wait
 *   hub_leaves.c  which ranks have left which group
 *   hub_stacks.c  stacks of late ranks
 *   hub_barrier.c    members of a group that wait for each other outside of its operations
 *   hub_calls.c   which operations ranks have called
 */
#ifndef LS_HUB_HUB_INTERNAL_H
#define LS_HUB_HUB_INTERNAL_H

#include "hub/hub.h"

#include "base/map.h"
#include "base/text.h"
#include "hub/hub_messages.h"
#include "hub/stamp.h"
#include "net/auth/listener.h"
#include "net/messages/frame_link.h"
#include "net/wire.h"
#include "store/table.h"

#include <stdbool.h>

typedef enum conn_state {
    CONN_UNIDENTIFIED, /* authenticated, has not sent its rank yet */
    CONN_RANK,
    CONN_STORE,   /* authenticated, of a store without a job */
    CONN_CLOSING, /* refused: closed when what is queued has been sent */
    CONN_DEAD     /* closed; freed by the reaper */
} conn_state;

typedef struct hub_gather hub_gather;

/* A get, wait or gather that is not answered yet. */
typedef struct conn_wait {
    list_node node; /* in hub.waits, or of a gather, while active */
    bool is_active;
    bool is_get;
    uint64_t id;
    uint8_t *body;  /* the keys as they came: n u32, then each */
    kv_bytes *keys; /* into body */
    int n_keys;
    int missing; /* index of the first key without a value */
    hub_gather *gather;
    uint32_t gather_first;
    poll_timer timer;
} conn_wait;

typedef struct hub_conn {
    list_node node; /* in hub.conns or hub.dead */
    hub *owner;
    conn_state state;
    frame_link link;
    char peer[LISTENER_PEER_TEXT];
    pid_t peer_pid;   /* of a unix socket, else 0 */
    poll_timer limit; /* of the present state */
    int rank;         /* -1 unless CONN_RANK */
    conn_wait wait;
} hub_conn;

typedef struct hub_rank {
    hub *owner;
    hub_conn *conn; /* NULL: not connected */
    pid_t pid;
    bool has_joined;  /* at any time */
    bool has_left;    /* in good order */
    bool is_lost;     /* its connection ended without a leave */
    bool has_exited;  /* its launcher saw it exit with code 0 */
    pid_t local_pid;  /* as this host's kernel numbers it; 0: on another host */
    poll_timer grace; /* after is_lost */
    uint32_t n_asked; /* for its stack, not answered yet */
    char late_in[160];
} hub_rank;

/* A cause that is held back for grace_ms, because a better one may arrive. */
typedef struct held_cause {
    list_node node;
    hub *owner;
    poll_timer timer;
    job_cause cause;
} held_cause;

/* One member's report of an operation. */
typedef struct op_entry {
    int rank;
    bool is_waiting; /* false: it has arrived */
    int n_later;     /* of its operations that wait behind this one */
    op_stamp stamp;
} op_entry;

/* An operation in which at least one rank waits. */
typedef struct hub_op {
    list_node node;
    hub *owner;
    op_stamp id;
    int only_rank;   /* the rank of a send or recv; -1 for collectives */
    uint64_t number; /* of a send or recv: distinguishes those of one rank */
    int *members;
    int n_members;
    op_entry *entries;
    int n_entries;
    int n_waiting;
    int64_t since_ms; /* when the first rank began to wait */
    poll_timer report_timer;
    int64_t report_pause_ms; /* 0: no report yet */
} hub_op;

/* What the ranks of one group have called. */
typedef struct hub_calls hub_calls;

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): by meaning
struct hub {
    poller *loop;
    hub_options opt;
    int64_t grace_ms;
    listener *listener;
    list_node conns; /* oldest first */
    list_node dead;
    int n_conns;
    uint64_t n_frames; /* that all of them have sent */
    poll_timer reaper;
    kv_table table;
    list_node waits;
    list_node gathers;
    int n_gathers;
    hub_rank *ranks; /* world_size of them, NULL for a store without a job */
    int n_joined;
    int n_exited;    /* ranks with has_exited */
    bool has_formed; /* all ranks were connected at the same time */
    bool has_cause;  /* the whole job ends with `cause` */
    job_cause cause;
    job_cause *group_causes; /* the first of each group */
    int n_group_causes;
    list_node held;
    list_node ops;
    int n_ops;
    bool has_untracked_op; /* at some time there were too many to record */
    list_node leaves;      /* by group, ordered by their last change */
    int n_leaves;
    list_node calls; /* by group, ordered by their last report */
    int n_calls;
    list_node barriers;
    int n_barriers;
    wire_writer body; /* of the message to be sent next */
};

/* --- hub_conn.c --- */

void hub_enter(void *arg, const listener_peer *peer); /* takes an authenticated connection */
void hub_reap(void *arg);                             /* frees the hub's dead connections */

/* Queues a frame and sends what the socket takes. A client that does not read is dropped. */
void conn_send(hub_conn *c, uint32_t type, const void *body, size_t bytes);
void conn_send_body(hub_conn *c, uint32_t type); /* the hub's `body` */

/* Sends the reason, then closes. */
void conn_refuse(hub_conn *c, const char *why);

/* Closes at once; the reaper handles the loss of its rank. */
void conn_drop(hub_conn *c);

/* --- hub_store.c --- */
LS_MUST_USE ls_status hub_store_request(hub_conn *c, const frame *f);
void hub_store_end_wait(hub_conn *c); /* without an answer */

/* Sends the status and this thread's error text. */
void hub_store_reply_failure(hub_conn *c, uint64_t id, ls_status st);

/* --- hub_gather.c --- */
LS_MUST_USE ls_status hub_gather_request(hub_conn *c, uint64_t id, wire_reader *r);
void hub_gather_changed(hub *h, kv_bytes key); /* the key's value was set or deleted */
void hub_gather_free(hub *h);                  /* after the last connection has closed */

/* --- hub_ranks.c --- */
LS_MUST_USE ls_status hub_ranks_create(hub *h);
void hub_ranks_free(hub *h);
LS_MUST_USE ls_status hub_rank_hello(hub_conn *c, const frame *f);
LS_MUST_USE ls_status hub_rank_message(hub_conn *c, const frame *f);
void hub_rank_gone(hub_conn *c);                /* its connection has ended */
void hub_broadcast_body(hub *h, uint32_t type); /* to all connected ranks */

/* --- hub_causes.c --- */

/* Makes it the cause of its group and sends it to all ranks, unless the group has one. */
void hub_break(hub *h, const job_cause *cause);
bool hub_is_broken(const hub *h, uint32_t group);
void hub_send_causes(hub_conn *c); /* all that are recorded */

/* The ranks have called different operations, or different ones before the same operation. */
void hub_break_mismatch(hub *h, int rank_a, const op_stamp *a, int rank_b, const op_stamp *b);
void hub_break_if_exited(hub *h, int rank); /* while others join: they would wait for it */
void hub_hold_loss(hub *h, hub_rank *r);    /* breaks the job after grace_ms */
LS_MUST_USE ls_status hub_fail_message(hub_conn *c, const frame *f);
void hub_causes_free(hub *h);

/* --- hub_calls.c --- */
LS_MUST_USE ls_status hub_calls_message(hub_conn *c, const frame *f);
void hub_calls_end_group(hub *h, uint32_t group); /* GROUP_ALL: all */

/* --- hub_watch.c --- */
LS_MUST_USE ls_status hub_watch_waiting(hub_conn *c, const frame *f);
LS_MUST_USE ls_status hub_watch_arrived(hub_conn *c, const frame *f);
/* Adds to the cause of a timeout which ranks of the operation have not arrived or are stopped. */
void hub_watch_explain(hub *h, int rank, job_cause *cause);
void hub_watch_remove_rank(hub *h, int rank);     /* ends all its waits */
void hub_watch_end_group(hub *h, uint32_t group); /* GROUP_ALL: all */
/* The rank of c waits in a stage (control.h) of the group, "creating ...". */
void hub_watch_stage(hub_conn *c, uint32_t group, const char *what, const int *members,
                     int n_members, int64_t report_in_ms);
/* "; not arrived 1 (pid 4711, running)" of a stage of the group, if one is known. */
void hub_watch_append_missing(text_buf *t, hub *h, uint32_t group);
/* The rest of a message: n u32, n members u32, ranks of the job that include the sender; n 0: all.
 * *out is freed with ls_free(). */
LS_MUST_USE ls_status hub_watch_read_members(const hub_conn *c, wire_reader *r, int **out, int *n);
/* Sends the hub's `body`, a LEFT_GROUP, to every rank that waits in an operation of the group. */
void hub_watch_send_leave(hub *h, uint32_t group);

/* --- hub_stacks.c --- */
void hub_stack_ask(hub *h, int rank, const char *what); /* a rank that is late in `what` */
LS_MUST_USE ls_status hub_stack_message(hub_conn *c, const frame *f);

/* --- hub_barrier.c --- */
LS_MUST_USE ls_status hub_meet_message(hub_conn *c, const frame *f);
void hub_meet_rank_gone(hub *h, int rank);       /* its connection has ended */
void hub_meet_end_group(hub *h, uint32_t group); /* without answers; GROUP_ALL: all */

/* --- hub_leaves.c --- */
LS_MUST_USE ls_status hub_leave_group_message(hub_conn *c, const frame *f);
void hub_leaves_send(hub_conn *c, uint32_t group); /* all recorded ones of the group */
void hub_leaves_end_group(hub *h, uint32_t group); /* GROUP_ALL: all */

#endif
