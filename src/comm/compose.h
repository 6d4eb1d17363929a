/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compose.h - the operations that engines of others lack, made of those they have. Compiled into
 * each module: of ours it uses nothing but comm_host.
 *
 *   reductions   the engine reduces buffers of the partial type. fp16 and bf16 are widened to float32 before and
 *                rounded once after; an average is a sum, divided after
 *   cut by rank  gather, scatter, all_gather, all_to_all, with counts or without, are messages between all ranks: the legs.
 *                So is reduce_scatter, whose owners add what has come along the aligned tree: the native backend's bits
 */
#ifndef LS_COMM_COMPOSE_H
#define LS_COMM_COMPOSE_H

#include "comm/backend.h"

/* How an engine wants its buffers. */
typedef enum compose_way {
    /* `out` holds the contribution and gets the result; ranks without a result have only `in` */
    COMPOSE_IN_PLACE,
    /* every rank has both, which may be the same; the engine writes to all `out` */
    COMPOSE_IN_AND_OUT
} compose_way;

/* One operation as the engine sees it: the caller's memory, or memory that stands in for it. */
typedef struct composed {
    const comm_host *host;
    const group_info *info;
    const coll *op;
    const void *in; /* all_reduce, reduce: the contribution */
    void *out;      /* and the result; broadcast: root's data, which all others get */
    void *room;     /* memory of its own; NULL: none */
} composed;

/* What this rank has to do with two others: n_out elements go to one, n_in come from the other;
 * either may be 0. */
typedef struct compose_leg {
    int to;
    int from;
    const char *out;
    size_t n_out;
    char *in;
    size_t n_in;
} compose_leg;

/* Bytes of an element. */
size_t compose_size(ls_dtype type);
/* As what an engine reduces it. */
ls_dtype compose_partial(ls_dtype type);

/* Brings this rank's data where the engine works on it. False: no memory; the operation is to be
 * freed nevertheless. */
bool compose_begin(composed *c, const comm_host *host, const group_info *info, const coll *op,
                   compose_way way);
/* The engine is done: brings the result to dst. */
void compose_finish(const composed *c);
void compose_free(composed *c);

/* This rank's part of its own src goes to its place in dst, unless it is there. Not for
 * reduce_scatter, which reads it in src. */
void compose_keep_own(const composed *c);
/* The leg of steps 1 to size - 1: `to` is as far behind this rank as `from` is in front of it. */
compose_leg compose_leg_at(const composed *c, int step);

#endif
