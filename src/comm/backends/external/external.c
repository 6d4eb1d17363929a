/* SPDX-License-Identifier: Apache-2.0 */
/*
 * external.c - opening and sleeping for the modules of external libraries, into which it is
 * compiled. An eventfd wakes their sleeping threads.
 */
#include "comm/backends/external/external.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

ls_status external_open(const comm_boot *boot, const comm_host *host, const char *engine,
                        external_waker *out)
{
    *out = (external_waker){.wake_fd = -1, .control_fd = boot->control_fd};
    if (boot->local_fd >= 0)
        (void)close(boot->local_fd);
    if (boot->listen_fd >= 0)
        (void)close(boot->listen_fd);
    if (boot->security != NET_AUTH)
        return comm_host_fail(
            host, LS_EUNSUPPORTED,
            "%s does not protect its connections, but LOCKSTEP_SECURITY requires it", engine);
    out->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return out->wake_fd >= 0 ? LS_OK : comm_host_fail(host, LS_ESYSTEM, "eventfd: error %d", errno);
}

void external_close(external_waker *w)
{
    if (w->wake_fd >= 0)
        (void)close(w->wake_fd);
    w->wake_fd = -1;
}

bool external_wait(const external_waker *w, int64_t timeout_us)
{
    struct pollfd fds[2] = {{.fd = w->wake_fd, .events = POLLIN},
                            {.fd = w->control_fd, .events = POLLIN}};
    const struct timespec timeout = {.tv_sec = timeout_us / 1000000,
                                     .tv_nsec = timeout_us % 1000000 * 1000};

    return ppoll(fds, 2, &timeout, NULL) > 0 && fds[0].revents != 0;
}

void external_wake(const external_waker *w)
{
    const uint64_t one = 1;

    (void)!write(w->wake_fd, &one, sizeof(one)); // a full counter wakes as well
}

bool external_drain(const external_waker *w)
{
    uint64_t wakes;

    return read(w->wake_fd, &wakes, sizeof(wakes)) > 0;
}
