/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_probe.c - nodes that test each other over loopback, all on one poller in one process.
 * Tests with real networks are in test_net_lab.c.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "launch/network/net_probe.h"
#include "net/auth/handshake.h"
#include "net/socket.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NODES_MAX = 16, LONG_MS = 60000 };

#define JOB "0123456789abcdef"

static net_key key;
static net_peer peers[NODES_MAX]; /* of peers_of() */

typedef struct node {
    net_probe *probe;
    bool is_done;
    const net_report *report;
} node;

typedef struct cluster {
    poller *loop;
    int n;
    node nodes[NODES_MAX];
} cluster;

static net_probe_options options_of(const cluster *t, int i)
{
    return (net_probe_options){.loop = t->loop,
                               .key = &key,
                               .job = JOB,
                               .generation = 3,
                               .node = i,
                               .host = "here",
                               .filter = "lo",
                               .limit_ms = LONG_MS};
}

static void build(cluster *t, int n)
{
    memset(t, 0, sizeof(*t));
    t->n = n;
    assert_ok(poller_create(&t->loop));
    for (int i = 0; i < n; i++) {
        const net_probe_options opt = options_of(t, i);

        assert_ok(net_probe_open(&opt, &t->nodes[i].probe));
    }
}

static void close_cluster(cluster *t)
{
    for (int i = 0; i < t->n; i++)
        net_probe_close(t->nodes[i].probe);
    poller_destroy(t->loop);
}

static void on_done(void *self, const net_report *report)
{
    node *n = self;

    assert_false(n->is_done);
    n->is_done = true;
    n->report = report;
}

/* Fills `peers` with all other nodes, as the head does. */
static int peers_of(const cluster *t, int i)
{
    int n = 0;

    for (int k = 0; k < t->n; k++)
        if (k != i)
            peers[n++] = (net_peer){.node = k,
                                    .measure = net_peer_is_next(i, k, t->n),
                                    .offer = *net_probe_offer(t->nodes[k].probe)};
    return n;
}

static void start(cluster *t, int i, const net_peer *list, int n)
{
    assert_ok(net_probe_start(t->nodes[i].probe, list, n, on_done, &t->nodes[i]));
    assert_false(t->nodes[i].is_done); // the callback must not run within the call
}

static void run_until_done(cluster *t, int first, int last)
{
    const int64_t deadline_ms = ls_deadline_ms(LONG_MS);

    for (int i = first; i <= last; i++)
        while (!t->nodes[i].is_done) {
            assert_true(ls_deadline_left(deadline_ms) > 0);
            assert_ok(poller_run_once(t->loop, ls_deadline_left(deadline_ms)));
        }
}

/* Node 0 of two tests one peer, which the caller may have changed. */
static const net_try *try_one(cluster *t, const net_peer *peer)
{
    start(t, 0, peer, 1);
    run_until_done(t, 0, 0);
    assert_true(t->nodes[0].report->n >= 1);
    return &t->nodes[0].report->tries[0];
}

static void every_address_of_every_peer_is_tested(void **state)
{
    net_choice c;
    net_offer offers[3];
    net_report reports[3];
    cluster t;

    LS_UNUSED(state);
    build(&t, 3);
    for (int i = 0; i < 3; i++) {
        const int n = peers_of(&t, i);

        start(&t, i, peers, n);
    }
    run_until_done(&t, 0, 2);
    for (int i = 0; i < 3; i++) {
        const net_offer *offer = net_probe_offer(t.nodes[i].probe);

        assert_string_equal(offer->host, "here");
        assert_true(offer->n >= 1);
        assert_int_equal(t.nodes[i].report->n, 2 * offer->n);
        for (int k = 0; k < t.nodes[i].report->n; k++) {
            const net_try *r = &t.nodes[i].report->tries[k];

            assert_int_equal(r->outcome, NET_OK);
            assert_int_equal(r->local, r->address);
            assert_true(r->round_trip_us > 0);
            assert_int_equal(r->bytes_per_s > 0, net_peer_is_next(i, r->peer, 3));
        }
        offers[i] = *offer;
        offers[i].machine = (uint64_t)i; // as if on separate machines
        reports[i] = *t.nodes[i].report;
    }
    assert_ok(net_choose(offers, reports, 3, NULL, &c));
    print_message("%s\n", text_str(&c.text));
    net_choice_free(&c);
    close_cluster(&t);
}

