/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error_file.c - reads and writes the error files of torchrun. The input is not trusted: its size
 * is bounded, and its texts are made printable. Called by the agent when a rank has failed.
 */
#include "launch/output/error_file.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/report/json.h"
#include "host/memory_file.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINES_MOST = 20, LINE_MOST = 400 };

static const char source[] = "the error file";

static ls_status read_whole(int fd, char **out, size_t *bytes)
{
    struct stat facts;
    ls_status st;

    if (fstat(fd, &facts) != 0)
        return ls_fail_errno("examining the error file");
    if (!S_ISREG(facts.st_mode))
        return ls_fail(LS_EFORMAT, "the error file is not a regular file");
    if (facts.st_size > ERROR_FILE_MOST)
        return ls_fail(LS_EFORMAT, "the error file has more than the %d bytes that are read",
                       ERROR_FILE_MOST);
    if (facts.st_size == 0)
        return ls_fail(LS_ENOTFOUND, "the error file is empty");
    *bytes = (size_t)facts.st_size;
    LS_TRY(LS_NEW(out, *bytes, "for %zu bytes of an error file", *bytes));
    st = file_pread_all(fd, source, *out, *bytes, 0);
    if (st != LS_OK)
        ls_free(*out);
    return st;
}

/* --- texts of the rank --- */

static void append_line(text_buf *out, const char *line, size_t n)
{
    char raw[LINE_MOST];
    char shown[LINE_MOST];

    text_format(raw, sizeof(raw), "%.*s", (int)(n < LINE_MOST ? n : LINE_MOST - 1), line);
    for (char *c = raw; *c != 0; c++)
        if (*c == '\t')
            *c = ' ';
    text_printable(shown, sizeof(shown), raw);
    text_append(out, "%s\n", shown);
}

/* The first `most` lines, without the empty ones at the end. */
static void append_lines(text_buf *out, const char *text, int most)
{
    size_t left = strlen(text);

    while (left > 0 && text[left - 1] == '\n')
        left--;
    for (int i = 0; i < most && left > 0; i++) {
        const char *end = memchr(text, '\n', left);
        const size_t n = end == NULL ? left : (size_t)(end - text);

        append_line(out, text, n);
        text += n + (end != NULL);
        left -= n + (end != NULL);
    }
}

static const char *last_lines(const char *text, int most)
{
    const char *at = text + strlen(text);

    while (at > text && at[-1] == '\n')
        at--;
    for (int n = 0; at > text; at--)
        if (at[-1] == '\n' && ++n == most)
            break;
    return at;
}

/* --- the two forms --- */

/* A string in PyTorch 1.13 and 2.x; a number is accepted, too. */
static int64_t read_timestamp(const json_value *v)
{
    const char *text = json_as_string(v, NULL);
    int64_t seconds = json_as_int(v, 0);

    if (text != NULL && text_parse_int(text, "timestamp", 0, INT64_MAX, &seconds) != LS_OK)
        return 0;
    return seconds > 0 ? seconds : 0;
}

static ls_status take(const json_value *root, error_report *out)
{
    const json_value *message = json_get(root, "message");
    const json_value *extra = json_get(message, "extraInfo");
    const bool is_bare = json_kind_of(message) == JSON_IS_STRING;
    const char *text = json_as_string(is_bare ? message : json_get(message, "message"), NULL);

    if (text == NULL)
        return ls_fail(LS_EFORMAT, "the error file has no message");
    append_lines(&out->message, text, LINES_MOST);
    append_lines(&out->callstack,
                 last_lines(json_as_string(json_get(extra, "py_callstack"), ""), LINES_MOST),
                 LINES_MOST);
    out->timestamp_s =
        read_timestamp(is_bare ? json_get(root, "timestamp") : json_get(extra, "timestamp"));
    return LS_OK;
}

static ls_status parse_file(int fd, json_value **root)
{
    char *text = NULL;
    size_t bytes = 0;
    ls_status st;

    LS_TRY(read_whole(fd, &text, &bytes));
    st = json_parse(text, bytes, source, root);
    ls_free(text);
    return st;
}

ls_status error_file_read(int fd, error_report *out)
{
    json_value *root = NULL;
    ls_status st;

    LS_TRY(parse_file(fd, &root));
    st = take(root, out);
    json_free(root);
    return st;
}

/* --- for the process that started the launcher --- */

/* The exit code of a killed rank is 128 plus the signal. torchrun writes the negative signal. */
static void put_code(json_writer *w, int exit_code)
{
    json_put_int(w, "errorCode", exit_code > 128 ? 128 - exit_code : exit_code);
}

static void copy_message(json_writer *w, const json_value *message, int exit_code)
{
    void *cursor = NULL;
    const char *key;
    json_value *member;

    json_open(w, "message", '{');
    while (json_next(message, &cursor, &key, &member))
        if (!text_equal(key, "errorCode"))
            json_put_value(w, key, member);
    put_code(w, exit_code);
    json_close(w, '}');
}

static void copy_root(const json_value *root, int exit_code, text_buf *out)
{
    void *cursor = NULL;
    const char *key;
    json_value *member;
    json_writer w;

    json_begin(&w, out);
    json_open(&w, NULL, '{');
    while (json_next(root, &cursor, &key, &member)) {
        if (text_equal(key, "message") && json_kind_of(member) == JSON_IS_OBJECT)
            copy_message(&w, member, exit_code);
        else
            json_put_value(&w, key, member);
    }
    json_close(&w, '}');
}

ls_status error_file_copy(int fd, int exit_code, text_buf *out)
{
    json_value *root = NULL;
    ls_status st;

    LS_TRY(parse_file(fd, &root));
    if (json_get(root, "message") != NULL) {
        copy_root(root, exit_code, out);
        st = text_status(out);
    } else {
        st = ls_fail(LS_EFORMAT, "the error file has no message");
    }
    json_free(root);
    return st;
}

void error_file_make_text(const char *report, int exit_code, int64_t timestamp_s, text_buf *out)
{
    char first[LINE_MOST];
    char seconds[32];
    json_writer w;

    text_format(first, sizeof(first), "%.*s", (int)strcspn(report, "\n"), report);
    text_format(seconds, sizeof(seconds), "%lld", (long long)timestamp_s);
    json_begin(&w, out);
    json_open(&w, NULL, '{');
    json_open(&w, "message", '{');
    json_put_string(&w, "message", first);
    json_open(&w, "extraInfo", '{');
    json_put_string(&w, "py_callstack", report);
    json_put_string(&w, "timestamp", seconds);
    json_close(&w, '}');
    put_code(&w, exit_code);
    json_close(&w, '}');
    json_close(&w, '}');
}

void error_report_free(error_report *r)
{
    text_free(&r->message);
    text_free(&r->callstack);
}

ls_status error_file_make(bool is_inherited, int *fd, char *path, size_t n)
{
    char owner[16] = "self";

    LS_TRY(ls_context(memory_file_make("lockstep-error", 0, fd), "a file for a rank's error"));
    if (!is_inherited)
        text_format(owner, sizeof(owner), "%d", (int)getpid());
    text_format(path, n, "/proc/%s/fd/%d", owner, *fd);
    return LS_OK;
}
