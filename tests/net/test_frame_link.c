/* SPDX-License-Identifier: Apache-2.0 */
/* test_frame_link.c - links on a poller: order, bounds, and the end of a link from either side. */
#include "base/unit.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "net/messages/frame_link.h"
#include "net/wire.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOON      30000
#define BODY_MAX  ((size_t)64 * 1024)
#define QUEUE_MAX ((size_t)1024 * 1024)

/* One end of a connection as a link, and the received messages. */
typedef struct end {
    frame_link link;
    int n_messages;
    uint32_t last_type;
    uint64_t body_sum; /* of all bytes */
    size_t n_bytes;
    ls_status verdict; /* returned for every message */
    int n_ended;
    int n_drained;
    char why[256];
    bool in_call; /* the test is inside a function of the module */
} end;

typedef struct scene {
    poller *loop;
    end a;
    end b;
    int other_fd; /* a raw socket instead of b */
} scene;

static ls_status on_message(void *self, const frame *f)
{
    end *e = self;

    e->n_messages++;
    e->last_type = f->type;
    e->n_bytes += f->bytes;
    for (size_t i = 0; i < f->bytes; i++)
        e->body_sum += f->body[i];
    if (e->verdict != LS_OK)
        return ls_fail(e->verdict, "unexpected message");
    return LS_OK;
}

static void on_ended(void *self, const char *why)
{
    end *e = self;

    assert_false(e->in_call);
    assert_int_equal(e->link.fd, -1);
    e->n_ended++;
    text_format(e->why, sizeof(e->why), "%s", why);
}

static void on_drained(void *self)
{
    end *e = self;

    assert_false(e->in_call);
    e->n_drained++;
}

static void open_end(scene *s, end *e, int fd)
{
    *e =
        (end){.link = {.self = e, .message = on_message, .ended = on_ended, .drained = on_drained}};
    assert_ok(frame_link_open(&e->link, s->loop, fd, "the other side", BODY_MAX, QUEUE_MAX));
}

static void begin(scene *s, bool raw)
{
    int fds[2];

    memset(s, 0, sizeof(*s));
    s->other_fd = -1;
    assert_ok(poller_create(&s->loop));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    open_end(s, &s->a, fds[0]);
    if (raw)
        s->other_fd = fds[1];
    else
        open_end(s, &s->b, fds[1]);
}

static void finish(scene *s)
{
    frame_link_close(&s->a.link);
    frame_link_close(&s->b.link);
    file_close(&s->other_fd);
    poller_destroy(s->loop);
}

#define until(s, condition)                                                                        \
    do {                                                                                           \
        for (int64_t until_ms = ls_deadline_ms(SOON); !(condition);) {                             \
            assert_true(ls_deadline_left(until_ms) > 0);                                           \
            assert_ok(poller_run_once((s)->loop, 100));                                            \
        }                                                                                          \
    } while (0)

static void send_frame(end *e, uint32_t type, const void *body, size_t bytes)
{
    e->in_call = true;
    frame_link_send(&e->link, type, body, bytes);
    e->in_call = false;
}

/* --- tests --- */

static void frames_go_both_ways(void **state)
{
    uint8_t *body = calloc(1, BODY_MAX);
    scene s;

    LS_UNUSED(state);
    begin(&s, false);
    memset(body, 3, BODY_MAX);
    send_frame(&s.a, 7, "abc", 3);
    send_frame(&s.a, 8, NULL, 0);
    send_frame(&s.a, 9, body, BODY_MAX);
    send_frame(&s.b, 10, "z", 1);
    until(&s, s.b.n_messages == 3 && s.a.n_messages == 1);
    assert_int_equal(s.b.last_type, 9);
    assert_int_equal(s.b.body_sum, 'a' + 'b' + 'c' + 3 * BODY_MAX);
    assert_int_equal(s.a.last_type, 10);
    assert_int_equal(s.a.n_ended + s.b.n_ended, 0);
    finish(&s);
    free(body);
}

static void a_frame_may_come_byte_by_byte(void **state)
{
    uint8_t bytes[FRAME_HEADER_BYTES + 3] = {3, 0, 0, 0, 5, 0, 0, 0, 'a', 'b', 'c'};
    scene s;

    LS_UNUSED(state);
    begin(&s, true);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        assert_int_equal(s.a.n_messages, 0);
        assert_int_equal(write(s.other_fd, bytes + i, 1), 1);
        assert_ok(poller_run_once(s.loop, SOON));
    }
    until(&s, s.a.n_messages == 1);
    assert_int_equal(s.a.last_type, 5);
    finish(&s);
}

