/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_choice.c - the selection of a network from synthetic reports: fixed cases, random worlds
 * against an exhaustive search, texts of failures, and the variables of ranks.
 */
#include "launch/net_world.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <inttypes.h>
#include <stdlib.h>

/* The networks of three_nodes(), as indices in every offer. */
enum { FAST, FAST6, SLOW, DEAD, DOCKER };

static net_world world;

/* Three nodes on five networks; the interface of the fast network is ens3 on the last node. */
static net_world *three_nodes(void)
{
    static const char *const hosts[] = {"alpha", "beta", "gamma"};
    net_world *w = &world;

    memset(w, 0, sizeof(*w));
    for (int i = 0; i < 3; i++) {
        const char *fast = i == 2 ? "ens3" : "eth0";
        char text[32];

        world_node(w, hosts[i]);
        world_address(w, i, fast, text_format(text, sizeof(text), "10.77.0.%d/24", 10 + i));
        world_address(w, i, fast, text_format(text, sizeof(text), "fd77::%d/64", 10 + i));
        world_address(w, i, "eth1", text_format(text, sizeof(text), "10.78.0.%d/24", 10 + i));
        world_address(w, i, "eth2", text_format(text, sizeof(text), "10.79.0.%d/24", 10 + i));
        world_address(w, i, "docker0", "172.17.0.1/16");
    }
    world_set_all(w, FAST, NET_OK, 90, 6 * GBPS);
    world_set_all(w, FAST6, NET_OK, 80, 8 * GBPS);
    world_set_all(w, SLOW, NET_OK, 95, GBPS / 5);
    world_set_all(w, DEAD, NET_TIMED_OUT, 0, 0);
    world_set_all(w, DOCKER, NET_WRONG_NODE, 0, 0);
    return w;
}

static void expect_address(const net_choice *c, int node, const char *name, const char *host)
{
    char text[NET_ADDRESS_TEXT_MAX];

    assert_string_equal(c->picks[node].at[0].name, name);
    assert_string_equal(net_address_host(text, sizeof(text), &c->picks[node].at[0].address), host);
    assert_int_equal(net_address_port(&c->picks[node].at[0].address), 0);
}

static void expect_text(const net_choice *c, const char *wanted)
{
    assert_string_equal(text_str(&c->text), wanted);
}

static void fast_network_is_selected_by_each_nodes_own_interface_name(void **state)
{
    net_choice c;
    char text[NET_ADDRESS_TEXT_MAX];

    LS_UNUSED(state);
    assert_ok(world_choose(three_nodes(), NULL, &c));
    expect_address(&c, 0, "eth0", "10.77.0.10"); // IPv6 is faster, but within the factor 1.5
    expect_address(&c, 1, "eth0", "10.77.0.11");
    expect_address(&c, 2, "ens3", "10.77.0.12");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c.picks[i].n, 1); // the other networks are slow, or on the same link
        assert_string_equal(net_address_host(text, sizeof(text), &c.picks[i].head), "10.77.0.10");
    }
    expect_text(&c, "10.77.0.0/24 (750 MB/s, 90 us): eth0 on nodes 0-1, ens3 on node 2");
    net_choice_free(&c);
}

static void ipv6_is_selected_when_its_link_is_faster_or_alone(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    world_set_all(w, FAST6, NET_OK, 80, 10 * GBPS);
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 2, "ens3", "10.77.0.12"); // the same link, so the difference is noise
    net_choice_free(&c);
    world_set_all(w, FAST, NET_REFUSED, 0, 0);
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 2, "ens3", "fd77::12");
    expect_text(&c, "fd77::/64 (1.2 GB/s, 80 us): eth0 on nodes 0-1, ens3 on node 2");
    net_choice_free(&c);
    w = three_nodes();
    world_set_all(w, FAST, NET_REFUSED, 0, 0);
    world_set_all(w, SLOW, NET_REFUSED, 0, 0);
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 0, "eth0", "fd77::10");
    net_choice_free(&c);
}

static void failure_in_one_direction_excludes_a_network(void **state)
{
    net_choice c;

    LS_UNUSED(state);
    for (int from = 0; from < 3; from++) {
        net_world *w = three_nodes();
        const int to = (from + 1) % 3;

        world_set(w, from, to, FAST, NET_REFUSED, 0, 0);
        world_set(w, to, from, FAST6, NET_BLACK_HOLE, 0, 0);
        assert_ok(world_choose(w, NULL, &c));
        for (int i = 0; i < 3; i++)
            assert_string_equal(c.picks[i].at[0].name, "eth1");
        net_choice_free(&c);
    }
}

