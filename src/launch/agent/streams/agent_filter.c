/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_filter.c - --duplicate-stdout-filters and --duplicate-stderr-filters: copies whole lines
 * that contain one of the texts to attempt_N/filtered_stdout.log or filtered_stderr.log of the log
 * folder, as torchrun does. It applies to the streams that --tee names, of all ranks of this
 * machine. Called by agent_output.c.
 */
#include "launch/agent/streams/agent_output.h"

#include "base/file.h"

#include <string.h>

static const char *const filtered_files[] = {"filtered_stdout.log", "filtered_stderr.log"};

ls_status agent_filter_open(agent_output *o)
{
    const unsigned attempt = agent_generation(o->ctx) - 1;

    for (int which = 0; which < 2; which++) {
        if (o->ctx->spec->job->filters[which] == NULL || o->logs.fd < 0)
            continue;
        file_close(&o->filtered_fd[which]);
        LS_TRY(log_folder_add_rank(&o->logs, attempt, LOG_FOLDER_ALL_RANKS));
        LS_TRY(log_folder_create_file(&o->logs, attempt, LOG_FOLDER_ALL_RANKS,
                                      filtered_files[which], &o->filtered_fd[which]));
    }
    return LS_OK;
}

void agent_filter_close(agent_output *o)
{
    file_close(&o->filtered_fd[0]);
    file_close(&o->filtered_fd[1]);
}

/*
 * Copies the first text of a list, where ",," is a comma. Returns the rest; NULL: it was the last.
 */
static const char *take_text(const char *list, char *text)
{
    size_t n = 0;

    for (;; list++) {
        if (list[0] == ',' && list[1] == ',')
            list++;
        else if (list[0] == ',' || list[0] == 0)
            break;
        text[n++] = *list;
    }
    text[n] = 0;
    return *list == ',' ? list + 1 : NULL;
}

/* A list has at most LINE_FILTER_MOST bytes. */
static bool matches(const char *list, const char *line)
{
    char text[LINE_FILTER_MOST + 1];

    while (list != NULL) {
        list = take_text(list, text);
        if (strstr(line, text) != NULL)
            return true;
    }
    return false;
}

static void write_line(rank_output *r, int which)
{
    agent_output *o = r->owner;
    text_buf *line = &r->filtered[which];
    text_buf out = {0};

    if (matches(o->ctx->spec->job->filters[which], text_str(line))) {
        text_append(&out, "%s%s\n", r->filter_prefix, text_str(line));
        if (text_status(&out) == LS_OK &&
            file_write_all(o->filtered_fd[which], filtered_files[which], text_str(&out),
                           out.length) != LS_OK) {
            file_close(&o->filtered_fd[which]);
            agent_note(o->ctx, "%s; the job continues without this file", ls_last_error());
        }
    }
    text_free(&out);
    text_free(line);
}

void agent_filter_feed(rank_output *r, int which, const char *bytes, size_t n)
{
    if (r->owner->filtered_fd[which] < 0 || !agent_logs_is_teed(r, which))
        return;
    while (n > 0 && r->owner->filtered_fd[which] >= 0) {
        const char *end = memchr(bytes, '\n', n);
        const size_t taken = end != NULL ? (size_t)(end - bytes) : n;

        text_append_bytes(&r->filtered[which], bytes, taken);
        if (end != NULL || r->filtered[which].length >= OUTPUT_LINE_MOST)
            write_line(r, which);
        bytes += taken + (end != NULL);
        n -= taken + (end != NULL);
    }
}

void agent_filter_end(rank_output *r, int which)
{
    if (r->filtered[which].length > 0 && r->owner->filtered_fd[which] >= 0)
        write_line(r, which);
    text_free(&r->filtered[which]);
}
