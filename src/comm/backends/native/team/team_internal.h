/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_internal.h - what the team's files share: the shared memory, the team, the current
 * operation.
 *
 * A member's part of the shared memory, written by its owner alone (except given_up, and what
 * team_shared.c writes of a slice), read by all:
 *
 *   team_part     counters, slots: operation number n stands in slot n % 16; gates of the groups of
 *                 which the owner is the lowest member, written by all their members
 *   team.staging  behind the parts of all: buffers in 0, in 1, out 0, out 1, each of one piece
 *
 * A rank that gives a contribution of one piece and takes nothing from others (a root that
 * broadcasts) does not wait in an operation, which matters most where the others have to wait for a
 * core. It may be TEAM_AHEAD operations ahead: a member publishes operation n only after all have
 * published n - 1 - TEAM_AHEAD, and compares the stamps of n - TEAM_AHEAD at the latest when it has
 * published n. So the others read its slots of n - 1 - 2 TEAM_AHEAD and later while it writes that
 * of n. Every other operation ends after all have published it; then all staging buffers are free
 * as soon as all members have published the next one.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_TEAM_TEAM_INTERNAL_H
#define LS_COMM_BACKENDS_NATIVE_TEAM_TEAM_INTERNAL_H

#include "base/map.h"
#include "comm/backends/native/memory/copy.h"
#include "comm/backends/native/memory/segment.h"
#include "comm/backends/native/team/levels.h"
#include "comm/backends/native/team/team.h"
#include "comm/backends/reduce.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TEAM_SLOTS          16
#define TEAM_AHEAD          (TEAM_SLOTS / 2 - 1) /* operations */
#define TEAM_INLINE_BYTES   4096                 /* contribution that fits into a slot */
#define TEAM_SMALL_BYTES    32 /* contribution that fits into the slot's first line */
#define TEAM_PART_BYTES     114688
#define TEAM_COMBINED_BYTES 4096 /* contribution that one member adds or copies for all */
#define TEAM_SUMS_BYTES     (2 * (size_t)TEAM_COMBINED_BYTES) /* of a group's partial results */
#define TEAM_BUFFERS        2 /* `in` buffers, and as many `out`; more are not faster */
#define TEAM_PIECE_DEFAULT  ((size_t)256 << 10)
#define TEAM_PAGE_BYTES     ((size_t)4096)
#define TEAM_CHUNK_BYTES    ((size_t)256 << 10) /* moved by one call of team_progress() */
#define TEAM_CHUNK_BITS     24
#define TEAM_BLOCK_BYTES    ((size_t)8192) /* reduced, and copied from the first-level cache */
#define TEAM_WAYS           5 /* contributions below 64 KiB, 256 KiB, 1 MiB, 4 MiB, and others */

/* The compared fields of an operation's stamp, and its contribution if that is small: with `ready`
 * one cache line. */
typedef struct team_head {
    uint64_t sequence;
    uint64_t count;
    uint64_t signature; /* root, kind, dtype, redop, form: from the low end, 32 + 4 x 8 bits */
    unsigned char small[TEAM_SMALL_BYTES];
} team_head;

/* What a member publishes of an operation. A small operation touches the first line only. */
typedef struct team_slot {
    _Alignas(64) _Atomic uint64_t ready; /* number of the operation that the rest describes */
    team_head head;
    segment_ref src; /* id 0: not in shared memory */
    segment_ref dst;
    uint64_t src_at; /* address in the owner's process, 0: others may not read it */
    uint64_t dst_at;
    char site[STAMP_SITE_BYTES];
    _Alignas(64) unsigned char data[TEAM_INLINE_BYTES]; /* a longer contribution */
} team_slot;

/* What the last arrival of a group writes of an operation before it arrives further out. */
typedef struct gate_sum {
    uint64_t sequence;
    uint64_t count;
    uint64_t signature;
    uint32_t memory; /* team_memory of all members of the group */
    bool differs;    /* the members' stamps are not all the same */
} gate_sum;

/* What a member reads when a gate has opened. */
typedef struct gate_result {
    _Atomic uint32_t opened; /* number of the last gate that has opened; a futex */
    uint32_t memory;         /* of all members */
    int32_t last;            /* member that arrived last */
    bool differs;
    _Alignas(16) unsigned char small[TEAM_SMALL_BYTES];
} gate_result;

