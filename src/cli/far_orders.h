/* SPDX-License-Identifier: Apache-2.0 */
/*
 * far_orders.h - turns orders from another machine into an agent_spec.
 */
#ifndef LS_CLI_FAR_ORDERS_H
#define LS_CLI_FAR_ORDERS_H

#include "launch/launch.h"
#include "launch/hosts/orders.h"

/* Sets the environment variables of the orders. For a process with one thread; the variables point
 * into the orders, which live as long as the process. */
LS_MUST_USE ls_status far_orders_set_env(const orders *o);

/* Sets the environment as above and changes to the folder of the job. */
LS_MUST_USE ls_status far_orders_enter(const orders *o);

/* The agent_spec of the orders, without nodes, rendezvous and far. It points into the orders. */
agent_spec far_orders_spec(const orders *o);

#endif
