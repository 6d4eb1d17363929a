/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_ranks.c - starts the ranks of one generation on this node, each below a shim, and closes
 * them when they have ended; agent_watch.c handles them in between. After a failed start nothing of
 * the generation remains. Called by agent_messages.c and by the loop.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/file.h"
#include "comm/record/recorder.h"
#include "host/cores.h"
#include "host/process.h"
#include "launch/agent/rank_args.h"
#include "launch/agent/rank_env.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* --- one rank --- */

/* What a shim is started with; freed here when the shim runs. */
typedef struct rank_start {
    shim_spec shim;
    rank_binding binding;
    int input_fd; /* its stdin, where the agent writes it; -1 */
    char **argv;
    char **env;
} rank_start;

static ls_status make_texts(const agent *a, const rank_place *place, rank_start *s)
{
    if (a->ctx.spec->job->argv != NULL)
        LS_TRY(rank_args_make(a->ctx.spec->job->argv, place->local_rank, &s->argv));
    LS_TRY(rank_env_make(environ, place, &s->env));
    s->shim.argv = s->argv;
    s->shim.environment = s->env;
    return LS_OK;
}

static void free_start(rank_start *s)
{
    rank_args_free(s->argv);
    rank_env_free(s->env);
    s->argv = NULL;
    s->env = NULL;
    file_close(&s->shim.agent_fd);
    file_close(&s->shim.stdout_fd);
    file_close(&s->shim.stderr_fd);
    file_close(&s->shim.pmi_fd);
    file_close(&s->shim.listen_fd);
    file_close(&s->input_fd);
}

static ls_status open_shim(agent_rank *r, int *childs_end)
{
    LS_TRY(process_make_channel(&r->shim_fd, childs_end));
    if (fcntl(r->shim_fd, F_SETFL, O_NONBLOCK) != 0)
        return ls_fail_errno("a socket to the shim of rank %d", r->rank);
    return poller_watch(r->agent->ctx.poller, r->shim_fd, POLL_READ, agent_on_status, r,
                        &r->status_watch);
}

/* What only the first process in the place of a rank has: input, files, and PMI. */
static ls_status open_first_ends(agent *a, const agent_rank *r, rank_start *s, char *error_path,
                                 size_t n)
{
    const int local = agent_local_rank(r);
    shim_spec *shim = &s->shim;

    if (r->rank == 0)
        LS_TRY(agent_input_open(&a->input, shim->stdout_fd, &s->input_fd));
    shim->stdin_fd = s->input_fd < 0 && r->rank == 0 ? STDIN_FILENO : s->input_fd;
    LS_TRY(agent_logs_open_rank(&a->output.ranks[local], error_path, n));
    return agent_pmi_open_rank(&a->pmi, local, &shim->pmi_fd);
}

/* Opens what connects the agent with the rank: the agent's ends in *r, the rank's in *s. */
static ls_status open_ends(agent *a, agent_rank *r, bool is_first, rank_start *s, char *error_path,
                           size_t n)
{
    const int local = agent_local_rank(r);
    shim_spec *shim = &s->shim;

    LS_TRY(recorder_create_fd(&r->ring_fd));
    shim->ring_fd = r->ring_fd;
    a->output.ranks[local].ring_fd = r->ring_fd;
    LS_TRY(open_shim(r, &shim->agent_fd));
    if (a->ctx.spec->capture) {
        LS_TRY(agent_output_open_stream(&a->output, local, 0, &shim->stdout_fd));
        LS_TRY(agent_output_open_stream(&a->output, local, 1, &shim->stderr_fd));
    }
    if (is_first)
        LS_TRY(open_first_ends(a, r, s, error_path, n));
    else if (r->is_vacant)
        LS_TRY(agent_logs_open_rank(&a->output.ranks[local], error_path, n));
    return agent_network_listen(&a->network, r->rank, &shim->listen_fd);
}

