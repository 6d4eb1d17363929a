/* SPDX-License-Identifier: Apache-2.0 */
/*
 * external.h - opening and sleeping for modules around external libraries. Compiled into each
 * module; the only part of Lockstep that it uses is comm_host.
 *
 * comm/backends/external/: what modules of external libraries share (also compose.h). Compiled into
 * mpi/, gloo/ and nccl/.
 */
#ifndef LS_COMM_BACKENDS_EXTERNAL_EXTERNAL_H
#define LS_COMM_BACKENDS_EXTERNAL_EXTERNAL_H

#include "comm/backends/backend.h"

typedef struct external_waker {
    int wake_fd;    /* -1: closed */
    int control_fd; /* the engine's */
} external_waker;

/* The first part of open(): closes the listeners, which the library does not use, refuses a job
 * with protected connections, and creates the waker. On failure nothing stays open. */
LS_MUST_USE ls_status external_open(const comm_boot *boot, const comm_host *host,
                                    const char *engine, external_waker *out);
void external_close(external_waker *w);

/* Sleeps until external_wake(), a notification on the control connection, or the timeout. True
 * after a wake, which remains until external_drain(). */
bool external_wait(const external_waker *w, int64_t timeout_us);
void external_wake(const external_waker *w);
/* Whether there was a wake since the last drain. */
bool external_drain(const external_waker *w);

#endif
