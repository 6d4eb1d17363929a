/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_frame.c - wire fields, byte queues and frames: layout, limits and memory, with input in
 * pieces of any size.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "net/messages/frame.h"
#include "net/wire.h"

#include <sys/socket.h>
#include <unistd.h>

/* --- wire --- */

static void numbers_are_little_endian(void **state)
{
    static const uint8_t expected[] = {0x02, 0x01, 0x06, 0x05, 0x04, 0x03, 0x0e,
                                       0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08, 0x07};
    uint8_t out[14];

    LS_UNUSED(state);
    wire_put_u16(out, 0x0102);
    wire_put_u32(out + 2, 0x03040506);
    wire_put_u64(out + 6, 0x0708090a0b0c0d0e);
    assert_memory_equal(out, expected, sizeof(expected));
    assert_int_equal(wire_get_u16(out), 0x0102);
    assert_int_equal(wire_get_u32(out + 2), 0x03040506);
    assert_true(wire_get_u64(out + 6) == 0x0708090a0b0c0d0e);
}

static void fields_come_back_as_written(void **state)
{
    wire_writer w = {0};
    wire_reader r;
    char text[8];
    size_t bytes;
    const uint8_t *raw;

    LS_UNUSED(state);
    wire_write_u8(&w, 7);
    wire_write_u16(&w, 700);
    wire_write_u32(&w, 70000);
    wire_write_u64(&w, UINT64_MAX);
    wire_write_i64(&w, INT64_MIN);
    wire_write_bytes(&w, "ab", 2);
    wire_write_text(&w, "rank 1");
    wire_write_bytes(&w, NULL, 0);
    assert_ok(wire_writer_status(&w));
    r = wire_reader_over(w.data, w.bytes);
    assert_int_equal(wire_read_u8(&r), 7);
    assert_int_equal(wire_read_u16(&r), 700);
    assert_int_equal(wire_read_u32(&r), 70000);
    assert_true(wire_read_u64(&r) == UINT64_MAX);
    assert_true(wire_read_i64(&r) == INT64_MIN);
    raw = wire_read_bytes(&r, 2, &bytes);
    assert_int_equal(bytes, 2);
    assert_memory_equal(raw, "ab", 2);
    wire_read_text(&r, text, sizeof(text));
    assert_string_equal(text, "rank 1");
    assert_non_null(wire_read_bytes(&r, 0, &bytes));
    assert_ok(wire_reader_end(&r, "test"));
    wire_writer_free(&w);
}

static void a_reader_never_leaves_its_bytes(void **state)
{
    const uint8_t claims_much[] = {0xff, 0xff, 0xff, 0xff, 1, 2};
    const uint8_t with_zero[] = {3, 0, 0, 0, 'a', 0, 'b'};
    wire_reader r = wire_reader_over(claims_much, sizeof(claims_much));
    char text[8];
    size_t bytes;

    LS_UNUSED(state);
    assert_null(wire_read_bytes(&r, SIZE_MAX, &bytes));
    assert_int_equal(bytes, 0);
    assert_int_equal(wire_read_u8(&r), 0); // the failure is remembered
    assert_status(wire_reader_end(&r, "test"), LS_EPROTO);
    assert_last_error("test");
    r = wire_reader_over(NULL, 0);
    assert_int_equal(wire_read_u64(&r), 0);
    assert_true(r.failed);
    r = wire_reader_over(with_zero, sizeof(with_zero));
    wire_read_text(&r, text, sizeof(text));
    assert_true(r.failed);
    r = wire_reader_over(with_zero, sizeof(with_zero));
    wire_read_text(&r, text, 3); // does not fit
    assert_true(r.failed);
    r = wire_reader_over(with_zero, sizeof(with_zero));
    wire_read_u8(&r);
    assert_status(wire_reader_end(&r, "test"), LS_EPROTO);
    assert_last_error("6 bytes too many");
}

