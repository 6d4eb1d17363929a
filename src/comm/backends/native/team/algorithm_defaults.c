/* SPDX-License-Identifier: Apache-2.0 */
/*
 * algorithm_defaults.c - the default rows of the table of algorithms (algorithm_table.h): for ranks
 * of one host, and for messages between ranks. The first row that fits is used. They were measured
 * with bench/collectives; docs/algorithms.md gives the reasons.
 */
#include "comm/backends/native/team/algorithm_table.h"

#include "comm/backends/native/plan/schedule.h"
#include "comm/backends/native/team/team_internal.h"

#include <limits.h>

/* --- teams --- */

#define ROW(kind_, algorithm_, bytes_, ranks_, memory_)                                            \
    {                                                                                              \
        .kind = (kind_), .algorithm = (algorithm_), .max_bytes = (bytes_), .max_ranks = (ranks_),  \
        .memory = (memory_)                                                                        \
    }

// Small messages: each rank reads n - 1 contributions, so with more ranks staging wins at fewer
// bytes (at many more where ranks share cores).
#define INLINE_ROWS(kind_)                                                                         \
    ROW(kind_, "inline", TEAM_INLINE_BYTES, 8, TEAM_ANY_MEMORY),                                   \
        ROW(kind_, "inline", 2048, 16, TEAM_ANY_MEMORY),                                           \
        ROW(kind_, "inline", 256, INT_MAX, TEAM_ANY_MEMORY)

// With gates one member adds or copies small contributions for all (team_gate.c); where the ranks
// are in several sockets or core complexes, more copies in the own one are faster than fewer
// between them.
#define GATE_ROWS(kind_)                                                                           \
    ROW(kind_, "inline", TEAM_COMBINED_BYTES, INT_MAX, TEAM_HAS_GATES),                            \
        ROW(kind_, "levels", SIZE_MAX, INT_MAX, TEAM_HAS_LEVELS)

// `staged_`: contributions up to which copying twice through the caches beats the kernel's copy.
#define COPY_ROWS(kind_, staged_)                                                                  \
    ROW(kind_, "staged", staged_, INT_MAX, TEAM_ANY_MEMORY),                                       \
        ROW(kind_, "direct", SIZE_MAX, INT_MAX, TEAM_READABLE_MEMORY),                             \
        ROW(kind_, "staged", SIZE_MAX, INT_MAX, TEAM_ANY_MEMORY)

// Few ranks copy through staging buffers also what they could read in place: memory that another
// core has read is slow to write again, which the program then does (bench/collectives counts it).
#define FEW_RANKS_ROW(kind_) ROW(kind_, "staged", (size_t)4 << 20, 4, TEAM_ANY_MEMORY)

// Two ranks, of which one gives what the other takes, copy at the same time.
#define PAIR_ROW(kind_) ROW(kind_, "staged", (size_t)16 << 20, 2, TEAM_ANY_MEMORY)

#define ROWS(kind_, staged_)                                                                       \
    ROW(kind_, "shared", SIZE_MAX, INT_MAX, TEAM_SHARED_MEMORY), COPY_ROWS(kind_, staged_)

const team_rule team_defaults[] = {
    ROW(COLL_BARRIER, "inline", SIZE_MAX, INT_MAX, TEAM_ANY_MEMORY),
    GATE_ROWS(COLL_ALL_REDUCE),
    INLINE_ROWS(COLL_ALL_REDUCE),
    ROW(COLL_ALL_REDUCE, "shared", SIZE_MAX, INT_MAX, TEAM_SHARED_MEMORY),
    ROW(COLL_ALL_REDUCE, "levels", SIZE_MAX, INT_MAX, TEAM_HAS_GATES),
    // In place twice as fast as "direct"; else, from 16 MiB on, up to 1.3 times as slow. Ranks do
    // not know of each other which it is; most programs reduce in place.
    ROW(COLL_ALL_REDUCE, "staged", SIZE_MAX, INT_MAX, TEAM_ANY_MEMORY),
    GATE_ROWS(COLL_REDUCE),
    INLINE_ROWS(COLL_REDUCE),
    ROW(COLL_REDUCE, "shared", SIZE_MAX, INT_MAX, TEAM_SHARED_MEMORY),
    ROW(COLL_REDUCE, "levels", SIZE_MAX, INT_MAX, TEAM_HAS_GATES),
    ROW(COLL_REDUCE, "staged", SIZE_MAX, INT_MAX, TEAM_ANY_MEMORY),
    GATE_ROWS(COLL_BROADCAST),
    INLINE_ROWS(COLL_BROADCAST),
    FEW_RANKS_ROW(COLL_BROADCAST),
    ROW(COLL_BROADCAST, "shared", SIZE_MAX, INT_MAX, TEAM_SHARED_MEMORY),
    ROW(COLL_BROADCAST, "levels", SIZE_MAX, INT_MAX, TEAM_HAS_GATES),
    PAIR_ROW(COLL_BROADCAST),
    COPY_ROWS(COLL_BROADCAST, (size_t)2 << 20),
    INLINE_ROWS(COLL_ALL_GATHER),
    FEW_RANKS_ROW(COLL_ALL_GATHER),
    ROW(COLL_ALL_GATHER, "shared", SIZE_MAX, INT_MAX, TEAM_SHARED_MEMORY),
    PAIR_ROW(COLL_ALL_GATHER),
    COPY_ROWS(COLL_ALL_GATHER, (size_t)1 << 20),
    INLINE_ROWS(COLL_GATHER),
    ROWS(COLL_GATHER, (size_t)1 << 20),
    INLINE_ROWS(COLL_SCATTER),
    ROWS(COLL_SCATTER, (size_t)1 << 20),
    INLINE_ROWS(COLL_REDUCE_SCATTER),
    FEW_RANKS_ROW(COLL_REDUCE_SCATTER),
    ROWS(COLL_REDUCE_SCATTER, (size_t)4 << 20),
    INLINE_ROWS(COLL_ALL_TO_ALL),
    FEW_RANKS_ROW(COLL_ALL_TO_ALL),
    ROWS(COLL_ALL_TO_ALL, (size_t)512 << 10),
};

