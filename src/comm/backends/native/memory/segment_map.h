/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_map.h - one mapping of one memfd, counted: private to local.c and segment.c.
 *
 * Ranks that are threads of one process must all use one mapping of the same memory (race detectors
 * compare addresses, and so does the TLB). So all mappings are in one list for the whole process:
 * those that it owns under a token that the owner shows to the other threads, all by the number of
 * their file. That list is the only global state of the native backend.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_MEMORY_SEGMENT_MAP_H
#define LS_COMM_BACKENDS_NATIVE_MEMORY_SEGMENT_MAP_H

#include "base/map.h"
#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct segment_map {
    void *base;
    size_t bytes;  /* as asked for */
    size_t mapped; /* whole pages */
    bool is_huge;
    int fd;         /* of the owner, until every peer has it; -1 */
    uint64_t token; /* 0: mapped from another process's descriptor */
    dev_t device;   /* of the memfd */
    ino_t file;
    int users; /* under the list's lock */
    list_node node;
} segment_map;

/* A unique number within this process, never 0. */
uint64_t segment_token(void);

/* New zeroed memory, listed under `token`. is_bulk: all pages are allocated now, in huge pages
 * where the system has them. Otherwise each page is allocated when it is first touched. */
LS_MUST_USE ls_status segment_map_create(uint64_t token, size_t bytes, bool is_bulk,
                                         segment_map **out);

/* The mapping that another thread of this process created, one user more; NULL when it is gone. */
segment_map *segment_map_share(uint64_t token);

/* Maps another process's memory, or gives the mapping that this process has already, one user more.
 * Takes fd, also on failure. */
LS_MUST_USE ls_status segment_map_attach(int fd, size_t bytes, bool is_bulk, int peer,
                                         segment_map **out);

void segment_map_close_fd(segment_map *m);

/* One user fewer; the last one unmaps. NULL is allowed. */
void segment_map_release(segment_map *m);

#endif
