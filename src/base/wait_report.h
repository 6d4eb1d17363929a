/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait_report.h - when a wait has become so long that a line in the log names what is missing: after the
 * given time, then after twice as long, and so on. A process that was stopped (Ctrl-Z) meanwhile
 * begins to wait anew.
 */
#ifndef LS_BASE_WAIT_REPORT_H
#define LS_BASE_WAIT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct wait_report {
    int64_t since_ms;
    int64_t next_ms; /* when the next line is due */
} wait_report;

/* LOCKSTEP_LATE_MS; its default where the setting is unreadable. */
int64_t wait_report_setting_ms(void);

/* A wait begins now; the first line is due after so long. */
wait_report wait_report_begin(int64_t after_ms);

/* Whether a line is due; then the next one is due when the wait has become twice as long. */
bool wait_report_is_due(wait_report *n);

/* How long to wait at most (ls_deadline_ms): the earlier of the deadline and the next line. */
int64_t wait_report_deadline_ms(const wait_report *n, int64_t deadline_ms);

double wait_report_seconds(const wait_report *n); /* since the beginning */

#endif
