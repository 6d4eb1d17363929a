/* SPDX-License-Identifier: Apache-2.0 */
/* help_end.h - how the help of a command ends. */
#ifndef LS_CLI_HELP_END_H
#define LS_CLI_HELP_END_H

#include "base/text.h"

/* Appends an example of the program ("lockstep top", "all_reduce_perf"), and the page about it;
 * nothing for others. */
void help_end_append(const char *program, text_buf *out);

#endif
