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
    int level;        /* 0 .. CONTENTION_MAX: rises while there are more runnable threads */
    bool is_contended;
    int64_t next_look_ns;
} contention;

/* Whether there is contention, by the number of runnable threads; reads it at most once in some
 * milliseconds, for which it takes about 5 us. now_ns: of a clock that does not go back. */
bool contention_look(contention *c, int64_t now_ns);

/* This thread has not run for a while although it was runnable: there is contention now. */
void contention_lost_time(contention *c, int64_t now_ns);

#endif
