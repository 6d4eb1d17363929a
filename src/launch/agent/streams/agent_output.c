/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_output.c - moves what ranks print from their pipes to the job's stdout and stderr. A pipe
 * is read only while the sink of its lines takes more: behind a slow reader the pipes fill and the
 * ranks wait, as if they wrote to that reader themselves. Driven by the poller.
 */
#include "launch/agent/streams/agent_output.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/record/recorder.h"
#include "host/pseudo_terminal.h"
#include "launch/agent/streams/agent_hosts.h"
#include "launch/agent/streams/agent_remote.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DRAIN_MS = 500,  /* that a pipe may outlive its rank */
    END_READS = 1024 /* of 8 KiB: more than a pipe holds */
};

static bool is_remote(const agent_output *o)
{
    return o->ctx->spec->remote != NULL;
}

static void end_stream(rank_output *r, int which)
{
    if (r->fd[which] < 0)
        return;
    output_end(&r->stream[which]);
    agent_filter_end(r, which);
    if (is_remote(r->owner) && agent_logs_shows(r, which))
        agent_remote_write_output(&r->owner->sinks[0], r->rank, which, NULL, 0);
    poller_close(&r->watch[which], &r->fd[which]);
}

void agent_output_end(agent_output *o)
{
    for (int i = 0; o->ranks != NULL && i < o->ctx->spec->n_ranks; i++) {
        end_stream(&o->ranks[i], 0);
        end_stream(&o->ranks[i], 1);
    }
    if (o->fold != NULL)
        output_fold_flush_all(o->fold);
}

/* --- slow readers --- */

static void update_sink(agent_output *o, int which);
static void on_stdout(void *rank, unsigned events);
static void on_stderr(void *rank, unsigned events);

static const poll_fn stream_handlers[] = {on_stdout, on_stderr};

static ls_status watch_stream(rank_output *r, int which)
{
    if (r->fd[which] < 0 || r->watch[which] != NULL)
        return LS_OK;
    return poller_watch(r->owner->ctx->poller, r->fd[which], POLL_READ, stream_handlers[which], r,
                        &r->watch[which]);
}

static void resume_streams(agent_output *o, int which)
{
    for (int i = 0; i < o->ctx->spec->n_ranks; i++)
        if (watch_stream(&o->ranks[i], which) != LS_OK)
            end_stream(&o->ranks[i], which); /* no memory: its output is lost, the job goes on */
}

static void pause_streams(agent_output *o, int which)
{
    for (int i = 0; i < o->ctx->spec->n_ranks; i++) {
        rank_output *r = &o->ranks[i];

        if (r->fd[which] < 0 || !agent_logs_shows(r, which))
            continue; /* its lines do not go to this reader */
        poller_unwatch(&r->watch[which]);
    }
}

static void on_writable(agent_output *o, int which)
{
    output_flush(&o->sinks[which]);
    update_sink(o, which);
}

static void on_stdout_writable(void *o, unsigned events)
{
    LS_UNUSED(events);
    on_writable(o, 0);
}

static void on_stderr_writable(void *o, unsigned events)
{
    LS_UNUSED(events);
    on_writable(o, 1);
}

static void watch_sink(agent_output *o, int which, bool has_bytes)
{
    const poll_fn handlers[] = {on_stdout_writable, on_stderr_writable};
    output_sink *sink = &o->sinks[which];

    if (has_bytes && o->sink_watch[which] == NULL &&
        poller_watch(o->ctx->poller, sink->fd, POLL_WRITE, handlers[which], o,
                     &o->sink_watch[which]) != LS_OK)
        sink->is_broken = true;
    if (!has_bytes)
        poller_unwatch(&o->sink_watch[which]);
}

static bool is_full(const output_sink *sink)
{
    return output_waiting(sink) > OUTPUT_QUEUE_MOST;
}

