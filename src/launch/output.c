/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/output.h"

#include "base/alloc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define KEPT_LINE_MOST 400 /* bytes of a remembered line */
#define CLEAR_LINE     "\r\x1b[K"

static const char *const colours[] = {"\x1b[36m", "\x1b[33m", "\x1b[35m",
                                      "\x1b[32m", "\x1b[34m", "\x1b[31m"};

/* All of it, in one system call where the kernel allows; what cannot be written is lost. */
static void write_pieces(int fd, struct iovec *pieces, int n)
{
    while (n > 0) {
        ssize_t done = writev(fd, pieces, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return;
        while (n > 0 && (size_t)done >= pieces->iov_len) {
            done -= (ssize_t)pieces->iov_len;
            pieces++;
            n--;
        }
        if (n > 0) {
            pieces->iov_base = (char *)pieces->iov_base + done;
            pieces->iov_len -= (size_t)done;
        }
    }
}

static struct iovec piece(const char *text, size_t n)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)text, .iov_len = n};
}

static size_t make_prefix(const output_stream *s, char *buf, size_t n)
{
    char width[16];

    if (!s->prefix)
        return 0;
    text_format(width, sizeof(width), "%d", s->n_ranks - 1);
    if (s->sink->terminal)
        text_format(buf, n, "%srank %*d|\x1b[0m ", colours[(size_t)s->rank % LS_COUNT_OF(colours)],
                    (int)strlen(width), s->rank);
    else
        text_format(buf, n, "rank %*d| ", (int)strlen(width), s->rank);
    return strlen(buf);
}

static void keep_line(output_stream *s)
{
    char *copy = ls_calloc(KEPT_LINE_MOST, 1);

    if (copy == NULL)
        return; /* remembered lines are a courtesy */
    text_printable(copy, KEPT_LINE_MOST, text_str(&s->line));
    char **slot = &s->kept[s->n_kept++ % OUTPUT_KEPT];
    ls_free(*slot);
    *slot = copy;
}

/* Writes the line that has been gathered. */
static void emit(output_stream *s, bool transient)
{
    char prefix[64];
    const size_t prefix_bytes = make_prefix(s, prefix, sizeof(prefix));
    output_sink *sink = s->sink;
    struct iovec pieces[4];
    int n = 0;

    if (transient && !sink->terminal)
        return;
    if (sink->transient_shown)
        pieces[n++] = piece(CLEAR_LINE, strlen(CLEAR_LINE));
    pieces[n++] = piece(prefix, prefix_bytes);
    pieces[n++] = piece(text_str(&s->line), s->line.length);
    if (!transient)
        pieces[n++] = piece("\n", 1);
    write_pieces(sink->fd, pieces, n);
    sink->transient_shown = transient;
    if (!transient)
        keep_line(s);
}

static void end_line(output_stream *s, bool transient)
{
    /* What only clears a bar ("\r", erase to the end of the line) is no line. */
    const bool empty = s->line.length == 0 || text_equal(text_str(&s->line), "\x1b[K");

    if (!transient || !empty)
        emit(s, transient);
    s->line.length = 0;
    if (s->line.data != NULL)
        s->line.data[0] = 0;
}

void output_feed(output_stream *s, const char *bytes, size_t n)
{
    while (n > 0) {
        const char *stop = bytes;
        while (stop < bytes + n && *stop != '\n' && *stop != '\r')
            stop++;
        text_append_bytes(&s->line, bytes, (size_t)(stop - bytes));
        n -= (size_t)(stop - bytes);
        bytes = stop;
        if (s->line.length >= OUTPUT_LINE_MOST)
            end_line(s, false);
        if (n == 0)
            return;
        /* "\r\n" is one line end; its parts may come in two pieces, then an empty transient line is dropped. */
        const bool transient = *bytes == '\r' && !(n > 1 && bytes[1] == '\n');
        const size_t skip = *bytes == '\r' && n > 1 && bytes[1] == '\n' ? 2 : 1;
        end_line(s, transient);
        bytes += skip;
        n -= skip;
    }
}

void output_end(output_stream *s)
{
    if (s->line.length > 0)
        end_line(s, false);
}

void output_note(output_sink *sink, const char *format, ...)
{
    char line[2048];
    va_list args;
    struct iovec pieces[3];
    int n = 0;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (sink->transient_shown)
        pieces[n++] = piece(CLEAR_LINE, strlen(CLEAR_LINE));
    pieces[n++] = piece(line, strlen(line));
    pieces[n++] = piece("\n", 1);
    write_pieces(sink->fd, pieces, n);
    sink->transient_shown = false;
}

void output_append_kept(const output_stream *s, text_buf *out)
{
    const int first = s->n_kept > OUTPUT_KEPT ? s->n_kept - OUTPUT_KEPT : 0;

    for (int i = first; i < s->n_kept; i++)
        text_append(out, "  | %s\n", s->kept[i % OUTPUT_KEPT]);
}

void output_free(output_stream *s)
{
    for (int i = 0; i < OUTPUT_KEPT; i++)
        ls_free(s->kept[i]);
    text_free(&s->line);
    memset(s, 0, sizeof(*s));
}
