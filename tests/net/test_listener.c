/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_listener.c - the listener that authenticates peers: accepted peers, refusals, silent
 * connections and missing descriptors.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/auth/listener.h"
#include "net/socket.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define SOON 30000
#define JOB  "0123456789abcdef"

static net_key key;
static seal_pair seals; /* of the last connection */

/* A listener in a thread of its own, and the last accepted peer. */
typedef struct scene {
    ls_thread thread;
    poller *loop;
    listener *listener;
    net_address at;
    atomic_bool is_over;
    atomic_int n_accepted;
    listener_peer peer; /* complete once n_accepted has grown */
} scene;

static void enter(void *self, const listener_peer *peer)
{
    scene *h = self;

    file_close(&h->peer.fd);
    h->peer = *peer;
    atomic_fetch_add(&h->n_accepted, 1);
}

static void serve(void *arg)
{
    scene *h = arg;

    while (!atomic_load(&h->is_over))
        if (poller_run_once(h->loop, -1) != LS_OK)
            return;
}

static listener_options options(scene *h)
{
    return (listener_options){
        .name = "listener",
        .key = &key,
        .expected = {.purpose = NET_PURPOSE_NODE, .job = JOB, .to = HANDSHAKE_ANY_RANK},
        .self = h,
        .accepted = enter,
    };
}

static void build(scene *h, const listener_options *opt, const char *where)
{
    net_address at;

    assert_ok(poller_create(&h->loop));
    assert_ok(listener_create(h->loop, opt, &h->listener));
    h->peer.fd = -1;
    if (where != NULL)
        assert_ok(net_address_decode(where, &at));
    else
        assert_ok(net_address_fresh_unix("test", &at));
    assert_ok(listener_listen(h->listener, &at, &h->at));
}

static void open_scene(scene *h, const listener_options *opt, const char *where)
{
    build(h, opt, where);
    assert_ok(ls_thread_start(&h->thread, "listener", serve, h));
}

static void stop_scene(scene *h)
{
    listener_destroy(h->listener);
    poller_destroy(h->loop);
    file_close(&h->peer.fd);
}

static void close_scene(scene *h)
{
    atomic_store(&h->is_over, true);
    poller_wake(h->loop);
    ls_thread_join(&h->thread);
    stop_scene(h);
}

static int connect_client(const scene *h)
{
    int fd;

    assert_ok(net_connect(&h->at, NET_STREAM, ls_deadline_ms(SOON), &fd));
    return fd;
}

static const handshake_claim node = {.purpose = NET_PURPOSE_NODE, .job = JOB, .from = 7};

static int come_in(const scene *h)
{
    const int fd = connect_client(h);

    assert_ok(
        handshake_connect(fd, &key, &node, "the listener", ls_deadline_ms(SOON), NULL, &seals));
    return fd;
}

/* The client may see the verdict before `accepted` is called. */
static void wait_for_accepted(scene *h, int n)
{
    const int64_t deadline_ms = ls_deadline_ms(SOON);

    while (atomic_load(&h->n_accepted) < n) {
        assert_true(ls_now_ms() < deadline_ms);
        poll(NULL, 0, 1);
    }
}

static void expect_closed(int fd)
{
    char byte;

    assert_int_equal(net_recv_all(fd, "the listener", &byte, 1, ls_deadline_ms(SOON)), LS_EPEER);
    close(fd);
}

/* --- tests --- */

static void accepted_peer_has_its_name_and_authenticated_claim(void **state)
{
    scene h = {0};
    const listener_options opt = options(&h);
    int fd;

    LS_UNUSED(state);
    open_scene(&h, &opt, "127.0.0.1:0");
    fd = come_in(&h);
    wait_for_accepted(&h, 1);
    assert_int_equal(h.peer.claim.from, 7);
    assert_int_equal(h.peer.claim.purpose, NET_PURPOSE_NODE);
    assert_int_equal(h.peer.pid, 0);
    assert_non_null(strstr(h.peer.name, "127.0.0.1:"));
    close(fd);
    close_scene(&h);
}

static void the_process_behind_a_unix_socket_is_known(void **state)
{
    scene h = {0};
    const listener_options opt = options(&h);
    char expected[LISTENER_PEER_TEXT];
    int fd;

    LS_UNUSED(state);
    open_scene(&h, &opt, NULL);
    fd = come_in(&h);
    wait_for_accepted(&h, 1);
    text_format(expected, sizeof(expected), "process %d", (int)getpid());
    assert_int_equal(h.peer.pid, getpid());
    assert_string_equal(h.peer.name, expected);
    close(fd);
    close_scene(&h);
}

static void nothing_behind_the_handshake_is_read(void **state)
{
    scene h = {0};
    const listener_options opt = options(&h);
    const int64_t deadline_ms = ls_deadline_ms(SOON);
    handshake shake = {0};
    char received[5] = "";
    short events;
    int fd;

    LS_UNUSED(state);
    open_scene(&h, &opt, "127.0.0.1:0");
    fd = connect_client(&h);
    assert_ok(handshake_client(&shake, &key, &node, "the listener"));
    assert_ok(handshake_step(&shake, fd, &events));
    while (shake.step == 0) { // until the MAC has been sent
        assert_ok(net_wait(fd, events, deadline_ms));
        assert_ok(handshake_step(&shake, fd, &events));
    }
    assert_ok(net_send_all(fd, "the listener", "hello", 5, deadline_ms));
    wait_for_accepted(&h, 1);
    assert_ok(net_recv_all(h.peer.fd, "the peer", received, 5, deadline_ms));
    assert_memory_equal(received, "hello", 5);
    close(fd);
    close_scene(&h);
}