static void slowest_pair_decides_the_bandwidth(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    world_set(w, 1, 2, FAST, NET_OK, 90, GBPS / 50);
    world_set(w, 1, 2, FAST6, NET_OK, 90, GBPS / 50);
    assert_ok(world_choose(w, NULL, &c));
    assert_string_equal(c.picks[2].at[0].name, "eth1");
    net_choice_free(&c);
}

static void unmeasured_pairs_do_not_affect_the_bandwidth(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++) // only the ring is measured, in one direction
        for (int a = FAST; a <= SLOW; a++)
            w->tried[i][(i + 2) % 3][a].bytes_per_s = 0;
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 0, "eth0", "10.77.0.10");
    net_choice_free(&c);
}

static void link_speed_decides_without_measurements(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++) {
        w->offers[i].at[FAST].speed_mbps = 1000;
        w->offers[i].at[FAST6].speed_mbps = 1000;
        w->offers[i].at[SLOW].speed_mbps = 25000;
        for (int k = 0; k < 3; k++)
            for (int a = FAST; a <= SLOW; a++)
                w->tried[i][k][a].bytes_per_s = 0;
    }
    assert_ok(world_choose(w, NULL, &c));
    expect_text(&c, "10.78.0.0/24 (95 us): eth1 on nodes 0-2");
    net_choice_free(&c);
}

static void shorter_round_trip_decides_between_equal_bandwidths(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    world_set_all(w, SLOW, NET_OK, 40, 6 * GBPS);
    assert_ok(world_choose(w, NULL, &c));
    assert_string_equal(c.picks[0].at[0].name, "eth1");
    assert_int_equal(c.picks[2].n, 2);
    assert_string_equal(c.picks[2].at[1].name, "ens3"); // equally good, on another link
    net_choice_free(&c);
    world_set_all(w, SLOW, NET_OK, 70, 6 * GBPS); // within the factor 1.5
    assert_ok(world_choose(w, NULL, &c));
    assert_string_equal(c.picks[0].at[0].name, "eth0");
    assert_int_equal(c.picks[2].n, 2);
    assert_string_equal(c.picks[2].at[1].name, "eth1");
    net_choice_free(&c);
}

static void bridges_are_selected_last_and_never_after_a_wrong_node(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    world_set_all(w, DOCKER, NET_OK, 10, 40 * GBPS); // an overlay network that works
    assert_ok(world_choose(w, NULL, &c));
    assert_string_equal(c.picks[0].at[0].name, "eth0");
    net_choice_free(&c);
    for (int a = FAST; a <= SLOW; a++)
        world_set_all(w, a, NET_TIMED_OUT, 0, 0);
    assert_ok(world_choose(w, NULL, &c));
    assert_string_equal(c.picks[0].at[0].name, "docker0");
    net_choice_free(&c);
    world_set(w, 2, 1, DOCKER, NET_WRONG_NODE, 0, 0);
    assert_status(world_choose(w, NULL, &c), LS_EPEER);
    net_choice_free(&c);
}

static void address_of_two_hosts_is_never_selected(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    world_set(w, 0, 2, FAST, NET_WRONG_NODE, 0, 0);
    world_address(w, 2, "ens3", "10.77.0.99/24"); // the sixth of node 2 alone
    world_set(w, 0, 2, 5, NET_OK, 90, 6 * GBPS);
    world_set(w, 1, 2, 5, NET_OK, 90, 6 * GBPS);
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 2, "ens3", "10.77.0.99");
    expect_address(&c, 0, "eth0", "10.77.0.10");
    net_choice_free(&c);
}

static void filter_narrows_the_list_of_every_node(void **state)
{
    static const struct {
        const char *filter;
        const char *name; /* on node 2; NULL: no network works */
    } cases[] = {
        {"eth1", "eth1"},      {"10.78.0.0/16", "eth1"}, {"^10.77.0.0/24,^fd77::/16", "eth1"},
        {"eth0,ens3", "ens3"}, {"eth0", NULL},           {"eth2", NULL},
        {"fd77::/64", "ens3"}};
    net_choice c;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        const ls_status st = world_choose(three_nodes(), cases[i].filter, &c);

        assert_status(st, cases[i].name == NULL ? LS_EPEER : LS_OK);
        if (st == LS_OK)
            assert_string_equal(c.picks[2].at[0].name, cases[i].name);
        net_choice_free(&c);
    }
    assert_status(world_choose(three_nodes(), "10.0.0.0/99", &c), LS_EINVAL);
    assert_last_error("10.0.0.0/99");
    net_choice_free(&c);
}

