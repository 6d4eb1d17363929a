/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_link.c - messages over byte streams: framing, partial progress, garbage and ends,
 * each on a socket pair in one thread. Tests of two links run with clear ones, with both kinds of
 * sealed ones, and with several streams of each.
 */
#include "comm/native_mesh_ends.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void messages_of_all_sizes_pass_both_ways_through_tiny_buffers(void **state)
{
    const int n_messages = end_streams == 1 ? 400 : 80;
    static uint8_t payload[PLACE_BYTES];
    end ends[2];
    uint64_t sums[2] = {0, 0};
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, SEED);
    print_message("seed %d\n", SEED);
    for (size_t i = 0; i < sizeof(payload); i++)
        payload[i] = (uint8_t)ls_rng_next(&rng);
    for (int buffer_bytes = 0; buffer_bytes <= 4608; buffer_bytes += 4608) {
        end_open_pair(ends, buffer_bytes);
        sums[0] = sums[1] = 0;
        for (int i = 0; i < n_messages; i++) {
            const int from = (int)ls_rng_below(&rng, 2);
            const uint64_t shape = ls_rng_below(&rng, 10);
            const size_t bytes = shape == 0   ? ls_rng_below(&rng, PLACE_BYTES / 4)
                                 : shape <= 3 ? 0
                                              : ls_rng_below(&rng, 3000);

            link_send(ends[from].link, end_item(payload, bytes));
            sums[from] += end_sum(payload, bytes);
        }
        end_move_all(ends);
        assert_int_equal(ends[0].n_ended + ends[1].n_ended, n_messages);
        assert_int_equal(ends[0].n_sent, ends[1].n_ended);
        assert_true(ends[0].sum == sums[1] && ends[1].sum == sums[0]);
        end_close(&ends[0]);
        end_close(&ends[1]);
    }
}

// Bytes come one by one.
static void message_may_come_byte_by_byte(void **state)
{
    uint8_t payload[300] = {0};
    uint8_t bytes[MESSAGE_HEADER_BYTES + sizeof(payload)];
    link_item *item = end_item(payload, sizeof(payload));
    int fds[2];
    end e;

    LS_UNUSED(state);
    memset(payload, 5, sizeof(payload));
    memcpy(bytes, item->header, MESSAGE_HEADER_BYTES);
    memcpy(bytes + MESSAGE_HEADER_BYTES, payload, sizeof(payload));
    ls_free(item);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    end_open(&e, fds[0]);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        assert_int_equal(e.n_ended, 0);
        assert_int_equal(write(fds[1], bytes + i, 1), 1);
        assert_true(link_receive(e.link));
    }
    assert_int_equal(e.n_ended, 1);
    assert_true(e.sum == end_sum(payload, sizeof(payload)));
    end_close(&e);
    close(fds[1]);
}

static void bytes_before_an_end_are_still_read(void **state)
{
    uint8_t payload[5000] = {1, 2, 3};
    end ends[2];

    LS_UNUSED(state);
    end_open_pair(ends, 0);
    for (int i = 0; i < 5; i++)
        link_send(ends[0].link, end_item(payload, sizeof(payload)));
    assert_true(link_flush(ends[0].link));
    end_close(&ends[0]);
    // Writing to a closed peer fails, but must not hide the bytes that can be read.
    link_send(ends[1].link, end_item(payload, sizeof(payload)));
    assert_true(link_flush(ends[1].link));
    assert_true(ends[1].link->is_cut);
    assert_false(ends[1].link->is_ended);
    while (link_receive(ends[1].link) && !ends[1].link->is_ended)
        continue;
    assert_true(ends[1].link->is_ended);
    assert_int_equal(ends[1].n_ended, 5);
    end_close(&ends[1]);
}

static void end_in_mid_message_ends_the_link(void **state)
{
    uint8_t payload[1000] = {1};
    int fds[2];
    end e;

    LS_UNUSED(state);
    for (size_t cut = 1; cut < MESSAGE_HEADER_BYTES + sizeof(payload); cut += 100) {
        link_item *item = end_item(payload, sizeof(payload));
        const size_t of_header = cut < MESSAGE_HEADER_BYTES ? cut : MESSAGE_HEADER_BYTES;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        end_open(&e, fds[0]);
        assert_int_equal(write(fds[1], item->header, of_header), (ssize_t)of_header);
        assert_int_equal(write(fds[1], payload, cut - of_header), (ssize_t)(cut - of_header));
        close(fds[1]);
        while (link_receive(e.link) && !e.link->is_ended)
            continue;
        assert_true(e.link->is_ended);
        assert_int_equal(e.n_ended, 0);
        assert_int_equal(e.link->error, 0);
        ls_free(item);
        end_close(&e);
    }
}

static void change_and_expect(size_t at, uint8_t value, const char *words)
{
    uint8_t header[MESSAGE_HEADER_BYTES];
    const message m = {.type = MESSAGE_DATA, .bytes = 10, .total = 10};
    message out;

    message_encode(&m, header);
    assert_int_equal(message_decode(header, &out), LS_OK);
    header[at] = value;
    assert_int_equal(message_decode(header, &out), LS_EPROTO);
    assert_non_null(strstr(ls_last_error(), words));
}

