/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head.h - the head of a job: decides which nodes take part, when the ranks start and end, and what
 * the root cause of a failure is. One agent of each job hosts it.
 *
 *     agents --frames--> head --events--> rendezvous machine (rendezvous.h)
 *     agents <--frames-- head <--actions-- rendezvous machine
 *     ranks  <----------> hub and store of the present generation
 *
 * It runs on its agent's poller. That agent is connected to it by a socket pair, all others by TCP.
 *
 * launch/head/: the head. Agents call it through this header and node_messages.h; the tool uses
 * fetch_request.h.
 */
#ifndef LS_LAUNCH_HEAD_HEAD_H
#define LS_LAUNCH_HEAD_HEAD_H

#include "base/text.h"
#include "launch/head/rendezvous/rendezvous.h"
#include "launch/head/standby.h"
#include "net/address.h"
#include "net/auth/seal.h"
#include "net/key.h"
#include "net/messages/frame.h"
#include "net/poller.h"
#include "net/socket.h"
#include "net/wire.h"

#include <stdbool.h>

typedef struct head head;

typedef struct head_options {
    rdzv_options rendezvous; /* borrowed for head_create() */
    const net_key *key;    /* of the nodes' connections; the job's key derives from it; borrowed */
    bool insecure;         /* no key: every node may join */
    net_security security; /* of TCP connections: nodes', and ranks' to the hub */
    bool hosts_store;      /* the one of PyTorch programs, a fresh one each generation */
    int store_port;        /* 0: a free one */
    const char *net;       /* --net; NULL or "": any network */
    net_ports ports;       /* where ranks find the hub */
    const char *hint;      /* printed after the first roster: how another machine joins; or NULL */
    bool quiet_roster;     /* no roster is printed */
    void *self;
    /* Writes the launch request for a node of `lockstep join` (launch_request.h, without the
     * key). */
    ls_status (*write_request)(void *self, wire_writer *w);
    /* The activity of a rank of the head's own node. */
    void (*describe_rank)(void *self, int local_rank, char *buf, size_t n);
    /* A rank of the head's own node has aborted a group: others fail because of it. May be NULL. */
    void (*note_abort)(void *self, int local_rank);
    /* As agent_spec.keep_ring; NULL: flight recorders are not collected. */
    void (*keep_ring)(void *self, uint32_t generation, int rank, const char *host,
                      int64_t behind_ns, int ring_fd);
    /* Appends the last lines that the ranks of a lost node printed, at most so many. */
    void (*append_last_lines)(void *self, int node, size_t most, text_buf *out);
    /* A node (by its number) was lost after missing heartbeats. Not NULL where this agent starts
     * the nodes: when the connection of a node closes, the head waits shortly for
     * head_node_lost(), as the end of its ssh may tell more. */
    void (*node_silent)(void *self, int number, const char *why);
    /* An agent that is node 0, too, has connected: another machine's, or this one. */
    void (*other_head)(void *link, const char *peer);
    void *link;
    /* By which another agent can take over an elastic job; NULL: none. */
    standby *standby;
    /* NODE_STATUS of another node: the answer to head_ask_status(). NULL: not wanted. */
    ls_status (*take_status)(void *self, const frame *f);
} head_options;

LS_MUST_USE ls_status head_create(poller *p, const head_options *opt, head **out);
void head_destroy(head *h); /* closes all connections; NULL is allowed */

/* The head of a job whose ranks run, with the state of a head that was lost (standby.h). The nodes
 * connect to it again. LS_EPROTO: it is no such state. */
LS_MUST_USE ls_status head_take_over(poller *p, const head_options *opt, const void *state,
                                     size_t bytes, head **out);
/* After head_listen(). */
void head_begin_again(head *h);

/* standby_calls of the head's standby. */
void head_committed(head *h, uint64_t index);
void head_confirmed(head *h, uint64_t round);

/* Nodes may connect to this address from now on; *bound gets the real port. */
LS_MUST_USE ls_status head_listen(head *h, const net_address *at, net_address *bound);

/* The head's own node: *fd is the agent's end of its connection. */
LS_MUST_USE ls_status head_connect_own(head *h, int *fd);

/* The same for an agent without ranks: it receives notes and the end of the job. */
LS_MUST_USE ls_status head_connect_observer(head *h, int *fd);

/* The node of this number is lost; false: it is not connected. */
bool head_node_lost(head *h, int number, const char *why);
/* Adds to the report why that node was lost in the present generation; false: it was not lost. */
bool head_explain_loss(head *h, int number, const char *why);
/* Whether another node would take over this head, and the ranks of the others would go on. */
bool head_can_move(const head *h);
bool head_is_waiting(const head *h);  /* for nodes: no rank runs */
bool head_has_started(const head *h); /* all nodes have been connected once */

/* Whether connections of other nodes are open; after the job, until they have received its end. */
bool head_has_remote_nodes(const head *h);

/* This process was stopped until now: waits that seem long are not reported. */
void head_resumed(head *h);

/* Whether the store of PyTorch programs has had a connection in this generation. */
bool head_store_was_used(const head *h);

/* Serves a PyTorch program's connection that the head's own agent has admitted. Takes fd. */
LS_MUST_USE ls_status head_serve_store(head *h, int fd);

/* Asks the other nodes for their ranks, and `rank` for its operations too (-1: none); returns the
 * number of nodes. */
int head_ask_status(head *h, uint32_t question, int rank);

/* The key of a job's ranks. */
LS_MUST_USE ls_status head_job_key(const net_key *key, const char *job, net_key *out);

#endif
