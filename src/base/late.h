/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late.h - when a wait has become so long that a line in the log names what is missing: after the
 * given time, then after twice as long, and so on. A process that was stopped (Ctrl-Z) meanwhile
 * begins to wait anew.
 */
#ifndef LS_BASE_LATE_H
#define LS_BASE_LATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct late_notice {
    int64_t since_ms;
    int64_t next_ms; /* when the next line is due */
} late_notice;

/* LOCKSTEP_LATE_MS; its default where the setting is unreadable. */
int64_t late_setting_ms(void);

/* A wait begins now; the first line is due after so long. */
late_notice late_begin(int64_t after_ms);

/* Whether a line is due; then the next one is due when the wait has become twice as long. */
bool late_is_due(late_notice *n);

/* How long to wait at most (ls_deadline_ms): the earlier of the deadline and the next line. */
int64_t late_deadline_ms(const late_notice *n, int64_t deadline_ms);

double late_seconds(const late_notice *n); /* since the beginning */

#endif
