/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_pmi_client.c - arbitrary replies at the other end of PMI_FD, whole or byte by byte. The
 * client ends, and the values that it accepts are bounded text.
 */
#include "fuzz/fuzz.h"

#include "comm/join/pmi_client.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { INPUT_MAX = 8 * 1024, ROUNDS = 8 };

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static void talk(int fd)
{
    char value[PMI_CLIENT_VALUE_BYTES];
    pmi_client c;
    ls_status st = pmi_client_open(fd, 0, &c);

    must(memchr(c.space, 0, sizeof(c.space)) != NULL);
    for (int i = 0; i < ROUNDS && st == LS_OK; i++) {
        st = pmi_client_get(&c, "key", value, sizeof(value));
        if (st == LS_OK)
            must(memchr(value, 0, sizeof(value)) != NULL && strchr(value, '\n') == NULL);
        if (st == LS_OK || st == LS_ENOTFOUND)
            st = pmi_client_put(&c, "key", "value");
        if (st == LS_OK)
            st = pmi_client_barrier(&c);
    }
    must(st == LS_OK || ls_last_error()[0] != 0);
}

static void play(const uint8_t *data, size_t size, size_t piece)
{
    const int kind = piece == 1 ? SOCK_SEQPACKET : SOCK_STREAM;
    int fds[2];

    must(socketpair(AF_UNIX, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    for (size_t at = 0; at < size; at += piece)
        if (send(fds[0], data + at, size - at < piece ? size - at : piece, MSG_NOSIGNAL) < 0)
            break; // as much as a socket holds
    must(shutdown(fds[0], SHUT_WR) == 0);
    talk(fds[1]);
    close(fds[0]);
    close(fds[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > INPUT_MAX)
        return 0;
    play(data, size, size);
    play(data, size, 1);
    return 0;
}
