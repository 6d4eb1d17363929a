/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.c - the agent's loop: news from shims, lines from ranks, signals from the user, events of the hub, and the policy that
 * turns them into one end with one cause.
 */
#include "launch/agent.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/process.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TELL_MS = 300, /* after a failure: for the others to say what they heard, before SIGTERM */
    KILL_MS = 700, /* from SIGTERM to SIGKILL after a failure */
    ROOT_MS =
        100, /* within which a crash is the cause of another rank's exit, not its consequence */
    CAUSE_MS = 60000, /* within which a second broken group is a consequence of the first */
    LOST_MS =
        4000, /* from SIGKILL until a rank that is still there counts as one that cannot be killed */
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

static void rank_ended(agent_rank *r, int wait_status);

/* A process that waits for a device ends when that answers, if ever. We do not wait with it. */
static void leave_unkillable(void *arg)
{
    agent *a = arg;

    for (int i = 0; i < a->spec->n_ranks; i++) {
        agent_rank *r = &a->ranks[i];
        if (r->ended)
            continue;
        agent_note(a, "rank %d (pid %d) cannot be killed (%s) and is left behind", i, (int)r->pid,
                   file_process_state_text(file_process_state(r->pid)));
        rank_ended(r, SIGKILL);
    }
}

/* SIGCONT first: a stopped rank hears nothing else but SIGKILL, and a stopped shim would not even pass that on. */
static void kill_ranks(agent *a)
{
    for (int i = 0; i < a->spec->n_ranks; i++)
        if (a->ranks[i].shim > 0)
            kill(a->ranks[i].shim, SIGCONT);
    signal_ranks(a, SIGCONT);
    signal_ranks(a, SIGKILL);
    poller_timer_set(a->poller, &a->lost_timer, ls_now_ms() + LOST_MS, leave_unkillable, a);
}

static void failed_long_enough(void *arg)
{
    kill_ranks(arg);
}

static void terminate_ranks(void *arg)
{
    agent *a = arg;

    signal_ranks(a, SIGCONT);
    signal_ranks(a, SIGTERM);
    poller_timer_set(a->poller, &a->kill_timer, ls_now_ms() + KILL_MS, failed_long_enough, a);
}

/* --- the end of a rank --- */

static bool ended_well(const agent_rank *r)
{
    return r->failed_code == 0 && WIFEXITED(r->wait_status) && WEXITSTATUS(r->wait_status) == 0;
}

static int exit_code_of(const agent_rank *r)
{
    if (r->failed_code != 0)
        return r->failed_code;
    return WIFSIGNALED(r->wait_status) ? 128 + WTERMSIG(r->wait_status)
                                       : WEXITSTATUS(r->wait_status);
}

/* Nobody but the kernel knows for certain why it killed; this is what its counter says. */
static const char *describe_memory(const agent *a, const agent_rank *r, char *buf, size_t n)
{
    const bool killed = WIFSIGNALED(r->wait_status) && WTERMSIG(r->wait_status) == SIGKILL;
    char peak[32];

    if (!killed || process_oom_kills() <= a->oom_kills)
        return "";
    return text_format(buf, n, ", as memory ran out (it had %s)",
                       text_bytes(peak, sizeof(peak), (uint64_t)r->peak_bytes));
}

void agent_describe_end(const agent *a, const agent_rank *r, char *buf, size_t n)
{
    char end[96];
    char memory[96];

    if (r->message[0] != 0)
        text_format(buf, n, "rank %d (pid %d): %s", r->rank, (int)r->pid, r->message);
    else
        text_format(buf, n, "rank %d (pid %d) %s%s", r->rank, (int)r->pid,
                    process_end_text(end, sizeof(end), r->wait_status),
                    describe_memory(a, r, memory, sizeof(memory)));
}

/* The first failure: every rank hears why, and those that do not end by themselves are ended. */
static void begin_failing(agent *a, const agent_rank *r)
{
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .rank = r->rank};

    a->phase = AGENT_FAILING;
    a->root = r->rank;
    a->failed_ms = ls_now_ms();
    agent_describe_end(a, r, cause.text, sizeof(cause.text));
    hub_abort(a->hub, &cause);
    poller_timer_set(a->poller, &a->term_timer, a->failed_ms + TELL_MS, terminate_ranks, a);
}

