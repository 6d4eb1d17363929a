/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_c10d.c - the answers of the store for PyTorch programs, in every dialect, with requests cut
 * at every byte.
 */
#include "store/c10d_client.h"

#include "base/clock.h"
#include "net/address.h"
#include "net/socket.h"

#include <sys/socket.h>
#include <unistd.h>

static void compare_set(client *c, const char *expected, const char *desired)
{
    on_pair(c, C10D_COMPARE_SET, "/c", expected);
    msg_text(&c->out, desired);
}

/* --- values --- */

static void values_can_be_set_and_read(client *c)
{
    on_pair(c, C10D_SET, "/a", "one");
    expect_stored(c, "/a", "one");
    on_pair(c, C10D_SET, "/a", "");
    expect_stored(c, "/a", "");
    expect_stored(c, "/none", "");
    if (msg_has(c->version, C10D_APPEND)) {
        on_pair(c, C10D_APPEND, "/a", "x");
        on_pair(c, C10D_APPEND, "/a", "yz");
        on_pair(c, C10D_APPEND, "/a", "");
        expect_stored(c, "/a", "xyz");
    }
    alone(c, C10D_COUNT);
    expect_i64(c, 1);
    on_key(c, C10D_DELETE, "/a");
    expect_i64(c, 1);
    on_key(c, C10D_DELETE, "/a");
    expect_i64(c, 0);
    alone(c, C10D_COUNT);
    expect_i64(c, 0);
}

static void counters_are_text(client *c)
{
    on_key(c, C10D_ADD, "/n");
    msg_i64(&c->out, 41);
    expect_i64(c, 41);
    on_key(c, C10D_ADD, "/n");
    msg_i64(&c->out, -50);
    expect_i64(c, -9);
    expect_stored(c, "/n", "-9");
}

static void compare_set_answers_as_pytorch_does(client *c)
{
    compare_set(c, "old", "new");
    expect_text(c, "old"); // missing, but something was expected
    on_keys(c, C10D_CHECK, "/c", NULL);
    expect_u8(c, C10D_NOT_READY);
    compare_set(c, "", "one");
    expect_text(c, "one");
    compare_set(c, "", "two");
    expect_text(c, "one");
    compare_set(c, "wrong", "two");
    expect_text(c, "one");
    compare_set(c, "one", "");
    expect_text(c, "");
    compare_set(c, "", "three"); // there, and empty
    expect_text(c, "three");
}

static void several_keys_at_once(client *c)
{
    on_keys(c, C10D_CHECK, "/m1", "/none");
    expect_u8(c, C10D_NOT_READY);
    alone(c, C10D_CHECK);
    msg_i64(&c->out, 0);
    expect_u8(c, C10D_READY);
    alone(c, C10D_WAIT);
    msg_i64(&c->out, 0);
    expect_u8(c, C10D_STOP_WAITING);
    if (!msg_has(c->version, C10D_MULTI_SET))
        return;
    alone(c, C10D_MULTI_SET);
    msg_i64(&c->out, 2);
    msg_text(&c->out, "/m1");
    msg_text(&c->out, "first");
    msg_text(&c->out, "/m2");
    msg_text(&c->out, "");
    on_keys(c, C10D_MULTI_GET, "/m1", "/none");
    expect_text(c, "first");
    expect_text(c, "");
    on_keys(c, C10D_CHECK, "/m1", "/m2");
    expect_u8(c, C10D_READY);
    on_keys(c, C10D_CHECK, "/m1", "/none");
    expect_u8(c, C10D_NOT_READY);
    alone(c, C10D_MULTI_GET);
    msg_i64(&c->out, 0);
    expect_silence(c);
}

static void in_every_dialect(void (*body)(client *))
{
    for (client_version t = 0; t < N_CLIENT_VERSIONS; t++) {
        fixture f = start();
        client c = open_client(&f, t);

        body(&c);
        expect_silence(&c);
        close_client(&c);
        stop(&f);
    }
}

#define EVERY_DIALECT(body)                                                                        \
    static void body##_in_every_dialect(void **state)                                              \
    {                                                                                              \
        LS_UNUSED(state);                                                                          \
        in_every_dialect(body);                                                                    \
    }

EVERY_DIALECT(values_can_be_set_and_read)
EVERY_DIALECT(counters_are_text)
EVERY_DIALECT(compare_set_answers_as_pytorch_does)
EVERY_DIALECT(several_keys_at_once)

/* --- waits --- */

