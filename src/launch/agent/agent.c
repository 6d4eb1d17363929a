/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.c - the agent's loop: one poller drives the connection to the head, the ranks' pipes, and
 * the user's signals, in one thread. Called by `lockstep run`, `join` and `agent`, and by
 * ls_spawn().
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/record/recorder.h"
#include "host/process.h"

#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    PAUSE_MS = 20, /* for the other nodes to be notified before this process stops */
    LEAVE_MS = 3000
};

/* --- signals to the agent --- */

/* The ranks get this signal and their grace; the job goes on without them. */
static void leave_at(agent *a, int number, const char *job)
{
    node_stop stop = {.signal = number, .grace_ms = a->ctx.spec->job->grace_ms};

    text_format(stop.text, sizeof(stop.text), "%s: this node leaves the job, %s",
                process_signal_name(number), job);
    a->has_left = true;
    a->outcome.left_at_signal = number;
    a->ctx.is_over = true;
    for (int i = 0; a->ctx.phase == AGENT_RUNNING && i < a->ctx.spec->n_ranks; i++)
        recorder_set_leaving(a->ranks[i].ring_fd);
    agent_link_quit(&a->link);
    agent_stop_ranks(a, &stop);
}

void agent_leave_orderly(agent *a)
{
    leave_at(a, SIGTERM, "which goes on");
}

/* SIGTERM evicts this node: the others go on where they can. An agent that ssh or srun has started
 * belongs to its starter. */
static node_message choose_request(const agent *a, int number, bool is_first)
{
    return number == SIGTERM && is_first && a->ctx.spec->remote == NULL ? NODE_LEAVE : NODE_STOP;
}

bool agent_has_started(const void *arg)
{
    const agent *a = arg;
    const uint32_t generation = agent_generation(&a->ctx);

    return a->ctx.phase == AGENT_RUNNING ||
           (generation != 0 && a->finished == generation && !a->last_end.stopped);
}

/* A head that another node can take over. */
static bool moves_head(const agent *a, int number, bool is_first)
{
    return choose_request(a, number, is_first) == NODE_LEAVE && a->link.head != NULL &&
           agent_has_started(a) && head_can_move(a->link.head);
}

void agent_stop(agent *a, int number)
{
    const bool is_member = agent_generation(&a->ctx) != 0 && a->link.is_linked;
    const bool is_first = a->ctx.stop_signal == 0;
    wire_writer w = {0};

    if (!is_first) {
        agent_kill_ranks(a);
        for (int which = 0; which < 2; which++)
            a->output.sinks[which].is_broken |= a->n_ended == a->ctx.spec->n_ranks;
    }
    a->ctx.stop_signal = number;
    if (a->has_left)
        return;
    if (moves_head(a, number, is_first)) {
        agent_leave_orderly(a);
        return;
    }
    if (agent_link_waits(&a->link)) { /* for another head, which may never come */
        leave_at(a, number, "whose head is lost");
        return;
    }
    if (a->link.head == NULL && !is_member) { /* the job continues without this node */
        a->outcome.left_at_signal = number;
        if (a->ctx.spec->remote != NULL) /* the starter gets an error instead */
            a->ctx.give_up(a, ls_fail(LS_ECANCELED, "stopped by %s", process_signal_name(number)));
        a->ctx.is_over = true;
        return;
    }
    wire_write_u32(&w, (uint32_t)number);
    agent_send(&a->ctx, choose_request(a, number, is_first), &w);
}

/* Ctrl-Z stops the whole job with this process, fg continues it. */
static void stop_self(void *arg)
{
    agent *a = arg;

    raise(SIGSTOP);
    agent_link_resumed(&a->link);
    agent_signal_ranks(a, SIGCONT);
    agent_link_send(&a->link, NODE_RESUME, NULL);
}

static void pause_job(agent *a)
{
    agent_signal_ranks(a, SIGSTOP);
    agent_link_send(&a->link, NODE_PAUSE, NULL);
    poller_timer_set(a->ctx.poller, &a->signals.pause_timer, ls_now_ms() + PAUSE_MS, stop_self, a);
}

static void resize_terminals(agent *a)
{
    if (!a->ctx.spec->job->pty || a->ctx.spec->remote != NULL)
        return;
    agent_terminal_resize(&a->output,
                          agent_terminal_size(&a->output, a->ctx.place.place.world_size));
    agent_signal_ranks(a, SIGWINCH);
    agent_hosts_resize(a->hosts);
}

