/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_internal.h - what local.c, local_join.c and segment.c share: the memory of this host, the
 * peers, and their messages.
 *
 * Ranks of one host share one memfd, the host memory. The lowest of them, the leader, creates it
 * and passes it to each of the others, so a host of n ranks passes n - 1 descriptors, and a rank
 * maps one:
 *
 *   local_host       how many ranks there are, and which
 *   n pages          one a rank: local_page, then its arrays (local_layout)
 *   n x n rings      of link_shm.c, by writer and reader
 *
 * A page of it takes memory from when it is first touched, so pairs that never talk cost addresses
 * only. Each rank has a mailbox, a datagram socket to which all others send doorbells and the
 * descriptors of segments. A descriptor is sent only to a rank that waits for it, and a rank waits
 * for LOCAL_REQUESTS_MAX / n at a time: the kernel limits how many descriptors of one user are in
 * flight. Besides, each rank has one connection to the leader, which ends with the process. The
 * leader then marks that rank's page and wakes the others. After the leader's own end each rank
 * looks regularly whether the names of the other mailboxes still exist: they end with the process.
 *
 * Every message is one packet of CHANNEL_BYTES, little-endian:
 *
 *   0 u32 magic | 4 u32 type | 8 u32 a | 12 u32 b | 16 u64 c | 24 u64 d | 32 u64 e | 40 job[16]
 *
 * Over connections, while joining (a from, b to, c instance of from, d of to; `d` proves that the
 * sender has read the boot records of this job):
 *   HELLO    e generation. To the lowest rank that can be reached.
 *   REGION   e token for threads of its process; for others the number of ranks, with a descriptor
 *   READY    the sender's page is filled in
 *   GO       all pages are filled in
 *   FAILED   e the rank that ended or did not answer
 * To mailboxes (e: the secret of the host memory):
 *   SEGMENT  a id  b from  c serial (0: there is no such segment)  d bytes; with a descriptor
 *   BELL
 */
#ifndef LS_COMM_BACKENDS_NATIVE_MEMORY_LOCAL_INTERNAL_H
#define LS_COMM_BACKENDS_NATIVE_MEMORY_LOCAL_INTERNAL_H

#include "comm/backends/native/memory/local.h"
#include "comm/backends/native/memory/segment.h"
#include "comm/backends/native/memory/segment_map.h"

#include <stdatomic.h>

#define CHANNEL_BYTES 56
#define CHANNEL_MAGIC UINT32_C(0x344C534C) /* changes with anything that ranks of one host share */
#define LOCAL_REQUESTS_MAX                                                                         \
    256 /* descriptors in flight on one host, when there are at most as many
                                ranks */

typedef enum channel_type {
    CHANNEL_HELLO = 1,
    CHANNEL_REGION,
    CHANNEL_READY,
    CHANNEL_GO,
    CHANNEL_FAILED,
    CHANNEL_SEGMENT,
    CHANNEL_BELL
} channel_type;

typedef struct channel_message {
    channel_type type;
    uint32_t a;
    uint32_t b;
    uint64_t c;
    uint64_t d;
    uint64_t e;
    char job[JOB_ID_BYTES];
} channel_message;

/* The beginning of the host memory, written by the leader before others map it. */
typedef struct local_host {
    uint64_t secret; /* of messages to mailboxes: other users can send there too */
    uint32_t n;
    _Alignas(64) atomic_uint removals; /* of segments, by all ranks */
    _Alignas(64) int32_t ranks[];      /* world ranks, ascending */
} local_host;

/* One of a rank's segments, as the others see it. */
typedef struct segment_entry {
    _Atomic uint32_t id; /* 0: none; written last */
    _Atomic uint64_t serial;
    _Atomic uint64_t key;
    _Atomic uint64_t bytes;
    _Atomic uint64_t token; /* for threads of the owner's process */
} segment_entry;

/* What a rank and the others know of it. */
typedef struct local_page {
    _Alignas(64) atomic_uint sleepers; /* threads between prepare_sleep and end_sleep */
    /* How often it has emptied its mailbox; and after which of those times a doorbell was sent. */
    atomic_uint drains;
    atomic_uint rung;
    atomic_int processor; /* where it has last waited, counted from 1; 0: unknown */
    /* Counts what others have done that local_receive() handles. */
    _Alignas(64) atomic_uint events;
    atomic_uint has_ended;
    _Atomic uint32_t last_segment; /* highest id so far */
    net_address mailbox;           /* filled in before READY */
} local_page;

