/* SPDX-License-Identifier: Apache-2.0 */
/* html_report.h - the page of --metrics-html. */
#ifndef LS_TRAIN_HTML_REPORT_H
#define LS_TRAIN_HTML_REPORT_H

#include <lockstep/train.h>

#include "train/history.h"
#include "train/values.h"

typedef struct html_report {
    const ls_train_flags *flags;
    const ls_run_state *state;
    const run_values *values;
    const history *history;
    const char *device; /* its fingerprint */
    int ranks;
    int64_t epochs;  /* that are complete */
    int64_t seconds; /* since the start of this process's run */
} html_report;

/* Replaces the file of --metrics-html. */
LS_MUST_USE ls_status html_report_write(const html_report *r);

#endif
