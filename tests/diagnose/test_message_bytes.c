/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_message_bytes.c - the bytes of every message between agents, head, starter and hosts, one
 * example of each: processes of two builds understand each other only while these stay the same.
 */
#include "base/unit.h"

#include "comm/join/boot_record.h"
#include "diagnose/hosts/hosts_check_messages.h"
#include "launch/head/node_messages.h"
#include "launch/head/standby.h"

/* Fails with all bytes, as the text of a string literal. */
static void expect_bytes(wire_writer *w, const char *what, const char *hex)
{
    text_buf got = {0};

    assert_ok(wire_writer_status(w));
    for (size_t i = 0; i < w->bytes; i++)
        text_append(&got, "%02x", w->data[i]);
    assert_ok(text_status(&got));
    if (!text_equal(text_str(&got), hex))
        fail_msg("%s: %s", what, text_str(&got));
    text_free(&got);
    wire_writer_free(w);
}

static net_address address(const char *text)
{
    net_address at;

    assert_ok(net_address_decode(text, &at));
    return at;
}

/* --- head and agents --- */

static void messages_of_ranks_keep_their_bytes(void **state)
{
    static const uint8_t piece[] = {1, 2, 3};
    wire_writer w = {0};

    LS_UNUSED(state);
    node_write_failure(&w, &(node_failure){.generation = 0x01020304,
                                           .local_rank = -1,
                                           .exit_code = 137,
                                           .crashed = true,
                                           .text = "killed"});
    expect_bytes(&w, "failure", "04030201ffffffff8900000001060000006b696c6c6564");
    node_write_end(&w, &(node_end){.generation = 3,
                                   .stopped = true,
                                   .n_well = 8,
                                   .n_failed = 4,
                                   .n_stopped = 5,
                                   .local_rank = 6,
                                   .exit_code = 7,
                                   .crashed = true,
                                   .error_s = -2,
                                   .text = "one",
                                   .details = "two\nthree"});
    expect_bytes(
        &w, "end",
        "0300000001080000000400000005000000060000000700000001feffffffffffffff030000006f6e6509"
        "00000074776f0a7468726565");
    node_write_exit(&w, &(node_exit){1, 2, 4711, PMI_LEFT});
    expect_bytes(&w, "exit", "01000000020000006712000002000000");
    node_write_ring(&w, &(node_ring){.generation = 1,
                                     .local_rank = 2,
                                     .total = 9,
                                     .offset = 4,
                                     .bytes = piece,
                                     .n = sizeof(piece)});
    expect_bytes(&w, "ring", "0100000002000000090000000400000003000000010203");
    node_write_mpi(&w, &(node_mpi){1, 2, true});
    expect_bytes(&w, "mpi", "010000000200000001");
    node_write_barrier(&w, &(node_barrier){1, 2});
    expect_bytes(&w, "barrier", "0100000002000000");
    node_write_slot(&w, &(node_slot){1, 2, 3});
    expect_bytes(&w, "slot", "010000000200000003000000");
    node_write_found(&w, &(node_found){1, 2, 3, RECOVERY_HAS_ENDED});
    expect_bytes(&w, "found", "01000000020000000300000003");
}

