/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_client.h - finds the jobs of this user on this machine, and asks their agents for a view.
 *
 * An agent listens at the abstract unix socket "lockstep-view-UID-NAME", NAME being its 16 digits.
 * Both sides check that the other one belongs to the same user. Frames (net/messages/frame.h):
 *
 *     VIEW_ASK     rank u32: whose operations are wanted, 0xffffffff: none
 *     VIEW_ANSWER  the text of view.h
 */
#ifndef LS_LAUNCH_STATUS_VIEW_CLIENT_H
#define LS_LAUNCH_STATUS_VIEW_CLIENT_H

#include "launch/status/view.h"
#include "net/address.h"

enum { VIEW_ASK = 1, VIEW_ANSWER = 2, VIEW_ASK_BYTES = 4, VIEW_JOBS_MAX = 256, VIEW_NAME = 20 };

/* The address of an agent of this user. */
LS_MUST_USE ls_status view_address(const char *agent_name, net_address *out);

/* The names of this user's agents on this machine (in this network namespace), at most
 * VIEW_JOBS_MAX; *n of them. LS_ESYSTEM: /proc/net/unix cannot be read. */
LS_MUST_USE ls_status view_list(char names[][VIEW_NAME], int *n);

typedef struct view_client view_client;

/* LS_EPEER: there is no such agent; LS_EAUTH: it is another user's. */
LS_MUST_USE ls_status view_client_open(const char *agent_name, view_client **out);
void view_client_close(view_client *c); /* NULL is allowed */

/* Asks and waits for the answer; rank -1: no operations. LS_ETIMEOUT: none at deadline_ms;
 * LS_EPEER: the job has ended; LS_EPROTO, LS_EFORMAT: it is not the answer of an agent. */
LS_MUST_USE ls_status view_client_ask(view_client *c, int rank, int64_t deadline_ms, job_view *out);

#endif
