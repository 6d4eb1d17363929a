/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_clean.h - what of a rank's line a terminal may see. Pure.
 *
 * Let through are printable characters, tabs, and with `colours` ESC [ ... m and the erasing of the rest of the line. A backspace takes the character
 * before it away, as far as the line goes. All else that a terminal would obey is left out: moving about, titles, clipboards, questions whose
 * answers would be typed. What is no character becomes '?'.
 */
#ifndef LS_LAUNCH_OUTPUT_CLEAN_H
#define LS_LAUNCH_OUTPUT_CLEAN_H

#include <stdbool.h>
#include <stddef.h>

/* In its place; gives the length that is left. */
size_t output_clean(char *line, size_t n, bool colours);

#endif
