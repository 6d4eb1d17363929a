/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.h - memory that all ranks of this host can map: memfds, passed by descriptor, so that
 * nothing is left behind.
 *
 * A rank creates segments alone and enters each in the table of its page (local_internal.h), which
 * the others read. A peer maps a segment when it first needs it: it asks the owner, whose
 * local_receive() sends the descriptor. References (id and offset) travel through shared memory.
 * Threads of one process all use the owner's own mapping (one address for one byte) and need not
 * ask.
 *
 * Lifetime   A destroyed segment is unmapped by its owner at once, and by each peer at its next
 *            local_receive(), or when it holds no view any more; the owner waits for none of them.
 *            The pages live as long as any process maps them, so a peer that is copying stays safe.
 * Threads    Under the engine's lock.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_MEMORY_SEGMENT_H
#define LS_COMM_BACKENDS_NATIVE_MEMORY_SEGMENT_H

#include "comm/backends/native/memory/local.h"

#define SEGMENTS_MAX                                                                               \
    256 /* of one rank at a time; each needs a descriptor until all peers have it */

/* What a segment is for, in the upper byte of its key: peers find it by key, without an id. */
#define SEGMENT_KEY_NONE UINT64_C(0)
#define SEGMENT_KEY_TEAM (UINT64_C(1) << 56) /* | group id: the parts of all members (team.h) */

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

/* Whether other ranks are on this host, and the table is not full. */
bool segment_can_create(local *l);

/* `memory` as segment_create() returned it; false: it is not a segment of this rank. */
bool segment_destroy(local *l, const void *memory);

/* Every peer that needs the segment has mapped it: closes its descriptor. */
void segment_close_fd(local *l, const void *memory);

/* One more user of this rank's segment: the mapping outlives `l` until segment_map_release(). NULL:
 * it is not a segment of this rank. */
struct segment_map *segment_keep(const local *l, const void *memory);

/* Whether [memory, memory + bytes) lies in one of this rank's segments. */
bool segment_find(local *l, const void *memory, size_t bytes, segment_ref *ref);

/*
 * The address of a peer's (or this rank's own) reference. *view must be released; it keeps the
 * mapping alive. LS_OK with *memory NULL: the peer has been asked for the descriptor; to be called
 * again after local_receive(). LS_EPEER: the peer has freed it since, or exited. LS_EPROTO: there
 * never was such a segment, or the range exceeds it. Both name the peer.
 */
LS_MUST_USE ls_status segment_resolve(local *l, int peer, segment_ref ref, size_t bytes,
                                      segment_view **view, void **memory);

/* The peer's newest segment with this key, at least `bytes` of it; waits until there is one.
 * LS_ETIMEOUT; LS_EPEER: the peer has ended. */
LS_MUST_USE ls_status segment_wait(local *l, int peer, uint64_t key, size_t bytes,
                                   int64_t deadline_ms, segment_view **view, void **memory);

void segment_release(segment_view *view); /* NULL is allowed */

#endif
