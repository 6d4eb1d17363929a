/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_socket.c - sockets: listening, connecting, transfers with deadlines, and the errors of ports
 * in use.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOON       20000 /* ms: far more than any step takes */
#define SILENCE_MS 1500

static net_address at(const char *text)
{
    net_address a;

    assert_ok(net_address_decode(text, &a));
    return a;
}

static net_address fresh_unix(void)
{
    net_address a;

    assert_ok(net_address_fresh_unix("test", &a));
    return a;
}

static int accept_one(int listener)
{
    int fd = -1;

    assert_ok(net_wait(listener, POLLIN, ls_deadline_ms(SOON)));
    assert_ok(net_accept(listener, &fd));
    assert_true(fd >= 0);
    return fd;
}

/* A connected pair through a listener at `where`. */
static void connect_pair(const net_address *where, net_kind kind, int fds[2])
{
    net_address bound;
    int listener;

    assert_ok(net_listen(where, kind, 16, &listener, &bound));
    assert_ok(net_connect(&bound, kind, ls_deadline_ms(SOON), &fds[0]));
    fds[1] = accept_one(listener);
    file_close(&listener);
}

static void close_pair(int fds[2])
{
    file_close(&fds[0]);
    file_close(&fds[1]);
}

static void every_descriptor_is_closed_on_exec_and_nonblocking(void **state)
{
    const net_address places[] = {at("127.0.0.1:0"), fresh_unix()};
    net_address bound;
    int fds[3];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(places); i++) {
        assert_ok(net_listen(&places[i], NET_STREAM, 16, &fds[0], &bound));
        assert_ok(net_connect(&bound, NET_STREAM, ls_deadline_ms(SOON), &fds[1]));
        fds[2] = accept_one(fds[0]);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(fcntl(fds[k], F_GETFD), FD_CLOEXEC);
            assert_true((fcntl(fds[k], F_GETFL) & O_NONBLOCK) != 0);
            file_close(&fds[k]);
        }
    }
}

static void free_port_is_bound_and_returned(void **state)
{
    const net_address any = at("127.0.0.1:0");
    net_address first;
    net_address second;
    int fds[2];
    int third;

    LS_UNUSED(state);
    assert_ok(net_listen(&any, NET_STREAM, 16, &fds[0], &first));
    assert_ok(net_listen(&any, NET_STREAM, 16, &fds[1], &second));
    assert_int_not_equal(net_address_port(&first), 0);
    assert_int_not_equal(net_address_port(&first), net_address_port(&second));
    assert_status(net_listen(&first, NET_STREAM, 16, &third, NULL), LS_ESYSTEM); // no SO_REUSEPORT
    assert_last_error("Address already in use");
    assert_int_equal(third, -1);
    close_pair(fds);
}

static void error_for_a_held_port_names_its_holder(void **state)
{
    const net_address any = at("127.0.0.1:0");
    net_address bound;
    char holder[64], fix[64], program[64];
    int fds[2];
    int third;

    LS_UNUSED(state);
    assert_ok(net_listen(&any, NET_STREAM, 16, &fds[0], &bound));
    text_format(holder, sizeof(holder), "The port is held by pid %d (", (int)getpid());
    text_format(fix, sizeof(fix), "kill %d", (int)getpid());
    text_format(program, sizeof(program), "%s", program_invocation_short_name);
    assert_status(net_listen(&bound, NET_STREAM, 16, &third, NULL), LS_ESYSTEM);
    assert_int_equal(errno, EADDRINUSE);
    assert_last_error("Address already in use");
    assert_last_error(holder);
    assert_last_error(program);
    assert_last_error(fix);
    file_close(&fds[0]);
}