/* Columns for the lines of rank 0, which is the only one that draws; 0: no terminal shows them. */
static int columns_of(const agent *a, const agent_rank *r)
{
    const agent_spec *spec = a->ctx.spec;
    const bool has_terminal =
        spec->remote != NULL ? spec->remote->terminal : a->output.sinks[1].terminal;

    if (r->rank != 0 || !spec->capture || !has_terminal ||
        !agent_logs_shows(&a->output.ranks[agent_local_rank(r)], 1))
        return 0;
    return agent_terminal_size(&a->output, a->ctx.place.place.world_size).columns;
}

/* Chooses the cores of a rank, and gives it no more threads than these. */
static ls_status bind_rank(const agent *a, rank_place *place, rank_binding *out)
{
    const binding_kind kind = a->ctx.spec->job->binding;
    topology *t;
    binding_gpus gpus;
    cpu_mask allowed;
    ls_status st;

    memset(out, 0, sizeof(*out));
    if (kind == BINDING_NONE)
        return LS_OK;
    LS_TRY(LS_NEW(&t, 1, "for the cores of this machine"));
    cpu_mask_of_process(&allowed);
    binding_read_gpus("", getenv("CUDA_VISIBLE_DEVICES"), &gpus); // NOLINT(concurrency-mt-unsafe)
    st = topology_read("", t);
    if (st == LS_OK)
        st = binding_choose(t, &allowed, &gpus, kind, place->local_rank, a->ctx.spec->n_ranks, out);
    ls_free(t);
    if (st == LS_OK && cpu_mask_count(&out->cores) < place->threads)
        place->threads = cpu_mask_count(&out->cores);
    return st;
}

static ls_status prepare_rank(agent *a, agent_rank *r, const rank_place *job, rank_start *s)
{
    char error_path[sizeof(a->output.logs.path) + 64] = "";
    rank_place place = *job;

    *s = (rank_start){.shim = {.fn = a->ctx.spec->fn,
                               .fn_arg = a->ctx.spec->fn_arg,
                               .local_rank = agent_local_rank(r),
                               .agent_fd = -1,
                               .stdin_fd = -1,
                               .stdout_fd = -1,
                               .stderr_fd = -1,
                               .key_fd = a->key_fd,
                               .pmi_fd = -1,
                               .listen_fd = -1,
                               .error_fd = -1,
                               .group = &a->containment.group,
                               .binding = &s->binding,
                               .proc_fd = -1,
                               .mask = a->signals.old_mask,
                               .users = &a->users},
                      .input_fd = -1};
    LS_TRY(open_ends(a, r, !job->is_new_member, s, error_path, sizeof(error_path)));
    place.rank = r->rank;
    if (!job->is_new_member)
        place.member = r->rank;
    place.local_rank = s->shim.local_rank;
    place.ring_fd = s->shim.ring_fd;
    place.is_traced = a->ctx.place.collects_rings;
    place.listen_fd = s->shim.listen_fd;
    place.pmi_fd = s->shim.pmi_fd;
    place.error_file = error_path[0] != 0 ? error_path : NULL;
    if (a->ctx.spec->job->isolate)
        s->shim.error_fd = a->output.ranks[place.local_rank].error_fd;
    place.columns = columns_of(a, r);
    LS_TRY(bind_rank(a, &place, &s->binding));
    return make_texts(a, &place, s);
}

static ls_status open_rank(agent *a, agent_rank *r, const rank_place *job)
{
    rank_start s;
    ls_status st = prepare_rank(a, r, job, &s);

    if (st == LS_OK)
        st = shim_start(&s.shim, &r->shim);
    free_start(&s);
    return st;
}

/* --- isolated ranks: one process starts all shims --- */

typedef struct rank_starts {
    rank_start *list;
    int n;
} rank_starts;

static void start_inside(void *arg, int proc_fd)
{
    rank_starts *starts = arg;

    for (int i = 0; i < starts->n; i++) {
        starts->list[i].shim.proc_fd = proc_fd;
        shim_start_inside(&starts->list[i].shim);
    }
}