void agent_on_signal(void *arg, unsigned events)
{
    agent *a = arg;
    struct signalfd_siginfo info;

    LS_UNUSED(events);
    while (read(a->signals.fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        const int number = (int)info.ssi_signo;
        if (number == SIGCHLD)
            agent_reap(a);
        else if (number == SIGTSTP)
            pause_job(a);
        else if (number == SIGWINCH)
            resize_terminals(a);
        else if (number == SIGCONT && a->link.head != NULL)
            head_resumed(a->link.head);
        else if ((number == SIGUSR1 || number == SIGUSR2) && !agent_stops_at(a->ctx.spec, number))
            agent_signal_ranks(a, number); /* the program decides what it means */
        else if (number != SIGCONT)
            agent_stop(a, number);
    }
}

void agent_leave_job(agent *a)
{
    agent_link_leave(&a->link);
    agent_kill_ranks(a);
}

/* --- the loop --- */

/* Until all pipes have ended and all shims are reaped, or the pipes have had their time. */
static bool is_draining(const agent *a)
{
    if (agent_output_is_draining(&a->output))
        return true;
    for (int i = 0; i < a->ctx.spec->n_ranks && !a->output.is_drained; i++)
        if (a->ranks[i].shim > 0)
            return true;
    return false;
}

static ls_status finish_ranks(agent *a)
{
    agent_output_begin_drain(&a->output);
    while (is_draining(a))
        LS_TRY(poller_run_once(a->ctx.poller, -1));
    LS_TRY(agent_output_finish(&a->output));
    LS_TRY(agent_send_rings(a));
    agent_send_finished(a);
    agent_close_ranks(a);
    return LS_OK;
}

/* The head sends the end of the job to the other nodes. */
static ls_status notify_nodes(const agent *a)
{
    const int64_t deadline_ms = ls_deadline_ms(LEAVE_MS);
    const head *job_head = a->link.head;

    while (job_head != NULL && head_has_remote_nodes(job_head) && ls_deadline_left(deadline_ms) > 0)
        LS_TRY(poller_run_once(a->ctx.poller, ls_deadline_left(deadline_ms)));
    return LS_OK;
}

/* All ranks have ended, and none of them will be replaced. */
static bool has_finished(const agent *a)
{
    if (a->ctx.phase == AGENT_IDLE || a->n_ended < a->ctx.spec->n_ranks ||
        agent_link_waits(&a->link))
        return false;
    for (int i = 0; a->ctx.phase == AGENT_RUNNING && i < a->ctx.spec->n_ranks; i++)
        if (a->ranks[i].is_undecided)
            return false;
    return true;
}

static ls_status run_loop(agent *a)
{
    while (!a->ctx.is_over || a->ctx.phase != AGENT_IDLE) {
        LS_TRY(poller_run_once(a->ctx.poller, -1));
        if (has_finished(a))
            LS_TRY(finish_ranks(a));
        if (a->ctx.phase == AGENT_IDLE && agent_link_must_join(&a->link) && !a->ctx.is_over) {
            a->finished = 0;
            a->ctx.place.place.generation = 0;
            LS_TRY(agent_link_rejoin(&a->link));
        }
    }
    LS_TRY(notify_nodes(a));
    return a->failure == LS_OK && a->hosts != NULL ? agent_hosts_finish(a->hosts) : LS_OK;
}

/* --- the result --- */

/* The one place that decides the exit code of this agent. It is 0 only if the head has sent that:
 * scripts take it for the end of the training. */
static void decide_result(const agent_outcome *o, agent_result *out)
{
    if (o->is_known)
        out->exit_code = o->exit_code;
    else if (o->left_at_signal != 0)
        out->exit_code = 128 + o->left_at_signal;
    else
        out->exit_code = 1;
    out->failed = o->has_failed;
    if (o->has_lost_output && (out->exit_code == 0 || out->exit_code == 128 + SIGPIPE))
        out->exit_code = 1;
}

ls_status agent_run(const agent_spec *spec, agent_result *out)
{
    agent *a;
    ls_status st;

    memset(out, 0, sizeof(*out));
    if (spec->n_ranks < 1 && spec->hosts == NULL)
        return ls_fail(LS_EINVAL, "%d ranks cannot be started", spec->n_ranks);
    LS_TRY(LS_NEW(&a, 1, "for an agent"));
    st = agent_open(a, spec, out);
    if (st == LS_OK)
        st = run_loop(a);
    agent_close(a);
    decide_result(&a->outcome, out);
    if (st == LS_OK && a->failure != LS_OK)
        st = ls_fail(a->failure, "%s", a->failure_text);
    agent_write_error(a, st);
    text_free(&a->root_error);
    ls_free(a);
    return st;
}
