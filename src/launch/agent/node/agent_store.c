/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_store.c - chooses MASTER_ADDR and MASTER_PORT and listens for PyTorch programs. Only
 * connections of the job's user are accepted. Called by the agent around the start of the ranks.
 */
#include "launch/agent/node/agent_store.h"

#include "base/file.h"
#include "net/tcp_user.h"

#include <unistd.h>

static const agent_context *context_of(const agent_store *s)
{
    return s->link->ctx;
}

static bool has_several_nodes(const agent_store *s)
{
    return context_of(s)->place.place.n_nodes > 1;
}

/* Ranks of all nodes connect to node 0's agent directly. */
static bool is_on_network(const agent_store *s)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): several nodes have it
    return has_several_nodes(s) && context_of(s)->spec->nodes->security == NET_AUTH;
}

/* --- admission --- */

static ls_status accept_program(void *arg, int fd, const char *peer)
{
    agent_store *s = arg;

    LS_UNUSED(peer);
    s->is_used = true;
    return s->link->head != NULL ? head_serve_store(s->link->head, fd)
                                 : stream_mux_begin(&s->link->streams, fd);
}

static void ask_owner(void *arg, uint32_t question, const net_address *client,
                      const net_address *server)
{
    const agent_store *s = arg;
    const node_owner_query o = {.generation = agent_generation(context_of(s)),
                                .question = question,
                                .client = *client,
                                .server = *server};
    wire_writer w = {0};

    node_write_owner_query(&w, &o);
    agent_send(context_of(s), NODE_OWNER_QUERY, &w);
}

ls_status agent_store_answer_owner(const agent_store *s, const frame *f)
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
    agent_send(context_of(s), NODE_OWNER_ANSWER, &w);
    return LS_OK;
}

ls_status agent_store_take_owned(agent_store *s, const frame *f)
{
    node_owner_answer answer;

    LS_TRY(node_read_owner_answer(f, &answer));
    if (answer.generation == agent_generation(context_of(s)) && s->listener != NULL)
        user_listener_answer(s->listener, answer.question, answer.is_users);
    return LS_OK;
}

/* --- the listener --- */

static ls_status open_listener(agent_store *s, int port)
{
    user_listener_options options = {
        .name = "store", .port = port, .user = geteuid(), .self = s, .accepted = accept_program};

    if (is_on_network(s)) {
        options.at = s->network->pick.head;
        options.ports = context_of(s)->spec->job->ports;
        options.ask = ask_owner;
    }
    return ls_context(user_listener_open(context_of(s)->poller, &options, &s->listener),
                      "the store for PyTorch programs (--store=none disables it)");
}

void agent_store_close(agent_store *s)
{
    user_listener_close(s->listener);
    s->listener = NULL;
}

/* A port that is free now, for a store that rank 0 hosts itself. */
static ls_status find_free_port(const agent_store *s, int *port)
{
    net_address bound;
    int fd;

    LS_TRY(net_listen_in(&s->network->pick.head, context_of(s)->spec->job->ports, 0, NET_STREAM, 1,
                         &fd, &bound));
    file_close(&fd);
    *port = net_address_port(&bound);
    return LS_OK;
}

ls_status agent_store_choose_port(agent_store *s, int *port)
{
    *port = 0;
    if (!has_several_nodes(s) || context_of(s)->place.place.node != 0)
        return LS_OK;
    if (!context_of(s)->place.has_store)
        return find_free_port(s, port);
    agent_store_close(s); /* of a generation that did not start */
    LS_TRY(open_listener(s, 0));
    *port = user_listener_port(s->listener);
    return LS_OK;
}

ls_status agent_store_open(agent_store *s, int *port)
{
    const bool is_reachable = is_on_network(s) || (s->link->head != NULL && !has_several_nodes(s));

    *port = s->master_port;
    if (!context_of(s)->place.has_store || is_reachable)
        return LS_OK;
    if (s->listener == NULL && open_listener(s, *port) != LS_OK)
        LS_TRY(open_listener(s, 0)); /* another process has the job's port on this node */
    *port = user_listener_port(s->listener);
    return LS_OK;
}

const char *agent_store_host(const agent_store *s, char *buf, size_t n)
{
    const agent_spec *spec = context_of(s)->spec;
    const bool has_store = context_of(s)->place.has_store;
    const bool is_given = spec->job->master_addr != NULL &&
                          (spec->nodes == NULL || spec->hosts != NULL || spec->remote != NULL);

    if (!has_store && is_given)
        return spec->job->master_addr;
    if (is_on_network(s) || (has_several_nodes(s) && !has_store))
        return net_address_host(buf, n, &s->network->pick.head);
    return "127.0.0.1";
}
