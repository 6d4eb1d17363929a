/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_view.h - what the job of an agent looks like now (view.h), for `lockstep top`, `lockstep
 * ps` and --metrics-port.
 *
 *     agent_view.c         the ranks of this node, and of others through the head
 *     agent_view_socket.c  the socket at which the tool asks
 *     agent_metrics.c      --metrics-port
 *
 * Nothing is read or sent before a request.
 */
#ifndef LS_LAUNCH_AGENT_AGENT_VIEW_H
#define LS_LAUNCH_AGENT_AGENT_VIEW_H

#include "host/process.h"
#include "launch/agent/node/agent_link.h"
#include "launch/status/view.h"

struct agent;

/* A request for a view; zero-initialise, embedded in its owner. */
typedef struct view_request {
    list_node node;
    bool is_set;
    int rank; /* whose operations are wanted, -1: none */
    /* The view is borrowed. Never called from within agent_view_ask(). */
    void (*done)(void *arg, const job_view *v);
    void *arg;
} view_request;

typedef struct agent_view {
    struct agent *agent;
    struct view_socket *socket;   /* NULL: none */
    struct metrics_port *metrics; /* NULL: none */
    int64_t opened_ms;
    char warning[VIEW_TEXT];
    list_node requests; /* view_request */
    job_view *view;     /* being collected */
    bool is_collecting;
    uint32_t question; /* number of this collection */
    int n_missing;     /* nodes that have not answered */
    poll_timer limit;
} agent_view;

/* A failure to listen at the tool's socket is logged only: the job does not need it. */
LS_MUST_USE ls_status agent_view_open(agent_view *v, struct agent *a);
void agent_view_close(agent_view *v); /* zeros are allowed */

/* The last line of the agent for the user, shown as warning. */
void agent_view_note(agent_view *v, const char *line);

void agent_view_ask(agent_view *v, view_request *request);
void agent_view_forget(view_request *request); /* allowed when not set */

/* NODE_VIEW_ASK of the head: sends the ranks of this node. */
LS_MUST_USE ls_status agent_view_answer(struct agent *a, const frame *f);
/* NODE_VIEW of another node, from the head in this process. */
LS_MUST_USE ls_status agent_view_take(void *agent, const frame *f);

/* --- agent_view_socket.c --- */
LS_MUST_USE ls_status view_socket_open(agent_view *v, poller *p, const char *agent_name,
                                       struct view_socket **out);
void view_socket_close(struct view_socket *s); /* NULL is allowed */

/* --- agent_metrics.c --- */

/* Serves http://127.0.0.1:PORT/metrics; 0: no server. LS_ESYSTEM: the port is in use. */
LS_MUST_USE ls_status metrics_port_open(agent_view *v, poller *p, int port,
                                        struct metrics_port **out);
void metrics_port_close(struct metrics_port *m); /* NULL is allowed */

enum { METRICS_REQUEST_MAX = 4095 };

/* Whether n bytes of a request, with a 0 behind them, are enough to answer it. *refusal: the status
 * of HTTP; NULL: it asks for the metrics. Pure. */
bool metrics_request_ends(const char *request, size_t n, const char **refusal);

#endif
