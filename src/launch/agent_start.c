/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_start.c - everything an agent opens, and how it is given back.
 */
#include "launch/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/thread.h"
#include "launch/process.h"
#include "launch/rank_args.h"
#include "launch/rank_env.h"
#include "net/address.h"
#include "net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { KILL_MS = 3000, GUARDIANS_MOST = 100 };

/* Besides those that end the job. */
static const int handled_signals[] = {SIGCHLD, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2};

/* --- the agent's own descriptors --- */

static ls_status name_job(agent *a)
{
    uint64_t random;

    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return ls_fail_errno("random bytes for the job's name");
    text_format(a->job, sizeof(a->job), "%016llx", (unsigned long long)random);
    LS_TRY(net_key_random(&a->key));
    return net_key_to_fd(&a->key, &a->key_fd);
}

bool agent_stops_at(const agent_spec *spec, int number)
{
    const uint64_t usual = UINT64_C(1) << SIGTERM | UINT64_C(1) << SIGINT | UINT64_C(1) << SIGHUP |
                           UINT64_C(1) << SIGQUIT;

    return ((spec->stop_signals != 0 ? spec->stop_signals : usual) >> number & 1) != 0;
}

static ls_status take_signals(agent *a)
{
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < LS_COUNT_OF(handled_signals); i++)
        sigaddset(&set, handled_signals[i]);
    for (int number = 1; number < 32; number++)
        if (agent_stops_at(a->spec, number))
            sigaddset(&set, number);
    if (pthread_sigmask(SIG_BLOCK, &set, &a->old_mask) != 0)
        return ls_fail_errno("blocking signals");
    sigaction(SIGPIPE, &ignore, &a->old_pipe); /* a shim that was killed must not take us along */
    sigaction(SIGXFSZ, &ignore, &a->old_size); /* nor a log file that becomes too large */
    a->signals_taken = true;
    a->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (a->signal_fd < 0)
        return ls_fail_errno("signalfd");
    return poller_watch(a->poller, a->signal_fd, POLL_READ, agent_on_signal, a, &a->signal_watch);
}

/* What was blocked meanwhile and is not for us stays pending, and arrives now. */
static void give_signals_back(const agent *a)
{
    if (!a->signals_taken)
        return;
    sigaction(SIGPIPE, &a->old_pipe, NULL);
    sigaction(SIGXFSZ, &a->old_size, NULL);
    pthread_sigmask(SIG_SETMASK, &a->old_mask, NULL);
}

/* Pipes, ring and connections of each rank need descriptors; the limit that users have by default is low. */
static void raise_descriptor_limit(const agent_spec *spec)
{
    const rlim_t needed = 64 + 14 * (rlim_t)spec->n_ranks;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return;
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE,
                    &limit); /* if that is not enough, opening the first pipe too many says so */
}

static ls_status open_hub(agent *a, net_address *at)
{
    hub_options options = {
        .world_size = a->spec->n_ranks, .key = &a->key, .events = agent_hub_events(a)};
    net_address wanted;

    memcpy(options.job, a->job, sizeof(options.job));
    LS_TRY(hub_create(a->poller, &options, &a->hub));
    LS_TRY(net_address_fresh_unix("hub", &wanted));
    return hub_listen(a->hub, &wanted, at);
}

/* A port that is free now, for programs that host a store of their own at MASTER_PORT. */
static ls_status free_port(int *port)
{
    net_address any;
    net_address bound;
    int fd;

    LS_TRY(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any));
    LS_TRY(net_listen(&any, NET_STREAM, 1, &fd, &bound));
    close(fd);
    *port = net_address_port(&bound);
    return LS_OK;
}

/* Where programs that are not ours meet. A store of our own holds its port from now on, so nobody else can take it. */
static ls_status open_master(agent *a, rank_place *place)
{
    const c10d_store_options options = {.port = a->spec->master_port, .user = geteuid()};

    place->master_port = a->spec->master_port;
    if (a->spec->hosts_store) {
        LS_TRY(ls_context(c10d_store_create(a->poller, &options, &a->store),
                          "the store for PyTorch programs (--store=none: without it)"));
        place->agent_store = true;
        place->master_addr = "127.0.0.1";
        place->master_port = c10d_store_port(a->store);
    } else if (place->master_port == 0) {
        LS_TRY(free_port(&place->master_port));
    }
    return LS_OK;
}

/* --- one rank --- */

/* A pipe of which the reading or the writing end is ours; the other one is for the child. Both CLOEXEC. */
static ls_status make_pipe(int *read_end, int *write_end)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("a pipe to a rank");
    *read_end = fds[0];
    *write_end = fds[1];
    return LS_OK;
}