static void messages_of_the_job_keep_their_bytes(void **state)
{
    wire_writer w = {0};

    LS_UNUSED(state);
    node_write_welcome(&w, &(node_welcome){.place = {.generation = 1,
                                                     .n_restarts = 2,
                                                     .node = 3,
                                                     .n_nodes = 4,
                                                     .rank_base = 5,
                                                     .n_local = 6,
                                                     .world_size = 11,
                                                     .is_late = true},
                                           .job = "0123456789abcdef",
                                           .hub_port = 4000,
                                           .members_unix = "unix:@m",
                                           .has_standby = true,
                                           .head_node = 1,
                                           .max_restarts = 7,
                                           .silence_ms = 5000,
                                           .collects_rings = true,
                                           .mpi_layout = "(vector,(0,1,2))"});
    expect_bytes(
        &w, "welcome",
        "0100000002000000030000000400000005000000060000000b0000000107000000881300001000000030"
        "313233343536373839616263646566a00f0000000000000000000007000000756e69783a406d01010000"
        "0000011000000028766563746f722c28302c312c322929");
    node_write_master(&w, &(node_master){1, 29500});
    expect_bytes(&w, "master", "010000003c730000");
    node_write_stop(&w, &(node_stop){.signal = 15, .grace_ms = 30000, .text = "node 1"});
    expect_bytes(&w, "stop", "0f0000003075000000000000060000006e6f64652031");
    node_write_over(&w, &(node_over){.exit_code = 3, .failed = true, .report = "rank 1\n"});
    expect_bytes(&w, "over", "03000000010700000072616e6b20310a");
    node_write_owner_query(
        &w, &(node_owner_query){1, 2, address("tcp://10.0.0.1:80"), address("tcp://[fd00::1]:81")});
    expect_bytes(
        &w, "owner query",
        "0100000002000000110000007463703a2f2f31302e302e302e313a3830120000007463703a2f2f5b6664"
        "30303a3a315d3a3831");
    node_write_owner_answer(&w, &(node_owner_answer){1, 2, true});
    expect_bytes(&w, "owner answer", "010000000200000001");
}

static void messages_between_standby_heads_keep_their_bytes(void **state)
{
    net_address at[] = {address("tcp://10.0.0.1:80"), {.bytes = 0}};
    standby_message m = {.generation = 1,
                         .message = {.kind = SUCCESSION_STATE,
                                     .term = 2,
                                     .state_term = 3,
                                     .state_index = 4,
                                     .round = 5,
                                     .sent_ms = 6,
                                     .has_state = true},
                         .leads_at = address("tcp://10.0.0.2:81"),
                         .state = {at, 2, (const uint8_t *)"state", 5}};
    wire_writer w = {0};

    LS_UNUSED(state);
    standby_write_message(&w, &m);
    expect_bytes(
        &w, "a state",
        "010000000102000000000000000300000000000000040000000000000005000000000000000600000000"
        "0000000111000000"
        "7463703a2f2f31302e302e302e323a383102000000110000007463703a2f2f31302e302e302e313a3830"
        "00000000050000007374617465");
    m = (standby_message){.generation = 1, .message = {.kind = SUCCESSION_VOTE, .term = 2}};
    standby_write_message(&w, &m);
    expect_bytes(
        &w, "a vote",
        "010000000402000000000000000000000000000000000000000000000000000000000000000000000000"
        "0000000000000000");
}

/* --- networks --- */

static net_interface interface_of(const char *name, const char *at, int prefix)
{
    net_interface out = {
        .address = address(at), .prefix = prefix, .mtu = 9000, .speed_mbps = 25000};

    text_format(out.name, sizeof(out.name), "%s", name);
    return out;
}

static net_peer example_peer(void)
{
    net_peer peer = {.node = 3,
                     .measure = true,
                     .offer = {.host = "alpha", .machine = 0x1122334455667788, .n = 2}};

    peer.offer.is_filtered = true;
    peer.offer.at[0] = interface_of("eth0", "tcp://10.77.0.10:0", 24);
    peer.offer.at[1] = interface_of("docker0", "tcp://[fd77::10]:0", 64);
    peer.offer.at[0].is_default = true;
    peer.offer.at[1].is_bridge = true;
    return peer;
}