/* The gate of a group: team_gate.c. In the part of the group's lowest member. */
typedef struct team_gate {
    _Alignas(128) _Atomic uint64_t arrivals; /* of all members, at all gates */
    _Atomic uint32_t n_waiters;              /* on the futex */
    _Alignas(128) gate_sum sum;
    _Atomic int32_t last; /* member that arrived last, and waits further out */
    _Alignas(128) gate_result result;
    _Alignas(128) unsigned char sums[TEAM_SUMS_BYTES]; /* one for each subtree of the group */
    unsigned char data[TEAM_COMBINED_BYTES];           /* a longer result */
} team_gate;

/*
 * Counters run from the opening of the group, in pieces (all operations pass the same number on
 * all members) or in operations. Other members wait for them with seq_cst loads; the owner stores
 * with seq_cst before it rings (local.h).
 */
typedef struct team_part {
    _Alignas(128) _Atomic uint64_t staged; /* pieces that stand in `in` */
    /* Pieces for which this member has used the `in` of all members; its `out` is ready. */
    _Atomic uint64_t reduced;
    _Atomic uint64_t taken; /* pieces for which this member has used the `out` of all members */
    /* Number of the last operation after which the member touches no other member's memory; where
     * members claim chunks (team_claims()): of which the member's slice is reduced. */
    _Atomic uint64_t done;
    _Atomic uint64_t is_open;  /* 1: it has mapped the parts of all members */
    _Atomic uint64_t can_read; /* READS_* */
    /* Written before is_open: */
    uint64_t shares_cores; /* 1: team_options says so */
    topology_place place;  /* team_options has it */
    uint64_t probe_at;     /* an address in the owner's process... */
    uint64_t probe_value;  /* ...and the value that stands there */
    int64_t pid;           /* of the owner, as its own pid namespace counts */
    /* Number of the first operation that the owner has given up, 0: none. The owner, and the ranks
     * that have read its buffers, access it by read-modify-writes only: see read_mark(). */
    _Atomic uint64_t given_up;
    /* Chunks of the member's slice that are claimed, and reduced, by any member: the number of the
     * operation, and TEAM_CHUNK_BITS bits of the count. */
    _Alignas(128) _Atomic uint64_t claimed;
    _Atomic uint64_t reduced_chunks;
    _Alignas(128) team_slot slots[TEAM_SLOTS];
    team_gate gates[LEVELS_MAX];
} team_part;

_Static_assert(offsetof(team_slot, src) == 64, "the head fills the first line");
_Static_assert(offsetof(team_gate, last) - offsetof(team_gate, sum) < 64 &&
                   sizeof(gate_result) <= 64,
               "one line each");
_Static_assert(sizeof(team_part) <= TEAM_PART_BYTES, "whole pages");

/* Whether a member can read the memory of all others. */
enum { READS_UNKNOWN = 0, READS_ALL, READS_SOME };

/* How a member's memory is read. */
typedef struct team_reader {
    pid_t pid;
    bool is_thread; /* of this process: its addresses are valid here */
} team_reader;

#define TEAM_ROWS_MAX (TEAM_USER_ROWS_MAX + 9) /* of one kind */

typedef enum team_step {
    TEAM_WAITS = 0, /* for other members */
    TEAM_MOVED,
    TEAM_FINISHED
} team_step;

typedef struct team_algorithm {
    const char *name;
    /* Called once, when all members have published. */
    void (*begin)(team *t);
    /* Moves one chunk, or nothing. */
    team_step (*step)(team *t);
} team_algorithm;

/* One queued operation. */
typedef struct team_op {
    list_node node;
    backend_work *work;
} team_op;

/* A row of the table of algorithms that applies to this team. */
typedef struct team_row {
    const team_algorithm *algorithm;
    size_t max_bytes;
    team_memory memory;
} team_row;

/* How team_staged.c moves the current operation. */
typedef struct staged_plan {
    size_t bytes; /* of the vector */
    size_t step;  /* bytes of the vector in a piece; from one reader's slice of it to the next */
    size_t turns; /* places in a slice that pieces use in turn */
    size_t turn_bytes;
    bool is_whole; /* each member reduces all for itself */
} staged_plan;

typedef enum team_phase { TEAM_IDLE = 0, TEAM_GATHERING, TEAM_RUNNING } team_phase;