void agent_rank_failed(agent_rank *r, int code)
{
    r->agent->n_failed += r->ended && ended_well(r);
    r->failed_code = code;
    if (r->agent->phase == AGENT_RUNNING)
        begin_failing(r->agent, r);
}

/* The news of two deaths may come in the wrong order. One that the kernel ended is not a consequence of another's exit. */
static bool is_the_cause(const agent *a, const agent_rank *r)
{
    const int number = WIFSIGNALED(r->wait_status) ? WTERMSIG(r->wait_status) : 0;
    const bool crashed = number == SIGKILL || number == SIGSEGV || number == SIGBUS ||
                         number == SIGILL || number == SIGFPE;

    return crashed && !WIFSIGNALED(a->ranks[a->root].wait_status) &&
           ls_now_ms() - a->failed_ms < ROOT_MS;
}

/* A rank that ended well, though another one has begun to join a group that both are to be in: that one would wait for ever. */
static void end_vain_joins(agent *a)
{
    const agent_rank *gone = NULL;
    int most = 0;
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL};

    for (int i = 0; i < a->spec->n_ranks; i++) {
        const agent_rank *r = &a->ranks[i];
        if (r->ended && (gone == NULL || r->n_joins < gone->n_joins))
            gone = r;
        if (!r->ended && !r->left && r->n_joins > most)
            most = r->n_joins;
    }
    if (gone == NULL || gone->n_joins >= most || a->phase != AGENT_RUNNING)
        return;
    cause.rank = gone->rank;
    text_format(cause.text, sizeof(cause.text), "rank %d (pid %d) exited with code 0 %s",
                gone->rank, (int)gone->pid,
                gone->n_joins == 0 ? "without joining the job" : "and does not join again");
    if (a->cause.text[0] == 0)
        a->cause = (agent_cause){.at_ms = ls_now_ms()};
    text_format(a->cause.text, sizeof(a->cause.text), "%s", cause.text);
    hub_abort(a->hub, &cause);
}

static void rank_ended(agent_rank *r, int wait_status)
{
    agent *a = r->agent;

    if (r->ended)
        return;
    agent_hear_pmi(r); /* its last words may say why */
    agent_end_pmi(r);
    r->ended = true;
    r->wait_status = wait_status;
    a->n_ended++;
    a->n_failed += !ended_well(r);
    if (ended_well(r)) {
        if (r->n_joins > 0 && !r->left)
            hub_rank_left(a->hub, r->rank); /* who waits for it is told; nobody else is disturbed */
        end_vain_joins(a);
        agent_end_vain_mpi(a);
    } else if (a->phase == AGENT_RUNNING) {
        begin_failing(a, r);
    } else if (a->phase == AGENT_FAILING && is_the_cause(a, r)) {
        a->root = r->rank;
    }
}

/* --- news from a shim --- */

/* Why a program did not start, with what to do about the usual reason. */
static void describe_exec(agent_rank *r, int error)
{
    const char *program = r->agent->spec->argv[0];
    const bool is_here =
        error == ENOENT && strchr(program, '/') == NULL && access(program, X_OK) == 0;

    text_format(r->message, sizeof(r->message), "cannot run %s: %s%s%s", program,
                ls_errno_text(error), is_here ? "; it is in this folder: ./" : "",
                is_here ? program : "");
}

static void take_record(agent_rank *r, const shim_record *record)
{
    switch ((shim_news)record->news) {
    case SHIM_STARTED:
        r->pid = (pid_t)record->value;
        return;
    case SHIM_NOT_STARTED:
        text_format(r->message, sizeof(r->message), "no process could be made for it: %s",
                    ls_errno_text(record->value));
        return;
    case SHIM_EXEC_FAILED:
        describe_exec(r, record->value);
        return;
    case SHIM_MESSAGE:
        text_format(r->message, sizeof(r->message), "%.*s", (int)sizeof(record->text) - 1,
                    record->text);
        return;
    case SHIM_ENDED:
        r->peak_bytes = record->peak_bytes;
        rank_ended(r, record->value);
        return;
    }
}

static void shim_ended(agent_rank *r)
{
    if (r->ended)
        return;
    /* Without a word: somebody has killed the shim, and the kernel the rank with it. */
    r->agent->shim_lost = true;
    text_format(r->message, sizeof(r->message), "the process that watches over it was killed");
    rank_ended(r, SIGKILL);
}