static void messages_of_networks_keep_their_bytes(void **state)
{
    const net_peer peer = example_peer();
    net_pick pick = {.head = address("tcp://10.77.0.1:0"), .n = 1};
    net_try tries[] = {{.peer = 1, .address = 2, .local = -1, .outcome = NET_WRONG_NODE},
                       {.peer = 515,
                        .address = 15,
                        .local = 15,
                        .outcome = NET_OK,
                        .round_trip_us = 123456,
                        .bytes_per_s = UINT64_C(1) << 40}};
    wire_writer w = {0};

    LS_UNUSED(state);
    net_peer_write(&w, &peer);
    expect_bytes(
        &w, "peer",
        "030000000105000000616c706861887766554433221101020400000065746830120000007463703a2f2f"
        "31302e37372e302e31303a301828230000a86100000207000000646f636b657230120000007463703a2f"
        "2f5b666437373a3a31305d3a304028230000a861000001");
    pick.at[0] = peer.offer.at[0];
    net_pick_write(&w, &pick);
    expect_bytes(
        &w, "pick",
        "110000007463703a2f2f31302e37372e302e313a30010400000065746830120000007463703a2f2f3130"
        "2e37372e302e31303a301828230000a861000002");
    net_report_write(&w, &(net_report){2, tries});
    expect_bytes(&w, "report",
                 "02000000010002ff0500000000000000000000000003020f0f0140e201000000000000010000");
}

/* --- starters and agents on other machines --- */

static char program[] = "./train";
static char argument[] = "two words";
static char variable[] = "NCCL_DEBUG=INFO";

static launch_request example_request(void)
{
    static char *argv[] = {program, argument, NULL};
    static char *env[] = {variable, NULL};
    launch_request o = {
        .heads = {address("tcp://10.0.0.1:4711"), address("tcp://[fd00::1]:4711")},
        .n_heads = 2,
        .node = 3,
        .n_nodes = 5,
        .n_ranks = 2,
        .run_hash = 0x123456789abcdef0,
        .host = "node3",
        .folder = "/home/me",
        .env = env,
        .job = {.argv = argv,
                .grace_ms = 30000,
                .stop_signals = 1 << 15,
                .run_id = "run7",
                .log_dir = "logs",
                .filters = {"a,b", NULL},
                .line_prefix = "${rank}:",
                .master_addr = "10.0.0.9",
                .net = "10.0.0.0/8",
                .ports = {4000, 4010},
                .virtual_local_rank = true,
                .pty = true,
                .hosts_store = true,
                .binding = BINDING_EXCLUSIVE,
                .redirect = {.otherwise = RANK_STDOUT},
                .tee = {.n = 2, .parts = {{0, 1, RANK_STDOUT}, {2, 2, RANK_STREAMS_BOTH}}},
                .shown_local = {.otherwise = RANK_STREAMS_BOTH},
                .shown = {.n = 1, .parts = {{.first = 1, .last = 4, .streams = RANK_STDERR}}}},
        .security = NET_ENCRYPT,
        .terminal = true,
        .size = {.rows = 40, .columns = 113}};

    memset(o.key.bytes, 7, sizeof(o.key.bytes));
    return o;
}

static void launch_request_keeps_its_bytes(void **state)
{
    const launch_request o = example_request();
    wire_writer w = {0};

    LS_UNUSED(state);
    launch_request_write(&w, &o);
    expect_bytes(
        &w, "launch request",
        "050000000707070707070707070707070707070707070707070707070707070707070707020000001400"
        "00007463703a2f2f31302e302e302e313a3437313100150000007463703a2f2f5b666430303a3a315d3a"
        "3437313100030000000500000002000000f0debc9a78563412060000006e6f64653300090000002f686f"
        "6d652f6d650002000000080000002e2f747261696e000a00000074776f20776f72647300010000001000"
        "00004e43434c5f44454255473d494e464f00307500000000000000800000000000000500000072756e37"
        "000100000000050000006c6f67730004000000612c6200010000000009000000247b72616e6b7d3a0009"
        "00000031302e302e302e39000b00000031302e302e302e302f3800a00f0000aa0f000002000000010100"
        "012800000071000000010100000000000000000000000200000000000000010000000100000002000000"
        "0200000003000000030000000000000000000000010000000100000004000000020000000003");
    remote_write_size(&w, &(pty_size){.rows = 50, .columns = 200});
    expect_bytes(&w, "size", "32000000c8000000");
}

