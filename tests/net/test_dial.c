/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dial.c - connecting to listeners. The dialled name has the addresses of names[]: the test is
 * linked with its own resolver.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/auth/dial.h"
#include "net/auth/listener.h"
#include "net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOON 30000

static struct {
    net_address at[DIAL_ADDRESSES_MAX + 1];
    int n;
    ls_status status; /* of the look-up */
    int n_asked;
} names;

ls_status __wrap_net_address_resolve(const char *text, int default_port, net_address *out, int max,
                                     int *n);

ls_status __wrap_net_address_resolve(const char *text, int default_port, net_address *out, int max,
                                     int *n)
{
    names.n_asked++;
    assert_string_equal(text, "head:29500");
    assert_int_equal(default_port, 29500);
    if (names.status != LS_OK)
        return ls_fail(names.status, "host name 'head': not known");
    *n = names.n < max ? names.n : max;
    memcpy(out, names.at, (size_t)*n * sizeof(*out));
    return LS_OK;
}

/* A dial and the listeners that it connects to, on one poller. */
typedef struct scene {
    poller *loop;
    net_key key;
    net_key other_key;
    listener *listener;
    listener *wrong_listener; /* has a different key */
    dial *dial;
    int n_accepted;
    bool closes; /* in done() */
    int n_done;
    int fd;
    net_address at;
    ls_status status;
    char why[LS_ERROR_BYTES];
    int listeners[4 + DIAL_ADDRESSES_MAX]; /* never accepted from */
    int n_listeners;
    int64_t began_ms;
} scene;

static void enter(void *self, const listener_peer *peer)
{
    scene *s = self;

    s->n_accepted++;
    (void)close(peer->fd);
}

static void done(void *self, int fd, const net_address *at, ls_status status, const char *why)
{
    scene *s = self;

    s->n_done++;
    s->fd = fd;
    s->status = status;
    text_format(s->why, sizeof(s->why), "%s", why);
    if (at != NULL)
        s->at = *at;
    assert_int_equal(fd >= 0, status == LS_OK);
    assert_int_equal(fd >= 0, at != NULL);
    if (s->closes) {
        dial_close(s->dial);
        s->dial = NULL;
    }
}

static void open_listener(scene *s, const net_key *key, listener **out)
{
    const listener_options opt = {
        .name = "listener",
        .key = key,
        .expected = {.purpose = NET_PURPOSE_NODE, .to = HANDSHAKE_ANY_RANK},
        .self = s,
        .accepted = enter};

    assert_ok(listener_create(s->loop, &opt, out));
}

static void begin(scene *s)
{
    memset(s, 0, sizeof(*s));
    memset(&names, 0, sizeof(names));
    s->fd = -1;
    assert_ok(poller_create(&s->loop));
    assert_ok(net_key_random(&s->key));
    assert_ok(net_key_random(&s->other_key));
    text_format(s->key.origin, sizeof(s->key.origin), "/home/me/.lockstep/key");
    open_listener(s, &s->key, &s->listener);
    open_listener(s, &s->other_key, &s->wrong_listener);
}

static void finish(scene *s)
{
    dial_close(s->dial);
    file_close(&s->fd);
    listener_destroy(s->listener);
    listener_destroy(s->wrong_listener);
    for (int i = 0; i < s->n_listeners; i++)
        (void)close(s->listeners[i]);
    poller_destroy(s->loop);
}

static net_address any_port(void)
{
    net_address at;

    assert_ok(net_address_decode("127.0.0.1:0", &at));
    return at;
}

static void add(const net_address *at)
{
    names.at[names.n++] = *at;
}

static void add_listener(listener *d)
{
    const net_address any = any_port();
    net_address bound;

    assert_ok(listener_listen(d, &any, &bound));
    add(&bound);
}

