/* SPDX-License-Identifier: Apache-2.0 */
/* native_lines.h - counts the cache lines of a memory that move between core complexes. */
#ifndef TESTS_COMM_NATIVE_LINES_H
#define TESTS_COMM_NATIVE_LINES_H

#include <stddef.h>
#include <stdint.h>

typedef struct lines_counts {
    uint64_t between_caches; /* core complexes, of one socket or not */
    uint64_t between_sockets;
} lines_counts;

void lines_begin(char *memory, size_t bytes);
void lines_end(void);

/* The following accesses come from this core complex (below 32). */
void lines_run_on(int cache, int socket);

void lines_clear_counts(void);
lines_counts lines_get_counts(void);

#endif
