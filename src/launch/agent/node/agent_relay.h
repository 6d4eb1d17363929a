/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_relay.h - two unix sockets of this agent, at which its ranks reach the hub and the store of
 * members wherever the head is: the bytes pass through the agent's link
 * (net/messages/stream_mux.h). Ranks and head authenticate each other (net/auth/handshake.h); the
 * relay admits processes of the same user. While there is no link, connections wait in the sockets'
 * queues.
 */
#ifndef LS_LAUNCH_AGENT_NODE_AGENT_RELAY_H
#define LS_LAUNCH_AGENT_NODE_AGENT_RELAY_H

#include "net/address.h"
#include "net/messages/frame_link.h"
#include "net/messages/stream_mux.h"
#include "net/poller.h"

#include <stdbool.h>

typedef struct relay_port {
    bool is_open;
    int fd;
    net_address at;
    poll_watch *watch; /* NULL: connections wait */
    stream_mux streams;
} relay_port;

/* Zeros: closed. */
typedef struct agent_relay {
    poller *loop;
    relay_port hub;
    relay_port members;
} agent_relay;

/* Does nothing when it is open. */
LS_MUST_USE ls_status agent_relay_open(agent_relay *r, poller *p);
void agent_relay_close(agent_relay *r);

/* The link is open, or about to be closed. Does nothing for a port that is closed, or has begun. */
LS_MUST_USE ls_status agent_relay_begin(agent_relay *r, frame_link *link);
void agent_relay_end(agent_relay *r);

/* Frames of types NODE_HUB_STREAM and NODE_MEMBER_STREAM; and the link is drained. */
LS_MUST_USE ls_status agent_relay_receive(agent_relay *r, const frame *f);
void agent_relay_resume(agent_relay *r);

#endif
