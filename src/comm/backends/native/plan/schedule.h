/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - the steps of one rank in a collective, as data: steps in rounds, made by pure
 * functions.
 *
 * An operation is cut into chunks (element ranges); a plan function describes one chunk for one
 * rank and touches no network and no buffer, so that a test can run the plans of all ranks in one
 * process. exec.c carries plans out.
 *
 * The steps of a round are begun in their order (rounds may be mixed): copies and reductions finish
 * at once, messages move at the same time, and the round ends when all have moved. Sender and
 * receiver name a message by (chunk, tag); between two ranks a tag is used once per chunk.
 *
 * comm/backends/native/plan/: collectives between hosts as data, pure. Called by p2p/exec.c and
 * team/ through this header and layout.h.
 */
#ifndef LS_COMM_BACKENDS_NATIVE_PLAN_SCHEDULE_H
#define LS_COMM_BACKENDS_NATIVE_PLAN_SCHEDULE_H

#include "comm/backends/backend.h"
#include "comm/backends/native/plan/layout.h"
#include "comm/backends/reduce.h"

#include <stdbool.h>

#define PLAN_PART_BITS 20 /* of a tag: the part of the vector; above it the round */

typedef enum plan_space { PLAN_SRC = 0, PLAN_DST, PLAN_SCRATCH } plan_space;

typedef struct plan_ref {
    plan_space space;
    size_t offset; /* bytes */
} plan_ref;

typedef enum plan_action { PLAN_SEND = 0, PLAN_RECV, PLAN_COPY, PLAN_REDUCE } plan_action;

typedef struct plan_step {
    plan_action action;
    int round;
    int peer; /* group rank; SEND and RECV */
    uint32_t tag;
    plan_ref to;   /* RECV, COPY, REDUCE */
    plan_ref from; /* SEND, COPY */
    size_t bytes;  /* SEND, RECV, COPY */
    size_t total;  /* SEND, RECV: bytes of which this message is a part, equal on both sides */
    /* SEND: a large message is announced, for operations whose sides may disagree on the bytes. */
    bool announce;
    size_t count;  /* REDUCE: elements */
    bool is_final; /* REDUCE: rounds to the type; otherwise `to` is a partial result */
    size_t first_operand;
    int n_operands;
} plan_step;

typedef struct plan_operand {
    plan_ref data;
    int first;
    int n_ranks;
    bool is_partial;
} plan_operand;

/* Keeps its memory from chunk to chunk. Zero-initialise. */
typedef struct plan {
    plan_step *steps;
    size_t n_steps;
    size_t step_capacity;
    plan_operand *operands;
    size_t n_operands;
    size_t operand_capacity;
    size_t scratch_bytes;
    int n_rounds;
    bool failed; /* no memory, or sizes that overflow */
} plan;

/* One chunk of one operation, seen by one rank. */
typedef struct plan_input {
    int n;
    int rank;
    int root;
    const plan_layout *layout; /* for the _hosts plans, NULL otherwise */
    size_t element_bytes;
    size_t partial_bytes;     /* of an element of a partial result */
    size_t count;             /* of coll */
    const size_t *src_counts; /* of coll */
    const size_t *dst_counts;
    size_t
        first; /* The chunk: elements [first, first + chunk) of every part, as far as it reaches. */
    size_t chunk;
} plan_input;

typedef void (*plan_fn)(plan *p, const plan_input *in);

/* A row of the table: the first row that fits is used. It depends only on values that all ranks
 * share, so all select the same one. */
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): the order of the table's columns
typedef struct plan_rule {
    coll_kind kind;
    const char *name;
    plan_fn fn;
    size_t max_bytes; /* of one part */
    int max_ranks;
    int min_ranks;
    int segments;  /* of every part in a chunk, unless it is sliced; 0: one */
    bool power;    /* only where the number of ranks is a power of two */
    bool sliced;   /* a chunk is cut into one segment a rank */
    bool whole;    /* never cut into chunks */
    bool hosts;    /* for groups whose layout helps */
    int max_peers; /* hosts: on other hosts, of a rank; 0: any number */
} plan_rule;

extern const plan_rule plan_defaults[]; /* algorithm_defaults.c */
extern const int n_plan_defaults;

/* A row for an algorithm of the defaults with limits of its own. LS_EINVAL: no such algorithm for
 * this operation, or it cannot send so much in one piece. */
LS_MUST_USE ls_status plan_rule_make(coll_kind kind, const char *name, size_t max_bytes,
                                     int max_ranks, plan_rule *out);

/* Rows that precede the defaults. */
typedef struct plan_rules {
    plan_rule *rows;
    int n;
} plan_rules;

