/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_start.c - opens and closes an agent: its signals, descriptors and modules, and what a job
 * needs once for all generations. agent_close() takes an agent that was opened in part. Called by
 * agent_run(), and at the first welcome of the head.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/signal_list.h"
#include "host/process.h"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Besides those that end the job. */
static const int handled_signals[] = {SIGCHLD, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2, SIGWINCH};

/* --- signals --- */

bool agent_stops_at(const agent_spec *spec, int number)
{
    return signal_list_has(spec->job->stop_signals, number);
}

static ls_status take_signals(agent *a)
{
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    agent_signals *s = &a->signals;
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < LS_COUNT_OF(handled_signals); i++)
        sigaddset(&set, handled_signals[i]);
    for (int number = 1; number < 32; number++)
        if (agent_stops_at(a->ctx.spec, number))
            sigaddset(&set, number);
    if (pthread_sigmask(SIG_BLOCK, &set, &s->old_mask) != 0)
        return ls_fail_errno("blocking signals");
    /*
     * A killed shim, a log file over its limit, and a background terminal must not end the agent.
     */
    sigaction(SIGPIPE, &ignore, &s->old_pipe);
    sigaction(SIGXFSZ, &ignore, &s->old_file_size);
    sigaction(SIGTTIN, &ignore, &s->old_terminal_input);
    s->is_taken = true;
    s->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->fd < 0)
        return ls_fail_errno("signalfd");
    return poller_watch(a->ctx.poller, s->fd, POLL_READ, agent_on_signal, a, &s->watch);
}

static void close_signals(agent_signals *s)
{
    poller_timer_cancel(&s->pause_timer);
    poller_close(&s->watch, &s->fd);
}

/* Signals that were blocked meanwhile and are still pending are delivered now. */
static void restore_signals(const agent_signals *s)
{
    if (!s->is_taken)
        return;
    sigaction(SIGPIPE, &s->old_pipe, NULL);
    sigaction(SIGXFSZ, &s->old_file_size, NULL);
    sigaction(SIGTTIN, &s->old_terminal_input, NULL);
    pthread_sigmask(SIG_SETMASK, &s->old_mask, NULL);
}

/* --- descriptors --- */

/*
 * Descriptors that other nodes need where the head is: connections of their agents, and of their
 * ranks to the store. A node that is not known yet counts as one like this.
 */
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

static ls_status raise_descriptor_limit(const agent_spec *spec)
{
    const rlim_t n_ranks = (rlim_t)spec->n_ranks;
    /* A connection to the store of members, and log files, of which one replaces the error file. */
    const rlim_t n_more = n_ranks * ((spec->rendezvous.min_ranks > 0) + agent_logs_has_files(spec));
    const rlim_t least = AGENT_FILES_LEAST + AGENT_FILES_LEAST_RANK * n_ranks + n_more;
    const rlim_t enough =
        AGENT_FILES + AGENT_FILES_RANK * n_ranks + n_more + count_remote_descriptors(spec);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < least)
        return ls_fail(LS_ESYSTEM,
                       "%d ranks on this host need %llu open files, but at most %llu are allowed: "
                       "raise the hard limit (ulimit -Hn, or LimitNOFILE of the service)",
                       spec->n_ranks, (unsigned long long)least,
                       (unsigned long long)limit.rlim_max);
    process_allow_files(enough);
    return LS_OK;
}

/* --- the job --- */

static ls_status open_job(agent *a)
{
    LS_TRY(head_job_key(&a->link.key, a->ctx.place.job, &a->key));
    LS_TRY(net_key_to_fd(&a->key, &a->key_fd));
    LS_TRY(agent_logs_open(&a->output));
    if (a->ctx.spec->job->argv != NULL && a->ctx.place.place.node == 0)
        agent_pmi_note_open_mpi(&a->ctx);
    a->containment.mark.key_fd = a->key_fd;
    return agent_containment_open_job(&a->containment);
}

/* What fails the first time is tried again at a restart. */
ls_status agent_open_job(agent *a)
{
    ls_status st;

    if (a->has_job)
        return LS_OK;
    st = open_job(a);
    a->has_job = st == LS_OK;
    if (!a->has_job) {
        log_folder_close(&a->output.logs);
        agent_containment_end_job(&a->containment);
        file_close(&a->key_fd);
    }
    return st;
}

/* --- calls of the modules --- */

static void on_send(void *arg, node_message type, const wire_writer *body)
{
    agent *a = arg;

    agent_link_send(&a->link, type, body);
}

static void on_note(void *arg, const char *line)
{
    agent *a = arg;

    agent_status_note(&a->status, line);
    agent_output_note(&a->output, line);
}

static void on_give_up(void *arg, ls_status st)
{
    agent *a = arg;

    if (a->ctx.is_over)
        return;
    a->ctx.is_over = true;
    a->failure = st;
    text_format(a->failure_text, sizeof(a->failure_text), "%s", ls_last_error());
}

/* Whether ranks run, here or on hosts that this agent has started, and are not being ended. */
static bool has_job(const agent *a)
{
    return a->ctx.phase == AGENT_RUNNING ||
           (a->hosts != NULL && a->ctx.stop_signal == 0 && !a->ctx.is_over);
}

/*
 * A closed reader ends the job as it ends any program that writes. A full disk or a lost terminal
 * is an error: it is reported. The ranks get their time to save their state.
 */
static void on_lost_output(void *arg, int which, int error)
{
    agent *a = arg;

    if (a->ctx.spec->remote != NULL) {
        if (which == 0)
            agent_remote_lose(&a->starter, "the starter does not read the output of this agent");
        return;
    }
    if (error != 0 && !a->outcome.has_lost_output) {
        a->outcome.has_lost_output = true;
        agent_note(&a->ctx, "cannot write what the ranks print to %s: %s; the job ends",
                   which == 0 ? "stdout" : "stderr", ls_errno_text(error));
    }
    if (has_job(a) && a->ctx.stop_signal == 0) /* it comes again with every line of a rank */
        agent_stop(a, SIGPIPE);
}