/* A port without a listener, which no other socket gets before the end. */
static net_address refused(scene *s)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(in);
    char text[NET_ADDRESS_TEXT_MAX];
    net_address bound;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    s->listeners[s->n_listeners++] = fd;
    assert_int_equal(bind(fd, (const struct sockaddr *)&in, sizeof(in)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &bytes), 0);
    text_format(text, sizeof(text), "127.0.0.1:%d", ntohs(in.sin_port));
    assert_ok(net_address_decode(text, &bound));
    return bound;
}

/* The last port that refused() has returned is free again. */
static void release(scene *s)
{
    assert_int_equal(close(s->listeners[--s->n_listeners]), 0);
}

static int listen_idly(scene *s, int backlog, net_address *bound)
{
    const net_address any = any_port();

    assert_ok(net_listen(&any, NET_STREAM, backlog, &s->listeners[s->n_listeners], bound));
    return s->listeners[s->n_listeners++];
}

/* Accepts connections and sends nothing. */
static void add_unresponsive(scene *s)
{
    net_address bound;

    (void)listen_idly(s, 16, &bound);
    add(&bound);
}

/* As behind a firewall: the queue is full, so connection requests are dropped. */
static void add_silent(scene *s)
{
    net_address bound;

    (void)listen_idly(s, 0, &bound);
    for (int i = 0; i < 2; i++)
        assert_in_set(net_connect_start(&bound, NET_STREAM, &s->listeners[s->n_listeners++]),
                      ((const LargestIntegralType[]){0, EINPROGRESS}), 2);
    add(&bound);
}

static void call_by(scene *s, bool by_list, int64_t deadline_ms)
{
    const dial_options opt = {.to = by_list ? NULL : "head:29500",
                              .addresses = by_list ? names.at : NULL,
                              .n_addresses = by_list ? names.n : 0,
                              .default_port = 29500,
                              .key = &s->key,
                              .claim = {.purpose = NET_PURPOSE_NODE,
                                        .from = HANDSHAKE_ANY_RANK,
                                        .to = HANDSHAKE_ANY_RANK},
                              .deadline_ms = ls_deadline_ms(deadline_ms),
                              .self = s,
                              .done = done};

    s->began_ms = ls_now_ms();
    assert_ok(dial_open(s->loop, &opt, &s->dial));
    assert_int_equal(s->n_done, 0);
}

static void call(scene *s, int64_t deadline_ms)
{
    call_by(s, false, deadline_ms);
}

static void run_for(scene *s, int64_t ms)
{
    for (const int64_t until_ms = ls_deadline_ms(ms); ls_deadline_left(until_ms) > 0;)
        assert_ok(poller_run_once(s->loop, ls_deadline_left(until_ms)));
}

static int64_t await_done(scene *s)
{
    for (const int64_t until_ms = ls_deadline_ms(SOON); s->n_done == 0;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(s->loop, 100));
    }
    assert_int_equal(s->n_done, 1);
    return ls_now_ms() - s->began_ms;
}

static void expect_connected(scene *s, int which)
{
    assert_string_equal(s->why, "");
    assert_true(s->fd >= 0);
    assert_true(net_address_equal(&s->at, &names.at[which]));
    run_for(s, 50); /* no further callback */
    assert_int_equal(s->n_done, 1);
    assert_int_equal(s->n_accepted, 1);
}

/* --- connecting --- */

static void dial_connects_to_a_listener_with_the_same_key(void **state)
{
    scene s;

    LS_UNUSED(state);
    begin(&s);
    add_listener(s.listener);
    call(&s, SOON);
    (void)await_done(&s);
    expect_connected(&s, 0);
    finish(&s);
}

static void the_address_that_answers_is_taken(void **state)
{
    scene s;
    net_address at;

    LS_UNUSED(state);
    begin(&s);
    at = refused(&s);
    add(&at);
    add_listener(s.listener);
    call(&s, SOON);
    (void)await_done(&s);
    expect_connected(&s, 1);
    finish(&s);
}

