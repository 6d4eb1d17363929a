/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.c - the agent's loop: orders of the head (agent_link.c), news from ranks (agent_ranks.c), lines from them
 * (agent_output.c), and signals from the user.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "launch/process/process.h"

#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    PAUSE_MS = 20, /* for the others to hear that we are going to stop */
    GOODBYE_MS = 3000
};

/* --- signals to the agent --- */

static bool is_member(const agent *a)
{
    return a->place.place.generation != 0;
}

void agent_stop(agent *a, int number)
{
    const bool again = a->stop_signal != 0;

    if (again) {
        agent_kill_ranks(a);
        for (int which = 0; which < 2; which++)
            a->sinks[which].is_broken |= a->n_ended == a->spec->n_ranks;
    }
    a->stop_signal = number;
    if (a->head == NULL && (!is_member(a) || !a->is_linked)) {
        a->result->exit_code = 128 + number; /* nobody counts on us, so the job goes on */
        if (a->spec->remote != NULL)         /* ... but for our starter */
            agent_give_up(a, ls_fail(LS_ECANCELED, "stopped by %s", process_signal_name(number)));
        a->is_over = true;
        return;
    }
    agent_send_number(a, NODE_STOP, (uint32_t)number);
}

/* Ctrl-Z stops the whole job with us, fg goes on with it. */
static void stop_self(void *arg)
{
    agent *a = arg;

    raise(SIGSTOP);
    if (a->head != NULL)
        head_resumed(a->head);
    a->link.received_ms = ls_now_ms();
    agent_signal_ranks(a, SIGCONT);
    agent_send(a, NODE_RESUME, NULL);
}

static void pause_job(agent *a)
{
    agent_signal_ranks(a, SIGSTOP);
    agent_send(a, NODE_PAUSE, NULL);
    poller_timer_set(a->poller, &a->pause_timer, ls_now_ms() + PAUSE_MS, stop_self, a);
}

void agent_on_signal(void *arg, unsigned events)
{
    agent *a = arg;
    struct signalfd_siginfo info;

    LS_UNUSED(events);
    while (read(a->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        const int number = (int)info.ssi_signo;
        if (number == SIGCHLD)
            agent_reap(a);
        else if (number == SIGTSTP)
            pause_job(a);
        else if (number == SIGWINCH)
            agent_on_resize(a);
        else if (number == SIGCONT && a->head != NULL)
            head_resumed(a->head);
        else if ((number == SIGUSR1 || number == SIGUSR2) && !agent_stops_at(a->spec, number))
            agent_signal_ranks(a, number); /* what it means is theirs to say */
        else if (number != SIGCONT)
            agent_stop(a, number);
    }
}

/* --- the loop and its result --- */

static ls_status finish_ranks(agent *a)
{
    LS_TRY(agent_drain(a));
    LS_TRY(agent_send_rings(a));
    agent_tell_finished(a);
    agent_close_ranks(a);
    return LS_OK;
}

/* The others are told why it is over. */
static ls_status await_remote_nodes(const agent *a)
{
    const int64_t deadline_ms = ls_deadline_ms(GOODBYE_MS);

    while (a->head != NULL && head_has_remote_nodes(a->head) && ls_deadline_left(deadline_ms) > 0)
        LS_TRY(poller_run_once(a->poller, ls_deadline_left(deadline_ms)));
    return LS_OK;
}

static ls_status run_loop(agent *a)
{
    while (!a->is_over || a->phase != AGENT_IDLE) {
        LS_TRY(poller_run_once(a->poller, -1));
        if (a->phase != AGENT_IDLE && a->n_ended == a->spec->n_ranks)
            LS_TRY(finish_ranks(a));
    }
    LS_TRY(await_remote_nodes(a));
    return a->failure == LS_OK ? agent_finish_hosts(a) : LS_OK;
}

void agent_give_up(agent *a, ls_status st)
{
    if (a->is_over)
        return;
    a->is_over = true;
    a->failure = st;
    text_format(a->failure_text, sizeof(a->failure_text), "%s", ls_last_error());
}

ls_status agent_run(const agent_spec *spec, agent_result *out)
{
    agent a;
    ls_status st;

    memset(out, 0, sizeof(*out));
    if (spec->n_ranks < 1 && spec->hosts == NULL)
        return ls_fail(LS_EINVAL, "%d ranks cannot be started", spec->n_ranks);
    st = agent_open(&a, spec, out);
    if (st == LS_OK)
        st = run_loop(&a);
    agent_close(&a);
    if (a.has_lost_output && (out->exit_code == 0 || out->exit_code == 128 + SIGPIPE))
        out->exit_code = 1;
    if (st == LS_OK && a.failure != LS_OK)
        st = ls_fail(a.failure, "%s", a.failure_text);
    agent_write_error(&a, st);
    text_free(&a.root_error);
    return st;
}
