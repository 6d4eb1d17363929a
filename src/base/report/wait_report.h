/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait_report.h - decides when a long wait is reported in the log: after the given time, then after
 * twice as long, and so on. After a stop of the process (Ctrl-Z) the wait counts from its
 * continuation.
 */
#ifndef LS_BASE_REPORT_WAIT_REPORT_H
#define LS_BASE_REPORT_WAIT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct wait_report {
    int64_t since_ms;
    int64_t next_ms; /* when the next report is due */
} wait_report;

/* LOCKSTEP_LATE_MS; the default when the setting is invalid. */
int64_t wait_report_setting_ms(void);

/* Starts a wait; the first report is due after after_ms. */
wait_report wait_report_begin(int64_t after_ms);

/* Whether a report is due; the next one is due when the wait has become twice as long. */
bool wait_report_is_due(wait_report *n);

/* The earlier of the deadline (ls_deadline_ms) and the next report. */
int64_t wait_report_deadline_ms(const wait_report *n, int64_t deadline_ms);

double wait_report_seconds(const wait_report *n); /* since the start of the wait */

#endif
