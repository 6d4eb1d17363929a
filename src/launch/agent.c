/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.c - the agent's loop: news from shims, lines from ranks, signals from the user, events of the hub, and the policy that
 * turns them into one end with one cause.
 */
#include "launch/agent.h"

#include "base/clock.h"
#include "base/file.h"
#include "launch/process.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TELL_MS = 300,    /* after a failure: for the others to say what they heard, before SIGTERM */
    KILL_MS = 1000,   /* from SIGTERM to SIGKILL after a failure */
    DRAIN_MS = 500,   /* for pipes that outlive their rank */
    RESUMED_MS = 2000 /* after Ctrl-Z and fg: what seems late then was only stopped */
};

/* --- signals to ranks --- */

static void signal_rank(agent_rank *r, int number)
{
    const unsigned char byte = (unsigned char)number;

    if (r->ended || r->lifeline_fd < 0)
        return;
    if (write(r->lifeline_fd, &byte, 1) != 1)
        file_close(&r->lifeline_fd); /* the shim is gone, and with it the rank */
}

static void signal_ranks(agent *a, int number)
{
    for (int i = 0; i < a->spec->n_ranks; i++)
        signal_rank(&a->ranks[i], number);
}

static void kill_all(void *arg)
{
    agent *a = arg;

    signal_ranks(
        a, SIGCONT); /* a stopped shim's rank dies all the same; its helpers may need to run */
    signal_ranks(a, SIGKILL);
}

static void terminate_all(void *arg)
{
    agent *a = arg;

    signal_ranks(a, SIGCONT);
    signal_ranks(a, SIGTERM);
    poller_timer_set(a->poller, &a->kill_timer, ls_now_ms() + KILL_MS, kill_all, a);
}

/* --- how the job ends --- */

static bool ended_well(const agent_rank *r)
{
    return WIFEXITED(r->wait_status) && WEXITSTATUS(r->wait_status) == 0;
}

static int exit_code_of(const agent_rank *r)
{
    return WIFSIGNALED(r->wait_status) ? 128 + WTERMSIG(r->wait_status)
                                       : WEXITSTATUS(r->wait_status);
}

static void describe_end(const agent *a, const agent_rank *r, char *buf, size_t n)
{
    char end[96];
    const bool killed = WIFSIGNALED(r->wait_status) && WTERMSIG(r->wait_status) == SIGKILL;
    const char *why = killed && process_oom_kills() > a->oom_kills ? ", out of memory" : "";

    if (r->message[0] != 0)
        text_format(buf, n, "rank %d (pid %d): %s", r->rank, (int)r->pid, r->message);
    else
        text_format(buf, n, "rank %d (pid %d) %s%s", r->rank, (int)r->pid,
                    process_end_text(end, sizeof(end), r->wait_status), why);
}

/* The first failure: every rank hears why, and those that do not end by themselves are ended. */
static void begin_failing(agent *a, agent_rank *r)
{
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .rank = r->rank};

    a->phase = AGENT_FAILING;
    a->root = r->rank;
    describe_end(a, r, cause.text, sizeof(cause.text));
    hub_abort(a->hub, &cause);
    poller_timer_set(a->poller, &a->term_timer, ls_now_ms() + TELL_MS, terminate_all, a);
}

static void rank_ended(agent_rank *r, int wait_status)
{
    agent *a = r->agent;

    if (r->ended)
        return;
    r->ended = true;
    r->wait_status = wait_status;
    a->n_ended++;
    if (ended_well(r)) {
        if (r->joined && !r->left)
            hub_rank_left(a->hub,
                          r->rank); /* whoever waits for it is told; nobody else is disturbed */
    } else if (a->phase == AGENT_RUNNING) {
        begin_failing(a, r);
    } else if (a->phase == AGENT_FAILING) {
        a->n_after++;
    }
}

/* --- news from a shim --- */