const int n_team_defaults = (int)LS_COUNT_OF(team_defaults);

/* --- messages --- */

#define WHOLE_BYTES ((size_t)8192)
#define PAIR_BYTES  65536 /* sent without READY */
#define FEW_RANKS   8     /* an all-to-all exchange is one round of at most this many messages */
/* From here on a rank exchanges messages with O(log n) others where it can. */
#define MANY_RANKS 17
/* The plans between hosts have fewer rounds and more peers. */
#define MANY_PEERS 32
/* Segments in a chunk of "halving", whose largest message is half a chunk. */
#define HALVING_PARTS 8

// Sizes below which one exchange of whole vectors beats two of slices: one message each way instead
// of two, and between two ranks as many bytes. Many ranks exchange with few others: 64 ranks of 8
// bytes are 6 messages each instead of 63.
const plan_rule plan_defaults[] = {
    {COLL_ALL_REDUCE, "whole", plan_all_reduce_whole, PAIR_BYTES, 2, .whole = false},
    {COLL_ALL_REDUCE, "whole", plan_all_reduce_whole, WHOLE_BYTES, FEW_RANKS, .whole = true},
    {COLL_ALL_REDUCE, "whole", plan_all_reduce_whole, 512, MANY_RANKS - 1, .whole = true},
    {COLL_ALL_REDUCE, "doubling", plan_all_reduce_doubling, 2048, INT_MAX, .power = true,
     .whole = true},
    {COLL_ALL_REDUCE, "tree", plan_all_reduce_tree, 2048, INT_MAX, MANY_RANKS, .whole = true},
    {COLL_ALL_REDUCE, "hosts", plan_all_reduce_hosts, SIZE_MAX, INT_MAX, .sliced = true,
     .hosts = true, .max_peers = MANY_PEERS},
    {COLL_ALL_REDUCE, "tree", plan_all_reduce_tree, 2 * WHOLE_BYTES, INT_MAX, MANY_RANKS,
     .whole = true},
    {COLL_ALL_REDUCE, "halving", plan_all_reduce_halving, SIZE_MAX, INT_MAX, MANY_RANKS,
     .power = true, .segments = HALVING_PARTS},
    {COLL_ALL_REDUCE, "halving", plan_all_reduce_halving, SIZE_MAX, INT_MAX, MANY_PEERS + 1,
     .segments = HALVING_PARTS},
    {COLL_ALL_REDUCE, "slices", plan_all_reduce_slices, SIZE_MAX, INT_MAX, .sliced = true},
    {COLL_REDUCE, "direct", plan_reduce_direct, SIZE_MAX, 2, .whole = false},
    {COLL_REDUCE, "direct", plan_reduce_direct, WHOLE_BYTES, MANY_RANKS - 1, .whole = true},
    {COLL_REDUCE, "tree", plan_reduce_tree, 2 * WHOLE_BYTES, INT_MAX, MANY_RANKS, .whole = true},
    {COLL_REDUCE, "halving", plan_reduce_halving, SIZE_MAX, INT_MAX, MANY_RANKS,
     .segments = HALVING_PARTS},
    {COLL_REDUCE, "slices", plan_reduce_slices, SIZE_MAX, INT_MAX, .sliced = true},
    {COLL_BROADCAST, "hosts", plan_broadcast_hosts, SIZE_MAX, INT_MAX, .hosts = true},
    {COLL_BROADCAST, "tree", plan_broadcast_tree, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_ALL_GATHER, "bruck", plan_all_gather_bruck, 1024, 4096, MANY_RANKS, .whole = true},
    {COLL_ALL_GATHER, "hosts", plan_all_gather_hosts, SIZE_MAX, INT_MAX, .hosts = true},
    {COLL_ALL_GATHER, "direct", plan_all_gather_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_GATHER, "direct", plan_gather_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_SCATTER, "direct", plan_scatter_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_REDUCE_SCATTER, "hosts", plan_reduce_scatter_hosts, SIZE_MAX, INT_MAX, .hosts = true},
    {COLL_REDUCE_SCATTER, "direct", plan_reduce_scatter_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_ALL_TO_ALL, "direct", plan_all_to_all_direct, SIZE_MAX, INT_MAX, .whole = false},
    {COLL_BARRIER, "dissemination", plan_barrier_dissemination, SIZE_MAX, INT_MAX, .whole = true},
};

const int n_plan_defaults = (int)LS_COUNT_OF(plan_defaults);
