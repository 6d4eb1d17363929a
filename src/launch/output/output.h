/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - what ranks print, in whole lines with the rank in front. Of each rank the newest lines
 * are retained for the failure report.
 *
 *     pipe of a rank -> output_stream (gathers a line) -> output_sink (stdout or stderr of the job)
 *                                             \-> output_fold --/
 *
 * On a terminal equal lines of several ranks are folded. Elsewhere only those are with which the
 * library has printed why its rank failed (recorder_note_failure_line()); all others are written as
 * they are.
 *
 * A sink does not block where the kernel allows that. What a slow reader or a stopped terminal does
 * not take waits in a queue, and the owner stops reading pipes while the queue is full. The agent
 * so keeps watching the ranks even when nothing reads what the job prints.
 *
 * launch/output/: lines of ranks and their files, without processes: called by agents.
 */
#ifndef LS_LAUNCH_OUTPUT_OUTPUT_H
#define LS_LAUNCH_OUTPUT_OUTPUT_H

#include "base/status.h"
#include "base/text.h"
#include "launch/output/line_prefix.h"

#include <stdbool.h>

#define OUTPUT_LINE_MOST  65536     /* bytes; a longer line is broken */
#define OUTPUT_QUEUE_MOST (1 << 20) /* bytes queued for a reader before the ranks have to wait */
#define OUTPUT_RECENT     20        /* retained lines of each rank */
#define OUTPUT_NOTE_MOST  8192      /* bytes of a line of the agent; a longer one is cut */

struct output_stream;
struct output_fold;

/* The destination of all ranks' lines. */
typedef struct output_sink {
    int fd; /* non-blocking where that does not change the descriptor of other processes */
    bool owns_fd;
    bool is_socket;
    bool terminal;  /* colours, and unfinished lines are shown */
    bool is_broken; /* the reader is gone; what is written is lost */
    int error;      /* errno when the sink broke for another reason than a closed reader; else 0 */
    size_t *n_console; /* counts lines on the report's console; NULL: the sink is another file */
    text_buf queue;    /* not yet taken, from `sent` on */
    size_t sent;

    /* The stream whose unfinished line is on the terminal, or NULL, and that line as written. */
    const struct output_stream *shown_of;
    text_buf shown;
} output_sink;

/* The newest lines of one rank, or of several, of all their pipes in the order of arrival. */
typedef struct output_recent {
    bool names_rank; /* "rank 1| " stands in front of each */
    char *lines[OUTPUT_RECENT];
    size_t n; /* of all time; the newest is lines[(n - 1) % OUTPUT_RECENT] */

    /* Lines that the console showed before it; SIZE_MAX: it is not on the console. */
    size_t console_at[OUTPUT_RECENT];
} output_recent;

/* One pipe of one rank. */
typedef struct output_stream {
    output_sink *sink;
    output_recent *recent; /* may be NULL */
    int rank;
    int n_ranks; /* for the width of the prefix */
    bool prefix;
    char own_prefix[LINE_PREFIX_BYTES]; /* replaces "rank 1| "; "": it does not */
    bool is_hidden;                     /* lines are retained, not written */
    struct output_fold *fold;           /* folds equal lines of several ranks; NULL: no folding */
    uint64_t failure_line;              /* recorder_hash_line() of it; 0: none yet */
    text_buf line;                      /* begun, not ended */
    bool is_returned; /* it ended in '\r'; the next byte decides what that means */
    bool is_redrawn;  /* it follows a '\r' */
    bool is_deferred; /* is shown when the lines before it have been written */
} output_stream;

/* Writes to a descriptor that stays the caller's. */
void output_sink_open(output_sink *s, int fd);
void output_sink_close(output_sink *s);

/* Writes as much of the queue as the reader takes. */
void output_flush(output_sink *s);
size_t output_waiting(const output_sink *s); /* bytes in the queue */

/*
 * Takes bytes as they were read from the pipe and writes every line that they end. "\r\n" ends a
 * line as "\n" does. After '\r' alone the next line replaces this one: on a terminal it is drawn
 * over it, elsewhere the replaced line is left out.
 */
void output_feed(output_stream *s, const char *bytes, size_t n);

/* Shows the unfinished line, if that had to wait for lines that were being folded. */
void output_show_deferred(output_stream *s);

/* The pipe has ended: the unfinished line is written as a line. */
void output_end(output_stream *s);
void output_free(output_stream *s);

/*
 * Writes a whole line above the unfinished line that may be on the terminal, or over it if that
 * belongs to the same stream.
 */
void output_write_line(output_sink *sink, const output_stream *by, const char *prefix,
                       const char *line, size_t bytes);
/* Writes bytes that are no lines, whole and in order. */
void output_write_pieces(output_sink *sink, const void *first, size_t n_first, const void *second,
                         size_t n_second);
/* "rank 1| " as it stands in front of this stream's lines. */
const char *output_prefix(const output_stream *s, char *buf, size_t n);

/* Writes a line of the agent itself. */
void output_note(output_sink *sink, const char *format, ...) LS_PRINTF(2, 3);

/* Whether all retained lines are among the last OUTPUT_RECENT on the report's console. */
bool output_recent_is_visible(const output_recent *recent, size_t n_console);

/* Appends the newest retained lines, indented; at most `most`. */
void output_append_recent(const output_recent *recent, size_t most, text_buf *out);
void output_free_recent(output_recent *recent);

#endif
