/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process_text.h - leftovers in words.
 */
#ifndef LS_LAUNCH_PROCESS_TEXT_H
#define LS_LAUNCH_PROCESS_TEXT_H

#include "base/process_text.h"
#include "launch/process/leftover.h"

/* "pid 4711 (python3), 3 h old, of job 0123456789abcdef" */
const char *process_leftover_text(char *buf, size_t n, const leftover *what);

#endif
