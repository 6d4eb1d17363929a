/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - the library's side of <lockstep/log.h>: the rank in log lines, and the rate limit. */
#ifndef LS_BASE_LOG_H
#define LS_BASE_LOG_H

#include <lockstep/log.h>

#include <stdbool.h>

/* Adds "rank3/8" to this process's lines; size 0 removes it. Thread-safe. */
void log_set_rank(int rank, int size);

/* The rank that was set last; 0 without one. Thread-safe. */
int log_rank(void);

/* A progress bar stands on standard error, without an end of line: the next line of this process
 * erases it first. Returns whether there was one. Thread-safe. */
bool log_set_bar(bool is_shown);

/* Parses the grammar of LOCKSTEP_LOG ("info", "warn,comm=debug"); LS_EINVAL names the invalid
 * part. */
LS_MUST_USE ls_status log_configure(const char *spec);

/* Calls fn with the text of each line of this process at level warn and error, without its head,
 * from the thread that logs: fn must not log or block. Of lines at the same time one is passed. One
 * observer at a time; the last one set counts. NULL, arg: none, if `arg` was the last one; it is
 * not called any more when this returns. Thread-safe. */
void log_observe(void (*fn)(void *arg, const char *text), void *arg);

/* True once per interval_ms for this *last_ms (zero-initialised, owned by the call site). */
bool log_every(int64_t *last_ms, int64_t interval_ms);

#endif