static void a_wait_ends_when_all_keys_are_there(client *c)
{
    client other = open_client(c->f, c->version);

    on_pair(c, C10D_SET, "/a", "1");
    on_keys(c, C10D_WAIT, "/a", NULL);
    expect_u8(c, C10D_STOP_WAITING);
    on_keys(c, C10D_WAIT, "/b", "/d");
    expect_silence(c);
    on_pair(&other, C10D_SET, "/d", "");
    expect_silence(&other);
    expect_silence(c);
    on_key(&other, C10D_ADD, "/b");
    msg_i64(&other.out, 1);
    expect_i64(&other, 1);
    expect_u8(c, C10D_STOP_WAITING);
    on_keys(c, C10D_WAIT, "/c", NULL);
    compare_set(&other, "", "x");
    expect_text(&other, "x");
    expect_u8(c, C10D_STOP_WAITING);
    if (msg_has(c->version, C10D_APPEND)) {
        on_keys(c, C10D_WAIT, "/e", NULL);
        say(c);
        on_pair(&other, C10D_APPEND, "/e", "x");
        say(&other);
        expect_u8(c, C10D_STOP_WAITING);
    }
    close_client(&other);
}

/* The answer to the cancellation is all that comes, whether the key has come meanwhile or not, and
 * nothing comes later. */
static void a_cancelled_wait_leaves_no_stray_byte(client *c)
{
    client other = open_client(c->f, c->version);

    if (!msg_has(c->version, C10D_CANCEL_WAIT)) {
        close_client(&other);
        return;
    }
    on_keys(c, C10D_WAIT, "/late", NULL);
    expect_silence(c);
    alone(c, C10D_CANCEL_WAIT);
    expect_u8(c, C10D_WAIT_CANCELED);
    on_pair(&other, C10D_SET, "/late", "x");
    expect_silence(&other);
    expect_silence(c);
    on_keys(c, C10D_WAIT, "/late2", NULL);
    expect_silence(c);
    on_pair(&other, C10D_SET, "/late2", "x");
    expect_silence(&other);
    alone(c, C10D_CANCEL_WAIT); // crosses the answer on its way
    expect_u8(c, C10D_STOP_WAITING);
    expect_u8(c, C10D_WAIT_CANCELED);
    expect_stored(c, "/late2", "x");
    close_client(&other);
}

/* PyTorch 1.13 has no word for it: its clients just ask something else after a timeout. */
static void a_wait_that_was_given_up_leaves_no_stray_byte(client *c)
{
    client other = open_client(c->f, c->version);

    on_keys(c, C10D_WAIT, "/late", NULL);
    expect_silence(c);
    on_keys(c, C10D_CHECK, "/other", NULL);
    expect_u8(c, C10D_NOT_READY);
    on_pair(&other, C10D_SET, "/late", "x");
    expect_silence(&other);
    expect_silence(c);
    expect_stored(c, "/late", "x");
    close_client(&other);
}

static void a_client_that_waits_may_vanish(client *c)
{
    client other = open_client(c->f, c->version);

    on_keys(&other, C10D_WAIT, "/a", "/b");
    say(&other);
    expect_silence(&other);
    close_client(&other);
    on_pair(c, C10D_SET, "/a", "");
    on_pair(c, C10D_SET, "/b", "");
    expect_stored(c, "/b", "");
}

EVERY_DIALECT(a_wait_ends_when_all_keys_are_there)
EVERY_DIALECT(a_cancelled_wait_leaves_no_stray_byte)
EVERY_DIALECT(a_wait_that_was_given_up_leaves_no_stray_byte)
EVERY_DIALECT(a_client_that_waits_may_vanish)

/* --- what only some dialects have --- */

static void a_ping_comes_back(void **state)
{
    fixture f = start();
    client c = open_client(&f, VALIDATED);

    LS_UNUSED(state);
    alone(&c, C10D_PING);
    msg_u32(&c.out, 0x12345678);
    expect_raw(&c, "\x78\x56\x34\x12", 4);
    close_client(&c);
    stop(&f);
}

static void queues_keep_the_order(void **state)
{
    fixture f = start();
    client c = open_client(&f, VALIDATED);

    LS_UNUSED(state);
    on_pair(&c, C10D_QUEUE_PUSH, "/q", "first");
    on_pair(&c, C10D_QUEUE_PUSH, "/q", "");
    on_key(&c, C10D_QUEUE_LEN, "/q");
    expect_i64(&c, 2);
    on_keys(&c, C10D_CHECK, "/q", NULL);
    expect_u8(&c, C10D_READY);
    alone(&c, C10D_COUNT);
    expect_i64(&c, 0);
    on_key(&c, C10D_QUEUE_POP, "/q");
    expect_i64(&c, 2);
    expect_text(&c, "first");
    on_key(&c, C10D_QUEUE_POP, "/q");
    expect_i64(&c, 1);
    expect_text(&c, "");
    on_key(&c, C10D_QUEUE_POP, "/q");
    expect_i64(&c, 0);
    on_keys(&c, C10D_CHECK, "/q", NULL);
    expect_u8(&c, C10D_NOT_READY);
    assert_int_equal(f.store->queues.bytes, 0);
    close_client(&c);
    stop(&f);
}

