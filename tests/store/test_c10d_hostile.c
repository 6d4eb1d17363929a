/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_c10d_hostile.c - the store for PyTorch programs with clients that are slow, silent, greedy,
 * broken or of another user.
 */
#include "store/c10d_client.h"

#include "base/alloc.h"
#include "base/text.h"
#include "net/socket.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static uint8_t megabyte[1024 * 1024];

static void expect_alive(client *c)
{
    on_pair(c, C10D_SET, "/alive", "yes");
    expect_stored(c, "/alive", "yes");
}

/* --- slow and silent --- */

static void silent_and_slow_clients_do_not_delay_other_clients(void **state)
{
    enum { N = 50 };
    fixture f = start();
    client slow[N];
    client c = open_client(&f, VALIDATED);

    LS_UNUSED(state);
    for (int i = 0; i < N; i++) {
        slow[i] = open_client(&f, i % 2 == 0 ? OF_2_1 : VALIDATED);
        if (i % 3 == 0) // the head of a request that never goes on
            msg_command(&slow[i].out, slow[i].version, C10D_SET);
        if (i % 6 == 0)
            msg_i64(&slow[i].out, 8000);
        say(&slow[i]);
    }
    expect_alive(&c);
    for (int i = 0; i < N; i++)
        close_client(&slow[i]);
    expect_alive(&c);
    close_client(&c);
    stop(&f);
}

/* One client's thousands of requests, each of them costly, and in the middle another one's. */
static void a_busy_client_takes_turns(void **state)
{
    enum { N = 2000, BYTES = 64 * 1024 };
    fixture f = start();
    client busy = open_client(&f, OF_2_1);
    client c = open_client(&f, OF_2_1);
    kv_bytes large;

    LS_UNUSED(state);
    on_key(&busy, C10D_SET, "/large");
    msg_bytes(&busy.out, megabyte, BYTES);
    on_keys(&busy, C10D_CHECK, "/large", NULL);
    expect_u8(&busy, C10D_READY);
    for (int i = 0; i < N; i++)
        on_pair(&busy, C10D_APPEND, "/large", "x");
    while (MSG_SIZE(&busy.out) > 0) {
        size_t moved;

        assert_ok(
            net_send_some(busy.fd, "store", MSG_DATA(&busy.out), MSG_SIZE(&busy.out), &moved));
        busy.out.start += moved;
        if (moved == 0)
            assert_ok(poller_run_once(f.loop, 0));
    }
    expect_alive(&c);
    assert_true(table_get(&f.store->table, (kv_bytes){(const uint8_t *)"/large", 6}, &large));
    assert_true(large.bytes < BYTES + N); // not all of them were served before it
    on_keys(&busy, C10D_CHECK, "/large", NULL);
    expect_u8(&busy, C10D_READY);
    close_client(&busy);
    close_client(&c);
    stop(&f);
}

static void store_closes_the_connection_of_a_client_that_does_not_read(void **state)
{
    fixture f = start();
    client greedy = open_client(&f, OF_2_1);
    client c = open_client(&f, OF_2_1);

    LS_UNUSED(state);
    on_key(&c, C10D_SET, "/m");
    msg_bytes(&c.out, megabyte, sizeof(megabyte));
    on_keys(&c, C10D_CHECK, "/m", NULL);
    expect_u8(&c, C10D_READY);
    for (int i = 0; i < 60; i++)
        on_key(&greedy, C10D_GET, "/m");
    say(&greedy);
    for (int i = 0; i < 1000 && f.store->n_conns > 1; i++)
        assert_ok(poller_run_once(f.loop, 10));
    assert_int_equal(f.store->n_conns, 1);
    expect_alive(&c);
    assert_true(f.store->buffered < 1024 * 1024);
    close_client(&greedy);
    close_client(&c);
    stop(&f);
}

static void client_that_reads_gets_more_than_the_bound_in_pieces(void **state)
{
    enum { N = 40 };
    fixture f = start();
    client c = open_client(&f, OF_2_1);

    LS_UNUSED(state);
    on_key(&c, C10D_SET, "/m");
    msg_bytes(&c.out, megabyte, sizeof(megabyte));
    for (int i = 0; i < N; i++) {
        on_key(&c, C10D_GET, "/m");
        expect_i64(&c, sizeof(megabyte));
        expect_raw(&c, megabyte, sizeof(megabyte));
    }
    close_client(&c);
    stop(&f);
}

/* --- memory --- */