static void update_sink(agent_output *o, int which)
{
    const output_sink *sink = &o->sinks[which];
    const size_t waiting = output_waiting(sink);

    watch_sink(o, which, waiting > 0);
    for (int stream = 0; stream < 2; stream++) {
        if (stream != which && !is_remote(o))
            continue; /* only to a starter both streams go through one sink */
        if (waiting > OUTPUT_QUEUE_MOST)
            pause_streams(o, stream);
        else if (waiting < OUTPUT_QUEUE_MOST / 2)
            resume_streams(o, stream);
    }
    agent_hosts_pause(o->hosts, is_full(&o->sinks[0]) || is_full(&o->sinks[1]));
    if (sink->is_broken)
        o->ctx->lose_output(o->ctx->agent, which, sink->error);
}

void agent_output_note(agent_output *o, const char *line)
{
    const agent_spec *spec = o->ctx->spec;

    if (!spec->capture) {
        if (spec->nodes != NULL)
            ls_log(LS_LOG_WARN, "launch", "%s", line);
        return;
    }
    if (is_remote(o)) {
        agent_remote_write_note(&o->sinks[0], line);
        update_sink(o, 0);
        return;
    }
    if (o->fold != NULL)
        output_fold_flush_all(o->fold); /* lines printed earlier stand above it */
    output_note(&o->sinks[1], "lockstep: %s", line);
    update_sink(o, 1);
}

/* --- folding --- */

ls_status agent_output_open_fold(agent_output *o)
{
    const agent_spec *spec = o->ctx->spec;
    int first = o->ranks[0].rank;
    int n_ranks = spec->n_ranks;
    int n_shown = 0;

    if (o->fold != NULL)
        return LS_OK; /* with hosts one serves all generations */
    for (int i = 0; i < spec->n_ranks; i++)
        n_shown += agent_logs_shows(&o->ranks[i], 0) || agent_logs_shows(&o->ranks[i], 1);
    if (agent_hosts_count_ranks(o->hosts, &n_ranks, &n_shown))
        first = 0;
    if (!spec->capture || !spec->fold || !spec->prefix || spec->job->line_prefix != NULL ||
        n_shown < 2)
        return LS_OK;
    return output_fold_create(first, n_ranks, n_shown, ls_clock_system(), &o->fold);
}

static void on_fold_due(void *arg)
{
    agent_output *o = arg;

    output_fold_flush(o->fold);
    agent_output_update(o);
}

/* Updates both sinks, because one queue of folded lines feeds them. */
void agent_output_update(agent_output *o)
{
    const int due = o->fold != NULL ? output_fold_due(o->fold) : -1;
    const bool has_terminal = o->sinks[0].terminal || o->sinks[1].terminal;

    for (int i = 0; has_terminal && i < o->ctx->spec->n_ranks; i++) {
        output_show_deferred(&o->ranks[i].stream[0]);
        output_show_deferred(&o->ranks[i].stream[1]);
    }
    if (has_terminal)
        agent_hosts_show_deferred(o->hosts);
    if (due < 0)
        poller_timer_cancel(&o->fold_timer);
    else
        poller_timer_set(o->ctx->poller, &o->fold_timer, ls_now_ms() + due, on_fold_due, o);
    update_sink(o, 0);
    update_sink(o, 1);
}

/* --- the pipes --- */

/* A rank records the line before it prints it. */
static void read_failure_line(rank_output *r, int which)
{
    output_stream *s = &r->stream[which];

    if (which == 0 || s->failure_line != 0 || (s->fold == NULL && !is_remote(r->owner)))
        return;
    s->failure_line = recorder_read_failure_line(r->ring_fd);
    if (s->failure_line != 0 && is_remote(r->owner))
        agent_remote_write_failure_line(&r->owner->sinks[0], r->rank, s->failure_line);
}

