/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_internal.h - the parts of a c10d store: listener and connections (c10d_store.c), requests
 * (c10d_requests.c), waits (c10d_waits.c). All of them run on the poller's thread.
 */
#ifndef LS_C10D_C10D_INTERNAL_H
#define LS_C10D_C10D_INTERNAL_H

#include "c10d/c10d_store.h"

#include "c10d/c10d_codec.h"
#include "c10d/c10d_queues.h"
#include "net/byte_queue.h"
#include "net/user_listener.h"

#define C10D_BYTES_MAX   TABLE_BYTES_MAX             /* values, keys and queues together */
#define C10D_BUFFERS_MAX ((size_t)256 * 1024 * 1024) /* requests and answers of all connections */
#define C10D_ANSWERS_MAX ((size_t)16 * 1024 * 1024)  /* of one connection, not sent yet */
#define C10D_CONNS_MAX   ((size_t)16 * 1024)
#define C10D_ROUND_MAX   16 /* requests of one connection before other connections are served */

/* Answers of one byte. */
enum { C10D_READY = 0, C10D_NOT_READY = 1, C10D_STOP_WAITING = 0, C10D_WAIT_CANCELED = 1 };

/* A WAIT or BARRIER that is not answered yet. */
typedef struct c10d_wait {
    list_node node; /* in store.waits while active, the oldest first */
    bool is_active;
    uint8_t *keys; /* a copy of the request's keys */
    size_t bytes;
    c10d_request rest; /* the keys behind `missing` */
    size_t n_rest;
    kv_bytes missing; /* the first key without a value */
    bool is_barrier;
    int64_t target; /* of a barrier */
} c10d_wait;

typedef struct c10d_conn {
    list_node node; /* in store.conns or store.dead */
    c10d_store *owner;
    int fd; /* -1: dead, freed by the reaper */
    poll_watch *watch;
    unsigned events; /* that are watched */
    char peer[64];
    c10d_parser parser;
    byte_queue in;
    byte_queue out;
    size_t buffered;    /* its share of store.buffered */
    poll_timer again;   /* set while whole requests are left of the last round */
    poll_timer silence; /* decides an undecided request */
    c10d_wait wait;
} c10d_conn;

struct c10d_store {
    poller *loop;
    user_listener *listener; /* NULL: the store does not listen */
    list_node conns;
    list_node dead;
    size_t n_conns;
    bool was_used;
    size_t buffered;
    poll_timer reaper;
    kv_table table;
    c10d_queues queues;
    list_node waits;
    int64_t last_drop_ms;
};

/* --- c10d_store.c --- */

/* Queues an answer. The connection of a client that does not read its answers is closed. */
void c10d_answer(c10d_conn *c, const void *data, size_t bytes);
void c10d_answer_u8(c10d_conn *c, uint8_t v);
void c10d_answer_i64(c10d_conn *c, int64_t v);
void c10d_answer_bytes(c10d_conn *c, kv_bytes v);

/* Sends what the socket takes, and updates the count of buffered bytes. */
void c10d_flush(c10d_conn *c);

/* Closes at once; the reaper frees the memory. `why` is logged; NULL when the client closed. */
void c10d_drop(c10d_conn *c, const char *why);

/* --- c10d_requests.c --- */

/* A failure ends the connection: the protocol has no error answers. */
LS_MUST_USE ls_status c10d_execute(c10d_conn *c, c10d_request *r);

/* As WAIT and CHECK define it: a key with a value, or a queue that is not empty. */
bool c10d_exists(const c10d_store *s, kv_bytes key);

/* --- c10d_waits.c --- */

/* Answers at once if all keys exist, else later. */
LS_MUST_USE ls_status c10d_wait_begin(c10d_conn *c, c10d_request *keys);
LS_MUST_USE ls_status c10d_barrier_begin(c10d_conn *c, kv_bytes key, int64_t target);
void c10d_wait_end(c10d_conn *c); /* without an answer; allowed without a wait */

/* Checks the waits for this key. only_one: a value of a queue is for one client only. */
void c10d_wake(c10d_store *s, kv_bytes key, bool only_one);

#endif