static void writer_without_memory_reports_it_at_the_end(void **state)
{
    wire_writer w = {0};

    LS_UNUSED(state);
    ls_alloc_fail_at(1);
    wire_write_u32(&w, 1);
    ls_alloc_fail_at(0);
    wire_write_u32(&w, 2);
    assert_status(wire_writer_status(&w), LS_ENOMEM);
    wire_writer_reset(&w);
    wire_write_u32(&w, 2);
    assert_ok(wire_writer_status(&w));
    wire_writer_free(&w);
}

/* --- frames --- */

static size_t put_frame(uint8_t *at, uint32_t type, const void *body, size_t bytes)
{
    wire_put_u32(at, (uint32_t)bytes);
    wire_put_u32(at + 4, type);
    memcpy(at + 8, body, bytes);
    return 8 + bytes;
}

/* Feeds two pieces, cut at `cut`, and checks the three frames. */
static void check_cut(const uint8_t *stream, size_t n, size_t cut)
{
    static const char *const bodies[] = {"", "hello", "second frame"};
    frame_reader r;
    frame f;
    bool have;
    int n_frames = 0;

    frame_reader_init(&r, 64);
    for (int piece = 0; piece < 2; piece++) {
        assert_ok(
            frame_reader_feed(&r, piece == 0 ? stream : stream + cut, piece == 0 ? cut : n - cut));
        for (;;) {
            assert_ok(frame_reader_next(&r, &f, &have));
            if (!have)
                break;
            assert_int_equal(f.type, 100 + n_frames);
            assert_int_equal(f.bytes, strlen(bodies[n_frames]));
            assert_memory_equal(f.body, bodies[n_frames], f.bytes);
            n_frames++;
        }
    }
    assert_int_equal(n_frames, 3);
    frame_reader_free(&r);
}

static void frames_are_the_same_however_they_are_cut(void **state)
{
    uint8_t stream[128];
    size_t n = 0;

    LS_UNUSED(state);
    n += put_frame(stream + n, 100, "", 0);
    n += put_frame(stream + n, 101, "hello", 5);
    n += put_frame(stream + n, 102, "second frame", 12);
    for (size_t cut = 0; cut <= n; cut++)
        check_cut(stream, n, cut);
}

static void oversized_frame_is_refused_before_memory_is_allocated(void **state)
{
    uint8_t header[8];
    frame_reader r;
    frame f;
    bool have;

    LS_UNUSED(state);
    frame_reader_init(&r, 1000);
    wire_put_u32(header, 1001);
    wire_put_u32(header + 4, 1);
    assert_ok(frame_reader_feed(&r, header, sizeof(header)));
    assert_status(frame_reader_next(&r, &f, &have), LS_EPROTO);
    assert_last_error("1001");
    frame_reader_free(&r);

    frame_reader_init(&r, 1 << 30);
    wire_put_u32(header, 1 << 30); // allowed, but only 8 bytes have arrived
    assert_ok(frame_reader_feed(&r, header, sizeof(header)));
    assert_ok(frame_reader_next(&r, &f, &have));
    assert_false(have);
    assert_true(r.in.capacity <= 4096);
    frame_reader_free(&r);
}

static void memory_follows_the_bytes_and_is_given_back(void **state)
{
    enum { BODY = 3 * 1000 * 1000 };
    uint8_t *stream = ls_calloc(BODY + 8, 1);
    frame_reader r;
    frame f;
    bool have = false;

    LS_UNUSED(state);
    assert_non_null(stream);
    wire_put_u32(stream, BODY);
    wire_put_u32(stream + 4, 9);
    frame_reader_init(&r, BODY);
    for (size_t at = 0; at < BODY + 8; at += 1000) {
        const size_t n = BODY + 8 - at < 1000 ? BODY + 8 - at : 1000;

        assert_false(have);
        assert_ok(frame_reader_feed(&r, stream + at, n));
        assert_true(r.in.capacity <= 4 * (at + n) + 8192);
        assert_ok(frame_reader_next(&r, &f, &have));
    }
    assert_true(have);
    assert_int_equal(f.bytes, BODY);
    assert_ok(frame_reader_feed(&r, stream, 8));
    assert_true(r.in.capacity <= 64 * 1024);
    frame_reader_free(&r);
    ls_free(stream);
}