static void take_record(agent_rank *r, const shim_record *record)
{
    switch ((shim_news)record->news) {
    case SHIM_STARTED:
        r->pid = (pid_t)record->value;
        return;
    case SHIM_EXEC_FAILED:
        text_format(r->message, sizeof(r->message), "cannot run %s: %s",
                    r->agent->spec->argv != NULL ? r->agent->spec->argv[0] : "a function",
                    ls_errno_text(record->value));
        return;
    case SHIM_MESSAGE:
        text_format(r->message, sizeof(r->message), "%.*s", (int)sizeof(record->text) - 1,
                    record->text);
        return;
    case SHIM_ENDED:
        rank_ended(r, record->value);
        return;
    }
}

void agent_on_news(void *arg, unsigned events)
{
    agent_rank *r = arg;
    shim_record record;
    ssize_t n;

    LS_UNUSED(events);
    do {
        n = read(r->news_fd, &record, sizeof(record));
        if (n == (ssize_t)sizeof(record))
            take_record(r, &record);
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0)
        return;
    /* The end: shim and rank are gone. Without a word before it, somebody has killed the shim, and the kernel the rank. */
    poller_unwatch(r->news_watch);
    r->news_watch = NULL;
    file_close(&r->news_fd);
    if (!r->ended) {
        r->agent->shim_lost = true;
        text_format(r->message, sizeof(r->message), "the process that watches over it was killed");
        rank_ended(r, SIGKILL);
    }
}

/* --- what a rank prints --- */

static void end_stream(agent_rank *r, int which)
{
    output_end(&r->stream[which]);
    poller_unwatch(r->stream_watch[which]);
    r->stream_watch[which] = NULL;
    file_close(&r->stream_fd[which]);
}

void agent_on_stream(void *arg, unsigned events, int which)
{
    agent_rank *r = arg;
    char bytes[16384];
    const ssize_t n = read(r->stream_fd[which], bytes, sizeof(bytes));

    LS_UNUSED(events);
    if (n > 0)
        output_feed(&r->stream[which], bytes, (size_t)n);
    else if (n == 0 || (errno != EINTR && errno != EAGAIN))
        end_stream(r, which);
}

/* --- signals to the agent --- */

static void reap_shims(agent *a)
{
    for (int i = 0; i < a->spec->n_ranks; i++) {
        agent_rank *r = &a->ranks[i];
        if (r->shim > 0 && waitpid(r->shim, NULL, WNOHANG) == r->shim)
            r->shim = 0;
    }
}

static void stop_job(agent *a, int number)
{
    if (a->phase != AGENT_RUNNING) { /* the second time means now */
        kill_all(a);
        return;
    }
    a->phase = AGENT_STOPPING;
    a->stop_signal = number;
    signal_ranks(a, SIGCONT);
    signal_ranks(a, SIGTERM);
    poller_timer_set(a->poller, &a->kill_timer, ls_now_ms() + a->spec->grace_ms, kill_all, a);
}

/* Ctrl-Z stops the whole job with us, fg goes on with it. */
static void pause_job(agent *a)
{
    signal_ranks(a, SIGSTOP);
    raise(SIGSTOP);
    a->resumed_ms = ls_now_ms();
    signal_ranks(a, SIGCONT);
}

