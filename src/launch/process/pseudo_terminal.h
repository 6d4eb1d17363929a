/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pseudo_terminal.h - terminals that ranks write to with --pty. They change nothing of what is written, and echo nothing: whoever types
 * does so at a terminal that does that itself. They control nobody: signals reach a rank by its shim.
 */
#ifndef LS_LAUNCH_PSEUDO_TERMINAL_H
#define LS_LAUNCH_PSEUDO_TERMINAL_H

#include "base/status.h"

#include <stdbool.h>

#define PTY_END_OF_FILE                                                                            \
    0x04 /* written to ours, it ends the line that is begun, or with none the file */

typedef struct pty_size {
    int rows;
    int columns;
} pty_size;

/* Both ends CLOEXEC, ours nonblocking. What is left when the program's end is closed everywhere can be read; then read() fails with EIO. */
LS_MUST_USE ls_status pty_open(pty_size size, int *ours, int *programs);

void pty_resize(int ours, pty_size size);

/* Of the terminal behind fd; false: there is none, or it does not say. */
bool pty_size_of(int fd, pty_size *out);

#endif
