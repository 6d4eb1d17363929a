/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_striped.c - links of several streams: where each byte goes, which stream they wait
 * for, and what wakes a sleeper.
 */
#include "comm/native_mesh_ends.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK ((size_t)64 * 1024)

static bool is_ready(const end *e)
{
    struct pollfd waited = {.fd = e->link->fd, .events = POLLIN};

    return poll(&waited, 1, 0) > 0;
}

// A striped end over plain sockets, whose other ends are returned.
static void open_bare(end *e, int n, int others[LINK_STREAMS_MAX])
{
    end_open_striped(e, n);
    for (int i = 0; i < n; i++) {
        int fds[2];

        end_sockets(fds, 0);
        assert_int_equal(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
        end_add_stream(e, i, fds[0], 0);
        others[i] = fds[1];
    }
}

static void close_bare(end *e, int n, const int *others)
{
    end_close(e);
    for (int i = 0; i < n; i++)
        close(others[i]);
}

static size_t read_all(int fd, uint8_t *to, size_t max)
{
    size_t bytes = 0;
    ssize_t n;

    while (bytes < max && (n = read(fd, to + bytes, max - bytes)) > 0)
        bytes += (size_t)n;
    return bytes;
}

static void blocks_go_over_the_streams_in_turn(void **state)
{
    const size_t payload_bytes = 5 * BLOCK + 77;
    uint8_t *payload = ls_calloc(1, payload_bytes);
    uint8_t *blocks = ls_calloc(6, BLOCK); // the received blocks, in order
    int others[LINK_STREAMS_MAX];
    size_t taken[3] = {0};
    ls_rng rng;
    end e;

    LS_UNUSED(state);
    assert_true(payload != NULL && blocks != NULL);
    ls_rng_seed(&rng, SEED);
    for (size_t i = 0; i < payload_bytes; i++)
        payload[i] = (uint8_t)ls_rng_next(&rng);
    open_bare(&e, 3, others);
    link_send(e.link, end_item(payload, payload_bytes));
    for (int turn = 0;
         turn < 1000 && taken[0] + taken[1] + taken[2] < MESSAGE_HEADER_BYTES + payload_bytes;
         turn++) {
        (void)link_flush(e.link);
        for (size_t i = 0; i < 3; i++) {
            const size_t block = taken[i] / BLOCK * 3 + i;
            uint8_t *to = blocks + block * BLOCK + taken[i] % BLOCK;

            if (block < 6)
                taken[i] += read_all(others[i], to, BLOCK - taken[i] % BLOCK);
        }
    }
    assert_int_equal(taken[0], 2 * BLOCK);
    assert_int_equal(taken[1], 2 * BLOCK);
    assert_int_equal(taken[2], BLOCK + MESSAGE_HEADER_BYTES + 77);
    assert_memory_equal(blocks + MESSAGE_HEADER_BYTES, payload, payload_bytes);
    assert_int_equal(e.n_sent, 1);
    assert_false(is_ready(&e));
    close_bare(&e, 3, others);
    ls_free(payload);
    ls_free(blocks);
}

// A sleeper wakes only for streams that can be read or written now.
static void only_streams_that_can_move_wake_a_sleeper(void **state)
{
    uint8_t *payload = ls_calloc(8, BLOCK);
    uint8_t *rest = ls_calloc(8, BLOCK);
    link_item *item = end_item(payload, 2 * BLOCK - MESSAGE_HEADER_BYTES);
    int others[LINK_STREAMS_MAX];
    size_t bytes;
    end e;

    LS_UNUSED(state);
    assert_true(payload != NULL && rest != NULL);
    open_bare(&e, 2, others);
    assert_false(is_ready(&e));
    assert_int_equal(write(others[1], payload, 1000), 1000); // another stream is next
    assert_false(is_ready(&e));
    assert_false(link_receive(e.link));
    assert_int_equal(write(others[0], item->header, MESSAGE_HEADER_BYTES), MESSAGE_HEADER_BYTES);
    assert_true(is_ready(&e));
    assert_true(link_receive(e.link));
    assert_false(is_ready(&e));
    for (size_t left = BLOCK - MESSAGE_HEADER_BYTES; left > 0;) {
        const ssize_t n = write(others[0], payload, left);

        left -= n > 0 ? (size_t)n : 0;
        (void)link_receive(e.link); // which goes on with the waiting bytes
    }
    assert_int_equal(e.n_begun, 1);
    assert_int_equal(e.n_ended, 0);
    assert_false(is_ready(&e));

    // Full: a sleeper wakes when the other end reads.
    link_send(e.link, end_item(payload, 8 * BLOCK));
    while (link_flush(e.link) && !e.link->is_full)
        continue;
    assert_true(e.link->is_full);
    assert_false(is_ready(&e));
    bytes = read_all(others[0], rest, 8 * BLOCK);
    bytes += read_all(others[1], rest, 8 * BLOCK);
    assert_true(bytes > 0);
    assert_true(is_ready(&e));
    for (int turn = 0; turn < 1000 && link_has_output(e.link); turn++) {
        (void)link_flush(e.link);
        (void)read_all(others[0], rest, BLOCK);
        (void)read_all(others[1], rest, BLOCK);
    }
    assert_false(link_has_output(e.link));
    assert_false(is_ready(&e));
    ls_free(item);
    close_bare(&e, 2, others);
    ls_free(payload);
    ls_free(rest);
}

static void link_waits_for_a_stream_that_is_not_added_yet(void **state)
{
    uint8_t *payload = ls_calloc(1, PLACE_BYTES);
    const int n = 3;
    end ends[2];

    LS_UNUSED(state);
    assert_non_null(payload);
    for (end_security = NET_AUTH; end_security <= NET_ENCRYPT; end_security++) {
        for (int i = 0; i < 2; i++)
            end_open_striped(&ends[i], n);
        for (size_t i = 0; i < PLACE_BYTES; i++)
            payload[i] = (uint8_t)(i + i / 251);
        link_send(ends[0].link, end_item(payload, PLACE_BYTES));
        link_send(ends[1].link, end_item(payload, PLACE_BYTES));
        assert_false(link_flush(ends[0].link));
        assert_false(link_receive(ends[0].link));
        for (int i = 0; i < n; i++) { // one end adds each stream earlier
            const int first = i % 2;
            int fds[2];

            end_sockets(fds, 0);
            end_add_stream(&ends[first], i, fds[first], first);
            (void)link_flush(ends[first].link);
            end_add_stream(&ends[1 - first], i, fds[1 - first], 1 - first);
            assert_int_equal(ends[0].n_ended + ends[1].n_ended, 0);
            for (int turn = 0; turn < 100; turn++) {
                (void)link_flush(ends[turn % 2].link);
                (void)link_receive(ends[1 - turn % 2].link);
            }
            if (i < n - 1)
                assert_false(is_ready(&ends[0]) || is_ready(&ends[1]));
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(ends[i].n_ended, 1);
            assert_true(ends[i].sum == end_sum(payload, PLACE_BYTES));
        }
        end_close(&ends[0]);
        end_close(&ends[1]);
    }
    end_security = NET_AUTH;
    ls_free(payload);
}

// One stream fails while another is next to be read.
static void stream_that_fails_out_of_turn_ends_the_link(void **state)
{
    uint8_t *payload = ls_calloc(1, BLOCK);
    int others[LINK_STREAMS_MAX];
    char byte;
    end e;

    LS_UNUSED(state);
    assert_non_null(payload);
    open_bare(&e, 3, others);
    link_send(e.link, end_item(payload, BLOCK)); // so its last bytes are the second stream's
    assert_true(link_flush(e.link));
    assert_false(link_has_output(e.link));
    assert_false(is_ready(&e));
    close(others[1]); // without reading them, which causes a reset
    assert_true(is_ready(&e));
    for (int i = 0; i < 1000 && !e.link->is_ended; i++)
        (void)link_receive(e.link);
    assert_true(e.link->is_ended);
    assert_int_equal(e.link->error, ECONNRESET);
    assert_int_equal(read_all(others[0], payload, BLOCK), BLOCK);
    assert_int_equal(read(others[0], &byte, 1), 0); // the peer notices
    assert_int_equal(read(others[2], &byte, 1), 0);
    end_close(&e);
    close(others[0]);
    close(others[2]);
    ls_free(payload);
}

// A call that has moved enough may stop in the middle of a record: the descriptor must show the
// rest.
static void descriptor_is_readable_while_records_are_left(void **state)
{
    enum { LARGE = 7, LARGE_BYTES = 300000, SMALL_BYTES = 1000 };
    uint8_t *payload = ls_calloc(1, LARGE_BYTES);
    end ends[2];

    LS_UNUSED(state);
    assert_non_null(payload);
    end_streams = LINK_STREAMS_MAX; // so that the buffers hold all of it
    for (end_security = NET_AUTH; end_security <= NET_ENCRYPT; end_security++) {
        end_open_pair(ends, 212992);
        for (int i = 0; i < LARGE; i++)
            link_send(ends[0].link, end_item(payload, LARGE_BYTES));
        link_send(ends[0].link, end_item(payload, SMALL_BYTES));
        for (int turn = 0; turn < 10; turn++)
            (void)link_flush(ends[0].link);
        assert_false(link_has_output(ends[0].link));
        while (is_ready(&ends[1]))
            (void)link_receive(ends[1].link);
        assert_int_equal(ends[1].n_ended, LARGE + 1);
        end_close(&ends[0]);
        end_close(&ends[1]);
    }
    end_security = NET_AUTH;
    end_streams = 1;
    ls_free(payload);
}

static void bytes_that_a_stream_holds_are_not_delivered(void **state)
{
    uint8_t *payload = ls_calloc(1, BLOCK);
    int others[LINK_STREAMS_MAX];
    end e;

    LS_UNUSED(state);
    assert_non_null(payload);
    open_bare(&e, 2, others);
    link_send(e.link, end_item(payload, BLOCK)); // so its last bytes are the second stream's
    assert_true(link_flush(e.link));
    assert_false(link_has_output(e.link));
    assert_false(link_is_delivered(e.link));
    assert_int_equal(read_all(others[0], payload, BLOCK), BLOCK);
    assert_false(link_is_delivered(e.link));
    assert_int_equal(read_all(others[1], payload, BLOCK), MESSAGE_HEADER_BYTES);
    assert_true(link_is_delivered(e.link));
    close_bare(&e, 2, others);
    ls_free(payload);
}

static void striped_link_without_memory_closes_its_streams(void **state)
{
    end e = {0};
    const link_sink sink = end_sink(&e);
    peer_link *l = NULL;
    uint64_t at = 1;
    const int before = dup(0);

    LS_UNUSED(state);
    for (ls_status st = LS_ENOMEM; st != LS_OK; at++) {
        ls_alloc_fail_at(at);
        st = link_striped_create(2, &sink, &l);
        ls_alloc_fail_at(0);
        assert_true(st == LS_OK || st == LS_ENOMEM);
    }
    assert_true(at > 3);
    assert_int_equal(l->fd, before + 1); // no descriptor of a failed attempt is left
    link_destroy(l);
    close(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_go_over_the_streams_in_turn),
        cmocka_unit_test(only_streams_that_can_move_wake_a_sleeper),
        cmocka_unit_test(link_waits_for_a_stream_that_is_not_added_yet),
        cmocka_unit_test(stream_that_fails_out_of_turn_ends_the_link),
        cmocka_unit_test(descriptor_is_readable_while_records_are_left),
        cmocka_unit_test(bytes_that_a_stream_holds_are_not_delivered),
        cmocka_unit_test(striped_link_without_memory_closes_its_streams),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
