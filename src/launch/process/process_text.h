/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_text.h - processes of others in words.
 */
#ifndef LS_LAUNCH_PROCESS_TEXT_H
#define LS_LAUNCH_PROCESS_TEXT_H

#include "launch/process/leftover.h"

/* "42 s", "12 min", "3 h", "5 days" */
const char *process_age_text(char *buf, size_t n, int64_t seconds);

/* "bob", or "user 1001" where nobody knows the number. */
const char *process_user_text(char *buf, size_t n, uid_t uid);

/* "pid 4711 (python3), 3 h old, of job 0123456789abcdef" */
const char *process_leftover_text(char *buf, size_t n, const leftover *what);

#endif
