/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pseudo_terminal.h - terminals for the output of ranks (--pty). They change no byte and echo
 * nothing, because the user's own terminal echoes. They are no controlling terminals: signals reach
 * a rank through its shim.
 */
#ifndef LS_HOST_PSEUDO_TERMINAL_H
#define LS_HOST_PSEUDO_TERMINAL_H

#include "base/status.h"

#include <stdbool.h>

/* Written to the agent's end: completes a begun line, or at its start means end of file. */
#define PTY_END_OF_FILE 0x04

typedef struct pty_size {
    int rows;
    int columns;
} pty_size;

/*
 * Opens both ends, CLOEXEC, the agent's nonblocking. After the last close of the program's end the
 * rest of the output can be read; then read() fails with EIO.
 */
LS_MUST_USE ls_status pty_open(pty_size size, int *agent_end, int *program_end);

void pty_resize(int agent_end, pty_size size);

/* The size of the terminal at fd; false when fd is no terminal or has no size. */
bool pty_size_of(int fd, pty_size *out);

#endif