static void on_starter_size(void *arg, pty_size size)
{
    agent *a = arg;

    if (!a->ctx.spec->job->pty)
        return;
    agent_terminal_resize(&a->output, size);
    agent_signal_ranks(a, SIGWINCH);
}

/* The end of the starter is the end of the job, and no failure of the ranks here. */
static void on_starter_lost(void *arg, const char *why)
{
    agent *a = arg;

    a->output.sinks[0].is_broken = true;
    agent_leave_job(a);
    (void)ls_fail(LS_EPEER, "%s", why);
    a->ctx.give_up(a, LS_EPEER);
}

static ls_status on_placed(void *arg, const hosts_own_node *own)
{
    agent *a = arg;

    a->own_spec.n_ranks = own->n_ranks;
    a->own_spec.rendezvous.by_id = true;
    a->own_spec.rendezvous.min_nodes = a->own_spec.rendezvous.max_nodes = own->n_nodes;
    a->own_nodes.id = own->node;
    if (own->name != NULL)
        a->own_nodes.name = own->name;
    return agent_link_open_head(&a->link);
}

/* --- life --- */

static void prepare(agent *a, const agent_spec *spec, agent_result *result)
{
    *a = (agent){.own_spec = *spec, .result = result, .key_fd = -1, .signals = {.fd = -1}};
    a->own_job = *spec->job;
    a->own_spec.job = &a->own_job;
    if (spec->job->stop_signals == 0)
        a->own_job.stop_signals = signal_list_default();
    if (spec->nodes != NULL) {
        a->own_nodes = *spec->nodes;
        a->own_spec.nodes = &a->own_nodes;
    }
    a->ctx = (agent_context){.spec = &a->own_spec,
                             .agent = a,
                             .send = on_send,
                             .note = on_note,
                             .fail = agent_fail_rank,
                             .give_up = on_give_up,
                             .lose_output = on_lost_output};
    a->network.ctx = &a->ctx;
    a->link.ctx = &a->ctx;
    a->store.link = &a->link;
    a->store.network = &a->network;
    a->starter.self = a;
    a->starter.resize = on_starter_size;
    a->starter.lost = on_starter_lost;
    agent_set_link_calls(a);
    agent_containment_init(&a->containment, &a->ctx);
    agent_output_init(&a->output, &a->ctx);
    agent_input_init(&a->input, &a->output);
}

static ls_status name_agent(agent *a)
{
    if (getrandom(&a->link.uid, sizeof(a->link.uid), 0) != (ssize_t)sizeof(a->link.uid))
        return ls_fail_errno("random bytes for the agent's name");
    text_format(a->name, sizeof(a->name), "%016llx", (unsigned long long)a->link.uid);
    text_format(a->containment.mark.agent, sizeof(a->containment.mark.agent), "%s", a->name);
    return LS_OK;
}

static ls_status open_ranks(agent *a)
{
    const int n = a->ctx.spec->n_ranks; /* may be 0 */

    LS_TRY(agent_output_open(&a->output));
    LS_TRY(agent_pmi_open(&a->pmi, &a->ctx));
    LS_TRY(LS_NEW(&a->ranks, (size_t)n + 1, "for %d rank%s", n, text_plural(n)));
    agent_reset_ranks(a);
    return LS_OK;
}

static ls_status open_connection(agent *a)
{
    const agent_spec *spec = a->ctx.spec;
    const hosts_options hosts = {.output = &a->output,
                                 .input = &a->input,
                                 .link = &a->link,
                                 .mask = &a->signals.old_mask,
                                 .agent = a,
                                 .placed = on_placed};

    if (spec->nodes == NULL)
        LS_TRY(net_key_random(&a->link.key));
    else if (spec->nodes->key != NULL)
        a->link.key = *spec->nodes->key;
    return spec->hosts != NULL ? agent_hosts_open(&hosts, &a->hosts) : agent_link_open(&a->link);
}

ls_status agent_open(agent *a, const agent_spec *spec, agent_result *result)
{
    prepare(a, spec, result);
    LS_TRY(name_agent(a));
    LS_TRY(process_list_fds(&a->users));
    LS_TRY(raise_descriptor_limit(spec));
    LS_TRY(open_ranks(a));
    LS_TRY(poller_create(&a->ctx.poller));
    LS_TRY(take_signals(a));
    if (spec->remote != NULL)
        LS_TRY(agent_remote_open(&a->starter, &a->input));
    if (spec->job->argv != NULL)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    LS_TRY(agent_status_open(&a->status, a));
    return open_connection(a);
}

void agent_close(agent *a)
{
    agent_hosts *hosts = a->hosts;

    agent_status_close(&a->status);
    if (a->ranks != NULL)
        agent_close_ranks(a);
    agent_containment_end_job(&a->containment);
    agent_containment_close(&a->containment);
    agent_link_close(&a->link); /* before the hosts: their agents then know that the job is over */
    agent_network_close(&a->network);
    a->hosts = NULL;
    agent_hosts_close(hosts);
    agent_input_close(&a->input);
    agent_remote_close(&a->starter);
    agent_output_close(&a->output);
    agent_pmi_close(&a->pmi);
    close_signals(&a->signals);
    poller_destroy(a->ctx.poller);
    file_close(&a->key_fd);
    net_key_wipe(&a->key);
    ls_free(a->users.fds);
    ls_free(a->ranks);
    restore_signals(&a->signals);
}
