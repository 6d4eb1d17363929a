/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_status.h - what the job of an agent looks like now (status.h), for `lockstep top`,
 * `lockstep ps` and --metrics-port.
 *
 *     agent_status.c         the ranks of this node, and of others through the head
 *     agent_status_socket.c  the socket at which the tool asks
 *     agent_metrics.c      --metrics-port
 *
 * Nothing is read or sent before a request.
 */
#ifndef LS_LAUNCH_AGENT_AGENT_STATUS_H
#define LS_LAUNCH_AGENT_AGENT_STATUS_H

#include "host/process.h"
#include "launch/agent/node/agent_link.h"
#include "launch/status/job_status.h"

struct agent;

/* A request for a status; zero-initialise, embedded in its owner. */
typedef struct status_request {
    list_node node;
    bool is_set;
    int rank; /* whose operations are wanted, -1: none */
    /* The status is borrowed. Never called from within agent_status_ask(). */
    void (*done)(void *arg, const job_status *v);
    void *arg;
} status_request;

typedef struct agent_status {
    struct agent *agent;
    struct status_socket *socket; /* NULL: none */
    struct metrics_port *metrics; /* NULL: none */
    int64_t opened_ms;
    char warning[STATUS_TEXT];
    list_node requests; /* status_request */
    job_status *status; /* being collected */
    bool is_collecting;
    uint32_t question; /* number of this collection */
    int n_missing;     /* nodes that have not answered */
    poll_timer limit;
} agent_status;

/* A failure to listen at the tool's socket is logged only: the job does not need it. */
LS_MUST_USE ls_status agent_status_open(agent_status *v, struct agent *a);
void agent_status_close(agent_status *v); /* zeros are allowed */

/* The last line of the agent for the user, shown as warning. */
void agent_status_note(agent_status *v, const char *line);

void agent_status_ask(agent_status *v, status_request *request);
void agent_status_forget(status_request *request); /* allowed when not set */

/* NODE_STATUS_ASK of the head: sends the ranks of this node. */
LS_MUST_USE ls_status agent_status_answer(struct agent *a, const frame *f);
/* NODE_STATUS of another node, from the head in this process. */
LS_MUST_USE ls_status agent_status_take(void *agent, const frame *f);

/* --- agent_status_socket.c --- */
LS_MUST_USE ls_status status_socket_open(agent_status *v, poller *p, const char *agent_name,
                                         struct status_socket **out);
void status_socket_close(struct status_socket *s); /* NULL is allowed */

/* --- agent_metrics.c --- */

/* Serves http://127.0.0.1:PORT/metrics; 0: no server. LS_ESYSTEM: the port is in use. */
LS_MUST_USE ls_status metrics_port_open(agent_status *v, poller *p, int port,
                                        struct metrics_port **out);
void metrics_port_close(struct metrics_port *m); /* NULL is allowed */

enum { METRICS_REQUEST_MAX = 4095 };

/* Whether n bytes of a request, with a 0 behind them, are enough to answer it. *refusal: the status
 * of HTTP; NULL: it asks for the metrics. Pure. */
bool metrics_request_ends(const char *request, size_t n, const char **refusal);

#endif
