/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/process/pseudo_terminal.h"

#include "base/file.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* The kernel's own way, without looking for names: what /dev/pts shows may be another namespace's. */
static ls_status open_ends(int *ours, int *programs)
{
    int unlocked = 0;

    *ours = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (*ours < 0)
        return ls_fail_errno("a pseudo-terminal (--pty): /dev/ptmx");
    if (ioctl(*ours, TIOCSPTLCK, &unlocked) != 0)
        return ls_fail_errno("a pseudo-terminal (--pty)");
    *programs = ioctl(*ours, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return *programs >= 0 ? LS_OK : ls_fail_errno("a pseudo-terminal's other end (--pty)");
}

/* "\n" stays "\n" in log files and pipes, and what is read was shown by another terminal. */
static ls_status set_modes(int programs)
{
    struct termios modes;

    if (tcgetattr(programs, &modes) != 0)
        return ls_fail_errno("a pseudo-terminal's modes");
    modes.c_oflag &= ~(tcflag_t)OPOST;
    modes.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    modes.c_cc[VEOF] = PTY_END_OF_FILE;
    return tcsetattr(programs, TCSANOW, &modes) == 0 ? LS_OK
                                                     : ls_fail_errno("a pseudo-terminal's modes");
}

ls_status pty_open(pty_size size, int *ours, int *programs)
{
    ls_status st;

    *ours = *programs = -1;
    st = open_ends(ours, programs);
    if (st == LS_OK)
        st = set_modes(*programs);
    if (st == LS_OK) {
        pty_resize(*ours, size);
        return LS_OK;
    }
    file_close(ours);
    file_close(programs);
    return st;
}

void pty_resize(int ours, pty_size size)
{
    const struct winsize window = {.ws_row = (unsigned short)size.rows,
                                   .ws_col = (unsigned short)size.columns};

    (void)ioctl(ours, TIOCSWINSZ, &window);
}

bool pty_size_of(int fd, pty_size *out)
{
    struct winsize window;

    if (ioctl(fd, TIOCGWINSZ, &window) != 0 || window.ws_row == 0 || window.ws_col == 0)
        return false;
    *out = (pty_size){.rows = window.ws_row, .columns = window.ws_col};
    return true;
}
