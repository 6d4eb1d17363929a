/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_store.c - MASTER_ADDR and MASTER_PORT, and how PyTorch programs reach the store that the
 * head has for them.
 *
 *   one node             127.0.0.1; the head or this agent listens
 *   several nodes        node 0's address on the network of the job; node 0's agent listens there
 *   with mac or encrypt  127.0.0.1; each node's agent listens, and carries the bytes to the head
 *
 * PyTorch's protocol knows no key. A connection from another node is admitted when that node's
 * agent, which has authenticated to the head, finds in its kernel that a process of the job's user
 * holds the other end.
 */
#include "launch/agent/agent.h"

#include "base/file.h"
#include "net/tcp_user.h"

#include <unistd.h>

static bool has_several_nodes(const agent *a)
{
    return a->place.place.n_nodes > 1;
}

static bool is_on_network(const agent *a)
{
    return has_several_nodes(a) && a->spec->nodes->security == NET_AUTH;
}

/* --- admission --- */

static ls_status enter_store(void *arg, int fd, const char *peer)
{
    agent *a = arg;

    LS_UNUSED(peer);
    a->store_is_used = true;
    return a->head != NULL ? head_serve_store(a->head, fd) : stream_mux_begin(&a->streams, fd);
}

static void ask_owner(void *arg, uint32_t question, const net_address *client,
                      const net_address *server)
{
    agent *a = arg;
    const node_owner_query o = {.generation = a->place.place.generation,
                                .question = question,
                                .client = *client,
                                .server = *server};
    wire_writer w = {0};

    node_write_owner_query(&w, &o);
    agent_send(a, NODE_OWNER_QUERY, &w);
    wire_writer_free(&w);
}

ls_status agent_tell_owner(agent *a, const frame *f)
{
    node_owner_query o;
    uid_t user;
    wire_writer w = {0};
    node_owner_answer answer;

    LS_TRY(node_read_owner_query(f, &o));
    answer = (node_owner_answer){
        .generation = o.generation,
        .question = o.question,
        .is_users = net_tcp_user_of(&o.client, &o.server, &user) == LS_OK && user == geteuid()};
    node_write_owner_answer(&w, &answer);
    agent_send(a, NODE_OWNER_ANSWER, &w);
    wire_writer_free(&w);
    return LS_OK;
}

ls_status agent_take_owned(agent *a, const frame *f)
{
    node_owner_answer answer;

    LS_TRY(node_read_owner_answer(f, &answer));
    if (answer.generation == a->place.place.generation && a->store_listener != NULL)
        user_listener_answer(a->store_listener, answer.question, answer.is_users);
    return LS_OK;
}

/* --- the listener --- */

static ls_status open_listener(agent *a, int port)
{
    user_listener_options options = {
        .name = "store", .port = port, .user = geteuid(), .self = a, .accepted = enter_store};

    if (is_on_network(a)) {
        options.at = a->pick.head;
        options.ports = a->spec->ports;
        options.ask = ask_owner;
    }
    return ls_context(user_listener_open(a->poller, &options, &a->store_listener),
                      "the store for PyTorch programs (--store=none disables it)");
}

void agent_close_store(agent *a)
{
    user_listener_close(a->store_listener);
    a->store_listener = NULL;
}

/* A port that is free now, for a store that rank 0 hosts itself. */
static ls_status find_free_port(const agent *a, int *port)
{
    net_address bound;
    int fd;

    LS_TRY(net_listen_in(&a->pick.head, a->spec->ports, 0, NET_STREAM, 1, &fd, &bound));
    file_close(&fd);
    *port = net_address_port(&bound);
    return LS_OK;
}

ls_status agent_choose_master(agent *a, int *port)
{
    *port = 0;
    if (!has_several_nodes(a) || a->place.place.node != 0)
        return LS_OK;
    if (!a->place.has_store)
        return find_free_port(a, port);
    agent_close_store(a); /* of a generation that did not start */
    LS_TRY(open_listener(a, 0));
    *port = user_listener_port(a->store_listener);
    return LS_OK;
}

ls_status agent_open_store(agent *a, int *port)
{
    const bool is_reached = is_on_network(a) || (a->head != NULL && !has_several_nodes(a));

    *port = a->master_port;
    if (!a->place.has_store || is_reached)
        return LS_OK;
    if (a->store_listener == NULL && open_listener(a, *port) != LS_OK)
        LS_TRY(open_listener(a, 0)); /* the other nodes' port is taken here */
    *port = user_listener_port(a->store_listener);
    return LS_OK;
}

const char *agent_master_host(const agent *a, char *buf, size_t n)
{
    const agent_spec *spec = a->spec;
    const bool is_given = spec->master_addr != NULL &&
                          (spec->nodes == NULL || spec->hosts != NULL || spec->remote != NULL);

    if (!a->place.has_store && is_given)
        return spec->master_addr;
    if (is_on_network(a) || (has_several_nodes(a) && !a->place.has_store))
        return net_address_host(buf, n, &a->pick.head);
    return "127.0.0.1";
}
