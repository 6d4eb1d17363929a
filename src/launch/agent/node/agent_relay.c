/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_relay.c - see agent_relay.h. Called by agent_link.c.
 */
#include "launch/agent/node/agent_relay.h"

#include "base/file.h"
#include "base/log.h"
#include "launch/head/node_messages.h"
#include "net/socket.h"

#include <unistd.h>

enum { BACKLOG = 4096 };

static void on_connection(void *arg, unsigned events)
{
    relay_port *port = arg;
    int fd = poller_accept(port->watch, "launch");
    uid_t user;
    pid_t pid;

    LS_UNUSED(events);
    if (fd < 0)
        return;
    if (net_peer_user(fd, &user, &pid) != LS_OK || user != geteuid()) {
        file_close(&fd);
        return;
    }
    if (stream_mux_begin(&port->streams, fd) != LS_OK)
        ls_log(LS_LOG_ERROR, "launch", "a connection of a rank: %s", ls_last_error());
}

static ls_status open_port(relay_port *port, const char *purpose)
{
    net_address at;

    if (port->is_open)
        return LS_OK;
    LS_TRY(net_address_fresh_unix(purpose, &at));
    LS_TRY(net_listen(&at, NET_STREAM, BACKLOG, &port->fd, &port->at));
    port->is_open = true;
    return LS_OK;
}

/* Of two ports one may have begun when the other could not. */
static ls_status begin_port(relay_port *port, poller *p, frame_link *link, uint32_t type)
{
    if (!port->is_open || port->watch != NULL)
        return LS_OK;
    stream_mux_init(&port->streams, p, link, type);
    return poller_watch(p, port->fd, POLL_READ, on_connection, port, &port->watch);
}

static void end_port(relay_port *port)
{
    poller_unwatch(&port->watch);
    stream_mux_close(&port->streams);
}

static void close_port(relay_port *port)
{
    end_port(port);
    if (port->is_open)
        file_close(&port->fd);
    port->is_open = false;
}

ls_status agent_relay_begin(agent_relay *r, frame_link *link)
{
    LS_TRY(begin_port(&r->hub, r->loop, link, NODE_HUB_STREAM));
    return begin_port(&r->members, r->loop, link, NODE_MEMBER_STREAM);
}

void agent_relay_end(agent_relay *r)
{
    end_port(&r->hub);
    end_port(&r->members);
}

ls_status agent_relay_receive(agent_relay *r, const frame *f)
{
    relay_port *port = f->type == NODE_HUB_STREAM ? &r->hub : &r->members;

    return port->watch == NULL ? LS_OK : stream_mux_receive(&port->streams, f);
}

void agent_relay_resume(agent_relay *r)
{
    if (r->hub.watch != NULL)
        stream_mux_resume(&r->hub.streams);
    if (r->members.watch != NULL)
        stream_mux_resume(&r->members.streams);
}

ls_status agent_relay_open(agent_relay *r, poller *p)
{
    r->loop = p;
    LS_TRY(open_port(&r->hub, "hub"));
    return open_port(&r->members, "members");
}

void agent_relay_close(agent_relay *r)
{
    close_port(&r->hub);
    close_port(&r->members);
}
