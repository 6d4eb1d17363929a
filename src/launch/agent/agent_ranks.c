/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_ranks.c - the ranks of one generation on this node, started at the head's word and given back; agent_watch.c has what is between.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/thread.h"
#include "launch/process/process.h"
#include "launch/agent/rank_args.h"
#include "launch/agent/rank_env.h"

#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* --- one rank --- */

/* What a shim is started with; all of it is given up here when it has been. */
typedef struct rank_start {
    shim_spec shim;
    int input_fd; /* its stdin, where that comes through us; -1 */
    char **argv;
    char **env;
} rank_start;

static ls_status make_words(const agent *a, const rank_place *place, rank_start *s)
{
    if (a->spec->argv != NULL)
        LS_TRY(rank_args_make(a->spec->argv, place->local_rank, &s->argv));
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
    file_close(&s->shim.lifeline_fd);
    file_close(&s->shim.status_fd);
    file_close(&s->shim.stdout_fd);
    file_close(&s->shim.stderr_fd);
    file_close(&s->shim.pmi_fd);
    file_close(&s->shim.listen_fd);
    file_close(&s->input_fd);
}

static ls_status open_status_pipe(agent_rank *r, int *child_end)
{
    LS_TRY(process_make_pipe(&r->status_fd, child_end));
    if (fcntl(r->status_fd, F_SETFL, O_NONBLOCK) != 0)
        return ls_fail_errno("a pipe from the shim of rank %d", r->rank);
    return poller_watch(r->agent->poller, r->status_fd, POLL_READ, agent_on_shim_status, r,
                        &r->status_watch);
}

/* Opens what the agent and the rank have between them. */
static ls_status prepare_rank(agent *a, agent_rank *r, const rank_place *job, rank_start *s)
{
    char error_path[sizeof(a->logs.path) + 64] = "";
    rank_place place = *job;
    shim_spec *shim = &s->shim;

    *s = (rank_start){.shim = {.fn = a->spec->fn,
                               .fn_arg = a->spec->fn_arg,
                               .local_rank = (int)(r - a->ranks),
                               .lifeline_fd = -1,
                               .status_fd = -1,
                               .stdin_fd = -1,
                               .stdout_fd = -1,
                               .stderr_fd = -1,
                               .key_fd = a->key_fd,
                               .pmi_fd = -1,
                               .listen_fd = -1,
                               .group = &a->group,
                               .proc_fd = -1,
                               .mask = a->old_mask,
                               .users = &a->users},
                      .input_fd = -1};
    if (a->spec->make_ring != NULL)
        LS_TRY(a->spec->make_ring(&r->ring_fd));
    LS_TRY(process_make_pipe(&shim->lifeline_fd, &r->lifeline_fd));
    LS_TRY(open_status_pipe(r, &shim->status_fd));
    if (a->spec->capture) {
        LS_TRY(agent_open_stream(r, 0, &shim->stdout_fd));
        LS_TRY(agent_open_stream(r, 1, &shim->stderr_fd));
    }
    LS_TRY(agent_open_input(r, shim->stdout_fd, &s->input_fd));
    shim->stdin_fd = s->input_fd < 0 && r->rank == 0 ? STDIN_FILENO : s->input_fd;
    LS_TRY(agent_open_rank_logs(r, error_path, sizeof(error_path)));
    if (a->pmi != NULL)
        LS_TRY(agent_open_pmi(r, &shim->pmi_fd));
    LS_TRY(agent_open_listener(a, r->rank, &shim->listen_fd));
    shim->ring_fd = r->ring_fd;
    place.listen_fd = shim->listen_fd;
    place.error_file = error_path[0] != 0 ? error_path : NULL;
    place.rank = r->rank;
    place.local_rank = shim->local_rank;
    place.ring_fd = r->ring_fd;
    if (r->rank == 0 && a->spec->capture && agent_shows(r, 1) &&
        (a->spec->remote != NULL ? a->spec->remote->terminal : a->sinks[1].terminal))
        place.columns = agent_terminal_size(a, job->world_size).columns;
    place.pmi_fd = shim->pmi_fd;
    place.is_isolated = a->spec->isolate;
    return make_words(a, &place, s);
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
    rank_starts starts = {.list = ls_calloc((size_t)a->spec->n_ranks, sizeof(*starts.list))};
    const isolate_plan plan = {.key_fd = a->key_fd, .fill = start_inside, .arg = &starts};
    ls_status st = LS_OK;

    if (starts.list == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d rank%s", a->spec->n_ranks,
                       text_plural(a->spec->n_ranks));
    while (st == LS_OK && starts.n < a->spec->n_ranks) {
        st = prepare_rank(a, &a->ranks[starts.n], job, &starts.list[starts.n]);
        starts.n++;
    }
    if (st == LS_OK)
        st = isolate_start(&plan, &a->isolation);
    for (int i = 0; i < starts.n; i++)
        free_start(&starts.list[i]);
    ls_free(starts.list);
    return st;
}

/* --- all of them --- */