static void closed_connection_ends_the_link_after_the_last_frame(void **state)
{
    static const uint8_t bytes[FRAME_HEADER_BYTES] = {0, 0, 0, 0, 6};
    scene s;

    LS_UNUSED(state);
    begin(&s, true);
    assert_int_equal(write(s.other_fd, bytes, sizeof(bytes)), sizeof(bytes));
    file_close(&s.other_fd);
    until(&s, s.a.n_ended == 1);
    assert_int_equal(s.a.n_messages, 1);
    assert_true(s.a.link.is_closed_by_peer);
    send_frame(&s.a, 1, "late", 4); /* no link, no effect */
    assert_ok(poller_run_once(s.loop, 0));
    assert_int_equal(s.a.n_ended, 1);
    finish(&s);
}

static void last_frame_of_a_peer_is_read_although_nothing_can_be_sent(void **state)
{
    scene s;

    LS_UNUSED(state);
    begin(&s, false);
    send_frame(&s.b, 5, "why", 3);
    frame_link_close(&s.b.link);
    send_frame(&s.a, 6, "answer", 6);
    send_frame(&s.a, 6, "answer", 6);
    until(&s, s.a.n_ended == 1);
    assert_int_equal(s.a.n_messages, 1);
    assert_int_equal(s.a.last_type, 5);
    assert_true(s.a.link.is_closed_by_peer);
    finish(&s);
}

static void refused_message_ends_the_link_with_its_error_text(void **state)
{
    scene s;

    LS_UNUSED(state);
    begin(&s, false);
    s.b.verdict = LS_EPROTO;
    send_frame(&s.a, 1, "x", 1);
    send_frame(&s.a, 1, "y", 1);
    until(&s, s.b.n_ended == 1);
    assert_int_equal(s.b.n_messages, 1); /* later frames are ignored */
    assert_string_equal(s.b.why, "unexpected message");
    assert_false(s.b.link.is_closed_by_peer);
    until(&s, s.a.n_ended == 1);
    assert_true(s.a.link.is_closed_by_peer);
    finish(&s);
}

static void oversized_frame_ends_the_link(void **state)
{
    uint8_t bytes[FRAME_HEADER_BYTES] = {0};
    scene s;

    LS_UNUSED(state);
    begin(&s, true);
    wire_put_u32(bytes, (uint32_t)BODY_MAX + 1);
    assert_int_equal(write(s.other_fd, bytes, sizeof(bytes)), sizeof(bytes));
    until(&s, s.a.n_ended == 1);
    assert_false(s.a.link.is_closed_by_peer);
    assert_non_null(strstr(s.a.why, "limit of 65536"));
    finish(&s);
}

static void link_to_a_peer_that_does_not_read_is_closed(void **state)
{
    uint8_t *body = calloc(1, BODY_MAX);
    scene s;

    LS_UNUSED(state);
    begin(&s, true);
    for (int i = 0; i < 1000 && s.a.link.fd >= 0; i++) {
        send_frame(&s.a, 1, body, BODY_MAX);
        assert_true(frame_queue_bytes(&s.a.link.out) <= QUEUE_MAX);
    }
    assert_int_equal(s.a.link.fd, -1);
    assert_int_equal(s.a.n_ended, 0); /* reported later */
    until(&s, s.a.n_ended == 1);
    assert_false(s.a.link.is_closed_by_peer);
    assert_string_equal(s.a.why, "it does not read what it is sent");
    finish(&s);
    free(body);
}

static void drained_is_called_when_the_queue_is_empty(void **state)
{
    uint8_t *body = calloc(1, BODY_MAX);
    uint8_t *sink = malloc(BODY_MAX);
    size_t n_sent = 0;
    scene s;

    LS_UNUSED(state);
    begin(&s, true);
    send_frame(&s.a, 1, "small", 5);
    assert_ok(poller_run_once(s.loop, 0));
    assert_int_equal(s.a.n_drained, 0); /* the queue was never full */
    for (; frame_queue_bytes(&s.a.link.out) < QUEUE_MAX / 2; n_sent++)
        send_frame(&s.a, 1, body, BODY_MAX);
    while (s.a.n_drained == 0) {
        while (read(s.other_fd, sink, BODY_MAX) > 0)
            continue;
        send_frame(&s.a, 2, NULL, 0); /* may not empty the queue */
        assert_ok(poller_run_once(s.loop, 100));
    }
    assert_int_equal(frame_queue_bytes(&s.a.link.out), 0);
    assert_int_equal(s.a.n_drained, 1);
    assert_int_equal(s.a.n_ended, 0);
    finish(&s);
    free(body);
    free(sink);
}

