/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_output.c - between the ranks' pipes and the job's stdout and stderr. Pipes are read as long as what they bring is taken; while a
 * reader is slow they fill, and the ranks wait, as they would if they wrote to that reader themselves.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { DRAIN_MS = 500 /* for pipes that outlive their rank */ };

static void end_stream(agent_rank *r, int which)
{
    if (r->stream_fd[which] < 0)
        return;
    output_end(&r->stream[which]);
    agent_end_filter(r, which);
    if (r->agent->spec->remote != NULL && agent_shows(r, which))
        agent_remote_output(r, which, NULL, 0);
    poller_unwatch(r->stream_watch[which]);
    r->stream_watch[which] = NULL;
    file_close(&r->stream_fd[which]);
}

void agent_end_output(agent *a)
{
    for (int i = 0; a->ranks != NULL && i < a->spec->n_ranks; i++) {
        end_stream(&a->ranks[i], 0);
        end_stream(&a->ranks[i], 1);
    }
    if (a->fold != NULL)
        output_fold_flush_all(a->fold);
}

/* --- slow readers --- */

static void mind_sink(agent *a, int which);
static void mind_fold(agent *a);
static void on_stdout(void *rank, unsigned events);
static void on_stderr(void *rank, unsigned events);

static const poll_fn stream_handlers[] = {on_stdout, on_stderr};

static ls_status watch_stream(agent_rank *r, int which)
{
    if (r->stream_fd[which] < 0 || r->stream_watch[which] != NULL)
        return LS_OK;
    return poller_watch(r->agent->poller, r->stream_fd[which], POLL_READ, stream_handlers[which], r,
                        &r->stream_watch[which]);
}

static void resume_streams(agent *a, int which)
{
    for (int i = 0; i < a->spec->n_ranks; i++)
        if (watch_stream(&a->ranks[i], which) != LS_OK)
            end_stream(&a->ranks[i], which); /* no memory: better lost than never ended */
}

static void pause_streams(agent *a, int which)
{
    for (int i = 0; i < a->spec->n_ranks; i++) {
        if (a->ranks[i].stream_fd[which] < 0 || !agent_shows(&a->ranks[i], which))
            continue; /* it does not wait for this reader */
        poller_unwatch(a->ranks[i].stream_watch[which]);
        a->ranks[i].stream_watch[which] = NULL;
    }
}

static void on_writable(agent *a, int which)
{
    output_flush(&a->sinks[which]);
    mind_sink(a, which);
}

static void on_stdout_writable(void *a, unsigned events)
{
    LS_UNUSED(events);
    on_writable(a, 0);
}

static void on_stderr_writable(void *a, unsigned events)
{
    LS_UNUSED(events);
    on_writable(a, 1);
}

/* Ranks that run, here or elsewhere, and are to be ended for want of a reader. */
static bool has_job(const agent *a)
{
    return a->phase == AGENT_RUNNING || (a->hosts != NULL && a->stop_signal == 0 && !a->is_over);
}

/* A reader that has gone ends the job as it ends any program that writes. Where a disk is full or a
 * terminal is lost, that is an error: it is reported, and ranks get their time to save their state. */
static void stop_without_sink(agent *a, int which)
{
    const int error = a->sinks[which].error;

    if (error == 0 && has_job(a))
        agent_stop(a, SIGPIPE);
    if (error == 0 || a->has_lost_output)
        return;
    a->has_lost_output = true;
    agent_note(a, "cannot write what the ranks print to %s: %s; the job ends",
               which == 0 ? "stdout" : "stderr", ls_errno_text(error));
    if (has_job(a) && a->stop_signal == 0)
        agent_stop(a, SIGPIPE);
}

/* After anything was written or flushed: waits for a reader, or no longer; a sink that is
 * broken ends the job. */
