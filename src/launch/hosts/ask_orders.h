/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask_orders.h - what a job runs, from its head: for a node that was started with nothing but its place and the key.
 */
#ifndef LS_LAUNCH_ASK_ORDERS_H
#define LS_LAUNCH_ASK_ORDERS_H

#include "launch/hosts/orders.h"

/*
 * Asks the head at `place` ("HOST:PORT") and waits for its answer until the deadline, also for the head itself to come up; says
 * within a second what it waits for. key NULL: --insecure. *out has neither key nor heads; freed with orders_free(). LS_EMISMATCH:
 * the head does not give any, in its words. Blocks; from a process with one thread.
 */
LS_MUST_USE ls_status ask_orders(const char *place, const net_key *key, net_security security,
                                 int64_t deadline_ms, void (*say)(const char *line), orders *out);

#endif
