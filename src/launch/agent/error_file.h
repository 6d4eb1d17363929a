/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error_file.h - what a Python rank has written to TORCHELASTIC_ERROR_FILE before it died.
 *
 *     {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "...", "timestamp": "1795226013"}}}
 *     {"message": "boom", "timestamp": "1795226013"}
 *
 * The launcher leaves the same for its own starter (agent_error.c). A rank may write anything there: it is read up to a limit, and what is shown of it is printable.
 */
#ifndef LS_LAUNCH_ERROR_FILE_H
#define LS_LAUNCH_ERROR_FILE_H

#include "base/status.h"
#include "base/text.h"

#define ERROR_FILE_MOST (1 << 20) /* bytes */

/* Zero-initialise. Texts are lines without control characters, each ended by '\n'; the longest are cut. */
typedef struct error_report {
    text_buf message;    /* the first lines */
    text_buf callstack;  /* the last ones */
    int64_t timestamp_s; /* since 1970; 0: none */
} error_report;

/* Reads the whole file from its beginning. LS_ENOTFOUND: it is empty; LS_EFORMAT: it is something else. */
LS_MUST_USE ls_status error_file_read(int fd, error_report *out);
void error_report_free(error_report *r);

/*
 * Appends the whole file as JSON, with the exit code as torchrun gives it (negative: a signal) in
 * "errorCode" of a message that is an object. Fails as error_file_read() does.
 */
LS_MUST_USE ls_status error_file_copy(int fd, int exit_code, text_buf *out);

/* Appends such a file for a failure that no rank has described: its first line is the message. */
void error_file_make_text(const char *report, int exit_code, int64_t timestamp_s, text_buf *out);

/* A file in memory that a rank can open by a name as long as this process lives, so that nothing is left of it. *path is that
 * name. */
LS_MUST_USE ls_status error_file_make(int *fd, char *path, size_t n);

#endif