static void mind_sink(agent *a, int which)
{
    const poll_fn handlers[] = {on_stdout_writable, on_stderr_writable};
    output_sink *sink = &a->sinks[which];
    const size_t waiting = output_waiting(sink);

    if (waiting > 0 && a->sink_watch[which] == NULL &&
        poller_watch(a->poller, sink->fd, POLL_WRITE, handlers[which], a, &a->sink_watch[which]) !=
            LS_OK)
        sink->is_broken = true;
    if (waiting == 0) {
        poller_unwatch(a->sink_watch[which]);
        a->sink_watch[which] = NULL;
    }
    for (int stream = 0; stream < 2; stream++) {
        if (stream != which && a->spec->remote == NULL)
            continue; /* both come here only where both go the same way */
        if (waiting > OUTPUT_QUEUE_MOST)
            pause_streams(a, stream);
        else if (waiting < OUTPUT_QUEUE_MOST / 2)
            resume_streams(a, stream);
    }
    agent_hosts_pause(a->hosts, output_waiting(&a->sinks[0]) > OUTPUT_QUEUE_MOST ||
                                    output_waiting(&a->sinks[1]) > OUTPUT_QUEUE_MOST);
    if (sink->is_broken && which == 0 && a->spec->remote != NULL && a->remote_watch != NULL)
        agent_remote_lost(a);
    else if (sink->is_broken && a->spec->remote == NULL)
        stop_without_sink(a, which);
}

void agent_note(agent *a, const char *format, ...)
{
    char line[OUTPUT_NOTE_MOST];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (!a->spec->capture) {
        if (a->spec->nodes != NULL)
            ls_log(LS_LOG_WARN, "launch", "%s", line);
        return;
    }
    if (a->spec->remote != NULL) {
        agent_remote_note(a, line);
        mind_sink(a, 0);
        return;
    }
    if (a->fold != NULL)
        output_fold_flush_all(a->fold); /* what was printed before stands before it */
    output_note(&a->sinks[1], "lockstep: %s", line);
    mind_sink(a, 1);
}

/* --- lines that wait to be folded --- */

ls_status agent_open_fold(agent *a)
{
    const agent_spec *spec = a->spec;
    int first = a->ranks[0].rank;
    int n_ranks = spec->n_ranks;
    int n_shown = 0;

    if (a->fold != NULL)
        return LS_OK; /* for all generations, with hosts */
    for (int i = 0; i < spec->n_ranks; i++)
        n_shown += agent_shows(&a->ranks[i], 0) || agent_shows(&a->ranks[i], 1);
    if (agent_hosts_show(a->hosts, &n_ranks, &n_shown))
        first = 0;
    if (!spec->capture || !spec->fold || !spec->prefix || spec->line_prefix != NULL ||
        n_shown < 2 || (!a->sinks[0].terminal && !a->sinks[1].terminal))
        return LS_OK;
    return output_fold_create(first, n_ranks, n_shown, ls_clock_system(), &a->fold);
}

static void on_fold_due(void *arg)
{
    agent *a = arg;

    output_fold_flush(a->fold);
    mind_fold(a);
}

/* After anything was printed: both sinks, as one queue feeds them; and the next line that must not wait any longer. */
static void mind_fold(agent *a)
{
    const int due = a->fold != NULL ? output_fold_due(a->fold) : -1;

    for (int i = 0; a->fold != NULL && i < a->spec->n_ranks; i++) {
        output_show_deferred(&a->ranks[i].stream[0]);
        output_show_deferred(&a->ranks[i].stream[1]);
    }
    if (a->fold != NULL)
        agent_hosts_show_deferred(a->hosts);
    if (due < 0)
        poller_timer_cancel(&a->fold_timer);
    else
        poller_timer_set(a->poller, &a->fold_timer, ls_now_ms() + due, on_fold_due, a);
    mind_sink(a, 0);
    mind_sink(a, 1);
}

void agent_mind_output(agent *a)
{
    mind_fold(a);
}

/* --- the pipes --- */