static void many_frames_through_a_socket_arrive_in_order(void **state)
{
    frame_queue q;
    frame_reader r;
    ls_rng rng;
    int fds[2];
    uint32_t n_sent = 0;
    uint32_t n_got = 0;
    static uint8_t body[70000];

    LS_UNUSED(state);
    ls_rng_seed(&rng, 7);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    frame_queue_init(&q, 1 << 20);
    frame_reader_init(&r, sizeof(body));
    while (n_got < 500) {
        size_t moved;
        frame f;
        bool have = true;

        while (n_sent < 500 && frame_queue_bytes(&q) < 300000) {
            const size_t n = ls_rng_below(&rng, n_sent % 7 == 0 ? sizeof(body) : 50);

            memset(body, (int)(n_sent & 0xff), n);
            assert_ok(frame_queue_add(&q, n_sent++, body, n));
        }
        assert_ok(frame_queue_flush(&q, fds[0], "peer"));
        assert_ok(frame_reader_fill(&r, fds[1], "peer", &moved));
        while (have) {
            assert_ok(frame_reader_next(&r, &f, &have));
            if (!have)
                break;
            assert_int_equal(f.type, n_got);
            for (size_t i = 0; i < f.bytes; i++)
                assert_int_equal(f.body[i], n_got & 0xff);
            n_got++;
        }
    }
    assert_int_equal(frame_queue_bytes(&q), 0);
    frame_queue_free(&q);
    frame_reader_free(&r);
    close(fds[0]);
    close(fds[1]);
}

static void a_full_queue_refuses_and_keeps_what_it_has(void **state)
{
    frame_queue q;
    uint8_t body[100] = {0};
    size_t held;

    LS_UNUSED(state);
    frame_queue_init(&q, 1000);
    for (int i = 0; i < 9; i++)
        assert_ok(frame_queue_add(&q, 1, body, sizeof(body)));
    held = frame_queue_bytes(&q);
    assert_status(frame_queue_add(&q, 1, body, sizeof(body)), LS_ENOMEM);
    assert_int_equal(frame_queue_bytes(&q), held);
    assert_ok(frame_queue_add(&q, 1, body, 20));
    ls_alloc_fail_at(1);
    frame_queue_free(&q);
    assert_status(frame_queue_add(&q, 1, body, 20), LS_ENOMEM);
    ls_alloc_fail_at(0);
    assert_int_equal(frame_queue_bytes(&q), 0);
    frame_queue_free(&q);
}

static void the_end_of_a_stream_names_the_peer(void **state)
{
    frame_reader r;
    frame_queue q;
    size_t moved;
    int fds[2];

    LS_UNUSED(state);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    frame_reader_init(&r, 100);
    frame_queue_init(&q, 100);
    assert_ok(frame_reader_fill(&r, fds[0], "rank 7", &moved));
    assert_int_equal(moved, 0);
    close(fds[1]);
    assert_status(frame_reader_fill(&r, fds[0], "rank 7", &moved), LS_EPEER);
    assert_last_error("rank 7");
    assert_ok(frame_queue_add(&q, 1, "x", 1));
    assert_status(frame_queue_flush(&q, fds[0], "rank 7"), LS_EPEER);
    assert_last_error("rank 7");
    frame_reader_free(&r);
    frame_queue_free(&q);
    close(fds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_little_endian),
        cmocka_unit_test(fields_come_back_as_written),
        cmocka_unit_test(a_reader_never_leaves_its_bytes),
        cmocka_unit_test(writer_without_memory_reports_it_at_the_end),
        cmocka_unit_test(frames_are_the_same_however_they_are_cut),
        cmocka_unit_test(oversized_frame_is_refused_before_memory_is_allocated),
        cmocka_unit_test(memory_follows_the_bytes_and_is_given_back),
        cmocka_unit_test(many_frames_through_a_socket_arrive_in_order),
        cmocka_unit_test(a_full_queue_refuses_and_keeps_what_it_has),
        cmocka_unit_test(the_end_of_a_stream_names_the_peer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
