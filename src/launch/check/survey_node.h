/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survey_node.h - one machine's part in a survey: it looks at itself in a child process, and tries the ways to others. The same on the
 * starting machine, where its words go to the survey directly, and on others, where they go through survey_agent.c.
 */
#ifndef LS_LAUNCH_SURVEY_NODE_H
#define LS_LAUNCH_SURVEY_NODE_H

#include "launch/check/check.h"
#include "launch/check/survey_messages.h"
#include "net/poller.h"

typedef struct survey_node survey_node;

typedef struct survey_node_options {
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
    void (*say)(void *self, survey_message type, const wire_writer *body);
} survey_node_options;

/* Offers its addresses and begins to look at this machine. Needs a process with one thread. */
LS_MUST_USE ls_status survey_node_open(const survey_node_options *opt, survey_node **out);

/* Takes a question: SURVEY_ASK_TIME or SURVEY_TRY, the latter once. */
LS_MUST_USE ls_status survey_node_hear(survey_node *node, const frame *f);

void survey_node_close(survey_node *node); /* ends the child, too; NULL is allowed */

/* The facts of this machine; milliseconds when `is_quick`, else Python is asked, too, for up to 5 s. */
void survey_facts_gather(bool is_quick, bool is_static, survey_facts *out);

/* What kernels are chosen by, of the first processor of a /proc/cpuinfo: words of its list of features, in our order. */
void survey_simd_text(const char *cpuinfo, char *buf, size_t n);

/* This machine's wall clock. */
int64_t survey_now_ns(void);

#endif
