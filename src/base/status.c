/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - the thread's error text, in a fixed per-thread buffer, so that "no memory" needs none.
 * Every failing function sets it through ls_fail().
 */
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local char error_text[LS_ERROR_BYTES];
static _Thread_local char errno_text[128];

const char *ls_last_error(void)
{
    return error_text;
}

static const struct {
    ls_status status;
    const char *text;
} status_texts[] = {
    {LS_OK, "no error"},
    {LS_EINVAL, "invalid argument"},
    {LS_ENOMEM, "out of memory"},
    {LS_ENOTFOUND, "not found"},
    {LS_EIO, "input or output failed"},
    {LS_EFORMAT, "bad format"},
    {LS_EUNSUPPORTED, "not supported"},
    {LS_ETIMEOUT, "timed out"},
    {LS_ESYSTEM, "refused by the operating system"},
    {LS_EMISMATCH, "ranks disagree about an operation"},
    {LS_EPEER, "peer lost"},
    {LS_EDEADLINE, "operation timed out"},
    {LS_ECANCELED, "canceled"},
    {LS_EAUTH, "not authenticated"},
    {LS_EPROTO, "protocol error"},
    {LS_EINTERNAL, "internal error"},
};

const char *ls_status_text(ls_status status)
{
    for (size_t i = 0; i < LS_COUNT_OF(status_texts); i++)
        if (status_texts[i].status == status)
            return status_texts[i].text;
    return "unknown status";
}

/* Ends a cut text in "...", without half of a UTF-8 character before it. */
static void mark_cut(char *text, size_t capacity)
{
    size_t end = capacity - 4;

    while (end > 0 && ((unsigned char)text[end] & 0xC0U) == 0x80U)
        end--;
    memcpy(text + end, "...", 4);
}

static void set_text(const char *format, va_list args) LS_PRINTF(1, 0);

/* Formats beside the old text: an argument may be ls_last_error() itself. */
static void set_text(const char *format, va_list args)
{
    char made[LS_ERROR_BYTES];
    const int length = vsnprintf(made, sizeof(made), format, args);

    if (length < 0) {
        error_text[0] = '\0';
        return;
    }
    if ((size_t)length >= sizeof(made))
        mark_cut(made, sizeof(made));
    memcpy(error_text, made, strlen(made) + 1);
}

ls_status ls_vfail(ls_status status, const char *format, va_list args)
{
    const int saved = errno;

    LS_ASSERT(status != LS_OK);
    set_text(format, args);
    errno = saved;
    return status;
}

// In parentheses, because the analyzer sees macros of these names.
ls_status(ls_fail)(ls_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)ls_vfail(status, format, args);
    va_end(args);
    return status;
}

ls_status ls_set_error(ls_status status, const char *format, ...)
{
    va_list args;

    LS_TRY(LS_GIVEN(format));
    if (status == LS_OK)
        return ls_fail(LS_EINVAL, "ls_set_error: LS_OK is not an error");
    va_start(args, format);
    (void)ls_vfail(status, format, args);
    va_end(args);
    return status;
}

/* Appends `sep` and `tail` to error_text; the tail is cut when both do not fit. */
static void append_text(const char *sep, const char *tail)
{
    const size_t used = strlen(error_text);
    const size_t capacity = sizeof(error_text) - used;
    const int length = snprintf(error_text + used, capacity, "%s%s", sep, tail);

    if (length >= 0 && (size_t)length >= capacity)
        mark_cut(error_text, sizeof(error_text));
}

ls_status ls_context(ls_status status, const char *format, ...)
{
    char old[LS_ERROR_BYTES];
    const int saved = errno;
    va_list args;

    if (status == LS_OK)
        return status;
    memcpy(old, error_text, sizeof(old));
    va_start(args, format);
    set_text(format, args);
    va_end(args);
    append_text(": ", old);
    errno = saved;
    return status;
}

ls_status(ls_fail_errno)(const char *format, ...)
{
    const int error = errno;
    va_list args;

    va_start(args, format);
    set_text(format, args);
    va_end(args);
    append_text(": ", ls_errno_text(error));
    errno = error;
    return LS_ESYSTEM;
}

void ls_error_save(char *saved)
{
    memcpy(saved, error_text, LS_ERROR_BYTES);
}

void ls_error_restore(const char *saved)
{
    memcpy(error_text, saved, strlen(saved) + 1);
}

ls_status ls_error_of_program(const char *saved, ls_status status, const char *what)
{
    if (status == LS_OK || strcmp(saved, error_text) != 0)
        return status;
    return ls_fail(status, "the %s function returned %d (%s)", what, (int)status,
                   ls_status_text(status));
}

/* The system's text, in English where its C library can; NULL for an unknown number. */
static const char *system_text(int error)
{
#if __GLIBC_PREREQ(2, 32)
    return strerrordesc_np(error);
#else
    return strerror_r(error, errno_text, sizeof(errno_text));
#endif
}

const char *ls_errno_text(int error)
{
    const char *known = system_text(error);

    if (known != NULL)
        return known;
    (void)snprintf(errno_text, sizeof(errno_text), "error %d", error);
    return errno_text;
}

void ls_assert_failed(const char *expr, const char *file, int line)
{
    char text[512];
    int length =
        snprintf(text, sizeof(text), "lockstep: %s:%d: broken invariant: %s\n", file, line, expr);

    if (length >= (int)sizeof(text)) {
        length = (int)sizeof(text) - 1;
        text[length - 1] = '\n';
    }
    if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0) {
        // no other way to report is left
    }
    abort();
}
