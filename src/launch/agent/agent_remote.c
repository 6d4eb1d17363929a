/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_remote.c - the other end of starter.h: an agent whose stdin and stdout belong to who has started it. What its ranks print goes there in
 * frames; the end of stdin is the end of the job here.
 */
#include "launch/agent/agent.h"

#include "launch/hosts/launch_request.h"
#include "launch/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void send_frame(agent *a, remote_message type, const void *lead, size_t n_lead,
                       const char *bytes, size_t n)
{
    uint8_t header[FRAME_HEADER_BYTES + 8];

    wire_put_u32(header, (uint32_t)(n_lead + n));
    wire_put_u32(header + 4, type);
    memcpy(header + FRAME_HEADER_BYTES, lead, n_lead);
    output_write_pieces(&a->sinks[0], header, FRAME_HEADER_BYTES + n_lead, bytes, n);
}

void agent_remote_output(const agent_rank *r, int which, const char *bytes, size_t n)
{
    uint8_t lead[5];

    wire_put_u32(lead, (uint32_t)r->rank);
    lead[4] = (uint8_t)which;
    while (n > REMOTE_OUTPUT_MOST) {
        send_frame(r->agent, REMOTE_OUTPUT, lead, sizeof(lead), bytes, REMOTE_OUTPUT_MOST);
        bytes += REMOTE_OUTPUT_MOST;
        n -= REMOTE_OUTPUT_MOST;
    }
    send_frame(r->agent, REMOTE_OUTPUT, lead, sizeof(lead), bytes, n);
}

void agent_remote_note(agent *a, const char *line)
{
    uint8_t length[4];

    wire_put_u32(length, (uint32_t)strlen(line));
    send_frame(a, REMOTE_NOTE, length, sizeof(length), line, strlen(line));
}

static void starter_is_gone(agent *a, const char *why)
{
    poller_unwatch(a->remote_watch);
    a->remote_watch = NULL;
    a->sinks[0].is_broken = true; /* nobody reads it any more */
    agent_leave_job(a);           /* the end of our ranks is no failure of theirs */
    (void)ls_fail(LS_EPEER, "%s", why);
    agent_give_up(a, LS_EPEER);
}

void agent_remote_lost(agent *a)
{
    starter_is_gone(a, "nobody reads what this agent sends");
}

void agent_remote_grant(agent *a, size_t more)
{
    uint8_t bytes[4];

    wire_put_u32(bytes, (uint32_t)more);
    send_frame(a, REMOTE_WINDOW, bytes, sizeof(bytes), "", 0);
    agent_mind_output(a);
}

static ls_status take_size(agent *a, const frame *f)
{
    pty_size size;

    LS_TRY(remote_read_size(f, &size));
    agent_resize_ranks(a, size);
    return LS_OK;
}

static ls_status take_frame(agent *a, const frame *f)
{
    switch (f->type) {
    case REMOTE_INPUT:
        return agent_take_input(a, (const char *)f->body, f->bytes);
    case REMOTE_SIZE:
        return take_size(a, f);
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

static ls_status take_frames(agent *a, const char *bytes, size_t n)
{
    bool have = true;
    frame f;

    LS_TRY(frame_reader_feed(&a->remote_in, bytes, n));
    while (have) {
        LS_TRY(frame_reader_next(&a->remote_in, &f, &have));
        if (have)
            LS_TRY(take_frame(a, &f));
    }
    return LS_OK;
}

static void on_stdin(void *arg, unsigned events)
{
    agent *a = arg;
    char bytes[8192];
    char why[LS_ERROR_BYTES];
    ssize_t n;

    LS_UNUSED(events);
    do {
        n = read(a->spec->remote->in_fd, bytes, sizeof(bytes));
    } while (n < 0 && errno == EINTR);
    if (n > 0 && take_frames(a, bytes, (size_t)n) != LS_OK)
        starter_is_gone(a, text_format(why, sizeof(why),
                                       "its starter says what it does not understand: %s",
                                       ls_last_error()));
    else if (n > 0)
        return;
    else if (n == 0 || errno != EAGAIN)
        starter_is_gone(a, "its starter is gone");
}

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

ls_status agent_open_remote(agent *a)
{
    output_sink_open(&a->sinks[0], a->spec->remote->out_fd);
    a->sinks[0].terminal = false;
    a->sinks[1].is_broken = true;
    a->size = a->spec->remote->size;
    frame_reader_init(&a->remote_in, REMOTE_BODY_MAX);
    return poller_watch(a->poller, a->spec->remote->in_fd, POLL_READ, on_stdin, a,
                        &a->remote_watch);
}
