/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_remote.c - the agent's side of the connection to its starter. Output frames are queued in
 * the sink of stdout, and never block. Called by agent_output.c and agent_input.c; frames of the
 * starter are read from the poller.
 */
#include "launch/agent/streams/agent_remote.h"

#include "host/process.h"
#include "launch/spec/launch_request.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* --- to the starter --- */

static void write_frame(output_sink *to, remote_message type, const void *lead, size_t n_lead,
                        const char *bytes, size_t n)
{
    uint8_t header[FRAME_HEADER_BYTES + 12];

    wire_put_u32(header, (uint32_t)(n_lead + n));
    wire_put_u32(header + 4, type);
    memcpy(header + FRAME_HEADER_BYTES, lead, n_lead);
    output_write_pieces(to, header, FRAME_HEADER_BYTES + n_lead, bytes, n);
}

void agent_remote_write_output(output_sink *to, int rank, int which, const char *bytes, size_t n)
{
    uint8_t lead[5];

    wire_put_u32(lead, (uint32_t)rank);
    lead[4] = (uint8_t)which;
    while (n > REMOTE_OUTPUT_MOST) {
        write_frame(to, REMOTE_OUTPUT, lead, sizeof(lead), bytes, REMOTE_OUTPUT_MOST);
        bytes += REMOTE_OUTPUT_MOST;
        n -= REMOTE_OUTPUT_MOST;
    }
    write_frame(to, REMOTE_OUTPUT, lead, sizeof(lead), bytes, n);
}

void agent_remote_write_failure_line(output_sink *to, int rank, uint64_t hash)
{
    uint8_t body[12];

    wire_put_u32(body, (uint32_t)rank);
    wire_put_u64(body + 4, hash);
    write_frame(to, REMOTE_FAILURE_LINE, body, sizeof(body), "", 0);
}

void agent_remote_write_note(output_sink *to, const char *line)
{
    uint8_t length[4];

    wire_put_u32(length, (uint32_t)strlen(line));
    write_frame(to, REMOTE_NOTE, length, sizeof(length), line, strlen(line));
}

void agent_remote_write_window(output_sink *to, size_t more)
{
    uint8_t bytes[4];

    wire_put_u32(bytes, (uint32_t)more);
    write_frame(to, REMOTE_WINDOW, bytes, sizeof(bytes), "", 0);
}

/* --- from the starter --- */

void agent_remote_lose(starter_reader *s, const char *why)
{
    if (s->watch == NULL)
        return;
    poller_unwatch(&s->watch);
    s->lost(s->self, why);
}

static ls_status take_frame(const starter_reader *s, const frame *f)
{
    pty_size size;

    switch (f->type) {
    case REMOTE_INPUT:
        return agent_input_take(s->input, (const char *)f->body, f->bytes);
    case REMOTE_SIZE:
        LS_TRY(remote_read_size(f, &size));
        s->resize(s->self, size);
        return LS_OK;
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

static ls_status take_bytes(starter_reader *s, const char *bytes, size_t n)
{
    bool have = true;
    frame f;

    LS_TRY(frame_reader_feed(&s->in, bytes, n));
    while (have) {
        LS_TRY(frame_reader_next(&s->in, &f, &have));
        if (have)
            LS_TRY(take_frame(s, &f));
    }
    return LS_OK;
}

static void on_stdin(void *arg, unsigned events)
{
    starter_reader *s = arg;
    char bytes[8192];
    char why[LS_ERROR_BYTES];
    ssize_t n;

    LS_UNUSED(events);
    do {
        n = read(s->input->output->ctx->spec->remote->in_fd, bytes, sizeof(bytes));
    } while (n < 0 && errno == EINTR);
    if (n > 0 && take_bytes(s, bytes, (size_t)n) != LS_OK)
        agent_remote_lose(s, text_format(why, sizeof(why), "malformed message from the starter: %s",
                                         ls_last_error()));
    else if (n > 0)
        return;
    else if (n == 0 || errno != EAGAIN)
        agent_remote_lose(s, "the starter has closed the connection");
}

/* --- life --- */

ls_status agent_remote_take_streams(agent_remote *out)
{
    const int keep[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
    int null_fd;

    process_close_all_but(keep, (int)LS_COUNT_OF(keep));
    out->in_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    out->out_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (out->in_fd < 0 || out->out_fd < 0 || null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        dup2(null_fd, STDOUT_FILENO) < 0)
        return ls_fail_errno("descriptors for an agent");
    (void)close(null_fd);
    return LS_OK;
}

ls_status agent_remote_open(starter_reader *s, agent_input *input)
{
    const agent_context *ctx = input->output->ctx;

    s->input = input;
    frame_reader_init(&s->in, REMOTE_BODY_MAX);
    return poller_watch(ctx->poller, ctx->spec->remote->in_fd, POLL_READ, on_stdin, s, &s->watch);
}

void agent_remote_close(starter_reader *s)
{
    frame_reader_free(&s->in);
    poller_unwatch(&s->watch);
}
