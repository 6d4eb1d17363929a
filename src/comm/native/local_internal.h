/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_internal.h - what local.c, local_join.c and segment.c share: the peers of this host and
 * their channels.
 *
 * Every message is one packet of CHANNEL_BYTES, little-endian:
 *
 *   0 u32 magic | 4 u32 type | 8 u32 a | 12 u32 b | 16 u64 c | 24 u64 d | 32 u64 e | 40 job[16]
 *
 *   HELLO    a from  b to  c instance of from  d of to  e generation. The higher rank sends it
 *            first; `to` proves that it has read the boot records of this job.
 *   WELCOME  as HELLO
 *   REFUSE   as HELLO: another user's, so not local
 *   SEGMENT  a id  c key  d bytes  e token for threads of its process, 0 for others; with a
 *            descriptor
 *   GONE     a id
 *   BELL
 */
#ifndef LS_NATIVE_LOCAL_INTERNAL_H
#define LS_NATIVE_LOCAL_INTERNAL_H

#include "comm/native/local.h"
#include "comm/native/segment.h"
#include "comm/native/segment_map.h"

#include <stdatomic.h>

#define CHANNEL_BYTES 56
#define CHANNEL_MAGIC UINT32_C(0x324C534C) /* changes with anything that ranks of one host share */

typedef enum channel_type {
    CHANNEL_HELLO = 1,
    CHANNEL_WELCOME,
    CHANNEL_REFUSE,
    CHANNEL_SEGMENT,
    CHANNEL_GONE,
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

/* The page of a rank that the others read: SEGMENT_KEY_CONTROL. */
typedef struct local_page {
    _Alignas(64) atomic_uint sleepers; /* threads between prepare_sleep and end_sleep */
} local_page;

typedef struct local_peer local_peer;

struct segment_view {
    local_peer *owner;
    segment_map *map; /* NULL: this process could not map it */
    uint64_t key;
    uint32_t id;
    int holds;
    bool gone; /* its owner has destroyed it; unmapped when nothing holds it */
};

struct local_peer {
    int rank;
    int fd;
    bool is_thread;
    atomic_bool ended;        /* the channel; local_ring() reads it too */
    atomic_bool end_reported; /* local_poll_fds() reads it too */
    atomic_bool is_full;      /* it did not take all announcements; so is this */
    ls_status end_status;     /* how the channel ended */
    char end_text[160];
    local_page *page;
    segment_view *page_view;
    /* What this peer has announced, ascending by id: */
    segment_view **views;
    int n_views;
    int views_capacity;
    uint32_t last_id;
    /* What was sent to it of this rank's table: */
    uint32_t announced;  /* all segments up to this id */
    uint64_t gone_acked; /* removals, counted from the start */
};

/* One of this rank's segments. */
typedef struct own_segment {
    segment_map *map;
    uint64_t key;
    uint32_t id;
} own_segment;

struct local {
    int rank;
    int size;
    char job[JOB_ID_BYTES];
    uint32_t generation;
    const boot_record *records;
    const comm_host *host; /* whose check() ends waits; NULL: none */
    local_page *page;
    int *ranks; /* ascending, this one included */
    int count;
    local_peer **peers; /* count - 1, ascending */
    int *peer_of;       /* world rank to index in peers; -1: not local, or this rank */
    /* This rank's segments, ascending by id: */
    own_segment *own;
    int n_own;
    /* Of own and of removed: destroying a segment always finds a free entry. */
    int capacity;
    uint32_t last_id;
    uint32_t announced; /* all segments up to this id were sent to every peer */
    int hint;           /* index in own of the last hit of segment_find() */
    /* Ids of destroyed segments of which some peer does not know, oldest first: */
    uint32_t *removed;
    int n_removed;
    uint64_t first_removal; /* number of removals before removed[0] */
    bool pending;           /* some peer has not been sent everything */
};

/* NULL: not local, or this rank. */
local_peer *local_find_peer(const local *l, int rank);

/* Sends without blocking. *sent false: the channel is full. with_fd: a descriptor to pass, -1:
 * none. LS_EPEER: the channel is broken. */
LS_MUST_USE ls_status channel_send(int fd, const channel_message *m, int with_fd, bool *sent);

/* Receives without blocking. LS_OK with *got false: there is nothing. LS_EPEER at the end,
 * LS_EPROTO for an invalid message. */
LS_MUST_USE ls_status channel_receive(int fd, channel_message *m, int *with_fd, bool *got);

/* Sends every peer as many announcements and removals as its channel takes. */
void segment_announce_all(local *l);

/* The peer announces a segment (takes fd), or removes one. LS_EPROTO. */
LS_MUST_USE ls_status segment_on_announced(local_peer *p, const channel_message *m, int fd);
LS_MUST_USE ls_status segment_on_removed(local_peer *p, uint32_t id);

/* Frees a peer's views, this rank's table. */
void segment_free_views(local_peer *p);
void segment_free_own(local *l);

/* Reads one peer's channel; true when there may be more. */
bool local_read_peer(local_peer *p);

#endif
