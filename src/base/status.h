/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h - how errors are made and passed on (house words of base).
 *
 * The first function that knows the cause calls ls_fail(); callers may put context in front with
 * ls_context(); nobody logs an error that it returns.
 */
#ifndef LS_BASE_STATUS_H
#define LS_BASE_STATUS_H

#include <lockstep/base.h>

#include <stdarg.h>

#define LS_ERROR_BYTES 1024 /* longest error text with its terminator; longer ones end in "..." */

/* Makes this thread's error text and returns `status`. Must not be called with LS_OK. */
ls_status ls_fail(ls_status status, const char *format, ...) LS_PRINTF(2, 3);
ls_status ls_vfail(ls_status status, const char *format, va_list args) LS_PRINTF(2, 0);

/* Puts "text: " in front of this thread's error text; LS_OK passes through untouched. */
ls_status ls_context(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/* ls_fail(LS_ESYSTEM) with ": strerror(errno)" appended; errno is read before anything else. */
ls_status ls_fail_errno(const char *format, ...) LS_PRINTF(1, 2);

/* For a call that tries something and goes on when that fails: it must leave the caller's text as it
 * was. `kept` has LS_ERROR_BYTES bytes. */
void ls_error_save(char *kept);
void ls_error_restore(const char *kept);

/* strerror without a shared buffer: the text lives in a per-thread buffer until the next call. */
const char *ls_errno_text(int error);

/* The one macro with a hidden return: only where nothing needs undoing. */
#define LS_TRY(expr)                                                                               \
    do {                                                                                           \
        const ls_status st_try = (expr);                                                           \
        if (st_try != LS_OK)                                                                       \
            return st_try;                                                                         \
    } while (0)

/* LS_EINVAL with the names of this (public) function and of its argument when that is NULL: for
 * LS_TRY(). */
#define LS_GIVEN(argument)                                                                         \
    ((argument) != NULL ? LS_OK : ls_fail(LS_EINVAL, "%s: %s is NULL", __func__, #argument))

/* A broken invariant of our own code: says where and aborts. Never for input, files or peers. */
void ls_assert_failed(const char *expr, const char *file, int line) __attribute__((noreturn));
#define LS_ASSERT(expr) ((expr) ? (void)0 : ls_assert_failed(#expr, __FILE__, __LINE__))

/* The analyzer does not see into other files: tell it that a failure is never LS_OK. */
#ifdef __clang_analyzer__
#define ls_fail(status, ...)                                                                       \
    ((void)ls_fail(status, __VA_ARGS__), (status) == LS_OK ? LS_EINTERNAL : (status))
#define ls_fail_errno(...) ((void)ls_fail_errno(__VA_ARGS__), LS_ESYSTEM)
#endif

#define LS_UNUSED(x)       ((void)(x))
#define LS_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
