/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - what ranks print, in whole lines, each with its rank in front; the last ones are kept for the report.
 */
#ifndef LS_LAUNCH_OUTPUT_H
#define LS_LAUNCH_OUTPUT_H

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

#define OUTPUT_LINE_MOST 65536 /* a longer line is broken */
#define OUTPUT_KEPT      20    /* lines of each rank that are remembered */

/* Where all ranks' lines go. Whether a bar stands on the terminal is common to them. */
typedef struct output_sink {
    int fd;
    bool terminal; /* colours, and lines that redraw themselves stay so */
    bool transient_shown;
} output_sink;

/* One pipe of one rank. */
typedef struct output_stream {
    output_sink *sink;
    int rank;
    int n_ranks;
    bool prefix;
    text_buf line; /* begun, not ended */
    char *kept[OUTPUT_KEPT];
    int n_kept; /* of all time; the newest is kept[(n_kept - 1) % OUTPUT_KEPT] */
} output_stream;

/* Bytes as they were read from the pipe: writes out every line that they end. A line ended by '\r' alone is one that redraws
 * itself: on a terminal the next one takes its place, elsewhere it is left out. */
void output_feed(output_stream *s, const char *bytes, size_t n);

/* The pipe has ended: what is begun goes out as a line. */
void output_end(output_stream *s);

/* A line of the agent's own. */
void output_note(output_sink *sink, const char *format, ...) LS_PRINTF(2, 3);

/* Appends the remembered lines, indented. */
void output_append_kept(const output_stream *s, text_buf *out);
void output_free(output_stream *s);

#endif