void agent_on_signal(void *arg, unsigned events)
{
    agent *a = arg;
    struct signalfd_siginfo info;

    LS_UNUSED(events);
    while (read(a->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        const int number = (int)info.ssi_signo;
        if (number == SIGCHLD)
            reap_shims(a);
        else if (number == SIGTSTP)
            pause_job(a);
        else if (number == SIGCONT)
            a->resumed_ms = ls_now_ms();
        else
            stop_job(a, number);
    }
}

/* --- events of the hub --- */

static void on_joined(void *self, int rank, pid_t pid)
{
    agent *a = self;

    LS_UNUSED(pid);
    a->ranks[rank].joined = true;
    a->ranks[rank].left = false;
}

static void on_left(void *self, int rank)
{
    agent *a = self;

    a->ranks[rank].left = true;
}

static void on_failed(void *self, const job_cause *cause)
{
    agent *a = self;

    if (a->cause[0] == 0 && a->phase == AGENT_RUNNING)
        text_format(a->cause, sizeof(a->cause), "%s", cause->text);
}

static void on_late(void *self, const char *text)
{
    agent *a = self;

    if (ls_now_ms() - a->resumed_ms > RESUMED_MS)
        output_note(&a->sinks[1], "lockstep: %s", text);
}

static void describe_rank(void *self, int rank, char *buf, size_t n)
{
    const agent_rank *r = &((agent *)self)->ranks[rank];

    if (r->ended)
        process_end_text(buf, n, r->wait_status);
    else
        text_format(buf, n, "%s",
                    r->pid > 0 ? file_process_state_text(file_process_state(r->pid)) : "starting");
}

hub_events agent_hub_events(agent *a)
{
    return (hub_events){.self = a,
                        .joined = on_joined,
                        .left = on_left,
                        .failed = on_failed,
                        .late = on_late,
                        .describe = describe_rank};
}

/* --- the loop and its result --- */

static bool streams_ended(const agent *a)
{
    for (int i = 0; i < a->spec->n_ranks; i++)
        if (a->ranks[i].stream_fd[0] >= 0 || a->ranks[i].stream_fd[1] >= 0 || a->ranks[i].shim > 0)
            return false;
    return true;
}

static void on_drained(void *arg)
{
    ((agent *)arg)->drained = true;
}

static ls_status run_loop(agent *a)
{
    while (a->n_ended < a->spec->n_ranks)
        LS_TRY(poller_run_once(a->poller, -1));
    poller_timer_set(a->poller, &a->drain_timer, ls_now_ms() + DRAIN_MS, on_drained, a);
    while (!a->drained && !streams_ended(a))
        LS_TRY(poller_run_once(a->poller, -1));
    for (int i = 0; i < a->spec->n_ranks; i++)
        for (int which = 0; which < 2; which++)
            if (a->ranks[i].stream_fd[which] >= 0)
                end_stream(&a->ranks[i], which);
    return LS_OK;
}

/* One root cause; what followed from it is only counted. */
static void make_report(agent *a)
{
    const agent_rank *r = &a->ranks[a->root];
    text_buf *out = &a->result->report;
    char end[LS_ERROR_BYTES + 64];

    describe_end(a, r, end, sizeof(end));
    if (a->cause[0] != 0)
        text_append(out, "%s\n  then %s\n", a->cause, end);
    else
        text_append(out, "%s\n", end);
    if (r->stream[0].n_kept + r->stream[1].n_kept > 0) {
        text_append(out, "  its last lines:\n");
        output_append_kept(&r->stream[0], out);
        output_append_kept(&r->stream[1], out);
    }
    if (a->spec->describe_ring != NULL && r->ring_fd >= 0)
        a->spec->describe_ring(r->ring_fd, out);
    if (a->n_after > 0)
        text_append(out, "  %d other rank%s failed after it\n", a->n_after,
                    a->n_after == 1 ? "" : "s");
}

static void make_result(agent *a)
{
    bool all_well = true;

    for (int i = 0; i < a->spec->n_ranks; i++)
        all_well = all_well && ended_well(&a->ranks[i]);
    if (a->root >= 0) {
        a->result->failed = true;
        a->result->exit_code = exit_code_of(&a->ranks[a->root]);
        make_report(a);
    } else if (!all_well) {
        a->result->exit_code = 128 + a->stop_signal;
    }
}

ls_status agent_run(const agent_spec *spec, agent_result *out)
{
    agent a;
    ls_status st;

    memset(out, 0, sizeof(*out));
    if (spec->n_ranks < 1)
        return ls_fail(LS_EINVAL, "%d ranks cannot be started", spec->n_ranks);
    st = agent_open(&a, spec, out);
    if (st == LS_OK)
        st = run_loop(&a);
    if (st == LS_OK)
        make_result(&a);
    poller_timer_cancel(&a.term_timer);
    poller_timer_cancel(&a.kill_timer);
    poller_timer_cancel(&a.drain_timer);
    agent_close(&a);
    return st;
}
