/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_boot_record.c - boot records on the wire: whole, damaged, and different settings of two
 * ranks.
 */
#include "base/unit.h"
#include "comm/join/boot_record.h"

#include "base/rng.h"

static void parse(const char *text, net_address *out)
{
    assert_ok(net_address_decode(text, out));
}

static boot_publication example(void)
{
    boot_publication p = {.record = {.rank = 3,
                                     .pid = 4711,
                                     .instance = UINT64_C(0x1122334455667788),
                                     .generation = 2,
                                     .n_addresses = 2},
                          .host_name = "node7",
                          .host = 99,
                          .core_share = 77,
                          .world_group = 12,
                          .backend = "native",
                          .transport = "auto",
                          .segment_bytes = 262144,
                          .connections = 4};

    parse("unix:@lockstep-rank-x", &p.record.local);
    parse("tcp://10.0.0.3:4000", &p.addresses[0]);
    parse("tcp://[fd00::3]:4001", &p.addresses[1]);
    return p;
}

static void a_record_survives_the_wire(void **state)
{
    const boot_publication p = example();
    boot_publication q;
    wire_writer w = {0};

    LS_UNUSED(state);
    assert_ok(boot_record_encode(&p, &w));
    assert_ok(boot_record_decode(w.data, w.bytes, 3, &q));
    assert_int_equal(q.record.rank, 3);
    assert_int_equal(q.record.pid, 4711);
    assert_true(q.record.instance == p.record.instance);
    assert_string_equal(q.host_name, "node7");
    assert_int_equal(q.record.n_addresses, 2);
    assert_true(net_address_equal(&q.record.local, &p.record.local));
    assert_true(net_address_equal(&q.addresses[1], &p.addresses[1]));
    assert_int_equal(q.core_share, 77);
    assert_int_equal(q.world_group, 12);
    assert_int_equal(q.segment_bytes, 262144);
    assert_int_equal(q.connections, 4);
    assert_ok(boot_record_compare(&p, &q));
    wire_writer_free(&w);
}

static void every_truncation_is_refused(void **state)
{
    const boot_publication p = example();
    boot_publication q;
    wire_writer w = {0};

    LS_UNUSED(state);
    assert_ok(boot_record_encode(&p, &w));
    for (size_t n = 0; n < w.bytes; n++) {
        assert_status(boot_record_decode(w.data, n, 3, &q), LS_EPROTO);
        assert_last_error("rank 3");
    }
    wire_write_u8(&w, 0);
    assert_status(boot_record_decode(w.data, w.bytes, 3, &q), LS_EPROTO);
    assert_status(boot_record_decode(w.data, w.bytes, 2, &q), LS_EPROTO);
    wire_writer_free(&w);
}

/* Whatever the bytes are: an error or a record within its bounds. */
static void garbage_never_leaves_its_bounds(void **state)
{
    const boot_publication p = example();
    wire_writer w = {0};
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 7);
    assert_ok(boot_record_encode(&p, &w));
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[512];
        boot_publication q;

        assert_true(w.bytes <= sizeof(bytes));
        memcpy(bytes, w.data, w.bytes);
        for (uint64_t k = ls_rng_below(&rng, 4) + 1; k > 0; k--)
            bytes[ls_rng_below(&rng, w.bytes)] = (uint8_t)ls_rng_next(&rng);
        if (boot_record_decode(bytes, w.bytes, 3, &q) == LS_OK) {
            assert_in_range(q.record.n_addresses, 0, BOOT_ADDRESSES_MAX);
            assert_non_null(memchr(q.host_name, 0, sizeof(q.host_name)));
            assert_non_null(memchr(q.backend, 0, sizeof(q.backend)));
        }
    }
    wire_writer_free(&w);
}

static void ranks_with_different_settings_report_both_values(void **state)
{
    const boot_publication own = example();
    boot_publication other = example();

    LS_UNUSED(state);
    other.record.rank = 5;
    memcpy(other.transport, "tcp", 4);
    assert_status(boot_record_compare(&own, &other), LS_EMISMATCH);
    assert_last_error("transport is auto on rank 3 (node7), but tcp on rank 5 (node7)");
    other = example();
    memcpy(other.backend, "mpi", 4);
    assert_status(boot_record_compare(&own, &other), LS_EMISMATCH);
    assert_last_error("backend is native");
    other = example();
    other.segment_bytes = 4096;
    assert_status(boot_record_compare(&own, &other), LS_EMISMATCH);
    assert_last_error("LOCKSTEP_SEGMENT is 262144");
    other = example();
    memcpy(other.algorithms, "all:staged", 11);
    assert_status(boot_record_compare(&own, &other), LS_EMISMATCH);
    assert_last_error("LOCKSTEP_ALGORITHMS is not set on rank 3 (node7), but all:staged");
    other = example();
    other.security = NET_ENCRYPT;
    assert_status(boot_record_compare(&own, &other), LS_EMISMATCH);
    assert_last_error("LOCKSTEP_SECURITY is auth on rank 3");
    assert_last_error("encrypt on rank 3");
    other = example();
    other.connections = 1;
    assert_status(boot_record_compare(&own, &other), LS_EMISMATCH);
    assert_last_error("LOCKSTEP_CONNECTIONS is 4 on rank 3 (node7), but 1 on rank 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_survives_the_wire),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(garbage_never_leaves_its_bounds),
        cmocka_unit_test(ranks_with_different_settings_report_both_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
