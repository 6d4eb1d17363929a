/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_client.c - a client of the c10d store that writes PyTorch's requests byte by byte, in every
 * version of the protocol, for the test_c10d tests.
 */
#include "store/c10d_client.h"

#include "base/clock.h"
#include "net/socket.h"

#include <unistd.h>

#define SOON 20000

/* Numbers by client_version; -1: it has no such command. */
static const int numbers[C10D_OP_COUNT][N_CLIENT_VERSIONS] = {
    [C10D_NONE] = {-1, -1, -1, -1},      [C10D_VALIDATE] = {-1, -1, -1, 0},
    [C10D_SET] = {0, 0, 0, 1},           [C10D_COMPARE_SET] = {1, 1, 1, 2},
    [C10D_GET] = {2, 2, 2, 3},           [C10D_ADD] = {3, 3, 3, 4},
    [C10D_CHECK] = {4, 4, 4, 5},         [C10D_WAIT] = {5, 5, 5, 6},
    [C10D_COUNT] = {6, 6, 6, 7},         [C10D_DELETE] = {8, 7, 7, 8},
    [C10D_APPEND] = {-1, 8, 8, 9},       [C10D_MULTI_GET] = {-1, 9, 9, 10},
    [C10D_MULTI_SET] = {-1, 10, 10, 11}, [C10D_CANCEL_WAIT] = {-1, 11, 11, 12},
    [C10D_PING] = {-1, -1, -1, 13},      [C10D_QUEUE_PUSH] = {-1, -1, -1, 14},
    [C10D_QUEUE_POP] = {-1, -1, -1, 15}, [C10D_QUEUE_LEN] = {-1, -1, -1, 16},
    [C10D_LIST_KEYS] = {-1, -1, -1, 17}, [C10D_BARRIER] = {-1, -1, -1, 18},
    [C10D_UNDECIDED] = {-1, -1, -1, -1},
};

c10d_dialect dialect_of(client_version t)
{
    return t == VALIDATED ? C10D_VALIDATED : t == PREFIXED ? C10D_PREFIXED : C10D_RAW;
}

void msg_raw(message *m, const void *data, size_t bytes)
{
    assert_ok(byte_queue_add(m, data, bytes));
}

static void put_number(message *m, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        const uint8_t byte = (uint8_t)(v >> (8 * i));

        msg_raw(m, &byte, 1);
    }
}

void msg_u8(message *m, uint8_t v)
{
    put_number(m, v, 1);
}

void msg_u32(message *m, uint32_t v)
{
    put_number(m, v, 4);
}

void msg_i64(message *m, int64_t v)
{
    put_number(m, (uint64_t)v, 8);
}

void msg_bytes(message *m, const void *data, size_t bytes)
{
    put_number(m, bytes, 8);
    msg_raw(m, data, bytes);
}

void msg_text(message *m, const char *text)
{
    msg_bytes(m, text, strlen(text));
}

void msg_hello(message *m, client_version t)
{
    if (t == VALIDATED)
        msg_raw(m, "\x00\xce\xf7\x85\x3c", 5);
}

bool msg_has(client_version t, c10d_op op)
{
    return numbers[op][t] >= 0;
}

void msg_command(message *m, client_version t, c10d_op op)
{
    assert_true(msg_has(t, op));
    if (t == PREFIXED)
        msg_raw(m, "\xce\xf7\x85\x3c", 4);
    msg_u8(m, (uint8_t)numbers[op][t]);
}

/* --- the tour --- */

static void tour_key(message *m, client_version d, c10d_op op, const char *key)
{
    if (!msg_has(d, op))
        return;
    msg_command(m, d, op);
    msg_text(m, key);
}

static void tour_pair(message *m, client_version d, c10d_op op, const char *key, const char *value)
{
    if (!msg_has(d, op))
        return;
    tour_key(m, d, op, key);
    msg_text(m, value);
}

static void tour_two(message *m, client_version d, c10d_op op, const char *a, const char *b)
{
    msg_command(m, d, op);
    msg_i64(m, 2);
    msg_text(m, a);
    msg_text(m, b);
}

static void tour_alone(message *m, client_version d, c10d_op op)
{
    if (msg_has(d, op))
        msg_command(m, d, op);
}

