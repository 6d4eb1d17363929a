/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch_request.h - a job's launch request from its head, for a node that knows only the rendezvous
 * endpoint and the key.
 */
#ifndef LS_LAUNCH_HEAD_FETCH_REQUEST_H
#define LS_LAUNCH_HEAD_FETCH_REQUEST_H

#include "launch/spec/launch_request.h"

/*
 * Asks the head at `endpoint` ("HOST:PORT") and waits for its answer until the deadline, also while
 * the head has not started yet; `log_line` gets a line about the wait within a second. key NULL:
 * --insecure. *out has neither key nor heads; freed with launch_request_free(). LS_EMISMATCH: the
 * head refuses, with its reason. Blocks; from a process with one thread.
 */
LS_MUST_USE ls_status fetch_launch_request(const char *endpoint, const net_key *key,
                                           net_security security, int64_t deadline_ms,
                                           void (*log_line)(const char *line), launch_request *out);

#endif