static void a_queued_value_wakes_one_client(void **state)
{
    fixture f = start();
    client waiting[3];
    client c = open_client(&f, VALIDATED);

    LS_UNUSED(state);
    for (int i = 0; i < 3; i++) {
        waiting[i] = open_client(&f, VALIDATED);
        on_keys(&waiting[i], C10D_WAIT, "/q", NULL);
        expect_silence(&waiting[i]);
    }
    for (int i = 0; i < 3; i++) {
        on_pair(&c, C10D_QUEUE_PUSH, "/q", "v");
        say(&c);
        expect_u8(&waiting[i], C10D_STOP_WAITING);
        for (int later = i + 1; later < 3; later++)
            expect_silence(&waiting[later]);
        on_key(&waiting[i], C10D_QUEUE_POP, "/q");
        expect_i64(&waiting[i], 1);
        expect_text(&waiting[i], "v");
    }
    for (int i = 0; i < 3; i++)
        close_client(&waiting[i]);
    close_client(&c);
    stop(&f);
}

static void keys_are_listed(void **state)
{
    fixture f = start();
    client c = open_client(&f, VALIDATED);
    message want[2] = {{0}, {0}};

    LS_UNUSED(state);
    on_pair(&c, C10D_QUEUE_PUSH, "/q", "not a key");
    on_pair(&c, C10D_SET, "/a", "x");
    on_pair(&c, C10D_SET, "/b", "x");
    alone(&c, C10D_LIST_KEYS);
    expect_i64(&c, 2);
    for (int i = 0; i < 2; i++) {
        msg_text(&want[i], i == 0 ? "/a" : "/b");
        msg_text(&want[i], i == 0 ? "/b" : "/a");
    }
    say(&c);
    listen_for(&c, MSG_SIZE(&want[0]));
    assert_true(memcmp(MSG_DATA(&c.in), MSG_DATA(&want[0]), MSG_SIZE(&want[0])) == 0 ||
                memcmp(MSG_DATA(&c.in), MSG_DATA(&want[1]), MSG_SIZE(&want[1])) == 0);
    for (int i = 0; i < 2; i++)
        byte_queue_free(&want[i]);
    close_client(&c);
    stop(&f);
}

static void barrier(client *c, int64_t n)
{
    on_key(c, C10D_BARRIER, "/barrier");
    msg_i64(&c->out, n);
    say(c);
}

static void a_barrier_opens_for_all_at_the_last_one(void **state)
{
    fixture f = start();
    client c[4];

    LS_UNUSED(state);
    for (int i = 0; i < 4; i++)
        c[i] = open_client(&f, VALIDATED);
    for (int i = 0; i < 2; i++) {
        barrier(&c[i], 3);
        expect_silence(&c[i]);
    }
    alone(&c[1], C10D_CANCEL_WAIT); // it has been counted, but waits no longer
    expect_u8(&c[1], C10D_WAIT_CANCELED);
    barrier(&c[2], 3);
    expect_u8(&c[2], C10D_STOP_WAITING);
    expect_u8(&c[0], C10D_STOP_WAITING);
    expect_silence(&c[1]);
    barrier(&c[3], 3); // comes too late, and is let through
    expect_u8(&c[3], C10D_STOP_WAITING);
    expect_stored(&c[3], "/barrier", "4");
    for (int i = 0; i < 4; i++)
        close_client(&c[i]);
    stop(&f);
}

/* The same bytes begin a DELETE_KEY of 2.0 and an APPEND of 2.1. */
static void silence_after_the_key_means_delete(void **state)
{
    fixture f = start();
    client old = open_client(&f, UP_TO_2_0);
    client fresh = open_client(&f, OF_2_1);
    message append = {0};

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        const int64_t before_ms = ls_now_ms();

        on_pair(&old, C10D_SET, "/k", "x");
        on_key(&old, C10D_DELETE, "/k");
        expect_i64(&old, 1);
        if (i == 0) // after that it is known
            assert_true(ls_now_ms() - before_ms >= 90);
    }
    msg_command(&append, OF_2_1, C10D_APPEND);
    msg_text(&append, "/k");
    msg_text(&append, "value");
    for (int i = 0; i < 2; i++) {
        for (size_t at = 0; at < MSG_SIZE(&append); at++) {
            msg_raw(&fresh.out, MSG_DATA(&append) + at, 1);
            say(&fresh);
            assert_ok(poller_run_once(f.loop, 1));
            forget_silence(f.store);
        }
    }
    expect_stored(&fresh, "/k", "valuevalue");
    on_key(&fresh, C10D_DELETE, "/k");
    expect_i64(&fresh, 1);
    byte_queue_free(&append);
    close_client(&old);
    close_client(&fresh);
    stop(&f);
}