static void invalid_headers_are_refused(void **state)
{
    LS_UNUSED(state);
    change_and_expect(0, 0, "wrong magic number");
    change_and_expect(2, 0, "unknown type");
    change_and_expect(2, 200, "unknown type");
    change_and_expect(2, MESSAGE_READY, "payload of 10");
    change_and_expect(2, MESSAGE_LEFT, "payload of 10");
    change_and_expect(2, MESSAGE_PIECE, "piece without a point to point message");
    change_and_expect(3, 0x80, "unknown flags");
    change_and_expect(31, 0x80, "payload of 9223372036854775818");
    change_and_expect(27, 0x01, "payload of 16777226");
    change_and_expect(39, 0x80, "transfer of 9223372036854775818");
    change_and_expect(32, 0x01, "transfer of 1 ");
}

static void garbage_ends_the_link_with_a_text(void **state)
{
    uint8_t garbage[4000];
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, SEED);
    for (int round = 0; round < 20; round++) {
        int fds[2];
        end e;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        end_open(&e, fds[0]);
        for (size_t i = 0; i < sizeof(garbage); i++)
            garbage[i] = (uint8_t)ls_rng_next(&rng);
        assert_int_equal(write(fds[1], garbage, sizeof(garbage)), sizeof(garbage));
        assert_true(link_receive(e.link));
        assert_true(e.link->is_ended);
        assert_string_not_equal(e.link->fault, "");
        assert_int_equal(read(fds[1], garbage, 1), 0); // the other side notices
        end_close(&e);
        close(fds[1]);
    }
}

static void message_that_the_sink_refuses_ends_the_link(void **state)
{
    uint8_t payload[10] = {0};
    end ends[2];

    LS_UNUSED(state);
    end_open_pair(ends, 0);
    ends[1].refuses = true;
    link_send(ends[0].link, end_item(payload, sizeof(payload)));
    assert_true(link_flush(ends[0].link));
    assert_true(link_receive(ends[1].link));
    assert_true(ends[1].link->is_ended);
    assert_string_equal(ends[1].link->fault, "not this one");
    end_close(&ends[0]);
    end_close(&ends[1]);
}

static void withdrawn_message_arrives_whole_or_not_at_all(void **state)
{
    uint8_t *payload = ls_calloc(1, PLACE_BYTES);
    link_item *first = end_item(payload, PLACE_BYTES);
    link_item *second = end_item(payload, PLACE_BYTES);
    uint8_t after[100] = {9};
    uint64_t sum;
    end ends[2];

    LS_UNUSED(state);
    assert_non_null(payload);
    memset(payload, 3, PLACE_BYTES);
    sum = end_sum(payload, PLACE_BYTES);
    end_open_pair(ends, 4608);
    link_send(ends[0].link, first);
    link_send(ends[0].link, second);
    assert_true(link_flush(ends[0].link));
    assert_true(link_withdraw(ends[0].link, second));
    assert_false(link_withdraw(ends[0].link, first));
    ls_free(second);
    ls_free(payload); // the link must not read it again
    link_send(ends[0].link, end_item(after, sizeof(after)));
    end_move_all(ends);
    assert_int_equal(ends[1].n_ended, 2);
    assert_true(ends[1].sum == sum + end_sum(after, sizeof(after)));
    end_close(&ends[0]);
    end_close(&ends[1]);
}

static void stream_continues_after_a_dropped_payload(void **state)
{
    uint8_t *payload = ls_calloc(1, PLACE_BYTES);
    uint8_t after[100] = {9};
    end ends[2];

    LS_UNUSED(state);
    assert_non_null(payload);
    end_open_pair(ends, 4608);
    link_send(ends[0].link, end_item(payload, PLACE_BYTES));
    link_send(ends[0].link, end_item(after, sizeof(after)));
    while (ends[1].n_begun == 0) { // a record takes several turns
        (void)link_flush(ends[0].link);
        (void)link_receive(ends[1].link);
    }
    assert_int_equal(ends[1].n_ended, 0);
    link_drop_payload(ends[1].link);
    memset(ends[1].target, 1, PLACE_BYTES);
    end_move_all(ends);
    assert_int_equal(ends[1].n_ended, 2);
    assert_int_equal(ends[1].target[0], 9);
    assert_int_equal(ends[1].target[PLACE_BYTES / 2],
                     1); // nothing of the first message was written
    ls_free(payload);
    end_close(&ends[0]);
    end_close(&ends[1]);
}

static void link_without_memory_closes_its_stream(void **state)
{
    end e = {0};
    const link_sink sink = end_sink(&e);

    LS_UNUSED(state);
    for (uint64_t at = 1; at <= 2; at++) {
        peer_link *l = NULL;
        int fds[2];
        char byte;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        ls_alloc_fail_at(at);
        assert_int_equal(link_tcp_create(fds[0], &sink, &l), LS_ENOMEM);
        ls_alloc_fail_at(0);
        assert_int_equal(read(fds[1], &byte, 1), 0);
        close(fds[1]);
    }
}

