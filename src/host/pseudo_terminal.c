/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pseudo_terminal.c - opens pseudo-terminals through /dev/ptmx and sets their modes. Called by the
 * agent for each rank of a job with --pty.
 */
#include "host/pseudo_terminal.h"

#include "base/file.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Opens the peer by ioctl instead of by name: /dev/pts may be of another namespace. */
static ls_status open_ends(int *agent_end, int *program_end)
{
    int unlocked = 0;

    *agent_end = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (*agent_end < 0)
        return ls_fail_errno("a pseudo-terminal (--pty): /dev/ptmx");
    if (ioctl(*agent_end, TIOCSPTLCK, &unlocked) != 0)
        return ls_fail_errno("a pseudo-terminal (--pty)");
    *program_end = ioctl(*agent_end, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return *program_end >= 0 ? LS_OK : ls_fail_errno("a pseudo-terminal's other end (--pty)");
}

/* No output processing, so "\n" stays "\n" in logs and pipes; no echo. */
static ls_status set_modes(int program_end)
{
    struct termios modes;

    if (tcgetattr(program_end, &modes) != 0)
        return ls_fail_errno("a pseudo-terminal's modes");
    modes.c_oflag &= ~(tcflag_t)OPOST;
    modes.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    modes.c_cc[VEOF] = PTY_END_OF_FILE;
    return tcsetattr(program_end, TCSANOW, &modes) == 0
               ? LS_OK
               : ls_fail_errno("a pseudo-terminal's modes");
}

ls_status pty_open(pty_size size, int *agent_end, int *program_end)
{
    ls_status st;

    *agent_end = *program_end = -1;
    st = open_ends(agent_end, program_end);
    if (st == LS_OK)
        st = set_modes(*program_end);
    if (st == LS_OK) {
        pty_resize(*agent_end, size);
        return LS_OK;
    }
    file_close(agent_end);
    file_close(program_end);
    return st;
}

void pty_resize(int agent_end, pty_size size)
{
    const struct winsize window = {.ws_row = (unsigned short)size.rows,
                                   .ws_col = (unsigned short)size.columns};

    (void)ioctl(agent_end, TIOCSWINSZ, &window);
}

bool pty_size_of(int fd, pty_size *out)
{
    struct winsize window;

    if (ioctl(fd, TIOCGWINSZ, &window) != 0 || window.ws_row == 0 || window.ws_col == 0)
        return false;
    *out = (pty_size){.rows = window.ws_row, .columns = window.ws_col};
    return true;
}