void agent_prepare_ranks(agent *a)
{
    a->n_ended = 0;
    a->root = -1;
    a->aborter = -1;
    a->failed_ms = 0;
    a->drained = false;
    a->is_signalled = false;
    a->is_killed = false;
    a->started_s = (int64_t)time(NULL);
    for (int i = 0; i < a->spec->n_ranks; i++)
        a->ranks[i] = (agent_rank){.agent = a,
                                   .rank = a->place.place.rank_base + i,
                                   .attempt = a->place.place.generation - 1,
                                   .lifeline_fd = -1,
                                   .status_fd = -1,
                                   .stream_fd = {-1, -1},
                                   .log_fd = {-1, -1},
                                   .error_fd = -1,
                                   .ring_fd = -1,
                                   .pmi_fd = -1};
}

static void write_hub_url(const agent *a, char *url, size_t n)
{
    net_address hub = a->head_at;

    if (a->place.hub_unix[0] != 0) {
        text_format(url, n, "%s", a->place.hub_unix);
        return;
    }
    net_address_set_port(&hub, a->place.hub_port);
    net_address_text(url, n, &hub);
}

static ls_status open_ranks(agent *a)
{
    const agent_spec *spec = a->spec;
    const rdzv_place *p = &a->place.place;
    char url[NET_ADDRESS_TEXT_MAX];
    char host[NET_ADDRESS_TEXT_MAX];
    const int cores = ls_usable_cores(NULL);
    const int threads = cores / spec->n_ranks;
    rank_place place = {
        .world_size = p->world_size,
        .local_size = p->n_local,
        .node_rank = p->node,
        .n_nodes = p->n_nodes,
        .job = a->place.job,
        .agent = a->name,
        .store = url,
        .master_addr = agent_master_host(a, host, sizeof(host)),
        .agent_store = a->place.has_store,
        .run_id = spec->run_id != NULL ? spec->run_id : a->place.job,
        .role = spec->role != NULL ? spec->role : "default",
        .generation = p->generation,
        .n_restarts = p->n_restarts,
        .max_restarts = a->place.max_restarts,
        .virtual_local_rank = spec->virtual_local_rank,
        .key_fd = a->key_fd,
        .threads = threads > 0 ? threads : 1,
        .cores = cores,
    };

    if (a->pick.n > 0)
        place.n_variables =
            net_pick_variables(&a->pick, environ, agent_has_rdma(), place.variables);
    write_hub_url(a, url, sizeof(url));
    a->mpi_told = (node_mpi){0};
    if (spec->argv != NULL)
        LS_TRY(
            pmi_create(a->place.job, spec->n_ranks, p->world_size, a->place.mpi_layout, &a->pmi));
    LS_TRY(agent_open_fold(a));
    LS_TRY(agent_open_store(a, &place.master_port));
    if (spec->isolate)
        LS_TRY(open_isolated(a, &place));
    for (int i = 0; !spec->isolate && i < spec->n_ranks; i++)
        LS_TRY(open_rank(a, &a->ranks[i], &place));
    agent_watch_store(a, place.master_port);
    return LS_OK;
}

/* After a failure the caller closes what has been started; nothing of it may look like a rank that failed. */
ls_status agent_start_ranks(agent *a)
{
    ls_status st;

    agent_prepare_ranks(a);
    agent_begin_group(a);
    st = agent_open_filters(a, a->place.place.generation - 1);
    if (st == LS_OK)
        st = open_ranks(a);
    if (st == LS_OK)
        a->phase = AGENT_RUNNING;
    return st;
}

/* A shim that still lives kills its rank now: all at once, before any of them is waited for. */
static void let_go(agent_rank *r)
{
    file_close(&r->lifeline_fd);
    if (r->shim > 0 && !r->agent->spec->isolate)
        kill(r->shim, SIGCONT); /* if somebody has stopped it */
}

/* What it could not kill: its last words. How the rank ended is not asked any more. */
static void hear_shim_out(agent_rank *r)
{
    if (r->shim > 0 && !r->agent->spec->isolate)
        waitpid(r->shim, NULL, 0); /* bounded: it gives up after a few seconds */
    r->shim = 0;
    r->ended = true;
    if (r->status_fd >= 0)
        agent_on_shim_status(r, POLL_READ);
}

static void close_rank(agent_rank *r)
{
    hear_shim_out(r);
    poller_unwatch(r->status_watch);
    file_close(&r->status_fd);
    file_close(&r->ring_fd);
    agent_close_rank_logs(r);
    agent_end_pmi(r);
    output_free(&r->stream[0]);
    output_free(&r->stream[1]);
    output_free_recent(&r->kept);
}

void agent_close_ranks(agent *a)
{
    poller_timer_cancel(&a->term_timer);
    poller_timer_cancel(&a->kill_timer);
    poller_timer_cancel(&a->lost_timer);
    poller_timer_cancel(&a->drain_timer);
    poller_timer_cancel(&a->fold_timer);
    poller_timer_cancel(&a->store_look);
    agent_end_output(a);
    agent_end_input(a);
    for (int i = 0; i < a->spec->n_ranks; i++)
        let_go(&a->ranks[i]);
    agent_end_below(a);
    for (int i = 0; i < a->spec->n_ranks; i++)
        close_rank(&a->ranks[i]);
    agent_prepare_ranks(a);
    if (a->hosts == NULL) {
        output_fold_destroy(a->fold);
        a->fold = NULL;
    }
    stream_mux_close(&a->streams);
    agent_close_store(a);
    pmi_destroy(a->pmi);
    a->pmi = NULL;
    a->phase = AGENT_IDLE;
}
