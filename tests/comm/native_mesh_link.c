/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over byte streams: framing, partial progress, garbage and ends, each on a socket pair in one thread. What needs two links
 * runs with clear ones and with both kinds of sealed ones, and with several strands of each.
 */
#include "comm/native/link.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEED        20240
#define PLACE_BYTES (1U << 20)

static net_security security;
static int n_strands = 1; /* of each link of a pair */

/* One end: what it has received, in order. */
typedef struct end {
    peer_link *link;
    message last;
    uint8_t *place; /* NULL: payloads are dropped */
    size_t n_begun;
    size_t n_ended;
    size_t n_sent;
    bool refuses;
    uint64_t sum; /* of payload bytes with their position */
} end;

static ls_status on_begin(void *self, const message *m, uint8_t **place)
{
    end *e = self;

    if (e->refuses)
        return ls_fail(LS_EPROTO, "not this one");
    e->last = *m;
    e->n_begun++;
    *place = e->place;
    return LS_OK;
}

static ls_status on_end(void *self)
{
    end *e = self;

    e->n_ended++;
    for (size_t i = 0; i < e->last.bytes && e->place != NULL; i++)
        e->sum += e->place[i] * (i + 1);
    return LS_OK;
}

static void on_sent(void *self, link_item *item)
{
    end *e = self;

    e->n_sent++;
    ls_free(item->copy);
    ls_free(item);
}

static link_sink prepare_end(end *e, int fd)
{
    *e = (end){.place = ls_calloc(1, PLACE_BYTES)};
    assert_non_null(e->place);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return (link_sink){.begin = on_begin, .end = on_end, .sent = on_sent, .self = e};
}

static void open_end(end *e, int fd)
{
    const link_sink sink = prepare_end(e, fd);

    assert_int_equal(link_tcp_create(fd, &sink, &e->link), LS_OK);
}

static seal_pair seals_of(net_security mode, int which)
{
    static const uint8_t keys[2][SEAL_KEY_BYTES] = {{1}, {2}};
    seal_pair seals;

    seal_start(&seals.out, mode, keys[which]);
    seal_start(&seals.in, mode, keys[1 - which]);
    return seals;
}

static void open_sealed_end(end *e, int fd, int which)
{
    const seal_pair seals = seals_of(security, which);
    const link_sink sink = prepare_end(e, fd);

    assert_int_equal(link_sealed_create(fd, &seals, &sink, &e->link), LS_OK);
}

static void join_pair(int fds[2], int buffer_bytes)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    for (int i = 0; i < 2 && buffer_bytes > 0; i++)
        setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
}

// A strand of an end, of which fd is the socket.
static void add_strand(end *e, int number, int fd, int which)
{
    const seal_pair seals = seals_of(security, which);
    const link_sink sink = e->link->sink;
    peer_link *strand;

    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(security == NET_AUTH ? link_tcp_create(fd, &sink, &strand)
                                          : link_sealed_create(fd, &seals, &sink, &strand),
                     LS_OK);
    assert_int_equal(link_striped_add(e->link, number, strand), LS_OK);
}

static void open_striped_end(end *e, int n)
{
    *e = (end){.place = ls_calloc(1, PLACE_BYTES)};
    assert_non_null(e->place);
    assert_int_equal(link_striped_create(
                         n,
                         &(link_sink){.begin = on_begin, .end = on_end, .sent = on_sent, .self = e},
                         &e->link),
                     LS_OK);
}

static void open_striped_pair(end ends[2], int buffer_bytes)
{
    open_striped_end(&ends[0], n_strands);
    open_striped_end(&ends[1], n_strands);
    for (int i = 0; i < n_strands; i++) {
        int fds[2];

        join_pair(fds, buffer_bytes);
        add_strand(&ends[0], i, fds[0], 0);
        add_strand(&ends[1], i, fds[1], 1);
    }
}

