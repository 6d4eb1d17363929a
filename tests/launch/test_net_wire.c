/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_wire.c - offers, peers, reports and picks as bytes: what is written reads the same, and
 * malformed input is refused.
 */
#include "launch/net_world.h"

static net_world world;

static void make_world(void)
{
    memset(&world, 0, sizeof(world));
    world_node(&world, "alpha");
    world_address(&world, 0, "eth0", "10.77.0.10/24");
    world_address(&world, 0, "ens3", "fd77::10/64");
    world_address(&world, 0, "docker0", "172.17.0.1/16");
    world.offers[0].at[1].is_default = true;
    world.offers[0].at[1].speed_mbps = 25000;
    world.offers[0].at[1].mtu = 9000;
}

static void expect_same_interfaces(const net_interface *a, const net_interface *b, int n)
{
    for (int i = 0; i < n; i++) {
        assert_string_equal(a[i].name, b[i].name);
        assert_true(net_address_equal(&a[i].address, &b[i].address));
        assert_int_equal(a[i].prefix, b[i].prefix);
        assert_int_equal(a[i].mtu, b[i].mtu);
        assert_int_equal(a[i].speed_mbps, b[i].speed_mbps);
        assert_int_equal(a[i].is_bridge, b[i].is_bridge);
        assert_int_equal(a[i].is_default, b[i].is_default);
    }
}

static void messages_are_read_as_written(void **state)
{
    net_peer peer = {.node = 4095, .measure = true};
    net_pick pick = {.n = 2};
    net_try tries[] = {{.peer = 1, .address = 2, .local = -1, .outcome = NET_WRONG_NODE},
                       {.peer = 4095,
                        .address = 15,
                        .local = 15,
                        .outcome = NET_OK,
                        .round_trip_us = 123456,
                        .bytes_per_s = 1ULL << 40}};
    const net_report report = {.n = 2, .tries = tries};
    wire_writer w = {0};
    wire_reader r;
    net_peer peer2;
    net_pick pick2;
    net_report report2;

    LS_UNUSED(state);
    make_world();
    peer.offer = world.offers[0];
    peer.offer.is_filtered = true;
    pick.head = world.offers[0].at[0].address;
    memcpy(pick.at, world.offers[0].at, 2 * sizeof(pick.at[0]));
    net_peer_write(&w, &peer);
    net_pick_write(&w, &pick);
    net_report_write(&w, &report);
    assert_ok(wire_writer_status(&w));
    r = wire_reader_over(w.data, w.bytes);
    net_peer_read(&r, &peer2);
    net_pick_read(&r, &pick2);
    net_report_read(&r, &report2);
    assert_ok(wire_reader_end(&r, "messages"));
    assert_int_equal(peer2.node, 4095);
    assert_true(peer2.measure);
    assert_string_equal(peer2.offer.host, "alpha");
    assert_int_equal(peer2.offer.machine, peer.offer.machine);
    assert_true(peer2.offer.is_filtered);
    assert_int_equal(peer2.offer.n, 3);
    expect_same_interfaces(peer2.offer.at, peer.offer.at, 3);
    assert_true(net_address_equal(&pick2.head, &pick.head));
    assert_int_equal(pick2.n, 2);
    expect_same_interfaces(pick2.at, pick.at, 2);
    assert_int_equal(report2.n, 2);
    assert_memory_equal(report2.tries, tries, sizeof(tries));
    net_report_free(&report2);
    wire_writer_free(&w);
}

static void truncated_messages_are_refused(void **state)
{
    net_try one = {.peer = 1, .local = -1, .outcome = NET_OK};
    const net_report report = {.n = 1, .tries = &one};
    net_peer peer = {.node = 1};
    wire_writer w = {0};

    LS_UNUSED(state);
    make_world();
    peer.offer = world.offers[0];
    net_peer_write(&w, &peer);
    net_report_write(&w, &report);
    assert_ok(wire_writer_status(&w));
    for (size_t n = 0; n < w.bytes; n++) {
        wire_reader r = wire_reader_over(w.data, n);
        net_report read;
        net_peer p;

        net_peer_read(&r, &p);
        net_report_read(&r, &read);
        assert_status(wire_reader_end(&r, "messages"), LS_EPROTO);
        assert_int_equal(read.n, 0);
        assert_null(read.tries);
    }
    wire_writer_free(&w);
}

/* Whether an offer with this first interface is accepted. */
static bool passes(const net_interface *face)
{
    net_offer offer = {.host = "alpha", .n = 1, .at = {*face}};
    wire_writer w = {0};
    wire_reader r;
    net_offer read;
    bool ok;

    net_offer_write(&w, &offer);
    r = wire_reader_over(w.data, w.bytes);
    net_offer_read(&r, &read);
    ok = wire_reader_end(&r, "an offer") == LS_OK;
    wire_writer_free(&w);
    return ok;
}

static void invalid_interfaces_are_refused(void **state)
{
    static const char *const names[] = {"", "a b", "a,b", "^a", "a/b", "=a", "a\nb", "\xc3\xa4"};
    net_interface face;

    LS_UNUSED(state);
    make_world();
    face = world.offers[0].at[0];
    assert_true(passes(&face));
    face.prefix = 33;
    assert_false(passes(&face));
    face = world.offers[0].at[0];
    face.mtu = -1;
    assert_false(passes(&face));
    face = world.offers[0].at[0];
    assert_ok(net_address_decode("unix:@x", &face.address));
    assert_false(passes(&face));
    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        face = world.offers[0].at[0];
        text_format(face.name, sizeof(face.name), "%s", names[i]);
        assert_false(passes(&face));
    }
}

static void reports_out_of_order_or_bounds_are_refused(void **state)
{
    static const net_try bad[][2] = {
        {{.peer = 2}, {.peer = 1}},
        {{.peer = 2, .address = 1}, {.peer = 2, .address = 1}},
        {{.peer = 2}, {.peer = 4096}},
        {{.peer = 2}, {.peer = 3, .address = 16}},
        {{.peer = 2}, {.peer = 3, .outcome = NET_OUTCOME_COUNT}},
        {{.peer = 2}, {.peer = 3, .local = 16}},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        net_try tries[2] = {bad[i][0], bad[i][1]};
        const net_report report = {.n = 2, .tries = tries};
        wire_writer w = {0};
        wire_reader r;
        net_report read;

        net_report_write(&w, &report);
        r = wire_reader_over(w.data, w.bytes);
        net_report_read(&r, &read);
        assert_status(wire_reader_end(&r, "a report"), LS_EPROTO);
        assert_null(read.tries);
        wire_writer_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_read_as_written),
        cmocka_unit_test(truncated_messages_are_refused),
        cmocka_unit_test(invalid_interfaces_are_refused),
        cmocka_unit_test(reports_out_of_order_or_bounds_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