static void many_nodes_test_each_other(void **state)
{
    cluster t;

    LS_UNUSED(state);
    build(&t, NODES_MAX);
    for (int i = 0; i < NODES_MAX; i++)
        start(&t, i, peers, peers_of(&t, i));
    run_until_done(&t, 0, NODES_MAX - 1);
    for (int i = 0; i < NODES_MAX; i++)
        for (int k = 0; k < t.nodes[i].report->n; k++)
            assert_int_equal(t.nodes[i].report->tries[k].outcome, NET_OK);
    close_cluster(&t);
}

static void probe_without_peers_is_done_at_once(void **state)
{
    cluster t;

    LS_UNUSED(state);
    build(&t, 1);
    start(&t, 0, NULL, 0);
    run_until_done(&t, 0, 0);
    assert_int_equal(t.nodes[0].report->n, 0);
    close_cluster(&t);
}

/* --- the answering node --- */

static void other_node_at_an_address_is_a_wrong_node(void **state)
{
    cluster t;

    LS_UNUSED(state);
    build(&t, 3);
    (void)peers_of(&t, 0);
    peers[0].offer = peers[1].offer; // the offer of node 1 is that of node 2
    assert_int_equal(try_one(&t, peers)->outcome, NET_WRONG_NODE);
    close_cluster(&t);
}

static void address_that_this_host_has_too_is_a_wrong_node(void **state)
{
    cluster t;

    LS_UNUSED(state);
    build(&t, 2);
    (void)peers_of(&t, 0);
    peers[0].offer.machine++; // another machine, so its 127.0.0.1 is not that of this one
    assert_int_equal(try_one(&t, peers)->outcome, NET_WRONG_NODE);
    close_cluster(&t);
}

/* The outcome of node 0 at a node with these options. */
static net_outcome outcome_with(net_key *other_key, const char *job, uint32_t generation)
{
    net_probe_options opt;
    net_outcome outcome;
    cluster t;

    build(&t, 2);
    net_probe_close(t.nodes[1].probe);
    opt = options_of(&t, 1);
    opt.key = other_key;
    opt.job = job;
    opt.generation = generation;
    assert_ok(net_probe_open(&opt, &t.nodes[1].probe));
    (void)peers_of(&t, 0);
    outcome = (net_outcome)try_one(&t, peers)->outcome;
    close_cluster(&t);
    return outcome;
}

static void keys_jobs_and_generations_must_be_the_same(void **state)
{
    net_key other;

    LS_UNUSED(state);
    assert_ok(net_key_random(&other));
    assert_int_equal(outcome_with(&key, JOB, 3), NET_OK);
    assert_int_equal(outcome_with(&other, JOB, 3), NET_OTHER_KEY);
    assert_int_equal(outcome_with(&key, "another job", 3), NET_WRONG_NODE);
    assert_int_equal(outcome_with(&key, JOB, 2), NET_WRONG_NODE);
}

/* Another service that listens at a port of 127.0.0.1. */
typedef enum manner { MANNER_SILENT, MANNER_CLOSES, MANNER_ANSWERS, MANNER_GONE } manner;

typedef struct service {
    int fd;
    manner manner;
    int connections[256];
    int n_connections;
} service;

static void on_connection(void *arg, unsigned events)
{
    static const char words[] = "HTTP/1.0 400 Bad Request\r\n\r\nHTTP/1.0 400 Bad Request\r\n\r\n"
                                "HTTP/1.0 400 Bad Request\r\n\r\nHTTP/1.0 400 Bad Request\r\n\r\n";
    service *s = arg;
    int fd = -1;

    LS_UNUSED(events);
    assert_ok(net_accept(s->fd, &fd));
    if (fd < 0)
        return;
    if (s->manner == MANNER_ANSWERS)
        assert_int_equal(send(fd, words, sizeof(words) - 1, MSG_NOSIGNAL), sizeof(words) - 1);
    if (s->manner == MANNER_CLOSES || s->n_connections == (int)LS_COUNT_OF(s->connections))
        (void)close(fd);
    else
        s->connections[s->n_connections++] = fd;
}