static void open_pair(end ends[2], int buffer_bytes)
{
    int fds[2];

    if (n_strands > 1) {
        open_striped_pair(ends, buffer_bytes);
        return;
    }
    join_pair(fds, buffer_bytes);
    for (int i = 0; i < 2; i++) {
        if (security == NET_AUTH)
            open_end(&ends[i], fds[i]);
        else
            open_sealed_end(&ends[i], fds[i], i);
    }
}

static void close_end(end *e)
{
    link_destroy(e->link);
    ls_free(e->place);
}

static link_item *make_item(const uint8_t *payload, size_t bytes)
{
    link_item *item = ls_calloc(1, sizeof(*item));
    const message m = {.type = MESSAGE_DATA, .bytes = bytes, .total = bytes, .group = 7};

    assert_non_null(item);
    message_encode(&m, item->header);
    item->payload = payload;
    item->bytes = bytes;
    return item;
}

static uint64_t sum_of(const uint8_t *payload, size_t bytes)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < bytes; i++)
        sum += payload[i] * (i + 1);
    return sum;
}

static void move_all(end ends[2])
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

static void messages_of_all_sizes_pass_both_ways_through_tiny_buffers(void **state)
{
    const int n_messages = n_strands == 1 ? 400 : 80;
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
        open_pair(ends, buffer_bytes);
        sums[0] = sums[1] = 0;
        for (int i = 0; i < n_messages; i++) {
            const int from = (int)ls_rng_below(&rng, 2);
            const uint64_t shape = ls_rng_below(&rng, 10);
            const size_t bytes = shape == 0   ? ls_rng_below(&rng, PLACE_BYTES / 4)
                                 : shape <= 3 ? 0
                                              : ls_rng_below(&rng, 3000);

            link_send(ends[from].link, make_item(payload, bytes));
            sums[from] += sum_of(payload, bytes);
        }
        move_all(ends);
        assert_int_equal(ends[0].n_ended + ends[1].n_ended, n_messages);
        assert_int_equal(ends[0].n_sent, ends[1].n_ended);
        assert_true(ends[0].sum == sums[1] && ends[1].sum == sums[0]);
        close_end(&ends[0]);
        close_end(&ends[1]);
    }
}

// Bytes come one by one, whatever they belong to.
static void a_message_may_come_byte_by_byte(void **state)
{
    uint8_t payload[300] = {0};
    uint8_t bytes[MESSAGE_HEADER_BYTES + sizeof(payload)];
    link_item *item = make_item(payload, sizeof(payload));
    int fds[2];
    end e;

    LS_UNUSED(state);
    memset(payload, 5, sizeof(payload));
    memcpy(bytes, item->header, MESSAGE_HEADER_BYTES);
    memcpy(bytes + MESSAGE_HEADER_BYTES, payload, sizeof(payload));
    ls_free(item);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    open_end(&e, fds[0]);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        assert_int_equal(e.n_ended, 0);
        assert_int_equal(write(fds[1], bytes + i, 1), 1);
        assert_true(link_receive(e.link));
    }
    assert_int_equal(e.n_ended, 1);
    assert_true(e.sum == sum_of(payload, sizeof(payload)));
    close_end(&e);
    close(fds[1]);
}

static void what_came_before_an_end_is_still_read(void **state)
{
    uint8_t payload[5000] = {1, 2, 3};
    end ends[2];

    LS_UNUSED(state);
    open_pair(ends, 0);
    for (int i = 0; i < 5; i++)
        link_send(ends[0].link, make_item(payload, sizeof(payload)));
    assert_true(link_flush(ends[0].link));
    close_end(&ends[0]);
    // Writing to what is gone fails, but must not hide what can be read.
    link_send(ends[1].link, make_item(payload, sizeof(payload)));
    assert_true(link_flush(ends[1].link));
    assert_true(ends[1].link->is_cut);
    assert_false(ends[1].link->is_ended);
    while (link_receive(ends[1].link) && !ends[1].link->is_ended)
        continue;
    assert_true(ends[1].link->is_ended);
    assert_int_equal(ends[1].n_ended, 5);
    close_end(&ends[1]);
}

