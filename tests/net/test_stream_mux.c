/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stream_mux.c - two ends of one link with streams over it. The near end opens the streams, as
 * an agent does; the remote end opens a socket for each, as the head does.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "net/messages/stream_mux.h"
#include "net/wire.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOON        30000
#define TYPE        67
#define STREAMS     256
#define QUEUE_MAX   ((size_t)16 * 1024 * 1024)
#define LINK_FULL   ((size_t)4 * 1024 * 1024)
#define PIECE_BYTES ((size_t)8 * 1024)
#define FRAME_MOST  (FRAME_HEADER_BYTES + 4 + PIECE_BYTES)

typedef struct end {
    stream_mux mux;
    frame_link link;
    int n_frames;
    size_t longest; /* frame */
    int n_link_ends;
} end;

typedef struct scene {
    poller *loop;
    end near;
    end remote;
    int raw_fd;          /* instead of the remote end */
    int begun[STREAMS];  /* the programs' ends of the near end's sockets */
    int opened[STREAMS]; /* likewise of the remote end's, in the order of opening */
    int n_begun;
    int n_opened;
    bool refuses; /* the remote end cannot open sockets */
} scene;

static ls_status on_message(void *self, const frame *f)
{
    end *e = self;

    assert_int_equal(f->type, TYPE);
    e->n_frames++;
    if (f->bytes > e->longest)
        e->longest = f->bytes;
    return stream_mux_receive(&e->mux, f);
}

static void on_ended(void *self, const char *why)
{
    end *e = self;

    LS_UNUSED(why);
    e->n_link_ends++;
}

static void on_drained(void *self)
{
    end *e = self;

    stream_mux_resume(&e->mux);
}

static void make_pair(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
}

static ls_status open_one(void *self, int *fd)
{
    scene *s = self;
    int fds[2];

    if (s->refuses || s->n_opened == STREAMS)
        return ls_fail(LS_ENOTFOUND, "there is nothing to open");
    make_pair(fds);
    *fd = fds[0];
    s->opened[s->n_opened++] = fds[1];
    return LS_OK;
}

static void open_end(scene *s, end *e, int fd, size_t queue_max)
{
    e->link =
        (frame_link){.self = e, .message = on_message, .ended = on_ended, .drained = on_drained};
    assert_ok(frame_link_open(&e->link, s->loop, fd, "the other end", 64 * 1024, queue_max));
    stream_mux_init(&e->mux, s->loop, &e->link, TYPE);
    e->mux.self = s;
}

static scene *begin_with(bool raw, size_t queue_max)
{
    scene *s = calloc(1, sizeof(*s));
    int fds[2];

    assert_non_null(s);
    s->raw_fd = -1;
    assert_ok(poller_create(&s->loop));
    make_pair(fds);
    open_end(s, &s->near, fds[0], queue_max);
    if (raw) {
        s->raw_fd = fds[1];
    } else {
        open_end(s, &s->remote, fds[1], queue_max);
        s->remote.mux.open = open_one;
    }
    return s;
}

static scene *begin(void)
{
    return begin_with(false, QUEUE_MAX);
}

static void finish(scene *s)
{
    stream_mux_close(&s->near.mux);
    stream_mux_close(&s->remote.mux);
    assert_int_equal(s->near.mux.n_streams + s->remote.mux.n_streams, 0);
    assert_int_equal(s->near.mux.held + s->remote.mux.held, 0);
    frame_link_close(&s->near.link);
    frame_link_close(&s->remote.link);
    for (int i = 0; i < STREAMS; i++) {
        if (i < s->n_begun)
            file_close(&s->begun[i]);
        if (i < s->n_opened)
            file_close(&s->opened[i]);
    }
    file_close(&s->raw_fd);
    poller_destroy(s->loop);
    free(s);
}

static int add_stream(scene *s)
{
    int fds[2];

    make_pair(fds);
    s->begun[s->n_begun++] = fds[1];
    assert_ok(stream_mux_begin(&s->near.mux, fds[0]));
    return fds[1];
}

