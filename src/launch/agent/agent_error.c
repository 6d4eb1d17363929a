/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_error.c - the error that this launcher leaves for its own starter when the job has failed,
 * in the file of agent_spec.error_path: that of the first failed rank if it ran here and wrote one,
 * otherwise the report. It has the form that torchrun writes there.
 */
#include "launch/agent/agent.h"

#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

/* Of the rank that the report of this node is about; a later start of the job has another one. */
void agent_keep_error(agent *a, const agent_rank *r)
{
    int fd = -1;

    text_free(&a->root_error);
    if (a->spec->error_path == NULL || agent_open_error(r, &fd) != LS_OK)
        return;
    if (error_file_copy(fd, agent_exit_code(r), &a->root_error) != LS_OK)
        text_free(&a->root_error); /* the report has what was wrong with it */
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
    char kept[LS_ERROR_BYTES];
    const char *report = status == LS_OK ? text_str(&a->result->report) : kept;
    const int code = status == LS_OK ? a->result->exit_code : 1;

    if (a->spec->error_path == NULL || (status == LS_OK && !a->result->failed))
        return;
    ls_error_save(kept);
    if (a->root_error.length == 0)
        error_file_make_text(report, code, (int64_t)time(NULL), &a->root_error);
    if (text_status(&a->root_error) != LS_OK ||
        write_file(a->spec->error_path, &a->root_error) != LS_OK)
        ls_log(LS_LOG_WARN, "launch", "TORCHELASTIC_ERROR_FILE: %s", ls_last_error());
    ls_error_restore(kept);
}
