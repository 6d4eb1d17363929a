/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign.h - opening and sleeping for modules around external libraries. Compiled into each
 * module; the only part of Lockstep that it uses is comm_host.
 */
#ifndef LS_COMM_BACKENDS_EXTERNAL_FOREIGN_H
#define LS_COMM_BACKENDS_EXTERNAL_FOREIGN_H

#include "comm/backends/backend.h"

typedef struct foreign_waker {
    int wake_fd;    /* -1: closed */
    int control_fd; /* the engine's */
} foreign_waker;

/* The first part of open(): closes the listeners, which the library does not use, refuses a job
 * with protected connections, and creates the waker. On failure nothing stays open. */
LS_MUST_USE ls_status foreign_open(const comm_boot *boot, const comm_host *host, const char *engine,
                                   foreign_waker *out);
void foreign_close(foreign_waker *w);

/* Sleeps until foreign_wake(), a notification on the control connection, or the timeout. True after
 * a wake, which remains until foreign_drain(). */
bool foreign_wait(const foreign_waker *w, int64_t timeout_us);
void foreign_wake(const foreign_waker *w);
/* Whether there was a wake since the last drain. */
bool foreign_drain(const foreign_waker *w);

#endif