static net_outcome outcome_at_service(manner how, int limit_ms)
{
    service s = {.manner = how};
    net_probe_options opt;
    poll_watch *watch = NULL;
    net_peer peer = {.node = 1, .offer = {.machine = net_host_value(), .n = 1}};
    net_address at;
    net_outcome outcome;
    cluster t;

    build(&t, 1);
    net_probe_close(t.nodes[0].probe);
    opt = options_of(&t, 0);
    opt.limit_ms = limit_ms;
    assert_ok(net_probe_open(&opt, &t.nodes[0].probe));
    assert_ok(net_address_decode("127.0.0.1:0", &at));
    assert_ok(net_listen(&at, NET_STREAM, 64, &s.fd, &peer.offer.at[0].address));
    if (how == MANNER_GONE)
        file_close(&s.fd);
    else
        assert_ok(poller_watch(t.loop, s.fd, POLL_READ, on_connection, &s, &watch));
    outcome = (net_outcome)try_one(&t, &peer)->outcome;
    poller_close(&watch, &s.fd);
    for (int i = 0; i < s.n_connections; i++)
        file_close(&s.connections[i]);
    close_cluster(&t);
    return outcome;
}

static void other_services_have_their_own_outcomes(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(outcome_at_service(MANNER_GONE, LONG_MS), NET_REFUSED);
    assert_int_equal(outcome_at_service(MANNER_SILENT, 100), NET_TIMED_OUT);
    assert_int_equal(outcome_at_service(MANNER_CLOSES, 200), NET_BROKEN);
    assert_int_equal(outcome_at_service(MANNER_ANSWERS, LONG_MS), NET_OTHER_KEY);
}

static void node_without_ipv6_does_not_test_ipv6(void **state)
{
    net_peer peer = {.node = 1, .offer = {.machine = 5, .n = 2}};
    net_probe_options opt;
    cluster t;

    LS_UNUSED(state);
    build(&t, 1);
    net_probe_close(t.nodes[0].probe);
    opt = options_of(&t, 0);
    opt.filter = "127.0.0.0/8"; // IPv4 only
    assert_ok(net_probe_open(&opt, &t.nodes[0].probe));
    assert_ok(net_address_decode("[fd77::1]:4711", &peer.offer.at[0].address));
    assert_ok(net_address_decode("127.0.0.1:4711", &peer.offer.at[1].address));
    start(&t, 0, &peer, 1);
    run_until_done(&t, 0, 0);
    assert_int_equal(t.nodes[0].report->n, 1);
    assert_int_equal(t.nodes[0].report->tries[0].address, 1);
    close_cluster(&t);
}

/* --- ports --- */

static int port_of(const node *n)
{
    return net_address_port(&net_probe_offer(n->probe)->at[0].address);
}

static void only_ports_of_the_range_are_used(void **state)
{
    net_probe_options opt;
    int base;
    cluster t;

    LS_UNUSED(state);
    build(&t, 4);
    base = port_of(&t.nodes[0]); // in use
    if (base > 65000)
        base -= 100;
    opt = options_of(&t, 0);
    opt.filter = "127.0.0.0/8";
    opt.ports = (net_ports){base, base + 7};
    for (int i = 1; i < 4; i++) {
        net_probe_close(t.nodes[i].probe);
        t.nodes[i].probe = NULL;
        opt.node = 8; // starts at `base` again
        assert_ok(net_probe_open(&opt, &t.nodes[i].probe));
        assert_true(port_of(&t.nodes[i]) > base - 1 && port_of(&t.nodes[i]) <= base + 7);
        for (int k = 1; k < i; k++)
            assert_int_not_equal(port_of(&t.nodes[i]), port_of(&t.nodes[k]));
    }
    opt.ports = (net_ports){port_of(&t.nodes[1]), port_of(&t.nodes[1])};
    net_probe_close(t.nodes[2].probe);
    t.nodes[2].probe = NULL;
    assert_status(net_probe_open(&opt, &t.nodes[2].probe), LS_ESYSTEM);
    assert_last_error("--port-range");
    assert_null(t.nodes[2].probe);
    close_cluster(&t);
}

static void one_port_serves_all_addresses_without_a_filter(void **state)
{
    net_probe_options opt;
    net_address at;
    const net_offer *offer;
    int fd = -1;
    cluster t;

    LS_UNUSED(state);
    build(&t, 1);
    net_probe_close(t.nodes[0].probe);
    opt = options_of(&t, 0);
    opt.filter = NULL;
    assert_ok(net_probe_open(&opt, &t.nodes[0].probe));
    offer = net_probe_offer(t.nodes[0].probe);
    for (int i = 0; i < offer->n; i++) {
        assert_false(net_address_is_loopback(&offer->at[i].address));
        assert_int_equal(net_address_port(&offer->at[i].address), port_of(&t.nodes[0]));
    }
    if (offer->n > 0) {
        assert_ok(net_address_decode("127.0.0.1:0", &at));
        net_address_set_port(&at, port_of(&t.nodes[0]));
        assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(LONG_MS), &fd));
        file_close(&fd);
    }
    close_cluster(&t);
}

