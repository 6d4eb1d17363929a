/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terminal.c - asks the kernel for the size of a terminal at each call, because a window's size
 * changes.
 */
#include "base/flags/terminal.h"

#include <sys/ioctl.h>

int terminal_columns(int fd)
{
    struct winsize window;

    return ioctl(fd, TIOCGWINSZ, &window) == 0 ? window.ws_col : 0;
}
