/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_client.h - finds the jobs of this user on this machine, and asks their agents for a
 * status.
 *
 * An agent listens at the abstract unix socket "lockstep-view-UID-NAME", NAME being its 16 digits.
 * Both sides check that the other one belongs to the same user. Frames (net/messages/frame.h):
 *
 *     STATUS_ASK     rank u32: whose operations are wanted, 0xffffffff: none
 *     STATUS_ANSWER  the text of status.h
 */
#ifndef LS_LAUNCH_STATUS_STATUS_CLIENT_H
#define LS_LAUNCH_STATUS_STATUS_CLIENT_H

#include "launch/status/job_status.h"
#include "net/address.h"

enum {
    STATUS_ASK = 1,
    STATUS_ANSWER = 2,
    STATUS_ASK_BYTES = 4,
    STATUS_JOBS_MAX = 256,
    STATUS_NAME = 20
};

/* The address of an agent of this user. */
LS_MUST_USE ls_status status_address(const char *agent_name, net_address *out);

/* The names of this user's agents on this machine (in this network namespace), at most
 * STATUS_JOBS_MAX; *n of them. LS_ESYSTEM: /proc/net/unix cannot be read. */
LS_MUST_USE ls_status status_list(char names[][STATUS_NAME], int *n);

typedef struct status_client status_client;

/* LS_EPEER: there is no such agent; LS_EAUTH: it is another user's. */
LS_MUST_USE ls_status status_client_open(const char *agent_name, status_client **out);
void status_client_close(status_client *c); /* NULL is allowed */

/* Asks and waits for the answer; rank -1: no operations. LS_ETIMEOUT: none at deadline_ms;
 * LS_EPEER: the job has ended; LS_EPROTO, LS_EFORMAT: it is not the answer of an agent. */
LS_MUST_USE ls_status status_client_ask(status_client *c, int rank, int64_t deadline_ms,
                                        job_status *out);

#endif