#define until(s, condition)                                                                        \
    do {                                                                                           \
        for (int64_t until_ms = ls_deadline_ms(SOON); !(condition);) {                             \
            assert_true(ls_deadline_left(until_ms) > 0);                                           \
            assert_ok(poller_run_once((s)->loop, 20));                                             \
        }                                                                                          \
    } while (0)

static void turn(scene *s)
{
    for (int i = 0; i < 20; i++)
        assert_ok(poller_run_once(s->loop, 0));
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Reads until the received bytes are `text`. */
static void expect(scene *s, int fd, const char *text)
{
    char got[64] = "";
    size_t n = 0;

    for (int64_t until_ms = ls_deadline_ms(SOON); n < strlen(text);) {
        const ssize_t more = recv(fd, got + n, strlen(text) - n, 0);

        assert_true(more != 0 && ls_deadline_left(until_ms) > 0);
        n += more > 0 ? (size_t)more : 0;
        assert_ok(poller_run_once(s->loop, 10));
    }
    assert_memory_equal(got, text, n);
}

static bool is_at_end(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void receive(end *e, uint32_t id, const char *bytes)
{
    uint8_t body[64];

    wire_put_u32(body, id);
    memcpy(body + 4, bytes, strlen(bytes));
    assert_ok(stream_mux_receive(&e->mux, &(frame){TYPE, body, 4 + strlen(bytes)}));
}

/* --- streams --- */

static void each_stream_has_its_own_bytes_both_ways(void **state)
{
    scene *s = begin();
    char text[32];

    LS_UNUSED(state);
    for (int i = 0; i < 20; i++) {
        text_format(text, sizeof(text), "question %d", i);
        say(add_stream(s), text);
        until(s, s->n_opened == i + 1);
    }
    for (int i = 19; i >= 0; i--) {
        text_format(text, sizeof(text), "question %d", i);
        expect(s, s->opened[i], text);
        text_format(text, sizeof(text), "answer %d", i);
        say(s->opened[i], text);
    }
    for (int i = 0; i < 20; i++) {
        text_format(text, sizeof(text), "answer %d", i);
        expect(s, s->begun[i], text);
    }
    assert_int_equal(s->near.mux.n_streams, 20);
    assert_int_equal(s->remote.mux.n_streams, 20);
    finish(s);
}

static void much_is_cut_into_small_pieces_and_comes_whole(void **state)
{
    enum { BYTES = 1 << 20 };
    scene *s = begin();
    uint8_t *sent = malloc(BYTES);
    uint8_t *got = malloc(BYTES);
    const int fd = add_stream(s);
    size_t n_sent = 0;
    size_t n_got = 0;

    LS_UNUSED(state);
    for (size_t i = 0; i < BYTES; i++)
        sent[i] = (uint8_t)(i * 7 + i / 251);
    for (int64_t until_ms = ls_deadline_ms(SOON); n_got < BYTES;) {
        const ssize_t out = send(fd, sent + n_sent, BYTES - n_sent, MSG_NOSIGNAL);
        ssize_t in = 0;

        assert_true(ls_deadline_left(until_ms) > 0);
        n_sent += out > 0 ? (size_t)out : 0;
        assert_ok(poller_run_once(s->loop, 10));
        if (s->n_opened == 1)
            in = recv(s->opened[0], got + n_got, BYTES - n_got, 0);
        n_got += in > 0 ? (size_t)in : 0;
    }
    assert_memory_equal(sent, got, BYTES);
    assert_true(s->remote.longest <= 4 + PIECE_BYTES);
    finish(s);
    free(sent);
    free(got);
}

/* --- ends --- */

static void either_side_ends_a_stream_and_the_others_go_on(void **state)
{
    scene *s = begin();

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++) {
        say(add_stream(s), "a");
        until(s, s->n_opened == i + 1);
        expect(s, s->opened[i], "a");
    }
    file_close(&s->begun[0]);
    until(s, is_at_end(s->opened[0]));
    file_close(&s->opened[1]);
    until(s, is_at_end(s->begun[1]));
    until(s, s->near.mux.n_streams == 1 && s->remote.mux.n_streams == 1);
    say(s->begun[2], "b");
    expect(s, s->opened[2], "b");
    finish(s);
}

static void data_before_the_end_of_a_stream_is_delivered(void **state)
{
    scene *s = begin();
    const int fd = add_stream(s);

    LS_UNUSED(state);
    say(fd, "last words");
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    until(s, s->n_opened == 1);
    expect(s, s->opened[0], "last words");
    until(s, is_at_end(s->opened[0]));
    until(s, s->near.mux.n_streams == 0 && s->remote.mux.n_streams == 0);
    finish(s);
}

static void an_answer_comes_whole_though_its_stream_has_ended(void **state)
{
    enum { BYTES = 2 << 20 };
    scene *s = begin();
    uint8_t *bytes = calloc(1, BYTES);
    const int fd = add_stream(s);
    size_t n = 0;

    LS_UNUSED(state);
    say(fd, "?");
    until(s, s->n_opened == 1);
    while (n < BYTES) {
        const ssize_t out = send(s->opened[0], bytes, BYTES - n, MSG_NOSIGNAL);

        n += out > 0 ? (size_t)out : 0;
        assert_ok(poller_run_once(s->loop, 10));
    }
    file_close(&s->opened[0]);
    until(s, s->remote.mux.n_streams == 0);
    turn(s);
    assert_int_equal(s->near.mux.n_streams, 1); /* its socket has not accepted all bytes yet */
    for (n = 0;;) {
        const ssize_t in = recv(fd, bytes, BYTES, 0);

        if (in == 0)
            break;
        n += in > 0 ? (size_t)in : 0;
        assert_ok(poller_run_once(s->loop, 10));
    }
    assert_int_equal(n, BYTES);
    assert_int_equal(s->near.mux.n_streams, 0);
    finish(s);
    free(bytes);
}

static void closed_client_ends_its_stream(void **state)
{
    enum { BYTES = 2 << 20 };
    scene *s = begin();
    uint8_t *bytes = calloc(1, BYTES);
    size_t n = 0;

    LS_UNUSED(state);
    say(add_stream(s), "?");
    until(s, s->n_opened == 1);
    while (n < BYTES) {
        const ssize_t out = send(s->opened[0], bytes, BYTES - n, MSG_NOSIGNAL);

        n += out > 0 ? (size_t)out : 0;
        assert_ok(poller_run_once(s->loop, 10));
    }
    file_close(&s->opened[0]);
    until(s, s->remote.mux.n_streams == 0);
    file_close(&s->begun[0]);
    until(s, s->near.mux.n_streams == 0);
    finish(s);
    free(bytes);
}

/* --- numbers --- */

static void unknown_and_closed_stream_numbers_are_refused(void **state)
{
    scene *s = begin();

    LS_UNUSED(state);
    receive(&s->near, 7, "x"); /* this end accepts no streams */
    assert_int_equal(s->near.mux.n_streams, 0);
    receive(&s->remote, 3, "x");
    assert_int_equal(s->n_opened, 1);
    receive(&s->remote, 2, "x"); /* older than the newest stream */
    receive(&s->remote, 0, "x");
    assert_int_equal(s->n_opened, 1);
    receive(&s->remote, 3, "");
    receive(&s->remote, 3, ""); /* twice */
    receive(&s->remote, 3, "x");
    receive(&s->remote, 9, ""); /* ends before it begins */
    assert_int_equal(s->n_opened, 1);
    receive(&s->remote, 9, "x");
    assert_int_equal(s->n_opened, 2);
    receive(&s->remote, UINT32_MAX, "x");
    assert_int_equal(s->n_opened, 3);
    turn(s);
    assert_int_equal(s->near.n_link_ends + s->remote.n_link_ends, 0);
    finish(s);
}

static void truncated_frame_is_refused(void **state)
{
    scene *s = begin();
    uint8_t body[4] = {1};

    LS_UNUSED(state);
    for (size_t n = 0; n < 4; n++)
        assert_status(stream_mux_receive(&s->remote.mux, &(frame){TYPE, body, n}), LS_EPROTO);
    finish(s);
}

static void where_nothing_can_be_opened_the_client_is_closed(void **state)
{
    scene *s = begin();
    const int fd = add_stream(s);

    LS_UNUSED(state);
    s->refuses = true;
    say(fd, "?");
    until(s, is_at_end(fd));
    assert_int_equal(s->remote.mux.n_streams, 0);
    s->refuses = false;
    say(add_stream(s), "again");
    until(s, s->n_opened == 1);
    expect(s, s->opened[0], "again");
    finish(s);
}

/* --- slow sockets and links --- */

/* Fills these sockets. */
static size_t fill(const int *fds, int n)
{
    static const uint8_t bytes[64 * 1024];
    size_t total = 0;

    for (int i = 0; i < n; i++)
        for (ssize_t out = 1; out > 0; total += out > 0 ? (size_t)out : 0)
            out = send(fds[i], bytes, sizeof(bytes), MSG_NOSIGNAL);
    return total;
}

/* Reads the raw end and counts the bytes of the streams. */
static size_t read_pieces(scene *s, frame_reader *in)
{
    size_t moved = 1;
    size_t total = 0;
    bool have = true;
    frame f;

    while (moved > 0) {
        assert_ok(frame_reader_fill(in, s->raw_fd, "the near end", &moved));
        for (have = true; have;) {
            assert_ok(frame_reader_next(in, &f, &have));
            total += have ? f.bytes - 4 : 0;
        }
    }
    return total;
}

static void while_the_link_is_full_the_sockets_wait_and_nothing_is_lost(void **state)
{
    scene *s = begin_with(true, LINK_FULL + LINK_FULL / 8);
    frame_reader in;
    size_t sent = 0;
    size_t got = 0;

    LS_UNUSED(state);
    for (int i = 0; i < STREAMS; i++)
        (void)add_stream(s);
    for (int i = 0; i < 50; i++) {
        sent += fill(s->begun, STREAMS);
        turn(s);
        assert_true(frame_queue_bytes(&s->near.link.out) <= LINK_FULL + FRAME_MOST);
    }
    assert_true(frame_queue_bytes(&s->near.link.out) > LINK_FULL);
    assert_int_equal(s->near.n_link_ends, 0);
    frame_reader_init(&in, 64 * 1024);
    until(s, (got += read_pieces(s, &in)) == sent);
    assert_int_equal(s->near.mux.n_streams, STREAMS);
    frame_reader_free(&in);
    finish(s);
}

static void while_the_link_is_full_those_that_have_gone_cost_nothing(void **state)
{
    scene *s = begin_with(true, LINK_FULL * 2);
    frame_reader in;
    size_t sent = 0;
    size_t got = 0;
    int n_turns = 0;

    LS_UNUSED(state);
    for (int i = 0; i < STREAMS; i++)
        (void)add_stream(s);
    for (int i = 0; i < 50; i++) {
        sent += fill(s->begun, STREAMS);
        turn(s);
    }
    for (int i = 0; i < STREAMS; i++)
        file_close(&s->begun[i]);
    for (int64_t until_ms = ls_deadline_ms(300); ls_deadline_left(until_ms) > 0; n_turns++)
        assert_ok(poller_run_once(s->loop, ls_deadline_left(until_ms)));
    assert_true(n_turns < 50);
    assert_int_equal(s->near.mux.n_streams, STREAMS);
    frame_reader_init(&in, 64 * 1024);
    until(s, (got += read_pieces(s, &in)) == sent && s->near.mux.n_streams == 0);
    frame_reader_free(&in);
    finish(s);
}

static void full_socket_ends_only_its_stream(void **state)
{
    static const uint8_t piece[4 + 32 * 1024] = {1};
    scene *s = begin();
    const int slow = add_stream(s);
    const int quick = add_stream(s);
    int n = 0;

    LS_UNUSED(state);
    say(slow, "?");
    until(s, s->n_opened == 1);
    say(quick, "?");
    until(s, s->n_opened == 2);
    for (; s->near.mux.n_streams == 2; n++) {
        assert_true(n < 2048);
        assert_ok(stream_mux_receive(&s->near.mux, &(frame){TYPE, piece, sizeof(piece)}));
    }
    assert_true(n > 64);
    until(s, s->remote.mux.n_streams == 1); /* the other end has opened it */
    say(s->opened[1], "still here");
    expect(s, quick, "still here");
    finish(s);
}

static void all_sockets_together_hold_a_bounded_amount(void **state)
{
    static uint8_t piece[4 + 60 * 1024];
    scene *s = begin();
    size_t most = 0;

    LS_UNUSED(state);
    for (int i = 0; i < 16; i++)
        (void)add_stream(s);
    for (int n = 0; n < 16 * 250; n++) {
        wire_put_u32(piece, 1 + (uint32_t)n % 16);
        assert_ok(stream_mux_receive(&s->near.mux, &(frame){TYPE, piece, sizeof(piece)}));
        most = s->near.mux.held > most ? s->near.mux.held : most;
    }
    assert_in_range(most, 60 << 20, 64 << 20);
    finish(s);
}

static void number_of_streams_is_limited(void **state)
{
    scene *s = begin();
    int fds[2];
    int n = 0;

    LS_UNUSED(state);
    /* /dev/null cannot be watched, a shared end of a pipe can */
    make_pair(fds);
    for (; n < 10000; n++) {
        const int fd = dup(fds[0]);

        if (fd < 0 || stream_mux_begin(&s->near.mux, fd) != LS_OK)
            break;
    }
    assert_true(n <= 4096 && n == s->near.mux.n_streams);
    (void)close(fds[0]);
    (void)close(fds[1]);
    finish(s);
}

static void a_link_that_has_ended_leaves_its_streams_to_their_owner(void **state)
{
    scene *s = begin();
    const int fd = add_stream(s);

    LS_UNUSED(state);
    say(fd, "?");
    until(s, s->n_opened == 1);
    frame_link_close(&s->remote.link);
    until(s, s->near.n_link_ends == 1);
    say(fd, "ping");
    say(s->opened[0], "no");
    turn(s);
    stream_mux_close(&s->near.mux);
    stream_mux_close(&s->remote.mux);
    assert_true(is_at_end(fd));
    finish(s);
}

static void without_memory_no_piece_of_a_stream_is_left_out(void **state)
{
    LS_UNUSED(state);
    for (uint64_t at = 1; at <= 4; at++) {
        scene *s = begin();
        const int fd = add_stream(s);

        say(fd, "1");
        until(s, s->n_opened == 1);
        expect(s, s->opened[0], "1");
        ls_alloc_fail_at(at);
        say(fd, "2");
        turn(s);
        ls_alloc_fail_at(0);
        if (s->near.n_link_ends + s->remote.n_link_ends == 0 && !is_at_end(fd)) {
            say(fd, "3");
            expect(s, s->opened[0], "23");
        }
        finish(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_stream_has_its_own_bytes_both_ways),
        cmocka_unit_test(much_is_cut_into_small_pieces_and_comes_whole),
        cmocka_unit_test(either_side_ends_a_stream_and_the_others_go_on),
        cmocka_unit_test(data_before_the_end_of_a_stream_is_delivered),
        cmocka_unit_test(an_answer_comes_whole_though_its_stream_has_ended),
        cmocka_unit_test(closed_client_ends_its_stream),
        cmocka_unit_test(unknown_and_closed_stream_numbers_are_refused),
        cmocka_unit_test(truncated_frame_is_refused),
        cmocka_unit_test(where_nothing_can_be_opened_the_client_is_closed),
        cmocka_unit_test(while_the_link_is_full_the_sockets_wait_and_nothing_is_lost),
        cmocka_unit_test(while_the_link_is_full_those_that_have_gone_cost_nothing),
        cmocka_unit_test(full_socket_ends_only_its_stream),
        cmocka_unit_test(all_sockets_together_hold_a_bounded_amount),
        cmocka_unit_test(number_of_streams_is_limited),
        cmocka_unit_test(a_link_that_has_ended_leaves_its_streams_to_their_owner),
        cmocka_unit_test(without_memory_no_piece_of_a_stream_is_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