/* False: nothing was there. */
static bool read_stream(rank_output *r, int which)
{
    char bytes[8192];
    const ssize_t n = read(r->fd[which], bytes, sizeof(bytes));

    if (n > 0) {
        read_failure_line(r, which);
        agent_logs_write(r, which, bytes, (size_t)n);
        agent_filter_feed(r, which, bytes, (size_t)n);
        output_feed(&r->stream[which], bytes, (size_t)n);
        if (is_remote(r->owner) && agent_logs_shows(r, which))
            agent_remote_write_output(&r->owner->sinks[0], r->rank, which, bytes, (size_t)n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        end_stream(r, which); /* EIO: all processes have closed the terminal */
    }
    agent_output_update(r->owner);
    return n > 0;
}

static void on_stdout(void *rank, unsigned events)
{
    LS_UNUSED(events);
    (void)read_stream(rank, 0);
}

static void on_stderr(void *rank, unsigned events)
{
    LS_UNUSED(events);
    (void)read_stream(rank, 1);
}

static ls_status open_pipe(rank_output *r, int which, int *child_end)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("a pipe from rank %d", r->rank);
    r->fd[which] = fds[0];
    *child_end = fds[1];
    return fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0 ? LS_OK
                                                   : ls_fail_errno("a pipe from rank %d", r->rank);
}

/* The prefixes of this rank's lines, on the console and in the filtered files. */
static void make_prefixes(rank_output *r, output_stream *stream)
{
    const agent_spec *spec = r->owner->ctx->spec;
    char host[256] = "localhost";
    line_prefix_values values = {.role_name = spec->job->role != NULL ? spec->job->role : "default",
                                 .hostname = host,
                                 .rank = r->rank,
                                 .local_rank = r->local_rank};

    (void)gethostname(host, sizeof(host) - 1);
    line_prefix_make(spec->job->line_prefix != NULL ? spec->job->line_prefix : LINE_PREFIX_DEFAULT,
                     &values, r->filter_prefix, sizeof(r->filter_prefix));
    if (spec->job->line_prefix != NULL && spec->prefix)
        text_format(stream->own_prefix, sizeof(stream->own_prefix), "%s", r->filter_prefix);
}

ls_status agent_output_open_stream(agent_output *o, int local_rank, int which, int *child_end)
{
    const agent_spec *spec = o->ctx->spec;
    const int n_ranks = o->ctx->place.place.world_size;
    rank_output *r = &o->ranks[local_rank];

    if (spec->job->pty)
        LS_TRY(pty_open(agent_terminal_size(o, n_ranks), &r->fd[which], child_end));
    else
        LS_TRY(open_pipe(r, which, child_end));
    output_free(&r->stream[which]); /* of the process that was here before */
    r->stream[which] = (output_stream){.sink = &o->sinks[which],
                                       .recent = &r->recent,
                                       .rank = r->rank,
                                       .n_ranks = n_ranks,
                                       .prefix = spec->prefix && n_ranks > 1,
                                       .is_hidden = is_remote(o) || !agent_logs_shows(r, which)};
    make_prefixes(r, &r->stream[which]);
    r->stream[which].fold = o->fold;
    return watch_stream(r, which);
}

/* --- the end of the ranks --- */

/* The rank has ended, so what its pipes hold is bounded. Log files stay open, and a starter is not
 * notified of the end: the next process continues both. Lines that are being folded refer to the
 * streams, so these stay as well. */
void agent_output_end_rank(agent_output *o, int local_rank)
{
    rank_output *r = &o->ranks[local_rank];

    for (int which = 0; which < 2; which++) {
        for (int i = 0; i < END_READS && r->fd[which] >= 0 && read_stream(r, which); i++)
            continue;
        if (r->fd[which] < 0)
            continue;
        output_end(&r->stream[which]);
        poller_close(&r->watch[which], &r->fd[which]);
    }
}

bool agent_output_is_taken(const agent_output *o)
{
    for (int which = 0; which < 2; which++)
        if (output_waiting(&o->sinks[which]) > 0 && !o->sinks[which].is_broken)
            return false;
    return true;
}

static void on_drain_due(void *arg)
{
    agent_output *o = arg;

    if (agent_output_is_taken(o))
        o->is_drained = true;
    else /* the pipes wait for the reader, too */
        agent_output_begin_drain(o);
}

