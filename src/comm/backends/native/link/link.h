/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h - a reliable, ordered message link to one peer, over any nonblocking byte stream.
 *
 * link.c cuts the stream into messages: it reads payloads straight into the target that the sink
 * names and writes them straight from the sender's memory; both directions keep their partial
 * progress. link_tcp.c, link_sealed.c and link_shm.c are the streams, link_striped.c makes one of
 * several.
 *
 * comm/backends/native/link/: streams to one peer, and the mesh of TCP connections. Called by
 * memory/ and the backend; mesh.h and link.h are its headers.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_LINK_LINK_H
#define LS_COMM_BACKENDS_NATIVE_LINK_LINK_H

#include "base/map.h"
#include "comm/backends/native/link/message.h"
#include "net/auth/seal.h"

#include <sys/types.h>
#include <sys/uio.h>

#define LINK_STAGING_BYTES 20480 /* small messages and their headers, several at a time */
#define LINK_POST_BYTES    1040  /* largest payload of a post */
#define LINK_STREAMS_MAX   8     /* streams of a striped link */

typedef struct peer_link peer_link;

/* A charged point to point message for which a receive waits. */
typedef struct link_request {
    uint32_t group;
    uint8_t dtype;
    uint64_t step;
    uint64_t bytes;
    uint64_t credit_min; /* a credit outside this range is not for this rank's messages */
    uint64_t credit_max;
} link_request;

/* A stream. read and write return the bytes moved, 0 when nothing can move now, -1 when the stream
 * has ended: link->error is then 0 for an orderly end or an errno. */
typedef struct link_ops {
    ssize_t (*write)(peer_link *l, const struct iovec *iov, int n);
    ssize_t (*read)(peer_link *l, const struct iovec *iov, int n);
    /* The next four are optional. post: puts a whole small message where the peer finds it with one
     * load, after all that was written before; false: there is no space. */
    bool (*post)(peer_link *l, const message *m, const uint8_t *payload);
    /* The oldest post not yet taken; its payload is valid until drop(). False: none. */
    bool (*peek)(peer_link *l, message *m, const uint8_t **payload);
    void (*drop)(peer_link *l);
    /* peek(), copy and drop() in one, for a message that is exactly the requested one; *credit is
     * its credit. False: the oldest post is another, or there is none. */
    bool (*take)(peer_link *l, const link_request *request, uint8_t *to, uint64_t *credit);
    /* A read costs no system call: no payload is read together with its header and copied twice. */
    bool is_memory;
    /* Optional. False: the peer has neither written nor ended; read would return 0. */
    bool (*has_begun)(const peer_link *l);
    /* Whether everything written has reached the peer's side. */
    bool (*is_delivered)(peer_link *l);
    /* Of sockets. Whether the peer's system has not answered for silence_ms. */
    bool (*is_unanswered)(const peer_link *l, int silence_ms);
    /* Nothing more will be written: lets the peer notice the end. */
    void (*finish)(peer_link *l);
    void (*close)(peer_link *l);
    /* The next two are optional. settle: no read or write follows for now. fd must become readable
     * when one of them could go on; link->is_full says whether a write could not. Without it, fd is
     * polled for both. */
    void (*settle)(peer_link *l);
    /* In a forked child: closes the inherited descriptors, where fd is not the only one. */
    void (*forked)(const peer_link *l);
} link_ops;

/* A message to be sent. The sink is notified when it is sent or dropped. */
typedef struct link_item {
    list_node node;
    uint8_t header[MESSAGE_HEADER_BYTES];
    const uint8_t *payload; /* borrowed until sent */
    size_t bytes;
    size_t done;   /* bytes sent of header and payload together */
    uint8_t *copy; /* owned payload, or NULL */
    void *owner;   /* the sink's */
} link_item;

/* Where messages go. */
typedef struct link_sink {
    /* A header has come: sets where its payload is to be written, NULL to drop it. An error ends
     * the link. Only what message_decode() checks is checked. */
    ls_status (*begin)(void *self, const message *m, uint8_t **target);
    /* The payload of the last begun message is complete (called right after begin when it has
     * none). */
    ls_status (*end)(void *self);
    /* The item is sent and belongs to the sink again. */
    void (*sent)(void *self, link_item *item);
    void *self;
} link_sink;

