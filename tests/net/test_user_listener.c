/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_user_listener.c - the listener for the connections of one user: other users, other hosts,
 * and missing descriptors.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "net/address.h"
#include "net/socket.h"
#include "net/user_listener.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOON 30000

enum { ASKED_MOST = 256, OPEN_MOST = 64 };

typedef struct scene {
    poller *loop;
    user_listener *listener;
    int n_entered;
    int fd; /* of the last connection */
    char peer[NET_ADDRESS_TEXT_MAX];
    ls_status verdict;
    uint32_t questions[ASKED_MOST];
    int n_questions;
    net_address client; /* of the last question */
} scene;

static ls_status enter(void *self, int fd, const char *peer)
{
    scene *s = self;

    s->n_entered++;
    file_close(&s->fd);
    if (s->verdict != LS_OK) {
        (void)close(fd);
        return ls_fail(s->verdict, "the service is full");
    }
    s->fd = fd;
    text_format(s->peer, sizeof(s->peer), "%s", peer);
    return LS_OK;
}

/* --- connections that appear to come from another host --- */

static bool is_elsewhere;

ls_status __real_net_tcp_user(int fd, uid_t *uid);
ls_status __wrap_net_tcp_user(int fd, uid_t *uid);

ls_status __wrap_net_tcp_user(int fd, uid_t *uid)
{
    return is_elsewhere ? ls_fail(LS_ENOTFOUND, "not here") : __real_net_tcp_user(fd, uid);
}

static void ask(void *self, uint32_t question, const net_address *client, const net_address *server)
{
    scene *s = self;

    s->questions[s->n_questions++ % ASKED_MOST] = question;
    s->client = *client;
    assert_int_equal(net_address_port(server), user_listener_port(s->listener));
}

static void begin_with(scene *s, bool asks)
{
    user_listener_options opt = {.name = "store", .user = geteuid(), .self = s, .accepted = enter};

    if (asks)
        opt.ask = ask;
    is_elsewhere = asks;
    memset(s, 0, sizeof(*s));
    s->fd = -1;
    assert_ok(poller_create(&s->loop));
    assert_ok(user_listener_open(s->loop, &opt, &s->listener));
}

static void begin(scene *s)
{
    begin_with(s, false);
}

static void finish(scene *s)
{
    user_listener_close(s->listener);
    file_close(&s->fd);
    poller_destroy(s->loop);
}

static net_address address_of(const scene *s)
{
    net_address at;

    assert_ok(net_address_decode("127.0.0.1:0", &at));
    net_address_set_port(&at, user_listener_port(s->listener));
    return at;
}

static int connect_client(const scene *s)
{
    const net_address at = address_of(s);
    int fd;

    assert_ok(net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &fd));
    return fd;
}

static void await_entered(scene *s, int n)
{
    for (int64_t until_ms = ls_deadline_ms(SOON); s->n_entered < n;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(s->loop, 100));
    }
    assert_int_equal(s->n_entered, n);
}

/* --- tests --- */

static void connection_of_the_user_is_accepted_with_its_name(void **state)
{
    scene s;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    assert_true(user_listener_port(s.listener) > 0);
    fd = connect_client(&s);
    await_entered(&s, 1);
    assert_true(text_starts(s.peer, "tcp://127.0.0.1:"));
    assert_ok(net_send_all(s.fd, "the client", "hi", 2, ls_deadline_ms(SOON)));
    (void)close(fd);
    finish(&s);
}

static void many_connections_are_accepted_at_once(void **state)
{
    int fds[150]; /* more than one round accepts */
    scene s;

    LS_UNUSED(state);
    begin(&s);
    for (int i = 0; i < 150; i++)
        fds[i] = connect_client(&s);
    await_entered(&s, 150);
    for (int i = 0; i < 150; i++)
        (void)close(fds[i]);
    finish(&s);
}

/* In a child of another user: 0 when the connection is closed without a byte. */
static int become_another_user(const scene *s)
{
    const net_address at = address_of(s);
    char byte;
    int fd;

    if (setgid(65534) != 0 || setuid(65534) != 0 ||
        net_connect(&at, NET_STREAM, ls_deadline_ms(SOON), &fd) != LS_OK)
        return 2;
    return net_recv_all(fd, "the listener", &byte, 1, ls_deadline_ms(SOON)) == LS_EPEER ? 0 : 1;
}

