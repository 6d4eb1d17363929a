/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_report.c - arbitrary bytes as files of --metrics, and the page of those that are read: it
 * ends, is printable, and has no number that SVG does not know. The byte 0x1e separates two files.
 */
#include "fuzz/fuzz.h"

#include "cli/report/report.h"

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static bool read_file(const uint8_t *data, size_t size, report_run *out)
{
    fuzz_file f;
    ls_status st;

    fuzz_file_open(&f, data, size);
    st = report_read(f.path, out);
    fuzz_file_close(&f);
    must(st == LS_OK || (out->points == NULL && ls_last_error()[0] != 0));
    return st == LS_OK;
}

/* Texts of a run have no bare quotes in the page, so these are attributes. */
static void check_page(const char *page)
{
    static const char *const wrong[] = {"=\"nan", "=\"-nan", "=\"inf", "=\"-inf"};

    fuzz_must_be_printable(page, "\n");
    for (size_t i = 0; i < LS_COUNT_OF(wrong); i++)
        must(strstr(page, wrong[i]) == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static report_run runs[2];
    const uint8_t *mark = size > 0 ? memchr(data, 0x1e, size) : NULL;
    const size_t first = mark != NULL ? (size_t)(mark - data) : size;
    text_buf page = {0};
    int n = 0;

    n += read_file(data, first, &runs[n]);
    if (mark != NULL)
        n += read_file(mark + 1, size - first - 1, &runs[n]);
    if (n > 0) {
        report_page(runs, n, &page);
        must(text_status(&page) == LS_OK);
        check_page(text_str(&page));
    }
    text_free(&page);
    for (int i = 0; i < n; i++)
        report_free(&runs[i]);
    return 0;
}
