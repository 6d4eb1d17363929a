/* SPDX-License-Identifier: Apache-2.0 */
/* process_tree.h - the state and CPU time of a process and its descendants, read from /proc. */
#ifndef LS_HOST_PROCESS_TREE_H
#define LS_HOST_PROCESS_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_TREE_MOST 64 /* processes that are read */

typedef struct process_tree {
    pid_t pids[PROCESS_TREE_MOST]; /* the root first */
    int n;
    bool all_sleep;     /* every main thread sleeps */
    uint64_t cpu_ticks; /* of all threads together */
} process_tree;

/* Never fails: a process that cannot be read is left out. */
void process_tree_read(pid_t root, process_tree *out);

/* The number of processes that have mapped a file whose path contains `part`. */
int process_tree_count_mapped(const process_tree *tree, const char *part);

#endif
