/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_node.h - one host's part in a check of several: it checks itself in a child process
 * and tests the networks to others. On the starting machine its messages go to hosts_check.c
 * directly, on others through hosts_check_agent.c.
 */
#ifndef LS_DIAGNOSE_HOSTS_HOSTS_CHECK_NODE_H
#define LS_DIAGNOSE_HOSTS_HOSTS_CHECK_NODE_H

#include "diagnose/checks/check.h"
#include "diagnose/hosts/hosts_check_messages.h"
#include "net/poller.h"

typedef struct hosts_check_node hosts_check_node;

typedef struct hosts_check_node_options {
    poller *loop;
    const net_key *key; /* borrowed */
    int node;
    const char *net; /* --net; NULL or "": any network */
    net_ports ports;
    check_options checks;
    bool is_quick;
    const char *folder; /* working folder of a job's programs; NULL: not checked */
    bool is_passive;    /* accept network tests only, without checking this machine */
    void *self;
    /* Sends a message; `body` is borrowed. Also called from within the functions below. */
    void (*send)(void *self, hosts_check_message type, const wire_writer *body);
} hosts_check_node_options;

/* Sends its addresses and starts the checks. Needs a process with one thread. */
LS_MUST_USE ls_status hosts_check_node_open(const hosts_check_node_options *opt,
                                            hosts_check_node **out);

/* Handles a request: HOSTS_CHECK_ASK_TIME, or HOSTS_CHECK_TRY at most once. */
LS_MUST_USE ls_status hosts_check_node_receive(hosts_check_node *node, const frame *f);

void hosts_check_node_close(hosts_check_node *node); /* kills the child; NULL is allowed */

/* Reads the facts of this machine. Unless is_quick it runs Python, for at most 5 s. */
void hosts_check_facts_gather(bool is_quick, bool is_static, hosts_check_facts *out);

/*
 * Appends the features of a /proc/cpuinfo's first processor that select kernels, in a fixed order.
 */
void hosts_check_simd_text(const char *cpuinfo, char *buf, size_t n);

/* The wall clock of this machine. */
int64_t hosts_check_now_ns(void);

#endif
