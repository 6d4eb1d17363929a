/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h - makes and passes on errors.
 *
 * The first function that knows the cause calls ls_fail(); callers may prepend context with
 * ls_context(); an error that is returned is not logged.
 *
 * base/: what every other folder uses: errors, memory, text, log, settings, files, threads. All
 * headers are open to all.
 */
#ifndef LS_BASE_STATUS_H
#define LS_BASE_STATUS_H

#include <lockstep/base.h>

#include <stdarg.h>

#define LS_ERROR_BYTES 1024 /* longest error text, terminator included; longer ones end in "..." */

/* Sets this thread's error text and returns `status`, which must not be LS_OK. */
ls_status ls_fail(ls_status status, const char *format, ...) LS_PRINTF(2, 3);
ls_status ls_vfail(ls_status status, const char *format, va_list args) LS_PRINTF(2, 0);

/* Prepends "text: " to this thread's error text; LS_OK passes through unchanged. */
ls_status ls_context(ls_status status, const char *format, ...) LS_PRINTF(2, 3);

/* ls_fail(LS_ESYSTEM) with ": strerror(errno)" appended; errno is read before anything else. */
ls_status ls_fail_errno(const char *format, ...) LS_PRINTF(1, 2);

/* For a call that tries something and continues after a failure: preserves the caller's error text.
 * `saved` has LS_ERROR_BYTES bytes; "" clears the text. */
void ls_error_save(char *saved);
void ls_error_restore(const char *saved);

/* The result of a function of the program, before whose call the text was saved: `status`, with a
 * text that names the function as `what` ("get", "read of sample 7") if the function has set
 * none. */
ls_status ls_error_of_program(const char *saved, ls_status status, const char *what);

/* strerror() without a shared buffer: the text is in a per-thread buffer until the next call. */
const char *ls_errno_text(int error);

/* LS_EINVAL with the names of this (public) function and of its argument when that is NULL; for
 * LS_TRY(). */
#define LS_GIVEN(argument)                                                                         \
    ((argument) != NULL ? LS_OK : ls_fail(LS_EINVAL, "%s: %s is NULL", __func__, #argument))

/* For broken invariants of this library: prints the place and aborts. Never for input, files or
 * peers. */
void ls_assert_failed(const char *expr, const char *file, int line) __attribute__((noreturn));
#define LS_ASSERT(expr) ((expr) ? (void)0 : ls_assert_failed(#expr, __FILE__, __LINE__))

/* The analyzer does not see other files: shows it that a failure is never LS_OK. */
#ifdef __clang_analyzer__
#define ls_fail(status, ...)                                                                       \
    ((void)ls_fail(status, __VA_ARGS__), (status) == LS_OK ? LS_EINTERNAL : (status))
#define ls_fail_errno(...) ((void)ls_fail_errno(__VA_ARGS__), LS_ESYSTEM)
#endif

#define LS_UNUSED(x)       ((void)(x))
#define LS_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
