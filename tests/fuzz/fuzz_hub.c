/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_hub.c - messages of an authenticated client to a hub. The bytes go through a socket, cut in
 * two ways; the client and another rank must receive the same.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "base/log.h"
#include "net/wire.h"
#include "hub/hub_internal.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define JOB          "0123456789abcdef"
#define RECEIVED_MAX (1 << 20)
#define INPUT_MAX    (64 * 1024)
#define PIECES_MAX   64

typedef struct session {
    poller *loop;
    hub *hub;
    int fds[2];           /* the test's ends: rank 0, which sends the input, and rank 1 */
    uint8_t *received[2]; /* RECEIVED_MAX bytes each */
    size_t n_received[2];
} session;

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static void listen_to(session *s, int i)
{
    while (s->n_received[i] < RECEIVED_MAX) {
        const ssize_t n = recv(s->fds[i], s->received[i] + s->n_received[i],
                               RECEIVED_MAX - s->n_received[i], MSG_DONTWAIT);

        if (n <= 0)
            return;
        s->n_received[i] += (size_t)n;
    }
}

static void turn(session *s)
{
    for (int i = 0; i < 4; i++)
        must(poller_run_once(s->loop, 0) == LS_OK);
    listen_to(s, 0);
    listen_to(s, 1);
}

static void say(session *s, int i, const uint8_t *data, size_t size)
{
    while (size > 0) {
        const ssize_t n = send(s->fds[i], data, size, MSG_NOSIGNAL | MSG_DONTWAIT);

        turn(s);
        if (n <= 0)
            return; // dropped
        data += n;
        size -= (size_t)n;
    }
}

static void begin(session *s)
{
    const hub_options opt = {.job = JOB, .world_size = 3};

    memset(s, 0, sizeof(*s));
    must(poller_create(&s->loop) == LS_OK && hub_create(s->loop, &opt, &s->hub) == LS_OK);
    for (int i = 0; i < 2; i++) {
        s->fds[i] = -1;
        s->received[i] = ls_calloc(RECEIVED_MAX, 1);
        must(s->received[i] != NULL);
    }
    for (int i = 0; i < 2; i++) {
        uint8_t hello[8 + 12] = {12, 0, 0, 0, HUB_MESSAGE_HELLO};
        int pair[2];

        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        s->fds[i] = pair[0];
        hub_enter(s->hub, &(listener_peer){.fd = pair[1], .name = "a rank"});
        wire_put_u32(hello + 8, (uint32_t)i);
        wire_put_u32(hello + 12, 3);
        wire_put_u32(hello + 16, 99);
        say(s, i, hello, sizeof(hello));
    }
}

static void end(session *s)
{
    hub_destroy(s->hub);
    poller_destroy(s->loop);
    for (int i = 0; i < 2; i++) {
        close(s->fds[i]);
        ls_free(s->received[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    session whole;
    session cut;
    size_t piece;

    if (size < 1 || size > INPUT_MAX || log_configure("error") != LS_OK)
        return 0;
    piece = 1 + data[0];
    if ((size - 1) / piece > PIECES_MAX)
        piece = (size - 1) / PIECES_MAX + 1;
    begin(&whole);
    say(&whole, 0, data + 1, size - 1);
    begin(&cut);
    for (size_t at = 1; at < size; at += piece)
        say(&cut, 0, data + at, size - at < piece ? size - at : piece);
    for (int i = 0; i < 2; i++) {
        turn(&whole);
        turn(&cut);
    }
    for (int i = 0; i < 2; i++) {
        // A timeout may pass in the longer session: one client may then receive more, but nothing
        // else.
        const size_t n =
            whole.n_received[i] < cut.n_received[i] ? whole.n_received[i] : cut.n_received[i];

        must(memcmp(whole.received[i], cut.received[i], n) == 0);
    }
    end(&whole);
    end(&cut);
    return 0;
}
