/* SPDX-License-Identifier: Apache-2.0 */
/*
 * far_orders.h - what an agent makes of orders that have come from another machine.
 */
#ifndef LS_CLI_FAR_ORDERS_H
#define LS_CLI_FAR_ORDERS_H

#include "launch/launch.h"
#include "launch/hosts/orders.h"

/* For a process with one thread; the orders live as long as it does. */
LS_MUST_USE ls_status far_orders_set_env(const orders *o);

/* Sets the environment and enters the folder, for a process with one thread. The orders live as long as it does. */
LS_MUST_USE ls_status far_orders_enter(const orders *o);

/* All of the agent's task but where the job is: nodes, rendezvous, far. Points into the orders. */
agent_spec far_orders_spec(const orders *o);

#endif
