/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch_request.h - what a job runs, from its head: for a node that was started with nothing but its place and the key.
 */
#ifndef LS_LAUNCH_FETCH_REQUEST_H
#define LS_LAUNCH_FETCH_REQUEST_H

#include "launch/hosts/launch_request.h"

/*
 * Asks the head at `place` ("HOST:PORT") and waits for its answer until the deadline, also for the head itself to come up; says
 * within a second what it waits for. key NULL: --insecure. *out has neither key nor heads; freed with launch_request_free(). LS_EMISMATCH:
 * the head does not give any, in its words. Blocks; from a process with one thread.
 */
LS_MUST_USE ls_status fetch_launch_request(const char *place, const net_key *key,
                                           net_security security, int64_t deadline_ms,
                                           void (*say)(const char *line), launch_request *out);

#endif
