/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_input.c - rank 0's stdin, where it does not inherit ours: a pipe for what a starter sends, or with --pty its terminal. Bytes are asked
 * for as far as there is room for them, so a rank that does not read holds up nothing but what it does not read.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "base/file.h"
#include "launch/hosts/launch_request.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static bool is_fed(const agent *a)
{
    return a->spec->capture &&
           (a->spec->remote != NULL || (a->spec->pty && isatty(STDIN_FILENO) != 0));
}

static bool has_terminal(const agent *a)
{
    return a->spec->pty && (a->spec->remote == NULL || a->spec->remote->input_terminal);
}

/* --- our own stdin --- */

static void on_own_bytes(void *arg, const char *bytes, size_t n)
{
    if (agent_take_input(arg, bytes, n) != LS_OK)
        agent_note(arg, "rank 0 reads no more: %s", ls_last_error());
}

ls_status agent_want_stdin(agent *a, size_t more, void *self,
                           void (*bytes)(void *self, const char *bytes, size_t n))
{
    const stdin_source_options options = {
        .fd = STDIN_FILENO, .continues_after_end = a->spec->pty, .self = self, .bytes = bytes};

    if (a->source == NULL)
        LS_TRY(stdin_source_open(a->poller, &options, &a->source));
    stdin_source_grant(a->source, more);
    return LS_OK;
}

/* --- room --- */

static void ask_for_more(agent *a)
{
    agent_input *in = &a->input;
    const size_t taken = byte_queue_size(&in->waiting) + in->granted;
    ls_status st = LS_OK;

    if (in->fd < 0 || in->has_ended || taken > REMOTE_INPUT_WINDOW / 2)
        return;
    in->granted += REMOTE_INPUT_WINDOW - taken;
    if (a->spec->remote != NULL)
        agent_remote_grant(a, REMOTE_INPUT_WINDOW - taken);
    else
        st = agent_want_stdin(a, REMOTE_INPUT_WINDOW - taken, a, on_own_bytes);
    if (st != LS_OK)
        agent_note(a, "rank 0 cannot read what is typed: %s", ls_last_error());
}

static void close_input(agent_input *in)
{
    poller_unwatch(in->watch);
    in->watch = NULL;
    file_close(&in->fd);
}

static void on_writable(void *arg, unsigned events);

static void pass_on(agent *a)
{
    agent_input *in = &a->input;
    byte_queue *q = &in->waiting;
    ssize_t n = 0;

    while (in->fd >= 0 && byte_queue_size(q) > 0 && (n >= 0 || errno == EINTR)) {
        n = write(in->fd, q->data + q->start, byte_queue_size(q));
        q->start += n > 0 ? (size_t)n : 0;
    }
    byte_queue_trim(q);
    if (n < 0 && errno != EAGAIN)
        close_input(in); /* nobody reads it any more */
    if (in->fd >= 0 && byte_queue_size(q) == 0 && in->has_ended)
        close_input(in);
    if (in->fd >= 0 && byte_queue_size(q) > 0 && in->watch == NULL &&
        poller_watch(a->poller, in->fd, POLL_WRITE, on_writable, a, &in->watch) != LS_OK)
        close_input(in);
    if (byte_queue_size(q) == 0) {
        poller_unwatch(in->watch);
        in->watch = NULL;
    }
    ask_for_more(a);
}

static void on_writable(void *arg, unsigned events)
{
    LS_UNUSED(events);
    pass_on(arg);
}

/* --- what comes --- */

/* What a terminal gives before its line has ended was sent off by Ctrl-D, as is nothing. */
static ls_status add_typed(agent_input *in, const char *bytes, size_t n)
{
    static const char end[] = {PTY_END_OF_FILE};

    if (n > 0)
        LS_TRY(byte_queue_add(&in->waiting, bytes, n));
    return n == 0 || bytes[n - 1] != '\n' ? byte_queue_add(&in->waiting, end, sizeof(end)) : LS_OK;
}

ls_status agent_take_input(agent *a, const char *bytes, size_t n)
{
    agent_input *in = &a->input;

    if (n > in->granted || byte_queue_size(&in->waiting) > 2 * REMOTE_INPUT_WINDOW)
        return ls_fail(LS_EPROTO, "more input for rank 0 than was asked for");
    in->granted -= n;
    if (has_terminal(a))
        LS_TRY(add_typed(in, bytes, n));
    else if (n > 0)
        LS_TRY(byte_queue_add(&in->waiting, bytes, n));
    else
        in->has_ended = true;
    pass_on(a);
    return LS_OK;
}

/* --- life --- */

static ls_status open_pipe(agent_input *in, int *child_end)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("a pipe to rank 0");
    *child_end = fds[0];
    in->fd = fds[1];
    return fcntl(in->fd, F_SETFL, O_NONBLOCK) == 0 ? LS_OK : ls_fail_errno("a pipe to rank 0");
}

/* The terminal that is its stdout, for both directions as any other one. */
static ls_status open_terminal(const agent_rank *r, int stdout_end, int *child_end)
{
    agent_input *in = &r->agent->input;

    *child_end = fcntl(stdout_end, F_DUPFD_CLOEXEC, 3);
    in->fd = fcntl(r->stream_fd[0], F_DUPFD_CLOEXEC, 3);
    return *child_end >= 0 && in->fd >= 0 ? LS_OK : ls_fail_errno("the terminal of rank 0");
}

ls_status agent_open_input(const agent_rank *r, int stdout_end, int *child_end)
{
    agent *a = r->agent;

    if (r->rank != 0 || !is_fed(a))
        return LS_OK;
    LS_TRY(has_terminal(a) ? open_terminal(r, stdout_end, child_end)
                           : open_pipe(&a->input, child_end));
    pass_on(a);
    return LS_OK;
}

void agent_end_input(agent *a)
{
    close_input(&a->input);
}

void agent_close_input(agent *a)
{
    close_input(&a->input);
    byte_queue_free(&a->input.waiting);
    stdin_source_close(a->source);
    a->source = NULL;
}