static void an_announced_length_takes_no_memory(void **state)
{
    fixture f = start();
    client c = open_client(&f, OF_2_1);

    LS_UNUSED(state);
    msg_command(&c.out, OF_2_1, C10D_SET);
    msg_text(&c.out, "/k");
    msg_i64(&c.out, LS_STORE_VALUE_MAX);
    expect_silence(&c);
    assert_true(f.store->buffered <= 64 * 1024);
    close_client(&c);
    stop(&f);
}

static void large_buffers_are_given_back(void **state)
{
    static uint8_t value[LS_STORE_VALUE_MAX];
    fixture f = start();
    client c = open_client(&f, OF_2_1);

    LS_UNUSED(state);
    on_key(&c, C10D_COMPARE_SET, "/k");
    msg_bytes(&c.out, "", 0);
    msg_bytes(&c.out, value, sizeof(value));
    expect_i64(&c, sizeof(value));
    expect_raw(&c, value, sizeof(value));
    expect_silence(&c);
    assert_true(f.store->buffered <= 128 * 1024);
    close_client(&c);
    stop(&f);
}

/* Fills the store with values of a megabyte: "/0", "/1"... */
static void fill(fixture *f, int n)
{
    for (int i = 0; i < n; i++) {
        char key[32];

        text_format(key, sizeof(key), "/%d", i);
        assert_ok(table_set(&f->store->table, (kv_bytes){(const uint8_t *)key, strlen(key)},
                            (kv_bytes){megabyte, sizeof(megabyte)}));
    }
}

static void the_sum_of_values_is_bounded(void **state)
{
    fixture f = start();
    client c = open_client(&f, VALIDATED);
    client other = open_client(&f, VALIDATED);

    LS_UNUSED(state);
    fill(&f, 240);
    for (int i = 0; i < 15; i++) {
        on_key(&c, C10D_QUEUE_PUSH, "/q");
        msg_bytes(&c.out, megabyte, sizeof(megabyte));
    }
    on_key(&c, C10D_QUEUE_LEN, "/q");
    expect_i64(&c, 15);
    on_key(&c, C10D_SET, "/0"); // replacing takes no more
    msg_bytes(&c.out, megabyte, sizeof(megabyte));
    on_keys(&c, C10D_CHECK, "/0", NULL);
    expect_u8(&c, C10D_READY);
    on_key(&c, C10D_SET, "/one");
    msg_bytes(&c.out, megabyte, sizeof(megabyte));
    say(&c);
    expect_dropped(&c);
    on_keys(&other, C10D_CHECK, "/one", NULL);
    expect_u8(&other, C10D_NOT_READY);
    alone(&other, C10D_COUNT);
    expect_i64(&other, 240);
    on_key(&other, C10D_QUEUE_PUSH, "/q");
    msg_bytes(&other.out, megabyte, sizeof(megabyte));
    say(&other);
    expect_dropped(&other);
    close_client(&c);
    close_client(&other);
    stop(&f);
}

static void multi_set_sets_all_keys_or_none(void **state)
{
    fixture f = start();
    client c = open_client(&f, OF_2_1);
    client other = open_client(&f, OF_2_1);
    char key[32];

    LS_UNUSED(state);
    fill(&f, 250);
    alone(&c, C10D_MULTI_SET);
    msg_i64(&c.out, 8);
    for (int i = 0; i < 8; i++) {
        msg_text(&c.out, text_format(key, sizeof(key), "/m%d", i));
        msg_bytes(&c.out, megabyte, sizeof(megabyte));
    }
    say(&c);
    expect_dropped(&c);
    alone(&other, C10D_COUNT);
    expect_i64(&other, 250);
    close_client(&c);
    close_client(&other);
    stop(&f);
}

static void an_append_beyond_the_bound_is_refused(void **state)
{
    fixture f = start();
    client c = open_client(&f, OF_2_1);
    client other = open_client(&f, OF_2_1);

    LS_UNUSED(state);
    for (int i = 0; i < 9; i++) {
        on_key(&c, C10D_APPEND, "/long");
        msg_bytes(&c.out, megabyte, sizeof(megabyte));
    }
    say(&c);
    expect_dropped(&c);
    on_key(&other, C10D_GET, "/long");
    expect_i64(&other, 8 * (int64_t)sizeof(megabyte));
    close_client(&c);
    close_client(&other);
    stop(&f);
}

