/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head.h - the head of a job: decides who takes part, when the ranks start and end, and why. One of the agents has it, also when it
 * is the only one.
 *
 *     agents <--frames--> head --events--> rendezvous machine (rendezvous.h) --actions--> head --frames--> agents
 *     ranks  <----------> hub and store of the present generation
 *
 * It runs on its agent's poller; that agent is connected to it by a socket pair like any other by TCP.
 */
#ifndef LS_LAUNCH_HEAD_H
#define LS_LAUNCH_HEAD_H

#include "base/text.h"
#include "launch/head/rendezvous.h"
#include "net/address.h"
#include "net/key.h"
#include "net/poller.h"
#include "net/seal.h"
#include "net/socket.h"
#include "net/wire.h"

#include <stdbool.h>

typedef struct head head;

typedef struct head_options {
    rdzv_options rendezvous; /* borrowed for head_create() */
    const net_key
        *key;      /* of the nodes' connections, and what the job's own is made from; borrowed */
    bool insecure; /* no key: everybody may come */
    net_security security; /* of TCP connections: nodes', and ranks' to the hub */
    bool hosts_store;      /* the one of PyTorch programs, a fresh one each generation */
    int store_port;        /* 0: a free one */
    const char *net;       /* --net; NULL or "": any network */
    net_ports ports;       /* where ranks find the hub */
    const char
        *hint; /* told with the first roster: how another machine takes part; NULL: nothing */
    bool quiet_roster; /* nobody is told who is there */
    void *self;
    /* Writes what a node is to run that comes by `lockstep join` and asks (launch_request.h, without the key). */
    ls_status (*write_request)(void *self, wire_writer *w);
    /* What a rank of the head's own node is doing. */
    void (*describe_rank)(void *self, int local_rank, char *buf, size_t n);
    /* A rank of the head's own node has aborted a group: others fail because of it. May be NULL. */
    void (*note_abort)(void *self, int local_rank);
    /* As agent_spec.keep_ring; NULL: nobody wants them. */
    void (*keep_ring)(void *self, uint32_t generation, int rank, const char *host,
                      int64_t behind_ns, int ring_fd);
    /* Appends what the ranks of a lost node printed last, at most so many lines, as far as that is known. */
    void (*append_last_lines)(void *self, int node, size_t most, text_buf *out);
    /* A node (by its number) was lost as it was silent. Not NULL where nodes are started by us: when the connection of one closes, we
     * may know why, and head_node_lost() is waited for a moment. */
    void (*node_silent)(void *self, int number, const char *why);
} head_options;

LS_MUST_USE ls_status head_create(poller *p, const head_options *opt, head **out);
void head_destroy(head *h); /* closes all connections; NULL is allowed */

/* Nodes may come to this address from now on; *bound gets the real port. */
LS_MUST_USE ls_status head_listen(head *h, const net_address *at, net_address *bound);

/* The head's own node: *fd is the agent's end of its connection. */
LS_MUST_USE ls_status head_connect_own(head *h, int *fd);

/* The same for an agent that has no ranks and only listens. */
LS_MUST_USE ls_status head_connect_observer(head *h, int *fd);

/* A node is known to be gone, by its number; false: it is not here (yet, or any more). */
bool head_node_lost(head *h, int number, const char *why);
/* More about why that node was lost in the present generation, for the report; false: it was not. */
bool head_explain_loss(head *h, int number, const char *why);
bool head_is_waiting(const head *h);  /* for nodes: nothing runs */
bool head_has_started(const head *h); /* all nodes have been there once */

/* Whether connections of other nodes are open: when the job is over, until they have heard why. */
bool head_has_remote_nodes(const head *h);

/* This process was stopped until just now: what seems late was not. */
void head_resumed(head *h);

/* Whether a connection has come to the store of PyTorch programs in this generation. */
bool head_store_was_used(const head *h);

/* Serves a PyTorch program's connection that the head's own agent has admitted. Takes fd. */
LS_MUST_USE ls_status head_serve_store(head *h, int fd);

/* The key of a job's ranks. */
LS_MUST_USE ls_status head_job_key(const net_key *key, const char *job, net_key *out);

#endif
