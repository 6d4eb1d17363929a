/* SPDX-License-Identifier: Apache-2.0 */
/* trace_events.c - the trace event format, for the writers of trace_events.h. */
#include "base/report/trace_events.h"

void trace_begin(json_writer *j, text_buf *out)
{
    json_begin(j, out);
    json_open(j, NULL, '{');
    json_put_string(j, "displayTimeUnit", "ms");
    json_open(j, "traceEvents", '[');
}

void trace_put_label(json_writer *j, const char *what, int process, int line, const char *key,
                     const char *text)
{
    json_open(j, NULL, '{');
    json_put_string(j, "name", what);
    json_put_string(j, "ph", "M");
    json_put_int(j, "pid", process);
    json_put_int(j, "tid", line);
    json_open(j, "args", '{');
    json_put_string(j, key, text);
    json_close(j, '}');
    json_close(j, '}');
}

void trace_open_event(json_writer *j, const char *name, const char *category, int process, int line,
                      double start_us, double us)
{
    json_open(j, NULL, '{');
    json_put_string(j, "name", name);
    json_put_string(j, "cat", category);
    json_put_string(j, "ph", "X");
    json_put_real(j, "ts", start_us);
    json_put_real(j, "dur", us);
    json_put_int(j, "pid", process);
    json_put_int(j, "tid", line);
}

int trace_take_line(trace_lines *l, int64_t start_ns, int64_t end_ns)
{
    int line = 0;

    while (line < TRACE_LINES_MAX - 1 && l->free_at[line] > start_ns)
        line++;
    l->free_at[line] = end_ns;
    if (line >= l->n)
        l->n = line + 1;
    return line;
}
