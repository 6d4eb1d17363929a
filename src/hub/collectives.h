/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collectives.h - the table of operations between ranks: what each reads and writes on every rank.
 * Checks, stamps, backends and lockstep bench take it from here. Compiled also into the modules of
 * backends. A new collective is a kind, a row of the table, and what each backend does for it.
 */
#ifndef LS_HUB_COLLECTIVES_H
#define LS_HUB_COLLECTIVES_H

#include <stdbool.h>

typedef enum coll_kind {
    COLL_ALL_REDUCE = 0,
    COLL_REDUCE,
    COLL_BROADCAST,
    COLL_ALL_GATHER,
    COLL_GATHER,
    COLL_SCATTER,
    COLL_REDUCE_SCATTER,
    COLL_ALL_TO_ALL,
    COLL_BARRIER,
    COLL_SEND,
    COLL_RECV,
    COLL_KIND_COUNT
} coll_kind;

/* The size of a rank's buffer: none, `count` elements, or as many for each rank. */
typedef enum coll_extent { COLL_NOTHING = 0, COLL_PART, COLL_ALL_PARTS } coll_extent;

typedef struct coll_shape {
    const char *name; /* as in the public function, without "ls_" */
    coll_extent src;
    coll_extent dst;
    bool src_at_root; /* only root's src is used */
    bool dst_at_root;
    bool reduces;
} coll_shape;

extern const coll_shape coll_shapes[COLL_KIND_COUNT];

const char *coll_name(coll_kind kind); /* "all_reduce"; "?" */

/* Messages have a peer in place of a root, and numbers of their own. */
static inline bool coll_is_message(coll_kind kind)
{
    return kind == COLL_SEND || kind == COLL_RECV;
}

static inline bool coll_reduces(coll_kind kind)
{
    return coll_shapes[kind].reduces;
}

static inline bool coll_has_root(coll_kind kind)
{
    return coll_shapes[kind].src_at_root || coll_shapes[kind].dst_at_root;
}

/* Whether src, or dst, has a part for each rank. */
static inline bool coll_divides_src(coll_kind kind)
{
    return coll_shapes[kind].src == COLL_ALL_PARTS;
}

static inline bool coll_divides_dst(coll_kind kind)
{
    return coll_shapes[kind].dst == COLL_ALL_PARTS;
}

/* Whether each pair of ranks has a part of its own: in place a rank would overwrite what it has
 * still to send, and with counts each pair has its own. */
static inline bool coll_is_pairwise(coll_kind kind)
{
    return coll_divides_src(kind) && coll_divides_dst(kind);
}

/* Whether the result of a reduction is as long as a contribution (else it is a part of it). */
static inline bool coll_reduces_whole(coll_kind kind)
{
    return coll_shapes[kind].reduces && coll_shapes[kind].src == COLL_PART;
}

#endif
