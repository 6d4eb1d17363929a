/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_watch.c - the ranks of this node while they run: signals to them, records of their shims,
 * and how they end. The first failure decides the root rank; every failure is reported to the head.
 * Called by the loop, by messages of the head, and by the modules when a rank has failed.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "base/signal_list.h"
#include "comm/record/recorder.h"
#include "host/process.h"
#include "host/process_id.h"
#include "host/program.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ABORT_MS = 300, /* after a failure: for the other ranks to report it and exit, before SIGTERM */
    KILL_MS = 700,  /* from SIGTERM to SIGKILL after a failure, */
    CAUSE_KILL_MS = 2200, /* while the rank that is the cause still ends */
    ROOT_MS = 100,        /* a crash within this time after another rank's exit is its cause */
    LOST_MS = 4000        /* after SIGKILL: a rank that still runs counts as impossible to kill */
};

/* --- signals to ranks --- */

static void signal_rank(agent_rank *r, int number)
{
    const unsigned char byte = (unsigned char)number;

    if (!r->ended && r->shim_fd >= 0)
        (void)!write(r->shim_fd, &byte, 1); /* or the shim is gone, and with it the rank */
}

void agent_signal_ranks(agent *a, int number)
{
    for (int i = 0; a->ctx.phase != AGENT_IDLE && i < a->ctx.spec->n_ranks; i++)
        signal_rank(&a->ranks[i], number);
}

void agent_forget_failure(agent *a, int local_rank)
{
    if (a->root == local_rank)
        a->root = -1;
    if (a->aborter == local_rank)
        a->aborter = -1;
}

void agent_evict_rank(agent *a, int local_rank)
{
    agent_rank *r = &a->ranks[local_rank];

    if (r->shim > 0)
        kill(r->shim, SIGCONT); /* a stopped shim passes no signal on */
    signal_rank(r, SIGKILL);
}

static void rank_ended(agent_rank *r, int wait_status);

/*
 * A process that waits for a device ends when the device answers, if ever. The job does not wait.
 */
static void leave_unkillable(void *arg)
{
    agent *a = arg;

    for (int i = 0; i < a->ctx.spec->n_ranks; i++) {
        agent_rank *r = &a->ranks[i];
        if (r->ended)
            continue;
        if (r->pid <= 0 || !agent_containment_was_noted(&a->containment, r->pid))
            agent_note(&a->ctx, "rank %d (pid %d) cannot be killed (%s) and is left behind",
                       r->rank, (int)r->pid, process_state_text(process_state(r->pid)));
        rank_ended(r, SIGKILL);
    }
}

/* SIGCONT first: a stopped shim passes no signal on, and a stopped rank reacts to SIGKILL only.
 * spared: a local rank that does not get the signal, -1: none. */
static void end_ranks(agent *a, int number, int spared)
{
    a->is_signalled = true;
    for (int i = 0; i < a->ctx.spec->n_ranks; i++)
        if (a->ranks[i].shim > 0)
            kill(a->ranks[i].shim, SIGCONT);
    agent_signal_ranks(a, SIGCONT);
    for (int i = 0; i < a->ctx.spec->n_ranks; i++)
        if (i != spared)
            signal_rank(&a->ranks[i], number);
}

void agent_kill_ranks(void *arg)
{
    agent *a = arg;

    if (a->ctx.phase == AGENT_IDLE)
        return;
    if (a->ctx.phase == AGENT_RUNNING)
        a->ctx.phase = AGENT_FAILING;
    a->is_killed = true;
    end_ranks(a, SIGKILL, -1);
    cgroup_kill(&a->containment.group);
    poller_timer_set(a->ctx.poller, &a->lost_timer, ls_now_ms() + LOST_MS, leave_unkillable, a);
}

/* The rank that has aborted or left a group ends by itself: its exit code is the job's. */
static void terminate_ranks(void *arg)
{
    agent *a = arg;
    const int cause = a->aborter >= 0 && !a->ranks[a->aborter].ended ? a->aborter : -1;
    const int64_t kill_ms = ls_now_ms() + (cause < 0 ? KILL_MS : CAUSE_KILL_MS);

    end_ranks(a, SIGTERM, cause);
    poller_timer_set(a->ctx.poller, &a->kill_timer, kill_ms, agent_kill_ranks, a);
}

/* The hub sends the ranks the cause; those that do not exit by themselves are ended. */
void agent_abort_ranks(agent *a)
{
    a->ctx.phase = AGENT_FAILING;
    poller_timer_set(a->ctx.poller, &a->term_timer, ls_now_ms() + ABORT_MS, terminate_ranks, a);
}

static void grace_is_over(void *arg)
{
    agent *a = arg;

    for (int i = 0; i < a->ctx.spec->n_ranks; i++)
        if (!a->ranks[i].ended)
            agent_note(&a->ctx, "rank %d (pid %d) did not end within %.1f s and is killed",
                       a->ranks[i].rank, (int)a->ranks[i].pid, (double)a->grace_ms / 1e3);
    agent_kill_ranks(a);
}