struct team {
    local *l;
    const comm_host *host;
    const group_info *info;
    int n;
    int rank;
    size_t piece_bytes; /* of a staging buffer */
    size_t block_bytes; /* of team_direct.c */
    bool can_read;      /* all members can read each other's memory */
    bool uses_futex;    /* some member shares its core with another */
    bool has_gates;     /* members wait at gates, not for each other's counters */
    levels levels;      /* level 0 only without gates */
    bool is_inline;     /* the current operation is */
    bool is_staged;     /* it is sure to be, whatever memory the others have */
    uint64_t signature; /* team_head's, of the current operation */
    uint64_t probe;     /* the value that others read to find out whether they can */
    team_reader *readers;
    backend_bytes **received; /* of each member, see comm_host */
    team_row rows[COLL_BARRIER + 1][TEAM_ROWS_MAX];
    char *scratch;      /* of team_direct.c, allocated at its first use */
    void *memory;       /* all parts: member 0's segment */
    segment_view *view; /* of it; NULL on member 0 */
    team_part **parts;
    char *staging;      /* behind the parts */
    list_node queue;    /* team_op; the first is the current one unless the phase is IDLE */
    list_node free_ops; /* recycled: warm operations allocate nothing */
    uint64_t number;    /* of operations published */
    uint64_t compared;  /* of operations whose stamps are known to be the same on all members */
    /* Into what this rank has in `memory`: contributions by kind and size of the operation, and
     * partial sums by its size. */
    copy_way ways[COLL_BARRIER + 1][TEAM_WAYS];
    copy_way sum_ways[TEAM_WAYS];
    uint64_t pieces;  /* passed through staging by all operations before the current one */
    ls_status status; /* why it is broken */
    char text[1024];
    bool is_resolving; /* src, dst and views are filled in as far as the memory is mapped */
    bool is_stuck;     /* it cannot go on; nothing moves until team_abort() */
    /* The current operation: */
    team_phase phase;
    const coll *op;
    uint64_t to_compare; /* it waits until so many operations are compared */
    copy_way *way;       /* one of `ways`, and of `sum_ways` */
    copy_way *sum_way;
    bool is_put;             /* the first piece stands in `in` already */
    int arrived;             /* members 0 .. arrived - 1 have published operation compared + 1 */
    int awaited;             /* world rank of the last member to arrive, -1: none was missing */
    team_memory memory_kind; /* of all members' buffers, once all have published */
    /* The gate at which this member is, of a team with gates: */
    int gate_level;                   /* where it waits, -1: nowhere */
    uint64_t gate_number[LEVELS_MAX]; /* of gates so far that the group has passed, or waits at */
    levels_source *level_sources;     /* of team_levels.c */
    size_t round_bytes[2];            /* longest vector of a round; [1]: of 16-bit elements */
    const team_algorithm *algorithm;
    char **src; /* of each member, where it is reachable, else NULL */
    char **dst;
    segment_view **views;     /* what keeps these mapped: 2 a member */
    reduce_operand *operands; /* one a member, for team_reduce() */
    const char **sources;     /* one a member, for the algorithm */
    /* State of the algorithm: */
    int at_step;
    int level;  /* of team_levels.c */
    int helped; /* members whose slices have no chunk left, counted from this rank */
    size_t at;  /* bytes done */
    size_t end;
    staged_plan staged;
    uint64_t n_pieces;
    uint64_t next_in; /* next piece to put in, to reduce, to take */
    uint64_t next_reduce;
    uint64_t next_out;
};

/* The member's staging buffers. */
static inline char *team_staging(const team *t, int member)
{
    return t->staging + (size_t)member * 2 * TEAM_BUFFERS * t->piece_bytes;
}

/* --- team.c --- */

/* Stores one of this rank's counters and rings the others. */
void team_publish(team *t, _Atomic uint64_t *counter, uint64_t value);
team_slot *team_slot_of(const team *t, int member); /* of the current operation */
/* This rank touches no other member's memory any more in this operation. */
void team_begin_leave(team *t);
/* The last step of an algorithm that reads the members' own buffers: waits until no member touches
 * this rank's memory any more. Fails if a member whose buffer is part of this rank's result has
 * given up the operation. */
team_step team_leave(team *t);
/* Breaks the group if the member has given up the current operation; false: it has not. */
bool team_break_given_up(team *t, int member);
/* The current operation cannot go on: breaks the group. rank: group rank, -1: unknown. */
void team_break(team *t, cause_kind kind, int rank, const char *text);

/* --- team_gate.c --- */

/* Arrives at a gate that opens when all members of this rank's group at `level` have arrived. At
 * the gate of an operation (phase TEAM_GATHERING, level 0) small contributions are combined. */
void gate_arrive(team *t, int level);
/* Whether it is open; every gate is waited for before the next. */
bool gate_is_open(team *t);
/* Sleeps until it may be open, about a millisecond at most; false: this rank is at none. */
bool gate_futex_wait(team *t);
/* What came with the gate of an operation, once it is open. */
const gate_result *gate_result_of(const team *t);
/* Of a team with gates: whether the gate of this operation brings its result, which
 * gate_take_result() writes to dst. */
