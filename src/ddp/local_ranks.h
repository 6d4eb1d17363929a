/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_ranks.h - islands of several ranks of local SGD. The ranks of an island average gradients
 * in each step, in a group of their own, so that they hold the same parameters and optimizer state;
 * the first ranks of the islands, in a group of theirs, are the only ones that exchange
 * differences:
 *
 *     island 0   [0]  1  2  3     groups: 0 1 2 3 and 4 5, in each step
 *     island 1   [4]  5                   0 4, for a mean, which 0 and 4 then give to their islands
 *
 * Where each rank has islands of its own there are no groups: `island` is NULL.
 */
#ifndef LS_DDP_LOCAL_RANKS_H
#define LS_DDP_LOCAL_RANKS_H

#include <lockstep/comm.h>

#include "base/status.h"

typedef struct local_ranks {
    ls_comm *island; /* of this rank; NULL: no island has several ranks */
    ls_comm *firsts; /* rank k is that of island k; NULL on ranks that are not the first ones */
    int number;      /* of this rank's island */
    int *first_of;   /* of each island: its first rank among all */
    int *counts;     /* of each island: its ranks */
} local_ranks;

/* Divides the ranks of `comm` into *islands islands: contiguous ranges, as equal as possible, or
 * with LS_ISLANDS_OF_HOSTS the ranks of each host, in the order of their first ranks; *islands is
 * then their number. With at least as many islands as ranks *out stays zeroed. Collective; blocks.
 * local_ranks_close() also after a failure. */
LS_MUST_USE ls_status local_ranks_open(ls_comm *comm, int *islands, local_ranks *out);
void local_ranks_close(local_ranks *r);

/* Fails what other ranks wait for in both groups. */
void local_ranks_abort(const local_ranks *r, const char *why);

/* data[0..count) of the first rank of this rank's island to all its ranks. Collective; blocks. */
LS_MUST_USE ls_status local_ranks_share(const local_ranks *r, void *data, size_t count,
                                        ls_dtype type, const char *label);

#endif
