/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_c10d.c - requests of a client to the store of PyTorch programs. The bytes go through a
 * socket, cut in two ways. That client and one that waits for a key must receive the same replies,
 * and parser and store must stay consistent.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "base/log.h"
#include "c10d/c10d_internal.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECEIVED_MAX (1 << 20)
#define INPUT_MAX    (16 * 1024)
#define PIECES_MAX   64

typedef struct session {
    poller *loop;
    c10d_store *store;
    /* The test's ends: of the client that sends the input, and of the client that waits. */
    int fds[2];
    uint8_t *received[2];
    size_t n_received[2];
} session;

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static void turn(session *s)
{
    must(poller_run_once(s->loop, 0) == LS_OK);
    list_for_each (it, &s->store->conns) // timeouts depend on the time
        poller_timer_cancel(&list_entry(it, c10d_conn, node)->silence);
    for (int i = 0; i < 2; i++) {
        ssize_t n = 1;

        while (n > 0 && s->n_received[i] < RECEIVED_MAX) {
            n = recv(s->fds[i], s->received[i] + s->n_received[i], RECEIVED_MAX - s->n_received[i],
                     MSG_DONTWAIT);
            s->n_received[i] += n > 0 ? (size_t)n : 0;
        }
    }
}

/* Until all sent bytes have been handled. */
static void settle(session *s)
{
    bool busy = true;

    while (busy) {
        busy = false;
        for (int i = 0; i < 3; i++)
            turn(s);
        list_for_each (it, &s->store->conns)
            busy = busy || list_entry(it, c10d_conn, node)->again.is_set;
    }
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
    static const uint8_t wait[] = "\x05\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/a\x02\0\0\0\0\0\0\0/b";

    memset(s, 0, sizeof(*s));
    must(poller_create(&s->loop) == LS_OK && c10d_store_create_closed(s->loop, &s->store) == LS_OK);
    for (int i = 0; i < 2; i++) {
        int pair[2];

        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        s->fds[i] = pair[0];
        s->received[i] = ls_calloc(RECEIVED_MAX, 1);
        must(s->received[i] != NULL && c10d_store_adopt(s->store, pair[1]) == LS_OK);
    }
    say(s, 1, wait, sizeof(wait) - 1);
    settle(s);
}

static void end(session *s)
{
    must(s->store->table.bytes + s->store->queues.bytes <= C10D_BYTES_MAX);
    for (int i = 0; i < 2; i++)
        close(s->fds[i]);
    for (int i = 0; i < 3; i++)
        must(poller_run_once(s->loop, 0) == LS_OK);
    must(s->store->n_conns == 0 && s->store->buffered == 0 && list_empty(&s->store->waits));
    c10d_store_destroy(s->store);
    poller_destroy(s->loop);
    for (int i = 0; i < 2; i++)
        ls_free(s->received[i]);
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
    settle(&whole);
    begin(&cut);
    for (size_t at = 1; at < size; at += piece)
        say(&cut, 0, data + at, size - at < piece ? size - at : piece);
    settle(&cut);
    for (int i = 0; i < 2; i++) {
        const size_t n =
            whole.n_received[i] < cut.n_received[i] ? whole.n_received[i] : cut.n_received[i];

        // A dropped client loses the replies that were not sent yet; their number depends on the
        // cuts.
        must(memcmp(whole.received[i], cut.received[i], n) == 0);
        must(whole.n_received[i] == cut.n_received[i] || whole.store->n_conns < 2 ||
             n == RECEIVED_MAX);
    }
    must(whole.store->n_conns == cut.store->n_conns);
    end(&whole);
    end(&cut);
    return 0;
}