// --- sealed ---

static void sealed_link_without_memory_closes_its_stream(void **state)
{
    end e = {0};
    const link_sink sink = end_sink(&e);
    const seal_pair seals = end_seals(NET_MAC, 0);

    LS_UNUSED(state);
    for (uint64_t at = 1; at <= 3; at++) {
        peer_link *l = NULL;
        int fds[2];
        char byte;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        ls_alloc_fail_at(at);
        assert_int_equal(link_sealed_create(fds[0], &seals, &sink, &l), LS_ENOMEM);
        ls_alloc_fail_at(0);
        assert_int_equal(read(fds[1], &byte, 1), 0);
        close(fds[1]);
    }
}

// What goes over the line when a sealed link sends this payload twice.
static size_t record_line(uint8_t *line, size_t max, const char *text)
{
    const uint8_t *payload = (const uint8_t *)text;
    int fds[2];
    ssize_t n;
    end e;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    end_open_sealed(&e, fds[0], 0);
    for (int i = 0; i < 2; i++) {
        link_send(e.link, end_item(payload, strlen(text)));
        assert_true(link_flush(e.link));
    }
    n = read(fds[1], line, max);
    assert_true(n > 0);
    end_close(&e);
    close(fds[1]);
    return (size_t)n;
}

// Plays a line to the other end.
static void play_line(end *e, const uint8_t *line, size_t bytes)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    end_open_sealed(e, fds[0], 1);
    assert_int_equal(write(fds[1], line, bytes), (ssize_t)bytes);
    close(fds[1]);
    for (int i = 0; i < 10 && !e->link->is_ended; i++)
        (void)link_receive(e->link);
    assert_true(e->link->is_ended);
}

static void modified_record_ends_the_link_with_a_text(void **state)
{
    uint8_t line[1024];

    LS_UNUSED(state);
    for (end_security = NET_MAC; end_security <= NET_ENCRYPT; end_security++) {
        const size_t n = record_line(line, sizeof(line), "gradients");
        end e;

        play_line(&e, line, n);
        assert_int_equal(e.n_ended, 2);
        assert_string_equal(e.link->fault, "");
        assert_int_equal(e.link->error, 0);
        end_close(&e);
        memcpy(line + n / 2, line, n / 2);
        play_line(&e, line, n);
        assert_int_equal(e.n_ended, 1);
        assert_string_equal(e.link->fault, "record 0 was repeated, expected 1");
        end_close(&e);
        line[n / 2 - 1] ^= 1;
        play_line(&e, line, n);
        assert_int_equal(e.n_ended, 0);
        assert_string_equal(e.link->fault, "record 0 was modified in transit");
        end_close(&e);
        play_line(&e, line, n / 2 - 1);
        assert_int_equal(e.n_ended, 0);
        assert_int_equal(e.link->error, ECONNRESET); // no orderly end
        end_close(&e);
    }
    end_security = NET_AUTH;
}

static void encrypted_line_shows_no_payload(void **state)
{
    static const char text[] = "the weights of layer 7";
    uint8_t line[1024];

    LS_UNUSED(state);
    for (end_security = NET_MAC; end_security <= NET_ENCRYPT; end_security++) {
        const size_t n = record_line(line, sizeof(line), text);

        assert_int_equal(memmem(line, n, text, strlen(text)) != NULL, end_security == NET_MAC);
    }
    end_security = NET_AUTH;
}

int main(void)
{
    const struct CMUnitTest of_two[] = {
        cmocka_unit_test(messages_of_all_sizes_pass_both_ways_through_tiny_buffers),
        cmocka_unit_test(bytes_before_an_end_are_still_read),
        cmocka_unit_test(message_that_the_sink_refuses_ends_the_link),
        cmocka_unit_test(withdrawn_message_arrives_whole_or_not_at_all),
        cmocka_unit_test(stream_continues_after_a_dropped_payload),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_may_come_byte_by_byte),
        cmocka_unit_test(end_in_mid_message_ends_the_link),
        cmocka_unit_test(invalid_headers_are_refused),
        cmocka_unit_test(garbage_ends_the_link_with_a_text),
        cmocka_unit_test(link_without_memory_closes_its_stream),
        cmocka_unit_test(sealed_link_without_memory_closes_its_stream),
        cmocka_unit_test(modified_record_ends_the_link_with_a_text),
        cmocka_unit_test(encrypted_line_shows_no_payload),
    };
    int failed = 0;

    for (end_streams = 1; end_streams <= 3; end_streams += 2)
        for (end_security = NET_AUTH; end_security <= NET_ENCRYPT; end_security++)
            failed +=
                cmocka_run_group_tests_name(net_security_text(end_security), of_two, NULL, NULL);
    end_streams = 1;
    end_security = NET_AUTH;
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