static void own_filter_of_a_node_overrides_that_of_the_head(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    w->offers[2].is_filtered = true; // --net ens3 on a node whose eth0 has another name
    w->offers[2].n = 1;
    for (int i = 0; i < 2; i++)
        memset(&w->tried[i][2][FAST + 1], 0, sizeof(w->tried[i][2]) - sizeof(w->tried[i][2][0]));
    assert_ok(world_choose(w, "eth0", &c));
    expect_address(&c, 0, "eth0", "10.77.0.10");
    expect_address(&c, 2, "ens3", "10.77.0.12");
    net_choice_free(&c);
}

static void nodes_in_different_subnets_use_routes(void **state)
{
    net_world *w = &world;
    net_choice c;

    LS_UNUSED(state);
    memset(w, 0, sizeof(*w));
    for (int i = 0; i < 3; i++) {
        char text[32];

        world_node(w, "cloud");
        world_address(w, i, "ens4", text_format(text, sizeof(text), "10.128.0.%d/32", 2 + i));
        world_address(w, i, "ens5", text_format(text, sizeof(text), "10.200.%d.2/24", i));
    }
    world_set_all(w, 0, NET_OK, 200, GBPS);
    world_set_all(w, 1, NET_OK, 200, 10 * GBPS);
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (int a = 0; a < 2; a++)
                w->tried[from][to][a].local = (int8_t)a;
    assert_ok(world_choose(w, NULL, &c));
    expect_text(&c, "routed from 10.200.0.0/24 (1.2 GB/s, 200 us): ens5 on nodes 0-2");
    net_choice_free(&c);
}

/*
 * 10.77.0.10 can connect to 10.78.0.12 between hosts on both networks, but that is no separate
 * network.
 */
static void networks_are_mixed_only_when_no_single_network_works(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    for (int a = FAST; a <= FAST6; a++)
        world_set(w, 0, 2, a, NET_TIMED_OUT, 0, 0);
    world_set_all(w, SLOW, NET_OK, 500, GBPS / 100);
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 0, "eth1", "10.78.0.10");
    net_choice_free(&c);
    for (int from = 0; from < 3; from++)
        world_set(w, from, 0, SLOW, NET_TIMED_OUT, 0, 0);
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 0, "eth0", "10.77.0.10");
    expect_address(&c, 1, "eth0", "10.77.0.11");
    expect_address(&c, 2, "eth1", "10.78.0.12");
    net_choice_free(&c);
}

static void nodes_on_one_machine_need_no_network(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    memset(w->tried, 0, sizeof(w->tried));
    for (int i = 0; i < 3; i++)
        w->offers[i].machine = 7;
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 2, "lo", "127.0.0.1");
    net_choice_free(&c);
    assert_ok(world_choose(w, "eth1", &c)); // requested by name
    expect_address(&c, 2, "eth1", "10.78.0.12");
    net_choice_free(&c);
    w->offers[1].machine = 8; // one node is on another machine, and was not tested
    assert_status(world_choose(w, NULL, &c), LS_EPEER);
    net_choice_free(&c);
    for (int i = 0; i < 3; i += 2) {
        world_set(w, i, 1, SLOW, NET_OK, 100, GBPS);
        world_set(w, 1, i, SLOW, NET_OK, 100, GBPS);
    }
    assert_ok(world_choose(w, NULL, &c));
    expect_address(&c, 2, "eth1", "10.78.0.12");
    net_choice_free(&c);
}

