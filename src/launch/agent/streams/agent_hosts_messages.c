/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hosts_messages.c - handles the messages of agents on other hosts: the lines of their ranks
 * go the same way as those of our own ranks, and rank 0 gets our stdin. Called by the starter for
 * each message, and by the agent when the job is over.
 */
#include "launch/agent/streams/agent_hosts_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "launch/spec/launch_request.h"

enum {
    FINISH_MS = 5000 /* of silence after the end of the job, until the hosts are ended */
};

/* --- lines of ranks --- */

static void open_stream(agent_hosts *h, remote_host *host, int rank, int which)
{
    const agent_spec *spec = h->ctx->spec;
    const line_prefix_values values = {.role_name =
                                           spec->job->role != NULL ? spec->job->role : "default",
                                       .hostname = h->spec->list->hosts[host - h->list].name,
                                       .rank = rank,
                                       .local_rank = rank - host->rank_base};
    output_sink *sink = &h->opt.output->sinks[which];
    output_stream *stream = &h->streams[2 * rank + which];

    *stream = (output_stream){.sink = sink,
                              .recent = &host->recent,
                              .rank = rank,
                              .n_ranks = h->world_size,
                              .prefix = spec->prefix && h->world_size > 1,
                              .fold = h->opt.output->fold};
    if (spec->prefix && spec->job->line_prefix != NULL)
        line_prefix_make(spec->job->line_prefix, &values, stream->own_prefix,
                         sizeof(stream->own_prefix));
}

ls_status hosts_open_streams(agent_hosts *h)
{
    LS_TRY(LS_NEW(&h->streams, (size_t)h->world_size * 2, "for the lines of %d rank%s",
                  h->world_size, text_plural(h->world_size)));
    LS_TRY(agent_output_open_fold(h->opt.output));
    for (int i = 0; i < h->spec->list->n; i++) {
        remote_host *host = &h->list[i];
        const int slots = h->spec->list->hosts[i].slots;

        host->recent.names_rank = slots > 1;
        for (int k = 0; k < 2 * slots; k++)
            open_stream(h, host, host->rank_base + k / 2, k % 2);
    }
    return LS_OK;
}

void hosts_end_streams(agent_hosts *h, int i)
{
    for (int k = 0; k < 2 * h->spec->list->hosts[i].slots; k++)
        output_end(&h->streams[2 * h->list[i].rank_base + k]);
    if (h->list[i].node == 0)
        stdin_source_revoke(h->opt.input->source); /* what rank 0 has requested */
}

void hosts_close_streams(agent_hosts *h)
{
    for (int i = 0; h->streams != NULL && i < 2 * h->world_size; i++)
        output_free(&h->streams[i]);
    for (int i = 0; h->list != NULL && i < h->spec->list->n; i++)
        output_free_recent(&h->list[i].recent);
    ls_free(h->streams);
}

void agent_hosts_append_recent(const agent_hosts *h, int node, size_t most, text_buf *out)
{
    for (int i = 0; h != NULL && h->list != NULL && i < h->spec->list->n; i++)
        if (h->list[i].node == node)
            output_append_recent(&h->list[i].recent, most, out);
}

bool agent_hosts_count_ranks(const agent_hosts *h, int *n_ranks, int *n_shown)
{
    if (h == NULL)
        return false;
    *n_ranks = h->world_size;
    *n_shown = 0;
    for (int i = 0; i < h->spec->list->n; i++)
        for (int local = 0; local < h->spec->list->hosts[i].slots; local++)
            *n_shown += agent_logs_shows_any(h->ctx->spec, local, h->list[i].rank_base + local);
    return true;
}

void agent_hosts_resize(const agent_hosts *h)
{
    wire_writer w = {0};
    pty_size size;

    if (h == NULL)
        return;
    size = agent_terminal_size(h->opt.output, h->world_size);
    remote_write_size(&w, &size);
    for (int i = 0; wire_writer_status(&w) == LS_OK && i < h->spec->list->n; i++)
        if (h->list[i].phase == HOST_LAUNCHED)
            (void)!starter_send(h->starter, i, REMOTE_SIZE, w.data,
                                w.bytes); /* fails if the host has ended */
    wire_writer_free(&w);
}

void agent_hosts_show_deferred(const agent_hosts *h)
{
    for (int i = 0; h != NULL && i < 2 * h->world_size; i++)
        output_show_deferred(&h->streams[i]);
}

