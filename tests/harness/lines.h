/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lines.h - captures the standard error of all processes of a test in shared memory, so that a test
 * waits for a line and not for a time.
 */
#ifndef TESTS_HARNESS_LINES_H
#define TESTS_HARNESS_LINES_H

#include <stdbool.h>

/* A descriptor that forked processes share; -1 on failure. */
int lines_create(void);

/* Redirects this process's standard error there. Returns the old descriptor, for dup2(). */
int lines_take_stderr(int lines);

bool lines_have(int lines, const char *part);

void lines_print(int lines); /* to standard error */

/* Waits until the text has been written; false after a minute. */
bool lines_await(int lines, const char *part);

#endif