/* Node 2 comes when the others have selected, and is not tested. */
static void a_late_node_gets_the_network_of_the_others(void **state)
{
    net_world *w = three_nodes();
    net_choice c;
    net_pick pick;
    char text[NET_ADDRESS_TEXT_MAX];

    LS_UNUSED(state);
    assert_ok(world_choose(w, "eth1", &c));
    assert_ok(net_choose_late(&c, w->offers, 2, &pick));
    assert_string_equal(pick.at[0].name, "eth1");
    assert_true(net_address_equal(&pick.head, &c.picks[0].head));
    assert_int_equal(net_address_port(&pick.at[0].address), 0);
    w->offers[2].n = 0;
    world_address(w, 2, "docker0", "172.17.0.1/16");
    world_address(w, 2, "eth9", "fd99::1/64");
    assert_status(net_choose_late(&c, w->offers, 2, &pick), LS_EPEER);
    assert_last_error("gamma has no address in the network of the job");
    world_address(w, 2, "eth8", "10.99.0.1/24"); // another subnet, may be routed
    assert_ok(net_choose_late(&c, w->offers, 2, &pick));
    assert_string_equal(net_address_host(text, sizeof(text), &pick.at[0].address), "10.99.0.1");
    net_choice_free(&c);
    for (int i = 0; i < 3; i++)
        w->offers[i].machine = 7;
    assert_ok(world_choose(w, NULL, &c));
    assert_ok(net_choose_late(&c, w->offers, 2, &pick));
    assert_string_equal(pick.at[0].name, "lo");
    w->offers[2].machine = 8;
    assert_status(net_choose_late(&c, w->offers, 2, &pick), LS_EPEER);
    net_choice_free(&c);
}

static void single_node_gets_loopback(void **state)
{
    net_offer offer = {.host = "alone"};
    net_report report = {0};
    net_choice c;

    LS_UNUSED(state);
    assert_ok(net_choose(&offer, &report, 1, NULL, &c));
    expect_address(&c, 0, "lo", "127.0.0.1");
    net_choice_free(&c);
}

/* --- no network works --- */

static const char no_network_text[] =
    "network tests by destination address:\n"
    "  node 0 (alpha)\n"
    "    eth0       10.77.0.10/24        from node 1: ok, 90 us, 750 MB/s; from node 2: timed out\n"
    "    eth0       fd77::10/64          from nodes 1-2: refused\n"
    "    eth1       10.78.0.10/24        from nodes 1-2: MTU black hole\n"
    "    eth2       10.79.0.10/24        from nodes 1-2: timed out\n"
    "    docker0    172.17.0.1/16        from nodes 1-2: wrong node\n"
    "  node 1 (beta)\n"
    "    eth0       10.77.0.11/24        from node 0: ok, 90 us, 750 MB/s; from node 2: timed out\n"
    "    eth0       fd77::11/64          from nodes 0,2: refused\n"
    "    eth1       10.78.0.11/24        from nodes 0,2: MTU black hole\n"
    "    eth2       10.79.0.11/24        from nodes 0,2: timed out\n"
    "    docker0    172.17.0.1/16        from nodes 0,2: wrong node\n"
    "  node 2 (gamma)\n"
    "    ens3       10.77.0.12/24        from nodes 0-1: ok, 90 us, 750 MB/s\n"
    "    ens3       fd77::12/64          from node 0: refused; from node 1: unreachable\n"
    "    eth1       10.78.0.12/24        from nodes 0-1: MTU black hole\n"
    "    eth2       10.79.0.12/24        from nodes 0-1: timed out\n"
    "    docker0    172.17.0.1/16        from nodes 0-1: wrong node\n"
    "what to do:\n"
    "  timed out: no answer, mostly because of a firewall. To permit the other nodes, on alpha:\n"
    "      iptables -I INPUT -p tcp -s 10.77.0.0/24 -j ACCEPT\n"
    "    or open a few ports there and pass them to this job: --port-range A-B\n"
    "  refused: a host answers at fd77::10, but not this job: another host has the same address, "
    "or a\n"
    "    firewall of alpha rejects connections\n"
    "  unreachable: to see the route, on beta:\n"
    "      ip route get fd77::12\n"
    "  MTU black hole: small packets arrive, those of 1500 bytes are lost in a switch or tunnel. "
    "On alpha\n"
    "    and every host of this network:\n"
    "      ip link set dev eth1 mtu 1500\n"
    "  to select a network: --net NAME, --net 10.0.0.0/8 or --net ^NAME; for programs on Gloo and "
    "NCCL alone\n"
    "    GLOO_SOCKET_IFNAME=NAME and NCCL_SOCKET_IFNAME==NAME on each node\n";

static void failure_lists_all_tests_and_advice(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    world_set(w, 2, 0, FAST, NET_TIMED_OUT, 0, 0);
    world_set(w, 2, 1, FAST, NET_TIMED_OUT, 0, 0);
    world_set_all(w, FAST6, NET_REFUSED, 0, 0);
    world_set(w, 1, 2, FAST6, NET_UNREACHABLE, 0, 0);
    world_set_all(w, SLOW, NET_BLACK_HOLE, 0, 0);
    assert_status(world_choose(w, NULL, &c), LS_EPEER);
    assert_string_equal(ls_last_error(), "no network connects all 3 nodes");
    assert_null(c.picks);
    expect_text(&c, no_network_text);
    net_choice_free(&c);
}

