/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_backend.h - a backend that moves nothing and ends works on command, to look at the engine
 * and the groups over it.
 */
#ifndef TESTS_COMM_FAKE_BACKEND_H
#define TESTS_COMM_FAKE_BACKEND_H

#include "comm/group/group.h"

#define FAKE_WORKS_MAX 32

struct backend_state {
    const comm_host *host;
    backend_work *works[FAKE_WORKS_MAX]; /* not ended, in order of start */
    int n_works;
    coll last;        /* as it was started */
    int end_in_start; /* this many further works end inside start() */
    int end_after;    /* progress() ends the oldest work every so many passes; 0: never */
    int passes;
    int n_moves; /* progress() moves in this many passes, and ends the newest work in the last */
    /* progress() ends the oldest work so long after the last start; 0: never */
    int64_t end_late_ns;
    int64_t started_ns;
    atomic_int n_progress;
    atomic_int n_wait;
    ls_mutex mu;
    ls_cond wakened;
    unsigned n_wakes;  /* a wake-up ends the sleep of all threads */
    int sleep_ms;      /* the longest wait(); 0: no limit */
    bool sleeps_on;    /* wait() returns only after wake() */
    int64_t *clock_ns; /* wait() does not sleep but sets this clock forward; NULL: it sleeps */
    int jump_at;       /* progress() sets the clock forward by jump_ns in this pass; 0: in none */
    int64_t jump_ns;
    int n_groups;
    bool opens_never; /* open_group() waits until host->check() fails */
    atomic_bool is_opening;
};

/* A world of `size` ranks of which this is rank 0, over a fake backend. The state lives until
 * ls_comm_destroy(). */
LS_MUST_USE ls_status fake_world(int size, int64_t operation_ms, backend_state *state,
                                 ls_comm **out);

/* Ends the i-th work that is under way; as the backend would, under the engine's lock. */
void fake_end(ls_comm *comm, backend_state *state, int i, ls_status status, const char *text);

#endif