static ls_status start_shim(agent_rank *r, const rank_place *place, shim_spec *shim)
{
    char **argv = NULL;
    char **env = NULL;
    ls_status st = LS_OK;

    if (r->agent->spec->argv != NULL)
        st = rank_args_make(r->agent->spec->argv, place->local_rank, &argv);
    if (st == LS_OK)
        st = rank_env_make(environ, place, &env);
    shim->argv = argv;
    shim->environment = env;
    if (st == LS_OK)
        st = shim_start(shim, &r->shim);
    rank_args_free(argv);
    rank_env_free(env);
    return st;
}

static ls_status open_news(agent_rank *r, int *child_end)
{
    LS_TRY(make_pipe(&r->news_fd, child_end));
    if (fcntl(r->news_fd, F_SETFL, O_NONBLOCK) != 0)
        return ls_fail_errno("a pipe from the shim of rank %d", r->rank);
    return poller_watch(r->agent->poller, r->news_fd, POLL_READ, agent_on_news, r, &r->news_watch);
}

static ls_status open_rank(agent *a, agent_rank *r, const rank_place *job)
{
    shim_spec shim = {.job = a->spec,
                      .local_rank = r->rank,
                      .lifeline_fd = -1,
                      .news_fd = -1,
                      .stdin_fd = r->rank == 0 ? STDIN_FILENO : -1,
                      .stdout_fd = -1,
                      .stderr_fd = -1,
                      .key_fd = a->key_fd,
                      .pmi_fd = -1,
                      .mask = a->old_mask,
                      .users = &a->users};
    char error_path[sizeof(a->logs.path) + 64] = "";
    rank_place place = *job;
    ls_status st;

    st = a->spec->make_ring != NULL ? a->spec->make_ring(&r->ring_fd) : LS_OK;
    if (st == LS_OK)
        st = make_pipe(&shim.lifeline_fd, &r->lifeline_fd);
    if (st == LS_OK)
        st = open_news(r, &shim.news_fd);
    if (st == LS_OK && a->spec->capture)
        st = agent_open_stream(r, 0, &shim.stdout_fd);
    if (st == LS_OK && a->spec->capture)
        st = agent_open_stream(r, 1, &shim.stderr_fd);
    if (st == LS_OK)
        st = agent_open_rank_logs(r, error_path, sizeof(error_path));
    if (st == LS_OK && a->pmi != NULL)
        st = agent_open_pmi(r, &shim.pmi_fd);
    if (st == LS_OK) {
        shim.ring_fd = r->ring_fd;
        place.error_file = error_path[0] != 0 ? error_path : NULL;
        place.rank = place.local_rank = r->rank;
        place.ring_fd = r->ring_fd;
        place.terminal =
            r->rank == 0 && a->spec->capture && a->sinks[1].terminal && agent_shows(r, 1);
        place.pmi_fd = shim.pmi_fd;
        st = start_shim(r, &place, &shim);
    }
    file_close(&shim.lifeline_fd);
    file_close(&shim.news_fd);
    file_close(&shim.stdout_fd);
    file_close(&shim.stderr_fd);
    file_close(&shim.pmi_fd);
    return st;
}

static ls_status open_ranks(agent *a, const net_address *store)
{
    char url[NET_ADDRESS_TEXT_MAX];
    const int threads = ls_usable_cores(NULL) / a->spec->n_ranks;
    rank_place place = {
        .world_size = a->spec->n_ranks,
        .local_size = a->spec->n_ranks,
        .n_nodes = 1,
        .job = a->job,
        .store = net_address_text(url, sizeof(url), store),
        .master_addr = a->spec->master_addr != NULL ? a->spec->master_addr : "127.0.0.1",
        .run_id = a->spec->run_id != NULL ? a->spec->run_id : a->job,
        .role = a->spec->role != NULL ? a->spec->role : "default",
        .virtual_local_rank = a->spec->virtual_local_rank,
        .key_fd = a->key_fd,
        .threads = threads > 0 ? threads : 1,
    };

    LS_TRY(open_master(a, &place));
    for (int i = 0; i < a->spec->n_ranks; i++)
        LS_TRY(open_rank(a, &a->ranks[i], &place));
    return LS_OK;
}

ls_status agent_start_guardian(agent *a)
{
    process_mark mark = {.key_fd = a->key_fd};
    int lifeline = -1;
    ls_status st;

    if (a->n_guardians++ == GUARDIANS_MOST)
        return ls_fail(LS_ESYSTEM, "%d of them were killed", GUARDIANS_MOST);
    text_format(mark.job, sizeof(mark.job), "%s", a->job);
    LS_TRY(make_pipe(&lifeline, &a->guardian_fd));
    st = guardian_start(&mark, lifeline, &a->guardian);
    close(lifeline);
    return st;
}

/* --- life --- */