static void an_end_in_mid_message_is_an_end(void **state)
{
    uint8_t payload[1000] = {1};
    int fds[2];
    end e;

    LS_UNUSED(state);
    for (size_t cut = 1; cut < MESSAGE_HEADER_BYTES + sizeof(payload); cut += 100) {
        link_item *item = make_item(payload, sizeof(payload));
        const size_t of_header = cut < MESSAGE_HEADER_BYTES ? cut : MESSAGE_HEADER_BYTES;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        open_end(&e, fds[0]);
        assert_int_equal(write(fds[1], item->header, of_header), (ssize_t)of_header);
        assert_int_equal(write(fds[1], payload, cut - of_header), (ssize_t)(cut - of_header));
        close(fds[1]);
        while (link_receive(e.link) && !e.link->is_ended)
            continue;
        assert_true(e.link->is_ended);
        assert_int_equal(e.n_ended, 0);
        assert_int_equal(e.link->error, 0);
        ls_free(item);
        close_end(&e);
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

static void headers_that_nobody_writes_are_refused(void **state)
{
    LS_UNUSED(state);
    change_and_expect(0, 0, "our mark");
    change_and_expect(2, 0, "unknown type");
    change_and_expect(2, 200, "unknown type");
    change_and_expect(2, MESSAGE_READY, "payload of 10");
    change_and_expect(2, MESSAGE_PIECE, "belongs to no message");
    change_and_expect(3, 0x80, "unknown flags");
    change_and_expect(31, 0x80, "payload of 9223372036854775818");
    change_and_expect(27, 0x01, "payload of 16777226");
    change_and_expect(39, 0x80, "transfer of 9223372036854775818");
    change_and_expect(32, 0x01, "transfer of 1 ");
}

static void garbage_ends_a_link_with_words(void **state)
{
    uint8_t garbage[4000];
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, SEED);
    for (int round = 0; round < 20; round++) {
        int fds[2];
        end e;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        open_end(&e, fds[0]);
        for (size_t i = 0; i < sizeof(garbage); i++)
            garbage[i] = (uint8_t)ls_rng_next(&rng);
        assert_int_equal(write(fds[1], garbage, sizeof(garbage)), sizeof(garbage));
        assert_true(link_receive(e.link));
        assert_true(e.link->is_ended);
        assert_string_not_equal(e.link->fault, "");
        assert_int_equal(read(fds[1], garbage, 1), 0); // the other side notices
        close_end(&e);
        close(fds[1]);
    }
}

static void what_the_sink_refuses_ends_the_link(void **state)
{
    uint8_t payload[10] = {0};
    end ends[2];

    LS_UNUSED(state);
    open_pair(ends, 0);
    ends[1].refuses = true;
    link_send(ends[0].link, make_item(payload, sizeof(payload)));
    assert_true(link_flush(ends[0].link));
    assert_true(link_receive(ends[1].link));
    assert_true(ends[1].link->is_ended);
    assert_string_equal(ends[1].link->fault, "not this one");
    close_end(&ends[0]);
    close_end(&ends[1]);
}

static void a_withdrawn_message_is_whole_or_never_was(void **state)
{
    uint8_t *payload = ls_calloc(1, PLACE_BYTES);
    link_item *first = make_item(payload, PLACE_BYTES);
    link_item *second = make_item(payload, PLACE_BYTES);
    uint8_t after[100] = {9};
    uint64_t sum;
    end ends[2];

    LS_UNUSED(state);
    assert_non_null(payload);
    memset(payload, 3, PLACE_BYTES);
    sum = sum_of(payload, PLACE_BYTES);
    open_pair(ends, 4608);
    link_send(ends[0].link, first);
    link_send(ends[0].link, second);
    assert_true(link_flush(ends[0].link));
    assert_true(link_withdraw(ends[0].link, second));
    assert_false(link_withdraw(ends[0].link, first));
    ls_free(second);
    ls_free(payload); // the link must not look at it again
    link_send(ends[0].link, make_item(after, sizeof(after)));
    move_all(ends);
    assert_int_equal(ends[1].n_ended, 2);
    assert_true(ends[1].sum == sum + sum_of(after, sizeof(after)));
    close_end(&ends[0]);
    close_end(&ends[1]);
}

static void a_dropped_payload_leaves_the_stream_in_step(void **state)
{
    uint8_t *payload = ls_calloc(1, PLACE_BYTES);
    uint8_t after[100] = {9};
    end ends[2];

    LS_UNUSED(state);
    assert_non_null(payload);
    open_pair(ends, 4608);
    link_send(ends[0].link, make_item(payload, PLACE_BYTES));
    link_send(ends[0].link, make_item(after, sizeof(after)));
    while (ends[1].n_begun == 0) { // a record takes several turns
        (void)link_flush(ends[0].link);
        (void)link_receive(ends[1].link);
    }
    assert_int_equal(ends[1].n_ended, 0);
    link_drop_payload(ends[1].link);
    memset(ends[1].place, 1, PLACE_BYTES);
    move_all(ends);
    assert_int_equal(ends[1].n_ended, 2);
    assert_int_equal(ends[1].place[0], 9);
    assert_int_equal(ends[1].place[PLACE_BYTES / 2], 1); // nothing of the first was written here
    ls_free(payload);
    close_end(&ends[0]);
    close_end(&ends[1]);
}

static void a_link_without_memory_closes_its_stream(void **state)
{
    const link_sink sink = {.begin = on_begin, .end = on_end, .sent = on_sent};

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

static void a_sealed_link_without_memory_closes_its_stream(void **state)
{
    const link_sink sink = {.begin = on_begin, .end = on_end, .sent = on_sent};
    const seal_pair seals = seals_of(NET_MAC, 0);

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
    open_sealed_end(&e, fds[0], 0);
    for (int i = 0; i < 2; i++) {
        link_send(e.link, make_item(payload, strlen(text)));
        assert_true(link_flush(e.link));
    }
    n = read(fds[1], line, max);
    assert_true(n > 0);
    close_end(&e);
    close(fds[1]);
    return (size_t)n;
}

// Plays a line to the other end.
static void play_line(end *e, const uint8_t *line, size_t bytes)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    open_sealed_end(e, fds[0], 1);
    assert_int_equal(write(fds[1], line, bytes), (ssize_t)bytes);
    close(fds[1]);
    for (int i = 0; i < 10 && !e->link->is_ended; i++)
        (void)link_receive(e->link);
    assert_true(e->link->is_ended);
}

static void what_was_changed_on_the_line_ends_a_link_with_words(void **state)
{
    uint8_t line[1024];

    LS_UNUSED(state);
    for (security = NET_MAC; security <= NET_ENCRYPT; security++) {
        const size_t n = record_line(line, sizeof(line), "gradients");
        end e;

        play_line(&e, line, n);
        assert_int_equal(e.n_ended, 2);
        assert_string_equal(e.link->fault, "");
        assert_int_equal(e.link->error, 0);
        close_end(&e);
        memcpy(line + n / 2, line, n / 2);
        play_line(&e, line, n);
        assert_int_equal(e.n_ended, 1);
        assert_string_equal(e.link->fault, "record 0 came again where 1 was due");
        close_end(&e);
        line[n / 2 - 1] ^= 1;
        play_line(&e, line, n);
        assert_int_equal(e.n_ended, 0);
        assert_string_equal(e.link->fault, "record 0 was changed on its way");
        close_end(&e);
        play_line(&e, line, n / 2 - 1);
        assert_int_equal(e.n_ended, 0);
        assert_int_equal(e.link->error, ECONNRESET); // no orderly end
        close_end(&e);
    }
    security = NET_AUTH;
}

static void an_encrypted_line_shows_no_payload(void **state)
{
    static const char text[] = "the weights of layer 7";
    uint8_t line[1024];

    LS_UNUSED(state);
    for (security = NET_MAC; security <= NET_ENCRYPT; security++) {
        const size_t n = record_line(line, sizeof(line), text);

        assert_int_equal(memmem(line, n, text, strlen(text)) != NULL, security == NET_MAC);
    }
    security = NET_AUTH;
}

// --- striped ---

#define BLOCK ((size_t)64 * 1024)

static bool is_ready(const end *e)
{
    struct pollfd waited = {.fd = e->link->fd, .events = POLLIN};

    return poll(&waited, 1, 0) > 0;
}

// A striped end over plain sockets, whose other ends are given.
static void open_bare(end *e, int n, int others[LINK_STRANDS_MAX])
{
    open_striped_end(e, n);
    for (int i = 0; i < n; i++) {
        int fds[2];

        join_pair(fds, 0);
        assert_int_equal(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
        add_strand(e, i, fds[0], 0);
        others[i] = fds[1];
    }
}

static void close_bare(end *e, int n, const int *others)
{
    close_end(e);
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

static void blocks_go_over_the_strands_in_turn(void **state)
{
    const size_t payload_bytes = 5 * BLOCK + 77;
    uint8_t *payload = ls_calloc(1, payload_bytes);
    uint8_t *blocks = ls_calloc(6, BLOCK); // what comes, put together again
    int others[LINK_STRANDS_MAX];
    size_t taken[3] = {0};
    ls_rng rng;
    end e;

    LS_UNUSED(state);
    assert_true(payload != NULL && blocks != NULL);
    ls_rng_seed(&rng, SEED);
    for (size_t i = 0; i < payload_bytes; i++)
        payload[i] = (uint8_t)ls_rng_next(&rng);
    open_bare(&e, 3, others);
    link_send(e.link, make_item(payload, payload_bytes));
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

// Nobody is woken by what cannot be read or written yet, and everybody by what can.
static void only_what_can_move_wakes_a_sleeper(void **state)
{
    uint8_t *payload = ls_calloc(8, BLOCK);
    uint8_t *rest = ls_calloc(8, BLOCK);
    link_item *item = make_item(payload, 2 * BLOCK - MESSAGE_HEADER_BYTES);
    int others[LINK_STRANDS_MAX];
    size_t bytes;
    end e;

    LS_UNUSED(state);
    assert_true(payload != NULL && rest != NULL);
    open_bare(&e, 2, others);
    assert_false(is_ready(&e));
    assert_int_equal(write(others[1], payload, 1000), 1000); // it is the other one's turn
    assert_false(is_ready(&e));
    assert_false(link_receive(e.link));
    assert_int_equal(write(others[0], item->header, MESSAGE_HEADER_BYTES), MESSAGE_HEADER_BYTES);
    assert_true(is_ready(&e));
    assert_true(link_receive(e.link));
    assert_false(is_ready(&e));
    for (size_t left = BLOCK - MESSAGE_HEADER_BYTES; left > 0;) {
        const ssize_t n = write(others[0], payload, left);

        left -= n > 0 ? (size_t)n : 0;
        (void)link_receive(e.link); // which goes on with what has waited
    }
    assert_int_equal(e.n_begun, 1);
    assert_int_equal(e.n_ended, 0);
    assert_false(is_ready(&e));

    // Full: what wakes is that somebody takes it.
    link_send(e.link, make_item(payload, 8 * BLOCK));
    while (link_flush(e.link) && !e.link->wants_write)
        continue;
    assert_true(e.link->wants_write);
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

static void a_strand_that_is_not_there_yet_is_waited_for(void **state)
{
    uint8_t *payload = ls_calloc(1, PLACE_BYTES);
    const int n = 3;
    end ends[2];

    LS_UNUSED(state);
    assert_non_null(payload);
    for (security = NET_AUTH; security <= NET_ENCRYPT; security++) {
        for (int i = 0; i < 2; i++)
            open_striped_end(&ends[i], n);
        for (size_t i = 0; i < PLACE_BYTES; i++)
            payload[i] = (uint8_t)(i + i / 251);
        link_send(ends[0].link, make_item(payload, PLACE_BYTES));
        link_send(ends[1].link, make_item(payload, PLACE_BYTES));
        assert_false(link_flush(ends[0].link));
        assert_false(link_receive(ends[0].link));
        for (int i = 0; i < n; i++) { // one end has each of them earlier
            const int first = i % 2;
            int fds[2];

            join_pair(fds, 0);
            add_strand(&ends[first], i, fds[first], first);
            (void)link_flush(ends[first].link);
            add_strand(&ends[1 - first], i, fds[1 - first], 1 - first);
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
            assert_true(ends[i].sum == sum_of(payload, PLACE_BYTES));
        }
        close_end(&ends[0]);
        close_end(&ends[1]);
    }
    security = NET_AUTH;
    ls_free(payload);
}

// One breaks while it is another one's turn to be read.
static void a_strand_that_breaks_out_of_turn_ends_the_link(void **state)
{
    uint8_t *payload = ls_calloc(1, BLOCK);
    int others[LINK_STRANDS_MAX];
    char byte;
    end e;

    LS_UNUSED(state);
    assert_non_null(payload);
    open_bare(&e, 3, others);
    link_send(e.link, make_item(payload, BLOCK)); // so its last bytes are the second strand's
    assert_true(link_flush(e.link));
    assert_false(link_has_output(e.link));
    assert_false(is_ready(&e));
    close(others[1]); // with them unread, which makes it a reset
    assert_true(is_ready(&e));
    for (int i = 0; i < 1000 && !e.link->is_ended; i++)
        (void)link_receive(e.link);
    assert_true(e.link->is_ended);
    assert_int_equal(e.link->error, ECONNRESET);
    assert_int_equal(read_all(others[0], payload, BLOCK), BLOCK);
    assert_int_equal(read(others[0], &byte, 1), 0); // the peer notices
    assert_int_equal(read(others[2], &byte, 1), 0);
    close_end(&e);
    close(others[0]);
    close(others[2]);
    ls_free(payload);
}

static void a_striped_link_without_memory_closes_its_strands(void **state)
{
    const link_sink sink = {.begin = on_begin, .end = on_end, .sent = on_sent};
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
    assert_int_equal(l->fd, before + 1); // those that failed have left no descriptor
    link_destroy(l);
    close(before);
}

int main(void)
{
    const struct CMUnitTest of_two[] = {
        cmocka_unit_test(messages_of_all_sizes_pass_both_ways_through_tiny_buffers),
        cmocka_unit_test(what_came_before_an_end_is_still_read),
        cmocka_unit_test(what_the_sink_refuses_ends_the_link),
        cmocka_unit_test(a_withdrawn_message_is_whole_or_never_was),
        cmocka_unit_test(a_dropped_payload_leaves_the_stream_in_step),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_may_come_byte_by_byte),
        cmocka_unit_test(an_end_in_mid_message_is_an_end),
        cmocka_unit_test(headers_that_nobody_writes_are_refused),
        cmocka_unit_test(garbage_ends_a_link_with_words),
        cmocka_unit_test(a_link_without_memory_closes_its_stream),
        cmocka_unit_test(a_sealed_link_without_memory_closes_its_stream),
        cmocka_unit_test(what_was_changed_on_the_line_ends_a_link_with_words),
        cmocka_unit_test(an_encrypted_line_shows_no_payload),
        cmocka_unit_test(blocks_go_over_the_strands_in_turn),
        cmocka_unit_test(only_what_can_move_wakes_a_sleeper),
        cmocka_unit_test(a_strand_that_is_not_there_yet_is_waited_for),
        cmocka_unit_test(a_strand_that_breaks_out_of_turn_ends_the_link),
        cmocka_unit_test(a_striped_link_without_memory_closes_its_strands),
    };
    int failed = 0;

    for (n_strands = 1; n_strands <= 3; n_strands += 2)
        for (security = NET_AUTH; security <= NET_ENCRYPT; security++)
            failed += cmocka_run_group_tests_name(net_security_text(security), of_two, NULL, NULL);
    n_strands = 1;
    security = NET_AUTH;
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
