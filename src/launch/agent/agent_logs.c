/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_logs.c - what is kept of the ranks' output outside of the console: files of their streams, written with the bytes as they
 * come, and the place where a rank leaves its error.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "base/file.h"
#include "launch/agent/error_file.h"

#include <fcntl.h>
#include <unistd.h>

static const char *const stream_files[] = {"stdout.log", "stderr.log"};
static const char error_name[] = "error.json";

static unsigned streams_in(const rank_list *list, int rank)
{
    return list == NULL ? RANK_STREAMS_NONE : rank_list_streams(list, rank);
}

static unsigned written_streams(const agent_spec *spec, int local_rank)
{
    return streams_in(spec->redirect, local_rank) | streams_in(spec->tee, local_rank);
}

static unsigned shown_streams(const agent_spec *spec, int local, int rank)
{
    unsigned shown = RANK_STREAMS_BOTH;

    if (spec->shown_local != NULL)
        shown &= rank_list_streams(spec->shown_local, local);
    if (spec->shown != NULL)
        shown &= rank_list_streams(spec->shown, rank);
    return shown & ~(streams_in(spec->redirect, local) & ~streams_in(spec->tee, local));
}

bool agent_shows(const agent_rank *r, int which)
{
    const int local = (int)(r - r->agent->ranks);

    return (shown_streams(r->agent->spec, local, r->rank) & (RANK_STDOUT << which)) != 0;
}

bool agent_shows_any(const agent_spec *spec, int local_rank, int rank)
{
    return shown_streams(spec, local_rank, rank) != RANK_STREAMS_NONE;
}

bool agent_is_teed(const agent_rank *r, int which)
{
    const int local = (int)(r - r->agent->ranks);

    return agent_shows(r, which) &&
           (streams_in(r->agent->spec->tee, local) & (RANK_STDOUT << which)) != 0;
}

static bool wants_folder(const agent_spec *spec)
{
    return spec->capture && (spec->log_dir != NULL ||
                             (spec->redirect != NULL && !rank_list_is_empty(spec->redirect)) ||
                             (spec->tee != NULL && !rank_list_is_empty(spec->tee)));
}

ls_status agent_open_logs(agent *a)
{
    const agent_spec *spec = a->spec;

    if (!wants_folder(spec))
        return LS_OK;
    const char *name = spec->run_id != NULL ? spec->run_id : a->place.job;
    const ls_status st = log_folder_create(spec->log_dir, name, &a->logs);

    if (spec->log_dir != NULL)
        return ls_context(st, "--log-dir");
    LS_TRY(st);
    agent_note(a, "what the ranks print is written below %s", a->logs.path);
    return LS_OK;
}

static ls_status open_files(agent_rank *r, int local)
{
    const agent *a = r->agent;

    LS_TRY(log_folder_add_rank(&a->logs, r->attempt, local));
    for (int which = 0; which < 2; which++)
        if ((written_streams(a->spec, local) & (RANK_STDOUT << which)) != 0)
            LS_TRY(log_folder_create_file(&a->logs, r->attempt, local, stream_files[which],
                                          &r->log_fd[which]));
    return LS_OK;
}

ls_status agent_open_rank_logs(agent_rank *r, char *error_path, size_t n)
{
    const agent *a = r->agent;
    const int local = (int)(r - a->ranks);

    if (a->spec->argv == NULL)
        return LS_OK; /* a function returns its error */
    if (a->logs.fd < 0)
        return error_file_make(&r->error_fd, error_path, n);
    LS_TRY(open_files(r, local));
    log_folder_path(&a->logs, r->attempt, local, error_name, error_path, n);
    return LS_OK;
}

void agent_close_rank_logs(agent_rank *r)
{
    file_close(&r->log_fd[0]);
    file_close(&r->log_fd[1]);
    file_close(&r->error_fd);
}

/* A full disk costs the rest of this file, not the job. */
void agent_write_log(agent_rank *r, int which, const char *bytes, size_t n)
{
    agent *a = r->agent;
    char path[sizeof(a->logs.path) + 64];

    if (r->log_fd[which] < 0)
        return;
    log_folder_path(&a->logs, r->attempt, (int)(r - a->ranks), stream_files[which], path,
                    sizeof(path));
    if (file_write_all(r->log_fd[which], path, bytes, n) == LS_OK)
        return;
    file_close(&r->log_fd[which]);
    if (!a->log_failed)
        agent_note(a, "%s; the job goes on without such files", ls_last_error());
    a->log_failed = true;
}

/* The descriptor is the caller's to close. */
ls_status agent_open_error(const agent_rank *r, int *fd)
{
    const agent *a = r->agent;

    if (a->logs.fd >= 0 && r->error_fd < 0)
        return log_folder_open_file(&a->logs, r->attempt, (int)(r - a->ranks), error_name, fd);
    if (r->error_fd < 0)
        return ls_fail(LS_ENOTFOUND, "rank %d has no error file", r->rank);
    *fd = fcntl(r->error_fd, F_DUPFD_CLOEXEC, 0);
    return *fd >= 0 ? LS_OK : ls_fail_errno("the error file of rank %d", r->rank);
}

ls_status agent_read_error(const agent_rank *r, error_report *out)
{
    int fd = -1;
    ls_status st;

    LS_TRY(agent_open_error(r, &fd));
    st = error_file_read(fd, out);
    file_close(&fd);
    return st;
}
