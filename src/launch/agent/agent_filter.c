/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_filter.c - --duplicate-stdout-filters and --duplicate-stderr-filters: whole lines of the
 * streams that --tee names and that contain one of the texts, of all ranks of this machine, in one
 * file a stream: attempt_N/filtered_stdout.log of the log folder, as torchrun writes it.
 */
#include "launch/agent/agent.h"

#include "base/file.h"

#include <string.h>
#include <unistd.h>

static const char *const filtered_files[] = {"filtered_stdout.log", "filtered_stderr.log"};

ls_status agent_open_filters(agent *a, unsigned attempt)
{
    for (int which = 0; which < 2; which++) {
        if (a->spec->filters[which] == NULL || a->logs.fd < 0)
            continue;
        file_close(&a->filtered_fd[which]);
        LS_TRY(log_folder_add_rank(&a->logs, attempt, LOG_FOLDER_ALL_RANKS));
        LS_TRY(log_folder_create_file(&a->logs, attempt, LOG_FOLDER_ALL_RANKS,
                                      filtered_files[which], &a->filtered_fd[which]));
    }
    return LS_OK;
}

void agent_close_filters(agent *a)
{
    file_close(&a->filtered_fd[0]);
    file_close(&a->filtered_fd[1]);
}

/* One text of the list, with ",," as a comma; gives what is behind it, NULL: nothing. */
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

/* The list is no longer than LINE_FILTER_MOST. */
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

static void write_line(agent_rank *r, int which)
{
    agent *a = r->agent;
    text_buf *line = &r->filtered[which];
    text_buf out = {0};

    if (matches(a->spec->filters[which], text_str(line))) {
        text_append(&out, "%s%s\n", r->filter_prefix, text_str(line));
        if (text_status(&out) == LS_OK &&
            file_write_all(a->filtered_fd[which], filtered_files[which], text_str(&out),
                           out.length) != LS_OK) {
            file_close(&a->filtered_fd[which]);
            agent_note(a, "%s; the job goes on without this file", ls_last_error());
        }
    }
    text_free(&out);
    text_free(line);
}

void agent_filter_output(agent_rank *r, int which, const char *bytes, size_t n)
{
    if (r->agent->filtered_fd[which] < 0 || !agent_is_teed(r, which))
        return;
    while (n > 0 && r->agent->filtered_fd[which] >= 0) {
        const char *end = memchr(bytes, '\n', n);
        const size_t taken = end != NULL ? (size_t)(end - bytes) : n;

        text_append_bytes(&r->filtered[which], bytes, taken);
        if (end != NULL || r->filtered[which].length >= OUTPUT_LINE_MOST)
            write_line(r, which);
        bytes += taken + (end != NULL);
        n -= taken + (end != NULL);
    }
}

void agent_end_filter(agent_rank *r, int which)
{
    if (r->filtered[which].length > 0 && r->agent->filtered_fd[which] >= 0)
        write_line(r, which);
    text_free(&r->filtered[which]);
}