void agent_hosts_pause(const agent_hosts *h, bool pauses)
{
    if (h != NULL && h->starter != NULL)
        starter_pause(h->starter, pauses);
}

/* --- messages of agents --- */

static output_stream *stream_of(const agent_hosts *h, int i, int rank, int which)
{
    const remote_host *host = &h->list[i];

    if (rank < host->rank_base || rank >= host->rank_base + h->spec->list->hosts[i].slots)
        return NULL;
    return &h->streams[2 * rank + which];
}

static ls_status take_output(agent_hosts *h, int i, const frame *f)
{
    output_stream *s;
    const char *bytes;
    size_t n;
    int rank;
    int which;

    LS_TRY(remote_read_output(f, &rank, &which, &bytes, &n));
    s = stream_of(h, i, rank, which);
    if (s == NULL)
        return ls_fail(LS_EPROTO, "lines of rank %d, which runs on another host", rank);
    if (n > 0)
        output_feed(s, bytes, n);
    else
        output_end(s);
    agent_output_update(h->opt.output);
    return LS_OK;
}

static ls_status take_failure_line(const agent_hosts *h, int i, const frame *f)
{
    output_stream *s;
    uint64_t hash;
    int rank;

    LS_TRY(remote_read_failure_line(f, &rank, &hash));
    s = stream_of(h, i, rank, 1);
    if (s == NULL)
        return ls_fail(LS_EPROTO, "a line of rank %d, which runs on another host", rank);
    s->failure_line = hash;
    return LS_OK;
}

/* --- stdin of rank 0 --- */

static int host_of_rank_0(const agent_hosts *h)
{
    int i = 0;

    while (i < h->spec->list->n && h->list[i].node != 0)
        i++;
    return i;
}

static void send_input(void *arg, const char *bytes, size_t n)
{
    const agent_hosts *h = arg;

    (void)!starter_send(h->starter, host_of_rank_0(h), REMOTE_INPUT, bytes,
                        n); /* fails if the host has ended */
}

static ls_status take_window(agent_hosts *h, int i, const frame *f)
{
    size_t more;

    LS_TRY(remote_read_window(f, &more));
    if (i != host_of_rank_0(h))
        return ls_fail(LS_EPROTO, "a request for rank 0's stdin from a host without rank 0");
    return agent_input_read_stdin(h->opt.input, more, h, send_input);
}

static ls_status take_text(agent_hosts *h, int i, const frame *f)
{
    text_buf text = {0};
    const ls_status st = node_read_text(f, &text);

    if (st == LS_OK && f->type == REMOTE_FAILED)
        text_format(h->list[i].failure, sizeof(h->list[i].failure), "%s", text_str(&text));
    else if (st == LS_OK)
        hosts_note(h, i, text_str(&text));
    text_free(&text);
    return st;
}

ls_status hosts_take_message(void *arg, int i, const frame *f)
{
    switch (f->type) {
    case REMOTE_OUTPUT:
        return take_output(arg, i, f);
    case REMOTE_FAILURE_LINE:
        return take_failure_line(arg, i, f);
    case REMOTE_WINDOW:
        return take_window(arg, i, f);
    case REMOTE_NOTE:
    case REMOTE_FAILED:
        return take_text(arg, i, f);
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

void hosts_take_line(void *arg, int i, const char *text)
{
    hosts_note(arg, i, text);
}

/* --- the end --- */

/* Waits for the last lines of the hosts, however slow the reader of our output is. */
ls_status agent_hosts_finish(agent_hosts *h)
{
    agent_output *o = h->opt.output;
    const head *job_head = h->opt.link->head;
    int64_t since_ms = ls_now_ms();

    hosts_flush_notes(h);
    for (int i = 0; i < h->spec->list->n; i++)
        if (h->list[i].phase != HOST_LAUNCHED || job_head == NULL || !head_has_started(job_head))
            starter_dismiss(h->starter, i);
    while (starter_count(h->starter) > 0) {
        if (!agent_output_is_taken(o))
            since_ms = ls_now_ms();
        if (starter_received_ms(h->starter) > since_ms)
            since_ms = starter_received_ms(h->starter);
        if (ls_now_ms() - since_ms > FINISH_MS)
            break;
        LS_TRY(poller_run_once(h->ctx->poller, 200));
    }
    if (o->fold != NULL)
        output_fold_flush_all(o->fold);
    agent_output_update(o);
    while (!agent_output_is_taken(o))
        LS_TRY(poller_run_once(h->ctx->poller, -1));
    return LS_OK;
}
