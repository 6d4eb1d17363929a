/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_team_rank.h - one rank's team without an engine: a host table that records its calls, and
 * a waiting loop.
 */
#ifndef TESTS_COMM_NATIVE_TEAM_RANK_H
#define TESTS_COMM_NATIVE_TEAM_RANK_H

#include "comm/backends/backend.h"
#include "comm/backends/native/memory/local.h"
#include "comm/backends/native/memory/segment.h"
#include "comm/backends/native/team/team.h"
#include "comm/native_ranks.h"

#define TEAM_RANK_WORKS 16

/* Zero-initialise; must not move. */
typedef struct team_rank {
    const comm_boot *boot;
    local *l;
    team *t;
    const algorithm_table *table; /* set before team_rank_open(); NULL: the defaults */
    bool shares_cores;            /* the same */
    topology_place place;         /* the same */
    bool fails_at_end; /* waiting ends when a peer has ended; otherwise the peer had finished */
    comm_host host;
    group_info info;
    int members[64];
    uint64_t sequence;
    backend_work works[TEAM_RANK_WORKS];
    bool is_done[TEAM_RANK_WORKS];
    ls_status status[TEAM_RANK_WORKS];
    char text[1024]; /* of the last failure */
    job_cause cause; /* kind is CAUSE_NONE until the team calls broken */
    bool saw_end;    /* of a peer */
} team_rank;

/* Joins and opens the team of all ranks; piece_bytes 0: the default. */
LS_MUST_USE ls_status team_rank_open(team_rank *r, const comm_boot *boot, size_t piece_bytes);
void team_rank_close(team_rank *r);

/* An operation with its stamp filled in from the other fields. */
coll team_rank_op(coll_kind kind, ls_dtype type, ls_reduce_op redop, int root, const void *src,
                  void *dst, size_t count);

/* Starts the operation as work `index`. */
void team_rank_start(team_rank *r, int index, const coll *op);

/* Waits for work `index` as an engine would: spins, yields, sleeps. LS_ETIMEOUT after 60 s, and by
 * fails_at_end. */
ls_status team_rank_wait(team_rank *r, int index);

/* Both, with work 0. */
ls_status team_rank_run(team_rank *r, const coll *op);

#endif
