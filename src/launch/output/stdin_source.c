/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stdin_source.c - reads the launcher's stdin in pieces, never more than was granted, and never a
 * terminal from the background. Called by agent_input.c.
 */
#include "launch/output/stdin_source.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FOREGROUND_MS = 200 /* between two checks whether this process is in the foreground */ };

struct stdin_source {
    poller *loop;
    stdin_source_options opt;
    int fd;
    bool owns_fd;
    bool is_terminal;
    bool is_file; /* always readable, so it is not polled */
    bool has_ended;
    size_t granted;
    poll_watch *watch;
    poll_timer timer; /* to read a file, to check for the foreground, or to report the end again */
};

static void update_watch(stdin_source *s);

/* Always true of a terminal that does not control this process. */
static bool is_foreground(const stdin_source *s)
{
    const pid_t group = s->is_terminal ? tcgetpgrp(s->fd) : -1;

    return group < 0 || group == getpgrp();
}

static void end(stdin_source *s, bool for_good)
{
    s->has_ended = for_good || !s->is_terminal || !s->opt.continues_after_end;
    s->opt.bytes(s->opt.self, NULL, 0);
}

static void read_some(stdin_source *s, bool is_broken)
{
    char bytes[STDIN_PIECE_MOST];
    const size_t most = s->granted < sizeof(bytes) ? s->granted : sizeof(bytes);
    ssize_t n;

    if (!is_foreground(s))
        return;
    n = read(s->fd, bytes, most);
    if (n > 0) {
        s->granted -= (size_t)n;
        s->opt.bytes(s->opt.self, bytes, (size_t)n);
    } else if (n == 0) {
        end(s, is_broken);
    } else if (errno != EAGAIN && errno != EINTR && (errno != EIO || is_foreground(s))) {
        end(s, true);
    }
}

static void on_readable(void *arg, unsigned events)
{
    stdin_source *s = arg;

    read_some(s, (events & POLL_BROKEN) != 0);
    update_watch(s);
}

static void on_due(void *arg)
{
    stdin_source *s = arg;

    if (s->has_ended)
        s->opt.bytes(s->opt.self, NULL, 0);
    else if (s->is_file)
        read_some(s, false);
    if (!s->has_ended)
        update_watch(s);
}

static void stop_watching(stdin_source *s)
{
    poller_unwatch(&s->watch);
}

/* Sets the watch or the timer for the next read. */
static void update_watch(stdin_source *s)
{
    const size_t least = s->is_terminal ? STDIN_LINE_MOST : 1;
    const bool is_due = !s->has_ended && s->granted >= least;
    const bool polls = is_due && !s->is_file && is_foreground(s);

    if (!polls)
        stop_watching(s);
    if (polls && s->watch == NULL &&
        poller_watch(s->loop, s->fd, POLL_READ, on_readable, s, &s->watch) != LS_OK)
        s->has_ended = true; /* it is closed */
    if (s->has_ended)
        return;
    if (is_due && !polls)
        poller_timer_set(s->loop, &s->timer, ls_now_ms() + (s->is_file ? 0 : FOREGROUND_MS), on_due,
                         s);
    else
        poller_timer_cancel(&s->timer);
}

void stdin_source_grant(stdin_source *s, size_t more)
{
    s->granted += more;
    update_watch(s);
    if (s->has_ended)
        poller_timer_set(s->loop, &s->timer, ls_now_ms(), on_due, s);
}

void stdin_source_revoke(stdin_source *s)
{
    if (s == NULL)
        return;
    s->granted = 0;
    stop_watching(s);
    poller_timer_cancel(&s->timer);
}

/*
 * Opens the same pipe or terminal once more, because the flags of the given descriptor are shared
 * with other processes. A file stays as it is: its position belongs to that descriptor.
 */
static void open_nonblocking(stdin_source *s)
{
    struct stat facts;
    char path[64];
    int fd;

    if (fstat(s->fd, &facts) != 0)
        return;
    s->is_terminal = isatty(s->fd) != 0;
    s->is_file = !s->is_terminal && !S_ISFIFO(facts.st_mode) && !S_ISSOCK(facts.st_mode);
    if (s->is_file || S_ISSOCK(facts.st_mode))
        return;
    text_format(path, sizeof(path), "/proc/self/fd/%d", s->fd);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return; /* it belongs to another user: it is read when it is readable */
    s->fd = fd;
    s->owns_fd = true;
}

ls_status stdin_source_open(poller *p, const stdin_source_options *opt, stdin_source **out)
{
    stdin_source *s;

    LS_TRY(LS_NEW(out, 1, "for reading stdin"));
    s = *out;
    s->loop = p;
    s->opt = *opt;
    s->fd = opt->fd;
    open_nonblocking(s);
    return LS_OK;
}

void stdin_source_close(stdin_source *s)
{
    if (s == NULL)
        return;
    stop_watching(s);
    poller_timer_cancel(&s->timer);
    if (s->owns_fd)
        file_close(&s->fd);
    ls_free(s);
}