static void messages_of_a_check_keep_their_bytes(void **state)
{
    net_peer peer = example_peer();
    const finding one = {.kind = FINDING_SHM_SMALL_KIND,
                         .severity = FINDING_WARNING,
                         .what = (char *)(uintptr_t) "it is small",
                         .fix = (char *)(uintptr_t) "fix it"};
    hosts_check_request request = {
        .n_ranks = 8, .master_port = 29500, .tries_gpus = true, .base = example_request()};
    wire_writer w = {0};

    LS_UNUSED(state);
    request.base.env = NULL;
    request.base.n_heads = request.base.job.tee.n = 0;
    hosts_check_request_write(&w, &request);
    expect_bytes(
        &w, "check request",
        "01000000080000003c730000000105000000070707070707070707070707070707070707070707070707"
        "070707070707070700000000030000000500000002000000f0debc9a78563412060000006e6f64653300"
        "090000002f686f6d652f6d650002000000080000002e2f747261696e000a00000074776f20776f726473"
        "0000000000307500000000000000800000000000000500000072756e37000100000000050000006c6f67"
        "730004000000612c6200010000000009000000247b72616e6b7d3a000900000031302e302e302e39000b"
        "00000031302e302e302e302f3800a00f0000aa0f00000200000001010001280000007100000001010000"
        "000000000000000000000000000300000000000000000000000100000001000000040000000200000000"
        "03");
    hosts_check_facts_write(&w, &(hosts_check_facts){.is_uninstalled = true,
                                                     .version = "1",
                                                     .build = "2",
                                                     .machine = "3",
                                                     .kernel = "4",
                                                     .libc = "5",
                                                     .simd = "6",
                                                     .python = "7",
                                                     .torch = "8"});
    expect_bytes(
        &w, "facts",
        "0101000000310100000032010000003301000000340100000035010000003601000000370100000038");
    hosts_check_finding_write(&w, &one);
    expect_bytes(&w, "finding",
                 "0900000073686d2d736d616c6c020b000000697420697320736d616c6c06000000666978206974");
    hosts_check_time_write(&w, &(hosts_check_time){7, 8, -9});
    expect_bytes(&w, "time", "070000000800000000000000f7ffffffffffffff");
    net_peers_write(&w, &(net_peers){1, &peer});
    expect_bytes(
        &w, "peers",
        "01000000030000000105000000616c706861887766554433221101020400000065746830120000007463"
        "703a2f2f31302e37372e302e31303a301828230000a86100000207000000646f636b6572301200000074"
        "63703a2f2f5b666437373a3a31305d3a304028230000a861000001");
}

/* --- ranks --- */

static void boot_record_keeps_its_bytes(void **state)
{
    const boot_publication p = {.record = {.rank = 3,
                                           .pid = 4711,
                                           .instance = 0x1122334455667788,
                                           .generation = 2,
                                           .n_addresses = 1,
                                           .local = address("unix:@lockstep-rank-x")},
                                .addresses = {address("tcp://10.0.0.3:4000")},
                                .host_name = "node7",
                                .host = 99,
                                .core_share = 77,
                                .world_group = 12,
                                .backend = "native",
                                .transport = "auto",
                                .segment_bytes = 262144,
                                .algorithms = "all:staged",
                                .security = NET_MAC,
                                .connections = 4};
    wire_writer w = {0};

    LS_UNUSED(state);
    assert_ok(boot_record_encode(&p, &w));
    expect_bytes(
        &w, "boot record",
        "03000300000067120000887766554433221102000000050000006e6f64653763000000000000004d0000"
        "00000000000c000000060000006e6174697665040000006175746f00000400000000000a000000616c6c"
        "3a737461676564010415000000756e69783a406c6f636b737465702d72616e6b2d780100130000007463"
        "703a2f2f31302e302e302e333a34303030");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_ranks_keep_their_bytes),
        cmocka_unit_test(messages_of_the_job_keep_their_bytes),
        cmocka_unit_test(messages_between_standby_heads_keep_their_bytes),
        cmocka_unit_test(messages_of_networks_keep_their_bytes),
        cmocka_unit_test(launch_request_keeps_its_bytes),
        cmocka_unit_test(messages_of_a_check_keep_their_bytes),
        cmocka_unit_test(boot_record_keeps_its_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
