/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.c - gathers the bytes of a rank's pipe into lines and writes them, each in one system
 * call, to a sink that does not block. Called by the agent for its ranks (agent_output.c) and for
 * ranks on other hosts (agent_hosts_messages.c).
 */
#include "launch/output/output.h"

#include "launch/output/output_clean.h"
#include "launch/output/output_fold.h"

#include "base/alloc.h"
#include "base/file.h"
#include "comm/record/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define RECENT_LINE_MOST 400 /* bytes of a retained line */
#define PIECES_MOST      8

/* An unfinished line must not wrap, or the next one could not be drawn over it. */
#define CLEAR_LINE "\r\x1b[K"
#define NO_WRAP    "\x1b[?7l"
#define WRAP       "\x1b[?7h"

static const char *const colours[] = {"\x1b[36m", "\x1b[33m", "\x1b[35m",
                                      "\x1b[32m", "\x1b[34m", "\x1b[31m"};

/* --- the sink --- */

/*
 * Opens the same pipe or terminal once more, non-blocking. O_NONBLOCK on the given descriptor would
 * change it for every process that shares it, the shell included.
 */
static void open_nonblocking(output_sink *s)
{
    char path[64];
    int fd;

    text_format(path, sizeof(path), "/proc/self/fd/%d", s->fd);
    fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return; /* it may belong to another user; then a slow reader delays the agent */
    s->fd = fd;
    s->owns_fd = true;
}

void output_sink_open(output_sink *s, int fd)
{
    struct stat facts;

    *s = (output_sink){.fd = fd, .terminal = isatty(fd) != 0};
    if (fstat(fd, &facts) != 0)
        return;
    s->is_socket = S_ISSOCK(facts.st_mode);
    if (s->terminal || S_ISFIFO(facts.st_mode))
        open_nonblocking(s);
}

void output_sink_close(output_sink *s)
{
    if (s->owns_fd)
        file_close(&s->fd);
    text_free(&s->queue);
    text_free(&s->shown);
    *s = (output_sink){.fd = -1};
}

/*
 * One system call. Leaves in *pieces and *n what it did not take. False: the sink takes nothing
 * more for now.
 */
