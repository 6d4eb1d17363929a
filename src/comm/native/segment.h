/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.h - memory that all ranks of this host can map: memfds, passed by descriptor, so that
 * nothing is left behind.
 *
 * A rank creates segments alone; each is announced to every local peer over its channel, and the
 * peers map it when they read that. Sending never blocks: what a channel does not take waits in the
 * table of segments, which is bounded. References (id and offset) travel through shared memory; a
 * rank that receives one before the announcement reads the channel first. Threads of one process
 * all use the owner's own mapping (one address for one byte).
 *
 * Lifetime   A destroyed segment is unmapped by its owner at once, and by each peer when it has
 *            received the removal and holds no view. The pages live as long as any process maps
 *            them, so a peer that is copying stays safe.
 * Threads    Under the engine's lock.
 */
#ifndef LS_NATIVE_SEGMENT_H
#define LS_NATIVE_SEGMENT_H

#include "comm/native/local.h"

#define SEGMENTS_MAX 4096 /* of one rank, with those whose removal some peer has not received */

/* What a segment is for, in the upper byte of its key: peers find it by key, without an id. */
#define SEGMENT_KEY_NONE    UINT64_C(0)
#define SEGMENT_KEY_TEAM    (UINT64_C(1) << 56) /* | group id: team.h's part of one rank */
#define SEGMENT_KEY_LINK    (UINT64_C(2) << 56) /* | the reader's rank, which alone maps it */
#define SEGMENT_KEY_CONTROL (UINT64_C(3) << 56) /* local.h's own page */
#define SEGMENT_KINDS       (UINT64_C(255) << 56)

/* A location in one of a rank's segments, meaningful together with that rank. id 0: none. */
typedef struct segment_ref {
    uint64_t offset;
    uint32_t id;
} segment_ref;

/* One peer's segment, mapped here. */
typedef struct segment_view segment_view;

/*
 * Zeroed memory, aligned to 4096. key: see above. Without a key it is for data: all pages are
 * allocated at once, from 1 MiB on aligned to 2 MiB and in huge pages where the system has them.
 * With a key, pages are allocated as they are touched. LS_ENOMEM also when the table is full.
 */
LS_MUST_USE ls_status segment_create(local *l, uint64_t key, size_t bytes, void **memory);

/* `memory` as segment_create() returned it; NULL is allowed, anything else is logged and
 * ignored. */
void segment_destroy(local *l, void *memory);

/* One more user of this rank's segment: the mapping outlives `l` until segment_map_release(). NULL:
 * it is not a segment of this rank. */
struct segment_map *segment_keep(const local *l, const void *memory);

/* Whether [memory, memory + bytes) lies in one of this rank's segments that was sent to every local
 * peer. */
bool segment_find(local *l, const void *memory, size_t bytes, segment_ref *ref);

/*
 * The address of a peer's (or this rank's own) reference. *view must be released; it keeps the
 * mapping alive. LS_EPEER: the peer has freed it since, or exited. LS_EPROTO: there never was such
 * a segment, or the range exceeds it. Both name the peer.
 */
LS_MUST_USE ls_status segment_resolve(local *l, int peer, segment_ref ref, size_t bytes,
                                      segment_view **view, void **memory);

/* The peer's newest segment with this key and at least `bytes`, waiting until it is announced.
 * LS_ETIMEOUT; LS_EPEER: the peer's channel has ended. */
LS_MUST_USE ls_status segment_wait(local *l, int peer, uint64_t key, size_t bytes,
                                   int64_t deadline_ms, segment_view **view, void **memory);

void segment_release(segment_view *view); /* NULL is allowed */

#endif
