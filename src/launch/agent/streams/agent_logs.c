/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_logs.c - the log files of the ranks' streams, written with the bytes as they arrive, and
 * the error file of each rank. Called by agent_output.c and, for error files, by the report.
 */
#include "launch/agent/streams/agent_output.h"

#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

static const char *const stream_files[] = {"stdout.log", "stderr.log"};
static const char error_name[] = "error.json";

static unsigned shown_streams(const agent_spec *spec, int local, int rank)
{
    const job_spec *job = spec->job;

    return rank_list_streams(&job->shown_local, local) & rank_list_streams(&job->shown, rank) &
           ~(rank_list_streams(&job->redirect, local) & ~rank_list_streams(&job->tee, local));
}

bool agent_logs_shows(const rank_output *r, int which)
{
    return (shown_streams(r->owner->ctx->spec, r->local_rank, r->rank) & (RANK_STDOUT << which)) !=
           0;
}

bool agent_logs_shows_any(const agent_spec *spec, int local_rank, int rank)
{
    return shown_streams(spec, local_rank, rank) != RANK_STREAMS_NONE;
}

bool agent_logs_is_teed(const rank_output *r, int which)
{
    return agent_logs_shows(r, which) &&
           (rank_list_streams(&r->owner->ctx->spec->job->tee, r->local_rank) &
            (RANK_STDOUT << which)) != 0;
}

bool agent_logs_has_files(const agent_spec *spec)
{
    return spec->capture &&
           (spec->job->log_dir != NULL || !rank_list_is_empty(&spec->job->redirect) ||
            !rank_list_is_empty(&spec->job->tee));
}

ls_status agent_logs_open(agent_output *o)
{
    const agent_spec *spec = o->ctx->spec;
    const char *name = spec->job->run_id != NULL ? spec->job->run_id : o->ctx->place.job;

    if (!agent_logs_has_files(spec))
        return LS_OK;
    if (spec->job->log_dir != NULL)
        return ls_context(log_folder_create(spec->job->log_dir, name, &o->logs), "--log-dir");
    LS_TRY(log_folder_create(NULL, name, &o->logs));
    agent_note(o->ctx, "log files of the ranks: %s", o->logs.path);
    return LS_OK;
}

void agent_logs_close_rank(rank_output *r)
{
    file_close(&r->log_fd[0]);
    file_close(&r->log_fd[1]);
    file_close(&r->error_fd);
}

ls_status agent_logs_open_rank(rank_output *r, char *error_path, size_t n)
{
    const agent_spec *spec = r->owner->ctx->spec;
    const log_folder *logs = &r->owner->logs;
    const unsigned written = rank_list_streams(&spec->job->redirect, r->local_rank) |
                             rank_list_streams(&spec->job->tee, r->local_rank);

    if (spec->job->argv == NULL)
        return LS_OK;         /* a function returns its error */
    agent_logs_close_rank(r); /* of a process that could not be started */
    if (logs->fd < 0)
        return error_file_make(spec->job->isolate, &r->error_fd, error_path, n);
    LS_TRY(log_folder_add_rank(logs, r->attempt, r->local_rank));
    for (int which = 0; which < 2; which++)
        if ((written & (RANK_STDOUT << which)) != 0)
            LS_TRY(log_folder_create_file(logs, r->attempt, r->local_rank, stream_files[which],
                                          &r->log_fd[which]));
    log_folder_path(logs, r->attempt, r->local_rank, error_name, error_path, n);
    return LS_OK;
}

/* A full disk costs the rest of this file, not the job. */
void agent_logs_write(rank_output *r, int which, const char *bytes, size_t n)
{
    agent_output *o = r->owner;
    char path[sizeof(o->logs.path) + 64];

    if (r->log_fd[which] < 0)
        return;
    log_folder_path(&o->logs, r->attempt, r->local_rank, stream_files[which], path, sizeof(path));
    if (file_write_all(r->log_fd[which], path, bytes, n) == LS_OK)
        return;
    file_close(&r->log_fd[which]);
    if (!o->has_log_failed)
        agent_note(o->ctx, "%s; the job continues without this log file", ls_last_error());
    o->has_log_failed = true;
}

/* The caller closes the descriptor. */
ls_status agent_logs_open_error(const rank_output *r, int *fd)
{
    const log_folder *logs = &r->owner->logs;

    if (logs->fd >= 0 && r->error_fd < 0)
        return log_folder_open_file(logs, r->attempt, r->local_rank, error_name, fd);
    if (r->error_fd < 0)
        return ls_fail(LS_ENOTFOUND, "rank %d has no error file", r->rank);
    *fd = fcntl(r->error_fd, F_DUPFD_CLOEXEC, 0);
    return *fd >= 0 ? LS_OK : ls_fail_errno("the error file of rank %d", r->rank);
}

ls_status agent_logs_read_error(const rank_output *r, error_report *out)
{
    int fd = -1;
    ls_status st;

    LS_TRY(agent_logs_open_error(r, &fd));
    st = error_file_read(fd, out);
    file_close(&fd);
    return st;
}

void agent_logs_append_folder(const rank_output *r, text_buf *out)
{
    const log_folder *logs = &r->owner->logs;
    char path[sizeof(logs->path) + 64];

    if (logs->fd >= 0)
        text_append(out, "  its log files: %s\n",
                    log_folder_path(logs, r->attempt, r->local_rank, NULL, path, sizeof(path)));
}
