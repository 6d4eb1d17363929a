/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compose.h - operations that an external library lacks, composed of those that it has. Compiled
 * into each module; the only part of Lockstep that it uses is comm_host.
 *
 *   reductions       the library reduces buffers of the partial type. fp16 and bf16 are widened to
 *                    float32 before and rounded once after; an average is a sum, divided after
 *
 *   divided by rank  gather, scatter, all_gather, all_to_all, with counts or without, exchange
 *                    messages between all ranks. So does reduce_scatter, whose receivers add the
 *                    contributions along the aligned tree, with the bits of the native backend
 */
#ifndef LS_COMM_BACKENDS_EXTERNAL_COMPOSE_H
#define LS_COMM_BACKENDS_EXTERNAL_COMPOSE_H

#include "comm/backends/backend.h"

/* How a library takes its buffers. */
typedef enum compose_mode {
    /* `out` has the contribution and gets the result; ranks without a result have only `in` */
    COMPOSE_IN_PLACE,
    /* every rank has both, which may be the same; the library writes to all `out` */
    COMPOSE_IN_AND_OUT
} compose_mode;

/* One operation for the library: the caller's memory, or memory in place of it. */
typedef struct composed {
    const comm_host *host;
    const group_info *info;
    const coll *op;
    const void *in; /* all_reduce, reduce: the contribution */
    void *out;      /* ... and the result; broadcast: root's data, which all other ranks get */
    void *buffer;   /* own memory; NULL: none */
} composed;

/* One step of an exchange: n_out elements go to one rank, n_in come from another; both may be 0. */
typedef struct compose_exchange {
    int to;
    int from;
    const char *out;
    size_t n_out;
    char *in;
    size_t n_in;
} compose_exchange;

/* Bytes of an element. */
size_t compose_size(ls_dtype type);
/* The type that the library reduces. */
ls_dtype compose_partial(ls_dtype type);

/* Prepares this rank's data for the library. False: no memory; call compose_free() also then. */
bool compose_begin(composed *c, const comm_host *host, const group_info *info, const coll *op,
                   compose_mode way);
/* After the library's operation: writes the result to dst. */
void compose_finish(const composed *c);
void compose_free(composed *c);

/* Copies this rank's own part from src to dst, if needed; reduce_scatter reads it in src. */
void compose_copy_own(const composed *c);
/* Steps 1 to size - 1: `to` is this rank plus step, `from` is this rank minus step. */
compose_exchange compose_exchange_at(const composed *c, int step);

#endif
