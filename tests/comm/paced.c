/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paced.c - for LD_PRELOAD: limits each TCP connection of the program to PACED_BYTES a second, like
 * a network that limits each flow. The kernel does the pacing, so no privilege is needed; accepted
 * connections inherit it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*socket_fn)(int family, int type, int protocol);

int socket(int family, int type, int protocol)
{
    const char *text = getenv("PACED_BYTES");
    const uint64_t rate = text == NULL ? 0 : strtoull(text, NULL, 10);
    void *const found = dlsym(RTLD_NEXT, "socket");
    socket_fn real;
    int fd;

    if (found == NULL) {
        errno = ENOSYS;
        return -1;
    }
    memcpy(&real, &found, sizeof(real)); // C knows no cast from data to code
    fd = real(family, type, protocol);
    if (fd >= 0 && rate > 0 && (family == AF_INET || family == AF_INET6))
        (void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
    return fd;
}
