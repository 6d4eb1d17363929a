/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_report.c - why the ranks of this node failed, in words: one root cause, and the lines about it.
 */
#include "launch/agent/agent.h"

#include "launch/agent/error_file.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>

/* When a rank that failed wrote its error; 0 when it wrote none, or a time outside of the job's life. */
static int64_t error_time(const agent_rank *r)
{
    error_report report = {0};
    int64_t at = 0;

    if (!r->ended || r->wait_status == 0)
        return 0;
    if (agent_read_error(r, &report) == LS_OK && report.timestamp_s >= r->agent->started_s &&
        report.timestamp_s <= (int64_t)time(NULL))
        at = report.timestamp_s;
    error_report_free(&report);
    return at;
}

/* A rank whose connection broke may exit before the rank that broke it. As torchrun, we believe the
 * earliest of their error files. */
static agent_rank *find_earliest(const agent *a, agent_rank *seen)
{
    int64_t first = error_time(seen);
    agent_rank *root = seen;

    for (int i = 0; i < a->spec->n_ranks && first > 0; i++) {
        const int64_t at = error_time(&a->ranks[i]);
        if (at > 0 && at < first) {
            first = at;
            root = &a->ranks[i];
        }
    }
    return root;
}

/* A crash is its own cause. Other failures are consequences of an abort, by a rank that failed. */
static agent_rank *find_root(const agent *a)
{
    agent_rank *seen = &a->ranks[a->root];
    agent_rank *aborter = a->aborter >= 0 ? &a->ranks[a->aborter] : NULL;

    if (agent_has_crashed(seen))
        return seen;
    if (aborter != NULL && !agent_ended_well(aborter))
        return aborter;
    return WIFSIGNALED(seen->wait_status) ? seen : find_earliest(a, seen);
}

static void settle_root(agent *a)
{
    const agent_rank *seen = &a->ranks[a->root];
    agent_rank *root = find_root(a);
    const int number = (int)(root - a->ranks);
    const bool had_failed = root != seen || (number == a->aborter && root->was_stopped);

    a->root = number;
    root->was_stopped = false;
    if (!had_failed || !WIFSIGNALED(root->wait_status))
        return;
    /* It was still there when all were ended: that signal says nothing about it. */
    text_format(root->message, sizeof(root->message), "failed, and did not exit by itself");
    root->wait_status = W_EXITCODE(1, 0);
}

/* "  it says: first line", the others below it. */
static void append_message(const error_report *report, text_buf *out)
{
    const char *line = text_str(&report->message);
    const char *lead = "  it says: ";

    for (; *line != 0; line += strcspn(line, "\n") + 1) {
        text_append(out, "%s%.*s\n", lead, (int)strcspn(line, "\n"), line);
        lead = "  | ";
    }
}

static void append_stack(const error_report *report, text_buf *out)
{
    const char *line = text_str(&report->callstack);

    if (*line != 0)
        text_append(out, "  its call stack:\n");
    for (; *line != 0; line += strcspn(line, "\n") + 1)
        text_append(out, "  | %.*s\n", (int)strcspn(line, "\n"), line);
}

static void append_error(const agent_rank *r, text_buf *out)
{
    error_report report = {0};
    const ls_status st = agent_read_error(r, &report);

    if (st == LS_OK)
        append_message(&report, out);
    else if (st != LS_ENOTFOUND)
        text_append(out, "  its error file is not understood: %s\n", ls_last_error());
    if (st == LS_OK && r->kept.n == 0) /* Python prints the stack, too */
        append_stack(&report, out);
    error_report_free(&report);
}

static void append_folder(const agent_rank *r, text_buf *out)
{
    const agent *a = r->agent;
    char path[sizeof(a->logs.path) + 64];

    if (a->logs.fd >= 0)
        text_append(
            out, "  its files: %s\n",
            log_folder_path(&a->logs, r->attempt, (int)(r - a->ranks), NULL, path, sizeof(path)));
}

/* A rank that MPI or the hub has called failed is so however it ended. */
void agent_count_ends(const agent *a, node_end *end)
{
    for (int i = 0; i < a->spec->n_ranks; i++) {
        const agent_rank *r = &a->ranks[i];

        if (!r->ended || agent_ended_well(r))
            continue;
        end->n_stopped += r->was_stopped && r->failed_code == 0;
        end->n_failed += !r->was_stopped || r->failed_code != 0;
    }
}

void agent_make_report(agent *a, node_end *end, text_buf *details)
{
    const agent_rank *r;

    settle_root(a);
    r = &a->ranks[a->root];
    end->local_rank = a->root;
    end->exit_code = agent_exit_code(r);
    end->crashed = WIFSIGNALED(r->wait_status);
    end->error_s = end->crashed ? 0 : error_time(r);
    append_error(r, details);
    agent_keep_error(a, r);
    if (!output_recent_is_visible(&r->kept, a->n_console)) {
        text_append(details, "  its last lines:\n");
        output_append_recent(&r->kept, OUTPUT_RECENT, details);
    }
    append_folder(r, details);
    if (a->spec->describe_ring != NULL && r->ring_fd >= 0)
        a->spec->describe_ring(r->ring_fd, details);
}