void agent_output_begin_drain(agent_output *o)
{
    poller_timer_set(o->ctx->poller, &o->drain_timer, ls_now_ms() + DRAIN_MS, on_drain_due, o);
}

bool agent_output_is_draining(const agent_output *o)
{
    for (int i = 0; i < o->ctx->spec->n_ranks && !o->is_drained; i++)
        if (o->ranks[i].fd[0] >= 0 || o->ranks[i].fd[1] >= 0)
            return true;
    return false;
}

ls_status agent_output_finish(agent_output *o)
{
    agent_output_end(o);
    update_sink(o, 0);
    update_sink(o, 1);
    while (!agent_output_is_taken(o))
        LS_TRY(poller_run_once(o->ctx->poller, -1));
    return LS_OK;
}

/* --- life --- */

void agent_output_reset(agent_output *o)
{
    o->is_drained = false;
    for (int i = 0; i < o->ctx->spec->n_ranks; i++)
        o->ranks[i] = (rank_output){.owner = o,
                                    .local_rank = i,
                                    .rank = o->ctx->place.place.rank_base + i,
                                    .attempt = agent_generation(o->ctx) - 1,
                                    .fd = {-1, -1},
                                    .log_fd = {-1, -1},
                                    .error_fd = -1,
                                    .ring_fd = -1};
}

ls_status agent_output_begin(agent_output *o)
{
    LS_TRY(agent_filter_open(o));
    return agent_output_open_fold(o);
}

void agent_output_free_ranks(agent_output *o)
{
    poller_timer_cancel(&o->drain_timer);
    poller_timer_cancel(&o->fold_timer);
    for (int i = 0; i < o->ctx->spec->n_ranks; i++) {
        rank_output *r = &o->ranks[i];

        agent_logs_close_rank(r);
        output_free(&r->stream[0]);
        output_free(&r->stream[1]);
        output_free_recent(&r->recent);
    }
    if (o->hosts == NULL) {
        output_fold_destroy(o->fold);
        o->fold = NULL;
    }
}

/* Where several machines print the report, the lines are on the console of one of them only. */
static void count_console(agent_output *o)
{
    struct stat out;
    struct stat err;

    if (o->ctx->spec->nodes != NULL || o->ctx->spec->hosts != NULL)
        return;
    o->sinks[1].n_console = &o->n_console;
    if (fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
        out.st_dev == err.st_dev && out.st_ino == err.st_ino)
        o->sinks[0].n_console = &o->n_console;
}

static void open_sinks(agent_output *o)
{
    const agent_spec *spec = o->ctx->spec;

    if (is_remote(o)) {
        output_sink_open(&o->sinks[0], spec->remote->out_fd);
        o->sinks[0].terminal = false;
        o->sinks[1].is_broken = true;
        o->remote_size = spec->remote->size;
    } else if (spec->capture) {
        output_sink_open(&o->sinks[0], STDOUT_FILENO);
        output_sink_open(&o->sinks[1], STDERR_FILENO);
        count_console(o);
    }
}

void agent_output_init(agent_output *o, const agent_context *ctx)
{
    *o = (agent_output){
        .ctx = ctx, .logs = {.fd = -1}, .filtered_fd = {-1, -1}, .sinks = {{.fd = -1}, {.fd = -1}}};
}

ls_status agent_output_open(agent_output *o)
{
    const int n = o->ctx->spec->n_ranks; /* may be 0 */

    open_sinks(o);
    LS_TRY(LS_NEW(&o->ranks, (size_t)n + 1, "for the output of %d rank%s", n, text_plural(n)));
    agent_output_reset(o);
    return LS_OK;
}

void agent_output_close(agent_output *o)
{
    agent_filter_close(o);
    log_folder_close(&o->logs);
    output_fold_destroy(o->fold);
    for (int i = 0; i < 2; i++) {
        poller_unwatch(&o->sink_watch[i]);
        output_sink_close(&o->sinks[i]);
    }
    ls_free(o->ranks);
}