static void failing_allocations_drop_the_client_only(void **state)
{
    fixture f = start();
    client other = open_client(&f, VALIDATED);

    LS_UNUSED(state);
    expect_alive(&other);
    for (uint64_t n = 1; n < 40; n++) {
        int fds[2];
        message tour = {0};

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
                         0);
        msg_tour(&tour, n % 2 == 0 ? VALIDATED : OF_2_1);
        assert_int_equal(write(fds[0], MSG_DATA(&tour), MSG_SIZE(&tour)), MSG_SIZE(&tour));
        byte_queue_free(&tour);
        ls_alloc_fail_at(n);
        if (c10d_store_adopt(f.store, fds[1]) == LS_OK)
            for (int i = 0; i < 5; i++)
                assert_ok(poller_run_once(f.loop, 0));
        ls_alloc_fail_at(0);
        close(fds[0]);
        for (int i = 0; i < 3; i++)
            assert_ok(poller_run_once(f.loop, 0));
    }
    expect_alive(&other);
    close_client(&other);
    assert_ok(poller_run_once(f.loop, 100));
    assert_ok(poller_run_once(f.loop, 1));
    assert_true(list_empty(&f.store->waits));
    assert_int_equal(f.store->n_conns, 0);
    assert_int_equal(f.store->buffered, 0);
    stop(&f);
}

/* --- what makes no sense --- */

static void what_cannot_be_done_drops_the_client(void **state)
{
    static const c10d_op ops[] = {C10D_ADD, C10D_BARRIER};
    fixture f = start();
    client other = open_client(&f, VALIDATED);

    LS_UNUSED(state);
    on_pair(&other, C10D_SET, "/text", "not a number");
    say(&other);
    for (size_t i = 0; i < LS_COUNT_OF(ops); i++) {
        client c = open_client(&f, VALIDATED);

        on_key(&c, ops[i], "/text");
        msg_i64(&c.out, 1);
        say(&c);
        expect_dropped(&c);
        close_client(&c);
    }
    client c = open_client(&f, VALIDATED);
    for (int i = 0; i < 2; i++) {
        on_key(&c, C10D_ADD, "/n");
        msg_i64(&c.out, INT64_MAX);
    }
    say(&c);
    expect_dropped(&c);
    close_client(&c);
    expect_alive(&other);
    close_client(&other);
    stop(&f);
}

static void noise_is_dropped(void **state)
{
    static const char *const noises[] = {"GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff", "LSTP\1\1",
                                         "\xce\xf7\x85\x3d\x01"};
    fixture f = start();
    client other = open_client(&f, OF_2_1);

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(noises); i++) {
        client c = open_client(&f, OF_2_1);

        msg_raw(&c.out, noises[i], strlen(noises[i]));
        say(&c);
        expect_dropped(&c);
        close_client(&c);
    }
    expect_alive(&other);
    close_client(&other);
    stop(&f);
}

/* --- permissions --- */

static void another_users_connection_is_refused(void **state)
{
    const c10d_store_options opt = {.user = geteuid() + 1};
    fixture f;
    client c;

    LS_UNUSED(state);
    assert_ok(poller_create(&f.loop));
    assert_ok(c10d_store_create(f.loop, &opt, &f.store));
    c = open_client(&f, OF_2_1);
    expect_dropped(&c);
    assert_int_equal(f.store->n_conns, 0);
    close_client(&c);
    stop(&f);
}

/* --- descriptors --- */

static void without_descriptors_connections_wait(void **state)
{
    struct rlimit limit;
    struct rlimit low;
    fixture f = start();
    client c[4];
    int next;

    LS_UNUSED(state);
    for (int i = 0; i < 4; i++)
        c[i] = open_client(&f, OF_2_1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    next = dup(0);
    close(next);
    low = limit;
    low.rlim_cur = (rlim_t)next + 1; // for one of them
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int i = 0; i < 5; i++)
        assert_ok(poller_run_once(f.loop, 10));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 4; i++)
        expect_alive(&c[i]);
    for (int i = 0; i < 4; i++)
        close_client(&c[i]);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_and_slow_clients_do_not_delay_other_clients),
        cmocka_unit_test(a_busy_client_takes_turns),
        cmocka_unit_test(store_closes_the_connection_of_a_client_that_does_not_read),
        cmocka_unit_test(client_that_reads_gets_more_than_the_bound_in_pieces),
        cmocka_unit_test(an_announced_length_takes_no_memory),
        cmocka_unit_test(large_buffers_are_given_back),
        cmocka_unit_test(the_sum_of_values_is_bounded),
        cmocka_unit_test(multi_set_sets_all_keys_or_none),
        cmocka_unit_test(an_append_beyond_the_bound_is_refused),
        cmocka_unit_test(failing_allocations_drop_the_client_only),
        cmocka_unit_test(what_cannot_be_done_drops_the_client),
        cmocka_unit_test(noise_is_dropped),
        cmocka_unit_test(another_users_connection_is_refused),
        cmocka_unit_test(without_descriptors_connections_wait),
    };

    return cmocka_run_group_tests_name("store c10d hostile", tests, NULL, NULL);
}
