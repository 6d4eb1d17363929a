/* SPDX-License-Identifier: Apache-2.0 */
/* netlab.h - netlab.sh from C: several hosts on one machine, for the duration of a test. */
#ifndef TESTS_HARNESS_NETLAB_H
#define TESTS_HARNESS_NETLAB_H

#include <stdbool.h>
#include <sys/types.h>

#define NETLAB_SKIPPED 77

typedef struct netlab {
    char name[32];
} netlab;

/* Creates a lab of n nodes with options of netlab.sh ("--dead --mixed"). Returns 0; NETLAB_SKIPPED
 * where that is impossible, with the reason on stderr; or another exit code. The lab ends with this
 * process. */
int netlab_up(netlab *lab, int n, const char *options);
void netlab_down(netlab *lab); /* allowed when it is not up */

/* Starts a program on a node, with these as its stdin and stdout (-1: those of this process).
 * Returns its pid, or -1. It is killed when this process ends. */
pid_t netlab_start(const netlab *lab, int node, const char *const *argv, int in_fd, int out_fd);

/* Cuts a node off from all others, or ends that; no connection is closed by it. */
bool netlab_plug(const netlab *lab, int node, bool is_plugged);

/* Runs a shell command on a node and waits; whether it returned 0. */
bool netlab_run(const netlab *lab, int node, const char *command);

#endif
