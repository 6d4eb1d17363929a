/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.h - what a group has called, for backends whose transfers do not show that ranks disagree:
 * the hub compares it.
 */
#ifndef LS_COMM_CALLS_H
#define LS_COMM_CALLS_H

#include "store/control.h"

typedef struct call_log call_log;

/* Freed with ls_free(). */
LS_MUST_USE ls_status calls_create(call_log **out);

/* A collective begins. */
void calls_note(call_log *log, const op_stamp *stamp);

/* When there is something to tell; INT64_MAX: nothing. */
int64_t calls_next_ns(const call_log *log);

/* Tells the hub now. NULL: there is none (any more). */
void calls_tell(call_log *log, control *c, int64_t now_ns);

#endif