static void silent_addresses_do_not_hold_up_a_good_one(void **state)
{
    scene s;

    LS_UNUSED(state);
    begin(&s);
    add_silent(&s);
    add_unresponsive(&s);
    add_listener(s.listener);
    call(&s, SOON);
    assert_true(await_done(&s) < 2500); /* less than the round of an unresponsive address */
    expect_connected(&s, 2);
    finish(&s);
}

static void dial_repeats_until_a_listener_accepts(void **state)
{
    scene s;
    net_address at;

    LS_UNUSED(state);
    begin(&s);
    at = refused(&s);
    add(&at);
    call(&s, SOON);
    run_for(&s, 200);
    assert_int_equal(s.n_done, 0);
    assert_true(names.n_asked > 1);
    assert_non_null(strstr(dial_last_error(s.dial), "Connection refused"));
    release(&s);
    assert_ok(listener_listen(s.listener, &at, NULL));
    assert_true(await_done(&s) < 5000);
    expect_connected(&s, 0);
    finish(&s);
}

static void a_name_may_become_known_later(void **state)
{
    scene s;

    LS_UNUSED(state);
    begin(&s);
    add_listener(s.listener);
    names.status = LS_ENOTFOUND;
    call(&s, SOON);
    run_for(&s, 100);
    assert_int_equal(s.n_done, 0);
    assert_string_equal(dial_last_error(s.dial), "host name 'head': not known");
    names.status = LS_OK;
    (void)await_done(&s);
    expect_connected(&s, 0);
    finish(&s);
}

static void more_addresses_than_it_tries_do_no_harm(void **state)
{
    scene s;

    LS_UNUSED(state);
    begin(&s);
    add_listener(s.listener);
    for (int i = 0; i < DIAL_ADDRESSES_MAX; i++) {
        const net_address at = refused(&s);

        add(&at);
    }
    call(&s, SOON);
    (void)await_done(&s);
    expect_connected(&s, 0);
    finish(&s);
}

/* --- different keys --- */

static void expect_other_key(scene *s)
{
    assert_int_equal(s->status, LS_EAUTH);
    assert_non_null(strstr(s->why, "has another key than /home/me/.lockstep/key"));
    assert_int_equal(s->n_accepted, 0);
}

static void different_key_ends_the_dial_and_names_the_file_to_copy(void **state)
{
    scene s;

    LS_UNUSED(state);
    begin(&s);
    add_listener(s.wrong_listener);
    call(&s, SOON);
    assert_true(await_done(&s) < 2500);
    expect_other_key(&s);
    finish(&s);
}

static void different_key_is_reported_although_other_addresses_fail(void **state)
{
    net_address at;
    scene s;

    LS_UNUSED(state);
    begin(&s);
    add_silent(&s);
    add_listener(s.wrong_listener);
    at = refused(&s);
    add(&at);
    call(&s, SOON);
    assert_true(await_done(&s) < 2500);
    expect_other_key(&s);
    finish(&s);
}

static void different_key_at_one_address_does_not_prevent_a_match_at_the_next(void **state)
{
    scene s;
    net_address late;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    add_listener(s.wrong_listener);
    fd = listen_idly(&s, 16, &late);
    add(&late);
    call(&s, SOON);
    for (int64_t until_ms = ls_deadline_ms(SOON); dial_last_error(s.dial)[0] == 0;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(s.loop, 100));
    }
    /* The right listener replies only after that. */
    assert_ok(listener_listen_take(s.listener, fd));
    s.n_listeners--;
    (void)await_done(&s);
    expect_connected(&s, 1);
    finish(&s);
}

