/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_tree.h - what a process and its descendants do, as far as /proc tells.
 */
#ifndef LS_LAUNCH_PROCESS_TREE_H
#define LS_LAUNCH_PROCESS_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_TREE_MOST 64 /* processes that are looked at */

typedef struct process_tree {
    pid_t pids[PROCESS_TREE_MOST]; /* the root first */
    int n;
    bool all_sleep;     /* each main thread waits for an event, a time or another process */
    uint64_t cpu_ticks; /* that they have used, all threads together */
} process_tree;

/* Never fails: a process that cannot be read is left out. */
void process_tree_read(pid_t root, process_tree *out);

/* How many of them have mapped a file whose path contains `part`. Reads their whole maps. */
int process_tree_count_mapped(const process_tree *tree, const char *part);

#endif
