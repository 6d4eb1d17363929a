/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_status_socket.c - serves the status of a job to processes of the same user on this host
 * (status_client.h). The socket is abstract, so nothing remains of it however the agent ends. The
 * user of a connection is checked before anything is read. Driven by the poller.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/status/status_client.h"
#include "net/messages/frame_link.h"
#include "net/socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CLIENTS_MAX = 16,
    BACKLOG = 16,
    ANSWER_QUEUE_MAX = 128 * 1024 * 1024, /* of 65536 ranks */
    LOG_PAUSE_MS = 1000
};

typedef struct status_socket status_socket;

typedef struct status_peer {
    status_socket *owner;
    bool is_used; /* until the link has reported its end */
    frame_link link;
    status_request request;
} status_peer;

struct status_socket {
    agent_status *status;
    poller *loop;
    int fd;
    poll_watch *watch;
    status_peer peers[CLIENTS_MAX];
    int64_t last_refusal_ms;
};

static void send_status(void *peer, const job_status *v)
{
    status_peer *p = peer;
    text_buf text = {0};
    json_writer w;

    json_begin(&w, &text);
    job_status_write(v, &w);
    if (text_status(&text) == LS_OK)
        frame_link_send(&p->link, STATUS_ANSWER, text_str(&text), text.length);
    text_free(&text);
}

static ls_status on_message(void *peer, const frame *f)
{
    status_peer *p = peer;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t rank = wire_read_u32(&r);

    LS_TRY(wire_reader_end(&r, "a request for a status"));
    if (f->type != STATUS_ASK)
        return ls_fail(LS_EPROTO, "message %u at the socket of lockstep top", f->type);
    if (p->request.is_set)
        return ls_fail(LS_EPROTO, "a second request before the answer to the first");
    p->request.rank = rank < STATUS_RANKS_MAX ? (int)rank : -1;
    p->request.done = send_status;
    p->request.arg = p;
    agent_status_ask(p->owner->status, &p->request);
    return LS_OK;
}

static void on_ended(void *peer, const char *why)
{
    status_peer *p = peer;

    LS_UNUSED(why);
    agent_status_forget(&p->request);
    frame_link_close(&p->link);
    p->is_used = false;
}

static void log_refusal(status_socket *s)
{
    if (log_every(&s->last_refusal_ms, LOG_PAUSE_MS))
        ls_log(LS_LOG_WARN, "launch", "refused a connection for lockstep top: %s", ls_last_error());
}

/* The poller may report a new connection before the end of an older one. */
static bool has_left(const status_peer *p)
{
    char byte;
    const ssize_t n = recv(p->link.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static status_peer *free_peer(status_socket *s)
{
    for (int i = 0; i < CLIENTS_MAX; i++)
        if (!s->peers[i].is_used)
            return &s->peers[i];
    for (int i = 0; i < CLIENTS_MAX; i++) {
        if (has_left(&s->peers[i])) {
            on_ended(&s->peers[i], "");
            return &s->peers[i];
        }
    }
    return NULL;
}

static ls_status admit(status_socket *s, int *fd)
{
    status_peer *p = free_peer(s);
    uid_t user;
    int taken;

    LS_TRY(net_peer_user(*fd, &user, NULL));
    if (user != geteuid())
        return ls_fail(LS_EAUTH, "the connection belongs to user %u", (unsigned)user);
    if (p == NULL)
        return ls_fail(LS_ESYSTEM, "%d connections are open", CLIENTS_MAX);
    p->link = (frame_link){.self = p, .message = on_message, .ended = on_ended};
    taken = *fd;
    *fd = -1;
    LS_TRY(frame_link_open(&p->link, s->loop, taken, "lockstep top", STATUS_ASK_BYTES,
                           ANSWER_QUEUE_MAX));
    p->is_used = true;
    return LS_OK;
}

static void on_connection(void *socket, unsigned events)
{
    status_socket *s = socket;
    int fd = poller_accept(s->watch, "launch");

    LS_UNUSED(events);
    if (fd < 0)
        return;
    if (admit(s, &fd) != LS_OK)
        log_refusal(s);
    file_close(&fd);
}

ls_status status_socket_open(agent_status *v, poller *p, const char *agent_name,
                             status_socket **out)
{
    status_socket *s;
    net_address at;
    ls_status st;

    LS_TRY(LS_NEW(&s, 1, "for the socket of lockstep top"));
    s->status = v;
    s->loop = p;
    s->fd = -1;
    for (int i = 0; i < CLIENTS_MAX; i++)
        s->peers[i].owner = s;
    st = status_address(agent_name, &at);
    if (st == LS_OK)
        st = net_listen(&at, NET_STREAM, BACKLOG, &s->fd, NULL);
    if (st == LS_OK)
        st = poller_watch(p, s->fd, POLL_READ, on_connection, s, &s->watch);
    if (st == LS_OK)
        *out = s;
    else
        status_socket_close(s);
    return st;
}

void status_socket_close(status_socket *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < CLIENTS_MAX; i++) {
        agent_status_forget(&s->peers[i].request);
        if (s->peers[i].is_used)
            frame_link_close(&s->peers[i].link);
    }
    poller_close(&s->watch, &s->fd);
    ls_free(s);
}