/* The arrays behind a local_page, as offsets in it. */
typedef struct local_layout {
    size_t states; /* _Atomic uint8_t[n]: of the ring from each rank to this one (link_shm.c) */
    /* _Atomic uint64_t[n]: what each peer waits for: a number that differs from that of its last
     * request, and in the low half the id; 0: nothing. */
    size_t requests;
    size_t segments; /* segment_entry[SEGMENTS_MAX] */
    size_t page_bytes;
    size_t pages; /* offset of the first page in the host memory */
    size_t rings;
    size_t bytes;
} local_layout;

typedef struct local_peer local_peer;

struct segment_view {
    local_peer *owner;
    segment_map *map; /* NULL: this process could not map it */
    uint64_t serial;
    uint32_t id;
    int holds;
    bool is_gone; /* no longer in owner->views; freed when nothing holds it */
};

struct local_peer {
    int rank;
    int index; /* in the host memory */
    int fd;    /* its connection, between the leader and another; -1: none */
    bool is_thread;
    bool is_reported;  /* its end */
    atomic_bool ended; /* local_ring() reads it too */
    local_page *page;
    uint32_t requested;   /* the id for which this rank waits, 0: none */
    segment_view **views; /* SEGMENTS_MAX, by slot; NULL: none yet */
};

/* One of this rank's segments. */
typedef struct own_segment {
    segment_map *map; /* NULL: this slot is free */
    uint32_t id;
    int n_sent; /* peers that have its descriptor */
} own_segment;

struct local {
    int rank;
    int size;
    char job[JOB_ID_BYTES];
    uint32_t generation;
    const boot_record *records;
    const comm_host *host; /* whose check() ends waits; NULL: none */
    int *ranks;            /* ascending, this one included */
    int count;
    int index;          /* of this rank in `ranks` and in the host memory */
    local_peer **peers; /* count - 1, ascending */
    int *peer_of;       /* world rank to index in peers; -1: not local, or this rank */
    /* NULL, -1: this rank is alone on its host. */
    segment_map *memory; /* the host memory */
    local_layout layout;
    local_page *page;
    int mailbox;
    int ends_fd; /* epoll over the connections */
    unsigned seen_events;
    unsigned seen_removals;
    bool has_unsent;       /* a descriptor that a mailbox did not take */
    int64_t next_probe_ms; /* of the peers; INT64_MAX: the leader has not ended */
    int n_unreported;
    int n_requested; /* peers with `requested` */
    uint32_t last_request;
    own_segment *own;
    uint32_t last_number;
    uint64_t last_serial;
    int hint; /* slot of the last hit of segment_find() */
};

/* NULL: not local, or this rank. */
local_peer *local_find_peer(const local *l, int rank);

local_host *local_host_of(const local *l);
/* The page of the rank with this index in the host memory, and its arrays. */
local_page *local_page_of(const local *l, int index);
_Atomic uint64_t *local_requests_of(const local *l, int index);
segment_entry *local_segments_of(const local *l, int index);

/* For something that the peer's local_receive() handles: counts it and wakes the peer. */
void local_notify(local *l, local_peer *p);

/* Sends without blocking, to a mailbox or (NULL) over a connection. with_fd: a descriptor to pass,
 * -1: none. *blocked: 0 when it is sent, else the errno for which it can be tried again.
 * LS_EPEER. */
LS_MUST_USE ls_status channel_send(int fd, const net_address *to, const channel_message *m,
                                   int with_fd, int *blocked);

/* Receives without blocking. LS_OK with *got false: there is nothing. LS_EPEER at the end,
 * LS_EPROTO for an invalid message. */
LS_MUST_USE ls_status channel_receive(int fd, channel_message *m, int *with_fd, bool *got);

/* A descriptor, or the answer that there is none, has come to the mailbox. Takes fd. */
void segment_on_message(local *l, const channel_message *m, int fd);
/* Sends descriptors to the peers that wait for them; what a mailbox does not take sets
 * l->has_unsent. */
void segment_serve(local *l);
/* Unmaps the segments that their owners have destroyed. */
void segment_sweep(local *l);

/* Frees a peer's views, this rank's table. */
void segment_free_views(local_peer *p);
void segment_free_own(local *l);

#endif