bool gate_combines(const team *t);
void gate_take_result(const team *t);

/* --- team_select.c --- */

/* Copies the rows of the table (NULL: the defaults) that apply to a team of this size. */
void team_fill_rows(team *t, const algorithm_table *table);
bool team_has_row_for(const team *t, const team_algorithm *algorithm);
/* Which memory the member's buffers of the current operation are, and those of all members. */
team_memory team_find_memory_of(const team *t, int member);
team_memory team_find_memory(const team *t);

/* --- team_staged.c --- */

/* While an operation is published that all members are sure to do by staging: puts the first piece
 * of this rank's contribution there if the buffer is free (t->is_put). True: then each member takes
 * its result from what the others have put, without another step. */
bool team_put_early(team *t);

/* --- team_shared.c --- */

/* Whether each member reduces chunks of any slice of the current operation. */
bool team_claims(const team *t);

/* --- team_direct.c --- */

/* Permits the other ranks to read this process's memory where the kernel asks its owner (Yama). */
void team_allow_reading(void);

/* --- team_levels.c --- */

/* Whether this rank reads the member's source in shared memory. */
bool team_levels_reads(const team *t, int member);

/* --- team_rules.c --- */

size_t team_contribution(const coll *op, int n); /* bytes that a source gives */
size_t team_result(const coll *op, int n);       /* bytes that a reader gets */
bool team_is_source(const coll *op, int rank);
bool team_is_reader(const coll *op, int rank);
/* Whether sources may write into their readers' memory: where otherwise the readers would do all
 * the work and the sources would wait. */
bool team_can_push(coll_kind kind);
/* Whether member `other` reads or writes memory of member `rank` in an operation in shared
 * memory. */
bool team_touches(const coll *op, int other, int rank);
/* Whether member `rank`'s destination must be in shared memory; of sources each source's must. */
bool team_needs_dst(const coll *op, int rank);
/* For operations that only move data: what `reader` takes from `source`. False: nothing. */
typedef struct team_move {
    size_t from; /* bytes into the source's src */
    size_t to;   /* bytes into the reader's dst */
    size_t bytes;
} team_move;
bool team_moves(const coll *op, int source, int reader, team_move *out);

/* What `reader` gets from the memory of each other member in a reduction: each member adds up its
 * slice, and then takes the others' slices of the result. A contribution that is published with the
 * stamp is read as a whole, but counts the same. */
size_t team_reduced_bytes(const coll *op, int n, int reader);

/* Where the part that this rank reduces begins in each contribution to a reduction into parts; 0 in
 * others, of which it reduces a slice. */
size_t team_own_part(const team *t);

/* dst = the reduction of members' src, `count` elements. */
void team_reduce(const team *t, void *dst, const char *const *src, size_t count);

extern const team_algorithm team_inline;
extern const team_algorithm team_staged;
extern const team_algorithm team_shared;
extern const team_algorithm team_direct;
extern const team_algorithm team_levels;

/* --- on the path of every operation, hence here --- */

/* The row of the current operation. memory: which memory all members' buffers are. may_inline: the
 * data can still be published, or has been published, with the stamp. */
static inline const team_row *team_select_row(const team *t, team_memory memory, bool may_inline)
{
    const size_t bytes = team_contribution(t->op, t->n);
    const team_row *row = t->rows[t->op->kind];

    // The last row takes everything.
    while (bytes > row->max_bytes || (row->memory & ~(unsigned)memory) != 0 ||
           (row->algorithm == &team_inline && !may_inline))
        row++;
    return row;
}

/* Slice k of `bytes` cut for n members: whole cache lines, so that no element is cut and two
 * members never write to the same line. */
static inline void team_slice(size_t bytes, int n, int k, size_t *at, size_t *length)
{
    const size_t lines = (size_t)n * 64;
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): n is at least 1
    const size_t slice = (bytes + lines - 1) / lines * 64;

    *at = slice * (size_t)k < bytes ? slice * (size_t)k : bytes;
    *length = bytes - *at < slice ? bytes - *at : slice;
}

/* The first member whose counter (its offset in team_part) has not reached `value`; n: none. */
static inline int team_first_below(const team *t, size_t counter, uint64_t value)
{
    int k = 0;

    for (; k < t->n; k++) {
        const char *part = (const char *)t->parts[k];
        const _Atomic uint64_t *c = (const void *)(part + counter);

        if (atomic_load_explicit(c, memory_order_seq_cst) < value)
            break;
    }
    return k;
}

#endif
