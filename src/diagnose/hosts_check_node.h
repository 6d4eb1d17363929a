/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_node.h - one machine's part in a check of several: it looks at itself in a child process, and tries the ways to others. The same on the
 * starting machine, where its words go to hosts_check.c directly, and on others, where they go through hosts_check_agent.c.
 */
#ifndef LS_DIAGNOSE_SURVEY_NODE_H
#define LS_DIAGNOSE_SURVEY_NODE_H

#include "diagnose/check.h"
#include "diagnose/hosts_check_messages.h"
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
    const char *folder; /* that a job's program would start in; NULL: it is there */
    bool is_silent;     /* it is there to be called, and does not look at itself */
    void *self;
    /* Something to tell; `body` is borrowed. May be called from within the functions below, too. */
    void (*say)(void *self, hosts_check_message type, const wire_writer *body);
} hosts_check_node_options;

/* Offers its addresses and begins to look at this machine. Needs a process with one thread. */
LS_MUST_USE ls_status hosts_check_node_open(const hosts_check_node_options *opt,
                                            hosts_check_node **out);

/* Takes a question: HOSTS_CHECK_ASK_TIME or HOSTS_CHECK_TRY, the latter once. */
LS_MUST_USE ls_status hosts_check_node_hear(hosts_check_node *node, const frame *f);

void hosts_check_node_close(hosts_check_node *node); /* ends the child, too; NULL is allowed */

/* The facts of this machine; milliseconds when `is_quick`, else Python is asked, too, for up to 5 s. */
void hosts_check_facts_gather(bool is_quick, bool is_static, hosts_check_facts *out);

/* What kernels are chosen by, of the first processor of a /proc/cpuinfo: words of its list of features, in our order. */
void hosts_check_simd_text(const char *cpuinfo, char *buf, size_t n);

/* This machine's wall clock. */
int64_t hosts_check_now_ns(void);

#endif
