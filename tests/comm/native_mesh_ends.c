/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_ends.c - ends of message links over socket pairs, in one thread, for the tests of
 * links.
 */
#include "comm/native_mesh_ends.h"

#include "base/alloc.h"

#include <fcntl.h>
#include <sys/socket.h>

net_security end_security;
int end_streams = 1;

static ls_status on_begin(void *self, const message *m, uint8_t **target)
{
    end *e = self;

    if (e->refuses)
        return ls_fail(LS_EPROTO, "not this one");
    e->last = *m;
    e->n_begun++;
    *target = e->target;
    return LS_OK;
}

static ls_status on_end(void *self)
{
    end *e = self;

    e->n_ended++;
    for (size_t i = 0; i < e->last.bytes && e->target != NULL; i++)
        e->sum += e->target[i] * (i + 1);
    return LS_OK;
}

static void on_sent(void *self, link_item *item)
{
    end *e = self;

    e->n_sent++;
    ls_free(item->copy);
    ls_free(item);
}

link_sink end_sink(end *e)
{
    return (link_sink){.begin = on_begin, .end = on_end, .sent = on_sent, .self = e};
}

static link_sink prepare_end(end *e, int fd)
{
    *e = (end){.target = ls_calloc(1, PLACE_BYTES)};
    assert_non_null(e->target);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return end_sink(e);
}

void end_open(end *e, int fd)
{
    const link_sink sink = prepare_end(e, fd);

    assert_int_equal(link_tcp_create(fd, &sink, &e->link), LS_OK);
}

seal_pair end_seals(net_security mode, int which)
{
    static const uint8_t keys[2][SEAL_KEY_BYTES] = {{1}, {2}};
    seal_pair seals;

    seal_start(&seals.out, mode, keys[which]);
    seal_start(&seals.in, mode, keys[1 - which]);
    return seals;
}

void end_open_sealed(end *e, int fd, int which)
{
    const seal_pair seals = end_seals(end_security, which);
    const link_sink sink = prepare_end(e, fd);

    assert_int_equal(link_sealed_create(fd, &seals, &sink, &e->link), LS_OK);
}

void end_sockets(int fds[2], int buffer_bytes)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    for (int i = 0; i < 2 && buffer_bytes > 0; i++)
        setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
}

// A stream of an end, of which fd is the socket.
void end_add_stream(end *e, int number, int fd, int which)
{
    const seal_pair seals = end_seals(end_security, which);
    const link_sink sink = e->link->sink;
    peer_link *stream;

    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(end_security == NET_AUTH ? link_tcp_create(fd, &sink, &stream)
                                              : link_sealed_create(fd, &seals, &sink, &stream),
                     LS_OK);
    assert_int_equal(link_striped_add(e->link, number, stream), LS_OK);
}

void end_open_striped(end *e, int n)
{
    const link_sink sink = end_sink(e);

    *e = (end){.target = ls_calloc(1, PLACE_BYTES)};
    assert_non_null(e->target);
    assert_int_equal(link_striped_create(n, &sink, &e->link), LS_OK);
}

static void open_striped_pair(end ends[2], int buffer_bytes)
{
    end_open_striped(&ends[0], end_streams);
    end_open_striped(&ends[1], end_streams);
    for (int i = 0; i < end_streams; i++) {
        int fds[2];

        end_sockets(fds, buffer_bytes);
        end_add_stream(&ends[0], i, fds[0], 0);
        end_add_stream(&ends[1], i, fds[1], 1);
    }
}

void end_open_pair(end ends[2], int buffer_bytes)
{
    int fds[2];

    if (end_streams > 1) {
        open_striped_pair(ends, buffer_bytes);
        return;
    }
    end_sockets(fds, buffer_bytes);
    for (int i = 0; i < 2; i++) {
        if (end_security == NET_AUTH)
            end_open(&ends[i], fds[i]);
        else
            end_open_sealed(&ends[i], fds[i], i);
    }
}

void end_close(end *e)
{
    link_destroy(e->link);
    ls_free(e->target);
}

link_item *end_item(const uint8_t *payload, size_t bytes)
{
    link_item *item = ls_calloc(1, sizeof(*item));
    const message m = {.type = MESSAGE_DATA, .bytes = bytes, .total = bytes, .group = 7};

    assert_non_null(item);
    message_encode(&m, item->header);
    item->payload = payload;
    item->bytes = bytes;
    return item;
}

uint64_t end_sum(const uint8_t *payload, size_t bytes)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < bytes; i++)
        sum += payload[i] * (i + 1);
    return sum;
}

void end_move_all(end ends[2])
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < 2; i++) {
            moved |= link_has_output(ends[i].link);
            moved |= link_flush(ends[i].link);
            moved |= link_receive(ends[i].link);
        }
    }
}
