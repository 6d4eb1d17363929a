/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_internal.h - the parts of a hub: connections (hub_conn.c), store requests (hub_store.c),
 * ranks and causes (hub_ranks.c), waiting operations (hub_watch.c), leaves (hub_leaves.c), calls
 * (hub_calls.c). All run on the poller's thread.
 */
#ifndef LS_STORE_HUB_INTERNAL_H
#define LS_STORE_HUB_INTERNAL_H

#include "store/hub.h"

#include "base/map.h"
#include "net/listener.h"
#include "net/frame_link.h"
#include "net/wire.h"
#include "store/hub_messages.h"
#include "store/table.h"

#include <stdbool.h>

typedef enum conn_state {
    CONN_NAMELESS, /* proved, has not said yet which rank it is */
    CONN_RANK,
    CONN_STORE,   /* proved, of a store without a job */
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
    int missing; /* index of the key that is waited for now */
    hub_gather *gather;
    poll_timer timer;
} conn_wait;

typedef struct hub_conn {
    list_node node; /* in hub.conns or hub.dead */
    hub *owner;
    conn_state state;
    frame_link link;
    char peer[LISTENER_PEER_TEXT];
    pid_t peer_pid;   /* of a unix socket, else 0 */
    poll_timer limit; /* how long the present state may last */
    int rank;         /* of CONN_RANK, else -1 */
    conn_wait wait;
} hub_conn;

typedef struct hub_rank {
    hub *owner;
    hub_conn *conn; /* NULL: not here */
    pid_t pid;
    bool has_joined; /* at any time */
    bool has_left;   /* said goodbye */
    bool is_lost;    /* connection ended without */
    bool has_exited; /* its starter saw it end well */
    pid_t local_pid; /* as the kernel names it here, 0: on another host */
    int64_t heard_ms;
    poll_timer grace; /* after is_lost */
} hub_rank;

/* A cause that is held back for a while, as a better one may come. */
typedef struct held_cause {
    list_node node;
    hub *owner;
    poll_timer timer;
    job_cause cause;
} held_cause;

/* One member's word about a waiting operation. */
typedef struct op_entry {
    int rank;
    bool is_waiting; /* false: it has arrived */
    op_stamp stamp;
} op_entry;

/* An operation in which at least one rank waits. */
typedef struct hub_op {
    list_node node;
    hub *owner;
    op_stamp id;
    int only_rank;   /* of a send or recv, which belongs to one rank; -1 for collectives */
    uint64_t number; /* of a send or recv: tells this rank's apart */
    int *members;
    int n_members;
    op_entry *entries;
    int n_entries;
    int n_waiting;
    int64_t since_ms; /* when the first began to wait */
    poll_timer late;
    int64_t late_pause_ms; /* 0: no report yet */
} hub_op;

/* What the ranks of one group have called. */
typedef struct hub_calls hub_calls;

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
    bool has_formed; /* all ranks were here at once */
    bool has_cause;  /* of the whole job: */
    job_cause cause;
    job_cause *group_causes; /* the first of each group */
    int n_group_causes;
    list_node held;
    list_node ops;
    int n_ops;
    bool has_untracked_op; /* there were too many at some time */
    list_node leaves;      /* by group; the last change last */
    int n_leaves;
    list_node calls; /* by group; last heard of last */
    int n_calls;
    wire_writer body; /* of the message being made */
};

/* --- hub_conn.c --- */

void hub_enter(void *arg, const listener_peer *peer); /* somebody has proved the key to this hub */
void hub_reap(void *arg);                             /* frees the hub's dead connections */

/* Queues a frame and sends what the socket takes. A client that does not read is dropped. */
void conn_send(hub_conn *c, uint32_t type, const void *body, size_t bytes);
void conn_send_body(hub_conn *c, uint32_t type); /* the hub's `body` */

/* Says why, and closes once that has been sent. */
void conn_refuse(hub_conn *c, const char *why);

/* Closes now; the rank's loss is handled by the reaper. */
void conn_drop(hub_conn *c);

/* --- hub_store.c --- */
LS_MUST_USE ls_status hub_store_request(hub_conn *c, const frame *f);
void hub_store_forget(hub_conn *c); /* its open wait */

void hub_store_reply_failure(hub_conn *c, uint64_t id, ls_status st); /* and this thread's text */

/* --- hub_gather.c --- */
LS_MUST_USE ls_status hub_gather_request(hub_conn *c, uint64_t id, wire_reader *r);
void hub_gather_changed(hub *h, kv_bytes key); /* it has a value now, another one, or none */
void hub_gather_free(hub *h);                  /* when nobody waits any more */

/* --- hub_ranks.c --- */
LS_MUST_USE ls_status hub_ranks_create(hub *h);
void hub_ranks_free(hub *h);
LS_MUST_USE ls_status hub_rank_hello(hub_conn *c, const frame *f);
LS_MUST_USE ls_status hub_rank_message(hub_conn *c, const frame *f);
void hub_rank_gone(hub_conn *c); /* its connection has ended */

/* Makes it the cause of its group and tells all ranks, unless the group has one. */
void hub_break(hub *h, const job_cause *cause);
bool hub_is_broken(const hub *h, uint32_t group);

/* --- hub_calls.c --- */
LS_MUST_USE ls_status hub_calls_told(hub_conn *c, const frame *f);
void hub_calls_end_group(hub *h, uint32_t group); /* GROUP_ALL: all */

/* --- hub_watch.c --- */
LS_MUST_USE ls_status hub_watch_waiting(hub_conn *c, const frame *f);
LS_MUST_USE ls_status hub_watch_arrived(hub_conn *c, const frame *f);
/* Adds to the cause of a timeout which ranks were missing, or are stopped, in what this rank waited
 * for. */
void hub_watch_explain(hub *h, int rank, job_cause *cause);
void hub_watch_forget(hub *h, int rank);          /* it waits in nothing any more */
void hub_watch_end_group(hub *h, uint32_t group); /* GROUP_ALL: all */
/* Sends the hub's `body` to every rank that waits in an operation of the group. */
void hub_watch_send(hub *h, uint32_t group, uint32_t type);

/* --- hub_leaves.c --- */
LS_MUST_USE ls_status hub_leave_message(hub_conn *c, const frame *f);
void hub_leaves_send(hub_conn *c, uint32_t group); /* all that are known, if any */
void hub_leaves_end_group(hub *h, uint32_t group); /* GROUP_ALL: all */

#endif
