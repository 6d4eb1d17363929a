/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_metrics.c - --metrics-port: serves the status of a job to Prometheus, in its text format
 * (version 0.0.4), at http://127.0.0.1:PORT/metrics. One request a connection; requests are bounded
 * in size and time. Driven by the poller.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/file.h"
#include "launch/status/metrics_text.h"
#include "net/socket.h"
#include "net/tcp_user.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { CLIENTS_MAX = 16, BACKLOG = 64, CLIENT_MS = 5000 };

typedef struct metrics_port metrics_port;

typedef struct metrics_client {
    metrics_port *owner;
    int fd; /* -1: a free slot */
    poll_watch *watch;
    poll_timer limit;
    char request[METRICS_REQUEST_MAX + 1];
    size_t n_request;
    bool is_read;
    status_request asked;
    text_buf answer;
    size_t n_sent;
} metrics_client;

struct metrics_port {
    agent_status *status;
    poller *loop;
    int fd;
    bool is_for_all; /* users of this machine */
    poll_watch *watch;
    metrics_client clients[CLIENTS_MAX];
};

static void end_client(void *arg)
{
    metrics_client *c = arg;

    poller_timer_cancel(&c->limit);
    poller_unwatch(&c->watch);
    agent_status_forget(&c->asked);
    text_free(&c->answer);
    file_close(&c->fd);
}

static void send_rest(metrics_client *c)
{
    size_t moved;

    while (c->n_sent < c->answer.length) {
        if (net_send_some(c->fd, "Prometheus", text_str(&c->answer) + c->n_sent,
                          c->answer.length - c->n_sent, &moved) != LS_OK) {
            end_client(c);
            return;
        }
        if (moved == 0) {
            if (poller_change(c->watch, POLL_WRITE) != LS_OK)
                end_client(c);
            return;
        }
        c->n_sent += moved;
    }
    end_client(c);
}

static void answer(metrics_client *c, const char *status, const char *type, const text_buf *body)
{
    text_append(&c->answer,
                "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                "Connection: close\r\n\r\n",
                status, type, body->length);
    text_append_bytes(&c->answer, text_str(body), body->length);
    if (text_status(&c->answer) == LS_OK)
        send_rest(c);
    else
        end_client(c);
}

static void refuse(metrics_client *c, const char *status)
{
    text_buf body = {0};

    text_append(&body,
                "%s: the metrics are at GET http://localhost:PORT/metrics, for the user of the "
                "job; for all users of this machine with LOCKSTEP_METRICS_USERS=all\n",
                status);
    answer(c, status, "text/plain; charset=utf-8", &body);
    text_free(&body);
}

static void send_metrics(void *arg, const job_status *v)
{
    metrics_client *c = arg;
    text_buf body = {0};

    metrics_text(v, &body);
    if (text_status(&body) == LS_OK)
        answer(c, "200 OK", "text/plain; version=0.0.4; charset=utf-8", &body);
    else
        end_client(c);
    text_free(&body);
}

/* Whether this is the value of a Host header that names this machine, with or without a port. */
static bool is_local_host(const char *value, size_t n)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};

    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        const size_t length = strlen(names[i]);

        if (n < length || strncasecmp(value, names[i], length) != 0)
            continue;
        if (n == length ||
            (value[length] == ':' && strspn(value + length + 1, "0123456789") >= n - length - 1))
            return true;
    }
    return false;
}

/* A web page whose name resolves to this machine (DNS rebinding) sends its own name. A request of
 * HTTP/1.0 needs no Host header; browsers always send one. */
static bool has_local_host(const char *request)
{
    static const char name[] = "\nHost:";
    const char *at = request;

    while ((at = strcasestr(at, name)) != NULL) {
        size_t n;

        at += strlen(name);
        at += strspn(at, " \t");
        n = strcspn(at, "\r\n");
        while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t'))
            n--;
        if (!is_local_host(at, n))
            return false;
    }
    return true;
}

/* The path may have a query; of the headers only Host has an effect. */
bool metrics_request_ends(const char *request, size_t n, const char **refusal)
{
    static const char wanted[] = "GET /metrics";
    const char *end = strstr(request, "\r\n\r\n");

    *refusal = NULL;
    if (end == NULL && strlen(request) == n && n < METRICS_REQUEST_MAX)
        return false;
    if (end == NULL)
        *refusal = "400 Bad Request";
    else if (!text_starts(request, "GET "))
        *refusal = "405 Method Not Allowed";
    else if (!has_local_host(request))
        *refusal = "403 Forbidden";
    else if (!text_starts(request, wanted) || strchr(" ?", request[sizeof(wanted) - 1]) == NULL)
        *refusal = "404 Not Found";
    return true;
}