static void filter_without_a_match_lists_the_interfaces(void **state)
{
    net_probe_options opt;
    net_probe *p;
    cluster t;

    LS_UNUSED(state);
    build(&t, 0);
    opt = options_of(&t, 0);
    opt.filter = "nosuch0";
    assert_status(net_probe_open(&opt, &p), LS_ENOTFOUND);
    assert_last_error("--net nosuch0; this host has: ");
    opt.filter = "10.0.0.0/64";
    assert_status(net_probe_open(&opt, &p), LS_EINVAL);
    opt.filter = "lo";
    opt.key = NULL;
    assert_status(net_probe_open(&opt, &p), LS_EAUTH);
    close_cluster(&t);
}

static void lists_that_are_not_in_order_are_refused(void **state)
{
    cluster t;

    LS_UNUSED(state);
    build(&t, 1);
    peers[0] = (net_peer){.node = 2};
    peers[1] = (net_peer){.node = 1};
    assert_status(net_probe_start(t.nodes[0].probe, peers, 2, on_done, NULL), LS_EINVAL);
    peers[0].node = 0; // itself
    assert_status(net_probe_start(t.nodes[0].probe, peers, 2, on_done, NULL), LS_EINVAL);
    assert_status(net_probe_start(t.nodes[0].probe, peers, 64, on_done, NULL), LS_EINVAL);
    close_cluster(&t);
}

/* --- authenticated peers that misbehave --- */

static int come_in(cluster *t)
{
    const handshake_claim claim = {
        .purpose = NET_PURPOSE_PROBE, .job = JOB, .from = 7, .to = 0, .generation = 3};
    const int64_t deadline_ms = ls_deadline_ms(LONG_MS);
    handshake h;
    short events = 0;
    int fd = -1;

    assert_ok(net_connect(&net_probe_offer(t->nodes[0].probe)->at[0].address, NET_STREAM,
                          deadline_ms, &fd));
    assert_ok(handshake_client(&h, &key, &claim, "node 0"));
    while (h.state != HANDSHAKE_DONE) {
        assert_ok(handshake_step(&h, fd, &events));
        assert_ok(poller_run_once(t->loop, 1));
        assert_true(ls_deadline_left(deadline_ms) > 0);
    }
    handshake_wipe(&h);
    return fd;
}

/* Runs until n bytes are received or the connection is closed; returns the number of bytes. */
static size_t receive(cluster *t, int fd, uint8_t *in, size_t wanted)
{
    const int64_t deadline_ms = ls_deadline_ms(LONG_MS);
    size_t n = 0;
    size_t moved;

    while (n < wanted && ls_deadline_left(deadline_ms) > 0) {
        assert_ok(poller_run_once(t->loop, 1));
        if (net_recv_some(fd, "node 0", in + n, wanted - n, &moved) != LS_OK)
            return n;
        n += moved;
    }
    assert_true(ls_deadline_left(deadline_ms) > 0);
    return n;
}

static void send_request(int fd, uint32_t what, uint32_t bytes)
{
    uint8_t header[8];

    wire_put_u32(header, what);
    wire_put_u32(header + 4, bytes);
    assert_int_equal(send(fd, header, sizeof(header), MSG_NOSIGNAL), sizeof(header));
}

static void requests_come_in_any_pieces(void **state)
{
    uint8_t in[64];
    uint8_t request[8 + 16] = {1, 0, 0, 0, 16, 0, 0, 0, 'a', 'b', 'c'};
    int fd;
    cluster t;

    LS_UNUSED(state);
    build(&t, 1);
    fd = come_in(&t);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof(request); i++) {
            assert_int_equal(send(fd, request + i, 1, MSG_NOSIGNAL), 1);
            assert_ok(poller_run_once(t.loop, 0));
        }
        assert_int_equal(receive(&t, fd, in, 16), 16);
        assert_memory_equal(in, request + 8, 16);
        send_request(fd, 2, 5); // a burst of five bytes
        assert_int_equal(send(fd, "12", 2, MSG_NOSIGNAL), 2);
        assert_int_equal(receive(&t, fd, in, 4), 4);
        assert_int_equal(wire_get_u32(in), 2);
        assert_int_equal(send(fd, "345", 3, MSG_NOSIGNAL), 3);
        assert_int_equal(receive(&t, fd, in, 4), 4);
        assert_int_equal(wire_get_u32(in), 5);
    }
    file_close(&fd);
    close_cluster(&t);
}