static void different_key_or_purpose_is_refused(void **state)
{
    scene h = {0};
    const listener_options opt = options(&h);
    handshake_claim rank = node;
    net_key other;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_key_random(&other));
    open_scene(&h, &opt, "127.0.0.1:0");
    fd = connect_client(&h);
    assert_int_equal(
        handshake_connect(fd, &other, &node, "the listener", ls_deadline_ms(SOON), NULL, &seals),
        LS_EAUTH);
    close(fd);
    rank.purpose = NET_PURPOSE_CONTROL;
    fd = connect_client(&h);
    assert_int_equal(
        handshake_connect(fd, &key, &rank, "the listener", ls_deadline_ms(SOON), NULL, &seals),
        LS_EMISMATCH);
    assert_non_null(strstr(ls_last_error(), "is not a hub"));
    close(fd);
    close(come_in(&h));
    wait_for_accepted(&h, 1);
    close_scene(&h);
    assert_int_equal(atomic_load(&h.n_accepted), 1);
}

static void hundred_silent_connections_do_not_delay_a_peer(void **state)
{
    scene h = {0};
    const listener_options opt = options(&h);
    int silent[100];

    LS_UNUSED(state);
    open_scene(&h, &opt, "127.0.0.1:0");
    for (int i = 0; i < 100; i++)
        silent[i] = connect_client(&h);
    close(come_in(&h));
    expect_closed(silent[0]); // evicted for the peer
    for (int i = 1; i < 100; i++)
        close(silent[i]);
    close_scene(&h);
}

static void pending_connections_are_counted_and_closed_with_the_listener(void **state)
{
    scene h = {0};
    const listener_options opt = options(&h);
    int fd;

    LS_UNUSED(state);
    build(&h, &opt, "127.0.0.1:0");
    fd = connect_client(&h);
    while (listener_pending(h.listener) == 0)
        assert_ok(poller_run_once(h.loop, SOON));
    stop_scene(&h);
    expect_closed(fd);
}

/* As the ranks of a large job on busy machines, which send their hello late. */
static void many_expected_peers_keep_their_slots_while_they_are_slow(void **state)
{
    enum { EXPECTED = 200 };
    listener_options opt;
    int fds[EXPECTED];
    scene h = {.n_accepted = 0};
    int n_pending = 0;

    LS_UNUSED(state);
    opt = options(&h);
    opt.n_expected = EXPECTED;
    build(&h, &opt, NULL);
    for (int i = 0; i < EXPECTED; i++)
        fds[i] = connect_client(&h);
    for (int64_t until_ms = ls_deadline_ms(SOON); n_pending < EXPECTED;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(h.loop, 10));
        n_pending = listener_pending(h.listener);
    }
    for (int i = 0; i < EXPECTED; i++)
        file_close(&fds[i]);
    stop_scene(&h);
}

static void when_descriptors_run_out_the_listener_recovers(void **state)
{
    scene h = {0};
    const listener_options opt = options(&h);
    struct rlimit before;
    struct rlimit few;
    int waiting;

    LS_UNUSED(state);
    build(&h, &opt, "127.0.0.1:0");
    waiting = connect_client(&h);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 3; // fewer than are open
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_ok(poller_run_once(h.loop, SOON));
    assert_int_equal(listener_pending(h.listener), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_ok(ls_thread_start(&h.thread, "listener", serve, &h));
    close(come_in(&h));
    wait_for_accepted(&h, 1);
    close(waiting);
    close_scene(&h);
}

static void without_a_key_it_listens_at_unix_sockets_only(void **state)
{
    scene h = {0};
    listener_options opt = options(&h);
    net_address at;
    int fd;

    LS_UNUSED(state);
    opt.key = NULL;
    open_scene(&h, &opt, NULL);
    fd = connect_client(&h);
    assert_ok(
        handshake_connect(fd, NULL, &node, "the listener", ls_deadline_ms(SOON), NULL, &seals));
    close(fd);
    wait_for_accepted(&h, 1);
    close_scene(&h);

    opt.insecure = false;
    build(&h, &opt, NULL);
    assert_ok(net_address_decode("127.0.0.1:0", &at));
    assert_int_equal(listener_listen(h.listener, &at, NULL), LS_EAUTH);
    assert_last_error("listens at a unix socket only (or --insecure)");
    stop_scene(&h);
    opt.insecure = true;
    build(&h, &opt, "127.0.0.1:0");
    stop_scene(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_peer_has_its_name_and_authenticated_claim),
        cmocka_unit_test(the_process_behind_a_unix_socket_is_known),
        cmocka_unit_test(nothing_behind_the_handshake_is_read),
        cmocka_unit_test(different_key_or_purpose_is_refused),
        cmocka_unit_test(hundred_silent_connections_do_not_delay_a_peer),
        cmocka_unit_test(pending_connections_are_counted_and_closed_with_the_listener),
        cmocka_unit_test(many_expected_peers_keep_their_slots_while_they_are_slow),
        cmocka_unit_test(when_descriptors_run_out_the_listener_recovers),
        cmocka_unit_test(without_a_key_it_listens_at_unix_sockets_only),
    };

    setenv("LOCKSTEP_LOG", "error", 1);
    if (net_key_random(&key) != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
