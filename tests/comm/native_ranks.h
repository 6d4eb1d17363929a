/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_ranks.h - runs one function as several ranks of one host, as threads or as processes,
 * without launcher, store or hub.
 */
#ifndef TESTS_COMM_NATIVE_RANKS_H
#define TESTS_COMM_NATIVE_RANKS_H

#include "comm/join/boot.h"

#include <stdbool.h>
#include <stdio.h>

#define RANKS_TIMEOUT_MS 60000

typedef enum ranks_kind { AS_THREADS = 0, AS_PROCESSES } ranks_kind;

/* Returns 0 on success. boot->local_fd is listening; records[0 .. size-1] are all filled in. */
typedef int (*rank_fn)(const comm_boot *boot, void *arg);

/* Runs fn on n ranks and waits for all; gives the number of ranks that failed. Processes still
 * running after RANKS_TIMEOUT_MS are killed and count as failed. For AS_PROCESSES arg is a copy,
 * unless it is shared memory. */
int ranks_run(ranks_kind kind, int n, rank_fn fn, void *arg);

/* In a rank_fn: says which check failed and ends this rank. */
#define RANK_CHECK(expr)                                                                           \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            fprintf(stderr, "%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, boot->rank, #expr,    \
                    ls_last_error());                                                              \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Zeroed memory that forked ranks share; freed with the process. */
void *ranks_shared(size_t bytes);

#endif
