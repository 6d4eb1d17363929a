/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forked.c - closes the connections that a forked child inherits, for engine.c. The handler in the
 * child calls close() and the like only, because other threads may have held any lock.
 */
#include "comm/engine.h"

#include <unistd.h>

#define FDS_MAX 4096 /* descriptors that are checked */

/* The only global state of comm: the fork handler must find all engines. Otherwise a child that
 * outlives its rank (a data worker) would keep its connections open. */
static pthread_mutex_t registry_mu = PTHREAD_MUTEX_INITIALIZER;
static list_node registry = {&registry, &registry};
static pthread_once_t hook_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    (void)pthread_mutex_lock(&registry_mu);
}

static void after_fork_in_parent(void)
{
    (void)pthread_mutex_unlock(&registry_mu);
}

/* Whether it is a stream socket at the hub's address. The connections of a hub at all addresses
 * have any address of this host and the hub's port, which no other process can have. */
static bool is_of_hub(int fd, const net_address *served_at)
{
    net_address at = {.bytes = sizeof(at.socket)};
    int type = 0;
    socklen_t bytes = sizeof(type);

    if (getsockname(fd, (struct sockaddr *)&at.socket, &at.bytes) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM)
        return false;
    if (net_address_is_any(served_at))
        return net_address_family(&at) == net_address_family(served_at) &&
               net_address_port(&at) == net_address_port(served_at);
    return net_address_equal(&at, served_at);
}

/* The hub's lists may be inconsistent, so the child finds the hub's sockets by their address. */
static void close_hub(const net_address *served_at)
{
    for (int fd = 0; fd < FDS_MAX; fd++)
        if (is_of_hub(fd, served_at))
            (void)close(fd);
}

static void after_fork_in_child(void)
{
    list_for_each (it, &registry) {
        engine *e = list_entry(it, engine, fork_node);

        e->is_forked = true;
        ls_mutex_init(&e->mu); // the parent's progress thread may have held it
        if (e->parts.control != NULL)
            (void)close(control_fd(e->parts.control));
        if (e->parts.control_fd >= 0)
            (void)close(e->parts.control_fd);
        if (e->parts.hub != NULL)
            close_hub(hub_thread_address(e->parts.hub));
        if (e->parts.backend != NULL && e->parts.ops->forked != NULL)
            e->parts.ops->forked(e->parts.backend);
    }
    (void)pthread_mutex_unlock(&registry_mu);
}

static void install_hook(void)
{
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void forked_add(engine *e)
{
    (void)pthread_once(&hook_once, install_hook);
    (void)pthread_mutex_lock(&registry_mu);
    list_append(&registry, &e->fork_node);
    (void)pthread_mutex_unlock(&registry_mu);
}

void forked_remove(engine *e)
{
    (void)pthread_mutex_lock(&registry_mu);
    list_remove(&e->fork_node);
    (void)pthread_mutex_unlock(&registry_mu);
}
