/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_store.h - MASTER_ADDR and MASTER_PORT, and how PyTorch programs reach the store that the
 * head hosts for them.
 *
 *   one node             127.0.0.1; the head or this agent listens
 *   several nodes        node 0's address on the network of the job; node 0's agent listens there
 *   with mac or encrypt  127.0.0.1; each node's agent listens, and carries the bytes to the head
 *
 * PyTorch's protocol has no key. Node 0 accepts a connection from another node when the agent of
 * that node, which has authenticated to the head, finds that a process of the job's user holds it.
 */
#ifndef LS_LAUNCH_AGENT_NODE_AGENT_STORE_H
#define LS_LAUNCH_AGENT_NODE_AGENT_STORE_H

#include "base/report/wait_report.h"
#include "launch/agent/node/agent_link.h"
#include "launch/agent/node/agent_network.h"
#include "net/user_listener.h"

/* Notices a script that waits for a store at an address of its own (agent_store_watch.c). */
typedef struct store_watch {
    const pid_t *pid; /* of rank 0; 0: not known yet */
    int port;         /* MASTER_PORT of the ranks */
    poll_timer look;
    wait_report quiet;  /* since rank 0 used its processor */
    int tree_n;         /* processes at the last look */
    uint64_t cpu_ticks; /* likewise */
} store_watch;

typedef struct agent_store {
    agent_link *link;
    const agent_network *network;
    user_listener *listener; /* NULL: programs connect to the head, or to another node */
    int master_port;         /* MASTER_PORT of the job; 0: not known */
    bool is_used;            /* a connection has come through the listener */
    store_watch watch;
} agent_store;

/*
 * On node 0 of several, before its ranks are ready: *port becomes MASTER_PORT of all nodes.
 * Elsewhere it becomes 0.
 */
LS_MUST_USE ls_status agent_store_choose_port(agent_store *s, int *port);

/*
 * Before the ranks start: opens the listener of this node, if it has one. *port: their MASTER_PORT.
 */
LS_MUST_USE ls_status agent_store_open(agent_store *s, int *port);
void agent_store_close(agent_store *s);
const char *agent_store_host(const agent_store *s, char *buf, size_t n); /* MASTER_ADDR */

/* After the ranks have started. The look at rank 0 ends with it. */
void agent_store_begin_watch(agent_store *s, int port, const pid_t *pid);
void agent_store_end_watch(agent_store *s);

/*
 * NODE_OWNER_QUERY: whether our user holds a connection; NODE_OWNER_ANSWER: the answer of another
 * node.
 */
LS_MUST_USE ls_status agent_store_answer_owner(const agent_store *s, const frame *f);
LS_MUST_USE ls_status agent_store_take_owned(agent_store *s, const frame *f);

#endif
