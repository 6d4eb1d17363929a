/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_link.h - an agent's connection to the head of its job: a socket pair where the head is in
 * this process, else TCP with heartbeats in both directions. With a standby (standby.h) the
 * connection moves to the agent that takes over when the head is lost, or a head is created here.
 */
#ifndef LS_LAUNCH_AGENT_NODE_AGENT_LINK_H
#define LS_LAUNCH_AGENT_NODE_AGENT_LINK_H

#include "launch/agent/node/agent_context.h"
#include "launch/agent/node/agent_relay.h"
#include "launch/head/head.h"
#include "net/auth/dial.h"
#include "net/messages/frame_link.h"
#include "net/messages/stream_mux.h"

typedef struct agent_link {
    const agent_context *ctx;
    uint64_t uid; /* of this agent, unique */
    net_key key;  /* the job's key is derived from it */
    head *head;   /* NULL when the head runs in another process */
    dial *dial;   /* while it connects */
    frame_link link;
    stream_mux streams; /* connections to PyTorch's store that pass through the link */
    agent_relay relay;  /* those of ranks to the hub and the store of members */
    standby *standby;   /* NULL: none */
    net_address standby_at;
    poll_timer move_limit; /* after the loss of a head, for the next one */
    int64_t lost_ms;       /* when the last connection to a head was lost, */
    char lost_why[LS_ERROR_BYTES];
    bool is_returning; /* to a head that has taken over */
    bool is_rejoining; /* this machine counts as lost, and joins the job again; until ranks start */
    bool is_linked;
    bool is_paused; /* the head has announced that it will be silent */
    net_address head_at;
    net_address listens_at; /* where the head accepts connections, if it is here */
    char head_text[NET_ADDRESS_TEXT_MAX];
    char join_hint[512];
    char not_head[LS_ERROR_BYTES + 64]; /* why the head could not be here, for messages; or "" */
    poll_timer beat;
    poll_timer wait_line; /* the next line about a head that does not answer */
    /* The address of node 0 is not this machine's, which is node 0: whether another one is, too. */
    bool seeks_other_head;
    bool has_found_self; /* an address translation leads back here */

    /* For the agent; set before agent_link_open(), `agent` is the first argument. */
    void *agent;
    ls_status (*message)(void *agent, const frame *f);
    void (*before_beat)(void *agent);
    bool (*has_started)(const void *agent); /* ranks run here, or have ended by themselves */
    void (*lost)(void *agent);              /* the connection has failed, and is closed */
    void (*returned)(void *agent); /* the hello to a head that has taken over has been sent */
    head_options head_calls;       /* the callbacks that a head in this process gets */
} agent_link;

/* Opens a head in this process, or connects to the head. */
LS_MUST_USE ls_status agent_link_open(agent_link *l);
/* Opens a head in this process. */
LS_MUST_USE ls_status agent_link_open_head(agent_link *l);
void agent_link_close(agent_link *l);

/* At a welcome: how long the head may be silent, here and for the ranks. */
LS_MUST_USE ls_status agent_link_take_silence(const agent_link *l);
/* At a welcome: prepares for the loss of the head. */
LS_MUST_USE ls_status agent_link_begin_standby(agent_link *l);
/* The head is lost, and another one will take over. */
bool agent_link_waits(const agent_link *l);
/* While is_rejoining: there is no connection to the head, and none is being made. */
bool agent_link_must_join(const agent_link *l);
/* Then, when the ranks here have ended: connects to the head again. */
LS_MUST_USE ls_status agent_link_rejoin(agent_link *l);
/* New ranks start here: this agent may host the head again. */
void agent_link_has_returned(agent_link *l);

/* Without a connection the message is dropped. */
void agent_link_send(agent_link *l, node_message type, const wire_writer *body);
/* Closes the connection to the head, which then counts this node as lost. */
void agent_link_leave(agent_link *l);
/* The same for good, also with the head of the job, which another node takes over where it can. */
void agent_link_quit(agent_link *l);

/* NODE_PAUSE and NODE_RESUME of the head; and this process was stopped until just now. */
void agent_link_pause(agent_link *l, bool pauses);
void agent_link_resumed(agent_link *l);

/* NODE_CLOCK: answers with this machine's clock. */
LS_MUST_USE ls_status agent_link_answer_clock(const agent_link *l, const frame *f);

#endif
