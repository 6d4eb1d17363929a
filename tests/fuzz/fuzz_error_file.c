/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_error_file.c - arbitrary content of the error file of a rank: the shown text is bounded and
 * harmless on a terminal.
 */
#include "fuzz/fuzz.h"

#include "launch/output/error_file.h"

#include <string.h>

enum { LINES_MOST = 20, LINE_MOST = 400 };

static void check_lines(const text_buf *t)
{
    const char *at = text_str(t);
    int n = 0;

    if (strlen(at) != t->length)
        __builtin_trap();
    for (; *at != 0; n++) {
        const size_t length = strcspn(at, "\n");

        if (at[length] != '\n' || length >= LINE_MOST)
            __builtin_trap();
        for (size_t i = 0; i < length; i++)
            if (at[i] < ' ' || at[i] > '~')
                __builtin_trap();
        at += length + 1;
    }
    if (n > LINES_MOST)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    error_report report = {0};
    fuzz_file file;

    fuzz_file_open(&file, data, size);
    if (error_file_read(file.fd, &report) != LS_OK && strlen(ls_last_error()) == 0)
        __builtin_trap();
    check_lines(&report.message);
    check_lines(&report.callstack);
    if (report.timestamp_s < 0)
        __builtin_trap();
    error_report_free(&report);
    fuzz_file_close(&file);
    return 0;
}