static void error_for_a_range_without_a_free_port_names_a_holder(void **state)
{
    const net_address any = at("127.0.0.1:0");
    net_address bound;
    net_ports range;
    char holder[64];
    int fd;
    int other;

    LS_UNUSED(state);
    assert_ok(net_listen(&any, NET_STREAM, 16, &fd, &bound));
    range = (net_ports){net_address_port(&bound), net_address_port(&bound)};
    text_format(holder, sizeof(holder), "The port is held by pid %d (", (int)getpid());
    assert_status(net_listen_in(&any, range, 0, NET_STREAM, 16, &other, NULL), LS_ESYSTEM);
    assert_last_error("no port of --port-range");
    assert_last_error(holder);
    file_close(&fd);
}

/* The local port of a connection cannot be listened at either. */
static void error_for_the_port_of_a_connection_names_its_holder(void **state)
{
    const net_address any = at("127.0.0.1:0");
    net_address bound;
    net_address local;
    char holder[64];
    int listener, fd, other;

    LS_UNUSED(state);
    assert_ok(net_listen(&any, NET_STREAM, 16, &listener, &bound));
    assert_ok(net_connect(&bound, NET_STREAM, ls_deadline_ms(SOON), &fd));
    assert_ok(net_address_of_socket(fd, &local));
    text_format(holder, sizeof(holder), "that of a connection of pid %d (", (int)getpid());
    assert_status(net_listen(&local, NET_STREAM, 16, &other, NULL), LS_ESYSTEM);
    assert_last_error(holder);
    file_close(&fd);
    file_close(&listener);
}

static void a_refused_connection_names_the_address(void **state)
{
    const net_address any = at("127.0.0.1:0");
    net_address bound;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_listen(&any, NET_STREAM, 1, &fd, &bound));
    file_close(&fd);
    assert_status(net_connect(&bound, NET_STREAM, ls_deadline_ms(SOON), &fd), LS_EPEER);
    assert_last_error("127.0.0.1");
    assert_last_error("refused");
    bound = fresh_unix();
    assert_status(net_connect(&bound, NET_STREAM, ls_deadline_ms(SOON), &fd), LS_EPEER);
    assert_last_error("unix:@lockstep-test-");
}

typedef struct late_listener {
    net_address where;
    int fd;
    ls_status st;
} late_listener;

static void listen_later(void *arg)
{
    late_listener *l = arg;

    poll(NULL, 0, 50);
    l->st = net_listen(&l->where, NET_STREAM, 16, &l->fd, NULL);
}

static void connecting_waits_for_a_listener_that_comes_later(void **state)
{
    late_listener l = {.where = fresh_unix(), .fd = -1};
    ls_thread thread = {0};
    int fd;

    LS_UNUSED(state);
    assert_ok(ls_thread_start(&thread, "listen", listen_later, &l));
    assert_ok(net_connect_retry(&l.where, NET_STREAM, ls_deadline_ms(SOON), &fd));
    ls_thread_join(&thread);
    assert_ok(l.st);
    file_close(&fd);
    file_close(&l.fd);
    assert_status(net_connect_retry(&l.where, NET_STREAM, ls_deadline_ms(30), &fd), LS_EPEER);
    assert_last_error("refused");
}

static void the_first_address_that_answers_wins(void **state)
{
    const net_address any = at("127.0.0.1:0");
    net_address candidates[3];
    net_address bound;
    int listener;
    int closed;
    int fd;
    int which = -1;

    LS_UNUSED(state);
    assert_ok(net_listen(&any, NET_STREAM, 1, &closed, &candidates[0]));
    file_close(&closed);
    assert_ok(net_listen(&any, NET_STREAM, 16, &listener, &bound));
    candidates[1] = bound;
    candidates[2] = fresh_unix();
    assert_ok(net_connect_any(candidates, 3, ls_deadline_ms(SOON), &fd, &which));
    assert_int_equal(which, 1);
    file_close(&fd);
    file_close(&listener);
    assert_status(net_connect_any(candidates, 3, ls_deadline_ms(SOON), &fd, &which), LS_EPEER);
    assert_last_error("tcp://127.0.0.1");
    assert_last_error("unix:@lockstep-test-");
    assert_status(net_connect_any(candidates, 0, ls_deadline_ms(SOON), &fd, &which), LS_EINVAL);
    assert_status(net_connect_any(candidates, 65, ls_deadline_ms(SOON), &fd, &which), LS_EINVAL);
}

