/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_agent.c - the agent's part in a check of several hosts: passes frames between its
 * stdin and stdout and the checks of its machine (hosts_check_node.c) until stdin ends. Called by
 * lockstep agent.
 */
#include "diagnose/hosts/hosts_check.h"

#include "diagnose/hosts/hosts_check_node.h"

#include <errno.h>
#include <unistd.h>

enum { READ_BYTES = 65536 };

typedef struct hosts_check_agent {
    const agent_remote *remote;
    hosts_check_node *node;
    frame_reader in;
    bool is_over;
    ls_status failure;
} hosts_check_agent;

/* A failed write means that the starter has exited, which ends the agent. */
static void send_message(void *self, hosts_check_message type, const wire_writer *body)
{
    hosts_check_agent *a = self;

    a->is_over |= hosts_check_write(a->remote->out_fd, "the starter", type, body) != LS_OK;
}

static void on_stdin(void *arg, unsigned events)
{
    hosts_check_agent *a = arg;
    static char bytes[READ_BYTES];
    const ssize_t n = read(a->remote->in_fd, bytes, sizeof(bytes));
    bool have = true;
    ls_status st;
    frame f;

    LS_UNUSED(events);
    if (n < 0 && errno == EINTR)
        return;
    if (n <= 0) {
        a->is_over = true;
        return;
    }
    st = frame_reader_feed(&a->in, bytes, (size_t)n);
    while (st == LS_OK && have && !a->is_over) {
        st = frame_reader_next(&a->in, &f, &have);
        if (st == LS_OK && have)
            st = hosts_check_node_receive(a->node, &f);
    }
    a->failure = st;
    a->is_over |= st != LS_OK;
}

static ls_status run(hosts_check_agent *a, poller *loop, const hosts_check_request *task,
                     const check_sources *sources)
{
    const hosts_check_node_options options = {.loop = loop,
                                              .key = &task->base.key,
                                              .node = task->base.node,
                                              .net = task->base.job.net,
                                              .ports = task->base.job.ports,
                                              .checks = {.n_ranks = task->n_ranks,
                                                         .several_nodes = true,
                                                         .master_port = task->master_port,
                                                         .tries_gpus = task->tries_gpus,
                                                         .sources = sources},
                                              .is_quick = task->is_quick,
                                              .folder = task->base.folder,
                                              .self = a,
                                              .send = send_message};
    poll_watch *watch = NULL;
    ls_status st = hosts_check_node_open(&options, &a->node);

    if (st == LS_OK)
        st = poller_watch(loop, a->remote->in_fd, POLL_READ, on_stdin, a, &watch);
    while (st == LS_OK && !a->is_over)
        st = poller_run_once(loop, -1);
    poller_unwatch(&watch);
    hosts_check_node_close(a->node);
    return st == LS_OK ? a->failure : st;
}

ls_status hosts_check_agent_run(const hosts_check_request *task, const agent_remote *remote,
                                const check_sources *sources)
{
    hosts_check_agent a = {.remote = remote};
    poller *loop;
    ls_status st;

    LS_TRY(poller_create(&loop));
    frame_reader_init(&a.in, LAUNCH_REQUEST_BODY_MAX);
    st = run(&a, loop, task, sources);
    frame_reader_free(&a.in);
    poller_destroy(loop);
    return st;
}
