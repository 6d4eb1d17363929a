/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h - the calls of a group, which the hub compares for backends that do not. */
#ifndef LS_COMM_RECORD_CALLS_H
#define LS_COMM_RECORD_CALLS_H

#include "hub/control.h"

typedef struct call_log call_log;

/* Freed with ls_free(). */
LS_MUST_USE ls_status calls_create(call_log **out);

/* Records a collective that starts. */
void calls_note(call_log *log, const op_stamp *stamp);

/* When the next report is due; INT64_MAX: there is nothing to report. */
int64_t calls_next_ns(const call_log *log);

/* Reports to the hub now. c NULL: there is none (any more). */
void calls_send(call_log *log, control *c, int64_t now_ns);

#endif
