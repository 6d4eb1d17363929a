/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_input.c - passes stdin on to rank 0. At most REMOTE_INPUT_WINDOW bytes are requested or
 * queued, so a rank that does not read delays nothing else. Called for rank 0 by agent_ranks.c, for
 * bytes of the starter by agent_remote.c, for ranks on other hosts by agent_hosts_messages.c.
 */
#include "launch/agent/streams/agent_input.h"

#include "base/file.h"
#include "host/pseudo_terminal.h"
#include "launch/agent/streams/agent_remote.h"
#include "launch/spec/launch_request.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static const agent_context *context_of(const agent_input *in)
{
    return in->output->ctx;
}

static bool has_terminal(const agent_spec *spec)
{
    return spec->job->pty && (spec->remote == NULL || spec->remote->input_terminal);
}

/* --- requests --- */

static void on_own_bytes(void *arg, const char *bytes, size_t n)
{
    agent_input *in = arg;

    if (agent_input_take(in, bytes, n) != LS_OK)
        agent_note(context_of(in), "rank 0 gets no more input: %s", ls_last_error());
}

ls_status agent_input_read_stdin(agent_input *in, size_t more, void *self,
                                 void (*bytes)(void *self, const char *bytes, size_t n))
{
    const stdin_source_options options = {.fd = STDIN_FILENO,
                                          .continues_after_end = context_of(in)->spec->job->pty,
                                          .self = self,
                                          .bytes = bytes};

    if (in->source == NULL)
        LS_TRY(stdin_source_open(context_of(in)->poller, &options, &in->source));
    stdin_source_grant(in->source, more);
    return LS_OK;
}

static void request_more(agent_input *in)
{
    const size_t taken = byte_queue_size(&in->queue) + in->granted;
    ls_status st = LS_OK;

    if (in->fd < 0 || in->has_ended || taken > REMOTE_INPUT_WINDOW / 2)
        return;
    in->granted += REMOTE_INPUT_WINDOW - taken;
    if (context_of(in)->spec->remote != NULL) {
        agent_remote_write_window(&in->output->sinks[0], REMOTE_INPUT_WINDOW - taken);
        agent_output_update(in->output);
    } else {
        st = agent_input_read_stdin(in, REMOTE_INPUT_WINDOW - taken, in, on_own_bytes);
    }
    if (st != LS_OK)
        agent_note(context_of(in), "rank 0 cannot read stdin: %s", ls_last_error());
}

/* --- writing to rank 0 --- */

static void unwatch(agent_input *in)
{
    poller_unwatch(&in->watch);
}

void agent_input_end(agent_input *in)
{
    unwatch(in);
    file_close(&in->fd);
}

static void on_writable(void *arg, unsigned events);

static void write_queue(agent_input *in)
{
    byte_queue *q = &in->queue;
    ssize_t n = 0;

    while (in->fd >= 0 && byte_queue_size(q) > 0 && (n >= 0 || errno == EINTR)) {
        n = write(in->fd, q->data + q->start, byte_queue_size(q));
        q->start += n > 0 ? (size_t)n : 0;
    }
    byte_queue_trim(q);
    if (n < 0 && errno != EAGAIN)
        agent_input_end(in); /* the rank has closed it */
    if (in->fd >= 0 && byte_queue_size(q) == 0 && in->has_ended)
        agent_input_end(in);
    if (in->fd >= 0 && byte_queue_size(q) > 0 && in->watch == NULL &&
        poller_watch(context_of(in)->poller, in->fd, POLL_WRITE, on_writable, in, &in->watch) !=
            LS_OK)
        agent_input_end(in);
    if (byte_queue_size(q) == 0)
        unwatch(in);
    request_more(in);
}

static void on_writable(void *arg, unsigned events)
{
    LS_UNUSED(events);
    write_queue(arg);
}

/*
 * A terminal hands over an unfinished line, or no bytes, when the user has typed Ctrl-D. Rank 0's
 * terminal gets the same character.
 */
static ls_status add_typed(agent_input *in, const char *bytes, size_t n)
{
    static const char end[] = {PTY_END_OF_FILE};

    if (n > 0)
        LS_TRY(byte_queue_add(&in->queue, bytes, n));
    return n == 0 || bytes[n - 1] != '\n' ? byte_queue_add(&in->queue, end, sizeof(end)) : LS_OK;
}

ls_status agent_input_take(agent_input *in, const char *bytes, size_t n)
{
    if (n > in->granted || byte_queue_size(&in->queue) > 2 * REMOTE_INPUT_WINDOW)
        return ls_fail(LS_EPROTO, "more input for rank 0 than was requested");
    in->granted -= n;
    if (has_terminal(context_of(in)->spec))
        LS_TRY(add_typed(in, bytes, n));
    else if (n > 0)
        LS_TRY(byte_queue_add(&in->queue, bytes, n));
    else
        in->has_ended = true;
    write_queue(in);
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

static ls_status open_terminal(agent_input *in, int child_stdout, int *child_end)
{
    *child_end = fcntl(child_stdout, F_DUPFD_CLOEXEC, 3);
    in->fd = fcntl(in->output->ranks[0].fd[0], F_DUPFD_CLOEXEC, 3);
    return *child_end >= 0 && in->fd >= 0 ? LS_OK : ls_fail_errno("the terminal of rank 0");
}

ls_status agent_input_open(agent_input *in, int child_stdout, int *child_end)
{
    const agent_spec *spec = context_of(in)->spec;

    if (!spec->capture || (spec->remote == NULL && !(spec->job->pty && isatty(STDIN_FILENO) != 0)))
        return LS_OK;
    LS_TRY(has_terminal(spec) ? open_terminal(in, child_stdout, child_end)
                              : open_pipe(in, child_end));
    write_queue(in);
    return LS_OK;
}

void agent_input_init(agent_input *in, agent_output *output)
{
    *in = (agent_input){.output = output, .fd = -1};
}

void agent_input_close(agent_input *in)
{
    agent_input_end(in);
    byte_queue_free(&in->queue);
    stdin_source_close(in->source);
    in->source = NULL;
}
