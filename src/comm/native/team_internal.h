/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team_internal.h - what team.c, team_rules.c and the algorithms share.
 *
 * A member's part of the shared memory, written by its owner alone (except given_up), read by all:
 *
 *   team_part        counters, slots: operation number n stands in slot n % 3
 *   TEAM_STAGING_AT  rooms: in 0, in 1, out 0, out 1, each of one piece
 *
 * Two slots would be enough: a member publishes operation n + 1 only after it has seen all members publish n, and they publish n
 * only after they have finished n - 1. So when it overwrites the slot of n - 1, nobody reads that any more. For the same reason
 * all staging rooms are free as soon as all have published n. With three, a member can fetch its next slot's lines away from
 * the others' caches while it waits for them.
 */
#ifndef LS_NATIVE_TEAM_INTERNAL_H
#define LS_NATIVE_TEAM_INTERNAL_H

#include "base/map.h"
#include "comm/native/segment.h"
#include "comm/native/team.h"
#include "comm/reduce.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TEAM_SLOTS         3
#define TEAM_INLINE_BYTES  16384 /* that fit into a slot */
#define TEAM_SMALL_BYTES   32    /* that fit into its first line */
#define TEAM_STAGING_AT    53248
#define TEAM_BUFFERS       2 /* `in` rooms, and as many `out`; more did not make it faster */
#define TEAM_PIECE_DEFAULT ((size_t)256 << 10)
#define TEAM_CHUNK_BYTES   ((size_t)256 << 10) /* worked on in one call of team_progress() */

/* What is compared of an operation, and its contribution if that is small: with `ready` one line. */
typedef struct team_head {
    uint64_t sequence; /* from here on the stamp's fields */
    uint64_t count;
    uint64_t what; /* root, kind, dtype, redop, vector: from the low end, 32 + 4 x 8 bits */
    unsigned char small[TEAM_SMALL_BYTES];
} team_head;

/* What a member says about the operation it has come to. */
typedef struct team_slot {
    /* the first line is all that a small operation touches */
    _Alignas(64) _Atomic uint64_t ready; /* number of the operation that the rest describes */
    team_head head;
    segment_ref src; /* id 0: not in shared memory */
    segment_ref dst;
    uint64_t src_at; /* in its owner's address space, 0: not to be read there */
    uint64_t dst_at;
    char site[STAMP_SITE_BYTES];
    _Alignas(64) unsigned char data[TEAM_INLINE_BYTES]; /* a longer contribution */
} team_slot;

/* Counted since the group was opened, in pieces (all operations of the group pass the same number) or operations. Others wait
 * for them with seq_cst loads; the owner stores with seq_cst before it rings (local.h). */
typedef struct team_part {
    _Alignas(128) _Atomic uint64_t staged; /* pieces that stand in `in` */
    _Atomic uint64_t
        reduced; /* pieces whose `in` of all members this one has used; its `out` is ready */
    _Atomic uint64_t taken; /* pieces whose `out` of all members this one has used */
    _Atomic uint64_t done; /* number of the last operation after which it touches nobody's memory */
    _Atomic uint64_t is_open;  /* 1: it has mapped the parts of all members */
    _Atomic uint64_t can_read; /* READS_* */
    uint64_t shares_cores;     /* 1: team_options says so; written before is_open, as are: */
    uint64_t probe_at;         /* where its owner's address space holds... */
    uint64_t probe_value;      /* ...this */
    int64_t pid;               /* its owner's, as that knows it */
    /* Number of the first operation that the owner has given up, 0: none. The owner, and the ranks
     * that have read its buffers, access it by read-modify-writes only: see read_mark(). */
    _Atomic uint64_t given_up;
    /* Of member 0's part, used by all of a team that naps: who comes last wakes the others with one call. */
    _Alignas(128) _Atomic uint64_t arrivals; /* of all members at all operations */
    _Atomic uint32_t complete; /* the last operation to which all have come; a futex */
    _Atomic uint32_t n_futex_waiters;
    _Alignas(128) team_slot slots[TEAM_SLOTS];
} team_part;

_Static_assert(offsetof(team_slot, src) == 64, "the head fills the first line");
_Static_assert(sizeof(team_part) <= TEAM_STAGING_AT, "the staging rooms start behind the slots");

/* Whether a member can read the memory of all others. */
enum { READS_UNKNOWN = 0, READS_ALL, READS_SOME };

/* How a member's memory is read. */
typedef struct team_reader {
    pid_t pid;
    bool is_thread; /* of this process: its addresses are ours */
} team_reader;

#define TEAM_ROWS_MAX (TEAM_USER_ROWS_MAX + 8) /* of one kind */

typedef enum team_step {
    TEAM_WAITS = 0, /* for other members */
    TEAM_MOVED,
    TEAM_FINISHED
} team_step;