static void a_full_unix_queue_is_waited_for(void **state)
{
    const net_address where = fresh_unix();
    int listener;
    int fds[8];
    int n = 0;

    LS_UNUSED(state);
    assert_ok(net_listen(&where, NET_STREAM, 1, &listener, NULL));
    while (n < 8 && net_connect(&where, NET_STREAM, ls_deadline_ms(30), &fds[n]) == LS_OK)
        n++;
    assert_true(n >= 1 && n < 8);
    for (int i = 0; i < n; i++)
        file_close(&fds[i]);
    for (int fd = 0; fd >= 0;) {
        assert_ok(net_accept(listener, &fd));
        if (fd >= 0)
            close(fd);
    }
    assert_ok(net_connect(&where, NET_STREAM, ls_deadline_ms(SOON), &fds[0]));
    file_close(&fds[0]);
    file_close(&listener);
}

/* --- transfer --- */

enum { BIG = 3 * 1000 * 1000 };

typedef struct reader {
    int fd;
    uint8_t *data;
    ls_status st;
} reader;

static void read_big(void *arg)
{
    reader *r = arg;

    r->st = net_recv_all(r->fd, "the writer", r->data, BIG, ls_deadline_ms(SOON));
}

static void transfer_larger_than_a_buffer_is_complete(void **state)
{
    const net_address where = at("127.0.0.1:0");
    uint8_t *out = ls_calloc(BIG, 1);
    reader r = {.data = ls_calloc(BIG, 1)};
    ls_thread thread = {0};
    int fds[2];

    LS_UNUSED(state);
    assert_true(out != NULL && r.data != NULL);
    for (size_t i = 0; i < BIG; i++)
        out[i] = (uint8_t)(i * 31 >> 3);
    connect_pair(&where, NET_STREAM, fds);
    assert_ok(net_set_stream_options(fds[0], 5000));
    r.fd = fds[1];
    assert_ok(ls_thread_start(&thread, "read", read_big, &r));
    assert_ok(net_send_all(fds[0], "the reader", out, BIG, ls_deadline_ms(SOON)));
    ls_thread_join(&thread);
    assert_ok(r.st);
    assert_memory_equal(out, r.data, BIG);
    close_pair(fds);
    ls_free(out);
    ls_free(r.data);
}

static void timeouts_and_lost_peers_are_reported_with_the_count(void **state)
{
    const net_address where = fresh_unix();
    uint8_t *data = ls_calloc(BIG, 1);
    int fds[2];

    LS_UNUSED(state);
    assert_non_null(data);
    connect_pair(&where, NET_STREAM, fds);
    assert_status(net_recv_all(fds[0], "rank 4", data, 10, ls_deadline_ms(20)), LS_ETIMEOUT);
    assert_last_error("rank 4");
    assert_last_error("0 of 10 bytes");
    assert_status(net_send_all(fds[0], "rank 4", data, BIG, ls_deadline_ms(20)), LS_ETIMEOUT);
    assert_last_error("of 3000000 bytes sent");
    close_pair(fds);
    connect_pair(&where, NET_STREAM, fds);
    assert_ok(net_send_all(fds[1], "rank 3", "abc", 3, ls_deadline_ms(SOON)));
    file_close(&fds[1]);
    assert_status(net_recv_all(fds[0], "rank 4", data, 10, ls_deadline_ms(SOON)), LS_EPEER);
    assert_last_error("3 of 10 bytes");
    assert_last_error("rank 4 closed the connection");
    assert_status(net_send_all(fds[0], "rank 4", data, BIG, ls_deadline_ms(SOON)), LS_EPEER);
    close_pair(fds);
    ls_free(data);
}