void agent_on_news(void *rank, unsigned events)
{
    agent_rank *r = rank;
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
    poller_unwatch(r->news_watch);
    r->news_watch = NULL;
    file_close(&r->news_fd);
    shim_ended(r);
}

/* --- signals to the agent --- */

static void reap_helpers(agent *a)
{
    for (int i = 0; i < a->spec->n_ranks; i++) {
        agent_rank *r = &a->ranks[i];
        if (r->shim <= 0 || waitpid(r->shim, NULL, WNOHANG) != r->shim)
            continue;
        r->shim = 0;
        /* Its last words may be waiting. The pipe need not end with it: what the rank has forked may hold it. */
        if (r->news_fd >= 0)
            agent_on_news(r, POLL_READ);
        shim_ended(r);
    }
    if (a->guardian > 0 && waitpid(a->guardian, NULL, WNOHANG) == a->guardian) {
        a->guardian = 0;
        file_close(&a->guardian_fd);
        if (agent_start_guardian(a) != LS_OK)
            agent_note(a, "the guardian was killed, and there is no new one: %s", ls_last_error());
    }
}

static void grace_is_over(void *arg)
{
    agent *a = arg;

    for (int i = 0; i < a->spec->n_ranks; i++)
        if (!a->ranks[i].ended)
            agent_note(a, "rank %d (pid %d) did not end within %.1f s and is killed", i,
                       (int)a->ranks[i].pid, (double)a->spec->grace_ms / 1e3);
    kill_ranks(a);
}

void agent_stop(agent *a, int number)
{
    if (a->phase != AGENT_RUNNING || a->n_ended == a->spec->n_ranks) {
        kill_ranks(a);
        for (int which = 0; which < 2; which++)
            a->sinks[which].is_broken |= a->n_ended == a->spec->n_ranks;
        return;
    }
    a->phase = AGENT_STOPPING;
    a->stop_signal = number;
    signal_ranks(a, SIGCONT);
    signal_ranks(a, SIGTERM);
    poller_timer_set(a->poller, &a->kill_timer, ls_now_ms() + a->spec->grace_ms, grace_is_over, a);
    if (number != SIGPIPE) /* the reader has gone; nothing needs to be said */
        agent_note(a, "%s: the ranks have %.1f s to end; a second one kills them",
                   process_signal_name(number), (double)a->spec->grace_ms / 1e3);
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
            reap_helpers(a);
        else if (number == SIGTSTP)
            pause_job(a);
        else if (number == SIGCONT)
            a->resumed_ms = ls_now_ms();
        else if ((number == SIGUSR1 || number == SIGUSR2) && !agent_stops_at(a->spec, number))
            signal_ranks(a, number); /* what it means is theirs to say */
        else
            agent_stop(a, number);
    }
}

/* --- events of the hub --- */

static void on_joined(void *self, int rank, pid_t pid)
{
    agent *a = self;

    LS_UNUSED(pid);
    a->ranks[rank].n_joins++;
    a->ranks[rank].left = false;
    end_vain_joins(a);
}

static void on_left(void *self, int rank)
{
    agent *a = self;

    a->ranks[rank].left = true;
}

static void on_failed(void *self, const job_cause *cause)
{
    agent *a = self;

    if (a->phase != AGENT_RUNNING ||
        (a->cause.text[0] != 0 && ls_now_ms() - a->cause.at_ms < CAUSE_MS))
        return;
    a->cause.at_ms = ls_now_ms();
    text_format(a->cause.text, sizeof(a->cause.text), "%s", cause->text);
}

static void on_late(void *self, const char *text)
{
    agent *a = self;

    if (ls_now_ms() - a->resumed_ms <= RESUMED_MS)
        return;
    if (a->spec->capture)
        agent_note(a, "%s", text);
    else
        ls_log(LS_LOG_WARN, "launch", "%s", text);
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

static void make_result(agent *a)
{
    if (a->root >= 0) {
        agent_settle_root(a);
        a->result->failed = true;
        a->result->exit_code = exit_code_of(&a->ranks[a->root]);
        agent_make_report(a);
    } else if (a->phase == AGENT_STOPPING) {
        a->result->exit_code = 128 + a->stop_signal;
    }
}

static ls_status run_loop(agent *a)
{
    while (a->n_ended < a->spec->n_ranks)
        LS_TRY(poller_run_once(a->poller, -1));
    return agent_drain(a);
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
    agent_close(&a);
    return st;
}
