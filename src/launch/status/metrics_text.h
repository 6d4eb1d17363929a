/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_text.h - the status of a job in the text format of Prometheus, version 0.0.4. The names
 * are listed in docs/watching.md.
 */
#ifndef LS_LAUNCH_STATUS_METRICS_TEXT_H
#define LS_LAUNCH_STATUS_METRICS_TEXT_H

#include "launch/status/job_status.h"

void metrics_text(const job_status *v, text_buf *out);

#endif