struct peer_link {
    const link_ops *ops; /* NULL: it has no stream yet */
    void *stream;        /* the stream's own */
    int fd;              /* to poll; -1: none (link_shm) */
    bool is_ended;       /* nothing more will come */
    bool is_cut;         /* nothing more can be sent; what has come is still read */
    bool is_full;        /* the stream was full at the last flush */
    size_t unsent;       /* bytes that the stream has taken but not sent: flush again */
    size_t buffered;     /* bytes that the stream has read ahead */
    int error;           /* errno of the end, 0: orderly */
    char fault[160];     /* the text of a protocol error, else "" */
    link_sink sink;
    list_node out;
    /* The message that is coming in: */
    bool in_payload;
    uint8_t *target; /* NULL: dropped */
    size_t in_done;
    size_t in_bytes;
    uint8_t *staging; /* with link_ops.has_begun NULL until then */
    size_t staged_at;
    size_t staged_end;
};

/* A link that is not connected: it queues, and moves nothing. LS_ENOMEM. */
LS_MUST_USE ls_status link_idle_create(const link_sink *sink, peer_link **out);
/* Moves the unused stream of `from` to an idle link; frees `from`. */
void link_take_stream(peer_link *l, peer_link *from);

/* Takes the stream. LS_ENOMEM: the stream is closed. */
LS_MUST_USE ls_status link_create(const link_ops *ops, void *stream, int fd, const link_sink *sink,
                                  peer_link **out);
/* Queued items go back through sink->sent; NULL is allowed. */
void link_destroy(peer_link *l);

/* Sends a small message at once, if the link can do so and nothing is queued; false: it must be
 * queued. */
bool link_post(peer_link *l, const message *m, const uint8_t *payload);

/* Takes the next message into `to` if it is the requested one and has come as a whole; false: call
 * link_receive(). */
bool link_take(peer_link *l, const link_request *request, uint8_t *to, uint64_t *credit);

/* Queues; link_flush() sends. */
void link_send(peer_link *l, link_item *item);

/* In a forked child, which must use nothing of it: closes what it inherited. */
void link_forked(const peer_link *l);

bool link_has_output(const peer_link *l);  /* something is queued or unsent */
bool link_is_arriving(const peer_link *l); /* a message has come in part; its rest or an end will */
bool link_is_delivered(peer_link *l);      /* everything written has reached the peer's side */

/*
 * The payload of a queued item is about to be freed. True: nothing of it was sent; it is removed
 * from the queue and the sink's again (without sent()). False: the link goes on with a copy of the
 * rest; without memory for one, the link is cut.
 */
bool link_withdraw(peer_link *l, link_item *item);

/* Both return true when something moved. The end of the link shows in is_ended and is_cut. */
bool link_flush(peer_link *l);
bool link_receive(peer_link *l);

/* Drops the payload that is coming in. */
void link_drop_payload(peer_link *l);

/* Over a connected, nonblocking stream socket, which it takes, also on failure. */
LS_MUST_USE ls_status link_tcp_create(int fd, const link_sink *sink, peer_link **out);

/* Of a socket's stream: link_ops.finish and is_unanswered, and whether the peer's kernel has
 * acknowledged all bytes. */
void link_socket_finish(peer_link *l);
bool link_socket_is_unanswered(const peer_link *l, int silence_ms);
bool link_socket_is_drained(peer_link *l);

/* The same in the records of net/auth/seal.h. */
LS_MUST_USE ls_status link_sealed_create(int fd, const seal_pair *seals, const link_sink *sink,
                                         peer_link **out);

/*
 * One link over the streams of n others (2 to LINK_STREAMS_MAX): bytes go over them block by block
 * in turn, so the order is the link's own. The streams are unused links of either kind above, with
 * the same number at both ends; bytes for a stream that is not added yet wait for it. An error of
 * one is the link's.
 */
LS_MUST_USE ls_status link_striped_create(int n, const link_sink *sink, peer_link **out);
/* Takes the stream, also on failure. The number must be free. */
LS_MUST_USE ls_status link_striped_add(peer_link *l, int number, peer_link *stream);
bool link_striped_has(const peer_link *l, int number);

#endif