static void another_user_is_refused(void **state)
{
    int status = 0;
    scene s;
    pid_t pid;

    LS_UNUSED(state);
    if (geteuid() != 0) {
        print_message("only root can be another user\n");
        skip();
    }
    begin(&s);
    pid = fork();
    if (pid == 0)
        _exit(become_another_user(&s));
    for (int64_t until_ms = ls_deadline_ms(SOON); waitpid(pid, &status, WNOHANG) == 0;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(s.loop, 20));
    }
    assert_int_equal(status, 0);
    assert_int_equal(s.n_entered, 0);
    finish(&s);
}

static void connection_that_closed_in_the_queue_is_harmless(void **state)
{
    scene s;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    for (int i = 0; i < 20; i++)
        (void)close(connect_client(&s));
    fd = connect_client(&s);
    for (int64_t until_ms = ls_deadline_ms(SOON);
         ls_deadline_left(until_ms) > 0 && s.n_entered == 0;)
        assert_ok(poller_run_once(s.loop, 100));
    assert_true(s.n_entered >= 1);
    (void)close(fd);
    finish(&s);
}

static void client_waits_while_descriptors_are_missing(void **state)
{
    struct rlimit before;
    struct rlimit few;
    scene s;
    int fd;
    int n_turns = 0;

    LS_UNUSED(state);
    begin(&s);
    fd = connect_client(&s);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 3; /* fewer than are open */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int64_t until_ms = ls_deadline_ms(300); ls_deadline_left(until_ms) > 0; n_turns++)
        assert_ok(poller_run_once(s.loop, ls_deadline_left(until_ms)));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(s.n_entered, 0);
    assert_true(n_turns < 50); /* it pauses between its attempts */
    await_entered(&s, 1);
    (void)close(fd);
    finish(&s);
}

static void user_lookup_works_with_the_last_descriptor(void **state)
{
    struct rlimit before;
    struct rlimit few;
    scene s;
    int next;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    fd = connect_client(&s);
    next = dup(fd);
    (void)close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)next + 1; /* for the connection, not for the lookup of its user */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    await_entered(&s, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close(fd);
    finish(&s);
}

static void refused_client_does_not_end_the_listener(void **state)
{
    scene s;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    s.verdict = LS_ENOMEM;
    (void)close(connect_client(&s));
    fd = connect_client(&s);
    for (int64_t until_ms = ls_deadline_ms(SOON);
         ls_deadline_left(until_ms) > 0 && s.n_entered == 0;)
        assert_ok(poller_run_once(s.loop, 100));
    s.verdict = LS_OK;
    (void)close(fd);
    s.n_entered = 0;
    fd = connect_client(&s);
    while (s.fd < 0)
        assert_ok(poller_run_once(s.loop, SOON));
    (void)close(fd);
    finish(&s);
}

static void port_in_use_is_named(void **state)
{
    user_listener_options opt = {.name = "store", .user = geteuid(), .accepted = enter};
    user_listener *second;
    char port[16];
    scene s;

    LS_UNUSED(state);
    begin(&s);
    opt.self = &s;
    opt.port = user_listener_port(s.listener);
    assert_int_equal(user_listener_open(s.loop, &opt, &second), LS_ESYSTEM);
    assert_null(second);
    text_format(port, sizeof(port), "127.0.0.1:%d", opt.port);
    assert_last_error(port);
    user_listener_close(NULL);
    finish(&s);
}

static void await_questions(scene *s, int n)
{
    for (int64_t until_ms = ls_deadline_ms(SOON); s->n_questions < n;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(s->loop, 100));
    }
    assert_int_equal(s->n_questions, n);
}

static void expect_closed(scene *s, int fd)
{
    char byte;

    for (int64_t until_ms = ls_deadline_ms(SOON); recv(fd, &byte, 1, MSG_DONTWAIT) != 0;) {
        assert_true(ls_deadline_left(until_ms) > 0);
        assert_ok(poller_run_once(s->loop, 20));
    }
}

