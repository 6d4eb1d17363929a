/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_error.c - writes the error of a failed job for the process that started this launcher, to
 * the file agent_spec.error_path in torchrun's form: the error file of the first failed rank if it
 * ran here and wrote one, otherwise the report. Called when ranks have failed, and at the end.
 */
#include "launch/agent/agent.h"

#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

/* A later generation replaces it. */
void agent_save_error(agent *a, const agent_rank *r)
{
    int fd = -1;

    text_free(&a->root_error);
    if (a->ctx.spec->error_path == NULL ||
        agent_logs_open_error(&a->output.ranks[agent_local_rank(r)], &fd) != LS_OK)
        return;
    if (error_file_copy(fd, agent_exit_code(r), &a->root_error) != LS_OK)
        text_free(&a->root_error); /* the report names the error */
    file_close(&fd);
}

static ls_status write_file(const char *path, const text_buf *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
    ls_status st;

    if (fd < 0)
        return ls_fail(LS_EIO, "cannot write %s: %s", path, ls_errno_text(errno));
    st = file_write_all(fd, path, text_str(text), text->length);
    file_close(&fd);
    return st;
}

void agent_write_error(agent *a, ls_status status)
{
    char saved[LS_ERROR_BYTES];
    const char *report = status == LS_OK ? text_str(&a->result->report) : saved;
    const int code = status == LS_OK ? a->result->exit_code : 1;

    if (a->ctx.spec->error_path == NULL || (status == LS_OK && !a->result->failed))
        return;
    ls_error_save(saved);
    if (a->root_error.length == 0)
        error_file_make_text(report, code, (int64_t)time(NULL), &a->root_error);
    if (text_status(&a->root_error) != LS_OK ||
        write_file(a->ctx.spec->error_path, &a->root_error) != LS_OK)
        ls_log(LS_LOG_WARN, "launch", "TORCHELASTIC_ERROR_FILE: %s", ls_last_error());
    ls_error_restore(saved);
}
