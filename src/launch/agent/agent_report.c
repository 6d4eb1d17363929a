/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_report.c - why the ranks of this node failed: chooses one root rank and writes the lines of
 * the report about it. Called when all ranks of a generation have ended.
 */
#include "launch/agent/agent.h"

#include "launch/status/status_ring.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>

static const rank_output *output_of(const agent_rank *r)
{
    return &r->agent->output.ranks[agent_local_rank(r)];
}

/*
 * When a failed rank wrote its error; 0: it wrote none, or the time is outside of the job's life.
 */
static int64_t error_time(const agent_rank *r)
{
    error_report report = {0};
    int64_t at = 0;

    if (!r->ended || r->wait_status == 0)
        return 0;
    if (agent_logs_read_error(output_of(r), &report) == LS_OK &&
        report.timestamp_s >= r->agent->started_s && report.timestamp_s <= (int64_t)time(NULL))
        at = report.timestamp_s;
    error_report_free(&report);
    return at;
}

/*
 * A rank whose connection broke may exit before the rank that broke it. As with torchrun, the
 * earliest error file decides.
 */
static agent_rank *find_earliest(const agent *a, agent_rank *seen)
{
    int64_t first = error_time(seen);
    agent_rank *root = seen;

    for (int i = 0; i < a->ctx.spec->n_ranks && first > 0; i++) {
        const int64_t at = error_time(&a->ranks[i]);
        if (at > 0 && at < first) {
            first = at;
            root = &a->ranks[i];
        }
    }
    return root;
}

/* A crash is its own cause. Other failures are consequences of a failed rank's abort, if any. */
static agent_rank *find_root(const agent *a)
{
    agent_rank *seen = &a->ranks[a->root];
    agent_rank *aborter = a->aborter >= 0 ? &a->ranks[a->aborter] : NULL;

    if (agent_has_crashed(seen))
        return seen;
    if (aborter != NULL && !agent_ended_well(aborter))
        return aborter;
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the root is a rank
    return WIFSIGNALED(seen->wait_status) ? seen : find_earliest(a, seen);
}

static void decide_root(agent *a)
{
    const agent_rank *seen = &a->ranks[a->root];
    agent_rank *root = find_root(a);
    const int number = agent_local_rank(root);
    const bool had_failed = root != seen || (number == a->aborter && root->was_stopped);

    a->root = number;
    root->was_stopped = false;
    if (!had_failed || !WIFSIGNALED(root->wait_status))
        return;
    /* It was ended with the others, so the signal is not its failure. */
    text_format(root->message, sizeof(root->message), "failed, and did not exit by itself");
    root->wait_status = W_EXITCODE(1, 0);
}

/* "  its error: first line", the others below it. */
static void append_message(const error_report *report, text_buf *out)
{
    const char *line = text_str(&report->message);
    const char *lead = "  its error: ";

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
    const ls_status st = agent_logs_read_error(output_of(r), &report);

    if (st == LS_OK)
        append_message(&report, out);
    else if (st != LS_ENOTFOUND)
        text_append(out, "  its error file cannot be read: %s\n", ls_last_error());
    if (st == LS_OK && output_of(r)->recent.n == 0) /* else Python has printed the stack */
        append_stack(&report, out);
    error_report_free(&report);
}

/* A rank that has failed in MPI or in a collective counts as failed, however it ended. */
void agent_count_ends(const agent *a, node_end *end)
{
    for (int i = 0; i < a->ctx.spec->n_ranks; i++) {
        const agent_rank *r = &a->ranks[i];

        if (!r->ended || r->is_vacant)
            continue;
        if (agent_ended_well(r)) {
            end->n_well++;
            continue;
        }
        end->n_stopped += r->was_stopped && r->failed_code == 0;
        end->n_failed += !r->was_stopped || r->failed_code != 0;
    }
}

void agent_make_report(agent *a, node_end *end, text_buf *details)
{
    const agent_rank *r;

    decide_root(a);
    r = &a->ranks[a->root];
    end->local_rank = a->root;
    end->exit_code = agent_exit_code(r);
    end->crashed = WIFSIGNALED(r->wait_status);
    end->error_s = end->crashed ? 0 : error_time(r);
    append_error(r, details);
    agent_save_error(a, r);
    if (!output_recent_is_visible(&output_of(r)->recent, a->output.n_console)) {
        text_append(details, "  its last lines:\n");
        output_append_recent(&output_of(r)->recent, OUTPUT_RECENT, details);
    }
    agent_logs_append_folder(output_of(r), details);
    status_ring_describe(r->ring_fd, details);
}