/* --- cuts --- */

/* The answers to the whole tour, sent in two parts. */
static void receive_tour(const message *tour, size_t cut, byte_queue *received)
{
    fixture f;
    int fds[2];
    size_t moved = 1;

    assert_ok(poller_create(&f.loop));
    assert_ok(c10d_store_create_closed(f.loop, &f.store));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    assert_ok(c10d_store_adopt(f.store, fds[1]));
    assert_int_equal(write(fds[0], MSG_DATA(tour), cut), cut);
    for (int i = 0; i < 4; i++) {
        assert_ok(poller_run_once(f.loop, 0));
        forget_silence(f.store);
    }
    assert_int_equal(write(fds[0], MSG_DATA(tour) + cut, MSG_SIZE(tour) - cut),
                     MSG_SIZE(tour) - cut);
    for (int i = 0; i < 6; i++)
        assert_ok(poller_run_once(f.loop, 0));
    while (moved > 0)
        assert_ok(byte_queue_fill(received, fds[0], "store", &moved));
    stop(&f);
    close(fds[0]);
}

static void every_cut_gives_the_same_answers(void **state)
{
    LS_UNUSED(state);
    for (client_version t = 0; t < N_CLIENT_VERSIONS; t++) {
        message tour = {0};
        byte_queue whole = {0};

        msg_tour(&tour, t);
        receive_tour(&tour, MSG_SIZE(&tour), &whole);
        assert_true(byte_queue_size(&whole) > 35);
        for (size_t cut = 1; cut < MSG_SIZE(&tour); cut++) {
            byte_queue received = {0};

            receive_tour(&tour, cut, &received);
            assert_int_equal(byte_queue_size(&received), byte_queue_size(&whole));
            assert_memory_equal(MSG_DATA(&received), MSG_DATA(&whole), byte_queue_size(&whole));
            byte_queue_free(&received);
        }
        byte_queue_free(&tour);
        byte_queue_free(&whole);
    }
}

/* --- the port --- */

static void it_listens_on_loopback_only_and_holds_its_port(void **state)
{
    fixture f = start();
    const c10d_store_options opt = {.user = geteuid(), .port = c10d_store_port(f.store)};
    net_address elsewhere;
    c10d_store *second = NULL;
    int fd;

    LS_UNUSED(state);
    assert_ok(net_address_parse("127.0.0.2", opt.port, &elsewhere)); // this host, too
    assert_status(net_connect(&elsewhere, NET_STREAM, ls_deadline_ms(5000), &fd), LS_EPEER);
    assert_status(c10d_store_create(f.loop, &opt, &second), LS_ESYSTEM);
    assert_null(second);
    c10d_store_destroy(f.store); // and gives it back
    assert_ok(c10d_store_create(f.loop, &opt, &f.store));
    assert_int_equal(c10d_store_port(f.store), opt.port);
    c10d_store_destroy(NULL);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_can_be_set_and_read_in_every_dialect),
        cmocka_unit_test(counters_are_text_in_every_dialect),
        cmocka_unit_test(compare_set_answers_as_pytorch_does_in_every_dialect),
        cmocka_unit_test(several_keys_at_once_in_every_dialect),
        cmocka_unit_test(a_wait_ends_when_all_keys_are_there_in_every_dialect),
        cmocka_unit_test(a_cancelled_wait_leaves_no_stray_byte_in_every_dialect),
        cmocka_unit_test(a_wait_that_was_given_up_leaves_no_stray_byte_in_every_dialect),
        cmocka_unit_test(a_client_that_waits_may_vanish_in_every_dialect),
        cmocka_unit_test(a_ping_comes_back),
        cmocka_unit_test(queues_keep_the_order),
        cmocka_unit_test(a_queued_value_wakes_one_client),
        cmocka_unit_test(keys_are_listed),
        cmocka_unit_test(a_barrier_opens_for_all_at_the_last_one),
        cmocka_unit_test(silence_after_the_key_means_delete),
        cmocka_unit_test(every_cut_gives_the_same_answers),
        cmocka_unit_test(it_listens_on_loopback_only_and_holds_its_port),
    };

    return cmocka_run_group_tests_name("store c10d", tests, NULL, NULL);
}
