/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_internal.h - what local.c, local_join.c and segment.c share: the peers of this host and their channels.
 *
 * Every message is one packet of CHANNEL_BYTES, little-endian:
 *
 *   0  u32 magic    4 u32 type    8 u32 a    12 u32 b    16 u64 c    24 u64 d    32 u64 e    40 job[16]
 *
 *   HELLO    a from  b to  c instance of from  d of to  e generation     the higher rank's first; `to` is what proves that
 *   WELCOME  as HELLO                                                     it read this job's boot records
 *   REFUSE   as HELLO                                                     another user: not local after all
 *   SEGMENT  a id    c key  d bytes  e token for threads of its process, 0 for others; a descriptor comes along
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

/* A rank's page that the others look at: SEGMENT_KEY_CONTROL. */
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
    bool gone; /* its owner has destroyed it; unmapped when nobody holds it */
};

struct local_peer {
    int rank;
    int fd;
    bool is_thread;
    atomic_bool ended;        /* the channel; also read by local_ring */
    atomic_bool end_reported; /* also read by local_poll_fds */
    atomic_bool is_full;      /* it did not take all announcements; also read by local_poll_fds */
    ls_status end_status;     /* how the channel ended */
    char end_text[160];
    local_page *page;
    segment_view *page_view;
    /* what this peer has announced, ascending by id */
    segment_view **views;
    int n_views;
    int views_capacity;
    uint32_t last_id;
    /* what it has been told of this rank's table */
    uint32_t announced;  /* all segments up to this id */
    uint64_t gone_acked; /* the first so many deaths */
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
    const comm_host *host; /* whose check() ends waits; NULL: nobody's */
    local_page *page;
    int *ranks; /* ascending, this one included */
    int count;
    local_peer **peers; /* count - 1, ascending */
    int *peer_of;       /* world rank to index in peers; -1: not local, or this rank */
    /* this rank's segments, ascending by id */
    own_segment *own;
    int n_own;
    int capacity; /* of own and of dead: there is always room for one more death than there are segments alive */
    uint32_t last_id;
    uint32_t announced; /* every peer has been sent all segments up to this id */
    int hint;           /* index in own of what segment_find() found last */
    /* ids of destroyed segments that some peer has not been told of, oldest first */
    uint32_t *removed;
    int n_removed;
    uint64_t first_removal; /* how many deaths came before dead[0] */
    bool pending;           /* some peer has not been told everything */
};

/* NULL: not local, or this rank. */
local_peer *local_find_peer(const local *l, int rank);

/* Sends without blocking. *sent = false: no room now. LS_EPEER: the channel is broken. fd -1: none goes along. */
LS_MUST_USE ls_status channel_send(int fd, const channel_message *m, int with_fd, bool *sent);

/* Receives without blocking. LS_OK with *got = false: nothing there. LS_EPEER at the end, LS_EPROTO for what is no message. */
LS_MUST_USE ls_status channel_receive(int fd, channel_message *m, int *with_fd, bool *got);

/* Tells every peer what its channel takes of births and deaths. */
void segment_announce_all(local *l);

/* The peer's announcements. fd is taken. LS_EPROTO. */
LS_MUST_USE ls_status segment_on_announced(local_peer *p, const channel_message *m, int fd);
LS_MUST_USE ls_status segment_on_removed(local_peer *p, uint32_t id);

/* Frees a peer's views, this rank's table. */
void segment_free_views(local_peer *p);
void segment_free_own(local *l);

/* Reads one peer's channel; true when there may be more. */
bool local_read_peer(local_peer *p);

#endif
