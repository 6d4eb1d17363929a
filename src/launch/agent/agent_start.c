/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_start.c - what an agent has of its own, for all generations, and how it is given back: signals, descriptors, the guardian.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "launch/process/process.h"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILL_MS = 3000, GUARDIANS_MOST = 100 };

/* Besides those that end the job. */
static const int handled_signals[] = {SIGCHLD, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2, SIGWINCH};

/* --- the agent's own descriptors --- */

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
    sigaction(SIGTTIN, &ignore, &a->old_read); /* nor a terminal that is the shell's again */
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
    sigaction(SIGTTIN, &a->old_read, NULL);
    pthread_sigmask(SIG_SETMASK, &a->old_mask, NULL);
}

/* What the ranks of other nodes cost where the head is: their connections to the store, and their node's. Nodes that are not known yet we
 * take to be like this one. */
static rlim_t count_remote_descriptors(const agent_spec *spec)
{
    const rlim_t n_nodes =
        spec->nodes != NULL && spec->nodes->is_head ? (rlim_t)spec->rendezvous.max_nodes : 0;
    rlim_t n = 0;

    if (spec->hosts == NULL)
        return n_nodes * (2 + 8 * (rlim_t)spec->n_ranks);
    for (int i = 0; i < spec->hosts->list->n; i++)
        n += 8 + 8 * (rlim_t)spec->hosts->list->hosts[i].slots;
    return n;
}

/* Pipes, ring and connections of each rank need descriptors; the limit that users have by default is low. */
static void raise_descriptor_limit(const agent_spec *spec)
{
    const rlim_t needed = 64 + 14 * (rlim_t)spec->n_ranks + count_remote_descriptors(spec);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return;
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE,
                    &limit); /* if that is not enough, opening the first pipe too many says so */
}

/* --- the job --- */

ls_status agent_start_guardian(agent *a)
{
    process_mark mark = {.key_fd = a->key_fd};
    int lifeline = -1;
    ls_status st;

    if (a->n_guardians++ == GUARDIANS_MOST)
        return ls_fail(LS_ESYSTEM, "%d of them were killed", GUARDIANS_MOST);
    text_format(mark.agent, sizeof(mark.agent), "%s", a->name);
    LS_TRY(process_make_pipe(&lifeline, &a->guardian_fd));
    st = guardian_start(&mark, &a->group, lifeline, &a->guardian);
    close(lifeline);
    return st;
}

static ls_status open_job(agent *a)
{
    LS_TRY(head_job_key(&a->base, a->place.job, &a->key));
    LS_TRY(net_key_to_fd(&a->key, &a->key_fd));
    LS_TRY(agent_open_logs(a));
    if (a->spec->argv != NULL && a->place.place.node == 0)
        agent_note_open_mpi(a);
    if (a->spec->argv != NULL)
        agent_open_group(a);
    return agent_start_guardian(a);
}

/* What could not be had the first time is tried again at a restart. */
ls_status agent_open_job(agent *a)
{
    ls_status st;

    if (a->has_job)
        return LS_OK;
    st = open_job(a);
    a->has_job = st == LS_OK;
    if (!a->has_job) {
        log_folder_close(&a->logs);
        agent_remove_group(a);
        file_close(&a->key_fd);
    }
    return st;
}

/* --- life --- */

static void prepare(agent *a, const agent_spec *spec, agent_result *result)
{
    *a = (agent){.own_spec = *spec,
                 .result = result,
                 .key_fd = -1,
                 .signal_fd = -1,
                 .guardian_fd = -1,
                 .logs = {.fd = -1},
                 .filtered_fd = {-1, -1},
                 .input = {.fd = -1},
                 .group = CGROUP_NONE,
                 .isolation = ISOLATION_NONE};
    oom_begin(&a->oom, "", NULL);
    a->spec = &a->own_spec;
    if (spec->nodes != NULL) {
        a->own_nodes = *spec->nodes;
        a->own_spec.nodes = &a->own_nodes;
    }
    for (int i = 0; i < 2; i++)
        a->sinks[i] = (output_sink){.fd = -1};
}

static ls_status name_agent(agent *a)
{
    if (getrandom(&a->uid, sizeof(a->uid), 0) != (ssize_t)sizeof(a->uid))
        return ls_fail_errno("random bytes for the agent's name");
    text_format(a->name, sizeof(a->name), "%016llx", (unsigned long long)a->uid);
    return LS_OK;
}

/* Of several machines each prints the report, and one has printed the lines. */
static void count_console(agent *a)
{
    struct stat out;
    struct stat err;

    if (a->spec->nodes != NULL || a->spec->hosts != NULL)
        return;
    a->sinks[1].n_console = &a->n_console;
    if (fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
        out.st_dev == err.st_dev && out.st_ino == err.st_ino)
        a->sinks[0].n_console = &a->n_console;
}

ls_status agent_open(agent *a, const agent_spec *spec, agent_result *result)
{
    prepare(a, spec, result);
    LS_TRY(name_agent(a));
    LS_TRY(process_list_fds(&a->users));
    a->ranks = ls_calloc((size_t)spec->n_ranks + 1, sizeof(*a->ranks)); /* there may be none */
    if (a->ranks == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d rank%s", spec->n_ranks,
                       text_plural(spec->n_ranks));
    agent_prepare_ranks(a);
    raise_descriptor_limit(spec);
    for (int i = 0; i < 2 && spec->capture && spec->remote == NULL; i++)
        output_sink_open(&a->sinks[i], STDOUT_FILENO + i);
    if (spec->capture && spec->remote == NULL)
        count_console(a);
    LS_TRY(poller_create(&a->poller));
    LS_TRY(take_signals(a));
    if (spec->remote != NULL)
        LS_TRY(agent_open_remote(a));
    if (spec->argv != NULL)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    return agent_open_link(a);
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
    text_format(mark.agent, sizeof(mark.agent), "%s", a->name);
    process_sweep_job(&mark, ls_deadline_ms(KILL_MS));
}

void agent_close(agent *a)
{
    if (a->ranks != NULL)
        agent_close_ranks(a);
    sweep_lost(a); /* while the guardian still waits for our own end */
    agent_remove_group(a);
    close_guardian(a);
    if (a->shim_lost && a->spec->argv != NULL)
        process_kill_children(ls_deadline_ms(KILL_MS));
    agent_close_filters(a);
    log_folder_close(&a->logs);
    agent_close_link(
        a); /* so that agents elsewhere know that it is over, if nobody could tell them */
    agent_close_hosts(a);
    output_fold_destroy(a->fold);
    agent_close_input(a);
    frame_reader_free(&a->remote_in);
    poller_unwatch(a->remote_watch);
    poller_timer_cancel(&a->pause_timer);
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