void agent_note_stop(agent *a, const node_stop *stop)
{
    if (stop->signal == SIGPIPE || a->ctx.spec->remote != NULL)
        return; /* the reader is gone, or the starter prints it */
    agent_note(&a->ctx, "%s: the ranks have %.1f s to end%s", stop->text,
               (double)stop->grace_ms / 1e3,
               a->ctx.stop_signal != 0 ? "; a second one kills them" : "");
}

/* The ranks get the signal that stopped the job. A closed reader is none of theirs. */
void agent_stop_ranks(agent *a, const node_stop *stop)
{
    if (a->ctx.phase != AGENT_RUNNING)
        return;
    a->ctx.phase = AGENT_STOPPING;
    a->grace_ms = stop->grace_ms;
    a->stop_number = signal_list_name(stop->signal) != NULL ? stop->signal : SIGTERM;
    end_ranks(a, a->stop_number, -1);
    poller_timer_set(a->ctx.poller, &a->kill_timer, ls_now_ms() + a->grace_ms, grace_is_over, a);
    agent_note_stop(a, stop);
}

/* --- the end of a rank --- */

bool agent_ended_well(const agent_rank *r)
{
    return !r->is_vacant && r->failed_code == 0 && WIFEXITED(r->wait_status) &&
           WEXITSTATUS(r->wait_status) == 0;
}

int agent_exit_code(const agent_rank *r)
{
    if (r->failed_code != 0)
        return r->failed_code;
    return WIFSIGNALED(r->wait_status) ? 128 + WTERMSIG(r->wait_status)
                                       : WEXITSTATUS(r->wait_status);
}

/* The kernel ended it, so it is not the consequence of another rank's end. */
bool agent_has_crashed(const agent_rank *r)
{
    const int number = WIFSIGNALED(r->wait_status) ? WTERMSIG(r->wait_status) : 0;

    return number == SIGKILL || number == SIGSEGV || number == SIGBUS || number == SIGILL ||
           number == SIGFPE;
}

void agent_describe_end(const agent_rank *r, char *buf, size_t n)
{
    char end[96];
    char peak[32];

    if (r->message[0] != 0)
        text_format(buf, n, "rank %d (pid %d): %s", r->rank, (int)r->pid, r->message);
    else if (r->memory[0] != 0)
        text_format(buf, n,
                    "rank %d (pid %d) was killed by the kernel: out of memory (%s; it had %s)",
                    r->rank, (int)r->pid, r->memory,
                    text_bytes(peak, sizeof(peak), (uint64_t)r->peak_bytes));
    else
        text_format(buf, n, "rank %d (pid %d) %s", r->rank, (int)r->pid,
                    process_end_text(end, sizeof(end), r->wait_status));
}

void agent_describe_rank(void *arg, int local_rank, char *buf, size_t n)
{
    const agent *a = arg;
    const agent_rank *r = &a->ranks[local_rank];

    if (a->ctx.phase == AGENT_IDLE)
        text_format(buf, n, "not started");
    else if (r->ended)
        process_end_text(buf, n, r->wait_status);
    else
        text_format(buf, n, "%s",
                    r->pid > 0 ? process_state_text(process_state(r->pid)) : "starting");
}

/* The ends of two ranks may be reported in the wrong order. */
static bool is_the_cause(const agent *a, const agent_rank *r)
{
    return agent_has_crashed(r) && !WIFSIGNALED(a->ranks[a->root].wait_status) &&
           ls_now_ms() - a->failed_ms < ROOT_MS;
}

static void note_failure(agent_rank *r)
{
    agent *a = r->agent;

    if (a->ctx.phase == AGENT_STOPPING)
        return; /* while the job stops, every end of a rank is expected */
    if (a->root < 0) {
        a->root = agent_local_rank(r);
        a->failed_ms = ls_now_ms();
    } else if (is_the_cause(a, r)) {
        a->root = agent_local_rank(r);
    }
    r->is_undecided = agent_is_elastic(&a->ctx) && a->ctx.phase == AGENT_RUNNING;
    agent_send_cause(a, r);
    agent_send_failure(a, agent_local_rank(r), r, NULL);
}

bool agent_fail_rank(void *arg, int local_rank, int exit_code, const char *why)
{
    agent *a = arg;
    agent_rank *r = local_rank >= 0 ? &a->ranks[local_rank] : NULL;

    if (r == NULL) {
        agent_send_failure(a, -1, NULL, why);
        return true;
    }
    if (r->failed_code != 0)
        return false;
    r->failed_code = exit_code;
    text_format(r->message, sizeof(r->message), "%s", why);
    note_failure(r);
    return true;
}