/* One of several candidates may be another machine: a different key there is not final. */
static void different_key_is_not_final_for_one_of_several_candidates(void **state)
{
    net_address late;
    scene s;

    LS_UNUSED(state);
    begin(&s);
    add_listener(s.wrong_listener);
    late = refused(&s);
    add(&late);
    call_by(&s, true, SOON);
    run_for(&s, 700); /* longer than the other addresses get after a rejection by name */
    assert_int_equal(s.n_done, 0);
    assert_true(dial_last_error(s.dial)[0] != 0);
    release(&s);
    assert_ok(listener_listen(s.listener, &late, &late));
    (void)await_done(&s);
    expect_connected(&s, 1);
    finish(&s);
}

static void invalid_name_ends_the_dial_at_once(void **state)
{
    scene s;

    LS_UNUSED(state);
    begin(&s);
    names.status = LS_EINVAL;
    call(&s, SOON);
    assert_true(await_done(&s) < 2500);
    assert_int_equal(s.status, LS_EINVAL);
    assert_int_equal(names.n_asked, 1);
    finish(&s);
}

/* --- ends --- */

static void deadline_holds_while_no_address_replies(void **state)
{
    scene s;
    int64_t took_ms;

    LS_UNUSED(state);
    for (int which = 0; which < 3; which++) {
        net_address at;

        begin(&s);
        at = refused(&s);
        if (which == 0)
            add_silent(&s);
        else if (which == 1)
            add_unresponsive(&s);
        else
            add(&at);
        call(&s, 300);
        took_ms = await_done(&s);
        assert_in_range(took_ms, 290, 2500);
        assert_int_equal(s.status, which < 2 ? LS_ETIMEOUT : LS_EPEER);
        assert_non_null(strstr(s.why, "cannot connect to tcp://127.0.0.1:"));
        finish(&s);
    }
}

static void dial_may_be_closed_in_its_callback(void **state)
{
    scene s;

    LS_UNUSED(state);
    for (int which = 0; which < 2; which++) {
        begin(&s);
        s.closes = true;
        add_listener(which == 0 ? s.listener : s.wrong_listener);
        call(&s, SOON);
        (void)await_done(&s);
        assert_int_equal(s.status, which == 0 ? LS_OK : LS_EAUTH);
        run_for(&s, 50);
        assert_int_equal(s.n_done, 1);
        finish(&s);
    }
}

static void closed_dial_calls_nothing_back(void **state)
{
    scene s;

    LS_UNUSED(state);
    dial_close(NULL);
    for (int n_turns = 0; n_turns < 6; n_turns++) {
        begin(&s);
        add_unresponsive(&s);
        add_listener(s.listener);
        call(&s, SOON);
        for (int i = 0; i < n_turns && s.n_done == 0; i++)
            assert_ok(poller_run_once(s.loop, 20));
        const int n_done = s.n_done;
        dial_close(s.dial);
        s.dial = NULL;
        run_for(&s, 50);
        assert_int_equal(s.n_done, n_done);
        finish(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dial_connects_to_a_listener_with_the_same_key),
        cmocka_unit_test(the_address_that_answers_is_taken),
        cmocka_unit_test(silent_addresses_do_not_hold_up_a_good_one),
        cmocka_unit_test(dial_repeats_until_a_listener_accepts),
        cmocka_unit_test(a_name_may_become_known_later),
        cmocka_unit_test(more_addresses_than_it_tries_do_no_harm),
        cmocka_unit_test(different_key_ends_the_dial_and_names_the_file_to_copy),
        cmocka_unit_test(different_key_is_reported_although_other_addresses_fail),
        cmocka_unit_test(different_key_at_one_address_does_not_prevent_a_match_at_the_next),
        cmocka_unit_test(different_key_is_not_final_for_one_of_several_candidates),
        cmocka_unit_test(invalid_name_ends_the_dial_at_once),
        cmocka_unit_test(deadline_holds_while_no_address_replies),
        cmocka_unit_test(dial_may_be_closed_in_its_callback),
        cmocka_unit_test(closed_dial_calls_nothing_back),
    };

    if (log_configure("error") != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
