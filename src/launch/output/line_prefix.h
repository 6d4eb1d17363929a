/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line_prefix.h - torchrun's template for the prefix of a rank's lines: "${hostname}:${rank}: " or
 * "[${role_name}${local_rank}]:".
 */
#ifndef LS_LAUNCH_OUTPUT_LINE_PREFIX_H
#define LS_LAUNCH_OUTPUT_LINE_PREFIX_H

#include <stddef.h>

#define LINE_PREFIX_BYTES   160
#define LINE_PREFIX_DEFAULT "[${role_name}${local_rank}]:"

typedef struct line_prefix_values {
    const char *role_name;
    const char *hostname;
    int rank;
    int local_rank;
} line_prefix_values;

/*
 * "$name" and "${name}" become the value, "$$" a dollar; anything else stays. Control characters
 * become '?'; the text is cut to n bytes. Returns buf.
 */
const char *line_prefix_make(const char *template, const line_prefix_values *values, char *buf,
                             size_t n);

#endif