/* How an operation is carried out. */
typedef struct plan_choice {
    const plan_rule *rule;
    size_t chunk;    /* elements */
    size_t n_chunks; /* at least 1 */
} plan_choice;

/* `op` must be a collective. layout: NULL unless it helps. segment_bytes: about the size of one
 * message. own: may be NULL; must outlive the choice. */
plan_choice plan_choose(const coll *op, int n, const plan_layout *layout, size_t segment_bytes,
                        const plan_rules *own);

/* Fills in all but first. */
plan_input plan_input_of(const coll *op, int n, int rank, const plan_layout *layout,
                         const plan_choice *choice);

/* For plan functions. */
void plan_reset(plan *p);
void plan_free(plan *p);
plan_step *plan_message(plan *p, plan_action action, int round, int peer, uint32_t tag, plan_ref at,
                        size_t bytes); /* NULL without memory: the plan has failed */
void plan_copy(plan *p, int round, plan_ref to, plan_ref from, size_t bytes);
void plan_reduce(plan *p, int round, plan_ref to, size_t count, bool is_final); /* then: */
/* An operand of the last plan_reduce(), in rank order. */
void plan_operand_add(plan *p, plan_ref data, int first, int n_ranks, bool is_partial);
/* Receives `count` elements from every other rank in round 0 and adds them to the own ones in
 * round 1. */
void plan_collect(plan *p, const plan_input *in, plan_ref own, plan_ref to, size_t count);
/* A binomial tree over n positions from position 0, this rank at `at`: receives into `to` from the
 * parent in round 0 and sends `from` to the children in round 1. */
typedef int (*plan_rank_fn)(const plan_input *in, int64_t position);
void plan_tree(plan *p, const plan_input *in, int at, int n, plan_rank_fn rank_at, plan_ref to,
               plan_ref from, size_t bytes);
/* A run of elements of which this rank has the reduction over `n` ranks from `first` on. */
typedef struct plan_holding {
    plan_ref data;
    int first;
    int n;
} plan_holding;
/* Bytes of an element of the reduction over so many ranks. */
static inline size_t plan_width(const plan_input *in, int n_ranks)
{
    return n_ranks == 1 ? in->element_bytes : in->partial_bytes;
}
/* Adds two neighbouring subtrees into `to`, lower ranks first. */
plan_holding plan_join(plan *p, const plan_input *in, int round, plan_holding a, plan_holding b,
                       size_t count, plan_ref to);
plan_ref plan_scratch(plan *p, size_t bytes); /* aligned to a cache line */
size_t plan_aligned(size_t bytes);            /* the aligned size of `bytes` */

static inline plan_ref plan_at(plan_space space, size_t offset)
{
    return (plan_ref){.space = space, .offset = offset};
}

/* Part i of a buffer of which each rank has a part; counts: NULL where all have in->count. */
static inline size_t plan_count(const plan_input *in, const size_t *counts, int i)
{
    return counts != NULL ? counts[i] : in->count;
}
/* Elements in front of part i; i == n: of the buffer. */
size_t plan_start(const plan_input *in, const size_t *counts, int i);

/* Elements of a part of `count` that lie in the chunk. */
size_t plan_part(const plan_input *in, size_t count);

/* The elements of a chunk that rank `owner` owns when the chunk is cut into slices; *first counts
 * from the start of the chunk. */
void plan_slice(size_t count, int n, int owner, size_t *first, size_t *n_elements);

void plan_all_reduce_slices(plan *p, const plan_input *in);
void plan_all_reduce_whole(plan *p, const plan_input *in);
void plan_reduce_slices(plan *p, const plan_input *in);
void plan_reduce_direct(plan *p, const plan_input *in);
void plan_reduce_scatter_direct(plan *p, const plan_input *in);
void plan_broadcast_tree(plan *p, const plan_input *in);
void plan_all_gather_direct(plan *p, const plan_input *in);
void plan_gather_direct(plan *p, const plan_input *in);
void plan_scatter_direct(plan *p, const plan_input *in);
void plan_all_to_all_direct(plan *p, const plan_input *in);
void plan_barrier_dissemination(plan *p, const plan_input *in);
void plan_all_reduce_doubling(plan *p, const plan_input *in);
void plan_all_reduce_halving(plan *p, const plan_input *in);
void plan_all_reduce_tree(plan *p, const plan_input *in);
void plan_reduce_tree(plan *p, const plan_input *in);
void plan_reduce_halving(plan *p, const plan_input *in);
void plan_all_gather_bruck(plan *p, const plan_input *in);
void plan_all_reduce_hosts(plan *p, const plan_input *in);
void plan_reduce_scatter_hosts(plan *p, const plan_input *in);
void plan_all_gather_hosts(plan *p, const plan_input *in);
void plan_broadcast_hosts(plan *p, const plan_input *in);

#endif