static void malformed_requests_close_the_connection(void **state)
{
    static const uint32_t bad[][2] = {{0, 0},          {1, 0}, {1, 17},
                                      {1, UINT32_MAX}, {2, 0}, {2, 4 * 1024 * 1024 + 1},
                                      {2, UINT32_MAX}, {3, 16}};
    uint8_t in[64];
    cluster t;

    LS_UNUSED(state);
    build(&t, 1);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        int fd = come_in(&t);

        send_request(fd, bad[i][0], bad[i][1]);
        assert_int_equal(receive(&t, fd, in, 1), 0);
        file_close(&fd);
    }
    close_cluster(&t);
}

/* --- ends --- */

/* In any state: nothing leaks, and nothing is used after the close. */
static void probe_can_be_closed_at_any_time(void **state)
{
    int n_done = 0;

    LS_UNUSED(state);
    for (int steps = 0; steps < 400 && n_done < 3; steps += 1 + steps / 20) {
        cluster t;

        build(&t, 3);
        for (int i = 0; i < 3; i++)
            start(&t, i, peers, peers_of(&t, i));
        for (int i = 0; i < steps; i++)
            assert_ok(poller_run_once(t.loop, 0));
        net_probe_close(t.nodes[steps % 3].probe);
        t.nodes[steps % 3].probe = NULL;
        for (int i = 0; i < 5; i++)
            assert_ok(poller_run_once(t.loop, 0));
        n_done = t.nodes[0].is_done + t.nodes[1].is_done + t.nodes[2].is_done;
        close_cluster(&t);
    }
}

static void close_when_done(void *self, const net_report *report)
{
    node *n = self;

    assert_true(report->n >= 1);
    n->is_done = true;
    net_probe_close(n->probe);
    n->probe = NULL;
}

static void probe_can_be_closed_when_it_is_done(void **state)
{
    cluster t;

    LS_UNUSED(state);
    build(&t, 2);
    assert_int_equal(peers_of(&t, 0), 1);
    assert_ok(net_probe_start(t.nodes[0].probe, peers, 1, close_when_done, &t.nodes[0]));
    run_until_done(&t, 0, 0);
    assert_null(t.nodes[0].probe);
    close_cluster(&t);
}

static void every_allocation_may_fail(void **state)
{
    cluster t;

    LS_UNUSED(state);
    build(&t, 3);
    for (uint64_t n = 1; n < 60; n++) {
        net_probe_options opt = options_of(&t, 0);

        net_probe_close(t.nodes[0].probe);
        t.nodes[0] = (node){0};
        ls_alloc_fail_at(n);
        if (net_probe_open(&opt, &t.nodes[0].probe) == LS_OK) {
            const int n_peers = peers_of(&t, 0);

            if (net_probe_start(t.nodes[0].probe, peers, n_peers, on_done, &t.nodes[0]) == LS_OK) {
                ls_alloc_fail_at(n);
                run_until_done(&t, 0, 0);
            }
        }
        ls_alloc_fail_at(0);
    }
    close_cluster(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_address_of_every_peer_is_tested),
        cmocka_unit_test(many_nodes_test_each_other),
        cmocka_unit_test(probe_without_peers_is_done_at_once),
        cmocka_unit_test(other_node_at_an_address_is_a_wrong_node),
        cmocka_unit_test(address_that_this_host_has_too_is_a_wrong_node),
        cmocka_unit_test(keys_jobs_and_generations_must_be_the_same),
        cmocka_unit_test(other_services_have_their_own_outcomes),
        cmocka_unit_test(node_without_ipv6_does_not_test_ipv6),
        cmocka_unit_test(only_ports_of_the_range_are_used),
        cmocka_unit_test(one_port_serves_all_addresses_without_a_filter),
        cmocka_unit_test(filter_without_a_match_lists_the_interfaces),
        cmocka_unit_test(lists_that_are_not_in_order_are_refused),
        cmocka_unit_test(requests_come_in_any_pieces),
        cmocka_unit_test(malformed_requests_close_the_connection),
        cmocka_unit_test(probe_can_be_closed_at_any_time),
        cmocka_unit_test(probe_can_be_closed_when_it_is_done),
        cmocka_unit_test(every_allocation_may_fail),
    };

    setenv("LOCKSTEP_LOG", "error", 1); // this test provokes refused connections
    if (net_key_random(&key) != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