static void advice_fits_the_address_family_and_wrong_nodes(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    world_set_all(w, FAST, NET_WRONG_NODE, 0, 0);
    world_set_all(w, FAST6, NET_TIMED_OUT, 0, 0);
    world_set_all(w, SLOW, NET_REFUSED, 0, 0);
    assert_status(world_choose(w, NULL, &c), LS_EPEER);
    assert_non_null(strstr(text_str(&c.text), "ip6tables -I INPUT -p tcp -s fd77::/64 -j ACCEPT"));
    assert_non_null(strstr(text_str(&c.text), "wrong node: more than one host has this address; "
                                              "exclude it with --net ^NAME\n"));
    net_choice_free(&c);
}

static void nodes_without_addresses_or_reports_are_named(void **state)
{
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    w->offers[1].n = 0;
    memset(w->tried, 0, sizeof(w->tried));
    world_set(w, 0, 2, FAST, NET_OTHER_KEY, 0, 0);
    world_set(w, 0, 2, SLOW, NET_BROKEN, 0, 0);
    assert_status(world_choose(w, NULL, &c), LS_EPEER);
    assert_non_null(
        strstr(text_str(&c.text), "  node 1 (beta) has no address that others can connect to\n"));
    assert_non_null(strstr(text_str(&c.text), "from nodes 1-2: not tried\n"));
    assert_non_null(strstr(text_str(&c.text), "  not tried: beta has no address"));
    assert_non_null(strstr(text_str(&c.text), "  key differs: "));
    assert_non_null(strstr(text_str(&c.text), "copy that of alpha to gamma\n"));
    assert_non_null(strstr(text_str(&c.text), "  broken off: a device between alpha and gamma,"));
    net_choice_free(&c);
}

static void reports_that_do_not_match_are_refused(void **state)
{
    net_try tries[2] = {{.peer = 1, .address = 0, .local = -1, .outcome = NET_OK},
                        {.peer = 1, .address = 1, .local = -1, .outcome = NET_OK}};
    net_world *w = three_nodes();
    net_choice c;

    LS_UNUSED(state);
    for (int kind = 0; kind < 4; kind++) {
        world_report(w);
        w->reports[2] = (net_report){.n = 2, .tries = tries};
        tries[0] = (net_try){.peer = 1, .local = -1, .outcome = NET_OK};
        switch (kind) {
        case 0:
            tries[0].peer = 3;
            break;
        case 1:
            tries[0].address = 5;
            break;
        case 2:
            tries[0].local = 5;
            break;
        default:
            tries[0].address = 1;
            break;
        }
        assert_status(net_choose(w->offers, w->reports, 3, NULL, &c), LS_EPROTO);
        assert_last_error("node 2");
        net_choice_free(&c);
    }
}

/* --- peers --- */

static void few_nodes_test_all_and_many_test_powers_of_two(void **state)
{
    static const int wanted[] = {2, 3, 4, 6, 10, 18, 34, 66, 99, 1, 0, 97, 93, 85, 69, 37};
    net_offer *offers = ls_calloc(4096, sizeof(*offers));
    int peers[NET_PEERS_MAX];
    int back[NET_PEERS_MAX];

    LS_UNUSED(state);
    assert_non_null(offers);
    for (int i = 0; i < 4096; i++)
        offers[i].machine = (uint64_t)i + 1;
    assert_int_equal(net_peers_of(5, offers, 16, peers), 15);
    assert_int_equal(net_peers_of(2, offers, 100, peers), 14);
    for (int i = 0; i < 14; i++) { // 2 +- 1, 2, 4, ... 64 of 100
        bool found = false;

        for (size_t k = 0; k < LS_COUNT_OF(wanted); k++)
            found = found || peers[i] == wanted[k] || peers[i] == 98 || peers[i] == 94 ||
                    peers[i] == 86 || peers[i] == 70 || peers[i] == 38;
        assert_true(found);
        assert_true(i == 0 || peers[i] > peers[i - 1]);
    }
    for (int n = 17; n <= 4096; n = n * 2 + 1) { // tests are mutual
        for (int node = 0; node < n; node += 1 + n / 50) {
            const int n_peers = net_peers_of(node, offers, n, peers);
            int n_next = 0;

            for (int i = 0; i < n_peers; i++) {
                const int n_back = net_peers_of(peers[i], offers, n, back);
                bool found = false;

                for (int k = 0; k < n_back; k++)
                    found = found || back[k] == node;
                assert_true(found);
                n_next += net_peer_is_next(node, peers[i], n);
            }
            assert_int_equal(n_next, 1);
        }
    }
    offers[6].machine = offers[5].machine;
    assert_int_equal(net_peers_of(5, offers, 16, peers), 14);
    assert_int_equal(net_peers_of(5, offers, 4096, peers), 22);
    ls_free(offers);
}