static void read_stream(agent_rank *r, int which)
{
    char bytes[8192];
    const ssize_t n = read(r->stream_fd[which], bytes, sizeof(bytes));

    if (n > 0) {
        agent_write_log(r, which, bytes, (size_t)n);
        agent_filter_output(r, which, bytes, (size_t)n);
        output_feed(&r->stream[which], bytes, (size_t)n);
        if (r->agent->spec->remote != NULL && agent_shows(r, which))
            agent_remote_output(r, which, bytes, (size_t)n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        end_stream(r, which); /* EIO: a terminal that nobody has open any more */
    }
    mind_fold(r->agent);
}

static void on_stdout(void *rank, unsigned events)
{
    LS_UNUSED(events);
    read_stream(rank, 0);
}

static void on_stderr(void *rank, unsigned events)
{
    LS_UNUSED(events);
    read_stream(rank, 1);
}

static ls_status open_pipe(agent_rank *r, int which, int *child_end)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("a pipe from rank %d", r->rank);
    r->stream_fd[which] = fds[0];
    *child_end = fds[1];
    return fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0 ? LS_OK
                                                   : ls_fail_errno("a pipe from rank %d", r->rank);
}

/* In front of the lines of this rank, on the console and in the files of agent_filter.c. */
static void make_prefixes(agent_rank *r, output_stream *stream)
{
    const agent_spec *spec = r->agent->spec;
    char host[256] = "localhost";
    line_prefix_values values = {.role_name = spec->role != NULL ? spec->role : "default",
                                 .hostname = host,
                                 .rank = r->rank,
                                 .local_rank = (int)(r - r->agent->ranks)};

    (void)gethostname(host, sizeof(host) - 1);
    line_prefix_make(spec->line_prefix != NULL ? spec->line_prefix : LINE_PREFIX_DEFAULT, &values,
                     r->filter_prefix, sizeof(r->filter_prefix));
    if (spec->line_prefix != NULL && spec->prefix)
        text_format(stream->own_prefix, sizeof(stream->own_prefix), "%s", r->filter_prefix);
}

ls_status agent_open_stream(agent_rank *r, int which, int *child_end)
{
    const agent_spec *spec = r->agent->spec;
    const int n_ranks = r->agent->place.place.world_size;

    if (spec->pty)
        LS_TRY(pty_open(agent_terminal_size(r->agent, n_ranks), &r->stream_fd[which], child_end));
    else
        LS_TRY(open_pipe(r, which, child_end));
    r->stream[which] = (output_stream){.sink = &r->agent->sinks[which],
                                       .recent = &r->kept,
                                       .rank = r->rank,
                                       .n_ranks = n_ranks,
                                       .prefix = spec->prefix && n_ranks > 1,
                                       .is_hidden = spec->remote != NULL || !agent_shows(r, which)};
    make_prefixes(r, &r->stream[which]);
    if (r->agent->sinks[which].terminal)
        r->stream[which].fold = r->agent->fold;
    return watch_stream(r, which);
}

/* --- the end --- */

bool agent_output_is_taken(const agent *a)
{
    for (int which = 0; which < 2; which++)
        if (output_waiting(&a->sinks[which]) > 0 && !a->sinks[which].is_broken)
            return false;
    return true;
}

static bool has_ended(const agent *a)
{
    for (int i = 0; i < a->spec->n_ranks; i++)
        if (a->ranks[i].stream_fd[0] >= 0 || a->ranks[i].stream_fd[1] >= 0 || a->ranks[i].shim > 0)
            return false;
    return true;
}

static void drain_is_due(void *arg)
{
    agent *a = arg;

    if (agent_output_is_taken(a))
        a->drained = true;
    else /* what is in the pipes waits for the reader too */
        poller_timer_set(a->poller, &a->drain_timer, ls_now_ms() + DRAIN_MS, drain_is_due, a);
}

ls_status agent_drain(agent *a)
{
    poller_timer_set(a->poller, &a->drain_timer, ls_now_ms() + DRAIN_MS, drain_is_due, a);
    while (!a->drained && !has_ended(a))
        LS_TRY(poller_run_once(a->poller, -1));
    agent_end_output(a);
    mind_sink(a, 0);
    mind_sink(a, 1);
    while (!agent_output_is_taken(a))
        LS_TRY(poller_run_once(a->poller, -1));
    return LS_OK;
}
