/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_events.h - writes events in the trace event format of Perfetto and chrome://tracing, for
 * `lockstep run --trace` and `--profile` of training programs.
 *
 * A trace has processes (ranks) with lines (threads of that format). Times are microseconds.
 */
#ifndef LS_BASE_REPORT_TRACE_EVENTS_H
#define LS_BASE_REPORT_TRACE_EVENTS_H

#include "base/report/json.h"

/* Begins the object of a trace, up to the open list of its events. */
void trace_begin(json_writer *j, text_buf *out);

/* Metadata of a line, as "thread_name": its argument `key` is `text`. */
void trace_put_label(json_writer *j, const char *what, int process, int line, const char *key,
                     const char *text);

/* One event with a duration. It stays open for its args: json_close() with '}' ends it. */
void trace_open_event(json_writer *j, const char *name, const char *category, int process, int line,
                      double start_us, double us);

#define TRACE_LINES_MAX 64 /* of events at the same time; more share the last line */

/* Lines for events that are pending at the same time. Zero-initialise. */
typedef struct trace_lines {
    int64_t free_at[TRACE_LINES_MAX];
    int n; /* in use */
} trace_lines;

/* The first line whose last event has ended when this one starts. Events come in order of their
 * starts. */
int trace_take_line(trace_lines *l, int64_t start_ns, int64_t end_ns);

#endif
