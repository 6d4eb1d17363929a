/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_network.h - this node's part in finding the network of a job with several nodes: it offers
 * its addresses, tries those of the others, and uses the network that the head has picked.
 */
#ifndef LS_LAUNCH_AGENT_NODE_AGENT_NETWORK_H
#define LS_LAUNCH_AGENT_NODE_AGENT_NETWORK_H

#include "launch/agent/node/agent_context.h"
#include "launch/network/net_choice.h"
#include "launch/network/net_probe.h"

typedef struct agent_network {
    const agent_context *ctx;
    net_probe *probe; /* while the network is not picked */
    net_pick pick;    /* n 0: one node needs none */
} agent_network;

void agent_network_close(agent_network *n);

/* Opens the addresses of this node and sends them to the head; `key` is the job's. */
LS_MUST_USE ls_status agent_network_offer(agent_network *n, const net_key *key);

/* Messages of the head. *is_picked: the network is known, and ranks may be started. */
LS_MUST_USE ls_status agent_network_try(agent_network *n, const frame *f);
LS_MUST_USE ls_status agent_network_take(agent_network *n, const frame *f, bool *is_picked);

/* Opens a listener for a rank on the network; *fd -1: the rank opens one itself. */
LS_MUST_USE ls_status agent_network_listen(const agent_network *n, int rank, int *fd);

/* Whether this machine has InfiniBand or another RDMA device. */
bool agent_network_has_rdma(void);

#endif
