/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_clean.h - removes from a rank's line what could control the user's terminal. Pure.
 *
 * Printable characters and tabs pass; with `colours` also ESC [ ... m and ESC [ K (erase to the end
 * of the line). A backspace removes the character before it in the line. All other control
 * sequences are removed: cursor movement, titles, clipboard access, queries that the terminal would
 * answer as typed input. Bytes that are not UTF-8 become '?'.
 */
#ifndef LS_LAUNCH_OUTPUT_OUTPUT_CLEAN_H
#define LS_LAUNCH_OUTPUT_OUTPUT_CLEAN_H

#include <stdbool.h>
#include <stddef.h>

/* Works in place; returns the new length. */
size_t output_clean(char *line, size_t n, bool colours);

#endif
