/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_ranks.h - ranks of the native backend as threads of one process, each driven as the
 * engine drives it, without store or hub: works end in flags, and the first cause breaks the group.
 */
#ifndef TESTS_COMM_NATIVE_MESH_RANKS_H
#define TESTS_COMM_NATIVE_MESH_RANKS_H

#include "comm/backends/backend.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#define MESH_RANKS_MAX  64
#define MESH_TIMEOUT_MS 60000

typedef struct mesh_rank mesh_rank;
typedef struct mesh_group mesh_group;

/* One operation of a test. Zero-initialise; may be used again when done. */
typedef struct mesh_work {
    backend_work b;
    mesh_group *group;
    bool is_done;
    ls_status status;
} mesh_work;

struct mesh_group {
    mesh_rank *rank;
    group_info info;
    int members[MESH_RANKS_MAX];
    backend_group *group;
    uint64_t sequence;
    bool is_broken;
    job_cause cause;
    ls_status status;
};

struct mesh_rank {
    int rank;
    int size;
    const struct mesh_job *job;
    comm_boot boot;
    comm_host host;
    backend_state *state;
    mesh_group world;
    mesh_group *groups[4]; /* that host->broken may name */
    int n_groups;
    int failed;
};

typedef int (*mesh_fn)(mesh_rank *r, void *arg);

typedef struct mesh_job {
    int size;
    const char *transport; /* "tcp", "auto" */
    size_t segment_bytes;
    mesh_fn fn;
    void *arg;
    const int *hosts;    /* one a rank: equal ones share a host; NULL: all do. Not for "tcp" */
    bool no_world;       /* fn opens the backend itself */
    const net_key *keys; /* one a rank; NULL: all have the same */
    const net_security *modes; /* one a rank; NULL: NET_AUTH */
    int connections;           /* per pair; 0: LS_TEST_CONNECTIONS, or one */
    const char *algorithms;    /* rows of LOCKSTEP_ALGORITHMS; NULL: none */
} mesh_job;

/* Runs fn on every rank, with the world group open; gives the number of ranks that failed. */
int mesh_run(const mesh_job *job);

LS_MUST_USE ls_status mesh_open_group(mesh_rank *r, mesh_group *g, uint32_t id, const int *members,
                                      int n);
void mesh_close_group(mesh_group *g);

/* Completes the stamp and starts. */
void mesh_start(mesh_group *g, mesh_work *w, const coll *op);
/* Drives the rank until the work is done; its status, LS_ETIMEOUT after MESH_TIMEOUT_MS. */
ls_status mesh_wait(mesh_work *w);
ls_status mesh_do(mesh_group *g, const coll *op);
/* One progress() and, when nothing moved, one wait(). */
void mesh_drive(mesh_rank *r);

/* In a mesh_fn: says which check failed and ends this rank. */
#define MESH_CHECK(expr)                                                                           \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            fprintf(stderr, "%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, r->rank, #expr,       \
                    ls_last_error());                                                              \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Carries the rank's backend on until *what has reached `value`, or the time is over. */
void mesh_drive_until(mesh_rank *r, const atomic_int *what, int value);

#endif
