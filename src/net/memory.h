/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - memory that processes share through a descriptor. It has no name in any file system, so nothing can be left behind.
 */
#ifndef LS_NET_MEMORY_H
#define LS_NET_MEMORY_H

#include "base/status.h"

typedef struct net_memory {
    int fd; /* -1: none */
    void *base;
    size_t bytes; /* as asked for */
} net_memory;

/*
 * A zeroed memfd segment, mapped for reading and writing. All its pages exist already (LS_ENOMEM instead of a later SIGBUS), and
 * it can never change its size. `label` shows in /proc/PID/maps.
 */
LS_MUST_USE ls_status net_memory_create(const char *label, size_t bytes, net_memory *out);

/* Maps a segment that another process made. Takes fd, also on failure. LS_EPROTO when it is shorter than `bytes` or may
 * still shrink. `peer` is the name in error texts. */
LS_MUST_USE ls_status net_memory_map(int fd, size_t bytes, const char *peer, net_memory *out);

/* The mapping stays, the descriptor goes: for when everybody has it. */
void net_memory_close_fd(net_memory *m);

/* Unmaps and closes; a zeroed or {-1} struct is allowed. */
void net_memory_free(net_memory *m);

#endif
