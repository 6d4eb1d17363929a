/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contention.h - whether the threads of this machine compete for its processors. A thread that
 * waits by spinning then takes the time of those that it waits for.
 *
 * Threads    a contention has one user at a time.
 */
#ifndef LS_HOST_CONTENTION_H
#define LS_HOST_CONTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialise. */
typedef struct contention {
    const char *path; /* of tests, in place of /proc/loadavg; NULL: this */
    int n_processors; /* 0: not counted yet */
    int level;        /* rises while there are more runnable threads than processors, from 0 */
    bool is_contended;
    int64_t next_look_ns;
} contention;

/* Whether there is contention, by the number of runnable threads, which it reads at most once in
 * 2 ms. now_ns: of a clock that does not go back. */
bool contention_look(contention *c, int64_t now_ns);

/* This thread has not run for a while although it was runnable: there is contention now. */
void contention_lost_time(contention *c, int64_t now_ns);

#endif