static void ask_status(metrics_client *c)
{
    c->asked.rank = -1;
    c->asked.done = send_metrics;
    c->asked.arg = c;
    if (poller_change(c->watch, 0) == LS_OK)
        agent_status_ask(c->owner->status, &c->asked);
    else
        end_client(c);
}

/* The user of the job, and root. */
static bool is_allowed(const metrics_client *c)
{
    uid_t uid;

    return c->owner->is_for_all ||
           (net_tcp_user(c->fd, &uid) == LS_OK && (uid == geteuid() || uid == 0));
}

static void read_request(metrics_client *c)
{
    const char *refusal;
    size_t moved;

    if (net_recv_some(c->fd, "Prometheus", c->request + c->n_request,
                      METRICS_REQUEST_MAX - c->n_request, &moved) != LS_OK) {
        end_client(c);
        return;
    }
    c->n_request += moved;
    c->request[c->n_request] = '\0';
    c->is_read = metrics_request_ends(c->request, c->n_request, &refusal);
    if (!c->is_read)
        return;
    if (refusal == NULL && !is_allowed(c))
        refusal = "403 Forbidden";
    if (refusal != NULL)
        refuse(c, refusal);
    else
        ask_status(c);
}

static void on_client(void *client, unsigned events)
{
    metrics_client *c = client;

    if (!c->is_read)
        read_request(c);
    else if (c->answer.length > 0)
        send_rest(c);
    else if ((events & POLL_BROKEN) != 0)
        end_client(c);
}

static metrics_client *free_client(metrics_port *m)
{
    for (int i = 0; i < CLIENTS_MAX; i++)
        if (m->clients[i].fd < 0)
            return &m->clients[i];
    return NULL;
}

static void on_connection(void *port, unsigned events)
{
    metrics_port *m = port;
    metrics_client *c = free_client(m);
    int fd = poller_accept(m->watch, "launch");

    LS_UNUSED(events);
    if (fd < 0)
        return;
    if (c == NULL) {
        file_close(&fd);
        return;
    }
    *c = (metrics_client){.owner = m, .fd = fd};
    poller_timer_set(m->loop, &c->limit, ls_now_ms() + CLIENT_MS, end_client, c);
    if (poller_watch(m->loop, fd, POLL_READ, on_client, c, &c->watch) != LS_OK)
        end_client(c);
}

ls_status metrics_port_open(agent_status *v, poller *p, int port, metrics_port **out)
{
    const char *users;
    metrics_port *m;
    net_address at;
    ls_status st;

    if (port == 0)
        return LS_OK;
    LS_TRY(config_text(CONFIG_METRICS_USERS, &users));
    if (!text_equal(users, "own") && !text_equal(users, "all"))
        return ls_fail(LS_EINVAL, "LOCKSTEP_METRICS_USERS=%.20s: must be own or all", users);
    LS_TRY(LS_NEW(&m, 1, "for --metrics-port"));
    m->status = v;
    m->loop = p;
    m->is_for_all = text_equal(users, "all");
    m->fd = -1;
    for (int i = 0; i < CLIENTS_MAX; i++)
        m->clients[i].fd = -1;
    st = net_address_parse("127.0.0.1", port, &at);
    if (st == LS_OK)
        st = net_listen(&at, NET_STREAM, BACKLOG, &m->fd, NULL);
    if (st == LS_OK)
        st = poller_watch(p, m->fd, POLL_READ, on_connection, m, &m->watch);
    if (st != LS_OK) {
        metrics_port_close(m);
        return ls_fail(st, "--metrics-port %d: %s", port, ls_last_error());
    }
    *out = m;
    return LS_OK;
}

void metrics_port_close(metrics_port *m)
{
    if (m == NULL)
        return;
    for (int i = 0; i < CLIENTS_MAX; i++)
        if (m->clients[i].fd >= 0)
            end_client(&m->clients[i]);
    poller_close(&m->watch, &m->fd);
    ls_free(m);
}