void msg_tour(message *m, client_version d)
{
    msg_hello(m, d);
    if (msg_has(d, C10D_PING)) {
        msg_command(m, d, C10D_PING);
        msg_u32(m, 4711);
    }
    tour_pair(m, d, C10D_SET, "/a", "one");
    tour_pair(m, d, C10D_COMPARE_SET, "/a", "one");
    msg_text(m, "two");
    tour_key(m, d, C10D_GET, "/a");
    tour_key(m, d, C10D_ADD, "/n");
    msg_i64(m, -7);
    tour_two(m, d, C10D_CHECK, "/a", "/none");
    tour_two(m, d, C10D_WAIT, "/a", "/n");
    tour_alone(m, d, C10D_COUNT);
    tour_pair(m, d, C10D_APPEND, "/w", "x");
    tour_pair(m, d, C10D_APPEND, "/w", "yz");
    if (msg_has(d, C10D_MULTI_SET)) {
        tour_two(m, d, C10D_MULTI_GET, "/w", "/none");
        msg_command(m, d, C10D_MULTI_SET);
        msg_i64(m, 2);
        msg_text(m, "/m1");
        msg_text(m, "");
        msg_text(m, "/m2");
        msg_text(m, "value");
    }
    for (int i = 0; i < 2 && d != UP_TO_2_0; i++) // there it needs silence behind it
        tour_key(m, d, C10D_DELETE, "/a");
    tour_pair(m, d, C10D_QUEUE_PUSH, "/q", "first");
    tour_pair(m, d, C10D_QUEUE_PUSH, "/q", "second");
    tour_key(m, d, C10D_QUEUE_LEN, "/q");
    tour_key(m, d, C10D_QUEUE_POP, "/q");
    tour_key(m, d, C10D_QUEUE_POP, "/q");
    tour_key(m, d, C10D_QUEUE_POP, "/q");
    tour_alone(m, d, C10D_LIST_KEYS);
    if (msg_has(d, C10D_BARRIER)) {
        tour_key(m, d, C10D_BARRIER, "/b");
        msg_i64(m, 1);
    }
    tour_alone(m, d, C10D_CANCEL_WAIT);
    tour_two(m, d, C10D_WAIT, "/m1", "/never");
}

/* --- clients --- */

fixture start(void)
{
    const c10d_store_options opt = {.user = geteuid()};
    fixture f;

    assert_ok(poller_create(&f.loop));
    assert_ok(c10d_store_create(f.loop, &opt, &f.store));
    return f;
}

void stop(fixture *f)
{
    c10d_store_destroy(f->store);
    poller_destroy(f->loop);
}

client open_client(fixture *f, client_version t)
{
    client c = {.f = f, .version = t};
    net_address at;

    assert_ok(net_address_parse("127.0.0.1", 0, &at));
    net_address_set_port(&at, c10d_store_port(f->store));
    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &c.fd));
    assert_ok(net_set_stream_options(c.fd, 0));
    msg_hello(&c.out, t);
    return c;
}

void close_client(client *c)
{
    close(c->fd);
    byte_queue_free(&c->out);
    byte_queue_free(&c->in);
}

void forget_silence(c10d_store *s)
{
    list_for_each (it, &s->conns)
        poller_timer_cancel(&list_entry(it, c10d_conn, node)->silence);
}

void say(client *c)
{
    size_t moved = 0;

    while (MSG_SIZE(&c->out) > 0) {
        assert_ok(net_send_some(c->fd, "store", MSG_DATA(&c->out), MSG_SIZE(&c->out), &moved));
        c->out.start += moved;
        assert_ok(poller_run_once(c->f->loop, 0));
    }
}

void listen_for(client *c, size_t bytes)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);

    while (byte_queue_size(&c->in) < bytes) {
        size_t moved;

        if (ls_deadline_left(deadline_ms) <= 0)
            fail_msg("%zu bytes instead of %zu", byte_queue_size(&c->in), bytes);
        assert_ok(poller_run_once(c->f->loop, 1));
        assert_ok(byte_queue_fill(&c->in, c->fd, "store", &moved));
    }
}

static const uint8_t *take(client *c, size_t bytes)
{
    const uint8_t *at;

    say(c);
    listen_for(c, bytes);
    at = c->in.data + c->in.start;
    c->in.start += bytes;
    return at;
}

void expect_u8(client *c, uint8_t v)
{
    assert_int_equal(*take(c, 1), v);
}

void expect_raw(client *c, const void *data, size_t bytes)
{
    assert_memory_equal(take(c, bytes), data, bytes);
}

void expect_i64(client *c, int64_t v)
{
    message m = {0};

    msg_i64(&m, v);
    expect_raw(c, MSG_DATA(&m), 8);
    byte_queue_free(&m);
}

void expect_text(client *c, const char *text)
{
    expect_i64(c, (int64_t)strlen(text));
    expect_raw(c, text, strlen(text));
}

void expect_silence(client *c)
{
    say(c);
    for (int i = 0; i < 5; i++) {
        size_t moved;

        assert_ok(poller_run_once(c->f->loop, 1));
        assert_ok(byte_queue_fill(&c->in, c->fd, "store", &moved));
    }
    assert_int_equal(byte_queue_size(&c->in), 0);
}

void on_key(client *c, c10d_op op, const char *key)
{
    msg_command(&c->out, c->version, op);
    msg_text(&c->out, key);
}

void on_pair(client *c, c10d_op op, const char *key, const char *value)
{
    on_key(c, op, key);
    msg_text(&c->out, value);
}

void on_keys(client *c, c10d_op op, const char *a, const char *b)
{
    msg_command(&c->out, c->version, op);
    msg_i64(&c->out, b == NULL ? 1 : 2);
    msg_text(&c->out, a);
    if (b != NULL)
        msg_text(&c->out, b);
}

void alone(client *c, c10d_op op)
{
    msg_command(&c->out, c->version, op);
}

void expect_stored(client *c, const char *key, const char *value)
{
    on_key(c, C10D_GET, key);
    expect_text(c, value);
}

void expect_dropped(client *c)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);
    size_t moved;

    do {
        if (ls_deadline_left(deadline_ms) <= 0)
            fail_msg("the client has not been dropped");
        assert_ok(poller_run_once(c->f->loop, 1));
        c->in.start = c->in.end;
    } while (byte_queue_fill(&c->in, c->fd, "store", &moved) == LS_OK);
}