static void prepare(agent *a, const agent_spec *spec, agent_result *result)
{
    *a = (agent){.spec = spec,
                 .result = result,
                 .key_fd = -1,
                 .signal_fd = -1,
                 .guardian_fd = -1,
                 .root = -1,
                 .logs = {.fd = -1},
                 .started_s = (int64_t)time(NULL),
                 .oom_kills = process_oom_kills()};
    for (int i = 0; i < 2; i++)
        a->sinks[i] = (output_sink){.fd = -1};
}

static ls_status prepare_ranks(agent *a)
{
    a->ranks = ls_calloc((size_t)a->spec->n_ranks, sizeof(*a->ranks));
    if (a->ranks == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d ranks", a->spec->n_ranks);
    for (int i = 0; i < a->spec->n_ranks; i++)
        a->ranks[i] = (agent_rank){.agent = a,
                                   .rank = i,
                                   .lifeline_fd = -1,
                                   .news_fd = -1,
                                   .stream_fd = {-1, -1},
                                   .log_fd = {-1, -1},
                                   .error_fd = -1,
                                   .ring_fd = -1,
                                   .pmi_fd = -1};
    return LS_OK;
}

ls_status agent_open(agent *a, const agent_spec *spec, agent_result *result)
{
    net_address store;

    prepare(a, spec, result);
    LS_TRY(process_list_fds(&a->users));
    LS_TRY(prepare_ranks(a));
    raise_descriptor_limit(spec);
    for (int i = 0; i < 2 && spec->capture; i++)
        output_sink_open(&a->sinks[i], STDOUT_FILENO + i);
    LS_TRY(poller_create(&a->poller));
    LS_TRY(name_job(a));
    LS_TRY(take_signals(a));
    LS_TRY(agent_open_logs(a));
    LS_TRY(agent_open_fold(a));
    LS_TRY(open_hub(a, &store));
    if (spec->argv != NULL) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        LS_TRY(pmi_create(a->job, spec->n_ranks, &a->pmi));
        agent_note_open_mpi(a);
    }
    LS_TRY(open_ranks(a, &store));
    return agent_start_guardian(a);
}

static void close_rank(agent_rank *r)
{
    poller_unwatch(r->news_watch);
    file_close(&r->lifeline_fd); /* a shim that still lives kills its rank now */
    file_close(&r->news_fd);
    file_close(&r->ring_fd);
    agent_close_rank_logs(r);
    agent_end_pmi(r);
    output_free(&r->stream[0]);
    output_free(&r->stream[1]);
    output_free_kept(&r->kept);
    if (r->shim > 0) {
        kill(r->shim, SIGCONT);    /* if somebody has stopped it */
        waitpid(r->shim, NULL, 0); /* bounded: it gives up after a few seconds */
    }
}

static void close_guardian(agent *a)
{
    if (a->guardian > 0) {
        kill(a->guardian, SIGKILL); /* nothing is left to guard */
        waitpid(a->guardian, NULL, 0);
    }
    file_close(&a->guardian_fd);
}

/* What the rank of a shim that was killed has forked carries the mark, or has come to us. */
static void sweep_lost(agent *a)
{
    process_mark mark = {.key_fd = a->key_fd, .spared = a->guardian};

    if (!a->shim_lost)
        return;
    text_format(mark.job, sizeof(mark.job), "%s", a->job);
    process_sweep_job(&mark, ls_deadline_ms(KILL_MS));
}

void agent_close(agent *a)
{
    poller_timer_cancel(&a->term_timer);
    poller_timer_cancel(&a->kill_timer);
    poller_timer_cancel(&a->lost_timer);
    poller_timer_cancel(&a->drain_timer);
    poller_timer_cancel(&a->fold_timer);
    agent_end_output(a);
    for (int i = 0; a->ranks != NULL && i < a->spec->n_ranks; i++)
        close_rank(&a->ranks[i]);
    sweep_lost(a); /* while the guardian still waits for our own end */
    close_guardian(a);
    if (a->shim_lost && a->spec->argv != NULL)
        process_kill_children(ls_deadline_ms(KILL_MS));
    output_fold_destroy(a->fold);
    log_folder_close(&a->logs);
    hub_destroy(a->hub);
    c10d_store_destroy(a->store);
    pmi_destroy(a->pmi);
    for (int i = 0; i < 2; i++) {
        poller_unwatch(a->sink_watch[i]);
        output_sink_close(&a->sinks[i]);
    }
    poller_unwatch(a->signal_watch);
    file_close(&a->signal_fd);
    poller_destroy(a->poller);
    file_close(&a->key_fd);
    net_key_wipe(&a->key);
    ls_free(a->users.fds);
    ls_free(a->ranks);
    give_signals_back(a);
}
