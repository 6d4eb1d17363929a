/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lines.h - what the processes of a test write to standard error, in memory that all of them read:
 * so a test waits for a line and not for a time.
 */
#ifndef TESTS_HARNESS_LINES_H
#define TESTS_HARNESS_LINES_H

#include <stdbool.h>

/* A descriptor that forked processes share; -1: none. */
int lines_create(void);

/* What this process writes to standard error goes there from now on. Gives the old one, for
 * dup2(). */
int lines_take_stderr(int lines);

bool lines_have(int lines, const char *part);

void lines_print(int lines); /* to standard error */

/* Waits until it has been written; false after a minute. */
bool lines_await(int lines, const char *part);

#endif
