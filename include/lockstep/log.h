/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - log lines on standard error: time, level letter, rank, component, text.
 *
 * The level comes from LOCKSTEP_LOG ("info", or "warn,comm=debug"); the default is warn. The
 * library does not log errors that a call returns: the caller decides.
 *
 * Threads    All functions may be called from any thread; a line is written with one write().
 */
#ifndef LOCKSTEP_LOG_H
#define LOCKSTEP_LOG_H

#include <lockstep/base.h>

LS_BEGIN_DECLS

typedef enum ls_log_level {
    LS_LOG_ERROR = 0, /* cannot continue */
    LS_LOG_WARN = 1,  /* unexpected, continues */
    LS_LOG_INFO = 2,  /* a few lines per run */
    LS_LOG_DEBUG = 3, /* a few per connection */
    LS_LOG_TRACE = 4  /* a few per step */
} ls_log_level;

/* Writes one line when `component` is enabled at `level`. Lower case, no full stop at the end. */
LS_API void ls_log(ls_log_level level, const char *component, const char *format, ...)
    LS_PRINTF(3, 4);

/* Whether such a line would be written: to skip work that only the line needs. */
LS_API int ls_log_enabled(ls_log_level level, const char *component);

LS_END_DECLS

#endif
