/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - what ranks print, in whole lines, each with its rank in front; the last ones are kept for the report.
 *
 *     pipe of a rank -> output_stream (a line being gathered) -> output_sink (stdout or stderr of the job)
 *                                                     \-> output_fold, on a terminal -/
 *
 * A sink never blocks where the kernel can help it: what a slow reader or a stopped terminal does not take waits in a queue, and
 * the owner stops reading pipes while that is full. So a job is watched over even while nobody reads what it prints.
 */
#ifndef LS_LAUNCH_OUTPUT_H
#define LS_LAUNCH_OUTPUT_H

#include "base/status.h"
#include "base/text.h"
#include "launch/agent/line_prefix.h"

#include <stdbool.h>

#define OUTPUT_LINE_MOST  65536     /* bytes; a longer line is broken */
#define OUTPUT_QUEUE_MOST (1 << 20) /* bytes that wait for a reader before the ranks must */
#define OUTPUT_KEPT       20        /* lines of each rank that are remembered */

struct output_stream;
struct output_fold;

/* Where all ranks' lines go. */
typedef struct output_sink {
    int fd; /* written to; non-blocking where that does not change the descriptor of others */
    bool owns_fd;
    bool is_socket;
    bool terminal;  /* colours, and lines that are not ended are shown */
    bool is_broken; /* nobody will ever read it; what is written is lost */
    int error;      /* why, if its reader has not just gone: ENOSPC, EIO, ...; else 0 */
    size_t
        *n_console; /* counts lines at the place where reports go; NULL: this sink is elsewhere */
    const struct output_stream
        *shown_of;  /* whose unfinished line stands on the terminal, NULL: none */
    text_buf shown; /* that line, as it was written */
    text_buf queue; /* not taken yet, from `sent` on */
    size_t sent;
} output_sink;

/* The newest lines of one rank, or of several, of all their pipes in the order they came. */
typedef struct output_kept {
    bool names_rank; /* "rank 1| " stands in front of each */
    char *lines[OUTPUT_KEPT];
    size_t console_at[OUTPUT_KEPT]; /* lines at that place before it; SIZE_MAX: not shown there */
    size_t n;                       /* of all time; the newest is lines[(n - 1) % OUTPUT_KEPT] */
} output_kept;

/* One pipe of one rank. */
typedef struct output_stream {
    output_sink *sink;
    output_kept *kept; /* may be NULL */
    int rank;
    int n_ranks; /* for the width of the prefix */
    bool prefix;
    char own_prefix[LINE_PREFIX_BYTES]; /* in the place of "rank 1| "; "": that */
    bool is_hidden;                     /* lines are remembered, not written */
    struct output_fold
        *fold; /* where whole lines wait for the same ones of other ranks; NULL: they do not */
    bool is_deferred; /* what is begun is shown when the lines before it have been written */
    text_buf line;    /* begun, not ended */
    bool is_returned; /* it ended in '\r': what follows tells whether it stays */
    bool is_redrawn;  /* it came behind a '\r' */
} output_stream;

/* Lines for a descriptor that stays the caller's. */
void output_sink_open(output_sink *s, int fd);
void output_sink_close(output_sink *s);

/* Sends what waits, as far as the reader takes it. */
void output_flush(output_sink *s);
size_t output_waiting(const output_sink *s); /* bytes */

/* Bytes as they were read from the pipe: writes out every line that they end. "\r\n" ends a line as "\n" does. A line ended by '\r' alone
 * is one that redraws itself: on a terminal the next one takes its place, elsewhere it is left out. */
void output_feed(output_stream *s, const char *bytes, size_t n);

/* Shows what is begun, if that had to wait for lines that were being folded. */
void output_show_deferred(output_stream *s);

/* The pipe has ended: what is begun goes out as a line. */
void output_end(output_stream *s);
void output_free(output_stream *s);

/* A whole line, in front of the unfinished one that may stand on the terminal, or in its place if that is by the same stream. */
void output_write_line(output_sink *sink, const output_stream *by, const char *prefix,
                       const char *line, size_t bytes);
/* Bytes that are no lines, whole and in their order. */
void output_write_pieces(output_sink *sink, const void *first, size_t n_first, const void *second,
                         size_t n_second);
/* "rank 1| " as it stands in front of this stream's lines. */
const char *output_prefix(const output_stream *s, char *buf, size_t n);

/* A line of the agent's own; longer than OUTPUT_NOTE_MOST it is cut. */
#define OUTPUT_NOTE_MOST 8192
void output_note(output_sink *sink, const char *format, ...) LS_PRINTF(2, 3);

/* Whether all remembered lines are among the last OUTPUT_KEPT where the report goes. */
bool output_kept_is_in_view(const output_kept *kept, size_t n_console);

/* Appends the newest of the remembered lines, indented; at most so many. */
void output_append_kept(const output_kept *kept, size_t most, text_buf *out);
void output_free_kept(output_kept *kept);

#endif