static void flooding_peer_does_not_block_other_links(void **state)
{
    uint8_t bytes[FRAME_HEADER_BYTES * 512] = {0};
    scene s;
    int most = 0;
    int before = 0;

    LS_UNUSED(state);
    begin(&s, true);
    for (int i = 0; i < 200; i++) {
        while (send(s.other_fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
            continue;
        assert_ok(poller_run_once(s.loop, SOON));
        if (s.a.n_messages - before > most)
            most = s.a.n_messages - before;
        before = s.a.n_messages;
    }
    assert_true(most > 0);
    assert_true(most <= 4 * 64 * 1024 / FRAME_HEADER_BYTES); /* four reads of bounded size */
    assert_true(s.a.link.in.in.capacity <= (size_t)256 * 1024);
    finish(&s);
}

static void finishing_sends_everything_and_waits_for_the_peer(void **state)
{
    uint8_t *body = calloc(1, BODY_MAX);
    int n_sent = 0;
    scene s;

    LS_UNUSED(state);
    begin(&s, false);
    for (; frame_queue_bytes(&s.a.link.out) < QUEUE_MAX / 2; n_sent++)
        send_frame(&s.a, 1, body, BODY_MAX);
    send_frame(&s.b, 1, "unheard", 7);
    s.a.in_call = true;
    frame_link_finish(&s.a.link);
    frame_link_finish(&s.a.link);
    s.a.in_call = false;
    send_frame(&s.a, 2, "too late", 8);
    until(&s, s.b.n_ended == 1);
    assert_int_equal(s.b.n_messages, n_sent);
    assert_int_equal(s.b.last_type, 1);
    assert_int_equal(s.a.n_ended, 0); /* b has not closed yet */
    frame_link_close(&s.b.link);
    until(&s, s.a.n_ended == 1);
    assert_int_equal(s.a.n_messages, 0);
    finish(&s);
    free(body);
}

static void finishing_has_an_end_even_if_the_peer_does_not_close(void **state)
{
    uint8_t *body = calloc(1, BODY_MAX);
    int64_t began_ms;
    scene s;

    LS_UNUSED(state);
    for (int full = 0; full < 2; full++) {
        begin(&s, true);
        while (full != 0 && frame_queue_bytes(&s.a.link.out) == 0)
            send_frame(&s.a, 1, body, BODY_MAX);
        began_ms = ls_now_ms();
        frame_link_finish(&s.a.link);
        until(&s, s.a.n_ended == 1);
        assert_in_range(ls_now_ms() - began_ms, 1900, 10000);
        finish(&s);
    }
    free(body);
}

static void closed_link_calls_nothing_back(void **state)
{
    uint8_t *body = calloc(1, BODY_MAX);
    scene s;

    LS_UNUSED(state);
    begin(&s, true);
    while (s.a.link.fd >= 0)
        send_frame(&s.a, 1, body, BODY_MAX);
    frame_link_close(&s.a.link); /* before it reports its end */
    frame_link_close(&s.a.link);
    frame_link_send(&s.a.link, 1, "x", 1);
    frame_link_finish(&s.a.link);
    assert_ok(poller_run_once(s.loop, 10));
    assert_int_equal(s.a.n_ended, 0);
    finish(&s);
    free(body);
}

static void link_over_an_invalid_socket_fails_and_closes_it(void **state)
{
    end e = {.link = {.self = &e, .message = on_message, .ended = on_ended}};
    frame_link never = {0};
    poller *loop;
    int regular = memfd_create("file", MFD_CLOEXEC); /* epoll refuses regular files */

    LS_UNUSED(state);
    assert_ok(poller_create(&loop));
    assert_true(regular >= 0);
    assert_int_not_equal(frame_link_open(&e.link, loop, regular, "a file", BODY_MAX, QUEUE_MAX),
                         LS_OK);
    assert_int_equal(fcntl(regular, F_GETFD), -1);
    frame_link_close(&e.link);
    frame_link_close(&never);
    frame_link_send(&never, 1, NULL, 0);
    poller_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_go_both_ways),
        cmocka_unit_test(a_frame_may_come_byte_by_byte),
        cmocka_unit_test(closed_connection_ends_the_link_after_the_last_frame),
        cmocka_unit_test(last_frame_of_a_peer_is_read_although_nothing_can_be_sent),
        cmocka_unit_test(refused_message_ends_the_link_with_its_error_text),
        cmocka_unit_test(oversized_frame_ends_the_link),
        cmocka_unit_test(link_to_a_peer_that_does_not_read_is_closed),
        cmocka_unit_test(drained_is_called_when_the_queue_is_empty),
        cmocka_unit_test(flooding_peer_does_not_block_other_links),
        cmocka_unit_test(finishing_sends_everything_and_waits_for_the_peer),
        cmocka_unit_test(finishing_has_an_end_even_if_the_peer_does_not_close),
        cmocka_unit_test(closed_link_calls_nothing_back),
        cmocka_unit_test(link_over_an_invalid_socket_fails_and_closes_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
