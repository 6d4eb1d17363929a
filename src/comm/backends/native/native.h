/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h - the native backend's state: one a process, with a peer for every other rank, groups,
 * and works.
 *
 *   join.h     finds the ranks of this host (local.h, segment.h), connects the others (mesh.h)
 *   match.h    messages and their receives, over links (link.h)
 *   exec.h     collectives, by plans (schedule.h)
 *   direct.h   send and receive
 *   team.h     collectives of groups whose ranks are all on this host
 *   errors.h   failures between two ranks
 *   sleep.h    threads that wait
 *
 * Everything but sleep.h runs under the engine's lock. The engine receives ended works and broken
 * groups only from native_complete_works(), when no function on the stack walks a list that it
 * could change.
 *
 * comm/backends/native/: the native backend's state, which engine/ and p2p/ change; below it are
 * link/, memory/, plan/, team/ and reduce/.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_NATIVE_H
#define LS_COMM_BACKENDS_NATIVE_NATIVE_H

#include "comm/backends/native/link/mesh.h"
#include "comm/backends/native/message_pool.h"
#include "comm/backends/native/peer.h"
#include "comm/backends/native/plan/schedule.h"
#include "comm/backends/native/team/team.h"

#define NATIVE_LANES   4  /* chunks of one operation under way */
#define NATIVE_HISTORY 16 /* finished operations of a group whose stamps are saved */

typedef struct native_work native_work;

/* One chunk under way. */
typedef struct lane {
    list_node node; /* in state->runnable while it can go on */
    native_work *work;
    plan steps;
    uint8_t *scratch;
    size_t scratch_bytes;
    size_t chunk;
    int next_round;
    int pending; /* messages of the round */
    bool is_busy;
    bool is_queued;
} lane;

/* One operation under way. */
struct native_work {
    list_node node;
    native_group *group;
    backend_work *work;
    uint8_t stamp[STAMP_BYTES];
    bool is_direct;
    bool is_running; /* collectives: counted in the group's window */
    bool has_ended;
    transfer direct;
    plan_choice choice;
    size_t next_chunk;
    size_t chunks_left;
    lane lanes[NATIVE_LANES];
};

struct backend_group {
    list_node node;
    native_state *state;
    const group_info *info;
    native_peer **peers; /* by group rank */
    team *team;          /* NULL: not all members are local, or the transport is tcp */
    plan_layout layout;
    list_node works;    /* collectives, in the order of their start */
    list_node directs;  /* sends and receives, in the order of their start */
    list_node receives; /* direct transfers without a message, in the order they were posted */
    int n_running;
    uint64_t next_sequence; /* of the collective after the last one that has ended */
    int next_history;
    uint64_t history[NATIVE_HISTORY]; /* sequence numbers */
    uint8_t history_stamps[NATIVE_HISTORY][STAMP_BYTES];
    bool is_broken;
    bool has_cause; /* not reported to the engine yet */
    job_cause cause;
};

struct backend_state {
    const comm_host *host;
    int rank;
    int size;
    bool is_tcp_only;
    int ranks_per_core;
    topology_place place; /* of this rank */
    size_t segment_bytes;
    algorithm_table *algorithms;
    local *local;    /* NULL: tcp only */
    mesh *mesh;      /* NULL: all ranks are on this host */
    int *host_names; /* of each rank: the lowest rank of its host; NULL: one host, or tcp only */
    native_peer *peers;
    list_node groups;
    uint32_t *closed; /* ids of closed groups, whose late messages are dropped */
    size_t n_closed;
    size_t closed_capacity;
    list_node runnable;   /* lanes */
    list_node ended;      /* works */
    list_node unexpected; /* direct messages of all peers, in the order they came */
    list_node free_collectives;
    list_node free_directs;
    message_pool pool;
    bool has_unwritten; /* some transfer must_write */
    unsigned idle_calls;
    int64_t yields_from_ns; /* before, ranks that share cores do not yield */
    int64_t yield_pause_ns; /* the last one */
    sleepers *sleepers;
};

/* Everything but the connections. */
LS_MUST_USE ls_status native_create(const comm_boot *boot, const comm_host *host,
                                    native_state **out);
/* Closes all links at once; there are no groups any more. */
void native_destroy(native_state *s);

/* Breaks the group, once; native_complete_works() reports it to the engine. rank: the world rank
 * that caused it, -1: unknown. */
void native_break(native_group *g, cause_kind kind, int rank, const char *format, ...)
    LS_PRINTF(4, 5);
/* This rank has no memory for a message. */
void native_break_no_memory(native_group *g);
/* "rank 3 (node7)" of a peer, into buf, which it returns. */
const char *native_peer_text(const native_peer *p, char *buf, size_t n);
/* For plans: NULL where it does not help. */
const plan_layout *native_layout(const native_group *g);
/* open_group and close_group of native_backend_ops. */
LS_MUST_USE ls_status native_open_group(native_state *s, const group_info *info,
                                        native_group **out);
void native_close_group(native_group *g);
native_group *native_find_group(native_state *s, uint32_t id);
bool native_is_closed(const native_state *s, uint32_t id);
/* Makes the link to a rank of this host, unless there is one: pairs that never exchange a message
 * need none. For any other rank of the group. LS_ENOMEM. */
LS_MUST_USE ls_status native_link(native_peer *p);
/* To be called when a peer's link may have ended. */
void native_on_link_end(native_peer *p);
/* A work for the operation, from the free list if there is one, at the end of `list`. NULL without
 * memory: the operation has failed. */
native_work *native_new_work(native_group *g, backend_work *work, list_node *free_works,
                             list_node *list);
/* The work has ended well; native_complete_works() does the rest. */
void native_end_work(native_work *w);
/* Hands ended works and broken groups to the engine. */
void native_complete_works(native_state *s);

#endif
