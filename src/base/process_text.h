/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_text.h - formats users and ages of processes.
 */
#ifndef LS_BASE_PROCESS_TEXT_H
#define LS_BASE_PROCESS_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* "42 s", "12 min", "3 h", "5 days" */
const char *process_age_text(char *buf, size_t n, int64_t seconds);

/* "bob", or "user 1001" for a uid without a name. */
const char *process_user_text(char *buf, size_t n, uid_t uid);

#endif