static bool write_once(output_sink *s, struct iovec **pieces, int *n)
{
    const struct msghdr message = {.msg_iov = *pieces, .msg_iovlen = (size_t)*n};
    ssize_t done = s->is_socket ? sendmsg(s->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                                : writev(s->fd, *pieces, *n);

    if (done < 0 && errno == EINTR)
        return true;
    if (done < 0) {
        s->is_broken = errno != EAGAIN && errno != ENOBUFS;
        if (s->is_broken && errno != EPIPE && errno != ECONNRESET)
            s->error = errno;
        return false;
    }
    while (*n > 0 && (size_t)done >= (*pieces)->iov_len) {
        done -= (ssize_t)(*pieces)->iov_len;
        ++*pieces;
        --*n;
    }
    if (*n > 0) {
        (*pieces)->iov_base = (char *)(*pieces)->iov_base + done;
        (*pieces)->iov_len -= (size_t)done;
    }
    return true;
}

size_t output_waiting(const output_sink *s)
{
    return s->is_broken ? 0 : s->queue.length - s->sent;
}

void output_flush(output_sink *s)
{
    struct iovec rest = {.iov_base = s->queue.data + s->sent, .iov_len = output_waiting(s)};
    struct iovec *at = &rest;
    int n = 1;

    if (rest.iov_len == 0)
        return;
    while (n > 0 && write_once(s, &at, &n))
        continue;
    s->sent = s->queue.length - (n > 0 && !s->is_broken ? rest.iov_len : 0);
    if (output_waiting(s) > 0 && s->sent < OUTPUT_QUEUE_MOST)
        return;
    s->queue.length -= s->sent;
    memmove(s->queue.data, s->queue.data + s->sent, s->queue.length);
    s->sent = 0;
}

/* In one system call where the kernel takes it all, so that lines of several jobs do not mix. */
static void sink_write(output_sink *s, struct iovec *pieces, int n)
{
    if (s->is_broken)
        return;
    while (n > 0 && output_waiting(s) == 0 && write_once(s, &pieces, &n))
        continue;
    for (int i = 0; i < n && !s->is_broken; i++)
        text_append_bytes(&s->queue, pieces[i].iov_base, pieces[i].iov_len);
}

static void add_piece(struct iovec *pieces, int *n, const char *text, size_t bytes)
{
    LS_ASSERT(*n < PIECES_MOST);
    if (bytes > 0)
        pieces[(*n)++] = (struct iovec){.iov_base = (void *)(uintptr_t)text, .iov_len = bytes};
}

static void clear_text(text_buf *t)
{
    t->length = 0;
    if (t->data != NULL)
        t->data[0] = 0;
}

void output_write_line(output_sink *sink, const output_stream *by, const char *prefix,
                       const char *line, size_t bytes)
{
    struct iovec pieces[PIECES_MOST];
    int n = 0;

    if (sink->n_console != NULL)
        ++*sink->n_console;
    if (sink->shown_of != NULL)
        add_piece(pieces, &n, CLEAR_LINE, strlen(CLEAR_LINE));
    add_piece(pieces, &n, prefix, strlen(prefix));
    add_piece(pieces, &n, line, bytes);
    add_piece(pieces, &n, "\n", 1);
    if (by != NULL && sink->shown_of == by)
        sink->shown_of = NULL;
    else if (sink->shown_of != NULL)
        add_piece(pieces, &n, text_str(&sink->shown), sink->shown.length);
    sink_write(sink, pieces, n);
}

void output_write_pieces(output_sink *sink, const void *first, size_t n_first, const void *second,
                         size_t n_second)
{
    struct iovec pieces[PIECES_MOST];
    int n = 0;

    add_piece(pieces, &n, first, n_first);
    add_piece(pieces, &n, second, n_second);
    sink_write(sink, pieces, n);
}

/* --- lines of a rank --- */

const char *output_prefix(const output_stream *s, char *buf, size_t n)
{
    char widest[16];
    int width;

    if (s->own_prefix[0] != 0)
        return s->own_prefix;
    if (!s->prefix)
        return "";
    text_format(widest, sizeof(widest), "%d", s->n_ranks - 1);
    width = (int)strlen(widest);
    if (s->sink->terminal)
        return text_format(buf, n, "%srank %*d|\x1b[0m ",
                           colours[(size_t)s->rank % LS_COUNT_OF(colours)], width, s->rank);
    return text_format(buf, n, "rank %*d| ", width, s->rank);
}

/* Retains a line for the report, without colours and other control sequences. */
static void save_line(const output_stream *s, const char *line, size_t n)
{
    output_recent *recent = s->recent;
    text_buf copy = {0};
    size_t n_prefix;
    char **slot;

    if (recent->names_rank)
        text_append(&copy, "rank %d| ", s->rank);
    n_prefix = copy.length;
    text_append_bytes(&copy, line, n < RECENT_LINE_MOST ? n : RECENT_LINE_MOST);
    if (text_status(&copy) != LS_OK) {
        text_free(&copy); /* the report then lacks this line */
        return;
    }
    n = output_clean(copy.data + n_prefix, copy.length - n_prefix, false);
    copy.data[n_prefix + n] = 0;
    recent->console_at[recent->n % OUTPUT_RECENT] =
        s->is_hidden || s->sink->n_console == NULL ? SIZE_MAX : *s->sink->n_console;
    slot = &recent->lines[recent->n++ % OUTPUT_RECENT];
    ls_free(*slot);
    *slot = copy.data;
}

static void stop_showing(output_stream *s)
{
    const output_sink *sink = s->sink;
    struct iovec pieces[PIECES_MOST];
    int n = 0;

    if (sink->shown_of != s)
        return;
    add_piece(pieces, &n, CLEAR_LINE, strlen(CLEAR_LINE));
    sink_write(s->sink, pieces, n);
    s->sink->shown_of = NULL;
}

static void begin_line(output_stream *s, bool is_redrawn)
{
    clear_text(&s->line);
    s->is_returned = false;
    s->is_redrawn = is_redrawn;
}

/* Bytes of the sequence with which a program erases its progress bar before it prints a line. */
static size_t erasing_bytes(const output_stream *s)
{
    static const char *const erasing[] = {"\x1b[K", "\x1b[2K", "\x1b[0K"};

    for (size_t i = 0; s->is_redrawn && i < LS_COUNT_OF(erasing); i++)
        if (text_starts(text_str(&s->line), erasing[i]))
            return strlen(erasing[i]);
    return 0;
}

static void show_line(output_stream *s, const char *line, size_t bytes)
{
    char prefix[64];
    bool is_failure;

    if (s->is_hidden)
        return;
    is_failure = s->failure_line != 0 && recorder_hash_line(line, bytes) == s->failure_line;
    if (s->fold != NULL && (s->sink->terminal || is_failure)) {
        output_fold_add(s->fold, s, line, bytes, is_failure);
        return;
    }
    if (s->fold != NULL)
        output_fold_flush_rank(s->fold, s);
    output_write_line(s->sink, s, output_prefix(s, prefix, sizeof(prefix)), line, bytes);
}

static void finish_line(output_stream *s)
{
    const size_t skip = erasing_bytes(s);
    char nothing[1] = "";
    char *line = s->line.data != NULL ? s->line.data + skip : nothing;
    size_t bytes = s->line.length - skip;

    if (bytes > 0 || !s->is_redrawn) {
        if (s->sink->terminal)
            bytes = output_clean(line, bytes, true);
        if (s->recent != NULL)
            save_line(s, line, bytes);
        show_line(s, line, bytes);
    } else {
        stop_showing(s);
    }
    begin_line(s, false);
}

/* On a terminal: progress bars, and prompts of rank 0, which is the only rank that reads stdin. */
static void show_unfinished(output_stream *s)
{
    output_sink *sink = s->sink;
    struct iovec pieces[PIECES_MOST];
    char prefix[64];
    size_t n_prefix;
    int n = 0;

    if (!sink->terminal || s->is_hidden || (!s->is_redrawn && !s->is_returned && s->rank != 0))
        return;
    s->is_deferred = s->fold != NULL && output_fold_has(s->fold, s);
    if (s->is_deferred)
        return;
    if (s->line.length == erasing_bytes(s)) {
        if (s->is_redrawn)
            stop_showing(s);
        return;
    }
    clear_text(&sink->shown);
    text_append(&sink->shown, NO_WRAP "%s", output_prefix(s, prefix, sizeof(prefix)));
    n_prefix = sink->shown.length;
    text_append_bytes(&sink->shown, text_str(&s->line), s->line.length);
    if (!sink->shown.failed)
        sink->shown.length = n_prefix + output_clean(sink->shown.data + n_prefix,
                                                     sink->shown.length - n_prefix, true);
    text_append(&sink->shown, WRAP);
    if (sink->shown_of != NULL)
        add_piece(pieces, &n, CLEAR_LINE, strlen(CLEAR_LINE));
    add_piece(pieces, &n, text_str(&sink->shown), sink->shown.length);
    sink->shown_of = s;
    sink_write(sink, pieces, n);
}

/*
 * Takes the byte after a '\r': '\n' ends the line, any other byte begins a line that replaces it.
 */
static size_t settle_return(output_stream *s, char next)
{
    if (next == '\n') {
        finish_line(s);
        return 1;
    }
    if (next == '\r')
        return 1;
    begin_line(s, true);
    return 0;
}

/* Adds to the unfinished line. Returns the number of bytes taken. */
static size_t gather(output_stream *s, const char *bytes, size_t n)
{
    const size_t capacity = OUTPUT_LINE_MOST - s->line.length;
    const size_t most = n < capacity ? n : capacity;
    size_t taken = 0;

    while (taken < most && bytes[taken] != '\n' && bytes[taken] != '\r')
        taken++;
    text_append_bytes(&s->line, bytes, taken);
    if (taken < n && bytes[taken] == '\n') {
        finish_line(s);
        return taken + 1;
    }
    if (taken < n && bytes[taken] == '\r') {
        s->is_returned = true;
        return taken + 1;
    }
    if (s->line.length == OUTPUT_LINE_MOST)
        finish_line(s);
    return taken;
}

void output_feed(output_stream *s, const char *bytes, size_t n)
{
    while (n > 0) {
        const size_t taken = s->is_returned ? settle_return(s, bytes[0]) : gather(s, bytes, n);

        bytes += taken;
        n -= taken;
    }
    show_unfinished(s);
}

void output_show_deferred(output_stream *s)
{
    if (s->is_deferred)
        show_unfinished(s);
}

void output_end(output_stream *s)
{
    if (s->line.length > 0)
        finish_line(s);
    stop_showing(s);
}

void output_free(output_stream *s)
{
    text_free(&s->line);
    memset(s, 0, sizeof(*s));
}

/* --- notes and retained lines --- */

void output_note(output_sink *sink, const char *format, ...)
{
    char line[OUTPUT_NOTE_MOST];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    output_write_line(sink, NULL, "", line, strlen(line));
}

bool output_recent_is_visible(const output_recent *recent, size_t n_console)
{
    const size_t n = recent->n < OUTPUT_RECENT ? recent->n : OUTPUT_RECENT;

    for (size_t i = 0; i < n; i++)
        if (recent->console_at[i] == SIZE_MAX || n_console - recent->console_at[i] > OUTPUT_RECENT)
            return false;
    return true;
}

void output_append_recent(const output_recent *recent, size_t most, text_buf *out)
{
    const size_t n = most < OUTPUT_RECENT ? most : OUTPUT_RECENT;
    const size_t first = recent->n > n ? recent->n - n : 0;

    for (size_t i = first; i < recent->n; i++)
        text_append(out, "  | %s\n", recent->lines[i % OUTPUT_RECENT]);
}

void output_free_recent(output_recent *recent)
{
    for (int i = 0; i < OUTPUT_RECENT; i++)
        ls_free(recent->lines[i]);
    memset(recent, 0, sizeof(*recent));
}
