/* SPDX-License-Identifier: Apache-2.0 */
/* signal_list.h - lists of signals that ask a job to end, as text and as sets (bit i: signal i). */
#ifndef LS_BASE_SIGNAL_LIST_H
#define LS_BASE_SIGNAL_LIST_H

#include "base/status.h"

#include <stdbool.h>

/* Which signals the launcher of a rank passes on when they end the job; a list. */
#define SIGNAL_LIST_ENV "LOCKSTEP_STOP_SIGNALS"

/* SIGTERM, SIGINT, SIGHUP and SIGQUIT. */
uint64_t signal_list_default(void);
static inline bool signal_list_has(uint64_t set, int number)
{
    return number > 0 && number < 64 && (set >> number & 1) != 0;
}

/* "SIGTERM"; NULL: no list may have this signal. */
const char *signal_list_name(int number);
/* Parses "SIGTERM,INT"; `what` names the value in the error text. */
LS_MUST_USE ls_status signal_list_parse(const char *text, const char *what, uint64_t *out);
/* The names of a set, separated by commas. */
const char *signal_list_text(char *buf, size_t n, uint64_t set);

#endif
