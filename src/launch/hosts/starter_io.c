/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starter_io.c - the stream of one host: lines until the greeting, then frames; and what is sent to
 * it, the agent binary and frames. Bytes of a host are bounded and made printable before they are
 * shown. Called by starter.c.
 */
#include "launch/hosts/starter_internal.h"

#include "base/clock.h"
#include "base/file.h"
#include "launch/spec/launch_request.h"
#include "net/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

enum {
    SHELL_BYTES_MOST = 65536, /* bytes before the greeting */
    AGENT_BINARY_MOST = 64 << 20
};

/* --- its stderr --- */

static void finish_line(starter_host *h)
{
    char shown[STARTER_LINE_MOST];

    text_printable(shown, sizeof(shown), text_str(&h->line));
    text_free(&h->line);
    if (shown[strspn(shown, " ?")] == 0)
        return; /* empty, or a lone '\r' */
    text_format(h->last_line, sizeof(h->last_line), "%s", shown);
    if (h->state == HOST_GREETED || h->state == HOST_LAUNCHED)
        h->owner->events.line(h->owner->events.self, h->index, shown);
}

static void gather_lines(starter_host *h, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n' || h->line.length >= STARTER_LINE_MOST - 1)
            finish_line(h);
        if (bytes[i] != '\n' && bytes[i] != '\r')
            text_append_bytes(&h->line, &bytes[i], 1);
    }
}

void starter_read_errors(starter_host *h)
{
    char bytes[4096];
    ssize_t n;

    do {
        n = read(h->err_fd, bytes, sizeof(bytes));
        if (n > 0)
            gather_lines(h, bytes, (size_t)n);
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0 && errno == EAGAIN && !h->ending)
        return;
    if (h->line.length > 0)
        finish_line(h);
    starter_close_errors(h);
}

void starter_on_errors(void *arg, unsigned events)
{
    LS_UNUSED(events);
    starter_read_errors(arg);
}

/* --- output to the host --- */

void starter_update_channel(starter_host *h)
{
    const bool needs_write = byte_queue_size(&h->out) > 0 || h->agent_binary_left > 0;
    const bool needs_read = !h->owner->paused;

    if (h->watch != NULL && poller_change(h->watch, (needs_read ? POLL_READ : 0u) |
                                                        (needs_write ? POLL_WRITE : 0u)) != LS_OK)
        starter_fail_host(h, ls_last_error());
}

static ls_status send_agent_binary(starter_host *h)
{
    const starter *s = h->owner;

    while (h->agent_binary_left > 0) {
        size_t moved;

        LS_TRY(net_send_some(h->fd, starter_name_of(h),
                             s->agent_binary + s->agent_binary_bytes - h->agent_binary_left,
                             h->agent_binary_left, &moved));
        if (moved == 0)
            return LS_OK;
        h->agent_binary_left -= moved;
    }
    return LS_OK;
}

void starter_flush(starter_host *h)
{
    ls_status st = byte_queue_flush(&h->out, h->fd, starter_name_of(h));

    if (st == LS_OK && byte_queue_size(&h->out) == 0)
        st = send_agent_binary(h);
    if (st == LS_OK) {
        starter_update_channel(h);
        return;
    }
    starter_close_channel(h); /* its stderr has the reason */
    starter_begin_end(h);
}

/* --- before the greeting: lines --- */

static ls_status read_agent_binary(starter *s)
{
    char path[4096];

    if (s->agent_binary != NULL)
        return LS_OK;
    LS_TRY(start_find_agent_binary(path, sizeof(path)));
    return file_read(path, AGENT_BINARY_MOST, &s->agent_binary, &s->agent_binary_bytes);
}

