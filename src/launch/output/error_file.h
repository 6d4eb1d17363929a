/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error_file.h - the error that a Python rank writes to TORCHELASTIC_ERROR_FILE before it exits.
 *
 *     {"message": {"message": "ValueError: boom",
 *                  "extraInfo": {"py_callstack": "...", "timestamp": "1795226013"}}}
 *     {"message": "boom", "timestamp": "1795226013"}
 *
 * The launcher writes the same form for the process that started it (agent_error.c). A rank may
 * write anything to the file: it is read up to a limit, and all texts shown are printable.
 */
#ifndef LS_LAUNCH_OUTPUT_ERROR_FILE_H
#define LS_LAUNCH_OUTPUT_ERROR_FILE_H

#include "base/status.h"
#include "base/text.h"

#define ERROR_FILE_MOST (1 << 20) /* bytes */

/*
 * Zero-initialise. Texts are lines without control characters, each ended by '\n', long ones cut.
 */
typedef struct error_report {
    text_buf message;    /* the first lines */
    text_buf callstack;  /* the last ones */
    int64_t timestamp_s; /* since 1970; 0: unknown */
} error_report;

/* Reads the whole file. LS_ENOTFOUND: it is empty; LS_EFORMAT: it has another form. */
LS_MUST_USE ls_status error_file_read(int fd, error_report *out);
void error_report_free(error_report *r);

/*
 * Appends the whole file as JSON, with the exit code as torchrun gives it (negative: a signal) in
 * "errorCode" of a message that is an object. Fails as error_file_read() does.
 */
LS_MUST_USE ls_status error_file_copy(int fd, int exit_code, text_buf *out);

/* Appends such a file for a failure without one: the first line of the report is the message. */
void error_file_make_text(const char *report, int exit_code, int64_t timestamp_s, text_buf *out);

/*
 * Creates a file in memory. A rank can open it at *path while this process lives; is_inherited:
 * while the rank has the same descriptor, in any namespace. Nothing of it remains in the file
 * system.
 */
LS_MUST_USE ls_status error_file_make(bool is_inherited, int *fd, char *path, size_t n);

#endif