typedef struct team_algorithm {
    const char *name;
    /* Once, when all members have published. */
    void (*begin)(team *t);
    /* One chunk, or nothing. */
    team_step (*step)(team *t);
} team_algorithm;

/* One operation that waits for its turn. */
typedef struct team_op {
    list_node node;
    backend_work *work;
} team_op;

/* What serves one kind of operation in this team, from the table. */
typedef struct team_row {
    const team_algorithm *algorithm;
    size_t max_bytes;
    team_memory memory;
} team_row;

typedef enum team_phase { TEAM_IDLE = 0, TEAM_GATHERING, TEAM_RUNNING } team_phase;

struct team {
    local *l;
    const comm_host *host;
    const group_info *info;
    int n;
    int rank;
    size_t piece_bytes;
    size_t block_bytes; /* of team_direct.c */
    bool can_read;      /* all members can read each other's memory */
    bool uses_futex;    /* some member shares its core with another */
    bool is_inline;     /* the current operation is */
    uint64_t what;      /* team_head's, of the current operation */
    uint64_t probe;     /* what others read to try it */
    team_reader *readers;
    team_row rows[COLL_BARRIER + 1][TEAM_ROWS_MAX];
    char *scratch; /* of team_direct.c, made when first needed */
    void *memory;  /* this rank's part, as created */
    team_part **parts;
    segment_view **part_views;
    list_node queue;    /* team_op; the first is the current one unless the phase is IDLE */
    list_node free_ops; /* so that nothing is allocated after the first operations */
    uint64_t number;    /* of operations published */
    uint64_t pieces;    /* passed through staging by all operations before the current one */
    ls_status status;   /* why it is broken */
    char text[1024];
    bool is_stuck; /* it cannot go on; nothing moves until team_abort() */
    /* the current operation */
    team_phase phase;
    const coll *op;
    int arrived; /* members 0 .. arrived - 1 have published the same stamp */
    int awaited; /* world rank of the last one that was missing, -1: none was */
    const team_algorithm *algorithm;
    char **src; /* of each member, where it is reachable, else NULL */
    char **dst;
    segment_view **views;     /* what keeps these mapped: 2 a member */
    reduce_operand *operands; /* one a member, for team_reduce() */
    const char **sources;     /* one a member, for the algorithm */
    /* of the algorithm */
    int stage;
    size_t at; /* bytes done */
    size_t end;
    uint64_t n_pieces;
    uint64_t next_in; /* piece to put in, to reduce, to take */
    uint64_t next_reduce;
    uint64_t next_out;
};

/* --- team.c --- */

/* Stores one of this rank's counters and rings the others. */
void team_publish(team *t, _Atomic uint64_t *counter, uint64_t value);
team_slot *team_slot_of(const team *t, int member); /* of the current operation */
/* The last step of an algorithm that reads the members' own buffers: waits until all that touch
 * this rank's memory are done with it. Then fails if a member whose buffer is part of this rank's
 * result has given up the operation. */
team_step team_leave(team *t);
/* Breaks the group if the member has given up the current operation; false: it has not. */
bool team_break_given_up(team *t, int member);
/* The current operation cannot go on: breaks the group. rank: group rank, -1: unknown. */
void team_break(team *t, cause_kind kind, int rank, const char *text);

/* --- team_direct.c --- */

/* Lets the other ranks read this process's memory, as far as it is for this process to say. */
void team_allow_reading(void);

/* --- team_rules.c --- */

size_t team_contribution(const coll *op, int n); /* bytes that one (contributing) rank gives */
size_t team_result(const coll *op, int n);       /* bytes that one (receiving) rank gets */
bool team_is_source(const coll *op, int rank);   /* whether it contributes */
bool team_is_reader(const coll *op, int rank);   /* whether it receives */
bool team_is_reduction(coll_kind kind);
/* Whether sources may write into their readers' memory: where otherwise one side would have all the work, and the other none. */
bool team_can_push(coll_kind kind);
/* Whether member `other` reads or writes the memory of member `rank` when the operation runs in shared memory. */
bool team_touches(const coll *op, int other, int rank);
/* Whether shared memory is needed of member `rank`, for its source or destination. */
bool team_needs_src(const coll *op, int rank);
bool team_needs_dst(const coll *op, int rank);
/* For the operations that only move data: what `reader` takes from `source`. False: nothing. */
typedef struct team_move {
    size_t from; /* bytes into the source's src */
    size_t to;   /* bytes into the reader's dst */
    size_t bytes;
} team_move;
bool team_moves(const coll *op, int source, int reader, team_move *out);

/* dst = the reduction of members' src, `count` elements. */
void team_reduce(const team *t, void *dst, const char *const *src, size_t count);

extern const team_algorithm team_inline;
extern const team_algorithm team_staged;
extern const team_algorithm team_shared;
extern const team_algorithm team_direct;

#endif
