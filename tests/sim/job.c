/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.c - the processes of a simulated job apart from its ranks (rank.c): `lockstep run` on each
 * machine, which is the production code; a shim, as launch/isolate/shim.c behaves; and a guardian.
 */
#include "sim/sim.h"

#include "base/text.h"
#include "launch/agent/node/agent_spec.h"
#include "launch/isolate/shim.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { GRACE_MS = 3000 };

/* --- lockstep run --- */

static void fill_key(net_key *key)
{
    *key = (net_key){.origin = "simulated"};
    memset(key->bytes, 0x5a, sizeof(key->bytes));
}

static ls_status run_agent(const scenario *s, int node, agent_result *result)
{
    net_key key;
    job_spec job = JOB_SPEC_DEFAULTS;
    agent_nodes nodes = {.is_head = node == 0,
                         .head = "10.0.0.1:29500",
                         .key = &key,
                         .id = s->by_arrival ? -1 : node};
    agent_spec spec = {.n_ranks = s->n_local,
                       .job = &job,
                       .fn = job_rank,
                       .capture = true,
                       .prefix = true,
                       .nodes = &nodes,
                       .rendezvous = {.by_id = !s->by_arrival,
                                      .min_nodes = s->n_nodes,
                                      .max_nodes = s->n_nodes,
                                      .max_restarts = s->max_restarts,
                                      .min_ranks = s->is_elastic ? 1 : 0,
                                      .run_name = "sim",
                                      .join_ms = JOIN_MS}};

    fill_key(&key);
    job.grace_ms = GRACE_MS;
    LS_TRY(net_address_decode("10.0.0.1:29500", &nodes.listen));
    return agent_run(&spec, result);
}

void job_check_leaks(const process *p)
{
    for (int i = 3; i < FDS_MAX; i++)
        if (p->fds[i] != NULL)
            world_fail("%s ends with descriptor %d (kind %d) open", p->name, i, p->fds[i]->kind);
    if (p->n_blocks > 0)
        world_fail("%s ends with %" PRIu64 " blocks of memory", p->name, p->n_blocks);
}

static void agent_main(void *arg)
{
    process *p = W->current;
    machine *h = &W->hosts[p->host];
    agent_result result = {0};
    ls_status st;

    (void)arg;
    st = run_agent(W->spec, p->host, &result);
    h->exit_code = st == LS_OK ? result.exit_code : st == LS_EINVAL ? 2 : 1;
    if (st != LS_OK)
        history_error(p, ls_last_error());
    else if (result.failed)
        history_error(p, text_str(&result.report));
    text_free(&result.report);
    h->has_ended = true;
    h->ended_at = W->now;
    world_log("%s ends with exit code %d", p->name, h->exit_code);
    job_check_leaks(p);
    process_die(p, h->exit_code << 8);
}

static void start_agent(void *arg, uint64_t node)
{
    process *p;

    (void)arg;
    if (W->hosts[node].is_off)
        return;
    p = process_new(ROLE_AGENT, (int)node, NULL, agent_main, NULL);
    (void)snprintf(p->name, sizeof(p->name), "agent %d", (int)node);
    p->env = environment_make(NULL, "LOCKSTEP_MEET_MS", "20000");
    environment_add(p, "LOCKSTEP_TRANSPORT", "tcp");
    if (getenv("SIM_LOG") != NULL)
        environment_add(p, "LOCKSTEP_LOG", "debug");
    for (int i = 0; i < 3; i++) {
        object *console = object_new(i == 0 ? OBJECT_NULL : OBJECT_CONSOLE);

        console->refs = 1;
        p->fds[i] = console;
    }
    W->hosts[node].agent = p;
}

void job_start(void)
{
    for (int i = 0; i < W->spec->n_nodes; i++)
        world_at(W->now + (int64_t)world_random(300 * MS), start_agent, NULL, (uint64_t)i);
}

/* --- what the launcher forks --- */

static void send_record(shim_status status, int value)
{
    const shim_record record = {.status = (int32_t)status, .value = value};

    (void)stream_send(W->current->fds[3], &record, sizeof(record));
}

static void wait_for_agent_or_rank(object *agent)
{
    watch w = {.target = agent, .waiter = W->current, .events = EPOLLIN};

    w.next_of_target = agent->watchers;
    agent->watchers = &w;
    W->current->waits = &w;
    process_wait(NEVER);
    for (watch **at = &agent->watchers; *at != NULL; at = &(*at)->next_of_target)
        if (*at == &w) {
            *at = w.next_of_target;
            break;
        }
    W->current->waits = NULL;
}

void job_shim(void *arg)
{
    process *p = W->current;
    object *agent = p->fds[3];
    unsigned char number;

    (void)arg;
    send_record(SHIM_STARTED, p->rank->pid);
    while (!p->rank->is_dead) {
        if ((object_ready(agent) & EPOLLIN) == 0) {
            wait_for_agent_or_rank(agent);
            continue;
        }
        if (stream_receive(agent, &number, 1, false) <= 0)
            break;
        process_signal(p->rank, number);
    }
    if (p->rank->is_dead)
        send_record(SHIM_ENDED, p->rank->wait_status);
    process_die(p->rank, SIGKILL);
}

/* What it finds by the marks of the job is what this launcher has started. */
void job_guardian(void *arg)
{
    process *p = W->current;

    (void)arg;
    while ((object_ready(p->fds[3]) & EPOLLIN) == 0)
        wait_for_agent_or_rank(p->fds[3]);
    for (process *other = W->processes; other != NULL; other = other->next)
        if (other->host == p->host && (other->role == ROLE_SHIM || other->role == ROLE_RANK) &&
            (other->parent == p->parent || other->parent->parent == p->parent))
            process_die(other, SIGKILL);
}