/* The host has no Lockstep of this version. */
static void send_agent(starter_host *h, const char *machine)
{
    starter *s = h->owner;
    struct utsname own;
    char text[256];

    (void)uname(&own);
    if (!text_equal(machine, own.machine)) {
        text_format(text, sizeof(text),
                    "Lockstep %s is not installed, and the agent binary for %s does not run on "
                    "%.32s; fix: install Lockstep there",
                    ls_version(), own.machine, machine);
        starter_fail_host(h, text);
        return;
    }
    if (read_agent_binary(s) != LS_OK) {
        text_format(text, sizeof(text),
                    "Lockstep %s is not installed (%.128s); fix: install it there", ls_version(),
                    ls_last_error());
        starter_fail_host(h, text);
        return;
    }
    text_format(text, sizeof(text), "%zu\n", s->agent_binary_bytes);
    if (byte_queue_add(&h->out, text, strlen(text)) != LS_OK) {
        starter_fail_host(h, ls_last_error());
        return;
    }
    h->agent_binary_left = s->agent_binary_bytes;
    starter_flush(h);
}

static void handle_greeting(starter_host *h, const char *version, int cores)
{
    char why[192];

    if (!text_equal(version, ls_version())) {
        text_format(why, sizeof(why),
                    "version mismatch: it has Lockstep %.64s, this machine %s; fix: install the "
                    "same version",
                    version, ls_version());
        starter_fail_host(h, why);
        return;
    }
    h->state = HOST_GREETED;
    poller_timer_cancel(&h->timer);
    starter_start_soon(h->owner);
    h->owner->events.greeted(h->owner->events.self, h->index, cores);
}

static void handle_first_line(starter_host *h, const char *line)
{
    char version[64];
    int cores;

    if (remote_read_greeting(line, version, sizeof(version), &cores)) {
        handle_greeting(h, version, cores);
    } else if (text_starts(line, START_SEND_AGENT " ")) {
        send_agent(h, line + strlen(START_SEND_AGENT " "));
    } else if (line[0] != 0) {
        h->owner->events.line(h->owner->events.self, h->index, line);
    }
}

/* The output of a login shell comes first. */
static void handle_lines(starter_host *h)
{
    byte_queue *q = &h->in.in;
    char line[STARTER_LINE_MOST];

    while (h->state == HOST_STARTING && h->fd >= 0) {
        const uint8_t *begin = q->data + q->start;
        const size_t held = byte_queue_size(q);
        const uint8_t *end = held > 0 ? memchr(begin, '\n', held) : NULL;
        const size_t n = end != NULL ? (size_t)(end - begin) : held;

        if (h->n_shell_bytes + n > SHELL_BYTES_MOST) {
            starter_fail_host(h, "its login shell prints more than 64 KiB; fix: keep its startup "
                                 "files silent in non-interactive shells");
            return;
        }
        if (end == NULL)
            return;
        text_format(line, sizeof(line), "%.*s", (int)n, (const char *)begin);
        text_printable(line, sizeof(line), line);
        h->n_shell_bytes += n + 1;
        q->start += n + 1;
        handle_first_line(h, line);
    }
}

/* --- after it: frames --- */

static void handle_frames(starter_host *h)
{
    bool have = true;
    ls_status st = LS_OK;
    frame f;

    while (st == LS_OK && have && h->state == HOST_LAUNCHED && h->fd >= 0) {
        st = frame_reader_next(&h->in, &f, &have);
        if (st == LS_OK && have)
            st = h->owner->events.message(h->owner->events.self, h->index, &f);
    }
    if (st != LS_OK)
        starter_fail_host(h, ls_last_error());
}

static void receive(starter_host *h)
{
    size_t moved;
    const ls_status st = frame_reader_fill(&h->in, h->fd, starter_name_of(h), &moved);

    if (moved > 0)
        h->owner->received_ms = ls_now_ms();
    if (h->state == HOST_STARTING)
        handle_lines(h);
    if (h->state == HOST_LAUNCHED)
        handle_frames(h);
    if (st != LS_OK && h->fd >= 0) {
        starter_close_channel(h);
        starter_begin_end(h);
    }
}

void starter_on_host(void *arg, unsigned events)
{
    starter_host *h = arg;

    if ((events & POLL_WRITE) != 0)
        starter_flush(h);
    if (h->fd >= 0 && (events & (POLL_READ | POLL_BROKEN)) != 0)
        receive(h);
}
