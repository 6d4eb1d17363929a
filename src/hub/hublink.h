/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hublink.h - the client's end of a connection to a hub: authenticated, framed, with requests that
 * wait for their answers. Both a rank's control connection and a store without a job use it.
 */
#ifndef LS_HUB_HUBLINK_H
#define LS_HUB_HUBLINK_H

#include "net/address.h"
#include "net/auth/handshake.h"
#include "net/messages/frame.h"
#include "net/wire.h"
#include "store/store_ops.h"

#define HUBLINK_ADDRESSES_MAX 8

typedef struct hublink_options {
    net_address hub[HUBLINK_ADDRESSES_MAX]; /* all of the same hub */
    int n_hub;
    const net_key *key;
    bool insecure;
    handshake_claim claim;
    bool refused_is_final; /* "connection refused" is not retried */
    int64_t deadline_ms;   /* of connecting, retries included */
    const char *server;    /* for messages: "rank 0"; NULL: "the store" */
    int64_t answer_ms;     /* without an answer for so long the hub is lost; negative: never */
} hublink_options;

typedef struct hublink hublink;

/* Gets frames that are not replies. A failure breaks the connection. */
typedef ls_status (*hublink_push_fn)(void *arg, const frame *f);

/* Called while a request waits; returns the point in time (ms) of the next call. It may send. */
typedef int64_t (*hublink_wait_fn)(void *arg);

struct hublink {
    ls_store store; /* first: a store's operations find the link by it */
    int fd;         /* -1: closed */
    char name[NET_ADDRESS_TEXT_MAX];
    char server[32];
    pid_t server_pid; /* of a unix socket; 0: unknown */
    int64_t answer_ms;
    frame_reader in;
    frame_queue out;
    wire_writer body; /* of the message to be sent next */
    uint64_t last_id;
    ls_status broken; /* why the hub is lost, LS_OK: it is not */
    char broken_text[LS_ERROR_BYTES];
    ls_status over; /* why no further requests are allowed (hublink_end()), LS_OK: they are */
    char over_text[LS_ERROR_BYTES];
    hublink_push_fn on_push;
    hublink_wait_fn on_wait; /* NULL: none */
    void *push_arg;
};

LS_MUST_USE ls_status hublink_open(const hublink_options *opt, hublink_push_fn on_push,
                                   void *push_arg, hublink *out);
void hublink_close(hublink *l); /* at once; what is queued is lost */

/* Sends the queued frames and waits until the hub has closed its end, so that all have arrived. */
void hublink_finish(hublink *l, int64_t deadline_ms);

/* Queues one frame and sends what the socket takes. LS_EPEER: the hub is lost or does not read. */
LS_MUST_USE ls_status hublink_send(hublink *l, uint32_t type, const wire_writer *body);

/* Reads what has arrived, without waiting, and delivers the frames. */
LS_MUST_USE ls_status hublink_poll(hublink *l);

/* Starts a request in l->body; the caller writes its fields. */
wire_writer *hublink_begin(hublink *l);

/* Sends the request and waits for its answer: LS_OK with the fields of the reply in *reply (valid
 * until the next call), or the failure that the hub answered. timeout_ms is that of the request; 0:
 * the hub answers at once. If it does not, a line is logged after LOCKSTEP_LATE_MS and then less
 * and less often; after answer_ms the connection breaks. */
LS_MUST_USE ls_status hublink_request(hublink *l, uint32_t type, int64_t timeout_ms,
                                      wire_reader *reply);

/* Ends the use of a reply, and frees its memory if it was large. */
void hublink_trim(hublink *l);

/* Waits for one frame of this type or HUB_MESSAGE_REFUSED (LS_EMISMATCH with its text). */
LS_MUST_USE ls_status hublink_expect(hublink *l, uint32_t type, int64_t deadline_ms);

/* "rank 0 at unix:@name (pid 4711, stopped)", into buf, which it returns. */
const char *hublink_text(const hublink *l, char *buf, size_t n);

/* Breaks the connection: later calls fail with st and this thread's error text. Returns st. */
ls_status hublink_break(hublink *l, ls_status st);

/* For on_push: ends the request under way and all later ones. The first call counts. */
void hublink_end(hublink *l, ls_status st, const char *text);

/* The operations of link->store; closing it leaves the connection open. */
extern const store_ops hublink_borrowed_store;

/* A store behind tcp://HOST:PORT or unix:@NAME, with a connection of its own. */
LS_MUST_USE ls_status store_remote_open(const char *url, const ls_store_options *opt,
                                        ls_store **out);

#endif