/* --- random worlds --- */

static bool pair_works(const net_world *w, int i, int a, int k, int b)
{
    return w->offers[i].machine == w->offers[k].machine ||
           (w->tried[i][k][b].outcome == NET_OK && w->tried[k][i][a].outcome == NET_OK);
}

/*
 * Exhaustive search: whether any combination of addresses works; address 3 of each node is the
 * bridge.
 */
static bool any_combination_works(const net_world *w, bool with_bridges)
{
    int total = 1;

    for (int i = 0; i < w->n; i++)
        total *= 4;
    for (int combination = 0; combination < total; combination++) {
        int a[WORLD_NODES_MAX];
        bool works = true;
        bool bridge = false;

        for (int i = 0, rest = combination; i < w->n; i++, rest /= 4) {
            a[i] = rest % 4;
            bridge = bridge || a[i] == 3;
            for (int k = 0; k < w->n; k++)
                works = works && w->tried[k][i][a[i]].outcome != NET_WRONG_NODE;
            for (int k = 0; k < i; k++)
                works = works && pair_works(w, i, a[i], k, a[k]);
        }
        if (works && (with_bridges || !bridge))
            return true;
    }
    return false;
}

static void make_random_world(net_world *w, uint64_t seed)
{
    ls_rng rng;
    uint64_t chance; /* percentage of paths that work */

    memset(w, 0, sizeof(*w));
    ls_rng_seed(&rng, seed);
    for (uint64_t n = 2 + ls_rng_below(&rng, 4); n > 0; n--)
        world_node(w, "node");
    chance = 50 + ls_rng_below(&rng, 51);
    for (int i = 0; i < w->n; i++) {
        char text[32];

        for (int a = 0; a < 3; a++) {
            const int subnet = ls_rng_below(&rng, 4) == 0 ? (int)ls_rng_below(&rng, 9) : a;

            world_address(w, i,
                          a == 0   ? "eth0"
                          : a == 1 ? "eth1"
                                   : "eth2",
                          text_format(text, sizeof(text), "10.%d.0.%d/24", subnet, 10 * a + i + 1));
        }
        world_address(w, i, "docker0", "172.17.0.1/16");
        if (i > 0 && ls_rng_below(&rng, 8) == 0)
            w->offers[i].machine = w->offers[0].machine;
    }
    for (int i = 0; i < w->n; i++)
        for (int k = 0; k < w->n; k++)
            for (int a = 0; a < 4 && i != k; a++) {
                net_outcome o = (net_outcome)(ls_rng_below(&rng, 8) + 1);

                if (ls_rng_below(&rng, 100) < chance)
                    o = NET_OK;
                if (o == NET_WRONG_NODE && ls_rng_below(&rng, 3) != 0)
                    o = NET_TIMED_OUT;
                world_set(w, i, k, a, o, (uint32_t)ls_rng_below(&rng, 500),
                          ls_rng_below(&rng, 10) * GBPS);
                w->tried[i][k][a].local = (int8_t)((int)ls_rng_below(&rng, 5) - 1);
            }
}

static int address_of(const net_world *w, int node, const net_interface *face)
{
    for (int a = 0; a < w->offers[node].n; a++)
        if (text_equal(w->offers[node].at[a].name, face->name))
            return a;
    return -1;
}

/* Invariants of every selection. */
static void check_choice(const net_world *w, const net_choice *c)
{
    int n_bridges = 0;

    for (int rail = 0; rail < c->picks[0].n; rail++) {
        for (int i = 0; i < w->n; i++) {
            const int a = address_of(w, i, &c->picks[i].at[rail]);

            assert_int_equal(c->picks[i].n, c->picks[0].n);
            assert_true(a >= 0);
            n_bridges += rail == 0 && a == 3;
            for (int k = 0; k < w->n; k++) {
                const int b = address_of(w, k, &c->picks[k].at[rail]);

                assert_int_not_equal(w->tried[k][i][a].outcome, NET_WRONG_NODE);
                assert_true(k == i || pair_works(w, i, a, k, b));
            }
            for (int other = 0; other < rail; other++)
                assert_string_not_equal(c->picks[i].at[rail].name, c->picks[i].at[other].name);
        }
    }
    assert_false(n_bridges > 0 && any_combination_works(w, false));
}