static void connection_from_another_host_waits_for_the_reply(void **state)
{
    net_address own;
    scene s;
    int fds[2];

    LS_UNUSED(state);
    begin_with(&s, true);
    for (int i = 0; i < 2; i++) {
        fds[i] = connect_client(&s);
        await_questions(&s, i + 1);
    }
    assert_ok(net_address_of_socket(fds[1], &own));
    assert_true(net_address_equal(&own, &s.client));
    user_listener_answer(s.listener, 12345, true); /* an unknown question */
    assert_int_equal(s.n_entered, 0);
    user_listener_answer(s.listener, s.questions[0], true);
    assert_int_equal(s.n_entered, 1);
    user_listener_answer(s.listener, s.questions[0], true);
    assert_int_equal(s.n_entered, 1);
    user_listener_answer(s.listener, s.questions[1], false);
    expect_closed(&s, fds[1]);
    assert_int_equal(s.n_entered, 1);
    (void)close(fds[0]);
    (void)close(fds[1]);
    finish(&s);
}

static void question_without_an_answer_ends_after_5_s(void **state)
{
    const int64_t since_ms = ls_now_ms();
    scene s;
    int fd;

    LS_UNUSED(state);
    begin_with(&s, true);
    fd = connect_client(&s);
    await_questions(&s, 1);
    expect_closed(&s, fd);
    assert_true(ls_now_ms() - since_ms >= 5000);
    user_listener_answer(s.listener, s.questions[0], true);
    assert_int_equal(s.n_entered, 0);
    (void)close(fd);
    finish(&s);
}

static void further_connections_wait_while_64_are_asked_about(void **state)
{
    int fds[OPEN_MOST + 10];
    scene s;

    LS_UNUSED(state);
    begin_with(&s, true);
    for (int i = 0; i < OPEN_MOST + 10; i++)
        fds[i] = connect_client(&s);
    await_questions(&s, OPEN_MOST);
    assert_ok(poller_run_once(s.loop, 50));
    assert_int_equal(s.n_questions, OPEN_MOST);
    for (int i = 0; i < OPEN_MOST; i++)
        user_listener_answer(s.listener, s.questions[i], i % 2 == 0);
    await_questions(&s, OPEN_MOST + 10);
    for (int i = OPEN_MOST; i < OPEN_MOST + 10; i++)
        user_listener_answer(s.listener, s.questions[i], true);
    assert_int_equal(s.n_entered, OPEN_MOST / 2 + 10);
    for (int i = 0; i < OPEN_MOST + 10; i++)
        (void)close(fds[i]);
    finish(&s); /* without open questions; the next scene closes with some */
    begin_with(&s, true);
    fds[0] = connect_client(&s);
    await_questions(&s, 1);
    finish(&s);
    assert_int_equal(recv(fds[0], &s, 1, 0), 0);
    (void)close(fds[0]);
}

static void connection_from_another_host_is_refused_without_a_callback(void **state)
{
    scene s;
    int fd;

    LS_UNUSED(state);
    begin(&s);
    is_elsewhere = true;
    fd = connect_client(&s);
    expect_closed(&s, fd);
    assert_int_equal(s.n_entered, 0);
    (void)close(fd);
    finish(&s);
    is_elsewhere = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connection_of_the_user_is_accepted_with_its_name),
        cmocka_unit_test(many_connections_are_accepted_at_once),
        cmocka_unit_test(another_user_is_refused),
        cmocka_unit_test(connection_that_closed_in_the_queue_is_harmless),
        cmocka_unit_test(client_waits_while_descriptors_are_missing),
        cmocka_unit_test(user_lookup_works_with_the_last_descriptor),
        cmocka_unit_test(refused_client_does_not_end_the_listener),
        cmocka_unit_test(port_in_use_is_named),
        cmocka_unit_test(connection_from_another_host_waits_for_the_reply),
        cmocka_unit_test(question_without_an_answer_ends_after_5_s),
        cmocka_unit_test(further_connections_wait_while_64_are_asked_about),
        cmocka_unit_test(connection_from_another_host_is_refused_without_a_callback),
    };

    if (log_configure("error") != LS_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
