/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign.h - how modules around engines of others begin and sleep. Compiled into each module: of
 * ours it uses nothing but comm_host.
 */
#ifndef LS_COMM_FOREIGN_H
#define LS_COMM_FOREIGN_H

#include "comm/backend.h"

typedef struct foreign_waker {
    int wake_fd;    /* -1: closed */
    int control_fd; /* the engine's */
} foreign_waker;

/* Begins open(): closes the listeners, which such an engine has no use for, refuses a job whose
 * connections it could not protect, and makes what wait() sleeps on. On failure there is nothing to
 * close. */
LS_MUST_USE ls_status foreign_open(const comm_boot *boot, const comm_host *host, const char *engine,
                                   foreign_waker *out);
void foreign_close(foreign_waker *w);

/* Sleeps until foreign_wake(), news on the control connection, or the time is over. Whether there
 * was a wake: it stays until foreign_drain(). */
bool foreign_wait(const foreign_waker *w, int64_t timeout_us);
void foreign_wake(const foreign_waker *w);
/* Whether there was a wake since the last drain. */
bool foreign_drain(const foreign_waker *w);

#endif