static bool one_machine(const net_world *w)
{
    for (int i = 1; i < w->n; i++)
        if (w->offers[i].machine != w->offers[0].machine)
            return false;
    return true;
}

static void selection_in_random_worlds_keeps_the_rules(void **state)
{
    const char *rounds = getenv("LS_TEST_ROUNDS");
    const uint64_t n = 3000 * (uint64_t)(rounds == NULL ? 1 : strtol(rounds, NULL, 10));
    int n_chosen = 0;
    int n_failed = 0;
    int n_bridges = 0;

    LS_UNUSED(state);
    for (uint64_t seed = 1; seed <= n; seed++) {
        net_world *w = &world;
        net_choice c;
        ls_status st;

        make_random_world(w, seed);
        if (one_machine(w))
            continue;
        st = world_choose(w, NULL, &c);
        if ((st == LS_OK) != any_combination_works(w, true))
            fail_msg("seed %" PRIu64 ": the choice failed though a network works, or the reverse",
                     seed);
        if (st == LS_OK) {
            check_choice(w, &c);
            n_bridges += c.picks[0].at[0].is_bridge;
        } else {
            assert_int_equal(st, LS_EPEER);
        }
        n_chosen += st == LS_OK;
        n_failed += st != LS_OK;
        net_choice_free(&c);
    }
    print_message("%d choices, %d of them bridges, and %d failures\n", n_chosen, n_bridges,
                  n_failed);
    assert_true(n_chosen > 100 && n_failed > 100 && n_bridges > 10);
}

static void selection_for_four_thousand_nodes_is_fast(void **state)
{
    enum { N = 4096 };
    net_offer *offers = ls_calloc(N, sizeof(*offers));
    net_report *reports = ls_calloc(N, sizeof(*reports));
    net_choice c;

    LS_UNUSED(state);
    assert_non_null(offers);
    assert_non_null(reports);
    for (int i = 0; i < N; i++) {
        net_world *w = &world;

        memset(w->offers, 0, sizeof(w->offers[0]));
        world_address(w, 0, "eth0", "10.77.0.1/16");
        w->offers[0].machine = (uint64_t)i;
        offers[i] = w->offers[0];
    }
    for (int i = 0; i < N; i++) {
        int peers[NET_PEERS_MAX];
        const int n = net_peers_of(i, offers, N, peers);

        reports[i].n = n;
        reports[i].tries = ls_calloc((size_t)n, sizeof(net_try));
        assert_non_null(reports[i].tries);
        for (int k = 0; k < n; k++)
            reports[i].tries[k] = (net_try){.peer = (uint16_t)peers[k], .outcome = NET_OK};
    }
    assert_ok(net_choose(offers, reports, N, NULL, &c));
    expect_text(&c, "10.77.0.0/16 (0 us): eth0 on nodes 0-4095");
    net_choice_free(&c);
    reports[77].n = 0;
    assert_status(net_choose(offers, reports, N, NULL, &c), LS_EPEER);
    assert_true(c.text.length < (size_t)128 * 1024);
    assert_non_null(strstr(text_str(&c.text), "more addresses"));
    net_choice_free(&c);
    for (int i = 0; i < N; i++)
        net_report_free(&reports[i]);
    ls_free(reports);
    ls_free(offers);
}

/* --- variables --- */

static const char *variable(const net_variable *all, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (text_equal(all[i].name, name))
            return all[i].value;
    return NULL;
}