static void stream_options_are_set_on_tcp_and_skipped_on_unix(void **state)
{
    const net_address tcp = at("127.0.0.1:0");
    const net_address local = fresh_unix();
    int fds[2];
    int value = 0;
    socklen_t bytes = sizeof(value);

    LS_UNUSED(state);
    connect_pair(&tcp, NET_STREAM, fds);
    assert_ok(net_set_stream_options(fds[0], 1234));
    assert_int_equal(getsockopt(fds[0], IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &bytes), 0);
    assert_int_equal(value, 1234);
    assert_int_equal(getsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &value, &bytes), 0);
    assert_true(value != 0);
    assert_int_equal(getsockopt(fds[0], SOL_SOCKET, SO_KEEPALIVE, &value, &bytes), 0);
    assert_true(value != 0);
    close_pair(fds);
    connect_pair(&local, NET_STREAM, fds);
    assert_ok(net_set_stream_options(fds[0], 1234));
    close_pair(fds);
}

/* The reader's system answers probes of the full window. */
static void a_peer_that_reads_nothing_is_not_taken_for_lost(void **state)
{
    const net_address where = at("127.0.0.1:0");
    uint8_t *data = ls_calloc(BIG, 1);
    reader r = {.data = ls_calloc(BIG, 1)};
    struct tcp_info info = {0};
    ls_thread thread = {0};
    size_t done = 0;
    size_t moved = 1;
    int fds[2];

    LS_UNUSED(state);
    assert_true(data != NULL && r.data != NULL);
    connect_pair(&where, NET_STREAM, fds);
    assert_ok(net_set_link_options(fds[0], SILENCE_MS));
    while (moved > 0 && done < BIG) {
        assert_ok(net_send_some(fds[0], "the reader", data, BIG - done, &moved));
        done += moved;
    }
    while (info.tcpi_backoff < 5) {
        socklen_t bytes = sizeof(info);

        (void)usleep(20000);
        assert_int_equal(getsockopt(fds[0], IPPROTO_TCP, TCP_INFO, &info, &bytes), 0);
        assert_int_equal(info.tcpi_state, TCP_ESTABLISHED);
        assert_false(net_is_unanswered(fds[0], SILENCE_MS));
    }
    r.fd = fds[1];
    assert_ok(ls_thread_start(&thread, "read", read_big, &r));
    assert_ok(net_send_all(fds[0], "the reader", data, BIG - done, ls_deadline_ms(SOON)));
    ls_thread_join(&thread);
    assert_ok(r.st);
    close_pair(fds);
    ls_free(data);
    ls_free(r.data);
}

static void credentials_of_a_unix_peer_are_read(void **state)
{
    const net_address where = fresh_unix();
    int fds[2];
    uid_t uid = 12345;
    pid_t pid = 0;

    LS_UNUSED(state);
    connect_pair(&where, NET_STREAM, fds);
    assert_ok(net_peer_user(fds[1], &uid, &pid));
    assert_int_equal(uid, geteuid());
    assert_int_equal(pid, getpid());
    close_pair(fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_descriptor_is_closed_on_exec_and_nonblocking),
        cmocka_unit_test(free_port_is_bound_and_returned),
        cmocka_unit_test(error_for_a_held_port_names_its_holder),
        cmocka_unit_test(error_for_a_range_without_a_free_port_names_a_holder),
        cmocka_unit_test(error_for_the_port_of_a_connection_names_its_holder),
        cmocka_unit_test(a_refused_connection_names_the_address),
        cmocka_unit_test(connecting_waits_for_a_listener_that_comes_later),
        cmocka_unit_test(the_first_address_that_answers_wins),
        cmocka_unit_test(a_full_unix_queue_is_waited_for),
        cmocka_unit_test(transfer_larger_than_a_buffer_is_complete),
        cmocka_unit_test(timeouts_and_lost_peers_are_reported_with_the_count),
        cmocka_unit_test(stream_options_are_set_on_tcp_and_skipped_on_unix),
        cmocka_unit_test(a_peer_that_reads_nothing_is_not_taken_for_lost),
        cmocka_unit_test(credentials_of_a_unix_peer_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