static ls_status open_isolated(agent *a, const rank_place *job)
{
    rank_starts starts = {.list = ls_calloc((size_t)a->ctx.spec->n_ranks, sizeof(*starts.list))};
    const isolate_plan plan = {.key_fd = a->key_fd, .fill = start_inside, .arg = &starts};
    ls_status st = LS_OK;

    if (starts.list == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d rank%s", a->ctx.spec->n_ranks,
                       text_plural(a->ctx.spec->n_ranks));
    while (st == LS_OK && starts.n < a->ctx.spec->n_ranks) {
        st = prepare_rank(a, &a->ranks[starts.n], job, &starts.list[starts.n]);
        starts.n++;
    }
    if (st == LS_OK)
        st = isolate_start(&plan, &a->containment.isolation);
    for (int i = 0; i < starts.n; i++)
        free_start(&starts.list[i]);
    ls_free(starts.list);
    return st;
}

/* --- all ranks --- */

void agent_reset_ranks(agent *a)
{
    a->n_ended = 0;
    a->root = -1;
    a->aborter = -1;
    a->failed_ms = 0;
    a->is_signalled = false;
    a->is_killed = false;
    a->stop_number = 0;
    a->started_s = (int64_t)time(NULL);
    agent_output_reset(&a->output);
    for (int i = 0; i < a->ctx.spec->n_ranks; i++)
        a->ranks[i] = (agent_rank){.agent = a,
                                   .rank = a->ctx.place.place.rank_base + i,
                                   .member = a->ctx.place.place.rank_base + i,
                                   .shim_fd = -1,
                                   .ring_fd = -1};
}

/* A server of the head: through this agent, or its unix socket, or a port at the head's address. */
static void write_url(const agent *a, const relay_port *relay, const char *unix_url, int port,
                      char *url, size_t n)
{
    net_address at = a->link.head_at;

    if (a->ctx.place.has_standby) {
        net_address_text(url, n, &relay->at);
        return;
    }
    if (unix_url[0] != 0) {
        text_format(url, n, "%s", unix_url);
        return;
    }
    net_address_set_port(&at, port);
    net_address_text(url, n, &at);
}

/* Buffers of a place. */
typedef struct place_texts {
    char url[NET_ADDRESS_TEXT_MAX];
    char host[NET_ADDRESS_TEXT_MAX];
    char members[NET_ADDRESS_TEXT_MAX];
} place_texts;

/* What is the same for all ranks of this node. */
static rank_place describe_place(const agent *a, place_texts *texts)
{
    const agent_spec *spec = a->ctx.spec;
    const node_welcome *welcome = &a->ctx.place;
    const rdzv_place *p = &welcome->place;
    const int cores = ls_usable_cores(NULL);
    const int threads = cores / spec->n_ranks;
    rank_place place = {
        .spec = spec->job,
        .world_size = p->world_size,
        .local_size = p->n_local,
        .node_rank = p->node,
        .n_nodes = p->n_nodes,
        .job = welcome->job,
        .agent = a->name,
        .store = texts->url,
        .members = agent_is_elastic(&a->ctx) ? texts->members : NULL,
        .master_addr = agent_store_host(&a->store, texts->host, sizeof(texts->host)),
        .agent_store = welcome->has_store,
        .generation = p->generation,
        .n_restarts = p->n_restarts,
        .max_restarts = welcome->max_restarts,
        .key_fd = a->key_fd,
        .threads = threads > 0 ? threads : 1,
        .cores = cores,
    };

    if (a->network.pick.n > 0)
        place.n_variables = net_pick_variables(&a->network.pick, environ, agent_network_has_rdma(),
                                               place.variables);
    write_url(a, &a->link.relay.hub, welcome->hub_unix, welcome->hub_port, texts->url,
              sizeof(texts->url));
    write_url(a, &a->link.relay.members, welcome->members_unix, welcome->members_port,
              texts->members, sizeof(texts->members));
    return place;
}

/* The head decides for each rank what happens there: agent_replace_rank(), or nothing. */
static void leave_vacant(agent *a)
{
    for (int i = 0; i < a->ctx.spec->n_ranks; i++)
        a->ranks[i].ended = a->ranks[i].is_vacant = a->ranks[i].is_undecided = true;
    a->n_ended = a->ctx.spec->n_ranks;
}