static void variables_of_every_library_name_the_selection(void **state)
{
    static char gloo[] = "GLOO_SOCKET_IFNAME=mine";
    static char nccl[] = "NCCL_SOCKET_IFNAME=";
    static char iface[] = "LOCKSTEP_IFACE=10.0.0.0/8";
    char *inherited[] = {gloo, nccl, iface, NULL};
    net_variable v[NET_VARIABLES_MAX];
    net_choice c;
    int n;

    LS_UNUSED(state);
    assert_ok(world_choose(three_nodes(), NULL, &c));
    n = net_pick_variables(&c.picks[2], NULL, false, v);
    assert_int_equal(n, 8);
    assert_string_equal(variable(v, n, "GLOO_SOCKET_IFNAME"), "ens3");
    assert_string_equal(variable(v, n, "NCCL_SOCKET_IFNAME"), "=ens3");
    assert_string_equal(variable(v, n, "HOROVOD_GLOO_IFACE"), "ens3");
    assert_string_equal(variable(v, n, "OMPI_MCA_btl_tcp_if_include"), "10.77.0.0/24");
    assert_string_equal(variable(v, n, "LOCKSTEP_IFACE"), "10.77.0.12/32");
    assert_string_equal(variable(v, n, "FI_TCP_IFACE"), "ens3");
    assert_string_equal(variable(v, n, "UCX_NET_DEVICES"), "ens3");
    assert_string_equal(variable(v, n, "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"), "10.77.0.12");
    n = net_pick_variables(&c.picks[2], inherited, false, v);
    assert_null(variable(v, n, "GLOO_SOCKET_IFNAME")); // the user's value stays, even an empty one
    assert_null(variable(v, n, "NCCL_SOCKET_IFNAME"));
    assert_string_equal(variable(v, n, "HOROVOD_GLOO_IFACE"), "ens3");
    assert_string_equal(variable(v, n, "LOCKSTEP_IFACE"), "10.77.0.12/32");
    net_choice_free(&c);
    assert_ok(world_choose(three_nodes(), "fd77::/64", &c));
    n = net_pick_variables(&c.picks[0], NULL, true, v);
    assert_string_equal(variable(v, n, "OMPI_MCA_btl_tcp_if_include"), "eth0");
    assert_string_equal(variable(v, n, "NCCL_SOCKET_FAMILY"), "AF_INET6");
    assert_string_equal(variable(v, n, "FI_TCP_IFACE"), "eth0");
    assert_null(variable(v, n, "UCX_NET_DEVICES")); // would limit UCX to this device
    assert_null(variable(v, n, "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"));
    assert_string_equal(variable(v, n, "LOCKSTEP_IFACE"), "fd77::10/128");
    net_choice_free(&c);
}

/* This library's own filter must accept the exported value. */
static void own_variable_is_a_filter_that_passes_the_selection_only(void **state)
{
    net_world *w = three_nodes();
    net_variable v[NET_VARIABLES_MAX];
    net_choice c;

    LS_UNUSED(state);
    assert_ok(world_choose(w, NULL, &c));
    assert_true(net_pick_variables(&c.picks[1], NULL, false, v) > 0);
    for (int a = 0; a < w->offers[1].n; a++) {
        bool passes;

        assert_ok(net_interface_passes(v[0].value, &w->offers[1].at[a], &passes));
        assert_int_equal(passes, a == FAST);
    }
    net_choice_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_network_is_selected_by_each_nodes_own_interface_name),
        cmocka_unit_test(ipv6_is_selected_when_its_link_is_faster_or_alone),
        cmocka_unit_test(failure_in_one_direction_excludes_a_network),
        cmocka_unit_test(slowest_pair_decides_the_bandwidth),
        cmocka_unit_test(unmeasured_pairs_do_not_affect_the_bandwidth),
        cmocka_unit_test(link_speed_decides_without_measurements),
        cmocka_unit_test(shorter_round_trip_decides_between_equal_bandwidths),
        cmocka_unit_test(bridges_are_selected_last_and_never_after_a_wrong_node),
        cmocka_unit_test(address_of_two_hosts_is_never_selected),
        cmocka_unit_test(filter_narrows_the_list_of_every_node),
        cmocka_unit_test(own_filter_of_a_node_overrides_that_of_the_head),
        cmocka_unit_test(nodes_in_different_subnets_use_routes),
        cmocka_unit_test(networks_are_mixed_only_when_no_single_network_works),
        cmocka_unit_test(nodes_on_one_machine_need_no_network),
        cmocka_unit_test(a_late_node_gets_the_network_of_the_others),
        cmocka_unit_test(single_node_gets_loopback),
        cmocka_unit_test(failure_lists_all_tests_and_advice),
        cmocka_unit_test(advice_fits_the_address_family_and_wrong_nodes),
        cmocka_unit_test(nodes_without_addresses_or_reports_are_named),
        cmocka_unit_test(reports_that_do_not_match_are_refused),
        cmocka_unit_test(few_nodes_test_all_and_many_test_powers_of_two),
        cmocka_unit_test(selection_in_random_worlds_keeps_the_rules),
        cmocka_unit_test(selection_for_four_thousand_nodes_is_fast),
        cmocka_unit_test(variables_of_every_library_name_the_selection),
        cmocka_unit_test(own_variable_is_a_filter_that_passes_the_selection_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