static void send_rank_exited(const agent_rank *r)
{
    const agent *a = r->agent;
    const node_exit exited = {.generation = agent_generation(&a->ctx),
                              .local_rank = agent_local_rank(r),
                              .pid = r->pid,
                              .state = agent_pmi_state(&a->pmi, agent_local_rank(r))};
    wire_writer w = {0};

    node_write_exit(&w, &exited);
    agent_send(&a->ctx, NODE_RANK_EXITED, &w);
}

/* A rank that exits with code 0 during a training step or a save has failed. */
static void check_unfinished(agent_rank *r)
{
    text_buf activity = {0};

    if (r->agent->ctx.phase != AGENT_RUNNING || !agent_ended_well(r))
        return;
    recorder_read_activity(r->ring_fd, &activity);
    if (activity.length > 0) {
        char why[LS_ERROR_BYTES];

        text_format(why, sizeof(why), "exited with code 0 before it finalized, while %s",
                    text_str(&activity));
        (void)agent_fail_rank(r->agent, agent_local_rank(r), 1, why);
    }
    text_free(&activity);
}

/* An end that the signals of this agent do not explain. */
static bool has_fault(const agent_rank *r)
{
    const int number = WIFSIGNALED(r->wait_status) ? WTERMSIG(r->wait_status) : 0;

    return number != 0 && number != SIGTERM && number != SIGKILL && number != r->agent->stop_number;
}

static void rank_ended(agent_rank *r, int wait_status)
{
    agent *a = r->agent;

    if (r->ended)
        return;
    agent_pmi_end_rank(&a->pmi, agent_local_rank(r)); /* it may have sent an abort */
    if (agent_local_rank(r) == 0)
        agent_store_end_watch(&a->store);
    r->ended = true;
    r->wait_status = wait_status;
    r->was_stopped = a->is_signalled && !has_fault(r);
    if (!a->is_killed && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL)
        (void)oom_happened(&a->containment.oom, r->memory, sizeof(r->memory));
    a->n_ended++;
    check_unfinished(r);
    agent_pmi_report(&a->pmi); /* before its end: a rank does not wait for itself */
    if (agent_ended_well(r))
        send_rank_exited(r);
    else if (r->failed_code == 0)
        note_failure(r);
}

/* --- records of a shim --- */

/* Why a program did not start, and what to do about the usual reason. */
static void describe_exec(agent_rank *r, int error)
{
    const char *program = r->agent->ctx.spec->job->argv[0];
    char advice[LS_ERROR_BYTES];

    text_format(r->message, sizeof(r->message), "cannot run %s: %s%s", program,
                ls_errno_text(error), program_advice(advice, sizeof(advice), program, error));
}

static void take_record(agent_rank *r, const shim_record *record)
{
    switch ((shim_status)record->status) {
    case SHIM_PID:
        r->shim = (pid_t)record->value;
        return;
    case SHIM_STARTED:
        r->pid = (pid_t)record->value;
        return;
    case SHIM_NOT_STARTED:
        text_format(r->message, sizeof(r->message), "cannot create its process: %s",
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
        if (r->agent->ctx.spec->job->isolate)
            r->shim = 0; /* the number may be used again from now on */
        rank_ended(r, record->value);
        return;
    case SHIM_UNKILLABLE:
        agent_containment_note_left(&r->agent->containment, (pid_t)record->value);
        return;
    }
}

static void shim_ended(agent_rank *r)
{
    const bool is_isolated = r->agent->ctx.spec->job->isolate;

    if (r->ended)
        return;
    /* No record of its end: the shim was killed, and the kernel has killed the rank with it. */
    r->agent->containment.has_lost_shim = true;
    text_format(r->message, sizeof(r->message), "the process that watches over it%s was killed",
                is_isolated ? ", or over its namespace," : "");
    if (is_isolated)
        r->shim = 0;
    rank_ended(r, SIGKILL);
}

void agent_on_status(void *rank, unsigned events)
{
    agent_rank *r = rank;
    shim_record record;
    ssize_t n;

    LS_UNUSED(events);
    do {
        n = read(r->shim_fd, &record, sizeof(record));
        if (n == (ssize_t)sizeof(record))
            take_record(r, &record);
    } while (n > 0 || (n < 0 && (errno == EINTR || errno == ECONNRESET)));
    if (n < 0)
        return;
    poller_close(&r->status_watch, &r->shim_fd);
    shim_ended(r);
}

void agent_reap(agent *a)
{
    agent_hosts_reap(a->hosts);
    agent_containment_reap(&a->containment);
    for (int i = 0; a->ctx.phase != AGENT_IDLE && i < a->ctx.spec->n_ranks; i++) {
        agent_rank *r = &a->ranks[i];
        if (r->shim <= 0 || waitpid(r->shim, NULL, WNOHANG) != r->shim)
            continue;
        r->shim = 0;
        /* Descendants of the rank may hold the other end open, so its last records are read now. */
        if (r->shim_fd >= 0)
            agent_on_status(r, POLL_READ);
        shim_ended(r);
    }
}