static ls_status open_ranks(agent *a)
{
    place_texts texts;
    rank_place place = describe_place(a, &texts);

    LS_TRY(agent_output_begin(&a->output));
    LS_TRY(agent_pmi_begin(&a->pmi));
    LS_TRY(agent_store_open(&a->store, &place.master_port));
    if (a->ctx.place.place.is_late) {
        leave_vacant(a);
        return LS_OK;
    }
    if (a->ctx.spec->job->isolate)
        LS_TRY(open_isolated(a, &place));
    for (int i = 0; !a->ctx.spec->job->isolate && i < a->ctx.spec->n_ranks; i++)
        LS_TRY(open_rank(a, &a->ranks[i], &place));
    agent_store_begin_watch(&a->store, place.master_port, &a->ranks[0].pid);
    return LS_OK;
}

/* After a failure the caller closes the ranks: none of them may be reported as failed. */
ls_status agent_start_ranks(agent *a)
{
    agent_reset_ranks(a);
    agent_containment_begin(&a->containment);
    LS_TRY(open_ranks(a));
    a->ctx.phase = AGENT_RUNNING;
    return LS_OK;
}

/* A shim that still runs kills its rank; its last records can still be read. */
static void end_rank(agent_rank *r)
{
    if (r->shim_fd >= 0)
        (void)shutdown(r->shim_fd, SHUT_WR);
    if (r->shim > 0 && !r->agent->ctx.spec->job->isolate)
        kill(r->shim, SIGCONT); /* a stopped shim does nothing */
}

/* Reads the last records of the shim, for processes that it could not kill. */
static void end_shim(agent_rank *r)
{
    if (r->shim > 0 && !r->agent->ctx.spec->job->isolate)
        waitpid(r->shim, NULL, 0); /* bounded: the shim gives up after a few seconds */
    r->shim = 0;
    r->ended = true;
    if (r->shim_fd >= 0)
        agent_on_status(r, POLL_READ);
}

static void close_rank(agent_rank *r)
{
    end_shim(r);
    poller_close(&r->status_watch, &r->shim_fd);
    file_close(&r->ring_fd);
}

ls_status agent_replace_rank(agent *a, const node_slot *slot)
{
    agent_rank *r = &a->ranks[slot->local_rank];
    agent_rank old;
    place_texts texts;
    rank_place place = describe_place(a, &texts);

    place.master_port = a->store.master_port;
    place.member = slot->member;
    place.is_new_member = true;
    end_rank(r);
    close_rank(r);
    old = *r;
    agent_output_end_rank(&a->output, slot->local_rank);
    agent_forget_failure(a, slot->local_rank);
    *r = (agent_rank){.agent = a,
                      .rank = old.rank,
                      .member = slot->member,
                      .shim_fd = -1,
                      .ring_fd = -1,
                      .is_vacant = old.is_vacant};
    a->n_ended--;
    if (open_rank(a, r, &place) == LS_OK) {
        r->is_vacant = false;
        return LS_OK;
    }
    end_rank(r);
    close_rank(r);
    *r = old; // or the rank would count as one that has ended with code 0
    r->member = slot->member;
    a->n_ended++;
    return LS_ESYSTEM;
}

void agent_close_ranks(agent *a)
{
    poller_timer_cancel(&a->term_timer);
    poller_timer_cancel(&a->kill_timer);
    poller_timer_cancel(&a->lost_timer);
    agent_store_end_watch(&a->store);
    agent_output_end(&a->output);
    agent_input_end(&a->input);
    for (int i = 0; i < a->ctx.spec->n_ranks; i++) /* all at once, before the first wait */
        end_rank(&a->ranks[i]);
    agent_containment_end_ranks(&a->containment);
    for (int i = 0; i < a->ctx.spec->n_ranks; i++)
        close_rank(&a->ranks[i]);
    agent_containment_sweep(&a->containment);
    agent_output_free_ranks(&a->output);
    agent_reset_ranks(a);
    stream_mux_close(&a->link.streams);
    agent_store_close(&a->store);
    agent_pmi_end(&a->pmi);
    a->ctx.phase = AGENT_IDLE;
}
