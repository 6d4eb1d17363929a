/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/engine.h"

#include <unistd.h>

#define HUB_FDS_MAX 4096 /* descriptors that are looked at */

/*
 * The only state of comm that is not inside a group: the kernel forks processes, not groups, so the
 * hook that closes inherited connections must find all engines. Without it a child that outlives
 * its rank (a data worker) would keep the rank's connections open, and nobody would notice its
 * death.
 */
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

/*
 * Whether it is a stream socket at the hub's address. A hub at all addresses of this host has taken
 * its connections at any of them; its port is nobody else's then.
 */
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

/*
 * The hub thread of rank 0 may have been anywhere in its lists, so its sockets are found from
 * outside: they are those whose own address is the hub's.
 */
static void close_hub(const net_address *served_at)
{
    for (int fd = 0; fd < HUB_FDS_MAX; fd++)
        if (is_of_hub(fd, served_at))
            (void)close(fd);
}

/* Other threads are gone and may have held any lock: descriptors are closed, nothing else is
 * touched. */
static void after_fork_in_child(void)
{
    list_for_each (it, &registry) {
        engine *e = list_entry(it, engine, fork_node);

        e->is_forked = true;
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
